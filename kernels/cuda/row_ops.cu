/* SPDX-License-Identifier: MIT */
/* The ops of a row: embed, norm, gate, move.
 *
 * Law: which thread has an element, and so the order of every sum, depends on the row's length only. Loads of 16 bytes
 * and of 4 give the same numbers to the same thread. What lies in device memory cannot be refused by a launch: a token
 * that does not exist gives a row of NaN, which the head reports as bad. */
#include "kernels/cuda/gemm/w8a8.cuh"
#include "kernels/cuda/moe/limited_gate.cuh"
#include "kernels/cuda/weights/packed_element.cuh"

enum { ROW_THREADS = 256, ANY_TYPE = -1 };

static bool is_wide(const void *p, uint64_t stride) {
  return ((uintptr_t)p & 15u) == 0 && stride % 4 == 0;
}

/* ---- embed ---------------------------------------------------------------------------------------------- */

typedef struct embed_kernel_args {
  element_rows rows;
  const int32_t *tokens;
  float *y;
  uint64_t y_stride;
  float scale;
} embed_kernel_args;

/* TYPE: of the weight where the compiler may know it, so that code of other types is not there; else ANY_TYPE. */
template <int TYPE>
static __global__ void embed_kernel(const __grid_constant__ embed_kernel_args a) {
  launch_dependents_and_wait();
  uint32_t r = blockIdx.y;
  uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= a.rows.n_in) return;
  int32_t token = a.tokens[r];
  bool exists = token >= 0 && (uint32_t)token < a.rows.n_rows;
  element_rows rows = a.rows;
  if (TYPE != ANY_TYPE) rows.type = TYPE;
  float value = exists ? element_of(rows, (uint32_t)token, i) : not_a_number();
  a.y[(uint64_t)r * a.y_stride + i] = __fmul_rn(value, a.scale);
}

weft_status cuda_embed(weft_device *device, const weft_embed_args *args) {
  cuda_device *d = cuda_of(device);
  const weft_weight *w = args->weight;
  if (d->lost) return WEFT_E_DEVICE;
  embed_kernel_args a;
  a.rows = element_rows_of(w);
  a.y_stride = args->y_stride;
  a.scale = args->scale;
  auto kernel = w->type == WEFT_TYPE_Q6_K ? embed_kernel<WEFT_TYPE_Q6_K> : embed_kernel<ANY_TYPE>;
  for (uint32_t first = 0; first < args->n_rows; first += 65535) {
    uint32_t n = args->n_rows - first < 65535 ? args->n_rows - first : 65535;
    a.tokens = args->tokens + first;
    a.y = args->y + (uint64_t)first * args->y_stride;
    cuda_start(d, kernel, dim3(cuda_ceil(w->n_in, ROW_THREADS), n), ROW_THREADS, 0, a);
  }
  return cuda_launched(d, "embed");
}

/* ---- norm ----------------------------------------------------------------------------------------------- */

typedef struct norm_kernel_args {
  weft_norm_args op;
  uint64_t back_at; /* gemm_unscale_at of rows that are left in 16 bits */
  bool wide;
} norm_kernel_args;

/* WIDE: the rows may be read and written four numbers at a time, and have whole fours. */
template <bool WIDE>
static __device__ __forceinline__ float4 load_row4(const float *row, uint32_t i, uint32_t n, bool wide) {
  if (WIDE) return i < n ? *(const float4 *)(const void *)(row + i) : make_float4(0, 0, 0, 0);
  if (wide && i + 4 <= n) return *(const float4 *)(const void *)(row + i);
  return load_four(row, i, n);
}

template <bool WIDE>
static __device__ __forceinline__ void store_row4(float *row, uint32_t i, uint32_t n, bool wide, const float4 &v) {
  if (WIDE) {
    if (i < n) *(float4 *)(void *)(row + i) = v;
    return;
  }
  if (wide && i + 4 <= n) {
    *(float4 *)(void *)(row + i) = v;
    return;
  }
  if (i < n) row[i] = v.x;
  if (i + 1 < n) row[i + 1] = v.y;
  if (i + 2 < n) row[i + 2] = v.z;
  if (i + 3 < n) row[i + 3] = v.w;
}

