/* SPDX-License-Identifier: MIT */
/* The sum over shards: in the order of the shards, with the same bits on all of them; and a shard that breaks or fails
 * ends the sums of the others. */
#include "kernels/shards.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/random.h"

enum { ROWS = 5, COLS = 33, N = ROWS * COLS, SUMS = 60 };

typedef struct shard_thread {
  weft_shards *shards;
  weft_device *device;
  uint32_t n, index, breaks_at; /* breaks_at: the sum that this shard does not come to */
  uint32_t n_wrong, n_done;
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

/* Returns whether this machine has n devices of the backend. */
static bool play(const char *backend, uint32_t n, uint32_t breaks_at, shard_thread *t) {
  weft_device *device[WEFT_DEVICES_MAX] = {NULL};
  weft_shards *shards;
  pthread_t thread[WEFT_DEVICES_MAX] = {0};
  for (uint32_t i = 0; i < n; i++) {
    weft_device_config config = {.backend = backend, .index = i, .n_threads = 1};
    if (weft_device_open(&config, &device[i], NULL) == WEFT_OK) continue;
    while (i-- > 0) weft_device_close(device[i]);
    return false;
  }
  assert_int_equal(weft_shards_open(device, n, 2 * N, 0, &shards), WEFT_OK);
  for (uint32_t i = 0; i < n; i++) {
    t[i] = (shard_thread){
        .shards = shards, .device = device[i], .n = n, .index = i, .breaks_at = i == n - 1 ? breaks_at : UINT32_MAX};
    assert_int_equal(pthread_create(&thread[i], NULL, run_shard, &t[i]), 0);
  }
  for (uint32_t i = 0; i < n; i++) assert_int_equal(pthread_join(thread[i], NULL), 0);
  uint64_t floats = 0;
  for (uint32_t k = 0; k < SUMS; k++) floats += (1 + k % 2) * (1 + k % ROWS) * COLS;
  if (breaks_at == UINT32_MAX) assert_int_equal(weft_shards_crossed(shards), floats * sizeof(float) * n * (n - 1));
  weft_shards_close(shards);
  for (uint32_t i = 0; i < n; i++) weft_device_close(device[i]);
  return true;
}

static void test_sums(void **state) {
  static const char *const backends[] = {"ref", "cpu", "cuda"};
  (void)state;
  for (uint32_t b = 0; b < 3; b++) {
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
static void test_break(void **state) {
  (void)state;
  for (uint32_t at = 0; at < SUMS; at += 7) {
    shard_thread t[WEFT_DEVICES_MAX];
    assert_true(play("cpu", 3, at, t));
    for (uint32_t i = 0; i < 2; i++) {
      assert_int_equal(t[i].status, WEFT_E_DEVICE);
      assert_true(t[i].n_done <= at);
      assert_int_equal(t[i].n_wrong, 0);
    }
  }
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
      cmocka_unit_test(test_sums),
      cmocka_unit_test(test_break),
      cmocka_unit_test(test_refusals),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
