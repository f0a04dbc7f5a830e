/* SPDX-License-Identifier: MIT */
#include "bench/quality/summary.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>

weft_moments weft_moments_of(const float *values, uint64_t n) {
  double sum = 0.0, square = 0.0;
  for (uint64_t i = 0; i < n; i++) sum += (double)values[i];
  double mean = n > 0 ? sum / (double)n : 0.0;
  for (uint64_t i = 0; i < n; i++) square += ((double)values[i] - mean) * ((double)values[i] - mean);
  /* The variance over all n values, the mean's over n - 1: as llama.cpp prints it. */
  return (weft_moments){mean, n > 1 ? sqrt(square / (double)n / (double)(n - 1)) : 0.0};
}

/* The value that Student's t exceeds with 2.5 %, for this many degrees of freedom. */
static double student_t(uint32_t freedom) {
  static const double small[] = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228};
  if (freedom <= sizeof small / sizeof *small) return small[freedom - 1];
  /* The expansion in 1 / freedom around the normal distribution's value; from 11 on its error is below 0.0002. */
  const double z = 1.959964, z3 = z * z * z, z5 = z3 * z * z, z7 = z5 * z * z, n = freedom;
  return z + (z3 + z) / (4.0 * n) + (5.0 * z5 + 16.0 * z3 + 3.0 * z) / (96.0 * n * n) +
         (3.0 * z7 + 19.0 * z5 + 17.0 * z3 - 15.0 * z) / (384.0 * n * n * n);
}

weft_interval weft_interval_of(const float *values, const float *minus, uint32_t n_windows, uint32_t n_per_window) {
  double sum = 0.0, square = 0.0;
  for (uint32_t w = 0; w < n_windows; w++) {
    double of_window = 0.0;
    for (uint64_t i = (uint64_t)w * n_per_window; i < (uint64_t)(w + 1) * n_per_window; i++) {
      of_window += (double)values[i] - (minus == NULL ? 0.0 : (double)minus[i]);
    }
    of_window /= n_per_window;
    /* Welford's way: no difference of two large sums */
    double before = of_window - sum;
    sum += before / (w + 1);
    square += before * (of_window - sum);
  }
  if (n_windows < 2) return (weft_interval){sum, sum, false};
  double half = student_t(n_windows - 1) * sqrt(square / (n_windows - 1) / n_windows);
  return (weft_interval){sum - half, sum + half, true};
}

static int compare_floats(const void *a, const void *b) {
  float x = *(const float *)a, y = *(const float *)b;
  return (x > y) - (x < y);
}

void weft_sort_floats(float *values, uint64_t n) {
  qsort(values, n, sizeof *values, compare_floats);
}

double weft_quantile(const float *sorted, uint64_t n, double share) {
  double at = share * (double)(n - 1);
  uint64_t below = (uint64_t)at, above = below + 1 < n ? below + 1 : below;
  return (double)sorted[below] + (at - (double)below) * ((double)sorted[above] - (double)sorted[below]);
}
