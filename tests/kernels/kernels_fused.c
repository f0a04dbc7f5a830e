/* SPDX-License-Identifier: MIT */
/* Ops that stand for several: norms in a row, a gated product, a router with its choice, experts with a shared MLP. On
 * every device they give the bits of their parts, called one after another, for one row and for many. */
#include "tests/kernels/harness.h"
#include "tests/kernels/weights.h"

static const uint32_t row_counts[] = {1, 2, 4, 5, 9, 17, 33};
enum { N_COUNTS = sizeof row_counts / sizeof row_counts[0], ROWS = 33, THEN = WEFT_NORM_THEN_MAX };
enum { TURNS = 8, GRAPH_KEY = 4100 };

/* The first n numbers of a seed. They are drawn once: drawing them for every case was four fifths of this test. */
static float *rows_new(uint64_t n, uint32_t seed) {
  enum { SEEDS = 128 };
  static struct {
    float *number;
    uint64_t n;
  } drawn[SEEDS];
  float *out = memory_new(n, sizeof *out);
  assert_true(seed < SEEDS);
  if (drawn[seed].n < n) {
    free(drawn[seed].number);
    drawn[seed].number = malloc((size_t)n * sizeof *out);
    drawn[seed].n = n;
    assert_non_null(drawn[seed].number);
    fill_normal(drawn[seed].number, n, seed);
  }
  memcpy(out, drawn[seed].number, (size_t)n * sizeof *out);
  return out;
}

/* ---- norms ---- */

typedef struct norms {
  float *x, *x2, *y, *then[THEN], *weight[4 + THEN];
  uint32_t n;
} norms;

static norms norms_new(uint32_t n_rows, uint32_t n, const norms *weights) {
  norms s = {.n = n};
  s.x = rows_new((uint64_t)n_rows * n, 1);
  s.x2 = rows_new((uint64_t)n_rows * n, 2);
  s.y = rows_new((uint64_t)n_rows * n, 3); /* the residual, in place */
  for (uint32_t i = 0; i < THEN; i++) s.then[i] = rows_new((uint64_t)n_rows * n, 4);
  for (uint32_t i = 0; i < 4 + THEN; i++)
    s.weight[i] = weights != NULL ? weights->weight[i] : rows_new(n + ROWS, 10 + i);
  return s;
}

static void norms_free(norms *s, bool weights) {
  memory_free(s->x);
  memory_free(s->x2);
  memory_free(s->y);
  for (uint32_t i = 0; i < THEN; i++) memory_free(s->then[i]);
  for (uint32_t i = 0; i < 4 + THEN && weights; i++) memory_free(s->weight[i]);
}

static weft_norm_args norm_of(const norms *s, uint32_t n_rows, float *x, const float *weight, float *y) {
  weft_norm_args a = {.x = x, .weight = weight, .y = y, .n_rows = n_rows, .n_cols = s->n, .eps = 1e-6f};
  a.x_stride = a.x2_stride = a.add_stride = a.y_stride = s->n;
  return a;
}

static void run_norms(weft_device *device, const norms *s, uint32_t n_rows, bool fused, bool two, uint32_t n_then) {
  weft_norm_args all = norm_of(s, n_rows, s->x, s->weight[2], s->y), part;
  all.x2 = two ? s->x2 : NULL;
  all.add = s->y;
  all.row_scale = s->weight[3];
  if (fused) {
    all.x_weight = s->weight[0];
    all.x2_weight = two ? s->weight[1] : NULL;
    all.n_then = n_then;
    for (uint32_t i = 0; i < n_then; i++) all.then[i] = s->then[i], all.then_weight[i] = s->weight[4 + i];
    assert_int_equal(done(device, weft_norm(device, &all)), WEFT_OK);
    return;
  }
  part = norm_of(s, n_rows, s->x, s->weight[0], s->x);
  assert_int_equal(done(device, weft_norm(device, &part)), WEFT_OK);
  part = norm_of(s, n_rows, s->x2, s->weight[1], s->x2);
  if (two) assert_int_equal(done(device, weft_norm(device, &part)), WEFT_OK);
  assert_int_equal(done(device, weft_norm(device, &all)), WEFT_OK);
  for (uint32_t i = 0; i < n_then; i++) {
    part = norm_of(s, n_rows, s->y, s->weight[4 + i], s->then[i]);
    assert_int_equal(done(device, weft_norm(device, &part)), WEFT_OK);
  }
}

/* Numbers of rows that give every multiprocessor of a card work say nothing more of a cpu than the eighth part of them:
 * in the quick amount it has that. */
enum { FEWER = 8 };
static uint32_t few_on_cpu(const weft_device *device, uint32_t n_rows) {
  return quick && !is_cuda(device) ? n_rows / FEWER : n_rows;
}

