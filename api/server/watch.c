/* SPDX-License-Identifier: MIT */
#include "api/server/watch.h"

#include <pthread.h>
#include <string.h>

#include "api/http/sse.h"
#include "api/prometheus.h"
#include "api/server/look.h"
#include "base/condition.h"
#include "base/memory.h"
#include "base/threads.h"

enum {
  PIECE_BYTES = 1 << 16,
  WATCHERS_MAX = 64,
  OF_TENANT_MAX = 16, /* of the watchers, where there are several tenants */
  EVENT_BYTES = 64    /* what stands around the object */
};

/* A text that its readers share: an event, and within it the object. */
typedef struct parcel {
  uint32_t n_references; /* under the mutex */
  weft_text text;
  size_t from, rest, end; /* the object is [from, end); from `rest` on it changes only with what there is to see */
} parcel;

/* What is written for one tenant. Under the mutex. */
typedef struct feed {
  uint32_t n; /* its watchers */
  parcel *newest;
  uint64_t n_looks; /* for it; `changed`: how many of them differed from the one before */
  uint64_t changed;
} feed;

typedef enum watch_end { WATCH_GOES_ON = 0, WATCH_DRAINS, WATCH_KEY_GONE, WATCH_LEFT } watch_end;

typedef struct watcher {
  weft_watchers *all;
  weft_exchange *exchange;
  uint32_t tenant, ticket;
  bool once; /* a question, not a stream */
  /* under the mutex */
  struct watcher *next, *before;
  watch_end end;
  uint64_t seen; /* of feed.changed; of a question the value of n_looks when it came */
  parcel *going; /* being given; NULL: none */
  size_t given;  /* of it */
  bool told_end;
} watcher;

struct weft_watchers {
  const weft_keys *keys;
  look look;      /* the thread's */
  parcel **fresh; /* [n_tenants] the thread's */
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  pthread_t thread;
  bool has_mutex, has_thread;
  /* under the mutex */
  bool closing, draining;
  watcher *first;
  uint32_t n;
  feed *feed; /* [n_tenants] */
  uint64_t n_looks;
  uint32_t n_reloads; /* of the keys, when all watchers' were looked up */
};

static void lock_all(weft_watchers *all) {
  (void)pthread_mutex_lock(&all->mutex);
}

static void unlock_all(weft_watchers *all) {
  (void)pthread_mutex_unlock(&all->mutex);
}

/* ---- parcels ----------------------------------------------------------------------------------- */

static void drop_parcel(parcel *p) {
  if (p == NULL || --p->n_references > 0) return;
  weft_text_free(&p->text);
  weft_free(p);
}

/* What the tenant is told of the look; NULL: no memory. */
static parcel *write_parcel(const look *l, uint32_t tenant) {
  parcel *p = weft_alloc(1, sizeof *p);
  if (p == NULL) return NULL;
  p->n_references = 1;
  p->text.max = l->bytes_max + EVENT_BYTES;
  weft_sse_begin(&p->text, "stats");
  p->from = p->text.n;
  look_put_head(l, tenant, &p->text);
  p->rest = p->text.n;
  look_put_rest(l, tenant, &p->text);
  p->end = p->text.n;
  weft_sse_end(&p->text);
  if (weft_text_status(&p->text) == WEFT_OK) return p;
  drop_parcel(p);
  return NULL;
}

static bool says_the_same(const parcel *a, const parcel *b) {
  size_t n = a->end - a->rest;
  return n == b->end - b->rest && memcmp(a->text.bytes + a->rest, b->text.bytes + b->rest, n) == 0;
}

/* ---- the thread that looks ---------------------------------------------------------------------- */

static void end_watcher(watcher *w, watch_end end) {
  if (w->end == WATCH_GOES_ON) w->end = end;
  weft_exchange_wake(w->exchange);
}

static bool key_is_gone(const watcher *w) {
  return w->all->keys != NULL && !w->once && !weft_keys_hold(w->all->keys, w->ticket, w->tenant);
}

