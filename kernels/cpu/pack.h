/* SPDX-License-Identifier: MIT */
/* The layout of weights on the cpu device: panels of sixteen output rows, in the order in which dot products read them.
 * A quantised weight is stored as codes, small integers that a scale and sometimes an offset (least) make numbers of.
 *
 * Law: a matrix is ceil(n_out / 16) panels, one after another, each a multiple of 64 bytes; output rows past n_out are
 * zero bytes. A panel holds exactly the numbers of the file in another order (pack and unpack are a bijection), so its
 * size is that of the type, but for padding and the 6-bit scales of Q4_K and Q5_K, which take a byte each (+2.8 % and
 * +2.3 %). A product reads a panel from front to end, as one stream. Types that a device holds as other types
 * (kernels/quant.h) are repacked row by row while they are packed.
 *
 *   F32, F16, BF16      [n_in][16 rows] of the stored number
 *   Q8_0, Q4_0, Q5_0    per 64 inputs:    scales of two blocks [2][16] f16, then 2 x quants
 *   MXFP4               per 128 inputs:   scales of four blocks [4][16] e8m0, then 4 x quants
 *   Q4_1, Q5_1, H4      per 32 inputs:    the two f16 of a block, [2][16], then quants
 *   Q2_K                per 256 inputs:   d[16] f16, dmin[16] f16, [16][16] bytes: scale | least << 4, then 8 x quants
 *   Q4_K, Q5_K          per 256 inputs:   d[16] f16, dmin[16] f16, scale[8][16] u8, least[8][16] u8, then 8 x quants
 *   Q6_K                per 256 inputs:   d[16] f16, 32 bytes of zero, scale[16][16] s8, then 8 x quants
 *   S3, S4              per 256 inputs:   d[16] f32, scale[16][16] s8, then 8 x quants
 *
 * Quants of a block of 32 inputs x 16 rows are eight vectors V0 .. V7 of 64 unsigned bytes. Byte 4 * row + i of Vc is
 * the code of input 4c + i, so one 32-bit lane is one row. They are stored as
 *
 *   2 bits   P0, P1, Pk = V(4k) | V(4k + 1) << 2 | V(4k + 2) << 4 | V(4k + 3) << 6             128 bytes
 *   3 bits   the same, then 64 bytes whose bit c is bit 2 of Vc                                192 bytes
 *   8 bits   V0 .. V7                                                                          512 bytes
 *   4 bits   P0 .. P3, Pc = Vc | V(c + 4) << 4                                                 256 bytes
 *   5 bits   the same, then 64 bytes whose bit c is bit 4 of Vc                                320 bytes
 *   6 bits   the same, then 2 x 64 bytes whose bits 2c, 2c + 1 are bits 4, 5 of Vc, V(c + 4)   384 bytes
 *
 * Codes are unsigned. Either value = (code - offset) * scale, where offset is 1 << cpu_pack_info.offset_shift, or value
 * = code * scale - least (Q4_1, Q5_1: + least). Where the type has a table of values, a product looks the code's value
 * up, adds the offset, and goes on as if the sum were the code. */
#ifndef WEFT_KERNELS_CPU_PACK_H
#define WEFT_KERNELS_CPU_PACK_H

#include "kernels/cpu/cpu.h"

enum {
  CPU_PANEL = 16,       /* output rows of a panel */
  CPU_PACK_BLOCK = 32,  /* inputs that share one activation scale */
  CPU_LAYOUT_PANELS = 1 /* weft_weight.layout */
};

typedef enum cpu_pack_form {
  CPU_FORM_FLOAT,  /* stored numbers */
  CPU_FORM_OFFSET, /* value = scale * (code - offset), one scale per 32 */
  CPU_FORM_LEAST,  /* value = scale * code - least, one pair per 32 */
  CPU_FORM_SPLIT,  /* value = scale * (code - offset), one scale per 16 */
  CPU_FORM_PAIRS   /* value = scale * code - least, one pair per 16 */
} cpu_pack_form;

typedef struct cpu_pack_info {
  weft_type type;
  cpu_pack_form form;
  uint32_t bits;         /* of a code */
  uint32_t offset_shift; /* offset == 1 << offset_shift */
  uint32_t quant_bytes;  /* of one block of 32 x 16 */
  uint32_t header_bytes; /* types of super-blocks: bytes before the quants of 256 inputs; others: 0 */
  uint32_t scale_bytes;  /* others: bytes of the sixteen scales of a block */
  const int8_t *values;  /* that codes stand for, or NULL; offset makes all of them positive */
} cpu_pack_info;

