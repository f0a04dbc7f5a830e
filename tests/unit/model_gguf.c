/* SPDX-License-Identifier: MIT */
/* The reader against sound and malformed files. Malformed ones are written word by word: each
 * differs from a sound file in one fact, and the refusal must name that fact. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/log.h"
#include "model/gguf/gguf_internal.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/refuse_each.h"

/* ---- words ---- */

static void u32(weft_text *t, uint32_t v) {
  weft_text_append(t, (const char *)&v, 4);
}
static void u64(weft_text *t, uint64_t v) {
  weft_text_append(t, (const char *)&v, 8);
}
static void string(weft_text *t, const char *s) {
  u64(t, strlen(s));
  weft_text_puts(t, s);
}

static weft_text header(uint32_t version, uint64_t n_tensors, uint64_t n_keys) {
  weft_text t = {0};
  weft_text_puts(&t, "GGUF");
  u32(&t, version);
  u64(&t, n_tensors);
  u64(&t, n_keys);
  return t;
}

static void key(weft_text *t, const char *name, uint32_t kind) {
  string(t, name);
  u32(t, kind);
}

typedef struct record {
  const char *name;
  uint32_t n_dims;
  uint64_t ne[5];
  uint32_t type;
  uint64_t offset;
} record;

static void tensor(weft_text *t, record r) {
  string(t, r.name);
  u32(t, r.n_dims);
  for (uint32_t i = 0; i < r.n_dims && i < 5; i++) u64(t, r.ne[i]);
  u32(t, r.type);
  u64(t, r.offset);
}

static void zeros(weft_text *t, size_t align, size_t n) {
  while (t->n % align != 0) weft_text_append(t, "", 1);
  for (size_t i = 0; i < n; i++) weft_text_append(t, "", 1);
}

/* Opens and closes; the refusal must contain the words. Frees the text. */
static void refused(weft_text *t, weft_status wanted, const char *words) {
  weft_gguf *gguf;
  weft_error error = {{0}};
  char *exact = malloc(t->n + 1); /* so that a sanitizer sees one byte too far */
  assert_non_null(exact);
  memcpy(exact, t->bytes, t->n);
  weft_status status = weft_gguf_open_memory(exact, t->n, "test.gguf", &gguf, &error);
  if (status != wanted || strstr(error.text, words) == NULL) {
    (void)printf("status %d, line: %s; wanted %d, words: %s\n", (int)status, error.text, (int)wanted, words);
  }
  assert_int_equal(status, wanted);
  assert_null(gguf);
  assert_non_null(strstr(error.text, words));
  assert_ptr_equal(strstr(error.text, "test.gguf"), error.text); /* names the file first */
  free(exact);
  weft_text_free(t);
}

static weft_gguf *opened(const void *bytes, size_t n) {
  weft_gguf *gguf;
  weft_error error = {{0}};
  weft_status status = weft_gguf_open_memory(bytes, n, "test.gguf", &gguf, &error);
  if (status != WEFT_OK) (void)printf("line: %s\n", error.text);
  assert_int_equal(status, WEFT_OK);
  return gguf;
}

/* ---- header ---- */

static void test_header(void **state) {
  (void)state;
  weft_text t = {0};
  weft_text_puts(&t, "GGUF");
  refused(&t, WEFT_E_FORMAT, "too few");
  t = header(3, 0, 0);
  t.bytes[0] = 'F';
  refused(&t, WEFT_E_FORMAT, "not a GGUF file");
  t = header(0, 0, 0);
  refused(&t, WEFT_E_FORMAT, "the version is 0");
  t = header(1, 0, 0);
  refused(&t, WEFT_E_FORMAT, "the version is 1");
  t = header(4, 0, 0);
  refused(&t, WEFT_E_FORMAT, "the version is 4");
  t = header(3u << 24, 0, 0);
  refused(&t, WEFT_E_FORMAT, "other byte order");
  t = header(3, 1000, 0);
  refused(&t, WEFT_E_FORMAT, "n_tensors is 1000");
  t = header(3, UINT64_MAX, 0);
  refused(&t, WEFT_E_FORMAT, "n_tensors is 18446744073709551615");
  t = header(3, 0, 1);
  refused(&t, WEFT_E_FORMAT, "n_kv is 1");
  t = header(3, 0, 1ull << 60);
  refused(&t, WEFT_E_FORMAT, "n_kv is");
  t = header(2, 0, 0); /* version 2 has the same layout */
  weft_gguf *gguf = opened(t.bytes, t.n);
  assert_int_equal(weft_gguf_n_keys(gguf), 0);
  assert_int_equal(weft_gguf_n_tensors(gguf), 0);
  assert_int_equal(weft_gguf_file_bytes(gguf), 24);
  weft_gguf_close(gguf);
  weft_text_free(&t);
  weft_gguf_close(NULL);
}

