/* SPDX-License-Identifier: MIT */
/* Which of the chosen experts in host memory a processor computes, while the link brings the others.
 *
 * Law: experts come with their rows ascending, and the processor takes the first ones of them: their bytes cross the
 * link in the same time as those of experts with many rows, and cost a processor less. It takes as many as make the
 * longer one of both times the shortest, the fewest of these, and none with more than most_rows rows or beyond
 * most_pairs rows together. Nothing of a result depends on it (kernels/cpu/card_products.h). */
#ifndef WEFT_KERNELS_HOST_SHARE_H
#define WEFT_KERNELS_HOST_SHARE_H

#include <stdint.h>

#ifdef __CUDACC__
#define HOST_SHARE_CODE __host__ __device__ static inline
#else
#define HOST_SHARE_CODE static inline
#endif

/* Times in microseconds. begin: of a processor's share, whatever it is. */
typedef struct host_share_times {
  float link, expert, row, begin; /* link: of an expert over the link; expert, row: by the processor */
  uint32_t most_rows, most_pairs;
} host_share_times;

/* rows [n], ascending: of the experts that lie in host memory alone. How many of them the processor takes. */
HOST_SHARE_CODE uint32_t host_share_of(const host_share_times *t, const uint32_t *rows, uint32_t n) {
  float own = t->begin, least = t->link * (float)n;
  uint32_t best = 0, n_pairs = 0;
  for (uint32_t i = 0; i < n && rows[i] <= t->most_rows && n_pairs + rows[i] <= t->most_pairs; i++) {
    const float link = t->link * (float)(n - 1 - i);
    n_pairs += rows[i];
    own += t->expert + t->row * (float)rows[i];
    if ((own > link ? own : link) < least) least = own > link ? own : link, best = i + 1;
    if (own > link) break;
  }
  return best;
}

#endif
