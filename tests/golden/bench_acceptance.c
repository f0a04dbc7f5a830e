/* SPDX-License-Identifier: MIT */
/* weft test-model: what it says of the demo models, of models that were never taught anything, and of files that are
 * broken in one way each. */
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "bench/lab/lab.h"
#include "tests/support/gguf_edit.h"

#define DEMO    WEFT_SOURCE_DIR "/model/demo/weft-demo.gguf"
#define DEMO_AR WEFT_SOURCE_DIR "/model/demo/weft-demo-ar.gguf"
#define GOLDEN  WEFT_SOURCE_DIR "/tests/golden/models/"

static char folder[] = "/tmp/weft-acceptance-XXXXXX";
static char report_path[64];

/* The report of one run and its exit code. */
static json_t *run_on(const char *path, const char *option, const char *value, int code) {
  weft_lab_config config;
  weft_error error = {{0}};
  char model[] = "-m", output[] = "-o", quiet[] = "-q", file[256], name[32], text[512];
  (void)snprintf(file, sizeof file, "%s", path);
  (void)snprintf(name, sizeof name, "%s", option == NULL ? "" : option);
  (void)snprintf(text, sizeof text, "%s", value == NULL ? "" : value);
  char *argv[] = {model, file, output, report_path, quiet, name, text};
  const weft_command *command = NULL;
  for (uint32_t i = 0; i < weft_lab_n_commands; i++) {
    if (strcmp(weft_lab_commands[i].name, "test-model") == 0) command = &weft_lab_commands[i];
  }
  assert_non_null(command);
  (void)unlink(report_path);
  if (weft_config_parse(&config.product, &weft_lab_options, command->options, option == NULL ? 5 : 7, argv, &error) !=
      WEFT_OK)
    fail_msg("%s", error.text);
  assert_int_equal(command->run(&config.product), code);
  weft_config_free(&config.product);
  json_t *report = json_load_file(report_path, 0, NULL);
  assert_non_null(report);
  return report;
}

/* The check has a line of this verdict that says `words`, and if the verdict is look or bad, what to do. */
static bool says(const json_t *report, const char *check, const char *verdict, const char *words) {
  size_t i;
  json_t *line;
  json_array_foreach(json_object_get(report, "checks"), i, line) {
    const char *said = json_string_value(json_object_get(line, "said"));
    if (strcmp(json_string_value(json_object_get(line, "check")), check) != 0) continue;
    if (strcmp(json_string_value(json_object_get(line, "verdict")), verdict) != 0) continue;
    if (strstr(said, words) == NULL) continue;
    bool found_fault = strcmp(verdict, "look") == 0 || strcmp(verdict, "bad") == 0;
    return !found_fault || json_string_value(json_object_get(line, "do")) != NULL;
  }
  return false;
}

static void need(const json_t *report, const char *check, const char *verdict, const char *words) {
  if (says(report, check, verdict, words)) return;
  char *text = json_dumps(json_object_get(report, "checks"), JSON_INDENT(1));
  (void)printf("%s\n", text);
  free(text);
  fail_msg("no line of '%s' is %s and says '%s'", check, verdict, words);
}

static bool has_bad(const json_t *report) {
  size_t i;
  json_t *line;
  json_array_foreach(json_object_get(report, "checks"), i, line) {
    if (strcmp(json_string_value(json_object_get(line, "verdict")), "bad") == 0) return true;
  }
  return false;
}

static void test_demo(void **state) {
  (void)state;
  json_t *report = run_on(DEMO, NULL, NULL, 0);
  assert_false(has_bad(report));
  need(report, "numbers", "good", "143 tensors");
  need(report, "round trip", "good", "all 9 built-in texts");
  need(report, "merges", "good", "660 merges");
  need(report, "template", "good",
       "a system prompt, earlier turns, declared tools, calls and results of tools, thinking");
  need(report, "answers", "good", "token by token: all 3 questions");
  need(report, "answers", "good", "by diffusion: all 3 questions");
  need(report, "repeated", "good", "by diffusion");
  need(report, "pool", "good", "0 held");
  need(report, "prediction", "look", "token by token"); /* it was never taught prose */
  need(report, "prediction", "look", "100 % noise");
  assert_int_equal(json_array_size(json_object_get(report, "answers")), 6);
  assert_true(json_real_value(json_object_get(json_object_get(report, "figures"), "tokens_per_second")) > 0.0);
  char *text = json_dumps(report, 0);
  assert_null(strstr(text, WEFT_SOURCE_DIR)); /* it is sent to others */
  free(text);
  json_decref(report);
}

