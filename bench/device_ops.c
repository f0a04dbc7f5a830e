/* SPDX-License-Identifier: MIT */
/* Times the ops of a model at the shapes of a 26B mixture of experts, on a device of choice.
 *
 * usage: bench_device_ops [BACKEND [WORD [ROWS [SECONDS [PRODUCTS [ISA [TURNS]]]]]]]
 *        cases whose name and type, "q Q4_K", contain WORD, of ROWS rows (0: any); a JSON object each. With SECONDS
 *        each is run so long on, and the object says what it takes then: time, energy and clock. PRODUCTS: 8 or 16
 *        bits, or 8i: 8 bits from integers of weights. ISA: a set of instructions or of kernels, as of `--isa`; or
 *        several of one set that hold the card to families (kernels/cuda/portable/tiles.h) with a ; between them, for
 *        each of which a case is timed in turn, TURNS times.
 *
 * A case is enqueued many times between two syncs, so launches overlap with work as in a step. Weights rotate
 * among copies that together exceed the cache. floor_us: the larger of bytes and operations over what the card can be
 * expected to do: shares of what its clocks give at most, as one H200 was measured to reach them (4.2 of 4.92 TB/s, 770
 * of 1070 TFLOP/s). A device that does not say its clocks has no floors. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/memory.h"
#include "base/random.h"
#include "bench/device_cases.h"
#include "bench/energy.h"
#include "bench/held_sets.h"
#include "kernels/ops.h"

static const double MEMORY_SHARE = 4.2e12 / 4.917e12, PRODUCT_SHARE = 770e12 / 1070.5e12;

typedef struct room {
  weft_device *device;
  weft_weight weight[2][COPIES_MAX];
  uint32_t n_copies;
  float *x, *y, *numbers;
  int32_t *ids, *chosen, *tokens;
  int64_t *slots;
  float *soft;
  uint8_t *flags;
  uint8_t *pages;
  uint32_t *table;
  void *scratch;
  uint64_t scratch_bytes, n_out;
  double bytes, operations;
  const weft_device_config *config;
  const char *isas; /* of the command line */
  uint32_t n_turns;
} room;

/* A bench of ops has no caller to report to. */
static void die_with(const char *what, const char *why) {
  (void)fprintf(stderr, "bench_device_ops: %s: %s\n", what, why);
  weft_check_failed(__FILE__, __LINE__, what);
}

static void must_succeed(weft_status status, const char *what) {
  if (status != WEFT_OK) die_with(what, weft_status_text(status));
}

static uint64_t draw_bits(uint64_t i) {
  uint64_t x = (i + 1) * 0x9E3779B97F4A7C15ull;
  x ^= x >> 29;
  x *= 0xBF58476D1CE4E5B9ull;
  return x ^ x >> 32;
}

static void *take_memory(room *r, uint64_t n_bytes) {
  void *memory = NULL;
  must_succeed(weft_device_alloc(r->device, n_bytes, &memory), "memory");
  return memory;
}

static void upload_bytes(room *r, void *to, const void *from, uint64_t n_bytes) {
  must_succeed(weft_device_upload(r->device, to, from, n_bytes), "upload");
}

/* Random codes, scales of about the size that real weights have. */
static void fill_stored(weft_type type, uint8_t *bytes, uint64_t n_bytes) {
  const weft_type_info *info = weft_type_find((int32_t)type);
  uint16_t small = weft_f32_to_f16(6e-5f), least = weft_f32_to_f16(4.5e-4f), wide = weft_f32_to_f16(2e-4f);
  for (uint64_t i = 0; i + 8 <= n_bytes; i += 8) {
    uint64_t word = draw_bits(i);
    memcpy(bytes + i, &word, 8);
  }
  for (uint64_t at = 0; at + info->n_bytes <= n_bytes; at += info->n_bytes) {
    float f = (float)(draw_bits(at) % 2001) * 2e-5f - 0.02f;
    uint16_t b = weft_f32_to_bf16(f), h = weft_f32_to_f16(f);
    if (type == WEFT_TYPE_F32) memcpy(bytes + at, &f, 4);
    if (type == WEFT_TYPE_BF16) memcpy(bytes + at, &b, 2);
    if (type == WEFT_TYPE_F16) memcpy(bytes + at, &h, 2);
    if (type == WEFT_TYPE_Q8_0 || type == WEFT_TYPE_Q4_0 || type == WEFT_TYPE_Q5_0) memcpy(bytes + at, &wide, 2);
    if (type == WEFT_TYPE_Q4_K || type == WEFT_TYPE_Q5_K)
      memcpy(bytes + at, &small, 2), memcpy(bytes + at + 2, &least, 2);
    if (type == WEFT_TYPE_Q6_K) memcpy(bytes + at + 208, &small, 2);
    if (type == WEFT_TYPE_Q4_1 || type == WEFT_TYPE_Q5_1 || type == WEFT_TYPE_IQ4_NL || info->held_as != type)
      memcpy(bytes + at, &small, 2);
    if (type == WEFT_TYPE_Q2_K) memcpy(bytes + at + 80, &small, 2), memcpy(bytes + at + 82, &small, 2);
    if (type == WEFT_TYPE_Q3_K) memcpy(bytes + at + 108, &small, 2);
  }
}

