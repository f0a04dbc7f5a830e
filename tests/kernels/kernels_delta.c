/* SPDX-License-Identifier: MIT */
/* delta_rows and delta_rule: ref against the recurrence itself, every device against ref within tolerances derived
 * here, and the same rows in calls of every kind bit for bit: at once, one by one, in chunks that end beside borders,
 * beside another sequence or its prompt, after rows that turned out to be void, and as a graph where a device has
 * graphs. */
#include "tests/kernels/harness.h"

enum { SEQUENCES = 2, POSITIONS = 200, BORDERS_MAX = 52, CHUNKS_MAX = 2 };

typedef struct delta_case {
  const char *name;
  weft_type type;
  uint32_t dim, n_k_heads, n_v_heads, every, block_tokens;
} delta_case;

static const delta_case cases[] = {
    {"one head of 8", WEFT_TYPE_F32, 8, 1, 1, 64, 8},
    {"2 and 6 heads of 24", WEFT_TYPE_F32, 24, 2, 6, 64, 16},
    {"2 and 4 heads of 128", WEFT_TYPE_F32, 128, 2, 4, 64, 16},
    {"borders at 4", WEFT_TYPE_F32, 32, 1, 2, 4, 2},
    {"bf16, 2 and 4 heads of 128", WEFT_TYPE_BF16, 128, 2, 4, 64, 16},
    {"bf16, 3 heads of 16", WEFT_TYPE_BF16, 16, 3, 3, 64, 64},
    {"bf16, 2 heads of 128, rows of 2568 bytes", WEFT_TYPE_BF16, 128, 2, 2, 64, 16},
};
enum { N_CASES = sizeof cases / sizeof cases[0] };

/* A layer's weights and memory, and what its sequences give it. Rows lie dense. */
typedef struct sequence {
  float *x, *alpha, *beta, *z; /* [POSITIONS] rows */
  float *out;                  /* [POSITIONS] rows */
  uint32_t *table;             /* pages of rows */
  uint32_t *run[BORDERS_MAX];  /* pages of the state at border i * every */
} sequence;

typedef struct world {
  const delta_case *c;
  weft_delta_view view;
  uint32_t keys, values, channels, run_pages, n_pages;
  buffer pool;
  float *conv, *a, *dt, *norm;
  sequence seq[SEQUENCES];
} world;

static const float EPS = 1e-6f;

/* Pages descend, so that none follows the page before it. */
static uint32_t take_page(world *w) {
  assert_true(w->n_pages > 0);
  return --w->n_pages;
}

static float *new_floats(uint64_t n, uint64_t seed) {
  float *x = memory_new(n, sizeof *x);
  fill_normal(x, n, seed);
  return x;
}

static void open_sequence(world *w, sequence *s, uint64_t seed) {
  uint64_t n = POSITIONS;
  *s = (sequence){.x = new_floats(n * w->channels, seed),
                  .alpha = new_floats(n * w->c->n_v_heads, seed + 1),
                  .beta = new_floats(n * w->c->n_v_heads, seed + 2),
                  .z = new_floats(n * w->values, seed + 3),
                  .out = memory_new(n * w->values, sizeof(float)),
                  .table = memory_new(POSITIONS / w->c->block_tokens + 1, sizeof(uint32_t))};
  for (uint32_t i = 0; i <= (POSITIONS - 1) / w->c->block_tokens; i++) s->table[i] = take_page(w);
  for (uint32_t i = 1; i * w->c->every <= POSITIONS && i < BORDERS_MAX; i++) {
    s->run[i] = memory_new(w->run_pages, sizeof(uint32_t));
    for (uint32_t p = 0; p < w->run_pages; p++) s->run[i][p] = take_page(w);
  }
}

