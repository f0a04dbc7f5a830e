/* SPDX-License-Identifier: MIT */
/* Encoding: which special tokens are seen when, merges against a naive twin, hostile text, memory
 * refusals. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/random.h"
#include "model/text/detok.h"
#include "tests/support/amount.h"
#include "tests/support/tokenizer_fixture.h"

static weft_tokens encode_n(const weft_tokenizer *t, const char *text, size_t n, unsigned flags) {
  weft_tokens tokens = {0};
  weft_error error = {{0}};
  if (weft_tokenizer_encode(t, text, n, flags, &tokens, &error) != WEFT_OK) fail_msg("%s", error.text);
  return tokens;
}

/* The tokens' texts with bars between, specials shown. */
static void expect(const weft_tokenizer *t, const char *text, unsigned flags, const char *want) {
  weft_tokens tokens = encode_n(t, text, strlen(text), flags);
  weft_text shown = {0};
  for (uint32_t i = 0; i < tokens.n; i++) {
    if (i > 0) weft_text_puts(&shown, "|");
    assert_int_equal(weft_tokenizer_piece(t, tokens.ids[i], true, &shown), WEFT_OK);
  }
  assert_string_equal(shown.bytes == NULL ? "" : shown.bytes, want);
  weft_text_free(&shown);
  weft_tokens_free(&tokens);
}

static void test_modes(void **state) {
  (void)state;
  tokenizer_fixture f = {0};
  fixture_gemma4(&f);
  (void)fixture_token(&f, "  ", FIXTURE_USER); /* blank: text, whatever its type */
  (void)fixture_token(&f, "<|chan", FIXTURE_USER);
  weft_tokenizer *t = fixture_tokenizer(&f);
  const char *text = "a<|channel>b<turn|>c";
  expect(t, text, 0, "a|<|channel>|b|<|t|u|r|n|||>|c");
  expect(t, text, WEFT_ENCODE_PARSE_SPECIAL, "a|<|channel>|b|<turn|>|c");
  expect(t, text, WEFT_ENCODE_PLAIN, "a|<|||c|h|a|n|n|e|l|>|b|<|t|u|r|n|||>|c");
  expect(t, "<|channel", 0, "<|chan|n|e|l"); /* the longest that is there */
  expect(t, "<|channel>", 0, "<|channel>");
  expect(t, "<|cha", 0, "<|||c|h|a");
  expect(t, "a  b", WEFT_ENCODE_PLAIN, "a|  |b");
  expect(t, "a  b", 0, "a|  |b");
  expect(t, "<|tool_response>", 0, "<|||t|o|o|l|_|r|e|s|p|o|n|s|e|>"); /* ends generations: control */
  expect(t, "<|tool_response>", WEFT_ENCODE_PARSE_SPECIAL, "<|tool_response>");
  expect(t, "<unk>", 0, "<|u|n|k|>");
  expect(t, "<unk>", WEFT_ENCODE_PARSE_SPECIAL, "<unk>");
  expect(t, "", 0, "");
  expect(t, "", WEFT_ENCODE_ADD_SPECIAL, "<bos>");
  expect(t, "x", WEFT_ENCODE_ADD_SPECIAL, "<bos>|x");
  expect(t, "<bos>x", WEFT_ENCODE_ADD_SPECIAL | WEFT_ENCODE_PLAIN, "<bos>|<|b|o|s|>|x");
  weft_tokens tokens = {0};
  weft_error error = {{0}};
  assert_int_equal(weft_tokenizer_encode(t, "x", 1, WEFT_ENCODE_PLAIN | WEFT_ENCODE_PARSE_SPECIAL, &tokens, &error),
                   WEFT_E_INVALID);
  assert_int_equal(tokens.n, 0);
  fixture_close(&f);
}

