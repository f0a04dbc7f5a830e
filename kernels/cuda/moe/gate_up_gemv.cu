/* SPDX-License-Identifier: MIT */
/* Gate and up of experts for few rows: act(gate x) * (up x) of every pair of a row and an expert that was chosen for
 * it, and of a shared MLP. Every block finds out for itself which pairs chose the same expert (find_jobs); these are
 * multiplied at once, up to eight of them. A block takes a row tile of the gate and the same one of up; its warps are
 * (gate, up) x (splits), as in gemm/gemv.cu. Blocks are persistent: a block goes on to the pairs of row tiles one grid
 * further.
 *
 * Row tiles of the shared MLP come first, since they do not wait for the choice of experts: their weights arrive while
 * experts are being chosen, and where the rows are there already (gemm_raw_rows.is_there), they are also multiplied
 * meanwhile. Blocks that begin with an expert run their prologue meanwhile.
 *
 * Law: a block lets the next kernel start when it has waited for the choice (down_gemv.cu reads it without a wait). */
#include "kernels/cuda/moe/experts_gemv.h"
#include "kernels/cuda/gemm/gemv.cuh"

/* Which rows a block has in shared memory after its prologue: those of the experts, those of the shared MLP, or
 * both, one behind the other. */
enum { HAS_OWN = 1, HAS_SHARED, HAS_BOTH };

/* Whether a block that begins with the shared MLP runs the prologue of both at once. More than two would leave room
 * for one block to a multiprocessor, where there are two. */
static __host__ __device__ __forceinline__ bool takes_both(const gemm_args &a) {
  return a.n_shared > 0 && a.n_rows <= 2;
}

/* An expert and up to eight of the pairs that chose it. */
typedef struct gate_up_job {
  uint32_t matrix, first_tile, n; /* first_tile: of the matrix */
  uint8_t pair[8], row[8];        /* of x */
} gate_up_job;

/* The experts that were chosen, each once: its weights are read and unpacked once for all rows that chose it. */
typedef struct gate_up_jobs {
  uint32_t n;
  int32_t id[EXPERTS_GEMV_PAIRS];           /* matrices of the pairs; below 0: the expert is not here */
  uint32_t firsts[EXPERTS_GEMV_PAIRS / 32]; /* pairs that begin a job, a bit each */
  gate_up_job job[EXPERTS_GEMV_PAIRS];
} gate_up_jobs;

/* How many pairs below `end` begin a job. */
static __device__ __forceinline__ uint32_t count_firsts(const gate_up_jobs &jobs, uint32_t end) {
  uint32_t n = 0;
#pragma unroll
  for (uint32_t i = 0; i < EXPERTS_GEMV_PAIRS / 32; i++) {
    uint32_t below = end >= 32 * i + 32 ? 0xFFFFFFFFu : end <= 32 * i ? 0 : (1u << (end - 32 * i)) - 1;
    n += __popc(jobs.firsts[i] & below);
  }
  return n;
}

/* Finds the jobs, in the order of their first pairs. The block has a thread for each pair. (down_gemv.cu says what
 * stands in for an expert that is not here.) */
static __device__ __forceinline__ void find_jobs(const gemm_args &a, gate_up_jobs &jobs) {
  uint32_t p = threadIdx.x, n_pairs = a.jobs_max, same = 0, first = p;
  int32_t id = p < n_pairs ? (int32_t)matrix_of(a, __ldcg(a.ids + p)) : -1;
  if ((uint32_t)id >= a.n_matrices) id = -1;
  if (p < EXPERTS_GEMV_PAIRS) jobs.id[p] = id, jobs.job[p].n = 0;
  __syncthreads();
  for (uint32_t q = 0; q < min(p, n_pairs); q++) {
    if (jobs.id[q] != id) continue;
    if (same++ % 8 == 0) first = q;
  }
  if (same % 8 == 0) first = p;
  uint32_t firsts = __ballot_sync(0xFFFFFFFFu, id >= 0 && first == p);
  if (p % 32 == 0 && p < EXPERTS_GEMV_PAIRS) jobs.firsts[p / 32] = firsts;
  __syncthreads();
  if (id >= 0) {
    gate_up_job &job = jobs.job[count_firsts(jobs, first)];
    job.pair[same % 8] = (uint8_t)p;
    job.row[same % 8] = (uint8_t)(p / a.pairs_per_row);
    if (first == p) job.matrix = (uint32_t)id, job.first_tile = (uint32_t)id * a.weight[0].n_tiles;
    atomicAdd(&job.n, 1u);
  }
  if (p == 0) jobs.n = count_firsts(jobs, EXPERTS_GEMV_PAIRS);
  __syncthreads();
}

