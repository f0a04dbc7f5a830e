/* SPDX-License-Identifier: MIT */
/* The law of the queue: random submissions of many tenants over random limits, to one to three inboxes with the same
 * places, starts, preemptions and ends, against a plain model that keeps every request in an array and knows nothing of
 * lists.
 *
 *   test_prop_scheduler_queue [--seed N | --seeds A..B] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "scheduler/inbox.h"
#include "tests/support/seeds.h"

enum { TENANTS_MAX = 6, CALLS = 400, INBOXES_MAX = 3, LIVE_MAX = 256, DEFAULT_SEEDS = 3000 };

typedef struct entry {
  weft_request *request;
  uint64_t submission;
  uint32_t tenant, n_tokens;
  weft_place place;
  uint64_t part_started; /* 0, or the number of the first start of a request of its submission */
} entry;

typedef struct model {
  uint64_t seed, draws, now_us, n_submissions, n_starts;
  weft_tenant_config tenant[TENANTS_MAX];
  double level[TENANTS_MAX]; /* tokens */
  uint64_t n_refused[TENANTS_MAX][WEFT_REFUSED_KINDS], n_evicted[TENANTS_MAX];
  uint32_t n_tenants, waiting_max, running_max, call;
  weft_places places; /* memory has no limit */
  weft_inbox inbox[INBOXES_MAX];
  uint32_t n_inboxes;
  entry entry[LIVE_MAX + WEFT_SUBMISSION_MAX]; /* live and evicted ones, oldest first */
  uint32_t n;
  uint64_t n_ok, n_full, n_displaced; /* submissions, evictions */
} model;

static uint64_t n_ok, n_full, n_displaced;

#define FAIL(m, ...) (fprintf(stderr, "call %u: ", (m)->call), seeds_fail((m)->seed, __VA_ARGS__))

static uint32_t draw(model *m, uint32_t low, uint32_t high) {
  return seeds_draw(m->seed, &m->draws, low, high);
}

static bool is_live(const entry *e) {
  return e->place != WEFT_PLACE_EVICTED;
}

static uint32_t count(const model *m, uint32_t tenant, weft_place place) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < m->n; i++) n += m->entry[i].tenant == tenant && m->entry[i].place == place;
  return n;
}

static uint32_t count_live(const model *m, uint32_t tenant) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < m->n; i++)
    n += (tenant == UINT32_MAX || m->entry[i].tenant == tenant) && is_live(&m->entry[i]);
  return n;
}

static uint32_t weight_of(const model *m, uint32_t tenant) {
  return m->tenant[tenant].weight;
}

/* ---- the law, said plainly ------------------------------------------------------------------- */

/* The newest submission of a tenant with a request that never ran. Those of which a part runs come after all others,
 * and of them the one that began last comes first. */
static uint64_t newest(const model *m, uint32_t tenant, bool *found) {
  const entry *best = NULL;
  for (uint32_t i = 0; i < m->n; i++) {
    const entry *e = &m->entry[i];
    if (e->tenant != tenant || e->place != WEFT_PLACE_UNSTARTED) continue;
    bool begun = e->part_started > 0;
    bool better = best == NULL || (best->part_started > 0 && !begun) ||
                  (begun ? e->part_started > best->part_started : e->submission > best->submission);
    if (begun && best != NULL && best->part_started == 0) better = false;
    if (better) best = e;
  }
  *found = best != NULL;
  return best == NULL ? 0 : best->submission;
}