static void test_add_eos(void **state) {
  (void)state;
  tokenizer_fixture f = {0};
  fixture_gemma4(&f);
  gguf_writer_bool(&f.writer, "tokenizer.ggml.add_eos_token", true);
  weft_tokenizer *t = fixture_tokenizer(&f);
  expect(t, "x", WEFT_ENCODE_ADD_SPECIAL, "<bos>|x|<eos>");
  expect(t, "x", 0, "x");
  fixture_close(&f);
}

/* Merges that spell special tokens must not make them. */
static void test_merges_never_make_special_tokens(void **state) {
  (void)state;
  tokenizer_fixture f = {0};
  fixture_gemma4(&f);
  static const char *const parts[][2] = {{"<", "e"},  {"<e", "o"},  {"<eo", "s"},  {"<eos", ">"},  {"<", "|"},
                                         {"<|", "t"}, {"<|t", "u"}, {"<|tu", "r"}, {"<|tur", "n"}, {"<|turn", ">"}};
  for (size_t i = 0; i < 10; i++) fixture_merge(&f, parts[i][0], parts[i][1]);
  weft_tokenizer *t = fixture_tokenizer(&f);
  static const char *const texts[] = {"<eos>", "<|turn>", "a<eos>b", "<|turn><|turn>"};
  for (int i = 0; i < 4; i++) {
    for (int plain = 0; plain < 2; plain++) {
      weft_tokens tokens = encode_n(t, texts[i], strlen(texts[i]), plain != 0 ? WEFT_ENCODE_PLAIN : 0);
      for (uint32_t k = 0; k < tokens.n; k++) assert_false(weft_tokenizer_is_control(t, tokens.ids[k]));
      weft_text back = {0};
      assert_int_equal(weft_tokenizer_decode(t, tokens.ids, tokens.n, false, &back), WEFT_OK);
      assert_string_equal(back.bytes, texts[i]);
      weft_text_free(&back);
      weft_tokens_free(&tokens);
    }
  }
  fixture_close(&f);
  /* llama: any two neighbours that spell a token merge, but not to a control token */
  fixture_llama(&f);
  fixture_bytes(&f);
  fixture_characters(&f, "\xE2\x96\x81</s>x0A");
  (void)fixture_token(&f, "</", FIXTURE_NORMAL);
  (void)fixture_token(&f, "s>", FIXTURE_NORMAL);
  (void)fixture_token(&f, "<0", FIXTURE_NORMAL);
  (void)fixture_token(&f, "x0A>", FIXTURE_NORMAL);
  t = fixture_tokenizer(&f);
  expect(t, "</s>", 0, " |</|s>");
  expect(t, "<0x0A>", 0, " |<0|x|0|A|>");
  expect(t, "</s>", WEFT_ENCODE_PARSE_SPECIAL, "</s>");
  fixture_close(&f);
}

static void test_gemma4_newlines_and_bytes(void **state) {
  (void)state;
  tokenizer_fixture f = {0};
  fixture_gemma4(&f);
  (void)fixture_token(&f, "\n\n\n\n\n\n", FIXTURE_NORMAL); /* six: reached by no merge */
  fixture_merge(&f, "\n", "x"); /* crosses the cut between newlines and the rest: never used */
  weft_tokenizer *t = fixture_tokenizer(&f);
  expect(t, "a\nb", 0, "a|\n|b");
  expect(t, "a\n\n\nb", 0, "a|\n\n\n|b");
  expect(t, "\n\n\n\n\n\n", 0, "\n\n\n\n\n\n");
  expect(t, "\n\n\n\n\n\n\n", 0, "\n\n\n\n|\n\n\n");
  expect(t, "\nx", 0, "\n|x");
  expect(t, " a", 0, " |a");
  weft_tokens tokens = encode_n(t, "\xC3\xA9", 2, 0);
  assert_int_equal(tokens.n, 2);
  assert_int_equal(tokens.ids[0], weft_tokenizer_find(t, "<0xC3>"));
  assert_int_equal(tokens.ids[1], weft_tokenizer_find(t, "<0xA9>"));
  weft_tokens_free(&tokens);
  tokens = encode_n(t, "a\0b", 3, 0); /* a zero byte is a character like any other */
  assert_int_equal(tokens.n, 3);
  assert_int_equal(tokens.ids[1], weft_tokenizer_find(t, "<0x00>"));
  weft_tokens_free(&tokens);
  fixture_close(&f);
}

