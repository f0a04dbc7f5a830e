/* SPDX-License-Identifier: MIT */
/* weft plan: the pool that it names holds the users that it is named for, and no pool much smaller does; larger needs
 * never need less. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "api/cli/plan.h"
#include "api/runtime.h"
#include "api/step_times.h"
#include "base/memory.h"
#include "tests/support/gguf_edit.h"

#define KEPT_FILE WEFT_SOURCE_DIR "/tests/golden/models/qwen3-base.gguf"
#define KEPT      "blk.0.ffn_down.weight"
static const char demo[] = WEFT_SOURCE_DIR "/model/demo/weft-demo.gguf";

static weft_file_facts *facts_of(const char *path) {
  weft_gguf *gguf = NULL;
  weft_file_facts *facts = NULL;
  weft_error error = {{0}};
  if (weft_gguf_open(path, &gguf, &error) != WEFT_OK || weft_inspect_facts(gguf, &facts, &error) != WEFT_OK)
    fail_msg("%s", error.text);
  weft_gguf_close(gguf);
  return facts;
}

static const plan_card machine = {.title = "a processor", .memory_bytes = 1ull << 30};

static plan_result plan(const weft_file_facts *facts, const plan_card *card, plan_need need) {
  plan_result r;
  weft_error error = {{0}};
  if (plan_compute(facts, card, &need, &r, &error) != WEFT_OK) fail_msg("%s", error.text);
  return r;
}

/* How many requests of the context the server itself would say run at once. */
static uint32_t room_of(uint64_t kv_bytes, uint32_t context, uint32_t users) {
  static const char *const models[] = {demo};
  char line[512];
  weft_runtime *rt = NULL;
  const weft_open_options options = {.models = models,
                                     .n_models = 1,
                                     .backend = "cpu",
                                     .threads = 1,
                                     .kv_bytes = kv_bytes,
                                     .context = context,
                                     .running = users,
                                     .quiet = true};
  if (weft_open(&options, &rt, line, sizeof line) != 0) fail_msg("%s", line);
  uint32_t room = weft_engine_room(weft_replicas_at(rt->replicas, 0), 0, context);
  weft_close(rt);
  return room;
}

static void the_pool_holds_the_users(void **state) {
  static const plan_need needs[] = {{1, 100, 28}, {3, 500, 40}, {8, 1000, 500}, {32, 200, 56}, {64, 1500, 500}};
  weft_file_facts *facts = facts_of(demo);
  (void)state;
  for (size_t i = 0; i < sizeof needs / sizeof *needs; i++) {
    plan_result r = plan(facts, &machine, needs[i]);
    uint32_t context = needs[i].n_prompt + needs[i].n_answer;
    assert_true(r.fits);
    assert_int_equal(room_of(r.pool_bytes, context, needs[i].users), needs[i].users);
    assert_int_equal(room_of(r.kv_mib << 20, context, needs[i].users), needs[i].users);
    if (needs[i].users > 1) assert_true(room_of(r.pool_bytes - r.page_bytes, context, needs[i].users) < needs[i].users);
  }
  weft_free(facts);
}

static void more_needs_more(void **state) {
  weft_file_facts *facts = facts_of(demo);
  plan_result before = {0};
  (void)state;
  for (uint32_t users = 1; users <= 512; users *= 2) {
    plan_result r = plan(facts, &machine, (plan_need){users, 512, 128});
    assert_true(r.pool_bytes > before.pool_bytes && r.user_bytes > 0);
    before = r;
  }
  plan_card small = machine;
  small.memory_bytes = facts->weight_bytes;
  plan_result none = plan(facts, &small, (plan_need){1, 512, 128});
  assert_false(none.fits);
  assert_int_equal(none.streams, 0);
  small.memory_bytes = before.pool_bytes + facts->weight_bytes + before.reserve_bytes + (2 << 20);
  plan_result just = plan(facts, &small, (plan_need){512, 512, 128});
  assert_true(just.fits && just.streams >= 512);
  weft_free(facts);
}

static void what_does_not_fit_the_model_is_refused(void **state) {
  weft_file_facts *facts = facts_of(demo);
  plan_result r;
  weft_error error = {{0}};
  const plan_need need = {1, facts->context_length, 1};
  (void)state;
  assert_int_equal(plan_compute(facts, &machine, &need, &r, &error), WEFT_E_INVALID);
  assert_non_null(strstr(error.text, "more than the model's context of 2048"));
  weft_free(facts);
}

