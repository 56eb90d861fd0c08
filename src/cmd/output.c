/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/output.h"

#include <stdarg.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/text.h"
#include "cmd/reason.h"

static struct {
	bool color[2]; /* stdout, stderr */
	bool live, quiet, line_open;
} out;

static const char *const paints[PAINT_MAX] = {"", "\033[1m", "\033[32m", "\033[31m", "\033[33m"};

void output_setup(const struct globals *g)
{
	const char *no = getenv("NO_COLOR"), *term = getenv("TERM");
	bool may = !g->no_color && !(no && no[0]) && term && !text_equal(term, "dumb");
	bool terminal = isatty(STDERR_FILENO);

	out.color[0] = may && isatty(STDOUT_FILENO);
	out.color[1] = may && terminal;
	out.quiet = g->quiet;
	out.live = terminal && !g->quiet && !g->json && term && !text_equal(term, "dumb");
}

static bool colored(FILE *f)
{
	return out.color[f == stderr];
}

const char *output_paint(FILE *f, enum paint p)
{
	return colored(f) ? paints[p] : "";
}

const char *output_plain(FILE *f)
{
	return colored(f) ? "\033[0m" : "";
}

bool output_is_live(void)
{
	return out.live;
}

static void end_live(void)
{
	if (out.line_open)
		fputs("\r\033[K", stderr);
	out.line_open = false;
}

void output_live(const char *fmt, ...)
{
	va_list ap;

	if (!out.live)
		return;
	fputs("\r\033[K", stderr);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fflush(stderr);
	out.line_open = true;
}

void output_progress(const char *fmt, ...)
{
	char when[CLOCK_UTC_SIZE], line[1024];
	va_list ap;

	if (out.quiet)
		return;
	end_live();
	va_start(ap, fmt);
	vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	if (out.live)
		fprintf(stderr, "%s\n", line);
	else
		fprintf(stderr, "%s %s\n", clock_format_utc(clock_utc_ms(), when), line);
}

void output_json(json_t *object)
{
	_json_ json_t *whole = json_pack("{s:i}", "v", 1);

	if (whole && object)
		json_object_update(whole, object);
	json_decref(object);
	json_dumpf(whole, stdout, JSON_COMPACT);
	putchar('\n');
	fflush(stdout);
}

static json_t *text_or_null(const char *text)
{
	return text[0] ? json_string(text) : json_null();
}

int output_error(const struct invocation *v, const struct err *err, int64_t rpc_code)
{
	int code = reason_exit(err->code, rpc_code);

	end_live();
	if (v->g.json) {
		output_json(json_pack("{s:{s:o, s:s, s:s, s:o, s:i}}", "error", "code",
			rpc_code ? json_integer(rpc_code) : json_null(), "reason", err->code,
			"message", err->text, "remedy", text_or_null(err->remedy), "exit", code));
		return code;
	}
	fflush(stdout);
	fprintf(stderr, "%serror:%s %s [%s]\n", output_paint(stderr, PAINT_BAD),
		output_plain(stderr), err->text, err->code);
	if (err->remedy[0])
		fprintf(stderr, "%s\n", err->remedy);
	return code;
}

void table_add(struct table *t, const char *const *cells)
{
	char **grown;

	if (t->rows == t->cap) {
		size_t cap = t->cap ? t->cap * 2 : 16;

		grown = reallocarray(t->cells, cap * t->columns, sizeof(*grown));
		if (!grown)
			return;
		t->cells = grown;
		t->cap = cap;
	}
	for (size_t i = 0; i < t->columns; i++)
		t->cells[t->rows * t->columns + i] =
			strdup(cells[i] && cells[i][0] ? cells[i] : "-");
	t->rows++;
}

/* Letters, not bytes: what is no continuation byte. */
static size_t width(const char *s)
{
	size_t n = 0;

	for (; s && *s; s++)
		n += ((unsigned char)*s & 0xc0) != 0x80;
	return n;
}

void table_print(const struct table *t, FILE *f)
{
	size_t widths[OUTPUT_COLUMNS_MAX] = {0};

	for (size_t i = 0; i < t->rows * t->columns; i++) {
		size_t w = width(t->cells[i]);

		if (w > widths[i % t->columns])
			widths[i % t->columns] = w;
	}
	for (size_t i = 0; i < t->rows * t->columns; i++) {
		size_t column = i % t->columns;
		bool last = column + 1 == t->columns;
		const char *cell = t->cells[i] ? t->cells[i] : "-";

		fputs(cell, f);
		if (last)
			putc('\n', f);
		else
			fprintf(f, "%*s", (int)(widths[column] - width(cell)) + 2, "");
	}
}

void table_close(struct table *t)
{
	for (size_t i = 0; i < t->rows * t->columns; i++)
		free(t->cells[i]);
	free(t->cells);
	*t = (struct table){.columns = t->columns};
}

const char *output_local_time(const char *utc, uint64_t plus_ms, char *buf)
{
	struct tm tm = {0};
	uint64_t ms = 0;
	const char *rest = utc ? strptime(utc, "%Y-%m-%dT%H:%M:%S", &tm) : NULL;
	time_t at;

	text_copy(buf, OUTPUT_TIME_SIZE, "-");
	if (!rest)
		return buf;
	if (rest[0] == '.' && strspn(rest + 1, "0123456789") == 3)
		text_parse_u64_n(rest + 1, 3, &ms);
	at = timegm(&tm) + (time_t)((ms + plus_ms) / 1000);
	if (localtime_r(&at, &tm))
		strftime(buf, OUTPUT_TIME_SIZE, "%H:%M:%S%z", &tm);
	return buf;
}

static void print_word(FILE *f, const char *word)
{
	static const char safe[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
				   "_./=:,@%+-";

	if (word[0] && !word[strspn(word, safe)]) {
		fputs(word, f);
		return;
	}
	putc('\'', f);
	for (; *word; word++) {
		if (*word == '\'')
			fputs("'\\''", f);
		else
			putc(*word, f);
	}
	putc('\'', f);
}

void output_argv(FILE *f, const json_t *argv)
{
	json_t *word;
	size_t i;

	json_array_foreach((json_t *)argv, i, word) {
		if (i)
			putc(' ', f);
		print_word(f, json_string_value(word) ? json_string_value(word) : "?");
	}
}
