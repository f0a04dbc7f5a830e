/* SPDX-License-Identifier: MIT */
/* Options of several devices: what is refused, each with one line that says what is wrong; what the plan, the
 * metrics and the counters say of a model whose layers are shared out; and which features are on with two devices. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "api/weft.h"
#include "api/devices.h"
#include "api/keep_identity.h"
#include "api/models_folder.h"
#include "base/log.h"
#include "base/memory.h"
#include "kernels/cpu/cpu.h"
#include "tests/support/amount.h"
#include "tests/support/fake_card.h"

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
      {"", NULL, NULL, NULL, "write the numbers of 1 to 16 devices"},
      {"0,", NULL, NULL, NULL, "write the numbers of 1 to 16 devices"},
      {"0,one", NULL, NULL, NULL, "write the numbers of 1 to 16 devices"},
      {"0,1.5", NULL, NULL, NULL, "write the numbers of 1 to 16 devices"},
      {"0x1", NULL, NULL, NULL, "write the numbers of 1 to 16 devices"},
      {"0", NULL, NULL, "0x10", "--device-mib 0x10"},
      {"0,1", NULL, "0x7,3", NULL, "--split-ratio 0x7,3"},
      {"-1", NULL, NULL, NULL, "write the numbers of 1 to 16 devices"},
      {"0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16", NULL, NULL, NULL, "write the numbers of 1 to 16 devices"},
      {"0,1,0", NULL, NULL, NULL, "device 0 is named twice"},
      {"0,1", "rows", NULL, NULL, "--split rows: layer, tensor, replicas and auto are what there is"},
      {"0", "tensor", NULL, NULL, "--split tensor needs several devices"},
      {"0", "replicas", NULL, NULL, "--split replicas needs several devices: name them with --devices, as 0,1"},
      {NULL, "replicas", NULL, NULL, "--split replicas needs several devices"},
      {"0,1", "replicas", "7,3", NULL, "--split-ratio 7,3: with --split replicas each device has all layers"},
      {"0,1", "replicas", NULL, "1000,2", "(device 1: 6.94 MiB needed, 2.00 MiB free for weights); raise --device-mib"},
      {"0,1", "tensor", "7,3", NULL, "--split-ratio 7,3: with --split tensor all devices have equal shares"},
      {"0,1,2", "tensor", NULL, NULL,
       "the 4 heads and 2 key heads of layer 0 cannot be shared out evenly to 3 devices"},
      {"0,1,2", "tensor:2,layer:2", NULL, NULL, "--split tensor:2,layer:2 needs 4 devices; --devices names 3"},
      {NULL, "layer:2,tensor:1", NULL, NULL, "--split layer:2,tensor:1 needs 2 devices; --devices names 1"},
      {"0,1", "tensor:2", NULL, NULL, "--split tensor:2: layer, tensor, replicas and auto are what there is, and"},
      {"0,1", "tensor:0,layer:2", NULL, NULL, "and tensor:N,layer:M for M parts of N devices each"},
      {"0,1", "tensor:2,tensor:1", NULL, NULL, "and tensor:N,layer:M"},
      {"0,1", "tensor:2,layer:1,", NULL, NULL, "and tensor:N,layer:M"},
      {"0,1", "tensor:1.5,layer:1", NULL, NULL, "and tensor:N,layer:M"},
      {"0,1", "tensor:17,layer:1", NULL, NULL, "and tensor:N,layer:M"},
      {"0,1", "tensor:2,layer:1", "1", NULL, "--split-ratio 1: with --split tensor all devices have equal shares"},
      {"0,1,2,3", "tensor:2,layer:2", "1,2,3", NULL,
       "--split-ratio 1,2,3 has 3 numbers; --split tensor:2,layer:2 makes 2 parts"},
      {"0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15", "tensor:2,layer:8", NULL, NULL, "cannot be shared out to 8 parts"},
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

/* Two parts of two shards each, by the plan and by metrics. */
static void say_parts_of_shards(void) {
  static const char *const planned[] = {"link     device 5 to device 1: in the memory that both share",
                                        "link     device 5 to device 2: in the memory",
                                        "link     device 3 to device 2: in the memory",
                                        "link     device 2 to device 5: in the memory",
                                        "shard    1 of 2 of layers 0 to 3 on device 5: weights ",
                                        "shard    2 of 2 of layers 0 to 3 on device 1: weights ",
                                        "shard    1 of 2 of layers 4 to 5 on device 2, with the head: weights ",
                                        "shard    2 of 2 of layers 4 to 5 on device 3: weights ",
                                        "% of each page",
                                        "because --split tensor was given",
                                        "equal work for each part, of which the head is 1.2 layers"};
  static const char *const metrics[] = {"weft_device_weight_bytes{device=\"3\"} ",
                                        "weft_device_kv_bytes{device=\"1\"} "};
  weft_open_options options = demo("5,1,2,3");
  weft_runtime *rt;
  char error[512] = "";
  options.split = "tensor:2,layer:2";
  if (weft_open(&options, &rt, error, sizeof error) != 0) fail_msg("%s", error);
  check_words(weft_plan(rt), planned, sizeof planned / sizeof *planned);
  assert_null(strstr(weft_plan(rt), "--split auto"));
  char *text = weft_metrics(rt);
  check_words(text, metrics, sizeof metrics / sizeof *metrics);
  weft_release(text);
  weft_close(rt);
}

