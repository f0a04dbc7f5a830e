/* SPDX-License-Identifier: MIT */
/* Exchanges between shards: sums by pairs, with the same bits on all of them, and every other way
 * against a plain computation, by copies and in one call, call by call and in steps that are graphs; and a shard that
 * breaks or fails ends the exchanges of the others, also those that wait on a device. */
#include "kernels/shards.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/random.h"
#include "tests/support/amount.h"
#include "tests/support/fake_card.h"

enum { ROWS = 5, COLS = 33, N = ROWS * COLS, SUMS = 60, STEPS = 90 };
enum { MIX = 100 /* exchanges of a list */, MIXES = 5, MIXED_FLOATS = 1 << 20, LARGE = 10, LARGE_FLOATS = 1 << 22 };

static const uint32_t numbers[] = {1, 2, 3, 4, 8}; /* of shards */

typedef struct shard_thread {
  weft_shards *shards;
  weft_device *device;
  uint32_t n, index, breaks_at; /* breaks_at: the sum that this shard does not come to */
  bool large, steps;            /* of lists of exchanges */
  uint64_t n_floats;
  uint32_t n_wrong, n_done;
  uint64_t launches, crossed, wanted_cross;
  float *kept; /* from one list to the next */
  weft_status status;
} shard_thread;

static float part_of(uint32_t shard, uint32_t sum, uint32_t array, uint32_t i) {
  uint64_t bits = weft_mix64(((uint64_t)shard << 40) ^ ((uint64_t)sum << 20) ^ ((uint64_t)array << 16) ^ i);
  return ((float)(bits >> 40) - 8388608.0f) * (bits % 3 == 0 ? 1e-9f : 1e-3f);
}

/* The sum by pairs of the parts of the shards [first, first + n). */
static float wanted_from(uint32_t first, uint32_t n, uint32_t sum, uint32_t array, uint32_t i) {
  if (n == 1) return part_of(first, sum, array, i);
  return wanted_from(first, n / 2, sum, array, i) + wanted_from(first + n / 2, n - n / 2, sum, array, i);
}

static float wanted_of(uint32_t n, uint32_t sum, uint32_t array, uint32_t i) {
  return wanted_from(0, n, sum, array, i);
}

