/* SPDX-License-Identifier: MIT */
/* Up to eight rows in W8A8 (w8a8.h) where every warp has at most two spans of one row tile, and the card all row
 * tiles at once: weights are requantised before the rows are there, back to shared memory as operands of the tensor
 * cores. While the kernel before is at work, as a norm or attention is on a few multiprocessors, nothing else is to be
 * done; and when its rows come, what is left of a span are eight products. Otherwise w8a8_gemv.cu does the same with
 * the same bits. Weights of two types that read the same rows may be one launch, so that those of neither wait for the
 * other's. */
#include "kernels/cuda/gemm/w8a8_ahead.h"

#include "kernels/cuda/gemm/w8a8_dense.h"
#include "kernels/cuda/gemm/w8a8_gemv_dense.cuh"

enum {
  AHEAD_SPANS = 2,                       /* of a warp */
  RAW_ROWS = GEMM_RAW_ROWS,              /* at most; more come after the prologue */
  AHEAD_ROWS = 8,                        /* at most */
  OPERAND_BYTES = 32 * 16,               /* of a product: a lane's four words */
  OPERANDS_BYTES = 2 * 4 * OPERAND_BYTES /* of a span: two units of four products */
};

/* Shared memory of a block, of which a multiprocessor needs to hold one. */
#ifdef WEFT_CUDA_PORTABLE
#define AHEAD_BYTES gemv_bytes_of(1)
#else
enum { AHEAD_BYTES = 224 << 10 };
#endif

/* Shared memory of a stage: a span's codes and its steps, and then its operands. */
__host__ __device__ constexpr uint32_t ahead_stage(int type) {
  return gemv_piece_bytes(type) > OPERANDS_BYTES ? span_bytes(type) : OPERANDS_BYTES + W8A8_STEPS_BYTES;
}

/* Makes operands of the codes in a stage, in their place, and gives the steps of the lane's outputs g and g + 8. */
template <int T>
static __device__ __forceinline__ void requantise_stage(const gemm_args &a, uint8_t *stage, uint32_t span,
                                                        float (&step)[2]) {
  uint32_t lane = threadIdx.x % 32;
  const uint16_t *steps = (const uint16_t *)(const void *)(stage + gemv_piece_bytes(T));
  float over[2];
#pragma unroll
  for (int r = 0; r < 2; r++) {
    step[r] = __uint_as_float((uint32_t)steps[lane / 4 + 8 * r] << 16);
    over[r] = inverse_of(step[r]);
  }
  lane_codes<T> codes[2];
  lane_scales<T> scales[2];
#pragma unroll
  for (uint32_t u = 0; u < 2; u++) {
    bool tail = packed_shape_of(T).unit == 128 && is_tail_unit(a, 2 * span + u);
    packed_block block = packed_block_of<T>(stage, u, tail);
    load_codes<T>(block, lane, codes[u]);
    load_scales<T>(block, lane / 4, lane % 4, scales[u]);
  }
  __syncwarp(); /* all lanes have read */
#pragma unroll
  for (uint32_t u = 0; u < 2; u++) {
    dequant_factors factors;
    w8a8_factors<T>(scales[u], u, lane % 4, over, factors);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      uint32_t w[4];
      requantise_operands<T>(codes[u], factors, i, w);
      *(uint4 *)(void *)(stage + (4 * u + i) * OPERAND_BYTES + lane * 16) = make_uint4(w[0], w[1], w[2], w[3]);
    }
  }
}

/* The integer sums of a span whose operands lie in a stage; a lane reads what it wrote. b: of the row. */
static __device__ __forceinline__ void multiply_stage(const uint8_t *stage, const uint32_t (&b)[2][8],
                                                      int32_t (&d)[1][4]) {
  int32_t half[2][4] = {};
#pragma unroll
  for (uint32_t u = 0; u < 2; u++) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      uint4 v = *(const uint4 *)(const void *)(stage + (4 * u + i) * OPERAND_BYTES + threadIdx.x % 32 * 16);
      const uint32_t w[4] = {v.x, v.y, v.z, v.w};
      mma_s8(half[u], w, b[u][2 * i], b[u][2 * i + 1]);
    }
  }
#pragma unroll
  for (int e = 0; e < 4; e++) d[0][e] = half[0][e] + half[1][e];
}

