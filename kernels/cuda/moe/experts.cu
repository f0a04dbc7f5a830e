/* SPDX-License-Identifier: MIT */
/* experts: a mixture-of-experts MLP as grouped GEMM. Pairs (row, rank) are sorted by expert (token permutation); then
 * there is one grouped GEMM over all experts for gate and up, one for down, and a weighted sum for each row
 * (unpermute and combine).
 *
 *   permute   every pair gets a place, its row in the permuted order; the places of an expert lie side by side from a
 *             multiple of 8 on. Places and the list of jobs (some places of one expert each) stay on the device. The
 *             prologue writes rows at their places
 *   gate, up  the results are [place][2 n_ff] f32, or act(g) * u of them, [place][n_ff], where the GEMM has a gated
 *             epilogue (gemm_has_gated_epilogue); the prologue of down reads the same places. With biases, a
 *             clamped gate or F32 weights of down a kernel between the two makes the gated product (gate_pairs_kernel)
 *   down      the results are [place][n_in], f32, or bf16 in W8A8, and y[row] adds those of its ranks (combine.cu)
 *   some rows in MXFP4, from two on: experts_stream.cu makes both products, with gate and biases between them
 *   few rows  else are not permuted. A GEMV takes each expert once and leaves act(g) * u of every pair
 *             (gate_up_gemv.cu). Then one kernel makes the products with down and the sum over ranks
 *             (down_gemv.cu); both with prologues
 *   shared    the two products of the shared MLP come before, or are part of the GEMV kernels
 *
 * Law: where a row names an expert that does not exist, the row becomes NaN: a launch cannot refuse what lies in
 * device memory. A pair whose expert is not here gets no place and no job. Experts are counted from the first one that
 * is here, but for ids, which are those of all. */
#include <string.h>

#include "kernels/cuda/gemm/int8_jobs.h"
#include "kernels/cuda/gemm/w8a8_jobs.h"
#include "kernels/cuda/moe/combine.h"
#include "kernels/cuda/moe/experts_gemv.h"
#include "kernels/cuda/moe/experts_stream.h"
#include "kernels/cuda/moe/host_experts.h"
#include "kernels/cuda/moe/host_products.h"
#include "kernels/cuda/moe/limited_gate.cuh"
#include "kernels/cuda/weights/int8_weights.h"
#include "kernels/cuda/gemm/prologue.cuh"
#include "kernels/cuda/set.h"
#include "kernels/parts.h"

enum {
  PERMUTE_BLOCKS = 4 /* to a multiprocessor */,
  PERMUTE_THREADS = 1024,
  PERMUTE_ROWS = 64 /* of a block, at most */
};
enum { EXPERTS_GEMV_ROWS = 4 };

/* A list of jobs of up to `rows` rows, at most `most` of them. rows 0: there is none. */
typedef struct job_list {
  gemm_job *jobs;
  uint32_t *n, rows, most;
} job_list;

enum { LISTS = 2 }; /* of gate and up; of down, if it has its own */

typedef struct permute_args {
  const int32_t *ids;
  uint32_t first_expert, n_pairs, k, n_experts, rows_per_block;
  int32_t *pair_at; /* [n_pairs] places; -1: the expert is not here */
  int32_t *row_of;  /* [places] */
  job_list list[LISTS];
  const uint32_t *taken; /* [n_experts] not 0: the processor has the expert (host_products.h); NULL: it has none */
  /* Rows that came quantised to 8 bits, in from_tiles tiles of 8, and where they are permuted to. */
  const uint8_t *from;
  uint8_t *to;
  uint32_t n_units, from_tiles, to_tiles;
} permute_args;

/* Whether the jobs of an expert with n rows are in the first part of a list: those of experts with more rows than half
 * a job, which take longer, so that what is left over at the end is short. */
static __device__ __forceinline__ bool comes_first(uint32_t n, const job_list &list) {
  return n > list.rows / 2;
}

/* The scan over experts: one warp computes where a block's pairs begin: begin[e], which counts the pairs of expert e
 * in the rows before the block's, as count[e] does those of the other rows, becomes the place of the block's first
 * pair of e. The first block also makes the jobs, in both parts of each list. */
static __device__ __forceinline__ void scan_experts(const permute_args &g, const uint32_t *count, uint32_t *begin) {
  uint32_t lane = threadIdx.x, per = (g.n_experts + 31) / 32, places = 0, jobs[LISTS][2] = {};
  uint32_t first = min(lane * per, g.n_experts), end = min(first + per, g.n_experts);
  for (uint32_t e = first; e < end; e++) {
    uint32_t n = begin[e] + count[e];
    places += (n + 7) / 8 * 8;
    if (g.taken != NULL && g.taken[e] != 0) continue;
#pragma unroll
    for (uint32_t l = 0; l < LISTS; l++)
      if (g.list[l].rows > 0)
        (comes_first(n, g.list[l]) ? jobs[l][0] : jobs[l][1]) += (n + g.list[l].rows - 1) / g.list[l].rows;
  }
  uint32_t at = places, job[LISTS][2] = {{jobs[0][0], jobs[0][1]}, {jobs[1][0], jobs[1][1]}};
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    uint32_t p = __shfl_up_sync(0xFFFFFFFFu, at, step);
    if (lane >= step) at += p;
#pragma unroll
    for (uint32_t l = 0; l < 2 * LISTS; l++) {
      uint32_t j = __shfl_up_sync(0xFFFFFFFFu, job[l / 2][l % 2], step);
      if (lane >= step) job[l / 2][l % 2] += j;
    }
  }
  at -= places;
