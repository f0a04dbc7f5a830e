/* SPDX-License-Identifier: MIT */
#include "api/cli/hand_over.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/descriptors.h"
#include "base/local_socket.h"
#include "base/log.h"
#include "base/memory.h"

enum { WORD = 0x746f6677, FORM = 1, TEXT_MAX = 480, SOCKET_MODE = 0600 };

typedef enum question { ASK_HELLO = 1, ASK_PREFIXES = 2, ASK_SOCKET = 3, TELL_READY = 4 } question;

/* Both ways. The text is where the new server listens, or why the old one refuses. */
typedef struct message {
  uint32_t word, form, question;
  int32_t status;
  char text[TEXT_MAX];
} message;

_Static_assert(sizeof(message) == 496, "a size that never changes");

/* A message at once, with a descriptor where it is not -1. */
static bool send_message(int fd, const message *m, int descriptor) {
  struct iovec part = {(void *)(uintptr_t)m, sizeof *m};
  weft_descriptor_room room;
  struct msghdr whole = {.msg_iov = &part, .msg_iovlen = 1};
  weft_descriptor_attach(&whole, &room, descriptor);
  return sendmsg(fd, &whole, MSG_NOSIGNAL) == (ssize_t)sizeof *m;
}

/* Messages have one size. Less than that: the other end is gone, or says something else. */
static ssize_t receive_message(int fd, message *m, int *descriptor) {
  struct iovec part = {m, sizeof *m};
  weft_descriptor_room room;
  struct msghdr whole = {
      .msg_iov = &part, .msg_iovlen = 1, .msg_control = room.bytes, .msg_controllen = sizeof room.bytes};
  ssize_t n;
  do n = recvmsg(fd, &whole, MSG_CMSG_CLOEXEC | MSG_WAITALL);
  while (n < 0 && errno == EINTR);
  *descriptor = -1;
  if (n > 0) weft_descriptor_take(&whole, descriptor);
  m->text[TEXT_MAX - 1] = 0;
  return n;
}

/* ---- the new server ---------------------------------------------------------------------------------------- */

static weft_status ask_server(int link, question what, const char *text, int *descriptor, weft_error *error) {
  message m = {.word = WORD, .form = FORM, .question = what}, answer;
  int came = -1;
  if (text != NULL) (void)snprintf(m.text, sizeof m.text, "%s", text);
  bool sent = send_message(link, &m, -1);
  ssize_t n = sent ? receive_message(link, &answer, &came) : 0;
  if (descriptor != NULL) *descriptor = came;
  if (descriptor == NULL && came >= 0) (void)close(came); /* nobody asked for it */
  if (n <= 0) return weft_fail(error, WEFT_E_IO, "--take-over: the server there has ended");
  bool form =
      n == (ssize_t)sizeof answer && answer.word == WORD && answer.form == FORM && answer.question == m.question;
  if (!form)
    return weft_fail(error, WEFT_E_UNSUPPORTED,
                     "--take-over: what answers there speaks another form: end it, and start without it");
  if (answer.status == WEFT_OK) return WEFT_OK;
  char clean[TEXT_MAX];
  (void)weft_utf8_clean(answer.text, clean, sizeof clean);
  return weft_fail(error, WEFT_E_UNSUPPORTED, "--take-over: the server there refuses: %.400s", clean);
}

weft_status hand_over_greet(const char *path, const char *where, int *link, weft_error *error) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  int pid;
  *link = -1;
  if (strlen(path) >= sizeof address.sun_path)
    return weft_fail(error, WEFT_E_INVALID, "--take-over: the path of a unix socket has at most %zu bytes",
                     sizeof address.sun_path - 1);
  memcpy(address.sun_path, path, strlen(path));
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return weft_fail(error, WEFT_E_IO, "--take-over: %s", strerror(errno));
  weft_status status = WEFT_OK;
  if (connect(fd, (const struct sockaddr *)&address, sizeof address) != 0) {
    if (errno != ENOENT && errno != ECONNREFUSED)
      status = weft_fail(error, WEFT_E_IO, "--take-over %.200s: %s", path, strerror(errno));
    (void)close(fd);
    return status; /* the first server of a line */
  }
  if (!weft_peer_is_own(fd, &pid))
    status = weft_fail(error, WEFT_E_UNSUPPORTED, "--take-over %.200s: another user's server listens there", path);
  if (status == WEFT_OK) status = ask_server(fd, ASK_HELLO, where, NULL, error);
  if (status != WEFT_OK)
    (void)close(fd);
  else
    *link = fd;
  return status;
}

