/* SPDX-License-Identifier: MIT */
/* The sum over shards: in the order of the shards, with the same bits on all of them, by copies and in one call, call
 * by call and in steps that are graphs; and a shard that breaks or fails ends the sums of the others, also those that
 * wait on a device. */
#include "kernels/shards.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/random.h"
#include "tests/support/fake_card.h"

enum { ROWS = 5, COLS = 33, N = ROWS * COLS, SUMS = 60, STEPS = 90 };

typedef struct shard_thread {
  weft_shards *shards;
  weft_device *device;
  uint32_t n, index, breaks_at; /* breaks_at: the sum that this shard does not come to */
  uint32_t n_wrong, n_done;
  uint64_t launches, crossed;
  weft_status status;
} shard_thread;

static float part_of(uint32_t shard, uint32_t sum, uint32_t array, uint32_t i) {
  uint64_t bits = weft_mix64(((uint64_t)shard << 40) ^ ((uint64_t)sum << 20) ^ ((uint64_t)array << 16) ^ i);
  return ((float)(bits >> 40) - 8388608.0f) * (bits % 3 == 0 ? 1e-9f : 1e-3f);
}

static float wanted_of(uint32_t n, uint32_t sum, uint32_t array, uint32_t i) {
  float total = part_of(0, sum, array, i);
  for (uint32_t s = 1; s < n; s++) total += part_of(s, sum, array, i);
  return total;
}

static void *run_shard(void *self) {
  shard_thread *t = self;
  float host[N];
  float *x[2] = {NULL, NULL};
  for (uint32_t a = 0; a < 2; a++) t->status = weft_device_alloc(t->device, sizeof host, (void **)&x[a]);
  for (uint32_t k = 0; k < SUMS && t->status == WEFT_OK; k++) {
    uint32_t n_arrays = 1 + k % 2, rows = 1 + k % ROWS;
    if (k == t->breaks_at) {
      weft_shards_break(t->shards);
      break;
    }
    for (uint32_t a = 0; a < n_arrays; a++) {
      for (uint32_t i = 0; i < N; i++) host[i] = part_of(t->index, k, a, i);
      if (t->status == WEFT_OK) t->status = weft_device_upload(t->device, x[a], host, sizeof host);
    }
    if (t->status == WEFT_OK) t->status = weft_shards_sum(t->shards, t->index, x, n_arrays, rows, COLS);
    for (uint32_t a = 0; a < n_arrays && t->status == WEFT_OK; a++) {
      t->status = weft_device_download(t->device, host, x[a], sizeof host);
      for (uint32_t i = 0; i < N; i++) {
        float wanted = i < rows * COLS ? wanted_of(t->n, k, a, i) : part_of(t->index, k, a, i);
        t->n_wrong += memcmp(&host[i], &wanted, sizeof wanted) != 0;
      }
    }
    if (t->status == WEFT_OK) t->n_done++;
  }
  for (uint32_t a = 0; a < 2; a++) weft_device_free(t->device, x[a]);
  return NULL;
}

/* "fake": cards that add up in one call; "fake far": that do not reach one another; "cuda far": the same. */
static bool open_devices(const char *backend, uint32_t n, weft_device **device) {
  bool far = strstr(backend, "far") != NULL;
  for (uint32_t i = 0; i < n; i++) {
    weft_device_config config = {.backend = far ? "cuda" : backend, .index = i, .n_threads = 1, .no_peer = far};
    if (strncmp(backend, "fake", 4) == 0) {
      fake_card *card = fake_card_open(true);
      card->base.info.index = i;
      card->unreachable = far;
      device[i] = &card->base;
      continue;
    }
    if (weft_device_open(&config, &device[i], NULL) == WEFT_OK) continue;
    while (i-- > 0) weft_device_close(device[i]);
    return false;
  }
  return true;
}

static bool adds_in_one_call(const char *backend) {
  return strcmp(backend, "fake") == 0 || strcmp(backend, "cuda") == 0;
}