#pragma unroll
  for (uint32_t l = 0; l < LISTS; l++) {
    const uint32_t n_long = __shfl_sync(0xFFFFFFFFu, job[l][0], 31);
    if (blockIdx.x == 0 && lane == 31 && g.list[l].rows > 0) *g.list[l].n = min(n_long + job[l][1], g.list[l].most);
    job[l][0] -= jobs[l][0], job[l][1] += n_long - jobs[l][1];
  }
  for (uint32_t e = first; e < end; e++) {
    uint32_t n = begin[e] + count[e];
    begin[e] += at; /* after those of rows before the block's */
#pragma unroll
    for (uint32_t l = 0; l < LISTS; l++) {
      const job_list &list = g.list[l];
      if (blockIdx.x != 0 || list.rows == 0 || (g.taken != NULL && g.taken[e] != 0)) continue;
      const bool is_first = comes_first(n, list);
      uint32_t to = is_first ? job[l][0] : job[l][1];
      for (uint32_t j = 0; j < n && to < list.most; j += list.rows)
        list.jobs[to++] = {e, at + j, min(list.rows, n - j)};
      (is_first ? job[l][0] : job[l][1]) = to;
    }
    at += (n + 7) / 8 * 8;
  }
}

/* Counts pairs by expert (a histogram), and finds where the block's begin. `first`: its first pair. count, begin:
 * zeros before. */
template <uint32_t THREADS>
static __device__ __forceinline__ void count_pairs(const permute_args &g, uint32_t first, uint32_t *count,
                                                   uint32_t *begin) {
  for (uint32_t p = threadIdx.x; p < g.n_pairs; p += 8 * THREADS) {
    uint32_t e[8];
#pragma unroll
    for (uint32_t i = 0; i < 8; i++)
      e[i] = p + i * THREADS < g.n_pairs ? (uint32_t)g.ids[p + i * THREADS] - g.first_expert : UINT32_MAX;
#pragma unroll
    for (uint32_t i = 0; i < 8; i++)
      if (e[i] < g.n_experts) atomicAdd(p + i * THREADS < first ? &begin[e[i]] : &count[e[i]], 1u);
  }
  __syncthreads();
  if (threadIdx.x < 32) scan_experts(g, count, begin);
  __syncthreads();
}

/* Gives pair p a place, and says where. */
static __device__ __forceinline__ int32_t permute_pair(const permute_args &g, uint32_t p, uint32_t *begin) {
  uint32_t e = (uint32_t)g.ids[p] - g.first_expert;
  int32_t place = e < g.n_experts ? (int32_t)atomicAdd(&begin[e], 1u) : -1;
  g.pair_at[p] = place;
  if (place >= 0) g.row_of[place] = (int32_t)(p / g.k);
  return place;
}

/* A block has some rows. It counts all pairs and those before its own, finds places for its own while the first row
 * is in flight, and runs their prologue there. The pairs of a block come in any order within an expert, on which no
 * result depends. a.out NULL: there is no prologue. */
template <bool BF16>
static __global__ void __launch_bounds__(PROLOGUE_THREADS)
    permute_kernel(const __grid_constant__ permute_args g, const __grid_constant__ prologue_args a) {
  extern __shared__ uint32_t count[]; /* [n_experts], then where the next pair of each goes, then a row's places */
  __shared__ uint32_t shared[32];
  uint32_t *begin = count + g.n_experts, first_row = blockIdx.x * g.rows_per_block;
  int32_t *at = (int32_t *)(begin + g.n_experts);
  uint32_t end_row = min(first_row + g.rows_per_block, g.n_pairs / g.k);
  launch_dependent_grids();
  for (uint32_t e = threadIdx.x; e < 2 * g.n_experts; e += PROLOGUE_THREADS) count[e] = 0;
  __syncthreads();
  wait_for_prior_grids();
  const float *x = a.x + first_row * a.x_stride;
  row_pieces<false, 2> row;
  if (a.out != NULL) load_row(a, x, threadIdx.x, PROLOGUE_THREADS, row);
  count_pairs<PROLOGUE_THREADS>(g, first_row * g.k, count, begin);
  for (uint32_t r = first_row; r < end_row; r++, x += a.x_stride) {
    for (uint32_t j = threadIdx.x; j < g.k; j += PROLOGUE_THREADS) at[j] = permute_pair(g, r * g.k + j, begin);
    uint32_t most = a.out != NULL ? finish_row<BF16>(a, x, threadIdx.x, PROLOGUE_THREADS, row) : 0;
    most = block_max(most, shared); /* its barrier also says that the row's places are there */
    if (a.out != NULL) {
      if (r + 1 < end_row) load_row(a, x + a.x_stride, threadIdx.x, PROLOGUE_THREADS, row);
      put_row<BF16>(a, x, threadIdx.x, PROLOGUE_THREADS, row, BF16 ? 0 : scale_exponent_of(most), at, g.k, 0);
    }
    __syncthreads();
  }
}

