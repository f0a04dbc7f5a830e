/* SPDX-License-Identifier: MIT */
/* A stream that waits says so: with one place to run, taken by a long answer, the streams of all dialects begin at once
 * with what each calls its beginning, and end as they should once there is room. */
#include "tests/support/http_conversation.h"

static talk server;

static int open_server(void **state) {
  static const char *const models[] = {DEMO_AR_MODEL};
  const weft_open_options options = {
      .models = models, .n_models = 1, .threads = 1, .kv_bytes = 8 << 20, .context = 8192, .running = 1};
  *state = talk_serve(&server, NULL, options, (weft_server_options){0});
  return 0;
}

#define CHAT "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"stream\":true,\"max_tokens\":4}"
static const struct {
  const char *path, *body, *begins, *ends;
} rows[] = {
    {"/v1/messages", CHAT, "event: message_start\n", "event: message_stop\n"},
    {"/v1/responses", "{\"input\":\"Hi\",\"stream\":true,\"max_output_tokens\":16}", "event: response.created\n",
     "\"type\":\"response."},
    {"/v1/chat/completions", CHAT, "\"delta\":{\"role\":\"assistant\",\"content\":\"\"}", "[DONE]"},
    {"/v1/completions", "{\"prompt\":\"a\",\"stream\":true,\"max_tokens\":4}", "\"text\":\"\"", "[DONE]"},
};
enum { ROWS = sizeof rows / sizeof *rows };

static void await_words(int fd, weft_text *got, const char *words) {
  while (got->bytes == NULL || strstr(got->bytes, words) == NULL) {
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    (void)poll(&wait, 1, 60000);
    if (talk_read(fd, got, 0) == 0) fail_msg("it ended without '%s': %s", words, got->n > 0 ? got->bytes : "");
  }
}

static void streams_begin_while_they_wait(void **state) {
  weft_text got[ROWS] = {{0}};
  int fd[ROWS];
  (void)state;
  int first = talk_begin(server.port, "/v1/completions",
                         "{\"prompt\":\"a\",\"max_tokens\":8000,\"ignore_eos\":true,\"stream\":true}");
  talk_await(server.port, "vllm:num_requests_running", 1);
  for (int i = 0; i < ROWS; i++) {
    fd[i] = talk_begin(server.port, rows[i].path, rows[i].body);
    await_words(fd[i], &got[i], rows[i].begins);
  }
  talk_await(server.port, "vllm:num_requests_waiting", ROWS);
  (void)close(first);
  for (int i = 0; i < ROWS; i++) {
    await_words(fd[i], &got[i], rows[i].ends);
    size_t n = 0;
    for (const char *at = got[i].bytes; (at = strstr(at, rows[i].begins)) != NULL && i < 2; at++) n++;
    assert_true(i >= 2 || n == 1); /* and begin once */
    weft_text_free(&got[i]);
    (void)close(fd[i]);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(streams_begin_while_they_wait)};
  return cmocka_run_group_tests(tests, open_server, close_talk);
}
