/* SPDX-License-Identifier: MIT */
/* Stored numbers to f32 and back, by the definitions of the GGUF format.
 *
 * Law: the order of the float operations below is part of the format: with it every decoded value is bit-equal to the
 * format's reference. Nothing here is fast; backends read the same bytes in their own ways and are compared with this
 * file. */
#include "kernels/quant.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "base/check.h"
#include "kernels/repack.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "stored numbers are little-endian");

enum { BLOCK = 32, SUPER = 256 };

/* Every id that the format has defined. Ids that are "removed" once had a meaning and must never be read again. */
static const char *const id_names[] = {
    "F32",     "F16",    "Q4_0",  "Q4_1",    "removed", "removed", "Q5_0",   "Q5_1",    "Q8_0",  "Q8_1",    "Q2_K",
    "Q3_K",    "Q4_K",   "Q5_K",  "Q6_K",    "Q8_K",    "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL",  "IQ3_S",
    "IQ2_S",   "IQ4_XS", "I8",    "I16",     "I32",     "I64",     "F64",    "IQ1_M",   "BF16",  "removed", "removed",
    "removed", "TQ1_0",  "TQ2_0", "removed", "removed", "removed", "MXFP4",  "NVFP4",   "Q1_0",  "Q2_0",
};

const weft_type_info *weft_type_find(int32_t id) {
  switch (id) {
#define X(type, number, n_elements, n_bytes, held_as, values)                                                       \
  case number: {                                                                                                    \
    static const weft_type_info info = {WEFT_TYPE_##type, #type, n_elements, n_bytes, WEFT_TYPE_##held_as, values}; \
    return &info;                                                                                                   \
  }
    WEFT_TYPE_MAP(X)
#undef X
    default:
      return NULL;
  }
}

const weft_type_info *weft_type_find_stored(int32_t id) {
  return id < WEFT_TYPE_ID_HELD ? weft_type_find(id) : NULL;
}

const char *weft_type_names(void) {
#define X(name, id, n_elements, n_bytes, held_as, values) ", " #name
  return &(WEFT_STORED_TYPE_MAP(X))[2];
#undef X
}

const char *weft_type_name_of_id(int32_t id) {
  const weft_type_info *held = id >= WEFT_TYPE_ID_HELD ? weft_type_find(id) : NULL;
  if (held != NULL) return held->name;
  if (id < 0 || (size_t)id >= sizeof id_names / sizeof *id_names) return "unknown";
  return id_names[id];
}

uint64_t weft_type_row_bytes(weft_type type, uint64_t n_elements) {
  const weft_type_info *info = weft_type_find((int32_t)type);
  if (info == NULL || n_elements % info->n_elements != 0) return 0;
  uint64_t n_blocks = n_elements / info->n_elements;
  return n_blocks > UINT64_MAX / info->n_bytes ? 0 : n_blocks * info->n_bytes;
}

float weft_f16_to_f32(uint16_t bits) {
  uint32_t sign = (uint32_t)(bits & 0x8000u) << 16;
  uint32_t exponent = bits >> 10 & 31u;
  uint32_t mantissa = bits & 0x3FFu;
  union {
    uint32_t u;
    float f;
  } v;
  if (exponent == 31) {
    v.u = sign | 0x7F800000u | mantissa << 13;
  } else if (exponent != 0) {
    v.u = sign | (exponent + 112) << 23 | mantissa << 13;
  } else {
    v.f = (float)mantissa * 0x1p-24f; /* zero and subnormals: exact */
    v.u |= sign;
  }
  return v.f;
}

uint16_t weft_f32_to_f16(float value) {
  union {
    float f;
    uint32_t u;
  } v = {value};
  uint16_t sign = (uint16_t)(v.u >> 16 & 0x8000u);
  uint32_t magnitude = v.u & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return (uint16_t)(sign | 0x7E00u | (magnitude >> 13 & 0x1FFu));
  if (magnitude >= 0x477FF000u) return (uint16_t)(sign | 0x7C00u); /* rounds past the largest finite */
  if (magnitude < 0x38800000u) { /* subnormal: count in units of 2^-24; the sum rounds to nearest even */
    union {
      uint32_t u;
      float f;
    } m = {magnitude};
    m.f += 0.5f;
    return (uint16_t)(sign | (uint16_t)(m.u - 0x3F000000u));
  }
  uint32_t odd = magnitude >> 13 & 1u;
  return (uint16_t)(sign | (uint16_t)((magnitude - 0x38000000u + 0xFFFu + odd) >> 13));
}

static float read_f16(const uint8_t *at) {
  uint16_t bits;
  memcpy(&bits, at, sizeof bits);
  return weft_f16_to_f32(bits);
}

static void write_f16(uint8_t *at, float value) {
  uint16_t bits = weft_f32_to_f16(value);
  memcpy(at, &bits, sizeof bits);
}

/* Element i of a block of 32 nibbles: the low halves of the bytes hold the first sixteen, the high halves the rest. */
static uint32_t read_nibble(const uint8_t *bytes, uint32_t i) {
  return i < 16 ? bytes[i] & 15u : (uint32_t)bytes[i - 16] >> 4;
}

static void q8_0_block(const uint8_t *b, float *out) {
  float d = read_f16(b);
  for (uint32_t i = 0; i < BLOCK; i++) out[i] = d * (float)(int8_t)b[2 + i];
}

static void q4_0_block(const uint8_t *b, float *out) {
  float d = read_f16(b);
  for (uint32_t i = 0; i < BLOCK; i++) out[i] = d * (float)((int32_t)read_nibble(b + 2, i) - 8);
}

static void q4_1_block(const uint8_t *b, float *out) {
  float d = read_f16(b), least = read_f16(b + 2);
  for (uint32_t i = 0; i < BLOCK; i++) out[i] = d * (float)read_nibble(b + 4, i) + least;
}

static void q5_1_block(const uint8_t *b, float *out) {
  float d = read_f16(b), least = read_f16(b + 2);
  uint32_t high;
  memcpy(&high, b + 4, sizeof high);
  for (uint32_t i = 0; i < BLOCK; i++) {
    out[i] = d * (float)(read_nibble(b + 8, i) | (high >> i & 1u) << 4) + least;
  }
}

static void q5_0_block(const uint8_t *b, float *out) {
  float d = read_f16(b);
  uint32_t high;
  memcpy(&high, b + 2, sizeof high);
  for (uint32_t i = 0; i < BLOCK; i++) {
    uint32_t n = read_nibble(b + 6, i) | (high >> i & 1u) << 4;
    out[i] = d * (float)((int32_t)n - 16);
  }
}

/* Scale and minimum of sub-block j (0..7): eight pairs of 6-bit numbers in 12 bytes. */
static void k_scale(const uint8_t *s, uint32_t j, uint32_t *scale, uint32_t *least) {
  if (j < 4) {
    *scale = s[j] & 63u;
    *least = s[j + 4] & 63u;
  } else {
    *scale = (s[j + 4] & 15u) | (uint32_t)(s[j - 4] >> 6) << 4;
    *least = (uint32_t)(s[j + 4] >> 4) | (uint32_t)(s[j] >> 6) << 4;
  }
}

/* Q4_K (high == NULL) and Q5_K: nibbles at qs, the fifth bits at high. */
static void k_block(const uint8_t *b, const uint8_t *high, const uint8_t *qs, float *out) {
  float d = read_f16(b);
  float d_least = read_f16(b + 2);
  for (uint32_t j = 0; j < 8; j++) {
    uint32_t scale, least;
    k_scale(b + 4, j, &scale, &least);
    float step = d * (float)scale;
    float offset = d_least * (float)least;
    for (uint32_t i = 0; i < BLOCK; i++) {
      uint32_t byte = qs[32 * (j / 2) + i];
      uint32_t n = j % 2 == 0 ? byte & 15u : byte >> 4;
      if (high != NULL) n |= ((uint32_t)high[i] >> j & 1u) << 4;
      out[32 * j + i] = step * (float)n - offset;
    }
  }
}

static void q4_k_block(const uint8_t *b, float *out) {
  k_block(b, NULL, b + 16, out);
}
static void q5_k_block(const uint8_t *b, float *out) {
  k_block(b, b + 16, b + 48, out);
}

/* Q2_K: a byte holds the scale of sixteen elements in its low half, and their minimum in its high half. */
static void q2_k_block(const uint8_t *b, float *out) {
  float d = read_f16(b + 80), d_least = read_f16(b + 82);
  for (uint32_t i = 0; i < SUPER; i++) {
    uint32_t code = (uint32_t)b[16 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3u;
    out[i] = d * (float)(b[i / 16] & 15u) * (float)code - d_least * (float)(b[i / 16] >> 4);
  }
}

static void q6_k_block(const uint8_t *b, float *out) {
  const uint8_t *low = b, *high = b + 128, *scales = b + 192;
  float d = read_f16(b + 208);
  for (uint32_t i = 0; i < SUPER; i++) {
    uint32_t half = i / 128, group = i % 128 / 32, l = i % 32;
    uint32_t byte = low[64 * half + 32 * (group & 1u) + l];
    uint32_t n = group < 2 ? byte & 15u : byte >> 4;
    n |= ((uint32_t)high[32 * half + l] >> (2 * group) & 3u) << 4;
    out[i] = d * (float)(int8_t)scales[i / 16] * (float)((int32_t)n - 32);
  }
}

static void mxfp4_block(const uint8_t *b, float *out) {
  union {
    uint32_t u;
    float f;
  } half; /* 2^(e - 128); 255 says not a number */
  half.u = b[0] < 2 ? 0x00200000u << b[0] : b[0] == 255 ? 0x7FC00000u : (uint32_t)(b[0] - 1) << 23;
  for (uint32_t i = 0; i < BLOCK; i++) out[i] = (float)weft_values_fp4[read_nibble(b + 1, i)] * half.f;
}

static void read_f16_row(const uint8_t *b, float *out, uint64_t n) {
  for (uint64_t i = 0; i < n; i++) out[i] = read_f16(b + 2 * i);
}

static void read_bf16_row(const uint8_t *b, float *out, uint64_t n) {
  for (uint64_t i = 0; i < n; i++) {
    uint16_t bits;
    memcpy(&bits, b + 2 * i, sizeof bits);
    out[i] = weft_bf16_to_f32(bits);
  }
}

typedef void (*block_reader)(const uint8_t *block, float *out);

/* The function that reads a type's blocks. NULL: repack.c knows what they mean. */
static block_reader find_block_reader(weft_type type) {
  static const struct {
    weft_type type;
    block_reader read;
  } all[] = {
      {WEFT_TYPE_Q4_0, q4_0_block},   {WEFT_TYPE_Q4_1, q4_1_block}, {WEFT_TYPE_Q5_0, q5_0_block},
      {WEFT_TYPE_Q5_1, q5_1_block},   {WEFT_TYPE_Q8_0, q8_0_block}, {WEFT_TYPE_Q2_K, q2_k_block},
      {WEFT_TYPE_Q4_K, q4_k_block},   {WEFT_TYPE_Q5_K, q5_k_block}, {WEFT_TYPE_Q6_K, q6_k_block},
      {WEFT_TYPE_MXFP4, mxfp4_block},
  };
  for (uint32_t i = 0; i < sizeof all / sizeof all[0]; i++) {
    if (all[i].type == type) return all[i].read;
  }
  return NULL;
}

/* Reads blocks of a type that devices hold as another: each is repacked first. */
static void dequantise_repacked(const weft_type_info *info, const uint8_t *at, float *out, uint64_t n) {
  const weft_type_info *held = weft_type_find((int32_t)info->held_as);
  uint8_t block[2 * SUPER];
  WEFT_CHECK(info->n_elements / held->n_elements * held->n_bytes <= sizeof block);
  for (uint64_t i = 0; i < n; i += info->n_elements, at += info->n_bytes) {
    weft_repack_row(info->type, at, block, info->n_elements);
    weft_dequantise_row(info->held_as, block, out + i, info->n_elements);
  }
}

void weft_dequantise_row(weft_type type, const void *stored, float *out, uint64_t n) {
  const weft_type_info *info = weft_type_find((int32_t)type);
  WEFT_CHECK(info != NULL);
  WEFT_CHECK(n % info->n_elements == 0);
  const uint8_t *at = stored;
  block_reader read = find_block_reader(type);
  if (type == WEFT_TYPE_F32) {
    if (n > 0) memcpy(out, stored, n * sizeof *out);
  } else if (type == WEFT_TYPE_F16) {
    read_f16_row(stored, out, n);
  } else if (type == WEFT_TYPE_BF16) {
    read_bf16_row(stored, out, n);
  } else if (info->held_as != type) {
    dequantise_repacked(info, at, out, n);
  } else {
    for (uint64_t i = 0; i < n; i += info->n_elements, at += info->n_bytes) {
      if (read != NULL) read(at, out + i);
      if (read == NULL) repack_dequantise(info, at, out + i);
    }
  }
}

/* The value is cut to [low, high] before it is converted, since a float outside of the integer's range has no defined
 * result. */
static int32_t to_int(float value, int32_t low, int32_t high) {
  if (!(value > (float)low)) return low;
  return value < (float)high ? (int32_t)value : high;
}

static void q8_0_store(const float *in, uint8_t *b) {
  float largest = 0.0f;
  for (uint32_t i = 0; i < BLOCK; i++) largest = fmaxf(largest, fabsf(in[i]));
  float d = largest / 127.0f;
  float inverse = d != 0.0f ? 1.0f / d : 0.0f;
  write_f16(b, d);
  for (uint32_t i = 0; i < BLOCK; i++) b[2 + i] = (uint8_t)to_int(roundf(in[i] * inverse), -127, 127);
}

/* The step with which the value of largest magnitude, whatever its sign, becomes code 0, which stands for
 * -half_levels. */
static float signed_step(const float *in, float half_levels) {
  float most = 0.0f;
  for (uint32_t i = 0; i < BLOCK; i++) {
    if (fabsf(in[i]) > fabsf(most)) most = in[i];
  }
  return most / -half_levels;
}

static void q4_0_store(const float *in, uint8_t *b) {
  float d = signed_step(in, 8.0f);
  float inverse = d != 0.0f ? 1.0f / d : 0.0f;
  write_f16(b, d);
  for (uint32_t i = 0; i < 16; i++) {
    uint32_t low = (uint32_t)to_int(in[i] * inverse + 8.5f, 0, 15);
    uint32_t high = (uint32_t)to_int(in[i + 16] * inverse + 8.5f, 0, 15);
    b[2 + i] = (uint8_t)(low | high << 4);
  }
}

static void q5_0_store(const float *in, uint8_t *b) {
  float d = signed_step(in, 16.0f);
  float inverse = d != 0.0f ? 1.0f / d : 0.0f;
  uint32_t fifth = 0;
  write_f16(b, d);
  for (uint32_t i = 0; i < 16; i++) {
    uint32_t low = (uint32_t)to_int(in[i] * inverse + 16.5f, 0, 31);
    uint32_t high = (uint32_t)to_int(in[i + 16] * inverse + 16.5f, 0, 31);
    b[6 + i] = (uint8_t)((low & 15u) | (high & 15u) << 4);
    fifth |= low >> 4 << i | high >> 4 << (i + 16);
  }
  memcpy(b + 2, &fifth, sizeof fifth);
}

/* Q4_1 and Q5_1: codes 0 .. levels, in steps of d from the least value on. */
static void spread_codes(const float *in, int32_t levels, uint8_t *b, uint32_t codes[BLOCK]) {
  float low = in[0], high = in[0];
  for (uint32_t i = 1; i < BLOCK; i++) {
    low = fminf(low, in[i]);
    high = fmaxf(high, in[i]);
  }
  float d = (high - low) / (float)levels, inverse = d != 0.0f ? 1.0f / d : 0.0f;
  write_f16(b, d);
  write_f16(b + 2, low);
  for (uint32_t i = 0; i < BLOCK; i++) codes[i] = (uint32_t)to_int((in[i] - low) * inverse + 0.5f, 0, levels);
}

static void store_nibbles(const uint32_t codes[BLOCK], uint8_t *b) {
  for (uint32_t i = 0; i < 16; i++) b[i] = (uint8_t)((codes[i] & 15u) | (codes[i + 16] & 15u) << 4);
}

static void q4_1_store(const float *in, uint8_t *b) {
  uint32_t codes[BLOCK];
  spread_codes(in, 15, b, codes);
  store_nibbles(codes, b + 4);
}

static void q5_1_store(const float *in, uint8_t *b) {
  uint32_t codes[BLOCK], fifth = 0;
  spread_codes(in, 31, b, codes);
  for (uint32_t i = 0; i < BLOCK; i++) fifth |= codes[i] >> 4 << i;
  memcpy(b + 4, &fifth, sizeof fifth);
  store_nibbles(codes, b + 8);
}

/* Gives each number the code of the table's nearest value, of equally near ones the first. */
static void nearest_codes(const int8_t *values, const float *in, float inverse, uint32_t codes[BLOCK]) {
  for (uint32_t i = 0; i < BLOCK; i++) {
    float x = in[i] * inverse;
    codes[i] = 0;
    for (uint32_t c = 1; c < WEFT_TYPE_VALUES; c++) {
      if (fabsf((float)values[c] - x) < fabsf((float)values[codes[i]] - x)) codes[i] = c;
    }
  }
}

/* The scale makes the number of largest magnitude -127, the table's value of largest magnitude. */
static void iq4_nl_store(const float *in, uint8_t *b) {
  uint32_t codes[BLOCK];
  float d = signed_step(in, 127.0f);
  write_f16(b, d);
  nearest_codes(weft_values_iq4, in, d != 0.0f ? 1.0f / d : 0.0f, codes);
  store_nibbles(codes, b + 2);
}

/* The scale, a power of two, puts the largest magnitude between 4 and 8; the largest value that a code has is 6. */
static void mxfp4_store(const float *in, uint8_t *b) {
  uint32_t codes[BLOCK];
  float largest = 0.0f;
  for (uint32_t i = 0; i < BLOCK; i++) largest = fmaxf(largest, fabsf(in[i]));
  int power = largest > 0.0f && largest <= FLT_MAX ? ilogbf(largest) - 2 : -127;
  if (power < -127) power = -127;
  b[0] = (uint8_t)(power + 127);
  nearest_codes(weft_values_fp4, in, ldexpf(2.0f, -power), codes);
  store_nibbles(codes, b + 1);
}

static void store_halves(weft_type type, const float *in, uint8_t *b, uint64_t n) {
  for (uint64_t i = 0; i < n; i++) {
    uint16_t bits = type == WEFT_TYPE_F16 ? weft_f32_to_f16(in[i]) : weft_f32_to_bf16(in[i]);
    memcpy(b + 2 * i, &bits, sizeof bits);
  }
}

typedef void (*block_writer)(const float *in, uint8_t *block);

static block_writer find_block_writer(weft_type type) {
  static const struct {
    weft_type type;
    block_writer write;
  } all[] = {
      {WEFT_TYPE_Q8_0, q8_0_store},   {WEFT_TYPE_Q4_0, q4_0_store}, {WEFT_TYPE_Q5_0, q5_0_store},
      {WEFT_TYPE_Q4_1, q4_1_store},   {WEFT_TYPE_Q5_1, q5_1_store}, {WEFT_TYPE_IQ4_NL, iq4_nl_store},
      {WEFT_TYPE_MXFP4, mxfp4_store},
  };
  for (uint32_t i = 0; i < sizeof all / sizeof all[0]; i++) {
    if (all[i].type == type) return all[i].write;
  }
  return NULL;
}

weft_status weft_quantise_row(weft_type type, const float *in, void *stored, uint64_t n) {
  const weft_type_info *info = weft_type_find((int32_t)type);
  if (info == NULL) return WEFT_E_UNSUPPORTED;
  if (n % info->n_elements != 0) return WEFT_E_INVALID;
  if (type == WEFT_TYPE_F32) {
    if (n > 0) memcpy(stored, in, n * sizeof *in);
    return WEFT_OK;
  }
  if (type == WEFT_TYPE_F16 || type == WEFT_TYPE_BF16) {
    store_halves(type, in, stored, n);
    return WEFT_OK;
  }
  block_writer write = find_block_writer(type);
  if (write == NULL) return WEFT_E_UNSUPPORTED;
  uint8_t *at = stored;
  for (uint64_t i = 0; i < n; i += info->n_elements, at += info->n_bytes) write(in + i, at);
  return WEFT_OK;
}
