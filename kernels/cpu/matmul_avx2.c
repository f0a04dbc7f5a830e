/* SPDX-License-Identifier: MIT */
/* Products of rows with panels, AVX2: a panel is two halves of eight lanes.
 *
 * Law: the numerics of matmul.h. Up to four rows are multiplied at once with both halves of a panel, so that an
 * activation is read once for sixteen outputs and a code once for those rows; sums of the rows lie in memory, which the
 * first-level cache holds. Products of unsigned codes and signed activations are added in pairs to 16 bits. As many
 * pairs are added there as cannot overflow (a pair is at most 2 * code * 127); then their sum is widened. */
#include "kernels/cpu/matmul.h"

#if defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>

#include "kernels/cpu/matmul_lanes.h"
#include "kernels/cpu/quantise_impl.h"

#define INLINE static inline __attribute__((always_inline))

enum { LANES = 8 /* outputs of half a panel */, FETCH_AHEAD = 8192 /* bytes */ };

/* ---- weights of half a block: 32 inputs x 8 outputs ---- */

/* Whether codes may be so large that not even one pair of products fits 16 bits. Such codes are taken with their sign,
 * that is less the offset. */
INLINE bool is_signed(const cpu_pack_info *info) {
  return info->offset_shift == 7;
}

/* Of how many vectors pairs may be added in 16 bits. Codes are below 2^bits; values plus their offset are below 2^5
 * where the offset is 2^4, and below 2^7 where it is 2^6; codes that are taken with their sign are at most 128. */
INLINE uint32_t pairs_that_fit(const cpu_pack_info *info) {
  if (info->values != NULL) return info->offset_shift == 4 ? 4 : 1;
  return info->bits <= 4 ? 8 : info->bits == 5 ? 4 : info->bits == 6 ? 2 : 1;
}

INLINE __m256i load_vector(const uint8_t *at) {
  return _mm256_loadu_si256((const __m256i *)(const void *)at);
}

/* Moves bit `from` of each byte to bit `to`, and keeps only the bits of the mask. */
INLINE __m256i move_bits(__m256i bytes, int from, int to, __m256i mask) {
  return _mm256_and_si256(from < to ? _mm256_slli_epi16(bytes, to - from) : _mm256_srli_epi16(bytes, from - to), mask);
}

/* Codes of three bits. Bits 3 and 7 of the bytes are zero, bits 4 to 6 may be those of another code. Two codes share a
 * byte of `even` and of `odd`; their third bits, of which four are in half a byte, come to bits 2 and 6 by tables. */
INLINE void load_three_bits(const uint8_t *q, __m256i w[8]) {
  const __m256i even_bits =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 0, 4, 64, 68, 64, 68, 0, 4, 0, 4, 64, 68, 64, 68));
  const __m256i odd_bits =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 0, 4, 4, 0, 0, 4, 4, 64, 64, 68, 68, 64, 64, 68, 68));
  const __m256i low = _mm256_set1_epi8(15), pairs = _mm256_set1_epi8(0x33);
#pragma GCC unroll 2
  for (int l = 0; l < 2; l++) {
    __m256i two = load_vector(q + 64 * l), third = move_bits(load_vector(q + 128), 4 * l, 0, low);
    __m256i even = _mm256_or_si256(_mm256_and_si256(two, pairs), _mm256_shuffle_epi8(even_bits, third));
    __m256i odd = _mm256_or_si256(move_bits(two, 2, 0, pairs), _mm256_shuffle_epi8(odd_bits, third));
    w[4 * l] = even;
    w[4 * l + 1] = odd;
    w[4 * l + 2] = _mm256_srli_epi16(even, 4);
    w[4 * l + 3] = _mm256_srli_epi16(odd, 4);
  }
}