static void test_norms(void **state) {
  const devices *all = *state;
  static const uint32_t widths[] = {8, 37, 200, 2816, 5000, 7168};
  for (uint32_t i = 0; i < 5 * (all->n + 1); i++) {
    weft_device *device = i / 5 == 0 ? all->ref : all->cpu[i / 5 - 1];
    const char *name = i / 5 == 0 ? "ref" : all->name[i / 5 - 1];
    for (uint32_t c = 0; c < N_COUNTS; c++) {
      norms a = norms_new(ROWS, widths[i % 5], NULL), b = norms_new(ROWS, widths[i % 5], &a);
      run_norms(device, &a, row_counts[c], true, c % 2 == 0, c % (THEN + 1));
      run_norms(device, &b, row_counts[c], false, c % 2 == 0, c % (THEN + 1));
      size_t n_bytes = (size_t)ROWS * a.n * sizeof(float);
      assert_same("norms", name, "the sum", b.y, a.y, n_bytes);
      for (uint32_t k = 0; k < THEN; k++)
        assert_same("norms", name, "a norm that follows", b.then[k], a.then[k], n_bytes);
      norms_free(&b, false);
      norms_free(&a, true);
    }
  }
}

/* Factors of rows that the kernel before the norm makes, again and again in the same place: a norm that begins early
 * waits before it reads them. */
static weft_status scale_by_turns(weft_device *device, const weft_move_args *move, const weft_norm_args *norm) {
  weft_status status = WEFT_OK;
  for (uint32_t i = 0; i < TURNS && status == WEFT_OK; i++) {
    weft_move_args own = *move;
    weft_norm_args to = *norm;
    own.from += i % 2 * ROWS;
    to.y += (uint64_t)i * ROWS * norm->n_cols;
    status = weft_move(device, &own);
    if (status == WEFT_OK) status = weft_norm(device, &to);
  }
  return status;
}

static void test_factors_made_before(void **state) {
  const devices *all = *state;
  const uint32_t n = 256;
  for (uint32_t d = 0; d < all->n; d++) {
    weft_device *device = all->cpu[d];
    float *x = rows_new(ROWS * n, 1), *from = rows_new(2 * ROWS, 2), *share = rows_new(ROWS, 3);
    float *y = memory_new((size_t)TURNS * ROWS * n, sizeof *y), *want = memory_new(n, sizeof *want);
    int32_t *at = memory_new(ROWS, sizeof *at);
    for (int32_t r = 0; r < ROWS; r++) at[r] = r;
    const weft_move_args move = {
        .to = (int32_t *)(void *)share, .from = (const int32_t *)(const void *)from, .from_at = at, .n_rows = ROWS};
    const weft_norm_args norm = {
        .x = x, .y = y, .row_scale = share, .n_rows = ROWS, .n_cols = n, .plain = true, .x_stride = n, .y_stride = n};
    for (uint32_t again = 0; again < 3; again++) { /* the last time as a graph, where there are some */
      weft_status status;
      memset(y, 0, (size_t)TURNS * ROWS * n * sizeof *y);
      weft_device_graph_begin(device, GRAPH_KEY, NULL);
      do status = scale_by_turns(device, &move, &norm);
      while (weft_device_graph_end(device, &status));
      assert_int_equal(done(device, status), WEFT_OK);
      for (uint32_t i = 0; i < TURNS * ROWS; i++) {
        for (uint32_t c = 0; c < n; c++) want[c] = x[i % ROWS * n + c] * from[i / ROWS % 2 * ROWS + i % ROWS];
        assert_same("factors made before", all->name[d], "a row", want, y + (uint64_t)i * n, n * sizeof *y);
      }
    }
    void *memory[] = {x, from, share, y, want, at};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) memory_free(memory[i]);
  }
}

/* ---- products ---- */

static weft_weight matrix(weft_device *device, weft_type type, uint32_t n_out, uint32_t n_in, uint32_t seed) {
  stored s = stored_new(type, 1, n_out, n_in, seed);
  weft_weight weight = upload(device, &s);
  stored_free(&s);
  return weight;
}

static void *scratch_of(uint64_t n_bytes) {
  return n_bytes == 0 ? NULL : memory_new(n_bytes, 1);
}

static void run_product(weft_device *device, weft_matmul_args *args) {
  args->scratch_bytes = weft_matmul_scratch(device, args);
  args->scratch = scratch_of(args->scratch_bytes);
  assert_int_equal(done(device, weft_matmul(device, args)), WEFT_OK);
  if (args->scratch != NULL) memory_free(args->scratch);
}

