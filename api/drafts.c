/* SPDX-License-Identifier: MIT */
#include "api/drafts.h"

#include <stdlib.h>
#include <string.h>

#include "api/served_names.h"
#include "base/memory.h"
#include "scheduler/draft.h"

/* A step of a card has the same time for some ten rows more than for one; grams of two tokens are often chance, and one
 * of four tells little more than one of three. */
enum { N_MAX = 8, NGRAM_LEAST = 2, NGRAM_MOST = 4, ROWS_MAX = 2048 };

/* Of a canvas that drafts: its tokens are guesses, so few steps must do. */
enum { CANVAS_STEPS = 4 };

/* ---- the words of the option -------------------------------------------------------------------- */

/* The HOW of [MODEL=]HOW where it is for this model; NULL: it is for another one. */
static const char *how_for(const char *word, const weft_served_model *m) {
  return word[strcspn(word, "=:")] == '=' ? served_names_after(word, m->file_name) : word;
}

/* HOW in its parts: kind[:FILE][:K]. */
typedef struct how_parts {
  size_t n_kind;
  const char *file; /* [n_file] */
  size_t n_file;
  unsigned long n_max; /* 0: what stands there is no number, or out of range */
} how_parts;

static unsigned long read_number(const char *digits) {
  char *end = NULL;
  unsigned long n = digits[0] >= '0' && digits[0] <= '9' ? strtoul(digits, &end, 10) : 0;
  return end != NULL && *end == 0 && n <= WEFT_DRAFTS_MAX ? n : 0;
}

static how_parts split_how(const char *how) {
  how_parts p = {.n_kind = strcspn(how, ":"), .n_max = N_MAX};
  const char *rest = how[p.n_kind] == 0 ? NULL : how + p.n_kind + 1, *number = rest;
  if (rest != NULL && p.n_kind == 5 && strncmp(how, "model", 5) == 0) {
    number = strrchr(rest, ':');
    if (number != NULL && (number[1] == 0 || strspn(number + 1, "0123456789") != strlen(number + 1))) number = NULL;
    p.file = rest;
    p.n_file = number == NULL ? strlen(rest) : (size_t)(number - rest);
    if (number != NULL) number += 1;
  }
  if (number != NULL) p.n_max = read_number(number);
  return p;
}

/* off; and ngram, asked, shadow, canvas, mtp, model:FILE, each with :K or without. False: none of these, no memory. */
static bool read_how(const char *how, weft_served_model *m) {
  static const char *const kinds[] = {"off", "ngram", "asked", "shadow", "canvas", "mtp", "model"};
  enum { OFF, NGRAM, ASKED, SHADOW, CANVAS, MTP, MODEL, N_KINDS };
  how_parts p = split_how(how);
  uint32_t kind = 0;
  while (kind < N_KINDS && (strlen(kinds[kind]) != p.n_kind || strncmp(how, kinds[kind], p.n_kind) != 0)) kind++;
  bool good = kind < N_KINDS && (kind == OFF ? how[p.n_kind] == 0 : p.n_max > 0) && (kind != MODEL || p.n_file > 0);
  m->has_drafts = kind != OFF;
  m->draft_canvas = kind == CANVAS;
  m->draft_nextn = kind == MTP;
  m->draft = (weft_draft){.kind = kind == NGRAM || kind == SHADOW ? WEFT_DRAFT_NGRAM
                                  : kind >= CANVAS                ? WEFT_DRAFT_DEFAULT
                                                                  : WEFT_DRAFT_OFF,
                          .shadow = kind == SHADOW,
                          .n_max = (uint32_t)p.n_max,
                          .ngram_least = NGRAM_LEAST,
                          .ngram_most = NGRAM_MOST};
  weft_free(m->draft_file);
  m->draft_file = good && kind == MODEL ? weft_strndup(p.file, p.n_file) : NULL;
  return good && (kind != MODEL || m->draft_file != NULL);
}

