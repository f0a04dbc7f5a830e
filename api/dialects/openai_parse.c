/* SPDX-License-Identifier: MIT */
/* Bodies of the OpenAI dialect to weft_gen: two tables of fields (understood, refused) and what
 * tables cannot say. */
#include <limits.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "api/dialects/fields.h"
#include "api/dialects/openai.h"
#include "base/memory.h"
#include "model/text/chat.h"
#include "model/text/json_tree.h"

/* A field, and which endpoints have it. */
typedef struct openai_row {
  field_row row;
  unsigned kinds;
} openai_row;

enum { BOTH = WEFT_OPENAI_CHAT | WEFT_OPENAI_COMPLETIONS, TURNS_MAX = 4096, STOPS_MAX = 64 };

#define AT(field) offsetof(weft_gen, params.field)
#define NUMBER(field, type, place, ...)                                            \
  {                                                                                \
    .name = field, .kind = FIELD_##type, .at = AT(place), .range = { __VA_ARGS__ } \
  }

static const openai_row fields[] = {
    {NUMBER("temperature", REAL, sampling.temperature, WEFT_RANGE_TEMPERATURE), BOTH},
    {NUMBER("top_p", REAL, sampling.top_p, WEFT_RANGE_TOP_P), BOTH},
    {NUMBER("top_k", I32, sampling.top_k, -1, -1, INT32_MAX, false), BOTH}, /* -1: off, too */
    {NUMBER("min_p", REAL, sampling.min_p, WEFT_RANGE_MIN_P), BOTH},
    {NUMBER("repetition_penalty", REAL, sampling.repetition_penalty, WEFT_RANGE_REPETITION_PENALTY), BOTH},
    {NUMBER("presence_penalty", REAL, sampling.presence_penalty, WEFT_RANGE_PRESENCE_PENALTY), BOTH},
    {NUMBER("frequency_penalty", REAL, sampling.frequency_penalty, WEFT_RANGE_FREQUENCY_PENALTY), BOTH},
    {NUMBER("max_tokens", U32, max_tokens, WEFT_RANGE_MAX_TOKENS), BOTH},
    {NUMBER("max_completion_tokens", U32, max_tokens, WEFT_RANGE_MAX_TOKENS),
     WEFT_OPENAI_CHAT}, /* the newer name wins */
    {{.name = "seed", .kind = FIELD_SEED}, BOTH},
    {{.name = "ignore_eos", .kind = FIELD_BOOL, .at = AT(ignore_eos)}, BOTH},
    {NUMBER("timeout_ms", U32, timeout_ms, 0, 1, UINT32_MAX, false), BOTH},
    {{.name = "thinking", .kind = FIELD_BOOL, .at = AT(prompt.thinking)}, WEFT_OPENAI_CHAT},
};

static const field_row diffusion_fields[] = {
    NUMBER("steps", U32, entropy_bound.max_steps, WEFT_RANGE_MAX_STEPS),
    {.name = "seed", .kind = FIELD_SEED},
    NUMBER("blocks", U32, canvases, WEFT_RANGE_CANVASES),
    NUMBER("t_min", REAL, entropy_bound.t_min, WEFT_RANGE_T_MIN),
    NUMBER("t_max", REAL, entropy_bound.t_max, WEFT_RANGE_T_MAX),
    NUMBER("entropy_bound", REAL, entropy_bound.entropy_bound, WEFT_RANGE_ENTROPY_BOUND),
    NUMBER("stability", I32, entropy_bound.stability, WEFT_RANGE_STABILITY),
    NUMBER("confidence", REAL, entropy_bound.confidence, WEFT_RANGE_CONFIDENCE),
};

/* What would change the answer and is not done. The value of each that asks for nothing is let
 * through. */
typedef enum harmless { NOTHING, FALSE, EMPTY, NONE_WORD } harmless;

typedef struct refused_row {
  const char *name;
  harmless harmless;
  const char *instead;
} refused_row;

static const refused_row refused[] = {
    {"functions", EMPTY, "the newer names are tools and tool_choice: give the functions there"},
    {"function_call", NONE_WORD, "the newer names are tools and tool_choice: give the choice there"},
    {"suffix", EMPTY, "filling in before a suffix is not supported"},
    {"use_beam_search", FALSE, "beam search is not supported"},
    {"logits_processors", EMPTY, "processors of logits are not supported"},
    {"audio", NOTHING, "audio is not supported"},
};