/* The same where rows came quantised to 8 bits: these are copied to their places, the first inputs of all the block's
 * rows before the next ones, so that lines which lie side by side are written at about the same time. */
static __global__ void __launch_bounds__(PERMUTE_THREADS) permute_w8a8_kernel(const __grid_constant__ permute_args g) {
  extern __shared__ uint32_t count[]; /* [n_experts], then where the next pair of each goes, then the places of pairs */
  uint32_t *begin = count + g.n_experts, first_row = blockIdx.x * g.rows_per_block;
  int32_t *at = (int32_t *)(begin + g.n_experts);
  uint32_t n_rows = min(g.rows_per_block, g.n_pairs / g.k - first_row), n_spans = g.n_units / 2;
  launch_dependent_grids();
  for (uint32_t e = threadIdx.x; e < 2 * g.n_experts; e += PERMUTE_THREADS) count[e] = 0;
  __syncthreads();
  wait_for_prior_grids();
  count_pairs<PERMUTE_THREADS>(g, first_row * g.k, count, begin);
  for (uint32_t p = threadIdx.x; p < n_rows * g.k; p += PERMUTE_THREADS)
    at[p] = permute_pair(g, first_row * g.k + p, begin);
  __syncthreads();
#pragma unroll 2
  for (uint32_t i = threadIdx.x; i < g.n_units * n_rows * 8; i += PERMUTE_THREADS) {
    uint32_t unit = i / 8 / n_rows, r = i / 8 % n_rows, p = i % 8;
    uint4 bytes = *(const uint4 *)(const void *)(g.from + w8a8_at(g.from_tiles, unit, first_row + r, p));
    for (uint32_t j = 0; j < g.k; j++) {
      int32_t place = at[r * g.k + j];
      if (place >= 0) *(uint4 *)(void *)(g.to + w8a8_at(g.to_tiles, unit, (uint32_t)place, p)) = bytes;
    }
  }
  const float *scales = (const float *)(const void *)(g.from + w8a8_scales_at(n_spans, g.from_tiles));
  float *to = (float *)(void *)(g.to + w8a8_scales_at(n_spans, g.to_tiles));
  for (uint32_t i = threadIdx.x; i < n_spans * n_rows * g.k; i += PERMUTE_THREADS) {
    uint32_t pair = i % (n_rows * g.k), span = i / (n_rows * g.k);
    float scale = scales[(uint64_t)span * g.from_tiles * 8 + first_row + pair / g.k];
    if (at[pair] >= 0) to[(uint64_t)span * g.to_tiles * 8 + (uint32_t)at[pair]] = scale;
  }
}

/* The gated products of pairs [0, gridDim.y), where the GEMM has none: with biases, with a clamped gate or for an F32
 * down. */
typedef struct gate_pairs_args {
  const float *gu; /* [place][2 n_ff] */
  float *h;        /* rows h_stride numbers apart; may be gu */
  uint64_t h_stride;
  const int32_t *pair_at, *ids;
  uint32_t n_ff, first_expert;
  const float *gate_bias, *up_bias;
  weft_activation activation;
  float limit;
} gate_pairs_args;

static __global__ void gate_pairs_kernel(const __grid_constant__ gate_pairs_args a) {
  launch_dependents_and_wait();
  int64_t place = a.pair_at[blockIdx.y];
  uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= a.n_ff || place < 0) return;
  const float *row = a.gu + place * 2 * a.n_ff + i;
  uint64_t at = (uint64_t)((uint32_t)a.ids[blockIdx.y] - a.first_expert) * a.n_ff + i;
  a.h[place * a.h_stride + i] =
      limited_biased_gate(a.activation, a.limit, row[0], row[a.n_ff], a.gate_bias, a.up_bias, at);
}

/* ---- host ----------------------------------------------------------------------------------------------- */

typedef struct experts_plan {
  uint32_t n_pairs, n_places, n_in, n_ff; /* n_places: at most */
  uint32_t n_experts, n_all;              /* here; and all of them */
  bool gates_rows;                        /* the product with gate and up leaves rows of down (gemm_gated_rows) */
  bool streamed;                          /* and experts_stream.cu makes both products */
  job_list list[LISTS];
  int32_t *pair_at, *row_of;
  void *x[OPERAND_COUNT];
  float *x_unscale[OPERAND_COUNT];
  float *gate_up, *h_unscale, *down;
  void *h;
  uint64_t n_bytes;
} experts_plan;

static void plan_inputs(experts_plan *p, const weft_experts_args *args, cuda_cutter *cutter) {
  const weft_weight *in[2] = {args->gate_up != NULL ? args->gate_up : args->gate,
                              args->gate_up != NULL ? args->gate_up : args->up};
  for (int i = 0; i < 2; i++) {
    gemm_operand operand = gemm_operand_of(in[i]);
    if (operand == OPERAND_F32 || p->x_unscale[operand] != NULL) continue;
    p->x[operand] = cuda_cut(cutter, gemm_rows_bytes(p->n_places, p->n_in));
    p->x_unscale[operand] = (float *)cuda_cut(cutter, 4ull * p->n_places);
    if (cutter->base == NULL) p->x_unscale[operand] = (float *)(uintptr_t)256; /* counted */
  }
}

