/* SPDX-License-Identifier: MIT */
/* head_stats, head_rows, head_groups and soft on the cpu device.
 *
 * The logits of head_rows are compared with matmul, bit for bit; the statistics with double sums
 * over those logits; the soft embedding with double sums over the stored weights. Tolerances: e is
 * off by about 2^-22 of itself (the exponential, and its argument rounded at a size up to 100: 100
 * * 2^-24 more); on cuda one of two factors is off by 2^-8 of itself at most; with AVX-512 a weight is off by 1 / 4094
 * of the largest of its span, and e by 1 / 32766 (kernels/cpu/head.h); a weight with a minimum is a
 * difference of numbers of order one, rounded once or twice: 4e-7. cuda makes a value of a quantised type as scale *
 * code - zero point in f16, so a small value is off by 2^-11 of the largest one of its block. */
#include "kernels/shards.h"
#include "tests/kernels/head.h"

/* ---- plain sums over logits ---- */

static void check_numbers(const head_case *c, const char *device, const inputs *in, const float *logits,
                          const outputs *o, uint32_t r) {
  double inverse = 1.0 / (double)in->temperature[r], total = 0.0, weighted = 0.0, before = 0.0, after = 0.0;
  uint32_t best = c->n_vocab, last = 0;
  for (uint32_t v = 0; v < c->n_vocab; v++) {
    if (!is_allowed(in, r, v)) continue;
    last = v;
    if (best == c->n_vocab || logits[v] > logits[best]) best = v;
  }
  int32_t argmax = ((int32_t *)o->argmax.data)[r], drawn = ((int32_t *)o->drawn.data)[r];
  assert_int_equal(argmax, best);
  assert_true(((float *)o->top.data)[r] == logits[best]);
  for (uint32_t v = 0; v < c->n_vocab; v++) {
    if (!is_allowed(in, r, v)) continue;
    double t = ((double)logits[v] - (double)logits[best]) * inverse;
    total += exp(t);
    weighted += exp(t) * t;
    if ((int32_t)v < drawn) before = total;
    if ((int32_t)v == drawn) after = total;
  }
  double want_total = (double)logits[best] * inverse + log(total);
  double off = fabs(want_total - (double)((float *)o->log_total.data)[r]);
  assert_within("log_total", device, off, 2e-5 + 1e-6 * fabs(want_total)); /* 1 / temperature rounds too */
  off = fabs(log(total) - weighted / total - (double)((float *)o->entropy.data)[r]);
  assert_within("entropy", device, off, 5e-5);
  double threshold = (double)in->u[r] * total;
  assert_true(is_allowed(in, r, (uint32_t)drawn));
  assert_true(before <= threshold * (1.0 + 1e-5) + 1e-5);
  assert_true(after * (1.0 + 1e-5) + 1e-5 > threshold || (uint32_t)drawn == last);
}

/* Adds to each column share times the largest value of its block of 32. */
static void add_largest(const float *row, uint32_t n_in, double share, double *to) {
  for (uint32_t begin = 0; begin < n_in; begin += 32) {
    uint32_t end = begin + 32 < n_in ? begin + 32 : n_in;
    double most = 0.0;
    for (uint32_t i = begin; i < end; i++) most = fmax(most, fabs((double)row[i]));
    for (uint32_t i = begin; i < end; i++) to[i] += share * most;
  }
}

/* Whether soft embeddings are made in f32 whatever the instruction set. */
static bool is_exact(weft_type type) {
  return type == WEFT_TYPE_F32 || type == WEFT_TYPE_F16;
}

