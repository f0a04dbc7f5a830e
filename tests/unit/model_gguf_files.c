/* SPDX-License-Identifier: MIT */
/* The reader on real paths: single files, split models, what the system refuses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/support/gguf_writer.h"
#include "tests/support/refuse_each.h"

static char folder[] = "/tmp/weft-gguf-XXXXXX";

static void path_of(const char *name, char out[256]) {
  (void)snprintf(out, 256, "%s/%s", folder, name);
}

static void write_file(const char *name, const void *bytes, size_t n) {
  char path[256];
  path_of(name, path);
  FILE *file = fopen(path, "wb");
  assert_non_null(file);
  assert_int_equal(fwrite(bytes, 1, n, file), n);
  assert_int_equal(fclose(file), 0);
}

typedef struct part {
  const char *file;
  int number, count; /* split.no, split.count; -1: no such key */
  int total;
  const char *tensor[2];
  float value;
  const char *name;     /* general.name; NULL: no such key */
  const char *words[2]; /* a list of texts; words[0] NULL: no such key */
} part;

static void write_part(part p) {
  gguf_writer w = {0};
  const uint64_t ne[1] = {2048}; /* pages of its own, so that forget has something to do */
  float data[2048];
  for (int i = 0; i < 2048; i++) data[i] = p.value;
  uint16_t number = (uint16_t)p.number, count = (uint16_t)p.count;
  if (p.number <= 0) gguf_writer_string(&w, "general.architecture", "gemma4");
  if (p.number >= 0) gguf_writer_scalar(&w, "split.no", WEFT_GGUF_U16, &number, 2);
  if (p.count >= 0) gguf_writer_scalar(&w, "split.count", WEFT_GGUF_U16, &count, 2);
  if (p.total >= 0) gguf_writer_i32(&w, "split.tensors.count", p.total);
  if (p.name != NULL) gguf_writer_string(&w, "general.name", p.name);
  if (p.words[0] != NULL) gguf_writer_strings(&w, "general.tags", p.words, 2);
  for (int i = 0; i < 2; i++) {
    if (p.tensor[i] != NULL) gguf_writer_tensor(&w, p.tensor[i], WEFT_TYPE_F32, 1, ne, data, sizeof data);
  }
  weft_bytes file = gguf_writer_finish(&w);
  write_file(p.file, file.data, file.n);
  gguf_writer_close(&w);
}

static weft_status open_named(const char *name, weft_gguf **gguf, weft_error *error) {
  char path[256];
  path_of(name, path);
  error->text[0] = 0;
  return weft_gguf_open(path, gguf, error);
}

static void refused(const char *name, weft_status wanted, const char *words) {
  weft_gguf *gguf;
  weft_error error;
  weft_status status = open_named(name, &gguf, &error);
  if (status != wanted || strstr(error.text, words) == NULL) {
    (void)printf("status %d: %s; wanted %d: %s\n", (int)status, error.text, (int)wanted, words);
  }
  assert_int_equal(status, wanted);
  assert_null(gguf);
  assert_non_null(strstr(error.text, words));
}

static void test_single(void **state) {
  (void)state;
  write_part((part){"one.gguf", -1, -1, -1, {"a", "b"}, 3.0f, NULL, {NULL, NULL}});
  weft_gguf *gguf;
  weft_error error;
  assert_int_equal(open_named("one.gguf", &gguf, &error), WEFT_OK);
  const weft_gguf_tensor *a = weft_gguf_tensor_find(gguf, "a");
  assert_true(((const float *)a->data)[2047] == 3.0f);
  weft_gguf_forget(gguf, a);
  assert_true(((const float *)a->data)[1000] == 3.0f); /* comes back from the file when read again */
  assert_int_equal(weft_gguf_n_tensors(gguf), 2);
  weft_gguf_close(gguf);
}

static void test_system_refusals(void **state) {
  (void)state;
  char path[256];
  refused("none.gguf", WEFT_E_IO, "No such file");
  write_file("empty.gguf", "", 0);
  refused("empty.gguf", WEFT_E_FORMAT, "the file is empty");
  path_of("dir.gguf", path);
  assert_int_equal(mkdir(path, 0700), 0);
  refused("dir.gguf", WEFT_E_IO, "not a regular file");
  assert_int_equal(rmdir(path), 0);
  path_of("pipe.gguf", path);
  assert_int_equal(mkfifo(path, 0600), 0);
  refused("pipe.gguf", WEFT_E_IO, "not a regular file");
}

