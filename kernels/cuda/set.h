/* SPDX-License-Identifier: MIT */
/* A kernel set: the launchers that differ by card. They need what one generation of cards has (tensor core
 * instructions, async copies, clusters); all other kernels of this folder run on any card that the module is compiled
 * for. A module has one set and all other kernels: libweft-cuda.so that of Hopper, libweft-cuda-portable.so, whose
 * files are compiled with WEFT_CUDA_PORTABLE, that of compute capability 8.0 and later (portable/).
 *
 * Law: code outside a set calls these launchers through cuda_device.set alone. All sets give the same bits
 * (gemm/gemm.h, attention/attention.cuh), but for soft embeddings of integers, which Hopper's alone has; they read the
 * same packed layout and take the same arguments. The set of a card is chosen when it is opened (kernels/card_sets.h)
 * and stays. A further set is a row of card_sets.c and of sets.cu. */
#ifndef WEFT_KERNELS_CUDA_SET_H
#define WEFT_KERNELS_CUDA_SET_H

#include "kernels/card_sets.h"
#include "kernels/cuda/cuda.h"

struct gemm_args;
struct gemm_gated_rows;
struct experts_biases;
struct attention_kernel_args;
struct head_group;

typedef struct cuda_set {
  const card_set *card;                 /* its name, and the cards that it fits */
  const char *ops;                      /* the ops that launchers of the set are part of: " matmul experts " */
  weft_status (*setup)(cuda_device *d); /* at open: kernels that need more than 48 KiB of shared memory ask for it */
  weft_status (*gemv)(cuda_device *d, const struct gemm_args *args);
  weft_status (*gemm_dense)(cuda_device *d, const struct gemm_args *args);
  weft_status (*gemm_grouped)(cuda_device *d, const struct gemm_args *args);
  /* Gate and up of experts in MXFP4 (gemm/gemm.h). NULL: they take gemm_grouped, as all their products do. */
  weft_status (*gemm_grouped_gated)(cuda_device *d, const struct gemm_args *args, const struct gemm_gated_rows *rows);
  /* Experts of some rows (moe/experts_stream.h). NULL: they take gemm_grouped. */
  weft_status (*experts_stream)(cuda_device *d, const struct gemm_args *in, const struct gemm_gated_rows *rows,
                                const struct gemm_args *down);
  weft_status (*w8a8_gemv)(cuda_device *d, const struct gemm_args *args);
  weft_status (*w8a8_gemm)(cuda_device *d, const struct gemm_args *args);
  weft_status (*int8_gemm)(cuda_device *d, const struct gemm_args *args);
  weft_status (*gemv_down)(cuda_device *d, const struct gemm_args *args, const struct gemm_args *shared,
                           const float *weights, uint32_t k);
  weft_status (*gemv_gate_up_biased)(cuda_device *d, const struct gemm_args *args, const struct experts_biases *biases);
  weft_status (*gemv_down_biased)(cuda_device *d, const struct gemm_args *args, const float *weights, uint32_t k,
                                  const float *bias);
  weft_status (*w8a8_gemv_down)(cuda_device *d, const struct gemm_args *args, const struct gemm_args *shared,
                                const float *weights, uint32_t k);
  /* Of attention_flash: most groups of FLASH_QUERIES queries of an item, most blocks that take an item's chunks in
   * turn, whether it can prepare its results for products of 8 bits. */
  uint32_t flash_groups, flash_turns;
  bool flash_prepares;
  weft_status (*attention_flash)(cuda_device *d, const struct attention_kernel_args *args, uint32_t n_groups);
  weft_status (*attention_decode_stream)(cuda_device *d, const struct attention_kernel_args *args);
  weft_status (*attention_decode_cluster)(cuda_device *d, const struct attention_kernel_args *args);
  uint32_t decode_floats; /* scratch of attention_decode_cluster for each item and key head; where it is not 0, an item
                           * has to be of one chunk, over bf16 keys */
  weft_status (*soft)(cuda_device *d, const struct head_group *group);
  weft_status (*soft_integers)(cuda_device *d, const struct head_group *group); /* NULL: soft is for all rows */
  weft_status (*route)(weft_device *device, const weft_route_args *args);
  uint64_t (*route_scratch)(weft_device *device, const weft_route_args *args);
  weft_status (*sample)(weft_device *device, const weft_sample_args *args);
} cuda_set;

enum { CUDA_SETS = 1 };
extern const cuda_set cuda_sets[CUDA_SETS];

#endif
