/* SPDX-License-Identifier: MIT */
/* Law: private to the files of the device runner (device_runner.c, runner_shape.c, runner_sample.c,
 * runner_results.c, runner_scores.c, runner_saves.c, runner_held.c, runner_open.c). A step is a flight from submit to
 * collect. Submit enqueues and returns; a flight is settled when the device has done it and the host has applied what it
 * found to the slots. Drawn tokens and canvases stay on the device, in cells per slot, so that a step follows another
 * without the host between them. */
#ifndef WEFT_MODEL_RUNNER_INTERNAL_H
#define WEFT_MODEL_RUNNER_INTERNAL_H

#include "kernels/ops.h"
#include "model/device_runner.h"
#include "model/grammar_graph.h"

enum { RUNNER_DEPTH = 2 }; /* batches submitted and not collected */
enum { RUNNER_CANVAS_WORDS = sizeof(weft_canvas_row) / 4 };

typedef struct runner_slot {
  bool open;
  uint32_t generation;     /* +1 per slot_open: results of an earlier request are not applied */
  uint32_t n_pending;      /* flights that drew a token which the history does not have yet */
  weft_slot_params params; /* pointers replaced by the slot's own */
  weft_logit_bias *bias;   /* [WEFT_LOGIT_BIAS_MAX] */
  int32_t *history;        /* [seq_tokens_max] prompt, then answer */
  uint32_t n_history;
  weft_matcher matcher; /* where the history is in the request's grammar */
  /* of a canvas that is held to a grammar: where the answer is, tokens that it may still have, canvases it has */
  weft_graph_set places;
  uint32_t n_left, n_canvases;
  int32_t *canvas; /* [C] with a trace: tokens of the denoise step after the last one that is settled */
  float *soft;     /* device [C, n_hidden] */
} runner_slot;

/* Whether statistics are all that its rows need: no logits, no mask of its own. */
static inline bool runner_is_plain(const runner_slot *s) {
  return s->params.grammar == NULL && s->params.rules == NULL && weft_sampling_is_plain(&s->params.sampling);
}

/* The state of a canvas that is kept outside its slot; the fields are those of runner_slot. */
typedef struct runner_save {
  int32_t *canvas;
  int32_t *state; /* what the device keeps in the slot's cells; host memory that the device reaches */
  float *soft;    /* host memory that the device reaches */
} runner_save;

/* Rows whose hidden state is wanted, in this order. */
typedef struct runner_outputs {
  uint32_t n_logits, n_scored, n_plain, n_canvas_rows, n_canvases;
  uint32_t n_held; /* canvases that are held to a grammar */
} runner_outputs;

/* Where the rows with statistics begin. */
static inline uint32_t runner_first_stats(const runner_outputs *o) {
  return o->n_logits + o->n_scored;
}

/* Statistics of n rows as one piece of memory. */
typedef struct runner_stats {
  int32_t *argmax, *drawn; /* [n] each, one behind the other */
  float *entropy;
  int32_t *next; /* of canvases, as accepted */
  uint8_t *bad, *accepted;
  float *top, *log_total; /* stay on the device */
} runner_stats;

typedef struct runner_flight {
  weft_step_result step;
  weft_segment_result *result; /* [segments_max] */
  int32_t *canvas_in;          /* [canvas_rows_max]: of canvases with a trace */
  bool settled;
  uint64_t n_moves; /* of the store, when its copies were enqueued */
  uint64_t start_us;
  uint32_t n_segments;
  weft_segment *segment; /* [segments_max] of the batch as it was given */
  uint32_t *generation;  /* [segments_max] of their slots */
  runner_outputs outputs;
  uint32_t *output_segment;    /* [output_max]: in that batch; UINT32_MAX: a row that only fills up */
  float *temperature;          /* [stats_max] of rows with statistics */
  void *stats;                 /* host: what the device sends; results point into it */
  weft_sample_result *sampled; /* host [segments_max]: as stats, of rows that need their logits */
  weft_sample_result *judged;  /* host [scored_rows_max]: as stats, of scored rows */
  float *given_logit;          /* likewise: the logit of the token that follows */
  int32_t *given;              /* [scored_rows_max]: that token */
  weft_scored *scored;         /* [scored_rows_max] */
  weft_canvas_result *canvas;  /* host [segments_max]: as stats, of canvases */
} runner_flight;

