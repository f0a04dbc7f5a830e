/* SPDX-License-Identifier: MIT */
/* Clients that leave, in every phase of a request, and clients that are slow: what they held comes
 * back (how soon is printed), nobody else notices, and nothing waits for them. Then the queue's limit, drain, and
 * closing with requests in every phase. */
#include "tests/support/http_conversation.h"

static talk server;

/* One request runs at a time, so that a second one waits. Small steps make prefill last. */
static int open_server(void **state) {
  *state = talk_serve(&server, NULL,
                      (weft_open_options){.kv_bytes = 24 << 20, .context = 2048, .running = 1, .queue = 2, .rows = 32},
                      (weft_server_options){0});
  return 0;
}

#define COMPLETIONS "/v1/completions"
/* token ids, so that tokens without text make events too */
#define LONG_RUN                                                                           \
  "{\"prompt\":\"a%s\",\"return_token_ids\":true,\"ignore_eos\":true,\"max_tokens\":1900," \
  "\"mode\":\"%s\",\"stream\":%s,\"seed\":1,\"diffusion\":{\"confidence\":0}}"

static int start(const char *prompt, const char *mode, bool stream) {
  size_t n = strlen(prompt) + 512;
  char *body = malloc(n);
  (void)snprintf(body, n, LONG_RUN, prompt, mode, stream ? "true" : "false");
  int fd = talk_begin(server.port, COMPLETIONS, body);
  free(body);
  return fd;
}

static void settle(void) {
  talk_await(server.port, "vllm:num_requests_running", 0);
  talk_await(server.port, "vllm:num_requests_waiting", 0);
  talk_await(server.port, "weft_pool_pages_pinned", 0);
}

/* Hangs up, and waits until one more request ended as cancelled. Milliseconds. */
static double hang_up(int fd, double ended_before) {
  uint64_t start_us = weft_clock_us();
  (void)close(fd);
  while (talk_ended(server.port, "abort") != ended_before + 1) {
    if (weft_clock_us() - start_us > TALK_MS * 1000u) fail_msg("never cancelled after the client left");
    (void)poll(NULL, 0, 1);
  }
  return (double)(weft_clock_us() - start_us) / 1000.0;
}

static void test_left_mid_stream(void **state) {
  static const char *const modes[] = {"autoregressive", "diffusion"};
  (void)state;
  for (int m = 0; m < 2; m++) {
    for (int stream = 0; stream < 2; stream++) {
      settle();
      double ended = talk_ended(server.port, "abort"),
             tokens = talk_metric(server.port, "vllm:generation_tokens_total");
      weft_text got = {0};
      int fd = start("", modes[m], stream == 1);
      if (stream == 1) {
        while (got.n == 0 || strstr(got.bytes, "data: ") == NULL) assert_true(talk_read(fd, &got, TALK_MS) > 0);
      } else {
        talk_grows(server.port, "vllm:generation_tokens_total", tokens);
      }
      double ms = hang_up(fd, ended);
      talk_await(server.port, "weft_pool_pages_pinned", 0);
      print_message("left %s: %s, cancelled after %.1f ms\n", stream ? "mid-stream" : "before the whole answer",
                    modes[m], ms);
      assert_true(talk_metric(server.port, "vllm:generation_tokens_total") < tokens + 1900);
      weft_text_free(&got);
    }
  }
}

static void test_left_in_prefill(void **state) {
  weft_text prompt = {0};
  (void)state;
  settle();
  for (int i = 0; i < 350; i++) weft_text_printf(&prompt, " frog %d", i);
  double ended = talk_ended(server.port, "abort"), rows = talk_metric(server.port, "weft_rows_prefill_total");
  double tokens = talk_metric(server.port, "vllm:generation_tokens_total");
  int fd = start(prompt.bytes, "autoregressive", true);
  talk_grows(server.port, "weft_rows_prefill_total", rows);
  assert_true(talk_metric(server.port, "weft_pool_pages_pinned") > 0);
  double ms = hang_up(fd, ended);
  talk_await(server.port, "weft_pool_pages_pinned", 0);
  assert_true(talk_metric(server.port, "vllm:generation_tokens_total") == tokens); /* it was prefill indeed */
  print_message("left in prefill: cancelled after %.1f ms\n", ms);
  weft_text_free(&prompt);
}

