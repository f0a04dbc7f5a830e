/* SPDX-License-Identifier: MIT */
/* A request of the simulation, and what the engine and the runners call: a rule that ends an answer, a law of the time
 * of a step. */
#ifndef WEFT_TESTS_SIM_REQUEST_H
#define WEFT_TESTS_SIM_REQUEST_H

#include "base/random.h"
#include "scheduler/engine.h"
#include "tests/support/fake_solo.h"

enum { SIM_PROMPT_MAX = 96 };

typedef struct sim_rule {
  int32_t modulus, rest;
  bool keep_match;
} sim_rule;

/* Times of a step of one runner, in us. */
typedef struct sim_law {
  uint32_t step, row, output, key;
  uint32_t stall_one_in; /* about one step in so many is held up between devices and takes 200 times as long; 0: none */
} sim_law;

typedef struct sim_request {
  weft_request_params params;
  weft_request *handle;
  int32_t prompt[SIM_PROMPT_MAX];
  sim_rule rule;
  struct sim_request *elder; /* a request of the same prompt, to fork when it is still there */
  bool grouped;
  bool joins;  /* comes in one submission with the request before it */
  bool shrunk; /* first of a submission that was too large */
  solo_answer solo;
  uint32_t submit_step, cancel_step, release_step; /* UINT32_MAX: never */
  uint32_t cancelled_in;                           /* step after which it must be over */
  int32_t *tokens;
  uint32_t n_tokens;
  uint32_t next_block, next_step; /* canvas events */
  bool refused, cancelled, finished, released, dropped_events;
  weft_event end;
} sim_request;

/* Tokens that a tenant took and has not given back, and the least that this less its allowance was:
 * from there on the law of its account counts. */
typedef struct sim_tokens {
  double net, least;
} sim_tokens;

static uint32_t stop_rule(void *self, const int32_t *tokens, uint32_t n) {
  const sim_rule *rule = self;
  for (uint32_t i = 0; i < n; i++) {
    if (tokens[i] % rule->modulus != rule->rest) continue;
    if (!rule->keep_match) return i;
    return i + 1 == n ? WEFT_STOP_KEEP_ALL : i + 1;
  }
  return n;
}

/* More keys and outputs than rows, in places: what they cost is learned. */
static uint64_t time_of(void *self, const weft_batch *batch) {
  const sim_law *law = self;
  uint64_t us = law->step + (uint64_t)law->row * batch->n_rows;
  for (uint32_t i = 0; i < batch->n_segments; i++) {
    const weft_segment *segment = &batch->segment[i];
    us += (uint64_t)law->key * segment->kv_len * segment->n_rows / 16;
    if (weft_segment_denoises(segment)) us += (uint64_t)law->output * segment->n_rows;
  }
  bool stalls = law->stall_one_in > 0 && weft_mix64(batch->number + 1) % law->stall_one_in == 0;
  return stalls ? 200 * us : us;
}

#endif
