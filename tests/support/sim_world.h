/* SPDX-License-Identifier: MIT */
/* A random world of the simulation: runners, tenants, limits, tiers and requests, drawn from one seed.
 *
 * One world in six is a filed one: a few prompts come again and again, and their blocks go through all tiers. One
 * world in six is a crowded one: three tenants on two models, many requests at once, and a pool in which few find
 * room, so that starved requests, waiters and debts of pages meet. In four worlds in ten a drafter guesses next
 * tokens, between always right and hardly ever; it knows the answers. In three in ten half of the requests have drafts
 * from their own n-grams. Half of the drafters need time. In three in ten runners without states make drafts
 * themselves, of the keys in the pool and as good by chance. Of all these worlds half have as many drafts as there
 * are, whatever they cost. In one world in three models keep states beside keys, of a page or of many, with borders at
 * every position or at some. One world in eight is a fair one: one model, memory and slots for everybody, no prefix
 * cache, no faults, half of them with all requests at once, tenants of one class with weights; there the fairness
 * bound holds, with and without a target for the time between tokens, and however old requests grow. In every third
 * world that is not fair the pool changes its size all the time, between one page and three times as many as requests
 * may count on. */
#ifndef WEFT_TESTS_SIM_WORLD_H
#define WEFT_TESTS_SIM_WORLD_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "bench/doubles/fake_runner.h"
#include "scheduler/engine.h"
#include "tests/support/fake_solo.h"
#include "tests/support/seeds.h"
#include "tests/support/service_watch.h"
#include "tests/support/sim_request.h"

enum {
  RUNNERS_MAX = 3,
  REQUESTS_MAX = 48,
  TENANTS_MAX = 4,
  BASES = 4,
  FILED = 95, /* percent of the requests of a filed world that repeat a prompt */
};

typedef struct sim {
  uint64_t seed, draws;
  bool verbose;
  weft_fake_store *store;
  weft_fake_config fake[RUNNERS_MAX];
  sim_law law[RUNNERS_MAX];
  weft_runner *runner[RUNNERS_MAX];
  weft_engine_config config;
  weft_pool_calls pool;
  uint32_t n_backed_least; /* the smallest that its memory was */
  weft_tenant_config tenant[TENANTS_MAX];
  sim_tokens tokens[TENANTS_MAX];
  weft_drafter drafter;
  bool late;           /* now and then its drafts are coming */
  uint32_t late_in;    /* the last step in which they were */
  bool own_drafts;     /* of some runners */
  bool ngrams;         /* some requests have drafts from their own n-grams */
  uint32_t n_right;    /* percent of its guesses that are right */
  service_watch watch; /* fair worlds: around the only runner */
  weft_engine *engine;
  sim_request request[REQUESTS_MAX];
  uint32_t n_requests, step, n_steps_max;
  uint32_t length_max;  /* of prompts and answers */
  uint32_t copies_fail; /* one in so many copies to the host and moves of the file; 0: none */
  uint32_t slow_moves;  /* of the file */
  uint32_t repeats;     /* percent of the requests that ask an earlier prompt again, later, */
  uint32_t n_originals; /* one of so many first ones */
  int32_t base[BASES][SIM_PROMPT_MAX];
  uint64_t now_us;
  bool faulty, fair;
  bool slow;  /* requests grow old while they wait */
  bool apart; /* every second tenant asks for canvases, the others for tokens */
} sim;

#define FAIL(s, ...) (fprintf(stderr, "step %u: ", (s)->step), seeds_fail((s)->seed, __VA_ARGS__))

static uint32_t draw(sim *s, uint32_t low, uint32_t high) {
  return seeds_draw(s->seed, &s->draws, low, high);
}
static bool chance(sim *s, uint32_t percent) {
  return draw(s, 0, 99) < percent;
}

/* Draws of their own, so that the worlds of old seeds stay what they were. */
static bool chance_apart(const sim *s, uint64_t what, uint32_t percent) {
  return weft_mix64(s->seed ^ weft_mix64(what + 1)) % 100 < percent;
}

