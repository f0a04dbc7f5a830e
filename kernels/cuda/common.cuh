/* SPDX-License-Identifier: MIT */
/* Small device functions that several kernels share.
 *
 * Law: sums over a block or a warp have one fixed tree. Where two kernels must agree in their bits, it is written out
 * whether a product and a sum are rounded once (fma) or twice. */
#ifndef WEFT_KERNELS_CUDA_COMMON_CUH
#define WEFT_KERNELS_CUDA_COMMON_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#include "kernels/ops.h"

/* weft_kv_row_bytes, on the device. */
static __host__ __device__ __forceinline__ uint64_t kv_row_bytes(weft_type type, uint32_t dim) {
  return type == WEFT_TYPE_F32 ? 4ull * dim : type == WEFT_TYPE_BF16 ? 2ull * dim : dim + dim / WEFT_KV_Q8_BLOCK * 2ull;
}

/* Programmatic dependent launch; every kernel that cuda_start launches calls both. launch_dependent_grids lets the
 * next kernel of the stream be scheduled on the card (griddepcontrol.launch_dependents); wait_for_prior_grids waits
 * until the kernels before this one have ended (griddepcontrol.wait), so a kernel reads what others write only after
 * it. Weights and what was uploaded may be read earlier: behind a kernel that writes them the next one starts in the
 * ordinary way (cuda_device.fresh). So may what a kernel two launches back wrote, where the one between waited before
 * it called launch_dependent_grids (gemm_raw_rows.is_there); and then this one waits before it ends. */
static __device__ __forceinline__ void launch_dependent_grids(void) {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

static __device__ __forceinline__ void wait_for_prior_grids(void) {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

static __device__ __forceinline__ void launch_dependents_and_wait(void) {
  launch_dependent_grids();
  wait_for_prior_grids();
}

template <typename T>
static __device__ __forceinline__ T warp_sum(T v) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(0xFFFFFFFFu, v, step);
  return v;
}

static __device__ __forceinline__ float warp_max(float v) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) v = fmaxf(v, __shfl_xor_sync(0xFFFFFFFFu, v, step));
  return v;
}

/* 2^x with a relative error of at most 2^-22; results below 2^-126 are 0. */
static __device__ __forceinline__ float power_of_2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/* SiLU and GELU by tanh. Both are x / (1 + e^-y): y is x, or 2 sqrt(2 / pi) (x + 0.044715 x^3), since that quotient is
 * x (1 + tanh(y / 2)) / 2. */
static __device__ __forceinline__ float activate_f32(weft_activation activation, float x) {
  float y = activation == WEFT_SILU ? x : __fmul_rn(1.59576912160573f, fmaf(0.044715f * x * x, x, x)), part;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(part) : "f"(__fadd_rn(1.0f, power_of_2(__fmul_rn(-1.44269504f, y)))));
  return __fmul_rn(x, part);
}

/* act(g) * u: one function, so that the gate op and the experts agree in their bits. */
static __device__ __forceinline__ float gate_product(weft_activation activation, float g, float u) {
  return __fmul_rn(activate_f32(activation, g), u);
}

/* The clamped gate of both (kernels/experts.h). A comparison, and no minimum, so that what is no number stays none. */
static __device__ __forceinline__ float clamped_gate(float g, float u) {
  const float limit = WEFT_GATE_LIMIT;
  float part;
  g = g > limit ? limit : g;
  u = u > limit ? limit : u;
  u = u < -limit ? -limit : u;
  asm("rcp.approx.ftz.f32 %0, %1;"
      : "=f"(part)
      : "f"(__fadd_rn(1.0f, power_of_2(__fmul_rn(-1.44269504f * WEFT_GATE_SLOPE, g)))));
  return __fmul_rn(__fmul_rn(g, part), __fadd_rn(u, 1.0f));
}

/* Either gate, of what the biases at index `at` were added to. */
static __device__ __forceinline__ float biased_gate(weft_activation activation, float g, float u,
                                                    const float *gate_bias, const float *up_bias, uint64_t at) {
  if (gate_bias != NULL) g = __fadd_rn(g, gate_bias[at]), u = __fadd_rn(u, up_bias[at]);
  return activation == WEFT_CLAMPED_SILU ? clamped_gate(g, u) : gate_product(activation, g, u);
}

