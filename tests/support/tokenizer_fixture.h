/* SPDX-License-Identifier: MIT */
/* Small vocabularies in memory, for tests: tokens are added one by one, then opened through a real
 * GGUF. */
#ifndef WEFT_TESTS_TOKENIZER_FIXTURE_H
#define WEFT_TESTS_TOKENIZER_FIXTURE_H

#include <stdio.h>
#include <stdlib.h>

#include "base/random.h"
#include "model/text/tokenizer.h"
#include "tests/support/gguf_writer.h"

enum { FIXTURE_NORMAL = 1, FIXTURE_UNKNOWN, FIXTURE_CONTROL, FIXTURE_USER, FIXTURE_UNUSED, FIXTURE_BYTE };

typedef struct tokenizer_fixture {
  const char *model, *pre;
  char **tokens, **merges;
  int32_t *types;
  float *scores;
  uint32_t n, n_merges, capacity, merges_capacity;
  gguf_writer writer; /* more keys may be added before open */
  weft_gguf *gguf;
  weft_tokenizer *tokenizer; /* of fixture_tokenizer */
} tokenizer_fixture;

/* Draws that follow from the seed alone; n counts them. */
static inline uint64_t fixture_draw(uint32_t seed, uint64_t *n) {
  weft_draw_key key = {.seed = seed, .purpose = WEFT_DRAW_TEST, .position = (*n)++};
  return weft_draw_bits(&key);
}

static inline uint32_t fixture_token_scored(tokenizer_fixture *f, const char *text, int32_t type, float score) {
  if (f->n == f->capacity) {
    f->capacity = f->capacity == 0 ? 64 : 2 * f->capacity;
    f->tokens = realloc(f->tokens, f->capacity * sizeof *f->tokens);
    f->types = realloc(f->types, f->capacity * sizeof *f->types);
    f->scores = realloc(f->scores, f->capacity * sizeof *f->scores);
  }
  f->tokens[f->n] = strdup(text);
  f->types[f->n] = type;
  f->scores[f->n] = score;
  return f->n++;
}

static inline uint32_t fixture_token(tokenizer_fixture *f, const char *text, int32_t type) {
  return fixture_token_scored(f, text, type, 0.0f);
}

/* The 256 byte tokens. */
static inline void fixture_bytes(tokenizer_fixture *f) {
  for (unsigned b = 0; b < 256; b++) {
    char text[8];
    (void)snprintf(text, sizeof text, "<0x%02X>", b);
    (void)fixture_token(f, text, FIXTURE_BYTE);
  }
}

/* One normal token per character of text. */
static inline void fixture_characters(tokenizer_fixture *f, const char *text) {
  for (size_t at = 0, n = strlen(text); at < n;) {
    uint32_t c;
    char one[5] = {0};
    size_t length = weft_utf8_decode(text + at, n - at, &c);
    memcpy(one, text + at, length);
    (void)fixture_token(f, one, FIXTURE_NORMAL);
    at += length;
  }
}

/* Adds the merge, and its result as a token unless it is there. */
static inline void fixture_merge(tokenizer_fixture *f, const char *left, const char *right) {
  if (f->n_merges == f->merges_capacity) {
    f->merges_capacity = f->merges_capacity == 0 ? 64 : 2 * f->merges_capacity;
    f->merges = realloc(f->merges, f->merges_capacity * sizeof *f->merges);
  }
  weft_text line = {0}, joined = {0};
  weft_text_printf(&line, "%s %s", left, right);
  weft_text_printf(&joined, "%s%s", left, right);
  f->merges[f->n_merges++] = strdup(line.bytes);
  uint32_t at = 0;
  while (at < f->n && strcmp(f->tokens[at], joined.bytes) != 0) at += 1;
  if (at == f->n) (void)fixture_token(f, joined.bytes, FIXTURE_NORMAL);
  weft_text_free(&line);
  weft_text_free(&joined);
}

static inline void fixture_write(tokenizer_fixture *f) {
  gguf_writer *w = &f->writer;
  gguf_writer_string(w, "general.architecture", "test");
  gguf_writer_string(w, "tokenizer.ggml.model", f->model);
  if (f->pre != NULL) gguf_writer_string(w, "tokenizer.ggml.pre", f->pre);
  gguf_writer_strings(w, "tokenizer.ggml.tokens", (const char *const *)f->tokens, f->n);
  gguf_writer_array(w, "tokenizer.ggml.token_type", WEFT_GGUF_I32, f->types, f->n, 4);
  gguf_writer_array(w, "tokenizer.ggml.scores", WEFT_GGUF_F32, f->scores, f->n, 4);
  gguf_writer_strings(w, "tokenizer.ggml.merges", (const char *const *)f->merges, f->n_merges);
}

