/* SPDX-License-Identifier: MIT */
/* A model that keeps states and can chat, for tests of prefixes: qwen35-moe of tests/golden, or another file there
 * without a vocabulary, with one of single bytes and the special tokens of Qwen, and with a chat template.
 *
 * Law: byte b is token b, so every text has one way to be tokens, which are as many as its bytes; embeddings and heads
 * are drawn from a fixed seed, and tables of tokens repeat those of the file. The file lies in gguf_edit.h's folder and
 * goes with gguf_edit_clean. */
#ifndef WEFT_TESTS_STATE_MODEL_H
#define WEFT_TESTS_STATE_MODEL_H

#include "base/random.h"
#include "tests/support/gguf_edit.h"

#define STATE_MODEL_TEMPLATE WEFT_SOURCE_DIR "/tests/golden/chat/qwen35.jinja"

static const char *const state_model_special[] = {"<|im_start|>", "<|im_end|>",      "<|endoftext|>",
                                                  "<think>",      "</think>",        "<tool_call>",
                                                  "</tool_call>", "<tool_response>", "</tool_response>"};
enum {
  STATE_MODEL_SPECIAL = sizeof state_model_special / sizeof *state_model_special,
  STATE_MODEL_MERGED = 256 + STATE_MODEL_SPECIAL, /* two bytes that no test writes: a file has one merge at least */
  STATE_MODEL_VOCAB = STATE_MODEL_MERGED + 1,
  STATE_MODEL_BORDER = 64
};

/* The letter that stands for a byte in files of gpt2's kind, as UTF-8. */
static inline void state_model_letter(uint32_t byte, char out[4]) {
  uint32_t code = byte, n_moved = 0;
  for (uint32_t b = 0; b <= byte; b++) {
    bool stays = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
    if (b == byte && !stays) code = 256 + n_moved;
    n_moved += !stays;
  }
  if (code < 0x80) {
    (void)snprintf(out, 4, "%c", (char)code);
  } else {
    (void)snprintf(out, 4, "%c%c", (char)(0xC0 | code >> 6), (char)(0x80 | (code & 0x3F)));
  }
}

static inline void state_model_vocabulary(gguf_writer *w) {
  static char letter[256][4], merged[8], merge[8];
  const char *token[STATE_MODEL_VOCAB];
  const char *const merges[] = {merge};
  int32_t type[STATE_MODEL_VOCAB];
  for (uint32_t b = 0; b < 256; b++) {
    state_model_letter(b, letter[b]);
    token[b] = letter[b];
    type[b] = 1; /* normal */
  }
  for (uint32_t i = 0; i < STATE_MODEL_SPECIAL; i++) {
    token[256 + i] = state_model_special[i];
    type[256 + i] = i < 3 ? 3 : 4; /* control; user-defined */
  }
  (void)snprintf(merged, sizeof merged, "%s%s", letter[1], letter[2]);
  (void)snprintf(merge, sizeof merge, "%s %s", letter[1], letter[2]);
  token[STATE_MODEL_MERGED] = merged;
  type[STATE_MODEL_MERGED] = 1;
  gguf_writer_string(w, "tokenizer.ggml.model", "gpt2");
  gguf_writer_string(w, "tokenizer.ggml.pre", "qwen35");
  gguf_writer_strings(w, "tokenizer.ggml.tokens", token, STATE_MODEL_VOCAB);
  gguf_writer_array(w, "tokenizer.ggml.token_type", WEFT_GGUF_I32, type, STATE_MODEL_VOCAB, sizeof *type);
  gguf_writer_strings(w, "tokenizer.ggml.merges", merges, 1);
  gguf_writer_u32(w, "tokenizer.ggml.eos_token_id", 257);
}

static inline void state_model_template(gguf_writer *w) {
  static char text[1 << 14];
  FILE *file = fopen(STATE_MODEL_TEMPLATE, "rb");
  gguf_edit_need(file != NULL, STATE_MODEL_TEMPLATE);
  size_t n = fread(text, 1, sizeof text - 1, file);
  gguf_edit_need(fclose(file) == 0 && n > 0 && n < sizeof text - 1, STATE_MODEL_TEMPLATE);
  gguf_writer_string_n(w, "tokenizer.chat_template", text, n);
}

