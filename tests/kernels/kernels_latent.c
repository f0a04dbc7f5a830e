/* SPDX-License-Identifier: MIT */
/* Latent rows and streams: ref against what their headers define, computed here from the inputs of a
 * whole sequence in doubles; every device against ref; and the same rows in calls of every kind bit for bit, what is
 * stored in pages among them: at once, one by one, in chunks that end beside blocks, beside another sequence, and after
 * rows that turned out to be void. */
#include "tests/kernels/harness.h"

enum { SEQUENCES = 2, POSITIONS = 150, POSITIONS_MAX = 640, PAGE_BLOCK = 16, CHUNKS_MAX = 2 };

typedef struct latent_case {
  const char *name;
  weft_type type; /* of near, far and index rows */
  uint32_t width, index_width, n_rotated, ratio, k;
  bool overlaps;
  uint32_t heads, index_heads, window, positions;
} latent_case;

/* Cards have kernels of their own for rows of 512 numbers, which a row sees 64 at a time, and for index rows of 32, 64
 * and 128: such cases are many sums, of which the host has one. */
static const latent_case cases[] = {
    {"near rows alone", WEFT_TYPE_F32, 24, 0, 8, 0, 0, false, 3, 0, 11, POSITIONS},
    {"blocks of 16", WEFT_TYPE_F32, 24, 0, 8, 16, 0, false, 3, 0, 11, POSITIONS},
    {"blocks of 4 that overlap, 7 chosen", WEFT_TYPE_F32, 16, 8, 8, 4, 7, true, 3, 2, 11, POSITIONS},
    {"bf16, 5 chosen", WEFT_TYPE_BF16, 32, 16, 4, 4, 5, true, 3, 2, 11, POSITIONS},
    {"8 bits, blocks of 8", WEFT_TYPE_Q8_0, 64, 0, 0, 8, 0, false, 3, 0, 11, POSITIONS},
    {"bf16, 512 wide, near rows alone", WEFT_TYPE_BF16, 512, 0, 64, 0, 0, false, 2, 0, 100, POSITIONS},
    {"bf16, 512 wide, all far rows", WEFT_TYPE_BF16, 512, 0, 64, 2, 0, false, 18, 0, 60, POSITIONS},
    {"bf16, 512 wide, 30 chosen by 128", WEFT_TYPE_BF16, 512, 128, 64, 4, 30, true, 17, 11, 100, POSITIONS},
    {"8 bits, 512 wide, 20 chosen by 64", WEFT_TYPE_Q8_0, 512, 64, 64, 4, 20, true, 3, 8, 50, POSITIONS},
    {"bf16, 512 wide, more than 8 chunks", WEFT_TYPE_BF16, 512, 0, 64, 4, 0, true, 1, 0, 500, POSITIONS_MAX},
    {"bf16, 3 chosen by 32", WEFT_TYPE_BF16, 16, 32, 8, 4, 3, true, 2, 9, 5, POSITIONS},
};
enum { N_CASES = sizeof cases / sizeof cases[0], HOST_K = 30 /* of the large case that the host has */ };
static const float EPS = 1e-6f;

static bool is_for_cards(const latent_case *c) {
  return c->width == 512;
}

/* What the positions of a sequence give a layer, and what it makes of them. Rows lie dense. */
enum { IN_Q, IN_KV, IN_X, IN_SCORES, IN_INDEX_Q, IN_INDEX_X, IN_INDEX_SCORES, IN_WEIGHTS, IN_COUNT };
typedef struct sequence {
  float *in[IN_COUNT], *out;
  int32_t *ids;
  uint32_t *table; /* of all sets: a page has a block of each */
} sequence;

typedef struct world {
  const latent_case *c;
  weft_latent_view view[WEFT_LATENT_SETS];
  uint32_t cols[IN_COUNT];
  buffer pool;
  float *kv_norm, *far_norm, *index_norm, *ape, *index_ape, *sinks, *inv_freq;
  sequence seq[SEQUENCES];
} world;

static float *new_floats(uint64_t n, uint64_t seed) {
  float *x = memory_new(n + 1, sizeof *x);
  fill_normal(x, n, seed);
  return x;
}

static uint64_t place_set(world *w, weft_latent_set set, weft_type type, uint32_t width, uint32_t positions,
                          uint64_t at) {
  weft_latent_view *view = &w->view[set];
  uint64_t plane = PAGE_BLOCK / positions * weft_kv_row_bytes(type, width);
  bool pending = set == WEFT_LATENT_PENDING || set == WEFT_LATENT_PENDING_INDEX;
  *view = (weft_latent_view){.type = type,
                             .offset = at,
                             .scores_offset = at + (pending ? plane : 0),
                             .block_tokens = PAGE_BLOCK,
                             .positions = positions,
                             .width = width};
  return at + (pending ? 2 : 1) * plane;
}