static weft_status sum_rows(const shard_thread *t, float *const *x, uint32_t n_arrays, uint32_t n_rows) {
  const weft_shards_array array[2] = {{.x = x[0], .n_cols = COLS}, {.x = x[n_arrays - 1], .n_cols = COLS}};
  return weft_shards_exchange(t->shards, t->index, WEFT_SHARDS_SUM, array, n_arrays, n_rows);
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
    if (t->status == WEFT_OK) t->status = sum_rows(t, x, n_arrays, rows);
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

/* "fake": cards that exchange in one call; "fake far": that do not reach one another; "cuda far": the same. */
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

static bool exchanges_in_one_call(const char *backend) {
  return strcmp(backend, "fake") == 0 || strcmp(backend, "cuda") == 0;
}

/* Returns whether this machine has n devices of the backend. */
static bool play_list(const char *backend, uint32_t n, uint32_t breaks_at, const shard_thread *as, void *(*run)(void *),
                      shard_thread *t) {
  weft_device *device[WEFT_DEVICES_MAX] = {NULL};
  weft_shards *shards;
  pthread_t thread[WEFT_DEVICES_MAX] = {0};
  if (!open_devices(backend, n, device)) return false;
  assert_int_equal(weft_shards_open(device, n, as->n_floats, 0, &shards), WEFT_OK);
  assert_true(weft_shards_in_graphs(shards) == (n > 1 && exchanges_in_one_call(backend)));
  for (uint32_t i = 0; i < n; i++) {
    t[i] = (shard_thread){.shards = shards,
                          .device = device[i],
                          .n = n,
                          .index = i,
                          .breaks_at = i == n - 1 ? breaks_at : UINT32_MAX,
                          .large = as->large,
                          .steps = as->steps};
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
  const shard_thread as = {.n_floats = 2 * N};
  return play_list(backend, n, breaks_at, &as, run, t);
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
    for (uint32_t k = 1; k < sizeof numbers / sizeof *numbers; k++) { /* one shard adds nothing */
      shard_thread t[WEFT_DEVICES_MAX];
      uint32_t n = numbers[k];
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

/* ---- steps that are graphs ---- */

/* As many sums of the same rows as the step has, one on another. */
static uint32_t sums_of(uint32_t step) {
  return 1 + step / 3 % 3;
}

static weft_status enqueue_step(shard_thread *t, uint32_t step, const float *host, float *x, float *beside) {
  weft_status status = weft_device_upload(t->device, x, host, N * sizeof *host);
  if (status == WEFT_OK) status = weft_device_zero(t->device, beside, sizeof *beside);
  for (uint32_t i = 0; i < sums_of(step) && status == WEFT_OK; i++) {
    status = sum_rows(t, &x, 1, ROWS);
  }
  return status;
}

static float times_by_pairs(float value, uint32_t n) {
  return n == 1 ? value : times_by_pairs(value, n / 2) + times_by_pairs(value, n - n / 2);
}

/* All shards then have the sum, and add it to itself as often as there are shards. */
static float wanted_of_step(uint32_t n, uint32_t step, uint32_t i) {
  float value = wanted_of(n, step, 0, i);
  for (uint32_t k = 1; k < sums_of(step); k++) value = times_by_pairs(value, n);
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
  for (uint32_t k = 1; k < sizeof numbers / sizeof *numbers; k++) {
    steps_on("fake", numbers[k]);
    steps_on("cuda", numbers[k]);
  }
}

static void test_break(void **state) {
  (void)state;
  break_everywhere("cpu", 8, run_shard, SUMS);
  break_everywhere("fake", 4, run_shard, SUMS);
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
  const weft_shards_array array = {.x = x, .n_cols = COLS};
  assert_int_equal(pthread_create(&other, NULL, come_and_break, shards), 0);
  assert_int_equal(weft_shards_exchange(shards, 0, WEFT_SHARDS_SUM, &array, 1, ROWS), WEFT_OK);
  uint64_t start = weft_clock_us();
  assert_int_equal(weft_device_sync(device[0]), WEFT_OK);
  assert_true(weft_shards_broken(shards));
  assert_true(weft_clock_us() - start < 1000000ull * (SHARDS_EXCHANGE_SECONDS - 1));
  assert_int_equal(pthread_join(other, NULL), 0);
  assert_int_equal(weft_shards_exchange(shards, 1, WEFT_SHARDS_SUM, &array, 1, ROWS), WEFT_E_DEVICE);
  weft_device_free(device[0], x);
  weft_shards_close(shards);
  for (uint32_t i = 0; i < 2; i++) weft_device_close(device[i]);
}

static void test_wait_alone(void **state) {
  (void)state;
  wait_alone("fake");
  wait_alone("cuda");
}

/* ---- lists of exchanges in all ways, enqueued one after another ---- */

typedef struct exchange {
  weft_shards_way way;
  uint32_t n_arrays, n_rows, n_cols[WEFT_SHARDS_ARRAYS_MAX];
  uint64_t x[WEFT_SHARDS_ARRAYS_MAX],
      y[WEFT_SHARDS_ARRAYS_MAX]; /* where in the shard's floats; y 0: the way has none */
} exchange;

typedef struct exchange_list {
  uint32_t n, n_exchanges;
  bool aligned;
  uint64_t n_floats, n_cross; /* n_cross: that go from a shard to another */
  exchange exchange[MIX];
} exchange_list;

static uint64_t draw(uint64_t *state, uint64_t n) {
  *state = weft_mix64(*state + 1);
  return (*state >> 20) % n;
}

/* The next array: now and then at a place that is no multiple of 16 bytes, but for aligned lists. */
static uint64_t place_of(exchange_list *list, uint64_t *state, uint64_t n_floats) {
  uint64_t at = (list->n_floats + 3) / 4 * 4 + (list->aligned || draw(state, 4) > 0 ? 0 : draw(state, 4));
  list->n_floats = at + n_floats + 1;
  return at;
}

static void count_cross(exchange_list *list, const exchange *e, uint64_t n_cols) {
  uint64_t all = (uint64_t)e->n_rows * (list->n - 1), each = e->n_rows * (uint64_t)list->n * (list->n - 1);
  bool whole = e->way == WEFT_SHARDS_SUM || e->way == WEFT_SHARDS_COLUMNS;
  list->n_cross += n_cols * (whole ? each : all);
}

/* An exchange in any way, mostly of few rows; a large one is of more numbers than a card has threads. */
static void add_exchange(exchange_list *list, uint64_t *state, bool large) {
  static const uint32_t cols[] = {1, 3, 4, 8, 33, 64, 100};
  exchange *e = &list->exchange[list->n_exchanges];
  uint64_t n_cols = 0;
  e->way = (weft_shards_way)(large ? list->n_exchanges % 5 : draw(state, 5));
  e->n_arrays = large ? 3 : 1 + (uint32_t)draw(state, WEFT_SHARDS_ARRAYS_MAX);
  e->n_rows = 1 + (uint32_t)draw(state, list->n_exchanges % 20 == 7 ? 2100 : list->n_exchanges % 3 == 1 ? 70 : 9);
  bool fours = large ? list->n_exchanges < 5 : list->n_exchanges % 4 == 3;
  if (large) e->n_rows = fours ? 2099 : 2051;
  bool owned = e->way != WEFT_SHARDS_SUM && e->way != WEFT_SHARDS_COLUMNS;
  if (owned && e->n_rows < list->n) e->n_rows += list->n;
  for (uint32_t i = 0; i < e->n_arrays; i++) {
    e->n_cols[i] = large ? (i > 0 ? 8 : fours ? 1600 : 401) : cols[draw(state, sizeof cols / sizeof *cols)];
    if (fours) e->n_cols[i] = (e->n_cols[i] + 3) / 4 * 4;
    n_cols += e->n_cols[i];
    e->x[i] = place_of(list, state, (uint64_t)e->n_rows * e->n_cols[i]);
    if (e->way < WEFT_SHARDS_COLUMNS) continue;
    e->y[i] = place_of(list, state, (uint64_t)e->n_rows * e->n_cols[i] * list->n);
  }
  count_cross(list, e, n_cols);
  list->n_exchanges += 1;
}

static uint32_t exchanges_of(uint32_t n, bool large) {
  return large ? LARGE : n > 4 ? MIX / 8 : MIX;
}

static exchange_list *list_of(uint32_t n, uint64_t seed, bool large) {
  exchange_list *list = calloc(1, sizeof *list);
  if (list == NULL) abort();
  list->n = n;
  list->aligned = large;
  while (list->n_exchanges < exchanges_of(n, large)) add_exchange(list, &seed, large);
  return list;
}

/* What a shard has at a place: numbers, zeros of both signs, small integers. */
static float float_of(uint32_t shard, uint32_t round, uint64_t at) {
  uint64_t bits = weft_mix64(((uint64_t)(shard + 1) << 48) ^ ((uint64_t)round << 40) ^ at);
  uint32_t integer = bits >> 40 & 0xFFF;
  float value = ((float)(bits >> 40) - 8388608.0f) * (bits % 3 == 0 ? 1e-9f : 1e-3f);
  if (bits % 16 == 5) value = bits & 64 ? -0.0f : 0.0f;
  if (bits % 8 == 7) memcpy(&value, &integer, sizeof value);
  return value;
}

static bool owns(uint32_t n, uint32_t shard, uint32_t n_rows, uint32_t row) {
  return row >= weft_shards_row(n, n_rows, shard) && row < weft_shards_row(n, n_rows, shard + 1);
}

/* What the shards [first, first + n) have at a place, added by pairs. */
static float sum_of(uint32_t first, uint32_t n, uint32_t round, uint64_t at) {
  if (n == 1) return float_of(first, round, at);
  return sum_of(first, n / 2, round, at) + sum_of(first + n / 2, n - n / 2, round, at);
}

/* What the exchange makes of a row of array i, on shard `at`. */
static void want_row(const exchange *e, uint32_t i, uint32_t n, uint32_t at, uint32_t round, uint32_t row,
                     float *floats) {
  const uint32_t n_cols = e->n_cols[i];
  const bool own = owns(n, at, e->n_rows, row);
  const uint64_t x = e->x[i] + (uint64_t)row * n_cols;
  if (e->way == WEFT_SHARDS_SUM || (e->way == WEFT_SHARDS_SUM_OWN && own)) {
    for (uint32_t c = 0; c < n_cols; c++) floats[x + c] = sum_of(0, n, round, x + c);
  }
  for (uint32_t s = 0; s < n; s++) {
    const uint64_t y = e->y[i] + ((uint64_t)row * n + s) * n_cols;
    const bool in_place = e->way == WEFT_SHARDS_ROWS && owns(n, s, e->n_rows, row);
    const bool beside = e->way == WEFT_SHARDS_COLUMNS || (e->way == WEFT_SHARDS_COLUMNS_OWN && own);
    for (uint32_t c = 0; c < n_cols && in_place; c++) floats[x + c] = float_of(s, round, x + c);
    for (uint32_t c = 0; c < n_cols && beside; c++) floats[y + c] = float_of(s, round, x + c);
  }
}

static void want_list(const exchange_list *list, uint32_t at, uint32_t round, float *floats) {
  for (uint64_t k = 0; k < list->n_floats; k++) floats[k] = float_of(at, round, k);
  for (uint32_t k = 0; k < list->n_exchanges; k++) {
    const exchange *e = &list->exchange[k];
    for (uint32_t i = 0; i < e->n_arrays; i++) {
      for (uint32_t row = 0; row < e->n_rows; row++) want_row(e, i, list->n, at, round, row, floats);
    }
  }
}

static _Atomic uint32_t n_enqueued;

static weft_status enqueue_list(const shard_thread *t, const exchange_list *list, float *floats) {
  weft_status status = WEFT_OK;
  for (uint32_t k = 0; k < list->n_exchanges && status == WEFT_OK; k++) {
    const exchange *e = &list->exchange[k];
    weft_shards_array array[WEFT_SHARDS_ARRAYS_MAX];
    memset(array, (int)(++n_enqueued % 251), sizeof array); /* padding differs from call to call */
    for (uint32_t i = 0; i < e->n_arrays; i++) {
      array[i].x = floats + e->x[i];
      array[i].y = e->way < WEFT_SHARDS_COLUMNS ? NULL : floats + e->y[i];
      array[i].n_cols = e->n_cols[i];
    }
    status = weft_shards_exchange(t->shards, t->index, e->way, array, e->n_arrays, e->n_rows);
  }
  return status;
}

/* As a step that may be a graph, or call by call. */
static void run_list(shard_thread *t, const exchange_list *list, float *floats) {
  if (t->steps) weft_device_graph_begin(t->device, 7, weft_shards_vote(t->shards));
  do {
    t->status = enqueue_list(t, list, floats);
  } while (t->steps && weft_device_graph_end(t->device, &t->status));
}

static uint32_t rounds_of(uint32_t n, bool large) {
  return large ? 1 : n > 4 ? 2 : test_amount(2, 2, MIXES);
}

/* Lists are different ones; those of steps are one list, of other numbers each time. */
static void *run_lists(void *self) {
  shard_thread *t = self;
  for (uint32_t round = 0; round < rounds_of(t->n, t->large) && t->status == WEFT_OK; round++) {
    exchange_list *list = list_of(t->n, t->steps ? 77 : 1000 + round, t->large);
    uint64_t n_bytes = list->n_floats * sizeof(float);
    float *floats = malloc(n_bytes), *wanted = malloc(n_bytes), *x = t->kept;
    if (floats == NULL || wanted == NULL) abort();
    if (x == NULL) t->status = weft_device_alloc(t->device, n_bytes, (void **)&x);
    for (uint64_t k = 0; k < list->n_floats; k++) floats[k] = float_of(t->index, round, k);
    if (t->status == WEFT_OK) t->status = weft_device_upload(t->device, x, floats, n_bytes);
    if (t->status == WEFT_OK) run_list(t, list, x);
    if (t->status == WEFT_OK) t->status = weft_device_download(t->device, floats, x, n_bytes);
    want_list(list, t->index, round, wanted);
    for (uint64_t k = 0; k < list->n_floats; k++) t->n_wrong += memcmp(&floats[k], &wanted[k], sizeof *floats) != 0;
    t->n_done += list->n_exchanges;
    t->wanted_cross += list->n_cross;
    t->kept = t->steps ? x : NULL;
    if (!t->steps) weft_device_free(t->device, x);
    free(list);
    free(floats);
    free(wanted);
  }
  weft_device_free(t->device, t->kept);
  return NULL;
}

static void lists_on(const char *backend, uint32_t n, bool large, bool steps) {
  const shard_thread as = {.large = large, .steps = steps, .n_floats = large ? LARGE_FLOATS : MIXED_FLOATS};
  shard_thread t[WEFT_DEVICES_MAX];
  if (!play_list(backend, n, UINT32_MAX, &as, run_lists, t)) {
    print_message("%s: left out %u devices\n", backend, n);
    return;
  }
  for (uint32_t i = 0; i < n; i++) {
    assert_int_equal(t[i].status, WEFT_OK);
    assert_int_equal(t[i].n_done, rounds_of(n, large) * exchanges_of(n, large));
    assert_int_equal(t[i].n_wrong, 0);
    assert_int_equal(t[i].launches, steps ? rounds_of(n, large) - 1 : 0); /* call by call the first time alone */
  }
  assert_int_equal(t[0].crossed, t[0].wanted_cross * sizeof(float));
}

static void test_lists(void **state) {
  static const char *const backends[] = {"ref", "cpu", "fake", "fake far", "cuda", "cuda far"};
  (void)state;
  for (uint32_t k = 0; k < sizeof numbers / sizeof *numbers; k++) {
    uint32_t n = numbers[k];
    for (uint32_t b = 0; b < sizeof backends / sizeof *backends; b++) lists_on(backends[b], n, false, false);
    if (n > 1) lists_on("fake", n, false, true);
    if (n > 1) lists_on("cuda", n, false, true);
    if (n > 1) lists_on("cuda", n, true, false);
  }
}

/* ---- the order of sums ---- */

/* Walks the sum over the shards [first, first + n), which has `size` of what begins at `begin`. */
static void walk_sum(uint32_t n_shards, uint32_t first, uint32_t n, uint32_t begin, uint32_t size, uint32_t *closes) {
  if (n == 1) {
    assert_int_equal(weft_shards_half(n_shards, first, WEFT_DEVICES_MAX), begin);
    assert_true(size > 0);
    return;
  }
  walk_sum(n_shards, first, n / 2, begin, size / 2, closes);
  walk_sum(n_shards, first + n / 2, n - n / 2, begin + size / 2, size / 2, closes);
  closes[first + n - 1] += 1;
}

static void test_order(void **state) {
  (void)state;
  for (uint32_t n = 1; n <= WEFT_DEVICES_MAX; n++) {
    uint32_t closes[WEFT_DEVICES_MAX] = {0}, all = 0;
    walk_sum(n, 0, n, 0, WEFT_DEVICES_MAX, closes);
    for (uint32_t s = 0; s < n; s++) assert_int_equal(weft_shards_closes(n, s), closes[s]);
    for (uint32_t s = 0; s < n; s++) all += closes[s];
    assert_int_equal(all, n - 1);
    assert_int_equal(weft_shards_half(n, n, WEFT_DEVICES_MAX), WEFT_DEVICES_MAX);
  }
}

/* ---- what rows a shard owns, and what is refused ---- */

static void test_rows(void **state) {
  (void)state;
  for (uint32_t n = 1; n <= WEFT_DEVICES_MAX; n++) {
    for (uint32_t rows = 0; rows <= 300; rows++) {
      uint32_t least = UINT32_MAX, most = 0;
      assert_int_equal(weft_shards_row(n, rows, 0), 0);
      assert_int_equal(weft_shards_row(n, rows, n), rows);
      for (uint32_t s = 0; s < n; s++) {
        uint32_t first = weft_shards_row(n, rows, s), end = weft_shards_row(n, rows, s + 1);
        assert_true(first <= end);
        least = end - first < least ? end - first : least;
        most = end - first > most ? end - first : most;
        if (rows >= 8 * n) assert_int_equal(first % 8, 0);
      }
      assert_true(rows < n || least > 0);
      assert_true(most - least <= (rows < 8 * n ? 1 : 15)); /* the last eight rows may be fewer */
    }
  }
  assert_int_equal(weft_shards_row(3, UINT32_MAX, 3), UINT32_MAX);
  assert_int_equal(weft_shards_row(2, 2048, 1), 1024);
}

static void refuse(weft_device *const *device, weft_shards_way way, const weft_shards_array *array, uint32_t n_rows) {
  weft_shards *shards;
  float x[4] = {0}, y[8];
  const weft_shards_array small = {.x = x, .y = way < WEFT_SHARDS_COLUMNS ? NULL : y, .n_cols = 1};
  assert_int_equal(weft_shards_open(device, 2, 3, 0, &shards), WEFT_OK);
  assert_int_equal(weft_shards_exchange(shards, 0, way, array, 1, n_rows), WEFT_E_INVALID);
  /* the other shard, which comes later, is not left waiting */
  assert_int_equal(weft_shards_exchange(shards, 1, way, &small, 1, 2), WEFT_E_DEVICE);
  weft_shards_close(shards);
}

static void test_refusals(void **state) {
  weft_device *device[2];
  weft_shards *shards;
  float x[4] = {0}, y[8];
  const weft_shards_array two = {.x = x, .n_cols = 2}, three = {.x = x, .n_cols = 3}, none = {.x = x};
  const weft_shards_array columns = {.x = x, .y = y, .n_cols = 1}, nowhere = {.n_cols = 1};
  (void)state;
  for (uint32_t i = 0; i < 2; i++) {
    weft_device_config config = {.backend = "ref", .index = i};
    assert_int_equal(weft_device_open(&config, &device[i], NULL), WEFT_OK);
  }
  assert_int_equal(weft_shards_open(device, 0, 4, 0, &shards), WEFT_E_INVALID);
  assert_int_equal(weft_shards_open(device, WEFT_DEVICES_MAX + 1, 4, 0, &shards), WEFT_E_INVALID);
  assert_int_equal(weft_shards_open(device, 2, 4, WEFT_MARKS_MAX - 1, &shards), WEFT_E_INVALID);
  refuse(device, WEFT_SHARDS_SUM, &two, 2);         /* more floats than there is room for */
  refuse(device, WEFT_SHARDS_COLUMNS, &columns, 4); /* the same */
  refuse(device, WEFT_SHARDS_ROWS, &three, 1);      /* a shard would own no row */
  refuse(device, WEFT_SHARDS_SUM_OWN, &three, 1);
  refuse(device, WEFT_SHARDS_COLUMNS_OWN, &columns, 1);
  refuse(device, WEFT_SHARDS_COLUMNS, &three, 1); /* no y */
  refuse(device, WEFT_SHARDS_SUM, &columns, 1);
  refuse(device, WEFT_SHARDS_SUM, &none, 1);
  refuse(device, WEFT_SHARDS_SUM, &nowhere, 1);
  for (uint32_t i = 0; i < 2; i++) weft_device_close(device[i]);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_order), cmocka_unit_test(test_sums),       cmocka_unit_test(test_steps),
      cmocka_unit_test(test_break), cmocka_unit_test(test_wait_alone), cmocka_unit_test(test_lists),
      cmocka_unit_test(test_rows),  cmocka_unit_test(test_refusals),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