static weft_weight place_weight(room *r, weft_type type, uint32_t n_mats, uint32_t n_out, uint32_t n_in) {
  weft_weight w = {.type = type, .n_in = n_in, .n_out = n_out, .n_mats = n_mats};
  uint64_t n_bytes = (uint64_t)n_mats * n_out * weft_type_row_bytes(type, n_in);
  uint8_t *file = weft_alloc(n_bytes, 1);
  weft_error error = {{0}};
  if (file == NULL) die_with("weights", "out of memory");
  fill_stored(type, file, n_bytes);
  if (weft_device_weight(r->device, &w, file, WEFT_USE_MATMUL, &error) != WEFT_OK) die_with("weights", error.text);
  weft_free(file);
  return w;
}

static void place_weights(room *r, const bench_case *c) {
  uint64_t per_copy = 0;
  r->n_copies = 0;
  do {
    uint32_t i = r->n_copies++;
    if (c->what == WORK_EXPERTS) {
      r->weight[0][i] = place_weight(r, c->type, EXPERTS, 2 * FF, HIDDEN);
      r->weight[1][i] = place_weight(r, c->down, EXPERTS, HIDDEN, FF);
      per_copy = r->weight[0][i].n_bytes + r->weight[1][i].n_bytes;
    } else {
      r->weight[0][i] = place_weight(r, c->type, 1, c->n_out, c->n_in);
      per_copy = r->weight[0][i].n_bytes;
    }
  } while (r->n_copies * per_copy < CACHE_BYTES && r->n_copies < COPIES_MAX);
}

static void give_weights(room *r) {
  for (uint32_t k = 0; k < 2; k++)
    for (uint32_t i = 0; i < r->n_copies; i++) weft_device_weight_free(r->device, &r->weight[k][i]);
  r->n_copies = 0;
}

/* Scratch of n_bytes or more; its size goes to *has_bytes. */
static void *want_scratch(room *r, uint64_t n_bytes, uint64_t *has_bytes) {
  if (n_bytes > r->scratch_bytes) {
    weft_device_free(r->device, r->scratch);
    r->scratch = take_memory(r, n_bytes);
    r->scratch_bytes = n_bytes;
  }
  *has_bytes = r->scratch_bytes;
  return r->scratch;
}

/* What a product of the case's rows with the weight moves and computes. */
static void count_product(room *r, const bench_case *c, const weft_weight *w) {
  r->bytes = (double)w->n_bytes + 4.0 * c->n_rows * (c->n_in + c->n_out);
  r->operations = 2.0 * c->n_rows * c->n_in * c->n_out;
}

/* ---- the ops ---- */

static weft_status run_matmul(room *r, const bench_case *c, uint32_t i) {
  const weft_weight *w = &r->weight[0][i % r->n_copies];
  weft_matmul_args a = {.x = r->x, .n_rows = c->n_rows, .n_weights = 1, .x_stride = c->n_in};
  a.weight[0] = w;
  a.y[0] = r->y;
  a.y_stride[0] = c->n_out;
  a.scratch = want_scratch(r, weft_matmul_scratch(r->device, &a), &a.scratch_bytes);
  count_product(r, c, w);
  return weft_matmul(r->device, &a);
}

static weft_status run_route(room *r, const bench_case *c, uint32_t i) {
  const weft_weight *w = &r->weight[0][i % r->n_copies];
  weft_route_args a = {.x = r->x, .router = w, .logits = r->y, .ids = r->chosen, .weights = r->y + ROWS_MAX * EXPERTS};
  a.n_rows = c->n_rows;
  a.n_experts = EXPERTS;
  a.k = TOP;
  a.x_stride = HIDDEN;
  a.logits_stride = EXPERTS;
  a.scratch = want_scratch(r, weft_route_scratch(r->device, &a), &a.scratch_bytes);
  count_product(r, c, w);
  return weft_route(r->device, &a);
}

