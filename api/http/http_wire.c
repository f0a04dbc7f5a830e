/* SPDX-License-Identifier: MIT */
/* The bytes of a connection: the only file that reads from sockets and writes to them, as they are or in TLS.
 *
 * With TLS, `out` holds the plain bytes of the answer and `wire` the encrypted ones: a little at a time, so that a long
 * answer is not in memory twice.
 *
 * A handshake costs a processor about as much as a thousand reads. So handshakes go one step at a time, between two
 * rounds in which all other connections get on, and the next is the oldest one of the address that has fewest of them:
 * an address that begins thousands of handshakes delays no answer, and no other address's handshake. */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "api/http/http_internal.h"
#include "base/log.h"

enum {
  WIRE_BYTES = 32768, /* of out that are made wire at a time */
  KEPT_BYTES = 4096   /* memory that a connection keeps between two answers */
};

bool http_wire_open(http_connection *c) {
  weft_http *http = c->http;
  (void)pthread_mutex_lock(&http->lock);
  bool plain = http->identity == NULL;
  if (!plain) c->tls = tls_open(http->identity);
  (void)pthread_mutex_unlock(&http->lock);
  return plain || c->tls != NULL;
}

static void set_waits(http_connection *c, bool waits) {
  if (c->waits != waits) c->http->n_waiting += waits ? 1 : (uint32_t)-1;
  c->waits = waits;
}

void http_wire_close(http_connection *c) {
  set_waits(c, false);
  tls_close(c->tls);
  weft_text_free(&c->in);
  weft_text_free(&c->out);
  weft_text_free(&c->wire);
}

bool http_is_shaking(const http_connection *c) {
  return c->tls != NULL && !tls_is_ready(c->tls);
}

/* ---- out ---- */

/* False: the peer is gone. */
static bool push_bytes(http_connection *c, const weft_text *text, size_t *sent) {
  while (*sent < text->n && c->writable) {
    ssize_t n = send(c->fd, text->bytes + *sent, text->n - *sent, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK) return false;
    if (n < 0) c->writable = false;
    if (n > 0) *sent += (size_t)n;
  }
  return true;
}

static void forget_sent(weft_text *text, size_t *sent) {
  *sent = 0;
  if (text->capacity > KEPT_BYTES) {
    weft_text_free(text);
  } else {
    weft_text_clear(text);
  }
}

static bool push_wire(http_connection *c) {
  for (;;) {
    if (c->wire.refused || !push_bytes(c, &c->wire, &c->wire_sent)) return false;
    size_t n = c->out.n - c->sent;
    if (c->wire_sent < c->wire.n || n == 0) return true;
    weft_text_clear(&c->wire);
    c->wire_sent = 0;
    if (n > WIRE_BYTES) n = WIRE_BYTES;
    if (!tls_say(c->tls, c->out.bytes + c->sent, n, &c->wire)) return false;
    c->sent += n;
  }
}

bool http_send(http_connection *c) {
  if (c->out.refused) return false; /* half an answer would look whole */
  if (c->out.n == 0 && c->wire.n == 0) return true;
  if (!(c->tls == NULL ? push_bytes(c, &c->out, &c->sent) : push_wire(c))) return false;
  if (c->sent < c->out.n || c->wire_sent < c->wire.n) {
    if (c->stall_us == 0) c->stall_us = http_now(c->http) + http_idle_us(c->http);
    return true;
  }
  c->stall_us = 0;
  forget_sent(&c->out, &c->sent);
  forget_sent(&c->wire, &c->wire_sent);
  return true;
}

void http_say_end(http_connection *c) {
  if (c->tls != NULL) tls_end(c->tls, &c->wire);
  (void)push_bytes(c, &c->wire,
                   &c->wire_sent); /* a few bytes after an answer that was taken: what cannot go now is not missed */
  weft_text_free(&c->wire);
  c->wire_sent = 0;
  (void)shutdown(c->fd, SHUT_WR); /* a peer that is gone is seen when it is read */
}

