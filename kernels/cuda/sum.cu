/* SPDX-License-Identifier: MIT */
/* The sum over shards, by which cards write into one another's memory (kernels/shards_sum.h).
 *
 * Law: of an item or row a block gives its numbers before it waits for those of others, it goes through them ascending,
 * and all blocks are on the card at once: what is first among all that is not done waits for nothing that is not done,
 * so no card waits for one that waits for it. By owners a block gives rows ahead, and an owner needs only what was
 * given so. The next kernel comes onto the card when all blocks of this one are
 * there. A number is stored and loaded with the order of the whole system: its word says by itself that it has come,
 * and nothing else is read because of it. What this kernel leaves empty, and the other card fills again, it leaves
 * before it ends. */
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/norm.cuh"
#include "kernels/cuda/sum.cuh"

enum {
  SUM_THREADS = 256,
  SUM_BLOCKS = 6 /* of a multiprocessor, at once */,
  SUM_WAITS = 4096,
  SUM_AHEAD = 4 /* rows that a block has given and not yet taken */
};

static __device__ __forceinline__ void take(const float *from, four &v) {
  asm volatile("ld.relaxed.sys.global.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
               : "l"(from)
               : "memory");
}

typedef struct one {
  uint32_t word[1];
} one;

static __device__ __forceinline__ void give(float *to, const one &v) {
  asm volatile("st.relaxed.sys.global.b32 [%0], %1;" ::"l"(to), "r"(v.word[0]) : "memory");
}

static __device__ __forceinline__ void take(const float *from, one &v) {
  asm volatile("ld.relaxed.sys.global.b32 %0, [%1];" : "=r"(v.word[0]) : "l"(from) : "memory");
}

template <class T>
constexpr uint32_t words_of = sizeof(T) / sizeof(uint32_t);

template <class T>
static __device__ __forceinline__ T empty_place(void) {
  T v;
#pragma unroll
  for (uint32_t i = 0; i < words_of<T>; i++) v.word[i] = SHARDS_SUM_EMPTY;
  return v;
}

template <class T>
static __device__ __forceinline__ bool has_come(const T &v) {
  bool all = true;
#pragma unroll
  for (uint32_t i = 0; i < words_of<T>; i++) all = all && v.word[i] != SHARDS_SUM_EMPTY;
  return all;
}

template <class T>
static __device__ __forceinline__ void add_to(T &sum, const T &v) {
#pragma unroll
  for (uint32_t i = 0; i < words_of<T>; i++)
    sum.word[i] = __float_as_uint(__fadd_rn(__uint_as_float(sum.word[i]), __uint_as_float(v.word[i])));
}

/* Asked now and then by who waits; since: when it was asked first. */
static __device__ __noinline__ bool gives_up(uint32_t *word, uint64_t *since) {
  uint32_t broken;
  uint64_t now;
  asm volatile("ld.relaxed.sys.global.b32 %0, [%1];" : "=r"(broken) : "l"(word) : "memory");
  if (broken != 0) return true;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  if (*since == 0) *since = now;
  if (now - *since < SHARDS_SUM_SECONDS * 1000000000ull) return false;
  asm volatile("st.relaxed.sys.global.b32 [%0], %1;" ::"l"(word), "r"(1u) : "memory");
  return true;
}

/* Says that the block knows its turn. */
static __device__ __forceinline__ void count_read(shards_sum_state *state, uint32_t n_sums) {
  __syncthreads();
  if (threadIdx.x > 0 || atomicAdd(&state->n_read, 1) + 1 < gridDim.x) return;
  state->n_read = 0;
  state->n_sums = n_sums + 1;
}

/* A thread's number, or four of them, among all arrays one behind the other. */
typedef struct item {
  uint32_t array;
  uint64_t at; /* of the array's numbers */
} item;

template <class T>
static __device__ __forceinline__ item item_of(const shards_sum &a, uint32_t i) {
  uint32_t n = (uint32_t)(a.n_floats / words_of<T>);
  item out;
  out.array = i < n ? 0 : 1;
  out.at = (uint64_t)(i < n ? i : i - n) * words_of<T>;
  return out;
}

