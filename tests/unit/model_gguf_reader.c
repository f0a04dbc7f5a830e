/* SPDX-License-Identifier: MIT */
/* Reads of weights give the bytes of the mapping, whatever their place and size; a file that was replaced or cut short
 * is an error with a line. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "model/gguf/gguf_reader.h"
#include "tests/support/gguf_writer.h"

enum { LARGE = 3 << 20 };
static char path[] = "/tmp/weft-reader-XXXXXX";

/* Three tensors, the middle one of several slices; no place is a multiple of a block. */
static void write_model(void) {
  static float data[LARGE / 4 + 1000];
  gguf_writer w = {0};
  const uint64_t small[1] = {33}, large[1] = {LARGE / 4 + 999};
  for (size_t i = 0; i < sizeof data / sizeof *data; i++) data[i] = (float)i;
  gguf_writer_string(&w, "general.architecture", "gemma4");
  gguf_writer_tensor(&w, "a", WEFT_TYPE_F32, 1, small, data, 33 * sizeof *data);
  gguf_writer_tensor(&w, "b", WEFT_TYPE_F32, 1, large, data, large[0] * sizeof *data);
  gguf_writer_tensor(&w, "c", WEFT_TYPE_F32, 1, small, data + 7, 33 * sizeof *data);
  weft_bytes file = gguf_writer_finish(&w);
  FILE *out = fopen(path, "wb");
  assert_non_null(out);
  assert_int_equal(fwrite(file.data, 1, file.n, out), file.n);
  assert_int_equal(fclose(out), 0);
  gguf_writer_close(&w);
}

/* cold: out of the page cache, so that reads go around it where the file system takes that. */
static weft_gguf *open_model(bool cold) {
  weft_gguf *gguf;
  weft_error error = {{0}};
  write_model();
  int file = open(path, O_RDONLY);
  if (cold && fsync(file) == 0) (void)posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED); /* advice only */
  (void)close(file);
  assert_int_equal(weft_gguf_open(path, &gguf, &error), WEFT_OK);
  return gguf;
}

static void check_read(gguf_reader *reader, const weft_gguf_tensor *tensor, uint64_t at, uint64_t n, uint8_t *to) {
  weft_weight_source source = gguf_reader_source(reader, tensor);
  uint32_t skip = UINT32_MAX;
  memset(to, 0xA5, n + 2 * WEFT_READ_ALIGN);
  assert_int_equal(source.read(source.self, at, n, to, &skip), WEFT_OK);
  assert_true(skip < WEFT_READ_ALIGN);
  assert_memory_equal(to + skip, (const uint8_t *)tensor->data + at, n);
}

static gguf_reader *open_reader(weft_gguf *gguf, bool direct) {
  gguf_reader *reader;
  weft_error error = {{0}};
  if (gguf_reader_open(gguf, direct, &reader, &error) != WEFT_OK) fail_msg("%s", error.text);
  assert_non_null(reader);
  return reader;
}

static void no_reader(weft_gguf *gguf, bool direct, const char *words) {
  gguf_reader *reader;
  weft_error error = {{0}};
  assert_int_equal(gguf_reader_open(gguf, direct, &reader, &error), WEFT_E_IO);
  assert_null(reader);
  assert_true(error.text[0] != 0);
  if (strstr(error.text, words) == NULL) fail_msg("'%s' does not say '%s'", error.text, words);
}

static void reads_are_the_mapped_bytes(bool cold) {
  weft_gguf *gguf = open_model(cold);
  gguf_reader *reader = open_reader(gguf, true);
  uint8_t *to = aligned_alloc(WEFT_READ_ALIGN, LARGE + 4 * WEFT_READ_ALIGN);
  for (uint32_t i = 0; i < weft_gguf_n_tensors(gguf); i++) {
    const weft_gguf_tensor *tensor = weft_gguf_tensor_at(gguf, i);
    check_read(reader, tensor, 0, tensor->n_bytes, to);
    check_read(reader, tensor, tensor->n_bytes - 1, 1, to);
    for (uint64_t at = 1; at < tensor->n_bytes; at = 3 * at + 1)
      check_read(reader, tensor, at, (tensor->n_bytes - at) / 2, to);
  }
  weft_weight_source source = gguf_reader_source(reader, weft_gguf_tensor_at(gguf, 0));
  uint32_t skip;
  assert_int_equal(source.read(source.self, 100, 33, to, &skip), WEFT_E_INVALID); /* beyond the tensor */
  assert_string_equal(gguf_reader_error(reader), "");
  gguf_reader_close(reader);
  weft_gguf_close(gguf);
  free(to);
}

