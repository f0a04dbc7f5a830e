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
/* Whether n_rows rows of n_in inputs, and as many of a shared MLP, fit into a block's shared memory. */
bool experts_gemv_gate_up_fits(int type, uint32_t n_rows, uint32_t n_in, bool shared);
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
 * kernels/experts.h says; and the product `shared`, if it has a weight. This kernel reads ids and weights before it
 * waits for its inputs. So the kernel before it must have waited for its own inputs, both among them, before it lets
 * the next one start, as gemv with ids does. */
weft_status experts_gemv_down(cuda_device *d, const gemm_args *args, const gemm_args *shared, const float *weights,
                              uint32_t k);
weft_status experts_gemv_down_setup(cuda_device *d);
/* The same with a bias, [n_mats, n_in], added to each rank's product; without a shared MLP. */
weft_status experts_gemv_down_biased(cuda_device *d, const gemm_args *args, const float *weights, uint32_t k,
                                     const float *bias);

/* What the kernels with weights dequantised to 16 bits (down_gemv.cu) and in W8A8 (gemm/w8a8_gemv.cu) share. */
enum {
  DOWN_WARPS = 8,              /* of a block */
  DOWN_RANKS = 8,              /* whose results are loaded at once */
  DOWN_SHARED_TILES = 2,       /* row tiles of the shared MLP in a block */
  DOWN_BYTES_OF_TWO = 86 << 10 /* shared memory of a block when two of them share a multiprocessor */
};

/* The ranks of a block's row, in shared memory. A rank whose expert is elsewhere is of no leaf. */
typedef struct down_ranks {
  float weight[EXPERTS_GEMV_PAIRS];
  uint32_t leaf[EXPERTS_GEMV_PAIRS], matrix[EXPERTS_GEMV_PAIRS];
} down_ranks;

/* A rank as a thread of the block has loaded it: rank threadIdx.x. It may be loaded before the kernel waits for its
 * inputs. k <= EXPERTS_GEMV_PAIRS, and a block has as many threads. */
typedef struct down_rank {
  int32_t id;
  float weight;
} down_rank;

static __device__ __forceinline__ down_rank load_rank(const gemm_args &a, const float *weights, uint64_t r,
                                                      uint32_t k) {
  uint64_t at = r * k + threadIdx.x;
  return threadIdx.x < k ? down_rank{__ldcg(a.ids + at), __ldcg(weights + at)} : down_rank{0, 0.0f};
}

/* Before a barrier of the block. */
static __device__ __forceinline__ void store_rank(const gemm_args &a, down_rank rank, uint32_t k, down_ranks &ranks) {
  if (threadIdx.x >= k) return;
  uint32_t id = (uint32_t)rank.id, matrix = matrix_of(a, rank.id);
  bool elsewhere = id < a.n_experts && matrix >= a.n_matrices;
  ranks.weight[threadIdx.x] = rank.weight;
  ranks.leaf[threadIdx.x] = elsewhere ? (uint32_t)WEFT_EXPERTS_LEAVES : leaf_of_rank(id, a.n_experts);
  ranks.matrix[threadIdx.x] = matrix;
}

/* Writes 16 outputs of row r, those of row tile `tile`: the ranks' results, done[k][16], times their weights, added as
 * kernels/experts.h says. What done has of ranks whose expert is elsewhere is not used; of one that does not exist it
 * is NaN. A half warp has an output, and a lane a leaf of it. BIASED: bias [n_matrices, n_out] is added to the ranks'
 * results. */
template <bool BIASED = false>
static __device__ __forceinline__ void combine_ranks_store(const gemm_args &a, const down_ranks &ranks, uint64_t r,
                                                           uint32_t tile, uint32_t k, const float *done,
                                                           const float *bias = NULL) {
  static_assert(DOWN_WARPS == 8 && WEFT_EXPERTS_LEAVES == 16, "a thread for each leaf of 16 outputs");
  uint32_t leaf = threadIdx.x % WEFT_EXPERTS_LEAVES, own = threadIdx.x / WEFT_EXPERTS_LEAVES, out = tile * 16 + own;
  float sum = 0.0f;
  for (uint32_t first = 0; first < k; first += DOWN_RANKS) {
    float term[DOWN_RANKS];
    bool is_own[DOWN_RANKS];
#pragma unroll
    for (uint32_t i = 0; i < DOWN_RANKS; i++) {
      uint32_t j = min(first + i, k - 1);
      is_own[i] = first + i < k && ranks.leaf[j] == leaf;
      term[i] = done[16 * j + own];
      if (BIASED && is_own[i] && ranks.matrix[j] < a.n_matrices && out < a.weight[0].n_out)
        term[i] = __fadd_rn(term[i], bias[(uint64_t)ranks.matrix[j] * a.weight[0].n_out + out]);
      term[i] = __fmul_rn(ranks.weight[j], term[i]);
    }
#pragma unroll
    for (uint32_t i = 0; i < DOWN_RANKS; i++)
      if (is_own[i]) sum = __fadd_rn(sum, term[i]);
  }
#pragma unroll
  for (uint32_t apart = 1; apart < WEFT_EXPERTS_LEAVES; apart *= 2)
    sum = __fadd_rn(sum, __shfl_xor_sync(0xFFFFFFFFu, sum, apart));
  if (leaf == 0 && out < a.weight[0].n_out) a.weight[0].y[r * a.weight[0].y_stride + out] = sum;
}

#endif
