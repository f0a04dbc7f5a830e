/* SPDX-License-Identifier: MIT */
/* What --split auto chooses, over a table of machines and loads, and that what it counts lies near what two H200s
 * measured. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
/* clang-format off */
#include <cmocka.h>
/* clang-format on */

#include "api/split_choice.h"

/* About Gemma 4 26B in Q4_K_M, and a dense model of 70B in 4 bits. */
static weft_file_facts facts_26b(uint32_t canvas_length) {
  return (weft_file_facts){.n_layers = 30,
                           .n_hidden = 2816,
                           .n_experts = 128,
                           .n_experts_used = 8,
                           .context_length = 262144,
                           .canvas_length = canvas_length,
                           .weight_bytes = 16700000000,
                           .expert_bytes = 14300000000,
                           .n_expert_weights = 22800000000,
                           .n_other_weights = 2400000000};
}

static weft_file_facts facts_70b(void) {
  return (weft_file_facts){.n_layers = 80,
                           .n_hidden = 8192,
                           .context_length = 131072,
                           .weight_bytes = 40000000000,
                           .n_other_weights = 70000000000};
}

enum { H200 = 0, L40S = 1, RTX = 2 };

static split_machine machine_of(uint32_t kind, uint32_t n, bool direct) {
  static const split_machine of[] = {
      {.set = CARD_SET_HOPPER, .memory_rate = 4.8e12, .product_rate = 989e12, .memory_bytes = 150000000000},
      {.set = CARD_SET_PORTABLE, .memory_rate = 0.864e12, .product_rate = 362e12, .memory_bytes = 48000000000},
      {.set = CARD_SET_PORTABLE, .memory_rate = 1.0e12, .product_rate = 165e12, .memory_bytes = 25000000000}};
  split_machine m = of[kind];
  m.n = n;
  m.direct = direct;
  m.shards = 1u << 0 | 1u << 1 | 1u << 3 | 1u << 7 | 1u << 15;
  return m;
}

typedef struct row {
  const char *model; /* "canvas", "decode" or "70b" */
  uint32_t kind, n;
  bool direct;
  uint32_t n_running;
  const char *wanted;
} row;

static void test_table(void **state) {
  static const row table[] = {
      {"canvas", H200, 2, true, 1, "tensor"},
      {"canvas", H200, 2, true, 2, "tensor"},
      {"canvas", H200, 2, true, 32, "layer"},
      {"canvas", H200, 2, false, 1, "layer"},
      {"canvas", H200, 3, true, 1, "layer"}, /* three shards are not possible */
      {"canvas", H200, 4, true, 1, "tensor"},
      {"canvas", H200, 8, true, 1, "tensor"},
      {"canvas", H200, 8, true, 64, "layer"},
      {"decode", H200, 2, true, 1, "tensor"},
      {"decode", H200, 2, true, 32, "tensor"},
      {"decode", H200, 2, false, 32, "layer"},
      {"decode", H200, 8, true, 512, "tensor:2,layer:4"},
      {"70b", H200, 2, true, 1, "tensor"},
      {"70b", H200, 8, true, 8, "tensor"},
      {"70b", L40S, 2, true, 1, "tensor"},
      {"70b", RTX, 2, true, 1, "tensor"},
      {"70b", RTX, 2, false, 16, "layer"},
      {"canvas", L40S, 2, true, 64, "layer"},
      {"decode", H200, 16, true, 1, "tensor"},
  };
  (void)state;
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    const row *t = &table[i];
    weft_file_facts f = strcmp(t->model, "70b") == 0 ? facts_70b() : facts_26b(t->model[0] == 'c' ? 256 : 0);
    split_machine m = machine_of(t->kind, t->n, t->direct);
    split_load load = {.n_running = t->n_running, .n_tokens = 512};
    split_choice choice;
    char said[400];
    assert_true(split_choose(&f, &m, &load, &choice));
    split_tell(&choice, &m, &load, said, sizeof said);
    size_t n = strlen(t->wanted);
    print_message("%s, %u cards, %u at once: %s\n", t->model, t->n, t->n_running, said);
    if (strncmp(said, t->wanted, n) != 0 || (said[n] != ',' && said[n] != ':')) fail_msg("not %s", t->wanted);
  }
}

