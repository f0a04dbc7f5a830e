/* SPDX-License-Identifier: MIT */
/* Pins: prefixes that the operator keeps in the pool, given as text, as turns or as tokens.
 *
 * Law: what is pinned are the tokens that stay whatever follows. A tokenizer may join the end of a
 * text with what comes after it, so a text or conversation is encoded with several continuations, and
 * what all of them begin with is taken; the engine cuts it to whole blocks. */
#include <string.h>

#include "api/runtime.h"
#include "base/memory.h"

static const char *const continuations[] = {"x", "0", " (", "\n\n"};
enum { N_CONTINUATIONS = sizeof continuations / sizeof *continuations };

static weft_status encode_text(const weft_served_model *m, const weft_prefix *p, const char *more, weft_tokens *out,
                               weft_error *error) {
  weft_text text = {0};
  weft_text_append(&text, p->text, p->n_text);
  weft_text_puts(&text, more);
  weft_status status = weft_text_status(&text);
  if (status != WEFT_OK) {
    (void)weft_fail(error, status, "no memory for the prefix");
  } else {
    status = weft_tokenizer_encode(m->tokenizer, text.bytes, text.n, WEFT_ENCODE_ADD_SPECIAL, out, error);
  }
  weft_text_free(&text);
  return status;
}

/* The next turn is the user's; after one of the user, the assistant's. */
static weft_status encode_turns(const weft_served_model *m, const weft_prefix *p, const char *more, weft_tokens *out,
                                weft_error *error) {
  weft_chat_message *list = weft_alloc((size_t)p->n_turns + 1, sizeof *list);
  if (list == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for the prefix");
  for (uint32_t i = 0; i < p->n_turns; i++) {
    const weft_chat_turn *t = &p->turns[i];
    list[i] = (weft_chat_message){.role = t->role, .content = t->content, .n_content = strlen(t->content)};
  }
  bool asked = strcmp(p->turns[p->n_turns - 1].role, "user") == 0;
  list[p->n_turns] =
      (weft_chat_message){.role = asked ? "assistant" : "user", .content = more, .n_content = strlen(more)};
  weft_chat_options options = {.thinking = p->thinking, .add_generation_prompt = true};
  weft_status status = weft_chat_render(m->chat, list, p->n_turns + 1, &options, out, error);
  weft_free(list);
  return status;
}

static weft_status check_turns(const weft_served_model *m, const weft_prefix *p, weft_error *error) {
  if (m->chat == NULL) {
    return weft_fail(error, WEFT_E_UNSUPPORTED, "%s has no chat template that weft knows: pin a text instead", m->name);
  }
  size_t n_bytes = 0;
  for (uint32_t i = 0; i < p->n_turns; i++) {
    if (p->turns[i].role == NULL || p->turns[i].content == NULL) {
      return weft_fail(error, WEFT_E_INVALID, "message %u lacks its role or its content", i);
    }
    n_bytes += strlen(p->turns[i].content);
  }
  return p->n_turns > 0 ? weft_served_check_text(m, n_bytes, error)
                        : weft_fail(error, WEFT_E_INVALID, "there is no message to pin");
}

/* What the encodings with all continuations begin with. */
static weft_status common_tokens(const weft_served_model *m, const weft_prefix *p, weft_tokens *out,
                                 weft_error *error) {
  weft_status status = p->turns != NULL ? check_turns(m, p, error) : weft_served_check_text(m, p->n_text, error);
  for (uint32_t i = 0; status == WEFT_OK && i < N_CONTINUATIONS; i++) {
    weft_tokens other = {0}, *into = i == 0 ? out : &other;
    status = p->turns != NULL ? encode_turns(m, p, continuations[i], into, error)
                              : encode_text(m, p, continuations[i], into, error);
    uint32_t n = 0;
    while (status == WEFT_OK && n < out->n && n < into->n && out->ids[n] == into->ids[n]) n++;
    out->n = n;
    weft_tokens_free(&other);
  }
  return status;
}

static weft_status pin_tokens(weft_runtime *rt, const weft_prefix *p, uint32_t index, const int32_t *tokens, uint32_t n,
                              uint32_t *id, weft_error *error) {
  uint64_t now = weft_clock_us();
  weft_pin_params params = {.runner = index,
                            .tenant = p->tenant,
                            .domain = weft_runtime_domain(rt, p->tenant),
                            .is_public = p->is_public,
                            .tokens = tokens,
                            .n_tokens = n,
                            .priority = p->priority,
                            .expires_us = p->ttl_seconds == 0 ? 0 : now + (uint64_t)p->ttl_seconds * 1000000u};
  return weft_engine_pin(rt->engine, &params, now, id, error);
}

int weft_pin(weft_runtime *rt, const weft_prefix *p, uint32_t *id, char *error, size_t n_error) {
  weft_error why = {{0}};
  uint32_t index;
  const weft_served_model *m = weft_runtime_model(rt, p->model, &index, &why);
  if (m == NULL) return weft_tell(&why, WEFT_E_NOT_FOUND, error, n_error);
  int n_kinds = (p->turns != NULL) + (p->text != NULL) + (p->tokens != NULL);
  weft_tokens tokens = {0};
  weft_status status = WEFT_OK;
  if (n_kinds != 1) {
    status = weft_fail(&why, WEFT_E_INVALID, "give exactly one of messages, text and tokens");
  } else if (p->tokens == NULL) {
    status = common_tokens(m, p, &tokens, &why);
  }
  if (status == WEFT_OK) {
    const int32_t *ids = p->tokens != NULL ? p->tokens : tokens.ids;
    status = pin_tokens(rt, p, index, ids, p->tokens != NULL ? p->n_tokens : tokens.n, id, &why);
  }
  weft_tokens_free(&tokens);
  return status == WEFT_OK ? 0 : weft_tell(&why, status, error, n_error);
}

int weft_unpin(weft_runtime *rt, uint32_t id) {
  return (int)weft_engine_unpin(rt->engine, id);
}

void weft_reset_prefix_cache(weft_runtime *rt) {
  weft_engine_reset_cache(rt->engine);
}

uint32_t weft_pins(weft_runtime *rt, weft_pin_card *out, uint32_t max) {
  weft_pin_info *info = weft_alloc((size_t)max + 1, sizeof *info);
  if (info == NULL) return 0;
  uint32_t n = weft_engine_list_pins(rt->engine, info, max);
  uint64_t now = weft_clock_us();
  for (uint32_t i = 0; i < n; i++) {
    uint64_t left = info[i].expires_us > now ? info[i].expires_us - now : 0;
    out[i] = (weft_pin_card){.id = info[i].id,
                             .model = rt->model[info[i].runner].name,
                             .tenant = info[i].tenant,
                             .is_public = info[i].is_public,
                             .held = info[i].held,
                             .priority = info[i].priority,
                             .tokens = info[i].n_tokens,
                             .pages = info[i].n_pages,
                             .ttl_seconds = (uint32_t)((left + 999999) / 1000000)};
  }
  weft_free(info);
  return n;
}
