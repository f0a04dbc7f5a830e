/* SPDX-License-Identifier: MIT */
/* One request and its answer; see http.h and http_internal.h. */
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "api/http_internal.h"
#include "base/check.h"
#include "base/log.h"
#include "base/memory.h"

enum { STREAM_BLOCK_BYTES = 16384 };

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

static void make_id(weft_exchange *x) {
  static const char digits[] = "0123456789abcdef";
  const char *given = MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, "X-Request-Id");
  if (given != NULL && id_is_fit(given)) {
    memcpy(x->id, given, strlen(given) + 1);
    return;
  }
  unsigned char bytes[16];
  if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes) memset(bytes, 0, sizeof bytes);
  for (size_t i = 0; i < sizeof bytes; i++) {
    x->id[2 * i] = digits[bytes[i] >> 4];
    x->id[2 * i + 1] = digits[bytes[i] & 15];
  }
}

weft_exchange *http__exchange_open(weft_http *http, struct MHD_Connection *connection, const char *path,
                                   const char *method) {
  weft_exchange *x = weft_alloc(1, sizeof *x);
  if (x == NULL) return NULL;
  x->http = http;
  x->connection = connection;
  x->method = weft_strdup(method);
  x->path = weft_strdup(path);
  if (x->method == NULL || x->path == NULL) {
    weft_free(x->method);
    weft_free(x->path);
    weft_free(x);
    return NULL;
  }
  make_id(x);
  (void)pthread_mutex_init(&x->lock, NULL); /* cannot fail with default attributes on this system */
  (void)pthread_mutex_lock(&http->lock);
  x->next = http->first;
  if (x->next != NULL) x->next->previous = x;
  http->first = x;
  http->n_active += 1;
  (void)pthread_mutex_unlock(&http->lock);
  return x;
}

static void drop_body(weft_exchange *x) {
  atomic_fetch_sub(&x->http->n_body_bytes, x->body.n);
  weft_text_free(&x->body);
}

void http__exchange_close(weft_exchange *x) {
  weft_http *http = x->http;
  /* first nobody can find it any more, then its source ends, then its memory */
  (void)pthread_mutex_lock(&http->lock);
  if (x->next != NULL) x->next->previous = x->previous;
  if (x->previous != NULL) x->previous->next = x->next;
  if (http->first == x) http->first = x->next;
  (void)pthread_mutex_unlock(&http->lock);
  if (x->watched) weft_watch_remove(http->watch, x->ticket);
  if (x->source.pull != NULL) x->source.close(x->source.self);
  (void)pthread_mutex_lock(&x->lock); /* whoever woke it last is still letting go of the lock */
  (void)pthread_mutex_unlock(&x->lock);
  drop_body(x);
  weft_text_free(&x->text);
  for (uint32_t i = 0; i < x->n_headers; i++) {
    weft_free(x->header[i].name);
    weft_free(x->header[i].value);
  }
  weft_free(x->method);
  weft_free(x->path);
  (void)pthread_mutex_destroy(&x->lock);
  weft_free(x);
  (void)pthread_mutex_lock(&http->lock);
  http->n_active -= 1;
  if (http->n_active == 0) (void)pthread_cond_broadcast(&http->idle);
  (void)pthread_mutex_unlock(&http->lock);
}

/* ---- waiting and waking ---- */

void weft_exchange_wake(weft_exchange *x) {
  (void)pthread_mutex_lock(&x->lock);
  x->woken = true;
  if (x->suspended && !x->working) {
    x->suspended = false;
    MHD_resume_connection(x->connection);
  }
  (void)pthread_mutex_unlock(&x->lock);
}

bool http__suspend(weft_exchange *x) {
  (void)pthread_mutex_lock(&x->lock);
  bool waits = !x->woken && !atomic_load(&x->http->abort);
  if (waits) {
    x->suspended = true;
    MHD_suspend_connection(x->connection);
  }
  (void)pthread_mutex_unlock(&x->lock);
  return waits;
}

