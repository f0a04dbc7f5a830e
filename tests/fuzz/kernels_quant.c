/* SPDX-License-Identifier: MIT */
/* Any bytes as blocks of any stored type (the first byte chooses): they are read without touching others, and what a
 * device would hold means the same. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/quant.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static const weft_type_info *choose(uint8_t byte) {
  const weft_type_info *info = NULL;
  for (int32_t id = byte % 64; info == NULL; id = (id + 1) % 64) info = weft_type_find_stored(id);
  return info;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  if (n < 1) return 0;
  const weft_type_info *info = choose(data[0]);
  const uint64_t n_elements = (n - 1) / info->n_bytes * info->n_elements;
  const uint64_t stored_bytes = weft_type_row_bytes(info->type, n_elements);
  const uint64_t held_bytes = weft_type_row_bytes(info->held_as, n_elements);
  if (n_elements == 0) return 0;
  uint8_t *stored = malloc(stored_bytes), *held = malloc(held_bytes); /* exact sizes: a byte beyond is found */
  float *want = malloc(n_elements * sizeof *want), *got = malloc(n_elements * sizeof *got);
  if (stored == NULL || held == NULL || want == NULL || got == NULL) abort();
  memcpy(stored, data + 1, stored_bytes);
  weft_repack_row(info->type, stored, held, n_elements);
  weft_dequantise_row(info->type, stored, want, n_elements);
  weft_dequantise_row(info->held_as, held, got, n_elements);
  if (memcmp(want, got, n_elements * sizeof *got) != 0) abort();
  free(stored);
  free(held);
  free(want);
  free(got);
  return 0;
}
