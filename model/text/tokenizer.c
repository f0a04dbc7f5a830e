/* SPDX-License-Identifier: MIT */
/* Opening a vocabulary: every array is checked against the others before it is used; and the small
 * questions. */
#include "model/text/tokenizer.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/log.h"
#include "base/memory.h"
#include "model/gguf/gguf_internal.h"
#include "model/text/tokenizer_internal.h"

#define KEY "tokenizer.ggml."
enum { TOKENS_MAX = 1 << 24, MERGES_MAX = 1 << 25 };

uint32_t gpt2_character(uint8_t byte) {
  if (byte < 0x21) return 0x100u + byte;
  if (byte >= 0x7F && byte <= 0xA0) return 0x121u + byte - 0x7F;
  return byte == 0xAD ? 0x143 : byte;
}

int32_t gpt2_byte(uint32_t c) {
  if (c >= 0x100 && c <= 0x143) {
    uint32_t k = c - 0x100;
    return (int32_t)(k < 33 ? k : k < 67 ? 0x7F + k - 33 : 0xAD);
  }
  return c <= 0xFF && gpt2_character((uint8_t)c) == c ? (int32_t)c : -1;
}

bool tokenizer_is_blank(const weft_tokenizer *t, uint32_t id) {
  const char *text = vocab_text(&t->vocab, id);
  uint32_t n = vocab_length(&t->vocab, id);
  for (uint32_t i = 0; i < n;) {
    bool underscore = n - i >= 3 && memcmp(text + i, "\xE2\x96\x81", 3) == 0;
    if (!underscore && strchr(" \n\t\r", text[i]) == NULL) return false;
    if (text[i] == 0) return false;
    i += underscore ? 3 : 1;
  }
  return n > 0;
}

static bool is_word(weft_bytes text, const char *word) {
  return text.n == strlen(word) && memcmp(text.data, word, text.n) == 0;
}

/* A file may call its tokenizer llama (SentencePiece, by scores) and name a pre-tokenizer too, which only tokenizers
 * with merges have. Ollama's files of Gemma 4 do: their merges are right and their scores are no scores, so the
 * pre-tokenizer is what holds. No other pair is known, so for any other it is not known which of the two would hold. */
static weft_status settle_llama(weft_tokenizer *t, const weft_gguf *gguf, weft_error *error) {
  weft_bytes pre = {NULL, 0};
  char shown[GGUF_SHOWN];
  weft_status status = weft_gguf_string(gguf, KEY "pre", &pre, error);
  if (status == WEFT_E_NOT_FOUND || (status == WEFT_OK && is_word(pre, "default"))) return WEFT_OK;
  if (status != WEFT_OK) return status;
  if (!is_word(pre, "gemma4")) {
    return weft_fail(error, WEFT_E_UNSUPPORTED,
                     "%s: " KEY "model is 'llama' but " KEY
                     "pre is '%s', which only a tokenizer with merges has; convert "
                     "the model again with llama.cpp",
                     t->path, gguf_show(pre, shown));
  }
  if (weft_gguf_count(gguf, KEY "merges") == 0) {
    return weft_fail(
        error, WEFT_E_FORMAT,
        "%s: " KEY "pre is 'gemma4' but there are no " KEY "merges; convert the model again with llama.cpp", t->path);
  }
  weft_log(WEFT_LOG_INFO, "%s: " KEY "model is 'llama' but " KEY "pre is 'gemma4': read as gemma4", t->path);
  t->kind = TOKENIZER_GEMMA4;
  t->retypes_markers = true;
  return WEFT_OK;
}

static weft_status read_kind(weft_tokenizer *t, const weft_gguf *gguf, weft_error *error) {
  static const char *const names[] = {"gpt2", "llama", "gemma4"};
  weft_bytes model;
  weft_status status = weft_gguf_string(gguf, KEY "model", &model, error);
  if (status == WEFT_E_NOT_FOUND) {
    return weft_fail(error, status, "%s has no tokenizer (no key " KEY "model); take a file with a vocabulary",
                     t->path);
  }
  if (status != WEFT_OK) return status;
  for (uint32_t i = 0; i < 3; i++) {
    if (is_word(model, names[i])) {
      t->kind = (tokenizer_kind)i;
      return t->kind == TOKENIZER_LLAMA ? settle_llama(t, gguf, error) : WEFT_OK;
    }
  }
  char shown[GGUF_SHOWN];
  return weft_fail(error, WEFT_E_UNSUPPORTED, "%s: " KEY "model is '%s'; weft reads gpt2, llama and gemma4", t->path,
                   gguf_show(model, shown));
}

