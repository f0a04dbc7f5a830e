/* SPDX-License-Identifier: MIT */
/* delta_rule by tensor cores, for heads of 128 whose rows are bf16 with borders every 64 positions (delta_tiles_takes).
 * A tile is sixteen positions, counted from the border; a warp has sixteen columns of a value head, which do not depend
 * on the others, with their state in registers: as sums of mma.sync, whose layout is that of its operand a.
 *
 *   short    segments of fewer than DELTA_LONG_ROWS rows: a block has a value head of one, eight warps of columns.
 *            For each tile four warps make the weights of the tile, all multiply, and the norm follows at once
 *   weights  longer segments, first: the weights of all tiles, which need no state; a block has a piece and a key head
 *   long     then a block has 32 or 64 columns of a value head; one warp more copies what the next tiles need into a
 *            ring of stages. delta_norm follows
 *
 * Law (delta.cuh): every number that is not stored as bf16 comes into a product as the sum of two of bf16, high and
 * low, what is left of it rounded; low times low is left out. A row's sum begins with the products of its key (or
 * query) with the state: high and low are summed by themselves, sixteen keys at a time, ascending, then added and
 * multiplied by the decay. Then come the tiles of earlier u, ascending, by high weights and then low ones, then the
 * first eight of its own tile likewise, and then its own eight one after another; a result takes its whole own tile
 * like an earlier one. A border's state is the decayed one, to which tiles are added ascending, high before low. So the
 * bits of a row are the same in all three kernels and in whatever call it comes. */
#include <stddef.h>

#include "kernels/cuda/delta/columns.cuh"

typedef struct rule_args {
  weft_delta_rule_args op; /* segment and write: not read */
  delta_tables tables;
  tile_weights *weights; /* [n_tiles][n_v_heads] */
  tile_queries *queries; /* [n_tiles][n_k_heads] */
  bool norms;            /* short segments: the norm is made at once */
} rule_args;

/* ---- weights of long segments -------------------------------------------------------------------------------------- */

/* Copies the keys of rows below `end` of a piece, by N_THREADS threads; those of others are zeros. */
template <int N_THREADS>
static __device__ __forceinline__ void copy_keys(const weft_delta_view &view, uint8_t *const *row, uint32_t key_head,
                                                 uint32_t end, uint8_t *to) {
  uint64_t from = 2ull * (weft_delta_channels(&view) + key_head * DIM);
  for (uint32_t i = threadIdx.x; i < EVERY * STEPS * 2; i += N_THREADS) {
    uint32_t r = i / (STEPS * 2), piece = i % (STEPS * 2) * 16;
    bool is_there = r < end;
    cp_async_16_if(shared_address(to + r * KEY_BYTES + piece), is_there ? row[r] + from + piece : (uint8_t *)view.base,
                   is_there);
  }
  cp_async_commit();
}

/* Loads the queries of n rows from position `at` of a piece on; those that the call does not have are zeros. */
template <int N_THREADS>
static __device__ __forceinline__ void load_queries(const rule_args &k, const delta_piece &piece, uint32_t key_head,
                                                    uint32_t at, uint32_t n, float *to) {
  const float *q = k.op.q + key_head * DIM;
  delta_copy<8, N_THREADS>(
      n * DIM,
      [&](uint32_t i) {
        uint32_t t = at + i / DIM;
        bool is_new = t >= piece.first && t < piece.end;
        return is_new ? q[(uint64_t)(piece.first_row + (t - piece.first)) * k.op.q_stride + i % DIM] : 0.0f;
      },
      [&](uint32_t i, float x) { to[i / DIM * QUERY_FLOATS + i % DIM] = x; });
}

/* Makes G of decays g, of which there are n; those behind them are as the last one. */
static __device__ __forceinline__ void fill_total(float *total, uint32_t n) {
  delta_add_decays(total, n);
  for (uint32_t i = n; i < EVERY; i++) total[i] = total[n - 1];
}

/* Behind it, total[n_v_heads / n_k_heads][EVERY]. */
typedef struct weights_memory {
  uint8_t key[EVERY * KEY_BYTES];
  float query[EVERY * QUERY_FLOATS];
  uint8_t *row[EVERY];
} weights_memory;

