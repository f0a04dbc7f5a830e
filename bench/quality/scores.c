/* SPDX-License-Identifier: MIT */
#include "bench/quality/scores.h"

#include "bench/quality/noise.h"

enum { HEAD_ROWS = 64 };

typedef struct scores_run {
  const weft_scores_args *args;
  weft_scores *out;
  weft_logits *logits;
  weft_thread_pool *pool;
  uint32_t n_vocab, canvas;      /* canvas 0: token by token */
  uint32_t n_prompt, first;      /* tokens that go through the causal pass; the first scored one */
  uint32_t n_at_once, n_of_call; /* windows of a call of the model: at most, now */
  weft_logits_sequence *sequence;
  int32_t *window, *noisy; /* [n_at_once][context], [n_at_once][n_levels][canvas] */
  uint8_t *noised;
  /* of the rows that came out of the head together */
  const float *row_logits;
  const weft_logits_row *row;
  weft_score score[HEAD_ROWS];
  double divergence[HEAD_ROWS];
  uint8_t *saved; /* [HEAD_ROWS] short forms: to be saved, or of the other model */
  uint64_t saved_bytes;
  weft_status status; /* why rows were not taken, in `why`: the pass over the model has a line of its own for that */
  weft_error why, *error;
} scores_run;

uint32_t weft_scores_per_window(const weft_windows_config *windows, const float *level, uint32_t n_levels,
                                uint32_t canvas) {
  uint32_t n = n_levels == 0 ? windows->context - weft_windows_first(windows) : 0;
  for (uint32_t i = 0; i < n_levels; i++) n += weft_noise_count(level[i], canvas);
  return n;
}

/* ---- rows ---- */

static int32_t token_of(const scores_run *m, const weft_logits_row *row) {
  const int32_t *window = m->window + (uint64_t)row->sequence * m->args->windows->config.context;
  return m->canvas == 0 ? window[row->row + 1] : window[m->n_prompt + (row->row - m->n_prompt) % m->canvas];
}

static weft_saved_row *saved_row(const scores_run *m, uint32_t i) {
  return (weft_saved_row *)(void *)(m->saved + i * m->saved_bytes);
}

static void measure_row(void *self, uint32_t i, uint32_t thread) {
  scores_run *m = self;
  const float *logits = m->row_logits + (uint64_t)i * m->n_vocab;
  weft_score *score = &m->score[i];
  (void)thread;
  *score = weft_score_row(logits, m->n_vocab, (uint32_t)token_of(m, &m->row[i]));
  score->bad |= m->row[i].bad;
  if (score->bad) return;
  if (m->args->save != NULL) weft_shorten_row(logits, m->n_vocab, score, saved_row(m, i));
  if (m->args->against != NULL) m->divergence[i] = weft_divergence(saved_row(m, i), logits, m->n_vocab, score);
}

static weft_status take_score(scores_run *m, uint32_t i) {
  const weft_logits_row *row = &m->row[i];
  if (m->score[i].bad) {
    return weft_fail(&m->why, WEFT_E_FORMAT,
                     "a logit after %u tokens of a window is not finite: `weft check` names the op that is wrong",
                     row->row + 1);
  }
  weft_series *s = &m->out->series[m->canvas == 0 ? 0 : (row->row - m->n_prompt) / m->canvas];
  s->nll[s->n] = m->score[i].nll;
  if (m->args->against != NULL) {
    s->saved_nll[s->n] = saved_row(m, i)->nll;
    s->divergence[s->n] = (float)m->divergence[i];
    s->n_same_top += saved_row(m, i)->top == m->score[i].top;
  }
  s->n += 1;
  return m->args->save == NULL ? WEFT_OK : weft_saved_write(m->args->save, saved_row(m, i), &m->why);
}

static int take_rows(void *self, const weft_logits_row *row, uint32_t n, const float *logits, uint32_t n_vocab) {
  scores_run *m = self;
  (void)n_vocab;
  m->row = row;
  m->row_logits = logits;
  for (uint32_t i = 0; i < n && m->args->against != NULL && m->status == WEFT_OK; i++) {
    m->status = weft_saved_read(m->args->against, saved_row(m, i), &m->why);
  }
  if (m->status == WEFT_OK) weft_thread_pool_run(m->pool, measure_row, m, n);
  for (uint32_t i = 0; i < n && m->status == WEFT_OK; i++) m->status = take_score(m, i);
  return m->status == WEFT_OK ? 0 : 1;
}

/* ---- windows ---- */

static void fill_window(scores_run *m, uint32_t i, uint32_t window) {
  const weft_scores_args *a = m->args;
  uint32_t context = a->windows->config.context, n_noisy = a->n_levels * m->canvas;
  int32_t *tokens = m->window + (uint64_t)i * context, *noisy = m->noisy + (uint64_t)i * n_noisy;
  uint8_t *noised = m->noised + (uint64_t)i * n_noisy;
  weft_windows_get(a->windows, window, tokens);
  for (uint32_t l = 0; l < a->n_levels; l++) {
    weft_noise_add(tokens + m->n_prompt, m->canvas, weft_windows_at(a->windows, window) + m->n_prompt, a->level[l],
                   a->seed, m->n_vocab, noisy + l * m->canvas, noised + l * m->canvas);
  }
  m->sequence[i] = (weft_logits_sequence){.tokens = tokens,
                                          .n_tokens = m->n_prompt,
                                          .first = m->first - (m->canvas == 0),
                                          .canvas = noisy,
                                          .n_canvases = a->n_levels,
                                          .wanted = noised};
}