/* ---- keys ---- */

static void test_bad_keys(void **state) {
  (void)state;
  weft_text t = header(3, 0, 1);
  u64(&t, 1ull << 40);
  zeros(&t, 1, 64);
  refused(&t, WEFT_E_FORMAT, "1 GiB");
  t = header(3, 0, 1);
  u64(&t, 100);
  zeros(&t, 1, 50);
  refused(&t, WEFT_E_FORMAT, "the file ends");
  t = header(3, 0, 1);
  key(&t, "", WEFT_GGUF_U8);
  zeros(&t, 1, 8);
  refused(&t, WEFT_E_FORMAT, "length of a key is 0");
  t = header(3, 0, 1);
  u64(&t, 65536);
  for (int i = 0; i < 65536; i++) weft_text_append(&t, "a", 1);
  u32(&t, 0);
  zeros(&t, 1, 8);
  refused(&t, WEFT_E_FORMAT, "length of a key is 65536");
  t = header(3, 0, 1);
  key(&t, "a.b", 13);
  zeros(&t, 1, 16);
  refused(&t, WEFT_E_FORMAT, "type of a key is 13");
  t = header(3, 0, 2);
  for (int i = 0; i < 2; i++) {
    key(&t, "a.b", WEFT_GGUF_U32);
    u32(&t, 7);
  }
  refused(&t, WEFT_E_FORMAT, "key 'a.b' occurs twice");
  t = header(3, 0, 1);
  key(&t, "a.b", WEFT_GGUF_BOOL);
  weft_text_append(&t, "\2", 1);
  refused(&t, WEFT_E_FORMAT, "a bool is 2");
}

static void array(weft_text *t, const char *name, uint32_t element, uint64_t count) {
  key(t, name, WEFT_GGUF_ARRAY);
  u32(t, element);
  u64(t, count);
}

static void test_bad_arrays(void **state) {
  (void)state;
  weft_text t = header(3, 0, 1);
  array(&t, "a.b", WEFT_GGUF_ARRAY, 1);
  zeros(&t, 1, 32);
  refused(&t, WEFT_E_FORMAT, "arrays of arrays");
  t = header(3, 0, 1);
  array(&t, "a.b", 99, 1);
  refused(&t, WEFT_E_FORMAT, "element type of an array is 99");
  t = header(3, 0, 1);
  array(&t, "a.b", WEFT_GGUF_U64, (1ull << 30) + 1);
  refused(&t, WEFT_E_FORMAT, "2^30");
  t = header(3, 0, 1);
  array(&t, "a.b", WEFT_GGUF_U64, 1ull << 61); /* times 8 wraps to zero */
  refused(&t, WEFT_E_FORMAT, "2^30");
  t = header(3, 0, 1);
  array(&t, "a.b", WEFT_GGUF_U32, 3);
  zeros(&t, 1, 11);
  refused(&t, WEFT_E_FORMAT, "key 'a.b'");
  t = header(3, 0, 1);
  array(&t, "a.b", WEFT_GGUF_STRING, 1u << 29);
  zeros(&t, 1, 80);
  refused(&t, WEFT_E_FORMAT, "not so many bytes left");
  t = header(3, 0, 1);
  array(&t, "a.b", WEFT_GGUF_STRING, 2);
  string(&t, "one");
  u64(&t, 4);
  weft_text_puts(&t, "tw");
  refused(&t, WEFT_E_FORMAT, "the file ends");
  t = header(3, 0, 1);
  array(&t, "a.b", WEFT_GGUF_BOOL, 3);
  weft_text_append(&t, "\1\0\3", 3);
  refused(&t, WEFT_E_FORMAT, "a bool is 3");
}