static void a_file_cut_short_is_an_error(bool cold) {
  weft_gguf *gguf = open_model(cold);
  gguf_reader *reader = open_reader(gguf, true);
  uint8_t *to = aligned_alloc(WEFT_READ_ALIGN, LARGE + 4 * WEFT_READ_ALIGN);
  assert_int_equal(truncate(path, LARGE / 2), 0);
  const weft_gguf_tensor *tensor = weft_gguf_tensor_find(gguf, "b");
  weft_weight_source source = gguf_reader_source(reader, tensor);
  uint32_t skip;
  assert_int_equal(source.read(source.self, 0, tensor->n_bytes, to, &skip), WEFT_E_IO);
  assert_non_null(strstr(gguf_reader_error(reader), "the file ends early"));
  gguf_reader_close(reader);
  weft_gguf_close(gguf);
  free(to);
}

static void cached_reads(void **state) {
  (void)state;
  reads_are_the_mapped_bytes(false);
  a_file_cut_short_is_an_error(false);
}

static void direct_reads(void **state) {
  (void)state;
  reads_are_the_mapped_bytes(true);
  a_file_cut_short_is_an_error(true);
}

static void a_replaced_file_is_refused(void **state) {
  (void)state;
  weft_gguf *gguf = open_model(false);
  char other[64];
  (void)snprintf(other, sizeof other, "%s.other", path);
  assert_int_equal(rename(path, other), 0);
  write_model();
  no_reader(gguf, true, "was replaced");
  assert_int_equal(unlink(path), 0);
  no_reader(gguf, true, "");
  assert_int_equal(unlink(other), 0);
  weft_gguf_close(gguf);
}

static void a_changed_file_is_refused(void **state) {
  (void)state;
  weft_gguf *gguf = open_model(false);
  gguf_reader *reader = open_reader(gguf, false);
  weft_error error = {{0}};
  assert_int_equal(gguf_reader_check_unchanged(reader, &error), WEFT_OK);
  FILE *file = fopen(path, "ab");
  assert_non_null(file);
  assert_int_equal(fwrite("more", 1, 4, file), 4);
  assert_int_equal(fclose(file), 0);
  assert_int_equal(gguf_reader_check_unchanged(reader, &error), WEFT_E_IO);
  assert_non_null(strstr(error.text, "the file was changed while it was opened"));
  gguf_reader_close(reader);
  no_reader(gguf, false, "open it again when it is complete");
  assert_int_equal(gguf_reader_check_unchanged(NULL, &error), WEFT_OK);
  weft_gguf_close(gguf);
}

/* What was written over without another size shows by its time. */
static void a_file_written_over_is_refused(void **state) {
  (void)state;
  weft_gguf *gguf = open_model(false);
  gguf_reader *reader = open_reader(gguf, false);
  weft_error error = {{0}};
  const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = 1000000000}};
  assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
  assert_int_equal(gguf_reader_check_unchanged(reader, &error), WEFT_E_IO);
  assert_non_null(strstr(error.text, "the file was changed while it was opened"));
  gguf_reader_close(reader);
  weft_gguf_close(gguf);
}

static void memory_has_no_reader(void **state) {
  (void)state;
  gguf_reader *reader;
  weft_gguf *gguf;
  weft_error error = {{0}};
  gguf_writer w = {0};
  gguf_writer_string(&w, "general.architecture", "gemma4");
  weft_bytes file = gguf_writer_finish(&w);
  assert_int_equal(weft_gguf_open_memory(file.data, file.n, "memory", &gguf, &error), WEFT_OK);
  assert_int_equal(gguf_reader_open(gguf, true, &reader, &error), WEFT_OK);
  assert_null(reader);
  gguf_reader_close(reader);
  weft_gguf_close(gguf);
  gguf_writer_close(&w);
}

int main(void) {
  int file = mkstemp(path);
  if (file < 0) return 1;
  (void)close(file);
  const struct CMUnitTest tests[] = {cmocka_unit_test(cached_reads),
                                     cmocka_unit_test(direct_reads),
                                     cmocka_unit_test(a_replaced_file_is_refused),
                                     cmocka_unit_test(a_changed_file_is_refused),
                                     cmocka_unit_test(a_file_written_over_is_refused),
                                     cmocka_unit_test(memory_has_no_reader)};
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  (void)unlink(path);
  return failed;
}