/* Returns whether this machine has n devices of the backend. */
static bool play_sized(const char *backend, uint32_t n, uint32_t breaks_at, uint64_t n_floats, void *(*run)(void *),
                       shard_thread *t) {
  weft_device *device[WEFT_DEVICES_MAX] = {NULL};
  weft_shards *shards;
  pthread_t thread[WEFT_DEVICES_MAX] = {0};
  if (!open_devices(backend, n, device)) return false;
  assert_int_equal(weft_shards_open(device, n, n_floats, 0, &shards), WEFT_OK);
  assert_true(weft_shards_in_graphs(shards) == adds_in_one_call(backend));
  for (uint32_t i = 0; i < n; i++) {
    t[i] = (shard_thread){
        .shards = shards, .device = device[i], .n = n, .index = i, .breaks_at = i == n - 1 ? breaks_at : UINT32_MAX};
    assert_int_equal(pthread_create(&thread[i], NULL, run, &t[i]), 0);
  }
  for (uint32_t i = 0; i < n; i++) assert_int_equal(pthread_join(thread[i], NULL), 0);
  for (uint32_t i = 0; i < n; i++) t[i].launches = weft_device_graph_counters(device[i]).launches;
  for (uint32_t i = 0; i < n; i++) t[i].crossed = weft_shards_crossed(shards);
  assert_true(weft_shards_broken(shards) == (breaks_at != UINT32_MAX));
  weft_shards_close(shards);
  for (uint32_t i = 0; i < n; i++) weft_device_close(device[i]);
  return true;
}

static bool play_with(const char *backend, uint32_t n, uint32_t breaks_at, void *(*run)(void *), shard_thread *t) {
  return play_sized(backend, n, breaks_at, 2 * N, run, t);
}

static bool play(const char *backend, uint32_t n, uint32_t breaks_at, shard_thread *t) {
  if (!play_with(backend, n, breaks_at, run_shard, t)) return false;
  uint64_t floats = 0;
  for (uint32_t k = 0; k < SUMS; k++) floats += (1 + k % 2) * (1 + k % ROWS) * COLS;
  if (breaks_at == UINT32_MAX) assert_int_equal(t[0].crossed, floats * sizeof(float) * n * (n - 1));
  return true;
}

static void test_sums(void **state) {
  static const char *const backends[] = {"ref", "cpu", "fake", "fake far", "cuda", "cuda far"};
  (void)state;
  for (uint32_t b = 0; b < sizeof backends / sizeof *backends; b++) {
    for (uint32_t n = 1; n <= 4; n++) {
      shard_thread t[WEFT_DEVICES_MAX];
      if (n == 1) continue; /* nothing is summed */
      if (!play(backends[b], n, UINT32_MAX, t)) {
        print_message("%s: left out %u devices\n", backends[b], n);
        continue;
      }
      for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(t[i].status, WEFT_OK);
        assert_int_equal(t[i].n_done, SUMS);
        assert_int_equal(t[i].n_wrong, 0);
      }
    }
  }
}

/* Whoever waits when a shard breaks is woken, and everybody who comes later is refused. */
static void break_everywhere(const char *backend, uint32_t n, void *(*run)(void *), uint32_t n_rounds) {
  for (uint32_t at = 0; at < n_rounds; at += 7) {
    shard_thread t[WEFT_DEVICES_MAX];
    if (!play_with(backend, n, at, run, t)) {
      print_message("%s: left out\n", backend);
      return;
    }
    for (uint32_t i = 0; i + 1 < n; i++) {
      assert_int_equal(t[i].status, WEFT_E_DEVICE);
      assert_true(t[i].n_done <= at);
      assert_int_equal(t[i].n_wrong, 0);
    }
  }
}

/* ---- sums with a norm, and gathers ---- */

enum {
  NORM_ROWS = 700,
  NORM_COLS = 3200,
  NORM_FLOATS = 2 * NORM_ROWS * NORM_COLS,
  VECTORS = 6,
  LONG_ENOUGH = 40000 /* but for cards */
};

/* Shapes of calls: rows that a block has alone, that it has several of, and that are shared out to owners; columns that
 * no one call takes, and of both kernels. */
static const struct {
  uint32_t n_rows, n_cols, n_arrays, n_then;
  bool plain;
} norms[] = {{1, 2816, 2, 1, false},   {1, 33, 1, 3, false},     {5, 64, 1, 0, true},     {3, 3200, 2, 2, false},
             {150, 64, 1, 3, false},   {97, 128, 2, 1, false},   {257, 128, 2, 3, false}, {700, 2816, 2, 1, false},
             {700, 2816, 1, 3, false}, {301, 3200, 2, 1, false}, {700, 36, 2, 0, false},  {299, 30, 2, 1, false}};
