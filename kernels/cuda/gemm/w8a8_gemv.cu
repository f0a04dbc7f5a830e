/* SPDX-License-Identifier: MIT */
/* Split-K GEMV in W8A8 (w8a8.h) for up to 16 rows. A warp takes 16 outputs and one split
 * of the spans, and leaves the exact integer sum of each span in shared memory; the warps of a row tile then reduce the
 * tile's spans in their order. Weights, blocks, raw rows and gated products are as in gemv.cu. */
#include "kernels/cuda/gemm/w8a8_ahead.h"
#include "kernels/cuda/gemm/w8a8_gemv_dense.cuh"

#ifdef WEFT_CUDA_PORTABLE
static constexpr bool IS_PORTABLE = true;
#else
static constexpr bool IS_PORTABLE = false;
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

/* Whether a block has room for the product; n_raw: how many of the rows come raw. */
static bool has_room(int type, uint32_t n_rows, uint32_t n_in, bool gated, uint32_t n_raw) {
  uint32_t n_columns = n_rows == 1 && n_raw == 1 ? 1 : n_rows <= 8 ? 8 : 16;
  return w8a8_gemv_bytes(type, gated ? 2 : 1, GEMV_SPLITS_MAX, cuda_ceil(n_in, W8A8_SPAN), n_columns, n_raw, 2) <=
         GEMV_SHARED_BYTES_MAX;
}

bool w8a8_gemv_takes(int type, uint32_t n_rows, uint32_t n_in, bool gated) {
  uint32_t n_raw = w8a8_gemv_takes_raw(n_rows, n_in) ? n_rows : 0;
  return n_rows <= GEMV_ROWS_NARROW && w8a8_takes(type) &&
         (has_room(type, n_rows, n_in, gated, n_raw) || has_room(type, n_rows, n_in, gated, 0));
}

/* Rows that have no room beside the sums come after the prologue. */
bool w8a8_gemv_reads_raw(const gemm_args *a) {
  return w8a8_gemv_takes_raw(a->n_rows, a->n_in) &&
         has_room(a->type, a->n_rows, a->n_in, a->activation != 0, a->n_rows);
}

/* How a product is cut: n_slots row tiles at once in a block, each by n_splits warps. */
typedef struct gemv_cut {
  uint32_t n_slots, n_splits, n_groups, n_bytes;
} gemv_cut;

/* A block has the sums of two groups where it makes several; in the portable set it always has room for them. */
static gemv_cut cut_with(const cuda_device *d, const gemm_args &a, uint32_t n_slots, uint32_t n_splits,
                         uint32_t n_columns, uint32_t n_raw) {
  uint32_t n_groups = cuda_ceil(gemv_tiles(a), a.gated ? n_slots / 2 : n_slots);
  return {n_slots, n_splits, n_groups,
          w8a8_gemv_bytes(a.type, n_slots, n_splits, w8a8_spans_of(a), n_columns, n_raw,
                          n_groups > d->n_multiprocessors || IS_PORTABLE ? 2 : 1)};
}

/* How many row tiles a block takes at once, by the rule of slots_of in gemv_dense.cuh. */
static gemv_cut cut_plain(const cuda_device *d, const gemm_args &a, uint32_t n_columns, uint32_t n_raw) {
  uint32_t n = GEMV_SPLITS_MAX / a.n_splits, n_tiles = gemv_tiles(a);
  auto cut = [&](uint32_t n_slots) { return cut_with(d, a, n_slots, a.n_splits, n_columns, n_raw); };
  while (n > 1 && cut(n).n_bytes > GEMV_SHARED_BYTES_MAX) n--;
  while (n_raw > 0 && (n + 1) * a.n_splits <= GEMV_WARPS_MAX &&
         n_tiles > n * d->n_multiprocessors / (a.n_weights == 1 && !a.raw.is_there ? 1 : 2) &&
         cut(n + 1).n_bytes <= GEMV_SHARED_BYTES_MAX)
    n++;
  return cut(n);
}

/* Gated pairs of row tiles: as many to a block, and as many warps to each, as have them done first. A span takes a warp
 * so long that barriers and sums for each group of pairs take as long as another half. */
static gemv_cut cut_gated(const cuda_device *d, const gemm_args &a, uint32_t n_columns, uint32_t n_raw,
                          uint32_t n_warps_max) {
  uint32_t n_spans = w8a8_spans_of(a), least = UINT32_MAX;
  gemv_cut best = cut_with(d, a, 2, a.n_splits, n_columns, n_raw);
  for (uint32_t n_slots = 2; n_slots <= n_warps_max; n_slots += 2) {
    uint32_t each = cuda_ceil(n_spans, n_warps_max / n_slots), n_splits = cuda_ceil(n_spans, each);
    gemv_cut cut = cut_with(d, a, n_slots, n_splits, n_columns, n_raw);
    uint32_t time = cuda_ceil(cut.n_groups, d->n_multiprocessors) * (2 * each + 1);
    if (n_slots * n_splits < n_raw || cut.n_bytes > GEMV_SHARED_BYTES_MAX || time >= least) continue;
    best = cut, least = time;
  }
  return best;
}

/* args NULL: sets the kernel up. */
template <int T, int NT, int ROWS, bool GATED>
static weft_status start_gemv(cuda_device *d, const gemm_args *args) {
  auto kernel = w8a8_gemv_kernel<T, NT, ROWS, GATED>;
  if (args == NULL) return gemv_set_up(d, (const void *)kernel);
  gemm_args a = *args;
  uint32_t n_columns = ROWS == ROWS_RAW_ONE ? 1 : 8 * NT, n_raw = ROWS != ROWS_PREPARED ? a.n_rows : 0;
  gemv_cut cut = GATED ? cut_gated(d, a, n_columns, n_raw, NT == 1 ? GEMV_WARPS_MAX : 2 * GEMV_SPLITS_MAX)
                       : cut_plain(d, a, n_columns, n_raw);
  gemm_set_split_k(&a, cut.n_splits); /* which changes no bit */
  ring_set_stages(&a, RING_DENSE);
  uint32_t n_warps = cut.n_slots * a.n_splits;
  cuda_start(d, kernel, gemv_blocks_of(d, cut.n_groups, n_warps, cut.n_bytes), 32 * n_warps, cut.n_bytes, a,
             cut.n_groups);
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
    return status;
  } else if (args->raw.x != NULL) {
    return args->n_rows == 1 ? launch_gemv<T, 1, ROWS_RAW_ONE>(d, args) : launch_gemv<T, 1, ROWS_RAW>(d, args);
  } else {
    return args->n_rows <= 8 ? launch_gemv<T, 1, ROWS_PREPARED>(d, args) : launch_gemv<T, 2, ROWS_PREPARED>(d, args);
  }
}

weft_status w8a8_gemv(cuda_device *d, const gemm_args *args) {
  if (args->ids != NULL) return w8a8_gemv_gate_up(d, args);
  if (w8a8_ahead_takes(d, args)) return w8a8_ahead(d, args);
  return dispatch_packed_type(args->type, [&](auto type) { return launch_for_rows<decltype(type)::value>(d, args); });
}

weft_status w8a8_gemv_setup(cuda_device *d) {
  weft_status status = each_packed_type([&](auto type) { return launch_for_rows<decltype(type)::value>(d, NULL); });
  if (status == WEFT_OK) status = w8a8_ahead_setup(d);
  if (status == WEFT_OK) status = w8a8_gemv_gate_up_setup(d);
  return status == WEFT_OK ? w8a8_gemv_down_setup(d) : status;
}