/* On cards: a floor is never above what the card could do, and more users are never served at a lower rate in all. */
static void rates_follow_the_card(void **state) {
  weft_file_facts *facts = facts_of(demo);
  weft_error error = {{0}};
  const plan_card *h200 = plan_find_card("H200", &error), *h100 = plan_find_card("h100-pcie", &error);
  double before = 0;
  (void)state;
  assert_null(plan_find_card("abacus", &error));
  assert_non_null(strstr(error.text, "which has h100, h100-pcie"));
  assert_null(plan_find_card("rtx-4091", &error));
  assert_non_null(strstr(error.text, ": did you mean rtx-4090?"));
  assert_null(plan_find_card("100", &error)); /* h100, a100 and others */
  assert_null(plan_find_card("-", &error));
  static const char *const written[][2] = {
      {"4090", "rtx-4090"},     {"rtx4090", "rtx-4090"},    {"RTX 4090", "rtx-4090"}, {"RTX_4090", "rtx-4090"},
      {"h100", "h100"},         {"H100 PCIe", "h100-pcie"}, {"NVIDIA H200", "h200"},  {"GeForce RTX 5090", "rtx-5090"},
      {"a100 40GB", "a100-40"}, {"GH200-144", "gh200-144"}};
  for (size_t i = 0; i < sizeof written / sizeof *written; i++) {
    const plan_card *card = plan_find_card(written[i][0], &error);
    assert_non_null(card);
    assert_string_equal(card->name, written[i][1]);
  }
  for (uint32_t users = 1; users <= 256; users *= 2) {
    plan_result r = plan(facts, h200, (plan_need){users, 512, 128}),
                slower = plan(facts, h100, (plan_need){users, 512, 128});
    assert_true(r.exact.decode > before && r.exact.decode < r.decode_floor);
    assert_true(slower.exact.decode < r.exact.decode && slower.exact.canvas_ms > r.exact.canvas_ms);
    assert_true(r.exact.canvas_ms > r.canvas_floor_ms && r.canvas_floor_ms > 0);
    before = r.exact.decode;
  }
  const plan_card old = {
      .title = "an old card", .memory_bytes = 1ull << 33, .memory_rate = 1e12, .product_rate = 1e14, .capability = 75};
  plan_result none = plan(facts, &old, (plan_need){1, 512, 128});
  assert_false(none.has_kernels);
  assert_true(none.exact.decode == 0);
  assert_true(plan(facts, &machine, (plan_need){1, 512, 128}).exact.decode == 0);
  weft_free(facts);
}

/* Where weights and the pool leave room, steps that nobody waits for are larger, and their activations are counted. */
static void large_steps_take_room(void **state) {
  weft_file_facts *facts = facts_of(demo);
  const plan_need need = {4, 512, 128}, many = {600, 512, 128};
  plan_card card = {.title = "a card", .memory_bytes = 80ull << 30, .capability = 90};
  (void)state;
  plan_result large = plan(facts, &card, need);
  assert_int_equal(large.rows, 8192);
  assert_int_equal(large.rows_beside, 2048);
  assert_int_equal(plan(facts, &card, many).rows_beside, 4096);
  card.memory_bytes = 40ull << 30;
  plan_result small = plan(facts, &card, need);
  assert_int_equal(small.rows, 2048);
  assert_int_equal(small.rows_bytes, 0);
  assert_true(large.rows_bytes > 0);
  assert_int_equal(large.reserve_bytes, small.reserve_bytes + large.rows_bytes);
  assert_int_equal(plan(facts, &machine, need).rows, 512);
  weft_free(facts);
}

/* Every card of the table is found by its name and by its title, gets the set of its capability, and is predicted by
 * its own figures: a card with both higher rates than another of the same set is never slower. */
