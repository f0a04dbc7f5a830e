/* SPDX-License-Identifier: MIT */
#include "model/stages.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "model/logits.h"

/* What the first pass gave at one stage of one layer. */
typedef struct kept_stage {
  float *x; /* [n_tokens][n_cols] */
  uint64_t n_cols;
} kept_stage;

struct weft_stages {
  int32_t *tokens;
  uint32_t n_tokens, n_passes;
  uint32_t n_lines, room;
  weft_stages_line *line; /* [room] */
  kept_stage *kept;       /* [room], of each line */
  float *x;               /* a stage of a step of the second pass, [room_x] */
  uint64_t room_x;
  /* Of the pass. */
  uint32_t first, n_layers; /* first: the token of the step's first row */
  weft_status status;
  weft_error *error;
};

const char *weft_stage_name(weft_stage stage) {
  static const char *const names[WEFT_STAGES] = {"input", "query", "attention", "ffn", "experts", "layer", "head"};
  return names[stage];
}

void weft_stages_close(weft_stages *s) {
  if (s == NULL) return;
  for (uint32_t i = 0; i < s->n_lines; i++) weft_free(s->kept[i].x);
  weft_free(s->kept);
  weft_free(s->line);
  weft_free(s->tokens);
  weft_free(s->x);
  weft_free(s);
}

weft_status weft_stages_open(const int32_t *tokens, uint32_t n_tokens, weft_stages **out, weft_error *error) {
  weft_stages *s = *out = weft_alloc(1, sizeof *s);
  if (s != NULL) s->tokens = weft_alloc(n_tokens > 0 ? n_tokens : 1, sizeof *s->tokens);
  if (s == NULL || s->tokens == NULL) {
    weft_stages_close(s);
    *out = NULL;
    return weft_fail(error, WEFT_E_NO_MEMORY, "no memory");
  }
  memcpy(s->tokens, tokens, n_tokens * sizeof *tokens);
  s->n_tokens = n_tokens;
  return WEFT_OK;
}

/* ---- rows ---- */

static weft_stages_line *find_line(weft_stages *s, uint32_t layer, weft_stage stage) {
  for (uint32_t i = 0; i < s->n_lines; i++)
    if (s->line[i].layer == layer && s->line[i].stage == stage) return &s->line[i];
  return NULL;
}

static weft_stages_line *add_line(weft_stages *s, uint32_t layer, weft_stage stage, uint64_t n_cols) {
  float *x = s->n_lines < s->room ? weft_alloc((uint64_t)s->n_tokens * n_cols, sizeof *x) : NULL;
  if (x == NULL) {
    s->status = weft_fail(s->error, WEFT_E_NO_MEMORY, "no memory for what a stage gives");
    return NULL;
  }
  s->kept[s->n_lines] = (kept_stage){.x = x, .n_cols = n_cols};
  s->line[s->n_lines] = (weft_stages_line){.layer = layer, .stage = stage};
  return &s->line[s->n_lines++];
}

static void compare_row(weft_stages_line *line, const float *was, const float *now, uint64_t n, uint32_t row) {
  double worst = 0, squares = 0;
  line->n_rows += 1;
  if (memcmp(was, now, n * sizeof *was) == 0) return;
  line->n_differ += 1;
  for (uint64_t i = 0; i < n; i++) {
    double off = fabs((double)was[i] - (double)now[i]);
    squares += (double)was[i] * (double)was[i];
    if (!(off <= worst)) worst = isfinite(off) ? off : (double)INFINITY;
  }
  double error = squares > 0 && isfinite(squares) ? worst / sqrt(squares / (double)n) : (double)INFINITY;
  if (worst > 0 && error <= line->error) return;
  if (worst > 0) line->error = error; /* else zeros of two signs */
  line->row = row;
}

/* Rows of the host, of tokens first, first + 1 .. */
static void take_rows(weft_stages *s, weft_stages_line *line, const float *x, uint32_t first, uint32_t n_rows) {
  const kept_stage *kept = &s->kept[line - s->line];
  for (uint32_t i = 0; i < n_rows; i++) {
    float *was = kept->x + (uint64_t)(first + i) * kept->n_cols;
    const float *now = x + (uint64_t)i * kept->n_cols;
    if (s->n_passes == 0) memcpy(was, now, kept->n_cols * sizeof *was);
    if (s->n_passes > 0) compare_row(line, was, now, kept->n_cols, first + i);
  }
}

static weft_stages_line *line_for(weft_stages *s, uint32_t layer, weft_stage stage, uint64_t n_cols) {
  weft_stages_line *line = find_line(s, layer, stage);
  if (line == NULL && s->n_passes == 0) return add_line(s, layer, stage, n_cols);
  if (line != NULL && s->kept[line - s->line].n_cols == n_cols) return line;
  s->status = weft_fail(s->error, WEFT_E_INVALID,
                        "layer %" PRIu32
                        ", %s: the two have other stages or other widths there, so they cannot be "
                        "compared",
                        layer, weft_stage_name(stage));
  return NULL;
}