static void test_what_is_said(void **state) {
  static const char *const planned[] = {"device 0 cpu ",
                                        "device 3 cpu ",
                                        "link     device 0 to device 3: in the memory that both share",
                                        "link     device 3 to device 0: in the memory",
                                        "split    by layer, because --split auto: 2 steps at once, and a row crosses 1 "
                                        "time with 1.0 KiB",
                                        "all devices wait 12 times or more",
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
  say_parts_of_shards();
  options = demo(NULL); /* of one device nothing of this is said */
  assert_int_equal(weft_open(&options, &rt, error, sizeof error), 0);
  assert_null(strstr(weft_plan(rt), "part "));
  assert_null(strstr(weft_plan(rt), "link "));
  text = weft_metrics(rt);
  assert_null(strstr(text, "crossed"));
  weft_release(text);
  weft_close(rt);
}

/* Where weights lie as integers too, the plan says so; and what a card says of its clocks. A precision that a backend
 * has not is refused. */
static void test_precision(void **state) {
  static const char *const said = ": products of 32 bits, weights as integers too, 64 rows a step\n";
  static const char *const clocks =
      "  clocks   give 4.92 TB/s of memory and 1070 TFLOP/s of products of 16 bits at most\n";
  fake_card *card = fake_card_open(false);
  weft_devices devices = {.n = 1, .device = {&card->base}};
  weft_text text = {0};
  weft_open_options options = demo(NULL);
  weft_runtime *rt = NULL;
  char error[512] = "";
  uint32_t bits = 1;
  (void)state;
  devices_print(&devices, 64, 64, &text);
  assert_null(strstr(text.bytes, "integers"));
  card->base.info.integers = true;
  devices_print(&devices, 64, 64, &text);
  check_words(text.bytes, &said, 1);
  assert_null(strstr(text.bytes, "clocks")); /* a device that does not say them */
  card->base.info.memory_rate = 4.917e12;
  card->base.info.product_rate = 1.0705e15;
  devices_print(&devices, 64, 64, &text);
  check_words(text.bytes, &clocks, 1);
  weft_text_free(&text);
  devices_close(&devices);
  assert_int_equal(devices_precision(NULL, &bits, NULL), WEFT_OK);
  assert_int_equal(bits, 0);
  assert_int_equal(devices_precision("exact", &bits, NULL), WEFT_OK);
  assert_int_equal(bits, 16);
  assert_int_equal(devices_precision("fast", &bits, NULL), WEFT_OK);
  assert_int_equal(bits, 8);
  options.precision = "half";
  assert_int_not_equal(weft_open(&options, &rt, error, sizeof error), 0);
  assert_string_equal(error, "--precision: 'half' must be auto, exact or fast");
  options.precision = "exact";
  assert_int_not_equal(weft_open(&options, &rt, error, sizeof error), 0);
  assert_string_equal(error, "backend 'cpu' multiplies quantised weights in 8 bits, not in 16; leave out --precision");
  options.precision = "fast";
  assert_int_equal(weft_open(&options, &rt, error, sizeof error), 0);
  weft_close(rt);
}

/* What --precision auto chooses, by backend and files alone, and that the plan says so. */
static void test_auto(void **state) {
  static const char *demo_8[] = {WEFT_SOURCE_DIR "/model/demo/weft-demo.gguf"};    /* Q8_0 */
  static const char *demo_5[] = {WEFT_SOURCE_DIR "/model/demo/weft-demo-ar.gguf"}; /* Q5_0 */
  static const char *both[] = {WEFT_SOURCE_DIR "/model/demo/weft-demo-ar.gguf",
                               WEFT_SOURCE_DIR "/model/demo/weft-demo.gguf"};
  static const struct {
    const char *backend, *precision;
    const char *const *models;
    uint32_t n_models;
    const char *bits, *line;
  } table[] = {
      {"ref", NULL, demo_5, 1, "products of 32 bits",
       "precision that of backend 'ref', by which the others are judged\n"},
      {"ref", "auto", demo_5, 1, "products of 8 bits",
       "precision fast, chosen by auto: in weft-demo-ar.gguf 99 % of the weights are in types of 4 to 6 bits, and "
       "norms "
       "have no outliers (spread 2.1)\n"},
      {"ref", "auto", demo_8, 1, "products of 32 bits",
       "precision exact, chosen by auto: in weft-demo.gguf 0 % of the weights are in types of 4 to 6 bits, fewer than "
       "50 "
       "%\n"},
      {"ref", "auto", both, 2, "products of 32 bits", "precision exact, chosen by auto: in weft-demo.gguf 0 % of"},
      {"ref", "fast", demo_8, 1, "products of 8 bits", "precision fast, as --precision says\n"},
      {"cpu", NULL, demo_8, 1, "products of 8 bits", "precision fast, the only one of backend 'cpu'\n"},
      {"cpu", "auto", demo_5, 1, "products of 8 bits", "precision fast, the only one of backend 'cpu'\n"},
  };
  (void)state;
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    weft_open_options options = demo(NULL);
    weft_runtime *rt;
    char error[512] = "";
    options.backend = table[i].backend;
    options.precision = table[i].precision;
    options.models = table[i].models;
    options.n_models = table[i].n_models;
    if (weft_open(&options, &rt, error, sizeof error) != 0) fail_msg("row %zu: %s", i, error);
    check_words(weft_plan(rt), &table[i].bits, 1);
    check_words(weft_plan(rt), &table[i].line, 1);
    weft_close(rt);
  }
}

