/* SPDX-License-Identifier: MIT */
#include "api/cli/hand_over.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/descriptors.h"
#include "base/local_socket.h"
#include "base/log.h"
#include "base/memory.h"

enum { WORD = 0x746f6677, FORM = 2, TEXT_MAX = 480, SOCKET_MODE = 0600, PATIENCE_S = 2 };

/* ASK_MORE is answered when there is something, or with status WEFT_E_NOT_FOUND: that was the last. */
typedef enum question {
  ASK_HELLO = 1,
  ASK_PREFIXES = 2,
  ASK_SOCKET = 3,
  TELL_READY = 4,
  ASK_ESTATE = 5,
  ASK_MORE = 6
} question;

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

/* The bytes of a file in memory, from its beginning. */
static bool read_file(int fd, weft_text *out) {
  char piece[65536];
  ssize_t n;
  size_t at = 0;
  while ((n = pread(fd, piece, sizeof piece, (off_t)at)) > 0 || (n < 0 && errno == EINTR)) {
    if (n > 0) weft_text_append(out, piece, (size_t)n);
    if (n > 0) at += (size_t)n;
  }
  return n == 0 && weft_text_status(out) == WEFT_OK;
}

/* -1: the system gives none. */
static int write_file(const weft_text *text) {
  int fd = memfd_create("weft-estate", MFD_CLOEXEC);
  for (size_t at = 0; fd >= 0 && at < text->n;) {
    ssize_t n = write(fd, text->bytes + at, text->n - at);
    if (n > 0) at += (size_t)n;
    if (n > 0 || (n < 0 && errno == EINTR)) continue;
    (void)close(fd); /* not whole */
    fd = -1;
  }
  return fd;
}

/* ---- the new server ---------------------------------------------------------------------------------------- */

