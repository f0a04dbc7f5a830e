/* SPDX-License-Identifier: MIT */
/* Packing: the file's blocks are written to panels, and back; and the memory of weights. pack.h has the order of a
 * panel. */
#include "kernels/cpu/pack.h"

#include <string.h>

#include "base/check.h"
#include "base/memory.h"

enum { SUPER = 256, LANE = 4 };

static const cpu_pack_info pack_table[] = {{WEFT_TYPE_F32, CPU_FORM_FLOAT, 32, 0, 0, 0, 0, NULL},
                                           {WEFT_TYPE_F16, CPU_FORM_FLOAT, 16, 0, 0, 0, 0, NULL},
                                           {WEFT_TYPE_BF16, CPU_FORM_FLOAT, 16, 0, 0, 0, 0, NULL},
#define X(type, ...) {WEFT_TYPE_##type, __VA_ARGS__},
                                           CPU_PACK_QUANTS(X)
#undef X
};

const cpu_pack_info *cpu_pack_find(weft_type type) {
  for (size_t i = 0; i < sizeof pack_table / sizeof *pack_table; i++) {
    if (pack_table[i].type == type) return &pack_table[i];
  }
  return NULL;
}

uint64_t cpu_panel_bytes(const cpu_pack_info *info, uint32_t n_in) {
  if (info->form == CPU_FORM_FLOAT) {
    return ((uint64_t)n_in * (info->bits / 8) * CPU_PANEL + 63u) & ~63ull;
  }
  uint64_t quants = (uint64_t)(n_in / CPU_PACK_BLOCK) * info->quant_bytes;
  if (info->header_bytes != 0) return (uint64_t)(n_in / SUPER) * info->header_bytes + quants;
  uint32_t per_line = cpu_blocks_per_line(info->scale_bytes);
  return (uint64_t)((n_in / CPU_PACK_BLOCK + per_line - 1) / per_line) * 64 + quants;
}

static uint32_t load_u32(const uint8_t *at) {
  uint32_t v;
  memcpy(&v, at, sizeof v);
  return v;
}

static void store_u32(uint8_t *at, uint32_t v) {
  memcpy(at, &v, sizeof v);
}

/* ---- codes of one block of 32 x one row ---- */

/* Writes the codes of one row. quants: the block's first byte, plus 4 for each row before this one. The bytes of other
 * rows are left alone. */
static void put_codes(uint32_t bits, const uint8_t codes[CPU_PACK_BLOCK], uint8_t *quants) {
  if (bits == 8) {
    for (uint32_t c = 0; c < 8; c++) store_u32(quants + 64 * c, load_u32(codes + LANE * c));
    return;
  }
  if (bits < 4) {
    uint32_t third = 0, four[2] = {0, 0};
    for (uint32_t c = 0; c < 8; c++) {
      uint32_t code = load_u32(codes + LANE * c);
      four[c / 4] |= (code & 0x03030303u) << (2 * (c % 4));
      third |= (code >> 2 & 0x01010101u) << c;
    }
    store_u32(quants, four[0]);
    store_u32(quants + 64, four[1]);
    if (bits == 3) store_u32(quants + 128, third);
    return;
  }
  uint32_t fifth = 0, pair[2] = {0, 0};
  for (uint32_t c = 0; c < 4; c++) {
    uint32_t low = load_u32(codes + LANE * c), high = load_u32(codes + LANE * (c + 4));
    store_u32(quants + 64 * c, (low & 0x0F0F0F0Fu) | (high & 0x0F0F0F0Fu) << 4);
    fifth |= (low >> 4 & 0x01010101u) << c | (high >> 4 & 0x01010101u) << (c + 4);
    pair[0] |= (low >> 4 & 0x03030303u) << (2 * c);
    pair[1] |= (high >> 4 & 0x03030303u) << (2 * c);
  }
  if (bits == 5) store_u32(quants + 256, fifth);
  if (bits == 6) {
    store_u32(quants + 256, pair[0]);
    store_u32(quants + 320, pair[1]);
  }
}

