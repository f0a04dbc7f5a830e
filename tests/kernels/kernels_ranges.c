/* SPDX-License-Identifier: MIT */
/* experts whose weights are a range of all experts: calls that share the leaves of the sum over a row's experts out as
 * shards do, two, three, four or eight, give results whose sum by pairs has the bits of one call with all of them; rows
 * whose experts all lie in a range have the bits that all experts give them, and rows whose experts all lie elsewhere
 * are zeros. The shared MLP is whole in every call. */
#include "kernels/shards.h"
#include "tests/kernels/weights.h"

enum { ROWS = 310, SIDES = 4 /* ways in which a row chooses */ };

typedef struct range_case {
  const char *name;
  weft_type gate, up, down, shared_in, shared_down; /* up NONE: gate and up are one stack; shared_in NONE: no MLP */
  uint32_t n_experts, k, n_in, n_ff, n_shared;
  bool scaled; /* every matrix has a scale */
} range_case;

static const range_case cases[] = {
    {"4 and 8 bits, an MLP", WEFT_TYPE_Q4_K, WEFT_TYPE_NONE, WEFT_TYPE_Q8_0, WEFT_TYPE_Q4_K, WEFT_TYPE_Q8_0, 9, 8, 512,
     480, 736, false},
    {"4 bits, stacks apart", WEFT_TYPE_Q4_K, WEFT_TYPE_Q4_K, WEFT_TYPE_Q4_K, WEFT_TYPE_Q4_K, WEFT_TYPE_Q4_K, 8, 3, 256,
     256, 512, false},
    {"an MLP of other types", WEFT_TYPE_Q8_0, WEFT_TYPE_Q8_0, WEFT_TYPE_Q8_0, WEFT_TYPE_Q5_K, WEFT_TYPE_Q4_0, 5, 2, 256,
     160, 96, true},
    {"more ranks than warps take at once", WEFT_TYPE_Q6_K, WEFT_TYPE_NONE, WEFT_TYPE_Q5_0, WEFT_TYPE_NONE,
     WEFT_TYPE_NONE, 14, 12, 256, 96, 0, false},
    {"one rank", WEFT_TYPE_Q4_K, WEFT_TYPE_NONE, WEFT_TYPE_Q5_1, WEFT_TYPE_NONE, WEFT_TYPE_NONE, 3, 1, 256, 96, 0,
     false},
    {"16 bits", WEFT_TYPE_BF16, WEFT_TYPE_BF16, WEFT_TYPE_F16, WEFT_TYPE_BF16, WEFT_TYPE_F16, 9, 8, 520, 48, 96, true},
    {"up inside a panel", WEFT_TYPE_F16, WEFT_TYPE_NONE, WEFT_TYPE_F16, WEFT_TYPE_NONE, WEFT_TYPE_NONE, 7, 2, 40, 41, 0,
     false},
    {"32 bits", WEFT_TYPE_F32, WEFT_TYPE_F32, WEFT_TYPE_F32, WEFT_TYPE_F32, WEFT_TYPE_F32, 6, 2, 40, 56, 48, true},
    {"down in floats", WEFT_TYPE_Q4_0, WEFT_TYPE_NONE, WEFT_TYPE_F32, WEFT_TYPE_NONE, WEFT_TYPE_NONE, 9, 8, 64, 72, 0,
     false},
    {"scaled", WEFT_TYPE_NVFP4, WEFT_TYPE_NVFP4, WEFT_TYPE_NVFP4, WEFT_TYPE_NVFP4, WEFT_TYPE_NVFP4, 7, 3, 256, 192, 320,
     true},
    {"several rows of an expert", WEFT_TYPE_MXFP4, WEFT_TYPE_NONE, WEFT_TYPE_MXFP4, WEFT_TYPE_MXFP4, WEFT_TYPE_MXFP4, 5,
     3, 768, 96, 288, false},
};
enum { N_CASES = sizeof cases / sizeof cases[0] };

typedef struct subject {
  const range_case *c;
  stored gate, up, down, shared_gate, shared_up, shared_down; /* up, shared: bytes NULL if there are none */
  stored router; /* bytes NULL: ids and rank_weights are given, else a route before the experts makes them */
  float *x, *rank_weights;
  int32_t *ids;
} subject;

typedef struct range {
  uint32_t first, n; /* experts that are here */
} range;

static stored stack_new(const range_case *c, weft_type type, uint32_t n_out, uint32_t n_in, uint64_t seed) {
  stored s = stored_new(type, c->n_experts, n_out, n_in, seed);
  if (!c->scaled) return s;
  float *scale = memory_new(c->n_experts, sizeof *scale);
  for (uint32_t e = 0; e < c->n_experts; e++) scale[e] = 0.25f + random_uniform(seed, e);
  s.shape.scale = scale;
  return s;
}

