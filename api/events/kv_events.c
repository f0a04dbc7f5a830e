/* SPDX-License-Identifier: MIT */
#include "api/events/kv_events.h"

#ifndef WEFT_KV_EVENTS
weft_status kv_events_open(const kv_events_options *options, weft_runtime *runtime, kv_events **out,
                           weft_error *error) {
  (void)options, (void)runtime;
  *out = NULL;
  return weft_fail(error, WEFT_E_UNSUPPORTED,
                   "this program was built without libzmq and libmsgpack, so it tells no cache events: install "
                   "libzmq3-dev and libmsgpack-dev and build it again, or leave out --kv-events");
}

void kv_events_close(kv_events *events) {
  (void)events;
}

bool kv_events_is_local(const kv_events *events) {
  (void)events;
  return true;
}

const char *kv_events_endpoint(const kv_events *events, uint32_t model, uint32_t replica, bool replays) {
  (void)events, (void)model, (void)replica, (void)replays;
  return "";
}

void kv_events_sources(const kv_events *events, uint32_t model, weft_text *out) {
  (void)events, (void)model;
  weft_text_puts(out, "{}");
}

void kv_events_metrics(const kv_events *events, weft_text *out) {
  (void)events, (void)out;
}
#else
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

#include "api/events/kv_stream.h"
#include "api/json.h"
#include "api/prometheus.h"
#include "api/tenants.h"
#include "base/memory.h"
#include "base/threads.h"

enum { IDLE_MS = 1000, BUSY_MS = 2, FIRST_POLLED = 1, OWNER_ALONE = 0600 };

/* One replica as the thread sees it. */
typedef struct event_replica {
  struct kv_events *events;
  uint32_t index;
  weft_engine *engine;
  weft_prefix_feed *feed;
  kv_mirror *mirror;
  bool wanted;
  bool begun; /* everything was forgotten since it is wanted: what comes is applied */
  bool whole; /* and all of it came: what the mirror shows is what was told */
} event_replica;

struct kv_events {
  weft_runtime *runtime;
  void *context;
  uint32_t n_replicas, n_models;
  event_replica replica[WEFT_REPLICAS_MAX];
  kv_stream *stream;  /* [n_models][n_replicas] */
  uint32_t n_streams; /* opened */
  kv_names names;
  kv_told_domain *told;
  int wake; /* eventfd */
  pthread_t thread;
  bool has_thread, local;
  _Atomic bool stop;
  uint64_t start; /* number of the first batch of each stream */
};

static kv_stream *stream_of(const kv_events *e, uint32_t model, uint32_t replica) {
  return &e->stream[model * e->n_replicas + replica];
}

/* ---- the thread ------------------------------------------------------------------------------- */

static void ring_wake(void *self) {
  const kv_events *e = self;
  (void)eventfd_write(e->wake, 1); /* full: it is awake */
}

static void take_cleared(void *self, uint32_t model) {
  const event_replica *r = self;
  kv_stream *s = stream_of(r->events, model, r->index);
  kv_batch_clear_all(&s->batch);
  s->came_late = false; /* all that follows is everything */
  s->told_all_us = weft_clock_us();
}

static void take_stored(void *self, const kv_chain *chain) {
  const event_replica *r = self;
  kv_batch_store(&stream_of(r->events, chain->model, r->index)->batch, chain);
}

static void take_removed(void *self, uint32_t model, weft_tier medium, const kv_name *name, uint32_t n) {
  const event_replica *r = self;
  kv_batch_remove(&stream_of(r->events, model, r->index)->batch, medium, name, n);
}

static kv_sink sink_of(event_replica *r) {
  return (kv_sink){take_cleared, take_stored, take_removed, r};
}

static void tell_all(void *self, kv_stream *stream) {
  event_replica *r = self;
  const kv_sink sink = sink_of(r);
  if (r->whole) kv_mirror_tell_all(r->mirror, stream->model, &sink);
}

/* What the engine has told; for a reader that was away it begins with everything. */
static void take_changes(event_replica *r) {
  weft_prefix_changes c;
  while (weft_prefix_feed_take(r->feed, &c)) {
    bool rest = c.rest;
    if (r->wanted && c.cleared) {
      kv_mirror_clear(r->mirror);
      r->begun = true;
    }
    if (r->begun) kv_mirror_apply(r->mirror, c.change, c.tokens, c.n);
    if (weft_prefix_feed_give_back(r->feed)) weft_engine_wake(r->engine);
    if (rest || !r->begun) continue;
    const kv_sink sink = sink_of(r);
    kv_mirror_settle(r->mirror, &sink);
    r->whole = true;
    for (uint32_t i = 0; i < r->events->n_models; i++) kv_stream_flush(stream_of(r->events, i, r->index));
    return;
  }
}

