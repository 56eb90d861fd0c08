/* SPDX-License-Identifier: Apache-2.0 */
#include "base/json.h"

#include <string.h>

#include "base/text.h"

int json_parse(const char *data, size_t len, json_t **ret, struct err *err)
{
	json_error_t je;
	json_t *j = json_loadb(data, len, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &je);

	if (!j && json_error_code(&je) == json_error_out_of_memory)
		return err_set(err, "frame.json", ENOMEM, "parse", "no memory");
	if (!j)
		return err_set(err, "frame.json", 0, "parse", "bad json: %s (column %d)", je.text,
			je.column);
	*ret = j;
	return 0;
}

/* Into memory of the C library's, whatever jansson allocates from. Most texts fit at once. */
static char *dump(const json_t *j, size_t flags, size_t *ret_len)
{
	size_t size = 1024;

	flags |= JSON_TEXT_PRECISION;
	for (;;) {
		char *text = malloc(size + 1);
		size_t len = text ? json_dumpb(j, text, size, flags) : 0;

		if (len && len <= size) {
			text[len] = '\0';
			if (ret_len)
				*ret_len = len;
			return text;
		}
		free(text);
		if (len == 0)
			return NULL;
		size = len;
	}
}

char *json_text(const json_t *j)
{
	return dump(j, JSON_COMPACT | JSON_ENCODE_ANY, NULL);
}

char *json_canonical(const json_t *j, size_t *ret_len)
{
	return dump(j, JSON_COMPACT | JSON_SORT_KEYS | JSON_ENCODE_ANY, ret_len);
}

int json_get_text(const json_t *obj, const char *key, char *dst, size_t size, const char *code,
	struct err *err)
{
	const json_t *v = json_object_get(obj, key);

	if (!v)
		return -ENOENT;
	if (!json_is_string(v))
		return err_set(err, code, 0, key, "`%s` must be a string", key);
	if (json_string_length(v) != strlen(json_string_value(v)) ||
		strpbrk(json_string_value(v), "\r\n"))
		return err_set(err, code, 0, key, "`%s` contains NUL, CR or LF", key);
	if (json_string_length(v) >= size)
		return err_set(err, code, 0, key, "`%s` is longer than %zu bytes", key, size - 1);
	text_copy(dst, size, json_string_value(v));
	return 0;
}

int json_get_int(const json_t *obj, const char *key, int64_t min, int64_t max, int64_t *ret,
	const char *code, struct err *err)
{
	const json_t *v = json_object_get(obj, key);
	int64_t n;

	if (!v)
		return -ENOENT;
	if (!json_is_integer(v))
		return err_set(err, text_equal(code, "params.range") ? "params.type" : code, 0, key,
			"`%s` must be an integer", key);
	n = json_integer_value(v);
	if (n < min || n > max)
		return err_set(err, code, 0, key, "`%s` is %lld, outside %lld to %lld", key,
			(long long)n, (long long)min, (long long)max);
	*ret = n;
	return 0;
}

int json_get_bool(const json_t *obj, const char *key, bool *ret, const char *code, struct err *err)
{
	const json_t *v = json_object_get(obj, key);

	if (!v)
		return -ENOENT;
	if (!json_is_boolean(v))
		return err_set(err, code, 0, key, "`%s` must be true or false", key);
	*ret = json_is_true(v);
	return 0;
}

int json_check_keys(const json_t *obj, const char *const *keys, size_t n, const char *what,
	const char *code, struct err *err)
{
	const char *key;
	json_t *v;

	json_object_foreach((json_t *)obj, key, v) {
		const char *near;
		size_t i = 0;

		while (i < n && !text_equal(key, keys[i]))
			i++;
		if (i < n)
			continue;
		err_set(err, code, 0, "keys", "%s has no key `%.64s`", what, key);
		near = text_nearest(key, keys, n);
		if (near)
			err_remedy(err, "did you mean `%s`?", near);
		return -EINVAL;
	}
	return 0;
}

int json_put(json_t *obj, const char *key, json_t *value)
{
	if (!value || json_object_set_new(obj, key, value) < 0)
		return -ENOMEM;
	return 0;
}

const char *json_text_or(const json_t *obj, const char *key, const char *fallback)
{
	const char *s = json_string_value(json_object_get(obj, key));

	return s ? s : fallback;
}

int64_t json_int_or(const json_t *obj, const char *key, int64_t fallback)
{
	const json_t *v = json_object_get(obj, key);

	return json_is_integer(v) ? json_integer_value(v) : fallback;
}

bool json_bool_or(const json_t *obj, const char *key, bool fallback)
{
	const json_t *v = json_object_get(obj, key);

	return json_is_boolean(v) ? json_is_true(v) : fallback;
}
