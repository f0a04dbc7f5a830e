/* SPDX-License-Identifier: MIT */
/* Pins: prefixes that the operator keeps in the pool, given as text, as turns or as tokens (api/prompt.h).
 *
 * Law: what is pinned are the tokens that stay the same whatever text follows. A tokenizer may join the end of a text
 * with what comes after it, so a text or a conversation is encoded with several continuations, and the tokens that all
 * of them begin with are taken; the engine cuts them to whole blocks. */
#include <string.h>

#include "api/prompt.h"
#include "base/memory.h"

static const char *const continuations[] = {"x", "0", " (", "\n\n"};
enum { N_CONTINUATIONS = sizeof continuations / sizeof *continuations };

/* The prompt with more behind it: in a text, more of the text; in a conversation, one more turn, which is the user's,
 * or the assistant's after one of the user. */
static weft_status encode_with(const weft_served_model *m, const weft_prompt *p, const char *more, encoded_prompt *out,
                               weft_error *error) {
  weft_prompt longer = *p;
  weft_text text = {0};
  weft_chat_turn *turns = NULL;
  if (p->turns != NULL) {
    const char *last = p->turns[p->n_turns - 1].role;
    bool asked = last != NULL && strcmp(last, "user") == 0;
    longer.turns = turns = weft_alloc((size_t)p->n_turns + 1, sizeof *turns);
    longer.n_turns = p->n_turns + 1;
    if (turns == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for the prefix");
    memcpy(turns, p->turns, p->n_turns * sizeof *turns);
    turns[p->n_turns] = (weft_chat_turn){.role = asked ? "assistant" : "user", .content = more};
  } else {
    weft_text_append(&text, p->text, p->n_text);
    weft_text_puts(&text, more);
    longer.text = text.bytes;
    longer.n_text = text.n;
  }
  weft_status status = weft_text_status(&text);
  if (status != WEFT_OK) {
    (void)weft_fail(error, status, "no memory for the prefix");
  } else {
    status = prompt_encode(m, &longer, &prompt_to_answer, out, error);
  }
  weft_text_free(&text);
  weft_free(turns);
  return status;
}

/* What the encodings with all continuations begin with. */
static weft_status encode_common(const weft_served_model *m, const weft_prompt *p, encoded_prompt *out,
                                 weft_error *error) {
  weft_status status = WEFT_OK;
  if (p->turns != NULL && p->n_turns == 0) return weft_fail(error, WEFT_E_INVALID, "there is no message to pin");
  for (uint32_t i = 0; status == WEFT_OK && i < N_CONTINUATIONS; i++) {
    encoded_prompt other = {0}, *into = i == 0 ? out : &other;
    status = encode_with(m, p, continuations[i], into, error);
    weft_tokens *common = &out->tokens;
    uint32_t n = 0;
    while (status == WEFT_OK && n < common->n && n < into->tokens.n && common->ids[n] == into->tokens.ids[n]) n++;
    common->n = n;
    prompt_close(&other);
  }
  return status;
}

static weft_status pin_tokens(weft_runtime *rt, const weft_prefix *p, uint32_t index, const encoded_prompt *encoded,
                              uint32_t wanted, uint32_t *id, weft_error *error) {
  uint64_t now = weft_clock_us();
  weft_pin_params params = {.model = index,
                            .tenant = p->tenant,
                            .domain = weft_runtime_domain(rt, p->tenant),
                            .is_public = p->is_public,
                            .tokens = encoded->tokens.ids,
                            .n_tokens = encoded->tokens.n,
                            .id = wanted,
                            .priority = p->priority,
                            .expires_us = p->ttl_seconds == 0 ? 0 : now + (uint64_t)p->ttl_seconds * 1000000u};
  return weft_replicas_pin(rt->replicas, &params, now, id, error);
}

weft_status weft_runtime_pin(weft_runtime *rt, const weft_prefix *p, uint32_t wanted, uint32_t *id, weft_error *error) {
  uint32_t index;
  const weft_served_model *m = weft_runtime_model(rt, p->model, &index, error);
  if (m == NULL) return WEFT_E_NOT_FOUND;
  encoded_prompt encoded = {0};
  bool grows = p->prompt.turns != NULL || p->prompt.text != NULL;
  weft_status status = grows ? encode_common(m, &p->prompt, &encoded, error)
                             : prompt_encode(m, &p->prompt, &prompt_to_answer, &encoded, error);
  if (status == WEFT_OK) status = pin_tokens(rt, p, index, &encoded, wanted, id, error);
  prompt_close(&encoded);
  return status;
}

int weft_pin(weft_runtime *rt, const weft_prefix *p, uint32_t *id, char *error, size_t n_error) {
  weft_error why = {{0}};
  weft_status status = weft_runtime_pin(rt, p, 0, id, &why);
  return status == WEFT_OK ? 0 : weft_tell(&why, status, error, n_error);
}

int weft_unpin(weft_runtime *rt, uint32_t id) {
  return (int)weft_replicas_unpin(rt->replicas, id);
}

void weft_reset_prefix_cache(weft_runtime *rt) {
  weft_replicas_reset_cache(rt->replicas);
  keep_forget(rt);
}

uint32_t weft_pins(weft_runtime *rt, weft_pin_card *out, uint32_t max) {
  weft_pin_info *info = weft_alloc((size_t)max + 1, sizeof *info);
  if (info == NULL) return 0;
  uint32_t n = weft_replicas_list_pins(rt->replicas, info, max);
  uint64_t now = weft_clock_us();
  for (uint32_t i = 0; i < n; i++) {
    uint64_t left = info[i].expires_us > now ? info[i].expires_us - now : 0;
    out[i] = (weft_pin_card){.id = info[i].id,
                             .model = rt->model[info[i].model].name,
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