/* A vocabulary without bytes: the unknown token, and without one a refusal that names the byte. */
static void test_bytes_that_cannot_be_written(void **state) {
  (void)state;
  for (int with_unknown = 0; with_unknown < 2; with_unknown++) {
    tokenizer_fixture f = {.model = "gemma4"};
    (void)fixture_token(&f, "<bos>", FIXTURE_CONTROL);
    (void)fixture_token(&f, "<unk>", FIXTURE_UNKNOWN);
    fixture_characters(&f, "ab");
    gguf_writer_u32(&f.writer, "tokenizer.ggml.bos_token_id", 0);
    if (with_unknown) gguf_writer_u32(&f.writer, "tokenizer.ggml.unknown_token_id", 1);
    weft_tokenizer *t = fixture_tokenizer(&f);
    weft_tokens tokens = {0};
    weft_error error = {{0}};
    assert_int_equal(weft_tokens_push(&tokens, 77), WEFT_OK);
    weft_status status = weft_tokenizer_encode(t,
                                               "a\xC3\xA9"
                                               "b",
                                               4, WEFT_ENCODE_ADD_SPECIAL, &tokens, &error);
    if (with_unknown) {
      assert_int_equal(status, WEFT_OK);
      const int32_t want[] = {77, 0, 2, 1, 3};
      assert_int_equal(tokens.n, 5);
      assert_memory_equal(tokens.ids, want, sizeof want);
    } else {
      assert_int_equal(status, WEFT_E_INVALID);
      assert_non_null(strstr(error.text, "cannot write byte 0xC3"));
      assert_int_equal(tokens.n, 1); /* as before */
    }
    weft_tokens_free(&tokens);
    fixture_close(&f);
  }
}

static void test_llama(void **state) {
  (void)state;
  tokenizer_fixture f = {0};
  fixture_llama(&f);
  fixture_bytes(&f);
  for (const char *c = "abcd"; *c != 0; c++) (void)fixture_token_scored(&f, (char[]){*c, 0}, FIXTURE_NORMAL, -100);
  (void)fixture_token_scored(&f, "\xE2\x96\x81", FIXTURE_NORMAL, -100);
  (void)fixture_token_scored(&f, "ab", FIXTURE_NORMAL, -2);
  (void)fixture_token_scored(&f, "bc", FIXTURE_NORMAL, -1);
  (void)fixture_token_scored(&f, "cd", FIXTURE_UNUSED, 5);
  (void)fixture_token_scored(&f, "dcd", FIXTURE_NORMAL, -50);
  (void)fixture_token_scored(&f,
                             "\xE2\x96\x81"
                             "a",
                             FIXTURE_NORMAL, 0);
  (void)fixture_token_scored(&f, "aa", FIXTURE_NORMAL, -3);
  weft_tokenizer *t = fixture_tokenizer(&f);
  expect(t, "a", 0, " a");
  expect(t, "babc", 0, " |b|a|bc"); /* bc scores better than ab */
  expect(t, "baaa", 0, " |b|aa|a"); /* ties: leftmost */
  expect(t, "cd", 0, " |c|d");      /* an unused token is taken apart again */
  expect(t, "dcd", 0, " |dcd");     /* but may be a step on the way */
  expect(t, "a b", 0, " a| |b");
  expect(t, "", 0, "");
  expect(t, "", WEFT_ENCODE_ADD_SPECIAL, "<s>");
  expect(t, "a</s>b", WEFT_ENCODE_PARSE_SPECIAL, " a|</s>| |b"); /* a space before every part */
  weft_tokens tokens = encode_n(t, "ab", 2, WEFT_ENCODE_ADD_SPECIAL);
  weft_text back = {0};
  assert_int_equal(weft_tokenizer_decode(t, tokens.ids, tokens.n, false, &back), WEFT_OK);
  assert_string_equal(back.bytes, "ab"); /* the space in front is taken off */
  weft_text_free(&back);
  weft_tokens_free(&tokens);
  fixture_close(&f);
}