/* Models that come and go lie on one device. */
static void test_folder_on_two_cards(void **state) {
  weft_runtime *rt = weft_alloc(1, sizeof *rt);
  weft_error error = {{0}};
  (void)state;
  assert_non_null(rt);
  memset(rt, 0, sizeof *rt);
  rt->options.models_dir = "/models";
  rt->devices = (weft_devices){.n = 2, .device = {&fake_card_open(false)->base, &fake_card_open(false)->base}};
  assert_int_equal(models_folder_plan(rt, &error), WEFT_E_INVALID);
  assert_string_equal(error.text, "--models-dir: models come and go on one device: name one with --devices");
  devices_close(&rt->devices);
  weft_free(rt);
}

/* Of cards without peer access, and of those that may not use it, the plan says by what way bytes go. */
static void test_links(void **state) {
  static const struct {
    bool links, no_peer;
    const char *line;
  } table[] = {{true, false, "device 2 to device 5: directly, by peer access"},
               {false, false, "device 2 to device 5: through host memory: the cards have no peer access"},
               {false, true, "device 2 to device 5: through host memory: --no-peer-access turns peer access off"}};
  (void)state;
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    fake_card *card[2] = {fake_card_open(false), fake_card_open(false)};
    weft_devices devices = {.n = 2, .no_peer = table[i].no_peer};
    weft_text text = {0};
    for (uint32_t p = 0; p < 2; p++) {
      card[p]->base.info.index = 2 + 3 * p;
      devices.device[p] = &card[p]->base;
      devices.links[p] = table[i].links;
    }
    devices_print(&devices, 64, 64, &text);
    check_words(text.bytes, &table[i].line, 1);
    weft_text_free(&text);
    devices_close(&devices);
  }
}

