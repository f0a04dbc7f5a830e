/* SPDX-License-Identifier: MIT */
/* Experts in pinned host memory, for which the card has no room: what the other files of the cuda backend call.
 * host_experts.cu has the law. */
#ifndef WEFT_KERNELS_CUDA_HOST_EXPERTS_H
#define WEFT_KERNELS_CUDA_HOST_EXPERTS_H

#include "kernels/cuda/cuda.h"
#include "kernels/expert_cache.h"
#include "kernels/host_experts.h"
#include "kernels/ops.h"

/* Where the bytes of one matrix of a stack lie in the packed weight: behind the header one part, or with the steps of
 * W8A8 two, in each of which the matrices lie one behind another. */
enum { CUDA_MATRIX_PARTS = 2 };
typedef struct cuda_matrix_parts {
  uint64_t at[CUDA_MATRIX_PARTS], n_bytes[CUDA_MATRIX_PARTS]; /* of matrix 0; n_bytes 0: there is no such part */
} cuda_matrix_parts;

/* A stack of experts in host memory. A place of the cache has the parts of one matrix, one behind another. */
typedef struct cuda_kept_experts {
  void *data; /* pinned */
  cuda_matrix_parts parts;
  expert_cache cache;
  uint8_t *places;    /* device */
  int32_t *place_of;  /* device [n_mats], as the cache has it */
  uint32_t *n_tokens; /* device [n_mats]: tokens that each expert was given by a gather */
  uint32_t *missing;  /* device [n_mats + 1]: of the last call, the chosen experts without a place; how many they are */
  uint32_t *told;     /* pinned [n_mats]: the same, as the last gather has written it, which may run */
  void *job;          /* of a down: what the processor is given for a call (host_products.cu) */
} cuda_kept_experts;

/* What is kept on the host, and which of it lies on the card besides. */
typedef struct cuda_experts_cache {
  cuda_kept_experts *kept;
  uint32_t n_kept, kept_max;
  uint32_t next;                 /* of kept, whose experts are exchanged first */
  uint32_t heard_max, *heard;    /* `told` at one moment */
  bool in_awaited, down_awaited; /* experts of the call that come beside what is computed (cuda_experts_await) */
  struct host_desk *desk;        /* of those that a processor computes (host_products.h); NULL: there is none */
  weft_experts_report report;
} cuda_experts_cache;

/* device_calls.weight_is_away and experts_report */
bool cuda_experts_is_away(const weft_device *device, const weft_weight *weight);
void cuda_experts_report(const weft_device *device, weft_experts_report *out);
/* Copies a packed weight from device memory to pinned host memory; *out stands for the weight from then on. */
weft_status cuda_experts_keep(cuda_device *device, const weft_weight *weight, const cuda_matrix_parts *parts,
                              const void *packed, uint64_t n_bytes, void **out);
/* Frees such a weight. False: data is not one of them. */
bool cuda_experts_forget(cuda_device *device, void *data);
void cuda_experts_close(cuda_device *device);
/* Has the weights of the call that lie in host memory copied to the card, whole or the chosen experts alone: they are
 * then of `copy`, whose data lies there. */
weft_status cuda_experts_bring(cuda_device *device, weft_experts_args *args, weft_weight copy[4]);
/* Called before a product with gate and up, or with down: the main stream waits for what of them still comes. */
weft_status cuda_experts_await(cuda_device *device, bool down);
/* Called when the products of a call are enqueued: the staging memory of their weights may be overwritten after them,
 * and the copies of the next weights begin. */
weft_status cuda_experts_done(cuda_device *device);
/* Called before a step: exchanges experts of the cache, by the tokens that were counted until then. */
void cuda_experts_step(weft_device *device);

#endif
