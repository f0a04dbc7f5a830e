/* SPDX-License-Identifier: MIT */
/* Stored numbers: sizes and names, halves over all bit patterns, and quantisers against their
 * formulas. Whole blocks of every type are compared with the format's reference in
 * tests/golden/model_quant.c. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/quant.h"
#include "kernels/repack.h"

static uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

static float float_of(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static uint64_t next(uint64_t *state) {
  *state ^= *state << 13;
  *state ^= *state >> 7;
  *state ^= *state << 17;
  return *state;
}

static void test_table(void **state) {
  (void)state;
  assert_null(weft_type_find(-1));
  assert_null(weft_type_find(4));
  assert_null(weft_type_find(9));
  assert_null(weft_type_find(144));
  assert_string_equal(weft_type_find(12)->name, "Q4_K");
  assert_string_equal(weft_type_name_of_id(16), "IQ2_XXS");
  assert_string_equal(weft_type_name_of_id(40), "NVFP4");
  assert_string_equal(weft_type_name_of_id(26), "I32");
  assert_string_equal(weft_type_name_of_id(42), "Q2_0");
  assert_string_equal(weft_type_name_of_id(43), "unknown");
  assert_string_equal(weft_type_name_of_id(-1), "unknown");
  static const int32_t removed[] = {4, 5, 31, 32, 33, 36, 37, 38};
  for (size_t i = 0; i < sizeof removed / sizeof *removed; i++) {
    assert_string_equal(weft_type_name_of_id(removed[i]), "removed");
  }
  for (int32_t id = 0; id < 64; id++) {
    const weft_type_info *info = weft_type_find(id);
    if (info != NULL) assert_string_equal(info->name, weft_type_name_of_id(id));
  }
}

/* Types that are held as others: whole blocks become whole blocks, files never have the others, and what there are
 * values for are held as they are. */
static void test_held_types(void **state) {
  (void)state;
  uint32_t n_repacked = 0;
  for (int32_t id = 0; id < WEFT_TYPE_ID_HELD + 64; id++) {
    const weft_type_info *info = weft_type_find(id);
    assert_ptr_equal(weft_type_find_stored(id), id < WEFT_TYPE_ID_HELD ? info : NULL);
    if (info == NULL) continue;
    const weft_type_info *held = weft_type_find((int32_t)info->held_as);
    assert_non_null(held);
    assert_int_equal(held->held_as, held->type);
    assert_int_equal(info->n_elements % held->n_elements, 0);
    assert_true((repack_find(info->type) != NULL) == (held != info));
    n_repacked += held != info;
    if (id >= WEFT_TYPE_ID_HELD) assert_true(held == info && info->values != NULL);
    char name[32];
    (void)snprintf(name, sizeof name, "%s%s", id == 0 ? "" : " ", info->name);
    assert_true((strstr(weft_type_names(), name) != NULL) == (id < WEFT_TYPE_ID_HELD));
  }
  assert_int_equal(n_repacked, 13);
  assert_string_equal(weft_type_name_of_id(WEFT_TYPE_S4_IQ4), "S4_IQ4");
  assert_string_equal(weft_type_name_of_id(WEFT_TYPE_ID_HELD + 64), "unknown");
}

/* Any bytes: what is held means what was stored, and a row of one type is copied. */
static void test_repacking(void **state) {
  (void)state;
  enum { BLOCKS = 40 };
  static uint8_t stored[BLOCKS * 256], held[BLOCKS * 256];
  static float want[BLOCKS * 256], got[BLOCKS * 256];
  uint64_t seed = 77;
  for (size_t i = 0; i < sizeof stored; i++) stored[i] = (uint8_t)next(&seed);
  for (int32_t id = 2; id < WEFT_TYPE_ID_HELD; id++) {
    const weft_type_info *info = weft_type_find(id);
    if (info == NULL) continue;
    const uint64_t n = (uint64_t)BLOCKS * info->n_elements, n_held = weft_type_row_bytes(info->held_as, n);
    assert_true(n_held > 0 && n_held <= sizeof held - 1);
    held[n_held] = 0xC3;
    weft_repack_row(info->type, stored, held, n);
    assert_int_equal(held[n_held], 0xC3);
    weft_dequantise_row(info->type, stored, want, n);
    weft_dequantise_row(info->held_as, held, got, n);
    assert_memory_equal(want, got, n * sizeof *got);
    if (info->held_as == info->type) assert_memory_equal(stored, held, n_held);
  }
}