/* ---- switches ---- */

typedef struct said {
  int32_t tokens[64];
  uint32_t n;
} said;

static void ask_for(weft_runtime *rt, const char *prompt, uint32_t n_tokens, bool canvas, bool no_self_conditioning,
                    said *out) {
  weft_generate_params p;
  weft_generation *g = NULL;
  weft_delta d;
  char error[512] = "";
  weft_generate_defaults(&p);
  p.mode = canvas ? WEFT_MODE_DIFFUSION : WEFT_MODE_AUTOREGRESSIVE;
  p.prompt.text = prompt;
  p.prompt.n_text = strlen(p.prompt.text);
  p.max_tokens = n_tokens;
  p.ignore_eos = p.has_seed = true;
  p.sampling.seed = 7;
  p.entropy_bound.no_self_conditioning = no_self_conditioning;
  if (weft_submit(rt, &p, &g, error, sizeof error) != 0) fail_msg("%s", error);
  do {
    assert_int_equal(weft_next(g, TEST_WAIT_MS, &d), 0);
    if (d.kind != WEFT_DELTA_TEXT) continue;
    assert_true(out->n + d.n_tokens <= 64);
    memcpy(out->tokens + out->n, d.tokens, d.n_tokens * sizeof *d.tokens);
    out->n += d.n_tokens;
  } while (d.kind != WEFT_DELTA_END);
  assert_string_equal(d.finish, "length");
  weft_generation_free(g);
}

static void ask(weft_runtime *rt, bool canvas, bool no_self_conditioning, said *out) {
  ask_for(rt, "The soft ball is behind the blue boat", 24, canvas, no_self_conditioning, out);
}

/* Starts that differ in room, rows and devices, and replicas, give the same tokens under auto, those of fast. */
static void test_auto_twice(void **state) {
  static const char *models[] = {WEFT_SOURCE_DIR "/model/demo/weft-demo-ar.gguf"};
  static const struct {
    const char *precision, *devices, *split, *mib;
    uint64_t kv;
    uint32_t rows;
  } starts[] = {{"fast", NULL, NULL, NULL, 4 << 20, 64},
                {"auto", NULL, NULL, NULL, 4 << 20, 64},
                {"auto", NULL, NULL, "64", 1 << 20, 32},
                {"auto", "0,1", "replicas", NULL, 2 << 20, 64},
                {"auto", "0,1", "layer", NULL, 2 << 20, 48}};
  said wanted = {{0}, 0};
  (void)state;
  for (size_t i = 0; i < sizeof starts / sizeof *starts; i++) {
    weft_open_options options = demo(starts[i].devices);
    weft_runtime *rt;
    char error[512] = "";
    options.models = models;
    options.backend = "ref";
    options.precision = starts[i].precision;
    options.split = starts[i].split;
    options.device_mib = starts[i].mib;
    options.kv_bytes = starts[i].kv;
    options.rows = starts[i].rows;
    if (weft_open(&options, &rt, error, sizeof error) != 0) fail_msg("start %zu: %s", i, error);
    said got = {{0}, 0};
    ask_for(rt, "58", 4, false, false, &got);
    assert_int_equal(got.n, 4);
    if (i == 0) wanted = got;
    assert_memory_equal(&got, &wanted, sizeof wanted);
    weft_close(rt);
  }
}

static uint32_t count_of(const char *text, const char *word) {
  uint32_t n = 0;
  while ((text = strstr(text, word)) != NULL) n++, text++;
  return n;
}

/* Each switch, on and off, on one device and on two: what is off is said once with its reason, what is on is not said
 * to be off, nothing is turned off by a second device, and answers with the same switches are the same on both. */
