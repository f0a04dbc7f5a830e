/* SPDX-License-Identifier: MIT */
/* Every kind of bad request: each gets its code, one line that names what is wrong, OpenAI's shape,
 * and leaves the server as it was. */
#include "tests/support/http_refusal.h"

static talk server;

static int open_server(void **state) {
  *state = talk_serve(&server, NULL, (weft_open_options){.threads = 2},
                      (weft_server_options){.body_mib = 1, .idle_seconds = 2});
  return 0;
}

#define USER "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"

static const http_refusal bad_chats[] = {
    /* not JSON */
    {"", 400, NULL, "empty"},
    {"{", 400, NULL, "line 1, column"},
    {"{\"messages\":[}", 400, NULL, "not valid JSON"},
    {"[]", 400, NULL, "must be a JSON object"},
    {"{" USER "} trailing", 400, NULL, "not valid JSON"},
    {"{\"messages\":[{\"role\":\"user\",\"content\":\"\xff\"}]}", 400, NULL, "not valid UTF-8 at byte 39"},
    {"{\"messages\":[{\"role\":\"user\",\"content\":\"a\\u0000b\"}],\n\"n\":99999999999999999999,x}", 400, NULL,
     "not valid JSON at line 2, column 26 (byte 78)"},
    {"{\"messages\":[{\"role\":\"user\",\"content\":99999999999999999999}]}", 400, "messages[0].content", "a string"},
    /* messages */
    {"{}", 400, "messages", "messages"},
    {"{\"messages\":[]}", 400, "messages", "at least one"},
    {"{\"messages\":\"hi\"}", 400, "messages", "list"},
    {"{\"messages\":[1]}", 400, "messages[0]", "object"},
    {"{\"messages\":[{\"content\":\"hi\"}]}", 400, "messages[0].role", "string"},
    {"{\"messages\":[{\"role\":\"pirate\",\"content\":\"hi\"}]}", 400, "messages[0].role", "pirate"},
    {"{\"messages\":[{\"role\":\"user\"}]}", 400, "messages[0].content", "string"},
    {"{\"messages\":[{\"role\":\"user\",\"content\":5}]}", 400, "messages[0].content", "string"},
    {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{"
     "\"url\":\"x\"}}]}]}",
     400, "messages[0].content[0]", "only text"},
    {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"text\":\"x\"}]}]}", 400, "messages[0].content[0]", "type"},
    /* what is not done */
    {"{" USER ",\"tools\":[{\"type\":\"function\"}]}", 400, "tools[0].function", "must be an object"},
    {"{" USER ",\"functions\":[{}]}", 400, "functions", "tools and tool_choice"},
    {"{" USER ",\"tool_choice\":\"required\"}", 400, "tool_choice", "declares nothing"},
    {"{" USER ",\"response_format\":{\"type\":\"xml\"}}", 400, "response_format", "xml"},
    {"{" USER ",\"guided_json\":5}", 400, "guided_json", "a JSON schema"},
    {"{" USER ",\"prompt_logprobs\":true}", 400, "prompt_logprobs", "whole number"},
    {"{" USER ",\"mode\":\"diffusion\",\"min_tokens\":4}", 400, NULL, "not defined for a canvas"},
    /* absurd values */
    {"{" USER ",\"temperature\":-1}", 400, "temperature", "-1"},
    {"{" USER ",\"temperature\":\"hot\"}", 400, "temperature", "number"},
    {"{" USER ",\"temperature\":1e999}", 400, "temperature", "must be a number"},
    {"{" USER ",\"max_tokens\":18446744073709551616}", 400, "max_tokens", "a whole number"},
    {"{" USER ",\"logit_bias\":1e999}", 400, "logit_bias", "is no token id"},
    {"{" USER ",\"top_p\":1.5}", 400, "top_p", "1.5"},
    {"{" USER ",\"top_p\":0}", 400, "top_p", "0"},
    {"{" USER ",\"top_k\":-7}", 400, "top_k", "-7"},
    {"{" USER ",\"top_k\":1.5}", 400, "top_k", "whole"},
    {"{" USER ",\"min_p\":2}", 400, "min_p", "2"},
    {"{" USER ",\"max_tokens\":0}", 400, "max_tokens", "0"},
    {"{" USER ",\"max_tokens\":-5}", 400, "max_tokens", "-5"},
    {"{" USER ",\"max_tokens\":99999999999}", 400, "max_tokens", "99999999999"},
    {"{" USER ",\"n\":0}", 400, "n", "0"},
    {"{" USER ",\"n\":100000}", 400, "n", "100000"},
    {"{" USER ",\"seed\":\"x\"}", 400, "seed", "whole"},
    {"{" USER ",\"presence_penalty\":9}", 400, "presence_penalty", "9"},
    {"{" USER ",\"frequency_penalty\":-9}", 400, "frequency_penalty", "-9"},
    {"{" USER ",\"repetition_penalty\":0}", 400, "repetition_penalty", "0"},
    {"{" USER ",\"stop\":[1]}", 400, "stop", "strings"},
    {"{" USER ",\"stop\":7}", 400, "stop", "string"},
    {"{" USER ",\"logit_bias\":{\"x\":1}}", 400, "logit_bias", "'x'"},
    {"{" USER ",\"logit_bias\":{\"1\":1000}}", 400, "logit_bias", "-100"},
    {"{" USER ",\"logit_bias\":{\"999999\":1},\"mode\":\"autoregressive\"}", 400, NULL, "999999"},
    {"{" USER ",\"logprobs\":3}", 400, "logprobs", "true or false"},
    {"{" USER ",\"top_logprobs\":3}", 400, "top_logprobs", "logprobs"},
    {"{" USER ",\"logprobs\":true,\"top_logprobs\":21}", 400, "top_logprobs", "20"},
    {"{" USER ",\"stream\":\"yes\"}", 400, "stream", "true or false"},
    {"{" USER ",\"stream_options\":{}}", 400, "stream_options", "stream"},
    {"{" USER ",\"stream_canvas\":true}", 400, "stream_canvas", "stream"},
    {"{" USER ",\"stream_canvas\":\"tokens\"}", 400, "stream_canvas", "needs \"stream\": true"},
    {"{" USER ",\"stream\":true,\"stream_canvas\":\"token\"}", 400, "stream_canvas", "true, false or \"tokens\""},
    {"{" USER ",\"stream\":true,\"stream_canvas\":1}", 400, "stream_canvas", "true, false or"},
    {"{" USER ",\"model\":5}", 400, "model", "string"},
    {"{" USER ",\"mode\":\"magic\"}", 400, "mode", "autoregressive"},
    {"{" USER ",\"diffusion\":5}", 400, "diffusion", "object"},
    {"{" USER ",\"diffusion\":{\"stepz\":5}}", 400, "diffusion.stepz", "nothing is done with it"},
    {"{" USER ",\"diffusion\":{\"steps\":0}}", 400, "diffusion.steps", "1"},
    {"{" USER ",\"diffusion\":{\"t_min\":0.9,\"t_max\":0.1}}", 400, NULL, "t_"},
    {"{" USER ",\"diffusion\":{\"stability\":99}}", 400, "diffusion.stability", "99"},
    {"{" USER ",\"chat_template_kwargs\":{\"enable_thinking\":3}}", 400, "chat_template_kwargs.enable_thinking",
     "true"},
    /* what a canvas cannot do */
    {"{" USER ",\"mode\":\"diffusion\",\"logprobs\":true}", 400, NULL, "logprobs is not defined for a canvas"},
    {"{" USER ",\"mode\":\"diffusion\",\"presence_penalty\":1}", 400, NULL, "penalties"},
    {"{" USER ",\"mode\":\"diffusion\",\"logit_bias\":{\"5\":1}}", 400, NULL, "logit_bias is not defined for a canvas"},
};

static const http_refusal bad_completions[] = {
    {"{}", 400, "prompt", "text, token ids"},
    {"{\"prompt\":\"\"}", 400, "prompt", "empty"},
    {"{\"prompt\":[]}", 400, "prompt", "empty"},
    {"{\"prompt\":5}", 400, "prompt", "text, token ids"},
    {"{\"prompt\":[\"a\",5]}", 400, "prompt", "text, token ids"},
    {"{\"prompt\":[1,\"a\"]}", 400, "prompt", "prompt[1]"},
    {"{\"prompt\":[-1]}", 400, "prompt", "prompt[0]"},
    {"{\"prompt\":[1.5]}", 400, "prompt", "prompt[0]"},
    {"{\"prompt\":[[1],[]]}", 400, "prompt", "prompt 1 is empty"},
    {"{\"prompt\":[99999999]}", 400, NULL, "99999999"},
    {"{\"prompt\":\"a\",\"echo\":\"yes\"}", 400, "echo", "true or false"},
    {"{\"prompt\":\"a\",\"suffix\":\"b\"}", 400, "suffix", "not supported"},
    {"{\"prompt\":\"a\",\"best_of\":4,\"mode\":\"diffusion\"}", 400, NULL, "best_of"},
    {"{\"prompt\":\"a\",\"best_of\":4,\"n\":5}", 400, "best_of", "at least n"},
    {"{\"prompt\":\"a\",\"best_of\":4,\"stream\":true}", 400, "best_of", "streamed"},
    {"{\"prompt\":\"a\",\"best_of\":0}", 400, "best_of", "0"},
    {"{\"prompt\":[\"a\",\"b\"],\"best_of\":100}", 400, "n", "best_of = 100"},
    {"{\"prompt\":\"a\",\"logprobs\":99}", 400, "logprobs", "99"},
    {"{\"prompt\":[\"a\",\"b\",\"c\"],\"n\":100}", 400, "n", "128 answers"},
    {"{\"prompt\":\"a\",\"mode\":\"diffusion\",\"logprobs\":1}", 400, NULL, "canvas"},
};

static void test_bad_bodies(void **state) {
  (void)state;
  check_refusals(server.port, "/v1/chat/completions", bad_chats, sizeof bad_chats / sizeof *bad_chats);
  check_refusals(server.port, "/v1/completions", bad_completions, sizeof bad_completions / sizeof *bad_completions);
}

#define TOOL_F                                                                                                         \
  "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":" \
  "{},"                                                                                                                \
  "\"additionalProperties\":false}}}]"
#define TOOL_HISTORY                                                                                            \
  "\"messages\":[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{" \
  "\"name\":\"f\"}}"                                                                                            \
  "]},{\"role\":\"tool\",\"content\":\"y\"}]"
/* A chat template that shows no tools: the model is not left to choose among what it does not know; a call that it had
 * to make is taken back, with its result. */
static void test_tools_without_a_place(void **state) {
  static const http_refusal rows[] = {{"{" USER ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]}",
                                       400, NULL, "no place for the tool 'f'"},
                                      {"{" TOOL_HISTORY "," TOOL_F "}", 400, NULL, "no place for the tool 'f'"}};
  const char *templates[] = {WEFT_SOURCE_DIR "/tests/golden/chat/no-tools.jinja"};
  talk plain;
  (void)state;
  (void)talk_serve(&plain, NULL, (weft_open_options){.chat_templates = templates, .n_chat_templates = 1},
                   (weft_server_options){0});
  check_refusals(plain.port, "/v1/chat/completions", rows, sizeof rows / sizeof *rows);
  json_t *made = talk_json(plain.port, "/v1/chat/completions",
                           "{" USER "," TOOL_F ",\"tool_choice\":\"required\",\"max_tokens\":60}");
  char *call = json_dumps(at(made, "choices.0.message.tool_calls.0"), 0);
  assert_non_null(call);
  static const char *const ends[] = {"", ",{\"role\":\"user\",\"content\":\"go\"}"},
                           *const choices[] = {"", "," TOOL_F ",\"tool_choice\":\"none\"",
                                               "," TOOL_F ",\"tool_choice\":\"required\""};
  for (size_t i = 0; i < 6; i++) {
    weft_text body = {0};
    weft_text_printf(
        &body,
        "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"tool_calls\":[%s]},"
        "{\"role\":\"tool\",\"content\":\"y\"}%s]%s,\"max_tokens\":60}",
        call, ends[i % 2], choices[i / 2]);
    json_decref(talk_json(plain.port, "/v1/chat/completions", body.bytes));
    weft_text_free(&body);
  }
  free(call);
  json_decref(made);
  talk_close(&plain);
}

