/* SPDX-License-Identifier: MIT */
/* Experts in host memory that a processor computes, beside those that the link brings.
 *
 * Law: with products of 8 bits the processor gives the bits of the card (kernels/cpu/card_products.h), so who computes
 * an expert is chosen by time alone (kernels/host_share.h), by the card, behind the choice of experts. The processor
 * makes the products alone; what is rounded otherwise, the gate and the rows of down, the card makes. A call's share
 * goes by a stream of its own:
 *
 *   list         the main stream: experts, their slots, in device memory and in the desk, which is pinned
 *   stage        rows of the share, quantised, to the desk
 *   gate and up  a host function: sums to the desk
 *   gate         act(g) * u, quantised, to the desk
 *   down         a host function: sums to the desk
 *   finish       the main stream waits, and puts results at the places of their pairs, before ranks are summed
 *
 * Host functions are nodes of graphs, as kernels are; they read what the card has listed, call nothing of CUDA, and
 * return whatever happens. They tell how long products took beside what was expected (host_list.factor), so the next
 * share is by what the processor gives, be it busy or not. */
#include "kernels/cuda/moe/host_products.h"

#include <pthread.h>
#include <sched.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "kernels/cpu/card_products.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/gemm/gemv.cuh"
#include "kernels/cuda/gemm/w8a8.cuh"
#include "kernels/cuda/moe/limited_gate.cuh"
#include "kernels/cuda/weights/int8_weights.h"
#include "kernels/parts.h"

enum { BEGIN = 250 /* microseconds, until measured: kernels and host functions around products */ };
enum { FINISH_THREADS = 256, TASK_TILES = 2 };
static const float FACTOR_LEAST = 0.25f; /* to which calls without a share forget it: a core of 32 GB/s */

/* Numbers and scales of rows, and results, in slots. */
typedef struct desk_side {
  int8_t *numbers; /* [DESK_PAIRS][spans][256] */
  float *scales;   /* [DESK_PAIRS][spans] */
  float *sums;     /* [DESK_PAIRS][n_sums] */
} desk_side;

struct host_desk {
  bool has_pool;
  card_tile_fn tile;
  cudaStream_t stream;
  cudaEvent_t begins, done;
  host_list *list;   /* pinned */
  desk_slots *slots; /* device */
  uint32_t *taken;   /* device [mats_max] */
  desk_side in, down;
  uint32_t spans_max, out_max, mats_max; /* what there is room for: spans of a row, sums of a slot */
  uint32_t n_sums;                       /* of down, in the call whose share is on its way */
  float link_bytes;                      /* over the link in a microsecond, as copies of weights were */
  bool is_off;                           /* opening it has failed once */
  bool runs;                             /* a call's share is on its way */
  desk_results few;                      /* what host_products_await has waited for */
  uint64_t n_computed;                   /* weft_experts_report.n_tokens_computed */
  uint32_t n_threads;
  uint32_t n_running; /* host functions at work: they read weights and the desk */
  uint64_t in_ended;  /* when gate and up did, by weft_clock_us */
};

static host_desk *desk_of(const cuda_device *d) {
  return d->cache == NULL ? NULL : d->cache->desk;
}

/* The products with one or two weights of one shape, of the experts of a list. */
typedef struct desk_product {
  host_desk *desk;
  card_matrix matrix[2];               /* of expert 0 */
  uint64_t tiles_bytes, steps_bytes;   /* of a matrix */
  uint32_t n_weights, n_tiles, n_sums; /* tiles of each weight; sums of a slot */
  const desk_side *side;
  float expected; /* microseconds of an expert; of a row */
  float expected_row;
  bool is_down;
} desk_product;

/* What host functions are given: it lives as long as the weight of down. */
typedef struct desk_job {
  desk_product in, down;
} desk_job;

/* ---- threads: those of all desks of the module, one product after another ---------------------------------- */

static pthread_mutex_t pool_lock = PTHREAD_MUTEX_INITIALIZER;
static weft_thread_pool *pool;
static uint32_t n_pool_users;

/* One core stays for the thread that runs steps, and one for all else. */
static bool take_pool(void) {
  const uint32_t n_cores = weft_thread_pool_cores();
  weft_error error;
  (void)pthread_mutex_lock(&pool_lock);
  bool is_there = n_pool_users > 0 || (n_cores >= 4 && weft_thread_pool_open(n_cores - 2, &pool, &error) == WEFT_OK);
  if (is_there) n_pool_users += 1;
  (void)pthread_mutex_unlock(&pool_lock);
  return is_there;
}

