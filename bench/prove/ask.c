/* SPDX-License-Identifier: MIT */
#include "bench/prove/ask.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bench/prove/child.h"

enum { LOOK_MS = 50, PIECE = 16384 };

/* An answer as far as it has come. */
typedef struct answer_reader {
  const prove_ask *ask;
  weft_text raw, *body;
  size_t raw_at, line_at;
  uint64_t chunk_left; /* of a chunked body */
  uint64_t length;     /* of a body of known length; UINT64_MAX: up to the end of the connection */
  int status;          /* 0: the head has not come yet */
  bool chunked, whole;
} answer_reader;

static int dial_port(uint16_t port) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0 || connect(fd, (const struct sockaddr *)(const void *)&address, sizeof address) == 0) return fd;
  (void)close(fd); /* the failure is reported already */
  return -1;
}

static bool send_request(int fd, const prove_ask *ask) {
  weft_text text = {0};
  size_t n = ask->body == NULL ? 0 : strlen(ask->body), at = 0;
  weft_text_printf(&text,
                   "%s %s HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Type: application/json\r\n"
                   "Content-Length: %zu\r\n\r\n",
                   ask->body == NULL ? "GET" : "POST", ask->path, n);
  if (n > 0) weft_text_append(&text, ask->body, n);
  bool good = weft_text_status(&text) == WEFT_OK;
  while (good && at < text.n) {
    ssize_t sent = send(fd, text.bytes + at, text.n - at, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    good = sent > 0;
    if (good) at += (size_t)sent;
  }
  weft_text_free(&text);
  return good;
}

/* The head, once it is there: status and how the body ends. */
static void read_head(answer_reader *r) {
  char *end = r->raw.n == 0 ? NULL : strstr(r->raw.bytes, "\r\n\r\n");
  if (end == NULL || r->raw.n < 12) return;
  *end = 0;
  r->status = (int)strtol(r->raw.bytes + 9, NULL, 10);
  r->chunked = strcasestr(r->raw.bytes, "transfer-encoding: chunked") != NULL;
  const char *length = strcasestr(r->raw.bytes, "content-length:");
  r->length = length == NULL ? UINT64_MAX : strtoull(length + 15, NULL, 10);
  r->raw_at = (size_t)(end - r->raw.bytes) + 4;
}

/* One piece of a chunked body; false: more bytes are needed. */
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
  const char *line = memchr(at, '\n', left);
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
    if (r->ask->take != NULL) r->ask->take(r->ask->self, line, (size_t)(end - line), now_us);
    r->line_at = (size_t)(end - r->body->bytes) + 1;
  }
}

static void take_bytes(answer_reader *r, const char *bytes, size_t n, uint64_t now_us) {
  weft_text_append(&r->raw, bytes, n);
  if (weft_text_status(&r->raw) != WEFT_OK) return;
  if (r->status == 0) read_head(r);
  if (r->status == 0) return;
  if (r->chunked) {
    while (!r->whole && read_chunk(r)) {
    }
  } else if (r->raw.n > r->raw_at) {
    weft_text_append(r->body, r->raw.bytes + r->raw_at, r->raw.n - r->raw_at);
    r->raw_at = r->raw.n;
  }
  if (!r->chunked && r->body->n >= r->length) r->whole = true;
  give_lines(r, now_us);
}

static int read_answer(answer_reader *r, int fd) {
  char piece[PIECE];
  for (;;) {
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    if (weft_clock_us() >= r->ask->until_us || prove_told_to_stop()) return PROVE_ASK_LATE;
    int ready = poll(&wait, 1, LOOK_MS);
    if (ready == 0 || (ready < 0 && errno == EINTR)) continue;
    ssize_t n = ready < 0 ? -1 : recv(fd, piece, sizeof piece, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n > 0) take_bytes(r, piece, (size_t)n, weft_clock_us());
    bool open_end = !r->chunked && r->length == UINT64_MAX;
    if (r->whole || (n == 0 && r->status != 0 && open_end)) return r->status;
    if (n <= 0) return PROVE_ASK_BROKEN;
  }
}

int prove_ask_run(const prove_ask *ask, weft_text *body) {
  answer_reader reader = {.ask = ask, .body = body, .length = UINT64_MAX};
  int fd = dial_port(ask->port), status = PROVE_ASK_BROKEN;
  if (fd >= 0 && send_request(fd, ask)) status = read_answer(&reader, fd);
  if (status > 0 && (weft_text_status(&reader.raw) != WEFT_OK || weft_text_status(body) != WEFT_OK))
    status = PROVE_ASK_BROKEN;
  if (fd >= 0) (void)close(fd); /* all was read, or the answer is not wanted */
  weft_text_free(&reader.raw);
  return status;
}
