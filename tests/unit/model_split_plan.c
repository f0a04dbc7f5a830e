/* SPDX-License-Identifier: MIT */
/* Where models are cut: a table of asks and the cuts that follow from them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include "kernels/device_internal.h"
#include "model/split_plan.h"

typedef struct cut_case {
  const char *what;
  uint32_t n_devices, n_layers;
  double share[3], head;
  uint32_t no_cut;   /* bit l: not before layer l */
  uint64_t room[3];  /* every layer has 10 bytes, the first device 5 more, the last 7 */
  uint32_t first[3]; /* what is expected */
  bool none;         /* no cut is expected */
} cut_case;

static const cut_case cases[] = {
    {"one device", 1, 30, {1}, 6, 0, {0}, {0}, false},
    {"two equal", 2, 30, {1, 1}, 0, 0, {0}, {0, 15}, false},
    {"an odd layer goes to the first", 2, 31, {1, 1}, 0, 0, {0}, {0, 16}, false},
    {"the head's device kept light", 2, 30, {1, 1}, 6, 0, {0}, {0, 18}, false},
    {"a head of more than half", 2, 4, {1, 1}, 10, 0, {0}, {0, 3}, false},
    {"by ratio", 2, 30, {7, 3}, 0, 0, {0}, {0, 21}, false},
    {"by ratio, extreme", 2, 30, {1000, 1}, 0, 0, {0}, {0, 29}, false},
    {"three", 3, 30, {1, 1, 1}, 6, 0, {0}, {0, 12, 24}, false},
    {"three by ratio", 3, 30, {1, 2, 3}, 0, 0, {0}, {0, 5, 15}, false},
    {"layers that stay together", 2, 10, {1, 1}, 0, 0x3E0, {0}, {0, 4}, false},
    {"as many devices as layers", 3, 3, {1, 1, 1}, 100, 0, {0}, {0, 1, 2}, false},
    {"more devices than layers", 3, 2, {1, 1, 1}, 0, 0, {0}, {0}, true},
    {"no cut allowed", 2, 8, {1, 1}, 0, 0xFE, {0}, {0}, true},
    {"little room on the first", 2, 30, {1, 1}, 6, 0, {105, 0}, {0, 10}, false},
    {"little room on the last", 2, 30, {1, 1}, 0, 0, {0, 37}, {0, 27}, false},
    {"no room", 2, 30, {1, 1}, 0, 0, {105, 107}, {0}, true},
};

static void cut_of(const cut_case *c) {
  bool no_cut[32] = {false};
  uint64_t before[33] = {0};
  uint32_t first[WEFT_DEVICES_MAX] = {99, 99, 99};
  weft_split_ask ask = {.n_parts = c->n_devices,
                        .n_layers = c->n_layers,
                        .head = c->head,
                        .no_cut = no_cut,
                        .bytes_before = before,
                        .first_bytes = 5,
                        .last_bytes = 7};
  for (uint32_t l = 0; l < c->n_layers; l++) {
    no_cut[l] = (c->no_cut >> l & 1) != 0;
    before[l + 1] = before[l] + 10;
  }
  memcpy(ask.share, c->share, sizeof c->share);
  memcpy(ask.room, c->room, sizeof c->room);
  bool found = weft_split_cut(&ask, first);
  if (found == c->none) fail_msg("%s: a cut was %sfound", c->what, found ? "" : "not ");
  for (uint32_t p = 0; p < c->n_devices && found; p++) {
    if (first[p] != c->first[p]) fail_msg("%s: device %u begins with %u, not %u", c->what, p, first[p], c->first[p]);
  }
}

static void test_cuts(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) cut_of(&cases[i]);
}

