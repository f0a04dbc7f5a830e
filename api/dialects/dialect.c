/* SPDX-License-Identifier: MIT */
#include "api/dialects/dialect.h"

#include <stdio.h>
#include <string.h>

weft_status weft_dialect_read(weft_server *s, weft_exchange *x, weft_parser parse, weft_gen *gen) {
  weft_refusal why;
  size_t n;
  const char *body = weft_exchange_body(x, &n);
  weft_status status = atomic_load(&s->draining) ? weft_refuse_status(&why, WEFT_FULL, "", true)
                                                 : parse(body, n, &s->json_limits, gen, &why);
  if (status != WEFT_OK) weft_exchange_refuse(x, &why);
  return status;
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

weft_status weft_dialect_open(const char *body, size_t n, const weft_json_size *limits, const field_row *rows,
                              size_t n_rows, weft_rest_reader rest, weft_gen *gen, weft_refusal *why) {
  json_t *root;
  memset(gen, 0, sizeof *gen);
  weft_status status = weft_openai_load(body, n, limits, &root, why);
  if (status != WEFT_OK) return status;
  gen->json = root;
  gen->n_prompts = gen->n_choices = gen->n_given = 1;
  weft_generate_defaults(&gen->params);
  gen->prompt = weft_gen_alloc(gen, 1, sizeof *gen->prompt);
  status = gen->prompt == NULL ? field_no_memory(why) : fields_read(gen, rows, n_rows, root, "", why);
  if (status == WEFT_OK && rest != NULL) status = rest(gen, why);
  if (status != WEFT_OK) weft_gen_close(gen);
  return status;
}

weft_status weft_dialect_effort(weft_gen *gen, const json_t *value, const char *field, weft_refusal *why) {
  static const char *const words[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
  const char *word = json_string_value(value);
  for (size_t i = 0; word != NULL && i < sizeof words / sizeof *words; i++) {
    if (strcmp(words[i], word) != 0) continue;
    weft_text text = {0};
    weft_text_printf(&text, "{\"reasoning_effort\":\"%s\"}", word);
    weft_status status = weft_dialect_keep(gen, &text, &gen->prompt->variables, why);
    weft_text_free(&text);
    return status;
  }
  return field_wrong(why, field, "none, minimal, low, medium, high, xhigh or max");
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
  if (gen->params.tool_choice == WEFT_TOOLS_NONE) prompt.n_tools = 0; /* nor does the answer's prompt have them */
  if (status == WEFT_OK) status = prompt_encode(model, &prompt, &prompt_to_answer, out, &error);
  return status == WEFT_OK ? WEFT_OK : weft_refuse_status(why, status, error.text, false);
}