/* Where every way is counted, and the least is between: parts of several cards. */
static void test_parts_of_shards(void **state) {
  weft_file_facts f = facts_26b(256);
  split_machine m = machine_of(H200, 8, true);
  bool seen = false;
  (void)state;
  for (uint32_t n = 1; n <= 64; n++) {
    split_load load = {.n_running = n, .n_tokens = 512};
    split_choice choice;
    assert_true(split_choose(&f, &m, &load, &choice));
    const split_way *way = &choice.way[choice.chosen];
    assert_int_equal(way->n_shards * way->n_parts, 8);
    assert_int_equal(way->n_replicas, 1); /* they are told and never chosen */
    assert_int_equal(choice.way[choice.n_ways - 1].n_replicas, 8);
    for (uint32_t i = 0; i + 1 < choice.n_ways; i++) assert_true(way->round_ms <= 1.05 * choice.way[i].round_ms);
    seen = seen || (way->n_shards > 1 && way->n_parts > 1);
  }
  assert_true(seen);
}

/* Two H200s, docs/several-cards.md: one canvas takes 7.9 ms by tensor and 11.5 on one card; 32 take 133.3 by tensor,
 * 122.2 by layer and 107.9 with replicas. Within a fifth. */
static void test_measured(void **state) {
  weft_file_facts f = facts_26b(256);
  split_machine m = machine_of(H200, 2, true);
  split_load load = {.n_running = 32, .n_tokens = 512};
  split_choice c;
  (void)state;
  assert_true(split_choose(&f, &m, &load, &c));
  assert_int_equal(c.n_ways, 3);
  const double measured[] = {122.2, 133.3, 107.9},
               counted[] = {c.way[0].round_ms, c.way[1].round_ms, c.way[2].round_ms};
  for (int i = 0; i < 3; i++) print_message("%.1f ms, measured %.1f\n", counted[i], measured[i]);
  for (int i = 0; i < 3; i++) assert_true(counted[i] > 0.8 * measured[i] && counted[i] < 1.2 * measured[i]);
  assert_true(c.way[1].alone_ms > 0.8 * 7.9 && c.way[1].alone_ms < 1.2 * 7.9);
}

static void test_nothing_known(void **state) {
  weft_file_facts f = facts_26b(256);
  split_load load = {.n_running = 4, .n_tokens = 512};
  split_choice c;
  (void)state;
  split_machine m = machine_of(H200, 2, true);
  m.set = CARD_SETS;
  assert_false(split_choose(&f, &m, &load, &c));
  m = machine_of(H200, 2, true);
  m.memory_rate = 0;
  assert_false(split_choose(&f, &m, &load, &c));
  m = machine_of(H200, 1, true);
  assert_false(split_choose(&f, &m, &load, &c));
  m = machine_of(H200, 2, true);
  load.n_running = 0;
  assert_false(split_choose(&f, &m, &load, &c));
}

/* What has no room in shards may keep experts in host memory by layer. */
static void test_too_large(void **state) {
  weft_file_facts f = facts_70b();
  split_machine m = machine_of(RTX, 2, true);
  split_load load = {.n_running = 1, .n_tokens = 512};
  split_choice c;
  (void)state;
  f.weight_bytes *= 2;
  assert_true(split_choose(&f, &m, &load, &c));
  assert_int_equal(c.n_ways, 1);
  assert_int_equal(c.way[0].n_parts, 2);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_table),         cmocka_unit_test(test_parts_of_shards), cmocka_unit_test(test_measured),
      cmocka_unit_test(test_nothing_known), cmocka_unit_test(test_too_large),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
