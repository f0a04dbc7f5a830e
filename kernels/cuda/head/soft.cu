/* SPDX-License-Identifier: MIT */
/* Soft embeddings, probabilities times the embedding, as a split-K GEMM over the vocabulary: soft[r] = factor * sum
 * over v of weight[r][v] W[v]. The numerics are in head.h.
 *
 *   soft_weights_kernel   the prologue: makes the weights of the tokens in 16 bits, as the tensor cores read them
 *   soft_kernel           the GEMM: a block adds a span of the vocabulary for 256 columns of the embedding and 128
 *                         rows
 *   soft_reduce_kernel    the split-K reduction: adds the spans, ascending, and multiplies by the row's factor
 *
 * In soft_kernel a step is 64 tokens. Eight warps have 32 columns each and make products with the transposed embedding
 * as the operand in registers (soft.cuh). How a step comes to them is of the kernel set: soft_product.cuh.
 *
 * Tokens are assigned to the four products x of a step so that the rows which ldmatrix transposes together lie in
 * different banks. The weights have that order too:
 *   [step of 64 tokens][x < 4][8 rows][h < 2][row % 8][tile < 4][tokens 8 h + 2 x, + 1];  F32: [row][token] */
#ifdef WEFT_CUDA_PORTABLE
#include "kernels/cuda/portable/soft_product.cuh"
#else
#include "kernels/cuda/head/soft_product.cuh"
#endif

enum { CHUNK = WEFT_VOCAB_CHUNK };

/* ---- weights of tokens ---------------------------------------------------------------------------------- */

/* Turns logits of a row into weights (head.h); tokens that are not allowed weigh 0. The tokens come in pairs: v[i] and
 * v[i] + 1. */
template <bool WHOLE, int N>
static __device__ __forceinline__ void weigh_tokens(const head_group &g, uint32_t r, const uint32_t *mask,
                                                    const uint32_t *v, float (&weight)[N]) {
  row_stat s = g.rows[r];
  float steep = steepness_of(g, r);
  cap_logits(g, weight);
#pragma unroll
  for (int i = 0; i < N; i++) {
    bool ok = s.factor != 0.0f && (allowed_bits<WHOLE>(g, mask, v[i / 2]) >> i % 2 & 1u) != 0;
    float w = power_of_2(__fmaf_rn(weight[i] - s.most, steep, (float)SOFT_SCALE_EXPONENT));
    weight[i] = ok ? w : 0.0f;
  }
}

/* A warp makes the weights of a step for 8 rows. A lane has one row and the tokens of one product x: of each of the
 * four row tiles, those of row halves h = 0 and 1. */
template <bool BF16, bool WHOLE>
static __device__ __forceinline__ void weigh_step(const head_group &g, uint32_t r, const uint32_t *mask,
                                                  uint32_t step) {
  uint32_t x = threadIdx.x % 32 / 8, v[2][SOFT_TILES];
  float weight[2][2 * SOFT_TILES];
#pragma unroll
  for (uint32_t i = 0; i < 2 * SOFT_TILES; i++) {
    uint32_t h = i / SOFT_TILES, t = i % SOFT_TILES;
    v[h][t] = step * SOFT_TOKENS + t * 16 + h * 8 + 2 * x;
    load_logits<WHOLE, 2>(g, g.logits + (uint64_t)r * g.logits_stride, v[h][t], weight[h] + 2 * t);
  }
#pragma unroll
  for (uint32_t h = 0; h < 2; h++) {
    weigh_tokens<WHOLE>(g, r, mask, v[h], weight[h]);
    uint64_t row_block = (uint64_t)(r / HEAD_ROWS) * g.n_chunks * (CHUNK / SOFT_TOKENS),
             at = (((row_block + step) * 4 + x) * (HEAD_ROWS / 8) + r % HEAD_ROWS / 8) * 2 + h;
    ((uint4 *)g.weights)[at * 8 + r % 8] = pack_f16x8<BF16>(weight[h]);
  }
}

