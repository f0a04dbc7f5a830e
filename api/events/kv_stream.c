/* SPDX-License-Identifier: MIT */
#include "api/events/kv_stream.h"

#ifdef WEFT_KV_EVENTS
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <zmq.h>

#include "base/memory.h"

enum { FRAME_BYTES_MAX = 256, REQUESTS_QUEUED = 64, NUMBER_BYTES = 8, HEARD_MAX = 256 };

/* ---- open and close -------------------------------------------------------------------------- */

static bool set_option(void *socket, int option, int value) {
  return zmq_setsockopt(socket, option, &value, sizeof value) == 0;
}

static weft_status fail_to_bind(const char *endpoint, weft_error *error) {
  return weft_fail(error, WEFT_E_IO, "cache events cannot be told at %s: %s", endpoint, zmq_strerror(zmq_errno()));
}

/* The file is ours, since the library's own unix sockets take the place of whatever has their name. */
static weft_status bind_path(void *socket, const char *endpoint, uint32_t mode, weft_local_socket *local, char *bound,
                             weft_error *error) {
  static const char scheme[] = "ipc://";
  weft_status status =
      weft_local_socket_open("cache events cannot be told at ipc://", endpoint + sizeof scheme - 1, mode, local, error);
  if (status != WEFT_OK) return status;
  if (!set_option(socket, ZMQ_USE_FD, local->fd) || zmq_bind(socket, endpoint) != 0)
    return fail_to_bind(endpoint, error);
  local->fd = -1; /* the library closes it */
  int n = snprintf(bound, KV_ENDPOINT_BYTES, "%s%s", scheme, local->path);
  return n < KV_ENDPOINT_BYTES ? WEFT_OK
                               : weft_fail(error, WEFT_E_INVALID, "%s: the path from the root is too long", endpoint);
}

static weft_status bind_socket(void *socket, const char *endpoint, uint32_t mode, weft_local_socket *local, char *bound,
                               weft_error *error) {
  size_t n = KV_ENDPOINT_BYTES;
  if (strncmp(endpoint, "ipc://", 6) == 0) return bind_path(socket, endpoint, mode, local, bound, error);
  if (zmq_bind(socket, endpoint) == 0 && zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, bound, &n) == 0) return WEFT_OK;
  return fail_to_bind(endpoint, error);
}

static weft_status open_publisher(const kv_stream_config *config, kv_stream *s, weft_error *error) {
  s->publisher = zmq_socket(config->context, ZMQ_XPUB);
  bool good = s->publisher != NULL && set_option(s->publisher, ZMQ_LINGER, 0) &&
              set_option(s->publisher, ZMQ_SNDHWM, KV_QUEUED_BATCHES) &&
              set_option(s->publisher, ZMQ_RCVHWM, REQUESTS_QUEUED) && set_option(s->publisher, ZMQ_XPUB_VERBOSER, 1) &&
              set_option(s->publisher, ZMQ_XPUB_NODROP, 1);
  int64_t most = FRAME_BYTES_MAX;
  good = good && zmq_setsockopt(s->publisher, ZMQ_MAXMSGSIZE, &most, sizeof most) == 0;
  if (!good) return weft_fail(error, WEFT_E_NO_MEMORY, "cache events: no socket: %s", zmq_strerror(zmq_errno()));
  return bind_socket(s->publisher, config->endpoint, config->socket_mode, &s->local[0], s->endpoint, error);
}

/* MANDATORY: who does not take its replay is refused more of it, in place of what is dropped unseen. */
static weft_status open_replayer(const kv_stream_config *config, kv_stream *s, weft_error *error) {
  if (config->replay_endpoint == NULL) return WEFT_OK;
  s->replayer = zmq_socket(config->context, ZMQ_ROUTER);
  bool good = s->replayer != NULL && set_option(s->replayer, ZMQ_LINGER, 0) &&
              set_option(s->replayer, ZMQ_SNDHWM, KV_REPLAY_STEP) &&
              set_option(s->replayer, ZMQ_RCVHWM, REQUESTS_QUEUED) && set_option(s->replayer, ZMQ_ROUTER_MANDATORY, 1);
  int64_t most = FRAME_BYTES_MAX;
  good = good && zmq_setsockopt(s->replayer, ZMQ_MAXMSGSIZE, &most, sizeof most) == 0;
  if (!good) return weft_fail(error, WEFT_E_NO_MEMORY, "cache events: no socket: %s", zmq_strerror(zmq_errno()));
  return bind_socket(s->replayer, config->replay_endpoint, config->socket_mode, &s->local[1], s->replay_endpoint,
                     error);
}

