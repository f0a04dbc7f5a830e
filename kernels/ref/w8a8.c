/* SPDX-License-Identifier: MIT */
/* A product of 8 bits, step by step: the numbers of a row and of a weight's row as integers with a scale each for every
 * span of 256 inputs. Every backend that multiplies so gives these bits. */
#include <math.h>

#include "kernels/ref/ref.h"

/* What a stored number is made of: value = scale * scale_of * code + least * least_of. */
typedef struct number_parts {
  float scale, scale_of; /* scale_of: a super-block's integer for the scale, else 1 */
  float least, least_of;
  uint32_t code;
} number_parts;

bool ref_w8a8_takes(weft_type type) {
  return type == WEFT_TYPE_Q8_0 || type == WEFT_TYPE_Q4_0 || type == WEFT_TYPE_Q5_0 || type == WEFT_TYPE_Q4_K ||
         type == WEFT_TYPE_Q5_K || type == WEFT_TYPE_Q6_K;
}

static float f16_at(const uint8_t *bytes) {
  return weft_f16_to_f32((uint16_t)(bytes[0] | bytes[1] << 8));
}

/* Number i of a block of 32. */
static number_parts small_parts(weft_type type, const uint8_t *block, uint32_t i) {
  number_parts n = {.scale = f16_at(block), .scale_of = 1.0f};
  uint32_t offset = type == WEFT_TYPE_Q8_0 ? 128 : type == WEFT_TYPE_Q4_0 ? 8 : 16;
  if (type == WEFT_TYPE_Q8_0) {
    n.code = (uint32_t)block[2 + i] ^ 0x80u;
  } else {
    const uint8_t *codes = block + (type == WEFT_TYPE_Q4_0 ? 2 : 6);
    n.code = i < 16 ? codes[i] & 15u : (uint32_t)codes[i - 16] >> 4;
    if (type == WEFT_TYPE_Q5_0) n.code |= ((uint32_t)block[2 + i / 8] >> i % 8 & 1u) << 4;
  }
  n.least_of = -(float)offset; /* times the scale: these types store no least */
  return n;
}

/* Number i of a Q6_K block. */
static number_parts six_parts(const uint8_t *block, uint32_t i) {
  uint32_t half = i / 128, group = i % 128 / 32, l = i % 32;
  uint32_t byte = block[64 * half + 32 * (group & 1u) + l];
  uint32_t low = group < 2 ? byte & 15u : byte >> 4;
  number_parts n = {.scale = f16_at(block + 208), .scale_of = (float)(int8_t)block[192 + i / 16], .least_of = -32.0f};
  n.code = low | ((uint32_t)block[128 + 32 * half + l] >> (2 * group) & 3u) << 4;
  return n;
}

/* Number i of a Q4_K or Q5_K block. */
static number_parts super_parts(weft_type type, const uint8_t *block, uint32_t i) {
  const uint8_t *six = block + 4;
  uint32_t j = i / 32, l = i % 32, scale, least;
  if (j < 4) {
    scale = six[j] & 63u;
    least = six[j + 4] & 63u;
  } else {
    scale = (six[j + 4] & 15u) | (uint32_t)six[j - 4] >> 6 << 4;
    least = (uint32_t)six[j + 4] >> 4 | (uint32_t)six[j] >> 6 << 4;
  }
  uint32_t byte = block[(type == WEFT_TYPE_Q5_K ? 48 : 16) + 32 * (j / 2) + l];
  number_parts n = {f16_at(block), (float)scale, f16_at(block + 2), -(float)least, j % 2 == 0 ? byte & 15u : byte >> 4};
  if (type == WEFT_TYPE_Q5_K) n.code |= ((uint32_t)block[16 + l] >> j & 1u) << 4;
  return n;
}

static number_parts parts_of(weft_type type, const uint8_t *row, uint32_t k) {
  const weft_type_info *info = weft_type_find((int32_t)type);
  const uint8_t *block = row + (uint64_t)(k / info->n_elements) * info->n_bytes;
  uint32_t i = k % info->n_elements;
  if (type == WEFT_TYPE_Q6_K) return six_parts(block, i);
  return info->n_elements == 32 ? small_parts(type, block, i) : super_parts(type, block, i);
}

