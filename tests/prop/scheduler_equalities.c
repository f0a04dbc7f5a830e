/* SPDX-License-Identifier: MIT */
/* Equalities of whole answers, bit for bit, through the engine over real models: 60 mixed requests (greedy, sampled,
 * with penalties, bias, top-k, top-p, min-p and logprobs; canvases with traces; shared prompts; stop tokens, stop
 * rules, context limits that fall inside a canvas) on two models of one pool give the same tokens, logprobs and denoise
 * traces
 *
 *   alone          each in an engine to itself, and computed without any engine (tests/support/model_solo.h)
 *   together       in three orders of arrival, all at once or one after the other
 *   in any pool    large, small, and so small that somebody must be preempted
 *   in any step    chunks of 1, 3, 7, .. rows; 24 to 160 rows per step; blocks of several sizes; 1 to 3 threads
 *   with drafts, of which some are right
 *   with drafts of a drafter that reads the model's keys
 *   with or without prefix cache, with or without overlap, with host memory and a file behind the pool, good or bad
 *   on a device that works behind its calls, with or without graphs, with experts in its memory or in the host's
 *   (tests/support/fake_card.h)
 *   on two and three devices, with keys and values in 8 bits too
 *   in two and four shards, in one part or in several, that send copies, or whose exchanges are part of graphs
 *
 * on every backend and instruction set of this machine; and a few requests of the demo model.
 *
 *   scheduler_equalities [SEED [BACKEND [PAIR]]]    other requests; by default those of seed 1, nightly of 1 to 10; on
 *                                                   one backend alone; of one of its pairs of models, the last of
 *                                                   which are the demo models. 77: it is not on this machine */
#include <errno.h>
#include <stdatomic.h>

#include "base/log.h"
#include "tests/support/gguf_edit.h"
#include "tests/support/model_solo.h"
#include "tests/support/real_engine.h"

enum { REQUESTS_MAX = 60, PROMPT_MAX = 130, CONTEXT_MAX = 200 };

typedef struct answer {
  weft_finish finish;
  uint32_t n, n_steps, n_canvases, n_events;
  uint64_t digest;
  int32_t tokens[CONTEXT_MAX];
  weft_usage usage;
} answer;

typedef struct variant {
  const char *name;
  rig_options rig; /* of the engine; backend, isa, models and context are filled in */
  uint32_t order;
  bool one_by_one, tight, bad_disk;
} variant;

/* Of every rig that is opened. */
static uint32_t n_devices = 1, eager;
static uint32_t n_shards; /* of each part of a model; 0: 1 */
static bool kv_8bit;

/* A disk that one call in seven refuses what it is asked, or gives back another byte. */
static _Atomic uint32_t n_calls;

static int64_t bad_write(void *self, int fd, const void *from, uint64_t n, uint64_t at) {
  (void)self;
  if (++n_calls % 7 != 0) return pwrite(fd, from, n, (off_t)at);
  errno = ENOSPC;
  return -1;
}

static int64_t bad_read(void *self, int fd, void *to, uint64_t n, uint64_t at) {
  (void)self;
  int64_t got = pread(fd, to, n, (off_t)at);
  if (++n_calls % 7 == 0 && got > 0) ((char *)to)[got / 2] ^= 0x10;
  return got;
}

static const weft_kv_file_io bad_disk = {.write = bad_write, .read = bad_read};
static uint64_t n_from_file, n_file_lost, n_preempted; /* over all variants: how often depends on the time of steps */

typedef struct cast {
  const char *path[2];
  uint32_t n_requests, prompt_max, context, steps_max, answer_max;
} cast;

static int32_t prompts[REQUESTS_MAX][PROMPT_MAX];
static weft_request_params requests[REQUESTS_MAX];
static weft_logit_bias biases[REQUESTS_MAX][3];
static uint32_t stop_lengths[REQUESTS_MAX];
static answer alone[REQUESTS_MAX], answers[REQUESTS_MAX];
static const cast *show;
/* Which file drafts for the second model; own_layer: a layer of that model's file; NULL: guess_next does, for both. */
static const char *assistant;
static const char own_layer[] = "own";
static uint64_t n_assisted, n_assisted_right;
static char label[160];

static uint32_t draw(uint64_t *state, uint32_t n) {
  return (uint32_t)((weft_mix64(++*state * 0x9E3779B97F4A7C15ull) >> 32) % n);
}

/* ---- requests ------------------------------------------------------------------------------------------ */

/* Ends an answer before the first even token at or after the given length. */
static uint32_t stop_rule(void *self, const int32_t *tokens, uint32_t n_tokens) {
  uint32_t from = *(const uint32_t *)self;
  for (uint32_t i = from; i < n_tokens; i++) {
    if (tokens[i] % 2 == 0) return i;
  }
  return n_tokens;
}

