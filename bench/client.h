/* SPDX-License-Identifier: Apache-2.0 */
/* One agent, started and spoken to over pipes as a controller does, by a clock of our own. Any failure ends the
 * driver: the agent then sees the end of its input and undoes what it holds. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define MS 1000000ull
#define SECOND 1000000000ull

struct client {
	pid_t pid;
	int pidfd, infd, outfd;
	char *out; /* to be written */
	size_t out_len, out_at, out_size;
	char *in;
	size_t in_len, in_at, in_size;
	uint64_t read_ns;  /* when the last bytes came */
	uint64_t start_ns; /* just before it was started */
	unsigned next_id;
};

_Noreturn void die(const char *format, ...) __attribute__((format(printf, 1, 2)));
uint64_t now_ns(void);

/* posix_spawn with stdin, stdout as given (-1: /dev/null); stderr is ours. The pidfd is opened before it is reaped. */
pid_t start_program(char *const *argv, int infd, int outfd, int *ret_pidfd);
/* Waits for its end, at most a minute; the exit code, -1 by a signal. Closes pidfd. */
int await_end(pid_t pid, int pidfd);

void client_start(struct client *c, const char *agent, const char *state);
/* A request with run_id and agent_id added; returns its id. Only queued: client_work or client_reply write it. */
unsigned client_ask(struct client *c, const char *method, const char *more_params);
/* Writes what can be written, reads what is there; waits at most until deadline_ns for one of both. */
void client_work(struct client *c, uint64_t deadline_ns);
/* The next whole line, without its end, or NULL; belongs to c until the next call. */
char *client_line(struct client *c);
/* Works until a reply comes, parses it (caller frees) and says when its bytes came. */
json_t *client_reply(struct client *c, uint64_t *ret_ns);
void client_handshake(struct client *c);
/* End of input, and its exit code. */
int client_end(struct client *c);
/* SIGKILL, reaped. */
void client_kill(struct client *c);
/* After somebody killed it: reaped, everything closed. */
void client_bury(struct client *c);

int client_inject(struct client *c, pid_t pid);