static void give_pool(void) {
  (void)pthread_mutex_lock(&pool_lock);
  if (--n_pool_users == 0) weft_thread_pool_close(pool), pool = NULL;
  (void)pthread_mutex_unlock(&pool_lock);
}

static void run_pool(weft_thread_pool_fn fn, void *arg, uint32_t n_tasks) {
  (void)pthread_mutex_lock(&pool_lock);
  weft_thread_pool_run(pool, fn, arg, n_tasks);
  (void)pthread_mutex_unlock(&pool_lock);
}

/* ---- the card's side ---------------------------------------------------------------------------------------- */

typedef struct stage_args {
  const desk_slots *slots;
  const float *x; /* f32; or rows as w8a8.h says, in tiles */
  uint64_t x_stride;
  uint32_t n_in, n_spans, k, from_tiles; /* from_tiles 0: f32 */
  bool by_nibbles;
  desk_side to;
} stage_args;

/* Eight numbers of a lane to their place in the desk's order. */
static __device__ __forceinline__ void put_numbers(int8_t *span, uint2 v, bool by_nibbles) {
  const uint32_t lane = threadIdx.x % 32;
  if (!by_nibbles) {
    *(uint2 *)(void *)(span + 8 * lane) = v;
    return;
  }
  uint32_t *to = (uint32_t *)(void *)(span + lane / 16 * 128 + lane % 16 * 4);
  to[0] = __byte_perm(v.x, v.y, 0x5140);
  to[16] = __byte_perm(v.x, v.y, 0x7362);
}

/* A lane has eight numbers of a span in f32. */
static __device__ __forceinline__ void put_span(const desk_side &to, uint64_t at, const float (&v)[8],
                                                bool by_nibbles) {
  float inverse, scale = w8a8_scale(__reduce_max_sync(0xFFFFFFFFu, chunk_max(v)), &inverse);
  put_numbers(to.numbers + at * W8A8_SPAN, make_uint2(w8a8_bytes(v, inverse), w8a8_bytes(v + 4, inverse)), by_nibbles);
  if (threadIdx.x % 32 == 0) to.scales[at] = scale;
}

/* A warp has a span of a slot. Blocks of one warp with few registers and no shared memory have room on a
 * multiprocessor beside those of any other kernel: the processor waits for them. */
static __global__ void __maxnreg__(32) stage_kernel(const __grid_constant__ stage_args a) {
  const uint32_t n_tasks = a.slots->n * a.n_spans, lane = threadIdx.x;
  for (uint32_t at = blockIdx.x; at < n_tasks; at += gridDim.x) {
    const uint32_t slot = at / a.n_spans, span = at - slot * a.n_spans, row = (uint32_t)a.slots->pair[slot] / a.k;
    if (a.from_tiles == 0) {
      float v[8];
      load_raw(a.x + row * a.x_stride, 32 * span + lane, a.n_in, v);
      put_span(a.to, at, v, a.by_nibbles);
      continue;
    }
    const uint8_t *from = (const uint8_t *)(const void *)a.x;
    const uint32_t unit = 2 * span + lane / 16, c = lane % 16 / 4, i = lane % 4;
    uint2 v;
    v.x = *(const uint32_t *)(const void *)(from + w8a8_at(a.from_tiles, unit, row, 2 * i) + 4 * c);
    v.y = *(const uint32_t *)(const void *)(from + w8a8_at(a.from_tiles, unit, row, 2 * i + 1) + 4 * c);
    put_numbers(a.to.numbers + (uint64_t)at * W8A8_SPAN, v, a.by_nibbles);
    const float *scales = (const float *)(const void *)(from + w8a8_scales_at(a.n_spans, a.from_tiles));
    if (lane == 0) a.to.scales[at] = scales[(uint64_t)span * a.from_tiles * 8 + row];
  }
}

typedef struct gate_args {
  const desk_slots *slots;
  desk_side from, to;
  const float *gate_scale, *up_scale; /* of matrices; NULL: ones */
  uint32_t n_ff, n_spans, n_sums, up_at;
  bool by_nibbles;
  weft_activation activation;
  float limit;
} gate_args;

