/* SPDX-License-Identifier: MIT */
/* Law: private to model/chat*.c and their tests. What a template's text says is read once, at open,
 * into flags; a draft collects pieces and joins texts that touch, so that encoding sees them as
 * one. */
#ifndef WEFT_MODEL_CHAT_INTERNAL_H
#define WEFT_MODEL_CHAT_INTERNAL_H

#include "model/chat.h"

struct weft_chat {
  weft_chat_family family;
  const weft_tokenizer *tokenizer;
  /* gemma4 */
  bool empty_thought; /* without thinking, the model's turn opens with an empty thought channel */
  bool joins_turns;   /* an assistant message after another one opens no turn */
  bool joins_ends;    /* and the one before closes none */
  int32_t bos;
  /* both: thinking is kept in answers after the last question. qwen3: and cut out of the others */
  bool keeps_thinking;
  /* qwen3 */
  bool has_switch;    /* without thinking, the model's turn opens with an empty thought */
  bool always_thinks; /* the model's turn opens inside a thought */
  /* both: -1 when the vocabulary has none */
  int32_t turn, turn_end, think_on, thought, thought_end;
};

typedef struct chat_draft {
  const weft_chat *chat;
  weft_text bytes;
  weft_chat_piece *pieces; /* without their texts until the draft is done */
  uint32_t n, capacity;
  bool refused;
} chat_draft;

/* weft_chat_open with the template's text; path is for messages. */
weft_status chat_open(weft_bytes chat_template, const weft_tokenizer *tokenizer, const char *path, weft_chat **out,
                      weft_error *error);

void chat_token(chat_draft *draft, int32_t token);
void chat_text(chat_draft *draft, const char *text, size_t n);
void chat_puts(chat_draft *draft, const char *text);

/* A stretch of text, borrowed. */
typedef struct chat_span {
  const char *text;
  size_t n;
} chat_span;
/* Without white space (as Unicode has it) at both ends. */
chat_span chat_trim(chat_span span);
/* Without newlines at the beginning; at the end. */
chat_span chat_trim_newlines_left(chat_span span);
chat_span chat_trim_newlines_right(chat_span span);
/* First and last place of word in span; NULL when it is not there. */
const char *chat_first(chat_span span, const char *word);
const char *chat_last(chat_span span, const char *word);

void chat_gemma4(chat_draft *draft, const weft_chat_message *messages, uint32_t n, const weft_chat_options *options);
void chat_qwen3(chat_draft *draft, const weft_chat_message *messages, uint32_t n, const weft_chat_options *options);

#endif
