/* SPDX-License-Identifier: MIT */
/* The tools that a body declares, in every dialect, and which of them the answer must call.
 *
 * Law: a tool that the client runs is a function to the model, whatever its client calls it: a tool of a group has the
 * group's name before its own, and one of free text has one string as its argument; gen->tool leads back. A tool that
 * only another server could run is passed over (fields.h). A tool that is declared to be shown later is shown once the
 * conversation points to it or has called it, and at once where nobody but such a server could search for it. Names of
 * functions are checked here and nowhere else, so what follows may print them as they are. */
#ifndef WEFT_API_DIALECTS_TOOLS_H
#define WEFT_API_DIALECTS_TOOLS_H

#include "api/dialects/fields.h"

enum { TOOLS_NAME_MAX = 128 };

/* The tools while they are read. Zero-initialise but for gen. */
typedef struct tool_list {
  weft_gen *gen;
  weft_tool *tool;
  weft_tool_origin *origin;
  bool *later; /* shown only once the conversation points to it */
  uint32_t n, capacity;
  bool shows_all; /* nobody who could search for the others is here */
} tool_list;

/* Checks the name of a function. */
weft_status tools_name(const json_t *value, const char *field, const char **out, weft_refusal *why);
/* The name of a function that was called, in a history: one of other servers' names becomes one of ours, as that of a
 * group does. */
weft_status tools_called(weft_gen *gen, const json_t *value, const char *field, const char **out, weft_refusal *why);
/* The name by which the model knows a tool of a group; NULL: no memory. */
const char *tools_join(weft_gen *gen, const char *group, const char *name);
/* Adds a tool; *out is zero but for its name. */
weft_status tools_add(tool_list *list, const char *name, const char *field, weft_tool **out, weft_refusal *why);
/* Adds one whose argument is a text. format: what OpenAI's API says of that text, or NULL. */
weft_status tools_add_text(tool_list *list, const json_t *tool, const char *field, weft_refusal *why);
/* Leaves out a tool that only another server could run. */
weft_status tools_pass(const tool_list *list, const char *where, const char *type, const char *field,
                       weft_refusal *why);

/* Reads every entry of a list, be it an object or not; none where it is absent or null. field: of the list. */
typedef weft_status (*tool_reader)(tool_list *list, const json_t *tool, const char *field, weft_refusal *why);
weft_status tools_read(tool_list *list, const json_t *tools, const char *field, tool_reader read, weft_refusal *why);
/* Gives the prompt the tools that are shown. conversation: where the body points to tools and has calls, or NULL. */
weft_status tools_finish(tool_list *list, const json_t *conversation, weft_prompt *out, weft_refusal *why);

/* What the answer must call: "auto", "none", "any" or "required". */
weft_status tools_choose(weft_gen *gen, const weft_prompt *prompt, const char *word, const char *field,
                         weft_refusal *why);
/* This tool, by the client's name; field: the place of the name. group may be NULL. */
weft_status tools_require(weft_gen *gen, const weft_prompt *prompt, const char *group, const char *name,
                          const char *field, weft_refusal *why);
/* Only tools of this list, whose members name_of names: {"mode":"auto"|"required","tools":[...]}. */
typedef const char *(*tool_namer)(const json_t *tool);
weft_status tools_allow(weft_gen *gen, weft_prompt *prompt, const json_t *allowed, const char *field,
                        tool_namer name_of, weft_refusal *why);

#endif