static __global__ void __maxnreg__(32) desk_gate_kernel(const __grid_constant__ gate_args a) {
  const uint32_t n_tasks = a.slots->n * a.n_spans, lane = threadIdx.x;
  for (uint32_t at = blockIdx.x; at < n_tasks; at += gridDim.x) {
    const uint32_t slot = at / a.n_spans, chunk = 32 * (at - slot * a.n_spans) + lane;
    const int32_t expert = a.slots->expert[slot];
    const float g_scale = a.gate_scale == NULL ? 1.0f : a.gate_scale[expert],
                u_scale = a.up_scale == NULL ? 1.0f : a.up_scale[expert];
    const float *sums = a.from.sums + (uint64_t)slot * a.n_sums;
    float u[8], v[8];
    load_raw(sums, chunk, a.n_ff, v);
    load_raw(sums + a.up_at, chunk, a.n_ff, u);
#pragma unroll
    for (int e = 0; e < 8; e++)
      v[e] = 8 * chunk < a.n_ff
                 ? limited_gate(a.activation, a.limit, __fmul_rn(v[e], g_scale), __fmul_rn(u[e], u_scale))
                 : 0.0f;
    put_span(a.to, at, v, a.by_nibbles);
  }
}

typedef struct finish_args {
  const desk_slots *slots;
  const float *sums, *scale;
  const int32_t *pair_at;
  __nv_bfloat16 *down;
  uint32_t n_out, n_sums;
} finish_args;

static __global__ void __launch_bounds__(FINISH_THREADS) desk_finish_kernel(const __grid_constant__ finish_args a) {
  if (blockIdx.x >= a.slots->n) return;
  const int32_t expert = a.slots->expert[blockIdx.x], place = a.pair_at[a.slots->pair[blockIdx.x]];
  const float scale = a.scale == NULL ? 1.0f : a.scale[expert];
  const float *from = a.sums + (uint64_t)blockIdx.x * a.n_sums;
  for (uint32_t i = threadIdx.x; i < a.n_out; i += FINISH_THREADS)
    a.down[(uint64_t)place * a.n_out + i] = __float2bfloat16_rn(__fmul_rn(__ldcg(from + i), scale));
}

/* ---- the processor's side ----------------------------------------------------------------------------------- */

/* A task: TASK_TILES row tiles of a weight, for the rows of an expert. */
static void run_task(void *arg, uint32_t task, uint32_t thread) {
  const desk_product *p = (const desk_product *)arg;
  const uint32_t per = cuda_ceil(p->n_tiles, TASK_TILES), weight = task / per % p->n_weights;
  const desk_expert *of = &p->desk->list->expert[task / per / p->n_weights];
  const uint32_t n_spans = cuda_ceil(p->matrix[0].n_in, CARD_SPAN), first = task % per * TASK_TILES;
  card_matrix matrix = p->matrix[weight];
  matrix.tiles += of->expert * p->tiles_bytes;
  matrix.steps += of->expert * p->steps_bytes;
  const card_rows rows = {p->side->numbers + (uint64_t)of->first * n_spans * CARD_SPAN,
                          p->side->scales + (uint64_t)of->first * n_spans, of->n};
  float *sums = p->side->sums + (uint64_t)of->first * p->n_sums + weight * p->n_tiles * CARD_TILE;
  (void)thread;
  for (uint32_t tile = first; tile < p->n_tiles && tile < first + TASK_TILES; tile++)
    p->desk->tile(&matrix, tile, &rows, sums + tile * CARD_TILE, p->n_sums);
}

static void multiply_share(desk_product *p) {
  host_list *list = p->desk->list;
  const uint32_t n = list->n_experts < DESK_EXPERTS ? list->n_experts : (uint32_t)DESK_EXPERTS;
  if (n == 0) { /* what was measured is forgotten slowly, so that a share is tried again */
    if (list->factor > FACTOR_LEAST) list->factor *= 0.995f;
    list->begin += 0.005f * ((float)BEGIN - list->begin);
    return;
  }
  const uint64_t began = weft_clock_us();
  run_pool(run_task, p, n * p->n_weights * cuda_ceil(p->n_tiles, TASK_TILES));
  const float took = (float)(weft_clock_us() - began),
              expected = p->expected * (float)n + p->expected_row * (float)list->n_slots;
  __atomic_fetch_add(&p->desk->n_computed, (uint64_t)list->n_slots * p->n_weights, __ATOMIC_RELAXED);
  list->factor += 0.1f * (took / expected - list->factor);
  if (p->is_down) list->begin += 0.1f * (2.0f * (float)(began - p->desk->in_ended) - list->begin);
  p->desk->in_ended = weft_clock_us();
}

