/* SPDX-License-Identifier: MIT */
/* Models that draft, drafters that read the model's keys, the layer of a model's own file that guesses ahead, and
 * canvases that draft for their own model: answers are the same bytes with and without, with 1 to 16 drafts of a step,
 * also of keys in 8 bits and on several devices; some of the drafts are right, nobody can ask the drafter, and where it
 * finds no place answers go on without. */
#include "api/drafts.h"
#include "tests/support/amount.h"
#include "tests/support/http_conversation.h"
#include "tests/support/state_model.h"

#define CHAT        "/v1/chat/completions"
#define COMPLETIONS "/v1/completions"
#define OFF         "\"speculative_config\":{\"num_speculative_tokens\":0},"
#define DEMO_DRAFT  WEFT_SOURCE_DIR "/model/demo/weft-demo-draft.gguf"

#define TINY       WEFT_SOURCE_DIR "/tests/golden/models/ar-dense.gguf"
#define TINY_DRAFT WEFT_SOURCE_DIR "/tests/golden/assistants/dense.gguf"
#define QWEN       WEFT_SOURCE_DIR "/tests/golden/models/qwen3-base.gguf"
#define BLOCKS     WEFT_SOURCE_DIR "/tests/golden/assistants/dflash.gguf"
#define CANVAS     WEFT_SOURCE_DIR "/tests/golden/models/dg-base.gguf"
#define GROUPS     WEFT_SOURCE_DIR "/tests/golden/assistants/centroids.gguf"
#define PAIRS      WEFT_SOURCE_DIR "/tests/golden/assistants/dspark.gguf"

static talk server;

/* As many drafts as there can be, whatever steps cost on this machine. split: over two devices, with keys in 8 bits
 * where whole layers go to each; NULL: one device. */
static int open_on(const char *model, const char *how, uint32_t running, const char *split) {
  static const char *models[1], *drafts[1];
  static const char *const all[] = {"all"};
  models[0] = model;
  drafts[0] = how;
  weft_open_options options = {.models = models,
                               .n_models = 1,
                               .kv_bytes = 16 << 20,
                               .drafts = drafts,
                               .n_drafts = 1,
                               .running = running,
                               .devices = split != NULL ? "0,1" : NULL,
                               .split = split,
                               .backend = split != NULL ? "cpu" : NULL,
                               .kv_8bit = all,
                               .n_kv_8bit = split != NULL && strcmp(split, "layer") == 0 ? 1 : 0};
  assert_non_null(talk_serve(&server, NULL, options, (weft_server_options){0}));
  drafts_force(server.runtime);
  return 0;
}

static int open_with(const char *model, const char *how, uint32_t running) {
  return open_on(model, how, running, NULL);
}

static int open_model(void **state) {
  *state = &server;
  return open_with(DEMO_AR_MODEL, "model:" DEMO_DRAFT ":5", 8);
}

/* A model by diffusion drafts for another model of its vocabulary. */
static int open_canvas_beside(void **state) {
  *state = &server;
  return open_with(DEMO_AR_MODEL, "model:" DEMO_MODEL ":16", 8);
}

static int open_canvas(void **state) {
  *state = &server;
  return open_with(DEMO_MODEL, "canvas:12", 8);
}

static int open_assistant(void **state) {
  *state = &server;
  return open_with(TINY, "model:" TINY_DRAFT ":16", 4);
}

static int open_blocks(void **state) {
  *state = &server;
  return open_with(QWEN, "model:" BLOCKS ":16", 4);
}

/* A drafter with what another file adds to its head. */
static int open_joined(void **state, const char *model, const char *drafter, const char *added) {
  static char how[160];
  *state = &server;
  (void)snprintf(how, sizeof how, "model:%s:16", gguf_edit_join(drafter, added, "drafter"));
  return open_with(model, how, 4);
}

/* Its head reads a part of the tokens. */
static int open_groups(void **state) {
  return open_joined(state, TINY, TINY_DRAFT, GROUPS);
}

/* What it drafts depends on what it drafted before. */
static int open_pairs(void **state) {
  return open_joined(state, QWEN, BLOCKS, PAIRS);
}

static int open_layers(void **state) {
  *state = &server;
  return open_on(DEMO_AR_MODEL, "model:" DEMO_DRAFT ":16", 8, "layer");
}

static int open_shards(void **state) {
  *state = &server;
  return open_on(DEMO_MODEL, "canvas:16", 8, "tensor");
}

