/* SPDX-License-Identifier: MIT */
/* Drafts of a drafter that reads its target's keys (model/assistant.h), or of the layer of its file that guesses ahead
 * (model/nextn.h), made by the target's runner; the ways of both: runner_ways.h.
 *
 * Law: after each step that drew tokens a slot's newest hidden row, the one that its last token was drawn from, is kept
 * on the device; a run that is only looked at (batch.h, peeks) leaves it. runner_draft then makes drafts of any number
 * of slots with nothing in flight, one row each, k drafts one after another, and waits for them once. It reads the
 * pages that the batch names and writes none. With a temperature a draft is drawn with the number that the token at its
 * place will be drawn with, so equal distributions give equal tokens; else it is the likeliest. A slot whose hidden row
 * is not there (its last token was given to it) gets no drafts: -1 in their place. */
#ifndef WEFT_MODEL_RUNNER_RUNNER_ASSIST_H
#define WEFT_MODEL_RUNNER_RUNNER_ASSIST_H

#include "model/runner/runner_internal.h"

/* config.assistant may be NULL: then *out is NULL. After the memory of slots and flights. */
weft_status runner_assist_open(device_runner *r, struct runner_assist **out);
/* Its device memory is freed with that of the runner. NULL is fine. */
void runner_assist_close(device_runner *r, struct runner_assist *assist);
uint64_t runner_assist_bytes(const struct runner_assist *assist);
/* Whether the drafts of the next step were made call by call, or recorded as graphs: the next ones are faster. Once. */
bool runner_assist_was_new(device_runner *r);
/* Whether the hidden row of every row of a step is wanted, behind those that have outputs. */
bool runner_assist_shows_all(const device_runner *r);
/* A step was enqueued: keeps the hidden rows that drafts need, before a later step writes over them. */
weft_status runner_assist_step(device_runner *r, const runner_flight *flight, const runner_step *step);
/* The flight has landed: of each slot the row of its last token. */
weft_status runner_assist_take(device_runner *r, const runner_flight *flight);
/* runner.h, draft. */
weft_status runner_draft(weft_runner *base, const weft_batch *batch, uint32_t n_drafts, int32_t *out);

#endif