static void CUDART_CB run_product(void *arg) {
  desk_product *p = (desk_product *)arg;
  host_desk *desk = p->desk;
  __atomic_fetch_add(&desk->n_running, 1, __ATOMIC_ACQUIRE);
  multiply_share(p);
  __atomic_fetch_sub(&desk->n_running, 1, __ATOMIC_RELEASE);
}

/* A wait for the stream of a device that is lost ends at once, and calls no further function. */
void host_products_rest(const cuda_device *d) {
  const host_desk *desk = desk_of(d);
  while (desk != NULL && __atomic_load_n(&desk->n_running, __ATOMIC_ACQUIRE) > 0) (void)sched_yield();
}

/* ---- opening ------------------------------------------------------------------------------------------------- */

static void free_side(desk_side *side) {
  if (side->numbers != NULL) (void)cudaFreeHost(side->numbers);
  memset(side, 0, sizeof *side);
}

/* One piece of pinned memory for the three parts. */
static weft_status open_side(cuda_device *d, const host_desk *desk, desk_side *side) {
  const uint64_t numbers = (uint64_t)DESK_PAIRS * desk->spans_max * W8A8_SPAN,
                 scales = 4ull * DESK_PAIRS * desk->spans_max, sums = 4ull * DESK_PAIRS * desk->out_max;
  uint8_t *memory = NULL;
  cudaError_t error = cudaHostAlloc((void **)&memory, numbers + scales + sums, cudaHostAllocMapped);
  if (error != cudaSuccess) return cuda_judge(d, error, "a desk for the processor");
  memset(memory, 0, numbers + scales + sums);
  *side = {(int8_t *)memory, (float *)(void *)(memory + numbers), (float *)(void *)(memory + numbers + scales)};
  return WEFT_OK;
}

static weft_status open_desk(cuda_device *d, host_desk *desk) {
  const char *isa;
  desk->tile = card_products_find(&isa);
  desk->has_pool = strcmp(isa, "portable") != 0 && take_pool();
  desk->is_off = !desk->has_pool;
  if (desk->is_off) return WEFT_OK;
  desk->n_threads = weft_thread_pool_size(pool);
  int last = 0, first = 0; /* priorities */
  (void)cudaDeviceGetStreamPriorityRange(&last, &first);
  weft_status status =
      cuda_judge(d, cudaStreamCreateWithPriority(&desk->stream, cudaStreamNonBlocking, first), "making a stream");
  for (cudaEvent_t *event : {&desk->begins, &desk->done})
    if (status == WEFT_OK)
      status = cuda_judge(d, cudaEventCreateWithFlags(event, cudaEventDisableTiming), "making an event");
  if (status == WEFT_OK)
    status = cuda_judge(d, cudaHostAlloc((void **)&desk->list, sizeof *desk->list, cudaHostAllocMapped), "a list");
  if (status == WEFT_OK) status = cuda_alloc(d, sizeof *desk->slots, (void **)&desk->slots, "a list of slots");
  if (status == WEFT_OK)
    memset(desk->list, 0, sizeof *desk->list), desk->list->factor = 1.0f, desk->list->begin = BEGIN;
  return status;
}

/* Graphs name the memory of before, and work on its way may read it. */
static weft_status grow_desk(cuda_device *d, host_desk *desk, uint32_t n_spans, uint32_t n_out, uint32_t n_mats) {
  weft_status status = cuda_judge(d, cudaStreamSynchronize(d->stream), "the work before");
  if (status != WEFT_OK) return status;
  if (d->base.graphs != NULL) step_graphs_drop(d->base.graphs);
  free_side(&desk->in);
  free_side(&desk->down);
  if (desk->taken != NULL) (void)cudaFree(desk->taken);
  desk->taken = NULL;
  if (n_spans > desk->spans_max) desk->spans_max = n_spans;
  if (n_out > desk->out_max) desk->out_max = n_out;
  if (n_mats > desk->mats_max) desk->mats_max = n_mats;
  status = cuda_alloc(d, 4ull * desk->mats_max, (void **)&desk->taken, "experts of the processor");
  if (status == WEFT_OK) status = open_side(d, desk, &desk->in);
  return status == WEFT_OK ? open_side(d, desk, &desk->down) : status;
}