/* The layer of the model's own file that guesses ahead. */
static int open_own_layer(void **state) {
  *state = &server;
  return open_with(state_model_of(WEFT_SOURCE_DIR "/tests/golden/assistants/nextn-moe.gguf", 512), "mtp:16", 4);
}

/* The request that is answered takes the only place. */
static int open_narrow(void **state) {
  *state = &server;
  return open_with(DEMO_AR_MODEL, "model:" DEMO_DRAFT, 1);
}

static json_t *ask(const char *path, const char *draft, const char *fields) {
  char body[2048];
  (void)snprintf(body, sizeof body, "{%s%s}", draft, fields);
  return talk_json(server.port, path, body);
}

typedef struct told {
  uint64_t accepted, rejected;
} told;

/* Two answers without drafts but for their own are one; adds what is told of drafts. how: of the one that has them. */
static void same_answers_by(const char *how, const char *path, const char *fields, const char *text, told *sum) {
  json_t *plain = ask(path, OFF, fields), *drafted = ask(path, how, fields);
  const char *wanted = json_string_value(at(plain, text));
  assert_non_null(wanted);
  assert_string_equal(json_string_value(at(drafted, text)), wanted);
  assert_null(at(plain, "usage.completion_tokens_details.accepted_prediction_tokens"));
  if (at(drafted, "usage.completion_tokens_details.accepted_prediction_tokens") != NULL) {
    sum->accepted += (uint64_t)int_at(drafted, "usage.completion_tokens_details.accepted_prediction_tokens");
    sum->rejected += (uint64_t)int_at(drafted, "usage.completion_tokens_details.rejected_prediction_tokens");
  }
  json_decref(plain);
  json_decref(drafted);
}

static void same_answers(const char *path, const char *fields, const char *text, told *sum) {
  same_answers_by("", path, fields, text, sum);
}

#define ASKS "\"messages\":[{\"role\":\"user\",\"content\":\"List all numbers from 34 to 49.\"}],"
#define FORM                                                                                                      \
  "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"n\",\"schema\":{\"type\":\"array\"," \
  "\"items\":{\"type\":\"integer\",\"maximum\":9,\"minimum\":0},\"minItems\":12,\"maxItems\":12}}}"

/* Of the chats every stride-th. */
static told ask_all(const char *mode, uint32_t stride) {
  char fields[1024];
  told sum = {0};
  static const char *const chats[] = {"\"max_tokens\":60,\"temperature\":0",
                                      "\"max_tokens\":60,\"temperature\":0.8,\"top_p\":0.9,\"seed\":7",
                                      "\"max_tokens\":60,\"seed\":4,\"repetition_penalty\":1.2,\"logprobs\":true",
                                      "\"max_tokens\":80,\"seed\":3," FORM};
  for (size_t i = 0; i < sizeof chats / sizeof *chats; i += stride) {
    (void)snprintf(fields, sizeof fields, "%s" ASKS "%s", mode, chats[i]);
    same_answers(CHAT, fields, "choices.0.message.content", &sum);
  }
  (void)snprintf(fields, sizeof fields,
                 "%s\"prompt\":\"7 23 41 7 23 41 7 23\",\"max_tokens\":70,\"ignore_eos\":true,\"seed\":5", mode);
  same_answers(COMPLETIONS, fields, "choices.0.text", &sum);
  return sum;
}

static void test_model(void **state) {
  (void)state;
  told sum = ask_all("", 1);
  assert_true(sum.accepted > 40 && sum.accepted > sum.rejected / 4);
}

static void test_canvas(void **state) {
  (void)state;
  told sum = ask_all("\"mode\":\"autoregressive\",", test_amount(3, 1, 1));
  assert_true(sum.accepted > 10);
}

/* What a request may ask for besides its prompt: all ways to draw, formats, ends. */
static const char *const ways[] = {
    "\"temperature\":0,\"ignore_eos\":true",
    "\"temperature\":1,\"ignore_eos\":true",
    "\"temperature\":0.7,\"top_p\":0.9,\"top_k\":20,\"ignore_eos\":true",
    "\"temperature\":0.3,\"repetition_penalty\":1.3,\"presence_penalty\":0.4,\"logprobs\":2,\"ignore_eos\":true",
    "\"structured_outputs\":{\"regex\":\"[a-z]{9,60}\"}",
    "\"stop\":[\"e\",\"4\"],\"min_tokens\":9,\"temperature\":0"};

