/* SPDX-License-Identifier: MIT */
/* Harmony, gpt-oss's way of writing an answer: messages, each with a header.
 *
 *   <|channel|>analysis<|message|>what it thinks<|end|>
 *   <|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>
 *   <|start|>assistant<|channel|>final<|message|>the answer<|return|>
 *
 * The first header is begun by the prompt, which ends with <|start|>assistant. A message to a function is a call,
 * whatever its channel, and the recipient may stand before the channel; without a recipient the channel analysis is
 * thinking, and every other one answer. The stream (chat_stream.c) gives a call as HERMES has it, so the readers of
 * calls know one form less. */
#include <string.h>

#include "model/text/chat_internal.h"
#include "model/text/token_trie.h"

enum { HEADER_TOKENS = 64 /* that are looked at, at the end of a prompt */ };
static const char recipient[] = "to=functions.", channel_mark[] = "<|channel|>", analysis[] = "analysis";

bool chat_harmony_find(const weft_tokenizer *tokenizer, weft_bytes chat_template, chat_harmony *out) {
  const char *const texts[] = {"<|start|>", channel_mark, "<|constrain|>", "<|message|>", "<|end|>"};
  int32_t *const ids[] = {&out->start, &out->channel, &out->constrain, &out->message, &out->end};
  bool is_harmony = memmem(chat_template.data, chat_template.n, channel_mark, sizeof channel_mark - 1) != NULL &&
                    memmem(chat_template.data, chat_template.n, "<|message|>", 11) != NULL;
  for (size_t i = 0; i < 5; i++) {
    *ids[i] = weft_tokenizer_find(tokenizer, texts[i]);
    if (!weft_token_trie_is_marker(tokenizer, *ids[i])) is_harmony = is_harmony && i == 2; /* constrain is optional */
  }
  return is_harmony;
}

static bool is_of_name(char c) {
  char lower = (char)(c | 0x20);
  return (lower >= 'a' && lower <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
}

chat_harmony_header chat_harmony_read(const char *header, size_t n) {
  chat_harmony_header out = {0};
  const char *to = n == 0 ? NULL : memmem(header, n, recipient, sizeof recipient - 1);
  const char *channel = n == 0 ? NULL : memmem(header, n, channel_mark, sizeof channel_mark - 1);
  if (to != NULL) {
    const char *name = to + sizeof recipient - 1;
    while (name + out.n < header + n && is_of_name(name[out.n])) out.n += 1;
    if (out.n > 0) out.name = name;
  }
  if (channel == NULL || out.name != NULL) return out;
  size_t left = n;
  for (const char *next = channel; next != NULL; next = memmem(channel, left, channel_mark, sizeof channel_mark - 1)) {
    channel = next + sizeof channel_mark - 1; /* of the last one */
    left = (size_t)(header + n - channel);
  }
  out.thinking = left >= sizeof analysis - 1 && memcmp(channel, analysis, sizeof analysis - 1) == 0;
  return out;
}

bool chat_harmony_may_begin(const char *text, size_t n) {
  while (n > 0 && text[0] == ' ') {
    text += 1;
    n -= 1;
  }
  size_t known = sizeof recipient - 1;
  return memcmp(text, recipient, n < known ? n : known) == 0;
}

bool chat_harmony_starts_thinking(const weft_chat *chat, const int32_t *tokens, uint32_t n) {
  const chat_harmony *h = &chat->harmony;
  weft_text header = {0};
  if (n == 0 || tokens[n - 1] != h->message) return false;
  uint32_t first = n - 1;
  while (first > 0 && n - first < HEADER_TOKENS && tokens[first - 1] != h->start) first -= 1;
  for (uint32_t i = first; i + 1 < n; i++) (void)weft_tokenizer_piece(chat->tokenizer, tokens[i], true, &header);
  bool thinking = header.n > 0 && chat_harmony_read(header.bytes, header.n).thinking;
  weft_text_free(&header);
  return thinking;
}
