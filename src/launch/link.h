/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The link between a launched body and its launcher: a socket of whole
 * packets. Sending never waits: a launcher that is stopped delays nothing,
 * and what does not fit is dropped and counted by the sender. A payload too
 * large for a packet travels as a sealed memory file beside it.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define LINK_INLINE_MAX (60u << 10)
#define LINK_PAYLOAD_MAX (8u << 20)

/* 0, or -errno: -EAGAIN when the other end does not read, -EPIPE when it is gone. */
int link_send(int fd, uint8_t type, const void *data, size_t len);

/*
 * One packet. 1 with *ret_data (NUL-terminated, caller frees), 0 at end of
 * file, -EAGAIN when there is none yet.
 */
int link_receive(int fd, uint8_t *ret_type, char **ret_data, size_t *ret_len);
