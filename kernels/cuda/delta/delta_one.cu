/* SPDX-License-Identifier: MIT */
/* delta_rule of segments of one row, as decoding sequences are, in the views of delta_tiles.cu. A block has a value
 * head of one; ONE_BLOCKS of them are on a multiprocessor. Its state is copied into shared memory while what does not
 * need it is made: reading states is what a call of many takes.
 *
 * Columns of a product's operand b do not depend on one another. Where delta_tiles.cu has the rows of a tile there,
 * here are the row's key, its query's high part and its low one: the state is multiplied with all of them at once, and
 * so are the keys before the row; likewise the weights of u for u and for the result.
 *
 * Law: that of delta_tiles.cu, whose sums these are, in its order. What stands in other columns is not read, or is zero
 * where the sum goes on: zeros leave it as it is. */
#include "kernels/cuda/delta/columns.cuh"

enum {
  STATE_FLOATS = DIM + 4, /* of a key's row in shared memory: what a warp reads at once lies in different banks */
  PART_WORDS = DIM / 2 + 4,
#ifdef WEFT_CUDA_PORTABLE
  ONE_BLOCKS = 2 /* on a multiprocessor */
#else
  ONE_BLOCKS = 3
#endif
};

/* Which operand b a column has. */
typedef enum part { PART_KEY, PART_QUERY, PART_QUERY_LOW, PART_ZERO, PARTS } part;

/* What weft_run_unit (kernels/delta.h) needs, divided on the host: the page where the run begins and the offset in it;
 * how many units that page has, and how many each behind it. */
typedef struct state_places {
  uint64_t offset;
  uint32_t page, n_first, n_page;
} state_places;

typedef struct one_args {
  weft_delta_rule_args op; /* segment and write: not read */
  state_places places;
  const delta_short *list;
  bool norms; /* the norm is made at once */
} one_args;

typedef struct one_memory {
  union {
    float state[DIM][STATE_FLOATS];
    uint8_t key[EVERY * KEY_BYTES]; /* for the next border's state, when the state has been multiplied */
  };
  uint32_t part[PARTS][PART_WORDS]; /* pairs of bf16 */
  float total[EVERY];
  float of_k[EVERY], of_q[EVERY]; /* products of keys with the row's key and query; then weights of u */
  float own[8];                   /* weights of the u of the same eight, times beta */
  float result[DIM], z[DIM], norm[DIM];
  uint64_t row[EVERY]; /* bytes from the pool's begin on: what a compiler knows to be no shared memory is read faster */
} one_memory;

/* Where a block is: position `at` since the border. */
typedef struct one_block {
  delta_short own;
  uint32_t at, head, key_head, column; /* column: the lane's first */
  uint64_t row;                        /* of the call */
} one_block;

/* Where the state of the block's head lies in the run of `pages`. */
static __device__ __forceinline__ float *find_state(const one_args &k, const one_block &b, const uint32_t *pages) {
  const weft_run_view &view = k.op.view.state;
  const state_places &p = k.places;
  bool is_first = b.head < p.n_first;
  uint32_t behind = b.head - p.n_first, page = is_first ? p.page : p.page + 1 + behind / p.n_page;
  uint64_t offset = is_first ? p.offset + b.head * view.unit_bytes : behind % p.n_page * view.unit_bytes;
  return (float *)(void *)((uint8_t *)view.base + pages[page] * view.page_bytes + offset);
}

/* Starts the copy of the state. */
static __device__ __forceinline__ void copy_state(const float *from, one_memory &m) {
  uint32_t warp = threadIdx.x / 32, to = shared_address(&m.state[warp][own_lane() * 4]);
  from += warp * DIM + own_lane() * 4;
#pragma unroll
  for (uint32_t n = 0; n < DIM / SHORT_WARPS; n++)
    cp_async_16(to + n * SHORT_WARPS * STATE_FLOATS * 4, from + n * SHORT_WARPS * DIM);
}

