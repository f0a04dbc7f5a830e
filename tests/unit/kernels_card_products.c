/* SPDX-License-Identifier: MIT */
/* What a processor computes for a card (kernels/cpu/card_products.h): on rows of random weights, packed here as
 * kernels/cuda/weights/packed_layout.cuh says, the bits of ref's products of 8 bits, by every instruction set; and
 * which experts it computes (kernels/host_share.h). */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/random.h"
#include "kernels/cpu/card_products.h"
#include "kernels/cpu/cpu.h"
#include "kernels/host_share.h"
#include "kernels/quant.h"
#include "kernels/ref/ref.h"

enum { TILES = 2, OUT = TILES * CARD_TILE, ROWS = 5 };

typedef struct card_case {
  weft_type type;
  uint32_t n_in;
} card_case;

typedef struct test_random {
  uint64_t state;
} test_random;

static uint32_t random_below(test_random *random, uint32_t n) {
  random->state += 0x9E3779B97F4A7C15ull;
  return (uint32_t)(((weft_mix64(random->state) >> 32) * n) >> 32);
}

static uint16_t random_scale(test_random *random) {
  return weft_f32_to_f16((0.25f + (float)random_below(random, 1024) * 0x1p-10f) * 0x1p-6f *
                         (random_below(random, 4) == 0 ? -1.0f : 1.0f));
}

/* Random blocks of the file's format whose largest code is some way from zero, as those of a quantiser are. */
static void fill_file(const card_case *c, test_random *random, uint8_t *file) {
  const weft_type_info *info = weft_type_find((int32_t)c->type);
  const uint64_t n_blocks = (uint64_t)OUT * c->n_in / info->n_elements;
  for (uint64_t b = 0; b < n_blocks; b++, file += info->n_bytes) {
    for (uint32_t i = 0; i < info->n_bytes; i++) file[i] = (uint8_t)random_below(random, 256);
    const uint32_t at = c->type == WEFT_TYPE_Q6_K ? 208 : 0;
    uint16_t scale = random_scale(random), least = random_scale(random);
    memcpy(file + at, &scale, 2);
    if (c->type == WEFT_TYPE_Q4_K || c->type == WEFT_TYPE_Q5_K) memcpy(file + 2, &least, 2);
  }
}

static uint32_t code_of(weft_type type, const uint8_t *block, uint32_t i) {
  const uint32_t j = i / 32, l = i % 32;
  if (type == WEFT_TYPE_Q8_0) return block[2 + i];
  if (type == WEFT_TYPE_Q4_0 || type == WEFT_TYPE_Q5_0) {
    const uint8_t *codes = block + (type == WEFT_TYPE_Q4_0 ? 2 : 6);
    uint32_t code = i < 16 ? codes[i] & 15u : (uint32_t)codes[i - 16] >> 4;
    return type == WEFT_TYPE_Q4_0 ? code : code | ((uint32_t)block[2 + i / 8] >> i % 8 & 1u) << 4;
  }
  if (type == WEFT_TYPE_Q6_K) {
    const uint32_t half = i / 128, group = i % 128 / 32, byte = block[64 * half + 32 * (group & 1u) + l];
    return (group < 2 ? byte & 15u : byte >> 4) | ((uint32_t)block[128 + 32 * half + l] >> (2 * group) & 3u) << 4;
  }
  const uint32_t byte = block[(type == WEFT_TYPE_Q5_K ? 48 : 16) + 32 * (j / 2) + l];
  const uint32_t code = j % 2 == 0 ? byte & 15u : byte >> 4;
  return type == WEFT_TYPE_Q5_K ? code | ((uint32_t)block[16 + l] >> j & 1u) << 4 : code;
}

static void put_bits(uint8_t *to, uint32_t bit, uint32_t bits) {
  to[bit / 8] |= (uint8_t)(bits << bit % 8);
}

