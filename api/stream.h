/* SPDX-License-Identifier: MIT */
/* Answering a weft_gen over HTTP: one generation per prompt and choice, their deltas in the shape
 * of a dialect, as events or as one body.
 *
 * Law: the answer is one source of its exchange (api/http.h): it takes deltas only in pull, so a
 * slow reader holds up nobody but itself, and closing it frees every generation. A fault of one
 * choice ends the whole request: with a refusal before anything was sent, else with an error event.
 * What a dialect writes is one choice at a time; the envelope around it is written here. Where fewer
 * choices are given than made (best_of), they are the most likely ones per token, in that order. */
#ifndef WEFT_API_STREAM_H
#define WEFT_API_STREAM_H

#include "api/gen.h"
#include "api/http.h"

typedef struct weft_answer weft_answer;

/* A call in the answer. A dialect that streams gives the name and the id once, with the first chunk that has the call in
 * it (begun is false there), and arguments as they come; the arguments of a whole answer are all there. */
typedef struct weft_answer_call {
  char id[40];
  weft_text name;
  weft_text arguments; /* a JSON object as text, not sent yet: with streaming of one chunk, else all */
  bool begun;          /* its first chunk was sent */
  bool whole;          /* its arguments are complete and valid JSON; false at the end: cut off, or the model erred */
} weft_answer_call;

typedef struct weft_choice {
  weft_generation *generation;
  uint32_t index, prompt;
  bool begun, ended;
  /* what was not sent yet: with streaming of one delta, else of the whole answer */
  weft_text text, thinking, ids; /* ids: "1,2,3" */
  weft_text logprobs[4];         /* as the dialect wants them */
  uint32_t n_ids, n_logprobs;
  weft_answer_call *call; /* in the order of the answer; with some, finish is "tool_calls" in place of "stop" */
  uint32_t n_calls, calls_capacity;
  struct answer_calls *reader; /* finds calls in the text; NULL: the request has no tools (api/answer_calls.h) */
  uint64_t text_offset;        /* of the next token's text, in bytes */
  uint32_t n_thinking_tokens;
  const char *finish;  /* once ended */
  double mean_logprob; /* once ended */
  weft_usage_counts usage;
} weft_choice;

/* How a dialect writes. */
typedef struct weft_dialect {
  const char *id_prefix, *object, *chunk_object;
  bool prompt_ids_in_choice; /* else beside the choices */
  bool opens;                /* a first chunk without text */
  /* Adds the logprobs of a delta to choice->logprobs. */
  void (*logprobs)(weft_choice *choice, const weft_delta *delta);
  /* The object of one choice, without its closing brace: a chunk of what was not sent yet, with
   * finish the last one, or the whole. */
  void (*chunk)(const weft_answer *answer, const weft_choice *choice, const char *finish, weft_text *out);
  void (*whole)(const weft_answer *answer, const weft_choice *choice, weft_text *out);
} weft_dialect;

struct weft_answer {
  const weft_dialect *dialect;
  weft_exchange *exchange;
  char *id;
  const char *model; /* the name it is served under */
  int64_t created;
  bool stream, include_usage, token_ids, canvas_events, logprobs;
  weft_choice *choice;
  uint32_t n, n_per_prompt, n_ended, turn;
  uint32_t n_given; /* of n_per_prompt */
};

typedef struct weft_answer_config {
  weft_runtime *runtime;
  const weft_dialect *dialect;
  const weft_gen *gen; /* copied from; may be closed afterwards */
  uint32_t tenant;
  bool draining;
} weft_answer_config;

/* Submits every generation and hands the answer to the exchange; or refuses the exchange. */
void weft_answer_start(const weft_answer_config *config, weft_exchange *exchange);

#endif