/* Each watcher's text takes the place of the one before, and who has not seen it is woken. */
static void hand_out(weft_watchers *all, uint32_t n_reloads) {
  bool look_up = n_reloads != all->n_reloads;
  all->n_reloads = n_reloads;
  all->n_looks += 1;
  for (uint32_t t = 0; t < all->look.n_tenants; t++) {
    feed *f = &all->feed[t];
    parcel *fresh = all->fresh[t];
    all->fresh[t] = NULL;
    if (f->n == 0) { /* they have left meanwhile */
      drop_parcel(fresh);
      continue;
    }
    f->n_looks += 1;
    if (fresh != NULL && (f->newest == NULL || !says_the_same(fresh, f->newest))) f->changed += 1;
    if (fresh == NULL) continue;
    drop_parcel(f->newest);
    f->newest = fresh;
  }
  for (watcher *w = all->first; w != NULL; w = w->next) {
    if (look_up && key_is_gone(w)) end_watcher(w, WATCH_KEY_GONE);
    if (w->once || all->feed[w->tenant].changed != w->seen) weft_exchange_wake(w->exchange);
  }
}

/* Without the mutex: nobody waits for it meanwhile. */
static void take_look(weft_watchers *all, bool draining, const bool *wanted) {
  look_take(&all->look, draining);
  for (uint32_t t = 0; t < all->look.n_tenants; t++) all->fresh[t] = wanted[t] ? write_parcel(&all->look, t) : NULL;
}

static void *run_looks(void *self) {
  weft_watchers *all = self;
  uint64_t next_us = 0;
  lock_all(all);
  while (!all->closing) {
    uint64_t now = weft_clock_us();
    if (all->n == 0 || now < next_us) {
      (void)weft_condition_wait(&all->changed, &all->mutex, all->n == 0 ? UINT64_MAX : next_us);
      continue;
    }
    bool wanted[WEFT_TENANTS_MAX], draining = all->draining;
    for (uint32_t t = 0; t < all->look.n_tenants; t++) wanted[t] = all->feed[t].n > 0;
    next_us = now + LOOK_PERIOD_MS * 1000u;
    unlock_all(all);
    uint32_t n_reloads = all->keys == NULL ? 0 : weft_keys_n_reloads(all->keys);
    take_look(all, draining, wanted);
    lock_all(all);
    hand_out(all, n_reloads);
  }
  unlock_all(all);
  return NULL;
}

/* ---- a watcher, on the network thread ------------------------------------------------------------ */

static void put_end(const watcher *w, weft_text *out) {
  weft_refusal why;
  if (w->end == WATCH_DRAINS) (void)weft_refuse(&why, 503, "draining", NULL, "the server is shutting down");
  if (w->end == WATCH_KEY_GONE)
    (void)weft_refuse(&why, 401, "invalid_api_key", NULL, "the API key of this stream was taken away");
  weft_sse_begin(out, "error");
  weft_refusal_json(&why, out);
  weft_sse_end(out);
}

static weft_pull pull_stream(void *self, weft_exchange *x, int64_t *work, weft_text *out) {
  watcher *w = self;
  (void)x;
  lock_all(w->all);
  const feed *f = &w->all->feed[w->tenant];
  if (w->going == NULL && w->end == WATCH_GOES_ON && f->newest != NULL && f->changed != w->seen) {
    w->going = f->newest;
    w->going->n_references += 1;
    w->given = 0;
    w->seen = f->changed;
  }
  weft_pull pull = WEFT_PULL_WAIT;
  if (w->going != NULL && w->end != WATCH_LEFT) {
    const weft_text *text = &w->going->text;
    size_t n = text->n - w->given < PIECE_BYTES ? text->n - w->given : PIECE_BYTES;
    weft_text_append(out, text->bytes + w->given, n);
    w->given += n;
    *work -= (int64_t)n;
    if (w->given == text->n) {
      drop_parcel(w->going);
      w->going = NULL;
    }
    pull = WEFT_PULL_MORE;
  } else if (w->end != WATCH_GOES_ON) {
    if (w->end != WATCH_LEFT) put_end(w, out);
    pull = WEFT_PULL_END;
  }
  unlock_all(w->all);
  return pull;
}