static void open_sets(world *w) {
  const latent_case *c = w->c;
  const uint32_t wide = c->overlaps ? 2 : 1, n_pages = SEQUENCES * (c->positions / PAGE_BLOCK + 1);
  const uint64_t align = is_for_cards(c) || c->index_width == 32 ? 16 : 4; /* of what tensor cores read */
  uint64_t at = place_set(w, WEFT_LATENT_NEAR, c->type, c->width, 1, 16);
  if (c->ratio > 0) {
    if (align == 16) at = (at + 15) / 16 * 16;
    at = place_set(w, WEFT_LATENT_FAR, c->type, c->width, c->ratio, at);
    at = place_set(w, WEFT_LATENT_PENDING, WEFT_TYPE_F32, wide * c->width, 1, (at + 3) / 4 * 4);
  }
  if (c->index_width > 0) {
    if (align == 16) at = (at + 15) / 16 * 16;
    at = place_set(w, WEFT_LATENT_INDEX, c->type, c->index_width, c->ratio, at);
    at = place_set(w, WEFT_LATENT_PENDING_INDEX, WEFT_TYPE_F32, wide * c->index_width, 1, (at + 3) / 4 * 4);
  }
  uint64_t page = (at + 16 + align - 1) / align * align;
  w->pool = buffer_new(page * n_pages);
  for (uint32_t i = 0; i < WEFT_LATENT_SETS; i++) {
    if (w->view[i].block_tokens > 0) w->view[i].base = w->pool.data;
    w->view[i].page_bytes = page;
  }
}

static void open_world(world *w, const latent_case *c, uint64_t seed) {
  const uint32_t wide = c->overlaps ? 2 : 1, pages = c->positions / PAGE_BLOCK + 1;
  *w = (world){.c = c,
               .cols = {c->heads * c->width, c->width, wide * c->width, wide * c->width,
                        c->index_heads * c->index_width, wide * c->index_width, wide * c->index_width, c->index_heads}};
  open_sets(w);
  w->kv_norm = new_floats(c->width, seed);
  w->far_norm = new_floats(c->width, seed + 1);
  w->index_norm = new_floats(c->index_width, seed + 2);
  w->ape = new_floats((uint64_t)c->ratio * wide * c->width, seed + 3);
  w->index_ape = new_floats((uint64_t)c->ratio * wide * c->index_width, seed + 4);
  w->sinks = new_floats(c->heads, seed + 5);
  w->inv_freq = new_floats(c->n_rotated / 2, seed + 6);
  for (uint32_t s = 0; s < SEQUENCES; s++) {
    sequence *q = &w->seq[s];
    for (uint32_t i = 0; i < IN_COUNT; i++)
      q->in[i] = new_floats((uint64_t)c->positions * w->cols[i], seed + 20 * s + 7 + i);
    q->out = memory_new((uint64_t)c->positions * w->cols[IN_Q], sizeof *q->out);
    q->ids = memory_new((uint64_t)c->positions * c->k + 1, sizeof *q->ids);
    q->table = memory_new(pages, sizeof *q->table);
    for (uint32_t i = 0; i < pages; i++) q->table[i] = SEQUENCES * pages - 1 - (i * SEQUENCES + s);
  }
}

static void close_world(world *w) {
  float *const floats[] = {w->kv_norm, w->far_norm, w->index_norm, w->ape, w->index_ape, w->sinks, w->inv_freq};
  for (size_t i = 0; i < sizeof floats / sizeof *floats; i++) memory_free(floats[i]);
  for (uint32_t s = 0; s < SEQUENCES; s++) {
    for (uint32_t i = 0; i < IN_COUNT; i++) memory_free(w->seq[s].in[i]);
    memory_free(w->seq[s].out);
    memory_free(w->seq[s].ids);
    memory_free(w->seq[s].table);
  }
  buffer_free(&w->pool);
}

/* ---- calls ---- */

typedef struct chunk {
  uint32_t seq, at, n;
} chunk;

enum { GAP = 8 /* floats between two rows */ };

typedef struct call {
  buffer in[IN_COUNT], out, ids;
  weft_latent_segment segment[CHUNKS_MAX];
  uint32_t n_segments, n_rows;
} call;