static void test_switches(void **state) {
  static const char *const all[] = {"all"};
  static const struct {
    const char *name, *line;
    bool two; /* of several devices only */
  } table[] = {{"none", NULL, false},
               {"prefix cache", "off      prefixes shared between requests: --no-prefix-cache", false},
               {"graphs", "off      steps as graphs: --no-graphs", false},
               {"peer access", "off      peer access: --no-peer-access", true},
               {"self-conditioning", NULL, false},
               {"8-bit keys", "keys and values Q8_0", false}};
  (void)state;
  said plain[2] = {{{0}, 0}, {{0}, 0}};
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    said got[2][2] = {0};
    bool no_sc = strcmp(table[i].name, "self-conditioning") == 0;
    for (uint32_t two = 0; two < 2; two++) {
      weft_open_options options = demo(two ? "0,1" : NULL);
      weft_runtime *rt;
      char error[512] = "";
      options.no_prefix_cache = i == 1;
      options.no_graphs = i == 2;
      options.no_peer_access = i == 3;
      options.kv_8bit = all;
      options.n_kv_8bit = i == 5;
      if (weft_open(&options, &rt, error, sizeof error) != 0) fail_msg("%s: %s", table[i].name, error);
      bool one_line = table[i].line != NULL && (two || !table[i].two);
      uint32_t n_off = count_of(weft_plan(rt), "off      ");
      assert_int_equal(n_off, one_line && i < 4 ? 1 : 0);
      if (one_line) assert_int_equal(count_of(weft_plan(rt), table[i].line), 1);
      for (uint32_t canvas = 0; canvas < 2; canvas++) ask(rt, canvas == 1, no_sc, &got[two][canvas]);
      weft_close(rt);
    }
    print_message("%s\n", table[i].name);
    assert_memory_equal(got[0], got[1], sizeof got[0]);
    if (i == 0) memcpy(plain, got[0], sizeof plain);
    if (i < 4) assert_memory_equal(got[0], plain, sizeof plain); /* these change no answer */
  }
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

enum { REPLICAS = 16 };

/* Prompts that differ from their first word on. */
static weft_generation *ask_about_boats(weft_runtime *rt, uint32_t i, bool logprobs) {
  weft_generation *g = NULL;
  weft_generate_params p;
  char prompt[40], error[512] = "";
  weft_generate_defaults(&p);
  (void)snprintf(prompt, sizeof prompt, "%c boats and a blue ball", (char)('a' + i));
  p.mode = WEFT_MODE_AUTOREGRESSIVE;
  p.prompt.text = prompt;
  p.prompt.n_text = strlen(prompt);
  p.max_tokens = 6;
  p.ignore_eos = p.has_seed = true;
  p.sampling.logprobs = logprobs;
  if (weft_submit(rt, &p, &g, error, sizeof error) != 0) fail_msg("%s", error);
  return g;
}

/* All at once. */
static void ask_all(weft_runtime *rt, said out[REPLICAS]) {
  weft_generation *g[REPLICAS];
  for (uint32_t i = 0; i < REPLICAS; i++) g[i] = ask_about_boats(rt, i, false);
  for (uint32_t i = 0; i < REPLICAS; i++) {
    weft_delta d;
    do {
      assert_int_equal(weft_next(g[i], TEST_WAIT_MS, &d), 0);
      if (d.kind != WEFT_DELTA_TEXT) continue;
      memcpy(out[i].tokens + out[i].n, d.tokens, d.n_tokens * sizeof *d.tokens);
      out[i].n += d.n_tokens;
    } while (d.kind != WEFT_DELTA_END);
    weft_generation_free(g[i]);
  }
}

/* Each of sixteen devices computes some of sixteen requests, as one device would. */
static void test_sixteen_replicas(void **state) {
  said got[2][REPLICAS];
  (void)state;
  memset(got, 0, sizeof got);
  for (uint32_t many = 0; many < 2; many++) {
    weft_open_options options = demo(many ? "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15" : NULL);
    weft_runtime *rt;
    char error[512] = "", idle[64];
    options.split = many ? "replicas" : NULL;
    options.kv_bytes = 1 << 20;
    if (weft_open(&options, &rt, error, sizeof error) != 0) fail_msg("%s", error);
    ask_all(rt, got[many]);
    char *text = weft_metrics(rt);
    for (uint32_t i = 0; i < REPLICAS && many; i++) {
      (void)snprintf(idle, sizeof idle, "weft_replica_steps_total{device=\"%u\"} 0\n", i);
      assert_null(strstr(text, idle));
    }
    weft_release(text);
    weft_close(rt);
  }
  assert_memory_equal(got[0], got[1], sizeof got[0]);
}

