/* SPDX-License-Identifier: MIT */
/* KV rows: how one head's key or value of one position is stored, and where it lies in a page.
 *
 *   F32, BF16   head_dim elements
 *   Q8_0        head_dim int8, then head_dim / 32 f16 factors: value i = factor[i / 32] * q[i], with
 *               factor = max|x| / 127 of its 32. The integers come first, so that they are aligned.
 *
 * Law: what is not finite stays so: 32 values with a NaN or an infinity among them get a factor that is NaN. Elsewhere
 * the error of a value is at most half a factor and what the rounding of the factor to f16 adds; values whose factor
 * would be below WEFT_KV_Q8_LEAST become 0. */
#ifndef WEFT_KERNELS_KV_ROW_H
#define WEFT_KERNELS_KV_ROW_H

#include "kernels/quant.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { WEFT_KV_Q8_BLOCK = 32 };
#define WEFT_KV_Q8_LEAST 0x1p-25f /* smaller factors are 0 in f16 */

/* The keys and values of one layer in pages. Every page has, at k_offset and at v_offset, the layer's keys and values
 * of block_tokens neighbouring positions, each [n_kv_heads][block_tokens][head_dim] of `type`:
 *   key(head, position) = base + page * page_bytes + k_offset
 *                       + (head * block_tokens + position % block_tokens) * weft_kv_row_bytes(type, head_dim) */
typedef struct weft_kv_view {
  void *base;
  weft_type type; /* F32, BF16 or Q8_0 */
  uint64_t page_bytes, k_offset, v_offset;
  uint32_t block_tokens, n_kv_heads, head_dim;
} weft_kv_view;

/* Whether KV rows may have this type and head_dim: F32 and BF16 with any head_dim, Q8_0 with multiples of 32. */
static inline bool weft_kv_row_fits(weft_type type, uint32_t head_dim) {
  if (type == WEFT_TYPE_Q8_0) return head_dim % WEFT_KV_Q8_BLOCK == 0;
  return type == WEFT_TYPE_F32 || type == WEFT_TYPE_BF16;
}

/* Bytes of a KV row: weft_type_row_bytes(type, head_dim), inline. */
static inline uint64_t weft_kv_row_bytes(weft_type type, uint32_t head_dim) {
  if (type == WEFT_TYPE_F32) return 4ull * head_dim;
  if (type == WEFT_TYPE_BF16) return 2ull * head_dim;
  return head_dim + head_dim / WEFT_KV_Q8_BLOCK * 2ull;
}

/* The bytes of which page_bytes, k_offset and v_offset must be multiples. */
static inline uint32_t weft_kv_row_align(weft_type type) {
  return type == WEFT_TYPE_F32 ? 4 : 2;
}

/* Store and load a KV row of n = head_dim floats; weft_kv_row_fits(type, n) must hold. */
void weft_kv_row_store(weft_type type, const float *x, uint32_t n, void *to);
void weft_kv_row_load(weft_type type, const void *from, uint32_t n, float *x);

#ifdef __cplusplus
}
#endif
#endif