static void gated_once(weft_device *device, const char *name, const weft_weight *g, const weft_weight *u,
                       uint32_t n_rows) {
  uint64_t n_out = g->n_out, n_all = n_rows > ROWS ? n_rows : ROWS, n = n_all * n_out;
  float *x = rows_new(n_all * g->n_in, 5), *y[2][2];
  for (uint32_t i = 0; i < 4; i++) y[i / 2][i % 2] = rows_new(n, 6);
  weft_matmul_args m = {.x = x, .n_rows = n_rows, .n_weights = 2, .weight = {g, u}, .x_stride = g->n_in};
  m.y_stride[0] = m.y_stride[1] = n_out;
  for (uint32_t way = 0; way < 2; way++) {
    m.y[0] = y[way][0];
    m.y[1] = y[way][1];
    m.activation = way == 0 ? WEFT_GELU_TANH : 0;
    run_product(device, &m);
  }
  weft_gate_args gate = {.g = y[1][0],
                         .u = y[1][1],
                         .y = y[1][0],
                         .n_rows = n_rows,
                         .n_cols = g->n_out,
                         .g_stride = n_out,
                         .u_stride = n_out,
                         .y_stride = n_out,
                         .activation = WEFT_GELU_TANH};
  assert_int_equal(done(device, weft_gate(device, &gate)), WEFT_OK);
  assert_same("a gated product", name, weft_type_find((int32_t)g->type)->name, y[1][0], y[0][0], n * sizeof(float));
  for (uint32_t i = 0; i < 4; i++) memory_free(y[i / 2][i % 2]);
  memory_free(x);
}

/* So many rows and outputs that a card takes 128 rows at a time, or 192 from integers, which makes act(g) * u in the
 * product itself; from integers of two types, too. The last rows and outputs are not whole items. */
static void test_gated_many(void **state) {
  const devices *all = *state;
  static const struct {
    weft_type gate, up;
    uint32_t n_in, n_rows;
  } cases[] = {{WEFT_TYPE_Q4_K, WEFT_TYPE_Q4_K, 512, 500}, {WEFT_TYPE_Q5_K, WEFT_TYPE_Q5_K, 256, 500},
               {WEFT_TYPE_Q6_K, WEFT_TYPE_Q6_K, 256, 500}, {WEFT_TYPE_Q8_0, WEFT_TYPE_Q8_0, 192, 700},
               {WEFT_TYPE_Q5_0, WEFT_TYPE_Q5_0, 320, 500}, {WEFT_TYPE_Q4_0, WEFT_TYPE_Q4_0, 128, 500},
               {WEFT_TYPE_Q4_K, WEFT_TYPE_Q8_0, 256, 700}};
  for (uint32_t d = all->n_cpu - 1; d < all->n; d++) {
    for (uint32_t i = case_first; i < sizeof cases / sizeof cases[0]; i += case_step) {
      weft_weight g = matrix(all->cpu[d], cases[i].gate, 2104, cases[i].n_in, 100),
                  u = matrix(all->cpu[d], cases[i].up, 2104, cases[i].n_in, 900);
      gated_once(all->cpu[d], all->name[d], &g, &u, few_on_cpu(all->cpu[d], cases[i].n_rows));
      weft_device_weight_free(all->cpu[d], &g);
      weft_device_weight_free(all->cpu[d], &u);
    }
  }
}

static void test_gated(void **state) {
  const devices *all = *state;
  static const weft_type types[][2] = {{WEFT_TYPE_Q4_K, WEFT_TYPE_Q4_K}, {WEFT_TYPE_Q8_0, WEFT_TYPE_Q8_0},
                                       {WEFT_TYPE_F16, WEFT_TYPE_F16},   {WEFT_TYPE_F32, WEFT_TYPE_F32},
                                       {WEFT_TYPE_BF16, WEFT_TYPE_BF16}, {WEFT_TYPE_Q4_K, WEFT_TYPE_Q8_0}};
  for (uint32_t d = 0; d < all->n; d++) {
    for (uint32_t t = 0; t < sizeof types / sizeof types[0]; t++) {
      if (is_out_of_turn(all, d, t)) continue;
      weft_weight g = matrix(all->cpu[d], types[t][0], 72, 1536, 100),
                  u = matrix(all->cpu[d], types[t][1], 72, 1536, 900);
      for (uint32_t c = 0; c < N_COUNTS; c++) gated_once(all->cpu[d], all->name[d], &g, &u, row_counts[c]);
      weft_device_weight_free(all->cpu[d], &g);
      weft_device_weight_free(all->cpu[d], &u);
    }
  }
}

