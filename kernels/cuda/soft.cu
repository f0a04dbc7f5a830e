/* SPDX-License-Identifier: MIT */
/* Probabilities times the embedding: soft[r] = sum over chunks of factor * (sum over v of e_v W_v).
 *
 *   block   128 rows x 128 columns of the embedding x one span of chunks
 *   step    128 tokens: each warp turns one row tile of 16 tokens x 128 columns into 16-bit numbers in
 *           shared memory, once for all rows; weights of the tokens come beside them
 *
 * A chunk's sum begins at 0, is multiplied by the row's factor and added to the span; spans are added by
 * span_kernel, ascending. */
#include "kernels/cuda/head.h"

enum {
  SOFT_THREADS = 256,
  SOFT_TOKENS = 128,
  SOFT_COLUMNS = 128,
  SOFT_STRIDE = 136, /* 16-bit numbers per stored row: rows start four banks apart */
  SOFT_TILE_BYTES = 128 * SOFT_STRIDE * 2,
  SOFT_BYTES = 4 * SOFT_TILE_BYTES, /* two steps of tokens x columns and rows x tokens */
  CHUNK = WEFT_VOCAB_CHUNK
};

typedef struct soft_args {
  head_group group;
  const uint8_t *data; /* of the weight */
  form_cut cut;
  uint32_t n_in;
} soft_args;

/* The warp's 16 tokens x 128 columns, as 16-bit numbers. */
template <int T>
static __device__ __forceinline__ void spread(const soft_args &a, uint32_t token, float raise, uint8_t *to) {
  uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4, unit = blockIdx.x;
  uint32_t tile = token / 16 + warp;
  bool tail = a.cut.is_tail != 0 && unit + 1 == a.cut.n_units, exists = tile < a.cut.n_tiles;
  lane_codes<T> codes;
  lane_scales<T> scales;
  lane_factors factors;
  form_place p = place_of<T>(a.data + FORM_HEADER_BYTES + (uint64_t)(exists ? tile : 0) * a.cut.tile_bytes, unit, tail);
  load_codes<T>(p, lane, codes);
  load_scales<T>(p, g, c, scales);
  make_factors<T>(scales, p.half, c, raise, factors);
#pragma unroll
  for (int i = 0; i < 4; i++) {
    if (i >= 2 && p.tail) continue;
#pragma unroll
    for (int h = 0; h < 2; h++) {
      uint32_t v[4] = {0, 0, 0, 0}, column = (p.tail ? 16 : 32) * c + 8 * i;
      if (exists) values_of<T>(codes, factors, i, h, v);
      *(uint4 *)(void *)(to + ((warp * 16 + g + 8 * h) * SOFT_STRIDE + column) * 2) = make_uint4(v[0], v[1], v[2], v[3]);
    }
  }
}

static __device__ __forceinline__ void copy_weights(const soft_args &a, uint32_t token, uint8_t *to) {
  const uint16_t *weights = (const uint16_t *)a.group.weights;
  for (uint32_t at = threadIdx.x; at < 128 * (SOFT_TOKENS / 8); at += SOFT_THREADS) {
    uint32_t r = at / (SOFT_TOKENS / 8), part = at % (SOFT_TOKENS / 8), row = min(r, a.group.n_rows - 1);
    copy16(shared_address(to + (r * SOFT_STRIDE + part * 8) * 2),
           weights + (uint64_t)row * a.group.n_chunks * CHUNK + token + part * 8);
  }
}

/* Warps: 4 x 32 rows, 2 x 64 columns. */
template <bool BF16>
static __device__ __forceinline__ void add_tokens(const uint8_t *columns, const uint8_t *rows, float (&sum)[2][8][4]) {
  uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  uint32_t row_at = shared_address(rows) + ((warp / 2 * 32 + lane % 16) * SOFT_STRIDE + lane / 16 * 8) * 2;
  uint32_t column_at = shared_address(columns) + (lane % 16 * SOFT_STRIDE + warp % 2 * 64 + lane / 16 * 8) * 2;
#pragma unroll 2
  for (int k = 0; k < SOFT_TOKENS; k += 16) {
    uint32_t w[2][4];
    load_matrices(w[0], row_at + k * 2);
    load_matrices(w[1], row_at + (16 * SOFT_STRIDE + k) * 2);
#pragma unroll
    for (int n = 0; n < 4; n++) {
      uint32_t v[4];
      load_matrices_turned(v, column_at + (k * SOFT_STRIDE + n * 16) * 2);
#pragma unroll
      for (int m = 0; m < 2; m++) {
        mma<BF16>(sum[m][2 * n], w[m], v[0], v[1]);
        mma<BF16>(sum[m][2 * n + 1], w[m], v[2], v[3]);
      }
    }
  }
}

