/* SPDX-License-Identifier: MIT */
/* One request and its answer; see http.h and http_internal.h. */
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <time.h>

#include "api/http/http_internal.h"
#include "api/http/pack.h"
#include "base/check.h"
#include "base/log.h"
#include "base/memory.h"

/* ---- opening and closing ---- */

static bool id_is_fit(const char *id) {
  size_t n = strlen(id);
  if (n == 0 || n > ID_BYTES_MAX) return false;
  for (size_t i = 0; i < n; i++) {
    char c = id[i];
    bool fit = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || strchr("-_.:", c) != NULL;
    if (!fit) return false;
  }
  return true;
}

/* n random bytes as hexadecimal digits. False: they are zeros. */
static bool draw_hex(char *out, size_t n) {
  static const char digits[] = "0123456789abcdef";
  unsigned char bytes[16], any = 0;
  WEFT_CHECK(n <= sizeof bytes);
  if (getrandom(bytes, n, 0) != (ssize_t)n) memset(bytes, 0, sizeof bytes);
  for (size_t i = 0; i < n; i++) {
    out[2 * i] = digits[bytes[i] >> 4];
    out[2 * i + 1] = digits[bytes[i] & 15];
    any |= bytes[i];
  }
  out[2 * n] = 0;
  return any != 0;
}

static void make_id(weft_exchange *x, const char *given) {
  if (given != NULL && id_is_fit(given)) {
    memcpy(x->id, given, strlen(given) + 1);
    return;
  }
  (void)draw_hex(x->id, 16);
}

static void read_trace(weft_exchange *x, const weft_http_head *head) {
  weft_trace_context_read(head, &x->trace);
  if (x->trace.known && !draw_hex(x->trace.span_id, 8)) x->trace = (weft_trace_context){0};
}

weft_exchange *http_exchange_open(http_connection *c, const weft_http_head *head) {
  weft_exchange *x = weft_alloc(1, sizeof *x);
  if (x == NULL) return NULL;
  x->http = c->http;
  x->connection = c;
  x->is_local = c->local;
  x->method = weft_strdup(head->method);
  x->path = weft_strdup(head->path);
  x->query = weft_strdup(head->query == NULL ? "" : head->query);
  if (x->method == NULL || x->path == NULL || x->query == NULL) {
    weft_free(x->method);
    weft_free(x->path);
    weft_free(x->query);
    weft_free(x);
    return NULL;
  }
  make_id(x, weft_http_field_of(head, "X-Request-Id"));
  read_trace(x, head);
  return x;
}

void http_drop_body(weft_exchange *x) {
  http_discharge(x);
  weft_text_free(&x->body);
}

void http_tell_left(weft_exchange *x) {
  if (x->source.pull == NULL || x->told) return;
  x->told = true;
  x->source.left(x->source.self);
}

void http_finish(weft_exchange *x, bool left) {
  weft_http *http = x->http;
  if (left) http_tell_left(x);
  http->config.done(http->config.self, x, x->begun ? x->code : 0, left || x->code == CODE_LEFT);
  if (x->source.pull != NULL) x->source.close(x->source.self);
  http_forget_ready(x); /* once its source is closed, no thread wakes it */
  http_drop_body(x);
  http_give_place(x);
  if (x->active) atomic_fetch_sub(&http->n_active, 1);
  weft_text_free(&x->text);
  for (uint32_t i = 0; i < x->n_headers; i++) {
    weft_free(x->header[i].name);
    weft_free(x->header[i].value);
  }
  weft_free(x->method);
  weft_free(x->path);
  weft_free(x->query);
  weft_free(x);
}

/* ---- answers ---- */

/* No byte of the text could end a line, or the head of the answer. */
static bool is_one_line(const char *text) {
  for (const char *c = text; *c != 0; c++) {
    if (((unsigned char)*c < 0x20 && *c != '\t') || *c == 0x7F) return false;
  }
  return true;
}

