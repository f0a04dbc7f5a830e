/* SPDX-License-Identifier: MIT */
/* Templates: which are recognised, what they print, that nobody's text becomes structure; and
 * answers parted again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/memory.h"
#include "base/random.h"
#include "model/text/chat_internal.h"
#include "tests/support/tokenizer_fixture.h"

#define GEMMA4  "gemma4"
#define QWEN3   "qwen3"
#define QWEN35  "qwen35"
#define LETTERS "qwen3 by letters"
#define DSML    "\uFF5CDSML\uFF5C"

typedef struct world {
  tokenizer_fixture f;
  weft_tokenizer *t;
  weft_chat *chat;
  const char *variables;
} world;

/* Our own template of that name (tests/golden/chat). */
static char *template_text(const char *name) {
  char path[512], *text = calloc(1, 1 << 16);
  (void)snprintf(path, sizeof path, WEFT_SOURCE_DIR "/tests/golden/chat/%s.jinja", name);
  FILE *file = fopen(path, "r");
  if (file == NULL || text == NULL) fail_msg("cannot open %s", path);
  assert_true(fread(text, 1, (1 << 16) - 1, file) > 0);
  (void)fclose(file);
  return text;
}

static void world_open(world *w, const char *name, const char *variables) {
  weft_error error = {{0}};
  memset(w, 0, sizeof *w);
  w->variables = variables;
  if (strcmp(name, GEMMA4) == 0) {
    fixture_gemma4(&w->f);
  } else if (strcmp(name, "deepseek4") == 0) {
    static const char *const specials[] = {"<\uFF5Cend\u2581of\u2581sentence\uFF5C>",
                                           "<\uFF5CUser\uFF5C>",
                                           "<\uFF5CAssistant\uFF5C>",
                                           "<think>",
                                           "</think>",
                                           DSML};
    fixture_gpt2(&w->f, "joyai-llm");
    for (uint32_t i = 0; i < 6; i++) (void)fixture_token(&w->f, specials[i], i < 3 ? FIXTURE_CONTROL : FIXTURE_USER);
  } else {
    static const char *const specials[] = {"<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>"};
    uint32_t n = strcmp(name, LETTERS) == 0 ? 2 : 5; /* one vocabulary lacks the tokens of thinking */
    fixture_gpt2(&w->f, "qwen2");
    for (uint32_t i = 0; i < n; i++) (void)fixture_token(&w->f, specials[i], i < 2 ? FIXTURE_CONTROL : FIXTURE_USER);
  }
  char *text = template_text(strcmp(name, LETTERS) == 0 ? QWEN3 : name);
  gguf_writer_string(&w->f.writer, "tokenizer.chat_template", text);
  free(text);
  w->t = fixture_tokenizer(&w->f);
  if (weft_chat_open(w->f.gguf, w->t, (weft_bytes){0}, NULL, &w->chat, &error) != WEFT_OK) fail_msg("%s", error.text);
}

static void world_close(world *w) {
  weft_chat_close(w->chat);
  fixture_close(&w->f);
}

static weft_chat_message say(const char *role, const char *content) {
  return (weft_chat_message){.role = role, .content = content, .n_content = strlen(content)};
}

/* The prompt as text; and that its tokens, printed, are the same text. */
static void prints(const world *w, const weft_chat_message *messages, uint32_t n, bool thinking, bool generation,
                   const char *want) {
  weft_chat_options options = {.thinking = thinking, .add_generation_prompt = generation, .variables = w->variables};
  weft_chat_pieces pieces;
  weft_tokens tokens = {0};
  weft_text text = {0}, printed = {0};
  weft_error error = {{0}};
  if (weft_chat_split(w->chat, messages, n, &options, &pieces, &error) != WEFT_OK) fail_msg("%s", error.text);
  for (uint32_t i = 0; i < pieces.n; i++) weft_text_append(&text, pieces.pieces[i].text, pieces.pieces[i].n);
  assert_string_equal(text.bytes, want);
  if (weft_chat_render(w->chat, messages, n, &options, &tokens, NULL, &error) != WEFT_OK) fail_msg("%s", error.text);
  assert_int_equal(weft_tokenizer_decode(w->t, tokens.ids, tokens.n, true, &printed), WEFT_OK);
  assert_string_equal(printed.bytes, want);
  weft_text_free(&text);
  weft_text_free(&printed);
  weft_tokens_free(&tokens);
  weft_chat_pieces_close(&pieces);
}

static void parted(const world *w, const char *text, unsigned flags, bool starts, const char *want);

