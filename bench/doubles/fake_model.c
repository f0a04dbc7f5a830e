/* SPDX-License-Identifier: MIT */
#include "bench/doubles/fake_model.h"

#include <string.h>

#include "base/random.h"
#include "bench/doubles/canvas_step.h"

enum { SETTLE_STEPS_MAX = 7 }; /* steps within which a position finds its token, if nothing stops before */

uint32_t weft_fake_first_visible(const weft_layer_group *group, uint32_t position) {
  return weft_layer_group_first(group, position);
}

static uint64_t mix_hashes(uint64_t a, uint64_t b) {
  return weft_mix64(a ^ weft_mix64(b + 0x9E3779B97F4A7C15ull));
}

static uint64_t digest_sums(const weft_fake_model *model, const weft_fake_sums *seen) {
  uint64_t h = model->salt;
  for (uint32_t g = 0; g < model->n_groups; g++) h = mix_hashes(h, seen->group[g] + g);
  return h;
}

uint64_t weft_fake_cell(const weft_fake_model *model, uint32_t g, int32_t token, uint32_t position,
                        const weft_fake_sums *seen) {
  uint64_t h = mix_hashes(digest_sums(model, seen), (uint64_t)g << 32 | position);
  return mix_hashes(h, (uint64_t)(uint32_t)token);
}

uint64_t weft_fake_state(const weft_fake_model *model, uint32_t g, uint32_t border, const weft_fake_sums *seen) {
  return mix_hashes(digest_sums(model, seen), ~((uint64_t)g << 32 | border));
}

weft_sampled weft_fake_token(const weft_fake_model *model, const weft_fake_sums *seen, uint32_t position, uint64_t seed,
                             uint32_t choice) {
  weft_draw_key key = {.seed = seed, .choice = choice, .purpose = WEFT_DRAW_TOKEN, .position = position};
  uint64_t h = mix_hashes(digest_sums(model, seen), weft_draw_bits(&key));
  return (weft_sampled){.token = (int32_t)(h % model->n_vocab), .logprob = -(float)(h >> 48) * 0x1p-12f};
}

weft_scored weft_fake_score(const weft_fake_model *model, const weft_fake_sums *seen, int32_t token) {
  uint64_t all = digest_sums(model, seen), own = mix_hashes(all, (uint64_t)(uint32_t)token);
  weft_scored scored = {.logprob = -(float)(own >> 48) * 0x1p-12f, .rank = (uint32_t)(own % 30)};
  if (scored.rank > WEFT_TOP_LOGPROBS_MAX) scored.rank = 0;
  scored.n_top = model->n_vocab < WEFT_TOP_LOGPROBS_MAX ? model->n_vocab : WEFT_TOP_LOGPROBS_MAX;
  for (uint32_t i = 0; i < scored.n_top; i++) {
    scored.top[i] = (weft_logprob){(int32_t)((all + i) % model->n_vocab), -(float)i - (float)(all >> 48) * 0x1p-16f};
  }
  return scored;
}

bool weft_fake_is_bad(const weft_fake_model *model, const weft_fake_sums *seen) {
  if (model->bad_one_in == 0) return false;
  return mix_hashes(digest_sums(model, seen), 0xBAD) % model->bad_one_in == 0;
}

/* ---- canvas ---------------------------------------------------------------------------------- */

size_t weft_fake_canvas_bytes(uint32_t n_canvas) {
  size_t words = 5 + WEFT_STABILITY_MAX + 1 + 1;
  return n_canvas * (words * 4 + 1);
}

void weft_fake_canvas_open(weft_fake_canvas *canvas, void *memory, uint32_t n_canvas) {
  int32_t *at = memory;
  *canvas = (weft_fake_canvas){.current = at, .host = {.n = n_canvas}};
  weft_host_canvas *host = &canvas->host;
  host->next = at += n_canvas;
  host->argmax = at += n_canvas;
  host->drawn = at += n_canvas;
  host->fresh = at += n_canvas;
  host->history = at += n_canvas;
  at += (size_t)WEFT_STABILITY_MAX * n_canvas;
  host->order = (uint32_t *)at;
  host->entropy = (float *)(void *)(at + n_canvas);
  host->accepted = (uint8_t *)(at + (size_t)2 * n_canvas);
}