/* A page holds a block of rows at an offset, or two units of the state; the tail begins a page. */
static void open_world(world *w, const delta_case *c, uint64_t seed) {
  *w = (world){.c = c, .keys = c->n_k_heads * c->dim, .values = c->n_v_heads * c->dim};
  w->channels = 2 * w->keys + w->values;
  w->view = (weft_delta_view){.type = c->type,
                              .dim = c->dim,
                              .n_k_heads = c->n_k_heads,
                              .n_v_heads = c->n_v_heads,
                              .every = c->every,
                              .block_tokens = c->block_tokens};
  uint64_t unit = (uint64_t)c->dim * c->dim * 4, tail = 12ull * w->channels;
  uint64_t rows = c->block_tokens * weft_delta_row_bytes(&w->view) + 64, page = 2 * unit + 64;
  if (rows > page) page = rows;
  if (tail > page) page = tail;
  uint32_t state_pages = (uint32_t)((c->n_v_heads + page / unit) / (page / unit)) + 1;
  w->run_pages = state_pages + 1;
  w->n_pages = SEQUENCES * (POSITIONS / c->block_tokens + 1 + POSITIONS / c->every * w->run_pages);
  w->pool = buffer_new(page * w->n_pages);
  w->view.base = w->pool.data;
  w->view.page_bytes = page;
  w->view.offset = 64;
  w->view.state = (weft_run_view){.base = w->pool.data, .page_bytes = page, .offset = 64, .unit_bytes = unit};
  w->view.tail =
      (weft_run_view){.base = w->pool.data, .page_bytes = page, .offset = state_pages * page, .unit_bytes = tail};
  w->conv = new_floats((uint64_t)w->channels * WEFT_DELTA_TAPS, seed);
  w->a = new_floats(c->n_v_heads, seed + 1);
  w->dt = new_floats(c->n_v_heads, seed + 2);
  w->norm = new_floats(c->dim, seed + 3);
  for (uint32_t h = 0; h < c->n_v_heads; h++) w->a[h] = -0.02f - 0.3f * fabsf(w->a[h]);
  for (uint32_t i = 0; i < SEQUENCES; i++) open_sequence(w, &w->seq[i], seed + 10 + 10 * i);
}

static void close_world(world *w) {
  for (uint32_t i = 0; i < SEQUENCES; i++) {
    sequence *s = &w->seq[i];
    void *const memory[] = {s->x, s->alpha, s->beta, s->z, s->out, s->table};
    for (size_t k = 0; k < sizeof memory / sizeof memory[0]; k++) memory_free(memory[k]);
    for (uint32_t k = 1; k < BORDERS_MAX; k++)
      if (s->run[k] != NULL) memory_free(s->run[k]);
  }
  void *const memory[] = {w->conv, w->a, w->dt, w->norm};
  for (size_t k = 0; k < sizeof memory / sizeof memory[0]; k++) memory_free(memory[k]);
  buffer_free(&w->pool);
}

/* ---- calls ---- */

typedef struct chunk {
  uint32_t seq, at, n;
} chunk;

/* Rows of several arrays one behind another, with room between rows. */
enum { GAP = 8 };
static void copy_rows(float *to, const float *from, uint32_t first, uint32_t n, uint64_t cols) {
  for (uint32_t i = 0; i < n; i++) memcpy(to + (first + i) * (cols + GAP), from + i * cols, cols * sizeof *to);
}

typedef struct call {
  buffer x, alpha, beta, q, v, z, out;
  weft_delta_segment segment[CHUNKS_MAX];
  weft_delta_write write[CHUNKS_MAX * BORDERS_MAX];
  uint32_t n_rows, n_writes;
} call;

static buffer rows_buffer(uint32_t n_rows, uint64_t cols) {
  return buffer_new(n_rows * (cols + GAP) * sizeof(float));
}

/* Rows and lists of the chunks, which have as many rows as the call has room for. */
static void fill_call(world *w, const chunk *chunks, uint32_t n_chunks, call *k) {
  uint32_t heads = w->c->n_v_heads, every = w->c->every;
  k->n_writes = 0;
  for (uint32_t i = 0, first = 0; i < n_chunks; first += chunks[i++].n) {
    const chunk *at = &chunks[i];
    const sequence *s = &w->seq[at->seq];
    copy_rows(k->x.data, s->x + (uint64_t)at->at * w->channels, first, at->n, w->channels);
    copy_rows(k->alpha.data, s->alpha + (uint64_t)at->at * heads, first, at->n, heads);
    copy_rows(k->beta.data, s->beta + (uint64_t)at->at * heads, first, at->n, heads);
    copy_rows(k->z.data, s->z + (uint64_t)at->at * w->values, first, at->n, w->values);
    k->segment[i] = (weft_delta_segment){.first_row = first,
                                         .n_rows = at->n,
                                         .kv_len = at->at,
                                         .table = s->table,
                                         .state = at->at < every ? NULL : s->run[at->at / every]};
    for (uint32_t b = at->at / every + 1; b * every <= at->at + at->n && b < BORDERS_MAX; b++)
      k->write[k->n_writes++] = (weft_delta_write){.segment = i, .position = b * every, .pages = s->run[b]};
  }
}

