/* SPDX-License-Identifier: MIT */
/* The ops that device_ops.c times, at the shapes of a 26B mixture of experts. */
#ifndef WEFT_BENCH_DEVICE_CASES_H
#define WEFT_BENCH_DEVICE_CASES_H

#include "kernels/ops.h"

enum { HIDDEN = 2816, VOCAB = 262144, EXPERTS = 128, TOP = 8, FF = 704, ROWS_MAX = 8192, COPIES_MAX = 8 };
enum { DRAFTER = 1024, CACHE_BYTES = 160 << 20, ITERATIONS_MAX = 200, N_X = ROWS_MAX * 16 * 512 /* inputs */ };

typedef enum work {
  WORK_MATMUL,
  WORK_EXPERTS,
  WORK_ATTENTION,
  WORK_HEAD,
  WORK_NORM,
  WORK_SAMPLE,
  WORK_ROUTE,
  WORK_CLASSES,
  WORK_HELD,
  WORK_NORMS,
  WORK_STORE,
  WORK_DELTA_ROWS,
  WORK_DELTA_RULE
} work;

typedef enum sample_kind { SAMPLE_ALL, SAMPLE_MOST, SAMPLE_TEMPERATURE, SAMPLE_BEST } sample_kind;

typedef struct bench_case {
  const char *name;
  work what;
  weft_type type, down; /* attention: of the keys */
  uint32_t n_rows, n_out, n_in;
  /* attention */
  uint32_t n_heads, n_kv_heads, dim, window, kv_len, n_segments;
  bool canvas;
} bench_case;