/* Many rows at once have the bits of some rows at a time. */
static void test_many_norms(void **state) {
  const devices *all = *state;
  enum { MANY = 640, SOME = MANY / FEWER / 2, WIDE = 2816 };
  for (uint32_t d = 0; d < all->n; d++) {
    uint32_t n = few_on_cpu(all->cpu[d], MANY);
    norms a = norms_new(n, WIDE, NULL), b = norms_new(n, WIDE, &a);
    run_norms(all->cpu[d], &a, n, true, true, THEN);
    for (uint32_t first = 0; first < n; first += SOME) {
      norms some = b;
      uint64_t at = (uint64_t)first * WIDE;
      some.x += at, some.x2 += at, some.y += at, some.weight[3] += first;
      for (uint32_t k = 0; k < THEN; k++) some.then[k] += at;
      run_norms(all->cpu[d], &some, SOME, true, true, THEN);
    }
    size_t n_bytes = (size_t)n * WIDE * sizeof(float);
    assert_same("many norms", all->name[d], "the sum", b.y, a.y, n_bytes);
    for (uint32_t k = 0; k < THEN; k++)
      assert_same("many norms", all->name[d], "a norm that follows", b.then[k], a.then[k], n_bytes);
    norms_free(&b, false);
    norms_free(&a, true);
  }
}

/* ---- prepared rows ---- */

/* A product of rows that a norm left in the form that the weight takes has the bits of that of the same rows in f32. */
static void prepared_once(weft_device *device, const char *name, const weft_weight *weight, uint32_t n_rows) {
  uint32_t n = weight->n_in;
  float *x = rows_new((uint64_t)n_rows * n, 50), *y = rows_new((uint64_t)n_rows * n, 51),
        *then = rows_new((uint64_t)n_rows * n, 52), *result[2], *factor = rows_new(n, 53);
  memset(x + 2ull * n, 0, n * sizeof *x);
  if (is_cuda(device)) x[5ull * n + 1] = INFINITY;
  x[7ull * n] = 1e30f;
  for (uint32_t way = 0; way < 2; way++) {
    weft_rows_form form = way == 0 ? WEFT_ROWS_F32 : weft_device_rows_form(device, weight, n_rows, WEFT_ROWS_TO_MATMUL);
    bool whole = n % 256 == 0 || !is_eight(device); /* in 8 bits a span of 256 has a scale */
    if (way == 1) assert_int_equal(form != WEFT_ROWS_F32, is_cuda(device) && n_rows > 16 && whole);
    assert_true(weft_device_rows_bytes(device, form, n_rows, n) <= sizeof(float) * n_rows * n);
    weft_norm_args norm = {.x = x, .y = y, .n_rows = n_rows, .n_cols = n, .n_then = 2, .eps = 1e-6f};
    norm.x_stride = norm.y_stride = n;
    float *other = rows_new((uint64_t)n_rows * n, 54);
    norm.then[0] = other, norm.then[1] = then, norm.then_weight[0] = norm.then_weight[1] = factor;
    norm.then_form[1] = form;
    assert_int_equal(done(device, weft_norm(device, &norm)), WEFT_OK);
    result[way] = rows_new((uint64_t)n_rows * weight->n_out, 55);
    weft_matmul_args m = {.x = then, .x_form = form, .n_rows = n_rows, .n_weights = 1, .weight = {weight}};
    m.y[0] = result[way], m.x_stride = n, m.y_stride[0] = weight->n_out;
    run_product(device, &m);
    memory_free(other);
  }
  assert_same("prepared rows", name, "the product", result[1], result[0],
              (size_t)n_rows * weight->n_out * sizeof(float));
  memory_free(result[0]);
  memory_free(result[1]);
  memory_free(factor);
  memory_free(then);
  memory_free(y);
  memory_free(x);
}

static void test_prepared(void **state) {
  const devices *all = *state;
  static const uint32_t widths[] = {256, 2816, 4096, 5120, 2880}, counts[] = {9, 17, 40, 600};
  for (uint32_t d = 0; d < all->n; d++) {
    for (uint32_t w = 0; w < sizeof widths / sizeof *widths; w++) {
      if (is_out_of_turn(all, d, w)) continue;
      weft_type type = widths[w] % 256 == 0 ? WEFT_TYPE_Q4_K : WEFT_TYPE_Q8_0;
      weft_weight weight = matrix(all->cpu[d], type, 48, widths[w], 60);
      for (uint32_t c = 0; c < sizeof counts / sizeof *counts; c++)
        prepared_once(all->cpu[d], all->name[d], &weight, counts[c]);
      weft_device_weight_free(all->cpu[d], &weight);
    }
  }
}

/* ---- the router ---- */

enum { ROUTE_SPARE = 64 }; /* rows after the last one, which stay as they are */
static const uint32_t route_counts[] = {1, 2, 3, 4, 5, 32, 33, 70, 140, 690};
static const uint32_t route_many[] = {1100, 2250, 3300}; /* more items than a card has multiprocessors */

