/* SPDX-License-Identifier: MIT */
#include "api/weights_talk.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/descriptors.h"
#include "base/text.h"

weft_status weights_ask_read(const void *bytes, weights_ask *out) {
  memcpy(out, bytes, sizeof *out);
  if (out->word != WEIGHTS_TALK_WORD) return WEFT_E_FORMAT;
  if (out->form != WEIGHTS_TALK_FORM) return WEFT_E_UNSUPPORTED;
  return out->question >= WEIGHTS_ASK_DIGEST && out->question <= WEIGHTS_ASK_COUNTS ? WEFT_OK : WEFT_E_INVALID;
}

weft_status weights_answer_read(const void *bytes, uint32_t question, weights_answer *out, weft_error *error) {
  memcpy(out, bytes, sizeof *out);
  if (out->word != WEIGHTS_TALK_WORD) return weft_fail(error, WEFT_E_FORMAT, "what answers there owns no weights");
  if (out->form != WEIGHTS_TALK_FORM)
    return weft_fail(error, WEFT_E_UNSUPPORTED,
                     "the owner speaks form %u, and this version of weft form %d: run one version of both", out->form,
                     WEIGHTS_TALK_FORM);
  bool good = out->question == question && out->n_text < WEIGHTS_TALK_TEXT && out->zero == 0;
  return good ? WEFT_OK : weft_fail(error, WEFT_E_FORMAT, "the owner answered another question");
}

bool weights_answer_send(int fd, const weights_answer *answer, const char *text, int descriptor) {
  struct iovec parts[2] = {{(void *)(uintptr_t)answer, sizeof *answer}, {(void *)(uintptr_t)text, answer->n_text}};
  weft_descriptor_room room;
  struct msghdr message = {.msg_iov = parts, .msg_iovlen = answer->n_text > 0 ? 2 : 1};
  weft_descriptor_attach(&message, &room, descriptor);
  size_t n = sizeof *answer + answer->n_text;
  return sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)n;
}

/* All n bytes, and what came with them. */
static weft_status receive_all(int fd, void *to, size_t n, int *descriptor, weft_error *error) {
  for (size_t at = 0; at < n;) {
    weft_descriptor_room room;
    struct iovec part = {(uint8_t *)to + at, n - at};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = room.bytes, .msg_controllen = sizeof room.bytes};
    ssize_t got = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
    if (got > 0) weft_descriptor_take(&message, descriptor);
    if (got < 0 && errno == EINTR) continue;
    if (got == 0) return weft_fail(error, WEFT_E_IO, "the owner of the weights has ended");
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
      return weft_fail(error, WEFT_E_IO, "the owner of the weights does not answer");
    if (got < 0) return weft_fail(error, WEFT_E_IO, "the owner of the weights: %s", strerror(errno));
    at += (size_t)got;
  }
  return WEFT_OK;
}

static weft_status read_answer(int fd, uint32_t question, weights_answer *out, char *text, int *descriptor,
                               weft_error *error) {
  uint8_t head[sizeof *out];
  weft_status status = receive_all(fd, head, sizeof head, descriptor, error);
  if (status == WEFT_OK) status = weights_answer_read(head, question, out, error);
  if (status != WEFT_OK) return status;
  status = receive_all(fd, text, out->n_text, descriptor, error);
  text[out->n_text] = 0;
  if (status != WEFT_OK) return status;
  if (out->status != WEFT_OK) {
    char clean[256];
    (void)weft_utf8_clean(text, clean, sizeof clean);
    return weft_fail(error, WEFT_E_UNSUPPORTED, "the owner of the weights refuses: %s", clean);
  }
  bool given = question == WEIGHTS_ASK_PIECE ? (*descriptor >= 0) != (out->n_text > 0) : *descriptor < 0;
  return given ? WEFT_OK : weft_fail(error, WEFT_E_FORMAT, "the owner handed over what was not asked for");
}

weft_status weights_talk_ask(int fd, uint32_t question, uint32_t piece, weights_answer *out, char *text,
                             int *descriptor, weft_error *error) {
  const weights_ask ask = {WEIGHTS_TALK_WORD, WEIGHTS_TALK_FORM, question, piece};
  char own[WEIGHTS_TALK_TEXT];
  int came = -1;
  if (send(fd, &ask, sizeof ask, MSG_NOSIGNAL) != (ssize_t)sizeof ask)
    return weft_fail(error, WEFT_E_IO, "the owner of the weights has ended");
  weft_status status = read_answer(fd, question, out, text == NULL ? own : text, &came, error);
  if (came >= 0 && (status != WEFT_OK || descriptor == NULL)) {
    (void)close(came); /* of an answer that is not used */
    came = -1;
  }
  if (descriptor != NULL) *descriptor = came;
  return status;
}
