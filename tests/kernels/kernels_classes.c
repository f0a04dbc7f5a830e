/* SPDX-License-Identifier: MIT */
/* classes on every device: ref against sums written down here, the cpus against ref, bit for bit, cuda within what
 * kernels/classes.h says; and each row alone against all of them together, bit for bit. */
#include <math.h>

#include "tests/kernels/harness.h"

enum { TOKENS_APART = 7919, CUDA_CHUNK = 1024 };

/* What the logits of a row are; a case has one row of each. */
typedef enum logits_kind { MIXED, NORMAL, EQUAL, ZEROS, ALL_NAN, ALL_MINUS, ONE_FINITE, HUGE_ONES, LOGITS } logits_kind;

typedef uint32_t (*class_size)(uint32_t which);

typedef struct class_case {
  const char *name;
  uint32_t n_vocab, n_classes, n_most; /* n_most: classes are made until this many tokens are in one */
  class_size size;
  bool all; /* every token is allowed */
} class_case;

typedef struct input {
  const class_case *of;
  float *logits, *temperature;
  int32_t *token;
  uint32_t *at, *allowed, n_tokens;
  uint64_t stride;
} input;

static uint32_t size_one(uint32_t which) {
  (void)which;
  return 1;
}

/* The first class has all tokens, the others none. */
static uint32_t size_all(uint32_t which) {
  (void)which;
  return UINT32_MAX;
}

/* What is measured in another way on cuda begins and ends at each of them. */
static uint32_t size_edges(uint32_t which) {
  static const uint32_t size[] = {CUDA_CHUNK - 1, 2, 31, 32, 33, CUDA_CHUNK, 0, 1, 0, CUDA_CHUNK + 1,
                                  3 * CUDA_CHUNK, 63};
  return size[which % (sizeof size / sizeof *size)];
}

/* Many classes without tokens, in front, behind and between the others. */
static uint32_t size_gaps(uint32_t which) {
  return which < 70 || which % 41 != 7 ? 0 : which % 5;
}

static uint32_t size_some(uint32_t which) {
  return which % 7 == 3 ? 0 : which * which % 37;
}

/* As of a JSON schema: nearly every token may stand in a text, and a few in other places. */
static uint32_t size_schema(uint32_t which) {
  return which == 2 ? 200000 : which == 9 ? 60000 : which % 3 + 1;
}

static uint32_t size_long(uint32_t which) {
  return 100 + which * 977 % 9000;
}

static const class_case cases[] = {
    {"some", 700, 40, 600, size_some, false},
    {"some, no mask", 700, 40, 600, size_some, true},
    {"one class of one token", 33, 1, 1, size_one, true},
    {"one class of all tokens", 5000, 3, 5000, size_all, false},
    {"one token each", 3000, 3000, 3000, size_one, false},
    {"edges", 40000, 60, 40000, size_edges, true},
    {"edges, masked", 40000, 60, 40000, size_edges, false},
    {"empty classes", 1000, 5000, 1000, size_gaps, true},
    {"nothing but empty classes", 10, 200, 0, size_one, true},
    {"a whole chunk", CUDA_CHUNK, 1, CUDA_CHUNK, size_all, true},
    {"two whole chunks", 2 * CUDA_CHUNK, 2, 2 * CUDA_CHUNK, size_all, true},
    {"long ones", 262144, 60, 262144, size_long, false},
    {"a schema", 262144, 900, 262144, size_schema, false},
    {"tens of thousands", 65536, 65536, 65536, size_one, true},
    {"the whole vocabulary", 262144, 2, 262144, size_all, true},
};

static float make_logit(logits_kind kind, uint64_t seed, uint32_t v, uint32_t n_vocab) {
  float x = random_normal(seed, v);
  uint32_t draw = (uint32_t)(random_uniform(seed + 2, v) * 50.0f);
  switch (kind) {
    case MIXED:
      return draw == 0 ? -INFINITY : draw == 1 ? NAN : draw == 2 ? 1.0f : draw == 3 ? INFINITY : x * 8.0f;
    case EQUAL:
      return 1.5f;
    case ZEROS:
      return v % 3 == 0 ? -0.0f : 0.0f;
    case ALL_NAN:
      return NAN;
    case ALL_MINUS:
      return -INFINITY;
    case ONE_FINITE:
      return v == n_vocab / 2 ? -3.0f : NAN;
    case HUGE_ONES:
      return x * 1e37f;
    default:
      return x * 3.0f;
  }
}

