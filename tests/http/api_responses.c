/* SPDX-License-Identifier: MIT */
/* OpenAI's responses over both demo models: what one says is what a chat completion of the same request says, whole or
 * in events; what is kept is found again, continued and deleted by its own tenant, and is not there for another. */
#include "tests/support/http_refusal.h"

#define RESPONSES "/v1/responses"
#define CHAT      "/v1/chat/completions"
#define QUESTION  "Make a table: Tom 43 Oslo; Ana 88 Kyiv; Zoe 47 Seoul; Kim 19 Paris"
#define SAMPLING  "\"temperature\":0,\"seed\":5"

static const char red[] = "Authorization: Bearer sk-red\r\n", blue[] = "Authorization: Bearer sk-blue\r\n";
static const char *const names[] = {"weft-demo", "weft-demo-ar"};
static talk server;

static int open_server(void **state) {
  *state = talk_serve_both(&server, "sk-red red\nsk-blue blue\n- anybody\n");
  return 0;
}

static json_t *ask_chat(const char *model, const char *messages, const char *more) {
  char fields[2048];
  (void)snprintf(fields, sizeof fields, "\"messages\":[%s]," SAMPLING "%s", messages, more);
  return talk_model(server.port, CHAT, model, fields);
}

/* The answer's only message says this. */
static void check_text(json_t *response, json_t *chat) {
  assert_int_equal(json_array_size(at(response, "output")), 1);
  assert_string_equal(text_at(response, "output.0.type"), "message");
  assert_string_equal(text_at(response, "output.0.content.0.type"), "output_text");
  assert_string_equal(text_at(response, "output.0.content.0.text"), text_at(chat, "choices.0.message.content"));
  assert_int_equal(int_at(response, "usage.input_tokens"), int_at(chat, "usage.prompt_tokens"));
  assert_int_equal(int_at(response, "usage.output_tokens"), int_at(chat, "usage.completion_tokens"));
}

static void test_whole(void **state) {
  (void)state;
  for (int m = 0; m < 2; m++) {
    json_t *chat = ask_chat(names[m], "{\"role\":\"user\",\"content\":\"" QUESTION "\"}", ",\"max_tokens\":96");
    json_t *root =
        talk_model(server.port, RESPONSES, names[m],
                   "\"input\":\"" QUESTION "\",\"max_output_tokens\":96,\"metadata\":{\"k\":\"v\"}," SAMPLING);
    assert_true(strncmp(text_at(root, "id"), "resp_", 5) == 0);
    assert_string_equal(text_at(root, "object"), "response");
    assert_string_equal(text_at(root, "status"), "completed");
    assert_string_equal(text_at(root, "model"), names[m]);
    assert_true(json_is_null(at(root, "error")) && json_is_null(at(root, "incomplete_details")));
    assert_int_equal(int_at(root, "max_output_tokens"), 96);
    assert_string_equal(text_at(root, "metadata.k"), "v");
    assert_true(json_is_null(at(root, "instructions")));
    assert_string_equal(text_at(root, "text.format.type"), "text");
    check_text(root, chat);
    json_decref(root);
    json_decref(chat);
  }
}

static void test_cut(void **state) {
  (void)state;
  json_t *root =
      talk_model(server.port, RESPONSES, names[1], "\"input\":\"" QUESTION "\",\"max_output_tokens\":5," SAMPLING);
  assert_string_equal(text_at(root, "status"), "incomplete");
  assert_string_equal(text_at(root, "incomplete_details.reason"), "max_output_tokens");
  assert_int_equal(int_at(root, "usage.output_tokens"), 5);
  json_decref(root);
}

/* As guidellm asks of a server that it measures: an answer of just so many tokens. */
static void test_past_its_end(void **state) {
  (void)state;
  json_t *root =
      talk_model(server.port, RESPONSES, names[1],
                 "\"input\":\"Say 5.\",\"max_output_tokens\":40,\"stop\":null,\"ignore_eos\":true," SAMPLING);
  assert_string_equal(text_at(root, "status"), "incomplete");
  assert_int_equal(int_at(root, "usage.output_tokens"), 40);
  json_decref(root);
}