void weft_exchange_set_header(weft_exchange *x, const char *name, const char *value) {
  if (!is_one_line(name) || !is_one_line(value)) return;
  char *n = weft_strdup(name), *v = weft_strdup(value);
  if (n == NULL || v == NULL) { /* an answer without a hint is still an answer */
    weft_free(n);
    weft_free(v);
    return;
  }
  uint32_t i = 0;
  while (i < x->n_headers && strcasecmp(x->header[i].name, name) != 0) i++;
  WEFT_CHECK(i < HEADERS_MAX);
  if (i == x->n_headers) x->n_headers += 1;
  weft_free(x->header[i].name);
  weft_free(x->header[i].value);
  x->header[i].name = n;
  x->header[i].value = v;
}

static const char *header_of_answer(const weft_exchange *x, const char *name) {
  for (uint32_t i = 0; i < x->n_headers; i++) {
    if (strcasecmp(x->header[i].name, name) == 0) return x->header[i].value;
  }
  return NULL;
}

/* Packs the answer where that may be (pack.h); caches are told that it depends on the client. */
static void pack_answer(weft_exchange *x) {
  bool may = x->code == 200 && strcmp(x->method, "GET") == 0 && x->text.n >= PACK_BYTES_MIN &&
             x->text.n <= PACK_BYTES_MAX && header_of_answer(x, "ETag") == NULL;
  if (!may) return;
  char vary[96];
  const char *others = header_of_answer(x, "Vary");
  (void)snprintf(vary, sizeof vary, "%.64s%sAccept-Encoding", others != NULL ? others : "", others != NULL ? ", " : "");
  weft_exchange_set_header(x, "Vary", vary);
  weft_text packed;
  if (!x->unpacks || !pack_gzip(&x->text, &packed)) return;
  weft_text_free(&x->text);
  x->text = packed;
  weft_exchange_set_header(x, "Content-Encoding", "gzip");
  if (header_of_answer(x, "Content-Encoding") == NULL) x->lacks_text = true; /* bytes that nobody could read */
}

void weft_exchange_answer(weft_exchange *x, int code, const char *type, weft_text *body) {
  WEFT_CHECK(x->answer == ANSWER_NONE || x->answer == ANSWER_LATER);
  x->answer = ANSWER_WHOLE;
  x->code = code;
  x->type = type;
  x->lacks_text = weft_text_status(body) != WEFT_OK;
  if (x->lacks_text) {
    weft_text_free(body);
    x->code = 503;
    x->type = "application/json";
    *body = (weft_text){0};
  }
  x->text = *body;
  *body = (weft_text){0};
  pack_answer(x);
}

void weft_exchange_refuse(weft_exchange *x, const weft_refusal *why) {
  weft_text body = {0};
  if (x->refusals == NULL) {
    weft_refusal_json(why, &body);
  } else {
    x->refusals(why, x->id, &body);
  }
  if (why->http == 401) weft_exchange_set_header(x, "WWW-Authenticate", "Bearer");
  char seconds[16];
  (void)snprintf(seconds, sizeof seconds, "%u", why->retry_s > 0 ? why->retry_s : 1);
  if (why->http == 429) weft_exchange_set_header(x, "Retry-After", seconds);
  if (why->http == 429) weft_exchange_set_header(x, "X-Limit-Scope", why->own_limit ? "tenant" : "server");
  if (why->http == 503) weft_exchange_set_header(x, "Retry-After", "5");
  const weft_log_field fields[] = {weft_log_words("id", x->id), weft_log_number("code", (uint64_t)why->http),
                                   weft_log_words("error", why->code)};
  const weft_log_event event = {"refused", why->message, fields, 3};
  weft_log_tell(WEFT_LOG_INFO, &event);
  weft_exchange_answer(x, why->http, "application/json", &body);
}

void weft_exchange_set_refusals(weft_exchange *x, weft_refusal_form form) {
  x->refusals = form;
}

static void set_source(weft_exchange *x, answer_kind kind, const weft_source *source) {
  WEFT_CHECK(x->answer == ANSWER_NONE);
  x->source = *source;
  x->answer = kind;
}

void weft_exchange_stream(weft_exchange *x, const char *type, const weft_source *source) {
  set_source(x, ANSWER_STREAM, source);
  x->code = 200;
  x->type = type;
}

