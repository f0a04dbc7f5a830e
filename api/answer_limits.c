/* SPDX-License-Identifier: MIT */
#include "api/answer_limits.h"

#include <string.h>
#include <xxhash.h>

#include "base/memory.h"

static weft_status push_all(weft_tokens *out, const int32_t *ids, uint32_t n, weft_error *error) {
  for (uint32_t i = 0; i < n; i++) {
    if (weft_tokens_push(out, ids[i]) != WEFT_OK)
      return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for the stop tokens");
  }
  return WEFT_OK;
}

/* What ends the answer: ends of a generation, unless they are ignored, and the request's own. */
static weft_status find_stop(const weft_served_model *m, const weft_generate_params *p, weft_tokens *out,
                             weft_error *error) {
  uint32_t n_eog;
  const int32_t *eog = weft_tokenizer_eog(m->tokenizer, &n_eog);
  weft_status status = p->ignore_eos ? WEFT_OK : push_all(out, eog, n_eog, error);
  return status == WEFT_OK ? push_all(out, p->stop_tokens, p->n_stop_tokens, error) : status;
}

/* ---- words ---- */

typedef struct word_list {
  weft_tokens tokens; /* one word behind the other */
  uint32_t length[2 * WEFT_BAD_WORDS_MAX], n;
} word_list;

static weft_status add_word(const weft_served_model *m, const char *text, size_t n, word_list *list,
                            weft_error *error) {
  uint32_t before = list->tokens.n;
  weft_status status = weft_tokenizer_encode(m->tokenizer, text, n, 0, &list->tokens, error);
  if (status != WEFT_OK) return status;
  if (list->tokens.n > WEFT_BAD_WORD_TOKENS_MAX) {
    return weft_fail(error, WEFT_E_INVALID, "bad_words have more than %d tokens", WEFT_BAD_WORD_TOKENS_MAX);
  }
  uint32_t length = list->tokens.n - before;
  if (length > 0) list->length[list->n++] = length;
  return WEFT_OK;
}

/* As it begins a text, and as it stands behind a blank. */
static weft_status add_both(const weft_served_model *m, const char *word, word_list *list, weft_error *error) {
  char spaced[WEFT_BAD_WORD_BYTES_MAX + 2];
  while (*word == ' ') word++;
  size_t n = strlen(word);
  if (n == 0 || n > WEFT_BAD_WORD_BYTES_MAX) {
    return weft_fail(error, WEFT_E_INVALID, "a word of bad_words has 1 to %d bytes beside blanks",
                     WEFT_BAD_WORD_BYTES_MAX);
  }
  spaced[0] = ' ';
  memcpy(spaced + 1, word, n);
  weft_status status = add_word(m, word, n, list, error);
  return status == WEFT_OK ? add_word(m, spaced, n + 1, list, error) : status;
}

static weft_status find_words(const weft_served_model *m, const weft_generate_params *p, word_list *list,
                              weft_error *error) {
  if (p->n_bad_words > WEFT_BAD_WORDS_MAX) {
    return weft_fail(error, WEFT_E_INVALID, "bad_words has %u words; at most %d are allowed", p->n_bad_words,
                     WEFT_BAD_WORDS_MAX);
  }
  weft_status status = WEFT_OK;
  for (uint32_t i = 0; i < p->n_bad_words && status == WEFT_OK; i++) status = add_both(m, p->bad_words[i], list, error);
  return status;
}

/* ---- */