static void prepare_call(world *w, const chunk *chunks, uint32_t n_chunks, call *k) {
  uint32_t heads = w->c->n_v_heads;
  *k = (call){.n_rows = 0};
  for (uint32_t i = 0; i < n_chunks; i++) k->n_rows += chunks[i].n;
  k->x = rows_buffer(k->n_rows, w->channels);
  k->alpha = rows_buffer(k->n_rows, heads);
  k->beta = rows_buffer(k->n_rows, heads);
  k->q = rows_buffer(k->n_rows, w->keys);
  k->v = rows_buffer(k->n_rows, w->values);
  k->z = rows_buffer(k->n_rows, w->values);
  k->out = rows_buffer(k->n_rows, w->values);
  fill_call(w, chunks, n_chunks, k);
}

/* Takes the results out. */
static void keep_results(world *w, const chunk *chunks, uint32_t n_chunks, const call *k) {
  for (uint32_t i = 0; i < n_chunks; i++) {
    const float *from = (const float *)k->out.data + k->segment[i].first_row * (uint64_t)(w->values + GAP);
    for (uint32_t r = 0; r < chunks[i].n; r++)
      memcpy(w->seq[chunks[i].seq].out + (uint64_t)(chunks[i].at + r) * w->values, from + r * (w->values + GAP),
             w->values * sizeof(float));
  }
}

static void finish_call(world *w, const chunk *chunks, uint32_t n_chunks, call *k) {
  keep_results(w, chunks, n_chunks, k);
  buffer *const all[] = {&k->x, &k->alpha, &k->beta, &k->q, &k->v, &k->z, &k->out};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) buffer_free(all[i]);
}

static weft_delta_rows_args rows_args(const world *w, const call *k, uint32_t n_chunks) {
  return (weft_delta_rows_args){.view = w->view,
                                .x = k->x.data,
                                .alpha = k->alpha.data,
                                .beta = k->beta.data,
                                .conv = w->conv,
                                .a = w->a,
                                .dt = w->dt,
                                .q = k->q.data,
                                .v = k->v.data,
                                .segment = k->segment,
                                .n_segments = n_chunks,
                                .n_rows = k->n_rows,
                                .x_stride = w->channels + GAP,
                                .alpha_stride = w->c->n_v_heads + GAP,
                                .beta_stride = w->c->n_v_heads + GAP,
                                .q_stride = w->keys + GAP,
                                .v_stride = w->values + GAP};
}

static weft_delta_rule_args rule_args(const world *w, const call *k, uint32_t n_chunks) {
  return (weft_delta_rule_args){.view = w->view,
                                .q = k->q.data,
                                .v = k->v.data,
                                .beta = k->beta.data,
                                .z = k->z.data,
                                .norm = w->norm,
                                .out = k->out.data,
                                .segment = k->segment,
                                .write = k->write,
                                .n_segments = n_chunks,
                                .n_writes = k->n_writes,
                                .n_rows = k->n_rows,
                                .eps = EPS,
                                .q_stride = w->keys + GAP,
                                .v_stride = w->values + GAP,
                                .beta_stride = w->c->n_v_heads + GAP,
                                .z_stride = w->values + GAP,
                                .out_stride = w->values + GAP};
}

static void run_call(weft_device *device, world *w, const chunk *chunks, uint32_t n_chunks) {
  call k;
  prepare_call(w, chunks, n_chunks, &k);
  weft_delta_rows_args rows = rows_args(w, &k, n_chunks);
  assert_int_equal(done(device, weft_delta_rows(device, &rows)), WEFT_OK);
  weft_delta_rule_args args = rule_args(w, &k, n_chunks);
  RUN_OP(delta_rule, device, &args);
  finish_call(w, chunks, n_chunks, &k);
}