/* Packs input k of row o of a row tile, and the scales of its block. */
static void pack_number(const card_case *c, const uint8_t *block, uint32_t o, uint32_t k, uint8_t *tile) {
  const weft_type type = c->type;
  const bool super = weft_type_find((int32_t)type)->n_elements == 256;
  const uint32_t unit = k / 128, tail = !super && c->n_in - 128 * unit <= 64, per = tail ? 16 : 32;
  const uint32_t lane = o % 8 * 4 + k % 128 / per, r = o / 8, e = k % per, g = o % 8;
  const uint32_t high_bytes = type == WEFT_TYPE_Q6_K ? 512 : type == WEFT_TYPE_Q5_0 || type == WEFT_TYPE_Q5_K ? 256 : 0;
  const uint32_t code = code_of(type, block, k % (super ? 256 : 32)),
                 codes_bytes = type == WEFT_TYPE_Q8_0 ? 2048 : 1024;
  uint8_t *codes = tile + unit * (codes_bytes + high_bytes + 128), *high = codes + (codes_bytes >> tail),
          *scales = codes + ((codes_bytes + high_bytes) >> tail);
  if (super) {
    const uint32_t scales_bytes = type == WEFT_TYPE_Q6_K ? 288 : 256;
    uint8_t *base = tile + unit / 2 * (2 * (codes_bytes + high_bytes) + scales_bytes);
    codes = base + unit % 2 * codes_bytes, high = base + 2 * codes_bytes + unit % 2 * high_bytes;
    scales = base + 2 * (codes_bytes + high_bytes);
    memcpy(scales + 16 * o, block + (type == WEFT_TYPE_Q6_K ? 192 : 0), 16);
    if (type == WEFT_TYPE_Q6_K) memcpy(scales + 256 + 2 * o, block + 208, 2);
  } else {
    memcpy(scales + (tail ? g * 8 + k % 128 / 32 * 4 : lane * 4) + 2 * r, block, 2);
  }
  if (type == WEFT_TYPE_Q8_0) {
    codes[e / 16 * 1024 + r * 512 + lane * 16 + e % 16] = (uint8_t)code;
    return;
  }
  put_bits(codes + (r * 32 + lane) * per / 2 + e / 8 * 4, e % 2 * 16 + e % 8 / 2 * 4, code & 15u);
  if (type == WEFT_TYPE_Q6_K)
    put_bits(high + lane * 16 + r * 8 + e / 16 * 4, e % 2 * 16 + e % 16 / 2 * 2, code >> 4);
  else if (high_bytes > 0)
    put_bits(high + lane * per / 4 + r * per / 8, e % 2 * per / 2 + e / 2, code >> 4);
}

typedef struct card_work {
  uint8_t *file, *tiles;
  uint16_t *steps;
  float *x, *want, *y;
  int8_t *numbers;
  float *scales;
} card_work;

static void quantise_rows(const card_case *c, card_work *w) {
  const uint32_t n_spans = (c->n_in + CARD_SPAN - 1) / CARD_SPAN;
  memset(w->numbers, 0, (uint64_t)ROWS * n_spans * CARD_SPAN);
  for (uint32_t at = 0; at < ROWS * n_spans; at++) {
    const uint32_t first = at % n_spans * CARD_SPAN, n = c->n_in - first < CARD_SPAN ? c->n_in - first : CARD_SPAN;
    const float *x = w->x + at / n_spans * c->n_in + first;
    float most = 0.0f;
    for (uint32_t i = 0; i < n; i++) most = fmaxf(most, fabsf(x[i]));
    w->scales[at] = most / 127.0f;
    for (uint32_t i = 0; i < n; i++) {
      const uint32_t k = i % 128, e = k % 8;
      const uint32_t place =
          card_products_by_nibbles((int)c->type) ? e % 4 / 2 * 64 + k / 8 * 4 + e % 2 * 2 + e / 4 : k;
      w->numbers[(uint64_t)at * CARD_SPAN + i / 128 * 128 + place] = (int8_t)lrintf(x[i] * (127.0f / most));
    }
  }
}

