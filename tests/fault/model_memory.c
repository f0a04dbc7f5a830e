/* SPDX-License-Identifier: MIT */
/* Every allocation of what weft_open does not reach, refused once: runners, models in shards, logits, inspection, prompts of chats. Each
 * refusal is a status (and a line, where there is one), leaves nothing behind (the address sanitizer sees), and the
 * next call works. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "model/inspect.h"
#include "model/logits.h"
#include "model/runner/device_runner.h"
#include "model/text/chat.h"
#include "tests/support/refuse_each.h"
#include "tests/support/tiny_model.h"

typedef struct world {
  tiny_model tiny;
  weft_kv_layout layout;
  weft_kv_store *store;
} world;

static const weft_model_limits limits = {.rows_max = 16, .canvas_rows_max = 16, .segments_max = 4};

static void world_open(world *w) {
  weft_error error = {{0}};
  tiny_model_open(&w->tiny, &limits);
  const weft_kv_geometry *geometry = &weft_model_get_info(w->tiny.model)->kv;
  assert_int_equal(weft_kv_layout_choose(&geometry, 1, 0, &w->layout, &error), WEFT_OK);
  const weft_split split = weft_split_one(w->tiny.device);
  assert_int_equal(weft_kv_store_open(&split, &w->layout, 8, &w->store, &error), WEFT_OK);
}

static void world_close(world *w) {
  weft_kv_store_close(w->store);
  tiny_model_close(&w->tiny);
}

static void refuse_in_world(const char *what, weft_status (*act)(void *self, weft_error *error), bool has_line) {
  world w;
  world_open(&w);
  print_message("%s: %llu refused\n", what, (unsigned long long)refuse_each(act, &w, has_line));
  world_close(&w);
}

static weft_status open_runner(void *self, weft_error *error) {
  world *w = self;
  static const int32_t suppressed[] = {3};
  weft_device_runner_config config = {.model = w->tiny.model,
                                      .store = w->store,
                                      .layout = &w->layout,
                                      .name = "x",
                                      .limits = limits,
                                      .n_slots = 3,
                                      .seq_tokens_max = 64,
                                      .suppressed = suppressed,
                                      .n_suppressed = 1};
  weft_runner *runner;
  uint64_t n_bytes = 0;
  weft_status status = weft_device_runner_open(&config, &runner, &n_bytes, error);
  assert_true((status == WEFT_OK) == (runner != NULL));
  if (runner != NULL) runner->ops->close(runner);
  return status;
}

typedef struct shards_world {
  weft_gguf *gguf;
  weft_split split;
} shards_world;

static weft_status open_shards(void *self, weft_error *error) {
  shards_world *w = self;
  weft_model *model = NULL;
  weft_status status = weft_model_open(w->gguf, &w->split, &limits, NULL, NULL, &model, error);
  assert_true((status == WEFT_OK) == (model != NULL));
  weft_model_close(model);
  return status;
}

static void test_shards(void **state) {
  (void)state;
  shards_world w = {.split = {.n_devices = 2, .n_shards = 2}};
  weft_error error = {{0}};
  const weft_device_config config = {.backend = "cpu", .n_threads = 1};
  assert_int_equal(weft_gguf_open(WEFT_SOURCE_DIR "/tests/golden/models/dg-deep.gguf", &w.gguf, &error), WEFT_OK);
  for (uint32_t i = 0; i < 2; i++) assert_int_equal(weft_device_open(&config, &w.split.device[i], &error), WEFT_OK);
  print_message("model in shards: %llu refused\n", (unsigned long long)refuse_each(open_shards, &w, true));
  for (uint32_t i = 0; i < 2; i++) weft_device_close(w.split.device[i]);
  weft_gguf_close(w.gguf);
}

static void test_runner(void **state) {
  (void)state;
  refuse_in_world("runner", open_runner, true);
}

static int keep_rows(void *self, const weft_logits_row *row, uint32_t n_rows, const float *logits, uint32_t n_vocab) {
  float *sum = self;
  (void)row;
  *sum += logits[(uint64_t)n_rows * n_vocab - 1];
  return 0;
}

static weft_status make_logits(void *self, weft_error *error) {
  world *w = self;
  static const int32_t tokens[20] = {2, 7, 9, 30, 41}, canvas[8] = {5, 6, 7};
  static float previous[8 * 128];
  float sum = 0.0f;
  const weft_model_info *info = weft_model_get_info(w->tiny.model);
  assert_true(info->n_vocab == 128 && info->canvas_length == 8);
  weft_logits_config config = {
      .model = w->tiny.model, .limits = limits, .tokens_max = 20, .sequences_max = 1, .head_rows = 3};
  weft_logits_sequence sequence = {.tokens = tokens,
                                   .n_tokens = 20,
                                   .first = 20,
                                   .canvas = canvas,
                                   .n_canvases = 1,
                                   .previous = previous,
                                   .previous_temperature = 0.7f};
  weft_logits *logits = NULL;
  weft_status status = weft_logits_open(&config, &logits, error);
  if (status == WEFT_OK) status = weft_logits_run(logits, &sequence, 1, keep_rows, &sum, error);
  weft_logits_close(logits);
  assert_true(status != WEFT_OK || sum != 0.0f);
  return status;
}

static void test_logits(void **state) {
  (void)state;
  refuse_in_world("logits", make_logits, true);
}

static weft_status inspect(void *self, weft_error *error) {
  world *w = self;
  weft_text text = {0};
  weft_status status = weft_inspect(w->tiny.gguf, true, &text, error);
  weft_text_free(&text);
  return status;
}

static void test_inspect(void **state) {
  (void)state;
  refuse_in_world("inspect", inspect, false);
}

typedef struct talk {
  weft_tokenizer *tokenizer;
  weft_chat *chat;
} talk;

static weft_status render(void *self, weft_error *error) {
  talk *t = self;
  static const weft_chat_message messages[] = {
      {.role = "system", .content = "Be brief.", .n_content = 9},
      {.role = "user", .content = "What is <bos> \xE2\x82\xAC 12?", .n_content = 20},
      {.role = "assistant", .content = "Nothing.", .n_content = 8, .thinking = "Hm.", .n_thinking = 3},
      {.role = "user", .content = "Why?", .n_content = 4},
  };
  weft_chat_options options = {.thinking = true, .add_generation_prompt = true};
  weft_tokens tokens = {0};
  weft_status status = weft_tokens_push(&tokens, 7); /* what was there stays */
  if (status == WEFT_OK) status = weft_chat_render(t->chat, messages, 4, &options, &tokens, NULL, error);
  assert_true(tokens.n == 0 || tokens.ids[0] == 7);
  assert_true(status != WEFT_OK ? tokens.n <= 1 : tokens.n > 20);
  weft_tokens_free(&tokens);
  return status;
}