static bool has_room(weft_stages *s, uint64_t n) {
  if (n <= s->room_x) return true;
  weft_free(s->x);
  s->x = weft_alloc(n, sizeof *s->x);
  s->room_x = s->x == NULL ? 0 : n;
  if (s->x == NULL) s->status = weft_fail(s->error, WEFT_E_NO_MEMORY, "no memory for what a stage gives");
  return s->x != NULL;
}

static void take_tapped(void *self, const weft_tapped *t) {
  weft_stages *s = self;
  uint64_t n = (uint64_t)t->n_rows * t->n_cols;
  if (s->status != WEFT_OK || !has_room(s, n)) return;
  weft_stages_line *line = line_for(s, t->layer, t->stage, t->n_cols);
  if (line == NULL) return;
  s->status = weft_device_download(t->device, s->x, t->x, n * sizeof *s->x);
  if (s->status == WEFT_OK) {
    take_rows(s, line, s->x, s->first, t->n_rows);
  } else {
    (void)weft_fail(s->error, s->status, "what a stage gave could not be read: %s", weft_status_text(s->status));
  }
}

/* The logits of a step come behind its last layer. */
static int take_logits(void *self, const weft_logits_row *row, uint32_t n_rows, const float *logits, uint32_t n_vocab) {
  weft_stages *s = self;
  weft_stages_line *line = s->status == WEFT_OK ? line_for(s, s->n_layers, WEFT_STAGE_HEAD, n_vocab) : NULL;
  if (line == NULL) return 1;
  take_rows(s, line, logits, row->row, n_rows);
  s->first = row->row + n_rows;
  return 0;
}

/* ---- a pass ---- */

static weft_status take_memory(weft_stages *s, uint32_t n_layers, weft_error *error) {
  if (s->n_passes > 0) return WEFT_OK;
  s->room = n_layers * WEFT_STAGES + 1;
  s->line = weft_alloc(s->room, sizeof *s->line);
  s->kept = weft_alloc(s->room, sizeof *s->kept);
  return s->line != NULL && s->kept != NULL ? WEFT_OK : weft_fail(error, WEFT_E_NO_MEMORY, "no memory");
}

static weft_status compute_pass(weft_stages *s, weft_model *model, const weft_model_limits *limits, weft_error *error) {
  const weft_logits_config config = {.model = model,
                                     .limits = *limits,
                                     .tokens_max = s->n_tokens,
                                     .sequences_max = 1,
                                     .head_rows = limits->rows_max < s->n_tokens ? limits->rows_max : s->n_tokens,
                                     .tap = take_tapped,
                                     .tap_self = s};
  const weft_logits_sequence sequence = {.tokens = s->tokens, .n_tokens = s->n_tokens};
  weft_logits *logits = NULL;
  weft_error own = {{0}};
  s->error = error;
  s->first = 0;
  s->n_layers = weft_model_get_info(model)->n_layers;
  weft_status status = weft_logits_open(&config, &logits, error);
  if (status == WEFT_OK) status = weft_logits_run(logits, &sequence, 1, take_logits, s, &own);
  weft_logits_close(logits);
  if (s->status != WEFT_OK) return s->status;
  return status == WEFT_OK || own.text[0] == 0 ? status : weft_fail(error, status, "%s", own.text);
}

weft_status weft_stages_pass(weft_stages *s, weft_model *model, const weft_model_limits *limits, weft_error *error) {
  const weft_model_info *info = weft_model_get_info(model);
  if (weft_model_get_split(model)->n_shards > 1)
    return weft_fail(error, WEFT_E_UNSUPPORTED,
                     "%s lies in shards, and no stage is whole on one of them: --split layer", info->name);
  weft_status status = take_memory(s, info->n_layers, error);
  if (status == WEFT_OK) status = compute_pass(s, model, limits, error);
  if (status == WEFT_OK) s->n_passes += 1;
  return status;
}

/* ---- what came of it ---- */

const weft_stages_line *weft_stages_lines(const weft_stages *s, uint32_t *n) {
  *n = s->n_passes > 1 ? s->n_lines : 0;
  return s->line;
}

const weft_stages_line *weft_stages_first(const weft_stages *s, double tolerance) {
  uint32_t n;
  const weft_stages_line *line = weft_stages_lines(s, &n);
  for (uint32_t i = 0; i < n; i++) {
    if (tolerance > 0 ? line[i].error > tolerance : line[i].n_differ > 0) return &line[i];
  }
  return NULL;
}
