/* SPDX-License-Identifier: MIT */
/* Products for few rows: a warp takes 16 outputs and one segment of the inputs; segments meet in shared memory.
 *
 *   weights  every warp has places for a few pieces of a tile and asks for the next ones by bulk copies
 *   block    up to 16 warps = row tiles x segments, for one job (8 NT rows of x). It goes on to the tiles that are a grid
 *            further; their first weights are on their way while these tiles are finished
 *   raw      one row of f32: every block prepares it for itself while its first weights are on their way, which saves a
 *            kernel before this one
 *   gated    a tile of the gate and its tile of up lie in one block: act(g) * u leaves it
 *   shared   tiles of a shared MLP go before those of experts: their weights come while the choice is made */
#include "kernels/cuda/few.cuh"

enum { WARPS_MAX = 16, SEGMENTS = 8, RESIDENT_WARPS = 24, PLACES = 2, SHARED_BYTES_MAX = 220 << 10 };

/* Row tiles of a job that blocks deal out: pairs of them where they are gated. */
static __host__ __device__ __forceinline__ uint32_t few_tiles(const multiply_args &a) {
  if (a.gated) return a.n_weights == 2 ? a.weight[0].n_tiles : a.weight[0].n_tiles / 2;
  uint32_t n = 0;
  for (uint32_t w = 0; w < a.n_weights; w++) n += a.weight[w].n_tiles;
  return n;
}

/* What a warp does of item `index`: a tile of a weight. False: nothing. */
typedef struct few_tile {
  uint32_t weight, tile;
} few_tile;

static __device__ __forceinline__ bool find_tile(const multiply_args &a, uint32_t group, uint32_t slot, few_tile *out) {
  uint32_t n_slots = blockDim.x / 32 / a.n_segments, n_tiles = few_tiles(a);
  uint32_t at = a.gated ? group * (n_slots / 2) + slot / 2 : group * n_slots + slot, w = 0;
  if (at >= n_tiles) return false;
  if (!a.gated) {
    while (at >= a.weight[w].n_tiles) at -= a.weight[w++].n_tiles;
  } else if (slot % 2 != 0) {
    if (a.n_weights == 2) w = 1;
    else at += n_tiles;
  }
  out->weight = w;
  out->tile = at;
  return true;
}

/* Item `index`: tiles of the shared MLP, then groups of tiles of jobs. The same for all warps of a block: */
static __device__ __forceinline__ bool find_job(const multiply_args &a, uint32_t index, uint32_t n_groups, uint32_t width,
                                                multiply_job *job) {
  *job = {0, 0, 1};
  return index < a.n_shared || job_of(a, (index - a.n_shared) / n_groups, width, job);
}

static __device__ __forceinline__ bool find_own(const multiply_args &a, uint32_t index, uint32_t n_groups, uint32_t slot, few_tile *out) {
  *out = {MULTIPLY_SHARED + slot % 2, index};
  return index < a.n_shared || find_tile(a, (index - a.n_shared) % n_groups, slot, out);
}

/* The next piece that a warp asks for. */
typedef struct few_cursor {
  uint32_t index, unit;
  const uint8_t *row_tile; /* NULL: there is no more */
} few_cursor;

/* Moves on to item `index` or the first one after it that has work for the warp. */
template <int NT>
static __device__ __forceinline__ void enter_item(const multiply_args &a, uint32_t n_items, uint32_t n_groups, uint32_t slot,
                                                  uint32_t first, few_cursor *at) {
  multiply_job job;
  few_tile tile;
  at->row_tile = NULL;
  at->unit = first;
  for (; at->index < n_items; at->index += gridDim.x) {
    if (!find_job(a, at->index, n_groups, 8 * NT, &job) || !find_own(a, at->index, n_groups, slot, &tile)) continue;
    const multiply_weight &weight = a.weight[tile.weight];
    at->row_tile = weight.data + FORM_HEADER_BYTES + ((uint64_t)job.matrix * weight.n_tiles + tile.tile) * a.tile_bytes;
    return;
  }
}

template <int T, int NT>
static __device__ __forceinline__ void ask_next(const multiply_args &a, uint32_t n_items, uint32_t n_groups, uint32_t slot,
                                                uint32_t first, uint32_t end, few_ring &ring, uint32_t place, few_cursor *at) {
  if (at->unit >= end) {
    at->index += gridDim.x;
    enter_item<NT>(a, n_items, n_groups, slot, first, at);
  }
  if (at->row_tile == NULL) return;
  ring_ask<T>(a, ring, place, at->row_tile, at->unit);
  at->unit += few_units(T);
}