/* True: the replica has a subscriber. */
static bool hear_readers(event_replica *r, uint64_t now_us) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < r->events->n_models; i++) {
    kv_stream *s = stream_of(r->events, i, r->index);
    (void)kv_stream_hear(s, now_us);
    n += atomic_load(&s->counts.n_subscribers);
  }
  return n > 0;
}

static void want_changes(event_replica *r, bool wanted) {
  if (wanted == r->wanted) return;
  r->wanted = wanted;
  r->begun = r->whole = false; /* until it begins with everything */
  weft_prefix_feed_want(r->feed, wanted);
  weft_engine_wake(r->engine);
}

/* Who subscribed since everything was told gets everything. True: it waits for its time. */
static bool tell_late(event_replica *r, kv_stream *s, uint64_t now_us) {
  if (!s->came_late || !r->whole) return false;
  if (now_us < s->told_all_us + KV_TELL_ALL_US) return true;
  s->came_late = false;
  s->told_all_us = now_us;
  kv_batch_clear_all(&s->batch);
  tell_all(r, s);
  kv_stream_flush(s);
  return false;
}

/* One round over a replica. True: there is more to do soon. */
static bool serve_replica(event_replica *r, uint64_t now_us) {
  bool busy = false;
  want_changes(r, hear_readers(r, now_us));
  take_changes(r);
  if (r->whole && !kv_mirror_is_settled(r->mirror)) return true; /* the rest comes with the engine's next turn */
  for (uint32_t i = 0; i < r->events->n_models; i++) {
    kv_stream *s = stream_of(r->events, i, r->index);
    busy = tell_late(r, s, now_us) || busy;
    if (s->replayer != NULL) busy = kv_stream_replay(s, now_us, tell_all, r) || busy;
  }
  return busy;
}

static void *run_events(void *self) {
  kv_events *e = self;
  zmq_pollitem_t item[FIRST_POLLED + 2 * WEFT_REPLICAS_MAX * WEFT_MODELS_MAX];
  int n = FIRST_POLLED;
  item[0] = (zmq_pollitem_t){.fd = e->wake, .events = ZMQ_POLLIN};
  for (uint32_t i = 0; i < e->n_streams; i++) {
    item[n++] = (zmq_pollitem_t){.socket = e->stream[i].publisher, .events = ZMQ_POLLIN};
    if (e->stream[i].replayer != NULL)
      item[n++] = (zmq_pollitem_t){.socket = e->stream[i].replayer, .events = ZMQ_POLLIN};
  }
  bool busy = false;
  while (!atomic_load(&e->stop)) {
    (void)zmq_poll(item, n, busy ? BUSY_MS : IDLE_MS); /* a failure is a round for nothing */
    eventfd_t rings;
    (void)eventfd_read(e->wake, &rings);
    busy = false;
    for (uint32_t r = 0; r < e->n_replicas; r++) busy = serve_replica(&e->replica[r], weft_clock_us()) || busy;
  }
  return NULL;
}

/* ---- endpoints -------------------------------------------------------------------------------- */

static bool is_port(const char *text, size_t n) {
  bool digits = n > 0 && n <= 5;
  for (size_t i = 0; i < n; i++) digits = digits && text[i] >= '0' && text[i] <= '9';
  return digits;
}

/* The endpoint of number `index` behind the one that was given. */
static weft_status make_endpoint(const char *flag, const char *given, uint32_t index, char out[KV_ENDPOINT_BYTES],
                                 weft_error *error) {
  const char *colon = strrchr(given, ':');
  bool bare = is_port(given, strlen(given)), tcp = strncmp(given, "tcp://", 6) == 0;
  const char *port = bare ? given : tcp && colon > given + 5 ? colon + 1 : "";
  int n = 0;
  if (strncmp(given, "ipc://", 6) == 0 && given[6] != 0 && strchr("*@", given[6]) == NULL) {
    n = snprintf(out, KV_ENDPOINT_BYTES, index == 0 ? "%s" : "%s.%u", given, index);
  } else if (tcp && strcmp(port, "*") == 0) {
    n = snprintf(out, KV_ENDPOINT_BYTES, "%s", given);
  } else if (is_port(port, strlen(port)) && strtoul(port, NULL, 10) > 0 && strtoul(port, NULL, 10) + index <= 65535) {
    unsigned long number = strtoul(port, NULL, 10) + index;
    n = bare ? snprintf(out, KV_ENDPOINT_BYTES, "tcp://127.0.0.1:%lu", number)
             : snprintf(out, KV_ENDPOINT_BYTES, "%.*s:%lu", (int)(colon - given), given, number);
  }
  if (n > 0 && n < KV_ENDPOINT_BYTES) return WEFT_OK;
  return weft_fail(error, WEFT_E_INVALID,
                   "--%s: '%.80s' must be a port (with room for one more for each model and replica behind it), "
                   "tcp://ADDRESS:PORT or ipc://PATH",
                   flag, given);
}

