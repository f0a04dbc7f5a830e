/* SPDX-License-Identifier: MIT */
/* Equalities of what a user of weft.h sees: the same requests (chats, texts, token prompts; greedy, sampled, with
 * logprobs and stop strings; by diffusion with and without canvases shown; held to a JSON schema) give the same text,
 * tokens, logprobs and finish
 *
 *   one after the other, all at once, and read by four threads
 *   read as they come, or not before they have ended
 *   from a small and a large pool, with few and many rows, running requests and threads, with and without prefix cache
 *   while others are cancelled
 *   with drafts from each request's own n-grams, by a canvas of the model itself, and by another model
 *   beside requests for two other models in one pool: one by canvases and token by token, one that keeps states, and
 *   one that keeps latent rows, near and far
 *   on one device, with the layers on several, with a part of every layer on two, and with the model on each of several
 *   on a card also: with and without graphs, with and without the arena, with as many experts in host memory as can be
 *   and with half of them, and that in a small pool; with products of 8 bits from integers of weights as from codes, on
 *   the card and from host memory
 *
 * and text is what its tokens spell: all deltas together, and with whole tokens each delta by itself.
 *
 *   api_equalities [SEED]                    other seeds of the sampled ones
 *   api_equalities --backend NAME [SEED]     one backend alone; without a card `cuda` ends with code 77: skipped */
#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/runtime.h"
#include "base/log.h"
#include "base/random.h"
#include "kernels/arena.h"
#include "tests/support/amount.h"
#include "tests/support/card_integers.h"
#include "tests/support/state_model.h"

enum { SKIPPED = 77, MODELS = 3, KINDS = 20, TEXT_MAX = 6000, TOKENS_MAX = 400, READERS = 4 };

typedef struct answer {
  char finish[16], text[TEXT_MAX];
  size_t n_text;
  int32_t tokens[TOKENS_MAX];
  uint32_t n_tokens, n_steps, n_canvases, n_cached, n_preempted, n_thinking; /* n_canvases: of n_steps, shown */
  uint64_t digest, canvases;                                                 /* of logprobs; of each canvas */
} answer;

typedef struct variant {
  const char *name, *backend;
  uint64_t kv_bytes;
  uint32_t rows, running, threads, order;
  uint64_t host_bytes, spill_bytes;
  bool no_cache, one_by_one, late, readers, cancels, hits;
  bool no_graphs, no_arena, streams;   /* streams: some experts must lie in host memory */
  const char *devices, *ratio, *split; /* split NULL: by_tensor or replicas says */
  bool no_peer, replicas;
  uint64_t device_bytes;
  const char *drafts;         /* as --draft has it; NULL: none */
  bool always;                /* as many drafts as there can be, whatever they cost */
  bool integers, no_integers; /* of weights: must be kept; must be left out, for want of room */
  bool in_part;               /* only some weights must have integers */
} variant;

static const char *models[MODELS];
static const char *names[MODELS];
static uint32_t n_models = 1;
static uint32_t n_kinds;
static bool has_chat;
static bool by_tensor, eight;    /* what is compared with one device's is computed by shards; products of 8 bits */
static uint64_t seed, n_drafted; /* n_drafted: over all variants, since how many there are depends on times */
static char label[160];
static answer wanted[KINDS], got[KINDS];

static void need(bool holds, const char *what, const char *text) {
  if (holds) return;
  (void)printf("FAILED: %s: %s: %s\n", label, what, text);
  exit(1);
}

/* ---- requests ------------------------------------------------------------------------------------------ */

/* The turn that two conversations begin with, so that they share cached pages. */
#define SCENE                                                                                                 \
  "The new rock is near the brown lamp. The fast leaf is near the pink shoe. The soft drum is near the blue " \
  "coat. The soft ball is behind the blue boat. The warm bell is behind the gray cup."

static const weft_chat_turn chats[][3] = {
    {{.role = "user", .content = "88 - 68 ="}, {.role = NULL}, {.role = NULL}},
    {{.role = "system", .content = SCENE}, {.role = "user", .content = "Where is the soft ball?"}, {.role = NULL}},
    {{.role = "system", .content = SCENE},
     {.role = "user", .content = "Make a table: Tom 43 Oslo; Ana 88 Kyiv; Zoe 47 Seoul; Kim 19 Paris"},
     {.role = NULL}},
    {{.role = "user", .content = "List 4 names without Mia."},
     {.role = "assistant", .content = "Vic Amy Tom Max"},
     {.role = "user", .content = "Write them backwards, \xC3\xA9t\xC3\xA9 \xE2\x82\xAC."}},
};
static const char *const texts[] = {"The soft ball is behind the blue boat. The soft",
                                    "One two \xE2\x82\xAC three,\n\nfour"};
static const char *const stops[] = {" the", "9", "\n|", "zz"};
static const weft_logit_bias bias[] = {{20, 2.0f}, {30, -3.0f}};
static int32_t long_prompt[90];

static void fill_prompt(weft_generate_params *p, uint32_t kind) {
  uint32_t which = kind % 7;
  if (which < 4 && has_chat) {
    p->prompt.turns = chats[which];
    while (p->prompt.n_turns < 3 && chats[which][p->prompt.n_turns].role != NULL) p->prompt.n_turns += 1;
    p->prompt.thinking = kind % 5 == 4;
  } else if (which == 6) {
    p->prompt.tokens = long_prompt;
    p->prompt.n_tokens = 50 + kind; /* all share a beginning */
  } else {
    p->prompt.text = texts[kind % 2];
    p->prompt.n_text = strlen(p->prompt.text);
  }
}

