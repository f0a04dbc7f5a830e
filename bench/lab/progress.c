/* SPDX-License-Identifier: MIT */
#include "bench/lab/progress.h"

#include <stdio.h>
#include <unistd.h>

#include "bench/inside.h"

enum { BAR = 30, QUARTERS = 4 };

/* ", 90 s left", once there is something to guess from. */
static void guess_rest(const weft_lab_progress *p, uint64_t done, uint64_t total, char *out, size_t n_out) {
  double spent = (double)(weft_clock_us() - p->started_us) * 1e-6;
  out[0] = 0;
  if (done == 0 || done >= total || spent < 0.5) return;
  (void)snprintf(out, n_out, ", about %.0f s left", spent * (double)(total - done) / (double)done);
}

void weft_lab_progress_show(weft_lab_progress *p, uint64_t done, uint64_t total, const char *more) {
  char bar[BAR + 1], rest[64];
  if (done > total) done = total;
  uint32_t quarters = 1 + (uint32_t)(QUARTERS * done / total);
  bool news = quarters > p->n_told;
  if (p->started_us == 0) p->started_us = weft_clock_us();
  p->n_told = quarters;
  if (p->quiet) return;
  guess_rest(p, done, total, rest, sizeof rest);
  const char *comma = more[0] != 0 ? ", " : "";
  if (isatty(STDERR_FILENO) == 0) {
    if (news) (void)fprintf(stderr, "%s: %u %%%s%s%s\n", p->what, 25 * (quarters - 1), comma, more, rest);
    return;
  }
  if (p->ended) return;
  for (uint64_t i = 0; i < BAR; i++) bar[i] = i < done * BAR / total ? '#' : '.';
  bar[BAR] = 0;
  p->ended = done == total;
  (void)fprintf(stderr, "\r%s [%s] %3u %%%s%s%s\033[K%s", p->what, bar, (unsigned)(100 * done / total), comma, more,
                rest, p->ended ? "\n" : "");
}