/* The lane's numbers of a row's span; zeros behind the last unit. */
template <int T>
static __device__ __forceinline__ void load_span(const gemm_args &a, const uint8_t *numbers, uint32_t span,
                                                 uint32_t (&b)[2][8]) {
  constexpr bool may_end = packed_shape_of(T).unit == 128;
#pragma unroll
  for (uint32_t u = 0; u < 2; u++) {
    uint32_t unit = 2 * span + u;
#pragma unroll
    for (int i = 0; i < 8; i++) b[u][i] = 0;
    if (may_end && unit >= a.n_units) continue;
    load_numbers(numbers, unit, may_end && is_tail_unit(a, unit), b[u]);
  }
}

/* Block `group` of the blocks that multiply weights of type T. */
template <int T, int COLUMNS>
static __device__ __forceinline__ void multiply_ahead(const gemm_args &a, uint32_t group, uint8_t *memory,
                                                      uint64_t *filled) {
  constexpr uint32_t STAGE = ahead_stage(T);
  constexpr bool RAW = COLUMNS <= RAW_ROWS;
  uint32_t n_warps = blockDim.x / 32, warp = threadIdx.x / 32, split = warp % a.n_splits, slot = warp / a.n_splits;
  uint32_t n_spans = w8a8_spans_of(a), tile_floats = n_spans * floats_of_span<COLUMNS>(), first = split * AHEAD_SPANS;
  uint8_t *stages = memory + warp * AHEAD_SPANS * STAGE;
  gemv_ring ring = ring_init(stages, filled + warp * AHEAD_SPANS, AHEAD_SPANS, STAGE);
  float *sums = (float *)(void *)(memory + n_warps * AHEAD_SPANS * STAGE);
  uint8_t *raw = (uint8_t *)(void *)(sums + n_warps / a.n_splits * tile_floats);
  dense_tile tile = find_dense<false>(a, group, slot);
  uint32_t n = tile.data == NULL ? 0 : min((uint32_t)AHEAD_SPANS, n_spans - first);
  float step[AHEAD_SPANS][2];
  if (n > 0) {
    const uint8_t *steps = a.weight[tile.weight].steps + (uint64_t)tile.tile * n_spans * W8A8_STEPS_BYTES;
#pragma unroll 1
    for (uint32_t s = 0; s < n; s++) issue_span<T>(a, ring, s, tile.data, steps, first + s);
  }
#pragma unroll
  for (uint32_t s = 0; s < AHEAD_SPANS; s++) {
    if (s >= n) continue;
    ring_wait_first(ring, s);
    requantise_stage<T>(a, stages + s * STAGE, first + s, step[s]);
  }
  wait_for_prior_grids();
  launch_dependent_grids();
  if constexpr (RAW)
    quantise_rows(
        a, COLUMNS == 1 ? 1 : a.n_rows, [&](uint32_t r) { return a.raw.x + r * a.raw.x_stride; }, raw);
  uint32_t of_lane = COLUMNS == 1 ? 0 : min(threadIdx.x % 32 / 4, a.n_rows - 1);
  const uint8_t *x = (const uint8_t *)a.x;
  const uint8_t *numbers = RAW ? raw + of_lane * bytes_of_row(n_spans) : x + (uint64_t)of_lane * n_spans * W8A8_SPAN;
  float *own = sums + slot * tile_floats;
  uint32_t b[AHEAD_SPANS][2][8];
#pragma unroll
  for (uint32_t s = 0; s < AHEAD_SPANS; s++)
    if (s < n) load_span<T>(a, numbers, first + s, b[s]);
#pragma unroll
  for (uint32_t s = 0; s < AHEAD_SPANS; s++) {
    if (s >= n) continue;
    int32_t d[1][4];
    multiply_stage(stages + s * STAGE, b[s], d);
    store_span<1, COLUMNS>(own + (first + s) * floats_of_span<COLUMNS>(), d, step[s]);
  }
  __syncthreads();
  if (tile.data == NULL) return;
  const float *x_scales = (const float *)(const void *)(x + w8a8_scales_at(n_spans, a.x_tiles));
  auto scales = [&](uint32_t r) {
    return span_scales{RAW ? scales_of_row(raw + r * bytes_of_row(n_spans), n_spans) : x_scales + r * n_spans, 1};
  };
  reduce_spans<COLUMNS, false>(a, tile, own, scales, split, a.n_splits);
}