/* Segments ascending, from 0. part: of the tile, [segments][NT][lane][4]. */
template <int NT>
static __device__ __forceinline__ float joined(const multiply_args &a, const float *part, int n, int e, float back, int raise) {
  float sum = 0.0f, of[SEGMENTS];
#pragma unroll
  for (uint32_t s = 0; s < SEGMENTS; s++)
    of[s] = s < a.n_segments ? part[((s * NT + n) * 32 + threadIdx.x % 32) * 4 + e] : 0.0f;
#pragma unroll
  for (uint32_t s = 0; s < SEGMENTS; s++)
    if (s < a.n_segments) sum = __fadd_rn(sum, of[s]);
  return __fmul_rn(__fmul_rn(sum, back), power_of_two(-raise));
}

/* raise: of this tile and of the one it is gated with. */
template <int T, int NT, bool RAW>
static __device__ __forceinline__ void finish_tile(const multiply_args &a, const multiply_job &job, few_tile tile,
                                                   const float *part, const int *raise, int lift) {
  uint32_t lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
  const multiply_weight &weight = a.weight[tile.weight];
#pragma unroll
  for (int n = 0; n < NT; n++) {
#pragma unroll
    for (int e = 0; e < 4; e++) {
      uint32_t column = 8 * n + 2 * c + e % 2, out = tile.tile * 16 + g + e / 2 * 8;
      if (column >= job.n || out >= weight.n_out) continue;
      float back = RAW ? power_of_two(-lift) : a.x_back[x_row_of(a, job, column)];
      float value = joined<NT>(a, part, n, e, back, raise[0]);
      if (a.gated) {
        float up = joined<NT>(a, part + a.n_segments * NT * 128, n, e, back, raise[1]);
        value = gate_product(a.activation, value, up);
      }
      weight.y[(uint64_t)(job.first + column) * weight.y_stride + out] = value;
    }
  }
}

template <int T, int NT, bool RAW>
static __global__ void __maxnreg__(NT == 1 ? 80 : NT == 2 ? 112 : 128) few_kernel(const __grid_constant__ multiply_args a, uint32_t n_items,
                                                                                       uint32_t n_groups) {
  /* Places of the warps, then [row tiles of the block][segments][NT][32][4], then a raw row. */
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ __align__(8) uint64_t filled[WARPS_MAX * PLACES];
  __shared__ uint32_t most_of[WARPS_MAX];
  __shared__ int raise_of[WARPS_MAX]; /* of row tiles */
  uint32_t n_warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  uint32_t segment = warp % a.n_segments, slot = warp / a.n_segments;
  uint32_t first = segment * a.segment_units, end = min(a.n_units, first + a.segment_units);
  const float *row_of_raw = NULL;
  few_ring ring = {memory + warp * PLACES * few_piece_bytes(T), filled + warp * PLACES, PLACES, 0, 0};
  float *part = (float *)(void *)(memory + n_warps * PLACES * few_piece_bytes(T));
  uint4 *raw = (uint4 *)(void *)(part + n_warps * NT * 128);
  int lift = 0;
  ring_open(&ring);
  few_tile tile;
  bool of_choice = a.ids != NULL && blockIdx.x >= a.n_shared, active = find_own(a, blockIdx.x, n_groups, slot, &tile);
  uint32_t header_of = active ? tile.weight : 0, place = 0;
  form_header header = *(const form_header *)(const void *)a.weight[header_of].data;
  if (of_choice) inputs_wait();
  few_cursor ahead = {blockIdx.x, 0, NULL};
  enter_item<NT>(a, n_items, n_groups, slot, first, &ahead);
  for (; place < PLACES && ahead.unit < end; place++)
    ask_next<T, NT>(a, n_items, n_groups, slot, first, end, ring, place, &ahead);
  if (!of_choice) inputs_wait();
  for (; place < PLACES; place++) ask_next<T, NT>(a, n_items, n_groups, slot, first, end, ring, place, &ahead);
  multiply_job job;
  bool exists = find_job(a, blockIdx.x, n_groups, 8 * NT, &job);
  active = exists && active;
  int raise = raise_exponent(T, &header);
  next_may_start();
  for (uint32_t index = blockIdx.x; index < n_items; index += gridDim.x) {
    if (index != blockIdx.x) {
      exists = find_job(a, index, n_groups, 8 * NT, &job);
      active = exists && find_own(a, index, n_groups, slot, &tile);
      if (active && tile.weight != header_of) header = *(const form_header *)(const void *)a.weight[header_of = tile.weight].data;
      raise = raise_exponent(T, &header);
    }
    raise_powers powers = powers_of<T>(raise);
    float sum[NT][4];
    x_source<NT> x;
#pragma unroll
    for (int at = 0; at < 4 * NT; at++) sum[at / 4][at % 4] = 0.0f;
    if (index != blockIdx.x) __syncthreads(); /* the raw row and the sums of before have been read */
    if (!exists) continue;
    if constexpr (RAW) {
      const float *row = index < a.n_shared ? a.shared_x : a.raw.x + x_row_of(a, job, 0) * a.raw.x_stride;
      if (row != row_of_raw) lift = prepare_raw<T>(a, row, most_of, raw);
      row_of_raw = row;
      x.raw = raw;
    } else {
#pragma unroll
      for (int n = 0; n < NT; n++)
        x.prepared[n] = (const uint8_t *)a.x + x_at(a, x_row_of(a, job, 8 * n + lane / 4), lane % 4);
    }
    if (lane == 0 && segment == 0) raise_of[slot] = raise;
    for (uint32_t unit = active ? first : end; unit < end; unit += few_units(T)) {
      ring_wait(ring);
      multiply_piece<T, NT, RAW>(a, ring, unit, end, x, powers, sum);
      uint32_t place = ring.at;
      ring_next(ring);
      ask_next<T, NT>(a, n_items, n_groups, slot, first, end, ring, place, &ahead);
    }
#pragma unroll
    for (int n = 0; n < NT; n++)
      ((float4 *)(void *)part)[(warp * NT + n) * 32 + lane] = make_float4(sum[n][0], sum[n][1], sum[n][2], sum[n][3]);
    __syncthreads();
    if (active && segment == 0 && (!a.gated || slot % 2 == 0))
      finish_tile<T, NT, RAW>(a, job, tile, part + (uint64_t)warp * NT * 128, raise_of + slot, lift);
  }
}