static void test_gemma4_oldest_template(void **state) {
  (void)state;
  world w;
  world_open(&w, GEMMA4, "{\"edition\":\"launch\"}");
  assert_int_equal(w.chat->thoughts, CHAT_THOUGHTS_CHANNEL);
  weft_chat_message m[] = {say("system", " Be kind.\n"),
                           say("user",
                               " \xC2\xA0"
                               "a "),
                           say("assistant", "b"), say("assistant", "c"), say("user", "d")};
  prints(&w, m, 5, false, true,
         "<bos><|turn>system\nBe "
         "kind.<turn|>\n<|turn>user\na<turn|>\n<|turn>model\nb<turn|>\n<|turn>model\nc<turn|>\n"
         "<|turn>user\nd<turn|>\n<|turn>model\n<|channel>thought\n<channel|>");
  prints(&w, m + 1, 1, true, true, "<bos><|turn>system\n<|think|>\n<turn|>\n<|turn>user\na<turn|>\n<|turn>model\n");
  prints(&w, m + 1, 1, false, false, "<bos><|turn>user\na<turn|>\n");
  world_close(&w);
}

static void test_gemma4_later_templates(void **state) {
  (void)state;
  world w;
  weft_chat_message m[] = {say("user", "a"), say("assistant", "b"), say("assistant", "c")};
  m[2].thinking = "why";
  m[2].n_thinking = 3;
  world_open(&w, GEMMA4, "{\"edition\":\"april\"}");
  prints(&w, m, 3, false, true,
         "<bos><|turn>user\na<turn|>\n<|turn>model\nb<turn|>\nc<turn|>\n<|turn>model\n<|channel>thought\n<channel|>");
  world_close(&w);
  world_open(&w, GEMMA4, "{\"edition\":\"july\"}");
  prints(&w, m, 3, false, true,
         "<bos><|turn>user\na<turn|>\n<|turn>model\nb<|channel>thought\nwhy\n<channel|>c<turn|>\n<|"
         "turn>model\n");
  m[0].n_thinking = 1; /* a user has no thinking */
  m[0].thinking = "x";
  weft_chat_message earlier[] = {m[2], m[0]};
  prints(&w, earlier, 2, false, false, "<bos><|turn>model\nc<turn|>\n<|turn>user\na<turn|>\n");
  world_close(&w);
}

static void test_qwen3_hybrid(void **state) {
  (void)state;
  world w;
  world_open(&w, QWEN3, "{\"kind\":\"hybrid\"}");
  assert_int_equal(w.chat->thoughts, CHAT_THOUGHTS_TAGS);
  weft_chat_message m[] = {say("developer", " s "), say("user", "a"), say("assistant", "<think>\nhm\n</think>\n\nb"),
                           say("user", "c")};
  prints(&w, m, 4, true, true,
         "<|im_start|>system\n s "
         "<|im_end|>\n<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n"
         "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n");
  prints(&w, m + 3, 1, false, true, "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n");
  /* after the last question thinking stays, given inside the content or beside it */
  weft_chat_message now[] = {m[1], m[2]};
  prints(&w, now, 2, true, false,
         "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n<think>\nhm\n</"
         "think>\n\nb<|im_end|>\n");
  now[1] = say("assistant", "\nb");
  now[1].thinking = "\nhm\n\n";
  now[1].n_thinking = 5;
  prints(&w, now, 2, true, false,
         "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n<think>\nhm\n</"
         "think>\n\nb<|im_end|>\n");
  weft_chat_message two[] = {m[1], say("assistant", "x"), say("user", "<tool_response>1</tool_response>"),
                             say("assistant", "y")};
  prints(&w, two, 4, true, false,
         "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nx<|im_end|>\n<|im_start|>user\n"
         "<tool_response>1</tool_response><|im_end|>\n<|im_start|>assistant\n<think>\n\n</"
         "think>\n\ny<|im_end|>\n");
  world_close(&w);
}

/* Whether the model's turn begins inside a thought, by the tokens of the prompt. */
static bool thinks(const world *w, const weft_chat_message *messages, uint32_t n, bool generation) {
  weft_chat_options options = {.add_generation_prompt = generation, .variables = w->variables};
  weft_tokens tokens = {0};
  weft_error error = {{0}};
  if (weft_chat_render(w->chat, messages, n, &options, &tokens, NULL, &error) != WEFT_OK) fail_msg("%s", error.text);
  bool starts = weft_chat_starts_thinking(w->chat, tokens.ids, tokens.n);
  weft_tokens_free(&tokens);
  return starts;
}

static void test_qwen3_thinking_and_coder(void **state) {
  (void)state;
  world w;
  weft_chat_message m[] = {say("user", "a <think> b"), say("assistant", "<think>x</think>b")};
  world_open(&w, QWEN3, "{\"kind\":\"thinking\"}");
  assert_true(thinks(&w, m, 1, true));
  assert_false(thinks(&w, m, 1, false)); /* a user's <think> is text */
  prints(&w, m, 1, false, true, "<|im_start|>user\na <think> b<|im_end|>\n<|im_start|>assistant\n<think>\n");
  world_close(&w);
  world_open(&w, QWEN3, "{\"kind\":\"hybrid\"}");
  assert_false(thinks(&w, m, 2, true));
  world_close(&w);
  world_open(&w, QWEN3, NULL);
  prints(&w, m, 2, true, true,
         "<|im_start|>user\na <think> b<|im_end|>\n<|im_start|>assistant\n<think>x</"
         "think>b<|im_end|>\n<|im_start|>assistant\n");
  assert_false(thinks(&w, m, 2, true));
  world_close(&w);
}

