/* SPDX-License-Identifier: MIT */
/* The cache events of one model of one replica, on two ZeroMQ sockets: one that publishes batches as they come, and
 * one that sends batches again. Batches are frames [topic, number as 8 bytes, payload]; a replay is asked for by
 * [empty, number as 8 bytes], and each answer is [empty, topic, number, payload], the last one [empty, empty, -1,
 * empty].
 *
 * Law. Nothing here waits for a reader. A subscriber that does not take what it is sent loses batches until it has
 * room, which it sees by their numbers, and n_overruns counts how often that began; who asks for a replay and does
 * not take it, or asks again, has that replay ended, and where too many ask, the one of which nothing was taken for
 * the longest time. Requests that are none are passed over. A replay from a number
 * that is not kept any more begins with one batch that clears all and stores everything that is told, under the last
 * number given: so a late reader is whole. One that only subscribes gets the same as the next batch, at most one in
 * KV_TELL_ALL_US for all subscribers together.
 *
 * Threads: one, but for open and the counters. */
#ifndef WEFT_API_EVENTS_KV_STREAM_H
#define WEFT_API_EVENTS_KV_STREAM_H

#include <stdatomic.h>

#include "api/events/kv_replay.h"
#include "api/events/kv_wire.h"
#include "base/local_socket.h"

enum {
  KV_ENDPOINT_BYTES = 256,
  KV_IDENTITY_BYTES = 255,
  KV_ASKERS_MAX = 16,       /* replays at the same time */
  KV_REPLAY_STEP = 64,      /* batches of a replay that are sent before others have a turn */
  KV_ASKER_US = 5000000,    /* without taking anything, a replay ends */
  KV_TELL_ALL_US = 2000000, /* least time between two batches for who subscribed late */
  KV_REPLY_ALL_US = 100000, /* and between two replays that tell everything */
  KV_QUEUED_BATCHES = 10000 /* that wait for a slow subscriber */
};

typedef struct kv_asker {
  uint8_t identity[KV_IDENTITY_BYTES];
  size_t n_identity;
  uint64_t next, end; /* counts of the batches that are still to be sent */
  bool tell_all;      /* first, everything that is told */
  bool ends;          /* only the end is still to be sent */
  uint64_t until_us;
} kv_asker;

typedef struct kv_stream_counts {
  _Atomic uint64_t n_batches, n_events; /* given numbers; events in them */
  _Atomic uint64_t
      n_overruns; /* times that a subscriber had no room, and lost batches until it had, or memory was refused */
  _Atomic uint64_t n_replays, n_ended; /* asked for; given up because they were not taken, or were too many */
  _Atomic uint64_t n_strange;          /* messages that are no requests */
  _Atomic uint32_t n_subscribers;      /* subscriptions */
} kv_stream_counts;

typedef struct kv_stream {
  uint32_t model, rank;
  void *publisher, *replayer; /* sockets; replayer NULL: there is none */
  weft_local_socket local[2]; /* the files of both, where they are unix sockets */
  char endpoint[KV_ENDPOINT_BYTES], replay_endpoint[KV_ENDPOINT_BYTES];
  char *topic;
  kv_batch batch; /* being made */
  kv_replay replay;
  kv_asker asker[KV_ASKERS_MAX];
  uint32_t n_askers;
  bool came_late; /* somebody subscribed since everything was told */
  uint64_t told_all_us, replied_all_us;
  kv_stream_counts counts;
} kv_stream;

typedef struct kv_stream_config {
  void *context;
  const char *endpoint, *replay_endpoint; /* replay_endpoint NULL: none */
  const char *topic;
  kv_form form;
  uint32_t model, rank;
  uint32_t socket_mode; /* of the files of unix sockets */
  uint64_t start;       /* number of the first batch */
} kv_stream_config;

/* Binds. One line names the endpoint and the reason. close: whatever was returned. */
weft_status kv_stream_open(const kv_stream_config *config, kv_stream *out, weft_error *error);
void kv_stream_close(kv_stream *stream);
/* Reads what subscribers and askers sent, as far as it is there. True: somebody subscribed or left. */
bool kv_stream_hear(kv_stream *stream, uint64_t now_us);
/* Sends the batch that was made, if it has events. tell_all: for replays, see below. */
void kv_stream_flush(kv_stream *stream);
/* Goes on with replays. tell_all fills stream->batch with everything that is told. True: there is more to send. */
typedef void (*kv_teller)(void *self, kv_stream *stream);
bool kv_stream_replay(kv_stream *stream, uint64_t now_us, kv_teller tell_all, void *self);

#endif