static void route_once(weft_device *device, const char *name, const weft_weight *router, bool biased, uint32_t n_rows) {
  enum { K = 4 };
  uint64_t n_all = n_rows + ROUTE_SPARE, n = n_all * router->n_out;
  float *x = rows_new((uint64_t)n_rows * router->n_in, 7), *logits[2], *weights[2], *scale = rows_new(router->n_out, 8);
  float *bias = rows_new(router->n_out, 4);
  int32_t *ids[2];
  for (uint32_t way = 0; way < 2; way++) {
    logits[way] = rows_new(n, 9);
    weights[way] = rows_new(n_all * K, 9);
    ids[way] = memory_new(n_all * K, sizeof **ids);
    weft_route_args route = {.x = x,
                             .router = router,
                             .logits = logits[way],
                             .expert_scale = scale,
                             .ids = ids[way],
                             .weights = weights[way],
                             .n_rows = n_rows,
                             .n_experts = router->n_out,
                             .k = K,
                             .x_stride = router->n_in,
                             .logits_stride = router->n_out,
                             .router_bias = biased ? bias : NULL};
    route.scratch = scratch_of(route.scratch_bytes = weft_route_scratch(device, &route));
    if (way == 1) {
      weft_matmul_args m = {.x = x,
                            .n_rows = n_rows,
                            .n_weights = 1,
                            .weight = {router},
                            .y = {logits[1]},
                            .x_stride = router->n_in,
                            .y_stride = {router->n_out},
                            .scratch = route.scratch,
                            .scratch_bytes = route.scratch_bytes};
      assert_int_equal(done(device, weft_matmul(device, &m)), WEFT_OK);
      weft_norm_args add = {.x = logits[1], .add = bias, .y = logits[1], .n_rows = n_rows, .n_cols = router->n_out};
      add.x_stride = add.y_stride = router->n_out;
      add.plain = true;
      if (biased) assert_int_equal(done(device, weft_norm(device, &add)), WEFT_OK);
      route.router = NULL;
      route.router_bias = NULL;
    }
    assert_int_equal(done(device, weft_route(device, &route)), WEFT_OK);
    if (route.scratch != NULL) memory_free(route.scratch);
  }
  assert_same("a router", name, "logits", logits[1], logits[0], n * sizeof(float));
  assert_same("a router", name, "the choice", ids[1], ids[0], n_all * K * sizeof **ids);
  assert_same("a router", name, "weights", weights[1], weights[0], n_all * K * sizeof **weights);
  for (uint32_t way = 0; way < 2; way++) {
    memory_free(logits[way]);
    memory_free(weights[way]);
    memory_free(ids[way]);
  }
  memory_free(bias);
  memory_free(scale);
  memory_free(x);
}

static void test_router(void **state) {
  const devices *all = *state;
  static const struct {
    weft_type type;
    uint32_t n_experts, n_in;
    bool biased;
  } cases[] = {{WEFT_TYPE_F32, 128, 2816, false}, {WEFT_TYPE_F32, 9, 32, false},    {WEFT_TYPE_F32, 300, 512, false},
               {WEFT_TYPE_Q8_0, 16, 256, false},  {WEFT_TYPE_F32, 64, 4096, false}, {WEFT_TYPE_F32, 32, 2880, true},
               {WEFT_TYPE_F32, 128, 2880, true},  {WEFT_TYPE_Q8_0, 16, 256, true}};
  for (uint32_t d = 0; d < all->n; d++) {
    for (uint32_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
      if (is_out_of_turn(all, d, c)) continue;
      weft_weight router = matrix(all->cpu[d], cases[c].type, cases[c].n_experts, cases[c].n_in, 300);
      const uint32_t step = quick && touches_are_seen ? 2 : 1;
      for (uint32_t r = c % step; r < sizeof route_counts / sizeof *route_counts; r += step)
        route_once(all->cpu[d], all->name[d], &router, cases[c].biased, route_counts[r]);
      weft_device_weight_free(all->cpu[d], &router);
    }
    weft_weight router = matrix(all->cpu[d], WEFT_TYPE_F32, 100, 388, 301);
    for (uint32_t r = 0; r < sizeof route_many / sizeof *route_many; r++)
      route_once(all->cpu[d], all->name[d], &router, r % 2 == 1, few_on_cpu(all->cpu[d], route_many[r]));
    weft_device_weight_free(all->cpu[d], &router);
  }
}

/* ---- experts with a shared MLP ---- */

enum { LAYERS = 2, WIDTH = 512, FF_MAX = 5024, EXPERTS = 9, TOP = 8, SHARED_ROWS = 300 };

typedef struct layer_case {
  weft_type in, out, shared_in, shared_out; /* of experts; of the shared MLP */
  uint32_t n_ff, n_shared;
  bool split;  /* gate and up of the experts are stacks of their own */
  bool scaled; /* all weights but the router have scales */
} layer_case;

