/* SPDX-License-Identifier: MIT */
/* Who is served and as what: keys and tenants, several models; and `weft serve` itself as a
 * process: where it listens, a port in use, signals, exit codes. */
#include <fcntl.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "tests/support/http_conversation.h"

extern char **environ;

#define CHAT        "/v1/chat/completions"
#define COMPLETIONS "/v1/completions"
#define USER        "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"max_tokens\":2"

/* ---- keys
 * -------------------------------------------------------------------------------------------------- */

static const char keys_text[] = "# who\nsk-red red\n\nsk-blue  blue\r\nsk-red-2\tred\nsk-op operator\n";

static int code_as(uint16_t port, const char *header, const char *method, const char *path, const char *body) {
  char challenge[32];
  talk_answer a = talk_ask_as(port, method, path, header, body);
  int code = a.code;
  if (code == 401) {
    assert_non_null(strstr(a.body.bytes, "authentication_error"));
    assert_null(strstr(a.body.bytes, "sk-"));
    assert_string_equal(talk_header(&a, "WWW-Authenticate", challenge, sizeof challenge), "Bearer");
  }
  talk_answer_free(&a);
  return code;
}

static json_int_t cached_as(uint16_t port, const char *header, const char *body) {
  talk_answer a = talk_ask_as(port, "POST", COMPLETIONS, header, body);
  assert_int_equal(a.code, 200);
  json_t *root = json_loads(a.body.bytes, 0, NULL);
  json_int_t n = int_at(root, "usage.prompt_tokens_details.cached_tokens");
  json_decref(root);
  talk_answer_free(&a);
  return n;
}

static void await_words(uint16_t port, const char *header, const char *words) {
  uint64_t until = weft_clock_us() + (uint64_t)TALK_MS * 1000;
  for (;;) {
    talk_answer a = talk_ask_as(port, "GET", "/metrics", header, "");
    bool there = strstr(a.body.bytes, words) != NULL;
    talk_answer_free(&a);
    if (there) return;
    if (weft_clock_us() > until) fail_msg("/metrics never says '%s'", words);
    (void)usleep(5000);
  }
}

/* Who sends no key is a tenant of its own, with 100 tokens a minute: a request that takes all of them makes the next
 * wait until the bucket is full again, and that one is told how long. Should a minute pass between the two, there is
 * another. */
static void test_limits_of_a_tenant(void **state) {
  static const char text[] = "sk-op operator weight=3\n- anybody class=low tokens-per-minute=100\n";
  static const char ask[] = "{\"prompt\":[5,6,7,8],\"max_tokens\":96,\"ignore_eos\":true,\"mode\":\"autoregressive\"}";
  static const char operator_key[] = "Authorization: Bearer sk-op\r\n";
  talk server;
  (void)state;
  talk_serve(&server, text, (weft_open_options){.kv_bytes = 8 << 20, .context = 512}, (weft_server_options){0});
  char retry[16], line[128];
  int n_answered = 0;
  talk_answer a = talk_ask_as(server.port, "POST", COMPLETIONS, "", ask);
  for (; a.code == 200; n_answered++) {
    talk_answer_free(&a);
    a = talk_ask_as(server.port, "POST", COMPLETIONS, "", ask);
  }
  assert_true(n_answered >= 1);
  assert_int_equal(a.code, 429);
  long seconds = strtol(talk_header(&a, "Retry-After", retry, sizeof retry), NULL, 10);
  assert_in_range(seconds, 1, 60); /* 100 tokens come in 60 s */
  assert_non_null(strstr(a.body.bytes, "100 tokens a minute"));
  assert_non_null(strstr(a.body.bytes, "\"type\":\"tokens\",\"param\":null,\"code\":\"rate_limit_exceeded\""));
  talk_answer_free(&a);
  a = talk_ask_as(server.port, "POST", COMPLETIONS, "", "{\"prompt\":[5],\"max_tokens\":100}");
  assert_int_equal(a.code, 400); /* never; a program that shortened its conversation would shorten it in vain */
  assert_non_null(strstr(a.body.bytes, "\"limit_exceeded\""));
  assert_null(strstr(a.body.bytes, "context"));
  talk_answer_free(&a);
  assert_int_equal(code_as(server.port, "", "GET", "/metrics", ""), 403);
  assert_int_equal(code_as(server.port, operator_key, "POST", COMPLETIONS, ask), 200);
  await_words(server.port, operator_key, "weft_tenant_refused_total{tenant=\"anybody\",reason=\"tokens\"} 1\n");
  (void)snprintf(line, sizeof line, "weft_tenant_completion_tokens_total{tenant=\"anybody\"} %d\n", 96 * n_answered);
  await_words(server.port, operator_key, line);
  await_words(server.port, operator_key, "weft_tenant_requests_running{tenant=\"operator\"} 0\n");
  await_words(server.port, operator_key, "weft_tenant_queue_seconds_count{tenant=\"operator\"} 1\n");
  talk_close(&server);
}

/* Where all keys are of one tenant, as those of --api-key are, nobody else's counts are to be hidden from them; what
 * changes the server stays the operator's. */
