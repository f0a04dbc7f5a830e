/* SPDX-License-Identifier: MIT */
/* Text to tokens. Special tokens are cut out in one pass; what lies between goes through the
 * model's own steps. */
#include <string.h>

#include "base/check.h"
#include "base/memory.h"
#include "model/text/tokenizer_internal.h"

#define UNDERSCORE "\xE2\x96\x81" /* U+2581, the visible space of llama and gemma4 */

weft_status weft_tokens_push(weft_tokens *tokens, int32_t id) {
  if (tokens->n > UINT32_MAX / 2) return WEFT_E_TOO_LARGE;
  int32_t *ids = weft_grow(tokens->ids, tokens->n, &tokens->capacity, 64, sizeof *ids);
  if (ids == NULL) return WEFT_E_NO_MEMORY;
  tokens->ids = ids;
  tokens->ids[tokens->n++] = id;
  return WEFT_OK;
}

void weft_tokens_free(weft_tokens *tokens) {
  weft_free(tokens->ids);
  memset(tokens, 0, sizeof *tokens);
}

bool tokenizer_is_text(const weft_tokenizer *t, uint32_t id) {
  if (id >= t->vocab.n) return false;
  uint8_t type = t->vocab.type[id];
  if (type == VOCAB_USER_DEFINED) return tokenizer_is_blank(t, id);
  return type == VOCAB_NORMAL || type == VOCAB_UNUSED;
}

/* Writes bytes that no token of text covers: byte tokens, else the unknown token once, else a
 * refusal. */
static weft_status emit_bytes(const weft_tokenizer *t, const char *bytes, uint32_t n, weft_tokens *out,
                              weft_error *error) {
  uint32_t before = out->n;
  for (uint32_t i = 0; i < n; i++) {
    uint8_t byte = (uint8_t)bytes[i];
    uint32_t id = t->byte_id[byte];
    bool usable = id < t->vocab.n && (t->kind != TOKENIZER_GPT2 || tokenizer_is_text(t, id));
    weft_status status = WEFT_OK;
    if (usable) {
      status = weft_tokens_push(out, (int32_t)id);
    } else if (t->unk < 0) {
      return weft_fail(error, WEFT_E_INVALID, "the vocabulary of %s cannot write byte 0x%02X and has no unknown token",
                       t->path, byte);
    } else {
      out->n = before;
      return weft_tokens_push(out, t->unk);
    }
    if (status != WEFT_OK) return weft_fail(error, status, "out of memory while encoding text");
  }
  return WEFT_OK;
}

static weft_status emit_symbols(const weft_tokenizer *t, work *w, const char *text, weft_tokens *out,
                                weft_error *error) {
  weft_status status = WEFT_OK;
  for (uint32_t i = 0; i < w->n_symbols && status == WEFT_OK; i++) {
    const merge_symbol *symbol = &w->symbols[i];
    if (symbol->n == 0) continue;
    if (tokenizer_is_text(t, symbol->id)) {
      status = weft_tokens_push(out, (int32_t)symbol->id);
    } else {
      status = emit_bytes(t, text + symbol->start, symbol->n, out, error);
    }
  }
  return status;
}

/* llama: an unused token that merging made is taken apart again, down to tokens that are in use. */
static weft_status emit_apart(const weft_tokenizer *t, work *w, merge_symbol symbol, weft_tokens *out,
                              weft_error *error) {
  w->n_heap = 0;
  weft_status status = work_push(w, (merge_offer){0, symbol.start, symbol.n, 0});
  while (w->n_heap > 0 && status == WEFT_OK) {
    merge_offer part = w->heap[--w->n_heap];
    const char *text = w->text.bytes + part.at;
    uint32_t id = vocab_find(&t->vocab, text, part.n);
    uint32_t left = 0;
    if (id < t->vocab.n && t->vocab.type[id] == VOCAB_UNUSED && w->unused_at != NULL) left = w->unused_at[id];
    if (left > 0 && left < part.n) {
      status = work_push(w, (merge_offer){0, part.at + left, part.n - left, 0});
      if (status == WEFT_OK) status = work_push(w, (merge_offer){0, part.at, left, 0});
    } else if (tokenizer_is_text(t, id)) {
      status = weft_tokens_push(out, (int32_t)id);
    } else {
      status = emit_bytes(t, text, part.n, out, error);
    }
  }
  return status;
}

static weft_status emit_llama(const weft_tokenizer *t, work *w, weft_tokens *out, weft_error *error) {
  if (!t->has_unused) return emit_symbols(t, w, w->text.bytes, out, error);
  weft_status status = WEFT_OK;
  for (uint32_t i = 0; i < w->n_symbols && status == WEFT_OK; i++) {
    if (w->symbols[i].n > 0) status = emit_apart(t, w, w->symbols[i], out, error);
  }
  return status;
}