/* One to sixteen drafts of a step, or of these every stride-th: five leads through the ways. prompts: two. */
static told ask_depths(const char *mode, const char *const *prompts, const char *const *asked, unsigned stride) {
  told sum = {0};
  for (unsigned i = 0; i < 16; i += stride) {
    char how[80], fields[400];
    (void)snprintf(how, sizeof how, "\"speculative_config\":{\"num_speculative_tokens\":%u},", i + 1);
    (void)snprintf(fields, sizeof fields, "%s\"prompt\":%s,\"max_tokens\":%u,\"seed\":%u,%s", mode, prompts[i / 3 % 2],
                   20 + i, i, asked[i % 6]);
    same_answers_by(how, COMPLETIONS, fields, "choices.0.text", &sum);
  }
  char last_of_three[400];
  (void)snprintf(last_of_three, sizeof last_of_three,
                 "%s\"prompt\":%s,\"max_tokens\":20,\"seed\":3,\"n\":3,\"temperature\":1,\"ignore_eos\":true", mode,
                 prompts[0]);
  same_answers(COMPLETIONS, last_of_three, "choices.2.text", &sum);
  return sum;
}

static told ask_each_depth(const char *mode, const char *const *prompts, const char *const *asked) {
  return ask_depths(mode, prompts, asked, 1);
}

/* The drafter was taught this model's texts. */
static void test_assistant(void **state) {
  static const char *const prompts[] = {"[50,111,95,127,69,78]", "[7,16,50,54,113,78,79,109,123,90,22,38,124,10,117]"};
  (void)state;
  told sum = ask_each_depth("", prompts, ways);
  assert_true(sum.accepted > 40 && sum.rejected > 0);
}

/* It fills a block of eight, of which seven are drafts, or with a head of pairs all; it was taught the model's texts. */
static void test_blocks(void **state) {
  static const char *const prompts[] = {"[50,211,95,127]", "[7,16,250,54,113,78,79,109,123,90,22,38,124,10,117]"};
  const char *asked[6];
  (void)state;
  memcpy(asked, ways, sizeof asked);
  asked[3] =
      "\"temperature\":0.3,\"repetition_penalty\":1.3,\"logprobs\":0,\"ignore_eos\":true"; /* a token is a zero byte */
  told sum = ask_each_depth("", prompts, asked);
  assert_true(sum.accepted > 40 && sum.rejected > 0);
}

/* A head of few tokens makes other drafts of a drafter that was taught these texts with all of them. */
static void test_groups(void **state) {
  static const char *const prompts[] = {"[50,111,95,127,69,78]", "[7,16,50,54,113,78,79,109,123,90,22,38,124,10,117]"};
  (void)state;
  told sum = ask_each_depth("", prompts, ways);
  assert_true(sum.accepted > 0 && sum.rejected > 40);
}

/* The layer was taught the texts of other embeddings: drafts are right by chance alone. */
static void test_own_layer(void **state) {
  static const char *const prompts[] = {"[50,111,95,127,69,78]", "[7,16,50,54,113,78,79,109,123,90,22,38,124,10,117]"};
  (void)state;
  told sum = ask_each_depth("", prompts, ways);
  same_answers_by("\"speculative_config\":{\"method\":\"qwen3_next_mtp\"},", COMPLETIONS,
                  "\"prompt\":[9],\"max_tokens\":20,\"temperature\":0,\"ignore_eos\":true", "choices.0.text", &sum);
  assert_true(sum.rejected > 40);
}

static const char *const texts[] = {"\"7 23 41 7 23 41 7 23\"", "\"Sort from low to high: 41 77 23 95 10 68\""};

static void test_model_at_each_depth(void **state) {
  (void)state;
  told sum = ask_depths("", texts, ways, test_amount(5, 1, 1));
  assert_true(sum.accepted > test_amount(10, 40, 40) && sum.rejected > 0);
}

static void test_canvas_at_each_depth(void **state) {
  (void)state;
  told sum = ask_depths("\"mode\":\"autoregressive\",", texts, ways, test_amount(5, 1, 1));
  assert_true(sum.accepted > 10 && sum.rejected > 0);
}

/* Its first tokens are drafts; it draws other tokens than the model, so that few are right where that one is free. */
static void test_canvas_beside(void **state) {
  (void)state;
  told sum = ask_all("", test_amount(3, 1, 1));
  told each = ask_depths("", texts, ways, test_amount(5, 5, 1)); /* every depth has the canvas of the model itself */
  assert_true(sum.accepted > 10 && each.rejected > 0);
}