static bool is_local(const char *endpoint) {
  static const char *const local[] = {"ipc://", "tcp://127.", "tcp://localhost:", "tcp://[::1]:"};
  for (size_t i = 0; i < sizeof local / sizeof *local; i++) {
    if (strncmp(endpoint, local[i], strlen(local[i])) == 0) return true;
  }
  return false;
}

static weft_status read_form(const char *text, kv_form *out, weft_error *error) {
  *out = (kv_form){0};
  for (const char *at = text; at != NULL && *at != 0;) {
    size_t n = strcspn(at, ",");
    bool arrays = n == 6 && strncmp(at, "arrays", n) == 0, bytes = n == 5 && strncmp(at, "bytes", n) == 0;
    if (!arrays && !bytes)
      return weft_fail(error, WEFT_E_INVALID, "--kv-events-form: '%.40s' must be arrays, bytes, or arrays,bytes", text);
    out->arrays = out->arrays || arrays;
    out->bytes = out->bytes || bytes;
    at += n + (at[n] == ',');
  }
  return WEFT_OK;
}

static void put_topic(const char *form, const char *model, weft_text *out) {
  static const char mark[] = "{model}";
  for (const char *at = form; *at != 0;) {
    const char *next = strstr(at, mark);
    size_t n = next == NULL ? strlen(at) : (size_t)(next - at);
    weft_text_append(out, at, n);
    if (next != NULL) weft_text_puts(out, model);
    at += n + (next == NULL ? 0 : sizeof mark - 1);
  }
  if (out->bytes == NULL) weft_text_append(out, "", 0);
}

static uint64_t time_now_us(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_REALTIME, &now); /* cannot fail with this clock */
  return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

/* ---- opening ---------------------------------------------------------------------------------- */

/* The domain of a tenant whose tokens may be told. */
static void add_told(kv_events *e, uint32_t tenant) {
  const weft_key128 domain = weft_runtime_domain(e->runtime, tenant);
  for (uint32_t i = 0; i < e->names.n_told; i++) {
    if (weft_key128_equal(e->told[i].domain, domain)) return;
  }
  e->told[e->names.n_told++] = (kv_told_domain){domain, e->runtime->tenant_name[tenant]};
}

