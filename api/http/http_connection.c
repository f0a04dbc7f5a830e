/* SPDX-License-Identifier: MIT */
/* One connection from its first byte to its last: what is read, what is sent, and when it has to end.
 *
 * The socket is watched edge-triggered for all that can happen to it, so the system tells each thing once: readable
 * and writable remember what it told until a call would have blocked, and hung_up remembers that the peer closed
 * (EPOLLRDHUP in http.c, an error of a read or write in http_wire.c). This is where a client that leaves is noticed:
 * make_answer sees hung_up, and http_drop ends the connection and tells the source of the answer, which cancels its
 * generations (stream.c). The engine ends them at its next turn, and frees their pages when none of their rows is in
 * flight (lifecycle.c). Bytes are read and written by http_wire.c. */
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "api/http/http_internal.h"
#include "api/http/pack.h"
#include "base/check.h"
#include "base/memory.h"

enum {
  TURNS_MAX = 16,         /* steps of one connection before others are driven */
  HEAD_US = 10 * 1000000, /* from the first byte of a head to its last */
  BODY_US = 10 * 1000000, /* for a body, and one second more for every BODY_BYTES_PER_S bytes of it */
  BODY_BYTES_PER_S = 65536,
  LINGER_US = 10 * 1000000,
  LINGER_BYTES_MAX = 64 << 20,
  HEAD_READ_BYTES = 16384,
  OUT_BYTES = 65536 /* pulled before it is sent */
};

/* What to do after a step. */
typedef enum step { STEP_AGAIN, STEP_WAIT, STEP_DROP } step;

/* ---- opening and closing ---- */

static void enter_phase(http_connection *c, http_phase phase, uint64_t us) {
  c->phase = phase;
  c->since_us = http_now(c->http);
  c->deadline_us = us == 0 ? 0 : c->since_us + us;
}

static uint64_t head_us(const weft_http *http) {
  return http_idle_us(http) < HEAD_US ? http_idle_us(http) : HEAD_US;
}

bool http_connection_open(weft_http *http, int fd, const struct sockaddr_storage *peer) {
  http_connection *c = weft_alloc(1, sizeof *c);
  if (c == NULL) return false;
  *c = (http_connection){.http = http, .fd = fd, .readable = true, .writable = true, .next = http->first};
  struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = c};
  if (!http_wire_open(c) || epoll_ctl(http->epoll, EPOLL_CTL_ADD, fd, &event) != 0) {
    http_wire_close(c);
    weft_free(c);
    return false;
  }
  int one = 1;
  (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one,
                   sizeof one); /* a refusal costs time only; unix sockets have none */
  c->address = http_address_of(http, fd, peer, &c->local);
  enter_phase(c, PHASE_HEAD, head_us(http));
  if (c->next != NULL) c->next->previous = c;
  http->first = c;
  http->n_connections += 1;
  http_postpone(c);
  return true;
}

/* Parts the exchange from its connection: it ends at once, or, while a worker has it, when that worker is done. */
static void part_exchange(http_connection *c, bool left) {
  weft_exchange *x = c->x;
  if (x == NULL) return;
  c->x = NULL;
  x->connection = NULL;
  atomic_store(&x->unwanted, true);
  if (http_unqueue(x)) http_finish(x, left);
}

static void forget_pending(http_connection *c) {
  weft_http *http = c->http;
  http_connection *before = NULL;
  for (http_connection *at = http->pending; at != c; at = at->next_pending) before = at;
  if (before == NULL) http->pending = c->next_pending;
  if (before != NULL) before->next_pending = c->next_pending;
  if (http->last_pending == c) http->last_pending = before;
}

static void close_connection(http_connection *c) {
  weft_http *http = c->http;
  if (c->pending) forget_pending(c);
  http_leave_line(c);
  if (c->next != NULL) c->next->previous = c->previous;
  if (c->previous != NULL) c->previous->next = c->next;
  if (http->first == c) http->first = c->next;
  http->n_connections -= 1;
  (void)close(c->fd); /* nothing is left to lose; epoll forgets it */
  http_wire_close(c);
  weft_free(c);
}

void http_drop(http_connection *c) {
  part_exchange(c, true);
  close_connection(c);
}

