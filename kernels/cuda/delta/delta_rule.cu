/* SPDX-License-Identifier: MIT */
/* delta_rule, and the form of it that takes all views. What delta_tiles.cu takes is computed there. Three kernels:
 *
 *   dots   the products of keys: k_i . k_t and k_i . q_t of each row t with the keys since its border, once for all
 *          value heads of a key head; pieces and key heads are parallel
 *   rule   a block has 32 columns of a value head of a segment, which do not depend on the others, and goes through the
 *          segment's pieces. A thread has a quarter of the state's keys of one column in registers. For eight rows at a
 *          time: products with the state and with the u before them by all threads, then their own u one after another,
 *          then results. At a border it makes the next state
 *   norm   the norm of a head's result and its gate; a warp has a head of a row
 *
 * Law (delta.cuh): a product of keys is four chains over the dimensions for every 64 of them, added in pairs, and then
 * a tree over these; a product with the state four chains, one for each quarter of the keys, added in pairs. Earlier u
 * are added ascending: first those before the row's eight, from 0; to decay times product with the state that sum is
 * added, and then the row's eight. A border's state is the decayed one, to which the products of keys and u are added
 * ascending. */
#include "kernels/cuda/delta/delta.cuh"

enum {
  DOTS_KEYS = 64, /* of a block, at a time */
  PART = 64,      /* dimensions of a thread */
  ROWS = 8,       /* at a time */
  RULE_THREADS = 128,
  COLUMNS = 32, /* of a value, in a block */
  QUARTERS = RULE_THREADS / COLUMNS,
  NORM_WARPS = 4
};

typedef struct rule_args {
  weft_delta_rule_args op; /* segment and write: not read */
  delta_tables tables;
  float *dots; /* [n_rows][n_k_heads][2][every]: of k_t, of q_t */
  uint32_t n_slices;
} rule_args;

static __host__ __device__ __forceinline__ uint64_t dots_of_row(const weft_delta_view &view) {
  return 2ull * view.n_k_heads * view.every;
}

static __device__ __forceinline__ const float *dots_at(const rule_args &k, uint64_t row, uint32_t key_head) {
  return k.dots + row * dots_of_row(k.op.view) + (uint64_t)key_head * 2 * k.op.view.every;
}

/* ---- dots ------------------------------------------------------------------------------------------------ */

template <int PARTS>
struct dots_memory {
  float key[DOTS_KEYS][PARTS * PART + 4]; /* + 4: threads read rows side by side */
  float row[2][ROWS][PARTS * PART];       /* k_t, q_t */
  const uint8_t *at[DOTS_KEYS];           /* stored rows of the keys */
};

/* Rows [first, first + n) of the piece. */
template <int PARTS>
static __device__ __forceinline__ void load_rows(const rule_args &k, const delta_piece &piece, const delta_segment &s,
                                                 uint32_t key_head, uint32_t first, uint32_t n, dots_memory<PARTS> &m) {
  const weft_delta_view &view = k.op.view;
  uint64_t keys_at = weft_delta_channels(&view) + (uint64_t)key_head * view.dim;
  const float *q = k.op.q + (piece.first_row + (first - piece.first)) * k.op.q_stride + key_head * view.dim;
  delta_copy<8, PARTS * DOTS_KEYS>(
      n * PARTS * PART,
      [&](uint32_t i) {
        uint32_t r = i / (PARTS * PART), c = i % (PARTS * PART);
        if (c >= view.dim) return make_float2(0.0f, 0.0f);
        const uint8_t *stored = weft_delta_row(&view, s.table, piece.border + first + r);
        return make_float2(delta_load(view.type, stored, keys_at + c), q[r * k.op.q_stride + c]);
      },
      [&](uint32_t i, float2 x) {
        m.row[0][i / (PARTS * PART)][i % (PARTS * PART)] = x.x;
        m.row[1][i / (PARTS * PART)][i % (PARTS * PART)] = x.y;
      });
}

