/* SPDX-License-Identifier: MIT */
/* Experts that lie in pinned host memory because the card is full.
 *
 * Law: a call reads them in staging memory of the card, in EXPERT_SLOTS slots that have room for a whole weight each,
 * where every matrix lies as it would on the card; so the bytes are the same, and the results are. They come there in
 * one of two ways, by the numbers of the call and of the places alone (gathers_call):
 *
 *   few rows,   a kernel reads the choice and copies the chosen experts alone, from the host or from their places in
 *   many places the cache (kernels/expert_cache.h), in the order of the main stream. The host knows nothing of the
 *               choice, so a graph has it too. From BESIDE_PAIRS pairs on, what has no place comes over a stream of its
 *               own, gate and up first, beside what is computed until it is needed (cuda_experts_await). With products
 *               of 8 bits a processor computes some of it, where it lies (host_products.cu)
 *   many rows   whole weights come over a stream of their own; kernels/expert_slots.h decides which lies in which slot
 *               and what waits for what
 *
 * Experts of the cache are exchanged between steps, in the order of the main stream, when no copy is on its way. What
 * was counted until then is read without a wait, in memory of the host to which gathers write it. */
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/moe/host_experts.h"
#include "kernels/cuda/moe/host_products.h"
#include "kernels/cuda/weights/packed_layout.cuh"

/* ---- the chosen experts alone ------------------------------------------------------------------------------ */

enum { GATHER_THREADS = 256, GATHER_AT_ONCE = 4, GATHER_BYTES = GATHER_THREADS * GATHER_AT_ONCE * 16 };

typedef struct gather_weight {
  const uint8_t *from, *places; /* from: host memory */
  uint8_t *to;                  /* laid out as `from` */
  const int32_t *place_of;
  uint32_t *n_tokens, *told;
  uint32_t *missing; /* [n_mats]: those of the chosen experts that have no place, then [1] how many */
  cuda_matrix_parts parts;
} gather_weight;

typedef struct gather_args {
  gather_weight weight[4];
  const int32_t *ids;
  uint32_t n_weights, n_pairs, first_expert, n_mats;
  bool places_alone; /* what has no place comes beside (fetch_kernel) */
  bool is_listed;    /* list_missing_kernel has run */
  desk_args desk;    /* the processor's share */
} gather_args;

/* Finds the experts that were chosen: chosen [n], ascending. count: [n_mats], zeros before; then the tokens of each. */
static __device__ __forceinline__ uint32_t find_chosen(const gather_args &a, uint32_t *count, uint32_t *chosen) {
  __shared__ uint32_t n_chosen;
  for (uint32_t p = threadIdx.x; p < a.n_pairs; p += GATHER_THREADS) {
    uint32_t e = (uint32_t)a.ids[p] - a.first_expert;
    if (e < a.n_mats) atomicAdd(&count[e], 1u);
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    uint32_t n = 0;
    for (uint32_t first = 0; first < a.n_mats; first += 32) {
      uint32_t e = first + threadIdx.x;
      uint32_t is = __ballot_sync(0xFFFFFFFFu, e < a.n_mats && count[e] > 0);
      if (is >> threadIdx.x & 1u) chosen[n + __popc(is & ((1u << threadIdx.x) - 1u))] = e;
      n += __popc(is);
    }
    if (threadIdx.x == 0) n_chosen = n;
  }
  __syncthreads();
  return n_chosen;
}

/* Copies up to GATHER_BYTES, a multiple of 16. */
static __device__ __forceinline__ void copy_piece(uint8_t *to, const uint8_t *from, uint32_t n_bytes) {
  uint4 v[GATHER_AT_ONCE];
#pragma unroll
  for (uint32_t i = 0; i < GATHER_AT_ONCE; i++) {
    uint32_t at = 16 * (i * GATHER_THREADS + threadIdx.x);
    if (at < n_bytes) v[i] = __ldcs((const uint4 *)(const void *)(from + at));
  }
#pragma unroll
  for (uint32_t i = 0; i < GATHER_AT_ONCE; i++) {
    uint32_t at = 16 * (i * GATHER_THREADS + threadIdx.x);
    if (at < n_bytes) *(uint4 *)(void *)(to + at) = v[i];
  }
}

/* Pieces of one part of a weight's chosen matrices, of which the blocks take every gridDim.x-th one; first: how many
 * pieces there were before these. */
