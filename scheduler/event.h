/* SPDX-License-Identifier: MIT */
/* What the engine tells the reader of one request (weft_engine_poll).
 *
 * Law. Every token is given once and in order; FINISHED comes exactly once and is the last event. */
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
  WEFT_FINISH_EVICTED = 6, /* it had not started, and its place in the full queue went to another tenant */
  WEFT_FINISH_KINDS = 7
} weft_finish;

/* "stop", "length", ...; "" for NONE */
const char *weft_finish_text(weft_finish finish);

/* How likely a token of the prompt was at its position, by the model's own distribution (weft_scored in
 * model/sampler.h). The first token follows no other and has no logprob. */
typedef struct weft_prompt_logprob {
  float logprob;
  uint32_t rank; /* among all tokens, from 1; 0: lower than WEFT_TOP_LOGPROBS_MAX */
} weft_prompt_logprob;

typedef struct weft_prompt_logprobs {
  uint32_t n, n_top;
  const weft_prompt_logprob *own; /* [n], of tokens 1 to n of the prompt */
  const weft_logprob *top;        /* [n][n_top], best first; token -1 where the vocabulary has no more */
} weft_prompt_logprobs;

typedef enum weft_event_kind {
  WEFT_EVENT_TOKENS = 1, /* more of the answer is final */
  WEFT_EVENT_CANVAS = 2, /* a denoise step ended (canvas_deltas or trace) */
  WEFT_EVENT_FINISHED = 3
} weft_event_kind;

/* What drafts took of a request's time. What a call or a step did for several requests counts whole for each of them,
 * since each waited for it. */
typedef struct weft_draft_times {
  uint32_t n_runs;
  uint64_t draft_ns;  /* until it had its drafts, or knew that there are none */
  uint64_t verify_us; /* of the device, for the steps that had its runs; 0 where no runner measures steps */
  uint64_t commit_ns; /* of the host, to take in what the runs gave */
  uint64_t back_ns;   /* of that, to take back what void rows had */
} weft_draft_times;

typedef struct weft_usage {
  uint32_t n_prompt, n_cached, n_answer; /* tokens; n_cached: of the prompt, found in the prefix cache */
  uint32_t n_computed_rows;              /* rows of the prompt that were computed, again after a preemption too */
  uint32_t n_canvases, n_denoise_steps, n_preemptions;
  uint32_t n_drafted, n_accepted; /* drafts that had rows; those that are tokens of the answer */
  weft_draft_times drafts;
  uint64_t submitted_us, started_us, first_token_us, finished_us;
  uint64_t denoising_us; /* the runner got the step of the first denoise step; 0: none */
} weft_usage;

typedef struct weft_event {
  weft_event_kind kind;
  /* TOKENS: the tokens first .. first + n - 1 of the answer. The pointers stay valid until the request is released. */
  uint32_t first, n;
  const int32_t *tokens;
  uint32_t n_top; /* how many most likely tokens come with each token, as the request asked */
  /* [n][1 + n_top] where logprobs were asked for, else NULL: the token itself, then the most likely ones; token -1
   * where the vocabulary has no more. FINISHED: [1 + n_top] of the stop token that ended a token-by-token answer */
  const weft_logprob *logprobs;
  /* CANVAS: the pointers are valid until the next poll of this request. */
  uint32_t block, step, n_accepted;
  bool stopped; /* the sampler's stability rule ended the canvas, not its step limit */
  float temperature, mean_entropy;
  uint32_t n_canvas;
  const int32_t *argmax;
  const int32_t *canvas_in, *drawn, *canvas_out; /* trace only */
  const float *entropy;
  const uint8_t *accepted;
  uint32_t n_dropped; /* canvas events lost since the last one, because the reader was too slow */
  /* FINISHED */
  weft_finish finish;
  weft_usage usage;
  const char *error;  /* FINISH_ERROR: one line, valid until the request is released */
  int32_t stop_token; /* the stop token that ended the answer; -1: none did */
  uint64_t retry_us;  /* FINISH_EVICTED: estimated microseconds until a new submission gets a place */
} weft_event;

#endif
