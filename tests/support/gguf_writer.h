/* SPDX-License-Identifier: MIT */
/* Builds the bytes of a GGUF v3 file in memory, for tests.
 *
 * Law: keys and tensors may come in any order; gguf_writer_finish lays them out (header, keys,
 * tensor records, padding, data) and gives bytes that weft_gguf_open_memory accepts when what was
 * put in is sound. Nothing is checked here: a test that wants a malformed file writes one, or
 * changes the bytes afterwards. */
#ifndef WEFT_TESTS_GGUF_WRITER_H
#define WEFT_TESTS_GGUF_WRITER_H

#include <stdint.h>
#include <string.h>

#include "base/text.h"
#include "model/gguf/gguf.h"

enum { GGUF_WRITER_ALIGN = 32 };

typedef struct gguf_writer {
  weft_text keys, records, data, file;
  uint64_t n_keys, n_tensors;
} gguf_writer;

static inline void gguf_writer_bytes(weft_text *to, const void *bytes, size_t n) {
  weft_text_append(to, bytes, n);
}

static inline void gguf_writer_u32_raw(weft_text *to, uint32_t v) {
  gguf_writer_bytes(to, &v, 4);
}
static inline void gguf_writer_u64_raw(weft_text *to, uint64_t v) {
  gguf_writer_bytes(to, &v, 8);
}

static inline void gguf_writer_text_raw(weft_text *to, const char *text, size_t n) {
  gguf_writer_u64_raw(to, n);
  gguf_writer_bytes(to, text, n);
}

static inline void gguf_writer_key(gguf_writer *w, const char *key, weft_gguf_kind kind) {
  gguf_writer_text_raw(&w->keys, key, strlen(key));
  gguf_writer_u32_raw(&w->keys, (uint32_t)kind);
  w->n_keys += 1;
}

/* Any scalar whose bytes are at value. */
static inline void gguf_writer_scalar(gguf_writer *w, const char *key, weft_gguf_kind kind, const void *value,
                                      size_t n_bytes) {
  gguf_writer_key(w, key, kind);
  gguf_writer_bytes(&w->keys, value, n_bytes);
}

static inline void gguf_writer_u32(gguf_writer *w, const char *key, uint32_t value) {
  gguf_writer_scalar(w, key, WEFT_GGUF_U32, &value, 4);
}

static inline void gguf_writer_i32(gguf_writer *w, const char *key, int32_t value) {
  gguf_writer_scalar(w, key, WEFT_GGUF_I32, &value, 4);
}

static inline void gguf_writer_f32(gguf_writer *w, const char *key, float value) {
  gguf_writer_scalar(w, key, WEFT_GGUF_F32, &value, 4);
}

static inline void gguf_writer_bool(gguf_writer *w, const char *key, bool value) {
  uint8_t byte = value ? 1 : 0;
  gguf_writer_scalar(w, key, WEFT_GGUF_BOOL, &byte, 1);
}

static inline void gguf_writer_string_n(gguf_writer *w, const char *key, const char *text, size_t n) {
  gguf_writer_key(w, key, WEFT_GGUF_STRING);
  gguf_writer_text_raw(&w->keys, text, n);
}

static inline void gguf_writer_string(gguf_writer *w, const char *key, const char *text) {
  gguf_writer_string_n(w, key, text, strlen(text));
}

/* An array of n numbers of the kind; width bytes each. */
static inline void gguf_writer_array(gguf_writer *w, const char *key, weft_gguf_kind element, const void *values,
                                     uint64_t n, size_t width) {
  gguf_writer_key(w, key, WEFT_GGUF_ARRAY);
  gguf_writer_u32_raw(&w->keys, (uint32_t)element);
  gguf_writer_u64_raw(&w->keys, n);
  gguf_writer_bytes(&w->keys, values, (size_t)n * width);
}

static inline void gguf_writer_strings(gguf_writer *w, const char *key, const char *const *texts, uint64_t n) {
  gguf_writer_key(w, key, WEFT_GGUF_ARRAY);
  gguf_writer_u32_raw(&w->keys, (uint32_t)WEFT_GGUF_STRING);
  gguf_writer_u64_raw(&w->keys, n);
  for (uint64_t i = 0; i < n; i++) gguf_writer_text_raw(&w->keys, texts[i], strlen(texts[i]));
}

static inline void gguf_writer_tensor(gguf_writer *w, const char *name, int32_t type, uint32_t n_dims,
                                      const uint64_t *ne, const void *data, size_t n_bytes) {
  static const char zeros[GGUF_WRITER_ALIGN];
  gguf_writer_text_raw(&w->records, name, strlen(name));
  gguf_writer_u32_raw(&w->records, n_dims);
  for (uint32_t i = 0; i < n_dims; i++) gguf_writer_u64_raw(&w->records, ne[i]);
  gguf_writer_u32_raw(&w->records, (uint32_t)type);
  gguf_writer_u64_raw(&w->records, w->data.n);
  gguf_writer_bytes(&w->data, data, n_bytes);
  gguf_writer_bytes(&w->data, zeros, (GGUF_WRITER_ALIGN - w->data.n % GGUF_WRITER_ALIGN) % GGUF_WRITER_ALIGN);
  w->n_tensors += 1;
}

/* The whole file; owned by the writer until gguf_writer_close. */
static inline weft_bytes gguf_writer_finish(gguf_writer *w) {
  static const char zeros[GGUF_WRITER_ALIGN];
  weft_text_clear(&w->file);
  gguf_writer_bytes(&w->file, "GGUF", 4);
  gguf_writer_u32_raw(&w->file, 3);
  gguf_writer_u64_raw(&w->file, w->n_tensors);
  gguf_writer_u64_raw(&w->file, w->n_keys);
  gguf_writer_bytes(&w->file, w->keys.bytes, w->keys.n);
  gguf_writer_bytes(&w->file, w->records.bytes, w->records.n);
  size_t over = w->file.n % GGUF_WRITER_ALIGN;
  if (over != 0) gguf_writer_bytes(&w->file, zeros, GGUF_WRITER_ALIGN - over);
  gguf_writer_bytes(&w->file, w->data.bytes, w->data.n);
  return (weft_bytes){w->file.bytes, w->file.n};
}

static inline void gguf_writer_close(gguf_writer *w) {
  weft_text_free(&w->keys);
  weft_text_free(&w->records);
  weft_text_free(&w->data);
  weft_text_free(&w->file);
}

#endif