static weft_pull pull_answer(void *self, weft_exchange *x, int64_t *work, weft_text *out) {
  watcher *w = self;
  weft_text body = {0};
  weft_refusal why;
  (void)out;
  lock_all(w->all);
  const feed *f = &w->all->feed[w->tenant];
  bool is_there = f->n_looks > w->seen, left = w->end == WATCH_LEFT, has_text = is_there && f->newest != NULL;
  if (has_text) {
    const parcel *p = f->newest;
    weft_text_append(&body, p->text.bytes + p->from, p->end - p->from);
    *work -= (int64_t)body.n;
  }
  unlock_all(w->all);
  if (!is_there && !left) return WEFT_PULL_WAIT;
  if (has_text) {
    weft_exchange_set_header(x, "Cache-Control", "no-store");
    weft_exchange_answer(x, 200, "application/json", &body);
  } else {
    (void)weft_refuse(&why, 503, left ? "draining" : "no_memory", NULL, "%s",
                      left ? "the server is shutting down" : "no memory for the answer: try again later");
    weft_exchange_refuse(x, &why);
  }
  return WEFT_PULL_END;
}

static void say_wait(void *self, weft_text *out) {
  (void)self;
  weft_sse_comment(out);
}

static void leave_watch(void *self) {
  watcher *w = self;
  lock_all(w->all);
  end_watcher(w, WATCH_LEFT);
  w->end = WATCH_LEFT; /* whatever it was to be told */
  unlock_all(w->all);
}

static void close_watch(void *self) {
  watcher *w = self;
  weft_watchers *all = w->all;
  lock_all(all);
  feed *f = &all->feed[w->tenant];
  *(w->before == NULL ? &all->first : &w->before->next) = w->next;
  if (w->next != NULL) w->next->before = w->before;
  drop_parcel(w->going);
  all->n -= 1;
  f->n -= 1;
  if (f->n == 0) {
    drop_parcel(f->newest); /* who comes next is not shown what was */
    f->newest = NULL;
  }
  unlock_all(all);
  weft_free(w);
}

/* A place among those who watch. */
static weft_status take_place(weft_watchers *all, uint32_t tenant, weft_refusal *why) {
  lock_all(all);
  feed *f = &all->feed[tenant];
  bool room = all->n < WATCHERS_MAX && (all->look.n_tenants == 1 || f->n < OF_TENANT_MAX);
  if (room) {
    all->n += 1;
    f->n += 1;
  }
  unlock_all(all);
  if (room) return WEFT_OK;
  return weft_refuse(why, 429, "too_many_requests", NULL, "%d clients watch already, or %d of this tenant",
                     WATCHERS_MAX, OF_TENANT_MAX);
}

static void join_watch(watcher *w) {
  weft_watchers *all = w->all;
  lock_all(all);
  feed *f = &all->feed[w->tenant];
  w->next = all->first;
  if (w->next != NULL) w->next->before = w;
  all->first = w;
  w->seen = w->once ? f->n_looks : f->newest == NULL ? f->changed : f->changed - 1;
  if (!w->once && all->draining) w->end = WATCH_DRAINS;
  if (key_is_gone(w)) w->end = WATCH_KEY_GONE;
  (void)pthread_cond_signal(&all->changed);
  unlock_all(all);
}

static void begin_watch(weft_server *s, weft_exchange *x, bool once) {
  const weft_note *note = weft_exchange_note(x);
  uint32_t tenant = s->keys == NULL ? 0 : note->tenant;
  weft_refusal why;
  watcher *w = weft_alloc(1, sizeof *w);
  weft_status status = w == NULL ? WEFT_E_NO_MEMORY : take_place(s->watchers, tenant, &why);
  if (w == NULL) (void)weft_refuse(&why, 503, "no_memory", NULL, "no memory for the answer: try again later");
  if (status != WEFT_OK) {
    weft_free(w);
    weft_exchange_refuse(x, &why);
    return;
  }
  *w = (watcher){.all = s->watchers, .exchange = x, .tenant = tenant, .ticket = note->ticket, .once = once};
  const weft_source source = {
      .pull = once ? pull_answer : pull_stream, .wait = say_wait, .left = leave_watch, .close = close_watch, .self = w};
  if (once)
    weft_exchange_later(x, &source);
  else
    weft_exchange_stream(x, WEFT_SSE_TYPE, &source);
  join_watch(w); /* from here on it may be woken */
}

