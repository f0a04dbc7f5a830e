/* SPDX-License-Identifier: MIT */
/* What happens to memory while weights are loaded, and to a load whose file is cut, replaced or written to meanwhile: a
 * line, and no signal. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/log.h"
#include "model/model.h"
#include "tests/support/real_files.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { COUNTS_MEMORY = 0 }; /* their allocators keep what was freed */
#else
enum { COUNTS_MEMORY = 1 };
#endif

/* 17 MiB a layer in F32; no tensor has more than the embedding's 8. */
#define MODEL(n)                                                                                             \
  {                                                                                                          \
    .arch = "qwen3", .vocab = 4096, .head = 64, .layers = n, .hidden = 512, .ff = 2048, .heads = 8, .kv = 8, \
    .context = 4096, .all_have_values = true                                                                 \
  }
static const real_model deep = MODEL(8), flat = MODEL(1);
static void write_file(const real_model *model) {
  real_file f = {.model = model, .types = "*:F32"};
  real_llama(&f);
  real_vocabulary(&f, false, false);
  assert_true(real_file_write(&f, real_path));
}

typedef struct load {
  const char *backend;
  void (*before)(void); /* between the opening of the file and that of the model */
  void (*during)(void); /* when half of the weights are read */
  weft_status status;
  weft_error error;
  uint64_t weight_bytes;
} load;

static void at_half(void *self, uint64_t done, uint64_t total) {
  load *l = self;
  if (l->during == NULL || done < total / 2) return;
  l->during();
  l->during = NULL;
}

static void run(load *l) {
  static const weft_model_limits limits = {.rows_max = 1, .segments_max = 1};
  const weft_device_config config = {.backend = l->backend, .n_threads = 1};
  weft_gguf *gguf;
  weft_device *device;
  weft_model *model;
  assert_int_equal(weft_device_open(&config, &device, &l->error), WEFT_OK);
  assert_int_equal(weft_gguf_open(real_path, &gguf, &l->error), WEFT_OK);
  if (l->before != NULL) l->before();
  const weft_split split = weft_split_one(device);
  l->status = weft_model_open(gguf, &split, &limits, at_half, l, &model, &l->error);
  weft_gguf_close(gguf);
  if (model != NULL) l->weight_bytes = weft_model_get_info(model)->weight_bytes;
  weft_model_close(model);
  weft_device_close(device);
}

static uint64_t peak_bytes(void) {
  struct rusage usage;
  assert_int_equal(getrusage(RUSAGE_SELF, &usage), 0);
  return (uint64_t)usage.ru_maxrss * 1024;
}

static void test_memory_is_bounded_by_the_largest_tensor(void **state) {
  (void)state;
  enum { LARGEST = 4096 * 512 * 4, SLACK = 16 << 20 };
  load l = {.backend = "cpu"};
  write_file(&deep);
  uint64_t before = peak_bytes();
  run(&l);
  if (l.status != WEFT_OK) fail_msg("%s", l.error.text);
  uint64_t taken = peak_bytes() - before;
  assert_true(l.weight_bytes > (uint64_t)128 << 20);
  if (!COUNTS_MEMORY) skip();
  if (taken > l.weight_bytes + 2 * LARGEST + SLACK)
    fail_msg("%llu bytes at the peak for weights of %llu", (unsigned long long)taken,
             (unsigned long long)l.weight_bytes);
}

static void cut(void) {
  assert_int_equal(truncate(real_path, 4096), 0);
}
static void grow(void) {
  FILE *file = fopen(real_path, "ab");
  assert_non_null(file);
  assert_int_equal(fwrite("more", 1, 4, file), 4);
  assert_int_equal(fclose(file), 0);
}
static void replace(void) {
  assert_int_equal(unlink(real_path), 0);
  write_file(&flat);
}
static void vanish(void) {
  assert_int_equal(unlink(real_path), 0);
}

static void refused(void (*before)(void), void (*during)(void), const char *words) {
  static const char *const backends[] = {"ref", "cpu"};
  for (int i = 0; i < 2; i++) {
    load l = {.backend = backends[i], .before = before, .during = during};
    write_file(&flat);
    run(&l);
    assert_int_equal(l.status, WEFT_E_IO);
    if (strstr(l.error.text, words) == NULL) fail_msg("'%s' lacks '%s'", l.error.text, words);
    assert_ptr_equal(strstr(l.error.text, real_path), l.error.text);
  }
}

static void test_files_that_change(void **state) {
  (void)state;
  refused(cut, NULL, "the file was changed while it was opened");
  refused(grow, NULL, "open it again when it is complete");
  refused(replace, NULL, "the file was replaced while it was opened");
  refused(vanish, NULL, "No such file or directory");
  refused(NULL, cut, "the file ends early");
  refused(NULL, grow, "the file was changed while it was opened");
}

/* Whoever removes or replaces a file by another one of its name does not touch what is being read. */
static void test_files_that_lose_their_name(void **state) {
  (void)state;
  load l = {.backend = "cpu", .during = vanish};
  write_file(&flat);
  run(&l);
  if (l.status != WEFT_OK) fail_msg("%s", l.error.text);
  l = (load){.backend = "cpu", .during = replace};
  write_file(&flat);
  run(&l);
  assert_int_equal(l.status, WEFT_OK);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_memory_is_bounded_by_the_largest_tensor),
      cmocka_unit_test(test_files_that_change),
      cmocka_unit_test(test_files_that_lose_their_name),
  };
  return cmocka_run_group_tests(tests, real_path_open, real_path_remove);
}