/* One symbol per character of w->text[from..to). */
static weft_status symbols_of_characters(const weft_tokenizer *t, work *w, uint32_t from, uint32_t to) {
  const char *text = w->text.bytes;
  weft_status status = WEFT_OK;
  w->n_symbols = 0;
  for (uint32_t at = from; at < to && status == WEFT_OK;) {
    uint32_t code_point = 0;
    uint32_t n = (uint32_t)weft_utf8_decode(text + at, to - at, &code_point);
    WEFT_CHECK(n > 0);
    uint32_t id = n == 1                 ? t->ascii_id[code_point]
                  : code_point == 0x2581 ? t->space_id
                                         : vocab_find(&t->vocab, text + at, n);
    status = work_symbol(w, at, n, id);
    at += n;
  }
  return status;
}

/* The text with every space made visible, after an optional one, into w->text. */
static weft_status text_with_spaces(work *w, const char *text, uint32_t n, bool prefix) {
  weft_text_clear(&w->text);
  if (prefix) weft_text_puts(&w->text, UNDERSCORE);
  uint32_t from = 0;
  for (uint32_t i = 0; i < n; i++) {
    if (text[i] != ' ') continue;
    weft_text_append(&w->text, text + from, i - from);
    weft_text_puts(&w->text, UNDERSCORE);
    from = i + 1;
  }
  weft_text_append(&w->text, text + from, n - from);
  return weft_text_status(&w->text);
}

static weft_status encode_llama(const weft_tokenizer *t, work *w, const char *text, uint32_t n, weft_tokens *out,
                                weft_error *error) {
  weft_status status = text_with_spaces(w, text, n, t->add_space_prefix);
  if (status == WEFT_OK) status = symbols_of_characters(t, w, 0, (uint32_t)w->text.n);
  if (status == WEFT_OK) status = merge_run(t, w);
  return status == WEFT_OK ? emit_llama(t, w, out, error) : status;
}

/* Runs of newlines and runs of anything else; a newline run that is a token is taken whole. */
static weft_status encode_gemma4(const weft_tokenizer *t, work *w, const char *text, uint32_t n, weft_tokens *out,
                                 weft_error *error) {
  weft_status status = text_with_spaces(w, text, n, false);
  uint32_t end = (uint32_t)w->text.n;
  for (uint32_t from = 0; from < end && status == WEFT_OK;) {
    bool newlines = w->text.bytes[from] == '\n';
    uint32_t to = from;
    while (to < end && (w->text.bytes[to] == '\n') == newlines) to += 1;
    uint32_t whole = newlines ? vocab_find(&t->vocab, w->text.bytes + from, to - from) : VOCAB_NONE;
    if (tokenizer_is_text(t, whole)) {
      status = weft_tokens_push(out, (int32_t)whole);
    } else {
      status = symbols_of_characters(t, w, from, to);
      if (status == WEFT_OK) status = merge_run(t, w);
      if (status == WEFT_OK) status = emit_symbols(t, w, w->text.bytes, out, error);
    }
    from = to;
  }
  return status;
}

/* Writes the piece in gpt2's alphabet, 1 or 2 bytes per byte; 0 when it is longer than any token. */
static uint32_t piece_in_alphabet(const weft_tokenizer *t, const char *piece, uint32_t n, char *to, uint32_t room) {
  uint32_t length = 0;
  if (n > t->vocab.longest) return 0;
  for (uint32_t i = 0; i < n; i++) {
    if (length + 2 > room) return 0;
    length += (uint32_t)weft_utf8_encode(gpt2_character((uint8_t)piece[i]), to + length);
  }
  return length;
}

static weft_status encode_piece(const weft_tokenizer *t, work *w, const char *piece, uint32_t n, weft_tokens *out,
                                weft_error *error) {
  if (t->ignore_merges) {
    char whole[512]; /* a longer token is reached by its merges */
    uint32_t length = piece_in_alphabet(t, piece, n, whole, sizeof whole);
    uint32_t id = length == 0 ? VOCAB_NONE : vocab_find(&t->vocab, whole, length);
    if (tokenizer_is_text(t, id)) return weft_tokens_push(out, (int32_t)id);
  }
  weft_status status = WEFT_OK;
  w->n_symbols = 0;
  for (uint32_t i = 0; i < n && status == WEFT_OK; i++) {
    status = work_symbol(w, i, 1, t->byte_id[(uint8_t)piece[i]]);
  }
  if (status == WEFT_OK) status = merge_run(t, w);
  return status == WEFT_OK ? emit_symbols(t, w, piece, out, error) : status;
}

static weft_status encode_gpt2(const weft_tokenizer *t, work *w, const char *text, uint32_t n, weft_tokens *out,
                               weft_error *error) {
  const uint32_t *ends;
  uint32_t n_ends;
  weft_status status = split_run(t->split, text, n, w, &ends, &n_ends);
  for (uint32_t i = 0, from = 0; status == WEFT_OK && i < n_ends; from = ends[i], i++) {
    status = encode_piece(t, w, text + from, ends[i] - from, out, error);
  }
  return status;
}

weft_status encode_text(const weft_tokenizer *t, work *w, const char *text, uint32_t n, weft_tokens *out,
                        weft_error *error) {
  if (n == 0) return WEFT_OK;
  switch (t->kind) {
    case TOKENIZER_GPT2:
      return encode_gpt2(t, w, text, n, out, error);
    case TOKENIZER_LLAMA:
      return encode_llama(t, w, text, n, out, error);
    case TOKENIZER_GEMMA4:
      return encode_gemma4(t, w, text, n, out, error);
  }
  return WEFT_E_INVALID;
}

