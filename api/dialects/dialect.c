/* SPDX-License-Identifier: MIT */
#include "api/dialects/dialect.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "api/dialects/places.h"
#include "model/text/json_tree.h"
#include "api/dialects/field_tables.h"
#include "api/served_names.h"

/* What depends on the model: the way of writing that a tag behind its name asks for, and whether it can think. */
static weft_status ask_model(const weft_server *s, weft_gen *gen, weft_refusal *why) {
  static const struct {
    const char *tag;
    weft_mode mode;
  } rows[] = {{":diffusion", WEFT_MODE_DIFFUSION}, {":autoregressive", WEFT_MODE_AUTOREGRESSIVE}};
  weft_mode *mode = &gen->params.mode;
  weft_error error = {{0}};
  uint32_t index;
  const char *name = gen->params.model;
  const weft_served_model *m = weft_runtime_model(s->runtime, name, &index, &error);
  if (m == NULL) return WEFT_OK; /* refused later, by its name */
  const char *tag = name == NULL || served_names_fit(m, name) ? NULL : served_names_tag(name);
  for (size_t i = 0; i < FIELDS_COUNT(rows) && tag != NULL; i++) {
    if (strcasecmp(tag, rows[i].tag) != 0) continue;
    if (*mode != WEFT_MODE_AUTO && *mode != rows[i].mode) {
      return weft_refuse(
          why, 400, "invalid_value", "mode",
          "mode is \"%s\", and model is '%.64s', which asks for the other way of writing: say one of them",
          rows[1 - i].tag + 1, name);
    }
    *mode = rows[i].mode;
  }
  for (uint32_t i = 0; i < gen->n_prompts && gen->may_think; i++) {
    gen->prompt[i].thinking = gen->prompt[i].thinking || (m->chat != NULL && weft_chat_can_think(m->chat));
  }
  return WEFT_OK;
}

/* A window of no tokens turns penalties off. */
static void close_window(weft_sampling *s) {
  if (s->penalty_window != UINT32_MAX) return;
  s->penalty_window = 0;
  s->repetition_penalty = 1.0f;
  s->presence_penalty = s->frequency_penalty = 0.0f;
}

weft_status weft_dialect_read(weft_server *s, weft_exchange *x, weft_parser parse, weft_gen *gen) {
  weft_refusal why;
  size_t n;
  const char *body = weft_exchange_body(x, &n);
  weft_status status = atomic_load(&s->draining) ? weft_refuse_status(&why, WEFT_FULL, "", true)
                                                 : parse(body, n, &s->body_rules, gen, &why);
  if (status == WEFT_OK) {
    status = ask_model(s, gen, &why);
    if (status != WEFT_OK) weft_gen_close(gen);
  }
  if (status != WEFT_OK) {
    weft_exchange_refuse(x, &why);
    return status;
  }
  close_window(&gen->params.sampling);
  return WEFT_OK;
}

void weft_dialect_start(weft_server *s, weft_exchange *x, const weft_dialect *dialect, weft_gen *gen, void *own) {
  weft_answer_config config = {.runtime = s->runtime,
                               .dialect = dialect,
                               .gen = gen,
                               .tenant = weft_exchange_note(x)->tenant,
                               .draining = &s->draining,
                               .own = own};
  weft_answer_start(&config, x);
  weft_gen_close(gen);
}

weft_status weft_dialect_open(const char *body, size_t n, const weft_body_rules *rules, const field_table *table,
                              weft_rest_reader rest, weft_gen *gen, weft_refusal *why) {
  weft_status status = weft_gen_open(gen, body, n, rules, why);
  if (status != WEFT_OK) return status;
  gen->prompt = weft_gen_alloc(gen, 1, sizeof *gen->prompt);
  status = gen->prompt == NULL ? field_no_memory(why) : fields_read(gen, table, gen->json, "", why);
  if (status == WEFT_OK && rest != NULL) status = rest(gen, why);
  if (status != WEFT_OK) weft_gen_close(gen);
  return status;
}

/* Words by which a client leaves it to the model how hard it thinks. */
static bool asks_for_no_effort(const char *word) {
  static const char *const words[] = {"", "default", "auto"};
  for (size_t i = 0; word != NULL && i < FIELDS_COUNT(words); i++) {
    if (strcmp(words[i], word) == 0) return true;
  }
  return false;
}

