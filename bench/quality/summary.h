/* SPDX-License-Identifier: MIT */
/* What many numbers say together: mean, standard error, an interval over windows, quantiles.
 *
 * Law: numbers of one window of text depend on one another, so an interval takes each window's mean as one number and
 * Student's t with a degree of freedom less than there are windows. */
#ifndef WEFT_BENCH_QUALITY_SUMMARY_H
#define WEFT_BENCH_QUALITY_SUMMARY_H

#include <stdbool.h>
#include <stdint.h>

typedef struct weft_moments {
  double mean, standard_error; /* of the mean, as if the numbers were independent; 0 for one number */
} weft_moments;
weft_moments weft_moments_of(const float *values, uint64_t n);

typedef struct weft_interval {
  double low, high; /* 95 %, of the mean */
  bool known;       /* there are two windows at least */
} weft_interval;
/* values[window * n_per_window ...]; minus: optional, what is taken off each. */
weft_interval weft_interval_of(const float *values, const float *minus, uint32_t n_windows, uint32_t n_per_window);

/* Sorts the values in place. share 0.5: the median. Between two values: by distance. n >= 1. */
void weft_sort_floats(float *values, uint64_t n);
double weft_quantile(const float *sorted, uint64_t n, double share);

#endif
