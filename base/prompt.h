/* SPDX-License-Identifier: MIT */
/* A prompt, which is what a request gives a model to continue: a conversation with tools, a text, or tokens; and the
 * formats that the answer can be held to. This header is installed beside the public header, api/weft.h.
 *
 * Law: every string is UTF-8, ends with a zero byte unless its length stands beside it, and belongs to the caller; a
 * function that takes a prompt copies what it keeps. */
#ifndef WEFT_BASE_PROMPT_H
#define WEFT_BASE_PROMPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A call of a tool that the model made in an earlier turn. */
typedef struct weft_tool_call {
  const char *id; /* the name by which the turn with the result refers to this call; NULL: none */
  const char *name;
  const char *arguments; /* a JSON object as text; NULL or "" means {} */
} weft_tool_call;

typedef struct weft_chat_turn {
  const char *role;            /* "system", "developer", "user", "assistant", "tool" */
  const char *content;         /* the text of the turn; "" where there is none, never NULL */
  const char *thinking;        /* assistant: its reasoning, for chat templates that show it again; NULL: none */
  const weft_tool_call *calls; /* assistant: the calls it made after its content */
  uint32_t n_calls;
  const char *call_id; /* tool: the id of the call whose result this turn is; NULL: not known */
  /* Who speaks, for chat templates that tell it; NULL: not named. tool: the function whose result this turn is; NULL:
   * the one that the call of call_id names. */
  const char *name;
} weft_chat_turn;

/* A function of the client's that the model may ask for. */
typedef struct weft_tool {
  const char *name;        /* 1 to 128 characters, each of A-Z a-z 0-9 _ - */
  const char *description; /* NULL: none */
  const char *parameters;  /* the JSON schema of the arguments, which are an object, as text; NULL: any object */
  bool strict;             /* calls are held to the schema, as an answer is held to a format */
} weft_tool;

typedef enum weft_tool_choice {
  WEFT_TOOLS_AUTO = 0,     /* the model decides whether it calls a tool */
  WEFT_TOOLS_NONE = 1,     /* no call: the tools are not shown to the model */
  WEFT_TOOLS_REQUIRED = 2, /* the answer is one call or several calls */
  WEFT_TOOLS_NAMED = 3     /* the answer is one call, of the tool that the request names by its number */
} weft_tool_choice;

/* The format that an answer is held to (vLLM: structured outputs). Tokens that would lead out of the format cannot be
 * drawn, so the answer is always a text of the format, or the beginning of such a text where max_tokens cuts it. */
typedef enum weft_format {
  WEFT_FORMAT_ANY = 0,
  WEFT_FORMAT_JSON_OBJECT = 1, /* any JSON object */
  WEFT_FORMAT_JSON_SCHEMA = 2, /* JSON that fits a schema; docs/server.md says which keywords */
  WEFT_FORMAT_REGEX = 3,       /* a text that a regular expression matches from its beginning to its end */
  WEFT_FORMAT_CHOICE = 4,      /* one of the strings of a JSON list */
  WEFT_FORMAT_GBNF = 5         /* a text of a grammar in GBNF, llama.cpp's notation */
} weft_format;

/* Exactly one of turns, text and tokens is given; all other members may stay zero. */
typedef struct weft_prompt {
  const weft_chat_turn *turns; /* a conversation, rendered by the model's chat template */
  uint32_t n_turns;
  const weft_tool *tools; /* with turns: the tools that the chat template declares to the model */
  uint32_t n_tools;
  const char *variables; /* with turns: a JSON object of further variables of the chat template; NULL: none */
  bool thinking;       /* with turns: the model may think before it answers, where the template has a switch for that */
  bool continues;      /* with turns: the last turn is the assistant's, and the answer continues that turn's content */
  bool closed;         /* with turns: the prompt ends with the last turn and does not open a turn of the assistant */
  const char *text;    /* a plain prompt; what is spelt like a control token stays text unless control_tokens is set */
  size_t n_text;       /* bytes */
  bool control_tokens; /* with text: what is spelt like a control token becomes one, for callers with a template */
  const int32_t *tokens; /* a prompt as token ids */
  uint32_t n_tokens;
} weft_prompt;

#endif