/* What asks for nothing is no reason to refuse. */
static void test_harmless_values(void **state) {
  (void)state;
  json_decref(talk_json(server.port, "/v1/chat/completions",
                        "{" USER ",\"max_tokens\":1,\"tools\":[],\"tool_choice\":\"none\","
                        "\"response_format\":{\"type\":\"text\"},"
                        "\"stop\":null,\"temperature\":null,\"top_k\":-1,\"logit_bias\":{},\"n\":1,"
                        "\"user\":\"x\",\"best_of\":1,"
                        "\"min_tokens\":0,\"mode\":\"autoregressive\",\"logprobs\":false,\"seed\":-"
                        "5,\"store\":true}"));
}

static void test_prompt_beyond_the_context(void **state) {
  (void)state;
  weft_text body = {0};
  weft_text_puts(&body, "{\"prompt\":[5");
  for (int i = 0; i < 300; i++) weft_text_puts(&body, ",5");
  weft_text_puts(&body, "]}");
  talk_answer a = talk_ask(server.port, "POST", "/v1/completions", body.bytes);
  assert_non_null(strstr(a.body.bytes, "\"context_length_exceeded\""));
  check_refusal(a, "301 tokens", 400, NULL, "prompt is too long: this model's maximum context length is 256 tokens");
  weft_text_free(&body);
}