static void test_alignment_key(void **state) {
  (void)state;
  static const uint32_t bad[] = {0, 33, 48, 0x80000000u};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    weft_text t = header(3, 0, 1);
    key(&t, "general.alignment", WEFT_GGUF_U32);
    u32(&t, bad[i]);
    refused(&t, WEFT_E_FORMAT, "power of two");
  }
  weft_text t = header(3, 0, 1);
  key(&t, "general.alignment", WEFT_GGUF_U64);
  u64(&t, 32);
  refused(&t, WEFT_E_FORMAT, "general.alignment has type u64");
}

/* ---- tensors ---- */

static void refused_tensor(record r, size_t data, weft_status wanted, const char *words) {
  weft_text t = header(3, 1, 0);
  tensor(&t, r);
  zeros(&t, 32, data);
  refused(&t, wanted, words);
}

static void test_bad_tensors(void **state) {
  (void)state;
  char name[65];
  memset(name, 'a', 64);
  name[64] = 0;
  refused_tensor((record){name, 1, {8}, 0, 0}, 32, WEFT_E_FORMAT, "length of a tensor's name is 64");
  refused_tensor((record){"", 1, {8}, 0, 0}, 32, WEFT_E_FORMAT, "length of a tensor's name is 0");
  refused_tensor((record){"x", 5, {1, 1, 1, 1, 1}, 0, 0}, 32, WEFT_E_FORMAT, "number of dimensions is 5");
  refused_tensor((record){"x", 1, {0}, 0, 0}, 32, WEFT_E_FORMAT, "a dimension is 0");
  refused_tensor((record){"x", 1, {UINT64_MAX}, 0, 0}, 32, WEFT_E_FORMAT, "a dimension is");
  refused_tensor((record){"x", 2, {8, 1ull << 62}, 0, 0}, 32, WEFT_E_FORMAT, "passes 2^63-1");
  refused_tensor((record){"x", 1, {1ull << 62}, 0, 0}, 32, WEFT_E_FORMAT, "bytes pass 2^63-1");
  refused_tensor((record){"x", 1, {33}, 8, 0}, 64, WEFT_E_FORMAT, "row length is 33");
  refused_tensor((record){"x", 2, {128, 4}, 12, 0}, 512, WEFT_E_FORMAT, "row length is 128");
  refused_tensor((record){"x", 1, {8}, 0, 8}, 64, WEFT_E_FORMAT, "the offset is 8");
  refused_tensor((record){"x", 1, {8}, 0, 0}, 31, WEFT_E_FORMAT, "the file is cut");
  refused_tensor((record){"x", 1, {8}, 0, 64}, 64, WEFT_E_FORMAT, "the file is cut");
  refused_tensor((record){"x", 1, {8}, 0, UINT64_MAX - 31}, 64, WEFT_E_FORMAT, "the file is cut");
}

/* Dimensions whose product wraps, to zero and to something small. */
static void test_wrapping_shapes(void **state) {
  (void)state;
  const uint64_t b31 = 1ull << 31, b32 = 1ull << 32;
  refused_tensor((record){"x", 2, {b32, b32}, 0, 0}, 64, WEFT_E_FORMAT, "passes 2^63-1");
  refused_tensor((record){"x", 3, {b31, b31, 4}, 0, 0}, 64, WEFT_E_FORMAT, "passes 2^63-1");
  refused_tensor((record){"x", 2, {b32, b31}, 0, 0}, 64, WEFT_E_FORMAT, "passes 2^63-1");
  refused_tensor((record){"x", 3, {b31, b31, 2}, 0, 0}, 64, WEFT_E_FORMAT, "passes 2^63-1");
  refused_tensor((record){"x", 4, {1ull << 33, 1ull << 31, 3, 1}, 0, 0}, 64, WEFT_E_FORMAT, "passes 2^63-1");
}

