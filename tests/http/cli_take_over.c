/* SPDX-License-Identifier: MIT */
/* An upgrade without a dropped request: a second server takes what the first one listens on, while streams run and
 * requests come; by a second start and by SIGUSR2, over TCP and a unix socket; what may not take over is refused, and
 * the first one goes on. */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "tests/support/amount.h"
#include "tests/support/child_program.h"

enum { N_STREAMS = 64, N_TOKENS = 24 };

static char folder[32], path[64], host[80], kept[64], rest[16384];

static int open_folder(void **state) {
  (void)state;
  (void)snprintf(folder, sizeof folder, "/tmp/weft-line-XXXXXX");
  assert_non_null(mkdtemp(folder));
  (void)snprintf(path, sizeof path, "%s/next", folder);
  (void)snprintf(host, sizeof host, "unix:%s/socket", folder);
  (void)snprintf(kept, sizeof kept, "%s/kept", folder);
  return 0;
}

/* Servers that end leave nothing. */
static int close_folder(void **state) {
  (void)state;
  (void)unlink(kept);
  assert_int_equal(rmdir(folder), 0);
  return 0;
}

#define MORE(...)         \
  (const char *const[]) { \
    __VA_ARGS__, NULL     \
  }

static program start_server(const char *const *more) {
  return spawn_program(MORE("serve", "-m", DEMO_AR_MODEL, "--backend", "cpu", "--threads", "1", "--json", "--kv-mib",
                            "16", "--context", "256", "--running", "64", "--take-over", path),
                       more);
}

static void await_ready(program *p) {
  json_t *root = await_object(p);
  p->port = (uint16_t)int_at(root, "port");
  json_decref(root);
}

/* ---- clients ------------------------------------------------------------------------------------------------ */

typedef struct client {
  pthread_t thread;
  uint16_t port; /* 0: the unix socket */
  uint32_t seed;
  bool keeps;              /* a second request on the same connection */
  _Atomic uint32_t *begun; /* counts clients whose stream has begun */
  char text[2][4096];
  bool whole[2];
} client;

static int dial(uint16_t port) {
  return port == 0 ? talk_dial_named(host + strlen("unix:")) : talk_dial(port);
}

static void print_request(char *out, size_t n, uint32_t seed, bool closes) {
  char body[256];
  (void)snprintf(body, sizeof body,
                 "{\"prompt\":\"Sort from low to high: %u 7 23\",\"max_tokens\":%d,\"ignore_eos\":true,"
                 "\"temperature\":0.9,\"seed\":%u,\"mode\":\"autoregressive\",\"stream\":true}",
                 seed, N_TOKENS, seed);
  (void)snprintf(out, n, "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %zu\r\n%s\r\n%s",
                 strlen(body), closes ? "Connection: close\r\n" : "", body);
}

/* The texts of all chunks of one answer, one behind another; true: up to its end. closed: the server closes. */
static bool read_stream(int fd, char *text, size_t n_max, _Atomic uint32_t *begun) {
  static const char end[] = "data: [DONE]", mark[] = "\"text\":\"";
  char bytes[65536];
  size_t n = 0, n_text = 0;
  bool counted = begun == NULL;
  while (n + 1 < sizeof bytes) {
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    if (poll(&wait, 1, TALK_MS) <= 0) break;
    ssize_t got = read(fd, bytes + n, sizeof bytes - 1 - n);
    if (got <= 0) break;
    n += (size_t)got;
    bytes[n] = 0;
    if (!counted && strstr(bytes, mark) != NULL) {
      atomic_fetch_add(begun, 1);
      counted = true;
    }
    if (strstr(bytes, end) != NULL && strstr(strstr(bytes, end), "0\r\n\r\n") != NULL) break;
  }
  bytes[n] = 0;
  if (!counted) atomic_fetch_add(begun, 1);
  for (const char *at = strstr(bytes, mark); at != NULL; at = strstr(at, mark)) {
    at += sizeof mark - 1;
    for (; *at != 0 && !(at[0] == '"' && at[-1] != '\\') && n_text + 1 < n_max; at++) text[n_text++] = *at;
  }
  text[n_text] = 0;
  return strstr(bytes, end) != NULL;
}