static uint64_t hash_tokens(const int32_t *tokens, uint32_t n) {
  uint64_t h = n;
  for (uint32_t i = 0; i < n; i++) h = mix_hashes(h, (uint64_t)(uint32_t)tokens[i]);
  return h;
}

static weft_draw_key draw_key(const weft_sampling *sampling, weft_draw_purpose purpose, uint32_t position,
                              uint32_t step) {
  return (weft_draw_key){
      .seed = sampling->seed, .choice = sampling->choice, .purpose = purpose, .position = position, .step = step};
}

static void begin_canvas(const weft_fake_model *model, weft_fake_canvas *c, uint32_t position,
                         const weft_sampling *sampling) {
  c->done = false;
  c->soft = 0;
  c->host.n_history = 0;
  for (uint32_t i = 0; i < model->n_canvas; i++) {
    weft_draw_key key = draw_key(sampling, WEFT_DRAW_INIT, position + i, 0);
    c->host.next[i] = (int32_t)weft_draw_below(&key, model->n_vocab);
  }
  c->first = hash_tokens(c->host.next, model->n_canvas);
}

/* argmax, draw and entropy of every position: a position settles after a number of steps of its
 * own. */
static void fill_statistics(const weft_fake_model *model, weft_fake_canvas *c, uint64_t seen, uint32_t position,
                            const weft_sampling *sampling) {
  uint64_t state = mix_hashes(mix_hashes(seen, hash_tokens(c->current, model->n_canvas)), c->soft);
  for (uint32_t i = 0; i < model->n_canvas; i++) {
    uint64_t own = mix_hashes(mix_hashes(seen, c->first), position + i);
    bool settled = c->step >= own % SETTLE_STEPS_MAX;
    uint64_t h = settled ? own >> 8 : mix_hashes(mix_hashes(state, i), c->step);
    c->host.argmax[i] = (int32_t)(h % model->n_vocab);
    c->host.entropy[i] = settled ? 0.001f : 0.02f + (float)(h >> 44) * 0x1p-20f;
    weft_draw_key key = draw_key(sampling, WEFT_DRAW_CANVAS, position + i, c->step);
    uint64_t draw = weft_draw_bits(&key);
    c->host.drawn[i] = settled ? c->host.argmax[i] : (int32_t)((draw ^ h) % model->n_vocab);
    key = draw_key(sampling, WEFT_DRAW_RENOISE, position + i, c->step);
    c->host.fresh[i] = (int32_t)weft_draw_below(&key, model->n_vocab);
  }
}

void weft_fake_canvas_step(const weft_fake_model *model, weft_fake_canvas *c, const weft_fake_sums *seen,
                           uint32_t position, const weft_sampling *sampling, const weft_entropy_bound *params,
                           uint32_t step) {
  size_t n_bytes = (size_t)model->n_canvas * sizeof *c->current;
  if (step == 0) begin_canvas(model, c, position, sampling);
  c->step = step;
  memcpy(c->current, c->host.next, n_bytes);
  fill_statistics(model, c, digest_sums(model, seen), position, sampling);
  weft_canvas_result result = weft_host_canvas_step(&c->host, params, step);
  c->soft = params->no_self_conditioning ? 0 : mix_hashes(hash_tokens(c->host.argmax, model->n_canvas), step);
  c->done = result.done != 0;
  c->stopped = result.stopped != 0;
  c->n_accepted = result.n_accepted;
  c->mean_entropy = result.mean_entropy;
  c->temperature = weft_entropy_bound_temperature(params, step);
}