static __device__ __forceinline__ uint32_t copy_part(const gather_weight &w, uint32_t part, const uint32_t *chosen,
                                                     uint32_t n_chosen, const gather_args &a, uint32_t first) {
  uint64_t n_bytes = w.parts.n_bytes[part], stride = w.parts.n_bytes[0] + w.parts.n_bytes[1],
           before = part == 0 ? 0 : w.parts.n_bytes[0];
  uint32_t n_pieces = (uint32_t)((n_bytes + GATHER_BYTES - 1) / GATHER_BYTES), n = n_pieces * n_chosen;
  for (uint32_t i = (blockIdx.x + gridDim.x - first % gridDim.x) % gridDim.x; i < n; i += gridDim.x) {
    uint32_t e = chosen[i / n_pieces];
    uint64_t in = (uint64_t)(i % n_pieces) * GATHER_BYTES, at = w.parts.at[part] + e * n_bytes + in;
    int32_t place = w.place_of[e];
    if (place < 0 && (a.places_alone || (a.desk.taken != NULL && a.desk.taken[e] != 0))) continue;
    const uint8_t *from = place < 0 ? w.from + at : w.places + (uint64_t)place * stride + before + in;
    copy_piece(w.to + at, from, (uint32_t)min((uint64_t)GATHER_BYTES, n_bytes - in));
  }
  return first + n;
}

/* For a block. count: [n_mats], the tokens of each expert in this call. */
static __device__ __forceinline__ void tell_counts(const gather_weight &w, uint32_t n_mats, const uint32_t *count) {
  for (uint32_t e = threadIdx.x; e < n_mats; e += GATHER_THREADS)
    if (count[e] > 0) w.told[e] = w.n_tokens[e] += count[e];
}

static __global__ void __launch_bounds__(GATHER_THREADS) gather_kernel(const __grid_constant__ gather_args a) {
  extern __shared__ uint32_t count[]; /* [n_mats], then the chosen ones */
  for (uint32_t e = threadIdx.x; e < a.n_mats; e += GATHER_THREADS) count[e] = 0;
  __syncthreads();
  launch_dependents_and_wait();
  uint32_t *chosen = count + a.n_mats, n_chosen = find_chosen(a, count, chosen), first = 0;
  for (uint32_t i = 0; i < a.n_weights; i++) {
    const gather_weight &w = a.weight[i];
    if (blockIdx.x == i && !a.is_listed) copy_piece(w.to, w.from, PACKED_HEADER_BYTES);
    if (blockIdx.x == 0 && !a.is_listed) tell_counts(w, a.n_mats, count);
    for (uint32_t part = 0; part < CUDA_MATRIX_PARTS; part++)
      if (w.parts.n_bytes[part] > 0) first = copy_part(w, part, chosen, n_chosen, a, first);
  }
}

/* ---- beside what is computed ------------------------------------------------------------------------------- */

enum { FETCH_AT_ONCE = 4, FETCH_UNITS = 32 * FETCH_AT_ONCE /* of 16 bytes, of a warp at once */ };

/* One block: the processor's share of the chosen experts (kernels/host_share.h), and its rows' slots. own: [4 n_mats],
 * of which own[e] is UINT32_MAX afterwards where expert e is not of the share. */
static __device__ __forceinline__ void take_share(const gather_args &a, const uint32_t *count, const uint32_t *chosen,
                                                  uint32_t n_chosen, uint32_t *own) {
  __shared__ uint32_t n_away, n_taken;
  uint32_t *key = own + a.n_mats, *order = key + a.n_mats, *rows = order + a.n_mats;
  if (threadIdx.x == 0) n_away = 0;
  for (uint32_t e = threadIdx.x; e < a.n_mats; e += GATHER_THREADS) own[e] = UINT32_MAX;
  __syncthreads();
  if (a.desk.list == NULL) return;
  for (uint32_t c = threadIdx.x; c < n_chosen; c += GATHER_THREADS) {
    bool away = true;
    for (uint32_t i = 0; i < a.n_weights; i++) away = away && a.weight[i].place_of[chosen[c]] < 0;
    key[c] = away ? count[chosen[c]] : UINT32_MAX;
    if (away) atomicAdd(&n_away, 1u);
  }
  __syncthreads();
  for (uint32_t c = threadIdx.x; c < n_chosen; c += GATHER_THREADS) {
    uint32_t rank = 0;
    for (uint32_t other = 0; other < n_chosen; other++)
      rank += key[other] < key[c] || (key[other] == key[c] && other < c) ? 1 : 0;
    if (key[c] != UINT32_MAX) order[rank] = chosen[c], rows[rank] = key[c];
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    host_list *list = a.desk.list;
    host_share_times times = a.desk.times;
    times.expert *= list->factor, times.row *= list->factor, times.begin = list->begin;
    uint32_t n = min(host_share_of(&times, rows, n_away), (uint32_t)DESK_EXPERTS), at = 0;
    for (uint32_t i = 0; i < n; at += rows[i++]) {
      list->expert[i] = {order[i], at, rows[i]};
      own[order[i]] = at;
    }
    list->n_experts = n;
    list->n_slots = a.desk.slots->n = at;
    n_taken = n;
  }
  __syncthreads();
  for (uint32_t e = threadIdx.x; e < a.n_mats; e += GATHER_THREADS) a.desk.taken[e] = own[e] != UINT32_MAX ? 1 : 0;
  for (uint32_t p = threadIdx.x; p < DESK_FEW; p += GATHER_THREADS) a.desk.slots->slot_of[p] = -1;
  __syncthreads();
  for (uint32_t p = threadIdx.x; p < a.n_pairs && n_taken > 0; p += GATHER_THREADS) {
    uint32_t e = (uint32_t)a.ids[p] - a.first_expert;
    if (e >= a.n_mats || own[e] == UINT32_MAX) continue;
    uint32_t slot = atomicAdd(&own[e], 1u);
    a.desk.slots->pair[slot] = (int32_t)p, a.desk.slots->expert[slot] = (int32_t)e;
    if (p < DESK_FEW) a.desk.slots->slot_of[p] = (int32_t)slot;
  }
}

