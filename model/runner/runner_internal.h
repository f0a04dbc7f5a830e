/* SPDX-License-Identifier: MIT */
/* What the files of the device runner (device_runner.c, runner_*.c) share; private to them.
 *
 * Law: a step is a flight from submit to collect. Submit enqueues work and returns; a flight is settled when the device
 * has done the work and the host has applied the results to the slots. Drawn tokens and canvases also stay on the
 * device, in cells that belong to the slots, so that the next step can begin before the host has seen them. What the
 * host must see to go on, it waits for as late as it can: the mask of a row that depends on a token in flight is made
 * when the forward pass of that row is enqueued, while the device computes it (runner_sample.c).
 *
 * A model may lie on several devices, each of which runs what is enqueued on it in order, beside the others. Head,
 * statistics, sampling and cells are on the last device. What makes the input of a step is on the first one: the soft
 * embeddings of the slots, and a mirror of the cells. Who may read and write these, and after what:
 *
 *   the rows of a step     pass from part to part as model_internal.h says (model_enter), so what the last device does
 *                          for a step comes after all that the first one did for it, and for the steps before it
 *   the last device        at the end of a step sends to the mirror and the soft embeddings of the step's slots, then
 *                          sets the flight's mark. By the line above it overwrites nothing that is still to be read
 *   the first device       reads a slot's mirror and soft embedding for a later step. It follows the mark of the newest
 *                          flight that wrote a slot which the step reads (runner_follow), and no other mark: a step of
 *                          other requests begins while the last device is still busy
 *   restore of a save      writes them on the first device itself, and follows that flight too
 *   save                   has a slot with nothing in flight, so the host has seen that flight's mark; each device saves
 *                          and restores what it has
 *   sampled tokens         have a place in the mirror per flight and slot, as the ring of flights goes
 *   the host               waits for the flight's mark on every device (runner_settle), and only then uses the flight,
 *                          its results and its moves of pages again
 *
 * With one part the mirror is the cells, and nothing is sent or followed. In shards, both devices are shard 0 of a part. */
#ifndef WEFT_MODEL_RUNNER_RUNNER_INTERNAL_H
#define WEFT_MODEL_RUNNER_RUNNER_INTERNAL_H

#include "kernels/ops.h"
#include "model/formats/grammar_graph.h"
#include "model/runner/device_runner.h"
#include "model/runner/runner_memory.h"

/* Batches submitted and not collected: so many that every device has a step, and the host one more. */
enum { RUNNER_FLIGHTS_MAX = WEFT_DEVICES_MAX + 2 }; /* with the one that was collected last */
enum { RUNNER_CANVAS_WORDS = sizeof(weft_canvas_row) / 4 };

/* Of one request after another. Arrays are made and freed with the runner (runner_open.c), in host memory if not said. */
typedef struct runner_slot {
  bool open;
  uint32_t generation;     /* counts slot_open, so that results of an earlier request are not applied */
  uint32_t n_pending;      /* flights that draw a token which is not in the history yet */
  uint64_t written_by;     /* the newest step, counted from 1, that writes its cells and soft embedding; 0: none */
  weft_slot_params params; /* tokens: the slot's copy; all else that it points to: the request's */
  int32_t *history;        /* [seq_tokens_max] prompt, then answer */
  uint32_t n_history, hidden_at, hidden_of; /* kept hidden row: of which token, behind how many positions; 0: none */
  weft_matcher matcher;                     /* where in the request's grammar the answer is */
  /* Of canvases with a grammar: where in its graph the answer is, how many tokens it may have yet, its canvases. */
  weft_graph_set places;
  uint32_t n_left, n_canvases;
  uint32_t *classes; /* device, with memory of its own: tokens_at and token of that graph */
  int32_t *canvas;   /* [canvas_length] with a trace: the canvas that goes into the step after the last settled one */
  float *soft;       /* first device [canvas_length, n_hidden] */
} runner_slot;

/* Whether the slot's rows are plain: statistics are all that sampling needs of them, no logits and no mask. */
static inline bool runner_is_plain(const runner_slot *s) {
  const weft_slot_params *p = &s->params;
  return p->grammar == NULL && p->rules == NULL && !p->logprobs && weft_sampling_is_plain(p->sampling);
}

