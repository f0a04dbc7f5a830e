/* SPDX-License-Identifier: MIT */
/* TLS: everything that holds for plain connections holds inside it (answers, streams, large bodies, clients that leave,
 * deadlines, places), handshakes that are never finished take nothing from others, and what is no TLS is refused so
 * that its sender learns why. Deadlines are those of a clock that the test turns. */
#include <stdatomic.h>

#include "tests/support/tls_client.h"

enum { PLACES = 16, IDLE_SECONDS = 30, STEP_MS = 10 };

static talk server;
static tls_files files;
static atomic_uint_fast64_t now_us = 1000000;

static uint64_t turned_clock(void) {
  return atomic_load(&now_us);
}

static int open_server(void **state) {
  tls_files_make(&files, "localhost");
  *state = talk_serve(&server, NULL, (weft_open_options){.kv_bytes = 8 << 20, .context = 512},
                      (weft_server_options){.connections = PLACES,
                                            .idle_seconds = IDLE_SECONDS,
                                            .clock_us = turned_clock,
                                            .tls_cert = files.cert,
                                            .tls_key = files.key});
  return 0;
}

static int close_all(void **state) {
  tls_files_remove(&files);
  return close_talk(state);
}

/* One request over a connection of its own; all that came until the server ended it. */
static weft_text ask(int version, const char *method, const char *path, const char *body, size_t n) {
  weft_text got = {0};
  tls_talk t = tls_connect(server.port, version);
  tls_send(&t, method, path, "Connection: close\r\n", body, n);
  (void)tls_read_until(&t, &got, "never said");
  assert_int_equal(SSL_get_shutdown(t.ssl), SSL_RECEIVED_SHUTDOWN); /* it said that this was all */
  tls_hang_up(&t);
  return got;
}

static double metric(const char *name) {
  weft_text got = ask(TLS1_3_VERSION, "GET", "/metrics", "", 0);
  double value = talk_metric_of(strstr(got.bytes, "\r\n\r\n") + 4, name);
  weft_text_free(&got);
  return value;
}

static double n_ended(const char *reason) {
  char name[96];
  (void)snprintf(name, sizeof name, "weft_http_connections_ended_total{reason=\"%s\"}", reason);
  return metric(name);
}

static void await_metric(const char *name, double value) {
  while (metric(name) != value) (void)poll(NULL, 0, 1);
}

static void everybody_is_served(void) {
  weft_text got = ask(TLS1_3_VERSION, "GET", "/health", "", 0);
  assert_non_null(strstr(got.bytes, "HTTP/1.1 200 "));
  weft_text_free(&got);
}

/* ---- what goes well ---- */

static const char short_run[] = "{\"prompt\":\"a\",\"max_tokens\":4,\"ignore_eos\":true,\"stream\":%s}";

static void answers_and_streams(void **state) {
  static const int versions[] = {TLS1_2_VERSION, TLS1_3_VERSION};
  (void)state;
  for (int i = 0; i < 4; i++) {
    char body[128];
    bool stream = i % 2 == 1;
    (void)snprintf(body, sizeof body, short_run, stream ? "true" : "false");
    weft_text got = ask(versions[i / 2], "POST", "/v1/completions", body, strlen(body));
    assert_non_null(strstr(got.bytes, "HTTP/1.1 200 "));
    assert_non_null(strstr(got.bytes, stream ? "data: [DONE]\n\n\r\n0\r\n\r\n" : "\"completion_tokens\":4"));
    weft_text_free(&got);
  }
}

/* Several requests on one connection; the session of another one is taken up again; the protocol is agreed on. */
static void one_connection_for_many_requests(void **state) {
  static const unsigned char protocols[] = "\x02h2\x08http/1.1";
  const unsigned char *chosen;
  unsigned n_chosen;
  (void)state;
  tls_talk t = tls_dial(server.port, TLS1_3_VERSION);
  assert_int_equal(SSL_set_alpn_protos(t.ssl, protocols, sizeof protocols - 1), 0);
  assert_int_equal(SSL_do_handshake(t.ssl), 1);
  SSL_get0_alpn_selected(t.ssl, &chosen, &n_chosen);
  assert_int_equal(n_chosen, 8);
  assert_memory_equal(chosen, "http/1.1", 8);
  for (int i = 0; i < 3; i++) {
    weft_text got = {0};
    tls_send(&t, "GET", "/health", "", "", 0);
    assert_true(tls_read_until(&t, &got, "{\"status\":\"ok\"}"));
    weft_text_free(&got);
  }
  SSL_SESSION *session = SSL_get1_session(t.ssl);
  assert_int_equal(SSL_shutdown(t.ssl), 0);
  tls_hang_up(&t);
  t = tls_dial(server.port, TLS1_3_VERSION);
  assert_int_equal(SSL_set_session(t.ssl, session), 1);
  assert_int_equal(SSL_do_handshake(t.ssl), 1);
  assert_int_equal(SSL_session_reused(t.ssl), 1);
  SSL_SESSION_free(session);
  tls_hang_up(&t);
}