/* One block: lists what of each weight has to come from the host. */
static __global__ void __launch_bounds__(GATHER_THREADS) list_missing_kernel(const __grid_constant__ gather_args a) {
  extern __shared__ uint32_t count[]; /* [n_mats], then the chosen ones, then what take_share has */
  for (uint32_t e = threadIdx.x; e < a.n_mats; e += GATHER_THREADS) count[e] = 0;
  __syncthreads();
  launch_dependents_and_wait();
  uint32_t *chosen = count + a.n_mats, n_chosen = find_chosen(a, count, chosen), lane = threadIdx.x % 32;
  uint32_t *own = chosen + a.n_mats;
  take_share(a, count, chosen, n_chosen, own);
  for (uint32_t i = 0; i < a.n_weights; i++) {
    const gather_weight &w = a.weight[i];
    copy_piece(w.to, w.from, PACKED_HEADER_BYTES);
    tell_counts(w, a.n_mats, count);
    if (threadIdx.x / 32 != i) continue;
    uint32_t n = 0;
    for (uint32_t first = 0; first < n_chosen; first += 32) {
      uint32_t c = first + lane, e = c < n_chosen ? chosen[c] : 0;
      uint32_t is = __ballot_sync(0xFFFFFFFFu, c < n_chosen && w.place_of[e] < 0 && own[e] == UINT32_MAX);
      if (is >> lane & 1u) w.missing[n + __popc(is & ((1u << lane) - 1u))] = e;
      n += __popc(is);
    }
    if (lane == 0) w.missing[a.n_mats] = n;
  }
}

/* Copies the experts of the list. Blocks of one warp with few registers and no shared memory have room on a
 * multiprocessor beside those of any other kernel. */
static __global__ void __maxnreg__(32) fetch_kernel(const __grid_constant__ gather_weight w, uint32_t n_mats) {
  const uint32_t n_missing = w.missing[n_mats];
  for (uint32_t part = 0; part < CUDA_MATRIX_PARTS; part++) {
    const uint32_t n_units = (uint32_t)(w.parts.n_bytes[part] / 16),
                   n_pieces = (n_units + FETCH_UNITS - 1) / FETCH_UNITS;
    for (uint32_t i = blockIdx.x; i < n_missing * n_pieces; i += gridDim.x) {
      const uint32_t first = i % n_pieces * FETCH_UNITS + threadIdx.x;
      const uint64_t at = w.parts.at[part] + w.missing[i / n_pieces] * w.parts.n_bytes[part] + 16ull * first;
      const uint4 *from = (const uint4 *)(const void *)(w.from + at);
      uint4 *to = (uint4 *)(void *)(w.to + at), v[FETCH_AT_ONCE];
#pragma unroll
      for (uint32_t j = 0; j < FETCH_AT_ONCE; j++)
        if (first + 32 * j < n_units) v[j] = __ldcs(from + 32 * j);
#pragma unroll
      for (uint32_t j = 0; j < FETCH_AT_ONCE; j++)
        if (first + 32 * j < n_units) to[32 * j] = v[j];
    }
  }
}

/* ---- whole weights ----------------------------------------------------------------------------------------- */

static cudaStream_t stream_of(cuda_device *d, expert_stream stream) {
  return stream == EXPERT_STREAM_COPY ? d->experts.stream : d->stream;
}

static cuda_kept_experts *find_kept(const cuda_device *d, const void *data) {
  cuda_experts_cache *c = d->cache;
  for (uint32_t i = 0; c != NULL && i < c->n_kept; i++)
    if (c->kept[i].data == data) return &c->kept[i];
  return NULL;
}

static uint64_t place_bytes(const cuda_kept_experts *kept) {
  return kept->parts.n_bytes[0] + kept->parts.n_bytes[1];
}

static weft_status copy_bytes(cuda_device *d, uint8_t *to, const uint8_t *from, uint64_t n_bytes) {
  cudaError_t error = cudaMemcpyAsync(to, from, n_bytes, cudaMemcpyDefault, d->experts.stream);
  return cuda_judge(d, error, "fetching experts");
}

