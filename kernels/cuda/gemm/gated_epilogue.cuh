/* SPDX-License-Identifier: MIT */
/* GEMM with a gated epilogue (SwiGLU, GeGLU): a warp multiplies half a row tile of the gate and the same half of up's
 * row tile, so that a lane has both numbers of a result act(g) * u in its accumulators, and neither is stored.
 *
 * Of the 16 outputs of a warp's wgmma fragment the first eight are then outputs 8 h .. 8 h + 7 of a row tile of the
 * gate, and the others the same outputs of up: row half 0 of a lane is its row g + 8 h of the gate, row half 1 that of
 * up (packed_layout.cuh names lanes and row halves). A work item is four row tiles of the gate interleaved with those
 * of up: gate, up, gate, up ..; two warps share a pair.
 *
 * Law: an output is the sum over the same inputs in the same order, whichever row half it has, so the result has the
 * bits of act(g) * u of stored sums. */
#ifndef WEFT_KERNELS_CUDA_GATED_EPILOGUE_CUH
#define WEFT_KERNELS_CUDA_GATED_EPILOGUE_CUH

#include "kernels/cuda/gemm/pipeline.cuh"
#include "kernels/cuda/moe/limited_gate.cuh"

/* Half `half` of a row tile of the gate, and of up's, which lies `up` bytes behind it in shared memory. */
typedef struct gated_tiles {
  uint32_t up, half;
} gated_tiles;

/* Those of a warp; w_tile: bytes of a row tile in a stage. */
static __device__ __forceinline__ gated_tiles gated_tiles_of(uint32_t warp, uint32_t w_tile) {
  return {w_tile, warp % 2};
}

/* load_codes. p: the block of the gate's row tile. */
template <int T>
static __device__ __forceinline__ void load_codes_gated(const packed_block &p, const gated_tiles &tiles, uint32_t lane,
                                                        lane_codes<T> &out) {
  constexpr int bits = packed_bits(T), n = lane_codes<T>::N;
#pragma unroll
  for (int i = 0; i < n; i++) {
    const uint8_t *codes = p.codes + (i % 2 == 0 ? 0 : tiles.up);
    if (bits == 4 && p.tail) {
      uint2 v = *(const uint2 *)(const void *)(codes + tiles.half * 256 + lane * 8);
      out.code[i] = make_uint4(v.x, v.y, 0, 0);
    } else if (p.tail && i >= n / 2) {
      out.code[i] = make_uint4(0, 0, 0, 0);
    } else {
      out.code[i] = *(const uint4 *)(const void *)(codes + ((uint32_t)i / 2 * 2 + tiles.half) * 512 + lane * 16);
    }
  }
  if constexpr (packed_shape_of(T).high > 0) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const uint8_t *high = p.high + (r == 0 ? 0 : tiles.up);
      if (T == WEFT_TYPE_Q6_K) {
        uint2 v = *(const uint2 *)(const void *)(high + lane * 16 + tiles.half * 8);
        out.high[2 * r] = v.x, out.high[2 * r + 1] = v.y;
      } else if (p.tail) {
        uint32_t v = *(const uint16_t *)(const void *)(high + lane * 4 + tiles.half * 2);
        out.high[r] = (v & 0xFFu) | (v & 0xFF00u) << 8;
      } else {
        out.high[r] = *(const uint32_t *)(const void *)(high + lane * 8 + tiles.half * 4);
      }
    }
  }
}

/* load_scales, of the types that W8A8 products have (w8a8_takes). */
template <int T>
static __device__ __forceinline__ void load_scales_gated(const packed_block &p, const gated_tiles &tiles, uint32_t g,
                                                         uint32_t c, lane_scales<T> &out) {
  uint32_t row = g + 8 * tiles.half, word[2];
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const uint8_t *scales = p.scales + (r == 0 ? 0 : tiles.up);
    if constexpr (packed_is_k(T)) {
      out.row[r] = *(const uint4 *)(const void *)(scales + row * 16);
    } else if constexpr (T == WEFT_TYPE_Q6_K) {
      word[r] = *(const uint16_t *)(const void *)(scales + row * 16 + 8 * p.half + 2 * c);
      (r == 0 ? out.row[0].z : out.row[0].w) = *(const uint16_t *)(const void *)(scales + 256 + row * 2);
    } else {
      uint32_t at = p.tail ? g * 8 + c / 2 * 4 : (g * 4 + c) * 4;
      word[r] = *(const uint16_t *)(const void *)(scales + at + tiles.half * 2);
    }
  }
  if constexpr (T == WEFT_TYPE_Q6_K) {
    out.row[0].x = word[0], out.row[0].y = word[1];
  } else if constexpr (!packed_is_k(T)) {
    out.row[0].x = word[0] | word[1] << 16;
  }
}

/* Row tile `own` of an item whose pairs begin at row tile `tile`, where the call counts gate and up in turns. Beyond
 * the last pair it names one that does not exist (weight_tile of pipeline.cuh). */
static __device__ __forceinline__ weight_tile find_gated_tile(const gemm_args &a, uint32_t tile, uint32_t own) {
  uint32_t pair = (tile + own) / 2, n_pairs = tiles_of(a) / 2;
  if (a.n_weights == 2) return {own % 2, pair};
  return {0, pair + own % 2 * n_pairs};
}

/* Stores act(g) * u of a warp's sums with rows [first, first + n). out: the lane's output. scale: of gate and up.
 * WHOLE: all rows and outputs exist, and no number needs a condition. */
template <int N, bool WHOLE>
static __device__ __forceinline__ void store_gated_rows(const gemm_args &a, uint32_t out, uint32_t first, uint32_t n,
                                                        const float (&scale)[2], const float (&sums)[N][4]) {
  const gemm_weight &weight = a.weight[0];
  const uint32_t row = threadIdx.x % 4 * 2;
  float *y = weight.y + (uint64_t)(first + row) * weight.y_stride + out;
#pragma unroll
  for (int i = 0; i < N; i++, y += 8 * weight.y_stride) {
#pragma unroll
    for (uint32_t j = 0; j < 2; j++) {
      float g = __fmul_rn(sums[i][j], scale[0]), u = __fmul_rn(sums[i][j + 2], scale[1]);
      if (WHOLE || (8 * i + row + j < n && out < weight.n_out))
        y[j * weight.y_stride] = limited_gate(a.activation, a.limit, g, u);
    }
  }
}

/* Those of an item's warp. */
template <int N>
static __device__ __forceinline__ void run_gated_epilogue(const gemm_args &a, const work_item &item,
                                                          const float (&sums)[N][4]) {
  uint32_t warp = threadIdx.x / 32, own = (item.tile / 2 + warp / 2) * 16 + warp % 2 * 8;
  uint32_t out = own + threadIdx.x % 32 / 4;
  const float scale[2] = {scale_of(a.weight[0], item.matrix), scale_of(a.weight[a.n_weights - 1], item.matrix)};
  if (item.n == 8 * N && own + 8 <= a.weight[0].n_out)
    store_gated_rows<N, true>(a, out, item.first, item.n, scale, sums);
  else
    store_gated_rows<N, false>(a, out, item.first, item.n, scale, sums);
}

#endif