/* Instructions, roles and parts are the turns of a chat. */
static void test_items(void **state) {
  (void)state;
  for (int m = 0; m < 2; m++) {
    json_t *chat = ask_chat(names[m],
                            "{\"role\":\"system\",\"content\":\"Be brief.\"},{\"role\":\"user\",\"content\":\"a b\"},"
                            "{\"role\":\"assistant\",\"content\":\"c\"},{\"role\":\"user\",\"content\":\"Say 5.\"}",
                            ",\"max_tokens\":24");
    json_t *root = talk_model(server.port, RESPONSES, names[m],
                              "\"instructions\":\"Be brief.\",\"input\":[{\"role\":\"user\",\"content\":[{\"type\":"
                              "\"input_text\",\"text\":\"a \"},{\"type\":\"input_text\",\"text\":\"b\"}]},"
                              "{\"type\":\"reasoning\",\"id\":\"rs_1\",\"summary\":[]},"
                              "{\"type\":\"message\",\"id\":\"msg_1\",\"status\":\"completed\",\"role\":\"assistant\","
                              "\"content\":[{\"type\":\"output_text\",\"text\":\"c\",\"annotations\":[]}]},"
                              "{\"role\":\"user\",\"content\":\"Say 5.\"}],\"max_output_tokens\":24," SAMPLING);
    check_text(root, chat);
    assert_string_equal(text_at(root, "instructions"), "Be brief.");
    json_decref(root);
    json_decref(chat);
  }
}

/* The names of all events in their order, deltas once. */
static weft_text names_of(json_t *events) {
  weft_text out = {0};
  const char *last = "";
  size_t i;
  json_t *event;
  json_array_foreach(events, i, event) {
    const char *name = text_at(event, "event");
    assert_string_equal(name, text_at(event, "data.type"));
    assert_int_equal(int_at(event, "data.sequence_number"), i);
    if (strcmp(name, last) != 0) weft_text_printf(&out, "%s ", name);
    last = name;
  }
  return out;
}

static void check_stream(const char *model, const char *fields, const char *end) {
  char body[512], order[512];
  (void)snprintf(body, sizeof body, "{\"model\":\"%s\",\"stream\":true,%s}", model, fields);
  json_t *whole = talk_model(server.port, RESPONSES, model, fields),
         *events = talk_stream(server.port, RESPONSES, body), *event;
  weft_text text = {0}, all = names_of(events);
  size_t i, n = json_array_size(events);
  (void)snprintf(order, sizeof order,
                 "response.created response.in_progress response.output_item.added response.content_part.added "
                 "response.output_text.delta response.output_text.done response.content_part.done "
                 "response.output_item.done %s ",
                 end);
  assert_string_equal(all.bytes, order);
  json_array_foreach(events, i, event) {
    if (strcmp(text_at(event, "event"), "response.output_text.delta") != 0) continue;
    assert_string_equal(text_at(event, "data.item_id"), text_at(json_array_get(events, 2), "data.item.id"));
    assert_int_equal(int_at(event, "data.output_index"), 0);
    weft_text_puts(&text, text_at(event, "data.delta"));
  }
  json_t *last = at(json_array_get(events, n - 1), "data.response");
  assert_string_equal(text.bytes, text_at(whole, "output.0.content.0.text"));
  assert_string_equal(text.bytes, text_at(json_array_get(events, n - 4), "data.text"));
  assert_string_equal(text.bytes, text_at(last, "output.0.content.0.text"));
  assert_true(json_equal(at(json_array_get(events, n - 2), "data.item"), at(last, "output.0")));
  assert_string_equal(text_at(last, "status"), text_at(whole, "status"));
  assert_int_equal(int_at(last, "usage.total_tokens"), int_at(whole, "usage.total_tokens"));
  assert_string_equal(text_at(json_array_get(events, 0), "data.response.status"), "in_progress");
  assert_string_equal(text_at(json_array_get(events, 0), "data.response.id"), text_at(last, "id"));
  weft_text_free(&all);
  weft_text_free(&text);
  json_decref(events);
  json_decref(whole);
}

static void test_stream_says_what_whole_says(void **state) {
  (void)state;
  for (int m = 0; m < 2; m++) {
    check_stream(names[m], "\"input\":\"" QUESTION "\",\"max_output_tokens\":96," SAMPLING, "response.completed");
    check_stream(names[m], "\"input\":\"" QUESTION "\",\"max_output_tokens\":9," SAMPLING, "response.incomplete");
  }
  check_stream(names[0], "\"input\":\"" QUESTION "\",\"mode\":\"autoregressive\"," SAMPLING, "response.completed");
}

