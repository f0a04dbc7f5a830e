/* SPDX-License-Identifier: MIT */
/* Heads of drafters whose drafts are drawn from logits: one that reads the tokens of a few groups alone, and one whose
 * logits depend on the token before (model/blocks.h, model_draft_sizes).
 *
 * Law: a row's draft depends on its hidden row, the token before it and what its slot is drawn with; rows go in groups
 * of at most RUNNER_HEADS_ROWS, which changes nothing. Drafts are drawn in the order of the vocabulary, with the number
 * that the token at their place will be drawn with, as plain rows of the model are. */
#ifndef WEFT_MODEL_RUNNER_RUNNER_HEADS_H
#define WEFT_MODEL_RUNNER_RUNNER_HEADS_H

#include "model/model_internal.h"
#include "model/runner/runner_internal.h"

enum { RUNNER_HEADS_ROWS = 32 /* whose logits there are at a time */ };

/* Memory of the device, but for the last one; all NULL where drafts are drawn as they are without logits. */
typedef struct runner_draft_logits {
  float *row;      /* [rows][n_vocab] */
  float *part;     /* [rows] of what the token before adds to each, or of the centroids' products */
  float *between;  /* [rows][rank] of the token before, or weights of groups, which nobody reads */
  int32_t *groups; /* [rows][n_chosen] */
  uint8_t *bad;    /* [rows] */
  void *scratch;
  uint64_t scratch_bytes;
  weft_sample_result *result; /* [rows] */
  weft_sample_row *asked;     /* [RUNNER_DRAFTS_MAX][rows_max] */
  weft_sample_row *host;      /* the same */
} runner_draft_logits;

struct runner_assist;

/* Whether drafts of this drafter are drawn so. */
bool runner_heads_apply(const struct runner_assist *a);
weft_status runner_heads_open(device_runner *r, struct runner_assist *a);
/* What the drafts of a batch are drawn with. */
weft_status runner_heads_ask(device_runner *r, const weft_batch *batch, uint32_t n_drafts);
/* The logits of draft k for rows [first, ..) of n, as many as there are at a time: in logits.row. */
weft_status runner_heads_logits(device_runner *r, uint32_t first, uint32_t n, uint32_t k);
/* Draft k of n rows, behind those before it. */
weft_status runner_heads_draw(device_runner *r, uint32_t n, uint32_t k);

#endif