static __global__ void __launch_bounds__(32 * WEIGHTS_WARPS) weights_kernel(const __grid_constant__ rule_args k) {
  launch_dependents_and_wait();
  extern __shared__ __align__(16) uint8_t shared[];
  weights_memory &m = *(weights_memory *)(void *)shared;
  float *total = (float *)(void *)(shared + sizeof m);
  const weft_delta_view &view = k.op.view;
  const delta_piece piece = k.tables.piece[k.tables.long_piece[blockIdx.x]];
  uint32_t key_head = blockIdx.y, warp = threadIdx.x / 32, n_tiles = (piece.end + ROWS - 1) / ROWS;
  uint32_t n_heads = view.n_v_heads / view.n_k_heads;
  if (threadIdx.x < piece.end)
    m.row[threadIdx.x] = weft_delta_row(&view, k.tables.segment[piece.segment].table, piece.border + threadIdx.x);
  __syncthreads();
  copy_keys<32 * WEIGHTS_WARPS>(view, m.row, key_head, piece.end, m.key);
  for (uint32_t i = threadIdx.x; i < n_heads * piece.end; i += 32 * WEIGHTS_WARPS)
    total[i / piece.end * EVERY + i % piece.end] =
        delta_decays(view, m.row[i % piece.end])[key_head + i / piece.end * view.n_k_heads];
  load_queries<32 * WEIGHTS_WARPS>(k, piece, key_head, 0, n_tiles * ROWS, m.query);
  cp_async_wait<0>();
  __syncthreads();
  for (uint32_t h = threadIdx.x; h < n_heads; h += 32 * WEIGHTS_WARPS) fill_total(total + h * EVERY, piece.end);
  __syncthreads();
  for (uint32_t tile = 0, item = 0; tile < n_tiles; tile++) {
    uint64_t at = piece.tile + tile;
    tile_weights *weights = k.weights + at * view.n_v_heads + key_head;
    tile_queries *queries = k.queries + at * view.n_k_heads + key_head;
    for (uint32_t of = 0; of <= tile; of++, item++) {
      if (item % WEIGHTS_WARPS != warp) continue;
      tile_dots d = multiply_keys(m.key + tile * ROWS * KEY_BYTES, m.key + of * ROWS * KEY_BYTES,
                                  m.query + tile * ROWS * QUERY_FLOATS, of == 0 ? queries : NULL);
      for (uint32_t h = 0; h < n_heads; h++) {
        tile_weights *to = weights + h * view.n_k_heads;
        keep_weights(d, total + h * EVERY, tile, of, to);
        if (of == 0) keep_rows(k.op, piece, key_head + h * view.n_k_heads, total + h * EVERY, tile, to);
      }
    }
  }
}

/* ---- short segments -------------------------------------------------------------------------------------- */

typedef struct short_memory {
  uint8_t key[EVERY * KEY_BYTES];
  tile_weights weights;
  tile_queries queries;
  float query[ROWS * QUERY_FLOATS], out[ROWS * QUERY_FLOATS];
  float total[EVERY];
  uint8_t *row[EVERY];
} short_memory;

/* Where a block of a short segment is. */
typedef struct short_block {
  delta_segment segment;
  delta_piece piece;
  uint32_t head, key_head, column; /* column: the lane's first */
  uint64_t u_at;
} short_block;

/* The row of a piece that this thread looks up, or NULL. */
static __device__ __forceinline__ uint8_t *look_up_row(const rule_args &k, const short_block &b) {
  if (threadIdx.x >= b.piece.end) return NULL;
  return weft_delta_row(&k.op.view, b.segment.table, b.piece.border + threadIdx.x);
}

/* The rows of a piece, G of each, and their keys, which are on their way. row: of look_up_row. */
static __device__ __forceinline__ void open_piece(const rule_args &k, const short_block &b, uint8_t *row,
                                                  short_memory &m) {
  __syncthreads();
  if (row != NULL) {
    m.row[threadIdx.x] = row;
    m.total[threadIdx.x] = delta_decays(k.op.view, row)[b.head];
  }
  __syncthreads();
  copy_keys<SHORT_THREADS>(k.op.view, m.row, b.key_head, b.piece.end, m.key);
  if (threadIdx.x == SHORT_THREADS - 1) fill_total(m.total, b.piece.end);
}

/* The values of a tile's rows that the call has, as tile_sums. */
static __device__ __forceinline__ void load_values(const rule_args &k, const short_block &b, uint32_t tile,
                                                   float (&value)[2][4]) {
#pragma unroll
  for (uint32_t i = 0; i < 8; i++) {
    uint32_t t = tile * ROWS + i / 4 * 8 + own_lane() % 4 * 2 + i % 2;
    const float *from = k.op.v + (uint64_t)(b.piece.first_row + (t - b.piece.first)) * k.op.v_stride + b.head * DIM;
    value[i / 4][i % 4] = t >= b.piece.first && t < b.piece.end ? from[b.column + i % 4 / 2] : 0.0f;
  }
}