static void run_whole(weft_device *device, world *w, uint32_t seq) {
  const chunk all = {seq, 0, POSITIONS};
  run_call(device, w, &all, 1);
}

/* ---- the recurrence ---- */

static double silu(double x) {
  return x / (1.0 + exp(-x));
}

/* Channel c after the convolution, at a position. */
static double convolved(const world *w, const sequence *s, uint32_t position, uint32_t c) {
  double y = 0.0;
  for (uint32_t j = 0; j < WEFT_DELTA_TAPS; j++) {
    if (position + j < WEFT_DELTA_TAPS - 1) continue;
    uint64_t from = position + j - (WEFT_DELTA_TAPS - 1);
    y += (double)w->conv[c * WEFT_DELTA_TAPS + j] * (double)s->x[from * w->channels + c];
  }
  return silu(y);
}

static void convolved_head(const world *w, const sequence *s, uint32_t position, uint32_t first, double factor,
                           double *out) {
  double sum = 0.0;
  for (uint32_t i = 0; i < w->c->dim; i++) out[i] = convolved(w, s, position, first + i);
  for (uint32_t i = 0; i < w->c->dim; i++) sum += out[i] * out[i];
  for (uint32_t i = 0; factor > 0 && i < w->c->dim; i++) out[i] *= factor / sqrt(sum + 1e-6);
}

/* One value head at all positions, from S = 0, as the model's paper has it: nothing is stored and nothing rounded. */
static void recur_head(const world *w, const sequence *s, uint32_t h, double *out) {
  static double S[WEFT_DELTA_DIM_MAX][WEFT_DELTA_DIM_MAX];
  uint32_t dim = w->c->dim, heads = w->c->n_v_heads, from = h % w->c->n_k_heads;
  double q[WEFT_DELTA_DIM_MAX], k[WEFT_DELTA_DIM_MAX], v[WEFT_DELTA_DIM_MAX], o[WEFT_DELTA_DIM_MAX];
  memset(S, 0, sizeof S);
  for (uint32_t t = 0; t < POSITIONS; t++) {
    convolved_head(w, s, t, from * dim, 1.0 / sqrt((double)dim), q);
    convolved_head(w, s, t, w->keys + from * dim, 1.0, k);
    convolved_head(w, s, t, 2 * w->keys + h * dim, 0.0, v);
    double x = (double)s->alpha[t * heads + h] + (double)w->dt[h], sum = 0.0;
    double decay = exp((double)w->a[h] * log1p(exp(x))), beta = 1.0 / (1.0 + exp(-(double)s->beta[t * heads + h]));
    memset(o, 0, sizeof o);
    for (uint32_t j = 0; j < dim; j++) {
      double seen = 0.0;
      for (uint32_t i = 0; i < dim; i++) seen += decay * S[i][j] * k[i];
      for (uint32_t i = 0; i < dim; i++) S[i][j] = decay * S[i][j] + k[i] * beta * (v[j] - seen);
      for (uint32_t i = 0; i < dim; i++) o[j] += S[i][j] * q[i];
      sum += o[j] * o[j];
    }
    for (uint32_t j = 0; j < dim; j++)
      out[t * dim + j] = o[j] / sqrt(sum / dim + (double)EPS) * (double)w->norm[j] *
                         silu((double)s->z[(uint64_t)t * w->values + h * dim + j]);
  }
}

/* What ref stores is f32, so it is off by roundings alone: 2^-24 of each u, key and gate and of the states at borders,
 * each of which comes into an output that the norm has made about 1, times norm and gate, each below 5. */
