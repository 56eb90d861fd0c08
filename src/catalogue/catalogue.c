/* SPDX-License-Identifier: Apache-2.0 */
#include "catalogue/catalogue.h"

#include <string.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/text.h"

static const char *const undo_names[UNDO_KIND_MAX] = {"kernel-owned", "recorded", "irreversible"};
static const char *const type_names[PARAM_TYPE_MAX] = {"string", "integer", "boolean", "duration"};
static const struct {
	enum target_kind kind;
	const char *name;
} target_names[] = {{TARGET_PROCESS, "process"}, {TARGET_SERVICE, "service"},
	{TARGET_CONTAINER, "container"}, {TARGET_HOST, "host"}, {TARGET_EXTERNAL, "external"}};

static int name_index(const char *const *names, int n, const char *name)
{
	for (int i = 0; i < n; i++)
		if (text_equal(names[i], name))
			return i;
	return -EINVAL;
}

const char *undo_kind_name(enum undo_kind k)
{
	return undo_names[k];
}

int undo_kind_from_name(const char *name, enum undo_kind *ret)
{
	int i = name_index(undo_names, UNDO_KIND_MAX, name);

	if (i >= 0)
		*ret = (enum undo_kind)i;
	return i < 0 ? i : 0;
}

const char *param_type_name(enum param_type t)
{
	return type_names[t];
}

const char *target_kind_name(enum target_kind k)
{
	for (size_t i = 0; i < ARRAY_SIZE(target_names); i++)
		if (target_names[i].kind == k)
			return target_names[i].name;
	return "?";
}

int target_kind_from_name(const char *name, enum target_kind *ret)
{
	for (size_t i = 0; i < ARRAY_SIZE(target_names); i++)
		if (text_equal(target_names[i].name, name)) {
			*ret = target_names[i].kind;
			return 0;
		}
	return -EINVAL;
}

const struct fault_entry *catalogue_find(const char *id)
{
	size_t n;
	const struct fault_entry *e = catalogue_entries(&n);

	for (size_t i = 0; i < n; i++)
		if (text_equal(e[i].id, id))
			return &e[i];
	return NULL;
}

const char *catalogue_nearest(const char *id)
{
	const char *ids[128];
	size_t n;
	const struct fault_entry *e = catalogue_entries(&n);

	for (size_t i = 0; i < n && i < ARRAY_SIZE(ids); i++)
		ids[i] = e[i].id;
	return text_nearest(id, ids, n);
}

const struct param *catalogue_param(const struct fault_entry *e, const char *name)
{
	for (const struct param *p = e->params; p->name; p++)
		if (text_equal(p->name, name))
			return p;
	return NULL;
}

static int unknown_param(const struct fault_entry *e, const char *name, struct err *err)
{
	const char *names[32];
	const char *near;
	size_t n = 0;

	for (const struct param *p = e->params; p->name && n < ARRAY_SIZE(names); p++)
		names[n++] = p->name;
	err_set(err, "params.unknown", 0, "params", "%s has no parameter `%.64s`", e->id, name);
	near = text_nearest(name, names, n);
	if (near)
		err_remedy(err, "did you mean `%s`? `mayhem faults %s` lists them", near, e->id);
	else
		err_remedy(err, "`mayhem faults %s` lists them", e->id);
	return -EINVAL;
}

static int wrong_type(const struct fault_entry *e, const struct param *p, struct err *err)
{
	return err_set(err, "params.type", 0, "params", "%s: `%s` must be a %s", e->id, p->name,
		type_names[p->type]);
}

static int check_string(const struct fault_entry *e, const struct param *p, const json_t *v,
	json_t **ret, struct err *err)
{
	char allowed[128] = "";

	if (!json_is_string(v))
		return wrong_type(e, p, err);
	for (size_t i = 0; i < CATALOGUE_VALUES_MAX && p->values[i]; i++) {
		if (text_equal(p->values[i], json_string_value(v))) {
			*ret = json_string(p->values[i]);
			return *ret ? 0 : -ENOMEM;
		}
		snprintf(allowed + strlen(allowed), sizeof(allowed) - strlen(allowed), "%s%s",
			i ? ", " : "", p->values[i]);
	}
	if (allowed[0])
		return err_set(err, "params.range", 0, "params",
			"%s: `%s` is `%.64s`, must be one of: %s", e->id, p->name,
			json_string_value(v), allowed);
	*ret = json_string(json_string_value(v));
	return *ret ? 0 : -ENOMEM;
}

static int check_range(const struct fault_entry *e, const struct param *p, long long n,
	json_t **ret, struct err *err)
{
	const char *unit = p->type == PARAM_DURATION ? " ms" : "";
	char text[32];

	if (n < p->min || n > p->max)
		return err_set(err, "params.range", 0, "params",
			"%s: `%s` is %lld%s, outside %lld to %lld%s", e->id, p->name, n, unit,
			p->min, p->max, unit);
	/* With its unit: what was checked once means the same when it is checked again. */
	*ret = p->type == PARAM_DURATION
		? json_string(text_format_duration((uint64_t)n, text, sizeof(text)))
		: json_integer(n);
	return *ret ? 0 : -ENOMEM;
}