typedef struct reader {
  const uint8_t *bytes;
  uint64_t n_bytes;
} reader;

static weft_status read_some(void *self, uint64_t at, uint64_t n_bytes, uint8_t *to, uint32_t *skip) {
  const reader *r = self;
  if (at + n_bytes > r->n_bytes) return WEFT_E_IO;
  *skip = (uint32_t)(at % WEFT_READ_ALIGN);
  memcpy(to + *skip, r->bytes + at, n_bytes);
  return WEFT_OK;
}

/* A source that repacks: pieces that begin and end inside blocks are those of the whole row, from memory and from a
 * file, in few threads and in several. */
static void test_repack_source(void **state) {
  (void)state;
  enum { BLOCKS = 20000, READ = 4 << 20 };
  static const weft_type types[] = {WEFT_TYPE_Q3_K, WEFT_TYPE_IQ4_NL, WEFT_TYPE_TQ1_0};
  uint8_t *stored = malloc(BLOCKS * 110), *want = malloc(BLOCKS * 116), *to = NULL;
  assert_true(stored != NULL && want != NULL);
  assert_int_equal(posix_memalign((void **)&to, WEFT_READ_ALIGN, READ), 0);
  uint64_t seed = 5;
  for (size_t i = 0; i < BLOCKS * 110; i++) stored[i] = (uint8_t)next(&seed);
  for (size_t t = 0; t < sizeof types / sizeof types[0]; t++) {
    const weft_type_info *info = weft_type_find((int32_t)types[t]);
    const uint64_t n = (uint64_t)BLOCKS * info->n_elements, n_held = weft_type_row_bytes(info->held_as, n);
    weft_repack_row(types[t], stored, want, n);
    reader file = {stored, (uint64_t)BLOCKS * info->n_bytes};
    for (int from_file = 0; from_file < 2; from_file++) {
      const weft_weight_source from = {stored, from_file ? read_some : NULL, &file};
      repack_source source;
      assert_int_equal(repack_source_open(&source, types[t], &from, READ), WEFT_OK);
      const uint64_t pieces[] = {1, 115, 117, READ - 2 * WEFT_READ_ALIGN, 4000};
      for (uint64_t at = 0, i = 0; at < n_held; i++) {
        uint64_t n_bytes = pieces[i % 5] < n_held - at ? pieces[i % 5] : n_held - at;
        uint32_t skip = 0;
        assert_int_equal(source.source.read(source.source.self, at, n_bytes, to, &skip), WEFT_OK);
        assert_memory_equal(to + skip, want + at, n_bytes);
        at += n_bytes;
      }
      uint32_t skip;
      file.n_bytes -= (uint64_t)from_file; /* the file ends early */
      if (from_file) assert_int_equal(source.source.read(source.source.self, n_held - 1, 1, to, &skip), WEFT_E_IO);
      repack_source_close(&source);
    }
  }
  free(stored);
  free(want);
  free(to);
}

/* A block of each table's ends, by hand: f32 d, scales, codes. */
static void test_held_meaning(void **state) {
  (void)state;
  uint8_t block[148] = {0};
  float d = 0.5f, out[256];
  memcpy(block, &d, 4);
  memset(block + 4, 0xFF, 16); /* scale -1 */
  block[4] = 3;
  block[20] = 0xF0; /* input 0: code 0; input 16: code 15 */
  weft_dequantise_row(WEFT_TYPE_S4_IQ4, block, out, 256);
  assert_true(out[0] == 0.5f * 3 * -127 && out[16] == 0.5f * -1 * 113 && out[1] == out[0]);
  memset(block + 4, 1, 16);
  memset(block + 20, 0, 128);
  block[20] = 2 << 6;     /* input 24: low bits 2 */
  block[20 + 64 + 3] = 1; /* and its third bit */
  weft_dequantise_row(WEFT_TYPE_S3_Q3, block, out, 256);
  assert_true(out[24] == 0.5f * 2 && out[0] == 0.5f * -4);
}