/* Where the block's key head and the lane's u begin in the row that begins with the pool. */
static __device__ __forceinline__ const uint8_t *keys_of(const one_args &k, const one_block &b) {
  return (const uint8_t *)k.op.view.base + 2 * (weft_delta_channels(&k.op.view) + (uint64_t)b.key_head * DIM);
}

static __device__ __forceinline__ uint8_t *u_of(const one_args &k, const one_block &b) {
  return (uint8_t *)k.op.view.base + u_bytes_at(k.op.view, b.head) + 2 * b.column;
}

/* The row's key and query as operands, by the first threads, each a pair of dimensions. */
static __device__ __forceinline__ void make_parts(const one_args &k, const one_block &b, one_memory &m) {
  uint32_t i = threadIdx.x, high, low;
  if (i >= DIM / 2) return;
  const uint8_t *keys = keys_of(k, b);
  const float *q = k.op.q + b.row * k.op.q_stride + b.key_head * DIM + 2 * i;
  split_two(q[0], q[1], high, low);
  m.part[PART_KEY][i] = *(const uint32_t *)(const void *)(keys + m.row[b.at] + 4 * i);
  m.part[PART_QUERY][i] = high;
  m.part[PART_QUERY_LOW][i] = low;
  m.part[PART_ZERO][i] = 0;
}

/* Operand b of sixteen dimensions: a lane has `part` in its column. */
static __device__ __forceinline__ void load_part(const one_memory &m, uint32_t part, uint32_t s, uint32_t (&b)[2]) {
  const uint32_t *from = &m.part[part][8 * s + own_lane() % 4];
  b[0] = from[0], b[1] = from[4];
}

/* The keys of a tile as operands a; those behind the row are zeros. */
typedef struct tile_keys {
  uint32_t a[STEPS][4];
} tile_keys;

static __device__ __forceinline__ void load_keys(const one_args &k, const one_block &b, uint32_t tile,
                                                 const one_memory &m, tile_keys &keys) {
  const uint8_t *from = keys_of(k, b) + own_lane() % 4 * 4;
#pragma unroll
  for (uint32_t i = 0; i < 2; i++) {
    uint32_t r = tile * ROWS + 8 * i + own_lane() / 4;
    const uint8_t *row = from + (r <= b.at ? m.row[r] : 0);
#pragma unroll
    for (uint32_t j = 0; j < 2 * STEPS; j++)
      keys.a[j / 2][j % 2 * 2 + i] = r <= b.at ? *(const uint32_t *)(const void *)(row + 16 * j) : 0;
  }
}

/* Products of a tile's keys with the row's key and query. */
static __device__ __forceinline__ void multiply_tile(uint32_t tile, const tile_keys &keys, one_memory &m) {
  uint32_t lane = own_lane(), g = lane / 4;
  float sum[4] = {};
#pragma unroll
  for (uint32_t s = 0; s < STEPS; s++) {
    uint32_t b[2];
    load_part(m, min(g, (uint32_t)PART_QUERY_LOW), s, b);
    mma_bf16(sum, keys.a[s], b[0], b[1]);
  }
  float low[2] = {__shfl_sync(0xFFFFFFFFu, sum[0], (lane & 28) + 1), __shfl_sync(0xFFFFFFFFu, sum[2], (lane & 28) + 1)};
  if (lane % 4 != 0) return;
#pragma unroll
  for (uint32_t i = 0; i < 2; i++) {
    m.of_k[tile * ROWS + 8 * i + g] = sum[2 * i];
    m.of_q[tile * ROWS + 8 * i + g] = __fadd_rn(sum[2 * i + 1], low[i]);
  }
}

