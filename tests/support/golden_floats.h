/* SPDX-License-Identifier: MIT */
/* The expected floats of a golden model, as tests/golden/golden_floats.py stores them: runs of at most 256 floats, each
 * with how many they are, the least value and a step, then a number for each float: of 16 bits where the top bit of how
 * many is set, else of 24.
 *
 * Law: a float is off by at most 1e-7 of the range of its run, with 16 bits by at most 8e-6. */
#ifndef WEFT_TESTS_GOLDEN_FLOATS_H
#define WEFT_TESTS_GOLDEN_FLOATS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { GOLDEN_RUN = 256, GOLDEN_SHORT = 1 << 15 };

/* The n floats of STEM.q24; the caller frees. NULL: the file is not there, or has not so many. */
static inline float *golden_floats_read(const char *stem, uint64_t n) {
  char path[600];
  (void)snprintf(path, sizeof path, "%s.q24", stem);
  FILE *file = fopen(path, "rb");
  float *floats = malloc((size_t)n * sizeof *floats);
  bool whole = file != NULL && floats != NULL;
  for (uint64_t at = 0; whole && at < n;) {
    float of_run[2]; /* least value and step */
    uint8_t number[GOLDEN_RUN * 3];
    uint16_t count = 0;
    whole = fread(&count, sizeof count, 1, file) == 1;
    size_t size = (count & GOLDEN_SHORT) != 0 ? 2 : 3;
    count &= GOLDEN_SHORT - 1;
    whole = whole && count > 0 && count <= GOLDEN_RUN && count <= n - at;
    whole = whole && fread(of_run, sizeof *of_run, 2, file) == 2 && fread(number, size, count, file) == count;
    for (uint16_t i = 0; whole && i < count; i++) {
      const uint8_t *bytes = number + i * size;
      uint32_t q = bytes[0] | (uint32_t)bytes[1] << 8 | (size == 3 ? (uint32_t)bytes[2] << 16 : 0);
      floats[at + i] = (float)((double)of_run[0] + (double)of_run[1] * q);
    }
    at += count;
  }
  whole = whole && fgetc(file) == EOF;
  if (file != NULL) (void)fclose(file);
  if (whole) return floats;
  free(floats);
  return NULL;
}

#endif
