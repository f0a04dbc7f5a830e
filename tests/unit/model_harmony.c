/* SPDX-License-Identifier: MIT */
/* Answers in Harmony, parted into thinking, content and calls: token by token, by both ways of asking for the text, and
 * with the reader of calls behind it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/random.h"
#include "model/text/chat_internal.h"
#include "tests/support/tokenizer_fixture.h"

static const char template[] =
    "{% for m in messages %}{% if m.thinking %}<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>"
    "{% endif %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% if begun %}<|channel|>{{ begun }}<|message|>{% endif %}{% "
    "endif %}";

typedef struct world {
  tokenizer_fixture f;
  weft_tokenizer *t;
  weft_chat *chat;
} world;

static void world_open(world *w, bool all_tokens) {
  static const char *const specials[] = {"<|start|>",     "<|end|>",  "<|message|>", "<|channel|>",
                                         "<|constrain|>", "<|call|>", "<|return|>"};
  weft_error error = {{0}};
  memset(w, 0, sizeof *w);
  fixture_gpt2(&w->f, "gpt-4o");
  for (uint32_t i = all_tokens ? 0 : 1; i < 7; i++) (void)fixture_token(&w->f, specials[i], FIXTURE_CONTROL);
  gguf_writer_string(&w->f.writer, "tokenizer.chat_template", template);
  w->t = fixture_tokenizer(&w->f);
  if (weft_chat_open(w->f.gguf, w->t, (weft_bytes){0}, NULL, &w->chat, &error) != WEFT_OK) fail_msg("%s", error.text);
}

static void world_close(world *w) {
  weft_chat_close(w->chat);
  fixture_close(&w->f);
}

/* What was read: "[t]" before thinking, "[a]" before content, "[NAME]" before the arguments of a call, "[.]" or "[-]"
 * behind them, where they are whole or cut. */
typedef struct account {
  weft_text all;
  char last;
  weft_call_reader reader;
  bool reads_calls;
} account;

static void label(account *a, char kind) {
  if (a->last != kind) weft_text_printf(&a->all, "[%c]", kind);
  a->last = kind;
}

static void note_content(void *self, const char *text, size_t n) {
  label(self, 'a');
  weft_text_append(&((account *)self)->all, text, n);
}

static void note_begin(void *self, const char *name, size_t n) {
  account *a = self;
  a->last = 0;
  weft_text_puts(&a->all, "[");
  weft_text_append(&a->all, name, n);
  weft_text_puts(&a->all, "]");
}

static void note_arguments(void *self, const char *text, size_t n) {
  weft_text_append(&((account *)self)->all, text, n);
}

static void note_end(void *self, bool whole) {
  weft_text_puts(&((account *)self)->all, whole ? "[.]" : "[-]");
}

static void take(void *self, const char *text, size_t n, bool thinking) {
  account *a = self;
  const weft_call_sink sink = {a, note_content, note_begin, note_arguments, note_end};
  if (thinking) {
    label(a, 't');
    weft_text_append(&a->all, text, n);
  } else if (a->reads_calls) {
    assert_int_equal(weft_call_reader_push(&a->reader, text, n, &sink), WEFT_OK);
  } else {
    note_content(a, text, n);
  }
}

/* feeds: by the function that takes no memory, else by that which gives texts. */
static void read_answer(const world *w, const weft_tokens *tokens, bool calls, bool feeds, bool cut, account *a) {
  const weft_call_sink sink = {a, note_content, note_begin, note_arguments, note_end};
  weft_chat_stream s;
  weft_text chunk = {0};
  bool thinking = false;
  uint32_t n_ids, n_all = 0;
  memset(a, 0, sizeof *a);
  a->reads_calls = calls;
  weft_call_reader_open(&a->reader, weft_chat_call_form(w->chat), NULL, 0);
  weft_chat_stream_open(&s, w->chat, w->t, 0, weft_chat_starts_thinking(w->chat, tokens->ids, tokens->n));
  s.shows_calls = calls;
  if (feeds) assert_int_equal(weft_chat_stream_reserve(&s), WEFT_OK);
  size_t room = s.name.capacity;
  for (uint32_t i = 0; i < tokens->n; i++) {
    if (feeds) {
      assert_int_equal(weft_chat_stream_feed(&s, tokens->ids[i], take, a), WEFT_OK);
      continue;
    }
    weft_text_clear(&chunk);
    assert_int_equal(weft_chat_stream_push(&s, tokens->ids[i], &chunk, &thinking, &n_ids), WEFT_OK);
    n_all += n_ids;
    if (chunk.n > 0) take(a, chunk.bytes, chunk.n, thinking);
  }
  if (feeds) assert_int_equal(s.name.capacity, room);
  weft_text_clear(&chunk);
  assert_int_equal(weft_chat_stream_flush(&s, &chunk, &thinking, &n_ids), WEFT_OK);
  if (chunk.n > 0) take(a, chunk.bytes, chunk.n, thinking);
  if (!feeds) assert_int_equal(n_all + n_ids, tokens->n);
  if (calls) assert_int_equal(weft_call_reader_end(&a->reader, cut, &sink), WEFT_OK);
  weft_call_reader_close(&a->reader);
  weft_chat_stream_close(&s);
  weft_text_free(&chunk);
}