/* One part of all matrices: runs of those that lie on the host alone, and one by one those that have a place. */
static weft_status copy_matrices(cuda_device *d, uint8_t *to, const cuda_kept_experts *kept, uint32_t part) {
  const uint8_t *data = (const uint8_t *)kept->data;
  uint64_t at = kept->parts.at[part], n_bytes = kept->parts.n_bytes[part];
  uint64_t before = part == 0 ? 0 : kept->parts.n_bytes[0];
  weft_status status = WEFT_OK;
  for (uint32_t e = 0, n; e < kept->cache.n_mats && status == WEFT_OK; e += n) {
    const int32_t *place = kept->cache.place_of + e;
    for (n = 1; *place < 0 && e + n < kept->cache.n_mats && place[n] < 0; n++) continue;
    const uint8_t *from =
        *place < 0 ? data + at + e * n_bytes : kept->places + (uint64_t)*place * place_bytes(kept) + before;
    status = copy_bytes(d, to + at + e * n_bytes, from, n * n_bytes);
  }
  return status;
}

/* Experts of the cache need not cross; but what is recorded in a graph must not know where they lie. */
static weft_status slot_copy(void *self, uint32_t slot, const void *from, uint64_t n_bytes) {
  cuda_device *d = (cuda_device *)self;
  const cuda_kept_experts *kept = find_kept(d, from);
  uint8_t *to = d->experts.staging + slot * d->experts.slot_bytes;
  bool captures = d->base.graphs != NULL && d->base.graphs->mode == STEP_GRAPHS_CAPTURE;
  if (kept == NULL || kept->cache.n_places == 0 || captures) return copy_bytes(d, to, (const uint8_t *)from, n_bytes);
  weft_status status = copy_bytes(d, to, (const uint8_t *)from, PACKED_HEADER_BYTES);
  for (uint32_t part = 0; part < CUDA_MATRIX_PARTS && status == WEFT_OK; part++)
    if (kept->parts.n_bytes[part] > 0) status = copy_matrices(d, to, kept, part);
  return status;
}

static weft_status slot_record(void *self, uint32_t event, expert_stream stream) {
  cuda_device *d = (cuda_device *)self;
  return cuda_judge(d, cudaEventRecord(d->experts.event[event], stream_of(d, stream)), "an event");
}

static weft_status slot_wait(void *self, uint32_t event, expert_stream stream) {
  cuda_device *d = (cuda_device *)self;
  cudaError_t error = cudaStreamWaitEvent(stream_of(d, stream), d->experts.event[event], 0);
  return cuda_judge(d, error, stream == EXPERT_STREAM_MAIN ? "waiting for experts" : "waiting for a slot");
}

static weft_status open_experts(cuda_device *d) {
  static const expert_slots_calls calls = {slot_copy, slot_record, slot_wait};
  cuda_host_experts *h = &d->experts;
  if (h->stream != NULL) return WEFT_OK;
  d->cache = (cuda_experts_cache *)weft_alloc(1, sizeof *d->cache);
  if (d->cache == NULL) return WEFT_E_NO_MEMORY;
  expert_slots_open(&h->slots, &calls, d);
  weft_status status = cuda_judge(d, cudaStreamCreateWithFlags(&h->stream, cudaStreamNonBlocking), "making a stream");
  for (uint32_t i = 0; i < EXPERT_SLOTS_EVENTS && status == WEFT_OK; i++)
    status = cuda_judge(d, cudaEventCreateWithFlags(&h->event[i], cudaEventDisableTiming), "making an event");
  if (status != WEFT_OK) cuda_experts_close(d);
  return status;
}

/* Graphs name the old staging memory, and copies to it may be on their way: so graphs are dropped and copies waited for
 * before it is freed. */
static weft_status grow_staging(cuda_device *d, uint64_t n_bytes) {
  cuda_host_experts *h = &d->experts;
  weft_status status = cuda_experts_join(d);
  if (status == WEFT_OK) status = cuda_judge(d, cudaStreamSynchronize(d->stream), "the work before");
  if (status != WEFT_OK) return status;
  if (d->base.graphs != NULL) step_graphs_drop(d->base.graphs);
  if (h->staging != NULL) (void)cudaFree(h->staging);
  h->staging = NULL;
  h->slot_bytes = 0;
  status = cuda_alloc(d, EXPERT_SLOTS * n_bytes, (void **)&h->staging, "staging of experts");
  if (status == WEFT_OK) h->slot_bytes = n_bytes;
  return status;
}

/* ---- what is kept ------------------------------------------------------------------------------------------ */

static void close_kept(cuda_device *d, cuda_kept_experts *kept) {
  if (kept->places != NULL) (void)cudaFree(kept->places);
  if (kept->place_of != NULL) (void)cudaFree(kept->place_of);
  if (kept->data != NULL) (void)cudaFreeHost(kept->data);
  if (kept->told != NULL) (void)cudaFreeHost(kept->told);
  weft_free(kept->job);
  d->cache->report.n_bytes_cached -= kept->cache.n_places * place_bytes(kept);
  expert_cache_close(&kept->cache);
  memset(kept, 0, sizeof *kept);
}

