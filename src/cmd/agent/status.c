/* SPDX-License-Identifier: Apache-2.0 */
/* What lives on this host, in every state directory that we may read. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "cmd/agent/agent_cmd.h"
#include "lease/claim.h"
#include "lease/halt.h"
#include "lease/store.h"

#define RECENT_MAX 20
#define PASSWD_MAX (4 << 20)

struct listing {
	struct lease_store *s;
	json_t *leases;
	bool ended, dirty;
};

static int add_lease(const char *key, void *arg)
{
	struct listing *w = arg;
	_lease_ struct lease l = {0};

	if (lease_peek(w->s, key, &l, NULL) < 0)
		return 0;
	w->dirty |= l.state == LEASE_DIRTY;
	json_array_append_new(w->leases, lease_to_json(&l));
	return w->ended && json_array_size(w->leases) >= RECENT_MAX;
}

static bool seen(const json_t *stores, const char *path)
{
	size_t i;
	json_t *s;

	json_array_foreach((json_t *)stores, i, s)
		if (text_equal(json_text_or(s, "state_dir", ""), path))
			return true;
	return false;
}

static void add_store(json_t *stores, const char *path, bool *ret_dirty)
{
	struct lease_store s = {.dir = STATE_DIR_INIT, .hostclaimsfd = -1};
	struct listing w = {.s = &s};
	char resolved[PATH_MAX];
	struct err err = {0};

	if (!realpath(path, resolved) || seen(stores, resolved))
		return;
	if (state_dir_open_to_read(resolved, &s.dir, &err) < 0) {
		json_array_append_new(stores,
			json_pack("{s:s, s:b, s:s}", "state_dir", resolved, "readable", false,
				"reason", err.text));
		return;
	}
	w.leases = json_array();
	lease_each(&s, false, add_lease, &w);
	w.ended = true;
	lease_each(&s, true, add_lease, &w);
	*ret_dirty |= w.dirty;
	json_array_append_new(stores,
		json_pack("{s:s, s:b, s:b, s:o}", "state_dir", s.dir.path, "readable", true,
			"halted", halt_is_on(&s, NULL), "leases", w.leases));
	state_dir_close(&s.dir);
}

/* Homes from the file itself: the C library's own lookup does not work in a static program. */
static void add_homes(json_t *stores, bool *ret_dirty)
{
	_free_ char *text = NULL;

	if (file_read_at(AT_FDCWD, "/etc/passwd", PASSWD_MAX, &text, NULL) < 0)
		return;
	for (char *p = text, *line; (line = strsep(&p, "\n"));) {
		char *home = line, path[PATH_MAX];

		for (int i = 0; i < 5 && home; i++) {
			home = strchr(home, ':');
			home = home ? home + 1 : NULL;
		}
		if (!home || home[0] != '/')
			continue;
		home[strcspn(home, ":")] = '\0';
		if (snprintf(path, sizeof(path), "%s/.local/state/mayhem", home) <
			(int)sizeof(path))
			add_store(stores, path, ret_dirty);
	}
}

/* Other directories are known by what they claim on this host. */
static void add_claimed(json_t *stores, bool *ret_dirty)
{
	int fd = claim_open_host_dir();
	_closedir_ DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
	struct dirent *e;

	while (d && (e = readdir(d))) {
		_free_ char *text = NULL;
		_json_ json_t *claim = NULL;
		size_t len;

		if (e->d_name[0] == '.' ||
			file_read_at(dirfd(d), e->d_name, 8192, &text, &len) < 0 ||
			json_parse(text, len, &claim, NULL) < 0)
			continue;
		add_store(stores, json_text_or(claim, "state_dir", "/nonexistent"), ret_dirty);
	}
}

static void print_store(const json_t *s)
{
	size_t i;
	json_t *l;

	if (!json_bool_or(s, "readable", false)) {
		printf("%s: %s\n", json_text_or(s, "state_dir", "?"),
			json_text_or(s, "reason", "may not be read"));
		return;
	}
	printf("%s%s\n", json_text_or(s, "state_dir", "?"),
		json_bool_or(s, "halted", false) ? " (halted)" : "");
	json_array_foreach(json_object_get(s, "leases"), i, l)
		printf("  %-12s %-10s %-14s pid %lld (%s), run %s, by %s\n",
			json_text_or(l, "id", "?"), json_text_or(l, "state", "?"),
			json_text_or(l, "fault_id", "?"),
			(long long)json_int_or(json_object_get(l, "target"), "pid", 0),
			json_text_or(json_object_get(l, "target"), "comm", "?"),
			json_text_or(l, "run_id", "?"), json_text_or(l, "owner", "?"));
}

static int run(const struct agent_args *args)
{
	json_t *stores = json_array(), *s;
	bool dirty = false;
	size_t i;

	add_store(stores, args->state_dir, &dirty);
	add_store(stores, "/var/lib/mayhem", &dirty);
	add_homes(stores, &dirty);
	add_claimed(stores, &dirty);
	if (!args->json)
		json_array_foreach(stores, i, s)
			print_store(s);
	if (args->json)
		agent_print_json(json_pack("{s:i, s:O}", "v", 1, "stores", stores));
	json_decref(stores);
	return dirty ? AGENT_EXIT_DIRTY : 0;
}

const struct agent_command agent_command_status = {
	.name = "status",
	.usage = "[--json] [--state DIR]",
	.help = "list live, dirty and recent leases of all state directories that may be read",
	.options = "state json",
	.run = run,
};
