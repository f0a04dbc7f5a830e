/* SPDX-License-Identifier: MIT */
/* Gate and up of experts for few rows in W8A8: products as gemm/w8a8_gemv.cu makes them, in the schedule of
 * gate_up.cuh. */
#include "kernels/cuda/gemm/w8a8_gemv.cuh"
#include "kernels/cuda/moe/gate_up_tiles.cuh"

/* Of one row there is one column, which all pairs of a job share. */
template <int T>
struct gate_up_w8a8 {
  static constexpr uint32_t STAGE = span_bytes(T), UNITS = 2, COLUMNS = 1;
  struct block {};
  uint8_t *rows;
  const uint8_t *tiles, *steps;

  __device__ __forceinline__ explicit gate_up_w8a8(float *memory)
      : rows((uint8_t *)(void *)memory), tiles(NULL), steps(NULL) {}
  static __host__ __device__ __forceinline__ uint32_t tile_floats(const gemm_args &a) {
    return w8a8_spans_of(a) * floats_of_span<COLUMNS>();
  }
  __device__ __forceinline__ void enter(const gemm_args &a, const gemm_weight &weight, uint32_t tile) {
    tiles = weight.data + PACKED_HEADER_BYTES + (uint64_t)tile * a.tile_bytes;
    steps = weight.steps + (uint64_t)tile * w8a8_spans_of(a) * W8A8_STEPS_BYTES;
  }
  __device__ __forceinline__ void issue(const gemm_args &a, gemv_ring &ring, uint32_t stage, uint32_t tile,
                                        uint32_t unit) const {
    issue_span<T>(a, ring, stage, tiles + (uint64_t)tile * a.tile_bytes,
                  steps + (uint64_t)tile * w8a8_spans_of(a) * W8A8_STEPS_BYTES, unit / 2);
  }
  template <class F>
  __device__ __forceinline__ void take_rows(const gemm_args &a, uint32_t n, F &&row, block &) const {
    quantise_rows(a, n, row, rows);
  }
  __device__ __forceinline__ void open(const gemm_args &, block &, uint32_t, bool) const {}
  template <class F>
  __device__ __forceinline__ void multiply(const gemm_args &a, gemv_ring &ring, uint32_t unit, uint32_t end,
                                           uint32_t row, float *sums, uint32_t, F &&issue) const {
    w8a8_rows<1> of = {{rows + row * bytes_of_row(w8a8_spans_of(a))}};
    multiply_spans<T, 1, true, COLUMNS>(a, ring, unit, end, of, sums, issue);
  }
  __device__ __forceinline__ float scale(const block &, uint32_t, const gemm_weight &weight, uint32_t matrix) const {
    return scale_of(weight, matrix);
  }
  __device__ __forceinline__ float value(const gemm_args &a, const block &, const float *sums, uint32_t row,
                                         uint32_t own, float scale) const {
    uint32_t n_spans = w8a8_spans_of(a);
    span_scales scales = {scales_of_row(rows + row * bytes_of_row(n_spans), n_spans), 1};
    return __fmul_rn(add_spans<COLUMNS>(sums, n_spans, 0, own, scales), scale);
  }
  template <class F>
  __device__ __forceinline__ void multiply_tile(const gemm_args &a, gemv_ring &ring, const tile_item &t, F &&issue,
                                                float (&all)[4]) const {
    uint32_t n_spans = w8a8_spans_of(a);
    w8a8_rows<1> own = {{rows + t.row * bytes_of_row(n_spans)}};
    const float *scales[2];
#pragma unroll
    for (int i = 0; i < 2; i++) scales[i] = scales_of_row(rows + t.row_of[i] * bytes_of_row(n_spans), n_spans);
#pragma unroll
    for (int e = 0; e < 4; e++) all[e] = 0.0f;
#pragma unroll 1
    for (uint32_t span = 0; span < n_spans; span++) {
      int32_t d[1][4];
      float step[2];
      span_rows<1> x;
      ring_wait(ring);
      multiply_span<T, 1, true>(a, ring, span, own, x, d, step, issue);
#pragma unroll
      for (int e = 0; e < 4; e++)
        all[e] = __fmaf_rn((float)d[0][e], __fmul_rn(scales[e % 2][span], step[e / 2]), all[e]);
      pass_stage<true, false>(ring, issue);
    }
  }
  __device__ __forceinline__ float scale_of_tile(const gemm_weight &weight, uint32_t matrix) const {
    return scale_of(weight, matrix);
  }
  __device__ __forceinline__ float finish(const block &, float sum, uint32_t, float scale) const {
    return __fmul_rn(sum, scale);
  }
};

template <int T>
static __global__ void __maxnreg__(80)
    w8a8_gate_up_kernel(const __grid_constant__ gemm_args a, const __grid_constant__ gate_up_items items) {
  multiply_gate_up<gate_up_w8a8<T>>(a, items, [&](uint32_t) { return plain_gate{a}; });
}

