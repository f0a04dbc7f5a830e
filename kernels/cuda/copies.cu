/* SPDX-License-Identifier: MIT */
#include "kernels/cuda/copies.h"

#include "kernels/cuda/common.cuh"

enum { COPY_THREADS = 256 };

/* Copies whole words T, at whose multiples both places lie. What is read may be memory of the host: no cache of the
 * card may have kept it. */
template <class T>
static __device__ __forceinline__ uint32_t copy_words(uint8_t *to, const uint8_t *from, uint32_t n_bytes) {
  for (uint32_t i = threadIdx.x; i < n_bytes / sizeof(T); i += COPY_THREADS)
    ((T *)(void *)to)[i] = __ldcv((const T *)(const void *)from + i);
  return (uint32_t)(n_bytes / sizeof(T) * sizeof(T));
}

static __global__ void __launch_bounds__(COPY_THREADS) copy_kernel(uint8_t *to, const uint8_t *from, uint32_t n_bytes) {
  wait_for_prior_grids();
  uintptr_t both = (uintptr_t)to | (uintptr_t)from;
  uint32_t done = both % 16 == 0  ? copy_words<uint4>(to, from, n_bytes)
                  : both % 4 == 0 ? copy_words<uint32_t>(to, from, n_bytes)
                                  : 0;
  copy_words<uint8_t>(to + done, from + done, n_bytes - done);
}

/* Whether a kernel of this card may read and write there. */
static bool is_near(const cuda_device *d, const void *memory) {
  cudaPointerAttributes of;
  if (cudaPointerGetAttributes(&of, memory) != cudaSuccess) {
    (void)cudaGetLastError();
    return false;
  }
  return of.type == cudaMemoryTypeHost || (of.type == cudaMemoryTypeDevice && of.device == d->card);
}

weft_status copies_enqueue(cuda_device *d, void *to, const void *from, uint64_t n_bytes, const char *what) {
  bool is_recorded = d->base.graphs != NULL && d->base.graphs->mode != STEP_GRAPHS_RUN;
  if (n_bytes > COPIES_SHORT_BYTES || is_recorded || !is_near(d, to) || !is_near(d, from))
    return cuda_judge(d, cudaMemcpyAsync(to, from, n_bytes, cudaMemcpyDefault, d->stream), what);
  d->fresh = true; /* kernels before it may read what it writes */
  cuda_start(d, copy_kernel, 1, COPY_THREADS, 0, (uint8_t *)to, (const uint8_t *)from, (uint32_t)n_bytes);
  d->fresh = true; /* and kernels behind it do not wait for what was uploaded */
  return cuda_launched(d, what);
}