/* The state of a canvas that is kept outside its slot; canvas and soft are those of runner_slot. */
typedef struct runner_save {
  int32_t *canvas;
  int32_t *state; /* of the slot's canvas in its cells (kernels/canvas.h), in host memory that the device can copy to */
  float *soft;    /* in such memory too */
  int32_t *mirror; /* of the slot, in such memory; NULL: with one device */
} runner_save;

/* How many rows a step gives out, in the order of their hidden states: logits, scored, plain, canvas rows. */
typedef struct runner_outputs {
  uint32_t n_logits, n_scored, n_plain, n_canvas_rows, n_canvases;
  uint32_t n_held, n_others; /* canvases that are held to a grammar; rows behind all whose hidden states are shown */
} runner_outputs;

/* The index of the first row with statistics: plain and canvas rows come last. */
static inline uint32_t runner_first_stats(const runner_outputs *o) {
  return o->n_logits + o->n_scored;
}

/* The statistics of n rows, as pointers into one piece of memory. */
typedef struct runner_stats {
  int32_t *argmax, *drawn; /* [n] each, one array behind the other, as all the following ones */
  float *entropy;
  int32_t *next; /* of canvas rows: the token that goes into the next denoise step */
  uint8_t *bad, *accepted;
  float *top, *log_total; /* these two are not sent to the host */
} runner_stats;

typedef struct runner_flight {
  weft_step_result step;
  weft_segment_result *result; /* [segments_max] */
  int32_t *canvas_in;          /* [canvas_rows_max]: what went into the step, of canvases with a trace */
  bool settled;
  uint64_t n_moves; /* what weft_kv_store_copy gave for the batch's copies */
  uint64_t number;  /* of the step, counted from 1 */
  uint64_t start_us;
  uint32_t n_segments, n_looked; /* n_looked: rows whose choice of experts is copied (runner_look.h) */
  weft_segment *segment;         /* [segments_max] of the batch as it was given */
  uint32_t *generation;          /* [segments_max] of the slots of these segments */
  runner_outputs outputs;
  uint32_t *output_segment; /* [output_max]: the row's segment in that batch; UINT32_MAX: a row that fills up */
  int32_t *draft;      /* [output_max]: of a row that draws, the draft in the next row of its run; -1: it is the last */
  weft_sampled *token; /* [segments_max + draft_rows_max]: what rows drew, those that need their logits first */
  float *temperature;  /* [stats_max] of rows with statistics */
  void *stats;         /* what the device sends to the host; results point into it, as into the next ones */
  weft_sample_result *sampled; /* [segments_max + draft_rows_max] sent by the device: rows that need their logits */
  weft_sample_result *judged;  /* [scored_rows_max] sent by the device: scored rows */
  float *given_logit;          /* [scored_rows_max] sent by the device: the logit of the prompt's next token */
  int32_t *given;              /* [scored_rows_max]: the prompt's next token */
  weft_scored *scored;         /* [scored_rows_max] */
  weft_canvas_result *canvas;  /* [segments_max] sent by the device: canvases */
} runner_flight;

typedef struct runner_held runner_held; /* what the search for the path of a held canvas needs (runner_held.c) */

/* Words that the classes of any graph need: tokens_at, then token. */
static inline uint64_t runner_classes_words(uint32_t n_vocab) {
  return WEFT_GRAPH_CLASSES + 1 + (uint64_t)n_vocab;
}