/* What soft embeddings of integers may be off by, in each column: share[v] of a token is 1.5 times its probability. */
static void add_steps(const head_case *c, const float *value, const double *share, double *to) {
  for (uint32_t first = 0; first < c->n_vocab; first += 64) {
    uint32_t end = first + 64 < c->n_vocab ? first + 64 : c->n_vocab;
    uint32_t chunk = first / 512 * 512, chunk_end = chunk + 512 < c->n_vocab ? chunk + 512 : c->n_vocab;
    double sum = 0.0, top = 0.0;
    for (uint32_t v = first; v < end; v++) sum += share[v];
    for (uint32_t v = chunk; v < chunk_end; v++) top = fmax(top, share[v]);
    for (uint32_t i = 0; top > 0.0 && i < c->n_in; i++) {
      double most = 0.0;
      for (uint32_t v = first; v < end; v++) {
        double size = fabs((double)value[(uint64_t)v * c->n_in + i]);
        most = fmax(most, size);
        if (share[v] > 0.0) to[i] += top * size * 1.01 / 32766;
      }
      to[i] += sum * most * 1.01 / 4094;
    }
  }
}

static void check_soft(const head_case *c, const char *device, const inputs *in, const float *logits, const stored *s,
                       const float *soft, uint32_t r, double per_term) {
  double p[VOCAB_MAX], total = 0.0, top = -INFINITY;
  for (uint32_t v = 0; v < c->n_vocab; v++) {
    if (is_allowed(in, r, v)) top = fmax(top, (double)logits[v]);
  }
  for (uint32_t v = 0; v < c->n_vocab; v++) {
    p[v] = is_allowed(in, r, v) ? exp(((double)logits[v] - top) / (double)in->temperature[r]) : 0.0;
    total += p[v];
  }
  double want[IN_MAX] = {0}, size[IN_MAX] = {0}, largest[IN_MAX] = {0}, steps[IN_MAX] = {0};
  const bool rounds_values = strcmp(device, "cuda") == 0 && !is_float(c->type);
  for (uint32_t v = 0; v < c->n_vocab; v++) { /* row by row, as the weight lies */
    const float *row = s->value + (uint64_t)v * c->n_in;
    const double share = 1.5 * p[v] / total;
    if (share == 0.0) continue;
    for (uint32_t i = 0; i < c->n_in; i++) {
      double term = share * (double)row[i];
      want[i] += term;
      size[i] += fabs(term);
    }
    if (rounds_values) add_largest(row, c->n_in, share, largest);
  }
  for (uint32_t v = 0; v < c->n_vocab; v++) p[v] *= 1.5 / total;
  if (strcmp(device, "avx512") == 0 && !is_exact(c->type)) add_steps(c, s->value, p, steps);
  for (uint32_t i = 0; i < c->n_in; i++) {
    /* cuda rounds scale and minimum to f16, whose sizes here are up to 10 and 5 */
    const scale_place *place = find_scales(c->type);
    bool minima = place != NULL && place->divisor_least != 0.0f;
    double least = strcmp(device, "cuda") == 0 && minima ? 1.5 * 15 * 0x1p-12 : 4e-7;
    double off = fabs(want[i] - (double)soft[i]);
    char what[64];
    (void)snprintf(what, sizeof what, "soft of %s, row %u, column %u", weft_type_name_of_id((int32_t)c->type), r, i);
    assert_within(what, device, isnan(off) ? INFINITY : off,
                  per_term * size[i] + 0x1p-11 * largest[i] + steps[i] + least);
  }
}

/* One case on one device, its weight uploaded. */
typedef struct subject {
  fixture *f;
  const head_case *c;
  const stored *s;
  inputs *in;
  uint32_t d; /* of f->all */
  weft_device *device;
  const char *name;
  weft_weight weight;
} subject;

