/* SPDX-License-Identifier: MIT */
/* What a request gives a model to continue: a conversation with tools, a text, or tokens; and the formats that its
 * answer can be held to. Part of the public header (api/weft.h).
 *
 * Law. Every string is UTF-8 that the caller owns; a call that takes a prompt copies what it keeps. */
#ifndef WEFT_BASE_PROMPT_H
#define WEFT_BASE_PROMPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A call of a tool that an earlier turn of the model holds. */
typedef struct weft_tool_call {
  const char *id; /* what a result refers to; NULL: none */
  const char *name;
  const char *arguments; /* a JSON object as text; NULL or "": {} */
} weft_tool_call;

typedef struct weft_chat_turn {
  const char *role; /* "system", "developer", "user", "assistant", "tool" */
  const char *content;
  const char *thinking;        /* assistant: what it thought before, for templates that show it; NULL: nothing */
  const weft_tool_call *calls; /* assistant: what it called, after its content */
  uint32_t n_calls;
  const char *call_id; /* tool: the id of the call that this is the result of; NULL: not said */
  const char *name;    /* tool: which function this is the result of; NULL: the one that the call of this id names */
} weft_chat_turn;

/* What the model may call. */
typedef struct weft_tool {
  const char *name;        /* 1 to 64 of A-Z a-z 0-9 _ - */
  const char *description; /* NULL: none */
  const char *parameters;  /* a JSON schema of an object as text; NULL: an object with whatever members */
  bool strict;             /* arguments of a call fit the schema whatever the model would write */
} weft_tool;

typedef enum weft_tool_choice {
  WEFT_TOOLS_AUTO = 0,     /* the model decides */
  WEFT_TOOLS_NONE = 1,     /* no call: the declarations are not shown to the model */
  WEFT_TOOLS_REQUIRED = 2, /* one call or several */
  WEFT_TOOLS_NAMED = 3     /* one call, of the tool of that number */
} weft_tool_choice;

/* The format of an answer (structured output). Tokens that would leave the format cannot be drawn, so the answer
 * always is a text of the format, or the beginning of one where max_tokens cuts it. */
typedef enum weft_format {
  WEFT_FORMAT_ANY = 0,
  WEFT_FORMAT_JSON_OBJECT = 1, /* any JSON object */
  WEFT_FORMAT_JSON_SCHEMA = 2, /* JSON that fits a schema; docs/server.md says which keywords */
  WEFT_FORMAT_REGEX = 3,       /* a text that matches as a whole */
  WEFT_FORMAT_CHOICE = 4,      /* one of the texts of a JSON list */
  WEFT_FORMAT_GBNF = 5         /* a text of a grammar as llama.cpp writes them */
} weft_format;

/* What a model is to continue: exactly one of turns, text and tokens. Zero-initialise. */
typedef struct weft_prompt {
  const weft_chat_turn *turns; /* a conversation, rendered by the model's chat template */
  uint32_t n_turns;
  const weft_tool *tools; /* with turns: what the model may call; declared to it by its chat template */
  uint32_t n_tools;
  const char *variables; /* with turns: a JSON object of further variables of the chat template; NULL: none */
  bool thinking;    /* with turns: the model may think before it answers, where its template has a switch for that */
  bool continues;   /* with turns: the last one is the model's, and the answer goes on with its content */
  bool closed;      /* with turns: the model's turn is not opened */
  const char *text; /* a plain prompt; control tokens in it are text */
  size_t n_text;
  bool control_tokens;   /* with text: what is spelt like a control token is one; the caller is its own template */
  const int32_t *tokens; /* a prompt as token ids */
  uint32_t n_tokens;
} weft_prompt;

#endif
