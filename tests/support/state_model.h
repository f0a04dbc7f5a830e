/* SPDX-License-Identifier: MIT */
/* A model that keeps states and can chat, for tests of prefixes: qwen35-moe of tests/golden, or another file of its
 * kind, with a vocabulary of single bytes and the special tokens of Qwen, and with a chat template.
 *
 * Law: byte b is token b, so every text has one way to be tokens, which are as many as its bytes; embeddings are drawn
 * from a fixed seed. The file lies in gguf_edit.h's folder and goes with gguf_edit_clean. */
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

static inline void state_model_tensors(const weft_gguf *from, gguf_writer *w) {
  for (uint32_t i = 0; i < from->n_tensors; i++) {
    const weft_gguf_tensor *t = &from->tensors[i];
    if (strcmp(t->name, "token_embd.weight") != 0) {
      gguf_writer_tensor(w, t->name, (int32_t)t->type, t->n_dims, t->ne, t->data, (size_t)t->n_bytes);
      continue;
    }
    const uint64_t ne[] = {t->ne[0], STATE_MODEL_VOCAB};
    size_t n = (size_t)(ne[0] * ne[1]);
    float *rows = malloc(n * sizeof *rows);
    gguf_edit_need(rows != NULL, "memory");
    for (size_t k = 0; k < n; k++) rows[k] = (float)(weft_mix64(k + 1) >> 40) * 0x1p-22f - 2.0f;
    gguf_writer_tensor(w, t->name, WEFT_TYPE_F32, 2, ne, rows, n * sizeof *rows);
    free(rows);
  }
}

/* Gives the file's path. */
static inline const char *state_model_of(const char *source, uint32_t context) {
  const gguf_edit longer = {.set_u32 = "qwen35moe.context_length", .value = context};
  weft_gguf *from;
  weft_error error = {{0}};
  gguf_writer w = {0};
  if (weft_gguf_open(source, &from, &error) != WEFT_OK) gguf_edit_need(false, error.text);
  for (uint32_t i = 0; i < from->parts[0].n_keys; i++) gguf_edit_key(&from->parts[0].keys[i], &longer, &w);
  gguf_writer_u32(&w, longer.set_u32, context);
  state_model_vocabulary(&w);
  state_model_template(&w);
  state_model_tensors(from, &w);
  weft_gguf_close(from);
  const char *path = gguf_edit_keep(gguf_writer_finish(&w), "states");
  gguf_writer_close(&w);
  return path;
}

static inline const char *state_model_file(uint32_t context) {
  return state_model_of(WEFT_SOURCE_DIR "/tests/golden/models/qwen35-moe.gguf", context);
}

#endif