/* A file of any types opens; who wants to compute with a tensor is refused. */
static void check_type(uint32_t id, uint64_t n_elements, uint64_t n_bytes, const char *words) {
  weft_error error = {{0}};
  weft_text t = header(3, 1, 0);
  tensor(&t, (record){"x", 1, {n_elements}, id, 0});
  zeros(&t, 32, 1024);
  weft_gguf *gguf = opened(t.bytes, t.n);
  const weft_gguf_tensor *x = weft_gguf_tensor_find(gguf, "x");
  assert_int_equal(x->type, WEFT_TYPE_NONE);
  assert_int_equal(x->type_id, id);
  assert_int_equal(x->n_bytes, n_bytes);
  assert_int_equal(weft_gguf_check_type(gguf, x, &error), WEFT_E_UNSUPPORTED);
  if (strstr(error.text, words) == NULL) fail_msg("'%s' lacks '%s'", error.text, words);
  weft_gguf_close(gguf);
  weft_text_free(&t);
}

static void test_types(void **state) {
  (void)state;
  static const uint32_t removed[] = {4, 5, 31, 32, 33, 36, 37, 38};
  for (size_t i = 0; i < sizeof removed / sizeof *removed; i++) {
    check_type(removed[i], 256, 0, "(removed); use a file whose tensors are of these: F32, F16, ");
  }
  check_type(24, 256, 256, "type 24 (I8)");
  check_type(26, 256, 1024, "type 26 (I32)");
  check_type(42, 256, 72, "type 42 (Q2_0)");
  check_type(42, 33, 0, "type 42 (Q2_0)");
  check_type(144, 256, 0, "type 144 (unknown)");
  check_type(1002, 256, 0, "type 1002"); /* of devices only */
  check_type(UINT32_MAX, 256, 0, "(unknown)");
  refused_tensor((record){"x", 1, {2048}, 24, 0}, 1024, WEFT_E_FORMAT, "the file is cut");
  refused_tensor((record){"x", 1, {256}, 144, 2048}, 1024, WEFT_E_FORMAT, "the file is cut");
  refused_tensor((record){"x", 4, {INT64_MAX, 1, 1, 1}, 27, 0}, 1024, WEFT_E_FORMAT, "the bytes pass");
}

static void test_two_tensors(void **state) {
  (void)state;
  weft_text t = header(3, 2, 0);
  tensor(&t, (record){"x", 1, {8}, 0, 0});
  tensor(&t, (record){"x", 1, {8}, 0, 32});
  zeros(&t, 32, 64);
  refused(&t, WEFT_E_FORMAT, "tensor 'x' occurs twice");
  t = header(3, 2, 0);
  tensor(&t, (record){"x", 1, {16}, 0, 32});
  tensor(&t, (record){"y", 1, {16}, 0, 0});
  zeros(&t, 32, 128);
  refused(&t, WEFT_E_FORMAT, "overlaps");
  t = header(3, 2, 0);
  tensor(&t, (record){"x", 1, {8}, 0, 64}); /* any order, with a gap */
  tensor(&t, (record){"y", 1, {8}, 0, 0});
  zeros(&t, 32, 96);
  weft_gguf *gguf = opened(t.bytes, t.n);
  const char *x = weft_gguf_tensor_find(gguf, "x")->data, *y = weft_gguf_tensor_find(gguf, "y")->data;
  assert_true(x == y + 64 && (y - t.bytes) % 32 == 0);
  weft_gguf_close(gguf);
  weft_text_free(&t);
}

static void test_own_alignment(void **state) {
  (void)state;
  weft_text t = header(3, 1, 1);
  key(&t, "general.alignment", WEFT_GGUF_U32);
  u32(&t, 256);
  tensor(&t, (record){"x", 2, {4, 2}, 0, 256});
  zeros(&t, 256, 256 + 32);
  weft_gguf *gguf = opened(t.bytes, t.n);
  const weft_gguf_tensor *x = weft_gguf_tensor_find(gguf, "x");
  assert_int_equal((const char *)x->data - t.bytes, 512);
  assert_int_equal(x->n_bytes, 32);
  assert_true(x->ne[0] == 4 && x->ne[1] == 2 && x->ne[2] == 1 && x->ne[3] == 1);
  weft_gguf_close(gguf);
  weft_text_free(&t);
}