/* Vector c of pack.h of codes that have not three bits. q is where the half's bytes of the first vector are. */
INLINE __m256i load_code(uint32_t bits, const uint8_t *q, int c) {
  if (bits == 8) return load_vector(q + 64 * c);
  if (bits == 2) return move_bits(load_vector(q + c / 4 * 64), 2 * (c % 4), 0, _mm256_set1_epi8(3));
  __m256i w = move_bits(load_vector(q + c % 4 * 64), c / 4 * 4, 0, _mm256_set1_epi8(15));
  if (bits == 5) w = _mm256_or_si256(w, move_bits(load_vector(q + 256), c, 4, _mm256_set1_epi8(16)));
  if (bits == 6) {
    __m256i pairs = load_vector(q + (c < 4 ? 256 : 320));
    w = _mm256_or_si256(w, move_bits(pairs, 2 * (c % 4), 4, _mm256_set1_epi8(48)));
  }
  return w;
}

/* What a product multiplies by in place of a code: its value plus the offset, or without it where it has a sign. A
 * look-up reads bits 0 to 3 and 7. */
INLINE __m256i make_factor(const cpu_pack_info *info, __m256i code) {
  if (info->values != NULL) {
    const __m128i offset = _mm_set1_epi8((char)(is_signed(info) ? 0 : 1 << info->offset_shift));
    __m128i table = _mm_add_epi8(_mm_loadu_si128((const __m128i *)(const void *)info->values), offset);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), code);
  }
  if (info->bits == 3) return _mm256_and_si256(code, _mm256_set1_epi8(7));
  return is_signed(info) ? _mm256_xor_si256(code, _mm256_set1_epi8(-128)) : code;
}

/* Factors of a block: of each vector both halves of the panel. */
typedef struct factors {
  __m256i w[8][2];
} factors;

/* The compiler does not see that these are the same factors each time, so it makes no copies of them, which would not fit
 * the registers. */
INLINE const factors *in_memory(const factors *f) {
  __asm__ volatile("" : "+r"(f) : : "memory");
  return f;
}

INLINE void read_factors(const cpu_pack_info *info, const uint8_t *quants, factors *f) {
#pragma GCC unroll 2
  for (uint32_t half = 0; half < 2; half++) {
    const uint8_t *q = quants + 4 * LANES * half;
    __m256i w[8];
    if (info->bits == 3) load_three_bits(q, w);
#pragma GCC unroll 8
    for (int c = 0; c < 8; c++) f->w[c][half] = make_factor(info, info->bits == 3 ? w[c] : load_code(info->bits, q, c));
  }
}

INLINE __m256 load_f16(const uint8_t *at) {
  return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)at));
}

INLINE __m256i widen_u8(const uint8_t *at) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)at));
}

INLINE __m256 load_u8(const uint8_t *at) {
  return _mm256_cvtepi32_ps(widen_u8(at));
}

INLINE __m256 load_low_u4(const uint8_t *at) {
  return _mm256_cvtepi32_ps(_mm256_and_si256(widen_u8(at), _mm256_set1_epi32(15)));
}

INLINE __m256 load_high_u4(const uint8_t *at) {
  return _mm256_cvtepi32_ps(_mm256_srli_epi32(widen_u8(at), 4));
}

INLINE __m256 load_s8(const uint8_t *at) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)at)));
}

/* Half the scales of MXFP4: lanes_e8m0 for eight lanes. */
INLINE __m256 load_e8m0(const uint8_t *at) {
  const __m256i e = widen_u8(at), none = _mm256_set1_epi32(0x7FC00000);
  __m256i bits = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
  __m256i tiny = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
  bits = _mm256_blendv_epi8(bits, tiny, _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e));
  bits = _mm256_blendv_epi8(bits, none, _mm256_cmpeq_epi32(e, _mm256_set1_epi32(255)));
  return _mm256_castsi256_ps(bits);
}

/* The scales of a block for half a panel. */
typedef struct half_scales {
  __m256 scale[2]; /* SPLIT, PAIRS: of both halves of the inputs; others: the first */
  __m256 least[2]; /* what is added to scale * code: LEAST the first; PAIRS both, times CPU_FROM_PART */
} half_scales;

