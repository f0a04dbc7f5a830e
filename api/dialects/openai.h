/* SPDX-License-Identifier: MIT */
/* The OpenAI dialect: bodies to requests, answers to bodies and chunks. For the files of api/ only.
 *
 * Law: every field of a body is one of four: understood; refused by name, because ignoring it would change the answer;
 * wrong, and refused by name; or unknown: named in the log once and ignored, as other servers of this dialect do, or
 * refused where the operator wants that (api/dialects/openai_fields.h). */
#ifndef WEFT_API_DIALECTS_OPENAI_H
#define WEFT_API_DIALECTS_OPENAI_H

#include <jansson.h>

#include "api/dialects/gen.h"
#include "api/dialects/stream.h"
#include "api/dialects/tools.h"

typedef enum weft_openai_kind { WEFT_OPENAI_CHAT = 1, WEFT_OPENAI_COMPLETIONS = 2 } weft_openai_kind;

/* Parses a whole body into *gen, which the caller closes; after a failure it is closed already. */
weft_status weft_openai_parse_chat(const char *body, size_t n, const weft_body_rules *rules, weft_gen *gen,
                                   weft_refusal *why);
weft_status weft_openai_parse_completions(const char *body, size_t n, const weft_body_rules *rules, weft_gen *gen,
                                          weft_refusal *why);
struct weft_server; /* api/dialects/context.h */
/* Appends what a parsed body would be computed from (openai_render.c). id: of the request. */
weft_status weft_openai_render(const struct weft_server *server, const weft_gen *gen, weft_openai_kind kind,
                               const char *id, weft_text *out, weft_refusal *why);
/* Sets the turns of a prompt and nothing else of *out. */
weft_status weft_openai_messages(weft_gen *gen, const json_t *messages, weft_prompt *out, weft_refusal *why);
/* Reads chat_template_kwargs: sets thinking and variables of *prompt. */
weft_status weft_openai_variables(weft_gen *gen, const json_t *root, weft_prompt *prompt, weft_refusal *why);
/* Tools (api/dialects/openai_tools.c). Declarations of a list of {"type":"function","function":{...}} and of tools of
 * free text; conversation: as tools_finish has it. One function object, of a group or of none (NULL), which refusals
 * name as field. tool_choice and parallel_tool_calls, which need the prompt's tools. */
weft_status weft_openai_tools(weft_gen *gen, const json_t *tools, const json_t *conversation, weft_prompt *out,
                              weft_refusal *why);
weft_status weft_openai_function(tool_list *list, const json_t *function, const char *group, const char *field,
                                 weft_refusal *why);
weft_status weft_openai_tool_choice(weft_gen *gen, const json_t *root, weft_prompt *prompt, weft_refusal *why);
/* Read the calls of message i, an assistant's, and which call message i, a tool's, answers. */
weft_status weft_openai_calls(weft_gen *gen, const json_t *message, size_t i, weft_chat_turn *turn, weft_refusal *why);
weft_status weft_openai_result(const json_t *message, size_t i, weft_chat_turn *turn, weft_refusal *why);
/* Reads the name of message i: any text, but the name of a function where it is a tool's. */
weft_status weft_openai_speaker(weft_gen *gen, const json_t *message, size_t i, weft_chat_turn *turn,
                                weft_refusal *why);
/* Readers of values that other dialects have too. field: the name in refusals. A NULL value is one that was not
 * given. */
weft_status weft_openai_stop(weft_gen *gen, const json_t *stop, const char *field, weft_refusal *why);
weft_status weft_openai_mode(weft_gen *gen, const json_t *mode, const char *field, weft_refusal *why);
weft_status weft_openai_diffusion(weft_gen *gen, const json_t *diffusion, const char *field, weft_refusal *why);
/* Holds the answer to a format. value: a schema, a text or a list of texts, as the format needs; NULL for any JSON
 * object. */
weft_status weft_openai_set_format(weft_gen *gen, const char *field, weft_format format, const json_t *value,
                                   weft_refusal *why);
/* api/dialects/openai_limits.c: priority; what ends the answer, which tokens it may have and how much of the prompt
 * is kept; whether the prompt opens a turn of the model or continues the last message; and why a choice stopped,
 * written as a further member of a JSON object. */
weft_status weft_openai_priority(weft_gen *gen, const json_t *value, const char *field, weft_refusal *why);
weft_status weft_openai_limits(weft_gen *gen, const json_t *root, weft_refusal *why);
weft_status weft_openai_turn(const json_t *root, weft_prompt *prompt, weft_refusal *why);
void weft_openai_stop_reason(const weft_choice *choice, weft_text *out);
/* Sets the format of the answer that a body asks for, by any of the names that it has (openai_format.c). */
weft_status weft_openai_format(weft_gen *gen, const json_t *root, weft_refusal *why);

/* How the two endpoints each write a choice. */
typedef struct weft_openai_form {
  const char *object, *chunk_object;
  bool prompt_ids_in_choice; /* the prompt's token ids stand in each choice, not beside the choices */
  /* Write the object of one choice without its closing brace: as a chunk of what was not sent yet, the last one where
   * finish is not NULL, or whole. */
  void (*chunk)(const weft_answer *answer, const weft_choice *choice, const char *finish, weft_pieces *out);
  void (*whole)(const weft_answer *answer, const weft_choice *choice, weft_pieces *out);
} weft_openai_form;

extern const weft_openai_form weft_openai_chat_form, weft_openai_completions_form;
/* Write tokens with their logprobs: in the form of chat, which other dialects use too, and in that of completions. */
void weft_openai_chat_logprobs(const weft_answer *answer, weft_choice *choice, const weft_delta *delta);
void weft_openai_completions_logprobs(const weft_answer *answer, weft_choice *choice, const weft_delta *delta);
/* The prompt in the answer (api/dialects/openai_prompt.c). weft_openai_echo reads echo, with which max_tokens may be 0;
 * prompt_logprobs must be read after logprobs; weft_openai_prompt_part adds a part to the list that it asks for, and
 * weft_openai_prompt_logprobs writes the list as a further member of a JSON object. */
weft_status weft_openai_echo(weft_gen *gen, weft_openai_kind kind, const json_t *root, weft_refusal *why);
weft_status weft_openai_read_prompt_logprobs(weft_gen *gen, const json_t *root, weft_refusal *why);
void weft_openai_prompt_logprobs(const weft_answer *answer, const weft_choice *choice, weft_pieces *out);
void weft_openai_prompt_part(const weft_answer *answer, weft_choice *choice, const weft_delta *part);
/* Writes each position of a canvas as further members of a JSON object (api/dialects/openai_canvas.c). The delta has a
 * trace. */
void weft_openai_canvas_tokens(const weft_answer *answer, const weft_choice *choice, const weft_delta *delta,
                               weft_text *out);

extern const weft_dialect weft_openai_chat, weft_openai_completions;

#endif