/* Every case on every device; `every` 3: of the cases each third one. The seeds of tests are hundreds apart. */
static void on_each(fixture *f, uint64_t seed, uint32_t every, void (*check)(const subject *u)) {
  for (uint32_t i = case_first; i < N_CASES; i += case_step * every) {
    const head_case *c = &cases[i];
    stored s = stored_new(c->type, 1, c->n_vocab, c->n_in, seed + i);
    inputs *in = make_inputs(c, seed + 100 + i);
    for (uint32_t d = 0; d < f->all.n; d++) {
      if (is_out_of_turn(&f->all, d, i + (uint32_t)(seed / 200))) continue;
      subject u = {.f = f, .c = c, .s = &s, .in = in, .d = d, .device = f->all.cpu[d], .name = f->all.name[d]};
      u.weight = upload(u.device, &s);
      check(&u);
      weft_device_weight_free(u.device, &u.weight);
    }
    memory_free(in);
    stored_free(&s);
  }
}

static outputs stats_of(const subject *u, uint32_t first, uint32_t n, bool soft) {
  return run_stats(u->device, u->c, &u->weight, u->in, first, n, NULL, soft, NULL);
}

static void check_meaning(const subject *u) {
  const head_case *c = u->c;
  bool exact = c->type == WEFT_TYPE_F32 || !is_cuda(u->device); /* cuda: weights of f16 */
  double per_term = exact ? 3e-5 : 1.01 / 256;
  uint8_t bad[ROWS];
  buffer logits = run_rows(u->device, c, &u->weight, u->in->h, ROWS, bad);
  outputs o = stats_of(u, 0, ROWS, true);
  for (uint32_t r = 0; r < ROWS; r++) {
    const float *row = (float *)logits.data + (size_t)r * c->n_vocab;
    assert_int_equal(bad[r], 0);
    assert_int_equal(((uint8_t *)o.bad.data)[r], 0);
    check_numbers(c, u->name, u->in, row, &o, r);
    check_soft(c, u->name, u->in, row, u->s, (float *)o.soft.data + (size_t)r * c->n_in, r, per_term);
  }
  free_outputs(&o);
  buffer_free(&logits);
}

static void test_meaning(void **state) {
  on_each(*state, 2000, 1, check_meaning);
}

/* Logits are those of matmul, capped. tanh is off by 2^-22 at most, so a logit by that of the cap. */
static void check_logits(const subject *u) {
  const head_case *c = u->c;
  uint8_t bad[ROWS];
  buffer y = buffer_new((size_t)ROWS * c->n_vocab * 4);
  weft_matmul_args args = {.x = u->in->h, .n_rows = ROWS, .n_weights = 1, .x_stride = c->n_in};
  args.weight[0] = &u->weight;
  args.y[0] = y.data;
  args.y_stride[0] = c->n_vocab;
  RUN_OP(matmul, u->device, &args);
  head_case without_cap = *c;
  without_cap.cap = 0.0f;
  buffer capped = run_rows(u->device, c, &u->weight, u->in->h, ROWS, bad);
  buffer plain = run_rows(u->device, &without_cap, &u->weight, u->in->h, ROWS, bad);
  assert_same("head_rows", u->name, "a logit", y.data, plain.data, y.n_bytes);
  for (uint32_t j = 0; c->cap != 0.0f && j < ROWS * c->n_vocab; j++) {
    double cap = (double)c->cap, want = cap * tanh((double)((float *)y.data)[j] / cap);
    assert_within("cap", u->name, fabs(want - (double)((float *)capped.data)[j]), cap * 0x1p-22);
  }
  buffer_free(&y);
  buffer_free(&capped);
  buffer_free(&plain);
}

static void test_logits(void **state) {
  on_each(*state, 2200, 1, check_logits);
}

/* ---- bits ---- */