static weft_status make_rules(const weft_served_model *m, const weft_generate_params *p, answer_limits *out,
                              weft_error *error) {
  word_list *list = weft_alloc(1, sizeof *list);
  if (list == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for the rules of an answer");
  weft_token_rules_config config = {.n_vocab = weft_tokenizer_n_vocab(m->tokenizer),
                                    .allowed = p->allowed_tokens,
                                    .n_allowed = p->n_allowed_tokens,
                                    .end = out->stop.ids,
                                    .n_ends = out->stop.n,
                                    .min_tokens = p->min_tokens};
  config.suppressed = weft_tokenizer_suppressed(m->tokenizer, &config.n_suppressed);
  weft_status status = find_words(m, p, list, error);
  config.word = list->tokens.ids;
  config.word_length = list->length;
  config.n_words = list->n;
  if (status == WEFT_OK) status = weft_token_rules_open(&config, &out->rules, error);
  weft_tokens_free(&list->tokens);
  weft_free(list);
  return status;
}

weft_status answer_limits_open(const weft_served_model *m, const weft_generate_params *p, answer_limits *out,
                               weft_error *error) {
  bool rules = p->min_tokens > 0 || p->n_allowed_tokens > 0 || p->n_bad_words > 0;
  out->has_stop = p->n_stop_tokens > 0;
  uint32_t max_tokens = p->prompt_only ? 0 : p->max_tokens;
  if ((p->prompt_only || max_tokens > 0) && p->min_tokens > max_tokens) {
    return weft_fail(error, WEFT_E_INVALID, "min_tokens is %u and max_tokens %u: it may be at most that", p->min_tokens,
                     max_tokens);
  }
  if (p->keep_stop && out->has_stop) {
    return weft_fail(error, WEFT_E_UNSUPPORTED,
                     "include_stop_str_in_output keeps stop strings; with stop_token_ids it is not supported");
  }
  /* every answer of the request copies them, before the engine counts them */
  if (p->n_stop_tokens > WEFT_STOP_TOKENS_MAX) {
    return weft_fail(error, WEFT_E_INVALID, "stop_token_ids has %u tokens; at most %d are allowed", p->n_stop_tokens,
                     WEFT_STOP_TOKENS_MAX);
  }
  weft_status status = rules || out->has_stop ? find_stop(m, p, &out->stop, error) : WEFT_OK;
  for (uint32_t i = 0; i < p->n_stop_tokens && status == WEFT_OK; i++) {
    uint32_t n_vocab = weft_tokenizer_n_vocab(m->tokenizer);
    if (p->stop_tokens[i] >= 0 && (uint32_t)p->stop_tokens[i] < n_vocab) continue;
    return weft_fail(error, WEFT_E_INVALID, "stop_token_ids has token %d; the vocabulary has tokens 0 to %u",
                     p->stop_tokens[i], n_vocab - 1);
  }
  return status == WEFT_OK && rules ? make_rules(m, p, out, error) : status;
}

void answer_limits_close(answer_limits *limits) {
  weft_tokens_free(&limits->stop);
  weft_token_rules_unref(limits->rules);
  *limits = (answer_limits){0};
}

uint64_t answer_limits_bytes(const answer_limits *limits) {
  uint64_t rules = limits->rules == NULL ? 0 : weft_token_rules_bytes(limits->rules);
  return rules + 2 * (uint64_t)limits->stop.n * sizeof *limits->stop.ids; /* the engine has a copy */
}

uint32_t answer_limits_prompt(const weft_generate_params *p, uint32_t n, uint32_t context, uint32_t n_canvas) {
  uint32_t room = p->max_tokens > n_canvas ? p->max_tokens : n_canvas;
  if (room == 0) room = 1;
  if (p->prompt_only) room = 0;
  uint32_t most = p->truncate_prompt > 0   ? (uint32_t)p->truncate_prompt
                  : p->truncate_prompt < 0 ? (context > room ? context - room : 1)
                                           : n;
  return n < most ? n : most;
}

weft_key128 answer_limits_domain(const uint8_t secret[WEFT_SALT_SECRET], weft_key128 domain, const char *salt) {
  _Static_assert(WEFT_SALT_SECRET >= XXH3_SECRET_SIZE_MIN, "the hash takes the whole secret");
  if (salt == NULL || *salt == 0) return domain;
  XXH128_hash_t own = XXH3_128bits_withSecret(salt, strlen(salt), secret, WEFT_SALT_SECRET);
  return weft_domain_with_salt(domain, (weft_key128){own.low64, own.high64});
}