/* Whether all weights are kept as int8 too, and an expert has enough rows on average for these to be faster than
 * codes. */
static bool takes_int8(const weft_experts_args *args, uint32_t rows_of_expert) {
  const weft_weight *const weights[] = {args->gate_up, args->gate, args->up, args->down};
  for (uint32_t i = 0; i < 4; i++)
    if (weights[i] != NULL && weights[i]->layout != INT8_LAYOUT) return false;
  return rows_of_expert >= INT8_MIN_PAIRS;
}

/* Whether down alone reads integers, where gate and up have too few rows for them: of codes of 8 bits they are no more
 * bytes, and none has to be made an integer. */
static bool down_takes_int8(const weft_experts_args *args, uint32_t job_rows) {
  return args->down->layout == INT8_LAYOUT && packed_bits(args->down->type) == 8 && job_rows <= INT8_FEW_ROWS;
}

/* Whether no GEMM makes the gated product, but a kernel of its own. */
static bool gates_apart(const weft_experts_args *args) {
  return args->gate_bias != NULL || args->activation == WEFT_CLAMPED_SILU;
}

/* Whether gate and up may be one grouped GEMM with a gated epilogue. */
static bool may_gate(const weft_experts_args *args) {
  const weft_weight *gate = args->gate, *up = args->up;
  bool alike =
      args->gate_up != NULL ? args->down->n_in % 16 == 0 : up->type == gate->type && up->layout == gate->layout;
  return alike && args->down->type != WEFT_TYPE_F32 && !gates_apart(args);
}

/* Whether jobs of gate and up have W8A8_TWICE_ROWS rows, where they would have half as many. */
static bool takes_twice(const weft_experts_args *args, uint32_t job_rows) {
  const weft_weight *in = args->gate_up != NULL ? args->gate_up : args->gate;
  return 2 * job_rows == W8A8_TWICE_ROWS && gemm_operand_of(in) == OPERAND_INT8 && may_gate(args);
}

static void plan_jobs(experts_plan *p, const weft_experts_args *args, cuda_cutter *cutter) {
  const int type = (args->gate_up != NULL ? args->gate_up : args->gate)->type;
  const uint32_t n_touched = p->n_experts < p->n_pairs ? p->n_experts : p->n_pairs;
  p->list[0].rows = takes_int8(args, p->n_pairs / p->n_all) ? INT8_JOB_ROWS : gemm_job_rows(type, p->n_pairs, p->n_all);
  p->list[1].rows = down_takes_int8(args, p->list[0].rows) ? INT8_FEW_ROWS : 0;
  if (takes_twice(args, p->list[0].rows)) {
    if (p->list[1].rows == 0) p->list[1].rows = p->list[0].rows;
    p->list[0].rows = W8A8_TWICE_ROWS;
  }
  for (uint32_t l = 0; l < LISTS; l++) {
    job_list *list = &p->list[l];
    if (list->rows == 0) continue;
    list->most = p->n_pairs / list->rows + n_touched + 1;
    list->n = (uint32_t *)cuda_cut(cutter, 4);
    list->jobs = (gemm_job *)cuda_cut(cutter, (uint64_t)list->most * sizeof(gemm_job));
  }
}

static experts_plan plan_of(const weft_experts_args *args, void *scratch) {
  experts_plan p;
  memset(&p, 0, sizeof p);
  cuda_cutter cutter = {(uint8_t *)scratch, 0};
  p.n_pairs = args->n_rows * args->k;
  p.n_in = args->down->n_out;
  p.n_ff = args->down->n_in;
  p.n_experts = args->down->n_mats;
  p.n_all = parts_experts_count(args);
  uint32_t n_touched = p.n_experts < p.n_pairs ? p.n_experts : p.n_pairs;
  p.n_places = p.n_pairs + 7 * n_touched;
  plan_jobs(&p, args, &cutter);
  p.pair_at = (int32_t *)cuda_cut(&cutter, 4ull * p.n_pairs);
  p.row_of = (int32_t *)cuda_cut(&cutter, 4ull * p.n_places);
  plan_inputs(&p, args, &cutter);
  bool f32 = args->down->type == WEFT_TYPE_F32;
  p.h = cuda_cut(&cutter, f32 ? 4ull * p.n_places * p.n_ff : gemm_rows_bytes(p.n_places, p.n_ff));
  p.h_unscale = (float *)cuda_cut(&cutter, 4ull * p.n_places);
  /* Results of gate and up and those of down share memory: the first have been read when the second are written. */
  uint64_t wide = 2ull * p.n_ff > p.n_in ? 2ull * p.n_ff : p.n_in;
  p.gate_up = p.down = (float *)cuda_cut(&cutter, 4 * wide * p.n_places);
  p.n_bytes = cutter.at;
  return p;
}