static void every_card_of_the_table_is_predicted(void **state) {
  weft_file_facts *facts = facts_of(demo);
  weft_error error = {{0}};
  const plan_need need = {4, 512, 128};
  (void)state;
  for (uint32_t i = 0; plan_card_at(i) != NULL; i++) {
    const plan_card *a = plan_card_at(i);
    assert_ptr_equal(plan_find_card(a->name, &error), a);
    assert_ptr_equal(plan_find_card(a->title, &error), a);
    assert_int_equal(plan_set_of(a), a->capability == 90 ? CARD_SET_HOPPER : CARD_SET_PORTABLE);
    plan_result mine = plan(facts, a, need);
    assert_true(mine.has_kernels && mine.exact.decode > 0 && mine.exact.canvas_ms > mine.canvas_floor_ms);
    assert_true(mine.fast.decode > 0 && mine.fast.prefill > 0 && mine.fast.canvas_ms > 0);
    for (uint32_t j = 0; plan_card_at(j) != NULL; j++) {
      const plan_card *b = plan_card_at(j);
      if (plan_set_of(a) != plan_set_of(b) || a->memory_rate < b->memory_rate || a->product_rate < b->product_rate)
        continue;
      plan_result other = plan(facts, b, need);
      assert_true(mine.exact.decode >= other.exact.decode && mine.exact.canvas_ms <= other.exact.canvas_ms);
      if (a->capability != b->capability ||
          (strstr(a->title, "GeForce") == NULL) != (strstr(b->title, "GeForce") == NULL))
        continue;
      assert_true(mine.fast.decode >= other.fast.decode && mine.fast.canvas_ms <= other.fast.canvas_ms);
    }
  }
  weft_free(facts);
}

/* Tera-operations of 8 bits a second by the makers' data sheets, of dense products. */
static void integers_have_the_rate_of_the_card(void **state) {
  static const struct {
    const char *card;
    double tera;
  } sheets[] = {{"rtx-4090", 660}, {"l40s", 733}, {"a100", 624}, {"rtx-3090", 284}, {"rtx-5090", 838}, {"h200", 1979}};
  weft_error error = {{0}};
  (void)state;
  for (size_t i = 0; i < sizeof sheets / sizeof *sheets; i++) {
    const plan_card *card = plan_find_card(sheets[i].card, &error);
    double tera = 1e-12 * step_integer_rate(card->title, card->product_rate);
    assert_true(tera > 0.97 * sheets[i].tera && tera < 1.03 * sheets[i].tera);
  }
}

/* A card keeps Q4_1 with the room of Q5_1, and a processor as it is stored (docs/kernels.md). */
static void weights_are_counted_as_they_are_kept(void **state) {
  (void)state;
  const gguf_edit edit = {.quantise = KEPT, .type = WEFT_TYPE_Q4_1};
  weft_error error = {{0}};
  const plan_need need = {1, 8, 8};
  weft_file_facts *stored = facts_of(KEPT_FILE), *facts = facts_of(gguf_edit_file(KEPT_FILE, &edit, "kept"));
  const uint64_t n = (stored->weight_bytes - facts->weight_bytes) / (4 * 32 - 20); /* blocks */
  assert_true(n > 0 && facts->on_host.experts + facts->on_host.others == 0);
  assert_int_equal(facts->on_card.others, n * (24 - 20));
  assert_int_equal(plan(facts, &machine, need).weight_bytes, facts->weight_bytes);
  assert_int_equal(plan(facts, plan_find_card("h200", &error), need).weight_bytes, facts->weight_bytes + n * 4);
  facts->on_card.experts = 1ull << 40; /* more than any card has */
  assert_false(plan(facts, plan_find_card("h200", &error), need).fits);
  assert_true(plan(facts, &machine, need).fits);
  weft_free(stored);
  weft_free(facts);
  gguf_edit_clean();
}

/* Matrices of heads are held in f32, whatever their type in the file. */
static void matrices_of_heads_are_counted_in_f32(void **state) {
  (void)state;
  static const char file[] = WEFT_SOURCE_DIR "/tests/golden/models/deepseek2-base.gguf";
  const gguf_edit edit = {.quantise = "blk.1.attn_v_b.weight", .type = WEFT_TYPE_BF16};
  weft_file_facts *facts = facts_of(gguf_edit_file(file, &edit, "heads"));
  assert_int_equal(facts->on_card.others, 24 * 8 * 3 * 2);
  assert_int_equal(facts->on_host.others, 24 * 8 * 3 * 2);
  weft_free(facts);
  gguf_edit_clean();
}

/* DiffusionGemma 26B in Q4_K_M, as weft_inspect_facts counts it. */
static weft_file_facts *facts_of_26b(void) {
  weft_file_facts *f = facts_of(demo);
  f->weight_bytes = 18367042800ull;
  f->expert_bytes = 16652697600ull;
  f->canvas_bytes = 10790912;
  f->embedding_bytes = 0;
  f->n_expert_weights = 22837985280ull;
  f->n_other_weights = 2395156796ull;
  f->n_experts = 128;
  f->n_experts_used = 8;
  f->canvas_length = 256;
  f->n_layers = 30;
  return f;
}