static void test_recurrence(void **state) {
  const devices *all = *state;
  for (uint32_t i = 0; i < N_CASES; i++) {
    if (cases[i].type != WEFT_TYPE_F32) continue;
    if (quick && touches_are_seen) continue; /* of numbers alone */
    world w;
    open_world(&w, &cases[i], 100 + i);
    run_whole(all->ref, &w, 0);
    double *out = memory_new((uint64_t)POSITIONS * w.c->dim, sizeof *out), worst = 0.0;
    for (uint32_t h = 0; h < w.c->n_v_heads; h++) {
      recur_head(&w, &w.seq[0], h, out);
      for (uint32_t t = 0; t < POSITIONS; t++) {
        for (uint32_t j = 0; j < w.c->dim; j++) {
          double d = fabs(out[t * w.c->dim + j] - (double)w.seq[0].out[(uint64_t)t * w.values + h * w.c->dim + j]);
          if (!(d <= worst)) worst = d;
        }
      }
    }
    memory_free(out);
    assert_within(w.c->name, "ref", worst, 25 * 64 * 0x1p-24);
    close_world(&w);
  }
}

/* ---- devices against ref ---- */

/* A backend may lack the ops: a model that needs them is then refused. */
static bool is_left_out(const devices *all, uint32_t d, uint32_t turn) {
  return is_out_of_turn(all, d, turn) || weft_device_kernels(all->cpu[d])->delta_rule == NULL;
}

/* f32: each sum of dim + every products is off by a few of the 2^-24 of its terms, and the norm makes the result about
 * 1, times norm and gate. bf16: where a device rounds a u or key to the other side, it is off by 2^-8 of it; it is one
 * of many that come into an output. */
static double tolerance_of(const delta_case *c) {
  return c->type == WEFT_TYPE_F32 ? 25 * (c->dim + c->every) * 0x1p-24 : 25 * 0x1p-8;
}

static void test_devices(void **state) {
  const devices *all = *state;
  for (uint32_t i = case_first; i < N_CASES; i += case_step) {
    world ref;
    open_world(&ref, &cases[i], 200 + i);
    run_whole(all->ref, &ref, 0);
    for (uint32_t d = 0; d < all->n; d++) {
      if (is_left_out(all, d, i)) continue;
      world w;
      open_world(&w, &cases[i], 200 + i);
      run_whole(all->cpu[d], &w, 0);
      double worst = distance(ref.seq[0].out, w.seq[0].out, POSITIONS, w.values, w.values);
      assert_within(w.c->name, all->name[d], worst, tolerance_of(w.c));
      close_world(&w);
    }
    close_world(&ref);
  }
}

/* ---- the same rows in other calls ---- */

static void run_in_chunks(weft_device *device, world *w, uint32_t seq, const uint32_t *sizes, uint32_t n_sizes) {
  for (uint32_t at = 0, i = 0; at < POSITIONS; i++) {
    uint32_t n = sizes[i % n_sizes];
    chunk one = {seq, at, at + n > POSITIONS ? POSITIONS - at : n};
    run_call(device, w, &one, 1);
    at += one.n;
  }
}

/* Two sequences in one call, of other lengths or with a row each, in either order, from where each is. */
static void run_side_by_side(weft_device *device, world *w) {
  uint32_t at[SEQUENCES] = {0, 0}, step = 0;
  while (at[0] < POSITIONS || at[1] < POSITIONS) {
    chunk both[SEQUENCES];
    uint32_t n = 0;
    for (uint32_t i = 0; i < SEQUENCES; i++) {
      uint32_t s = step % 2 == 0 ? i : SEQUENCES - 1 - i, left = POSITIONS - at[s];
      uint32_t rows = s == step % 2 && step % 3 != 2 ? 37 : 1;
      if (left == 0) continue;
      both[n++] = (chunk){s, at[s], rows < left ? rows : left};
      at[s] += both[n - 1].n;
    }
    run_call(device, w, both, n);
    step += 1;
  }
}

/* A call with a few rows of one sequence and a whole prompt of another, and then the other way round. */
static void run_beside_a_prompt(weft_device *device, world *w) {
  run_call(device, w, (const chunk[]){{0, 0, 5}, {1, 0, POSITIONS}}, 2);
  run_call(device, w, (const chunk[]){{0, 5, POSITIONS - 5}, {1, 0, 1}}, 2);
}

