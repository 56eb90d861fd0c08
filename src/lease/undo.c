/* SPDX-License-Identifier: Apache-2.0 */
#include "lease/undo.h"

#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "lease/claim.h"

#define UNDO_TRIES 3
#define WRITE_TRIES 8

static const uint64_t backoff_ms[UNDO_TRIES] = {5, 50, 500};

static void pause_ms(uint64_t ms)
{
	poll(NULL, 0, (int)ms);
}

/* Written when the disk lets us; what the target is like does not wait for it. */
static int write_end(struct fault_run *run, struct err *err)
{
	int r = 0;

	for (int i = 0; i < WRITE_TRIES; i++) {
		r = run_save(run, err);
		if (r == 0)
			return 0;
		pause_ms(1u << i);
	}
	log_error("lease", "%s is %s, but cannot be written: %s", run->lease->key,
		lease_machine.names[run->lease->state], err ? err->text : "");
	return -EIO;
}

static int undo_once(struct fault_run *run, struct err *err)
{
	struct observation o = {.effect = EFFECT_UNKNOWN};
	int r = run->steps->undo(run, err);

	if (r < 0)
		return r;
	r = run->steps->verify(run, &o, err);
	if (r < 0)
		return r;
	lease_add_observation(run->lease, observation_to_json(&o, "after"));
	if (o.effect == EFFECT_ABSENT)
		return 0;
	return err_set(err, "verify_failed", 0, "verify", "after undo the effect is %s: %s",
		effect_name(o.effect), o.detail);
}

static void mark_dirty(struct fault_run *run, const struct err *why)
{
	struct lease *l = run->lease;

	snprintf(l->notes, sizeof(l->notes), "not undone (%s): %s", why->stage, why->text);
	json_array_clear(l->remedy);
	if (run->steps->remedy)
		run->steps->remedy(run);
	lease_add_remedy(l,
		(const char *const[]){"mayhem-agent", "recover", "--state", run->store->dir.path,
			NULL});
	lease_move(l, LEASE_DIRTY, NULL);
}

int lease_undo(struct fault_run *run, enum lease_end end, struct err *err)
{
	struct lease *l = run->lease;
	struct err why = {0};
	int r, w;

	l->end = end;
	if (l->state == LEASE_ACTIVE || l->state == LEASE_ORPHANED || l->state == LEASE_DIRTY) {
		r = lease_move(l, LEASE_RELEASING, err);
		if (r < 0)
			return r;
		l->notes[0] = '\0';
		json_array_clear(l->remedy);
		if (run_save(run, &why) < 0)
			log_warn("lease", "%s: undoing although the record cannot be written: %s",
				l->key, why.text);
	}
	for (int i = 0; i < UNDO_TRIES; i++) {
		r = undo_once(run, &why);
		if (r == 0)
			break;
		log_warn("lease", "%s: undo, attempt %d: %s", l->key, i + 1, why.text);
		if (i + 1 < UNDO_TRIES)
			pause_ms(backoff_ms[i]);
	}
	if (r == 0)
		r = lease_move(l, LEASE_RELEASED, &why);
	if (r < 0)
		mark_dirty(run, &why);
	w = write_end(run, err);
	lease_announce(l);
	if (r < 0) {
		if (err)
			*err = why;
		return -EUCLEAN;
	}
	if (w < 0)
		return w;
	/* Dirty keeps its claims: what is not put back is nobody else's to touch. */
	lease_unclaim(run->store, l);
	if (run->file)
		lease_file_retire(run->store, run->file, NULL);
	return 0;
}

int lease_expire(struct fault_run *run, enum lease_end end, struct err *err)
{
	struct lease *l = run->lease;
	int r = lease_move(l, LEASE_EXPIRED, err);

	if (r < 0)
		return r;
	l->end = end;
	r = write_end(run, err);
	lease_unclaim(run->store, l);
	if (r == 0 && run->file)
		lease_file_retire(run->store, run->file, NULL);
	lease_announce(l);
	return r;
}

static void target_name(const struct lease *l, char *buf, size_t size)
{
	const char *kind = json_text_or(l->target, "kind", "");

	if (text_equal(kind, "process"))
		snprintf(buf, size, "process %lld (%s)",
			(long long)json_int_or(l->target, "pid", 0),
			json_text_or(l->target, "comm", "?"));
	else if (json_array_size(l->targets))
		snprintf(buf, size, "%s", json_string_value(json_array_get(l->targets, 0)));
	else
		snprintf(buf, size, "its target");
}

void lease_announce(const struct lease *l)
{
	struct sockaddr_un to = {.sun_family = AF_UNIX, .sun_path = "/dev/log"};
	_close_ int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	char line[1280], target[128], until[CLOCK_UTC_SIZE], why[64] = "";

	if (fd < 0)
		return;
	target_name(l, target, sizeof(target));
	clock_format_utc(clock_utc_ms() + clock_until_ms(l->deadline_boottime_ms), until);
	if (l->state == LEASE_ACTIVE)
		snprintf(why, sizeof(why), " until %s", until);
	else if (l->end != LEASE_END_NONE)
		snprintf(why, sizeof(why), " (%s)", lease_end_name(l->end));
	snprintf(line, sizeof(line), "<%d>mayhem: %s %s on %s%s, lease %s, run %s, by %s",
		l->state == LEASE_DIRTY ? 27 : 29, lease_machine.names[l->state], l->fault_id,
		target, why, l->id, l->run_id, l->owner);
	for (char *c = line; *c; c++)
		if (*c == '\n' || *c == '\r')
			*c = ' ';
	sendto(fd, line, strlen(line), 0, (struct sockaddr *)&to, sizeof(to));
}
