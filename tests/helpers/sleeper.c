/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sleeper [THREADS]: a target that does nothing. Prints one line once all its threads run.
 * Not sleep(1), because a fault must stop every thread of a process.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void *rest(void *arg)
{
	pthread_barrier_wait(arg);
	for (;;)
		pause();
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_barrier_t all;
	long n = argc > 1 ? strtol(argv[1], NULL, 10) : 0;

	pthread_barrier_init(&all, NULL, (unsigned)n + 1);
	for (long i = 0; i < n; i++) {
		pthread_t thread;

		if (pthread_create(&thread, NULL, rest, &all) != 0)
			return 1;
	}
	pthread_barrier_wait(&all);
	printf("%d\n", getpid());
	fflush(stdout);
	for (;;)
		pause();
}
