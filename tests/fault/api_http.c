/* SPDX-License-Identifier: MIT */
/* Every allocation of a request over HTTP refused once, in turn: the client gets an answer, an
 * error in the usual shape or a closed connection, never half an answer that looks whole; the
 * server goes on and holds nothing. */
#include "tests/support/tls_client.h"

#include "base/memory.h"

static talk server;
static weft_server *secure; /* the same in TLS */
static tls_files files;

static int open_server(void **state) {
  *state = talk_serve(&server, NULL, (weft_open_options){.context = 128}, (weft_server_options){0});
  tls_files_make(&files, "localhost");
  const weft_server_options where = {.tls_cert = files.cert, .tls_key = files.key};
  weft_error error;
  return weft_server_open(&where, server.runtime, &secure, &error) == WEFT_OK ? 0 : -1;
}

static int close_all(void **state) {
  weft_server_close(secure);
  tls_files_remove(&files);
  return close_talk(state);
}

/* The client takes no memory from the counted allocator. Bytes until the server closes. */
static size_t converse(const char *request, char *out, size_t n_max) {
  size_t n = 0;
  int fd = talk_dial(server.port);
  if (talk_write(fd, request, strlen(request))) {
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    ssize_t got = 1;
    while (got > 0 && n + 1 < n_max && poll(&wait, 1, TALK_MS) > 0) {
      got = recv(fd, out + n, n_max - 1 - n, 0);
      if (got > 0) n += (size_t)got;
    }
  }
  (void)close(fd);
  out[n] = 0;
  return n;
}

/* The same in TLS. */
static size_t converse_secretly(const char *request, char *out, size_t n_max) {
  size_t n = 0;
  tls_talk t = tls_dial((uint16_t)weft_server_port(secure), TLS1_3_VERSION);
  if (SSL_do_handshake(t.ssl) == 1 && SSL_write(t.ssl, request, (int)strlen(request)) > 0) {
    for (int got = 1; got > 0 && n + 1 < n_max; n += got > 0 ? (size_t)got : 0) {
      got = SSL_read(t.ssl, out + n, (int)(n_max - 1 - n));
    }
  }
  tls_hang_up(&t);
  out[n] = 0;
  return n;
}

static const char body[] =
    "{\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":[{"
    "\"type\":\"text\",\"text\":\"hi\"}]}],"
    "\"max_tokens\":6,\"ignore_eos\":true,\"mode\":\"autoregressive\",\"n\":2,\"logprobs\":true,"
    "\"top_logprobs\":2,\"seed\":1,"
    "\"return_token_ids\":true,\"stop\":[\"never\"],\"logit_bias\":{\"5\":1},\"stream\":%s}";

static void check_answer(const char *out, size_t n, bool stream, uint64_t which, bool *whole) {
  *whole = false;
  if (n == 0) return; /* closed without a word: there was no memory for one */
  int code = (int)strtol(out + 9, NULL, 10);
  if (code != 200 && code != 500 && code != 503) fail_msg("allocation %llu: %.200s", (unsigned long long)which, out);
  if (code != 200) return;
  bool ended = stream ? strstr(out, "data: [DONE]") != NULL : strstr(out, "\"usage\":{") != NULL;
  bool error = strstr(out, "{\"error\":") != NULL;
  bool finished = strstr(out, "\"finish_reason\":\"length\"") != NULL;
  if (ended && !error && !finished) fail_msg("allocation %llu: half an answer: %s", (unsigned long long)which, out);
  if (!stream && !ended) fail_msg("allocation %llu: a cut body: %s", (unsigned long long)which, out);
  *whole = ended && finished && !error;
}

static void refuse_each(bool stream, bool tls) {
  static char out[1 << 18], request[2048], text[1024];
  (void)snprintf(text, sizeof text, body, stream ? "true" : "false");
  (void)snprintf(request, sizeof request,
                 "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: "
                 "close\r\nContent-Length: %zu\r\n\r\n%s",
                 strlen(text), text);
  uint64_t n_whole = 0, n_other = 0;
  for (uint64_t at_n = 1; at_n < 100000; at_n++) {
    bool whole;
    (void)weft_memory_fail_at(at_n);
    size_t n = tls ? converse_secretly(request, out, sizeof out) : converse(request, out, sizeof out);
    uint64_t counted = weft_memory_fail_at(0);
    check_answer(out, n, stream, at_n, &whole);
    n_whole += whole;
    n_other += !whole;
    if (counted < at_n) {
      assert_true(whole);
      break;
    }
  }
  print_message("%s%s: %llu requests ended early, %llu were answered all the same\n", stream ? "stream" : "whole",
                tls ? " in TLS" : "", (unsigned long long)n_other, (unsigned long long)n_whole);
  assert_true(n_other > 20); /* it did reach the request */
}

static void test_memory_refused_in_a_request(void **state) {
  (void)state;
  for (int i = 0; i < 4; i++) refuse_each(i % 2 == 1, i / 2 == 1);
  json_decref(talk_json(server.port, "/health", NULL));
  talk_await(server.port, "vllm:num_requests_running", 0);
  talk_await(server.port, "weft_pool_pages_pinned", 0);
}

static void test_memory_refused_at_opening(void **state) {
  (void)state;
  for (uint64_t n = 1;; n++) {
    weft_server *other = NULL;
    weft_error error = {{0}};
    weft_server_options where = {.tls_cert = files.cert, .tls_key = files.key};
    (void)weft_memory_fail_at(n);
    weft_status status = weft_server_open(&where, server.runtime, &other, &error);
    (void)weft_memory_fail_at(0);
    if (status == WEFT_OK) {
      weft_server_close(other);
      assert_true(n > 3);
      break;
    }
    assert_null(other);
    assert_int_equal(status, WEFT_E_NO_MEMORY);
    assert_true(error.text[0] != 0);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_memory_refused_in_a_request),
      cmocka_unit_test(test_memory_refused_at_opening),
  };
  return cmocka_run_group_tests(tests, open_server, close_all);
}
