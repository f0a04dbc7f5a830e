/* SPDX-License-Identifier: MIT */
/* Stored types: byte layouts of stored numbers.
 *
 * Law: a weft_type names a layout: blocks of n_elements along the contiguous dimension, n_bytes each, little-endian.
 * The formulas are those of the GGUF format; weft_dequantise_row is their definition here and is bit-equal to the
 * format's reference. WEFT_TYPE_MAP is the one place that says what a type is. Nothing here has state or fails but for
 * what the comments name; any thread may call.
 *
 * Most quantised types store a number as a code, a small integer: value = scale * code + least. Some types are never
 * multiplied as they are stored: their numbers come from codebooks, or their bits lie in an order that is slow to read.
 * A device holds them as another type (held_as) of the same values; weft_repack_row makes that once, when a weight is
 * placed. So a backend has kernels for the types that are held as themselves, and a new file type that is held as
 * another needs a row here and a function in repack.c (docs/adding-an-op.md, "A stored type", says what every kind of
 * new type needs).
 *
 * Packed layouts (chosen by a backend when it loads) hold the same integers and scales in another order; pack and
 * unpack are a bijection, tested. */
#ifndef WEFT_KERNELS_QUANT_H
#define WEFT_KERNELS_QUANT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* name, id in the file, elements per block, bytes per block, the type a device holds it as, values of its codes.
 *
 * Ids from WEFT_TYPE_ID_HELD on are no file types: they exist on devices only.
 *   H4_x  per 32 inputs:  two f16 scales (of sixteen each), then nibbles as in Q4_0
 *   S4_x  per 256:        f32 d, sixteen signed bytes of scales, then eight times sixteen bytes of nibbles as in Q4_0
 *   S3_x  per 256:        the same with codes of three bits: sixty-four bytes of the lower two (of each 32 inputs,
 *                         input i is in byte i % 8 at bit 2 (i / 8)), then the third bits of each 32 in a word
 * In H4 types value = scale * values[code], in the others value = (d * scale) * values[code]. */
#define WEFT_STORED_TYPE_MAP(X)                \
  X(F32, 0, 1, 4, F32, NULL)                   \
  X(F16, 1, 1, 2, F16, NULL)                   \
  X(Q4_0, 2, 32, 18, Q4_0, NULL)               \
  X(Q4_1, 3, 32, 20, Q4_1, NULL)               \
  X(Q5_0, 6, 32, 22, Q5_0, NULL)               \
  X(Q5_1, 7, 32, 24, Q5_1, NULL)               \
  X(Q8_0, 8, 32, 34, Q8_0, NULL)               \
  X(Q2_K, 10, 256, 84, Q2_K, NULL)             \
  X(Q3_K, 11, 256, 110, S3_Q3, NULL)           \
  X(Q4_K, 12, 256, 144, Q4_K, NULL)            \
  X(Q5_K, 13, 256, 176, Q5_K, NULL)            \
  X(Q6_K, 14, 256, 210, Q6_K, NULL)            \
  X(IQ2_XXS, 16, 256, 66, S3_IQ2, NULL)        \
  X(IQ2_XS, 17, 256, 74, S3_IQ2, NULL)         \
  X(IQ3_XXS, 18, 256, 98, S4_IQ3X, NULL)       \
  X(IQ1_S, 19, 256, 50, S3_IQ1, NULL)          \
  X(IQ4_NL, 20, 32, 18, H4_IQ4, NULL)          \
  X(IQ3_S, 21, 256, 110, S4_IQ3S, NULL)        \
  X(IQ2_S, 22, 256, 82, S3_IQ2, NULL)          \
  X(IQ4_XS, 23, 256, 136, S4_IQ4, NULL)        \
  X(IQ1_M, 29, 256, 56, S3_IQ1, NULL)          \
  X(BF16, 30, 1, 2, BF16, NULL)                \
  X(TQ1_0, 34, 256, 54, Q2_K, NULL)            \
  X(TQ2_0, 35, 256, 66, Q2_K, NULL)            \
  X(MXFP4, 39, 32, 17, MXFP4, weft_values_fp4) \
  X(NVFP4, 40, 64, 36, H4_FP4, NULL)
