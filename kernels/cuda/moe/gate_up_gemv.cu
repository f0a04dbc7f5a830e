/* SPDX-License-Identifier: MIT */
/* Gate and up of experts for few rows, with weights dequantised to 16 bits: products as gemm/gemv.cu makes them, in the
 * schedule of gate_up.cuh. */
#include "kernels/cuda/moe/gate_up.cuh"

template <int T>
struct gate_up_f16 {
  static constexpr uint32_t STAGE = gemv_stage_bytes(T), UNITS = gemv_units(T);
  struct block {
    uint32_t most_of[GEMV_WARPS_MAX];
    float low[2]; /* what undoes the prescale of gate and up */
    int scale_exponent[2 * GEMM_RAW_ROWS];
  };
  uint4 *rows;
  const uint8_t *tiles;
  packed_header header;
  prescale_powers powers;

  __device__ __forceinline__ explicit gate_up_f16(float *memory) : rows((uint4 *)(void *)memory), tiles(NULL) {}
  static __host__ __device__ __forceinline__ uint32_t tile_floats(const gemm_args &a) { return a.n_splits * 128; }
  __device__ __forceinline__ void enter(const gemm_args &a, const gemm_weight &weight, uint32_t tile) {
    header = header_of(weight.data);
    tiles = weight.data + PACKED_HEADER_BYTES + (uint64_t)tile * a.tile_bytes;
  }
  __device__ __forceinline__ void issue(const gemm_args &a, gemv_ring &ring, uint32_t stage, uint32_t tile,
                                        uint32_t unit) const {
    issue_piece<T>(a, ring, stage, tiles + (uint64_t)tile * a.tile_bytes, unit);
  }
  template <class F>
  __device__ __forceinline__ void take_rows(const gemm_args &a, uint32_t n, F &&row, block &b) const {
    fused_prologue<T>(a, n, row, b.most_of, rows, b.scale_exponent);
  }
  __device__ __forceinline__ void open(const gemm_args &a, block &b, uint32_t slot, bool notes) {
    int prescale = prescale_exponent(T, &header);
    powers = powers_of<T>(prescale, a.values);
    if (notes) b.low[slot] = power_of_two(-prescale);
  }
  template <class F>
  __device__ __forceinline__ void multiply(const gemm_args &a, gemv_ring &ring, uint32_t unit, uint32_t end,
                                           uint32_t row, float *sums, uint32_t split, F &&issue) const {
    x_source<1> x;
    x.raw = rows + row * raw_stride(a.n_units);
    multiply_split<T, 1, true, false>(a, ring, unit, end, x, powers, sums + split * 128, issue);
  }
  __device__ __forceinline__ float scale(const block &b, uint32_t slot, const gemm_weight &weight,
                                         uint32_t matrix) const {
    return __fmul_rn(b.low[slot], scale_of(weight, matrix));
  }
  __device__ __forceinline__ float value(const gemm_args &a, const block &b, const float *sums, uint32_t column,
                                         uint32_t row, uint32_t own, float scale) const {
    return reduce_output<1>(a, sums, column, own, power_of_two(-b.scale_exponent[row]), scale);
  }
};

/* The gate of an expert's outputs after its biases were added. */
struct expert_gate {
  const gemm_args &a;
  const float *gate_bias, *up_bias;
  uint64_t first; /* of the expert's numbers */
  __device__ __forceinline__ float operator()(uint32_t out, float g, float u) const {
    return limited_biased_gate(a.activation, a.limit, g, u, gate_bias, up_bias, first + out);
  }
};

template <int T, bool ONE>
static __global__ void __maxnreg__(80)
    gate_up_gemv_kernel(const __grid_constant__ gemm_args a, const __grid_constant__ gate_up_items items) {
  multiply_gate_up<gate_up_f16<T>, ONE>(a, items, [&](uint32_t) { return plain_gate{a}; });
}

template <int T, bool ONE>
static __global__ void __maxnreg__(80)
    gate_up_biased_kernel(const __grid_constant__ gemm_args a, const __grid_constant__ gate_up_items items,
                          const __grid_constant__ experts_biases biases) {
  multiply_gate_up<gate_up_f16<T>, ONE>(a, items, [&](uint32_t matrix) {
    return expert_gate{a, biases.gate, biases.up, (uint64_t)matrix * a.weight[0].n_out};
  });
}

template <int T, bool ONE>
static weft_status set_up(cuda_device *d) {
  weft_status status = gemv_set_up(d, (const void *)gate_up_gemv_kernel<T, ONE>);
  if constexpr (experts_gemv_takes_biases(T))
    if (status == WEFT_OK) status = gemv_set_up(d, (const void *)gate_up_biased_kernel<T, ONE>);
  return status;
}

/* biases NULL: there are none, and no clamped gate. */
template <int T, bool ONE>
static weft_status start_gate_up(cuda_device *d, const gemm_args *args, const experts_biases *biases) {
  static_assert(gemv_bytes<T, 1>(2 * GEMV_SPLITS_MAX, 0, 0) + GEMM_RAW_BYTES <= GEMV_SHARED_BYTES_MAX, "shared memory");
  gate_up_items items;
  uint32_t n_warps = gate_up_warps(*args), n_raw = args->n_rows * (takes_both(*args) ? 2 : 1),
           bytes = gemv_bytes<T, 1>(n_warps, n_raw, args->n_units),
           n_blocks = gate_up_blocks_of(d, *args, bytes, &items);
  if (biases == NULL) {
    cuda_start(d, gate_up_gemv_kernel<T, ONE>, n_blocks, 32 * n_warps, bytes, *args, items);
  } else if constexpr (experts_gemv_takes_biases(T)) {
    cuda_start(d, gate_up_biased_kernel<T, ONE>, n_blocks, 32 * n_warps, bytes, *args, items, *biases);
  } else {
    return WEFT_E_UNSUPPORTED;
  }
  return cuda_launched(d, "the input side of experts");
}

weft_status experts_gemv_gate_up_biased(cuda_device *d, const gemm_args *args, const experts_biases *biases) {
  return dispatch_packed_type(args->type, [&](auto type) {
    constexpr int T = decltype(type)::value;
    return args->n_rows == 1 ? start_gate_up<T, true>(d, args, biases) : start_gate_up<T, false>(d, args, biases);
  });
}

weft_status experts_gemv_gate_up(cuda_device *d, const gemm_args *args) {
  return experts_gemv_gate_up_biased(d, args, NULL);
}

weft_status experts_gemv_gate_up_setup(cuda_device *d) {
  return each_packed_type([&](auto type) {
    constexpr int T = decltype(type)::value;
    weft_status status = set_up<T, true>(d);
    return status == WEFT_OK ? set_up<T, false>(d) : status;
  });
}
