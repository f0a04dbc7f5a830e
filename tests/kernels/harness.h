/* SPDX-License-Identifier: MIT */
/* What the kernel tests share: the devices, buffers with guards, numbers, and comparisons.
 *
 * Law: memory that an op sees comes from memory_new or buffer_new. A buffer begins full of NaN, so that a value nobody
 * wrote shows, and is fenced by guard bytes, so that a write next to it shows. A device that this machine lacks is left
 * out with a line on standard error.
 *
 * The quick amount (amount.h) is fewer numbers of rows and the best of the cpu's instruction sets alone; under the
 * address sanitizer it is each of them in turn, another one for the next case of a test. A test program takes
 * arguments, for slow tools: "quick" for the best instruction set alone in any case, a pattern ('*' and '?') of the
 * tests to run, and K/N for every Nth case from case K on. */
#ifndef WEFT_TESTS_KERNELS_HARNESS_H
#define WEFT_TESTS_KERNELS_HARNESS_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "base/memory.h"
#include "base/random.h"
#include "kernels/ops.h"
#include "tests/support/amount.h"

enum { GUARD = 256, DEVICES_MAX = 6 };

/* ---- buffers ---- */

/* The device that cannot read ordinary memory, if this machine has one: memory of the tests is then pinned
 * memory of its, which every device reads. Taking it is slow, so pieces are kept by size and used again. */
static weft_device *memory_home;
typedef struct memory_piece {
  struct memory_piece *next;
  uint64_t size_class; /* the piece has 2^size_class bytes, this header of 64 among them */
} memory_piece;
static memory_piece *memory_kept[48];

static inline memory_piece *piece_new(size_t n_bytes) {
  uint64_t size_class = 8;
  while ((size_t)1 << size_class < n_bytes + 64) size_class++;
  memory_piece *piece = memory_kept[size_class];
  if (piece != NULL) {
    memory_kept[size_class] = piece->next;
    return piece;
  }
  void *memory = NULL;
  assert_int_equal(weft_device_alloc_host(memory_home, (uint64_t)1 << size_class, &memory), WEFT_OK);
  piece = memory;
  piece->size_class = size_class;
  return piece;
}

static inline void pieces_free(void) {
  for (size_t i = 0; i < sizeof memory_kept / sizeof memory_kept[0]; i++) {
    while (memory_kept[i] != NULL) {
      memory_piece *piece = memory_kept[i];
      memory_kept[i] = piece->next;
      weft_device_free_host(memory_home, piece);
    }
  }
}

/* n * size bytes that every device may read and write, zeroed. */
static inline void *memory_new(size_t n, size_t size) {
  void *memory = NULL;
  if (memory_home == NULL) {
    memory = weft_alloc_aligned(n * size, 64);
  } else {
    memory = (uint8_t *)piece_new(n * size) + 64;
  }
  assert_non_null(memory);
  memset(memory, 0, n * size);
  return memory;
}

static inline void memory_free(void *memory) {
  if (memory_home == NULL) {
    weft_free(memory);
    return;
  }
  memory_piece *piece = (memory_piece *)(void *)((uint8_t *)memory - 64);
  piece->next = memory_kept[piece->size_class];
  memory_kept[piece->size_class] = piece;
}

/* The status of an op once it has run. */
static inline weft_status done(weft_device *device, weft_status status) {
  return status == WEFT_OK ? weft_device_sync(device) : status;
}

typedef struct buffer {
  uint8_t *memory;
  void *data; /* 64-byte aligned, full of NaN at first */
  size_t n_bytes;
} buffer;

static inline buffer buffer_new(size_t n_bytes) {
  buffer b = {.memory = memory_new(n_bytes + 2 * GUARD, 1), .n_bytes = n_bytes};
  b.data = b.memory + GUARD;
  memset(b.memory, 0xA5, n_bytes + 2 * GUARD);
  memset(b.data, 0xFF, n_bytes);
  return b;
}

static inline void buffer_free(buffer *b) {
  for (size_t i = 0; i < GUARD; i++) {
    assert_int_equal(b->memory[i], 0xA5);
    assert_int_equal(b->memory[GUARD + b->n_bytes + i], 0xA5);
  }
  memory_free(b->memory);
  *b = (buffer){0};
}