static void open_call(const world *w, const chunk *chunks, uint32_t n_chunks, call *k) {
  *k = (call){.n_segments = n_chunks};
  for (uint32_t i = 0; i < n_chunks; i++) {
    k->segment[i] = (weft_latent_segment){.first_row = k->n_rows, .n_rows = chunks[i].n, .kv_len = chunks[i].at};
    for (uint32_t set = 0; set < WEFT_LATENT_SETS; set++) k->segment[i].table[set] = w->seq[chunks[i].seq].table;
    k->n_rows += chunks[i].n;
  }
  for (uint32_t a = 0; a < IN_COUNT; a++) {
    uint32_t cols = w->cols[a];
    k->in[a] = buffer_new((uint64_t)k->n_rows * (cols + GAP) * sizeof(float));
    for (uint32_t i = 0; i < n_chunks; i++)
      for (uint32_t r = 0; r < chunks[i].n; r++)
        memcpy((float *)k->in[a].data + (uint64_t)(k->segment[i].first_row + r) * (cols + GAP),
               w->seq[chunks[i].seq].in[a] + (uint64_t)(chunks[i].at + r) * cols, cols * sizeof(float));
  }
  k->out = buffer_new((uint64_t)k->n_rows * (w->cols[IN_Q] + GAP) * sizeof(float));
  k->ids = buffer_new((uint64_t)k->n_rows * w->c->k * sizeof(int32_t));
}

static void finish_call(world *w, const chunk *chunks, call *k) {
  const uint32_t cols = w->cols[IN_Q];
  for (uint32_t i = 0; i < k->n_segments; i++) {
    const sequence *s = &w->seq[chunks[i].seq];
    for (uint32_t r = 0; r < chunks[i].n; r++) {
      uint64_t row = k->segment[i].first_row + r, position = chunks[i].at + r;
      memcpy(s->out + position * cols, (float *)k->out.data + row * (cols + GAP), cols * sizeof(float));
      memcpy(s->ids + position * w->c->k, (int32_t *)k->ids.data + row * w->c->k, w->c->k * sizeof(int32_t));
    }
  }
  for (uint32_t a = 0; a < IN_COUNT; a++) buffer_free(&k->in[a]);
  buffer_free(&k->out);
  buffer_free(&k->ids);
}

static weft_latent_press_args press_args(const world *w, const call *k, bool of_index) {
  uint32_t x = of_index ? IN_INDEX_X : IN_X;
  weft_latent_set pending = of_index ? WEFT_LATENT_PENDING_INDEX : WEFT_LATENT_PENDING;
  weft_latent_set out = of_index ? WEFT_LATENT_INDEX : WEFT_LATENT_FAR;
  return (weft_latent_press_args){.pending = w->view[pending],
                                  .out = w->view[out],
                                  .pending_set = pending,
                                  .out_set = out,
                                  .x = k->in[x].data,
                                  .scores = k->in[x + 1].data,
                                  .ape = of_index ? w->index_ape : w->ape,
                                  .norm = of_index ? w->index_norm : w->far_norm,
                                  .turn = {w->inv_freq, w->c->n_rotated},
                                  .segment = k->segment,
                                  .n_segments = k->n_segments,
                                  .n_rows = k->n_rows,
                                  .overlaps = w->c->overlaps,
                                  .x_stride = w->cols[x] + GAP,
                                  .scores_stride = w->cols[x] + GAP,
                                  .eps = EPS};
}

static weft_latent_rows_args rows_args(const world *w, const call *k) {
  bool has_index = w->c->index_width > 0;
  return (weft_latent_rows_args){.near = w->view[WEFT_LATENT_NEAR],
                                 .q = k->in[IN_Q].data,
                                 .index_q = has_index ? k->in[IN_INDEX_Q].data : NULL,
                                 .kv = k->in[IN_KV].data,
                                 .kv_norm = w->kv_norm,
                                 .turn = {w->inv_freq, w->c->n_rotated},
                                 .segment = k->segment,
                                 .n_segments = k->n_segments,
                                 .n_rows = k->n_rows,
                                 .n_heads = w->c->heads,
                                 .n_index_heads = w->c->index_heads,
                                 .index_dim = w->c->index_width,
                                 .q_stride = w->cols[IN_Q] + GAP,
                                 .index_q_stride = w->cols[IN_INDEX_Q] + GAP,
                                 .kv_stride = w->cols[IN_KV] + GAP,
                                 .eps = EPS};
}

static weft_latent_choose_args choose_args(const world *w, const call *k) {
  return (weft_latent_choose_args){.index = w->view[WEFT_LATENT_INDEX],
                                   .q = k->in[IN_INDEX_Q].data,
                                   .weights = k->in[IN_WEIGHTS].data,
                                   .ids = k->ids.data,
                                   .segment = k->segment,
                                   .n_segments = k->n_segments,
                                   .n_rows = k->n_rows,
                                   .n_heads = w->c->index_heads,
                                   .k = w->c->k,
                                   .q_stride = w->cols[IN_INDEX_Q] + GAP,
                                   .weights_stride = w->cols[IN_WEIGHTS] + GAP};
}