void http_postpone(http_connection *c) {
  weft_http *http = c->http;
  if (c->pending) return;
  c->pending = true;
  c->next_pending = NULL;
  if (http->last_pending != NULL) http->last_pending->next_pending = c;
  if (http->pending == NULL) http->pending = c;
  http->last_pending = c;
}

/* ---- bytes ---- */

/* Heads come in small pieces, so that a connection in its head is small. */
static wire_news receive_bytes(http_connection *c) {
  bool large = c->phase == PHASE_BODY || c->phase == PHASE_SKIP || c->phase == PHASE_LINGER;
  return http_receive(c, large ? READ_BYTES : HEAD_READ_BYTES);
}

static void consume_bytes(http_connection *c, size_t n) {
  memmove(c->in.bytes, c->in.bytes + n, c->in.n - n);
  c->in.n -= n;
  if (c->in.n == 0) weft_text_free(&c->in);
}

/* ---- the head ---- */

void http_refuse_head(http_connection *c, weft_http_end how, const weft_http_fault *fault) {
  http_count(c->http, how);
  http_put_fault(c, fault);
  enter_phase(c, PHASE_FLUSH, 0);
}

/* The answer is there although the body is not: it goes out at once. A small rest is read, so that the connection
 * stays of use; otherwise it ends. */
static step answer_early(http_connection *c) {
  uint64_t rest = c->length - c->n_read;
  bool skips = c->keep_alive && !c->chunked && rest <= SMALL_BODY_BYTES;
  http_drop_body(c->x);
  if (!skips) c->keep_alive = false;
  http_put_answer(c);
  if (skips) c->phase = PHASE_SKIP; /* within the time that the body has */
  if (!skips) enter_phase(c, PHASE_FLUSH, 0);
  return STEP_AGAIN;
}

static step refuse_body(http_connection *c, int code, const char *word, const char *message) {
  weft_refusal why;
  (void)weft_refuse(&why, code, word, NULL, "%s", message);
  weft_exchange_refuse(c->x, &why);
  return answer_early(c);
}

static step refuse_large(http_connection *c) {
  char line[160];
  (void)snprintf(line, sizeof line, "the body is larger than %llu bytes: send less, or serve with a larger --body-mib",
                 (unsigned long long)c->http->config.body_bytes_max);
  return refuse_body(c, 413, "body_too_large", line);
}

void http_give_up_body(http_connection *c, int code, const char *word, const char *message) {
  c->keep_alive = false;
  (void)refuse_body(c, code, word, message);
  http_postpone(c);
}

void http_give_up_answer(http_connection *c) {
  http_discharge(c->x);
  weft_text_free(&c->out);
  weft_text_free(&c->x->text);
  c->sent = 0;
  c->out.refused = true; /* http_send ends the connection */
  http_postpone(c);
}

/* The request is whole. */
static step dispatch_request(http_connection *c) {
  weft_exchange *x = c->x;
  weft_http *http = c->http;
  weft_refusal why;
  enter_phase(c, PHASE_WORK, 0);
  atomic_fetch_add(&http->n_active, 1);
  x->active = true;
  if (x->quick) {
    http->config.handle(http->config.self, x);
    WEFT_CHECK(x->answer == ANSWER_WHOLE);
  } else if (c->hung_up) {
    return STEP_DROP; /* the answer would go nowhere */
  } else if (!http_take_place(x, &why)) {
    weft_exchange_refuse(x, &why);
  } else {
    http_queue(x);
  }
  return STEP_AGAIN;
}

