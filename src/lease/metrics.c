/* SPDX-License-Identifier: Apache-2.0 */
#include "lease/metrics.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/text.h"

#define ENDS_MAX 256 /* pairs of fault and end that are told apart */

struct total {
	char fault[LEASE_TEXT_SIZE];
	enum lease_end end;
	unsigned n;
};

struct metrics {
	const struct lease_store *s;
	FILE *out;
	struct total *totals;
	size_t n;
};

/* A label's value: quotes, backslashes and line ends are the format's own. */
static void print_label(FILE *f, const char *name, const char *value)
{
	fprintf(f, "%s=\"", name);
	for (const char *c = value; *c; c++) {
		if (*c == '\n')
			fputs("\\n", f);
		else if (*c == '"' || *c == '\\')
			fprintf(f, "\\%c", *c);
		else
			fputc(*c, f);
	}
	fputc('"', f);
}

static void target_of(const struct lease *l, char *buf, size_t size)
{
	if (json_is_object(l->target))
		snprintf(buf, size, "%s:%s:%lld", json_text_or(l->target, "kind", "?"),
			json_text_or(l->target, "comm", "?"),
			(long long)json_int_or(l->target, "pid", 0));
	else
		text_copy(buf, size,
			json_array_size(l->targets)
				? json_string_value(json_array_get(l->targets, 0))
				: "");
}

static int add_live(const char *key, void *arg)
{
	struct metrics *m = arg;
	_lease_ struct lease l = {0};
	char target[160];

	if (lease_peek(m->s, key, &l, NULL) < 0 || lease_is_safe(&l) || l.state == LEASE_PENDING)
		return 0;
	target_of(&l, target, sizeof(target));
	fputs("mayhem_lease_active{", m->out);
	print_label(m->out, "fault", l.fault_id);
	fputc(',', m->out);
	print_label(m->out, "target", target);
	fputc(',', m->out);
	print_label(m->out, "run", l.run_id);
	fputc(',', m->out);
	print_label(m->out, "owner", l.owner);
	fputs("} 1\n", m->out);
	return 0;
}

static int add_ended(const char *key, void *arg)
{
	struct metrics *m = arg;
	_lease_ struct lease l = {0};
	size_t i = 0;

	if (lease_peek(m->s, key, &l, NULL) < 0)
		return 0;
	while (i < m->n &&
		!(m->totals[i].end == l.end && text_equal(m->totals[i].fault, l.fault_id)))
		i++;
	if (i == ENDS_MAX)
		return 0;
	if (i == m->n) {
		text_copy(m->totals[i].fault, sizeof(m->totals[i].fault), l.fault_id);
		m->totals[i].end = l.end;
		m->n++;
	}
	m->totals[i].n++;
	return 0;
}

static void print_totals(const struct metrics *m)
{
	for (size_t i = 0; i < m->n; i++) {
		fputs("mayhem_leases_total{", m->out);
		print_label(m->out, "fault", m->totals[i].fault);
		fputc(',', m->out);
		print_label(m->out, "end", lease_end_name(m->totals[i].end));
		fprintf(m->out, "} %u\n", m->totals[i].n);
	}
}

int lease_metrics_write(const struct lease_store *s, const char *path, struct err *err)
{
	_free_ struct total *totals = calloc(ENDS_MAX, sizeof(*totals));
	struct metrics m = {.s = s, .totals = totals};
	char temp[PATH_MAX];
	int r = 0;

	if (!totals || snprintf(temp, sizeof(temp), "%s.%d", path, getpid()) >= (int)sizeof(temp))
		return err_set(err, "store.failed", ENAMETOOLONG, "metrics", "cannot write %s",
			path);
	m.out = fopen(temp, "wxe");
	if (!m.out)
		return err_set(err, "store.failed", errno, "metrics", "cannot write %s", temp);
	lease_each(s, false, add_live, &m);
	lease_each(s, true, add_ended, &m);
	print_totals(&m);
	fchmod(fileno(m.out), 0644); /* the exporter is somebody else */
	if (fclose(m.out) != 0 || rename(temp, path) < 0)
		r = err_set(err, "store.failed", errno, "metrics", "cannot write %s", path);
	if (r < 0)
		unlink(temp);
	return r;
}
