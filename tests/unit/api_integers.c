/* SPDX-License-Identifier: MIT */
/* Which weights lie on a card as integers too (api/devices.h): all, a part of them, or none, by room. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "api/devices.h"
#include "model/model.h"
#include "tests/support/fake_card.h"

/* Integers of weights are kept where each device has room for its part of them beside weights and pages. */
static void test_integers_where_there_is_room(void **state) {
  uint64_t n_bytes, n_integers;
  weft_gguf *gguf;
  (void)state;
  assert_int_equal(weft_gguf_open(WEFT_SOURCE_DIR "/model/demo/weft-demo.gguf", &gguf, NULL), WEFT_OK);
  fake_card *counts = fake_card_open(false);
  counts->base.info.integers = true;
  counts->base.info.products = 8;
  weft_split_weights(gguf, &counts->base, &n_bytes, &n_integers);
  const weft_split shards = {.n_devices = 2, .n_shards = 2, .device = {&counts->base, &counts->base}};
  weft_split layers = {.n_devices = 2, .device = {&counts->base, &counts->base}};
  weft_split_reason reason;
  uint64_t shard, part[2];
  weft_split_bytes(gguf, &shards, &shard);
  assert_int_equal(weft_split_plan(gguf, NULL, NULL, (uint64_t[2]){0, 0}, &layers, &reason, NULL), WEFT_OK);
  weft_split_bytes(gguf, &layers, part);
  const uint64_t all = n_bytes + n_integers, in_shards = 2 * shard; /* the table twice */
  const uint64_t in_parts = 2 * (part[0] > part[1] ? part[0] : part[1]);
  weft_device_close(&counts->base);
  assert_true(n_bytes > 5 << 20 && n_integers > 3 << 20 && in_shards > all + 2048 && in_parts > all + 2048);
  device_calls without = fake_calls;
  without.integers_bytes = NULL;
  const struct {
    bool has_integers; /* the backend */
    uint32_t n, n_shards, products;
    bool replicas;
    uint64_t has, most, kv; /* of each device; most: for weights, 0: 7/8 */
    bool kept;
    uint64_t missing;
  } table[] = {
      {true, 1, 1, 8, false, 2 * all, 0, all, true, 0},
      {true, 1, 1, 8, false, 2 * all, 0, all + 10, false, 10}, /* the pages would not fit beside them */
      {true, 1, 1, 8, false, 2 * all, 0, 0, true, 0},          /* a quarter is for pages */
      {true, 1, 1, 8, false, 2 * all, all, all, true, 0},
      {true, 1, 1, 8, false, 2 * all, all - 5, all, false, 5}, /* more than weights may take */
      {true, 2, 1, 8, false, in_parts, 0, in_parts, true, 0},
      {true, 2, 1, 8, false, in_parts, 0, in_parts + 18, false, 9}, /* half of all would fit */
      {true, 2, 1, 8, true, all, 0, all, false, all},               /* replicas have all of it each */
      {true, 2, 2, 8, false, in_shards, 0, in_shards, true, 0},
      {true, 2, 2, 8, false, in_shards, in_shards / 2 - 7, in_shards, false, 7}, /* half of all would fit */
      {true, 1, 1, 16, false, 4 * all, 0, 0, false, 0},                          /* not wanted */
      {false, 1, 1, 8, false, 4 * all, 0, 0, false, 0},                          /* the backend has none */
  };
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    weft_devices devices = {.n = table[i].n, .n_shards = table[i].n_shards, .replicas = table[i].replicas};
    for (uint32_t p = 0; p < table[i].n; p++) {
      fake_card *card = fake_card_open(false);
      if (!table[i].has_integers) card->base.calls = &without;
      card->base.info.products = table[i].products;
      card->base.info.memory_free_bytes = table[i].has;
      card->base.info.host_memory = false;
      devices.device[p] = &card->base;
      devices.weights_bytes_max[p] = table[i].most;
    }
    devices_choose_integers(&devices, &gguf, 1, table[i].kv, false);
    for (uint32_t p = 0; p < table[i].n; p++) {
      if (devices.device[p]->info.integers != table[i].kept) fail_msg("row %zu, device %u", i, p);
    }
    if (devices.integers_missing != table[i].missing)
      fail_msg("row %zu: %llu missing", i, (unsigned long long)devices.integers_missing);
    devices_close(&devices);
  }
  weft_gguf_close(gguf);
}

/* Where they do not all fit, as many weights have integers as find room, and those of experts go first; a sixteenth of
 * the device stays free for what a step needs. More room never leaves fewer. */
