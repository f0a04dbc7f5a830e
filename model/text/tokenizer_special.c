/* SPDX-License-Identifier: MIT */
/* The tokens that are not text: their ids, which of them end a generation, and the sorted list that
 * cuts them out.
 *
 * Law: a token that ends generations is a control token, whatever the file typed it: never printed,
 * and found in text only where control tokens are. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "model/text/tokenizer_internal.h"

#define KEY "tokenizer.ggml."

/* The id under key, -1 when absent or when the file says none (-1, or all bits set). */
static weft_status read_id(const weft_tokenizer *t, const weft_gguf *gguf, const char *key, int32_t *id,
                           weft_error *error) {
  double value;
  weft_status status = weft_gguf_f64(gguf, key, &value, error);
  if (status == WEFT_E_NOT_FOUND) return WEFT_OK;
  if (status != WEFT_OK) return status;
  *id = -1;
  if (value == -1.0 || value == 4294967295.0) return WEFT_OK;
  if (!(value >= 0 && value < t->vocab.n) || value != floor(value)) {
    return weft_fail(error, WEFT_E_FORMAT, "%s: %s is %g; it must be a token below %u", t->path, key, value,
                     t->vocab.n);
  }
  *id = (int32_t)value;
  return WEFT_OK;
}

/* Entry i of the list of ids under key. */
static weft_status read_id_at(const weft_tokenizer *t, const weft_gguf *gguf, const char *key, uint64_t i, int32_t *id,
                              weft_error *error) {
  uint64_t value;
  weft_status status = weft_gguf_u64_at(gguf, key, i, &value, error);
  if (status != WEFT_OK) return status;
  if (value >= t->vocab.n) {
    return weft_fail(error, WEFT_E_FORMAT, "%s: %s[%" PRIu64 "] is %" PRIu64 "; it must be a token below %u", t->path,
                     key, i, value, t->vocab.n);
  }
  *id = (int32_t)value;
  return WEFT_OK;
}

static weft_status read_flag(const weft_gguf *gguf, const char *key, bool *flag, bool *present, weft_error *error) {
  weft_status status = weft_gguf_bool(gguf, key, flag, error);
  *present = status == WEFT_OK;
  return status == WEFT_E_NOT_FOUND ? WEFT_OK : status;
}

/* An id that no token has is taken as none: the token that texts begin with is then found by its name, if it has one. */
static weft_status read_bos(weft_tokenizer *t, const weft_gguf *gguf, weft_error *error) {
  static const char *const names[] = {"<bos>", "<s>", "<|begin_of_text|>"};
  int32_t usual = t->bos;
  weft_status status = read_id(t, gguf, KEY "bos_token_id", &t->bos, error);
  double value;
  bool is_number = weft_gguf_f64(gguf, KEY "bos_token_id", &value, NULL) == WEFT_OK;
  if (status != WEFT_E_FORMAT || !is_number) return status;
  t->bos = usual;
  for (size_t i = 0; i < sizeof names / sizeof *names && t->bos < 0; i++) {
    uint32_t id = vocab_find(&t->vocab, names[i], strlen(names[i]));
    if (id < t->vocab.n) t->bos = (int32_t)id;
  }
  weft_log(WEFT_LOG_WARN, "%s; %s%d is taken", error->text, t->bos < 0 ? "no token: " : "token ", t->bos);
  *error = (weft_error){{0}};
  return WEFT_OK;
}

static weft_status read_ids(weft_tokenizer *t, const weft_gguf *gguf, weft_error *error) {
  bool defaults = t->kind == TOKENIZER_LLAMA && t->vocab.n > 2;
  t->bos = defaults ? 1 : -1;
  t->eos = defaults ? 2 : -1;
  t->unk = defaults ? 0 : -1;
  t->pad = t->mask = -1;
  weft_status status = read_bos(t, gguf, error);
  if (status == WEFT_OK) status = read_id(t, gguf, KEY "eos_token_id", &t->eos, error);
  if (status == WEFT_OK) status = read_id(t, gguf, KEY "unknown_token_id", &t->unk, error);
  if (status == WEFT_OK) status = read_id(t, gguf, KEY "padding_token_id", &t->pad, error);
  if (status == WEFT_OK) status = read_id(t, gguf, KEY "mask_token_id", &t->mask, error);
  return status;
}

