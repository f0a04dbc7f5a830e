/* SPDX-License-Identifier: MIT */
/* Products for few rows: a warp takes 16 outputs and one segment of the inputs; the segments' sums meet in shared
 * memory, where they are added in the order of multiply.h.
 *
 *   weights  every warp has places in shared memory for a few pieces of a row tile, which bulk copies bring
 *   block    its warps are (row tiles) x (segments), for one job of 8 NT rows of x. Then the block goes on to the row
 *            tiles that lie one grid further; while it finishes its tiles, the first weights of the next ones are on
 *            their way
 *   raw      up to four rows come in f32: every block prepares them for itself while its first weights are on their way,
 *            which saves a kernel. Blocks then have as many row tiles as a multiprocessor holds
 *   gated    a row tile of the gate and the same tile of up lie in one block, which writes act(g) * u
 *   tall     a product of up to eight rows with at least two row tiles for every warp of the card (the head): a warp
 *            takes a row tile with all its segments and waits for no other warp
 *   shared   row tiles of a shared MLP come before those of experts, so that their weights arrive while experts are
 *            being chosen */
#include "kernels/cuda/few.cuh"

enum { TALL_WARPS = 8 };

template <int T, int NT>
static __device__ __forceinline__ void ask_next(const multiply_args &a, const few_items &items, uint32_t slot,
                                                uint32_t first, uint32_t end, few_ring &ring, uint32_t place,
                                                few_cursor *at) {
  if (!find_next_piece<NT>(a, items, slot, first, end, at)) return;
  ring_ask<T>(a, ring, place, at->row_tile, at->unit);
  at->unit += few_units(T);
}

/* The sum over segments, ascending from 0, of the lane's number e of row group n. part: the sums of a row tile,
 * [segments][NT][lane][4]. */
template <int NT>
static __device__ __forceinline__ float join_segments(const multiply_args &a, const float *part, int n, int e,
                                                      float back, float down) {
  float sum = 0.0f, of[FEW_SEGMENTS];
#pragma unroll
  for (uint32_t s = 0; s < FEW_SEGMENTS; s++)
    of[s] = s < a.n_segments ? part[((s * NT + n) * 32 + threadIdx.x % 32) * 4 + e] : 0.0f;
#pragma unroll
  for (uint32_t s = 0; s < FEW_SEGMENTS; s++)
    if (s < a.n_segments) sum = __fadd_rn(sum, of[s]);
  return __fmul_rn(__fmul_rn(sum, back), down);
}

/* Writes a row tile's results. raise: raise_exponent of the tile's weight and of the weight that it is gated with. lift:
 * of the raw rows, from that of column 0 on. */
template <int T, int NT, bool RAW>
static __device__ __forceinline__ void finish_tile(const multiply_args &a, const multiply_job &job, few_tile tile,
                                                   const float *part, const int *raise, const int *lift) {
  uint32_t lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
  const multiply_weight &weight = a.weight[tile.weight], &up_weight = a.weight[gated_with(a, tile)];
  float down = lower_by(weight, job.matrix, raise[0]),
        up_down = lower_by(up_weight, job.matrix, a.gated ? raise[1] : 0);
#pragma unroll
  for (int n = 0; n < NT; n++) {
#pragma unroll
    for (int e = 0; e < 4; e++) {
      uint32_t column = 8 * n + 2 * c + e % 2, out = tile.tile * 16 + g + e / 2 * 8;
      if (column >= job.n || out >= weight.n_out) continue;
      float back = RAW ? power_of_two(-lift[column]) : a.x_back[x_row_of(a, job, column)];
      float value = join_segments<NT>(a, part, n, e, back, down);
      if (a.gated) {
        float up = join_segments<NT>(a, part + a.n_segments * NT * 128, n, e, back, up_down);
        value = gate_product(a.activation, value, up);
      }
      weight.y[(uint64_t)(job.first + column) * weight.y_stride + out] = value;
    }
  }
}

