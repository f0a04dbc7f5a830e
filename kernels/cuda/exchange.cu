/* SPDX-License-Identifier: MIT */
/* An exchange between shards, by which cards write into one another's memory (kernels/shards_exchange.h).
 *
 * Law: a thread gives its items to all others before it waits for theirs, item by item or some at a time in rising
 * order, and all blocks are on the card at once: so whoever waits for an item waits for a thread that may wait for
 * lower ones alone, and no thread waits for one that waits for it. The next kernel comes onto the card when all blocks
 * of this one are there. A number is stored and loaded with the order of the whole system: its word says by itself that
 * it has come, and nothing else is read because of it. What this kernel leaves empty, and the other card fills again,
 * it leaves before it ends. */
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/cuda.h"
#include "kernels/shards_exchange.h"

enum {
  EXCHANGE_THREADS = 256,
  EXCHANGE_WAITS = 4096,
  MANY = 4,      /* items that a thread has at once, where it has many */
  MANY_SUMS = 2, /* the same where it keeps PENDING sums of each */
  PENDING = 5    /* most parts and sums of one item that wait for what they are added to: one for each level of pairs */
};
static_assert(WEFT_DEVICES_MAX <= 1 << (PENDING - 1), "a level of pairs for each doubling of the devices");

/* Of a multiprocessor, at once. */
constexpr uint32_t blocks_of(uint32_t n_at_once, uint32_t n_levels) {
  return n_at_once == 1 && n_levels == 1 ? 6 : 3;
}

/* An item is a number, or four of one row. Counted in items but where floats are named. */
typedef struct exchange_array {
  float *x, *y;
  uint64_t inbox_at;      /* floats */
  uint32_t n_items;       /* the most that a shard gives to another one */
  uint32_t n_cols;        /* of x */
  uint32_t factor, shift; /* i / n_cols is i * factor >> shift */
} exchange_array;

typedef struct exchange_plan {
  exchange_array array[WEFT_SHARDS_ARRAYS_MAX];
  float *to[WEFT_DEVICES_MAX];   /* inboxes on other shards for what this one gives, in the first turn */
  float *from[WEFT_DEVICES_MAX]; /* inboxes of this shard */
  uint64_t turn_floats;          /* from one turn to the next */
  shards_exchange_state *state;
  uint32_t *broken;
  uint32_t row[WEFT_DEVICES_MAX + 1];
  uint32_t n_items, n, at, is_meeting;
  uint8_t closes[WEFT_DEVICES_MAX]; /* weft_shards_closes */
} exchange_plan;

template <uint32_t WAY>
constexpr bool is_whole = WAY == WEFT_SHARDS_SUM || WAY == WEFT_SHARDS_COLUMNS;
template <uint32_t WAY>
constexpr bool adds = WAY == WEFT_SHARDS_SUM || WAY == WEFT_SHARDS_SUM_OWN;
template <uint32_t WAY>
constexpr bool has_y = WAY == WEFT_SHARDS_COLUMNS || WAY == WEFT_SHARDS_COLUMNS_OWN;

typedef struct __align__(16) four {
  uint32_t word[4];
}
four;

static __device__ __forceinline__ void give(four *to, const four &v) {
  asm volatile("st.relaxed.sys.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.word[0]), "r"(v.word[1]),
               "r"(v.word[2]), "r"(v.word[3])
               : "memory");
}

static __device__ __forceinline__ void take(const four *from, four &v) {
  asm volatile("ld.relaxed.sys.global.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
               : "l"(from)
               : "memory");
}

typedef struct one {
  uint32_t word[1];
} one;

static __device__ __forceinline__ void give(one *to, const one &v) {
  asm volatile("st.relaxed.sys.global.b32 [%0], %1;" ::"l"(to), "r"(v.word[0]) : "memory");
}

static __device__ __forceinline__ void take(const one *from, one &v) {
  asm volatile("ld.relaxed.sys.global.b32 %0, [%1];" : "=r"(v.word[0]) : "l"(from) : "memory");
}

template <class T>
constexpr uint32_t words_of = sizeof(T) / sizeof(uint32_t);