/* The first experts of a weight come to their places from where the whole weight is packed. */
static weft_status fill_places(cuda_device *d, const cuda_kept_experts *kept, const uint8_t *packed) {
  uint8_t *to = kept->places;
  weft_status status = WEFT_OK;
  for (uint32_t part = 0; part < CUDA_MATRIX_PARTS && kept->cache.n_places > 0 && status == WEFT_OK; part++) {
    uint64_t n_bytes = kept->parts.n_bytes[part];
    cudaError_t error = cudaSuccess;
    if (n_bytes > 0)
      error = cudaMemcpy2DAsync(to, place_bytes(kept), packed + kept->parts.at[part], n_bytes, n_bytes,
                                kept->cache.n_places, cudaMemcpyDefault, d->stream);
    status = cuda_judge(d, error, "the first experts of a cache");
    to += n_bytes;
  }
  return status;
}

/* The places, and the two tables on the card. Where the card has no room for places there are none. */
static weft_status open_cache(cuda_device *d, cuda_kept_experts *kept, uint32_t n_mats, uint64_t n_bytes,
                              const uint8_t *packed) {
  uint32_t n_places = expert_cache_places(expert_room_share(&d->room, n_bytes), n_bytes, n_mats);
  uint64_t places_bytes = n_places * place_bytes(kept);
  weft_status status = n_places == 0 ? WEFT_OK : cuda_alloc(d, places_bytes, (void **)&kept->places, "a cache");
  if (status == WEFT_E_NO_MEMORY) n_places = 0, status = WEFT_OK;
  if (status == WEFT_OK) status = expert_cache_open(&kept->cache, n_mats, n_places);
  if (status == WEFT_OK) d->cache->report.n_bytes_cached += n_places * place_bytes(kept);
  if (status == WEFT_OK) status = cuda_alloc(d, 12ull * n_mats + 4, (void **)&kept->place_of, "a table of experts");
  if (status != WEFT_OK) return status;
  kept->n_tokens = (uint32_t *)(void *)(kept->place_of + n_mats);
  kept->missing = kept->n_tokens + n_mats;
  status = cuda_judge(d, cudaMemsetAsync(kept->n_tokens, 0, 4ull * n_mats, d->stream), "counts of experts");
  if (status == WEFT_OK) status = cuda_push(d, kept->place_of, kept->cache.place_of, 4ull * n_mats);
  return status == WEFT_OK ? fill_places(d, kept, packed) : status;
}

/* Memory of the host for the counts of a weight, and the buffer in which they are heard. */
static weft_status open_counts(cuda_device *d, cuda_kept_experts *kept, uint32_t n_mats) {
  cuda_experts_cache *c = d->cache;
  if (n_mats > c->heard_max) {
    void *heard = weft_realloc(c->heard, n_mats, sizeof *c->heard);
    if (heard == NULL) return WEFT_E_NO_MEMORY;
    c->heard = (uint32_t *)heard;
    c->heard_max = n_mats;
  }
  cudaError_t error = cudaHostAlloc((void **)&kept->told, 4ull * n_mats, cudaHostAllocMapped);
  weft_status status = cuda_judge(d, error, "counts of experts");
  if (status == WEFT_OK) memset(kept->told, 0, 4ull * n_mats);
  return status;
}

/* Packed bytes to the host, and some to the cache. */
static weft_status fill_kept(cuda_device *d, cuda_kept_experts *kept, uint32_t n_mats, uint64_t n_bytes,
                             const uint8_t *packed) {
  cudaError_t error = cudaHostAlloc(&kept->data, n_bytes, cudaHostAllocMapped);
  weft_status status = cuda_judge(d, error, "pinned memory for experts");
  if (status == WEFT_OK) status = open_counts(d, kept, n_mats);
  if (status == WEFT_OK) status = open_cache(d, kept, n_mats, n_bytes, packed);
  if (status != WEFT_OK) return status;
  error = cudaStreamSynchronize(d->stream);
  const uint64_t began = weft_clock_us();
  if (error == cudaSuccess) error = cudaMemcpyAsync(kept->data, packed, n_bytes, cudaMemcpyDefault, d->stream);
  if (error == cudaSuccess) error = cudaStreamSynchronize(d->stream);
  status = cuda_judge(d, error, "experts to the host");
  if (status == WEFT_OK) host_desk_hear_link(d, n_bytes, weft_clock_us() - began);
  return status == WEFT_OK ? expert_slots_keep(&d->experts.slots, kept->data, n_bytes) : status;
}

