/* SPDX-License-Identifier: MIT */
/* latent_rows, latent_press, latent_choose, latent_attend, latent_heads (kernels/latent.h). Each but the last works on
 * a range of rows, or of rows and heads, so that a backend with threads can share them out. */
#include "kernels/ref/ref.h"

#include <math.h>

/* The segment of a row. */
const weft_latent_segment *ref_latent_segment(const weft_latent_segment *segment, uint32_t n, uint32_t row) {
  uint32_t low = 0;
  while (n - low > 1) {
    uint32_t middle = low + (n - low) / 2;
    if (segment[middle].first_row <= row)
      low = middle;
    else
      n = middle;
  }
  return &segment[low];
}

static uint32_t find_position(const weft_latent_segment *segment, uint32_t row) {
  return segment->kv_len + (row - segment->first_row);
}

void ref_latent_rotate(const weft_latent_turn *turn, float *x, uint32_t n, uint32_t position, float way) {
  float *pair = x + n - turn->n_rotated;
  for (uint32_t i = 0; i < turn->n_rotated / 2; i++, pair += 2) {
    float angle = (float)position * turn->inv_freq[i];
    double c = (double)cosf(angle), s = (double)(way * sinf(angle)), a = (double)pair[0], b = (double)pair[1];
    pair[0] = (float)(a * c - b * s);
    pair[1] = (float)(b * c + a * s);
  }
}

/* y = x / sqrt(mean(x^2) + eps) * weight; weight NULL: ones. */
static void norm_numbers(const double *x, const float *weight, uint32_t n, float eps, float *y) {
  double squares = 0.0;
  for (uint32_t i = 0; i < n; i++) squares += x[i] * x[i];
  double length = sqrt(squares / n + (double)eps);
  for (uint32_t i = 0; i < n; i++) y[i] = (float)(x[i] / length * (weight == NULL ? 1.0 : (double)weight[i]));
}

static void norm_floats(const float *x, const float *weight, uint32_t n, float eps, float *y) {
  double wide[WEFT_HEAD_DIM_MAX];
  for (uint32_t i = 0; i < n; i++) wide[i] = (double)x[i];
  norm_numbers(wide, weight, n, eps, y);
}

/* ---- latent_rows ---- */

static void make_row(const weft_latent_rows_args *args, uint32_t row) {
  const weft_latent_segment *segment = ref_latent_segment(args->segment, args->n_segments, row);
  const uint32_t n = args->near.width, position = find_position(segment, row);
  const uint32_t n_normed = args->parted ? n - args->turn.n_rotated : n;
  float vector[WEFT_HEAD_DIM_MAX], *q = args->q + row * args->q_stride;
  for (uint32_t h = 0; h < args->n_heads; h++, q += n) {
    if (!args->parted && !args->plain_q) norm_floats(q, NULL, n, args->eps, q);
    ref_latent_rotate(&args->turn, q, n, position, 1.0f);
  }
  float *index_q = args->index_q == NULL ? NULL : args->index_q + row * args->index_q_stride;
  for (uint32_t h = 0; index_q != NULL && h < args->n_index_heads; h++, index_q += args->index_dim)
    ref_latent_rotate(&args->turn, index_q, args->index_dim, position, 1.0f);
  const float *kv = args->kv + row * args->kv_stride;
  norm_floats(kv, args->kv_norm, n_normed, args->eps, vector);
  for (uint32_t i = n_normed; i < n; i++) vector[i] = kv[i];
  ref_latent_rotate(&args->turn, vector, n, position, 1.0f);
  weft_kv_row_store(args->near.type, vector, n,
                    weft_latent_row(&args->near, args->near.offset, segment->table[WEFT_LATENT_NEAR], position));
}

void ref_latent_rows_range(const weft_latent_rows_args *args, uint32_t first, uint32_t end) {
  for (uint32_t r = first; r < end; r++) make_row(args, r);
}

weft_status ref_latent_rows(weft_device *device, const weft_latent_rows_args *args) {
  (void)device;
  ref_latent_rows_range(args, 0, args->n_rows);
  return WEFT_OK;
}

/* ---- latent_press ---- */

static const float *find_pending(const weft_latent_press_args *args, const weft_latent_segment *segment,
                                 uint64_t offset, uint32_t position) {
  const uint32_t *table = segment->table[args->pending_set];
  return (const float *)(const void *)weft_latent_row(&args->pending, offset, table, position);
}

