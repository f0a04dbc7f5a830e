/* SPDX-License-Identifier: MIT */
/* The answer that the fake model gives to one request alone, computed in the plainest way: no
 * pages, no batches, no schedule; one array of cells per layer group. What the engine gives must be
 * equal. */
#ifndef WEFT_TESTS_FAKE_SOLO_H
#define WEFT_TESTS_FAKE_SOLO_H

#include <stdlib.h>
#include <string.h>

#include "scheduler/engine.h"
#include "bench/doubles/fake_model.h"

typedef struct solo_answer {
  weft_finish finish;
  uint32_t n, n_canvases, n_steps;
  int32_t *tokens; /* free it */
} solo_answer;

typedef struct solo_state {
  const weft_fake_model *model;
  uint64_t *cell[WEFT_GROUPS_MAX]; /* by position */
  weft_fake_sums seen;             /* by the row at n */
  uint32_t n;                      /* positions computed */
} solo_state;

static inline void solo_row(solo_state *s, int32_t token, weft_fake_sums *with_row) {
  weft_fake_sums before = s->seen;
  uint32_t p = s->n++;
  for (uint32_t g = 0; g < s->model->n_groups; g++) {
    if (s->model->group[g].state_pages != 0) continue;
    s->cell[g][p] = weft_fake_cell(s->model, g, token, p, &before);
    s->seen.group[g] += s->cell[g][p];
  }
  *with_row = s->seen;
  for (uint32_t g = 0; g < s->model->n_groups; g++) { /* what the row at p + 1 sees no more; of states, what it sees */
    const weft_layer_group *group = &s->model->group[g];
    if (group->state_pages != 0) {
      if ((p + 1) % group->block_tokens == 0) s->seen.group[g] = weft_fake_state(s->model, g, p + 1, with_row);
      continue;
    }
    uint32_t now = weft_fake_first_visible(group, p);
    uint32_t next = weft_fake_first_visible(group, p + 1);
    for (uint32_t i = now; i < next; i++) s->seen.group[g] -= s->cell[g][i];
  }
}

static inline bool solo_is_stop(const weft_request_params *p, int32_t token) {
  for (uint32_t i = 0; i < p->n_stop_tokens; i++)
    if (p->stop_tokens[i] == token) return true;
  return false;
}

/* The stop rule on the answer so far; true when it stops. */
static inline bool solo_rule(const weft_request_params *p, solo_answer *a, uint32_t n_before) {
  if (p->stop_rule == NULL || a->n == n_before) return false;
  uint32_t keep = p->stop_rule(p->stop_self, a->tokens, a->n);
  if (keep >= a->n && keep != WEFT_STOP_KEEP_ALL) return false;
  if (keep < a->n) a->n = keep > n_before ? keep : n_before;
  a->finish = WEFT_FINISH_STOP;
  return true;
}

static inline void solo_tokens(solo_state *s, const weft_request_params *p, weft_fake_sums *last, uint32_t answer_max,
                               solo_answer *a) {
  while (a->finish == WEFT_FINISH_NONE) {
    if (weft_fake_is_bad(s->model, last)) {
      a->finish = WEFT_FINISH_ERROR;
      return;
    }
    weft_sampled sampled = weft_fake_token(s->model, last, s->n, p->asked.sampling.seed, p->asked.sampling.choice);
    if (solo_is_stop(p, sampled.token)) {
      a->finish = WEFT_FINISH_STOP;
      return;
    }
    a->tokens[a->n++] = sampled.token;
    bool full = a->n == answer_max;
    if (solo_rule(p, a, a->n - 1)) return;
    if (full)
      a->finish = WEFT_FINISH_LENGTH;
    else
      solo_row(s, sampled.token, last);
  }
}

static inline void solo_cut(const weft_request_params *p, const int32_t *canvas, uint32_t n_canvas, uint32_t answer_max,
                            solo_answer *a) {
  uint32_t before = a->n;
  for (uint32_t i = 0; i < n_canvas && a->finish == WEFT_FINISH_NONE; i++) {
    if (solo_is_stop(p, canvas[i])) {
      a->finish = WEFT_FINISH_STOP;
    } else {
      a->tokens[a->n++] = canvas[i];
      if (a->n == answer_max) a->finish = WEFT_FINISH_LENGTH;
    }
  }
  (void)solo_rule(p, a, before);
}

static inline void solo_canvases(solo_state *s, const weft_request_params *p, uint32_t answer_max, solo_answer *a) {
  uint32_t n_canvas = s->model->n_canvas;
  void *memory = calloc(1, weft_fake_canvas_bytes(n_canvas) + 16);
  weft_fake_canvas canvas;
  weft_fake_canvas_open(&canvas, memory, n_canvas);
  while (a->finish == WEFT_FINISH_NONE) {
    canvas.done = false;
    for (uint32_t step = 0; !canvas.done; step++) {
      if (weft_fake_is_bad(s->model, &s->seen)) {
        a->finish = WEFT_FINISH_ERROR;
        break;
      }
      weft_fake_canvas_step(s->model, &canvas, &s->seen, s->n, &p->asked.sampling, &p->asked.entropy_bound, step);
      a->n_steps += 1;
    }
    if (a->finish != WEFT_FINISH_NONE) break;
    a->n_canvases += 1;
    solo_cut(p, canvas.host.argmax, n_canvas, answer_max, a);
    weft_fake_sums unused;
    if (a->finish == WEFT_FINISH_NONE)
      for (uint32_t i = 0; i < n_canvas; i++) solo_row(s, canvas.host.argmax[i], &unused);
  }
  free(memory);
}

/* context: the smaller of the model's context and the engine's longest request. */
static inline solo_answer solo_run(const weft_fake_model *model, const weft_request_params *p, uint32_t context) {
  solo_state s = {.model = model};
  solo_answer a = {.finish = WEFT_FINISH_NONE};
  uint32_t room = context - p->n_tokens;
  if (p->canvas) room -= room % model->n_canvas;
  uint32_t answer_max = p->max_tokens < room ? p->max_tokens : room;
  a.tokens = calloc((size_t)answer_max + model->n_canvas + 1, sizeof *a.tokens);
  for (uint32_t g = 0; g < model->n_groups; g++)
    s.cell[g] = calloc((size_t)context + model->n_canvas + 1, sizeof **s.cell);
  weft_fake_sums last = {{0}};
  for (uint32_t i = 0; i < p->n_tokens; i++) solo_row(&s, p->tokens[i], &last);
  if (p->canvas)
    solo_canvases(&s, p, answer_max, &a);
  else
    solo_tokens(&s, p, &last, answer_max, &a);
  for (uint32_t g = 0; g < model->n_groups; g++) free(s.cell[g]);
  return a;
}

#endif