static void stack_free(stored *s) {
  if (s->shape.scale != NULL) memory_free((void *)(uintptr_t)s->shape.scale);
  if (s->bytes != NULL) stored_free(s);
}

/* An expert for rank j of row r: of all experts, of the low half, of the high half, or of one half after the other. */
static int32_t choose(const range_case *c, uint32_t r, uint32_t j) {
  uint32_t half = c->n_experts / 2, side = r % SIDES == 3 ? 1 + (r / SIDES + j) % 2 : r % SIDES;
  uint32_t begin = side == 2 ? half : 0, n = side == 0 ? c->n_experts : side == 1 ? half : c->n_experts - half;
  return (int32_t)(begin + ((uint32_t)(random_uniform(r, 5) * (float)n) + j) % n);
}

static subject subject_new(uint32_t i) {
  const range_case *c = &cases[i];
  uint64_t seed = 3000 + 20 * i;
  bool fused = c->up == WEFT_TYPE_NONE;
  subject u = {.c = c};
  u.gate = stack_new(c, c->gate, fused ? 2 * c->n_ff : c->n_ff, c->n_in, seed);
  if (!fused) u.up = stack_new(c, c->up, c->n_ff, c->n_in, seed + 1);
  u.down = stack_new(c, c->down, c->n_in, c->n_ff, seed + 2);
  if (c->shared_in != WEFT_TYPE_NONE) {
    u.shared_gate = stored_new(c->shared_in, 1, c->n_shared, c->n_in, seed + 3);
    u.shared_up = stored_new(c->shared_in, 1, c->n_shared, c->n_in, seed + 4);
    u.shared_down = stored_new(c->shared_down, 1, c->n_in, c->n_shared, seed + 5);
  }
  u.x = memory_new((size_t)ROWS * c->n_in, sizeof *u.x);
  u.ids = memory_new((size_t)ROWS * c->k, sizeof *u.ids);
  u.rank_weights = memory_new((size_t)ROWS * c->k, sizeof *u.rank_weights);
  fill_normal(u.x, (size_t)ROWS * c->n_in, seed + 6);
  for (uint32_t p = 0; p < ROWS * c->k; p++) {
    u.ids[p] = choose(c, p / c->k, p % c->k);
    u.rank_weights[p] = random_uniform(seed + 7, p) / (float)(p % c->k + 1);
  }
  return u;
}

static void subject_free(subject *u) {
  stored *const all[] = {&u->gate, &u->up, &u->down, &u->shared_gate, &u->shared_up, &u->shared_down, &u->router};
  for (uint32_t i = 0; i < sizeof all / sizeof all[0]; i++) stack_free(all[i]);
  memory_free(u->x);
  memory_free(u->ids);
  memory_free(u->rank_weights);
}

/* The weights of some experts on a device, and of the shared MLP. */
typedef struct placed {
  range here;
  weft_weight gate, up, down, shared_gate, shared_up, shared_down, router;
} placed;

static weft_weight upload_range(weft_device *device, const stored *s, range here) {
  stored part = *s;
  if (s->bytes == NULL) return (weft_weight){0};
  part.shape.n_mats = here.n;
  part.bytes += (uint64_t)here.first * s->shape.n_out * s->row_bytes;
  if (s->shape.scale != NULL) part.shape.scale += here.first;
  return upload(device, &part);
}

static placed place(weft_device *device, const subject *u, range here) {
  const range one = {0, 1};
  return (placed){here,
                  upload_range(device, &u->gate, here),
                  upload_range(device, &u->up, here),
                  upload_range(device, &u->down, here),
                  upload_range(device, &u->shared_gate, one),
                  upload_range(device, &u->shared_up, one),
                  upload_range(device, &u->shared_down, one),
                  upload_range(device, &u->router, one)};
}

static void displace(weft_device *device, placed *p) {
  weft_weight *const all[] = {&p->gate, &p->up, &p->down, &p->shared_gate, &p->shared_up, &p->shared_down, &p->router};
  for (uint32_t i = 0; i < sizeof all / sizeof all[0]; i++) weft_device_weight_free(device, all[i]);
}