/* Writes and opens. The status is the tokenizer's; the gguf must be sound (NULL in *out and an
 * error line otherwise). */
static inline weft_status fixture_open(tokenizer_fixture *f, weft_tokenizer **out, weft_error *error) {
  fixture_write(f);
  weft_bytes bytes = gguf_writer_finish(&f->writer);
  *out = NULL;
  weft_status status = weft_gguf_open_memory(bytes.data, bytes.n, "test.gguf", &f->gguf, error);
  return status == WEFT_OK ? weft_tokenizer_open(f->gguf, out, error) : status;
}

/* For vocabularies that are sound. The fixture closes the tokenizer. */
static inline weft_tokenizer *fixture_tokenizer(tokenizer_fixture *f) {
  weft_error error = {{0}};
  if (fixture_open(f, &f->tokenizer, &error) == WEFT_OK) return f->tokenizer;
  (void)printf("FAILED: the fixture's vocabulary: %s\n", error.text);
  exit(1);
}

static inline void fixture_close(tokenizer_fixture *f) {
  weft_tokenizer_close(f->tokenizer);
  for (uint32_t i = 0; i < f->n; i++) free(f->tokens[i]);
  for (uint32_t i = 0; i < f->n_merges; i++) free(f->merges[i]);
  free(f->tokens);
  free(f->types);
  free(f->scores);
  free(f->merges);
  weft_gguf_close(f->gguf);
  gguf_writer_close(&f->writer);
  memset(f, 0, sizeof *f);
}

/* A gemma4 vocabulary with the family's markers: ids 0.. are <pad> <eos> <bos> <unk> <mask> <|turn>
 * <turn|> <|think|>
 * <|channel> <channel|> <|tool_response>, then bytes, newline runs of 1 to 4, U+2581 and printable
 * ASCII. */
enum {
  GEMMA_PAD,
  GEMMA_EOS,
  GEMMA_BOS,
  GEMMA_UNK,
  GEMMA_MASK,
  GEMMA_TURN,
  GEMMA_TURN_END,
  GEMMA_THINK,
  GEMMA_CHANNEL,
  GEMMA_CHANNEL_END,
  GEMMA_TOOL_RESPONSE
};

static inline void fixture_gemma4(tokenizer_fixture *f) {
  static const char *const names[] = {"<pad>",   "<eos>",     "<bos>",      "<unk>",      "<mask>",          "<|turn>",
                                      "<turn|>", "<|think|>", "<|channel>", "<channel|>", "<|tool_response>"};
  f->model = "gemma4";
  for (uint32_t i = 0; i < 11; i++) {
    (void)fixture_token(f, names[i],
                        i >= GEMMA_CHANNEL ? FIXTURE_USER
                        : i == GEMMA_UNK   ? FIXTURE_UNKNOWN
                                           : FIXTURE_CONTROL);
  }
  fixture_bytes(f);
  fixture_characters(f, "\n\xE2\x96\x81\t");
  for (char c = '!'; c <= '~'; c++) {
    char text[2] = {c, 0};
    (void)fixture_token(f, text, FIXTURE_NORMAL);
  }
  fixture_merge(f, "\n", "\n");
  fixture_merge(f, "\n\n", "\n\n");
  fixture_merge(f, "\n\n", "\n");
  gguf_writer_u32(&f->writer, "tokenizer.ggml.padding_token_id", GEMMA_PAD);
  gguf_writer_u32(&f->writer, "tokenizer.ggml.eos_token_id", GEMMA_EOS);
  gguf_writer_u32(&f->writer, "tokenizer.ggml.bos_token_id", GEMMA_BOS);
  gguf_writer_u32(&f->writer, "tokenizer.ggml.unknown_token_id", GEMMA_UNK);
  gguf_writer_u32(&f->writer, "tokenizer.ggml.mask_token_id", GEMMA_MASK);
}

/* What every vocabulary of llama begins with. */
static inline void fixture_llama(tokenizer_fixture *f) {
  f->model = "llama";
  (void)fixture_token(f, "<unk>", FIXTURE_UNKNOWN);
  (void)fixture_token(f, "<s>", FIXTURE_CONTROL);
  (void)fixture_token(f, "</s>", FIXTURE_CONTROL);
}

/* The 256 characters of gpt2's alphabet as normal tokens, in byte order. */
static inline void fixture_gpt2(tokenizer_fixture *f, const char *pre) {
  f->model = "gpt2";
  f->pre = pre;
  uint32_t next = 0x100;
  for (unsigned b = 0; b < 256; b++) {
    bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    char text[5] = {0};
    (void)weft_utf8_encode(printable ? b : next++, text);
    (void)fixture_token(f, text, FIXTURE_NORMAL);
  }
}

#endif
