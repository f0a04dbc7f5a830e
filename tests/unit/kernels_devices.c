/* SPDX-License-Identifier: MIT */
/* Several devices of one backend: what they send one another, and what is refused. What follows what on real cards is
 * looked at by tests/kernels/kernels_cards.c, where there are two. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tests/support/fake_card.h"

enum { N = 1000 };

static weft_device *open_device(const char *backend, uint32_t index) {
  weft_device_config config = {.backend = backend, .index = index, .n_threads = 1};
  weft_device *device = NULL;
  assert_int_equal(weft_device_open(&config, &device, NULL), WEFT_OK);
  assert_int_equal(weft_device_get_info(device)->index, index);
  return device;
}

static void send_round(weft_device *from, weft_device *to) {
  uint8_t host[N], back[N] = {0};
  void *a = NULL, *b = NULL;
  for (int i = 0; i < N; i++) host[i] = (uint8_t)(i * 7);
  assert_int_equal(weft_device_alloc(from, N, &a), WEFT_OK);
  assert_int_equal(weft_device_alloc(to, N, &b), WEFT_OK);
  assert_int_equal(weft_device_upload(from, a, host, N), WEFT_OK);
  assert_int_equal(weft_device_zero(to, b, N), WEFT_OK);
  assert_int_equal(weft_device_send(from, to, (uint8_t *)b + 1, a, N - 1), WEFT_OK);
  assert_int_equal(weft_device_mark(from, 3), WEFT_OK);
  assert_int_equal(weft_device_follow(to, from, 3), WEFT_OK);
  assert_int_equal(weft_device_download(to, back, b, N), WEFT_OK);
  assert_int_equal(back[0], 0);
  assert_memory_equal(back + 1, host, N - 1);
  assert_int_equal(weft_device_send(from, to, NULL, NULL, 0), WEFT_OK);
  assert_int_equal(weft_device_send(from, to, NULL, a, 1), WEFT_E_INVALID);
  weft_device_free(from, a);
  weft_device_free(to, b);
}

static void devices_send_one_another(void **state) {
  (void)state;
  static const char *const backends[] = {"ref", "cpu"};
  for (int i = 0; i < 2; i++) {
    weft_device *first = open_device(backends[i], 0), *second = open_device(backends[i], 1);
    send_round(first, second);
    send_round(second, first);
    send_round(first, first);
    weft_device_close(first);
    weft_device_close(second);
  }
}

static void what_cannot_be_is_refused(void **state) {
  (void)state;
  weft_device *cpu = open_device("cpu", 0), *ref = open_device("ref", 0);
  uint8_t byte = 1, other = 0;
  assert_int_equal(weft_device_send(cpu, ref, &other, &byte, 1), WEFT_E_INVALID);
  assert_int_equal(weft_device_send(cpu, NULL, &other, &byte, 1), WEFT_E_INVALID);
  assert_int_equal(weft_device_follow(cpu, ref, 0), WEFT_E_INVALID);
  assert_int_equal(weft_device_follow(cpu, cpu, WEFT_MARKS_MAX), WEFT_E_INVALID);
  assert_int_equal(weft_device_follow(cpu, NULL, 0), WEFT_E_INVALID);
  assert_int_equal(other, 0);
  weft_device_close(cpu);
  weft_device_close(ref);
}

/* Work of another device cannot be part of a graph of this one. */
static void graphs_hold_one_device(void **state) {
  (void)state;
  fake_card *first = fake_card_open(true), *second = fake_card_open(true);
  uint8_t byte = 1, other = 0;
  weft_device_graph_begin(&first->base, 1, NULL);
  weft_status status = weft_device_send(&first->base, &second->base, &other, &byte, 1);
  assert_int_equal(status, WEFT_E_INVALID);
  assert_int_equal(weft_device_follow(&first->base, &second->base, 0), WEFT_E_INVALID);
  assert_false(weft_device_graph_end(&first->base, &status)); /* the step has failed while it was walked */
  assert_int_equal(other, 0);
  assert_int_equal(weft_device_send(&first->base, &second->base, &other, &byte, 1), WEFT_OK);
  assert_int_equal(other, 1);
  second->lost = true;
  assert_int_equal(weft_device_send(&first->base, &second->base, &other, &byte, 1), WEFT_E_DEVICE);
  weft_device_close(&first->base);
  weft_device_close(&second->base);
}

static void ops_reach_other_devices(void **state) {
  (void)state;
  weft_device *cpu = open_device("cpu", 0), *other = open_device("cpu", 1), *ref = open_device("ref", 0);
  fake_card *first = fake_card_open(false), *second = fake_card_open(false);
  assert_true(weft_device_reaches(cpu, other) && weft_device_reaches(cpu, cpu));
  assert_false(weft_device_reaches(cpu, ref));
  assert_true(weft_device_reaches(&first->base, &second->base));
  second->unreachable = true;
  assert_false(weft_device_reaches(&first->base, &second->base));
  weft_device_close(cpu);
  weft_device_close(other);
  weft_device_close(ref);
  weft_device_close(&first->base);
  weft_device_close(&second->base);
}

