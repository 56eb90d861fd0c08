/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Strict parsing and bounded copying of text. Every parser accepts the whole
 * string or nothing: no leading blanks, no sign unless the type has one, no
 * trailing bytes, no silent overflow.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Copies at most size - 1 bytes and always terminates. Returns false when it had to cut. */
bool text_copy(char *dst, size_t size, const char *src);

/* Decimal, 0 … UINT64_MAX. -EINVAL or -ERANGE. */
int text_parse_u64(const char *s, uint64_t *ret);

/* The same of exactly len bytes, which need not be terminated. */
int text_parse_u64_n(const char *s, size_t len, uint64_t *ret);

/* Decimal with an optional minus. */
int text_parse_i64(const char *s, int64_t *ret);

/* A process id: 1 … INT32_MAX. */
int text_parse_pid(const char *s, pid_t *ret);

/* Hexadecimal without prefix, as /proc/<pid>/status prints its masks. */
int text_parse_hex_n(const char *s, size_t len, uint64_t *ret);

/* "250ms", "1.5s", "5m", "2h", or bare seconds ("2", "0.25"): milliseconds. */
int text_parse_duration_ms(const char *s, uint64_t *ret_ms);

/* The shortest of the above that says it exactly: "500ms", "1.5s", "2m". */
const char *text_format_duration(uint64_t ms, char *buf, size_t size);

/* n random bytes from the kernel as 2n hex digits and a NUL. */
int text_random_hex(char *dst, size_t n_bytes);

/* True when s is exactly len lower-case hexadecimal digits. */
bool text_is_hex(const char *s, size_t len);

bool text_has_prefix(const char *s, const char *prefix);

/* "net" and "net.latency" are dotted prefixes of "net.latency"; "ne" is not. */
bool text_has_dotted_prefix(const char *s, const char *prefix);
bool text_equal(const char *a, const char *b);

/* Non-empty and free of NUL, LF and CR; what may stand in a record or a log line. */
bool text_is_plain(const char *s);

/* Control characters and bytes that are no UTF-8 become '?': names that anybody may choose, made text. */
void text_make_printable(char *s);

/* The candidate nearest to word by edit distance (at most 3), or NULL. For "did you mean". */
const char *text_nearest(const char *word, const char *const *candidates, size_t n);