/* Makes weights of products, by the first threads, each for a position. */
static __device__ __forceinline__ void make_weights(const one_block &b, float beta, one_memory &m) {
  uint32_t i = threadIdx.x, t = b.at;
  if (i >= EVERY) return;
  float decay = i <= t ? expf(__fsub_rn(m.total[t], m.total[i])) : 0.0f;
  float of_k = i < t ? __fmul_rn(decay, m.of_k[i]) : 0.0f, of_q = i <= t ? __fmul_rn(decay, m.of_q[i]) : 0.0f;
  m.of_k[i] = i / 8 < t / 8 ? of_k : 0.0f;
  m.of_q[i] = of_q;
  if (i / 8 == t / 8) m.own[i % 8] = __fmul_rn(beta, of_k);
}

/* Sums of a lane: [2 j] of the key and [2 j + 1] of the query, in column 2 g + j; in the first lane of each four. */
typedef struct one_sums {
  float high[4], low[4];
} one_sums;

static __device__ __forceinline__ void multiply_state(const one_block &b, const one_memory &m, one_sums &sums) {
  uint32_t g = own_lane() / 4, c = own_lane() % 4;
#pragma unroll
  for (uint32_t s = 0; s < STEPS; s++) {
    uint32_t high[4], low[4], both[2], rest[2];
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
      const float *from = &m.state[16 * s + 8 * i + 2 * c][b.column];
      float2 x = *(const float2 *)(const void *)from, y = *(const float2 *)(const void *)(from + STATE_FLOATS);
      split_two(x.x, y.x, high[2 * i], low[2 * i]);
      split_two(x.y, y.y, high[2 * i + 1], low[2 * i + 1]);
    }
    load_part(m, min(g, (uint32_t)PART_QUERY_LOW), s, both);
    load_part(m, g == 0 ? PART_ZERO : PART_QUERY_LOW, s, rest);
    mma_bf16(sums.high, high, both[0], both[1]);
    mma_bf16(sums.low, low, both[0], both[1]);
    mma_bf16(sums.low, high, rest[0], rest[1]);
  }
}

/* sum += the u of a tile times their weights, which lie from `weight` on for the lane's column; without `has` they are
 * zeros. */
static __device__ __forceinline__ void add_weighted(const float *weight, bool has, const uint32_t (&u)[4],
                                                    float (&sum)[4]) {
  uint32_t high[2], low[2];
#pragma unroll
  for (uint32_t n = 0; n < 2; n++) {
    float2 x = *(const float2 *)(const void *)&weight[8 * n + own_lane() % 4 * 2];
    split_two(has ? x.x : 0.0f, has ? x.y : 0.0f, high[n], low[n]);
  }
  mma_bf16(sum, u, high[0], high[1]);
  mma_bf16(sum, u, low[0], low[1]);
}

/* u of the row, in the first lane of each four. u: of the row's eight, laid out as in rule_columns (columns.cuh). */
static __device__ __forceinline__ void solve_one(const one_memory &m, float beta, float2 value, const uint32_t (&u)[2],
                                                 const float (&sum)[4], float (&left)[2]) {
  left[0] = __fmul_rn(beta, __fsub_rn(value.x, sum[0]));
  left[1] = __fmul_rn(beta, __fsub_rn(value.y, sum[2]));
#pragma unroll
  for (int p = 0; p < 4; p++) {
    float2 weight = *(const float2 *)(const void *)&m.own[2 * p];
#pragma unroll
    for (int j = 0; j < 2; j++) {
      uint32_t two = __shfl_sync(0xFFFFFFFFu, u[j], p, 4);
      left[j] = __fmaf_rn(-weight.x, __uint_as_float(two << 16), left[j]);
      left[j] = __fmaf_rn(-weight.y, __uint_as_float(two & 0xFFFF0000u), left[j]);
    }
  }
  left[0] = delta_round(WEFT_TYPE_BF16, left[0]);
  left[1] = delta_round(WEFT_TYPE_BF16, left[1]);
}

/* Loads u of a tile's rows, [2 n + e]: of row 8 n + 2 c + e, of both columns; turn_u, when it has come, makes of it
 * what load_u (columns.cuh) gives. is_own: the row's own tile, where rows from it on are zeros. */
