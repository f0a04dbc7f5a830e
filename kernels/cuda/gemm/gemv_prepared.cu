/* SPDX-License-Identifier: MIT */
/* Dense products of few rows after the prologue: up to 16, in the portable set up to 32 (gemv.cu). */
#include "kernels/cuda/gemm/gemv.cuh"
#include "kernels/cuda/gemm/gemv_dense.cuh"

/* Whether there are kernels for 17 to 32 rows, which come tiled (gemm.cu). On Hopper gemm_dense is faster. */
#ifdef WEFT_CUDA_PORTABLE
static constexpr bool TAKES_TILED = true;
#else
static constexpr bool TAKES_TILED = false;
#endif

/* args NULL: sets the kernels of the type up. */
template <int T>
static weft_status launch_for_rows(cuda_device *d, const gemm_args *args) {
  if (args == NULL) {
    weft_status status = launch_dense<T, 1, ROWS_PREPARED>(d, NULL);
    if (status == WEFT_OK) status = launch_dense<T, 2, ROWS_PREPARED>(d, NULL);
    if constexpr (TAKES_TILED)
      if (status == WEFT_OK) status = start_dense<T, 4, ROWS_PREPARED, false>(d, NULL);
    return status;
  }
  if constexpr (TAKES_TILED)
    if (args->n_rows > GEMV_ROWS_NARROW) return start_dense<T, 4, ROWS_PREPARED, false>(d, args);
  return args->n_rows <= 8 ? launch_dense<T, 1, ROWS_PREPARED>(d, args) : launch_dense<T, 2, ROWS_PREPARED>(d, args);
}

weft_status gemv_prepared(cuda_device *d, const gemm_args *args) {
  if (args == NULL) return each_packed_type([&](auto type) { return launch_for_rows<decltype(type)::value>(d, NULL); });
  return dispatch_packed_type(args->type, [&](auto type) { return launch_for_rows<decltype(type)::value>(d, args); });
}