/* ---- memory ---- */

typedef struct gen_block {
  struct gen_block *next;
  max_align_t bytes[];
} gen_block;

void *weft_gen_alloc(weft_gen *gen, size_t n, size_t size) {
  size_t n_bytes;
  if (__builtin_mul_overflow(n, size, &n_bytes) || n_bytes > SIZE_MAX - sizeof(gen_block)) return NULL;
  gen_block *block = weft_alloc(1, sizeof *block + n_bytes);
  if (block == NULL) return NULL;
  block->next = gen->blocks;
  gen->blocks = block;
  return block->bytes;
}

void weft_gen_close(weft_gen *gen) {
  for (gen_block *block = gen->blocks, *next; block != NULL; block = next) {
    next = block->next;
    weft_free(block);
  }
  json_decref(gen->json);
  memset(gen, 0, sizeof *gen);
}

/* ---- values ---- */

/* Refuses a body with too many values before it is parsed: unknown fields would take memory, too. */
static weft_status check_size(const char *body, size_t n, const weft_json_size *limits, weft_refusal *why) {
  weft_json_size size;
  size_t at = 0;
  const char *what = NULL;
  if (weft_json_scan(body, n, limits, &size, &at, &what)) return WEFT_OK;
  return weft_refuse(why, 400, "too_many_values", NULL,
                     "the body has too many %s at byte %zu; it may have %u lists, objects and strings, %u numbers, and "
                     "%u levels",
                     what, at, limits->values, limits->scalars, limits->depth);
}

weft_status weft_openai_load(const char *body, size_t n, const weft_json_size *limits, json_t **out,
                             weft_refusal *why) {
  size_t bad_at;
  json_error_t error;
  *out = NULL;
  if (n == 0) return weft_refuse(why, 400, "invalid_json", NULL, "the body is empty: send a JSON object");
  if (!weft_utf8_valid(body, n, &bad_at)) {
    return weft_refuse(why, 400, "invalid_json", NULL, "the body is not valid UTF-8 at byte %zu", bad_at);
  }
  weft_status status = check_size(body, n, limits, why);
  if (status != WEFT_OK) return status;
  json_t *root = weft_json_read(body, n, 0, &error);
  if (root == NULL) {
    return weft_refuse(why, 400, "invalid_json", NULL, "the body is not valid JSON at line %d, column %d (byte %d): %s",
                       error.line, error.column, error.position, error.text);
  }
  if (!json_is_object(root)) {
    json_decref(root);
    return weft_refuse(why, 400, "invalid_json", NULL, "the body must be a JSON object");
  }
  *out = root;
  return WEFT_OK;
}

/* given, if not NULL: whether the body has the field. */
static weft_status read_count(weft_gen *gen, const json_t *object, const field_row *row, bool *given,
                              weft_refusal *why) {
  const json_t *value = field_of(object, row->name);
  if (given != NULL) *given = value != NULL;
  return value == NULL ? WEFT_OK : field_read(gen, row, value, row->name, why);
}

/* ---- prompts ---- */

/* Text of a message: a string, or a list of {"type":"text","text":...}. */
static weft_status content_text(weft_gen *gen, const json_t *content, const char *field, const char **out,
                                weft_refusal *why) {
  *out = json_string_value(content);
  if (*out != NULL) return WEFT_OK;
  if (!json_is_array(content)) return field_wrong(why, field, "a string or a list of parts");
  size_t n = 1, i;
  json_t *part;
  json_array_foreach(content, i, part) {
    const char *type = json_string_value(json_object_get(part, "type"));
    const json_t *text = json_object_get(part, "text");
    if (type != NULL && strcmp(type, "text") == 0 && json_is_string(text)) {
      n += json_string_length(text);
    } else if (type != NULL && (strstr(type, "image") != NULL || strstr(type, "audio") != NULL ||
                                strstr(type, "video") != NULL || strstr(type, "file") != NULL)) {
      return weft_refuse(why, 400, "unsupported", field, "%s[%zu] is of type '%.32s'; only text is read", field, i,
                         type);
    } else {
      return weft_refuse(why, 400, "invalid_value", field, "%s[%zu] must be {\"type\":\"text\",\"text\":\"...\"}",
                         field, i);
    }
  }
  char *joined = weft_gen_alloc(gen, n, 1), *at = joined;
  if (joined == NULL) return field_no_memory(why);
  json_array_foreach(content, i, part) {
    const json_t *text = json_object_get(part, "text");
    memcpy(at, json_string_value(text), json_string_length(text));
    at += json_string_length(text);
  }
  *out = joined;
  return WEFT_OK;
}