/* The output of a stream's last event. The caller decrefs. */
static json_t *streamed_output(const char *model, const char *fields) {
  weft_text body = {0};
  weft_text_printf(&body, "{\"model\":\"%s\",%s,\"stream\":true}", model, fields);
  json_t *events = talk_stream(server.port, RESPONSES, body.bytes);
  json_t *output = json_incref(at(json_array_get(events, json_array_size(events) - 1), "data.response.output"));
  json_decref(events);
  weft_text_free(&body);
  return output;
}

/* Ids are those of the request. */
static void drop_ids(json_t *output) {
  for (size_t i = 0; i < json_array_size(output); i++) (void)json_object_del(json_array_get(output, i), "id");
}

/* A token that becomes the text of a message has its logprob there, and one that becomes a call has it nowhere: the
 * same whole and streamed, in pieces of any size. */
static void test_logprobs_beside_tools(void **state) {
  static const char fields[] =
      "\"input\":\"Say 5.\",\"max_output_tokens\":64,\"top_logprobs\":2,\"include\":[\"message.output_text.logprobs\"],"
      "\"tools\":[{\"type\":\"function\",\"name\":\"find\",\"parameters\":{\"type\":\"object\",\"properties\":{}}}],"
      "\"temperature\":1,\"seed\":%d,\"tool_choice\":\"%s\"";
  static const char *const choices[] = {"none", "required"};
  (void)state;
  for (int seed = 1; seed <= 4; seed++) {
    for (int c = 0; c < 2; c++) {
      char body[512];
      (void)snprintf(body, sizeof body, fields, seed, choices[c]);
      json_t *root = talk_model(server.port, RESPONSES, names[1], body), *output = at(root, "output");
      json_t *streamed = streamed_output(names[1], body);
      drop_ids(output);
      drop_ids(streamed);
      for (size_t i = 0; i < json_array_size(output); i++) {
        (void)json_object_del(json_array_get(output, i), "call_id");
        (void)json_object_del(json_array_get(streamed, i), "call_id");
      }
      if (!json_equal(output, streamed)) fail_msg("seed %d, %s", seed, choices[c]);
      json_decref(streamed);
      json_decref(root);
    }
  }
}

static void test_format_and_logprobs(void **state) {
  (void)state;
  json_t *root =
      talk_model(server.port, RESPONSES, names[1],
                 "\"input\":\"" QUESTION
                 "\",\"max_output_tokens\":60,\"text\":{\"format\":{\"type\":"
                 "\"json_schema\",\"name\":\"n\",\"strict\":true,\"schema\":{\"type\":\"object\",\"properties\":{"
                 "\"a\":{\"type\":\"boolean\"}},\"required\":[\"a\"],\"additionalProperties\":false}}}," SAMPLING);
  talk_check_schema(root, "output.0.content.0.text");
  assert_string_equal(text_at(root, "text.format.name"), "n");
  json_decref(root);
  json_t *chat = ask_chat(names[1], "{\"role\":\"user\",\"content\":\"Say 5.\"}",
                          ",\"max_tokens\":9,\"logprobs\":true,\"top_logprobs\":2");
  root = talk_model(server.port, RESPONSES, names[1],
                    "\"input\":\"Say 5.\",\"max_output_tokens\":9,\"top_logprobs\":2,"
                    "\"include\":[\"message.output_text.logprobs\"]," SAMPLING);
  assert_true(json_equal(at(root, "output.0.content.0.logprobs"), at(chat, "choices.0.logprobs.content")));
  json_decref(root);
  json_decref(chat);
}

/* ---- what is kept ---- */

static json_t *ask_as(const char *header, const char *method, const char *path, const char *body, int code) {
  return talk_json_as(server.port, method, path, header, body, code);
}

#define FIRST \
  "{\"model\":\"weft-demo-ar\",\"input\":\"What is 58 + 37?\",\"instructions\":\"Be brief.\"," SAMPLING "%s}"
#define SECOND "{\"model\":\"weft-demo-ar\",\"input\":\"Say 5.\",\"previous_response_id\":\"%s\"," SAMPLING "}"

static json_t *continue_as(const char *header, const char *id, int code) {
  char body[512];
  (void)snprintf(body, sizeof body, SECOND, id);
  return ask_as(header, "POST", RESPONSES, body, code);
}