static void check_rows_and_threads(const subject *u) {
  const uint32_t n_in = u->c->n_in;
  const devices *all = &u->f->all;
  outputs whole = stats_of(u, 0, ROWS, true);
  uint32_t step = u->d + 1 >= all->n_cpu && !quick ? 1 : 7; /* the best isa: every number of rows */
  for (uint32_t n = 1; n <= ROWS; n += step) {
    outputs part = stats_of(u, 0, n, true);
    assert_outputs(u->name, &whole, 0, &part, n, n_in, true);
    free_outputs(&part);
    part = stats_of(u, n - 1, 1, true);
    assert_outputs(u->name, &whole, n - 1, &part, 1, n_in, true);
    free_outputs(&part);
    part = stats_of(u, 0, n, false);
    assert_outputs(u->name, &whole, 0, &part, n, n_in, false);
    free_outputs(&part);
  }
  for (uint32_t t = 0; t < 2 && u->d + 1 == all->n_cpu; t++) {
    outputs again = run_stats(u->f->more[t], u->c, &u->weight, u->in, 0, ROWS, NULL, true, NULL);
    assert_outputs("threads", &whole, 0, &again, ROWS, n_in, true);
    free_outputs(&again);
  }
  free_outputs(&whole);
}

static void test_rows_and_threads(void **state) {
  on_each(*state, 2400, 1, check_rows_and_threads);
}

/* More rows than any kernel takes at once. */
static void check_many_rows(const subject *u) {
  outputs few = stats_of(u, 0, ROWS, true);
  outputs many = stats_of(u, 0, ROWS_MAX - 3, true);
  for (uint32_t first = 0; first < ROWS_MAX; first += ROWS) {
    uint32_t n = ROWS_MAX - 3 - first < ROWS ? ROWS_MAX - 3 - first : ROWS;
    assert_outputs(u->name, &many, first, &few, n, u->c->n_in, true);
  }
  free_outputs(&few);
  free_outputs(&many);
}

static void test_many_rows(void **state) {
  on_each(*state, 3000, 3, check_many_rows);
}

/* The op soft, from the logits of head_rows, gives the bits of head_stats. */
static void check_soft_op(const subject *u) {
  const head_case *c = u->c;
  memset(u->in->allowed, 0, sizeof u->in->allowed);
  uint8_t bad[ROWS];
  buffer logits = run_rows(u->device, c, &u->weight, u->in->h, ROWS, bad);
  buffer soft = buffer_new((size_t)ROWS * c->n_in * 4);
  outputs o = stats_of(u, 0, ROWS, true);
  weft_soft_args args = {
      logits.data, u->in->temperature, &u->weight, soft.data, ROWS, c->n_vocab, c->n_in, 1.5f, NULL, 0};
  RUN_OP(soft, u->device, &args);
  assert_same("soft", u->name, "head_stats' soft", soft.data, o.soft.data, soft.n_bytes);
  buffer_free(&soft);
  buffer_free(&logits);
  free_outputs(&o);
}

/* Logits that head_stats leaves are those of head_rows, and all else is as without them. */
static void check_kept_logits(const subject *u) {
  const head_case *c = u->c;
  uint8_t bad[ROWS];
  buffer logits = run_rows(u->device, c, &u->weight, u->in->h, ROWS, bad), kept = buffer_new(logits.n_bytes);
  for (int soft = 0; soft < 2; soft++) {
    outputs o = stats_of(u, 0, ROWS, soft != 0);
    outputs beside = run_stats(u->device, c, &u->weight, u->in, 0, ROWS, NULL, soft != 0, kept.data);
    assert_same("head_stats", u->name, "logits", kept.data, logits.data, logits.n_bytes);
    assert_outputs(u->name, &o, 0, &beside, ROWS, c->n_in, soft != 0);
    memset(kept.data, 0xFF, kept.n_bytes);
    free_outputs(&beside);
    free_outputs(&o);
  }
  buffer_free(&kept);
  buffer_free(&logits);
}

static void test_kept_logits(void **state) {
  on_each(*state, 2650, 1, check_kept_logits);
}

static void test_soft_op(void **state) {
  on_each(*state, 2600, 1, check_soft_op);
}

/* ---- tokens of groups ---- */

/* Tokens in a mixed order, in groups of this size; some are in none. */
enum { GROUP_TOKENS = 5, GROUPS_CHOSEN = 3 };

