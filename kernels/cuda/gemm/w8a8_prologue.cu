/* SPDX-License-Identifier: MIT */
/* The W8A8 prologue (w8a8.h): rows are quantised to int8, with act(g) * u as input where they are gated. And the
 * quantisation steps of weights, when these are placed. */
#include "kernels/cuda/gemm/w8a8.cuh"
#include "kernels/cuda/weights/packed_element.cuh"
#include "kernels/cuda/gemm/gemv.cuh"
#include "kernels/cuda/moe/limited_gate.cuh"

enum { W8A8_LANES = 16, W8A8_PROLOGUE_THREADS = 256 };

/* Sixteen numbers of a row that lie side by side after the prologue: four runs of four inputs, whose starts are
 * `step` inputs apart. */
typedef struct w8a8_piece {
  float v[16];
} w8a8_piece;

/* Inputs k .. k + 3 of the row. */
static __device__ __forceinline__ float4 load_four(const prologue_args &a, const float *x, uint32_t k) {
  if (a.wide) return *(const float4 *)(const void *)(x + k);
  float v[4];
#pragma unroll
  for (uint32_t e = 0; e < 4; e++) v[e] = k + e < a.n_in ? x[k + e] : 0.0f;
  return make_float4(v[0], v[1], v[2], v[3]);
}

template <bool GATED>
static __device__ __forceinline__ w8a8_piece load_w8a8_piece(const prologue_args &a, const float *x, uint32_t first,
                                                             uint32_t step) {
  w8a8_piece piece;
  float4 g[4], u[4];
#pragma unroll
  for (uint32_t c = 0; c < 4; c++) {
    g[c] = load_four(a, x, first + c * step);
    if (!GATED) continue;
    u[c] = a.wide ? *(const float4 *)(const void *)(x + a.up_at + first + c * step) : make_float4(0, 0, 0, 0);
    if (a.wide) continue;
    float *to = &u[c].x;
    for (uint32_t e = 0; e < 4; e++) to[e] = first + c * step + e < a.n_in ? x[a.up_at + first + c * step + e] : 0.0f;
  }
#pragma unroll
  for (uint32_t i = 0; i < 16; i++) {
    float own = (&g[i / 4].x)[i % 4];
    piece.v[i] = GATED ? limited_gate(a.activation, a.limit, own, (&u[i / 4].x)[i % 4]) : own;
  }
  return piece;
}

/* Stores words of four int8 at every `step` bytes. */
static __device__ __forceinline__ void store_strided(uint8_t *to, uint32_t step, const uint4 &bytes) {
  *(uint32_t *)(void *)to = bytes.x;
  *(uint32_t *)(void *)(to + step) = bytes.y;
  *(uint32_t *)(void *)(to + 2 * step) = bytes.z;
  *(uint32_t *)(void *)(to + 3 * step) = bytes.w;
}

/* Sixteen lanes take a span of a row. */
template <bool GATED>
static __global__ void __launch_bounds__(W8A8_PROLOGUE_THREADS)
    w8a8_prologue_kernel(const __grid_constant__ prologue_args a, uint32_t n_spans) {
  launch_dependents_and_wait();
  uint64_t own = ((uint64_t)blockIdx.x * W8A8_PROLOGUE_THREADS + threadIdx.x) / W8A8_LANES;
  uint32_t lane = threadIdx.x % W8A8_LANES, lanes = 0xFFFFu << (threadIdx.x & 16u);
  uint64_t r = own / n_spans;
  uint32_t span = (uint32_t)(own % n_spans), unit = 2 * span + lane / 8, p = lane % 8;
  if (r >= a.n_rows) return;
  const int32_t *at = a.at == NULL ? NULL : a.at + r * a.k;
  if (a.from_place) {
    if (*at < 0) return;
    r = (uint64_t)*at;
  }
  bool tail = a.is_tail != 0 && unit + 1 == a.n_units, exists = unit < a.n_units && !(tail && p >= 4);
  w8a8_piece piece = {};
  if (exists)
    piece = load_w8a8_piece<GATED>(a, a.x + r * a.x_stride, 128 * unit + p / 2 * 8 + p % 2 * 4, tail ? 16 : 32);
  uint32_t most = 0;
#pragma unroll
  for (int i = 0; i < 16; i++) most = max(most, __float_as_uint(piece.v[i]) & 0x7FFFFFFFu);
#pragma unroll
  for (int step = W8A8_LANES / 2; step > 0; step /= 2) most = max(most, __shfl_xor_sync(lanes, most, step));
  float inverse, scale = w8a8_scale(most, &inverse);
  uint4 bytes = make_uint4(w8a8_bytes(piece.v, inverse), w8a8_bytes(piece.v + 4, inverse),
                           w8a8_bytes(piece.v + 8, inverse), w8a8_bytes(piece.v + 12, inverse));
  float *scales = (float *)(void *)(a.out + w8a8_scales_at(n_spans, a.n_tiles));
  for (uint32_t j = 0; j < (at == NULL ? 1 : a.k); j++) {
    int64_t place = at == NULL ? (int64_t)r : at[j];
    if (place < 0) continue;
    if (!a.is_tiled) {
      uint8_t *to = a.out + (uint64_t)place * n_spans * W8A8_SPAN + 128 * unit + 4 * p;
      if (exists) store_strided(to, tail ? 16 : 32, bytes);
      if (lane == 0) scales[(uint64_t)place * n_spans + span] = scale;
      continue;
    }
    *(uint4 *)(void *)(a.out + w8a8_at(a.n_tiles, unit, (uint32_t)place, p)) = bytes;
    if (lane == 0) scales[(uint64_t)span * a.n_tiles * 8 + place] = scale;
  }
}