/* A block makes the weights of 8 rows x 512 tokens. */
template <bool BF16>
static __global__ void __launch_bounds__(256) soft_weights_kernel(const __grid_constant__ head_group g) {
  launch_dependents_and_wait();
  uint32_t r = blockIdx.y * 8 + threadIdx.x % 8, step = blockIdx.x * (CHUNK / SOFT_TOKENS) + threadIdx.x / 32;
  if (r >= g.n_rows || (g.want != NULL && g.want[r] == 0)) return;
  const uint32_t *mask = mask_of(g, r);
  if (is_whole(g, mask, blockIdx.x))
    weigh_step<BF16, true>(g, r, mask, step);
  else
    weigh_step<BF16, false>(g, r, mask, step);
}

static __global__ void __launch_bounds__(128) soft_weights_f32_kernel(const __grid_constant__ head_group g) {
  launch_dependents_and_wait();
  uint32_t v = (blockIdx.x * 128 + threadIdx.x) * 2, r = blockIdx.y;
  if (v >= g.n_chunks * CHUNK) return;
  float weight[2];
  load_logits<false, 2>(g, g.logits + (uint64_t)r * g.logits_stride, v, weight);
  weigh_tokens<false>(g, r, mask_of(g, r), &v, weight);
  float *out = (float *)g.weights + (uint64_t)r * g.n_chunks * CHUNK + v;
  out[0] = weight[0], out[1] = weight[1];
}

/* ---- spans ---------------------------------------------------------------------------------------------- */

static __device__ __forceinline__ void store_soft(const soft_args &a, uint32_t r, uint32_t column, float sum,
                                                  float down) {
  if (r >= a.group.n_rows || column >= a.n_in || (a.group.want != NULL && a.group.want[r] == 0)) return;
  float factor = a.group.rows[r].factor;
  a.group.soft[r * a.group.soft_stride + column] = factor == 0.0f ? 0.0f : __fmul_rn(__fmul_rn(sum, down), factor);
}

/* A thread adds, over all spans, four sums of the same thread of soft_kernel. */
template <int T>
static __global__ void __launch_bounds__(256) soft_reduce_kernel(const __grid_constant__ soft_args a) {
  launch_dependents_and_wait();
  uint32_t at = blockIdx.y, warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4;
  uint32_t first = soft_row_block(a) * HEAD_ROWS + at % 16 * 8, r = first + threadIdx.x % 4 * 2;
  const float4 *in = (const float4 *)a.group.spans + ((uint64_t)blockIdx.x * SOFT_SUMS + at) * 256 + threadIdx.x;
  float down = ldexpf(1.0f, -SOFT_SCALE_EXPONENT - prescale_exponent(T, (const packed_header *)(const void *)a.data));
  float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  if (first >= a.group.n_rows) return;
  for (uint32_t span = 0; span < a.n_spans; span++) {
    float4 v = in[(uint64_t)span * gridDim.x * SOFT_SUMS * 256];
    sum.x = __fadd_rn(sum.x, v.x);
    sum.y = __fadd_rn(sum.y, v.y);
    sum.z = __fadd_rn(sum.z, v.z);
    sum.w = __fadd_rn(sum.w, v.w);
  }
  uint32_t block = soft_columns_at(a) * 256 + warp * 32, low = block + transposed_column<T>(at / 16, 0, g),
           high = block + transposed_column<T>(at / 16, 1, g);
  store_soft(a, r, low, sum.x, down);
  store_soft(a, r + 1, low, sum.y, down);
  store_soft(a, r, high, sum.z, down);
  store_soft(a, r + 1, high, sum.w, down);
}

/* F32: a thread per column; a chunk's tokens ascending from 0, chunks ascending. */
static __global__ void soft_f32_kernel(const __grid_constant__ soft_args a) {
  launch_dependents_and_wait();
  uint32_t i = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y;
  if (i >= a.n_in) return;
  const float *matrix = (const float *)(const void *)(a.data + PACKED_HEADER_BYTES);
  const float *weights = (const float *)a.group.weights + (uint64_t)r * a.group.n_chunks * CHUNK;
  float all = 0.0f;
  for (uint32_t chunk = 0; chunk < a.group.n_chunks; chunk++) {
    float sum = 0.0f;
    uint32_t last = min((chunk + 1) * CHUNK, a.group.n_vocab);
    for (uint32_t v = chunk * CHUNK; v < last; v++) sum = __fmaf_rn(weights[v], matrix[(uint64_t)v * a.n_in + i], sum);
    all = __fadd_rn(all, sum);
  }
  store_soft(a, r, i, all, ldexpf(1.0f, -SOFT_SCALE_EXPONENT));
}