template <int T, bool ONE>
static __device__ __forceinline__ void take_rows(const gemm_args &a, uint32_t has, uint32_t *most_of, uint4 *raw,
                                                 int *scale_exponent) {
  uint32_t n = ONE ? 1 : a.n_rows;
  auto row = [&](uint32_t r) {
    bool of_shared = has == HAS_SHARED || r >= n;
    r -= r >= n ? n : 0;
    return of_shared ? a.shared_x + r * a.shared_stride : a.raw.x + r * a.raw.x_stride;
  };
  fused_prologue<T>(a, has == HAS_BOTH ? 2 * n : n, row, most_of, raw, scale_exponent);
}

/* The tile schedule: row tiles of the shared MLP, then those of the experts, job by job. */
typedef struct gate_up_items {
  uint32_t n_groups;              /* row tiles of a job */
  uint32_t step_jobs, step_tiles; /* from an expert's item to the block's next one */
} gate_up_items;

/* An item. Of the shared MLP: job 0, and tiles go on beyond its last one. */
typedef struct gate_up_cursor {
  uint32_t job, tile;
} gate_up_cursor;

/* The gate of an expert's outputs after its biases were added. */
struct expert_gate {
  const gemm_args &a;
  const float *gate_bias, *up_bias;
  uint64_t first; /* of the expert's numbers */
  __device__ __forceinline__ float operator()(uint32_t out, float g, float u) const {
    return biased_gate(a.activation, g, u, gate_bias, up_bias, first + out);
  }
};