void weft_handle_stats(weft_server *s, weft_exchange *x) {
  begin_watch(s, x, true);
}

void weft_handle_stats_stream(weft_server *s, weft_exchange *x) {
  weft_text none = {0};
  if (strcmp(weft_exchange_method(x), "HEAD") == 0) /* a head has an end */
    weft_exchange_answer(x, 200, WEFT_SSE_TYPE, &none);
  else
    begin_watch(s, x, false);
}

/* ---- all ------------------------------------------------------------------------------------------ */

void weft_watchers_close(weft_watchers *all) {
  if (all == NULL) return;
  if (all->has_thread) {
    lock_all(all);
    all->closing = true;
    (void)pthread_cond_signal(&all->changed);
    unlock_all(all);
    (void)pthread_join(all->thread, NULL);
  }
  if (all->has_mutex) {
    (void)pthread_cond_destroy(&all->changed);
    (void)pthread_mutex_destroy(&all->mutex);
  }
  look_close(&all->look);
  weft_free(all->fresh);
  weft_free(all->feed);
  weft_free(all);
}

static weft_status open_all(weft_watchers *all, weft_runtime *runtime) {
  weft_status status = look_open(&all->look, runtime, all->keys);
  if (status != WEFT_OK) return status;
  all->fresh = weft_alloc(all->look.n_tenants, sizeof(parcel *));
  all->feed = weft_alloc(all->look.n_tenants, sizeof *all->feed);
  if (all->fresh == NULL || all->feed == NULL) return WEFT_E_NO_MEMORY;
  if (pthread_mutex_init(&all->mutex, NULL) != 0) return WEFT_E_NO_MEMORY;
  status = weft_condition_open(&all->changed);
  all->has_mutex = status == WEFT_OK;
  if (status != WEFT_OK) (void)pthread_mutex_destroy(&all->mutex);
  if (status == WEFT_OK) status = weft_threads_start(&all->thread, run_looks, all, NULL);
  all->has_thread = status == WEFT_OK;
  return status;
}

weft_status weft_watchers_open(weft_runtime *runtime, const weft_keys *keys, weft_watchers **out, weft_error *error) {
  *out = NULL;
  weft_watchers *all = weft_alloc(1, sizeof *all);
  weft_status status = WEFT_E_NO_MEMORY;
  if (all != NULL) {
    all->keys = keys;
    if (keys != NULL) all->n_reloads = weft_keys_n_reloads(keys);
    status = open_all(all, runtime);
  }
  if (status == WEFT_OK) {
    *out = all;
    return WEFT_OK;
  }
  weft_watchers_close(all);
  return weft_fail(error, status, "no memory for the server");
}

void weft_watchers_drain(weft_watchers *all) {
  lock_all(all);
  all->draining = true;
  for (watcher *w = all->first; w != NULL; w = w->next) {
    if (!w->once) end_watcher(w, WATCH_DRAINS);
  }
  unlock_all(all);
}

uint32_t weft_watchers_count(weft_watchers *all) {
  lock_all(all);
  uint32_t n = all->n;
  unlock_all(all);
  return n;
}

uint64_t weft_watchers_bytes_max(const weft_watchers *all) {
  uint32_t n_feeds = all->look.n_tenants < WATCHERS_MAX ? all->look.n_tenants : WATCHERS_MAX;
  return (all->look.bytes_max + EVENT_BYTES) * (WATCHERS_MAX + 2 * (uint64_t)n_feeds);
}

void weft_watchers_metrics(weft_watchers *all, weft_text *out) {
  lock_all(all);
  uint32_t n = all->n;
  uint64_t n_looks = all->n_looks;
  unlock_all(all);
  weft_prometheus_head(out, "weft_watchers", "gauge", "Clients of /stats and /stats/stream.");
  weft_text_printf(out, "weft_watchers %u\n", n);
  weft_prometheus_head(out, "weft_looks_total", "counter", "Times that the server was looked at for them.");
  weft_text_printf(out, "weft_looks_total %llu\n", (unsigned long long)n_looks);
}
