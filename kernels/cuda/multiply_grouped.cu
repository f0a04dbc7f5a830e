/* SPDX-License-Identifier: MIT */
/* Products for experts, job by job. Blocks stay on the card and take one item after another: 128 outputs x 8 NT rows.
 * The rings are those of rings.cuh.
 *
 *   group     four warps with 64 outputs; a block has two groups
 *   warp      a row tile: the warp turns codes into operands once, in registers, for all rows; four warps make one
 *             product of the matrix units, of 64 outputs x 8 NT rows, or fewer rows where a job has fewer
 *   bringer   four more warps that copy: one lane says which items the block works on, one brings their rows, eight
 *             bring the weights of a row tile each. They go on with the next item before this one is done */
#include "kernels/cuda/rings.cuh"

/* A stage of weights is a unit of their form (128 or 256 inputs). A stage of rows is as many inputs, or 128 where items
 * have many rows. */
template <int T, int NT>
struct grouped_shape {
  static constexpr bool few_rows = NT <= 8;
  static constexpr uint32_t blocks = few_rows ? 2 : 1; /* to a multiprocessor */
  static constexpr uint32_t regs = blocks == 2 ? 96 : 232, regs_bringer = blocks == 2 ? 48 : 40;
  static constexpr uint32_t budget = blocks == 2 ? 112 << 10 : 226 << 10;
  static constexpr uint32_t w_units = form_of(T).unit / 128, w_tile = form_unit_bytes(form_of(T)),
                            w_stage = ITEM_TILES * w_tile;
  static constexpr uint32_t x_units = few_rows ? w_units : 1, x_unit = NT * 2048, x_stage = x_units * x_unit;
  static constexpr uint32_t fit = budget / (w_stage + w_units * x_unit), most = 12 / w_units;
  static constexpr uint32_t w_stages = fit > most ? most : fit;
  static constexpr uint32_t x_fit = (budget - w_stages * w_stage) / x_stage, x_most = w_stages * w_units / x_units;
  static constexpr uint32_t x_stages = x_fit > x_most ? x_most : x_fit;
  static constexpr uint32_t bytes = x_stages * x_stage + w_stages * w_stage;
  static_assert(w_stages >= 2 && x_stages >= 2, "two stages at least");
};

template <class S>
struct grouped_memory {
  uint64_t w_full[S::w_stages], w_empty[S::w_stages];
  uint64_t x_full[S::x_stages], x_empty[S::x_stages];
  uint64_t item_full[ITEM_SLOTS], item_empty[ITEM_SLOTS];
  ring_item item[ITEM_SLOTS];
};

/* ---- what is brought ------------------------------------------------------------------------------------- */

/* Deals out the block's items: for each job, all groups of ITEM_TILES row tiles. bring_items (rings.cuh) would do it
 * too, but its code for calls without jobs would make each of these kernels larger. */
template <class M>
static __device__ void bring_jobs(const multiply_args &a, M &m) {
  ring_cursor at = {0, 1};
  uint32_t n_blocks = (a.weight[0].n_tiles + ITEM_TILES - 1) / ITEM_TILES, n_items = n_blocks * *a.n_jobs;
  for (uint32_t index = blockIdx.x;; index += gridDim.x) {
    ring_item item = {0, 0, 0, 0};
    if (index < n_items) {
      const multiply_job job = a.jobs[index / n_blocks];
      item = {job.matrix, job.first, job.n, index % n_blocks * ITEM_TILES};
    }
    barrier_wait(&m.item_empty[at.slot], at.turn);
    m.item[at.slot] = item;
    barrier_arrive(&m.item_full[at.slot]);
    if (item.n == 0) return;
    step_on(at, ITEM_SLOTS);
  }
}

/* The rows of the block's items. */
template <class S, class M>
static __device__ void bring_rows(const multiply_args &a, uint8_t *ring, M &m) {
  ring_cursor at = {0, 1}, item_at = {0, 0};
  for (ring_item item; (item = take_item(m, item_at, false)).n > 0;) {
    uint32_t n_bytes = (item.n + 7) / 8 * 2048;
    const uint8_t *from = (const uint8_t *)a.x + (uint64_t)item.first / 8 * 2048;
    for (uint32_t unit = 0; unit < a.n_units; unit += S::x_units) {
      uint32_t n = min(S::x_units, a.n_units - unit);
      barrier_wait(&m.x_empty[at.slot], at.turn);
      barrier_expect(&m.x_full[at.slot], n * n_bytes);
      for (uint32_t u = 0; u < n; u++, from += (uint64_t)a.x_tiles * 2048)
        copy_bulk(ring + at.slot * S::x_stage + u * S::x_unit, from, n_bytes, &m.x_full[at.slot]);
      step_on(at, S::x_stages);
    }
  }
}