static __device__ __forceinline__ float norm_element(float v, float factor, float weight, float add, float scale) {
  return __fmul_rn(__fmaf_rn(__fmul_rn(v, factor), weight, add), scale);
}

static __device__ __forceinline__ float4 norm_element4(const float4 &v, float factor, const float4 &w,
                                                       const float4 &add, float scale) {
  return make_float4(norm_element(v.x, factor, w.x, add.x, scale), norm_element(v.y, factor, w.y, add.y, scale),
                     norm_element(v.z, factor, w.z, add.z, scale), norm_element(v.w, factor, w.w, add.w, scale));
}

/* The same with nothing to add and a scale of 1. */
static __device__ __forceinline__ float4 norm_plain4(const float4 &v, float factor, const float4 &w) {
  return make_float4(__fmaf_rn(__fmul_rn(v.x, factor), w.x, 0.0f), __fmaf_rn(__fmul_rn(v.y, factor), w.y, 0.0f),
                     __fmaf_rn(__fmul_rn(v.z, factor), w.z, 0.0f), __fmaf_rn(__fmul_rn(v.w, factor), w.w, 0.0f));
}

/* The larger of two magnitudes; NaN if one is. */
static __device__ __forceinline__ float larger(float a, float b) {
  float most;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(most) : "f"(fabsf(a)), "f"(fabsf(b)));
  return most;
}

static __device__ __forceinline__ uint32_t max_of_four(const float4 &v) {
  return __float_as_uint(larger(larger(v.x, v.y), larger(v.z, v.w)));
}

/* A thread's part of a row: the numbers 4 (t THREADS + thread) .. + 3 for t < SLOTS. */
template <int THREADS, int SLOTS>
struct row_part {
  float4 at[SLOTS];
};

template <bool WIDE, int THREADS, int SLOTS>
static __device__ __forceinline__ void get_part(const float *row, uint32_t n, bool wide,
                                                row_part<THREADS, SLOTS> &out) {
#pragma unroll
  for (uint32_t t = 0; t < SLOTS; t++) out.at[t] = load_row4<WIDE>(row, 4 * (t * THREADS + threadIdx.x), n, wide);
}

/* Reads the weight of a norm, if NOW. KEPT: it is to leave the L2 cache last. */
template <bool NOW, bool KEPT, bool WIDE, int THREADS, int SLOTS>
static __device__ __forceinline__ void get_weight(const float *row, uint32_t n, bool wide,
                                                  row_part<THREADS, SLOTS> &out) {
  if constexpr (NOW) {
#pragma unroll
    for (uint32_t t = 0; t < SLOTS; t++) {
      uint32_t i = 4 * (t * THREADS + threadIdx.x);
      if (row == NULL) continue;
      if (KEPT && (WIDE ? i < n : wide && i + 4 <= n))
        out.at[t] = load_evict_last((const float4 *)(const void *)(row + i));
      else
        out.at[t] = load_row4<WIDE>(row, i, n, wide);
    }
  }
}