static weft_status read_turn(weft_gen *gen, const json_t *message, size_t i, weft_chat_turn *turn, weft_refusal *why) {
  char field[64];
  (void)snprintf(field, sizeof field, "messages[%zu]", i);
  if (!json_is_object(message)) return field_wrong(why, field, "an object with role and content");
  turn->role = json_string_value(json_object_get(message, "role"));
  (void)snprintf(field, sizeof field, "messages[%zu].role", i);
  if (turn->role == NULL) return field_wrong(why, field, "a string");
  if (strcmp(turn->role, "function") == 0) {
    return weft_refuse(why, 400, "unsupported", field,
                       "%s is 'function': the newer name is tool, with tool_call_id beside it", field);
  }
  if (!weft_chat_is_role(turn->role)) {
    return weft_refuse(why, 400, "invalid_value", field,
                       "%s is '%.32s'; it must be system, developer, user, assistant or tool", field, turn->role);
  }
  bool answers = strcmp(turn->role, "assistant") == 0, result = strcmp(turn->role, "tool") == 0;
  weft_status status = weft_openai_calls(gen, message, i, turn, why);
  if (status == WEFT_OK && result) status = weft_openai_result(message, i, turn, why);
  if (status == WEFT_OK) status = weft_openai_speaker(message, i, turn, why);
  if (status != WEFT_OK) return status;
  const json_t *content = field_of(message, "content"),
               *thinking = answers ? field_of(message, "reasoning_content") : NULL;
  turn->thinking = json_string_value(thinking);
  (void)snprintf(field, sizeof field, "messages[%zu].reasoning_content", i);
  if (thinking != NULL && turn->thinking == NULL) return field_wrong(why, field, "a string");
  (void)snprintf(field, sizeof field, "messages[%zu].content", i);
  turn->content = "";
  if (content == NULL && !answers && !result) return field_wrong(why, field, "a string or a list of parts");
  return content == NULL ? WEFT_OK : content_text(gen, content, field, &turn->content, why);
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

weft_status weft_openai_ids(weft_gen *gen, const json_t *list, const char *field, weft_prompt *out, weft_refusal *why) {
  size_t n = json_array_size(list);
  if (!json_is_array(list)) return field_wrong(why, field, "a list of token ids");
  if (n > UINT32_MAX / 2) return field_wrong(why, field, "shorter");
  int32_t *ids = weft_gen_alloc(gen, n == 0 ? 1 : n, sizeof *ids);
  if (ids == NULL) return field_no_memory(why);
  for (size_t i = 0; i < n; i++) {
    const json_t *id = json_array_get(list, i);
    json_int_t value = json_integer_value(id);
    if (!json_is_integer(id) || value < 0 || value > INT32_MAX) {
      return weft_refuse(why, 400, "invalid_value", field, "%s[%zu] is no token id: ids are whole numbers from 0",
                         field, i);
    }
    ids[i] = (int32_t)value;
  }
  out->tokens = ids;
  out->n_tokens = (uint32_t)n;
  return WEFT_OK;
}

static weft_status one_prompt(weft_gen *gen, const json_t *value, weft_prompt *out, weft_refusal *why) {
  if (json_is_array(value)) return weft_openai_ids(gen, value, "prompt", out, why);
  if (!json_is_string(value)) return field_wrong(why, "prompt", "text, token ids, or a list of either");
  out->text = json_string_value(value);
  out->n_text = json_string_length(value);
  return WEFT_OK;
}

static weft_status read_prompts(weft_gen *gen, const json_t *prompt, weft_refusal *why) {
  if (prompt == NULL) return field_wrong(why, "prompt", "text, token ids, or a list of either");
  const json_t *first = json_array_get(prompt, 0);
  bool several = json_is_array(prompt) && (json_is_string(first) || json_is_array(first));
  if (json_is_array(prompt) && first == NULL)
    return weft_refuse(why, 400, "invalid_value", "prompt", "prompt is empty");
  size_t n = several ? json_array_size(prompt) : 1;
  if (n > WEFT_ANSWERS_MAX) {
    return weft_refuse(why, 400, "invalid_value", "prompt", "prompt has %zu entries; at most %d are answered at once",
                       n, WEFT_ANSWERS_MAX);
  }
  gen->prompt = weft_gen_alloc(gen, n, sizeof *gen->prompt);
  if (gen->prompt == NULL) return field_no_memory(why);
  gen->n_prompts = (uint32_t)n;
  for (size_t i = 0; i < n; i++) {
    weft_status status = one_prompt(gen, several ? json_array_get(prompt, i) : prompt, &gen->prompt[i], why);
    if (status != WEFT_OK) return status;
    if (gen->prompt[i].text != NULL ? gen->prompt[i].n_text == 0 : gen->prompt[i].n_tokens == 0) {
      return weft_refuse(why, 400, "invalid_value", "prompt", "prompt %zu is empty", i);
    }
  }
  return WEFT_OK;
}

/* ---- what the tables cannot say ---- */

weft_status weft_openai_stop(weft_gen *gen, const json_t *stop, const char *field, weft_refusal *why) {
  if (stop == NULL) return WEFT_OK;
  bool one = json_is_string(stop);
  size_t n = one ? 1 : json_array_size(stop);
  if (!one && !json_is_array(stop)) return field_wrong(why, field, "a string or a list of strings");
  if (n > STOPS_MAX) {
    return weft_refuse(why, 400, "invalid_value", field, "%s has %zu strings; at most %d are allowed", field, n,
                       STOPS_MAX);
  }
  const char **list = weft_gen_alloc(gen, n == 0 ? 1 : n, sizeof *list);
  if (list == NULL) return field_no_memory(why);
  for (size_t i = 0; i < n; i++) {
    const json_t *item = one ? stop : json_array_get(stop, i);
    list[i] = json_string_value(item);
    if (list[i] == NULL || list[i][0] == 0) return field_wrong(why, field, "made of strings that are not empty");
  }
  gen->params.stop = list;
  gen->params.n_stop = (uint32_t)n;
  return WEFT_OK;
}

static weft_status read_bias(weft_gen *gen, const json_t *bias, weft_refusal *why) {
  static const weft_range range = {WEFT_RANGE_LOGIT_BIAS};
  char allowed[WEFT_RANGE_TEXT];
  if (bias == NULL) return WEFT_OK;
  size_t n = json_object_size(bias), i = 0;
  if (!json_is_object(bias)) return field_wrong(why, "logit_bias", "an object from token ids to numbers");
  if (n > WEFT_LOGIT_BIAS_MAX) {
    return weft_refuse(why, 400, "invalid_value", "logit_bias", "logit_bias has %zu entries; at most %d are allowed", n,
                       WEFT_LOGIT_BIAS_MAX);
  }
  weft_logit_bias *entries = weft_gen_alloc(gen, n + 1, sizeof *entries);
  if (entries == NULL) return field_no_memory(why);
  const char *key;
  json_t *value;
  json_object_foreach((json_t *)bias, key, value) {
    char *end;
    long id = strtol(key, &end, 10);
    double number = json_number_value(value);
    if (*key == 0 || *end != 0 || id < 0 || id > INT32_MAX) {
      return weft_refuse(why, 400, "invalid_value", "logit_bias", "logit_bias: '%.32s' is no token id", key);
    }
    if (!json_is_number(value) || !weft_range_has(&range, number)) {
      return weft_refuse(why, 400, "invalid_value", "logit_bias", "logit_bias of %ld must be a number %s", id,
                         weft_range_text(&range, allowed));
    }
    entries[i++] = (weft_logit_bias){(int32_t)id, (float)number};
  }
  gen->params.sampling.bias = entries;
  gen->params.sampling.n_bias = (uint32_t)n;
  return WEFT_OK;
}

static weft_status read_logprobs(weft_gen *gen, weft_openai_kind kind, const json_t *root, weft_refusal *why) {
  static const field_row rows[] = {NUMBER("logprobs", U32, sampling.n_top_logprobs, WEFT_RANGE_TOP_LOGPROBS),
                                   NUMBER("top_logprobs", U32, sampling.n_top_logprobs, WEFT_RANGE_TOP_LOGPROBS)};
  weft_sampling *s = &gen->params.sampling;
  if (kind == WEFT_OPENAI_COMPLETIONS) {
    if (json_is_false(json_object_get(root, "logprobs"))) return WEFT_OK;
    return read_count(gen, root, &rows[0], &s->logprobs, why);
  }
  weft_status status = field_flag(root, "logprobs", &s->logprobs, why);
  if (status == WEFT_OK) status = read_count(gen, root, &rows[1], NULL, why);
  if (status == WEFT_OK && s->n_top_logprobs > 0 && !s->logprobs) {
    return weft_refuse(why, 400, "invalid_value", "top_logprobs", "top_logprobs needs \"logprobs\": true");
  }
  return status;
}

weft_status weft_openai_mode(weft_gen *gen, const json_t *mode, const char *field, weft_refusal *why) {
  const char *word = json_string_value(mode);
  if (mode == NULL) return WEFT_OK;
  if (word != NULL && strcmp(word, "auto") == 0) {
    gen->params.mode = WEFT_MODE_AUTO;
  } else if (word != NULL && strcmp(word, "autoregressive") == 0) {
    gen->params.mode = WEFT_MODE_AUTOREGRESSIVE;
  } else if (word != NULL && strcmp(word, "diffusion") == 0) {
    gen->params.mode = WEFT_MODE_DIFFUSION;
  } else {
    return field_wrong(why, field, "\"autoregressive\", \"diffusion\" or \"auto\"");
  }
  return WEFT_OK;
}

/* The object `diffusion` is an extension of this server, so an unknown name in it is a mistake, not a field of another
 * dialect. */
weft_status weft_openai_diffusion(weft_gen *gen, const json_t *diffusion, const char *field, weft_refusal *why) {
  const char *key;
  json_t *value;
  if (diffusion == NULL) return WEFT_OK;
  if (!json_is_object(diffusion)) return field_wrong(why, field, "an object");
  json_object_foreach((json_t *)diffusion, key, value) {
    char name[64];
    const field_row *row = NULL;
    (void)snprintf(name, sizeof name, "diffusion.%.48s", key);
    if (json_is_null(value)) continue;
    if (strcmp(key, "self_conditioning") == 0) {
      if (!json_is_boolean(value)) return field_wrong(why, name, "true or false");
      gen->params.entropy_bound.no_self_conditioning = json_is_false(value);
      gen->params.entropy_bound.self_conditioning = json_is_true(value);
      continue;
    }
    for (size_t i = 0; i < sizeof diffusion_fields / sizeof *diffusion_fields; i++) {
      if (strcmp(diffusion_fields[i].name, key) == 0) row = &diffusion_fields[i];
    }
    if (row == NULL) {
      return weft_refuse(why, 400, "invalid_value", name,
                         "%s is unknown; diffusion has steps, seed, blocks, t_min, t_max, "
                         "entropy_bound, stability, "
                         "confidence and self_conditioning",
                         name);
    }
    weft_status status = field_read(gen, row, value, name, why);
    if (status != WEFT_OK) return status;
  }
  return WEFT_OK;
}

weft_status weft_openai_variables(weft_gen *gen, const json_t *root, weft_prompt *prompt, weft_refusal *why) {
  const json_t *kwargs = field_of(root, "chat_template_kwargs");
  if (kwargs == NULL) return WEFT_OK;
  if (!json_is_object(kwargs)) return field_wrong(why, "chat_template_kwargs", "an object");
  const json_t *value = field_of(kwargs, "enable_thinking");
  if (value != NULL && !json_is_boolean(value))
    return field_wrong(why, "chat_template_kwargs.enable_thinking", "true or false");
  if (value != NULL) prompt->thinking = json_is_true(value);
  if (json_object_size(kwargs) == (value != NULL)) return WEFT_OK;
  return field_json(gen, kwargs, &prompt->variables, why);
}

static weft_status read_stream(weft_gen *gen, const json_t *root, weft_refusal *why) {
  bool special = true;
  weft_status status = field_flag(root, "stream", &gen->stream, why);
  if (status == WEFT_OK) status = field_flag(root, "return_token_ids", &gen->token_ids, why);
  if (status == WEFT_OK) status = field_flag(root, "stream_canvas", &gen->canvas_events, why);
  if (status == WEFT_OK) status = field_flag(root, "skip_special_tokens", &special, why);
  if (status != WEFT_OK) return status;
  const json_t *options = field_of(root, "stream_options");
  if (options != NULL) {
    if (!json_is_object(options)) return field_wrong(why, "stream_options", "an object");
    if (!gen->stream) {
      return weft_refuse(why, 400, "invalid_value", "stream_options", "stream_options needs \"stream\": true");
    }
    const json_t *usage = field_of(options, "include_usage");
    if (usage != NULL && !json_is_boolean(usage))
      return field_wrong(why, "stream_options.include_usage", "true or false");
    gen->include_usage = json_is_true(usage);
  }
  if (gen->canvas_events && !gen->stream) {
    return weft_refuse(why, 400, "invalid_value", "stream_canvas", "stream_canvas needs \"stream\": true");
  }
  gen->params.whole_tokens = gen->token_ids;
  gen->params.canvas_deltas = gen->canvas_events;
  gen->params.with_special = !special;
  return WEFT_OK;
}

static bool is_harmless(const json_t *value, harmless how) {
  switch (how) {
    case FALSE:
      return json_is_false(value);
    case EMPTY:
      return (json_is_array(value) && json_array_size(value) == 0) ||
             (json_is_string(value) && json_string_length(value) == 0);
    case NONE_WORD:
      return json_is_string(value) && strcmp(json_string_value(value), "none") == 0;
    default:
      return false;
  }
}

static weft_status check_refused(const json_t *root, weft_refusal *why) {
  for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
    const refused_row *r = &refused[i];
    const json_t *value = field_of(root, r->name);
    if (value == NULL || is_harmless(value, r->harmless)) continue;
    return weft_refuse(why, 400, "unsupported", r->name, "%s: %s", r->name, r->instead);
  }
  return WEFT_OK;
}