static void test_counts_of_the_only_tenant(void **state) {
  static const char key[] = "Authorization: Bearer sk-a\r\n";
  talk server;
  (void)state;
  talk_serve(&server, "sk-a default\nsk-b default\n", (weft_open_options){0}, (weft_server_options){0});
  assert_int_equal(code_as(server.port, "", "GET", "/metrics", ""), 401);
  assert_int_equal(code_as(server.port, "Authorization: Bearer sk-c\r\n", "GET", "/metrics", ""), 401);
  assert_int_equal(code_as(server.port, key, "GET", "/metrics", ""), 200);
  assert_int_equal(code_as(server.port, key, "GET", "/load", ""), 200);
  assert_int_equal(code_as(server.port, key, "GET", "/admin/trace", ""), 403);
  assert_int_equal(code_as(server.port, key, "POST", "/reset_prefix_cache", ""), 403);
  talk_close(&server);
}

static void test_keys_and_tenants(void **state) {
  talk server;
  (void)state;
  talk_serve(&server, keys_text, (weft_open_options){.kv_bytes = 8 << 20, .context = 512}, (weft_server_options){0});
  static const char *const bad[] = {"",
                                    "Authorization: Bearer \r\n",
                                    "Authorization: Bearer sk-re\r\n",
                                    "Authorization: Bearer sk-redd\r\n",
                                    "Authorization: Basic sk-red\r\n",
                                    "Authorization: sk-red\r\n"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    assert_int_equal(code_as(server.port, bad[i], "POST", CHAT, "{" USER "}"), 401);
    assert_int_equal(code_as(server.port, bad[i], "GET", "/v1/models", ""), 401);
    assert_int_equal(code_as(server.port, bad[i], "POST", "/tokenize", "{\"prompt\":\"a\"}"), 401);
    assert_int_equal(code_as(server.port, bad[i], "GET", "/health", ""), 200); /* open to probes */
    assert_int_equal(code_as(server.port, bad[i], "GET", "/metrics", ""), 401);
    assert_int_equal(code_as(server.port, bad[i], "GET", "/admin/trace", ""), 401);
  }
  static const char *const good[] = {"Authorization: Bearer sk-red\r\n", "authorization: bearer sk-blue\r\n",
                                     "Authorization: Bearer sk-red-2\r\n"};
  for (size_t i = 0; i < 3; i++) assert_int_equal(code_as(server.port, good[i], "POST", CHAT, "{" USER "}"), 200);
  /* what one tenant cached, the other does not see; another key of the same tenant does */
  weft_text body = {0};
  weft_text_puts(&body, "{\"max_tokens\":1,\"prompt\":\"");
  for (int i = 0; i < 60; i++) weft_text_printf(&body, "frog %d, ", i);
  weft_text_puts(&body, "\"}");
  assert_int_equal(cached_as(server.port, good[0], body.bytes), 0);
  assert_true(cached_as(server.port, good[2], body.bytes) > 0);
  assert_int_equal(cached_as(server.port, good[1], body.bytes), 0);
  weft_text_free(&body);
  /* only the operator sees what all do */
  static const char operator_key[] = "Authorization: Bearer sk-op\r\n";
  assert_int_equal(code_as(server.port, good[0], "GET", "/metrics", ""), 403);
  assert_int_equal(code_as(server.port, good[0], "GET", "/admin/trace", ""), 403);
  assert_int_equal(code_as(server.port, operator_key, "GET", "/admin/trace", ""), 200);
  /* counters of a step appear a moment after its answers */
  await_words(server.port, operator_key, "weft_tenant_requests_total{tenant=\"red\"} 4\n");
  await_words(server.port, operator_key, "weft_tenant_requests_total{tenant=\"blue\"} 2\n");
  talk_close(&server);
}

/* ---- models
 * ------------------------------------------------------------------------------------------------- */

static void test_two_models(void **state) {
  static const char *const models[] = {DEMO_MODEL, DEMO_AR_MODEL};
  const weft_open_options options = {.models = models, .n_models = 2, .kv_bytes = 8 << 20, .context = 512};
  talk server;
  (void)state;
  talk_serve(&server, NULL, options, (weft_server_options){0});
  static const char *const names[] = {"weft-demo", "weft-demo-ar"};
  json_t *list = talk_json(server.port, "/v1/models", NULL);
  assert_int_equal(json_array_size(at(list, "data")), 2);
  json_decref(list);
  for (int i = 0; i < 2; i++) {
    char body[256];
    (void)snprintf(body, sizeof body, "{\"model\":\"%s\"," USER "}", names[i]);
    json_t *root = talk_json(server.port, CHAT, body);
    assert_string_equal(text_at(root, "model"), names[i]);
    assert_true((int_at(root, "usage.completion_tokens_details.canvases") > 0) == (i == 0)); /* auto */
    json_decref(root);
  }
  talk_answer a = talk_ask(server.port, "POST", CHAT, "{\"model\":\"gpt-5\"," USER "}");
  assert_int_equal(a.code, 404);
  assert_non_null(strstr(a.body.bytes, "model_not_found"));
  assert_non_null(strstr(a.body.bytes, "gpt-5"));
  talk_answer_free(&a);
  talk_check(talk_ask(server.port, "POST", "/tokenize", "{\"model\":\"gpt-5\",\"prompt\":\"a\"}"), 404, "");
  static const char meant[] = "did you mean 'weft-demo'?";
  talk_check(talk_ask(server.port, "POST", CHAT, "{\"model\":\"weft-dmeo\"," USER "}"), 404, meant);
  talk_check(talk_ask(server.port, "GET", "/v1/models/weft_demos", ""), 404, meant);
  talk_check(talk_ask(server.port, "POST", CHAT, "{\"model\":\"weft-demo-ar\",\"mode\":\"diffusion\"," USER "}"), 400,
             "no canvas");
  talk_grows(server.port, "weft_switches_total", 0);
  talk_close(&server);
}