static void test_paths_and_methods(void **state) {
  static const struct {
    const char *method, *path;
    int code;
    const char *allow, *words;
  } rows[] = {
      {"GET", "/nowhere", 404, "", "nothing is served at /nowhere: /docs lists what is"},
      {"POST", "/v1/embeddings", 404, "", "/v1/embeddings"},
      {"GET", "/v1/chat/completions", 405, "POST", "takes POST"},
      {"DELETE", "/v1/models", 405, "GET, HEAD", "takes GET"},
      {"PUT", "/health", 405, "GET, HEAD", "takes GET"},
      {"GET", "/v1/models/none", 404, "", "none"},
  };
  char allow[64];
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    talk_answer a = talk_ask(server.port, rows[i].method, rows[i].path, "");
    bool model = strstr(rows[i].path, "/none") != NULL;
    assert_string_equal(talk_header(&a, "Allow", allow, sizeof allow), rows[i].allow);
    check_refusal(a, rows[i].path, rows[i].code, model ? "model" : NULL, rows[i].words);
  }
}

static void test_tokenize_refuses(void **state) {
  static const http_refusal rows[] = {
      {"{}", 400, "prompt", "exactly one"},
      {"{\"prompt\":5}", 400, "prompt", "string"},
      {"{\"prompt\":\"a\",\"messages\":[]}", 400, "prompt", "exactly one"},
      {"{\"prompt\":\"a\",\"add_special_tokens\":1}", 400, "add_special_tokens", "true or false"},
      {"nonsense", 400, NULL, "not valid JSON"},
  };
  (void)state;
  check_refusals(server.port, "/tokenize", rows, sizeof rows / sizeof *rows);
  talk_check(talk_ask(server.port, "POST", "/detokenize", "{\"tokens\":[99999999]}"), 400, "");
  check_refusal(talk_ask(server.port, "POST", "/detokenize", "{\"tokens\":\"x\"}"), "tokens", 400, "tokens", "list");
}

