/* SPDX-License-Identifier: MIT */
/* File descriptors that go from one process to another over a unix socket (SCM_RIGHTS), and who the other process is
 * (SO_PEERCRED).
 *
 * Law: a message carries one descriptor or none. Of a message that carries more all but the first are closed, so none
 * stays open that nobody knows. */
#ifndef WEFT_BASE_DESCRIPTORS_H
#define WEFT_BASE_DESCRIPTORS_H

#include <stdbool.h>
#include <sys/socket.h>

/* Room for the control message of one descriptor. It must live as long as the msghdr that points to it. */
typedef union weft_descriptor_room {
  char bytes[CMSG_SPACE(sizeof(int))];
  struct cmsghdr align;
} weft_descriptor_room;

/* Makes a message that is to be sent carry the descriptor; below 0: it carries none. */
void weft_descriptor_attach(struct msghdr *message, weft_descriptor_room *room, int descriptor);
/* Takes what came with a received message. *descriptor stays as it is where none came, and the first one that comes is
 * taken only where it is below 0. */
void weft_descriptor_take(struct msghdr *message, int *descriptor);

/* Whether the process at the other end belongs to this process's user. *pid: its number, 0 where the system does not
 * say. */
bool weft_peer_is_own(int fd, int *pid);

#endif