static void store_pending(const weft_latent_press_args *args, uint32_t row) {
  const weft_latent_segment *segment = ref_latent_segment(args->segment, args->n_segments, row);
  const uint32_t n = args->pending.width, position = find_position(segment, row);
  const uint32_t *table = segment->table[args->pending_set];
  const float *ape = args->ape == NULL ? NULL : args->ape + (uint64_t)(position % args->out.positions) * n;
  const float *x = args->x + row * args->x_stride, *from = args->scores + row * args->scores_stride;
  float *values = (float *)(void *)weft_latent_row(&args->pending, args->pending.offset, table, position);
  float *scores = (float *)(void *)weft_latent_row(&args->pending, args->pending.scores_offset, table, position);
  for (uint32_t i = 0; i < n; i++) {
    values[i] = x[i];
    scores[i] = ape == NULL ? from[i] : from[i] + ape[i];
  }
}

/* A sum of values by the shares of their scores, as far as it has come. */
typedef struct pressed {
  double most, total, sum;
} pressed;

static void press_number(pressed *p, double score, double value) {
  if (score > p->most) {
    double shrinks = exp(p->most - score);
    p->total *= shrinks;
    p->sum *= shrinks;
    p->most = score;
  }
  double share = exp(score - p->most);
  p->total += share;
  p->sum += share * value;
}

/* The numbers of the block that begins at a position and ends with the row at `position`. */
static void press_numbers(const weft_latent_press_args *args, const weft_latent_segment *segment, uint32_t begin,
                          uint32_t position, double *y) {
  const uint32_t n = args->out.width, first = args->overlaps && begin > 0 ? begin - args->out.positions : begin;
  pressed p[WEFT_HEAD_DIM_MAX];
  for (uint32_t d = 0; d < n; d++) p[d] = (pressed){.most = -INFINITY};
  for (uint32_t at = first; at <= position; at++) {
    uint32_t skipped = args->overlaps && at >= begin ? n : 0;
    const float *values = find_pending(args, segment, args->pending.offset, at) + skipped;
    const float *scores = find_pending(args, segment, args->pending.scores_offset, at) + skipped;
    for (uint32_t d = 0; d < n; d++) press_number(&p[d], (double)scores[d], (double)values[d]);
  }
  for (uint32_t d = 0; d < n; d++) y[d] = p[d].sum / p[d].total;
}

/* The block that ends with the row, if one does. */
static void press_block(const weft_latent_press_args *args, uint32_t row) {
  const weft_latent_segment *segment = ref_latent_segment(args->segment, args->n_segments, row);
  const uint32_t n = args->out.width, ratio = args->out.positions, position = find_position(segment, row);
  const float *x = args->x + row * args->x_stride;
  float *latent = args->latent == NULL ? NULL : args->latent + (uint64_t)row * n;
  double y[WEFT_HEAD_DIM_MAX];
  float out[WEFT_HEAD_DIM_MAX];
  if ((position + 1) % ratio != 0) {
    for (uint32_t d = 0; latent != NULL && d < n; d++) latent[d] = 0.0f;
    return;
  }
  const uint32_t begin = position + 1 - ratio;
  if (args->pending.base != NULL) press_numbers(args, segment, begin, position, y);
  for (uint32_t d = 0; args->pending.base == NULL && d < n; d++) y[d] = (double)x[d];
  norm_numbers(y, args->norm, n, args->eps, out);
  for (uint32_t d = 0; latent != NULL && d < n; d++) latent[d] = out[d];
  ref_latent_rotate(&args->turn, out, n, begin, 1.0f);
  weft_kv_row_store(args->out.type, out, n,
                    weft_latent_row(&args->out, args->out.offset, segment->table[args->out_set], position));
}

void ref_latent_press_store(const weft_latent_press_args *args, uint32_t first, uint32_t end) {
  for (uint32_t r = first; args->pending.base != NULL && r < end; r++) store_pending(args, r);
}

void ref_latent_press_blocks(const weft_latent_press_args *args, uint32_t first, uint32_t end) {
  for (uint32_t r = first; r < end; r++) press_block(args, r);
}

weft_status ref_latent_press(weft_device *device, const weft_latent_press_args *args) {
  (void)device;
  ref_latent_press_store(args, 0, args->n_rows);
  ref_latent_press_blocks(args, 0, args->n_rows);
  return WEFT_OK;
}

/* ---- latent_choose ---- */

/* The rows that are chosen so far, as a heap whose first is the one that goes next: the least score, of equal ones the
 * last. */
typedef struct chosen {
  int32_t *ids;
  float *scores;
  uint32_t n;
} chosen;

static bool goes_before(const chosen *c, uint32_t a, uint32_t b) {
  if (c->scores[a] != c->scores[b]) return c->scores[a] < c->scores[b];
  return c->ids[a] > c->ids[b];
}

static void swap_chosen(chosen *c, uint32_t a, uint32_t b) {
  int32_t id = c->ids[a];
  float score = c->scores[a];
  c->ids[a] = c->ids[b], c->scores[a] = c->scores[b];
  c->ids[b] = id, c->scores[b] = score;
}

