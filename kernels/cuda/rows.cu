/* SPDX-License-Identifier: MIT */
/* The ops of a row: embed, norm, gate, route.
 *
 * Law: an element's thread, and so the order of every sum, depends on the row's length only. Loads of
 * 16 bytes and of 4 give the same numbers to the same thread. What lies in device memory cannot be
 * refused by a launch: a token that does not exist gives a row of NaN, which the head reports as bad. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/element.cuh"

enum { ROW_THREADS = 256 };

static bool is_wide(const void *p, uint64_t stride) {
  return ((uintptr_t)p & 15u) == 0 && stride % 4 == 0;
}

/* ---- embed ---------------------------------------------------------------------------------------------- */

typedef struct embed_kernel_args {
  int type;
  form_cut cut;
  const uint8_t *tiles;
  const int32_t *tokens;
  float *y;
  uint32_t n_in, n_vocab;
  uint64_t y_stride;
  float scale;
} embed_kernel_args;

static __global__ void embed_kernel(const embed_kernel_args a) {
  inputs_ready();
  uint32_t r = blockIdx.y;
  uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= a.n_in) return;
  int32_t token = a.tokens[r];
  float value;
  if (token < 0 || (uint32_t)token >= a.n_vocab) {
    value = not_a_number();
  } else if (a.type == WEFT_TYPE_F32) {
    value = ((const float *)(const void *)a.tiles)[(uint64_t)token * a.n_in + i];
  } else {
    const uint8_t *tile = a.tiles + (uint64_t)(token / 16) * a.cut.tile_bytes;
    value = element_value(a.type, element_at(a.type, a.cut, tile, (uint32_t)token % 16, i));
  }
  a.y[(uint64_t)r * a.y_stride + i] = __fmul_rn(value, a.scale);
}

weft_status weft_cuda_embed(weft_device *device, const weft_embed_args *args) {
  cuda_device *d = cuda_of(device);
  const weft_weight *w = args->weight;
  if (d->lost) return WEFT_E_DEVICE;
  embed_kernel_args a;
  a.type = w->type;
  a.cut = form_cut_of(w->type, w->n_in, w->n_out);
  a.tiles = (const uint8_t *)w->data + FORM_HEADER_BYTES;
  a.n_in = w->n_in;
  a.n_vocab = w->n_out;
  a.y_stride = args->y_stride;
  a.scale = args->scale;
  for (uint32_t first = 0; first < args->n_rows; first += 65535) {
    uint32_t n = args->n_rows - first < 65535 ? args->n_rows - first : 65535;
    a.tokens = args->tokens + first;
    a.y = args->y + (uint64_t)first * args->y_stride;
    cuda_start(d, embed_kernel, dim3(cuda_ceil(w->n_in, ROW_THREADS), n), ROW_THREADS, 0, a);
  }
  return cuda_launched(d, "embed");
}

/* ---- norm ----------------------------------------------------------------------------------------------- */

typedef struct norm_kernel_args {
  weft_norm_args op;
  bool wide;
} norm_kernel_args;

static __device__ __forceinline__ float4 row4(const float *row, uint32_t i, uint32_t n, bool wide) {
  if (wide && i + 4 <= n) return *(const float4 *)(const void *)(row + i);
  float4 v = make_float4(0, 0, 0, 0);
  if (i < n) v.x = row[i];
  if (i + 1 < n) v.y = row[i + 1];
  if (i + 2 < n) v.z = row[i + 2];
  if (i + 3 < n) v.w = row[i + 3];
  return v;
}

static __device__ __forceinline__ float4 summand4(const norm_kernel_args &a, uint64_t r, uint32_t i) {
  float4 v = row4(a.op.x + r * a.op.x_stride, i, a.op.n_cols, a.wide);
  if (a.op.x2 == NULL) return v;
  float4 w = row4(a.op.x2 + r * a.op.x2_stride, i, a.op.n_cols, a.wide);
  return make_float4(__fadd_rn(v.x, w.x), __fadd_rn(v.y, w.y), __fadd_rn(v.z, w.z),
                     __fadd_rn(v.w, w.w));
}