static void make_sampling(weft_request_params *p, uint32_t index, uint32_t n_vocab, uint64_t *state) {
  weft_sampling *s = &p->asked.sampling;
  *s = weft_sampling_neutral();
  s->seed = draw(state, 1000);
  s->choice = draw(state, 3);
  s->temperature = index % 3 == 0 ? 0.0f : 0.5f + 0.25f * (float)draw(state, 4);
  if (index % 3 != 2) return; /* plain */
  s->top_k = draw(state, 2) * 12;
  s->top_p = draw(state, 2) == 0 ? 1.0f : 0.85f;
  s->min_p = draw(state, 2) == 0 ? 0.0f : 0.02f;
  s->repetition_penalty = 1.0f + 0.2f * (float)draw(state, 3);
  s->presence_penalty = 0.3f * (float)draw(state, 3);
  s->frequency_penalty = 0.2f * (float)draw(state, 3);
  s->logprobs = draw(state, 3) > 0;
  s->n_top_logprobs = s->logprobs ? draw(state, 6) : 0;
  s->n_bias = draw(state, 4);
  for (uint32_t i = 0; i < s->n_bias; i++) {
    biases[index][i] = (weft_logit_bias){(int32_t)draw(state, n_vocab), (float)draw(state, 9) - 4.0f};
  }
  s->bias = biases[index];
}

static void make_canvas(weft_request_params *p, uint32_t n_canvas, uint64_t *state) {
  weft_entropy_bound *e = &p->asked.entropy_bound;
  *e = weft_entropy_bound_default();
  p->asked.sampling.seed = draw(state, 1000);
  p->asked.sampling.choice = draw(state, 3);
  e->max_steps = 1 + draw(state, show->steps_max);
  e->stability = draw(state, 3);
  e->entropy_bound = 0.5f * (float)(1 + draw(state, 8));
  e->confidence = draw(state, 2) == 0 ? 0.005f : 5.0f;
  e->no_self_conditioning = draw(state, 5) == 0;
  p->asked.trace = p->asked.canvas_deltas = true;
  uint32_t most = show->answer_max;
  p->max_tokens = 1 + draw(state, 3 * n_canvas < most ? 3 * n_canvas : most);
}

/* Lengths sit on the edges of the window and of canvases; every family shares a prefix. */
static void make_prompt(weft_request_params *p, uint32_t index, uint32_t n_vocab, uint64_t *state) {
  static const uint32_t edges[] = {1, 6, 7, 8, 9, 10, 15, 16, 17, 31, 32, 33, 62, 63, 64, 65, 66};
  uint32_t n_edges = show->prompt_max < 66 ? 12 : 17;
  uint32_t n = draw(state, 2) == 0 ? edges[draw(state, n_edges)] : 1 + draw(state, show->prompt_max);
  if (n > show->prompt_max) n = show->prompt_max;
  uint32_t family = draw(state, 3), shared = draw(state, 3) == 0 ? n : draw(state, n + 1);
  p->n_tokens = n;
  p->tokens = prompts[index];
  for (uint32_t i = 0; i < n; i++) {
    prompts[index][i] = (int32_t)(i < shared ? (i * 7 + family * 11 + 5) % n_vocab : draw(state, n_vocab));
  }
}

/* The other request of the same prompt: i and i + 4 are choices of one. */
static uint32_t partner(uint32_t i) {
  return i % 8 < 4 ? i + 4 : i - 4;
}

static void take_prompt(weft_request_params *p, const weft_request_params *from) {
  p->tenant = from->tenant;
  p->domain = from->domain;
  p->asked.no_cache = from->asked.no_cache;
  p->tokens = from->tokens;
  p->n_tokens = from->n_tokens;
}

static void make_requests(const rig *r, uint64_t seed) {
  static const int32_t stop_tokens[] = {1, 40, 77};
  uint64_t state = seed * 1000003;
  for (uint32_t i = 0; i < show->n_requests; i++) {
    weft_request_params *p = &requests[i];
    uint32_t lane = i % 4 == 3, n_vocab = r->info[lane]->n_vocab;
    *p = (weft_request_params){.model = lane, .tenant = draw(&state, 3), .stop_tokens = stop_tokens};
    p->domain = (weft_key128){p->tenant / 2, 9}; /* two tenants share, one does not */
    make_prompt(p, i, n_vocab, &state);
    p->canvas = lane == 0 && i % 2 == 0;
    p->max_tokens = 1 + draw(&state, show->answer_max);
    if (!p->canvas) make_sampling(p, i, n_vocab, &state);
    p->asked.entropy_bound = weft_entropy_bound_default();
    if (p->canvas) make_canvas(p, r->info[lane]->canvas_length, &state);
    p->n_stop_tokens = draw(&state, 4);
    if (draw(&state, 4) == 0) p->n_stop_tokens = 0;
    p->asked.draft.n_max = i % 17; /* 0: as many as there may be */
    p->asked.no_cache = draw(&state, 10) == 0;
    p->asked.priority = (int32_t)draw(&state, 8) / 7;
    stop_lengths[i] = 1 + draw(&state, 20);
    if (draw(&state, 5) == 0) p->stop_rule = stop_rule;
    p->stop_self = &stop_lengths[i];
    if (i % 11 == 10) p->max_tokens = 4096; /* to the context limit, inside a canvas */
    if (i % 11 == 10) p->n_stop_tokens = 0;
    if (i % 8 >= 4) take_prompt(p, &requests[partner(i)]);
  }
}

/* ---- drafts -------------------------------------------------------------------------------------------- */