static void get_codes(uint32_t bits, const uint8_t *quants, uint8_t codes[CPU_PACK_BLOCK]) {
  if (bits == 8) {
    for (uint32_t c = 0; c < 8; c++) store_u32(codes + LANE * c, load_u32(quants + 64 * c));
    return;
  }
  if (bits < 4) {
    uint32_t third = bits == 3 ? load_u32(quants + 128) : 0;
    for (uint32_t c = 0; c < 8; c++) {
      uint32_t code = load_u32(quants + c / 4 * 64) >> (2 * (c % 4)) & 0x03030303u;
      store_u32(codes + LANE * c, code | (third >> c & 0x01010101u) << 2);
    }
    return;
  }
  uint32_t fifth = bits == 5 ? load_u32(quants + 256) : 0;
  uint32_t pair[2] = {bits == 6 ? load_u32(quants + 256) : 0, bits == 6 ? load_u32(quants + 320) : 0};
  for (uint32_t c = 0; c < 4; c++) {
    uint32_t both = load_u32(quants + 64 * c);
    uint32_t low = both & 0x0F0F0F0Fu, high = both >> 4 & 0x0F0F0F0Fu;
    low |= (fifth >> c & 0x01010101u) << 4 | (pair[0] >> (2 * c) & 0x03030303u) << 4;
    high |= (fifth >> (c + 4) & 0x01010101u) << 4 | (pair[1] >> (2 * c) & 0x03030303u) << 4;
    store_u32(codes + LANE * c, low);
    store_u32(codes + LANE * (c + 4), high);
  }
}

/* ---- the file's blocks of 32 ---- */

/* Bytes of a block's scales. A block is stored as scales, then the fifth bits of types that have them, then codes. */
static uint32_t small_scales(const cpu_pack_info *info) {
  return info->scale_bytes / CPU_PANEL;
}

static const uint8_t *small_codes(const cpu_pack_info *info, const uint8_t *block) {
  return block + small_scales(info) + (info->bits == 5 ? 4 : 0);
}

/* Copies a block's scale, or its two numbers of 16 bits, from the file's block to the row's place among sixteen. */
static void put_scales(const cpu_pack_info *info, const uint8_t *block, uint32_t row, uint8_t *scales) {
  uint32_t one = info->scale_bytes > 32 ? 2 : small_scales(info);
  memcpy(scales + one * row, block, one);
  if (info->scale_bytes > 32) memcpy(scales + 32 + 2 * row, block + 2, 2);
}

static void get_scales(const cpu_pack_info *info, const uint8_t *scales, uint32_t row, uint8_t *block) {
  uint32_t one = info->scale_bytes > 32 ? 2 : small_scales(info);
  memcpy(block, scales + one * row, one);
  if (info->scale_bytes > 32) memcpy(block + 2, scales + 32 + 2 * row, 2);
}

static void read_small(const cpu_pack_info *info, const uint8_t *block, uint8_t codes[CPU_PACK_BLOCK]) {
  const uint8_t *q = small_codes(info, block);
  if (info->bits == 8) {
    for (uint32_t i = 0; i < 32; i++) codes[i] = q[i] ^ 0x80u;
    return;
  }
  uint32_t fifth = info->bits == 5 ? load_u32(block + small_scales(info)) : 0;
  for (uint32_t i = 0; i < 16; i++) {
    codes[i] = (uint8_t)((q[i] & 15u) | (fifth >> i & 1u) << 4);
    codes[i + 16] = (uint8_t)(q[i] >> 4 | (fifth >> (i + 16) & 1u) << 4);
  }
}

static void write_small(const cpu_pack_info *info, const uint8_t codes[CPU_PACK_BLOCK], uint8_t *block) {
  uint8_t *q = block + (small_codes(info, block) - block);
  if (info->bits == 8) {
    for (uint32_t i = 0; i < 32; i++) q[i] = codes[i] ^ 0x80u;
    return;
  }
  uint32_t fifth = 0;
  for (uint32_t i = 0; i < 16; i++) {
    q[i] = (uint8_t)((codes[i] & 15u) | codes[i + 16] << 4);
    fifth |= (uint32_t)(codes[i] >> 4) << i | (uint32_t)(codes[i + 16] >> 4) << (i + 16);
  }
  if (info->bits == 5) store_u32(block + small_scales(info), fifth);
}

