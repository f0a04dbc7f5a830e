/* SPDX-License-Identifier: MIT */
/* The small endpoints: what is served, counters, text to tokens and back. */
#include <string.h>
#include <time.h>

#include "api/dialects/field_tables.h"
#include "api/dialects/openai.h"
#include "api/exposition.h"
#include "api/json.h"
#include "api/prompt.h"
#include "api/runtime.h"
#include "api/served_names.h"
#include "api/server/router.h"
#include "base/memory.h"

static void answer_json(weft_exchange *x, int code, weft_text *body) {
  weft_exchange_answer(x, code, "application/json", body);
}

/* ---- models ---- */

static const char *yes_no(bool yes) {
  return yes ? "true" : "false";
}

/* Where models come and go: in weft's word, and in llama-server's. */
static void put_state(const weft_server *s, const weft_model_card *card, weft_text *out) {
  if (s->runtime->residents == NULL) return;
  const char *other = strcmp(card->state, "ready") == 0      ? "loaded"
                      : strcmp(card->state, "loading") == 0  ? "loading"
                      : strcmp(card->state, "sleeping") == 0 ? "sleeping"
                                                             : "unloaded";
  weft_text_printf(out, ",\"state\":\"%s\",\"status\":{\"value\":\"%s\"}", card->state, other);
}

/* A model under one of its names. Beside what OpenAI's clients read stands what Mistral's, vLLM's and LM Studio's look
 * for. */
static void put_model(const weft_server *s, uint32_t index, const char *name, weft_text *out) {
  const weft_model_card card = weft_model_at(s->runtime, index);
  const weft_chat *chat = s->runtime->model[index].chat;
  weft_text_puts(out, "{\"id\":");
  weft_json_words(out, name);
  weft_text_printf(out,
                   ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"weft\",\"root\":", (long long)card.created);
  weft_json_words(out, card.name);
  weft_text_printf(out, ",\"parent\":null,\"max_model_len\":%u,\"architecture\":", card.context);
  weft_json_words(out, card.arch);
  weft_text_printf(out,
                   ",\"vocabulary\":%u,\"canvas\":%u,\"autoregressive\":%s,\"diffusion\":%s,"
                   "\"chat\":%s,\"weight_bytes\":%llu",
                   card.vocabulary, card.canvas, yes_no(card.autoregressive), yes_no(card.diffusion), yes_no(card.chat),
                   (unsigned long long)card.weight_bytes);
  put_state(s, &card, out);
  weft_text_printf(out, ",\"type\":\"base\",\"max_context_length\":%u,\"aliases\":[", card.context);
  for (uint32_t i = 0; i < card.n_aliases; i++) {
    weft_text_puts(out, i > 0 ? "," : "");
    weft_json_words(out, card.aliases[i]);
  }
  weft_text_printf(out,
                   "],\"capabilities\":{\"completion_chat\":%s,\"completion_fim\":false,\"function_calling\":%s,"
                   "\"fine_tuning\":false,\"vision\":false,\"classification\":false,\"reasoning\":%s}}",
                   yes_no(chat != NULL), yes_no(chat != NULL && weft_chat_tells_tools(chat)),
                   yes_no(chat != NULL && weft_chat_can_think(chat)));
}

/* The same as Codex and Ollama's programs look for it in the list `models`. */
static void put_entry(const weft_server *s, uint32_t index, const char *name, weft_text *out) {
  static const char instructions[] =
      "You are a coding agent in a terminal, and work on the user's files with the tools that you are given. Look "
      "before you change, change no more than the task needs, check what you did, and say briefly what you found.";
  const weft_model_card card = weft_model_at(s->runtime, index);
  const weft_chat *chat = s->runtime->model[index].chat;
  bool thinks = chat != NULL && weft_chat_can_think(chat);
  weft_text_puts(out, "{\"slug\":");
  weft_json_words(out, name);
  weft_text_puts(out, ",\"display_name\":");
  weft_json_words(out, name);
  weft_text_puts(out, ",\"description\":");
  weft_json_words(out, card.arch);
  weft_text_printf(out, ",\"default_reasoning_level\":%s,\"supported_reasoning_levels\":[",
                   thinks ? "\"medium\"" : "null");
  for (int i = 0; i < 3 && thinks; i++) {
    static const char *const levels[] = {"low", "medium", "high"};
    weft_text_printf(out, "%s{\"effort\":\"%s\",\"description\":\"\"}", i > 0 ? "," : "", levels[i]);
  }
  weft_text_printf(
      out,
      "],\"shell_type\":\"shell_command\",\"visibility\":\"list\",\"supported_in_api\":true,\"priority\":%u,"
      "\"upgrade\":null,\"base_instructions\":\"%s\",\"supports_reasoning_summaries\":false,"
      "\"support_verbosity\":false,\"default_verbosity\":null,\"apply_patch_tool_type\":null,"
      "\"truncation_policy\":{\"mode\":\"tokens\",\"limit\":%u},\"supports_parallel_tool_calls\":true,"
      "\"context_window\":%u,\"experimental_supported_tools\":[],",
      index, instructions, card.context / 4, card.context);
  weft_ollama_put_model(s, index, name, out);
  weft_ollama_put_capabilities(s, index, out);
  weft_text_puts(out, "}");
}