static int too_large(const struct fault_entry *e, const struct param *p, struct err *err)
{
	return err_set(err, "params.range", 0, "params", "%s: `%s` is out of range", e->id,
		p->name);
}

/* A duration is a text ("1.5s") or a number of seconds. */
static int check_duration(const struct fault_entry *e, const struct param *p, const json_t *v,
	json_t **ret, struct err *err)
{
	uint64_t ms;
	double s;

	if (json_is_string(v)) {
		int r = text_parse_duration_ms(json_string_value(v), &ms);

		if (r == -ERANGE)
			return too_large(e, p, err);
		if (r < 0)
			return wrong_type(e, p, err);
		return check_range(e, p, (long long)ms, ret, err);
	}
	if (!json_is_number(v))
		return wrong_type(e, p, err);
	s = json_number_value(v);
	if (!(s >= -1e9 && s <= 1e9))
		return too_large(e, p, err);
	return check_range(e, p, (long long)(s * 1000), ret, err);
}

static int check_one(const struct fault_entry *e, const struct param *p, const json_t *v,
	json_t **ret, struct err *err)
{
	switch (p->type) {
	case PARAM_STRING:
		return check_string(e, p, v, ret, err);
	case PARAM_INTEGER:
		return json_is_integer(v) ? check_range(e, p, json_integer_value(v), ret, err)
					  : wrong_type(e, p, err);
	case PARAM_BOOLEAN:
		if (!json_is_boolean(v))
			return wrong_type(e, p, err);
		*ret = json_boolean(json_is_true(v));
		return 0;
	case PARAM_DURATION:
		return check_duration(e, p, v, ret, err);
	case PARAM_TYPE_MAX:
		break;
	}
	return -EINVAL;
}

json_t *catalogue_param_from_text(const struct param *p, const char *text)
{
	int64_t n;

	if (p->type == PARAM_INTEGER && text_parse_i64(text, &n) == 0)
		return json_integer(n);
	if (p->type == PARAM_BOOLEAN && (text_equal(text, "true") || text_equal(text, "yes")))
		return json_true();
	if (p->type == PARAM_BOOLEAN && (text_equal(text, "false") || text_equal(text, "no")))
		return json_false();
	return json_string(text);
}

int catalogue_check_params(const struct fault_entry *e, const json_t *given, json_t **ret,
	struct err *err)
{
	_json_ json_t *out = json_object();
	const char *key;
	json_t *v;

	if (given && !json_is_object(given))
		return err_set(err, "params.type", 0, "params", "`params` must be an object");
	json_object_foreach((json_t *)given, key, v)
		if (!catalogue_param(e, key))
			return unknown_param(e, key, err);
	for (const struct param *p = e->params; p->name; p++) {
		_json_ json_t *fallback =
			p->fallback ? catalogue_param_from_text(p, p->fallback) : NULL;
		json_t *checked = NULL;
		int r;

		v = json_object_get(given, p->name);
		if (!v)
			v = fallback;
		if (!v)
			return err_set(err, "params.missing", 0, "params", "%s needs `%s`", e->id,
				p->name);
		r = check_one(e, p, v, &checked, err);
		if (r == 0)
			r = json_put(out, p->name, checked);
		if (r < 0)
			return r;
	}
	*ret = take_ptr(out);
	return 0;
}

uint64_t catalogue_duration_ms(const json_t *params, const char *name)
{
	uint64_t ms = 0;

	text_parse_duration_ms(json_text_or(params, name, ""), &ms);
	return ms;
}

static json_t *param_to_json(const struct param *p)
{
	json_t *j = json_pack("{s:s, s:s, s:s}", "name", p->name, "type", type_names[p->type],
		"help", p->help);

	if (p->fallback)
		json_object_set_new(j, "default", catalogue_param_from_text(p, p->fallback));
	if (p->values[0]) {
		json_t *values = json_array();

		for (size_t i = 0; i < CATALOGUE_VALUES_MAX && p->values[i]; i++)
			json_array_append_new(values, json_string(p->values[i]));
		json_object_set_new(j, "values", values);
	}
	if (p->max) {
		json_object_set_new(j, p->type == PARAM_DURATION ? "min_ms" : "min",
			json_integer(p->min));
		json_object_set_new(j, p->type == PARAM_DURATION ? "max_ms" : "max",
			json_integer(p->max));
	}
	return j;
}

json_t *catalogue_entry_to_json(const struct fault_entry *e)
{
	json_t *targets = json_array(), *params = json_array();

	for (size_t i = 0; i < ARRAY_SIZE(target_names); i++)
		if (e->targets & target_names[i].kind)
			json_array_append_new(targets, json_string(target_names[i].name));
	for (const struct param *p = e->params; p->name; p++)
		json_array_append_new(params, param_to_json(p));
	return json_pack("{s:s, s:s, s:i, s:o, s:s, s:o, s:s}", "id", e->id, "risk",
		risk_name(e->risk), "max_duration_s", (int)e->max_duration_s, "targets", targets,
		"undo_kind", undo_names[e->undo_kind], "params", params, "help", e->help);
}