/* The scales of a block in types without super-blocks. */
INLINE void load_small_scales(const cpu_pack_info *info, const uint8_t *scales, uint32_t half, half_scales *k) {
  if (info->scale_bytes == 16) {
    k->scale[0] = load_e8m0(scales + LANES * half);
    return;
  }
  scales += 2 * LANES * half;
  k->scale[0] = load_f16(scales);
  if (info->form == CPU_FORM_SPLIT) k->scale[1] = load_f16(scales + 32);
  if (info->form == CPU_FORM_LEAST) k->least[0] = load_f16(scales + 32);
}

/* What the scales of a super-block's blocks are multiplied by, for half a panel. */
typedef struct half_super {
  __m256 d, minus;
} half_super;

INLINE half_super load_super(const cpu_pack_info *info, const uint8_t *super, uint32_t half) {
  const uint8_t *d = super + 2 * LANES * half, *wide_d = super + 4 * LANES * half;
  return (half_super){
      .d = cpu_has_f32_d(info) ? _mm256_loadu_ps((const float *)(const void *)wide_d) : load_f16(d),
      .minus = _mm256_mul_ps(_mm256_set1_ps(info->form == CPU_FORM_PAIRS ? -CPU_FROM_PART : -1.0f), load_f16(d + 32)),
  };
}

/* The scales of block j of a super-block. */
INLINE void load_super_scales(const cpu_pack_info *info, const half_super *of, const uint8_t *super, uint32_t j,
                              uint32_t half, half_scales *k) {
  const uint8_t *scales = super + 64 + LANES * half;
  if (info->form == CPU_FORM_LEAST) {
    k->scale[0] = _mm256_mul_ps(of->d, load_u8(scales + 16 * j));
    k->least[0] = _mm256_mul_ps(of->minus, load_u8(scales + 128 + 16 * j));
    return;
  }
  for (uint32_t i = 0; i < 2; i++) {
    const uint8_t *at = scales + 32 * j + 16 * i;
    k->scale[i] = _mm256_mul_ps(of->d, info->form == CPU_FORM_PAIRS ? load_low_u4(at) : load_s8(at));
    if (info->form == CPU_FORM_PAIRS) k->least[i] = _mm256_mul_ps(of->minus, load_high_u4(at));
  }
}

/* ---- a block, N rows ---- */

INLINE __m256i four(const uint8_t *codes) {
  int32_t x;
  memcpy(&x, codes, 4);
  return _mm256_set1_epi32(x);
}

INLINE float read_float(const uint8_t *at) {
  float f;
  memcpy(&f, at, sizeof f);
  return f;
}

INLINE int32_t read_int(const uint8_t *at) {
  int32_t v;
  memcpy(&v, at, sizeof v);
  return v;
}

/* Minus the sum of that part of a row's codes, times 1 << shift, in all lanes. */
INLINE __m256i minus_sum(const uint8_t *x, cpu_part part, uint32_t shift) {
  __m256i sums = _mm256_set1_epi32(read_int(x + CPU_X_MINUS));
  return _mm256_madd_epi16(sums, _mm256_set1_epi32((int32_t)part << shift));
}

INLINE bool is_halved(const cpu_pack_info *info) {
  return info->form == CPU_FORM_SPLIT || info->form == CPU_FORM_PAIRS;
}

/* Where the factors of a block come from: memory or, where f is NULL, straight from its quants. */
INLINE __m256i take_factor(const cpu_pack_info *info, const factors *f, const uint8_t *quants, int c, uint32_t half) {
  if (f != NULL) return f->w[c][half];
  return make_factor(info, load_code(info->bits, quants + 4 * LANES * half, c));
}

INLINE __m256i multiply(const cpu_pack_info *info, __m256i factor, __m256i x) {
  if (!is_signed(info)) return _mm256_maddubs_epi16(factor, x);
  return _mm256_maddubs_epi16(_mm256_abs_epi8(factor), _mm256_sign_epi8(x, factor));
}

typedef struct dots {
  __m256i of[4][2]; /* row, half of the panel */
} dots;

/* A number that the compiler keeps in a register and makes just here: it would make trees of sums, which have more parts
 * than there are registers, and load a factor again for each product. */
