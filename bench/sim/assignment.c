/* SPDX-License-Identifier: MIT */
#include "bench/sim/assignment.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "bench/lab/lab.h"

/* A line without its end. UINT32_MAX: it is no number of a replica. */
static uint32_t read_replica(const char *text, size_t n, uint32_t n_replicas) {
  uint32_t value = 0;
  if (n > 0 && text[n - 1] == '\r') n--;
  if (n == 0 || n > 4) return UINT32_MAX;
  for (size_t i = 0; i < n; i++) {
    if (text[i] < '0' || text[i] > '9') return UINT32_MAX;
    value = 10 * value + (uint32_t)(text[i] - '0');
  }
  return value < n_replicas ? value : UINT32_MAX;
}

static int read_lines(const char *path, const char *text, size_t size, uint32_t n, uint32_t n_replicas, uint32_t *out) {
  uint32_t n_lines = 0;
  for (size_t at = 0; at < size;) {
    const char *end = memchr(text + at, '\n', size - at);
    size_t length = end == NULL ? size - at : (size_t)(end - text) - at;
    uint32_t replica = read_replica(text + at, length, n_replicas);
    if (replica == UINT32_MAX) {
      return weft_cli_fail(WEFT_EXIT_LOAD, "%s:%u: a line must be the number of a replica, below %u", path, n_lines + 1,
                           n_replicas);
    }
    if (n_lines < n) out[n_lines] = replica;
    n_lines += 1;
    at += length + 1;
  }
  if (n_lines == n) return 0;
  return weft_cli_fail(WEFT_EXIT_LOAD, "%s has %u lines for a load of %u requests", path, n_lines, n);
}

int weft_sim_assignment_read(const char *path, uint32_t n, uint32_t n_replicas, uint32_t **out) {
  size_t size;
  char *text = weft_cli_read(path, &size);
  if (text == NULL) return WEFT_EXIT_LOAD;
  *out = weft_alloc(n, sizeof **out);
  int code = *out == NULL ? weft_cli_fail(WEFT_EXIT_RUNTIME, "sim: no memory for %u requests", n)
                          : read_lines(path, text, size, n, n_replicas, *out);
  weft_free(text);
  if (code == 0) return 0;
  weft_free(*out);
  *out = NULL;
  return code;
}

int weft_sim_assignment_write(const char *path, const weft_sim_load *load, const weft_sim_run *run) {
  FILE *file = fopen(path, "w");
  if (file == NULL) return weft_cli_fail(WEFT_EXIT_USAGE, "--assignment %s: %s", path, strerror(errno));
  bool ok = true;
  for (uint32_t i = 0; ok && i < load->n; i++) ok = fprintf(file, "%u\n", run->outcome[i].replica) > 0;
  ok = fclose(file) == 0 && ok;
  return ok ? 0 : weft_cli_fail(WEFT_EXIT_RUNTIME, "--assignment %s: it could not be written", path);
}