/* What Qwen3.5's templates do: thinking unless it is turned off, and calls as XML; parted again from the answer. */
static void test_qwen35(void **state) {
  (void)state;
  world w;
  world_open(&w, QWEN35, NULL);
  assert_int_equal(w.chat->thoughts, CHAT_THOUGHTS_TAGS);
  assert_int_equal(weft_chat_call_form(w.chat), WEFT_CALLS_QWEN);
  assert_true(weft_chat_tells_tools(w.chat) && weft_chat_can_think(w.chat));
  weft_chat_message m[] = {say("user", " a "), say("assistant", "<think>\nhm\n</think>\n\nb"), say("user", "c")};
  prints(&w, m, 1, true, true, "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n<think>\n");
  prints(&w, m, 1, false, true, "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n");
  static const char before[] = "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n",
                    after[] = "b<|im_end|>\n<|im_start|>user\nc<|im_end|>\n";
  char want[256];
  (void)snprintf(want, sizeof want, "%s%s", before, after);
  prints(&w, m, 3, true, false, want);
  w.variables = "{\"preserve_thinking\":true}";
  (void)snprintf(want, sizeof want, "%s<think>\nhm\n</think>\n\n%s", before, after);
  prints(&w, m, 3, true, false, want);
  w.variables = NULL;
  weft_chat_message early = say("assistant", "b"), late[] = {m[0], say("system", "s"), m[2]};
  weft_chat_options options = {.add_generation_prompt = true};
  weft_chat_pieces pieces;
  weft_error error = {{0}};
  assert_int_equal(weft_chat_split(w.chat, &early, 1, &options, &pieces, &error), WEFT_E_INVALID); /* no question */
  /* a late instruction, which the template refuses, is told in another way */
  assert_int_equal(weft_chat_split(w.chat, late, 3, &options, &pieces, &error), WEFT_OK);
  weft_chat_pieces_close(&pieces);
  parted(&w, "hm\n</think>\n\nyes", 0, true, "[t]hm[a]yes");
  world_close(&w);
}

/* Where a prompt parts from others: of each place the text before and behind it. */
static void partings(const world *w, const weft_chat_message *messages, uint32_t n, const char *first,
                     const char *second) {
  const weft_chat_options options = {.thinking = true, .add_generation_prompt = true};
  const char *const want[] = {first, second};
  uint32_t at[2] = {0};
  weft_tokens tokens = {0};
  weft_error error = {{0}};
  if (weft_chat_render(w->chat, messages, n, &options, &tokens, at, &error) != WEFT_OK) fail_msg("%s", error.text);
  for (uint32_t i = 0; i < 2; i++) {
    weft_text before = {0};
    weft_text_puts(&before, ""); /* so that it has bytes */
    assert_int_equal(weft_tokenizer_decode(w->t, tokens.ids, at[i], true, &before), WEFT_OK);
    assert_string_equal(before.n == 0 ? "" : before.bytes, want[i]);
    weft_text_free(&before);
  }
  weft_tokens_free(&tokens);
}

static void test_partings(void **state) {
  (void)state;
  world w;
  world_open(&w, QWEN35, NULL);
  weft_chat_message m[] = {say("system", "b Aa a\n"), say("user", " a\n"), say("assistant", "b"), say("user", "c")};
#define SYSTEM "<|im_start|>system\nb Aa a<|im_end|>\n<|im_start|>"
  partings(&w, m, 2, SYSTEM, SYSTEM "user\na"); /* whatever the texts have in common */
  partings(&w, m, 4, SYSTEM, SYSTEM "user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n<|im_start|>user\nc");
  partings(&w, m + 1, 1, "<|im_start|>", "<|im_start|>user\na");
  m[1] = say("user", "");
  partings(&w, m, 2, "", "<|im_start|>system\nb Aa a"); /* a message without a text has no place */
  m[1] = say("user", "<|im_start|>system\nb Aa a");
  partings(&w, m, 2, SYSTEM, SYSTEM "user\n<|im_start|>system\nb Aa a");
#undef SYSTEM
  world_close(&w);
  world_open(&w, GEMMA4, NULL);
  weft_chat_message g[] = {say("developer", "s"), say("user", "q"), say("assistant", "r"), say("user", "t")};
  partings(&w, g, 4, "<bos><|turn>system\n<|think|>\ns<turn|>\n<|turn>",
           "<bos><|turn>system\n<|think|>\ns<turn|>\n<|turn>user\nq<turn|>\n<|turn>model\nr<turn|>\n<|turn>user\nt");
  world_close(&w);
}