typedef struct grouping {
  int32_t tokens[VOCAB_MAX], ids[ROWS * GROUPS_CHOSEN];
  uint32_t n_groups;
} grouping;

static grouping *make_groups(const head_case *c) {
  grouping *g = memory_new(1, sizeof *g);
  g->n_groups = c->n_vocab / GROUP_TOKENS;
  for (uint32_t v = 0; v < c->n_vocab; v++) g->tokens[v] = (int32_t)(((uint64_t)v * 7919 + 3) % c->n_vocab);
  for (uint32_t i = 0; i < ROWS * GROUPS_CHOSEN; i++)
    g->ids[i] = (int32_t)((i / GROUPS_CHOSEN + i % GROUPS_CHOSEN * (g->n_groups / GROUPS_CHOSEN)) % g->n_groups);
  return g;
}

static buffer run_groups(const subject *u, const grouping *g, uint32_t first, uint32_t n) {
  buffer logits = buffer_new((size_t)n * (u->c->n_vocab + 2) * sizeof(float));
  weft_head_groups_args args = {.h = u->in->h + (size_t)first * u->c->n_in,
                                .weight = &u->weight,
                                .tokens = g->tokens,
                                .ids = g->ids + first * GROUPS_CHOSEN,
                                .logits = logits.data,
                                .n_rows = n,
                                .n_groups = g->n_groups,
                                .size = GROUP_TOKENS,
                                .k = GROUPS_CHOSEN,
                                .h_stride = u->c->n_in,
                                .logits_stride = u->c->n_vocab + 2};
  RUN_OP(head_groups, u->device, &args);
  return logits;
}

/* The sum of n_in products in f32 is off by n_in 2^-24 of their magnitudes at most; a row that is looked up has the
 * bits of the stored one. */
static void check_token(const subject *u, uint32_t r, int32_t token, float got) {
  const float *h = u->in->h + (size_t)r * u->c->n_in, *w = u->s->value + (size_t)token * u->c->n_in;
  double sum = 0.0, size = 0.0;
  for (uint32_t i = 0; i < u->c->n_in; i++) {
    sum += (double)h[i] * (double)w[i];
    size += fabs((double)h[i] * (double)w[i]);
  }
  assert_within("head_groups", u->name, fabs((double)got - sum), size * u->c->n_in * 0x1p-24 + 1e-30);
}

static void check_groups(const subject *u) {
  const uint32_t n_vocab = u->c->n_vocab, stride = n_vocab + 2;
  grouping *g = make_groups(u->c);
  if (g->n_groups < GROUPS_CHOSEN) {
    memory_free(g);
    return;
  }
  buffer all = run_groups(u, g, 0, ROWS);
  for (uint32_t r = 0; r < ROWS; r++) {
    const float *row = (float *)all.data + (size_t)r * stride;
    uint32_t n_found = 0;
    for (uint32_t v = 0; v < n_vocab; v++) n_found += isinf(row[v]) && row[v] < 0.0f ? 0 : 1;
    assert_int_equal(n_found, GROUPS_CHOSEN * GROUP_TOKENS);
    for (uint32_t i = 0; i < GROUPS_CHOSEN * GROUP_TOKENS; i++) {
      int32_t id = g->ids[r * GROUPS_CHOSEN + i / GROUP_TOKENS];
      int32_t token = g->tokens[id * GROUP_TOKENS + (int32_t)(i % GROUP_TOKENS)];
      check_token(u, r, token, row[token]);
    }
    buffer one = run_groups(u, g, r, 1);
    assert_same("head_groups", u->name, "a row alone", one.data, row, n_vocab * sizeof *row);
    buffer_free(&one);
  }
  buffer_free(&all);
  memory_free(g);
}

static void test_groups(void **state) {
  on_each(*state, 3000, 2, check_groups);
}

/* ---- a vocabulary in ranges ---- */