static weft_status read_flags(weft_tokenizer *t, const weft_gguf *gguf, weft_error *error) {
  bool asked, asked_eos, present;
  if (t->kind == TOKENIZER_LLAMA) t->add_bos = t->add_space_prefix = true;
  weft_status status = read_flag(gguf, KEY "add_bos_token", &t->add_bos, &asked, error);
  if (status == WEFT_OK) status = read_flag(gguf, KEY "add_eos_token", &t->add_eos, &asked_eos, error);
  if (status == WEFT_OK) status = read_flag(gguf, KEY "add_space_prefix", &t->add_space_prefix, &present, error);
  if (status != WEFT_OK) return status;
  if (t->kind == TOKENIZER_GEMMA4) t->add_bos = asked = true; /* whatever the file says: old files are wrong */
  if (t->add_bos && t->bos < 0) {
    if (asked)
      return weft_fail(error, WEFT_E_FORMAT, "%s: texts begin with a token that " KEY "bos_token_id does not name",
                       t->path);
    t->add_bos = false;
  }
  if (t->add_eos && t->eos < 0) {
    return weft_fail(error, WEFT_E_FORMAT, "%s: texts end with a token that " KEY "eos_token_id does not name",
                     t->path);
  }
  return WEFT_OK;
}

static uint32_t find_text(const weft_tokenizer *t, const char *text) {
  uint32_t id = vocab_find(&t->vocab, text, strlen(text));
  return id < t->vocab.n ? id : VOCAB_NONE;
}

static void retype_token(weft_tokenizer *t, const char *text, vocab_type type) {
  uint32_t id = find_text(t, text);
  if (id != VOCAB_NONE) t->vocab.type[id] = (uint8_t)type;
}

static void add_eog(weft_tokenizer *t, int32_t id) {
  uint32_t at = 0;
  while (at < t->n_eog && t->eog[at] < id) at += 1;
  if (id < 0 || (at < t->n_eog && t->eog[at] == id)) return;
  memmove(t->eog + at + 1, t->eog + at, (t->n_eog - at) * sizeof *t->eog);
  t->eog[at] = id;
  t->n_eog += 1;
  if (t->vocab.type[id] != VOCAB_UNKNOWN) t->vocab.type[id] = VOCAB_CONTROL;
}

static const char *const eog_keys[] = {
    KEY "eos_token_id",     KEY "eot_token_id",     KEY "eom_token_id",
    KEY "fim_pad_token_id", KEY "fim_rep_token_id", KEY "fim_sep_token_id",
};
static const char *const eog_texts[] = {
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<\uFF5Cend\u2581of\u2581sentence\uFF5C>",
    "[e~[",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
};
enum {
  EOS_IDS_MAX = 64,
  N_EOG_KEYS = sizeof eog_keys / sizeof *eog_keys,
  N_EOG_TEXTS = sizeof eog_texts / sizeof *eog_texts
};

/* Families that use one of the texts for something else. */
static bool eog_text_means_more(weft_tokenizer *t, const char *text) {
  if (strcmp(text, "</s>") == 0 && find_text(t, "<|tool_response>") != VOCAB_NONE) {
    retype_token(t, text, VOCAB_NORMAL);
    return true;
  }
  if (strcmp(text, "<|end|>") != 0) return false;
  bool channels = find_text(t, "<|return|>") != VOCAB_NONE && find_text(t, "<|call|>") != VOCAB_NONE;
  if (channels) retype_token(t, text, VOCAB_USER_DEFINED);
  return channels;
}

/* Ollama's files list all ends of generation here. */
static weft_status read_eos_ids(weft_tokenizer *t, const weft_gguf *gguf, uint64_t n, weft_error *error) {
  for (uint64_t i = 0; i < n; i++) {
    int32_t id = -1;
    weft_status status = read_id_at(t, gguf, KEY "eos_token_ids", i, &id, error);
    if (status != WEFT_OK) return status;
    add_eog(t, id);
  }
  return WEFT_OK;
}

