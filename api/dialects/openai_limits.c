/* SPDX-License-Identifier: MIT */
/* What vLLM's clients say beyond OpenAI's fields: what ends an answer, which tokens it may have, how much of the prompt is
 * kept and who shares its cache; and why an answer stopped. */
#include <limits.h>
#include <string.h>

#include "api/dialects/fields.h"
#include "api/dialects/openai.h"
#include "api/json.h"

static weft_status read_whole(const json_t *root, const char *name, json_int_t low, json_int_t high, json_int_t *out,
                              weft_refusal *why) {
  const json_t *value = field_of(root, name);
  if (value == NULL) return WEFT_OK;
  if (!field_whole(value, out)) return field_wrong(why, name, "a whole number");
  if (*out >= low && *out <= high) return WEFT_OK;
  return weft_refuse(why, 400, "invalid_value", name, "%s is %lld; it must be from %lld to %lld", name, (long long)*out,
                     (long long)low, (long long)high);
}

static weft_status read_ids(weft_gen *gen, const json_t *root, const char *name, const int32_t **out, uint32_t *n,
                            weft_refusal *why) {
  weft_prompt ids = {0};
  const json_t *list = field_of(root, name);
  if (list == NULL) return WEFT_OK;
  weft_status status = field_ids(gen, list, name, &ids, why);
  *out = ids.tokens;
  *n = ids.n_tokens;
  return status;
}

static weft_status read_words(weft_gen *gen, const json_t *list, weft_refusal *why) {
  if (list == NULL) return WEFT_OK;
  size_t n = json_array_size(list);
  if (!json_is_array(list) || n > UINT16_MAX) return field_wrong(why, "bad_words", "a list of words");
  const char **words = weft_gen_alloc(gen, n + 1, sizeof *words);
  if (words == NULL) return field_no_memory(why);
  for (size_t i = 0; i < n; i++) {
    words[i] = json_string_value(json_array_get(list, i));
    if (words[i] == NULL) return field_wrong(why, "bad_words", "a list of words");
  }
  gen->params.bad_words = words;
  gen->params.n_bad_words = (uint32_t)n;
  return WEFT_OK;
}

weft_status weft_openai_priority(weft_gen *gen, const json_t *value, const char *field, weft_refusal *why) {
  json_int_t rank = 0;
  if (value == NULL) return WEFT_OK;
  if (!field_whole(value, &rank) || rank < INT32_MIN || rank > INT32_MAX) {
    return field_wrong(why, field, "a whole number of 32 bits; the lower one starts first");
  }
  gen->params.priority = rank == INT32_MIN ? INT32_MAX : (int32_t)-rank;
  return WEFT_OK;
}

weft_status weft_openai_limits(weft_gen *gen, const json_t *root, weft_refusal *why) {
  weft_generate_params *p = &gen->params;
  json_int_t least = 0, kept = 0;
  const json_t *salt = field_of(root, "cache_salt"), *allowed = field_of(root, "allowed_token_ids");
  weft_status status = read_whole(root, "min_tokens", 0, UINT32_MAX, &least, why);
  if (status == WEFT_OK) status = read_whole(root, "truncate_prompt_tokens", -1, INT32_MAX, &kept, why);
  if (status == WEFT_OK) status = weft_openai_priority(gen, field_of(root, "priority"), "priority", why);
  if (status == WEFT_OK) status = field_flag(root, "include_stop_str_in_output", &p->keep_stop, why);
  if (status == WEFT_OK) status = read_ids(gen, root, "stop_token_ids", &p->stop_tokens, &p->n_stop_tokens, why);
  if (status == WEFT_OK)
    status = read_ids(gen, root, "allowed_token_ids", &p->allowed_tokens, &p->n_allowed_tokens, why);
  if (status == WEFT_OK) status = read_words(gen, field_of(root, "bad_words"), why);
  if (status != WEFT_OK) return status;
  if (kept == 0 && field_of(root, "truncate_prompt_tokens") != NULL)
    return field_wrong(why, "truncate_prompt_tokens", "-1, or at least 1");
  if (allowed != NULL && p->n_allowed_tokens == 0)
    return field_wrong(why, "allowed_token_ids", "a list of at least one token");
  if (salt != NULL && json_string_length(salt) == 0)
    return field_wrong(why, "cache_salt", "a string that is not empty");
  p->min_tokens = (uint32_t)least;
  p->truncate_prompt = (int32_t)kept;
  p->cache_salt = json_string_value(salt);
  return WEFT_OK;
}

weft_status weft_openai_turn(const json_t *root, weft_prompt *prompt, weft_refusal *why) {
  bool open = true, given = field_of(root, "add_generation_prompt") != NULL;
  weft_status status = field_flag(root, "continue_final_message", &prompt->continues, why);
  if (status == WEFT_OK) status = field_flag(root, "add_generation_prompt", &open, why);
  if (status != WEFT_OK) return status;
  if (prompt->continues && given && open) {
    return weft_refuse(why, 400, "invalid_value", "continue_final_message",
                       "continue_final_message and add_generation_prompt exclude each other: set the latter to false");
  }
  prompt->closed = !open && !prompt->continues;
  return WEFT_OK;
}

void weft_openai_stop_reason(const weft_choice *c, weft_text *out) {
  weft_text_puts(out, ",\"stop_reason\":");
  if (c->ended && c->stop_token >= 0) {
    weft_text_printf(out, "%d", c->stop_token);
  } else if (c->ended && c->stop != NULL) {
    weft_json_words(out, c->stop);
  } else {
    weft_text_puts(out, "null");
  }
}