static __device__ __forceinline__ void store_span(const soft_args &a, int raise, const float (&all)[2][8][4]) {
  uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float down = ldexpf(1.0f, -raise);
  float *span = a.group.spans + (uint64_t)blockIdx.z * a.group.n_rows * a.n_in;
#pragma unroll
  for (int at = 0; at < 64; at++) {
    int m = at / 32, n = at / 4 % 8, e = at % 4;
    uint32_t r = warp / 2 * 32 + 16 * m + lane / 4 + e / 2 * 8;
    uint32_t column = blockIdx.x * SOFT_COLUMNS + warp % 2 * 64 + 8 * n + lane % 4 * 2 + e % 2;
    if (r < a.group.n_rows && column < a.n_in) span[(uint64_t)r * a.n_in + column] = __fmul_rn(all[m][n][e], down);
  }
}

template <int T>
static __global__ void __launch_bounds__(SOFT_THREADS, 1) soft_kernel(const __grid_constant__ soft_args a) {
  inputs_ready();
  extern __shared__ __align__(128) uint8_t memory[];
  uint32_t chunk = blockIdx.z * SPAN_CHUNKS, end = min(chunk + SPAN_CHUNKS, a.group.n_chunks);
  uint32_t row = threadIdx.x / 64 * 32 + threadIdx.x % 32 / 4, turn = 0;
  int raise = raise_exponent(T, (const form_header *)(const void *)a.data);
  float raised = ldexpf(1.0f, raise), sum[2][8][4], all[2][8][4];
#pragma unroll
  for (int at = 0; at < 64; at++) sum[at / 32][at / 4 % 8][at % 4] = all[at / 32][at / 4 % 8][at % 4] = 0.0f;
  for (; chunk < end; chunk++) {
#pragma unroll 1
    for (uint32_t token = chunk * CHUNK; token < (chunk + 1) * CHUNK; token += SOFT_TOKENS, turn ^= 1) {
      uint8_t *columns = memory + turn * 2 * SOFT_TILE_BYTES, *rows = columns + SOFT_TILE_BYTES;
      copy_weights(a, token, rows);
      copies_commit();
      spread<T>(a, token, raised, columns);
      copies_wait<0>();
      __syncthreads(); /* two buffers: who is still at the step before reads the other one */
      add_tokens<form_is_bf16(T)>(columns, rows, sum);
    }
    float factor[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      uint32_t r = min(row + i / 2 * 16 + i % 2 * 8, a.group.n_rows - 1);
      factor[i] = a.group.factor[(uint64_t)r * a.group.n_chunks + chunk];
    }
#pragma unroll
    for (int at = 0; at < 64; at++) {
      int m = at / 32, n = at / 4 % 8, e = at % 4;
      all[m][n][e] = __fmaf_rn(sum[m][n][e], factor[2 * m + e / 2], all[m][n][e]);
      sum[m][n][e] = 0.0f;
    }
  }
  store_span(a, raise, all);
}

/* F32: a thread per column, tokens ascending. */
static __global__ void soft_f32_kernel(const __grid_constant__ soft_args a) {
  inputs_ready();
  uint32_t i = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y;
  uint32_t chunk = blockIdx.z * SPAN_CHUNKS, end = min(chunk + SPAN_CHUNKS, a.group.n_chunks);
  if (i >= a.n_in) return;
  const float *matrix = (const float *)(const void *)(a.data + FORM_HEADER_BYTES);
  const float *weights = (const float *)a.group.weights + (uint64_t)r * a.group.n_chunks * CHUNK;
  float all = 0.0f;
  for (; chunk < end; chunk++) {
    float sum = 0.0f;
    uint32_t last = min((chunk + 1) * CHUNK, a.group.n_vocab);
    for (uint32_t v = chunk * CHUNK; v < last; v++) sum = __fmaf_rn(weights[v], matrix[(uint64_t)v * a.n_in + i], sum);
    all = __fmaf_rn(sum, a.group.factor[(uint64_t)r * a.group.n_chunks + chunk], all);
  }
  a.group.spans[((uint64_t)blockIdx.z * a.group.n_rows + r) * a.n_in + i] = all;
}