typedef struct runner_held runner_held; /* what finding paths of canvases needs (runner_held.c) */

typedef struct device_runner {
  weft_runner base;
  weft_runner_info info;
  weft_device_runner_config config;
  const weft_weight *head;
  float cap, embed_scale;
  weft_batch_bounds bounds; /* of every batch that is submitted */
  uint32_t n_hidden, canvas_length, logit_rows_max;
  uint32_t stats_max, output_max; /* rows with statistics or a token of one step; these and scored ones */
  bool broken;
  bool in_place; /* the device computes inside its calls */
  bool graphs;
  runner_slot *slots;
  runner_save *saves; /* [n_saves] */
  runner_flight flight[RUNNER_DEPTH + 1];
  uint32_t first_flight, n_flights; /* ring of submitted, not collected */
  uint64_t last_done_us;
  /* host arrays of the step being submitted */
  int32_t *token;   /* [rows_max] */
  int32_t *cell_of; /* [rows_max]: the cell that has the row's token, or -1 */
  bool any_cell;
  weft_batch filled;     /* the batch with rows that fill it up (runner_shape.c) */
  weft_segment *segment; /* [segments_max], as the arrays below of `filled` */
  int32_t *position;     /* [rows_max] */
  int64_t *kv_slot;      /* [groups][rows_max] */
  uint32_t *table_at;    /* [segments_max * groups] */
  uint32_t *output_row;  /* [output_max] */
  uint32_t *output_at;   /* [output_max]: segment in the batch that is computed */
  const float **soft_of; /* [segments_max] */
  uint8_t *want_soft;    /* [stats_max] */
  int32_t *inputs;       /* temperature, u, from, to, fresh of rows with statistics; rows of weft_canvas */
  uint32_t *allowed;     /* device bitmask, NULL when nothing is suppressed */
  const uint32_t **allowed_of;
  int32_t *given_at; /* [logit_rows_max]: where the logits of given tokens lie */
  int32_t *asked;    /* [asked_words]: rows of weft_sample, then their biases and histories */
  uint64_t asked_words;
  uint32_t *masks; /* [logit_rows_max][mask_words] of rows with a grammar */
  uint32_t mask_words;
  weft_grammar_scratch *grammar_scratch;
  runner_held *held; /* NULL: canvases cannot be held to a grammar here */
  /* device arrays */
  float *d_hidden, *d_soft, *d_soft_in, *d_logits;
  int32_t *d_inputs, *d_cells, *d_asked;
  uint32_t *d_masks;
  weft_sample_result *d_sampled; /* [segments_max] */
  weft_sample_result *d_judged;  /* [scored_rows_max], as the next */
  float *d_given_logit;
  int32_t *d_given_at;          /* [logit_rows_max] */
  weft_canvas_result *d_canvas; /* [segments_max] */
  void *d_stats;
  uint8_t *d_bad;
  void *d_scratch;
  uint64_t scratch_bytes, n_bytes;
} device_runner;

/* The step as it is computed: the batch that was given, or that batch with rows that fill it up. */
typedef struct runner_step {
  const weft_batch *batch;
  uint32_t n_filled, first_filled; /* segments that fill up */
  bool steady;
} runner_step;

/* Bytes of statistics: all, and those that the host wants. */
static inline uint64_t runner_stats_bytes(uint64_t n) {
  return 16 * n + (2 * n + 3) / 4 * 4 + 8 * n;
}
static inline uint64_t runner_stats_sent(uint64_t n) {
  return 18 * n;
}

