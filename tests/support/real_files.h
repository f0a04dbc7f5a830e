/* SPDX-License-Identifier: MIT */
/* Sparse files with the keys, tensors and types of models that people have: their header is written, their weights are
 * zeros that take no room on the disk.
 *
 * Law: a description is sizes and a line that says which matrix has which type. The line's entries are tried in order:
 *   NAME:TYPE     matrices of this name; NAME is what follows "blk.N." without ".weight"; * is any
 *   NAME<8:TYPE   of layers 0 to 7 only
 *   NAME+:TYPE    of the layers to which quantisers give more bits: the outer eighths, and every third between
 *   #70:TYPE      the next 70 matrices that come to this entry
 * A row that a type's blocks do not divide gets the type that llama.cpp's quantiser falls back to. Vectors and routers
 * are F32. A matrix of NVFP4 has its scales beside it, as converters write them. */
#ifndef WEFT_TESTS_REAL_FILES_H
#define WEFT_TESTS_REAL_FILES_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/log.h"
#include "model/gguf/gguf_internal.h"
#include "tests/support/gguf_writer.h"

/* Setup and teardown of a group of tests that write one such file after another to real_path. */
static char real_path[] = "/tmp/weft-real-XXXXXX";

static inline int real_path_open(void **state) {
  (void)state;
  weft_log_set_level(WEFT_LOG_ERROR);
  int file = mkstemp(real_path);
  return file < 0 ? -1 : close(file);
}

static inline int real_path_remove(void **state) {
  (void)state;
  return unlink(real_path);
}

typedef struct real_model {
  const char *arch;
  uint32_t layers, hidden, ff, heads, kv, kv_global, window, experts, expert_ff, period, vocab, context, head,
      head_global, per_layer, shared;
  bool all_have_values; /* gemma4: global layers have values of their own */
  bool encoder;         /* beside the model, as Ollama stores it */
  bool split_experts;   /* gemma4: gate and up of experts are two tensors */
} real_model;

typedef struct real_file {
  gguf_writer writer;
  const real_model *model;
  const char *types;
  uint64_t at;           /* bytes of tensors so far */
  uint32_t n_counted[8]; /* of the entries # */
  uint32_t n_values;     /* tensors attn_v so far */
} real_file;

static inline uint32_t real_type_of_name(const char *name, size_t n) {
  for (uint32_t id = 0; id < 43; id++) {
    const char *known = weft_type_name_of_id((int32_t)id);
    if (strlen(known) == n && memcmp(known, name, n) == 0) return id;
  }
  (void)printf("FAILED: real_files: no type %.*s\n", (int)n, name);
  exit(1);
}

/* What a quantiser takes where rows are no multiple of 256. */
static inline uint32_t real_fallback(uint32_t id, uint64_t row) {
  uint32_t n_elements, n_bytes;
  if (!gguf_type_block((int32_t)id, &n_elements, &n_bytes) || row % n_elements == 0) return id;
  return id == WEFT_TYPE_Q4_K                             ? WEFT_TYPE_Q5_0
         : id == WEFT_TYPE_Q5_K                           ? WEFT_TYPE_Q5_1
         : id == WEFT_TYPE_Q6_K                           ? WEFT_TYPE_Q8_0
         : id == WEFT_TYPE_TQ1_0 || id == WEFT_TYPE_TQ2_0 ? WEFT_TYPE_Q4_0
                                                          : WEFT_TYPE_IQ4_NL;
}

static inline bool real_more_bits(uint32_t i, uint32_t n) {
  return i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2;
}

/* One entry against a matrix: the type's name behind the colon when it is meant, else NULL. */
static inline const char *real_match(real_file *f, const char *entry, uint32_t index, const char *name,
                                     uint32_t layer) {
  size_t n = strcspn(entry, ":<+"), n_name = strlen(name);
  char *rest;
  if (entry[0] == '#') {
    uint32_t count = (uint32_t)strtoul(entry + 1, &rest, 10);
    return f->n_counted[index] < count ? f->n_counted[index]++, rest + 1 : NULL;
  }
  if (strncmp(entry, "*", n) != 0 && (n != n_name || memcmp(entry, name, n) != 0)) return NULL;
  const char *colon = strchr(entry, ':');
  if (entry[n] == '<' && layer >= strtoul(entry + n + 1, &rest, 10)) return NULL;
  if (entry[n] == '+') {
    bool is_values = strcmp(name, "attn_v") == 0; /* counted among themselves */
    uint32_t n_values = f->model->layers - (f->model->all_have_values ? 0 : f->model->layers / f->model->period);
    if (!real_more_bits(is_values ? f->n_values : layer, is_values ? n_values : f->model->layers)) return NULL;
  }
  return colon + 1;
}

