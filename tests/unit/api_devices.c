/* SPDX-License-Identifier: MIT */
/* Options of several devices: what is refused, each with one line that says what is wrong; and what the plan, the
 * metrics and the counters say of a model whose layers are shared out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "api/weft.h"
#include "base/log.h"

static weft_open_options demo(const char *devices) {
  static const char *models[] = {WEFT_SOURCE_DIR "/model/demo/weft-demo.gguf"};
  return (weft_open_options){.models = models,
                             .n_models = 1,
                             .backend = "cpu",
                             .threads = 1,
                             .kv_bytes = 4 << 20,
                             .context = 128,
                             .devices = devices,
                             .quiet = true};
}

static void test_what_is_refused(void **state) {
  static const struct {
    const char *devices, *split, *ratio, *mib, *line;
  } table[] = {
      {"", NULL, NULL, NULL, "write the numbers of 1 to 8 devices"},
      {"0,", NULL, NULL, NULL, "write the numbers of 1 to 8 devices"},
      {"0,one", NULL, NULL, NULL, "write the numbers of 1 to 8 devices"},
      {"0,1.5", NULL, NULL, NULL, "write the numbers of 1 to 8 devices"},
      {"-1", NULL, NULL, NULL, "write the numbers of 1 to 8 devices"},
      {"0,1,2,3,4,5,6,7,8", NULL, NULL, NULL, "write the numbers of 1 to 8 devices"},
      {"0,1,0", NULL, NULL, NULL, "device 0 is named twice"},
      {"0,1", "rows", NULL, NULL, "--split rows: layer, tensor and auto are what there is"},
      {"0", "tensor", NULL, NULL, "--split tensor needs several devices"},
      {"0,1", "tensor", "7,3", NULL, "--split-ratio 7,3: with --split tensor all devices have equal shares"},
      {"0,1", "tensor", NULL, NULL, "the 4 heads and 1 key heads of layer 2 cannot be shared out evenly to 2 devices"},
      {"0,1", NULL, "7", NULL, "--split-ratio 7 has 1 numbers; --devices names 2"},
      {"0,1", NULL, "7,2,1", NULL, "--split-ratio 7,2,1 has 3 numbers; --devices names 2"},
      {"0,1", NULL, "0,0", NULL, "write a number above 0 for each device"},
      {"0,1", NULL, "7,nan", NULL, "write a number above 0 for each device"},
      {"0,1", NULL, "7,-3", NULL, "write a number above 0 for each device"},
      {NULL, NULL, "7,3", NULL, "--split-ratio 7,3 has 2 numbers; --devices names 1"},
      {"0,1", NULL, NULL, "16000,", "--device-mib 16000,: write a number of MiB"},
      {"0,1", NULL, NULL, "16000,1,2", "--device-mib 16000,1,2 has 3 numbers; there are 2 devices"},
      {NULL, NULL, NULL, "9,9", "--device-mib 9,9 has 2 numbers; there is 1 device"},
      {"0,1,2,3,4,5,6", NULL, NULL, NULL, "6 layers, of which some must lie on one device, cannot be shared out to 7"},
  };
  (void)state;
  for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
    weft_open_options options = demo(table[i].devices);
    weft_runtime *rt = NULL;
    char error[512] = "";
    options.split = table[i].split;
    options.split_ratio = table[i].ratio;
    options.device_mib = table[i].mib;
    print_message("%zu: %s\n", i, table[i].line);
    assert_int_not_equal(weft_open(&options, &rt, error, sizeof error), 0);
    assert_null(rt);
    if (strstr(error, table[i].line) == NULL) fail_msg("the line is: %s", error);
    assert_null(strchr(error, '\n'));
  }
}

static void check_words(const char *text, const char *const *words, size_t n) {
  for (size_t i = 0; i < n; i++) {
    if (strstr(text, words[i]) == NULL) fail_msg("'%s' is not in:\n%s", words[i], text);
  }
}

static void test_what_is_said(void **state) {
  static const char *const planned[] = {"device 0 cpu ",
                                        "device 3 cpu ",
                                        "part     layers 0 to 3 on device 0: weights ",
                                        "part     layers 4 to 5 on device 3, with the head: ",
                                        "% of each page",
                                        "equal work for each device, of which the head is 1.2 layers"};
  static const char *const metrics[] = {
      "weft_crossed_bytes_total{model_name=\"weft-demo\",kind=\"rows\"} ", ",kind=\"soft\"} ", ",kind=\"tokens\"} ",
      "weft_device_weight_bytes{device=\"3\"} ", "weft_device_kv_bytes{device=\"0\"} "};
  static const char *const asked[] = {"layers 0 to 0 on device 0", "layers 1 to 5 on device 3",
                                      "where --split-ratio says"};
  weft_open_options options = demo("0,3");
  weft_runtime *rt;
  char error[512] = "";
  (void)state;
  assert_int_equal(weft_open(&options, &rt, error, sizeof error), 0);
  check_words(weft_plan(rt), planned, sizeof planned / sizeof *planned);
  char *text = weft_metrics(rt);
  check_words(text, metrics, sizeof metrics / sizeof *metrics);
  weft_release(text);
  weft_close(rt);
  options.split_ratio = "1,5";
  options.split = "layer";
  options.device_mib = "16000,12000.5";
  assert_int_equal(weft_open(&options, &rt, error, sizeof error), 0);
  check_words(weft_plan(rt), asked, sizeof asked / sizeof *asked);
  weft_close(rt);
  options = demo(NULL); /* of one device nothing of this is said */
  assert_int_equal(weft_open(&options, &rt, error, sizeof error), 0);
  assert_null(strstr(weft_plan(rt), "part "));
  text = weft_metrics(rt);
  assert_null(strstr(text, "crossed"));
  weft_release(text);
  weft_close(rt);
}

static void test_what_is_said_of_shards(void **state) {
  static const char *models[] = {WEFT_SOURCE_DIR "/tests/golden/models/dg-deep.gguf"};
  static const char *const planned[] = {"shard    1 of 2 on device 0, with the head: weights ",
                                        "shard    2 of 2 on device 3: weights ",
                                        "cut      within layers, because --split tensor was given"};
  weft_open_options options = demo("0,3");
  weft_runtime *rt;
  char error[512] = "";
  (void)state;
  options.models = models;
  options.split = "tensor";
  assert_int_equal(weft_open(&options, &rt, error, sizeof error), 0);
  check_words(weft_plan(rt), planned, sizeof planned / sizeof *planned);
  assert_null(strstr(weft_plan(rt), "part "));
  char *text = weft_metrics(rt);
  assert_non_null(strstr(text, "weft_device_kv_bytes{device=\"3\"} "));
  weft_release(text);
  weft_close(rt);
}

int main(void) {
  weft_log_set_level(WEFT_LOG_ERROR);
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_what_is_refused), cmocka_unit_test(test_what_is_said),
                                     cmocka_unit_test(test_what_is_said_of_shards)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