template <class T>
static __device__ __forceinline__ T empty_place(void) {
  T v;
#pragma unroll
  for (uint32_t i = 0; i < words_of<T>; i++) v.word[i] = SHARDS_EXCHANGE_EMPTY;
  return v;
}

template <class T>
static __device__ __forceinline__ bool has_come(const T &v) {
  bool all = true;
#pragma unroll
  for (uint32_t i = 0; i < words_of<T>; i++) all = all && v.word[i] != SHARDS_EXCHANGE_EMPTY;
  return all;
}

template <class T>
static __device__ __forceinline__ void add_to(T &sum, const T &v) {
#pragma unroll
  for (uint32_t i = 0; i < words_of<T>; i++)
    sum.word[i] = __float_as_uint(__fadd_rn(__uint_as_float(sum.word[i]), __uint_as_float(v.word[i])));
}

/* Asked now and then by who waits; since: when it was asked first. Not static: nvcc would give it a name with a hash of
 * the folder, and no two builds the same bytes. */
__device__ __noinline__ bool exchange_gives_up(uint32_t *word, uint64_t *since) {
  uint32_t broken;
  uint64_t now;
  asm volatile("ld.relaxed.sys.global.b32 %0, [%1];" : "=r"(broken) : "l"(word) : "memory");
  if (broken != 0) return true;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  if (*since == 0) *since = now;
  if (now - *since < SHARDS_EXCHANGE_SECONDS * 1000000000ull) return false;
  asm volatile("st.relaxed.sys.global.b32 [%0], %1;" ::"l"(word), "r"(1u) : "memory");
  return true;
}

/* Says that the block knows its turn. */
static __device__ __forceinline__ void count_read(shards_exchange_state *state, uint32_t n_exchanges) {
  __syncthreads();
  if (threadIdx.x > 0 || atomicAdd(&state->n_read, 1) + 1 < gridDim.x) return;
  state->n_read = 0;
  state->n_exchanges = n_exchanges + 1;
}

/* A thread's item: number i of an array, among the rows that one shard gives to another one. */
typedef struct item {
  uint32_t array, i, own; /* own: where in x, among the rows for which this shard has a use itself */
  bool is, has_own;
} item;

/* Where in x the item is among the rows that `owner` owns, or of all. False: these have no such item. */
template <uint32_t WAY>
static __device__ __forceinline__ bool find_item(const exchange_plan &a, const item &at, uint32_t owner, uint32_t *k) {
  *k = at.i;
  if (is_whole<WAY> || !at.is) return at.is;
  uint32_t n_cols = a.array[at.array].n_cols;
  *k += a.row[owner] * n_cols;
  return *k < a.row[owner + 1] * n_cols;
}

template <uint32_t WAY>
static __device__ __forceinline__ item item_of(const exchange_plan &a, uint32_t i) {
  item at;
  at.is = i < a.n_items;
  at.array = 0;
#pragma unroll
  for (uint32_t n = 0; n + 1 < WEFT_SHARDS_ARRAYS_MAX; n++) {
    if (at.array < n || i < a.array[n].n_items) continue;
    i -= a.array[n].n_items;
    at.array = n + 1;
  }
  at.i = i;
  at.has_own = find_item<WAY>(a, at, a.at, &at.own);
  return at;
}

template <class T>
static __device__ __forceinline__ T *x_of(const exchange_plan &a, const item &at, uint32_t k) {
  return (T *)(void *)a.array[at.array].x + k;
}

/* Where item k of x has its place among the columns of shard s. */
template <class T>
static __device__ __forceinline__ T *y_of(const exchange_plan &a, const item &at, uint32_t k, uint32_t s) {
  const exchange_array &of = a.array[at.array];
  uint32_t row = (uint32_t)((uint64_t)k * of.factor >> of.shift);
  return (T *)(void *)of.y + ((uint64_t)row * (a.n - 1) + s) * of.n_cols + k;
}

template <class T>
static __device__ __forceinline__ T *inbox_of(const exchange_plan &a, float *inbox, const item &at, uint32_t k) {
  return (T *)(void *)(inbox + a.array[at.array].inbox_at) + k;
}

