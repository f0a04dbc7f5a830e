/* SPDX-License-Identifier: MIT */
/* Products of 8 bits from a card's packed weights with vectors. The including file says what a vector is: CV_FLOATS
 * floats (cf) or integers (ci), the functions ci_* and cf_* on them, and add_span.
 *
 * The 128 codes of a row lie side by side in a packed block, those of 32 inputs (of a tail, of 16) in each lane of 128
 * bits. A scale and a zero point belong to 16 or 32 of them, so codes of 4 and 5 bits become integers by a table of
 * each 32, which is made by one fused multiply-add for its sixteen entries; those of 6 and 8 bits are made one by one.
 * Integers lie in memory plus CV_BIAS, 16 outputs of a span; then every row is multiplied with all of them. */
#ifndef WEFT_KERNELS_CPU_CARD_PRODUCTS_VECTORS_H
#define WEFT_KERNELS_CPU_CARD_PRODUCTS_VECTORS_H

enum { CV_BYTES = 4 * CV_FLOATS, CV_PARTS = 64 / CV_BYTES /* vectors of a row's codes */, CV_ROWS = CV_FLOATS / 8 };

/* Of the lane of each number of a row's 64 bytes, its number; and four times that, for bytes. */
static const int32_t cv_lane[16] = {0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3};
static const uint32_t cv_lane_bytes[16] = {0,          0,          0,          0,          0x04040404, 0x04040404,
                                           0x04040404, 0x04040404, 0x08080808, 0x08080808, 0x08080808, 0x08080808,
                                           0x0C0C0C0C, 0x0C0C0C0C, 0x0C0C0C0C, 0x0C0C0C0C};

/* ---- factors: of CV_FLOATS blocks; zero: plus CARD_MAGIC and CV_BIAS --------------------------------------- */

typedef struct span_factors {
  cf scale, zero;
} span_factors;

CARD_INLINE span_factors factors_of(cf scale, cf zero_point) {
  const cf three = cf_set(0.1875f), zero = cf_round_f16(cf_round_f16(zero_point) + three);
  return (span_factors){cf_round_f16(scale) * cf_set(0x1p-11f),
                        cf_fma(zero - three, cf_set(0x1p13f), cf_set(CARD_MAGIC + (float)CV_BIAS))};
}

CARD_INLINE span_factors own_factors(cf scale, uint32_t offset) {
  return factors_of(scale, scale * cf_set(-(float)offset * 0x1p-24f));
}

/* Of CV_ROWS rows of a super-block, eight blocks of 32 of each. */
CARD_INLINE span_factors super_factors(const uint8_t *own, const float *over) {
  uint32_t scale[2 * CV_ROWS], least[2 * CV_ROWS];
  float d[CV_ROWS], m[CV_ROWS];
  for (uint32_t r = 0; r < CV_ROWS; r++, own += 16) {
    uint32_t six[3];
    uint16_t half[2];
    memcpy(half, own, 4);
    memcpy(six, own + 4, 12);
    scale[2 * r] = six[0] & 0x3F3F3F3Fu;
    scale[2 * r + 1] = (six[2] & 0x0F0F0F0Fu) | (six[0] >> 2 & 0x30303030u);
    least[2 * r] = six[1] & 0x3F3F3F3Fu;
    least[2 * r + 1] = (six[2] >> 4 & 0x0F0F0F0Fu) | (six[1] >> 2 & 0x30303030u);
    d[r] = _cvtsh_ss(half[0]) * over[r];
    m[r] = _cvtsh_ss(half[1]) * (over[r] * -0x1p-14f);
  }
  return factors_of(cf_by_eight(d) * cf_of_bytes(scale), cf_by_eight(m) * (cf_of_bytes(least) * cf_set(0x1p-10f)));
}

/* The f16 scales of a row of a block of 128: one in each of the low halves of four words. */
CARD_INLINE __m128i block_scales(const card_block *b, uint32_t row) {
  const __m128i all = b->tail ? _mm_loadl_epi64((const __m128i *)(const void *)(b->scales + row % 8 * 8))
                              : _mm_loadu_si128((const __m128i *)(const void *)(b->scales + row % 8 * 16));
  return _mm_and_si128(_mm_srl_epi32(all, _mm_cvtsi32_si128(row < 8 ? 0 : 16)), _mm_set1_epi32(0xFFFF));
}