#define MATMUL(name, type, rows, out, in) \
  { name, WORK_MATMUL, WEFT_TYPE_##type, WEFT_TYPE_NONE, rows, out, in, 0, 0, 0, 0, 0, 0, false }
/* Beside one another: 4096 is whole blocks of every type. */
#define TYPE(type) MATMUL("types", type, 1, HIDDEN, 4096), MATMUL("types", type, 256, HIDDEN, 4096)
#define MOE(name, type, down, rows) \
  { name, WORK_EXPERTS, WEFT_TYPE_##type, WEFT_TYPE_##down, rows, 0, HIDDEN, 0, 0, 0, 0, 0, 0, false }
/* The same with rows that the norm before left in the form that the weights take. */
#define PREPARED(name, type, down, rows) \
  { name, WORK_EXPERTS, WEFT_TYPE_##type, WEFT_TYPE_##down, rows, 0, HIDDEN, 0, 0, 0, 0, 0, 0, true }
#define ROUTE(name, rows) \
  { name, WORK_ROUTE, WEFT_TYPE_F32, WEFT_TYPE_NONE, rows, EXPERTS, HIDDEN, 0, 0, 0, 0, 0, 0, false }
#define SLIDE(name, type, rows, kv, segments, canvas) \
  { name, WORK_ATTENTION, WEFT_TYPE_##type, WEFT_TYPE_NONE, rows, 0, 0, 16, 8, 256, 1024, kv, segments, canvas }
#define GLOBAL(name, type, rows, kv, segments, canvas) \
  { name, WORK_ATTENTION, WEFT_TYPE_##type, WEFT_TYPE_NONE, rows, 0, 0, 16, 2, 512, 0, kv, segments, canvas }
/* The norms of a layer after its attention or, if is_end, after its experts. */
#define NORMS(name, rows, is_end) \
  { name, WORK_NORMS, WEFT_TYPE_Q4_K, WEFT_TYPE_NONE, rows, 16, HIDDEN, 0, 0, 0, 0, 0, 0, is_end }
#define STORE(name, rows) \
  { name, WORK_STORE, WEFT_TYPE_BF16, WEFT_TYPE_NONE, rows, 0, 0, 16, 8, 256, 0, 0, 1, false }
/* Both ops of the delta rule, of sequences with kv_len positions before the call. */
#define DELTA(rows, kv, segments)                                                                                     \
  {"delta rows", WORK_DELTA_ROWS, WEFT_TYPE_BF16, WEFT_TYPE_NONE, rows, 0, 0, 32, 16, 128, 0, kv, segments, false}, { \
    "delta rule", WORK_DELTA_RULE, WEFT_TYPE_BF16, WEFT_TYPE_NONE, rows, 0, 0, 32, 16, 128, 0, kv, segments, false    \
  }
#define SAMPLE(name, rows, asked) \
  { name, WORK_SAMPLE, WEFT_TYPE_F32, WEFT_TYPE_NONE, rows, asked, 0, 0, 0, 0, 0, 0, 0, false }
#define HELD(name, rows) \
  { name, WORK_HELD, WEFT_TYPE_F32, WEFT_TYPE_NONE, rows, 0, 0, 0, 0, 0, 0, 0, 0, false }
#define CLASSES(name, rows, n) \
  { name, WORK_CLASSES, WEFT_TYPE_F32, WEFT_TYPE_NONE, rows, n, 0, 0, 0, 0, 0, 0, 0, false }
#define HEAD(name, type, rows, soft) \
  { name, WORK_HEAD, WEFT_TYPE_##type, WEFT_TYPE_NONE, rows, VOCAB, HIDDEN, 0, 0, 0, 0, 0, 0, soft }

static const bench_case cases[] = {
    MATMUL("q", Q4_K, 1, 4096, HIDDEN),
    MATMUL("q", Q4_K, 8, 4096, HIDDEN),
    MATMUL("q", Q4_K, 32, 4096, HIDDEN),
    MATMUL("q", Q4_K, 64, 4096, HIDDEN),
    MATMUL("q", Q4_K, 128, 4096, HIDDEN),
    MATMUL("q", Q4_K, 256, 4096, HIDDEN),
    MATMUL("q", Q4_K, 2048, 4096, HIDDEN),
    MATMUL("q", Q4_K, 8192, 4096, HIDDEN),
    MATMUL("q", Q8_0, 1, 4096, HIDDEN),
    MATMUL("q", Q8_0, 256, 4096, HIDDEN),
    MATMUL("q", Q6_K, 1, 4096, HIDDEN),
    MATMUL("q", BF16, 1, 4096, HIDDEN),
    MATMUL("q", BF16, 2048, 4096, HIDDEN),
    TYPE(Q4_K),
    TYPE(Q4_1),
    TYPE(Q5_1),
    TYPE(Q2_K),
    TYPE(Q3_K),
    TYPE(IQ4_NL),
    TYPE(NVFP4),
    TYPE(IQ4_XS),
    TYPE(IQ3_S),
    TYPE(IQ2_S),
    MATMUL("o", Q4_K, 1, HIDDEN, 4096),
    MATMUL("o", Q4_K, 256, HIDDEN, 4096),
    MATMUL("qkv", Q4_K, 256, 8192, HIDDEN),
    MATMUL("global qkv", Q4_K, 256, 9216, HIDDEN),
    MATMUL("mlp", Q4_K, 256, 4224, HIDDEN),
    MATMUL("global o", Q4_K, 256, HIDDEN, 8192),
    MATMUL("down", Q8_0, 1, HIDDEN, 2112),
    MATMUL("down", Q8_0, 256, HIDDEN, 2112),
    MATMUL("down", Q8_0, 8192, HIDDEN, 2112),
    MATMUL("q", Q4_K, 4, 4096, HIDDEN),
    MATMUL("head", Q6_K, 4, VOCAB, HIDDEN),
    MATMUL("drafter q", Q8_0, 1, 4096, DRAFTER),
    MATMUL("drafter down", Q8_0, 1, DRAFTER, 8192),
    MATMUL("drafter head", Q8_0, 1, VOCAB, DRAFTER),
    ROUTE("router", 1),
    ROUTE("router", 2),
    ROUTE("router", 4),
    ROUTE("router", 8),
    ROUTE("router", 32),
    ROUTE("router", 256),
    ROUTE("router", 512),
    ROUTE("router", 1024),
    ROUTE("router", 2048),
    ROUTE("router", 8192),
    MATMUL("head", Q6_K, 1, VOCAB, HIDDEN),
    MATMUL("head", Q6_K, 64, VOCAB, HIDDEN),
    MATMUL("head", Q6_K, 128, VOCAB, HIDDEN),
    MATMUL("head", Q4_K, 128, VOCAB, HIDDEN),
    MOE("experts", Q4_K, Q8_0, 1),
    MOE("experts", Q4_K, Q8_0, 2),
    MOE("experts", Q4_K, Q8_0, 4),
    MOE("experts", Q4_K, Q8_0, 5),
    MOE("experts", Q4_K, Q8_0, 8),
    MOE("experts", Q4_K, Q8_0, 16),
    MOE("experts", Q4_K, Q8_0, 32),
    MOE("experts", Q4_K, Q8_0, 128),
    MOE("experts", Q4_K, Q8_0, 256),
    MOE("experts", Q4_K, Q8_0, 2048),
    MOE("experts", Q4_K, Q8_0, 8192),
    PREPARED("prepared experts", Q4_K, Q8_0, 2048),
    PREPARED("prepared experts", Q4_K, Q8_0, 8192),
    SLIDE("sliding decode", BF16, 1, 4096, 1, false),
    SLIDE("sliding decode", BF16, 32, 1024, 32, false),
    GLOBAL("global decode", BF16, 1, 4096, 1, false),
    GLOBAL("global decode", BF16, 1, 16384, 1, false),
    GLOBAL("global decode", BF16, 32, 1024, 32, false),
    SLIDE("sliding canvas", BF16, 256, 512, 1, true),
    GLOBAL("global canvas", BF16, 256, 512, 1, true),
    GLOBAL("global canvas", BF16, 256, 16384, 1, true),
    SLIDE("sliding prefill", BF16, 2048, 0, 1, false),
    GLOBAL("global prefill", BF16, 2048, 0, 1, false),
    SLIDE("sliding decode", Q8_0, 1, 4096, 1, false),
    SLIDE("sliding decode", Q8_0, 32, 1024, 32, false),
    GLOBAL("global decode", Q8_0, 1, 4096, 1, false),
    GLOBAL("global decode", Q8_0, 1, 16384, 1, false),
    GLOBAL("global decode", Q8_0, 32, 1024, 32, false),
    SLIDE("sliding canvas", Q8_0, 256, 512, 1, true),
    GLOBAL("global canvas", Q8_0, 256, 512, 1, true),
    GLOBAL("global canvas", Q8_0, 256, 16384, 1, true),
    SLIDE("sliding prefill", Q8_0, 2048, 0, 1, false),
    GLOBAL("global prefill", Q8_0, 2048, 0, 1, false),
    SLIDE("run decode", BF16, 4, 1024, 1, false),
    GLOBAL("global run decode", BF16, 4, 1024, 1, false),
    GLOBAL("global run decode", BF16, 8, 1024, 1, false),
    DELTA(1, 96, 1),
    DELTA(32, 96, 32),
    DELTA(64, 96, 64),
    DELTA(2048, 0, 1),
    DELTA(2048, 0, 8),
    HEAD("head_stats", Q4_K, 1, false),
    HEAD("head_stats", Q4_K, 32, false),
    HEAD("head_stats with soft", Q4_K, 256, true),
    HEAD("head_stats with soft", Q6_K, 256, true),
    {"norm", WORK_NORM, WEFT_TYPE_F32, WEFT_TYPE_NONE, 1, 0, HIDDEN, 0, 0, 0, 0, 0, 0, false},
    SAMPLE("sample", 1, SAMPLE_ALL),
    SAMPLE("sample", 32, SAMPLE_ALL),
    SAMPLE("sample", 64, SAMPLE_ALL),
    SAMPLE("sample of most", 1, SAMPLE_MOST),
    SAMPLE("sample of most", 32, SAMPLE_MOST),
    SAMPLE("sample of most", 64, SAMPLE_MOST),
    SAMPLE("sample by temperature", 1, SAMPLE_TEMPERATURE),
    SAMPLE("sample by temperature", 64, SAMPLE_TEMPERATURE),
    SAMPLE("sample of the best", 1, SAMPLE_BEST),
    SAMPLE("sample of the best", 64, SAMPLE_BEST),
    CLASSES("classes of a schema", 8, 900),
    CLASSES("classes of a schema", 64, 900),
    CLASSES("classes of one size", 64, 4096),
    HELD("sample of a format", 1),
    HELD("sample of a format", 32),
    HELD("sample of a format", 64),
    {"norm", WORK_NORM, WEFT_TYPE_F32, WEFT_TYPE_NONE, 256, 0, HIDDEN, 0, 0, 0, 0, 0, 0, false},
    NORMS("norms after attention", 2048, false),
    NORMS("norms after attention", 8192, false),
    NORMS("norms after experts", 2048, true),
    NORMS("norms after experts", 8192, true),
    STORE("norms of heads", 2048),
    STORE("norms of heads", 8192),
};

#endif
