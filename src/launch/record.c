/* SPDX-License-Identifier: Apache-2.0 */
/* The launch record as the lease and the job write it down. */
#include <string.h>

#include "base/json.h"
#include "base/text.h"
#include "launch/launch.h"
#include "os/procfs.h"

#define HEX "0123456789abcdef"

static const char *const mechanism_names[LAUNCH_MECH_MAX] = {"none", "cgroup", "process_group"};
static const struct {
	unsigned bit;
	const char *name;
} dims[] = {{LAUNCH_DIM_PROCESS_TREE, "process_tree"}, {LAUNCH_DIM_WALL_CLOCK, "wall_clock"}};

const char *launch_mechanism_name(enum launch_mechanism m)
{
	return mechanism_names[m];
}

bool launch_is_mayhems(pid_t pid, const char *comm)
{
	char path[PROC_CGROUP_SIZE], *mark;

	if (launch_is_name(comm))
		return true;
	if (procfs_cgroup(pid, "", path, sizeof(path)) < 0 &&
		procfs_cgroup(pid, "freezer", path, sizeof(path)) < 0)
		return false;
	/* "/mayhem/<store>/<nonce>", or a tool's leaf beneath that. */
	mark = strstr(path, "/mayhem/");
	return mark && strspn(mark + 8, HEX) == 32 && mark[40] == '/' &&
		strspn(mark + 41, HEX) == 32;
}

static json_t *mask_to_json(unsigned mask)
{
	json_t *list = json_array();

	for (size_t i = 0; i < ARRAY_SIZE(dims); i++)
		if (mask & dims[i].bit)
			json_array_append_new(list, json_string(dims[i].name));
	return list;
}

static unsigned mask_from_json(const json_t *list)
{
	unsigned mask = 0;
	size_t i;
	json_t *v;

	json_array_foreach((json_t *)list, i, v)
		for (size_t d = 0; d < ARRAY_SIZE(dims); d++)
			if (json_is_string(v) && text_equal(json_string_value(v), dims[d].name))
				mask |= dims[d].bit;
	return mask;
}

/*
 * Flat, as records have it: the identity's own members beside the launch's.
 * `cgroup` is the leaf; where the process really was is `own_cgroup`.
 */
json_t *launch_record_to_json(const struct launch_record *rec)
{
	json_t *j = ident_to_json(&rec->id);

	if (!j)
		return NULL;
	json_object_del(j, "kind");
	json_object_set_new(j, "own_cgroup", json_string(rec->id.cgroup));
	json_object_set_new(j, "nonce", json_string(rec->nonce));
	json_object_set_new(j, "cgroup", json_string(rec->cgroup));
	json_object_set_new(j, "mechanism", json_string(mechanism_names[rec->mechanism]));
	json_object_set_new(j, "required", mask_to_json(rec->required));
	json_object_set_new(j, "enforced", mask_to_json(rec->enforced));
	json_object_set_new(j, "degraded", mask_to_json(rec->degraded));
	return j;
}

/* The members that are the identity's, as ident_from_json() wants them. */
static json_t *identity_part(const json_t *j)
{
	static const char *const keys[] = {"pid", "start_ticks", "boot_id", "pidns_inode",
		"pidfs_inode", "comm", "exe", "uid"};
	json_t *id = json_pack("{s:s, s:s}", "kind", "process", "cgroup",
		json_text_or(j, "own_cgroup", ""));

	for (size_t i = 0; i < ARRAY_SIZE(keys); i++)
		json_object_set(id, keys[i], json_object_get(j, keys[i]));
	return id;
}

int launch_record_from_json(const json_t *j, struct launch_record *ret, struct err *err)
{
	_json_ json_t *id = json_is_object(j) ? identity_part(j) : NULL;
	const char *mech = json_text_or(j, "mechanism", "");
	struct launch_record rec = {0};

	if (!json_is_object(j) ||
		!text_is_hex(json_text_or(j, "nonce", ""), LAUNCH_NONCE_SIZE - 1) ||
		!text_copy(rec.cgroup, sizeof(rec.cgroup), json_text_or(j, "cgroup", "")))
		return err_set(err, "lease.shape", 0, "holder", "not a launch record");
	if (ident_from_json(id, &rec.id, err) < 0)
		return -EINVAL;
	text_copy(rec.nonce, sizeof(rec.nonce), json_text_or(j, "nonce", ""));
	for (int i = 0; i < LAUNCH_MECH_MAX; i++)
		if (text_equal(mech, mechanism_names[i]))
			rec.mechanism = (enum launch_mechanism)i;
	rec.required = mask_from_json(json_object_get(j, "required"));
	rec.enforced = mask_from_json(json_object_get(j, "enforced"));
	rec.degraded = mask_from_json(json_object_get(j, "degraded"));
	*ret = rec;
	return 0;
}