weft_status hand_over_ask_prefixes(int link, weft_error *error) {
  return ask_server(link, ASK_PREFIXES, NULL, NULL, error);
}

weft_status hand_over_ask_socket(int link, int *listener, weft_error *error) {
  weft_status status = ask_server(link, ASK_SOCKET, NULL, listener, error);
  if (status == WEFT_OK && *listener < 0)
    status = weft_fail(error, WEFT_E_FORMAT, "--take-over: the server there gave no socket");
  return status;
}

weft_status hand_over_tell_ready(int link, weft_error *error) {
  return ask_server(link, TELL_READY, NULL, NULL, error);
}

/* ---- the old server ---------------------------------------------------------------------------------------- */

struct hand_over {
  weft_local_socket socket;
  int peer, pid; /* peer: -1 while nobody takes over */
  bool greeted;
  char where[TEXT_MAX];
};

weft_status hand_over_open(const char *path, const char *where, hand_over **out, weft_error *error) {
  hand_over *h = *out = weft_alloc(1, sizeof *h);
  if (h == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for --take-over");
  h->peer = -1;
  h->socket = (weft_local_socket)WEFT_NO_LOCAL_SOCKET;
  (void)snprintf(h->where, sizeof h->where, "%s", where);
  return weft_local_socket_open("--take-over ", path, SOCKET_MODE, &h->socket, error);
}

static void drop_peer(hand_over *h) {
  if (h->peer >= 0) (void)close(h->peer);
  h->peer = -1;
  h->greeted = false;
}

void hand_over_close(hand_over *h) {
  if (h == NULL) return;
  drop_peer(h);
  weft_local_socket_close(&h->socket);
  weft_free(h);
}

int hand_over_descriptor(const hand_over *h) {
  if (h == NULL) return -1;
  return h->peer >= 0 ? h->peer : h->socket.fd;
}

static void take_peer(hand_over *h) {
  int fd = accept4(h->socket.fd, NULL, NULL, SOCK_CLOEXEC);
  if (fd < 0) return;
  const struct timeval patience = {.tv_sec = 2}; /* who connects speaks at once */
  if (weft_peer_is_own(fd, &h->pid) && setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) == 0)
    h->peer = fd;
  else
    (void)close(fd); /* another user's */
}

/* What the old server does for a question; a line where it refuses. *descriptor: goes with the answer. */
static weft_status serve_question(hand_over *h, const message *m, weft_runtime *rt, weft_server *server,
                                  int *descriptor, weft_error *error) {
  if (m->question == ASK_HELLO) {
    h->greeted = strcmp(m->text, h->where) == 0;
    if (h->greeted) return WEFT_OK;
    return weft_fail(error, WEFT_E_UNSUPPORTED, "it listens on %.200s: give the same --host and --port", h->where);
  }
  if (!h->greeted) return weft_fail(error, WEFT_E_INVALID, "no hello came first");
  if (m->question == ASK_PREFIXES) return keep_let_go(rt, error);
  if (m->question == ASK_SOCKET) *descriptor = weft_server_listener(server);
  return WEFT_OK;
}

bool hand_over_hear(hand_over *h, weft_runtime *rt, weft_server *server, int *pid) {
  message m;
  int descriptor = -1;
  if (h->peer < 0) {
    take_peer(h);
    return false;
  }
  ssize_t n = receive_message(h->peer, &m, &descriptor);
  if (descriptor >= 0) (void)close(descriptor); /* nobody asked for it */
  descriptor = -1;
  bool good =
      n == (ssize_t)sizeof m && m.word == WORD && m.form == FORM && m.question >= ASK_HELLO && m.question <= TELL_READY;
  if (!good) {
    if (h->greeted) weft_log(WEFT_LOG_WARN, "the server that was to take over has ended; this one goes on");
    drop_peer(h);
    return false;
  }
  weft_error error = {{0}};
  message answer = {.word = WORD, .form = FORM, .question = m.question};
  answer.status = (int32_t)serve_question(h, &m, rt, server, &descriptor, &error);
  (void)snprintf(answer.text, sizeof answer.text, "%.*s", TEXT_MAX - 1, error.text);
  bool taken = m.question == TELL_READY && answer.status == WEFT_OK;
  if (taken) weft_local_socket_close(&h->socket); /* the new server listens there next */
  if (taken) weft_server_pass_on(server);
  *pid = h->pid;
  if (!send_message(h->peer, &answer, descriptor)) drop_peer(h);
  return taken;
}