/* The drafter is no model of the server, and its requests are nobody's. */
static void test_nobody_asks_the_drafter(void **state) {
  (void)state;
  json_t *list = talk_json(server.port, "/v1/models", NULL);
  assert_int_equal(json_array_size(at(list, "data")), 1);
  assert_string_equal(json_string_value(at(list, "data.0.id")), "weft-demo-ar");
  json_decref(list);
  talk_answer metrics = talk_ask(server.port, "GET", "/metrics", "");
  const char *of = strstr(metrics.body.bytes, "vllm:request_success_total{model_name=\"weft-demo-draft\",");
  for (; of != NULL; of = strstr(of + 1, "vllm:request_success_total{model_name=\"weft-demo-draft\","))
    assert_int_equal(strtoull(strchr(of, '}') + 2, NULL, 10), 0);
  talk_answer_free(&metrics);
}

/* Drafts find no place while their request runs: they are given up, and the answer is the same. */
static void test_no_place(void **state) {
  (void)state;
  told sum = {0};
  same_answers(COMPLETIONS, "\"prompt\":\"7 23 41 7 23\",\"max_tokens\":9,\"ignore_eos\":true,\"temperature\":0",
               "choices.0.text", &sum);
  assert_int_equal(sum.accepted + sum.rejected, 0);
}

static void refused_open(const char *model, const char *how, const char *words) {
  char error[512] = "";
  weft_runtime *rt = NULL;
  weft_open_options options = {.models = &model,
                               .n_models = 1,
                               .kv_bytes = 8 << 20,
                               .drafts = &how,
                               .n_drafts = 1,
                               .backend = "cpu",
                               .quiet = true};
  assert_int_not_equal(weft_open(&options, &rt, error, sizeof error), 0);
  if (strstr(error, words) == NULL) fail_msg("%s: %s", how, error);
}

static void test_refusals(void **state) {
  (void)state;
  refused_open(DEMO_AR_MODEL, "canvas", "weft-demo-ar has no canvas");
  refused_open(DEMO_AR_MODEL, "model:", "model:FILE");
  refused_open(DEMO_AR_MODEL, "model:" DEMO_DRAFT ":33", "1 to 32");
  refused_open(DEMO_AR_MODEL, "model:/no/such/file.gguf", "/no/such/file.gguf");
  refused_open(DEMO_AR_MODEL, "model:" DEMO_AR_MODEL, "it would draft for itself");
  refused_open(DEMO_AR_MODEL, "model:" TINY_DRAFT, "it drafts for a model whose hidden rows have 32 numbers; those of");
  refused_open(TINY, "model:" WEFT_SOURCE_DIR "/tests/golden/assistants/shared.gguf", "hidden rows have 24 numbers");
  refused_open(TINY, "mtp", "layers of 'gemma4' that guess tokens ahead (nextn) do not draft");
  refused_open(TINY, "mtp:40", "1 to 32");
  refused_open(DEMO_AR_MODEL, "model:" BLOCKS, "it drafts for a model whose hidden rows have 24 numbers; those of");
  refused_open(DEMO_AR_MODEL, "model:" QWEN, "is not the same: a model that drafts has the same vocabulary");
  refused_open(DEMO_AR_MODEL, "model:" CANVAS, "is not the same: a model that drafts has the same vocabulary");
  refused_open(TINY_DRAFT, "off",
               "a part beside a model (a drafter) and no model; give the file of the model, and this");
}

/* ---- memory that both must share ---- */

static weft_open_options options_in(const char *const *model, const char *const *how, const char *mib) {
  static const uint64_t seed = 1;
  return (weft_open_options){.models = model,
                             .n_models = 1,
                             .drafts = how,
                             .n_drafts = 1,
                             .running = 4,
                             .context = 128,
                             .rows = 64,
                             .threads = 1,
                             .seed = &seed,
                             .device_mib = mib,
                             .backend = "cpu",
                             .quiet = true};
}

/* Budgets from too little up: one line until both have room for their weights and what they compute in, and for pages
 * beside these. In the first such budget answers have drafts and are those without. */