static void a_large_body(void **state) {
  enum { N = 7 << 20 };
  char *body = malloc(N + 1);
  (void)state;
  int n = snprintf(body, N, "{\"prompt\":\"a\",\"max_tokens\":1,\"nobody_reads\":\"");
  memset(body + n, 'x', (size_t)(N - n));
  memcpy(body + N - 2, "\"}", 3);
  weft_text got = ask(TLS1_3_VERSION, "POST", "/v1/completions", body, N);
  assert_non_null(strstr(got.bytes, "HTTP/1.1 200 "));
  weft_text_free(&got);
  free(body);
  assert_true(metric("weft_http_body_bytes") == 0);
}

/* Every byte alone, in both directions. */
static void one_byte_at_a_time(void **state) {
  char piece[4096];
  bool asked = false;
  weft_text got = {0};
  (void)state;
  tls_talk t = tls_dial(server.port, TLS1_3_VERSION);
  BIO *in = BIO_new(BIO_s_mem()), *out = BIO_new(BIO_s_mem());
  SSL_set_bio(t.ssl, in, out);
  while (got.n == 0 || strstr(got.bytes, "{\"status\":\"ok\"}") == NULL) {
    if (SSL_do_handshake(t.ssl) == 1 && !asked) {
      tls_send(&t, "GET", "/health", "", "", 0);
      asked = true;
    }
    int n;
    while ((n = BIO_read(out, piece, 1)) == 1) assert_true(talk_write(t.fd, piece, 1));
    struct pollfd wait = {.fd = t.fd, .events = POLLIN};
    assert_int_equal(poll(&wait, 1, TALK_MS), 1);
    assert_int_equal(recv(t.fd, piece, 1, 0), 1);
    assert_int_equal(BIO_write(in, piece, 1), 1);
    if (asked && (n = SSL_read(t.ssl, piece, sizeof piece)) > 0) weft_text_append(&got, piece, (size_t)n);
  }
  weft_text_free(&got);
  tls_hang_up(&t);
}

/* ---- clients that leave ---- */

static const char long_run[] =
    "{\"prompt\":\"a\",\"max_tokens\":400,\"ignore_eos\":true,\"mode\":\"autoregressive\","
    "\"return_token_ids\":true,\"stream\":%s}";

/* By closing the socket, or by TLS's goodbye on a socket that stays open. */
static void left_in_mid_answer(void **state) {
  (void)state;
  for (int i = 0; i < 4; i++) {
    char body[256];
    bool stream = i % 2 == 1, says_goodbye = i / 2 == 1;
    weft_text got = {0};
    double left = metric("weft_http_clients_left_total"), tokens = metric("vllm:generation_tokens_total");
    (void)snprintf(body, sizeof body, long_run, stream ? "true" : "false");
    tls_talk t = tls_connect(server.port, TLS1_3_VERSION);
    tls_send(&t, "POST", "/v1/completions", "", body, strlen(body));
    if (stream) assert_true(tls_read_until(&t, &got, "data: "));
    while (metric("vllm:generation_tokens_total") <= tokens) (void)poll(NULL, 0, 1);
    if (says_goodbye) {
      assert_int_equal(SSL_shutdown(t.ssl), 0);
      await_metric("weft_http_clients_left_total", left + 1);
      tls_hang_up(&t);
    } else {
      tls_hang_up(&t);
      await_metric("weft_http_clients_left_total", left + 1);
    }
    await_metric("vllm:num_requests_running", 0);
    assert_true(metric("vllm:generation_tokens_total") < tokens + 400);
    weft_text_free(&got);
  }
}

/* ---- what is no TLS, or no end of it ---- */

static void plain_http_is_told(void **state) {
  (void)state;
  double before = n_ended("handshake");
  talk_answer a = talk_ask(server.port, "POST", "/v1/completions", "{}");
  assert_int_equal(a.code, 400);
  assert_non_null(strstr(a.body.bytes, "this port speaks TLS: ask with https://"));
  talk_answer_free(&a);
  assert_true(n_ended("handshake") == before + 1);
}

/* The socket is closed, by no deadline. Returns how many bytes came until then. */
static size_t await_close(int fd) {
  weft_text got = {0};
  while (talk_read(fd, &got, TALK_MS) > 0) continue;
  size_t n = got.n;
  weft_text_free(&got);
  return n;
}

