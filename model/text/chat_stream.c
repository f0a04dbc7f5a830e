/* SPDX-License-Identifier: MIT */
/* The answer's stream, parted into thinking and answer by the tokens that stand between them. */
#include <string.h>

#include "model/text/chat_internal.h"

/* IN_START: before the first text of an answer whose markers are letters. Of Harmony: IN_FIRST_HEADER, which the prompt
 * has begun; IN_HEADER, behind a message; IN_CALL, the arguments of a call. */
enum { IN_ANSWER, IN_NAME, IN_THINKING, IN_START, IN_FIRST_HEADER, IN_HEADER, IN_CALL };
enum { NAME_MAX_BYTES = 64, START_BLANKS = 16 }; /* a channel's name longer than this was no name */
enum { HEADER_MAX_BYTES = 320 };
static const char call_open[] = "<tool_call>{\"name\":\"",
                  call_middle[] = "\",\"arguments\":", call_close[] = "}</tool_call>";

/* Where text goes: n bytes of one channel. */
typedef struct outlet {
  weft_chat_take take;
  void *self;
} outlet;

static void put_text(const weft_chat_stream *s, const outlet *out, const char *text, size_t n) {
  if (n > 0) out->take(out->self, text, n, s->thinking);
}

void weft_chat_stream_open(weft_chat_stream *s, const weft_chat *chat, const weft_tokenizer *tokenizer,
                           unsigned detok_flags, bool starts_thinking) {
  memset(s, 0, sizeof *s);
  s->chat = chat;
  bool letters = chat != NULL && chat->thought_letters;
  bool harmony = chat != NULL && chat->thoughts == CHAT_THOUGHTS_HARMONY;
  s->state = starts_thinking ? IN_THINKING : letters ? IN_START : harmony ? IN_FIRST_HEADER : IN_ANSWER;
  s->keeps_newlines = (detok_flags & WEFT_DETOK_WHOLE_TOKENS) != 0;
  weft_detok_open(&s->detok, tokenizer, detok_flags);
}

weft_status weft_chat_stream_reserve(weft_chat_stream *s) {
  s->detok.flags &= ~(unsigned)WEFT_DETOK_WHOLE_TOKENS;
  weft_status status = weft_detok_reserve(&s->detok);
  weft_text_reserve(&s->text, weft_detok_text_max(&s->detok));
  bool letters = s->chat != NULL && s->chat->thought_letters;
  bool harmony = s->chat != NULL && s->chat->thoughts == CHAT_THOUGHTS_HARMONY;
  weft_text_reserve(&s->name, (harmony ? HEADER_MAX_BYTES : NAME_MAX_BYTES) +
                                  (letters || harmony ? 2 * weft_detok_text_max(&s->detok) : 0));
  if (status == WEFT_OK) status = weft_text_status(&s->text);
  return status == WEFT_OK ? weft_text_status(&s->name) : status;
}

void weft_chat_stream_close(weft_chat_stream *s) {
  weft_detok_close(&s->detok);
  weft_text_free(&s->text);
  weft_text_free(&s->name);
}

/* Gives text of the current part; newlines at its end wait, since a marker may follow. */
static void give_text(weft_chat_stream *s, const char *text, size_t n, const outlet *out) {
  if (s->keeps_newlines) {
    put_text(s, out, text, n);
    return;
  }
  while (s->skip_newlines && n > 0 && text[0] == '\n') {
    text += 1;
    n -= 1;
  }
  if (n == 0) return;
  s->skip_newlines = false;
  if (s->state == IN_ANSWER || s->state == IN_CALL) {
    put_text(s, out, text, n);
    return;
  }
  size_t kept = n;
  while (kept > 0 && text[kept - 1] == '\n') kept -= 1;
  if (kept > 0) {
    for (; s->n_newlines > 0; s->n_newlines--) put_text(s, out, "\n", 1);
    put_text(s, out, text, kept);
  }
  s->n_newlines += (uint32_t)(n - kept);
}

/* Text that came while a channel's name is read: up to the first newline. */
static void give_named(weft_chat_stream *s, const char *text, size_t n, const outlet *out) {
  const char *newline = memchr(text, '\n', n);
  size_t taken = newline == NULL ? n : (size_t)(newline - text) + 1;
  if (s->name.n + taken > NAME_MAX_BYTES) {
    s->state = IN_THINKING;
    give_text(s, s->name.bytes == NULL ? "" : s->name.bytes, s->name.n, out);
    give_text(s, text, n, out);
    return;
  }
  weft_text_append(&s->name, text, taken);
  if (newline == NULL) return;
  s->state = IN_THINKING;
  give_text(s, text + taken, n - taken, out);
}

/* Leaves out the first n bytes of what is held. */
static void drop_held(weft_chat_stream *s, size_t n) {
  if (n > 0) memmove(s->name.bytes, s->name.bytes + n, s->name.n - n);
  s->name.n -= n;
}