/* The norm of a tile's results, or they as they are. */
static __device__ __forceinline__ void finish_tile(const rule_args &k, const short_block &b, uint32_t tile,
                                                   const short_memory &m) {
  for (uint32_t r = threadIdx.x / 32; r < ROWS; r += SHORT_WARPS) {
    uint32_t t = tile * ROWS + r;
    uint64_t row = b.piece.first_row + (t - b.piece.first);
    if (t < b.piece.first || t >= b.piece.end) continue;
    if (k.norms)
      delta_norm_row<DIM / 32>(k.op, m.out + r * QUERY_FLOATS, row, b.head);
    else
      for (uint32_t c = own_lane(); c < DIM; c += 32)
        k.op.out[row * k.op.out_stride + b.head * DIM + c] = m.out[r * QUERY_FLOATS + c];
  }
}

static __device__ __forceinline__ void make_tile(const rule_args &k, const short_block &b, uint32_t tile,
                                                 short_memory &m) {
  uint32_t warp = threadIdx.x / 32;
  if (warp <= tile) {
    tile_dots d = multiply_keys(m.key + tile * ROWS * KEY_BYTES, m.key + warp * ROWS * KEY_BYTES, m.query,
                                warp == 0 ? &m.queries : NULL);
    keep_weights(d, m.total, tile, warp, &m.weights);
  } else if (warp == SHORT_WARPS - 1) {
    keep_rows(k.op, b.piece, b.head, m.total, tile, &m.weights);
  }
}

/* A piece's tiles from the first that is needed on: with rows of the call or, where a border is crossed, all. */
template <bool CROSSES>
static __device__ __forceinline__ void run_piece(const rule_args &k, const short_block &b, uint8_t *row,
                                                 short_memory &m, rule_columns &columns) {
  bool crosses = CROSSES && b.piece.crosses;
  uint32_t begin = crosses ? 0 : b.piece.first / ROWS;
  open_piece(k, b, row, m);
#pragma unroll
  for (uint32_t i = 0; i + 1 < TILES; i++)
    if (i < begin) load_u(m.row + i * ROWS, b.u_at, i, b.piece.first, columns.u[i]);
  for (uint32_t tile = begin; tile * ROWS < b.piece.end; tile++) {
    bool is_old = (tile + 1) * ROWS <= b.piece.first;
    const tile_inputs in = {m.key + tile * ROWS * KEY_BYTES, &m.weights, &m.queries, tile, b.piece.first, b.piece.end};
    float value[2][4], out[2][4];
    uint32_t u[4];
    load_u(m.row + tile * ROWS, b.u_at, tile, b.piece.first, u);
    load_values(k, b, tile, value);
    load_queries<SHORT_THREADS>(k, b.piece, b.key_head, tile * ROWS, ROWS, m.query);
    cp_async_wait<0>();
    __syncthreads();
    make_tile(k, b, tile, m);
    __syncthreads();
    if (CROSSES && tile == begin) begin_piece(crosses, m.weights.last[0], columns);
    if (!is_old) {
      compute_tile<CROSSES>(in, value, columns, u, out);
      store_tile(in, m.row + tile * ROWS, b.u_at, u, out,
                 [&](uint32_t r, float2 x) { *(float2 *)(void *)&m.out[r * QUERY_FLOATS + b.column] = x; });
    }
    keep_u(tile, u, columns);
    if (crosses) add_to_state(in, u, columns);
    __syncthreads();
    if (!is_old) finish_tile(k, b, tile, m);
  }
}