weft_status cuda_experts_keep(cuda_device *d, const weft_weight *weight, const cuda_matrix_parts *parts,
                              const void *packed, uint64_t n_bytes, void **out) {
  weft_status status = open_experts(d);
  if (status == WEFT_OK && n_bytes > d->experts.slot_bytes) status = grow_staging(d, n_bytes);
  if (status == WEFT_OK) status = host_desk_grow(d, weight);
  if (status != WEFT_OK) return status;
  cuda_experts_cache *c = d->cache;
  void *list = weft_grow(c->kept, c->n_kept, &c->kept_max, 64, sizeof *c->kept);
  if (list == NULL) return WEFT_E_NO_MEMORY;
  c->kept = (cuda_kept_experts *)list;
  cuda_kept_experts *kept = &c->kept[c->n_kept];
  memset(kept, 0, sizeof *kept);
  kept->parts = *parts;
  status = fill_kept(d, kept, weight->n_mats, n_bytes, (const uint8_t *)packed);
  *out = kept->data;
  if (status == WEFT_OK)
    c->n_kept += 1;
  else
    close_kept(d, kept);
  return status;
}

bool cuda_experts_forget(cuda_device *d, void *data) {
  cuda_kept_experts *kept = find_kept(d, data);
  if (kept == NULL || !expert_slots_forget(&d->experts.slots, data)) return false;
  if (!d->lost) (void)cudaStreamSynchronize(d->stream);
  host_products_rest(d);
  close_kept(d, kept);
  cuda_experts_cache *c = d->cache;
  c->n_kept -= 1;
  memmove(kept, kept + 1, (size_t)(c->kept + c->n_kept - kept) * sizeof *kept);
  c->next = 0;
  return true;
}

void cuda_experts_close(cuda_device *d) {
  cuda_host_experts *h = &d->experts;
  cuda_experts_cache *c = d->cache;
  if (c == NULL) return;
  if (h->stream != NULL) (void)cudaStreamSynchronize(h->stream);
  host_desk_close(d);
  while (c->n_kept > 0) close_kept(d, &c->kept[--c->n_kept]);
  for (uint32_t i = 0; i < EXPERT_SLOTS_EVENTS; i++)
    if (h->event[i] != NULL) (void)cudaEventDestroy(h->event[i]);
  if (h->staging != NULL) (void)cudaFree(h->staging);
  if (h->stream != NULL) (void)cudaStreamDestroy(h->stream);
  weft_free(c->kept);
  weft_free(c->heard);
  weft_free(c);
  d->cache = NULL;
  memset(h, 0, sizeof *h);
}

weft_status cuda_experts_join(cuda_device *d) {
  cuda_host_experts *h = &d->experts;
  if (h->stream == NULL || d->lost) return d->lost ? WEFT_E_DEVICE : WEFT_OK;
  return expert_slots_join(&h->slots);
}

bool cuda_experts_is_away(const weft_device *device, const weft_weight *weight) {
  return find_kept((const cuda_device *)(const void *)device, weight->data) != NULL;
}

/* From any thread: what is told may be of two moments. */
void cuda_experts_report(const weft_device *device, weft_experts_report *out) {
  const cuda_experts_cache *c = ((const cuda_device *)(const void *)device)->cache;
  if (c == NULL) return;
  out->n_bytes_cached = __atomic_load_n(&c->report.n_bytes_cached, __ATOMIC_RELAXED);
  out->n_tokens = __atomic_load_n(&c->report.n_tokens, __ATOMIC_RELAXED);
  out->n_tokens_cached = __atomic_load_n(&c->report.n_tokens_cached, __ATOMIC_RELAXED);
  out->n_exchanged = __atomic_load_n(&c->report.n_exchanged, __ATOMIC_RELAXED);
  host_products_report(c, out);
}

/* ---- the cache --------------------------------------------------------------------------------------------- */

static weft_status copy_to_place(cuda_device *d, const cuda_kept_experts *kept, uint32_t expert, uint32_t place) {
  uint8_t *to = kept->places + place * place_bytes(kept);
  weft_status status = WEFT_OK;
  for (uint32_t part = 0; part < CUDA_MATRIX_PARTS && status == WEFT_OK; part++) {
    uint64_t n_bytes = kept->parts.n_bytes[part];
    const uint8_t *from = (const uint8_t *)kept->data + kept->parts.at[part] + expert * n_bytes;
    if (n_bytes > 0)
      status = cuda_judge(d, cudaMemcpyAsync(to, from, n_bytes, cudaMemcpyDefault, d->stream), "an exchange");
    to += n_bytes;
  }
  return status;
}

/* Exchanges experts of a weight, up to n_bytes_max; how many bytes came. The main stream has the order: products before
 * read what was there, gathers behind read what comes, and the table says so. What fails here, the next step says: the
 * card is lost then. */
static uint64_t exchange_experts(cuda_device *d, cuda_kept_experts *kept, uint64_t n_bytes_max) {
  uint64_t n = 0;
  uint32_t expert, place;
  weft_status status = WEFT_OK;
  while (n * place_bytes(kept) < n_bytes_max && status == WEFT_OK &&
         expert_cache_exchange(&kept->cache, &expert, &place)) {
    if (n++ == 0) status = cuda_experts_join(d); /* copies of whole weights may read places */
    if (status == WEFT_OK) status = copy_to_place(d, kept, expert, place);
  }
  if (n == 0 || status != WEFT_OK) return 0;
  d->fresh = true;
  __atomic_fetch_add(&d->cache->report.n_exchanged, n, __ATOMIC_RELAXED);
  (void)cuda_push(d, kept->place_of, kept->cache.place_of, 4ull * kept->cache.n_mats);
  return n * place_bytes(kept);
}

