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
typedef weft_status (*weft_parser)(const char *body, size_t n, const weft_json_size *limits, weft_gen *gen,
                                   weft_refusal *why);

/* Parses the body and checks what it asks for. WEFT_OK: *gen is open; else the exchange was refused. */
weft_status weft_dialect_read(weft_server *server, weft_exchange *x, weft_parser parse, weft_gen *gen);
/* Submits what *gen asks for, answers in the dialect, and closes *gen. own: as in weft_answer_config. */
void weft_dialect_start(weft_server *server, weft_exchange *x, const weft_dialect *dialect, weft_gen *gen, void *own);

/* The parser of a body that has one prompt and asks for one answer: parses the JSON, fills in defaults, reads the
 * fields by a table, and calls rest (NULL: nothing) for those that the table leaves for later. On failure *gen is
 * closed. */
typedef weft_status (*weft_rest_reader)(weft_gen *gen, weft_refusal *why);
weft_status weft_dialect_open(const char *body, size_t n, const weft_json_size *limits, const field_row *rows,
                              size_t n_rows, weft_rest_reader rest, weft_gen *gen, weft_refusal *why);
/* weft's own fields, which every dialect has at the end of its table. */
/* clang-format off */
#define WEFT_DIALECT_FIELDS                                                                                       \
  {.name = "mode", .kind = FIELD_READ, .read = weft_openai_mode},                                                 \
      {.name = "diffusion", .kind = FIELD_READ, .read = weft_openai_diffusion},                                   \
      {.name = "seed", .kind = FIELD_SEED},                                                                       \
      {.name = "ignore_eos", .kind = FIELD_BOOL, .at = offsetof(weft_gen, params.ignore_eos)},                    \
      {.name = "timeout_ms", .kind = FIELD_U32, .at = offsetof(weft_gen, params.timeout_ms),                      \
       .range = {0, 1, UINT32_MAX, false}},                                                                       \
      {.name = "priority", .kind = FIELD_READ, .read = weft_openai_priority}
/* clang-format on */

/* A field_reader of the reasoning effort, which becomes a variable of chat templates. */
weft_status weft_dialect_effort(weft_gen *gen, const json_t *value, const char *field, weft_refusal *why);
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
