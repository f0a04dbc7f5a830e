/* SPDX-License-Identifier: MIT */
#include "api/drafts.h"

#include <stdlib.h>
#include <string.h>

#include "scheduler/draft.h"

/* A step of a card has the same time for some ten rows more than for one; grams of two tokens are often chance, and one
 * of four tells little more than one of three. */
enum { N_MAX = 8, NGRAM_LEAST = 2, NGRAM_MOST = 4, ROWS_MAX = 2048 };

/* [MODEL=]HOW: HOW, and the model's name and its length; 0: all. */
static const char *how_of(const char *word, size_t *n_model) {
  const char *sign = strrchr(word, '=');
  *n_model = sign == NULL ? 0 : (size_t)(sign - word);
  return sign == NULL ? word : sign + 1;
}

/* off, ngram, asked, shadow; the latter three with :K. */
static bool read_how(const char *how, weft_served_model *m) {
  const char *colon = strchr(how, ':');
  size_t n = colon == NULL ? strlen(how) : (size_t)(colon - how);
  unsigned long n_max = colon == NULL ? N_MAX : 0;
  char *end = NULL;
  if (colon != NULL && colon[1] >= '0' && colon[1] <= '9') n_max = strtoul(colon + 1, &end, 10);
  bool number = colon == NULL || (end != NULL && *end == 0 && n_max >= 1 && n_max <= WEFT_DRAFTS_MAX);
  bool ngram = n == 5 && strncmp(how, "ngram", n) == 0, asked = n == 5 && strncmp(how, "asked", n) == 0;
  bool off = colon == NULL && strcmp(how, "off") == 0, shadow = n == 6 && strncmp(how, "shadow", n) == 0;
  m->has_drafts = !off;
  m->draft = (weft_draft){.kind = ngram || shadow ? WEFT_DRAFT_NGRAM : WEFT_DRAFT_OFF,
                          .shadow = shadow,
                          .n_max = (uint32_t)n_max,
                          .ngram_least = NGRAM_LEAST,
                          .ngram_most = NGRAM_MOST};
  return off || ((ngram || asked || shadow) && number);
}

weft_status drafts_open(const weft_open_options *o, weft_served_model *m, weft_error *error) {
  m->draft = (weft_draft){.kind = WEFT_DRAFT_OFF};
  m->has_drafts = false;
  for (uint32_t i = 0; i < o->n_drafts; i++) {
    size_t n_model;
    const char *how = how_of(o->drafts[i], &n_model);
    if (n_model > 0 && (strlen(m->file_name) != n_model || strncmp(o->drafts[i], m->file_name, n_model) != 0)) continue;
    if (!read_how(how, m))
      return weft_fail(error, WEFT_E_INVALID,
                       "--draft %s: give off, ngram, ngram:K (K drafts of a step, 1 to %d), asked[:K] for requests "
                       "that ask for drafts, or shadow[:K] to check them; with MODEL= before it, of one model",
                       o->drafts[i], WEFT_DRAFTS_MAX);
  }
  if (!m->has_drafts || !o->no_deterministic) return WEFT_OK;
  return weft_fail(error, WEFT_E_INVALID,
                   "--draft: drafts change no answer only where a row does not depend on the rows beside it: leave out "
                   "--no-deterministic or --draft");
}

weft_status drafts_check(const weft_runtime *rt, weft_error *error) {
  for (uint32_t i = 0; i < rt->options.n_drafts; i++) {
    size_t n_model;
    const char *word = rt->options.drafts[i];
    (void)how_of(word, &n_model);
    bool known = n_model == 0;
    for (uint32_t k = 0; k < rt->n_models && !known; k++) {
      const char *name = rt->model[k].file_name;
      known = strlen(name) == n_model && strncmp(word, name, n_model) == 0;
    }
    if (!known) return weft_fail(error, WEFT_E_INVALID, "--draft: no model's file is named '%.*s'", (int)n_model, word);
  }
  return WEFT_OK;
}

uint32_t drafts_rows_max(const weft_open_options *o, const weft_served_model *m) {
  uint64_t n = (uint64_t)o->running * m->draft.n_max;
  if (!m->has_drafts) return 0;
  if (n > o->rows / 2) n = o->rows / 2;
  return n < ROWS_MAX ? (uint32_t)n : ROWS_MAX;
}

void drafts_fill(const weft_served_model *m, weft_draft *d) {
  if (!m->has_drafts || d->kind == WEFT_DRAFT_OFF) {
    *d = (weft_draft){.kind = WEFT_DRAFT_OFF};
    return;
  }
  if (d->kind == WEFT_DRAFT_DEFAULT) d->kind = m->draft.kind;
  d->shadow = m->draft.shadow;
  if (d->n_max == 0 || d->n_max > m->draft.n_max) d->n_max = m->draft.n_max;
  if (d->ngram_most == 0) d->ngram_most = d->ngram_least > NGRAM_MOST ? d->ngram_least : NGRAM_MOST;
  if (d->ngram_least == 0) d->ngram_least = d->ngram_most < NGRAM_LEAST ? d->ngram_most : NGRAM_LEAST;
}

void drafts_print(const weft_served_model *m, weft_text *out) {
  if (!m->has_drafts) return;
  weft_text_printf(out, "  drafts   at most %u of a step, %s%s\n", m->draft.n_max,
                   m->draft.kind == WEFT_DRAFT_NGRAM ? "from each request's own n-grams" : "for requests that ask",
                   m->draft.shadow ? ", only to be compared" : "");
}