/* An unused token inside an unused token, several deep. */
static void test_llama_unused_nested(void **state) {
  (void)state;
  tokenizer_fixture f = {0};
  fixture_llama(&f);
  fixture_characters(&f,
                     "\xE2\x96\x81"
                     "abcd");
  (void)fixture_token_scored(&f, "ab", FIXTURE_UNUSED, 9);
  (void)fixture_token_scored(&f, "cd", FIXTURE_NORMAL, 8);
  (void)fixture_token_scored(&f, "abcd", FIXTURE_UNUSED, 7);
  (void)fixture_token_scored(&f, "abcdabcd", FIXTURE_UNUSED, 6);
  weft_tokenizer *t = fixture_tokenizer(&f);
  expect(t, "abcdabcd", 0, " |a|b|cd|a|b|cd");
  fixture_close(&f);
}

static void test_gpt2(void **state) {
  (void)state;
  tokenizer_fixture f = {0};
  fixture_gpt2(&f, "llama-bpe");
  fixture_merge(&f, "a", "b");
  fixture_merge(&f, "b", "c");
  (void)fixture_token(&f, "bca", FIXTURE_NORMAL);
  (void)fixture_token(&f, "<|im_end|>", FIXTURE_CONTROL);
  weft_tokenizer *t = fixture_tokenizer(&f);
  expect(t, "abc", 0, "ab|c");
  expect(t, "bca", 0, "bca"); /* whole pieces come before merges here */
  expect(t, "abc<|im_end|>", WEFT_ENCODE_PARSE_SPECIAL, "ab|c|<|im_end|>");
  weft_tokens tokens = encode_n(t, "\xC3\xA9\n", 3, 0);
  assert_int_equal(tokens.n, 3);
  for (uint32_t i = 0; i < 3; i++) assert_int_equal(tokens.ids[i], (uint8_t) "\xC3\xA9\n"[i]); /* ids are bytes here */
  weft_tokens_free(&tokens);
  fixture_close(&f);
}

/* Merges one run the slow way: lowest rank, leftmost, until nothing merges. */
static void naive_bpe(const tokenizer_fixture *f, const char *text, weft_tokens *out) {
  char *parts[256];
  uint32_t n = 0;
  for (const char *c = text; *c != 0; c++) parts[n++] = strndup(c, 1);
  for (;;) {
    uint32_t best = UINT32_MAX, at = 0;
    for (uint32_t i = 0; i + 1 < n; i++) {
      char line[600];
      (void)snprintf(line, sizeof line, "%s %s", parts[i], parts[i + 1]);
      for (uint32_t m = 0; m < f->n_merges && m < best; m++) {
        if (strcmp(f->merges[m], line) == 0) {
          best = m;
          at = i;
        }
      }
    }
    if (best == UINT32_MAX) break;
    size_t n_left = strlen(parts[at]);
    parts[at] = realloc(parts[at], n_left + strlen(parts[at + 1]) + 1);
    strcpy(parts[at] + n_left, parts[at + 1]);
    free(parts[at + 1]);
    memmove(parts + at + 1, parts + at + 2, (n - at - 2) * sizeof *parts);
    n -= 1;
  }
  for (uint32_t i = 0; i < n; i++) {
    for (uint32_t id = 0; id < f->n; id++) {
      if (strcmp(f->tokens[id], parts[i]) == 0) (void)weft_tokens_push(out, (int32_t)id);
    }
    free(parts[i]);
  }
}

