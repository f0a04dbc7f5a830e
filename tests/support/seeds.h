/* SPDX-License-Identifier: MIT */
/* Programs that run one random world per seed: `[--seed N | --seeds A..B]`, draws that follow from the seed alone, and a
 * failure that says how to see it again. */
#ifndef WEFT_TESTS_SEEDS_H
#define WEFT_TESTS_SEEDS_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"

typedef struct seeds {
  unsigned long long first, last;
  bool one; /* a single seed was asked for */
} seeds;

static const char *seeds_program;

/* Without arguments the seeds are 1 to last. An unknown argument ends the program with the code 2. */
static inline seeds seeds_open(unsigned long long last, int argc, char **argv) {
  seeds s = {.first = 1, .last = last};
  seeds_program = argv[0];
  s.one = argc == 3 && strcmp(argv[1], "--seed") == 0 && sscanf(argv[2], "%llu", &s.first) == 1;
  bool range = argc == 3 && strcmp(argv[1], "--seeds") == 0 && sscanf(argv[2], "%llu..%llu", &s.first, &s.last) == 2;
  if (s.one) s.last = s.first;
  if (argc == 1 || s.one || range) return s;
  (void)fprintf(stderr, "usage: %s [--seed N | --seeds A..B]\n", argv[0]);
  exit(2);
}

/* low to high, both included. */
static inline uint32_t seeds_draw(uint64_t seed, uint64_t *draws, uint32_t low, uint32_t high) {
  uint64_t x = weft_mix64(seed * 0x9E3779B97F4A7C15ull + weft_mix64(++*draws));
  return low + (uint32_t)((x >> 32) * (uint64_t)(high - low + 1) >> 32);
}

static inline void seeds_fail(uint64_t seed, const char *format, ...) __attribute__((noreturn, format(printf, 2, 3)));
static inline void seeds_fail(uint64_t seed, const char *format, ...) {
  va_list list;
  va_start(list, format);
  (void)vfprintf(stderr, format, list);
  va_end(list);
  (void)fprintf(stderr, "\nreplay: %s --seed %llu\n", seeds_program, (unsigned long long)seed);
  exit(1);
}

#endif