uint64_t cuda_experts_scratch(weft_device *device, const weft_experts_args *args) {
  return parts_shared_scratch(device, args, plan_of(args, NULL).n_bytes, cuda_matmul_scratch);
}

/* A weight of products with the list's jobs: multiplied from integers where these are there and the list is for them,
 * else from codes. */
static gemm_weight weight_of_jobs(const job_list *list, const weft_weight *weight, float *y, uint64_t y_stride) {
  gemm_weight out = gemm_weight_of(weight, y, y_stride);
  if (list->rows != INT8_JOB_ROWS && list->rows != INT8_FEW_ROWS) out.int8_weights = NULL;
  return out;
}

static gemm_args permuted_gemm(const experts_plan *p, const job_list *list, const weft_weight *weight, float *y,
                               uint64_t y_stride) {
  gemm_args a;
  memset(&a, 0, sizeof a);
  gemm_set_shape(&a, weight);
  a.weight[0] = weight_of_jobs(list, weight, y, y_stride);
  a.n_weights = 1;
  a.jobs = list->jobs;
  a.n_jobs = list->n;
  a.jobs_max = list->most;
  a.job_rows = list->rows;
  a.x_tiles = cuda_ceil(p->n_places, 8);
  return a;
}

/* The prologue of permuted rows for a weight. */
static prologue_args permuted_prologue(const weft_experts_args *args, const experts_plan *p,
                                       const weft_weight *weight) {
  gemm_operand operand = gemm_operand_of(weight);
  prologue_args a = gemm_prologue_of(weight, args->n_rows);
  a.x = args->x;
  a.x_stride = args->x_stride;
  a.is_tiled = !p->streamed;
  a.n_tiles = cuda_ceil(p->n_places, 8);
  a.at = p->pair_at;
  a.k = args->k;
  a.out = (uint8_t *)p->x[operand];
  a.unscale = p->x_unscale[operand];
  return a;
}

/* The token permutation: gives pairs their places, and runs the prologue there if the first weight wants 16 bits. */
static weft_status permute_pairs(cuda_device *d, const weft_experts_args *args, const experts_plan *p,
                                 const weft_weight *weight) {
  prologue_args a = permuted_prologue(args, p, weight);
  if (gemm_operand_of(weight) == OPERAND_INT8) a.out = NULL;
  bool puts = args->x_form == CUDA_ROWS_W8A8;
  uint32_t rows_per_block = cuda_ceil(args->n_rows, (puts ? 1 : PERMUTE_BLOCKS) * d->n_multiprocessors);
  if (puts && rows_per_block > PERMUTE_ROWS) rows_per_block = PERMUTE_ROWS;
  permute_args g = {args->ids,
                    args->first_expert,
                    p->n_pairs,
                    args->k,
                    p->n_experts,
                    rows_per_block,
                    p->pair_at,
                    p->row_of,
                    {p->list[0], p->list[1]},
                    host_products_taken(d)};
  uint64_t counts_bytes = 4ull * 2 * p->n_experts;
  if (puts) {
    g.from = (const uint8_t *)(const void *)args->x;
    g.to = (uint8_t *)p->x[OPERAND_INT8];
    g.n_units = a.n_units;
    g.from_tiles = cuda_ceil(args->n_rows, 8);
    g.to_tiles = a.n_tiles;
    cuda_start(d, permute_w8a8_kernel, cuda_ceil(args->n_rows, rows_per_block), PERMUTE_THREADS,
               counts_bytes + 4ull * rows_per_block * args->k, g);
    return cuda_launched(d, "putting rows");
  }
  a.wide = prologue_is_wide(&a);
  cuda_start(d, packed_is_bf16(weight->type) ? permute_kernel<true> : permute_kernel<false>,
             cuda_ceil(args->n_rows, rows_per_block), PROLOGUE_THREADS, counts_bytes + 4ull * args->k, g, a);
  return cuda_launched(d, "placing rows");
}

/* The grouped GEMM of all pairs' rows with gate, up or both: results are [place][y_stride]. */
static gemm_args gate_up_args(const weft_experts_args *args, const experts_plan *p, const weft_weight *weight, float *y,
                              uint64_t y_stride) {
  gemm_operand operand = gemm_operand_of(weight);
  gemm_args a = permuted_gemm(p, &p->list[0], weight, y, y_stride);
  a.x = operand == OPERAND_F32 ? (const void *)args->x : p->x[operand];
  a.x_unscale = operand == OPERAND_F32 ? NULL : p->x_unscale[operand];
  a.x_stride = args->x_stride;
  a.n_rows = args->n_rows;
  a.row_of = p->row_of;
  return a;
}

/* Runs the prologue of permuted rows, where that has not been done. */
static weft_status input_prologue(cuda_device *d, const weft_experts_args *args, const experts_plan *p,
                                  const weft_weight *weight) {
  prologue_args rows = permuted_prologue(args, p, weight);
  return gemm_operand_of(weight) == OPERAND_F32 ? WEFT_OK : gemm_prologue(d, weight, &rows);
}