template <int T>
static uint32_t bytes_of(uint32_t n_warps, uint32_t nt, uint32_t raw_units) {
  return n_warps * (PLACES * few_piece_bytes(T) + nt * 512) + raw_units * 256;
}

template <int T, int NT, bool RAW>
static weft_status launch(cuda_device *d, const multiply_args &a) {
  uint32_t n_slots = a.gated ? 2 : 8 / a.n_segments, n_warps = n_slots * a.n_segments;
  uint32_t n_jobs = a.ids != NULL ? a.jobs_max : 1, n_groups = cuda_ceil(few_tiles(a), a.gated ? 1 : n_slots);
  uint32_t bytes = bytes_of<T>(n_warps, NT, RAW ? a.n_units : 0), n_items = a.n_shared + n_groups * n_jobs;
  uint32_t per = SHARED_BYTES_MAX / bytes < RESIDENT_WARPS / n_warps ? SHARED_BYTES_MAX / bytes : RESIDENT_WARPS / n_warps;
  uint32_t n_blocks = d->n_multiprocessors * per;
  multiply_args k = a;
  k.raw.wide = few_is_wide(a.raw.x, a.raw.x_stride) && few_is_wide(a.shared_x, 0);
  cuda_start(d, few_kernel<T, NT, RAW>, n_items < n_blocks ? n_items : n_blocks, 32 * n_warps, bytes, k, n_items, n_groups);
  return cuda_launched(d, "a product of few rows");
}

template <int T, int NT, bool RAW>
static weft_status set_up(cuda_device *d) {
  static_assert(WARPS_MAX * (PLACES * few_piece_bytes(T) + NT * 512) + MULTIPLY_RAW_BYTES <= SHARED_BYTES_MAX, "shared memory");
  uint32_t bytes = bytes_of<T>(WARPS_MAX, NT, RAW ? MULTIPLY_RAW_BYTES / 256 : 0);
  cudaError_t error = cudaFuncSetAttribute(few_kernel<T, NT, RAW>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
  return cuda_judge(d, error, "setting up products");
}

/* a NULL: sets the kernels of the type up. */
template <int T>
static weft_status of_rows(cuda_device *d, const multiply_args *args) {
  if (args == NULL) {
    weft_status status = set_up<T, 1, true>(d);
    if (status == WEFT_OK) status = set_up<T, 1, false>(d);
    if (status == WEFT_OK) status = set_up<T, 2, false>(d);
    return status == WEFT_OK ? set_up<T, 4, false>(d) : status;
  }
  const multiply_args &a = *args;
  if (a.raw.x != NULL) return launch<T, 1, true>(d, a);
  if (a.ids != NULL || a.n_rows <= 8) return launch<T, 1, false>(d, a);
  return a.n_rows <= 16 ? launch<T, 2, false>(d, a) : launch<T, 4, false>(d, a);
}

weft_status multiply_few(cuda_device *d, const multiply_args *args) {
  return form_dispatch(args->type, [&](auto type) { return of_rows<decltype(type)::value>(d, args); });
}

weft_status multiply_few_setup(cuda_device *d) {
  return form_each([&](auto type) { return of_rows<decltype(type)::value>(d, NULL); });
}
