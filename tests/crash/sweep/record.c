/* SPDX-License-Identifier: Apache-2.0 */
#include "record.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { RECORD_BYTES_MAX = 4 * 1024 * 1024 };

/* "l-00000001.log" is a lease; stock and locks beside it are not. */
static bool key_of(const char *name, char ret[RECORD_KEY_MAX])
{
	size_t n = strlen(name);

	if ((strncmp(name, "l-", 2) != 0 && strncmp(name, "d-", 2) != 0) || n < 7 ||
		strcmp(name + n - 4, ".log") != 0 || n - 4 >= RECORD_KEY_MAX)
		return false;
	memcpy(ret, name, n - 4);
	ret[n - 4] = '\0';
	return true;
}

static char *file_read(int dirfd, const char *name, size_t *ret_n)
{
	int fd = openat(dirfd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	struct stat st;
	char *text = NULL;
	ssize_t n = -1;

	if (fd < 0)
		return NULL;
	if (fstat(fd, &st) == 0 && st.st_size <= RECORD_BYTES_MAX &&
		(text = malloc((size_t)st.st_size + 1)))
		n = pread(fd, text, (size_t)st.st_size, 0);
	close(fd);
	if (n < 0) {
		free(text);
		return NULL;
	}
	*ret_n = (size_t)n;
	return text;
}

/* One line: the keys that it brings replace those of the lines before. */
static bool line_apply(json_t *body, const char *line, size_t n, json_int_t seq)
{
	json_t *frame = json_loadb(line, n, JSON_REJECT_DUPLICATES, NULL);
	json_t *news = json_object_get(frame, "body");
	const char *format = json_string_value(json_object_get(frame, "format"));
	bool ok = format && strcmp(format, "mayhem.lease/1") == 0 && json_is_object(news) &&
		json_integer_value(json_object_get(frame, "seq")) == seq &&
		json_object_update(body, news) == 0;

	json_decref(frame);
	return ok;
}

static void record_take(const json_t *body, struct record *record)
{
	const char *state = json_string_value(json_object_get(body, "state"));

	snprintf(record->state, sizeof(record->state), "%s", state ? state : "");
	record->was_active = record->was_active || strcmp(record->state, "active") == 0;
	record->safe =
		strcmp(record->state, "released") == 0 || strcmp(record->state, "expired") == 0;
	record->dirty = strcmp(record->state, "dirty") == 0;
	record->has_remedy = json_string_length(json_object_get(body, "escalation_notes")) > 0 &&
		json_array_size(json_object_get(body, "remedy")) > 0;
}

/* Up to the last whole line: a torn one after it was never promised to anybody. */
static int text_read(const char *text, size_t n, struct record *record, char *ret_why)
{
	const char *end = memchr(text, '\0', n), *lf;
	json_t *body = json_object();
	json_int_t seq = 1;
	int r = 0;

	if (end)
		n = (size_t)(end - text);
	for (; r == 0 && (lf = memchr(text, '\n', n)); seq++) {
		size_t n_line = (size_t)(lf - text);

		if (line_apply(body, text, n_line, seq)) {
			record_take(body, record);
		} else if (memchr(lf + 1, '\n', n - n_line - 1)) {
			snprintf(ret_why, RECORD_WHY_MAX, "%s: line %d does not read", record->key,
				(int)seq);
			r = -EINVAL;
		}
		n -= n_line + 1;
		text = lf + 1;
	}
	json_decref(body);
	return r;
}

static int record_check(const struct record *record, bool ended, char *ret_why)
{
	const char *broken = NULL;

	if (ended && !record->safe)
		broken = "lies in ended/ without a safe end";
	else if (record->was_active && strcmp(record->state, "expired") == 0)
		broken = "was active and says expired";
	else if (record->dirty && !record->has_remedy)
		broken = "is dirty without notes and remedy";
	if (!broken)
		return 0;
	snprintf(ret_why, RECORD_WHY_MAX, "%s (%s) %s", record->key, record->state, broken);
	return -EINVAL;
}

static int record_read(int dirfd, const char *name, bool ended, struct record *record,
	char *ret_why)
{
	size_t n = 0;
	char *text = file_read(dirfd, name, &n);
	int r;

	/* Gone since it was listed: moved to ended/, which is read after leases/. */
	if (!text)
		return -ENOENT;
	r = text_read(text, n, record, ret_why);
	free(text);
	return r < 0 ? r : record_check(record, ended, ret_why);
}

static void view_take(struct store_view *view, const struct record *record, bool ended)
{
	if (!ended) {
		view->n_open++;
		view->n_open_settled += record->safe || record->dirty;
		view->n_open_dirty += record->dirty;
	}
	if (!view->has_newest || strcmp(record->key, view->newest.key) >= 0) {
		view->has_newest = true;
		view->newest = *record;
	}
}

static DIR *store_open(const char *dir, const char *folder)
{
	char path[4096];

	if (snprintf(path, sizeof(path), "%s/%s", dir, folder) >= (int)sizeof(path))
		return NULL;
	return opendir(path);
}

static int folder_look(const char *dir, bool ended, const char *above, struct store_view *view,
	char *ret_why)
{
	DIR *folder = store_open(dir, ended ? "ended" : "leases");
	struct dirent *entry;
	int r = 0;

	while (folder && r == 0 && (entry = readdir(folder))) {
		struct record record = {.state = ""};

		if (!key_of(entry->d_name, record.key))
			continue;
		if (ended && strcmp(record.key, above) <= 0)
			continue;
		r = record_read(dirfd(folder), entry->d_name, ended, &record, ret_why);
		if (r == 0)
			view_take(view, &record, ended);
		else if (r == -ENOENT)
			r = 0;
	}
	if (folder)
		closedir(folder);
	return r;
}

static unsigned folder_count(const char *dir, const char *name)
{
	DIR *folder = store_open(dir, name);
	struct dirent *entry;
	unsigned n = 0;

	while (folder && (entry = readdir(folder)))
		n += entry->d_name[0] != '.';
	if (folder)
		closedir(folder);
	return n;
}

int store_look(const char *dir, const char *above, struct store_view *ret,
	char ret_why[RECORD_WHY_MAX])
{
	struct store_view view = {.n_aside = folder_count(dir, "aside")};
	int r = folder_look(dir, false, above, &view, ret_why);

	if (r == 0)
		r = folder_look(dir, true, above, &view, ret_why);
	*ret = view;
	return r;
}

void store_highest(const char *dir, char ret[RECORD_KEY_MAX])
{
	static const char *const folders[] = {"leases", "ended"};
	char key[RECORD_KEY_MAX];

	ret[0] = '\0';
	for (unsigned i = 0; i < 2; i++) {
		DIR *folder = store_open(dir, folders[i]);
		struct dirent *entry;

		while (folder && (entry = readdir(folder))) {
			if (key_of(entry->d_name, key) && strcmp(key, ret) > 0)
				strcpy(ret, key);
		}
		if (folder)
			closedir(folder);
	}
}
