/* SPDX-License-Identifier: MIT */
/* A server on a unix socket: requests, streams and clients that leave as over an address; who may connect; the file of
 * the socket, from a server that was killed to one that ends. */
#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/un.h>

#include "tests/support/tls_client.h"

static talk server;
static char folder[32], path[64], host[80];

static int open_server(void **state) {
  (void)snprintf(folder, sizeof folder, "/tmp/weft-socket-XXXXXX");
  assert_non_null(mkdtemp(folder));
  (void)snprintf(path, sizeof path, "%s/socket", folder);
  (void)snprintf(host, sizeof host, "unix:%s", path);
  const weft_open_options options = {.kv_bytes = 8 << 20, .context = 512};
  *state = talk_serve(&server, NULL, options, (weft_server_options){.host = host});
  return 0;
}

static int close_folder(void **state) {
  struct stat file;
  (void)close_talk(state);
  assert_int_not_equal(lstat(path, &file), 0); /* removed */
  assert_int_equal(rmdir(folder), 0);          /* and nothing else is left */
  return 0;
}

static int dial(void) {
  return talk_dial_named(path);
}

static talk_answer ask(const char *method, const char *url, const char *body) {
  return talk_ask_on(dial(), method, url, "", body);
}

static double metric(const char *name) {
  talk_answer a = ask("GET", "/metrics", "");
  double value = talk_metric_of(a.body.bytes, name);
  talk_answer_free(&a);
  return value;
}

static void answers_and_streams(void **state) {
  static const char *const bodies[] = {
      "{\"prompt\":\"a\",\"max_tokens\":4,\"ignore_eos\":true}",
      "{\"prompt\":\"a\",\"max_tokens\":4,\"ignore_eos\":true,\"stream\":true}",
  };
  (void)state;
  assert_true(weft_server_is_loopback(server.server));
  for (int i = 0; i < 2; i++) {
    talk_answer a = ask("POST", "/v1/completions", bodies[i]);
    assert_int_equal(a.code, 200);
    assert_true(a.complete);
    assert_non_null(strstr(a.body.bytes, i == 0 ? "\"completion_tokens\":4" : "data: [DONE]"));
    talk_answer_free(&a);
  }
}

/* No name leads here, so no name is looked at; what came through a proxy or from a page is still somebody else's. */
static void names_and_pages(void **state) {
  static const struct {
    const char *words;
    int code;
  } rows[] = {{"GET /v1/models HTTP/1.1\r\nHost: any.example\r\n\r\n", 200},
              {"GET /admin/pins HTTP/1.1\r\nHost: any.example\r\n\r\n", 200},
              {"GET /admin/pins HTTP/1.1\r\nHost: any.example\r\nX-Forwarded-For: 192.0.2.1\r\n\r\n", 403},
              {"GET /v1/models HTTP/1.1\r\nHost: any.example\r\nOrigin: http://other.example\r\n\r\n", 403},
              {"GET /v1/models HTTP/1.1\r\n\r\n", 400}};
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    int fd = dial();
    assert_true(talk_write(fd, rows[i].words, strlen(rows[i].words)));
    talk_answer a = talk_receive(fd);
    assert_int_equal(a.code, rows[i].code);
    talk_answer_free(&a);
    (void)close(fd);
  }
}

static void left_in_mid_answer(void **state) {
  static const char *const streams[] = {"false", "true"};
  (void)state;
  for (int i = 0; i < 2; i++) {
    char body[256];
    double left = metric("weft_http_clients_left_total"), tokens = metric("vllm:generation_tokens_total");
    (void)snprintf(body, sizeof body,
                   "{\"prompt\":\"a\",\"max_tokens\":400,\"ignore_eos\":true,\"mode\":\"autoregressive\","
                   "\"stream\":%s}",
                   streams[i]);
    int fd = dial();
    talk_send(fd, "POST", "/v1/completions", "", body, strlen(body));
    while (metric("vllm:generation_tokens_total") <= tokens) (void)poll(NULL, 0, 1);
    (void)close(fd);
    while (metric("weft_http_clients_left_total") != left + 1) (void)poll(NULL, 0, 1);
    while (metric("vllm:num_requests_running") != 0) (void)poll(NULL, 0, 1);
    assert_true(metric("vllm:generation_tokens_total") < tokens + 400);
  }
}

