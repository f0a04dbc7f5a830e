/* SPDX-License-Identifier: MIT */
/* What the products of more than a few rows share: places in rings of shared memory, what a lane holds of a stage of
 * weights, and how results are written. */
#ifndef WEFT_KERNELS_CUDA_RINGS_CUH
#define WEFT_KERNELS_CUDA_RINGS_CUH

#include "kernels/cuda/multiply.h"
#include "kernels/cuda/wgmma.cuh"

/* Where one is in a ring of n stages; turn: the parity of its barrier. */
typedef struct ring_cursor {
  uint32_t slot, turn;
} ring_cursor;

static __device__ __forceinline__ void step_on(ring_cursor &c, uint32_t n) {
  if (++c.slot == n) c.slot = 0, c.turn ^= 1;
}

/* The weight's last unit, which holds 64 inputs. */
template <int T>
static __device__ __forceinline__ bool is_tail_of(const multiply_args &a, uint32_t unit) {
  return form_of(T).unit == 128 && a.is_tail != 0 && unit + 1 == a.n_units;
}

/* Bytes of a row tile's weights from `unit` on that make a stage. */
template <int T>
static __device__ __forceinline__ uint32_t stage_bytes(const multiply_args &a, uint32_t unit) {
  return is_tail_of<T>(a, unit) ? form_unit_bytes(form_of(T)) / 2 : form_unit_bytes(form_of(T));
}

/* What a lane holds of a stage of weights: codes of 128 inputs, and scales: of all, or of these (Q6_K). */
template <int T>
struct lane_unit {
  lane_codes<T> codes;
  lane_scales<T> scales;
};

/* 128 inputs `u` of a row tile's stage. */
template <int T>
static __device__ __forceinline__ void load_unit(const uint8_t *stage, uint32_t u, bool tail, lane_unit<T> &own) {
  form_place p = place_of<T>(stage, u, tail);
  uint32_t lane = threadIdx.x % 32;
  load_codes<T>(p, lane, own.codes);
  if (u == 0 || T == WEFT_TYPE_Q6_K) load_scales<T>(p, lane / 4, lane % 4, own.scales);
}

/* Whether four results may be written at once. */
static __device__ __forceinline__ bool takes_four(const multiply_weight &weight) {
  return weight.n_out % 4 == 0 && weight.y_stride % 4 == 0 && ((uintptr_t)weight.y & 15u) == 0;
}

/* Results out .. out + 3, as far as they exist, to y: what was prepared and raised is undone. */
static __device__ __forceinline__ void put_four(const multiply_weight &weight, float *y, uint32_t out, bool wide, float4 v, float back,
                                                float down) {
  v.x = __fmul_rn(__fmul_rn(v.x, back), down);
  v.y = __fmul_rn(__fmul_rn(v.y, back), down);
  v.z = __fmul_rn(__fmul_rn(v.z, back), down);
  v.w = __fmul_rn(__fmul_rn(v.w, back), down);
  if (wide) {
    *(float4 *)(void *)y = v;
  } else {
    y[0] = v.x;
    if (out + 1 < weight.n_out) y[1] = v.y;
    if (out + 2 < weight.n_out) y[2] = v.z;
    if (out + 3 < weight.n_out) y[3] = v.w;
  }
}

#endif
