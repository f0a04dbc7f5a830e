/* SPDX-License-Identifier: MIT */
#include "api/cli/notify.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"

weft_status notify_send(const char *lines) {
  struct sockaddr_un to = {.sun_family = AF_UNIX};
  const char *path = getenv("NOTIFY_SOCKET"); /* no option: the manager sets it for the process that it started */
  if (path == NULL) return WEFT_AGAIN;
  size_t n = strlen(path);
  if ((path[0] != '/' && path[0] != '@') || n < 2 || n >= sizeof to.sun_path) return WEFT_E_INVALID;
  memcpy(to.sun_path, path, n);
  if (path[0] == '@') to.sun_path[0] = 0; /* an abstract name: no file */
  int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return WEFT_E_IO;
  socklen_t n_to = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n);
  ssize_t sent = sendto(fd, lines, strlen(lines), MSG_NOSIGNAL, (struct sockaddr *)&to, n_to);
  (void)close(fd); /* a datagram is sent or not */
  return sent == (ssize_t)strlen(lines) ? WEFT_OK : WEFT_E_IO;
}

weft_status notify_reloading(void) {
  char lines[80];
  (void)snprintf(lines, sizeof lines, "RELOADING=1\nMONOTONIC_USEC=%" PRIu64, weft_clock_us());
  return notify_send(lines);
}