weft_status drafts_open(const weft_open_options *o, weft_served_model *m, weft_error *error) {
  m->draft = (weft_draft){.kind = WEFT_DRAFT_OFF};
  m->has_drafts = false;
  for (uint32_t i = 0; i < o->n_drafts; i++) {
    const char *how = how_for(o->drafts[i], m);
    if (how == NULL) continue;
    if (!read_how(how, m))
      return weft_fail(
          error, WEFT_E_INVALID,
          "--draft %s: give off, ngram, ngram:K (K drafts of a step, 1 to %d), model:FILE[:K] for a smaller "
          "model that drafts, mtp[:K] for the layer of the model's own file that guesses ahead, canvas[:K] for a "
          "model that drafts for itself by diffusion, asked[:K] for n-grams of requests that ask, or shadow[:K] to "
          "check "
          "them; with MODEL= before it, of one model",
          o->drafts[i], WEFT_DRAFTS_MAX);
  }
  if (m->comes_and_goes && (m->draft_canvas || m->draft_nextn || m->draft_file != NULL)) {
    weft_free(m->draft_file); /* a model that comes and goes has no drafter beside it */
    m->draft_file = NULL;
    m->has_drafts = m->draft_canvas = m->draft_nextn = false;
    m->draft = (weft_draft){.kind = WEFT_DRAFT_OFF};
  }
  if (!m->has_drafts || !o->no_deterministic) return WEFT_OK;
  return weft_fail(error, WEFT_E_INVALID,
                   "--draft: drafts change no answer only where a row does not depend on the rows beside it: leave out "
                   "--no-deterministic or --draft");
}

/* ---- models that draft --------------------------------------------------------------------------- */

/* The model of the file that drafts for m; UINT32_MAX: it is not open yet. */
static uint32_t drafter_of(const weft_runtime *rt, const weft_served_model *m) {
  uint32_t i = 0;
  while (i < rt->n_models && strcmp(rt->model[i].path, m->draft_file) != 0) i++;
  return i < rt->n_models ? i : UINT32_MAX;
}

const char *drafts_next_file(const weft_runtime *rt) {
  for (uint32_t i = 0; i < rt->n_served; i++) {
    const weft_served_model *m = &rt->model[i];
    if (m->draft_file != NULL && m->assistant == NULL && drafter_of(rt, m) == UINT32_MAX) return m->draft_file;
  }
  return NULL;
}

weft_status drafts_open_assistant(weft_served_model *m, weft_error *error) {
  weft_gguf *gguf = NULL;
  if (m->draft_file == NULL) return WEFT_OK;
  weft_status status = weft_gguf_open(m->draft_file, &gguf, error);
  if (status != WEFT_OK) return status;
  if (!weft_model_is_assistant(gguf)) {
    weft_gguf_close(gguf);
    return WEFT_OK;
  }
  m->assistant = gguf;
  return WEFT_OK;
}

weft_status drafts_load_assistant(const weft_runtime *rt, weft_served_model *m, weft_model_limits of_model,
                                  weft_error *error) {
  weft_model_limits limits = {.rows_max = rt->options.running, .segments_max = rt->options.running};
  weft_gguf *gguf = m->draft_nextn ? m->gguf : m->assistant;
  weft_status status = WEFT_OK;
  if (gguf == NULL) return WEFT_OK;
  if (m->draft_nextn || weft_model_fills_blocks(gguf)) limits = of_model;
  if (m->draft_nextn) limits.canvas_rows_max = drafts_rows_max(&rt->options, m);
  for (uint32_t r = 0; r < rt->n_replicas && status == WEFT_OK; r++) {
    weft_model_copy *copy = &m->copy[r];
    limits.target = copy->model;
    status = weft_model_open(gguf, &copy->split, &limits, NULL, NULL, &copy->assistant, error);
  }
  return status == WEFT_OK ? weft_gguf_let_go(gguf, error) : status;
}

/* The first token that the two do not have in common; UINT32_MAX: they have all. */
static weft_status compare_vocabularies(const weft_tokenizer *a, const weft_tokenizer *b, uint32_t *at) {
  uint32_t n = weft_tokenizer_n_vocab(a), n_other = weft_tokenizer_n_vocab(b);
  weft_text one = {0}, other = {0};
  *at = n == n_other ? UINT32_MAX : n < n_other ? n : n_other;
  weft_status status = WEFT_OK;
  for (uint32_t i = 0; i < n && *at == UINT32_MAX && status == WEFT_OK; i++) {
    one.n = other.n = 0;
    status = weft_tokenizer_piece(a, (int32_t)i, true, &one);
    if (status == WEFT_OK) status = weft_tokenizer_piece(b, (int32_t)i, true, &other);
    if (one.n != other.n || (one.n > 0 && memcmp(one.bytes, other.bytes, one.n) != 0)) *at = i;
  }
  weft_text_free(&one);
  weft_text_free(&other);
  return status;
}

