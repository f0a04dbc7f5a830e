/* SPDX-License-Identifier: MIT */
/* delta_rule by tensor cores, for heads of 128 whose rows are bf16 with borders every 64 positions (delta_tiles_takes).
 * A tile is sixteen positions, counted from the border; a warp has sixteen columns of a value head, which do not depend
 * on the others, with their state in registers: as sums of mma.sync, whose layout is that of its operand a.
 *
 *   one      segments of one row (delta_one.cu)
 *   short    others of fewer than DELTA_LONG_ROWS rows: a block has a value head of one, eight warps of columns.
 *            For each tile four warps make the weights of the tile, all multiply, and the norm follows at once
 *   weights  longer segments, first: the weights of all tiles, which need no state; a block has a piece and a key head
 *   long     then a block has 32 or 64 columns of a value head; two warps more copy what the next tiles need into a
 *            ring of stages. delta_norm follows
 *
 * Law (delta.cuh): every number that is not stored as bf16 comes into a product as the sum of two of bf16, high and
 * low, what is left of it rounded; low times low is left out. What the state gives a key or a query is summed by high
 * and low, each sixteen keys at a time, ascending; then both are added and multiplied by the decay. To that of a key
 * the tiles of earlier u are added, ascending, by high weights and then low ones, then the first eight of its own tile
 * likewise; u is beta times what that leaves of the value, less the u of its own eight times weights times beta, one
 * after another. To that of a query is added the sum, from 0, of all tiles of u, its own among them. A border's state
 * is the decayed one, to which tiles are added ascending, high before low. So the bits of a row are the same in all
 * these kernels and in whatever call it comes. */
#include <stddef.h>

#include "kernels/cuda/delta/columns.cuh"

typedef struct rule_args {
  weft_delta_rule_args op; /* segment and write: not read */
  delta_tables tables;
  tile_weights *weights; /* [n_tiles][n_v_heads] */
  tile_queries *queries; /* [n_tiles][n_k_heads] */
  bool norms;            /* the norm is made at once: there are no long segments */
  bool wide_values;      /* v may be read four numbers at a time */
} rule_args;

/* ---- weights of long segments ---------------------------------------------------------------------------- */

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
  float last = total[n - 1];
  for (uint32_t i = n; i < EVERY; i++) total[i] = last;
}

/* g and beta of position i of a piece. */
static __device__ __forceinline__ void load_numbers(const rule_args &k, const delta_piece &piece, uint8_t *row,
                                                    uint32_t head, uint32_t i, tile_numbers &to) {
  bool is_new = i >= piece.first && i < piece.end;
  uint64_t r = piece.first_row + (i - piece.first);
  if (i < piece.end) to.total[i] = delta_decays(k.op.view, row)[head];
  to.beta[i] = is_new ? k.op.beta[r * k.op.beta_stride + head] : 0.0f;
}

/* Behind it, tile_numbers of the value heads of a key head. */
typedef struct weights_memory {
  uint8_t key[EVERY * KEY_BYTES];
  float query[EVERY * QUERY_FLOATS];
  uint8_t *row[EVERY];
} weights_memory;

