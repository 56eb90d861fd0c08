/* SPDX-License-Identifier: Apache-2.0 */
/* mayhem explain: more about a reason code, from the table that holds them. */
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/text.h"
#include "cmd/output.h"
#include "cmd/reason.h"

/* Breaks at blanks, 80 columns. */
static void print_wrapped(const char *text)
{
	while (*text) {
		size_t len = strlen(text), cut = len;

		if (len > 80)
			for (cut = 80; cut > 0 && text[cut] != ' '; cut--)
				;
		if (cut == 0)
			cut = len;
		printf("%.*s\n", (int)cut, text);
		text += cut + strspn(text + cut, " ");
	}
}

static json_t *reason_to_json(const struct reason *r)
{
	return json_pack("{s:s, s:i, s:s, s:s}", "code", r->code, "exit", r->exit, "meaning",
		r->meaning, "remedy", r->remedy);
}

static int explain_all(const struct invocation *v)
{
	json_t *list = v->g.json ? json_array() : NULL;

	for (const struct reason *r = reasons; r->code; r++) {
		if (v->g.json)
			json_array_append_new(list, reason_to_json(r));
		else
			printf("%-24s %.*s\n", r->code, (int)strcspn(r->meaning, ".") + 1,
				r->meaning);
	}
	if (v->g.json)
		output_json(json_pack("{s:o}", "reasons", list));
	return EXIT_OK;
}

static int unknown_code(const struct invocation *v, const char *code)
{
	const char *codes[128], *near;
	struct err err;
	size_t n = 0;

	for (const struct reason *r = reasons; r->code; r++)
		codes[n++] = r->code;
	near = text_nearest(code, codes, n);
	err_set(&err, "catalogue.unknown", 0, "explain", "there is no reason code `%.64s`", code);
	if (near)
		err_remedy(&err, "did you mean `%s`? `mayhem explain` lists all", near);
	else
		err_remedy(&err, "`mayhem explain` lists all");
	return output_error(v, &err, 0);
}

static int run(struct invocation *v)
{
	const struct reason *r;

	if (v->n_words == 0)
		return explain_all(v);
	r = reason_find(v->words[0]);
	if (!r)
		return unknown_code(v, v->words[0]);
	if (v->g.json) {
		output_json(reason_to_json(r));
		return EXIT_OK;
	}
	printf("%s, exit code %d\n\n", r->code, r->exit);
	print_wrapped(r->meaning);
	printf("\n");
	print_wrapped(r->remedy);
	return EXIT_OK;
}

const struct command command_explain = {
	.name = "explain",
	.words = "[CODE]",
	.summary = "says more about an error's [code]",
	.text = "Every error ends in a reason code in brackets. Says what it means, what to do about\n"
		"it, and with which exit code it goes. Without a code: all of them.",
	.examples = {"mayhem explain target_drift"},
	.max_words = 1,
	.run = run,
};