/* As Anthropic's clients read it. */
static void put_anthropic(const weft_server *s, uint32_t index, const char *name, weft_text *out) {
  const weft_model_card card = weft_model_at(s->runtime, index);
  struct tm day;
  time_t created = (time_t)card.created;
  char text[32] = "1970-01-01T00:00:00Z";
  if (gmtime_r(&created, &day) != NULL) (void)strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &day);
  weft_text_puts(out, "{\"type\":\"model\",\"id\":");
  weft_json_words(out, name);
  weft_text_puts(out, ",\"display_name\":");
  weft_json_words(out, name);
  weft_text_printf(out, ",\"created_at\":\"%s\",\"max_input_tokens\":%u,\"max_tokens\":%u}", text, card.context,
                   card.context);
}

typedef void (*model_writer)(const weft_server *s, uint32_t index, const char *name, weft_text *out);

/* All models under all of their names, as members of a list. */
static void put_models(const weft_server *s, model_writer put, weft_text *out) {
  for (uint32_t i = 0; i < weft_n_models(s->runtime); i++) {
    weft_model_card card = weft_model_at(s->runtime, i);
    weft_text_puts(out, i > 0 ? "," : "");
    put(s, i, card.name, out);
    for (uint32_t k = 0; k < card.n_aliases; k++) {
      weft_text_puts(out, ",");
      put(s, i, card.aliases[k], out);
    }
  }
}

void weft_handle_models(weft_server *s, weft_exchange *x) {
  weft_text body = {0};
  if (weft_exchange_note(x)->anthropic) {
    weft_text_puts(&body, "{\"data\":[");
    put_models(s, put_anthropic, &body);
    weft_text_puts(&body, "],\"has_more\":false,\"first_id\":");
    weft_json_words(&body, weft_model_at(s->runtime, 0).name);
    weft_text_puts(&body, ",\"last_id\":");
    weft_json_words(&body, weft_model_at(s->runtime, weft_n_models(s->runtime) - 1).name);
  } else {
    weft_text_puts(&body, "{\"object\":\"list\",\"data\":[");
    put_models(s, put_model, &body);
    weft_text_puts(&body, "],\"models\":[");
    put_models(s, put_entry, &body);
    weft_text_puts(&body, "]");
  }
  weft_text_puts(&body, "}");
  answer_json(x, 200, &body);
}

void weft_handle_model(weft_server *s, weft_exchange *x) {
  const char *name = weft_exchange_path(x) + strlen("/v1/models/");
  weft_text body = {0};
  for (uint32_t i = 0; i < SERVED_NAMES_WAYS * weft_n_models(s->runtime); i++) {
    uint32_t index = i % weft_n_models(s->runtime);
    const weft_served_model *m = &s->runtime->model[index];
    if (!served_names_lead(m, name, i / weft_n_models(s->runtime))) continue;
    (weft_exchange_note(x)->anthropic ? put_anthropic : put_model)(s, index, name, &body);
    answer_json(x, 200, &body);
    return;
  }
  weft_refusal why;
  weft_error error;
  (void)served_names_unknown(s->runtime, name, &error);
  (void)weft_refuse(&why, 404, "model_not_found", "model", "%s", error.text);
  weft_exchange_refuse(x, &why);
}

/* ---- how it is doing ---- */

