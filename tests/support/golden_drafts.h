/* SPDX-License-Identifier: MIT */
/* What drafters of tests/golden/assistants give after prompts, and how far that is from what a test found. */
#ifndef WEFT_TESTS_GOLDEN_DRAFTS_H
#define WEFT_TESTS_GOLDEN_DRAFTS_H

#include "tests/support/golden_floats.h"
#include "tests/support/model_harness.h"

enum { GOLDEN_DRAFTS_CASES = 16, GOLDEN_DRAFTS_TOKENS = 192, GOLDEN_DRAFTS_MAX = 8, GOLDEN_DRAFTS_VOCAB = 288 };

typedef struct golden_prompt {
  /* drafted: the token that the model goes on with, then the drafts */
  int32_t token[GOLDEN_DRAFTS_TOKENS], drafted[GOLDEN_DRAFTS_MAX + 1];
  uint32_t n;
  harness_seq seq;
} golden_prompt;

typedef struct golden_drafts {
  char gguf[64], target[64];
  uint32_t n_vocab, n_drafts, n_floats, n_prompts;
  golden_prompt prompt[GOLDEN_DRAFTS_CASES];
  float *floats; /* [n_prompts][n_drafts][n_vocab] */
} golden_drafts;

/* Largest error in parts of the range of what a prompt's drafts expect. */
static const double golden_drafts_tolerance = 2e-4;

static inline uint32_t golden_drafts_list(const char *list, int32_t *out, uint32_t max) {
  uint32_t n = 0;
  for (char *end; *list >= '0' && *list <= '9' && n < max; list = *end == ',' ? end + 1 : end)
    out[n++] = (int32_t)strtol(list, &end, 10);
  return n;
}

static inline void golden_drafts_line(golden_drafts *g, const char *line) {
  int at = 0;
  golden_prompt *p = &g->prompt[g->n_prompts];
  (void)sscanf(line, "gguf %63s", g->gguf);
  (void)sscanf(line, "target %63s", g->target);
  (void)sscanf(line, "n_vocab %u", &g->n_vocab);
  (void)sscanf(line, "n_drafts %u", &g->n_drafts);
  (void)sscanf(line, "n_floats %u", &g->n_floats);
  if (strncmp(line, "prompt ", 7) == 0) p->n = golden_drafts_list(line + 7, p->token, GOLDEN_DRAFTS_TOKENS);
  if (sscanf(line, "draft %d %n", &p->drafted[0], &at) != 1 || at == 0) return;
  if (golden_drafts_list(line + at, p->drafted + 1, GOLDEN_DRAFTS_MAX) != g->n_drafts ||
      g->n_prompts + 1 == GOLDEN_DRAFTS_CASES)
    harness_die(g->gguf, WEFT_E_FORMAT, line);
  g->n_prompts += 1;
}

static inline void golden_drafts_read(golden_drafts *g, const char *name) {
  static char line[4096];
  char stem[512], path[600];
  memset(g, 0, sizeof *g);
  (void)snprintf(stem, sizeof stem, "%s/tests/golden/assistants/%s", WEFT_SOURCE_DIR, name);
  (void)snprintf(path, sizeof path, "%s.cases.txt", stem);
  FILE *file = fopen(path, "r");
  if (file == NULL) harness_die(path, WEFT_E_IO, "cannot open");
  while (fgets(line, sizeof line, file) != NULL) golden_drafts_line(g, line);
  (void)fclose(file);
  bool sound =
      g->n_prompts > 4 && g->n_vocab <= GOLDEN_DRAFTS_VOCAB && g->n_floats == g->n_prompts * g->n_drafts * g->n_vocab;
  g->floats = sound ? golden_floats_read(stem, g->n_floats) : NULL;
  if (g->floats == NULL) harness_die(path, WEFT_E_FORMAT, "the floats are not those that the cases describe");
}

static inline double golden_drafts_error(const float *got, const float *wanted, size_t n) {
  double low = wanted[0], high = wanted[0], worst = 0;
  for (size_t i = 0; i < n; i++) {
    double error = fabs((double)got[i] - (double)wanted[i]);
    if (!(error <= worst)) worst = error;
    low = fmin(low, (double)wanted[i]);
    high = fmax(high, (double)wanted[i]);
  }
  return worst / (high - low);
}

static inline int32_t golden_drafts_likeliest(const float *logits, uint32_t n) {
  uint32_t best = 0;
  for (uint32_t i = 1; i < n; i++)
    if (logits[i] > logits[best]) best = i;
  return (int32_t)best;
}

static inline double golden_drafts_judge(const golden_drafts *g, uint32_t i, const float *got) {
  size_t n = (size_t)g->n_drafts * g->n_vocab;
  double error = golden_drafts_error(got, g->floats + i * n, n);
  if (!(error <= golden_drafts_tolerance)) {
    (void)printf("FAILED: %s, prompt %u: error %.3g of the range\n", g->gguf, i, error);
    exit(1);
  }
  for (uint32_t k = 0; k < g->n_drafts; k++)
    if (golden_drafts_likeliest(got + (size_t)k * g->n_vocab, g->n_vocab) != g->prompt[i].drafted[k + 1])
      harness_die(g->gguf, WEFT_E_INVALID, "another token is the likeliest");
  return error;
}

#endif