/* A chat that is held to a schema: two by diffusion, one of them over several canvases, and one token by token. */
static const char schema[] =
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":20},\"old\":{\"type\":"
    "\"boolean\"},"
    "\"pets\":{\"type\":\"array\",\"maxItems\":3,\"items\":{\"enum\":[\"cat\",\"dog\",\"fox\"]}}},"
    "\"required\":[\"name\",\"old\",\"pets\"],\"additionalProperties\":false}";

static bool is_held(uint32_t kind) {
  if (n_models > 1) return kind == 15; /* of the first, which is the demo model */
  return has_chat && (kind == 10 || kind == 15 || kind == 16);
}

/* Of several models the first one alone has a canvas. */
static uint32_t model_of(uint32_t kind) {
  return kind % n_models;
}

static void fill(weft_generate_params *p, uint32_t kind) {
  weft_generate_defaults(p);
  fill_prompt(p, kind);
  p->model = names[model_of(kind)];
  p->mode = kind % 2 == 0 && model_of(kind) == 0 ? WEFT_MODE_DIFFUSION : WEFT_MODE_AUTOREGRESSIVE;
  p->has_seed = true;
  p->sampling.seed = seed + kind;
  p->max_tokens = 10 + 4 * kind;
  p->ignore_eos = kind % 3 == 0;
  p->sampling.temperature = kind % 4 == 1 ? 0.0f : 1.0f;
  p->whole_tokens = kind % 4 >= 2;
  p->with_special = kind % 6 == 5;
  p->n_stop = kind % 5 >= 3 ? 4 : 0;
  p->stop = stops;
  p->entropy_bound.max_steps = 3 + kind % 3;
  p->canvas_deltas = kind % 4 == 0;
  p->trace = kind % 8 == 0;
  if (is_held(kind)) {
    p->format = WEFT_FORMAT_JSON_SCHEMA;
    p->format_text = schema;
    p->n_format_text = sizeof schema - 1;
    p->ignore_eos = false;
  }
  if (kind % 4 != 3) return;
  p->sampling.logprobs = true;
  p->sampling.n_top_logprobs = 1 + (kind + 2) % 5; /* of the one that is held, three: often fewer are left */
  p->sampling.repetition_penalty = 1.2f;
  p->sampling.top_k = 30;
  p->sampling.bias = bias;
  p->sampling.n_bias = 2;
}

/* ---- reading ------------------------------------------------------------------------------------------- */

static void digest(uint64_t *sum, const void *bytes, size_t n) {
  const uint8_t *b = bytes;
  for (size_t i = 0; i < n; i++) *sum = (*sum ^ b[i]) * 0x100000001B3ull;
  *sum = weft_mix64(*sum + n);
}

/* With whole tokens every delta is what its own tokens spell; chats hide their markers. */
static void check_delta(weft_runtime *rt, const weft_generate_params *p, const weft_delta *d, bool last_text) {
  char *spelled = NULL, error[256] = "";
  size_t n = 0;
  if (!p->whole_tokens || p->prompt.turns != NULL || p->n_stop > 0 || last_text) return;
  need(weft_detokenize(rt, p->model, d->tokens, d->n_tokens, p->with_special, &spelled, &n, error, sizeof error) == 0,
       "detokenize", error);
  need(n == d->n_text && memcmp(spelled, d->text, n) == 0, "a delta is not what its tokens spell", spelled);
  weft_release(spelled);
}

static void take_text(answer *a, const weft_delta *d) {
  need(a->n_text + d->n_text < TEXT_MAX && a->n_tokens + d->n_tokens <= TOKENS_MAX, "room", "the answer is too long");
  memcpy(a->text + a->n_text, d->text, d->n_text);
  if (d->n_tokens > 0) memcpy(a->tokens + a->n_tokens, d->tokens, d->n_tokens * sizeof *d->tokens);
  a->n_text += d->n_text;
  a->n_tokens += d->n_tokens;
  if (d->thinking) a->n_thinking += (uint32_t)d->n_text;
  for (uint32_t i = 0; d->logprobs != NULL && i < d->n_tokens; i++) {
    digest(&a->digest, &d->logprobs[i].logprob, sizeof(float));
    digest(&a->digest, d->logprobs[i].bytes, d->logprobs[i].n_bytes);
    digest(&a->digest, &d->n_top[i], sizeof *d->n_top);
    for (uint32_t k = 0; k < d->n_top[i]; k++) {
      const weft_token_logprob *top = &d->top_logprobs[(size_t)i * d->top_stride + k];
      digest(&a->digest, &top->token, sizeof top->token);
      digest(&a->digest, &top->logprob, sizeof top->logprob);
    }
  }
}