static void make_weight(const card_case *c, test_random *random, card_work *w, weft_weight *weight) {
  const weft_type_info *info = weft_type_find((int32_t)c->type);
  const uint64_t row_bytes = weft_type_row_bytes(c->type, c->n_in);
  const uint32_t n_spans = (c->n_in + CARD_SPAN - 1) / CARD_SPAN,
                 tile_bytes = card_products_tile_bytes((int)c->type, c->n_in);
  float *values = calloc(c->n_in, sizeof *values);
  assert_non_null(values);
  fill_file(c, random, w->file);
  memset(w->tiles, 0, (uint64_t)TILES * tile_bytes);
  memset(weight, 0, sizeof *weight);
  weight->type = c->type, weight->n_in = c->n_in, weight->n_out = OUT, weight->n_mats = 1, weight->data = w->file;
  for (uint32_t o = 0; o < OUT; o++) {
    const uint8_t *row = w->file + o * row_bytes;
    for (uint32_t k = 0; k < c->n_in; k++)
      pack_number(c, row + k / info->n_elements * info->n_bytes, o % CARD_TILE, k,
                  w->tiles + (uint64_t)(o / CARD_TILE) * tile_bytes);
    ref_weight_row(weight, 0, o, values);
    for (uint32_t span = 0; span < n_spans; span++) {
      int32_t codes[CARD_SPAN];
      const float step = ref_w8a8_span(weight, 0, o, span * CARD_SPAN, values, codes);
      w->steps[((uint64_t)(o / CARD_TILE) * n_spans + span) * CARD_TILE + o % CARD_TILE] = weft_f32_to_bf16(step);
    }
  }
  free(values);
}

static void check_case(const card_case *c, test_random *random) {
  const uint64_t n_spans = (c->n_in + CARD_SPAN - 1) / CARD_SPAN;
  card_work w = {calloc(OUT, weft_type_row_bytes(c->type, c->n_in)),
                 calloc(TILES, card_products_tile_bytes((int)c->type, c->n_in)),
                 calloc(OUT * n_spans, 2),
                 calloc((uint64_t)ROWS * c->n_in, 4),
                 calloc((uint64_t)ROWS * OUT, 4),
                 calloc((uint64_t)ROWS * OUT, 4),
                 calloc(ROWS * n_spans, CARD_SPAN),
                 calloc(ROWS * n_spans, 4)};
  float *values = calloc(c->n_in, 4);
  weft_weight weight;
  assert_true(w.file != NULL && w.tiles != NULL && w.steps != NULL && w.x != NULL && values != NULL);
  assert_true(w.want != NULL && w.y != NULL && w.numbers != NULL && w.scales != NULL);
  make_weight(c, random, &w, &weight);
  for (uint32_t i = 0; i < ROWS * c->n_in; i++) w.x[i] = (float)random_below(random, 4001) * 0x1p-9f - 4.0f;
  quantise_rows(c, &w);
  for (uint32_t r = 0; r < ROWS; r++)
    for (uint32_t o = 0; o < OUT; o++) w.want[r * OUT + o] = ref_w8a8_dot(&weight, 0, o, w.x + r * c->n_in, values);
  const card_tile_fn sets[] = {
    card_tile_portable,
#if defined(__x86_64__)
    cpu_best_isa() >= CPU_ISA_AVX2 ? card_tile_avx2 : NULL,
    cpu_best_isa() >= CPU_ISA_AVX512 ? card_tile_avx512 : NULL
#endif
  };
  const card_matrix matrix = {(int)c->type, c->n_in, w.tiles, (const uint8_t *)w.steps};
  for (uint32_t s = 0; s < sizeof sets / sizeof sets[0]; s++) {
    for (uint32_t n = 1; n <= ROWS && sets[s] != NULL; n += ROWS - 1) {
      const card_rows rows = {w.numbers, w.scales, n};
      for (uint32_t i = 0; i < ROWS * OUT; i++) w.y[i] = NAN;
      for (uint32_t tile = 0; tile < TILES; tile++) sets[s](&matrix, tile, &rows, w.y + tile * CARD_TILE, OUT);
      for (uint32_t i = 0; i < n * OUT; i++)
        if (memcmp(&w.y[i], &w.want[i], 4) != 0)
          fail_msg("type %d, %u inputs, set %u, row %u, output %u: %a, not %a", (int)c->type, c->n_in, s, i / OUT,
                   i % OUT, (double)w.y[i], (double)w.want[i]);
    }
  }
  free(w.file), free(w.tiles), free(w.steps), free(w.x), free(w.want), free(w.y), free(w.numbers), free(w.scales);
  free(values);
}