static inline uint32_t real_type(real_file *f, const char *name, uint32_t layer, uint64_t row) {
  uint32_t index = 0;
  for (const char *entry = f->types; *entry != 0; index++) {
    const char *type = real_match(f, entry, index, name, layer);
    if (type != NULL) return real_fallback(real_type_of_name(type, strcspn(type, " ")), row);
    entry += strcspn(entry, " ");
    entry += strspn(entry, " ");
  }
  (void)printf("FAILED: real_files: no entry for %s in %s\n", name, f->types);
  exit(1);
}

static inline void real_record(real_file *f, const char *name, uint32_t type, uint32_t n_dims, const uint64_t *ne) {
  gguf_writer *w = &f->writer;
  uint32_t n_elements = 1, n_bytes = 0;
  uint64_t n = 1;
  (void)gguf_type_block((int32_t)type, &n_elements, &n_bytes);
  gguf_writer_text_raw(&w->records, name, strlen(name));
  gguf_writer_u32_raw(&w->records, n_dims);
  for (uint32_t i = 0; i < n_dims; i++) gguf_writer_u64_raw(&w->records, ne[i]);
  gguf_writer_u32_raw(&w->records, type);
  gguf_writer_u64_raw(&w->records, f->at);
  for (uint32_t i = 0; i < n_dims; i++) n *= i == 0 ? ne[0] / n_elements : ne[i];
  f->at += (n * n_bytes + GGUF_WRITER_ALIGN - 1) / GGUF_WRITER_ALIGN * GGUF_WRITER_ALIGN;
  w->n_tensors += 1;
}

/* layer UINT32_MAX: of no layer. */
static inline void real_name(char out[96], uint32_t layer, const char *name, const char *ending) {
  if (layer == UINT32_MAX) {
    (void)snprintf(out, 96, "%s%s", name, ending);
  } else {
    (void)snprintf(out, 96, "blk.%u.%s%s", layer, name, ending);
  }
}

/* A vector, or a matrix whose type the description says; c 0: two dimensions. */
static inline void real_vector(real_file *f, uint32_t layer, const char *name, uint64_t n) {
  char full[96];
  real_name(full, layer, name, strstr(name, ".scale") != NULL ? "" : ".weight");
  real_record(f, full, WEFT_TYPE_F32, 1, &n);
}

/* Beside a matrix X.weight: X.scale and X.input_scale, one number each or one per expert. */
static inline void real_scales(real_file *f, uint32_t layer, const char *name, uint64_t n) {
  char full[96];
  bool gemma_down =
      f->model->split_experts && strcmp(name, "ffn_down_exps") == 0; /* it has a scale whatever its type */
  real_name(full, layer, name, ".scale");
  if (!gemma_down) real_record(f, full, WEFT_TYPE_F32, 1, &n);
  real_name(full, layer, name, ".input_scale");
  real_record(f, full, WEFT_TYPE_F32, 1, &n);
}

static inline void real_matrix(real_file *f, uint32_t layer, const char *name, uint64_t a, uint64_t b, uint64_t c) {
  char full[96];
  const uint64_t ne[] = {a, b, c};
  bool router = strcmp(name, "ffn_gate_inp") == 0, projection = strcmp(name, "per_layer_model_proj") == 0;
  uint32_t type = router ? WEFT_TYPE_F32 : projection ? WEFT_TYPE_BF16 : real_type(f, name, layer, a);
  if (strcmp(name, "attn_v") == 0) f->n_values += 1;
  real_name(full, layer, name, ".weight");
  real_record(f, full, type, c == 0 ? 2 : 3, ne);
  if (type == WEFT_TYPE_NVFP4 && layer != UINT32_MAX) real_scales(f, layer, name, c == 0 ? 1 : c);
}

/* ---- keys ---- */

static inline void real_u32(real_file *f, const char *name, uint32_t value) {
  char key[96];
  (void)snprintf(key, sizeof key, "%s.%s", f->model->arch, name);
  gguf_writer_u32(&f->writer, key, value);
}