/* The first n_first blocks multiply weights of type T, the others those of type U, which read the same rows; U NONE:
 * there are none. COLUMNS: the most rows. */
template <int T, int U, int COLUMNS>
static __global__ void __maxnreg__(80)
    w8a8_ahead_kernel(const __grid_constant__ gemm_args a, const __grid_constant__ gemm_args b, uint32_t n_first) {
  extern __shared__ __align__(128) uint8_t memory[]; /* stages of the warps; sums of the block's row tiles; rows */
  __shared__ __align__(8) uint64_t filled[GEMV_WARPS_MAX * AHEAD_SPANS];
  if constexpr (U != WEFT_TYPE_NONE) {
    if (blockIdx.x >= n_first) {
      multiply_ahead<U, COLUMNS>(b, blockIdx.x - n_first, memory, filled);
      return;
    }
  }
  multiply_ahead<T, COLUMNS>(a, blockIdx.x, memory, filled);
}

/* ---- host ------------------------------------------------------------------------------------------------ */

/* How a product is cut into blocks, each of n_slots row tiles. n_slots 0: it is not for these kernels. */
typedef struct ahead_cut {
  uint32_t n_slots, n_splits, n_first, n_blocks, n_bytes;
} ahead_cut;

/* The fewest row tiles of a block with which all blocks lie on the card at once. One product leaves half of it, if
 * that is possible: to the kernel before it, beside whose blocks these find no room (attention's, before o), or to a
 * launch for the same rows that may follow. */
static ahead_cut cut_of(const cuda_device *d, const gemm_args *a, const gemm_args *b) {
  uint32_t n_spans = w8a8_spans_of(*a), of_a = gemv_tiles(*a), of_b = b == NULL ? 0 : gemv_tiles(*b);
  uint32_t stage = ahead_stage(a->type), room = d->n_multiprocessors;
  if (b != NULL && ahead_stage(b->type) > stage) stage = ahead_stage(b->type);
  uint32_t n_raw = a->raw.x != NULL ? a->n_rows : 0;
  uint32_t floats = n_raw == 1  ? floats_of_span<1>()
                    : n_raw > 0 ? floats_of_span<RAW_ROWS>()
                                : floats_of_span<AHEAD_ROWS>();
  ahead_cut cut = {0, cuda_ceil(n_spans, AHEAD_SPANS), 0, 0, 0}, last = cut;
  for (uint32_t n = 1; n * cut.n_splits <= GEMV_WARPS_MAX; n++) {
    uint32_t bytes = n * (cut.n_splits * AHEAD_SPANS * stage + 4 * n_spans * floats) + n_raw * bytes_of_row(n_spans);
    uint32_t n_first = cuda_ceil(of_a, n), n_blocks = n_first + cuda_ceil(of_b, n);
    if (bytes > AHEAD_BYTES) break;
    if (n_blocks > room || n * cut.n_splits < n_raw) continue; /* every row has a warp (quantise_rows) */
    last = {n, cut.n_splits, n_first, n_blocks, bytes};
    if (b != NULL || 2 * n_blocks <= room) break;
  }
  return last;
}

/* Calls f for each pair of types that there are kernels for, until one of them fails. */
template <class F>
static weft_status each_pair(F &&f) {
  using four = std::integral_constant<int, WEFT_TYPE_Q4_K>;
  using five = std::integral_constant<int, WEFT_TYPE_Q5_K>;
  using six = std::integral_constant<int, WEFT_TYPE_Q6_K>;
  using eight = std::integral_constant<int, WEFT_TYPE_Q8_0>;
  weft_status status = f(four(), six());
  if (status == WEFT_OK) status = f(five(), six());
  return status == WEFT_OK ? f(four(), eight()) : status;
}

/* Calls found for that of these pairs. False: it is none of them. */
template <class F>
static bool find_pair(int type, int other, F &&found) {
  bool is_pair = false;
  (void)each_pair([&](auto t, auto u) {
    if (type != decltype(t)::value || other != decltype(u)::value) return WEFT_OK;
    found(t, u);
    is_pair = true;
    return WEFT_OK;
  });
  return is_pair;
}