weft_status w8a8_prologue(cuda_device *d, const prologue_args *args) {
  prologue_args a = *args;
  uint32_t n_spans = cuda_ceil(a.n_in, W8A8_SPAN);
  a.wide = ((uintptr_t)a.x & 15u) == 0 && a.x_stride % 4 == 0 && a.n_in % 4 == 0 && a.up_at % 4 == 0 &&
           (a.n_in % 128 == 0 || (a.n_in % 128 == 64 && a.is_tail != 0));
  uint64_t n_threads = (uint64_t)a.n_rows * n_spans * W8A8_LANES;
  uint32_t n_blocks = (uint32_t)((n_threads + W8A8_PROLOGUE_THREADS - 1) / W8A8_PROLOGUE_THREADS);
  cuda_start(d, a.gated ? w8a8_prologue_kernel<true> : w8a8_prologue_kernel<false>, n_blocks, W8A8_PROLOGUE_THREADS, 0,
             a, n_spans);
  return cuda_launched(d, "preparing rows in 8 bits");
}

/* ---- steps ----------------------------------------------------------------------------------------------- */

typedef struct steps_args {
  int type;
  packed_dims dims;
  uint32_t n_in, n_spans;
  const uint8_t *tiles;
  uint8_t *steps;
} steps_args;

/* A block takes a row tile; a warp takes the spans of one of its rows, one after another. A step is rounded up, so that
 * no integer leaves its range. */
static __global__ void __launch_bounds__(512) w8a8_steps_kernel(const steps_args a) {
  uint32_t row = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint8_t *tile = a.tiles + (uint64_t)blockIdx.x * a.dims.tile_bytes;
  for (uint32_t span = 0; span < a.n_spans; span++) {
    uint32_t most = 0;
    for (uint32_t k = span * W8A8_SPAN + lane; k < min(a.n_in, (span + 1) * W8A8_SPAN); k += 32) {
      float value = element_value(a.type, value_table{}, element_at(a.type, a.dims, tile, row, k));
      most = max(most, __float_as_uint(value) & 0x7FFFFFFFu);
    }
    most = __reduce_max_sync(0xFFFFFFFFu, most);
    if (lane != 0) continue;
    uint32_t bits = __float_as_uint(__fdiv_ru(__uint_as_float(most), 126.0f));
    uint32_t up = most >= 0x7F800000u ? 0x7FC0u : (bits + 0xFFFFu) >> 16;
    if (__uint_as_float(most) < W8A8_MIN_MAGNITUDE) up = 0;
    *(uint16_t *)(void *)(a.steps + ((uint64_t)blockIdx.x * a.n_spans + span) * W8A8_STEPS_BYTES + 2 * row) =
        (uint16_t)up;
  }
}

uint64_t w8a8_steps_at(uint64_t n_tiles, uint32_t tile_bytes) {
  return cuda_align(PACKED_HEADER_BYTES + n_tiles * tile_bytes);
}

uint64_t w8a8_steps_bytes(uint64_t n_tiles, uint32_t n_in) {
  return n_tiles * cuda_ceil(n_in, W8A8_SPAN) * W8A8_STEPS_BYTES;
}

weft_status w8a8_make_steps(cuda_device *d, const weft_weight *weight, uint8_t *data) {
  steps_args a;
  a.type = weight->type;
  a.dims = packed_dims_of(weight->type, weight->n_in, weight->n_out);
  a.n_in = weight->n_in;
  a.n_spans = cuda_ceil(weight->n_in, W8A8_SPAN);
  uint32_t n_tiles = weight->n_mats * a.dims.n_tiles;
  a.tiles = data + PACKED_HEADER_BYTES;
  a.steps = data + w8a8_steps_at(n_tiles, a.dims.tile_bytes);
  w8a8_steps_kernel<<<n_tiles, 512, 0, d->stream>>>(a);
  return cuda_launched(d, "the steps of a weight");
}