static inline void real_f32(real_file *f, const char *name, float value) {
  char key[96];
  (void)snprintf(key, sizeof key, "%s.%s", f->model->arch, name);
  gguf_writer_f32(&f->writer, key, value);
}

static inline void real_sizes(real_file *f) {
  const real_model *m = f->model;
  gguf_writer_string(&f->writer, "general.architecture", m->arch);
  real_u32(f, "block_count", m->layers);
  real_u32(f, "context_length", m->context);
  real_u32(f, "embedding_length", m->hidden);
  real_u32(f, "attention.head_count", m->heads);
  real_f32(f, "attention.layer_norm_rms_epsilon", 1e-6f);
  if (m->experts == 0) return;
  real_u32(f, "expert_count", m->experts);
  real_u32(f, "expert_used_count", 8);
  real_u32(f, "expert_feed_forward_length", m->expert_ff);
}

/* Enough of a vocabulary: markers, bytes, and tokens that nothing reaches. */
static inline void real_vocabulary(real_file *f, bool gemma, bool ollama) {
  static const char *const markers[] = {"<pad>",   "<eos>",   "<bos>",        "<unk>",
                                        "<|turn>", "<turn|>", "<|im_start|>", "<|im_end|>"};
  enum { MARKERS = 8, BYTES = 256 };
  gguf_writer *w = &f->writer;
  uint32_t n = f->model->vocab;
  int32_t *types = malloc(n * sizeof *types);
  float *scores = malloc(n * sizeof *scores);
  gguf_writer_string(w, "tokenizer.ggml.model", ollama ? "llama" : gemma ? "gemma4" : "gpt2");
  if (!gemma || ollama) gguf_writer_string(w, "tokenizer.ggml.pre", gemma ? "gemma4" : "qwen2");
  gguf_writer_key(w, "tokenizer.ggml.tokens", WEFT_GGUF_ARRAY);
  gguf_writer_u32_raw(&w->keys, WEFT_GGUF_STRING);
  gguf_writer_u64_raw(&w->keys, n);
  for (uint32_t i = 0; i < n; i++) {
    char text[16];
    bool is_byte = i >= MARKERS && i < MARKERS + BYTES;
    if (i < MARKERS) (void)snprintf(text, sizeof text, "%s", markers[i]);
    if (is_byte) (void)snprintf(text, sizeof text, "<0x%02X>", i - MARKERS);
    if (i >= MARKERS + BYTES) (void)snprintf(text, sizeof text, "x%u", i);
    gguf_writer_text_raw(&w->keys, text, strlen(text));
    types[i] = i < MARKERS ? 3 : is_byte && gemma && !ollama ? 6 : 1;
    scores[i] = ollama ? (float)i : -1000.0f;
  }
  const char *merge[] = {"x 9"};
  gguf_writer_array(w, "tokenizer.ggml.token_type", WEFT_GGUF_I32, types, n, 4);
  gguf_writer_array(w, "tokenizer.ggml.scores", WEFT_GGUF_F32, scores, n, 4);
  gguf_writer_strings(w, "tokenizer.ggml.merges", merge, 1);
  gguf_writer_u32(w, "tokenizer.ggml.bos_token_id", 2);
  gguf_writer_u32(w, "tokenizer.ggml.eos_token_id", 1);
  gguf_writer_string(w, "tokenizer.chat_template",
                     gemma
                         ? "{% for m in messages %}<|turn>{{ m.role }}\n{{ m.content }}<turn|>\n{% endfor %}"
                         : "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}");
  free(types);
  free(scores);
}

/* ---- architectures ---- */

