/* SPDX-License-Identifier: MIT */
/* Answering a weft_gen over HTTP: one generation for each prompt and choice, and their deltas in the shape of a
 * dialect, as a stream or as one body.
 *
 * Law: the answer is one source of its exchange (api/http/http.h). It takes deltas only in pull, so a slow reader
 * delays itself alone; a client that leaves cancels every generation (left), and close frees them. A fault of one
 * choice ends the whole request: with a refusal before anything was sent, else with an error in the stream. This
 * file decides what is written and when; a dialect only decides how it looks. Where a request asks for fewer choices
 * than are made (best_of), the client gets those with the highest mean logprob of a token, in that order.
 *
 * A stream begins at once: what a dialect says before the first text of a choice does not wait for that text.
 *
 * Work: one step of a pull takes one delta, which has at most 256 tokens or 512 logprobs, or reads a little of what was
 * written (pieces.h). What grows with an answer is written as pieces; nothing else here or in a dialect may cost more
 * than a delta does. */
#ifndef WEFT_API_DIALECTS_STREAM_H
#define WEFT_API_DIALECTS_STREAM_H

#include <stdatomic.h>

#include "api/dialects/gen.h"
#include "api/dialects/pieces.h"
#include "api/http/http.h"

typedef struct weft_answer weft_answer;

/* A call of a tool in the answer. A stream gives the name and the id once, with the first chunk of the call (begun is
 * false in that chunk), and the arguments as they come; in a whole answer all arguments are there. */
typedef struct weft_answer_call {
  char id[40];
  weft_text name;
  const weft_tool_origin *origin; /* what its client calls the tool; NULL: as the model does, or it has no such tool */
  weft_text arguments; /* JSON text: in a stream what was not sent yet, else all of it; of free text: that text */
  bool begun;          /* the first chunk of the call was sent */
  bool whole;          /* the arguments are a whole JSON object; false at the end: cut off, or the model made a fault */
} weft_answer_call;

typedef struct weft_choice {
  weft_generation *generation;
  uint32_t index, prompt;
  bool begun, ended;
  bool prompt_read;        /* all of the prompt was taken, or none of it is wanted */
  uint32_t n_prompt_read;  /* tokens of the prompt that were taken so far */
  weft_text prompt_places; /* of the first choice of a prompt: its logprobs so far, as the dialect writes them */
  /* What was not sent yet: of one delta where the answer is streamed, else of the whole answer. */
  weft_text text, thinking, ids; /* ids: "1,2,3" */
  weft_text logprobs[4];         /* as the dialect writes them */
  uint32_t n_ids, n_logprobs;
  weft_answer_call *call; /* in the order of the answer; an answer with calls ends with "tool_calls", not "stop" */
  uint32_t n_calls, calls_capacity, n_calls_sent; /* n_calls_sent: calls that were sent whole */
  struct answer_calls *reader; /* finds calls in the text; NULL: the request has no tools (answer_calls.h) */
  uint64_t n_prompt_text;      /* characters of the prompt that stand in front of the text */
  uint32_t n_thinking_tokens;
  bool has_text;       /* something of the answer was text */
  const char *finish;  /* once ended */
  const char *stop;    /* once ended: the stop string that ended it, or NULL */
  int32_t stop_token;  /* once ended: the one of the request's own stop tokens that ended it; -1: none */
  double mean_logprob; /* once ended */
  weft_usage_counts usage;
} weft_choice;