static float f16_rounded(float value) {
  return weft_f16_to_f32(weft_f32_to_f16(value));
}

/* The integer of a weight's number, made as cards make it in f16: as a number above 3 2^-4, where f16 numbers are 2^-13
 * apart. over: 1 / step. */
static int32_t integer_of(weft_type type, const number_parts *n, float over) {
  const float zero = 3.0f * 0x1p-4f;
  float scale = n->scale * over * n->scale_of;
  bool own_least = type == WEFT_TYPE_Q4_K || type == WEFT_TYPE_Q5_K;
  float least = own_least ? n->least * over * n->least_of : scale * n->least_of;
  float factor = f16_rounded(scale * 0x1p11f), least_16 = f16_rounded(f16_rounded(least * 0x1p-13f) + zero);
  double value = (double)factor * (double)n->code * 0x1p-24 + (double)least_16;
  return (int32_t)rint((value - (double)zero) * 0x1p13);
}

/* A weight's step: the largest magnitude of the span / 126, rounded up to bf16. */
static float step_of(const float *value, uint32_t n) {
  float most = 0.0f, step;
  for (uint32_t i = 0; i < n; i++) {
    if (!isfinite(value[i])) return NAN;
    if (fabsf(value[i]) > most) most = fabsf(value[i]);
  }
  if (most < 0x1p-100f) return 0.0f;
  step = weft_bf16_to_f32(weft_f32_to_bf16((float)((double)most / 126.0)));
  while ((double)step * 126.0 < (double)most) /* the step was rounded down */
    step = weft_bf16_to_f32((uint16_t)(weft_f32_to_bf16(step) + 1));
  return step;
}

/* Makes x[0 .. n) into integers and returns their scale. */
static float quantise_span(const float *x, uint32_t n, int32_t *codes) {
  float most = 0.0f;
  for (uint32_t i = 0; i < n; i++) codes[i] = 0;
  for (uint32_t i = 0; i < n; i++) {
    if (!isfinite(x[i])) return NAN;
    if (fabsf(x[i]) > most) most = fabsf(x[i]);
  }
  if (most < 0x1p-100f) return 0.0f;
  float inverse = 127.0f / most;
  for (uint32_t i = 0; i < n; i++) codes[i] = (int32_t)lrintf(x[i] * inverse);
  return most / 127.0f;
}

float ref_w8a8_span(const weft_weight *weight, uint32_t matrix, uint32_t row, uint32_t first, const float *values,
                    int32_t *codes) {
  const uint8_t *stored = (const uint8_t *)weight->data +
                          ((uint64_t)matrix * weight->n_out + row) * weft_type_row_bytes(weight->type, weight->n_in);
  uint32_t n = weight->n_in - first < REF_SPAN ? weight->n_in - first : REF_SPAN;
  float step = step_of(values + first, n), over = step == 0.0f ? 0.0f : 1.0f / step;
  for (uint32_t i = 0; i < n && isfinite(step); i++) {
    number_parts parts = parts_of(weight->type, stored, first + i);
    codes[i] = integer_of(weight->type, &parts, over);
  }
  return step;
}

float ref_w8a8_add(const int32_t *codes, float step, const float *x, uint32_t n, float sum) {
  int32_t own[REF_SPAN], total = 0;
  float scale = quantise_span(x, n, own);
  for (uint32_t i = 0; i < n && isfinite(step) && isfinite(scale); i++) total += own[i] * codes[i];
  return fmaf((float)total, scale * step, sum);
}

float ref_w8a8_dot(const weft_weight *weight, uint32_t matrix, uint32_t row, const float *x, float *values) {
  int32_t codes[REF_SPAN];
  float sum = 0.0f;
  ref_weight_row(weight, matrix, row, values);
  for (uint32_t first = 0; first < weight->n_in; first += REF_SPAN) {
    uint32_t n = weight->n_in - first < REF_SPAN ? weight->n_in - first : REF_SPAN;
    float step = ref_w8a8_span(weight, matrix, row, first, values, codes);
    sum = ref_w8a8_add(codes, step, x + first, n, sum);
  }
  return sum;
}