static weft_status refuse_vocabulary(const weft_served_model *m, uint32_t n, uint32_t at, weft_error *error) {
  return weft_fail(
      error, WEFT_E_INVALID,
      "--draft model:%s: it has %u tokens and %s has %u, and token %u is not the same: a model that drafts "
      "has the same vocabulary; write MODEL=model:FILE where only one of several models has it",
      m->draft_file, n, m->name, weft_tokenizer_n_vocab(m->tokenizer), at);
}

/* Where its file has a vocabulary. How many tokens it has was compared when it was opened. */
static weft_status check_assistant(const weft_served_model *m, weft_error *error) {
  weft_tokenizer *own = NULL;
  uint32_t at = UINT32_MAX;
  if (weft_gguf_count(m->assistant, "tokenizer.ggml.tokens") == 0) return WEFT_OK;
  weft_status status = weft_tokenizer_open(m->assistant, &own, error);
  if (status != WEFT_OK) return status;
  uint32_t n = weft_tokenizer_n_vocab(own);
  status = compare_vocabularies(m->tokenizer, own, &at);
  weft_tokenizer_close(own);
  if (status != WEFT_OK) return weft_fail(error, status, "no memory to compare the vocabularies of --draft");
  return at == UINT32_MAX ? WEFT_OK : refuse_vocabulary(m, n, at, error);
}

static weft_status check_drafter(const weft_runtime *rt, const weft_served_model *m, weft_error *error) {
  const weft_model_info *info = weft_model_get_info(m->model);
  uint32_t at = UINT32_MAX;
  if (m->draft_canvas && info->canvas_length == 0)
    return weft_fail(error, WEFT_E_INVALID,
                     "--draft canvas: %s has no canvas: give ngram, or model:FILE for a model that drafts", m->name);
  if (m->draft_file == NULL) return WEFT_OK;
  if (m->assistant != NULL) return check_assistant(m, error);
  const weft_served_model *drafter = &rt->model[drafter_of(rt, m)];
  weft_status status = compare_vocabularies(m->tokenizer, drafter->tokenizer, &at);
  if (status != WEFT_OK) return weft_fail(error, status, "no memory to compare the vocabularies of --draft");
  if (drafter == m)
    return weft_fail(error, WEFT_E_INVALID, "--draft model:%s: it would draft for itself", m->draft_file);
  if (at == UINT32_MAX) return WEFT_OK;
  return refuse_vocabulary(m, weft_tokenizer_n_vocab(drafter->tokenizer), at, error);
}

/* Who drafts is the model itself, by diffusion, or another one, by diffusion where it can. */
static model_drafter_lane lane_of(const weft_runtime *rt, uint32_t i) {
  const weft_served_model *m = &rt->model[i];
  const bool another = m->draft_file != NULL && m->assistant == NULL;
  model_drafter_lane lane = {.drafts = m->draft_canvas || another, .model = another ? drafter_of(rt, m) : i};
  const weft_served_model *by = &rt->model[lane.model];
  if (!lane.drafts || weft_model_get_info(by->model)->canvas_length == 0) return lane;
  lane.canvas = by->entropy_bound;
  lane.canvas.max_steps = CANVAS_STEPS;
  return lane;
}

weft_status drafts_start(weft_runtime *rt, weft_error *error) {
  model_drafter_lane lane[WEFT_MODELS_MAX] = {{0}};
  bool any = false;
  uint32_t context = 0;
  for (uint32_t i = 0; i < rt->n_served; i++) {
    lane[i] = lane_of(rt, i);
    any = any || lane[i].drafts;
    if (rt->model[i].context > context) context = rt->model[i].context;
  }
  for (uint32_t r = 0; r < rt->n_replicas && any; r++) {
    weft_engine *engine = weft_replicas_at(rt->replicas, r);
    weft_status status =
        model_drafter_open(engine, lane, rt->n_models, rt->options.running, context, &rt->drafter[r], error);
    if (status != WEFT_OK) return status;
    weft_engine_set_drafter(engine, model_drafter_calls(rt->drafter[r]), false);
  }
  return WEFT_OK;
}