/* A product of one key's part with that of a row. */
static __device__ __forceinline__ float multiply_part(const float (&key)[PART], const float *row) {
  float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
  for (int i = 0; i < PART; i += 4) {
    float4 x = *(const float4 *)(const void *)(row + i);
    sum[0] = __fmaf_rn(key[i], x.x, sum[0]), sum[1] = __fmaf_rn(key[i + 1], x.y, sum[1]);
    sum[2] = __fmaf_rn(key[i + 2], x.z, sum[2]), sum[3] = __fmaf_rn(key[i + 3], x.w, sum[3]);
  }
  return __fadd_rn(__fadd_rn(sum[0], sum[1]), __fadd_rn(sum[2], sum[3]));
}

/* Neighbouring threads have the parts of one key. */
template <int PARTS>
static __device__ __forceinline__ float add_parts(float x) {
#pragma unroll
  for (int step = 1; step < PARTS; step *= 2) x = __fadd_rn(x, __shfl_xor_sync(0xFFFFFFFFu, x, step));
  return x;
}

template <int PARTS>
static __global__ void __launch_bounds__(PARTS *DOTS_KEYS) dots_kernel(const __grid_constant__ rule_args k) {
  launch_dependents_and_wait();
  extern __shared__ __align__(16) uint8_t shared[];
  dots_memory<PARTS> &m = *(dots_memory<PARTS> *)(void *)shared;
  const weft_delta_view &view = k.op.view;
  delta_piece piece = k.tables.piece[blockIdx.x];
  delta_segment s = k.tables.segment[piece.segment];
  uint32_t key_head = blockIdx.y, own = threadIdx.x / PARTS, part = threadIdx.x % PARTS;
  uint64_t keys_at = weft_delta_channels(&view) + (uint64_t)key_head * view.dim;
  for (uint32_t base = 0; base < piece.end; base += DOTS_KEYS) {
    uint32_t n_keys = min(piece.end - base, (uint32_t)DOTS_KEYS);
    __syncthreads();
    if (threadIdx.x < n_keys) m.at[threadIdx.x] = weft_delta_row(&view, s.table, piece.border + base + threadIdx.x);
    __syncthreads();
    delta_copy<16, PARTS * DOTS_KEYS>(
        n_keys * PARTS * PART / 2,
        [&](uint32_t i) {
          uint32_t c = i % (PARTS * PART / 2) * 2;
          return c < view.dim ? delta_load_two(view.type, m.at[i / (PARTS * PART / 2)], keys_at + c)
                              : make_float2(0.0f, 0.0f);
        },
        [&](uint32_t i, float2 x) {
          *(float2 *)(void *)&m.key[i / (PARTS * PART / 2)][i % (PARTS * PART / 2) * 2] = x;
        });
    __syncthreads();
    float key[PART];
#pragma unroll
    for (int i = 0; i < PART; i++) key[i] = own < n_keys ? m.key[own][part * PART + i] : 0.0f;
    for (uint32_t first = max(piece.first, base); first < piece.end; first += ROWS) {
      uint32_t n = min(piece.end - first, (uint32_t)ROWS), i = base + own;
      __syncthreads();
      load_rows<PARTS>(k, piece, s, key_head, first, n, m);
      __syncthreads();
      for (uint32_t r = 0; r < n; r++) {
        float of_k = add_parts<PARTS>(multiply_part(key, &m.row[0][r][part * PART])),
              of_q = add_parts<PARTS>(multiply_part(key, &m.row[1][r][part * PART]));
        float *to = (float *)dots_at(k, piece.first_row + (first + r - piece.first), key_head);
        if (part == 0 && i < first + r) to[i] = of_k;
        if (part == 0 && i <= first + r) to[view.every + i] = of_q;
      }
    }
  }
}

/* ---- rule ------------------------------------------------------------------------------------------------ */

/* Shared memory of a block. KEYS: of a thread, so the state has at most QUARTERS * KEYS. */
template <int KEYS>
struct rule_memory {
  float key[ROWS][QUARTERS * KEYS], query[ROWS][QUARTERS * KEYS];
  float state[ROWS][2][QUARTERS][COLUMNS]; /* a quarter's product with k_t, with q_t */
  float before[ROWS][2][COLUMNS];          /* of the u before the eight rows */
  float value[ROWS][COLUMNS], beta[ROWS];
};

/* Behind it, with `every` numbers or rows each. */
typedef struct rule_arrays {
  float *total;       /* G */
  float *u;           /* [every][COLUMNS] */
  float *of_k, *of_q; /* [ROWS][every]: decay times product of keys */
  uint8_t **row;      /* as stored */
} rule_arrays;

