/* SPDX-License-Identifier: MIT */
#include "base/descriptors.h"

#include <string.h>
#include <unistd.h>

void weft_descriptor_attach(struct msghdr *message, weft_descriptor_room *room, int descriptor) {
  if (descriptor < 0) return;
  memset(room, 0, sizeof *room);
  message->msg_control = room->bytes;
  message->msg_controllen = sizeof room->bytes;
  struct cmsghdr *head = CMSG_FIRSTHDR(message);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(sizeof descriptor);
  memcpy(CMSG_DATA(head), &descriptor, sizeof descriptor);
}

void weft_descriptor_take(struct msghdr *message, int *descriptor) {
  for (struct cmsghdr *head = CMSG_FIRSTHDR(message); head != NULL; head = CMSG_NXTHDR(message, head)) {
    if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
    size_t n = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < n; i++) {
      int fd;
      memcpy(&fd, CMSG_DATA(head) + i * sizeof fd, sizeof fd);
      if (*descriptor < 0)
        *descriptor = fd;
      else
        (void)close(fd); /* nobody asked for it */
    }
  }
}

bool weft_peer_is_own(int fd, int *pid) {
  struct ucred who = {.pid = 0};
  socklen_t n = sizeof who;
  bool asked = getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &n) == 0 && n == sizeof who;
  *pid = asked ? (int)who.pid : 0;
  return asked && who.uid == geteuid();
}