/* 1 / rms of one or two rows, with one barrier for both. shared: scratch that nothing else of the kernel uses. */
template <int THREADS, int SLOTS>
static __device__ __forceinline__ float2 factors_of(const row_part<THREADS, SLOTS> &x,
                                                    const row_part<THREADS, SLOTS> &x2, bool two, uint32_t n, float eps,
                                                    float (*shared)[32]) {
  float sum[2] = {0.0f, 0.0f};
#pragma unroll
  for (uint32_t t = 0; t < SLOTS; t++) {
    sum[0] = fmaf(x.at[t].x, x.at[t].x, sum[0]);
    sum[0] = fmaf(x.at[t].y, x.at[t].y, sum[0]);
    sum[0] = fmaf(x.at[t].z, x.at[t].z, sum[0]);
    sum[0] = fmaf(x.at[t].w, x.at[t].w, sum[0]);
    if (!two) continue;
    sum[1] = fmaf(x2.at[t].x, x2.at[t].x, sum[1]);
    sum[1] = fmaf(x2.at[t].y, x2.at[t].y, sum[1]);
    sum[1] = fmaf(x2.at[t].z, x2.at[t].z, sum[1]);
    sum[1] = fmaf(x2.at[t].w, x2.at[t].w, sum[1]);
  }
  uint32_t lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    if (i == 1 && !two) continue;
    sum[i] = warp_sum(sum[i]);
    if (lane == 0) shared[i][threadIdx.x / 32] = sum[i];
  }
  __syncthreads();
  float factor[2] = {0.0f, 0.0f};
#pragma unroll
  for (int i = 0; i < 2; i++) {
    if (i == 1 && !two) continue;
    float all = shared[i][lane % (THREADS / 32)];
#pragma unroll
    for (int step = THREADS / 64; step > 0; step /= 2) all += __shfl_xor_sync(0xFFFFFFFFu, all, step);
    factor[i] = __fdiv_rn(1.0f, sqrtf(__fdiv_rn(all, (float)n) + eps));
  }
  return make_float2(factor[0], factor[1]);
}

template <int THREADS, int SLOTS>
static __device__ __forceinline__ void scale_part(const row_part<THREADS, SLOTS> &x, float factor,
                                                  const row_part<THREADS, SLOTS> &w, row_part<THREADS, SLOTS> &out) {
#pragma unroll
  for (uint32_t t = 0; t < SLOTS; t++) out.at[t] = norm_plain4(x.at[t], factor, w.at[t]);
}

/* Quantises the thread's part of row r for W8A8, and writes it. most: of each unit, of which two are a span; lane t
 * of a warp finds the scale of the span that the warp's unit t belongs to. */
template <int THREADS, int SLOTS>
static __device__ __forceinline__ void write_w8a8(const norm_kernel_args &a, uint8_t *out,
                                                  const row_part<THREADS, SLOTS> &v,
                                                  const uint32_t (*most)[THREADS / 32]) {
  constexpr uint32_t WARPS = THREADS / 32;
  uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, r = blockIdx.x, n = a.op.n_cols;
  uint32_t n_tiles = (a.op.n_rows + 7) / 8, unit = lane * WARPS + warp;
  float inverse = 0.0f;
  if (lane < SLOTS && 128 * unit < n) {
    float *scales = (float *)(void *)(out + w8a8_scales_at(n / W8A8_SPAN, n_tiles));
    float scale = w8a8_scale(max(most[lane][warp], most[lane][warp ^ 1]), &inverse);
    if (unit % 2 == 0) scales[(uint64_t)(unit / 2) * n_tiles * 8 + r] = scale;
  }
  uint8_t *to = out + w8a8_at(n_tiles, warp, r, lane % 8) + 4 * (lane / 8);
#pragma unroll
  for (uint32_t t = 0; t < SLOTS; t++, to += (uint64_t)WARPS * n_tiles * 1024) {
    float own = __shfl_sync(0xFFFFFFFFu, inverse, t);
    if (128 * (t * WARPS + warp) < n) *(uint32_t *)(void *)to = w8a8_bytes(&v.at[t].x, own);
  }
}

/* Writes four numbers of row r, inputs 4 lane .. of a unit, in 16 bits (gemm.h). most: of the row. A last unit may have
 * 64 inputs. */