typedef struct rule_block {
  delta_segment segment;
  uint32_t head, key_head, column; /* column: of the thread, of a value */
  uint32_t border, first, end;     /* of the piece */
  uint32_t first_row;              /* of its first row */
  bool has_column;
  rule_arrays a;
} rule_block;

template <int KEYS>
static __host__ __device__ constexpr uint32_t rule_bytes(uint32_t every) {
  return sizeof(rule_memory<KEYS>) + every * (8 + 4 * (1 + COLUMNS + 2 * ROWS));
}

/* The rows of the piece, and G of each; u of those that were computed before. */
static __device__ __forceinline__ void open_piece(const rule_args &k, const rule_block &b) {
  const weft_delta_view &view = k.op.view;
  uint64_t u_at = weft_delta_channels(&view) + (uint64_t)(view.n_k_heads + b.head) * view.dim + b.column;
  for (uint32_t i = threadIdx.x; i < b.end; i += RULE_THREADS) {
    uint8_t *row = weft_delta_row(&view, b.segment.table, b.border + i);
    b.a.row[i] = row;
    b.a.total[i] = delta_decays(view, row)[b.head];
  }
  __syncthreads();
  if (threadIdx.x == 0) delta_add_decays(b.a.total, b.end);
  delta_copy<8, RULE_THREADS>(
      b.first * COLUMNS,
      [&](uint32_t i) { return b.has_column ? delta_load(view.type, b.a.row[i / COLUMNS], u_at) : 0.0f; },
      [&](uint32_t i, float x) { b.a.u[i] = x; });
  __syncthreads();
}

/* Keys of rows [from, from + n) of the piece. */
template <int KEYS>
static __device__ __forceinline__ void load_keys(const rule_args &k, const rule_block &b, uint32_t from, uint32_t n,
                                                 rule_memory<KEYS> &m) {
  const weft_delta_view &view = k.op.view;
  uint64_t keys_at = weft_delta_channels(&view) + (uint64_t)b.key_head * view.dim;
  delta_copy<8, RULE_THREADS>(
      n * QUARTERS * KEYS / 2,
      [&](uint32_t i) {
        uint32_t c = i % (QUARTERS * KEYS / 2) * 2;
        return c < view.dim ? delta_load_two(view.type, b.a.row[from + i / (QUARTERS * KEYS / 2)], keys_at + c)
                            : make_float2(0.0f, 0.0f);
      },
      [&](uint32_t i, float2 x) {
        *(float2 *)(void *)&m.key[i / (QUARTERS * KEYS / 2)][i % (QUARTERS * KEYS / 2) * 2] = x;
      });
}

/* What rows [from, from + n) of the piece need. */
template <int KEYS>
static __device__ __forceinline__ void load_rows(const rule_args &k, const rule_block &b, uint32_t from, uint32_t n,
                                                 rule_memory<KEYS> &m) {
  const weft_delta_view &view = k.op.view;
  uint64_t row = b.first_row + (from - b.first);
  load_keys<KEYS>(k, b, from, n, m);
  const float *q = k.op.q + row * k.op.q_stride + b.key_head * view.dim, *v = k.op.v + row * k.op.v_stride;
  delta_copy<8, RULE_THREADS>(
      n * QUARTERS * KEYS,
      [&](uint32_t i) {
        uint32_t c = i % (QUARTERS * KEYS);
        return c < view.dim ? q[i / (QUARTERS * KEYS) * k.op.q_stride + c] : 0.0f;
      },
      [&](uint32_t i, float x) { m.query[i / (QUARTERS * KEYS)][i % (QUARTERS * KEYS)] = x; });
  delta_copy<2, RULE_THREADS>(
      n * COLUMNS,
      [&](uint32_t i) { return b.has_column ? v[i / COLUMNS * k.op.v_stride + b.head * view.dim + b.column] : 0.0f; },
      [&](uint32_t i, float x) { m.value[i / COLUMNS][i % COLUMNS] = x; });
  if (threadIdx.x < n) m.beta[threadIdx.x] = k.op.beta[(row + threadIdx.x) * k.op.beta_stride + b.head];
  delta_copy<4, RULE_THREADS>(
      n * view.every,
      [&](uint32_t i) {
        uint32_t r = i / view.every, at = i % view.every, t = from + r;
        const float *dots = dots_at(k, row + r, b.key_head);
        return make_float2(at < t ? dots[at] : 0.0f, at <= t ? dots[view.every + at] : 0.0f);
      },
      [&](uint32_t i, float2 x) {
        uint32_t r = i / view.every, at = i % view.every, t = from + r;
        if (at > t) return;
        float decay = expf(__fsub_rn(b.a.total[t], b.a.total[at]));
        b.a.of_k[i] = __fmul_rn(decay, x.x), b.a.of_q[i] = __fmul_rn(decay, x.y);
      });
}

