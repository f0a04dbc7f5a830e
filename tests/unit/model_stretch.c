/* SPDX-License-Identifier: MIT */
/* Device memory that grows and shrinks where it is (kernels/stretch.h), and a pool in it: what stays keeps its content,
 * what goes counts against no bound, and a resize that is refused changes nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/stretch.h"
#include "model/kv_store.h"

enum { MIB = 1 << 20, PAGES = 64 };

static weft_device *open_device(const char *backend, uint64_t bytes_max) {
  weft_device_config config = {.backend = backend, .n_threads = 1, .memory_bytes_max = bytes_max};
  weft_device *device = NULL;
  weft_error error = {{0}};
  if (weft_device_open(&config, &device, &error) != WEFT_OK) fail_msg("%s", error.text);
  return device;
}

static void test_range(void **state) {
  const char *backend = *state;
  weft_device *device = open_device(backend, 8 * MIB);
  weft_stretch stretch;
  uint8_t byte = 0;
  assert_int_equal(weft_stretch_open(device, (uint64_t)1 << 40, MIB - 100, &stretch),
                   WEFT_OK); /* addresses cost nothing */
  assert_int_equal(stretch.piece_bytes, MIB);
  assert_int_equal(weft_device_memory_left(device), 8 * MIB);
  assert_int_equal(weft_stretch_resize(&stretch, 3 * MIB - 5), WEFT_OK);
  assert_int_equal(stretch.n_bytes, 3 * MIB);
  assert_int_equal(weft_device_memory_left(device), 5 * MIB);
  uint8_t *at = stretch.base;
  for (uint32_t i = 0; i < 3; i++)
    assert_int_equal(weft_device_upload(device, at + i * MIB + 7, &(uint8_t){9}, 1), WEFT_OK);
  assert_int_equal(weft_stretch_resize(&stretch, 9 * MIB), WEFT_E_NO_MEMORY);
  assert_int_equal(stretch.n_bytes, 3 * MIB);
  assert_int_equal(weft_device_memory_left(device), 5 * MIB);
  assert_int_equal(weft_stretch_resize(&stretch, MIB), WEFT_OK);
  assert_int_equal(weft_device_memory_left(device), 7 * MIB);
  assert_int_equal(weft_stretch_resize(&stretch, 8 * MIB), WEFT_OK);
  assert_ptr_equal(stretch.base, at);
  assert_int_equal(weft_device_download(device, &byte, at + 7, 1), WEFT_OK);
  assert_int_equal(byte, 9);
  assert_int_equal(weft_device_download(device, &byte, at + MIB + 7, 1), WEFT_OK);
  assert_int_equal(byte, 0); /* its memory went and came */
  weft_stretch_close(&stretch);
  weft_stretch_close(&stretch);
  assert_int_equal(weft_device_memory_left(device), 8 * MIB);
  assert_int_equal(weft_stretch_open(device, 0, MIB, &stretch), WEFT_E_NO_MEMORY);
  weft_device_close(device);
}

static weft_kv_layout layout_of(uint64_t page_bytes) {
  weft_kv_layout layout = {.n_parts = 2, .page_bytes = 2 * page_bytes};
  layout.part_bytes[0] = layout.part_bytes[1] = page_bytes;
  return layout;
}

static void fill(const weft_kv_store *store, uint32_t page) {
  for (uint32_t p = 0; p < 2; p++) {
    uint8_t byte = (uint8_t)(page + 100 * p);
    char *at = (char *)store->part[p].base + page * store->part[p].page_bytes;
    assert_int_equal(weft_device_upload(store->part[p].device, at, &byte, 1), WEFT_OK);
  }
}

static void holds(const weft_kv_store *store, uint32_t page, uint32_t what) {
  for (uint32_t p = 0; p < 2; p++) {
    uint8_t byte = 0;
    const char *at = (const char *)store->part[p].base + page * store->part[p].page_bytes;
    assert_int_equal(weft_device_download(store->part[p].device, &byte, at, 1), WEFT_OK);
    assert_int_equal(byte, (uint8_t)(what + 100 * p));
  }
}

/* One device is bounded more than the other: what the first one gave for a resize that the second one refuses, it takes
 * back. */
static void test_store(void **state) {
  const char *backend = *state;
  weft_split split = {.n_devices = 2, .n_shards = 1};
  weft_kv_layout layout = layout_of(64 << 10);
  weft_kv_store *store = NULL;
  weft_error error = {{0}};
  split.device[0] = open_device(backend, 64 * MIB);
  split.device[1] = open_device(backend, 2 * MIB);
  assert_int_equal(weft_kv_store_open_sized(&split, &layout, 16, PAGES, &store, &error), WEFT_OK);
  for (uint32_t page = 0; page < 16; page++) fill(store, page);
  assert_int_equal(weft_kv_store_resize(store, 48), WEFT_E_NO_MEMORY);
  assert_int_equal(store->n_pages, 16);
  assert_int_equal(weft_device_memory_left(split.device[0]), 63 * MIB);
  const weft_page_copy copy[] = {{.kind = WEFT_PAGE_TO_PAGE, .from = 15, .to = 3},
                                 {.kind = WEFT_PAGE_TO_PAGE, .from = 3, .to = 4}};
  assert_int_equal(weft_kv_store_copy_now(store, copy, 2), WEFT_OK);
  assert_int_equal(weft_kv_store_resize(store, 5), WEFT_OK);
  holds(store, 2, 2);
  holds(store, 3, 15);
  holds(store, 4, 15);
  assert_int_equal(weft_kv_store_resize(store, 30), WEFT_OK);
  fill(store, 29);
  holds(store, 29, 29);
  holds(store, 4, 15);
  weft_kv_store_close(store);
  for (uint32_t p = 0; p < 2; p++) weft_device_close(split.device[p]);
}

int main(void) {
  static char ref[] = "ref", cpu[] = "cpu";
  const struct CMUnitTest tests[] = {cmocka_unit_test_prestate(test_range, ref),
                                     cmocka_unit_test_prestate(test_range, cpu),
                                     cmocka_unit_test_prestate(test_store, cpu)};
  return cmocka_run_group_tests_name("device memory that grows and shrinks", tests, NULL, NULL);
}
