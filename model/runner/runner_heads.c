/* SPDX-License-Identifier: MIT */
#include "model/runner/runner_heads.h"

#include <math.h>

#include "base/memory.h"
#include "base/random.h"
#include "model/runner/runner_ways.h"

/* Rows [first, first + n) of draft k, of n_all. */
typedef struct heads_call {
  device_runner *r;
  runner_assist *a;
  uint32_t first, n, k, n_all;
} heads_call;

bool runner_heads_apply(const runner_assist *a) {
  const model_draft_sizes *draft = &a->model->hyper.draft;
  return draft->n_groups > 0 || draft->rank > 0;
}

/* ---- what the ops are given ---- */

static weft_route_args route_of(const heads_call *c) {
  const runner_assist *a = c->a;
  const model_draft_sizes *draft = &a->model->hyper.draft;
  return (weft_route_args){.x = a->hidden + (uint64_t)c->first * a->n_hidden,
                           .router = &a->model->globals.draft.centroids,
                           .logits = a->logits.part,
                           .ids = a->logits.groups,
                           .weights = a->logits.between,
                           .n_rows = c->n,
                           .n_experts = draft->n_groups,
                           .k = draft->n_chosen,
                           .x_stride = a->n_hidden,
                           .logits_stride = draft->n_groups,
                           .scratch = a->logits.scratch,
                           .scratch_bytes = a->logits.scratch_bytes};
}

static weft_head_groups_args groups_of(const heads_call *c) {
  const runner_assist *a = c->a;
  const model_draft_sizes *draft = &a->model->hyper.draft;
  return (weft_head_groups_args){.h = a->hidden + (uint64_t)c->first * a->n_hidden,
                                 .weight = a->head,
                                 .tokens = a->model->globals.draft.tokens,
                                 .ids = a->logits.groups,
                                 .logits = a->logits.row,
                                 .n_rows = c->n,
                                 .n_groups = draft->n_groups,
                                 .size = a->head->n_out / draft->n_groups,
                                 .k = draft->n_chosen,
                                 .h_stride = a->n_hidden,
                                 .logits_stride = a->head->n_out,
                                 .scratch = a->logits.scratch,
                                 .scratch_bytes = a->logits.scratch_bytes};
}

static weft_head_rows_args rows_of(const heads_call *c) {
  const runner_assist *a = c->a;
  return (weft_head_rows_args){.h = a->hidden + (uint64_t)c->first * a->n_hidden,
                               .weight = a->head,
                               .logits = a->logits.row,
                               .bad = a->logits.bad,
                               .n_rows = c->n,
                               .h_stride = a->n_hidden,
                               .logits_stride = a->head->n_out,
                               .cap = a->model->hyper.cap,
                               .scratch = a->logits.scratch,
                               .scratch_bytes = a->logits.scratch_bytes};
}

static weft_matmul_args pairs_of(const heads_call *c) {
  const runner_assist *a = c->a;
  return (weft_matmul_args){.x = a->logits.between,
                            .n_rows = c->n,
                            .n_weights = 1,
                            .weight = {&a->model->globals.draft.follows},
                            .y = {a->logits.part},
                            .x_stride = a->model->hyper.draft.rank,
                            .y_stride = {a->head->n_out},
                            .scratch = a->logits.scratch,
                            .scratch_bytes = a->logits.scratch_bytes};
}

static weft_sample_args sample_of(const heads_call *c) {
  const runner_assist *a = c->a;
  return (weft_sample_args){.logits = a->logits.row,
                            .bad = a->logits.bad,
                            .row = a->logits.asked + (uint64_t)c->k * c->n_all + c->first,
                            .cells = a->token,
                            .allowed = c->r->allowed,
                            .out = a->logits.result,
                            .n_rows = c->n,
                            .n_vocab = a->head->n_out,
                            .logits_stride = a->head->n_out,
                            .scratch = a->logits.scratch,
                            .scratch_bytes = a->logits.scratch_bytes};
}

/* ---- open ---- */

static void raise_to(uint64_t *most, uint64_t n) {
  if (n > *most) *most = n;
}

static uint64_t count_scratch(device_runner *r, runner_assist *a, uint32_t n) {
  const heads_call c = {.r = r, .a = a, .n = n, .n_all = n};
  const weft_sample_args sample = sample_of(&c);
  uint64_t most = weft_sample_scratch(r->first, &sample);
  if (a->model->hyper.draft.n_groups > 0) {
    const weft_route_args route = route_of(&c);
    const weft_head_groups_args groups = groups_of(&c);
    raise_to(&most, weft_route_scratch(r->first, &route));
    raise_to(&most, weft_head_groups_scratch(r->first, &groups));
  } else {
    const weft_head_rows_args rows = rows_of(&c);
    const weft_matmul_args pairs = pairs_of(&c);
    raise_to(&most, weft_head_rows_scratch(r->first, &rows));
    raise_to(&most, weft_matmul_scratch(r->first, &pairs));
  }
  return most;
}