/* Widths that are no whole tiles, pieces or segments; types that kernels for one row take together, and others. */
static const layer_case layer_cases[] = {
    {WEFT_TYPE_Q4_K, WEFT_TYPE_Q8_0, WEFT_TYPE_Q4_K, WEFT_TYPE_Q8_0, 512, 736, false, false},
    {WEFT_TYPE_Q4_K, WEFT_TYPE_Q8_0, WEFT_TYPE_Q4_K, WEFT_TYPE_Q8_0, 480, 5024, true,
     false}, /* more tiles than blocks on a card */
    {WEFT_TYPE_Q4_K, WEFT_TYPE_Q4_K, WEFT_TYPE_Q4_K, WEFT_TYPE_Q4_K, 256, 768, true, false},
    {WEFT_TYPE_Q6_K, WEFT_TYPE_F16, WEFT_TYPE_Q6_K, WEFT_TYPE_F16, 256, 792, false, false},
    {WEFT_TYPE_MXFP4, WEFT_TYPE_MXFP4, WEFT_TYPE_MXFP4, WEFT_TYPE_MXFP4, 288, 800, true, false},
    {WEFT_TYPE_Q8_0, WEFT_TYPE_BF16, WEFT_TYPE_Q8_0, WEFT_TYPE_BF16, 32, 544, false, false},
    {WEFT_TYPE_Q4_K, WEFT_TYPE_Q8_0, WEFT_TYPE_Q5_K, WEFT_TYPE_Q4_0, 512, 736, false, false},
    {WEFT_TYPE_Q4_K, WEFT_TYPE_Q8_0, WEFT_TYPE_F32, WEFT_TYPE_F32, 512, 100, false, false},
    {WEFT_TYPE_NVFP4, WEFT_TYPE_NVFP4, WEFT_TYPE_NVFP4, WEFT_TYPE_NVFP4, 320, 768, true, true},
    {WEFT_TYPE_Q4_K, WEFT_TYPE_Q8_0, WEFT_TYPE_Q4_K, WEFT_TYPE_Q8_0, 512, 736, false, true},
};

typedef struct layer {
  weft_weight router, gate, up, down, experts_in, experts_up, experts_out; /* experts_up: if gate and up are split */
  float *scales;                                                           /* NULL: none */
} layer;

typedef struct layer_rows {
  float *factor; /* [2 WIDTH] of norms that follow: as weights, no op writes them */
  float *x, *h, *e, *s, *g, *u, *t, *y, *logits, *weights;
  int32_t *ids;
} layer_rows;

/* One scale for each weight or expert; they lie one after another in memory of the layer. */
static void give_scales(layer *l) {
  weft_weight *const all[] = {&l->experts_in, &l->experts_up, &l->experts_out, &l->gate, &l->up, &l->down};
  l->scales = memory_new(6 * EXPERTS, sizeof(float));
  for (uint32_t i = 0; i < 6 * EXPERTS; i++) l->scales[i] = 0.25f + random_uniform(1400, i);
  for (uint32_t i = 0; i < 6; i++) all[i]->scale = l->scales + i * EXPERTS;
}

static layer layer_new(weft_device *device, const layer_case *c) {
  stored in = stored_new(c->in, EXPERTS, (c->split ? 1 : 2) * c->n_ff, WIDTH, 500),
         out = stored_new(c->out, EXPERTS, WIDTH, c->n_ff, 600);
  stored up = stored_new(c->in, EXPERTS, c->n_ff, WIDTH, 550);
  layer l = {.router = matrix(device, WEFT_TYPE_F32, EXPERTS, WIDTH, 700),
             .gate = matrix(device, c->shared_in, c->n_shared, WIDTH, 800),
             .up = matrix(device, c->shared_in, c->n_shared, WIDTH, 900),
             .down = matrix(device, c->shared_out, WIDTH, c->n_shared, 1000),
             .experts_in = upload(device, &in),
             .experts_out = upload(device, &out)};
  if (c->split) l.experts_up = upload(device, &up);
  if (c->scaled) give_scales(&l);
  stored_free(&in);
  stored_free(&up);
  stored_free(&out);
  return l;
}

/* The layer's experts, without rows as yet. */
static weft_experts_args experts_of(const layer *l, uint32_t n_rows) {
  weft_experts_args args = {
      .gate_up = &l->experts_in,
      .down = &l->experts_out,
      .n_rows = n_rows,
      .k = TOP,
      .x_stride = WIDTH,
      .y_stride = WIDTH,
      .activation = WEFT_GELU_TANH,
      .shared = {.gate = &l->gate, .up = &l->up, .down = &l->down, .x_stride = WIDTH, .y_stride = WIDTH}};
  if (l->experts_up.data != NULL) args.gate_up = NULL, args.gate = &l->experts_in, args.up = &l->experts_up;
  return args;
}

/* The layer's route, without rows as yet. */
static weft_route_args route_of(const layer *l, uint32_t n_rows) {
  return (weft_route_args){.router = &l->router,
                           .n_rows = n_rows,
                           .n_experts = EXPERTS,
                           .k = TOP,
                           .x_stride = WIDTH,
                           .logits_stride = EXPERTS};
}