weft_status host_desk_grow(cuda_device *d, const weft_weight *weight) {
  const uint32_t n_spans = cuda_ceil(weight->n_in, W8A8_SPAN),
                 n_out = 2 * cuda_ceil(weight->n_out, CARD_TILE) * CARD_TILE;
  if (!w8a8_has(weight->layout)) return WEFT_OK;
  if (d->cache->desk == NULL) d->cache->desk = (host_desk *)weft_alloc(1, sizeof(host_desk));
  host_desk *desk = d->cache->desk;
  if (desk == NULL) return WEFT_E_NO_MEMORY;
  weft_status status = desk->has_pool || desk->is_off ? WEFT_OK : open_desk(d, desk);
  if (status == WEFT_OK && !desk->is_off &&
      (n_spans > desk->spans_max || n_out > desk->out_max || weight->n_mats > desk->mats_max))
    status = grow_desk(d, desk, n_spans, n_out, weight->n_mats);
  if (status != WEFT_E_NO_MEMORY) return status;
  desk->is_off = true; /* the link brings all of them, and pinned memory is for experts */
  free_side(&desk->in);
  free_side(&desk->down);
  return WEFT_OK;
}

void host_desk_close(cuda_device *d) {
  host_desk *desk = desk_of(d);
  if (desk == NULL) return;
  if (desk->stream != NULL) (void)cudaStreamSynchronize(desk->stream);
  host_products_rest(d);
  free_side(&desk->in);
  free_side(&desk->down);
  if (desk->list != NULL) (void)cudaFreeHost(desk->list);
  if (desk->slots != NULL) (void)cudaFree(desk->slots);
  if (desk->taken != NULL) (void)cudaFree(desk->taken);
  if (desk->begins != NULL) (void)cudaEventDestroy(desk->begins);
  if (desk->done != NULL) (void)cudaEventDestroy(desk->done);
  if (desk->stream != NULL) (void)cudaStreamDestroy(desk->stream);
  if (desk->has_pool) give_pool();
  weft_free(desk);
  d->cache->desk = NULL;
}

void host_desk_hear_link(cuda_device *d, uint64_t n_bytes, uint64_t us) {
  host_desk *desk = desk_of(d);
  const float rate = us == 0 ? 0.0f : (float)n_bytes / (float)us;
  if (desk != NULL && rate > desk->link_bytes) desk->link_bytes = rate;
}

void host_products_report(const cuda_experts_cache *cache, weft_experts_report *out) {
  const host_desk *desk = cache->desk;
  if (desk == NULL || desk->is_off) return;
  out->n_threads = desk->n_threads;
  out->n_tokens_computed = __atomic_load_n(&desk->n_computed, __ATOMIC_RELAXED);
}

/* ---- a call -------------------------------------------------------------------------------------------------- */

static bool is_plain(const weft_experts_args *args) {
  return args->gate_bias == NULL && args->down_bias == NULL && args->activation != WEFT_CLAMPED_SILU;
}

/* What a core does in a microsecond: so many bytes of codes become integers, so many of these are multiplied. It is
 * what the factor corrects. */
static void expect_times(const host_desk *desk, desk_product *p, uint64_t n_bytes, uint64_t n_numbers) {
  const float n_threads = (float)desk->n_threads;
  p->expected = (float)n_bytes / (8e3f * n_threads);
  p->expected_row = (float)n_numbers / (150e3f * n_threads);
}

static void set_product(host_desk *desk, const weft_weight *const weight[2], const cuda_kept_experts *const kept[2],
                        uint32_t n_weights, const desk_side *side, desk_product *out) {
  const cuda_matrix_parts *parts = &kept[0]->parts;
  memset(out, 0, sizeof *out);
  out->desk = desk;
  out->n_weights = n_weights;
  out->tiles_bytes = parts->n_bytes[0];
  out->steps_bytes = parts->n_bytes[1];
  for (uint32_t i = 0; i < n_weights; i++) {
    const uint8_t *data = (const uint8_t *)kept[i]->data;
    out->matrix[i] = {weight[i]->type, weight[i]->n_in, data + kept[i]->parts.at[0], data + kept[i]->parts.at[1]};
  }
  out->n_tiles = cuda_ceil(weight[0]->n_out, CARD_TILE);
  out->n_sums = n_weights * out->n_tiles * CARD_TILE;
  out->side = side;
  expect_times(desk, out, n_weights * (parts->n_bytes[0] + parts->n_bytes[1]),
               (uint64_t)n_weights * weight[0]->n_out * weight[0]->n_in);
}