static weft_status run_experts(room *r, const bench_case *c, uint32_t i) {
  const weft_weight *up = &r->weight[0][i % r->n_copies], *down = &r->weight[1][i % r->n_copies];
  weft_experts_args a = {.x = r->x, .ids = r->ids, .weights = r->numbers, .gate_up = up, .down = down, .y = r->y};
  a.n_rows = c->n_rows;
  a.k = TOP;
  a.x_stride = a.y_stride = HIDDEN;
  a.activation = WEFT_GELU_TANH;
  if (c->canvas) /* whatever numbers x then has */
    a.x_form = weft_device_rows_form(r->device, up, c->n_rows, WEFT_ROWS_TO_EXPERTS);
  a.scratch = want_scratch(r, weft_experts_scratch(r->device, &a), &a.scratch_bytes);
  double touched = EXPERTS * (1.0 - pow(1.0 - (double)TOP / EXPERTS, c->n_rows));
  r->bytes = touched / EXPERTS * (double)(up->n_bytes + down->n_bytes) + 8.0 * c->n_rows * HIDDEN;
  r->operations = 2.0 * c->n_rows * TOP * 3.0 * HIDDEN * FF;
  return weft_experts(r->device, &a);
}

static weft_status run_attention(room *r, const bench_case *c, uint32_t i) {
  (void)i;
  static weft_attention_segment segment[64];
  uint32_t per = c->n_rows / c->n_segments, block = c->window > 0 ? 16 : 32, n_blocks = (c->kv_len + per) / block + 1;
  uint64_t row = weft_kv_row_bytes(c->type, c->dim), plane = (uint64_t)c->n_kv_heads * block * row;
  double keys = c->window > 0 && c->kv_len + per > c->window ? c->window : c->kv_len + per;
  for (uint32_t s = 0; s < c->n_segments; s++)
    segment[s] = (weft_attention_segment){.first_row = s * per,
                                          .n_rows = per,
                                          .kv_len = c->kv_len,
                                          .mask = c->canvas ? WEFT_MASK_WHOLE : WEFT_MASK_CAUSAL,
                                          .stores = c->canvas ? WEFT_STORES_SCRATCH : WEFT_STORES_POOL,
                                          .table = r->table + (uint64_t)s * n_blocks};
  weft_attention_args a = {.q = r->x, .out = r->y, .own_k = r->pages, .own_v = r->pages, .segment = segment};
  a.kv = (weft_kv_view){r->pages, c->type, 2 * plane, 0, plane, block, c->n_kv_heads, c->dim};
  a.n_segments = c->n_segments;
  a.n_rows = c->n_rows;
  a.n_heads = c->n_heads;
  a.window = c->window;
  a.scale = 1.0f;
  a.q_stride = a.out_stride = (uint64_t)c->n_heads * c->dim;
  a.scratch = want_scratch(r, weft_attention_scratch(r->device, &a), &a.scratch_bytes);
  if (!c->canvas && c->kv_len == 0) keys = c->window > 0 ? keys : keys / 2; /* causal: half of all pairs */
  r->bytes = c->n_segments * keys * c->n_kv_heads * 2.0 * (double)row + 8.0 * c->n_rows * a.q_stride;
  r->operations = 4.0 * c->n_rows * keys * c->n_heads * c->dim;
  return weft_attention(r->device, &a);
}

static weft_status run_head(room *r, const bench_case *c, uint32_t i) {
  const weft_weight *w = &r->weight[0][i % r->n_copies];
  uint32_t n = c->n_rows;
  weft_head_stats_args a = {.h = r->x, .weight = w, .temperature = r->numbers, .u = r->numbers};
  a.soft = c->canvas ? r->soft : NULL;
  a.argmax = r->tokens;
  a.drawn = r->tokens + n;
  a.top = r->y;
  a.log_total = r->y + n;
  a.entropy = r->y + 2 * n;
  a.bad = r->flags;
  a.n_rows = n;
  a.h_stride = a.soft_stride = HIDDEN;
  a.cap = 30.0f;
  a.soft_scale = 53.0f;
  a.scratch = want_scratch(r, weft_head_stats_scratch(r->device, &a), &a.scratch_bytes);
  r->bytes = (double)w->n_bytes;
  r->operations = (c->canvas ? 4.0 : 2.0) * n * c->n_in * c->n_out;
  return weft_head_stats(r->device, &a);
}

static weft_status run_norm(room *r, const bench_case *c, uint32_t i) {
  (void)i;
  weft_norm_args a = {.x = r->x, .weight = r->numbers, .y = r->y, .n_rows = c->n_rows, .n_cols = c->n_in};
  a.x_stride = a.y_stride = c->n_in;
  a.eps = 1e-6f;
  r->bytes = 8.0 * c->n_rows * c->n_in;
  r->operations = 0.0;
  return weft_norm(r->device, &a);
}

