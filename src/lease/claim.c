/* SPDX-License-Identifier: Apache-2.0 */
#include "lease/claim.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/text.h"
#include "lease/store.h"

#define CLAIM_MAX (PATH_MAX + 1024)
#define DIR_FLAGS (O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW)

static int open_private(const char *parent)
{
	char dir[PATH_MAX];
	struct stat st;
	int fd;

	if (snprintf(dir, sizeof(dir), "%s/mayhem", parent) >= (int)sizeof(dir) - 8)
		return -1;
	if (mkdir(dir, 0755) < 0 && errno != EEXIST)
		return -1;
	strcat(dir, "/claims");
	if (mkdir(dir, 0700) < 0 && errno != EEXIST)
		return -1;
	fd = open(dir, DIR_FLAGS);
	if (fd >= 0 && (fstat(fd, &st) < 0 || st.st_uid != geteuid() || st.st_mode & 022))
		close_now(&fd);
	return fd;
}

int claim_open_host_dir(void)
{
	const char *runtime = getenv("XDG_RUNTIME_DIR");

	if (geteuid() == 0)
		return open_private("/run");
	return runtime && runtime[0] == '/' ? open_private(runtime) : -1;
}

static int claims_dir(const struct lease_store *s)
{
	return s->hostclaimsfd >= 0 ? s->hostclaimsfd : s->dir.claimsfd;
}

/* Making, taking over and giving back are all under this one lock: without it there are two winners. */
static int lock_claims(const struct lease_store *s, int *ret_fd)
{
	_close_ int fd =
		openat(claims_dir(s), ".lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	int r;

	if (fd < 0)
		return -errno;
	r = file_lock_wait(fd, 1);
	if (r == 0)
		*ret_fd = take_fd(&fd);
	return r;
}

static void claim_name(const char *resource, char ret[static HASH_HEX_SIZE])
{
	hash_hex(resource, strlen(resource), ret);
}

static json_t *read_claim(int dirfd, const char *name)
{
	_free_ char *text = NULL;
	json_t *j = NULL;
	size_t len;

	if (file_read_at(dirfd, name, CLAIM_MAX, &text, &len) < 0 ||
		json_parse(text, len, &j, NULL) < 0)
		return NULL;
	return j;
}

static bool is_mine(const struct lease_store *s, const struct lease *l, const json_t *claim)
{
	return text_equal(json_text_or(claim, "store", ""), s->dir.store) &&
		text_equal(json_text_or(claim, "lease", ""), l->key);
}

/* Looks into whichever store the claim names: 1 stale, 0 held. */
static int is_stale(const struct lease_store *s, const json_t *claim, struct lease_conflict *c)
{
	struct lease_store other = {.dir = STATE_DIR_INIT,
		.hostclaimsfd = -1,
		.domain = CGROUP_DOMAIN_INIT};
	const char *key = json_text_or(claim, "lease", "");
	_lease_ struct lease l = {0};
	struct err err;
	int r, locked;

	if (!text_equal(json_text_or(claim, "boot_id", ""), s->boot_id))
		return 1;
	r = state_dir_open(json_text_or(claim, "state_dir", "/nonexistent"), false, &other.dir,
		&err);
	if (r < 0)
		return r == -ENOENT; /* the whole store is gone; anything else cannot be told */
	if (!text_equal(other.dir.store, json_text_or(claim, "store", ""))) {
		state_dir_close(&other.dir);
		return 1; /* another store was made in its place */
	}
	locked = lease_is_locked(&other, key);
	r = lease_peek(&other, key, &l, &err);
	state_dir_close(&other.dir);
	if (r == -ENOENT || (r == 0 && lease_is_safe(&l)))
		return 1;
	c->abandoned = locked == 0;
	return 0;
}

static int write_claim(const struct lease_store *s, const struct lease *l, const char *resource,
	const char *name)
{
	_json_ json_t *j = json_pack("{s:s, s:s, s:s, s:s, s:s}", "resource", resource, "store",
		s->dir.store, "state_dir", s->dir.path, "lease", l->key, "boot_id", s->boot_id);
	_free_ char *text = j ? json_canonical(j, NULL) : NULL;
	char temp[LEASE_KEY_SIZE + STATE_STORE_SIZE + 8];
	_close_ int fd = -1;
	int dirfd = claims_dir(s), r;

	if (!text)
		return -ENOMEM;
	snprintf(temp, sizeof(temp), ".%s.%s", s->dir.store, l->key);
	fd = openat(dirfd, temp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0)
		return -errno;
	r = file_write_all(fd, text, strlen(text));
	if (r == 0 && linkat(dirfd, temp, dirfd, name, 0) < 0)
		r = -errno;
	unlinkat(dirfd, temp, 0);
	return r;
}

/* Under the lock: 0 ours now, -EBUSY somebody else's. */
static int claim_one(struct lease_store *s, const struct lease *l, const char *resource,
	struct lease_conflict *ret)
{
	char name[HASH_HEX_SIZE];
	struct lease_conflict c = {0};
	_json_ json_t *there = NULL;

	claim_name(resource, name);
	there = read_claim(claims_dir(s), name);
	if (there && is_mine(s, l, there))
		return 0;
	if (there && !is_stale(s, there, &c)) {
		text_copy(c.resource, sizeof(c.resource), resource);
		text_copy(c.key, sizeof(c.key), json_text_or(there, "lease", "?"));
		text_copy(c.state_dir, sizeof(c.state_dir), json_text_or(there, "state_dir", "?"));
		c.ours = text_equal(json_text_or(there, "store", ""), s->dir.store);
		*ret = c;
		return -EBUSY;
	}
	/* Stale, or not readable at all: a claim is linked complete, so that is nobody's. */
	unlinkat(claims_dir(s), name, 0);
	return write_claim(s, l, resource, name);
}

static void unclaim_locked(struct lease_store *s, const struct lease *l)
{
	size_t i;
	json_t *v;

	json_array_foreach(l->resources, i, v) {
		char name[HASH_HEX_SIZE];
		_json_ json_t *there = NULL;

		claim_name(json_string_value(v), name);
		there = read_claim(claims_dir(s), name);
		if (there && is_mine(s, l, there))
			unlinkat(claims_dir(s), name, 0);
	}
}

int lease_claim(struct lease_store *s, const struct lease *l, struct lease_conflict *ret,
	struct err *err)
{
	_close_ int lock = -1;
	size_t i;
	json_t *v;
	int r = lock_claims(s, &lock);

	if (r < 0)
		return err_set(err, "store.failed", -r, "claims",
			"cannot lock the claims of this host");
	json_array_foreach(l->resources, i, v) {
		r = claim_one(s, l, json_string_value(v), ret);
		if (r == 0)
			continue;
		unclaim_locked(s, l);
		if (r != -EBUSY)
			return err_set(err, "store.failed", -r, "claims", "cannot claim %s",
				json_string_value(v));
		err_set(err, "resource_conflict", 0, "claims", "%s is held by lease %s in %s",
			ret->resource, ret->key, ret->state_dir);
		err_remedy(err, "mayhem --state %s release %s", ret->state_dir, ret->key);
		return -EBUSY;
	}
	return 0;
}

void lease_unclaim(struct lease_store *s, const struct lease *l)
{
	_close_ int lock = -1;

	if (json_array_size(l->resources) == 0 || lock_claims(s, &lock) < 0)
		return; /* a claim of a lease at its safe end is stale, and taken over */
	unclaim_locked(s, l);
}
