/* SPDX-License-Identifier: MIT */
#include "api/cli/client.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netdb.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "api/config.h"
#include "base/clock.h"

enum { TIMEOUT_MS = 600000, LOOK_MS = 50, PIECE = 16384, HEAD_MAX = 65536, STALL_SECONDS = 30 };

/* One connection, and TLS over it or none. */
typedef struct wire_to {
  const weft_client_call *call;
  uint64_t until_us;
  int fd;
  SSL_CTX *context;
  SSL *ssl;        /* NULL: none */
  sigset_t before; /* OpenSSL writes so that a server that is gone is a signal: it is blocked meanwhile */
} wire_to;

/* An answer as far as it has come. */
typedef struct answer_reader {
  const weft_client_call *call;
  weft_text raw, *body;
  size_t raw_at, line_at;
  uint64_t chunk_left; /* of a chunked body */
  uint64_t length;     /* of a body of known length; UINT64_MAX: up to the end of the connection */
  int status;          /* 0: the head has not come yet */
  bool chunked, whole, bad;
} answer_reader;

/* ---- the connection -------------------------------------------------------------------------- */

static bool told_to_leave(const wire_to *to) {
  return weft_clock_us() >= to->until_us || (to->call->stop != NULL && to->call->stop(to->call->self));
}

/* Waits for events; false: it was told to leave, or the time is up. */
static bool wait_for(const wire_to *to, short events) {
  for (;;) {
    struct pollfd wait = {.fd = to->fd, .events = events};
    if (told_to_leave(to)) return false;
    if (poll(&wait, 1, LOOK_MS) > 0) return true; /* an error is told by the call that was waited for */
  }
}