/* The load of the worst device is never above that of any other cut: all cuts of small models are tried. */
static void test_no_cut_is_better(void **state) {
  (void)state;
  for (uint32_t n = 2; n <= 12; n++) {
    for (uint32_t head = 0; head <= 8; head++) {
      uint32_t first[WEFT_DEVICES_MAX];
      weft_split_ask ask = {.n_parts = 2, .n_layers = n, .head = head, .share = {2, 3}};
      assert_true(weft_split_cut(&ask, first));
      double own = first[1] / 2.0 > (n - first[1] + head) / 3.0 ? first[1] / 2.0 : (n - first[1] + head) / 3.0;
      for (uint32_t cut = 1; cut < n; cut++) {
        double other = cut / 2.0 > (n - cut + head) / 3.0 ? cut / 2.0 : (n - cut + head) / 3.0;
        assert_true(own <= other);
      }
    }
  }
}

/* Which share of a page a cut leaves empty: of layers in pairs, a tenth for each pair that is parted. */
static double parted(void *self, const uint32_t *first) {
  uint32_t n_devices = *(const uint32_t *)self, n = 0;
  for (uint32_t p = 1; p < n_devices; p++) n += first[p] % 2;
  return n / 10.0;
}

/* Among cuts of equal load the one wins that fills pages best, then the most even one, then the one whose first devices
 * have more. Load goes first: no cut with a larger one is taken. All cuts of small models are tried. */
static void test_pages_are_filled(void **state) {
  uint32_t n_won = 0;
  (void)state;
  for (uint32_t n = 3; n <= 14; n++) {
    for (uint32_t head = 0; head <= 6; head++) {
      uint32_t n_devices = 3, plain[WEFT_DEVICES_MAX], filled[WEFT_DEVICES_MAX], best[3] = {0};
      weft_split_ask ask = {.n_parts = 3, .n_layers = n, .head = head, .share = {1, 1, 1}};
      double least = 1e9, least_empty = 1e9, least_uneven = 1e9;
      assert_true(weft_split_cut(&ask, plain));
      ask.empty = parted;
      ask.empty_self = &n_devices;
      assert_true(weft_split_cut(&ask, filled));
      for (uint32_t a = n - 2; a >= 1; a--) {
        for (uint32_t b = n - 1; b > a; b--) {
          const uint32_t cut[3] = {0, a, b};
          double x = a, y = b - a, z = n - b + head, load = fmax(fmax(x, y), z), empty = parted(&n_devices, cut);
          double uneven = x * x + y * y + z * z;
          if (load > least || (load == least && empty > least_empty)) continue;
          if (load == least && empty == least_empty && uneven >= least_uneven) continue;
          least = load;
          least_empty = empty;
          least_uneven = uneven;
          memcpy(best, cut, sizeof best);
        }
      }
      if (memcmp(filled, best, sizeof best) != 0)
        fail_msg("%u layers, head %u: %u, %u, not %u, %u", n, head, filled[1], filled[2], best[1], best[2]);
      n_won += parted(&n_devices, plain) > parted(&n_devices, filled);
    }
  }
  assert_true(n_won > 10);
}

typedef struct gemma_26b {
  weft_kv_geometry geometry;
  weft_kv_layout layout;
  uint32_t n_parts;
} gemma_26b;

static double empty_of_gemma(void *self, const uint32_t *first) {
  gemma_26b *g = self;
  const weft_kv_geometry *geometry = &g->geometry;
  for (uint32_t s = 0, p = 0; s < 30; s++) {
    while (p + 1 < g->n_parts && s >= first[p + 1]) p++;
    g->geometry.set[s].part = (uint8_t)p;
  }
  return weft_kv_layout_choose(&geometry, 1, 0, &g->layout, NULL) == WEFT_OK ? g->layout.padding : 1.0;
}

/* The 30 layers of Gemma 4 26B, as `--split auto` cuts them: the head is a fifth of them where canvases go through it,
 * else a fifteenth. From five parts on many cuts are as good as the best by their largest load, and far from even. */
