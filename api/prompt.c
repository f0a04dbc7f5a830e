/* SPDX-License-Identifier: MIT */
#include "api/prompt.h"

#include <inttypes.h>
#include <string.h>

#include "base/memory.h"

const prompt_form prompt_to_answer = {.text_flags = WEFT_ENCODE_ADD_SPECIAL, .open_answer = true};

/* TOO_LARGE with one line when the context could not hold a text of n_bytes bytes, whatever it says. */
static weft_status check_bytes(const weft_served_model *m, size_t n_bytes, weft_error *error) {
  uint32_t longest = weft_tokenizer_longest(m->tokenizer);
  uint64_t most = (uint64_t)m->context * longest;
  if (n_bytes <= most) return WEFT_OK;
  return weft_fail(error, WEFT_E_TOO_LARGE,
                   "this model's maximum context length is %u tokens of at most %u bytes, %" PRIu64
                   " in all, and the text has %zu bytes: shorten it or serve with a larger --context",
                   m->context, longest, most, n_bytes);
}

static weft_status copy_tokens(const int32_t *tokens, uint32_t n, weft_tokens *out, weft_error *error) {
  for (uint32_t i = 0; i < n; i++) {
    weft_status status = weft_tokens_push(out, tokens[i]);
    if (status != WEFT_OK) return weft_fail(error, status, "no memory for the prompt");
  }
  return WEFT_OK;
}

static weft_status encode_text(const weft_served_model *m, const weft_prompt *p, unsigned flags, weft_tokens *out,
                               weft_error *error) {
  weft_status status = check_bytes(m, p->n_text, error);
  return status == WEFT_OK ? weft_tokenizer_encode(m->tokenizer, p->text, p->n_text, flags, out, error) : status;
}

static weft_status check_turns(const weft_served_model *m, const weft_prompt *p, weft_error *error) {
  if (m->chat == NULL) {
    return weft_fail(error, WEFT_E_UNSUPPORTED, "%s cannot chat (%s): give a plain text instead", m->name,
                     m->no_chat.text);
  }
  size_t n_bytes = (p->tools == NULL ? 0 : strlen(p->tools)) + (p->variables == NULL ? 0 : strlen(p->variables));
  for (uint32_t i = 0; i < p->n_turns; i++) {
    if (p->turns[i].role == NULL || p->turns[i].content == NULL) {
      return weft_fail(error, WEFT_E_INVALID, "message %u lacks its role or its content", i);
    }
    n_bytes += strlen(p->turns[i].content);
  }
  return check_bytes(m, n_bytes, error);
}

static weft_status encode_turns(const weft_served_model *m, const weft_prompt *p, bool open_answer, encoded_prompt *out,
                                weft_error *error) {
  weft_status status = check_turns(m, p, error);
  if (status != WEFT_OK) return status;
  weft_chat_message *list = weft_alloc(p->n_turns, sizeof *list);
  if (list == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for the prompt");
  for (uint32_t i = 0; i < p->n_turns; i++) {
    const weft_chat_turn *t = &p->turns[i];
    list[i] = (weft_chat_message){.role = t->role, .content = t->content, .n_content = strlen(t->content)};
  }
  weft_chat_options options = {
      .thinking = p->thinking, .add_generation_prompt = open_answer, .tools = p->tools, .variables = p->variables};
  status = weft_chat_render(m->chat, list, p->n_turns, &options, &out->tokens, error);
  weft_free(list);
  out->chat = m->chat;
  out->thinks = open_answer && weft_chat_starts_thinking(m->chat, out->tokens.ids, out->tokens.n);
  return status;
}

weft_status prompt_encode(const weft_served_model *m, const weft_prompt *p, const prompt_form *form,
                          encoded_prompt *out, weft_error *error) {
  if ((p->turns != NULL) + (p->text != NULL) + (p->tokens != NULL) != 1) {
    return weft_fail(error, WEFT_E_INVALID, "give exactly one of messages, text and tokens");
  }
  if (p->turns != NULL) return encode_turns(m, p, form->open_answer, out, error);
  if (p->tools != NULL || p->variables != NULL) {
    return weft_fail(error, WEFT_E_INVALID, "%s messages: nothing else is rendered",
                     p->tools != NULL ? "tools need" : "chat_template_kwargs needs");
  }
  if (p->tokens != NULL) return copy_tokens(p->tokens, p->n_tokens, &out->tokens, error);
  return encode_text(m, p, form->text_flags, &out->tokens, error);
}

weft_status prompt_copy(const encoded_prompt *from, encoded_prompt *out, weft_error *error) {
  out->chat = from->chat;
  out->thinks = from->thinks;
  return copy_tokens(from->tokens.ids, from->tokens.n, &out->tokens, error);
}

void prompt_close(encoded_prompt *prompt) {
  weft_tokens_free(&prompt->tokens);
}
