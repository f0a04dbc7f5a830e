/* SPDX-License-Identifier: MIT */
/* Bodies of the OpenAI dialect to weft_gen: what the tables of openai_fields.c cannot say. */
#include <limits.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "api/dialects/field_tables.h"
#include "api/dialects/dialect.h"
#include "model/text/json_tree.h"

enum { STOPS_MAX = 64 };

#define AT(field) offsetof(weft_gen, params.field)
#define NUMBER(field, type, place, ...)                                            \
  {                                                                                \
    .name = field, .kind = FIELD_##type, .at = AT(place), .range = { __VA_ARGS__ } \
  }

static weft_status read_conditioning(weft_gen *gen, const json_t *value, const char *field, weft_refusal *why) {
  if (!json_is_boolean(value)) return field_wrong(why, field, "true or false");
  gen->params.entropy_bound.no_self_conditioning = json_is_false(value);
  gen->params.entropy_bound.self_conditioning = json_is_true(value);
  return WEFT_OK;
}

#define CANVAS(field, type, words, place, ...)                                                    \
  {                                                                                               \
    .name = field, .kind = FIELD_##type, .what = words, .at = AT(place), .range = { __VA_ARGS__ } \
  }

static const field_row diffusion_rows[] = {
    CANVAS("steps", U32, "most denoise steps of a canvas", entropy_bound.max_steps, WEFT_RANGE_MAX_STEPS),
    {.name = "seed", .kind = FIELD_SEED, .what = "seed, by another name"},
    CANVAS("blocks", U32, "most canvases", canvases, WEFT_RANGE_CANVASES),
    CANVAS("t_min", REAL, "temperature of the last step", entropy_bound.t_min, WEFT_RANGE_T_MIN),
    CANVAS("t_max", REAL, "temperature of the first step", entropy_bound.t_max, WEFT_RANGE_T_MAX),
    CANVAS("entropy_bound", REAL, "entropy that the tokens of a step may add up to", entropy_bound.entropy_bound,
           WEFT_RANGE_ENTROPY_BOUND),
    CANVAS("stability", I32, "equal canvases in a row that end it early", entropy_bound.stability,
           WEFT_RANGE_STABILITY),
    CANVAS("confidence", REAL, "mean entropy below which they do", entropy_bound.confidence, WEFT_RANGE_CONFIDENCE),
    {.name = "self_conditioning",
     .kind = FIELD_READ,
     .what = "false keeps the soft embedding at zero",
     .read = read_conditioning},
};
const field_table openai_diffusion_fields = FIELD_TABLE("diffusion, in every dialect", diffusion_rows);

/* ---- values ---- */

/* given, if not NULL: whether the body has the field. */
static weft_status read_count(weft_gen *gen, const json_t *object, const field_row *row, bool *given,
                              weft_refusal *why) {
  const json_t *value = field_of(object, row->name);
  if (given != NULL) *given = value != NULL;
  return value == NULL ? WEFT_OK : field_read(gen, row, value, row->name, why);
}

/* ---- prompts ---- */