static void take_canvas(answer *a, const weft_delta *d, bool trace) {
  a->n_canvases += 1;
  digest(&a->canvases, d->text, d->n_text);
  digest(&a->canvases, d->tokens, d->n_tokens * sizeof *d->tokens);
  digest(&a->canvases, &d->mean_entropy, sizeof d->mean_entropy);
  if (!trace) return;
  digest(&a->canvases, d->canvas_in, d->n_tokens * sizeof(int32_t));
  digest(&a->canvases, d->drawn, d->n_tokens * sizeof(int32_t));
  digest(&a->canvases, d->canvas_out, d->n_tokens * sizeof(int32_t));
  digest(&a->canvases, d->entropy, d->n_tokens * sizeof(float));
  digest(&a->canvases, d->accepted_mask, d->n_tokens);
}

/* True at the end. */
static bool read_some(weft_runtime *rt, weft_generation *g, uint32_t kind, uint32_t timeout_ms, answer *a) {
  weft_generate_params p;
  weft_delta d;
  int status;
  fill(&p, kind);
  while ((status = weft_next(g, timeout_ms, &d)) == 0) {
    if (d.kind == WEFT_DELTA_TEXT) {
      uint32_t at_most = p.max_tokens;
      check_delta(rt, &p, &d, a->n_tokens + d.n_tokens >= at_most);
      take_text(a, &d);
    } else if (d.kind == WEFT_DELTA_CANVAS) {
      take_canvas(a, &d, p.trace);
    } else {
      need(d.error == NULL, "error", d.error == NULL ? "" : d.error);
      (void)snprintf(a->finish, sizeof a->finish, "%s", d.finish);
      a->n_steps = d.usage.denoise_steps;
      a->n_cached = d.usage.cached_tokens;
      a->n_preempted = d.usage.preemptions;
      return true;
    }
  }
  need(status == 1, "weft_next", "it failed");
  return false;
}

typedef struct reader {
  weft_runtime *rt;
  weft_generation **g;
  uint32_t first;
} reader;

static void *read_share(void *self) {
  reader *r = self;
  for (uint32_t left = 1; left > 0;) {
    left = 0;
    for (uint32_t i = r->first; i < n_kinds; i += READERS) {
      if (r->g[i] == NULL) continue;
      left += 1;
      if (!read_some(r->rt, r->g[i], i, 5, &got[i])) continue;
      weft_generation_free(r->g[i]);
      r->g[i] = NULL;
    }
  }
  return NULL;
}

static void read_all(weft_runtime *rt, weft_generation **g, bool threads) {
  pthread_t thread[READERS];
  reader share[READERS];
  for (uint32_t i = 0; i < READERS; i++) {
    share[i] = (reader){rt, g, i};
    if (!threads) {
      (void)read_share(&share[i]);
    } else {
      need(pthread_create(&thread[i], NULL, read_share, &share[i]) == 0, "thread", "refused");
    }
  }
  for (uint32_t i = 0; threads && i < READERS; i++) (void)pthread_join(thread[i], NULL);
}

/* ---- running ------------------------------------------------------------------------------------------- */

static weft_generation *submit(weft_runtime *rt, uint32_t kind) {
  weft_generate_params p;
  weft_generation *g = NULL;
  char error[512] = "";
  fill(&p, kind);
  int status = weft_submit(rt, &p, &g, error, sizeof error);
  need(status == 0, "submit", error);
  return g;
}

/* Others that leave while the rest runs: at once, after a moment, mid-answer. */
static void disturb(weft_runtime *rt, uint32_t round) {
  weft_generation *g = submit(rt, (round * 3 + 1) % n_kinds);
  weft_delta d;
  if (round % 3 == 1) (void)weft_next(g, 3, &d);
  if (round % 3 == 2) weft_cancel(g);
  weft_generation_free(g);
}

static void play(const variant *v, weft_runtime *rt) {
  weft_generation *g[KINDS] = {NULL};
  memset(got, 0, sizeof got);
  for (uint32_t i = 0; i < n_kinds; i++) {
    uint32_t kind = v->order == 0 ? i : v->order == 1 ? n_kinds - 1 - i : (i * 7 + 3) % n_kinds;
    g[kind] = submit(rt, kind);
    if (v->cancels) disturb(rt, i);
    if (!v->one_by_one) continue;
    while (!read_some(rt, g[kind], kind, 10000, &got[kind])) continue;
    weft_generation_free(g[kind]);
    g[kind] = NULL;
  }
  while (v->late && !weft_idle(rt)) (void)usleep(2000); /* everything has ended before anything is read */
  read_all(rt, g, v->readers);
}

static void draft_always(weft_runtime *rt) {
  for (uint32_t r = 0; r < rt->n_replicas; r++) {
    const model_drafter *drafter = rt->drafter[r];
    weft_engine_set_drafter(weft_replicas_at(rt->replicas, r), drafter != NULL ? model_drafter_calls(drafter) : NULL,
                            true);
  }
}

