/* SPDX-License-Identifier: MIT */
/* What was said in `weft chat`: turns that can be dropped, saved and loaded.
 *
 * Law: at most one system turn, the first; behind it user and assistant in the order in which they spoke. A file that
 * could not be read or written whole changes nothing: neither the conversation nor a file that was there before. */
#ifndef WEFT_API_CLI_CONVERSATION_H
#define WEFT_API_CLI_CONVERSATION_H

#include "api/weft.h"
#include "base/status.h"

typedef struct weft_conversation {
  weft_chat_turn *turn; /* role: a literal; content: owned */
  uint32_t n, capacity;
} weft_conversation;

void weft_conversation_free(weft_conversation *c);
/* role: "user" or "assistant". */
weft_status weft_conversation_add(weft_conversation *c, const char *role, const char *content);
/* Takes the last turn away. */
void weft_conversation_take_back(weft_conversation *c);
/* "": none. */
weft_status weft_conversation_set_system(weft_conversation *c, const char *content);
/* All but the system turn. */
void weft_conversation_clear(weft_conversation *c);
/* Questions, with what was answered. */
uint32_t weft_conversation_questions(const weft_conversation *c);
/* Drops the oldest n questions and what was answered to them; the last question stays. Returns how many were
 * dropped. */
uint32_t weft_conversation_drop(weft_conversation *c, uint32_t n);

/* {"messages": [{"role": ..., "content": ...}, ...]}. A file that is there and is no conversation is left alone. */
weft_status weft_conversation_save(const weft_conversation *c, const char *path, weft_error *error);
weft_status weft_conversation_load(weft_conversation *c, const char *path, weft_error *error);

#endif