static bool special_allowed(const weft_tokenizer *t, uint32_t id, unsigned flags) {
  if (t->vocab.type[id] != VOCAB_USER_DEFINED) return (flags & WEFT_ENCODE_PARSE_SPECIAL) != 0;
  return (flags & WEFT_ENCODE_PLAIN) == 0 || tokenizer_is_blank(t, id);
}

/* First of special[low..high) whose byte at `depth` is not below `byte`; all of them are longer
 * than depth. */
static uint32_t special_bound(const weft_tokenizer *t, uint32_t low, uint32_t high, uint32_t depth, unsigned byte) {
  while (low < high) {
    uint32_t middle = low + (high - low) / 2;
    if ((uint8_t)vocab_text(&t->vocab, t->special[middle])[depth] < byte) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

/* The longest allowed special token at text, or VOCAB_NONE: the range of candidates narrows byte by
 * byte, so the cost is the part of text that still begins some special token. */
static uint32_t special_at(const weft_tokenizer *t, const char *text, uint32_t n, unsigned flags) {
  uint8_t first = (uint8_t)text[0];
  uint32_t low = t->special_from[first], high = t->special_from[first + 1];
  uint32_t best = VOCAB_NONE;
  for (uint32_t depth = 1; low < high; depth++) {
    uint32_t id = t->special[low];
    if (vocab_length(&t->vocab, id) == depth) { /* the shortest comes first */
      if (special_allowed(t, id, flags)) best = id;
      low += 1;
    }
    if (depth >= n) break;
    uint8_t byte = (uint8_t)text[depth];
    low = special_bound(t, low, high, depth, byte);
    high = special_bound(t, low, high, depth, byte + 1u);
  }
  return best;
}

static weft_status encode_all(const weft_tokenizer *t, work *w, const char *text, uint32_t n, unsigned flags,
                              weft_tokens *out, weft_error *error) {
  weft_status status = WEFT_OK;
  uint32_t from = 0;
  for (uint32_t at = 0; at < n && status == WEFT_OK;) {
    uint32_t id = special_at(t, text + at, n - at, flags);
    if (id == VOCAB_NONE) {
      at += 1;
      continue;
    }
    status = encode_text(t, w, text + from, at - from, out, error);
    if (status == WEFT_OK) status = weft_tokens_push(out, (int32_t)id);
    at += vocab_length(&t->vocab, id);
    from = at;
  }
  return status == WEFT_OK ? encode_text(t, w, text + from, n - from, out, error) : status;
}

int32_t weft_tokenizer_special_at(const weft_tokenizer *t, const char *text, size_t n, size_t *length) {
  if (n == 0) return -1;
  if (n > WEFT_TOKENIZER_TEXT_MAX) n = WEFT_TOKENIZER_TEXT_MAX; /* no token is longer */
  uint32_t id = special_at(t, text, (uint32_t)n, WEFT_ENCODE_PARSE_SPECIAL);
  if (id == VOCAB_NONE || tokenizer_is_blank(t, id)) return -1;
  *length = vocab_length(&t->vocab, id);
  return (int32_t)id;
}

weft_status weft_tokenizer_encode(const weft_tokenizer *t, const char *text, size_t n, unsigned flags, weft_tokens *out,
                                  weft_error *error) {
  if ((flags & WEFT_ENCODE_PLAIN) != 0 && (flags & WEFT_ENCODE_PARSE_SPECIAL) != 0) {
    return weft_fail(error, WEFT_E_INVALID, "encode: PLAIN and PARSE_SPECIAL exclude each other");
  }
  if (n > WEFT_TOKENIZER_TEXT_MAX) {
    return weft_fail(error, WEFT_E_TOO_LARGE, "the text has %zu bytes; at most %d can be encoded at once", n,
                     WEFT_TOKENIZER_TEXT_MAX);
  }
  uint32_t before = out->n;
  bool add = (flags & WEFT_ENCODE_ADD_SPECIAL) != 0;
  work w = {0};
  weft_error line = {{0}};
  weft_text repaired = {0};
  weft_status status = add && t->add_bos ? weft_tokens_push(out, t->bos) : WEFT_OK;
  if (status == WEFT_OK && !weft_utf8_valid(text, n, NULL)) {
    weft_utf8_repair(text, n, &repaired);
    status = weft_text_status(&repaired);
    text = repaired.bytes;
    n = repaired.n;
  }
  if (status == WEFT_OK) status = encode_all(t, &w, text, (uint32_t)n, flags, out, &line);
  if (status == WEFT_OK && add && t->add_eos) status = weft_tokens_push(out, t->eos);
  split_match_close(w.match);
  work_close(&w);
  weft_text_free(&repaired);
  if (status == WEFT_OK) return WEFT_OK;
  out->n = before;
  return weft_fail(error, status, "%s", line.text[0] != 0 ? line.text : "out of memory while encoding text");
}