/* How many answers are made of each prompt, and how many of them are given. */
static weft_status read_choices(weft_gen *gen, weft_openai_kind kind, const json_t *root, weft_refusal *why) {
  gen->n_given = 1;
  static const field_row rows[] = {
      {.name = "n", .kind = FIELD_U32, .at = offsetof(weft_gen, n_given), .range = {1, 1, WEFT_ANSWERS_MAX, false}},
      {.name = "best_of",
       .kind = FIELD_U32,
       .at = offsetof(weft_gen, n_choices),
       .range = {1, 1, WEFT_ANSWERS_MAX, false}}};
  weft_status status = read_count(gen, root, &rows[0], NULL, why);
  gen->n_choices = gen->n_given;
  if (status == WEFT_OK) status = read_count(gen, root, &rows[1], NULL, why);
  if (status != WEFT_OK || gen->n_choices == gen->n_given) return status;
  if (kind != WEFT_OPENAI_COMPLETIONS) {
    return weft_refuse(why, 400, "unsupported", "best_of",
                       "best_of belongs to /v1/completions: ask for n answers and choose");
  }
  if (gen->n_choices < gen->n_given) {
    return weft_refuse(why, 400, "invalid_value", "best_of", "best_of is %u; it must be at least n, which is %u",
                       gen->n_choices, gen->n_given);
  }
  if (json_is_true(field_of(root, "stream"))) {
    return weft_refuse(why, 400, "invalid_value", "best_of",
                       "best_of above n cannot be streamed: which answers are best is known at the end");
  }
  gen->params.score = true;
  return WEFT_OK;
}

