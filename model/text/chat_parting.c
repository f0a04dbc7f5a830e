/* SPDX-License-Identifier: MIT */
#include "model/text/chat_parting.h"

#include <string.h>

enum { SOUGHT_MAX = 256 /* bytes of a message by which its place is found */ };

static bool is_instruction(const weft_chat_message *message) {
  return strcmp(message->role, "system") == 0 || strcmp(message->role, "developer") == 0;
}

static bool is_blank(char c) {
  return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* The beginning of what a template prints of a message: many leave out blanks at both ends. */
static weft_bytes begin_of(const weft_chat_message *message) {
  const char *from = message->content, *end = from + message->n_content;
  while (from < end && is_blank(*from)) from += 1;
  while (end > from && is_blank(end[-1])) end -= 1;
  size_t n = (size_t)(end - from);
  return (weft_bytes){from, n < SOUGHT_MAX ? n : SOUGHT_MAX};
}

static bool is_given(const weft_jinja_text *text, size_t from, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (text->marks[from + i] == WEFT_JINJA_OWN) return false;
  return true;
}

/* Where the words stand in the text, as bytes of the request, at `from` or behind; text->n: nowhere. */
static size_t find_words(const weft_jinja_text *text, weft_bytes words, size_t from) {
  while (words.n > 0 && from < text->n) {
    const char *at = memmem(text->bytes + from, text->n - from, words.data, words.n);
    if (at == NULL) return text->n;
    from = (size_t)(at - text->bytes);
    if (is_given(text, from, words.n)) return from;
    from += 1;
  }
  return text->n;
}

/* How many pieces end at or before this byte. */
static uint32_t count_pieces(const weft_chat_pieces *pieces, size_t at) {
  uint32_t n = 0;
  while (n < pieces->n && (size_t)(pieces->pieces[n].text - pieces->bytes) + pieces->pieces[n].n <= at) n += 1;
  return n;
}

void chat_parting_find(const weft_chat_message *messages, uint32_t n, const weft_jinja_text *text,
                       weft_chat_pieces *pieces) {
  size_t at = 0, end = text->n;
  uint32_t i = 0;
  for (; i < n && is_instruction(&messages[i]); i++) {
    weft_bytes words = begin_of(&messages[i]);
    size_t found = find_words(text, words, at);
    if (found < text->n) at = found + words.n;
  }
  if (i < n) at = find_words(text, begin_of(&messages[i]), at);
  pieces->parting[0] = i < n && at < text->n ? count_pieces(pieces, at) : 0;
  while (end > 0 && text->marks[end - 1] == WEFT_JINJA_OWN) end -= 1;
  uint32_t n_told = end == 0 ? 0 : count_pieces(pieces, end - 1) + 1; /* with the piece that the last byte is in */
  pieces->parting[1] = n_told < pieces->n ? n_told : pieces->n;
}