/* Up to sixteen of the next tokens of a request that begins so, about one in eight of them wrong; or none. */
static uint32_t guess_next(void *self, const weft_draft_text *text, uint32_t n_max, int32_t *out) {
  uint64_t state = text->n_tokens;
  (void)self;
  for (uint32_t i = 0; i < show->n_requests; i++) {
    const weft_request_params *p = &requests[i];
    const answer *a = &alone[i];
    uint32_t at = text->n_tokens - p->n_tokens;
    if (p->model != text->model || p->canvas || text->n_tokens < p->n_tokens || at >= a->n) continue;
    if (memcmp(text->tokens, p->tokens, p->n_tokens * sizeof *text->tokens) != 0) continue;
    if (memcmp(text->tokens + p->n_tokens, a->tokens, at * sizeof *text->tokens) != 0) continue;
    uint32_t n = draw(&state, 17);
    if (n > n_max) n = n_max;
    if (n > a->n - at) n = a->n - at;
    for (uint32_t k = 0; k < n; k++) out[k] = a->tokens[at + k] ^ (draw(&state, 8) == 0 ? 1 : 0);
    return n;
  }
  return 0;
}

static const weft_drafter drafter = {.guess = guess_next};

/* ---- running ------------------------------------------------------------------------------------------- */

static void collect(rig *r, weft_request **handle, answer *a) {
  weft_event event;
  while (*handle != NULL && weft_engine_poll(r->engine, *handle, &event) == WEFT_OK) {
    solo_digest digest = {a->digest};
    if (event.kind == WEFT_EVENT_TOKENS) {
      memcpy(a->tokens + event.first, event.tokens, event.n * sizeof *event.tokens);
      a->n = event.first + event.n;
      for (uint32_t i = 0; event.logprobs != NULL && i < event.n; i++) {
        solo_add_logprobs(&digest, event.logprobs + i * (1 + event.n_top), event.n_top);
      }
    } else if (event.kind == WEFT_EVENT_CANVAS) {
      rig_need(event.n_dropped == 0, label, "a canvas event was dropped");
      solo_add_event(&digest, &event);
      a->n_events += 1;
    } else {
      a->finish = event.finish;
      a->usage = event.usage;
      a->n_steps = event.usage.n_denoise_steps;
      a->n_canvases = event.usage.n_canvases;
      rig_need(event.finish != WEFT_FINISH_ERROR, label, event.error == NULL ? "?" : event.error);
      weft_engine_release(r->engine, *handle);
      *handle = NULL;
    }
    a->digest = digest.value;
  }
}

/* Which request is the i-th to arrive. */
static uint32_t arrival(uint32_t order, uint32_t i) {
  if (order == 0) return i;
  if (order == 1) return show->n_requests - 1 - i;
  return (i * 37 + 11) % show->n_requests;
}

/* A step may have nothing to do while pages come from the file. The last of them may arrive after the step and before
 * the look at the pager, so the engine is stuck only when the step after that has nothing to do either. */
static void turn(rig *r, weft_request **handle) {
  static uint32_t n_idle;
  r->now += 1;
  weft_status status = weft_engine_step(r->engine, r->now);
  bool moves = weft_pager_get_stats(weft_engine_pager(r->engine)).n_lifting > 0;
  n_idle = status == WEFT_AGAIN && !moves ? n_idle + 1 : 0;
  rig_need(n_idle < 2 && (status == WEFT_OK || status == WEFT_AGAIN), label, "the engine is stuck");
  if (status == WEFT_AGAIN && moves) (void)usleep(100); /* the file's thread has its time */
  for (uint32_t i = 0; i < show->n_requests; i++) collect(r, &handle[i], &answers[i]);
  if (r->now % 16 == 0) rig_check_pager(r);
}

static void play(rig *r, const variant *v) {
  weft_request *handle[REQUESTS_MAX] = {NULL};
  weft_error error = {{0}};
  memset(answers, 0, sizeof answers);
  for (uint32_t i = 0; i < show->n_requests; i++) {
    uint32_t at = arrival(v->order, i);
    weft_request_params p = requests[at];
    if (partner(at) < show->n_requests) p.sibling = handle[partner(at)];
    weft_status status = weft_engine_submit(r->engine, &p, r->now, &handle[at], &error);
    rig_need(status == WEFT_OK, label, error.text);
    if (i % 7 == 6 && v->order == 2) turn(r, handle); /* they arrive in waves */
    while (v->one_by_one && !weft_engine_idle(r->engine)) turn(r, handle);
    if (v->one_by_one) rig_forget_keys(r);
  }
  while (!weft_engine_idle(r->engine)) turn(r, handle);
  for (uint32_t i = 0; i < show->n_requests; i++) rig_need(handle[i] == NULL, label, "a request has no end");
  rig_check_pager(r);
}