static weft_latent_attend_args attend_args(const world *w, const call *k) {
  return (weft_latent_attend_args){.near = w->view[WEFT_LATENT_NEAR],
                                   .far = w->view[WEFT_LATENT_FAR],
                                   .q = k->in[IN_Q].data,
                                   .sinks = w->sinks,
                                   .ids = w->c->k > 0 ? k->ids.data : NULL,
                                   .out = k->out.data,
                                   .turn = {w->inv_freq, w->c->n_rotated},
                                   .segment = k->segment,
                                   .n_segments = k->n_segments,
                                   .n_rows = k->n_rows,
                                   .n_heads = w->c->heads,
                                   .k = w->c->k,
                                   .window = w->c->window,
                                   .scale = 1.0f / sqrtf((float)w->c->width),
                                   .q_stride = w->cols[IN_Q] + GAP,
                                   .out_stride = w->cols[IN_Q] + GAP};
}

static void run_call(weft_device *device, world *w, const chunk *chunks, uint32_t n_chunks) {
  call k;
  open_call(w, chunks, n_chunks, &k);
  weft_latent_rows_args rows = rows_args(w, &k);
  assert_int_equal(done(device, weft_latent_rows(device, &rows)), WEFT_OK);
  for (uint32_t of_index = 0; of_index < (w->c->ratio == 0 ? 0u : w->c->index_width > 0 ? 2u : 1u); of_index++) {
    weft_latent_press_args press = press_args(w, &k, of_index == 1);
    assert_int_equal(done(device, weft_latent_press(device, &press)), WEFT_OK);
  }
  if (w->c->k > 0) {
    weft_latent_choose_args choose = choose_args(w, &k);
    RUN_OP(latent_choose, device, &choose);
  }
  weft_latent_attend_args attend = attend_args(w, &k);
  assert_int_equal(done(device, weft_latent_attend(device, &attend)), WEFT_OK);
  finish_call(w, chunks, &k);
}

static void run_whole(weft_device *device, world *w, uint32_t seq) {
  const chunk all = {seq, 0, w->c->positions};
  run_call(device, w, &all, 1);
}

/* ---- what the header defines, of a whole sequence ---- */

static void turn_by(const world *w, double *x, uint32_t n, double position) {
  for (uint32_t i = 0; i < w->c->n_rotated / 2; i++) {
    double *pair = x + n - w->c->n_rotated + 2 * i, angle = (double)(float)((float)position * w->inv_freq[i]);
    double a = pair[0], b = pair[1];
    pair[0] = a * cos(angle) - b * sin(angle);
    pair[1] = b * cos(angle) + a * sin(angle);
  }
}

static void norm_by(double *x, const float *weight, uint32_t n) {
  double sum = 0.0;
  for (uint32_t i = 0; i < n; i++) sum += x[i] * x[i];
  for (uint32_t i = 0; i < n; i++) x[i] *= (weight == NULL ? 1.0 : (double)weight[i]) / sqrt(sum / n + (double)EPS);
}

/* The far or index row of block b. */
static void press_by(const world *w, const sequence *s, uint32_t b, bool of_index, double *y) {
  const latent_case *c = w->c;
  const uint32_t n = of_index ? c->index_width : c->width, x = of_index ? IN_INDEX_X : IN_X, cols = w->cols[x];
  const float *ape = of_index ? w->index_ape : w->ape;
  for (uint32_t d = 0; d < n; d++) {
    double total = 0.0, sum = 0.0;
    for (uint32_t before = c->overlaps && b > 0 ? 1 : 0, part = before + 1; part-- > 0;) {
      for (uint32_t i = 0; i < c->ratio; i++) {
        uint32_t position = (b - part) * c->ratio + i, at = d + (c->overlaps && part == 0 ? n : 0);
        double score = (double)(s->in[x + 1][position * cols + at] + ape[i * cols + at]);
        total += exp(score);
        sum += exp(score) * (double)s->in[x][position * cols + at];
      }
    }
    y[d] = sum / total;
  }
  norm_by(y, of_index ? w->index_norm : w->far_norm, n);
  turn_by(w, y, n, b * c->ratio);
}

/* The k blocks of largest score, by counting for each how many go before it. */
static void choose_by(const world *w, const sequence *s, uint32_t position, bool *seen) {
  const latent_case *c = w->c;
  const uint32_t n = (position + 1) / c->ratio;
  double score[POSITIONS_MAX], key[64], q[64];
  for (uint32_t b = 0; b < n; b++) {
    score[b] = 0.0;
    press_by(w, s, b, true, key);
    for (uint32_t h = 0; h < c->index_heads; h++) {
      double product = 0.0;
      for (uint32_t d = 0; d < c->index_width; d++)
        q[d] = (double)s->in[IN_INDEX_Q][position * w->cols[IN_INDEX_Q] + h * c->index_width + d];
      turn_by(w, q, c->index_width, position);
      for (uint32_t d = 0; d < c->index_width; d++) product += q[d] * key[d];
      score[b] += (double)s->in[IN_WEIGHTS][position * c->index_heads + h] * fmax(product, 0.0);
    }
    score[b] = (double)(float)score[b];
  }
  for (uint32_t b = 0; b < n; b++) {
    uint32_t before = 0;
    for (uint32_t o = 0; o < n; o++) before += score[o] > score[b] || (score[o] == score[b] && o < b);
    seen[b] = before < c->k;
  }
}