/* ---- in ---- */

/* A client that speaks plain HTTP is answered in plain HTTP, so that it learns why it is refused. */
static wire_news answer_plain(http_connection *c) {
  static const weft_http_fault fault = {400, "tls_needed", "this port speaks TLS: ask with https://"};
  weft_http *http = c->http;
  if (!http->told_of_http) { /* the first time; later ones are requests that were malformed */
    weft_log(WEFT_LOG_WARN, "a client sent plain HTTP to the port that speaks TLS: it has to ask with https://");
  }
  http->told_of_http = true;
  tls_close(c->tls);
  c->tls = NULL;
  weft_text_free(&c->wire);
  c->wire_sent = 0;
  http_refuse_head(c, WEFT_HTTP_HANDSHAKE, &fault);
  return WIRE_SOME;
}

static wire_news take_wire(http_connection *c, const char *bytes, size_t n) {
  bool shaking = http_is_shaking(c);
  const char *why;
  switch (tls_take(c->tls, bytes, n, &c->in, &c->wire, &why)) {
    case TLS_GOES_ON:
      return WIRE_SOME;
    case TLS_ENDED:
      c->ended = c->hung_up = true;
      return WIRE_SOME;
    case TLS_IS_HTTP:
      return answer_plain(c);
    case TLS_BROKEN:
      break;
  }
  weft_log(WEFT_LOG_INFO, "%s: %s", shaking ? "no TLS handshake" : "broken TLS", why);
  if (shaking) http_count(c->http, WEFT_HTTP_HANDSHAKE);
  (void)push_bytes(c, &c->wire, &c->wire_sent); /* the alert, if the peer takes it */
  return WIRE_OVER;
}

/* Whether bytes are wanted now. A peer that does not take what its own words make necessary is not read, nor one that
 * takes it so slowly that it never is all sent: what is sent keeps its memory until then. */
static bool may_read(http_connection *c) {
  bool small = c->wire.n - c->wire_sent <= WIRE_BYTES && c->wire.n <= 2 * WIRE_BYTES, wanted = c->readable && small;
  set_waits(c, wanted && http_is_shaking(c) && !c->turn);
  c->turn = false;
  return wanted && !c->waits;
}

wire_news http_receive(http_connection *c, size_t n_max) {
  weft_http *http = c->http;
  ssize_t n;
  if (c->ended) return WIRE_OVER;
  if (!may_read(c)) return WIRE_NOTHING;
  do {
    n = recv(c->fd, http->scratch, n_max, 0);
  } while (n < 0 && errno == EINTR);
  if (n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK)) return WIRE_OVER;
  if (n < 0 || ((size_t)n < n_max && !c->hung_up)) c->readable = false;
  if (n < 0) return WIRE_NOTHING;
  wire_news news = WIRE_SOME;
  if (c->tls != NULL && c->phase != PHASE_LINGER) {
    news = take_wire(c, http->scratch, (size_t)n);
  } else {
    weft_text_append(&c->in, http->scratch, (size_t)n);
  }
  return weft_text_status(&c->in) == WEFT_OK ? news : WIRE_OVER;
}

/* ---- handshakes ---- */

void http_shake_one(weft_http *http) {
  uint32_t n_of[ADDRESSES_MAX] = {0};
  http_connection *next = NULL;
  for (http_connection *c = http->first; c != NULL; c = c->next) n_of[c->address] += http_is_shaking(c);
  for (http_connection *c = http->first; c != NULL; c = c->next) {
    if (!c->waits) continue;
    bool sooner = next == NULL || n_of[c->address] < n_of[next->address] ||
                  (n_of[c->address] == n_of[next->address] && c->since_us <= next->since_us);
    if (sooner) next = c;
  }
  if (next == NULL) return;
  next->turn = true;
  http_drive(next);
}
