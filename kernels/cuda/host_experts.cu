/* SPDX-License-Identifier: MIT */
/* Memory of weights: the arena of the card, and experts that lie in pinned host memory because the card is full.
 *
 * Law: a weight in host memory is copied over a stream of its own into one of four slots of staging memory. While the
 * products with one weight run, the weights that were placed after it are already being copied. The bytes are those
 * that would lie on the card, so the results are the same. A product waits for the event of its slot, and a slot is
 * written again only after the event of the products that read it. Around a step that is captured as a graph no copy is
 * left open: see cuda_experts_join. */
#include <string.h>

#include "base/log.h"
#include "kernels/cuda/cuda.h"

#include <cuda.h>

/* ---- the arena of a card -------------------------------------------------------------------------------- */

typedef struct driver_calls {
  decltype(&cuMemAddressReserve) reserve;
  decltype(&cuMemAddressFree) release;
  decltype(&cuMemCreate) create;
  decltype(&cuMemRelease) free_handle;
  decltype(&cuMemMap) map;
  decltype(&cuMemUnmap) unmap;
  decltype(&cuMemSetAccess) set_access;
  decltype(&cuMemGetAllocationGranularity) grain;
} driver_calls;

static driver_calls driver; /* the same for every device of the process */

template <typename F>
static bool find_call(const char *name, F *out) {
  void *found = NULL;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  cudaError_t error = cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result);
  if (error != cudaSuccess) (void)cudaGetLastError();
  *out = (F)found;
  return error == cudaSuccess && result == cudaDriverEntryPointSuccess && found != NULL;
}

static CUmemAllocationProp host_location(void) {
  CUmemAllocationProp p;
  memset(&p, 0, sizeof p);
  p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  return p;
}

/* 0: the card cannot map memory. */
static uint64_t find_grain(void) {
  bool found = find_call("cuMemAddressReserve", &driver.reserve) && find_call("cuMemAddressFree", &driver.release) &&
               find_call("cuMemCreate", &driver.create) && find_call("cuMemRelease", &driver.free_handle) &&
               find_call("cuMemMap", &driver.map) && find_call("cuMemUnmap", &driver.unmap) &&
               find_call("cuMemSetAccess", &driver.set_access) &&
               find_call("cuMemGetAllocationGranularity", &driver.grain);
  size_t grain = 0;
  CUmemAllocationProp p = host_location();
  if (!found || driver.grain(&grain, &p, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) != CUDA_SUCCESS) return 0;
  return grain;
}

static weft_status judge_driver(CUresult result) {
  if (result == CUDA_SUCCESS) return WEFT_OK;
  return result == CUDA_ERROR_OUT_OF_MEMORY ? WEFT_E_NO_MEMORY : WEFT_E_UNSUPPORTED;
}

static weft_status arena_reserve(void *self, uint64_t n_bytes, void **address) {
  CUdeviceptr at = 0;
  weft_status status = judge_driver(driver.reserve(&at, n_bytes, ((cuda_device *)self)->arena.grain, 0, 0));
  *address = (void *)(uintptr_t)at;
  return status;
}

static void arena_release(void *self, void *address, uint64_t n_bytes) {
  (void)self;
  (void)driver.release((CUdeviceptr)(uintptr_t)address, n_bytes);
}

static weft_status arena_map(void *self, void *address, uint64_t n_bytes) {
  (void)self;
  CUmemAllocationProp p = host_location();
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr at = (CUdeviceptr)(uintptr_t)address;
  weft_status status = judge_driver(driver.create(&handle, n_bytes, &p, 0));
  if (status != WEFT_OK) return status;
  status = judge_driver(driver.map(at, n_bytes, 0, handle, 0));
  (void)driver.free_handle(handle); /* the mapping keeps it */
  if (status != WEFT_OK) return status;
  CUmemAccessDesc access;
  memset(&access, 0, sizeof access);
  access.location = p.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  status = judge_driver(driver.set_access(at, n_bytes, &access, 1));
  if (status != WEFT_OK) (void)driver.unmap(at, n_bytes);
  return status;
}

static void arena_unmap(void *self, void *address, uint64_t n_bytes) {
  cuda_device *d = (cuda_device *)self;
  if (!d->lost) (void)cudaStreamSynchronize(d->stream);
  (void)driver.unmap((CUdeviceptr)(uintptr_t)address, n_bytes);
}

static weft_status arena_alloc(void *self, uint64_t n_bytes, void **out) {
  cuda_device *d = (cuda_device *)self;
  return d->lost ? WEFT_E_DEVICE : cuda_judge(d, cudaMalloc(out, n_bytes), "memory for weights");
}