static void run_shared(weft_device *device, const weft_experts_args *experts) {
  const weft_shared_args *s = &experts->shared;
  uint32_t n_ff = s->gate->n_out;
  weft_matmul_args in = {.x = s->x,
                         .n_rows = experts->n_rows,
                         .n_weights = 2,
                         .weight = {s->gate, s->up},
                         .y = {s->g, s->u},
                         .x_stride = s->x_stride,
                         .y_stride = {n_ff, n_ff},
                         .activation = experts->activation};
  weft_matmul_args out = {.x = s->g,
                          .n_rows = experts->n_rows,
                          .n_weights = 1,
                          .weight = {s->down},
                          .y = {s->y},
                          .x_stride = n_ff,
                          .y_stride = {s->y_stride}};
  run_product(device, &in);
  run_product(device, &out);
}

/* The form in which both weights, or the only one, take rows. */
static weft_rows_form form_of(weft_device *device, const weft_weight *a, const weft_weight *b, uint32_t n_rows,
                              weft_rows_way way) {
  weft_rows_form form = weft_device_rows_form(device, a, n_rows, way);
  return b == NULL || weft_device_rows_form(device, b, n_rows, way) == form ? form : WEFT_ROWS_F32;
}

/* A layer's feed-forward half, r.x = r.x + norm(shared + experts): as the model calls it, without a wait and with rows
 * in the form that the weights take, or part by part. */
static void run_layer(weft_device *device, const layer *l, layer_rows *r, uint32_t n_rows, void *const *scratch,
                      bool whole) {
  weft_norm_args norm = {.x = r->x,
                         .y = r->h,
                         .n_rows = n_rows,
                         .n_cols = WIDTH,
                         .x_stride = WIDTH,
                         .x2_stride = WIDTH,
                         .add_stride = WIDTH,
                         .y_stride = WIDTH,
                         .eps = 1e-6f};
  weft_route_args route = route_of(l, n_rows);
  route.x = r->h, route.logits = r->logits, route.ids = r->ids, route.weights = r->weights;
  weft_experts_args experts = experts_of(l, n_rows);
  experts.x = r->e, experts.shared.x = r->s, experts.ids = r->ids, experts.weights = r->weights, experts.y = r->y;
  experts.shared.g = r->g, experts.shared.u = r->u, experts.shared.y = r->t;
  route.scratch = scratch[0], experts.scratch = scratch[1];
  route.scratch_bytes = weft_route_scratch(device, &route);
  experts.scratch_bytes = weft_experts_scratch(device, &experts);
  norm.n_then = 2, norm.then[0] = r->e, norm.then[1] = r->s;
  norm.then_weight[0] = r->factor, norm.then_weight[1] = r->factor + WIDTH;
  if (whole) {
    const weft_weight *in = experts.gate_up != NULL ? experts.gate_up : experts.gate;
    experts.x_form = norm.then_form[0] = form_of(device, in, experts.up, n_rows, WEFT_ROWS_TO_EXPERTS);
    experts.shared.x_form = norm.then_form[1] = form_of(device, &l->gate, &l->up, n_rows, WEFT_ROWS_TO_MATMUL);
  }
  assert_int_equal(weft_norm(device, &norm), WEFT_OK);
  norm.n_then = 0;
  assert_int_equal(weft_route(device, &route), WEFT_OK);
  if (!whole) run_shared(device, &experts), experts.shared.gate = NULL;
  assert_int_equal(weft_experts(device, &experts), WEFT_OK);
  norm.x = r->t, norm.x2 = r->y, norm.add = norm.y = r->x;
  assert_int_equal(weft_norm(device, &norm), WEFT_OK);
}

/* Scratch of a route and of experts of n_rows rows. */
static void scratch_new(weft_device *device, const layer *l, uint32_t n_rows, void **scratch) {
  weft_route_args route = route_of(l, n_rows);
  weft_experts_args experts = experts_of(l, n_rows);
  scratch[0] = scratch_of(weft_route_scratch(device, &route));
  scratch[1] = scratch_of(weft_experts_scratch(device, &experts));
}

