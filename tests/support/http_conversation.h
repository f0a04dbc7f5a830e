/* SPDX-License-Identifier: MIT */
/* Conversations with a server of this process over real sockets on 127.0.0.1: a fixture that opens
 * a runtime and serves it on a free port, a client that can also break rules and hang up, and
 * readers of answers, events and metrics. */
#ifndef WEFT_TESTS_HTTP_CONVERSATION_H
#define WEFT_TESTS_HTTP_CONVERSATION_H

#include <arpa/inet.h>
#include <errno.h>
#include <jansson.h>
#include <netinet/in.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "api/server/server.h"
#include "base/clock.h"
#include "base/text.h"

#define DEMO_MODEL    WEFT_SOURCE_DIR "/model/demo/weft-demo.gguf"
#define DEMO_AR_MODEL WEFT_SOURCE_DIR "/model/demo/weft-demo-ar.gguf"
#define TINY_MODEL    WEFT_SOURCE_DIR "/tests/golden/models/dg-base.gguf"
#define TINY_AR_MODEL WEFT_SOURCE_DIR "/tests/golden/models/ar-base.gguf"
/* No test decides by the clock: one waits for what must come as long as the whole run may last, and this end is there
 * so that a fault is a line and not a hang. */
enum { TALK_MS = 1200000 };

typedef struct talk {
  weft_runtime *runtime;
  weft_server *server;
  weft_keys *keys; /* NULL: everybody may ask */
  uint16_t port;
} talk;

static inline void talk_open(talk *t, const weft_open_options *options, const weft_server_options *where) {
  char line[512] = "";
  weft_error error = {{0}};
  (void)signal(SIGPIPE, SIG_IGN);
  t->keys = NULL;
  int status = weft_open(options, &t->runtime, line, sizeof line);
  if (status != 0) fail_msg("weft_open: %s", line);
  if (weft_server_open(where, t->runtime, &t->server, &error) != WEFT_OK) fail_msg("weft_server_open: %s", error.text);
  t->port = (uint16_t)weft_server_port(t->server);
}

/* What the options leave at zero is small: one thread, and keys for 256 tokens of the demo model. keys_text NULL:
 * everybody may ask. options.tenants: places kept beyond those that the keys name. Gives t back. */
static inline talk *talk_serve(talk *t, const char *keys_text, weft_open_options options, weft_server_options where) {
  static const char *const demo[] = {DEMO_MODEL};
  static const uint64_t seed = 1;
  weft_error error = {{0}};
  weft_keys *keys = NULL;
  if (options.models == NULL) {
    options.models = demo;
    options.n_models = 1;
  }
  if (options.threads == 0) options.threads = 1;
  if (options.kv_bytes == 0) options.kv_bytes = 4 << 20;
  if (options.context == 0) options.context = 256;
  if (options.seed == NULL) options.seed = &seed; /* no test hangs on what was drawn */
  options.quiet = true;
  if (keys_text != NULL) {
    if (weft_keys_parse(keys_text, strlen(keys_text), "keys", &keys, &error) != WEFT_OK) fail_msg("%s", error.text);
    if (options.tenants > 0) weft_keys_keep_places(keys, options.tenants);
    options.tenants = weft_keys_n_places(keys);
    options.tenant = weft_keys_options(keys);
  }
  where.keys = keys;
  talk_open(t, &options, &where);
  t->keys = keys;
  return t;
}

/* Both demo models: one that writes by diffusion and one that writes token by token. */
static inline talk *talk_serve_both(talk *t, const char *keys_text) {
  static const char *const models[] = {DEMO_MODEL, DEMO_AR_MODEL};
  const weft_open_options options = {
      .models = models, .n_models = 2, .threads = 2, .kv_bytes = 16 << 20, .context = 1024};
  return talk_serve(t, keys_text, options, (weft_server_options){0});
}

/* Both demo models, with chat templates that have a place for tools: calls as JSON, and as Hermes models write them. */
static inline talk *talk_serve_tools(talk *t) {
  static const char *const models[] = {DEMO_MODEL, DEMO_AR_MODEL}, *const templates[] = {
                                                                       "weft-demo=" WEFT_SOURCE_DIR
                                                                       "/tests/golden/chat/tools-json.jinja",
                                                                       "weft-demo-ar=" WEFT_SOURCE_DIR
                                                                       "/tests/golden/chat/tools-hermes.jinja"};
  const weft_open_options options = {.models = models,
                                     .n_models = 2,
                                     .threads = 2,
                                     .kv_bytes = 16 << 20,
                                     .context = 1024,
                                     .chat_templates = templates,
                                     .n_chat_templates = 2};
  return talk_serve(t, NULL, options, (weft_server_options){.body_mib = 1});
}

