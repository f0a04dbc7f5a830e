/* SPDX-License-Identifier: MIT */
/* act(g) * u with a limit (kernels/experts.h): one text, so that the gate op and the experts agree in their bits. */
#ifndef WEFT_KERNELS_CUDA_LIMITED_GATE_CUH
#define WEFT_KERNELS_CUDA_LIMITED_GATE_CUH

#include "kernels/cuda/common.cuh"

/* limit 0: none. Comparisons, and no minimum, so that what is no number stays none. */
static __device__ __forceinline__ float limited_gate(weft_activation activation, float limit, float g, float u) {
  if (limit > 0.0f) {
    g = g > limit ? limit : g;
    u = u > limit ? limit : u;
    u = u < -limit ? -limit : u;
  }
  return gate_product(activation, g, u);
}

/* Any gate, of what the biases at index `at` were added to. */
static __device__ __forceinline__ float limited_biased_gate(weft_activation activation, float limit, float g, float u,
                                                            const float *gate_bias, const float *up_bias, uint64_t at) {
  if (limit == 0.0f) return biased_gate(activation, g, u, gate_bias, up_bias, at);
  if (gate_bias != NULL) g = __fadd_rn(g, gate_bias[at]), u = __fadd_rn(u, up_bias[at]);
  return limited_gate(activation, limit, g, u);
}

#endif
