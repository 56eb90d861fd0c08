/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc/transport.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "base/cleanup.h"
#include "base/text.h"

#define SAFE_LETTERS "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./=:,@%+-"
#define SSH_PREFIX "ssh:"

/* %C is 40 digits, and ssh binds a sibling with a dot and 16 letters first. */
#define CONTROL_NAME_MAX (sizeof("/mayhem/") - 1 + 40 + 17)

enum { EXIT_NOT_FOUND = 127, EXIT_NOT_EXECUTABLE = 126, EXIT_SSH = 255 };

bool transport_word_is_safe(const char *word)
{
	return word[0] != '\0' && word[strspn(word, SAFE_LETTERS)] == '\0';
}

bool transport_is_local(const struct transport *t)
{
	return !t->host || text_equal(t->host, "local");
}

static const char *ssh_target(const struct transport *t)
{
	return t->host + strlen(SSH_PREFIX);
}

const char *transport_name(const struct transport *t)
{
	if (transport_is_local(t))
		return "this host";
	return text_has_prefix(t->host, SSH_PREFIX) ? ssh_target(t) : t->host;
}

static int add(struct transport_words *w, const char *word, struct err *err)
{
	if (w->n == TRANSPORT_WORDS_MAX)
		return err_set(err, "usage", E2BIG, "words", "too many words for an agent");
	w->argv[w->n++] = (char *)word;
	w->argv[w->n] = NULL;
	return 0;
}

static int add_list(struct transport_words *w, const char *const *list, size_t n, struct err *err)
{
	for (size_t i = 0; i < n; i++) {
		int r = add(w, list[i], err);

		if (r < 0)
			return r;
	}
	return 0;
}

/* mayhem-agent in the folder of this executable, when it is there. */
static bool beside_us(char *ret, size_t size)
{
	static const char name[] = "mayhem-agent";
	ssize_t n = readlink("/proc/self/exe", ret, size - 1);
	char *slash;

	if (n <= 0)
		return false;
	ret[n] = '\0';
	slash = strrchr(ret, '/');
	if (!slash || (size_t)(slash + 1 - ret) + sizeof(name) > size)
		return false;
	memcpy(slash + 1, name, sizeof(name));
	return access(ret, X_OK) == 0;
}

static const char *find_agent(const struct transport *t, struct transport_words *w)
{
	const char *named = getenv("MAYHEM_AGENT");

	if (t->agent)
		return t->agent;
	if (!transport_is_local(t))
		return "mayhem-agent";
	if (named && named[0])
		return named;
	return beside_us(w->agent, sizeof(w->agent)) ? w->agent : "mayhem-agent";
}

/*
 * One connection for many commands, where there is a place for its socket
 * that is ours alone. A percent sign would be read by ssh.
 */
static bool control_path(struct transport_words *w)
{
	const char *runtime = getenv("XDG_RUNTIME_DIR");
	struct sockaddr_un addr;
	char folder[sizeof(addr.sun_path)];

	if (!runtime || runtime[0] != '/' || !transport_word_is_safe(runtime) ||
		strchr(runtime, '%'))
		return false;
	if (strlen(runtime) + CONTROL_NAME_MAX >= sizeof(addr.sun_path))
		return false;
	snprintf(folder, sizeof(folder), "%s/mayhem", runtime);
	if (mkdir(folder, 0700) < 0 && errno != EEXIST)
		return false;
	snprintf(w->control, sizeof(w->control), "ControlPath=%s/%%C", folder);
	return true;
}

