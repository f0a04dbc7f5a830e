/* SPDX-License-Identifier: MIT */
/* Experts in host memory that a processor computes, beside those that the link brings: host_products.cu has the law. */
#ifndef WEFT_KERNELS_CUDA_HOST_PRODUCTS_H
#define WEFT_KERNELS_CUDA_HOST_PRODUCTS_H

#include "kernels/cuda/moe/host_experts.h"
#include "kernels/host_share.h"

enum { DESK_PAIRS = 512, DESK_EXPERTS = 64, DESK_FEW = 128 };

/* An expert of the processor's share: its rows are slots [first, first + n) of the desk. */
typedef struct desk_expert {
  uint32_t expert, first, n;
} desk_expert;

/* What card and processor give one another for a call, in pinned memory; slots are those of pairs. */
typedef struct host_list {
  uint32_t n_experts, n_slots;
  desk_expert expert[DESK_EXPERTS];
  /* As the last calls have shown, for the card to read: of the processor's times; and microseconds of a share beside
   * its products. */
  float factor, begin;
} host_list;

/* In device memory: the same of a call for kernels. */
typedef struct desk_slots {
  uint32_t n;
  int32_t pair[DESK_PAIRS], expert[DESK_PAIRS];
  int32_t slot_of[DESK_FEW]; /* of the first pairs; -1: none */
} desk_slots;

/* Results of a share, for a kernel that sums ranks itself: of the slot of a pair. */
typedef struct desk_results {
  const int32_t *slot_of; /* [DESK_FEW]; NULL: there are none */
  const float *sums;
  uint32_t n_sums;
} desk_results;

/* Makes room for the rows of a weight's experts. Where the processor has no AVX2 or too few cores, or where memory
 * lacks, the link brings all experts, and the report says so by having no threads. */
weft_status host_desk_grow(cuda_device *d, const weft_weight *weight);
void host_desk_close(cuda_device *d);
/* No host function is at work, though the device may be lost: before weights in host memory are freed. */
void host_products_rest(const cuda_device *d);
/* A copy of so many bytes over the link took so many microseconds. */
void host_desk_hear_link(cuda_device *d, uint64_t n_bytes, uint64_t us);

/* What the processor has of a report, from any thread. */
void host_products_report(const cuda_experts_cache *cache, weft_experts_report *out);

/* What list kernels do with the processor's share. taken: device [n_mats]; NULL: there is none. */
typedef struct desk_args {
  host_list *list;
  desk_slots *slots;
  uint32_t *taken;
  host_share_times times;
} desk_args;

/* Whether the processor may take a share of the call, whose weights are kept (gate_up, gate, up, down; NULL: on the
 * card). is_few: of a call that may lack no expert, and waits for the processor all the same: then only where one that
 * crosses takes twice as long as a share does beside its products. */
bool host_products_take(cuda_device *d, const weft_experts_args *args, cuda_kept_experts *const kept[4], bool is_few,
                        desk_args *out);
/* Called behind the list kernel: the processor's work beside the main stream. x of args is there. */
weft_status host_products_start(cuda_device *d, const weft_experts_args *args, cuda_kept_experts *const kept[4]);
/* device [n_mats]: experts of this call that the processor has; NULL: none. */
const uint32_t *host_products_taken(const cuda_device *d);
/* No share is on its way: before a call. */
void host_products_none(cuda_device *d);
/* The same for a call of at most DESK_FEW pairs: the main stream waits, and the next product with down takes them. */
weft_status host_products_await(cuda_device *d);
desk_results host_products_results(cuda_device *d);
/* The main stream waits for the results, and puts them at their pairs' places: down [place][n_out] bf16. */
weft_status host_products_finish(cuda_device *d, const weft_experts_args *args, const int32_t *pair_at, void *down);

#endif