void drafts_force(weft_runtime *rt) {
  for (uint32_t r = 0; r < rt->n_replicas; r++) {
    const model_drafter *own = rt->drafter[r];
    weft_engine_set_drafter(weft_replicas_at(rt->replicas, r), own == NULL ? NULL : model_drafter_calls(own), true);
  }
}

/* ---- checks, and what a request gets --------------------------------------------------------------- */

weft_status drafts_check(const weft_runtime *rt, weft_error *error) {
  for (uint32_t i = 0; i < rt->options.n_drafts; i++) {
    const char *word = rt->options.drafts[i];
    bool known = false;
    for (uint32_t k = 0; k < rt->n_served && !known; k++) known = how_for(word, &rt->model[k]) != NULL;
    if (known) continue;
    return weft_fail(error, WEFT_E_INVALID, "--draft: no model's file is named '%.*s'", (int)strcspn(word, "="), word);
  }
  weft_status status = WEFT_OK;
  for (uint32_t i = 0; i < rt->n_served && status == WEFT_OK; i++) status = check_drafter(rt, &rt->model[i], error);
  return status;
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
  bool of_a_model = m->draft.kind == WEFT_DRAFT_DEFAULT, of_ngrams = d->ngram_least + d->ngram_most > 0;
  if (d->kind == WEFT_DRAFT_DEFAULT || (of_a_model && !of_ngrams)) d->kind = m->draft.kind;
  d->shadow = m->draft.shadow;
  if (d->n_max == 0 || d->n_max > m->draft.n_max) d->n_max = m->draft.n_max;
  if (d->ngram_most == 0) d->ngram_most = d->ngram_least > NGRAM_MOST ? d->ngram_least : NGRAM_MOST;
  if (d->ngram_least == 0) d->ngram_least = d->ngram_most < NGRAM_LEAST ? d->ngram_most : NGRAM_LEAST;
}

static void print_assistant(const weft_served_model *m, weft_text *out) {
  const weft_model_info *info = weft_model_get_info(m->copy[0].assistant);
  const double mib = 1024.0 * 1024.0;
  char name[512];
  (void)weft_utf8_clean(info->name, name, sizeof name);
  const char *does = m->draft_nextn                          ? "guesses ahead"
                     : weft_model_fills_blocks(m->assistant) ? "fills blocks"
                                                             : "reads the model's keys";
  weft_text_printf(out, "by %s, which %s: weights %.1f MiB, activations %.1f MiB\n",
                   m->draft_nextn ? "a layer of the file" : name, does, (double)info->weight_bytes / mib,
                   (double)info->scratch_bytes / mib);
}

static void print_model(const weft_runtime *rt, uint32_t i, weft_text *out) {
  const model_drafter_lane lane = lane_of(rt, i);
  weft_text_printf(out, "by %s%s", lane.model == i ? "" : rt->model[lane.model].name,
                   lane.model == i || lane.canvas.max_steps == 0 ? "" : ", ");
  if (lane.canvas.max_steps > 0) weft_text_printf(out, "a canvas of %d steps", CANVAS_STEPS);
  weft_text_printf(out, "\n");
}

void drafts_print(const weft_runtime *rt, const weft_served_model *m, weft_text *out) {
  if (!m->has_drafts) return;
  weft_text_printf(out, "  drafts   at most %u of a step, ", m->draft.n_max);
  if (m->copy[0].assistant != NULL)
    print_assistant(m, out);
  else if (m->draft_file != NULL || m->draft_canvas)
    print_model(rt, (uint32_t)(m - rt->model), out);
  else
    weft_text_printf(out, "%s%s\n",
                     m->draft.kind == WEFT_DRAFT_NGRAM ? "from each request's own n-grams" : "for requests that ask",
                     m->draft.shadow ? ", only to be compared" : "");
}