INLINE __m256i keep(__m256i number) {
  __asm__("" : "+x"(number));
  return number;
}

/* The products of vectors [from, from + n) of all rows. */
INLINE void find_dots(const cpu_pack_info *info, uint32_t N, const factors *f, const uint8_t *quants, const uint8_t *x,
                      int from, int n, dots *d) {
  const int fit = (int)pairs_that_fit(info);
  const bool has_offset = !lanes_has_least(info) && !is_signed(info);
  const cpu_part part = n == 8 ? CPU_PART_ALL : from == 0 ? CPU_PART_FIRST : CPU_PART_LAST;
  __m256i pairs[4][2];
#pragma GCC unroll 8
  for (int c = 0; c < n; c++) {
    __m256i w[2];
    w[0] = keep(take_factor(info, f, quants, from + c, 0));
    w[1] = keep(take_factor(info, f, quants, from + c, 1));
#pragma GCC unroll 4
    for (uint32_t r = 0; r < N; r++) {
      __m256i codes = four(x + CPU_X_BYTES * r + 4 * (from + c));
#pragma GCC unroll 2
      for (uint32_t half = 0; half < 2; half++) {
        __m256i product = multiply(info, w[half], codes);
        pairs[r][half] = keep(c % fit == 0 ? product : _mm256_add_epi16(pairs[r][half], product));
      }
    }
    if ((c + 1) % fit != 0 && c + 1 < n) continue;
#pragma GCC unroll 4
    for (uint32_t r = 0; r < N; r++) {
#pragma GCC unroll 2
      for (uint32_t half = 0; half < 2; half++) {
        __m256i sum = _mm256_madd_epi16(pairs[r][half], _mm256_set1_epi16(1));
        if (c < fit && has_offset)
          sum = _mm256_add_epi32(minus_sum(x + CPU_X_BYTES * r, part, info->offset_shift), sum);
        d->of[r][half] = c < fit ? sum : _mm256_add_epi32(d->of[r][half], sum);
      }
    }
  }
}

/* Block t of N rows, whose activations begin at x, is added to sums. */
INLINE void add_block(const cpu_pack_info *info, uint32_t N, const factors *f, const uint8_t *quants,
                      const half_scales k[2], const uint8_t *x, float sums[][CPU_PANEL]) {
  __m256 t[4][2];
  dots d;
  find_dots(info, N, f, quants, x, 0, is_halved(info) ? 4 : 8, &d);
#pragma GCC unroll 4
  for (uint32_t r = 0; r < N; r++) {
    const __m256 x_sum = _mm256_set1_ps(read_float(x + CPU_X_BYTES * r + CPU_X_SUM));
#pragma GCC unroll 2
    for (uint32_t half = 0; half < 2; half++) {
      t[r][half] = _mm256_mul_ps(k[half].scale[0], _mm256_cvtepi32_ps(d.of[r][half]));
      if (info->form == CPU_FORM_LEAST) t[r][half] = _mm256_fmadd_ps(k[half].least[0], x_sum, t[r][half]);
    }
  }
  if (is_halved(info)) find_dots(info, N, f, quants, x, 4, 4, &d);
#pragma GCC unroll 4
  for (uint32_t r = 0; r < N; r++) {
    const uint8_t *at = x + CPU_X_BYTES * r;
    const __m256 x_scale = _mm256_set1_ps(read_float(at + CPU_X_SCALE));
    const __m256 minus0 = _mm256_sub_ps(_mm256_set1_ps(read_float(at + CPU_X_FROM_FIRST)), _mm256_set1_ps(CPU_LIFT));
    const __m256 minus1 = _mm256_cvtepi32_ps(_mm256_set1_epi32(read_int(at + CPU_X_FROM_LAST)));
#pragma GCC unroll 2
    for (uint32_t half = 0; half < 2; half++) {
      float *sum = sums[r] + LANES * half;
      if (is_halved(info)) {
        t[r][half] = _mm256_fmadd_ps(k[half].scale[1], _mm256_cvtepi32_ps(d.of[r][half]), t[r][half]);
      }
      if (info->form == CPU_FORM_PAIRS) {
        t[r][half] = _mm256_fnmadd_ps(k[half].least[0], minus0, t[r][half]);
        t[r][half] = _mm256_fnmadd_ps(k[half].least[1], minus1, t[r][half]);
      }
      _mm256_store_ps(sum, _mm256_fmadd_ps(t[r][half], x_scale, _mm256_load_ps(sum)));
    }
  }
}