static weft_status read_told(kv_events *e, const kv_events_options *o, weft_error *error) {
  uint32_t n_tenants = weft_tenants_count(e->runtime); /* who comes later is told of by keyed names alone */
  e->told = weft_alloc(n_tenants, sizeof *e->told);
  if (e->told == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for cache events");
  e->names.told = e->told;
  for (uint32_t i = 0; i < o->n_tokens; i++) {
    bool all = strcmp(o->tokens[i], "all") == 0, found = all;
    for (uint32_t t = 0; t < n_tenants; t++) {
      bool this = strcmp(o->tokens[i], e->runtime->tenant_name[t]) == 0;
      found = found || this;
      if (all || this) add_told(e, t);
    }
    if (!found)
      return weft_fail(error, WEFT_E_INVALID,
                       "--kv-events-tokens: no tenant is named '%.64s': give the name of one, or all", o->tokens[i]);
  }
  if (e->names.n_told == 1) e->told[0].salt = NULL; /* nobody else's blocks could be taken for these */
  return kv_names_draw(&e->names, error);
}

static weft_status open_stream(kv_events *e, const kv_events_options *o, uint32_t model, uint32_t replica, kv_form form,
                               weft_error *error) {
  char endpoint[KV_ENDPOINT_BYTES], replay[KV_ENDPOINT_BYTES];
  weft_text topic = {0};
  uint32_t index = model * e->n_replicas + replica;
  weft_status status = make_endpoint("kv-events", o->endpoint, index, endpoint, error);
  if (status == WEFT_OK && o->replay != NULL)
    status = make_endpoint("kv-events-replay", o->replay, index, replay, error);
  if (status != WEFT_OK) return status;
  e->local = e->local && is_local(endpoint) && (o->replay == NULL || is_local(replay));
  put_topic(o->topic == NULL ? "" : o->topic, e->runtime->model[model].name, &topic);
  const kv_stream_config config = {.context = e->context,
                                   .endpoint = endpoint,
                                   .replay_endpoint = o->replay == NULL ? NULL : replay,
                                   .topic = topic.bytes,
                                   .form = form,
                                   .model = model,
                                   .rank = replica,
                                   .socket_mode = o->socket_mode == 0 ? OWNER_ALONE : o->socket_mode,
                                   .start = e->start};
  status = weft_text_status(&topic) == WEFT_OK ? WEFT_OK : weft_fail(error, WEFT_E_NO_MEMORY, "no memory for a topic");
  if (status == WEFT_OK) {
    status = kv_stream_open(&config, stream_of(e, model, replica), error);
    e->n_streams += 1; /* what was opened of it is closed */
  }
  weft_text_free(&topic);
  return status;
}

static weft_status open_replica(kv_events *e, uint32_t index, weft_error *error) {
  event_replica *r = &e->replica[index];
  kv_mirror_model models[WEFT_MODELS_MAX];
  r->events = e;
  r->index = index;
  r->engine = weft_replicas_at(e->runtime->replicas, index);
  r->feed = weft_engine_feed(r->engine);
  if (r->feed == NULL) return weft_fail(error, WEFT_E_INVALID, "the runtime was opened without prefix_feed");
  for (uint32_t i = 0; i < e->n_models; i++) {
    const weft_kv_layout *layout = &e->runtime->model[i].layout;
    models[i].n_groups = layout->n_groups;
    memcpy(models[i].group, layout->group, sizeof models[i].group);
  }
  const weft_pager *pager = weft_engine_pager(r->engine); /* what is read never changes */
  const weft_runtime *rt = e->runtime;
  const kv_mirror_config config = {.n_nodes = weft_pager_nodes_max(pager),
                                   .base_tokens = weft_pager_base_tokens(pager),
                                   .n_tiers = rt->n_host_pages == 0   ? 1
                                              : rt->n_file_pages == 0 ? 2
                                                                      : 3,
                                   .model = models,
                                   .n_models = e->n_models,
                                   .names = &e->names};
  if (kv_mirror_open(&config, &r->mirror) != WEFT_OK)
    return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for a mirror of the prefix cache");
  weft_prefix_feed_listen(r->feed, ring_wake, e);
  return WEFT_OK;
}

static weft_status open_parts(kv_events *e, const kv_events_options *o, weft_error *error) {
  kv_form form;
  weft_status status = read_form(o->form, &form, error);
  if (status == WEFT_OK) status = read_told(e, o, error);
  if (status != WEFT_OK) return status;
  e->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  e->context = zmq_ctx_new();
  e->stream = weft_alloc((size_t)e->n_models * e->n_replicas, sizeof *e->stream);
  if (e->wake < 0 || e->context == NULL || e->stream == NULL)
    return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for cache events");
  for (uint32_t i = 0; i < e->n_models * e->n_replicas && status == WEFT_OK; i++)
    status = open_stream(e, o, i / e->n_replicas, i % e->n_replicas, form, error);
  for (uint32_t r = 0; r < e->n_replicas && status == WEFT_OK; r++) status = open_replica(e, r, error);
  if (status == WEFT_OK) status = weft_threads_start(&e->thread, run_events, e, error);
  e->has_thread = status == WEFT_OK;
  return status;
}

weft_status kv_events_open(const kv_events_options *o, weft_runtime *runtime, kv_events **out, weft_error *error) {
  *out = NULL;
  kv_events *e = weft_alloc(1, sizeof *e);
  if (e == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for cache events");
  *e = (kv_events){.runtime = runtime,
                   .n_replicas = runtime->n_replicas,
                   .n_models = runtime->n_models,
                   .wake = -1,
                   .local = true,
                   .start = o->start == 0 ? time_now_us() : o->start};
  weft_status status = open_parts(e, o, error);
  if (status == WEFT_OK)
    *out = e;
  else
    kv_events_close(e);
  return status;
}

void kv_events_close(kv_events *e) {
  if (e == NULL) return;
  atomic_store(&e->stop, true);
  if (e->has_thread) {
    ring_wake(e);
    (void)pthread_join(e->thread, NULL);
  }
  for (uint32_t r = 0; r < e->n_replicas; r++) {
    if (e->replica[r].feed != NULL) {
      weft_prefix_feed_want(e->replica[r].feed, false);
      weft_prefix_feed_listen(e->replica[r].feed, NULL, NULL);
    }
    kv_mirror_close(e->replica[r].mirror);
  }
  for (uint32_t i = 0; i < e->n_streams; i++) kv_stream_close(&e->stream[i]);
  if (e->context != NULL) (void)zmq_ctx_term(e->context);
  if (e->wake >= 0) (void)close(e->wake);
  weft_free(e->stream);
  weft_free(e->told);
  explicit_bzero(&e->names, sizeof e->names);
  weft_free(e);
}

/* ---- what others read -------------------------------------------------------------------------- */

bool kv_events_is_local(const kv_events *e) {
  return e->local;
}

const char *kv_events_endpoint(const kv_events *e, uint32_t model, uint32_t replica, bool replays) {
  const kv_stream *s = stream_of(e, model, replica);
  return replays ? s->replay_endpoint : s->endpoint;
}

void kv_events_sources(const kv_events *e, uint32_t model, weft_text *out) {
  weft_text_puts(out, "{");
  for (uint32_t r = 0; r < e->n_replicas; r++) {
    const kv_stream *s = stream_of(e, model, r);
    weft_text_printf(
        out,
        "%s\"%u\":{\"enable_kv_cache_events\":true,\"publisher\":\"zmq\",\"encoding\":\"msgpack\",\"schema_version\":1,"
        "\"endpoint\":",
        r > 0 ? "," : "", r);
    weft_json_words(out, s->endpoint);
    weft_text_puts(out, ",\"replay_endpoint\":");
    if (s->replayer != NULL)
      weft_json_words(out, s->replay_endpoint);
    else
      weft_text_puts(out, "null");
    weft_text_printf(out, ",\"buffer_steps\":%d,\"hwm\":%d,\"max_queue_size\":%d,\"topic\":", KV_REPLAY_BATCHES,
                     KV_QUEUED_BATCHES, KV_QUEUED_BATCHES);
    weft_json_words(out, s->topic);
    weft_text_puts(out, "}");
  }
  weft_text_puts(out, "}");
}

typedef struct counter_row {
  const char *name, *help;
  size_t at; /* in kv_stream_counts */
} counter_row;

void kv_events_metrics(const kv_events *e, weft_text *out) {
#define AT(field) offsetof(kv_stream_counts, field)
  static const counter_row rows[] = {
      {"weft_kv_event_batches_total", "Batches of cache events.", AT(n_batches)},
      {"weft_kv_events_total", "Cache events in them.", AT(n_events)},
      {"weft_kv_event_overruns_total",
       "Times that a subscriber had no room and began to lose batches, or memory was refused.", AT(n_overruns)},
      {"weft_kv_event_replays_total", "Replays that were asked for.", AT(n_replays)},
      {"weft_kv_event_replays_ended_total", "Those that were given up: not taken, asked again, or too many.",
       AT(n_ended)},
      {"weft_kv_event_strange_total", "Messages of readers that are no requests.", AT(n_strange)}};
#undef AT
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    uint64_t n = 0;
    weft_prometheus_head(out, rows[i].name, "counter", rows[i].help);
    for (uint32_t k = 0; k < e->n_streams; k++)
      n += atomic_load((_Atomic uint64_t *)(void *)((char *)&e->stream[k].counts + rows[i].at));
    weft_text_printf(out, "%s %llu\n", rows[i].name, (unsigned long long)n);
  }
  uint32_t n_subscribers = 0;
  for (uint32_t k = 0; k < e->n_streams; k++) n_subscribers += atomic_load(&e->stream[k].counts.n_subscribers);
  weft_prometheus_head(out, "weft_kv_event_subscribers", "gauge", "Subscriptions to cache events.");
  weft_text_printf(out, "weft_kv_event_subscribers %u\n", n_subscribers);
  weft_prometheus_head(out, "weft_kv_event_next_number", "gauge", "Number of the next batch of cache events.");
  for (uint32_t k = 0; k < e->n_streams; k++) {
    const kv_stream *s = &e->stream[k];
    weft_text_puts(out, "weft_kv_event_next_number{");
    weft_prometheus_label(out, "model_name", e->runtime->model[s->model].name);
    weft_text_printf(out, ",replica=\"%u\"} %llu\n", s->rank,
                     (unsigned long long)kv_replay_number(&s->replay, atomic_load(&s->counts.n_batches)));
  }
}
#endif