/* A model without a chat template answers prompts, and says why it does not chat. */
static void test_model_without_template(void **state) {
  static const char *const models[] = {TINY_MODEL};
  const weft_open_options options = {
      .models = models, .n_models = 1, .backend = "ref", .kv_bytes = 1 << 20, .context = 128};
  talk server;
  (void)state;
  talk_serve(&server, NULL, options, (weft_server_options){0});
  json_decref(talk_json(server.port, COMPLETIONS, "{\"model\":\"anything\",\"prompt\":[5,6,7],\"max_tokens\":4}"));
  talk_check(talk_ask(server.port, "POST", CHAT, "{" USER "}"), 400, "no chat template");
  talk_close(&server);
}

/* ---- the program
 * ----------------------------------------------------------------------------------------------- */

typedef struct program {
  pid_t pid;
  int out, err; /* what it prints */
  uint16_t port;
} program;

/* before: words that stand before the program's, up to NULL. */
static program launch_by(const char *const *before, const char *const *more) {
  static const char *const first[] = {
      WEFT_BINARY_DIR "/weft", "serve", "-q", "--kv-mib", "4", "--context", "512", "--threads", "1", NULL};
  const char *const *lists[] = {before, first, more}, *args[32] = {0};
  int n = 0, out[2], err[2];
  program p = {0};
  for (int i = 0; i < 3; i++) {
    for (const char *const *word = lists[i]; *word != NULL && n < 31; word++) args[n++] = *word;
  }
  assert_int_equal(pipe2(out, O_CLOEXEC), 0);
  assert_int_equal(pipe2(err, O_CLOEXEC), 0);
  posix_spawn_file_actions_t actions;
  (void)posix_spawn_file_actions_init(&actions);
  (void)posix_spawn_file_actions_adddup2(&actions, out[1], 1);
  (void)posix_spawn_file_actions_adddup2(&actions, err[1], 2);
  int code = posix_spawn(&p.pid, args[0], &actions, NULL, (char *const *)args, environ);
  if (code != 0) fail_msg("%s: %s", args[0], strerror(code));
  (void)posix_spawn_file_actions_destroy(&actions);
  (void)close(out[1]);
  (void)close(err[1]);
  p.out = out[0];
  p.err = err[0];
  return p;
}

static program launch(const char *const *more) {
  static const char *const none[] = {NULL};
  return launch_by(none, more);
}

static void read_line(int fd, char *line, size_t n_max) {
  size_t n = 0;
  struct pollfd wait = {.fd = fd, .events = POLLIN};
  while (n + 1 < n_max && poll(&wait, 1, TALK_MS) > 0 && read(fd, line + n, 1) == 1 && line[n] != '\n') n++;
  line[n] = 0;
}

/* From the object of --json. */
static void read_port(program *p) {
  char line[512];
  read_line(p->out, line, sizeof line);
  json_t *root = json_loads(line, 0, NULL);
  if (root == NULL) {
    read_line(p->err, line, sizeof line);
    fail_msg("serve did not say where it listens: %s", line);
  }
  p->port = (uint16_t)int_at(root, "port");
  assert_string_equal(text_at(root, "models.0"), "weft-demo");
  json_decref(root);
}

static void await_port(program *p) {
  char line[512];
  read_port(p);
  do {
    read_line(p->err, line, sizeof line);
  } while (line[0] != 0 && strncmp(line, "weft: serving", 13) != 0); /* -v prints the plan first */
  char wanted[128];
  (void)snprintf(wanted, sizeof wanted, "weft: serving weft-demo on http://127.0.0.1:%u", p->port);
  assert_string_equal(line, wanted);
}

/* Its exit code; -1 when it does not end. */
static int await_end(program *p) {
  uint64_t until = weft_clock_us() + TALK_MS * 1000u;
  int how = 0;
  while (waitpid(p->pid, &how, WNOHANG) == 0) {
    if (weft_clock_us() > until) {
      (void)kill(p->pid, SIGKILL);
      (void)waitpid(p->pid, &how, 0);
      return -1;
    }
    (void)poll(NULL, 0, 2);
  }
  (void)close(p->out);
  (void)close(p->err);
  return WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how);
}

static int stream_until_first_event(uint16_t port) {
  const char *body =
      "{\"prompt\":\"a\",\"ignore_eos\":true,\"max_tokens\":480,\"mode\":\"autoregressive\","
      "\"stream\":true,"
      "\"return_token_ids\":true}";
  weft_text got = {0};
  int fd = talk_begin(port, COMPLETIONS, body);
  /* looked at, not taken: the whole answer is read later */
  char bytes[512];
  while (recv(fd, bytes, sizeof bytes, MSG_PEEK) < 400) (void)poll(NULL, 0, 1);
  weft_text_free(&got);
  return fd;
}

static void test_signal_drains(void **state) {
  static const int signals[] = {SIGTERM, SIGINT};
  (void)state;
  for (int i = 0; i < 2; i++) {
    program p =
        launch((const char *const[]){"-m", DEMO_MODEL, "--port", "0", "--json", "--drain-seconds", "3600", NULL});
    await_port(&p);
    int fd = stream_until_first_event(p.port);
    assert_int_equal(kill(p.pid, signals[i]), 0);
    talk_answer a = talk_receive(fd);
    assert_true(a.complete); /* what was running ended as it would */
    assert_non_null(strstr(a.body.bytes, "\"finish_reason\":\"length\""));
    talk_answer_free(&a);
    (void)close(fd);
    assert_int_equal(await_end(&p), 0);
  }
}