static void reads(const world *w, const char *text, bool calls, bool cut, const char *want) {
  weft_tokens tokens = {0};
  weft_error error;
  assert_int_equal(weft_tokenizer_encode(w->t, text, strlen(text), WEFT_ENCODE_PARSE_SPECIAL, &tokens, &error),
                   WEFT_OK);
  for (int feeds = 0; feeds < 2; feeds++) {
    account a;
    read_answer(w, &tokens, calls, feeds == 1, cut, &a);
    assert_string_equal(a.all.bytes == NULL ? "" : a.all.bytes, want);
    weft_text_free(&a.all);
  }
  weft_tokens_free(&tokens);
}

static void test_channels(void **state) {
  (void)state;
  world w;
  world_open(&w, true);
  assert_true(weft_chat_can_think(w.chat) && w.chat->thoughts == CHAT_THOUGHTS_HARMONY);
  assert_null(weft_chat_thought_open(w.chat));
  reads(&w,
        "<|channel|>analysis<|message|>why\n<|end|><|start|>assistant<|channel|>final<|message|>so\n\nthen<|return|>",
        false, false, "[t]why[a]so\n\nthen");
  reads(&w, "<|channel|>final<|message|>yes", false, false, "[a]yes");
  reads(&w, "<|channel|>commentary<|message|>first<|end|><|start|>assistant<|channel|>final<|message|>then", false,
        false, "[a]firstthen");
  reads(&w, "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b<|end|>", false,
        false, "[t]ab");
  reads(&w, "<|channel|>analysis<|message|>cut", false, true, "[t]cut");
  reads(&w, "<|channel|>anal", false, true, ""); /* a header that was cut off says nothing */
  /* answers without a header, as a format makes them; what could have been one; a message right away */
  reads(&w, "{\"a\":1}", false, false, "[a]{\"a\":1}");
  reads(&w, " to do", false, false, "[a] to do");
  reads(&w, " to", false, false, "[a] to");
  reads(&w, "<|message|>x", false, false, "[a]x");
  reads(&w, "plain<|end|><|start|>assistant<|channel|>final<|message|>more", false, false, "[a]plainmore");
  /* UTF-8 that a marker cuts */
  reads(&w, "<|channel|>analysis<|message|>\xC3\xA9<|end|><|start|>assistant<|channel|>final<|message|>\xE2\x82\xAC",
        false, false, "[t]\xC3\xA9[a]\xE2\x82\xAC");
  world_close(&w);
}

static void test_calls(void **state) {
  (void)state;
  world w;
  world_open(&w, true);
  reads(&w,
        "<|channel|>analysis<|message|>look<|end|><|start|>assistant<|channel|>commentary to=functions.get_time "
        "<|constrain|>json<|message|>{\"city\":\"Oslo\"}<|call|>",
        true, false, "[t]look[get_time]{\"city\":\"Oslo\"}[.]");
  reads(&w, " to=functions.f<|channel|>commentary json<|message|>{}<|call|>", true, false, "[f]{}[.]");
  reads(&w, "<|channel|>analysis to=functions.f-2 code<|message|>{\"a\":[1]}", true, false, "[f-2]{\"a\":[1]}[.]");
  reads(&w,
        "<|channel|>commentary<|message|>Wait. <|end|><|start|>assistant<|channel|>commentary "
        "to=functions.f<|message|>{}",
        true, false, "[a]Wait.[f]{}[.]");
  reads(&w,
        "<|channel|>commentary to=functions.f<|message|>{}<|end|><|start|>assistant to=functions.g<|channel|>commentary"
        "<|message|>{\"b\":2}",
        true, false, "[f]{}[.][g]{\"b\":2}[.]");
  /* calls that a grammar holds, at the beginning and in a message */
  reads(&w, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1}}</tool_call>", true, false, "[f]{\"a\":1}[.]");
  reads(&w, "<|channel|>final<|message|><tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>", true, false,
        "[f]{}[.]");
  /* the answer is cut off within the arguments; arguments that the model left open */
  reads(&w, "<|channel|>commentary to=functions.f<|message|>{\"a\":\"b", true, true, "[f]{\"a\":\"b[-]");
  reads(&w, "<|channel|>commentary to=functions.f<|message|>{\"a\":\"b\"", true, false, "[f]{\"a\":\"b\"}[.]");
  /* where calls are not looked for they are text; another recipient is none of the client's functions */
  reads(&w, "<|channel|>commentary to=functions.f<|message|>{}", false, false, "[a]{}");
  reads(&w, "<|channel|>analysis to=python<|message|>1+1", true, false, "[t]1+1");
  world_close(&w);
}

