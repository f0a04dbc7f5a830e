/* SPDX-License-Identifier: MIT */
/* A request for answers in the form that all dialects share: the parser of every dialect makes one (such as
 * openai_parse.c), and stream.c answers it.
 *
 * Law: a weft_gen owns all memory that its pointers name, until close. Parsing needs no model and no
 * engine, so a fuzzer can try hostile bodies without either (tests/fuzz/api_body.c). */
#ifndef WEFT_API_DIALECTS_GEN_H
#define WEFT_API_DIALECTS_GEN_H

#include <jansson.h>

#include "api/http/refusal.h"
#include "api/json_scan.h"
#include "api/weft.h"

/* What a body may be. */
typedef struct weft_body_rules {
  weft_json_size json;
  bool strict_fields; /* what would be passed over is refused (api/dialects/fields.h) */
} weft_body_rules;

/* A tool as its client knows it. The model is shown a function. */
typedef enum weft_tool_kind {
  WEFT_TOOL_FUNCTION,
  WEFT_TOOL_TEXT,  /* its argument is any text: a function with the one string `input` */
  WEFT_TOOL_SEARCH /* the client's own search among tools that are not shown yet */
} weft_tool_kind;

typedef struct weft_tool_origin {
  weft_tool_kind kind;
  const char *name;  /* the client's */
  const char *group; /* the name of the group that it is of; NULL: none */
} weft_tool_origin;

/* Where a turn stands in the body: LIST[index], or LIST itself where index is -1. */
typedef struct weft_turn_place {
  const char *list;
  int32_t index;
} weft_turn_place;

/* How the client wants its answers, beside what a generation is asked for. Plain data; an answer has a copy. */
typedef struct weft_wanted {
  uint32_t n_choices; /* answers that are made of each prompt (best_of) */
  uint32_t n_given;   /* how many of these the client gets, the most likely ones (n) */
  bool stream, include_usage, token_ids;
  bool canvas_tokens;   /* canvases that are streamed tell of each position */
  bool prompt_logprobs; /* the answer has a list of the prompt's logprobs, with n_prompt_logprobs likely tokens each */
  uint32_t n_prompt_logprobs;
  bool has_keep_alive;
  uint64_t keep_alive_us; /* of the model after this request; UINT64_MAX: until others need its room */
} weft_wanted;

typedef struct weft_gen {
  weft_generate_params params; /* without sampling.choice, tenant and prompt, which stream.c sets */
  weft_wanted wanted;
  weft_prompt *prompt;
  uint32_t n_prompts;
  bool strict_fields;           /* of the rules that the body was read by */
  bool may_think;               /* the model may think if it can: asked for by clients that do not know the model */
  const weft_tool_origin *tool; /* [prompt->n_tools] what the client calls its tools; NULL: as the model does */
  const weft_turn_place *turn_place;         /* [prompt->n_turns] for refusals; NULL: turns are messages[] (places.h) */
  const struct weft_place_word *place_words; /* up to one whose inner is NULL; NULL: names are those of OpenAI's chat */
  void *blocks;                              /* all memory of this request, a linked list */
  json_t *json;                              /* the parsed body, into which strings above point */
} weft_gen;

/* Parses a body that must be one JSON object within the limits; the caller frees it with json_decref. The refusal
 * names the place of the fault. */
weft_status weft_body_load(const char *body, size_t n, const weft_json_size *limits, json_t **out, weft_refusal *why);
/* Loads a body, and fills in what holds where it says nothing; no field of it is read yet, and there is no prompt.
 * After a failure *gen is closed already. */
weft_status weft_gen_open(weft_gen *gen, const char *body, size_t n, const weft_body_rules *rules, weft_refusal *why);
/* Zeroed memory that lives until close; NULL: no memory. */
void *weft_gen_alloc(weft_gen *gen, size_t n, size_t size);
void weft_gen_close(weft_gen *gen); /* a weft_gen that is all zero is fine */

#endif