static void *run_client(void *self) {
  client *c = self;
  char request[512];
  int fd = dial(c->port);
  print_request(request, sizeof request, c->seed, !c->keeps);
  bool sent = write(fd, request, strlen(request)) == (ssize_t)strlen(request);
  c->whole[0] = sent && read_stream(fd, c->text[0], sizeof c->text[0], c->begun);
  if (c->keeps) { /* an open connection has its next request answered, whoever listens now */
    print_request(request, sizeof request, c->seed, false);
    sent = write(fd, request, strlen(request)) == (ssize_t)strlen(request);
    c->whole[1] = sent && read_stream(fd, c->text[1], sizeof c->text[1], NULL);
  }
  (void)close(fd);
  return NULL;
}

static void start_clients(client *c, uint16_t port, _Atomic uint32_t *begun) {
  for (uint32_t i = 0; i < N_STREAMS; i++) {
    c[i] = (client){.port = port, .seed = i % 8, .keeps = i % 4 == 0, .begun = begun};
    assert_int_equal(pthread_create(&c[i].thread, NULL, run_client, &c[i]), 0);
  }
}

static void end_clients(client *c) {
  for (uint32_t i = 0; i < N_STREAMS; i++) assert_int_equal(pthread_join(c[i].thread, NULL), 0);
}

/* All of them: the bytes of the first one of their seed. */
static void check_clients(const client *c, const client *right) {
  for (uint32_t i = 0; i < N_STREAMS; i++) {
    if (!c[i].whole[0] || (c[i].keeps && !c[i].whole[1])) fail_msg("the stream of client %u was cut", i);
    assert_true(strlen(c[i].text[0]) > 8);
    assert_string_equal(c[i].text[0], right[i % 8].text[0]);
    if (c[i].keeps) assert_string_equal(c[i].text[1], right[i % 8].text[0]);
  }
}

static void one_round(uint16_t port, client *c) {
  static _Atomic uint32_t begun;
  start_clients(c, port, &begun);
  end_clients(c);
}

static client right[N_STREAMS], during[N_STREAMS], after[N_STREAMS];

static void take_over_under_streams(bool over_unix) {
  _Atomic uint32_t begun = 0;
  const char *const *const more = over_unix ? MORE("--host", host) : MORE("--port", "0");
  program first = start_server(more);
  await_ready(&first);
  uint16_t port = over_unix ? 0 : first.port;
  one_round(port, right);
  check_clients(right, right);
  start_clients(during, port, &begun);
  while (atomic_load(&begun) < N_STREAMS / 2) (void)usleep(1000);
  program second = start_server(more);
  await_ready(&second);
  if (!over_unix) assert_int_equal(second.port, first.port);
  end_clients(during);
  check_clients(during, right);
  end_program(&first, 0, rest, sizeof rest); /* by itself */
  one_round(port, after);
  check_clients(after, right);
  end_program(&second, SIGTERM, rest, sizeof rest);
}

/* ---- what goes over besides ---------------------------------------------------------------------------------- */

static const char ask_stored[] = "{\"input\":\"What is 2 + 3?\",\"max_output_tokens\":8,\"mode\":\"autoregressive\"}";

static char *id_of_answer(talk_answer a) {
  json_t *root = json_loads(a.body.bytes, 0, NULL);
  if (a.code != 200 || root == NULL) fail_msg("gave %d: %s", a.code, a.body.bytes);
  char *id = strdup(text_at(root, "id"));
  json_decref(root);
  talk_answer_free(&a);
  return id;
}

static int code_of(uint16_t port, const char *method, const char *id) {
  char name[160];
  (void)snprintf(name, sizeof name, "/v1/responses/%s", id);
  talk_answer a = talk_ask(port, method, name, "");
  int code = a.code;
  talk_answer_free(&a);
  return code;
}

/* A connection that this server has accepted. */
static int dial_answered(uint16_t port) {
  int fd = talk_dial(port);
  talk_send(fd, "GET", "/health", "", "", 0);
  talk_answer a = talk_receive(fd);
  assert_int_equal(a.code, 200);
  talk_answer_free(&a);
  return fd;
}