/* CROSSES: some piece may cross a border. */
template <bool CROSSES>
static __global__ void __launch_bounds__(SHORT_THREADS, CROSSES ? 1 : 2)
    short_kernel(const __grid_constant__ rule_args k) {
  extern __shared__ __align__(16) uint8_t shared[];
  short_memory &m = *(short_memory *)(void *)shared;
  const weft_delta_view &view = k.op.view;
  short_block b;
  rule_columns columns;
  launch_dependent_grids();
  b.segment = k.tables.segment[k.tables.order[blockIdx.x / view.n_v_heads]];
  b.piece = k.tables.piece[b.segment.first_piece];
  b.head = blockIdx.x % view.n_v_heads;
  b.key_head = b.head % view.n_k_heads;
  b.column = threadIdx.x / 32 * COLUMNS + own_lane() / 4 * 2;
  b.u_at = u_bytes_at(view, b.head) + 2 * b.column;
  const float *unit = b.segment.state == NULL ? NULL : weft_delta_unit(&view.state, b.segment.state, b.head);
  uint8_t *row = look_up_row(k, b);
  wait_for_prior_grids(); /* what was read so far was uploaded */
  read_state(unit, b.column, columns);
  for (uint32_t p = 0; p < b.segment.n_pieces; p++) {
    if (p > 0) b.piece = k.tables.piece[b.segment.first_piece + p], row = look_up_row(k, b);
    run_piece<CROSSES>(k, b, row, m, columns);
    if (!CROSSES || b.piece.pages == NULL) continue;
    write_state(view, b.piece.pages, b.head, b.column, columns);
    write_tail(view, b.piece.pages, b.segment.table, b.piece.border + EVERY, b.head * SHORT_THREADS + threadIdx.x,
               view.n_v_heads * SHORT_THREADS);
  }
}

/* ---- long segments --------------------------------------------------------------------------------------- */

template <int WARPS>
struct long_stage {
  uint8_t key[ROWS * KEY_BYTES];
  tile_weights weights;
  tile_queries queries;
  float value[ROWS][WARPS * COLUMNS + 8];
  uint8_t *row[ROWS];
  delta_piece piece;
  uint32_t tile, is_last; /* of the piece; of the segment */
};

/* Where a block of a long segment is. */
typedef struct long_block {
  delta_segment segment;
  uint32_t head, slice;
} long_block;

/* Starts the copy of 4 bytes into shared memory or, where ok is false, of zeros. */
static __device__ __forceinline__ void copy_number(uint32_t to, const float *from, bool ok) {
  int n = ok ? 4 : 0;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(n) : "memory");
}

/* Copies n_bytes, a multiple of 16, by a warp. */
static __device__ __forceinline__ void copy_by_warp(void *to, const void *from, uint32_t n_bytes) {
  for (uint32_t i = own_lane() * 16; i < n_bytes; i += 512)
    cp_async_16(shared_address(to) + i, (const uint8_t *)from + i);
}

/* Starts the copies of a tile, by a warp. */
template <int WARPS>
static __device__ __forceinline__ void copy_tile(const rule_args &k, const long_block &b, const delta_piece &piece,
                                                 uint32_t tile, bool is_last, long_stage<WARPS> &stage) {
  const weft_delta_view &view = k.op.view;
  uint32_t lane = own_lane(), key_head = b.head % view.n_k_heads, t = tile * ROWS + lane % ROWS;
  uint64_t key_at = 2ull * (weft_delta_channels(&view) + key_head * DIM), at = piece.tile + tile;
  uint8_t *row = t < piece.end ? weft_delta_row(&view, b.segment.table, piece.border + t) : NULL;
  if (lane < ROWS) stage.row[lane] = row;
  if (lane == 0) stage.piece = piece, stage.tile = tile, stage.is_last = is_last;
  const tile_weights *weights = &k.weights[at * view.n_v_heads + b.head];
  copy_by_warp(&stage.weights, weights, offsetof(tile_weights, operand) + (tile + 1) * sizeof weights->operand[0]);
  copy_by_warp(&stage.queries, &k.queries[at * view.n_k_heads + key_head], sizeof(tile_queries));
#pragma unroll 4
  for (uint32_t r = 0; r < ROWS; r++) {
    uint32_t own = tile * ROWS + r;
    bool is_new = own >= piece.first && own < piece.end;
    const float *v = k.op.v + b.head * DIM + b.slice * WARPS * COLUMNS;
    if (is_new) v += (uint64_t)(piece.first_row + (own - piece.first)) * k.op.v_stride;
    for (uint32_t c = lane; c < WARPS * COLUMNS; c += 32)
      copy_number(shared_address(&stage.value[r][c]), v + c, is_new);
  }
#pragma unroll
  for (uint32_t r = lane / 16; r < ROWS; r += 2) {
    const uint8_t *from = (const uint8_t *)__shfl_sync(0xFFFFFFFFu, (unsigned long long)(uintptr_t)row, (int)r);
    cp_async_16_if(shared_address(stage.key + r * KEY_BYTES + lane % 16 * 16),
                   from == NULL ? (const uint8_t *)view.base : from + key_at + lane % 16 * 16, from != NULL);
  }
}

