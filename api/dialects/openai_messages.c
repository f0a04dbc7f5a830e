/* SPDX-License-Identifier: MIT */
/* The messages of OpenAI's chat to turns.
 *
 * Law: of what a person or the system says all is text, or the message is refused by name. What the model said and what
 * a tool gave ends no conversation, whatever it holds (unread.h). */
#include <stdio.h>
#include <string.h>

#include "api/dialects/dialect.h"
#include "api/dialects/field_tables.h"
#include "api/dialects/unread.h"
#include "model/text/chat.h"

enum { TURNS_MAX = 4096 };

static const field_row message_rows[] = {
    FIELD_ROW("role", LATER, "system, developer, user, assistant or tool; function is tool"),
    FIELD_ROW("content", LATER,
              "a text, or parts of type text; of a result any JSON; of the assistant also refusal and thinking"),
    FIELD_ROW("name", LATER, "who speaks; of a result: the function's name"),
    FIELD_ROW("tool_calls", LATER, "of the assistant"),
    FIELD_ROW("tool_call_id", LATER, "the call whose result it is"),
    FIELD_ROW("reasoning_content", LATER, "what the assistant thought, for templates that show it"),
    FIELD_ROW("reasoning", LATER, "reasoning_content, by another name"),
    FIELD_ROW("function_call", LATER, "one of tool_calls, by its older name"),
    FIELD_ROW("refusal", LATER, "what the assistant said in place of an answer"),
    FIELD_ROW("cache_control", MET, "every prefix is cached"),
    FIELD_ROW("annotations", MET, "of an answer that comes back"),
    FIELD_ROW("provider_specific_fields", MET, "of an answer that comes back"),
    FIELD_ROW("id", MET, "for the client's own lists"),
    FIELD_ROW("audio", LATER, "of the assistant: its transcript; a person's is refused"),
    FIELD_ROW("images", LATER, "of the assistant and of results: told that they are there; a person's are refused"),
    FIELD_ROW("prefix", REFUSED, "continue_final_message goes on with the last message"),
    FIELD_ROW("reasoning_details", PASSED, "reasoning_content has the text")};
const field_table openai_message_fields = FIELD_TABLE("/v1/chat/completions messages[]", message_rows);

/* What a person or the system says: text alone. */
static weft_status read_part(weft_gen *gen, const json_t *part, const char *field, weft_text *out, weft_refusal *why) {
  const char *type = json_string_value(json_object_get(part, "type"));
  const json_t *text = json_object_get(part, "text");
  bool words = type != NULL && (strcmp(type, "text") == 0 || strcmp(type, "input_text") == 0);
  (void)gen;
  if (words && json_is_string(text)) {
    weft_text_append(out, json_string_value(text), json_string_length(text));
    return WEFT_OK;
  }
  if (type != NULL && !words) {
    return weft_refuse(why, 400, "unsupported", field, "%s is of type '%.32s'; only text is read", field, type);
  }
  return field_wrong(why, field, "{\"type\":\"text\",\"text\":\"...\"}");
}

/* The thinking of a part of that type: a text, or parts of it; NULL: it is another part. */
static const json_t *thought_of(const json_t *part) {
  static const char *const names[] = {"thinking", "reasoning", "text"};
  const char *type = json_string_value(json_object_get(part, "type"));
  const json_t *found = NULL;
  if (type == NULL || (strcmp(type, "thinking") != 0 && strcmp(type, "reasoning") != 0)) return NULL;
  for (size_t i = 0; i < FIELDS_COUNT(names) && found == NULL; i++) found = field_of(part, names[i]);
  return found;
}

/* What the model said: what it thought is the turn's thinking; a call that stands among the parts is one of
 * tool_calls, and what is neither text nor a picture of any kind says nothing to it again. */