static void sink_first(chosen *c, uint32_t n) {
  for (uint32_t at = 0, child; (child = 2 * at + 1) < n; at = child) {
    if (child + 1 < n && goes_before(c, child + 1, child)) child++;
    if (!goes_before(c, child, at)) return;
    swap_chosen(c, at, child);
  }
}

static void add_chosen(chosen *c, uint32_t k, int32_t id, float score) {
  if (c->n == k) {
    if (!(score > c->scores[0])) return;
    c->ids[0] = id, c->scores[0] = score;
    sink_first(c, k);
    return;
  }
  uint32_t at = c->n++;
  c->ids[at] = id, c->scores[at] = score;
  for (; at > 0 && goes_before(c, at, (at - 1) / 2); at = (at - 1) / 2) swap_chosen(c, at, (at - 1) / 2);
}

/* Ascending by id (Shell's sort). */
static void sort_chosen(chosen *c) {
  for (uint32_t gap = c->n / 2; gap > 0; gap /= 2) {
    for (uint32_t i = gap; i < c->n; i++) {
      int32_t id = c->ids[i];
      uint32_t at = i;
      for (; at >= gap && c->ids[at - gap] > id; at -= gap) c->ids[at] = c->ids[at - gap];
      c->ids[at] = id;
    }
  }
}

static float score_far(const weft_latent_choose_args *args, const float *q, const float *weights, const float *key) {
  const uint32_t n = args->index.width;
  double score = 0.0;
  for (uint32_t h = 0; h < args->n_heads; h++) {
    double product = ref_dot(q + (uint64_t)h * n, key, n);
    if (product > 0.0) score += (double)weights[h] * product;
  }
  return (float)score;
}

static void end_chosen(chosen *c, uint32_t k) {
  sort_chosen(c);
  for (uint32_t i = c->n; i < k; i++) c->ids[i] = -1;
}

/* What a row's far rows are chosen by. */
typedef struct choice {
  const weft_latent_choose_args *args;
  const weft_latent_segment *segment;
  ref_latent_score score;
  uint32_t row, n_seen;
  float best; /* of far rows [first, end) of add_rows */
} choice;

/* Scores far rows [first, end), of which the largest are chosen. */
static void add_rows(choice *own, chosen *c, uint32_t first, uint32_t end) {
  const weft_latent_choose_args *args = own->args;
  const weft_latent_view *index = &args->index;
  float key[WEFT_HEAD_DIM_MAX];
  own->best = -INFINITY;
  for (uint32_t i = first; i < end; i++) {
    weft_kv_row_load(
        index->type,
        weft_latent_row(index, index->offset, own->segment->table[WEFT_LATENT_INDEX], i * index->positions),
        index->width, key);
    float found =
        own->score(args, args->q + own->row * args->q_stride, args->weights + own->row * args->weights_stride, key);
    add_chosen(c, args->k, (int32_t)i, found);
    if (found > own->best) own->best = found;
  }
}

/* All far rows, block by block, and the blocks of the best ones. */
static void choose_blocks(choice *own, chosen *c) {
  const weft_latent_choose_args *args = own->args;
  const uint32_t size = args->block_rows;
  float *scores = (float *)args->scratch + (uint64_t)args->n_rows * args->k;
  chosen b = {.ids = args->blocks + (uint64_t)own->row * args->n_blocks,
              .scores = scores + (uint64_t)own->row * args->n_blocks};
  for (uint32_t first = 0; first < own->n_seen; first += size) {
    bool is_last = own->n_seen - first <= size;
    add_rows(own, c, first, is_last ? own->n_seen : first + size);
    add_chosen(&b, args->n_blocks, (int32_t)(first / size), is_last ? INFINITY : own->best);
  }
  end_chosen(&b, args->n_blocks);
}

static void choose_row(const weft_latent_choose_args *args, ref_latent_score score, uint32_t row) {
  const weft_latent_segment *segment = ref_latent_segment(args->segment, args->n_segments, row);
  const uint32_t k = args->k, size = args->block_rows;
  choice own = {.args = args, .segment = segment, .score = score, .row = row};
  chosen c = {.ids = args->ids + (uint64_t)row * k, .scores = (float *)args->scratch + (uint64_t)row * k};
  own.n_seen = (find_position(segment, row) + 1) / args->index.positions;
  bool by_blocks = args->blocks != NULL && own.n_seen > (uint64_t)args->n_blocks * size;
  if (own.n_seen <= k)
    for (uint32_t i = 0; i < own.n_seen; i++) c.ids[c.n++] = (int32_t)i;
  else if (!by_blocks)
    add_rows(&own, &c, 0, own.n_seen);
  else if (args->makes_blocks)
    choose_blocks(&own, &c);
  else
    for (uint32_t i = 0; i < args->n_blocks; i++) {
      uint32_t first = (uint32_t)args->blocks[(uint64_t)row * args->n_blocks + i] * size;
      add_rows(&own, &c, first, own.n_seen - first < size ? own.n_seen : first + size);
    }
  end_chosen(&c, k);
}