/* A tensor with a row for each token: of floats drawn, of whole numbers repeated. */
static inline void state_model_rows(const weft_gguf_tensor *t, uint64_t seed, gguf_writer *w) {
  const uint64_t ne[] = {t->ne[0], STATE_MODEL_VOCAB};
  size_t n = (size_t)(ne[0] * ne[1]), n_old = (size_t)(t->ne[0] * t->ne[1]);
  union {
    float real;
    int32_t whole;
  } *rows = malloc(n * sizeof *rows);
  const int32_t *old = (const int32_t *)(const void *)t->data;
  gguf_edit_need(rows != NULL, "memory");
  for (size_t k = 0; k < n; k++) {
    if (t->type == WEFT_TYPE_F32)
      rows[k].real = (float)(weft_mix64(seed + k + 1) >> 40) * 0x1p-22f - 2.0f;
    else
      rows[k].whole = old[k % n_old];
  }
  gguf_writer_tensor(w, t->name, (int32_t)t->type_id, 2, ne, rows, n * sizeof *rows);
  free(rows);
}

static inline void state_model_tensors(const weft_gguf *from, gguf_writer *w) {
  for (uint32_t i = 0; i < from->n_tensors; i++) {
    const weft_gguf_tensor *t = &from->tensors[i];
    bool embeds = strcmp(t->name, "token_embd.weight") == 0, ends = strcmp(t->name, "output.weight") == 0;
    if (embeds || ends || strstr(t->name, "tid2eid") != NULL)
      state_model_rows(t, ends ? 1 << 20 : 0, w);
    else
      gguf_writer_tensor(w, t->name, (int32_t)t->type_id, t->n_dims, t->ne, t->data, (size_t)t->n_bytes);
  }
}

/* Gives the file's path. */
static inline const char *state_model_write(const char *source, uint32_t context, const char *name) {
  static const char token_map[] = "deepseek41.engram.token_map"; /* has a number for each token */
  char key[64];
  const gguf_edit longer = {.set_u32 = key, .value = context, .set_list = token_map};
  int32_t number[STATE_MODEL_VOCAB];
  weft_gguf *from;
  weft_bytes arch = {NULL, 0};
  weft_error error = {{0}};
  gguf_writer w = {0};
  if (weft_gguf_open(source, &from, &error) != WEFT_OK) gguf_edit_need(false, error.text);
  gguf_edit_need(weft_gguf_string(from, "general.architecture", &arch, &error) == WEFT_OK, error.text);
  (void)snprintf(key, sizeof key, "%.*s.context_length", (int)arch.n, (const char *)arch.data);
  for (uint32_t i = 0; i < from->parts[0].n_keys; i++) gguf_edit_key(&from->parts[0].keys[i], &longer, &w);
  gguf_writer_u32(&w, longer.set_u32, context);
  for (int32_t i = 0; i < STATE_MODEL_VOCAB; i++) number[i] = i % 6;
  if (weft_gguf_count(from, token_map) > 0)
    gguf_writer_array(&w, token_map, WEFT_GGUF_I32, number, STATE_MODEL_VOCAB, sizeof *number);
  state_model_vocabulary(&w);
  state_model_template(&w);
  state_model_tensors(from, &w);
  weft_gguf_close(from);
  const char *path = gguf_edit_keep(gguf_writer_finish(&w), name);
  gguf_writer_close(&w);
  return path;
}

static inline const char *state_model_of(const char *source, uint32_t context) {
  return state_model_write(source, context, "states");
}

/* One that has latent rows, near and far (kernels/latent.h), in place of states. */
static inline const char *state_model_latent(uint32_t context) {
  return state_model_write(WEFT_SOURCE_DIR "/tests/golden/models/deepseek4-base.gguf", context, "latent");
}

/* One whose layers share far rows, and that keeps tokens (kernels/engram.h). */
static inline const char *state_model_shared(uint32_t context) {
  return state_model_write(WEFT_SOURCE_DIR "/tests/golden/models/deepseek41-base.gguf", context, "shared");
}

/* One whose every other layer has a window of 128 tokens. */
static inline const char *state_model_windows(uint32_t context) {
  return state_model_write(WEFT_SOURCE_DIR "/tests/golden/models/gpt-oss-base.gguf", context, "windows");
}

static inline const char *state_model_file(uint32_t context) {
  return state_model_of(WEFT_SOURCE_DIR "/tests/golden/models/qwen35-moe.gguf", context);
}

#endif