static void pack_small_row(const cpu_pack_info *info, uint32_t n_in, const uint8_t *file, uint32_t row,
                           uint8_t *panel) {
  uint32_t file_bytes = weft_type_find((int32_t)info->type)->n_bytes;
  uint8_t codes[CPU_PACK_BLOCK];
  for (uint32_t b = 0; b < n_in / CPU_PACK_BLOCK; b++, file += file_bytes) {
    put_scales(info, file, row, panel + cpu_scales_offset(info->scale_bytes, info->quant_bytes, b));
    read_small(info, file, codes);
    put_codes(info->bits, codes, panel + cpu_quants_offset(info->scale_bytes, info->quant_bytes, b) + LANE * row);
  }
}

static void unpack_small_row(const cpu_pack_info *info, uint32_t n_in, const uint8_t *panel, uint32_t row,
                             uint8_t *file) {
  uint32_t file_bytes = weft_type_find((int32_t)info->type)->n_bytes;
  uint8_t codes[CPU_PACK_BLOCK];
  for (uint32_t b = 0; b < n_in / CPU_PACK_BLOCK; b++, file += file_bytes) {
    get_scales(info, panel + cpu_scales_offset(info->scale_bytes, info->quant_bytes, b), row, file);
    get_codes(info->bits, panel + cpu_quants_offset(info->scale_bytes, info->quant_bytes, b) + LANE * row, codes);
    write_small(info, codes, file);
  }
}

/* ---- the file's blocks of 256 ---- */

/* Q4_K and Q5_K: nibble pairs of two sub-blocks share bytes; fifth (or NULL): bit j belongs to
 * sub-block j. */
static void read_k(const uint8_t *qs, const uint8_t *fifth, uint32_t j, uint8_t codes[CPU_PACK_BLOCK]) {
  const uint8_t *q = qs + 32 * (j / 2);
  uint32_t shift = j % 2 * 4;
  for (uint32_t i = 0; i < 32; i++) codes[i] = (uint8_t)(q[i] >> shift & 15u);
  if (fifth == NULL) return;
  for (uint32_t i = 0; i < 32; i++) codes[i] = (uint8_t)(codes[i] | (fifth[i] >> j & 1u) << 4);
}

/* The bytes must be zero before the first sub-block is written. */
static void write_k(const uint8_t codes[CPU_PACK_BLOCK], uint32_t j, uint8_t *qs, uint8_t *fifth) {
  uint8_t *q = qs + 32 * (j / 2);
  uint32_t shift = j % 2 * 4;
  for (uint32_t i = 0; i < 32; i++) q[i] = (uint8_t)(q[i] | (codes[i] & 15u) << shift);
  if (fifth == NULL) return;
  for (uint32_t i = 0; i < 32; i++) fifth[i] = (uint8_t)(fifth[i] | (codes[i] >> 4) << j);
}

static void read_6(const uint8_t *block, uint32_t j, uint8_t codes[CPU_PACK_BLOCK]) {
  const uint8_t *low = block + 64 * (j / 4) + 32 * (j & 1u);
  const uint8_t *high = block + 128 + 32 * (j / 4);
  uint32_t low_shift = j % 4 < 2 ? 0 : 4, high_shift = 2 * (j % 4);
  for (uint32_t i = 0; i < 32; i++) {
    codes[i] = (uint8_t)((low[i] >> low_shift & 15u) | (high[i] >> high_shift & 3u) << 4);
  }
}

static void write_6(const uint8_t codes[CPU_PACK_BLOCK], uint32_t j, uint8_t *block) {
  uint8_t *low = block + 64 * (j / 4) + 32 * (j & 1u);
  uint8_t *high = block + 128 + 32 * (j / 4);
  uint32_t low_shift = j % 4 < 2 ? 0 : 4, high_shift = 2 * (j % 4);
  for (uint32_t i = 0; i < 32; i++) {
    low[i] = (uint8_t)(low[i] | (codes[i] & 15u) << low_shift);
    high[i] = (uint8_t)(high[i] | (codes[i] >> 4) << high_shift);
  }
}

/* Q2_K: four sub-blocks share bytes. */
static void read_2(const uint8_t *qs, uint32_t j, uint8_t codes[CPU_PACK_BLOCK]) {
  for (uint32_t i = 0; i < 32; i++) codes[i] = (uint8_t)(qs[j / 4 * 32 + i] >> (j % 4 * 2) & 3u);
}

