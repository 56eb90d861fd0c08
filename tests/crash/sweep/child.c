/* SPDX-License-Identifier: Apache-2.0 */
#include "child.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

_Noreturn void child_become(char *const argv[], const int stdfd[3])
{
	int high[3];
	sigset_t none;

	/* As every transport does; and a signal to group 0 by the agent must not be one to us. */
	setsid();
	/* First out of the way of 0 to 2, so that no copy overwrites a source. */
	for (int i = 0; i < 3; i++)
		high[i] = fcntl(stdfd[i], F_DUPFD, 10);
	for (int i = 0; i < 3; i++) {
		if (dup2(high[i], i) < 0)
			_exit(127);
	}
	close_range(3, ~0u, 0);
	signal(SIGPIPE, SIG_DFL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	execvp(argv[0], argv);
	_exit(127);
}