static weft_status read_tokens(weft_tokenizer *t, const weft_gguf *gguf, weft_error *error) {
  uint64_t n = weft_gguf_count(gguf, KEY "tokens");
  if (n == 0 || n > TOKENS_MAX) {
    return weft_fail(error, WEFT_E_FORMAT, "%s: " KEY "tokens has %" PRIu64 " entries; it must have 1 to %d", t->path,
                     n, TOKENS_MAX);
  }
  /* Parts and results of merges are tokens in nearly every file, so merges need no room of their
   * own. */
  weft_status status = vocab_open(&t->vocab, (uint32_t)n);
  for (uint32_t i = 0; i < n && status == WEFT_OK; i++) {
    weft_bytes text;
    uint32_t id;
    bool found;
    status = weft_gguf_string_at(gguf, KEY "tokens", i, &text, error);
    if (status != WEFT_OK) return status;
    status = vocab_add(&t->vocab, text.data, text.n, &id, &found);
    if (status == WEFT_OK && found) {
      char shown[GGUF_SHOWN];
      return weft_fail(error, WEFT_E_FORMAT, "%s: " KEY "tokens: entries %u and %u are both '%s'", t->path, id, i,
                       gguf_show(text, shown));
    }
  }
  t->vocab.n = t->vocab.n_strings;
  return status;
}

