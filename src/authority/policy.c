/* SPDX-License-Identifier: Apache-2.0 */
#include "authority/policy.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "authority/window.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"

#define POLICY_FILE_MAX (1 << 20)
#define CODE "config.policy"

static const struct {
	const char *name;
	unsigned bit;
} capability_names[] = {{"fault_inject", CAPABILITY_FAULT_INJECT},
	{"fault_undo", CAPABILITY_FAULT_UNDO}, {"probe_run", CAPABILITY_PROBE_RUN},
	{"resource_access", CAPABILITY_RESOURCE_ACCESS},
	{"network_access", CAPABILITY_NETWORK_ACCESS}, {"shell_exec", CAPABILITY_SHELL_EXEC}};

static const char *const file_keys[] = {"format", "allowed_faults", "allowed_resources",
	"capabilities", "denied_faults", "protected", "max_duration_s", "max_leases", "windows",
	"risk_ceiling", "engines", "approve", "metrics_file", "jobs"};
static const char *const handshake_keys[] = {"allowed_faults", "allowed_resources", "capabilities"};
static const char *const text_lists[] = {"allowed_faults", "allowed_resources", "capabilities",
	"denied_faults", "protected", "engines", "approve"};

void policy_init(struct policy *p)
{
	memset(p, 0, sizeof(*p));
}

void policy_free(struct policy *p)
{
	for (size_t i = 0; i < p->n_layers; i++) {
		json_decref(p->layers[i].doc);
		free((void *)(uintptr_t)p->layers[i].name);
	}
	policy_init(p);
}

/* Unknown kinds grant nothing, and are no error: an older agent must read a newer file. */
static unsigned capability_mask(const json_t *list)
{
	unsigned mask = 0;
	size_t i;
	json_t *v;

	if (!list)
		return CAPABILITY_ALL;
	json_array_foreach((json_t *)list, i, v)
		for (size_t c = 0; c < ARRAY_SIZE(capability_names); c++)
			if (text_equal(json_string_value(v), capability_names[c].name))
				mask |= capability_names[c].bit;
	return mask;
}

static int check_lists(const json_t *doc, const char *name, struct err *err)
{
	for (size_t k = 0; k < ARRAY_SIZE(text_lists); k++) {
		const json_t *list = json_object_get(doc, text_lists[k]);
		size_t i;
		json_t *v;

		if (!list)
			continue;
		if (!json_is_array(list))
			return err_set(err, CODE, 0, "policy", "%s: `%s` must be a list", name,
				text_lists[k]);
		json_array_foreach((json_t *)list, i, v)
			if (!json_is_string(v) || !text_is_plain(json_string_value(v)))
				return err_set(err, CODE, 0, "policy", "%s: `%s` must hold texts",
					name, text_lists[k]);
	}
	return 0;
}

static int check_limits(const json_t *doc, const char *name, struct policy_layer *layer,
	struct err *err)
{
	static const char *const limits[] = {"max_duration_s", "max_leases"};
	const json_t *ceiling = json_object_get(doc, "risk_ceiling");

	for (size_t i = 0; i < ARRAY_SIZE(limits); i++) {
		const json_t *v = json_object_get(doc, limits[i]);

		if (v && !json_is_null(v) && (!json_is_integer(v) || json_integer_value(v) < 0))
			return err_set(err, CODE, 0, "policy",
				"%s: `%s` must be a number from 0, or null", name, limits[i]);
	}
	layer->risk_ceiling = RISK_HIGH;
	if (ceiling &&
		(!json_is_string(ceiling) ||
			risk_from_name(json_string_value(ceiling), &layer->risk_ceiling) < 0))
		return err_set(err, CODE, 0, "policy",
			"%s: `risk_ceiling` must be low, medium, high or critical", name);
	return window_check_list(json_object_get(doc, "windows"), name, err);
}

