/* SPDX-License-Identifier: MIT */
/* One step as flat arrays: the contract between the scheduler, which fills it, and a runner, which computes it
 * (llama.cpp: llama_batch).
 *
 * Law. A batch belongs to one model; a batch without rows only carries page copies. A segment is a run of new rows of
 * one request on top of kv_len valid keys:
 *   segments that store in the pool come first (prefill chunks, decode rows, canvas commits), rows [0, n_stored)
 *   those that store in scratch come after them, of the encoder pass rows [n_stored, n_encoder), then of the decoder
 *   pass (denoise steps), which is whole, rows [n_encoder, n_rows)
 * Rows that store in the pool write their keys and values through kv_slot before any segment attends, so the commit of
 * one canvas, or the last chunk of a prompt, and the first denoise step of the next canvas of the same request may
 * share one batch. Rows of one segment have consecutive positions kv_len, kv_len + 1, ... A step is planned before the
 * results of the step before it are known, so the host may not know the tokens of a segment yet: token_source says
 * where on the device they are.
 *
 * Outputs. What a segment gives is asked of a range of its rows, [first_output, first_output + n_outputs). Where
 * n_outputs is 0 the segment only writes keys and values.
 *
 * Runs. The rows of a range that is sampled draw one token each: a run. Its first row holds a token that the request
 * has. Each row after it holds a draft, a guess of the host at the token that the row before it draws. The result is
 * taken from the start of the run for as long as the guesses were right: token[n_taken], where token i was drawn by
 * row i of the run, and each but the last equals the draft in the row after it. Draws are keyed by position, so these
 * are the tokens that the request gets when it decodes one row at a time. The rows of the run before n_taken hold
 * tokens of the request, so their keys and values are valid; the rows from n_taken on are void, and later rows of the
 * request write over them. A decode row, like the last row of a prompt, is a run of one: nothing of it can be void.
 *
 * The scheduler owns all arrays (scheduler/batcher.h; a weft_segment owns nothing); the
 * runner reads all of them during submit, and the scheduler may reuse them afterwards. */
#ifndef WEFT_MODEL_BATCH_H
#define WEFT_MODEL_BATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/layer_group.h"
#include "base/page_copy.h"
#include "base/segment.h"
#include "model/formats/token_rules.h"
#include "model/sampler.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum weft_token_source {
  WEFT_TOKENS_HOST = 0,    /* from batch.token[] */
  WEFT_TOKENS_SAMPLED = 1, /* the token that the slot sampled last; the segment has one row */
  WEFT_TOKENS_CANVAS = 2,  /* the slot's canvas, which begins with random tokens at step 0 */
  WEFT_TOKENS_ARGMAX = 3   /* the argmax canvas of the slot's last denoise step, for a commit */
} weft_token_source;

/* What is wanted of the rows of a segment's range of outputs. */
typedef enum weft_ask {
  WEFT_ASK_SAMPLE = 0,            /* each draws a token: a run, whose rows are the last ones of the segment */
  WEFT_ASK_SCORE = 1,             /* of a prompt: each tells how likely the prompt's own next token was */
  WEFT_ASK_SCORE_THEN_SAMPLE = 2, /* the end of a prompt: the last row draws a token, those before it are scored */
  WEFT_ASK_CANVAS = 3             /* a denoise step: statistics and soft embedding of every row of the segment */
} weft_ask;

/* How many of n outputs draw a token, and how many are scored. */
static inline uint32_t weft_ask_n_sampled(weft_ask ask, uint32_t n) {
  return ask == WEFT_ASK_SAMPLE ? n : ask == WEFT_ASK_SCORE_THEN_SAMPLE ? 1 : 0;
}
static inline uint32_t weft_ask_n_scored(weft_ask ask, uint32_t n) {
  return ask == WEFT_ASK_SCORE ? n : ask == WEFT_ASK_SCORE_THEN_SAMPLE ? n - 1 : 0;
}

typedef struct weft_segment {
  uint32_t slot; /* of the runner */
  uint32_t first_row, n_rows;
  uint32_t kv_len;
  uint8_t mask, stores, pass; /* weft_mask, weft_stores, weft_pass (base/segment.h) */
  weft_token_source token_source;
  /* The rows whose results are wanted, counted from the segment's first row. The runner finds the token after a scored
   * row in the slot's history. Only segments with tokens of the host have scored rows or drafts. */
  uint32_t first_output, n_outputs;
  weft_ask ask;
  bool peeks;     /* of a run: its result is told, and the slot is as if the run had never been */
  uint32_t block; /* decoder pass: which canvas of the request, from 0 */
  uint32_t step;  /* decoder pass: denoise step of this canvas, from 0 */
} weft_segment;

static inline uint32_t weft_segment_n_sampled(const weft_segment *segment) {
  return weft_ask_n_sampled(segment->ask, segment->n_outputs);
}
static inline uint32_t weft_segment_n_scored(const weft_segment *segment) {
  return weft_ask_n_scored(segment->ask, segment->n_outputs);
}
/* A denoise step with an output. */
static inline bool weft_segment_denoises(const weft_segment *segment) {
  return segment->ask == WEFT_ASK_CANVAS && segment->n_outputs > 0;
}

/* How a page copy ended: a copy to or from the file, or a copy to host memory that failed. */
typedef struct weft_copy_end {
  weft_page_copy copy;
  bool ok;
  uint64_t us; /* microseconds that a copy to or from the file took, without the time it waited for its turn */
} weft_copy_end;

