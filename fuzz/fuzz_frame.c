/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a controller may send: bytes that arrive in pieces, split into lines
 * and read as frames. The first byte says how large the pieces are. However
 * they are cut, the same lines must come out.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "rpc/frame.h"

struct seen {
	unsigned lines, too_long;
	char digest[HASH_HEX_SIZE]; /* of the last line */
};

static void take(struct frame_reader *r, struct seen *seen)
{
	const char *line;
	size_t len;

	for (;;) {
		struct frame f = {0};
		struct err err = {0};
		json_t *id = NULL;
		int code = 0;
		enum frame_next n = frame_reader_next(r, &line, &len);

		if (n == FRAME_NEED_MORE)
			return;
		if (n == FRAME_TOO_LONG) {
			seen->too_long++;
			continue;
		}
		if (len > FRAME_MAX || memchr(line, '\n', len))
			abort();
		seen->lines++;
		hash_hex(line, len, seen->digest);
		if (frame_parse(line, len, &f, &id, &code, &err) < 0) {
			if (!id || !code || !err.code[0] || f.doc)
				abort();
			json_decref(id);
			continue;
		}
		if (!json_is_object(f.params) || (f.kind == FRAME_REQUEST) != (f.id && f.method))
			abort();
		frame_free(&f);
	}
}

static struct seen feed(const uint8_t *data, size_t size, size_t piece)
{
	struct seen seen = {0};
	struct frame_reader r;

	frame_reader_init(&r);
	while (size) {
		size_t n = size < piece ? size : piece;
		char *at = buf_reserve(&r.in, n);

		if (!at)
			abort();
		memcpy(at, data, n);
		buf_commit(&r.in, n);
		take(&r, &seen);
		data += n;
		size -= n;
	}
	frame_reader_free(&r);
	return seen;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct seen whole, cut;

	if (size < 2 || size > (60u << 10))
		return 0;
	whole = feed(data + 1, size - 1, size);
	cut = feed(data + 1, size - 1, (size_t)data[0] + 1);
	if (whole.lines != cut.lines || whole.too_long != cut.too_long ||
		strcmp(whole.digest, cut.digest) != 0)
		abort();
	return 0;
}
