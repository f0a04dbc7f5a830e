/* SPDX-License-Identifier: MIT */
/* Cache events for routers: what each replica can serve from its prefix cache, told over ZeroMQ as vLLM tells it.
 *
 * Law. One thread here reads what changed in each engine's trie (scheduler/prefix_feed.h), keeps a mirror of it
 * (kv_mirror.h) and sends what is different (kv_stream.h). No engine waits for it, and while nobody subscribes to a
 * replica its engine lists nothing. Each model of each replica has an endpoint of its own: the given port and one more
 * for each, replica by replica of the first model, then of the second. Numbers begin with the time, so that those of a
 * server that is started again are higher than all that its readers saw: some take a number that they have seen for a
 * batch that came twice, and would keep what the first server had.
 *
 * Privacy. Tokens are told of public prefixes and of the tenants that the operator names; of all others there are keyed
 * names and no tokens (kv_names.h). A port alone means the loopback address. */
#ifndef WEFT_API_EVENTS_KV_EVENTS_H
#define WEFT_API_EVENTS_KV_EVENTS_H

#include "api/runtime.h"

typedef struct kv_events kv_events;

/* Zero-initialise. */
typedef struct kv_events_options {
  const char *endpoint;      /* PORT, tcp://ADDRESS:PORT (PORT * is a free one) or ipc://PATH */
  uint32_t socket_mode;      /* [owner alone] of the files of unix sockets */
  const char *replay;        /* the same, for replays; NULL: none */
  const char *topic;         /* [""] of every batch; {model} stands for the model's name */
  const char *form;          /* [maps] "arrays", "bytes", or both with a comma between */
  const char *const *tokens; /* [n_tokens] tenants whose tokens are told, or "all" */
  uint32_t n_tokens;
  uint64_t start; /* [microseconds since 1970] number of the first batch */
} kv_events_options;

/* The runtime must have been opened with prefix_feed, and outlive the events. INVALID, UNSUPPORTED (the program was
 * built without the libraries) or IO with one line. */
weft_status kv_events_open(const kv_events_options *options, weft_runtime *runtime, kv_events **out, weft_error *error);
void kv_events_close(kv_events *events); /* NULL is fine */
/* True: every endpoint is one of this machine. */
bool kv_events_is_local(const kv_events *events);
/* The endpoint of a model of a replica, as it was bound; replays: that for replays, or "". */
const char *kv_events_endpoint(const kv_events *events, uint32_t model, uint32_t replica, bool replays);
/* Appends a JSON object from the rank of each replica to how its events are read. Any thread. */
void kv_events_sources(const kv_events *events, uint32_t model, weft_text *out);
/* Appends counters as Prometheus text. Any thread. */
void kv_events_metrics(const kv_events *events, weft_text *out);

#endif