static inline runner_stats runner_stats_at(void *memory, uint64_t n) {
  uint8_t *at = memory, *kept = at + 16 * n + (2 * n + 3) / 4 * 4;
  return (runner_stats){.argmax = (int32_t *)(void *)at,
                        .drawn = (int32_t *)(void *)(at + 4 * n),
                        .entropy = (float *)(void *)(at + 8 * n),
                        .next = (int32_t *)(void *)(at + 12 * n),
                        .bad = at + 16 * n,
                        .accepted = at + 17 * n,
                        .top = (float *)(void *)kept,
                        .log_total = (float *)(void *)(kept + 4 * n)};
}

/* d_cells: a drawn token per slot, then the canvas of each (kernels/canvas.h): tokens of the next step, then the argmax
 * canvas of the last one. */
static inline uint64_t runner_canvas_cell(const device_runner *r, uint32_t slot) {
  return r->config.n_slots + slot * weft_canvas_state_words(r->canvas_length);
}

/* Whether the step is one that comes again: decode rows, canvases, commits. */
bool runner_is_steady(const device_runner *r, const weft_batch *batch);
/* The batch with its last plain decode row repeated until their number fills a bucket: the same tokens, keys and
 * draws into the same places, so that nothing of it can be seen. token and cell_of are filled up with it. n_filled:
 * rows that were added, after the causal segments. */
const weft_batch *runner_fill_up(device_runner *r, const weft_batch *batch, uint32_t *n_filled);

/* The tokens that a canvas begins with. */
void runner_start_canvas(const device_runner *r, const runner_slot *s, const weft_segment *segment, int32_t *tokens);

/* The head of n rows whose hidden states begin at h: their logits are left in d_logits (runner_sample.c). */
weft_status runner_make_logits(device_runner *r, const float *h, uint32_t n);
/* What sampling from these logits always takes; sampling without history, bias, cells or masks takes no more. */
weft_sample_args runner_sample_args(const device_runner *r, weft_sample_result *out, uint32_t n);
/* Tokens and logprobs of the rows that need their logits (runner_sample.c). asked_words: what one call may need. */
weft_status runner_sample(device_runner *r, runner_flight *f, const runner_step *step);
uint64_t runner_asked_words(const device_runner *r);

/* How likely the tokens of prompts were (runner_scores.c). find: lists the given tokens of the rows that list_outputs
 * found; false: a row has no token after it. */
bool runner_find_given(const device_runner *r, runner_flight *f, const weft_batch *batch);
weft_status runner_score(device_runner *r, runner_flight *f);
void runner_take_scores(device_runner *r, runner_flight *f);

/* Waits for a flight and applies it. An error breaks the runner. */
void runner_settle(device_runner *r, runner_flight *flight);

/* Canvases that are held to a grammar (runner_held.c). begin: a slot was opened. take: the canvas is final; whether
 * nothing can follow it in the answer. paths: the argmax tokens of held canvases become their most likely paths;
 * temperature, argmax: of all rows with statistics. */
weft_status runner_held_begin(const device_runner *r, runner_slot *slot);
bool runner_held_take(const device_runner *r, runner_slot *slot, const int32_t *canvas);
weft_status runner_held_paths(device_runner *r, const runner_step *step, const runner_outputs *outputs,
                              const float *temperature, int32_t *argmax);
weft_status runner_open_held(device_runner *r);
void runner_close_held(device_runner *r);

/* runner_saves.c */
weft_status runner_slot_save(weft_runner *base, uint32_t index, uint32_t save);
weft_status runner_slot_restore(weft_runner *base, uint32_t index, uint32_t save);
weft_status runner_open_saves(device_runner *r);
void runner_close_saves(device_runner *r);

/* The slot of a segment of the flight; NULL: the request that the segment belonged to has left it. */
static inline runner_slot *runner_slot_of(device_runner *r, const runner_flight *f, uint32_t segment) {
  runner_slot *s = &r->slots[f->segment[segment].slot];
  return s->open && s->generation == f->generation[segment] ? s : NULL;
}

extern const weft_runner_ops runner_ops;
void runner_close(weft_runner *base);

#endif