static void test_what_is_said_of_replicas(void **state) {
  static const char *const planned[] = {"device 0 cpu ",
                                        "device 3 cpu ",
                                        "  replicas 2, because --split replicas was given",
                                        "at once in each replica",
                                        "pool     4.0 MiB in each replica: ",
                                        "host     2.0 MiB behind the pool in each replica: "};
  static const char *const metrics[] = {"weft_device_weight_bytes{device=\"3\"} ",
                                        "weft_device_kv_bytes{device=\"0\"} 4194304",
                                        "weft_device_kv_bytes{device=\"3\"} 4194304",
                                        "weft_replica_well{device=\"0\"} 1",
                                        "weft_replica_well{device=\"3\"} 1",
                                        "weft_replica_steps_total{device=\"3\"} 0",
                                        "weft_pool_pages 256",
                                        "weft_host_pages 128",
                                        "vllm:cache_config_info{model_name=\"weft-demo\",block_size=\"32\",",
                                        "weft_well 1"};
  weft_open_options options = demo("0,3");
  weft_runtime *rt;
  char error[512] = "";
  (void)state;
  options.split = "replicas";
  options.host_bytes = 4 << 20; /* shared out */
  if (weft_open(&options, &rt, error, sizeof error) != 0) fail_msg("%s", error);
  check_words(weft_plan(rt), planned, sizeof planned / sizeof *planned);
  assert_null(strstr(weft_plan(rt), "link "));
  assert_null(strstr(weft_plan(rt), "part "));
  char *text = weft_metrics(rt);
  check_words(text, metrics, sizeof metrics / sizeof *metrics);
  weft_release(text);
  text = weft_trace(rt, 0);
  assert_non_null(strstr(text, "loop of device 0"));
  assert_non_null(strstr(text, "loop of device 3"));
  weft_release(text);
  weft_close(rt);
  options.host_bytes = 48 << 10; /* a page and a half: none for each */
  assert_int_not_equal(weft_open(&options, &rt, error, sizeof error), 0);
  assert_non_null(strstr(error, "raise --host-mib"));
  options = demo(NULL);
  assert_int_equal(weft_open(&options, &rt, error, sizeof error), 0);
  text = weft_metrics(rt);
  assert_null(strstr(text, "replica"));
  weft_release(text);
  weft_close(rt);
}

static void test_kinds(void **state) {
  weft_device_info info[3] = {{.index = 0, .name = "A"}, {.index = 4, .name = "A"}, {.index = 5, .name = "B"}};
  const weft_device_info *const list[] = {&info[0], &info[1], &info[2]};
  weft_error error = {{0}};
  (void)state;
  assert_int_equal(devices_check_kinds(list, 2, &error), WEFT_OK);
  assert_int_equal(devices_check_kinds(list, 3, &error), WEFT_E_INVALID);
  assert_string_equal(error.text,
                      "--split replicas: device 0 is A and device 5 is B; replicas need devices of one kind");
}

/* ---- cards of several generations ---- */

static void test_generations(void **state) {
  weft_device_info info[4] = {{.index = 0, .name = "A", .capability = 80, .set = "portable"},
                              {.index = 1, .name = "B", .capability = 120, .set = "portable"},
                              {.index = 2, .name = "B", .capability = 120, .set = "portable"},
                              {.index = 3, .name = "C", .capability = 90, .set = "hopper"}};
  const weft_device_info *layers[] = {&info[0], &info[1], &info[3]};
  const weft_device_info *parts[] = {&info[1], &info[2], &info[0], &info[0]};
  weft_error error = {{0}};
  (void)state;
  assert_int_equal(devices_check_generations(layers, 2, 1, &error), WEFT_OK);
  assert_int_equal(devices_check_generations(parts, 4, 2, &error), WEFT_OK); /* each part of one */
  assert_int_equal(devices_check_generations(parts, 4, 4, &error), WEFT_E_INVALID);
  assert_int_equal(devices_check_generations(layers, 2, 2, &error), WEFT_E_INVALID);
  assert_string_equal(error.text,
                      "--split tensor: device 0 is A (sm_80) and device 1 is B (sm_120); rows of a step are shared out "
                      "to both, so an answer's last bits would depend on what is computed beside it: --split layer");
  assert_int_equal(devices_check_generations(layers, 3, 1, &error), WEFT_E_INVALID);
  assert_string_equal(
      error.text,
      "--devices: device 0 is A (sm_80) and device 3 is C (sm_90), and their kernel sets are portable and "
      "hopper; a server has one: --isa portable opens both with the same");
}