static void write_2(const uint8_t codes[CPU_PACK_BLOCK], uint32_t j, uint8_t *qs) {
  uint8_t *q = qs + j / 4 * 32;
  for (uint32_t i = 0; i < 32; i++) q[i] = (uint8_t)(q[i] | codes[i] << (j % 4 * 2));
}

/* S3: sub-block j has eight bytes of low bits and a word of third bits. */
static void read_s3(const uint8_t *low, uint32_t j, uint8_t codes[CPU_PACK_BLOCK]) {
  uint32_t third = load_u32(low + 64 + 4 * j);
  for (uint32_t i = 0; i < 32; i++) {
    codes[i] = (uint8_t)((low[8 * j + i % 8] >> (i / 8 * 2) & 3u) | (third >> i & 1u) << 2);
  }
}

static void write_s3(const uint8_t codes[CPU_PACK_BLOCK], uint32_t j, uint8_t *low) {
  uint32_t third = 0;
  for (uint32_t i = 0; i < 32; i++) {
    uint8_t *byte = low + 8 * j + i % 8;
    *byte = (uint8_t)(*byte | (codes[i] & 3u) << (i / 8 * 2));
    third |= (uint32_t)(codes[i] >> 2) << i;
  }
  store_u32(low + 64 + 4 * j, third);
}

static void read_s4(const uint8_t *qs, uint32_t j, uint8_t codes[CPU_PACK_BLOCK]) {
  for (uint32_t i = 0; i < 32; i++) codes[i] = (uint8_t)(qs[16 * j + i % 16] >> (i / 16 * 4) & 15u);
}

static void write_s4(const uint8_t codes[CPU_PACK_BLOCK], uint32_t j, uint8_t *qs) {
  for (uint32_t i = 0; i < 16; i++) qs[16 * j + i] = (uint8_t)(codes[i] | codes[16 + i] << 4);
}

/* Sixteen 6-bit numbers in twelve bytes, as Q4_K and Q5_K keep them: eight scales, eight minima. */
static void read_scales(const uint8_t s[12], uint32_t row, uint8_t *scale, uint8_t *least) {
  for (uint32_t j = 0; j < 4; j++) {
    scale[CPU_PANEL * j + row] = s[j] & 63u;
    least[CPU_PANEL * j + row] = s[j + 4] & 63u;
    scale[CPU_PANEL * (j + 4) + row] = (uint8_t)((s[j + 8] & 15u) | (s[j] >> 6) << 4);
    least[CPU_PANEL * (j + 4) + row] = (uint8_t)(s[j + 8] >> 4 | (s[j + 4] >> 6) << 4);
  }
}

static void write_scales(const uint8_t *scale, const uint8_t *least, uint32_t row, uint8_t s[12]) {
  for (uint32_t j = 0; j < 4; j++) {
    uint32_t scale_high = scale[CPU_PANEL * (j + 4) + row], least_high = least[CPU_PANEL * (j + 4) + row];
    s[j] = (uint8_t)(scale[CPU_PANEL * j + row] | (scale_high >> 4) << 6);
    s[j + 4] = (uint8_t)(least[CPU_PANEL * j + row] | (least_high >> 4) << 6);
    s[j + 8] = (uint8_t)((scale_high & 15u) | (least_high & 15u) << 4);
  }
}

/* Where a super-block keeps the row's d's and scales, in the file's block and in the panel's header. */
static void pack_head(const cpu_pack_info *info, const uint8_t *file, uint32_t row, uint8_t *head) {
  if (info->form == CPU_FORM_LEAST) {
    memcpy(head + 2 * row, file, 2);
    memcpy(head + 32 + 2 * row, file + 2, 2);
    read_scales(file + 4, row, head + 64, head + 192);
    return;
  }
  const uint8_t *scales = file;
  if (info->form == CPU_FORM_PAIRS) {
    memcpy(head + 2 * row, file + 80, 2);
    memcpy(head + 32 + 2 * row, file + 82, 2);
  } else if (cpu_has_f32_d(info)) {
    memcpy(head + 4 * row, file, 4);
    scales = file + 4;
  } else {
    memcpy(head + 2 * row, file + 208, 2);
    scales = file + 192;
  }
  for (uint32_t i = 0; i < 16; i++) head[64 + CPU_PANEL * i + row] = scales[i];
}

