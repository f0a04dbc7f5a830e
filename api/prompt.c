/* SPDX-License-Identifier: MIT */
#include "api/prompt.h"

#include <inttypes.h>
#include <string.h>

#include "api/prompt_tools.h"
#include "base/memory.h"

const prompt_form prompt_to_answer = {.text_flags = WEFT_ENCODE_ADD_SPECIAL, .open_answer = true};

prompt_form prompt_form_of(weft_tool_choice choice) {
  prompt_form form = prompt_to_answer;
  form.calls_anyway = choice == WEFT_TOOLS_REQUIRED || choice == WEFT_TOOLS_NAMED;
  return form;
}

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

static size_t text_length(const char *text) {
  return text == NULL ? 0 : strlen(text);
}

/* Of all that a template may print. */
static size_t turn_bytes(const weft_chat_turn *t) {
  size_t n = strlen(t->content) + text_length(t->thinking) + text_length(t->call_id) + text_length(t->name);
  for (uint32_t i = 0; i < t->n_calls; i++) {
    n += text_length(t->calls[i].id) + text_length(t->calls[i].name) + text_length(t->calls[i].arguments);
  }
  return n;
}

static weft_status check_turns(const weft_served_model *m, const weft_prompt *p, weft_error *error) {
  if (m->chat == NULL) {
    return weft_fail(error, WEFT_E_UNSUPPORTED, "%s cannot chat (%s): give a plain text instead", m->name,
                     m->no_chat.text);
  }
  size_t n_bytes = p->variables == NULL ? 0 : strlen(p->variables);
  for (uint32_t i = 0; i < p->n_tools; i++) {
    n_bytes +=
        text_length(p->tools[i].name) + text_length(p->tools[i].description) + text_length(p->tools[i].parameters);
  }
  for (uint32_t i = 0; i < p->n_turns; i++) {
    if (p->turns[i].role == NULL || p->turns[i].content == NULL) {
      return weft_fail(error, WEFT_E_INVALID, "message %u lacks its role or its content", i);
    }
    n_bytes += turn_bytes(&p->turns[i]);
  }
  return check_bytes(m, n_bytes, error);
}

static weft_status encode_turns(const weft_served_model *m, const weft_prompt *p, const prompt_form *form,
                                encoded_prompt *out, weft_error *error);

/* The model's turn is opened as for any answer, and the message that is to be continued is put behind that. */
static weft_status encode_continued(const weft_served_model *m, const weft_prompt *p, const prompt_form *form,
                                    encoded_prompt *out, weft_error *error) {
  prompt_form opened = *form;
  const weft_chat_turn *last = &p->turns[p->n_turns - 1];
  if (p->n_turns < 2 || strcmp(last->role, "assistant") != 0 || last->n_calls > 0 || last->content[0] == 0) {
    return weft_fail(
        error, WEFT_E_INVALID,
        "continue_final_message needs a last message of the assistant with a text and without calls, and a "
        "message before it");
  }
  if (weft_tokenizer_adds_space(m->tokenizer)) {
    return weft_fail(error, WEFT_E_UNSUPPORTED,
                     "%s cannot continue a message: its tokenizer puts a blank before every text", m->name);
  }
  weft_prompt before = *p;
  before.continues = false;
  before.n_turns -= 1;
  opened.open_answer = true;
  weft_status status = encode_turns(m, &before, &opened, out, error);
  if (status != WEFT_OK) return status;
  if (out->thinks) {
    return weft_fail(
        error, WEFT_E_UNSUPPORTED,
        "the model begins its turn with thinking, so a message of it cannot be continued: turn thinking off");
  }
  return weft_tokenizer_encode(m->tokenizer, last->content, strlen(last->content), WEFT_ENCODE_PLAIN, &out->tokens,
                               error);
}

static weft_status encode_turns(const weft_served_model *m, const weft_prompt *p, const prompt_form *form,
                                encoded_prompt *out, weft_error *error) {
  bool open_answer = form->open_answer && !p->closed;
  weft_status status = check_turns(m, p, error);
  if (status != WEFT_OK) return status;
  if (p->continues) return encode_continued(m, p, form, out, error);
  weft_chat_message *list = weft_alloc(p->n_turns, sizeof *list);
  char *tools = NULL;
  prompt_calls calls = {0};
  weft_json_size left = weft_json_limits(m->context);
  status = list == NULL ? weft_fail(error, WEFT_E_NO_MEMORY, "no memory for the prompt")
                        : prompt_tools_json(p, &left, &tools, error);
  if (status == WEFT_OK) status = prompt_calls_open(p, &calls, error);
  for (uint32_t i = 0; i < p->n_turns && status == WEFT_OK; i++) {
    const weft_chat_turn *t = &p->turns[i];
    char *more;
    status = prompt_turn_json(p, &calls, i, &left, &more, error);
    list[i] = (weft_chat_message){.role = t->role,
                                  .content = t->content,
                                  .n_content = strlen(t->content),
                                  .thinking = t->thinking,
                                  .n_thinking = text_length(t->thinking),
                                  .more = more};
  }
  weft_chat_options options = {.thinking = p->thinking,
                               .add_generation_prompt = open_answer,
                               .tools = tools,
                               .calls_anyway = form->calls_anyway,
                               .variables = p->variables};
  if (status == WEFT_OK)
    status = weft_chat_render(m->chat, list, p->n_turns, &options, &out->tokens, out->parting, error);
  for (uint32_t i = 0; i < p->n_turns && list != NULL; i++) weft_free((void *)(uintptr_t)list[i].more);
  prompt_calls_close(&calls);
  weft_free(tools);
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
  if (p->turns != NULL) return encode_turns(m, p, form, out, error);
  if (p->continues || p->closed) {
    return weft_fail(error, WEFT_E_INVALID, "only a conversation has a last message or a turn to open");
  }
  if (p->n_tools > 0 || p->variables != NULL) {
    return weft_fail(error, WEFT_E_INVALID, "%s messages: nothing else is rendered",
                     p->n_tools > 0 ? "tools need" : "chat_template_kwargs needs");
  }
  if (p->tokens != NULL) return copy_tokens(p->tokens, p->n_tokens, &out->tokens, error);
  unsigned control = p->control_tokens ? (unsigned)WEFT_ENCODE_PARSE_SPECIAL : 0u;
  return encode_text(m, p, form->text_flags | control, &out->tokens, error);
}

weft_status prompt_copy(const encoded_prompt *from, encoded_prompt *out, weft_error *error) {
  out->chat = from->chat;
  out->thinks = from->thinks;
  memcpy(out->parting, from->parting, sizeof out->parting);
  return copy_tokens(from->tokens.ids, from->tokens.n, &out->tokens, error);
}

void prompt_close(encoded_prompt *prompt) {
  weft_tokens_free(&prompt->tokens);
}
