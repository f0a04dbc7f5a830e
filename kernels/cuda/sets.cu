/* SPDX-License-Identifier: MIT */
/* The kernel sets that this module has, in the order in which a card is offered them. */
#include "kernels/cuda/attention/attention.cuh"
#include "kernels/cuda/gemm/int8_jobs.h"
#include "kernels/cuda/head/soft_integers.h"
#include "kernels/cuda/latent/latent.h"
#include "kernels/cuda/moe/experts_gemv.h"
#include "kernels/cuda/moe/experts_stream.h"
#include "kernels/cuda/moe/route.h"
#include "kernels/cuda/portable/decode_tiles.h"
#include "kernels/cuda/set.h"
#include "kernels/cuda/weights/int8_weights.h"

#define SET_OPS " matmul attention route experts head_stats head_rows head_part soft sample "

#ifdef WEFT_CUDA_PORTABLE

/* Launchers ask for shared memory themselves (cuda_allow_shared). */
static weft_status set_up_portable(cuda_device *) {
  return WEFT_OK;
}

extern const cuda_set cuda_sets[CUDA_SETS] = {
    {&card_sets[CARD_SET_PORTABLE],
     SET_OPS,
     set_up_portable,
     gemv,
     gemm_dense,
     gemm_grouped,
     NULL,
     NULL,
     w8a8_gemv,
     w8a8_gemm,
     NULL,
     experts_gemv_down,
     experts_gemv_gate_up_biased,
     experts_gemv_down_biased,
     w8a8_gemv_down,
     1,
     1,
     false,
     attention_flash,
     attention_decode_stream,
     attention_decode_tiles,
     DECODE_TILES_FLOATS,
     head_soften,
     NULL,
     route_portable,
     route_portable_scratch,
     cuda_sample},
};

#else

static weft_status set_up_products(cuda_device *d) {
  weft_status status = gemv_setup(d);
  if (status == WEFT_OK) status = experts_gemv_gate_up_setup(d);
  if (status == WEFT_OK) status = experts_gemv_down_setup(d);
  if (status == WEFT_OK) status = gemm_grouped_setup(d);
  if (status == WEFT_OK) status = experts_stream_setup(d);
  if (status == WEFT_OK) status = gemm_dense_setup(d);
  if (status == WEFT_OK) status = gemm_f32_setup(d);
  if (status != WEFT_OK || !d->w8a8) return status;
  status = w8a8_gemm_setup(d);
  if (status == WEFT_OK) status = w8a8_dense_setup(d);
  if (status == WEFT_OK) status = int8_gemm_setup(d);
  if (status == WEFT_OK) status = int8_jobs_setup(d);
  return status == WEFT_OK ? w8a8_gemv_setup(d) : status;
}

static weft_status set_up_hopper(cuda_device *d) {
  weft_status status = set_up_products(d);
  if (status == WEFT_OK) status = attention_flash_setup(d);
  if (status == WEFT_OK) status = attention_decode_cluster_setup(d);
  if (status == WEFT_OK) status = attention_decode_stream_setup(d);
  if (status == WEFT_OK) status = head_soften_setup(d);
  if (status == WEFT_OK) status = cuda_delta_setup(d);
  if (status == WEFT_OK) status = cuda_latent_setup(d);
  return status == WEFT_OK ? route_setup(d) : status;
}

extern const cuda_set cuda_sets[CUDA_SETS] = {
    {&card_sets[CARD_SET_HOPPER],
     SET_OPS,
     set_up_hopper,
     gemv,
     gemm_dense,
     gemm_grouped,
     gemm_grouped_gated,
     experts_stream,
     w8a8_gemv,
     w8a8_gemm,
     int8_gemm,
     experts_gemv_down,
     experts_gemv_gate_up_biased,
     experts_gemv_down_biased,
     w8a8_gemv_down,
     2,
     8,
     true,
     attention_flash,
     attention_decode_stream,
     attention_decode_cluster,
     0,
     head_soften,
     soft_integers,
     cuda_route,
     cuda_route_scratch,
     cuda_sample},
};

#endif
