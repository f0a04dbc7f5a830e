/* SPDX-License-Identifier: MIT */
/* Answering a weft_gen over HTTP: one generation for each prompt and choice, and their deltas in the shape of a
 * dialect, as a stream or as one body.
 *
 * Law: the answer is one source of its exchange (api/http.h). It takes deltas only in pull, so a slow reader delays
 * itself alone; a client that leaves cancels every generation (left), and close frees them. A fault of one choice ends
 * the whole request: with a refusal before anything was sent, else with an error in the stream. What is written and
 * when is decided here; a dialect only says how it looks. Where fewer choices are given than made (best_of), they are
 * the most likely ones by mean log probability of a token, in that order. */
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
  bool echoed;       /* the prompt was given back, or is not to be */
  uint32_t n_echoed; /* tokens of it so far */
  /* what was not sent yet: of one delta where the answer is streamed, else of the whole answer */
  weft_text text, thinking, ids; /* ids: "1,2,3" */
  weft_text logprobs[4];         /* as the dialect wants them */
  uint32_t n_ids, n_logprobs;
  weft_answer_call *call; /* in the order of the answer; with some, finish is "tool_calls" in place of "stop" */
  uint32_t n_calls, calls_capacity, n_calls_sent; /* sent: calls before this one have been sent whole */
  struct answer_calls *reader; /* finds calls in the text; NULL: the request has no tools (api/answer_calls.h) */
  uint64_t text_offset;        /* bytes of text before the next token */
  uint32_t n_thinking_tokens;
  const char *finish;  /* once ended */
  const char *stop;    /* once ended: the stop string that did it, or NULL */
  int32_t stop_token;  /* once ended: of the request's own stop tokens the one that did it; -1: none */
  double mean_logprob; /* once ended */
  weft_usage_counts usage;
} weft_choice;

/* How a dialect writes; its members are static data and functions, each of which appends to out. */
typedef struct weft_dialect {
  const char *id_prefix;
  const char *stream_type; /* Content-Type of a stream */
  bool keeps_text;         /* a stream's end repeats the whole answer, which is kept until then */
  bool whole_by_chunks; /* a whole answer is made by chunk, too, as its stream is; what chunk writes is not sent then */
  /* Adds the logprobs of a delta to choice->logprobs; NULL: the dialect never asks for any. */
  void (*logprobs)(const weft_answer *answer, weft_choice *choice, const weft_delta *delta);
  /* A stream: what comes before the first text of a choice (NULL: nothing), what was not sent yet of a choice (with
   * finish the last of it), a canvas as it stands (NULL: text that was sent is never replaced, so only committed text
   * is), the end, and a fault in place of the end. */
  void (*begin)(const weft_answer *answer, const weft_choice *choice, weft_text *out);
  void (*chunk)(const weft_answer *answer, const weft_choice *choice, const char *finish, weft_text *out);
  void (*canvas)(const weft_answer *answer, const weft_choice *choice, const weft_delta *delta, weft_text *out);
  void (*last)(const weft_answer *answer, weft_text *out);
  void (*fault)(const weft_answer *answer, const weft_refusal *why, weft_text *out);
  /* The whole answer as one body. */
  void (*whole)(const weft_answer *answer, weft_text *out);
  void (*close)(void *own); /* NULL: the dialect keeps nothing of its own */
  const void *form;         /* the dialect's: what its endpoints do not share */
} weft_dialect;

struct weft_answer {
  const weft_dialect *dialect;
  weft_exchange *exchange;
  char *id;
  const char *model; /* the name it is served under */
  int64_t created;
  bool stream, by_chunks, include_usage, token_ids, canvas_events, logprobs; /* by_chunks: chunk is called */
  bool end_logprobs;    /* logprobs have an entry for the stop token, too */
  bool prompt_logprobs; /* a list of the prompt's logprobs is given, with n_prompt_logprobs likely tokens each */
  uint32_t n_top,
      n_prompt_logprobs; /* n_top: likely tokens at each place of the answer, and of a prompt in front of it */
  weft_choice *choice;
  uint32_t n, n_per_prompt, n_ended, turn;
  uint32_t n_given;           /* how many of n_per_prompt the client gets */
  struct answer_tools *tools; /* what may be called; NULL: no calls are looked for (api/answer_calls.h) */
  void *own;                  /* what the dialect keeps with the answer */
};

/* What all choices took together. The choices of a prompt read it once. */
typedef struct weft_answer_usage {
  uint64_t prompt, cached, completion, thinking, canvases, steps;
} weft_answer_usage;
weft_answer_usage weft_answer_get_usage(const weft_answer *answer);
/* The generation that has the prompt of a choice: that of the first choice of its prompt. */
weft_generation *weft_answer_prompt(const weft_answer *answer, const weft_choice *choice);

typedef struct weft_answer_config {
  weft_runtime *runtime;
  const weft_dialect *dialect;
  const weft_gen *gen; /* copied from; may be closed afterwards */
  uint32_t tenant;
  bool draining;
  void *own; /* the answer's from here on, also when the exchange is refused */
} weft_answer_config;

/* Submits every generation and gives the exchange a source that answers; or refuses the exchange. On a worker. */
void weft_answer_start(const weft_answer_config *config, weft_exchange *exchange);

#endif
