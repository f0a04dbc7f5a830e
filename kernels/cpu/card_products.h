/* SPDX-License-Identifier: MIT */
/* Products of 8 bits with weights that lie in host memory as a card has them: what a processor computes for a card.
 *
 * Law (numerics). The bits are those of the card's own products (kernels/cuda/gemm/w8a8.h has the law, kernels/ref/
 * w8a8.c the plain text): a number of a weight is requantised to an integer of 8 bits with two factors that are rounded
 * to f16, the sum over a span of 256 inputs is exact, and spans are added ascending from 0 by a fused multiply-add in
 * f32. What a card rounds in f16 is made here in f32: above 1.5 * 2^23 f32 numbers are 1 apart as f16 numbers above
 * 3 * 2^-4 are 2^-13 apart, and a product of a code with a factor is exact in both. So nothing of a result depends on
 * which of the two computed it. The weight's own scale is not applied.
 *
 * Law (memory). Row tiles and steps are those of kernels/cuda/weights/packed_layout.cuh and of w8a8.h, read as they
 * are. Numbers of rows come quantised, 256 bytes to a span; inputs that the last span lacks are zeros. Of types with
 * codes of 4 bits and more (all but Q8_0) each 128 of them lie in nibble order: of the eight numbers of chunk n
 * (inputs 8 n ..) numbers 0, 4, 1, 5 are bytes 4 n .. and 2, 6, 3, 7 bytes 64 + 4 n ..; the low and the high nibbles
 * of a packed word of codes stand so. */
#ifndef WEFT_KERNELS_CPU_CARD_PRODUCTS_H
#define WEFT_KERNELS_CPU_CARD_PRODUCTS_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { CARD_SPAN = 256, CARD_TILE = 16 /* outputs */, CARD_ROWS = 64 /* at once, at most */ };

typedef struct card_matrix {
  int type; /* weft_type */
  uint32_t n_in;
  const uint8_t *tiles, *steps; /* of row tile 0 */
} card_matrix;

/* n rows, the numbers and scales of one behind those of the other. */
typedef struct card_rows {
  const int8_t *numbers; /* [n][spans][256] */
  const float *scales;   /* [n][spans] */
  uint32_t n;
} card_rows;

/* y[r * y_stride + i] = output 16 tile + i of row r. */
typedef void (*card_tile_fn)(const card_matrix *matrix, uint32_t tile, const card_rows *rows, float *y,
                             uint64_t y_stride);

/* Whether weights of a type can be multiplied so; whether their rows lie in nibble order. */
bool card_products_take(int type);
bool card_products_by_nibbles(int type);
uint32_t card_products_tile_bytes(int type, uint32_t n_in);
/* The function for the instruction set of this machine, and its name (cpu.h). */
card_tile_fn card_products_find(const char **isa);
void card_tile_portable(const card_matrix *matrix, uint32_t tile, const card_rows *rows, float *y, uint64_t y_stride);
void card_tile_avx2(const card_matrix *matrix, uint32_t tile, const card_rows *rows, float *y, uint64_t y_stride);
void card_tile_avx512(const card_matrix *matrix, uint32_t tile, const card_rows *rows, float *y, uint64_t y_stride);

#ifdef __cplusplus
}
#endif
#endif