/* The weights of one row tile, by one lane. */
template <int T, class S, class M>
static __device__ void bring_weights(const multiply_args &a, uint8_t *ring, M &m, uint32_t own) {
  ring_cursor at = {0, 1}, item_at = {0, 0};
  for (ring_item item; (item = take_item(m, item_at, false)).n > 0;) {
    const multiply_weight &weight = a.weight[0];
    uint64_t tile = (uint64_t)item.matrix * weight.n_tiles + min(item.tile + own, weight.n_tiles - 1);
    const uint8_t *from = weight.data + FORM_HEADER_BYTES + tile * a.tile_bytes;
    for (uint32_t unit = 0; unit < a.n_units; unit += S::w_units, from += S::w_tile) {
      uint32_t n_bytes = stage_bytes<T>(a, unit);
      barrier_wait(&m.w_empty[at.slot], at.turn);
      barrier_expect(&m.w_full[at.slot], n_bytes);
      uint8_t *to = ring + at.slot * S::w_stage + own * S::w_tile;
      if (S::few_rows)
        copy_bulk_once(to, from, n_bytes, &m.w_full[at.slot]); /* most experts have one job, which reads them */
      else
        copy_bulk(to, from, n_bytes, &m.w_full[at.slot]);
      step_on(at, S::w_stages);
    }
  }
}

/* ---- the groups ------------------------------------------------------------------------------------------ */

/* Multiplies an item. N: rows in eights, enough for the job. */
template <int T, int N, class S>
static __device__ __forceinline__ void multiply_item(const multiply_args &a, const ring_item &item, int raise,
                                                     ring_warp<S> &at) {
  raise_powers powers = powers_of<T>(raise, a.values);
  float all[N][4];
  bool has_tail = form_of(T).unit == 128 && a.is_tail != 0;
  uint32_t n_whole = a.n_units - (has_tail ? 1 : 0);
  ring_operands<T, N> operands;
  lane_unit<T> own;
  rows_back<N> back = load_back<N>(a, item.first, item.n);
  load_stage<T, S>(at, has_tail && n_whole == 0, own);
#pragma unroll
  for (int n = 0; n < N; n++) all[n][0] = all[n][1] = all[n][2] = all[n][3] = 0.0f;
  for (uint32_t unit = 0; unit < a.n_units;) {
    uint32_t end = min(unit + a.segment_units, a.n_units);
    float sum[N][4];
#pragma unroll
    for (int n = 0; n < N; n++) sum[n][0] = sum[n][1] = sum[n][2] = sum[n][3] = 0.0f;
    for (; unit < min(end, n_whole); unit += S::w_units)
      multiply_stage<T, N, 4, S>(at, operands, powers, unit + S::w_units < a.n_units, unit + 1 == n_whole, own, sum);
    if (form_of(T).unit == 128 && unit < end)
      multiply_stage<T, N, 2, S>(at, operands, powers, false, false, own, sum), unit++;
    end_products<T, N, S>(at, operands);
#pragma unroll
    for (int k = 0; k < 4 * N; k++) all[k / 4][k % 4] = __fadd_rn(all[k / 4][k % 4], sum[k / 4][k % 4]);
  }
  float down = lower_by(a.weight[0], item.matrix, raise);
  store_sums(a.weight[0], item.tile + threadIdx.x / 32, item.first, item.n, down, back, all);
}