static void make_runner(sim *s, uint32_t i) {
  weft_fake_config *f = &s->fake[i];
  *f = (weft_fake_config){.name = i == 0 ? "first" : i == 1 ? "second" : "third", .id = i};
  f->model.salt = weft_mix64(s->seed ^ (i + 77));
  f->model.n_vocab = draw(s, 20, 200);
  f->model.n_groups = draw(s, 1, 3);
  for (uint32_t g = 0; g < f->model.n_groups; g++) {
    uint32_t window = g == 0 && chance(s, 80) ? 0 : chance(s, 30) ? 0 : draw(s, 1, 20);
    f->model.group[g] = (weft_layer_group){.block_tokens = 1u << draw(s, 0, 4), .window = window, .n_layers = 1};
  }
  uint32_t kind = draw(s, 0, 2);
  f->autoregressive = kind != 1;
  f->model.n_canvas = kind == 0 ? 0 : 1u << draw(s, 1, 4);
  if (chance(s, 15)) f->model.bad_one_in = draw(s, 100, 600);
  f->n_slots = draw(s, 1, 12);
  f->rows_max = draw(s, 16, 64);
  f->depth = draw(s, 1, 3);
  f->context_length = draw(s, 40, 160);
  f->lazy = chance(s, 60);
  if (chance(s, 70)) {
    s->law[i] =
        (sim_law){.step = draw(s, 1, 1000), .row = draw(s, 0, 50), .output = draw(s, 0, 50), .key = draw(s, 0, 10)};
    f->law = time_of;
    f->law_self = &s->law[i];
  }
  f->n_saves = chance(s, 50) ? 0 : draw(s, 1, 8);
  if (chance_apart(s, 10 + i, 35)) {
    f->n_stages = 2 + (uint32_t)(weft_mix64(s->seed + i) % 2);
    f->depth = f->n_stages + 1;
    if (f->law != NULL && chance_apart(s, 20 + i, 50)) s->law[i].stall_one_in = 5 + (uint32_t)(s->seed % 20);
  }
  if (chance(s, 6)) f->fail_submit_at = draw(s, 1, 60);
  if (chance(s, 6)) f->fail_collect_at = draw(s, 1, 60);
  if (chance(s, 6)) f->fail_slot_at = draw(s, 1, 20);
  if (f->fail_submit_at + f->fail_collect_at + f->fail_slot_at > 0) s->faulty = true;
}

static void make_tenants(sim *s) {
  if (chance(s, 40)) return;
  s->config.tenant = s->tenant;
  for (uint32_t i = 0; i < s->config.n_tenants; i++) {
    weft_tenant_config *t = &s->tenant[i];
    t->weight = draw(s, 0, 8);
    t->priority_class = (int32_t)draw(s, 0, 2) - 1;
    if (chance(s, 30)) t->running_max = draw(s, 1, 4);
    if (chance(s, 30)) t->waiting_max = draw(s, 1, 6);
    if (chance(s, 30)) t->blocks_max = draw(s, 4, 60);
    if (chance(s, 20)) t->tokens_per_minute = draw(s, 100, 100000);
  }
}

static void make_tiers(sim *s) {
  weft_engine_config *c = &s->config;
  c->n_host_pages = chance(s, 50) ? 0 : draw(s, 1, 150);
  s->copies_fail = chance(s, 70) ? 0 : draw(s, 2, 30);
  if (c->n_host_pages == 0) return;
  if (chance(s, 40)) return;
  if (chance(s, 60)) c->n_host_pages = draw(s, 4, 40);
  c->n_file_pages = draw(s, 1, 300);
  s->slow_moves = chance(s, 30) ? 0 : chance(s, 15) ? UINT32_MAX : draw(s, 1, 40);
  s->repeats = draw(s, 0, 90);
  s->n_originals = REQUESTS_MAX;
}