/* ---- sound files ---- */

static gguf_writer sound;
static weft_bytes sound_file;

static int build_sound(void **state) {
  (void)state;
  gguf_writer *w = &sound;
  static const char *const words[] = {"one", "", "three"};
  static const int16_t numbers[] = {-5, 300};
  static const float data[8] = {1, 2, 3};
  uint64_t ne[2] = {4, 2};
  gguf_writer_string(w, "general.architecture", "gemma4");
  gguf_writer_u32(w, "a.u32", 4000000000u);
  gguf_writer_i32(w, "a.i32", -7);
  gguf_writer_f32(w, "a.f32", 1.5f);
  gguf_writer_bool(w, "a.bool", true);
  gguf_writer_strings(w, "a.words", words, 3);
  gguf_writer_array(w, "a.numbers", WEFT_GGUF_I16, numbers, 2, 2);
  gguf_writer_tensor(w, "x.weight", WEFT_TYPE_F32, 2, ne, data, sizeof data);
  ne[0] = 32;
  gguf_writer_tensor(w, "y.weight", WEFT_TYPE_Q8_0, 2, ne, (const char[68]){0}, 68);
  sound_file = gguf_writer_finish(w);
  return 0;
}

static int free_sound(void **state) {
  (void)state;
  gguf_writer_close(&sound);
  return 0;
}

/* The sound file's bytes, to be changed and freed. */
static uint8_t *copy_sound(void) {
  uint8_t *copy = malloc(sound_file.n);
  assert_non_null(copy);
  memcpy(copy, sound_file.data, sound_file.n);
  return copy;
}

static void test_reads(void **state) {
  (void)state;
  weft_gguf *gguf = opened(sound_file.data, sound_file.n);
  weft_error error = {{0}};
  uint64_t u;
  double d;
  bool b;
  weft_bytes s;
  assert_int_equal(weft_gguf_n_keys(gguf), 7);
  assert_string_equal(weft_gguf_path(gguf), "test.gguf");
  assert_int_equal(weft_gguf_u64(gguf, "a.u32", &u, &error), WEFT_OK);
  assert_int_equal(u, 4000000000u);
  assert_int_equal(weft_gguf_u64(gguf, "a.none", &u, &error), WEFT_E_NOT_FOUND);
  assert_int_equal(weft_gguf_u64(gguf, "a.i32", &u, &error), WEFT_E_FORMAT);
  assert_non_null(strstr(error.text, "'a.i32' is -7"));
  assert_int_equal(weft_gguf_u64(gguf, "a.f32", &u, &error), WEFT_E_FORMAT);
  assert_non_null(strstr(error.text, "has type f32; it must be an integer"));
  assert_int_equal(weft_gguf_f64(gguf, "a.i32", &d, &error), WEFT_OK);
  assert_true(d == -7.0);
  assert_int_equal(weft_gguf_f64(gguf, "a.f32", &d, &error), WEFT_OK);
  assert_true(d == 1.5);
  assert_int_equal(weft_gguf_bool(gguf, "a.bool", &b, &error), WEFT_OK);
  assert_true(b);
  assert_int_equal(weft_gguf_bool(gguf, "a.u32", &b, &error), WEFT_E_FORMAT);
  assert_int_equal(weft_gguf_u64(gguf, "a.numbers", &u, &error), WEFT_E_FORMAT);
  assert_non_null(strstr(error.text, "array of i16"));
  assert_int_equal(weft_gguf_u64_at(gguf, "a.numbers", 1, &u, &error), WEFT_OK);
  assert_int_equal(u, 300);
  assert_int_equal(weft_gguf_u64_at(gguf, "a.numbers", 2, &u, &error), WEFT_E_FORMAT);
  assert_int_equal(weft_gguf_f64_at(gguf, "a.numbers", 0, &d, &error), WEFT_OK);
  assert_true(d == -5.0);
  assert_int_equal(weft_gguf_u64_at(gguf, "a.u32", 9, &u, &error), WEFT_OK); /* a scalar is every element */
  assert_int_equal(weft_gguf_string(gguf, "general.architecture", &s, &error), WEFT_OK);
  assert_true(s.n == 6 && memcmp(s.data, "gemma4", 6) == 0);
  assert_int_equal(weft_gguf_string(gguf, "a.words", &s, &error), WEFT_E_FORMAT);
  assert_int_equal(weft_gguf_string_at(gguf, "a.words", 1, &s, &error), WEFT_OK);
  assert_int_equal(s.n, 0);
  assert_int_equal(weft_gguf_string_at(gguf, "a.words", 2, &s, &error), WEFT_OK);
  assert_true(s.n == 5 && memcmp(s.data, "three", 5) == 0);
  assert_int_equal(weft_gguf_string_at(gguf, "a.words", 3, &s, &error), WEFT_E_FORMAT);
  assert_int_equal(weft_gguf_string_at(gguf, "a.u32", 0, &s, &error), WEFT_E_FORMAT);
  assert_int_equal(weft_gguf_u64_at(gguf, "a.words", 0, &u, &error), WEFT_E_FORMAT);
  assert_int_equal(weft_gguf_count(gguf, "a.words"), 3);
  assert_int_equal(weft_gguf_count(gguf, "a.u32"), 1);
  assert_int_equal(weft_gguf_count(gguf, "a.none"), 0);
  weft_gguf_close(gguf);
}

