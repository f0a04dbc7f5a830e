/* SPDX-License-Identifier: MIT */
/* Which splits of a model's layers are possible, and what is said of the others. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "model/split.h"

static weft_kv_geometry plain(uint32_t n_layers) {
  weft_kv_geometry g = {.n_layers = n_layers, .n_sets = n_layers};
  for (uint32_t l = 0; l < n_layers; l++) g.set[l].layer = (uint16_t)l;
  return g;
}

/* Eight layers; layers 5 and 7 read the keys of layer 3. */
static weft_kv_geometry shared(void) {
  weft_kv_geometry g = plain(8);
  g.set[5].keys_of = g.set[7].keys_of = 3 + 1;
  return g;
}

static weft_status check(const weft_kv_geometry *g, uint32_t n, uint32_t a, uint32_t b, uint32_t c, weft_error *error) {
  const weft_split split = {.n_devices = n, .first_layer = {a, b, c}};
  return weft_split_check(&split, g, error);
}

static void test_possible(void **state) {
  (void)state;
  weft_kv_geometry g = plain(8);
  weft_error error;
  assert_int_equal(check(&g, 1, 0, 0, 0, &error), WEFT_OK);
  for (uint32_t cut = 1; cut < 8; cut++) assert_int_equal(check(&g, 2, 0, cut, 0, &error), WEFT_OK);
  assert_int_equal(check(&g, 3, 0, 1, 7, &error), WEFT_OK);
  const weft_split all = {.n_devices = 8, .first_layer = {0, 1, 2, 3, 4, 5, 6, 7}};
  assert_int_equal(weft_split_check(&all, &g, &error), WEFT_OK);
}

static void test_refused(void **state) {
  (void)state;
  weft_kv_geometry g = plain(8), small = plain(2);
  weft_error error;
  assert_int_equal(check(&g, 0, 0, 0, 0, &error), WEFT_E_INVALID);
  assert_int_equal(check(&g, WEFT_DEVICES_MAX + 1, 0, 1, 2, &error), WEFT_E_INVALID);
  assert_int_equal(check(&small, 3, 0, 1, 2, &error), WEFT_E_INVALID);
  assert_non_null(strstr(error.text, "2 layers cannot be shared out to 3 devices"));
  assert_int_equal(check(&g, 2, 1, 4, 0, &error), WEFT_E_INVALID);
  assert_int_equal(check(&g, 2, 0, 0, 0, &error), WEFT_E_INVALID);
  assert_non_null(strstr(error.text, "device 2 of 2 would begin with layer 0"));
  assert_int_equal(check(&g, 2, 0, 8, 0, &error), WEFT_E_INVALID);
  assert_int_equal(check(&g, 3, 0, 4, 4, &error), WEFT_E_INVALID);
}

/* Parts in shards: as many layers as parts are enough, and the devices are shared out evenly. */
static void test_shards(void **state) {
  (void)state;
  weft_kv_geometry g = plain(4);
  weft_error error;
  weft_split split = {.n_devices = 16, .n_shards = 4, .first_layer = {0, 1, 2, 3}};
  assert_int_equal(weft_split_check(&split, &g, &error), WEFT_OK);
  assert_int_equal(weft_split_stages(&split), 4);
  assert_int_equal(weft_split_place(&split, 2, 3), 11);
  assert_int_equal(weft_split_last_place(&split), 12);
  split.n_devices = 10;
  assert_int_equal(weft_split_check(&split, &g, &error), WEFT_E_INVALID);
  assert_non_null(strstr(error.text, "10 devices cannot be shared out to parts of 4 shards"));
  split.n_devices = 3;
  assert_int_equal(weft_split_check(&split, &g, &error), WEFT_E_INVALID);
  split = (weft_split){.n_devices = 16, .n_shards = 2, .first_layer = {0, 1, 2, 3}};
  assert_int_equal(weft_split_check(&split, &g, &error), WEFT_E_INVALID);
  assert_non_null(strstr(error.text, "4 layers cannot be shared out to 8 parts; give fewer parts"));
  split = (weft_split){.n_devices = 4, .n_shards = 2, .first_layer = {0, 4}};
  assert_int_equal(weft_split_check(&split, &g, &error), WEFT_E_INVALID);
  assert_non_null(strstr(error.text, "part 2 of 2 would begin with layer 4"));
  split = (weft_split){.n_devices = 5};
  assert_int_equal(weft_split_stages(&split), 5);
  assert_int_equal(weft_split_last_place(&split), 4);
}

static void test_shared_keys(void **state) {
  (void)state;
  weft_kv_geometry g = shared();
  weft_error error;
  for (uint32_t cut = 1; cut < 8; cut++) {
    assert_int_equal(check(&g, 2, 0, cut, 0, &error), cut <= 3 ? WEFT_OK : WEFT_E_INVALID);
  }
  assert_non_null(
      strstr(error.text, "layers 3 to 7 must lie on one device, because layer 7 reads the keys of layer 3"));
  assert_int_equal(check(&g, 3, 0, 2, 6, &error), WEFT_E_INVALID);
  assert_non_null(strstr(error.text, "no cut is possible before layer 6"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_possible),
      cmocka_unit_test(test_refused),
      cmocka_unit_test(test_shards),
      cmocka_unit_test(test_shared_keys),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