static void random_merges(tokenizer_fixture *f, uint64_t *seed, uint32_t n) {
  const char *first = "abc";
  for (uint32_t i = 0; i < n; i++) {
    uint32_t n_texts = 3 + f->n_merges; /* parts: characters, or results so far; results may repeat */
    char parts[2][128];
    for (int side = 0; side < 2; side++) {
      uint32_t pick = (uint32_t)(fixture_draw(77, seed) % n_texts);
      if (pick < 3) {
        (void)snprintf(parts[side], sizeof parts[side], "%c", first[pick]);
      } else {
        char *space = strchr(f->merges[pick - 3], ' ');
        (void)snprintf(parts[side], sizeof parts[side], "%.*s%s", (int)(space - f->merges[pick - 3]),
                       f->merges[pick - 3], space + 1);
      }
    }
    if (strlen(parts[0]) + strlen(parts[1]) <= 24) fixture_merge(f, parts[0], parts[1]);
  }
}

/* n random characters among the first n_letters of "abc" become the tokens that the slow way gives. */
static void check_as_naive(const tokenizer_fixture *f, const weft_tokenizer *t, uint32_t n, uint32_t n_letters,
                           uint64_t *seed,
                           void (*naive)(const tokenizer_fixture *f, const char *text, weft_tokens *out)) {
  char text[128];
  for (uint32_t i = 0; i < n; i++) text[i] = "abc"[fixture_draw(77, seed) % n_letters];
  text[n] = 0;
  weft_tokens want = {0}, got = encode_n(t, text, n, 0);
  naive(f, text, &want);
  assert_int_equal(got.n, want.n);
  assert_memory_equal(got.ids, want.ids, got.n * sizeof *got.ids);
  weft_tokens_free(&want);
  weft_tokens_free(&got);
}

static void test_merges_equal_naive(void **state) {
  (void)state;
  uint64_t seed = 0;
  for (int round = 0; round < 60; round++) {
    tokenizer_fixture f = {0};
    fixture_gemma4(&f);
    for (uint32_t i = 0; i < f.n_merges; i++) free(f.merges[i]);
    f.n_merges = 0;
    random_merges(&f, &seed, 3 + (uint32_t)(fixture_draw(77, &seed) % 20));
    weft_tokenizer *t = fixture_tokenizer(&f);
    for (int k = 0; k < 40; k++) {
      uint32_t n = 1 + (uint32_t)(fixture_draw(77, &seed) % 100);
      uint32_t n_letters = 1 + (uint32_t)(fixture_draw(77, &seed) % 3);
      check_as_naive(&f, t, n, n_letters, &seed, naive_bpe);
    }
    fixture_close(&f);
  }
}

/* The slow way over scores: the neighbours that together are a token with the best score, leftmost. */
static void naive_scores(const tokenizer_fixture *f, const char *text, weft_tokens *out) {
  uint32_t start[256], n = 0;
  for (uint32_t i = 0; text[i] != 0; i++) start[n++] = i;
  start[n] = (uint32_t)strlen(text);
  for (;;) {
    int best = -1;
    uint32_t at = 0;
    for (uint32_t i = 0; i + 1 < n; i++) {
      uint32_t length = start[i + 2] - start[i];
      for (uint32_t id = 0; id < f->n; id++) {
        if (f->types[id] != FIXTURE_NORMAL || strlen(f->tokens[id]) != length) continue;
        if (strncmp(f->tokens[id], text + start[i], length) != 0) continue;
        if (best < 0 || f->scores[id] > f->scores[best]) {
          best = (int)id;
          at = i;
        }
      }
    }
    if (best < 0) break;
    memmove(start + at + 1, start + at + 2, (n - at - 1) * sizeof *start);
    n -= 1;
  }
  for (uint32_t i = 0; i < n; i++) {
    for (uint32_t id = 0; id < f->n; id++) {
      uint32_t length = start[i + 1] - start[i];
      if (strlen(f->tokens[id]) == length && strncmp(f->tokens[id], text + start[i], length) == 0) {
        (void)weft_tokens_push(out, (int32_t)id);
      }
    }
  }
}