static void test_headers_that_never_end(void **state) {
  (void)state;
  world w;
  world_open(&w, true);
  char text[4096] = "<|channel|>", want[1024] = "[a]<|channel|>";
  for (int i = 0; i < 400; i++) strcat(text, "n");
  for (int i = 0; i < 400; i++) strcat(want, "n");
  reads(&w, text, false, false, want);
  text[0] = 0;
  for (int i = 0; i < 200; i++) strcat(text, "<|channel|>");
  strcat(text, "analysis<|message|>x");
  reads(&w, text, false, false, "[t]x");
  world_close(&w);
}

static void prompts(const world *w, const char *variables, bool starts, const char *want) {
  const weft_chat_message m[] = {
      {.role = "user", .content = "hi", .n_content = 2},
      {.role = "assistant", .content = "so", .n_content = 2, .thinking = "<|end|> why", .n_thinking = 11},
      {.role = "user", .content = "and", .n_content = 3}};
  const weft_chat_options options = {.add_generation_prompt = true, .variables = variables};
  weft_tokens tokens = {0};
  weft_text text = {0};
  weft_error error;
  if (weft_chat_render(w->chat, m, 3, &options, &tokens, NULL, &error) != WEFT_OK) fail_msg("%s", error.text);
  assert_int_equal(weft_tokenizer_decode(w->t, tokens.ids, tokens.n, true, &text), WEFT_OK);
  assert_string_equal(text.bytes, want);
  assert_true(weft_chat_starts_thinking(w->chat, tokens.ids, tokens.n) == starts);
  weft_text_free(&text);
  weft_tokens_free(&tokens);
}

/* Thinking of earlier turns, which the template calls so; and prompts that begin the answer's message. */
static void test_prompts(void **state) {
  (void)state;
  world w;
  world_open(&w, true);
#define TURNS                                                                                                    \
  "<|start|>user<|message|>hi<|end|><|start|>assistant<|channel|>analysis<|message|><|end|> why<|end|><|start|>" \
  "assistant<|message|>so<|end|><|start|>user<|message|>and<|end|><|start|>assistant"
  prompts(&w, NULL, false, TURNS);
  prompts(&w, "{\"begun\":\"final\"}", false, TURNS "<|channel|>final<|message|>");
  prompts(&w, "{\"begun\":\"analysis\"}", true, TURNS "<|channel|>analysis<|message|>");
  world_close(&w);
}

/* Markers and texts in any order: both ways of asking give the same, every token is accounted for, and arguments of calls
 * end. */
static void test_any_order(void **state) {
  static const char *const parts[] = {
      "<|start|>", "<|end|>", "<|message|>", "<|channel|>",     "<|constrain|>", "assistant",
      "analysis",  "final",   "commentary",  " to=functions.f", " to=",          "{\"a\":\"\xC3\xA9\"}",
      "\n\n",      "json",    "<tool_call>", "}</tool_call>",   "x y",           "\"",
      "{"};
  (void)state;
  world w;
  world_open(&w, true);
  for (uint32_t round = 0; round < 3000; round++) {
    weft_draw_key key = {.seed = round, .purpose = WEFT_DRAW_TEST};
    weft_text text = {0};
    weft_tokens tokens = {0};
    weft_error error;
    account got[2];
    uint64_t n = 1 + weft_draw_bits(&key) % 24;
    while (key.position++ < n) weft_text_puts(&text, parts[weft_draw_bits(&key) % (sizeof parts / sizeof *parts)]);
    assert_int_equal(weft_tokenizer_encode(w.t, text.bytes, text.n, WEFT_ENCODE_PARSE_SPECIAL, &tokens, &error),
                     WEFT_OK);
    for (uint32_t i = 0; i < 2; i++) read_answer(&w, &tokens, round % 2 == 0, i == 1, round % 3 == 0, &got[i]);
    assert_string_equal(got[0].all.bytes == NULL ? "" : got[0].all.bytes,
                        got[1].all.bytes == NULL ? "" : got[1].all.bytes);
    for (uint32_t i = 0; i < 2; i++) weft_text_free(&got[i].all);
    weft_tokens_free(&tokens);
    weft_text_free(&text);
  }
  world_close(&w);
}

/* Without all of its tokens a vocabulary is of another model, and what there is of them is text. */
static void test_needs_its_tokens(void **state) {
  (void)state;
  world w;
  world_open(&w, false);
  assert_int_equal(w.chat->thoughts, CHAT_THOUGHTS_NONE);
  reads(&w, "<|channel|>final<|message|>x", false, false, "[a]<|channel|>final<|message|>x");
  world_close(&w);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_channels), cmocka_unit_test(test_calls),     cmocka_unit_test(test_headers_that_never_end),
      cmocka_unit_test(test_prompts),  cmocka_unit_test(test_any_order), cmocka_unit_test(test_needs_its_tokens),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