/* The second device rounds otherwise: it computes by other instructions. */
static void make_generations(void *self, weft_device *device) {
  bool later = device->info.index == 1;
  (void)self;
  device->info.capability = later ? 120 : 80;
  if (later) ((cpu_device *)(void *)device)->isa = CPU_ISA_PORTABLE;
}

/* Prompts of which each is asked alone, or all at once: the answers, and what their tokens' logprobs add up to. */
static void ask_with_logprobs(weft_runtime *rt, bool alone, said out[REPLICAS], double sum[REPLICAS]) {
  enum { AT_ONCE = 4 };
  weft_generation *g[AT_ONCE];
  for (uint32_t i = 0; i < AT_ONCE; i++) {
    g[i] = ask_about_boats(rt, i, true);
    if (alone || i + 1 == AT_ONCE)
      for (uint32_t k = alone ? i : 0; k <= i; k++) {
        weft_delta d;
        do {
          assert_int_equal(weft_next(g[k], TEST_WAIT_MS, &d), 0);
          for (uint32_t t = 0; d.kind == WEFT_DELTA_TEXT && t < d.n_tokens; t++) {
            out[k].tokens[out[k].n++] = d.tokens[t];
            sum[k] = 3 * sum[k] + (double)d.logprobs[t].logprob;
          }
        } while (d.kind != WEFT_DELTA_END);
        weft_generation_free(g[k]);
      }
  }
}

/* Layers on devices that round differently: what is promised is said, answers repeat to the last bit, alone and beside
 * others, and are not those of one device. */
static void test_layers_on_two_generations(void **state) {
  static const char *const line =
      "cards of several generations (sm_80, sm_120): answers repeat with these cards, their order and this split; they "
      "are not those of one of them alone\n";
  said got[3][REPLICAS];
  double sum[3][REPLICAS];
  bool differs = false; /* this processor has other instructions than the portable ones */
  (void)state;
  memset(got, 0, sizeof got);
  memset(sum, 0, sizeof sum);
  for (uint32_t start = 0; start < 3; start++) { /* together, alone, one device */
    weft_open_options options = demo(start < 2 ? "0,1" : NULL);
    weft_runtime *rt;
    char error[512] = "";
    weft_device_on_open(make_generations, NULL);
    int opened = weft_open(&options, &rt, error, sizeof error);
    weft_device_on_open(NULL, NULL);
    if (opened != 0) fail_msg("%s", error);
    assert_true((strstr(weft_plan(rt), line) != NULL) == (start < 2));
    ask_with_logprobs(rt, start == 1, got[start], sum[start]);
    differs = cpu_get_isa(rt->devices.device[0]) != CPU_ISA_PORTABLE;
    weft_close(rt);
  }
  assert_memory_equal(got[0], got[1], sizeof got[0]);
  assert_memory_equal(sum[0], sum[1], sizeof sum[0]);
  if (differs) assert_memory_not_equal(sum[0], sum[2], sizeof sum[0]);
}

static const struct {
  double memory[4], products; /* of four devices: two parts of two shards each */
  const char *ratio, *line;
  uint32_t first; /* layer of the second part */
} speeds[] = {{{1e12, 0.95e12}, 1e14, NULL, "equal work for each device, of which the head is 1.2 layers\n", 4},
              {{3e8, 1e8}, 1e15, NULL, "of which the head is 1.2 layers, for their speeds of 0.7", 5},
              {{1e8, 3e8}, 1e15, NULL, "of which the head is 1.2 layers, for their speeds of 0.2", 2},
              {{3e8, 1e8, 3e8, 3e8}, 1e15, NULL, "1.2 layers, for their speeds of 0.2", 2},
              {{1e8, 3e8}, 1e15, "5,1", "where --split-ratio says\n", 5},
              {{1e12, 0}, 1e14, NULL, "equal work for each device, of which the head is 1.2 layers\n", 4}};

