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

#endif