static json_int_t n_pins(uint16_t port) {
  json_t *root = talk_json(port, "/admin/pins", NULL);
  json_int_t n = (json_int_t)json_array_size(at(root, "pins"));
  json_decref(root);
  return n;
}

/* Pages of memory that a process has; 0: none any more. */
static long pages_of(pid_t pid) {
  char name[64];
  long n = 0;
  (void)snprintf(name, sizeof name, "/proc/%d/statm", (int)pid);
  FILE *file = fopen(name, "re");
  if (file == NULL || fscanf(file, "%ld", &n) != 1) n = 0;
  if (file != NULL) (void)fclose(file);
  return n;
}

/* The second one waits for the memory of the first: that has ended when it is ready, and nobody was turned away. What
 * both would need together is never there. */
static void the_second_one_may_wait(void **state) {
  (void)state;
  _Atomic uint32_t begun = 0;
  program first = start_server(MORE("--port", "0"));
  await_ready(&first);
  one_round(first.port, right);
  char *early = id_of_answer(talk_ask(first.port, "POST", "/v1/responses", ask_stored));
  start_clients(during, first.port, &begun);
  while (atomic_load(&begun) < N_STREAMS / 2) (void)usleep(1000);
  program second = start_server(MORE("--port", "0", "--take-over-after"));
  await_ready(&second);
  int how;
  assert_int_equal(pages_of(first.pid), 0); /* its memory was given back before the second one was ready */
  assert_int_equal(waitpid(first.pid, &how, 0), first.pid);
  assert_true(WIFEXITED(how) && WEXITSTATUS(how) == 0);
  (void)close(first.out);
  (void)close(first.err);
  end_clients(during);
  check_clients(during, right);
  one_round(second.port, after);
  check_clients(after, right);
  assert_int_equal(code_of(second.port, "GET", early), 200);
  free(early);
  end_program(&second, SIGTERM, rest, sizeof rest);
  program p = spawn_program(MORE("serve", "-m", DEMO_AR_MODEL), MORE("--take-over-after"));
  how = await_end(&p, 0, rest, sizeof rest);
  assert_true(WIFEXITED(how) && WEXITSTATUS(how) != 0);
  assert_non_null(strstr(rest, "--take-over SOCKET says from whom"));
}

/* The next version computes otherwise, as other instructions do: no stream is cut, and it has no prefixes. */
static void the_next_one_may_compute_otherwise(void **state) {
  (void)state;
  _Atomic uint32_t begun = 0;
  const char *const *const keeps =
      MORE("--port", "0", "--host-mib", "4", "--spill-file", kept, "--spill-mib", "8", "--keep", "default");
  program first = start_server(keeps);
  await_ready(&first);
  one_round(first.port, right);
  json_decref(talk_json(first.port, "/admin/prefixes/save", "{}"));
  start_clients(during, first.port, &begun);
  while (atomic_load(&begun) < N_STREAMS / 2) (void)usleep(1000);
  program second = start_server(MORE("--port", "0", "--host-mib", "4", "--spill-file", kept, "--spill-mib", "8",
                                     "--keep", "default", "--isa", "portable", "--else-anew"));
  await_ready(&second);
  end_clients(during);
  check_clients(during, right);
  end_program(&first, 0, rest, sizeof rest);
  talk_check(talk_ask(second.port, "GET", "/health", ""), 200, "\"ok\"");
  end_program(&second, SIGTERM, rest, sizeof rest);
  if (strstr(rest, "--else-anew: the file begins anew") == NULL)
    print_message("there are no other instructions here\n");
}

static void streams_over_tcp_are_whole(void **state) {
  (void)state;
  take_over_under_streams(false);
}

static void streams_over_a_unix_socket_are_whole(void **state) {
  (void)state;
  take_over_under_streams(true);
}

static json_int_t process_of(uint16_t port) {
  talk_answer a = talk_ask(port, "GET", "/metrics", "");
  json_int_t started = (json_int_t)(talk_metric_of(a.body.bytes, "process_start_time_seconds") * 100);
  talk_answer_free(&a);
  return started;
}