static void what_is_no_tls_is_closed(void **state) {
  static const char *const words[] = {"\x16\x03\x01\xff\xff garbage", "SSH-2.0-OpenSSH_9.2\r\n", "\x80\x2e\x01\x00\x02",
                                      "\x17\x03\x03\x10"};
  (void)state;
  for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
    int fd = talk_dial(server.port);
    assert_true(talk_write(fd, words[i], 5));
    (void)shutdown(fd, SHUT_WR);
    assert_true(await_close(fd) < 64); /* an alert at most */
    (void)close(fd);
  }
  tls_talk t = tls_connect(server.port, TLS1_3_VERSION); /* and what is none any more */
  assert_true(talk_write(t.fd, "\x17\x03\x03\x00\x20 no record of this session, surely", 40));
  (void)await_close(t.fd);
  tls_hang_up(&t);
  everybody_is_served();
}

static void old_versions_and_renegotiation(void **state) {
  char byte;
  (void)state;
  tls_talk t = tls_dial(server.port, TLS1_1_VERSION);
  SSL_set_security_level(t.ssl, 0);
  assert_true(SSL_do_handshake(t.ssl) <= 0);
  tls_hang_up(&t);
  t = tls_connect(server.port, TLS1_2_VERSION);
  assert_int_equal(SSL_renegotiate(t.ssl), 1);
  (void)SSL_do_handshake(t.ssl);
  assert_true(SSL_read(t.ssl, &byte, 1) <= 0); /* the server says no, and this client takes that as the end */
  assert_int_equal(SSL_num_renegotiations(t.ssl), 1);
  assert_int_equal(SSL_renegotiate_pending(t.ssl), 1); /* asked for, and never done */
  tls_hang_up(&t);
  everybody_is_served();
}

/* Some key updates are a peer's right; a flood of them ends the session. */
static void key_updates(int n, tls_talk *t) {
  for (int i = 0; i < n; i++) {
    if (SSL_key_update(t->ssl, SSL_KEY_UPDATE_NOT_REQUESTED) != 1 || SSL_do_handshake(t->ssl) != 1) return;
  }
}

static void a_flood_of_key_updates_ends(void **state) {
  weft_text got = {0};
  (void)state;
  tls_talk t = tls_connect(server.port, TLS1_3_VERSION);
  key_updates(40, &t);
  tls_send(&t, "GET", "/health", "", "", 0);
  assert_true(tls_read_until(&t, &got, "{\"status\":\"ok\"}"));
  weft_text_free(&got);
  key_updates(400, &t);
  assert_false(tls_read_until(&t, &got, "nothing that comes"));
  weft_text_free(&got);
  tls_hang_up(&t);
  everybody_is_served();
}

/* The first n bytes of a handshake. */
static size_t begin_handshake(tls_talk *t, char *out, size_t n_max) {
  BIO *bio = BIO_new(BIO_s_mem());
  SSL_set_bio(t->ssl, BIO_new(BIO_s_mem()), bio);
  assert_true(SSL_do_handshake(t->ssl) <= 0);
  int n = BIO_read(bio, out, (int)n_max);
  assert_true(n > 100);
  return (size_t)n;
}

/* Four times as many as there are places: silent, within the first message, and after it. */
static void unfinished_handshakes_take_no_place(void **state) {
  (void)state;
  for (int kind = 0; kind < 3; kind++) {
    tls_talk t[4 * PLACES];
    for (int i = 0; i < 4 * PLACES; i++) {
      char hello[2048];
      t[i] = tls_dial(server.port, TLS1_3_VERSION);
      size_t n = begin_handshake(&t[i], hello, sizeof hello);
      (void)talk_write(t[i].fd, hello, kind == 0 ? 0 : kind == 1 ? n / 2 : n);
    }
    for (int i = 0; i < 4; i++) everybody_is_served();
    for (int i = 0; i < 4 * PLACES; i++) tls_hang_up(&t[i]);
  }
}

/* A byte for each second that passes. */
static void a_handshake_has_ten_seconds(void **state) {
  char hello[2048];
  weft_text got = {0};
  (void)state;
  double before = n_ended("handshake");
  tls_talk t = tls_dial(server.port, TLS1_3_VERSION);
  size_t n = begin_handshake(&t, hello, sizeof hello), seconds = 0;
  struct pollfd wait = {.fd = t.fd, .events = POLLIN};
  while (poll(&wait, 1, 0) == 0) {
    assert_true(seconds < n);
    (void)send(t.fd, hello + seconds++, 1, MSG_NOSIGNAL);
    atomic_fetch_add(&now_us, 1000000);
    (void)poll(NULL, 0, STEP_MS); /* lets the server look at it; that it does so now is not needed */
    if (seconds == n - 1) (void)poll(&wait, 1, TALK_MS);
  }
  assert_true(seconds >= 10);
  assert_int_equal(talk_read(t.fd, &got, TALK_MS), 0);
  assert_true(n_ended("handshake") == before + 1);
  weft_text_free(&got);
  tls_hang_up(&t);
}

