/* SPDX-License-Identifier: MIT */
/* Experts of few rows as GEMV: gate and up with a gated epilogue (gate_up_gemv.cu), and the down projection with the
 * sum over ranks in one kernel (down_gemv.cu).
 *
 * Law: a product has the order of gemm.h or w8a8.h, and ranks are added as kernels/experts.h says, so a row has the
 * bits that grouped GEMM gives it. A rank whose expert is not here is not read, multiplied or added. */
#ifndef WEFT_KERNELS_CUDA_EXPERTS_GEMV_H
#define WEFT_KERNELS_CUDA_EXPERTS_GEMV_H

#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/moe/ranks.cuh"

enum { EXPERTS_GEMV_PAIRS = 64 /* most pairs of the rows: a block has as many threads */ };

/* Products with gate and up of the chosen experts (gemm_args.ids), gated, and those of a shared MLP of the same rows
 * (gate_up_gemv.cu). */
weft_status experts_gemv_gate_up(cuda_device *d, const gemm_args *args);
weft_status experts_gemv_gate_up_setup(cuda_device *d);
/* The same with biases, [n_mats, n_ff] or NULL, or a clamped gate, and without a shared MLP. Kernels are there for the
 * types that models with them have. */
typedef struct experts_biases {
  const float *gate, *up;
} experts_biases;
static constexpr bool experts_gemv_takes_biases(int type) {
  return type == WEFT_TYPE_MXFP4;
}
weft_status experts_gemv_gate_up_biased(cuda_device *d, const gemm_args *args, const experts_biases *biases);
/* Whether rows with so many inputs and ranks fit into a block's shared memory. */
bool experts_gemv_down_fits(uint32_t n_in, uint32_t k);
/* Whether experts_gemv_down can compute the down projection of a shared MLP of the same rows in the same launch. */
bool experts_gemv_down_shares(const gemm_args *args, const gemm_args *shared);
/* y[r] = sum over ranks j of weights[r,j] * W[ids[r,j] - first_matrix] x[r k + j], for rows [0, n_rows), added as
 * kernels/experts.h says; and the product `shared`, if it has a weight. This kernel reads ids before it waits for its
 * inputs. So the kernel before it must have waited for its own inputs, ids among them, before it lets the next one
 * start, as gemv with ids does. */
weft_status experts_gemv_down(cuda_device *d, const gemm_args *args, const gemm_args *shared, const float *weights,
                              uint32_t k);
weft_status experts_gemv_down_setup(cuda_device *d);
/* The same with a bias, [n_mats, n_in], added to each rank's product; without a shared MLP. */
weft_status experts_gemv_down_biased(cuda_device *d, const gemm_args *args, const float *weights, uint32_t k,
                                     const float *bias);

/* What the kernels with weights dequantised to 16 bits (down_gemv.cu) and in W8A8 (gemm/w8a8_gemv.cu) share. */
enum {
  DOWN_WARPS = 8,              /* of a block */
  DOWN_SHARED_TILES = 2,       /* row tiles of the shared MLP in a block */
  DOWN_BYTES_OF_TWO = 86 << 10 /* shared memory of a block when two of them share a multiprocessor */
};

/* A rank of the row, as the block's first warp orders them. */
typedef struct down_rank {
  float weight;
  uint16_t rank, leaf;
  uint32_t id;
} down_rank;

/* Writes the block's 16 outputs of row r: the ranks' results, done[k][16], times their weights, added as
 * kernels/experts.h says. What done has of ranks whose expert is elsewhere is not used; of one that does not exist it
 * is NaN. BIASED: bias [n_matrices, n_out] is added to the ranks' results. k <= EXPERTS_GEMV_PAIRS. */
template <bool BIASED = false>
static __device__ __forceinline__ void combine_ranks_store(const gemm_args &a, const float *weights, uint64_t r,
                                                           uint32_t k, const float *done, const float *bias = NULL) {
  __shared__ down_rank ranks[EXPERTS_GEMV_PAIRS + 1]; /* and what follows the last one */
  uint32_t out = blockIdx.x * 16 + threadIdx.x;
  if (threadIdx.x >= 32) return;
  order_ranks(a.ids + r * k, weights + r * k, k, a.n_experts, [&](uint32_t place, const rank_of_row &of) {
    ranks[place] = {of.weight, (uint16_t)of.rank, (uint16_t)of.leaf, of.id};
  });
  if (threadIdx.x == 0) ranks[k].leaf = WEFT_EXPERTS_LEAVES;
  __syncwarp();
  if (threadIdx.x >= 16 || out >= a.weight[0].n_out) return;
  leaf_sums<1> sums;
  sums.clear();
#pragma unroll 4
  for (uint32_t j = 0; j < k; j++) {
    down_rank of = ranks[j];
    uint32_t matrix = matrix_of(a, (int32_t)of.id);
    float own = done[16u * of.rank + threadIdx.x];
    if (BIASED && matrix < a.n_matrices) own = __fadd_rn(own, bias[(uint64_t)matrix * a.weight[0].n_out + out]);
    bool elsewhere = of.id < a.n_experts && matrix >= a.n_matrices;
    if (!elsewhere) sums.add(0, __fmul_rn(of.weight, own));
    sums.close(of.leaf, ranks[j + 1].leaf);
  }
  a.weight[0].y[r * a.weight[0].y_stride + out] = sums.all()[0];
}

#endif