static void test_row_bytes(void **state) {
  (void)state;
  assert_int_equal(weft_type_row_bytes(WEFT_TYPE_F32, 7), 28);
  assert_int_equal(weft_type_row_bytes(WEFT_TYPE_BF16, 7), 14);
  assert_int_equal(weft_type_row_bytes(WEFT_TYPE_Q8_0, 64), 68);
  assert_int_equal(weft_type_row_bytes(WEFT_TYPE_Q8_0, 33), 0);
  assert_int_equal(weft_type_row_bytes(WEFT_TYPE_Q6_K, 512), 420);
  assert_int_equal(weft_type_row_bytes(WEFT_TYPE_Q5_K, 256), 176);
  assert_int_equal(weft_type_row_bytes(WEFT_TYPE_Q4_K, 128), 0);
  assert_int_equal(weft_type_row_bytes(WEFT_TYPE_MXFP4, 32), 17);
  assert_int_equal(weft_type_row_bytes(WEFT_TYPE_NONE, 32), 0);
  assert_int_equal(weft_type_row_bytes(WEFT_TYPE_F32, UINT64_MAX), 0); /* the product would wrap */
}

/* By the definition of the format: sign, exponent, fraction. */
static double half_value(uint16_t bits) {
  int exponent = bits >> 10 & 31;
  double fraction = bits & 1023;
  double value = exponent == 0 ? ldexp(fraction, -24) : ldexp(fraction + 1024.0, exponent - 25);
  return bits & 0x8000 ? -value : value;
}

static void test_half_to_float(void **state) {
  (void)state;
  for (uint32_t i = 0; i < 65536; i++) {
    uint16_t half = (uint16_t)i;
    float got = weft_f16_to_f32(half);
    bool special = (half >> 10 & 31) == 31;
    if (special && (half & 1023) != 0) {
      assert_true(isnan(got));
    } else if (special) {
      assert_true(isinf(got) && !!signbit(got) == half >> 15);
    } else {
      assert_true((double)got == half_value(half) && !!signbit(got) == half >> 15);
    }
    if (!isnan(got)) assert_int_equal(weft_f32_to_f16(got), half); /* exact values come back */
  }
}

/* Between two neighbours: the nearer one; in the middle the even one. */
static void test_float_to_half_rounds(void **state) {
  (void)state;
  for (uint32_t i = 0; i < 0x7BFF; i++) {
    float low = weft_f16_to_f32((uint16_t)i), high = weft_f16_to_f32((uint16_t)(i + 1));
    float middle = (low + high) / 2;
    uint16_t even = (uint16_t)(i % 2 == 0 ? i : i + 1);
    assert_int_equal(weft_f32_to_f16(middle), even);
    assert_int_equal(weft_f32_to_f16(nextafterf(middle, 0)), i);
    assert_int_equal(weft_f32_to_f16(nextafterf(middle, high)), i + 1);
    assert_int_equal(weft_f32_to_f16(-middle), even | 0x8000);
  }
  assert_int_equal(weft_f32_to_f16(65519.996f), 0x7BFF);
  assert_int_equal(weft_f32_to_f16(65520.0f), 0x7C00);
  assert_int_equal(weft_f32_to_f16(INFINITY), 0x7C00);
  assert_int_equal(weft_f32_to_f16(-1e30f), 0xFC00);
  assert_true((weft_f32_to_f16(NAN) & 0x7FFF) > 0x7C00);
  assert_true((weft_f32_to_f16(float_of(0x7F800001u)) & 0x7FFF) > 0x7C00);
}

static void test_bf16(void **state) {
  (void)state;
  for (uint32_t i = 0; i < 65536; i++) {
    float value = weft_bf16_to_f32((uint16_t)i);
    assert_int_equal(bits_of(value), i << 16);
    if (!isnan(value)) assert_int_equal(weft_f32_to_bf16(value), i);
    if (isnan(value)) assert_true(isnan(weft_bf16_to_f32(weft_f32_to_bf16(value))));
  }
  assert_int_equal(weft_f32_to_bf16(float_of(0x3F808000u)), 0x3F80); /* a tie goes to the even one */
  assert_int_equal(weft_f32_to_bf16(float_of(0x3F818000u)), 0x3F82);
  assert_int_equal(weft_f32_to_bf16(float_of(0x3F808001u)), 0x3F81);
  assert_int_equal(weft_f32_to_bf16(float_of(0x7F7FFFFFu)), 0x7F80);
  assert_true(isnan(weft_bf16_to_f32(weft_f32_to_bf16(float_of(0x7F800001u)))));
}