/* The products of the thread's quarter of the state with keys and queries, four rows at a time. */
template <int KEYS>
static __device__ __forceinline__ void multiply_state(const float (&state)[KEYS], uint32_t n, rule_memory<KEYS> &m) {
  uint32_t quarter = threadIdx.x / COLUMNS, column = threadIdx.x % COLUMNS;
  for (uint32_t base = 0; base < n; base += 4) {
    float sum[4][2];
#pragma unroll
    for (int r = 0; r < 4; r++) sum[r][0] = sum[r][1] = 0.0f;
#pragma unroll
    for (int i = 0; i < KEYS; i += 4) {
#pragma unroll
      for (int r = 0; r < 4; r++) { /* beyond n: what was there, which nothing reads */
        float4 key = *(const float4 *)(const void *)&m.key[base + r][quarter * KEYS + i],
               query = *(const float4 *)(const void *)&m.query[base + r][quarter * KEYS + i];
        sum[r][0] = __fmaf_rn(state[i], key.x, sum[r][0]), sum[r][1] = __fmaf_rn(state[i], query.x, sum[r][1]);
        sum[r][0] = __fmaf_rn(state[i + 1], key.y, sum[r][0]), sum[r][1] = __fmaf_rn(state[i + 1], query.y, sum[r][1]);
        sum[r][0] = __fmaf_rn(state[i + 2], key.z, sum[r][0]), sum[r][1] = __fmaf_rn(state[i + 2], query.z, sum[r][1]);
        sum[r][0] = __fmaf_rn(state[i + 3], key.w, sum[r][0]), sum[r][1] = __fmaf_rn(state[i + 3], query.w, sum[r][1]);
      }
    }
#pragma unroll
    for (int r = 0; r < 4; r++)
      m.state[base + r][0][quarter][column] = sum[r][0], m.state[base + r][1][quarter][column] = sum[r][1];
  }
}

/* Adds the u before the eight rows, of which the first is `eight`. */
template <int KEYS>
static __device__ __forceinline__ void add_before(const rule_block &b, uint32_t every, uint32_t eight, uint32_t n,
                                                  rule_memory<KEYS> &m) {
  uint32_t column = threadIdx.x % COLUMNS;
  for (uint32_t r = threadIdx.x / COLUMNS; r < n; r += QUARTERS) {
    const float *of_k = b.a.of_k + r * every, *of_q = b.a.of_q + r * every;
    float sum[2] = {0.0f, 0.0f};
#pragma unroll 8
    for (uint32_t i = 0; i < eight; i++) {
      float u = b.a.u[i * COLUMNS + column];
      sum[0] = __fmaf_rn(of_k[i], u, sum[0]), sum[1] = __fmaf_rn(of_q[i], u, sum[1]);
    }
    m.before[r][0][column] = sum[0], m.before[r][1][column] = sum[1];
  }
}

/* e^(G_t) S^T x + the sum over the u before the eight rows, x = k_t (0) or q_t (1). */
template <int KEYS>
static __device__ __forceinline__ float begin_row(const rule_memory<KEYS> &m, uint32_t r, int which, float total) {
  uint32_t column = threadIdx.x % COLUMNS;
  const float(*s)[COLUMNS] = m.state[r][which];
  float sum = __fadd_rn(__fadd_rn(s[0][column], s[1][column]), __fadd_rn(s[2][column], s[3][column]));
  return __fmaf_rn(expf(total), sum, m.before[r][which][column]);
}