template <int T>
static __global__ void __launch_bounds__(32 * GEMV_WARPS_MAX, 1)
    w8a8_gate_up_tiles_kernel(const __grid_constant__ gemm_args a) {
  multiply_gate_up_tiles<gate_up_w8a8<T>>(a, [&](uint32_t) { return plain_gate{a}; });
}

static uint32_t bytes_of_rows(uint32_t n_rows, uint32_t n_spans, bool shared) {
  return n_rows * (shared ? 2 : 1) * bytes_of_row(n_spans);
}

/* Shared memory of a block, of one row. */
static uint32_t bytes_of(int type, uint32_t n_warps, uint32_t n_spans, bool shared) {
  return n_warps * gemv_stages(RING_GATE_UP) * span_bytes(type) + 16 * n_spans * floats_of_span<1>() +
         bytes_of_rows(1, n_spans, shared);
}

bool w8a8_gemv_gate_up_fits(int type, uint32_t n_rows, uint32_t n_in, bool shared) {
  uint32_t n_spans = cuda_ceil(n_in, W8A8_SPAN);
  if (!w8a8_takes(type) || !w8a8_gemv_takes_raw(n_rows, n_in) || n_rows > gemv_experts_rows()) return false;
  if (n_rows == 1) return bytes_of(type, 2 * GEMV_SPLITS_MAX, n_spans, shared) <= GEMV_SHARED_BYTES_MAX;
  return tiles_pairs(n_rows, span_bytes(type), bytes_of_rows(n_rows, n_spans, shared)) > 0;
}

/* Cuts the inputs of one row's experts into as many splits as have the pairs of row tiles done first: a warp has fewer
 * spans with more splits, but a multiprocessor fewer pairs at once. It changes no bit. */
static void choose_splits(const cuda_device *d, gemm_args *a) {
  enum { SPLITS_LEAST = 3 /* with fewer, a multiprocessor would have more than four blocks */ };
  uint32_t n_spans = w8a8_spans_of(*a), n_items = gemv_tiles(*a) * a->jobs_max, best = a->n_splits, least = UINT32_MAX;
  for (uint32_t n = GEMV_WARPS_MAX / 2; n >= SPLITS_LEAST; n--) {
    uint32_t n_blocks = d->n_multiprocessors * (GEMV_WARPS_MAX / (2 * n)), each = cuda_ceil(n_spans, n);
    uint32_t time = cuda_ceil(n_items, n_blocks) * (3 * each + 1); /* to begin and to add up takes a third of a span */
    bool fits =
        n_spans >= n && bytes_of(a->type, 2 * n, n_spans, a->n_shared > 0) <= gemv_bytes_of(GEMV_WARPS_MAX / (2 * n));
    if (fits && time < least) least = time, best = n;
  }
  gemm_set_split_k(a, best);
}

template <int T>
static weft_status launch_gate_up(cuda_device *d, const gemm_args &given) {
  gemm_args a = given;
  uint32_t n_spans = w8a8_spans_of(a), rows_bytes = bytes_of_rows(a.n_rows, n_spans, a.n_shared > 0);
  ring_set_stages(&a, a.n_rows > 1 ? RING_TILES : RING_GATE_UP);
  if (a.n_rows > 1) {
    uint32_t n_pairs = tiles_pairs(a.n_rows, span_bytes(T), rows_bytes);
    cuda_start(d, w8a8_gate_up_tiles_kernel<T>, d->n_multiprocessors, 64 * n_pairs,
               tiles_bytes(n_pairs, span_bytes(T), rows_bytes), a);
  } else {
    gate_up_items items;
    choose_splits(d, &a);
    uint32_t n_warps = gate_up_warps(a), bytes = bytes_of(T, n_warps, n_spans, a.n_shared > 0),
             n_blocks = gate_up_blocks_of(d, a, bytes, &items);
    cuda_start(d, w8a8_gate_up_kernel<T>, n_blocks, 32 * n_warps, bytes, a, items);
  }
  return cuda_launched(d, "the input side of experts in 8 bits");
}

weft_status w8a8_gemv_gate_up(cuda_device *d, const gemm_args *args) {
  return dispatch_packed_type(args->type, [&](auto type) {
    constexpr int T = decltype(type)::value;
    if constexpr (w8a8_takes(T))
      return launch_gate_up<T>(d, *args);
    else
      return WEFT_E_UNSUPPORTED;
  });
}

weft_status w8a8_gemv_gate_up_setup(cuda_device *d) {
  return each_packed_type([&](auto type) {
    constexpr int T = decltype(type)::value;
    if constexpr (w8a8_takes(T)) {
      weft_status status = gemv_set_up(d, (const void *)w8a8_gate_up_kernel<T>);
      return status == WEFT_OK ? gemv_set_up(d, (const void *)w8a8_gate_up_tiles_kernel<T>) : status;
    } else {
      return WEFT_OK;
    }
  });
}
