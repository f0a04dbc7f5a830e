/* SPDX-License-Identifier: MIT */
/* What a request gets that leaves its sampling open: the value that the server was opened with, else the model file's;
 * a value that the request names wins over both. */
#include <math.h>
#include <unistd.h>

#include "base/memory.h"
#include "tests/support/http_conversation.h"

#define QUESTION "\"messages\":[{\"role\":\"user\",\"content\":\"Write a story.\"}]"

enum { CANVAS = 32 /* of the demo model */, SERVER_STEPS = 3, OWN_STEPS = 5 };

static talk server;

static const weft_sampling cold = {.temperature = 0.0f, .top_k = -1, .top_p = -1.0f};
/* Without confidence no canvas rests, so it takes all of its steps. */
static const weft_entropy_bound short_canvas = {
    .max_steps = SERVER_STEPS, .t_min = -1.0f, .t_max = -1.0f, .entropy_bound = -1.0f, .stability = -1};

static int open_server(void **state) {
  const weft_open_options options = {.backend = "cpu", .sampling = &cold, .entropy_bound = &short_canvas};
  *state = talk_serve(&server, NULL, options, (weft_server_options){0});
  return 0;
}

static json_int_t steps_of(const char *fields) {
  char body[512];
  (void)snprintf(body, sizeof body, "{" QUESTION ",\"mode\":\"diffusion\",\"max_tokens\":%d,\"seed\":3%s}", CANVAS,
                 fields);
  json_t *answer = talk_json(server.port, "/v1/chat/completions", body);
  json_int_t n = int_at(answer, "usage.completion_tokens_details.denoise_steps");
  json_decref(answer);
  return n;
}

static void test_a_canvas_takes_the_servers_steps_and_a_request_its_own(void **state) {
  (void)state;
  assert_int_equal(steps_of(""), SERVER_STEPS);
  assert_int_equal(steps_of(",\"diffusion\":{}"), SERVER_STEPS);
  assert_int_equal(steps_of(",\"diffusion\":{\"t_max\":1.5}"), SERVER_STEPS);
  assert_int_equal(steps_of(",\"diffusion\":{\"steps\":5}"), OWN_STEPS);
  assert_in_range(steps_of(",\"diffusion\":{\"confidence\":1000,\"stability\":0}"), 1,
                  SERVER_STEPS - 1); /* rests at once */
}

static char *text_of(int seed, const char *fields) {
  char body[512];
  (void)snprintf(body, sizeof body, "{" QUESTION ",\"mode\":\"autoregressive\",\"max_tokens\":24,\"seed\":%d%s}", seed,
                 fields);
  json_t *answer = talk_json(server.port, "/v1/chat/completions", body);
  char *text = strdup(text_at(answer, "choices.0.message.content"));
  json_decref(answer);
  assert_non_null(text);
  return text;
}

static void test_a_temperature_of_the_server_is_that_of_requests_without_one(void **state) {
  (void)state;
  char *one = text_of(1, ""), *two = text_of(2, ""), *warm = text_of(1, ",\"temperature\":1"),
       *warm_too = text_of(2, ",\"temperature\":1");
  assert_string_equal(one, two);
  assert_string_not_equal(warm, warm_too); /* as they would without the server's 0: the file says 1 */
  free(one);
  free(two);
  free(warm);
  free(warm_too);
}

enum { ANSWERS = 3 };

/* What a server that begins with this seed answers to one question asked again and again, without one. */
static void ask_unseeded(uint64_t seed, char *text[ANSWERS]) {
  talk one;
  (void)talk_serve(&one, NULL, (weft_open_options){.backend = "cpu", .seed = &seed}, (weft_server_options){0});
  for (uint32_t i = 0; i < ANSWERS; i++) {
    json_t *answer = talk_json(one.port, "/v1/chat/completions",
                               "{" QUESTION
                               ",\"max_tokens\":24,\"ignore_eos\":true,\"temperature\":2,"
                               "\"mode\":\"autoregressive\"}");
    text[i] = strdup(text_at(answer, "choices.0.message.content"));
    json_decref(answer);
    assert_non_null(text[i]);
  }
  talk_close(&one);
}