static void make_config(sim *s) {
  weft_engine_config *c = &s->config;
  c->n_models = chance(s, 50) ? 1 : draw(s, 2, RUNNERS_MAX);
  for (uint32_t i = 0; i < c->n_models; i++) make_runner(s, i);
  c->rows_per_step = draw(s, 16, 48);
  c->prefill_chunk = chance(s, 30) ? 0 : draw(s, 1, 24);
  if (chance_apart(s, 61, 40)) /* a canvas has 16 rows at most */
    c->rows_beside = 16 + (uint32_t)(weft_mix64(s->seed ^ weft_mix64(62)) % (c->rows_per_step - 15));
  c->running_max = draw(s, 1, 16);
  c->waiting_max = draw(s, 3, 40);
  if (chance_apart(s, 0, 40)) c->waiting_max = 1 + c->waiting_max % 6;
  c->n_tenants = draw(s, 1, TENANTS_MAX);
  make_tenants(s);
  c->seq_tokens_max = draw(s, 40, 160);
  c->overlap = chance(s, 60);
  c->no_prefix_cache = chance(s, 20);
  c->hash_seed = s->seed + 1;
  c->pins_max = chance(s, 70) ? 0 : draw(s, 1, 4);
  c->slice_us = 1000 * draw(s, 0, 3);
  c->target_tpot_us = draw(s, 0, 3) > 0 ? 0 : 100 * draw(s, 1, 30);
  s->length_max = chance(s, 50) ? draw(s, 8, 30) : 70;
  c->n_pages = chance(s, 60) ? draw(s, 12, 80) : draw(s, 80, 400);
  make_tiers(s);
}

static void make_filed(sim *s) {
  weft_engine_config *c = &s->config;
  if (c->n_models > 2) c->n_models = 2;
  for (uint32_t i = 0; i < c->n_models; i++) {
    weft_fake_config *f = &s->fake[i];
    s->law[i] = (sim_law){.step = 200, .row = 50}; /* else nothing is worth bringing back */
    f->law = time_of;
    f->law_self = &s->law[i];
    for (uint32_t g = 0; g < f->model.n_groups; g++)
      if (f->model.group[g].block_tokens > 4) f->model.group[g].block_tokens = 4;
    f->context_length = 160;
  }
  c->seq_tokens_max = 160;
  s->length_max = 70;
  c->no_prefix_cache = false;
  c->running_max = draw(s, 1, 4);
  c->n_pages = draw(s, 60, 160);
  c->n_host_pages = draw(s, 60, 120);
  c->n_file_pages = draw(s, 200, 900);
  s->slow_moves = chance(s, 30) ? 0 : chance(s, 15) ? UINT32_MAX : draw(s, 1, 20);
  s->repeats = FILED;
  s->n_originals = draw(s, 3, 10);
}

/* Everybody may run and hardly anybody finds pages. */
static void make_crowded(sim *s) {
  static const weft_layer_group groups[] = {{.block_tokens = 4, .window = 8, .n_layers = 1},
                                            {.block_tokens = 4, .n_layers = 1}};
  weft_engine_config *c = &s->config;
  c->n_models = 2;
  for (uint32_t i = 0; i < c->n_models; i++) {
    make_runner(s, i);
    weft_fake_config *f = &s->fake[i];
    f->model.n_groups = 2;
    memcpy(f->model.group, groups, sizeof groups);
    f->n_slots = REQUESTS_MAX;
    f->context_length = 96;
    f->depth = 1;
    f->fail_submit_at = f->fail_collect_at = f->fail_slot_at = f->model.bad_one_in = 0;
  }
  c->running_max = draw(s, 8, 24);
  c->prefill_chunk = draw(s, 1, 16);
  c->no_prefix_cache = chance(s, 70);
  c->target_tpot_us = 0;
  c->waiting_max = REQUESTS_MAX;
  c->n_host_pages = c->n_file_pages = 0;
  c->n_tenants = 3;
  c->tenant = s->tenant;
  memset(s->tenant, 0, sizeof s->tenant);
  bool apart = chance(s, 50);
  for (uint32_t i = 0; apart && i < c->n_tenants; i++)
    s->tenant[i] = (weft_tenant_config){.weight = draw(s, 1, 4), .priority_class = (int32_t)draw(s, 0, 2) - 1};
  c->seq_tokens_max = 96;
  c->n_pages = draw(s, 32, 40);
  c->pins_max = 0;
  s->length_max = 48;
  s->faulty = false;
}