/* ---- one panel, R rows ---- */

static void store_rows(const cpu_tile *tile, uint32_t panel, const float acc[][CPU_PANEL]) {
  uint32_t n = tile->n_cols - panel * CPU_PANEL;
  float *y = tile->y + (uint64_t)panel * CPU_PANEL;
  for (uint32_t r = 0; r < tile->n_rows; r++, y += tile->y_stride) {
    if (n < CPU_PANEL)
      memcpy(y, acc[r], n * sizeof(float));
    else
      memcpy(y, acc[r], sizeof acc[r]); /* a size that the compiler knows: a few instructions */
  }
}

/* How many rows at once the sixteen registers are enough for. */
INLINE uint32_t rows_at_once(const cpu_pack_info *info) {
  return pairs_that_fit(info) == 8 && !is_halved(info) ? 4 : 2;
}

/* A block of n_rows; R is the same, or 0 where the compiler does not know it. Up to three rows take the factors as they
 * are made, unless codes have three bits; more rows take them from memory. */
INLINE void add_rows(const cpu_pack_info *info, uint32_t R, uint32_t n_rows, const uint8_t *quants,
                     const half_scales k[2], const uint8_t *x, float acc[][CPU_PANEL]) {
  if (R > 0 && info->bits != 3) {
    add_block(info, R, NULL, quants, k, x, acc);
    return;
  }
  const uint32_t N = rows_at_once(info);
  factors f;
  uint32_t r = 0;
  read_factors(info, quants, &f);
  for (; r + N <= n_rows; r += N) add_block(info, N, in_memory(&f), quants, k, x + CPU_X_BYTES * r, acc + r);
  if (N == 4 && n_rows - r == 3) add_block(info, 3, in_memory(&f), quants, k, x + CPU_X_BYTES * r, acc + r);
  if (N == 4 && n_rows - r == 2) add_block(info, 2, in_memory(&f), quants, k, x + CPU_X_BYTES * r, acc + r);
  if (n_rows - r == 1) add_block(info, 1, in_memory(&f), quants, k, x + CPU_X_BYTES * r, acc + r);
}

/* Prefetches what lies FETCH_AHEAD bytes further in the tile's panels or, beyond their end, in `next`. */
INLINE void fetch_ahead(const cpu_tile *tile, const uint8_t *at, uint32_t n_bytes) {
  uint64_t left = (uint64_t)(tile->panel + tile->n_panels * tile->panel_bytes - at);
  const uint8_t *from = left > FETCH_AHEAD || tile->next == NULL ? at : tile->next - left;
#pragma GCC unroll 8
  for (uint32_t i = 0; i < n_bytes; i += 64) _mm_prefetch((const char *)from + FETCH_AHEAD + i, _MM_HINT_T0);
}

INLINE void small_panel(const cpu_pack_info *info, uint32_t R, const cpu_tile *tile, const uint8_t *panel,
                        float acc[][CPU_PANEL]) {
  const uint32_t n_rows = R > 0 ? R : tile->n_rows;
  const uint8_t *x = tile->x;
  for (uint32_t b = 0; b < tile->n_in / CPU_PACK_BLOCK; b++, x += CPU_X_BYTES * n_rows) {
    const uint8_t *scales = panel + cpu_scales_offset(info->scale_bytes, info->quant_bytes, b);
    const uint8_t *quants = panel + cpu_quants_offset(info->scale_bytes, info->quant_bytes, b);
    half_scales k[2];
    if (tile->fetch) fetch_ahead(tile, quants, info->quant_bytes + 64);
    load_small_scales(info, scales, 0, &k[0]);
    load_small_scales(info, scales, 1, &k[1]);
    add_rows(info, R, n_rows, quants, k, x, acc);
  }
}