static void give_speeds(void *self, weft_device *device) {
  device->info.set = "portable";
  device->info.memory_rate = speeds[*(size_t *)self].memory[device->info.index];
  device->info.product_rate = speeds[*(size_t *)self].products;
}

/* Work is shared out to unequal cards by how fast they are expected to be, shards by the slowest of a part, and the
 * plan says so; a ratio that was given holds, and of cards that do not say what they can do nothing is expected. */
static void test_unequal_cards(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof speeds / sizeof *speeds; i++) {
    weft_open_options options = demo(speeds[i].memory[2] > 0 ? "0,1,2,3" : "0,1");
    weft_runtime *rt;
    char error[512] = "", part[64];
    options.split = speeds[i].memory[2] > 0 ? "tensor:2,layer:2" : "layer";
    options.split_ratio = speeds[i].ratio;
    weft_device_on_open(give_speeds, &i);
    int opened = weft_open(&options, &rt, error, sizeof error);
    weft_device_on_open(NULL, NULL);
    if (opened != 0) fail_msg("row %zu: %s", i, error);
    (void)snprintf(part, sizeof part, "layers %u to 5 on device ", speeds[i].first);
    const char *const words[] = {speeds[i].line, part};
    check_words(weft_plan(rt), words, 2);
    weft_close(rt);
  }
}

static void call_it_a_card(void *self, weft_device *device) {
  (void)self;
  device->info.backend = "cuda";
}

/* Where the first device is a card that was chosen as the best there is, and the second is not there, no cpu takes its
 * place: the start is refused. */
static void test_second_card_is_not_there(void **state) {
  weft_open_options options = demo("0,63");
  weft_runtime *rt = NULL;
  char error[512] = "";
  (void)state;
  options.backend = NULL;
  if (cuda_has_driver()) return; /* its cards would open */
  weft_device_on_open(call_it_a_card, NULL);
  int opened = weft_open(&options, &rt, error, sizeof error);
  weft_device_on_open(NULL, NULL);
  assert_int_not_equal(opened, 0);
  assert_non_null(strstr(error, "backend 'cuda': "));
  assert_null(strchr(error, '\n'));
}

/* Kept prefixes name all cards that computed them. */
static void test_identity_of_generations(void **state) {
  fake_card *card[2] = {fake_card_open(false), fake_card_open(false)};
  weft_runtime *rt = weft_alloc(1, sizeof *rt);
  weft_text text = {0};
  (void)state;
  for (uint32_t mixed = 0; mixed < 2; mixed++) {
    for (uint32_t p = 0; p < 2; p++) {
      rt->devices.device[p] = &card[p]->base;
      (void)snprintf(card[p]->base.info.name, sizeof card[p]->base.info.name, "%s", mixed * p == 0 ? "A" : "B");
    }
    rt->devices.n = 2;
    weft_text_free(&text);
    keep_identity_print(rt, &text);
    assert_non_null(strstr(text.bytes, mixed ? "\ncard A, B\n" : "\ncard A\n"));
  }
  weft_text_free(&text);
  devices_close(&rt->devices);
  weft_free(rt);
}

int main(void) {
  weft_log_set_level(WEFT_LOG_ERROR);
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_what_is_refused),
                                     cmocka_unit_test(test_what_is_said),
                                     cmocka_unit_test(test_precision),
                                     cmocka_unit_test(test_auto),
                                     cmocka_unit_test(test_auto_twice),
                                     cmocka_unit_test(test_links),
                                     cmocka_unit_test(test_folder_on_two_cards),
                                     cmocka_unit_test(test_switches),
                                     cmocka_unit_test(test_what_is_said_of_shards),
                                     cmocka_unit_test(test_what_is_said_of_replicas),
                                     cmocka_unit_test(test_sixteen_replicas),
                                     cmocka_unit_test(test_kinds),
                                     cmocka_unit_test(test_generations),
                                     cmocka_unit_test(test_layers_on_two_generations),
                                     cmocka_unit_test(test_unequal_cards),
                                     cmocka_unit_test(test_second_card_is_not_there),
                                     cmocka_unit_test(test_identity_of_generations)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
