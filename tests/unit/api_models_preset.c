/* SPDX-License-Identifier: MIT */
/* Presets of llama-server (api/models_preset.h): what they say is what options would say, and what has no meaning for
 * one model here is refused by name, in one line with its place. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/models_preset.h"
#include "api/residents.h"
#include "base/log.h"
#include "tests/support/small_runtime.h"

static char path[64];

static void write_preset(const char *text) {
  FILE *file = fopen(path, "wb");
  assert_non_null(file);
  assert_int_equal(fwrite(text, 1, strlen(text), file), strlen(text));
  assert_int_equal(fclose(file), 0);
}

static int make_file(void **state) {
  (void)state;
  (void)snprintf(path, sizeof path, "/tmp/weft-preset-XXXXXX");
  int file = mkstemp(path);
  return file < 0 ? -1 : close(file);
}

static int drop_file(void **state) {
  (void)state;
  return unlink(path);
}

static void has_entry(const char *const *entry, uint32_t n, const char *wanted) {
  for (uint32_t i = 0; i < n; i++)
    if (strcmp(entry[i], wanted) == 0) return;
  fail_msg("there is no '%s' among %u", wanted, n);
}

static void test_settings(void **state) {
  (void)state;
  static const char *const given[] = {"own=name"};
  weft_open_options o = {.models_preset = path, .served_names = given, .n_served_names = 1};
  weft_error error = {{0}};
  models_preset *p;
  bool loads;
  write_preset(
      "; a comment\nversion = 1\r\n\n[chat]\nmodel = /models/a-long-name.gguf\n  alias = gpt-4, assistant ,\n"
      "ctk = q8_0\ncache-type-v=Q8_0\n# another\n[ b ]\nload-on-startup = on\n--chat-template-file = t.jinja\n");
  if (models_preset_open(&o, &p, &error) != WEFT_OK) fail_msg("%s", error.text);
  assert_int_equal(o.n_served_names, 4);
  has_entry(o.served_names, o.n_served_names, "own=name");
  assert_string_equal(o.served_names[1], "a-long-name=chat"); /* the first one stands in answers */
  has_entry(o.served_names, o.n_served_names, "a-long-name=gpt-4");
  has_entry(o.served_names, o.n_served_names, "a-long-name=assistant");
  assert_int_equal(o.n_kv_8bit, 1);
  has_entry(o.kv_8bit, o.n_kv_8bit, "a-long-name");
  assert_int_equal(o.n_chat_templates, 1);
  has_entry(o.chat_templates, o.n_chat_templates, "b=t.jinja");
  assert_string_equal(models_preset_path(p, 0), "/models/a-long-name.gguf");
  assert_null(models_preset_path(p, 1));
  assert_string_equal(models_preset_file(p, 0, &loads), "a-long-name");
  assert_false(loads);
  assert_string_equal(models_preset_file(p, 1, &loads), "b");
  assert_true(loads);
  assert_null(models_preset_file(p, 2, &loads));
  models_preset_close(p);
}

static void test_all(void **state) {
  (void)state;
  weft_open_options o = {.models_preset = path};
  weft_error error = {{0}};
  models_preset *p;
  bool loads = false;
  write_preset("[*]\nctk=q8_0\nctv=q8_0\nload-on-startup=1\n[a]\n[b]\nload-on-startup=false");
  if (models_preset_open(&o, &p, &error) != WEFT_OK) fail_msg("%s", error.text);
  has_entry(o.kv_8bit, o.n_kv_8bit, "all");
  assert_true(models_preset_file(p, 0, &loads) != NULL && loads);
  assert_true(models_preset_file(p, 1, &loads) != NULL && !loads);
  models_preset_close(p);
}