static void test_requests_without_a_seed_have_one_of_the_servers_row(void **state) {
  char *text[ANSWERS], *again[ANSWERS], *other[ANSWERS];
  (void)state;
  ask_unseeded(5, text);
  ask_unseeded(5, again);
  ask_unseeded(6, other);
  for (uint32_t i = 0; i < ANSWERS; i++) {
    assert_string_equal(text[i], again[i]);
    assert_string_not_equal(text[i], other[i]);
    assert_string_not_equal(text[i], text[(i + 1) % ANSWERS]);
  }
  for (uint32_t i = 0; i < ANSWERS; i++) {
    free(text[i]);
    free(again[i]);
    free(other[i]);
  }
}

static void test_the_plan_says_what_holds(void **state) {
  (void)state;
  assert_non_null(strstr(weft_plan(server.runtime), "): products of 8 bits, 512 rows a step\n"));
  /* steps, confidence and temperature are the server's, all else is the file's */
  assert_non_null(strstr(weft_plan(server.runtime),
                         "  answers  temperature 0, top_k 0, top_p 1; canvases of at most 3 steps, temperatures 0.8 to "
                         "0.4, entropy bound 0.1, stability 1, confidence 0, where a request names nothing else\n"));
}

/* The instructions of the cpu backend are the ones that were asked for, or the runtime does not open. */
static void test_instructions_are_chosen(void **state) {
  static const char *const models[] = {DEMO_AR_MODEL};
  weft_open_options options = {.models = models,
                               .n_models = 1,
                               .backend = "cpu",
                               .isa = "portable",
                               .threads = 1,
                               .kv_bytes = 4 << 20,
                               .context = 256,
                               .quiet = true};
  char line[512] = "";
  weft_runtime *rt = NULL;
  (void)state;
  if (weft_open(&options, &rt, line, sizeof line) != 0) fail_msg("%s", line);
  assert_non_null(strstr(weft_plan(rt), "device   cpu portable, "));
  weft_close(rt);
  options.isa = "sse9";
  assert_int_not_equal(weft_open(&options, &rt, line, sizeof line), 0);
  assert_non_null(strstr(line, "instruction set 'sse9' is unknown"));
}

/* The text of a canvas's steps on a server whose default is given; self: the request's own choice. */
static char *canvas_of(bool none_by_default, const char *self) {
  weft_entropy_bound bound = {
      .t_min = -1.0f, .t_max = -1.0f, .entropy_bound = -1.0f, .stability = -1, .confidence = -1.0f};
  char body[512];
  talk one;
  bound.no_self_conditioning = none_by_default;
  (void)talk_serve(&one, NULL, (weft_open_options){.backend = "cpu", .entropy_bound = &bound},
                   (weft_server_options){0});
  assert_true((strstr(weft_plan(one.runtime), ", no self-conditioning,") != NULL) == none_by_default);
  (void)snprintf(body, sizeof body,
                 "{" QUESTION ",\"mode\":\"diffusion\",\"max_tokens\":64,\"seed\":3,\"diffusion\":{%s}}", self);
  json_t *answer = talk_json(one.port, "/v1/chat/completions", body);
  weft_text out = {0};
  weft_text_printf(&out, "%d %s", (int)int_at(answer, "usage.completion_tokens_details.denoise_steps"),
                   text_at(answer, "choices.0.message.content"));
  json_decref(answer);
  talk_close(&one);
  return out.bytes;
}

/* --no-self-conditioning of a server is what requests get, and a request may say otherwise. */
static void test_self_conditioning_of_the_server(void **state) {
  (void)state;
  char *with = canvas_of(false, ""), *without = canvas_of(true, ""),
       *asked_without = canvas_of(false, "\"self_conditioning\":false"),
       *asked_with = canvas_of(true, "\"self_conditioning\":true");
  assert_string_not_equal(with, without);
  assert_string_equal(without, asked_without);
  assert_string_equal(with, asked_with);
  weft_free(with);
  weft_free(without);
  weft_free(asked_without);
  weft_free(asked_with);
}