static __device__ __forceinline__ void ask_for_u(const uint8_t *from, uint32_t tile, bool is_own, const one_block &b,
                                                 const one_memory &m, uint32_t (&u)[4]) {
#pragma unroll
  for (uint32_t n = 0; n < 2; n++) {
    uint32_t r = tile * ROWS + 8 * n + own_lane() % 4 * 2;
    ulonglong2 row = *(const ulonglong2 *)(const void *)&m.row[r];
    u[2 * n] = !is_own || r < b.at ? *(const uint32_t *)(const void *)(from + row.x) : 0;
    u[2 * n + 1] = !is_own || r + 1 < b.at ? *(const uint32_t *)(const void *)(from + row.y) : 0;
  }
}

static __device__ __forceinline__ void turn_u(uint32_t (&u)[4]) {
#pragma unroll
  for (uint32_t n = 0; n < 2; n++) turn_two(u[2 * n], u[2 * n + 1], &u[2 * n]);
}

/* u as loaded: of three tiles, and of the row's own, to which its own u comes. */
typedef struct one_u {
  uint32_t before[TILES - 1][4], own[4];
} one_u;

/* What of the row is needed beside its state: numbers of its lanes. */
typedef struct one_inputs {
  one_u u;
  float2 value;
  float beta;
} one_inputs;

/* Finds u and the result of the row in the warp's columns. */
static __device__ __forceinline__ void compute_row(const one_args &k, const one_block &b, const one_sums &sums,
                                                   one_inputs &in, one_memory &m) {
  one_u &u = in.u;
  uint32_t lane = own_lane(), tile = b.at / ROWS, of_row = b.at % 8;
  bool is_second = b.at % ROWS >= 8;
  const float *weight = lane / 4 == 0 ? m.of_k : m.of_q;
  float decay = expf(m.total[b.at]), from_state[4], sum[4] = {}, left[2];
#pragma unroll
  for (uint32_t i = 0; i < 4; i++) from_state[i] = __fmul_rn(decay, __fadd_rn(sums.high[i], sums.low[i]));
  sum[0] = from_state[0], sum[2] = from_state[2];
#pragma unroll
  for (uint32_t i = 0; i + 1 < TILES; i++)
    if (i < tile) add_weighted(weight + i * ROWS, true, u.before[i], sum);
  if (is_second) add_weighted(m.of_k + tile * ROWS, lane / 4 == 0, u.own, sum);
  const uint32_t eight[2] = {is_second ? u.own[2] : u.own[0], is_second ? u.own[3] : u.own[1]};
  solve_one(m, in.beta, in.value, eight, sum, left);
#pragma unroll
  for (uint32_t j = 0; j < 2; j++) {
    uint32_t two = __shfl_sync(0xFFFFFFFFu, __float_as_uint(left[j]), 0, 4);
    two = lane % 4 != of_row / 2 ? 0 : of_row % 2 == 0 ? two >> 16 : two;
    if (is_second)
      u.own[2 + j] |= two;
    else
      u.own[j] |= two;
  }
  add_weighted(m.of_q + tile * ROWS, true, u.own, sum);
  if (lane % 4 != 0) return;
  *(uint32_t *)(void *)(u_of(k, b) + m.row[b.at]) =
      __byte_perm(__float_as_uint(left[0]), __float_as_uint(left[1]), 0x7632);
  *(float2 *)(void *)&m.result[b.column] =
      make_float2(__fadd_rn(from_state[1], sum[1]), __fadd_rn(from_state[3], sum[3]));
}

/* Makes and stores the state of the next border, which the row reaches. from: the lane's first column of the state
 * before, as read_keys wants it. */