static void open_variant(rig *r, const variant *v, const char *backend, const char *isa) {
  rig_options o = v->rig;
  o.backend = backend;
  o.isa = isa;
  o.path[0] = show->path[0];
  o.path[1] = show->path[1];
  o.n_models = 2;
  o.n_devices = n_devices;
  o.eager = eager;
  o.n_shards = n_shards;
  o.kv_8bit = kv_8bit;
  o.context = show->context;
  if (v->bad_disk) o.disk = &bad_disk;
  if (o.draft_rows > 0 && assistant == NULL) o.drafter = &drafter;
  if (o.draft_rows > 0 && assistant == own_layer)
    o.nextn = true;
  else if (o.draft_rows > 0)
    o.assistant = assistant;
  rig_open(r, &o);
}

static void differ(uint32_t i, const char *what, const answer *a, const answer *b) {
  const weft_request_params *p = &requests[i];
  uint32_t k = 0;
  while (k < a->n && k < b->n && a->tokens[k] == b->tokens[k]) k++;
  (void)printf(
      "FAILED: %s: %s: request %u (%s, model %u, %u prompt tokens, %u asked): %u tokens, finish %d, %u steps "
      "and %u events; alone %u, %d, %u and %u; first difference at token %u; preempted %u times, %u cached\n",
      label, what, i, p->canvas ? "canvas" : "tokens", p->model, p->n_tokens, p->max_tokens, a->n, (int)a->finish,
      a->n_steps, a->n_events, b->n, (int)b->finish, b->n_steps, b->n_events, k, a->usage.n_preemptions,
      a->usage.n_cached);
  exit(1);
}

static void same_as_alone(const char *what, const answer *got) {
  for (uint32_t i = 0; i < show->n_requests; i++) {
    const answer *a = &got[i], *b = &alone[i];
    bool same = a->n == b->n && a->finish == b->finish && a->digest == b->digest && a->n_steps == b->n_steps &&
                a->n_canvases == b->n_canvases && memcmp(a->tokens, b->tokens, a->n * sizeof(int32_t)) == 0;
    if (!same) differ(i, what, a, b);
  }
}

/* The same answers without engine and runner. */
static void same_as_solo(const char *backend, const char *isa) {
  harness h[2];
  for (uint32_t i = 0; i < 2; i++) {
    harness_options o = {.backend = backend, .isa = isa, .n_threads = 1, .rows_max = show->context, .n_pages = 256};
    harness_open(&h[i], show->path[i], &o);
  }
  for (uint32_t i = 0; i < show->n_requests; i++) {
    solo s;
    answer *a = &answers[i];
    solo_run(&s, &h[requests[i].model], &requests[i], show->context, rig_suppressed, 2);
    *a = (answer){.finish = s.finish,
                  .n = s.n_answer,
                  .n_steps = s.n_steps,
                  .n_canvases = s.n_canvases,
                  .digest = s.digest.value};
    memcpy(a->tokens, s.tokens + requests[i].n_tokens, a->n * sizeof(int32_t));
    solo_free(&s);
  }
  same_as_alone("without engine", answers);
  for (uint32_t i = 0; i < 2; i++) harness_close(&h[i]);
}

/* What was played last is not played again: `requests` and `alone` are still of it. */
static void play_alone(const char *backend, const char *isa, uint64_t seed) {
  static char played[1500];
  char key[sizeof played];
  (void)snprintf(key, sizeof key, "%s %s %u %s %s %llu %d", show->path[0], show->path[1], show->n_requests, backend,
                 isa == NULL ? "" : isa, (unsigned long long)seed, kv_8bit);
  if (strcmp(key, played) == 0) return;
  memcpy(played, key, sizeof played);
  variant v = {.name = "alone", .rig = {.n_pages = 512, .running = 1, .no_cache = true}, .one_by_one = true};
  v.rig.rows = show->context + 64;
  rig r;
  open_variant(&r, &v, backend, isa);
  make_requests(&r, seed);
  play(&r, &v);
  memcpy(alone, answers, sizeof alone);
  rig_close(&r);
  uint32_t n_tokens = 0, n_steps = 0, n_finish[6] = {0};
  for (uint32_t i = 0; i < show->n_requests; i++) {
    n_tokens += alone[i].n;
    n_steps += alone[i].n_steps;
    n_finish[alone[i].finish] += 1;
  }
  (void)printf("%s: %u requests, %u tokens, %u denoise steps, %u stopped, %u at their length\n", label,
               show->n_requests, n_tokens, n_steps, n_finish[WEFT_FINISH_STOP], n_finish[WEFT_FINISH_LENGTH]);
}

/* A pool in which the longest request just fits alone, and a little more. */
static uint32_t tight_pages(const variant *v, const char *backend, const char *isa) {
  variant wide = *v;
  rig r;
  uint32_t most = 0;
  wide.rig.n_pages = 512;
  open_variant(&r, &wide, backend, isa);
  for (uint32_t i = 0; i < 2; i++) {
    uint32_t n_rows = r.info[i]->canvas_length > 1 ? r.info[i]->canvas_length : 1;
    uint32_t n = weft_pager_pages_for(weft_engine_pager(r.engine), i, show->context, n_rows);
    if (n > most) most = n;
  }
  rig_close(&r);
  return most + most / 5;
}