enum { N = 4096 };

static void fill(float *values, uint64_t seed) {
  for (int i = 0; i < N; i++) {
    double u = (double)(next(&seed) >> 11) * 0x1p-53;
    values[i] = (float)((u - 0.5) * ldexp(1.0, (int)(next(&seed) % 8) - 4));
  }
}

static void test_plain_types_return(void **state) {
  (void)state;
  float in[N], out[N];
  uint8_t stored[4 * N];
  fill(in, 11);
  static const weft_type types[] = {WEFT_TYPE_F32, WEFT_TYPE_F16, WEFT_TYPE_BF16};
  for (int t = 0; t < 3; t++) {
    assert_int_equal(weft_quantise_row(types[t], in, stored, N), WEFT_OK);
    weft_dequantise_row(types[t], stored, out, N);
    double share = t == 0 ? 0 : t == 1 ? 0x1p-11 : 0x1p-8; /* half a step of the fraction */
    for (int i = 0; i < N; i++) assert_true(fabsf(out[i] - in[i]) <= share * fabsf(in[i]) + 1e-7);
  }
}

/* The step of a block is a half, so its own rounding (2^-11 of the largest value) adds to half a
 * step. */
static void check_blocks(weft_type type, double step_share) {
  float in[N], out[N];
  uint8_t stored[4 * N];
  fill(in, 12 + (uint64_t)type);
  assert_int_equal(weft_quantise_row(type, in, stored, N), WEFT_OK);
  weft_dequantise_row(type, stored, out, N);
  for (int b = 0; b < N; b += 32) {
    float most = 0;
    for (int i = b; i < b + 32; i++) most = fmaxf(most, fabsf(in[i]));
    for (int i = b; i < b + 32; i++) {
      assert_true(fabsf(out[i] - in[i]) <= most * (step_share + 0x1p-10) + 1e-7);
    }
  }
}

static void test_block_types_return(void **state) {
  (void)state;
  check_blocks(WEFT_TYPE_Q8_0, 0.5 / 127);
  check_blocks(WEFT_TYPE_Q5_0, 1.0 / 16); /* the far end is cut: a whole step */
  check_blocks(WEFT_TYPE_Q4_0, 1.0 / 8);
  check_blocks(WEFT_TYPE_Q5_1, 1.0 / 31); /* the range is at most twice the largest magnitude: half a step */
  check_blocks(WEFT_TYPE_Q4_1, 1.0 / 15);
  check_blocks(WEFT_TYPE_IQ4_NL, 14.0 / 127); /* the far end: +113 stands for up to +127 */
  check_blocks(WEFT_TYPE_MXFP4, 1.0 / 4);     /* the far end: 6 stands for up to 8 */
}

static void test_q8_formula(void **state) {
  (void)state;
  float in[32] = {0};
  uint8_t stored[34];
  in[0] = 127.0f;
  in[1] = -2.5f;
  in[2] = 2.5f;
  in[3] = 0.49f;
  in[31] = -127.0f;
  assert_int_equal(weft_quantise_row(WEFT_TYPE_Q8_0, in, stored, 32), WEFT_OK);
  assert_int_equal(stored[0] | stored[1] << 8, 0x3C00); /* d = 1 */
  assert_int_equal((int8_t)stored[2], 127);
  assert_int_equal((int8_t)stored[3], -3); /* halves round away from zero */
  assert_int_equal((int8_t)stored[4], 3);
  assert_int_equal((int8_t)stored[5], 0);
  assert_int_equal((int8_t)stored[33], -127);
}