/* Which raw rows a block has prepared: its own, those of the shared MLP, or both, one behind the other. */
typedef enum raw_kind { RAW_NONE, RAW_OWN, RAW_SHARED, RAW_BOTH } raw_kind;

/* Whether a block that begins with the shared MLP prepares the rows of both at once. More than two would leave room for
 * one block to a multiprocessor, where there are two. */
static __host__ __device__ __forceinline__ bool of_both(const multiply_args &a) {
  return a.n_shared > 0 && a.n_rows <= 2;
}

/* How few_kernel's rows come: prepared, one raw one, or some raw ones. */
enum { ROWS_PREPARED, ROWS_RAW_ONE, ROWS_RAW };

template <int T, int ROWS>
static __device__ __forceinline__ void take_raw(const multiply_args &a, raw_kind kind, uint32_t *most_of, uint4 *raw,
                                                int *lift) {
  uint32_t n = ROWS == ROWS_RAW_ONE ? 1 : a.n_rows;
  prepare_raw<T>(
      a, kind == RAW_BOTH ? 2 * n : n,
      [&](uint32_t r) {
        bool of_shared = kind == RAW_SHARED || (kind == RAW_BOTH && r >= n);
        uint32_t i = kind == RAW_BOTH && of_shared ? r - n : r;
        return of_shared ? a.shared_x + i * a.shared_stride : a.raw.x + i * a.raw.x_stride;
      },
      most_of, raw, lift);
}