/* With --lame-duck-seconds what comes after the signal is answered, while /health says that the server leaves; the next
 * signal drains. */
static void test_lame_duck(void **state) {
  (void)state;
  program p = launch((const char *const[]){"-m", DEMO_MODEL, "--port", "0", "--json", "--lame-duck-seconds", "3600",
                                           "--drain-seconds", "3600", NULL});
  await_port(&p);
  assert_int_equal(kill(p.pid, SIGTERM), 0);
  int code = 200;
  while (code == 200) {
    talk_answer health = talk_ask(p.port, "GET", "/health", "");
    code = health.code;
    talk_answer_free(&health);
  }
  assert_int_equal(code, 503);
  talk_check(talk_ask(p.port, "POST", COMPLETIONS, "{\"prompt\":\"a\",\"max_tokens\":2}"), 200, "\"choices\"");
  int fd = stream_until_first_event(p.port);
  assert_int_equal(kill(p.pid, SIGTERM), 0);
  talk_answer a = talk_receive(fd);
  assert_true(a.complete);
  talk_answer_free(&a);
  (void)close(fd);
  assert_int_equal(await_end(&p), 0);
}

static void test_second_signal_cancels(void **state) {
  (void)state;
  program p = launch((const char *const[]){"-m", DEMO_MODEL, "--port", "0", "--json", "--running", "1",
                                           "--drain-seconds", "3600", NULL});
  await_port(&p);
  /* many long requests, one at a time: draining alone would take long */
  const char *body =
      "{\"prompt\":\"a\",\"ignore_eos\":true,\"max_tokens\":480,\"mode\":\"autoregressive\",\"n\":"
      "64}";
  int fd = talk_begin(p.port, COMPLETIONS, body);
  talk_await(p.port, "vllm:num_requests_running", 1);
  talk_await(p.port, "vllm:num_requests_waiting", 63); /* all are in */
  assert_int_equal(kill(p.pid, SIGTERM), 0);
  while (talk_metric(p.port, "vllm:num_requests_running") == 1) {
    talk_answer health = talk_ask(p.port, "GET", "/health", "");
    int code = health.code;
    talk_answer_free(&health);
    if (code == 503) break;
  }
  assert_int_equal(kill(p.pid, SIGTERM), 0);
  talk_check(talk_receive(fd), 503, "cancelled");
  (void)close(fd);
  assert_int_equal(await_end(&p), 0);
}

/* Reads up to the first line with these words; an empty one when there is none. */
static void read_line_with(int fd, const char *words, char *line, size_t n_max) {
  do {
    read_line(fd, line, n_max);
  } while (line[0] != 0 && strstr(line, words) == NULL);
}

/* A stream, a refusal and an open endpoint: one line each, with the time of day, who asked and what it came to. */
static void test_a_line_for_each_request(void **state) {
  char line[1024];
  (void)state;
  program p = launch((const char *const[]){"-m", DEMO_MODEL, "--port", "0", "--json", "-v", "--api-key", "sk-a", NULL});
  await_port(&p);
  static const char key[] = "Authorization: Bearer sk-a\r\nX-Request-Id: one\r\n";
  talk_check(talk_ask_as(p.port, "POST", CHAT, key,
                         "{\"stream\":true,\"mode\":\"autoregressive\",\"ignore_eos\":true," USER "}"),
             200, "");
  talk_check(talk_ask_as(p.port, "GET", "/a%20code=200", "X-Request-Id: two\r\n", ""), 404, "");
  read_line_with(p.err, " request: id=one method=POST path=/v1/chat/completions code=200 ", line, sizeof line);
  int year = 0, minute = 0;
  assert_int_equal(sscanf(line, "weft: %4d-%*2d-%*2dT%*2d:%2d:", &year, &minute), 2);
  assert_in_range(year, 2024, 9999);
  static const char *const words[] = {" code=200 tenant=default model=weft-demo answers=1 prompt=", " completion=2 ",
                                      " queue_ms=", " first_ms=", " finish=length ms="};
  for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
    if (strstr(line, words[i]) == NULL) fail_msg("'%s' lacks '%s'", line, words[i]);
  }
  read_line_with(p.err, " refused: text=\"nothing is served at ", line, sizeof line);
  assert_non_null(strstr(line, "\" id=two code=404 error=unknown_url"));
  read_line_with(p.err, " request: id=two ", line, sizeof line);
  assert_non_null(strstr(line, " id=two method=GET path=\"/a code=200\" code=404 ms="));
  assert_int_equal(kill(p.pid, SIGTERM), 0);
  assert_int_equal(await_end(&p), 0);
}

/* ---- traces ---- */

#define TRACE_ID "4bf92f3577b34da6a3ce929d0e0e4736"
#define TRACED   "traceparent: 00-" TRACE_ID "-00f067aa0ba902b7-01\r\ntracestate: a=1, b@c=2\r\n"

static const char *words_at(const json_t *root, const char *name) {
  const char *words = json_string_value(json_object_get(root, name));
  return words == NULL ? "" : words;
}

