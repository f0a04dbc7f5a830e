/* SPDX-License-Identifier: MIT */
/* Which template a file has, and prompts made from it. */
#include "model/chat.h"

#include <string.h>

#include "base/check.h"
#include "base/memory.h"
#include "model/chat_internal.h"

enum { MESSAGES_MAX = 1 << 16 };

static bool has_text(weft_bytes text, const char *word) {
  return memmem(text.data, text.n, word, strlen(word)) != NULL;
}

weft_chat_family weft_chat_family_of(weft_bytes t) {
  if (has_text(t, "<|turn>") && has_text(t, "<turn|>")) return WEFT_CHAT_GEMMA4;
  if (!has_text(t, "<|im_start|>") || !has_text(t, "<|im_end|>")) return WEFT_CHAT_NONE;
  /* The same markers with habits that are not Qwen 3's: a system text of its own, other parts,
   * other trimming. */
  static const char *const others[] = {"created by Alibaba Cloud", "You are a helpful", "render_content", "<|im_sep|>"};
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
    if (has_text(t, others[i])) return WEFT_CHAT_NONE;
  }
  return WEFT_CHAT_QWEN3;
}

static weft_status need_token(const weft_chat *chat, const char *text, int32_t *id, const char *path,
                              weft_error *error) {
  *id = weft_tokenizer_find(chat->tokenizer, text);
  if (*id >= 0) return WEFT_OK;
  return weft_fail(error, WEFT_E_FORMAT, "%s: the chat template needs the token %s, which the vocabulary lacks", path,
                   text);
}

static weft_status read_gemma4(weft_chat *chat, weft_bytes t, const char *path, weft_error *error) {
  /* In a template's text a newline inside quotes is usually the two characters \n. */
  chat->empty_thought = has_text(t, "<|channel>thought\\n<channel|>") || has_text(t, "<|channel>thought\n<channel|>");
  chat->joins_turns = has_text(t, "continue_same_model_turn");
  chat->joins_ends = has_text(t, "elif continues_into_next");
  chat->keeps_thinking = has_text(t, "thinking_gate");
  chat->has_switch = true;
  chat->think_on = weft_tokenizer_find(chat->tokenizer, "<|think|>");
  chat->bos = weft_tokenizer_bos(chat->tokenizer);
  weft_status status = need_token(chat, "<|turn>", &chat->turn, path, error);
  if (status == WEFT_OK) status = need_token(chat, "<turn|>", &chat->turn_end, path, error);
  if (status == WEFT_OK) status = need_token(chat, "<|channel>", &chat->thought, path, error);
  if (status == WEFT_OK) status = need_token(chat, "<channel|>", &chat->thought_end, path, error);
  return status;
}

static weft_status read_qwen3(weft_chat *chat, weft_bytes t, const char *path, weft_error *error) {
  bool thinks = has_text(t, "</think>");
  chat->keeps_thinking = thinks && has_text(t, "reasoning_content");
  chat->has_switch = thinks && has_text(t, "enable_thinking");
  chat->always_thinks =
      !chat->has_switch && (has_text(t, "assistant\\n<think>\\n'") || has_text(t, "assistant\n<think>\n"));
  weft_status status = need_token(chat, "<|im_start|>", &chat->turn, path, error);
  if (status == WEFT_OK) status = need_token(chat, "<|im_end|>", &chat->turn_end, path, error);
  if (status != WEFT_OK || !thinks) return status;
  status = need_token(chat, "<think>", &chat->thought, path, error);
  if (status == WEFT_OK) status = need_token(chat, "</think>", &chat->thought_end, path, error);
  return status;
}

weft_status chat_open(weft_bytes chat_template, const weft_tokenizer *tokenizer, const char *path, weft_chat **out,
                      weft_error *error) {
  *out = NULL;
  weft_chat_family family = weft_chat_family_of(chat_template);
  if (family == WEFT_CHAT_NONE) {
    return weft_fail(error, WEFT_E_UNSUPPORTED,
                     "%s: the chat template is none that weft knows (Gemma 4, Qwen 3); use plain completions", path);
  }
  weft_chat *chat = weft_alloc(1, sizeof *chat);
  if (chat == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "out of memory while reading the chat template");
  chat->family = family;
  chat->tokenizer = tokenizer;
  chat->bos = chat->turn = chat->turn_end = chat->think_on = chat->thought = chat->thought_end = -1;
  bool gemma4 = family == WEFT_CHAT_GEMMA4;
  weft_status status =
      gemma4 ? read_gemma4(chat, chat_template, path, error) : read_qwen3(chat, chat_template, path, error);
  if (status == WEFT_OK) {
    *out = chat;
  } else {
    weft_chat_close(chat);
  }
  return status;
}

weft_status weft_chat_open(const weft_gguf *gguf, const weft_tokenizer *tokenizer, weft_chat **out, weft_error *error) {
  weft_bytes text;
  *out = NULL;
  weft_status status = weft_gguf_string(gguf, "tokenizer.chat_template", &text, error);
  if (status == WEFT_E_NOT_FOUND) {
    return weft_fail(error, status, "%s has no chat template; use plain completions", weft_gguf_path(gguf));
  }
  return status == WEFT_OK ? chat_open(text, tokenizer, weft_gguf_path(gguf), out, error) : status;
}

void weft_chat_close(weft_chat *chat) {
  weft_free(chat);
}

bool weft_chat_starts_thinking(const weft_chat *chat, const weft_chat_options *options) {
  return chat->always_thinks && options->add_generation_prompt;
}