static weft_status read_said_part(weft_gen *gen, const json_t *part, const char *field, weft_text *out,
                                  weft_refusal *why) {
  static const char *const texts[] = {"text", "output_text", "input_text", "refusal"};
  const char *type = json_string_value(json_object_get(part, "type"));
  char what[80];
  bool words = json_is_string(part) || unread_kind(type) != NULL;
  for (size_t i = 0; type != NULL && i < FIELDS_COUNT(texts); i++) words = words || strcmp(type, texts[i]) == 0;
  if (thought_of(part) != NULL) return WEFT_OK;
  if (words) return unread_part(gen, openai_message_fields.where, part, field, out, why);
  (void)snprintf(what, sizeof what, "a part of type %.32s of the assistant", type == NULL ? "none" : type);
  return fields_pass(gen, openai_message_fields.where, what, field, why);
}

static weft_status check_message(weft_gen *gen, const json_t *message, size_t i, weft_refusal *why) {
  char prefix[64];
  (void)snprintf(prefix, sizeof prefix, "messages[%zu].", i);
  return fields_read(gen, &openai_message_fields, message, prefix, why);
}

/* Of the parts of the content; NULL: there is none. */
static weft_status read_thoughts(weft_gen *gen, const json_t *content, const char **out, weft_refusal *why) {
  weft_text text = {0};
  size_t i, k;
  json_t *part, *inner;
  json_array_foreach(content, i, part) {
    const json_t *thought = thought_of(part);
    if (json_is_string(thought)) weft_text_append(&text, json_string_value(thought), json_string_length(thought));
    json_array_foreach(thought, k, inner) {
      const json_t *words = json_object_get(inner, "text");
      if (json_is_string(words)) weft_text_append(&text, json_string_value(words), json_string_length(words));
    }
  }
  weft_status status = text.n == 0 && !text.refused ? WEFT_OK : weft_dialect_keep(gen, &text, out, why);
  weft_text_free(&text);
  return status;
}

/* Pictures and sounds beside the content, as some servers give them; what a person shows so is refused. */
static weft_status read_beside(weft_gen *gen, const json_t *message, const char *field, weft_text *out,
                               weft_refusal *why) {
  const json_t *audio = field_of(message, "audio"), *images = field_of(message, "images"),
               *said = field_of(audio, "transcript");
  weft_status status = WEFT_OK;
  if (json_is_string(said)) {
    weft_text_append(out, json_string_value(said), json_string_length(said));
  } else if (audio != NULL) {
    status = unread_note(gen, openai_message_fields.where, "a sound", NULL, field, out, why);
  }
  for (size_t i = 0; i < json_array_size(images) && status == WEFT_OK; i++) {
    status = unread_note(gen, openai_message_fields.where, "an image", json_array_get(images, i), field, out, why);
  }
  return status;
}

/* The content as one text, with what stands beside it. */
static weft_status join_content(weft_gen *gen, const json_t *message, const char *content, const char *field,
                                weft_chat_turn *turn, weft_refusal *why) {
  weft_text text = {0};
  weft_status status = read_beside(gen, message, field, &text, why);
  turn->content = content;
  if (status == WEFT_OK && (text.n > 0 || text.refused)) {
    weft_text whole = {0};
    weft_text_puts(&whole, content);
    weft_text_puts(&whole, *content == 0 ? "" : "\n");
    weft_text_append(&whole, text.bytes, text.n);
    whole.refused = whole.refused || text.refused;
    status = weft_dialect_keep(gen, &whole, &turn->content, why);
    weft_text_free(&whole);
  }
  weft_text_free(&text);
  return status;
}

static weft_status read_answer(weft_gen *gen, const json_t *message, size_t i, weft_chat_turn *turn,
                               weft_refusal *why) {
  char field[64];
  const char *words = "";
  const json_t *content = field_of(message, "content"), *thinking = field_of(message, "reasoning_content");
  if (thinking == NULL) thinking = field_of(message, "reasoning");
  if (content == NULL) content = field_of(message, "refusal");
  turn->thinking = json_string_value(thinking);
  (void)snprintf(field, sizeof field, "messages[%zu].reasoning_content", i);
  if (thinking != NULL && turn->thinking == NULL) return field_wrong(why, field, "a string");
  (void)snprintf(field, sizeof field, "messages[%zu].content", i);
  weft_status status = WEFT_OK;
  if (content != NULL) {
    status = weft_dialect_text(gen, content, field, "a string or a list of parts", read_said_part, &words, why);
  }
  if (status == WEFT_OK && turn->thinking == NULL) status = read_thoughts(gen, content, &turn->thinking, why);
  return status == WEFT_OK ? join_content(gen, message, words, field, turn, why) : status;
}