/* Not taught anything: the file is sound, and the run says that the model is not. */
static void test_untaught(void **state) {
  (void)state;
  static const char *const names[] = {"ar-base", "dg-base", "dg-mxfp4", "ar-per-layer"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    char path[256];
    (void)snprintf(path, sizeof path, GOLDEN "%s.gguf", names[i]);
    json_t *report = run_on(path, NULL, NULL, 1);
    need(report, "shapes", "good", "fit together");
    need(report, "numbers", "good", "finite");
    need(report, "template", "look", "no chat template");
    need(report, "round trip", "look", "emoji");
    need(report, "prediction", "bad", "hardly better than, or worse than, chance");
    need(report, "pool", "good", "0 held");
    assert_true(says(report, "answers", "look", "none of 3") || says(report, "answers", "look", "in circles"));
    json_decref(report);
  }
  json_t *report = run_on(GOLDEN "qwen3-base.gguf", "--text", WEFT_SOURCE_DIR "/LICENSE", 1);
  need(report, "round trip", "good", "the text of 10");
  json_decref(report);
  report = run_on(GOLDEN "ar-e2b.gguf", NULL, NULL, 1); /* no number in tensors that no layer reads */
  need(report, "numbers", "bad", "blk.5.attn_k.weight");
  need(report, "shapes", "good", "fit together");
  json_decref(report);
  report = run_on(GOLDEN "llama-base.gguf", NULL, NULL, 1);
  need(report, "tokenizer", "bad", "no tokenizer");
  need(report, "answers", "left out", "tokenizer");
  need(report, "loading", "good", "weights lie on");
  json_decref(report);
}

typedef struct broken {
  const char *name;
  gguf_edit edit;
  const char *check, *verdict, *words; /* the line that names what is wrong */
  int code;
} broken;

static void test_broken(void **state) {
  (void)state;
  static const broken list[] = {
      {"cut short", {.cut = 60000}, "file", "bad", "weft-acceptance", 1},
      {"numbers", {.poison = "blk.2.post_attention_norm"}, "numbers", "bad", "blk.2.post_attention_norm.weight", 1},
      {"type", {.retype = "blk.1.attn_q.weight", .type = WEFT_TYPE_Q8_0}, "file", "bad", "blk.1.attn_q.weight", 1},
      {"lost tensor", {.drop_tensor = "blk.4.attn_k.weight"}, "shapes", "bad", "blk.4.attn_k.weight", 1},
      {"hyperparameters",
       {.set_u32 = "gemma4.embedding_length", .value = 320},
       "shapes",
       "bad",
       "token_embd.weight",
       1},
      {"one layer too many", {.set_u32 = "gemma4.block_count", .value = 7}, "shapes", "bad", "gemma4", 1},
      {"no template", {.drop_key = "tokenizer.chat_template"}, "template", "look", "no chat template", 0},
      {"broken template",
       {.set_string = "tokenizer.chat_template", .text = "{% for m in messages %}{{ m.content }}"},
       "template",
       "bad",
       "template",
       1},
      {"template without tools",
       {.set_string = "tokenizer.chat_template",
        .text = "<bos>{% for m in messages %}<|turn>{{ m.role }}\n{{ m.content }}<turn|>\n{% endfor %}<|turn>model\n"},
       "template",
       "look",
       "it does not show the model declared tools",
       0},
      {"template that loses earlier turns",
       {.set_string = "tokenizer.chat_template",
        .text = "<bos><|turn>user\n{{ messages[0].content }}<turn|>\n<|turn>model\n"},
       "template",
       "bad",
       "earlier turns",
       1},
      {"lost merges", {.fewer_merges = 3}, "merges", "look", "no merge makes 3 ordinary tokens", 0},
      {"lost tokens", {.fewer_tokens = 5}, "tokenizer", "bad", "tokenizer.ggml", 1},
      {"wrong weights", {.times = "output_norm.weight", .factor = -1.0f}, "answers", "bad", "token by token", 1},
  };
  for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
    const char *path = gguf_edit_file(DEMO_AR, &list[i].edit, "weft-acceptance");
    json_t *report = run_on(path, NULL, NULL, list[i].code);
    (void)printf("-- %s\n", list[i].name);
    need(report, list[i].check, list[i].verdict, list[i].words);
    assert_int_equal(has_bad(report), list[i].code == 1);
    json_decref(report);
  }
  json_t *report = run_on("/nowhere/no-such.gguf", NULL, NULL, 1);
  need(report, "file", "bad", "No such file");
  json_decref(report);
}

static int open_folder(void **state) {
  (void)state;
  if (mkdtemp(folder) == NULL) return 1;
  (void)snprintf(report_path, sizeof report_path, "%s/report.json", folder);
  return 0;
}

static int close_folder(void **state) {
  (void)state;
  gguf_edit_clean();
  (void)unlink(report_path);
  return rmdir(folder);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_demo), cmocka_unit_test(test_untaught),
                                     cmocka_unit_test(test_broken)};
  return cmocka_run_group_tests(tests, open_folder, close_folder);
}