/* ---- the file ---- */

/* NULL: it opened. */
static const char *open_other(const char *where, uint32_t mode, weft_server **out) {
  static weft_error error;
  weft_server_options options = {.host = where, .socket_mode = mode};
  error.text[0] = 0;
  return weft_server_open(&options, server.runtime, out, &error) == WEFT_OK ? NULL : error.text;
}

static void who_may_connect(void **state) {
  static const uint32_t modes[] = {0, 0600, 0666};
  char other[80];
  struct stat file;
  (void)state;
  (void)snprintf(other, sizeof other, "unix:%s/other", folder);
  for (int i = 0; i < 3; i++) {
    weft_server *s = NULL;
    assert_null(open_other(other, modes[i], &s));
    assert_int_equal(lstat(other + 5, &file), 0);
    assert_true(S_ISSOCK(file.st_mode));
    assert_int_equal(file.st_mode & 0777, modes[i] == 0 ? 0660 : modes[i]);
    weft_server_close(s);
    assert_int_not_equal(lstat(other + 5, &file), 0);
  }
}

/* A socket with a name on which nobody listens any more. */
static void leave_behind(const char *name) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  (void)snprintf(address.sun_path, sizeof address.sun_path, "%s", name);
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
  assert_int_equal(listen(fd, 1), 0);
  (void)close(fd);
}

static void a_file_that_was_left_behind(void **state) {
  char other[80];
  struct stat file;
  weft_server *s = NULL;
  (void)state;
  (void)snprintf(other, sizeof other, "unix:%s/other", folder);
  leave_behind(other + 5);
  assert_null(open_other(other, 0, &s));
  assert_int_equal(unlink(other + 5), 0); /* another file has the name when the server ends: it stays */
  leave_behind(other + 5);
  weft_server_close(s);
  assert_int_equal(lstat(other + 5, &file), 0);
  assert_int_equal(unlink(other + 5), 0);
}

static void refuse_open(const char *where, const char *words) {
  weft_server *s = NULL;
  const char *line = open_other(where, 0, &s);
  assert_non_null(line);
  assert_null(s);
  if (strstr(line, words) == NULL) fail_msg("'%s' does not say '%s'", line, words);
}

static void files_that_are_refused(void **state) {
  char plain[80], longer[256];
  struct stat file;
  (void)state;
  refuse_open(host, "somebody answers there");
  answers_and_streams(state); /* and goes on to */
  (void)snprintf(plain, sizeof plain, "unix:%s/plain", folder);
  FILE *made = fopen(plain + 5, "w");
  assert_int_equal(fclose(made), 0);
  refuse_open(plain, "a file that is no socket is there");
  assert_int_equal(lstat(plain + 5, &file), 0);
  assert_int_equal(unlink(plain + 5), 0);
  refuse_open("unix:", "the path of a unix socket has 1 to 107 bytes");
  (void)snprintf(longer, sizeof longer, "unix:%s/%0200d", folder, 1);
  refuse_open(longer, "the path of a unix socket has 1 to 107 bytes");
  refuse_open("unix:/nowhere/socket", "--host unix:/nowhere/socket: No such file or directory");
}

/* Who has the lock of the folder begins alone: another server neither takes the name nor removes what is there. */
static void servers_begin_one_after_the_other(void **state) {
  char other[80];
  struct stat before, after;
  weft_server *s = NULL;
  (void)state;
  (void)snprintf(other, sizeof other, "unix:%s/other", folder);
  leave_behind(other + 5);
  assert_int_equal(lstat(other + 5, &before), 0);
  int lock = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  assert_int_equal(flock(lock, LOCK_EX), 0);
  refuse_open(other, "another program holds the lock of its folder");
  assert_int_equal(lstat(other + 5, &after), 0);
  assert_int_equal(before.st_ino, after.st_ino);
  (void)close(lock);
  assert_null(open_other(other, 0, &s));
  weft_server_close(s);
}

enum { RACERS = 6, RACES = 10 };

typedef struct racer {
  pthread_t thread;
  pthread_barrier_t *start;
  const char *where;
  weft_server *server;
  char line[512];
} racer;

static void *begin_server(void *self) {
  racer *r = self;
  weft_error error = {{0}};
  weft_server_options options = {.host = r->where};
  (void)pthread_barrier_wait(r->start);
  if (weft_server_open(&options, server.runtime, &r->server, &error) != WEFT_OK) {
    (void)snprintf(r->line, sizeof r->line, "%s", error.text);
  }
  return NULL;
}