/* The collector's configuration names no field of the log that this line lacks. */
static void check_collector(const json_t *line) {
  static char text[65536];
  uint32_t n_names = 0;
  FILE *file = fopen(WEFT_SOURCE_DIR "/docs/examples/otel-collector.yaml", "r");
  assert_non_null(file);
  text[fread(text, 1, sizeof text - 1, file)] = 0;
  assert_int_equal(fclose(file), 0);
  for (const char *at = strstr(text, "attributes."); at != NULL; at = strstr(at, "attributes.")) {
    char name[64] = "";
    at += strlen("attributes.");
    assert_int_equal(sscanf(at, "%63[a-z_]", name), 1);
    if (json_object_get(line, name) == NULL) fail_msg("no request has '%s' in the log", name);
    n_names += 1;
  }
  assert_true(n_names >= 5);
}

/* One request of a trace: the answer's head names the trace and a span, the log's line has them and the times. */
static void check_traced(const program *p, const char *path, const char *body, bool canvas) {
  char response[128], line[4096];
  talk_answer a = talk_ask_as(p->port, "POST", path, TRACED, body);
  if (a.code != 200) fail_msg("%s: %d %s", path, a.code, a.body);
  (void)talk_header(&a, "traceresponse", response, sizeof response);
  talk_answer_free(&a);
  assert_int_equal(strlen(response), 55);
  assert_memory_equal(response, "00-" TRACE_ID "-", 36);
  assert_string_equal(response + 52, "-01");
  read_line_with(p->err, "\"topic\":\"request\"", line, sizeof line);
  json_t *root = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
  assert_non_null(root);
  assert_string_equal(words_at(root, "trace_id"), TRACE_ID);
  assert_string_equal(words_at(root, "parent_span_id"), "00f067aa0ba902b7");
  assert_int_equal(strlen(words_at(root, "span_id")), 16);
  assert_memory_equal(words_at(root, "span_id"), response + 36, 16);
  assert_string_equal(words_at(root, "trace_flags"), "01");
  assert_string_equal(words_at(root, "trace_state"), "a=1,b@c=2");
  double sum = 0, ms = json_number_value(json_object_get(root, "ms"));
  const char *const spans[] = {"queue_ms", "prefill_ms", canvas ? "denoise_ms" : "decode_ms"};
  for (size_t i = 0; i < sizeof spans / sizeof *spans; i++) {
    if (!json_is_number(json_object_get(root, spans[i]))) fail_msg("%s: no %s in %s", path, spans[i], line);
    sum += json_number_value(json_object_get(root, spans[i]));
  }
  assert_true(sum <= ms + 0.2); /* each is rounded to a tenth */
  assert_true((json_integer_value(json_object_get(root, "denoise_steps")) > 0) == canvas);
  check_collector(root);
  json_decref(root);
}

static void test_traces_are_told(void **state) {
#define SAY      "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"
#define BY       ",\"ignore_eos\":true,\"mode\":"
#define BY_TOKEN BY "\"autoregressive\"}"
  char response[128], line[4096];
  (void)state;
  program p =
      launch((const char *const[]){"-m", DEMO_MODEL, "--port", "0", "--json", "-v", "--log-format", "json", NULL});
  read_port(&p);
  check_traced(&p, CHAT, "{\"max_tokens\":2," SAY BY_TOKEN, false);
  check_traced(&p, CHAT, "{\"max_tokens\":2,\"stream\":true," SAY BY_TOKEN, false);
  check_traced(&p, CHAT, "{\"max_tokens\":2," SAY BY "\"diffusion\"}", true);
  check_traced(&p, "/v1/completions", "{\"max_tokens\":2,\"prompt\":\"hi\"" BY_TOKEN, false);
  check_traced(&p, "/v1/messages", "{\"max_tokens\":2," SAY BY_TOKEN, false);
  check_traced(&p, "/v1/responses", "{\"max_output_tokens\":16,\"input\":\"hi\"" BY_TOKEN, false);
  check_traced(&p, "/api/chat", "{\"stream\":false,\"options\":{\"num_predict\":2}," SAY BY_TOKEN, false);
  check_traced(&p, "/api/generate", "{\"stream\":true,\"options\":{\"num_predict\":2},\"prompt\":\"hi\"" BY_TOKEN,
               false);
  talk_answer a = talk_ask_as(p.port, "GET", "/health", "traceparent: 00-" TRACE_ID "-0000000000000000-01\r\n", "");
  assert_int_equal(a.code, 200);
  assert_string_equal(talk_header(&a, "traceresponse", response, sizeof response), "");
  talk_answer_free(&a);
  read_line_with(p.err, "\"topic\":\"request\"", line, sizeof line);
  assert_null(strstr(line, "trace"));
  assert_int_equal(kill(p.pid, SIGTERM), 0);
  assert_int_equal(await_end(&p), 0);
}

/* Every line of a server's standard error, from the plan to the drain, is an object that says when and how grave. */
static void test_every_line_is_an_object(void **state) {
  char line[4096];
  uint32_t n_plan = 0, n_requests = 0;
  (void)state;
  program p =
      launch((const char *const[]){"-m", DEMO_MODEL, "--port", "0", "--json", "-v", "--log-format", "json", NULL});
  read_port(&p);
  talk_check(talk_ask_as(p.port, "GET", "/a%22,%22level%22:%22error%22%20%E2%80%AE", "X-Request-Id: two\r\n", ""), 404,
             "");
  assert_int_equal(kill(p.pid, SIGHUP), 0);
  assert_int_equal(kill(p.pid, SIGTERM), 0);
  for (read_line(p.err, line, sizeof line); line[0] != 0; read_line(p.err, line, sizeof line)) {
    json_t *root = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
    if (root == NULL) fail_msg("no object: %s", line);
    const char *topic = json_string_value(json_object_get(root, "topic"));
    if (topic != NULL && strcmp(topic, "plan") == 0) n_plan++;
    if (topic != NULL && strcmp(topic, "request") == 0) {
      n_requests++;
      assert_string_equal(json_string_value(json_object_get(root, "path")), "/a\",\"level\":\"error\" \xe2\x80\xae");
      assert_string_equal(json_string_value(json_object_get(root, "level")), "info");
    }
    if (strlen(json_string_value(json_object_get(root, "time"))) != 24) fail_msg("no time: %s", line);
    assert_non_null(json_string_value(json_object_get(root, "level")));
    json_decref(root);
  }
  assert_true(n_plan > 5);
  assert_int_equal(n_requests, 1);
  assert_int_equal(await_end(&p), 0);
}