static void unpack_head(const cpu_pack_info *info, const uint8_t *head, uint32_t row, uint8_t *file) {
  if (info->form == CPU_FORM_LEAST) {
    memcpy(file, head + 2 * row, 2);
    memcpy(file + 2, head + 32 + 2 * row, 2);
    write_scales(head + 64, head + 192, row, file + 4);
    return;
  }
  uint8_t *scales = file;
  if (info->form == CPU_FORM_PAIRS) {
    memcpy(file + 80, head + 2 * row, 2);
    memcpy(file + 82, head + 32 + 2 * row, 2);
  } else if (cpu_has_f32_d(info)) {
    memcpy(file, head + 4 * row, 4);
    scales = file + 4;
  } else {
    memcpy(file + 208, head + 2 * row, 2);
    scales = file + 192;
  }
  for (uint32_t i = 0; i < 16; i++) scales[i] = head[64 + CPU_PANEL * i + row];
}

/* The codes of sub-block j. */
static void read_super(const cpu_pack_info *info, const uint8_t *file, uint32_t j, uint8_t codes[CPU_PACK_BLOCK]) {
  if (info->form == CPU_FORM_LEAST) {
    bool five = info->bits == 5;
    read_k(file + (five ? 48 : 16), five ? file + 16 : NULL, j, codes);
  } else if (info->bits == 2) {
    read_2(file + 16, j, codes);
  } else if (info->bits == 3) {
    read_s3(file + 20, j, codes);
  } else if (info->bits == 4) {
    read_s4(file + 20, j, codes);
  } else {
    read_6(file, j, codes);
  }
}

static void write_super(const cpu_pack_info *info, const uint8_t codes[CPU_PACK_BLOCK], uint32_t j, uint8_t *file) {
  if (info->form == CPU_FORM_LEAST) {
    bool five = info->bits == 5;
    write_k(codes, j, file + (five ? 48 : 16), five ? file + 16 : NULL);
  } else if (info->bits == 2) {
    write_2(codes, j, file + 16);
  } else if (info->bits == 3) {
    write_s3(codes, j, file + 20);
  } else if (info->bits == 4) {
    write_s4(codes, j, file + 20);
  } else {
    write_6(codes, j, file);
  }
}

static void pack_super_row(const cpu_pack_info *info, uint32_t n_in, const uint8_t *file, uint32_t row,
                           uint8_t *panel) {
  uint32_t file_bytes = weft_type_find((int32_t)info->type)->n_bytes;
  uint64_t super_bytes = info->header_bytes + 8ull * info->quant_bytes;
  uint8_t codes[CPU_PACK_BLOCK];
  for (uint32_t s = 0; s < n_in / SUPER; s++, file += file_bytes, panel += super_bytes) {
    uint8_t *quants = panel + info->header_bytes + LANE * row;
    pack_head(info, file, row, panel);
    for (uint32_t j = 0; j < 8; j++) {
      read_super(info, file, j, codes);
      put_codes(info->bits, codes, quants + j * info->quant_bytes);
    }
  }
}

static void unpack_super_row(const cpu_pack_info *info, uint32_t n_in, const uint8_t *panel, uint32_t row,
                             uint8_t *file) {
  uint32_t file_bytes = weft_type_find((int32_t)info->type)->n_bytes;
  uint64_t super_bytes = info->header_bytes + 8ull * info->quant_bytes;
  uint8_t codes[CPU_PACK_BLOCK];
  for (uint32_t s = 0; s < n_in / SUPER; s++, file += file_bytes, panel += super_bytes) {
    const uint8_t *quants = panel + info->header_bytes + LANE * row;
    memset(file, 0, file_bytes);
    unpack_head(info, panel, row, file);
    for (uint32_t j = 0; j < 8; j++) {
      get_codes(info->bits, quants + j * info->quant_bytes, codes);
      write_super(info, codes, j, file);
    }
  }
}

/* ---- panels and weights ---- */