weft_status kv_stream_open(const kv_stream_config *config, kv_stream *s, weft_error *error) {
  *s = (kv_stream){.model = config->model,
                   .rank = config->rank,
                   .batch = {.form = config->form},
                   .local = {WEFT_NO_LOCAL_SOCKET, WEFT_NO_LOCAL_SOCKET}};
  s->topic = weft_strdup(config->topic);
  if (s->topic == NULL || kv_replay_open(&s->replay, config->start) != WEFT_OK)
    return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for cache events");
  weft_status status = open_publisher(config, s, error);
  return status == WEFT_OK ? open_replayer(config, s, error) : status;
}

void kv_stream_close(kv_stream *s) {
  for (int i = 0; i < 2; i++) weft_local_socket_close(&s->local[i]);
  if (s->publisher != NULL) (void)zmq_close(s->publisher);
  if (s->replayer != NULL) (void)zmq_close(s->replayer);
  s->publisher = s->replayer = NULL;
  kv_batch_free(&s->batch);
  kv_replay_close(&s->replay);
  weft_free(s->topic);
  s->topic = NULL;
}

/* ---- what is sent ----------------------------------------------------------------------------- */

static void put_number(uint64_t number, uint8_t out[NUMBER_BYTES]) {
  for (int i = 0; i < NUMBER_BYTES; i++) out[i] = (uint8_t)(number >> 8 * (NUMBER_BYTES - 1 - i));
}

static bool send_frame(void *socket, const void *bytes, size_t n, bool more) {
  return zmq_send(socket, bytes, n, ZMQ_DONTWAIT | (more ? ZMQ_SNDMORE : 0)) >= 0;
}

/* False: some subscriber has no room. What follows a first frame that was taken is taken too. */
static bool send_batch(kv_stream *s, uint64_t number, const weft_text *payload) {
  uint8_t bytes[NUMBER_BYTES];
  put_number(number, bytes);
  if (!send_frame(s->publisher, s->topic, strlen(s->topic), true)) return false;
  return send_frame(s->publisher, bytes, sizeof bytes, true) &&
         send_frame(s->publisher, payload->bytes, payload->n, false);
}

/* Those that have room get the batch; who has none loses it, and others after it, until it has: the socket passes it
 * over from then on. */
static void publish_batch(kv_stream *s, uint64_t number, const weft_text *payload) {
  if (atomic_load(&s->counts.n_subscribers) == 0 || send_batch(s, number, payload)) return;
  atomic_fetch_add(&s->counts.n_overruns, 1);
  (void)set_option(s->publisher, ZMQ_XPUB_NODROP, 0);
  (void)send_batch(s, number, payload);
  (void)set_option(s->publisher, ZMQ_XPUB_NODROP, 1);
}

static double seconds_now(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_REALTIME, &now); /* cannot fail with this clock */
  return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

void kv_stream_flush(kv_stream *s) {
  weft_text payload = {0};
  uint32_t n = s->batch.n;
  if (n == 0) return;
  uint64_t number = kv_replay_next(&s->replay);
  weft_status status = kv_batch_close(&s->batch, seconds_now(), s->rank, &payload);
  atomic_fetch_add(&s->counts.n_batches, 1);
  if (status == WEFT_OK) {
    publish_batch(s, number, &payload);
    atomic_fetch_add(&s->counts.n_events, n);
    kv_replay_push(&s->replay, &payload);
  } else { /* readers see that a number is missing, and what is told next is everything */
    atomic_fetch_add(&s->counts.n_overruns, 1);
    kv_replay_push(&s->replay, NULL);
    s->came_late = true;
    weft_text_free(&payload);
  }
}