static inline void real_gemma_keys(real_file *f) {
  const real_model *m = f->model;
  uint32_t heads[256], ff[256];
  bool sliding[256];
  char key[96];
  for (uint32_t i = 0; i < m->layers; i++) {
    sliding[i] = (i + 1) % m->period != 0;
    heads[i] = sliding[i] ? m->kv : m->kv_global;
    ff[i] = m->ff * (m->layers == 35 && i >= m->layers - m->shared ? 2 : 1);
  }
  real_u32(f, "attention.key_length", m->head_global);
  real_u32(f, "attention.key_length_swa", m->head);
  real_u32(f, "attention.value_length", m->head_global);
  real_u32(f, "attention.value_length_swa", m->head);
  real_u32(f, "rope.dimension_count", m->head_global);
  real_u32(f, "rope.dimension_count_swa", m->head);
  real_u32(f, "attention.sliding_window", m->window);
  real_u32(f, "attention.shared_kv_layers", m->shared);
  real_u32(f, "embedding_length_per_layer_input", m->per_layer);
  real_f32(f, "rope.freq_base", 1e6f);
  real_f32(f, "rope.freq_base_swa", 1e4f);
  real_f32(f, "final_logit_softcapping", 30.0f);
  (void)snprintf(key, sizeof key, "%s.attention.head_count_kv", m->arch);
  gguf_writer_array(&f->writer, key, WEFT_GGUF_U32, heads, m->layers, 4);
  (void)snprintf(key, sizeof key, "%s.attention.sliding_window_pattern", m->arch);
  gguf_writer_array(&f->writer, key, WEFT_GGUF_BOOL, sliding, m->layers, 1);
  (void)snprintf(key, sizeof key, "%s.feed_forward_length", m->arch);
  gguf_writer_array(&f->writer, key, WEFT_GGUF_U32, ff, m->layers, 4);
}

static inline void real_gemma_layer(real_file *f, uint32_t l) {
  const real_model *m = f->model;
  static const char *const norms[] = {"attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"};
  static const char *const expert_norms[] = {"post_ffw_norm_1", "pre_ffw_norm_2", "post_ffw_norm_2"};
  bool sliding = (l + 1) % m->period != 0;
  uint32_t head = sliding ? m->head : m->head_global, kv = (sliding ? m->kv : m->kv_global) * head;
  uint32_t ff = m->ff * (m->layers == 35 && l >= m->layers - m->shared ? 2 : 1);
  for (uint32_t i = 0; i < 4; i++) real_vector(f, l, norms[i], m->hidden);
  real_vector(f, l, "attn_q_norm", head);
  real_vector(f, l, "attn_k_norm", head);
  real_vector(f, l, "layer_output_scale", 1);
  real_matrix(f, l, "attn_q", m->hidden, (uint64_t)m->heads * head, 0);
  real_matrix(f, l, "attn_k", m->hidden, kv, 0);
  if (sliding || m->all_have_values) real_matrix(f, l, "attn_v", m->hidden, kv, 0);
  real_matrix(f, l, "attn_output", (uint64_t)m->heads * head, m->hidden, 0);
  real_matrix(f, l, "ffn_gate", m->hidden, ff, 0);
  real_matrix(f, l, "ffn_up", m->hidden, ff, 0);
  real_matrix(f, l, "ffn_down", ff, m->hidden, 0);
  if (m->per_layer > 0) {
    real_matrix(f, l, "inp_gate", m->hidden, m->per_layer, 0);
    real_matrix(f, l, "proj", m->per_layer, m->hidden, 0);
    real_vector(f, l, "post_norm", m->hidden);
  }
  if (m->experts == 0) return;
  for (uint32_t i = 0; i < 3; i++) real_vector(f, l, expert_norms[i], m->hidden);
  real_vector(f, l, "ffn_gate_inp.scale", m->hidden);
  real_vector(f, l, "ffn_down_exps.scale", m->experts);
  real_matrix(f, l, "ffn_gate_inp", m->hidden, m->experts, 0);
  if (m->split_experts) {
    real_matrix(f, l, "ffn_gate_exps", m->hidden, m->expert_ff, m->experts);
    real_matrix(f, l, "ffn_up_exps", m->hidden, m->expert_ff, m->experts);
  } else {
    real_matrix(f, l, "ffn_gate_up_exps", m->hidden, 2 * (uint64_t)m->expert_ff, m->experts);
  }
  real_matrix(f, l, "ffn_down_exps", m->expert_ff, m->hidden, m->experts);
}