/* A body over the limit, told by its length, in chunks that tell none, and far over it. */
static void test_large_bodies(void **state) {
  size_t n = (1 << 20) + 100;
  char *body = malloc(n);
  (void)state;
  memset(body, ' ', n);
  int fd = talk_dial(server.port);
  talk_send(fd, "POST", "/v1/completions", "", body, n);
  check_refusal(talk_receive(fd), "large", 413, NULL, "1048576");
  (void)close(fd);
  fd = talk_dial(server.port);
  const char *head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n";
  assert_true(talk_write(fd, head, strlen(head)));
  char line[32];
  (void)snprintf(line, sizeof line, "%zx\r\n", n);
  assert_true(talk_write(fd, line, strlen(line)));
  assert_true(talk_write(fd, body, n));
  assert_true(talk_write(fd, "\r\n0\r\n\r\n", 7));
  check_refusal(talk_receive(fd), "large, in chunks", 413, NULL, "1048576");
  (void)close(fd);
  fd = talk_dial(server.port);
  head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n";
  assert_true(talk_write(fd, head, strlen(head)));
  check_refusal(talk_receive(fd), "far too large", 413, NULL, "1048576");
  (void)close(fd);
  free(body);
}

/* A body in small pieces and in chunks is the same body. */
static void test_slow_and_chunked_bodies(void **state) {
  const char *body = "{\"max_tokens\":1," USER "}";
  (void)state;
  for (int chunked = 0; chunked < 2; chunked++) {
    int fd = talk_dial(server.port);
    char head[256];
    (void)snprintf(head, sizeof head, "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n%s%zu\r\n\r\n",
                   chunked ? "Transfer-Encoding: chunked\r\nX-Length: " : "Content-Length: ", strlen(body));
    assert_true(talk_write(fd, head, strlen(head)));
    for (const char *c = body; *c != 0; c++) {
      if (chunked) assert_true(talk_write(fd, "1\r\n", 3));
      assert_true(talk_write(fd, c, 1));
      if (chunked) assert_true(talk_write(fd, "\r\n", 2));
    }
    if (chunked) assert_true(talk_write(fd, "0\r\n\r\n", 5));
    talk_answer a = talk_receive(fd);
    if (a.code != 200) fail_msg("%d: %s", a.code, a.body.bytes);
    talk_answer_free(&a);
    (void)close(fd);
  }
}

