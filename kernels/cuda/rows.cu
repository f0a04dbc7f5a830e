/* SPDX-License-Identifier: MIT */
/* The ops of a row: embed, norm, gate, move.
 *
 * Law: which thread has an element, and so the order of every sum, depends on the row's length only. Loads of 16 bytes
 * and of 4 give the same numbers to the same thread. What lies in device memory cannot be refused by a launch: a token
 * that does not exist gives a row of NaN, which the head reports as bad. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/norm.cuh"

enum { ROW_THREADS = 256 };

/* ---- embed ---------------------------------------------------------------------------------------------- */

typedef struct embed_kernel_args {
  int type;
  form_cut cut;
  value_table values;
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
    value = element_value(a.type, a.values, element_at(a.type, a.cut, tile, (uint32_t)token % 16, i));
  }
  a.y[(uint64_t)r * a.y_stride + i] = __fmul_rn(value, a.scale);
}

weft_status cuda_embed(weft_device *device, const weft_embed_args *args) {
  cuda_device *d = cuda_of(device);
  const weft_weight *w = args->weight;
  if (d->lost) return WEFT_E_DEVICE;
  embed_kernel_args a;
  a.type = w->type;
  a.cut = form_cut_of(w->type, w->n_in, w->n_out);
  a.values = value_table_of(w->type);
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

/* EARLY: weights, which no kernel writes, are read before the inputs are there; otherwise when they are needed, which
 * takes fewer registers. With three slots two blocks fit on a multiprocessor in either case. */
template <int THREADS, int SLOTS, bool EARLY, bool WIDE>
static __global__ void __launch_bounds__(THREADS, SLOTS <= 3 ? 2 : 1)
    norm_kernel(const __grid_constant__ norm_kernel_args a) {
  using part = row_part<THREADS, SLOTS>;
  __shared__ norm_shared shared;
  next_may_start();
  const weft_norm_args &op = a.op;
  uint64_t r = blockIdx.x;
  norm_weights<THREADS, SLOTS> weights;
  get_weights<EARLY, WIDE>(op, a.wide, weights);
  float scale = row_scale_of(op, r);
  inputs_wait();
  part x, x2, add;
  get_part<WIDE>(op.x + r * op.x_stride, op.n_cols, a.wide, x);
  if (op.x2 != NULL) get_part<WIDE>(op.x2 + r * op.x2_stride, op.n_cols, a.wide, x2);
  if (op.add != NULL) get_part<WIDE>(op.add + r * op.add_stride, op.n_cols, a.wide, add);
  constexpr norm_from from = EARLY ? NORM_REGISTERS : NORM_MEMORY;
  norm_row<from, WIDE>(op, a.wide, r, scale, x, x2, add, weights, shared, NULL);
  norm_then<from, WIDE>(op, a.wide, r, x, weights, shared, NULL);
}

weft_status cuda_norm(weft_device *device, const weft_norm_args *args) {
  cuda_device *d = cuda_of(device);
  if (d->lost) return WEFT_E_DEVICE;
  norm_kernel_args a;
  a.op = *args;
  a.wide = norm_is_wide(args);
  bool early = args->n_rows <= d->n_multiprocessors;
  bool fours = a.wide && args->n_cols % 4 == 0;
  if (args->n_cols <= 3072)
    cuda_start(d, fours ? norm_kernel<256, 3, true, true> : norm_kernel<256, 3, true, false>, args->n_rows, 256, 0, a);
  else if (args->n_cols <= 4096 && early)
    cuda_start(d, fours ? norm_kernel<256, 4, true, true> : norm_kernel<256, 4, true, false>, args->n_rows, 256, 0, a);
  else if (args->n_cols <= 4096)
    cuda_start(d, norm_kernel<256, 4, false, false>, args->n_rows, 256, 0, a);
  else if (args->n_cols <= 32768)
    cuda_start(d, norm_kernel<1024, 8, false, false>, args->n_rows, 1024, 0, a);
  else if (args->n_cols <= 131072)
    cuda_start(d, norm_kernel<1024, 32, false, false>, args->n_rows, 1024, 0, a);
  else
    return WEFT_E_UNSUPPORTED;
  return cuda_launched(d, "norm");
}

/* ---- gate ----------------------------------------------------------------------------------------------- */

/* A thread has four columns of a row where they may be read at once, else one. */
template <class T>
static __global__ void __launch_bounds__(ROW_THREADS) gate_kernel(const __grid_constant__ weft_gate_args a) {
  inputs_ready();
  constexpr uint32_t n = sizeof(T) / sizeof(float);
  uint32_t i = n * (blockIdx.x * ROW_THREADS + threadIdx.x);
  for (uint64_t r = blockIdx.y; r < a.n_rows && i < a.n_cols; r += gridDim.y) {
    T g = *(const T *)(const void *)(a.g + r * a.g_stride + i),
      u = *(const T *)(const void *)(a.u + r * a.u_stride + i), y;
#pragma unroll
    for (uint32_t e = 0; e < n; e++)
      ((float *)&y)[e] = gate_product(a.activation, ((const float *)&g)[e], ((const float *)&u)[e]);
    *(T *)(void *)(a.y + r * a.y_stride + i) = y;
  }
}

weft_status cuda_gate(weft_device *device, const weft_gate_args *args) {
  cuda_device *d = cuda_of(device);
  if (d->lost) return WEFT_E_DEVICE;
  if (args->n_cols == 0) return WEFT_OK;
  bool wide = args->n_cols % 4 == 0 && is_wide(args->g, args->g_stride) && is_wide(args->u, args->u_stride) &&
              is_wide(args->y, args->y_stride);
  dim3 grid(cuda_ceil(args->n_cols, (wide ? 4 : 1) * ROW_THREADS), args->n_rows < 65535 ? args->n_rows : 65535);
  cuda_start(d, wide ? gate_kernel<float4> : gate_kernel<float>, grid, ROW_THREADS, 0, *args);
  return cuda_launched(d, "gate");
}

/* ---- move ----------------------------------------------------------------------------------------------- */

static __global__ void move_kernel(const weft_move_args a) {
  uint32_t r = blockIdx.x * blockDim.x + threadIdx.x;
  if (r >= a.n_rows) return;
  int32_t from = a.from_at[r], to = a.to_at == NULL ? (int32_t)r : a.to_at[r];
  if (from >= 0 && to >= 0) a.to[to] = a.from[from];
}

weft_status cuda_move(weft_device *device, const weft_move_args *args) {
  cuda_device *d = cuda_of(device);
  if (d->lost) return WEFT_E_DEVICE;
  move_kernel<<<cuda_ceil(args->n_rows, ROW_THREADS), ROW_THREADS, 0, d->stream>>>(*args);
  return cuda_launched(d, "move");
}
