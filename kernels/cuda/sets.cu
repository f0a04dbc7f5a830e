/* SPDX-License-Identifier: MIT */
/* The kernel sets that this module has, in the order in which a card is offered them. */
#include "kernels/cuda/attention/attention.cuh"
#include "kernels/cuda/gemm/w8a8.h"
#include "kernels/cuda/head/head.h"
#include "kernels/cuda/moe/experts_gemv.h"
#include "kernels/cuda/moe/route.h"
#include "kernels/cuda/set.h"
#include "kernels/cuda/weights/int8_weights.h"

/* wgmma and setmaxnreg are of compute capability 9.0 alone. */
static bool fits_hopper(uint32_t capability) {
  return capability == 90;
}

static weft_status set_up_hopper(cuda_device *d) {
  weft_status status = cuda_gemm_setup(d);
  if (status == WEFT_OK) status = cuda_attention_setup(d);
  if (status == WEFT_OK) status = cuda_soft_setup(d);
  return status == WEFT_OK ? route_setup(d) : status;
}

extern const cuda_set cuda_sets[CUDA_SETS] = {
    {{"hopper", "sm_90", fits_hopper},
     " matmul attention route experts head_stats head_rows soft sample ",
     set_up_hopper,
     gemv,
     gemm_dense,
     gemm_grouped,
     w8a8_gemv,
     w8a8_gemm,
     int8_gemm,
     experts_gemv_down,
     experts_gemv_gate_up_biased,
     experts_gemv_down_biased,
     w8a8_gemv_down,
     attention_flash,
     attention_decode_stream,
     attention_decode_cluster,
     head_soften,
     cuda_route,
     cuda_sample},
};