/* One position: which far rows it sees, and what its heads give. */
static void attend_by(const world *w, const sequence *s, uint32_t position, bool *seen, double *out) {
  const latent_case *c = w->c;
  const uint32_t n = c->width, first = position + 1 > c->window ? position + 1 - c->window : 0;
  double row[64], q[64];
  const uint32_t n_far = c->ratio == 0 ? 0 : (position + 1) / c->ratio;
  for (uint32_t b = 0; b < n_far; b++) seen[b] = true;
  if (c->k > 0) choose_by(w, s, position, seen);
  for (uint32_t h = 0; h < c->heads; h++, out += n) {
    double total = exp((double)w->sinks[h]);
    for (uint32_t d = 0; d < n; d++) q[d] = (double)s->in[IN_Q][position * w->cols[IN_Q] + h * n + d], out[d] = 0.0;
    norm_by(q, NULL, n);
    turn_by(w, q, n, position);
    for (uint32_t i = first; i <= position + n_far; i++) {
      bool near = i <= position;
      if (!near && !seen[i - position - 1]) continue;
      for (uint32_t d = 0; near && d < n; d++) row[d] = (double)s->in[IN_KV][i * n + d];
      if (near) norm_by(row, w->kv_norm, n), turn_by(w, row, n, i);
      if (!near) press_by(w, s, i - position - 1, false, row);
      double score = 0.0;
      for (uint32_t d = 0; d < n; d++) score += q[d] * row[d] / sqrt((double)n);
      total += exp(score);
      for (uint32_t d = 0; d < n; d++) out[d] += exp(score) * row[d];
    }
    for (uint32_t d = 0; d < n; d++) out[d] /= total;
    turn_by(w, out, n, -(double)position);
  }
}

/* ref stores f32: rows and queries, below 5 in each number, are off by 2^-24 of them, and scores of up to 64 products
 * of these by as many roundings, which shares multiply by at most 5. */
static void test_definition(void **state) {
  const devices *all = *state;
  for (uint32_t i = 0; i < N_CASES; i++) {
    if (cases[i].type != WEFT_TYPE_F32) continue;
    world w;
    open_world(&w, &cases[i], 100 * i + 1);
    run_whole(all->ref, &w, 0);
    double worst = 0.0, out[3 * 64];
    bool seen[POSITIONS_MAX];
    for (uint32_t p = 0; p < w.c->positions; p++) {
      attend_by(&w, &w.seq[0], p, seen, out);
      for (uint32_t d = 0; d < w.cols[IN_Q]; d++)
        worst = fmax(worst, fabs(out[d] - (double)w.seq[0].out[p * w.cols[IN_Q] + d]));
      const int32_t *ids = w.seq[0].ids + p * w.c->k;
      for (uint32_t j = 0, b = 0; j < w.c->k; j++, b++) { /* ascending, then -1 */
        while (b < (p + 1) / w.c->ratio && !seen[b]) b++;
        assert_int_equal(ids[j], b < (p + 1) / w.c->ratio ? (int32_t)b : -1);
      }
    }
    assert_within(w.c->name, "ref", worst, 5 * 64 * 5 * 0x1p-24);
    close_world(&w);
  }
}

/* ---- devices, and the same rows in other calls ---- */

static bool is_left_out(const devices *all, uint32_t d, uint32_t turn) {
  return is_out_of_turn(all, d, turn) || (is_for_cards(&cases[turn]) && d < all->n_cpu);
}

/* Rows for which a device chose as ref did. A score that is off by roundings alone may change a choice, but of few
 * rows, and by one far row. */
static double distance_of(const world *a, const world *b, uint32_t *n_other) {
  const uint32_t cols = a->cols[IN_Q], k = a->c->k;
  double worst = 0.0;
  *n_other = 0;
  for (uint64_t p = 0; p < a->c->positions; p++) {
    const int32_t *x = a->seq[0].ids + p * k, *y = b->seq[0].ids + p * k;
    uint32_t n_alike = 0;
    for (uint32_t i = 0, j = 0; i < k && j < k;) {
      n_alike += x[i] == y[j];
      if (x[i] == y[j])
        i++, j++;
      else if ((uint32_t)x[i] < (uint32_t)y[j])
        i++;
      else
        j++;
    }
    assert_true(n_alike + 1 >= k);
    *n_other += n_alike < k;
    if (n_alike < k) continue;
    worst = fmax(worst, distance(a->seq[0].out + p * cols, b->seq[0].out + p * cols, 1, cols, cols));
  }
  return worst;
}