static void test_bits_of_ref(void **state) {
  (void)state;
  static const card_case cases[] = {
      {WEFT_TYPE_Q4_K, 256},  {WEFT_TYPE_Q4_K, 2816}, {WEFT_TYPE_Q5_K, 512}, {WEFT_TYPE_Q6_K, 512},
      {WEFT_TYPE_Q8_0, 704},  {WEFT_TYPE_Q8_0, 256},  {WEFT_TYPE_Q5_0, 704}, {WEFT_TYPE_Q5_0, 384},
      {WEFT_TYPE_Q4_0, 704},  {WEFT_TYPE_Q4_0, 2816}, {WEFT_TYPE_Q4_0, 96},  {WEFT_TYPE_Q5_0, 64},
      {WEFT_TYPE_Q8_0, 2880},
  };
  test_random random = {1};
  for (uint32_t i = 0; i < sizeof cases / sizeof cases[0]; i++) check_case(&cases[i], &random);
}

/* The longer time of a share of n. */
static float longer_of(const host_share_times *t, const uint32_t *rows, uint32_t n, uint32_t n_all) {
  float own = n > 0 ? t->begin : 0.0f;
  for (uint32_t i = 0; i < n; i++) own += t->expert + t->row * (float)rows[i];
  return fmaxf(own, t->link * (float)(n_all - n));
}

/* Against every other share: none is shorter, none as short is smaller; and the limits hold. */
static void test_share(void **state) {
  (void)state;
  test_random random = {2};
  uint32_t n_some = 0;
  for (uint32_t turn = 0; turn < 2000; turn++) {
    uint32_t rows[64], n = random_below(&random, 64), n_pairs = 0;
    for (uint32_t i = 0, at = 1; i < n; i++) rows[i] = at += random_below(&random, 3);
    const host_share_times t = {.link = 20.0f + (float)random_below(&random, 200),
                                .expert = 10.0f + (float)random_below(&random, 100),
                                .row = (float)random_below(&random, 10),
                                .begin = (float)random_below(&random, 100),
                                .most_rows = 8 + random_below(&random, 64),
                                .most_pairs = random_below(&random, 512)};
    const uint32_t share = host_share_of(&t, rows, n);
    assert_in_range(share, 0, n);
    for (uint32_t i = 0; i <= n; i++) {
      const float longer = longer_of(&t, rows, i, n), own = longer_of(&t, rows, share, n);
      if (i <= share ? i < share && longer <= own : longer < own)
        fail_msg("a share of %u, not of %u, of %u", share, i, n);
      if (i == n || rows[i] > t.most_rows || (n_pairs += rows[i]) > t.most_pairs) break;
      if (i + 1 > share) continue;
      assert_true(rows[i] <= t.most_rows && n_pairs <= t.most_pairs);
    }
    n_some += share > 0 && share < n ? 1 : 0;
  }
  assert_true(n_some > 200);
  const host_share_times slow = {.link = 10.0f, .expert = 1000.0f, .most_rows = 8, .most_pairs = 512};
  assert_int_equal(host_share_of(&slow, (const uint32_t[]){1, 1, 1}, 3), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_bits_of_ref), cmocka_unit_test(test_share)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