/* u of rows [from, from + n), one after another, by the first warp, and then their results, by all. */
template <int KEYS>
static __device__ __forceinline__ void finish_rows(const rule_args &k, const rule_block &b, uint32_t from, uint32_t n,
                                                   const rule_memory<KEYS> &m) {
  const weft_delta_view &view = k.op.view;
  uint32_t column = threadIdx.x % COLUMNS, eight = from / ROWS * ROWS, skipped = from - eight;
  uint64_t u_at = weft_delta_channels(&view) + (uint64_t)(view.n_k_heads + b.head) * view.dim + b.column;
  if (threadIdx.x < COLUMNS) {
    float u[ROWS], of_k[ROWS][ROWS], sum[ROWS];
#pragma unroll
    for (uint32_t j = 0; j < ROWS; j++) { /* of the eight; all is read before anything waits */
      bool is_new = j >= skipped && j < skipped + n;
      u[j] = j < skipped ? b.a.u[(eight + j) * COLUMNS + column] : 0.0f;
      sum[j] = is_new ? begin_row<KEYS>(m, j - skipped, 0, b.a.total[eight + j]) : 0.0f;
#pragma unroll
      for (uint32_t i = 0; i < j; i++) of_k[j][i] = is_new ? b.a.of_k[(j - skipped) * view.every + eight + i] : 0.0f;
    }
#pragma unroll
    for (uint32_t j = 0; j < ROWS; j++) {
      if (j < skipped || j >= skipped + n) continue;
#pragma unroll
      for (uint32_t i = 0; i < j; i++) sum[j] = __fmaf_rn(of_k[j][i], u[i], sum[j]);
      float value = m.value[j - skipped][column];
      u[j] = delta_round(view.type, __fmul_rn(m.beta[j - skipped], __fsub_rn(value, sum[j])));
    }
#pragma unroll
    for (uint32_t j = 0; j < ROWS; j++) {
      if (j < skipped || j >= skipped + n) continue;
      b.a.u[(eight + j) * COLUMNS + column] = u[j];
      if (b.has_column) delta_store(view.type, b.a.row[eight + j], u_at, u[j]);
    }
  }
  __syncthreads();
  for (uint32_t r = threadIdx.x / COLUMNS; r < n; r += QUARTERS) {
    uint32_t t = from + r;
    float sum = begin_row<KEYS>(m, r, 1, b.a.total[t]);
#pragma unroll
    for (uint32_t i = 0; i < ROWS; i++)
      if (eight + i <= t)
        sum = __fmaf_rn(b.a.of_q[r * view.every + eight + i], b.a.u[(eight + i) * COLUMNS + column], sum);
    uint64_t row = b.first_row + (t - b.first);
    if (b.has_column) k.op.out[row * k.op.out_stride + b.head * view.dim + b.column] = sum;
  }
}

template <int KEYS>
static __device__ __forceinline__ void compute_piece(const rule_args &k, const rule_block &b,
                                                     const float (&state)[KEYS], rule_memory<KEYS> &m) {
  open_piece(k, b);
  for (uint32_t from = b.first; from < b.end;) {
    uint32_t eight = from / ROWS * ROWS, end = min(b.end, eight + ROWS), n = end - from;
    load_rows<KEYS>(k, b, from, n, m);
    __syncthreads();
    multiply_state<KEYS>(state, n, m);
    add_before<KEYS>(b, k.op.view.every, eight, n, m);
    __syncthreads();
    finish_rows<KEYS>(k, b, from, n, m);
    __syncthreads();
    from = end;
  }
}

/* Makes the state at the next border of that at this one. */
template <int KEYS>
static __device__ __forceinline__ void cross_border(const rule_args &k, const rule_block &b, float (&state)[KEYS],
                                                    rule_memory<KEYS> &m) {
  uint32_t every = k.op.view.every, quarter = threadIdx.x / COLUMNS, column = threadIdx.x % COLUMNS;
  float last = b.a.total[every - 1], decay = expf(last);
  for (uint32_t i = threadIdx.x; i < every * COLUMNS; i += RULE_THREADS)
    b.a.u[i] = __fmul_rn(expf(__fsub_rn(last, b.a.total[i / COLUMNS])), b.a.u[i]);
#pragma unroll
  for (int i = 0; i < KEYS; i++) state[i] = __fmul_rn(state[i], decay);
  for (uint32_t from = 0; from < every; from += ROWS) {
    uint32_t n = min(every - from, (uint32_t)ROWS);
    load_keys<KEYS>(k, b, from, n, m);
    __syncthreads();
#pragma unroll 2
    for (uint32_t r = 0; r < n; r++) {
      float u = b.a.u[(from + r) * COLUMNS + column];
#pragma unroll
      for (int i = 0; i < KEYS; i++) state[i] = __fmaf_rn(m.key[r][quarter * KEYS + i], u, state[i]);
    }
    __syncthreads();
  }
}