/* Rows that products alone read are left in the form that a weight of the case's type takes. */
static weft_status run_norms(room *r, const bench_case *c, uint32_t i) {
  uint64_t n = (uint64_t)c->n_rows * HIDDEN;
  bool is_end = c->canvas;
  const weft_weight *w = &r->weight[0][i % r->n_copies];
  weft_norm_args a = {.x = r->x, .weight = r->numbers, .add = r->x + N_X - n, .y = r->soft, .n_rows = c->n_rows};
  a.n_cols = a.x_stride = a.x2_stride = a.add_stride = a.y_stride = HIDDEN;
  a.eps = 1e-6f;
  if (is_end) a.x2 = r->x + n, a.x_weight = r->numbers + HIDDEN, a.x2_weight = r->numbers + (uint64_t)2 * HIDDEN;
  a.n_then = is_end ? 1 : 3;
  double moved = (is_end ? 16.0 : 12.0) * (double)n;
  for (uint32_t k = 0; k < a.n_then; k++) {
    a.then[k] = r->y + k * n;
    a.then_weight[k] = r->numbers + (uint64_t)(3 + k) * HIDDEN;
    if (k != 1) a.then_form[k] = weft_device_rows_form(r->device, w, c->n_rows, WEFT_ROWS_TO_MATMUL);
    moved += (double)weft_device_rows_bytes(r->device, a.then_form[k], c->n_rows, HIDDEN);
  }
  r->bytes = moved;
  r->operations = 0.0;
  return weft_norm(r->device, &a);
}

/* Queries, keys and values of a sliding layer: normed, turned and, where they are keys and values, stored. */
static weft_status run_store(room *r, const bench_case *c, uint32_t i) {
  (void)i;
  uint64_t per_row = (uint64_t)(c->n_heads + 2 * c->n_kv_heads) * c->dim,
           plane = (uint64_t)c->n_kv_heads * 16 * c->dim * 2;
  uint64_t n_q = (uint64_t)c->n_heads * c->dim, n_kv = (uint64_t)c->n_kv_heads * c->dim;
  weft_qkv_args a = {.q = r->y, .k = r->x, .v = r->x + c->n_rows * n_kv, .q_norm = r->numbers, .k_norm = r->numbers};
  a.inv_freq = r->numbers;
  a.position = r->ids;
  a.slot = r->slots;
  a.kv = (weft_kv_view){r->pages, c->type, 2 * plane, 0, plane, 16, c->n_kv_heads, c->dim};
  a.n_rows = c->n_rows;
  a.n_heads = c->n_heads;
  a.q_stride = n_q;
  a.k_stride = a.v_stride = n_kv;
  a.v_norm = true;
  a.eps = 1e-6f;
  r->bytes = (4.0 * (double)per_row + 4.0 * (double)n_q + 4.0 * (double)n_kv) * c->n_rows;
  r->operations = 0.0;
  return weft_qkv(r->device, &a);
}

/* ---- the delta rule, in pages of 128 KiB that hold two units of the state or four rows ---- */

enum { DELTA_PAGE = 1 << 17, DELTA_BLOCK = 4, DELTA_EVERY = 64, DELTA_STATE_PAGES = 16, DELTA_STATES_AT = 2048 };

static weft_delta_view view_of(const room *r, const bench_case *c) {
  weft_delta_view view = {.type = c->type,
                          .dim = c->dim,
                          .n_k_heads = c->n_kv_heads,
                          .n_v_heads = c->n_heads,
                          .every = DELTA_EVERY,
                          .block_tokens = DELTA_BLOCK,
                          .base = r->pages,
                          .page_bytes = DELTA_PAGE};
  view.state = (weft_run_view){r->pages, DELTA_PAGE, 0, (uint64_t)c->dim * c->dim * 4};
  view.tail = (weft_run_view){r->pages, DELTA_PAGE, (uint64_t)DELTA_STATE_PAGES * DELTA_PAGE,
                              (WEFT_DELTA_TAPS - 1) * 4ull * weft_delta_channels(&view)};
  return view;
}

/* A sequence has its own pages from the border before the call on. */
static const weft_delta_segment *segments_of(const room *r, const bench_case *c) {
  static weft_delta_segment segment[64];
  uint32_t per = c->n_rows / c->n_segments, skipped = c->kv_len / DELTA_EVERY * DELTA_EVERY / DELTA_BLOCK;
  uint32_t n_blocks = (c->kv_len + per) / DELTA_BLOCK + 1 - skipped;
  for (uint32_t s = 0; s < c->n_segments; s++)
    segment[s] = (weft_delta_segment){
        .first_row = s * per,
        .n_rows = per,
        .kv_len = c->kv_len,
        .table = r->table + (uint64_t)s * n_blocks,
        .state = c->kv_len < DELTA_EVERY ? NULL : r->table + DELTA_STATES_AT + s * (DELTA_STATE_PAGES + 1)};
  return segment;
}

