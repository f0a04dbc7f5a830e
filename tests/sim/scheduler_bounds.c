/* SPDX-License-Identifier: MIT */
/* The bounds that docs/scheduler.md promises, held in many small worlds: one to three lanes over one pool that is
 * nearly full, tenants that flood one lane or all of them, and a light tenant that sends one short request after
 * another on lanes of its choice. Judged in steps, under a virtual clock.
 *
 *   scheduler_bounds [--seeds FIRST..LAST] [--seed N]
 *
 * Law. Among tenants whose weights sum to W, none of a higher class, the request of the light tenant, of weight w, has
 * its first token after at most A * W / w + 4 steps, where A is how many it takes alone (docs/scheduler.md, "What
 * tenants notice of each other"). In popular worlds all share one cache, and another tenant, maybe of a lower class, has
 * just begun the prompt that the light one then sends: it may follow for WEFT_FOLLOW_PLANS more. In heavy worlds the
 * light tenant has most of the weight, its prompts take 20 to 40 steps alone, and there are pages enough; in the others
 * all weights are equal. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/random.h"
#include "scheduler/waiting.h"
#include "tests/support/amount.h"
#include "tests/support/lanes.h"

enum { TENANTS = 5, STREAMS = 40, PROMPT_MAX = 96, LONG_MAX = 480, VOCAB = 200, STEP_US = 1000 };
enum { LIGHT = 0, PROBES = 12, CALLS = 32 }; /* of 33 steps other lanes have one, whatever the weights */

typedef struct stream {
  weft_request *handle;
  uint32_t lane, tenant;
} stream;

typedef struct world {
  lanes lanes;
  uint64_t now_us;
  uint32_t n_tenants, rows, n_streams;
  bool canvases, popular, heavy;
  weft_tenant_config tenant[TENANTS];
  stream stream[STREAMS];
  uint32_t waited_most;
} world;

static uint32_t draw(world *w, uint32_t low, uint32_t high) {
  return lanes_draw(&w->lanes, low, high);
}

static void open_world(world *w, uint64_t seed) {
  memset(w, 0, sizeof *w);
  w->lanes.seed = seed;
  w->lanes.n = draw(w, 1, LANES_MAX);
  w->n_tenants = draw(w, 2, TENANTS);
  w->rows = draw(w, 48, 96);
  w->n_streams = draw(w, 12, STREAMS);
  w->canvases = draw(w, 0, 3) == 0;
  w->popular = draw(w, 0, 2) == 0;
  w->heavy = !w->popular && draw(w, 0, 2) == 0;
  if (w->heavy) w->rows = draw(w, 8, 12);
  if (w->heavy) w->tenant[LIGHT].weight = draw(w, 4, 40) * (w->n_tenants - 1);
  for (uint32_t i = 1; i < w->n_tenants; i++) w->tenant[i].priority_class = w->popular ? -(int32_t)draw(w, 0, 1) : 0;
  const uint32_t context = w->heavy ? 512 : 256;
  static const uint64_t slices[] = {0, 5 * STEP_US, 50 * STEP_US, 1000 * STEP_US};
  const weft_engine_config config = {.n_pages = w->heavy ? 480 : draw(w, w->popular ? 48 * w->n_tenants : 60, 240),
                                     .rows_per_step = w->rows,
                                     .running_max = draw(w, w->n_tenants + 1, 24),
                                     .waiting_max = 1000,
                                     .n_tenants = w->n_tenants,
                                     .tenant = w->tenant,
                                     .seq_tokens_max = context,
                                     .overlap = draw(w, 0, 1) == 0,
                                     .slice_us = slices[draw(w, 0, 3)]};
  weft_fake_config fakes[LANES_MAX];
  for (uint32_t i = 0; i < w->lanes.n; i++) {
    fakes[i] = (weft_fake_config){.autoregressive = true,
                                  .n_slots = draw(w, w->n_tenants, config.running_max),
                                  .rows_max = w->rows,
                                  .depth = 2,
                                  .context_length = context,
                                  .model = {.salt = 5 + i,
                                            .n_vocab = VOCAB,
                                            .n_canvas = 8,
                                            .n_groups = 2,
                                            .group = {{.block_tokens = 16}, {.block_tokens = 8, .window = 24}}}};
  }
  lanes_open(&w->lanes, fakes, config);
}

static void step(world *w) {
  lanes_step(&w->lanes, w->now_us);
  w->now_us += STEP_US;
}

static weft_request *submit_prompt(world *w, uint32_t lane, uint32_t tenant, const int32_t *prompt, uint32_t n_tokens,
                                   uint32_t max_tokens) {
  weft_request_params p = lanes_request(prompt, n_tokens, max_tokens, 6);
  p.model = lane;
  p.tenant = tenant;
  p.domain.low = w->popular ? 1 : tenant + 1;
  p.canvas = w->canvases && tenant != LIGHT && draw(w, 0, 1) == 0;
  return lanes_submit(&w->lanes, &p, w->now_us);
}