static void play_variant(const variant *chosen, const char *backend, const char *isa) {
  rig r;
  weft_engine_stats s;
  char all[160], what[220];
  variant sized = *chosen;
  const variant *v = &sized;
  if (v->tight) sized.rig.n_pages = tight_pages(v, backend, isa);
  open_variant(&r, v, backend, isa);
  play(&r, v);
  weft_engine_get_stats(r.engine, &s);
  same_as_alone(v->name, answers);
  weft_graph_counters graphs = weft_device_graph_counters(r.device);
  (void)snprintf(what, sizeof what, "%s: %s", label, v->name);
  bool many = show->n_requests == REQUESTS_MAX;
  if (many && v->rig.running > 8 && !v->tight)
    rig_need(s.pager.n_forks > 0 && s.pager.n_copies > 0, what, "nobody forked");
  if (v->rig.n_host > 0)
    rig_need(s.pager.n_spilled > 0 && s.pager.n_restored > 0, what, "nothing came back from the host");
  /* How many writes have ended by now depends on the thread that writes. */
  uint64_t n_sent = s.pager.n_to_file + s.pager.n_file_lost + s.pager.n_sinking;
  if (v->rig.n_file > 0) rig_need(n_sent > 0, what, "nothing went to the file");
  n_preempted += v->tight ? s.n_preemptions : 0;
  n_from_file += s.pager.n_from_file;
  n_file_lost += s.pager.n_file_lost;
  if (v->rig.no_cache) rig_need(s.pager.n_hits == 0, what, "hits without a cache");
  if (many && !v->rig.no_cache && !v->tight && v->rig.block <= 8)
    rig_need(s.n_cached_tokens > 0, what, "no prefix was found");
  weft_request_stats drafted;
  weft_engine_get_request_stats(r.engine, 1, &drafted);
  if (assistant != NULL) {
    rig_need(drafted.drafts.n_drafted > 0 || v->rig.drafts_paid, what, "nothing was drafted");
    n_assisted += drafted.drafts.n_drafted;
    n_assisted_right += drafted.drafts.n_accepted;
  }
  if (many) rig_need(s.n_mixed_steps > 0, what, "no step was mixed");
  rig_need(s.n_switches > 0, what, "one model never had its turn");
  (void)snprintf(all, sizeof all,
                 "%llu steps, %llu mixed, %llu preemptions, %llu forks, %llu of %llu prompt tokens cached, %llu void",
                 (unsigned long long)s.n_steps, (unsigned long long)s.n_mixed_steps,
                 (unsigned long long)s.n_preemptions, (unsigned long long)s.pager.n_forks,
                 (unsigned long long)s.n_cached_tokens, (unsigned long long)s.n_prompt_tokens,
                 (unsigned long long)s.n_void_rows);
  (void)printf("  %-28s %s\n", v->name, all);
  if (graphs.launches > 0) {
    (void)printf("  %-28s %llu launches, %llu patched, %llu captures, %llu call by call\n", "",
                 (unsigned long long)graphs.launches, (unsigned long long)graphs.patched,
                 (unsigned long long)graphs.captures, (unsigned long long)graphs.eager);
  }
  bool streamed = strcmp(backend, "fake experts") == 0;
  rig_need(!streamed || fake_of(r.device)->n_fetched > 0, what, "no experts came from host memory");
  rig_need((strcmp(backend, "fake graphs") != 0 && !streamed) || !many || graphs.patched > 0, what,
           "no graph was launched again");
  rig_close(&r);
}

/* ---- shows --------------------------------------------------------------------------------------------- */

static const variant variants[] = {
    {.name = "four at once, drafts", .rig = {.n_pages = 600, .rows = 160, .running = 4, .block = 8, .draft_rows = 9}},
    {.name = "drafts where they gain",
     .rig = {.n_pages = 900, .chunk = 9, .rows = 96, .running = 20, .block = 4, .draft_rows = 60, .drafts_paid = true},
     .order = 2},
    {.name = "all, overlap",
     .rig = {.n_pages = 900, .chunk = 7, .rows = 64, .running = 40, .block = 4, .n_threads = 2, .overlap = true},
     .order = 1},
    {.name = "waves, chunks of 3, no cache",
     .rig = {.n_pages = 900, .chunk = 3, .rows = 40, .running = 40, .block = 8, .no_cache = true},
     .order = 2},
    {.name = "large blocks, logits of one row at a time",
     .rig = {.n_pages = 300, .rows = 96, .running = 24, .block = 16, .overlap = true, .logits_bytes_max = 1},
     .order = 2},
    {.name = "tight", .rig = {.chunk = 5, .rows = 48, .running = 40, .block = 4}, .tight = true},
    {.name = "tight, overlap, drafts",
     .rig = {.chunk = 16, .rows = 160, .running = 40, .block = 4, .overlap = true, .n_threads = 3, .draft_rows = 40},
     .order = 1,
     .tight = true},
    {.name = "tight, no cache",
     .rig = {.chunk = 2, .rows = 40, .running = 40, .block = 4, .no_cache = true},
     .order = 2,
     .tight = true},
    {.name = "tight, waves, overlap",
     .rig = {.chunk = 1, .rows = 24, .running = 40, .block = 4, .overlap = true},
     .order = 2,
     .tight = true},
    {.name = "tight, host tier",
     .rig = {.chunk = 16, .rows = 96, .running = 40, .block = 4, .overlap = true, .n_host = 400, .n_saves = 20},
     .order = 2,
     .tight = true},
    {.name = "tight, small host tier",
     .rig = {.rows = 64, .running = 40, .block = 4, .n_host = 40, .n_saves = 1},
     .order = 1,
     .tight = true},
    {.name = "tight, a file",
     .rig = {.rows = 64, .running = 40, .block = 4, .overlap = true, .n_host = 100, .n_file = 800},
     .order = 1,
     .tight = true},
    {.name = "tight, a bad file",
     .rig = {.rows = 96, .running = 40, .block = 4, .n_host = 100, .n_file = 800},
     .order = 2,
     .tight = true,
     .bad_disk = true},
    {.name = "three at once",
     .rig = {.n_pages = 400, .rows = 32, .running = 3, .block = 8, .overlap = true},
     .order = 1},
};