template <int T, int NT, int ROWS>
static __global__ void __maxnreg__(NT == 1   ? 80
                                   : NT == 2 ? 112
                                             : 128)
    few_kernel(const __grid_constant__ multiply_args a, const few_items items) {
  /* Places of the warps; sums [2][row tiles of the block][segments][NT][32][4], whose halves items use in turn; raw
   * rows. */
  extern __shared__ __align__(128) uint8_t memory[];
  constexpr bool RAW = ROWS != ROWS_PREPARED, ONE = ROWS == ROWS_RAW_ONE;
  __shared__ __align__(8) uint64_t filled[FEW_WARPS_MAX * FEW_PLACES];
  __shared__ uint32_t most_of[FEW_WARPS_MAX];
  __shared__ int raise_of[2][FEW_WARPS_MAX];  /* of row tiles */
  __shared__ int lift[2 * MULTIPLY_RAW_ROWS]; /* of raw rows */
  uint32_t n_warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32, turn = 0;
  uint32_t segment = warp % a.n_segments, slot = warp / a.n_segments;
  uint32_t first = segment * a.segment_units, end = min(a.n_units, first + a.segment_units);
  bool is_last = segment + 1 == a.n_segments; /* the warp of the shortest segment finishes tiles */
  few_ring ring = {memory + warp * FEW_PLACES * few_piece_bytes(T), filled + warp * FEW_PLACES, FEW_PLACES, 0, 0};
  float *part = (float *)(void *)(memory + n_warps * FEW_PLACES * few_piece_bytes(T));
  uint4 *raw = (uint4 *)(void *)(part + 2 * n_warps * NT * 128);
  raw_kind has = RAW_NONE;
  ring_open(&ring);
  few_tile tile;
  bool is_shared = blockIdx.x < items.n_shared, of_choice = a.ids != NULL && !is_shared;
  bool active = find_own(a, items, blockIdx.x, slot, &tile);
  uint32_t known = is_shared ? a.n_weights == 2 ? slot : 0
                   : active  ? tile.weight
                             : 0,
           place = 0; /* known: the weight whose header is loaded */
  form_header header = header_of(a.weight[known].data), of_shared = header;
  if (is_shared) of_shared = header_of(a.weight[MULTIPLY_SHARED + slot].data);
  if (of_choice) inputs_wait();
  few_cursor ahead = {blockIdx.x, 0, NULL, NULL};
  enter_item<NT>(a, items, slot, first, &ahead);
  for (; place < FEW_PLACES && ahead.unit < end; place++)
    ask_next<T, NT>(a, items, slot, first, end, ring, place, &ahead);
  if (!of_choice) inputs_wait();
  next_may_start();
  if (RAW && is_shared) take_raw<T, ROWS>(a, has = ONE || of_both(a) ? RAW_BOTH : RAW_SHARED, most_of, raw, lift);
  for (; place < FEW_PLACES; place++) ask_next<T, NT>(a, items, slot, first, end, ring, place, &ahead);
  multiply_job job;
  bool exists = find_job(a, items, blockIdx.x, 8 * NT, &job);
  active = exists && active;
  for (uint32_t index = blockIdx.x; index < items.n; index += gridDim.x) {
    if (index != blockIdx.x) {
      exists = find_job(a, items, index, 8 * NT, &job);
      active = exists && find_own(a, items, index, slot, &tile);
    }
    if (!exists) continue;
    is_shared = index < items.n_shared;
    if (active && !is_shared && tile.weight != known) header = header_of(a.weight[known = tile.weight].data);
    int raise = raise_exponent(T, is_shared ? &of_shared : &header);
    raise_powers powers = powers_of<T>(raise, a.values);
    float sum[NT][4];
    x_source<NT> x;
    uint32_t raw_row = 0;
#pragma unroll
    for (int at = 0; at < 4 * NT; at++) sum[at / 4][at % 4] = 0.0f;
    if constexpr (RAW) {
      if (!is_shared && has != RAW_OWN && has != RAW_BOTH) {
        __syncthreads(); /* all warps have read the rows before */
        take_raw<T, ROWS>(a, has = RAW_OWN, most_of, raw, lift);
      }
      bool by_pair = a.ids != NULL && !is_shared;
      if (ONE) {
        raw_row = is_shared ? 1 : 0;
      } else {
        if (by_pair) raw_row = x_row_of(a, job, 0);
        if (is_shared) job.n = a.n_rows, raw_row = has == RAW_BOTH ? a.n_rows : 0;
      }
      uint32_t r = raw_row + (ONE || by_pair ? 0 : min(lane / 4, a.n_rows - 1));
      x.raw = raw + r * a.n_units * 16;
      x.turn = raw_turn(r);
    } else {
#pragma unroll
      for (int n = 0; n < NT; n++)
        x.prepared[n] = (const uint8_t *)a.x + x_at(a, x_row_of(a, job, 8 * n + lane / 4), lane % 4);
    }
    if (lane == 0 && is_last) raise_of[turn][slot] = raise;
    for (uint32_t unit = active ? first : end; unit < end; unit += few_units(T)) {
      ring_wait(ring);
      multiply_piece<T, NT, RAW>(a, ring, unit, end, x, powers, sum);
      uint32_t at = ring.at;
      ring_next(ring);
      ask_next<T, NT>(a, items, slot, first, end, ring, at, &ahead);
    }
    float *own = part + (turn * n_warps + warp) * NT * 128;
#pragma unroll
    for (int n = 0; n < NT; n++)
      ((float4 *)(void *)own)[n * 32 + lane] = make_float4(sum[n][0], sum[n][1], sum[n][2], sum[n][3]);
    __syncthreads(); /* it also says that the sums of the item before have been read */
    if (active && is_last && (!a.gated || slot == 0))
      finish_tile<T, NT, RAW>(a, job, tile, own - segment * NT * 128, &raise_of[turn][slot], lift + raw_row);
    turn ^= 1;
  }
}

template <int T, int NT>
static constexpr uint32_t bytes_of(uint32_t n_warps, uint32_t raw_units) {
  return n_warps * (FEW_PLACES * few_piece_bytes(T) + 2 * NT * 512) + raw_units * 256;
}

/* ---- many row tiles: a warp has whole ones ------------------------------------------------------------------ */

/* The next piece that a warp will ask for. */
typedef struct tall_cursor {
  uint32_t tile, unit;
} tall_cursor;

template <int T>
static __device__ __forceinline__ void ask_tall(const multiply_args &a, few_ring &ring, uint32_t place,
                                                tall_cursor &at) {
  if (at.tile >= a.weight[0].n_tiles) return;
  ring_ask<T>(a, ring, place, a.weight[0].data + FORM_HEADER_BYTES + (uint64_t)at.tile * a.tile_bytes, at.unit);
  at.unit += few_units(T);
  if (at.unit >= a.n_units) at.unit = 0, at.tile += gridDim.x * TALL_WARPS;
}

