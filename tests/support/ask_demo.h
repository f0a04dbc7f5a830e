/* SPDX-License-Identifier: MIT */
/* What programs that need a card ask of the demo model: one request, by diffusion where i is even, else token by token.
 * They are no cmocka tests, since they end with a code of their own where there is no card. */
#ifndef WEFT_TESTS_ASK_DEMO_H
#define WEFT_TESTS_ASK_DEMO_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/weft.h"

static inline void need(bool holds, const char *what, const char *text) {
  if (holds) return;
  (void)printf("FAILED: %s: %s\n", what, text);
  exit(1);
}

/* An answer of n_tokens: no fewer come. Its text is added to `answer`, a string with `room` bytes. */
static inline void ask_demo(weft_runtime *rt, uint32_t i, uint32_t n_tokens, char *answer, size_t room) {
  weft_generate_params p;
  weft_generation *g;
  weft_delta d;
  char error[512] = "";
  size_t n = strlen(answer);
  uint32_t n_come = 0;
  weft_generate_defaults(&p);
  p.prompt.text = "The soft ball is behind the blue boat. The soft";
  p.prompt.n_text = strlen(p.prompt.text);
  p.mode = i % 2 == 0 ? WEFT_MODE_DIFFUSION : WEFT_MODE_AUTOREGRESSIVE;
  p.max_tokens = n_tokens;
  p.ignore_eos = true;
  p.has_seed = true;
  p.sampling.seed = i;
  need(weft_submit(rt, &p, &g, error, sizeof error) == 0, "submit", error);
  while (weft_next(g, 10000, &d) == 0) {
    if (d.kind == WEFT_DELTA_TEXT) {
      n_come += d.n_tokens;
      need(n + d.n_text < room, "answer", "it is too long");
      memcpy(answer + n, d.text, d.n_text);
      n += d.n_text;
    }
    if (d.kind != WEFT_DELTA_END) continue;
    need(d.error == NULL, "answer", d.error == NULL ? "" : d.error);
    break;
  }
  answer[n] = '\0';
  need(n_come == n_tokens, "answer", "not all tokens came");
  weft_generation_free(g);
}

#endif