static weft_open_options small_options(const char *const *model, const weft_sampling *sampling,
                                       const weft_entropy_bound *bound) {
  return (weft_open_options){.models = model,
                             .n_models = 1,
                             .backend = "cpu",
                             .threads = 1,
                             .kv_bytes = 4 << 20,
                             .context = 256,
                             .quiet = true,
                             .sampling = sampling,
                             .entropy_bound = bound};
}

/* Values of canvases where no model writes any are not silently left out. */
static void test_what_is_not_used_is_told(void **state) {
  static const char *const models[] = {DEMO_AR_MODEL};
  const weft_entropy_bound open = {
      .max_steps = 0, .t_min = -1.0f, .t_max = -1.0f, .entropy_bound = -1.0f, .stability = -1, .confidence = -1.0f};
  (void)state;
  for (int given = 0; given < 2; given++) {
    const weft_open_options options = small_options(models, NULL, given == 0 ? &open : &short_canvas);
    char line[512] = "", log[4096];
    weft_runtime *rt = NULL;
    FILE *lines = tmpfile();
    int kept = dup(STDERR_FILENO);
    assert_true(lines != NULL && kept >= 0 && dup2(fileno(lines), STDERR_FILENO) >= 0);
    int status = weft_open(&options, &rt, line, sizeof line);
    assert_true(dup2(kept, STDERR_FILENO) >= 0);
    if (status != 0) fail_msg("%s", line);
    weft_close(rt);
    rewind(lines);
    log[fread(log, 1, sizeof log - 1, lines)] = 0;
    (void)fclose(lines);
    (void)close(kept);
    assert_true((strstr(log, "no model here writes by diffusion") != NULL) == (given == 1));
  }
}

static void test_contradictions_are_refused_when_the_server_starts(void **state) {
  const struct {
    weft_entropy_bound canvas;
    weft_sampling sampling;
    const char *why;
  } rows[] = {
      {{.max_steps = 0, .t_min = 2.0f, .t_max = -1.0f},
       {.temperature = -1.0f, .top_k = -1, .top_p = -1.0f},
       "t_max is 0.8"},
      {{.max_steps = 5000, .t_min = -1.0f, .t_max = -1.0f},
       {.temperature = -1.0f, .top_k = -1, .top_p = -1.0f},
       "4096"},
      {{.max_steps = 0, .t_min = NAN, .t_max = -1.0f}, {.temperature = -1.0f, .top_k = -1, .top_p = -1.0f}, "t_min"},
      {{.max_steps = 0, .t_min = -1.0f, .t_max = -1.0f},
       {.temperature = 101.0f, .top_k = -1, .top_p = -1.0f},
       "temperature is 101"},
      {{.max_steps = 0, .t_min = -1.0f, .t_max = -1.0f},
       {.temperature = -1.0f, .top_k = -1, .top_p = 0.0f},
       "top_p is 0"}};
  static const char *const models[] = {DEMO_MODEL};
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    const weft_open_options options = small_options(models, &rows[i].sampling, &rows[i].canvas);
    char line[512] = "";
    weft_runtime *rt = NULL;
    assert_int_equal(weft_open(&options, &rt, line, sizeof line), WEFT_E_INVALID);
    print_message("%s\n", line);
    assert_non_null(strstr(line, "what requests of weft-demo get that leave it open: "));
    assert_non_null(strstr(line, rows[i].why));
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_canvas_takes_the_servers_steps_and_a_request_its_own),
                                     cmocka_unit_test(test_a_temperature_of_the_server_is_that_of_requests_without_one),
                                     cmocka_unit_test(test_requests_without_a_seed_have_one_of_the_servers_row),
                                     cmocka_unit_test(test_the_plan_says_what_holds),
                                     cmocka_unit_test(test_self_conditioning_of_the_server),
                                     cmocka_unit_test(test_instructions_are_chosen),
                                     cmocka_unit_test(test_what_is_not_used_is_told),
                                     cmocka_unit_test(test_contradictions_are_refused_when_the_server_starts)};
  return cmocka_run_group_tests(tests, open_server, close_talk);
}