typedef struct device_runner {
  weft_runner base;
  weft_runner_info info;
  weft_device_runner_config config;
  const weft_split *split;
  weft_device *first, *last;    /* of its devices */
  runner_memory memory;         /* of them */
  struct runner_assist *assist; /* NULL: no drafter reads its keys (runner_assist.h) */
  struct runner_share *share;   /* NULL: statistics are made on the last device alone (runner_share.h) */
  const weft_weight *head;
  weft_weight canvas_head; /* its form for rows of canvases (kernels/canvas_head.h) */
  float cap, embed_scale;
  weft_batch_bounds bounds; /* of every batch that is submitted */
  uint32_t n_hidden, canvas_length, logit_rows_max;
  uint32_t stats_max, output_max;  /* rows of one step with statistics or a token; the same with scored rows */
  bool broken, counts, is_looking; /* counts: it is opened to count n_bytes alone */
  bool in_place, graphs;           /* in_place: the device has done the work of a call when the call returns */
  runner_slot *slots;
  runner_save *saves;                       /* [n_saves] */
  runner_flight flight[RUNNER_FLIGHTS_MAX]; /* [depth + 1] */
  uint32_t first_flight, n_flights;         /* the ring of steps that are submitted and not collected */
  uint64_t n_steps, last_done_us;           /* n_steps: submitted */
  /* Host arrays of the step that is being submitted. */
  int32_t *token;   /* [rows_max] */
  int32_t *cell_of; /* [rows_max]: the word of the mirror that holds the row's token, or -1 */
  bool any_cell;
  weft_batch filled;     /* the batch with the rows that fill it up (runner_shape.c) */
  weft_segment *segment; /* [segments_max]; this and the next three arrays are those of `filled` */
  int32_t *position;     /* [rows_max] */
  int64_t *kv_slot;      /* [groups][rows_max] */
  uint32_t *table_at;    /* [segments_max * groups] */
  uint32_t *output_row;  /* [output_max] */
  uint32_t *output_at;   /* [output_max]: the row's segment in the batch that is computed */
  const float **soft_of; /* [segments_max] */
  uint8_t *want_soft;    /* [stats_max] */
  int32_t *inputs;       /* per row with statistics: temperature, u, from, to, fresh; then one weft_canvas per canvas */
  uint32_t *allowed;     /* device: a bit per token that may be drawn; NULL when none is suppressed */
  const uint32_t **allowed_of;
  int32_t *given_at; /* [logit_rows_max]: where in d_logits the logits of the prompt's next tokens lie */
  int32_t *asked;    /* [asked_words]: one weft_sample_row per row, then the rows' biases and histories */
  uint64_t asked_words;
  uint32_t *masks;                /* [logit_rows_max][mask_words] of rows with a grammar or with rules of tokens */
  uint32_t mask_words, n_matched; /* n_matched: drafts that draft_matcher took; UINT32_MAX: it does not allow one */
  weft_grammar_scratch *grammar_scratch;
  weft_matcher draft_matcher; /* of the slot that is asked about, behind drafts of its run */
  runner_held *held;          /* NULL: the model has no canvases */
  int32_t *look;              /* choices of experts, in which a flight writes while is_looking; NULL: nobody looks */
  /* Arrays of the first device. */
  float *d_soft_in;
  int32_t *d_mirror; /* with one device d_cells; else [depth + 1][n_slots] sampled tokens, then [n_slots] canvases */
  /* Arrays of the last device. */
  float *d_hidden, *d_soft, *d_logits;
  int32_t *d_inputs, *d_cells, *d_asked;
  uint32_t *d_masks;
  weft_sample_result *d_sampled; /* [segments_max + draft_rows_max] */
  weft_sample_result *d_judged;  /* [scored_rows_max] */
  float *d_given_logit;          /* [scored_rows_max] */
  int32_t *d_given_at;           /* [logit_rows_max] */
  weft_canvas_result *d_canvas;  /* [segments_max] */
  void *d_stats;
  uint8_t *d_bad;
  void *d_scratch;
  uint64_t scratch_bytes, n_bytes;
} device_runner;

/* The step as the device computes it: the batch that was given, or that batch with rows that fill it up. */
typedef struct runner_step {
  const weft_batch *batch;
  uint32_t n_filled, first_filled; /* segments that fill up */
  bool steady;
} runner_step;

/* Bytes of the statistics of n rows: on the device, and those at their beginning that are sent to the host. */
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

/* Where the canvas of a slot begins in d_cells, which has one drawn token per slot, then the canvas state of each slot
 * (kernels/canvas.h): the tokens that go into the next step, then the argmax canvas of the last one. */
static inline uint64_t runner_canvas_cell(const device_runner *r, uint32_t slot) {
  return r->config.n_slots + slot * weft_canvas_state_words(r->canvas_length);
}

/* Places in d_mirror, in words: of the token that the newest step of the slot drew, and of the slot's canvas, the tokens
 * that go into the next step and then the argmax canvas of the last one. */
uint64_t runner_mirror_token(const device_runner *r, uint32_t slot);
uint64_t runner_mirror_canvas(const device_runner *r, uint32_t slot);
static inline uint64_t runner_mirror_canvas_words(const device_runner *r) {
  return 2 * (uint64_t)r->canvas_length;
}