template <class T>
static __device__ __forceinline__ void give_to_all(const shards_sum &a, uint32_t turn, const item &at, T v) {
#pragma unroll
  for (uint32_t w = 0; w < words_of<T>; w++)
    if (v.word[w] == SHARDS_SUM_EMPTY) v.word[w] = SHARDS_SUM_OTHER;
  for (uint32_t to = 0; to < a.n; to++)
    if (to != a.at) give(shards_sum_inbox(&a, to, a.at, turn) + at.array * a.array_floats + at.at, v);
}

/* Waits for what shard `from` gave, and leaves its place empty. False: it will not come. */
template <class T>
static __device__ __forceinline__ bool take_from(const shards_sum &a, uint32_t turn, uint32_t from, const item &at,
                                                 T &v) {
  float *place = shards_sum_inbox(&a, a.at, from, turn) + at.array * a.array_floats + at.at;
  uint64_t since = 0;
  take(place, v);
  for (uint32_t n_waits = 1; !has_come(v); n_waits++) {
    if (n_waits % SUM_WAITS == 0 && gives_up(a.broken, &since)) return false;
    take(place, v);
  }
  *(T *)(void *)place = empty_place<T>();
  return true;
}

template <class T>
static __global__ void __launch_bounds__(SUM_THREADS, SUM_BLOCKS) sum_kernel(const __grid_constant__ shards_sum a) {
  inputs_ready();
  uint32_t n_sums = *(const volatile uint32_t *)&a.state->n_sums, turn = n_sums % SHARDS_SUM_INBOXES;
  uint32_t n_items = (uint32_t)(a.n_arrays * a.n_floats / words_of<T>);
  for (uint32_t base = blockIdx.x * SUM_THREADS; base < n_items; base += gridDim.x * SUM_THREADS) {
    uint32_t i = base + threadIdx.x;
    item at = item_of<T>(a, i);
    T own, sum;
    if (i < n_items) own = *(const T *)(const void *)(a.x[at.array] + at.at);
    if (a.is_meeting != 0) __threadfence_system();
    uint32_t maker = a.share_floats == 0 ? a.at : (uint32_t)at.at / (uint32_t)a.share_floats;
    if (i < n_items && maker == a.at) give_to_all(a, turn, at, own);
    if (base == blockIdx.x * SUM_THREADS) count_read(a.state, n_sums);
    if (i >= n_items) return;
    if (a.share_floats != 0) {
      if (maker == a.at) continue;
      if (!take_from(a, turn, maker, at, own)) return;
      *(T *)(void *)(a.x[at.array] + at.at) = own;
      continue;
    }
    for (uint32_t s = 0; s < a.n; s++) {
      T v = own;
      if (s != a.at && !take_from(a, turn, s, at, v)) return;
      if (s == 0) sum = v;
      if (s > 0) add_to(sum, v);
    }
    if (a.is_meeting != 0) __threadfence_system();
    *(T *)(void *)(a.x[at.array] + at.at) = sum;
  }
}

template <class T>
static void start_sum(cuda_device *d, const shards_sum *args) {
  uint32_t most = SUM_BLOCKS * d->n_multiprocessors;
  uint32_t n_blocks = cuda_ceil((uint32_t)(args->n_arrays * args->n_floats / words_of<T>), SUM_THREADS);
  cuda_start(d, sum_kernel<T>, n_blocks < most ? n_blocks : most, SUM_THREADS, 0, *args);
}

weft_status cuda_sum(weft_device *device, const shards_sum *args) {
  cuda_device *d = cuda_of(device);
  bool fours = args->n_floats % 4 == 0 && args->share_floats % 4 == 0;
  if (d->lost) return WEFT_E_DEVICE;
  if (args->n_arrays * args->n_floats > INT32_MAX) return WEFT_E_UNSUPPORTED;
  for (uint32_t i = 0; i < args->n_arrays; i++) fours = fours && ((uintptr_t)args->x[i] & 15u) == 0;
  if (fours)
    start_sum<four>(d, args);
  else
    start_sum<one>(d, args);
  return cuda_launched(d, "a sum over shards");
}

/* ---- a sum, and the norm that follows it ------------------------------------------------------------------- */