void http__tell_left(weft_exchange *x, bool by_client) {
  (void)pthread_mutex_lock(&x->lock);
  if (by_client) x->left = true;
  bool tell = x->source.pull != NULL && !x->told;
  weft_source source = x->source;
  if (tell) x->told = true;
  (void)pthread_mutex_unlock(&x->lock);
  if (tell) source.left(source.self);
  if (by_client) weft_exchange_wake(x);
}

static void set_source(weft_exchange *x, const weft_source *source) {
  WEFT_CHECK(x->answer == ANSWER_NONE);
  (void)pthread_mutex_lock(&x->lock);
  x->source = *source;
  bool left = x->left;
  (void)pthread_mutex_unlock(&x->lock);
  if (left) http__tell_left(x, true);
}

/* ---- answers ---- */

void weft_exchange_set_header(weft_exchange *x, const char *name, const char *value) {
  WEFT_CHECK(x->n_headers < HEADERS_MAX);
  char *n = weft_strdup(name), *v = weft_strdup(value);
  if (n == NULL || v == NULL) { /* an answer without a hint is still an answer */
    weft_free(n);
    weft_free(v);
    return;
  }
  x->header[x->n_headers].name = n;
  x->header[x->n_headers++].value = v;
}

void weft_exchange_answer(weft_exchange *x, int code, const char *type, weft_text *body) {
  WEFT_CHECK(x->answer == ANSWER_NONE || x->answer == ANSWER_LATER);
  x->answer = ANSWER_WHOLE;
  x->code = code;
  x->type = type;
  if (weft_text_status(body) != WEFT_OK) {
    weft_text_free(body);
    x->code = 503;
    *body = (weft_text){0};
  }
  x->text = *body;
  *body = (weft_text){0};
}

void weft_exchange_refuse(weft_exchange *x, const weft_refusal *why) {
  weft_text body = {0};
  weft_refusal_json(why, &body);
  if (why->http == 401) weft_exchange_set_header(x, "WWW-Authenticate", "Bearer");
  char seconds[16];
  (void)snprintf(seconds, sizeof seconds, "%u", why->retry_s > 0 ? why->retry_s : 1);
  if (why->http == 429) weft_exchange_set_header(x, "Retry-After", seconds);
  if (why->http == 503) weft_exchange_set_header(x, "Retry-After", "5");
  weft_log(WEFT_LOG_INFO, "%s %s: %d: %s", x->method, x->path, why->http, why->message);
  weft_exchange_answer(x, why->http, "application/json", &body);
}

void weft_exchange_stream(weft_exchange *x, const char *type, const weft_source *source) {
  set_source(x, source);
  x->answer = ANSWER_STREAM;
  x->code = 200;
  x->type = type;
}

void weft_exchange_later(weft_exchange *x, const weft_source *source) {
  set_source(x, source);
  x->answer = ANSWER_LATER;
}

/* True when nobody wants more. Forgets earlier wakes: what they told is pulled next. */
static bool begin_pull(weft_exchange *x) {
  (void)pthread_mutex_lock(&x->lock);
  x->woken = false;
  bool over = x->left;
  (void)pthread_mutex_unlock(&x->lock);
  return over || atomic_load(&x->http->abort);
}

bool http__settle(weft_exchange *x) {
  weft_refusal why;
  while (x->answer == ANSWER_LATER) {
    if (begin_pull(x)) {
      (void)weft_refuse(&why, x->left ? CODE_LEFT : 503, "cancelled", NULL, "the request was cancelled");
      weft_exchange_refuse(x, &why);
      break;
    }
    weft_pull pull = x->source.pull(x->source.self, x, NULL);
    if (pull == WEFT_PULL_WAIT && http__suspend(x)) return false;
    if (pull == WEFT_PULL_BROKEN || (pull == WEFT_PULL_END && x->answer == ANSWER_LATER)) {
      (void)weft_refuse(&why, 500, "internal", NULL, "the answer could not be made");
      weft_exchange_refuse(x, &why);
    }
  }
  return true;
}