static void test_scores_equal_naive(void **state) {
  (void)state;
  uint64_t seed = 1000000;
  for (int round = 0; round < 60; round++) {
    tokenizer_fixture f = {0};
    fixture_llama(&f);
    fixture_characters(&f, "abc");
    gguf_writer_bool(&f.writer, "tokenizer.ggml.add_space_prefix", false);
    random_merges(&f, &seed, 3 + (uint32_t)(fixture_draw(77, &seed) % 20));
    for (uint32_t i = 0; i < f.n; i++)
      f.scores[i] = (float)(int)(fixture_draw(77, &seed) % 9) - 4.0f; /* both signs, ties, zero */
    weft_tokenizer *t = fixture_tokenizer(&f);
    for (int k = 0; k < 40; k++) {
      uint32_t n = 1 + (uint32_t)(fixture_draw(77, &seed) % 100);
      check_as_naive(&f, t, n, 3, &seed, naive_scores);
    }
    fixture_close(&f);
  }
}

/* Processor time of this program, which no other program on the machine lengthens. */
static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* n bytes of unit over and over: linear work takes milliseconds, quadratic work a minute or more. */
static double hostile(const weft_tokenizer *t, const char *unit, size_t n, const char *name) {
  size_t n_unit = strlen(unit);
  char *text = malloc(n);
  for (size_t i = 0; i < n; i++) text[i] = unit[i % n_unit];
  double before = seconds();
  weft_tokens tokens = encode_n(t, text, n, 0);
  double took = seconds() - before;
  assert_true(tokens.n > 0);
  if (took > 10.0) fail_msg("%s: %zu bytes of '%s' took %.1f s", name, n, unit, took);
  weft_tokens_free(&tokens);
  free(text);
  return took;
}

static const char *const units[] = {" ",
                                    "a",
                                    "1",
                                    "\n",
                                    "\r\n",
                                    "  \n",
                                    "'",
                                    "'r",
                                    "<",
                                    "<|",
                                    "<|turn",
                                    " a",
                                    "a ",
                                    "\t ",
                                    "\xE2\x96\x81",
                                    "\xC2\xA0",
                                    "\xF0\x9F\x98\x80",
                                    "e\xCC\x81",
                                    "\xFF",
                                    "\xE2\x82",
                                    "aA1 ,",
                                    "\xE4\xB8\xAD",
                                    "\xC2\xBD",
                                    "- ",
                                    " -",
                                    "--"};
enum { N_UNITS = sizeof units / sizeof *units };

static void hostile_all(const weft_tokenizer *t, const char *name) {
  double worst = 0, took;
  for (size_t i = 0; i < N_UNITS; i++) {
    took = hostile(t, units[i], 100000, name);
    if (took > worst) worst = took;
  }
  print_message("%s: worst of %d hostile texts %.1f ms for 100 kB", name, N_UNITS, 1e3 * worst);
  bool larger = strcmp(name, "gemma4") == 0 || strcmp(name, "qwen2") == 0;
  for (size_t i = 0; larger && i < 3; i++) print_message(", %.0f", 1e3 * hostile(t, units[i], 1000000, name));
  print_message(larger ? " ms for 1 MB of spaces, letters, digits\n" : "\n");
}

/* Runs of a, b, spaces and digits merge in doubling steps, as in real vocabularies. */
static void doubling_merges(tokenizer_fixture *f, const char *unit) {
  weft_text text = {0};
  weft_text_puts(&text, unit);
  for (int i = 0; i < 4; i++) {
    char *half = strdup(text.bytes);
    fixture_merge(f, half, half);
    weft_text_puts(&text, half);
    free(half);
  }
  weft_text_free(&text);
}

static void test_hostile_text_gemma4_llama(void **state) {
  (void)state;
  for (int llama = 0; llama < 2; llama++) {
    tokenizer_fixture f = {0};
    fixture_gemma4(&f);
    doubling_merges(&f, "a");
    doubling_merges(&f, "\xE2\x96\x81");
    doubling_merges(&f, "<");
    if (llama) f.model = "llama";
    weft_tokenizer *t = fixture_tokenizer(&f);
    hostile_all(t, f.model);
    fixture_close(&f);
  }
}