static __device__ __forceinline__ void write_f16(const norm_kernel_args &a, uint8_t *out, uint32_t unit,
                                                 const float4 &v, uint32_t most) {
  uint32_t lane = threadIdx.x % 32, r = blockIdx.x, n_tiles = (a.op.n_rows + 7) / 8;
  uint32_t lanes = a.op.n_cols - 128 * unit < 128 ? 4 : 8, p = lane % lanes * 2; /* of neighbouring inputs */
  int scale_exponent = scale_exponent_of(most);
  float up = power_of_two(scale_exponent);
  uint8_t *to = out + ((uint64_t)unit * n_tiles + r / 8) * 2048 + p / 8 * 1024 + r % 8 * 128 + lane / lanes * 4;
  if (lane == 0 && unit == 0) ((float *)(void *)(out + a.back_at))[r] = power_of_two(-scale_exponent);
  if (lane >= 4 * lanes) return;
  *(uint32_t *)(void *)(to + (p % 8 ^ r % 8) * 16) = pair_f16(__fmul_rn(v.x, up), __fmul_rn(v.y, up));
  *(uint32_t *)(void *)(to + ((p + 1) % 8 ^ r % 8) * 16) = pair_f16(__fmul_rn(v.z, up), __fmul_rn(v.w, up));
}

/* Writes rms(y) * w for each norm that follows; y is the thread's part of the row, and factor its 1 / rms. A warp
 * has 128 numbers that lie side by side. Where they are quantised for W8A8, two warps agree on the largest of a
 * span; for 16 bits all of them on that of the row. shared: scratch that nothing else of the kernel uses. */
template <int THREADS, int SLOTS, bool EARLY, bool WIDE>
static __device__ __forceinline__ void write_then(const norm_kernel_args &a, const row_part<THREADS, SLOTS> &y,
                                                  float factor, row_part<THREADS, SLOTS> (&weight)[WEFT_NORM_THEN_MAX],
                                                  uint32_t (*shared)[SLOTS][THREADS / 32]) {
  const weft_norm_args &op = a.op;
  uint32_t n = op.n_cols, warp = threadIdx.x / 32, lane = threadIdx.x % 32, r = blockIdx.x;
#pragma unroll(EARLY ? WEFT_NORM_THEN_MAX : 1)
  for (uint32_t i = 0; i < WEFT_NORM_THEN_MAX; i++) {
    if (i >= op.n_then) break;
    row_part<THREADS, SLOTS> v;
    if constexpr (EARLY) v = weight[i];
    get_weight<!EARLY, (SLOTS > 3), WIDE>(op.then_weight[i], n, a.wide, v);
    scale_part(y, factor, v, v);
    if (op.then_form[i] == WEFT_ROWS_F32) {
#pragma unroll
      for (uint32_t t = 0; t < SLOTS; t++)
        store_row4<WIDE>(op.then[i] + r * op.y_stride, 4 * (t * THREADS + threadIdx.x), n, a.wide, v.at[t]);
      continue;
    }
#pragma unroll
    for (uint32_t t = 0; t < SLOTS; t++) {
      uint32_t most = __reduce_max_sync(0xFFFFFFFFu, max_of_four(v.at[t]));
      if (lane == 0) shared[i][t][warp] = 128 * (t * (THREADS / 32) + warp) < n ? most : 0;
    }
    __syncthreads();
    uint8_t *out = (uint8_t *)(void *)op.then[i];
    if (op.then_form[i] == CUDA_ROWS_W8A8) {
      write_w8a8<THREADS, SLOTS>(a, out, v, shared[i]);
      continue;
    }
    uint32_t most = 0;
    for (uint32_t j = lane; j < SLOTS * THREADS / 32; j += 32) most = max(most, (&shared[i][0][0])[j]);
    most = __reduce_max_sync(0xFFFFFFFFu, most);
#pragma unroll
    for (uint32_t t = 0; t < SLOTS; t++)
      if (128 * (t * (THREADS / 32) + warp) < n) write_f16(a, out, t * (THREADS / 32) + warp, v.at[t], most);
  }
}