/* Takes over doc. */
static int add_layer(struct policy *p, const char *name, json_t *doc, const char *const *keys,
	size_t n_keys, struct err *err)
{
	_json_ json_t *owned = doc;
	struct policy_layer layer = {0};

	if (p->n_layers == POLICY_LAYERS_MAX)
		return err_set(err, CODE, 0, "policy", "too many policies");
	if (!json_is_object(doc))
		return err_set(err, CODE, 0, "policy", "%s is not a JSON object", name);
	if (json_check_keys(doc, keys, n_keys, name, CODE, err) < 0 ||
		check_lists(doc, name, err) < 0 || check_limits(doc, name, &layer, err) < 0)
		return -EINVAL;
	layer.capabilities = capability_mask(json_object_get(doc, "capabilities"));
	layer.name = strdup(name);
	if (!layer.name)
		return err_set(err, CODE, ENOMEM, "policy", "no memory");
	layer.doc = take_ptr(owned);
	p->layers[p->n_layers++] = layer;
	return 0;
}

static int add_file(struct policy *p, const char *path, struct err *err)
{
	_free_ char *text = NULL;
	json_t *doc;
	struct err why;
	size_t len;
	int r = file_read_at(AT_FDCWD, path, POLICY_FILE_MAX, &text, &len);

	if (r < 0)
		return err_set(err, CODE, -r, "policy", "cannot read %s", path);
	if (json_parse(text, len, &doc, &why) < 0)
		return err_set(err, CODE, 0, "policy", "%s: %s", path, why.text);
	return add_layer(p, path, doc, file_keys, ARRAY_SIZE(file_keys), err);
}

int policy_add_host_file(struct policy *p, struct err *err)
{
	struct stat st;

	if (lstat(POLICY_HOST_FILE, &st) < 0)
		return errno == ENOENT
			? 0
			: err_set(err, CODE, errno, "policy", "cannot look at " POLICY_HOST_FILE);
	if (!S_ISREG(st.st_mode) || st.st_uid != 0 || st.st_mode & 022) {
		err_set(err, CODE, 0, "policy",
			POLICY_HOST_FILE
			" must be a regular file, owned by root and writable by nobody else");
		err_remedy(err, "chown root " POLICY_HOST_FILE "; chmod go-w " POLICY_HOST_FILE);
		return -EPERM;
	}
	return add_file(p, POLICY_HOST_FILE, err);
}

int policy_add_file(struct policy *p, const char *path, struct err *err)
{
	return add_file(p, path, err);
}

int policy_add_handshake(struct policy *p, const json_t *capabilities, struct err *err)
{
	int r = add_layer(p, "handshake", json_deep_copy(capabilities), handshake_keys,
		ARRAY_SIZE(handshake_keys), err);

	if (r < 0 && err)
		text_copy(err->code, sizeof(err->code), "params.type");
	/* The handshake says nothing of risk: it narrows what the host allows, and no more. */
	if (r == 0)
		p->layers[p->n_layers - 1].risk_ceiling = RISK_CRITICAL;
	return r;
}

static bool list_names_fault(const json_t *list, const char *fault_id)
{
	size_t i;
	json_t *v;

	json_array_foreach((json_t *)list, i, v)
		if (text_has_dotted_prefix(fault_id, json_string_value(v)))
			return true;
	return false;
}

static bool list_names_resource(const json_t *list, const struct policy_ask *ask)
{
	size_t i;
	json_t *v;

	json_array_foreach((json_t *)list, i, v)
		for (size_t k = 0; k < ask->n_resources; k++)
			if (text_equal(ask->resources[k], json_string_value(v)))
				return true;
	return false;
}

static int denied(const struct policy_layer *l, const char *code, const char *key, struct err *err)
{
	err_set(err, code, 0, "policy", "refused by `%s` of %s", key, l->name);
	err_remedy(err, "whoever owns %s can allow it", l->name);
	return -EPERM;
}