/* Of f32 a device may add in another order; what it stores in fewer bits may then fall to the other side. By tensor
 * cores queries and shares are rounded to 2^-9 of them, and numbers of 8 bits to as much, which each add a part of the
 * bound. */
static void test_devices(void **state) {
  const devices *all = *state;
  for (uint32_t i = case_first; i < N_CASES; i += case_step) {
    world ref;
    if (is_for_cards(&cases[i]) && all->n == all->n_cpu && cases[i].k != HOST_K) continue;
    open_world(&ref, &cases[i], 100 * i + 2);
    run_whole(all->ref, &ref, 0);
    for (uint32_t d = 0; d < all->n; d++) {
      if (is_left_out(all, d, i) && cases[i].k != HOST_K) continue;
      world w;
      uint32_t n_other;
      double bound = cases[i].type == WEFT_TYPE_F32 ? 5 * 64 * 5 * 0x1p-24 : 5 * 0x1p-7;
      open_world(&w, &cases[i], 100 * i + 2);
      run_whole(all->cpu[d], &w, 0);
      double worst = distance_of(&ref, &w, &n_other);
      assert_within(w.c->name, all->name[d], worst, is_for_cards(&cases[i]) ? 2 * bound : bound);
      assert_true(n_other <= (cases[i].type == WEFT_TYPE_F32 ? 0 : w.c->positions / 20));
      close_world(&w);
    }
    close_world(&ref);
  }
}

/* Outputs, choices and every stored row of both sequences; pages lie at the same places in both worlds. */
static void assert_same_world(const world *a, const world *b, const char *device, const char *what, uint32_t n_seq) {
  for (uint32_t s = 0; s < n_seq; s++) {
    const uint32_t positions = a->c->positions;
    uint64_t n = (uint64_t)positions * a->cols[IN_Q] * sizeof(float);
    assert_same(a->c->name, device, what, a->seq[s].out, b->seq[s].out, n);
    assert_same(a->c->name, device, what, a->seq[s].ids, b->seq[s].ids,
                (uint64_t)positions * a->c->k * sizeof(int32_t));
    for (uint32_t set = 0; set < WEFT_LATENT_SETS; set++) {
      const weft_latent_view *va = &a->view[set], *vb = &b->view[set];
      uint64_t row = va->base == NULL ? 0 : weft_kv_row_bytes(va->type, va->width);
      for (uint32_t p = 0; row > 0 && p + va->positions <= positions; p += va->positions) {
        assert_same(a->c->name, device, what, weft_latent_row(va, va->offset, a->seq[s].table, p),
                    weft_latent_row(vb, vb->offset, b->seq[s].table, p), row);
        assert_same(a->c->name, device, what, weft_latent_row(va, va->scores_offset, a->seq[s].table, p),
                    weft_latent_row(vb, vb->scores_offset, b->seq[s].table, p), row);
      }
    }
  }
}

static void run_in_chunks(weft_device *device, world *w, const uint32_t *sizes, uint32_t n_sizes) {
  for (uint32_t at = 0, i = 0; at < w->c->positions; i++) {
    uint32_t n = sizes[i % n_sizes], left = w->c->positions - at;
    chunk one = {0, at, n < left ? n : left};
    run_call(device, w, &one, 1);
    at += one.n;
  }
}

/* Two sequences in one call, from where each is. */
static void run_side_by_side(weft_device *device, world *w) {
  uint32_t at[SEQUENCES] = {0, 0};
  for (uint32_t step = 0; at[0] < w->c->positions || at[1] < w->c->positions; step++) {
    chunk both[SEQUENCES];
    uint32_t n = 0;
    for (uint32_t s = 0; s < SEQUENCES; s++) {
      uint32_t rows = s == step % 2 ? 37 : 1, left = w->c->positions - at[s];
      if (left == 0) continue;
      both[n++] = (chunk){s, at[s], rows < left ? rows : left};
      at[s] += both[n - 1].n;
    }
    run_call(device, w, both, n);
  }
}

/* Rows of which all but the first were drafts, and wrong: they are computed from other inputs, then anew. */
static void run_with_void_rows(weft_device *device, world *w) {
  for (uint32_t at = 0; at < w->c->positions; at++) {
    uint32_t n = at + 6 > w->c->positions ? w->c->positions - at : 6;
    float *kept[IN_COUNT];
    for (uint32_t a = 0; a < IN_COUNT; a++) {
      uint64_t first = (uint64_t)(at + 1) * w->cols[a], count = (uint64_t)(n - 1) * w->cols[a];
      kept[a] = memory_new(count + 1, sizeof(float));
      memcpy(kept[a], w->seq[0].in[a] + first, count * sizeof(float));
      fill_normal(w->seq[0].in[a] + first, count, 9000 + at + a);
    }
    run_call(device, w, &(chunk){0, at, n}, 1);
    for (uint32_t a = 0; a < IN_COUNT; a++) {
      memcpy(w->seq[0].in[a] + (uint64_t)(at + 1) * w->cols[a], kept[a],
             (uint64_t)(n - 1) * w->cols[a] * sizeof(float));
      memory_free(kept[a]);
    }
  }
}