/* A device's range of the tokens: rows of the whole matrix, or a matrix of its own. */
static weft_weight range_of(const subject *u, uint32_t token, uint32_t n, bool own) {
  weft_error error = {{0}};
  weft_weight weight = u->s->shape;
  if (!own) return u->weight;
  weight.n_out = n;
  const uint8_t *bytes = u->s->bytes + token * u->s->row_bytes;
  assert_int_equal(weft_device_weight(u->device, &weight, bytes, WEFT_USE_MATMUL, &error), WEFT_OK);
  weft_device *const device[] = {u->device, u->device};
  const weft_weight *const both[] = {&u->weight, &weight};
  assert_int_equal(weft_shards_agree(device, both, 2), WEFT_OK);
  return weight;
}

/* Products of n parts, and what chunks of them say, where chunks is set; own: each has a matrix of its own. */
static void run_parts(const subject *u, uint32_t n, bool own, const uint32_t *mask, float *const *logits,
                      uint64_t stride, void *chunks) {
  for (uint32_t i = 0; i < n; i++) {
    uint32_t token = weft_head_first(u->c->n_vocab, n, i), end = weft_head_first(u->c->n_vocab, n, i + 1);
    if (token == end) continue;
    weft_weight weight = range_of(u, token, end - token, own);
    weft_head_part_args args = {.h = u->in->h,
                                .weight = &weight,
                                .first = own ? 0 : token,
                                .n_tokens = end - token,
                                .token = token,
                                .n_vocab = u->c->n_vocab,
                                .logits = logits[i],
                                .chunks = chunks,
                                .temperature = u->in->temperature,
                                .allowed = mask,
                                .n_rows = ROWS,
                                .cap = u->c->cap,
                                .h_stride = u->c->n_in,
                                .logits_stride = stride};
    RUN_OP(head_part, u->device, &args);
    if (own) weft_device_weight_free(u->device, &weight);
  }
}

/* What is made of n parts has the bits of head_stats and head_rows. */
static void check_joined(const subject *u, uint32_t n, bool own, const uint32_t *mask, const outputs *whole,
                         const buffer *rows) {
  const head_case *c = u->c;
  uint32_t n_chunks = (c->n_vocab + WEFT_VOCAB_CHUNK - 1) / WEFT_VOCAB_CHUNK;
  uint64_t stride = (uint64_t)(n_chunks + n - 1) / n * WEFT_VOCAB_CHUNK;
  buffer part[WEFT_DEVICES_MAX], chunks = buffer_new((size_t)ROWS * n_chunks * WEFT_HEAD_CHUNK_BYTES);
  buffer all = buffer_new(rows->n_bytes), flags = buffer_new(ROWS);
  float *kept[WEFT_DEVICES_MAX], *placed[WEFT_DEVICES_MAX];
  outputs o = {buffer_new(0),        buffer_new(ROWS * 4), buffer_new(ROWS * 4), buffer_new(ROWS * 4),
               buffer_new(ROWS * 4), buffer_new(ROWS * 4), buffer_new(ROWS)};
  weft_head_join_args args = {.n_parts = n,
                              .chunks = chunks.data,
                              .temperature = u->in->temperature,
                              .u = u->in->u,
                              .allowed = mask,
                              .argmax = o.argmax.data,
                              .drawn = o.drawn.data,
                              .top = o.top.data,
                              .log_total = o.log_total.data,
                              .entropy = o.entropy.data,
                              .bad = o.bad.data,
                              .n_rows = ROWS,
                              .cap = c->cap,
                              .logits_stride = stride};
  for (uint32_t i = 0; i < n; i++) {
    part[i] = buffer_new(ROWS * stride * sizeof(float));
    args.token[i] = weft_head_first(c->n_vocab, n, i);
    args.logits[i] = kept[i] = part[i].data;
    placed[i] = (float *)all.data + args.token[i];
  }
  args.token[n] = c->n_vocab;
  run_parts(u, n, own, mask, kept, stride, chunks.data);
  RUN_OP(head_join, u->device, &args);
  assert_outputs(u->name, whole, 0, &o, ROWS, c->n_in, false);
  run_parts(u, n, own, NULL, placed, c->n_vocab, NULL);
  weft_head_rows_args made = {NULL, &u->weight, all.data, flags.data, ROWS, 0, c->n_vocab, c->cap, NULL, 0};
  RUN_OP(head_rows, u->device, &made);
  assert_same("head_rows", u->name, "a logit of a range", rows->data, all.data, all.n_bytes);
  for (uint32_t r = 0; r < ROWS; r++) assert_int_equal(((uint8_t *)flags.data)[r], ((uint8_t *)whole->bad.data)[r]);
  for (uint32_t i = 0; i < n; i++) buffer_free(&part[i]);
  buffer_free(&chunks);
  buffer_free(&all);
  buffer_free(&flags);
  free_outputs(&o);
}