static int by_token(const void *a, const void *b) {
  int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
  return (x > y) - (x < y);
}

/* A class takes tokens from everywhere in the vocabulary, whose size is no multiple of TOKENS_APART. */
static void make_classes(input *in) {
  const class_case *k = in->of;
  uint32_t n = 0;
  for (uint32_t c = 0; c < k->n_classes; c++) {
    uint32_t size = k->size(c), most = k->n_most - n;
    in->at[c] = n;
    if (size > most) size = most;
    for (uint32_t i = 0; i < size; i++) in->token[n + i] = (int32_t)((uint64_t)(n + i) * TOKENS_APART % k->n_vocab);
    qsort(in->token + n, size, sizeof *in->token, by_token);
    n += size;
  }
  in->at[k->n_classes] = in->n_tokens = n;
}

static input make_input(const class_case *k, uint64_t seed) {
  uint64_t stride = k->n_vocab + 4;
  input in = {.of = k,
              .logits = memory_new(LOGITS * stride, 4),
              .temperature = memory_new(LOGITS, 4),
              .token = memory_new(k->n_vocab, 4),
              .at = memory_new(k->n_classes + 1, 4),
              .allowed = memory_new((k->n_vocab + 31) / 32, 4),
              .stride = stride};
  for (uint32_t r = 0; r < LOGITS; r++) {
    in.temperature[r] = 0.05f + random_uniform(seed + 1, r);
    for (uint32_t v = 0; v < k->n_vocab; v++)
      in.logits[r * stride + v] = make_logit((logits_kind)r, seed + 10 + r, v, k->n_vocab);
  }
  for (uint32_t v = 0; v < k->n_vocab; v++) {
    if (random_uniform(seed + 4, v) < 0.6f) in.allowed[v / 32] |= 1u << v % 32;
  }
  make_classes(&in);
  return in;
}

static void free_input(input *in) {
  void *const parts[] = {in->logits, in->temperature, in->token, in->at, in->allowed};
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) memory_free(parts[i]);
}

typedef struct found {
  buffer best, log_sum;
} found;

static void free_found(found *f) {
  buffer_free(&f->best);
  buffer_free(&f->log_sum);
}

/* Rows first .. first + n - 1. */
static found run(weft_device *device, const input *in, uint32_t first, uint32_t n) {
  uint32_t n_classes = in->of->n_classes;
  found out = {buffer_new((size_t)n * n_classes * 4), buffer_new((size_t)n * n_classes * 4)};
  weft_classes_args args = {.logits = in->logits + first * in->stride,
                            .temperature = in->temperature + first,
                            .token = in->token,
                            .at = in->at,
                            .allowed = in->of->all ? NULL : in->allowed,
                            .best = out.best.data,
                            .log_sum = out.log_sum.data,
                            .n_rows = n,
                            .n_classes = n_classes,
                            .n_tokens = in->n_tokens,
                            .logits_stride = in->stride};
  RUN_OP(classes, device, &args);
  return out;
}

static void check_class(const input *in, uint32_t r, uint32_t c, int32_t best, float log_sum) {
  int32_t want = -1;
  double sum = 0.0, most = -INFINITY;
  for (int pass = 0; pass < 2; pass++) {
    for (uint32_t i = in->at[c]; i < in->at[c + 1]; i++) {
      uint32_t v = (uint32_t)in->token[i];
      double z = (double)in->logits[r * in->stride + v] / (double)in->temperature[r];
      if (!isfinite(in->logits[r * in->stride + v]) || (!in->of->all && (in->allowed[v / 32] >> v % 32 & 1) == 0))
        continue;
      if (pass == 0 && z > most) most = z, want = (int32_t)v;
      if (pass == 1) sum += exp(z - most);
    }
  }
  if (want < 0) {
    assert_int_equal(best, in->at[c] < in->at[c + 1] ? in->token[in->at[c]] : -1);
    assert_true(log_sum == WEFT_CLASSES_NONE);
    return;
  }
  double expected = most + log(sum), distance = fabs((double)log_sum - expected);
  assert_int_equal(best, want);
  if (fabs(most) > 1e36) return; /* it may be beyond what f32 holds once it is divided */
  if (distance > 1e-5 * (1.0 + fabs(expected))) fail_msg("log-sum %g, expected %g", (double)log_sum, expected);
}