/* Of the first n_variants every one whose number leaves the same rest as the seed, divided by stride. */
static void run(const cast *c, const char *backend, const char *isa, uint64_t seed, uint32_t n_variants,
                uint32_t stride) {
  show = c;
  const char *slash = strrchr(c->path[0], '/');
  (void)snprintf(label, sizeof label, "%s and another on %s %s", slash + 1, backend, isa == NULL ? "" : isa);
  play_alone(backend, isa, seed);
  same_as_solo(backend, isa);
  for (uint32_t i = seed % stride; i < n_variants; i += stride) play_variant(&variants[i], backend, isa);
}

/* What ref gave must come from a card that computes like ref, whose steps are recorded and repeated. */
static void run_cards(const cast *c, uint64_t seed) {
  show = c;
  (void)snprintf(label, sizeof label, "the fake card");
  play_alone("ref", NULL, seed);
  for (uint32_t i = 0; i < sizeof variants / sizeof *variants; i++) {
    bool plain = i % 4 == 1, files = variants[i].rig.n_file > 0;
    if (plain || files || test_amount(0, i % 8 == 2, 1)) play_variant(&variants[i], "fake graphs", NULL);
    const bool first = i % 8 < 4, all = test_amount(0, 0, 1) != 0; /* plain ones are on these two in turn */
    if (plain && (first || all)) play_variant(&variants[i], "fake", NULL);
    if (plain && (!first || all)) play_variant(&variants[i], "fake experts", NULL);
  }
}

/* What one device gave must come from two and three, also from cards of which one is as far ahead of the others as the
 * marks between them let it be: another one for each variant or, in the nightly amount, each in turn. */
static void run_splits(const cast *c, const char *backend, uint64_t seed, uint32_t n_variants) {
  show = c;
  (void)snprintf(label, sizeof label, "several devices, %s", backend);
  play_alone(strncmp(backend, "fake", 4) == 0 ? "ref" : backend, NULL, seed);
  bool late = strstr(backend, "late") != NULL;
  uint32_t stride = test_amount(6, 6, 1);
  for (n_devices = 2; n_devices <= test_amount(3, 3, 4); n_devices++) {
    for (uint32_t i = 0; i < n_variants; i++) {
      if (i % stride != (n_devices + seed) % stride && variants[i].rig.n_saves < 2) continue;
      for (eager = 0; eager <= (late ? n_devices : 0); eager++) {
        bool in_turn = test_amount(0, 0, 1) != 0 || !late || eager == i % (n_devices + 1);
        if (in_turn) play_variant(&variants[i], backend, NULL);
      }
    }
  }
  n_devices = 1;
  eager = 0;
}

static char *path_of(const char *where) {
  char *path = harness_alloc(600, 1);
  (void)snprintf(path, 600, "%s/%s.gguf", WEFT_SOURCE_DIR, where);
  return path;
}

static bool has_way(const char *backend, const char *isa) {
  weft_device_config config = {.backend = backend, .n_threads = 1, .isa = isa};
  weft_device *device;
  weft_error error = {{0}};
  bool opens = weft_device_open(&config, &device, &error) == WEFT_OK;
  if (opens) weft_device_close(device);
  if (!opens) (void)printf("left out: %s\n", error.text);
  return opens;
}

/* Drafts that the runner of the model makes, between steps, also on a card that computes late; requests are preempted
 * and come back from the host, and begin with found prefixes. Of the variants every stride-th from begin. */
static void run_drafts_of(const char *backend, uint64_t seed, const char *by, uint32_t begin, uint32_t stride) {
  static const variant tier = {
      .name = "tight, host tier, drafts",
      .rig = {.chunk = 16, .rows = 96, .running = 40, .block = 4, .n_host = 400, .draft_rows = 40},
      .order = 2,
      .tight = true};
  bool fake = strncmp(backend, "fake", 4) == 0;
  uint32_t n = 0;
  if (strcmp(backend, "cuda") == 0 && !has_way(backend, NULL)) return;
  (void)snprintf(label, sizeof label, "drafts by %s, %s", by == own_layer ? "a layer of the file" : "another file",
                 backend);
  play_alone(fake ? "ref" : backend, NULL, seed);
  assistant = by;
  for (uint32_t i = 0; i < sizeof variants / sizeof *variants; i++)
    if (variants[i].rig.draft_rows > 0 && n++ % stride == begin % stride) play_variant(&variants[i], backend, NULL);
  if (n % stride == begin % stride) play_variant(&tier, backend, NULL);
  assistant = NULL;
}

