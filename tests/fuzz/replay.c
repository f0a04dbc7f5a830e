/* SPDX-License-Identifier: MIT */
/* Feeds committed inputs to a fuzz target, so that `./dev test` runs them without a fuzzer.
 *
 * Usage: fuzz_NAME [--changes N] FILE-OR-FOLDER... Every file is fed as it is, cut at many lengths,
 * and N times (16 when left out, nightly 256) with a few bytes changed by a fixed generator; a fault ends the program.
 * Prints `N passed, 0 failed`. */
#include <dirent.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/support/amount.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static uint64_t n_inputs;

/* An exact copy, so that a sanitizer sees a read one byte too far. */
static void feed(const uint8_t *data, size_t n) {
  uint8_t *exact = malloc(n == 0 ? 1 : n);
  if (exact == NULL) exit(2);
  if (n > 0) memcpy(exact, data, n);
  (void)LLVMFuzzerTestOneInput(exact, n);
  free(exact);
  n_inputs++;
}

static uint64_t next(uint64_t *state) {
  *state ^= *state << 13;
  *state ^= *state >> 7;
  *state ^= *state << 17;
  return *state;
}

static void feed_changed(const uint8_t *data, size_t n, uint32_t n_changes) {
  uint8_t *copy = malloc(n == 0 ? 1 : n);
  uint64_t state = 0x9E3779B97F4A7C15ull ^ n;
  if (copy == NULL) exit(2);
  for (uint32_t i = 0; n > 0 && i < n_changes; i++) {
    memcpy(copy, data, n);
    for (uint64_t k = 1 + next(&state) % 4; k > 0; k--) {
      uint64_t at = next(&state) % n;
      copy[at] = next(&state) % 2 == 0 ? (uint8_t)next(&state) : (uint8_t)(copy[at] ^ 1u << next(&state) % 8);
    }
    feed(copy, next(&state) % 8 == 0 ? next(&state) % (n + 1) : n);
  }
  free(copy);
}

static void feed_file(const char *path, uint32_t n_changes) {
  FILE *file = fopen(path, "rb");
  if (file == NULL) {
    (void)fprintf(stderr, "%s: %s\n", path, strerror(errno));
    exit(2);
  }
  size_t n = 0, capacity = 1 << 16;
  uint8_t *data = malloc(capacity);
  while (data != NULL) {
    n += fread(data + n, 1, capacity - n, file);
    if (n < capacity) break;
    capacity *= 2;
    uint8_t *more = realloc(data, capacity);
    if (more == NULL) free(data);
    data = more;
  }
  (void)fclose(file);
  if (data == NULL) exit(2);
  feed(data, n);
  size_t stride = n / test_amount(16, 16, 64) + 1;
  for (size_t cut = 0; cut < n; cut += stride) feed(data, cut);
  feed_changed(data, n, n_changes);
  free(data);
}

static int is_named(const struct dirent *entry) {
  return entry->d_name[0] != '.';
}

static void feed_path(const char *path, uint32_t n_changes) {
  struct stat about;
  if (stat(path, &about) != 0 || !S_ISDIR(about.st_mode)) {
    feed_file(path, n_changes);
    return;
  }
  struct dirent **entries;
  int n = scandir(path, &entries, is_named, alphasort);
  for (int i = 0; i < n; i++) {
    char name[4096];
    (void)snprintf(name, sizeof name, "%s/%s", path, entries[i]->d_name);
    feed_file(name, n_changes);
    free(entries[i]);
  }
  if (n >= 0) free(entries);
}

int main(int argc, char **argv) {
  uint32_t n_changes = test_amount(16, 16, 256);
  int first = 1;
  if (argc > 2 && strcmp(argv[1], "--changes") == 0) {
    n_changes = (uint32_t)strtoul(argv[2], NULL, 10);
    first = 3;
  }
  for (int i = first; i < argc; i++) feed_path(argv[i], n_changes);
  (void)printf("%llu passed, 0 failed\n", (unsigned long long)n_inputs);
  return n_inputs > 0 ? 0 : 1; /* an empty corpus shows nothing */
}