static weft_status read_stream(void *self, weft_error *error) {
  talk *t = self;
  weft_chat_stream stream;
  weft_text out = {0};
  bool thinking;
  (void)error;
  weft_chat_stream_open(&stream, t->chat, t->tokenizer, 0, true);
  weft_status status = WEFT_OK;
  for (int32_t id = 5; id < 300 && status == WEFT_OK; id++) {
    status = weft_chat_stream_push(&stream, id, &out, &thinking, NULL);
  }
  if (status == WEFT_OK) status = weft_chat_stream_flush(&stream, &out, &thinking, NULL);
  weft_chat_stream_close(&stream);
  weft_text_free(&out);
  return status;
}

static void test_chat(void **state) {
  (void)state;
  talk t;
  weft_gguf *gguf;
  weft_error error = {{0}};
  assert_int_equal(weft_gguf_open(WEFT_SOURCE_DIR "/model/demo/weft-demo.gguf", &gguf, &error), WEFT_OK);
  assert_int_equal(weft_tokenizer_open(gguf, &t.tokenizer, &error), WEFT_OK);
  assert_int_equal(weft_chat_open(gguf, t.tokenizer, (weft_bytes){0}, NULL, &t.chat, &error), WEFT_OK);
  print_message("prompt of a chat: %llu refused\n", (unsigned long long)refuse_each(render, &t, false));
  print_message("stream of an answer: %llu refused\n", (unsigned long long)refuse_each(read_stream, &t, false));
  weft_chat_close(t.chat);
  weft_tokenizer_close(t.tokenizer);
  weft_gguf_close(gguf);
}

int main(void) {
  weft_log_set_level(WEFT_LOG_ERROR);
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_runner), cmocka_unit_test(test_shards),
                                     cmocka_unit_test(test_logits), cmocka_unit_test(test_inspect),
                                     cmocka_unit_test(test_chat)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