static step begin_request(http_connection *c, const weft_http_head *head) {
  weft_http *http = c->http;
  weft_exchange *x = c->x = http_exchange_open(c, head);
  if (x == NULL) return STEP_DROP;
  c->bodiless = strcmp(head->method, "HEAD") == 0;
  c->keep_alive = head->keep_alive;
  c->minor = head->minor;
  c->chunked = head->chunked;
  c->length = head->length;
  c->n_read = 0;
  c->chunks = (weft_chunks){0};
  bool has_body = c->chunked || c->length > 0;
  x->unpacks = pack_wanted(weft_exchange_header(x, "Accept-Encoding"), "gzip") > 0;
  x->quick = http->config.begin(http->config.self, x);
  x->who = http->config.n_tenants > 1 ? x->note.tenant % TENANTS_MAX : TENANTS_MAX + c->address;
  enter_phase(c, has_body ? PHASE_BODY : PHASE_WORK, has_body ? BODY_US + c->length * 1000000 / BODY_BYTES_PER_S : 0);
  if (!has_body && x->answer == ANSWER_NONE) return dispatch_request(c);
  if (!has_body) return STEP_AGAIN;
  if (head->expects_continue && x->answer != ANSWER_NONE) c->keep_alive = false; /* the body may come, or not */
  if (x->answer != ANSWER_NONE) return answer_early(c);
  if (c->length > http->config.body_bytes_max) return refuse_large(c);
  x->body.max = http->config.body_bytes_max + 1;
  if (head->expects_continue) weft_text_puts(&c->out, "HTTP/1.1 100 Continue\r\n\r\n");
  return STEP_AGAIN;
}

static step read_head(http_connection *c) {
  weft_http *http = c->http;
  weft_http_fault fault;
  weft_parse parse = weft_http_scan(c->in.bytes, c->in.n, &c->scan, &fault);
  if (parse == WEFT_PARSE_MORE) {
    bool first = c->in.n == 0, shaking = http_is_shaking(c);
    wire_news got = receive_bytes(c);
    bool begins = (first && c->in.n > 0) || (shaking && !http_is_shaking(c));
    if (got == WIRE_SOME && begins && c->phase == PHASE_HEAD) enter_phase(c, PHASE_HEAD, head_us(http));
    return got == WIRE_SOME ? STEP_AGAIN : got == WIRE_NOTHING ? STEP_WAIT : STEP_DROP;
  }
  if (parse == WEFT_PARSE_DONE) {
    size_t n = c->scan.at;
    memcpy(http->head_bytes, c->in.bytes, n);
    http->head_bytes[n] = 0;
    consume_bytes(c, n);
    c->scan = (weft_head_scan){0};
    parse = weft_http_parse(http->head_bytes, n, &http->head, &fault);
  }
  if (parse != WEFT_PARSE_BAD) return begin_request(c, &http->head);
  http_refuse_head(c, WEFT_HTTP_MALFORMED, &fault);
  return STEP_AGAIN;
}

/* ---- the body ---- */

static step keep_bytes(http_connection *c, const char *bytes, size_t n) {
  weft_exchange *x = c->x;
  weft_refusal why;
  c->n_read += n;
  if (c->phase == PHASE_SKIP || n == 0) return STEP_AGAIN;
  if (c->n_read > c->http->config.body_bytes_max) return refuse_large(c);
  if (!http_charge(x, n, &why)) {
    weft_exchange_refuse(x, &why);
    return answer_early(c);
  }
  weft_text_append(&x->body, bytes, n);
  if (weft_text_status(&x->body) != WEFT_OK) return refuse_body(c, 503, "no_memory", "no memory for the body");
  return STEP_AGAIN;
}

/* The deadline of a body in chunks grows with the bytes that have come. */
static step read_chunks(http_connection *c) {
  weft_http_fault fault;
  const char *data;
  size_t used, n_data;
  weft_parse parse = WEFT_PARSE_MORE;
  step next = STEP_AGAIN;
  for (size_t at = 0; parse == WEFT_PARSE_MORE && c->phase == PHASE_BODY;) {
    if (at == c->in.n) {
      consume_bytes(c, at);
      return next;
    }
    parse = weft_http_unchunk(&c->chunks, c->in.bytes + at, c->in.n - at, &used, &data, &n_data, &fault);
    at += used;
    next = keep_bytes(c, data, n_data);
    if (parse != WEFT_PARSE_MORE || c->phase != PHASE_BODY) consume_bytes(c, at);
  }
  if (c->phase != PHASE_BODY) return next;
  if (parse == WEFT_PARSE_DONE) return dispatch_request(c);
  http_count(c->http, WEFT_HTTP_MALFORMED);
  return refuse_body(c, fault.code, fault.word, fault.message);
}