/* Nothing but rows is short. */
static void make_fair(sim *s) {
  weft_engine_config *c = &s->config;
  weft_fake_config *f = &s->fake[0];
  s->fair = true;
  s->faulty = false;
  c->n_models = 1;
  c->running_max = c->waiting_max = f->n_slots = REQUESTS_MAX;
  c->n_pages = 20000;
  s->law[0] = (sim_law){.step = draw(s, 1, 500), .row = draw(s, 1, 50), .output = draw(s, 0, 50)};
  f->law = time_of;
  f->law_self = &s->law[0];
  c->target_tpot_us = chance(s, 50) ? 0 : s->law[0].step + s->law[0].row * draw(s, 2, 20);
  s->watch.paced = c->target_tpot_us > 0;
  s->apart = f->autoregressive && f->model.n_canvas > 0 && chance(s, 50);
  c->n_tenants = draw(s, 2, TENANTS_MAX);
  c->no_prefix_cache = true;
  c->tenant = s->tenant;
  f->fail_submit_at = f->fail_collect_at = f->fail_slot_at = f->model.bad_one_in = 0;
  for (uint32_t i = 0; i < c->n_tenants; i++) {
    s->tenant[i] = (weft_tenant_config){.weight = draw(s, 1, 4)};
    s->watch.weight[i] = s->tenant[i].weight;
  }
  s->watch.n_tenants = c->n_tenants;
  s->slow = chance(s, 50);
}

/* ---- states ---- */

/* Groups of states, of at most an eighth of the pool each, a few of at most a third. Draws of their own, at the end, so
 * that the worlds of old seeds stay what they were but for this. */
static void make_states(sim *s) {
  for (uint32_t i = 0; i < s->config.n_models && chance_apart(s, 80, 34); i++) {
    weft_fake_model *model = &s->fake[i].model;
    for (uint32_t g = 1; g < model->n_groups; g++)
      model->group[g].from_border = model->group[g].window > 0 && chance_apart(s, 100 + 16 * i + g, 50);
    uint64_t draws = weft_mix64(s->seed ^ weft_mix64(90 + i));
    uint32_t part = draws % 8 == 0 ? 3 : 8, most = s->config.n_pages / part;
    if (most > 300) most = 300;
    if (s->fair) most = 20; /* there nothing but rows is short */
    for (uint32_t n = (draws >> 8) % 4 == 0 ? 2 : 1; n > 0; n--, draws = weft_mix64(draws))
      model->group[model->n_groups++] = (weft_layer_group){
          .block_tokens = 1u << (draws >> 16) % 6, .n_layers = 1, .state_pages = 1 + (uint32_t)(draws >> 32) % most};
  }
}

/* ---- drafts ---------------------------------------------------------------------------------- */

static bool begins_with(const sim_request *r, const int32_t *tokens, uint32_t n) {
  uint32_t n_prompt = r->params.n_tokens;
  if (r->handle == NULL || n < n_prompt || n >= n_prompt + r->solo.n) return false;
  return memcmp(r->prompt, tokens, n_prompt * sizeof *tokens) == 0 &&
         memcmp(r->solo.tokens, tokens + n_prompt, (n - n_prompt) * sizeof *tokens) == 0;
}

/* Some of the tokens that come next, the wrong ones among them one higher than they should be. */
static uint32_t guess_next(void *self, const weft_draft_text *text, uint32_t n_max, int32_t *out) {
  sim *s = self;
  uint64_t draws = weft_mix64(s->seed ^ weft_mix64(text->n_tokens + 1000 * (uint64_t)s->step));
  if (s->late && draws >> 40 & 1) {
    s->late_in = s->step;
    return WEFT_DRAFTS_COMING;
  }
  for (uint32_t i = 0; i < s->n_requests; i++) {
    const sim_request *r = &s->request[i];
    if (r->params.model != text->model || r->params.canvas || !begins_with(r, text->tokens, text->n_tokens)) continue;
    uint32_t at = text->n_tokens - r->params.n_tokens, n = (uint32_t)(draws % (n_max + 1));
    if (n > r->solo.n - at) n = r->solo.n - at;
    for (uint32_t k = 0; k < n; k++) {
      bool right = weft_mix64(draws + k) % 100 < s->n_right;
      out[k] =
          right ? r->solo.tokens[at + k] : (r->solo.tokens[at + k] + 1) % (int32_t)s->fake[text->model].model.n_vocab;
    }
    return n;
  }
  return 0;
}