/* NULL and a line: it cannot be opened. */
static weft_runtime *try_to_open(const variant *v, char *error, size_t n_error) {
  weft_runtime *rt = NULL;
  char device_mib[64];
  (void)snprintf(device_mib, sizeof device_mib, "%.20f", (double)v->device_bytes / (1 << 20)); /* to the byte */
  weft_open_options options = {.models = models,
                               .n_models = n_models,
                               .backend = v->backend,
                               .threads = v->threads,
                               .kv_bytes = v->kv_bytes,
                               .drafts = &v->drafts,
                               .n_drafts = v->drafts != NULL ? 1 : 0,
                               .host_bytes = v->host_bytes,
                               .spill_bytes = v->spill_bytes,
                               .spill_file = v->spill_bytes == 0 ? NULL : WEFT_BINARY_DIR "/api_equalities.spill",
                               .context = 400,
                               .running = v->running,
                               .queue = 64,
                               .rows = v->rows,
                               .no_prefix_cache = v->no_cache,
                               .no_graphs = v->no_graphs,
                               .no_arena = v->no_arena,
                               .device_mib = v->device_bytes == 0 ? NULL : device_mib,
                               .devices = by_tensor && v->devices == NULL ? "0,1" : v->devices,
                               .split = v->split != NULL ? v->split
                                        : by_tensor      ? "tensor"
                                        : v->replicas    ? "replicas"
                                                         : NULL,
                               .split_ratio = v->ratio,
                               .no_peer_access = v->no_peer,
                               .precision = eight                             ? "fast"
                                            : strcmp(v->backend, "cuda") == 0 ? "exact"
                                                                              : NULL,
                               .quiet = true};
  return weft_open(&options, &rt, error, n_error) == 0 ? rt : NULL;
}

static weft_runtime *open_runtime(const variant *v) {
  char error[512] = "";
  weft_runtime *rt = try_to_open(v, error, sizeof error);
  need(rt != NULL, "open", error);
  has_chat = weft_model_at(rt, 0).chat;
  for (uint32_t i = 0; i < MODELS; i++) names[i] = i < n_models && n_models > 1 ? weft_model_at(rt, i).name : NULL;
  if (v->always) draft_always(rt);
  return rt;
}

/* A reader that comes late is shown fewer canvases, and on a loaded machine every reader may be late: canvases are
 * compared where both were shown all of them. */
static bool same_canvases(const answer *a, const answer *b) {
  return a->n_canvases < a->n_steps || b->n_canvases < b->n_steps || a->canvases == b->canvases;
}

static void compare(const variant *v) {
  uint32_t n_cached = 0, n_preempted = 0, n_shown = 0;
  for (uint32_t i = 0; i < n_kinds; i++) {
    const answer *a = &got[i], *b = &wanted[i];
    bool same = strcmp(a->finish, b->finish) == 0 && a->n_text == b->n_text && a->n_tokens == b->n_tokens &&
                memcmp(a->text, b->text, a->n_text) == 0 && a->n_thinking == b->n_thinking &&
                memcmp(a->tokens, b->tokens, a->n_tokens * sizeof(int32_t)) == 0 && a->digest == b->digest &&
                same_canvases(a, b);
    n_shown += a->n_steps > 0 && a->n_canvases == a->n_steps && b->n_canvases == b->n_steps;
    n_cached += a->n_cached;
    n_preempted += a->n_preempted;
    if (same) continue;
    (void)printf(
        "FAILED: %s: %s: request %u: %u tokens, %s, %u canvases:\n%s\nalone: %u tokens, %s, %u canvases:\n%s\n", label,
        v->name, i, a->n_tokens, a->finish, a->n_canvases, a->text, b->n_tokens, b->finish, b->n_canvases, b->text);
    exit(1);
  }
  need(!v->hits || n_cached > 0, v->name, "no prefix was found");
  need(!v->no_cache || n_cached == 0, v->name, "a prefix was found");
  /* whether anybody is preempted here depends on the clock; scheduler_equalities asserts that somebody is */
  (void)printf("  %-34s equal, %u with all their canvases; %u prompt tokens cached, %u preemptions\n", v->name, n_shown,
               n_cached, n_preempted);
}

/* Text in all is what the tokens in all spell (no stop strings, no chat). */
static void check_spelling(weft_runtime *rt) {
  uint32_t n_checked = 0;
  for (uint32_t i = 0; i < n_kinds; i++) {
    weft_generate_params p;
    char *spelled = NULL, error[256] = "";
    size_t n = 0;
    fill(&p, i);
    if (p.prompt.turns != NULL || strcmp(wanted[i].finish, "length") != 0 || p.n_stop > 0) continue;
    need(weft_detokenize(rt, p.model, wanted[i].tokens, wanted[i].n_tokens, p.with_special, &spelled, &n, error,
                         sizeof error) == 0,
         "detokenize", error);
    need(n == wanted[i].n_text && memcmp(spelled, wanted[i].text, n) == 0, "the text is not what the tokens spell",
         wanted[i].text);
    weft_release(spelled);
    n_checked += 1;
  }
  need(n_checked > 2, "spelling", "nothing was checked");
}

/* Answers that are held to the schema end by themselves, as an object with its three members. */
static void check_held(void) {
  for (uint32_t i = 0; i < n_kinds; i++) {
    const answer *a = &wanted[i];
    if (!is_held(i)) continue;
    json_t *root = json_loadb(a->text, a->n_text, 0, NULL);
    need(strcmp(a->finish, "stop") == 0 && json_object_size(root) == 3, "an answer is not of its format", a->text);
    need(json_is_string(json_object_get(root, "name")) && json_is_boolean(json_object_get(root, "old")) &&
             json_is_array(json_object_get(root, "pets")),
         "an answer is not of its format", a->text);
    json_decref(root);
  }
}