static step read_body(http_connection *c) {
  if (c->in.n == 0) {
    wire_news got = receive_bytes(c);
    if (got != WIRE_SOME) return got == WIRE_NOTHING ? STEP_WAIT : STEP_DROP;
    if (c->in.n == 0) return STEP_AGAIN;
  }
  if (c->chunked) {
    step next = read_chunks(c);
    if (c->phase == PHASE_BODY) c->deadline_us = c->since_us + BODY_US + c->n_read * 1000000 / BODY_BYTES_PER_S;
    return next;
  }
  uint64_t rest = c->length - c->n_read;
  size_t n = c->in.n < rest ? c->in.n : (size_t)rest;
  step next = keep_bytes(c, c->in.bytes, n);
  if (next == STEP_DROP) return next;
  consume_bytes(c, n);
  if (c->n_read < c->length) return STEP_AGAIN;
  if (c->phase == PHASE_BODY) return dispatch_request(c);
  if (c->phase == PHASE_SKIP) enter_phase(c, PHASE_FLUSH, 0);
  return STEP_AGAIN;
}

/* ---- the answer ---- */

static void put_chunk(http_connection *c, const weft_text *piece) {
  if (piece->n == 0 || c->bodiless) return;
  if (c->minor > 0) weft_text_printf(&c->out, "%zx\r\n", piece->n);
  weft_text_append(&c->out, piece->bytes, piece->n);
  if (c->minor > 0) weft_text_puts(&c->out, "\r\n");
}

/* A source that does not say what it costs counts for what it gives. */
static weft_pull pull_once(weft_exchange *x, int64_t *work, weft_text *piece) {
  size_t n = piece->n;
  int64_t before = *work;
  weft_pull pull = x->source.pull(x->source.self, x, work, piece);
  int64_t given = (int64_t)(piece->n - n);
  if (before - *work < given) *work = before - given;
  return pull;
}

/* Pulls more of a streamed answer. */
static step pull_stream(http_connection *c) {
  weft_exchange *x = c->x;
  weft_text piece = {0};
  weft_pull pull = WEFT_PULL_MORE;
  int64_t *work = &c->http->turn_work;
  if (!x->begun) http_put_answer(c);
  do {
    pull = pull_once(x, work, &piece);
  } while (pull == WEFT_PULL_MORE && piece.n<OUT_BYTES && * work> 0 && !piece.refused);
  if (c->out.n > 0 || piece.n > 0) c->told_us = http_now(c->http);
  put_chunk(c, &piece);
  bool broken = pull == WEFT_PULL_BROKEN || piece.refused;
  weft_text_free(&piece);
  if (broken) return STEP_DROP;
  if (pull == WEFT_PULL_END) {
    if (c->minor > 0 && !c->bodiless) weft_text_puts(&c->out, "0\r\n\r\n");
    enter_phase(c, PHASE_FLUSH, 0);
  }
  return c->out.n > 0 || pull != WEFT_PULL_WAIT ? STEP_AGAIN : STEP_WAIT;
}

/* The next part of a whole answer, when the one before it is sent. */
static step give_whole(http_connection *c) {
  if (!c->x->begun) http_put_answer(c);
  if (!http_feed(c)) enter_phase(c, PHASE_FLUSH, 0);
  return STEP_AGAIN;
}

void http_say_wait(http_connection *c, uint64_t now) {
  weft_exchange *x = c->x;
  bool waits = x != NULL && x->begun && x->answer == ANSWER_STREAM && x->source.wait != NULL && c->phase == PHASE_WORK;
  if (!waits || c->out.n > 0 || c->in_line || now - c->told_us < PING_US) return;
  weft_text piece = {0};
  x->source.wait(x->source.self, &piece);
  put_chunk(c, &piece);
  if (piece.refused) c->out.refused = true;
  weft_text_free(&piece);
  c->told_us = now;
  http_postpone(c);
}

static bool has_worker(weft_exchange *x) {
  (void)pthread_mutex_lock(&x->http->lock);
  bool working = x->working;
  (void)pthread_mutex_unlock(&x->http->lock);
  return working;
}