static weft_status ask_server(int link, question what, const char *text, int *descriptor, weft_error *error) {
  message m = {.word = WORD, .form = FORM, .question = what}, answer;
  int came = -1;
  if (text != NULL) (void)snprintf(m.text, sizeof m.text, "%s", text);
  bool sent = send_message(link, &m, -1);
  struct pollfd heard = {.fd = link, .events = POLLIN};
  if (sent && what == ASK_HELLO && poll(&heard, 1, PATIENCE_S * 1000) == 0)
    weft_log(WEFT_LOG_NOTICE,
             "--take-over: the server there does not answer yet: another one may be taking over from it; waiting");
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

weft_status hand_over_ask_estate(int link, weft_text *out, weft_error *error) {
  int file = -1;
  weft_status status = ask_server(link, ASK_ESTATE, NULL, &file, error);
  if (status == WEFT_OK && (file < 0 || !read_file(file, out)))
    status = weft_fail(error, WEFT_E_IO, "--take-over: what the server there leaves cannot be read");
  if (file >= 0) (void)close(file);
  return status;
}

bool hand_over_want_more(int link) {
  const message m = {.word = WORD, .form = FORM, .question = ASK_MORE};
  return send_message(link, &m, -1);
}

bool hand_over_hear_more(int link, weft_text *out) {
  message answer;
  int file = -1;
  ssize_t n = receive_message(link, &answer, &file);
  bool good = n == (ssize_t)sizeof answer && answer.word == WORD && answer.question == ASK_MORE && file >= 0;
  if (good && !read_file(file, out)) weft_log(WEFT_LOG_WARN, "what the server before left last could not be read");
  if (file >= 0) (void)close(file);
  return good && answer.status == WEFT_OK;
}

bool hand_over_has_ended(int link) {
  char byte;
  ssize_t n = recv(link, &byte, 1, MSG_DONTWAIT);
  return n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
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
  int peer, pid;       /* peer: -1 while nobody takes over */
  bool greeted, taken; /* taken: another server has taken over */
  bool wants_more;     /* it waits for an answer to ASK_MORE */
  uint32_t first_pin;
  weft_server *server; /* that the estate is of */
  weft_estate *estate; /* NULL: nothing was told of it */
  char where[TEXT_MAX];
};

weft_status hand_over_open(const char *path, const char *where, uint32_t first_pin, hand_over **out,
                           weft_error *error) {
  hand_over *h = *out = weft_alloc(1, sizeof *h);
  if (h == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for --take-over");
  h->peer = -1;
  h->first_pin = first_pin;
  h->socket = (weft_local_socket)WEFT_NO_LOCAL_SOCKET;
  (void)snprintf(h->where, sizeof h->where, "%s", where);
  return weft_local_socket_open("--take-over ", path, SOCKET_MODE, &h->socket, error);
}

static void drop_peer(hand_over *h) {
  if (h->peer >= 0) (void)close(h->peer);
  h->peer = -1;
  h->greeted = h->wants_more = false;
  weft_estate_close(h->estate);
  h->estate = NULL;
  if (h->server != NULL && !h->taken) weft_server_hold_pins(h->server, false);
}

void hand_over_close(hand_over *h) {
  if (h == NULL) return;
  if (h->taken) h->peer = -1; /* stays open: its end tells the new server that this process has given all back */
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
  const struct timeval patience = {.tv_sec = PATIENCE_S}; /* who connects speaks at once */
  struct pollfd word = {.fd = fd, .events = POLLIN};      /* who says nothing would keep others from taking over */
  if (weft_peer_is_own(fd, &h->pid) && setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) == 0 &&
      poll(&word, 1, PATIENCE_S * 1000) > 0)
    h->peer = fd;
  else
    (void)close(fd); /* another user's, or none that takes over */
}

/* The next part of what this server leaves, as a file, the caller's. From the first part on no pin comes or goes. */
static weft_status write_estate(hand_over *h, weft_server *server, int *file, weft_error *error) {
  weft_text part = {0};
  weft_status status = WEFT_OK;
  h->server = server;
  weft_server_hold_pins(server, true);
  if (h->estate == NULL) status = weft_estate_open(server, h->first_pin, &h->estate, error);
  if (status == WEFT_OK) status = weft_estate_write(h->estate, &part, error);
  if (status == WEFT_OK && (*file = write_file(&part)) < 0)
    status = weft_fail(error, WEFT_E_IO, "handing over: %s", strerror(errno));
  weft_text_free(&part);
  return status;
}

/* What the old server does for a question; a line where it refuses. *descriptor: goes with the answer; of an estate it
 * is the caller's. */
static weft_status serve_question(hand_over *h, const message *m, weft_runtime *rt, weft_server *server,
                                  int *descriptor, weft_error *error) {
  if (m->question == ASK_HELLO) {
    h->greeted = strcmp(m->text, h->where) == 0;
    if (h->greeted) return WEFT_OK;
    return weft_fail(error, WEFT_E_UNSUPPORTED, "it listens on %.200s: give the same --host and --port", h->where);
  }
  if (!h->greeted) return weft_fail(error, WEFT_E_INVALID, "no hello came first");
  if (m->question == ASK_PREFIXES) return keep_let_go(rt, error);
  if (m->question == ASK_ESTATE) return write_estate(h, server, descriptor, error);
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
      n == (ssize_t)sizeof m && m.word == WORD && m.form == FORM && m.question >= ASK_HELLO && m.question <= ASK_MORE;
  if (!good || (m.question == ASK_MORE && !h->taken)) {
    if (h->greeted && !h->taken)
      weft_log(WEFT_LOG_WARN, "the server that was to take over has ended; this one goes on");
    drop_peer(h);
    return false;
  }
  if (h->taken) {
    h->wants_more = m.question == ASK_MORE;
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
  h->taken = h->taken || taken;
  if (!send_message(h->peer, &answer, descriptor)) drop_peer(h);
  if (m.question == ASK_ESTATE && descriptor >= 0) (void)close(descriptor); /* the new server has its own */
  return taken;
}

void hand_over_tell_more(hand_over *h, bool last) {
  weft_error error = {{0}};
  int pid, file = -1;
  if (h == NULL || !h->taken || h->peer < 0) return;
  struct pollfd asked = {.fd = h->peer, .events = POLLIN};
  if (!h->wants_more && (last || poll(&asked, 1, 0) > 0)) (void)hand_over_hear(h, NULL, NULL, &pid);
  if (h->peer < 0 || h->estate == NULL || !h->wants_more) return;
  if (!last && !weft_estate_has_news(h->estate)) return;
  message answer = {.word = WORD, .form = FORM, .question = ASK_MORE};
  answer.status = last ? WEFT_E_NOT_FOUND : WEFT_OK;
  if (write_estate(h, h->server, &file, &error) != WEFT_OK)
    weft_log(WEFT_LOG_WARN, "what is left to the next server is not told: %s", error.text);
  h->wants_more = false;
  if (file < 0 || !send_message(h->peer, &answer, file)) drop_peer(h);
  if (file >= 0) (void)close(file); /* the new server has its own */
}