static inline void talk_close(talk *t) {
  weft_server_close(t->server);
  weft_close(t->runtime);
  weft_keys_close(t->keys);
  memset(t, 0, sizeof *t);
}

/* For groups of tests whose state is a server. */
static inline int close_talk(void **state) {
  talk_close(*state);
  return 0;
}

/* ---- the client ---- */

static inline int talk_dial(uint16_t port) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_true(fd >= 0);
  assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
  return fd;
}

/* A server on a socket that has a name. */
static inline int talk_dial_named(const char *path) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  (void)snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_true(fd >= 0);
  assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
  return fd;
}

/* False: the server closed before it had all. */
static inline bool talk_write(int fd, const void *bytes, size_t n) {
  const char *at = bytes;
  while (n > 0) {
    ssize_t sent = send(fd, at, n, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    at += sent;
    n -= (size_t)sent;
  }
  return true;
}

/* headers: whole lines with their ends, or "". */
static inline void talk_send(int fd, const char *method, const char *path, const char *headers, const char *body,
                             size_t n) {
  weft_text head = {0};
  weft_text_printf(&head, "%s %s HTTP/1.1\r\nHost: localhost\r\n%sContent-Length: %zu\r\n\r\n", method, path, headers,
                   n);
  assert_true(talk_write(fd, head.bytes, head.n));
  if (n > 0) (void)talk_write(fd, body, n); /* a server that refuses may close before it has all */
  weft_text_free(&head);
}

/* Sends a request; its answer will come on the connection that this gives. */
static inline int talk_begin(uint16_t port, const char *path, const char *body) {
  int fd = talk_dial(port);
  talk_send(fd, "POST", path, "", body, strlen(body));
  return fd;
}

/* Appends what comes; 0: closed, or nothing within ms. */
static inline size_t talk_read(int fd, weft_text *out, int ms) {
  char bytes[16384];
  struct pollfd wait = {.fd = fd, .events = POLLIN};
  if (poll(&wait, 1, ms) <= 0) return 0;
  ssize_t n = recv(fd, bytes, sizeof bytes, 0);
  if (n <= 0) return 0;
  weft_text_append(out, bytes, (size_t)n);
  return (size_t)n;
}

typedef struct talk_answer {
  int code;
  weft_text head, body; /* body without chunk lines */
  bool complete;
} talk_answer;

static inline void talk_answer_free(talk_answer *a) {
  weft_text_free(&a->head);
  weft_text_free(&a->body);
}

/* A header's value, copied to out; "" when absent. */
static inline const char *talk_header(const talk_answer *a, const char *name, char *out, size_t n_max) {
  char key[128];
  (void)snprintf(key, sizeof key, "\r\n%s: ", name);
  const char *at = strcasestr(a->head.bytes, key);
  out[0] = 0;
  if (at == NULL) return out;
  at += strlen(key);
  (void)snprintf(out, n_max, "%.*s", (int)strcspn(at, "\r"), at);
  return out;
}

/* Takes complete chunks from raw to body. True: the last one was there. */
static inline bool talk_unchunk(weft_text *raw, weft_text *body) {
  size_t at = 0;
  bool last = false;
  while (!last) {
    const char *line = raw->n > at ? memmem(raw->bytes + at, raw->n - at, "\r\n", 2) : NULL;
    if (line == NULL) break;
    size_t from = (size_t)(line - raw->bytes) + 2, n = strtoul(raw->bytes + at, NULL, 16);
    if (raw->n < from + n + 2) break;
    weft_text_append(body, raw->bytes + from, n);
    at = from + n + 2;
    last = n == 0;
  }
  if (at > 0) memmove(raw->bytes, raw->bytes + at, raw->n - at);
  raw->n -= at;
  return last;
}

/* One whole answer. */
static inline talk_answer talk_receive(int fd) {
  talk_answer a = {0};
  weft_text raw = {0};
  char value[64];
  uint64_t until = weft_clock_us() + (uint64_t)TALK_MS * 1000;
  const char *end = NULL;
  while (end == NULL && talk_read(fd, &raw, TALK_MS) > 0) end = strstr(raw.bytes, "\r\n\r\n");
  if (end != NULL) {
    size_t n = (size_t)(end - raw.bytes) + 2;
    weft_text_append(&a.head, raw.bytes, n);
    memmove(raw.bytes, raw.bytes + n + 2, raw.n - n - 2);
    raw.n -= n + 2;
    a.code = (int)strtol(a.head.bytes + 9, NULL, 10);
    bool chunked = strcmp(talk_header(&a, "Transfer-Encoding", value, sizeof value), "chunked") == 0;
    size_t length = strtoul(talk_header(&a, "Content-Length", value, sizeof value), NULL, 10);
    for (;;) {
      if (chunked) {
        a.complete = talk_unchunk(&raw, &a.body);
      } else {
        weft_text_append(&a.body, raw.bytes, raw.n);
        raw.n = 0;
        a.complete = a.body.n >= length;
      }
      if (a.complete || weft_clock_us() > until || talk_read(fd, &raw, TALK_MS) == 0) break;
    }
  }
  weft_text_append(&a.body, "", 0);
  weft_text_append(&a.head, "", 0);
  weft_text_free(&raw);
  return a;
}

/* Asks on a connection, which is closed after the answer. */
static inline talk_answer talk_ask_on(int fd, const char *method, const char *path, const char *headers,
                                      const char *body) {
  talk_send(fd, method, path, headers, body, strlen(body));
  talk_answer a = talk_receive(fd);
  (void)close(fd);
  return a;
}

static inline talk_answer talk_ask_as(uint16_t port, const char *method, const char *path, const char *headers,
                                      const char *body) {
  return talk_ask_on(talk_dial(port), method, path, headers, body);
}

static inline talk_answer talk_ask(uint16_t port, const char *method, const char *path, const char *body) {
  return talk_ask_as(port, method, path, "", body);
}

/* ---- reading ---- */

/* The answer, which is freed, has this code and says these words. */
static inline void talk_check(talk_answer a, int code, const char *words) {
  if (a.code != code || strstr(a.body.bytes, words) == NULL)
    fail_msg("gave %d, not %d with '%s': %s", a.code, code, words, a.body.bytes);
  talk_answer_free(&a);
}

/* The JSON of an answer with this code, or the test fails. headers: lines of the request, each with its end. The caller
 * decrefs. */
static inline json_t *talk_json_as(uint16_t port, const char *method, const char *path, const char *headers,
                                   const char *body, int code) {
  talk_answer a = talk_ask_as(port, method, path, headers, body);
  if (a.code != code) fail_msg("%s %s %s gave %d: %s", method, path, body, a.code, a.body.bytes);
  json_error_t error;
  json_t *root = json_loads(a.body.bytes, 0, &error);
  if (root == NULL) fail_msg("%s: %s in %s", path, error.text, a.body.bytes);
  talk_answer_free(&a);
  return root;
}

/* The same with 200. body NULL: GET. */
static inline json_t *talk_json(uint16_t port, const char *path, const char *body) {
  return talk_json_as(port, body == NULL ? "GET" : "POST", path, "", body == NULL ? "" : body, 200);
}

/* The same, of a body whose model is this one. */
static inline json_t *talk_model(uint16_t port, const char *path, const char *model, const char *fields) {
  weft_text body = {0};
  weft_text_printf(&body, "{\"model\":\"%s\",%s}", model, fields);
  json_t *root = talk_json(port, path, body.bytes);
  weft_text_free(&body);
  return root;
}

/* A value by a path like "choices.0.message.content"; NULL when absent. */
static inline json_t *at(json_t *root, const char *path) {
  char word[64];
  while (root != NULL && *path != 0) {
    size_t n = strcspn(path, ".");
    (void)snprintf(word, sizeof word, "%.*s", (int)n, path);
    root = json_is_array(root) ? json_array_get(root, strtoul(word, NULL, 10)) : json_object_get(root, word);
    path += n + (path[n] == '.');
  }
  return root;
}

static inline const char *text_at(json_t *root, const char *path) {
  const char *text = json_string_value(at(root, path));
  if (text == NULL) fail_msg("%s is no text", path);
  return text;
}

static inline json_int_t int_at(json_t *root, const char *path) {
  if (!json_is_integer(at(root, path))) fail_msg("%s is no whole number", path);
  return json_integer_value(at(root, path));
}

/* The text at the path is JSON, and is an object whose member a is true or false. */
static inline void talk_check_schema(json_t *root, const char *path) {
  json_t *value = json_loads(text_at(root, path), 0, NULL);
  if (!json_is_boolean(json_object_get(value, "a"))) fail_msg("a is not true or false in %s", text_at(root, path));
  json_decref(value);
}

/* A JSON text of n bytes, its zero bytes shown as U+2400: top_logprobs of completions have tokens as names, one token of
 * a vocabulary is the zero byte, and jansson takes none in a name. NULL: it is no JSON. */
static inline json_t *talk_read_json(const char *bytes, size_t n, json_error_t *error) {
  char *copy = strndup(bytes, n);
  assert_non_null(copy);
  for (char *at = copy; (at = strstr(at, "\\u0000")) != NULL; at += 6) (void)memcpy(at, "\\u2400", 6);
  json_t *value = json_loads(copy, 0, error);
  free(copy);
  return value;
}

/* What a stream says when it was silent for ten seconds, as on a machine that starves: a comment, or a ping that does not
 * follow the beginning of a block. */
static inline bool talk_only_waits(const char *from, const json_t *before) {
  if (*from == ':') return true;
  const char *last = json_string_value(json_object_get(json_array_get(before, json_array_size(before) - 1), "event"));
  return strncmp(from, "event: ping\n", 12) == 0 && (last == NULL || strcmp(last, "content_block_start") != 0);
}

/* Events of a stream: an array of {"event": name or "", "data": object}, "[DONE]" as a string, without those that only
 * say that it goes on. The caller decrefs. */
static inline json_t *talk_events(const weft_text *body) {
  json_t *list = json_array();
  const char *from = body->bytes;
  for (const char *end; (end = strstr(from, "\n\n")) != NULL; from = end + 2) {
    char name[32] = "";
    if (talk_only_waits(from, list)) continue;
    if (strncmp(from, "event: ", 7) == 0) {
      (void)snprintf(name, sizeof name, "%.*s", (int)strcspn(from + 7, "\n"), from + 7);
      from = strchr(from, '\n') + 1;
    }
    if (strncmp(from, "data: ", 6) != 0) fail_msg("an event without data: %.80s", from);
    size_t n = (size_t)(end - from) - 6;
    assert_null(memchr(from, '\n', (size_t)(end - from)));
    json_error_t error;
    json_t *data = strncmp(from + 6, "[DONE]", 6) == 0 ? json_string("[DONE]") : talk_read_json(from + 6, n, &error);
    if (data == NULL) fail_msg("event data: %s in %.*s", error.text, (int)n, from + 6);
    (void)json_array_append_new(list, json_pack("{s:s, s:o}", "event", name, "data", data));
  }
  assert_string_equal(from, "");
  return list;
}

static inline json_t *talk_stream(uint16_t port, const char *path, const char *body) {
  char type[64];
  talk_answer a = talk_ask(port, "POST", path, body);
  if (a.code != 200) fail_msg("%s gave %d: %s", path, a.code, a.body.bytes);
  assert_true(a.complete);
  assert_non_null(strstr(talk_header(&a, "Content-Type", type, sizeof type), "text/event-stream"));
  json_t *events = talk_events(&a.body);
  talk_answer_free(&a);
  return events;
}

/* The value of the first line that begins with name (labels and all); -1 when absent. */
static inline double talk_metric_of(const char *text, const char *name) {
  size_t n = strlen(name);
  for (const char *line = text; line != NULL && *line != 0; line = strchr(line, '\n'), line += line != NULL) {
    if (strncmp(line, name, n) != 0 || (line[n] != ' ' && line[n] != '{')) continue;
    const char *space = strchr(line + n, ' ');
    return space == NULL ? -1 : strtod(space, NULL);
  }
  return -1;
}

/* who: header lines. */
static inline double talk_metric_as(uint16_t port, const char *who, const char *name) {
  talk_answer a = talk_ask_as(port, "GET", "/metrics", who, "");
  assert_int_equal(a.code, 200);
  double value = talk_metric_of(a.body.bytes, name);
  talk_answer_free(&a);
  return value;
}

static inline double talk_metric(uint16_t port, const char *name) {
  return talk_metric_as(port, "", name);
}

/* Requests ended for this reason. */
static inline double talk_ended(uint16_t port, const char *reason) {
  char key[64];
  (void)snprintf(key, sizeof key, "finished_reason=\"%s\"} ", reason);
  talk_answer a = talk_ask(port, "GET", "/metrics", "");
  const char *found = strstr(a.body.bytes, key);
  assert_non_null(found);
  double value = strtod(found + strlen(key), NULL);
  talk_answer_free(&a);
  return value;
}

/* Waits until a metric has the value. */
static inline void talk_await(uint16_t port, const char *name, double value) {
  uint64_t until = weft_clock_us() + (uint64_t)TALK_MS * 1000;
  while (talk_metric(port, name) != value) {
    if (weft_clock_us() > until) fail_msg("%s never became %g: it is %g", name, value, talk_metric(port, name));
    (void)poll(NULL, 0, 1);
  }
}

/* The engine counts a step after it told its readers: waits until the metric is more than low. */
static inline void talk_grows(uint16_t port, const char *name, double low) {
  uint64_t until = weft_clock_us() + (uint64_t)TALK_MS * 1000;
  while (talk_metric(port, name) <= low) {
    if (weft_clock_us() > until) fail_msg("%s never grew beyond %g", name, low);
    (void)poll(NULL, 0, 1);
  }
}

#endif