void weft_exchange_later(weft_exchange *x, const weft_source *source) {
  set_source(x, ANSWER_LATER, source);
}

bool http_settle(weft_exchange *x) {
  if (x->answer != ANSWER_LATER) return true;
  weft_pull pull = x->source.pull(x->source.self, x, &x->http->turn_work, NULL);
  if (pull == WEFT_PULL_MORE) http_await_turn(x->connection); /* behind the others: it may have very much more */
  if (pull == WEFT_PULL_BROKEN || (pull == WEFT_PULL_END && x->answer == ANSWER_LATER)) {
    weft_refusal why;
    (void)weft_refuse(&why, 500, "internal", NULL, "the answer could not be made");
    weft_exchange_refuse(x, &why);
  }
  return x->answer != ANSWER_LATER;
}

/* ---- what goes out ---- */

static const char *reason_of(int code) {
  static const struct {
    int code;
    const char *reason;
  } rows[] = {{200, "OK"},
              {204, "No Content"},
              {304, "Not Modified"},
              {400, "Bad Request"},
              {401, "Unauthorized"},
              {403, "Forbidden"},
              {404, "Not Found"},
              {405, "Method Not Allowed"},
              {408, "Request Timeout"},
              {409, "Conflict"},
              {413, "Content Too Large"},
              {414, "URI Too Long"},
              {415, "Unsupported Media Type"},
              {417, "Expectation Failed"},
              {429, "Too Many Requests"},
              {431, "Request Header Fields Too Large"},
              {499, "Client Closed Request"},
              {500, "Internal Server Error"},
              {501, "Not Implemented"},
              {503, "Service Unavailable"},
              {504, "Gateway Timeout"},
              {505, "HTTP Version Not Supported"}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    if (rows[i].code == code) return rows[i].reason;
  }
  return code < 400 ? "OK" : "Error";
}

/* The day and time in every answer, made once a second. */
static const char *date_of(weft_http *http) {
  struct timespec now;
  struct tm day;
  (void)clock_gettime(CLOCK_REALTIME_COARSE, &now); /* cannot fail with this clock */
  if ((uint64_t)now.tv_sec != http->date_s && gmtime_r(&now.tv_sec, &day) != NULL) {
    (void)strftime(http->date, sizeof http->date, "%a, %d %b %Y %H:%M:%S GMT", &day);
    http->date_s = (uint64_t)now.tv_sec;
  }
  return http->date;
}

static void put_first(http_connection *c, int code) {
  weft_text_printf(&c->out, "HTTP/1.1 %d %s\r\nDate: %s\r\n", code, reason_of(code), date_of(c->http));
}

/* Ends the head. */
static void put_connection(http_connection *c) {
  if (atomic_load(&c->http->passed)) c->keep_alive = false;
  if (!c->keep_alive) {
    weft_text_puts(&c->out, "Connection: close\r\n\r\n");
  } else {
    weft_text_puts(&c->out, c->minor == 0 ? "Connection: keep-alive\r\n\r\n" : "\r\n");
  }
}

/* A whole answer for which there is no memory to wait in gives way to a short one that says so. */
static void make_room(weft_exchange *x) {
  weft_refusal why;
  if (http_charge_answer(x, &why)) return;
  weft_text_free(&x->text);
  x->answer = ANSWER_NONE;
  weft_exchange_refuse(x, &why);
}

/* In the form of OpenAI's dialect, whichever is spoken: to write another one takes memory. */
static const char no_memory_body[] =
    "{\"error\":{\"message\":\"no memory for the answer: try again later\",\"type\":\"server_error\",\"param\":null,"
    "\"code\":\"no_memory\"}}";

