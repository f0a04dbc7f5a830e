/* SPDX-License-Identifier: MIT */
/* Opening the cpu device: what the processor can do, the pool, and the table of ops. */
#include "kernels/cpu/cpu.h"
#include "kernels/ref/ref.h"

#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "base/memory.h"

typedef struct isa_row {
  const char *name; /* what info says */
  const char *flag; /* what a config asks for */
  weft_cpu_isa isa;
} isa_row;

/* Worst first. */
static const isa_row isa_rows[] = {
    {"portable", "portable", WEFT_ISA_PORTABLE},
    {"avx2", "avx2", WEFT_ISA_AVX2},
    {"avx512-vnni", "avx512", WEFT_ISA_AVX512},
};

#if defined(__x86_64__)
static bool has_f16c(void) {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

/* The builtins also ask whether the system saves the wide registers. */
static weft_cpu_isa best_isa(void) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
  bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                __builtin_cpu_supports("avx512vnni");
  if (avx2 && avx512) return WEFT_ISA_AVX512;
  if (avx2) return WEFT_ISA_AVX2;
#endif
  return WEFT_ISA_PORTABLE;
}

static weft_status choose_isa(const char *flag, const isa_row **out, weft_error *error) {
  weft_cpu_isa best = best_isa();
  *out = &isa_rows[best];
  if (flag == NULL) return WEFT_OK;
  for (size_t i = 0; i < sizeof isa_rows / sizeof isa_rows[0]; i++) {
    if (strcmp(flag, isa_rows[i].flag) != 0) continue;
    if (isa_rows[i].isa > best) {
      return weft_fail(error, WEFT_E_UNSUPPORTED, "this processor has no %s; its best is %s", flag,
                       isa_rows[best].flag);
    }
    *out = &isa_rows[i];
    return WEFT_OK;
  }
  return weft_fail(error, WEFT_E_UNSUPPORTED, "instruction set '%.32s' is unknown; portable, avx2, avx512", flag);
}

static void cpu_close(weft_device *device) {
  weft_pool_close(weft_cpu_pool(device));
  weft_free(device);
}

static const weft_device_calls cpu_calls = {
    .close = cpu_close,
    .alloc = weft_host_alloc,
    .free = weft_host_free,
    .alloc_host = weft_host_alloc,
    .free_host = weft_host_free,
    .upload = weft_host_copy,
    .download = weft_host_copy,
    .copy = weft_host_copy,
    .zero = weft_host_zero,
    .sync = weft_host_sync,
    .weight = weft_cpu_pack,
    .weight_free = weft_cpu_free_weight,
    .weight_unpack = weft_cpu_unpack,
};

static const weft_kernels cpu_kernels = {
    .backend = "cpu",
    .embed = weft_cpu_embed,
    .norm = weft_cpu_norm,
    .matmul = weft_cpu_matmul,
    .matmul_scratch = weft_cpu_matmul_scratch,
    .qkv = weft_cpu_qkv,
    .attention = weft_cpu_attention,
    .attention_scratch = weft_cpu_attention_scratch,
    .gate = weft_cpu_gate,
    .route = weft_cpu_route,
    .route_scratch = weft_cpu_route_scratch,
    .experts = weft_cpu_experts,
    .experts_scratch = weft_cpu_experts_scratch,
    .head_stats = weft_cpu_head_stats,
    .head_stats_scratch = weft_cpu_head_stats_scratch,
    .head_rows = weft_cpu_head_rows,
    .head_rows_scratch = weft_cpu_head_rows_scratch,
    .soft = weft_cpu_soft,
    .soft_scratch = weft_cpu_soft_scratch,
    .sample = weft_cpu_sample,
    .sample_scratch = weft_cpu_sample_scratch,
    .canvas = weft_ref_canvas,
    .canvas_scratch = weft_ref_canvas_scratch,
    .move = weft_ref_move,
    .supports = weft_cpu_supports,
    .numerics = weft_cpu_numerics,
};

weft_status weft_device_open_cpu(const weft_device_config *config, weft_device **out, weft_error *error) {
  const isa_row *isa = NULL;
  weft_status status = choose_isa(config->isa, &isa, error);
  if (status != WEFT_OK) return status;
  weft_cpu_device *cpu = weft_alloc(1, sizeof *cpu);
  if (cpu == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "out of memory: the cpu device");
  status = weft_pool_open(config->n_threads, &cpu->pool, error);
  if (status != WEFT_OK) {
    weft_free(cpu);
    return status;
  }
  cpu->isa = isa->isa;
  cpu->device.calls = &cpu_calls;
  cpu->device.kernels = &cpu_kernels;
  cpu->device.info.backend = "cpu";
  cpu->device.info.isa = isa->name;
  cpu->device.info.n_threads = weft_pool_size(cpu->pool);
  weft_host_describe(&cpu->device.info);
  *out = &cpu->device;
  return WEFT_OK;
}