/* The second request reads the first one's conversation, without its instructions; the third reads both. Whole and
 * streamed responses are kept alike. */
static void test_continued(void **state) {
  (void)state;
  for (int streamed = 0; streamed < 2; streamed++) {
    char body[512], messages[1024];
    (void)snprintf(body, sizeof body, FIRST, streamed ? ",\"stream\":true" : "");
    json_t *first, *events = NULL;
    if (streamed) {
      events = talk_stream(server.port, RESPONSES, body);
      first = json_incref(at(json_array_get(events, json_array_size(events) - 1), "data.response"));
    } else {
      first = ask_as("", "POST", RESPONSES, body, 200);
    }
    json_t *second = continue_as("", text_at(first, "id"), 200);
    json_t *third = continue_as("", text_at(second, "id"), 200);
    char *said = json_dumps(at(first, "output.0.content.0.text"), JSON_ENCODE_ANY);
    char *said2 = json_dumps(at(second, "output.0.content.0.text"), JSON_ENCODE_ANY);
    (void)snprintf(messages, sizeof messages,
                   "{\"role\":\"user\",\"content\":\"What is 58 + 37?\"},{\"role\":\"assistant\",\"content\":%s},"
                   "{\"role\":\"user\",\"content\":\"Say 5.\"}",
                   said);
    json_t *chat = ask_chat(names[1], messages, "");
    check_text(second, chat);
    assert_string_equal(text_at(second, "previous_response_id"), text_at(first, "id"));
    (void)snprintf(messages + strlen(messages), sizeof messages - strlen(messages),
                   ",{\"role\":\"assistant\",\"content\":%s},{\"role\":\"user\",\"content\":\"Say 5.\"}", said2);
    json_t *chat2 = ask_chat(names[1], messages, "");
    check_text(third, chat2);
    free(said);
    free(said2);
    json_t *const all[] = {first, second, third, chat, chat2, events};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) json_decref(all[i]);
  }
}

static void test_kept_for_its_tenant_alone(void **state) {
  char body[512], path[256];
  (void)state;
  (void)snprintf(body, sizeof body, FIRST, "");
  json_t *first = ask_as(red, "POST", RESPONSES, body, 200);
  const char *id = text_at(first, "id");
  (void)snprintf(path, sizeof path, "/v1/responses/%s", id);
  json_t *found = ask_as(red, "GET", path, "", 200);
  assert_true(json_equal(found, first));
  json_decref(found);
  /* for another tenant it is one that never was, word for word */
  json_t *foreign = continue_as(blue, id, 404), *unknown = continue_as(blue, "resp_never", 404);
  assert_string_equal(text_at(foreign, "error.code"), text_at(unknown, "error.code"));
  assert_string_equal(text_at(foreign, "error.param"), "previous_response_id");
  json_decref(foreign);
  json_decref(unknown);
  json_decref(ask_as(blue, "GET", path, "", 404));
  json_decref(ask_as("", "DELETE", path, "", 404));
  json_decref(continue_as(red, id, 200));
  json_t *gone = ask_as(red, "DELETE", path, "", 200);
  assert_true(json_is_true(at(gone, "deleted")));
  assert_string_equal(text_at(gone, "id"), id);
  json_decref(gone);
  json_decref(ask_as(red, "GET", path, "", 404));
  json_decref(ask_as(red, "DELETE", path, "", 404));
  json_decref(continue_as(red, id, 404));
  json_decref(first);
}

static void test_not_kept(void **state) {
  char body[512], path[256];
  (void)state;
  (void)snprintf(body, sizeof body, FIRST, ",\"store\":false");
  json_t *root = ask_as("", "POST", RESPONSES, body, 200);
  assert_true(json_is_false(at(root, "store")));
  (void)snprintf(path, sizeof path, "/v1/responses/%s", text_at(root, "id"));
  json_decref(ask_as("", "GET", path, "", 404));
  json_decref(continue_as("", text_at(root, "id"), 404));
  json_decref(root);
}

/* What a response repeats of its request counts among the memory of requests, as often as its stream repeats it, and is
 * bounded in any case. */