static ssize_t read_stream(void *self, uint64_t position, char *to, size_t n_max) {
  weft_exchange *x = self;
  (void)position; /* bytes are asked for in order */
  for (;;) {
    if (x->sent < x->text.n) {
      size_t n = x->text.n - x->sent < n_max ? x->text.n - x->sent : n_max;
      memcpy(to, x->text.bytes + x->sent, n);
      x->sent += n;
      return (ssize_t)n;
    }
    if (x->ended) return MHD_CONTENT_READER_END_OF_STREAM;
    weft_text_clear(&x->text);
    x->sent = 0;
    if (begin_pull(x)) return MHD_CONTENT_READER_END_WITH_ERROR;
    weft_pull pull = x->source.pull(x->source.self, x, &x->text);
    if (pull == WEFT_PULL_BROKEN || weft_text_status(&x->text) != WEFT_OK) return MHD_CONTENT_READER_END_WITH_ERROR;
    if (pull == WEFT_PULL_END) x->ended = true;
    if (pull == WEFT_PULL_WAIT && x->text.n == 0 && http__suspend(x)) return 0;
  }
}

enum MHD_Result http__respond(weft_exchange *x) {
  struct MHD_Response *response;
  if (x->answer == ANSWER_STREAM) {
    response = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK_BYTES, read_stream, x, NULL);
  } else {
    WEFT_CHECK(x->answer == ANSWER_WHOLE);
    /* the text outlives the response: both end with the exchange */
    response = MHD_create_response_from_buffer(x->text.n, x->text.bytes, MHD_RESPMEM_PERSISTENT);
  }
  if (response == NULL) return MHD_NO;
  bool good = MHD_add_response_header(response, "Content-Type", x->type) == MHD_YES &&
              MHD_add_response_header(response, "X-Request-Id", x->id) == MHD_YES;
  if (x->answer == ANSWER_STREAM) {
    good = good && MHD_add_response_header(response, "Cache-Control", "no-cache") == MHD_YES &&
           MHD_add_response_header(response, "X-Accel-Buffering", "no") == MHD_YES;
  }
  for (uint32_t i = 0; i < x->n_headers && good; i++) {
    good = MHD_add_response_header(response, x->header[i].name, x->header[i].value) == MHD_YES;
  }
  enum MHD_Result result = good ? MHD_queue_response(x->connection, (unsigned)x->code, response) : MHD_NO;
  MHD_destroy_response(response); /* the connection holds its own reference */
  x->queued = result == MHD_YES;
  return result;
}

/* ---- what handlers read ---- */

const char *weft_exchange_method(const weft_exchange *x) {
  return x->method;
}

const char *weft_exchange_path(const weft_exchange *x) {
  return x->path;
}

const char *weft_exchange_id(const weft_exchange *x) {
  return x->id;
}

const char *weft_exchange_header(const weft_exchange *x, const char *name) {
  return MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, name);
}

const char *weft_exchange_body(const weft_exchange *x, size_t *n) {
  *n = x->body.n;
  return x->body.bytes == NULL ? "" : x->body.bytes;
}

bool weft_exchange_is_local(const weft_exchange *x) {
  const union MHD_ConnectionInfo *info = MHD_get_connection_info(x->connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
  if (info == NULL || info->client_addr == NULL) return false;
  if (info->client_addr->sa_family == AF_INET) {
    const struct sockaddr_in *v4 = (const void *)info->client_addr;
    return ntohl(v4->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
  }
  if (info->client_addr->sa_family != AF_INET6) return false;
  const struct in6_addr *v6 = &((const struct sockaddr_in6 *)(const void *)info->client_addr)->sin6_addr;
  return IN6_IS_ADDR_LOOPBACK(v6) || (IN6_IS_ADDR_V4MAPPED(v6) && v6->s6_addr[12] == IN_LOOPBACKNET);
}

weft_note *weft_exchange_note(weft_exchange *x) {
  return &x->note;
}