enum { NORMS = sizeof norms / sizeof *norms };

typedef struct norm_memory {
  float *x, *x2, *add, *y, *then[WEFT_NORM_THEN_MAX], *vector[VECTORS], *host;
} norm_memory;

static weft_status take_floats(weft_device *device, uint64_t n, float **out) {
  return weft_device_alloc(device, n * sizeof **out, (void **)out);
}

static void free_norm(weft_device *device, norm_memory *m) {
  float *const all[] = {m->x, m->x2, m->add, m->y, m->then[0], m->then[1], m->then[2]};
  for (uint32_t i = 0; i < sizeof all / sizeof *all; i++) weft_device_free(device, all[i]);
  for (uint32_t i = 0; i < VECTORS; i++) weft_device_free(device, m->vector[i]);
  free(m->host);
}

static weft_status open_norm(weft_device *device, norm_memory *m) {
  float **const all[] = {&m->x, &m->x2, &m->add, &m->y, &m->then[0], &m->then[1], &m->then[2]};
  weft_status status = WEFT_OK;
  memset(m, 0, sizeof *m);
  m->host = malloc(NORM_FLOATS / 2 * sizeof *m->host);
  if (m->host == NULL) return WEFT_E_NO_MEMORY;
  for (uint32_t i = 0; i < sizeof all / sizeof *all && status == WEFT_OK; i++)
    status = take_floats(device, NORM_FLOATS / 2, all[i]);
  for (uint32_t i = 0; i < VECTORS && status == WEFT_OK; i++) {
    for (uint32_t k = 0; k < NORM_COLS; k++) m->host[k] = 1.0f + (float)((k * 7 + i) % 13) * 0.1f;
    status = take_floats(device, NORM_COLS, &m->vector[i]);
    if (status == WEFT_OK) status = weft_device_upload(device, m->vector[i], m->host, NORM_COLS * sizeof *m->host);
  }
  return status;
}

/* The same numbers again: a shard's parts, and the rest, which is the same everywhere. */
static weft_status fill_norm(shard_thread *t, norm_memory *m, uint32_t k, uint64_t n) {
  float *const all[] = {m->x, m->x2, m->add};
  weft_status status = WEFT_OK;
  for (uint32_t a = 0; a < 3 && status == WEFT_OK; a++) {
    uint32_t shard = a < norms[k].n_arrays ? t->index : 7;
    for (uint64_t i = 0; i < n; i++) m->host[i] = part_of(shard, k, a, (uint32_t)i);
    status = weft_device_upload(t->device, all[a], m->host, n * sizeof *m->host);
  }
  return status;
}

static weft_norm_args norm_of(const norm_memory *m, uint32_t k) {
  uint32_t n = norms[k].n_cols;
  weft_norm_args args = {.x = m->x,
                         .x2 = norms[k].n_arrays > 1 || norms[k].plain ? m->x2 : NULL,
                         .weight = norms[k].plain ? NULL : m->vector[0],
                         .add = norms[k].plain ? NULL : m->add,
                         .y = norms[k].plain ? m->y : m->add,
                         .n_rows = norms[k].n_rows,
                         .n_cols = n,
                         .n_then = norms[k].n_then,
                         .plain = norms[k].plain,
                         .x_stride = n,
                         .x2_stride = n,
                         .add_stride = n,
                         .y_stride = n,
                         .eps = 1e-6f};
  if (norms[k].n_arrays > 1) args.x_weight = m->vector[1], args.x2_weight = m->vector[2];
  for (uint32_t i = 0; i < args.n_then; i++) args.then_weight[i] = m->vector[3 + i], args.then[i] = m->then[i];
  return args;
}

/* A sum of each bit of what the call gave. */
static uint64_t bits_of(shard_thread *t, norm_memory *m, const weft_norm_args *args) {
  uint64_t n = (uint64_t)args->n_rows * args->n_cols, bits = 0;
  for (uint32_t i = 0; i <= args->n_then && t->status == WEFT_OK; i++) {
    t->status = weft_device_download(t->device, m->host, i == 0 ? args->y : args->then[i - 1], n * sizeof *m->host);
    for (uint64_t k = 0; k < n; k++) {
      uint32_t word;
      memcpy(&word, &m->host[k], sizeof word);
      bits = weft_mix64(bits ^ word);
    }
  }
  return bits;
}

