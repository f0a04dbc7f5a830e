/* SPDX-License-Identifier: MIT */
/* Keys of a file as numbers within bounds.
 *
 * Law: a name that begins with '.' is prefixed with the architecture. A key that is absent is
 * refused unless the function takes an initial value; a value outside of [low, high] is refused
 * with the key, the value and the bounds. */
#ifndef WEFT_MODEL_GGUF_KEYS_H
#define WEFT_MODEL_GGUF_KEYS_H

#include "model/gguf/gguf.h"

typedef struct model_keys {
  const weft_gguf *gguf;
  const char *arch;
  weft_error *error;
} model_keys;

weft_status model_keys_u32(const model_keys *keys, const char *name, uint32_t low, uint32_t high, uint32_t *out);
weft_status model_keys_u32_or(const model_keys *keys, const char *name, uint32_t low, uint32_t high, uint32_t initial,
                              uint32_t *out);
/* Element i of an array, or the scalar. */
weft_status model_keys_u32_at(const model_keys *keys, const char *name, uint64_t i, uint32_t low, uint32_t high,
                              uint32_t *out);
/* Refuses NaN and infinity too. */
weft_status model_keys_f32(const model_keys *keys, const char *name, double low, double high, float *out);
weft_status model_keys_f32_or(const model_keys *keys, const char *name, double low, double high, float initial,
                              float *out);
/* Element i of an array, or the scalar. */
weft_status model_keys_f32_at(const model_keys *keys, const char *name, uint64_t i, double low, double high,
                              float *out);
/* 0 when absent, 1 for a scalar. */
uint64_t model_keys_count(const model_keys *keys, const char *name);

#endif