/* The warp that copies. All warps meet once before each tile: then it has come, and the one before it is done with. */
template <int WARPS>
static __device__ __forceinline__ void copy_tiles(const rule_args &k, const long_block &b, long_stage<WARPS> *stage) {
  uint32_t next = b.segment.first_piece, end = next + b.segment.n_pieces, tile = 0, n_left = 0, at = 0;
  delta_piece piece = k.tables.piece[next++];
  for (bool is_last = false;;) {
    if (!is_last) {
      bool ends = (tile + 1) * ROWS >= piece.end;
      is_last = ends && next == end;
      copy_tile<WARPS>(k, b, piece, tile, is_last, stage[at]);
      tile = ends ? 0 : tile + 1;
      if (ends && !is_last) piece = k.tables.piece[next++];
      n_left++;
    }
    at = at + 1 == STAGES ? 0 : at + 1;
    cp_async_commit();
    if (!is_last && n_left < STAGES - 1) continue;
    cp_async_wait<STAGES - 2>();
    __syncthreads();
    if (--n_left == 0) return;
  }
}

static __device__ __forceinline__ void store_result(float *to, float2 x) {
  if ((uintptr_t)to % 8 == 0)
    *(float2 *)(void *)to = x;
  else
    to[0] = x.x, to[1] = x.y;
}

template <int WARPS>
static __device__ __forceinline__ void run_tile(const rule_args &k, const long_block &b, const long_stage<WARPS> &stage,
                                                uint32_t column, rule_columns &columns) {
  const delta_piece &piece = stage.piece;
  const uint32_t tile = stage.tile;
  const tile_inputs in = {stage.key, &stage.weights, &stage.queries, tile, piece.first, piece.end};
  uint64_t u_at = u_bytes_at(k.op.view, b.head) + 2 * (b.slice * WARPS * COLUMNS + column);
  uint32_t u[4];
  if (tile == 0) begin_piece(piece.crosses, stage.weights.last[0], columns);
  load_u(stage.row, u_at, tile, piece.first, u);
  if ((tile + 1) * ROWS > piece.first) {
    float value[2][4], out[2][4];
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
      uint32_t r = i / 2 * 8 + own_lane() % 4 * 2 + i % 2;
      float2 x = *(const float2 *)(const void *)&stage.value[r][column];
      value[i / 2][i % 2] = x.x, value[i / 2][2 + i % 2] = x.y;
    }
    compute_tile<true>(in, value, columns, u, out);
    float *to = k.op.out + b.head * DIM + b.slice * WARPS * COLUMNS + column;
    store_tile(in, stage.row, u_at, u, out, [&](uint32_t r, float2 x) {
      uint64_t row = piece.first_row + (tile * ROWS + r - piece.first);
      store_result(to + row * k.op.out_stride, x);
    });
  }
  keep_u(tile, u, columns);
  if (piece.crosses) add_to_state(in, u, columns);
}

template <int WARPS>
static __global__ void __launch_bounds__(32 * (WARPS + 1)) long_kernel(const __grid_constant__ rule_args k) {
  constexpr uint32_t n_slices = DIM / (WARPS * COLUMNS);
  launch_dependents_and_wait();
  extern __shared__ __align__(16) uint8_t shared[];
  long_stage<WARPS> *stage = (long_stage<WARPS> *)(void *)shared;
  const weft_delta_view &view = k.op.view;
  uint32_t warp = threadIdx.x / 32, index = blockIdx.x / n_slices, column = warp * COLUMNS + own_lane() / 4 * 2;
  long_block b = {k.tables.segment[k.tables.order[k.tables.n_short + index / view.n_v_heads]], index % view.n_v_heads,
                  blockIdx.x % n_slices};
  if (warp == WARPS) {
    copy_tiles<WARPS>(k, b, stage);
    return;
  }
  rule_columns columns;
  const float *unit = b.segment.state == NULL ? NULL : weft_delta_unit(&view.state, b.segment.state, b.head);
  read_state(unit, b.slice * WARPS * COLUMNS + column, columns);
  for (uint32_t at = 0;; at = at + 1 == STAGES ? 0 : at + 1) {
    __syncthreads();
    run_tile<WARPS>(k, b, stage[at], column, columns);
    const delta_piece &piece = stage[at].piece;
    if ((stage[at].tile + 1) * ROWS >= piece.end && piece.pages != NULL) {
      write_state(view, piece.pages, b.head, b.slice * WARPS * COLUMNS + column, columns);
      write_tail(view, piece.pages, b.segment.table, piece.border + EVERY,
                 (b.head * n_slices + b.slice) * WARPS * 32 + threadIdx.x, view.n_v_heads * n_slices * WARPS * 32);
    }
    if (stage[at].is_last) return;
  }
}

