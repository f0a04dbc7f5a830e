/* SPDX-License-Identifier: MIT */
/* A tenant that decodes a row or two beside others that fill every step, in many small worlds: one or two models,
 * canvases, long prompts and decode rows of two to four tenants with weights. The device follows a device_time, the clock is
 * virtual.
 *
 *   test_sim_scheduler_light [--seeds FIRST..LAST] [--seed N]
 *
 * Laws (light.h, docs/scheduler.md "What tenants notice of each other"), once the cost model knows the device:
 *
 *   pace      a step with decode rows of the light tenant is no longer than its limit and one piece of the others;
 *   speed     of one model a token comes within the longest such step on average over the whole run;
 *   progress  the others get rows at least every second step;
 *   cost      of the device's time the others lose no more than a quarter to shorter steps, beside the same world
 *             without the light tenant (docs/scheduler.md says why so much). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/random.h"
#include "scheduler/pace.h"
#include "scheduler/policy.h"
#include "tests/support/amount.h"
#include "tests/support/lanes.h"

enum { LANES = 2, TENANTS = 4, STREAMS = 48, LIGHT = 0, VOCAB = 200, CONTEXT = 256, CANVAS = 16, ROWS = 512 };
enum { WARM_STEPS = 200, JUDGED_STEPS = 300, STEPS_MAX = 4000, ANSWER_MAX = 240 };

typedef struct stream {
  weft_request *handle;
  bool decodes;                /* its first token is there */
  uint32_t lane, tenant, kind; /* 0: decodes, 1: canvases, 2: long prompts */
} stream;

/* What the device was given last, and how long that takes. */
typedef struct device {
  uint32_t fixed_us, row_us, output_us, n_decode;
  uint64_t us, fixed_sum_us, sum_us;
} device;

typedef struct world {
  lanes lanes;
  uint64_t now_us;
  uint32_t n_tenants, n_streams, n_light, weights, last_lane;
  device device[LANES];
  weft_tenant_config tenant[TENANTS];
  stream stream[STREAMS];
} world;

static bool verbose;

static uint32_t draw(world *w, uint32_t low, uint32_t high) {
  return lanes_draw(&w->lanes, low, high);
}

static uint64_t device_time(void *self, const weft_batch *batch) {
  device *d = self;
  uint32_t n_outputs = 0;
  d->n_decode = 0;
  for (uint32_t i = 0; i < batch->n_segments; i++) {
    const weft_segment *s = &batch->segment[i];
    n_outputs += s->n_outputs;
    d->n_decode += weft_segment_n_sampled(s) == 1 && s->n_rows == 1;
  }
  d->us = d->fixed_us + (uint64_t)d->row_us * batch->n_rows + (uint64_t)d->output_us * n_outputs;
  d->fixed_sum_us += d->fixed_us;
  d->sum_us += d->us;
  return d->us;
}

static double decode_us(const device *d, uint32_t n) {
  return d->fixed_us + (double)n * (d->row_us + d->output_us);
}

/* ---- a world ----------------------------------------------------------------------------------- */

static void open_world(world *w, uint64_t seed) {
  memset(w, 0, sizeof *w);
  w->lanes.seed = seed;
  w->lanes.n = draw(w, 1, LANES);
  w->n_tenants = draw(w, 2, TENANTS);
  w->n_streams = draw(w, 20, STREAMS);
  w->n_light = draw(w, 1, 2);
  for (uint32_t i = 0; i < w->n_tenants; i++) w->weights += w->tenant[i].weight = draw(w, 1, 3);
  const weft_engine_config config = {.n_pages = STREAMS * CONTEXT / 16 + 64,
                                     .rows_per_step = ROWS,
                                     .running_max = STREAMS,
                                     .waiting_max = 1000,
                                     .n_tenants = w->n_tenants,
                                     .tenant = w->tenant,
                                     .seq_tokens_max = CONTEXT,
                                     .no_prefix_cache = true,
                                     .overlap = draw(w, 0, 1) == 0};
  weft_fake_config fakes[LANES];
  for (uint32_t i = 0; i < w->lanes.n; i++) {
    w->device[i] = (device){.fixed_us = draw(w, 100, 1000), .row_us = draw(w, 10, 60), .output_us = draw(w, 0, 20)};
    fakes[i] = (weft_fake_config){
        .autoregressive = true,
        .n_slots = STREAMS,
        .rows_max = ROWS,
        .depth = 2,
        .context_length = CONTEXT,
        .law = device_time,
        .law_self = &w->device[i],
        .model = {.salt = 5 + i, .n_vocab = VOCAB, .n_canvas = CANVAS, .n_groups = 1, .group = {{.block_tokens = 16}}}};
  }
  lanes_open(&w->lanes, fakes, config);
  uint32_t kinds = draw(w, 1, 7); /* a bit for each that comes */
  for (uint32_t i = 0; i < w->n_streams; i++) {
    stream *s = &w->stream[i];
    s->tenant = i < w->n_light                      ? LIGHT
                : i - w->n_light < w->n_tenants - 1 ? 1 + i - w->n_light
                                                    : draw(w, 1, w->n_tenants - 1);
    s->lane = i < w->n_light ? 0 : draw(w, 0, w->lanes.n - 1);
    do s->kind = s->tenant == LIGHT ? 0 : draw(w, 0, 2);
    while (s->tenant != LIGHT && (kinds >> s->kind & 1) == 0);
  }
}

