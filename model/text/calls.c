/* SPDX-License-Identifier: MIT */
/* What all forms share: content, markers, the beginning and the end of a call. */
#include "model/text/calls.h"

#include <stdio.h>
#include <string.h>

#include "model/text/calls_internal.h"

static const weft_call_tags qwen_tags = {.open = "<function=",
                                         .open_end = ">",
                                         .close = "</function>",
                                         .argument = "<parameter=",
                                         .argument_end = ">",
                                         .behind = "</parameter>"},
                            dsml_tags = {.open = "<" WEFT_CALL_INNER "invoke name=\"",
                                         .open_end = "\">",
                                         .close = "</" WEFT_CALL_INNER "invoke>",
                                         .argument = "<" WEFT_CALL_INNER "parameter name=\"",
                                         .argument_end = "\">",
                                         .behind = "</" WEFT_CALL_INNER "parameter>",
                                         .typed = true};

const calls_row calls_rows[WEFT_CALL_FORMS] = {
    [WEFT_CALLS_JSON] = {.name = "json", .bare = true, .head = calls_json_head},
    [WEFT_CALLS_HERMES] = {.name = "hermes",
                           .open = {"<tool_call>"},
                           .close = "</tool_call>",
                           .sign = {"<tool_call>"},
                           .head = calls_json_head},
    [WEFT_CALLS_QWEN] = {.name = "qwen",
                         .open = {"<tool_call>", "<function="},
                         .close = "</tool_call>",
                         .sign = {"<function=", "<parameter="},
                         .head = calls_json_head},
    [WEFT_CALLS_GEMMA] = {.name = "gemma",
                          .open = {"<|tool_call>"},
                          .close = "<tool_call|>",
                          .quote = "<|\"|>",
                          .sign = {"<|tool_call>", "call:"},
                          .head = calls_gemma_head},
    [WEFT_CALLS_LLAMA] = {.name = "llama",
                          .open = {"<|python_tag|>"},
                          .sign = {"\"parameters\": dictionary of argument name"},
                          .bare = true,
                          .head = calls_json_head},
    [WEFT_CALLS_MISTRAL] = {.name = "mistral",
                            .open = {"[TOOL_CALLS]"},
                            .inside = {"[ARGS]", "[CALL_ID]"},
                            .sign = {"[TOOL_CALLS]"},
                            .head = calls_json_head},
    [WEFT_CALLS_DSML] = {.name = "dsml",
                         .open = {"<" WEFT_CALL_INNER "tool_calls>", "<" WEFT_CALL_INNER "invoke name=\""},
                         .close = "</" WEFT_CALL_INNER "tool_calls>",
                         .inside = {WEFT_CALL_INNER},
                         .sign = {WEFT_CALL_INNER, "tool_calls>"},
                         .tags = &dsml_tags,
                         .head = calls_json_head},
};

const char *const weft_call_markers[WEFT_CALL_MARKERS] = {
    "<tool_call>",  "</tool_call>", "<|tool_call>", "<tool_call|>",   "<|\"|>",
    "[TOOL_CALLS]", "[ARGS]",       "[CALL_ID]",    "<|python_tag|>", WEFT_CALL_INNER};

weft_call_form weft_call_form_of(const char *chat_template, size_t n) {
  static const weft_call_form order[] = {WEFT_CALLS_GEMMA,  WEFT_CALLS_DSML,    WEFT_CALLS_QWEN,
                                         WEFT_CALLS_HERMES, WEFT_CALLS_MISTRAL, WEFT_CALLS_LLAMA};
  for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
    bool all = true;
    for (int k = 0; k < 2; k++) {
      const char *sign = calls_rows[order[i]].sign[k];
      all = all && (sign == NULL || memmem(chat_template, n, sign, strlen(sign)) != NULL);
    }
    if (all) return order[i];
  }
  return WEFT_CALLS_JSON;
}

const char *weft_call_form_name(weft_call_form form) {
  return calls_rows[form].name;
}

const char *weft_call_form_open(weft_call_form form) {
  return calls_rows[form].open[0];
}

const char *weft_call_form_close(weft_call_form form) {
  return calls_rows[form].close;
}

const weft_call_tags *weft_call_form_tags(weft_call_form form) {
  return calls_rows[form].tags == NULL ? &qwen_tags : calls_rows[form].tags;
}

bool weft_call_form_has(weft_call_form form, const char *marker) {
  const calls_row *row = &calls_rows[form];
  const char *const words[] = {row->open[0], row->open[1], row->close, row->quote, row->inside[0], row->inside[1]};
  for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
    if (words[i] != NULL && strcmp(words[i], marker) == 0) return true;
  }
  return false;
}

/* ---- looking ---- */

calls_match calls_match_at(const weft_call_reader *r, size_t from, const char *word) {
  size_t n = strlen(word), there = r->held.n - from;
  if (memcmp(r->held.bytes + from, word, there < n ? there : n) != 0) return MATCH_NO;
  return there >= n ? MATCH_YES : r->last ? MATCH_NO : MATCH_PART;
}