/* Evicts in the copy as the law says; false: not enough room. */
static bool displace(model *m, uint32_t tenant, uint32_t n) {
  uint32_t live_max = m->waiting_max + m->running_max;
  double own = (double)(count(m, tenant, WEFT_PLACE_UNSTARTED) + n) / weight_of(m, tenant);
  while (count_live(m, UINT32_MAX) + n > live_max) {
    uint32_t victim = UINT32_MAX;
    double most = own;
    for (uint32_t i = 0; i < m->n_tenants; i++) {
      double part = (double)count(m, i, WEFT_PLACE_UNSTARTED) / weight_of(m, i);
      if (i == tenant || part <= most + 1e-9) continue;
      most = part;
      victim = i;
    }
    if (victim == UINT32_MAX) return false;
    bool found;
    uint64_t submission = newest(m, victim, &found);
    if (!found) return false;
    for (uint32_t i = 0; i < m->n; i++) {
      entry *e = &m->entry[i];
      if (e->tenant != victim || e->submission != submission || e->place != WEFT_PLACE_UNSTARTED) continue;
      e->place = WEFT_PLACE_EVICTED;
      m->n_evicted[victim] += 1;
    }
  }
  return true;
}

/* Within its share of the places that requests which have started leave. */
static bool is_within_share(const model *m, uint32_t tenant, uint32_t n) {
  uint32_t started = 0, weights = weight_of(m, tenant);
  for (uint32_t i = 0; i < m->n_tenants; i++) {
    started += count(m, i, WEFT_PLACE_RUNNING) + count(m, i, WEFT_PLACE_PREEMPTED);
    if (i != tenant && count(m, i, WEFT_PLACE_UNSTARTED) > 0) weights += weight_of(m, i);
  }
  double places = (double)(m->waiting_max + m->running_max) - started;
  return count(m, tenant, WEFT_PLACE_UNSTARTED) + n <= places * weight_of(m, tenant) / weights + 1e-9;
}

/* WEFT_REFUSED_NONE: it gets in. */
static weft_refused expected(model *m, uint32_t tenant, uint32_t n, uint32_t n_tokens, weft_shortage *shortage) {
  const weft_tenant_config *t = &m->tenant[tenant];
  uint32_t running = t->running_max > 0 && t->running_max < m->running_max ? t->running_max : m->running_max;
  uint32_t live = count_live(m, tenant), allowed = running + t->waiting_max;
  weft_refused why = WEFT_REFUSED_NONE;
  *shortage = (weft_shortage){0};
  if (t->waiting_max > 0 && live + n > allowed) {
    why = WEFT_REFUSED_TENANT_QUEUE;
    shortage->n_own_places = live + n - allowed;
  }
  if (t->tokens_per_minute > 0 && n_tokens > m->level[tenant] + 1e-6) {
    if (why == WEFT_REFUSED_NONE) why = WEFT_REFUSED_TOKENS;
    shortage->tokens_us = (uint64_t)((n_tokens - m->level[tenant]) * 60e6 / t->tokens_per_minute) + 1;
  }
  if (why != WEFT_REFUSED_NONE) return why;
  model *copy = malloc(sizeof *copy);
  *copy = *m;
  bool room = displace(copy, tenant, n);
  if (room) memcpy(m->entry, copy->entry, sizeof m->entry);
  if (room) memcpy(m->n_evicted, copy->n_evicted, sizeof m->n_evicted);
  if (!room) shortage->n_places = count_live(m, UINT32_MAX) + n - m->waiting_max - m->running_max;
  free(copy);
  if (!room && is_within_share(m, tenant, n)) FAIL(m, "tenant %u is within its share and gets no place", tenant);
  return room ? WEFT_REFUSED_NONE : WEFT_REFUSED_QUEUE;
}

/* ---- calls ----------------------------------------------------------------------------------- */

static weft_request *make_request(model *m, uint32_t tenant) {
  weft_error error;
  static const int32_t prompt[2] = {1, 2};
  weft_request_params p = {.tenant = tenant, .tokens = prompt, .n_tokens = 2, .max_tokens = 1};
  weft_request_size size = {.answer_max = 1};
  weft_request *r;
  if (weft_request_open(&p, &size, &m->places.budget, &r, &error) != WEFT_OK) FAIL(m, "%s", error.text);
  r->inbox = &m->inbox[draw(m, 0, m->n_inboxes - 1)];
  r->n_rows = draw(m, 1, 1000);
  return r;
}