/* Of CV_ROWS rows, eight blocks of 32 of each: of the two halves b [2]. */
CARD_INLINE span_factors small_factors(const card_block *b, uint32_t n_units, uint32_t row, const float *over,
                                       uint32_t offset) {
  __m128i halves[CV_ROWS];
  for (uint32_t r = 0; r < CV_ROWS; r++)
    halves[r] = _mm_packus_epi32(block_scales(b, row + r), block_scales(n_units > 1 ? b + 1 : b, row + r));
  return own_factors(cf_of_halves(halves) * cf_by_eight(over), offset);
}

/* Of CV_FLOATS of a row's sixteens, from the first one of half u on. */
CARD_INLINE span_factors six_factors(const card_block *b, uint32_t u, uint32_t row, float over) {
  uint16_t d;
  memcpy(&d, b->scales + 256 + 2 * row, 2);
  return own_factors(cf_set(_cvtsh_ss(d) * over) * cf_of_signed(b->scales + 16 * row + 8 * u), 32);
}

/* In every word of lane c of part h factor first + step * c. */
CARD_INLINE cf spread(cf factors, uint32_t h, int first, int step) {
  const ci lane = ci_load(cv_lane + CV_FLOATS * h);
  return cf_permute(factors, ci_add32(step == 1 ? lane : ci_add32(lane, lane), ci_set32(first)));
}

/* ---- integers ----------------------------------------------------------------------------------------------- */

/* The low bytes of sums: words 4 j + i of a lane are word i of sum j. */
CARD_INLINE ci low_bytes(const cf v[4]) {
  const ci low = ci_set32(255);
  return ci_pack16(ci_pack32(ci_and(ci_bits(v[0]), low), ci_and(ci_bits(v[1]), low)),
                   ci_pack32(ci_and(ci_bits(v[2]), low), ci_and(ci_bits(v[3]), low)));
}

/* The integers of codes `first` .. first + 15, of a block in each lane. */
CARD_INLINE ci table_of(cf scale, cf zero, float first) {
  const cf codes = cf_lanes(_mm_setr_ps(0, 1, 2, 3));
  cf v[4];
#pragma GCC unroll 4
  for (int j = 0; j < 4; j++) v[j] = cf_fma(codes + cf_set(first + 4.0f * (float)j), scale, zero);
  return low_bytes(v);
}

/* The integers of codes of a byte, of which the first and the last eight of a lane have factors of their own. */
CARD_INLINE ci integers_of(ci codes, const cf scale[2], const cf zero[2]) {
  const ci none = ci_set32(0), low = ci_low8(codes, none), high = ci_high8(codes, none);
  const ci word[4] = {ci_low16(low, none), ci_high16(low, none), ci_low16(high, none), ci_high16(high, none)};
  cf v[4];
#pragma GCC unroll 4
  for (int j = 0; j < 4; j++) v[j] = cf_fma(cf_of(word[j]), scale[j / 2], zero[j / 2]);
  return low_bytes(v);
}

/* Fifth bits of a row of a block: a word for each 32 inputs, the bits of even numbers in the low half. */
CARD_INLINE __m128i fifth_bits(const card_block *b, uint32_t row) {
  const uint8_t *high = b->high + (b->tail ? 16 * (row % 8) + row / 8 * 2 : 32 * (row % 8) + row / 8 * 4);
  uint32_t word[4] = {0, 0, 0, 0};
  for (uint32_t c = 0; c < 4; c++) {
    if (b->tail)
      word[c / 2] |= ((uint32_t)high[4 * c] | (uint32_t)high[4 * c + 1] << 16) << (8 * (c % 2));
    else
      memcpy(&word[c], high + 8 * c, 4);
  }
  return _mm_loadu_si128((const __m128i *)(const void *)word);
}