/* Where the word stands in what is held, or may begin at its end; *whole: it stands there. */
static size_t find_held(const weft_chat_stream *s, const char *word, bool *whole) {
  size_t n = strlen(word);
  *whole = false;
  for (size_t i = 0; i < s->name.n; i++) {
    size_t there = s->name.n - i;
    if (memcmp(s->name.bytes + i, word, there < n ? there : n) != 0) continue;
    *whole = there >= n;
    return i;
  }
  return s->name.n;
}

/* Whether the answer begins with what begins thinking; true: that is decided, and what is held goes on behind it. */
static bool read_start(weft_chat_stream *s, bool last) {
  size_t blanks = 0, at;
  bool whole;
  while (blanks < s->name.n && strchr(" \n", s->name.bytes[blanks]) != NULL) blanks += 1;
  at = find_held(s, weft_chat_thought_open(s->chat), &whole);
  if (at == blanks && !whole && !last && blanks <= START_BLANKS) return false;
  if (whole && at == blanks) drop_held(s, at + strlen(weft_chat_thought_open(s->chat)));
  s->state = whole && at == blanks ? IN_THINKING : IN_ANSWER;
  s->skip_newlines = s->state == IN_THINKING;
  return true;
}

/* Text where the markers are letters: of what is held with it, as much is given as is decided and of one kind. */
static void give_lettered(weft_chat_stream *s, const char *text, size_t n, bool last, const outlet *out) {
  const char *close = weft_chat_thought_close(s->chat);
  bool closes = false;
  weft_text_append(&s->name, text, n);
  if (weft_text_status(&s->name) != WEFT_OK || (s->state == IN_START && !read_start(s, last))) return;
  size_t end = s->state == IN_THINKING ? find_held(s, close, &closes) : s->name.n;
  if (last && !closes) end = s->name.n;
  s->thinking = s->state == IN_THINKING;
  if (end > 0) give_text(s, s->name.bytes, end, out);
  drop_held(s, end + (closes ? strlen(close) : 0));
  if (!closes) return;
  s->n_newlines = 0;
  s->state = IN_ANSWER;
  s->skip_newlines = true; /* what is held of the answer is given with the text that comes next */
}

/* What was held as a header is the answer. */
static void give_header(weft_chat_stream *s, const outlet *out) {
  s->state = IN_ANSWER;
  if (s->name.n > 0) give_text(s, s->name.bytes, s->name.n, out);
  weft_text_clear(&s->name);
}

/* Text of a header. An answer that is held to a format has none, and begins at once. */
static void give_headed(weft_chat_stream *s, const char *text, size_t n, bool last, const outlet *out) {
  if (n > 0) weft_text_append(&s->name, text, n);
  if (weft_text_status(&s->name) != WEFT_OK || s->name.n == 0) return;
  bool none = s->state == IN_FIRST_HEADER && (last || !chat_harmony_may_begin(s->name.bytes, s->name.n));
  if (none || s->name.n > HEADER_MAX_BYTES) give_header(s, out);
}

static bool in_header(const weft_chat_stream *s) {
  return s->state == IN_FIRST_HEADER || s->state == IN_HEADER;
}

/* s->text, which came from the detok, goes where it belongs. */
static void route_text(weft_chat_stream *s, bool last, const outlet *out) {
  s->thinking = s->state == IN_NAME || s->state == IN_THINKING;
  if (in_header(s)) {
    give_headed(s, s->text.n == 0 ? "" : s->text.bytes, s->text.n, last, out);
    return;
  }
  if (s->chat != NULL && s->chat->thought_letters) {
    give_lettered(s, s->text.n == 0 ? "" : s->text.bytes, s->text.n, last, out);
    return;
  }
  if (s->text.n == 0) return;
  if (s->state == IN_NAME) {
    give_named(s, s->text.bytes, s->text.n, out);
  } else {
    give_text(s, s->text.bytes, s->text.n, out);
  }
}

static weft_status stream_status(const weft_chat_stream *s) {
  weft_status status = weft_text_status(&s->name);
  return status == WEFT_OK ? weft_text_status(&s->text) : status;
}

/* Gives the text that the tokens before a marker still owe. *n_ids: of these, and the marker. */
static weft_status give_before(weft_chat_stream *s, const outlet *out, uint32_t *n_ids) {
  uint32_t n = 0;
  weft_text_clear(&s->text);
  weft_status status = weft_detok_flush(&s->detok, &s->text, &n);
  route_text(s, false, out);
  if (n_ids != NULL) *n_ids = n + 1;
  return status;
}

static weft_status take_marker(weft_chat_stream *s, uint32_t next, const outlet *out, uint32_t *n_ids) {
  weft_status status = give_before(s, out, n_ids);
  weft_text_clear(&s->name);
  s->n_newlines = 0;
  s->state = next;
  s->skip_newlines = next == IN_THINKING || (next == IN_ANSWER && s->chat->thoughts == CHAT_THOUGHTS_TAGS);
  return status == WEFT_OK ? stream_status(s) : status;
}

/* ---- Harmony ---- */

