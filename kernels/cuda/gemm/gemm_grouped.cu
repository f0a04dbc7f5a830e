/* SPDX-License-Identifier: MIT */
/* Grouped GEMM for experts (mixture of experts): one launch for all problems, which are jobs of gemm.h. Persistent and
 * warp-specialised; a work item is 128 outputs x 8 NT rows of one job. The pipeline is that of pipeline.cuh.
 *
 *   consumer  two warpgroups with 64 outputs each. A warp dequantises a row tile once, in registers, for all rows;
 *             four warps issue one wgmma of 64 outputs x 8 NT rows, or fewer rows where a job has fewer. The epilogue
 *             is run_epilogue of pipeline.cuh
 *   producer  four more warps: one lane is the tile scheduler, one copies the rows, eight copy the weights of a row
 *             tile each. They go on with the next item during the epilogue of this one
 *
 * GATED (gate and up of MXFP4): a work item is 64 outputs of both. A warp has half a row tile of the gate and the same
 * half of up's, as in gated_epilogue.cuh, so a lane has both numbers of act(g) * u. It leaves rows of the product
 * behind (gemm_gated_rows). The four row tiles of an item are those whose outputs lie side by side there: every other
 * one of 128 outputs, or the last four.
 *
 * Law: rows that a gate leaves have the bits of the prologue of gated sums. */
#include "kernels/cuda/gemm/mxfp4.cuh"
#include "kernels/cuda/gemm/pipeline.cuh"
#include "kernels/cuda/moe/limited_gate.cuh"

/* gate: of kernels with a gate. */
typedef struct grouped_args {
  gemm_args gemm;
  gemm_gated_rows gate;
} grouped_args;

/* A stage of weights is a unit of their packed layout (128 or 256 inputs). A stage of rows is as many inputs, or 128
 * where items have many rows. */
template <int T, int NT, bool GATED>
struct grouped_shape {
  static constexpr bool gated = GATED;
  static constexpr bool few_rows = NT <= 8;
  static constexpr uint32_t blocks = few_rows ? 2 : 1; /* to a multiprocessor */
  static constexpr uint32_t regs = blocks == 2 ? 96 : 232, regs_producer = blocks == 2 ? 48 : 40;
  static constexpr uint32_t budget = blocks == 2 ? 112 << 10 : 226 << 10;
  static constexpr uint32_t w_units = packed_shape_of(T).unit / 128, w_tile = packed_unit_bytes(packed_shape_of(T)),
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
  uint64_t item_full[SCHEDULER_STAGES], item_empty[SCHEDULER_STAGES];
  work_item item[SCHEDULER_STAGES];
};

/* The weights of an item lie as gate, up, gate, up .. in a stage, and two warps share a pair. */
template <int T, int NT>
struct unit_source<grouped_shape<T, NT, true>> {
  template <int>
  static __device__ __forceinline__ void load(const uint8_t *pair, uint32_t, bool tail, lane_unit<T> &own) {
    const uint32_t lane = threadIdx.x % 32, half = threadIdx.x / 32 % 2;
    own.scales.row[0].x = 0;
#pragma unroll
    for (uint32_t r = 0; r < 2; r++) {
      packed_block p = packed_block_of<T>(pair + r * packed_unit_bytes(packed_shape_of(T)), 0, tail);
      if (tail) {
        uint2 v = *(const uint2 *)(const void *)(p.codes + half * 256 + lane * 8);
        own.codes.code[r] = make_uint4(v.x, v.y, 0, 0);
      } else {
        own.codes.code[r] = *(const uint4 *)(const void *)(p.codes + half * 512 + lane * 16);
      }
      uint32_t at = tail ? lane / 4 * 4 + lane % 4 / 2 * 2 : lane * 2;
      own.scales.row[0].x |= (uint32_t)p.scales[at + half] << 8 * r;
    }
  }
};

/* Row tile p < 4, of gate and of up, of the outputs that item.tile counts by 64. */
static __device__ __forceinline__ uint32_t gated_tile_of(const gemm_gated_rows &gate, uint32_t part, uint32_t p) {
  uint32_t unit = part / 2;
  return 8 * unit + (gate.is_tail != 0 && unit + 1 == gate.n_units ? p : 2 * p + part % 2);
}

/* ---- producer warps ------------------------------------------------------------------------------------- */

/* The tile scheduler: for each job, all groups of ITEM_TILES row tiles, or of 64 outputs. schedule_items (pipeline.cuh)
 * would do it too, but its code for calls without jobs would make each of these kernels larger. */
