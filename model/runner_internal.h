/* SPDX-License-Identifier: MIT */
/* Law: private to the files of the device runner (device_runner.c, runner_shape.c, runner_sample.c, runner_results.c, runner_saves.c, runner_open.c).
 * A step is a flight from submit to collect. Submit enqueues and returns; a flight is settled when the device has
 * done it and the host has applied what it found to the slots: at collect, or earlier where a later submit needs
 * what only the host knows then (a canvas). Drawn tokens stay on the device, one cell per slot, so that a decode step
 * follows another without the host between them. */
#ifndef WEFT_MODEL_RUNNER_INTERNAL_H
#define WEFT_MODEL_RUNNER_INTERNAL_H

#include "kernels/ops.h"
#include "model/device_runner.h"

enum { WEFT_RUNNER_DEPTH = 2 }; /* batches submitted and not collected */

typedef struct runner_slot {
  bool open;
  uint32_t generation;     /* +1 per slot_open: results of an earlier request are not applied */
  uint32_t n_pending;      /* flights that drew a token which the history does not have yet */
  weft_slot_params params; /* pointers replaced by the slot's own */
  weft_logit_bias *bias;   /* [WEFT_LOGIT_BIAS_MAX] */
  int32_t *history;        /* [seq_tokens_max] prompt, then answer */
  uint32_t n_history;
  int32_t *canvas;         /* [C] tokens of the next denoise step */
  int32_t *argmax;         /* [WEFT_STABILITY_MAX][C], newest first */
  uint32_t n_argmax;
  uint32_t block;
  bool done;               /* the canvas of `block` has stopped */
  float *soft;             /* device [C, n_hidden] */
} runner_slot;

/* A canvas outside its slot, as there. */
typedef struct runner_save {
  int32_t *canvas, *argmax;
  uint32_t n_argmax, block;
  float *soft; /* host memory that the device reaches */
} runner_save;

/* Rows whose hidden state is wanted, in this order. */
typedef struct runner_outputs {
  uint32_t n_logits, n_plain, n_canvas_rows;
} runner_outputs;

/* Statistics of n rows as one piece of memory. */
typedef struct runner_stats {
  int32_t *argmax, *drawn; /* [n] each, one behind the other */
  float *entropy;
  uint8_t *bad;
  float *top, *log_total; /* stay on the device */
} runner_stats;

typedef struct runner_flight {
  weft_step_result step;
  weft_segment_result *result;                      /* [segments_max] */
  int32_t *argmax, *canvas_in, *drawn, *canvas_out; /* [canvas_rows_max]: what results point into */
  float *entropy;
  uint8_t *accepted;
  bool settled;
  uint64_t n_moves; /* of the store, when its copies were enqueued */
  uint64_t start_us;
  uint32_t n_segments;
  weft_segment *segment; /* [segments_max] of the batch as it was given */
  uint32_t *generation;  /* [segments_max] of their slots */
  runner_outputs outputs;
  uint32_t *output_segment; /* [output_max]: in that batch; UINT32_MAX: a row that only fills up */
  float *temperature;       /* [output_max] of rows with statistics */
  void *stats;              /* host: what the device sends */
  weft_sample_result *sampled; /* host [segments_max]: as stats, of rows that need their logits */
} runner_flight;

typedef struct device_runner {
  weft_runner base;
  weft_runner_info info;
  weft_device_runner_config config;
  const weft_weight *head;
  float cap, embed_scale;
  uint32_t n_hidden, canvas_length, logit_rows_max, output_max;
  bool broken;
  bool in_place; /* the device computes inside its calls */
  bool graphs;
  runner_slot *slots;
  runner_save *saves; /* [n_saves] */
  runner_flight flight[WEFT_RUNNER_DEPTH + 1];
  uint32_t first_flight, n_flights; /* ring of submitted, not collected */
  uint64_t last_done_us;
  /* host arrays of the step being submitted */
  int32_t *token;           /* [rows_max] */
  int32_t *cell_of;         /* [rows_max]: the cell that has the row's token, or -1 */
  bool any_cell;
  weft_batch filled;        /* the batch with rows that fill it up (runner_shape.c) */
  weft_segment *segment;    /* [segments_max], as the arrays below of `filled` */
  int32_t *position;        /* [rows_max] */
  int64_t *kv_slot;         /* [groups][rows_max] */
  uint32_t *table_at;       /* [segments_max * groups] */
  uint32_t *output_row;     /* [output_max] */
  uint32_t *output_at;      /* [output_max]: segment in the batch that is computed */
  const float **soft_of;    /* [segments_max] */
  uint8_t *want_soft;       /* [output_max] */
  int32_t *inputs;          /* [4 * output_max]: temperature, u, from, to of rows with statistics */
  int32_t *renoise;         /* [C] */
  uint32_t *order;          /* [C] */
  uint32_t *allowed;        /* device bitmask, NULL when nothing is suppressed */
  const uint32_t **allowed_of;
  int32_t *asked;           /* [asked_words]: rows of weft_sample, then their biases and histories */
  uint64_t asked_words;
  /* device arrays */
  float *d_hidden, *d_soft, *d_soft_in, *d_logits;
  int32_t *d_inputs, *d_cells, *d_asked;
  weft_sample_result *d_sampled; /* [segments_max] */
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
static inline uint64_t runner_stats_bytes(uint64_t n) { return 12 * n + (n + 3) / 4 * 4 + 8 * n; }
static inline uint64_t runner_stats_sent(uint64_t n) { return 13 * n; }

static inline runner_stats runner_stats_at(void *memory, uint64_t n) {
  uint8_t *at = memory;
  return (runner_stats){.argmax = (int32_t *)(void *)at,
                        .drawn = (int32_t *)(void *)(at + 4 * n),
                        .entropy = (float *)(void *)(at + 8 * n),
                        .bad = at + 12 * n,
                        .top = (float *)(void *)(at + 12 * n + (n + 3) / 4 * 4),
                        .log_total = (float *)(void *)(at + 16 * n + (n + 3) / 4 * 4)};
}

/* Whether the step is one that comes again: decode rows, canvases, commits. */
bool runner_is_steady(const device_runner *r, const weft_batch *batch);
/* The batch with its last plain decode row repeated until their number fills a bucket: the same tokens, keys and
 * draws into the same places, so that nothing of it can be seen. token and cell_of are filled up with it. n_filled: rows that
 * were added, after the causal segments. */
const weft_batch *runner_fill_up(device_runner *r, const weft_batch *batch, uint32_t *n_filled);

/* Tokens and logprobs of the rows that need their logits (runner_sample.c). asked_words: what one call may need. */
weft_status runner_sample(device_runner *r, runner_flight *f, const runner_step *step);
uint64_t runner_asked_words(const device_runner *r);

/* Waits for a flight and applies it. An error breaks the runner. */
void runner_settle(device_runner *r, runner_flight *flight);

/* runner_saves.c */
weft_status runner_slot_save(weft_runner *base, uint32_t index, uint32_t save);
weft_status runner_slot_restore(weft_runner *base, uint32_t index, uint32_t save);
weft_status runner_open_saves(device_runner *r);
void runner_close_saves(device_runner *r);

extern const weft_runner_ops runner_ops;
void runner_close(weft_runner *base);

#endif