/* The sum with its norm has the bits of both by themselves, twice: the second time inboxes were used before. */
static void *run_norms(void *self) {
  shard_thread *t = self;
  norm_memory m;
  t->status = open_norm(t->device, &m);
  for (uint32_t k = 0; k < 2 * NORMS && t->status == WEFT_OK; k++) {
    weft_norm_args args = norm_of(&m, k % NORMS);
    float *const x[2] = {args.x, args.x2};
    uint64_t n = (uint64_t)args.n_rows * args.n_cols;
    if (n > LONG_ENOUGH && strcmp(weft_device_get_info(t->device)->backend, "cuda") != 0) continue;
    t->status = fill_norm(t, &m, k % NORMS, n);
    if (t->status == WEFT_OK)
      t->status = weft_shards_sum(t->shards, t->index, x, norms[k % NORMS].n_arrays, args.n_rows, args.n_cols);
    if (t->status == WEFT_OK) t->status = weft_norm(t->device, &args);
    uint64_t wanted = bits_of(t, &m, &args);
    if (t->status == WEFT_OK) t->status = fill_norm(t, &m, k % NORMS, n);
    if (t->status == WEFT_OK) t->status = weft_shards_sum_norm(t->shards, t->index, &args, norms[k % NORMS].n_arrays);
    bool same = bits_of(t, &m, &args) == wanted;
    if (!same)
      print_message("shard %u of %u: call %u, %u rows of %u: other bits\n", t->index, t->n, k, args.n_rows,
                    args.n_cols);
    t->n_wrong += !same;
    if (t->status == WEFT_OK) t->n_done++;
  }
  free_norm(t->device, &m);
  return NULL;
}

enum { ROUNDS = 20, WIDTH = 9, GATHER_MOST = 200 * WIDTH };

/* Each shard makes its rows of two arrays, and has all afterwards. */
static void *run_gathers(void *self) {
  shard_thread *t = self;
  uint32_t host[GATHER_MOST], *x[2] = {NULL, NULL};
  for (uint32_t a = 0; a < 2; a++) t->status = weft_device_alloc(t->device, sizeof host, (void **)&x[a]);
  for (uint32_t k = 0; k < ROUNDS && t->status == WEFT_OK; k++) {
    uint32_t n_rows = WEFT_SHARDS_GATHER_ROWS + 6 * k, n_cols = 1 + k % WIDTH, first, end;
    weft_shards_rows(t->n, t->index, n_rows, &first, &end);
    for (uint32_t a = 0; a < 2 && t->status == WEFT_OK; a++) {
      for (uint32_t i = 0; i < n_rows * n_cols; i++)
        host[i] = i / n_cols >= first && i / n_cols < end ? 1000 * k + 100 * a + i : 0x7FC00000u;
      t->status = weft_device_upload(t->device, x[a], host, n_rows * n_cols * sizeof *host);
    }
    void *const arrays[2] = {x[0], x[1]};
    if (t->status == WEFT_OK) t->status = weft_shards_gather(t->shards, t->index, arrays, 1 + k % 2, n_rows, n_cols);
    for (uint32_t a = 0; a < 1 + k % 2 && t->status == WEFT_OK; a++) {
      t->status = weft_device_download(t->device, host, x[a], n_rows * n_cols * sizeof *host);
      for (uint32_t i = 0; i < n_rows * n_cols; i++) t->n_wrong += host[i] != 1000 * k + 100 * a + i;
    }
    if (t->status == WEFT_OK) t->n_done++;
  }
  for (uint32_t a = 0; a < 2; a++) weft_device_free(t->device, x[a]);
  return NULL;
}

/* n_crossed: bytes that reach each other device; 0: they depend on the device. */
static void play_more(void *(*run)(void *), uint64_t n_floats, uint32_t n_done, uint64_t n_crossed, const char *what) {
  static const char *const backends[] = {"ref", "cpu", "fake", "fake far", "cuda", "cuda far"};
  for (uint32_t b = 0; b < sizeof backends / sizeof *backends; b++) {
    for (uint32_t n = 2; n <= 3; n++) {
      shard_thread t[WEFT_DEVICES_MAX];
      if (!play_sized(backends[b], n, UINT32_MAX, n_floats, run, t)) {
        print_message("%s of %s: left out %u devices\n", what, backends[b], n);
        continue;
      }
      for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(t[i].status, WEFT_OK);
        assert_true(t[i].n_done >= n_done);
        assert_int_equal(t[i].n_wrong, 0);
        if (n_crossed > 0) assert_int_equal(t[i].crossed, n_crossed * (n - 1));
      }
    }
  }
}

