/* SPDX-License-Identifier: MIT */
/* --draft: which requests have drafts (scheduler/draft.h), which models draft for which, and what a request gets that
 * leaves drafts open.
 *
 * Law: this file alone reads the words of the option, and writes the numbers that a request leaves at 0. Drafts change
 * no answer since a row's bits do not depend on the rows beside it; where they may (--no-deterministic), drafts are
 * refused. Without the option no memory is taken and no draft is made, whatever requests ask for. A model that drafts
 * for another is opened after those that are served, as one more model of the same pool; nobody can ask it. It has the
 * vocabulary of the model that it drafts for, token by token. A drafter that reads the keys of the model it drafts for
 * is no model of the pool: it lies beside that one's copies, and its runner asks it. So is the layer of the model's
 * file that guesses ahead. */
#ifndef WEFT_API_DRAFTS_H
#define WEFT_API_DRAFTS_H

#include "api/runtime.h"

/* Sets the model's draft, has_drafts, draft_file, draft_canvas and draft_nextn from what the option says of it, or of
 * all. INVALID with one line. */
weft_status drafts_open(const weft_open_options *options, weft_served_model *model, weft_error *error);
/* Opens the model's draft_file where it is of a drafter that reads the model's keys (model/assistant.h), and loads it,
 * or the layer of the model's own file that drafts (model/nextn.h), once the model is loaded, with what limits
 * the model was opened with (of_model); else does nothing. */
weft_status drafts_open_assistant(weft_served_model *model, weft_error *error);
weft_status drafts_load_assistant(const weft_runtime *runtime, weft_served_model *model, weft_model_limits of_model,
                                  weft_error *error);
/* The next file of a model that drafts and is not open; NULL: there is none. */
const char *drafts_next_file(const weft_runtime *runtime);
/* Whether every model that the option names is there, and whether those that draft can. INVALID with one line. */
weft_status drafts_check(const weft_runtime *runtime, weft_error *error);
/* Gives the engine of each replica its drafter, before it starts. */
weft_status drafts_start(weft_runtime *runtime, weft_error *error);
/* Device memory of the activations of a copy's drafter that reads keys; 0: there is none. */
static inline uint64_t drafts_scratch_bytes(const weft_model_copy *copy) {
  return copy->assistant == NULL ? 0 : weft_model_get_info(copy->assistant)->scratch_bytes;
}
/* Rows with drafts that one step of the model may have; 0: none. */
uint32_t drafts_rows_max(const weft_open_options *options, const weft_served_model *model);
/* What the request leaves open. */
void drafts_fill(const weft_served_model *model, weft_draft *draft);
/* As many drafts as there are, whether they gain or not: to test and to measure. No request may be there. */
void drafts_force(weft_runtime *runtime);
void drafts_print(const weft_runtime *runtime, const weft_served_model *model, weft_text *out);

#endif
