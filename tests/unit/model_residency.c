/* SPDX-License-Identifier: MIT */
/* Experts of a model on a card that has room for some of them: whatever the room, those that lie there are the first in
 * the order in which weights are placed, and the plan says how far they go. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/memory.h"
#include "kernels/expert_room.h"
#include "kernels/host_experts.h"
#include "model/model_internal.h"
#include "model/residency.h"
#include "tests/support/fake_card.h"
#include "tests/support/split_of.h"

/* How many stacks of experts lie on the card; they are the first ones of the part's weights. */
static uint32_t count_here(const weft_model *model, uint32_t p, uint32_t *n) {
  const model_part *part = &model->part[p];
  uint32_t n_here = 0;
  *n = 0;
  for (uint32_t i = 0; i < part->n_weights; i++) {
    const weft_weight *w = &part->weights[i];
    if (w->n_mats == 1) {
      assert_false(weft_device_weight_is_away(part->device, w));
      assert_int_equal(*n, 0); /* experts come behind all others */
      continue;
    }
    if (!weft_device_weight_is_away(part->device, w)) {
      assert_int_equal(n_here, *n);
      n_here += 1;
    }
    *n += 1;
  }
  return n_here;
}

static void check_plan(const weft_model *model, uint32_t p, uint32_t n_here, uint32_t n) {
  weft_model_residency r = weft_model_get_residency(model, p);
  weft_text text = {0};
  char words[64];
  assert_int_equal(r.n, n);
  assert_int_equal(r.n_away, n - n_here);
  weft_model_print_residency(model, &text);
  (void)snprintf(words, sizeof words, "; %u of %u stacks lie on it, ", n_here, n);
  assert_int_equal(text.bytes != NULL && strstr(text.bytes, words) != NULL, n_here < n);
  (void)snprintf(words, sizeof words, "those from layer %u on in host memory", r.first_away);
  assert_int_equal(text.bytes != NULL && strstr(text.bytes, words) != NULL, n_here < n);
  for (uint32_t l = 0; n_here < n && l < model->hyper.n_layers; l++) {
    const weft_weight *down = &model->layers[l].down_exps;
    if (model_part_of(model, l) == p && down->data != NULL)
      assert_int_equal(weft_device_weight_is_away(model->part[p].device, down), l >= r.first_away);
  }
  weft_text_free(&text);
}

/* The model on cards that have room for experts_max bytes of experts each; how many stacks have room on the first. */
static uint32_t open_with(const char *file, uint32_t n_cards, uint64_t experts_max, uint64_t *experts_bytes) {
  char path[256];
  weft_gguf *gguf = NULL;
  weft_model *model = NULL;
  weft_error error = {{0}};
  weft_split split;
  fake_card *cards[2];
  const weft_model_limits limits = {.rows_max = 8, .canvas_rows_max = 8, .segments_max = 2};
  uint32_t n_here[2] = {0, 0}, n[2];
  (void)snprintf(path, sizeof path, WEFT_SOURCE_DIR "/tests/golden/models/%s.gguf", file);
  assert_int_equal(weft_gguf_open(path, &gguf, &error), WEFT_OK);
  assert_true(split_of(gguf, n_cards, 1, &split));
  for (uint32_t i = 0; i < n_cards; i++) {
    cards[i] = fake_card_open(false);
    cards[i]->streams = true;
    cards[i]->room.is_bounded = true;
    cards[i]->room.most = experts_max;
    split.device[i] = &cards[i]->base;
  }
  assert_int_equal(weft_model_open(gguf, &split, &limits, NULL, NULL, &model, &error), WEFT_OK);
  for (uint32_t p = 0; p < model->n_parts; p++) {
    n_here[p] = count_here(model, p, &n[p]);
    check_plan(model, p, n_here[p], n[p]);
  }
  *experts_bytes = weft_model_get_residency(model, 0).n_bytes;
  weft_model_close(model);
  for (uint32_t i = 0; i < n_cards; i++) weft_device_close(&cards[i]->base);
  weft_gguf_close(gguf);
  return n_here[0];
}

static void residents_are_a_prefix(void **state) {
  (void)state;
  static const char *const files[] = {"dg-deep", "qwen3moe-base"};
  for (uint32_t f = 0; f < 2; f++) {
    for (uint32_t n_cards = 1; n_cards <= 2; n_cards++) {
      uint64_t all, bytes;
      uint32_t before = 0, n_all = open_with(files[f], n_cards, UINT64_MAX / 4, &all), n_kinds = 0;
      for (uint32_t i = 0; i <= 32; i++) {
        uint32_t n_here = open_with(files[f], n_cards, 1 + all * i / 32, &bytes);
        assert_true(n_here >= before);
        n_kinds += n_here > before;
        before = n_here;
      }
      assert_int_equal(before, n_all);
      assert_true(n_kinds >= (n_all > EXPERT_ROOM_STACKS_PART ? 2 : 1)); /* a part of the room holds a stack, or none */
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(residents_are_a_prefix)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
