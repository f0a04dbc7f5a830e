/* SPDX-License-Identifier: MIT */
/* Scored rows: how likely a prompt's own tokens were. Each row is asked for the logit of the token that follows it in
 * the prompt and, as a row with logprobs, for the sum and the most likely tokens; logits live for one piece of
 * logit_rows_max rows. What a request asks of its answer (temperature, penalties, biases, formats) and what a model may
 * never draw does not count here: the numbers are the model's own log-softmax. */
#include <string.h>

#include "model/runner/runner_internal.h"

enum { ROW_WORDS = sizeof(weft_sample_row) / 4 };

bool runner_find_given(const device_runner *r, runner_flight *f, const weft_batch *batch) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < batch->n_segments; i++) {
    const weft_segment *segment = &batch->segment[i];
    const runner_slot *s = &r->slots[segment->slot];
    uint64_t first = (uint64_t)segment->kv_len + segment->first_output + 1;
    uint32_t n_scored = weft_segment_n_scored(segment);
    if (n_scored == 0) continue;
    if (first + n_scored > s->n_history) return false;
    memcpy(f->given + n, s->history + first, n_scored * sizeof *f->given);
    n += n_scored;
  }
  return true;
}

/* Scored rows [first, first + n) through the head. The logits of given tokens are taken before sampling, which
 * overwrites them. */
static weft_status score_rows(device_runner *r, const runner_flight *f, uint32_t first, uint32_t n) {
  weft_device *d = r->last;
  uint64_t n_vocab = r->info.n_vocab;
  for (uint32_t j = 0; j < n; j++) {
    weft_sampling_ask_score((weft_sample_row *)(void *)(r->asked + (uint64_t)j * ROW_WORDS));
    r->given_at[j] = (int32_t)(j * n_vocab + (uint32_t)f->given[first + j]);
  }
  weft_move_args move = {.to = (int32_t *)(void *)(r->d_given_logit + first),
                         .from = (const int32_t *)(const void *)r->d_logits,
                         .from_at = r->d_given_at,
                         .n_rows = n};
  weft_sample_args sample = runner_sample_args(r, r->d_judged + first, n);
  weft_status status = weft_device_upload(d, r->d_asked, r->asked, (uint64_t)n * ROW_WORDS * sizeof *r->asked);
  if (status == WEFT_OK) status = weft_device_upload(d, r->d_given_at, r->given_at, n * sizeof *r->given_at);
  if (status == WEFT_OK) {
    const float *h = r->d_hidden + (uint64_t)(f->outputs.n_logits + first) * r->n_hidden;
    status = runner_make_logits(r, h, r->d_logits, n);
  }
  if (status == WEFT_OK) status = weft_move(d, &move);
  return status == WEFT_OK ? weft_sample(d, &sample) : status;
}

weft_status runner_score(device_runner *r, runner_flight *f) {
  weft_status status = WEFT_OK;
  uint32_t most = INT32_MAX / r->info.n_vocab; /* places of logits are numbers of 31 bits */
  if (most > r->logit_rows_max) most = r->logit_rows_max;
  for (uint32_t first = 0, n; first < f->outputs.n_scored && status == WEFT_OK; first += n) {
    uint32_t left = f->outputs.n_scored - first;
    n = left < most ? left : most;
    status = score_rows(r, f, first, n);
  }
  return status;
}

void runner_take_scores(device_runner *r, runner_flight *f) {
  for (uint32_t j = 0; j < f->outputs.n_scored; j++) {
    uint32_t index = f->output_segment[f->outputs.n_logits + j];
    if (runner_slot_of(r, f, index) == NULL) continue;
    weft_segment_result *result = &f->result[index];
    if (result->scored == NULL) result->scored = f->scored + j;
    if (f->judged[j].bad != 0) result->bad = true;
    weft_sampling_take_score(&f->judged[j], f->given[j], f->given_logit[j], &f->scored[j]);
  }
}