/* ---- host ------------------------------------------------------------------------------------------------ */

bool delta_tiles_takes(const weft_delta_view *view) {
  uint64_t places = (uint64_t)(uintptr_t)view->base | view->offset | view->page_bytes | weft_delta_row_bytes(view),
           state = (uint64_t)(uintptr_t)view->state.base | view->state.offset | view->state.page_bytes;
  return view->type == WEFT_TYPE_BF16 && view->dim == DIM && view->every == EVERY && places % 16 == 0 &&
         state % 8 == 0 && view->n_v_heads / view->n_k_heads <= VALUES_MAX;
}

/* Of n rows at most: a long segment has a tile for each sixteen rows, and up to 78 positions more that are in one. */
static uint64_t most_tiles(uint32_t n_rows) {
  return n_rows < DELTA_LONG_ROWS ? 0 : (uint64_t)n_rows * (DELTA_LONG_ROWS + 78) / (16 * DELTA_LONG_ROWS) + 1;
}

static uint64_t cut_scratch(rule_args *k, void *base, uint64_t n_tiles) {
  cuda_cutter cutter = {(uint8_t *)base, 0};
  k->weights = (tile_weights *)cuda_cut(&cutter, n_tiles * k->op.view.n_v_heads * sizeof *k->weights);
  k->queries = (tile_queries *)cuda_cut(&cutter, n_tiles * k->op.view.n_k_heads * sizeof *k->queries);
  return cutter.at;
}

uint64_t delta_tiles_scratch(const weft_delta_rule_args *args) {
  rule_args k = {};
  k.op.view = args->view;
  return cut_scratch(&k, NULL, most_tiles(args->n_rows));
}

template <int WARPS>
static void start_long(cuda_device *d, const rule_args &k) {
  uint32_t n_blocks = k.tables.n_long * k.op.view.n_v_heads * (DIM / (WARPS * COLUMNS));
  cuda_start(d, long_kernel<WARPS>, n_blocks, 32 * (WARPS + 1), STAGES * sizeof(long_stage<WARPS>), k);
}

static uint64_t weights_bytes(const weft_delta_view &view) {
  return sizeof(weights_memory) + 4ull * EVERY * (view.n_v_heads / view.n_k_heads);
}

weft_status delta_tiles(cuda_device *d, const weft_delta_rule_args *args, const delta_tables *tables) {
  rule_args k = {*args, *tables, NULL, NULL, tables->n_long == 0};
  const weft_delta_view &view = args->view;
  cut_scratch(&k, args->scratch, most_tiles(args->n_rows));
  if (tables->n_short > 0)
    cuda_start(d, tables->short_crosses ? short_kernel<true> : short_kernel<false>, tables->n_short * view.n_v_heads,
               SHORT_THREADS, sizeof(short_memory), k);
  if (tables->n_long > 0) {
    bool is_narrow = tables->n_long * view.n_v_heads * 2 <= d->n_multiprocessors;
    cuda_start(d, weights_kernel, dim3(tables->n_long_pieces, view.n_k_heads), 32 * WEIGHTS_WARPS, weights_bytes(view),
               k);
    is_narrow ? start_long<2>(d, k) : start_long<4>(d, k);
    delta_norm(d, args);
  }
  return cuda_launched(d, "delta_rule");
}

cudaError_t delta_tiles_setup(void) {
  const cudaFuncAttribute most = cudaFuncAttributeMaxDynamicSharedMemorySize;
  cudaError_t error = cudaFuncSetAttribute(short_kernel<true>, most, sizeof(short_memory));
  if (error == cudaSuccess) error = cudaFuncSetAttribute(short_kernel<false>, most, sizeof(short_memory));
  if (error == cudaSuccess)
    error = cudaFuncSetAttribute(weights_kernel, most, sizeof(weights_memory) + 4 * EVERY * VALUES_MAX);
  if (error == cudaSuccess) error = cudaFuncSetAttribute(long_kernel<2>, most, STAGES * sizeof(long_stage<2>));
  if (error == cudaSuccess) error = cudaFuncSetAttribute(long_kernel<4>, most, STAGES * sizeof(long_stage<4>));
  return error;
}