/* How many blocks a multiprocessor is to hold at the least. Where a row has more threads, they are fewer. */
constexpr int norm_blocks(int threads, int slots, bool early) {
  return slots > 3 || (early && threads > 256) ? 1 : threads > 256 ? 2 : 3 - early;
}

/* EARLY: weights, which no kernel writes, are read before the inputs are there; otherwise when they are needed, which
 * takes fewer registers: with three slots three blocks fit on a multiprocessor, not two. */
template <int THREADS, int SLOTS, bool EARLY, bool WIDE>
static __global__ void __launch_bounds__(THREADS, norm_blocks(THREADS, SLOTS, EARLY))
    norm_kernel(const __grid_constant__ norm_kernel_args a) {
  using part = row_part<THREADS, SLOTS>;
  __shared__ float shared[3][2][32];
  __shared__ uint32_t most[WEFT_NORM_THEN_MAX][SLOTS][THREADS / 32];
  launch_dependent_grids();
  const weft_norm_args &op = a.op;
  uint64_t r = blockIdx.x;
  uint32_t n = op.n_cols;
  part weight, x_weight, x2_weight, then_weight[WEFT_NORM_THEN_MAX];
  get_weight<EARLY, true, WIDE>(op.x_weight, n, a.wide, x_weight);
  get_weight<EARLY, true, WIDE>(op.x2_weight, n, a.wide, x2_weight);
  get_weight<EARLY, true, WIDE>(op.weight, n, a.wide, weight);
#pragma unroll
  for (uint32_t i = 0; i < WEFT_NORM_THEN_MAX; i++)
    if (i < op.n_then) get_weight<EARLY, true, WIDE>(op.then_weight[i], n, a.wide, then_weight[i]);
  wait_for_prior_grids();
  float scale = op.row_scale == NULL ? 1.0f : op.row_scale[r]; /* a kernel may have made it (model/layers.c) */
  part x, x2, add;
  get_part<WIDE>(op.x + r * op.x_stride, n, a.wide, x);
  if (op.x2 != NULL) get_part<WIDE>(op.x2 + r * op.x2_stride, n, a.wide, x2);
  if (op.add != NULL) get_part<WIDE>(op.add + r * op.add_stride, n, a.wide, add);
  if (op.x_weight != NULL || (op.x2 != NULL && op.x2_weight != NULL)) {
    float2 factor = factors_of<THREADS, SLOTS>(x, x2, op.x2 != NULL, n, op.eps, shared[0]);
    if (op.x_weight != NULL) {
      get_weight<!EARLY, (SLOTS > 3), WIDE>(op.x_weight, n, a.wide, x_weight);
      scale_part(x, factor.x, x_weight, x);
    }
    if (op.x2 != NULL && op.x2_weight != NULL) {
      get_weight<!EARLY, (SLOTS > 3), WIDE>(op.x2_weight, n, a.wide, x2_weight);
      scale_part(x2, factor.y, x2_weight, x2);
    }
  }
#pragma unroll
  for (uint32_t t = 0; t < SLOTS; t++) {
    if (op.x2 == NULL) continue;
    x.at[t] = make_float4(__fadd_rn(x.at[t].x, x2.at[t].x), __fadd_rn(x.at[t].y, x2.at[t].y),
                          __fadd_rn(x.at[t].z, x2.at[t].z), __fadd_rn(x.at[t].w, x2.at[t].w));
  }
  float factor = op.plain ? 1.0f : factors_of<THREADS, SLOTS>(x, x, false, n, op.eps, shared[1]).x;
  float none = op.plain ? -0.0f : 0.0f; /* what is not normed keeps the sign of a zero */
  get_weight<!EARLY, (SLOTS > 3), WIDE>(op.weight, n, a.wide, weight);
#pragma unroll
  for (uint32_t t = 0; t < SLOTS; t++) {
    float4 w = op.weight != NULL ? weight.at[t] : make_float4(1, 1, 1, 1);
    x.at[t] =
        norm_element4(x.at[t], factor, w, op.add != NULL ? add.at[t] : make_float4(none, none, none, none), scale);
    store_row4<WIDE>(op.y + r * op.y_stride, 4 * (t * THREADS + threadIdx.x), n, a.wide, x.at[t]);
  }
  if (op.n_then == 0) return;
  factor = factors_of<THREADS, SLOTS>(x, x, false, n, op.eps, shared[2]).x;
  write_then<THREADS, SLOTS, EARLY, WIDE>(a, x, factor, then_weight, most);
}

