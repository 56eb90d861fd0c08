/* SPDX-License-Identifier: Apache-2.0 */
#include "base/text.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "base/cleanup.h"

bool text_copy(char *dst, size_t size, const char *src)
{
	size_t len = strnlen(src, size - 1);

	memcpy(dst, src, len);
	dst[len] = '\0';
	return src[len] == '\0';
}

int text_parse_u64_n(const char *s, size_t len, uint64_t *ret)
{
	uint64_t v = 0;

	if (len == 0)
		return -EINVAL;
	for (size_t i = 0; i < len; i++) {
		if (s[i] < '0' || s[i] > '9')
			return -EINVAL;
		if (__builtin_mul_overflow(v, (uint64_t)10, &v) ||
			__builtin_add_overflow(v, (uint64_t)(s[i] - '0'), &v))
			return -ERANGE;
	}
	*ret = v;
	return 0;
}

int text_parse_u64(const char *s, uint64_t *ret)
{
	return text_parse_u64_n(s, strlen(s), ret);
}

int text_parse_i64(const char *s, int64_t *ret)
{
	bool neg = s[0] == '-';
	uint64_t v;
	int r = text_parse_u64(s + neg, &v);

	if (r < 0)
		return r;
	if (v > (uint64_t)INT64_MAX + neg)
		return -ERANGE;
	*ret = neg ? (int64_t)(0 - v) : (int64_t)v;
	return 0;
}

int text_parse_pid(const char *s, pid_t *ret)
{
	uint64_t v;
	int r = text_parse_u64(s, &v);

	if (r < 0)
		return r;
	if (v == 0 || v > INT32_MAX)
		return -ERANGE;
	*ret = (pid_t)v;
	return 0;
}

int text_parse_hex_n(const char *s, size_t len, uint64_t *ret)
{
	uint64_t v = 0;

	if (len == 0 || len > 16)
		return -EINVAL;
	for (size_t i = 0; i < len; i++) {
		unsigned d;

		if (s[i] >= '0' && s[i] <= '9')
			d = (unsigned)(s[i] - '0');
		else if (s[i] >= 'a' && s[i] <= 'f')
			d = (unsigned)(s[i] - 'a') + 10;
		else
			return -EINVAL;
		v = v << 4 | d;
	}
	*ret = v;
	return 0;
}

/* Splits "1.5s" into whole 1, thousandths 500 and unit "s". */
static int split_decimal(const char *s, uint64_t *ret_whole, uint64_t *ret_milli,
	const char **ret_unit)
{
	size_t len = strspn(s, "0123456789");
	uint64_t whole, milli = 0;
	int r = text_parse_u64_n(s, len, &whole);

	if (r < 0)
		return r;
	s += len;
	if (*s == '.') {
		size_t digits = strspn(++s, "0123456789");
		uint64_t scale = 100;

		if (digits == 0 || digits > 3)
			return -EINVAL;
		for (size_t i = 0; i < digits; i++, scale /= 10)
			milli += (uint64_t)(s[i] - '0') * scale;
		s += digits;
	}
	*ret_whole = whole;
	*ret_milli = milli;
	*ret_unit = s;
	return 0;
}

int text_parse_duration_ms(const char *s, uint64_t *ret_ms)
{
	static const struct {
		const char *name;
		uint64_t ms;
	} units[] = {{"", 1000}, {"s", 1000}, {"ms", 1}, {"m", 60000}, {"h", 3600000}};
	uint64_t whole, milli;
	const char *unit;
	int r = split_decimal(s, &whole, &milli, &unit);

	if (r < 0)
		return r;
	for (size_t i = 0; i < ARRAY_SIZE(units); i++) {
		if (!text_equal(unit, units[i].name))
			continue;
		if (milli * units[i].ms % 1000)
			return -EINVAL; /* finer than a millisecond */
		if (whole > (uint64_t)INT64_MAX / 3600000)
			return -ERANGE;
		*ret_ms = whole * units[i].ms + milli * units[i].ms / 1000;
		return 0;
	}
	return -EINVAL;
}