static void assert_within_a_quarter(double foretold, double measured) {
  assert_true(foretold > measured / 1.25 && foretold < measured * 1.25);
}

/* The records that the times of a set come from (bench/results/h200.json, in 8 bits h200-defaults.json): what is
 * foretold of the same shapes lies within a quarter of what was measured, also for counts that no number was taken
 * from. */
static void the_measured_card_is_foretold(void **state) {
  weft_file_facts *f = facts_of_26b();
  weft_error error = {{0}};
  (void)state;
  const struct {
    uint32_t users;
    double decode, canvas_ms;
  } measured[] = {{1, 584, 11.48}, {2, 908, 19.0}, {4, 1273, 31.6}, {8, 2001, 57}, {16, 3188, 109}, {32, 5112, 210}};
  for (size_t i = 0; i < sizeof measured / sizeof *measured; i++) {
    plan_result r = plan(f, plan_find_card("h200", &error), (plan_need){measured[i].users, 512, 32});
    assert_within_a_quarter(r.exact.decode, measured[i].decode);
    assert_within_a_quarter(r.exact.canvas_ms, measured[i].canvas_ms);
  }
  const struct {
    uint32_t users;
    double decode, canvas_ms;
  } fast[] = {{1, 557, 9.69}, {2, 873, 13.98}, {4, 1391, 21.2}, {8, 2029, 36.3}, {16, 3389, 66.1}, {32, 5552, 125.2}};
  for (size_t i = 0; i < sizeof fast / sizeof *fast; i++) { /* h200-defaults.json */
    plan_result decode = plan(f, plan_find_card("h200", &error), (plan_need){fast[i].users, 256, 64}),
                canvas = plan(f, plan_find_card("h200", &error), (plan_need){fast[i].users, 512, 32});
    assert_within_a_quarter(decode.fast.decode, fast[i].decode);
    assert_within_a_quarter(canvas.fast.canvas_ms, fast[i].canvas_ms);
  }
  const step_times_eight *t = step_times_eight_of(CARD_SET_PORTABLE); /* which an H200 gets where it is forced */
  const double rate = step_integer_rate("NVIDIA H200", 989e12);
  static const double portable[][2] = {{1, 403.3}, {2, 638.2}, {4, 966.1}, {8, 1735}, {16, 2747}, {32, 4328}};
  for (size_t i = 0; i < sizeof portable / sizeof *portable; i++) {
    double n = portable[i][0], floor = step_floor(f, 4.8e12, rate, n, 0, false);
    assert_within_a_quarter(n / (1e-6 * t->decode_layer_us * f->n_layers + t->decode_times * floor), portable[i][1]);
  }
  assert_within_a_quarter(plan(f, plan_find_card("h200", &error), (plan_need){1, 2000, 1}).fast.prefill, 72075);
  weft_free(f);
}

/* Layers whose rows are keys and values at once have more kernels: of GLM-4.7-Flash and DeepSeek-V4-Flash, with the
 * sizes that their files have on a card, what is foretold lies within a quarter of what was measured, too. */
static void layers_with_more_kernels_are_foretold(void **state) {
  weft_file_facts *f = facts_of_26b();
  weft_error error = {{0}};
  (void)state;
  const struct {
    uint64_t weights, experts, embedding, n_expert_weights, n_other_weights;
    uint32_t n_layers, n_experts, n_used, window, users;
    double decode;
  } measured[] = {
      {20118039040, 18015584256, 178421760, 27783069696, 1843129984, 47, 64, 4, 0, 1, 188.5},
      {20118039040, 18015584256, 178421760, 27783069696, 1843129984, 47, 64, 4, 0, 8, 897.7},
      {122289355100, 113984405504, 562626560, 277025390592, 6779646039, 43, 256, 6, 128, 1, 98.7},
  };
  f->canvas_length = f->canvas_bytes = 0;
  for (size_t i = 0; i < sizeof measured / sizeof *measured; i++) {
    f->weight_bytes = measured[i].weights, f->expert_bytes = measured[i].experts;
    f->embedding_bytes = measured[i].embedding, f->n_expert_weights = measured[i].n_expert_weights;
    f->n_other_weights = measured[i].n_other_weights, f->n_layers = measured[i].n_layers;
    f->n_experts = measured[i].n_experts, f->n_experts_used = measured[i].n_used;
    f->geometry = (weft_kv_geometry){.n_layers = f->n_layers, .n_sets = f->n_layers};
    for (uint32_t l = 0; l < f->n_layers; l++)
      f->geometry.set[l] = (weft_kv_set){
          .rows = {.positions = 1, .values_are_keys = true}, .window = measured[i].window, .layer = (uint16_t)l};
    plan_result r = plan(f, plan_find_card("h200", &error), (plan_need){measured[i].users, 1900, 64});
    const plan_rates *rates = measured[i].window == 0 ? &r.fast : &r.exact; /* as it was measured */
    assert_within_a_quarter(rates->decode, measured[i].decode);
  }
  for (uint32_t l = 0; l < f->n_layers; l++) f->geometry.set[l].from_border = true; /* rows beside a state */
  assert_true(plan(f, plan_find_card("h200", &error), (plan_need){1, 1900, 64}).exact.decode > 2 * 98.7);
  weft_free(f);
}