static void check_budgets(const char *model, const char *how, told *sum) {
  uint32_t kib = 48, n_refused = 0;
  char mib[32], error[512];
  weft_runtime *rt = NULL;
  for (bool opened = false; !opened; kib += kib / 3) {
    (void)snprintf(mib, sizeof mib, "%.4f", kib / 1024.0);
    weft_open_options options = options_in(&model, &how, mib);
    opened = weft_open(&options, &rt, error, sizeof error) == 0;
    if (opened || kib > 1 << 17) break;
    assert_null(strchr(error, '\n'));
    if (strstr(error, "room") == NULL && strstr(error, "memory") == NULL) fail_msg("%s: %s MiB: %s", how, mib, error);
    n_refused += 1;
  }
  if (rt == NULL || n_refused == 0) fail_msg("%s: %u refused, the last: %s", how, n_refused, error);
  weft_close(rt);
  const weft_open_options options = options_in(&model, &how, mib);
  talk_open(&server, &options, &(weft_server_options){0});
  drafts_force(server.runtime);
  same_answers(COMPLETIONS, "\"prompt\":[7,23,41,7,23],\"max_tokens\":16,\"ignore_eos\":true,\"temperature\":0",
               "choices.0.text", sum);
  void *state = &server;
  assert_int_equal(close_talk(&state), 0);
}

static void test_budgets(void **state) {
  static char groups[160], pairs[160], own[160];
  static char layer[120];
  (void)state;
  (void)snprintf(groups, sizeof groups, "model:%s", gguf_edit_join(TINY_DRAFT, GROUPS, "groups"));
  (void)snprintf(pairs, sizeof pairs, "model:%s", gguf_edit_join(BLOCKS, PAIRS, "pairs"));
  (void)snprintf(own, sizeof own, "mtp");
  (void)snprintf(layer, sizeof layer, "%s",
                 state_model_of(WEFT_SOURCE_DIR "/tests/golden/assistants/nextn-moe.gguf", 512));
  const char *const all[][2] = {{TINY, "model:" TINY_DRAFT},
                                {TINY, groups},
                                {QWEN, "model:" BLOCKS},
                                {QWEN, pairs},
                                {DEMO_AR_MODEL, "model:" DEMO_DRAFT},
                                {layer, own},
                                {DEMO_AR_MODEL, "model:" DEMO_MODEL}};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    told sum = {0};
    check_budgets(all[i][0], all[i][1], &sum);
    if (sum.accepted + sum.rejected == 0) fail_msg("%s: no drafts", all[i][1]);
  }
}

int main(void) {
  const struct CMUnitTest model[] = {cmocka_unit_test(test_model), cmocka_unit_test(test_nobody_asks_the_drafter)};
  const struct CMUnitTest canvas[] = {cmocka_unit_test(test_canvas)};
  const struct CMUnitTest beside[] = {cmocka_unit_test(test_canvas_beside),
                                      cmocka_unit_test(test_nobody_asks_the_drafter)};
  const struct CMUnitTest assistant[] = {cmocka_unit_test(test_assistant)};
  const struct CMUnitTest own_layer[] = {cmocka_unit_test(test_own_layer)};
  const struct CMUnitTest blocks[] = {cmocka_unit_test(test_blocks)};
  const struct CMUnitTest groups[] = {cmocka_unit_test(test_groups)};
  const struct CMUnitTest layers[] = {cmocka_unit_test(test_model_at_each_depth)};
  const struct CMUnitTest shards[] = {cmocka_unit_test(test_canvas_at_each_depth)};
  const struct CMUnitTest narrow[] = {cmocka_unit_test(test_no_place)};
  const struct CMUnitTest refusals[] = {cmocka_unit_test(test_refusals), cmocka_unit_test(test_budgets)};
  int failed = cmocka_run_group_tests(model, open_model, close_talk);
  failed += cmocka_run_group_tests(canvas, open_canvas, close_talk);
  failed += cmocka_run_group_tests(beside, open_canvas_beside, close_talk);
  failed += cmocka_run_group_tests(assistant, open_assistant, close_talk);
  failed += cmocka_run_group_tests(own_layer, open_own_layer, close_talk);
  gguf_edit_clean();
  failed += cmocka_run_group_tests(blocks, open_blocks, close_talk);
  failed += cmocka_run_group_tests(blocks, open_pairs, close_talk);
  failed += cmocka_run_group_tests(groups, open_groups, close_talk);
  gguf_edit_clean();
  failed += cmocka_run_group_tests(layers, open_layers, close_talk);
  failed += cmocka_run_group_tests(shards, open_shards, close_talk);
  failed += cmocka_run_group_tests(narrow, open_narrow, close_talk);
  failed += cmocka_run_group_tests(refusals, NULL, NULL);
  gguf_edit_clean();
  return failed;
}