/* What a variant is about must have happened. */
static void check_card(const variant *v, const weft_runtime *rt) {
  weft_weights_report w = devices_weights(&rt->devices);
  weft_graph_counters g = devices_graphs(&rt->devices);
  if (strcmp(v->backend, "cuda") != 0) return;
  bool kept = weft_device_get_info(rt->devices.device[0])->integers;
  need(kept ? !v->no_integers : !v->integers, v->name, "integers, or none of them");
  need((rt->devices.codes_alone.experts > 0) == v->in_part, v->name, "integers, or of a part");
  bool graphs = devices_keep_graphs(&rt->devices);
  need((g.launches > 0) == graphs, v->name, graphs ? "no graph was launched" : "graphs were launched");
  need((w.n_bytes_host > 0) == v->streams, v->name,
       v->streams ? "no expert lies in host memory" : "experts lie in host memory");
  bool plain = w.n_bytes_held >= WEIGHT_ARENA_PLAIN_CHUNK; /* such chunks are of plain memory alone */
  need(v->device_bytes > 0 || plain == v->no_arena, v->name, "weights do not lie where they should");
}

static void play_and_compare(const variant *v) {
  weft_runtime *rt = open_runtime(v);
  play(v, rt);
  compare(v);
  for (uint32_t i = 0; i < n_models; i++) {
    weft_request_stats stats;
    weft_replicas_get_request_stats(rt->replicas, i, &stats);
    need(stats.drafts.n_drafted == 0 || v->drafts != NULL, v->name, "drafts that nobody asked for");
    n_drafted += stats.drafts.n_drafted;
  }
  check_card(v, rt);
  need(weft_unwell(rt) == NULL, "health", "unwell");
  weft_close(rt);
}

/* The least memory for weights with which the model can be opened: all experts, or nearly all, are then in host
 * memory. */
static uint64_t least_bytes(const variant *like) {
  char error[512];
  variant v = *like;
  v.device_bytes = 0;
  weft_runtime *rt = open_runtime(&v);
  uint64_t enough = devices_weights(&rt->devices).n_bytes, too_few = 0;
  weft_close(rt);
  while (enough - too_few > 4096) {
    v.device_bytes = too_few + (enough - too_few) / 2;
    rt = try_to_open(&v, error, sizeof error);
    if (rt != NULL) {
      enough = v.device_bytes;
      weft_close(rt);
    } else {
      too_few = v.device_bytes;
    }
  }
  return enough;
}

/* Plain memory is taken by the byte; the arena takes 2 MiB at a time, in which a tiny model has room as a whole. */
static void play_on_card(const char *backend, uint64_t small_bytes, bool tiny) {
  variant v = {.backend = backend, .kv_bytes = 32 << 20, .rows = 96, .running = 16, .threads = 2, .order = 2};
  variant n = v;
  n.name = "no graphs", n.no_graphs = true;
  play_and_compare(&n);
  n = v, n.name = "no arena", n.no_arena = true;
  play_and_compare(&n);
  n.name = "experts in host memory", n.streams = true, n.device_bytes = least_bytes(&n);
  (void)printf("  %llu KiB of the card for weights\n", (unsigned long long)(n.device_bytes >> 10));
  play_and_compare(&n);
  n.name = "experts in host memory, no graphs", n.no_graphs = true;
  play_and_compare(&n);
  n.name = "experts in host memory, a small pool", n.no_graphs = false, n.kv_bytes = small_bytes, n.running = 20;
  play_and_compare(&n);
  n = v, n.no_arena = true;
  weft_runtime *rt = open_runtime(&n);
  uint64_t all = devices_weights(&rt->devices).n_bytes;
  weft_close(rt);
  n.name = "half of the experts there", n.streams = true, n.device_bytes = (all + least_bytes(&n)) / 2;
  play_and_compare(&n);
  if (tiny) return;
  n = v, n.name = "experts in host memory, arena", n.streams = true, n.device_bytes = least_bytes(&n);
  play_and_compare(&n);
}

static bool has_device(const char *backend, uint32_t index) {
  const weft_device_config config = {.backend = backend, .index = index};
  weft_device *device;
  if (weft_device_open(&config, &device, NULL) != WEFT_OK) return false;
  weft_device_close(device);
  return true;
}

/* The layers on several devices; on cards as many as there are. */
static void play_on_devices(const char *backend, uint64_t small_bytes) {
  variant v = {.backend = backend, .kv_bytes = 32 << 20, .rows = 96, .running = 16, .threads = 1, .order = 2};
  bool cards = strcmp(backend, "cuda") == 0;
  if (!has_device(backend, 1)) {
    (void)printf("%s: left out several devices: there is one\n", label);
    return;
  }
  v.devices = "0,1", v.name = "two devices";
  play_and_compare(&v);
  v.name = "two devices, a small pool, little host memory, a file", v.kv_bytes = small_bytes, v.running = 20;
  v.host_bytes = 512 << 10, v.spill_bytes = 16 << 20;
  play_and_compare(&v);
  v.name = "two devices, others come and go", v.kv_bytes = 8 << 20, v.cancels = v.readers = true;
  v.host_bytes = v.spill_bytes = 0, v.ratio = "1,3";
  play_and_compare(&v);
  v.name = "two replicas, others come and go", v.ratio = NULL, v.replicas = true;
  play_and_compare(&v);
  v.cancels = v.readers = false, v.kv_bytes = small_bytes, v.host_bytes = 1 << 20, v.spill_bytes = 16 << 20;
  v.name = "two replicas, small pools, little host memory, files", v.devices = "1,0";
  play_and_compare(&v);
  v.kv_bytes = 32 << 20, v.host_bytes = v.spill_bytes = 0, v.replicas = false, v.order = 1;
  v.name = "two devices in the other order, each layer but one on the first", v.devices = "1,0", v.ratio = "100,1";
  play_and_compare(&v);
  if (cards) {
    v.name = "two cards without peer access", v.no_peer = true, v.ratio = NULL;
    play_and_compare(&v);
    v.name = "two cards without graphs", v.no_peer = false, v.no_graphs = true;
    play_and_compare(&v);
    v.no_graphs = false;
  }
  if (!has_device(backend, 2)) return;
  v.name = "three devices", v.devices = "0,2,1", v.ratio = NULL;
  play_and_compare(&v);
  v.name = "three replicas", v.replicas = true;
  play_and_compare(&v);
  if (!has_device(backend, 3) || test_amount(0, 0, 1) == 0) return;
  v.name = "four devices", v.replicas = false, v.devices = "3,0,2,1";
  play_and_compare(&v);
  if (!has_device(backend, 7)) return;
  v.name = "eight replicas", v.replicas = true, v.devices = "0,1,2,3,4,5,6,7";
  play_and_compare(&v);
}