#define WEFT_HELD_TYPE_MAP(X)                           \
  X(H4_IQ4, 1000, 32, 20, H4_IQ4, weft_values_iq4)      \
  X(H4_FP4, 1001, 32, 20, H4_FP4, weft_values_fp4)      \
  X(S4_IQ4, 1002, 256, 148, S4_IQ4, weft_values_iq4)    \
  X(S4_IQ3X, 1003, 256, 148, S4_IQ3X, weft_values_iq3x) \
  X(S4_IQ3S, 1004, 256, 148, S4_IQ3S, weft_values_iq3s) \
  X(S3_Q3, 1005, 256, 116, S3_Q3, weft_values_q3)       \
  X(S3_IQ2, 1006, 256, 116, S3_IQ2, weft_values_iq2)    \
  X(S3_IQ1, 1007, 256, 116, S3_IQ1, weft_values_iq1)
#define WEFT_TYPE_MAP(X) WEFT_STORED_TYPE_MAP(X) WEFT_HELD_TYPE_MAP(X)

enum { WEFT_TYPE_ID_HELD = 1000, WEFT_TYPE_VALUES = 16 };

/* The values that codes of four bits stand for; codes of three bits use the first eight. weft_values_fp4 (MXFP4, NVFP4)
 * has twice the values, which are then whole numbers. */
extern const int8_t weft_values_fp4[WEFT_TYPE_VALUES], weft_values_iq4[WEFT_TYPE_VALUES];
extern const int8_t weft_values_iq3x[WEFT_TYPE_VALUES], weft_values_iq3s[WEFT_TYPE_VALUES];
extern const int8_t weft_values_q3[WEFT_TYPE_VALUES], weft_values_iq2[WEFT_TYPE_VALUES];
extern const int8_t weft_values_iq1[WEFT_TYPE_VALUES];

typedef enum weft_type {
#define X(name, id, n_elements, n_bytes, held_as, values) WEFT_TYPE_##name = id,
  WEFT_TYPE_MAP(X)
#undef X
      WEFT_TYPE_NONE = -1
} weft_type;

typedef struct weft_type_info {
  weft_type type;
  const char *name;
  uint32_t n_elements;  /* per block */
  uint32_t n_bytes;     /* per block */
  weft_type held_as;    /* itself where a device holds it as it is stored */
  const int8_t *values; /* NULL: a code is a number itself */
} weft_type_info;

/* What a type is. NULL: the id is not in WEFT_TYPE_MAP. */
const weft_type_info *weft_type_find(int32_t id);
/* The same for an id that a file names: types that exist on devices only give NULL too. */
const weft_type_info *weft_type_find_stored(int32_t id);
/* "F32, F16, ...": all types that files may have. */
const char *weft_type_names(void);
/* The name of any id that the GGUF format ever defined ("IQ2_XXS", "removed"), or "unknown". */
const char *weft_type_name_of_id(int32_t id);

/* Bytes of n_elements; 0 where these are not whole blocks. */
uint64_t weft_type_row_bytes(weft_type type, uint64_t n_elements);

/* Stored bytes of n elements (whole blocks) to f32. */
void weft_dequantise_row(weft_type type, const void *stored, float *out, uint64_t n);
/* Stored bytes of n elements (whole blocks) to those of the type that devices hold `type` as. */
void weft_repack_row(weft_type type, const void *stored, void *held, uint64_t n);
/* f32 to stored bytes, for KV rows, tests and tools. UNSUPPORTED: the type is none of F32, F16, BF16, Q8_0, Q4_0, Q4_1,
 * Q5_0, Q5_1, IQ4_NL and MXFP4. INVALID: n is not whole blocks. */
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
