/* SPDX-License-Identifier: MIT */
#include "api/cli/client.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "api/cli/cli.h"

extern char **environ;

enum { ARGS_MAX = 64, ANSWER_TIMEOUT_MS = 600000 };

/* One connection, and TLS over it or none. */
typedef struct wire_to {
  int fd;
  SSL_CTX *context;
  SSL *ssl;        /* NULL: none */
  sigset_t before; /* OpenSSL writes so that a server that is gone is a signal: it is blocked meanwhile */
} wire_to;

static int dial_server(const weft_target *target) {
  struct sockaddr_in address = {
      .sin_family = AF_INET, .sin_port = htons(target->port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
  struct sockaddr_un path = {.sun_family = AF_UNIX};
  const struct sockaddr *name = target->socket != NULL ? (const void *)&path : (const void *)&address;
  if (target->socket != NULL && strlen(target->socket) >= sizeof path.sun_path) return -1;
  if (target->socket != NULL) memcpy(path.sun_path, target->socket, strlen(target->socket));
  int fd = socket(name->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0 || connect(fd, name, target->socket != NULL ? sizeof path : sizeof address) == 0) return fd;
  (void)close(fd); /* the failure is reported already */
  return -1;
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

/* The server must show exactly the certificate of to->tls_cert. Who signed it and which name it has does not matter,
 * since the server is on this machine. */
static bool reach_server(const weft_target *target, wire_to *to) {
  *to = (wire_to){.fd = dial_server(target)};
  if (to->fd < 0 || target->tls_cert == NULL) return to->fd >= 0;
  to->context = SSL_CTX_new(TLS_client_method());
  if (to->context == NULL) return false;
  sigset_t pipe_signal;
  (void)sigemptyset(&pipe_signal);
  (void)sigaddset(&pipe_signal, SIGPIPE);
  (void)pthread_sigmask(SIG_BLOCK, &pipe_signal, &to->before);
  if (SSL_CTX_load_verify_file(to->context, target->tls_cert) != 1) return false;
  SSL_CTX_set_verify(to->context, SSL_VERIFY_PEER, NULL);
  (void)X509_VERIFY_PARAM_set_flags(SSL_CTX_get0_param(to->context), X509_V_FLAG_PARTIAL_CHAIN); /* known flags */
  to->ssl = SSL_new(to->context);
  return to->ssl != NULL && SSL_set_fd(to->ssl, to->fd) == 1 && SSL_connect(to->ssl) == 1;
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
    if (to->ssl == NULL && sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    bytes += sent;
    n -= (size_t)sent;
  }
  return true;
}

static uint64_t now_ms(void) {
  struct timespec t;
  (void)clock_gettime(CLOCK_MONOTONIC, &t); /* cannot fail with this clock */
  return (uint64_t)t.tv_sec * 1000u + (uint64_t)t.tv_nsec / 1000000u;
}

/* Reads until the server closes. False: broken; *left: the time was up. */
static bool receive_all(wire_to *from, weft_text *out, uint32_t timeout_ms, bool *left) {
  char piece[16384];
  uint64_t until = now_ms() + timeout_ms;
  *left = false;
  for (;;) {
    uint64_t now = now_ms();
    struct pollfd wait = {.fd = from->fd, .events = POLLIN};
    bool there = from->ssl != NULL && SSL_pending(from->ssl) > 0;
    int ready = there ? 1 : now >= until ? 0 : poll(&wait, 1, (int)(until - now));
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0) {
      *left = true;
      return true;
    }
    ssize_t n = ready < 0 ? -1 : read_some(from, piece, sizeof piece);
    if (n < 0) return false;
    if (n == 0) return true;
    weft_text_append(out, piece, (size_t)n);
  }
}

/* Chunked bodies to plain ones, in place. */
static void join_chunks(char *body, size_t *n) {
  size_t from = 0, to = 0;
  while (from < *n) {
    char *end;
    size_t length = strtoul(body + from, &end, 16);
    char *line = memchr(body + from, '\n', *n - from);
    if (length == 0 || line == NULL) break;
    from = (size_t)(line - body) + 1;
    if (length > *n - from) length = *n - from;
    memmove(body + to, body + from, length);
    to += length;
    from += length + 2;
  }
  *n = to;
}

static int split_answer(weft_text *all, weft_text *out) {
  if (all->n < 12 || strncmp(all->bytes, "HTTP/1.", 7) != 0) return -1;
  char *end = strstr(all->bytes, "\r\n\r\n");
  if (end == NULL) return -1;
  int status = (int)strtol(all->bytes + 9, NULL, 10);
  size_t head = (size_t)(end - all->bytes) + 4, n = all->n - head;
  *end = 0;
  bool chunked = strcasestr(all->bytes, "transfer-encoding: chunked") != NULL;
  if (chunked) join_chunks(all->bytes + head, &n);
  weft_text_append(out, all->bytes + head, n);
  return status;
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

int weft_client_ask(const weft_target *target, const char *method, const char *path, const char *body, weft_text *out,
                    uint32_t cancel_after_ms) {
  weft_text head = {0}, all = {0};
  int status = -1;
  wire_to to;
  bool reached = reach_server(target, &to), left = false;
  size_t n = body == NULL ? 0 : strlen(body);
  weft_text_printf(&head,
                   "%s %s HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Type: application/json\r\n"
                   "Content-Length: %zu\r\n",
                   method, path, n);
  if (target->key != NULL) weft_text_printf(&head, "Authorization: Bearer %s\r\n", target->key);
  weft_text_puts(&head, "\r\n");
  if (reached && weft_text_status(&head) == WEFT_OK && send_all(&to, head.bytes, head.n) && send_all(&to, body, n) &&
      receive_all(&to, &all, cancel_after_ms > 0 ? cancel_after_ms : ANSWER_TIMEOUT_MS, &left)) {
    if (left) {
      status = cancel_after_ms > 0 ? 0 : -1;
    } else {
      status = split_answer(&all, out);
    }
  }
  hang_up(&to);
  weft_text_free(&head);
  weft_text_free(&all);
  return status;
}

/* ---- a server of our own ----------------------------------------------------------------------------------- */

static int read_port(int fd, uint16_t *port) {
  char line[512];
  size_t n = 0;
  while (n + 1 < sizeof line) {
    ssize_t got = read(fd, line + n, 1);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0 || line[n] == '\n') break;
    n += 1;
  }
  line[n] = 0;
  const char *at = strstr(line, "\"port\"");
  if (at == NULL) return -1;
  at += strcspn(at, ":") + 1;
  *port = (uint16_t)strtoul(at, NULL, 10);
  return *port == 0 ? -1 : 0;
}

int weft_child_start(weft_child *child, const char *const *args) {
  const char *argv[ARGS_MAX + 8] = {"weft",   "serve",   "--port",   "0",
                                    "--json", "--quiet", "--config", "/dev/null"}; /* no file of the user's */
  uint32_t n = 8;
  for (uint32_t i = 0; args[i] != NULL && n < ARGS_MAX; i++) argv[n++] = args[i];
  int pipe_fd[2];
  posix_spawn_file_actions_t actions;
  child->pid = -1;
  if (pipe2(pipe_fd, O_CLOEXEC) != 0) return weft_cli_fail(-1, "pipe: %s", strerror(errno));
  (void)posix_spawn_file_actions_init(&actions); /* cannot fail on Linux */
  int status = posix_spawn_file_actions_adddup2(&actions, pipe_fd[1], STDOUT_FILENO);
  if (status == 0) {
    status = posix_spawn(&child->pid, "/proc/self/exe", &actions, NULL, (char *const *)(uintptr_t)argv, environ);
  }
  (void)posix_spawn_file_actions_destroy(&actions); /* nothing to lose */
  (void)close(pipe_fd[1]);                          /* the child's end */
  if (status != 0) child->pid = -1;
  int failed = status != 0 ? -1 : read_port(pipe_fd[0], &child->port);
  (void)close(pipe_fd[0]); /* one line was all */
  if (failed == 0) return 0;
  (void)weft_child_stop(child);
  return weft_cli_fail(-1, "the server did not start");
}

int weft_child_stop(weft_child *child) {
  if (child->pid <= 0) return -1;
  int status = 0;
  (void)kill(child->pid, SIGTERM); /* gone already is as good */
  while (waitpid(child->pid, &status, 0) < 0) {
    if (errno != EINTR) return -1;
  }
  child->pid = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

uint64_t weft_child_kib(const weft_child *child, const char *field) {
  char path[64], line[256];
  uint64_t kib = 0;
  (void)snprintf(path, sizeof path, "/proc/%d/status", (int)child->pid);
  FILE *file = fopen(path, "r");
  if (file == NULL) return 0;
  size_t n = strlen(field);
  while (fgets(line, sizeof line, file) != NULL) {
    if (strncmp(line, field, n) == 0 && line[n] == ':') kib = strtoull(line + n + 1, NULL, 10);
  }
  (void)fclose(file); /* only read */
  return kib;
}