/* Half a request, or none, does not hold a connection for ever. */
static void test_silent_connections_are_closed(void **state) {
  static const char *const pieces[] = {
      "", "POST /v1/comp", "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{"};
  (void)state;
  for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
    int fd = talk_dial(server.port);
    assert_true(talk_write(fd, pieces[i], strlen(pieces[i])));
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    assert_int_equal(poll(&wait, 1, TALK_MS), 1); /* idle_seconds is 2 here */
    (void)close(fd);
  }
}

static void test_not_http(void **state) {
  static const char *const pieces[] = {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
                                       "GET\r\n\r\n",
                                       "\r\n\r\n\r\n",
                                       "GET / HTTP/9.9\r\n\r\n",
                                       "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
                                       "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n"};
  (void)state;
  for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
    weft_text out = {0};
    int fd = talk_dial(server.port);
    (void)talk_write(fd, pieces[i], strlen(pieces[i]));
    (void)shutdown(fd, SHUT_WR);
    while (talk_read(fd, &out, TALK_MS) > 0) continue;
    weft_text_free(&out);
    (void)close(fd);
  }
  json_decref(talk_json(server.port, "/health", NULL));
}

static void test_nothing_was_disturbed(void **state) {
  (void)state;
  json_decref(talk_json(server.port, "/v1/chat/completions", "{\"max_tokens\":2," USER "}"));
  talk_await(server.port, "weft_pool_pages_pinned", 0);
  talk_await(server.port, "vllm:num_requests_running", 0);
  assert_true(talk_metric(server.port, "weft_well") == 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_bad_bodies),
      cmocka_unit_test(test_tools_without_a_place),
      cmocka_unit_test(test_harmless_values),
      cmocka_unit_test(test_prompt_beyond_the_context),
      cmocka_unit_test(test_paths_and_methods),
      cmocka_unit_test(test_tokenize_refuses),
      cmocka_unit_test(test_large_bodies),
      cmocka_unit_test(test_slow_and_chunked_bodies),
      cmocka_unit_test(test_silent_connections_are_closed),
      cmocka_unit_test(test_not_http),
      cmocka_unit_test(test_nothing_was_disturbed),
  };
  return cmocka_run_group_tests(tests, open_server, close_talk);
}