static inline void real_gemma(real_file *f) {
  const real_model *m = f->model;
  uint64_t all = (uint64_t)m->per_layer * m->layers;
  bool diffusion = strcmp(m->arch, "gemma4") != 0;
  real_sizes(f);
  real_gemma_keys(f);
  if (diffusion) gguf_writer_u32(&f->writer, "diffusion.canvas_length", 256);
  real_matrix(f, UINT32_MAX, "token_embd", m->hidden, m->vocab, 0);
  real_vector(f, UINT32_MAX, "output_norm", m->hidden);
  real_vector(f, UINT32_MAX, "rope_freqs", m->head_global / 2);
  if (m->per_layer > 0) {
    real_matrix(f, UINT32_MAX, "per_layer_token_embd", all, m->vocab, 0);
    real_matrix(f, UINT32_MAX, "per_layer_model_proj", m->hidden, all, 0);
    real_vector(f, UINT32_MAX, "per_layer_proj_norm", m->per_layer);
  }
  if (diffusion) {
    real_vector(f, UINT32_MAX, "self_cond_pre_norm", m->hidden);
    real_matrix(f, UINT32_MAX, "self_cond_gate", m->hidden, m->ff, 0);
    real_matrix(f, UINT32_MAX, "self_cond_up", m->hidden, m->ff, 0);
    real_matrix(f, UINT32_MAX, "self_cond_down", m->ff, m->hidden, 0);
  }
  for (uint32_t l = 0; l < m->layers; l++) {
    real_gemma_layer(f, l);
    if (diffusion) real_vector(f, l, "enc_layer_output_scale", 1);
  }
  for (uint32_t l = 0; m->encoder && l < 2; l++) {
    const uint64_t ne[] = {768, 768};
    char name[64];
    (void)snprintf(name, sizeof name, "v.blk.%u.attn_q.weight", l);
    real_record(f, name, WEFT_TYPE_BF16, 2, ne);
    (void)snprintf(name, sizeof name, "a.blk.%u.per_dim.scale", l);
    real_record(f, name, WEFT_TYPE_F32, 1, ne);
  }
}

/* qwen3, qwen3moe and llama. */
static inline void real_llama(real_file *f) {
  const real_model *m = f->model;
  real_sizes(f);
  real_u32(f, "feed_forward_length", m->ff);
  real_u32(f, "attention.head_count_kv", m->kv);
  real_u32(f, "attention.key_length", m->head);
  real_u32(f, "attention.value_length", m->head);
  real_f32(f, "rope.freq_base", 1e6f);
  real_matrix(f, UINT32_MAX, "token_embd", m->hidden, m->vocab, 0);
  real_vector(f, UINT32_MAX, "output_norm", m->hidden);
  real_matrix(f, UINT32_MAX, "output", m->hidden, m->vocab, 0);
  for (uint32_t l = 0; l < m->layers; l++) {
    real_vector(f, l, "attn_norm", m->hidden);
    real_vector(f, l, "ffn_norm", m->hidden);
    if (strncmp(m->arch, "qwen3", 5) == 0) {
      real_vector(f, l, "attn_q_norm", m->head);
      real_vector(f, l, "attn_k_norm", m->head);
    }
    real_matrix(f, l, "attn_q", m->hidden, (uint64_t)m->heads * m->head, 0);
    real_matrix(f, l, "attn_k", m->hidden, (uint64_t)m->kv * m->head, 0);
    real_matrix(f, l, "attn_v", m->hidden, (uint64_t)m->kv * m->head, 0);
    real_matrix(f, l, "attn_output", (uint64_t)m->heads * m->head, m->hidden, 0);
    uint64_t ff = m->experts > 0 ? m->expert_ff : m->ff, n = m->experts;
    if (n > 0) real_matrix(f, l, "ffn_gate_inp", m->hidden, n, 0);
    real_matrix(f, l, n > 0 ? "ffn_gate_exps" : "ffn_gate", m->hidden, ff, n);
    real_matrix(f, l, n > 0 ? "ffn_up_exps" : "ffn_up", m->hidden, ff, n);
    real_matrix(f, l, n > 0 ? "ffn_down_exps" : "ffn_down", ff, m->hidden, n);
  }
}

/* Writes what was described as a sparse file at path, and frees it; false: the system refused. */
static inline bool real_file_write(real_file *f, const char *path) {
  weft_bytes head = gguf_writer_finish(&f->writer);
  FILE *file = fopen(path, "wb");
  bool written = file != NULL && fwrite(head.data, 1, head.n, file) == head.n;
  if (file != NULL && fclose(file) != 0) written = false;
  if (written) written = truncate(path, (off_t)(head.n + f->at)) == 0;
  gguf_writer_close(&f->writer);
  return written;
}

#endif