static weft_status read_fields(weft_gen *gen, weft_openai_kind kind, const json_t *root, weft_refusal *why) {
  for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
    const field_row *row = &fields[i].row;
    const json_t *value = (fields[i].kinds & (unsigned)kind) != 0 ? field_of(root, row->name) : NULL;
    bool read_before = gen->params.prompt_only && row->at == AT(max_tokens);
    if (value == NULL || read_before) continue;
    weft_status status = field_read(gen, row, value, row->name, why);
    if (status != WEFT_OK) return status;
  }
  if (field_of(root, "top_k") != NULL && gen->params.sampling.top_k < 0) gen->params.sampling.top_k = 0;
  const json_t *model = field_of(root, "model");
  if (model != NULL && !json_is_string(model)) return field_wrong(why, "model", "a string");
  gen->params.model = json_string_value(model);
  return WEFT_OK;
}

static weft_status read_body(weft_gen *gen, weft_openai_kind kind, const json_t *root, weft_refusal *why) {
  weft_status status = check_refused(root, why);
  if (status == WEFT_OK) status = weft_openai_echo(gen, kind, root, why);
  if (status == WEFT_OK) status = read_fields(gen, kind, root, why);
  if (status == WEFT_OK) status = read_choices(gen, kind, root, why);
  if (status == WEFT_OK) status = weft_openai_mode(gen, field_of(root, "mode"), "mode", why);
  if (status == WEFT_OK) status = weft_openai_diffusion(gen, field_of(root, "diffusion"), "diffusion", why);
  if (status == WEFT_OK) status = weft_openai_format(gen, root, why);
  if (status == WEFT_OK) status = weft_openai_stop(gen, field_of(root, "stop"), "stop", why);
  if (status == WEFT_OK) status = read_bias(gen, field_of(root, "logit_bias"), why);
  if (status == WEFT_OK) status = read_logprobs(gen, kind, root, why);
  if (status == WEFT_OK) status = read_stream(gen, root, why);
  if (status == WEFT_OK) status = weft_openai_limits(gen, root, why);
  if (status == WEFT_OK) status = weft_openai_read_prompt_logprobs(gen, root, why);
  if (status != WEFT_OK) return status;
  if (kind == WEFT_OPENAI_COMPLETIONS) {
    if (json_array_size(field_of(root, "tools")) > 0) {
      return weft_refuse(why, 400, "unsupported", "tools", "tools belong to /v1/chat/completions");
    }
    status = read_prompts(gen, field_of(root, "prompt"), why);
  } else {
    gen->prompt = weft_gen_alloc(gen, 1, sizeof *gen->prompt);
    gen->n_prompts = 1;
    if (gen->prompt == NULL) return field_no_memory(why);
    gen->prompt[0] = gen->params.prompt; /* what the fields said of it */
    status = weft_openai_messages(gen, json_object_get(root, "messages"), &gen->prompt[0], why);
    if (status == WEFT_OK) status = weft_openai_variables(gen, root, &gen->prompt[0], why);
    if (status == WEFT_OK) status = weft_openai_turn(root, &gen->prompt[0], why);
    if (status == WEFT_OK) status = weft_openai_tools(gen, field_of(root, "tools"), &gen->prompt[0], why);
    if (status == WEFT_OK) status = weft_openai_tool_choice(gen, root, &gen->prompt[0], why);
  }
  if (status == WEFT_OK && gen->n_prompts * gen->n_choices > WEFT_ANSWERS_MAX) {
    return weft_refuse(why, 400, "invalid_value", "n", "%u prompts times %s = %u are more than %d answers",
                       gen->n_prompts, gen->params.score ? "best_of" : "n", gen->n_choices, WEFT_ANSWERS_MAX);
  }
  return status;
}

static weft_status parse_body(weft_openai_kind kind, const char *body, size_t n, const weft_json_size *limits,
                              weft_gen *gen, weft_refusal *why) {
  json_t *root;
  memset(gen, 0, sizeof *gen);
  weft_status status = weft_openai_load(body, n, limits, &root, why);
  if (status != WEFT_OK) return status;
  gen->json = root;
  weft_generate_defaults(&gen->params);
  status = read_body(gen, kind, root, why);
  if (status != WEFT_OK) weft_gen_close(gen);
  return status;
}

weft_status weft_openai_parse_chat(const char *body, size_t n, const weft_json_size *limits, weft_gen *gen,
                                   weft_refusal *why) {
  return parse_body(WEFT_OPENAI_CHAT, body, n, limits, gen, why);
}

weft_status weft_openai_parse_completions(const char *body, size_t n, const weft_json_size *limits, weft_gen *gen,
                                          weft_refusal *why) {
  return parse_body(WEFT_OPENAI_COMPLETIONS, body, n, limits, gen, why);
}