static void test_integers_of_a_part(void **state) {
  uint64_t n_bytes, n_integers, before = 0;
  uint32_t n_have, n_can, most_have = 0, n_steps = 0;
  weft_gguf *gguf;
  (void)state;
  assert_int_equal(weft_gguf_open(WEFT_SOURCE_DIR "/model/demo/weft-demo.gguf", &gguf, NULL), WEFT_OK);
  for (uint32_t percent = 0; percent <= 100; percent += 4) {
    fake_card *card = fake_card_open(false);
    weft_devices devices = {.n = 1, .n_shards = 1, .device = {&card->base}};
    card->base.info.products = 8;
    card->base.info.memory_free_bytes = UINT32_MAX;
    card->base.info.integers = true;
    weft_split_weights(gguf, &card->base, &n_bytes, &n_integers);
    devices.weights_bytes_max[0] = n_bytes + n_integers * percent / 100;
    devices_choose_integers(&devices, &gguf, 1, 1 << 20, true);
    const weft_split split = {.n_devices = 1, .device = {&card->base}, .codes_alone = devices.codes_alone};
    weft_split_count_integers(gguf, &split, &n_have, &n_can);
    uint64_t taken;
    weft_split_bytes(gguf, &split, &taken);
    const bool kept = card->base.info.integers, all = percent == 100;
    assert_true(!kept || taken <= devices.weights_bytes_max[0]);
    assert_true(taken >= before);
    assert_true(devices.codes_alone.others == 0 || devices.codes_alone.experts == WEFT_CODES_OF);
    assert_int_equal(devices.integers_missing, n_integers - n_integers * percent / 100);
    assert_int_equal(kept && devices.codes_alone.experts == 0, all);
    if (kept) assert_in_range(n_have, most_have, all ? n_can : n_can - 1);
    if (kept && !all) {
      char line[96];
      weft_text text = {0};
      (void)snprintf(line, sizeof line, "part     weights as integers too: %u of %u; for all a device lacks", n_have,
                     n_can);
      devices_tell_integers(&devices, &gguf, 1, &text);
      assert_non_null(strstr(text.bytes, line));
      weft_text_free(&text);
    }
    n_steps += taken > before;
    before = taken;
    if (kept) most_have = n_have;
    devices_close(&devices);
  }
  assert_true(n_steps > 8);
  for (uint32_t i = 0; i < 2; i++) { /* without a pool that is asked for they may not take half of what codes leave */
    fake_card *card = fake_card_open(false);
    weft_devices devices = {.n = 1, .n_shards = 1, .device = {&card->base}};
    card->base.info.products = 8;
    card->base.info.integers = true;
    weft_split_weights(gguf, &card->base, &n_bytes, &n_integers);
    card->base.info.memory_free_bytes = devices.weights_bytes_max[0] = n_bytes + n_integers * 19 / 10;
    devices_choose_integers(&devices, &gguf, 1, 0, i == 1);
    assert_true(card->base.info.integers);
    assert_int_equal(devices.codes_alone.experts + devices.codes_alone.others > 0, i == 1);
    devices_close(&devices);
  }
  weft_gguf_close(gguf);
}

/* A card whose layouts take a quarter more than the file's bytes. */
static weft_status wide_expect(weft_device *device, weft_weight *weight, unsigned uses, weft_error *error) {
  (void)error;
  weight->n_bytes = weight_file_bytes(weight) / 4 * 5 + weft_device_integers_bytes(device, weight, uses);
  return WEFT_OK;
}

typedef struct placing {
  uint32_t n, n_shards;
  bool replicas, wide;
} placing;

/* Opens the demo model where each device has `room` for weights: whether integers are kept. Then all of a device's
 * weights, as it places them, have room, or by a few bytes none has integers. */
static bool place(const placing *at, weft_gguf *gguf, uint64_t room) {
  static const device_share_calls wide_share = {.expect = wide_expect};
  device_calls wide = fake_calls;
  wide.share = &wide_share;
  const weft_model_limits limits = {.rows_max = 8, .canvas_rows_max = 8, .segments_max = 4};
  weft_devices devices = {.n = at->n, .n_shards = at->n_shards, .replicas = at->replicas};
  for (uint32_t p = 0; p < at->n; p++) {
    fake_card *card = fake_card_open(false);
    if (at->wide) card->base.calls = &wide;
    card->base.info.products = 8;
    card->base.info.memory_free_bytes = UINT32_MAX;
    devices.device[p] = &card->base;
    devices.weights_bytes_max[p] = room;
  }
  devices_choose_integers(&devices, &gguf, 1, 1 << 20, true);
  const bool kept = devices.device[0]->info.integers;
  weft_split split;
  weft_split_reason reason;
  weft_model *model;
  weft_error error = {{0}};
  assert_int_equal(devices_split(&devices, 0, gguf, &split, &reason, &error), WEFT_OK);
  if (weft_model_open(gguf, &split, &limits, NULL, NULL, &model, &error) != WEFT_OK) fail_msg("%s", error.text);
  for (uint32_t p = 0; p < split.n_devices; p++) {
    const uint64_t codes = weft_model_get_info(model)->part[p].weight_bytes;
    const uint64_t taken = codes / 4 * (at->wide ? 5 : 4) + fake_of(split.device[p])->n_bytes_integers;
    if (kept && taken > room)
      fail_msg("%u devices, %u shards: device %u takes %llu of %llu", at->n, at->n_shards, p, (unsigned long long)taken,
               (unsigned long long)room);
  }
  weft_model_close(model);
  devices_close(&devices);
  return kept;
}

/* Whatever the room: weights with integers, as devices place them, never take more, so no expert leaves for them. */
static void test_integers_push_nothing_out(void **state) {
  static const placing table[] = {{1, 1, false, false}, {1, 1, false, true}, {2, 1, false, false}, {2, 1, false, true},
                                  {2, 2, false, false}, {2, 2, false, true}, {4, 4, false, false}, {2, 1, true, false},
                                  {2, 1, true, true},   {4, 2, false, false}};
  weft_gguf *gguf;
  (void)state;
  assert_int_equal(weft_gguf_open(WEFT_SOURCE_DIR "/model/demo/weft-demo.gguf", &gguf, NULL), WEFT_OK);
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    uint32_t n_kept = 0, n_not = 0;
    for (uint64_t room = 1 << 20; room < 24 << 20; room += room / 16) {
      const bool kept = place(&table[i], gguf, room);
      n_kept += kept;
      n_not += !kept;
    }
    assert_true(n_kept > 4 && n_not > 4);
  }
  weft_gguf_close(gguf);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_integers_where_there_is_room),
                                     cmocka_unit_test(test_integers_of_a_part),
                                     cmocka_unit_test(test_integers_push_nothing_out)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
