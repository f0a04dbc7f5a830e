/* SPDX-License-Identifier: MIT */
/* The sum over shards, by which cards write into one another's memory (kernels/shards_sum.h).
 *
 * Law: a thread gives its numbers to all others before it waits for theirs, and all blocks are on the card at once,
 * so no thread waits for one that waits for it. The next kernel comes onto the card when all blocks of this one are
 * there. A number is stored and loaded with the order of the whole system: its word says by itself that it has come,
 * and nothing else is read because of it. What this kernel leaves empty, and the other card fills again, it leaves
 * before it ends. */
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/cuda.h"
#include "kernels/shards_sum.h"

enum { SUM_THREADS = 256, SUM_BLOCKS = 6 /* of a multiprocessor, at once */, SUM_WAITS = 4096 };

typedef struct __align__(16) four {
  uint32_t word[4];
}
four;

static __device__ __forceinline__ void give(float *to, const four &v) {
  asm volatile("st.relaxed.sys.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.word[0]), "r"(v.word[1]),
               "r"(v.word[2]), "r"(v.word[3])
               : "memory");
}

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
    if (i < n_items) give_to_all(a, turn, at, own);
    if (base == blockIdx.x * SUM_THREADS) count_read(a.state, n_sums);
    if (i >= n_items) return;
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
  bool fours = args->n_floats % 4 == 0;
  if (d->lost) return WEFT_E_DEVICE;
  if (args->n_arrays * args->n_floats > INT32_MAX) return WEFT_E_UNSUPPORTED;
  for (uint32_t i = 0; i < args->n_arrays; i++) fours = fours && ((uintptr_t)args->x[i] & 15u) == 0;
  if (fours)
    start_sum<four>(d, args);
  else
    start_sum<one>(d, args);
  return cuda_launched(d, "a sum over shards");
}