/* Gate and up in one grouped GEMM with a gated epilogue, [place][n_ff]. False: there is none. */
static bool gated_gate_up_args(const cuda_device *d, const weft_experts_args *args, const experts_plan *p,
                               gemm_args *a) {
  const weft_weight *first = args->gate_up != NULL ? args->gate_up : args->gate;
  if (!may_gate(args)) return false;
  *a = gate_up_args(args, p, first, p->gate_up, p->n_ff);
  a->weight[0].n_out = p->n_ff;
  if (args->gate_up == NULL) a->weight[a->n_weights++] = weight_of_jobs(&p->list[0], args->up, p->gate_up, p->n_ff);
  a->gated = true;
  a->activation = args->activation;
  a->limit = args->limit;
  return gemm_has_gated_epilogue(d, a);
}

/* Gate and up: [place][2 n_ff], or act(g) * u of them (gated). */
static weft_status gate_up_gemm(cuda_device *d, const weft_experts_args *args, const experts_plan *p, bool *gated) {
  const weft_weight *first = args->gate_up != NULL ? args->gate_up : args->gate;
  gemm_operand operand = gemm_operand_of(first);
  gemm_args a;
  bool is_placed = operand != OPERAND_INT8 || args->x_form == CUDA_ROWS_W8A8; /* permute_pairs has run the prologue */
  weft_status status = is_placed ? WEFT_OK : input_prologue(d, args, p, first);
  *gated = gated_gate_up_args(d, args, p, &a);
  if (!*gated) a = gate_up_args(args, p, first, p->gate_up, 2ull * p->n_ff);
  if (status == WEFT_OK) status = gemm(d, &a);
  if (*gated || args->gate_up != NULL || status != WEFT_OK) return status;
  if (gemm_operand_of(args->up) != operand) status = input_prologue(d, args, p, args->up);
  a = gate_up_args(args, p, args->up, p->gate_up + p->n_ff, 2ull * p->n_ff);
  return status == WEFT_OK ? gemm(d, &a) : status;
}

/* gate_pairs_kernel for all pairs: in place, or to the rows that F32 weights read. */
static weft_status gate_pairs(cuda_device *d, const weft_experts_args *args, const experts_plan *p) {
  bool f32 = args->down->type == WEFT_TYPE_F32;
  gate_pairs_args a = {p->gate_up,
                       f32 ? (float *)p->h : p->gate_up,
                       (f32 ? 1ull : 2ull) * p->n_ff,
                       p->pair_at,
                       args->ids,
                       p->n_ff,
                       args->first_expert,
                       args->gate_bias,
                       args->up_bias,
                       args->activation,
                       args->limit};
  for (uint32_t first = 0; first < p->n_pairs; first += 65535) {
    uint32_t n = p->n_pairs - first < 65535 ? p->n_pairs - first : 65535;
    cuda_start(d, gate_pairs_kernel, dim3(cuda_ceil(p->n_ff, 256), n), 256, 0, a);
    a.pair_at += n;
    a.ids += n;
  }
  return cuda_launched(d, "gating experts");
}

/* The prologue of down: act(g) * u of all pairs. is_gated: it is there, and is not made first. */
static weft_status gated_prologue(cuda_device *d, const weft_experts_args *args, const experts_plan *p, bool is_gated) {
  bool f32 = args->down->type == WEFT_TYPE_F32;
  if (f32 || gates_apart(args)) {
    weft_status status = gate_pairs(d, args, p);
    if (status != WEFT_OK || f32) return status;
  }
  prologue_args a = gemm_prologue_of(args->down, p->n_pairs);
  a.x = p->gate_up;
  a.x_stride = is_gated ? p->n_ff : 2ull * p->n_ff;
  a.gated = !is_gated && !gates_apart(args);
  a.up_at = p->n_ff;
  a.activation = args->activation;
  a.limit = args->limit;
  a.is_tiled = true;
  a.n_tiles = cuda_ceil(p->n_places, 8);
  a.at = p->pair_at;
  a.k = 1;
  a.from_place = true;
  a.out = (uint8_t *)p->h;
  a.unscale = p->h_unscale;
  return gemm_prologue(d, args->down, &a);
}

/* Gate and up, which leave rows of down, and down. */
static weft_status multiply_gated_rows(cuda_device *d, const weft_experts_args *args, const experts_plan *p,
                                       const gemm_args *down) {
  const uint32_t n_ff = p->n_ff;
  const gemm_gated_rows rows = {args->gate_bias, args->up_bias, (uint8_t *)p->h,
                                down->n_units,   down->is_tail, down->x_tiles};
  gemm_args in = gate_up_args(args, p, args->gate_up != NULL ? args->gate_up : args->gate, NULL, 0);
  gemm_weight *weight = in.weight;
  weight[0].n_out = n_ff;
  weight[1] = args->gate_up == NULL ? gemm_weight_of(args->up, NULL, 0) : weight[0];
  if (args->gate_up != NULL) weight[1].data += (uint64_t)n_ff / 16 * in.tile_bytes;
  in.n_weights = 2;
  in.activation = args->activation;
  in.limit = args->limit;
  if (p->streamed) return d->set->experts_stream(d, &in, &rows, down);
  weft_status status = d->set->gemm_grouped_gated(d, &in, &rows);
  return status == WEFT_OK ? gemm(d, down) : status;
}