/* Every quantised type that a panel can hold: the fields of cpu_pack_info. A type that is added needs a line here, and
 * kernels only where its form or its bits are new. */
#define CPU_PACK_QUANTS(X)                                         \
  X(Q8_0, CPU_FORM_OFFSET, 8, 7, 512, 0, 32, NULL)                 \
  X(Q4_0, CPU_FORM_OFFSET, 4, 3, 256, 0, 32, NULL)                 \
  X(Q4_1, CPU_FORM_LEAST, 4, 0, 256, 0, 64, NULL)                  \
  X(Q5_0, CPU_FORM_OFFSET, 5, 4, 320, 0, 32, NULL)                 \
  X(Q5_1, CPU_FORM_LEAST, 5, 0, 320, 0, 64, NULL)                  \
  X(MXFP4, CPU_FORM_OFFSET, 4, 4, 256, 0, 16, weft_values_fp4)     \
  X(H4_IQ4, CPU_FORM_SPLIT, 4, 7, 256, 0, 64, weft_values_iq4)     \
  X(H4_FP4, CPU_FORM_SPLIT, 4, 4, 256, 0, 64, weft_values_fp4)     \
  X(Q2_K, CPU_FORM_PAIRS, 2, 0, 128, 320, 0, NULL)                 \
  X(Q4_K, CPU_FORM_LEAST, 4, 0, 256, 320, 0, NULL)                 \
  X(Q5_K, CPU_FORM_LEAST, 5, 0, 320, 320, 0, NULL)                 \
  X(Q6_K, CPU_FORM_SPLIT, 6, 5, 384, 320, 0, NULL)                 \
  X(S4_IQ4, CPU_FORM_SPLIT, 4, 7, 256, 320, 0, weft_values_iq4)    \
  X(S4_IQ3X, CPU_FORM_SPLIT, 4, 6, 256, 320, 0, weft_values_iq3x)  \
  X(S4_IQ3S, CPU_FORM_SPLIT, 4, 4, 256, 320, 0, weft_values_iq3s)  \
  X(S3_Q3, CPU_FORM_SPLIT, 3, 2, 192, 320, 0, NULL) /* code - 4 */ \
  X(S3_IQ2, CPU_FORM_SPLIT, 3, 6, 192, 320, 0, weft_values_iq2)    \
  X(S3_IQ1, CPU_FORM_SPLIT, 3, 4, 192, 320, 0, weft_values_iq1)

/* How panels hold a type; NULL: no panel does. */
const cpu_pack_info *cpu_pack_find(weft_type type);

/* Bytes of one panel; n_in is whole blocks of the type. */
uint64_t cpu_panel_bytes(const cpu_pack_info *info, uint32_t n_in);

static inline uint32_t cpu_panel_count(uint32_t n_out) {
  return n_out / CPU_PANEL + (n_out % CPU_PANEL != 0 ? 1u : 0u);
}
/* Whether a super-block's d is an f32, as in types of three and four bits with a scale per 16. */
static inline bool cpu_has_f32_d(const cpu_pack_info *info) {
  return info->form == CPU_FORM_SPLIT && info->header_bytes != 0 && info->bits < 6;
}
/* In types without super-blocks a line of 64 bytes holds the scales of the blocks that follow it. */
static inline uint32_t cpu_blocks_per_line(uint32_t scale_bytes) {
  return 64 / scale_bytes;
}
static inline uint64_t cpu_scales_offset(uint32_t scale_bytes, uint32_t quant_bytes, uint32_t block) {
  uint32_t per_line = cpu_blocks_per_line(scale_bytes);
  return (uint64_t)(block / per_line) * (64 + (uint64_t)per_line * quant_bytes) + block % per_line * scale_bytes;
}
static inline uint64_t cpu_quants_offset(uint32_t scale_bytes, uint32_t quant_bytes, uint32_t block) {
  uint32_t per_line = cpu_blocks_per_line(scale_bytes);
  return (uint64_t)(block / per_line + 1) * 64 + (uint64_t)block * quant_bytes;
}

/* Packs one panel of n_rows rows of the file, row_bytes apart. `stored` is the panel's type, or one that devices hold
 * as the panel's type. */
void cpu_panel_pack(const cpu_pack_info *info, weft_type stored, uint32_t n_in, const uint8_t *rows, uint64_t row_bytes,
                    uint32_t n_rows, uint8_t *panel);
/* Writes row `row` of the panel as blocks of the panel's type. */
void cpu_panel_unpack_row(const cpu_pack_info *info, uint32_t n_in, const uint8_t *panel, uint32_t row,
                          uint8_t *file_row);

#endif