static bool file_says(const char *folder, const char *words) {
  char path[512], text[65536];
  (void)snprintf(path, sizeof path, "%s/weft.log", folder);
  FILE *file = fopen(path, "r");
  assert_non_null(file);
  size_t n = fread(text, 1, sizeof text - 1, file);
  text[n] = 0;
  (void)fclose(file);
  return strstr(text, words) != NULL;
}

/* Two servers, each with a folder of its own: each log tells of its own requests alone. */
static void test_directories_keep_logs_apart(void **state) {
  char folder[2][64] = {"/tmp/weft-serve-XXXXXX", "/tmp/weft-serve-XXXXXX"};
  static const char *const headers[] = {"X-Request-Id: first-one\r\n", "X-Request-Id: second-one\r\n"};
  program p[2];
  (void)state;
  for (int i = 0; i < 2; i++) {
    assert_non_null(mkdtemp(folder[i]));
    p[i] =
        launch((const char *const[]){"-m", DEMO_MODEL, "--port", "0", "--json", "-v", "--directory", folder[i], NULL});
    await_port(&p[i]);
  }
  for (int i = 0; i < 2; i++) {
    talk_check(talk_ask_as(p[i].port, "POST", CHAT, headers[i], "{\"messages\":5}"), 400, "");
  }
  for (int i = 0; i < 2; i++) {
    assert_int_equal(kill(p[i].pid, SIGTERM), 0);
    assert_int_equal(await_end(&p[i]), 0);
    assert_true(file_says(folder[i], i == 0 ? "first-one" : "second-one"));
    assert_false(file_says(folder[i], i == 0 ? "second-one" : "first-one"));
    char path[256];
    (void)snprintf(path, sizeof path, "%s/weft.log", folder[i]);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(folder[i]), 0);
  }
}

/* ---- keys and logs while it runs ---- */

static void write_file(const char *path, const char *text) {
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  assert_true(fputs(text, file) >= 0);
  assert_int_equal(fclose(file), 0);
}

static void await_code(uint16_t port, const char *header, int code) {
  while (code_as(port, header, "GET", "/v1/models", "") != code) (void)poll(NULL, 0, 5);
}

static void await_file(const char *folder, const char *words) {
  while (!file_says(folder, words)) (void)poll(NULL, 0, 5);
}

/* SIGHUP ends nothing: new keys count, old ones do not, a bad file changes nothing, and a log that was moved away is
 * begun again. The file of keys is named from where the server was started, not from --directory. */
static void test_hangup_reads_keys_and_begins_a_log(void **state) {
  static const char old_key[] = "Authorization: Bearer sk-old\r\n", new_key[] = "Authorization: Bearer sk-new\r\n";
  char folder[] = "/tmp/weft-serve-XXXXXX", path[3][96];
  (void)state;
  assert_non_null(mkdtemp(folder));
  (void)snprintf(path[0], sizeof path[0], "%s/keys", folder);
  (void)snprintf(path[1], sizeof path[1], "%s/weft.log", folder);
  (void)snprintf(path[2], sizeof path[2], "%s/weft.log.1", folder);
  write_file(path[0], "sk-old red weight=2\nsk-op operator\n");
  program p = launch((const char *const[]){"-m", DEMO_MODEL, "--port", "0", "--json", "--api-keys", path[0],
                                           "--directory", folder, "--spare-tenants", "2", NULL});
  await_port(&p);
  assert_int_equal(code_as(p.port, old_key, "GET", "/v1/models", ""), 200);
  assert_int_equal(code_as(p.port, new_key, "GET", "/v1/models", ""), 401);
  write_file(path[0], "sk-op operator\nsk-new red weight=2\n");
  assert_int_equal(rename(path[1], path[2]), 0);
  assert_int_equal(kill(p.pid, SIGHUP), 0);
  await_code(p.port, new_key, 200);
  assert_int_equal(code_as(p.port, old_key, "GET", "/v1/models", ""), 401);
  await_words(p.port, "Authorization: Bearer sk-op\r\n", "weft_tenant_requests_total{tenant=\"red\"}");
  await_file(folder, "are in use now");
  write_file(path[0], "sk-op operator\nsk-new red weight=3 queued=7\nsk-blue blue\n");
  assert_int_equal(kill(p.pid, SIGHUP), 0);
  await_code(p.port, "Authorization: Bearer sk-blue\r\n", 200);
  await_file(folder, "tenants: 1 new, 1 changed, 0 gone");
  write_file(path[0], "sk-other green\nsk-b blue\nsk-a t1\n"); /* more tenants than places: nothing changes */
  assert_int_equal(kill(p.pid, SIGHUP), 0);
  await_file(folder, "there is no place for the new tenant t1");
  assert_int_equal(code_as(p.port, new_key, "GET", "/v1/models", ""), 200);
  assert_int_equal(kill(p.pid, SIGTERM), 0);
  assert_int_equal(await_end(&p), 0);
  for (int i = 0; i < 3; i++) assert_int_equal(unlink(path[i]), 0);
  assert_int_equal(rmdir(folder), 0);
}