/* ---- launches ------------------------------------------------------------------------------------------- */

void soft_cut(cuda_cutter *cutter, uint32_t n_rows, head_group *group) {
  uint64_t n_tokens = (uint64_t)group->n_chunks * CHUNK, n_columns = cuda_ceil(group->weight->n_in, 256);
  if (group->weight->type == WEFT_TYPE_F32) {
    group->weights = cuda_cut(cutter, n_rows * n_tokens * 4);
    return;
  }
  uint64_t n_row_blocks = cuda_ceil(n_rows, HEAD_ROWS);
  group->weights = cuda_cut(cutter, n_row_blocks * HEAD_ROWS * n_tokens * 2);
  group->spans = (float *)cuda_cut(cutter, n_row_blocks * SPANS_MAX * n_columns * SOFT_SUMS * 256 * sizeof(float4));
}

template <int T>
static weft_status launch_soft(cuda_device *d, const soft_args &a) {
  const head_group &g = a.group;
  uint32_t n_columns = cuda_ceil(a.n_in, 256) * a.n_row_blocks;
  cuda_start(d, soft_weights_kernel<packed_is_bf16(T)>, dim3(g.n_chunks, cuda_ceil(g.n_rows, 8)), 256, 0, g);
  weft_status status = cuda_launched(d, "weights of tokens");
  if (status != WEFT_OK) return status;
  cuda_start(d, soft_kernel<T>, dim3(n_columns, a.n_spans), SOFT_THREADS, soft_shape<T>::bytes, a);
  status = cuda_launched(d, "soft embeddings");
  if (status != WEFT_OK) return status;
  cuda_start(d, soft_reduce_kernel<T>, dim3(n_columns, SOFT_SUMS), 256, 0, a);
  return cuda_launched(d, "adding soft embeddings");
}

static weft_status launch_f32(cuda_device *d, const soft_args &a) {
  const head_group &g = a.group;
  cuda_start(d, soft_weights_f32_kernel, dim3(cuda_ceil(g.n_chunks * CHUNK, 256), g.n_rows), 128, 0, g);
  weft_status status = cuda_launched(d, "weights of tokens");
  if (status != WEFT_OK) return status;
  cuda_start(d, soft_f32_kernel, dim3(cuda_ceil(a.n_in, 128), g.n_rows), 128, 0, a);
  return cuda_launched(d, "soft embeddings");
}

weft_status head_soften(cuda_device *d, const head_group *group) {
  const weft_weight *w = group->weight;
  uint32_t span_chunks = cuda_ceil(group->n_chunks, SPANS_MAX);
  soft_args a;
  a.group = *group;
  a.data = (const uint8_t *)w->data;
  a.dims = packed_dims_of(w->type, w->n_in, w->n_out);
  a.values = value_table_of(w->type);
  a.n_in = w->n_in;
  a.n_steps = cuda_ceil(w->n_out, SOFT_TOKENS);
  a.span_steps = span_chunks * (CHUNK / SOFT_TOKENS);
  a.n_spans = cuda_ceil(group->n_chunks, span_chunks);
  a.n_row_blocks = cuda_ceil(group->n_rows, HEAD_ROWS);
  a.weights_bytes = (uint64_t)group->n_chunks * CHUNK * HEAD_ROWS * 2;
  if (packed_shape_of(w->type).codes == 0) return launch_f32(d, a);
  return dispatch_packed_type(w->type, [&](auto type) { return launch_soft<decltype(type)::value>(d, a); });
}

#ifndef WEFT_CUDA_PORTABLE
template <int T>
static weft_status set_up(cuda_device *d) {
  return cuda_judge(
      d, cudaFuncSetAttribute(soft_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)soft_shape<T>::bytes),
      "setting up soft embeddings");
}

weft_status head_soften_setup(cuda_device *d) {
  return each_packed_type([&](auto type) { return set_up<decltype(type)::value>(d); });
}
#endif