static void test_refusals(void **state) {
  (void)state;
  static const struct {
    const char *text, *words;
  } rows[] = {{"[a]\nn-gpu-layers = 99\n", ":2: [a] n-gpu-layers is an option of llama-server"},
              {"[a]\nngl = 99\n", ":2: [a] -ngl is an option of llama-server"},
              {"[a]\nc = 4096\n", ":2: [a] no option is named 'c'"},
              {"[a]\nctx-size = 4096\n", "ctx-size is an option of llama-server; here it is --context"},
              {"[a]\ntemp = 1\n", ":2: [a] "},
              {"version = 2\n", ":1: version must be 1"},
              {"model = a.gguf\n", "stands before the first [section]"},
              {"[*]\nmodel = a.gguf\n", "[*] is about all models"},
              {"[a]\n[a]\n", ":2: a section was there before: 'a'"},
              {"[a]\nmodel = x.gguf\nm = y.gguf\n", ":3: it was said before: 'm'"},
              {"[a]\nmodel =\n", "it has no value"},
              {"[a]\nmodel\n", "neither [NAME] nor KEY = VALUE: 'model'"},
              {"[]\n", "no name of a model"},
              {"[a=b]\n", "no name of a model"},
              {"[a]\nctk = q4_0\n", "not as 'q4_0'"},
              {"[a]\nctk = q8_0\n", "both q8_0 here, or neither"},
              {"[*]\nctk = q8_0\nctv = q8_0\n[a]\nctk = f16\nctv = f16\n", "where [*] says q8_0 all are"},
              {"[a]\nload-on-startup = perhaps\n", "must be true or false"},
              {"[a]\nmodel = x/m.gguf\n[b]\nmodel = y/m.gguf\n", "[a] and [b] are of one file"},
              {"[a]\nmodel-draft = d.gguf\n", ":2: [a] "}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    weft_open_options o = {.models_preset = path};
    weft_error error = {{0}};
    models_preset *p;
    write_preset(rows[i].text);
    assert_int_equal(models_preset_open(&o, &p, &error), WEFT_E_INVALID);
    assert_true(p == NULL && o.n_served_names == 0);
    if (strstr(error.text, rows[i].words) == NULL || strchr(error.text, '\n') != NULL)
      fail_msg("'%s' lacks '%s'", error.text, rows[i].words);
  }
}

/* Served, one of them loaded at the start. */
static void test_served(void **state) {
  (void)state;
  char error[512] = "";
  weft_runtime *rt = NULL;
  write_preset("[quick]\nmodel = " MODELS "ar-base.gguf\nalias = also\nload-on-startup = true\n[slow]\nmodel = " MODELS
               "ar-dense.gguf\n");
  weft_open_options options = small_runtime(NULL, 0);
  options.models_preset = path;
  if (weft_open(&options, &rt, error, sizeof error) != 0) fail_msg("%s", error);
  assert_int_equal(weft_n_models(rt), 2);
  assert_string_equal(weft_model_at(rt, 0).name, "quick");
  assert_int_equal(weft_model_at(rt, 0).n_aliases, 1);
  assert_string_equal(weft_model_at(rt, 1).name, "slow");
  while (strcmp(weft_model_at(rt, 0).state, "ready") != 0) (void)usleep(1000);
  assert_string_equal(weft_model_at(rt, 1).state, "absent");
  assert_int_equal(weft_load_model(rt, "slow", error, sizeof error), 0);
  weft_close(rt);
  write_preset("[nowhere]\n");
  assert_int_equal(weft_open(&options, &rt, error, sizeof error), WEFT_E_NOT_FOUND);
  assert_non_null(strstr(error, "nowhere.gguf: give its section"));
  write_preset("[gone]\nmodel = /nowhere/gone.gguf\n");
  assert_true(weft_open(&options, &rt, error, sizeof error) < 0);
  assert_non_null(strstr(error, "/nowhere/gone.gguf"));
}

int main(void) {
  weft_log_set_level(WEFT_LOG_ERROR);
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_settings), cmocka_unit_test(test_all),
                                     cmocka_unit_test(test_refusals), cmocka_unit_test(test_served)};
  return cmocka_run_group_tests(tests, make_file, drop_file);
}