static void test_hostile_text_gpt2(void **state) {
  (void)state;
  static const char *const pres[] = {"default",   "gpt-2",          "llama-bpe",   "dbrx",    "qwen2",       "qwen35",
                                     "starcoder", "deepseek-coder", "deepseek-v3", "kimi-k2", "deepseek-llm"};
  for (size_t i = 0; i < sizeof pres / sizeof *pres; i += test_amount(4, 1, 1)) {
    tokenizer_fixture f = {0};
    fixture_gpt2(&f, pres[i]);
    doubling_merges(&f, "a");
    doubling_merges(&f, "\xC4\xA0");
    weft_tokenizer *t = fixture_tokenizer(&f);
    hostile_all(t, pres[i]);
    fixture_close(&f);
  }
}

static void test_too_large(void **state) {
  (void)state;
  tokenizer_fixture f = {0};
  fixture_gemma4(&f);
  weft_tokenizer *t = fixture_tokenizer(&f);
  weft_tokens tokens = {0};
  weft_error error;
  assert_int_equal(weft_tokenizer_encode(t, "", (size_t)WEFT_TOKENIZER_TEXT_MAX + 1, 0, &tokens, &error),
                   WEFT_E_TOO_LARGE);
  assert_non_null(strstr(error.text, "67108865 bytes"));
  fixture_close(&f);
}

static void test_encode_survives_refused_memory(void **state) {
  (void)state;
  static const char text[] = "some text  <|channel>with\n\nparts \xFF and cdcd \xC3\xA9";
  for (int kind = 0; kind < 3; kind++) {
    tokenizer_fixture f = {0};
    if (kind == 1) {
      fixture_gpt2(&f, "deepseek-v3");
    } else {
      fixture_gemma4(&f);
      (void)fixture_token(&f, "cd", FIXTURE_UNUSED);
      if (kind == 2) f.model = "llama";
    }
    weft_tokenizer *t = fixture_tokenizer(&f);
    weft_tokens want = encode_n(t, text, sizeof text - 1, 0);
    uint64_t n = 1;
    for (;; n++) {
      weft_tokens tokens = {0};
      weft_error error = {{0}};
      (void)weft_memory_fail_at(n);
      weft_status status = weft_tokenizer_encode(t, text, sizeof text - 1, 0, &tokens, &error);
      (void)weft_memory_fail_at(0);
      if (status == WEFT_OK) {
        assert_int_equal(tokens.n, want.n);
        assert_memory_equal(tokens.ids, want.ids, want.n * sizeof *want.ids);
      } else {
        assert_int_equal(status, WEFT_E_NO_MEMORY);
        assert_int_equal(tokens.n, 0);
        assert_non_null(strstr(error.text, "out of memory"));
      }
      weft_tokens_free(&tokens);
      if (status == WEFT_OK) break;
    }
    assert_true(n > 4);
    weft_tokens_free(&want);
    fixture_close(&f);
  }
}

int main(void) {
  weft_log_set_level(WEFT_LOG_ERROR);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_modes),
      cmocka_unit_test(test_add_eos),
      cmocka_unit_test(test_merges_never_make_special_tokens),
      cmocka_unit_test(test_gemma4_newlines_and_bytes),
      cmocka_unit_test(test_bytes_that_cannot_be_written),
      cmocka_unit_test(test_llama),
      cmocka_unit_test(test_llama_unused_nested),
      cmocka_unit_test(test_gpt2),
      cmocka_unit_test(test_merges_equal_naive),
      cmocka_unit_test(test_scores_equal_naive),
      cmocka_unit_test(test_hostile_text_gemma4_llama),
      cmocka_unit_test(test_hostile_text_gpt2),
      cmocka_unit_test(test_too_large),
      cmocka_unit_test(test_encode_survives_refused_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