static weft_status run_delta_rows(room *r, const bench_case *c, uint32_t i) {
  (void)i;
  weft_delta_rows_args a = {.view = view_of(r, c), .x = r->x, .conv = r->numbers, .a = r->x, .dt = r->numbers};
  uint64_t n = c->n_rows, channels = weft_delta_channels(&a.view);
  a.alpha_stride = a.beta_stride = c->n_heads;
  a.x_stride = channels, a.q_stride = (uint64_t)c->n_kv_heads * c->dim, a.v_stride = (uint64_t)c->n_heads * c->dim;
  a.q = r->y, a.v = a.q + n * a.q_stride, a.beta = a.v + n * a.v_stride, a.alpha = r->x;
  a.segment = segments_of(r, c), a.n_segments = c->n_segments, a.n_rows = c->n_rows;
  r->bytes = (double)n *
             (4.0 * (double)channels + 2.0 * (double)(channels + a.q_stride) + 4.0 * (double)(a.q_stride + a.v_stride));
  r->operations = 0.0;
  return weft_delta_rows(r->device, &a);
}

/* The state is read once; and of each row its k, q, v, z, u and result, and the keys and u since its border. */
static weft_status run_delta_rule(room *r, const bench_case *c, uint32_t i) {
  (void)i;
  weft_delta_rule_args a = {.view = view_of(r, c), .q = r->y, .z = r->x, .norm = r->numbers, .eps = 1e-6f};
  uint64_t n = c->n_rows;
  a.q_stride = (uint64_t)c->n_kv_heads * c->dim, a.v_stride = (uint64_t)c->n_heads * c->dim;
  a.z_stride = a.out_stride = a.v_stride, a.beta_stride = c->n_heads;
  a.v = a.q + n * a.q_stride, a.beta = a.v + n * a.v_stride, a.out = r->soft;
  a.segment = segments_of(r, c), a.n_segments = c->n_segments, a.n_rows = c->n_rows;
  a.scratch = want_scratch(r, weft_delta_rule_scratch(r->device, &a), &a.scratch_bytes);
  double state = (double)c->n_heads * c->dim * c->dim, before = c->n_segments * (double)(c->kv_len % DELTA_EVERY);
  double row = (double)(a.q_stride + a.v_stride);
  r->bytes = (c->kv_len < DELTA_EVERY ? 0.0 : c->n_segments * 4.0 * state) + 2.0 * row * (before + (double)n) +
             (double)n * (4.0 * row + 8.0 * (double)a.v_stride);
  r->operations = (double)n * 6.0 * state;
  return weft_delta_rule(r->device, &a);
}

/* Twelve tokens are allowed, and one of them is drawn: an answer with a format, as most are asked for. */
static weft_status run_held(room *r, const bench_case *c, uint32_t i) {
  (void)i;
  static weft_sample_row row[64];
  static uint32_t mask[VOCAB / 32] = {0xFFF000};
  uint32_t n = c->n_rows;
  for (uint32_t j = 0; j < 64; j++)
    row[j] = (weft_sample_row){.temperature = 1.0f,
                               .u = 0.01f * (float)j,
                               .top_p = 1.0f,
                               .min_log = -INFINITY,
                               .repetition = 1.0f,
                               .cell = -1,
                               .mask = 1};
  weft_sample_args a = {.logits = r->y, .n_rows = n, .n_vocab = VOCAB, .logits_stride = VOCAB};
  uint64_t n_own = sizeof row + sizeof mask + n * sizeof *a.out;
  uint8_t *own = want_scratch(r, weft_sample_scratch(r->device, &a) + n_own, &a.scratch_bytes);
  a.row = (const weft_sample_row *)(const void *)own;
  a.masks = (const uint32_t *)(const void *)(own + sizeof row);
  a.out = (weft_sample_result *)(void *)(own + sizeof row + sizeof mask);
  a.scratch = own + n_own;
  a.scratch_bytes -= n_own;
  upload_bytes(r, own, row, sizeof row);
  upload_bytes(r, own + sizeof row, mask, sizeof mask);
  r->bytes = 4.0 * n * VOCAB;
  r->operations = 0.0;
  return weft_sample(r->device, &a);
}

/* What the rows of a case are asked for. ALL is everything at once: penalties over 1000 tokens, top_k, top_p, min_p,
 * logprobs of the five best. The first call penalises the logits, as later ones do again: the history's tokens sink,
 * the others stay. MOST is what most models' files and users ask for. */
static weft_sample_row sample_row_of(sample_kind kind, uint32_t history) {
  weft_sample_row row = {.top_p = 1.0f, .min_log = -INFINITY, .repetition = 1.0f, .cell = -1};
  if (kind != SAMPLE_BEST) row.temperature = 1.0f;
  if (kind == SAMPLE_MOST || kind == SAMPLE_ALL) row.top_k = 64, row.top_p = 0.95f;
  if (kind != SAMPLE_ALL) return row;
  row.temperature = 0.8f;
  row.top_k = 40;
  row.min_log = -6.0f;
  row.repetition = 1.1f;
  row.frequency = 0.1f;
  row.n_history = history;
  row.n_prompt = history / 2;
  row.logprobs = 1;
  row.n_top = 5;
  return row;
}

