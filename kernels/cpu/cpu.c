/* SPDX-License-Identifier: MIT */
/* Opening the cpu device: what the processor can do, the thread pool, and the table of ops. */
#include "kernels/cpu/cpu.h"
#include "kernels/ref/ref.h"

#include <string.h>

#include "base/memory.h"

typedef struct isa_row {
  const char *name; /* what info says */
  const char *flag; /* what a config asks for */
  cpu_isa isa;
} isa_row;

/* Worst first. */
static const isa_row isa_rows[] = {
    {"portable", "portable", CPU_ISA_PORTABLE},
    {"avx2", "avx2", CPU_ISA_AVX2},
    {"avx512-vnni", "avx512", CPU_ISA_AVX512},
};

static weft_status choose_isa(const char *flag, const isa_row **out, weft_error *error) {
  cpu_isa best = cpu_best_isa();
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
  host_share_close(device);
  weft_thread_pool_close(cpu_thread_pool(device));
  weft_free(device);
}

static const device_share_calls cpu_share = {HOST_SHARE, .expect = cpu_expect};

static const device_calls cpu_calls = {
    .close = cpu_close,
    HOST_CALLS,
    .weight = cpu_pack,
    .weight_free = cpu_free_weight,
    .weight_unpack = cpu_unpack,
    .share = &cpu_share,
};

/* Some ops have their definition alone. */
const char *cpu_family(const weft_device *device, const char *op) {
  static const char *const of_ref[] = {"canvas",      "move",         "assign",      "mix",       "spread",
                                       "latent_rows", "latent_press", "engram_rows", "engram_add"};
  for (size_t i = 0; i < sizeof of_ref / sizeof *of_ref; i++)
    if (strcmp(op, of_ref[i]) == 0) return "ref";
  return device->info.isa;
}

static const weft_kernels cpu_kernels = {.backend = "cpu", HOST_KERNELS(cpu)};

weft_status cpu_device_open(const weft_device_config *config, weft_device **out, weft_error *error) {
  const isa_row *isa = NULL;
  weft_status status = choose_isa(config->isa, &isa, error);
  if (status != WEFT_OK) return status;
  cpu_device *cpu = weft_alloc(1, sizeof *cpu);
  if (cpu == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "out of memory: the cpu device");
  status = weft_thread_pool_open(config->n_threads, &cpu->pool, error);
  if (status != WEFT_OK) {
    weft_free(cpu);
    return status;
  }
  cpu->isa = isa->isa;
  cpu->device.calls = &cpu_calls;
  cpu->device.kernels = &cpu_kernels;
  cpu->device.info.backend = "cpu";
  cpu->device.info.index = config->index;
  cpu->device.info.isa = isa->name;
  cpu->device.info.isa_forced = config->isa != NULL;
  cpu->device.info.products = 8;
  cpu->device.info.n_threads = weft_thread_pool_size(cpu->pool);
  host_describe(&cpu->device, config);
  status = host_share_open(&cpu->device, config, error);
  if (status == WEFT_OK) *out = &cpu->device;
  if (status != WEFT_OK) cpu_close(&cpu->device);
  return status;
}
