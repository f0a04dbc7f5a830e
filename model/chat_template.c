/* SPDX-License-Identifier: MIT */
/* The templates themselves.
 *
 *   gemma4   <bos> [<|turn>system\n [<|think|>\n] SYSTEM <turn|>\n]
 *            { <|turn>ROLE\n TEXT <turn|>\n }
 *            <|turn>model\n [<|channel>thought\n<channel|>]
 *   qwen3    { <|im_start|>ROLE\n TEXT <|im_end|>\n }
 *            <|im_start|>assistant\n [<think>\n\n</think>\n\n | <think>\n] */
#include <string.h>

#include "model/chat_internal.h"

static bool is_space(uint32_t c) {
  return (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

chat_span chat_trim(chat_span s) {
  uint32_t c;
  while (s.n > 0) {
    size_t length = weft_utf8_decode(s.text, s.n, &c);
    if (length == 0 || !is_space(c)) break;
    s.text += length;
    s.n -= length;
  }
  while (s.n > 0) {
    size_t length = 1;
    while (length < 3 && length < s.n && ((unsigned char)s.text[s.n - length] & 0xC0) == 0x80) length += 1;
    if (weft_utf8_decode(s.text + s.n - length, length, &c) != length || !is_space(c)) break;
    s.n -= length;
  }
  return s;
}

chat_span chat_trim_newlines_left(chat_span s) {
  while (s.n > 0 && s.text[0] == '\n') s = (chat_span){s.text + 1, s.n - 1};
  return s;
}

chat_span chat_trim_newlines_right(chat_span s) {
  while (s.n > 0 && s.text[s.n - 1] == '\n') s.n -= 1;
  return s;
}

const char *chat_first(chat_span s, const char *word) {
  return memmem(s.text, s.n, word, strlen(word));
}

const char *chat_last(chat_span s, const char *word) {
  const char *last = NULL;
  for (const char *at = chat_first(s, word); at != NULL;) {
    last = at;
    const char *next = at + strlen(word);
    at = memmem(next, (size_t)(s.text + s.n - next), word, strlen(word));
  }
  return last;
}

static chat_span content_of(const weft_chat_message *m) {
  return m->n_content == 0 ? (chat_span){"", 0} : (chat_span){m->content, m->n_content};
}

static bool is_role(const weft_chat_message *m, const char *role) {
  return strcmp(m->role, role) == 0;
}

static void add_span(chat_draft *draft, chat_span s) {
  chat_text(draft, s.text, s.n);
}

/* What an assistant said, without its <|channel>...<channel|> parts, trimmed. */
static void gemma4_answer(chat_draft *draft, chat_span s) {
  static const char open[] = "<|channel>", close[] = "<channel|>";
  weft_text kept = {0};
  for (;;) {
    const char *end = chat_first(s, close);
    chat_span part = {s.text, end == NULL ? s.n : (size_t)(end - s.text)};
    const char *cut = chat_first(part, open);
    weft_text_append(&kept, part.text, cut == NULL ? part.n : (size_t)(cut - part.text));
    if (end == NULL) break;
    end += sizeof close - 1;
    s = (chat_span){end, s.n - (size_t)(end - s.text)};
  }
  if (weft_text_status(&kept) != WEFT_OK) draft->refused = true;
  add_span(draft, chat_trim((chat_span){kept.n == 0 ? "" : kept.bytes, kept.n}));
  weft_text_free(&kept);
}

static void gemma4_system(chat_draft *draft, const weft_chat_message *first, bool thinking) {
  const weft_chat *chat = draft->chat;
  chat_token(draft, chat->turn);
  chat_puts(draft, "system\n");
  if (thinking) {
    chat_token(draft, chat->think_on);
    chat_puts(draft, "\n");
  }
  if (first != NULL) add_span(draft, chat_trim(content_of(first)));
  chat_token(draft, chat->turn_end);
  chat_puts(draft, "\n");
}

/* One message; whether there is one before it (behind the system text) and after it, and whether it
 * comes after the last question. */
static void gemma4_turn(chat_draft *draft, const weft_chat_message *m, bool before, bool after, bool current) {
  const weft_chat *chat = draft->chat;
  bool answer = is_role(m, "assistant");
  if (!answer || !chat->joins_turns || !before || !is_role(m - 1, "assistant")) {
    chat_token(draft, chat->turn);
    chat_puts(draft, answer ? "model" : m->role);
    chat_puts(draft, "\n");
  }
  if (answer && current && chat->keeps_thinking && m->n_thinking > 0) {
    chat_token(draft, chat->thought);
    chat_puts(draft, "thought\n");
    chat_text(draft, m->thinking, m->n_thinking);
    chat_puts(draft, "\n");
    chat_token(draft, chat->thought_end);
  }
  if (answer) {
    gemma4_answer(draft, content_of(m));
  } else {
    add_span(draft, chat_trim(content_of(m)));
  }
  if (answer && chat->joins_ends && after && is_role(m + 1, "assistant")) return;
  chat_token(draft, chat->turn_end);
  chat_puts(draft, "\n");
}

void chat_gemma4(chat_draft *draft, const weft_chat_message *messages, uint32_t n, const weft_chat_options *options) {
  const weft_chat *chat = draft->chat;
  bool system = is_role(&messages[0], "system") || is_role(&messages[0], "developer");
  if (chat->bos >= 0) chat_token(draft, chat->bos);
  if (system || options->thinking) gemma4_system(draft, system ? &messages[0] : NULL, options->thinking);
  uint32_t question = 0; /* the last one */
  for (uint32_t i = 0; i < n; i++) question = is_role(&messages[i], "user") ? i + 1 : question;
  for (uint32_t i = system ? 1 : 0; i < n; i++) {
    gemma4_turn(draft, messages + i, i > (system ? 1u : 0u), i + 1 < n, i >= question);
  }
  if (!options->add_generation_prompt) return;
  chat_token(draft, chat->turn);
  chat_puts(draft, "model\n");
  if (options->thinking || !chat->empty_thought) return;
  chat_token(draft, chat->thought);
  chat_puts(draft, "thought\n");
  chat_token(draft, chat->thought_end);
}

/* The last question: what the assistant says after it is one answer, whose thinking stays visible. */
static uint32_t last_question(const weft_chat_message *messages, uint32_t n) {
  static const char open[] = "<tool_response>", close[] = "</tool_response>";
  for (uint32_t i = n; i-- > 0;) {
    chat_span s = content_of(&messages[i]);
    if (!is_role(&messages[i], "user")) continue;
    bool starts = s.n >= sizeof open - 1 && memcmp(s.text, open, sizeof open - 1) == 0;
    bool ends = s.n >= sizeof close - 1 && memcmp(s.text + s.n - (sizeof close - 1), close, sizeof close - 1) == 0;
    if (!starts || !ends) return i;
  }
  return n - 1;
}

/* Parts an answer that carries its thinking inside <think>...</think>. */
static void qwen3_part(const weft_chat_message *m, chat_span *thinking, chat_span *answer) {
  static const char open[] = "<think>", close[] = "</think>";
  *answer = content_of(m);
  *thinking = m->thinking == NULL ? (chat_span){"", 0} : (chat_span){m->thinking, m->n_thinking};
  if (m->thinking != NULL || chat_first(*answer, close) == NULL) return;
  chat_span all = *answer;
  thinking->text = all.text;
  thinking->n = (size_t)(chat_first(all, close) - all.text);
  *thinking = chat_trim_newlines_right(*thinking);
  const char *start = chat_last(*thinking, open);
  if (start != NULL) {
    start += sizeof open - 1;
    *thinking = (chat_span){start, thinking->n - (size_t)(start - thinking->text)};
  }
  *thinking = chat_trim_newlines_left(*thinking);
  const char *rest = chat_last(all, close) + sizeof close - 1;
  *answer = chat_trim_newlines_left((chat_span){rest, all.n - (size_t)(rest - all.text)});
}

static void qwen3_answer(chat_draft *draft, const weft_chat_message *m, bool current, bool last) {
  const weft_chat *chat = draft->chat;
  chat_span thinking, answer = content_of(m);
  if (chat->keeps_thinking) {
    qwen3_part(m, &thinking, &answer);
    if (current && (last || thinking.n > 0)) {
      chat_token(draft, chat->thought);
      chat_puts(draft, "\n");
      add_span(draft, chat_trim_newlines_right(chat_trim_newlines_left(thinking)));
      chat_puts(draft, "\n");
      chat_token(draft, chat->thought_end);
      chat_puts(draft, "\n\n");
      answer = chat_trim_newlines_left(answer);
    }
  }
  add_span(draft, answer);
}

void chat_qwen3(chat_draft *draft, const weft_chat_message *messages, uint32_t n, const weft_chat_options *options) {
  const weft_chat *chat = draft->chat;
  uint32_t question = last_question(messages, n);
  for (uint32_t i = 0; i < n; i++) {
    bool answer = is_role(&messages[i], "assistant");
    chat_token(draft, chat->turn);
    chat_puts(draft, is_role(&messages[i], "developer") ? "system" : messages[i].role);
    chat_puts(draft, "\n");
    if (answer) {
      qwen3_answer(draft, &messages[i], i > question, i + 1 == n);
    } else {
      add_span(draft, content_of(&messages[i]));
    }
    chat_token(draft, chat->turn_end);
    chat_puts(draft, "\n");
  }
  if (!options->add_generation_prompt) return;
  chat_token(draft, chat->turn);
  chat_puts(draft, "assistant\n");
  if (chat->always_thinks || (chat->has_switch && !options->thinking)) {
    chat_token(draft, chat->thought);
    chat_puts(draft, "\n");
  }
  if (chat->has_switch && !options->thinking) {
    chat_puts(draft, "\n");
    chat_token(draft, chat->thought_end);
    chat_puts(draft, "\n\n");
  }
}