static weft_status run_sample(room *r, const bench_case *c, uint32_t i) {
  (void)i;
  enum { HISTORY = 1000 };
  static weft_sample_row row[64];
  uint32_t n = c->n_rows;
  for (uint32_t j = 0; j < 64; j++) {
    row[j] = sample_row_of((sample_kind)c->n_out, HISTORY);
    row[j].u = 0.01f * (float)j;
  }
  weft_sample_args a = {.logits = r->y, .history = r->ids, .n_rows = n, .n_vocab = VOCAB, .logits_stride = VOCAB};
  uint64_t n_own = sizeof row + n * sizeof *a.out; /* bytes of rows and results, before the op's scratch */
  uint8_t *own = want_scratch(r, weft_sample_scratch(r->device, &a) + n_own, &a.scratch_bytes);
  a.row = (const weft_sample_row *)(const void *)own;
  a.out = (weft_sample_result *)(void *)(own + sizeof row);
  a.scratch = own + n_own;
  a.scratch_bytes -= n_own;
  upload_bytes(r, own, row, sizeof row);
  r->bytes = 4.0 * n * VOCAB;
  r->operations = 0.0;
  return weft_sample(r->device, &a);
}

/* In the memory of soft embeddings, which no case reads: where the classes begin, their tokens, and what is found. */
enum { CLASSES_TOKENS_AT = 1 << 13, CLASSES_BEST_AT = 1 << 19, CLASSES_SUMS_AT = 1 << 20 };

/* Of a JSON schema nearly every token is in one of two classes, which may stand in texts; the others are small. */
static uint32_t class_end(const bench_case *c, uint32_t which) {
  if (c->n_out == 4096) return (which + 1) * (VOCAB / 4096);
  return 2 * (which + 1) + (which < 2 ? 0 : 200000) + (which < 9 ? 0 : 60000);
}

static void fill_classes(room *r, const bench_case *c) {
  uint32_t *at = weft_alloc(CLASSES_BEST_AT, sizeof *at), n = 0;
  if (at == NULL) die_with("classes", "out of memory");
  for (uint32_t which = 0; which < c->n_out; which++) {
    uint32_t end = class_end(c, which);
    at[which] = n;
    for (; n < end; n++) at[CLASSES_TOKENS_AT + n] = n; /* ascending, as nearly all tokens of a large class are */
  }
  at[c->n_out] = n;
  upload_bytes(r, r->soft, at, CLASSES_BEST_AT * sizeof *at);
  weft_free(at);
}

static weft_status run_classes(room *r, const bench_case *c, uint32_t i) {
  (void)i;
  weft_classes_args a = {.logits = r->y, .temperature = r->numbers, .n_rows = c->n_rows, .n_classes = c->n_out};
  a.at = (const uint32_t *)(const void *)r->soft;
  a.token = (const int32_t *)(const void *)(r->soft + CLASSES_TOKENS_AT);
  a.best = (int32_t *)(void *)(r->soft + CLASSES_BEST_AT);
  a.log_sum = r->soft + CLASSES_SUMS_AT;
  a.n_tokens = class_end(c, c->n_out - 1);
  a.logits_stride = VOCAB;
  a.scratch = want_scratch(r, weft_classes_scratch(r->device, &a), &a.scratch_bytes);
  r->bytes = 4.0 * c->n_rows * a.n_tokens;
  r->operations = 0.0;
  return weft_classes(r->device, &a);
}

static void fill_logits(room *r) {
  float *host = weft_alloc(VOCAB, sizeof *host);
  if (host == NULL) die_with("logits", "out of memory");
  for (uint32_t row = 0; row < 64; row++) {
    for (uint32_t v = 0; v < VOCAB; v++) {
      uint64_t x = draw_bits((uint64_t)row * VOCAB + v);
      float sum = (float)(x & 0xFFFF) + (float)(x >> 16 & 0xFFFF) + (float)(x >> 32 & 0xFFFF) + (float)(x >> 48);
      host[v] = (sum * 0x1p-16f - 2.0f) * 5.0f; /* about normal, deviation 3 */
    }
    upload_bytes(r, r->y + (uint64_t)row * VOCAB, host, VOCAB * sizeof *host);
  }
  weft_free(host);
}

typedef weft_status (*runner)(room *r, const bench_case *c, uint32_t i);
static const runner runners[] = {run_matmul, run_experts,    run_attention, run_head, run_norm,
                                 run_sample, run_route,      run_classes,   run_held, run_norms,
                                 run_store,  run_delta_rows, run_delta_rule};

static double seconds_of(room *r, const bench_case *c, uint32_t n) {
  uint64_t start = weft_clock_us();
  for (uint32_t i = 0; i < n; i++) must_succeed(runners[c->what](r, c, i), c->name);
  must_succeed(weft_device_sync(r->device), c->name);
  return (double)(weft_clock_us() - start) * 1e-6;
}

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Runs the case for that many seconds, after a quarter of that, when the card is as warm and its clock as low as the
 * work makes them. */