typedef struct sum_norm_args {
  shards_sum sum;
  weft_norm_args norm; /* of rows that lie one behind another, and are wide */
} sum_norm_args;

static __device__ __forceinline__ float4 as_numbers(const four &v) {
  return make_float4(__uint_as_float(v.word[0]), __uint_as_float(v.word[1]), __uint_as_float(v.word[2]),
                     __uint_as_float(v.word[3]));
}

/* What a thread knows while it exchanges rows. */
typedef struct exchange {
  uint32_t turn, n_cols;
  bool gone; /* it has given up once, and waits no more */
} exchange;

/* Gives a thread's part of a row to shard `to`. */
template <int SLOTS>
static __device__ __forceinline__ void give_part(const shards_sum &a, const exchange &e, uint32_t to, uint32_t array,
                                                 uint64_t r, const row_part<SUM_THREADS, SLOTS> &x) {
  float *row = shards_sum_inbox(&a, to, a.at, e.turn) + array * a.array_floats + r * e.n_cols;
#pragma unroll
  for (uint32_t t = 0; t < SLOTS; t++) {
    uint32_t i = 4 * (t * SUM_THREADS + threadIdx.x);
    if (i < e.n_cols) give_four(row + i, x.at[t]);
  }
}

/* Asks for a thread's part of a row that shard `from` gave, or will give. */
template <int SLOTS>
static __device__ __forceinline__ float *ask_part(const shards_sum &a, const exchange &e, uint32_t from, uint32_t array,
                                                  uint64_t r, four (&v)[SLOTS]) {
  float *row = shards_sum_inbox(&a, a.at, from, e.turn) + array * a.array_floats + r * e.n_cols;
#pragma unroll
  for (uint32_t t = 0; t < SLOTS; t++) {
    uint32_t i = 4 * (t * SUM_THREADS + threadIdx.x);
    v[t] = as_four(make_float4(0, 0, 0, 0));
    if (i < e.n_cols) take(row + i, v[t]);
  }
  return row;
}

/* Waits for what was asked for, and leaves its place empty. */
template <int SLOTS>
static __device__ __forceinline__ void take_part(const shards_sum &a, exchange &e, float *row, four (&v)[SLOTS],
                                                 row_part<SUM_THREADS, SLOTS> &x) {
#pragma unroll
  for (uint32_t t = 0; t < SLOTS; t++) {
    uint32_t i = 4 * (t * SUM_THREADS + threadIdx.x);
    uint64_t since = 0;
    for (uint32_t n_waits = 1; !has_come(v[t]) && !e.gone; n_waits++) {
      if (n_waits % SUM_WAITS == 0) e.gone = gives_up(a.broken, &since);
      take(row + i, v[t]);
    }
    if (i < e.n_cols) *(four *)(void *)(row + i) = empty_place<four>();
    x.at[t] = as_numbers(v[t]);
  }
}

template <int SLOTS>
static __device__ __forceinline__ void add_part(row_part<SUM_THREADS, SLOTS> &sum,
                                                const row_part<SUM_THREADS, SLOTS> &x) {
#pragma unroll
  for (uint32_t t = 0; t < SLOTS; t++)
    sum.at[t] = make_float4(__fadd_rn(sum.at[t].x, x.at[t].x), __fadd_rn(sum.at[t].y, x.at[t].y),
                            __fadd_rn(sum.at[t].z, x.at[t].z), __fadd_rn(sum.at[t].w, x.at[t].w));
}

/* x, this shard's part of a row, becomes the sum of those of all, in their order. */
template <int SLOTS>
static __device__ __forceinline__ void sum_part(const shards_sum &a, exchange &e, uint32_t array, uint64_t r,
                                                row_part<SUM_THREADS, SLOTS> &x) {
  row_part<SUM_THREADS, SLOTS> sum;
#pragma unroll 1
  for (uint32_t s = 0; s < a.n; s++) {
    row_part<SUM_THREADS, SLOTS> v = x;
    four asked[SLOTS];
    if (s != a.at) take_part<SLOTS>(a, e, ask_part<SLOTS>(a, e, s, array, r, asked), asked, v);
    if (s > 0) add_part(sum, v);
    if (s == 0) sum = v;
  }
  x = sum;
}