static void close_world(world *w) {
  for (uint32_t i = 0; i < w->n_streams; i++) {
    if (w->stream[i].handle != NULL) weft_engine_release(w->lanes.engine, w->stream[i].handle);
  }
  while (!weft_engine_idle(w->lanes.engine)) (void)weft_engine_step(w->lanes.engine, ++w->now_us);
  lanes_close(&w->lanes);
}

/* The prompts of the light tenant have one token, so that every row of it is like a decode row. */
static weft_request *submit(world *w, const stream *s) {
  static const uint32_t shortest[] = {2, 2, 100}, longest[] = {20, 20, 200};
  int32_t prompt[CONTEXT];
  uint32_t n = s->tenant == LIGHT ? 1 : draw(w, shortest[s->kind], longest[s->kind]);
  for (uint32_t i = 0; i < n; i++) prompt[i] = (int32_t)draw(w, 0, VOCAB - 1);
  uint32_t max_tokens = s->tenant == LIGHT ? ANSWER_MAX : s->kind == 2 ? 1 : draw(w, 40, 160);
  weft_request_params p = lanes_request(prompt, n, max_tokens, 8);
  p.model = s->lane;
  p.tenant = s->tenant;
  p.domain.low = s->tenant + 1;
  p.canvas = s->kind == 1;
  return lanes_submit(&w->lanes, &p, w->now_us);
}

/* Every stream that has ended is followed by the next one. Tokens of the light tenant since the last look. */
static uint32_t feed(world *w, bool with_light) {
  uint32_t n_tokens = 0;
  for (uint32_t i = with_light ? 0 : w->n_light; i < w->n_streams; i++) {
    stream *s = &w->stream[i];
    weft_event event;
    bool ended = s->handle == NULL;
    while (!ended && weft_engine_poll(w->lanes.engine, s->handle, &event) == WEFT_OK) {
      if (event.kind == WEFT_EVENT_TOKENS && s->tenant == LIGHT) n_tokens += event.n;
      s->decodes = s->decodes || event.kind == WEFT_EVENT_TOKENS;
      ended = event.kind == WEFT_EVENT_FINISHED;
    }
    if (!ended) continue;
    if (s->handle != NULL) weft_engine_release(w->lanes.engine, s->handle);
    s->handle = submit(w, s);
    s->decodes = false;
  }
  return n_tokens;
}

/* Rows of the light tenant that the step was given; *others: of all others. */
static uint32_t step(world *w, uint64_t *others) {
  weft_tenant_stats before, after;
  weft_engine_stats all_before, all_after;
  weft_engine_get_tenant_stats(w->lanes.engine, LIGHT, &before);
  weft_engine_get_stats(w->lanes.engine, &all_before);
  for (uint32_t i = 0; i < w->lanes.n; i++) w->device[i].us = 0;
  lanes_step(&w->lanes, w->now_us);
  for (uint32_t i = 0; i < w->lanes.n; i++) {
    w->now_us += w->device[i].us;
    if (w->device[i].us > 0) w->last_lane = i;
  }
  weft_engine_get_tenant_stats(w->lanes.engine, LIGHT, &after);
  weft_engine_get_stats(w->lanes.engine, &all_after);
  uint32_t own = (uint32_t)(after.n_rows - before.n_rows);
  *others = all_after.n_rows - all_before.n_rows - own;
  return own;
}

/* ---- the laws ---------------------------------------------------------------------------------- */

/* Times the fair time of its rows: its share, or the turns of the models. */
static double fair(const world *w) {
  double share = (double)w->weights / w->tenant[LIGHT].weight;
  return share > w->lanes.n ? share : w->lanes.n;
}

