/* SPDX-License-Identifier: MIT */
/* What the files of the chat template share; private to model/chat*.c and their tests.
 *
 * Law: how the model marks its thinking, and how it writes calls, is read off the template's text once, at open. */
#ifndef WEFT_MODEL_TEXT_CHAT_INTERNAL_H
#define WEFT_MODEL_TEXT_CHAT_INTERNAL_H

#include <stdatomic.h>

#include "model/text/chat.h"
#include "model/text/jinja.h"

typedef enum chat_thoughts {
  CHAT_THOUGHTS_NONE,
  CHAT_THOUGHTS_CHANNEL, /* <|channel>NAME\n ... <channel|> */
  CHAT_THOUGHTS_TAGS,    /* <think> ... </think> */
  CHAT_THOUGHTS_HARMONY  /* <|channel|>analysis<|message|> ... <|end|>, see model/text/chat_harmony.c */
} chat_thoughts;

/* The tokens of gpt-oss's way of writing, Harmony; -1: the vocabulary lacks it. */
typedef struct chat_harmony {
  int32_t start, channel, constrain, message, end;
} chat_harmony;

/* What the log has heard of this template: the one thing of a weft_chat that changes. */
typedef struct chat_told {
  atomic_uint ways;
} chat_told;

struct weft_chat {
  weft_jinja *jinja;
  const weft_tokenizer *tokenizer;
  chat_told *told;
  char *name; /* where the template comes from, for messages */
  chat_thoughts thoughts;
  int32_t thought, thought_end; /* -1 with CHAT_THOUGHTS_NONE, and where the markers are letters */
  chat_harmony harmony;         /* with CHAT_THOUGHTS_HARMONY */
  bool thought_letters;         /* the vocabulary has no tokens for the markers: they are read in the text */
  weft_call_form calls;         /* how the model writes calls of tools */
  int32_t call_marker[WEFT_CALL_MARKERS];
  uint32_t n_call_markers;
  bool tells_tools;            /* the template shows tools: one that was declared was found in what it printed */
  bool lacks_switch;           /* the template turns thinking on by a token that the vocabulary lacks */
  char *bos, *eos, *pad, *unk; /* "" when the file names none */
};

/* Whether the template writes Harmony, and the vocabulary has its tokens. */
bool chat_harmony_find(const weft_tokenizer *tokenizer, weft_bytes chat_template, chat_harmony *out);
/* What the header of a message says (model/text/chat_harmony.c). */
typedef struct chat_harmony_header {
  bool thinking;
  const char *name; /* of the function that is called, n bytes; NULL: none is */
  size_t n;
} chat_harmony_header;
/* Whether a prompt ends within a message of thinking: some templates write the header of the answer. */
bool chat_harmony_starts_thinking(const weft_chat *chat, const int32_t *tokens, uint32_t n);
chat_harmony_header chat_harmony_read(const char *header, size_t n);
/* Whether the beginning of an answer may be the header of a message, which the prompt has begun. */
bool chat_harmony_may_begin(const char *text, size_t n);

#endif