static __global__ void __launch_bounds__(32 * WEIGHTS_WARPS) weights_kernel(const __grid_constant__ rule_args k) {
  launch_dependents_and_wait();
  extern __shared__ __align__(16) uint8_t shared[];
  weights_memory &m = *(weights_memory *)(void *)shared;
  tile_numbers *numbers = (tile_numbers *)(void *)(shared + sizeof m);
  const weft_delta_view &view = k.op.view;
  const delta_piece piece = k.tables.piece[k.tables.long_piece[blockIdx.x]];
  uint32_t key_head = blockIdx.y, warp = threadIdx.x / 32, n_tiles = (piece.end + ROWS - 1) / ROWS;
  uint32_t n_heads = view.n_v_heads / view.n_k_heads;
  if (threadIdx.x < piece.end)
    m.row[threadIdx.x] = weft_delta_row(&view, k.tables.segment[piece.segment].table, piece.border + threadIdx.x);
  __syncthreads();
  copy_keys<32 * WEIGHTS_WARPS>(view, m.row, key_head, piece.end, m.key);
  for (uint32_t i = threadIdx.x; i < n_heads * EVERY; i += 32 * WEIGHTS_WARPS)
    load_numbers(k, piece, m.row[i % EVERY], key_head + i / EVERY * view.n_k_heads, i % EVERY, numbers[i / EVERY]);
  load_queries<32 * WEIGHTS_WARPS>(k, piece, key_head, 0, n_tiles * ROWS, m.query);
  cp_async_wait<0>();
  __syncthreads();
  for (uint32_t h = threadIdx.x; h < n_heads; h += 32 * WEIGHTS_WARPS) fill_total(numbers[h].total, piece.end);
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
        keep_weights(d, numbers[h], tile, of, weights + h * view.n_k_heads);
        if (of == 0) keep_rows(piece.crosses, numbers[h], tile, weights + h * view.n_k_heads);
      }
    }
  }
}

/* ---- short segments -------------------------------------------------------------------------------------- */

typedef struct short_memory {
  uint8_t key[EVERY * KEY_BYTES];
  tile_weights weights;
  tile_queries queries;
  float query[ROWS * QUERY_FLOATS]; /* of a tile's rows; then their results */
  tile_numbers numbers;
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

/* The rows of a piece, their numbers, and their keys, which are on their way. row: of look_up_row. is_first: the
 * kernels before this one are waited for; where rows lie was uploaded. */
static __device__ __forceinline__ void open_piece(const rule_args &k, const short_block &b, uint8_t *row, bool is_first,
                                                  short_memory &m) {
  __syncthreads();
  if (row != NULL) m.row[threadIdx.x] = row;
  __syncthreads();
  if (is_first) wait_for_prior_grids();
  copy_keys<SHORT_THREADS>(k.op.view, m.row, b.key_head, b.piece.end, m.key);
  if (threadIdx.x < EVERY) load_numbers(k, b.piece, row, b.head, threadIdx.x, m.numbers);
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
      delta_norm_row<DIM / 32>(k.op, m.query + r * QUERY_FLOATS, row, b.head);
    else
      for (uint32_t c = own_lane(); c < DIM; c += 32)
        k.op.out[row * k.op.out_stride + b.head * DIM + c] = m.query[r * QUERY_FLOATS + c];
  }
}

/* Asks for what finish_tile will read. */
static __device__ __forceinline__ void ask_for_gates(const rule_args &k, const short_block &b, uint32_t tile) {
  for (uint32_t r = threadIdx.x / 32; r < ROWS; r += SHORT_WARPS) {
    uint32_t t = tile * ROWS + r;
    if (t < b.piece.first || t >= b.piece.end || own_lane() >= DIM / 32) continue;
    const float *z = k.op.z + (uint64_t)(b.piece.first_row + (t - b.piece.first)) * k.op.z_stride + b.head * DIM;
    asm volatile("prefetch.global.L1 [%0];" ::"l"(z + 32 * own_lane()));
  }
}

/* The weights of a tile; in a piece's first one, its G too. */
static __device__ __forceinline__ void make_tile(const short_block &b, uint32_t tile, bool is_first, short_memory &m) {
  uint32_t warp = threadIdx.x / 32;
  tile_dots d;
  if (warp <= tile)
    d = multiply_keys(m.key + tile * ROWS * KEY_BYTES, m.key + warp * ROWS * KEY_BYTES, m.query,
                      warp == 0 ? &m.queries : NULL);
  else if (is_first && threadIdx.x == SHORT_THREADS - 1)
    fill_total(m.numbers.total, b.piece.end);
  __syncthreads();
  if (warp <= tile)
    keep_weights(d, m.numbers, tile, warp, &m.weights);
  else if (warp == SHORT_WARPS - 1)
    keep_rows(b.piece.crosses, m.numbers, tile, &m.weights);
  __syncthreads();
}

