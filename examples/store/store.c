/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store: a key-value store to break things around, small and real. One process, one thread, TCP on loopback, one
 * line a request:
 *
 *     PING               PONG
 *     SET key value      OK
 *     GET key            VALUE value, or NONE
 *     COUNT              the number of keys
 *
 * anything else: ERROR why. `store [PORT]`: 0 or none takes a free port; the first line on stdout is the port. It
 * ends with SIGTERM and keeps nothing.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define CLIENTS_MAX 64
#define LINE_MAX_BYTES 4096
#define BUCKETS 1024

struct item {
	struct item *next;
	char *key, *value;
};

struct client {
	char line[LINE_MAX_BYTES];
	size_t len;
};

static struct item *buckets[BUCKETS];
static size_t n_items;
static struct client clients[CLIENTS_MAX];
static struct pollfd fds[CLIENTS_MAX + 1]; /* the listening socket, then the clients in order */

static size_t bucket_of(const char *key)
{
	size_t h = 5381;

	while (*key)
		h = h * 33 + (unsigned char)*key++;
	return h % BUCKETS;
}

static struct item *find(const char *key)
{
	struct item *i = buckets[bucket_of(key)];

	while (i && strcmp(i->key, key) != 0)
		i = i->next;
	return i;
}

static int set(const char *key, const char *value)
{
	struct item *i = find(key);
	char *copy = strdup(value);

	if (!copy)
		return -ENOMEM;
	if (i) {
		free(i->value);
		i->value = copy;
		return 0;
	}
	i = calloc(1, sizeof(*i));
	if (i)
		i->key = strdup(key);
	if (!i || !i->key) {
		free(i);
		free(copy);
		return -ENOMEM;
	}
	i->value = copy;
	i->next = buckets[bucket_of(key)];
	buckets[bucket_of(key)] = i;
	n_items++;
	return 0;
}

/* Answers one request; line is taken apart. */
static int answer(char *line, char *ret, size_t size)
{
	char *key = strchr(line, ' '), *value = NULL;
	const struct item *i;

	if (key) {
		*key++ = '\0';
		value = strchr(key, ' ');
	}
	if (strcmp(line, "PING") == 0)
		return snprintf(ret, size, "PONG\n");
	if (strcmp(line, "COUNT") == 0)
		return snprintf(ret, size, "%zu\n", n_items);
	if (strcmp(line, "GET") == 0 && key && *key) {
		i = find(key);
		return i ? snprintf(ret, size, "VALUE %s\n", i->value)
			 : snprintf(ret, size, "NONE\n");
	}
	if (strcmp(line, "SET") == 0 && value) {
		*value++ = '\0';
		return snprintf(ret, size, set(key, value) == 0 ? "OK\n" : "ERROR no memory\n");
	}
	return snprintf(ret, size, "ERROR requests are PING, SET key value, GET key and COUNT\n");
}

static int send_all(int fd, const char *data, size_t len)
{
	while (len) {
		ssize_t n = send(fd, data, len, MSG_NOSIGNAL);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		data += n;
		len -= (size_t)n;
	}
	return 0;
}

/* Serves every whole line that is there; -1 when this client is to go. */
static int serve(int fd, struct client *c)
{
	ssize_t n = recv(fd, c->line + c->len, sizeof(c->line) - c->len, 0);
	char reply[LINE_MAX_BYTES + 64], *end;

	if (n <= 0)
		return n < 0 && errno == EINTR ? 0 : -1;
	c->len += (size_t)n;
	while ((end = memchr(c->line, '\n', c->len))) {
		size_t used = (size_t)(end - c->line) + 1;
		int len;

		*end = '\0';
		if (end > c->line && end[-1] == '\r')
			end[-1] = '\0';
		len = answer(c->line, reply, sizeof(reply));
		if (send_all(fd, reply, (size_t)len) < 0)
			return -1;
		memmove(c->line, c->line + used, c->len - used);
		c->len -= used;
	}
	return c->len == sizeof(c->line) ? -1 : 0; /* a line that never ends */
}

static int listen_on(unsigned short port, unsigned short *ret_port)
{
	struct sockaddr_in at = {.sin_family = AF_INET,
		.sin_port = htons(port),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(at);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), yes = 1;

	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) < 0 ||
		bind(fd, (struct sockaddr *)&at, sizeof(at)) < 0 || listen(fd, 64) < 0 ||
		getsockname(fd, (struct sockaddr *)&at, &len) < 0)
		return -1;
	*ret_port = ntohs(at.sin_port);
	return fd;
}

static size_t take_client(size_t n)
{
	int fd = accept4(fds[0].fd, NULL, NULL, SOCK_CLOEXEC), yes = 1;

	if (fd < 0)
		return n;
	if (n == CLIENTS_MAX) {
		close(fd);
		return n;
	}
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
	clients[n].len = 0;
	fds[n + 1] = (struct pollfd){.fd = fd, .events = POLLIN};
	return n + 1;
}

int main(int argc, char **argv)
{
	unsigned long port = argc > 1 ? strtoul(argv[1], NULL, 10) : 0;
	unsigned short bound;
	size_t n = 0;

	if (argc > 2 || port > 65535) {
		fprintf(stderr, "usage: store [PORT]\n");
		return 2;
	}
	fds[0] = (struct pollfd){.fd = listen_on((unsigned short)port, &bound), .events = POLLIN};
	if (fds[0].fd < 0) {
		fprintf(stderr, "store: cannot listen on port %lu: %s\n", port, strerror(errno));
		return 1;
	}
	printf("%u\n", bound);
	fflush(stdout);
	for (;;) {
		if (poll(fds, n + 1, -1) < 0)
			continue;
		for (size_t i = n; i > 0; i--) {
			if (!fds[i].revents || serve(fds[i].fd, &clients[i - 1]) == 0)
				continue;
			close(fds[i].fd);
			n--;
			fds[i] = fds[n + 1];
			clients[i - 1] = clients[n];
		}
		if (fds[0].revents)
			n = take_client(n);
	}
}