static int add_ssh(const struct transport *t, struct transport_words *w, struct err *err)
{
	static const char *const batch[] = {"ssh", "-o", "BatchMode=yes"};
	static const char *const master[] = {"-o", "ControlMaster=auto", "-o", "ControlPersist=600",
		"-o"};
	const char *target = ssh_target(t);
	int r;

	if (!text_has_prefix(t->host, SSH_PREFIX)) {
		err_set(err, "transport.host", 0, "host", "`%.64s` is no host that is known here",
			t->host);
		err_remedy(err, "write --host ssh:TARGET, as you would `ssh TARGET`");
		return -EINVAL;
	}
	if (target[0] == '-' || !transport_word_is_safe(target))
		return err_set(err, "transport.word", 0, "host",
			"`%.64s` is no ssh target: letters, digits and _./=:,@%%+- only", target);
	r = add_list(w, batch, ARRAY_SIZE(batch), err);
	if (r == 0 && control_path(w)) {
		r = add_list(w, master, ARRAY_SIZE(master), err);
		if (r == 0)
			r = add(w, w->control, err);
	}
	if (r == 0)
		r = add(w, target, err);
	return r < 0 ? r : add(w, "--", err);
}

static int check_words(const struct transport_words *w, size_t from, struct err *err)
{
	for (size_t i = from; i < w->n; i++) {
		if (transport_word_is_safe(w->argv[i]))
			continue;
		err_set(err, "transport.word", 0, "words",
			"`%.64s` cannot be sent to another host: ssh hands words to a shell there",
			w->argv[i]);
		err_remedy(err,
			"use letters, digits and _./=:,@%%+- only, "
			"or run mayhem on that host");
		return -EINVAL;
	}
	return 0;
}

int transport_words(const struct transport *t, const char *const *words, size_t n,
	struct transport_words *ret, struct err *err)
{
	static const char *const sudo[] = {"sudo", "-n", "--"};
	const char *state[] = {"--state", t->state};
	bool local = transport_is_local(t);
	size_t from;
	int r = 0;

	ret->n = 0;
	if (!local)
		r = add_ssh(t, ret, err);
	from = ret->n;
	if (r == 0 && t->sudo)
		r = add_list(ret, sudo, ARRAY_SIZE(sudo), err);
	if (r == 0)
		r = add(ret, find_agent(t, ret), err);
	if (r == 0)
		r = add_list(ret, words, n, err);
	if (r == 0 && local && t->state)
		r = add_list(ret, state, ARRAY_SIZE(state), err);
	if (r == 0 && !local)
		r = check_words(ret, from, err);
	return r;
}

static int sudo_refused(const struct transport *t, struct err *err)
{
	const char *user = getenv("USER");

	err_set(err, "agent.sudo", 0, "sudo",
		"sudo did not start the agent on %s: a password is never asked for",
		transport_name(t));
	err_remedy(err, "with visudo: %.64s ALL=(root) NOPASSWD: %.128s", user ? user : "YOU",
		t->agent ? t->agent : "/usr/local/bin/mayhem-agent");
	return -EACCES;
}

int transport_explain_exit(const struct transport *t, int code, int signo, struct err *err)
{
	const char *where = transport_name(t);

	if (signo)
		return err_set(err, "agent.lost", 0, "session",
			"the agent on %s was ended by signal %d (%s)", where, signo,
			strsignal(signo));
	if (!transport_is_local(t) && code == EXIT_SSH) {
		err_set(err, "agent.unreachable", 0, "ssh", "ssh could not reach %s, or lost it",
			where);
		err_remedy(err, "try `ssh -o BatchMode=yes %s true`", where);
		return -EHOSTUNREACH;
	}
	if (code == EXIT_NOT_FOUND || code == EXIT_NOT_EXECUTABLE) {
		err_set(err, "agent.missing", 0, "exec", "there is no mayhem-agent to run on %s",
			where);
		err_remedy(err, "install it in the PATH of that login, or name it by --agent PATH");
		return -ENOENT;
	}
	if (t->sudo && code == 1)
		return sudo_refused(t, err);
	if (code == 8)
		return err_set(err, "agent.lost", 0, "start",
			"the agent on %s could not start; it says why above", where);
	if (code == 3) {
		err_set(err, "agent.config", 0, "policy",
			"the agent on %s refuses its policy file; it says why above", where);
		err_remedy(err, "look at /etc/mayhem/agent.json there");
		return -EINVAL;
	}
	err_set(err, "agent.lost", 0, "session",
		"the agent on %s ended with status %d before it answered", where, code);
	err_remedy(err, "try `mayhem doctor`; what it held is undone by itself");
	return -EPIPE;
}