template <class T>
static __device__ __forceinline__ T never_empty(T v) {
#pragma unroll
  for (uint32_t w = 0; w < words_of<T>; w++)
    if (v.word[w] == SHARDS_EXCHANGE_EMPTY) v.word[w] = SHARDS_EXCHANGE_OTHER;
  return v;
}

template <class T>
static __device__ __forceinline__ T own_of(const exchange_plan &a, const item &at) {
  return at.has_own ? *x_of<T>(a, at, at.own) : empty_place<T>();
}

template <class T, uint32_t WAY>
static __device__ __forceinline__ void give_item(const exchange_plan &a, uint64_t turn, const item &at, const T &own) {
  if (has_y<WAY> && at.has_own) *y_of<T>(a, at, at.own, a.at) = own;
  T v = never_empty(own);
  uint32_t k = at.own;
  for (uint32_t to = 0; to < a.n; to++) {
    if (to == a.at) continue;
    if (is_whole<WAY> || WAY == WEFT_SHARDS_ROWS) {
      if (!at.has_own) continue;
    } else {
      if (!find_item<WAY>(a, at, to, &k)) continue;
      v = never_empty(*x_of<T>(a, at, k));
    }
    give(inbox_of<T>(a, a.to[to] + turn, at, k), v);
  }
}

/* Waits for what is asked for, and leaves its place empty. False: it will not come. */
template <class T>
static __device__ __forceinline__ bool wait_for(const exchange_plan &a, T *place, T &v) {
  uint64_t since = 0;
  for (uint32_t n_waits = 1; !has_come(v); n_waits++) {
    if (n_waits % EXCHANGE_WAITS == 0 && exchange_gives_up(a.broken, &since)) return false;
    take(place, v);
  }
  *place = empty_place<T>();
  return true;
}

/* What shard s gave for the items. False: it will not come. */
template <class T, uint32_t WAY, uint32_t N>
static __device__ __forceinline__ bool take_from(const exchange_plan &a, uint64_t turn, uint32_t s, const item (&at)[N],
                                                 T (&v)[N]) {
  uint32_t k[N];
  bool is[N];
#pragma unroll
  for (uint32_t b = 0; b < N; b++) {
    k[b] = at[b].own;
    is[b] = WAY == WEFT_SHARDS_ROWS ? find_item<WAY>(a, at[b], s, &k[b]) : at[b].has_own;
    if (is[b]) take(inbox_of<T>(a, a.from[s] + turn, at[b], k[b]), v[b]);
  }
#pragma unroll
  for (uint32_t b = 0; b < N; b++) {
    if (!is[b]) continue;
    if (!wait_for(a, inbox_of<T>(a, a.from[s] + turn, at[b], k[b]), v[b])) return false;
    if (has_y<WAY>) *y_of<T>(a, at[b], k[b], s) = v[b];
    if (WAY == WEFT_SHARDS_ROWS) *x_of<T>(a, at[b], k[b]) = v[b];
  }
  return true;
}

/* The sums of the parts that have come, in registers: those that wait to be added, the newest first. LEVELS 1 is for
 * two shards, whose parts are added as they come. */
template <class T, uint32_t N, uint32_t LEVELS>
struct pending_sums {
  T sum[LEVELS][N];

  __device__ __forceinline__ void take(const T (&v)[N], uint32_t s, uint32_t n_closes) {
    if (LEVELS == 1 && s > 0) {
#pragma unroll
      for (uint32_t b = 0; b < N; b++) add_to(sum[0][b], v[b]);
      return;
    }
#pragma unroll
    for (uint32_t l = LEVELS - 1; l > 0; l--)
#pragma unroll
      for (uint32_t b = 0; b < N; b++) sum[l][b] = sum[l - 1][b];
#pragma unroll
    for (uint32_t b = 0; b < N; b++) sum[0][b] = v[b];
    for (uint32_t i = 0; i < n_closes && LEVELS > 1; i++) close();
  }
  __device__ __forceinline__ void close() {
    constexpr uint32_t left = LEVELS > 1 ? 1 : 0;
#pragma unroll
    for (uint32_t b = 0; b < N; b++) {
      add_to(sum[left][b], sum[0][b]);
#pragma unroll
      for (uint32_t l = 0; l + 1 < LEVELS; l++) sum[l][b] = sum[l + 1][b];
    }
  }
};

