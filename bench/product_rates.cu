/* SPDX-License-Identifier: MIT */
/* What the matrix units of a Hopper card can do, bare: operations per second and per joule of products of 16 and of 8
 * bits whose sums are scaled and added up in f32 after every 32, 64, 128 or 256 inputs, or never. It decides which
 * numerics a kernel should be written for, before one is written.
 *
 * usage: bench_product_rates [SECONDS]     of each form [1]; a JSON object each; exit code 1 if a product was wrong
 *
 * A block has two groups of four warps. A group multiplies 64 outputs, from registers, by 128 rows, from shared memory
 * that was filled with random numbers before; nothing is loaded or unpacked while it runs, so a kernel that does real
 * work ends below. One group's scaling runs beside the other group's products. Scaling is what rows and weights with a
 * scale each ask for: sum += (product * scale of the row) * scale of the output. Integers become floats by one
 * instruction. Every form first computes one small product that is compared with the host's. */
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/random.h"
#include "bench/energy.h"
#include "kernels/cuda/wgmma.cuh"

enum {
  OUTPUTS = 64,
  ROWS = 128,
  UNIT = 128 * ROWS,
  UNITS = 8,
  STEP = 32
}; /* bytes: of a unit, of a product's inputs */
enum { A_STEPS = 8, N_SUMS = ROWS / 2, GROUPS = 2, CHECK_STEPS = 16 };
typedef enum form { F16, BF16, S8, E4M3 } form;

static const char *const names[] = {"f16", "bf16", "s8", "e4m3"};

/* Inputs in the 32 bytes that one instruction multiplies. */
static __host__ __device__ constexpr int step_inputs(int form) {
  return form == S8 || form == E4M3 ? 32 : 16;
}

template <int FORM>
struct sum_of {
  typedef float type;
};
template <>
struct sum_of<S8> {
  typedef int type;
};

#define D4(c, i)  c(d[i]), c(d[i + 1]), c(d[i + 2]), c(d[i + 3])
#define D16(c, i) D4(c, i), D4(c, i + 4), D4(c, i + 8), D4(c, i + 12)
#define D64(c)    D16(c, 0), D16(c, 16), D16(c, 32), D16(c, 48)
#define AS_F(x)   "+f"(x)
#define AS_R(x)   "+r"(x)
#define PRODUCT(text, tail)                                                                                           \
  "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\nwgmma.mma_async.sync.aligned." text                                      \
  " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "  \
  "%24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, "    \
  "%46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, {%64, %65, %66, %67}, " \
  "%68, p" tail ";\n}\n"
#define INPUTS "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add)

/* d = a b, or d += a b where add is not 0. */
template <int FORM>
static __device__ __forceinline__ void product(typename sum_of<FORM>::type (&d)[N_SUMS], const uint32_t (&a)[4],
                                               uint64_t b, int add) {
  if constexpr (FORM == F16) {
    asm volatile(PRODUCT("m64n128k16.f32.f16.f16", ", 1, 1, 0") : D64(AS_F) : INPUTS);
  } else if constexpr (FORM == BF16) {
    asm volatile(PRODUCT("m64n128k16.f32.bf16.bf16", ", 1, 1, 0") : D64(AS_F) : INPUTS);
  } else if constexpr (FORM == E4M3) {
    asm volatile(PRODUCT("m64n128k32.f32.e4m3.e4m3", ", 1, 1") : D64(AS_F) : INPUTS);
  } else {
    asm volatile(PRODUCT("m64n128k32.s32.s8.s8", "") : D64(AS_R) : INPUTS);
  }
}

typedef struct rates_args {
  const uint8_t *weights; /* 64 outputs, of A_STEPS * STEP bytes each */
  const uint8_t *rows;    /* UNITS x 128 rows x 128 bytes, as wgmma_descriptor_swizzled wants them */
  const float *scales;    /* ROWS, then OUTPUTS */
  float *out;             /* a block's OUTPUTS x ROWS */
  int n_steps;            /* of 32 bytes; a multiple of what is added up before a scaling */
} rates_args;