/* Writes the block's part of the state at a border and, with all others of the segment, the tail. */
template <int KEYS>
static __device__ __forceinline__ void write_state(const rule_args &k, const rule_block &b, const uint32_t *pages,
                                                   uint32_t slice, const float (&state)[KEYS]) {
  const weft_delta_view &view = k.op.view;
  float *unit = weft_delta_unit(&view.state, pages, b.head), *tail = weft_delta_unit(&view.tail, pages, 0);
#pragma unroll
  for (int i = 0; i < KEYS; i++) {
    uint32_t key = threadIdx.x / COLUMNS * KEYS + i;
    if (key < view.dim && b.has_column) unit[key * view.dim + b.column] = state[i];
  }
  uint32_t n = weft_delta_channels(&view), step = view.n_v_heads * k.n_slices * RULE_THREADS;
  for (uint32_t j = 0; j < WEFT_DELTA_TAPS - 1; j++) {
    const uint8_t *row = b.a.row[view.every - (WEFT_DELTA_TAPS - 1) + j];
    for (uint32_t c = (b.head * k.n_slices + slice) * RULE_THREADS + threadIdx.x; c < n; c += step)
      tail[j * n + c] = delta_load(view.type, row, c);
  }
}

template <int KEYS>
static __device__ __forceinline__ void read_state(const rule_args &k, const rule_block &b, float (&state)[KEYS]) {
  const weft_delta_view &view = k.op.view;
  const float *unit = b.segment.state == NULL ? NULL : weft_delta_unit(&view.state, b.segment.state, b.head);
#pragma unroll
  for (int i = 0; i < KEYS; i++) {
    uint32_t key = threadIdx.x / COLUMNS * KEYS + i;
    state[i] = unit != NULL && key < view.dim && b.has_column ? unit[key * view.dim + b.column] : 0.0f;
  }
}

template <int KEYS>
static __global__ void __launch_bounds__(RULE_THREADS, KEYS <= 32 ? 4 : 2)
    rule_kernel(const __grid_constant__ rule_args k) {
  launch_dependents_and_wait();
  extern __shared__ __align__(16) uint8_t shared[];
  rule_memory<KEYS> &m = *(rule_memory<KEYS> *)(void *)shared;
  const weft_delta_view &view = k.op.view;
  uint32_t slice = blockIdx.x % k.n_slices, every = view.every, at = blockIdx.x / k.n_slices;
  rule_block b;
  b.segment = k.tables.segment[at / view.n_v_heads];
  b.head = at % view.n_v_heads;
  b.key_head = b.head % view.n_k_heads;
  b.column = slice * COLUMNS + threadIdx.x % COLUMNS;
  b.has_column = b.column < view.dim;
  b.a.row = (uint8_t **)(void *)(shared + sizeof(rule_memory<KEYS>));
  b.a.total = (float *)(void *)(b.a.row + every);
  b.a.u = b.a.total + every;
  b.a.of_k = b.a.u + every * COLUMNS, b.a.of_q = b.a.of_k + ROWS * every;
  float state[KEYS];
  read_state<KEYS>(k, b, state);
  for (uint32_t p = 0; p < b.segment.n_pieces; p++) {
    const delta_piece piece = k.tables.piece[b.segment.first_piece + p];
    b.first = piece.first, b.end = piece.end, b.border = piece.border, b.first_row = piece.first_row;
    compute_piece<KEYS>(k, b, state, m);
    if (!piece.crosses) continue;
    cross_border<KEYS>(k, b, state, m);
    if (piece.pages != NULL) write_state<KEYS>(k, b, piece.pages, slice, state);
    __syncthreads();
  }
}

/* ---- norm ------------------------------------------------------------------------------------------------ */