/* Runs the op with as much scratch as it asks for, which goes into its arguments. */
#define RUN_OP(op, device, args)                                      \
  do {                                                                \
    (args)->scratch_bytes = weft_##op##_scratch(device, args);        \
    buffer op_scratch = buffer_new((args)->scratch_bytes);            \
    (args)->scratch = op_scratch.data;                                \
    assert_int_equal(done(device, weft_##op(device, args)), WEFT_OK); \
    buffer_free(&op_scratch);                                         \
  } while (0)

/* ---- numbers ---- */

static inline float random_uniform(uint64_t seed, uint64_t i) {
  weft_draw_key key = {.seed = seed, .purpose = WEFT_DRAW_TEST, .position = i};
  return weft_draw_uniform(&key);
}

/* 64 random bits: one mixing of a place with what a seed was made into before. Tests draw millions of numbers, so that
 * keys of base/random.h, mixed four times each, were half the time of some of them. */
static inline uint64_t random_bits(uint64_t mixed_seed, uint64_t i) {
  return weft_mix64(mixed_seed ^ (i + 1) * 0xE7037ED1A0B428DBull);
}

static inline uint64_t random_seed(uint64_t seed) {
  return weft_mix64(seed + 0x9E3779B97F4A7C15ull);
}

/* About normal: the sum of four uniforms of 16 bits, mean 0, variance 1. */
static inline float normal_of_bits(uint64_t bits) {
  int32_t sum = (int32_t)((bits & 0xFFFF) + (bits >> 16 & 0xFFFF) + (bits >> 32 & 0xFFFF) + (bits >> 48));
  return (float)(sum - 4 * 32767 - 2) * (1.7320508f * 0x1p-16f);
}

static inline float random_normal(uint64_t seed, uint64_t i) {
  return normal_of_bits(random_bits(random_seed(seed), i));
}

static inline void fill_normal(float *x, size_t n, uint64_t seed) {
  const uint64_t mixed = random_seed(seed);
  for (size_t i = 0; i < n; i++) x[i] = normal_of_bits(random_bits(mixed, i));
}

static inline void fill_bytes(uint8_t *x, size_t n, uint64_t seed) {
  const uint64_t mixed = random_seed(seed);
  for (size_t i = 0; i < n; i += 8) {
    uint64_t bits = random_bits(mixed, i);
    memcpy(x + i, &bits, n - i < sizeof bits ? n - i : sizeof bits);
  }
}

/* ---- devices ---- */

/* ref, then every device that is compared with it: the cpu's instruction sets, worst first, and cuda. */
typedef struct devices {
  uint32_t n;     /* of device */
  uint32_t n_cpu; /* the first n_cpu of them are cpus */
  weft_device *ref, *cpu[DEVICES_MAX];
  const char *name[DEVICES_MAX];
} devices;

static bool quick, best_only; /* fewer numbers of rows; of the cpu's instruction sets the best alone */
static uint32_t case_first = 0, case_step = 1;

/* Where an instruction set is compiled so that a sanitizer sees what it touches, every one of them has its turn. */
#ifdef __SANITIZE_ADDRESS__
static const bool touches_are_seen = true;
#else
static const bool touches_are_seen = false;
#endif

/* The kernel set of cuda, from a last argument "set=NAME". */
static const char *cuda_set;

static inline void take_arguments(int argc, char **argv) {
  char *rest = NULL;
  if (argc > 1 && strncmp(argv[argc - 1], "set=", 4) == 0) cuda_set = argv[--argc] + 4;
  quick = test_amount(1, 0, 0) != 0;
  best_only = quick && !touches_are_seen;
  if (argc > 1 && strcmp(argv[1], "quick") == 0) quick = best_only = true;
  if (argc > 2) cmocka_set_test_filter(argv[2]);
  if (argc <= 3) return;
  case_first = (uint32_t)strtoul(argv[3], &rest, 10);
  if (*rest == '/') case_step = (uint32_t)strtoul(rest + 1, NULL, 10);
  if (case_step == 0) case_step = 1;
}

static inline bool is_cuda(const weft_device *device) {
  return strcmp(weft_device_get_info(device)->backend, "cuda") == 0;
}

static inline bool is_portable(const weft_device *device) {
  const char *set = weft_device_get_info(device)->set;
  return set != NULL && strcmp(set, "portable") == 0;
}

static inline bool is_eight(const weft_device *device) {
  return is_cuda(device) && weft_device_get_info(device)->products == 8;
}

static inline weft_device *open_cuda_as(const weft_device_config *config) {
  weft_device *device = NULL;
  weft_error error = {{0}};
  weft_status status = weft_device_open(config, &device, &error);
  if (status == WEFT_E_UNSUPPORTED)
    (void)fprintf(stderr, "left out: %s\n", error.text);
  else
    assert_int_equal(status, WEFT_OK);
  return device;
}

/* free_sums: without the contract of determinism. */
static inline weft_device *open_cuda(bool free_sums) {
  const weft_device_config config = {.backend = "cuda", .isa = cuda_set, .no_deterministic = free_sums};
  return open_cuda_as(&config);
}

static inline weft_device *open_cpu(const char *isa, uint32_t n_threads) {
  weft_device_config config = {.backend = "cpu", .isa = isa, .n_threads = n_threads};
  weft_device *device = NULL;
  weft_error error = {{0}};
  weft_status status = weft_device_open(&config, &device, &error);
  if (status == WEFT_E_UNSUPPORTED)
    (void)fprintf(stderr, "left out: %s\n", error.text);
  else
    assert_int_equal(status, WEFT_OK);
  return device;
}

static inline devices open_devices(uint32_t n_threads) {
  static const char *const isas[] = {"portable", "avx2", "avx512"};
  devices all = {0};
  weft_device_config config = {.backend = "ref"};
  assert_int_equal(weft_device_open(&config, &all.ref, NULL), WEFT_OK);
  for (size_t i = 0; i < sizeof isas / sizeof isas[0]; i++) {
    weft_device *device = open_cpu(isas[i], n_threads);
    if (device == NULL) continue;
    if (best_only && all.n > 0) weft_device_close(all.cpu[--all.n]);
    all.name[all.n] = isas[i];
    all.cpu[all.n++] = device;
  }
  all.n_cpu = all.n;
  memory_home = open_cuda(false);
  if (memory_home == NULL) return all;
  all.name[all.n] = "cuda";
  all.cpu[all.n++] = memory_home;
  return all;
}

/* The card twice more, for products of 8 bits: without integers of weights and with them. */
static inline void add_eight(devices *all) {
  static const char *const names[] = {"cuda, 8 bits", "cuda, 8 bits, integers"};
  for (uint32_t i = 0; i < 2 && memory_home != NULL; i++) {
    const weft_device_config config = {.backend = "cuda", .isa = cuda_set, .products = 8, .integers = i == 1};
    weft_device *device = open_cuda_as(&config); /* NULL: the set keeps no integers */
    if (device == NULL) continue;
    all->name[all->n] = names[i];
    all->cpu[all->n++] = device;
  }
}

static inline void close_devices(devices *all) {
  pieces_free();
  memory_home = NULL;
  weft_device_close(all->ref);
  for (uint32_t i = 0; i < all->n; i++) weft_device_close(all->cpu[i]);
}

/* Whether device d leaves case number `turn` of a test to another instruction set. */
static inline bool is_out_of_turn(const devices *all, uint32_t d, uint32_t turn) {
  return quick && touches_are_seen && d < all->n_cpu && (turn + d) % all->n_cpu != 0;
}

/* For groups of tests whose state is the devices. */
static inline int setup_devices(void **state) {
  static devices all;
  all = open_devices(3);
  *state = &all;
  return 0;
}

static inline int teardown_devices(void **state) {
  close_devices(*state);
  return 0;
}

/* The same with one thread, and the best of the cpus with two and with three: for tests of how threads share work. */
typedef struct fixture {
  devices all;
  weft_device *more[2];
} fixture;

static inline int setup_fixture(void **state) {
  static fixture f;
  f.all = open_devices(1);
  f.more[0] = open_cpu(NULL, 2);
  f.more[1] = open_cpu(NULL, 3);
  *state = &f;
  return 0;
}

static inline int setup_fixture_with_eight(void **state) {
  (void)setup_fixture(state);
  add_eight(&((fixture *)*state)->all);
  return 0;
}

static inline int teardown_fixture(void **state) {
  fixture *f = *state;
  close_devices(&f->all);
  for (uint32_t i = 0; i < 2; i++) weft_device_close(f->more[i]);
  return 0;
}

/* On the best of the cpus, with two threads, and on every device that is none. */
static inline void on_best_devices(const fixture *f, void (*check)(weft_device *device)) {
  check(f->more[0]);
  for (uint32_t d = f->all.n_cpu; d < f->all.n; d++) check(f->all.cpu[d]);
}

/* ---- comparisons ---- */

/* Largest |a - b| over rows of n_cols; NaN anywhere counts as infinite. */
static inline double distance(const float *a, const float *b, uint32_t n_rows, uint64_t n_cols, uint64_t stride) {
  double worst = 0.0;
  for (uint64_t r = 0; r < n_rows; r++) {
    for (uint64_t i = 0; i < n_cols; i++) {
      double d = fabs((double)a[r * stride + i] - (double)b[r * stride + i]);
      if (isnan(d)) return INFINITY;
      if (d > worst) worst = d;
    }
  }
  return worst;
}

static inline void assert_within(const char *name, const char *device, double worst, double tolerance) {
  if (worst <= tolerance) return;
  fail_msg("%s on %s: off by %.3g, tolerance %.3g", name, device, worst, tolerance);
}

/* Bit for bit. */
static inline void assert_same(const char *name, const char *device, const char *what, const void *a, const void *b,
                               size_t n_bytes) {
  if (memcmp(a, b, n_bytes) != 0) fail_msg("%s on %s: %s differs in its bits", name, device, what);
}

/* Memory that costs only what is touched, for strides beyond 2^31; NULL where the system refuses. */
static inline void *huge_new(size_t n_bytes) {
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void *memory = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
  return memory == MAP_FAILED ? NULL : memory;
}

static inline void huge_free(void *memory, size_t n_bytes) {
  assert_int_equal(munmap(memory, n_bytes), 0);
}

#endif