void http_put_answer(http_connection *c) {
  weft_exchange *x = c->x;
  bool streams = x->answer == ANSWER_STREAM;
  if (!streams) make_room(x);
  const char *bytes = x->lacks_text ? no_memory_body : x->text.bytes;
  size_t n = x->lacks_text ? sizeof no_memory_body - 1 : x->text.n;
  WEFT_CHECK(!x->begun && (streams || x->answer == ANSWER_WHOLE));
  x->begun = true;
  if (streams && c->minor == 0) c->keep_alive = false; /* its end is the end of the connection */
  put_first(c, x->code);
  if (x->type != NULL) weft_text_printf(&c->out, "Content-Type: %s\r\n", x->type);
  weft_text_printf(&c->out, "X-Request-Id: %s\r\n", x->id);
  const weft_trace_context *t = &x->trace;
  if (t->known) weft_text_printf(&c->out, "traceresponse: 00-%s-%s-%s\r\n", t->trace_id, t->span_id, t->flags);
  for (uint32_t i = 0; i < x->n_headers; i++) {
    weft_text_printf(&c->out, "%s: %s\r\n", x->header[i].name, x->header[i].value);
  }
  if (streams) weft_text_puts(&c->out, "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n");
  if (streams && c->minor > 0) weft_text_puts(&c->out, "Transfer-Encoding: chunked\r\n");
  if (!streams && x->code != 204 && x->code != 304) weft_text_printf(&c->out, "Content-Length: %zu\r\n", n);
  put_connection(c);
  bool small = n <= SMALL_ANSWER_BYTES;
  if (!streams && small && !c->bodiless) weft_text_append(&c->out, bytes, n);
  if (streams || small || c->bodiless) weft_text_free(&x->text);
}

bool http_feed(http_connection *c) {
  weft_exchange *x = c->x;
  size_t left = x->text.n - x->n_fed, n = left < SMALL_ANSWER_BYTES ? left : SMALL_ANSWER_BYTES;
  if (n > 0) weft_text_append(&c->out, x->text.bytes + x->n_fed, n);
  x->n_fed += n;
  c->http->turn_work -= (int64_t)n;
  if (n < left) return true;
  weft_text_free(&x->text);
  return false;
}

/* Bytes that are no request have no exchange: the answer is written here. */
void http_put_fault(http_connection *c, const weft_http_fault *fault) {
  weft_refusal why;
  weft_text body = {0};
  (void)weft_refuse(&why, fault->code, fault->word, NULL, "%s", fault->message);
  weft_refusal_json(&why, &body);
  const weft_log_field fields[] = {weft_log_number("code", (uint64_t)fault->code),
                                   weft_log_words("error", fault->word)};
  const weft_log_event event = {"no_request", fault->message, fields, 2};
  weft_log_tell(WEFT_LOG_INFO, &event);
  c->keep_alive = false;
  put_first(c, fault->code);
  weft_text_printf(&c->out, "Content-Type: application/json\r\nContent-Length: %zu\r\n", body.n);
  put_connection(c);
  weft_text_append(&c->out, body.bytes, body.n);
  if (weft_text_status(&body) != WEFT_OK) c->out.refused = true;
  weft_text_free(&body);
}

/* ---- what handlers read ---- */

const char *weft_exchange_method(const weft_exchange *x) {
  return x->method;
}

const char *weft_exchange_path(const weft_exchange *x) {
  return x->path;
}

const char *weft_exchange_query(const weft_exchange *x) {
  return x->query;
}

void weft_exchange_set_path(weft_exchange *x, const char *path) {
  char *copy = weft_strdup(path);
  if (copy == NULL) return;
  weft_free(x->path);
  x->path = copy;
}

const char *weft_exchange_id(const weft_exchange *x) {
  return x->id;
}

const weft_trace_context *weft_exchange_trace(const weft_exchange *x) {
  return &x->trace;
}

const char *weft_exchange_host(const weft_exchange *x) {
  return x->http->head.host;
}

const char *weft_exchange_header(const weft_exchange *x, const char *name) {
  return weft_http_field_of(&x->http->head, name);
}

const char *weft_exchange_header_at(const weft_exchange *x, const char *name, uint32_t index) {
  return weft_http_field_at(&x->http->head, name, index);
}

const char *weft_exchange_body(const weft_exchange *x, size_t *n) {
  *n = x->body.n;
  return x->body.bytes == NULL ? "" : x->body.bytes;
}

bool weft_exchange_is_local(const weft_exchange *x) {
  return x->is_local;
}

weft_note *weft_exchange_note(weft_exchange *x) {
  return &x->note;
}