static void arena_free(void *self, void *memory) {
  (void)cuda_judge((cuda_device *)self, cudaFree(memory), "freeing weights");
}

/* Room that weights leave to the rest when nobody says how much they may take: an eighth of what is free. */
void cuda_arena_open(cuda_device *d, uint64_t n_bytes_max, bool plain) {
  static const weight_arena_calls calls = {arena_reserve, arena_release, arena_map,
                                           arena_unmap,   arena_alloc,   arena_free};
  uint64_t free_bytes = d->base.info.memory_free_bytes;
  if (n_bytes_max == 0) n_bytes_max = free_bytes - free_bytes / 8;
  weight_arena_open(&d->arena, &calls, d, plain ? 0 : find_grain(), n_bytes_max);
}

/* ---- experts in host memory ----------------------------------------------------------------------------- */

weft_status cuda_experts_keep(cuda_device *d, const void *packed, uint64_t n_bytes, void **out) {
  cuda_host_experts *h = &d->experts;
  weft_status status = WEFT_OK;
  if (h->stream == NULL) {
    status = cuda_judge(d, cudaStreamCreateWithFlags(&h->stream, cudaStreamNonBlocking), "making a stream");
    for (uint32_t i = 0; i < 4 * CUDA_EXPERT_SLOTS + 1 && status == WEFT_OK; i++)
      status = cuda_judge(d, cudaEventCreateWithFlags(&h->event[i], cudaEventDisableTiming), "making an event");
  }
  if (status == WEFT_OK && h->n == CUDA_EXPERTS_MAX) status = WEFT_E_TOO_LARGE;
  if (status == WEFT_OK && n_bytes > h->slot_bytes) {
    if (h->staging != NULL) (void)cudaFree(h->staging);
    h->staging = NULL;
    h->slot_bytes = 0;
    status = cuda_judge(d, cudaMalloc((void **)&h->staging, CUDA_EXPERT_SLOTS * n_bytes), "staging of experts");
    if (status == WEFT_OK) h->slot_bytes = n_bytes;
  }
  if (status != WEFT_OK) return status;
  status = cuda_judge(d, cudaHostAlloc(out, n_bytes, cudaHostAllocDefault), "pinned memory for experts");
  if (status != WEFT_OK) return status;
  status = cuda_judge(d, cudaMemcpyAsync(*out, packed, n_bytes, cudaMemcpyDefault, d->stream), "experts to the host");
  if (status == WEFT_OK) status = cuda_judge(d, cudaStreamSynchronize(d->stream), "experts to the host");
  if (status != WEFT_OK) {
    (void)cudaFreeHost(*out);
    return status;
  }
  h->kept[h->n].data = *out;
  h->kept[h->n++].n_bytes = n_bytes;
  return WEFT_OK;
}

void cuda_experts_forget(cuda_device *d, void *data) {
  cuda_host_experts *h = &d->experts;
  uint32_t i = 0;
  while (i < h->n && h->kept[i].data != data) i++;
  if (i == h->n) return;
  (void)cuda_experts_join(d);
  if (!d->lost) (void)cudaStreamSynchronize(d->stream);
  for (uint32_t s = 0; s < CUDA_EXPERT_SLOTS; s++) h->slot[s].data = NULL;
  (void)cudaFreeHost(data);
  memmove(&h->kept[i], &h->kept[i + 1], (h->n - i - 1) * sizeof h->kept[0]);
  h->n -= 1;
}

void cuda_experts_close(cuda_device *d) {
  cuda_host_experts *h = &d->experts;
  if (h->stream != NULL) (void)cudaStreamSynchronize(h->stream);
  for (uint32_t i = 0; i < 4 * CUDA_EXPERT_SLOTS + 1; i++)
    if (h->event[i] != NULL) (void)cudaEventDestroy(h->event[i]);
  if (h->staging != NULL) (void)cudaFree(h->staging);
  if (h->stream != NULL) (void)cudaStreamDestroy(h->stream);
}

/* An event that was recorded in a capture means nothing outside of it: two sets. */
static cudaEvent_t event_of(cuda_device *d, uint32_t slot, bool ready) {
  bool capture = d->base.graphs != NULL && d->base.graphs->mode == STEP_GRAPHS_CAPTURE;
  return d->experts.event[(capture ? 2 : 0) * CUDA_EXPERT_SLOTS + 2 * slot + (ready ? 1 : 0)];
}

weft_status cuda_experts_join(cuda_device *d) {
  cuda_host_experts *h = &d->experts;
  if (h->stream == NULL || d->lost) return d->lost ? WEFT_E_DEVICE : WEFT_OK;
  weft_status status = WEFT_OK;
  for (uint32_t s = 0; s < CUDA_EXPERT_SLOTS && status == WEFT_OK; s++) {
    if (h->slot[s].data != NULL)
      status = cuda_judge(d, cudaStreamWaitEvent(d->stream, event_of(d, s, true), 0), "joining");
    memset(&h->slot[s], 0, sizeof h->slot[s]);
  }
  return status;
}