uint64_t ref_latent_choose_scratch(weft_device *device, const weft_latent_choose_args *args) {
  (void)device;
  uint32_t n_blocks = args->makes_blocks ? args->n_blocks : 0;
  return (uint64_t)args->n_rows * ((uint64_t)args->k + n_blocks) * sizeof(float);
}

void ref_latent_choose_rows(const weft_latent_choose_args *args, ref_latent_score score, uint32_t first, uint32_t end) {
  for (uint32_t r = first; r < end; r++) choose_row(args, score, r);
}

weft_status ref_latent_choose(weft_device *device, const weft_latent_choose_args *args) {
  (void)device;
  ref_latent_choose_rows(args, score_far, 0, args->n_rows);
  return WEFT_OK;
}

/* ---- latent_attend ---- */

typedef struct attended {
  const weft_latent_attend_args *args;
  const float *q;
  double most, total;
  double sum[WEFT_HEAD_DIM_MAX];
} attended;

static void see_row(attended *a, const weft_latent_view *rows, const uint32_t *table, uint32_t position) {
  const uint32_t n = rows->width;
  float row[WEFT_HEAD_DIM_MAX];
  weft_kv_row_load(rows->type, weft_latent_row(rows, rows->offset, table, position), n, row);
  double score = (double)a->args->scale * ref_dot(a->q, row, n);
  if (score > a->most) {
    double shrinks = exp(a->most - score);
    for (uint32_t i = 0; i < n; i++) a->sum[i] *= shrinks;
    a->total *= shrinks;
    a->most = score;
  }
  double share = exp(score - a->most);
  a->total += share;
  for (uint32_t i = 0; i < n; i++) a->sum[i] += share * (double)row[i];
}

static void attend_head(const weft_latent_attend_args *args, uint32_t row, uint32_t head) {
  const weft_latent_segment *segment = ref_latent_segment(args->segment, args->n_segments, row);
  const uint32_t n = args->near.width, position = find_position(segment, row);
  const uint32_t *far_table = segment->table[WEFT_LATENT_FAR];
  attended a = {.args = args,
                .q = args->q + row * args->q_stride + (uint64_t)head * n,
                .most = args->sinks == NULL ? (double)-INFINITY : (double)args->sinks[head],
                .total = args->sinks == NULL ? 0.0 : 1.0};
  for (uint32_t at = position + 1 > args->window ? position + 1 - args->window : 0; at <= position; at++)
    see_row(&a, &args->near, segment->table[WEFT_LATENT_NEAR], at);
  uint32_t n_far = args->far.base == NULL ? 0 : (position + 1) / args->far.positions;
  const int32_t *ids = args->ids == NULL ? NULL : args->ids + (uint64_t)row * args->k;
  for (uint32_t i = 0; ids == NULL && i < n_far; i++) see_row(&a, &args->far, far_table, i * args->far.positions);
  for (uint32_t i = 0; ids != NULL && i < args->k && ids[i] >= 0; i++)
    see_row(&a, &args->far, far_table, (uint32_t)ids[i] * args->far.positions);
  const uint32_t n_out = args->n_values > 0 ? args->n_values : n;
  float *out = args->out + row * args->out_stride + (uint64_t)head * n_out;
  for (uint32_t i = 0; i < n_out; i++) out[i] = (float)(a.sum[i] / a.total);
  if (args->n_values == 0) ref_latent_rotate(&args->turn, out, n, position, -1.0f);
}

weft_status ref_latent_attend(weft_device *device, const weft_latent_attend_args *args) {
  (void)device;
  for (uint32_t r = 0; r < args->n_rows; r++)
    for (uint32_t h = 0; h < args->n_heads; h++) attend_head(args, r, h);
  return WEFT_OK;
}

/* ---- latent_heads ---- */

weft_status ref_latent_heads(weft_device *device, const weft_latent_heads_args *args) {
  (void)device;
  const uint32_t n_in = args->n_in, n_out = args->n_out, n_rest = args->n_rest;
  for (uint32_t r = 0; r < args->n_rows; r++) {
    for (uint32_t h = 0; h < args->n_heads; h++) {
      const float *x = args->x + r * args->x_stride + (uint64_t)h * (n_in + n_rest);
      const float *weight = args->weight + (uint64_t)h * n_out * n_in;
      float *y = args->y + r * args->y_stride + (uint64_t)h * (n_out + n_rest);
      for (uint32_t i = 0; i < n_out; i++) y[i] = (float)ref_dot(weight + (uint64_t)i * n_in, x, n_in);
      for (uint32_t i = 0; i < n_rest; i++) y[n_out + i] = x[n_in + i];
    }
  }
  return WEFT_OK;
}
