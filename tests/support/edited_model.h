/* SPDX-License-Identifier: MIT */
/* Tiny models that differ from a sound one in one fact: opened, inspected, or refused with a line that names the key or
 * tensor, what is wrong and what was expected. For cmocka tests. */
#ifndef WEFT_TESTS_EDITED_MODEL_H
#define WEFT_TESTS_EDITED_MODEL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "model/inspect.h"
#include "model/model.h"
#include "tests/support/gguf_edit.h"

static inline weft_gguf *open_edited(const char *name, const gguf_edit *e, gguf_writer *w) {
  char path[512];
  weft_gguf *from, *to;
  weft_error error = {{0}};
  (void)snprintf(path, sizeof path, "%s/tests/golden/models/%s.gguf", WEFT_SOURCE_DIR, name);
  assert_int_equal(weft_gguf_open(path, &from, &error), WEFT_OK);
  memset(w, 0, sizeof *w);
  gguf_edit_apply(from, e, w);
  weft_bytes file = gguf_writer_finish(w);
  weft_gguf_close(from);
  assert_int_equal(weft_gguf_open_memory(file.data, file.n, "edited.gguf", &to, &error), WEFT_OK);
  return to;
}

static inline weft_device *open_ref(void) {
  weft_device *device;
  weft_device_config config = {.backend = "ref", .n_threads = 1, .isa = NULL};
  assert_int_equal(weft_device_open(&config, &device, NULL), WEFT_OK);
  return device;
}

static weft_model_limits limits = {.rows_max = 8, .canvas_rows_max = 8, .segments_max = 4};

static inline weft_status try_open(const char *name, const gguf_edit *e, weft_model_info *info, weft_error *error) {
  gguf_writer w;
  weft_gguf *gguf = open_edited(name, e, &w);
  weft_device *device = open_ref();
  weft_model *model;
  error->text[0] = 0;
  const weft_split split = weft_split_one(device);
  weft_status status = weft_model_open(gguf, &split, &limits, NULL, NULL, &model, error);
  assert_true((status == WEFT_OK) == (model != NULL));
  if (model != NULL && info != NULL) *info = *weft_model_get_info(model);
  weft_model_close(model);
  weft_device_close(device);
  weft_gguf_close(gguf);
  gguf_writer_close(&w);
  return status;
}

static inline void refused(const char *name, gguf_edit e, weft_status wanted, const char *words) {
  weft_error error;
  weft_status status = try_open(name, &e, NULL, &error);
  if (status != wanted || strstr(error.text, words) == NULL) {
    (void)printf("status %d: %s; wanted %d: %s\n", (int)status, error.text, (int)wanted, words);
  }
  assert_int_equal(status, wanted);
  assert_non_null(strstr(error.text, words));
  assert_ptr_equal(strstr(error.text, "edited.gguf"), error.text);
}

static inline void accepted(const char *name, gguf_edit e, weft_model_info *info) {
  weft_error error;
  weft_status status = try_open(name, &e, info, &error);
  if (status != WEFT_OK) (void)printf("status %d: %s\n", (int)status, error.text);
  assert_int_equal(status, WEFT_OK);
}

/* A model without one of these keys of its architecture is refused, and the key is named. */
static inline void refused_without(const char *model, const char *arch, const char *const *keys, size_t n) {
  for (size_t i = 0; i < n; i++) {
    char key[96], words[128];
    (void)snprintf(key, sizeof key, "%s.%s", arch, keys[i]);
    (void)snprintf(words, sizeof words, "key '%s' is missing", key);
    refused(model, (gguf_edit){.drop_key = key}, WEFT_E_FORMAT, words);
  }
}

/* A number that a key must not have, and what is said of it. */
typedef struct number_case {
  const char *key;
  uint32_t value;
  weft_status status;
  const char *words;
} number_case;

static inline void refused_numbers(const char *model, const number_case *cases, size_t n) {
  for (size_t i = 0; i < n; i++)
    refused(model, (gguf_edit){.set_u32 = cases[i].key, .value = cases[i].value}, cases[i].status, cases[i].words);
}

static inline void inspect_holds(const char *name, gguf_edit e, bool json, const char *words) {
  gguf_writer w;
  weft_gguf *gguf = open_edited(name, &e, &w);
  weft_text text = {0};
  weft_error error;
  assert_int_equal(weft_inspect(gguf, json, &text, &error), WEFT_OK);
  if (strstr(text.bytes, words) == NULL) (void)printf("%s\nlacks: %s\n", text.bytes, words);
  assert_non_null(strstr(text.bytes, words));
  weft_text_free(&text);
  weft_gguf_close(gguf);
  gguf_writer_close(&w);
}

#endif