static void write_three(void) {
  write_part((part){"m-00001-of-00003.gguf", 0, 3, 5, {"a", "b"}, 1.0f, NULL, {NULL, NULL}});
  write_part((part){"m-00002-of-00003.gguf", 1, 3, 5, {"c", "d"}, 2.0f, NULL, {NULL, NULL}});
  write_part((part){"m-00003-of-00003.gguf", 2, 3, 5, {"e", NULL}, 3.0f, NULL, {NULL, NULL}});
}

static void test_split(void **state) {
  (void)state;
  weft_gguf *gguf;
  weft_error error;
  write_three();
  assert_int_equal(open_named("m-00001-of-00003.gguf", &gguf, &error), WEFT_OK);
  assert_int_equal(weft_gguf_n_tensors(gguf), 5);
  assert_true(*(const float *)weft_gguf_tensor_find(gguf, "a")->data == 1.0f);
  assert_true(*(const float *)weft_gguf_tensor_find(gguf, "d")->data == 2.0f);
  assert_true(*(const float *)weft_gguf_tensor_find(gguf, "e")->data == 3.0f);
  weft_gguf_forget(gguf, weft_gguf_tensor_find(gguf, "e"));
  weft_bytes arch;
  assert_int_equal(weft_gguf_string(gguf, "general.architecture", &arch, &error), WEFT_OK);
  assert_true(weft_gguf_file_bytes(gguf) > 5 * 8192);
  weft_gguf_close(gguf);
}

static void test_bad_splits(void **state) {
  (void)state;
  write_three();
  refused("m-00002-of-00003.gguf", WEFT_E_INVALID, "open part 1");
  write_part((part){"odd.gguf", 0, 3, 5, {"a", "b"}, 1.0f, NULL, {NULL, NULL}});
  refused("odd.gguf", WEFT_E_FORMAT, "must end in -00001-of-00003.gguf");
  write_part((part){"m-00003-of-00003.gguf", 1, 3, 5, {"e", NULL}, 3.0f, NULL, {NULL, NULL}});
  refused("m-00001-of-00003.gguf", WEFT_E_FORMAT, "part 3 of 3");
  write_part((part){"m-00003-of-00003.gguf", 2, 4, 5, {"e", NULL}, 3.0f, NULL, {NULL, NULL}});
  refused("m-00001-of-00003.gguf", WEFT_E_FORMAT, "part 3 of 3");
  write_part((part){"m-00003-of-00003.gguf", -1, -1, 5, {"e", NULL}, 3.0f, NULL, {NULL, NULL}});
  refused("m-00001-of-00003.gguf", WEFT_E_FORMAT, "part 3 of 3");
  write_part((part){"m-00003-of-00003.gguf", 2, 3, 5, {"a", NULL}, 3.0f, NULL, {NULL, NULL}});
  refused("m-00001-of-00003.gguf", WEFT_E_FORMAT, "tensor 'a' occurs twice");
  write_part((part){"m-00003-of-00003.gguf", 2, 3, 5, {NULL, NULL}, 3.0f, NULL, {NULL, NULL}});
  refused("m-00001-of-00003.gguf", WEFT_E_FORMAT, "split.tensors.count is 5, but the parts have 4");
  char path[256];
  path_of("m-00003-of-00003.gguf", path);
  assert_int_equal(unlink(path), 0);
  refused("m-00001-of-00003.gguf", WEFT_E_IO, "m-00003-of-00003.gguf");
  write_part((part){"m-00001-of-60000.gguf", 0, 60000, 5, {"a", NULL}, 1.0f, NULL, {NULL, NULL}});
  refused("m-00001-of-60000.gguf", WEFT_E_FORMAT, "at most 9999");
}

/* Parts of two models under one set of names, which numbers alone do not tell apart. */
static void test_mixed_sets(void **state) {
  weft_gguf *gguf;
  weft_error error;
  (void)state;
  static const part first = {"x-00001-of-00002.gguf", 0, 2, 3, {"a", "b"}, 1.0f, "red", {"one", "two"}};
  static const part seconds[] = {{"x-00002-of-00002.gguf", 1, 2, 3, {"c", NULL}, 2.0f, "blue", {NULL, NULL}},
                                 {"x-00002-of-00002.gguf", 1, 2, 4, {"c", NULL}, 2.0f, NULL, {NULL, NULL}},
                                 {"x-00002-of-00002.gguf", 1, 2, 3, {"c", NULL}, 2.0f, "red", {"one", "too"}},
                                 {"x-00002-of-00002.gguf", 1, 2, 3, {"c", NULL}, 2.0f, "redd", {"one", "two"}}};
  static const char *const keys[] = {"general.name", "split.tensors.count", "general.tags", "general.name"};
  write_part(first);
  for (int i = 0; i < 4; i++) {
    char words[128];
    write_part(seconds[i]);
    (void)snprintf(words, sizeof words, "x-00002-of-00002.gguf: key '%s' has another value than in", keys[i]);
    refused("x-00001-of-00002.gguf", WEFT_E_FORMAT, words);
  }
  part same = seconds[2];
  same.words[1] = "two";
  write_part(same);
  assert_int_equal(open_named("x-00001-of-00002.gguf", &gguf, &error), WEFT_OK);
  weft_gguf_close(gguf);
}

