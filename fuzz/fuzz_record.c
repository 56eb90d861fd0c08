/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lease's record as somebody else may have left it. The checksum would stop
 * a fuzzer at the first line, so an input that starts with `+` is a list of
 * bodies, one a line, which are wrapped with right heads first. What reads as
 * a lease must read the same after it was written again.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/json.h"
#include "lease/lease.h"
#include "state/record.h"

static char *wrap(const char *data, size_t size, size_t *ret_len)
{
	size_t room = size + 256 * (size / 2 + 2), used = 0;
	char *out = malloc(room);
	unsigned seq = 0;

	while (size) {
		const char *nl = memchr(data, '\n', size);
		size_t len = nl ? (size_t)(nl - data) : size;
		char digest[HASH_HEX_SIZE];

		hash_hex(data, len, digest);
		used += (size_t)snprintf(out + used, room - used,
			"{\"format\":\"%s\",\"seq\":%u,\"sha256\":\"%s\",\"body\":", LEASE_FORMAT,
			++seq, digest);
		memcpy(out + used, data, len);
		used += len;
		memcpy(out + used, "}\n", 2);
		used += 2;
		data += nl ? len + 1 : len;
		size -= nl ? len + 1 : len;
	}
	*ret_len = used;
	return out;
}

static void check_lease(const json_t *body)
{
	_lease_ struct lease first = {0}, second = {0};
	_json_ json_t *once = NULL, *twice = NULL;

	if (lease_from_json("l-00000001", body, &first, NULL) < 0)
		return;
	once = lease_to_json(&first);
	if (!once) /* text that is no UTF-8 cannot come from a parsed record */
		abort();
	if (lease_from_json("l-00000001", once, &second, NULL) < 0)
		abort();
	twice = lease_to_json(&second);
	if (!twice || !json_equal(once, twice))
		abort();
}

static void check_record(const char *data, size_t size)
{
	struct record rec = {0};
	_json_ json_t *body = NULL;
	struct err err = {0};
	int r = record_parse(data, size, LEASE_FORMAT, &rec, &body, &err);

	if (r < 0 && !err.code[0])
		abort();
	if (r < 0)
		return;
	if (!json_is_object(body) || rec.end > size || rec.seq == 0)
		abort();
	check_lease(body);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	size_t len = 0;
	char *copy;

	if (size > RECORD_CAPACITY)
		return 0;
	if (size && data[0] == '+') {
		copy = wrap((const char *)data + 1, size - 1, &len);
	} else {
		copy = malloc(size + 1); /* of exactly that size: a read beyond it is seen */
		memcpy(copy, data, size);
		len = size;
	}
	check_record(copy, len);
	free(copy);
	return 0;
}