static weft_status one_prompt(weft_gen *gen, const json_t *value, weft_prompt *out, weft_refusal *why) {
  if (json_is_array(value)) return field_ids(gen, value, "prompt", out, why);
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
  uint32_t n_kept = 0;
  for (size_t i = 0; i < n; i++) {
    const char *word = json_string_value(one ? stop : json_array_get(stop, i));
    if (word == NULL) return field_wrong(why, field, "a string or a list of strings");
    if (word[0] != 0) list[n_kept++] = word; /* an empty one ends nothing: clients send the empty line of a form */
  }
  gen->params.stop = list;
  gen->params.n_stop = n_kept;
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

weft_status weft_openai_diffusion(weft_gen *gen, const json_t *diffusion, const char *field, weft_refusal *why) {
  if (diffusion == NULL) return WEFT_OK;
  if (!json_is_object(diffusion)) return field_wrong(why, field, "an object");
  bool strict = gen->strict_fields;
  gen->strict_fields = true; /* the object is this server's own: a name that it lacks is a mistake */
  weft_status status = fields_read(gen, &openai_diffusion_fields, diffusion, "diffusion.", why);
  gen->strict_fields = strict;
  return status;
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
  return weft_dialect_variables(gen, kwargs, &prompt->variables, why);
}

/* true, false or "tokens". */
static weft_status read_stream_canvas(weft_gen *gen, const json_t *root, weft_refusal *why) {
  const json_t *value = field_of(root, "stream_canvas");
  const char *word = json_string_value(value);
  if (value == NULL) return WEFT_OK;
  bool tokens = word != NULL && strcmp(word, "tokens") == 0;
  if (!tokens && !json_is_boolean(value)) return field_wrong(why, "stream_canvas", "true, false or \"tokens\"");
  gen->params.canvas_deltas = tokens || json_is_true(value);
  gen->params.trace = gen->wanted.canvas_tokens = tokens;
  return WEFT_OK;
}

static weft_status read_stream(weft_gen *gen, const json_t *root, weft_refusal *why) {
  bool special = true;
  weft_status status = field_flag(root, "stream", &gen->wanted.stream, why);
  if (status == WEFT_OK) status = field_flag(root, "return_token_ids", &gen->wanted.token_ids, why);
  if (status == WEFT_OK) status = read_stream_canvas(gen, root, why);
  if (status == WEFT_OK) status = field_flag(root, "skip_special_tokens", &special, why);
  if (status != WEFT_OK) return status;
  const json_t *options = field_of(root, "stream_options");
  if (options != NULL) {
    if (!json_is_object(options)) return field_wrong(why, "stream_options", "an object");
    if (!gen->wanted.stream) {
      return weft_refuse(why, 400, "invalid_value", "stream_options", "stream_options needs \"stream\": true");
    }
    const json_t *usage = field_of(options, "include_usage");
    if (usage != NULL && !json_is_boolean(usage))
      return field_wrong(why, "stream_options.include_usage", "true or false");
    gen->wanted.include_usage = json_is_true(usage);
  }
  if (gen->params.canvas_deltas && !gen->wanted.stream) {
    return weft_refuse(why, 400, "invalid_value", "stream_canvas", "stream_canvas needs \"stream\": true");
  }
  gen->params.whole_tokens = gen->wanted.token_ids;
  gen->params.with_special = !special;
  return WEFT_OK;
}

/* How many answers are made of each prompt, and how many of them are given. */
static weft_status read_choices(weft_gen *gen, weft_openai_kind kind, const json_t *root, weft_refusal *why) {
  gen->wanted.n_given = 1;
  static const field_row rows[] = {{.name = "n",
                                    .kind = FIELD_U32,
                                    .at = offsetof(weft_gen, wanted.n_given),
                                    .range = {1, 1, WEFT_ANSWERS_MAX, false}},
                                   {.name = "best_of",
                                    .kind = FIELD_U32,
                                    .at = offsetof(weft_gen, wanted.n_choices),
                                    .range = {1, 1, WEFT_ANSWERS_MAX, false}}};
  weft_status status = read_count(gen, root, &rows[0], NULL, why);
  gen->wanted.n_choices = gen->wanted.n_given;
  if (status == WEFT_OK) status = read_count(gen, root, &rows[1], NULL, why);
  if (status != WEFT_OK || gen->wanted.n_choices == gen->wanted.n_given) return status;
  if (kind != WEFT_OPENAI_COMPLETIONS) {
    return weft_refuse(why, 400, "unsupported", "best_of",
                       "best_of belongs to /v1/completions: ask for n answers and choose");
  }
  if (gen->wanted.n_choices < gen->wanted.n_given) {
    return weft_refuse(why, 400, "invalid_value", "best_of", "best_of is %u; it must be at least n, which is %u",
                       gen->wanted.n_choices, gen->wanted.n_given);
  }
  if (json_is_true(field_of(root, "stream"))) {
    return weft_refuse(why, 400, "invalid_value", "best_of",
                       "best_of above n cannot be streamed: which answers are best is known at the end");
  }
  gen->params.score = true;
  return WEFT_OK;
}

/* The longest answer, by the names that servers have for it; the newest wins. With echo weft_openai_echo reads 0. */
static weft_status read_longest(weft_gen *gen, const json_t *root, weft_refusal *why) {
  static const field_row rows[] = {NUMBER("n_predict", COUNT, max_tokens, WEFT_RANGE_MAX_TOKENS),
                                   NUMBER("max_tokens", COUNT, max_tokens, WEFT_RANGE_MAX_TOKENS),
                                   NUMBER("max_completion_tokens", COUNT, max_tokens, WEFT_RANGE_MAX_TOKENS)};
  weft_status status = WEFT_OK;
  for (size_t i = 0; i < FIELDS_COUNT(rows) && status == WEFT_OK && !gen->params.prompt_only; i++) {
    status = read_count(gen, root, &rows[i], NULL, why);
  }
  return status;
}

static weft_status read_values(weft_gen *gen, weft_openai_kind kind, const json_t *root, weft_refusal *why) {
  const field_table *table = kind == WEFT_OPENAI_CHAT ? &openai_chat_fields : &openai_completions_fields;
  weft_status status = fields_read(gen, table, root, "", why);
  if (status == WEFT_OK) status = weft_openai_echo(gen, kind, root, why);
  if (status == WEFT_OK) status = read_longest(gen, root, why);
  if (status == WEFT_OK) status = read_choices(gen, kind, root, why);
  if (status == WEFT_OK) status = weft_openai_mode(gen, field_of(root, "mode"), "mode", why);
  if (status == WEFT_OK) status = weft_openai_diffusion(gen, field_of(root, "diffusion"), "diffusion", why);
  if (status == WEFT_OK) status = weft_openai_format(gen, root, why);
  if (status == WEFT_OK) status = weft_openai_stop(gen, field_of(root, "stop"), "stop", why);
  if (status == WEFT_OK) status = read_bias(gen, field_of(root, "logit_bias"), why);
  if (status == WEFT_OK) status = read_logprobs(gen, kind, root, why);
  if (status == WEFT_OK) status = read_stream(gen, root, why);
  if (status == WEFT_OK) status = weft_openai_limits(gen, root, why);
  return status == WEFT_OK ? weft_openai_read_prompt_logprobs(gen, root, why) : status;
}

/* The conversation, and what a template does with it. */
static weft_status read_chat(weft_gen *gen, const json_t *root, weft_refusal *why) {
  const json_t *messages = json_object_get(root, "messages");
  weft_status status = weft_openai_messages(gen, messages, gen->prompt, why);
  if (status == WEFT_OK) status = weft_openai_variables(gen, root, gen->prompt, why);
  if (status == WEFT_OK) status = weft_openai_turn(root, gen->prompt, why);
  if (status == WEFT_OK) status = weft_openai_tools(gen, field_of(root, "tools"), messages, gen->prompt, why);
  return status == WEFT_OK ? weft_openai_tool_choice(gen, root, gen->prompt, why) : status;
}

static weft_status read_body(weft_gen *gen, weft_openai_kind kind, const json_t *root, weft_refusal *why) {
  gen->prompt = weft_gen_alloc(gen, 1, sizeof *gen->prompt);
  gen->n_prompts = 1;
  if (gen->prompt == NULL) return field_no_memory(why);
  weft_status status = read_values(gen, kind, root, why);
  if (status != WEFT_OK) return status;
  status = kind == WEFT_OPENAI_CHAT ? read_chat(gen, root, why) : read_prompts(gen, field_of(root, "prompt"), why);
  if (status == WEFT_OK && gen->n_prompts * gen->wanted.n_choices > WEFT_ANSWERS_MAX) {
    return weft_refuse(why, 400, "invalid_value", "n", "%u prompts times %s = %u are more than %d answers",
                       gen->n_prompts, gen->params.score ? "best_of" : "n", gen->wanted.n_choices, WEFT_ANSWERS_MAX);
  }
  return status;
}

static weft_status parse_body(weft_openai_kind kind, const char *body, size_t n, const weft_body_rules *rules,
                              weft_gen *gen, weft_refusal *why) {
  weft_status status = weft_gen_open(gen, body, n, rules, why);
  if (status != WEFT_OK) return status;
  status = read_body(gen, kind, gen->json, why);
  if (status != WEFT_OK) weft_gen_close(gen);
  return status;
}

weft_status weft_openai_parse_chat(const char *body, size_t n, const weft_body_rules *rules, weft_gen *gen,
                                   weft_refusal *why) {
  return parse_body(WEFT_OPENAI_CHAT, body, n, rules, gen, why);
}

weft_status weft_openai_parse_completions(const char *body, size_t n, const weft_body_rules *rules, weft_gen *gen,
                                          weft_refusal *why) {
  return parse_body(WEFT_OPENAI_COMPLETIONS, body, n, rules, gen, why);
}