static void free_request(weft_request *r) {
  weft_request_unref(r);
  weft_request_unref(r);
}

static void pass_time(model *m) {
  uint64_t us = draw(m, 0, 3000000);
  m->now_us += us;
  for (uint32_t i = 0; i < m->n_tenants; i++) {
    double most = m->tenant[i].tokens_per_minute;
    m->level[i] += most * (double)us / 60e6;
    if (m->level[i] > most) m->level[i] = most;
  }
}

static void give_back(model *m, uint32_t tenant, uint32_t n_tokens) {
  double most = m->tenant[tenant].tokens_per_minute;
  m->level[tenant] = m->level[tenant] + n_tokens > most ? most : m->level[tenant] + n_tokens;
}

static void call_submit(model *m) {
  uint32_t tenant = draw(m, 0, m->n_tenants - 1), most = m->waiting_max + m->running_max;
  uint32_t n = draw(m, 0, 2) > 0 ? 1 : draw(m, 1, most < 8 ? most : 8), each = draw(m, 1, 40);
  if (draw(m, 0, 3) > 0) tenant = 0; /* the flood */
  weft_request *request[8];
  for (uint32_t i = 0; i < n; i++) request[i] = make_request(m, tenant);
  weft_shortage lacks, got;
  weft_error error = {{0}};
  weft_refused why = expected(m, tenant, n, n * each, &lacks);
  weft_status status = weft_inboxes_put(request, n, (uint64_t)n * each, m->now_us, &got, &error);
  if ((status == WEFT_OK) != (why == WEFT_REFUSED_NONE))
    FAIL(m, "%u requests of tenant %u: %s (%s), wanted %d", n, tenant, status == WEFT_OK ? "in" : "refused", error.text,
         (int)why);
  if (status != WEFT_OK) {
    if (got.why != why || got.n_own_places != lacks.n_own_places || got.n_places != lacks.n_places)
      FAIL(m, "refused for %d and lacks %u, %u; wanted %d, %u, %u", (int)got.why, got.n_own_places, got.n_places,
           (int)why, lacks.n_own_places, lacks.n_places);
    uint64_t off = got.tokens_us > lacks.tokens_us ? got.tokens_us - lacks.tokens_us : lacks.tokens_us - got.tokens_us;
    if (off > 2) FAIL(m, "tokens in %llu us", (unsigned long long)got.tokens_us);
    if (error.text[0] == 0 || strchr(error.text, '\n') != NULL) FAIL(m, "refused without a line");
    m->n_refused[tenant][why] += n;
    m->n_full += 1;
    for (uint32_t i = 0; i < n; i++) free_request(request[i]);
    return;
  }
  m->n_ok += 1;
  m->n_submissions += 1;
  if (m->tenant[tenant].tokens_per_minute > 0) m->level[tenant] -= (double)n * each;
  for (uint32_t i = 0; i < n; i++)
    m->entry[m->n++] = (entry){request[i], m->n_submissions, tenant, each, WEFT_PLACE_UNSTARTED, 0};
}

static void end(model *m, uint32_t at) {
  entry e = m->entry[at];
  uint32_t n_unused = draw(m, 0, e.n_tokens);
  weft_inbox_end(e.request->inbox, e.request, n_unused, m->now_us);
  give_back(m, e.tenant, n_unused);
  free_request(e.request);
  memmove(m->entry + at, m->entry + at + 1, (m->n - at - 1) * sizeof e);
  m->n -= 1;
}

