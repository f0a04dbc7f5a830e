/* SPDX-License-Identifier: MIT */
/* The unpermute and combine of experts (combine.h): a block has some columns of a row, finds where the row's ranks lie
 * and adds them leaf by leaf. */
#include "kernels/cuda/moe/combine.h"

#include "kernels/cuda/gemm/acquire.cuh"
#include "kernels/cuda/moe/ranks.cuh"

/* n results beside each other, as they lie in memory: one, or 16 bytes that are read at once. */
template <class T, uint32_t n>
struct results {
  static_assert(n == 1 || n * sizeof(T) == 16, "one, or 16 bytes");
  static constexpr uint32_t n_words = n == 1 ? 1 : 4;
  uint32_t word[n_words];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (uint32_t w = 0; w < n_words; w++) word[w] = 0;
  }
  __device__ __forceinline__ void load(const T *from) {
    if constexpr (n > 1) {
      uint4 v = *(const uint4 *)(const void *)from;
      word[0] = v.x, word[1] = v.y, word[2] = v.z, word[3] = v.w;
    } else {
      word[0] = sizeof(T) == 4 ? *(const uint32_t *)(const void *)from : *(const uint16_t *)(const void *)from;
    }
  }
  __device__ __forceinline__ float at(uint32_t i) const {
    if constexpr (sizeof(T) == 4)
      return __uint_as_float(word[i]);
    else
      return __uint_as_float(i % 2 == 0 ? word[i / 2] << 16 : word[i / 2] & 0xFFFF0000u);
  }
};

template <uint32_t n>
static __device__ __forceinline__ void store_sums(float *y, const float (&sums)[n]) {
  if constexpr (n == 1) {
    *y = sums[0];
  } else {
#pragma unroll
    for (uint32_t e = 0; e < n; e += 4)
      *(float4 *)(void *)(y + e) = make_float4(sums[e], sums[e + 1], sums[e + 2], sums[e + 3]);
  }
}

template <uint32_t n>
static __device__ __forceinline__ void load_down_bias(const float *from, float (&bias)[n]) {
  if constexpr (n == 1) {
    bias[0] = *from;
  } else {
#pragma unroll
    for (uint32_t e = 0; e < n; e += 4) *(float4 *)(void *)(bias + e) = *(const float4 *)(const void *)(from + e);
  }
}

/* Ranks whose results a thread loads at a time: fewer where their biases are loaded beside them. */
__host__ __device__ constexpr uint32_t combine_ranks_of(bool biased) {
  return biased ? 4 : 8;
}

/* Threads of a block that have n columns each. */
__host__ __device__ constexpr uint32_t combine_threads(uint32_t n) {
  return n > 4 ? 128 : 256;
}

/* A rank of a row: its expert, counted from the first one that is here, and its place, -1 if its expert is not here. */
typedef struct combine_rank {
  int32_t place;
  uint32_t expert, leaf;
  float weight;
} combine_rank;

/* The row's ranks leaf by leaf, and what follows the last one. A rank whose expert is elsewhere is zero times zero,
 * which changes no sum that begins at zero; one whose expert does not exist is NaN times zero. */
static __device__ __forceinline__ void list_ranks(const weft_experts_args &a, uint64_t first_pair,
                                                  const int32_t *pair_at, combine_rank *list) {
  if (threadIdx.x < 32) {
    order_ranks(a.ids + first_pair, a.weights + first_pair, a.k, a.n_experts, [&](uint32_t at, const rank_of_row &of) {
      int32_t place = pair_at[first_pair + of.rank];
      float absent = of.id < a.n_experts ? 0.0f : not_a_number();
      list[at] = {place, of.id - a.first_expert, of.leaf, place < 0 ? absent : of.weight};
    });
    if (threadIdx.x == 0) list[a.k].leaf = WEFT_EXPERTS_LEAVES;
  }
  __syncthreads();
}

/* The biases of the row's next ranks from rank `first` on, of columns from i on. */
template <uint32_t n>
struct rank_biases {
  static constexpr uint32_t n_ranks = combine_ranks_of(true);
  float of[n_ranks][n];

  __device__ __forceinline__ void load(const weft_experts_args &a, const combine_rank *ranks, uint32_t first,
                                       uint32_t n_in, uint32_t i) {
#pragma unroll
    for (uint32_t j = 0; j < n_ranks; j++) {
      if (first + j < a.k && ranks[first + j].place >= 0 && i < n_in)
        load_down_bias(a.down_bias + (uint64_t)ranks[first + j].expert * n_in + i, of[j]);
    }
  }
};