/* Runners that draft for themselves. */
static void make_own_drafts(sim *s) {
  for (uint32_t i = 0; i < s->config.n_models && !s->fair; i++) {
    weft_fake_config *f = &s->fake[i];
    uint64_t draws = weft_mix64(s->seed ^ weft_mix64(i + 66));
    bool states = false;
    for (uint32_t g = 0; g < f->model.n_groups; g++) states = states || f->model.group[g].state_pages > 0;
    if (states || draws % 100 >= 30) continue;
    f->drafts = s->own_drafts = true;
    f->drafts_right = (uint32_t)(draws >> 8) % 101;
    f->draft_rows_max = 1 + (uint32_t)(draws >> 20) % 40;
    if (f->fail_submit_at > 0 && draws >> 40 & 1) f->fail_draft_at = 1 + (uint32_t)(draws >> 32) % 20;
  }
}

static void make_drafter(sim *s) {
  s->config.drafts_always = weft_mix64(s->seed ^ 62) % 2 == 0;
  s->ngrams = chance_apart(s, 63, 30);
  for (uint32_t i = 0; i < s->config.n_models && s->ngrams; i++)
    s->fake[i].draft_rows_max = 1 + (uint32_t)(weft_mix64(s->seed + i) % 40);
  if (!chance_apart(s, 60, 40)) return;
  s->drafter = (weft_drafter){.guess = guess_next, .self = s};
  s->n_right = (uint32_t)(weft_mix64(s->seed ^ 61) % 101);
  s->late = !s->fair && weft_mix64(s->seed ^ 64) % 2 == 0;
  s->late_in = UINT32_MAX;
  s->config.drafter = &s->drafter;
  for (uint32_t i = 0; i < s->config.n_models; i++)
    s->fake[i].draft_rows_max = 1 + (uint32_t)(weft_mix64(s->seed + i) % 40);
}

static void make_kind(sim *s, weft_request_params *p) {
  const weft_fake_config *f = &s->fake[p->model];
  p->canvas = f->model.n_canvas > 0 && (!f->autoregressive || chance(s, 50));
  if (s->apart) p->canvas = p->tenant % 2 == 1;
  p->asked.sampling = weft_sampling_neutral();
  p->asked.sampling.seed = draw(s, 0, 5);
  p->asked.sampling.choice = draw(s, 0, 2);
  p->asked.entropy_bound = weft_entropy_bound_default();
  p->asked.entropy_bound.no_self_conditioning = draw(s, 0, 5) == 0;
  p->asked.entropy_bound.max_steps = draw(s, 1, 10);
  p->asked.entropy_bound.stability = draw(s, 0, 2);
  p->asked.canvas_deltas = chance(s, 30);
  p->asked.trace = chance(s, 20);
  if (!p->canvas) p->asked.sampling.logprobs = chance(s, 20);
}

static void make_request(sim *s, sim_request *r) {
  static const int32_t stop_tokens[] = {1, 7};
  weft_request_params *p = &r->params;
  p->model = draw(s, 0, s->config.n_models - 1);
  p->tenant = draw(s, 0, s->config.n_tenants - 1);
  p->domain = (weft_key128){.low = chance(s, 30) ? 1000 : p->tenant, .high = 5};
  make_kind(s, p);
  uint32_t n_vocab = s->fake[p->model].model.n_vocab, base = draw(s, 0, BASES - 1);
  p->n_tokens = chance(s, 20) ? draw(s, 1, 4) : draw(s, 1, s->length_max);
  if (s->repeats == FILED) p->n_tokens = draw(s, 40, s->length_max);
  uint32_t shared = draw(s, 0, p->n_tokens);
  for (uint32_t i = 0; i < p->n_tokens; i++) {
    uint32_t token = i < shared ? (uint32_t)s->base[base][i] : draw(s, 0, 10000);
    r->prompt[i] = (int32_t)(token % n_vocab);
  }
  p->tokens = r->prompt;
  uint64_t kind = weft_mix64(s->seed ^ weft_mix64((uint64_t)(r - s->request) + 64));
  if (kind >> 32 & 1) p->parting[0] = shared;
  if (kind >> 33 & 1) p->parting[1] = p->n_tokens - p->n_tokens / 4;
  if (s->ngrams && !p->canvas && kind % 2 == 0)
    p->asked.draft = (weft_draft){.kind = WEFT_DRAFT_NGRAM,
                                  .n_max = 1 + kind / 2 % 8,
                                  .ngram_least = 1,
                                  .ngram_most = 1 + kind / 16 % 4,
                                  .shadow = kind / 64 % 4 == 0};
  p->max_tokens = chance(s, 15) ? draw(s, 1, 3) : draw(s, 1, s->length_max);
  p->stop_tokens = stop_tokens;
  p->n_stop_tokens = draw(s, 0, 2);
  if (chance(s, 15)) p->n_stop_tokens = 0;
  if (chance(s, 25)) {
    r->rule =
        (sim_rule){.modulus = (int32_t)draw(s, 11, 40), .rest = (int32_t)draw(s, 0, 10), .keep_match = chance(s, 50)};
    p->stop_rule = stop_rule;
    p->stop_self = &r->rule;
  }
  if (chance(s, 20)) p->asked.priority = (int32_t)draw(s, 0, 2);
  p->asked.no_cache = chance(s, 10);
  r->submit_step = chance(s, 40) ? 0 : draw(s, 0, 60);
  r->cancel_step = chance(s, 12) ? r->submit_step + draw(s, 0, 30) : UINT32_MAX;
  r->release_step = chance(s, 5) ? r->submit_step + draw(s, 0, 30) : UINT32_MAX;
  if (chance(s, 8)) p->deadline_us = 1 + draw(s, 0, 60000);
  if (!s->fair) return;
  if (!s->slow) r->submit_step = 0;
  r->cancel_step = r->release_step = UINT32_MAX;
  p->deadline_us = 0;
  uint32_t number = (uint32_t)(r - s->request) + 1; /* by which the watch knows it */
  p->asked.sampling.seed = number << 8 | draw(s, 0, 5);
}