/* SIGUSR2 starts the same command line again; and once more from the second one. The third one is nobody's child here,
 * so it is ended by the number that the manager is told. */
static void a_signal_starts_the_next_one(void **state) {
  (void)state;
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  char manager[80], word[256];
  int main_pid = 0;
  (void)snprintf(manager, sizeof manager, "%s/manager", folder);
  memcpy(address.sun_path, manager, strlen(manager));
  int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  assert_int_equal(bind(fd, (const struct sockaddr *)&address, sizeof address), 0);
  assert_int_equal(setenv("NOTIFY_SOCKET", manager, 1), 0);
  program first = start_server(MORE("--port", "0"));
  (void)unsetenv("NOTIFY_SOCKET");
  await_ready(&first);
  json_int_t before = process_of(first.port);
  assert_int_equal(kill(first.pid, SIGUSR2), 0);
  while (main_pid == 0) {
    ssize_t n = recv(fd, word, sizeof word - 1, 0);
    assert_true(n > 0);
    word[n] = 0;
    if (strncmp(word, "MAINPID=", 8) == 0) main_pid = atoi(word + 8);
  }
  assert_int_not_equal(main_pid, first.pid);
  int how;
  assert_int_equal(waitpid(first.pid, &how, 0), first.pid);
  assert_true(WIFEXITED(how) && WEXITSTATUS(how) == 0);
  assert_int_not_equal(process_of(first.port), before);
  assert_int_equal(kill(main_pid, SIGTERM), 0);
  while (kill(main_pid, 0) == 0) (void)usleep(2000); /* its parent has ended: the system takes it away */
  (void)close(first.out);
  (void)close(first.err);
  (void)close(fd);
  (void)unlink(manager);
}

static void refused(const char *const *more, const char *words) {
  program p = start_server(more);
  int how = await_end(&p, 0, rest, sizeof rest);
  assert_true(WIFEXITED(how) && WEXITSTATUS(how) != 0);
  if (strstr(rest, words) == NULL) fail_msg("'%s' is not said: %s", words, rest);
}

/* What servers of one line say to each other (hand_over.c). */
typedef struct word_of_line {
  uint32_t word, form, question;
  int32_t status;
  char text[480];
} word_of_line;

/* One question, and whether an answer came. A descriptor that comes with it is let go by the system. */
static bool asks_line(int fd, uint32_t question, const char *text) {
  word_of_line m = {.word = 0x746f6677, .form = 2, .question = question}, answer;
  (void)snprintf(m.text, sizeof m.text, "%s", text);
  struct pollfd wait = {.fd = fd, .events = POLLIN};
  return write(fd, &m, sizeof m) == (ssize_t)sizeof m && poll(&wait, 1, TALK_MS) > 0 &&
         recv(fd, &answer, sizeof answer, MSG_WAITALL) == (ssize_t)sizeof answer && answer.status == 0;
}

/* A word that only the server which took over may say. */
static bool is_hung_up_on_when_it_asks_early(void) {
  int fd = talk_dial_named(path);
  bool answered = asks_line(fd, 6, "");
  (void)close(fd);
  return !answered;
}

/* The next server is killed after each of its questions but the last: the first one answers, and pins as before. */
static void next_ones_that_die_harm_nobody(uint16_t port) {
  static const uint32_t questions[] = {1, 2, 5, 5, 3};
  for (size_t n = 1; n <= sizeof questions / sizeof *questions; n++) {
    int fd = talk_dial_named(path);
    for (size_t i = 0; i < n; i++) assert_true(asks_line(fd, questions[i], i == 0 ? "127.0.0.1 port 0" : ""));
    (void)close(fd);
    talk_check(talk_ask(port, "GET", "/health", ""), 200, "\"ok\"");
    talk_answer pin = {.code = 503}; /* while the first one has not seen that the other is gone */
    for (int tries = 0; pin.code == 503 && tries < 1000; tries++) {
      (void)usleep(2000);
      talk_answer_free(&pin);
      pin = talk_ask(port, "POST", "/admin/pins",
                     "{\"text\":\"Sort from low to high, please: 12 7 9 81 23 44 5 6 17 8\"}");
    }
    if (pin.code != 200) fail_msg("%zu questions: %d %s", n, pin.code, pin.body.bytes);
    json_t *root = json_loads(pin.body.bytes, 0, NULL);
    char name[64];
    (void)snprintf(name, sizeof name, "/admin/pins/%d", (int)int_at(root, "id"));
    talk_check(talk_ask(port, "DELETE", name, ""), 200, "");
    json_decref(root);
    talk_answer_free(&pin);
  }
}

