/* SPDX-License-Identifier: Apache-2.0 */
/* The launch record as the lease and the job write it down. */
#include <string.h>

#include "base/json.h"
#include "base/text.h"
#include "launch/launch.h"

static const char *const mechanism_names[LAUNCH_MECH_MAX] = {"none", "cgroup", "process_group"};
static const struct {
	unsigned bit;
	const char *name;
} dims[] = {{LAUNCH_DIM_PROCESS_TREE, "process_tree"}, {LAUNCH_DIM_WALL_CLOCK, "wall_clock"}};

const char *launch_mechanism_name(enum launch_mechanism m)
{
	return mechanism_names[m];
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

json_t *launch_record_to_json(const struct launch_record *rec)
{
	return json_pack("{s:o, s:s, s:s, s:s, s:o, s:o, s:o}", "identity",
		rec->id.start_ticks ? ident_to_json(&rec->id) : json_null(), "nonce", rec->nonce,
		"cgroup", rec->cgroup, "mechanism", mechanism_names[rec->mechanism], "required",
		mask_to_json(rec->required), "enforced", mask_to_json(rec->enforced), "degraded",
		mask_to_json(rec->degraded));
}

int launch_record_from_json(const json_t *j, struct launch_record *ret, struct err *err)
{
	const json_t *id = json_object_get(j, "identity");
	const char *mech = json_text_or(j, "mechanism", "");
	struct launch_record rec = {0};

	if (!json_is_object(j) ||
		!text_is_hex(json_text_or(j, "nonce", ""), LAUNCH_NONCE_SIZE - 1) ||
		!text_copy(rec.cgroup, sizeof(rec.cgroup), json_text_or(j, "cgroup", "")))
		return err_set(err, "lease.shape", 0, "holder", "not a launch record");
	if (json_is_object(id) && ident_from_json(id, &rec.id, err) < 0)
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
