/* SPDX-License-Identifier: MIT */
/* What the endpoints that generate have in common: a body becomes a request, and the request an answer.
 *
 * Law: a dialect is a parser (bytes to weft_gen, with no model or engine), a writer (weft_dialect in
 * api/dialects/stream.h) and a form for its refusals. Admission, tenants, sampling, stop strings and streams know
 * nothing of dialects. */
#ifndef WEFT_API_DIALECTS_DIALECT_H
#define WEFT_API_DIALECTS_DIALECT_H

#include <limits.h>
#include <stddef.h>

#include "api/dialects/context.h"
#include "api/dialects/fields.h"
#include "api/dialects/handlers.h"
#include "api/dialects/openai.h"
#include "api/prompt.h"

/* On failure *gen is closed. */
typedef weft_status (*weft_parser)(const char *body, size_t n, const weft_body_rules *rules, weft_gen *gen,
                                   weft_refusal *why);

/* Parses the body and checks what it asks for. WEFT_OK: *gen is open; else the exchange was refused. */
weft_status weft_dialect_read(weft_server *server, weft_exchange *x, weft_parser parse, weft_gen *gen);
/* Submits what *gen asks for, answers in the dialect, and closes *gen. own: as in weft_answer_config. */
void weft_dialect_start(weft_server *server, weft_exchange *x, const weft_dialect *dialect, weft_gen *gen, void *own);

/* The parser of a body that has one prompt and asks for one answer: parses the JSON, fills in defaults, reads the
 * fields by a table, and calls rest (NULL: nothing) for those that the table leaves for later. On failure *gen is
 * closed. */
typedef weft_status (*weft_rest_reader)(weft_gen *gen, weft_refusal *why);
weft_status weft_dialect_open(const char *body, size_t n, const weft_body_rules *rules, const field_table *table,
                              weft_rest_reader rest, weft_gen *gen, weft_refusal *why);
/* weft's own fields, which every dialect has at the end of its table. */
/* clang-format off */
#define WEFT_DIALECT_FIELDS \
  {.name = "mode", .kind = FIELD_READ, .what = "autoregressive, diffusion or auto", .read = weft_openai_mode}, \
  {.name = "diffusion", .kind = FIELD_READ, .what = "how a canvas is denoised", .read = weft_openai_diffusion}, \
  {.name = "seed", .kind = FIELD_SEED, .what = "equal seeds give equal answers"}, \
  {.name = "ignore_eos", .kind = FIELD_BOOL, .what = "the model's ends do not end the answer", \
   .at = offsetof(weft_gen, params.ignore_eos)}, \
  {.name = "timeout_ms", .kind = FIELD_U32, .what = "the request ends after so long", \
   .at = offsetof(weft_gen, params.timeout_ms), .range = {0, 1, UINT32_MAX, false}}, \
  {.name = "priority", .kind = FIELD_READ, .what = "lower starts first, among requests of the tenant", \
   .read = weft_openai_priority}
/* Fields of OpenAI's chat that another dialect of conversations lacks, and that its clients send all the same. */
#define WEFT_DIALECT_CHAT_FIELDS \
  {.name = "min_p", .kind = FIELD_REAL, .what = "sampling", .at = offsetof(weft_gen, params.sampling.min_p), \
   .range = {WEFT_RANGE_MIN_P}}, \
  {.name = "repetition_penalty", .kind = FIELD_REAL, .what = "sampling", \
   .at = offsetof(weft_gen, params.sampling.repetition_penalty), .range = {WEFT_RANGE_REPETITION_PENALTY}}, \
  {.name = "presence_penalty", .kind = FIELD_REAL, .what = "sampling", \
   .at = offsetof(weft_gen, params.sampling.presence_penalty), .range = {WEFT_RANGE_PRESENCE_PENALTY}}, \
  {.name = "frequency_penalty", .kind = FIELD_REAL, .what = "sampling", \
   .at = offsetof(weft_gen, params.sampling.frequency_penalty), .range = {WEFT_RANGE_FREQUENCY_PENALTY}}, \
  {.name = "stop", .kind = FIELD_READ, .what = "strings that end the answer", .read = weft_openai_stop}, \
  {.name = "reasoning_effort", .kind = FIELD_READ, .what = "how hard to think", .read = weft_dialect_think_so}, \
  {.name = "n", .kind = FIELD_REFUSED, .what = "there is one answer; 1 says so", .nothing = "1"}, \
  {.name = "logit_bias", .kind = FIELD_REFUSED, .what = "ask /v1/chat/completions for it"}, \
  {.name = "response_format", .kind = FIELD_REFUSED, .what = "the format of the answer has another name here"}, \
  {.name = "chat_template", .kind = FIELD_REFUSED, .what = "the template is the model's or the operator's"}
/* The one row of top_k, for every dialect that has it: clients and routers that were made for vLLM write -1 for off. */
#define WEFT_DIALECT_TOP_K \
  {.name = "top_k", .kind = FIELD_OFF, .what = "sampling; -1 or 0: off", .at = offsetof(weft_gen, params.sampling.top_k), \
   .range = {WEFT_RANGE_TOP_K}}
/* clang-format on */

/* Readers of what several dialects have. effort: how hard to think, which becomes a variable of chat templates;
 * think_so: the same, and the model may think unless it is none; thinking: an object whose type says whether it may.
 * Clients send these two to models that they do not know: one that cannot think answers without. window: how many of
 * the last tokens penalties look at. */
weft_status weft_dialect_effort(weft_gen *gen, const json_t *value, const char *field, weft_refusal *why);
weft_status weft_dialect_think_so(weft_gen *gen, const json_t *value, const char *field, weft_refusal *why);
weft_status weft_dialect_thinking(weft_gen *gen, const json_t *value, const char *field, weft_refusal *why);
#define WEFT_DIALECT_DRAFTS "drafts: guesses at next tokens, which change no answer; where the server has them"
weft_status weft_dialect_drafts(weft_gen *gen, const json_t *value, const char *field, weft_refusal *why);
weft_status weft_dialect_window(weft_gen *gen, const json_t *value, const char *field, weft_refusal *why);
/* Adds the members of an object to the variables of the chat template. */
weft_status weft_dialect_variables(weft_gen *gen, const json_t *object, const char **variables, weft_refusal *why);
/* Reads a text that the body has as a string, or as a list whose parts read_part appends. must_be: the words of the
 * refusal of anything else. field: at most 80 bytes. */
typedef weft_status (*weft_part_reader)(weft_gen *gen, const json_t *part, const char *field, weft_text *out,
                                        weft_refusal *why);
weft_status weft_dialect_text(weft_gen *gen, const json_t *content, const char *field, const char *must_be,
                              weft_part_reader read_part, const char **out, weft_refusal *why);
/* Keeps a text that was made while parsing until the request is closed. */
weft_status weft_dialect_keep(weft_gen *gen, const weft_text *text, const char **out, weft_refusal *why);
/* Encodes the request's prompt as for an answer. The caller closes *out, whatever was returned. */
weft_status weft_dialect_encode(const weft_server *server, const weft_gen *gen, encoded_prompt *out, weft_refusal *why);

#endif