/* A card, and every device in the nightly amount; else what does not look at the file is played on one of them. */
static bool is_whole(const char *backend) {
  return strcmp(backend, "cuda") == 0 || test_amount(0, 0, 1) != 0;
}

/* Parts that lie in shards. */
static void play_in_parts(variant v, const char *backend, uint64_t small_bytes) {
  v.split = "tensor:2,layer:2", v.devices = "3,1,0,2", v.kv_bytes = 2 * small_bytes, v.host_bytes = 512 << 10;
  v.name = "two parts of two shards, a small pool, little host memory, a file", v.spill_bytes = 16 << 20;
  play_and_compare(&v);
  v.name = "two parts of two shards, the second one larger, others come and go", v.ratio = "1,2";
  v.kv_bytes = 8 << 20, v.host_bytes = v.spill_bytes = 0, v.cancels = v.readers = true;
  play_and_compare(&v);
  if (!has_device(backend, 7) || test_amount(0, 1, 1) == 0) return;
  v.name = "two parts of four shards", v.split = "layer:2,tensor:4", v.ratio = NULL, v.devices = "0,1,2,3,4,5,6,7";
  play_and_compare(&v);
  v.name = "four parts of two shards", v.split = "tensor:2,layer:4", v.devices = "7,6,5,4,3,2,1,0";
  v.cancels = v.readers = false;
  play_and_compare(&v);
}

/* What differs only for shards. */
static void play_in_shards(const char *backend, uint64_t small_bytes) {
  variant v = {.backend = backend, .kv_bytes = 32 << 20, .rows = 96, .running = 16, .threads = 4, .order = 2};
  v.devices = "1,0", v.name = "two shards in the other order";
  play_and_compare(&v);
  v.devices = NULL, v.name = "two shards, a small pool, little host memory, a file", v.kv_bytes = small_bytes;
  v.running = 20, v.host_bytes = 512 << 10, v.spill_bytes = 16 << 20;
  play_and_compare(&v);
  if (has_device(backend, 3)) {
    v.name = "four shards, a small pool, little host memory, a file", v.devices = "2,0,1,3",
    v.kv_bytes = 2 * small_bytes;
    play_and_compare(&v);
    v.name = "four shards, others come and go", v.kv_bytes = 8 << 20, v.host_bytes = v.spill_bytes = 0;
    v.cancels = v.readers = true, v.devices = "0,1,2,3";
    play_and_compare(&v);
    v.cancels = v.readers = false;
    if (strstr(models[0], "golden") != NULL || is_whole(backend)) play_in_parts(v, backend, small_bytes);
    v.devices = NULL;
  }
  if (strcmp(backend, "cuda") != 0) return;
  v.name = "two shards without peer access", v.no_peer = true, v.kv_bytes = 32 << 20, v.host_bytes = v.spill_bytes = 0;
  play_and_compare(&v);
}

/* A model of the same vocabulary, as --draft has it. */
static const char *drafter_of(const char *path) {
  if (strstr(path, "dg-base") != NULL) return "model:" WEFT_SOURCE_DIR "/tests/golden/models/ar-base.gguf:6";
  if (strstr(path, "golden") != NULL) return "model:" WEFT_SOURCE_DIR "/tests/golden/models/ar-12b.gguf:6";
  return "model:" WEFT_SOURCE_DIR "/model/demo/weft-demo-draft.gguf:6";
}

static uint32_t n_run;