/* A NaN makes a row bad, whichever part has it. The first chunk has larger scales, which no other range knows of by
 * itself. */
static void check_parts(const subject *same) {
  static const uint32_t numbers[] = {1, 2, 3, 4, 16};
  uint8_t bad[ROWS];
  const head_case *c = same->c;
  uint32_t n_raised = c->n_vocab < WEFT_VOCAB_CHUNK ? c->n_vocab : WEFT_VOCAB_CHUNK;
  stored uneven = stored_new(c->type, 1, c->n_vocab, c->n_in, 3300);
  if (find_scales(c->type) != NULL) stored_raise_rows(&uneven, n_raised, 3);
  subject raised = *same, *u = &raised;
  raised.s = &uneven;
  raised.weight = upload(u->device, &uneven);
  u->in->h[7 * u->c->n_in] = NAN;
  for (uint32_t masked = 0; masked < 2; masked++) {
    const uint32_t *mask = masked != 0 ? u->in->bits[1] : NULL; /* of most tokens few */
    for (uint32_t r = 0; r < ROWS; r++) u->in->allowed[r] = mask;
    outputs whole = stats_of(u, 0, ROWS, false);
    buffer rows = run_rows(u->device, u->c, &u->weight, u->in->h, ROWS, bad);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
      if (quick && (i + u->d + masked) % 2 != 0) continue;
      check_joined(u, numbers[i], (i + masked) % 2 != 0, mask, &whole, &rows);
    }
    buffer_free(&rows);
    free_outputs(&whole);
  }
  weft_device_weight_free(u->device, &raised.weight);
  stored_free(&uneven);
}

static void test_parts(void **state) {
  on_each(*state, 3200, 2, check_parts);
}

/* ---- hostile rows ---- */

/* Where nothing is drawn, the likeliest token, its logit and what is bad are the same. */
static void check_likeliest(const subject *u, const inputs *in, const outputs *whole) {
  buffer argmax = buffer_new(ROWS * 4), top = buffer_new(ROWS * 4), bad = buffer_new(ROWS);
  weft_head_stats_args args = {.h = in->h,
                               .weight = &u->weight,
                               .temperature = in->temperature,
                               .u = in->u,
                               .allowed = in->allowed,
                               .argmax = argmax.data,
                               .top = top.data,
                               .bad = bad.data,
                               .n_rows = ROWS,
                               .h_stride = u->c->n_in,
                               .cap = u->c->cap};
  RUN_OP(head_stats, u->device, &args);
  assert_same("head_stats", u->name, "a likeliest token", whole->argmax.data, argmax.data, argmax.n_bytes);
  assert_same("head_stats", u->name, "its logit", whole->top.data, top.data, top.n_bytes);
  assert_same("head_stats", u->name, "bad", whole->bad.data, bad.data, bad.n_bytes);
  buffer_free(&argmax);
  buffer_free(&top);
  buffer_free(&bad);
}

/* A NaN, an infinity, an empty mask: those rows are bad and zero, the others are as before; rows
 * that want no soft embedding keep what was there. */