/* How a dialect writes an answer: static data, and functions that append to out. */
typedef struct weft_dialect {
  const char *id_prefix;
  const char *stream_type; /* Content-Type of a stream */
  bool keeps_text;         /* a stream's end repeats the whole answer, which is kept until then */
  bool whole_by_chunks; /* chunk is called for a whole answer too, to keep what `whole` needs; its text is not sent */
  /* Adds the logprobs of a delta to choice->logprobs; NULL: the dialect never asks for any. */
  void (*logprobs)(const weft_answer *answer, weft_choice *choice, const weft_delta *delta);
  /* Adds a part of the prompt to choice->prompt_places; NULL: the dialect never asks for its logprobs. */
  void (*prompt)(const weft_answer *answer, weft_choice *choice, const weft_delta *part);
  /* The parts of a stream. begin: what comes before the first text of a choice (NULL: nothing). chunk: what was not
   * sent yet of a choice, the last of it where finish is not NULL. canvas: a canvas after a denoise step (NULL: the
   * dialect cannot replace text that was sent, so only final text is sent). last: the end. fault: an error in place of
   * the end. */
  void (*begin)(const weft_answer *answer, const weft_choice *choice, weft_pieces *out);
  void (*chunk)(const weft_answer *answer, const weft_choice *choice, const char *finish, weft_pieces *out);
  void (*canvas)(const weft_answer *answer, const weft_choice *choice, const weft_delta *delta, weft_pieces *out);
  void (*last)(const weft_answer *answer, weft_pieces *out);
  void (*fault)(const weft_answer *answer, const weft_refusal *why, weft_pieces *out);
  /* What tells the client of a stream that the answer is still to come and changes nothing in it. */
  void (*ping)(const weft_answer *answer, weft_text *out);
  /* The whole answer as one body. */
  void (*whole)(const weft_answer *answer, weft_pieces *out);
  /* What is to be done before the client hears of the end, as far as *work goes. True: it is done. NULL: nothing. */
  bool (*settle)(const weft_answer *answer, int64_t *work);
  void (*close)(void *own); /* frees weft_answer.own; NULL: the dialect keeps nothing of its own */
  const void *form;         /* the dialect's own data, which differ between its endpoints */
} weft_dialect;

struct weft_answer {
  const weft_dialect *dialect;
  weft_exchange *exchange;
  char *id;
  const char *model; /* the name under which the model is served */
  int64_t created;
  weft_wanted wanted;
  const weft_generate_params *asked; /* of all choices but for the prompt; the first generation's, as long as it is */
  bool by_chunks;                    /* chunk is called */
  bool by_canvas;                    /* the answer is written by diffusion */
  weft_choice *choice;
  uint32_t n, n_ended, turn;
  uint32_t n_begun;           /* choices whose begin was written */
  bool over;                  /* the end is written, or the fault */
  weft_pieces out;            /* written, and not yet given */
  weft_text body;             /* a whole answer as far as it is formatted */
  struct answer_tools *tools; /* the tools that may be called; NULL: no calls are looked for (answer_calls.h) */
  void *own;                  /* what the dialect keeps with the answer */
};

/* The usage of all choices together. A prompt counts once for all of its choices. */
typedef struct weft_answer_usage {
  uint64_t prompt, cached, completion, thinking, canvases, steps, drafted, accepted;
  uint64_t draft_runs, draft_us, verify_us, commit_us, rollback_us;
} weft_answer_usage;
weft_answer_usage weft_answer_get_usage(const weft_answer *answer);
/* "diffusion" or "autoregressive": how the answer is written. */
const char *weft_answer_mode_name(const weft_answer *answer);
/* The first choice of the same prompt, whose generation has the prompt. */
const weft_choice *weft_answer_first(const weft_answer *answer, const weft_choice *choice);

typedef struct weft_answer_config {
  weft_runtime *runtime;
  const weft_dialect *dialect;
  const weft_gen *gen; /* what is kept is copied; may be closed afterwards */
  uint32_t tenant;
  const atomic_bool *draining; /* the server is shutting down: what is not submitted yet is refused */
  void *own;                   /* becomes the answer's, also when the exchange is refused */
} weft_answer_config;

/* Submits every generation and gives the exchange a source that answers, or refuses the exchange. Called on a worker,
 * which it gives back where others need it (weft_exchange_gives_back): then it is called again with the same. */
void weft_answer_start(const weft_answer_config *config, weft_exchange *exchange);

#endif
