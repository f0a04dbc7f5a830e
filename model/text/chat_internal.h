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
  CHAT_THOUGHTS_TAGS     /* <think> ... </think> */
} chat_thoughts;

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
  bool thought_letters;         /* the vocabulary has no tokens for the markers: they are read in the text */
  weft_call_form calls;         /* how the model writes calls of tools */
  int32_t call_marker[WEFT_CALL_MARKERS];
  uint32_t n_call_markers;
  bool tells_tools;            /* the template shows tools: one that was declared was found in what it printed */
  bool lacks_switch;           /* the template turns thinking on by a token that the vocabulary lacks */
  char *bos, *eos, *pad, *unk; /* "" when the file names none */
};

#endif
