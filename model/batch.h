/* SPDX-License-Identifier: MIT */
/* One step as flat arrays: the contract between the scheduler, which fills it, and a runner, which computes it
 * (llama.cpp: llama_batch).
 *
 * Law. A batch belongs to one model; a batch without rows only carries page copies. A segment is a run of new rows of
 * one request on top of kv_len valid keys:
 *   causal segments come first (prefill chunks, decode rows, canvas commits), rows [0, n_causal)
 *   canvas segments come after them (denoise steps), rows [n_causal, n_rows)
 * The rows of a causal segment write their keys and values through kv_slot before any segment attends, so the commit
 * of one canvas, or the last chunk of a prompt, and the first denoise step of the next canvas of the same request may
 * share one batch. Rows of one segment have consecutive positions kv_len, kv_len + 1, ... The host may be one step
 * behind: token_source says where the tokens of a segment come from when the host does not know them yet. The
 * scheduler owns all arrays (scheduler/batcher.h; a weft_segment owns nothing); everything is read during submit, and
 * the arrays may be reused afterwards. */
#ifndef WEFT_MODEL_BATCH_H
#define WEFT_MODEL_BATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/layer_group.h"
#include "base/page_copy.h"
#include "model/sampler.h"
#include "model/token_rules.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum weft_token_source {
  WEFT_TOKENS_HOST = 0,    /* batch.token[] */
  WEFT_TOKENS_SAMPLED = 1, /* the token that was sampled last in the slot; one row */
  WEFT_TOKENS_CANVAS = 2,  /* the slot's canvas; at step 0 fresh random tokens */
  WEFT_TOKENS_ARGMAX = 3   /* the argmax canvas of the slot's last denoise step (a commit) */
} weft_token_source;

typedef enum weft_output {
  WEFT_OUTPUT_NONE = 0,   /* keys and values only */
  WEFT_OUTPUT_TOKEN = 1,  /* the last row samples one token */
  WEFT_OUTPUT_CANVAS = 2, /* a denoise step: statistics and soft embedding of every row */
  WEFT_OUTPUT_SCORES = 3  /* no token: rows of a prompt are scored; those of a segment with TOKEN may be, too */
} weft_output;

typedef struct weft_segment {
  uint32_t slot; /* of the runner */
  uint32_t first_row, n_rows;
  uint32_t kv_len;
  bool canvas;
  weft_token_source token_source;
  weft_output output;
  uint32_t block; /* canvas segments: which canvas of the request, from 0 */
  uint32_t step;  /* canvas segments: denoise step of this canvas, from 0 */
  /* Rows that are scored: how likely the token was that the prompt has after each of them. The runner finds that token
   * in the slot's history. Only with tokens of the host. */
  uint32_t first_scored, n_scored;
} weft_segment;

/* How a page copy ended: one to or from the file, or one to host memory that could not be made. */
typedef struct weft_copy_end {
  weft_page_copy copy;
  bool ok;
  uint64_t us; /* how long a copy to or from the file took, without the time that it waited for its turn */
} weft_copy_end;

typedef struct weft_batch {
  uint64_t number; /* +1 per step of this runner */
  uint32_t n_rows, n_causal, n_segments, n_groups;
  const int32_t *token;    /* [n_rows]; 0 where the source is not the host */
  const int32_t *position; /* [n_rows] */
  const weft_segment *segment;
  /* Per layer group g: where each row's keys go, page * block_tokens + offset; -1 for canvas rows. */
  const int64_t *kv_slot[WEFT_GROUPS_MAX]; /* [n_rows] each */
  /* Block table of segment s in group g: table + table_at[s * n_groups + g]; covers the segment's kv_len plus,
   * for a causal segment, its own rows. Entries that no row can see may be any value. */
  const uint32_t *table;
  const uint32_t *table_at;
  const weft_page_copy *copy; /* whole pages to copy before anything else, in this order */
  uint32_t n_copies;
} weft_batch;

/* What a runner has room for, and the model's shape. */
typedef struct weft_batch_bounds {
  uint32_t rows_max, canvas_rows_max, segments_max;
  uint32_t n_slots, n_groups;
  uint32_t canvas_length; /* 0: the model has no canvas pass */
  uint32_t scored_rows_max;
} weft_batch_bounds;

/* Whether the batch keeps the law above and the bounds. A sound batch leads to no row, segment or slot that does not
 * exist. Tokens, pages and tables are not checked: their values are the scheduler's responsibility. */
bool weft_batch_is_sound(const weft_batch *batch, const weft_batch_bounds *bounds);

/* What a slot needs to know when a request takes it. Copied during slot_open except where said. */
typedef struct weft_slot_params {
  bool canvas;                   /* a diffusion request */
  weft_sampling sampling;        /* bias is copied */
  weft_grammar *grammar;         /* NULL: any answer; the request holds it until slot_close */
  const weft_token_rules *rules; /* likewise; not both */
  weft_entropy_bound entropy_bound;
  const int32_t *tokens; /* all tokens so far: prompt, then answer (after preemption) */
  uint32_t n_tokens, n_prompt;
  uint32_t max_tokens; /* most tokens the answer may ever have: bounds the history */
  bool trace;          /* canvas results carry the arrays of the trace */
} weft_slot_params;

/* What a segment gave. The runner owns the results of a step and all they point to, until the next collect. */
typedef struct weft_segment_result {
  uint32_t segment;     /* index in the batch */
  bool is_void;         /* the slot's canvas was done before this step, so the step has no effect */
  bool bad;             /* a logit was NaN or infinite; apply.c ends the request with an error */
  weft_sampled sampled; /* output TOKEN */
  bool left_format;     /* output TOKEN: the grammar does not have this token. An end of the answer is none either; any
                           other one is a fault, with which apply.c ends the request */
  bool complete;        /* the answer is complete with this token, or with this canvas, which is done: nothing can
                           follow in its grammar */
  const weft_scored *scored; /* [n_scored of the segment], valid until the next collect */
  /* output CANVAS; arrays of canvas length, valid until the next collect */
  bool done;    /* no further step: stopped, or out of steps */
  bool stopped; /* stable and confident */
  uint32_t n_accepted;
  float temperature, mean_entropy;
  const int32_t *argmax;
  /* with trace, else NULL */
  const int32_t *canvas_in, *drawn, *canvas_out;
  const float *entropy;
  const uint8_t *accepted;
} weft_segment_result;

typedef struct weft_step_result {
  uint64_t number;    /* of the batch */
  weft_status status; /* WEFT_E_DEVICE: the runner is broken */
  uint32_t n_results; /* segments with an output, in batch order */
  const weft_segment_result *result;
  uint64_t n_experts_touched; /* distinct experts, summed over layers */
  uint64_t device_us;
} weft_step_result;

#ifdef __cplusplus
}
#endif
#endif