const char *text_format_duration(uint64_t ms, char *buf, size_t size)
{
	if (ms && ms % 3600000 == 0)
		snprintf(buf, size, "%lluh", (unsigned long long)ms / 3600000);
	else if (ms && ms % 60000 == 0)
		snprintf(buf, size, "%llum", (unsigned long long)ms / 60000);
	else if (ms % 1000 == 0)
		snprintf(buf, size, "%llus", (unsigned long long)ms / 1000);
	else if (ms > 1000 && ms % 100 == 0)
		snprintf(buf, size, "%llu.%llus", (unsigned long long)ms / 1000,
			(unsigned long long)ms % 1000 / 100);
	else
		snprintf(buf, size, "%llums", (unsigned long long)ms);
	return buf;
}

int text_random_hex(char *dst, size_t n_bytes)
{
	static const char digits[] = "0123456789abcdef";
	unsigned char raw[32];

	if (n_bytes > sizeof(raw))
		return -EINVAL;
	if (getrandom(raw, n_bytes, 0) != (ssize_t)n_bytes)
		return errno ? -errno : -EIO;
	for (size_t i = 0; i < n_bytes; i++) {
		dst[2 * i] = digits[raw[i] >> 4];
		dst[2 * i + 1] = digits[raw[i] & 15];
	}
	dst[2 * n_bytes] = '\0';
	return 0;
}

bool text_is_hex(const char *s, size_t len)
{
	return strlen(s) == len && strspn(s, "0123456789abcdef") == len;
}

bool text_has_prefix(const char *s, const char *prefix)
{
	return strncmp(s, prefix, strlen(prefix)) == 0;
}

bool text_has_dotted_prefix(const char *s, const char *prefix)
{
	size_t len = strlen(prefix);

	return len && strncmp(prefix, s, len) == 0 && (s[len] == '\0' || s[len] == '.');
}

bool text_equal(const char *a, const char *b)
{
	return strcmp(a, b) == 0;
}

bool text_is_plain(const char *s)
{
	return s[0] != '\0' && strpbrk(s, "\r\n") == NULL;
}

/* Length of the character of strict UTF-8 at s, 0 when there is none. NUL ends every sequence. */
static size_t utf8_length(const unsigned char *s)
{
	size_t n = s[0] < 0x80 ? 1 : s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;

	if (n < 2)
		return n;
	if (s[0] > 0xf4 || (s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) ||
		(s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f))
		return 0;
	for (size_t i = 1; i < n; i++)
		if ((s[i] & 0xc0) != 0x80)
			return 0;
	return n;
}

void text_make_printable(char *s)
{
	while (*s) {
		size_t n = utf8_length((unsigned char *)s);

		if (n == 0 || (n == 1 && ((unsigned char)*s < 0x20 || *s == 0x7f))) {
			*s = '?';
			n = 1;
		}
		s += n;
	}
}

/* Levenshtein distance of two short words; longer ones are never "near". */
static unsigned edit_distance(const char *a, const char *b)
{
	unsigned row[64];
	size_t la = strlen(a), lb = strlen(b);

	if (la >= ARRAY_SIZE(row) || lb >= ARRAY_SIZE(row))
		return UINT_MAX;
	for (size_t j = 0; j <= lb; j++)
		row[j] = (unsigned)j;
	for (size_t i = 1; i <= la; i++) {
		unsigned diagonal = row[0];

		row[0] = (unsigned)i;
		for (size_t j = 1; j <= lb; j++) {
			unsigned best = diagonal + (a[i - 1] != b[j - 1]);

			diagonal = row[j];
			if (row[j] + 1 < best)
				best = row[j] + 1;
			if (row[j - 1] + 1 < best)
				best = row[j - 1] + 1;
			row[j] = best;
		}
	}
	return row[lb];
}

const char *text_nearest(const char *word, const char *const *candidates, size_t n)
{
	const char *best = NULL;
	unsigned best_distance = 4;

	for (size_t i = 0; i < n; i++) {
		unsigned d = edit_distance(word, candidates[i]);

		if (d < best_distance) {
			best_distance = d;
			best = candidates[i];
		}
	}
	return best;
}