/* Whether rows may be left so, as device_rows_form (device.cu) says of weights that read them. */
static bool leaves_form(const weft_norm_args *args, weft_rows_form form) {
  if (form == WEFT_ROWS_F32 || w8a8_fits(args->n_rows, args->n_cols)) return true;
  return form == (weft_rows_form)CUDA_ROWS_F16 && args->n_cols % 64 == 0 && gemm_is_tiled(args->n_rows, 0);
}

weft_status cuda_norm(weft_device *device, const weft_norm_args *args) {
  cuda_device *d = cuda_of(device);
  if (d->lost) return WEFT_E_DEVICE;
  norm_kernel_args a;
  a.op = *args;
  a.back_at = gemm_unscale_at(args->n_rows, args->n_cols);
  a.wide = is_wide(args->x, args->x_stride) && is_wide(args->y, args->y_stride) &&
           (args->x2 == NULL || is_wide(args->x2, args->x2_stride)) &&
           (args->add == NULL || is_wide(args->add, args->add_stride)) && is_wide(args->weight, 0) &&
           is_wide(args->x_weight, 0) && is_wide(args->x2_weight, 0);
  for (uint32_t i = 0; i < args->n_then; i++)
    if (!leaves_form(args, args->then_form[i])) return WEFT_E_INVALID;
  for (uint32_t i = 0; i < args->n_then; i++)
    a.wide = a.wide && is_wide(args->then[i], args->y_stride) && is_wide(args->then_weight[i], 0);
  bool early = args->n_rows <= d->n_multiprocessors;
  bool fours = a.wide && args->n_cols % 4 == 0;
  if (args->n_cols <= 1024 && early && fours)
    cuda_start(d, norm_kernel<256, 1, true, true>, args->n_rows, 256, 0, a);
  else if (args->n_cols <= 3072 && early)
    cuda_start(d, fours ? norm_kernel<256, 3, true, true> : norm_kernel<256, 3, true, false>, args->n_rows, 256, 0, a);
  else if (args->n_cols <= 3072)
    cuda_start(d, fours ? norm_kernel<256, 3, false, true> : norm_kernel<256, 3, false, false>, args->n_rows, 256, 0,
               a);
  else if (args->n_cols <= 4096 && early)
    cuda_start(d, fours ? norm_kernel<256, 4, true, true> : norm_kernel<256, 4, true, false>, args->n_rows, 256, 0, a);
  else if (args->n_cols <= 4096)
    cuda_start(d, norm_kernel<256, 4, false, false>, args->n_rows, 256, 0, a);
  else if (args->n_cols <= 6144 && fours)
    cuda_start(d, early ? norm_kernel<512, 3, true, true> : norm_kernel<512, 3, false, true>, args->n_rows, 512, 0, a);
  else if (args->n_cols <= 8192)
    cuda_start(d, norm_kernel<512, 4, false, false>, args->n_rows, 512, 0, a);
  else if (args->n_cols <= 32768)
    cuda_start(d, norm_kernel<1024, 8, false, false>, args->n_rows, 1024, 0, a);
  else if (args->n_cols <= 131072)
    cuda_start(d, norm_kernel<1024, 32, false, false>, args->n_rows, 1024, 0, a);
  else
    return WEFT_E_UNSUPPORTED;
  return cuda_launched(d, "norm");
}

/* ---- gate ----------------------------------------------------------------------------------------------- */