/* in_shards: the answers of one device must come from two shards too. */
static void run(const char *path, const char *backend, uint32_t kinds, uint64_t small_bytes, bool in_shards) {
  const uint64_t room = 32 << 20;
  const variant alone = {"alone", backend, room, 512, 1, 1, .no_cache = true, .one_by_one = true};
  const variant variants[] = {
      {"all at once", backend, room, 96, 16, 2, .order = 0},
      {"one by one, cached", backend, room, 48, 4, 1, .one_by_one = true, .hits = true, .order = 1},
      {"four readers", backend, room, 512, 5, 3, .readers = true, .order = 2},
      {"read late", backend, room, 64, 20, 2, .late = true, .no_cache = true},
      {"a small pool", backend, small_bytes, 64, 20, 2, .order = 2},
      {"a small pool, host memory behind it", backend, small_bytes, 64, 20, 2, .host_bytes = 8 << 20, .order = 1},
      {"a small pool, little memory, a file", backend, small_bytes, 64, 20, 2, .host_bytes = 512 << 10,
       .spill_bytes = 16 << 20, .order = 1},
      {"drafts", backend, room, 96, 16, 2, .drafts = "ngram:4"},
      {"many drafts, a small pool, others come and go", backend, small_bytes, 64, 20, 2, .drafts = "ngram:16",
       .cancels = true, .order = 1},
      {"drafts by a canvas", backend, room, 96, 16, 2, .drafts = "canvas:8", .always = true, .order = 2},
      {"drafts by a canvas, a small pool, others come and go", backend, small_bytes, 64, 20, 2, .drafts = "canvas:16",
       .always = true, .cancels = true},
      {"drafts by another model", backend, room, 96, 16, 2, .drafts = drafter_of(path), .always = true, .order = 1},
      {"others come and go", backend, 8 << 20, 80, 12, 2, .cancels = true, .readers = true},
  };
  models[0] = path;
  n_kinds = kinds;
  (void)snprintf(label, sizeof label, "%s on %s%s", strrchr(path, '/') + 1, backend, in_shards ? ", two shards" : "");
  weft_runtime *rt = open_runtime(&alone);
  play(&alone, rt);
  memcpy(wanted, got, sizeof wanted);
  if (n_kinds == KINDS) check_spelling(rt);
  if (n_kinds == KINDS) check_held();
  weft_close(rt);
  uint32_t n_tokens = 0, n_stopped = 0;
  for (uint32_t i = 0; i < n_kinds; i++) {
    n_tokens += wanted[i].n_tokens;
    n_stopped += strcmp(wanted[i].finish, "stop") == 0;
  }
  (void)printf("%s: %u requests, %u tokens, %u stopped\n", label, n_kinds, n_tokens, n_stopped);
  uint32_t n = n_kinds == KINDS ? sizeof variants / sizeof *variants : 1;
  /* all on a card; else each on one of the files, in turn */
  uint32_t stride = is_whole(backend) ? 1 : test_amount(3, 2, 1), first = n_run++ % stride;
  if (in_shards && strstr(path, "golden") == NULL && !is_whole(backend)) stride = 4;
  by_tensor = in_shards;
  for (uint32_t i = n_kinds == KINDS ? first : 0; i < n; i += stride) {
    bool other = variants[i].drafts != NULL && strncmp(variants[i].drafts, "model:", 6) == 0;
    if (!by_tensor || !other) play_and_compare(&variants[i]); /* not every model has shards */
  }
  if (by_tensor) {
    play_in_shards(backend, small_bytes);
    by_tensor = false;
    return;
  }
  bool narrow = strstr(path, "c16") != NULL; /* as the demo model, which is on the same backend */
  if (n_kinds == KINDS && (!narrow || is_whole(backend))) play_on_devices(backend, small_bytes);
  if (strcmp(backend, "cuda") == 0) play_on_card(backend, small_bytes, strstr(path, "golden") != NULL);
}

/* Requests for three models in turns, which share the pool and the steps' time: canvases and tokens of the demo model,
 * tokens of a model with latent rows, and of one that keeps states, whose hits end at snapshots. */
static void run_together(const char *backend) {
  const uint64_t room = 48 << 20, small = 500 << 10;
  const variant alone = {"alone", backend, room, 512, 1, 1, .no_cache = true, .one_by_one = true};
  const variant variants[] = {
      {"a small pool, host memory behind it", backend, small, 64, 20, 2, .host_bytes = 8 << 20, .order = 1},
      {"many drafts, others come and go", backend, small, 64, 20, 2, .drafts = "ngram:16", .cancels = true, .order = 2},
      {"one by one, cached", backend, room, 48, 4, 1, .one_by_one = true, .hits = true, .order = 1},
      {"all at once", backend, room, 96, 16, 2, .order = 0},
      {"a small pool, little memory, a file", backend, small, 64, 20, 2, .host_bytes = 512 << 10,
       .spill_bytes = 16 << 20, .order = 1},
      {"drafts", backend, room, 96, 16, 2, .drafts = "ngram:4"},
  };
  models[0] = WEFT_SOURCE_DIR "/model/demo/weft-demo.gguf";
  models[1] = state_model_latent(512);
  models[2] = state_model_file(512);
  n_models = MODELS;
  n_kinds = KINDS;
  (void)snprintf(label, sizeof label, "three models on %s", backend);
  weft_runtime *rt = open_runtime(&alone);
  play(&alone, rt);
  memcpy(wanted, got, sizeof wanted);
  check_spelling(rt);
  check_held();
  weft_close(rt);
  (void)printf("%s:\n", label);
  uint32_t n = sizeof variants / sizeof *variants;
  for (uint32_t i = 0; i < n / test_amount(3, 1, 1); i++) play_and_compare(&variants[i]);
  n_models = 1;
  gguf_edit_clean();
}