/* Hears what gathers have counted of a weight until now; how many tokens that is. */
static uint64_t hear_counts(cuda_device *d, cuda_kept_experts *kept) {
  cuda_experts_cache *c = d->cache;
  uint64_t n_tokens = kept->cache.n_tokens, n_hits = kept->cache.n_hits;
  for (uint32_t e = 0; e < kept->cache.n_mats; e++) c->heard[e] = __atomic_load_n(&kept->told[e], __ATOMIC_RELAXED);
  expert_cache_hear(&kept->cache, c->heard);
  __atomic_fetch_add(&c->report.n_tokens, kept->cache.n_tokens - n_tokens, __ATOMIC_RELAXED);
  __atomic_fetch_add(&c->report.n_tokens_cached, kept->cache.n_hits - n_hits, __ATOMIC_RELAXED);
  return kept->cache.n_tokens - n_tokens;
}

/* Behind steps of more tokens, which take longer, more bytes are exchanged: TOKEN_BYTES for each that an expert of a
 * weight was given, so that a canvas of 256 rows with 8 experts, in two weights of each of 30 layers, has nearly the
 * most. Of one weight they are LEAST_BYTES at most. */
void cuda_experts_step(weft_device *device) {
  enum { LEAST_BYTES = 32 << 20, MOST_BYTES = 256 << 20, TOKEN_BYTES = 2048 };
  cuda_device *d = cuda_of(device);
  cuda_experts_cache *c = d->cache;
  if (c == NULL || c->n_kept == 0 || d->lost) return;
  uint64_t n_bytes = 0;
  for (uint32_t i = 0; i < c->n_kept; i++) n_bytes += TOKEN_BYTES * hear_counts(d, &c->kept[i]);
  n_bytes = n_bytes < LEAST_BYTES ? LEAST_BYTES : n_bytes > MOST_BYTES ? MOST_BYTES : n_bytes;
  for (uint32_t i = 0; i < c->n_kept && n_bytes > 0; i++) {
    uint64_t n = exchange_experts(d, &c->kept[c->next], n_bytes < LEAST_BYTES ? n_bytes : LEAST_BYTES);
    n_bytes -= n < n_bytes ? n : n_bytes;
    c->next = (c->next + 1) % c->n_kept;
  }
}

/* ---- a call ------------------------------------------------------------------------------------------------ */

static bool is_gathered(const cuda_kept_experts *kept) {
  uint64_t all = 0;
  for (uint32_t part = 0; part < CUDA_MATRIX_PARTS; part++) all |= kept->parts.at[part] | kept->parts.n_bytes[part];
  return all % 16 == 0;
}

/* Whole weights would cross with all experts that have places: from a quarter of them on the others cross alone. */
static bool gathers_call(const weft_experts_args *args, cuda_kept_experts *const kept[4]) {
  bool many_places = true, gathers = true;
  for (uint32_t i = 0; i < 4; i++) {
    if (kept[i] == NULL) continue;
    many_places = many_places && 4 * kept[i]->cache.n_places >= kept[i]->cache.n_mats;
    gathers = gathers && is_gathered(kept[i]);
  }
  uint64_t n_pairs = (uint64_t)args->n_rows * args->k;
  return gathers && (many_places || expert_slots_gathers(n_pairs, args->down->n_mats));
}

/* Events of slots, which are empty where experts are gathered. */
enum { BESIDE_BEGINS, BESIDE_IN, BESIDE_DOWN, BESIDE_PAIRS = 1024 /* of a call, at least: others have few experts */ };

/* shares: the processor computes some of them. */
static weft_status list_experts(cuda_device *d, const weft_experts_args *args, cuda_kept_experts *const kept[4],
                                gather_args *a, bool shares) {
  cuda_start(d, list_missing_kernel, 1, GATHER_THREADS, 24ull * a->n_mats, *a);
  a->is_listed = d->fresh = true;
  weft_status status = cuda_launched(d, "listing experts");
  return status == WEFT_OK && shares ? host_products_start(d, args, kept) : status;
}

/* What has no place comes by the copying stream, down last, while the main stream copies what has, permutes rows, and
 * multiplies with what is there: cuda_experts_await has the waits. */