weft_status cuda_experts_follow(cuda_device *d) {
  cuda_host_experts *h = &d->experts;
  if (h->stream == NULL || d->lost) return d->lost ? WEFT_E_DEVICE : WEFT_OK;
  cudaEvent_t event = h->event[4 * CUDA_EXPERT_SLOTS];
  weft_status status = cuda_judge(d, cudaEventRecord(event, d->stream), "an event");
  return status == WEFT_OK ? cuda_judge(d, cudaStreamWaitEvent(h->stream, event, 0), "following") : status;
}

/* The copy of kept weight i into a slot that no product of this call reads. */
static weft_status fetch_expert(cuda_device *d, uint32_t i) {
  cuda_host_experts *h = &d->experts;
  uint32_t s = h->next;
  while (h->slot[s].in_use) s = (s + 1) % CUDA_EXPERT_SLOTS;
  h->next = (s + 1) % CUDA_EXPERT_SLOTS;
  cudaEvent_t free_event = event_of(d, s, false);
  weft_status status = WEFT_OK;
  if (!h->slot[s].released) status = cuda_judge(d, cudaEventRecord(free_event, d->stream), "an event");
  if (status == WEFT_OK) status = cuda_judge(d, cudaStreamWaitEvent(h->stream, free_event, 0), "waiting for a slot");
  if (status == WEFT_OK) {
    status = cuda_judge(d,
                        cudaMemcpyAsync(h->staging + s * h->slot_bytes, h->kept[i].data, h->kept[i].n_bytes,
                                        cudaMemcpyDefault, h->stream),
                        "fetching experts");
  }
  if (status == WEFT_OK) status = cuda_judge(d, cudaEventRecord(event_of(d, s, true), h->stream), "an event");
  h->slot[s].data = status == WEFT_OK ? h->kept[i].data : NULL;
  h->slot[s].released = false;
  return status;
}

static bool find_kept(const cuda_host_experts *h, const void *data, uint32_t *i) {
  for (*i = 0; *i < h->n; (*i)++)
    if (h->kept[*i].data == data) return true;
  return false;
}

static uint32_t find_slot(const cuda_host_experts *h, const void *data) {
  uint32_t s = 0;
  while (s < CUDA_EXPERT_SLOTS && h->slot[s].data != data) s++;
  return s;
}

weft_status cuda_experts_bring(cuda_device *d, const weft_weight **weight, weft_weight *copy) {
  cuda_host_experts *h = &d->experts;
  uint32_t i, s;
  if (*weight == NULL || h->n == 0 || !find_kept(h, (*weight)->data, &i)) return WEFT_OK;
  weft_status status = WEFT_OK;
  s = find_slot(h, h->kept[i].data);
  if (s == CUDA_EXPERT_SLOTS) {
    status = fetch_expert(d, i);
    s = find_slot(h, h->kept[i].data);
  }
  if (status == WEFT_OK)
    status = cuda_judge(d, cudaStreamWaitEvent(d->stream, event_of(d, s, true), 0), "waiting for experts");
  if (status != WEFT_OK) return status;
  h->slot[s].in_use = true;
  h->last = i;
  *copy = **weight;
  copy->data = h->staging + s * h->slot_bytes;
  *weight = copy;
  return WEFT_OK;
}

weft_status cuda_experts_done(cuda_device *d) {
  cuda_host_experts *h = &d->experts;
  weft_status status = WEFT_OK;
  uint32_t n_free = 0;
  bool any = false;
  for (uint32_t s = 0; s < CUDA_EXPERT_SLOTS; s++) any |= h->slot[s].in_use;
  if (!any) return WEFT_OK;
  for (uint32_t s = 0; s < CUDA_EXPERT_SLOTS; s++) n_free += !h->slot[s].in_use;
  for (uint32_t k = 1; k <= n_free && h->last + k < h->n && status == WEFT_OK; k++) {
    if (find_slot(h, h->kept[h->last + k].data) == CUDA_EXPERT_SLOTS) status = fetch_expert(d, h->last + k);
  }
  for (uint32_t s = 0; s < CUDA_EXPERT_SLOTS && status == WEFT_OK; s++) {
    if (!h->slot[s].in_use) continue;
    status = cuda_judge(d, cudaEventRecord(event_of(d, s, false), d->stream), "an event");
    h->slot[s].in_use = false;
    h->slot[s].released = true;
  }
  return status;
}