weft_status weft_dialect_effort(weft_gen *gen, const json_t *value, const char *field, weft_refusal *why) {
  static const char *const words[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
  const char *word = json_string_value(value);
  if (asks_for_no_effort(word)) return WEFT_OK;
  for (size_t i = 0; word != NULL && i < sizeof words / sizeof *words; i++) {
    if (strcmp(words[i], word) != 0) continue;
    weft_text text = {0};
    weft_text_printf(&text, "{\"reasoning_effort\":\"%s\"}", word);
    weft_status status = weft_dialect_keep(gen, &text, &gen->prompt->variables, why);
    weft_text_free(&text);
    return status;
  }
  return field_wrong(why, field, "none, minimal, low, medium, high, xhigh or max, or default: as the model does");
}

weft_status weft_dialect_think_so(weft_gen *gen, const json_t *value, const char *field, weft_refusal *why) {
  const char *word = json_string_value(value);
  if (asks_for_no_effort(word)) return WEFT_OK;
  gen->may_think = word == NULL || strcmp(word, "none") != 0;
  return weft_dialect_effort(gen, value, field, why);
}

weft_status weft_dialect_thinking(weft_gen *gen, const json_t *value, const char *field, weft_refusal *why) {
  bool on =
      field_is(value, "type", "enabled") || field_is(value, "type", "adaptive") || field_is(value, "type", "auto");
  if (!on && !field_is(value, "type", "disabled")) {
    return field_wrong(why, field, "an object of type enabled, adaptive or disabled");
  }
  gen->may_think = on;
  return WEFT_OK;
}

weft_status weft_dialect_window(weft_gen *gen, const json_t *value, const char *field, weft_refusal *why) {
  json_int_t n = 0;
  if (!field_whole(value, &n) || n < -1 || n > INT32_MAX) return field_wrong(why, field, "a whole number from -1");
  gen->params.sampling.penalty_window = n < 0 ? 0 : n == 0 ? UINT32_MAX : (uint32_t)n;
  return WEFT_OK;
}

/* ---- drafts, as vLLM's speculative_config ---- */

#define DRAFT_AT(field) offsetof(weft_gen, params.draft.field)

static weft_status read_draft_method(weft_gen *gen, const json_t *value, const char *field, weft_refusal *why) {
  (void)gen;
  static const char *const known[] = {"ngram", "draft_model", "mtp", "qwen3_next_mtp", "qwen3_5_mtp"};
  const char *method = json_is_string(value) ? json_string_value(value) : "";
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if (strcmp(method, known[i]) == 0) return WEFT_OK;
  return weft_refuse(why, 400, "unsupported", field,
                     "%s: drafts come from where the server has them, a request's own text (\"ngram\"), a model "
                     "(\"draft_model\") or a layer of its file (\"mtp\")",
                     field);
}

/* 0: none. */
static weft_status read_draft_number(weft_gen *gen, const json_t *value, const char *field, weft_refusal *why) {
  const weft_range range = {WEFT_RANGE_DRAFTS};
  char allowed[WEFT_RANGE_TEXT];
  json_int_t n = json_integer_value(value);
  if (!json_is_integer(value)) return field_wrong(why, field, "a whole number");
  if (n != 0 && !weft_range_has(&range, (double)n))
    return weft_refuse(why, 400, "invalid_value", field, "%s is %lld; it must be %s, or 0: none", field, (long long)n,
                       weft_range_text(&range, allowed));
  gen->params.draft.n_max = (uint32_t)n;
  return WEFT_OK;
}

static const field_row draft_rows[] = {
    {.name = "method",
     .kind = FIELD_READ,
     .what = "ngram, draft_model or mtp: each asks for what the server has",
     .read = read_draft_method},
    {.name = "num_speculative_tokens",
     .kind = FIELD_READ,
     .what = "most drafts of a step, where that is fewer than the server's; 0: none",
     .read = read_draft_number},
    {.name = "prompt_lookup_max",
     .kind = FIELD_U32,
     .what = "most tokens that must be the same",
     .at = DRAFT_AT(ngram_most),
     .range = {WEFT_RANGE_NGRAM}},
    {.name = "prompt_lookup_min",
     .kind = FIELD_U32,
     .what = "least tokens that must be the same",
     .at = DRAFT_AT(ngram_least),
     .range = {WEFT_RANGE_NGRAM}},
    {.name = "model", .kind = FIELD_REFUSED, .what = "a model that drafts is none of the request's choice"},
    {.name = "disable_by_batch_size", .kind = FIELD_MET, .what = "there are drafts where they gain"},
};
const field_table draft_fields = FIELD_TABLE("speculative_config, in every dialect", draft_rows);

weft_status weft_dialect_drafts(weft_gen *gen, const json_t *value, const char *field, weft_refusal *why) {
  weft_draft *d = &gen->params.draft;
  char prefix[64];
  (void)snprintf(prefix, sizeof prefix, "%s.", field);
  if (!json_is_object(value)) return field_wrong(why, field, "an object");
  d->kind = WEFT_DRAFT_NGRAM;
  weft_status status = fields_read(gen, &draft_fields, value, prefix, why);
  if (status != WEFT_OK) return status;
  const json_t *n = field_of(value, "num_speculative_tokens");
  if (n != NULL && json_integer_value(n) == 0) d->kind = WEFT_DRAFT_OFF;
  if (d->ngram_least == 0 || d->ngram_most == 0 || d->ngram_least <= d->ngram_most) return WEFT_OK;
  return weft_refuse(why, 400, "invalid_value", "speculative_config.prompt_lookup_min",
                     "speculative_config.prompt_lookup_min is %u and prompt_lookup_max %u: it may be at most that",
                     d->ngram_least, d->ngram_most);
}

weft_status weft_dialect_variables(weft_gen *gen, const json_t *object, const char **variables, weft_refusal *why) {
  weft_text text = {0};
  if (*variables == NULL) return field_json(gen, object, variables, why);
  weft_text_append(&text, *variables, strlen(*variables) - 1); /* where a name comes twice the later one counts */
  weft_text_puts(&text, ",");
  size_t at = text.n;
  weft_json_write(object, &text);
  if (!text.refused) text.bytes[at] = ' ';
  weft_status status = weft_dialect_keep(gen, &text, variables, why);
  weft_text_free(&text);
  return status;
}

weft_status weft_dialect_text(weft_gen *gen, const json_t *content, const char *field, const char *must_be,
                              weft_part_reader read_part, const char **out, weft_refusal *why) {
  *out = json_string_value(content);
  if (*out != NULL) return WEFT_OK;
  if (!json_is_array(content)) return field_wrong(why, field, must_be);
  weft_text text = {0};
  weft_status status = WEFT_OK;
  for (size_t i = 0; i < json_array_size(content) && status == WEFT_OK; i++) {
    char name[112];
    (void)snprintf(name, sizeof name, "%.88s[%zu]", field, i);
    status = read_part(gen, json_array_get(content, i), name, &text, why);
  }
  if (status == WEFT_OK) status = weft_dialect_keep(gen, &text, out, why);
  weft_text_free(&text);
  return status;
}

weft_status weft_dialect_keep(weft_gen *gen, const weft_text *text, const char **out, weft_refusal *why) {
  char *kept = weft_text_status(text) == WEFT_OK ? weft_gen_alloc(gen, text->n + 1, 1) : NULL;
  if (kept == NULL) return field_no_memory(why);
  if (text->n > 0) memcpy(kept, text->bytes, text->n);
  *out = kept;
  return WEFT_OK;
}

weft_status weft_dialect_encode(const weft_server *s, const weft_gen *gen, encoded_prompt *out, weft_refusal *why) {
  weft_error error = {{0}};
  uint32_t index;
  const weft_served_model *model = weft_runtime_model(s->runtime, gen->params.model, &index, &error);
  weft_status status = model == NULL ? WEFT_E_NOT_FOUND : WEFT_OK;
  weft_prompt prompt = *gen->prompt;
  const prompt_form form = prompt_form_of(gen->params.tool_choice);
  if (gen->params.tool_choice == WEFT_TOOLS_NONE) prompt.n_tools = 0; /* nor does the answer's prompt have them */
  if (status == WEFT_OK) status = prompt_encode(model, &prompt, &form, out, &error);
  if (status == WEFT_OK) return WEFT_OK;
  (void)weft_refuse_status(why, status, error.text, false);
  places_name(gen, why);
  return WEFT_E_INVALID;
}
