/* SPDX-License-Identifier: MIT */
/* Gate and up of experts for few rows, with weights dequantised to 16 bits: products as gemm/gemv.cu makes them, in the
 * schedule of gate_up.cuh. */
#include "kernels/cuda/moe/gate_up_tiles.cuh"

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
  __device__ __forceinline__ float value(const gemm_args &a, const block &b, const float *sums, uint32_t row,
                                         uint32_t own, float scale) const {
    return reduce_output<1>(a, sums, 0, own, power_of_two(-b.scale_exponent[row]), scale);
  }
  template <class F>
  __device__ __forceinline__ void multiply_tile(const gemm_args &a, gemv_ring &ring, const tile_item &t, F &&issue,
                                                float (&all)[4]) const {
    x_source<1> x;
    x.raw = rows + t.row * raw_stride(a.n_units);
    ::multiply_tile<T, true, false>(a, x, powers, ring, issue, all);
  }
  __device__ __forceinline__ float scale_of_tile(const gemm_weight &weight, uint32_t matrix) const {
    return __fmul_rn(power_of_two(-prescale_exponent(T, &header)), scale_of(weight, matrix));
  }
  __device__ __forceinline__ float finish(const block &b, float sum, uint32_t row, float scale) const {
    return __fmul_rn(__fmul_rn(sum, power_of_two(-b.scale_exponent[row])), scale);
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

template <int T>
static __global__ void __maxnreg__(80)
    gate_up_gemv_kernel(const __grid_constant__ gemm_args a, const __grid_constant__ gate_up_items items) {
  multiply_gate_up<gate_up_f16<T>>(a, items, [&](uint32_t) { return plain_gate{a}; });
}

template <int T>
static __global__ void __maxnreg__(80)
    gate_up_biased_kernel(const __grid_constant__ gemm_args a, const __grid_constant__ gate_up_items items,
                          const __grid_constant__ experts_biases biases) {
  multiply_gate_up<gate_up_f16<T>>(a, items, [&](uint32_t matrix) {
    return expert_gate{a, biases.gate, biases.up, (uint64_t)matrix * a.weight[0].n_out};
  });
}

template <int T>
static __global__ void __launch_bounds__(32 * GEMV_WARPS_MAX, 1)
    gate_up_tiles_kernel(const __grid_constant__ gemm_args a) {
  multiply_gate_up_tiles<gate_up_f16<T>>(a, [&](uint32_t) { return plain_gate{a}; });
}

template <int T>
static __global__ void __launch_bounds__(32 * GEMV_WARPS_MAX, 1)
    gate_up_biased_tiles_kernel(const __grid_constant__ gemm_args a, const __grid_constant__ experts_biases biases) {
  multiply_gate_up_tiles<gate_up_f16<T>>(a, [&](uint32_t matrix) {
    return expert_gate{a, biases.gate, biases.up, (uint64_t)matrix * a.weight[0].n_out};
  });
}

static uint32_t bytes_of_rows(uint32_t n_rows, uint32_t n_units, bool shared) {
  return n_rows * (shared ? 2 : 1) * raw_stride(n_units) * 16;
}

bool experts_gemv_gate_up_fits(int type, uint32_t n_rows, uint32_t n_in, bool shared) {
  uint32_t stage_bytes = 0;
  if (n_rows == 1) return gemm_takes_raw(type, 1, (shared ? 2 : 1) * n_in);
  if (type == WEFT_TYPE_F32 || n_in % 8 != 0) return false;
  (void)dispatch_packed_type(type, [&](auto of) {
    stage_bytes = gemv_stage_bytes(decltype(of)::value);
    return WEFT_OK;
  });
  return tiles_pairs(n_rows, stage_bytes, bytes_of_rows(n_rows, cuda_ceil(n_in, 128), shared)) > 0;
}

template <int T>
static weft_status set_up(cuda_device *d) {
  weft_status status = gemv_set_up(d, (const void *)gate_up_gemv_kernel<T>);
  if (status == WEFT_OK) status = gemv_set_up(d, (const void *)gate_up_tiles_kernel<T>);
  if constexpr (experts_gemv_takes_biases(T)) {
    if (status == WEFT_OK) status = gemv_set_up(d, (const void *)gate_up_biased_kernel<T>);
    if (status == WEFT_OK) status = gemv_set_up(d, (const void *)gate_up_biased_tiles_kernel<T>);
  }
  return status;
}

/* Two rows and more. biases NULL: there are none, and no clamped gate. */
template <int T>
static weft_status start_tiles(cuda_device *d, const gemm_args &a, const experts_biases *biases) {
  uint32_t rows_bytes = bytes_of_rows(a.n_rows, a.n_units, a.n_shared > 0), stage_bytes = gemv_stage_bytes(T),
           n_pairs = tiles_pairs(a.n_rows, stage_bytes, rows_bytes),
           bytes = tiles_bytes(n_pairs, stage_bytes, rows_bytes);
  if (biases == NULL) {
    cuda_start(d, gate_up_tiles_kernel<T>, d->n_multiprocessors, 64 * n_pairs, bytes, a);
  } else if constexpr (experts_gemv_takes_biases(T)) {
    cuda_start(d, gate_up_biased_tiles_kernel<T>, d->n_multiprocessors, 64 * n_pairs, bytes, a, *biases);
  } else {
    return WEFT_E_UNSUPPORTED;
  }
  return cuda_launched(d, "the input side of experts");
}

template <int T>
static weft_status start_one_row(cuda_device *d, const gemm_args &a, const experts_biases *biases) {
  static_assert(gemv_bytes<T, 1>(2 * GEMV_SPLITS_MAX, 0, 0) + GEMM_RAW_BYTES <= GEMV_SHARED_BYTES_MAX, "shared memory");
  gate_up_items items;
  uint32_t n_warps = gate_up_warps(a), bytes = gemv_bytes<T, 1>(n_warps, a.n_shared > 0 ? 2 : 1, a.n_units),
           n_blocks = gate_up_blocks_of(d, a, bytes, &items);
  if (biases == NULL) {
    cuda_start(d, gate_up_gemv_kernel<T>, n_blocks, 32 * n_warps, bytes, a, items);
  } else if constexpr (experts_gemv_takes_biases(T)) {
    cuda_start(d, gate_up_biased_kernel<T>, n_blocks, 32 * n_warps, bytes, a, items, *biases);
  } else {
    return WEFT_E_UNSUPPORTED;
  }
  return cuda_launched(d, "the input side of experts");
}

weft_status experts_gemv_gate_up_biased(cuda_device *d, const gemm_args *args, const experts_biases *biases) {
  return dispatch_packed_type(args->type, [&](auto type) {
    constexpr int T = decltype(type)::value;
    return args->n_rows == 1 ? start_one_row<T>(d, *args, biases) : start_tiles<T>(d, *args, biases);
  });
}

weft_status experts_gemv_gate_up(cuda_device *d, const gemm_args *args) {
  return experts_gemv_gate_up_biased(d, args, NULL);
}

weft_status experts_gemv_gate_up_setup(cuda_device *d) {
  return each_packed_type([&](auto type) { return set_up<decltype(type)::value>(d); });
}