/* sums += d times the scales. */
template <int FORM>
static __device__ __forceinline__ void scale_sums(float (&sums)[N_SUMS], const typename sum_of<FORM>::type (&d)[N_SUMS],
                                                  const float *row_scales, const float (&own)[2]) {
#pragma unroll
  for (int n = 0; n < N_SUMS / 4; n++) {
    float2 row = *(const float2 *)(const void *)(row_scales + 8 * n + threadIdx.x % 4 * 2);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      sums[4 * n + i] = __fmaf_rn((float)d[4 * n + i] * (i % 2 == 0 ? row.x : row.y), own[i / 2], sums[4 * n + i]);
    }
  }
}

/* EVERY: inputs before a scaling; 0: one scaling at the end. */
template <int FORM, int EVERY>
static __global__ void __launch_bounds__(128 * GROUPS, 1) rates_kernel(const rates_args args) {
  constexpr int SPAN = EVERY == 0 ? CHECK_STEPS : EVERY / step_inputs(FORM);
  constexpr int TURN = SPAN > A_STEPS ? SPAN : A_STEPS; /* steps of the unrolled loop */
  extern __shared__ __align__(1024) uint8_t ring[];
  __shared__ __align__(8) float row_scales[ROWS];
  for (int i = threadIdx.x; i < UNIT * UNITS / 16; i += 128 * GROUPS) {
    ((uint4 *)(void *)ring)[i] = ((const uint4 *)(const void *)args.rows)[i];
  }
  if (threadIdx.x < ROWS) row_scales[threadIdx.x] = args.scales[threadIdx.x];
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  int lane = threadIdx.x % 32, output = threadIdx.x / 32 % 4 * 16 + lane / 4;
  uint32_t a[A_STEPS][4];
#pragma unroll
  for (int i = 0; i < 4 * A_STEPS; i++) {
    int row = output + i % 2 * 8, byte = i / 4 * STEP + i % 4 / 2 * 16 + lane % 4 * 4;
    a[i / 4][i % 4] = *(const uint32_t *)(const void *)(args.weights + row * A_STEPS * STEP + byte);
  }
  const float own[2] = {args.scales[ROWS + output], args.scales[ROWS + output + 8]};
  float sums[N_SUMS] = {};
  typename sum_of<FORM>::type d[N_SUMS] = {};
  for (int from = 0; from < args.n_steps; from += TURN) {
#pragma unroll
    for (int k = 0; k < TURN; k++) {
      int step = from + k;
      if (k % SPAN == 0) wgmma_fence();
      uint64_t b = wgmma_descriptor_swizzled(ring + step / 4 % UNITS * UNIT + step % 4 * STEP, 1024);
      product<FORM>(d, a[k % A_STEPS], b, EVERY == 0 ? from + k > 0 : k % SPAN != 0);
      if ((k + 1) % SPAN == 0) {
        wgmma_commit();
        wgmma_wait<0>();
        if constexpr (EVERY != 0) scale_sums<FORM>(sums, d, row_scales, own);
      }
    }
  }
  if constexpr (EVERY == 0) scale_sums<FORM>(sums, d, row_scales, own);
  float *out = args.out + (size_t)blockIdx.x * OUTPUTS * ROWS;
  if (threadIdx.x >= 128) return; /* both groups have the same sums */
  for (int i = 0; i < N_SUMS; i++) {
    out[(output + i % 4 / 2 * 8) * ROWS + i / 4 * 8 + lane % 4 * 2 + i % 2] = sums[i];
  }
}

/* ---- host ------------------------------------------------------------------------------------------------- */

static double number_at(form form, const uint8_t *bytes, int input) {
  switch (form) {
    case F16:
      return __half2float(((const __half *)(const void *)bytes)[input]);
    case BF16:
      return __bfloat162float(((const __nv_bfloat16 *)(const void *)bytes)[input]);
    case E4M3:
      return (float)((const __nv_fp8_e4m3 *)(const void *)bytes)[input];
    default:
      return ((const int8_t *)bytes)[input];
  }
}