template <class T, uint32_t WAY, uint32_t N, uint32_t LEVELS>
static __device__ __forceinline__ bool take_items(const exchange_plan &a, uint64_t turn, const item (&at)[N],
                                                  const T (&own)[N]) {
  pending_sums<T, N, LEVELS> pending;
  for (uint32_t s = 0; s < a.n; s++) {
    T v[N];
    if (s == a.at) {
#pragma unroll
      for (uint32_t b = 0; b < N && adds<WAY>; b++)
        v[b] = N == 1 ? own[b] : own_of<T>(a, at[b]); /* read twice: fewer registers */
    } else if (!take_from<T, WAY, N>(a, turn, s, at, v)) {
      return false;
    }
    if (adds<WAY>) pending.take(v, s, a.closes[s]);
  }
  if (WAY == WEFT_SHARDS_SUM && a.is_meeting != 0) __threadfence_system();
#pragma unroll
  for (uint32_t b = 0; b < N && adds<WAY>; b++)
    if (at[b].has_own) *x_of<T>(a, at[b], at[b].own) = pending.sum[0][b];
  return true;
}

template <class T, uint32_t WAY, uint32_t N>
static __device__ __forceinline__ void read_items(const exchange_plan &a, uint32_t base, item (&at)[N], T (&own)[N]) {
#pragma unroll
  for (uint32_t b = 0; b < N; b++) {
    at[b] = item_of<WAY>(a, base + b * EXCHANGE_THREADS + threadIdx.x);
    own[b] = own_of<T>(a, at[b]);
  }
}

/* Every block has items. The first ones are read while the count of exchanges is in flight. */
template <class T, uint32_t WAY, uint32_t N, uint32_t LEVELS>
static __global__ void __launch_bounds__(EXCHANGE_THREADS, blocks_of(N, LEVELS))
    exchange_kernel(const __grid_constant__ exchange_plan a) {
  item at[N];
  T own[N];
  uint32_t base = blockIdx.x * EXCHANGE_THREADS * N;
  launch_dependents_and_wait();
  read_items<T, WAY, N>(a, base, at, own);
  uint32_t n_exchanges = *(const volatile uint32_t *)&a.state->n_exchanges;
  uint64_t turn = n_exchanges % SHARDS_EXCHANGE_INBOXES * a.turn_floats;
  for (bool knows = false;; knows = true) {
    if (WAY == WEFT_SHARDS_SUM && a.is_meeting != 0) __threadfence_system();
#pragma unroll
    for (uint32_t b = 0; b < N; b++) give_item<T, WAY>(a, turn, at[b], own[b]);
    if (!knows) count_read(a.state, n_exchanges);
    if (!take_items<T, WAY, N, LEVELS>(a, turn, at, own)) return;
    base += gridDim.x * EXCHANGE_THREADS * N;
    if (base >= a.n_items) return;
    read_items<T, WAY, N>(a, base, at, own);
  }
}

/* ---- start ---- */

/* i / n is i * factor >> shift for i below 2^31: factor n is 2^shift and less than n more, and n is 2^(shift - 31) at
 * most. */
static void divide_by(uint32_t n, uint32_t *factor, uint32_t *shift) {
  *shift = 31;
  while (((uint64_t)1 << (*shift - 31)) < n) *shift += 1;
  *factor = (uint32_t)((((uint64_t)1 << *shift) + n - 1) / n);
}

/* words: of an item. */
static void plan_array(const shards_exchange *args, uint32_t i, uint32_t words, exchange_array *out) {
  const weft_shards_array *of = &args->array[i];
  uint32_t n_rows = 0;
  for (uint32_t s = 0; s < args->n; s++) {
    uint32_t n = args->row[s + 1] - args->row[s];
    if (n > n_rows) n_rows = n;
  }
  out->x = of->x;
  out->y = of->y;
  out->inbox_at = args->array_at[i];
  out->n_cols = of->n_cols / words;
  out->n_items = (uint32_t)((uint64_t)(shards_exchange_is_whole(args) ? args->n_rows : n_rows) * of->n_cols / words);
  if (of->y != NULL) divide_by(out->n_cols, &out->factor, &out->shift);
}