/* STEPS: at most 32 STEPS dimensions. */
template <int STEPS>
static __global__ void __launch_bounds__(32 * NORM_WARPS) norm_kernel(const __grid_constant__ weft_delta_rule_args a) {
  launch_dependents_and_wait();
  uint32_t head = blockIdx.y * NORM_WARPS + threadIdx.x / 32;
  uint64_t r = blockIdx.x;
  if (head < a.view.n_v_heads) delta_norm_row<STEPS>(a, a.out + r * a.out_stride + head * a.view.dim, r, head);
}

void delta_norm(cuda_device *d, const weft_delta_rule_args *args) {
  dim3 grid(args->n_rows, cuda_ceil(args->view.n_v_heads, NORM_WARPS));
  cuda_start(d, args->view.dim <= 128 ? norm_kernel<4> : norm_kernel<8>, grid, 32 * NORM_WARPS, 0, *args);
}

/* ---- host ------------------------------------------------------------------------------------------------ */

uint64_t cuda_delta_rule_scratch(weft_device *device, const weft_delta_rule_args *args) {
  uint64_t dots = 4 * args->n_rows * dots_of_row(args->view), tiles = delta_tiles_scratch(args);
  (void)device;
  return dots > tiles ? dots : tiles;
}

weft_status cuda_delta_rule_walk(weft_device *device, const weft_delta_rule_args *args) {
  delta_tables tables;
  return delta_make_tables(cuda_of(device), &args->view, args->segment, args->n_segments, args->write, args->n_writes,
                           &tables);
}

template <int PARTS>
static void start_dots(cuda_device *d, const rule_args &k) {
  cuda_start(d, dots_kernel<PARTS>, dim3(k.tables.n_pieces, k.op.view.n_k_heads), PARTS * DOTS_KEYS,
             sizeof(dots_memory<PARTS>), k);
}

template <int KEYS>
static void start_rule(cuda_device *d, const rule_args &k) {
  cuda_start(d, rule_kernel<KEYS>, k.op.n_segments * k.op.view.n_v_heads * k.n_slices, RULE_THREADS,
             rule_bytes<KEYS>(k.op.view.every), k);
}

weft_status cuda_delta_rule(weft_device *device, const weft_delta_rule_args *args) {
  cuda_device *d = cuda_of(device);
  if (d->lost) return WEFT_E_DEVICE;
  uint32_t dim = args->view.dim;
  rule_args k = {*args, {}, (float *)args->scratch, cuda_ceil(dim, COLUMNS)};
  weft_status status =
      delta_make_tables(d, &args->view, args->segment, args->n_segments, args->write, args->n_writes, &k.tables);
  if (status != WEFT_OK) return status;
  if (delta_tiles_takes(&args->view)) return delta_tiles(d, args, &k.tables);
  dim <= PART ? start_dots<1>(d, k) : dim <= 2 * PART ? start_dots<2>(d, k) : start_dots<4>(d, k);
  dim <= 32 ? start_rule<8>(d, k) : dim <= 128 ? start_rule<32>(d, k) : start_rule<64>(d, k);
  delta_norm(d, args);
  return cuda_launched(d, "delta_rule");
}

weft_status cuda_delta_setup(cuda_device *d) {
  const cudaFuncAttribute most = cudaFuncAttributeMaxDynamicSharedMemorySize;
  cudaError_t error = cudaFuncSetAttribute(dots_kernel<1>, most, sizeof(dots_memory<1>));
  if (error == cudaSuccess) error = cudaFuncSetAttribute(dots_kernel<2>, most, sizeof(dots_memory<2>));
  if (error == cudaSuccess) error = cudaFuncSetAttribute(dots_kernel<4>, most, sizeof(dots_memory<4>));
  if (error == cudaSuccess) error = cudaFuncSetAttribute(rule_kernel<8>, most, rule_bytes<8>(WEFT_DELTA_EVERY_MAX));
  if (error == cudaSuccess) error = cudaFuncSetAttribute(rule_kernel<32>, most, rule_bytes<32>(WEFT_DELTA_EVERY_MAX));
  if (error == cudaSuccess) error = cudaFuncSetAttribute(rule_kernel<64>, most, rule_bytes<64>(WEFT_DELTA_EVERY_MAX));
  if (error == cudaSuccess) error = delta_tiles_setup();
  return cuda_judge(d, error, "setting up the delta rule");
}