static __device__ __forceinline__ float normed(float v, float factor, float weight, float add,
                                               float scale) {
  return __fmul_rn(__fmaf_rn(__fmul_rn(v, factor), weight, add), scale);
}

static __global__ void __launch_bounds__(ROW_THREADS) norm_kernel(const norm_kernel_args a) {
  inputs_ready();
  __shared__ float shared[33];
  uint64_t r = blockIdx.x;
  uint32_t n = a.op.n_cols;
  float sum = 0.0f;
  for (uint32_t i = 4 * threadIdx.x; i < n; i += 4 * ROW_THREADS) {
    float4 v = summand4(a, r, i);
    sum = fmaf(v.x, v.x, sum);
    sum = fmaf(v.y, v.y, sum);
    sum = fmaf(v.z, v.z, sum);
    sum = fmaf(v.w, v.w, sum);
  }
  sum = block_sum(sum, shared);
  float factor = __fdiv_rn(1.0f, sqrtf(__fdiv_rn(sum, (float)n) + a.op.eps));
  float scale = a.op.row_scale == NULL ? 1.0f : a.op.row_scale[r];
  float *y = a.op.y + r * a.op.y_stride;
  for (uint32_t i = 4 * threadIdx.x; i < n; i += 4 * ROW_THREADS) {
    float4 v = summand4(a, r, i), w = make_float4(1, 1, 1, 1), add = make_float4(0, 0, 0, 0);
    if (a.op.weight != NULL) w = row4(a.op.weight, i, n, a.wide);
    if (a.op.add != NULL) add = row4(a.op.add + r * a.op.add_stride, i, n, a.wide);
    float4 out = make_float4(normed(v.x, factor, w.x, add.x, scale), normed(v.y, factor, w.y, add.y, scale),
                             normed(v.z, factor, w.z, add.z, scale), normed(v.w, factor, w.w, add.w, scale));
    if (a.wide && i + 4 <= n) {
      *(float4 *)(void *)(y + i) = out;
      continue;
    }
    y[i] = out.x;
    if (i + 1 < n) y[i + 1] = out.y;
    if (i + 2 < n) y[i + 2] = out.z;
    if (i + 3 < n) y[i + 3] = out.w;
  }
}

weft_status weft_cuda_norm(weft_device *device, const weft_norm_args *args) {
  cuda_device *d = cuda_of(device);
  if (d->lost) return WEFT_E_DEVICE;
  norm_kernel_args a;
  a.op = *args;
  a.wide = is_wide(args->x, args->x_stride) && is_wide(args->y, args->y_stride) &&
           (args->x2 == NULL || is_wide(args->x2, args->x2_stride)) &&
           (args->add == NULL || is_wide(args->add, args->add_stride)) &&
           (args->weight == NULL || is_wide(args->weight, 0));
  cuda_start(d, norm_kernel, args->n_rows, ROW_THREADS, 0, a);
  return cuda_launched(d, "norm");
}

/* ---- gate ----------------------------------------------------------------------------------------------- */

static __global__ void gate_kernel(const weft_gate_args a) {
  inputs_ready();
  uint64_t n = (uint64_t)a.n_rows * a.n_cols;
  uint64_t step = (uint64_t)gridDim.x * blockDim.x;
  for (uint64_t at = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; at < n; at += step) {
    uint64_t r = at / a.n_cols, i = at % a.n_cols;
    a.y[r * a.y_stride + i] =
        gate_product(a.activation, a.g[r * a.g_stride + i], a.u[r * a.u_stride + i]);
  }
}

weft_status weft_cuda_gate(weft_device *device, const weft_gate_args *args) {
  cuda_device *d = cuda_of(device);
  if (d->lost) return WEFT_E_DEVICE;
  if (args->n_cols == 0) return WEFT_OK;
  uint64_t n_blocks = ((uint64_t)args->n_rows * args->n_cols + ROW_THREADS - 1) / ROW_THREADS;
  if (n_blocks > 16ull * d->n_multiprocessors) n_blocks = 16ull * d->n_multiprocessors;
  cuda_start(d, gate_kernel, (uint32_t)n_blocks, ROW_THREADS, 0, *args);
  return cuda_launched(d, "gate");
}