/* Rows of which all but the first were drafts, and wrong: they are computed from other inputs, then anew. */
static void run_with_void_rows(weft_device *device, world *w) {
  sequence *s = &w->seq[0];
  for (uint32_t at = 0; at < POSITIONS;) {
    uint32_t n = at + 5 > POSITIONS ? POSITIONS - at : 5;
    float *kept = memory_new((uint64_t)(n - 1) * w->channels + 1, sizeof *kept),
          *rows = s->x + (uint64_t)(at + 1) * w->channels;
    memcpy(kept, rows, (uint64_t)(n - 1) * w->channels * sizeof *kept);
    fill_normal(rows, (uint64_t)(n - 1) * w->channels, 5000 + at);
    run_call(device, w, &(chunk){0, at, n}, 1);
    memcpy(rows, kept, (uint64_t)(n - 1) * w->channels * sizeof *kept);
    memory_free(kept);
    at += 1;
  }
}

/* Outputs, stored rows and states are the same, wherever their pages lie (which is the same place in both worlds). */
static void assert_same_world(const world *a, const world *b, const char *device, const char *what) {
  uint64_t n = (uint64_t)POSITIONS * a->values * sizeof(float);
  assert_same(a->c->name, device, what, a->seq[0].out, b->seq[0].out, n);
  for (uint32_t p = 0; p < POSITIONS; p++)
    assert_same(a->c->name, device, what, weft_delta_row(&a->view, a->seq[0].table, p),
                weft_delta_row(&b->view, b->seq[0].table, p), weft_delta_row_bytes(&a->view));
  for (uint32_t i = 1; i < BORDERS_MAX && a->seq[0].run[i] != NULL; i++) {
    for (uint32_t h = 0; h < a->c->n_v_heads; h++)
      assert_same(a->c->name, device, what, weft_delta_unit(&a->view.state, a->seq[0].run[i], h),
                  weft_delta_unit(&b->view.state, b->seq[0].run[i], h), a->view.state.unit_bytes);
    assert_same(a->c->name, device, what, weft_delta_unit(&a->view.tail, a->seq[0].run[i], 0),
                weft_delta_unit(&b->view.tail, b->seq[0].run[i], 0), a->view.tail.unit_bytes);
  }
}

static void check_calls(const devices *all, weft_device *device, const char *name, uint32_t i) {
  static const uint32_t ones[] = {1}, uneven[] = {63, 1, 2, 3, 64, 7}, halves[] = {65, 128}, draft[] = {1, 5, 2};
  static const struct {
    const char *what;
    const uint32_t *sizes;
    uint32_t n_sizes;
  } ways[] = {{"row by row", ones, 1}, {"uneven chunks", uneven, 6}, {"65 and 128", halves, 2}, {"runs", draft, 3}};
  world whole;
  (void)all;
  open_world(&whole, &cases[i], 300 + i);
  run_whole(device, &whole, 0);
  for (uint32_t k = 0; k < sizeof ways / sizeof ways[0]; k++) {
    world w;
    if (quick && (k > 1 || (touches_are_seen && k == 0))) continue; /* single rows stand beside another sequence, too */
    open_world(&w, &cases[i], 300 + i);
    run_in_chunks(device, &w, 0, ways[k].sizes, ways[k].n_sizes);
    assert_same_world(&whole, &w, name, ways[k].what);
    close_world(&w);
  }
  world w;
  open_world(&w, &cases[i], 300 + i);
  run_side_by_side(device, &w);
  assert_same_world(&whole, &w, name, "beside another sequence");
  close_world(&w);
  open_world(&w, &cases[i], 300 + i);
  run_beside_a_prompt(device, &w);
  assert_same_world(&whole, &w, name, "beside a prompt");
  close_world(&w);
  open_world(&w, &cases[i], 300 + i);
  run_with_void_rows(device, &w);
  assert_same_world(&whole, &w, name, "after void rows");
  close_world(&w);
  close_world(&whole);
}

static void test_calls(void **state) {
  const devices *all = *state;
  for (uint32_t i = case_first; i < N_CASES; i += case_step) {
    if (cases[i].dim < 64) check_calls(all, all->ref, "ref", i);
    for (uint32_t d = 0; d < all->n; d++) {
      if (is_left_out(all, d, i)) continue;
      check_calls(all, all->cpu[d], all->name[d], i);
    }
  }
}

/* ---- as graphs ---- */