static __device__ __forceinline__ void write_border(const one_args &k, const one_block &b, const float *from,
                                                    const one_u &u, one_memory &m) {
  const weft_delta_view &view = k.op.view;
  uint32_t lane = own_lane(), high[TILES][4], low[TILES][4];
  float last = m.total[EVERY - 1];
  const uint8_t *keys = keys_of(k, b);
  for (uint32_t i = threadIdx.x; i < EVERY * STEPS * 2; i += SHORT_THREADS)
    cp_async_16(shared_address(m.key + i / (STEPS * 2) * KEY_BYTES + i % (STEPS * 2) * 16),
                keys + m.row[i / (STEPS * 2)] + i % (STEPS * 2) * 16);
  cp_async_commit();
#pragma unroll
  for (uint32_t i = 0; i < 4 * TILES; i++) {
    uint32_t two = i / 4 < TILES - 1 ? u.before[i / 4][i % 4] : u.own[i % 4];
    uint32_t first = i / 4 * ROWS + i % 4 / 2 * 8 + lane % 4 * 2;
    float x = expf(__fsub_rn(last, m.total[first])), y = expf(__fsub_rn(last, m.total[first + 1]));
    split_two(__fmul_rn(x, __uint_as_float(two << 16)), __fmul_rn(y, __uint_as_float(two & 0xFFFF0000u)),
              high[i / 4][i % 4], low[i / 4][i % 4]);
  }
  cp_async_wait<0>();
  __syncthreads();
  float decay = expf(last), *unit = find_state(k, b, b.own.piece.pages) + b.column;
  uint32_t b_at = shared_address(m.key) + lane % 16 * KEY_BYTES + lane / 16 * 16;
#pragma unroll 1
  for (uint32_t n = 0; n < 2 * STEPS; n += 2) {
    float x[2][4];
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) read_keys(from, n + i, x[i]);
#pragma unroll
    for (uint32_t i = 0; i < 8; i++) x[i / 4][i % 4] = __fmul_rn(x[i / 4][i % 4], decay);
#pragma unroll
    for (uint32_t tile = 0; tile < TILES; tile++) {
      uint32_t key[4];
      ldmatrix_x4_trans(key, b_at + tile * ROWS * KEY_BYTES + 16 * n);
      multiply_pair(x, high[tile], key[0], key[1], key[2], key[3]);
      multiply_pair(x, low[tile], key[0], key[1], key[2], key[3]);
    }
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
      float *to = unit + (8 * (n + i) + lane % 4 * 2) * DIM;
      *(float2 *)(void *)to = make_float2(x[i][0], x[i][2]);
      *(float2 *)(void *)(to + DIM) = make_float2(x[i][1], x[i][3]);
    }
  }
  write_tail(view, b.own.piece.pages, b.own.segment.table, b.own.piece.border + EVERY,
             b.head * SHORT_THREADS + threadIdx.x, view.n_v_heads * SHORT_THREADS);
}

/* The norm of the result, or it as it is, by the first warp. */
static __device__ __forceinline__ void finish_row(const one_args &k, const one_block &b, const one_memory &m) {
  if (threadIdx.x >= 32) return;
  float *out = k.op.out + b.row * k.op.out_stride + b.head * DIM;
  if (k.norms)
    delta_norm_head<DIM / 32>(m.result, m.z, m.norm, DIM, k.op.eps, out);
  else
    for (uint32_t c = own_lane(); c < DIM; c += 32) out[c] = m.result[c];
}

static __device__ __forceinline__ one_block find_block(const one_args &k) {
  uint32_t index = blockIdx.x;
  one_block b;
  b.own = k.list[index / k.op.view.n_v_heads];
  b.at = b.own.piece.first;
  b.head = index % k.op.view.n_v_heads;
  b.key_head = b.head % k.op.view.n_k_heads;
  b.column = threadIdx.x / 32 * COLUMNS + own_lane() / 4 * 2;
  b.row = b.own.piece.first_row;
  return b;
}