/* x, and of two arrays x2, become such sums. PAIR: of two shards, whose order the bits do not depend on; what there is
 * to take of both arrays is asked for at once. */
template <int SLOTS, bool PAIR>
static __device__ __forceinline__ void sum_parts(const shards_sum &a, exchange &e, uint64_t r,
                                                 row_part<SUM_THREADS, SLOTS> &x, row_part<SUM_THREADS, SLOTS> &x2) {
  bool two = a.n_arrays > 1;
  if constexpr (!PAIR) {
    sum_part(a, e, 0, r, x);
    if (two) sum_part(a, e, 1, r, x2);
    return;
  }
  row_part<SUM_THREADS, SLOTS> v;
  four asked[SLOTS], asked2[SLOTS];
  float *row = ask_part<SLOTS>(a, e, 1 - a.at, 0, r, asked), *row2 = NULL;
  if (two) row2 = ask_part<SLOTS>(a, e, 1 - a.at, 1, r, asked2);
  take_part<SLOTS>(a, e, row, asked, v);
  add_part(x, v);
  if (!two) return;
  take_part<SLOTS>(a, e, row2, asked2, v);
  add_part(x2, v);
}

static __device__ __forceinline__ bool is_owner(const shards_sum &a, uint32_t of, uint64_t r) {
  return a.by_owner == 0 || sum_owner(a, r) == of;
}

/* Whether a row's parts are to be given: the shard does not sum it alone, and nobody has given them. */
static __device__ __forceinline__ bool must_give(const shards_sum &a, uint64_t r) {
  return a.is_given == 0 && (a.by_owner == 0 || sum_owner(a, r) != a.at);
}

template <int SLOTS>
static __device__ __forceinline__ void give_parts(const shards_sum &a, const exchange &e, uint64_t r, uint32_t array,
                                                  const row_part<SUM_THREADS, SLOTS> &x) {
#pragma unroll 1
  for (uint32_t to = 0; to < a.n; to++)
    if (to != a.at && is_owner(a, to, r)) give_part(a, e, to, array, r, x);
}

/* This shard's parts of a row, and what else stands in the place of x2. */
template <int SLOTS>
static __device__ __forceinline__ void get_parts(const weft_norm_args &op, uint64_t r, row_part<SUM_THREADS, SLOTS> &x,
                                                 row_part<SUM_THREADS, SLOTS> &x2) {
  get_part<true>(op.x + r * op.n_cols, op.n_cols, true, x);
  if (op.x2 != NULL) get_part<true>(op.x2 + r * op.x2_stride, op.n_cols, true, x2);
}

/* Gives rows ahead of that which the block is at. */
template <int SLOTS>
static __device__ __forceinline__ void give_row(const sum_norm_args &a, const exchange &e, uint64_t r) {
  row_part<SUM_THREADS, SLOTS> x;
  if (r >= a.norm.n_rows || !must_give(a.sum, r)) return;
#pragma unroll 1
  for (uint32_t i = 0; i < a.sum.n_arrays; i++) {
    get_part<true>(a.sum.x[i] + r * e.n_cols, e.n_cols, true, x);
    give_parts(a.sum, e, r, i, x);
  }
}

/* A block has every gridDim.x-th row. It reads the weights before the inputs are there, and gives its first row as soon
 * as it has it. */