static weft_status down_gemm(cuda_device *d, const weft_experts_args *args, const experts_plan *p) {
  gemm_args a = permuted_gemm(p, &p->list[p->list[1].rows > 0 ? 1 : 0], args->down, p->down, p->n_in);
  a.x = p->h;
  a.x_unscale = p->gates_rows ? p->x_unscale[OPERAND_BF16] : p->h_unscale; /* of MXFP4 ones */
  a.x_stride = p->n_ff;
  a.n_rows = p->n_pairs;
  a.y_is_bf16 = a.is_w8a8;
  weft_status status = p->gates_rows ? multiply_gated_rows(d, args, p, &a) : gemm(d, &a);
  if (status == WEFT_OK) status = host_products_finish(d, args, p->pair_at, p->down);
  if (status != WEFT_OK) return status;
  /* The product with gate and up has waited for the places before it let down start (experts_stream.cu). */
  const experts_results results = {p->down, a.y_is_bf16, p->streamed, p->n_in, p->n_all, p->pair_at};
  return experts_combine(d, args, &results);
}

/* ---- few rows ------------------------------------------------------------------------------------------- */

/* Whether the GEMV kernels take a call: gate and up are whole row tiles of one type and layout, and either all
 * weights or none are multiplied as W8A8. With biases or a clamped gate they are those of experts_gemv_takes_biases. */
static bool takes_gemv(const weft_experts_args *args, const experts_plan *p) {
  const weft_weight *in = args->gate_up != NULL ? args->gate_up : args->gate;
  int type = in->type;
  bool is_w8a8 = gemm_operand_of(in) == OPERAND_INT8;
  if (is_w8a8 != (gemm_operand_of(args->down) == OPERAND_INT8)) return false;
  if (gates_apart(args) && (is_w8a8 || args->shared.gate != NULL || !experts_gemv_takes_biases(type) ||
                            !experts_gemv_takes_biases(args->down->type)))
    return false;
  if (args->gate_up != NULL ? p->n_ff % 16 != 0 : args->up->type != type || args->up->layout != in->layout)
    return false;
  if (args->n_rows > EXPERTS_GEMV_ROWS || args->down->type == WEFT_TYPE_F32) return false;
  if (p->n_pairs > EXPERTS_GEMV_PAIRS || !gemm_is_wide(args->x, args->x_stride) || p->n_ff % 8 != 0) return false;
  return is_w8a8 ? w8a8_gemv_gate_up_fits(type, args->n_rows, p->n_in, false) &&
                       w8a8_gemv_down_fits(args->down->type, p->n_ff, args->k)
                 : experts_gemv_gate_up_fits(type, args->n_rows, p->n_in, false) &&
                       experts_gemv_down_fits(p->n_ff, args->k);
}

static gemm_args gemv_by_pair(const weft_experts_args *args, const experts_plan *p, const weft_weight *weight, float *y,
                              uint64_t y_stride) {
  gemm_args a = permuted_gemm(p, &p->list[0], weight, y, y_stride);
  a.jobs = NULL;
  a.ids = args->ids;
  a.n_matrices = p->n_experts;
  a.first_matrix = args->first_expert;
  a.n_experts = p->n_all;
  a.pairs_per_row = args->k;
  a.jobs_max = p->n_pairs;
  return a;
}

/* Whether gate and up of the shared MLP can be part of the experts' kernel: a block has memory for its rows beside
 * those of the experts. */
static bool takes_shared(const weft_experts_args *args, const gemm_args *experts) {
  const weft_shared_args *shared = &args->shared;
  bool same = shared->gate->type == experts->type && shared->up->type == experts->type &&
              (gemm_operand_of(shared->gate) == OPERAND_INT8) == experts->is_w8a8 &&
              (gemm_operand_of(shared->up) == OPERAND_INT8) == experts->is_w8a8;
  return same && shared->gate->n_in == experts->n_in && gemm_is_wide(shared->x, shared->x_stride) &&
         (experts->is_w8a8 ? w8a8_gemv_gate_up_fits(experts->type, args->n_rows, experts->n_in, true)
                           : experts_gemv_gate_up_fits(experts->type, args->n_rows, experts->n_in, true));
}