/* Loads what one_inputs has and keys, and starts the copy of the state behind that, which is much more. */
static __device__ __forceinline__ void load_row(const one_args &k, const one_block &b, const float *state,
                                                tile_keys &keys, one_memory &m, one_inputs &in) {
  uint32_t warp = threadIdx.x / 32, tile = b.at / ROWS, c = threadIdx.x % DIM;
  float z = 0.0f, total = 0.0f;
  const uint8_t *from = u_of(k, b);
  if (warp <= tile) load_keys(k, b, warp, m, keys);
#pragma unroll
  for (uint32_t i = 0; i + 1 < TILES; i++)
    if (i < tile) ask_for_u(from, i, false, b, m, in.u.before[i]);
  ask_for_u(from, tile, true, b, m, in.u.own);
  const float *v = k.op.v + b.row * k.op.v_stride + b.head * DIM + b.column;
  in.value = make_float2(v[0], v[1]);
  in.beta = k.op.beta[b.row * k.op.beta_stride + b.head];
  if (k.norms) z = threadIdx.x < DIM ? k.op.norm[c] : k.op.z[b.row * k.op.z_stride + b.head * DIM + c];
  if (threadIdx.x <= b.at) total = delta_decays(k.op.view, (uint8_t *)k.op.view.base + m.row[threadIdx.x])[b.head];
  if (state != NULL) copy_state(state, m);
  cp_async_commit();
  make_parts(k, b, m);
  (threadIdx.x < DIM ? m.norm : m.z)[c] = z;
  if (threadIdx.x <= b.at) m.total[threadIdx.x] = total;
}

static __global__ void __launch_bounds__(SHORT_THREADS, ONE_BLOCKS) one_kernel(const __grid_constant__ one_args k) {
  extern __shared__ __align__(16) uint8_t shared[];
  one_memory &m = *(one_memory *)(void *)shared;
  const weft_delta_view &view = k.op.view;
  launch_dependent_grids();
  const one_block b = find_block(k);
  uint32_t warp = threadIdx.x / 32, tile = b.at / ROWS;
  const float *state = b.own.segment.state == NULL ? NULL : find_state(k, b, b.own.segment.state);
  if (threadIdx.x <= b.at)
    m.row[threadIdx.x] =
        (uint64_t)(weft_delta_row(&view, b.own.segment.table, b.own.piece.border + threadIdx.x) - (uint8_t *)view.base);
  wait_for_prior_grids();
  __syncthreads();
  tile_keys keys;
  one_inputs in = {};
  load_row(k, b, state, keys, m, in);
  __syncthreads();
  if (warp <= tile)
    multiply_tile(warp, keys, m);
  else if (threadIdx.x == SHORT_THREADS - 1)
    delta_add_decays(m.total, b.at + 1);
  __syncthreads();
  make_weights(b, in.beta, m);
  cp_async_wait<0>();
  __syncthreads();
#pragma unroll
  for (uint32_t i = 0; i + 1 < TILES; i++) turn_u(in.u.before[i]);
  turn_u(in.u.own);
  one_sums sums = {};
  if (state != NULL) multiply_state(b, m, sums);
  compute_row(k, b, sums, in, m);
  __syncthreads();
  finish_row(k, b, m);
  if (b.own.piece.pages != NULL) write_border(k, b, state == NULL ? NULL : state + b.column, in.u, m);
}

/* ---- host ------------------------------------------------------------------------------------------------ */

bool delta_one_takes(const weft_delta_view *view) {
  return ((uint64_t)(uintptr_t)view->state.base | view->state.offset | view->state.page_bytes) % 16 == 0;
}

void delta_one(cuda_device *d, const weft_delta_rule_args *args, const delta_tables *tables, bool norms) {
  const weft_run_view *state = &args->view.state;
  uint64_t at = state->offset % state->page_bytes;
  const state_places places = {at, (uint32_t)(state->offset / state->page_bytes),
                               (uint32_t)((state->page_bytes - at) / state->unit_bytes),
                               (uint32_t)(state->page_bytes / state->unit_bytes)};
  const one_args k = {*args, places, tables->one, norms};
  cuda_start(d, one_kernel, tables->n_one * args->view.n_v_heads, SHORT_THREADS, sizeof(one_memory), k);
}

cudaError_t delta_one_setup(void) {
  return cudaFuncSetAttribute(one_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(one_memory));
}