static bool takes_one(const gemm_args *a) {
  bool comes = a->raw.x != NULL ? a->n_rows <= RAW_ROWS && !a->raw.is_there : a->n_rows <= AHEAD_ROWS && !a->is_tiled;
  return a->is_w8a8 && w8a8_takes(a->type) && comes && a->jobs == NULL && a->ids == NULL && a->activation == 0;
}

bool w8a8_ahead_takes(const cuda_device *d, const gemm_args *a) {
  return takes_one(a) && cut_of(d, a, NULL).n_slots > 0;
}

bool w8a8_ahead_pairs(const cuda_device *d, const gemm_args *a, const gemm_args *b) {
  bool alike = takes_one(a) && takes_one(b) && find_pair(a->type, b->type, [](auto, auto) {});
  return alike && (a->raw.x != NULL) == (b->raw.x != NULL) && cut_of(d, a, b).n_slots > 0;
}

/* args NULL: sets the kernel up. */
template <int T, int U, int COLUMNS>
static weft_status start(cuda_device *d, const gemm_args *args, const gemm_args *more) {
  auto kernel = w8a8_ahead_kernel<T, U, COLUMNS>;
  if (args == NULL)
    return cuda_judge(d, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, AHEAD_BYTES),
                      "setting up products");
  ahead_cut cut = cut_of(d, args, more);
  gemm_args a = *args, b = more == NULL ? *args : *more;
  gemm_set_split_k(&a, cut.n_splits); /* which changes no bit (w8a8_gemv.cuh) */
  gemm_set_split_k(&b, cut.n_splits);
  cuda_start(d, kernel, cut.n_blocks, 32 * cut.n_slots * cut.n_splits, cut.n_bytes, a, b, cut.n_first);
  return cuda_launched(d, "a product of few rows in 8 bits");
}

/* a NULL: sets the kernels up. */
template <int T, int U>
static weft_status launch(cuda_device *d, const gemm_args *a, const gemm_args *b) {
  if (a != NULL && a->raw.x == NULL) return start<T, U, AHEAD_ROWS>(d, a, b);
  if (a != NULL) return a->n_rows == 1 ? start<T, U, 1>(d, a, b) : start<T, U, RAW_ROWS>(d, a, b);
  weft_status status = start<T, U, 1>(d, NULL, NULL);
  if (status == WEFT_OK) status = start<T, U, RAW_ROWS>(d, NULL, NULL);
  return status == WEFT_OK ? start<T, U, AHEAD_ROWS>(d, NULL, NULL) : status;
}

weft_status w8a8_ahead(cuda_device *d, const gemm_args *args) {
  return dispatch_packed_type(args->type, [&](auto type) {
    constexpr int T = decltype(type)::value;
    if constexpr (w8a8_takes(T))
      return launch<T, WEFT_TYPE_NONE>(d, args, NULL);
    else
      return WEFT_E_UNSUPPORTED;
  });
}

weft_status w8a8_ahead_pair(cuda_device *d, const gemm_args *a, const gemm_args *b) {
  weft_status status = WEFT_E_UNSUPPORTED;
  find_pair(a->type, b->type,
            [&](auto t, auto u) { status = launch<decltype(t)::value, decltype(u)::value>(d, a, b); });
  return status;
}

#ifndef WEFT_CUDA_PORTABLE
bool w8a8_gemv_pairs(const cuda_device *d, const gemm_args *a, const gemm_args *b) {
  return w8a8_ahead_pairs(d, a, b);
}

weft_status w8a8_gemv_pair(cuda_device *d, const gemm_args *a, const gemm_args *b) {
  return w8a8_ahead_pair(d, a, b);
}
#endif

weft_status w8a8_ahead_setup(cuda_device *d) {
  weft_status status = each_packed_type([&](auto type) {
    constexpr int T = decltype(type)::value;
    if constexpr (w8a8_takes(T))
      return launch<T, WEFT_TYPE_NONE>(d, NULL, NULL);
    else
      return WEFT_OK;
  });
  if (status != WEFT_OK) return status;
  return each_pair([&](auto t, auto u) { return launch<decltype(t)::value, decltype(u)::value>(d, NULL, NULL); });
}