static void test_tables(void **state) {
  (void)state;
  weft_gguf *gguf = opened(sound_file.data, sound_file.n);
  for (uint32_t i = 0; i < weft_gguf_n_keys(gguf); i++) { /* every key finds itself */
    weft_bytes name = gguf->parts[0].keys[i].name;
    char text[64] = {0};
    memcpy(text, name.data, name.n);
    assert_int_equal(weft_gguf_find(gguf, text), i);
  }
  const gguf_key *key = gguf->parts[0].keys;
  assert_int_equal(key[6].kind, WEFT_GGUF_ARRAY);
  assert_true(key[6].element == WEFT_GGUF_I16 && key[6].count == 2);
  assert_int_equal(key[1].kind, WEFT_GGUF_U32);
  assert_int_equal(weft_gguf_n_tensors(gguf), 2);
  assert_null(weft_gguf_tensor_find(gguf, "z.weight"));
  const weft_gguf_tensor *x = weft_gguf_tensor_find(gguf, "x.weight");
  assert_ptr_equal(x, weft_gguf_tensor_at(gguf, 0));
  assert_true(x->type == WEFT_TYPE_F32 && x->n_dims == 2 && ((const float *)x->data)[2] == 3.0f);
  assert_int_equal(weft_gguf_tensor_find(gguf, "y.weight")->n_bytes, 68);
  weft_gguf_forget(gguf, x); /* nothing is mapped: nothing happens */
  assert_true(((const float *)x->data)[2] == 3.0f);
  weft_gguf_close(gguf);
}

/* The file cut at every byte: refused with a line, except behind the last tensor's data, where only
 * padding goes. */
static void test_every_truncation(void **state) {
  (void)state;
  size_t n_data = sound_file.n - 28; /* 68 bytes of 96 end the last tensor */
  for (size_t n = 0; n <= sound_file.n; n++) {
    char *cut = malloc(n + 1);
    assert_non_null(cut);
    memcpy(cut, sound_file.data, n);
    char *exact = realloc(cut, n == 0 ? 1 : n);
    weft_gguf *gguf;
    weft_error error = {{0}};
    weft_status status = weft_gguf_open_memory(exact, n, "test.gguf", &gguf, &error);
    assert_int_equal(status, n >= n_data ? WEFT_OK : WEFT_E_FORMAT);
    assert_true((status == WEFT_OK) == (error.text[0] == 0));
    weft_gguf_close(gguf);
    free(exact);
  }
}