/* cap_logit is cap tanh(logit / cap), off by at most 2^-22 of the cap. The tangent is (e - 1) / (e + 1), where e is
 * e^(2 |logit| / cap) = 2^(slope |logit|); cap_slope gives the slope. */
static inline float cap_slope(float cap) {
  return cap == 0.0f ? 0.0f : 2.88539008f / cap;
}

static __device__ __forceinline__ float cap_logit(float logit, float cap, float slope) {
  float x = __fmul_rn(fabsf(logit), slope), most = 60.0f, inverse;
  asm("min.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(most));
  float e = power_of_2(x);
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(__fadd_rn(e, 1.0f)));
  return copysignf(__fmul_rn(cap, __fmul_rn(__fsub_rn(e, 1.0f), inverse)), logit);
}

static __device__ __forceinline__ float not_a_number(void) {
  return __int_as_float(0x7FC00000);
}

/* ---- async copies into shared memory, clusters
 * -------------------------------------------------------------------------- */

static __device__ __forceinline__ uint32_t shared_address(const void *p) {
  return (uint32_t)__cvta_generic_to_shared(p);
}

/* The address at which block `rank` of the cluster has what this block has at `mine`. */
static __device__ __forceinline__ uint32_t cluster_address(const void *mine, uint32_t rank) {
  uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(mine)), "r"(rank));
  return there;
}

static __device__ __forceinline__ void cluster_arrive(void) {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

/* For a cluster's first barrier: nothing was written that others read but mbarriers, which mbarrier_init_fence shows
 * them. */
static __device__ __forceinline__ void cluster_arrive_first(void) {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

static __device__ __forceinline__ void cluster_wait(void) {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

static __device__ __forceinline__ void store_to_cluster(const float *mine, uint32_t rank, float x) {
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(cluster_address(mine, rank)), "f"(x) : "memory");
}

static __device__ __forceinline__ void cp_async_16(uint32_t to, const void *from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

/* Copies 16 bytes or, where ok is false, writes zeros and does not read `from`. */
static __device__ __forceinline__ void cp_async_16_if(uint32_t to, const void *from, bool ok) {
  int n = ok ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(n) : "memory");
}

static __device__ __forceinline__ void cp_async_commit(void) {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int N>
static __device__ __forceinline__ void cp_async_wait(void) {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* ---- tensor cores: d += a b, 16 x 8 x 16, f32 sums ------------------------------------------------------ */

static __device__ __forceinline__ void mma_f16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

static __device__ __forceinline__ void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
      "{%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <bool BF16>
static __device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if (BF16)
    mma_bf16(d, a, b0, b1);
  else
    mma_f16(d, a, b0, b1);
}

static __device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

static __device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

static __device__ __forceinline__ uint32_t pair_bf16(float low, float high) {
  __nv_bfloat162 v = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<uint32_t *>(&v);
}

static __device__ __forceinline__ uint32_t pair_f16(float low, float high) {
  __half2 v = __floats2half2_rn(low, high);
  return *reinterpret_cast<uint32_t *>(&v);
}

/* Numbers i .. i + 3 of a row of n, one at a time; zeros beyond its end. */
static __device__ __forceinline__ float4 load_four(const float *row, uint32_t i, uint32_t n) {
  float4 v = make_float4(0, 0, 0, 0);
  if (i < n) v.x = row[i];
  if (i + 1 < n) v.y = row[i + 1];
  if (i + 2 < n) v.z = row[i + 2];
  if (i + 3 < n) v.w = row[i + 3];
  return v;
}

/* Loads what every step reads of weights and is small, with the L2 hint evict_last. */
static __device__ __forceinline__ float4 load_evict_last(const float4 *from) {
  const uint64_t evict_last =
      0x14F0000000000000ull; /* what createpolicy.fractional.L2::evict_last makes for a fraction of 1 */
  float4 v;
  asm volatile("ld.global.L2::cache_hint.v4.f32 {%0, %1, %2, %3}, [%4], %5;"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(from), "l"(evict_last));
  return v;
}

#endif