static void test_gemma_26b(void **state) {
  static const struct {
    double head;
    uint32_t n_parts, n_layers[8];
  } table[] = {
      {6, 2, {18, 12}},
      {6, 3, {12, 12, 6}},
      {6, 4, {9, 9, 9, 3}},
      {6, 6, {6, 6, 6, 6, 5, 1}},
      {2, 2, {16, 14}},
      {2, 4, {8, 8, 8, 6}},
      {2, 6, {6, 5, 5, 5, 5, 4}},
      {2, 7, {5, 5, 5, 4, 4, 4, 3}},
      {6, 8, {5, 4, 4, 4, 4, 4, 4, 1}},
      {2, 8, {4, 4, 4, 4, 4, 4, 4, 2}},
  };
  static gemma_26b g;
  (void)state;
  g.geometry.n_layers = g.geometry.n_sets = 30;
  for (uint32_t l = 0; l < 30; l++) {
    bool global = l % 6 == 5;
    g.geometry.set[l] = (weft_kv_set){.rows = {.type = WEFT_TYPE_BF16, .n_kv_heads = global ? 2 : 8, .positions = 1},
                                      .window = global ? 0 : 1024,
                                      .layer = (uint16_t)l};
    g.geometry.set[l].rows.head_dim = global ? 512 : 256;
  }
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    uint32_t n = g.n_parts = table[i].n_parts, first[WEFT_DEVICES_MAX];
    weft_split_ask ask = {
        .n_parts = n, .n_layers = 30, .head = table[i].head, .empty = empty_of_gemma, .empty_self = &g};
    for (uint32_t p = 0; p < n; p++) ask.share[p] = 1;
    assert_true(weft_split_cut(&ask, first));
    for (uint32_t p = 0; p < n; p++) {
      uint32_t n_layers = (p + 1 < n ? first[p + 1] : 30) - first[p];
      if (n_layers != table[i].n_layers[p])
        fail_msg("case %zu: part %u has %u layers, not %u", i, p, n_layers, table[i].n_layers[p]);
    }
  }
}

/* A card that keeps a byte for each element of a weight that is not looked up. */
static uint64_t count_integers(const weft_weight *weight, unsigned uses) {
  return (uses & WEFT_USE_EMBED) != 0 ? 0 : (uint64_t)weight->n_mats * weight->n_out * weight->n_in;
}

/* Of a file with 6 layers, two devices: what was asked for holds whatever room there is; else room goes before balance,
 * unless no cut has room. Integers of weights take room. Of unequal devices the faster one gets more work. */
static void test_reasons(void **state) {
  static const struct {
    double ratio[2], speed[2]; /* 0: none, equal */
    uint64_t room[2];
    uint32_t first;
    weft_split_why why;
    bool integers;
  } table[] = {
      {{0}, {0}, {0, 0}, 4, WEFT_SPLIT_EVEN, false},       {{1, 2}, {0}, {0, 0}, 2, WEFT_SPLIT_ASKED, false},
      {{5, 1}, {0}, {1, 1}, 5, WEFT_SPLIT_ASKED, false},   {{0}, {0}, {UINT64_MAX, 1}, 4, WEFT_SPLIT_TOO_LITTLE, false},
      {{0}, {0}, {3 << 20, 0}, 2, WEFT_SPLIT_ROOM, false}, {{0}, {0}, {6 << 20, 0}, 4, WEFT_SPLIT_EVEN, false},
      {{0}, {0}, {6 << 20, 0}, 2, WEFT_SPLIT_ROOM, true},  {{0}, {3, 1}, {0, 0}, 5, WEFT_SPLIT_EVEN, false},
      {{0}, {1, 3}, {0, 0}, 2, WEFT_SPLIT_EVEN, false},    {{0}, {3, 1}, {3 << 20, 0}, 2, WEFT_SPLIT_ROOM, false},
      {{1, 2}, {3, 1}, {0, 0}, 2, WEFT_SPLIT_ASKED, false}};
  static const device_calls calls = {.integers_bytes = count_integers};
  weft_device card = {.calls = &calls, .info = {.products = 8}}; /* integers are for those */
  weft_gguf *gguf;
  (void)state;
  assert_int_equal(weft_gguf_open(WEFT_SOURCE_DIR "/model/demo/weft-demo.gguf", &gguf, NULL), WEFT_OK);
  for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
    weft_split split = {.n_devices = 2, .device = {&card, &card}};
    weft_split_reason reason;
    const double *ratio = table[i].ratio[0] > 0 ? table[i].ratio : NULL;
    const double *speed = table[i].speed[0] > 0 ? table[i].speed : NULL;
    card.info.integers = table[i].integers;
    assert_int_equal(weft_split_plan(gguf, ratio, speed, table[i].room, &split, &reason, NULL), WEFT_OK);
    print_message("case %zu: first layer %u, reason %d\n", i, split.first_layer[1], (int)reason.why);
    assert_int_equal(split.first_layer[1], table[i].first);
    assert_int_equal(reason.why, table[i].why);
  }
  weft_gguf_close(gguf);
}