INLINE void super_panel(const cpu_pack_info *info, uint32_t R, const cpu_tile *tile, const uint8_t *panel,
                        float acc[][CPU_PANEL]) {
  const uint32_t n_rows = R > 0 ? R : tile->n_rows;
  const uint8_t *super = panel, *x = tile->x;
  for (uint32_t s = 0; s < tile->n_in / (8 * CPU_PACK_BLOCK); s++) {
    const half_super of[2] = {load_super(info, super, 0), load_super(info, super, 1)};
    const uint8_t *quants = super + info->header_bytes;
    for (uint32_t j = 0; j < 8; j++, x += CPU_X_BYTES * n_rows, quants += info->quant_bytes) {
      half_scales k[2];
      if (tile->fetch) fetch_ahead(tile, quants, info->quant_bytes + 64);
      load_super_scales(info, &of[0], super, j, 0, &k[0]);
      load_super_scales(info, &of[1], super, j, 1, &k[1]);
      add_rows(info, R, n_rows, quants, k, x, acc);
    }
    super = quants;
  }
}

INLINE void quantised_panel(const cpu_pack_info *info, uint32_t R, const cpu_tile *tile, uint32_t p) {
  float acc[CPU_GROUP][CPU_PANEL] __attribute__((aligned(64)));
  const uint8_t *panel = tile->panel + p * tile->panel_bytes;
  memset(acc, 0, (R > 0 ? R : tile->n_rows) * sizeof acc[0]);
  if (info->header_bytes == 0)
    small_panel(info, R, tile, panel, acc);
  else
    super_panel(info, R, tile, panel, acc);
  store_rows(tile, p, acc);
}

INLINE __m256 half_of(const lanes_f *v, uint32_t half) {
  return _mm256_loadu_ps((const float *)(const void *)v + LANES * half);
}

INLINE void float_panel(weft_type type, const cpu_tile *tile, uint32_t p) {
  float total[CPU_GROUP][CPU_PANEL] = {{0}};
  const uint8_t *panel = tile->panel + p * tile->panel_bytes;
  const uint32_t R = tile->n_rows;
  for (uint32_t first = 0; first < tile->n_in; first += CPU_SEGMENT) {
    uint32_t n = tile->n_in - first < CPU_SEGMENT ? tile->n_in - first : CPU_SEGMENT;
    for (uint32_t r = 0; r < R; r += 4) { /* four rows at a time; a row past the end repeats the last */
      uint32_t at[4];
      __m256 low[4], high[4];
      for (uint32_t i = 0; i < 4; i++) at[i] = r + i < R ? r + i : R - 1;
      for (uint32_t i = 0; i < 4; i++) low[i] = high[i] = _mm256_setzero_ps();
      for (uint32_t i = first; i < first + n; i++) {
        lanes_f w = lanes_weight(type, panel, i);
        __m256 w0 = half_of(&w, 0), w1 = half_of(&w, 1);
        const uint8_t *x = tile->x + 4ull * i * R;
#pragma GCC unroll 4
        for (uint32_t j = 0; j < 4; j++) {
          __m256 one = _mm256_set1_ps(read_float(x + 4 * at[j]));
          low[j] = _mm256_fmadd_ps(w0, one, low[j]);
          high[j] = _mm256_fmadd_ps(w1, one, high[j]);
        }
      }
      for (uint32_t j = 0; j < 4 && r + j < R; j++) {
        float *to = total[r + j];
        _mm256_storeu_ps(to, _mm256_add_ps(_mm256_loadu_ps(to), low[j]));
        _mm256_storeu_ps(to + 8, _mm256_add_ps(_mm256_loadu_ps(to + 8), high[j]));
      }
    }
  }
  store_rows(tile, p, total);
}

/* A function for each type, compiled with the type's numbers as constants, and for one row, for two, and
 * where the registers are enough for three. */