static void test_left_while_queued(void **state) {
  (void)state;
  settle();
  double ended = talk_ended(server.port, "abort");
  int first = start("", "autoregressive", true);
  talk_await(server.port, "vllm:num_requests_running", 1);
  int second = start("b", "autoregressive", false);
  talk_await(server.port, "vllm:num_requests_waiting", 1);
  double ms = hang_up(second, ended);
  assert_true(talk_metric(server.port, "vllm:num_requests_waiting") == 0);
  assert_true(talk_metric(server.port, "vllm:num_requests_running") == 1); /* the other one goes on */
  print_message("left while queued: cancelled after %.1f ms\n", ms);
  (void)hang_up(first, ended + 1);
  talk_await(server.port, "weft_pool_pages_pinned", 0);
}

/* running 1 and queue 2: the fourth is told to come again. */
static void test_full_queue(void **state) {
  char retry[16];
  (void)state;
  settle();
  int fd[3];
  double ended = talk_ended(server.port, "abort");
  fd[0] = start("", "autoregressive", true);
  talk_await(server.port, "vllm:num_requests_running", 1);
  for (int i = 1; i < 3; i++) {
    fd[i] = start("b", "autoregressive", true);
    talk_await(server.port, "vllm:num_requests_waiting", i);
  }
  talk_answer a = talk_ask(server.port, "POST", COMPLETIONS, "{\"prompt\":\"a\"}");
  assert_int_equal(a.code, 429);
  assert_true(strtol(talk_header(&a, "Retry-After", retry, sizeof retry), NULL, 10) >= 1);
  assert_non_null(strstr(a.body.bytes, "queue_full"));
  talk_answer_free(&a);
  /* n answers at once that do not fit leave nothing behind */
  (void)hang_up(fd[2], ended);
  talk_check(talk_ask(server.port, "POST", COMPLETIONS, "{\"prompt\":\"a\",\"n\":2}"), 429, "");
  a = talk_ask(server.port, "POST", COMPLETIONS, "{\"prompt\":\"a\",\"n\":4}"); /* not even when nothing else runs */
  assert_int_equal(a.code, 400);
  assert_non_null(strstr(a.body.bytes, "ask for at most 3"));
  talk_answer_free(&a);
  talk_await(server.port, "vllm:num_requests_waiting", 1);
  (void)close(fd[0]);
  (void)close(fd[1]);
  settle();
}

/* A client that reads nothing holds up neither the engine nor others. */
static void test_slow_reader(void **state) {
  (void)state;
  settle();
  int small = 2048, fd = talk_dial(server.port);
  assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small), 0);
  const char *body =
      "{\"prompt\":\"a\",\"ignore_eos\":true,\"max_tokens\":250,\"mode\":\"autoregressive\","
      "\"stream\":true,"
      "\"logprobs\":20,\"seed\":4}";
  double length = talk_ended(server.port, "length");
  talk_send(fd, "POST", COMPLETIONS, "", body, strlen(body));
  uint64_t until = weft_clock_us() + TALK_MS * 1000u;
  while (talk_ended(server.port, "length") == length) assert_true(weft_clock_us() < until); /* not one byte was read */
  json_decref(talk_json(server.port, COMPLETIONS, "{\"prompt\":\"a\",\"max_tokens\":2}"));
  int large = 1 << 20;
  assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &large, sizeof large), 0);
  talk_answer a = talk_receive(fd); /* and then all of it is there */
  assert_true(a.complete);
  json_t *events = talk_events(&a.body), *event;
  size_t i, n = 0;
  json_array_foreach(events, i, event) n += json_array_size(at(event, "data.choices.0.logprobs.tokens"));
  assert_int_equal(n, 250);
  json_decref(events);
  talk_answer_free(&a);
  (void)close(fd);
}