/* Decode, row by row, as steps of which each is a graph if one was made for such a step: other positions, other lists,
 * and at borders a write more. */
static void check_graphs(weft_device *device, const char *name, uint32_t i) {
  enum { GRAPH_KEY = 1 };
  world calls, graphs;
  open_world(&calls, &cases[i], 300 + i);
  open_world(&graphs, &cases[i], 300 + i);
  chunk one = {0, 0, 1};
  call k;
  prepare_call(&graphs, &one, 1, &k);
  weft_delta_rule_args args = rule_args(&graphs, &k, 1);
  buffer scratch = buffer_new(weft_delta_rule_scratch(device, &args));
  for (; one.at < POSITIONS; one.at++) {
    run_call(device, &calls, &one, 1);
    fill_call(&graphs, &one, 1, &k);
    weft_delta_rows_args rows = rows_args(&graphs, &k, 1);
    args = rule_args(&graphs, &k, 1);
    args.scratch = scratch.data, args.scratch_bytes = scratch.n_bytes;
    weft_status status;
    weft_device_graph_begin(device, GRAPH_KEY, NULL);
    do {
      status = weft_delta_rows(device, &rows);
      if (status == WEFT_OK) status = weft_delta_rule(device, &args);
    } while (weft_device_graph_end(device, &status));
    assert_int_equal(done(device, status), WEFT_OK);
    keep_results(&graphs, &one, 1, &k);
  }
  assert_same_world(&calls, &graphs, name, "steps as graphs");
  buffer_free(&scratch);
  finish_call(&graphs, &(chunk){0, POSITIONS - 1, 1}, 1, &k);
  close_world(&graphs);
  close_world(&calls);
}

/* Devices without graphs compute the same calls: one case shows that the test is right. */
static void test_graphs(void **state) {
  const devices *all = *state;
  for (uint32_t i = case_first; i < N_CASES; i += case_step) {
    if (i == 5) check_graphs(all->ref, "ref", i);
    for (uint32_t d = 0; d < all->n; d++) {
      if (weft_device_kernels(all->cpu[d])->delta_rule == NULL) continue;
      if (weft_device_get_info(all->cpu[d])->graphs) check_graphs(all->cpu[d], all->name[d], i);
    }
  }
}

/* ---- refusals ---- */

static void test_refusals(void **state) {
  const devices *all = *state;
  world w;
  open_world(&w, &cases[0], 400);
  call k;
  const chunk one = {0, 0, 3};
  prepare_call(&w, &one, 1, &k);
  weft_delta_rule_args good = {.view = w.view,
                               .q = k.q.data,
                               .v = k.v.data,
                               .beta = k.beta.data,
                               .z = k.z.data,
                               .norm = w.norm,
                               .out = k.out.data,
                               .segment = k.segment,
                               .n_segments = 1,
                               .n_rows = 3,
                               .q_stride = w.keys,
                               .v_stride = w.values,
                               .beta_stride = w.c->n_v_heads,
                               .z_stride = w.values,
                               .out_stride = w.values};
  const weft_delta_write beyond = {.segment = 0, .position = 64, .pages = w.seq[0].run[1]};
  weft_delta_rule_args bad[6] = {good, good, good, good, good, good};
  bad[0].view.dim = 12;
  bad[1].view.n_k_heads = 0;
  bad[2].view.every = 48;
  bad[3].view.state.unit_bytes += 4;
  bad[4].n_rows = 4;
  bad[5].write = &beyond;
  bad[5].n_writes = 1;
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
    assert_int_equal(weft_delta_rule(all->ref, &bad[i]), WEFT_E_INVALID);
  k.segment[0].kv_len = 64; /* behind a border, and no state */
  assert_int_equal(weft_delta_rule(all->ref, &good), WEFT_E_INVALID);
  k.segment[0].kv_len = 0;
  finish_call(&w, &one, 1, &k);
  close_world(&w);
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_recurrence), cmocka_unit_test(test_devices),  cmocka_unit_test(test_calls),
      cmocka_unit_test(test_graphs),     cmocka_unit_test(test_refusals),
  };
  take_arguments(argc, argv);
  return cmocka_run_group_tests(tests, setup_devices, teardown_devices);
}
