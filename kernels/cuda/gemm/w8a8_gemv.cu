/* SPDX-License-Identifier: MIT */
/* Split-K GEMV in W8A8 (w8a8.h) for up to 16 rows, in the portable set up to 32. A warp takes 16 outputs and one split
 * of the spans, and leaves the exact integer sum of each span in shared memory; the warps of a row tile then reduce the
 * tile's spans in their order. Weights, blocks, raw rows and gated products are as in gemv.cu. */
#include "kernels/cuda/gemm/w8a8_gemv_dense.cuh"

/* Whether there are kernels for 17 to 32 rows, which come tiled. On Hopper w8a8_dense is faster. */
#ifdef WEFT_CUDA_PORTABLE
static constexpr bool TAKES_TILED = true;
#else
static constexpr bool TAKES_TILED = false;
#endif

template <int T, int NT, int ROWS, bool GATED>
static __global__ void __maxnreg__(NT == 1 ? 80 : 128)
    w8a8_gemv_kernel(const __grid_constant__ gemm_args a, uint32_t n_groups) {
  multiply_groups<T, NT, ROWS, GATED>(a, n_groups, all_blocks());
}

/* ---- host ------------------------------------------------------------------------------------------------ */

/* Raw rows are as many as a block surely has warps. */
bool w8a8_gemv_takes_raw(uint32_t n_rows, uint32_t n_in) {
  return n_in % 8 == 0 && (n_rows == 1 || (n_rows <= GEMM_RAW_ROWS && n_in > W8A8_SPAN));
}

bool w8a8_gemv_takes(int type, uint32_t n_rows, uint32_t n_in, bool gated) {
  uint32_t n_columns = n_rows == 1    ? 1
                       : n_rows <= 8  ? 8
                       : n_rows <= 16 ? 16
                                      : 32,
           n_raw = w8a8_gemv_takes_raw(n_rows, n_in) ? n_rows : 0;
  return n_rows <= 32 && w8a8_takes(type) &&
         w8a8_gemv_bytes(type, gated ? 2 : 1, GEMV_SPLITS_MAX, cuda_ceil(n_in, W8A8_SPAN), n_columns, n_raw) <=
             GEMV_SHARED_BYTES_MAX;
}

bool w8a8_gemv_takes_tiled(const gemm_args *a) {
  return TAKES_TILED && a->jobs == NULL && a->n_rows > GEMV_ROWS_NARROW && gemv_tiles(*a) <= GEMV_TILES &&
         w8a8_gemv_takes(a->type, a->n_rows, a->n_in, a->n_weights == 2 || a->gated);
}

/* How many row tiles a block takes at once, by the rule of slots_of in gemv_dense.cuh. */
static uint32_t slots_of(cuda_device *d, const gemm_args &a, uint32_t n_columns, uint32_t n_raw) {
  uint32_t n = a.gated ? 2 : GEMV_SPLITS_MAX / a.n_splits, n_tiles = gemv_tiles(a), n_spans = w8a8_spans_of(a);
  while (n > 1 && !a.gated && w8a8_gemv_bytes(a.type, n, a.n_splits, n_spans, n_columns, n_raw) > GEMV_SHARED_BYTES_MAX)
    n--;
  while (n_raw > 0 && !a.gated && (n + 1) * a.n_splits <= GEMV_WARPS_MAX &&
         n_tiles > n * d->n_multiprocessors / (a.n_weights == 1 && !a.raw.is_there ? 1 : 2) &&
         w8a8_gemv_bytes(a.type, n + 1, a.n_splits, n_spans, n_columns, n_raw) <= GEMV_SHARED_BYTES_MAX)
    n++;
  return n;
}

/* args NULL: sets the kernel up. */
template <int T, int NT, int ROWS, bool GATED>
static weft_status start_gemv(cuda_device *d, const gemm_args *args) {
  auto kernel = w8a8_gemv_kernel<T, NT, ROWS, GATED>;
  if (args == NULL) return gemv_set_up(d, (const void *)kernel);
  const gemm_args &a = *args;
  uint32_t n_columns = ROWS == ROWS_RAW_ONE ? 1 : 8 * NT, n_raw = ROWS != ROWS_PREPARED ? a.n_rows : 0;
  uint32_t n_slots = slots_of(d, a, n_columns, n_raw), n_warps = n_slots * a.n_splits;
  uint32_t n_groups = cuda_ceil(gemv_tiles(a), GATED ? 1 : n_slots);
  uint32_t bytes = w8a8_gemv_bytes(T, n_slots, a.n_splits, w8a8_spans_of(a), n_columns, n_raw);
  cuda_start(d, kernel, gemv_blocks_of(d, n_groups, n_warps, bytes), 32 * n_warps, bytes, a, n_groups);
  return cuda_launched(d, "a product of few rows in 8 bits");
}

template <int T, int NT, int ROWS>
static weft_status launch_gemv(cuda_device *d, const gemm_args *args) {
  if (args != NULL)
    return args->gated ? start_gemv<T, NT, ROWS, true>(d, args) : start_gemv<T, NT, ROWS, false>(d, args);
  weft_status status = start_gemv<T, NT, ROWS, true>(d, NULL);
  return status == WEFT_OK ? start_gemv<T, NT, ROWS, false>(d, NULL) : status;
}

/* args NULL: sets the kernels of the type up. */
template <int T>
static weft_status launch_for_rows(cuda_device *d, const gemm_args *args) {
  if constexpr (!w8a8_takes(T)) {
    return args == NULL ? WEFT_OK : WEFT_E_UNSUPPORTED;
  } else if (args == NULL) {
    weft_status status = launch_gemv<T, 1, ROWS_RAW_ONE>(d, NULL);
    if (status == WEFT_OK) status = launch_gemv<T, 1, ROWS_RAW>(d, NULL);
    if (status == WEFT_OK) status = launch_gemv<T, 1, ROWS_PREPARED>(d, NULL);
    if (status == WEFT_OK) status = launch_gemv<T, 2, ROWS_PREPARED>(d, NULL);
    if constexpr (TAKES_TILED)
      if (status == WEFT_OK) status = launch_gemv<T, 4, ROWS_PREPARED>(d, NULL);
    return status;
  } else if (args->raw.x != NULL) {
    return args->n_rows == 1 ? launch_gemv<T, 1, ROWS_RAW_ONE>(d, args) : launch_gemv<T, 1, ROWS_RAW>(d, args);
  } else {
    if constexpr (TAKES_TILED)
      if (args->n_rows > 16) return launch_gemv<T, 4, ROWS_PREPARED>(d, args);
    return args->n_rows <= 8 ? launch_gemv<T, 1, ROWS_PREPARED>(d, args) : launch_gemv<T, 2, ROWS_PREPARED>(d, args);
  }
}

weft_status w8a8_gemv(cuda_device *d, const gemm_args *args) {
  if (args->ids != NULL) return w8a8_gemv_gate_up(d, args);
  return dispatch_packed_type(args->type, [&](auto type) { return launch_for_rows<decltype(type)::value>(d, args); });
}

weft_status w8a8_gemv_setup(cuda_device *d) {
  weft_status status = each_packed_type([&](auto type) { return launch_for_rows<decltype(type)::value>(d, NULL); });
  if (status == WEFT_OK) status = w8a8_gemv_gate_up_setup(d);
  return status == WEFT_OK ? w8a8_gemv_down_setup(d) : status;
}
