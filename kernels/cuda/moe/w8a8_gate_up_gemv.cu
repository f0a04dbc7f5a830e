/* SPDX-License-Identifier: MIT */
/* Gate and up of experts for few rows in W8A8: products as gemm/w8a8_gemv.cu makes them, in the schedule of
 * gate_up.cuh. */
#include "kernels/cuda/gemm/w8a8_gemv.cuh"
#include "kernels/cuda/moe/gate_up.cuh"

/* ONE: of one row. Then there is one column, which all pairs of a job share. */
template <int T, bool ONE>
struct gate_up_w8a8 {
  static constexpr uint32_t STAGE = span_bytes(T), UNITS = 2, COLUMNS = ONE ? 1 : 8;
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
  __device__ __forceinline__ float value(const gemm_args &a, const block &, const float *sums, uint32_t column,
                                         uint32_t row, uint32_t own, float scale) const {
    uint32_t n_spans = w8a8_spans_of(a);
    span_scales scales = {scales_of_row(rows + row * bytes_of_row(n_spans), n_spans), 1};
    return __fmul_rn(add_spans<COLUMNS>(sums, n_spans, ONE ? 0 : column, own, scales), scale);
  }
};

template <int T, bool ONE>
static __global__ void __maxnreg__(80)
    w8a8_gate_up_kernel(const __grid_constant__ gemm_args a, const __grid_constant__ gate_up_items items) {
  multiply_gate_up<gate_up_w8a8<T, ONE>, ONE>(a, items, [&](uint32_t) { return plain_gate{a}; });
}

static uint32_t bytes_of(int type, uint32_t n_warps, uint32_t tile_floats, uint32_t n_raw, uint32_t n_spans) {
  return n_warps * GEMV_STAGES * span_bytes(type) + 16 * tile_floats + n_raw * bytes_of_row(n_spans);
}

bool w8a8_gemv_gate_up_fits(int type, uint32_t n_rows, uint32_t n_in, bool shared) {
  uint32_t n_spans = cuda_ceil(n_in, W8A8_SPAN), n_raw = n_rows * (shared && n_rows <= 2 ? 2 : 1);
  uint32_t tile_floats = n_spans * (n_rows == 1 ? floats_of_span<1>() : floats_of_span<8>());
  return w8a8_takes(type) && w8a8_gemv_takes_raw(n_rows, n_in) &&
         bytes_of(type, 2 * GEMV_SPLITS_MAX, tile_floats, n_raw, n_spans) <= GEMV_SHARED_BYTES_MAX;
}

/* args NULL: sets the kernel up. */
template <int T, bool ONE>
static weft_status launch_gate_up(cuda_device *d, const gemm_args *args) {
  auto kernel = w8a8_gate_up_kernel<T, ONE>;
  if (args == NULL) return gemv_set_up(d, (const void *)kernel);
  const gemm_args &a = *args;
  gate_up_items items;
  uint32_t n_warps = gate_up_warps(a), n_raw = a.n_rows * (takes_both(a) ? 2 : 1),
           bytes = bytes_of(T, n_warps, gate_up_w8a8<T, ONE>::tile_floats(a), n_raw, w8a8_spans_of(a)),
           n_blocks = gate_up_blocks_of(d, a, bytes, &items);
  cuda_start(d, kernel, n_blocks, 32 * n_warps, bytes, a, items);
  return cuda_launched(d, "the input side of experts in 8 bits");
}

weft_status w8a8_gemv_gate_up(cuda_device *d, const gemm_args *args) {
  return dispatch_packed_type(args->type, [&](auto type) {
    constexpr int T = decltype(type)::value;
    if constexpr (w8a8_takes(T))
      return args->n_rows == 1 ? launch_gate_up<T, true>(d, args) : launch_gate_up<T, false>(d, args);
    else
      return WEFT_E_UNSUPPORTED;
  });
}

weft_status w8a8_gemv_gate_up_setup(cuda_device *d) {
  return each_packed_type([&](auto type) {
    constexpr int T = decltype(type)::value;
    if constexpr (w8a8_takes(T)) {
      weft_status status = launch_gate_up<T, true>(d, NULL);
      return status == WEFT_OK ? launch_gate_up<T, false>(d, NULL) : status;
    } else {
      return WEFT_OK;
    }
  });
}