weft_status runner_heads_open(device_runner *r, runner_assist *a) {
  const model_draft_sizes *draft = &a->model->hyper.draft;
  runner_draft_logits *l = &a->logits;
  weft_status status = WEFT_OK;
  if (!runner_heads_apply(a)) return WEFT_OK;
  uint32_t rows = a->rows_max < RUNNER_HEADS_ROWS ? a->rows_max : RUNNER_HEADS_ROWS;
  uint64_t n_vocab = a->head->n_out, n_asked = (uint64_t)RUNNER_DRAFTS_MAX * a->rows_max;
  for (uint32_t n = 1; n <= rows; n++) raise_to(&l->scratch_bytes, count_scratch(r, a, n));
  l->row = runner_take_draft_memory(r, a, rows * n_vocab, sizeof *l->row, &status);
  l->part =
      runner_take_draft_memory(r, a, rows * (draft->rank > 0 ? n_vocab : draft->n_groups), sizeof *l->part, &status);
  l->between =
      runner_take_draft_memory(r, a, (uint64_t)rows * (draft->rank + draft->n_chosen), sizeof *l->between, &status);
  l->groups = runner_take_draft_memory(r, a, (uint64_t)rows * (draft->n_chosen + 1), sizeof *l->groups, &status);
  l->bad = runner_take_draft_memory(r, a, rows, 1, &status);
  l->scratch = runner_take_draft_memory(r, a, l->scratch_bytes, 1, &status);
  l->result = runner_take_draft_memory(r, a, rows, sizeof *l->result, &status);
  l->asked = runner_take_draft_memory(r, a, n_asked, sizeof *l->asked, &status);
  if (status != WEFT_OK) return status;
  l->host = weft_alloc(n_asked, sizeof *l->host);
  return l->host == NULL ? WEFT_E_NO_MEMORY : weft_device_zero(r->first, l->bad, rows);
}

/* ---- drafts ---- */

weft_status runner_heads_ask(device_runner *r, const weft_batch *batch, uint32_t n_drafts) {
  const runner_draft_logits *l = &r->assist->logits;
  uint32_t n = batch->n_rows;
  for (uint32_t j = 0; j < n * n_drafts; j++) {
    const uint32_t k = j / n, i = j % n;
    const weft_sampling *p = r->slots[batch->segment[i].slot].params.sampling;
    const weft_draw_key key = {p->seed, p->choice, WEFT_DRAW_TOKEN, (uint64_t)batch->position[i] + 1 + k, 0};
    l->host[j] = (weft_sample_row){.temperature = p->temperature,
                                   .u = weft_draw_uniform(&key),
                                   .top_p = 1.0f,
                                   .min_log = -INFINITY,
                                   .repetition = 1.0f,
                                   .cell = (int32_t)((k + 1) * n + i)};
  }
  return weft_device_upload(r->first, l->asked, l->host, (uint64_t)n * n_drafts * sizeof *l->host);
}

/* Logits of the tokens of the groups whose centroids a row agrees with most. */
static weft_status read_groups(const heads_call *c) {
  const weft_route_args route = route_of(c);
  const weft_head_groups_args groups = groups_of(c);
  weft_status status = weft_route(c->r->first, &route);
  return status == WEFT_OK ? weft_head_groups(c->r->first, &groups) : status;
}

/* All logits, and what the token before adds to them. */
static weft_status add_pairs(const heads_call *c) {
  runner_assist *a = c->a;
  const weft_head_rows_args rows = rows_of(c);
  const weft_matmul_args pairs = pairs_of(c);
  const weft_embed_args embed = {.weight = &a->model->globals.draft.before,
                                 .tokens = a->token + (uint64_t)c->k * c->n_all + c->first,
                                 .y = a->logits.between,
                                 .n_rows = c->n,
                                 .scale = 1.0f,
                                 .y_stride = a->model->hyper.draft.rank};
  const weft_norm_args sum = {.x = a->logits.row,
                              .x2 = a->logits.part,
                              .y = a->logits.row,
                              .n_rows = c->n,
                              .n_cols = a->head->n_out,
                              .plain = true,
                              .x_stride = a->head->n_out,
                              .x2_stride = a->head->n_out,
                              .y_stride = a->head->n_out};
  weft_status status = weft_head_rows(c->r->first, &rows);
  if (status == WEFT_OK) status = weft_embed(c->r->first, &embed);
  if (status == WEFT_OK) status = weft_matmul(c->r->first, &pairs);
  return status == WEFT_OK ? weft_norm(c->r->first, &sum) : status;
}

static heads_call call_of(device_runner *r, uint32_t first, uint32_t n_all, uint32_t k) {
  const uint32_t left = n_all - first;
  return (heads_call){r, r->assist, first, left < RUNNER_HEADS_ROWS ? left : RUNNER_HEADS_ROWS, k, n_all};
}

weft_status runner_heads_logits(device_runner *r, uint32_t first, uint32_t n, uint32_t k) {
  const heads_call c = call_of(r, first, n, k);
  return r->assist->model->hyper.draft.n_groups > 0 ? read_groups(&c) : add_pairs(&c);
}

weft_status runner_heads_draw(device_runner *r, uint32_t n, uint32_t k) {
  weft_status status = WEFT_OK;
  for (uint32_t first = 0; first < n && status == WEFT_OK; first += RUNNER_HEADS_ROWS) {
    const heads_call c = call_of(r, first, n, k);
    const weft_sample_args sample = sample_of(&c);
    status = runner_heads_logits(r, first, n, k);
    if (status == WEFT_OK) status = weft_sample(r->first, &sample);
  }
  return status;
}