/* Every byte of the header changed to several values: refused or opened, never a fault. */
static void test_every_byte_changed(void **state) {
  (void)state;
  static const uint8_t values[] = {0x00, 0x01, 0x7F, 0x80, 0xFF};
  uint8_t *copy = copy_sound();
  for (size_t i = 0; i < sound_file.n; i++) {
    for (size_t v = 0; v < sizeof values; v++) {
      memcpy(copy, sound_file.data, sound_file.n);
      copy[i] = values[v];
      weft_gguf *gguf;
      weft_error error = {{0}};
      weft_status status = weft_gguf_open_memory(copy, sound_file.n, "test.gguf", &gguf, &error);
      assert_true((status == WEFT_OK) == (gguf != NULL));
      for (uint32_t k = 0; gguf != NULL && k < weft_gguf_n_tensors(gguf); k++) {
        const weft_gguf_tensor *x = weft_gguf_tensor_at(gguf, k);
        const uint8_t *data = x->data;
        assert_true(data >= copy && x->n_bytes <= (size_t)(copy + sound_file.n - data));
      }
      weft_gguf_close(gguf);
    }
  }
  free(copy);
}

static void test_many_names(void **state) {
  (void)state;
  enum { MANY = 3000 };
  gguf_writer w = {0};
  char name[32];
  const uint64_t ne[1] = {1};
  for (int i = 0; i < MANY; i++) {
    (void)snprintf(name, sizeof name, "k.%d", i);
    gguf_writer_u32(&w, name, (uint32_t)i);
    (void)snprintf(name, sizeof name, "t.%d", i);
    float value = (float)i;
    gguf_writer_tensor(&w, name, WEFT_TYPE_F32, 1, ne, &value, 4);
  }
  weft_bytes file = gguf_writer_finish(&w);
  weft_gguf *gguf = opened(file.data, file.n);
  for (int i = 0; i < MANY; i++) {
    uint64_t value;
    (void)snprintf(name, sizeof name, "k.%d", i);
    assert_int_equal(weft_gguf_u64(gguf, name, &value, NULL), WEFT_OK);
    assert_int_equal(value, i);
    (void)snprintf(name, sizeof name, "t.%d", i);
    assert_true(*(const float *)weft_gguf_tensor_find(gguf, name)->data == (float)i);
  }
  assert_null(weft_gguf_tensor_find(gguf, "t.3000"));
  assert_int_equal(weft_gguf_find(gguf, "k.3000"), -1);
  weft_gguf_close(gguf);
  gguf_writer_close(&w);
}

static weft_status open_sound(void *self, weft_error *error) {
  weft_gguf *gguf;
  (void)self;
  weft_status status = weft_gguf_open_memory(sound_file.data, sound_file.n, "test.gguf", &gguf, error);
  assert_true((status == WEFT_OK) == (gguf != NULL));
  weft_gguf_close(gguf);
  return status;
}

static void test_memory_refused(void **state) {
  (void)state;
  (void)refuse_each(open_sound, NULL, true);
}

static void test_fingerprint(void **state) {
  (void)state;
  uint8_t *copy = copy_sound();
  uint64_t low[3], high[3];
  for (int i = 0; i < 3; i++) {
    if (i == 2) copy[sound_file.n - 60] ^= 1; /* a weight */
    weft_gguf *gguf = opened(i == 0 ? sound_file.data : (const char *)copy, sound_file.n);
    weft_gguf_fingerprint(gguf, &low[i], &high[i]);
    weft_gguf_close(gguf);
  }
  assert_true(low[0] == low[1] && high[0] == high[1]);
  assert_true(low[0] != low[2] && high[0] != high[2]);
  free(copy);
}

int main(void) {
  weft_log_set_level(WEFT_LOG_ERROR); /* changed bytes make many strange keys */
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_header),
      cmocka_unit_test(test_bad_keys),
      cmocka_unit_test(test_bad_arrays),
      cmocka_unit_test(test_alignment_key),
      cmocka_unit_test(test_bad_tensors),
      cmocka_unit_test(test_wrapping_shapes),
      cmocka_unit_test(test_types),
      cmocka_unit_test(test_two_tensors),
      cmocka_unit_test(test_own_alignment),
      cmocka_unit_test(test_reads),
      cmocka_unit_test(test_tables),
      cmocka_unit_test(test_every_truncation),
      cmocka_unit_test(test_every_byte_changed),
      cmocka_unit_test(test_many_names),
      cmocka_unit_test(test_memory_refused),
      cmocka_unit_test(test_fingerprint),
  };
  return cmocka_run_group_tests(tests, build_sound, free_sound);
}