static void pack_row(const cpu_pack_info *info, uint32_t n_in, const uint8_t *from, uint32_t row, uint8_t *panel) {
  if (info->form != CPU_FORM_FLOAT) {
    if (info->header_bytes != 0)
      pack_super_row(info, n_in, from, row, panel);
    else
      pack_small_row(info, n_in, from, row, panel);
  } else if (info->bits == 32) {
    for (uint32_t i = 0; i < n_in; i++) memcpy(panel + 64ull * i + 4 * row, from + 4ull * i, 4);
  } else {
    for (uint32_t i = 0; i < n_in; i++) memcpy(panel + 32ull * i + 2 * row, from + 2ull * i, 2);
  }
}

/* Packs a row of a type that devices hold as another one, block by block. A block becomes whole lines of 64 bytes. */
static void pack_repacked_row(const cpu_pack_info *info, const weft_type_info *stored, uint32_t n_in,
                              const uint8_t *from, uint32_t row, uint8_t *panel) {
  uint8_t held[SUPER];
  WEFT_CHECK(weft_type_row_bytes(info->type, stored->n_elements) <= sizeof held);
  for (uint32_t i = 0; i < n_in; i += stored->n_elements, from += stored->n_bytes) {
    weft_repack_row(stored->type, from, held, stored->n_elements);
    pack_row(info, stored->n_elements, held, row, panel + cpu_panel_bytes(info, i));
  }
}

void cpu_panel_pack(const cpu_pack_info *info, weft_type stored, uint32_t n_in, const uint8_t *rows, uint64_t row_bytes,
                    uint32_t n_rows, uint8_t *panel) {
  memset(panel, 0, cpu_panel_bytes(info, n_in));
  for (uint32_t row = 0; row < n_rows; row++, rows += row_bytes) {
    if (stored == info->type)
      pack_row(info, n_in, rows, row, panel);
    else
      pack_repacked_row(info, weft_type_find((int32_t)stored), n_in, rows, row, panel);
  }
}

void cpu_panel_unpack_row(const cpu_pack_info *info, uint32_t n_in, const uint8_t *panel, uint32_t row,
                          uint8_t *file_row) {
  if (info->form != CPU_FORM_FLOAT) {
    if (info->header_bytes != 0)
      unpack_super_row(info, n_in, panel, row, file_row);
    else
      unpack_small_row(info, n_in, panel, row, file_row);
  } else if (info->bits == 32) {
    for (uint32_t i = 0; i < n_in; i++) memcpy(file_row + 4ull * i, panel + 64ull * i + 4 * row, 4);
  } else {
    for (uint32_t i = 0; i < n_in; i++) memcpy(file_row + 2ull * i, panel + 32ull * i + 2 * row, 2);
  }
}

typedef struct pack_run {
  const cpu_pack_info *info;
  weft_type stored; /* info->type where the weight is placed already */
  uint32_t n_in, n_out, n_panels;
  uint64_t row_bytes, panel_bytes;
  const uint8_t *file;
  uint8_t *unpacked;
  uint8_t *data;
} pack_run;

static pack_run make_run(const weft_weight *weight) {
  const cpu_pack_info *info = cpu_pack_find(weft_type_find((int32_t)weight->type)->held_as);
  WEFT_CHECK(info != NULL);
  return (pack_run){
      .info = info,
      .stored = weight->type,
      .n_in = weight->n_in,
      .n_out = weight->n_out,
      .n_panels = cpu_panel_count(weight->n_out),
      .row_bytes = weft_type_row_bytes(weight->type, weight->n_in),
      .panel_bytes = cpu_panel_bytes(info, weight->n_in),
      .data = (uint8_t *)(uintptr_t)weight->data,
  };
}

/* One task is one matrix' panel: task = matrix * n_panels + panel. */
static void pack_task(void *arg, uint32_t task, uint32_t thread) {
  (void)thread;
  const pack_run *run = arg;
  uint32_t first = task % run->n_panels * CPU_PANEL;
  uint32_t n_rows = run->n_out - first < CPU_PANEL ? run->n_out - first : CPU_PANEL;
  uint64_t row = (uint64_t)(task / run->n_panels) * run->n_out + first;
  cpu_panel_pack(run->info, run->stored, run->n_in, run->file + row * run->row_bytes, run->row_bytes, n_rows,
                 run->data + task * run->panel_bytes);
}

