/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/spawn.h"

#include <fcntl.h>

#include "base/cleanup.h"
#include "launch/launch.h"

extern char **environ;

static int make_pipes(int in[2], int out[2], int err_out[2], bool own_stderr)
{
	if (pipe2(in, O_CLOEXEC) < 0 || pipe2(out, O_CLOEXEC) < 0)
		return -errno;
	if (own_stderr &&
		(pipe2(err_out, O_CLOEXEC) < 0 || fcntl(err_out[0], F_SETFL, O_NONBLOCK) < 0))
		return -errno;
	return 0;
}

int launch_spawn(char *const *argv, bool own_stderr, struct spawned *ret, struct err *err)
{
	int in[2] = {-1, -1}, out[2] = {-1, -1}, err_out[2] = {-1, -1};
	struct launched l = LAUNCHED_INIT;
	struct launch_spec spec = {
		.kind = LAUNCH_TOOL,
		.argv = argv,
		.envp = environ,
		.cwdfd = -1,
		.outlives = true, /* an agent ends at the end of its input, and undoes first */
		.required = 0,
	};
	int r = make_pipes(in, out, err_out, own_stderr);

	if (r < 0) {
		err_set(err, "launch.failed", -r, "pipes", "cannot make the pipes of %s", argv[0]);
	} else {
		spec.stdfd[0] = in[0];
		spec.stdfd[1] = out[1];
		spec.stdfd[2] = own_stderr ? err_out[1] : STDERR_FILENO;
		r = launch_hold(&spec, NULL, &l, err);
		if (r == 0)
			r = launch_go(&l, err);
	}
	close_now(&in[0]);
	close_now(&out[1]);
	close_now(&err_out[1]);
	if (r == 0) {
		ret->pidfd = take_fd(&l.pidfd);
		ret->infd = take_fd(&in[1]);
		ret->outfd = take_fd(&out[0]);
		ret->errfd = take_fd(&err_out[0]);
	}
	close_now(&in[1]);
	close_now(&out[0]);
	close_now(&err_out[0]);
	launched_close(&l);
	return r;
}

void spawned_close(struct spawned *s)
{
	close_now(&s->pidfd);
	close_now(&s->infd);
	close_now(&s->outfd);
	close_now(&s->errfd);
}