static weft_status gemv_gate_up(weft_device *device, const weft_experts_args *args, const experts_plan *p) {
  const weft_shared_args *shared = &args->shared;
  gemm_args a = gemv_by_pair(args, p, args->gate_up != NULL ? args->gate_up : args->gate, p->gate_up, p->n_ff);
  a.weight[0].n_out = p->n_ff; /* of gate and up together */
  a.n_rows = args->n_rows;
  a.raw.x = args->x;
  a.raw.x_stride = args->x_stride;
  a.gated = true;
  a.activation = args->activation;
  a.limit = args->limit;
  if (args->gate_up == NULL) {
    a.weight[1] = gemm_weight_of(args->up, p->gate_up, p->n_ff);
    a.n_weights = 2;
  }
  if (shared->gate != NULL && takes_shared(args, &a)) {
    a.weight[GEMM_SHARED_MLP] = gemm_weight_of(shared->gate, shared->g, shared->gate->n_out);
    a.weight[GEMM_SHARED_MLP + 1] = gemm_weight_of(shared->up, shared->g, shared->gate->n_out);
    a.n_shared = a.weight[GEMM_SHARED_MLP].n_tiles;
    a.shared_x = shared->x;
    a.shared_stride = shared->x_stride;
  } else if (shared->gate != NULL) {
    weft_matmul_args in = parts_shared_in(args);
    weft_status status = cuda_matmul(device, &in);
    if (status != WEFT_OK) return status;
  }
  const cuda_device *d = cuda_of(device);
  a.raw.is_there = d->choice == args->ids && d->experts.stream == NULL; /* NULL: it waits for no copy of experts */
  if (!gates_apart(args)) return gemm(cuda_of(device), &a);
  const experts_biases biases = {args->gate_bias, args->up_bias};
  return cuda_of(device)->set->gemv_gate_up_biased(cuda_of(device), &a, &biases);
}

static weft_status gemv_down(weft_device *device, const weft_experts_args *args, const experts_plan *p) {
  const weft_shared_args *shared = &args->shared;
  gemm_args a = gemv_by_pair(args, p, args->down, args->y, args->y_stride), b;
  a.weight[0] = gemm_weight_of(args->down, args->y, args->y_stride); /* with integers, where they are there */
  a.n_rows = args->n_rows;
  a.raw.x = p->gate_up;
  a.raw.x_stride = p->n_ff;
  memset(&b, 0, sizeof b);
  if (shared->gate != NULL) {
    gemm_set_shape(&b, shared->down);
    b.n_rows = args->n_rows;
    b.raw.x = shared->g;
    b.raw.x_stride = shared->gate->n_out;
  }
  bool takes = shared->gate != NULL &&
               (a.is_w8a8 ? w8a8_gemv_down_shares(&a, &b, args->k) : !b.is_w8a8 && experts_gemv_down_shares(&a, &b));
  if (takes)
    b.weight[0] = gemm_weight_of(shared->down, shared->y, shared->y_stride);
  else
    memset(&b, 0, sizeof b);
  const cuda_set *set = cuda_of(device)->set;
  if (args->down_bias != NULL)
    return set->gemv_down_biased(cuda_of(device), &a, args->weights, args->k, args->down_bias);
  auto down = a.is_w8a8 ? set->w8a8_gemv_down : set->gemv_down;
  weft_status status = down(cuda_of(device), &a, &b, args->weights, args->k);
  if (takes || shared->gate == NULL || status != WEFT_OK) return status;
  weft_matmul_args out = parts_shared_out(args);
  return cuda_matmul(device, &out);
}

/* ---- the op --------------------------------------------------------------------------------------------- */

static weft_status run_grouped(cuda_device *d, const weft_experts_args *args, const experts_plan *p) {
  const weft_weight *first = args->gate_up != NULL ? args->gate_up : args->gate;
  bool gated = false;
  weft_status status = permute_pairs(d, args, p, first);
  if (status == WEFT_OK && !p->gates_rows) status = cuda_experts_await(d, false);
  if (status == WEFT_OK && !p->gates_rows) status = gate_up_gemm(d, args, p, &gated);
  if (status == WEFT_OK && !p->gates_rows) status = gated_prologue(d, args, p, gated);
  if (status == WEFT_OK) status = cuda_experts_await(d, true);
  return status == WEFT_OK ? down_gemm(d, args, p) : status;
}

static weft_status run_experts(weft_device *device, const weft_experts_args *args) {
  experts_plan p = plan_of(args, args->scratch);
  const bool few = takes_gemv(args, &p);
  p.gates_rows =
      cuda_of(device)->set->gemm_grouped_gated != NULL && experts_have_gated_rows(args) && (!few || args->n_rows > 1);
  p.streamed = p.gates_rows && p.list[0].rows <= STREAM_ROWS;
  if (few && !p.streamed) {
    weft_status status = cuda_experts_await(cuda_of(device), true);
    if (status == WEFT_OK) status = gemv_gate_up(device, args, &p);
    if (status == WEFT_OK) status = host_products_await(cuda_of(device));
    return status == WEFT_OK ? gemv_down(device, args, &p) : status;
  }
  weft_status status = WEFT_OK;
  if (args->shared.gate != NULL) {
    weft_matmul_args in = parts_shared_in(args), out = parts_shared_out(args);
    status = gemm_mlp(device, &in, &out);
  }
  return status == WEFT_OK ? run_grouped(cuda_of(device), args, &p) : status;
}

weft_status cuda_experts(weft_device *device, const weft_experts_args *args) {
  cuda_device *d = cuda_of(device);
  weft_experts_args a = *args;
  weft_weight copy[4]; /* of weights that come from host memory */
  if (d->lost) return WEFT_E_DEVICE;
  weft_status status = cuda_experts_bring(d, &a, copy);
  if (status == WEFT_OK) status = run_experts(device, &a);
  weft_status done = cuda_experts_done(d);
  return status == WEFT_OK ? done : status;
}