/* Begins with the prompt of an earlier request, whose blocks may be anywhere by now. */
static void make_again(sim *s, sim_request *r, const sim_request *before) {
  weft_request_params *p = &r->params;
  const weft_request_params *q = &before->params;
  uint32_t n = chance(s, 50) ? q->n_tokens : draw(s, 1, q->n_tokens);
  if (p->model != q->model) return;
  memcpy(r->prompt, before->prompt, n * sizeof *r->prompt);
  if (p->n_tokens < n) p->n_tokens = n;
  p->tenant = q->tenant;
  p->domain = q->domain;
  uint32_t later = before->submit_step + draw(s, 10, 200) - r->submit_step;
  r->submit_step += later;
  if (r->cancel_step != UINT32_MAX) r->cancel_step += later;
  if (r->release_step != UINT32_MAX) r->release_step += later;
}

/* Asks for the prompt of another request again: another choice of it. */
static void make_sibling(sim *s, sim_request *r, sim_request *elder) {
  weft_request_params *p = &r->params, *q = &elder->params;
  r->elder = elder;
  r->grouped = elder->grouped = true;
  p->model = q->model;
  p->canvas = q->canvas;
  p->tenant = q->tenant;
  p->domain = q->domain;
  p->asked.no_cache = q->asked.no_cache;
  p->n_tokens = q->n_tokens;
  memcpy(r->prompt, elder->prompt, sizeof r->prompt);
  memcpy(p->parting, q->parting, sizeof p->parting);
  if (p->canvas) p->asked.sampling.logprobs = false;
  p->asked.sampling.choice = draw(s, 0, 5);
  r->submit_step = elder->submit_step + (chance(s, 60) ? 0 : draw(s, 0, 20));
  r->joins = chance_apart(s, (uint64_t)(r - s->request), 60);
}

static uint32_t context_of(const sim *s, uint32_t runner) {
  uint32_t context = s->fake[runner].context_length;
  return s->config.seq_tokens_max < context ? s->config.seq_tokens_max : context;
}

/* ---- a pool that changes its size ---- */

static weft_status resize_store(void *self, uint32_t n_pages) {
  sim *s = self;
  uint32_t n = weft_engine_pool_size(s->engine).n_backed;
  if (n_pages > n && n_pages > s->config.n_pages && weft_mix64(s->seed ^ weft_mix64(s->step + 7)) % 16 == 0)
    return WEFT_E_NO_MEMORY;
  weft_fake_store_resize(s->store, n_pages);
  if (n_pages < s->n_backed_least) s->n_backed_least = n_pages;
  return WEFT_OK;
}

static weft_status copy_in_store(void *self, const weft_page_copy *copy, uint32_t n) {
  weft_fake_store_copy(((sim *)self)->store, copy, n);
  return WEFT_OK;
}