static void test_count_of_one(void **state) {
  (void)state;
  weft_gguf *gguf;
  weft_error error;
  write_part((part){"any.gguf", 0, 1, 2, {"a", "b"}, 1.0f, NULL, {NULL, NULL}}); /* the name does not matter then */
  assert_int_equal(open_named("any.gguf", &gguf, &error), WEFT_OK);
  weft_gguf_close(gguf);
  write_part((part){"any.gguf", 0, 0, 2, {"a", "b"}, 1.0f, NULL, {NULL, NULL}});
  assert_int_equal(open_named("any.gguf", &gguf, &error), WEFT_OK);
  weft_gguf_close(gguf);
}

static weft_status open_three(void *self, weft_error *error) {
  weft_gguf *gguf;
  (void)self;
  weft_status status = open_named("m-00001-of-00003.gguf", &gguf, error);
  weft_gguf_close(gguf);
  return status;
}

static void test_split_memory_refused(void **state) {
  (void)state;
  write_three();
  (void)refuse_each(open_three, NULL, false);
}

static int make_folder(void **state) {
  (void)state;
  return mkdtemp(folder) == NULL;
}

static int drop_folder(void **state) {
  (void)state;
  static const char *const names[] = {"one.gguf",
                                      "empty.gguf",
                                      "pipe.gguf",
                                      "odd.gguf",
                                      "any.gguf",
                                      "m-00001-of-00003.gguf",
                                      "m-00002-of-00003.gguf",
                                      "m-00003-of-00003.gguf",
                                      "m-00001-of-60000.gguf",
                                      "x-00001-of-00002.gguf",
                                      "x-00002-of-00002.gguf"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    char path[256];
    path_of(names[i], path);
    (void)unlink(path); /* some were never written */
  }
  return rmdir(folder);
}

/* Keys, names and shapes stay when the files are let go, and cutting them then is nobody's business. */
static void test_let_go(void **state) {
  (void)state;
  weft_gguf *gguf;
  weft_error error = {{0}};
  weft_bytes arch;
  uint64_t total = 0;
  char path[256];
  write_part((part){"go-00001-of-00002.gguf", 0, 2, 2, {"a", NULL}, 1.0f, NULL, {NULL, NULL}});
  write_part((part){"go-00002-of-00002.gguf", 1, 2, 2, {"b", NULL}, 2.0f, NULL, {NULL, NULL}});
  assert_int_equal(open_named("go-00001-of-00002.gguf", &gguf, &error), WEFT_OK);
  uint64_t n_bytes = weft_gguf_file_bytes(gguf);
  assert_int_equal(weft_gguf_let_go(gguf, &error), WEFT_OK);
  for (int i = 1; i <= 2; i++) {
    char name[64];
    (void)snprintf(name, sizeof name, "go-0000%d-of-00002.gguf", i);
    path_of(name, path);
    assert_int_equal(truncate(path, 0), 0);
  }
  assert_int_equal(weft_gguf_string(gguf, "general.architecture", &arch, &error), WEFT_OK);
  assert_true(arch.n == 6 && memcmp(arch.data, "gemma4", 6) == 0);
  assert_int_equal(weft_gguf_u64(gguf, "split.tensors.count", &total, &error), WEFT_OK);
  assert_true(total == 2 && weft_gguf_file_bytes(gguf) == n_bytes && weft_gguf_n_tensors(gguf) == 2);
  const weft_gguf_tensor *b = weft_gguf_tensor_find(gguf, "b");
  assert_true(b != NULL && b->data == NULL && b->ne[0] == 2048);
  weft_gguf_forget(gguf, b);
  assert_int_equal(weft_gguf_let_go(gguf, &error), WEFT_OK); /* nothing is left to let go */
  weft_gguf_close(gguf);
  assert_int_equal(unlink(path), 0);
  path_of("go-00001-of-00002.gguf", path);
  assert_int_equal(unlink(path), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_single),     cmocka_unit_test(test_system_refusals),
      cmocka_unit_test(test_split),      cmocka_unit_test(test_bad_splits),
      cmocka_unit_test(test_mixed_sets), cmocka_unit_test(test_count_of_one),
      cmocka_unit_test(test_let_go),     cmocka_unit_test(test_split_memory_refused),
  };
  return cmocka_run_group_tests(tests, make_folder, drop_folder);
}