/* Whatever becomes of the second one, the first one answers as before; and what a good one gets. */
static void who_may_not_take_over_harms_nobody(void **state) {
  (void)state;
  program first = start_server(
      MORE("--port", "0", "--host-mib", "4", "--spill-file", kept, "--spill-mib", "8", "--keep", "default"));
  await_ready(&first);
  while (access(path, F_OK) != 0) (void)usleep(2000); /* it may answer requests before */
  assert_int_equal(chmod(folder, 0777) | chmod(path, 0666), 0);
  assert_true(stranger_is_hung_up_on(path));
  assert_true(is_hung_up_on_when_it_asks_early());
  refused(MORE("--port", "1"), "it listens on 127.0.0.1 port 0: give the same --host and --port");
  refused(MORE("--port", "0", "--kv-events", "tcp://127.0.0.1:0"), "--take-over and --kv-events");
  refused(MORE("--port", "0", "-m", "/no/such/file.gguf"), "/no/such/file.gguf");
  talk_answer a = talk_ask(first.port, "GET", "/health", "");
  assert_int_equal(a.code, 200);
  talk_answer_free(&a);
  json_decref(talk_json(first.port, "/admin/prefixes/save", "{}"));
  next_ones_that_die_harm_nobody(first.port);
  json_decref(talk_json(first.port, "/admin/pins",
                        "{\"text\":\"Sort these numbers from low to high, please: 12 7 9 81 23 44 5 6 17 8 \"}"));
  char *early = id_of_answer(talk_ask(first.port, "POST", "/v1/responses", ask_stored));
  int asks = dial_answered(first.port), deletes = dial_answered(first.port);
  int silent = talk_dial_named(path); /* keeps nobody from taking over */
  program second = start_server(
      MORE("--port", "0", "--host-mib", "4", "--spill-file", kept, "--spill-mib", "8", "--keep", "default"));
  await_ready(&second); /* the first one has let go of the file */
  (void)close(silent);
  assert_int_equal(code_of(second.port, "GET", early), 200);
  assert_int_equal(n_pins(second.port), 1);
  char name[160];
  (void)snprintf(name, sizeof name, "/v1/responses/%s", early);
  talk_check(talk_ask_on(deletes, "DELETE", name, "", ""), 200, early); /* the first one answers */
  char *late = id_of_answer(talk_ask_on(asks, "POST", "/v1/responses", "", ask_stored));
  end_program(&first, 0, rest, sizeof rest);
  while (code_of(second.port, "GET", late) != 200 || code_of(second.port, "GET", early) != 404) (void)usleep(2000);
  free(early);
  free(late);
  json_decref(talk_json(second.port, "/admin/prefixes/save", "{}"));
  end_program(&second, SIGTERM, rest, sizeof rest);
  pid_t stranger = listen_as_stranger(path);
  if (stranger != 0) refused(MORE("--port", "0"), "another user's server listens there");
  end_stranger(stranger);
  (void)unlink(path);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(streams_over_tcp_are_whole, open_folder, close_folder),
      cmocka_unit_test_setup_teardown(streams_over_a_unix_socket_are_whole, open_folder, close_folder),
      cmocka_unit_test_setup_teardown(the_next_one_may_compute_otherwise, open_folder, close_folder),
      cmocka_unit_test_setup_teardown(the_second_one_may_wait, open_folder, close_folder),
      cmocka_unit_test_setup_teardown(a_signal_starts_the_next_one, open_folder, close_folder),
      cmocka_unit_test_setup_teardown(who_may_not_take_over_harms_nobody, open_folder, close_folder)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