/* No warp waits for another. ONE: of one row, which comes raw; other rows are prepared. */
template <int T, bool ONE>
static __global__ void __launch_bounds__(32 * TALL_WARPS, FEW_WARPS_MAX / TALL_WARPS)
    tall_kernel(const __grid_constant__ multiply_args a) {
  extern __shared__ __align__(128) uint8_t memory[]; /* places of the warps, the raw row */
  __shared__ __align__(8) uint64_t filled[TALL_WARPS * FEW_PLACES];
  __shared__ uint32_t most_of[TALL_WARPS];
  __shared__ int lift[1];
  constexpr int n = ONE ? 2 : 4;
  uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, tile = blockIdx.x * TALL_WARPS + warp;
  few_ring ring = {memory + warp * FEW_PLACES * few_piece_bytes(T), filled + warp * FEW_PLACES, FEW_PLACES, 0, 0};
  uint4 *raw = (uint4 *)(void *)(memory + TALL_WARPS * FEW_PLACES * few_piece_bytes(T));
  ring_open(&ring);
  tall_cursor ahead = {tile, 0};
  for (uint32_t place = 0; place < FEW_PLACES; place++) ask_tall<T>(a, ring, place, ahead);
  opened_rows opened = open_rows<T, ONE>(a, most_of, raw, lift);
  x_source<1> x = rows_of_lane<ONE>(a, raw, a.n_rows);
  float back[2], down = lower_by(a.weight[0], 0, opened.raise);
#pragma unroll
  for (uint32_t i = 0; i < 2; i++)
    back[i] = ONE ? power_of_two(-lift[0]) : a.x_back[min(lane % 4 * 2 + i, a.n_rows - 1)];
  for (; tile < a.weight[0].n_tiles; tile += gridDim.x * TALL_WARPS) {
    float all[n];
    multiply_tile<T, ONE, ONE>(
        a, x, opened.powers, ring, [&](uint32_t place) { ask_tall<T>(a, ring, place, ahead); }, all);
#pragma unroll
    for (int e = 0; e < n; e++) {
      uint32_t out = tile * 16 + lane / 4 + (ONE ? e : e / 2) * 8, row = lane % 4 * 2 + (ONE ? 0 : e % 2);
      if (row < a.n_rows && out < a.weight[0].n_out)
        a.weight[0].y[row * a.weight[0].y_stride + out] = __fmul_rn(__fmul_rn(all[e], back[ONE ? 0 : e % 2]), down);
    }
  }
}

bool multiply_is_tall(const cuda_device *d, const multiply_args *a) {
  return a->n_rows <= 8 && a->n_weights == 1 && a->ids == NULL && !a->gated &&
         a->weight[0].n_tiles >= 2 * FEW_WARPS_MAX * d->n_multiprocessors;
}

/* a NULL: sets the kernel up. */
template <int T, bool ONE>
static weft_status launch_tall(cuda_device *d, const multiply_args *args) {
  uint32_t places = TALL_WARPS * FEW_PLACES * few_piece_bytes(T);
  if (args == NULL)
    return cuda_judge(d,
                      cudaFuncSetAttribute(tall_kernel<T, ONE>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           (int)places + (ONE ? MULTIPLY_RAW_BYTES : 0)),
                      "setting up products");
  multiply_args a = *args;
  a.raw.wide = few_is_wide(a.raw.x, a.raw.x_stride);
  cuda_start(d, tall_kernel<T, ONE>, FEW_WARPS_MAX / TALL_WARPS * d->n_multiprocessors, 32 * TALL_WARPS,
             places + (ONE ? a.n_units * 256 : 0), a);
  return cuda_launched(d, "a product with a tall weight");
}

/* ---- launches ---------------------------------------------------------------------------------------------- */