/* Arguments without outputs. Those of all experts leave the number of experts out. */
static weft_experts_args args_of(const subject *u, const placed *p, uint32_t first, uint32_t n) {
  const range_case *c = u->c;
  weft_experts_args args = {.x = u->x + (size_t)first * c->n_in,
                            .ids = u->ids + (size_t)first * c->k,
                            .weights = u->rank_weights + (size_t)first * c->k,
                            .down = &p->down,
                            .n_rows = n,
                            .k = c->k,
                            .x_stride = c->n_in,
                            .y_stride = c->n_in,
                            .activation = WEFT_GELU_TANH};
  if (p->here.n != c->n_experts) args.first_expert = p->here.first, args.n_experts = c->n_experts;
  if (p->up.data != NULL) {
    args.gate = &p->gate, args.up = &p->up;
  } else {
    args.gate_up = &p->gate;
  }
  return args;
}

/* Chooses experts for the rows without a wait. Returns what is to be freed when the experts have run. */
static buffer enqueue_route(weft_device *device, const subject *u, const placed *p, uint32_t first, uint32_t n) {
  const range_case *c = u->c;
  weft_route_args route = {.x = u->x + (size_t)first * c->n_in,
                           .router = &p->router,
                           .ids = u->ids + (size_t)first * c->k,
                           .weights = u->rank_weights + (size_t)first * c->k,
                           .n_rows = n,
                           .n_experts = c->n_experts,
                           .k = c->k,
                           .x_stride = c->n_in,
                           .logits_stride = c->n_experts};
  uint64_t n_logits = ((uint64_t)n * c->n_experts + 15) / 16 * 16;
  route.scratch_bytes = weft_route_scratch(device, &route);
  buffer memory = buffer_new(n_logits * sizeof(float) + route.scratch_bytes);
  route.logits = memory.data;
  route.scratch = route.logits + n_logits;
  assert_int_equal(weft_route(device, &route), WEFT_OK);
  return memory;
}

/* Results of the experts, [n][n_in], and behind them those of the shared MLP, if there is one. */
static buffer run(weft_device *device, const subject *u, const placed *p, uint32_t first, uint32_t n,
                  uint32_t *n_touched) {
  const range_case *c = u->c;
  bool shares = p->shared_gate.data != NULL;
  size_t n_y = (size_t)n * c->n_in, n_g = shares ? (size_t)n * c->n_shared : 0;
  buffer y = buffer_new((shares ? 2 : 1) * n_y * sizeof(float)), g = buffer_new(2 * n_g * sizeof(float));
  weft_experts_args args = args_of(u, p, first, n);
  args.y = y.data;
  args.n_touched = n_touched;
  if (shares) {
    args.shared = (weft_shared_args){.x = args.x,
                                     .gate = &p->shared_gate,
                                     .up = &p->shared_up,
                                     .down = &p->shared_down,
                                     .g = g.data,
                                     .u = (float *)g.data + n_g,
                                     .y = args.y + n_y,
                                     .x_stride = c->n_in,
                                     .y_stride = c->n_in};
  }
  buffer route = {0};
  if (p->router.data != NULL) route = enqueue_route(device, u, p, first, n);
  RUN_OP(experts, device, &args);
  if (p->router.data != NULL) buffer_free(&route);
  buffer_free(&g);
  return y;
}

static void check_halves(weft_device *device, const char *name, const subject *u, const placed *p, uint32_t first,
                         uint32_t n) {
  uint32_t touched[3] = {0, 0, 0};
  buffer all = run(device, u, &p[0], first, n, &touched[0]), low = run(device, u, &p[1], first, n, &touched[1]),
         high = run(device, u, &p[2], first, n, &touched[2]);
  size_t n_y = (size_t)n * u->c->n_in;
  float *a = low.data;
  const float *b = high.data, *whole = all.data;
  for (size_t i = 0; i < n_y; i++) a[i] += b[i];
  assert_same(u->c->name, name, "the sum of two halves", a, whole, n_y * sizeof *a);
  assert_same(u->c->name, name, "the MLP beside the low half", a + n_y, whole + n_y, all.n_bytes - n_y * sizeof *a);
  assert_same(u->c->name, name, "the MLP beside the high half", b + n_y, whole + n_y, all.n_bytes - n_y * sizeof *a);
  if (!is_cuda(device)) assert_int_equal(touched[1] + touched[2], touched[0]);
  buffer_free(&all);
  buffer_free(&low);
  buffer_free(&high);
}