static void unpack_task(void *arg, uint32_t task, uint32_t thread) {
  (void)thread;
  const pack_run *run = arg;
  uint32_t first = task % run->n_panels * CPU_PANEL;
  uint32_t n_rows = run->n_out - first < CPU_PANEL ? run->n_out - first : CPU_PANEL;
  uint64_t row = (uint64_t)(task / run->n_panels) * run->n_out + first;
  for (uint32_t i = 0; i < n_rows; i++) {
    cpu_panel_unpack_row(run->info, run->n_in, run->data + task * run->panel_bytes, i,
                         run->unpacked + (row + i) * run->row_bytes);
  }
}

/* ---- memory of weights ---- */

/* Weights lie side by side in a few large pieces of memory, which the system is asked to map with huge pages: with
 * pages of 4 KiB address translation halves the rate at which one thread reads. Each piece is twice as large as the one
 * before, so that a small model stays small. A piece is freed with its last weight. */
struct cpu_pack_chunk {
  struct cpu_pack_chunk *next;
  uint64_t n_bytes, n_used;
  uint32_t n_weights;
};

enum { CHUNK_HEAD = 64, CHUNK_LEAST = 1 << 20, CHUNK_MOST = 64 << 20, HUGE_PAGE = 2 << 20 };
_Static_assert(sizeof(struct cpu_pack_chunk) <= CHUNK_HEAD, "a chunk's head");

static struct cpu_pack_chunk *open_chunk(cpu_device *cpu, uint64_t n_bytes) {
  uint64_t wanted = CHUNK_LEAST;
  for (const struct cpu_pack_chunk *c = cpu->chunks; c != NULL; c = c->next) wanted += c->n_bytes;
  if (wanted > CHUNK_MOST) wanted = CHUNK_MOST;
  if (wanted < n_bytes + CHUNK_HEAD) wanted = n_bytes + CHUNK_HEAD;
  bool scarce = cpu->device.budget.most > 0 && wanted > host_memory_left(&cpu->device) / 8;
  if (scarce) wanted = n_bytes + CHUNK_HEAD; /* no more than this weight needs */
  if (!host_budget_take(&cpu->device, wanted)) return NULL;
  size_t align = wanted >= HUGE_PAGE ? HUGE_PAGE : 4096;
  struct cpu_pack_chunk *chunk = weft_alloc_aligned((size_t)wanted, align);
  if (chunk == NULL) {
    host_budget_give(&cpu->device, wanted);
    return NULL;
  }
  if (wanted >= HUGE_PAGE) weft_memory_prefer_huge(chunk, (size_t)wanted);
  *chunk = (struct cpu_pack_chunk){.next = cpu->chunks, .n_bytes = wanted, .n_used = CHUNK_HEAD};
  cpu->chunks = chunk;
  return chunk;
}

static void *chunk_alloc(cpu_device *cpu, uint64_t n_bytes) {
  struct cpu_pack_chunk *chunk = cpu->chunks;
  while (chunk != NULL && chunk->n_bytes - chunk->n_used < n_bytes) chunk = chunk->next;
  if (chunk == NULL) chunk = open_chunk(cpu, n_bytes);
  if (chunk == NULL) return NULL;
  void *memory = (uint8_t *)chunk + chunk->n_used;
  chunk->n_used += n_bytes;
  chunk->n_weights += 1;
  return memory;
}

static void chunk_free(cpu_device *cpu, const void *memory) {
  struct cpu_pack_chunk **link = &cpu->chunks;
  while (*link != NULL && ((const uint8_t *)memory < (const uint8_t *)*link ||
                           (const uint8_t *)memory >= (const uint8_t *)*link + (*link)->n_bytes)) {
    link = &(*link)->next;
  }
  struct cpu_pack_chunk *chunk = *link;
  WEFT_CHECK(chunk != NULL);
  WEFT_CHECK(chunk->n_weights > 0);
  chunk->n_weights -= 1;
  if (chunk->n_weights > 0) return;
  *link = chunk->next;
  host_budget_give(&cpu->device, chunk->n_bytes);
  weft_free(chunk);
}