static void print_sustained(room *r, const bench_case *c, double each, double seconds) {
  static energy_meter meter;
  uint32_t n = (uint32_t)(0.1 / each) + 1, n_times = (uint32_t)(seconds / 0.1) + 1;
  if (meter.gpu == NULL) meter = energy_open();
  if (meter.gpu == NULL) die_with("energy", "no counter: needs NVML and an NVIDIA GPU");
  for (uint32_t i = 0; i < n_times / 4 + 1; i++) (void)seconds_of(r, c, n);
  double before = energy_joules(&meter), took = 0.0;
  for (uint32_t i = 0; i < n_times; i++) took += seconds_of(r, c, n);
  double joules = energy_joules(&meter) - before;
  (void)printf(",\"sustained_us\":%.2f,\"mj\":%.2f,\"watt\":%.0f,\"mhz\":%u", took / n / n_times * 1e6,
               joules / n / n_times * 1e3, joules / took, energy_mhz(&meter));
}

/* Seconds; 0: the device does not say its clocks. */
static double floor_of(const room *r) {
  const weft_device_info *d = weft_device_get_info(r->device);
  if (!(d->memory_rate > 0.0) || !(d->product_rate > 0.0)) return 0.0;
  return fmax(r->bytes / (MEMORY_SHARE * d->memory_rate), r->operations / (PRODUCT_SHARE * d->product_rate));
}

static void time_as_held(room *r, const bench_case *c, double seconds, const char *set) {
  double sample[5];
  double first = seconds_of(r, c, 2) / 2.0;
  uint32_t n = first > 0.02 / ITERATIONS_MAX ? (uint32_t)(0.02 / first) + 2 : ITERATIONS_MAX;
  for (uint32_t i = 0; i < 5; i++) sample[i] = seconds_of(r, c, n) / n;
  qsort(sample, 5, sizeof *sample, by_value);
  double floor_s = floor_of(r), median = sample[2];
  (void)printf("{\"op\":\"%s\",\"type\":\"%s\",\"rows\":%u,\"kv\":%u,\"us\":%.2f,\"spread_us\":%.2f", c->name,
               weft_type_find((int32_t)c->type)->name, c->n_rows, c->kv_len, median * 1e6,
               (sample[4] - sample[0]) * 1e6);
  if (floor_s > 0.0) (void)printf(",\"floor_us\":%.2f,\"ratio\":%.2f", floor_s * 1e6, median / floor_s);
  (void)printf(",\"gb_s\":%.0f,\"tflop_s\":%.1f", r->bytes / median * 1e-9, r->operations / median * 1e-12);
  if (set != NULL) (void)printf(",\"set\":\"%s\"", set);
  if (seconds > 0.0) print_sustained(r, c, median, seconds);
  (void)puts("}");
  (void)fflush(stdout);
}

static void time_case(room *r, const bench_case *c, double seconds) {
  bool is_list = r->isas != NULL && strchr(r->isas, ';') != NULL;
  bool has_weights = c->what == WORK_MATMUL || c->what == WORK_EXPERTS || c->what == WORK_HEAD ||
                     c->what == WORK_ROUTE || c->what == WORK_NORMS;
  if (has_weights) place_weights(r, c);
  if (c->what == WORK_SAMPLE || c->what == WORK_CLASSES || c->what == WORK_HELD) fill_logits(r);
  if (c->what == WORK_CLASSES) fill_classes(r, c);
  must_succeed(weft_device_sync(r->device), c->name);
  char set[HELD_SET_BYTES];
  for (uint32_t turn = 0; turn < (is_list ? r->n_turns : 0); turn++) {
    for (const char *list = r->isas; held_sets_take(&list, set) != NULL;) {
      weft_error error = {{0}};
      if (held_sets_hold(*r->config, set, &error) != WEFT_OK) die_with(set, error.text);
      time_as_held(r, c, seconds, set);
    }
  }
  if (!is_list) time_as_held(r, c, seconds, NULL);
  give_weights(r);
}

/* ---- memory ---- */

static void fill_inputs(room *r, float *host, uint64_t n_x) {
  for (uint64_t i = 0; i < n_x; i++) host[i] = (float)(draw_bits(i) % 2001) * 0.001f - 1.0f;
  upload_bytes(r, r->x, host, n_x * sizeof *host);
  for (uint32_t i = 0; i < ROWS_MAX * TOP; i++) host[i] = 0.1f + (float)(draw_bits(i) % 800) * 0.001f;
  upload_bytes(r, r->numbers, host, ROWS_MAX * TOP * sizeof *host);
  int32_t *ids = (int32_t *)host;
  for (uint32_t row = 0; row < ROWS_MAX; row++) { /* eight different experts: an odd step around the ring */
    uint32_t e = (uint32_t)(draw_bits(row) % EXPERTS), step = 1 + 2 * (uint32_t)(draw_bits(row + 99) % (EXPERTS / 2));
    for (uint32_t j = 0; j < TOP; j++, e = (e + step) % EXPERTS) ids[row * TOP + j] = (int32_t)e;
  }
  upload_bytes(r, r->ids, ids, ROWS_MAX * TOP * sizeof *ids);
}

