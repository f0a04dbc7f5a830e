/* SPDX-License-Identifier: MIT */
/* Finished answers whose clients do not read them: their memory is counted, one client's holds at most half of it, and
 * it is given back when the clients leave. On a unix socket, whose buffers are smaller than the answers; there a user
 * of the system counts as an address does. */
#include "tests/support/http_conversation.h"

enum { METADATA_BYTES = 1000000, HALF_BYTES = 32 << 20, READERS_MAX = 2 * HALF_BYTES / METADATA_BYTES };

static talk server;
static char folder[32], host[80];

static int open_server(void **state) {
  (void)snprintf(folder, sizeof folder, "/tmp/weft-answers-XXXXXX");
  assert_non_null(mkdtemp(folder));
  (void)snprintf(host, sizeof host, "unix:%s/socket", folder);
  *state = talk_serve(&server, NULL, (weft_open_options){0},
                      (weft_server_options){.host = host, .body_mib = 2, .connections = 256});
  return 0;
}

static int close_server(void **state) {
  (void)close_talk(state);
  return rmdir(folder);
}

static int dial(void) {
  return talk_dial_named(host + 5);
}

static talk_answer ask(const char *method, const char *path, const char *body) {
  return talk_ask_on(dial(), method, path, "", body);
}

static double answer_bytes(void) {
  talk_answer a = ask("GET", "/metrics", "");
  assert_int_equal(a.code, 200);
  double value = talk_metric_of(a.body.bytes, "weft_http_answer_bytes");
  talk_answer_free(&a);
  return value;
}

/* A response that is kept and about as large as one may be. Gives its path; the caller frees it. */
static char *keep_large_response(void) {
  weft_text body = {0}, path = {0};
  weft_text_puts(&body, "{\"input\":\"a\",\"max_output_tokens\":1,\"metadata\":{\"k\":\"");
  for (int i = 0; i < METADATA_BYTES / 100; i++) weft_text_printf(&body, "%0100d", i);
  weft_text_puts(&body, "\"}}");
  talk_answer a = ask("POST", "/v1/responses", body.bytes);
  assert_int_equal(a.code, 200);
  json_t *root = json_loads(a.body.bytes, 0, NULL);
  weft_text_puts(&path, "/v1/responses/");
  weft_text_puts(&path, text_at(root, "id"));
  json_decref(root);
  talk_answer_free(&a);
  weft_text_free(&body);
  return path.bytes;
}

/* The code of its answer, all of which stays where it is. */
static int look_at_code(int fd) {
  char line[16] = "";
  assert_int_equal(recv(fd, line, 12, MSG_PEEK | MSG_WAITALL), 12);
  return (int)strtol(line + 9, NULL, 10);
}

/* Large answers are counted until their clients have gone, and never beyond half for one of them. */
static void one_client_holds_at_most_half(void **state) {
  char *path = keep_large_response();
  int fd[READERS_MAX], n = 0, code;
  (void)state;
  assert_true(answer_bytes() == 0);
  do {
    fd[n] = dial();
    talk_send(fd[n], "GET", path, "", "", 0);
    code = look_at_code(fd[n++]);
  } while (code == 200 && n < READERS_MAX);
  assert_int_equal(code, 429);
  double held = answer_bytes();
  assert_true(held >= (double)(n - 1) * METADATA_BYTES && held <= HALF_BYTES);
  talk_answer a = ask("GET", path, "");
  assert_int_equal(a.code, 429);
  assert_non_null(strstr(a.body.bytes, "answers_full"));
  talk_answer_free(&a);
  a = ask("GET", "/v1/models", ""); /* small answers are not touched */
  assert_int_equal(a.code, 200);
  talk_answer_free(&a);
  for (int i = 0; i < n; i++) (void)close(fd[i]);
  while (answer_bytes() != 0) (void)poll(NULL, 0, 1);
  a = ask("GET", path, "");
  assert_int_equal(a.code, 200);
  assert_true(a.complete && a.body.n > METADATA_BYTES);
  talk_answer_free(&a);
  free(path);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(one_client_holds_at_most_half)};
  return cmocka_run_group_tests(tests, open_server, close_server);
}
