/* SPDX-License-Identifier: Apache-2.0 */
/* SHA-256, the one digest of this project: anybody can check it with sha256sum. */
#pragma once

#include <stddef.h>

#define HASH_HEX_SIZE 65

/* Writes 64 lower-case hexadecimal digits and a NUL. */
void hash_hex(const void *data, size_t len, char ret_hex[static HASH_HEX_SIZE]);