/* Connects without waiting for longer than the request may take. */
static bool connect_socket(wire_to *to, const struct sockaddr *name, socklen_t n_name) {
  int error = 0;
  socklen_t n_error = sizeof error;
  to->fd = socket(name->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (to->fd < 0) return false;
  bool good = connect(to->fd, name, n_name) == 0;
  if (!good && errno == EINPROGRESS && wait_for(to, POLLOUT))
    good = getsockopt(to->fd, SOL_SOCKET, SO_ERROR, &error, &n_error) == 0 && error == 0;
  /* From here on calls wait, but not for ever: reads are begun when something is there. */
  const struct timeval stall = {.tv_sec = STALL_SECONDS};
  good = good && fcntl(to->fd, F_SETFL, 0) == 0 &&
         setsockopt(to->fd, SOL_SOCKET, SO_SNDTIMEO, &stall, sizeof stall) == 0 &&
         setsockopt(to->fd, SOL_SOCKET, SO_RCVTIMEO, &stall, sizeof stall) == 0;
  if (good) return true;
  (void)close(to->fd); /* the failure is reported already */
  to->fd = -1;
  return false;
}

static bool dial_socket(const weft_target *target, wire_to *to) {
  struct sockaddr_un path = {.sun_family = AF_UNIX};
  if (strlen(target->socket) >= sizeof path.sun_path) return false;
  memcpy(path.sun_path, target->socket, strlen(target->socket));
  return connect_socket(to, (const struct sockaddr *)&path, sizeof path);
}

static bool dial_server(const weft_target *target, wire_to *to) {
  if (target->socket != NULL) return dial_socket(target, to);
  const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
  struct addrinfo *list = NULL;
  char port[8];
  (void)snprintf(port, sizeof port, "%u", target->port);
  if (getaddrinfo(target->host == NULL ? "127.0.0.1" : target->host, port, &hints, &list) != 0) return false;
  bool good = false;
  for (const struct addrinfo *a = list; a != NULL && !good && !told_to_leave(to); a = a->ai_next) {
    good = connect_socket(to, a->ai_addr, a->ai_addrlen);
  }
  freeaddrinfo(list);
  return good;
}

static void hang_up(wire_to *to) {
  SSL_free(to->ssl);
  SSL_CTX_free(to->context);
  if (to->context != NULL) {
    sigset_t pipe_signal;
    (void)sigemptyset(&pipe_signal); /* none of these can fail with these arguments */
    (void)sigaddset(&pipe_signal, SIGPIPE);
    (void)sigtimedwait(&pipe_signal, NULL, &(struct timespec){0});
    (void)pthread_sigmask(SIG_SETMASK, &to->before, NULL);
  }
  if (to->fd >= 0) (void)close(to->fd); /* all was read, or the answer is not wanted */
}

/* With a certificate that was named, who signed it and which name it has does not matter. */
static bool trust_server(const weft_target *target, wire_to *to) {
  if (target->tls_cert != NULL) {
    if (SSL_CTX_load_verify_file(to->context, target->tls_cert) != 1) return false;
    (void)X509_VERIFY_PARAM_set_flags(SSL_CTX_get0_param(to->context), X509_V_FLAG_PARTIAL_CHAIN); /* known flags */
  } else if (SSL_CTX_set_default_verify_paths(to->context) != 1) {
    return false;
  }
  SSL_CTX_set_verify(to->context, SSL_VERIFY_PEER, NULL);
  to->ssl = SSL_new(to->context);
  if (to->ssl == NULL || target->tls_cert != NULL) return to->ssl != NULL;
  const char *host = target->host == NULL ? "127.0.0.1" : target->host;
  X509_VERIFY_PARAM *checks = SSL_get0_param(to->ssl);
  return X509_VERIFY_PARAM_set1_ip_asc(checks, host) == 1 ||
         (SSL_set1_host(to->ssl, host) == 1 && SSL_set_tlsext_host_name(to->ssl, host) == 1);
}

static bool reach_server(const weft_target *target, wire_to *to) {
  if (!dial_server(target, to)) return false;
  if (target->tls_cert == NULL && !target->tls) return true;
  to->context = SSL_CTX_new(TLS_client_method());
  if (to->context == NULL) return false;
  sigset_t pipe_signal;
  (void)sigemptyset(&pipe_signal);
  (void)sigaddset(&pipe_signal, SIGPIPE);
  (void)pthread_sigmask(SIG_BLOCK, &pipe_signal, &to->before);
  return trust_server(target, to) && SSL_set_fd(to->ssl, to->fd) == 1 && SSL_connect(to->ssl) == 1;
}

static ssize_t read_some(wire_to *from, char *bytes, size_t n) {
  if (from->ssl == NULL) return recv(from->fd, bytes, n, 0);
  int got = SSL_read(from->ssl, bytes, (int)n);
  return got > 0 ? got : SSL_get_error(from->ssl, got) == SSL_ERROR_ZERO_RETURN ? 0 : -1;
}

static bool send_all(wire_to *to, const char *bytes, size_t n) {
  while (n > 0) {
    ssize_t sent = to->ssl != NULL ? SSL_write(to->ssl, bytes, n > INT_MAX ? INT_MAX : (int)n)
                                   : send(to->fd, bytes, n, MSG_NOSIGNAL);
    if (to->ssl == NULL && sent < 0 && errno == EINTR && !told_to_leave(to)) continue;
    if (sent <= 0) return false;
    bytes += sent;
    n -= (size_t)sent;
  }
  return true;
}

static bool send_request(const weft_target *target, const weft_client_call *call, wire_to *to) {
  weft_text head = {0};
  size_t n = call->body == NULL ? 0 : strlen(call->body);
  const char *host = target->host == NULL ? "127.0.0.1" : target->host, *six = strchr(host, ':');
  weft_text_printf(&head, "%s %s%s HTTP/1.1\r\nHost: %s%s%s", call->method,
                   target->prefix == NULL ? "" : target->prefix, call->path, six == NULL ? "" : "[", host,
                   six == NULL ? "" : "]");
  if (target->socket == NULL && target->host != NULL) weft_text_printf(&head, ":%u", target->port);
  weft_text_printf(&head, "\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n", n);
  if (target->key != NULL) weft_text_printf(&head, "Authorization: Bearer %s\r\n", target->key);
  weft_text_puts(&head, "\r\n");
  bool good = weft_text_status(&head) == WEFT_OK && send_all(to, head.bytes, head.n) && send_all(to, call->body, n);
  if (head.bytes != NULL) explicit_bzero(head.bytes, head.n); /* it holds the key */
  weft_text_free(&head);
  return good;
}

/* ---- the answer ------------------------------------------------------------------------------ */

/* The head, once it is there: status and how the body ends. */
static void read_head(answer_reader *r) {
  char *end = r->raw.n == 0 ? NULL : memmem(r->raw.bytes, r->raw.n, "\r\n\r\n", 4);
  if (end == NULL || r->raw.n < 12) {
    r->bad = r->raw.n > HEAD_MAX;
    return;
  }
  *end = 0;
  r->bad = strncmp(r->raw.bytes, "HTTP/1.", 7) != 0;
  r->status = (int)strtol(r->raw.bytes + 9, NULL, 10);
  r->bad = r->bad || r->status < 100 || r->status > 999;
  r->chunked = strcasestr(r->raw.bytes, "\r\ntransfer-encoding: chunked") != NULL;
  const char *length = strcasestr(r->raw.bytes, "\r\ncontent-length:");
  r->length = length == NULL ? UINT64_MAX : strtoull(length + 17, NULL, 10);
  r->raw_at = (size_t)(end - r->raw.bytes) + 4;
}

/* One piece of a chunked body; false: more bytes are needed, or none follow. */
static bool read_chunk(answer_reader *r) {
  size_t left = r->raw.n - r->raw_at;
  const char *at = r->raw.bytes + r->raw_at;
  if (r->chunk_left > 0) {
    size_t n = left < r->chunk_left ? left : (size_t)r->chunk_left;
    weft_text_append(r->body, at, n);
    r->raw_at += n;
    r->chunk_left -= n;
    return n > 0;
  }
  while (left >= 2 && at[0] == '\r' && at[1] == '\n') at += 2, left -= 2, r->raw_at += 2; /* behind the chunk before */
  const char *line = left == 0 ? NULL : memchr(at, '\n', left);
  if (line == NULL) return false;
  r->chunk_left = strtoull(at, NULL, 16);
  r->raw_at += (size_t)(line - at) + 1;
  r->whole = r->chunk_left == 0;
  return !r->whole;
}

static void give_lines(answer_reader *r, uint64_t now_us) {
  while (r->body->n > r->line_at) {
    const char *line = r->body->bytes + r->line_at, *end = memchr(line, '\n', r->body->n - r->line_at);
    if (end == NULL) return;
    size_t n = (size_t)(end - line);
    if (r->call->take != NULL) r->call->take(r->call->self, line, n > 0 && line[n - 1] == '\r' ? n - 1 : n, now_us);
    r->line_at = (size_t)(end - r->body->bytes) + 1;
  }
}

/* What was taken over to the body is dropped from the front of raw. */
static void drop_taken(answer_reader *r) {
  if (r->status == 0 || r->raw_at == 0) return;
  memmove(r->raw.bytes, r->raw.bytes + r->raw_at, r->raw.n - r->raw_at);
  r->raw.n -= r->raw_at;
  r->raw.bytes[r->raw.n] = 0;
  r->raw_at = 0;
}

static void take_bytes(answer_reader *r, const char *bytes, size_t n, uint64_t now_us) {
  weft_text_append(&r->raw, bytes, n);
  if (weft_text_status(&r->raw) != WEFT_OK) return;
  if (r->status == 0) read_head(r);
  if (r->status == 0 || r->bad) return;
  if (r->chunked) {
    while (!r->whole && read_chunk(r)) {
    }
  } else if (r->raw.n > r->raw_at) {
    weft_text_append(r->body, r->raw.bytes + r->raw_at, r->raw.n - r->raw_at);
    r->raw_at = r->raw.n;
  }
  drop_taken(r);
  if (!r->chunked && r->body->n >= r->length) r->whole = true;
  give_lines(r, now_us);
}

static int read_answer(answer_reader *r, wire_to *from) {
  char piece[PIECE];
  for (;;) {
    bool there = from->ssl != NULL && SSL_pending(from->ssl) > 0;
    if (!there && !wait_for(from, POLLIN)) return WEFT_CLIENT_LEFT;
    ssize_t n = read_some(from, piece, sizeof piece);
    if (n < 0 && from->ssl == NULL && errno == EINTR) continue;
    if (n > 0) take_bytes(r, piece, (size_t)n, weft_clock_us());
    if (r->bad || weft_text_status(&r->raw) != WEFT_OK || weft_text_status(r->body) != WEFT_OK)
      return WEFT_CLIENT_BROKEN;
    bool open_end = !r->chunked && r->length == UINT64_MAX;
    if (r->whole || (n == 0 && r->status != 0 && open_end)) return r->status;
    if (n <= 0) return WEFT_CLIENT_BROKEN;
  }
}

int weft_client_run(const weft_target *target, const weft_client_call *call, weft_text *out) {
  uint32_t timeout_ms = call->timeout_ms > 0 ? call->timeout_ms : TIMEOUT_MS;
  wire_to to = {.call = call, .until_us = weft_clock_us() + (uint64_t)timeout_ms * 1000u, .fd = -1};
  answer_reader reader = {.call = call, .raw = {.max = WEFT_CLIENT_BYTES_MAX}, .body = out, .length = UINT64_MAX};
  if (out->max == 0) out->max = WEFT_CLIENT_BYTES_MAX;
  size_t n_before = out->n;
  reader.line_at = n_before;
  int status = WEFT_CLIENT_UNREACHED;
  if (reach_server(target, &to)) {
    /* Who refuses a body answers before it was sent whole: the answer is read all the same. */
    bool sent = send_request(target, call, &to);
    status = read_answer(&reader, &to);
    if (!sent && status < 0) status = WEFT_CLIENT_BROKEN;
  } else if (told_to_leave(&to)) {
    status = WEFT_CLIENT_LEFT;
  }
  hang_up(&to);
  weft_text_free(&reader.raw);
  return status;
}

int weft_client_ask(const weft_target *target, const char *method, const char *path, const char *body, weft_text *out,
                    uint32_t cancel_after_ms) {
  const weft_client_call call = {.method = method, .path = path, .body = body, .timeout_ms = cancel_after_ms};
  int status = weft_client_run(target, &call, out);
  return status == WEFT_CLIENT_LEFT && cancel_after_ms == 0 ? WEFT_CLIENT_BROKEN : status;
}

int weft_client_request(uint16_t port, const char *method, const char *path, const char *body, weft_text *out,
                        uint32_t cancel_after_ms) {
  return weft_client_request_as(port, NULL, method, path, body, out, cancel_after_ms);
}

int weft_client_request_as(uint16_t port, const char *key, const char *method, const char *path, const char *body,
                           weft_text *out, uint32_t cancel_after_ms) {
  const weft_target target = {.port = port, .key = key};
  return weft_client_ask(&target, method, path, body, out, cancel_after_ms);
}

/* ---- where a server is ----------------------------------------------------------------------- */

/* HOST, [HOST], HOST:PORT or [HOST]:PORT. */
static bool read_authority(const char *at, size_t n, weft_client_url *out) {
  const char *host = at, *end = at + n, *host_end, *port = NULL;
  if (n > 0 && at[0] == '[') {
    host = at + 1;
    host_end = memchr(host, ']', n - 1);
    if (host_end == NULL) return false;
    if (host_end + 1 < end) port = host_end[1] == ':' ? host_end + 2 : end;
  } else {
    host_end = memchr(at, ':', n);
    if (host_end != NULL) port = host_end + 1;
    if (host_end == NULL) host_end = end;
  }
  size_t n_host = (size_t)(host_end - host);
  if (n_host == 0 || n_host >= sizeof out->host) return false;
  memcpy(out->host, host, n_host);
  out->host[n_host] = 0;
  out->port = out->tls ? 443 : 80;
  if (strpbrk(out->host, "@ \t") != NULL) return false;
  if (port == NULL) return true;
  char *behind;
  unsigned long number = port < end && *port >= '0' && *port <= '9' ? strtoul(port, &behind, 10) : 0;
  if (number == 0 || number > 65535 || behind != end) return false;
  out->port = (uint16_t)number;
  return true;
}

weft_status weft_client_read_url(const char *url, weft_client_url *out, weft_error *error) {
  static const char plain[] = "http://", tls[] = "https://";
  *out = (weft_client_url){.tls = strncmp(url, tls, sizeof tls - 1) == 0, .socket = weft_config_socket(url)};
  if (out->socket != NULL) return WEFT_OK;
  bool good = out->tls || strncmp(url, plain, sizeof plain - 1) == 0;
  const char *at = good ? url + (out->tls ? sizeof tls : sizeof plain) - 1 : url;
  size_t n = strcspn(at, "/?#"), n_path = strlen(at + n);
  good = good && read_authority(at, n, out);
  while (n_path > 0 && at[n + n_path - 1] == '/') n_path--;
  for (size_t i = 0; good && i < n_path; i++) {
    unsigned char c = (unsigned char)at[n + i];
    good = c > ' ' && c < 0x7F && c != '?' && c != '#';
  }
  good = good && n_path < sizeof out->prefix;
  if (!good)
    return weft_fail(error, WEFT_E_INVALID,
                     "'%.200s' is no URL of a server: http://HOST[:PORT][/PATH], https://... or unix:PATH", url);
  memcpy(out->prefix, at + n, n_path);
  out->prefix[n_path] = 0;
  return WEFT_OK;
}

weft_target weft_client_target(const weft_client_url *url) {
  return (weft_target){
      .socket = url->socket, .host = url->host, .port = url->port, .tls = url->tls, .prefix = url->prefix};
}