static void test_norms(void **state) {
  (void)state;
  play_more(run_norms, NORM_FLOATS, NORMS, 0, "norms");
}

static void test_gathers(void **state) {
  (void)state;
  uint64_t n_crossed = 0;
  for (uint32_t k = 0; k < ROUNDS; k++)
    n_crossed += (1 + k % 2) * (uint64_t)(WEFT_SHARDS_GATHER_ROWS + 6 * k) * (1 + k % WIDTH) * sizeof(uint32_t);
  play_more(run_gathers, 4096, ROUNDS, n_crossed, "gathers");
}

/* ---- steps that are graphs ---- */

/* As many sums of the same rows as the step has, one on another. */
static uint32_t sums_of(uint32_t step) {
  return 1 + step / 3 % 3;
}

static weft_status enqueue_step(shard_thread *t, uint32_t step, const float *host, float *x, float *beside) {
  weft_status status = weft_device_upload(t->device, x, host, N * sizeof *host);
  if (status == WEFT_OK) status = weft_device_zero(t->device, beside, sizeof *beside);
  for (uint32_t i = 0; i < sums_of(step) && status == WEFT_OK; i++) {
    status = weft_shards_sum(t->shards, t->index, &x, 1, ROWS, COLS);
  }
  return status;
}

/* All shards then have the sum, and add it to itself as often as there are shards. */
static float wanted_of_step(uint32_t n, uint32_t step, uint32_t i) {
  float value = wanted_of(n, step, 0, i);
  for (uint32_t k = 1; k < sums_of(step); k++) {
    float part = value;
    for (uint32_t s = 1; s < n; s++) value += part;
  }
  return value;
}

/* Steps of three kinds. What the second shard does besides differs more often than that of the first, so now and then
 * one has a graph of the step and the other has none. */
static void *run_steps(void *self) {
  shard_thread *t = self;
  float host[N], *x = NULL, *beside = NULL;
  t->status = weft_device_alloc(t->device, sizeof host, (void **)&x);
  if (t->status == WEFT_OK) t->status = weft_device_alloc(t->device, 16 * sizeof *beside, (void **)&beside);
  for (uint32_t k = 0; k < STEPS && t->status == WEFT_OK; k++) {
    if (k == t->breaks_at) {
      weft_shards_break(t->shards);
      break;
    }
    for (uint32_t i = 0; i < N; i++) host[i] = part_of(t->index, k, 0, i);
    weft_device_graph_begin(t->device, sums_of(k), weft_shards_vote(t->shards));
    do {
      t->status = enqueue_step(t, k, host, x, beside + k / 9 % (1 + t->index));
    } while (weft_device_graph_end(t->device, &t->status));
    if (t->status == WEFT_OK) t->status = weft_device_download(t->device, host, x, sizeof host);
    if (weft_shards_broken(t->shards)) t->status = WEFT_E_DEVICE;
    for (uint32_t i = 0; i < N && t->status == WEFT_OK; i++) {
      float wanted = wanted_of_step(t->n, k, i);
      t->n_wrong += memcmp(&host[i], &wanted, sizeof wanted) != 0;
    }
    if (t->status == WEFT_OK) t->n_done++;
  }
  weft_device_free(t->device, x);
  weft_device_free(t->device, beside);
  return NULL;
}

static void steps_on(const char *backend, uint32_t n) {
  shard_thread t[WEFT_DEVICES_MAX];
  uint64_t floats = 0;
  if (!play_with(backend, n, UINT32_MAX, run_steps, t)) {
    print_message("%s: left out %u devices\n", backend, n);
    return;
  }
  for (uint32_t k = 0; k < STEPS; k++) floats += sums_of(k) * N;
  for (uint32_t i = 0; i < n; i++) {
    assert_int_equal(t[i].status, WEFT_OK);
    assert_int_equal(t[i].n_done, STEPS);
    assert_int_equal(t[i].n_wrong, 0);
    assert_int_equal(t[i].launches, t[0].launches); /* all or none */
  }
  assert_true(t[0].launches > STEPS / 2 && t[0].launches < STEPS - 3);
  assert_int_equal(t[0].crossed, floats * sizeof(float) * n * (n - 1));
}