/* What an engine thread does in a turn: ends the evicted ones of its inbox. Returns how many. */
static uint32_t take_from(model *m, weft_inbox *inbox) {
  weft_inbox_notes notes;
  weft_link *link;
  uint32_t n_noted = 0;
  weft_inbox_take(inbox, &notes);
  while ((link = weft_list_pop_front(&notes.evicted)) != NULL) {
    const weft_request *r = WEFT_OF_LINK(link, weft_request, evicted_link);
    uint32_t at = 0;
    while (at < m->n && m->entry[at].request != r) at += 1;
    if (at == m->n || m->entry[at].place != WEFT_PLACE_EVICTED) FAIL(m, "the wrong request was evicted");
    if (r->inbox != inbox) FAIL(m, "an eviction was noted in the wrong inbox");
    end(m, at);
    n_noted += 1;
  }
  return n_noted;
}

static void take(model *m) {
  uint32_t n_noted = 0, n_evicted = 0;
  for (uint32_t i = 0; i < m->n; i++) n_evicted += m->entry[i].place == WEFT_PLACE_EVICTED;
  for (uint32_t i = 0; i < m->n_inboxes; i++) n_noted += take_from(m, &m->inbox[i]);
  if (n_noted != n_evicted) FAIL(m, "%u were evicted, %u were noted", n_evicted, n_noted);
  m->n_displaced += n_noted;
}

static void call_move(model *m) {
  if (m->n == 0) return;
  uint32_t at = draw(m, 0, draw(m, 0, m->n - 1)), kind = draw(m, 0, 9);
  entry *e = &m->entry[at];
  bool waits = e->place == WEFT_PLACE_UNSTARTED || e->place == WEFT_PLACE_PREEMPTED;
  if (e->place == WEFT_PLACE_RUNNING && kind == 0) {
    weft_inbox_preempt(e->request->inbox, e->request);
    e->place = WEFT_PLACE_PREEMPTED;
  } else if (waits && kind > 1) {
    uint32_t n_running = 0;
    for (uint32_t i = 0; i < m->n; i++) n_running += m->entry[i].place == WEFT_PLACE_RUNNING;
    if (n_running == m->running_max) return;
    if (!weft_inbox_start(e->request->inbox, e->request)) FAIL(m, "a request that was not evicted may not start");
    bool first = e->place == WEFT_PLACE_UNSTARTED && e->part_started == 0;
    m->n_starts += 1;
    for (uint32_t i = 0; i < m->n && first; i++)
      if (m->entry[i].submission == e->submission) m->entry[i].part_started = m->n_starts;
    e->place = WEFT_PLACE_RUNNING;
  } else if (e->place == WEFT_PLACE_EVICTED && kind > 4) {
    if (weft_inbox_start(e->request->inbox, e->request)) FAIL(m, "an evicted request started");
  } else {
    end(m, at); /* cancelled, or it has all its answer */
  }
}

static void check_inbox(model *m, weft_inbox *inbox) {
  weft_replica_load all = {0}, got_all, got;
  for (uint32_t t = 0; t < m->n_tenants; t++) {
    weft_replica_load own = {0};
    for (uint32_t i = 0; i < m->n; i++) {
      const entry *e = &m->entry[i];
      if (e->request->inbox != inbox || e->tenant != t || !is_live(e)) continue;
      own.n_rows += e->request->n_rows;
      own.n_requests += 1;
    }
    all.n_rows += own.n_rows;
    all.n_requests += own.n_requests;
    weft_inbox_get_load(inbox, t, &got_all, &got);
    if (got.n_requests != own.n_requests || got.n_rows != own.n_rows)
      FAIL(m, "an inbox has %u requests of tenant %u, and counts %u", own.n_requests, t, got.n_requests);
  }
  if (got_all.n_rows != all.n_rows || weft_inbox_n_live(inbox) != all.n_requests)
    FAIL(m, "an inbox miscounts its requests or rows");
}