/* The job of a call's weights. NULL: there is no memory for it, or it is of other weights. It is made once and never
 * written again: a step is enqueued while host functions of the one before it read the job of the same weights. */
static desk_job *job_of(cuda_device *d, const weft_experts_args *args, cuda_kept_experts *const kept[4]) {
  const bool one = args->gate_up != NULL;
  const weft_weight *const in[2] = {one ? args->gate_up : args->gate, args->up}, *const down[2] = {args->down, NULL};
  const cuda_kept_experts *const kept_in[2] = {one ? kept[0] : kept[1], kept[2]}, *const kept_down[2] = {kept[3], NULL};
  desk_job made;
  memset(&made, 0, sizeof made);
  set_product(desk_of(d), in, kept_in, one ? 1 : 2, &desk_of(d)->in, &made.in);
  set_product(desk_of(d), down, kept_down, 1, &desk_of(d)->down, &made.down);
  made.down.is_down = true;
  desk_job *job = (desk_job *)kept[3]->job;
  if (job != NULL) return memcmp(job, &made, sizeof made) == 0 ? job : NULL;
  job = (desk_job *)weft_alloc(1, sizeof *job);
  if (job != NULL) memcpy(job, &made, sizeof made);
  kept[3]->job = job;
  return job;
}

bool host_products_take(cuda_device *d, const weft_experts_args *args, cuda_kept_experts *const kept[4], bool is_few,
                        desk_args *out) {
  host_desk *desk = desk_of(d);
  memset(out, 0, sizeof *out);
  if (desk == NULL || desk->is_off || desk->taken == NULL || desk->link_bytes == 0.0f || !is_plain(args)) return false;
  const weft_weight *const weight[4] = {args->gate_up, args->gate, args->up, args->down};
  uint64_t n_bytes = 0;
  for (uint32_t i = 0; i < 4; i++) {
    if (weight[i] == NULL) continue;
    if (kept[i] == NULL || weight[i]->layout != W8A8_LAYOUT || !card_products_take(weight[i]->type)) return false;
    n_bytes += kept[i]->parts.n_bytes[0] + kept[i]->parts.n_bytes[1];
  }
  if (args->gate_up != NULL ? args->down->n_in % CARD_TILE != 0 : args->gate->type != args->up->type) return false;
  if (args->down->n_in % 8 != 0 || args->down->n_out % 8 != 0) return false;
  if (args->x_form != CUDA_ROWS_W8A8 && !gemm_is_wide(args->x, args->x_stride)) return false;
  const float link = (float)n_bytes / desk->link_bytes;
  if (is_few && link < 2.0f * desk->list->begin) return false;
  const desk_job *job = job_of(d, args, kept);
  if (job == NULL) return false;
  *out = {desk->list,
          desk->slots,
          desk->taken,
          {link, job->in.expected + job->down.expected, job->in.expected_row + job->down.expected_row, 0.0f, CARD_ROWS,
           DESK_PAIRS}};
  return true;
}

const uint32_t *host_products_taken(const cuda_device *d) {
  const host_desk *desk = desk_of(d);
  return desk != NULL && desk->runs ? desk->taken : NULL;
}

void host_products_none(cuda_device *d) {
  host_desk *desk = desk_of(d);
  if (desk != NULL) desk->runs = false, desk->few.slot_of = NULL;
}

weft_status host_products_await(cuda_device *d) {
  host_desk *desk = desk_of(d);
  if (desk == NULL || !desk->runs) return WEFT_OK;
  desk->runs = false;
  desk->few = {desk->slots->slot_of, desk->down.sums, desk->n_sums};
  d->fresh = true;
  return cuda_judge(d, cudaStreamWaitEvent(d->stream, desk->done, 0), "the processor's products");
}