size_t calls_find(const weft_call_reader *r, size_t from, const char *word, bool *found) {
  *found = false;
  for (size_t i = from; i < r->held.n; i++) {
    const char *next = memchr(r->held.bytes + i, word[0], r->held.n - i);
    if (next == NULL) break;
    i = (size_t)(next - r->held.bytes);
    calls_match match = calls_match_at(r, i, word);
    *found = match == MATCH_YES;
    if (match != MATCH_NO) return i;
  }
  return r->held.n;
}

size_t calls_skip_blanks(const weft_call_reader *r, size_t from) {
  while (from < r->held.n && calls_is_blank(r->held.bytes[from])) from += 1;
  return from;
}

size_t calls_name_length(const weft_call_reader *r, size_t from) {
  size_t n = 0;
  for (; from + n < r->held.n; n++) {
    char c = r->held.bytes[from + n], lower = (char)(c | 0x20);
    bool fits = (lower >= 'a' && lower <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
    if (!fits) break;
  }
  return n;
}

/* What follows a call: its closing mark, which may be cut off at the end. True: it, or something else, was found. */
bool calls_close(weft_call_reader *r) {
  const char *close = calls_rows[r->form].close;
  size_t left = r->held.n - r->at, n = close == NULL ? 0 : strlen(close);
  bool begins = left < n && memcmp(r->held.bytes + r->at, close, left) == 0;
  if (begins && r->last) r->at = r->held.n;
  if (begins) return false;
  if (n > 0 && calls_match_at(r, r->at, close) == MATCH_YES) r->at += n;
  r->state = CALLS_TEXT;
  return true;
}

/* ---- giving ---- */

static void give_content(weft_call_reader *r, size_t from, size_t to) {
  if (from == to) return;
  r->begun = true;
  r->after_call = false;
  r->sink->content(r->sink->self, r->held.bytes + from, to - from);
}

void calls_give(weft_call_reader *r, const char *text, size_t n) {
  if (n > 0) r->sink->arguments(r->sink->self, text, n);
}

void calls_puts(weft_call_reader *r, const char *text) {
  calls_give(r, text, strlen(text));
}

static void give_arguments(void *self, const char *text, size_t n) {
  calls_give(self, text, n);
}

void calls_give_escaped(weft_call_reader *r, const char *text, size_t n) {
  json_mend_escape(text, n, give_arguments, r);
}

void calls_mend_open(weft_call_reader *r, const char *end) {
  const calls_row *row = &calls_rows[r->form];
  if (end == NULL) end = row->close != NULL ? row->close : row->open[0];
  r->mend = (json_mend){.mark = row->quote, .end = end, .drops_blanks = r->form == WEFT_CALLS_GEMMA};
}

/* A reader may have been copied since. */
json_mend *calls_mender(weft_call_reader *r) {
  r->mend.self = r;
  r->mend.take = give_arguments;
  return &r->mend;
}

bool calls_refuse_head(weft_call_reader *r) {
  give_content(r, r->at, r->mark);
  r->at = r->head;
  r->scanned = 0;
  r->begun = true;
  r->state = CALLS_TEXT;
  return true;
}

static bool is_callable(const weft_call_reader *r, const char *name, size_t n) {
  for (uint32_t i = 0; i < r->n_callable; i++) {
    if (strlen(r->callable[i].name) == n && memcmp(r->callable[i].name, name, n) == 0) return true;
  }
  return false;
}

/* Whether a call of this name may begin here. */
static bool may_call(const weft_call_reader *r, const char *name, size_t n) {
  bool marked = !calls_rows[r->form].bare || r->head > r->mark;
  return n > 0 && n <= 128 && (marked || is_callable(r, name, n));
}

bool calls_begin(weft_call_reader *r, size_t name, size_t n_name, size_t arguments) {
  const char *bytes = r->held.bytes + name;
  if (arguments - r->head > CALLS_HELD_MAX || calls_name_length(r, name) < n_name || !may_call(r, bytes, n_name))
    return calls_refuse_head(r);
  r->begun = true;
  r->sink->begin(r->sink->self, bytes, n_name);
  r->at = r->scanned = arguments;
  r->state = CALLS_ARGUMENTS;
  r->inner = 0;
  r->first = true;
  r->tagged = r->alone = false;
  calls_mend_open(r, NULL);
  return true;
}

bool calls_give_whole(weft_call_reader *r, const char *name, size_t n_name, const char *arguments, size_t n,
                      size_t end) {
  if (!may_call(r, name, n_name)) return calls_refuse_head(r);
  r->begun = true;
  r->sink->begin(r->sink->self, name, n_name);
  calls_give(r, arguments, n);
  r->at = end;
  r->tagged = false;
  r->alone = true;
  calls_finish(r, true, CALLS_TAIL);
  return true;
}

void calls_finish(weft_call_reader *r, bool whole, uint8_t state) {
  r->sink->end(r->sink->self, whole);
  r->types = NULL;
  r->after_call = true;
  r->scanned = 0;
  r->state = state;
}

/* ---- what every form does ---- */

/* A marker at held[i]; *length: of it. PART: perhaps. */
static calls_match marker_at(const weft_call_reader *r, size_t i, const char **marker) {
  const calls_row *row = &calls_rows[r->form];
  const char *const words[] = {row->open[0], row->open[1], row->close, row->quote};
  calls_match best = MATCH_NO;
  for (size_t k = 0; k < sizeof words / sizeof *words; k++) {
    calls_match match = words[k] == NULL ? MATCH_NO : calls_match_at(r, i, words[k]);
    if (match <= best) continue;
    best = match;
    *marker = words[k];
  }
  return best;
}

static bool found_marker(weft_call_reader *r, size_t at, const char *marker) {
  const calls_row *row = &calls_rows[r->form];
  size_t n = strlen(marker);
  if (marker == row->close || marker == row->quote) { /* of no call */
    if (!r->after_call) give_content(r, r->at, at);
    r->at = at + n;
    return true;
  }
  r->mark = at;
  r->head = at + n;
  r->state = CALLS_HEAD;
  return true;
}

/* What stands between two calls, or between a call and what follows, is not given. */
static bool read_text(weft_call_reader *r) {
  const calls_row *row = &calls_rows[r->form];
  const char *marker = NULL;
  if (r->after_call) r->at = calls_skip_blanks(r, r->at);
  size_t p = r->at, n = r->held.n;
  if (row->bare && !r->begun) {
    size_t i = calls_skip_blanks(r, r->at);
    if (i == n && !r->last && i - r->at <= CALLS_BLANKS_MAX) return false;
    if (i < n && i - r->at <= CALLS_BLANKS_MAX && (r->held.bytes[i] == '{' || r->held.bytes[i] == '[')) {
      r->mark = r->head = i;
      r->state = CALLS_HEAD;
      return true;
    }
  }
  calls_match match = MATCH_NO;
  if (r->scanned > p) p = r->scanned;
  while (p < n && (match = marker_at(r, p, &marker)) == MATCH_NO) p += 1;
  r->scanned = p;
  size_t end = p;
  while (end > r->at && p - end < CALLS_BLANKS_MAX && calls_is_blank(r->held.bytes[end - 1])) end -= 1;
  if (p == n && r->last) end = n;
  give_content(r, r->at, end);
  r->at = end;
  return match == MATCH_YES && found_marker(r, p, marker);
}

static bool read_some(weft_call_reader *r) {
  const calls_row *row = &calls_rows[r->form];
  if (r->at == r->held.n) return false;
  switch (r->state) {
    case CALLS_TEXT:
      return read_text(r);
    case CALLS_HEAD:
      return row->head(r) || ((r->last || r->held.n - r->head > CALLS_HELD_MAX) && calls_refuse_head(r));
    case CALLS_ARGUMENTS:
      return r->tagged ? calls_tags_arguments(r) : calls_json_arguments(r);
    default:
      return r->tagged ? calls_tags_tail(r) : calls_json_tail(r);
  }
}

static weft_status read_held(weft_call_reader *r, const weft_call_sink *sink) {
  r->sink = sink;
  if (r->held.n > 0) {
    while (read_some(r)) continue;
  }
  size_t n = r->at;
  if (n > 0) memmove(r->held.bytes, r->held.bytes + n, r->held.n - n + 1);
  r->held.n -= n;
  r->at = 0;
  r->scanned = r->scanned > n ? r->scanned - n : 0;
  r->mark = r->mark > n ? r->mark - n : 0;
  r->head = r->head > n ? r->head - n : 0;
  return weft_text_status(&r->held);
}

void weft_call_reader_open(weft_call_reader *r, weft_call_form form, const weft_callable *callable,
                           uint32_t n_callable) {
  memset(r, 0, sizeof *r);
  r->form = form;
  r->callable = callable;
  r->n_callable = n_callable;
}

void weft_call_reader_close(weft_call_reader *r) {
  weft_text_free(&r->held);
}

weft_status weft_call_reader_push(weft_call_reader *r, const char *text, size_t n, const weft_call_sink *sink) {
  weft_text_append(&r->held, text, n);
  return read_held(r, sink);
}

bool weft_call_reader_in_call(const weft_call_reader *r) {
  return r->state == CALLS_ARGUMENTS;
}

weft_status weft_call_reader_end(weft_call_reader *r, bool cut, const weft_call_sink *sink) {
  r->last = true;
  weft_status status = read_held(r, sink);
  if (!weft_call_reader_in_call(r)) return status;
  if (r->tagged) {
    calls_tags_end(r, cut);
  } else {
    calls_json_end(r, cut);
  }
  calls_finish(r, !cut, CALLS_TEXT);
  return status;
}

weft_status weft_call_reader_copy(const weft_call_reader *from, weft_call_reader *to) {
  *to = *from;
  to->held = (weft_text){0};
  weft_text_append(&to->held, from->held.bytes == NULL ? "" : from->held.bytes, from->held.n);
  return weft_text_status(&to->held);
}