/* A machine with one device has no shards. */
static void run_in_shards(const char *backend) {
  if (!has_device(backend, 1)) {
    (void)printf("%s: left out shards: there is one device\n", backend);
    return;
  }
  run(WEFT_SOURCE_DIR "/tests/golden/models/dg-deep.gguf", backend, KINDS, 100 << 10, true);
  run(WEFT_SOURCE_DIR "/model/demo/weft-demo.gguf", backend, KINDS, 700 << 10, true); /* one key head in some layers */
  if (strcmp(backend, "cuda") != 0) return;
  eight = true; /* of weights in Q8_0 */
  run(WEFT_SOURCE_DIR "/model/demo/weft-demo.gguf", backend, KINDS, 700 << 10, true);
  eight = false;
}

/* With experts in host memory no weight has integers, on one card and in shards: the same bits. */
static void play_from_host_in_eight_bits(const char *name) {
  variant v = {name, "cuda", 32 << 20, 512, 16, 2, .order = 2, .no_arena = true, .streams = true};
  v.no_integers = true, v.device_bytes = least_bytes(&v);
  play_and_compare(&v);
}

/* Products of 8 bits on cards: from integers of weights, of all or of some, the answers are those from codes. */
static void run_with_integers(void) {
  uint64_t n_codes, n_integers;
  variant v = {"alone", "cuda", 32 << 20, 512, 1, 1, .no_cache = true, .one_by_one = true};
  models[0] = WEFT_SOURCE_DIR "/model/demo/weft-demo.gguf";
  n_kinds = KINDS;
  (void)snprintf(label, sizeof label, "integers of weights");
  eight = v.no_arena = true; /* memory is taken by the byte */
  weft_runtime *rt = open_runtime(&v);
  count_integers(rt, &n_codes, &n_integers);
  weft_close(rt);
  v.device_bytes = n_codes + (256 << 10), v.no_integers = true; /* room for the weights alone */
  rt = open_runtime(&v);
  play(&v, rt);
  memcpy(wanted, got, sizeof wanted);
  weft_close(rt);
  v = (variant){"integers", "cuda", 32 << 20, 512, 16, 2, .order = 2, .integers = has_integers()};
  play_and_compare(&v);
  v.name = "integers, a small pool, no graphs, no arena", v.kv_bytes = 700 << 10, v.rows = 96, v.running = 20;
  v.no_graphs = v.no_arena = true;
  play_and_compare(&v);
  for (uint32_t quarter = 1; quarter < 4 && v.integers; quarter++) {
    v = (variant){"integers of a part", "cuda", 32 << 20, 512, 16, 2, .order = 2, .integers = true, .in_part = true};
    v.no_arena = true, v.device_bytes = n_codes + (256 << 10) + n_integers / 4 * quarter;
    play_and_compare(&v);
  }
  play_from_host_in_eight_bits("8 bits, experts in host memory");
  v = (variant){"integers, two shards", "cuda", 32 << 20, 512, 16, 2, .order = 1, .integers = has_integers()};
  by_tensor = true;
  if (has_device("cuda", 1)) play_and_compare(&v);
  if (has_device("cuda", 1)) play_from_host_in_eight_bits("8 bits, two shards, experts in host memory");
  by_tensor = false;
  v.name = "integers, layers on two cards", v.devices = "0,1";
  if (has_device("cuda", 1)) play_and_compare(&v);
  eight = false;
}

/* All there is for one backend; false: this machine lacks it. */
static bool run_backend(const char *backend) {
  const weft_device_config config = {.backend = backend};
  weft_device *device;
  weft_error error = {{0}};
  if (weft_device_open(&config, &device, &error) != WEFT_OK) {
    (void)printf("skipped: %s\n", error.text);
    return false;
  }
  weft_device_close(device);
  run(WEFT_SOURCE_DIR "/tests/golden/models/dg-base.gguf", backend, KINDS, 110 << 10, false);
  run(WEFT_SOURCE_DIR "/tests/golden/models/dg-c16-w4.gguf", backend, KINDS, 150 << 10, false);
  run(WEFT_SOURCE_DIR "/model/demo/weft-demo.gguf", backend, KINDS, 700 << 10, false);
  run_in_shards(backend);
  run_together(backend);
  if (strcmp(backend, "cuda") == 0) run_with_integers();
  return true;
}

int main(int argc, char **argv) {
  const char *backend = argc > 2 && strcmp(argv[1], "--backend") == 0 ? argv[2] : NULL;
  int at = backend == NULL ? 1 : 3;
  seed = argc > at ? strtoull(argv[at], NULL, 10) : 1;
  weft_log_set_level(WEFT_LOG_ERROR);
  for (uint32_t i = 0; i < 90; i++) long_prompt[i] = (int32_t)(5 + i * 37 % 80);
  if (backend != NULL) return run_backend(backend) ? 0 : SKIPPED;
  run(WEFT_SOURCE_DIR "/tests/golden/models/dg-base.gguf", "ref", KINDS, 110 << 10, false);
  run(WEFT_SOURCE_DIR "/tests/golden/models/dg-c16-w4.gguf", "cpu", KINDS, 150 << 10, false);
  run(WEFT_SOURCE_DIR "/model/demo/weft-demo.gguf", "cpu", KINDS, 700 << 10, false);
  run_in_shards("cpu");
  run_together("cpu");
  if (test_amount(0, 0, 1) != 0) run(WEFT_SOURCE_DIR "/model/demo/weft-demo.gguf", "ref", 2, 0, false);
  need(n_drafted > 0, "drafts", "there were none");
  return 0;
}
