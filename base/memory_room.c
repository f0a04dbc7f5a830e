/* SPDX-License-Identifier: MIT */
#include "base/memory_room.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* The number after `word` at the start of a line; false when there is none ("max" is none). */
static bool read_number(const char *path, const char *word, uint64_t *out) {
  char line[256];
  size_t n = strlen(word);
  bool found = false;
  FILE *file = fopen(path, "re");
  if (file == NULL) return false;
  while (!found && fgets(line, sizeof line, file) != NULL)
    found = strncmp(line, word, n) == 0 && sscanf(line + n, "%" SCNu64, out) == 1;
  (void)fclose(file); /* only read */
  return found;
}

uint64_t weft_memory_available(void) {
  uint64_t kib = 0, available = 0, limit, used, cached = 0;
  if (read_number("/proc/meminfo", "MemAvailable:", &kib)) available = kib * 1024;
  if (!read_number("/sys/fs/cgroup/memory.max", "", &limit)) return available;
  if (!read_number("/sys/fs/cgroup/memory.current", "", &used)) return available;
  (void)read_number("/sys/fs/cgroup/memory.stat", "file ", &cached); /* counted as used, and given back when wanted */
  used -= cached < used ? cached : used;
  uint64_t left = used < limit ? limit - used : 1;
  return available == 0 || left < available ? left : available;
}