static void check_calls(weft_device *device, const char *name, uint32_t i) {
  static const uint32_t ones[] = {1}, uneven[] = {15, 1, 2, 3, 16, 7}, halves[] = {17, 64};
  static const struct {
    const char *what;
    const uint32_t *sizes;
    uint32_t n_sizes;
  } ways[] = {{"row by row", ones, 1}, {"uneven chunks", uneven, 6}, {"17 and 64", halves, 2}};
  world whole, w;
  open_world(&whole, &cases[i], 100 * i + 3);
  for (uint32_t s = 0; s < SEQUENCES; s++) run_whole(device, &whole, s);
  for (uint32_t k = 0; k < sizeof ways / sizeof ways[0]; k++) {
    open_world(&w, &cases[i], 100 * i + 3);
    run_in_chunks(device, &w, ways[k].sizes, ways[k].n_sizes);
    assert_same_world(&whole, &w, name, ways[k].what, 1);
    close_world(&w);
  }
  open_world(&w, &cases[i], 100 * i + 3);
  run_side_by_side(device, &w);
  assert_same_world(&whole, &w, name, "beside another sequence", SEQUENCES);
  close_world(&w);
  open_world(&w, &cases[i], 100 * i + 3);
  run_with_void_rows(device, &w);
  assert_same_world(&whole, &w, name, "after void rows", 1);
  close_world(&w);
  close_world(&whole);
}

static void test_calls(void **state) {
  const devices *all = *state;
  for (uint32_t i = case_first; i < N_CASES; i += case_step) {
    if (!is_for_cards(&cases[i])) check_calls(all->ref, "ref", i);
    for (uint32_t d = 0; d < all->n; d++)
      if (!is_left_out(all, d, i)) check_calls(all->cpu[d], all->name[d], i);
  }
}

/* Equal scores: the first rows are chosen. */
static void test_equal_scores(void **state) {
  const devices *all = *state;
  for (uint32_t d = 0; d <= all->n; d++) {
    static const uint32_t chosen_by[] = {2, 10};
    for (uint32_t i = 0; i < 2; i++) {
      world w;
      open_world(&w, &cases[chosen_by[i]], 7);
      const uint32_t k = w.c->k, last = w.c->positions - 1;
      memset(w.seq[0].in[IN_WEIGHTS], 0, (uint64_t)w.c->positions * w.c->index_heads * sizeof(float));
      run_whole(d == 0 ? all->ref : all->cpu[d - 1], &w, 0);
      for (uint32_t j = 0; j < k; j++) assert_int_equal(w.seq[0].ids[last * k + j], (int32_t)j);
      close_world(&w);
    }
  }
}

/* ---- streams ---- */

enum { STREAM_ROWS = 5 };

/* Columns that are read four at a time and one at a time, by a part of a block and by several passes of it. */
static uint32_t columns_of(uint32_t n) {
  return n == 4 ? 1500 : n == 3 ? 1101 : n % 2 == 0 ? 24 : 23;
}

static void run_streams(weft_device *device, uint32_t n, uint32_t n_rounds, float *y, float *shares, float *x) {
  const uint32_t n_mixes = n * (2 + n), n_cols = columns_of(n);
  float *mixes = new_floats((uint64_t)STREAM_ROWS * n_mixes, 1), *base = new_floats(n_mixes, 2),
        *scale = new_floats(3, 3), *made = new_floats((uint64_t)STREAM_ROWS * n_cols, 4);
  fill_normal(x, (uint64_t)STREAM_ROWS * n * n_cols, 5);
  const weft_mix_args mix = {.x = x,
                             .mixes = mixes,
                             .base = base,
                             .scale = scale,
                             .y = y,
                             .shares = shares,
                             .n_rows = STREAM_ROWS,
                             .n_cols = n_cols,
                             .n_streams = n,
                             .n_rounds = n_rounds,
                             .eps = EPS,
                             .floor = 1e-6f,
                             .x_stride = n * n_cols,
                             .y_stride = n_cols,
                             .mixes_stride = n_mixes,
                             .shares_stride = n * (1 + n)};
  const weft_spread_args spread = {.x = x,
                                   .y = made,
                                   .shares = shares,
                                   .n_rows = STREAM_ROWS,
                                   .n_cols = n_cols,
                                   .n_streams = n,
                                   .x_stride = n * n_cols,
                                   .y_stride = n_cols,
                                   .shares_stride = n * (1 + n)};
  assert_int_equal(done(device, weft_mix(device, &mix)), WEFT_OK);
  assert_int_equal(done(device, weft_spread(device, &spread)), WEFT_OK);
  float *const all[] = {mixes, base, scale, made};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) memory_free(all[i]);
}