static exchange_plan plan_exchange(const shards_exchange *args, uint32_t words) {
  exchange_plan a;
  memset(&a, 0, sizeof a);
  for (uint32_t i = 0; i < args->n_arrays; i++) plan_array(args, i, words, &a.array[i]);
  for (uint32_t i = 0; i < args->n_arrays; i++) a.n_items += a.array[i].n_items;
  for (uint32_t s = 0; s < args->n; s++) {
    if (s == args->at) continue;
    a.to[s] = shards_exchange_inbox(args, s, args->at, 0);
    a.from[s] = shards_exchange_inbox(args, args->at, s, 0);
  }
  a.turn_floats = (args->n - 1) * args->inbox_floats;
  a.state = args->state;
  a.broken = args->broken;
  memcpy(a.row, args->row, sizeof a.row);
  for (uint32_t s = 0; s < args->n; s++) a.closes[s] = (uint8_t)weft_shards_closes(args->n, s);
  a.n = args->n;
  a.at = args->at;
  a.is_meeting = args->is_meeting;
  return a;
}

template <class T, uint32_t WAY, uint32_t N, uint32_t LEVELS>
static void start_kernel(cuda_device *d, const exchange_plan &a) {
  uint32_t most = blocks_of(N, LEVELS) * d->n_multiprocessors, n_blocks = cuda_ceil(a.n_items, EXCHANGE_THREADS * N);
  cuda_start(d, exchange_kernel<T, WAY, N, LEVELS>, n_blocks < most ? n_blocks : most, EXCHANGE_THREADS, 0, a);
}

/* N: the items that a thread has at once where it has many. */
template <class T, uint32_t WAY, uint32_t N, uint32_t LEVELS>
static void start_levels(cuda_device *d, const exchange_plan &a) {
  if (a.n_items <= blocks_of(1, LEVELS) * d->n_multiprocessors * EXCHANGE_THREADS)
    start_kernel<T, WAY, 1, LEVELS>(d, a);
  else
    start_kernel<T, WAY, N, LEVELS>(d, a);
}

/* Only where more than two parts are added do sums wait for others. */
template <class T, uint32_t WAY>
static void start_way(cuda_device *d, const exchange_plan &a) {
  if constexpr (adds<WAY>) {
    if (a.n > 2) return start_levels<T, WAY, MANY_SUMS, PENDING>(d, a);
  }
  start_levels<T, WAY, MANY, 1>(d, a);
}

template <class T>
static void start_exchange(cuda_device *d, const shards_exchange *args) {
  exchange_plan a = plan_exchange(args, words_of<T>);
  switch (args->way) {
    case WEFT_SHARDS_SUM:
      return start_way<T, WEFT_SHARDS_SUM>(d, a);
    case WEFT_SHARDS_SUM_OWN:
      return start_way<T, WEFT_SHARDS_SUM_OWN>(d, a);
    case WEFT_SHARDS_ROWS:
      return start_way<T, WEFT_SHARDS_ROWS>(d, a);
    case WEFT_SHARDS_COLUMNS:
      return start_way<T, WEFT_SHARDS_COLUMNS>(d, a);
    default:
      return start_way<T, WEFT_SHARDS_COLUMNS_OWN>(d, a);
  }
}

/* Whether items may be four numbers: whole rows are, or all that is given where it has no rows. */
static bool fits_fours(const shards_exchange *args) {
  bool fits = true;
  for (uint32_t i = 0; i < args->n_arrays; i++) {
    const weft_shards_array *of = &args->array[i];
    uint64_t n = args->way == WEFT_SHARDS_SUM ? (uint64_t)args->n_rows * of->n_cols : of->n_cols;
    fits = fits && n % 4 == 0 && (((uintptr_t)of->x | (uintptr_t)of->y) & 15u) == 0;
  }
  return fits;
}

weft_status cuda_exchange(weft_device *device, const shards_exchange *args) {
  cuda_device *d = cuda_of(device);
  if (d->lost) return WEFT_E_DEVICE;
  if (fits_fours(args))
    start_exchange<four>(d, args);
  else
    start_exchange<one>(d, args);
  return cuda_launched(d, "an exchange between shards");
}