/* ONE: of one row. gate_of(matrix) is the gate of an expert's outputs. */
template <int T, bool ONE, class F>
static __device__ __forceinline__ void multiply_gate_up(const gemm_args &a, const gate_up_items &items, F &&gate_of) {
  extern __shared__ __align__(128) uint8_t memory[]; /* gemv_bytes */
  __shared__ __align__(8) uint64_t filled[GEMV_WARPS_MAX * GEMV_STAGES];
  __shared__ uint32_t most_of[GEMV_WARPS_MAX];
  __shared__ float low[2]; /* what undoes the prescale of gate and up */
  __shared__ int scale_exponent[2 * GEMM_RAW_ROWS];
  __shared__ gate_up_jobs jobs;
  uint32_t n_warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32, buffer = 0;
  uint32_t split = warp % a.n_splits, slot = warp / a.n_splits;
  uint32_t first = split * a.split_units, end = min(a.n_units, first + a.split_units), unit = first;
  bool is_last = split + 1 == a.n_splits; /* the warp of the shortest segment runs the epilogue */
  gemv_ring ring =
      ring_init(memory + warp * gemv_ring_bytes(T), filled + warp * GEMV_STAGES, GEMV_STAGES, gemv_stage_bytes(T));
  float *part = (float *)(void *)(memory + n_warps * gemv_ring_bytes(T));
  uint4 *raw = (uint4 *)(void *)(part + 2 * n_warps * 128);
  bool begins = true, own = false; /* the first item is next; the choice of experts is known, and items are theirs */
  uint32_t has = 0;
  gate_up_cursor at = {0, blockIdx.x}, ahead = at; /* ahead: the copy of whose unit `unit` is issued next */
  const uint8_t *tiles = NULL;
  prescale_powers powers;
  auto next_item = [&](gate_up_cursor &c) {
    c.tile += own ? items.step_tiles : gridDim.x;
    if (own) c.job += items.step_jobs;
    if (own && c.tile >= items.n_groups) c.tile -= items.n_groups, c.job++;
  };
  auto exists = [&](const gate_up_cursor &c) { return own ? c.job < jobs.n : c.tile < a.n_shared; };
  auto issue = [&](uint32_t stage) {
    if (!exists(ahead)) return;
    uint32_t before = own ? jobs.job[ahead.job].first_tile : 0;
    issue_piece<T>(a, ring, stage, tiles + (uint64_t)(before + ahead.tile) * a.tile_bytes, unit);
    unit += gemv_units(T);
    if (unit < end) return;
    unit = first;
    next_item(ahead);
  };
  for (;; next_item(at)) {
    bool is_shared = !own && at.tile < a.n_shared;
    if (begins || !(own || is_shared)) {
      /* Copies of the first weights are issued; but where rows are there before the choice, their prologue is first. */
      bool rows_first = begins && !is_shared && a.raw.is_there;
      uint32_t weight = is_shared ? GEMM_SHARED_MLP + slot : a.n_weights == 2 ? slot : 0;
      packed_header header = header_of(a.weight[weight].data);
      tiles = a.weight[weight].data + PACKED_HEADER_BYTES;
      if (!is_shared && a.n_weights != 2) tiles += (uint64_t)slot * items.n_groups * a.tile_bytes;
      begins = false;
#pragma unroll 1
      for (uint32_t step = 0; step < 2; step++) {
        if ((step == 0) == rows_first) {
          uint32_t wanted = !is_shared ? HAS_OWN : takes_both(a) ? HAS_BOTH : HAS_SHARED;
          if (!a.raw.is_there) wait_for_prior_grids();
          if ((has & wanted) == wanted) continue;
          __syncthreads(); /* all warps have read the rows before */
          take_rows<T, ONE>(a, has = wanted, most_of, raw, scale_exponent);
          continue;
        }
        if (!is_shared) {
          wait_for_prior_grids();
          launch_dependent_grids();
          find_jobs(a, jobs);
          own = true;
          at = {(at.tile - a.n_shared) / items.n_groups, (at.tile - a.n_shared) % items.n_groups};
        }
        ahead = at;
#pragma unroll 1
        for (uint32_t i = 0; i < GEMV_STAGES; i++) issue((ring.at + i) % GEMV_STAGES);
      }
      int prescale = prescale_exponent(T, &header);
      powers = powers_of<T>(prescale, a.values);
      if (lane == 0 && is_last) low[slot] = power_of_two(-prescale);
    }
    if (!exists(at)) break;
    const gate_up_job &job = jobs.job[at.job];
    uint32_t n_columns = own ? job.n : a.n_rows;
    auto row_of = [&](uint32_t c) { return own ? (ONE ? 0u : job.row[c]) : c + (has == HAS_BOTH ? a.n_rows : 0); };
    uint32_t r = row_of(ONE ? 0 : min(lane / 4, n_columns - 1));
    x_source<1> x;
    x.raw = raw + r * raw_stride(a.n_units);
    float *mine = part + (buffer * n_warps + warp) * 128;
    multiply_split<T, 1, true, false>(a, ring, first, end, x, powers, mine, issue);
    __syncthreads(); /* it also says that the sums of the item before have been read */
    if (is_last && slot == 0) {
      const gemm_weight *gate = &a.weight[own ? 0 : GEMM_SHARED_MLP], *up = gate + (!own || a.n_weights == 2 ? 1 : 0);
      uint32_t matrix = own ? job.matrix : 0;
      epilogue_args of = {gate, at.tile, n_columns, __fmul_rn(low[0], scale_of(*gate, matrix)),
                          __fmul_rn(low[1], scale_of(*up, matrix))};
      run_epilogue<1, true>(
          a, of, mine - split * 128, [&](uint32_t c) { return own ? job.pair[c] : c; },
          [&](uint32_t c) { return power_of_two(-scale_exponent[row_of(c)]); }, gate_of(matrix));
    }
    buffer ^= 1;
  }
}

template <int T, bool ONE>
static __global__ void __maxnreg__(80)
    gate_up_gemv_kernel(const __grid_constant__ gemm_args a, const __grid_constant__ gate_up_items items) {
  multiply_gate_up<T, ONE>(a, items, [&](uint32_t) { return plain_gate{a}; });
}

template <int T, bool ONE>
static __global__ void __maxnreg__(80)
    gate_up_biased_kernel(const __grid_constant__ gemm_args a, const __grid_constant__ gate_up_items items,
                          const __grid_constant__ experts_biases biases) {
  multiply_gate_up<T, ONE>(a, items, [&](uint32_t matrix) {
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
  uint32_t n_warps = 2 * args->n_splits, n_groups = gemv_tiles(*args);
  uint32_t bytes = gemv_bytes<T, 1>(n_warps, args->n_rows * (takes_both(*args) ? 2 : 1), args->n_units);
  gemv_items all = gemv_items_of(*args, 2);
  uint32_t n_blocks = gemv_blocks_of(d, all, n_warps, bytes);
  gate_up_items items = {n_groups, n_blocks / n_groups, n_blocks % n_groups};
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