/* Bad rows have factors of 0 but may have weights of NaN: they are zeros by name. */
static __global__ void span_kernel(const __grid_constant__ soft_args a, uint32_t n_spans) {
  inputs_ready();
  uint32_t i = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y;
  if (i >= a.n_in || (a.group.want != NULL && a.group.want[r] == 0)) return;
  float sum = 0.0f;
  for (uint32_t s = 0; s < n_spans; s++)
    sum = __fadd_rn(sum, a.group.spans[((uint64_t)s * a.group.n_rows + r) * a.n_in + i]);
  const float *factor = a.group.factor + (uint64_t)r * a.group.n_chunks;
  bool is_zero = true;
  for (uint32_t c = 0; c < a.group.n_chunks && is_zero; c++) is_zero = factor[c] == 0.0f;
  a.group.soft[(uint64_t)r * a.group.soft_stride + i] = is_zero ? 0.0f : sum;
}

template <int T>
static void launch(cuda_device *d, const soft_args &a, uint32_t n_spans) {
  cuda_start(d, soft_kernel<T>, dim3(a.cut.n_units, 1, n_spans), SOFT_THREADS, SOFT_BYTES, a);
}

weft_status head_soften(cuda_device *d, const head_group *group) {
  const weft_weight *w = group->weight;
  uint32_t n_spans = cuda_ceil(group->n_chunks, SPAN_CHUNKS);
  soft_args a;
  a.group = *group;
  a.data = (const uint8_t *)w->data;
  a.cut = form_cut_of(w->type, w->n_in, w->n_out);
  a.n_in = w->n_in;
  switch (w->type) {
    case WEFT_TYPE_F16: launch<WEFT_TYPE_F16>(d, a, n_spans); break;
    case WEFT_TYPE_BF16: launch<WEFT_TYPE_BF16>(d, a, n_spans); break;
    case WEFT_TYPE_Q8_0: launch<WEFT_TYPE_Q8_0>(d, a, n_spans); break;
    case WEFT_TYPE_Q4_0: launch<WEFT_TYPE_Q4_0>(d, a, n_spans); break;
    case WEFT_TYPE_Q5_0: launch<WEFT_TYPE_Q5_0>(d, a, n_spans); break;
    case WEFT_TYPE_MXFP4: launch<WEFT_TYPE_MXFP4>(d, a, n_spans); break;
    case WEFT_TYPE_Q4_K: launch<WEFT_TYPE_Q4_K>(d, a, n_spans); break;
    case WEFT_TYPE_Q5_K: launch<WEFT_TYPE_Q5_K>(d, a, n_spans); break;
    case WEFT_TYPE_Q6_K: launch<WEFT_TYPE_Q6_K>(d, a, n_spans); break;
    default:
      cuda_start(d, soft_f32_kernel, dim3(cuda_ceil(w->n_in, 128), group->n_rows, n_spans), 128, 0, a);
      break;
  }
  weft_status status = cuda_launched(d, "soft embeddings");
  if (status != WEFT_OK) return status;
  cuda_start(d, span_kernel, dim3(cuda_ceil(w->n_in, 256), group->n_rows), 256, 0, a, n_spans);
  return cuda_launched(d, "adding soft embeddings");
}

template <int T>
static weft_status set_up(cuda_device *d) {
  return cuda_judge(
      d, cudaFuncSetAttribute(soft_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, SOFT_BYTES),
      "setting up soft embeddings");
}

weft_status cuda_soft_setup(cuda_device *d) {
  weft_status status = set_up<WEFT_TYPE_F16>(d);
  if (status == WEFT_OK) status = set_up<WEFT_TYPE_BF16>(d);
  if (status == WEFT_OK) status = set_up<WEFT_TYPE_Q8_0>(d);
  if (status == WEFT_OK) status = set_up<WEFT_TYPE_Q4_0>(d);
  if (status == WEFT_OK) status = set_up<WEFT_TYPE_Q5_0>(d);
  if (status == WEFT_OK) status = set_up<WEFT_TYPE_MXFP4>(d);
  if (status == WEFT_OK) status = set_up<WEFT_TYPE_Q4_K>(d);
  if (status == WEFT_OK) status = set_up<WEFT_TYPE_Q5_K>(d);
  return status == WEFT_OK ? set_up<WEFT_TYPE_Q6_K>(d) : status;
}