static void fill_pages(room *r, uint64_t n_pages, uint64_t pages_bytes) {
  uint64_t n = 1 << 20;
  uint16_t *keys = weft_alloc(n, sizeof *keys);
  uint32_t *table = weft_alloc(n_pages, sizeof *table);
  if (keys == NULL || table == NULL) die_with("pages", "out of memory");
  for (uint64_t i = 0; i < n; i++) keys[i] = weft_f32_to_bf16((float)(draw_bits(i) % 2001) * 1e-4f - 0.1f);
  for (uint64_t at = 0; at < pages_bytes; at += n * 2) upload_bytes(r, r->pages + at, keys, n * 2);
  for (uint64_t i = 0; i < n_pages; i++) table[i] = (uint32_t)(i * 7919 % n_pages); /* scattered */
  int64_t *slots = (int64_t *)(void *)keys;
  for (uint64_t i = 0; i < ROWS_MAX; i++) slots[i] = (int64_t)table[i / 16] * 16 + (int64_t)(i % 16);
  upload_bytes(r, r->table, table, n_pages * sizeof *table);
  upload_bytes(r, r->slots, slots, ROWS_MAX * sizeof *slots);
  weft_free(keys);
  weft_free(table);
}

int main(int argc, char **argv) {
  static room r;
  char first[HELD_SET_BYTES];
  r.isas = argc > 6 ? argv[6] : NULL;
  r.n_turns = argc > 7 ? (uint32_t)strtoul(argv[7], NULL, 10) : 1;
  const char *list = r.isas;
  weft_device_config config = {.backend = argc > 1 ? argv[1] : NULL,
                               .products = argc > 5 ? (uint32_t)strtoul(argv[5], NULL, 10) : 0,
                               .integers = argc > 5 && strcmp(argv[5], "8i") == 0,
                               .isa = held_sets_take(&list, first)};
  r.config = &config;
  weft_error error = {{0}};
  if (weft_device_open(&config, &r.device, &error) != WEFT_OK) die_with("device", error.text);
  uint64_t n_x = N_X, n_pages = 4096, pages_bytes = n_pages << 17;
  float *host = weft_alloc(n_x, sizeof *host);
  if (host == NULL) die_with("memory", "refused");
  r.x = take_memory(&r, n_x * sizeof(float));
  r.y = take_memory(&r, (uint64_t)128 * VOCAB * sizeof(float) + n_x * sizeof(float));
  r.soft = take_memory(&r, (uint64_t)ROWS_MAX * HIDDEN * sizeof(float));
  r.numbers = take_memory(&r, ROWS_MAX * TOP * sizeof(float));
  r.ids = take_memory(&r, ROWS_MAX * TOP * sizeof(int32_t));
  r.chosen = take_memory(&r, ROWS_MAX * TOP * sizeof(int32_t));
  r.tokens = take_memory(&r, 2 * ROWS_MAX * sizeof(int32_t));
  r.slots = take_memory(&r, ROWS_MAX * sizeof(int64_t));
  r.flags = take_memory(&r, ROWS_MAX);
  r.pages = take_memory(&r, pages_bytes);
  r.table = take_memory(&r, n_pages * sizeof(uint32_t));
  fill_inputs(&r, host, n_x);
  fill_pages(&r, n_pages, pages_bytes);
  weft_free(host);
  const weft_device_info *d = weft_device_get_info(r.device);
  (void)fprintf(stderr, "%s on %s", d->name, d->backend);
  if (d->memory_rate > 0.0)
    (void)fprintf(stderr, ", by its clocks %.2f TB/s and %.0f TFLOP/s; floors by %.2f and %.0f", d->memory_rate * 1e-12,
                  d->product_rate * 1e-12, MEMORY_SHARE * d->memory_rate * 1e-12,
                  PRODUCT_SHARE * d->product_rate * 1e-12);
  (void)fprintf(stderr, "\n");
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char name[64];
    (void)snprintf(name, sizeof name, "%s %s", cases[i].name, weft_type_find((int32_t)cases[i].type)->name);
    if (argc > 2 && strstr(name, argv[2]) == NULL) continue;
    uint32_t n_rows = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 0;
    if (n_rows != 0 && cases[i].n_rows != n_rows) continue;
    time_case(&r, &cases[i], argc > 4 ? strtod(argv[4], NULL) : 0.0);
  }
  return 0;
}