/* The sum by pairs of what calls with the experts of the shards [first, first + n) of n_shards give, in sum [n_y]. */
static void add_parts(weft_device *device, const subject *u, const placed *p, uint32_t first, uint32_t n, uint32_t row,
                      uint32_t n_rows, float *sum) {
  size_t n_y = (size_t)n_rows * u->c->n_in;
  if (n > 1) {
    float *other = memory_new(n_y, sizeof *other);
    add_parts(device, u, p, first, n / 2, row, n_rows, sum);
    add_parts(device, u, p, first + n / 2, n - n / 2, row, n_rows, other);
    for (size_t i = 0; i < n_y; i++) sum[i] += other[i];
    memory_free(other);
    return;
  }
  memset(sum, 0, n_y * sizeof *sum);
  if (p[first].here.n == 0) return; /* such a shard does not call */
  buffer y = run(device, u, &p[first], row, n_rows, NULL);
  memcpy(sum, y.data, n_y * sizeof *sum);
  buffer_free(&y);
}

static void check_parts(weft_device *device, const char *name, const subject *u, const placed *whole, uint32_t n_parts,
                        uint32_t most_rows) {
  static const uint32_t counts[] = {1, 4, 17};
  placed part[8];
  uint64_t n = u->c->n_experts;
  for (uint32_t i = 0; i < n_parts; i++) {
    uint64_t leaf = weft_shards_half(n_parts, i, WEFT_EXPERTS_LEAVES),
             end = weft_shards_half(n_parts, i + 1, WEFT_EXPERTS_LEAVES);
    range here = {(uint32_t)(n * leaf / WEFT_EXPERTS_LEAVES), 0};
    here.n = (uint32_t)(n * end / WEFT_EXPERTS_LEAVES) - here.first;
    part[i] = here.n > 0 ? place(device, u, here) : (placed){.here = here};
  }
  for (uint32_t i = 0; i < sizeof counts / sizeof counts[0] && counts[i] <= most_rows; i++) {
    buffer all = run(device, u, whole, i, counts[i], NULL);
    size_t n_y = (size_t)counts[i] * u->c->n_in;
    float *sum = memory_new(n_y, sizeof *sum);
    add_parts(device, u, part, 0, n_parts, i, counts[i], sum);
    assert_same(u->c->name, name, "the sum of parts", sum, all.data, n_y * sizeof *sum);
    memory_free(sum);
    buffer_free(&all);
  }
  for (uint32_t i = 0; i < n_parts; i++)
    if (part[i].here.n > 0) displace(device, &part[i]);
}

/* Where row r's experts lie: 1 all in the range, -1 all elsewhere, 0 on both sides. */
static int side_of(const subject *u, uint32_t r, range here) {
  uint32_t n = 0;
  for (uint32_t j = 0; j < u->c->k; j++) n += (uint32_t)u->ids[r * u->c->k + j] - here.first < here.n;
  return n == u->c->k ? 1 : n == 0 ? -1 : 0;
}

/* A range that has experts of both halves. */
static void check_range(weft_device *device, const char *name, const subject *u, const placed *p, uint32_t first,
                        uint32_t n) {
  buffer all = run(device, u, &p[0], first, n, NULL), some = run(device, u, &p[3], first, n, NULL);
  uint32_t n_in = u->c->n_in;
  const float *want = all.data, *got = some.data;
  for (uint32_t r = 0; r < n; r++, want += n_in, got += n_in) {
    int side = side_of(u, first + r, p[3].here);
    if (side > 0) assert_same(u->c->name, name, "a row whose experts are here", got, want, n_in * sizeof *got);
    for (uint32_t i = 0; i < n_in; i++) {
      assert_true(isfinite(got[i]));
      if (side < 0) assert_true(got[i] == 0.0f);
    }
  }
  buffer_free(&all);
  buffer_free(&some);
}

static void on_device(weft_device *device, const char *name, const subject *u, uint32_t most_rows) {
  static const uint32_t counts[] = {1, 1, 1, 1, 2, 3, 4, 5, 8, 16, 17, 64, 300}, n_parts[] = {4, 3, 8};
  uint32_t n = u->c->n_experts, half = n / 2;
  const range ranges[] = {{0, n}, {0, half}, {half, n - half}, {half - 1, 2}};
  placed p[4];
  for (uint32_t i = 0; i < 4; i++) p[i] = place(device, u, ranges[i]);
  for (uint32_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
    if (counts[i] > most_rows) continue;
    if (quick && touches_are_seen && i >= SIDES && (i + i / SIDES) % 2 != 0) continue; /* each side has some */
    check_halves(device, name, u, p, i % SIDES, counts[i]);
    check_range(device, name, u, p, i % SIDES, counts[i]);
  }
  check_parts(device, name, u, &p[0], n_parts[(size_t)(u->c - cases) % 3], most_rows);
  for (uint32_t i = 0; i < 4; i++) displace(device, &p[i]);
}