static step make_answer(http_connection *c) {
  weft_exchange *x = c->x;
  if (c->tls != NULL && c->in.n == 0 && !c->hung_up) { /* a peer may say goodbye in TLS and keep its socket open */
    wire_news news = receive_bytes(c);
    if (news == WIRE_SOME) return STEP_AGAIN;
    if (news == WIRE_OVER) c->hung_up = true;
  }
  if (has_worker(x)) return c->hung_up ? STEP_DROP : STEP_WAIT;
  if (c->hung_up && x->answer != ANSWER_WHOLE) return STEP_DROP;
  if (!x->begun) http_drop_body(x); /* the handler has returned and copied what it needs */
  if (x->cancelled) http_tell_left(x);
  if (x->answer == ANSWER_WHOLE && x->text.n <= SMALL_ANSWER_BYTES) return give_whole(c);
  if (c->out.n > 0) return STEP_WAIT; /* the client takes what it has first */
  if (!http_has_turn(c)) {
    http_await_turn(c);
    return STEP_WAIT;
  }
  if (!http_settle(x)) return STEP_WAIT;
  return x->answer == ANSWER_STREAM ? pull_stream(c) : give_whole(c);
}

/* The whole answer is in out, or sent. */
static step finish_answer(http_connection *c) {
  if (c->out.n > 0) return STEP_WAIT;
  bool left = c->x != NULL && c->x->code == CODE_LEFT;
  part_exchange(c, left);
  if (!c->keep_alive) {
    http_say_end(c);
    enter_phase(c, PHASE_LINGER, LINGER_US);
    c->n_read = 0;
    return STEP_AGAIN;
  }
  enter_phase(c, PHASE_HEAD, c->in.n > 0 ? head_us(c->http) : http_idle_us(c->http));
  return STEP_AGAIN;
}

static step linger_until_closed(http_connection *c) {
  weft_text_free(&c->in);
  wire_news got = receive_bytes(c);
  c->n_read += c->in.n;
  if (got == WIRE_OVER || c->n_read > LINGER_BYTES_MAX) return STEP_DROP;
  return got == WIRE_SOME ? STEP_AGAIN : STEP_WAIT;
}

/* ---- time ---- */

void http_expire(http_connection *c) {
  static const weft_http_fault late = {408, "late_head", "the head of the request did not come within 10 seconds"};
  if (c->stall_us != 0 && http_now(c->http) >= c->stall_us) {
    http_count(c->http, WEFT_HTTP_STALLED);
    http_drop(c);
    return;
  }
  switch (c->phase) {
    case PHASE_HEAD:
      if (c->in.n > 0) {
        http_refuse_head(c, WEFT_HTTP_LATE_HEAD, &late);
        http_postpone(c);
        return;
      }
      http_count(c->http, http_is_shaking(c) ? WEFT_HTTP_HANDSHAKE : WEFT_HTTP_IDLE);
      break;
    case PHASE_BODY:
      http_count(c->http, WEFT_HTTP_LATE_BODY);
      http_give_up_body(c, 408, "late_body", "the body did not come within 10 seconds and one for each 64 KiB");
      return;
    case PHASE_SKIP:
      http_count(c->http, WEFT_HTTP_LATE_BODY);
      break;
    case PHASE_WORK: /* these two have no deadline but that of what is in out */
    case PHASE_FLUSH:
    case PHASE_LINGER:
      break;
  }
  http_drop(c);
}

/* ---- all of it ---- */

static step advance_phase(http_connection *c) {
  switch (c->phase) {
    case PHASE_HEAD:
      return read_head(c);
    case PHASE_BODY:
    case PHASE_SKIP:
      return read_body(c);
    case PHASE_WORK:
      return make_answer(c);
    case PHASE_FLUSH:
      return finish_answer(c);
    case PHASE_LINGER:
      return linger_until_closed(c);
  }
  return STEP_DROP;
}

void http_drive(http_connection *c) {
  for (uint32_t turn = 0; turn < TURNS_MAX; turn++) {
    step next = http_send(c) ? advance_phase(c) : STEP_DROP;
    if (next == STEP_DROP) {
      http_drop(c);
      return;
    }
    if (next == STEP_WAIT) return;
  }
  http_postpone(c);
}
