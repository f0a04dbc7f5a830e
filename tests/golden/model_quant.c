/* SPDX-License-Identifier: MIT */
/* Random and adversarial blocks of every stored type against the format's reference (tests/golden/README.md): equal
 * bits. The ternary types are held with a minimum, so their zeros may have the other sign. */
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

static void check_type(const char *name, int32_t id, uint32_t n_elements, uint32_t n_bytes, uint32_t n_blocks) {
  const weft_type_info *info = weft_type_find(id);
  assert_non_null(info);
  assert_string_equal(info->name, name);
  if (info->n_elements == 1) n_bytes /= n_elements; /* 32 plain values stand for a block */
  assert_int_equal(info->n_elements == 1 ? 1 : n_elements, info->n_elements);
  assert_int_equal(n_bytes, info->n_bytes);
  size_t n = (size_t)n_elements * n_blocks;
  void *stored = read_file(name, ".bin", weft_type_row_bytes(info->type, n));
  float *wanted = read_file(name, ".f32", n * sizeof *wanted);
  float *got = malloc(n * sizeof *got);
  assert_non_null(got);
  weft_dequantise_row(info->type, stored, got, n);
  for (size_t i = 0; i < n; i++) {
    uint32_t a, b;
    memcpy(&a, &got[i], 4);
    memcpy(&b, &wanted[i], 4);
    if (info->held_as == WEFT_TYPE_Q2_K && got[i] == 0.0f && wanted[i] == 0.0f) continue;
    if (a != b) (void)printf("%s: element %zu: %a, expected %a\n", name, i, (double)got[i], (double)wanted[i]);
    assert_int_equal(a, b);
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