/* Tables that tokens look up count as weights of a processor; a card leaves them in host memory. */
static void tables_stay_in_host_memory(void **state) {
  static const struct {
    const char *file;
    uint64_t n_bytes; /* rows of 4 numbers in f32 */
  } files[] = {{WEFT_SOURCE_DIR "/tests/golden/models/deepseek41-base.gguf", (36 + 88) * 4 * 4},
               {WEFT_SOURCE_DIR "/tests/golden/models/deepseek41-deep.gguf", 72 * 4 * 4}};
  const plan_need need = {1, 16, 16};
  weft_error error = {{0}};
  (void)state;
  for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
    weft_file_facts *f = facts_of(files[i].file);
    assert_int_equal(f->table_bytes, files[i].n_bytes);
    assert_true(f->embedding_bytes > f->table_bytes);
    assert_int_equal(plan(f, &machine, need).weight_bytes, f->weight_bytes);
    assert_int_equal(plan(f, plan_find_card("h200", &error), need).weight_bytes, f->weight_bytes - f->table_bytes);
    weft_free(f);
  }
}

/* What a card holds besides weights and pool is never less than what was measured on an H200 with the portable set, and
 * hardly more: activations of 2048 rows, and slots with the head (weft serve -v). */
static void what_was_taken_is_reserved(void **state) {
  static const struct {
    uint32_t n_hidden, n_vocab, canvas, users;
    double steps_mib, slots_mib;
  } measured[] = {{2816, 262144, 256, 4, 548.0, 468.9}, {2880, 201088, 0, 8, 438.2, 133.6}};
  weft_file_facts *f = facts_of(demo);
  weft_error error = {{0}};
  const double mib = 1 << 20;
  (void)state;
  assert_in_range(f->between_bytes, 16 << 20, 17 << 20); /* all its weights are small */
  for (size_t i = 0; i < sizeof measured / sizeof *measured; i++) {
    f->n_hidden = measured[i].n_hidden;
    f->n_vocab = measured[i].n_vocab;
    f->canvas_length = measured[i].canvas;
    const plan_result r = plan(f, plan_find_card("rtx-3090", &error), (plan_need){measured[i].users, 512, 128});
    const double steps = (double)r.reserve.steps / mib, slots = (double)r.reserve.slots / mib;
    assert_true(steps >= measured[i].steps_mib && steps < 1.3 * measured[i].steps_mib);
    assert_true(slots >= measured[i].slots_mib && slots < measured[i].slots_mib + 300);
    assert_true(r.reserve.driver >= 592 * mib);
    assert_int_equal(r.reserve_bytes, r.reserve.driver + r.reserve.between + r.reserve.steps + r.reserve.slots);
    assert_true(plan(f, plan_find_card("h100", &error), (plan_need){measured[i].users, 512, 128}).reserve.slots >=
                r.reserve.slots);
  }
  weft_free(f);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(what_was_taken_is_reserved),
      cmocka_unit_test(the_pool_holds_the_users),
      cmocka_unit_test(more_needs_more),
      cmocka_unit_test(what_does_not_fit_the_model_is_refused),
      cmocka_unit_test(rates_follow_the_card),
      cmocka_unit_test(large_steps_take_room),
      cmocka_unit_test(every_card_of_the_table_is_predicted),
      cmocka_unit_test(integers_have_the_rate_of_the_card),
      cmocka_unit_test(the_measured_card_is_foretold),
      cmocka_unit_test(layers_with_more_kernels_are_foretold),
      cmocka_unit_test(weights_are_counted_as_they_are_kept),
      cmocka_unit_test(matrices_of_heads_are_counted_in_f32),
      cmocka_unit_test(tables_stay_in_host_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
