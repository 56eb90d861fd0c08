/* SPDX-License-Identifier: Apache-2.0 */
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/text.h"
#include "cmd/agent/agent_cmd.h"
#include "lease/halt.h"
#include "lease/holder.h"

#define HALT_WAIT_MS 30000

struct halting {
	struct lease_store *s;
	const char *run_id;
	unsigned live, dirty, ended;
	bool signal;
};

static int each_live(const char *key, void *arg)
{
	struct halting *h = arg;
	_lease_ struct lease l = {0};
	struct err err = {0};

	if (lease_peek(h->s, key, &l, &err) < 0 || lease_is_safe(&l))
		return 0;
	if (h->run_id && !text_equal(h->run_id, l.run_id))
		return 0;
	if (l.state == LEASE_DIRTY) {
		h->dirty++;
		return 0;
	}
	if (lease_is_locked(h->s, key) != 1)
		return 0; /* nobody is at work: recovery's, not ours */
	h->live++;
	if (h->signal && holder_terminate(&l, &err) < 0 && err.code[0])
		fprintf(stderr, "%s: %s\n", key, err.text);
	return 0;
}

/* First the file, so that a holder that ends knows why; then each holder, so that a stopped agent delays nothing. */
static int halt(const struct agent_args *args, struct lease_store *s)
{
	struct halting h = {.s = s, .run_id = args->word, .signal = true};
	uint64_t limit = clock_boottime_ms() + HALT_WAIT_MS;
	struct err err = {0};
	unsigned before;
	char by[64];

	snprintf(by, sizeof(by), "uid:%u", geteuid());
	/* Counted first: holders may see the file and end before we have signalled them. */
	h.signal = false;
	lease_each(s, false, each_live, &h);
	before = h.live;
	h = (struct halting){.s = s, .run_id = args->word, .signal = true};
	if (halt_write(s, args->word, by, args->reason ? args->reason : "", &err) < 0)
		return agent_fail(args, &err, AGENT_EXIT_CANNOT_START);
	lease_each(s, false, each_live, &h);
	h.signal = false;
	while (h.live && clock_until_ms(limit)) {
		poll(NULL, 0, 2);
		h.live = h.dirty = 0;
		lease_each(s, false, each_live, &h);
	}
	h.ended = before > h.live ? before - h.live : 0;
	if (args->json)
		agent_print_json(json_pack("{s:i, s:b, s:i, s:i, s:i}", "v", 1, "halted", true,
			"ended", (int)h.ended, "live", (int)h.live, "dirty", (int)h.dirty));
	else
		printf("halted: %u ended, %u still live, %u dirty; `mayhem-agent resume` takes faults again\n",
			h.ended, h.live, h.dirty);
	return h.live || h.dirty ? AGENT_EXIT_DIRTY : 0;
}

static int resume(const struct agent_args *args, struct lease_store *s)
{
	struct err err = {0};
	int r = halt_clear(s, args->word, &err);

	if (r < 0 && r != -ENOENT)
		return agent_fail(args, &err, AGENT_EXIT_CANNOT_START);
	if (halt_is_on(s, NULL)) {
		err_set(&err, "host.halted", 0, "resume",
			"the host is halted by " HALT_HOST_DIR "/" HALT_FILE);
		err_remedy(&err, "rm " HALT_HOST_DIR "/" HALT_FILE);
		return agent_fail(args, &err, AGENT_EXIT_CANNOT_START);
	}
	if (args->json)
		agent_print_json(json_pack("{s:i, s:b}", "v", 1, "halted", false));
	else
		printf(r == 0 ? "faults are taken again\n" : "it was not halted\n");
	return 0;
}

static int with_store(const struct agent_args *args,
	int (*fn)(const struct agent_args *, struct lease_store *))
{
	struct lease_store store;
	struct err err = {0};
	int r = lease_store_open(args->state_dir, true, &store, &err);

	if (r < 0)
		return agent_fail(args, &err, AGENT_EXIT_CANNOT_START);
	r = fn(args, &store);
	lease_store_close(&store);
	return r;
}

static int run_halt(const struct agent_args *args)
{
	return with_store(args, halt);
}

static int run_resume(const struct agent_args *args)
{
	return with_store(args, resume);
}

const struct agent_command agent_command_halt = {
	.name = "halt",
	.usage = "[RUN] [--reason TEXT] [--json] [--state DIR]",
	.help = "end every fault here (or of one run) and refuse new ones until resume",
	.options = "state reason json word",
	.run = run_halt,
};

const struct agent_command agent_command_resume = {
	.name = "resume",
	.usage = "[RUN] [--json] [--state DIR]",
	.help = "take faults again after a halt",
	.options = "state json word",
	.run = run_resume,
};