/* A message begins, as its header says. */
static void begin_message(weft_chat_stream *s, const outlet *out) {
  chat_harmony_header header = chat_harmony_read(s->name.n == 0 ? "" : s->name.bytes, s->name.n);
  bool calls = header.name != NULL && s->shows_calls;
  s->state = calls ? IN_CALL : header.thinking ? IN_THINKING : IN_ANSWER;
  s->thinking = header.thinking;
  s->skip_newlines = header.thinking;
  if (!calls) return;
  put_text(s, out, call_open, sizeof call_open - 1);
  put_text(s, out, header.name, header.n);
  put_text(s, out, call_middle, sizeof call_middle - 1);
}

/* Markers between the parts of a header are kept with its text. */
static weft_status take_harmony(weft_chat_stream *s, int32_t id, const outlet *out, uint32_t *n_ids) {
  const chat_harmony *h = &s->chat->harmony;
  weft_status status = give_before(s, out, n_ids);
  if (status != WEFT_OK || stream_status(s) != WEFT_OK) return status == WEFT_OK ? stream_status(s) : status;
  if (id == h->message && in_header(s)) {
    begin_message(s, out);
    weft_text_clear(&s->name);
  } else if (id == h->channel || id == h->constrain) {
    if (!in_header(s) || s->name.n > HEADER_MAX_BYTES / 2) weft_text_clear(&s->name);
    s->state = IN_HEADER;
    weft_text_puts(&s->name, id == h->channel ? "<|channel|>" : " ");
  } else if (id == h->start || id == h->end) {
    if (s->state == IN_CALL) put_text(s, out, call_close, sizeof call_close - 1);
    s->state = IN_HEADER;
    weft_text_clear(&s->name);
  }
  s->n_newlines = 0;
  return stream_status(s);
}

static bool is_of_harmony(const weft_chat *chat, int32_t id) {
  const chat_harmony *h = &chat->harmony;
  if (chat->thoughts != CHAT_THOUGHTS_HARMONY || id < 0) return false;
  return id == h->start || id == h->channel || id == h->constrain || id == h->message || id == h->end;
}

bool weft_chat_is_call_marker(const weft_chat *chat, int32_t id) {
  for (uint32_t i = 0; i < chat->n_call_markers; i++) {
    if (chat->call_marker[i] == id) return true;
  }
  return false;
}

/* The text of a token; a marker of calls is text, too, where calls are looked for. */
static weft_status print_token(weft_chat_stream *s, int32_t id, uint32_t *n_ids) {
  unsigned flags = s->detok.flags;
  if (s->shows_calls && s->chat != NULL && weft_chat_is_call_marker(s->chat, id))
    s->detok.flags |= WEFT_DETOK_WITH_SPECIAL;
  weft_status status = weft_detok_push(&s->detok, id, &s->text, n_ids);
  s->detok.flags = flags;
  return status;
}

static weft_status push_token(weft_chat_stream *s, int32_t id, const outlet *out, uint32_t *n_ids) {
  const weft_chat *chat = s->chat;
  if (chat != NULL && id >= 0 && id == chat->thought) {
    return take_marker(s, chat->thoughts == CHAT_THOUGHTS_CHANNEL ? IN_NAME : IN_THINKING, out, n_ids);
  }
  if (chat != NULL && id >= 0 && id == chat->thought_end) return take_marker(s, IN_ANSWER, out, n_ids);
  if (chat != NULL && is_of_harmony(chat, id)) return take_harmony(s, id, out, n_ids);
  weft_text_clear(&s->text);
  weft_status status = print_token(s, id, n_ids);
  if (status != WEFT_OK) return status;
  route_text(s, false, out);
  return stream_status(s);
}

static weft_status flush_text(weft_chat_stream *s, const outlet *out, uint32_t *n_ids) {
  weft_text_clear(&s->text);
  weft_status status = weft_detok_flush(&s->detok, &s->text, n_ids);
  route_text(s, true, out);
  s->n_newlines = 0;
  return status == WEFT_OK ? stream_status(s) : status;
}

/* ---- to a text, or to a function ------------------------------------------------------------- */

static void take_text(void *self, const char *text, size_t n, bool thinking) {
  (void)thinking; /* one call gives text of one kind */
  weft_text_append(self, text, n);
}

weft_status weft_chat_stream_push(weft_chat_stream *s, int32_t id, weft_text *out, bool *thinking, uint32_t *n_ids) {
  const outlet to_text = {take_text, out};
  weft_status status = push_token(s, id, &to_text, n_ids);
  if (status != WEFT_E_INVALID) *thinking = s->thinking;
  return status == WEFT_OK ? weft_text_status(out) : status;
}

weft_status weft_chat_stream_flush(weft_chat_stream *s, weft_text *out, bool *thinking, uint32_t *n_ids) {
  const outlet to_text = {take_text, out};
  weft_status status = flush_text(s, &to_text, n_ids);
  *thinking = s->thinking;
  return status == WEFT_OK ? weft_text_status(out) : status;
}

weft_status weft_chat_stream_feed(weft_chat_stream *s, int32_t id, weft_chat_take take, void *self) {
  const outlet to_function = {take, self};
  return push_token(s, id, &to_function, NULL);
}
