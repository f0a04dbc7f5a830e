/* SPDX-License-Identifier: MIT */
/* head_groups: a kernel that empties rows, then one in which a warp has a token of a row's groups.
 *
 * Law (numerics): a product is the sum of 32 chains of inputs in f32, of which chain l adds inputs l, l + 32 ..,
 * ascending, which a tree reduces, neighbours first. */
#include "kernels/cuda/moe/route.h"
#include "kernels/cuda/weights/packed_element.cuh"

enum { THREADS = 256, WARPS = THREADS / 32 };

typedef struct groups_kernel_args {
  weft_head_groups_args op;
  element_rows rows;
} groups_kernel_args;

static __global__ void __launch_bounds__(THREADS) empty_kernel(const __grid_constant__ groups_kernel_args a) {
  launch_dependents_and_wait();
  float *logits = a.op.logits + blockIdx.y * a.op.logits_stride;
  for (uint32_t v = blockIdx.x * THREADS + threadIdx.x; v < a.rows.n_rows; v += gridDim.x * THREADS)
    logits[v] = __int_as_float(0xFF800000);
}

static __global__ void __launch_bounds__(THREADS) groups_kernel(const __grid_constant__ groups_kernel_args a) {
  launch_dependents_and_wait();
  const uint64_t r = blockIdx.y, i = (uint64_t)blockIdx.x * WARPS + threadIdx.x / 32;
  if (i >= (uint64_t)a.op.k * a.op.size) return;
  const uint32_t group = (uint32_t)a.op.ids[r * a.op.k + i / a.op.size];
  if (group >= a.op.n_groups) return;
  const uint32_t token = (uint32_t)a.op.tokens[(uint64_t)group * a.op.size + i % a.op.size];
  if (token >= a.rows.n_rows) return;
  const float *h = a.op.h + r * a.op.h_stride;
  float sum = 0.0f;
  for (uint32_t j = threadIdx.x % 32; j < a.rows.n_in; j += 32)
    sum = __fmaf_rn(h[j], element_of(a.rows, token, j), sum);
  sum = sum_of_chains(sum);
  if (threadIdx.x % 32 == 0) a.op.logits[r * a.op.logits_stride + token] = sum;
}

weft_status cuda_head_groups(weft_device *device, const weft_head_groups_args *args) {
  cuda_device *d = cuda_of(device);
  if (d->lost) return WEFT_E_DEVICE;
  groups_kernel_args a;
  a.op = *args;
  a.rows = element_rows_of(args->weight);
  const uint32_t n_blocks = cuda_ceil(args->weight->n_out, THREADS);
  cuda_start(d, empty_kernel, dim3(n_blocks < 256 ? n_blocks : 256, args->n_rows), THREADS, 0, a);
  weft_status status = cuda_launched(d, "empty rows");
  if (status != WEFT_OK) return status;
  const uint64_t n_tokens = (uint64_t)args->k * args->size;
  cuda_start(d, groups_kernel, dim3((uint32_t)((n_tokens + WARPS - 1) / WARPS), args->n_rows), THREADS, 0, a);
  return cuda_launched(d, "head_groups");
}