static uint32_t make_pool(sim *s) {
  uint32_t n = s->config.n_pages;
  if (s->fair || !chance_apart(s, 70, 33)) return n;
  uint64_t draws = weft_mix64(s->seed ^ weft_mix64(71));
  uint32_t n_max = n * (1 + (uint32_t)(draws % 3));
  s->pool = (weft_pool_calls){.n_pages_max = n_max,
                              .n_pages_first = n + (uint32_t)(draws >> 8) % (n_max - n + 1),
                              .n_pages_step = 1 + (uint32_t)(draws >> 40) % 40,
                              .resize = resize_store,
                              .copy = copy_in_store,
                              .self = s};
  s->config.pool = &s->pool;
  s->n_backed_least = s->pool.n_pages_first;
  return n_max;
}

static void open_world(sim *s) {
  make_config(s);
  uint32_t kind = draw(s, 0, 99);
  if (kind < 12) make_fair(s);
  if (kind >= 12 && kind < 28) make_filed(s);
  bool crowded = kind >= 28 && chance_apart(s, 1, 25);
  if (crowded) make_crowded(s);
  make_drafter(s);
  make_states(s);
  make_own_drafts(s);
  for (uint32_t b = 0; b < BASES; b++)
    for (uint32_t i = 0; i < SIM_PROMPT_MAX; i++) s->base[b][i] = (int32_t)draw(s, 0, 10000);
  weft_error error = {{0}};
  if (weft_fake_store_open(make_pool(s), 16, &s->store) != WEFT_OK) FAIL(s, "no memory");
  const weft_engine_config *c = &s->config;
  if (weft_fake_store_add_tiers(s->store, c->n_host_pages, c->n_file_pages, s->seed, s->copies_fail))
    FAIL(s, "no memory");
  weft_fake_store_slow_moves(s->store, s->slow_moves);
  if (c->pool != NULL) weft_fake_store_resize(s->store, c->pool->n_pages_first);
  for (uint32_t i = 0; i < s->config.n_models; i++) {
    s->fake[i].store = s->store;
    if (weft_fake_runner_open(&s->fake[i], &s->runner[i]) != WEFT_OK) FAIL(s, "no memory");
  }
  weft_runner *outer[RUNNERS_MAX] = {s->runner[0], s->runner[1], s->runner[2]};
  if (s->fair) {
    uint32_t rows_max = s->fake[0].rows_max;
    if (s->config.rows_per_step < rows_max) rows_max = s->config.rows_per_step;
    watch_open(&s->watch, s->runner[0], rows_max);
    outer[0] = &s->watch.head;
  }
  s->config.runner = outer;
  if (weft_engine_open(&s->config, &s->engine, &error) != WEFT_OK) FAIL(s, "%s", error.text);
  s->n_requests = s->fair || crowded ? REQUESTS_MAX : draw(s, 4, REQUESTS_MAX);
  uint32_t siblings = s->fair || chance(s, 50) ? 0 : draw(s, 10, 80);
  s->n_steps_max = 2000;
  for (uint32_t i = 0; i < s->n_requests; i++) {
    make_request(s, &s->request[i]);
    if (i > 0 && chance(s, s->repeats)) {
      uint32_t n = i < s->n_originals ? i : s->n_originals;
      make_again(s, &s->request[i], &s->request[draw(s, 0, n - 1)]);
    }
    if (i > 0 && chance(s, siblings)) make_sibling(s, &s->request[i], &s->request[i - 1]);
    const weft_request_params *p = &s->request[i].params;
    uint64_t n_work = p->n_tokens + p->max_tokens;
    if (p->canvas) n_work += (uint64_t)p->max_tokens * p->asked.entropy_bound.max_steps;
    s->n_steps_max += 10 * (uint32_t)n_work;
  }
}

static void close_world(sim *s) {
  weft_engine_close(s->engine);
  for (uint32_t i = 0; i < s->config.n_models; i++) s->runner[i]->ops->close(s->runner[i]);
  weft_fake_store_close(s->store);
  for (uint32_t i = 0; i < s->n_requests; i++) {
    free(s->request[i].solo.tokens);
    free(s->request[i].tokens);
  }
}

#endif