/* A drafter with what another file of assistants/ adds to its head. */
static char *joined(const char *path, const char *name) {
  char added[64];
  (void)snprintf(added, sizeof added, "tests/golden/assistants/%s", name);
  char *with = path_of(added), *both = strdup(gguf_edit_join(path, with, name));
  free(with);
  rig_need(both != NULL, name, "memory");
  return both;
}

/* A drafter that reads the model's keys, the layer of the model's own file that guesses ahead, and a drafter that fills
 * blocks; of the first and the last also one whose drafts are drawn from logits. */
static void run_assistants(uint64_t seed) {
  static const char *const backends[] = {"ref", "cpu", "cuda", "fake graphs", "fake late graphs"};
  char *path[7] = {path_of("tests/golden/models/dg-base"),       path_of("tests/golden/models/ar-dense"),
                   path_of("tests/golden/assistants/nextn-moe"), path_of("tests/golden/assistants/dense"),
                   path_of("tests/golden/models/qwen3-base"),    path_of("tests/golden/assistants/dflash"),
                   path_of("tests/golden/models/deepseek4-base")};
  char *groups = joined(path[3], "centroids"), *pairs = joined(path[5], "dspark");
  const cast of_file = {{path[0], path[1]}, REQUESTS_MAX, 48, 96, 6, 30};
  const cast of_layer = {{path[0], path[2]}, REQUESTS_MAX, 48, 96, 6, 30};
  const cast of_streams = {{path[0], path[6]}, REQUESTS_MAX, 48, 96, 6, 30};
  const cast of_blocks = {{path[0], path[4]}, REQUESTS_MAX, 48, 96, 6, 30};
  show = &of_file;
  for (uint32_t b = 0; b < 5; b++)
    run_drafts_of(backends[b], seed, b == 3 ? groups : path[3], b % 2, test_amount(2, 2, 1));
  run_drafts_of("cuda", seed, groups, 0, 2);
  rig_need(n_assisted_right > 0 && n_assisted_right < n_assisted, label, "all drafts were right, or none was");
  n_assisted = n_assisted_right = 0;
  show = &of_layer;
  for (uint32_t b = 1; b < 5; b++) run_drafts_of(backends[b], seed, own_layer, b % 2, test_amount(2, 2, 1));
  rig_need(n_assisted_right > 0 && n_assisted_right < n_assisted, label, "all drafts were right, or none was");
  n_assisted = n_assisted_right = 0;
  show = &of_streams;
  for (uint32_t b = 0; b < 3; b++) run_drafts_of(backends[b], seed, own_layer, 1 - b % 2, test_amount(4, 3, 1));
  rig_need(n_assisted_right > 0 && n_assisted_right < n_assisted, label, "all drafts were right, or none was");
  n_assisted = n_assisted_right = 0;
  show = &of_blocks;
  run_drafts_of("cuda", seed, path[5], 0, 2);
  for (uint32_t b = 2; b < 5; b += 2) run_drafts_of(backends[b], seed, pairs, 0, test_amount(2, 2, 1));
  rig_need(n_assisted_right > 0 && n_assisted_right < n_assisted, label, "all drafts were right, or none was");
  for (uint32_t i = 0; i < 7; i++) free(path[i]);
  free(groups);
  free(pairs);
}

/* The model with a vocabulary of several chunks, so that each shard has some of it. */
static const char *widened(const char *path, const char *name, uint32_t times) {
  const gguf_edit e = {.widen = "token_embd.weight", .times_rows = times};
  return gguf_edit_file(path, &e, name);
}

/* What one device gave must come from shards, in one part or in several: call by call and by copies, and with graphs
 * that exchange. */
static void run_shards(uint64_t seed) {
  static const struct {
    uint32_t n_devices, n_shards, stride[3]; /* of variants, by amount; 0: none */
  } ways[] = {{2, 2, {5, 4, 1}}, {4, 2, {7, 6, 1}}, {4, 4, {0, 9, 2}}, {8, 4, {0, 9, 2}}, {8, 2, {0, 0, 3}}};
  const uint32_t n_variants = sizeof variants / sizeof *variants;
  char *path[2] = {path_of("tests/golden/models/dg-deep"), path_of("tests/golden/models/ar-dense-v")};
  const char *wide[2] = {widened(path[0], "canvases", 12), widened(path[1], "tokens", 17)};
  const cast c = {{wide[0], wide[1]}, 24, 48, 96, 6, 30};
  show = &c;
  (void)snprintf(label, sizeof label, "one device");
  play_alone("ref", NULL, seed);
  for (uint32_t w = 0; w < sizeof ways / sizeof *ways; w++) {
    const uint32_t *of = ways[w].stride, stride = test_amount(of[0], of[1], of[2]);
    n_devices = ways[w].n_devices;
    n_shards = ways[w].n_shards;
    (void)snprintf(label, sizeof label, "parts: %u, of shards: %u", n_devices / n_shards, n_shards);
    if (stride == 0) continue;
    if (n_devices <= 4) play_variant(&variants[0], "ref", NULL);
    for (uint32_t i = 1 + (uint32_t)(seed + w) % stride; i < n_variants; i += stride)
      play_variant(&variants[i], "fake graphs", NULL);
  }
  n_devices = 1;
  n_shards = 0;
  gguf_edit_clean();
  free(path[0]);
  free(path[1]);
}

