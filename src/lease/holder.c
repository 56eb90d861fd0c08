/* SPDX-License-Identifier: Apache-2.0 */
#include "lease/holder.h"

#include <signal.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/text.h"
#include "launch/link.h"
#include "lease/holder_body.h"
#include "os/pidfd.h"

struct holder {
	struct launched l;
};

static const char *const kind_names[HOLDER_NEWS_MAX] = {"moved", "injected", "answer", "ended"};

int holder_start(const struct holder_setup *setup, struct holder **ret, struct err *err)
{
	struct holder_work work = {.setup = setup,
		.linkfd = -1,
		.sigfd = -1,
		.timerfd = -1,
		.haltfd = -1};
	const struct launch_journal journal = {.self = &work, .claim = holder_claim};
	int keep[16];
	struct launch_spec spec = {
		.kind = setup->check_only ? LAUNCH_PROBE : LAUNCH_HOLDER,
		.domain = &setup->store->domain,
		.body = holder_body,
		.arg = &work,
		.cwdfd = -1,
		.stdfd = {-1, -1, -1},
		.keepfds = keep,
		.required = LAUNCH_DIM_ALL,
		.pass = setup->pass,
	};
	struct holder *h = calloc(1, sizeof(*h));
	int r;

	if (!h)
		return err_set(err, "launch.failed", ENOMEM, "holder", "no memory");
	h->l = (struct launched)LAUNCHED_INIT;
	spec.n_keepfds = holder_keepfds(setup, keep);
	r = launch_hold(&spec, setup->check_only ? NULL : &journal, &h->l, err);
	if (r == 0)
		r = launch_go(&h->l, err);
	if (r < 0) {
		holder_free(h);
		return r;
	}
	/* The child has its own copy; the flock on the leaf lives as long as it does. */
	close_now(&h->l.leaffd);
	*ret = h;
	return 0;
}

int holder_linkfd(const struct holder *h)
{
	return h->l.linkfd;
}

int holder_pidfd(const struct holder *h)
{
	return h->l.pidfd;
}

const struct launch_record *holder_record(const struct holder *h)
{
	return &h->l.rec;
}

int holder_send(struct holder *h, enum holder_ask ask, uint64_t arg, struct err *err)
{
	int r = link_send(h->l.linkfd, (uint8_t)ask, &arg, sizeof(arg));

	return r < 0 ? err_set(err, "lease.in_use", -r, "link", "the holder does not take requests")
		     : 0;
}

static int parse_news(const char *data, size_t len, struct holder_news *ret)
{
	_json_ json_t *j = NULL;
	struct holder_news n = {0};
	const char *kind;

	if (json_parse(data, len, &j, NULL) < 0)
		return -EBADMSG;
	kind = json_text_or(j, "kind", "");
	for (int i = 0; i < HOLDER_NEWS_MAX; i++)
		if (text_equal(kind, kind_names[i]))
			n.kind = (enum holder_news_kind)i;
	n.ok = json_bool_or(j, "ok", false);
	text_copy(n.reason, sizeof(n.reason), json_text_or(j, "reason", ""));
	text_copy(n.detail, sizeof(n.detail), json_text_or(j, "detail", ""));
	n.lease = json_incref(json_object_get(j, "lease"));
	n.observation = json_incref(json_object_get(j, "observation"));
	*ret = n;
	return 1;
}

int holder_next(struct holder *h, struct holder_news *ret, struct err *err)
{
	_free_ char *data = NULL;
	uint8_t type;
	size_t len;
	int r = link_receive(h->l.linkfd, &type, &data, &len);

	if (r <= 0)
		return r;
	if (type == LINK_TYPE_ERR) {
		/* It never got as far as a record. */
		struct holder_news n = {.kind = HOLDER_ENDED};
		struct err theirs;

		if (len != sizeof(theirs))
			return -EBADMSG;
		memcpy(&theirs, data, sizeof(theirs));
		text_copy(n.reason, sizeof(n.reason), theirs.code);
		text_copy(n.detail, sizeof(n.detail), theirs.text);
		if (err)
			*err = theirs;
		*ret = n;
		return 1;
	}
	return parse_news(data, len, ret);
}

void holder_news_free(struct holder_news *n)
{
	json_decref(n->lease);
	json_decref(n->observation);
	memset(n, 0, sizeof(*n));
}

void holder_finish(struct holder *h, struct lease_store *store)
{
	launch_finish(&h->l, &store->domain, NULL);
}

void holder_free(struct holder *h)
{
	if (!h)
		return;
	launched_close(&h->l);
	free(h);
}

int holder_terminate(const struct lease *l, struct err *err)
{
	enum ident_verdict verdict;
	struct launched found = LAUNCHED_INIT;
	int r = launch_adopt(&l->holder, &found, &verdict, err);

	if (r < 0)
		return verdict == IDENT_GONE || verdict == IDENT_FOREIGN ? -ESRCH : -EPERM;
	r = 0;
	if (pidfd_signal(found.pidfd, SIGTERM) < 0)
		r = err_set(err, "lease.in_use", errno, "signal", "cannot signal the holder of %s",
			l->id);
	launched_close(&found);
	return r;
}