/* ---- what is heard ---------------------------------------------------------------------------- */

/* One message of a socket, of which the first frames are kept. False: there is none. */
typedef struct heard_frames {
  uint8_t bytes[3][FRAME_BYTES_MAX];
  int n[3]; /* -1: the frame was longer */
  int n_frames;
} heard_frames;

static bool hear_message(void *socket, heard_frames *out) {
  int more = 1;
  size_t size = sizeof more;
  for (out->n_frames = 0; more != 0; out->n_frames++) {
    uint8_t rest[FRAME_BYTES_MAX], *to = out->n_frames < 3 ? out->bytes[out->n_frames] : rest;
    int n = zmq_recv(socket, to, FRAME_BYTES_MAX, ZMQ_DONTWAIT);
    if (n < 0) return false;
    if (out->n_frames < 3) out->n[out->n_frames] = n > FRAME_BYTES_MAX ? -1 : n;
    if (zmq_getsockopt(socket, ZMQ_RCVMORE, &more, &size) != 0) return false;
  }
  return true;
}

/* A subscription is a byte 1 and its topic, the end of one a byte 0 and the same. */
static bool hear_subscriber(kv_stream *s, const heard_frames *m) {
  bool good = m->n_frames == 1 && m->n[0] >= 1 && m->bytes[0][0] <= 1;
  if (!good) {
    atomic_fetch_add(&s->counts.n_strange, 1);
    return false;
  }
  bool comes = m->bytes[0][0] == 1;
  uint32_t n = atomic_load(&s->counts.n_subscribers);
  atomic_store(&s->counts.n_subscribers, comes ? n + 1 : n > 0 ? n - 1 : 0);
  s->came_late = s->came_late || comes;
  return true;
}

static void end_asker(kv_stream *s, uint32_t i) {
  s->asker[i] = s->asker[--s->n_askers];
}

/* Where an asker goes: in the place of its own earlier replay, which it does not want any more, in a free one, or in
 * that of the replay of which nothing was taken for the longest time. */
static kv_asker *place_of_asker(kv_stream *s, const kv_asker *asker) {
  kv_asker *idle = &s->asker[0];
  for (uint32_t i = 0; i < s->n_askers; i++) {
    kv_asker *other = &s->asker[i];
    if (other->n_identity == asker->n_identity && memcmp(other->identity, asker->identity, asker->n_identity) == 0)
      return other;
    if (other->until_us < idle->until_us) idle = other;
  }
  return s->n_askers < KV_ASKERS_MAX ? &s->asker[s->n_askers] : idle;
}

/* [identity, empty, number], or without the empty frame. */
static void hear_asker(kv_stream *s, const heard_frames *m, uint64_t now_us) {
  int last = m->n_frames - 1;
  bool good = (m->n_frames == 3 && m->n[1] == 0) || m->n_frames == 2;
  if (!good || m->n[0] <= 0 || m->n[0] > KV_IDENTITY_BYTES || m->n[last] != NUMBER_BYTES) {
    atomic_fetch_add(&s->counts.n_strange, 1);
    return;
  }
  kv_asker asker = {.n_identity = (size_t)m->n[0], .until_us = now_us + KV_ASKER_US};
  memcpy(asker.identity, m->bytes[0], asker.n_identity);
  uint64_t number = 0;
  for (int i = 0; i < NUMBER_BYTES; i++) number = number << 8 | m->bytes[last][i];
  asker.tell_all = !kv_replay_find(&s->replay, number, &asker.next);
  asker.end = s->replay.next;
  if (asker.tell_all) asker.next = asker.end;
  atomic_fetch_add(&s->counts.n_replays, 1);
  kv_asker *to = place_of_asker(s, &asker);
  if (to == &s->asker[s->n_askers])
    s->n_askers += 1;
  else
    atomic_fetch_add(&s->counts.n_ended, 1);
  *to = asker;
}