/* The unpermute and combine: adds the ranks of a row. A thread has 16 bytes of columns where they may be read at
 * once, else one column, and loads those of some ranks at a time. early: places, ids and weights are there before the
 * kernel in front of this one has ended; then the ranks and their first biases are too. */
template <uint32_t n, class T, bool BIASED>
static __global__ void __launch_bounds__(combine_threads(n))
    combine_kernel(const __grid_constant__ weft_experts_args a, const T *down, const int32_t *pair_at, uint32_t n_in,
                   bool early) {
  constexpr uint32_t n_ranks = combine_ranks_of(BIASED);
  extern __shared__ __align__(16) combine_rank ranks[]; /* [k + 1] */
  launch_dependent_grids();
  if (early)
    acquire_prior_writes();
  else
    wait_for_prior_grids();
  uint32_t r = blockIdx.y, i = n * (blockIdx.x * combine_threads(n) + threadIdx.x);
  rank_biases<BIASED ? n : 1> bias;
  list_ranks(a, (uint64_t)r * a.k, pair_at, ranks);
  if constexpr (BIASED) bias.load(a, ranks, 0, n_in, i);
  if (early) wait_for_prior_grids();
  if (i >= n_in) return;
  leaf_sums<n> sums;
  sums.clear();
  down += i;
  for (uint32_t first = 0; first < a.k; first += n_ranks) {
    results<T, n> value[n_ranks];
    if constexpr (BIASED)
      if (first > 0) bias.load(a, ranks, first, n_in, i);
#pragma unroll
    for (uint32_t j = 0; j < n_ranks; j++) {
      int32_t at = first + j < a.k ? ranks[first + j].place : -1;
      value[j].clear();
      if (at >= 0) value[j].load(down + (uint64_t)(uint32_t)at * n_in);
    }
#pragma unroll
    for (uint32_t j = 0; j < n_ranks; j++) {
      if (first + j >= a.k) break; /* without this branch additions are moved between the loads */
      const combine_rank of = ranks[first + j];
      float own[n];
#pragma unroll
      for (uint32_t e = 0; e < n; e++) own[e] = value[j].at(e);
      if constexpr (BIASED) {
#pragma unroll
        for (uint32_t e = 0; e < n; e++)
          if (of.place >= 0) own[e] = __fadd_rn(own[e], bias.of[j][e]);
      }
#pragma unroll
      for (uint32_t e = 0; e < n; e++) sums.add(e, __fmul_rn(of.weight, own[e]));
      sums.close(of.leaf, ranks[first + j + 1].leaf);
    }
  }
  store_sums(a.y + (uint64_t)r * a.y_stride + i, sums.all());
}

/* T: what the results of down are. */
template <class T>
static weft_status combine_ranks(cuda_device *d, const weft_experts_args *args, const experts_results *from) {
  constexpr uint32_t at_once = 16 / sizeof(T);
  weft_experts_args a = *args;
  const T *down = (const T *)from->down;
  const int32_t *pair_at = from->pair_at;
  a.n_experts = from->n_all;
  bool wide = from->n_in % at_once == 0 && args->y_stride % 4 == 0 && ((uintptr_t)args->y & 15u) == 0;
  auto plain = wide ? combine_kernel<at_once, T, false> : combine_kernel<1, T, false>,
       biased = wide ? combine_kernel<at_once, T, true> : combine_kernel<1, T, true>,
       kernel = args->down_bias != NULL ? biased : plain;
  const uint32_t n_columns = wide ? at_once : 1, n_threads = combine_threads(n_columns);
  for (uint32_t first = 0; first < args->n_rows; first += 65535) {
    uint32_t n = args->n_rows - first < 65535 ? args->n_rows - first : 65535;
    dim3 grid(cuda_ceil(from->n_in, n_columns * n_threads), n);
    cuda_start(d, kernel, grid, n_threads, (args->k + 1) * sizeof(combine_rank), a, down, pair_at, from->n_in,
               from->early && first == 0);
    a.weights += (uint64_t)n * a.k;
    a.ids += (uint64_t)n * a.k;
    a.y += n * a.y_stride;
    pair_at += (uint64_t)n * a.k;
  }
  return cuda_launched(d, "adding experts");
}

weft_status experts_combine(cuda_device *d, const weft_experts_args *args, const experts_results *from) {
  return from->is_bf16 ? combine_ranks<__nv_bfloat16>(d, args, from) : combine_ranks<float>(d, args, from);
}
