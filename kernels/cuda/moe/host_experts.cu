/* SPDX-License-Identifier: MIT */
/* Experts that lie in pinned host memory because the card is full.
 *
 * Law: a weight in host memory is copied over a stream of its own into one of EXPERT_SLOTS slots of staging memory.
 * kernels/expert_slots.h decides which weight lies in which slot and what waits for what. The bytes are those that
 * would lie on the card, so the results are the same. */
#include <string.h>

#include "base/log.h"
#include "kernels/cuda/cuda.h"

/* ---- experts in host memory ----------------------------------------------------------------------------- */

static cudaStream_t stream_of(cuda_device *d, expert_stream stream) {
  return stream == EXPERT_STREAM_COPY ? d->experts.stream : d->stream;
}

static weft_status slot_copy(void *self, uint32_t slot, const void *from, uint64_t n_bytes) {
  cuda_device *d = (cuda_device *)self;
  cuda_host_experts *h = &d->experts;
  cudaError_t error = cudaMemcpyAsync(h->staging + slot * h->slot_bytes, from, n_bytes, cudaMemcpyDefault, h->stream);
  return cuda_judge(d, error, "fetching experts");
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
  weft_status status = cuda_judge(d, cudaStreamCreateWithFlags(&h->stream, cudaStreamNonBlocking), "making a stream");
  for (uint32_t i = 0; i < EXPERT_SLOTS_EVENTS && status == WEFT_OK; i++)
    status = cuda_judge(d, cudaEventCreateWithFlags(&h->event[i], cudaEventDisableTiming), "making an event");
  expert_slots_open(&h->slots, &calls, d);
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

weft_status cuda_experts_keep(cuda_device *d, const void *packed, uint64_t n_bytes, void **out) {
  cuda_host_experts *h = &d->experts;
  weft_status status = h->stream == NULL ? open_experts(d) : WEFT_OK;
  if (status == WEFT_OK && n_bytes > h->slot_bytes) status = grow_staging(d, n_bytes);
  if (status != WEFT_OK) return status;
  status = cuda_judge(d, cudaHostAlloc(out, n_bytes, cudaHostAllocDefault), "pinned memory for experts");
  if (status != WEFT_OK) return status;
  status = cuda_judge(d, cudaMemcpyAsync(*out, packed, n_bytes, cudaMemcpyDefault, d->stream), "experts to the host");
  if (status == WEFT_OK) status = cuda_judge(d, cudaStreamSynchronize(d->stream), "experts to the host");
  if (status == WEFT_OK) status = expert_slots_keep(&h->slots, *out, n_bytes);
  if (status != WEFT_OK) (void)cudaFreeHost(*out);
  return status;
}

bool cuda_experts_forget(cuda_device *d, void *data) {
  cuda_host_experts *h = &d->experts;
  if (h->stream == NULL || !expert_slots_forget(&h->slots, data)) return false;
  if (!d->lost) (void)cudaStreamSynchronize(d->stream);
  (void)cudaFreeHost(data);
  return true;
}

void cuda_experts_close(cuda_device *d) {
  cuda_host_experts *h = &d->experts;
  if (h->stream != NULL) (void)cudaStreamSynchronize(h->stream);
  for (uint32_t i = 0; i < EXPERT_SLOTS_EVENTS; i++)
    if (h->event[i] != NULL) (void)cudaEventDestroy(h->event[i]);
  if (h->staging != NULL) (void)cudaFree(h->staging);
  if (h->stream != NULL) (void)cudaStreamDestroy(h->stream);
}

weft_status cuda_experts_join(cuda_device *d) {
  cuda_host_experts *h = &d->experts;
  if (h->stream == NULL || d->lost) return d->lost ? WEFT_E_DEVICE : WEFT_OK;
  return expert_slots_join(&h->slots);
}

weft_status cuda_experts_bring(cuda_device *d, const weft_weight **weight, weft_weight *copy) {
  cuda_host_experts *h = &d->experts;
  uint32_t slot;
  if (*weight == NULL || h->stream == NULL) return WEFT_OK;
  weft_status status = expert_slots_bring(&h->slots, (*weight)->data, &slot);
  if (status != WEFT_OK || slot == EXPERT_SLOTS) return status;
  *copy = **weight;
  copy->data = h->staging + slot * h->slot_bytes;
  *weight = copy;
  return WEFT_OK;
}

weft_status cuda_experts_done(cuda_device *d) {
  return d->experts.stream == NULL ? WEFT_OK : expert_slots_done(&d->experts.slots);
}