/* Where a value head's state lies that a segment begins with, from a column on; NULL where it is zeros. */
static __device__ __forceinline__ const float *state_of(const rule_args &k, const delta_segment &s, uint32_t head,
                                                        uint32_t column) {
  return s.state == NULL ? NULL : weft_delta_unit(&k.op.view.state, s.state, head) + column;
}

/* Asks for the block's state. */
static __device__ __forceinline__ void ask_for_state(const float *from, uint32_t column) {
  for (uint32_t i = threadIdx.x * 32; from != NULL && i < DIM * DIM; i += SHORT_THREADS * 32)
    asm volatile("prefetch.global.L1 [%0];" ::"l"(from - column + i));
}

/* A piece's tiles from the first that is needed on: with rows of the call or, where a border is crossed, all. */
template <bool CROSSES, state_form FORM>
static __device__ __forceinline__ void run_piece(const rule_args &k, const short_block &b, uint8_t *row, bool is_first,
                                                 short_memory &m, rule_columns &columns) {
  bool crosses = CROSSES && b.piece.crosses;
  uint32_t begin = crosses ? 0 : b.piece.first / ROWS;
  open_piece(k, b, row, is_first, m);
  if (is_first && FORM == STATE_AWAY) ask_for_state(columns.from, b.column);
  if (is_first && FORM != STATE_AWAY) read_state(columns);
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
    ask_for_gates(k, b, tile);
    if (tile > begin) __syncthreads(); /* the results of the tile before have been read */
    load_queries<SHORT_THREADS>(k, b.piece, b.key_head, tile * ROWS, ROWS, m.query);
    cp_async_wait<0>();
    __syncthreads();
    make_tile(b, tile, tile == begin, m);
    if (CROSSES && tile == begin) begin_piece(crosses, m.weights.last[0], columns);
    if (!is_old) {
      compute_tile<FORM>(in, value, columns, u, out);
      store_tile(in, m.row + tile * ROWS, b.u_at, u, out,
                 [&](uint32_t r, float2 x) { *(float2 *)(void *)&m.query[r * QUERY_FLOATS + b.column] = x; });
    }
    keep_u(tile, u, columns);
    if (crosses) add_to_state(in, u, columns);
    __syncthreads();
    if (!is_old) finish_tile(k, b, tile, m);
  }
}