static void check_bad_rows(const subject *u) {
  const uint32_t n_in = u->c->n_in;
  uint8_t want[ROWS];
  for (uint32_t r = 0; r < ROWS; r++) want[r] = r % 5 != 4;
  outputs before = stats_of(u, 0, ROWS, true);
  inputs *hostile = memory_new(1, sizeof *hostile);
  *hostile = *u->in;
  for (uint32_t r = 0; r < ROWS; r++) hostile->allowed[r] = u->in->allowed[r] == NULL ? NULL : hostile->bits[r];
  hostile->h[6 * n_in + 1] = NAN;
  hostile->h[17 * n_in + 5] = -INFINITY;
  memset(hostile->bits[20], 0, sizeof hostile->bits[20]);
  hostile->allowed[20] = hostile->bits[20];
  outputs after = run_stats(u->device, u->c, &u->weight, hostile, 0, ROWS, want, true, NULL);
  for (uint32_t r = 0; r < ROWS; r++) {
    bool bad = r == 6 || r == 17 || r == 20;
    assert_int_equal(((uint8_t *)after.bad.data)[r], bad ? 1 : 0);
    const float *soft = (float *)after.soft.data + (size_t)r * n_in;
    const float *soft_before = (float *)before.soft.data + (size_t)r * n_in;
    for (uint32_t k = 0; k < n_in; k++) {
      if (want[r] == 0)
        assert_true(isnan(soft[k]));
      else
        assert_true(soft[k] == (bad ? 0.0f : soft_before[k]));
    }
    assert_true(!bad || (((int32_t *)after.argmax.data)[r] == 0 && ((int32_t *)after.drawn.data)[r] == 0));
    assert_true(!bad || (((float *)after.top.data)[r] == 0.0f && ((float *)after.entropy.data)[r] == 0.0f));
    if (!bad) assert_int_equal(((int32_t *)after.drawn.data)[r], ((int32_t *)before.drawn.data)[r]);
  }
  check_likeliest(u, hostile, &after);
  memory_free(hostile);
  free_outputs(&before);
  free_outputs(&after);
}

static void test_bad_rows(void **state) {
  on_each(*state, 2800, 1, check_bad_rows);
}

/* ---- memory ---- */

/* The logits of all rows, 8 GiB here, exist at no time: scratch is a sixteenth of them at most. */
static void check_scratch(weft_device *device) {
  enum { N_ROWS = 8192, N_VOCAB = 262144, N_IN = 64 };
  const weft_weight weight = {.type = WEFT_TYPE_F32, .n_in = N_IN, .n_out = N_VOCAB, .n_mats = 1};
  float soft = 0;
  weft_head_stats_args args = {.weight = &weight, .n_rows = N_ROWS, .h_stride = N_IN, .soft_stride = N_IN};
  for (int i = 0; i < 2; i++) {
    args.soft = i == 0 ? NULL : &soft;
    assert_in_range(weft_head_stats_scratch(device, &args), 1, (uint64_t)N_ROWS * N_VOCAB * sizeof(float) / 16);
  }
}

static void test_scratch_is_bounded(void **state) {
  const fixture *f = *state;
  check_scratch(f->all.ref);
  for (uint32_t d = 0; d < f->all.n; d++) check_scratch(f->all.cpu[d]);
}

int main(int argc, char **argv) {
  take_arguments(argc, argv);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_meaning),
      cmocka_unit_test(test_logits),
      cmocka_unit_test(test_rows_and_threads),
      cmocka_unit_test(test_many_rows),
      cmocka_unit_test(test_soft_op),
      cmocka_unit_test(test_kept_logits),
      cmocka_unit_test(test_bad_rows),
      cmocka_unit_test(test_scratch_is_bounded),
      cmocka_unit_test(test_parts),
      cmocka_unit_test(test_groups),
  };
  return cmocka_run_group_tests(tests, setup_fixture, teardown_fixture);
}