/* Standard error is a pipe that nobody reads: more lines than it holds hold up nobody, and are counted. */
static void test_a_log_that_nobody_reads(void **state) {
  (void)state;
  program p = launch((const char *const[]){"-m", DEMO_MODEL, "--port", "0", "--json", "-v", NULL});
  await_port(&p);
  char path[256] = "/";
  memset(path + 1, 'x', 200);
  while (talk_metric(p.port, "weft_log_lines_dropped_total") <= 0) {
    talk_check(talk_ask(p.port, "GET", path, ""), 404, "");
  }
  json_decref(talk_json(p.port, COMPLETIONS, "{\"prompt\":\"a\",\"max_tokens\":2}"));
  assert_int_equal(kill(p.pid, SIGTERM), 0);
  assert_int_equal(await_end(&p), 0);
}

/* A body that is still coming is no request: a drain that may last an hour does not wait for it. */
static void test_half_a_body_delays_no_drain(void **state) {
  static const char head[] = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4000000\r\n\r\n{";
  int how = 0;
  (void)state;
  program p = launch((const char *const[]){"-m", DEMO_MODEL, "--port", "0", "--json", "--drain-seconds", "3600", NULL});
  await_port(&p);
  int fd = talk_dial(p.port);
  assert_true(talk_write(fd, head, strlen(head)));
  json_decref(talk_json(p.port, "/health", NULL)); /* what came before it is read */
  assert_int_equal(kill(p.pid, SIGTERM), 0);
  while (waitpid(p.pid, &how, WNOHANG) == 0) { /* fed for as long as it lasts */
    (void)send(fd, " ", 1, MSG_NOSIGNAL);
    (void)poll(NULL, 0, 20);
  }
  assert_true(WIFEXITED(how) && WEXITSTATUS(how) == 0);
  (void)close(fd);
  (void)close(p.out);
  (void)close(p.err);
}

/* Who opens the server to a network without keys is told what that opens. */
/* With few descriptors there are few places, and it is said; /health is heard whatever one client holds. */
static void test_few_descriptors(void **state) {
  static const char *const limit[] = {"/bin/sh", "-c", "ulimit -n 64 && exec \"$@\"", "sh", NULL};
  static const char *const too_low[] = {"/bin/sh", "-c", "ulimit -n 24 && exec \"$@\"", "sh", NULL};
  static const char *const demo[] = {"-m", DEMO_MODEL, "--port", "0", "--json", NULL};
  enum { HELD = 80 };
  char line[512], words[128];
  unsigned n_limit = 0, n = 0;
  int fd[HELD];
  (void)state;
  program p = launch_by(limit, demo);
  read_line(p.err, line, sizeof line);
  (void)sscanf(line, "weft: warning: the limit of %u file descriptors leaves room for %u connections, not 1024",
               &n_limit, &n);
  if (n_limit != 64 || n < 8 || n > 48) fail_msg("the line is: %s", line);
  await_port(&p);
  for (int i = 0; i < HELD; i++) {
    fd[i] = talk_begin(
        p.port, COMPLETIONS,
        "{\"prompt\":\"a\",\"ignore_eos\":true,\"max_tokens\":480,\"mode\":\"autoregressive\",\"stream\":true}");
    if (i % 10 == 9) talk_check(talk_ask(p.port, "GET", "/health", ""), 200, "ok");
  }
  for (int i = 0; i < 20; i++) talk_check(talk_ask(p.port, "GET", "/health", ""), 200, "ok");
  for (int i = 0; i < HELD; i++) (void)close(fd[i]);
  assert_int_equal(kill(p.pid, SIGTERM), 0);
  assert_int_equal(await_end(&p), 0);
  p = launch_by(too_low, demo);
  (void)snprintf(words, sizeof words, "weft: the limit of 24 file descriptors leaves none for connections");
  read_line(p.err, line, sizeof line);
  if (strncmp(line, words, strlen(words)) != 0) fail_msg("the line is: %s", line);
  assert_int_equal(await_end(&p), 3);
}

static void test_an_open_host_is_said(void **state) {
  char line[512];
  (void)state;
  program p = launch((const char *const[]){"-m", DEMO_MODEL, "--port", "0", "--host", "0.0.0.0", NULL});
  read_line(p.err, line, sizeof line);
  assert_int_equal(strncmp(line, "weft: serving", 13), 0);
  read_line(p.err, line, sizeof line);
  assert_non_null(strstr(line, "--host 0.0.0.0 without API keys"));
  assert_int_equal(kill(p.pid, SIGTERM), 0);
  assert_int_equal(await_end(&p), 0);
}

static void check_fails(const char *const *args, int code, const char *words) {
  char line[1024];
  program p = launch(args);
  read_line(p.err, line, sizeof line);
  if (strstr(line, words) == NULL) fail_msg("'%s' does not say '%s'", line, words);
  assert_int_equal(strncmp(line, "weft: ", 6), 0);
  char rest[8];
  read_line(p.err, rest, sizeof rest);
  assert_string_equal(rest, ""); /* one line */
  assert_int_equal(await_end(&p), code);
}

/* A key of the command line and those of a file: one tenant `default`, and the file's. The key of the environment gives
 * way to that of the command line. */
static void test_a_key_of_the_command_line(void **state) {
  char path[] = "/tmp/weft-keys-XXXXXX";
  (void)state;
  int fd = mkstemp(path);
  assert_true(fd >= 0 && fchmod(fd, 0600) == 0 && close(fd) == 0);
  write_file(path, "sk-op operator\n");
  assert_int_equal(setenv("WEFT_API_KEY", "sk-env", 1), 0);
  program p = launch((const char *const[]){"-m", DEMO_MODEL, "--port", "0", "--json", "--api-keys", path, "--api-key",
                                           "sk-one", "--api-key=sk-two", NULL});
  await_port(&p);
  assert_int_equal(code_as(p.port, "", "GET", "/v1/models", ""), 401);
  assert_int_equal(code_as(p.port, "Authorization: Bearer sk-env\r\n", "GET", "/v1/models", ""), 401);
  assert_int_equal(code_as(p.port, "Authorization: Bearer sk-one\r\n", "GET", "/v1/models", ""), 200);
  assert_int_equal(code_as(p.port, "Authorization: Bearer sk-two\r\n", "GET", "/v1/models", ""), 200);
  assert_int_equal(code_as(p.port, "Authorization: Bearer sk-one\r\n", "GET", "/metrics", ""), 403);
  await_words(p.port, "Authorization: Bearer sk-op\r\n", "weft_tenant_requests_total{tenant=\"default\"} 0\n");
  write_file(path, "sk-new operator\n");
  assert_int_equal(kill(p.pid, SIGHUP), 0);
  await_code(p.port, "Authorization: Bearer sk-new\r\n", 200);
  assert_int_equal(code_as(p.port, "Authorization: Bearer sk-one\r\n", "GET", "/v1/models", ""), 200);
  assert_int_equal(kill(p.pid, SIGTERM), 0);
  assert_int_equal(await_end(&p), 0);
  p = launch((const char *const[]){"-m", DEMO_MODEL, "--port", "0", "--json", NULL});
  await_port(&p);
  assert_int_equal(code_as(p.port, "", "GET", "/v1/models", ""), 401);
  assert_int_equal(code_as(p.port, "Authorization: Bearer sk-env\r\n", "GET", "/v1/models", ""), 200);
  assert_int_equal(kill(p.pid, SIGTERM), 0);
  assert_int_equal(await_end(&p), 0);
  assert_int_equal(unsetenv("WEFT_API_KEY"), 0);
  assert_int_equal(unlink(path), 0);
}

static void test_port_in_use(void **state) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t n = sizeof address;
  char port[16];
  (void)state;
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
  assert_int_equal(listen(fd, 1), 0);
  assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &n), 0);
  (void)snprintf(port, sizeof port, "%u", ntohs(address.sin_port));
  check_fails((const char *const[]){"-m", DEMO_MODEL, "--port", port, NULL}, 2, "is in use");
  (void)close(fd);
}