static weft_status read_eog(weft_tokenizer *t, const weft_gguf *gguf, weft_error *error) {
  uint64_t n_eos_ids = weft_gguf_count(gguf, KEY "eos_token_ids");
  if (n_eos_ids > EOS_IDS_MAX) {
    return weft_fail(error, WEFT_E_FORMAT, "%s: " KEY "eos_token_ids has %" PRIu64 " entries; it may have %d", t->path,
                     n_eos_ids, EOS_IDS_MAX);
  }
  t->eog = weft_alloc(N_EOG_KEYS + N_EOG_TEXTS + n_eos_ids + 1, sizeof *t->eog);
  if (t->eog == NULL) return WEFT_E_NO_MEMORY;
  add_eog(t, t->eos);
  weft_status read = read_eos_ids(t, gguf, n_eos_ids, error);
  if (read != WEFT_OK) return read;
  for (uint32_t i = 0; i < N_EOG_KEYS; i++) {
    int32_t id = -1;
    weft_status status = read_id(t, gguf, eog_keys[i], &id, error);
    if (status != WEFT_OK) return status;
    add_eog(t, id);
  }
  for (uint32_t i = 0; i < N_EOG_TEXTS; i++) {
    uint32_t id = find_text(t, eog_texts[i]);
    if (id != VOCAB_NONE && !eog_text_means_more(t, eog_texts[i])) add_eog(t, (int32_t)id);
  }
  static const char *const markers[] = {"<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"};
  for (uint32_t i = 0; i < 4; i++) retype_token(t, markers[i], VOCAB_USER_DEFINED);
  return WEFT_OK;
}

/* What answers are parted by is printed, so it must be no control token. */
static void retype_gemma4_markers(weft_tokenizer *t) {
  static const char *const markers[] = {"<|channel>",       "<channel|>",       "<|tool_call>", "<tool_call|>",
                                        "<|tool_response>", "<tool_response|>", "<|\"|>"};
  for (uint32_t i = 0; i < sizeof markers / sizeof *markers; i++) retype_token(t, markers[i], VOCAB_USER_DEFINED);
}

static weft_status read_suppressed(weft_tokenizer *t, const weft_gguf *gguf, weft_error *error) {
  uint64_t n = weft_gguf_count(gguf, KEY "suppress_tokens");
  if (n > t->vocab.n) {
    return weft_fail(error, WEFT_E_FORMAT, "%s: " KEY "suppress_tokens has %" PRIu64 " entries for %u tokens", t->path,
                     n, t->vocab.n);
  }
  t->suppressed = weft_alloc((size_t)n, sizeof *t->suppressed);
  if (t->suppressed == NULL) return WEFT_E_NO_MEMORY;
  for (uint64_t i = 0; i < n; i++) {
    int32_t id = -1;
    weft_status status = read_id_at(t, gguf, KEY "suppress_tokens", i, &id, error);
    if (status != WEFT_OK) return status;
    t->suppressed[t->n_suppressed++] = id;
  }
  return WEFT_OK;
}

static int by_text(const void *a, const void *b, void *self) {
  const vocab *v = self;
  uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
  uint32_t n_x = vocab_length(v, x), n_y = vocab_length(v, y);
  int order = memcmp(vocab_text(v, x), vocab_text(v, y), n_x < n_y ? n_x : n_y);
  return order != 0 ? order : n_x < n_y ? -1 : n_x > n_y;
}

static weft_status sort_special(weft_tokenizer *t, weft_error *error) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < t->vocab.n; i++) {
    if (!tokenizer_is_special(t, i) || vocab_length(&t->vocab, i) == 0) continue;
    n += 1;
    if (weft_utf8_valid(vocab_text(&t->vocab, i), vocab_length(&t->vocab, i), NULL)) continue;
    /* It would cut characters in two. */
    return weft_fail(error, WEFT_E_FORMAT, "%s: token %u is special but its text is not UTF-8", t->path, i);
  }
  t->special = weft_alloc(n, sizeof *t->special);
  if (t->special == NULL) return WEFT_E_NO_MEMORY;
  for (uint32_t i = 0; i < t->vocab.n; i++) {
    if (tokenizer_is_special(t, i) && vocab_length(&t->vocab, i) > 0) t->special[t->n_special++] = i;
  }
  qsort_r(t->special, n, sizeof *t->special, by_text, &t->vocab);
  for (uint32_t i = 0, b = 0; b <= 256; b++) {
    while (i < n && (uint8_t)vocab_text(&t->vocab, t->special[i])[0] < b) i += 1;
    t->special_from[b] = i;
  }
  return WEFT_OK;
}

weft_status tokenizer_read_special(weft_tokenizer *t, const weft_gguf *gguf, weft_error *error) {
  weft_status status = read_ids(t, gguf, error);
  if (status == WEFT_OK) status = read_flags(t, gguf, error);
  if (status == WEFT_OK && t->retypes_markers) retype_gemma4_markers(t);
  if (status == WEFT_OK) status = read_eog(t, gguf, error);
  if (status == WEFT_OK) status = read_suppressed(t, gguf, error);
  return status == WEFT_OK ? sort_special(t, error) : status;
}