static weft_request *submit(world *w, uint32_t lane, uint32_t tenant, uint32_t n_tokens, uint32_t max_tokens) {
  int32_t prompt[PROMPT_MAX];
  for (uint32_t i = 0; i < n_tokens; i++) prompt[i] = (int32_t)draw(w, 0, VOCAB - 1);
  return submit_prompt(w, lane, tenant, prompt, n_tokens, max_tokens);
}

/* Whether there is a first token, and whether it is over. */
static bool look(world *w, weft_request *request, bool *ended) {
  weft_event event;
  bool first = false;
  while (weft_engine_poll(w->lanes.engine, request, &event) == WEFT_OK) {
    first = first || event.kind == WEFT_EVENT_TOKENS;
    if (event.kind == WEFT_EVENT_FINISHED) *ended = true;
  }
  return first;
}

/* Every stream that has ended is followed by the next one of its tenant. */
static void flood(world *w) {
  for (uint32_t i = 0; i < w->n_streams; i++) {
    stream *s = &w->stream[i];
    bool ended = s->handle == NULL;
    if (!ended) (void)look(w, s->handle, &ended);
    if (!ended) continue;
    weft_engine_release(w->lanes.engine, s->handle);
    s->handle = submit(w, s->lane, s->tenant, draw(w, 8, PROMPT_MAX), draw(w, 20, 120));
  }
}

/* As many steps as the light tenant's prompt of n rows may wait for its first token. */
static uint32_t most_steps(const world *w, uint32_t n) {
  uint32_t alone = (n + w->rows - 1) / w->rows, weight = w->heavy ? w->tenant[LIGHT].weight : 1;
  uint32_t of_others = (alone * (w->n_tenants - 1) + weight - 1) / weight, of_turns = 0;
  if (w->lanes.n > 1) of_turns = (alone + CALLS - 1) / CALLS;
  return alone + (of_others > of_turns ? of_others : of_turns) + 4;
}

static void probe(world *w) {
  weft_engine_stats before, after;
  bool ended = false, first = false;
  int32_t prompt[LONG_MAX];
  uint32_t lane = draw(w, 0, w->lanes.n - 1), n = w->popular ? draw(w, 40, PROMPT_MAX) : draw(w, 2, 12);
  if (w->heavy) n = draw(w, 20 * w->rows, 40 * w->rows);
  uint32_t most = most_steps(w, n);
  weft_request *leader = NULL;
  for (uint32_t i = 0; i < n; i++) prompt[i] = (int32_t)draw(w, 0, VOCAB - 1);
  if (w->popular) {
    most += WEFT_FOLLOW_PLANS;
    leader = submit_prompt(w, lane, draw(w, 1, w->n_tenants - 1), prompt, n, 20);
    for (uint32_t i = draw(w, 0, 4); i > 0; i--) flood(w), step(w);
  }
  weft_engine_get_stats(w->lanes.engine, &before);
  weft_request *request = submit_prompt(w, lane, LIGHT, prompt, n, 1 + draw(w, 0, 2));
  while (!ended) {
    flood(w);
    step(w);
    first = look(w, request, &ended) || first;
    weft_engine_get_stats(w->lanes.engine, &after);
    uint32_t waited = (uint32_t)(after.n_steps - before.n_steps);
    if (!first && waited > most) {
      FAIL(
          &w->lanes,
          "%u lanes, %u tenants: a light request waits for its first token longer than %u steps; %u preemptions so far",
          w->lanes.n, w->n_tenants, most, (uint32_t)after.n_preemptions);
    }
    if (!first && waited > w->waited_most) w->waited_most = waited;
  }
  weft_engine_release(w->lanes.engine, request);
  if (leader != NULL) weft_engine_release(w->lanes.engine, leader);
}

static uint32_t run_world(uint64_t seed) {
  static world w;
  open_world(&w, seed);
  bool one_lane = draw(&w, 0, 1) == 0; /* all floods on the same lane */
  for (uint32_t i = 0; i < w.n_streams; i++) {
    w.stream[i].tenant = draw(&w, 1, w.n_tenants - 1);
    w.stream[i].lane = one_lane ? 0 : draw(&w, 0, w.lanes.n - 1);
  }
  for (uint32_t i = draw(&w, 20, 60); i > 0; i--) flood(&w), step(&w);
  for (uint32_t i = 0; i < PROBES; i++) {
    probe(&w);
    for (uint32_t k = draw(&w, 2 * w.n_tenants, 20); k > 0; k--) flood(&w), step(&w);
  }
  for (uint32_t i = 0; i < w.n_streams; i++) weft_engine_release(w.lanes.engine, w.stream[i].handle);
  while (!weft_engine_idle(w.lanes.engine)) step(&w);
  uint32_t waited = w.waited_most;
  lanes_close(&w.lanes);
  return waited;
}

int main(int argc, char **argv) {
  const seeds s = seeds_open(test_amount(60, 150, 20000), argc, argv);
  weft_log_set_level(WEFT_LOG_ERROR);
  uint32_t most = 0;
  for (unsigned long long seed = s.first; seed <= s.last; seed++) {
    uint32_t waited = run_world(seed);
    if (waited > most) most = waited;
  }
  (void)printf("%llu worlds: the longest wait for a first token was %u steps\n", s.last - s.first + 1, most);
  return 0;
}