static weft_status fetch_beside(cuda_device *d, const weft_experts_args *args, cuda_kept_experts *const kept[4],
                                gather_args *a) {
  cuda_host_experts *h = &d->experts;
  const uint32_t n_in = a->n_weights - (kept[3] != NULL);
  weft_status status = list_experts(d, args, kept, a, host_products_take(d, args, kept, false, &a->desk));
  if (status == WEFT_OK) status = slot_record(d, BESIDE_BEGINS, EXPERT_STREAM_MAIN);
  if (status == WEFT_OK) status = slot_wait(d, BESIDE_BEGINS, EXPERT_STREAM_COPY);
  for (uint32_t i = 0; i <= a->n_weights && status == WEFT_OK; i++) {
    if (i == n_in) status = slot_record(d, BESIDE_IN, EXPERT_STREAM_COPY);
    if (i == a->n_weights || status != WEFT_OK) break;
    fetch_kernel<<<d->n_multiprocessors, 32, 0, h->stream>>>(a->weight[i], a->n_mats);
    status = cuda_launched(d, "fetching experts beside");
  }
  if (status == WEFT_OK) status = slot_record(d, BESIDE_DOWN, EXPERT_STREAM_COPY);
  d->cache->in_awaited = d->cache->down_awaited = status == WEFT_OK;
  a->places_alone = true;
  d->fresh = true;
  return status;
}

weft_status cuda_experts_await(cuda_device *d, bool down) {
  cuda_experts_cache *c = d->cache;
  if (c == NULL || (down ? !c->down_awaited : !c->in_awaited)) return WEFT_OK;
  c->in_awaited = false;
  if (down) c->down_awaited = false;
  d->fresh = true;
  return slot_wait(d, down ? BESIDE_DOWN : BESIDE_IN, EXPERT_STREAM_MAIN);
}

/* The kernels wait for all work before them, which may read the slots; what comes behind starts when they have ended,
 * because products may read weights before they wait. */
static weft_status gather_experts(cuda_device *d, const weft_experts_args *args, cuda_kept_experts *const kept[4]) {
  cuda_host_experts *h = &d->experts;
  gather_args a;
  memset(&a, 0, sizeof a);
  a.ids = args->ids;
  a.n_pairs = args->n_rows * args->k;
  a.first_expert = args->first_expert;
  a.n_mats = args->down->n_mats;
  for (uint32_t i = 0; i < 4; i++) {
    if (kept[i] == NULL) continue;
    a.weight[a.n_weights++] = {(const uint8_t *)kept[i]->data,
                               kept[i]->places,
                               h->staging + i * h->slot_bytes,
                               kept[i]->place_of,
                               kept[i]->n_tokens,
                               kept[i]->told,
                               kept[i]->missing,
                               kept[i]->parts};
  }
  weft_status status = cuda_experts_join(d);
  if (status == WEFT_OK && a.n_pairs >= BESIDE_PAIRS)
    status = fetch_beside(d, args, kept, &a);
  else if (status == WEFT_OK && host_products_take(d, args, kept, true, &a.desk))
    status = list_experts(d, args, kept, &a, true);
  if (status != WEFT_OK) return status;
  cuda_start(d, gather_kernel, 2 * d->n_multiprocessors, GATHER_THREADS, 8ull * a.n_mats, a);
  d->fresh = true;
  return cuda_launched(d, "fetching the chosen experts");
}

static weft_status bring_whole(cuda_device *d, const weft_weight **weight, weft_weight *copy) {
  cuda_host_experts *h = &d->experts;
  uint32_t slot;
  weft_status status = expert_slots_bring(&h->slots, (*weight)->data, &slot);
  if (status != WEFT_OK || slot == EXPERT_SLOTS) return status;
  *copy = **weight;
  copy->data = h->staging + slot * h->slot_bytes;
  *weight = copy;
  return WEFT_OK;
}

weft_status cuda_experts_bring(cuda_device *d, weft_experts_args *args, weft_weight copy[4]) {
  cuda_host_experts *h = &d->experts;
  const weft_weight **const weight[4] = {&args->gate_up, &args->gate, &args->up, &args->down};
  cuda_kept_experts *kept[4] = {NULL, NULL, NULL, NULL};
  uint32_t n_kept = 0;
  weft_status status = WEFT_OK;
  if (h->stream == NULL) return WEFT_OK;
  host_products_none(d);
  for (uint32_t i = 0; i < 4; i++) {
    if (*weight[i] != NULL) kept[i] = find_kept(d, (*weight[i])->data);
    n_kept += kept[i] != NULL;
  }
  bool gathers = gathers_call(args, kept);
  if (gathers && n_kept > 0) status = gather_experts(d, args, kept);
  for (uint32_t i = 0; i < 4 && status == WEFT_OK; i++) {
    if (kept[i] == NULL) continue;
    if (!gathers) {
      status = bring_whole(d, weight[i], &copy[i]);
      continue;
    }
    copy[i] = **weight[i];
    copy[i].data = h->staging + i * h->slot_bytes;
    *weight[i] = &copy[i];
  }
  return status;
}

weft_status cuda_experts_done(cuda_device *d) {
  if (d->experts.stream == NULL) return WEFT_OK;
  weft_status status = cuda_experts_await(d, true), done = expert_slots_done(&d->experts.slots);
  return status == WEFT_OK ? done : status;
}