/* How a gate's products are made. */
typedef enum gate_way { GATE_ACTIVATED, GATE_CLAMPED, GATE_SIGMOID } gate_way;

template <gate_way WAY>
static __device__ __forceinline__ float gate_one(weft_activation activation, float g, float u, float limit) {
  if (WAY == GATE_CLAMPED) return clamped_gate(g, u);
  if (WAY == GATE_SIGMOID) return __fdiv_rn(u, __fadd_rn(1.0f, expf(-g)));
  return limited_gate(activation, limit, g, u);
}

/* A thread has four columns of a row where they may be read at once, else one. */
template <class T, gate_way WAY>
static __global__ void __launch_bounds__(ROW_THREADS) gate_kernel(const __grid_constant__ weft_gate_args a) {
  launch_dependents_and_wait();
  constexpr uint32_t n = sizeof(T) / sizeof(float);
  uint32_t i = n * (blockIdx.x * ROW_THREADS + threadIdx.x);
  for (uint64_t r = blockIdx.y; r < a.n_rows && i < a.n_cols; r += gridDim.y) {
    T g, u = *(const T *)(const void *)(a.u + r * a.u_stride + i), y;
    float own = WAY == GATE_SIGMOID && a.one_g ? a.g[r * a.g_stride] : 0.0f;
    if (WAY != GATE_SIGMOID || !a.one_g) g = *(const T *)(const void *)(a.g + r * a.g_stride + i);
#pragma unroll
    for (uint32_t e = 0; e < n; e++) {
      if (WAY != GATE_SIGMOID || !a.one_g) own = ((const float *)&g)[e];
      ((float *)&y)[e] = gate_one<WAY>(a.activation, own, ((const float *)&u)[e], a.limit);
    }
    *(T *)(void *)(a.y + r * a.y_stride + i) = y;
  }
}

template <gate_way WAY>
static void start_gate(cuda_device *d, const weft_gate_args *args) {
  bool wide = args->n_cols % 4 == 0 && (args->one_g || is_wide(args->g, args->g_stride)) &&
              is_wide(args->u, args->u_stride) && is_wide(args->y, args->y_stride);
  dim3 grid(cuda_ceil(args->n_cols, (wide ? 4 : 1) * ROW_THREADS), args->n_rows < 65535 ? args->n_rows : 65535);
  cuda_start(d, wide ? gate_kernel<float4, WAY> : gate_kernel<float, WAY>, grid, ROW_THREADS, 0, *args);
}

weft_status cuda_gate(weft_device *device, const weft_gate_args *args) {
  cuda_device *d = cuda_of(device);
  if (d->lost) return WEFT_E_DEVICE;
  if (args->n_cols == 0) return WEFT_OK;
  if (args->activation == WEFT_SIGMOID)
    start_gate<GATE_SIGMOID>(d, args);
  else if (args->activation == WEFT_CLAMPED_SILU)
    start_gate<GATE_CLAMPED>(d, args);
  else
    start_gate<GATE_ACTIVATED>(d, args);
  return cuda_launched(d, "gate");
}

/* ---- move ----------------------------------------------------------------------------------------------- */

static __global__ void move_kernel(const weft_move_args a) {
  launch_dependents_and_wait();
  uint32_t r = blockIdx.x * blockDim.x + threadIdx.x;
  if (r >= a.n_rows) return;
  int32_t from = a.from_at[r], to = a.to_at == NULL ? (int32_t)r : a.to_at[r];
  if (from >= 0 && to >= 0) a.to[to] = a.from[from];
}

weft_status cuda_move(weft_device *device, const weft_move_args *args) {
  cuda_device *d = cuda_of(device);
  if (d->lost) return WEFT_E_DEVICE;
  cuda_start(d, move_kernel, cuda_ceil(args->n_rows, ROW_THREADS), ROW_THREADS, 0, *args);
  return cuda_launched(d, "move");
}