static void test_what_is_repeated_is_charged(void **state) {
  static const struct {
    int n_pieces, code;
    const char *words;
  } rows[] = {{3, 200, "0123456789abcdef"}, {1 << 15, 400, "memory"}, {1 << 17, 400, "repeats of its request"}};

  static const char *const models[] = {DEMO_AR_MODEL};
  talk other;
  (void)state;
  (void)talk_serve(&other, NULL,
                   (weft_open_options){.models = models, .n_models = 1, .context = 512, .request_bytes = 1 << 20},
                   (weft_server_options){0});
  for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
    weft_text body = {0};
    weft_text_puts(&body, "{\"input\":\"a\",\"max_output_tokens\":2,\"metadata\":{\"k\":\"");
    for (int i = 0; i < rows[r].n_pieces; i++) weft_text_puts(&body, "0123456789abcdef");
    weft_text_puts(&body, "\"}}");
    talk_answer a = talk_ask(other.port, "POST", RESPONSES, body.bytes);
    if (a.code != rows[r].code) fail_msg("%zu bytes gave %d: %s", body.n, a.code, a.body.bytes);
    assert_non_null(strstr(a.body.bytes, rows[r].words));
    talk_answer_free(&a);
    weft_text_free(&body);
  }
  talk_close(&other);
}

static const http_refusal bad_bodies[] = {
    {"{}", 400, "input", "input must be"},
    {"{\"input\":\"\",\"model\":5}", 400, "model", "string"},
    {"{\"input\":5}", 400, "input", "input must be"},
    {"{\"input\":[]}", 400, "input", "input must be"},
    {"{\"input\":[5]}", 400, "input[0]", "object"},
    {"{\"input\":[{\"role\":\"pirate\",\"content\":\"x\"}]}", 400, "input[0].role", "user"},
    {"{\"input\":[{\"role\":\"user\"}]}", 400, "input[0].content", "string"},
    {"{\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_image\",\"image_url\":\"x\"}]}]}", 400,
     "input[0].content[0]", "only text"},
    {"{\"input\":[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"content\":\"y\"}]}", 400, "input",
     "continued"},
    {"{\"input\":[{\"type\":\"item_reference\",\"id\":\"x\"}]}", 400, "input[0]", "item_reference"},
    {"{\"input\":\"x\",\"max_tokens\":5}", 400, "max_tokens", "max_output_tokens"},
    {"{\"input\":\"x\",\"max_output_tokens\":0}", 400, "max_output_tokens", "0"},
    {"{\"input\":\"x\",\"instructions\":5}", 400, "instructions", "string"},
    {"{\"input\":\"x\",\"store\":5}", 400, "store", "true or false"},
    {"{\"input\":\"x\",\"background\":true}", 400, "background", "waits"},
    {"{\"input\":\"x\",\"conversation\":\"c\"}", 400, "conversation", "previous_response_id"},
    {"{\"input\":\"x\",\"previous_response_id\":5}", 400, "previous_response_id", "string"},
    {"{\"input\":\"x\",\"previous_response_id\":\"resp_x\"}", 404, "previous_response_id", "resp_x"},
    {"{\"input\":\"x\",\"text\":{\"format\":{\"type\":\"xml\"}}}", 400, "text.format", "json_schema"},
    {"{\"input\":\"x\",\"reasoning\":{\"effort\":\"much\"}}", 400, "reasoning.effort", "medium"},
    {"{\"input\":\"x\",\"include\":[5]}", 400, "include", "list of strings"},
    {"{\"input\":\"x\",\"top_logprobs\":99}", 400, "top_logprobs", "20"},
    {"{\"input\":\"x\",\"model\":\"nobody\"}", 404, "model", "nobody"},
};

static void test_refusals(void **state) {
  (void)state;
  check_refusals(server.port, RESPONSES, bad_bodies, sizeof bad_bodies / sizeof *bad_bodies);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_whole),
      cmocka_unit_test(test_cut),
      cmocka_unit_test(test_past_its_end),
      cmocka_unit_test(test_items),
      cmocka_unit_test(test_stream_says_what_whole_says),
      cmocka_unit_test(test_format_and_logprobs),
      cmocka_unit_test(test_logprobs_beside_tools),
      cmocka_unit_test(test_continued),
      cmocka_unit_test(test_kept_for_its_tenant_alone),
      cmocka_unit_test(test_not_kept),
      cmocka_unit_test(test_what_is_repeated_is_charged),
      cmocka_unit_test(test_refusals),
  };
  return cmocka_run_group_tests(tests, open_server, close_talk);
}