static void check_counts(model *m) {
  if (m->places.n_live != count_live(m, UINT32_MAX)) FAIL(m, "%u are live", m->places.n_live);
  if (m->places.n_live > m->waiting_max + m->running_max) FAIL(m, "more are live than may be");
  for (uint32_t i = 0; i < m->n_inboxes; i++) check_inbox(m, &m->inbox[i]);
  for (uint32_t i = 0; i < m->n_tenants; i++) {
    const weft_account a = weft_places_account(&m->places, i);
    uint32_t unstarted = count(m, i, WEFT_PLACE_UNSTARTED), waits = unstarted + count(m, i, WEFT_PLACE_PREEMPTED);
    if (a.n_live != count_live(m, i) || a.n_unstarted != unstarted || a.n_waiting != waits)
      FAIL(m, "tenant %u: %u live, %u waiting, %u never ran", i, a.n_live, a.n_waiting, a.n_unstarted);
    if (memcmp(a.n_refused, m->n_refused[i], sizeof a.n_refused) != 0) FAIL(m, "tenant %u: refusals are miscounted", i);
    if (a.n_evicted != m->n_evicted[i]) FAIL(m, "tenant %u: evictions are miscounted", i);
  }
}

static void run_seed(uint64_t seed) {
  model *m = calloc(1, sizeof *m);
  m->seed = seed;
  m->n_tenants = draw(m, 1, TENANTS_MAX);
  m->waiting_max = draw(m, 1, draw(m, 1, 60));
  m->running_max = draw(m, 1, draw(m, 1, 12));
  for (uint32_t i = 0; i < m->n_tenants; i++) {
    weft_tenant_config *t = &m->tenant[i];
    t->weight = draw(m, 0, 1) == 0 ? 1 : draw(m, 1, 1000);
    if (draw(m, 0, 3) == 0) t->waiting_max = draw(m, 1, 12);
    if (draw(m, 0, 3) == 0) t->running_max = draw(m, 1, 8);
    if (draw(m, 0, 3) == 0) t->tokens_per_minute = draw(m, 400, 4000);
    m->level[i] = t->tokens_per_minute;
  }
  m->n_inboxes = draw(m, 1, INBOXES_MAX);
  const weft_engine_config config = {
      .running_max = m->running_max, .waiting_max = m->waiting_max, .n_tenants = m->n_tenants, .tenant = m->tenant};
  m->running_max *= m->n_inboxes;
  if (weft_places_open(&m->places, &config, m->n_inboxes) != WEFT_OK) FAIL(m, "no places");
  for (uint32_t i = 0; i < m->n_inboxes; i++)
    if (weft_inbox_open(&m->inbox[i], &m->places) != WEFT_OK) FAIL(m, "no inbox");
  uint32_t busy = draw(m, 20, 90);
  for (m->call = 0; m->call < CALLS; m->call++) {
    if (draw(m, 0, 4) == 0) pass_time(m);
    if (draw(m, 0, 5) == 0) take(m);
    if (m->n > LIVE_MAX) take(m);
    if (draw(m, 0, 99) < busy) {
      call_submit(m);
    } else {
      call_move(m);
    }
    check_counts(m);
  }
  take(m);
  while (m->n > 0) end(m, m->n - 1);
  check_counts(m);
  n_ok += m->n_ok;
  n_full += m->n_full;
  n_displaced += m->n_displaced;
  for (uint32_t i = 0; i < m->n_inboxes; i++) weft_inbox_close(&m->inbox[i]);
  if (weft_budget_held(&m->places.budget) != 0) FAIL(m, "memory of requests that are gone is still counted");
  weft_places_close(&m->places);
  free(m);
}

int main(int argc, char **argv) {
  const seeds s = seeds_open(DEFAULT_SEEDS, argc, argv);
  for (unsigned long long seed = s.first; seed <= s.last; seed++) run_seed(seed);
  printf("%llu worlds: %llu submissions in, %llu refused, %llu requests evicted\n", s.last - s.first + 1,
         (unsigned long long)n_ok, (unsigned long long)n_full, (unsigned long long)n_displaced);
  return s.first == s.last || (n_full > 0 && n_displaced > 0) ? 0 : 1;
}