/* Codes of 4 or 5 bits. first: the factor of the block's first 32. */
CARD_INLINE void integers_by_table(int type, const card_block *b, uint32_t row, const span_factors *f, int first,
                                   uint8_t *out) {
  const ci four = ci_set8(15);
  const uint8_t *at = b->codes + row / 8 * (b->tail ? 256 : 512) + row % 8 * (b->tail ? 32 : 64);
  for (uint32_t h = 0; h < CV_PARTS; h++) {
    const ci both = !b->tail ? ci_load(at + CV_BYTES * h) : h == 0 ? ci_load_32(at) : ci_set32(0);
    const ci low = ci_and(both, four), high = ci_and(ci_right16(both, 4), four);
    const cf scale = spread(f->scale, h, first, 1), zero = spread(f->zero, h, first, 1);
    const ci table = table_of(scale, zero, 0.0f);
    ci w0 = ci_pick(table, low), w1 = ci_pick(table, high);
    if (card_shape_of(type).high > 0) {
      /* Bytes of a lane: word i, numbers 0, 4, 1, 5 of its low nibbles: pairs 4 i + 0, 2 of the even half, of the odd
       * one. */
      const ci pick = ci_lanes(_mm_setr_epi8(0, 0, 2, 2, 0, 0, 2, 2, 1, 1, 3, 3, 1, 1, 3, 3));
      const ci bits0 = ci_lanes(_mm_setr_epi8(1, 4, 1, 4, 16, 64, 16, 64, 1, 4, 1, 4, 16, 64, 16, 64));
      const ci bytes = ci_pick(ci_lanes(fifth_bits(b, row)), ci_add32(pick, ci_load(cv_lane_bytes + CV_FLOATS * h)));
      const ci upper = table_of(scale, zero, 16.0f), bits1 = ci_add32(bits0, bits0);
      w0 = ci_where(bytes, bits0, ci_pick(upper, low), w0);
      w1 = ci_where(bytes, bits1, ci_pick(upper, high), w1);
    }
    ci_store(out + CV_BYTES * h, w0);
    ci_store(out + 64 + CV_BYTES * h, w1);
  }
}

/* Q6_K. first: the factor of the block's first sixteen. */
CARD_INLINE void integers_of_six(const card_block *b, uint32_t row, const span_factors *f, int first, uint8_t *out) {
  const ci four = ci_set8(15), two = ci_set8(48);
  const ci pick0 = ci_lanes(_mm_setr_epi8(0, 0, 2, 2, 1, 1, 3, 3, 4, 4, 6, 6, 5, 5, 7, 7));
  const ci pick = ci_add32(pick0, ci_set8(row < 8 ? 0 : 8));
  for (uint32_t h = 0; h < CV_PARTS; h++) {
    const ci both = ci_load(b->codes + row / 8 * 512 + row % 8 * 64 + CV_BYTES * h);
    /* The high words of the row's lanes, 16 bytes apart, of which the row has eight. */
    const ci bytes = ci_pick(ci_load(b->high + row % 8 * 64 + CV_BYTES * h), pick);
    const ci up0 = ci_odd(ci_left16(bytes, 4), bytes), up1 = ci_odd(ci_left16(bytes, 2), ci_right16(bytes, 2));
    const ci low = ci_or(ci_and(both, four), ci_and(up0, two));
    const ci high = ci_or(ci_and(ci_right16(both, 4), four), ci_and(up1, two));
    const cf scale[2] = {spread(f->scale, h, first, 2), spread(f->scale, h, first + 1, 2)};
    const cf zero[2] = {spread(f->zero, h, first, 2), spread(f->zero, h, first + 1, 2)};
    ci_store(out + CV_BYTES * h, integers_of(low, scale, zero));
    ci_store(out + 64 + CV_BYTES * h, integers_of(high, scale, zero));
  }
}

/* Q8_0: sixteen of each 32 inputs, then the others; of a tail there are sixteen of each 16. */
CARD_INLINE void integers_of_eight(const card_block *b, uint32_t row, const span_factors *f, int first, uint8_t *out) {
  const ci sign = ci_set8((char)0x80);
  const uint8_t *at = b->codes + row / 8 * 512 + row % 8 * 64;
  for (uint32_t h = 0; h < CV_PARTS; h++) {
    const ci lane = ci_load(cv_lane + CV_FLOATS * h);
    const ci of = ci_add32(b->tail ? ci_half32(lane) : lane, ci_set32(first));
    const cf s = cf_permute(f->scale, of), z = cf_permute(f->zero, of);
    const cf scale[2] = {s, s}, zero[2] = {z, z};
    const ci w0 = integers_of(ci_xor(ci_load(at + CV_BYTES * h), sign), scale, zero);
    if (b->tail) {
      ci_store(out + CV_BYTES * h, w0);
      ci_store(out + 64 + CV_BYTES * h, ci_set32(0));
      continue;
    }
    const ci w1 = integers_of(ci_xor(ci_load(at + 1024 + CV_BYTES * h), sign), scale, zero);
    ci_store(out + 2 * CV_BYTES * h, ci_zip_first(w0, w1));
    ci_store(out + 2 * CV_BYTES * h + CV_BYTES, ci_zip_last(w0, w1));
  }
}

