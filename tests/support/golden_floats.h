/* SPDX-License-Identifier: MIT */
/* The expected floats of a golden model, as tests/golden/golden_floats.py stores them: runs of at most 256 floats, each
 * with how many they are, the least value and a step, then a number of 24 bits for each float.
 *
 * Law: a float is off by at most 1e-7 of the range of its run. */
#ifndef WEFT_TESTS_GOLDEN_FLOATS_H
#define WEFT_TESTS_GOLDEN_FLOATS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { GOLDEN_RUN = 256 };

/* The n floats of STEM.q24; the caller frees. NULL: the file is not there, or has not so many. */
static inline float *golden_floats_read(const char *stem, uint64_t n) {
  char path[600];
  (void)snprintf(path, sizeof path, "%s.q24", stem);
  FILE *file = fopen(path, "rb");
  float *floats = malloc((size_t)n * sizeof *floats);
  bool whole = file != NULL && floats != NULL;
  for (uint64_t at = 0; whole && at < n;) {
    float of_run[2]; /* least value and step */
    uint8_t number[GOLDEN_RUN][3];
    uint16_t count = 0;
    whole = fread(&count, sizeof count, 1, file) == 1 && count > 0 && count <= GOLDEN_RUN && count <= n - at;
    whole = whole && fread(of_run, sizeof *of_run, 2, file) == 2 && fread(number, sizeof *number, count, file) == count;
    for (uint16_t i = 0; whole && i < count; i++) {
      uint32_t q = number[i][0] | (uint32_t)number[i][1] << 8 | (uint32_t)number[i][2] << 16;
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