/* Parts in shards are cut as devices are; each has the room of its fullest device as often as it has devices, and what
 * shards have whole counts for each. */
static void test_parts_of_shards(void **state) {
  static const struct {
    uint64_t room[4];
    uint32_t first;
    weft_split_why why;
  } table[] = {{{0}, 4, WEFT_SPLIT_EVEN},
               {{8 << 20, 8 << 20, 8 << 20, 8 << 20}, 4, WEFT_SPLIT_EVEN},
               {{8 << 20, 2 << 20, 0, 0}, 2, WEFT_SPLIT_ROOM},
               {{1, 1, 1, 1}, 4, WEFT_SPLIT_TOO_LITTLE}};
  static const device_calls calls = {.integers_bytes = NULL};
  weft_device card = {.calls = &calls, .info = {.products = 8}}; /* integers are for those */
  weft_gguf *gguf;
  (void)state;
  assert_int_equal(weft_gguf_open(WEFT_SOURCE_DIR "/model/demo/weft-demo.gguf", &gguf, NULL), WEFT_OK);
  for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
    weft_split split = {.n_devices = 4, .n_shards = 2, .device = {&card, &card, &card, &card}};
    weft_split_reason reason;
    assert_int_equal(weft_split_plan(gguf, NULL, NULL, table[i].room, &split, &reason, NULL), WEFT_OK);
    print_message("case %zu: first layer %u, reason %d\n", i, split.first_layer[1], (int)reason.why);
    assert_int_equal(split.first_layer[1], table[i].first);
    assert_int_equal(reason.why, table[i].why);
  }
  weft_split split = {.n_devices = 4, .n_shards = 2, .device = {&card, &card, &card, &card}};
  weft_split_reason reason;
  assert_int_equal(weft_split_plan(gguf, (const double[2]){1, 2}, NULL, table[3].room, &split, &reason, NULL), WEFT_OK);
  assert_int_equal(split.first_layer[1], 2);
  assert_int_equal(reason.why, WEFT_SPLIT_ASKED);
  split = (weft_split){.n_devices = 16, .n_shards = 2, .device = {&card}};
  const uint64_t none[16] = {0};
  weft_error error = {{0}};
  assert_int_equal(weft_split_plan(gguf, NULL, NULL, none, &split, &reason, &error), WEFT_E_INVALID);
  assert_non_null(strstr(error.text, "cannot be shared out to 8 parts"));
  weft_gguf_close(gguf);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_cuts),
                                     cmocka_unit_test(test_no_cut_is_better),
                                     cmocka_unit_test(test_pages_are_filled),
                                     cmocka_unit_test(test_gemma_26b),
                                     cmocka_unit_test(test_reasons),
                                     cmocka_unit_test(test_parts_of_shards)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
