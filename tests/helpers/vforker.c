/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vforker: a parent that waits in vfork() for a child that does nothing. The child's pid is printed;
 * SIGTERM ends the child, and the parent says "went on" and exits.
 */
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int signo)
{
	_exit(signo == SIGTERM ? 0 : 1);
}

int main(void)
{
	pid_t pid;

	pid = vfork();
	if (pid == 0) {
		/* Not printf: this memory and its buffers are the parent's. */
		char text[16], *p = text + sizeof text - 1;
		pid_t n = getpid();

		*p = '\n';
		for (; n; n /= 10)
			*--p = (char)('0' + n % 10);
		signal(SIGTERM, end);
		if (write(1, p, (size_t)(text + sizeof text - p)) < 0)
			_exit(1);
		for (;;)
			pause();
	}
	if (pid < 0 || waitpid(pid, NULL, 0) < 0)
		return 1;
	return puts("went on") < 0;
}
