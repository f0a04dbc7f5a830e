/* SPDX-License-Identifier: MIT */
#include "kernels/cuda/weights/int8_weights.h"

#include "kernels/canvas_head.h"
#include "kernels/cuda/gemm/w8a8.cuh"
#include "kernels/cuda/head/soft_integers.h"

typedef struct make_args {
  packed_dims dims;
  uint32_t n_spans, n_blocks; /* of a matrix */
  const uint8_t *tiles, *steps;
  uint8_t *int8_weights;
  float *fine_steps;
} make_args;

/* A warp takes a row tile and a span. The tile's columns are those of 16 outputs of a block. */
template <int T>
static __global__ void __launch_bounds__(32) int8_weights_kernel(const make_args a) {
  const uint32_t lane = threadIdx.x, g = lane / 4, c = lane % 4, span = blockIdx.y;
  const uint32_t matrix = blockIdx.x / a.dims.n_tiles, tile = blockIdx.x % a.dims.n_tiles;
  const uint64_t block = (uint64_t)matrix * a.n_blocks + tile / 4;
  const uint16_t *steps =
      (const uint16_t *)(const void *)(a.steps + ((uint64_t)blockIdx.x * a.n_spans + span) * W8A8_STEPS_BYTES);
  float step[2], over[2];
  for (uint32_t r = 0; r < 2; r++) {
    step[r] = __uint_as_float((uint32_t)steps[g + 8 * r] << 16), over[r] = inverse_of(step[r]);
    if (c == 0) a.fine_steps[(block * a.n_spans + span) * INT8_BLOCK + tile % 4 * 16 + g + 8 * r] = step[r];
  }
  for (uint32_t unit = 2 * span; unit < 2 * span + 2; unit++) {
    uint8_t *to = a.int8_weights + (block * a.n_spans * 2 + unit) * INT8_UNIT_BYTES + tile % 4 * 16 * 128;
    if (unit >= a.dims.n_units) {
      for (uint32_t i = lane; i < 16 * 128 / 16; i += 32) ((uint4 *)(void *)to)[i] = make_uint4(0, 0, 0, 0);
      continue;
    }
    packed_block p = packed_block_of<T>(a.tiles + (uint64_t)blockIdx.x * a.dims.tile_bytes, unit,
                                        a.dims.is_tail != 0 && unit + 1 == a.dims.n_units);
    lane_codes<T> codes;
    lane_scales<T> scales;
    dequant_factors factors;
    load_codes<T>(p, lane, codes);
    load_scales<T>(p, g, c, scales);
    w8a8_factors<T>(scales, unit % 2, c, over, factors);
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
      uint32_t words[4];
      requantise_operands<T>(codes, factors, (int)i, words);
#pragma unroll
      for (uint32_t j = 0; j < 4; j++) { /* row half j % 2, half j / 2 of the 32 inputs */
        uint32_t o = g + 8 * (j % 2), column = o / 2 % 2 * 8 + o / 4 * 2 + o % 2, piece = 2 * i + j / 2;
        *(uint32_t *)(void *)(to + column * 128 + (piece ^ column % 8) * 16 + 4 * c) = words[j];
      }
    }
  }
}

int8_sections int8_sections_of(const weft_weight *weight) {
  packed_dims dims = packed_dims_of(weight->type, weight->n_in, weight->n_out);
  uint64_t n_tiles = (uint64_t)weight->n_mats * dims.n_tiles;
  uint64_t n_blocks = (uint64_t)weight->n_mats * cuda_ceil(weight->n_out, INT8_BLOCK);
  const uint32_t n_spans = cuda_ceil(weight->n_in, W8A8_SPAN);
  int8_sections place;
  place.int8_weights = cuda_align(w8a8_steps_at(n_tiles, dims.tile_bytes) + w8a8_steps_bytes(n_tiles, weight->n_in));
  place.steps = place.int8_weights + n_blocks * n_spans * 2 * INT8_UNIT_BYTES;
  place.end = place.steps + n_blocks * n_spans * INT8_BLOCK * sizeof(float);
  return place;
}

uint64_t int8_weights_bytes(const weft_weight *weight, unsigned uses) {
  const weft_type_info *type = weft_type_find((int32_t)weight->type);
  if (type == NULL || weft_keeps_numbers(uses) || !w8a8_takes(type->held_as)) return 0;
  weft_weight held = *weight;
  held.type = type->held_as;
  int8_sections place = int8_sections_of(&held);
  uint64_t soft = (uses & WEFT_USE_CANVASES) != 0 ? soft_sections_behind(&held, 0).end : 0;
  return place.end - place.int8_weights + soft;
}

template <int T>
static weft_status make_of_type(cuda_device *d, const make_args &a, uint32_t n_tiles) {
  if constexpr (w8a8_takes(T)) {
    int8_weights_kernel<T><<<dim3(n_tiles, a.n_spans), 32, 0, d->stream>>>(a);
    return cuda_launched(d, "the integers of a weight");
  }
  return WEFT_E_UNSUPPORTED;
}

weft_status int8_weights_make(cuda_device *d, const weft_weight *weight, uint8_t *data) {
  int8_sections place = int8_sections_of(weight);
  make_args a;
  a.dims = packed_dims_of(weight->type, weight->n_in, weight->n_out);
  a.n_spans = cuda_ceil(weight->n_in, W8A8_SPAN);
  a.n_blocks = cuda_ceil(weight->n_out, INT8_BLOCK);
  uint32_t n_tiles = weight->n_mats * a.dims.n_tiles;
  a.tiles = data + PACKED_HEADER_BYTES;
  a.steps = data + w8a8_steps_at(n_tiles, a.dims.tile_bytes);
  a.int8_weights = data + place.int8_weights;
  a.fine_steps = (float *)(void *)(data + place.steps);
  if (a.dims.n_tiles % 4 != 0) { /* the last block of a matrix has columns that do not exist */
    cudaError_t error = cudaMemsetAsync(data + place.int8_weights, 0, place.end - place.int8_weights, d->stream);
    if (error != cudaSuccess) return cuda_judge(d, error, "the integers of a weight");
  }
  return dispatch_packed_type(weight->type,
                              [&](auto type) { return make_of_type<decltype(type)::value>(d, a, n_tiles); });
}