static void test_nibble_order(void **state) {
  (void)state;
  float in[32] = {0}, out[32];
  uint8_t stored[22];
  in[0] = -8.0f; /* the largest magnitude gets code 0 */
  in[1] = 3.0f;
  in[16] = 7.0f;
  in[17] = -4.0f;
  assert_int_equal(weft_quantise_row(WEFT_TYPE_Q4_0, in, stored, 32), WEFT_OK);
  assert_int_equal(stored[2], 0 | 15 << 4); /* element 16 is the high half of the first byte */
  assert_int_equal(stored[3], 11 | 4 << 4);
  weft_dequantise_row(WEFT_TYPE_Q4_0, stored, out, 32);
  assert_memory_equal(in, out, sizeof in);
  in[0] = -16.0f;
  in[16] = 15.0f;
  assert_int_equal(weft_quantise_row(WEFT_TYPE_Q5_0, in, stored, 32), WEFT_OK);
  weft_dequantise_row(WEFT_TYPE_Q5_0, stored, out, 32);
  assert_memory_equal(in, out, sizeof in);
}

static void test_hard_inputs(void **state) {
  (void)state;
  static const weft_type types[] = {WEFT_TYPE_Q8_0, WEFT_TYPE_Q4_0,   WEFT_TYPE_Q5_0, WEFT_TYPE_Q4_1,
                                    WEFT_TYPE_Q5_1, WEFT_TYPE_IQ4_NL, WEFT_TYPE_MXFP4};
  static const float values[] = {0.0f, -0.0f, 1e-45f, -1e-40f, 3e38f, INFINITY, NAN};
  for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
    for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
      float in[32] = {0}, out[32];
      uint8_t stored[34];
      for (int i = 0; i < 32; i += 3) in[i] = values[v];
      assert_int_equal(weft_quantise_row(types[t], in, stored, 32), WEFT_OK);
      weft_dequantise_row(types[t], stored, out, 32);
      if (values[v] == 0.0f) assert_true(out[0] == 0.0f && out[1] == 0.0f);
    }
  }
}

static void test_refusals(void **state) {
  (void)state;
  float in[256] = {0};
  uint8_t stored[256];
  assert_int_equal(weft_quantise_row(WEFT_TYPE_Q4_K, in, stored, 256), WEFT_E_UNSUPPORTED);
  assert_int_equal(weft_quantise_row(WEFT_TYPE_IQ4_XS, in, stored, 256), WEFT_E_UNSUPPORTED);
  assert_int_equal(weft_quantise_row(WEFT_TYPE_NONE, in, stored, 32), WEFT_E_UNSUPPORTED);
  assert_int_equal(weft_quantise_row(WEFT_TYPE_Q8_0, in, stored, 31), WEFT_E_INVALID);
}

static void test_mxfp4_ends(void **state) {
  (void)state;
  uint8_t stored[17];
  float out[32];
  memset(stored, 0x72, sizeof stored); /* codes 2 (1.0) in the first half, 7 (6.0) in the second */
  stored[0] = 127;
  weft_dequantise_row(WEFT_TYPE_MXFP4, stored, out, 32);
  assert_true(out[0] == 1.0f && out[31] == 6.0f);
  stored[0] = 0;
  weft_dequantise_row(WEFT_TYPE_MXFP4, stored, out, 32);
  assert_true(out[0] == 0x1p-127f && out[31] == 6 * 0x1p-127f);
  stored[0] = 255; /* not a number */
  weft_dequantise_row(WEFT_TYPE_MXFP4, stored, out, 32);
  assert_true(isnan(out[0]) && isnan(out[31]));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_table),
      cmocka_unit_test(test_held_types),
      cmocka_unit_test(test_repacking),
      cmocka_unit_test(test_held_meaning),
      cmocka_unit_test(test_repack_source),
      cmocka_unit_test(test_row_bytes),
      cmocka_unit_test(test_half_to_float),
      cmocka_unit_test(test_float_to_half_rounds),
      cmocka_unit_test(test_bf16),
      cmocka_unit_test(test_plain_types_return),
      cmocka_unit_test(test_block_types_return),
      cmocka_unit_test(test_q8_formula),
      cmocka_unit_test(test_nibble_order),
      cmocka_unit_test(test_hard_inputs),
      cmocka_unit_test(test_refusals),
      cmocka_unit_test(test_mxfp4_ends),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
