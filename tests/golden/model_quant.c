/* SPDX-License-Identifier: MIT */
/* Random and adversarial blocks of every stored type against the format's reference (tests/golden/README.md): equal
 * bits. The ternary types are held with a minimum, so their zeros may have the other sign. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/quant.h"

static const char folder[] = WEFT_SOURCE_DIR "/tests/golden/quant";

static void *read_file(const char *name, const char *ending, size_t n_bytes) {
  char path[512];
  (void)snprintf(path, sizeof path, "%s/%s%s", folder, name, ending);
  FILE *file = fopen(path, "rb");
  assert_non_null(file);
  void *bytes = malloc(n_bytes + 1);
  assert_non_null(bytes);
  assert_int_equal(fread(bytes, 1, n_bytes + 1, file), n_bytes);
  (void)fclose(file);
  return bytes;
}

/* FNV-1a of 64 bits over the bytes of the values. */
static uint64_t hash_of(const float *values, size_t n) {
  const uint8_t *bytes = (const uint8_t *)values;
  uint64_t h = 0xCBF29CE484222325u;
  for (size_t i = 0; i < n * sizeof *values; i++) h = (h ^ bytes[i]) * 0x100000001B3u;
  return h;
}

/* The hash of every block, a line each. */
static uint64_t *read_hashes(const char *name, uint32_t n_blocks) {
  char path[512];
  uint64_t *hashes = calloc(n_blocks, sizeof *hashes);
  (void)snprintf(path, sizeof path, "%s/%s.hash", folder, name);
  FILE *file = fopen(path, "r");
  assert_true(file != NULL && hashes != NULL);
  for (uint32_t i = 0; i < n_blocks; i++) assert_int_equal(fscanf(file, "%" SCNx64 " ", &hashes[i]), 1);
  assert_int_equal(fgetc(file), EOF);
  (void)fclose(file);
  return hashes;
}

static void check_type(const char *name, int32_t id, uint32_t n_elements, uint32_t n_bytes, uint32_t n_blocks) {
  const weft_type_info *info = weft_type_find(id);
  assert_non_null(info);
  assert_string_equal(info->name, name);
  if (info->n_elements == 1) n_bytes /= n_elements; /* 32 plain values stand for a block */
  assert_int_equal(info->n_elements == 1 ? 1 : n_elements, info->n_elements);
  assert_int_equal(n_bytes, info->n_bytes);
  size_t n = (size_t)n_elements * n_blocks;
  void *stored = read_file(name, ".bin", weft_type_row_bytes(info->type, n));
  uint64_t *wanted = read_hashes(name, n_blocks);
  float *got = malloc(n * sizeof *got);
  assert_non_null(got);
  weft_dequantise_row(info->type, stored, got, n);
  for (size_t i = 0; i < n; i++) {
    if (info->held_as == WEFT_TYPE_Q2_K && got[i] == 0.0f) got[i] = 0.0f; /* of either sign */
  }
  for (uint32_t i = 0; i < n_blocks; i++) {
    if (hash_of(got + (size_t)i * n_elements, n_elements) == wanted[i]) continue;
    fail_msg("%s: block %u has other values than the package gguf gives it (make_quant.py %s prints them)", name, i,
             name);
  }
  free(stored);
  free(wanted);
  free(got);
}

static void test_all_types(void **state) {
  (void)state;
  char line[256], name[32];
  int id, n_types = 0;
  unsigned n_elements, n_bytes, n_blocks;
  (void)snprintf(line, sizeof line, "%s/index.txt", folder);
  FILE *file = fopen(line, "r");
  assert_non_null(file);
  while (fgets(line, sizeof line, file) != NULL) {
    if (sscanf(line, "%31s %d %u %u %u", name, &id, &n_elements, &n_bytes, &n_blocks) != 5) continue;
    check_type(name, id, n_elements, n_bytes, n_blocks);
    n_types++;
  }
  (void)fclose(file);
  assert_int_equal(n_types, 25);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_all_types)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
