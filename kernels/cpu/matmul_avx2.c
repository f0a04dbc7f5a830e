/* SPDX-License-Identifier: MIT */
/* Products of rows with panels, AVX2: a panel is two halves of eight lanes.
 *
 * Law: the numerics of matmul.h. Products of unsigned codes and signed activations are added in pairs to 16 bits. As
 * many pairs are added there as cannot overflow (a pair is at most 2 * code * 127); then their sum is widened. */
#include "kernels/cpu/matmul.h"

#if defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>

#include "kernels/cpu/matmul_lanes.h"

#define INLINE static inline __attribute__((always_inline))

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

INLINE __m256i load_half(const lanes_u *w, uint32_t half) {
  return _mm256_loadu_si256((const __m256i *)(const void *)((const uint8_t *)w + 32 * half));
}

INLINE __m256i four(const uint8_t *codes) {
  int32_t x;
  memcpy(&x, codes, 4);
  return _mm256_set1_epi32(x);
}

/* dot plus the products of n vectors, whose activations begin at `codes`. */
INLINE __m256i dot_codes(__m256i dot, const cpu_pack_info *info, const lanes_u *w, uint32_t n, uint32_t half,
                         const uint8_t *codes) {
  const uint32_t fit = pairs_that_fit(info);
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i pairs = _mm256_setzero_si256();
#pragma GCC unroll 8
  for (uint32_t c = 0; c < n; c++) {
    __m256i code = load_half(w + c, half), x = four(codes + 4 * c);
    if (is_signed(info)) {
      code = _mm256_xor_si256(code, _mm256_set1_epi8(-128));
      x = _mm256_sign_epi8(x, code);
      code = _mm256_abs_epi8(code);
    }
    pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(code, x));
    if ((c + 1) % fit != 0 && c + 1 < n) continue;
    dot = _mm256_add_epi32(dot, _mm256_madd_epi16(pairs, ones));
    pairs = _mm256_setzero_si256();
  }
  return dot;
}

INLINE float read_float(const uint8_t *at) {
  float f;
  memcpy(&f, at, sizeof f);
  return f;
}

INLINE __m256i start_sum(const uint8_t *at, uint32_t shift) {
  int32_t sum;
  memcpy(&sum, at, sizeof sum);
  return _mm256_slli_epi32(_mm256_set1_epi32(sum), (int)shift);
}

INLINE __m256 half_of(const lanes_f *v, uint32_t half) {
  return _mm256_loadu_ps((const float *)(const void *)v + 8 * half);
}

typedef struct half_block {
  const lanes_u *w;
  __m256 scale[2], least[2];
  uint32_t half;
} half_block;

INLINE __m256 add_block(const cpu_pack_info *info, const half_block *k, const uint8_t *x, __m256 acc) {
  const uint32_t shift = info->offset_shift;
  const bool has_offset = !lanes_has_least(info) && !is_signed(info);
  __m256 t;
  if (info->form == CPU_FORM_SPLIT || info->form == CPU_FORM_PAIRS) {
    __m256i dot0 = has_offset ? start_sum(x + CPU_X_MINUS_FIRST, shift) : _mm256_setzero_si256();
    __m256i dot1 = has_offset ? start_sum(x + CPU_X_MINUS_LAST, shift) : _mm256_setzero_si256();
    dot0 = dot_codes(dot0, info, k->w, 4, k->half, x);
    dot1 = dot_codes(dot1, info, k->w + 4, 4, k->half, x + 16);
    t = _mm256_mul_ps(k->scale[0], _mm256_cvtepi32_ps(dot0));
    t = _mm256_fmadd_ps(k->scale[1], _mm256_cvtepi32_ps(dot1), t);
    if (info->form == CPU_FORM_PAIRS) {
      t = _mm256_fnmadd_ps(k->least[0], _mm256_cvtepi32_ps(start_sum(x + CPU_X_MINUS_FIRST, 0)), t);
      t = _mm256_fnmadd_ps(k->least[1], _mm256_cvtepi32_ps(start_sum(x + CPU_X_MINUS_LAST, 0)), t);
    }
  } else {
    __m256i dot = has_offset ? start_sum(x + CPU_X_MINUS, shift) : _mm256_setzero_si256();
    dot = dot_codes(dot, info, k->w, 8, k->half, x);
    t = _mm256_mul_ps(k->scale[0], _mm256_cvtepi32_ps(dot));
    if (info->form == CPU_FORM_LEAST) t = _mm256_fmadd_ps(k->least[0], _mm256_set1_ps(read_float(x + CPU_X_SUM)), t);
  }
  return _mm256_fmadd_ps(t, _mm256_set1_ps(read_float(x + CPU_X_SCALE)), acc);
}

static void store_rows(const cpu_tile *tile, uint32_t panel, const float acc[][CPU_PANEL]) {
  uint32_t n = tile->n_cols - panel * CPU_PANEL;
  if (n > CPU_PANEL) n = CPU_PANEL;
  for (uint32_t r = 0; r < tile->n_rows; r++) {
    memcpy(tile->y + r * tile->y_stride + (uint64_t)panel * CPU_PANEL, acc[r], n * sizeof(float));
  }
}

INLINE void quantised_panel(const cpu_pack_info *info, const cpu_tile *tile, uint32_t p) {
  float acc[CPU_GROUP][CPU_PANEL] __attribute__((aligned(64))) = {{0}};
  const uint8_t *panel = tile->panel + p * tile->panel_bytes;
  const uint32_t R = tile->n_rows;
  lanes_u w[8];
  for (uint32_t b = 0; b < tile->n_in / CPU_PACK_BLOCK; b++) {
    lanes_block block = lanes_find_block(info, panel, b);
    lanes_block_codes(info, &block, w);
    const uint8_t *x = tile->x + (uint64_t)b * CPU_X_BYTES * R;
    for (uint32_t half = 0; half < 2; half++) {
      const half_block k = {w,
                            {half_of(&block.scale[0], half), half_of(&block.scale[1], half)},
                            {half_of(&block.least[0], half), half_of(&block.least[1], half)},
                            half};
      for (uint32_t r = 0; r < R; r++) {
        __m256 sum = _mm256_load_ps(acc[r] + 8 * half);
        _mm256_store_ps(acc[r] + 8 * half, add_block(info, &k, x + CPU_X_BYTES * r, sum));
      }
    }
  }
  store_rows(tile, p, acc);
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

/* A function for each type, compiled with the type's numbers as constants. */
#define X(type, ...)                                                   \
  static void tile_##type(const cpu_tile *tile, uint32_t p) {          \
    static const cpu_pack_info info = {WEFT_TYPE_##type, __VA_ARGS__}; \
    quantised_panel(&info, tile, p);                                   \
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

const cpu_products cpu_products_avx2 = {
    .tile = tile_avx2,
    .quantise = lanes_quantise,
    .add_ranked = lanes_add_ranked,
};
#endif
