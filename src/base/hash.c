/* SPDX-License-Identifier: Apache-2.0 */
#include "base/hash.h"

#include <sha2.h>
#include <stdint.h>

void hash_hex(const void *data, size_t len, char ret_hex[static HASH_HEX_SIZE])
{
	static const char digits[] = "0123456789abcdef";
	uint8_t raw[SHA256_DIGEST_LENGTH];
	SHA2_CTX ctx;

	SHA256Init(&ctx);
	SHA256Update(&ctx, data, len);
	SHA256Final(raw, &ctx);
	for (size_t i = 0; i < sizeof(raw); i++) {
		ret_hex[2 * i] = digits[raw[i] >> 4];
		ret_hex[2 * i + 1] = digits[raw[i] & 15];
	}
	ret_hex[2 * sizeof(raw)] = '\0';
}
