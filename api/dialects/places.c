/* SPDX-License-Identifier: MIT */
#include "api/dialects/places.h"

#include <stdio.h>
#include <string.h>

#include "base/text.h"

static bool is_of_name(char c) {
  return c == '_' || (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z');
}

/* Whether the words stand at the place in the line, and are no part of longer ones. */
static bool stands_at(const char *line, size_t at, const char *words) {
  size_t n = strlen(words);
  return strncmp(line + at, words, n) == 0 && (at == 0 || !is_of_name(line[at - 1])) && !is_of_name(line[at + n]);
}

/* The turn that the line names there, as "message 3" or "messages[3].tool_calls[0]"; n: its bytes. 0: it names none. */
static size_t find_turn(const char *line, size_t at, uint32_t *turn) {
  int n = 0;
  if (at > 0 && is_of_name(line[at - 1])) return 0;
  if (sscanf(line + at, "message %u%n", turn, &n) == 1 && n > 0) return (size_t)n;
  n = 0;
  if (sscanf(line + at, "messages[%u]%n", turn, &n) != 1 || n == 0) return 0;
  return (size_t)n + strspn(line + at + n, ".[]_0123456789abcdefghijklmnopqrstuvwxyz");
}

static void put_turn(const weft_turn_place *place, weft_text *out) {
  weft_text_puts(out, place->list);
  if (place->index >= 0) weft_text_printf(out, "[%d]", place->index);
}

/* Appends what stands in the place of the line's bytes from `at` on; gives their number. 0: nothing does. */
static size_t put_own(const weft_gen *gen, const char *line, size_t at, weft_text *out) {
  uint32_t turn = 0;
  size_t n = gen->turn_place == NULL ? 0 : find_turn(line, at, &turn);
  if (n > 0 && turn < gen->prompt->n_turns) {
    put_turn(&gen->turn_place[turn], out);
    return n;
  }
  for (const weft_place_word *w = gen->place_words; w != NULL && w->inner != NULL; w++) {
    if (!stands_at(line, at, w->inner)) continue;
    weft_text_puts(out, w->own);
    return strlen(w->inner);
  }
  return 0;
}

void places_name(const weft_gen *gen, weft_refusal *why) {
  weft_text line = {0};
  const char *from = why->message;
  /* of a prompt that is too long it is the length that is at fault, and no field */
  bool names_param = why->code == NULL || strcmp(why->code, "context_length_exceeded") != 0;
  for (size_t at = 0; from[at] != 0;) {
    size_t before = line.n, n = put_own(gen, from, at, &line);
    if (n == 0) weft_text_append(&line, from + at, 1);
    bool one = n > 0 && !line.refused && memchr(line.bytes + before, ' ', line.n - before) == NULL;
    if (one && why->param[0] == 0 && names_param) {
      (void)snprintf(why->param, sizeof why->param, "%.*s", (int)(line.n - before), line.bytes + before);
    }
    at += n > 0 ? n : 1;
  }
  if (weft_text_status(&line) == WEFT_OK && line.n > 0) {
    (void)snprintf(why->message, sizeof why->message, "%.*s", (int)line.n, line.bytes);
  }
  weft_text_free(&line);
}