static void test_steps(void **state) {
  (void)state;
  for (uint32_t n = 2; n <= 4; n++) {
    steps_on("fake", n);
    steps_on("cuda", n);
  }
}

static void test_break(void **state) {
  (void)state;
  break_everywhere("cpu", 3, run_shard, SUMS);
  break_everywhere("fake", 3, run_shard, SUMS);
  break_everywhere("cuda", 2, run_shard, SUMS);
  break_everywhere("fake", 3, run_steps, STEPS);
  break_everywhere("cuda", 2, run_steps, STEPS);
}

/* The other shard comes to the meeting, and enqueues nothing: what waits on the device ends when the sums break. */
static void *come_and_break(void *self) {
  weft_shards *shards = self;
  const weft_graph_vote *vote = weft_shards_vote(shards);
  (void)vote->all(vote->self, true);
  uint64_t start = weft_clock_us();
  while (weft_clock_us() - start < 20000) (void)sched_yield();
  weft_shards_break(shards);
  return NULL;
}

static void wait_alone(const char *backend) {
  weft_device *device[2];
  weft_shards *shards;
  pthread_t other;
  float *x = NULL;
  if (!open_devices(backend, 2, device)) {
    print_message("%s: left out\n", backend);
    return;
  }
  assert_int_equal(weft_shards_open(device, 2, N, 0, &shards), WEFT_OK);
  assert_int_equal(weft_device_alloc(device[0], N * sizeof *x, (void **)&x), WEFT_OK);
  assert_int_equal(weft_device_zero(device[0], x, N * sizeof *x), WEFT_OK);
  assert_int_equal(pthread_create(&other, NULL, come_and_break, shards), 0);
  assert_int_equal(weft_shards_sum(shards, 0, &x, 1, ROWS, COLS), WEFT_OK);
  uint64_t start = weft_clock_us();
  assert_int_equal(weft_device_sync(device[0]), WEFT_OK);
  assert_true(weft_shards_broken(shards));
  assert_true(weft_clock_us() - start < 1000000ull * (SHARDS_SUM_SECONDS - 1));
  assert_int_equal(pthread_join(other, NULL), 0);
  assert_int_equal(weft_shards_sum(shards, 1, &x, 1, ROWS, COLS), WEFT_E_DEVICE);
  weft_device_free(device[0], x);
  weft_shards_close(shards);
  for (uint32_t i = 0; i < 2; i++) weft_device_close(device[i]);
}

static void test_wait_alone(void **state) {
  (void)state;
  wait_alone("fake");
  wait_alone("cuda");
}

static void test_refusals(void **state) {
  weft_device *device[2];
  weft_shards *shards;
  float x[4] = {0}, *rows = x;
  (void)state;
  for (uint32_t i = 0; i < 2; i++) {
    weft_device_config config = {.backend = "ref", .index = i};
    assert_int_equal(weft_device_open(&config, &device[i], NULL), WEFT_OK);
  }
  assert_int_equal(weft_shards_open(device, 0, 4, 0, &shards), WEFT_E_INVALID);
  assert_int_equal(weft_shards_open(device, WEFT_DEVICES_MAX + 1, 4, 0, &shards), WEFT_E_INVALID);
  assert_int_equal(weft_shards_open(device, 2, 4, WEFT_MARKS_MAX - 1, &shards), WEFT_E_INVALID);
  assert_int_equal(weft_shards_open(device, 2, 3, 0, &shards), WEFT_OK);
  /* more floats than there is room for; the other shard, which comes later, is not left waiting */
  assert_int_equal(weft_shards_sum(shards, 0, &rows, 1, 2, 2), WEFT_E_INVALID);
  assert_int_equal(weft_shards_sum(shards, 1, &rows, 1, 1, 2), WEFT_E_DEVICE);
  weft_shards_close(shards);
  for (uint32_t i = 0; i < 2; i++) weft_device_close(device[i]);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_sums),       cmocka_unit_test(test_steps),    cmocka_unit_test(test_break),
      cmocka_unit_test(test_wait_alone), cmocka_unit_test(test_refusals), cmocka_unit_test(test_norms),
      cmocka_unit_test(test_gathers),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
