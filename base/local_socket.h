/* SPDX-License-Identifier: MIT */
/* Unix sockets that listen, by the name of their file.
 *
 * Law: the file of a socket is removed when it is closed, and one that a killed process left behind is removed when the
 * next one begins; never a socket on which somebody still answers, and never a file that is no socket. Processes that
 * begin in one folder do so one after the other. Nobody can connect before the file has its mode. */
#ifndef WEFT_BASE_LOCAL_SOCKET_H
#define WEFT_BASE_LOCAL_SOCKET_H

#include <stdint.h>
#include <sys/types.h>

#include "base/status.h"

typedef struct weft_local_socket {
  int fd;     /* listens, without waiting; who takes it over sets it to -1 */
  char *path; /* from the root; NULL: there is none */
  dev_t device;
  ino_t inode; /* as it was made: another file of that name is not removed */
} weft_local_socket;

/* No socket: closing it is fine. */
#define WEFT_NO_LOCAL_SOCKET \
  { .fd = -1, .path = NULL }

/* prefix: what stands before the path in refusals, such as "--host unix:". mode: of the file, as for chmod. INVALID, IO
 * or NO_MEMORY with one line; *out is none then. */
weft_status weft_local_socket_open(const char *prefix, const char *path, uint32_t mode, weft_local_socket *out,
                                   weft_error *error);
/* The file of a socket that another process made and hands over: it is removed by close from now on. fd stays -1. IO,
 * NO_MEMORY. */
weft_status weft_local_socket_adopt(const char *path, weft_local_socket *out, weft_error *error);
/* The other side of it: the file stays. */
void weft_local_socket_forget(weft_local_socket *socket);
/* Removes the file first, so that no client finds a socket that does not answer; then closes fd if it is here. */
void weft_local_socket_close(weft_local_socket *socket);

#endif