/* -1 when the text is not <0xXX>. */
static int32_t byte_of_text(const char *text, uint32_t n) {
  if (n != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>') return -1;
  int32_t value = 0;
  for (uint32_t i = 3; i < 5; i++) {
    const char *digits = "0123456789ABCDEF", *digit = memchr(digits, text[i] & ~(text[i] >= 'a' ? 0x20 : 0), 16);
    if (digit == NULL) return -1;
    value = value * 16 + (int32_t)(digit - digits);
  }
  return value;
}

static weft_status read_types(weft_tokenizer *t, const weft_gguf *gguf, weft_error *error) {
  uint32_t n = t->vocab.n;
  t->vocab.type = weft_alloc(n, 1);
  if (t->vocab.type == NULL) return WEFT_E_NO_MEMORY;
  uint64_t count = weft_gguf_count(gguf, KEY "token_type");
  memset(t->vocab.type, VOCAB_NORMAL, n);
  if (count == 0) return WEFT_OK;
  if (count != n) {
    return weft_fail(error, WEFT_E_FORMAT, "%s: " KEY "token_type has %" PRIu64 " entries for %u tokens", t->path,
                     count, n);
  }
  for (uint32_t i = 0; i < n; i++) {
    uint64_t type;
    weft_status status = weft_gguf_u64_at(gguf, KEY "token_type", i, &type, error);
    if (status != WEFT_OK) return status;
    if (type > VOCAB_BYTE) {
      return weft_fail(error, WEFT_E_FORMAT, "%s: " KEY "token_type[%u] is %" PRIu64 "; it must be 0 to 6", t->path, i,
                       type);
    }
    if (type == VOCAB_BYTE && byte_of_text(vocab_text(&t->vocab, i), vocab_length(&t->vocab, i)) < 0) {
      char shown[GGUF_SHOWN];
      weft_bytes text = {vocab_text(&t->vocab, i), vocab_length(&t->vocab, i)};
      return weft_fail(error, WEFT_E_FORMAT, "%s: token %u is a byte token but reads '%s', not <0xXX>", t->path, i,
                       gguf_show(text, shown));
    }
    if (type != 0) t->vocab.type[i] = (uint8_t)type;
  }
  return WEFT_OK;
}

/* Files made from a tokenizer.json alone type the byte tokens as normal ones. Where all 256 are there and none is
 * typed as a byte, that is what they are: else text outside of the vocabulary would become the unknown token. */
static void retype_bytes(weft_tokenizer *t) {
  uint32_t id[256], n = 0;
  char text[8];
  for (uint32_t i = 0; i < t->vocab.n; i++) {
    if (t->vocab.type[i] == VOCAB_BYTE) return;
  }
  for (uint32_t b = 0; b < 256; b++) {
    (void)snprintf(text, sizeof text, "<0x%02X>", b);
    id[b] = vocab_find(&t->vocab, text, 6);
    if (id[b] < t->vocab.n && t->vocab.type[id[b]] == VOCAB_NORMAL) n += 1;
  }
  for (uint32_t b = 0; n == 256 && b < 256; b++) t->vocab.type[id[b]] = VOCAB_BYTE;
}

static weft_status check_n_scores(const weft_tokenizer *t, const weft_gguf *gguf, weft_error *error) {
  uint64_t count = weft_gguf_count(gguf, KEY "scores");
  if (count == t->vocab.n || (count == 0 && t->kind != TOKENIZER_LLAMA)) return WEFT_OK;
  return weft_fail(error, WEFT_E_FORMAT, "%s: " KEY "scores has %" PRIu64 " entries for %u tokens", t->path, count,
                   t->vocab.n);
}

static weft_status read_scores(weft_tokenizer *t, const weft_gguf *gguf, weft_error *error) {
  enum { VOCABULARY = 512 }; /* fewer tokens may have such scores by chance */
  uint32_t n_like_ids = 0;
  t->order = weft_alloc(t->vocab.n, sizeof *t->order);
  if (t->order == NULL) return WEFT_E_NO_MEMORY;
  for (uint32_t i = 0; i < t->vocab.n; i++) {
    double score;
    weft_status status = weft_gguf_f64_at(gguf, KEY "scores", i, &score, error);
    if (status != WEFT_OK) return status;
    if (isnan(score)) {
      return weft_fail(error, WEFT_E_FORMAT, "%s: " KEY "scores[%u] is not a number", t->path, i);
    }
    float narrow = (float)score + 0.0f; /* no negative zero */
    uint32_t bits;
    memcpy(&bits, &narrow, sizeof bits);
    t->order[i] = (bits & 0x80000000u) != 0 ? bits : 0x7FFFFFFFu - bits; /* the best score first */
    if (score == (double)i) n_like_ids += 1;
  }
  if (n_like_ids < t->vocab.n || t->vocab.n < VOCABULARY) return WEFT_OK;
  return weft_fail(error, WEFT_E_FORMAT,
                   "%s: " KEY
                   "scores are the numbers of the tokens, so texts would be cut wrongly; convert the model "
                   "again with llama.cpp",
                   t->path);
}

/* "left right": the space is the first one after the first byte, since a token may begin with a
 * space. */
static weft_status read_merge(weft_tokenizer *t, weft_bytes line, uint32_t rank, weft_text *joined, weft_error *error) {
  const char *space = line.n < 3 ? NULL : memchr(line.data + 1, ' ', line.n - 2);
  if (space == NULL) {
    char shown[GGUF_SHOWN];
    return weft_fail(error, WEFT_E_FORMAT, "%s: " KEY "merges[%u] is '%s'; it must be two texts with a space between",
                     t->path, rank, gguf_show(line, shown));
  }
  size_t n_left = (size_t)(space - line.data), n_right = line.n - n_left - 1;
  merge_rule rule = {.rank = rank};
  bool found;
  weft_text_clear(joined);
  weft_text_append(joined, line.data, n_left);
  weft_text_append(joined, space + 1, n_right);
  weft_status status = weft_text_status(joined);
  if (status == WEFT_OK) status = vocab_add(&t->vocab, line.data, n_left, &rule.left, &found);
  if (status == WEFT_OK) status = vocab_add(&t->vocab, space + 1, n_right, &rule.right, &found);
  if (status == WEFT_OK) status = vocab_add(&t->vocab, joined->bytes, joined->n, &rule.result, &found);
  if (status == WEFT_OK) merges_add(&t->merges, rule);
  return status;
}

static weft_status read_merges(weft_tokenizer *t, const weft_gguf *gguf, uint64_t n, weft_error *error) {
  if (weft_gguf_find(gguf, KEY "merges") < 0 || n > MERGES_MAX) {
    return weft_fail(error, WEFT_E_FORMAT, "%s: " KEY "merges is missing or has more than %d entries", t->path,
                     MERGES_MAX);
  }
  weft_text joined = {0};
  weft_status status = merges_open(&t->merges, (uint32_t)n);
  for (uint32_t i = 0; i < n && status == WEFT_OK; i++) {
    weft_bytes line;
    status = weft_gguf_string_at(gguf, KEY "merges", i, &line, error);
    if (status == WEFT_OK) status = read_merge(t, line, i, &joined, error);
  }
  weft_text_free(&joined);
  return status;
}

static weft_status read_pre(weft_tokenizer *t, const weft_gguf *gguf, weft_error *error) {
  weft_bytes pre = {"default", 7};
  weft_error line = {{0}};
  split_info info;
  weft_status status = weft_gguf_string(gguf, KEY "pre", &pre, error);
  if (status == WEFT_E_NOT_FOUND) {
    weft_log(WEFT_LOG_WARN, "%s names no pre-tokenizer (" KEY "pre); 'default' is used and may be wrong", t->path);
  } else if (status != WEFT_OK) {
    return status;
  }
  status = split_open(pre, &t->split, &info, &line);
  if (status != WEFT_OK && line.text[0] != 0) return weft_fail(error, status, "%s: %s", t->path, line.text);
  if (status != WEFT_OK) return status;
  t->ignore_merges = info.ignore_merges;
  t->add_bos = info.add_bos;
  return WEFT_OK;
}

/* The numbers of single bytes and characters, so that encoding looks most of them up in an array. */
static void fill_tables(weft_tokenizer *t) {
  t->space_id = vocab_find(&t->vocab, "\xE2\x96\x81", 3);
  for (uint32_t b = 0; b < 256; b++) {
    char text[4] = {(char)b};
    size_t n = t->kind == TOKENIZER_GPT2 ? weft_utf8_encode(gpt2_character((uint8_t)b), text) : 1;
    uint32_t id = vocab_find(&t->vocab, text, n);
    if (b < 128) t->ascii_id[b] = id;
    t->byte_id[b] = t->kind == TOKENIZER_GPT2 || tokenizer_is_text(t, id) ? id : VOCAB_NONE;
  }
  for (uint32_t i = 0; i < t->vocab.n; i++) {
    if (t->vocab.type[i] == VOCAB_UNUSED) t->has_unused = true;
    if (t->kind == TOKENIZER_GPT2 || t->vocab.type[i] != VOCAB_BYTE) continue;
    t->byte_id[byte_of_text(vocab_text(&t->vocab, i), vocab_length(&t->vocab, i))] = i;
  }
}

/* Appends a string of the vocabulary as printed: gpt2's alphabet back to bytes, the visible space to a space. */
static void print_string(const weft_tokenizer *t, const char *text, uint32_t n, weft_text *out) {
  for (uint32_t i = 0; i < n;) {
    uint32_t c = 0;
    uint32_t length = (uint32_t)weft_utf8_decode(text + i, n - i, &c);
    int32_t byte = length > 0 && t->kind == TOKENIZER_GPT2 ? gpt2_byte(c) : -1;
    char one = (char)byte;
    if (byte >= 0) {
      weft_text_append(out, &one, 1);
    } else if (length == 3 && c == 0x2581 && t->kind != TOKENIZER_GPT2) {
      weft_text_append(out, " ", 1);
    } else {
      weft_text_append(out, text + i, length > 0 ? length : 1);
    }
    i += length > 0 ? length : 1;
  }
}

/* Special tokens stand for their text as it is in the file; parts of merges that are no token may become the unknown
 * token, which then stands for all their bytes. Nothing prints longer than it is in the file. */
static weft_status measure_longest(weft_tokenizer *t) {
  enum { CHARACTER_BYTES = 4 };
  weft_text printed = {0};
  t->longest = CHARACTER_BYTES;
  for (uint32_t i = 0; i < t->vocab.n_strings && !printed.refused; i++) {
    uint32_t n = vocab_length(&t->vocab, i);
    if (n <= t->longest) continue;
    weft_text_clear(&printed);
    print_string(t, vocab_text(&t->vocab, i), n, &printed);
    bool special = i < t->vocab.n && tokenizer_is_special(t, i);
    uint32_t length = special ? n : (uint32_t)printed.n;
    if (length > t->longest) t->longest = length;
  }
  weft_status status = weft_text_status(&printed);
  weft_text_free(&printed);
  return status;
}

static weft_status tokenizer_read(weft_tokenizer *t, const weft_gguf *gguf, weft_error *error) {
  uint64_t n_merges = weft_gguf_count(gguf, KEY "merges");
  weft_status status = read_kind(t, gguf, error);
  if (status == WEFT_OK && t->kind == TOKENIZER_GPT2) status = read_pre(t, gguf, error);
  if (status == WEFT_OK) status = read_tokens(t, gguf, error);
  if (status == WEFT_OK) status = read_types(t, gguf, error);
  if (status == WEFT_OK && t->kind != TOKENIZER_GPT2) retype_bytes(t);
  if (status == WEFT_OK) status = check_n_scores(t, gguf, error);
  if (status == WEFT_OK && t->kind == TOKENIZER_LLAMA) status = read_scores(t, gguf, error);
  if (status == WEFT_OK && t->kind != TOKENIZER_LLAMA) status = read_merges(t, gguf, n_merges, error);
  if (status == WEFT_OK) status = tokenizer_read_special(t, gguf, error);
  if (status == WEFT_OK) fill_tables(t);
  return status == WEFT_OK ? measure_longest(t) : status;
}

weft_status weft_tokenizer_open(const weft_gguf *gguf, weft_tokenizer **out, weft_error *error) {
  *out = NULL;
  weft_error line = {{0}};
  weft_status status = WEFT_E_NO_MEMORY;
  weft_tokenizer *t = weft_alloc(1, sizeof *t);
  if (t == NULL) goto fail;
  t->path = weft_strdup(weft_gguf_path(gguf));
  if (t->path == NULL) goto fail;
  status = tokenizer_read(t, gguf, &line);
  if (status != WEFT_OK) goto fail;
  *out = t;
  return WEFT_OK;
fail:
  weft_tokenizer_close(t);
  return weft_fail(error, status, "%s", line.text[0] != 0 ? line.text : "out of memory while reading the vocabulary");
}

void weft_tokenizer_close(weft_tokenizer *t) {
  if (t == NULL) return;
  vocab_close(&t->vocab);
  merges_close(&t->merges);
  split_close(t->split);
  weft_free(t->order);
  weft_free(t->special);
  weft_free(t->eog);
  weft_free(t->suppressed);
  weft_free(t->path);
  weft_free(t);
}

weft_status weft_tokenizer_piece(const weft_tokenizer *t, int32_t id, bool with_special, weft_text *out) {
  if (id < 0 || (uint32_t)id >= t->vocab.n) return WEFT_E_INVALID;
  const char *text = vocab_text(&t->vocab, (uint32_t)id);
  uint32_t n = vocab_length(&t->vocab, (uint32_t)id);
  uint8_t type = t->vocab.type[id];
  if (type == VOCAB_CONTROL || type == VOCAB_UNKNOWN || type == VOCAB_USER_DEFINED) {
    if (type == VOCAB_USER_DEFINED || with_special) weft_text_append(out, text, n);
    return weft_text_status(out);
  }
  if (type == VOCAB_BYTE) {
    char byte = (char)byte_of_text(text, n);
    weft_text_append(out, &byte, 1);
    return weft_text_status(out);
  }
  print_string(t, text, n, out);
  return weft_text_status(out);
}

uint32_t weft_tokenizer_longest(const weft_tokenizer *t) {
  return t->longest;
}

uint32_t weft_tokenizer_n_vocab(const weft_tokenizer *t) {
  return t->vocab.n;
}

int32_t weft_tokenizer_find(const weft_tokenizer *t, const char *text) {
  uint32_t id = vocab_find(&t->vocab, text, strlen(text));
  return id < t->vocab.n ? (int32_t)id : -1;
}

bool weft_tokenizer_is_control(const weft_tokenizer *t, int32_t id) {
  if (id < 0 || (uint32_t)id >= t->vocab.n) return false;
  return t->vocab.type[id] == VOCAB_CONTROL || t->vocab.type[id] == VOCAB_UNKNOWN;
}

bool weft_tokenizer_is_eog(const weft_tokenizer *t, int32_t id) {
  for (uint32_t i = 0; i < t->n_eog; i++) {
    if (t->eog[i] == id) return true;
  }
  return false;
}

const int32_t *weft_tokenizer_eog(const weft_tokenizer *t, uint32_t *n) {
  *n = t->n_eog;
  return t->eog;
}

const int32_t *weft_tokenizer_suppressed(const weft_tokenizer *t, uint32_t *n) {
  *n = t->n_suppressed;
  return t->suppressed;
}

int32_t weft_tokenizer_bos(const weft_tokenizer *t) {
  return t->bos;
}

int32_t weft_tokenizer_eos(const weft_tokenizer *t) {
  return t->eos;
}

int32_t weft_tokenizer_pad(const weft_tokenizer *t) {
  return t->pad;
}

int32_t weft_tokenizer_unk(const weft_tokenizer *t) {
  return t->unk;
}
bool weft_tokenizer_adds_bos(const weft_tokenizer *t) {
  return t->add_bos;
}
bool weft_tokenizer_adds_space(const weft_tokenizer *t) {
  return t->kind == TOKENIZER_LLAMA && t->add_space_prefix;
}