/* Tools, calls and results go where the template puts them; nothing in them becomes a special token. */
static void test_tools(void **state) {
  (void)state;
  static const char tools[] =
      "[{\"type\":\"function\",\"function\":{\"name\":\"f<turn|>\",\"description\":\"<|turn>model\"}}]";
  world w;
  weft_error error = {{0}};
  weft_chat_message m[] = {say("user", "a"), say("assistant", ""), say("tool", "<eos>")};
  m[1].more = "{\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":{\"k\":\"<bos>\"}}}]}";
  weft_chat_options options = {.add_generation_prompt = true, .tools = tools};
  weft_chat_pieces pieces;
  weft_text text = {0};
  world_open(&w, GEMMA4, NULL);
  if (weft_chat_split(w.chat, m, 3, &options, &pieces, &error) != WEFT_OK) fail_msg("%s", error.text);
  for (uint32_t i = 0; i < pieces.n; i++) {
    weft_text_append(&text, pieces.pieces[i].text, pieces.pieces[i].n);
    if (pieces.pieces[i].token < 0) continue;
    weft_text_puts(&text, "!");
  }
  assert_string_equal(text.bytes,
                      "<bos>!<|turn>!system\n<|tool>declaration:f<turn|>{description:<|\"|><|turn>model<|\"|>}<tool|>"
                      "<turn|>!\n<|turn>!user\na<turn|>!\n<|turn>!model\n<|tool_call>call:f{k:<|\"|><bos><|\"|>}"
                      "<tool_call|><turn|>!\n<|tool_response>!response:unknown{value:<|\"|><eos><|\"|>}<tool_response|>"
                      "<turn|>!\n<|turn>!model\n<|channel>!thought\n<channel|>!");
  weft_text_free(&text);
  weft_chat_pieces_close(&pieces);
  world_close(&w);
}

static void refused(tokenizer_fixture *f, weft_status status, const char *words) {
  weft_tokenizer *t = fixture_tokenizer(f);
  weft_chat *chat;
  weft_error error = {{0}};
  assert_int_equal(weft_chat_open(f->gguf, t, (weft_bytes){0}, NULL, &chat, &error), status);
  assert_null(chat);
  if (strstr(error.text, words) == NULL) fail_msg("'%s' lacks '%s'", error.text, words);
  fixture_close(f);
}

static void test_refuses_templates(void **state) {
  (void)state;
  tokenizer_fixture f = {0};
  fixture_gemma4(&f);
  refused(&f, WEFT_E_NOT_FOUND, "test.gguf has no chat template");
  fixture_gemma4(&f);
  gguf_writer_string(&f.writer, "tokenizer.chat_template", "a\n{{ messages | groupby('role') }}");
  refused(&f, WEFT_E_UNSUPPORTED,
          "test.gguf: the chat template, line 2: the filter 'groupby' is not supported; --chat-template");
  fixture_gemma4(&f);
  gguf_writer_string(&f.writer, "tokenizer.chat_template", "{% include 'x' %}");
  refused(&f, WEFT_E_UNSUPPORTED, "line 1: 'include' is not supported");
  fixture_gemma4(&f);
  gguf_writer_string(&f.writer, "tokenizer.chat_template", "{% if x %}");
  refused(&f, WEFT_E_FORMAT, "the block that began in line 1 is not closed");
  fixture_gemma4(&f);
  gguf_writer_u32(&f.writer, "tokenizer.chat_template", 1);
  refused(&f, WEFT_E_FORMAT, "tokenizer.chat_template");
  fixture_gemma4(&f);
  gguf_writer_string(&f.writer, "tokenizer.chat_template", "<|im_start|>");
  refused(&f, WEFT_E_UNSUPPORTED, "needs the token <|im_start|>");
}

static void test_refuses_messages(void **state) {
  (void)state;
  world w;
  world_open(&w, GEMMA4, NULL);
  weft_chat_message m[] = {say("user", "a"), say("narrator", "b")};
  weft_chat_options options = {.add_generation_prompt = true};
  weft_tokens tokens = {0};
  weft_error error;
  assert_int_equal(weft_tokens_push(&tokens, 5), WEFT_OK);
  assert_int_equal(weft_chat_render(w.chat, m, 2, &options, &tokens, NULL, &error), WEFT_E_INVALID);
  assert_non_null(strstr(error.text, "messages[1].role is 'narrator'"));
  assert_int_equal(weft_chat_render(w.chat, m, 0, &options, &tokens, NULL, &error), WEFT_E_INVALID);
  assert_non_null(strstr(error.text, "messages is empty"));
  assert_int_equal(weft_chat_render(w.chat, m, 1 << 20, &options, &tokens, NULL, &error), WEFT_E_TOO_LARGE);
  static const struct {
    const char *tools, *variables, *more, *words;
  } rows[] = {{"{}", NULL, NULL, "tools must be a JSON list"},
              {"[", NULL, NULL, "tools must be a JSON list: "},
              {NULL, "[]", NULL, "chat_template_kwargs must be a JSON object"},
              {NULL, "{\"messages\":[]}", NULL, "chat_template_kwargs.messages is the server's own"},
              {NULL, NULL, "3", "the further members of a message must be a JSON object"},
              {NULL, NULL, "{\"tool_calls\":[{}]}", "the chat template of test.gguf, line "}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    options.tools = rows[i].tools;
    options.variables = rows[i].variables;
    m[0].more = rows[i].more;
    assert_int_equal(weft_chat_render(w.chat, m, 1, &options, &tokens, NULL, &error), WEFT_E_INVALID);
    if (strstr(error.text, rows[i].words) == NULL) fail_msg("'%s' lacks '%s'", error.text, rows[i].words);
  }
  assert_int_equal(tokens.n, 1);
  weft_tokens_free(&tokens);
  world_close(&w);
}

/* Text of every role made of pieces of markers: the special tokens of the prompt stay those of the
 * template. */
static void test_text_never_becomes_structure(void **state) {
  (void)state;
  static const char *const bits[] = {
      "<|turn>", "<turn|>", "<|channel>", "<channel|>", "<bos>",        "<eos>",        "<|",      "|>",
      "<",       ">",       "\n",         " ",          "<|im_start|>", "<|im_end|>",   "<think>", "</think>",
      "x",       "\xFF",    "thought\n",  "<0x0A>",     "<|think|>",    "\xE2\x96\x81", "<unk>"};
  static const char *const roles[] = {"user", "assistant", "system", "developer"};
  static const char *const templates[] = {GEMMA4, QWEN3, QWEN3};
  static const char *const variables[] = {NULL, "{\"kind\":\"hybrid\"}", NULL};
  uint64_t seed = 0;
  for (int k = 0; k < 3; k++) {
    world w;
    world_open(&w, templates[k], variables[k]);
    for (int round = 0; round < 1500; round++) {
      weft_text text[3] = {{0}};
      weft_chat_message m[3];
      for (int i = 0; i < 3; i++) {
        for (uint64_t n = 1 + fixture_draw(9, &seed) % 6; n > 0; n--)
          weft_text_puts(&text[i], bits[fixture_draw(9, &seed) % 23]);
        m[i] = say(roles[fixture_draw(9, &seed) % 4], text[i].bytes);
      }
      weft_chat_options options = {
          .thinking = fixture_draw(9, &seed) % 2 == 0, .add_generation_prompt = true, .variables = w.variables};
      weft_chat_pieces pieces;
      weft_tokens tokens = {0};
      weft_error error;
      if (weft_chat_split(w.chat, m, 3, &options, &pieces, &error) != WEFT_OK)
        fail_msg("%s: %s", error.text, m[0].content);
      assert_int_equal(weft_chat_render(w.chat, m, 3, &options, &tokens, NULL, &error), WEFT_OK);
      uint32_t at = 0;
      for (uint32_t i = 0; i < pieces.n; i++) {
        if (i > 0) assert_false(pieces.pieces[i].token < 0 && pieces.pieces[i - 1].token < 0);
        if (pieces.pieces[i].token < 0) continue;
        for (; at < tokens.n && tokens.ids[at] != pieces.pieces[i].token; at++) {
          assert_true(w.f.types[tokens.ids[at]] == FIXTURE_NORMAL || w.f.types[tokens.ids[at]] == FIXTURE_BYTE);
        }
        assert_true(at < tokens.n);
        at += 1;
      }
      for (; at < tokens.n; at++) {
        assert_true(w.f.types[tokens.ids[at]] == FIXTURE_NORMAL || w.f.types[tokens.ids[at]] == FIXTURE_BYTE);
      }
      weft_chat_pieces_close(&pieces);
      weft_tokens_free(&tokens);
      for (int i = 0; i < 3; i++) weft_text_free(&text[i]);
    }
    world_close(&w);
  }
}

/* Feeds the text's tokens (markers parsed) and wants "[t]thinking[a]answer" with a label where the
 * kind changes. */
static void parted(const world *w, const char *text, unsigned flags, bool starts, const char *want) {
  weft_tokens tokens = {0};
  weft_chat_stream s;
  weft_text all = {0}, chunk = {0};
  weft_error error;
  assert_int_equal(weft_tokenizer_encode(w->t, text, strlen(text), WEFT_ENCODE_PARSE_SPECIAL, &tokens, &error),
                   WEFT_OK);
  weft_chat_stream_open(&s, w->chat, w->t, flags, starts);
  uint32_t n_released = 0;
  int last = -1;
  for (uint32_t i = 0; i <= tokens.n; i++) {
    bool thinking;
    uint32_t n_ids;
    weft_text_clear(&chunk);
    weft_status status = i < tokens.n ? weft_chat_stream_push(&s, tokens.ids[i], &chunk, &thinking, &n_ids)
                                      : weft_chat_stream_flush(&s, &chunk, &thinking, &n_ids);
    assert_int_equal(status, WEFT_OK);
    n_released += n_ids;
    if (chunk.n == 0) continue;
    assert_true(weft_utf8_valid(chunk.bytes, chunk.n, NULL));
    if (last != (int)thinking) weft_text_puts(&all, thinking ? "[t]" : "[a]");
    last = (int)thinking;
    weft_text_append(&all, chunk.bytes, chunk.n);
  }
  assert_int_equal(n_released, tokens.n);
  assert_string_equal(all.bytes == NULL ? "" : all.bytes, want);
  weft_text_free(&all);
  weft_text_free(&chunk);
  weft_tokens_free(&tokens);
  weft_chat_stream_close(&s);
}

static void test_stream_gemma4(void **state) {
  (void)state;
  world w;
  world_open(&w, GEMMA4, NULL);
  parted(&w, "plain\n\ntext\n<turn|>", 0, false, "[a]plain\n\ntext\n");
  parted(&w, "<|channel>thought\nwhy\nso\n\n<channel|>\nbecause\n", 0, false, "[t]why\nso[a]\nbecause\n");
  parted(&w, "<|channel>thought\n\n<channel|>x", 0, false, "[a]x");
  parted(&w, "<|channel><channel|>x", 0, false, "[a]x");
  parted(&w, "<|channel>thought<channel|>x", 0, false, "[a]x");
  parted(&w, "<|channel>thought\nnever closed\n", 0, false, "[t]never closed");
  parted(&w, "a<channel|>b", 0, false, "[a]ab"); /* stray markers are hidden */
  parted(&w, "a<|channel>n\nb<|channel>n\nc<channel|>d", 0, false, "[a]a[t]bc[a]d");
  parted(&w, "<|channel>thought\n\xC3", 0, false, "[t]\xEF\xBF\xBD");
  parted(&w, "<|channel>thought\nx\n\ny", WEFT_DETOK_WHOLE_TOKENS, false, "[t]x\n\ny");
  parted(&w, "<|channel>thought\n\n\n<channel|>y", WEFT_DETOK_WHOLE_TOKENS, false, "[t]\n\n[a]y");
  parted(&w, "<think>x</think>", 0, false, "[a]<think>x</think>"); /* markers of another family are text */
  /* what is too long to be a channel's name is thinking */
  char text[200] = "<|channel>", want[200] = "[t]";
  for (int i = 0; i < 80; i++) strcat(text, "n");
  for (int i = 0; i < 80; i++) strcat(want, "n");
  parted(&w, text, 0, false, want);
  world_close(&w);
}

static void test_stream_qwen3(void **state) {
  (void)state;
  world w;
  world_open(&w, QWEN3, NULL);
  parted(&w, "<think>\nhm\n\nha\n</think>\n\nyes\n\n", 0, false, "[t]hm\n\nha[a]yes\n\n");
  parted(&w, "hm\n</think>\n\nyes", 0, true, "[t]hm[a]yes");
  parted(&w, "<think>\n\n</think>\n\nyes", 0, false, "[a]yes");
  parted(&w, "yes<|im_end|>", 0, false, "[a]yes");
  parted(&w, "<think>a\n</think>\n\nb", WEFT_DETOK_WHOLE_TOKENS, false, "[t]a\n[a]\n\nb");
  weft_chat *chat = w.chat;
  w.chat = NULL; /* no template: all is answer, and the markers are ordinary user-defined tokens */
  parted(&w, "<think>a</think>b", 0, false, "[a]<think>a</think>b");
  w.chat = chat;
  world_close(&w);
}

/* Markers that are no tokens are read in the text, at the beginning of the answer alone. */
static void test_stream_letters(void **state) {
  (void)state;
  world w;
  world_open(&w, LETTERS, NULL);
  assert_int_equal(w.chat->thoughts, CHAT_THOUGHTS_TAGS);
  assert_true(w.chat->thought_letters && weft_chat_can_think(w.chat));
  parted(&w, "<think>\nhm\n\nha\n</think>\n\nyes\n\n", 0, false, "[t]hm\n\nha[a]yes\n\n");
  parted(&w, "hm </thin </think>\n\nyes <think>no</think>", 0, true, "[t]hm </thin [a]yes <think>no</think>");
  parted(&w, "<think>\n\n</think>\n\nyes", 0, false, "[a]yes");
  parted(&w, "\n <think>a</think>b", 0, false, "[t]a[a]b");
  parted(&w, "yes <think>a</think>", 0, false, "[a]yes <think>a</think>");
  parted(&w, "<thi", 0, false, "[a]<thi");
  parted(&w, "<think>a</thin", 0, false, "[t]a</thin");
  parted(&w, "\n\n<x", 0, false, "[a]\n\n<x");
  parted(&w, "", 0, false, "");
  parted(&w, "<think>a\n</think>\n\nb", WEFT_DETOK_WHOLE_TOKENS, false, "[t]a\n[a]\n\nb");
  static const struct {
    const char *text;
    bool starts;
  } prompts[] = {{"<|im_start|>assistant\n<think>\n", true}, {"x<think>", true},
                 {"<think>\n\n</think>\n\n", false},         {"say <think> twice", false},
                 {"<|im_start|>assistant\n", false},         {"", false}};
  for (size_t i = 0; i < sizeof prompts / sizeof *prompts; i++) {
    weft_tokens tokens = {0};
    weft_error error;
    assert_int_equal(weft_tokenizer_encode(w.t, prompts[i].text, strlen(prompts[i].text), WEFT_ENCODE_PARSE_SPECIAL,
                                           &tokens, &error),
                     WEFT_OK);
    assert_int_equal(weft_chat_starts_thinking(w.chat, tokens.ids, tokens.n), prompts[i].starts);
    weft_tokens_free(&tokens);
  }
  world_close(&w);
}

/* What DeepSeek-V4's templates do: thinking where it is asked for, calls as DSML, whose marker is a token. */
static void test_deepseek4(void **state) {
  static const char calls[] =
      "<" DSML "tool_calls>\n<" DSML "invoke name=\"f\">\n<" DSML "parameter name=\"x\" string=\"true\">a</" DSML
      "parameter>\n<" DSML "parameter name=\"n\" string=\"false\">[1, 2]</" DSML "parameter>\n</" DSML
      "invoke>\n</" DSML "tool_calls>";
  (void)state;
  world w;
  char want[1024];
  world_open(&w, "deepseek4", NULL);
  assert_int_equal(w.chat->thoughts, CHAT_THOUGHTS_TAGS);
  assert_int_equal(weft_chat_call_form(w.chat), WEFT_CALLS_DSML);
  assert_true(weft_chat_tells_tools(w.chat) && weft_chat_can_think(w.chat));
  weft_chat_message m[] = {say("system", "s"), say("user", "a"), say("assistant", "b"), say("tool", "c"),
                           say("user", "d")};
  m[2].more =
      "{\"tool_calls\":[{\"id\":\"1\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":"
      "{\"x\":\"a\",\"n\":[1,2]}}}]}";
  m[3].more = "{\"tool_call_id\":\"1\"}";
#define USER      "<\uFF5CUser\uFF5C>"
#define ASSISTANT "<\uFF5CAssistant\uFF5C>"
  prints(&w, m, 2, true, true, "s\n\n" USER "a" ASSISTANT "<think>");
  prints(&w, m, 2, false, true, "s\n\n" USER "a" ASSISTANT "</think>");
  (void)snprintf(want, sizeof want,
                 "s\n\n" USER "a" ASSISTANT "</think>b\n\n%s<\uFF5Cend\u2581of\u2581sentence\uFF5C>" USER
                 "<tool_result>c</tool_result>\n\nd" ASSISTANT "<think>",
                 calls);
  prints(&w, m, 5, true, true, want);
#undef USER
#undef ASSISTANT
  parted(&w, "hm\n</think>\nyes", 0, true, "[t]hm[a]yes");
  parted(&w, "no", 0, false, "[a]no");
  weft_tokens tokens = {0};
  weft_text text = {0};
  weft_error error = {{0}};
  bool thinking;
  weft_chat_stream s;
  assert_int_equal(weft_tokenizer_encode(w.t, calls, strlen(calls), WEFT_ENCODE_PARSE_SPECIAL, &tokens, &error),
                   WEFT_OK);
  weft_chat_stream_open(&s, w.chat, w.t, 0, false);
  s.shows_calls = true;
  for (uint32_t i = 0; i < tokens.n; i++)
    assert_int_equal(weft_chat_stream_push(&s, tokens.ids[i], &text, &thinking, NULL), WEFT_OK);
  assert_int_equal(weft_chat_stream_flush(&s, &text, &thinking, NULL), WEFT_OK);
  assert_string_equal(text.bytes, calls);
  weft_chat_stream_close(&s);
  weft_text_free(&text);
  weft_tokens_free(&tokens);
  world_close(&w);
}

static void test_refused_memory(void **state) {
  (void)state;
  world w;
  world_open(&w, GEMMA4, NULL);
  weft_chat_message m[] = {say("system", "s"), say("user", "a\n\nb"), say("assistant", "x<|channel>y<channel|>z"),
                           say("user", "c")};
  weft_chat_options options = {.add_generation_prompt = true};
  uint64_t n = 1;
  for (;; n++) {
    weft_tokens tokens = {0};
    weft_error error = {{0}};
    (void)weft_memory_fail_at(n);
    weft_status status = weft_chat_render(w.chat, m, 4, &options, &tokens, NULL, &error);
    uint64_t n_asked = weft_memory_fail_at(0);
    weft_tokens_free(&tokens);
    if (status == WEFT_OK) {
      assert_true(n_asked < n);
      break;
    }
    assert_int_equal(status, WEFT_E_NO_MEMORY);
    assert_non_null(strstr(error.text, "out of memory"));
    assert_true(n < 1000);
  }
  assert_true(n > 8);
  weft_chat *chat;
  weft_error error;
  (void)weft_memory_fail_at(1);
  assert_int_equal(weft_chat_open(w.f.gguf, w.t, (weft_bytes){0}, NULL, &chat, &error), WEFT_E_NO_MEMORY);
  (void)weft_memory_fail_at(0);
  world_close(&w);
}

/* Markers of calls that are control tokens are hidden, until calls are looked for; other control tokens, and the
 * markers of other forms, stay hidden. */
static void test_call_markers(void **state) {
  static const char *const specials[] = {"<tool_call>", "</tool_call>", "<|im_start|>", "<|im_end|>", "[ARGS]"};
  static const char template[] = "{{ messages[0].content }}{% if tools %}<tool_call>{{ tools }}{% endif %}",
                    answer[] = "a<|im_start|><tool_call>b</tool_call>[ARGS]c";
  world w = {0};
  weft_error error = {{0}};
  (void)state;
  fixture_gpt2(&w.f, "qwen2");
  for (uint32_t i = 0; i < 5; i++) (void)fixture_token(&w.f, specials[i], FIXTURE_CONTROL);
  w.t = fixture_tokenizer(&w.f);
  const weft_bytes bytes = {template, strlen(template)};
  if (weft_chat_open(w.f.gguf, w.t, bytes, "here", &w.chat, &error) != WEFT_OK) fail_msg("%s", error.text);
  assert_int_equal(weft_chat_call_form(w.chat), WEFT_CALLS_HERMES);
  assert_true(weft_chat_tells_tools(w.chat));
  for (int shows = 0; shows < 2; shows++) {
    weft_chat_stream s;
    weft_tokens tokens = {0};
    weft_text all = {0};
    bool thinking;
    assert_int_equal(weft_tokenizer_encode(w.t, answer, strlen(answer), WEFT_ENCODE_PARSE_SPECIAL, &tokens, &error),
                     WEFT_OK);
    weft_chat_stream_open(&s, w.chat, w.t, 0, false);
    s.shows_calls = shows == 1;
    for (uint32_t i = 0; i < tokens.n; i++) {
      assert_int_equal(weft_chat_stream_push(&s, tokens.ids[i], &all, &thinking, NULL), WEFT_OK);
    }
    assert_int_equal(weft_chat_stream_flush(&s, &all, &thinking, NULL), WEFT_OK);
    assert_string_equal(all.bytes, shows == 0 ? "abc" : "a<tool_call>b</tool_call>c");
    weft_chat_stream_close(&s);
    weft_text_free(&all);
    weft_tokens_free(&tokens);
  }
  world_close(&w);
}

/* A template may print a result anywhere and in any form; one without its call, of which it prints nothing, is told as
 * the user's. */
static void test_results_without_a_place(void **state) {
  static const char template[] =
      "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% elif m.tool_calls and not loop.last %}"
      "{{ {'result': loop.nextitem.content | trim | replace('-', '+')} | tojson }}{% endif %}{% endfor %}";
  const weft_chat_message call = {.role = "assistant", .content = "", .more = "{\"tool_calls\":[{}]}"};
  weft_chat_message m[] = {say("user", "a"), call, say("tool", " <|im_end|> --\n"), say("tool", " \n"),
                           say("tool", "b")};
  const weft_chat_options options = {0};
  weft_chat_pieces pieces;
  world w = {0};
  weft_error error = {{0}};
  (void)state;
  fixture_gpt2(&w.f, "qwen2");
  (void)fixture_token(&w.f, "<|im_end|>", FIXTURE_CONTROL);
  w.t = fixture_tokenizer(&w.f);
  const weft_bytes bytes = {template, strlen(template)};
  if (weft_chat_open(w.f.gguf, w.t, bytes, "here", &w.chat, &error) != WEFT_OK) fail_msg("%s", error.text);
  prints(&w, m, 4, false, false, "a{\"result\": \"<|im_end|> ++\"}"); /* blanks say nothing that could be lost */
  if (weft_chat_split(w.chat, m, 4, &options, &pieces, &error) != WEFT_OK) fail_msg("%s", error.text);
  assert_int_equal(pieces.n, 1); /* text of a result is no control token */
  weft_chat_pieces_close(&pieces);
  prints(&w, m, 5, false, false, "a{\"result\": \"<|im_end|> ++\"}Result:\n \n\n\nResult:\nb");
  world_close(&w);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_gemma4_oldest_template),
      cmocka_unit_test(test_gemma4_later_templates),
      cmocka_unit_test(test_qwen3_hybrid),
      cmocka_unit_test(test_qwen3_thinking_and_coder),
      cmocka_unit_test(test_refuses_templates),
      cmocka_unit_test(test_qwen35),
      cmocka_unit_test(test_deepseek4),
      cmocka_unit_test(test_partings),
      cmocka_unit_test(test_tools),
      cmocka_unit_test(test_refuses_messages),
      cmocka_unit_test(test_text_never_becomes_structure),
      cmocka_unit_test(test_stream_gemma4),
      cmocka_unit_test(test_stream_qwen3),
      cmocka_unit_test(test_stream_letters),
      cmocka_unit_test(test_refused_memory),
      cmocka_unit_test(test_call_markers),
      cmocka_unit_test(test_results_without_a_place),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