CARD_INLINE void integers_of_block(int type, const card_block *b, uint32_t row, const span_factors *f, uint32_t first,
                                   uint8_t *out) {
  if (type == WEFT_TYPE_Q6_K)
    integers_of_six(b, row, f, (int)first, out);
  else if (type == WEFT_TYPE_Q8_0)
    integers_of_eight(b, row, f, (int)first, out);
  else
    integers_by_table(type, b, row, f, (int)first, out);
}

/* The integers of 16 outputs of a span, [16][256]; those of inputs that are not there are anything. */
CARD_INLINE void load_integers(int type, const card_matrix *m, const uint8_t *tile, uint32_t span, const float *step,
                               uint8_t *out) {
  const uint32_t n_units = (m->n_in + 127) / 128 - 2 * span < 2 ? 1 : 2, offset = card_shape_of(type).offset;
  float over[CARD_TILE];
  card_block b[2];
  for (uint32_t o = 0; o < CARD_TILE; o++) over[o] = card_over(step[o]);
  for (uint32_t u = 0; u < n_units; u++) b[u] = card_block_of(type, m->n_in, tile, 2 * span + u);
  for (uint32_t row = 0; row < CARD_TILE; row += CV_ROWS, out += CV_ROWS * CARD_SPAN) {
    span_factors f = {cf_set(0.0f), cf_set(0.0f)};
    if (type == WEFT_TYPE_Q4_K || type == WEFT_TYPE_Q5_K)
      f = super_factors(b[0].scales + 16 * row, over + row);
    else if (type != WEFT_TYPE_Q6_K)
      f = small_factors(b, n_units, row, over + row, offset);
    for (uint32_t r = 0; r < CV_ROWS; r++) {
      for (uint32_t u = 0; u < n_units; u++) {
        const bool six = type == WEFT_TYPE_Q6_K;
        if (six && 8 * u % CV_FLOATS == 0) f = six_factors(b, u, row + r, over[row + r]);
        integers_of_block(type, &b[u], row + r, &f, six ? 8 * u % CV_FLOATS : 8 * r + 4 * u,
                          out + r * CARD_SPAN + 128 * u);
      }
    }
  }
}

CARD_INLINE void multiply_tile(int type, const card_matrix *m, uint32_t tile, const card_rows *rows, float *y,
                               uint64_t y_stride) {
  const uint32_t n_spans = (m->n_in + CARD_SPAN - 1) / CARD_SPAN;
  const uint8_t *own = m->tiles + (uint64_t)tile * card_products_tile_bytes(type, m->n_in);
  uint8_t w[CARD_TILE * CARD_SPAN] __attribute__((aligned(64)));
  for (uint32_t r = 0; r < rows->n; r++) memset(y + r * y_stride, 0, CARD_TILE * sizeof *y);
  for (uint32_t span = 0; span < n_spans; span++) {
    float step[CARD_TILE];
    for (uint32_t o = 0; o < CARD_TILE; o++) step[o] = card_step(m, n_spans, tile, span, o);
    card_fetch_ahead(type, own, span);
    load_integers(type, m, own, span, step, w);
    if (CARD_SPAN * span + 128 >= m->n_in) /* a span of one block: numbers of rows are zeros behind it */
      for (uint32_t o = 0; o < CARD_TILE; o++) memset(w + o * CARD_SPAN + 128, 0, 128);
    for (uint32_t r = 0; r < rows->n; r++) {
      const uint64_t at = (uint64_t)r * n_spans + span;
      add_span(w, rows->numbers + at * CARD_SPAN, rows->scales[at], step, y + r * y_stride);
    }
  }
}

/* The function of a set: compiled for each type by itself. */
CARD_INLINE void multiply_any(const card_matrix *m, uint32_t tile, const card_rows *rows, float *y, uint64_t y_stride) {
  switch (m->type) {
    case WEFT_TYPE_Q4_0:
      return multiply_tile(WEFT_TYPE_Q4_0, m, tile, rows, y, y_stride);
    case WEFT_TYPE_Q5_0:
      return multiply_tile(WEFT_TYPE_Q5_0, m, tile, rows, y, y_stride);
    case WEFT_TYPE_Q8_0:
      return multiply_tile(WEFT_TYPE_Q8_0, m, tile, rows, y, y_stride);
    case WEFT_TYPE_Q4_K:
      return multiply_tile(WEFT_TYPE_Q4_K, m, tile, rows, y, y_stride);
    case WEFT_TYPE_Q5_K:
      return multiply_tile(WEFT_TYPE_Q5_K, m, tile, rows, y, y_stride);
    default:
      return multiply_tile(WEFT_TYPE_Q6_K, m, tile, rows, y, y_stride);
  }
}

#endif