static void run_demo_splits(char *const demo[2], uint64_t seed) {
  const cast few = {{demo[0], demo[1]}, 8, 60, 200, 3, 8};
  kv_8bit = true;
  run_splits(&few, "cpu", seed, 4);
  kv_8bit = false;
}

/* What alone is run, in which files and preemptions may be missing; NULL, UINT32_MAX: all. */
static const char *asked;
static uint32_t asked_pair = UINT32_MAX, n_asked;

static void run_seed(uint64_t seed) {
  static const struct {
    const char *backend, *isa;
  } ways[] = {{"ref", NULL}, {"cpu", "portable"}, {"cpu", "avx2"}, {"cpu", "avx512"}, {"cuda", NULL}};
  static const char *const tiny[][2] = {
      {"dg-base", "ar-base"},    {"dg-c16-w4", "ar-fused-w4"},  {"dg-underscore", "ar-w16"},   {"dg-deep", "ar-moe-v"},
      {"dg-base", "qwen35-moe"}, {"dg-base", "deepseek4-base"}, {"dg-base", "deepseek41-base"}};
  const uint32_t n_all = sizeof variants / sizeof *variants;
  char *demo[2] = {path_of("model/demo/weft-demo"), path_of("model/demo/weft-demo-ar")};
  for (uint32_t w = 0; w < sizeof ways / sizeof *ways; w++) {
    if (asked != NULL && strcmp(asked, ways[w].backend) != 0) continue;
    if (w > 0 && !has_way(ways[w].backend, ways[w].isa)) continue;
    if (w == 1 && test_amount(1, 0, 0) != 0) continue; /* quick: the source of avx2, with other vectors */
    const uint32_t n_pairs = w >= 3 ? 4 : 2;           /* vectors and a card have latent rows at every seed */
    for (uint32_t i = 0; i < n_pairs; i++) {
      if (asked_pair != UINT32_MAX && asked_pair != i) continue;
      uint32_t pair = i == 0 ? 0 : i == 1 ? 1 + (w + (uint32_t)seed) % 6 : i + 3;
      char a[128], b[128];
      (void)snprintf(a, sizeof a, "tests/golden/models/%s", tiny[pair][0]);
      (void)snprintf(b, sizeof b, "tests/golden/models/%s", tiny[pair][1]);
      char *path[2] = {path_of(a), path_of(b)};
      const cast c = {{path[0], path[1]}, REQUESTS_MAX, 48, 96, 6, 30};
      uint32_t stride = test_amount(4, 4, 1) * (1 + i); /* the next way begins with the next variant */
      run(&c, ways[w].backend, ways[w].isa, seed + w, n_all, stride);
      n_asked++;
      if (w == 0 && i == 0) run_cards(&c, seed);
      if (w == 0 && i == 0) {
        run_splits(&c, "fake late", seed, n_all);
        run_splits(&c, "fake late graphs", seed, n_all);
      }
      if (w == 0 && i == 0) run_splits(&c, "cpu", seed, n_all);
      if (w == 0 && i == 0) run_shards(seed);
      if (w == 0 && i == 0) run_assistants(seed);
      free(path[0]);
      free(path[1]);
    }
    if (asked_pair != UINT32_MAX && asked_pair != n_pairs) continue;
    n_asked++;
    bool slow = w < 2; /* no vector instructions */
    const cast c = {{demo[0], demo[1]}, slow ? 4 : 12, slow ? 40 : 100, 200, slow ? 2 : 4, slow ? 3 : 12};
    run(&c, ways[w].backend, ways[w].isa, seed, slow ? 1 : 4, 1);
  }
  if (asked == NULL) run_demo_splits(demo, seed);
  free(demo[0]);
  free(demo[1]);
}

int main(int argc, char **argv) {
  weft_log_set_level(WEFT_LOG_ERROR); /* of the bad disk */
  uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 10) : 1, n = argc > 1 ? 1 : test_amount(1, 1, 10);
  asked = argc > 2 ? argv[2] : NULL;
  if (argc > 3) asked_pair = (uint32_t)strtoul(argv[3], NULL, 10);
  for (uint64_t seed = first; seed < first + n; seed++) run_seed(seed);
  if (asked != NULL) return n_asked > 0 ? 0 : 77;
  rig_need(n_from_file > 0 && n_file_lost > 0, "the file", "nothing came back, or nothing was lost");
  rig_need(n_preempted > 0, "the tight pools", "nobody was preempted");
  (void)printf("%llu drafts of the layer of a file, %llu right\n", (unsigned long long)n_assisted,
               (unsigned long long)n_assisted_right);
  (void)printf("%llu pages came from files, %llu were lost there\n", (unsigned long long)n_from_file,
               (unsigned long long)n_file_lost);
  return 0;
}
