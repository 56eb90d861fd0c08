/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc/frame.h"

#include <string.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/text.h"

#define READ_ROOM (64u << 10)

void frame_free(struct frame *f)
{
	json_decref(f->id);
	json_decref(f->params);
	json_decref(f->doc);
	memset(f, 0, sizeof(*f));
}

static bool is_id(const json_t *id)
{
	return json_is_integer(id) || json_is_string(id);
}

static int refuse(const char *why, struct err *err)
{
	return err_set(err, "frame.shape", 0, "frame", "%s", why);
}

static int check_shape(const json_t *doc, struct err *err)
{
	static const char *const keys[] = {"jsonrpc", "id", "method", "params", "result", "error"};
	const json_t *version = json_object_get(doc, "jsonrpc"), *id = json_object_get(doc, "id");
	const json_t *method = json_object_get(doc, "method"),
		     *params = json_object_get(doc, "params");

	if (json_is_array(doc))
		return refuse("batches are not spoken here", err);
	if (!json_is_object(doc))
		return refuse("a frame is a JSON object", err);
	if (version && (!json_is_string(version) || !text_equal(json_string_value(version), "2.0")))
		return refuse("`jsonrpc` must be \"2.0\"", err);
	if (json_check_keys(doc, keys, ARRAY_SIZE(keys), "a frame", "frame.shape", err) < 0)
		return -EINVAL;
	if (id && !is_id(id))
		return refuse("`id` must be an integer or a string", err);
	if (method && !json_is_string(method))
		return refuse("`method` must be a string", err);
	if (params && !json_is_object(params))
		return refuse("`params` must be an object", err);
	return 0;
}

int frame_parse(const char *line, size_t len, struct frame *ret, json_t **ret_id, int *ret_code,
	struct err *err)
{
	_json_ json_t *doc = NULL;
	json_t *id, *method, *params;

	*ret_id = NULL;
	if (json_parse(line, len, &doc, err) < 0) {
		*ret_code = RPC_PARSE_ERROR;
		*ret_id = json_null();
		return -EINVAL;
	}
	id = json_object_get(doc, "id");
	method = json_object_get(doc, "method");
	params = json_object_get(doc, "params");
	if (check_shape(doc, err) < 0) {
		*ret_code = RPC_INVALID_REQUEST;
		*ret_id = is_id(id) ? json_incref(id) : json_null();
		return -EINVAL;
	}
	ret->kind = !method ? FRAME_RESPONSE : id ? FRAME_REQUEST : FRAME_NOTIFICATION;
	ret->id = json_incref(id);
	ret->method = json_string_value(method);
	ret->params = params ? json_incref(params) : json_object();
	ret->doc = take_ptr(doc);
	return 0;
}

json_t *frame_shorten_lease(json_t *lease)
{
	static const char *const lists[] = {"undo_ops", "verify_probes", "resources", "targets",
		"observations", "remedy"};
	json_t *copy = json_copy(lease);

	for (size_t i = 0; i < ARRAY_SIZE(lists); i++)
		json_object_set_new(copy, lists[i], json_array());
	json_object_set_new(copy, "shortened", json_true());
	return copy;
}

void frame_reader_init(struct frame_reader *r)
{
	memset(r, 0, sizeof(*r));
	/* One whole line, its LF, and room to read on. */
	buf_init(&r->in, FRAME_MAX + 1 + READ_ROOM);
}

void frame_reader_free(struct frame_reader *r)
{
	buf_free(&r->in);
}

static bool is_blank(const char *line, size_t len)
{
	for (size_t i = 0; i < len; i++)
		if (!strchr(" \t\r", line[i]) || line[i] == '\0')
			return false;
	return true;
}

enum frame_next frame_reader_next(struct frame_reader *r, const char **ret_line, size_t *ret_len)
{
	while (r->in.len > r->scanned) {
		const char *data = buf_peek(&r->in);
		const char *nl = memchr(data + r->scanned, '\n', r->in.len - r->scanned);
		size_t len = nl ? (size_t)(nl - data) : r->in.len;

		if (r->skipping) {
			r->skipping = !nl;
			buf_consume(&r->in, nl ? len + 1 : len);
			r->scanned = 0;
			continue;
		}
		if (len > FRAME_MAX) {
			r->skipping = !nl;
			buf_consume(&r->in, nl ? len + 1 : len);
			r->scanned = 0;
			return FRAME_TOO_LONG;
		}
		if (!nl) {
			r->scanned = r->in.len;
			return FRAME_NEED_MORE;
		}
		buf_consume(&r->in, len + 1);
		r->scanned = 0;
		if (is_blank(data, len))
			continue;
		*ret_line = data;
		*ret_len = len;
		return FRAME_LINE;
	}
	return FRAME_NEED_MORE;
}