static void run_layers(weft_device *device, const layer *l, uint32_t n_rows, bool whole, float *result) {
  uint64_t n = (uint64_t)n_rows * WIDTH;
  layer_rows r = {.x = rows_new(n, 20), .h = rows_new(n, 21), .t = rows_new(n, 22), .y = rows_new(n, 23)};
  void *scratch[2];
  r.factor = rows_new(2 * WIDTH, 34);
  r.e = rows_new(n, 28);
  r.s = rows_new(n, 29);
  r.g = rows_new((uint64_t)n_rows * FF_MAX, 24);
  r.u = rows_new((uint64_t)n_rows * FF_MAX, 25);
  r.logits = rows_new((uint64_t)n_rows * EXPERTS, 26);
  r.weights = rows_new((uint64_t)n_rows * TOP, 27);
  r.ids = memory_new((size_t)n_rows * TOP, sizeof *r.ids);
  scratch_new(device, l, n_rows, scratch);
  for (uint32_t i = 0; i < LAYERS; i++) run_layer(device, l, &r, n_rows, scratch, whole);
  assert_int_equal(weft_device_sync(device), WEFT_OK);
  memcpy(result, r.x, n * sizeof(float));
  for (uint64_t i = 0; i < n; i++) assert_true(isfinite(result[i]));
  float *const rows[] = {r.factor, r.x, r.h, r.e, r.s, r.t, r.y, r.g, r.u, r.logits, r.weights};
  for (uint32_t i = 0; i < sizeof rows / sizeof rows[0]; i++) memory_free(rows[i]);
  memory_free(r.ids);
  for (uint32_t i = 0; i < 2; i++)
    if (scratch[i] != NULL) memory_free(scratch[i]);
}

/* An expert that does not exist leaves the shared MLP's row alone: as it was alone. */
static void bad_id(weft_device *device, const layer *l) {
  float *x = rows_new(WIDTH, 30), *g = rows_new(2 * FF_MAX, 31), *y = rows_new(3 * WIDTH, 32),
        *weights = rows_new(TOP, 33);
  int32_t *ids = memory_new(TOP, sizeof *ids);
  for (int32_t i = 0; i < TOP; i++) ids[i] = i == 5 ? EXPERTS : i;
  weft_experts_args experts = experts_of(l, 1);
  experts.x = experts.shared.x = x, experts.ids = ids, experts.weights = weights, experts.y = y;
  experts.shared.g = g, experts.shared.u = g + FF_MAX, experts.shared.y = y + 2 * WIDTH;
  run_shared(device, &experts);
  experts.shared.y = y + WIDTH;
  experts.scratch = scratch_of(experts.scratch_bytes = weft_experts_scratch(device, &experts));
  assert_int_equal(done(device, weft_experts(device, &experts)), WEFT_OK);
  for (uint32_t i = 0; i < WIDTH; i++) assert_true(isnan(y[i]));
  assert_same("a bad expert", "cuda", "the shared row", y + WIDTH, y + 2 * WIDTH, WIDTH * sizeof(float));
  memory_free(experts.scratch);
  memory_free(x);
  memory_free(g);
  memory_free(y);
  memory_free(weights);
  memory_free(ids);
}

static void shared_once(weft_device *device, const char *name, const layer *l, uint32_t n_rows) {
  static float one[SHARED_ROWS * WIDTH], two[SHARED_ROWS * WIDTH];
  run_layers(device, l, n_rows, false, one);
  run_layers(device, l, n_rows, true, two);
  assert_same("experts with a shared MLP", name, "the rows", one, two, (size_t)n_rows * WIDTH * sizeof(float));
}

static void test_shared(void **state) {
  const devices *all = *state;
  for (uint32_t d = 0; d < all->n; d++) {
    for (uint32_t i = 0; i < sizeof layer_cases / sizeof *layer_cases; i++) {
      if ((layer_cases[i].n_shared > 1000 && !is_cuda(all->cpu[d])) || is_out_of_turn(all, d, i)) continue;
      layer l = layer_new(all->cpu[d], &layer_cases[i]);
      const uint32_t step = !quick ? 1 : touches_are_seen ? 4 : 2;
      for (uint32_t c = i % step; c < N_COUNTS; c += step) shared_once(all->cpu[d], all->name[d], &l, row_counts[c]);
      if (i == 0 && is_cuda(all->cpu[d])) shared_once(all->cpu[d], all->name[d], &l, SHARED_ROWS);
      if (is_cuda(all->cpu[d]) && !layer_cases[i].split) bad_id(all->cpu[d], &l); /* others refuse the call */
      weft_weight *const weights[] = {&l.router, &l.gate, &l.up, &l.down, &l.experts_in, &l.experts_out, &l.experts_up};
      for (uint32_t w = 0; w < sizeof weights / sizeof weights[0]; w++)
        if (weights[w]->data != NULL) weft_device_weight_free(all->cpu[d], weights[w]);
      if (l.scales != NULL) memory_free(l.scales);
    }
  }
}

static int setup_eight_too(void **state) {
  int code = setup_devices(state);
  add_eight(*state);
  return code;
}

int main(int argc, char **argv) {
  take_arguments(argc, argv);
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_norms),      cmocka_unit_test(test_factors_made_before),
                                     cmocka_unit_test(test_many_norms), cmocka_unit_test(test_gated),
                                     cmocka_unit_test(test_gated_many), cmocka_unit_test(test_prepared),
                                     cmocka_unit_test(test_router),     cmocka_unit_test(test_shared)};
  return cmocka_run_group_tests_name("kernels/fused", tests, setup_eight_too, teardown_devices);
}