/* All its streams decode: where one of them only begins there is less to keep pace with. */
static bool light_decodes(const world *w) {
  for (uint32_t i = 0; i < w->n_light; i++) {
    if (!w->stream[i].decodes) return false;
  }
  return true;
}

/* One canvas and its commit, or the chunk of a prompt. */
static double piece_us(const device *d) {
  return 2.0 * CANVAS * (d->row_us + d->output_us);
}

static void check_pace(world *w, double limit) {
  const device *d = &w->device[0];
  if ((double)d->us <= 1.1 * limit + piece_us(d)) return;
  FAIL(&w->lanes, "a step with decode rows of a light tenant takes %llu us; alone %.0f, the limit %.0f, a piece %.0f",
       (unsigned long long)d->us, decode_us(d, w->n_light), limit, piece_us(d));
}

static double run_with_light(world *w) {
  const device *d = &w->device[0];
  uint64_t start_us = 0, n_tokens = 0, others = 0, fixed = 0, total = 0;
  uint32_t n_judged = 0, idle = 0; /* steps with rows of the light tenant, after those that warm up too */
  double most = 0.0;
  for (uint32_t i = 0; i < STEPS_MAX && n_judged < WARM_STEPS + JUDGED_STEPS; i++) {
    n_tokens += feed(w, true);
    uint32_t own = step(w, &others);
    idle = others == 0 ? idle + 1 : 0;
    if (i > 0 && idle > w->lanes.n) FAIL(&w->lanes, "the others got no row in %u steps", idle);
    if (own == 0 || w->last_lane != 0 || !light_decodes(w)) continue;
    n_judged += 1;
    if (n_judged == WARM_STEPS) start_us = w->now_us, n_tokens = 0, fixed = d->fixed_sum_us, total = d->sum_us;
    if (n_judged <= WARM_STEPS) continue;
    double limit = WEFT_LIGHT_FACTOR * fair(w) / w->lanes.n * decode_us(d, w->n_light);
    double least = WEFT_LIGHT_FACTOR * decode_us(d, d->n_decode);
    if (limit < least) limit = least;
    if (limit > most) most = limit;
    check_pace(w, limit);
  }
  if (n_tokens == 0) FAIL(&w->lanes, "the light tenant gets no tokens");
  double mean_us = (double)(w->now_us - start_us) * w->n_light / (double)n_tokens, slowest_us = most + piece_us(d);
  if (verbose) (void)printf("%.0f us a token of %.0f, alone %.0f\n", mean_us, slowest_us, decode_us(d, w->n_light));
  if (w->lanes.n == 1 && mean_us > 1.1 * slowest_us)
    FAIL(&w->lanes, "%.0f us a token, the limit is %.0f", mean_us, slowest_us);
  return 1.0 - (double)(d->fixed_sum_us - fixed) / (double)(d->sum_us - total);
}

/* Of the first model's time, the part that is not spent on what every step costs. */
static double run_without_light(world *w) {
  uint64_t others, fixed = 0, total = 0;
  for (uint32_t i = 0; i < WARM_STEPS + JUDGED_STEPS; i++) {
    (void)feed(w, false);
    (void)step(w, &others);
    if (i == WARM_STEPS) fixed = w->device[0].fixed_sum_us, total = w->device[0].sum_us;
  }
  fixed = w->device[0].fixed_sum_us - fixed;
  total = w->device[0].sum_us - total;
  return total == 0 ? 0.0 : 1.0 - (double)fixed / (double)total;
}

static void run_world(uint64_t seed) {
  static world w;
  open_world(&w, seed);
  double with = run_with_light(&w);
  close_world(&w);
  open_world(&w, seed);
  double without = run_without_light(&w);
  if (verbose) (void)printf("for rows %.1f %% of the time, %.1f %% without\n", 100.0 * with, 100.0 * without);
  if (with < 0.75 * without) FAIL(&w.lanes, "the others lose more than a quarter: %.3f of %.3f", with, without);
  close_world(&w);
}

int main(int argc, char **argv) {
  const seeds s = seeds_open(test_amount(25, 30, 5000), argc, argv);
  weft_log_set_level(WEFT_LOG_ERROR);
  verbose = s.one;
  for (unsigned long long seed = s.first; seed <= s.last; seed++) run_world(seed);
  (void)printf("%llu worlds\n", s.last - s.first + 1);
  return 0;
}