static int check_lists_allow(const struct policy_layer *l, const struct policy_ask *ask,
	struct err *err)
{
	const json_t *faults = json_object_get(l->doc, "allowed_faults");
	const json_t *resources = json_object_get(l->doc, "allowed_resources");

	if (!(l->capabilities & CAPABILITY_FAULT_INJECT))
		return denied(l, "agent.capability.denied", "capabilities", err);
	if (json_array_size(faults) && !list_names_fault(faults, ask->fault_id))
		return denied(l, "agent.capability.denied", "allowed_faults", err);
	if (json_array_size(resources) && !list_names_resource(resources, ask))
		return denied(l, "agent.capability.denied", "allowed_resources", err);
	if (list_names_fault(json_object_get(l->doc, "denied_faults"), ask->fault_id))
		return denied(l, "policy.denied", "denied_faults", err);
	if (list_names_resource(json_object_get(l->doc, "protected"), ask))
		return denied(l, "target.protected", "protected", err);
	return 0;
}

static int check_limits_allow(const struct policy_layer *l, const struct policy_ask *ask,
	struct err *err)
{
	const json_t *leases = json_object_get(l->doc, "max_leases");
	const json_t *duration = json_object_get(l->doc, "max_duration_s");

	if (json_is_integer(leases) && ask->live_leases >= (uint64_t)json_integer_value(leases))
		return denied(l, "policy.denied", "max_leases", err);
	if (json_is_integer(duration) &&
		ask->duration_ms > (uint64_t)json_integer_value(duration) * 1000)
		return denied(l, "policy.denied", "max_duration_s", err);
	if (!window_list_open(json_object_get(l->doc, "windows"), ask->now_utc_ms))
		return denied(l, "policy.denied", "windows", err);
	if (ask->risk > l->risk_ceiling)
		return denied(l, "risk.ceiling", "risk_ceiling", err);
	if (list_names_fault(json_object_get(l->doc, "approve"), ask->fault_id))
		return denied(l, "approval.required", "approve", err);
	return 0;
}

int policy_check_inject(const struct policy *p, const struct policy_ask *ask, struct err *err)
{
	for (size_t i = 0; i < p->n_layers; i++) {
		int r = check_lists_allow(&p->layers[i], ask, err);

		if (r == 0)
			r = check_limits_allow(&p->layers[i], ask, err);
		if (r < 0)
			return r;
	}
	/* Without any file everything is allowed but the critical. */
	if (ask->risk == RISK_CRITICAL && p->n_layers == 0)
		return err_set(err, "risk.ceiling", 0, "policy",
			"%s is critical, and no policy allows it", ask->fault_id);
	return 0;
}

int policy_check_capability(const struct policy *p, enum capability c, struct err *err)
{
	for (size_t i = 0; i < p->n_layers; i++)
		if (!(p->layers[i].capabilities & c))
			return denied(&p->layers[i], "agent.capability.denied", "capabilities",
				err);
	return 0;
}

bool policy_lists_engine(const struct policy *p, const char *endpoint)
{
	for (size_t i = 0; i < p->n_layers; i++) {
		const json_t *list = json_object_get(p->layers[i].doc, "engines");
		size_t k;
		json_t *v;

		json_array_foreach((json_t *)list, k, v)
			if (text_equal(json_string_value(v), endpoint))
				return true;
	}
	return false;
}

uint64_t policy_max_duration_ms(const struct policy *p)
{
	uint64_t least = UINT64_MAX;

	for (size_t i = 0; i < p->n_layers; i++) {
		const json_t *v = json_object_get(p->layers[i].doc, "max_duration_s");

		if (json_is_integer(v) && (uint64_t)json_integer_value(v) * 1000 < least)
			least = (uint64_t)json_integer_value(v) * 1000;
	}
	return least;
}

const char *policy_metrics_file(const struct policy *p)
{
	for (size_t i = 0; i < p->n_layers; i++) {
		const char *path =
			json_string_value(json_object_get(p->layers[i].doc, "metrics_file"));

		if (path)
			return path;
	}
	return NULL;
}