static void test_bad_command_lines(void **state) {
  (void)state;
  check_fails((const char *const[]){"--port", "0", NULL}, 2, "no model");
  check_fails((const char *const[]){"-m", "/nowhere.gguf", "--port", "0", NULL}, 3, "/nowhere.gguf");
  check_fails((const char *const[]){"-m", DEMO_MODEL, "--host", "256.1.1.1", NULL}, 2, "256.1.1.1");
  check_fails((const char *const[]){"-m", DEMO_MODEL, "--port", "70000", NULL}, 2, "70000");
  check_fails((const char *const[]){"-m", DEMO_MODEL, "--api-keys", "/nowhere.keys", NULL}, 2, "/nowhere.keys");
  check_fails((const char *const[]){"-m", DEMO_MODEL, "--api-keys", "/dev/null", NULL}, 2, "holds no key");
  check_fails((const char *const[]){"-m", DEMO_MODEL, "--api-key", "a b", NULL}, 2, "without blanks");
  check_fails((const char *const[]){"-m", DEMO_MODEL, "--directory", "/nowhere", NULL}, 2, "/nowhere");
  check_fails((const char *const[]){"-m", DEMO_MODEL, "-m", DEMO_MODEL, NULL}, 2, "would both be served");
  check_fails((const char *const[]){"-m", DEMO_MODEL, "--port", "0", "--allow-origin", "chat.example", NULL}, 2,
              "SCHEME://HOST");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_keys_and_tenants),
      cmocka_unit_test(test_counts_of_the_only_tenant),
      cmocka_unit_test(test_limits_of_a_tenant),
      cmocka_unit_test(test_two_models),
      cmocka_unit_test(test_model_without_template),
      cmocka_unit_test(test_signal_drains),
      cmocka_unit_test(test_lame_duck),
      cmocka_unit_test(test_second_signal_cancels),
      cmocka_unit_test(test_port_in_use),
      cmocka_unit_test(test_directories_keep_logs_apart),
      cmocka_unit_test(test_hangup_reads_keys_and_begins_a_log),
      cmocka_unit_test(test_a_log_that_nobody_reads),
      cmocka_unit_test(test_half_a_body_delays_no_drain),
      cmocka_unit_test(test_few_descriptors),
      cmocka_unit_test(test_an_open_host_is_said),
      cmocka_unit_test(test_a_line_for_each_request),
      cmocka_unit_test(test_every_line_is_an_object),
      cmocka_unit_test(test_traces_are_told),
      cmocka_unit_test(test_a_key_of_the_command_line),
      cmocka_unit_test(test_bad_command_lines),
  };
  (void)signal(SIGPIPE, SIG_IGN);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