void weft_handle_metrics(weft_server *s, weft_exchange *x) {
  char *text = weft_metrics(s->runtime);
  weft_text body = {0};
  if (text != NULL) weft_text_puts(&body, text);
  body.refused = body.refused || text == NULL;
  weft_release(text);
  weft_server_metrics(s, &body);
  weft_text out = {0};
  bool open = weft_exchange_note(x)->open_metrics;
  if (weft_text_status(&body) != WEFT_OK) out.refused = true;
  exposition_write(&body, open, &out);
  weft_text_free(&body);
  weft_exchange_set_header(x, "Vary", "Accept, Origin");
  weft_exchange_answer(
      x, 200,
      open ? "application/openmetrics-text; version=1.0.0; charset=utf-8" : "text/plain; version=0.0.4; charset=utf-8",
      &out);
}

void weft_handle_trace(weft_server *s, weft_exchange *x) {
  char *text = weft_trace(s->runtime, 0);
  weft_text body = {0};
  if (text != NULL) weft_text_puts(&body, text);
  body.refused = body.refused || text == NULL;
  weft_release(text);
  answer_json(x, 200, &body);
}

void weft_handle_version(weft_server *s, weft_exchange *x) {
  weft_text body = {0};
  (void)s;
  weft_text_puts(&body, "{\"version\":");
  weft_json_words(&body, weft_version());
  weft_text_puts(&body, "}");
  answer_json(x, 200, &body);
}

/* ---- text and tokens ---- */

typedef struct tokenize_body {
  const weft_served_model *model;
  weft_prompt prompt; /* points into the body and into memory */
  weft_gen memory;
  bool add_special, parse_special, words, generation;
} tokenize_body;

static weft_status find_model(const weft_server *s, const json_t *root, const weft_served_model **out,
                              weft_refusal *why) {
  const json_t *name = json_object_get(root, "model");
  weft_error error = {{0}};
  uint32_t index;
  if (name != NULL && !json_is_null(name) && !json_is_string(name)) {
    return weft_refuse(why, 400, "invalid_value", "model", "model must be a string");
  }
  *out = weft_runtime_model(s->runtime, json_string_value(name), &index, &error);
  return *out != NULL ? WEFT_OK : weft_refuse_status(why, WEFT_E_NOT_FOUND, error.text, false);
}

static weft_status read_tokenize(const weft_server *s, const json_t *root, tokenize_body *b, weft_refusal *why) {
  weft_status status = find_model(s, root, &b->model, why);
  if (status == WEFT_OK) status = fields_read(&b->memory, &tokenize_fields, root, "", why);
  if (status == WEFT_OK) status = field_flag(root, "add_special_tokens", &b->add_special, why);
  if (status == WEFT_OK) status = field_flag(root, "parse_special", &b->parse_special, why);
  if (status == WEFT_OK) status = field_flag(root, "return_token_strs", &b->words, why);
  if (status == WEFT_OK) status = field_flag(root, "add_generation_prompt", &b->generation, why);
  if (status == WEFT_OK) status = field_flag(root, "continue_final_message", &b->prompt.continues, why);
  if (status == WEFT_OK) status = weft_openai_variables(&b->memory, root, &b->prompt, why);
  if (status != WEFT_OK) return status;
  const json_t *prompt = field_of(root, "prompt"), *messages = field_of(root, "messages");
  const json_t *content = field_of(root, "content"); /* llama.cpp's name for it, without tokens around it */
  if (prompt == NULL && content != NULL) {
    if (field_of(root, "add_special_tokens") == NULL) b->add_special = false;
    status = field_flag(root, "add_special", &b->add_special, why);
    if (status != WEFT_OK) return status;
    prompt = content;
  }
  if ((prompt != NULL) == (messages != NULL)) {
    return weft_refuse(why, 400, "invalid_value", "prompt", "give exactly one of prompt (or content) and messages");
  }
  if (messages != NULL) {
    status = weft_openai_messages(&b->memory, messages, &b->prompt, why);
    return status == WEFT_OK ? weft_openai_tools(&b->memory, field_of(root, "tools"), messages, &b->prompt, why)
                             : status;
  }
  if (!json_is_string(prompt)) return weft_refuse(why, 400, "invalid_value", "prompt", "prompt must be a string");
  b->prompt.text = json_string_value(prompt);
  b->prompt.n_text = json_string_length(prompt);
  return WEFT_OK;
}