static weft_chat_piece *draft_piece(chat_draft *draft, int32_t token) {
  if (draft->n == draft->capacity) {
    uint32_t capacity = draft->capacity == 0 ? 32 : draft->capacity * 2;
    weft_chat_piece *pieces = weft_realloc(draft->pieces, capacity, sizeof *pieces);
    if (pieces == NULL) {
      draft->refused = true;
      return NULL;
    }
    draft->pieces = pieces;
    draft->capacity = capacity;
  }
  weft_chat_piece *piece = &draft->pieces[draft->n++];
  *piece = (weft_chat_piece){token, NULL, 0};
  return piece;
}

/* Pieces point into bytes that may move until the draft is finished, so until then only lengths are
 * kept: the texts lie one after the other. */
static void draft_add(chat_draft *draft, int32_t token, const char *text, size_t n) {
  bool join = token < 0 && draft->n > 0 && draft->pieces[draft->n - 1].token < 0;
  weft_chat_piece *piece = join ? &draft->pieces[draft->n - 1] : draft_piece(draft, token);
  if (piece == NULL) return;
  piece->n += n;
  weft_text_append(&draft->bytes, text, n);
}

void chat_token(chat_draft *draft, int32_t token) {
  weft_text text = {0};
  WEFT_CHECK(token >= 0);
  if (weft_tokenizer_piece(draft->chat->tokenizer, token, true, &text) != WEFT_OK) draft->refused = true;
  draft_add(draft, token, text.bytes, text.n);
  weft_text_free(&text);
}

void chat_text(chat_draft *draft, const char *text, size_t n) {
  if (n > 0) draft_add(draft, -1, text, n);
}

void chat_puts(chat_draft *draft, const char *text) {
  chat_text(draft, text, strlen(text));
}

static weft_status check_messages(const weft_chat *chat, const weft_chat_message *messages, uint32_t n,
                                  const weft_chat_options *options, weft_error *error) {
  static const char *const roles[] = {"system", "developer", "user", "assistant"};
  if (n == 0) return weft_fail(error, WEFT_E_INVALID, "messages is empty; a conversation needs at least one");
  if (n > MESSAGES_MAX) {
    return weft_fail(error, WEFT_E_TOO_LARGE, "%u messages; a conversation has at most %d", n, MESSAGES_MAX);
  }
  for (uint32_t i = 0; i < n; i++) {
    bool known = false;
    for (size_t r = 0; r < 4; r++) known = known || strcmp(messages[i].role, roles[r]) == 0;
    if (known) continue;
    return weft_fail(error, WEFT_E_INVALID,
                     "messages[%u].role is '%.32s'; it must be system, developer, user or assistant", i,
                     messages[i].role);
  }
  if (options->tools != NULL) {
    return weft_fail(error, WEFT_E_UNSUPPORTED,
                     "tools are not supported by the chat template that weft has for this model");
  }
  if (chat->family == WEFT_CHAT_GEMMA4 && options->thinking && chat->think_on < 0) {
    return weft_fail(error, WEFT_E_UNSUPPORTED, "this model cannot think: its vocabulary has no token <|think|>");
  }
  return WEFT_OK;
}

weft_status weft_chat_split(const weft_chat *chat, const weft_chat_message *messages, uint32_t n,
                            const weft_chat_options *options, weft_chat_pieces *out, weft_error *error) {
  *out = (weft_chat_pieces){0};
  weft_status status = check_messages(chat, messages, n, options, error);
  if (status != WEFT_OK) return status;
  chat_draft draft = {.chat = chat};
  if (chat->family == WEFT_CHAT_GEMMA4) {
    chat_gemma4(&draft, messages, n, options);
  } else {
    chat_qwen3(&draft, messages, n, options);
  }
  if (draft.refused || weft_text_status(&draft.bytes) != WEFT_OK) {
    weft_free(draft.pieces);
    weft_text_free(&draft.bytes);
    return weft_fail(error, WEFT_E_NO_MEMORY, "out of memory while writing the prompt");
  }
  size_t at = 0;
  for (uint32_t i = 0; i < draft.n; i++) {
    draft.pieces[i].text = draft.bytes.bytes + at;
    at += draft.pieces[i].n;
  }
  *out = (weft_chat_pieces){draft.pieces, draft.n, draft.bytes.bytes};
  return WEFT_OK;
}

void weft_chat_pieces_close(weft_chat_pieces *pieces) {
  weft_free(pieces->pieces);
  weft_free(pieces->bytes);
  *pieces = (weft_chat_pieces){0};
}

weft_status weft_chat_render(const weft_chat *chat, const weft_chat_message *messages, uint32_t n,
                             const weft_chat_options *options, weft_tokens *out, weft_error *error) {
  weft_chat_pieces pieces;
  weft_status status = weft_chat_split(chat, messages, n, options, &pieces, error);
  uint32_t before = out->n;
  for (uint32_t i = 0; i < pieces.n && status == WEFT_OK; i++) {
    const weft_chat_piece *piece = &pieces.pieces[i];
    if (piece->token < 0) {
      status = weft_tokenizer_encode(chat->tokenizer, piece->text, piece->n, WEFT_ENCODE_PLAIN, out, error);
    } else {
      status = weft_tokens_push(out, piece->token);
      if (status != WEFT_OK) (void)weft_fail(error, status, "out of memory while writing the prompt");
    }
  }
  weft_chat_pieces_close(&pieces);
  if (status != WEFT_OK) out->n = before;
  return status;
}
