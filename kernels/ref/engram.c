/* SPDX-License-Identifier: MIT */
/* engram_rows and engram_add (kernels/engram.h). */
#include "kernels/ref/ref.h"

#include <math.h>
#include <string.h>

#include "kernels/parts.h"

/* ---- engram_rows ---- */

static uint8_t *find_past(const weft_engram_rows_args *args, const weft_latent_segment *segment, uint32_t position) {
  return weft_latent_row(&args->past, args->past.offset, segment->table[WEFT_LATENT_TOKENS], position);
}

/* The mapped token i positions before one, or pad. */
static uint64_t find_token(const weft_engram_rows_args *args, const weft_latent_segment *segment, uint32_t position,
                           uint32_t i) {
  int32_t token;
  if (i > position) return args->pad;
  memcpy(&token, find_past(args, segment, position - i), sizeof token);
  return (uint64_t)args->map[token];
}

static void find_rows(const weft_engram_rows_args *args, uint32_t row) {
  const weft_latent_segment *segment = ref_latent_segment(args->segment, args->n_segments, row);
  const uint32_t position = segment->kv_len + (row - segment->first_row), n_heads = args->n_heads;
  int32_t *ids = args->ids + (uint64_t)row * (args->n_grams - 1) * n_heads;
  uint64_t x = find_token(args, segment, position, 0) * args->multiplier[0];
  for (uint32_t n = 1; n < args->n_grams; n++) {
    x ^= find_token(args, segment, position, n) * args->multiplier[n];
    for (uint32_t h = 0; h < n_heads; h++) {
      uint32_t i = (n - 1) * n_heads + h;
      ids[i] = (int32_t)(x % args->prime[i] + args->offset[i]);
    }
  }
}

weft_status ref_engram_rows(weft_device *device, const weft_engram_rows_args *args) {
  (void)device;
  for (uint32_t r = 0; r < args->n_rows; r++)
    if (args->tokens[r] < 0 || (uint32_t)args->tokens[r] >= args->n_tokens)
      return parts_refuse_row("engram_rows", r, "has a token that the map has no number for");
  for (uint32_t r = 0; r < args->n_rows; r++) {
    const weft_latent_segment *segment = ref_latent_segment(args->segment, args->n_segments, r);
    memcpy(find_past(args, segment, segment->kv_len + (r - segment->first_row)), &args->tokens[r], sizeof(int32_t));
  }
  for (uint32_t r = 0; r < args->n_rows; r++) find_rows(args, r);
  return WEFT_OK;
}

/* ---- engram_add ---- */

static double find_length(const float *x, uint32_t n, float eps) {
  return sqrt(ref_dot(x, x, n) / n + (double)eps);
}

static void add_to_row(const weft_engram_add_args *args, uint64_t row) {
  const uint32_t n = args->n_cols;
  const float *read = args->read + row * args->read_stride, *value = read + (uint64_t)args->n_streams * n;
  for (uint32_t i = 0; i < args->n_streams; i++) {
    const float *key = read + (uint64_t)i * n, *weight = args->weight + (uint64_t)i * n;
    float *x = args->x + row * args->x_stride + (uint64_t)i * n;
    double sum = 0.0;
    for (uint32_t c = 0; c < n; c++) sum += (double)x[c] * (double)weight[c] * (double)key[c];
    double s = sum / (find_length(x, n, args->eps) * find_length(key, n, args->eps) * sqrt((double)n));
    double root = sqrt(fmax(fabs(s), 1e-6)), share = 1.0 / (1.0 + exp(s < 0.0 ? root : -root));
    for (uint32_t c = 0; c < n; c++) x[c] = (float)((double)x[c] + share * (double)value[c]);
  }
}

void ref_engram_add_rows(const weft_engram_add_args *args, uint32_t first, uint32_t end) {
  for (uint64_t r = first; r < end; r++) add_to_row(args, r);
}

weft_status ref_engram_add(weft_device *device, const weft_engram_add_args *args) {
  (void)device;
  ref_engram_add_rows(args, 0, args->n_rows);
  return WEFT_OK;
}