template <int T, int NT>
static __global__ void __launch_bounds__(ITEM_THREADS, grouped_shape<T, NT>::blocks)
    grouped_kernel(const __grid_constant__ multiply_args a) {
  using S = grouped_shape<T, NT>;
  extern __shared__ __align__(1024) uint8_t memory[]; /* rows; weights */
  __shared__ grouped_memory<S> m;
  uint8_t *x_ring = memory, *w_ring = x_ring + S::x_stages * S::x_stage;
  uint32_t group = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 128, 0);
  if (threadIdx.x == 0) {
    for (uint32_t i = 0; i < S::w_stages; i++)
      barrier_init(&m.w_full[i], ITEM_TILES), barrier_init(&m.w_empty[i], ITEM_TILES * WARP_ARRIVALS);
    for (uint32_t i = 0; i < S::x_stages; i++)
      barrier_init(&m.x_full[i], 1), barrier_init(&m.x_empty[i], ITEM_TILES * WARP_ARRIVALS);
    for (uint32_t i = 0; i < ITEM_SLOTS; i++)
      barrier_init(&m.item_full[i], 1), barrier_init(&m.item_empty[i], ITEM_TAKERS);
    barriers_ready();
  }
  __syncthreads();
  if (group == ITEM_TILES / 4) {
    registers_shrink<S::regs_bringer>();
    inputs_ready();
    uint32_t warp = threadIdx.x / 32 - ITEM_TILES, lane = threadIdx.x % 32;
    if (warp == 0 && lane == 0) bring_jobs(a, m);
    if (warp == 1 && lane == 0) bring_rows<S>(a, x_ring, m);
    if (warp >= 2 && lane < ITEM_TILES / 2) bring_weights<T, S>(a, w_ring, m, ITEM_TILES / 2 * (warp - 2) + lane);
  } else {
    registers_grow<S::regs>();
    uint32_t warp = threadIdx.x / 32;
    ring_cursor item_at = {0, 0};
    ring_warp<S> at = {w_ring + warp * S::w_tile, x_ring, m.w_full, m.w_empty, m.x_full, m.x_empty, {0, 0}, {0, 0}, 0};
    int raise = raise_exponent(T, (const form_header *)(const void *)a.weight[0].data);
    inputs_ready();
    for (ring_item item; (item = take_item(m, item_at, true)).n > 0;) {
      if constexpr (NT == 16) {
        if (item.n > 64)
          multiply_item<T, 16, S>(a, item, raise, at);
        else if (item.n > 32)
          multiply_item<T, 8, S>(a, item, raise, at);
        else
          multiply_item<T, 4, S>(a, item, raise, at);
      } else {
        multiply_item<T, NT, S>(a, item, raise, at);
      }
    }
  }
}

/* ---- host ------------------------------------------------------------------------------------------------ */

/* a NULL: sets the kernel up. */
template <int T, int NT>
static weft_status launch_grouped(cuda_device *d, const multiply_args *a) {
  using S = grouped_shape<T, NT>;
  if (a == NULL) {
    cudaError_t error =
        cudaFuncSetAttribute(grouped_kernel<T, NT>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)S::bytes);
    return cuda_judge(d, error, "setting up grouped products");
  }
  uint64_t n_items = (uint64_t)a->jobs_max * cuda_ceil(a->weight[0].n_tiles, ITEM_TILES),
           n_fit = d->n_multiprocessors * S::blocks;
  multiply_args own = *a;
  if (!d->deterministic) multiply_cut(&own, 1);
  /* An ordinary launch: blocks that start before the kernel before has ended would crowd each other. */
  grouped_kernel<T, NT><<<(uint32_t)(n_items < n_fit ? n_items : n_fit), ITEM_THREADS, S::bytes, d->stream>>>(own);
  return cuda_launched(d, "a grouped product");
}

/* a NULL: sets the kernels of the type up. */
template <int T>
static weft_status of_rows(cuda_device *d, const multiply_args *a) {
  if (a == NULL) {
    weft_status status = launch_grouped<T, 2>(d, NULL);
    if (status == WEFT_OK) status = launch_grouped<T, 3>(d, NULL);
    return status == WEFT_OK ? launch_grouped<T, 16>(d, NULL) : status;
  }
  return a->job_rows <= 16   ? launch_grouped<T, 2>(d, a)
         : a->job_rows <= 24 ? launch_grouped<T, 3>(d, a)
                             : launch_grouped<T, 16>(d, a);
}

weft_status multiply_grouped(cuda_device *d, const multiply_args *args) {
  return form_dispatch(args->type, [&](auto type) { return of_rows<decltype(type)::value>(d, args); });
}

weft_status multiply_grouped_setup(cuda_device *d) {
  return form_each([&](auto type) { return of_rows<decltype(type)::value>(d, NULL); });
}