static weft_status encode_body(const tokenize_body *b, encoded_prompt *out, weft_refusal *why) {
  weft_error error = {{0}};
  const prompt_form form = {.text_flags = (b->add_special ? (unsigned)WEFT_ENCODE_ADD_SPECIAL : 0u) |
                                          (b->parse_special ? (unsigned)WEFT_ENCODE_PARSE_SPECIAL : 0u),
                            .open_answer = b->generation};
  weft_status status = prompt_encode(b->model, &b->prompt, &form, out, &error);
  return status == WEFT_OK ? WEFT_OK : weft_refuse_status(why, status, error.text, false);
}

static void put_words(const weft_tokenizer *tokenizer, const weft_tokens *tokens, weft_text *out) {
  weft_text piece = {0};
  weft_text_puts(out, "[");
  for (uint32_t i = 0; i < tokens->n; i++) {
    weft_text_clear(&piece);
    if (weft_tokenizer_piece(tokenizer, tokens->ids[i], true, &piece) != WEFT_OK) out->refused = true;
    if (i > 0) weft_text_puts(out, ",");
    weft_json_string(out, piece.bytes, piece.n);
  }
  weft_text_puts(out, "]");
  weft_text_free(&piece);
}

void weft_handle_tokenize(weft_server *s, weft_exchange *x) {
  weft_refusal why;
  tokenize_body b = {.add_special = true, .generation = true, .memory = {.strict_fields = s->body_rules.strict_fields}};
  encoded_prompt encoded = {0};
  const weft_tokens *tokens = &encoded.tokens;
  json_t *root;
  size_t n;
  const char *bytes = weft_exchange_body(x, &n);
  weft_status status = weft_body_load(bytes, n, &s->body_rules.json, &root, &why);
  if (status == WEFT_OK) status = read_tokenize(s, root, &b, &why);
  if (status == WEFT_OK) status = encode_body(&b, &encoded, &why);
  if (status == WEFT_OK) {
    weft_text body = {0};
    weft_text_printf(&body, "{\"count\":%u,\"max_model_len\":%u,\"tokens\":", tokens->n, b.model->context);
    weft_json_ids(&body, tokens->ids, tokens->n);
    weft_text_puts(&body, ",\"token_strs\":");
    if (b.words) {
      put_words(b.model->tokenizer, tokens, &body);
    } else {
      weft_text_puts(&body, "null");
    }
    weft_text_puts(&body, "}");
    answer_json(x, 200, &body);
  } else {
    weft_exchange_refuse(x, &why);
  }
  prompt_close(&encoded);
  weft_gen_close(&b.memory);
  json_decref(root);
}

void weft_handle_detokenize(weft_server *s, weft_exchange *x) {
  weft_refusal why;
  weft_gen gen = {.strict_fields = s->body_rules.strict_fields};
  weft_prompt prompt = {0};
  const weft_served_model *model;
  char *text = NULL, line[512];
  size_t n, n_text = 0;
  json_t *root;
  const char *bytes = weft_exchange_body(x, &n);
  weft_status status = weft_body_load(bytes, n, &s->body_rules.json, &root, &why);
  if (status == WEFT_OK) status = find_model(s, root, &model, &why);
  if (status == WEFT_OK) status = fields_read(&gen, &detokenize_fields, root, "", &why);
  if (status == WEFT_OK) status = field_ids(&gen, json_object_get(root, "tokens"), "tokens", &prompt, &why);
  if (status == WEFT_OK) {
    int code = weft_detokenize(s->runtime, model->name, prompt.tokens, prompt.n_tokens, true, &text, &n_text, line,
                               sizeof line);
    if (code != 0) status = weft_refuse_status(&why, code, line, false);
  }
  if (status == WEFT_OK) {
    weft_text body = {0};
    weft_text_puts(&body, "{\"prompt\":");
    weft_json_string(&body, text, n_text);
    weft_text_puts(&body, ",\"content\":"); /* as llama.cpp calls it */
    weft_json_string(&body, text, n_text);
    weft_text_puts(&body, "}");
    answer_json(x, 200, &body);
  } else {
    weft_exchange_refuse(x, &why);
  }
  weft_release(text);
  weft_gen_close(&gen);
  json_decref(root);
}
