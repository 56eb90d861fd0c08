/* SPDX-License-Identifier: Apache-2.0 */
#include "lease/halt.h"

#include <fcntl.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"

bool halt_name(const char *run_id, char *ret, size_t size)
{
	if (!run_id)
		return text_copy(ret, size, HALT_FILE);
	if (strchr(run_id, '/') || !text_is_plain(run_id))
		return false;
	return snprintf(ret, size, HALT_FILE ".%s", run_id) < (int)size;
}

static bool exists(int dirfd, const char *name)
{
	return faccessat(dirfd, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

bool halt_is_on(const struct lease_store *s, const char *run_id)
{
	char name[NAME_MAX];

	if (exists(s->dir.fd, HALT_FILE) || exists(AT_FDCWD, HALT_HOST_DIR "/" HALT_FILE))
		return true;
	return run_id && halt_name(run_id, name, sizeof(name)) && exists(s->dir.fd, name);
}

int halt_write(struct lease_store *s, const char *run_id, const char *by, const char *reason,
	struct err *err)
{
	char name[NAME_MAX], at[CLOCK_UTC_SIZE];
	_json_ json_t *j = json_pack("{s:s, s:s, s:s}", "by", by, "at",
		clock_format_utc(clock_utc_ms(), at), "reason", reason);
	_free_ char *text = j ? json_canonical(j, NULL) : NULL;
	int r;

	if (!text || !halt_name(run_id, name, sizeof(name)))
		return err_set(err, "params.type", 0, "halt", "not a run's name: %s",
			run_id ? run_id : "");
	r = file_write_at(s->dir.fd, name, text, strlen(text), 0600);
	return r < 0
		? err_set(err, "store.failed", -r, "halt", "cannot write %s/%s", s->dir.path, name)
		: 0;
}

int halt_clear(struct lease_store *s, const char *run_id, struct err *err)
{
	char name[NAME_MAX];

	if (!halt_name(run_id, name, sizeof(name)))
		return err_set(err, "params.type", 0, "halt", "not a run's name: %s", run_id);
	if (unlinkat(s->dir.fd, name, 0) < 0)
		return err_set(err, "store.failed", errno, "halt", "cannot remove %s/%s",
			s->dir.path, name);
	return 0;
}