template <class S, class M>
static __device__ void schedule_jobs(const gemm_args &a, M &m) {
  pipeline_state at = {0, 1};
  uint32_t n_blocks = S::gated ? a.weight[0].n_out / 64 : (a.weight[0].n_tiles + ITEM_TILES - 1) / ITEM_TILES;
  uint32_t n_items = n_blocks * *a.n_jobs;
  for (uint32_t index = blockIdx.x;; index += gridDim.x) {
    work_item item = {0, 0, 0, 0};
    if (index < n_items) {
      const gemm_job job = a.jobs[index / n_blocks];
      item = {job.matrix, job.first, job.n, index % n_blocks * (S::gated ? 1 : ITEM_TILES)};
    }
    mbarrier_wait(&m.item_empty[at.stage], at.phase);
    m.item[at.stage] = item;
    mbarrier_arrive(&m.item_full[at.stage]);
    if (item.n == 0) return;
    advance(at, SCHEDULER_STAGES);
  }
}

/* The rows of the block's items. */
template <class S, class M>
static __device__ void produce_rows(const gemm_args &a, uint8_t *ring, M &m) {
  pipeline_state at = {0, 1}, item_at = {0, 0};
  for (work_item item; (item = acquire_item(m, item_at, false)).n > 0;) {
    uint32_t n_bytes = (item.n + 7) / 8 * 2048;
    const uint8_t *from = (const uint8_t *)a.x + (uint64_t)item.first / 8 * 2048;
    for (uint32_t unit = 0; unit < a.n_units; unit += S::x_units) {
      uint32_t n = min(S::x_units, a.n_units - unit);
      mbarrier_wait(&m.x_empty[at.stage], at.phase);
      mbarrier_expect(&m.x_full[at.stage], n * n_bytes);
      for (uint32_t u = 0; u < n; u++, from += (uint64_t)a.x_tiles * 2048)
        bulk_copy(ring + at.stage * S::x_stage + u * S::x_unit, from, n_bytes, &m.x_full[at.stage]);
      advance(at, S::x_stages);
    }
  }
}

/* The weights of one row tile, by one lane. */
template <int T, class S, class M>
static __device__ void produce_weights(const grouped_args &g, uint8_t *ring, M &m, uint32_t own) {
  const gemm_args &a = g.gemm;
  const gemm_weight &weight = a.weight[S::gated ? own % 2 : 0];
  pipeline_state at = {0, 1}, item_at = {0, 0};
  for (work_item item; (item = acquire_item(m, item_at, false)).n > 0;) {
    uint64_t tile = (uint64_t)item.matrix * weight.n_tiles +
                    (S::gated ? gated_tile_of(g.gate, item.tile, own / 2) : min(item.tile + own, weight.n_tiles - 1));
    const uint8_t *from = weight.data + PACKED_HEADER_BYTES + tile * a.tile_bytes;
    for (uint32_t unit = 0; unit < a.n_units; unit += S::w_units, from += S::w_tile) {
      uint32_t n_bytes = stage_bytes<T>(a, unit);
      mbarrier_wait(&m.w_empty[at.stage], at.phase);
      mbarrier_expect(&m.w_full[at.stage], n_bytes);
      uint8_t *to = ring + at.stage * S::w_stage + own * S::w_tile;
      if (S::few_rows)
        bulk_copy_streamed(to, from, n_bytes, &m.w_full[at.stage]); /* most experts have one job, which reads them */
      else
        bulk_copy(to, from, n_bytes, &m.w_full[at.stage]);
      advance(at, S::w_stages);
    }
  }
}

/* ---- consumer warpgroups --------------------------------------------------------------------------------- */

/* The epilogue with a gate. Lane 4 g + c has, of every eight rows, rows 2 c and 2 c + 1 of one output. Two lanes whose
 * outputs lie side by side exchange numbers, so that each stores both outputs of a row. bias: of gate and up. CLAMPED:
 * the gate is WEFT_CLAMPED_SILU without a limit; else it is any. */
template <int N, bool CLAMPED>
static __device__ __forceinline__ void store_gated_rows(const grouped_args &g, const work_item &item,
                                                        const float (&scale)[2], const float (&bias)[2],
                                                        const float (&all)[N][4]) {
  const gemm_args &a = g.gemm;
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, odd = lane / 4 % 2, row = lane % 4 * 2 + odd;
  const uint32_t unit = item.tile / 2, piece = warp % 2 * 4 + lane / 8;
  uint8_t *to = g.gate.out + ((uint64_t)unit * g.gate.n_tiles + item.first / 8) * 2048 + item.tile % 2 * 1024 +
                row * 128 + (piece ^ row) * 16 + warp / 2 * 4;
#pragma unroll
  for (int n = 0; n < N; n++, to += 2048) {
    if (8 * n >= item.n) break;
    float v[2];
#pragma unroll
    for (int j = 0; j < 2; j++) {
      float gate = __fmul_rn(all[n][j], scale[0]), up = __fmul_rn(all[n][j + 2], scale[1]);
      if (g.gate.gate_bias != NULL) gate = __fadd_rn(gate, bias[0]), up = __fadd_rn(up, bias[1]);
      v[j] = CLAMPED ? clamped_gate(gate, up) : limited_biased_gate(a.activation, a.limit, gate, up, NULL, NULL, 0);
    }
    float other = __shfl_xor_sync(0xFFFFFFFFu, odd != 0 ? v[0] : v[1], 4);
    __nv_bfloat162 both = __floats2bfloat162_rn(odd != 0 ? other : v[0], odd != 0 ? v[1] : other);
    if (8 * n + row < item.n) *(__nv_bfloat162 *)(void *)to = both;
  }
}