/* Of servers that begin at once on a socket that was left behind exactly one gets it, and its name leads to it. */
static void one_of_many_gets_the_name(void **state) {
  char other[80];
  (void)state;
  (void)snprintf(other, sizeof other, "unix:%s/other", folder);
  for (int race = 0; race < RACES; race++) {
    pthread_barrier_t start;
    racer r[RACERS] = {{0}};
    int n = 0;
    leave_behind(other + 5);
    assert_int_equal(pthread_barrier_init(&start, NULL, RACERS), 0);
    for (int i = 0; i < RACERS; i++) {
      r[i].start = &start;
      r[i].where = other;
      assert_int_equal(pthread_create(&r[i].thread, NULL, begin_server, &r[i]), 0);
    }
    for (int i = 0; i < RACERS; i++) {
      assert_int_equal(pthread_join(r[i].thread, NULL), 0);
      n += r[i].server != NULL;
      if (r[i].server == NULL) assert_non_null(strstr(r[i].line, "somebody answers there"));
    }
    assert_int_equal(n, 1);
    (void)close(talk_dial_named(other + 5));
    for (int i = 0; i < RACERS; i++) weft_server_close(r[i].server);
    (void)pthread_barrier_destroy(&start);
  }
}

/* TLS goes over it, too. A client that wants new keys again and again, and takes none of the answers, loses its session
 * (api_tls has the limit); others are served. */
static void new_keys_without_end(void **state) {
  char other[80];
  weft_error error;
  weft_server *s = NULL;
  weft_text got = {0};
  tls_files files;
  int n = 0;
  (void)state;
  tls_files_make(&files, "localhost");
  (void)snprintf(other, sizeof other, "unix:%s/other", folder);
  weft_server_options options = {.host = other, .tls_cert = files.cert, .tls_key = files.key};
  assert_int_equal(weft_server_open(&options, server.runtime, &s, &error), WEFT_OK);
  tls_talk t = tls_begin(talk_dial_named(other + 5), TLS1_3_VERSION);
  assert_int_equal(SSL_do_handshake(t.ssl), 1);
  while (SSL_key_update(t.ssl, SSL_KEY_UPDATE_REQUESTED) == 1 && SSL_do_handshake(t.ssl) == 1)
    assert_true(n++ < 100000);
  tls_hang_up(&t);
  t = tls_begin(talk_dial_named(other + 5), TLS1_3_VERSION);
  assert_int_equal(SSL_do_handshake(t.ssl), 1);
  tls_send(&t, "GET", "/health", "", "", 0);
  assert_true(tls_read_until(&t, &got, "{\"status\":\"ok\"}"));
  weft_text_free(&got);
  tls_hang_up(&t);
  weft_server_close(s);
  tls_files_remove(&files);
}

static void the_plan_says_what_connections_hold(void **state) {
  weft_text plan = {0};
  (void)state;
  weft_server_plan(server.server, &plan);
  assert_non_null(strstr(plan.bytes,
                         "\nhttp     128.0 MiB at most for bodies being read, 64.0 MiB for answers that wait for their "
                         "clients, 256.0 MiB for 1024 connections\n"));
  assert_non_null(
      strstr(plan.bytes, "formats  at most 256.0 MiB of compiled ones that are kept, 256.0 MiB for each model\n"));
  assert_non_null(strstr(plan.bytes, "\nworkers  at most 4 times "));
  assert_non_null(strstr(plan.bytes, " MiB of a chat template's run\n"));
  weft_text_free(&plan);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(answers_and_streams),
                                     cmocka_unit_test(names_and_pages),
                                     cmocka_unit_test(left_in_mid_answer),
                                     cmocka_unit_test(who_may_connect),
                                     cmocka_unit_test(a_file_that_was_left_behind),
                                     cmocka_unit_test(files_that_are_refused),
                                     cmocka_unit_test(servers_begin_one_after_the_other),
                                     cmocka_unit_test(one_of_many_gets_the_name),
                                     cmocka_unit_test(new_keys_without_end),
                                     cmocka_unit_test(the_plan_says_what_connections_hold)};
  return cmocka_run_group_tests(tests, open_server, close_folder);
}
