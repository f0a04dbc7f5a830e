/* SPDX-License-Identifier: MIT */
/* A model that any number of devices up to sixteen can share out, by layer or by tensor: 48 heads, so that two,
 * three, four, six, eight, twelve and sixteen have equally many, 16 layers, and a vocabulary of sixteen chunks. Of
 * qwen3's kind with one key head, which all devices then have, or of qwen3moe's with a key head for each head, and
 * experts.
 *
 * Law: numbers are drawn from fixed seeds, so a file has the same bytes each time. It lies in gguf_edit.h's folder
 * and goes with gguf_edit_clean. No tokenizer is in it. */
#ifndef WEFT_TESTS_WIDE_MODEL_H
#define WEFT_TESTS_WIDE_MODEL_H

#include "base/random.h"
#include "tests/support/gguf_edit.h"

enum {
  WIDE_LAYERS = 16,
  WIDE_HIDDEN = 48,
  WIDE_HEADS = 48,
  WIDE_HEAD_DIM = 8,
  WIDE_FF = 48,
  WIDE_EXPERTS = 16,
  WIDE_EXPERT_FF = 16,
  WIDE_VOCAB = 16 * 512 - 100
};

typedef struct wide_model {
  gguf_writer w;
  const char *arch;
  uint64_t seed;
} wide_model;

/* Of size near `spread`, about `middle`. */
static inline void wide_tensor(wide_model *m, const char *name, float middle, float spread, uint64_t a, uint64_t b,
                               uint64_t c) {
  const uint64_t ne[3] = {a, b, c}, n = a * b * c;
  float *values = malloc(n * sizeof *values);
  gguf_edit_need(values != NULL, "memory");
  for (uint64_t i = 0; i < n; i++) {
    uint64_t word = weft_mix64(++m->seed * 0x9E3779B97F4A7C15ull);
    values[i] = middle + spread * ((float)(word >> 40) / (float)(1 << 23) - 1.0f);
  }
  gguf_writer_tensor(&m->w, name, WEFT_TYPE_F32, c > 1 ? 3 : b > 1 ? 2 : 1, ne, values, n * sizeof *values);
  free(values);
}

static inline void wide_u32(wide_model *m, const char *what, uint32_t value) {
  char key[96];
  (void)snprintf(key, sizeof key, "%s.%s", m->arch, what);
  gguf_writer_u32(&m->w, key, value);
}

static inline void wide_layer(wide_model *m, uint32_t layer, uint32_t n_kv_heads, bool routes) {
  const uint64_t hidden = WIDE_HIDDEN, q = (uint64_t)WIDE_HEADS * WIDE_HEAD_DIM,
                 kv = (uint64_t)n_kv_heads * WIDE_HEAD_DIM;
  const struct {
    const char *name;
    float middle, spread;
    uint64_t dim[3];
    bool of_experts, of_dense;
  } rows[] = {
      {"attn_norm", 1.0f, 0.3f, {hidden, 1, 1}, true, true},
      {"attn_q", 0.0f, 0.2f, {hidden, q, 1}, true, true},
      {"attn_k", 0.0f, 0.2f, {hidden, kv, 1}, true, true},
      {"attn_v", 0.0f, 0.2f, {hidden, kv, 1}, true, true},
      {"attn_output", 0.0f, 0.1f, {q, hidden, 1}, true, true},
      {"attn_q_norm", 1.0f, 0.3f, {WIDE_HEAD_DIM, 1, 1}, true, true},
      {"attn_k_norm", 1.0f, 0.3f, {WIDE_HEAD_DIM, 1, 1}, true, true},
      {"ffn_norm", 1.0f, 0.3f, {hidden, 1, 1}, true, true},
      {"ffn_gate", 0.0f, 0.2f, {hidden, WIDE_FF, 1}, false, true},
      {"ffn_up", 0.0f, 0.2f, {hidden, WIDE_FF, 1}, false, true},
      {"ffn_down", 0.0f, 0.2f, {WIDE_FF, hidden, 1}, false, true},
      {"ffn_gate_inp", 0.0f, 0.2f, {hidden, WIDE_EXPERTS, 1}, true, false},
      {"ffn_gate_exps", 0.0f, 0.2f, {hidden, WIDE_EXPERT_FF, WIDE_EXPERTS}, true, false},
      {"ffn_up_exps", 0.0f, 0.2f, {hidden, WIDE_EXPERT_FF, WIDE_EXPERTS}, true, false},
      {"ffn_down_exps", 0.0f, 0.2f, {WIDE_EXPERT_FF, hidden, WIDE_EXPERTS}, true, false},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    char name[96];
    (void)snprintf(name, sizeof name, "blk.%u.%s.weight", layer, rows[i].name);
    const uint64_t *dim = rows[i].dim;
    if (routes ? rows[i].of_experts : rows[i].of_dense)
      wide_tensor(m, name, rows[i].middle, rows[i].spread, dim[0], dim[1], dim[2]);
  }
}

/* Its path, valid until gguf_edit_clean. tied: the embedding is the head too. */
static inline const char *wide_model_file(const char *name, bool routes, bool tied) {
  wide_model m = {.arch = routes ? "qwen3moe" : "qwen3", .seed = routes ? 1 << 20 : 0};
  uint32_t n_kv_heads = routes ? WIDE_HEADS : 1;
  gguf_writer_string(&m.w, "general.architecture", m.arch);
  wide_u32(&m, "block_count", WIDE_LAYERS);
  wide_u32(&m, "context_length", 256);
  wide_u32(&m, "embedding_length", WIDE_HIDDEN);
  wide_u32(&m, "feed_forward_length", WIDE_FF);
  wide_u32(&m, "attention.head_count", WIDE_HEADS);
  wide_u32(&m, "attention.head_count_kv", n_kv_heads);
  wide_u32(&m, "attention.key_length", WIDE_HEAD_DIM);
  wide_u32(&m, "attention.value_length", WIDE_HEAD_DIM);
  gguf_writer_f32(&m.w, routes ? "qwen3moe.attention.layer_norm_rms_epsilon" : "qwen3.attention.layer_norm_rms_epsilon",
                  1e-6f);
  if (routes) {
    wide_u32(&m, "expert_count", WIDE_EXPERTS);
    wide_u32(&m, "expert_used_count", 3);
    wide_u32(&m, "expert_feed_forward_length", WIDE_EXPERT_FF);
  }
  wide_tensor(&m, "token_embd.weight", 0.0f, 1.0f, WIDE_HIDDEN, WIDE_VOCAB, 1);
  if (!tied) wide_tensor(&m, "output.weight", 0.0f, 1.0f, WIDE_HIDDEN, WIDE_VOCAB, 1);
  wide_tensor(&m, "output_norm.weight", 1.0f, 0.3f, WIDE_HIDDEN, 1, 1);
  for (uint32_t l = 0; l < WIDE_LAYERS; l++) wide_layer(&m, l, n_kv_heads, routes);
  const char *path = gguf_edit_keep(gguf_writer_finish(&m.w), name);
  gguf_writer_close(&m.w);
  return path;
}

#endif