/* The mainloop and epilogue of a work item. N: rows in eights, enough for the job. prescale: of both halves of rows. */
template <int T, int N, class S>
static __device__ __forceinline__ void multiply_item(const grouped_args &g, const work_item &item,
                                                     const int (&prescale)[2], consumer_warp<S> &at) {
  const gemm_args &a = g.gemm;
  prescale_powers powers = grouped_powers<T>(prescale, a.values);
  float all[N][4], bias[2] = {0.0f, 0.0f};
  if (S::gated && g.gate.gate_bias != NULL) {
    const uint32_t warp = threadIdx.x / 32, tile = gated_tile_of(g.gate, item.tile, warp / 2);
    uint64_t out = (uint64_t)item.matrix * a.weight[0].n_out + tile * 16 + warp % 2 * 8 + threadIdx.x % 32 / 4;
    bias[0] = g.gate.gate_bias[out], bias[1] = g.gate.up_bias[out];
  }
  bool has_tail = packed_shape_of(T).unit == 128 && a.is_tail != 0;
  uint32_t n_whole = a.n_units - (has_tail ? 1 : 0);
  operand_buffers<T, N> operands;
  lane_unit<T> own;
  rows_unscale<N> unscale = {};
  if (!S::gated) unscale = load_unscale<N>(a, item.first, item.n);
  load_stage<T, S>(at, has_tail && n_whole == 0, own);
#pragma unroll
  for (int n = 0; n < N; n++) all[n][0] = all[n][1] = all[n][2] = all[n][3] = 0.0f;
  for (uint32_t unit = 0; unit < a.n_units;) {
    uint32_t end = min(unit + a.split_units, a.n_units);
    float sum[N][4];
#pragma unroll
    for (int n = 0; n < N; n++) sum[n][0] = sum[n][1] = sum[n][2] = sum[n][3] = 0.0f;
    for (; unit < min(end, n_whole); unit += S::w_units)
      multiply_stage<T, N, 4, S>(at, operands, powers, unit + S::w_units < a.n_units, unit + 1 == n_whole, own, sum);
    if (packed_shape_of(T).unit == 128 && unit < end)
      multiply_stage<T, N, 2, S>(at, operands, powers, false, false, own, sum), unit++;
    end_products<T, N, S>(at, operands);
#pragma unroll
    for (int k = 0; k < 4 * N; k++) all[k / 4][k % 4] = __fadd_rn(all[k / 4][k % 4], sum[k / 4][k % 4]);
  }
  const float w_unscale[2] = {weight_unscale_of(a.weight[0], item.matrix, prescale[0]),
                              weight_unscale_of(a.weight[S::gated ? 1 : 0], item.matrix, prescale[1])};
  if constexpr (S::gated) {
    if (a.activation == WEFT_CLAMPED_SILU && a.limit == 0.0f)
      store_gated_rows<N, true>(g, item, w_unscale, bias, all);
    else
      store_gated_rows<N, false>(g, item, w_unscale, bias, all);
  } else {
    run_epilogue(a.weight[0], item.tile + threadIdx.x / 32, item.first, item.n, w_unscale[0], unscale, all);
  }
}