template <int SLOTS, bool PAIR>
static __global__ void __launch_bounds__(SUM_THREADS, SLOTS <= 3 ? 2 : 1)
    sum_norm_kernel(const __grid_constant__ sum_norm_args a) {
  extern __shared__ float4 kept[];
  __shared__ norm_shared shared;
  row_part<SUM_THREADS, SLOTS> x, x2;
  next_may_start();
  const weft_norm_args &op = a.norm;
  exchange e = {0, op.n_cols, false};
  uint64_t r = blockIdx.x;
  keep_weights<SUM_THREADS, SLOTS>(op, kept);
  inputs_wait();
  get_parts(op, r, x, x2);
  uint32_t n_sums = *(const volatile uint32_t *)&a.sum.state->n_sums;
  e.turn = n_sums % SHARDS_SUM_INBOXES;
  if (must_give(a.sum, r)) {
    give_parts(a.sum, e, r, 0, x);
    if (a.sum.n_arrays > 1) give_parts(a.sum, e, r, 1, x2);
  }
  for (uint32_t i = 1; i < SUM_AHEAD; i++) give_row<SLOTS>(a, e, r + i * gridDim.x);
  count_read(a.sum.state, n_sums);
  copies_wait<0>();
  for (;;) {
    norm_weights<SUM_THREADS, SLOTS> weights;
    give_row<SLOTS>(a, e, r + SUM_AHEAD * gridDim.x);
    if (is_owner(a.sum, a.sum.at, r)) {
      row_part<SUM_THREADS, SLOTS> add;
      if (op.add != NULL) get_part<true>(op.add + r * op.add_stride, op.n_cols, true, add);
      float scale = row_scale_of(op, r);
      sum_parts<SLOTS, PAIR>(a.sum, e, r, x, x2);
      norm_row<NORM_KEPT, true>(op, true, r, scale, x, x2, add, weights, shared, kept);
#pragma unroll 1
      for (uint32_t to = 0; to < a.sum.n && a.sum.by_owner != 0; to++)
        if (to != a.sum.at) give_part(a.sum, e, to, 0, r, x);
    } else {
      four asked[SLOTS];
      float *row = ask_part<SLOTS>(a.sum, e, sum_owner(a.sum, r), 0, r, asked);
      take_part<SLOTS>(a.sum, e, row, asked, x);
#pragma unroll
      for (uint32_t t = 0; t < SLOTS; t++)
        store_row4<true>(op.y + r * op.y_stride, 4 * (t * SUM_THREADS + threadIdx.x), op.n_cols, true, x.at[t]);
    }
    norm_then<NORM_KEPT, true>(op, true, r, x, weights, shared, kept);
    r += gridDim.x;
    if (r >= op.n_rows) return;
    __syncthreads(); /* the row before has been read in `shared` */
    if (is_owner(a.sum, a.sum.at, r)) get_parts(op, r, x, x2);
  }
}

template <int SLOTS>
constexpr uint32_t sum_norm_bytes = NORM_WEIGHTS *SLOTS *SUM_THREADS * sizeof(float4);

template <int SLOTS, bool PAIR>
static cudaError_t ask_shared(void) {
  return cudaFuncSetAttribute(sum_norm_kernel<SLOTS, PAIR>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              (int)sum_norm_bytes<SLOTS>);
}

weft_status cuda_sum_setup(cuda_device *d) {
  cudaError_t error = ask_shared<3, true>();
  if (error == cudaSuccess) error = ask_shared<3, false>();
  if (error == cudaSuccess) error = ask_shared<4, true>();
  if (error == cudaSuccess) error = ask_shared<4, false>();
  return cuda_judge(d, error, "shared memory of sums");
}

template <int SLOTS>
static void start_sum_norm(cuda_device *d, const sum_norm_args *a) {
  uint32_t n = a->norm.n_rows, most = (SLOTS <= 3 ? 2 : 1) * d->n_multiprocessors;
  cuda_start(d, a->sum.n == 2 ? sum_norm_kernel<SLOTS, true> : sum_norm_kernel<SLOTS, false>, n < most ? n : most,
             SUM_THREADS, sum_norm_bytes<SLOTS>, *a);
}

bool cuda_sum_takes(const weft_norm_args *norm, uint32_t n_arrays) {
  uint32_t n = norm->n_cols;
  return n <= 4096 && n % 4 == 0 && norm->x_stride == n && (n_arrays < 2 || norm->x2_stride == n) && norm_is_wide(norm);
}

weft_status cuda_sum_norm(weft_device *device, const shards_sum *args, const weft_norm_args *norm) {
  cuda_device *d = cuda_of(device);
  sum_norm_args a = {*args, *norm};
  if (d->lost) return WEFT_E_DEVICE;
  if (norm->n_cols <= 3072)
    start_sum_norm<3>(d, &a);
  else
    start_sum_norm<4>(d, &a);
  return cuda_launched(d, "a sum over shards and its norm");
}