/* A text, parts of any type, or any JSON. */
static weft_status read_result(weft_gen *gen, const json_t *message, const char *field, weft_chat_turn *turn,
                               weft_refusal *why) {
  weft_text text = {0};
  const char *words = "";
  weft_status status = unread_result(gen, openai_message_fields.where, field_of(message, "content"), field, &text, why);
  if (status == WEFT_OK) status = weft_dialect_keep(gen, &text, &words, why);
  weft_text_free(&text);
  return status == WEFT_OK ? join_content(gen, message, words, field, turn, why) : status;
}

/* What a person shows beside text is refused. */
static weft_status check_shown(const json_t *message, size_t i, weft_refusal *why) {
  static const char *const names[] = {"audio", "images"};
  for (size_t k = 0; k < FIELDS_COUNT(names); k++) {
    const json_t *value = field_of(message, names[k]);
    if (value == NULL || (json_is_array(value) && json_array_size(value) == 0)) continue;
    char field[64];
    (void)snprintf(field, sizeof field, "messages[%zu].%s", i, names[k]);
    return weft_refuse(why, 400, "unsupported", field, "%s: only text is read", field);
  }
  return WEFT_OK;
}

static weft_status read_turn(weft_gen *gen, const json_t *message, size_t i, weft_chat_turn *turn, weft_refusal *why) {
  char field[64];
  (void)snprintf(field, sizeof field, "messages[%zu]", i);
  if (!json_is_object(message)) return field_wrong(why, field, "an object with role and content");
  turn->role = json_string_value(json_object_get(message, "role"));
  (void)snprintf(field, sizeof field, "messages[%zu].role", i);
  if (turn->role == NULL) return field_wrong(why, field, "a string");
  if (strcmp(turn->role, "function") == 0) turn->role = "tool"; /* by its older name */
  if (!weft_chat_is_role(turn->role)) {
    return weft_refuse(why, 400, "invalid_value", field,
                       "%s is '%.32s'; it must be system, developer, user, assistant or tool", field, turn->role);
  }
  bool answers = strcmp(turn->role, "assistant") == 0, result = strcmp(turn->role, "tool") == 0;
  weft_status status = check_message(gen, message, i, why);
  if (status == WEFT_OK) status = weft_openai_calls(gen, message, i, turn, why);
  if (status == WEFT_OK && result) status = weft_openai_result(message, i, turn, why);
  if (status == WEFT_OK) status = weft_openai_speaker(gen, message, i, turn, why);
  if (status == WEFT_OK && !answers && !result) status = check_shown(message, i, why);
  if (status != WEFT_OK) return status;
  if (answers) return read_answer(gen, message, i, turn, why);
  (void)snprintf(field, sizeof field, "messages[%zu].content", i);
  const json_t *content = field_of(message, "content");
  if (result) return read_result(gen, message, field, turn, why);
  return weft_dialect_text(gen, content, field, "a string or a list of parts", read_part, &turn->content, why);
}

weft_status weft_openai_messages(weft_gen *gen, const json_t *messages, weft_prompt *out, weft_refusal *why) {
  size_t n = json_array_size(messages);
  if (!json_is_array(messages) || n == 0) return field_wrong(why, "messages", "a list of at least one message");
  if (n > TURNS_MAX) {
    return weft_refuse(why, 400, "invalid_value", "messages", "messages has %zu entries; at most %d are read", n,
                       TURNS_MAX);
  }
  weft_chat_turn *turns = weft_gen_alloc(gen, n, sizeof *turns);
  if (turns == NULL) return field_no_memory(why);
  for (size_t i = 0; i < n; i++) {
    weft_status status = read_turn(gen, json_array_get(messages, i), i, &turns[i], why);
    if (status != WEFT_OK) return status;
  }
  out->turns = turns;
  out->n_turns = (uint32_t)n;
  return WEFT_OK;
}