bool kv_stream_hear(kv_stream *s, uint64_t now_us) {
  heard_frames m;
  bool changed = false;
  for (int i = 0; i < HEARD_MAX && hear_message(s->publisher, &m); i++) changed = hear_subscriber(s, &m) || changed;
  for (int i = 0; s->replayer != NULL && i < HEARD_MAX && hear_message(s->replayer, &m); i++) hear_asker(s, &m, now_us);
  return changed;
}

/* ---- replays ---------------------------------------------------------------------------------- */

typedef enum reply { SENT, LATER, GONE } reply;

/* All frames of a batch to an asker but the payload. */
static reply begin_reply(kv_stream *s, const kv_asker *to, const char *topic, uint64_t number) {
  uint8_t bytes[NUMBER_BYTES];
  put_number(number, bytes);
  if (!send_frame(s->replayer, to->identity, to->n_identity, true)) return zmq_errno() == EAGAIN ? LATER : GONE;
  bool sent = send_frame(s->replayer, "", 0, true) && send_frame(s->replayer, topic, strlen(topic), true) &&
              send_frame(s->replayer, bytes, sizeof bytes, true);
  return sent ? SENT : GONE;
}

/* payload NULL: the end of the replay. */
static reply send_reply(kv_stream *s, const kv_asker *to, uint64_t number, const weft_text *payload) {
  bool end = payload == NULL;
  reply how = begin_reply(s, to, end ? "" : s->topic, end ? UINT64_MAX : number);
  if (how != SENT) return how;
  return send_frame(s->replayer, end ? "" : payload->bytes, end ? 0 : payload->n, false) ? SENT : GONE;
}

/* Everything that is told, as of the last number given. It is made only for who has room for it. */
static reply send_all(kv_stream *s, const kv_asker *to, uint64_t now_us, kv_teller tell_all, void *self) {
  weft_text payload = {0};
  if (now_us < s->replied_all_us + KV_REPLY_ALL_US) return LATER;
  reply how = begin_reply(s, to, s->topic, kv_replay_number(&s->replay, s->replay.next - 1));
  if (how != SENT) return how;
  s->replied_all_us = now_us;
  kv_batch_clear_all(&s->batch);
  tell_all(self, s);
  weft_status status = kv_batch_close(&s->batch, seconds_now(), s->rank, &payload);
  bool good = status == WEFT_OK && send_frame(s->replayer, payload.bytes, payload.n, false);
  if (status != WEFT_OK) (void)send_frame(s->replayer, "", 0, false); /* the replay ends */
  weft_text_free(&payload);
  return good ? SENT : GONE;
}

/* One step of a replay. */
static reply send_next(kv_stream *s, kv_asker *a, uint64_t now_us, kv_teller tell_all, void *self) {
  if (a->tell_all) {
    reply how = send_all(s, a, now_us, tell_all, self);
    a->tell_all = a->tell_all && how != SENT;
    a->next = a->end = s->replay.next;
    return how;
  }
  if (a->next < s->replay.first) a->next = s->replay.first; /* meanwhile older ones gave way */
  if (a->next >= a->end) {
    a->ends = true;
    return send_reply(s, a, 0, NULL);
  }
  const weft_text *batch = kv_replay_at(&s->replay, a->next);
  reply how = batch == NULL ? SENT : send_reply(s, a, kv_replay_number(&s->replay, a->next), batch);
  a->next += how == SENT;
  return how;
}

bool kv_stream_replay(kv_stream *s, uint64_t now_us, kv_teller tell_all, void *self) {
  for (uint32_t i = 0; i < s->n_askers;) {
    kv_asker *a = &s->asker[i];
    reply how = SENT;
    for (int n = 0; n < KV_REPLAY_STEP && how == SENT && !a->ends; n++) {
      how = send_next(s, a, now_us, tell_all, self);
      if (how == SENT) a->until_us = now_us + KV_ASKER_US;
      if (how != SENT) a->ends = false;
    }
    bool over = how == GONE || (how == LATER && now_us >= a->until_us);
    if (over) atomic_fetch_add(&s->counts.n_ended, 1);
    if (over || (how == SENT && a->ends))
      end_asker(s, i);
    else
      i++;
  }
  return s->n_askers > 0;
}
#endif