static float draw(void) {
  static weft_draw_key key = {};
  key.position++;
  return weft_draw_uniform(&key);
}

/* Numbers as a row has them: a normal distribution, the largest of a few hundred near the form's end for s8. */
static void fill(form form, std::vector<uint8_t> &bytes) {
  int n = (int)bytes.size() / (STEP / step_inputs(form));
  for (int i = 0; i < n; i++) {
    double sum = -6.0;
    for (int j = 0; j < 12; j++) sum += draw();
    if (form == F16) ((__half *)(void *)bytes.data())[i] = __float2half((float)sum);
    if (form == BF16) ((__nv_bfloat16 *)(void *)bytes.data())[i] = __float2bfloat16((float)sum);
    if (form == E4M3) ((__nv_fp8_e4m3 *)(void *)bytes.data())[i] = __nv_fp8_e4m3((float)sum);
    if (form == S8) ((int8_t *)bytes.data())[i] = (int8_t)std::lrint(std::fmax(-127, std::fmin(127, 36.0 * sum)));
  }
}

/* The first error ends the program, in main. */
static void require(cudaError_t error, const char *what) {
  if (error != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}

static double now(void) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

typedef struct probe {
  std::vector<uint8_t> weights, rows; /* rows as they are in memory: plain */
  std::vector<float> scales;
  rates_args args;
  int n_blocks;
  double seconds;
  energy_meter meter;
} probe;

/* Rows of 128 bytes; their eighths lie where wgmma_descriptor_swizzled looks for them. */
static std::vector<uint8_t> mixed(const std::vector<uint8_t> &rows) {
  std::vector<uint8_t> to(rows.size());
  for (size_t i = 0; i < rows.size(); i++) {
    size_t row = i / 128, eighth = i % 128 / 16;
    to[row * 128 + (eighth ^ row % 8) * 16 + i % 16] = rows[i];
  }
  return to;
}

static void prepare(probe &p, form form) {
  fill(form, p.weights);
  fill(form, p.rows);
  for (float &scale : p.scales) scale = 0.5f + (float)draw();
  std::vector<uint8_t> rows = mixed(p.rows);
  require(cudaMemcpy((void *)p.args.weights, p.weights.data(), p.weights.size(), cudaMemcpyHostToDevice), "copying");
  require(cudaMemcpy((void *)p.args.rows, rows.data(), rows.size(), cudaMemcpyHostToDevice), "copying");
  require(cudaMemcpy((void *)p.args.scales, p.scales.data(), 4 * p.scales.size(), cudaMemcpyHostToDevice), "copying");
}

/* The largest difference from the host's product of CHECK_STEPS steps, beside the largest result. */
static double worst_error(const probe &p, form form) {
  std::vector<float> out(OUTPUTS * ROWS);
  require(cudaMemcpy(out.data(), p.args.out, 4 * out.size(), cudaMemcpyDeviceToHost), "copying");
  double worst = 0.0, largest = 0.0;
  int n = step_inputs(form);
  for (int o = 0; o < OUTPUTS; o++) {
    for (int r = 0; r < ROWS; r++) {
      double sum = 0.0;
      for (int step = 0; step < CHECK_STEPS; step++) {
        const uint8_t *w = p.weights.data() + (o * A_STEPS + step % A_STEPS) * STEP;
        const uint8_t *x = p.rows.data() + step / 4 * UNIT + r * 128 + step % 4 * STEP;
        for (int i = 0; i < n; i++) sum += number_at(form, w, i) * number_at(form, x, i);
      }
      sum *= (double)p.scales[r] * p.scales[ROWS + o];
      worst = std::fmax(worst, std::fabs(sum - out[o * ROWS + r]));
      largest = std::fmax(largest, std::fabs(sum));
    }
  }
  return worst / largest;
}

template <int FORM, int EVERY>
static bool measure(probe &p) {
  constexpr int STEPS = 1 << 14; /* of a launch: some milliseconds */
  auto kernel = rates_kernel<FORM, EVERY>;
  require(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, UNIT * UNITS), "shared memory");
  prepare(p, (form)FORM);
  p.args.n_steps = CHECK_STEPS;
  kernel<<<p.n_blocks, 128 * GROUPS, UNIT * UNITS>>>(p.args);
  require(cudaDeviceSynchronize(), "a product");
  double error = worst_error(p, (form)FORM);
  bool right = error < (FORM == E4M3 ? 2e-3 : 1e-5);
  p.args.n_steps = STEPS;
  double start = 0.0, joules = 0.0, end = 0.0;
  long n_launches = 0;
  for (int warm = 1; warm >= 0; warm--) { /* half as long first, so that clock and power have settled */
    start = now();
    joules = p.meter.gpu != NULL ? energy_joules(&p.meter) : 0.0;
    n_launches = 0;
    do {
      for (int i = 0; i < 8; i++) kernel<<<p.n_blocks, 128 * GROUPS, UNIT * UNITS>>>(p.args);
      require(cudaDeviceSynchronize(), "products");
      n_launches += 8;
      end = now();
    } while (end - start < (warm != 0 ? 0.5 : 1.0) * p.seconds);
  }
  double tera = 2e-12 * OUTPUTS * ROWS * GROUPS * step_inputs(FORM) * STEPS * (double)n_launches * p.n_blocks;
  unsigned mhz = p.meter.gpu != NULL ? energy_mhz(&p.meter) : 0;
  joules = p.meter.gpu != NULL ? energy_joules(&p.meter) - joules : 0.0;
  printf(
      "{\"form\": \"%s\", \"scale_every\": %d, \"tera_per_s\": %.0f, \"joules_per_tera\": %.3f, \"watts\": %.0f, "
      "\"mhz\": %u, \"error\": %.2g, \"right\": %s}\n",
      names[FORM], EVERY, tera / (end - start), joules / tera, joules / (end - start), mhz, error,
      right ? "true" : "false");
  fflush(stdout);
  return right;
}

