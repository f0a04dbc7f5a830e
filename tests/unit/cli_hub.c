/* SPDX-License-Identifier: MIT */
/* Which files a name on a hub means, whatever the hub says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "api/cli/hub.h"

static const char listing[] =
    "[{\"type\":\"directory\",\"path\":\"BF16\",\"size\":0},"
    "{\"type\":\"file\",\"path\":\"README.md\",\"size\":100},"
    "{\"type\":\"file\",\"path\":\"mmproj-m-Q8_0.gguf\",\"size\":5},"
    "{\"type\":\"file\",\"path\":\"m-Q8_0.gguf\",\"size\":8},"
    "{\"type\":\"file\",\"path\":\"m-Q4_K_M.gguf\",\"size\":133,\"lfs\":{\"oid\":"
    "\"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\",\"size\":4}},"
    "{\"type\":\"file\",\"path\":\"m-Q4_K_S.gguf\",\"size\":4},"
    "{\"type\":\"file\",\"path\":\"m-Q4_0.gguf\",\"size\":4},"
    "{\"type\":\"file\",\"path\":\"m-Q4_0_8_8.gguf\",\"size\":4},"
    "{\"type\":\"file\",\"path\":\"m.imatrix.gguf\",\"size\":4},"
    "{\"type\":\"file\",\"path\":\"BF16/m-BF16-00002-of-00002.gguf\",\"size\":16},"
    "{\"type\":\"file\",\"path\":\"BF16/m-BF16-00001-of-00002.gguf\",\"size\":16},"
    "{\"type\":\"file\",\"path\":\"../../m-F16.gguf\",\"size\":4},"
    "{\"type\":\"file\",\"path\":\"/m-F16.gguf\",\"size\":4},"
    "{\"type\":\"file\",\"path\":\"a//m-F16.gguf\",\"size\":4},"
    "{\"type\":\"file\",\"path\":\"m-\\u001b[2JF16.gguf\",\"size\":4},"
    "{\"type\":\"file\",\"path\":\".m-F16.gguf\",\"size\":4},"
    "{\"type\":\"file\",\"path\":\"m-F16.gguf\",\"size\":-4},"
    "{\"type\":\"file\",\"path\":7,\"size\":4},7,null]";

static void names_are_read(void **state) {
  static const char *const bad[] = {"",     "a",       "a/",     "/a",    "a/b/c",  "a/b:",       "a b/c", "../a",
                                    "a/..", "a/b:c/d", "a/b:..", "a/b\n", "-x:y/z", "a/\xc3\xa4", "a/b?c", "a/b#c"};
  hub_name name;
  weft_error error;
  (void)state;
  assert_int_equal(hub_name_read("ggml-org/gemma-4_2.b-GGUF:q8_0", &name, &error), WEFT_OK);
  assert_string_equal(name.owner, "ggml-org");
  assert_string_equal(name.name, "gemma-4_2.b-GGUF");
  assert_string_equal(name.quant, "q8_0");
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    if (hub_name_read(bad[i], &name, &error) != WEFT_E_INVALID) fail_msg("'%s' is taken", bad[i]);
  }
}

static const char *choose(const char *quant) {
  static char path[HUB_NAME_BYTES];
  hub_list list;
  hub_name name = {.owner = "o", .name = "n"};
  weft_error error = {{0}};
  (void)snprintf(name.quant, sizeof name.quant, "%s", quant);
  assert_int_equal(hub_list_read(listing, sizeof listing - 1, &list, &error), WEFT_OK);
  const hub_file *file = hub_choose(&list, &name, &error);
  (void)snprintf(path, sizeof path, "%.190s", file == NULL ? error.text : file->path);
  hub_list_free(&list);
  return path;
}

static void quants_are_found(void **state) {
  (void)state;
  assert_string_equal(choose(""), "m-Q4_K_M.gguf");
  assert_string_equal(choose("q8_0"), "m-Q8_0.gguf"); /* never the encoder of images */
  assert_string_equal(choose("Q4_0"), "m-Q4_0.gguf"); /* and not Q4_0_8_8 */
  assert_string_equal(choose("Q4_K_S"), "m-Q4_K_S.gguf");
  assert_string_equal(choose("bf16"), "BF16/m-BF16-00001-of-00002.gguf");
  assert_non_null(strstr(choose("F16"), "has no file of 'F16'; there is BF16/m-BF16-00001-of-00002.gguf, m-Q4_0.gguf"));
  assert_non_null(strstr(choose("Q4_K"), "has no file of 'Q4_K'"));
}

static void lists_are_read(void **state) {
  static const char *const bad[] = {"", "{}", "{\"error\":\"x\"}", "[", "<html>", "[]x"};
  hub_list list;
  weft_error error;
  (void)state;
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
    assert_int_equal(hub_list_read(bad[i], strlen(bad[i]), &list, &error), WEFT_E_FORMAT);
  assert_int_equal(hub_list_read(listing, sizeof listing - 1, &list, &error), WEFT_OK);
  for (uint32_t i = 0; i < list.n; i++) {
    assert_null(strstr(list.file[i].path, ".."));
    assert_true(list.file[i].path[0] != '/' && list.file[i].n_bytes > 0);
    if (strcmp(list.file[i].path, "m-Q4_K_M.gguf") != 0) continue;
    assert_int_equal(list.file[i].n_bytes, 4); /* of the file, not of the pointer to it */
    assert_int_equal(strlen(list.file[i].sha256), 64);
  }
  hub_list_free(&list);
  assert_int_equal(hub_list_read("[]", 2, &list, &error), WEFT_OK);
  const hub_name name = {.owner = "o", .name = "n"};
  assert_null(hub_choose(&list, &name, &error));
  assert_non_null(strstr(error.text, "has no GGUF file"));
  hub_list_free(&list);
}

static void parts_are_named(void **state) {
  char path[HUB_NAME_BYTES];
  (void)state;
  assert_int_equal(hub_parts("a/m-00001-of-00012.gguf"), 12);
  assert_int_equal(hub_parts("m.gguf"), 1);
  assert_int_equal(hub_parts("m-00013-of-00012.gguf"), 1);
  hub_part_path("a/m-00001-of-00012.gguf", 7, path);
  assert_string_equal(path, "a/m-00007-of-00012.gguf");
}

static void addresses_are_judged(void **state) {
  static const char *const good[] = {"https://huggingface.co", "http://127.0.0.1:80", "http://localhost",
                                     "http://[::1]:9"};
  static const char *const bad[] = {"http://huggingface.co",
                                    "ftp://127.0.0.1",
                                    "file:///etc/passwd",
                                    "http://127.0.0.1@evil.net",
                                    "http://127.0.0.1.evil.net",
                                    "huggingface.co",
                                    ""};
  weft_error error;
  (void)state;
  for (size_t i = 0; i < sizeof good / sizeof *good; i++) assert_int_equal(hub_check_url(good[i], &error), WEFT_OK);
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_int_equal(hub_check_url(bad[i], &error), WEFT_E_INVALID);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(names_are_read),  cmocka_unit_test(quants_are_found),     cmocka_unit_test(lists_are_read),
      cmocka_unit_test(parts_are_named), cmocka_unit_test(addresses_are_judged),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