static weft_status run_windows(scores_run *m) {
  const weft_scores_args *a = m->args;
  const weft_series *last = &m->out->series[m->out->n_series - 1];
  weft_status status = WEFT_OK;
  double sum = 0.0;
  for (uint32_t at = 0, n; at < a->windows->n && status == WEFT_OK; at += n) {
    uint64_t before = last->n;
    n = a->windows->n - at < m->n_at_once ? a->windows->n - at : m->n_at_once;
    for (uint32_t i = 0; i < n; i++) fill_window(m, i, at + i);
    status = weft_logits_run(m->logits, m->sequence, n, take_rows, m, m->error);
    if (m->status != WEFT_OK) status = weft_fail(m->error, m->status, "%s", m->why.text);
    for (uint64_t i = before; i < last->n; i++) sum += (double)last->nll[i];
    if (status == WEFT_OK && a->progress != NULL) a->progress(a->progress_self, at + n, sum / (double)last->n);
  }
  return status;
}

/* ---- memory ---- */

static weft_status open_series(scores_run *m) {
  const weft_scores_args *a = m->args;
  m->out->n_series = a->n_levels > 0 ? a->n_levels : 1;
  for (uint32_t i = 0; i < m->out->n_series; i++) {
    weft_series *s = &m->out->series[i];
    s->n_windows = a->windows->n;
    s->per_window = a->n_levels > 0 ? weft_noise_count(a->level[i], m->canvas)
                                    : weft_scores_per_window(&a->windows->config, NULL, 0, 0);
    uint64_t n = (uint64_t)s->n_windows * s->per_window;
    s->nll = weft_alloc(n, sizeof *s->nll);
    if (a->against != NULL) s->saved_nll = weft_alloc(n, sizeof *s->saved_nll);
    if (a->against != NULL) s->divergence = weft_alloc(n, sizeof *s->divergence);
    if (s->nll == NULL || (a->against != NULL && (s->saved_nll == NULL || s->divergence == NULL))) {
      return weft_fail(m->error, WEFT_E_NO_MEMORY, "no memory for the numbers of %llu tokens", (unsigned long long)n);
    }
  }
  return WEFT_OK;
}

/* As many windows as fill the rows of a step, by tokens or by canvases. */
static uint32_t count_at_once(const scores_run *m) {
  uint32_t rows = m->n_prompt, n = m->args->windows->n;
  if (m->args->n_levels * m->canvas > rows) rows = m->args->n_levels * m->canvas;
  uint32_t most = m->args->limits.rows_max / rows;
  return most < 1 ? 1 : most < n ? most : n;
}

static weft_status open_memory(scores_run *m) {
  const weft_scores_args *a = m->args;
  uint64_t n = m->n_at_once, n_noisy = n * a->n_levels * m->canvas;
  m->saved_bytes = weft_saved_row_bytes(m->n_vocab);
  m->sequence = weft_alloc(n, sizeof *m->sequence);
  m->window = weft_alloc(n * a->windows->config.context, sizeof *m->window);
  m->noisy = weft_alloc(n_noisy, sizeof *m->noisy);
  m->noised = weft_alloc(n_noisy, 1);
  m->saved = weft_alloc(a->save != NULL || a->against != NULL ? HEAD_ROWS : 0, m->saved_bytes);
  if (m->sequence == NULL || m->window == NULL || m->noisy == NULL || m->noised == NULL || m->saved == NULL) {
    return weft_fail(m->error, WEFT_E_NO_MEMORY, "no memory for %llu windows", (unsigned long long)n);
  }
  return weft_thread_pool_open(a->n_threads, &m->pool, m->error);
}

static void close_memory(scores_run *m) {
  weft_logits_close(m->logits);
  if (m->pool != NULL) weft_thread_pool_close(m->pool);
  weft_free(m->sequence);
  weft_free(m->window);
  weft_free(m->noisy);
  weft_free(m->noised);
  weft_free(m->saved);
}

weft_status weft_scores_run(const weft_scores_args *args, weft_scores *out, weft_error *error) {
  const weft_model_info *info = weft_model_get_info(args->model);
  scores_run m = {.args = args, .out = out, .n_vocab = info->n_vocab, .error = error};
  uint32_t context = args->windows->config.context;
  *out = (weft_scores){.n_series = 0};
  m.canvas = args->n_levels > 0 ? info->canvas_length : 0;
  if (args->n_levels > 0 && (m.canvas == 0 || m.canvas >= context)) {
    return weft_fail(error, WEFT_E_INVALID, "a window of %u tokens has no room for a canvas of %u", context, m.canvas);
  }
  /* The last token of a window is only looked for: it is not computed. */
  m.n_prompt = m.canvas > 0 ? context - m.canvas : context - 1;
  m.first = m.canvas > 0 ? m.n_prompt : weft_windows_first(&args->windows->config);
  m.n_at_once = count_at_once(&m);
  weft_logits_config config = {.model = args->model,
                               .limits = args->limits,
                               .tokens_max = m.n_prompt,
                               .sequences_max = m.n_at_once,
                               .head_rows = HEAD_ROWS};
  weft_status status = open_series(&m);
  if (status == WEFT_OK) status = open_memory(&m);
  if (status == WEFT_OK) status = weft_logits_open(&config, &m.logits, error);
  if (status == WEFT_OK) status = run_windows(&m);
  close_memory(&m);
  if (status != WEFT_OK) weft_scores_free(out);
  return status;
}

void weft_scores_free(weft_scores *scores) {
  for (uint32_t i = 0; i < scores->n_series; i++) {
    weft_free(scores->series[i].nll);
    weft_free(scores->series[i].saved_nll);
    weft_free(scores->series[i].divergence);
  }
  scores->n_series = 0;
}
