/* SPDX-License-Identifier: MIT */
#include "kernels/cpu/card_products.h"

#include "kernels/cpu/card_products_impl.h"
#include "kernels/cpu/cpu.h"

bool card_products_take(int type) {
  return type == WEFT_TYPE_Q8_0 || type == WEFT_TYPE_Q4_0 || type == WEFT_TYPE_Q5_0 || type == WEFT_TYPE_Q4_K ||
         type == WEFT_TYPE_Q5_K || type == WEFT_TYPE_Q6_K;
}

bool card_products_by_nibbles(int type) {
  return type != WEFT_TYPE_Q8_0;
}

uint32_t card_products_tile_bytes(int type, uint32_t n_in) {
  const card_shape f = card_shape_of(type);
  const uint32_t of_unit = f.unit / 128 * (f.codes + f.high) + f.scales, n_whole = n_in / f.unit, rest = n_in % f.unit;
  return n_whole * of_unit + (rest == 0 ? 0 : rest <= 64 && f.unit == 128 ? of_unit / 2 : of_unit);
}

card_tile_fn card_products_find(const char **isa) {
#if defined(__x86_64__)
  if (cpu_best_isa() == CPU_ISA_AVX512) return *isa = "avx512", card_tile_avx512;
  if (cpu_best_isa() == CPU_ISA_AVX2) return *isa = "avx2", card_tile_avx2;
#endif
  return *isa = "portable", card_tile_portable;
}