/* What kernels/classes.h derives. */
static void assert_near(const char *name, const char *device, const found *got, const found *wanted) {
  const float *a = got->log_sum.data, *b = wanted->log_sum.data;
  for (size_t i = 0; i < got->log_sum.n_bytes / 4; i++) {
    double off = fabs((double)a[i] - (double)b[i]);
    bool none = b[i] == WEFT_CLASSES_NONE;
    if (none ? a[i] != b[i] : !(off <= 5e-6 + 0x1p-23 * fabs((double)b[i])))
      fail_msg("%s on %s: log-sum %zu is %.9g, on ref %.9g", name, device, i, (double)a[i], (double)b[i]);
  }
}

static void compare(const input *in, weft_device *device, const char *name, const found *wanted) {
  found all = run(device, in, 0, LOGITS);
  uint32_t n_bytes = in->of->n_classes * 4;
  assert_same(in->of->name, name, "a best token", all.best.data, wanted->best.data, all.best.n_bytes);
  if (is_cuda(device))
    assert_near(in->of->name, name, &all, wanted);
  else
    assert_same(in->of->name, name, "a log-sum", all.log_sum.data, wanted->log_sum.data, all.log_sum.n_bytes);
  for (uint32_t r = 0; r<LOGITS; r += in->of->n_vocab> 10000 ? 3 : 1) {
    found one = run(device, in, r, 1);
    uint64_t at = (uint64_t)r * n_bytes;
    assert_same(in->of->name, name, "a best token of a row alone", one.best.data, (uint8_t *)all.best.data + at,
                n_bytes);
    assert_same(in->of->name, name, "a log-sum of a row alone", one.log_sum.data, (uint8_t *)all.log_sum.data + at,
                n_bytes);
    free_found(&one);
  }
  free_found(&all);
}

static void test_classes(void **state) {
  const devices *all = *state;
  for (uint32_t i = case_first; i < sizeof cases / sizeof *cases; i += case_step) {
    if (quick && cases[i].n_vocab > 100000 && i % 2 != 0) continue;
    input in = make_input(&cases[i], 40 + 100 * i);
    found wanted = run(all->ref, &in, 0, LOGITS);
    for (uint32_t k = 0; k < LOGITS * cases[i].n_classes; k++) {
      uint32_t r = k / cases[i].n_classes, c = k % cases[i].n_classes;
      check_class(&in, r, c, ((int32_t *)wanted.best.data)[k], ((float *)wanted.log_sum.data)[k]);
    }
    for (uint32_t d = 0; d < all->n; d++) compare(&in, all->cpu[d], all->name[d], &wanted);
    free_found(&wanted);
    free_input(&in);
  }
}

/* Without rows there is nothing to do; without classes, or with too little scratch, the call is refused. */
static void test_refusals(void **state) {
  const devices *all = *state;
  input in = make_input(&cases[0], 7);
  for (uint32_t d = 0; d < all->n; d++) {
    weft_device *device = all->cpu[d];
    weft_classes_args args = {.logits = in.logits,
                              .temperature = in.temperature,
                              .token = in.token,
                              .at = in.at,
                              .best = (int32_t *)in.allowed,
                              .log_sum = in.temperature,
                              .n_classes = 40,
                              .n_tokens = in.n_tokens,
                              .logits_stride = in.stride};
    assert_int_equal(done(device, weft_classes(device, &args)), WEFT_OK);
    args.n_rows = 1;
    uint64_t needs = weft_classes_scratch(device, &args);
    if (needs > 0) assert_int_equal(weft_classes(device, &args), WEFT_E_INVALID);
    args.n_classes = 0;
    assert_int_equal(weft_classes(device, &args), WEFT_E_INVALID);
    assert_true(!is_cuda(device) || needs > 0);
  }
  free_input(&in);
}

int main(int argc, char **argv) {
  take_arguments(argc, argv);
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_classes), cmocka_unit_test(test_refusals)};
  return cmocka_run_group_tests(tests, setup_devices, teardown_devices);
}