desk_results host_products_results(cuda_device *d) {
  desk_results none = {NULL, NULL, 0};
  host_desk *desk = desk_of(d);
  if (desk == NULL) return none;
  const desk_results results = desk->few;
  desk->few = none;
  return results;
}

static stage_args stage_of(const cuda_device *d, const weft_experts_args *args) {
  const weft_weight *in = args->gate_up != NULL ? args->gate_up : args->gate;
  stage_args a;
  memset(&a, 0, sizeof a);
  a.slots = desk_of(d)->slots;
  a.x = args->x;
  a.x_stride = args->x_stride;
  a.n_in = in->n_in;
  a.n_spans = cuda_ceil(in->n_in, W8A8_SPAN);
  a.k = args->k;
  a.from_tiles = args->x_form == CUDA_ROWS_W8A8 ? cuda_ceil(args->n_rows, 8) : 0;
  a.by_nibbles = card_products_by_nibbles(in->type);
  a.to = desk_of(d)->in;
  return a;
}

static gate_args gate_of(const cuda_device *d, const weft_experts_args *args, const desk_job *job) {
  const host_desk *desk = desk_of(d);
  gate_args a;
  memset(&a, 0, sizeof a);
  a.slots = desk->slots;
  a.from = desk->in;
  a.to = desk->down;
  a.gate_scale = args->gate_up != NULL ? args->gate_up->scale : args->gate->scale;
  a.up_scale = args->gate_up != NULL ? args->gate_up->scale : args->up->scale;
  a.n_ff = args->down->n_in;
  a.n_spans = cuda_ceil(a.n_ff, W8A8_SPAN);
  a.n_sums = job->in.n_sums;
  a.up_at = args->gate_up != NULL ? a.n_ff : job->in.n_tiles * CARD_TILE;
  a.by_nibbles = card_products_by_nibbles(args->down->type);
  a.activation = args->activation;
  a.limit = args->limit;
  return a;
}

weft_status host_products_start(cuda_device *d, const weft_experts_args *args, cuda_kept_experts *const kept[4]) {
  host_desk *desk = desk_of(d);
  desk_job *job = (desk_job *)kept[3]->job;
  const uint32_t n_blocks = d->n_multiprocessors;
  weft_status status = cuda_judge(d, cudaEventRecord(desk->begins, d->stream), "an event");
  if (status == WEFT_OK)
    status = cuda_judge(d, cudaStreamWaitEvent(desk->stream, desk->begins, 0), "a processor's wait");
  if (status != WEFT_OK) return status;
  stage_kernel<<<n_blocks, 32, 0, desk->stream>>>(stage_of(d, args));
  status = cuda_launched(d, "rows for the processor");
  if (status == WEFT_OK) status = cuda_judge(d, cudaLaunchHostFunc(desk->stream, run_product, &job->in), "gate and up");
  if (status != WEFT_OK) return status;
  desk_gate_kernel<<<n_blocks, 32, 0, desk->stream>>>(gate_of(d, args, job));
  status = cuda_launched(d, "the gate of the processor's rows");
  if (status == WEFT_OK) status = cuda_judge(d, cudaLaunchHostFunc(desk->stream, run_product, &job->down), "down");
  if (status == WEFT_OK) status = cuda_judge(d, cudaEventRecord(desk->done, desk->stream), "an event");
  desk->runs = status == WEFT_OK;
  desk->n_sums = job->down.n_sums;
  d->fresh = true;
  return status;
}

weft_status host_products_finish(cuda_device *d, const weft_experts_args *args, const int32_t *pair_at, void *down) {
  host_desk *desk = desk_of(d);
  if (desk == NULL || !desk->runs) return WEFT_OK;
  desk->runs = false;
  weft_status status = cuda_judge(d, cudaStreamWaitEvent(d->stream, desk->done, 0), "the processor's products");
  if (status != WEFT_OK) return status;
  const uint64_t n_pairs = (uint64_t)args->n_rows * args->k;
  const finish_args a = {desk->slots,           desk->down.sums,   args->down->scale, pair_at,
                         (__nv_bfloat16 *)down, args->down->n_out, desk->n_sums};
  cuda_start_in_order(d, desk_finish_kernel, n_pairs < DESK_PAIRS ? (uint32_t)n_pairs : (uint32_t)DESK_PAIRS,
                      FINISH_THREADS, 0, a);
  d->fresh = true;
  return cuda_launched(d, "the processor's results");
}
