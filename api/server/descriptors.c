/* SPDX-License-Identifier: MIT */
#include "api/server/descriptors.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

void descriptors_raise(void) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &limit); /* a refusal leaves the limit as it is, and that is what is asked for */
}

uint32_t descriptors_limit(void) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur > UINT32_MAX) return UINT32_MAX;
  return (uint32_t)limit.rlim_cur;
}

/* Where the system does not list them: as many as the lowest free one says. */
static uint32_t count_by_lowest(void) {
  int lowest = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0);
  if (lowest < 0) return STDERR_FILENO + 1;
  (void)close(lowest); /* a copy */
  return (uint32_t)lowest;
}

uint32_t descriptors_open(void) {
  DIR *folder = opendir("/proc/self/fd");
  uint32_t n = 0;
  if (folder == NULL) return count_by_lowest();
  for (const struct dirent *entry; (entry = readdir(folder)) != NULL;) n += entry->d_name[0] != '.';
  (void)closedir(folder);   /* only read */
  return n > 0 ? n - 1 : 0; /* the folder itself */
}

uint32_t descriptors_room(uint32_t limit, uint32_t n_open, uint32_t wanted) {
  uint64_t taken = (uint64_t)n_open + DESCRIPTORS_RESERVE;
  uint64_t left = limit > taken ? limit - taken : 0;
  if (left >= wanted) return wanted;
  return left >= DESCRIPTORS_CONNECTIONS_MIN ? (uint32_t)left : 0;
}