template <int FORM>
static bool measure_form(probe &p) {
  bool right = measure<FORM, 0>(p);
  right = measure<FORM, 256>(p) && right;
  right = measure<FORM, 128>(p) && right;
  right = measure<FORM, 64>(p) && right;
  return measure<FORM, 32>(p) && right;
}

static bool measure_all(double seconds) {
  probe p;
  cudaDeviceProp card;
  require(cudaGetDeviceProperties(&card, 0), "no card");
  p.weights.resize(OUTPUTS * A_STEPS * STEP);
  p.rows.resize(UNIT * UNITS);
  p.scales.resize(ROWS + OUTPUTS);
  p.n_blocks = card.multiProcessorCount;
  p.seconds = seconds;
  p.meter = energy_open();
  require(cudaMalloc((void **)&p.args.weights, p.weights.size()), "memory");
  require(cudaMalloc((void **)&p.args.rows, p.rows.size()), "memory");
  require(cudaMalloc((void **)&p.args.scales, 4 * p.scales.size()), "memory");
  require(cudaMalloc((void **)&p.args.out, 4ull * OUTPUTS * ROWS * p.n_blocks), "memory");
  printf("{\"device\": \"%s\", \"multiprocessors\": %d, \"seconds\": %g}\n", card.name, p.n_blocks, p.seconds);
  bool right = measure_form<F16>(p);
  right = measure_form<BF16>(p) && right;
  right = measure_form<S8>(p) && right;
  return measure_form<E4M3>(p) && right;
}

int main(int n_words, char **words) {
  try {
    return measure_all(n_words > 1 ? strtod(words[1], NULL) : 1.0) ? 0 : 1;
  } catch (const std::exception &error) {
    fprintf(stderr, "bench_product_rates: %s\n", error.what());
    return 1;
  }
}