/* Rows and columns of turn have sums of 1; give and take are of the mixes as the header says. */
static void test_streams(void **state) {
  const devices *all = *state;
  for (uint32_t n = 1; n <= WEFT_STREAMS_MAX; n++) {
    const uint32_t n_cols = columns_of(n);
    float *y[2], *shares[2], *x[2], *before = new_floats((uint64_t)STREAM_ROWS * n * n_cols, 5),
                                    *made = new_floats((uint64_t)STREAM_ROWS * n_cols, 4);
    for (uint32_t i = 0; i < 2; i++) {
      y[i] = new_floats((uint64_t)STREAM_ROWS * n_cols, 0);
      shares[i] = new_floats((uint64_t)STREAM_ROWS * n * (1 + n), 0);
      x[i] = new_floats((uint64_t)STREAM_ROWS * n * n_cols, 0);
    }
    run_streams(all->ref, n, 200, y[0], shares[0], x[0]);
    for (uint32_t r = 0; r < STREAM_ROWS; r++) {
      const float *give = shares[0] + r * n * (1 + n), *turn = give + n;
      for (uint32_t i = 0; i < n; i++) {
        double row = 0.0, column = 0.0;
        for (uint32_t j = 0; j < n; j++) row += (double)turn[i * n + j], column += (double)turn[j * n + i];
        assert_true(fabs(row - 1.0) < 1e-4 && fabs(column - 1.0) < 1e-4 && give[i] > 0.0f && give[i] < 2.0f);
        for (uint32_t c = 0; c < n_cols; c++) {
          double wanted = (double)give[i] * (double)made[r * n_cols + c];
          for (uint32_t j = 0; j < n; j++) wanted += (double)turn[j * n + i] * (double)before[(r * n + j) * n_cols + c];
          assert_true(fabs(wanted - (double)x[0][(r * n + i) * n_cols + c]) < 1e-5);
        }
      }
    }
    for (uint32_t d = 0; d < all->n; d++) {
      run_streams(all->cpu[d], n, 200, y[1], shares[1], x[1]);
      assert_within("streams", all->name[d], distance(y[0], y[1], STREAM_ROWS, n_cols, n_cols), 1e-5);
      assert_within("streams", all->name[d], distance(x[0], x[1], STREAM_ROWS, n * n_cols, n * n_cols), 1e-5);
    }
    for (uint32_t i = 0; i < 2; i++) memory_free(y[i]), memory_free(shares[i]), memory_free(x[i]);
    memory_free(before);
    memory_free(made);
  }
}

/* ---- refusals ---- */

static void test_refusals(void **state) {
  const devices *all = *state;
  world w;
  call k;
  const chunk one = {0, 0, 3};
  open_world(&w, &cases[2], 8);
  open_call(&w, &one, 1, &k);
  weft_latent_attend_args attend = attend_args(&w, &k), wrong;
  wrong = attend, wrong.window = 0;
  assert_int_equal(weft_latent_attend(all->ref, &wrong), WEFT_E_INVALID);
  wrong = attend, wrong.far.width = 8;
  assert_int_equal(weft_latent_attend(all->ref, &wrong), WEFT_E_INVALID);
  wrong = attend, wrong.near.offset = wrong.near.page_bytes;
  assert_int_equal(weft_latent_attend(all->ref, &wrong), WEFT_E_INVALID);
  wrong = attend, wrong.turn.n_rotated = 3;
  assert_int_equal(weft_latent_attend(all->ref, &wrong), WEFT_E_INVALID);
  weft_latent_press_args press = press_args(&w, &k, false);
  press.overlaps = false;
  assert_int_equal(weft_latent_press(all->ref, &press), WEFT_E_INVALID);
  press = press_args(&w, &k, false), press.pending.type = WEFT_TYPE_BF16;
  assert_int_equal(weft_latent_press(all->ref, &press), WEFT_E_INVALID);
  weft_latent_choose_args choose = choose_args(&w, &k);
  choose.scratch_bytes = 0;
  assert_int_equal(weft_latent_choose(all->ref, &choose), WEFT_E_INVALID);
  weft_latent_rows_args rows = rows_args(&w, &k);
  k.segment[0].table[WEFT_LATENT_NEAR] = NULL;
  assert_int_equal(weft_latent_rows(all->ref, &rows), WEFT_E_INVALID);
  finish_call(&w, &one, &k);
  close_world(&w);
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_definition),   cmocka_unit_test(test_devices), cmocka_unit_test(test_calls),
      cmocka_unit_test(test_equal_scores), cmocka_unit_test(test_streams), cmocka_unit_test(test_refusals),
  };
  take_arguments(argc, argv);
  return cmocka_run_group_tests(tests, setup_devices, teardown_devices);
}