/* CROSSES: some piece may cross a border. */
template <bool CROSSES, state_form FORM>
static __global__ void __launch_bounds__(SHORT_THREADS, FORM == STATE_AWAY ? AWAY_BLOCKS : 1)
    short_kernel(const __grid_constant__ rule_args k) {
  extern __shared__ __align__(16) uint8_t shared[];
  short_memory &m = *(short_memory *)(void *)shared;
  const weft_delta_view &view = k.op.view;
  short_block b;
  rule_columns columns;
  launch_dependent_grids();
  const delta_short &own = k.tables.short_segment[blockIdx.x / view.n_v_heads];
  b.segment = own.segment, b.piece = own.piece;
  b.head = blockIdx.x % view.n_v_heads;
  b.key_head = b.head % view.n_k_heads;
  b.column = threadIdx.x / 32 * COLUMNS + own_lane() / 4 * 2;
  b.u_at = u_bytes_at(view, b.head) + 2 * b.column;
  columns.from = state_of(k, b.segment, b.head, b.column);
  uint8_t *row = look_up_row(k, b);
  for (uint32_t p = 0; p < b.segment.n_pieces; p++) {
    if (p > 0) b.piece = k.tables.piece[b.segment.first_piece + p], row = look_up_row(k, b);
    run_piece<CROSSES, FORM>(k, b, row, p == 0, m, columns);
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

/* The tile that is copied next. row: of lane % ROWS, looked up a tile ahead. */
typedef struct copy_place {
  delta_piece piece;
  uint32_t next, tile; /* next: the piece behind this one */
  uint8_t *row;
} copy_place;

static __device__ __forceinline__ void look_up_tile(const rule_args &k, const long_block &b, copy_place &at) {
  uint32_t t = at.tile * ROWS + own_lane() % ROWS;
  at.row = t < at.piece.end ? weft_delta_row(&k.op.view, b.segment.table, at.piece.border + t) : NULL;
}

/* Starts the copies of a tile's weights and queries, by a warp. */
template <int WARPS>
static __device__ __forceinline__ void copy_weights(const rule_args &k, const long_block &b, const copy_place &place,
                                                    long_stage<WARPS> &stage) {
  const weft_delta_view &view = k.op.view;
  uint64_t at = place.piece.tile + place.tile;
  const tile_weights *weights = &k.weights[at * view.n_v_heads + b.head];
  copy_by_warp(&stage.weights, weights,
               offsetof(tile_weights, operand) + (place.tile + 1) * sizeof weights->operand[0]);
  copy_by_warp(&stage.queries, &k.queries[at * view.n_k_heads + b.head % view.n_k_heads], sizeof(tile_queries));
}

/* And of its keys and values. */
template <int WARPS>
static __device__ __forceinline__ void copy_rows(const rule_args &k, const long_block &b, const copy_place &place,
                                                 bool is_last, long_stage<WARPS> &stage) {
  constexpr uint32_t n_columns = WARPS * COLUMNS;
  const weft_delta_view &view = k.op.view;
  uint32_t lane = own_lane(), width = k.wide_values ? 4 : 1, n_parts = n_columns / width;
  uint64_t key_at = 2ull * (weft_delta_channels(&view) + b.head % view.n_k_heads * DIM);
  if (lane < ROWS) stage.row[lane] = place.row;
  if (lane == 0) stage.piece = place.piece, stage.tile = place.tile, stage.is_last = is_last;
#pragma unroll
  for (uint32_t r = lane / 16; r < ROWS; r += 2) {
    const uint8_t *from = (const uint8_t *)__shfl_sync(0xFFFFFFFFu, (unsigned long long)(uintptr_t)place.row, (int)r);
    cp_async_16_if(shared_address(stage.key + r * KEY_BYTES + lane % 16 * 16),
                   from == NULL ? (const uint8_t *)view.base : from + key_at + lane % 16 * 16, from != NULL);
  }
  const float *v = k.op.v + b.head * DIM + b.slice * n_columns;
#pragma unroll 4
  for (uint32_t i = lane; i < ROWS * n_parts; i += 32) {
    uint32_t r = i / n_parts, c = i % n_parts * width, t = place.tile * ROWS + r;
    bool is_new = t >= place.piece.first && t < place.piece.end;
    const float *from = is_new ? v + (uint64_t)(place.piece.first_row + (t - place.piece.first)) * k.op.v_stride : v;
    if (k.wide_values)
      cp_async_16_if(shared_address(&stage.value[r][c]), from + c, is_new);
    else
      copy_number(shared_address(&stage.value[r][c]), from + c, is_new);
  }
}

/* The two warps that copy. All warps meet once before each tile: then it has come, and the one before it is done
 * with. */
template <int WARPS>
static __device__ __forceinline__ void copy_tiles(const rule_args &k, const long_block &b, bool copies_rows,
                                                  long_stage<WARPS> *stage) {
  uint32_t end = b.segment.first_piece + b.segment.n_pieces, n_left = 0, at = 0;
  copy_place place = {k.tables.piece[b.segment.first_piece], b.segment.first_piece + 1, 0, NULL};
  if (copies_rows) look_up_tile(k, b, place);
  for (bool is_last = false;;) {
    if (!is_last) {
      bool ends = (place.tile + 1) * ROWS >= place.piece.end;
      is_last = ends && place.next == end;
      if (copies_rows)
        copy_rows<WARPS>(k, b, place, is_last, stage[at]);
      else
        copy_weights<WARPS>(k, b, place, stage[at]);
      place.tile = ends ? 0 : place.tile + 1;
      if (ends && !is_last) place.piece = k.tables.piece[place.next++];
      if (copies_rows && !is_last) look_up_tile(k, b, place);
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
    compute_tile<STATE_SPLIT>(in, value, columns, u, out);
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
static __global__ void __launch_bounds__(32 * (WARPS + 2)) long_kernel(const __grid_constant__ rule_args k) {
  constexpr uint32_t n_slices = DIM / (WARPS * COLUMNS);
  launch_dependents_and_wait();
  extern __shared__ __align__(16) uint8_t shared[];
  long_stage<WARPS> *stage = (long_stage<WARPS> *)(void *)shared;
  const weft_delta_view &view = k.op.view;
  uint32_t warp = threadIdx.x / 32, index = blockIdx.x / n_slices, column = warp * COLUMNS + own_lane() / 4 * 2;
  long_block b = {k.tables.segment[k.tables.long_segment[index / view.n_v_heads]], index % view.n_v_heads,
                  blockIdx.x % n_slices};
  if (warp >= WARPS) {
    copy_tiles<WARPS>(k, b, warp == WARPS, stage);
    return;
  }
  rule_columns columns;
  columns.from = state_of(k, b.segment, b.head, b.slice * WARPS * COLUMNS + column);
  read_state(columns);
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
  cuda_start(d, long_kernel<WARPS>, n_blocks, 32 * (WARPS + 2), STAGES * sizeof(long_stage<WARPS>), k);
}

static void start_short(cuda_device *d, rule_args k, const delta_short *list, uint32_t n, bool crosses) {
  uint32_t n_blocks = n * k.op.view.n_v_heads;
  auto kernel = crosses                           ? short_kernel<true, STATE_SPLIT>
                : n_blocks > d->n_multiprocessors ? short_kernel<false, STATE_AWAY>
                                                  : short_kernel<false, STATE_WHOLE>;
  k.tables.short_segment = list;
  cuda_start(d, kernel, n_blocks, SHORT_THREADS, sizeof(short_memory), k);
}

static uint64_t weights_bytes(const weft_delta_view &view) {
  return sizeof(weights_memory) + (view.n_v_heads / view.n_k_heads) * sizeof(tile_numbers);
}

weft_status delta_tiles(cuda_device *d, const weft_delta_rule_args *args, const delta_tables *tables) {
  bool wide_values = args->v_stride % 4 == 0 && ((uintptr_t)args->v & 15u) == 0;
  rule_args k = {*args, *tables, NULL, NULL, tables->n_long == 0, wide_values};
  const weft_delta_view &view = args->view;
  cut_scratch(&k, args->scratch, most_tiles(args->n_rows));
  if (tables->n_short > 0) start_short(d, k, tables->short_segment, tables->n_short, tables->short_crosses);
  if (tables->n_one > 0 && delta_one_takes(&view))
    delta_one(d, args, tables, k.norms);
  else if (tables->n_one > 0)
    start_short(d, k, tables->one, tables->n_one, true);
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
  cudaError_t error = cudaFuncSetAttribute(short_kernel<true, STATE_SPLIT>, most, sizeof(short_memory));
  if (error == cudaSuccess) error = cudaFuncSetAttribute(short_kernel<false, STATE_WHOLE>, most, sizeof(short_memory));
  if (error == cudaSuccess) error = cudaFuncSetAttribute(short_kernel<false, STATE_AWAY>, most, sizeof(short_memory));
  if (error == cudaSuccess)
    error = cudaFuncSetAttribute(weights_kernel, most, sizeof(weights_memory) + VALUES_MAX * sizeof(tile_numbers));
  if (error == cudaSuccess) error = cudaFuncSetAttribute(long_kernel<2>, most, STAGES * sizeof(long_stage<2>));
  if (error == cudaSuccess) error = cudaFuncSetAttribute(long_kernel<4>, most, STAGES * sizeof(long_stage<4>));
  if (error == cudaSuccess) error = delta_one_setup();
  return error;
}
