/* SPDX-License-Identifier: MIT */
/* Byte layouts of stored numbers.
 *
 * Law: a weft_type names a file layout: blocks of n_elements along the contiguous dimension, n_bytes each,
 * little-endian. The formulas are those of the GGUF format; weft_dequantise_row is their definition here and
 * is bit-equal to the format's reference. Packed layouts (chosen by a backend when it loads) hold the same
 * integers and scales in another order; pack and unpack are a bijection, tested. */
#ifndef WEFT_KERNELS_QUANT_H
#define WEFT_KERNELS_QUANT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* name, id in the file, elements per block, bytes per block */
#define WEFT_TYPE_MAP(X) \
  X(F32, 0, 1, 4)        \
  X(F16, 1, 1, 2)        \
  X(Q4_0, 2, 32, 18)     \
  X(Q5_0, 6, 32, 22)     \
  X(Q8_0, 8, 32, 34)     \
  X(Q4_K, 12, 256, 144)  \
  X(Q5_K, 13, 256, 176)  \
  X(Q6_K, 14, 256, 210)  \
  X(BF16, 30, 1, 2)      \
  X(MXFP4, 39, 32, 17)

typedef enum weft_type {
#define X(name, id, n_elements, n_bytes) WEFT_TYPE_##name = id,
  WEFT_TYPE_MAP(X)
#undef X
      WEFT_TYPE_NONE = -1
} weft_type;

typedef struct weft_type_info {
  weft_type type;
  const char *name;
  uint32_t n_elements; /* per block */
  uint32_t n_bytes;    /* per block */
} weft_type_info;

/* NULL when the id is none of ours (other valid GGUF ids are named in weft_type_name_of_id). */
const weft_type_info *weft_type_find(int32_t id);
/* The format's name of any id it ever defined ("IQ2_XXS", "removed"), or "unknown". */
const char *weft_type_name_of_id(int32_t id);

/* Bytes of n elements; n must be a multiple of the block (else 0). */
uint64_t weft_type_row_bytes(weft_type type, uint64_t n_elements);

/* n elements (a multiple of the block) of stored bytes to f32. */
void weft_dequantise_row(weft_type type, const void *stored, float *out, uint64_t n);
/* f32 to stored bytes: F32, F16, BF16, Q8_0, Q4_0, Q5_0 (used for tests, KV and tools). UNSUPPORTED else. */
weft_status weft_quantise_row(weft_type type, const float *in, void *stored, uint64_t n);

float weft_f16_to_f32(uint16_t bits);
uint16_t weft_f32_to_f16(float value); /* round to nearest even */
static inline float weft_bf16_to_f32(uint16_t bits) {
  union {
    uint32_t u;
    float f;
  } v = {(uint32_t)bits << 16};
  return v.f;
}
static inline uint16_t weft_f32_to_bf16(float value) { /* round to nearest even; NaN stays NaN */
  union {
    float f;
    uint32_t u;
  } v = {value};
  if ((v.u & 0x7FFFFFFFu) > 0x7F800000u) return (uint16_t)((v.u >> 16) | 0x40u);
  return (uint16_t)((v.u + 0x7FFFu + ((v.u >> 16) & 1u)) >> 16);
}

#ifdef __cplusplus
}
#endif
#endif
