/* SPDX-License-Identifier: MIT */
/* What the engine tells the reader of one request.
 *
 * Law. Tokens are told once and in order; FINISHED is told exactly once and is the last event. */
#ifndef WEFT_SCHEDULER_EVENT_H
#define WEFT_SCHEDULER_EVENT_H

#include "scheduler/params.h"

typedef enum weft_finish {
  WEFT_FINISH_NONE = 0,
  WEFT_FINISH_STOP = 1,   /* end-of-generation token or stop rule */
  WEFT_FINISH_LENGTH = 2, /* max_tokens or context limit */
  WEFT_FINISH_CANCELLED = 3,
  WEFT_FINISH_DEADLINE = 4,
  WEFT_FINISH_ERROR = 5,   /* error text says why */
  WEFT_FINISH_EVICTED = 6, /* it had not started, and gave its place in the full queue to another tenant */
  WEFT_FINISH_KINDS = 7
} weft_finish;

/* "stop", "length", ...; "" for NONE */
const char *weft_finish_text(weft_finish finish);

/* Copies of what happened; see weft_engine_poll. */
typedef enum weft_event_kind {
  WEFT_EVENT_TOKENS = 1, /* more of the answer is final */
  WEFT_EVENT_CANVAS = 2, /* a denoise step ended (canvas_events or trace) */
  WEFT_EVENT_FINISHED = 3
} weft_event_kind;

typedef struct weft_usage {
  uint32_t n_prompt, n_cached, n_answer;
  uint32_t n_computed_rows; /* prompt rows computed, recompute after preemption included */
  uint32_t n_canvases, n_denoise_steps, n_preemptions;
  uint64_t submitted_us, started_us, first_token_us, finished_us;
} weft_usage;

typedef struct weft_event {
  weft_event_kind kind;
  /* TOKENS: answer[first .. first + n) ; pointers stay valid until release */
  uint32_t first, n;
  const int32_t *tokens;
  uint32_t n_top; /* most likely tokens told of each token, as asked */
  const weft_logprob
      *logprobs; /* [n][1 + n_top] with logprobs wanted, else NULL: the token itself, then the most likely
                                   ones; token -1 where the vocabulary has no more */
  /* CANVAS: valid until the next poll of this request */
  uint32_t block, step, n_accepted;
  bool stopped; /* the sampler's own rule ended the canvas (not the step limit) */
  float temperature, mean_entropy;
  uint32_t n_canvas;
  const int32_t *argmax;
  const int32_t *canvas_in, *drawn, *canvas_out; /* trace only */
  const float *entropy;
  const uint8_t *accepted;
  uint32_t n_dropped; /* canvas events the reader was too slow for */
  /* FINISHED */
  weft_finish finish;
  weft_usage usage;
  const char *error; /* FINISH_ERROR */
  uint64_t retry_us; /* FINISH_EVICTED: an estimate of when to submit again */
} weft_event;

#endif