/* How many row tiles a block takes at once: a pair where they are gated. Where every block prepares its row for itself,
 * it takes as many as a multiprocessor holds, as long as at least half of the card has work. */
template <int T, int NT, int ROWS>
static uint32_t slots_of(cuda_device *d, const multiply_args &a, uint32_t raw_units) {
  uint32_t n = a.gated ? 2 : FEW_SEGMENTS / a.n_segments, n_tiles = few_tiles(a);
  while (ROWS != ROWS_PREPARED && !a.gated && (n + 1) * a.n_segments <= FEW_WARPS_MAX &&
         n_tiles > n * d->n_multiprocessors / 2 &&
         bytes_of<T, NT>((n + 1) * a.n_segments, raw_units) <= FEW_SHARED_BYTES_MAX)
    n++;
  return n;
}

template <int T, int NT, int ROWS>
static weft_status launch_few(cuda_device *d, const multiply_args &a) {
  uint32_t raw_units = ROWS != ROWS_PREPARED ? a.n_units * a.n_rows * (of_both(a) ? 2 : 1) : 0;
  uint32_t n_slots = slots_of<T, NT, ROWS>(d, a, raw_units), n_warps = n_slots * a.n_segments;
  few_items items = few_items_of(a, n_slots);
  uint32_t bytes = bytes_of<T, NT>(n_warps, raw_units);
  cuda_start(d, few_kernel<T, NT, ROWS>, few_blocks_of(d, items, n_warps, bytes), 32 * n_warps, bytes, few_args_of(a),
             items);
  return cuda_launched(d, "a product of few rows");
}

template <int T, int NT, int ROWS>
static weft_status set_up(cuda_device *d) {
  static_assert(
      bytes_of<T, NT>(2 * FEW_SEGMENTS, ROWS != ROWS_PREPARED ? MULTIPLY_RAW_BYTES / 256 : 0) <= FEW_SHARED_BYTES_MAX,
      "shared memory");
  cudaError_t error =
      cudaFuncSetAttribute(few_kernel<T, NT, ROWS>, cudaFuncAttributeMaxDynamicSharedMemorySize, FEW_SHARED_BYTES_MAX);
  return cuda_judge(d, error, "setting up products");
}

/* a NULL: sets the kernels of the type up. */
template <int T>
static weft_status of_rows(cuda_device *d, const multiply_args *args) {
  if (args == NULL) {
    weft_status status = launch_tall<T, true>(d, NULL);
    if (status == WEFT_OK) status = launch_tall<T, false>(d, NULL);
    if (status == WEFT_OK) status = set_up<T, 1, ROWS_RAW_ONE>(d);
    if (status == WEFT_OK) status = set_up<T, 1, ROWS_RAW>(d);
    if (status == WEFT_OK) status = set_up<T, 1, ROWS_PREPARED>(d);
    if (status == WEFT_OK) status = set_up<T, 2, ROWS_PREPARED>(d);
    return status == WEFT_OK ? set_up<T, 4, ROWS_PREPARED>(d) : status;
  }
  const multiply_args &a = *args;
  if (multiply_is_tall(d, args))
    return a.raw.x != NULL ? launch_tall<T, true>(d, args) : launch_tall<T, false>(d, args);
  if (a.raw.x != NULL && a.n_rows == 1) return launch_few<T, 1, ROWS_RAW_ONE>(d, a);
  if (a.raw.x != NULL) return launch_few<T, 1, ROWS_RAW>(d, a);
  if (a.ids != NULL || a.n_rows <= 8) return launch_few<T, 1, ROWS_PREPARED>(d, a);
  return a.n_rows <= 16 ? launch_few<T, 2, ROWS_PREPARED>(d, a) : launch_few<T, 4, ROWS_PREPARED>(d, a);
}

weft_status multiply_few(cuda_device *d, const multiply_args *args) {
  return form_dispatch(args->type, [&](auto type) { return of_rows<decltype(type)::value>(d, args); });
}

weft_status multiply_few_setup(cuda_device *d) {
  return form_each([&](auto type) { return of_rows<decltype(type)::value>(d, NULL); });
}