#define X(type, ...)                                                   \
  static void tile_##type(const cpu_tile *tile, uint32_t p) {          \
    static const cpu_pack_info info = {WEFT_TYPE_##type, __VA_ARGS__}; \
    if (tile->n_rows == 1)                                             \
      quantised_panel(&info, 1, tile, p);                              \
    else if (tile->n_rows == 2)                                        \
      quantised_panel(&info, 2, tile, p);                              \
    else if (tile->n_rows == 3 && rows_at_once(&info) == 4)            \
      quantised_panel(&info, 3, tile, p);                              \
    else                                                               \
      quantised_panel(&info, 0, tile, p);                              \
  }
CPU_PACK_QUANTS(X)
#undef X
#define X(type)                                               \
  static void tile_##type(const cpu_tile *tile, uint32_t p) { \
    float_panel(WEFT_TYPE_##type, tile, p);                   \
  }
X(F32)
X(F16)
X(BF16)
#undef X

typedef void (*panel_fn)(const cpu_tile *tile, uint32_t p);

static panel_fn find_panel_fn(weft_type type) {
  static const struct {
    weft_type type;
    panel_fn fn;
  } all[] = {
#define X(type, ...) {WEFT_TYPE_##type, tile_##type},
      X(F32) X(F16) X(BF16) CPU_PACK_QUANTS(X)
#undef X
  };
  for (uint32_t i = 0; i < sizeof all / sizeof all[0]; i++) {
    if (all[i].type == type) return all[i].fn;
  }
  return NULL;
}

static void tile_avx2(const cpu_tile *tile) {
  panel_fn fn = find_panel_fn(tile->info->type);
  for (uint32_t p = 0; p < tile->n_panels; p++) fn(tile, p);
}

/* ---- activations ---- */

/* Of each lane the largest magnitude in a block. */
INLINE __m256i magnitudes(const float *x) {
  const __m256i all = _mm256_set1_epi32(0x7FFFFFFF);
  __m256i most = _mm256_setzero_si256();
#pragma GCC unroll 4
  for (uint32_t i = 0; i < 4; i++)
    most = _mm256_max_epu32(most, _mm256_and_si256(_mm256_castps_si256(_mm256_loadu_ps(x + LANES * i)), all));
  return most;
}

INLINE __m128 most_of_four(const float *x) {
  __m256i a = magnitudes(x), b = magnitudes(x + 32), c = magnitudes(x + 64), d = magnitudes(x + 96);
  __m256i ab = _mm256_max_epu32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
  __m256i cd = _mm256_max_epu32(_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
  __m256i all = _mm256_max_epu32(_mm256_unpacklo_epi64(ab, cd), _mm256_unpackhi_epi64(ab, cd));
  return _mm_castsi128_ps(_mm_max_epu32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1)));
}

INLINE float most_of(const float *x) {
  __m256i v = magnitudes(x);
  __m128i most = _mm_max_epu32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  most = _mm_max_epu32(most, _mm_shuffle_epi32(most, 0x4E));
  most = _mm_max_epu32(most, _mm_shuffle_epi32(most, 0xB1));
  return _mm_cvtss_f32(_mm_castsi128_ps(most));
}

INLINE void put_block(const float *x, float scale, float inverse, uint8_t *to) {
  __m256i codes = _mm256_setzero_si256();
  if (inverse != 0.0f) {
    __m256i q[4];
#pragma GCC unroll 4
    for (uint32_t i = 0; i < 4; i++)
      q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + LANES * i), _mm256_set1_ps(inverse)));
    codes = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
    codes = _mm256_permutevar8x32_epi32(codes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  }
  _mm256_storeu_si256((__m256i *)(void *)to, codes);
  cpu_block_tail(to, scale, sum_bytes(_mm256_castsi256_si128(codes)), sum_bytes(_mm256_extracti128_si256(codes, 1)));
}

const cpu_products cpu_products_avx2 = {
    .tile = tile_avx2,
    .quantise = quantise_row,
    .add_ranked = lanes_add_ranked,
};
#endif