/* The order of the devices (runner_parts.c). mark and wait: of a flight, on every device. follow: the first device goes
 * on when the last one has written what the batch reads; follow_slot: what the slot has. note_writes: the flight is the
 * newest that writes its slots. send_cells, send_soft: to the first device; soft embeddings are copied where it is the
 * last one too. */
weft_status runner_mark(device_runner *r, const runner_flight *flight);
weft_status runner_wait(device_runner *r, const runner_flight *flight);
weft_status runner_follow(device_runner *r, const weft_batch *batch);
weft_status runner_follow_slot(device_runner *r, uint32_t slot);
void runner_note_writes(device_runner *r, const runner_flight *flight);
weft_status runner_send_cells(device_runner *r, const runner_flight *flight);
weft_status runner_send_soft(device_runner *r, uint32_t slot, const float *soft, uint64_t n_rows);

/* Whether the step is steady (only decode rows, runs of one length, canvases and commits) on a device that keeps
 * graphs, so that a graph of the step will be used again. */
bool runner_is_steady(const device_runner *r, const weft_batch *batch);
/* Repeats the last plain decode row of the batch until the number of plain decode rows is one of the sizes for which
 * graphs are kept. A repeated row computes and writes the same values to the same places, so results do not change. The
 * arrays token and cell_of are filled up too. *n_filled: how many rows were added, after the causal segments. */
const weft_batch *runner_fill_up(device_runner *r, const weft_batch *batch, uint32_t *n_filled);

/* The tokens that a canvas begins with. */
void runner_start_canvas(const device_runner *r, const runner_slot *s, const weft_segment *segment, int32_t *tokens);

/* The head of n rows whose hidden states begin at h; NULL: the products are in `logits` already (runner_sample.c). */
weft_status runner_make_logits(device_runner *r, const float *h, float *logits, uint32_t n);
/* The arguments of sampling that every call has; sampling without history, bias, cells and masks needs no others. */
weft_sample_args runner_sample_args(const device_runner *r, weft_sample_result *out, uint32_t n);
/* Samples tokens and logprobs of the rows that need their logits (runner_sample.c). asked_words: the most words of
 * `asked` that one call needs. */
weft_status runner_sample(device_runner *r, runner_flight *f, const runner_step *step);
uint64_t runner_asked_words(const device_runner *r);

/* How likely the tokens of prompts were (runner_scores.c). find_given lists, for each scored row that list_outputs
 * found, the prompt's next token; false: a row has no token after it. score asks the device, take_scores reads its
 * answer. */
bool runner_find_given(const device_runner *r, runner_flight *f, const weft_batch *batch);
weft_status runner_score(device_runner *r, runner_flight *f);
void runner_take_scores(device_runner *r, runner_flight *f);

/* Waits until the device has done a flight and applies its results to the slots. An error breaks the runner. */
void runner_settle(device_runner *r, runner_flight *flight);
void runner_settle_first(device_runner *r, uint32_t n); /* the first n of the flights that are not collected */

/* Canvases that are held to a grammar (runner_held.c). begin is called when a slot was opened. take is called with the
 * final canvas and says whether the grammar allows nothing after it. paths makes the statistics of held canvases and
 * replaces their argmax tokens, and draws outside the grammar, by the most likely canvas that the grammar allows, and
 * waits for the device; the flights before must be settled. temperature is that of all rows with statistics. */
weft_status runner_held_begin(const device_runner *r, runner_slot *slot);
bool runner_held_take(const device_runner *r, runner_slot *slot, const int32_t *canvas);
weft_status runner_held_paths(device_runner *r, const runner_step *step, const runner_outputs *outputs,
                              const float *temperature);
weft_status runner_open_held(device_runner *r);
void runner_close_held(device_runner *r);

/* runner_saves.c */
weft_status runner_slot_save(weft_runner *base, uint32_t index, uint32_t save);
weft_status runner_slot_restore(weft_runner *base, uint32_t index, uint32_t save);
weft_status runner_open_saves(device_runner *r);
void runner_close_saves(device_runner *r);

/* The slot of a segment of the flight; NULL: the segment's request has left the slot since. */
static inline runner_slot *runner_slot_of(device_runner *r, const runner_flight *f, uint32_t segment) {
  runner_slot *s = &r->slots[f->segment[segment].slot];
  return s->open && s->generation == f->generation[segment] ? s : NULL;
}

extern const weft_runner_ops runner_ops;
void runner_close(weft_runner *base);

#endif