/* ---- the certificate ---- */

static void shown_name(char *out, size_t n) {
  tls_talk t = tls_connect(server.port, TLS1_3_VERSION);
  X509 *cert = SSL_get1_peer_certificate(t.ssl);
  assert_non_null(cert);
  assert_true(X509_NAME_get_text_by_NID(X509_get_subject_name(cert), NID_commonName, out, (int)n) > 0);
  X509_free(cert);
  tls_hang_up(&t);
}

static void a_certificate_is_renewed(void **state) {
  char name[64];
  weft_error error = {{0}};
  weft_text got = {0};
  (void)state;
  shown_name(name, sizeof name);
  assert_string_equal(name, "localhost");
  tls_talk before = tls_connect(server.port, TLS1_3_VERSION);
  tls_files other;
  tls_files_make(&other, "another.example");
  assert_int_not_equal(weft_server_renew(server.server, files.cert, other.key, &error), WEFT_OK);
  assert_non_null(strstr(error.text, "this key does not belong to the certificate of --tls-cert"));
  shown_name(name, sizeof name);
  assert_string_equal(name, "localhost");
  assert_int_equal(weft_server_renew(server.server, other.cert, other.key, &error), WEFT_OK);
  shown_name(name, sizeof name);
  assert_string_equal(name, "another.example");
  tls_send(&before, "GET", "/health", "", "", 0);
  assert_true(tls_read_until(&before, &got, "{\"status\":\"ok\"}"));
  weft_text_free(&got);
  tls_hang_up(&before);
  tls_files_remove(&other);
}

static void refuse_open(const char *cert, const char *key, const char *words) {
  weft_server *none = NULL;
  weft_error error = {{0}};
  weft_server_options where = {.tls_cert = cert, .tls_key = key};
  assert_int_not_equal(weft_server_open(&where, server.runtime, &none, &error), WEFT_OK);
  assert_null(none);
  if (strstr(error.text, words) == NULL) fail_msg("'%s' does not say '%s'", error.text, words);
}

static void files_that_are_refused(void **state) {
  char locked[64];
  tls_files other;
  (void)state;
  tls_files_make(&other, "localhost");
  refuse_open(files.cert, NULL, "give --tls-cert and --tls-key");
  refuse_open(NULL, files.key, "give --tls-cert and --tls-key");
  refuse_open("/nowhere/cert", files.key, "--tls-cert /nowhere/cert: No such file or directory");
  refuse_open(files.cert, "/nowhere/key", "--tls-key /nowhere/key: No such file or directory");
  refuse_open(files.key, files.key, "holds no certificate in PEM");
  refuse_open(files.cert, files.cert, "holds no private key in PEM");
  refuse_open(files.cert, other.key, "this key does not belong to the certificate of --tls-cert");
  (void)snprintf(locked, sizeof locked, "%s/locked", other.folder);
  FILE *file = fopen(locked, "w");
  EVP_PKEY *key = EVP_EC_gen("P-256");
  char password[] = "password";
  assert_int_equal(PEM_write_PrivateKey(file, key, EVP_aes_128_cbc(), NULL, 0, NULL, password), 1);
  EVP_PKEY_free(key);
  assert_int_equal(fclose(file), 0);
  refuse_open(files.cert, locked, "the key is encrypted: store it without a password");
  (void)unlink(locked);
  tls_files_remove(&other);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(answers_and_streams),
      cmocka_unit_test(one_connection_for_many_requests),
      cmocka_unit_test(a_large_body),
      cmocka_unit_test(one_byte_at_a_time),
      cmocka_unit_test(left_in_mid_answer),
      cmocka_unit_test(plain_http_is_told),
      cmocka_unit_test(what_is_no_tls_is_closed),
      cmocka_unit_test(old_versions_and_renegotiation),
      cmocka_unit_test(a_flood_of_key_updates_ends),
      cmocka_unit_test(unfinished_handshakes_take_no_place),
      cmocka_unit_test(a_handshake_has_ten_seconds),
      cmocka_unit_test(files_that_are_refused),
      cmocka_unit_test(a_certificate_is_renewed),
  };
  return cmocka_run_group_tests(tests, open_server, close_all);
}