static void test_ranges(void **state) {
  const fixture *f = *state;
  for (uint32_t i = case_first; i < N_CASES; i += case_step) {
    subject u = subject_new(i);
    on_device(f->all.ref, "ref", &u, quick ? 4 : 17);
    for (uint32_t d = 0; d < f->all.n; d++) {
      const bool few =
          quick || (d + 1 < f->all.n_cpu && test_amount(1, 1, 0) != 0); /* all rows on the best of the cpus */
      if (!is_out_of_turn(&f->all, d, i)) on_device(f->all.cpu[d], f->all.name[d], &u, few ? 17 : ROWS);
    }
    on_device(f->more[1], "three threads", &u, !quick ? ROWS : touches_are_seen ? 5 : 17);
    subject_free(&u);
  }
}

/* As a model calls experts: on a card their kernels start while the choice is being made. */
static void test_routed(void **state) {
  const fixture *f = *state;
  for (uint32_t i = case_first; i < N_CASES; i += case_step) {
    subject u = subject_new(i);
    u.router = stored_new(WEFT_TYPE_F32, 1, u.c->n_experts, u.c->n_in, 4000 + i);
    on_device(f->more[1], "three threads", &u, 17);
    for (uint32_t d = f->all.n_cpu; d < f->all.n; d++) on_device(f->all.cpu[d], f->all.name[d], &u, ROWS);
    subject_free(&u);
  }
}

/* An expert that does not exist is found though other experts are elsewhere: it is refused, or its row is NaN. */
static void check_bad(weft_device *device, const subject *u, const placed *p) {
  uint32_t n_in = u->c->n_in, k = u->c->k;
  static const uint32_t counts[] = {2, 20};
  for (uint32_t i = 0; i < 4; i++) {
    uint32_t n = counts[i / 2];
    int32_t kept = u->ids[k + 1];
    u->ids[k + 1] = i % 2 == 0 ? (int32_t)u->c->n_experts : -1;
    weft_experts_args args = args_of(u, p, 0, n);
    buffer y = buffer_new((size_t)n * n_in * sizeof(float)), scratch;
    args.y = y.data;
    args.scratch_bytes = weft_experts_scratch(device, &args);
    scratch = buffer_new(args.scratch_bytes);
    args.scratch = scratch.data;
    weft_status status = done(device, weft_experts(device, &args));
    assert_int_equal(status, is_cuda(device) ? WEFT_OK : WEFT_E_INVALID);
    for (uint32_t at = 0; at < n * n_in && is_cuda(device); at++) assert_true(isnan(args.y[at]) == (at / n_in == 1));
    u->ids[k + 1] = kept;
    buffer_free(&y);
    buffer_free(&scratch);
  }
}

static void check_refused(weft_device *device, const subject *u, const placed *p) {
  weft_experts_args args = args_of(u, p, 0, 1);
  buffer y = buffer_new((size_t)u->c->n_in * sizeof(float)), scratch;
  args.y = y.data;
  args.scratch_bytes = weft_experts_scratch(device, &args);
  scratch = buffer_new(args.scratch_bytes);
  args.scratch = scratch.data;
  args.first_expert += 1; /* one more than there are */
  assert_int_equal(weft_experts(device, &args), WEFT_E_INVALID);
  args.first_expert = UINT32_MAX;
  assert_int_equal(weft_experts(device, &args), WEFT_E_INVALID);
  args.first_expert = 1, args.n_experts = 0; /* all experts cannot begin behind the first one */
  assert_int_equal(weft_experts(device, &args), WEFT_E_INVALID);
  args.first_expert = 0, args.n_experts = UINT32_MAX;
  assert_int_equal(weft_experts(device, &args), WEFT_E_INVALID);
  buffer_free(&y);
  buffer_free(&scratch);
}

static void test_bad(void **state) {
  const fixture *f = *state;
  subject u = subject_new(1);
  const range high = {u.c->n_experts / 2, u.c->n_experts - u.c->n_experts / 2};
  weft_device *const plain[] = {f->all.ref, f->more[0]};
  for (uint32_t d = 0; d < 2 + f->all.n - f->all.n_cpu; d++) {
    weft_device *device = d < 2 ? plain[d] : f->all.cpu[f->all.n_cpu + d - 2];
    placed p = place(device, &u, high);
    check_bad(device, &u, &p);
    check_refused(device, &u, &p);
    displace(device, &p);
  }
  subject_free(&u);
}

int main(int argc, char **argv) {
  take_arguments(argc, argv);
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_ranges), cmocka_unit_test(test_routed),
                                     cmocka_unit_test(test_bad)};
  return cmocka_run_group_tests(tests, setup_fixture_with_eight, teardown_fixture);
}
