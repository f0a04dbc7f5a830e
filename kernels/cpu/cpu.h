/* SPDX-License-Identifier: MIT */
/* The cpu device: its thread pool, its instruction set, and the functions that its kernel table names.
 *
 * Law: the arguments of an op are checked (ops.c) before its function here is called. The op runs its tasks on the
 * device's pool and returns when they are done, so everything that was enqueued has already run. The instruction set is
 * fixed when the device opens; code for an instruction set lies in files *_avx2.c and *_avx512.c and is called only
 * when the device has it. Nothing here reads the environment. */
#ifndef WEFT_KERNELS_CPU_CPU_H
#define WEFT_KERNELS_CPU_CPU_H

#include "kernels/cpu/thread_pool.h"
#include "kernels/device_internal.h"

/* Instruction sets ("isa"), ascending: each includes those before it. avx2 means AVX2, FMA and F16C; avx512 means
 * AVX-512 F, BW, DQ, VL and VNNI beside them. */
typedef enum cpu_isa { CPU_ISA_PORTABLE = 0, CPU_ISA_AVX2 = 1, CPU_ISA_AVX512 = 2 } cpu_isa;

/* A pointer to the one of `name`_portable, `name`_avx2 and `name`_avx512 that an instruction set uses. */
#if defined(__x86_64__)
#define CPU_CODE_OF(isa, name) \
  ((isa) == CPU_ISA_AVX512 ? &name##_avx512 : (isa) == CPU_ISA_AVX2 ? &name##_avx2 : &name##_portable)
#else
#define CPU_CODE_OF(isa, name) ((void)(isa), &name##_portable)
#endif

/* The best one that this machine has. */
cpu_isa cpu_best_isa(void);

typedef struct cpu_device {
  weft_device device; /* first: a weft_device * is a cpu_device * */
  weft_thread_pool *pool;
  cpu_isa isa;
  struct cpu_pack_chunk *chunks; /* memory of weights (pack.c); NULL when none is left */
} cpu_device;

static inline weft_thread_pool *cpu_thread_pool(weft_device *device) {
  return ((cpu_device *)(void *)device)->pool;
}
static inline cpu_isa cpu_get_isa(const weft_device *device) {
  return ((const cpu_device *)(const void *)device)->isa;
}

/* ---- rows: embed.c, norm.c, qkv.c, attention.c, gate.c, route.c, soft.c, delta.c ---- */
weft_status cpu_embed(weft_device *device, const weft_embed_args *args);
weft_status cpu_norm(weft_device *device, const weft_norm_args *args);
weft_status cpu_qkv(weft_device *device, const weft_qkv_args *args);
weft_status cpu_attention(weft_device *device, const weft_attention_args *args);
uint64_t cpu_attention_scratch(weft_device *device, const weft_attention_args *args);
weft_status cpu_gate(weft_device *device, const weft_gate_args *args);
weft_status cpu_route(weft_device *device, const weft_route_args *args);
uint64_t cpu_route_scratch(weft_device *device, const weft_route_args *args);
weft_status cpu_soft(weft_device *device, const weft_soft_args *args);
uint64_t cpu_soft_scratch(weft_device *device, const weft_soft_args *args);

weft_status cpu_delta_rows(weft_device *device, const weft_delta_rows_args *args);
weft_status cpu_delta_rule(weft_device *device, const weft_delta_rule_args *args);
uint64_t cpu_delta_rule_scratch(weft_device *device, const weft_delta_rule_args *args);

/* ---- ref's rows on the pool: latent.c ---- */
weft_status cpu_mix(weft_device *device, const weft_mix_args *args);
weft_status cpu_spread(weft_device *device, const weft_spread_args *args);
weft_status cpu_latent_rows(weft_device *device, const weft_latent_rows_args *args);
weft_status cpu_latent_press(weft_device *device, const weft_latent_press_args *args);
weft_status cpu_latent_choose(weft_device *device, const weft_latent_choose_args *args);
weft_status cpu_latent_attend(weft_device *device, const weft_latent_attend_args *args);
weft_status cpu_latent_heads(weft_device *device, const weft_latent_heads_args *args);
weft_status cpu_engram_rows(weft_device *device, const weft_engram_rows_args *args);
weft_status cpu_engram_add(weft_device *device, const weft_engram_add_args *args);

/* ---- products: matmul*.c, experts*.c, head*.c ---- */
weft_status cpu_matmul(weft_device *device, const weft_matmul_args *args);
uint64_t cpu_matmul_scratch(weft_device *device, const weft_matmul_args *args);
weft_status cpu_experts(weft_device *device, const weft_experts_args *args);
uint64_t cpu_experts_scratch(weft_device *device, const weft_experts_args *args);
weft_status cpu_head_stats(weft_device *device, const weft_head_stats_args *args);
uint64_t cpu_head_stats_scratch(weft_device *device, const weft_head_stats_args *args);
weft_status cpu_head_rows(weft_device *device, const weft_head_rows_args *args);
uint64_t cpu_head_rows_scratch(weft_device *device, const weft_head_rows_args *args);
weft_status cpu_head_part(weft_device *device, const weft_head_part_args *args);
uint64_t cpu_head_part_scratch(weft_device *device, const weft_head_part_args *args);
weft_status cpu_head_join(weft_device *device, const weft_head_join_args *args);
uint64_t cpu_head_join_scratch(weft_device *device, const weft_head_join_args *args);
weft_status cpu_head_groups(weft_device *device, const weft_head_groups_args *args);
uint64_t cpu_head_groups_scratch(weft_device *device, const weft_head_groups_args *args);
weft_status cpu_sample(weft_device *device, const weft_sample_args *args);
uint64_t cpu_sample_scratch(weft_device *device, const weft_sample_args *args);
weft_status cpu_classes(weft_device *device, const weft_classes_args *args);
bool cpu_supports(const weft_device *device, weft_type weight_type);
const char *cpu_numerics(const weft_device *device, weft_type weight_type);
const char *cpu_family(const weft_device *device, const char *op);

/* ---- weights in the layout of this device: pack*.c ---- */
weft_status cpu_pack(weft_device *device, weft_weight *weight, const void *file_bytes, unsigned uses,
                     weft_error *error);
/* What cpu_pack makes of a weight: its type, layout and bytes. */
weft_status cpu_expect(weft_device *device, weft_weight *weight, unsigned uses, weft_error *error);
void cpu_free_weight(weft_device *device, weft_weight *weight);
weft_status cpu_unpack(weft_device *device, const weft_weight *weight, void *file_bytes);
/* Row `row` of matrix `matrix`, whatever its layout, as n_in floats: bit-equal to weft_dequantise_row of the file's
 * row. This is slow, and serves embed. */
void cpu_weight_row(const weft_weight *weight, uint32_t matrix, uint32_t row, float *out);

#endif