/* A timeout of the request's own: an error before anything was sent, an error event afterwards. */
static void test_deadline(void **state) {
  (void)state;
  settle();
  talk_check(talk_ask(server.port, "POST", COMPLETIONS,
                      "{\"prompt\":\"a\",\"ignore_eos\":true,\"max_tokens\":1900,\"mode\":"
                      "\"autoregressive\",\"timeout_ms\":200}"),
             504, "timeout_ms");
  talk_answer late = {0};
  for (int ms = 200; ms < 100000 && late.code != 200; ms += ms / 8) { /* until a token comes before the end */
    char body[160];
    (void)snprintf(body, sizeof body,
                   "{\"prompt\":\"a\",\"ignore_eos\":true,\"max_tokens\":1900,\"mode\":\"autoregressive\","
                   "\"timeout_ms\":%d,\"stream\":true}",
                   ms);
    talk_answer_free(&late);
    late = talk_ask(server.port, "POST", COMPLETIONS, body);
  }
  assert_int_equal(late.code, 200);
  json_t *events = talk_events(&late.body);
  talk_answer_free(&late);
  size_t n = json_array_size(events);
  assert_true(n >= 2);
  assert_string_equal(text_at(json_array_get(events, n - 2), "data.error.code"), "timeout");
  json_decref(events);
}

/* Last: while draining, running requests end as they would, new ones are refused, health says so. */
static void test_drain_and_close(void **state) {
  (void)state;
  settle();
  const char *body =
      "{\"prompt\":\"a\",\"ignore_eos\":true,\"max_tokens\":400,\"mode\":\"autoregressive\","
      "\"stream\":true}";
  int fd = talk_begin(server.port, COMPLETIONS, body);
  talk_await(server.port, "vllm:num_requests_running", 1);
  weft_server_drain(server.server);
  assert_false(weft_server_idle(server.server));
  talk_check(talk_ask(server.port, "GET", "/health", ""), 503, "draining");
  talk_check(talk_ask(server.port, "POST", COMPLETIONS, "{\"prompt\":\"a\"}"), 503, "shutting down");
  talk_answer a = talk_receive(fd);
  assert_true(a.complete);
  assert_non_null(strstr(a.body.bytes, "\"finish_reason\":\"length\""));
  talk_answer_free(&a);
  (void)close(fd);
  uint64_t until = weft_clock_us() + TALK_MS * 1000u;
  while (!weft_server_idle(server.server)) assert_true(weft_clock_us() < until);
}

/* Closing ends a stream with an error event, a waiting answer with 503, and takes no long time. */
static void test_close_with_requests_in_every_phase(void **state) {
  talk_close(&server);
  (void)open_server(state);
  int stream = start("", "autoregressive", true), queued = start("b", "autoregressive", false),
      half = talk_dial(server.port);
  talk_await(server.port, "vllm:num_requests_waiting", 1);
  assert_true(talk_write(half, "POST / HT", 9));
  uint64_t start_us = weft_clock_us();
  weft_server_close(server.server);
  server.server = NULL;
  print_message("closed in %.1f ms\n", (double)(weft_clock_us() - start_us) / 1000.0);
  talk_answer a = talk_receive(stream);
  assert_int_equal(a.code, 200);
  assert_true(a.complete);
  assert_non_null(strstr(a.body.bytes, "\"code\":\"cancelled\""));
  assert_non_null(strstr(a.body.bytes, "[DONE]"));
  talk_answer_free(&a);
  talk_check(talk_receive(queued), 503, "");
  (void)close(stream);
  (void)close(queued);
  (void)close(half);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_left_mid_stream),   cmocka_unit_test(test_left_in_prefill),
      cmocka_unit_test(test_left_while_queued), cmocka_unit_test(test_full_queue),
      cmocka_unit_test(test_slow_reader),       cmocka_unit_test(test_deadline),
      cmocka_unit_test(test_drain_and_close),   cmocka_unit_test(test_close_with_requests_in_every_phase)};
  return cmocka_run_group_tests(tests, open_server, close_talk);
}