template <int T, int NT, bool GATED>
static __global__ void __launch_bounds__(ITEM_THREADS, grouped_shape<T, NT, GATED>::blocks)
    gemm_grouped_kernel(const __grid_constant__ grouped_args g) {
  using S = grouped_shape<T, NT, GATED>;
  const gemm_args &a = g.gemm;
  extern __shared__ __align__(1024) uint8_t memory[]; /* rows; weights */
  __shared__ grouped_memory<S> m;
  uint8_t *x_ring = memory, *w_ring = x_ring + S::x_stages * S::x_stage;
  uint32_t group = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 128, 0);
  if (threadIdx.x == 0) {
    for (uint32_t i = 0; i < S::w_stages; i++)
      mbarrier_init(&m.w_full[i], ITEM_TILES), mbarrier_init(&m.w_empty[i], ITEM_TILES * WARP_ARRIVALS);
    for (uint32_t i = 0; i < S::x_stages; i++)
      mbarrier_init(&m.x_full[i], 1), mbarrier_init(&m.x_empty[i], ITEM_TILES * WARP_ARRIVALS);
    for (uint32_t i = 0; i < SCHEDULER_STAGES; i++)
      mbarrier_init(&m.item_full[i], 1), mbarrier_init(&m.item_empty[i], ITEM_CONSUMERS);
    mbarrier_init_fence();
  }
  __syncthreads();
  if (group == ITEM_TILES / 4) {
    setmaxnreg_dec<S::regs_producer>();
    launch_dependents_and_wait();
    uint32_t warp = threadIdx.x / 32 - ITEM_TILES, lane = threadIdx.x % 32;
    if (warp == 0 && lane == 0) schedule_jobs<S>(a, m);
    if (warp == 1 && lane == 0) produce_rows<S>(a, x_ring, m);
    if (warp >= 2 && lane < ITEM_TILES / 2) produce_weights<T, S>(g, w_ring, m, ITEM_TILES / 2 * (warp - 2) + lane);
  } else {
    setmaxnreg_inc<S::regs>();
    uint32_t warp = threadIdx.x / 32;
    pipeline_state item_at = {0, 0};
    consumer_warp<S> at = {w_ring + (GATED ? warp / 2 * 2 : warp) * S::w_tile,
                           x_ring,
                           m.w_full,
                           m.w_empty,
                           m.x_full,
                           m.x_empty,
                           {0, 0},
                           {0, 0},
                           0};
    const int prescale[2] = {grouped_prescale<T>((const packed_header *)(const void *)a.weight[0].header),
                             grouped_prescale<T>((const packed_header *)(const void *)a.weight[GATED ? 1 : 0].header)};
    launch_dependents_and_wait();
    for (work_item item; (item = acquire_item(m, item_at, true)).n > 0;) {
      if constexpr (NT == 16) {
        if (item.n > 64)
          multiply_item<T, 16, S>(g, item, prescale, at);
        else if (item.n > 32)
          multiply_item<T, 8, S>(g, item, prescale, at);
        else
          multiply_item<T, 4, S>(g, item, prescale, at);
      } else {
        multiply_item<T, NT, S>(g, item, prescale, at);
      }
    }
  }
}

/* ---- host ------------------------------------------------------------------------------------------------ */

/* rows: of a product with a gate. a NULL: sets the kernel up. */
template <int T, int NT, bool GATED>
static weft_status launch_grouped(cuda_device *d, const gemm_args *a, const gemm_gated_rows *rows) {
  using S = grouped_shape<T, NT, GATED>;
  auto kernel = gemm_grouped_kernel<T, NT, GATED>;
  if (a == NULL) {
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)S::bytes);
    return cuda_judge(d, error, "setting up grouped products");
  }
  uint32_t n_blocks = GATED ? a->weight[0].n_out / 64 : cuda_ceil(a->weight[0].n_tiles, ITEM_TILES);
  uint64_t n_items = (uint64_t)a->jobs_max * n_blocks, n_fit = d->n_multiprocessors * S::blocks;
  grouped_args own = {*a, {}};
  if (GATED) own.gate = *rows;
  if (!d->deterministic) gemm_set_split_k(&own.gemm, 1);
  /* An ordinary launch: blocks that start before the kernel before has ended would crowd each other. */
  kernel<<<(uint32_t)(n_items < n_fit ? n_items : n_fit), ITEM_THREADS, S::bytes, d->stream>>>(own);
  return cuda_launched(d, "a grouped product");
}

/* a NULL: sets the kernels of the type up. */
template <int T>
static weft_status launch_for_rows(cuda_device *d, const gemm_args *a) {
  if (a == NULL) {
    weft_status status = launch_grouped<T, 2, false>(d, NULL, NULL);
    if (status == WEFT_OK) status = launch_grouped<T, 3, false>(d, NULL, NULL);
    return status == WEFT_OK ? launch_grouped<T, 16, false>(d, NULL, NULL) : status;
  }
  return a->job_rows <= 16   ? launch_grouped<T, 2, false>(d, a, NULL)
         : a->job_rows <= 24 ? launch_grouped<T, 3, false>(d, a, NULL)
                             : launch_grouped<T, 16, false>(d, a, NULL);
}

weft_status gemm_grouped(cuda_device *d, const gemm_args *args) {
  return dispatch_packed_type(args->type, [&](auto type) { return launch_for_rows<decltype(type)::value>(d, args); });
}

weft_status gemm_grouped_gated(cuda_device *d, const gemm_args *args, const gemm_gated_rows *rows) {
  return launch_grouped<WEFT_TYPE_MXFP4, 16, true>(d, args, rows);
}

weft_status gemm_grouped_setup(cuda_device *d) {
  weft_status status = each_packed_type([&](auto type) { return launch_for_rows<decltype(type)::value>(d, NULL); });
  return status == WEFT_OK ? gemm_grouped_gated(d, NULL, NULL) : status;
}