/* ---- route ---------------------------------------------------------------------------------------------- */

enum { ROUTE_WARPS = 4 };

/* A logit as a number that orders: NaN below everything. Larger is better; of equal ones the lower index. */
static __device__ __forceinline__ float order_of(float logit) {
  return isnan(logit) ? -INFINITY : logit;
}

/* The best expert after (last, last_index) in that order; whole warp. */
static __device__ void next_best(const float *logits, uint32_t n, bool first, float last,
                                 uint32_t last_index, float *best, uint32_t *best_index) {
  float value = -INFINITY;
  uint32_t index = UINT32_MAX;
  for (uint32_t e = threadIdx.x % 32; e < n; e += 32) {
    float v = order_of(logits[e]);
    if (!first && !(v < last || (v == last && e > last_index))) continue;
    if (index == UINT32_MAX || v > value) value = v, index = e; /* e ascends: ties keep the first */
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    float v = __shfl_xor_sync(0xFFFFFFFFu, value, step);
    uint32_t i = __shfl_xor_sync(0xFFFFFFFFu, index, step);
    bool better = i != UINT32_MAX && (index == UINT32_MAX || v > value || (v == value && i < index));
    if (better) value = v, index = i;
  }
  *best = value;
  *best_index = index;
}

static __global__ void route_kernel(const weft_route_args a) {
  inputs_ready();
  uint32_t r = blockIdx.x * ROUTE_WARPS + threadIdx.x / 32;
  if (r >= a.n_rows) return;
  const float *logits = a.logits + (uint64_t)r * a.logits_stride;
  int32_t *ids = a.ids + (uint64_t)r * a.k;
  float *weights = a.weights + (uint64_t)r * a.k;
  float last = 0.0f, top = 0.0f, total = 0.0f;
  uint32_t index = 0;
  for (uint32_t j = 0; j < a.k; j++) {
    next_best(logits, a.n_experts, j == 0, last, index, &last, &index);
    float logit = logits[index];
    if (j == 0) top = logit;
    float e = expf(logit - top);
    total = __fadd_rn(total, e);
    if (threadIdx.x % 32 == 0) ids[j] = (int32_t)index, weights[j] = e;
  }
  __syncwarp();
  for (uint32_t j = threadIdx.x % 32; j < a.k; j += 32) {
    float weight = __fdiv_rn(weights[j], total);
    if (a.expert_scale != NULL) weight = __fmul_rn(weight, a.expert_scale[ids[j]]);
    weights[j] = weight;
  }
}

weft_status weft_cuda_route(weft_device *device, const weft_route_args *args) {
  cuda_device *d = cuda_of(device);
  if (d->lost) return WEFT_E_DEVICE;
  cuda_start(d, route_kernel, cuda_ceil(args->n_rows, ROUTE_WARPS), 32 * ROUTE_WARPS, 0, *args);
  return cuda_launched(d, "route");
}

/* ---- move ----------------------------------------------------------------------------------------------- */

static __global__ void move_kernel(const weft_move_args a) {
  uint32_t r = blockIdx.x * blockDim.x + threadIdx.x;
  if (r >= a.n_rows) return;
  int32_t from = a.from_at[r], to = a.to_at == NULL ? (int32_t)r : a.to_at[r];
  if (from >= 0 && to >= 0) a.to[to] = a.from[from];
}

weft_status weft_cuda_move(weft_device *device, const weft_move_args *args) {
  cuda_device *d = cuda_of(device);
  if (d->lost) return WEFT_E_DEVICE;
  move_kernel<<<cuda_ceil(args->n_rows, ROW_THREADS), ROW_THREADS, 0, d->stream>>>(*args);
  return cuda_launched(d, "move");
}