weft_status cpu_expect(weft_device *device, weft_weight *weight, unsigned uses, weft_error *error) {
  (void)device;
  (void)uses; /* one layout serves products, lookups and soft embeddings */
  pack_run run = make_run(weight);
  uint64_t n_tasks = (uint64_t)run.n_panels * weight->n_mats, n_bytes;
  if (n_tasks > UINT32_MAX || __builtin_mul_overflow(n_tasks, run.panel_bytes, &n_bytes) || n_bytes > SIZE_MAX / 2) {
    return weft_fail(error, WEFT_E_INVALID, "a weight of %u x %u x %u is too large for the cpu backend", weight->n_mats,
                     weight->n_out, weight->n_in);
  }
  weight->type = run.info->type;
  weight->layout = CPU_LAYOUT_PANELS;
  weight->n_bytes = n_bytes;
  return WEFT_OK;
}

weft_status cpu_pack(weft_device *device, weft_weight *weight, const void *file_bytes, unsigned uses,
                     weft_error *error) {
  pack_run run = make_run(weight);
  weft_weight packed = *weight;
  weft_status status = cpu_expect(device, &packed, uses, error);
  if (status != WEFT_OK) return status;
  run.data = device->shares ? host_share_take(device, packed.n_bytes)
                            : chunk_alloc((cpu_device *)(void *)device, packed.n_bytes);
  if (run.data == NULL) {
    return weft_fail(error, WEFT_E_NO_MEMORY, "out of memory: %llu bytes for a weight",
                     (unsigned long long)packed.n_bytes);
  }
  run.file = file_bytes;
  weft_thread_pool_run(cpu_thread_pool(device), pack_task, &run, run.n_panels * weight->n_mats);
  packed.data = run.data;
  *weight = packed;
  return WEFT_OK;
}

void cpu_free_weight(weft_device *device, weft_weight *weight) {
  if (device->shares) return; /* it stays until the device is closed */
  chunk_free((cpu_device *)(void *)device, weight->data);
}

weft_status cpu_unpack(weft_device *device, const weft_weight *weight, void *file_bytes) {
  if (weight->layout != CPU_LAYOUT_PANELS) return WEFT_E_INVALID;
  pack_run run = make_run(weight);
  run.unpacked = file_bytes;
  weft_thread_pool_run(cpu_thread_pool(device), unpack_task, &run, run.n_panels * weight->n_mats);
  return WEFT_OK;
}

/* Goes through the row one stored block at a time, so that the stack has room for it. */
void cpu_weight_row(const weft_weight *weight, uint32_t matrix, uint32_t row, float *out) {
  pack_run run = make_run(weight);
  const uint8_t *panel = run.data + ((uint64_t)matrix * run.n_panels + row / CPU_PANEL) * run.panel_bytes;
  uint32_t lane = row % CPU_PANEL;
  const cpu_pack_info *info = run.info;
  uint8_t block[SUPER];
  if (info->form == CPU_FORM_FLOAT) {
    uint32_t size = info->bits / 8;
    for (uint32_t i = 0; i < run.n_in; i++) {
      memcpy(block, panel + ((uint64_t)i * CPU_PANEL + lane) * size, size);
      weft_dequantise_row(info->type, block, out + i, 1);
    }
  } else if (info->header_bytes != 0) {
    uint64_t super_bytes = info->header_bytes + 8ull * info->quant_bytes;
    for (uint32_t i = 0; i < run.n_in; i += SUPER, panel += super_bytes) {
      unpack_super_row(info, SUPER, panel, lane, block);
      weft_dequantise_row(info->type, block, out + i, SUPER);
    }
  } else {
    uint8_t codes[CPU_PACK_BLOCK];
    for (uint32_t b = 0; b < run.n_in / CPU_PACK_BLOCK; b++) {
      const uint8_t *quants = panel + cpu_quants_offset(info->scale_bytes, info->quant_bytes, b);
      get_scales(info, panel + cpu_scales_offset(info->scale_bytes, info->quant_bytes, b), lane, block);
      get_codes(info->bits, quants + LANE * lane, codes);
      write_small(info, codes, block);
      weft_dequantise_row(info->type, block, out + (uint64_t)b * CPU_PACK_BLOCK, CPU_PACK_BLOCK);
    }
  }
}