/* What a bound refuses, and that what is freed may be taken again; memory of the host is not counted. */
static void memory_is_bound(void **state) {
  static const char *const backends[] = {"ref", "cpu"};
  static float rows[16 * 256];
  (void)state;
  for (int i = 0; i < 2; i++) {
    weft_device_config config = {.backend = backends[i], .n_threads = 1, .memory_bytes_max = 100000};
    weft_device *device;
    void *a = NULL, *b = NULL, *host = NULL;
    assert_int_equal(weft_device_open(&config, &device, NULL), WEFT_OK);
    assert_int_equal(weft_device_get_info(device)->memory_bytes, 100000);
    assert_int_equal(weft_device_memory_left(device), 100000);
    assert_int_equal(weft_device_alloc(device, 60000, &a), WEFT_OK);
    assert_int_equal(weft_device_alloc(device, 40001, &b), WEFT_E_NO_MEMORY);
    assert_null(b);
    assert_int_equal(weft_device_alloc_host(device, 200000, &host), WEFT_OK);
    assert_int_equal(weft_device_alloc(device, 40000, &b), WEFT_OK);
    assert_int_equal(weft_device_memory_left(device), 0);
    weft_weight weight = {.type = WEFT_TYPE_F32, .n_in = 256, .n_out = 16, .n_mats = 1};
    assert_int_equal(weft_device_weight(device, &weight, rows, WEFT_USE_MATMUL, NULL), WEFT_E_NO_MEMORY);
    weft_device_free(device, a);
    assert_int_equal(weft_device_memory_left(device), 60000);
    assert_int_equal(weft_device_weight(device, &weight, rows, WEFT_USE_MATMUL, NULL), WEFT_OK);
    assert_true(weft_device_memory_left(device) <= 60000 - sizeof rows);
    weft_device_weight_free(device, &weight);
    weft_device_free(device, b);
    weft_device_free_host(device, host);
    assert_int_equal(weft_device_memory_left(device), 100000);
    weft_device_close(device);
  }
}

/* The backend says how much the integers of a weight take; a device that keeps none takes nothing but what soft
 * embeddings of canvases are made of. */
static void integers_are_counted(void **state) {
  static const struct {
    weft_type type;
    uint32_t n_in, n_out, n_mats;
    unsigned uses;
    uint64_t n_bytes, n_always;
  } table[] = {{WEFT_TYPE_Q4_K, 2816, 4096, 1, WEFT_USE_MATMUL, 2816 * 4096, 0},
               {WEFT_TYPE_Q8_0, 704, 65, 3, WEFT_USE_EXPERTS, 3 * 65 * 704, 0},
               {WEFT_TYPE_Q8_0, 256, 64, 1, WEFT_USE_EMBED | WEFT_USE_MATMUL, 0, 0},
               {WEFT_TYPE_Q8_0, 256, 64, 1, WEFT_USE_EMBED | WEFT_USE_CANVASES, 2 * 256 * 64, 256 * 64},
               {WEFT_TYPE_F32, 256, 64, 1, WEFT_USE_MATMUL, 0, 0},
               {WEFT_TYPE_NONE, 256, 64, 1, WEFT_USE_MATMUL, 0, 0}};
  weft_device_config config = {.backend = "ref"};
  weft_device *ref;
  (void)state;
  assert_int_equal(weft_device_open(&config, &ref, NULL), WEFT_OK);
  for (uint32_t products = 8; products <= 16; products += 8) {
    fake_card *card = fake_card_open(false);
    card->base.info.products = products;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
      const weft_weight weight = {
          .type = table[i].type, .n_in = table[i].n_in, .n_out = table[i].n_out, .n_mats = table[i].n_mats};
      uint64_t n_kept = products == 8 ? table[i].n_bytes : 0;
      assert_int_equal(weft_device_keep_integers(&card->base, true), products == 8);
      assert_int_equal(weft_device_integers_bytes(&card->base, &weight, table[i].uses), n_kept);
      (void)weft_device_keep_integers(&card->base, false);
      n_kept = products == 8 ? table[i].n_always : 0;
      assert_int_equal(weft_device_integers_bytes(&card->base, &weight, table[i].uses), n_kept);
      assert_int_equal(weft_device_integers_bytes(ref, &weight, table[i].uses), 0);
      assert_int_equal(weft_device_integers_bytes(NULL, &weight, table[i].uses), 0);
    }
    weft_device_close(&card->base);
  }
  assert_false(weft_device_keep_integers(ref, true)); /* its backend has none */
  weft_device_close(ref);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(devices_send_one_another), cmocka_unit_test(what_cannot_be_is_refused),
      cmocka_unit_test(graphs_hold_one_device),   cmocka_unit_test(ops_reach_other_devices),
      cmocka_unit_test(memory_is_bound),          cmocka_unit_test(integers_are_counted),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