#define WEFT_STATE_NONE UINT32_MAX

/* A state that is to be written: of a group of states, at a border that the segment's rows reach. */
typedef struct weft_state_write {
  uint32_t segment, group;
  uint32_t position; /* kv_len < position <= kv_len + n_rows, a multiple of the group's block_tokens */
  uint32_t table_at; /* table + table_at: its pages, state_pages of them */
} weft_state_write;

typedef struct weft_batch {
  uint64_t number; /* counts the steps of this runner */
  uint32_t n_rows, n_stored, n_encoder, n_segments, n_groups;
  const int32_t *token;    /* [n_rows]; 0 where the token source is not the host */
  const int32_t *position; /* [n_rows] */
  const weft_segment *segment;
  /* Per layer group: the KV slot of each row, page * block_tokens + offset; -1 for rows that store in scratch. */
  const int64_t *kv_slot[WEFT_GROUPS_MAX]; /* [n_rows] each; NULL for a group of states */
  /* Block table of segment s in group g: table + table_at[s * n_groups + g]; covers the segment's kv_len plus,
   * for a segment that stores in the pool, its own rows. Entries that no row can see may be any value. Of a group of
   * states it is the pages of the state that the first row begins with, at the last border at or before kv_len;
   * table_at is WEFT_STATE_NONE where that is position 0. A row behind a border among the segment's own rows begins
   * with the state there, whether it is written or not. */
  const uint32_t *table;
  const uint32_t *table_at;
  const weft_state_write *state; /* [n_states] */
  uint32_t n_states;
  const weft_page_copy *copy; /* pages to copy before any row is computed, in this order */
  uint32_t n_copies;
} weft_batch;

/* What a runner has room for in one batch. */
typedef struct weft_batch_bounds {
  uint32_t rows_max, canvas_rows_max, segments_max; /* canvas_rows_max: of rows that store in scratch */
  uint32_t n_slots, n_groups;
  uint32_t canvas_length; /* 0: the model has no canvas pass */
  uint32_t scored_rows_max, draft_rows_max;
} weft_batch_bounds;

/* Whether the batch keeps the law above and the bounds. A sound batch names no row, segment or slot that does not
 * exist. Tokens, pages and block tables are not checked: the scheduler is responsible for their values. */
bool weft_batch_is_sound(const weft_batch *batch, const weft_batch_bounds *bounds);

/* What a slot needs to know of the request that takes it. What is pointed to is the request's own and borrowed until
 * slot_close, and while a segment of the slot is in flight; tokens alone are copied by slot_open. */
typedef struct weft_slot_params {
  bool draws;    /* its segments may draw tokens */
  bool denoises; /* its segments may be denoise steps; of a slot that draws nothing, commits too */
  bool logprobs; /* tokens come with logprobs, also where sampling does not ask for them */
  const weft_sampling *sampling;
  const weft_entropy_bound *entropy_bound;
  weft_grammar *grammar;         /* NULL: no format; the request holds a reference */
  const weft_token_rules *rules; /* NULL: none; a request has no grammar beside rules */
  const int32_t *tokens;         /* all tokens so far: prompt, then answer (after preemption) */
  uint32_t n_tokens, n_prompt;
  uint32_t max_tokens; /* most tokens that the answer may have; bounds the history */
  bool trace;          /* results of canvases carry the arrays of the trace */
} weft_slot_params;

/* What a segment gave. The runner owns the results of a step and all they point to, until the next collect. */
typedef struct weft_segment_result {
  uint32_t segment; /* index in the batch */
  bool is_void;     /* the slot's canvas was done before this step, so the step has no effect */
  bool bad; /* a logit was NaN or infinite, in a sampled segment that of the row after the tokens that were taken;
                       scheduler/apply.c ends the request with an error */
  /* Of a sampled segment; the last token that was taken is meant: */
  bool left_format; /* the format of the answer does not go on with this token. A token that ends the answer may be such
                       a token; for any other one scheduler/apply.c ends the request with an error */
  bool complete;    /* the format allows nothing after this token, or after this canvas, which is done */
  uint32_t n_taken; /* at least 1, or 0 with `bad`; a token that leaves or completes the format ends the run */
  const weft_sampled *token; /* [n_taken] */
  const weft_scored *scored; /* [weft_segment_n_scored] */
  /* Of a denoise step; the arrays have the canvas's length. */
  bool done;    /* the canvas needs no further denoise step: it stopped early, or its steps are used up */
  bool stopped; /* the canvas was stable and confident enough to stop early */
  uint32_t n_accepted;
  float temperature, mean_entropy; /* the entropy in nats */
  const int32_t *argmax;
  /* The arrays of a trace; NULL for a request without one. */
  const int32_t *canvas_in, *drawn, *canvas_out;
  const float *entropy;
  const uint8_t *accepted;
} weft_segment_result;

typedef struct weft_step_result {
  uint64_t number;    /* that of the batch */
  weft_status status; /* WEFT_E_DEVICE: the runner is broken */
  uint32_t n_results; /* segments with an output, in batch order */
  const weft_segment_result *result;
  uint64_t device_us; /* microseconds that the step took, without the time it waited for the step before it */
  bool is_new;        /* a device that repeats steps as graphs had none of this one: the next of its kind is faster */
} weft_step_result;

#ifdef __cplusplus
}
#endif
#endif
