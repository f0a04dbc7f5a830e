/* SPDX-License-Identifier: MIT */
/* What the ways of drafting of a runner share (runner_assist.c), and each of them: a drafter that reads the model's
 * keys (runner_assist.c, model/assistant.h), the layer of the model's file that guesses ahead (runner_nextn.c,
 * runner_near.c), and one that fills blocks (runner_dflash.c). Private to these files and to runner_heads.c.
 *
 * Law: a way gives, for draft k of some rows, the rows that the head reads; what is drawn from them, and what becomes
 * of it, is the same for all. */
#ifndef WEFT_MODEL_RUNNER_RUNNER_WAYS_H
#define WEFT_MODEL_RUNNER_RUNNER_WAYS_H

#include "model/runner/runner_assist.h"
#include "model/runner/runner_heads.h"

enum { RUNNER_DRAFTS_MAX = 32 };

typedef struct runner_assist runner_assist;

typedef struct runner_way {
  bool shows_all; /* it is shown the hidden row of every row of a step, not only of those that draw */
  /* How many rows one call drafts for, with so many drafts each; 0: not so many drafts. */
  uint32_t (*rows_at_once)(const device_runner *r, uint32_t n_drafts);
  /* A step has been enqueued. */
  weft_status (*after_step)(device_runner *r, const runner_flight *f, const runner_step *step);
  /* The segment, whose rows from `row` on are kept, has landed with n_taken tokens that its slot took. */
  weft_status (*take)(device_runner *r, const runner_flight *f, uint32_t segment, uint64_t row);
  /* Whether drafts of the slot can be made. */
  bool (*knows)(const runner_slot *s);
  /* Before the first draft of the batch; what the head reads of draft k into a->hidden. */
  weft_status (*begin)(device_runner *r, const weft_batch *batch, uint32_t n_drafts);
  weft_status (*draft)(device_runner *r, const weft_batch *batch, uint32_t k, uint32_t n_drafts);
} runner_way;

extern const runner_way runner_way_assistant, runner_way_nextn, runner_way_dflash;

/* Pages of its own for a layer with latent rows that drafts: what guesses store lies there, since no page of the pool
 * may be written, behind copies of the blocks that they see. */
typedef struct runner_near {
  weft_kv_store store;
  weft_kv_layout layout; /* of one group */
  uint32_t set, group;   /* those of the pool's layout */
  uint32_t n_blocks;     /* of each request */
  uint32_t first;        /* the table's entries from here on are 0, 1, 2 .. */
  uint32_t *table;       /* [first + rows_max * n_blocks] */
  uint32_t *table_at;    /* [rows_max] */
} runner_near;

struct runner_assist {
  const runner_way *way;
  weft_model *model;
  const weft_weight *head;
  uint32_t n_target, n_hidden, rows_max, kept_rows;
  uint64_t scratch_bytes, n_bytes;
  uint32_t n_drawn; /* rows of this call whose drafts are drawn; those of the others are the likeliest */
  bool is_new;      /* since the last step, drafts were made in a way that will not come again */
  /* Arrays of the device. */
  float *kept;    /* [depth + 1][kept_rows][n_target] hidden rows that flights draw from */
  float *newest;  /* [n_slots][n_target] that of each slot; then a row of zeros */
  float *pair;    /* [pairs][2][n_target] */
  float *hidden;  /* [rows_max][n_hidden] */
  int32_t *token; /* [RUNNER_DRAFTS_MAX + 1][rows_max] the last token, then drafts */
  int32_t *asked; /* [rows_max] which of both, then [RUNNER_DRAFTS_MAX][2][rows_max] temperatures and numbers drawn */
  void *stats;    /* of rows_max rows */
  void *scratch;
  runner_draft_logits logits; /* of heads whose drafts are drawn from logits */
  runner_near *near;          /* of a layer that guesses ahead over latent rows, else NULL */
  /* Host memory. */
  int32_t *drafted; /* [RUNNER_DRAFTS_MAX][rows_max] that the device sends */
  int32_t *input;   /* [RUNNER_DRAFTS_MAX * 2 + 1][rows_max] */
  uint32_t *row;    /* [pairs] 0, 1, 2 .. */
  const uint32_t **allowed_of;
  /* Of a layer that drafts: rows of a batch of its own, or of a step. */
  uint32_t *output_at;   /* [pairs] where in d_hidden a row's hidden row lies */
  int32_t *position;     /* [pairs] */
  int32_t *marks;        /* [pairs] tokens of blocks */
  int64_t *no_slot;      /* [pairs] -1 */
  weft_segment *segment; /* [rows_max] */
};

/* Memory of the device that is freed with the runner's. */
void *runner_take_draft_memory(device_runner *r, runner_assist *a, uint64_t n, uint64_t size, weft_status *status);
/* The kept rows of a flight: those that need logits come first, plain ones behind those that are scored. */
float *runner_kept_of(const device_runner *r, const runner_flight *f);
weft_status runner_keep_rows(device_runner *r, const runner_flight *f);
/* The rows that hidden rows of the layer that guesses ahead are kept of: of outputs, in their order. */
float *runner_hidden_rows(const device_runner *r);
/* a->near where the layer has latent rows; the memory of the host is freed by close. */
weft_status runner_near_open(device_runner *r, runner_assist *a);
void runner_near_close(runner_near *near);
/* Copies what the drafts of a batch will see. */
weft_status runner_near_copy(device_runner *r, const weft_batch *batch);
/* The batch of draft k of every request, one row each: it finds what it sees in these pages, and stores itself. */
void runner_near_lay_out(runner_assist *a, const weft_batch *batch, uint32_t k, weft_batch *own);
/* How many rows of a batch from `first` on have slots that lie one behind the other: their newest rows do, too. */
uint32_t runner_slots_in_turn(const weft_batch *batch, uint32_t first);
/* Copies the newest hidden row of a slot from a kept one. */
weft_status runner_take_newest(device_runner *r, const runner_flight *f, uint32_t segment, uint64_t row);

#endif
