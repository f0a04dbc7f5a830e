/* SPDX-License-Identifier: MIT */
/* The prompt in an answer: OpenAI's echo, which gives it back in front of the text, with its logprobs where those of
 * the text are asked for; and vLLM's prompt_logprobs, a list beside the answer. */
#include <math.h>

#include "api/dialects/fields.h"
#include "api/dialects/openai.h"
#include "api/json.h"

weft_status weft_openai_echo(weft_gen *gen, weft_openai_kind kind, const json_t *root, weft_refusal *why) {
  const json_t *most = field_of(root, "max_tokens");
  weft_status status = field_flag(root, "echo", &gen->params.echo, why);
  if (status != WEFT_OK || !gen->params.echo) return status;
  if (kind != WEFT_OPENAI_COMPLETIONS) {
    return weft_refuse(why, 400, "unsupported", "echo", "echo belongs to /v1/completions");
  }
  json_int_t longest = 1;
  gen->params.prompt_only = field_whole(most, &longest) && longest == 0;
  return WEFT_OK;
}

weft_status weft_openai_read_prompt_logprobs(weft_gen *gen, const json_t *root, weft_refusal *why) {
  static const field_row row = {.name = "prompt_logprobs",
                                .kind = FIELD_U32,
                                .at = offsetof(weft_gen, wanted.n_prompt_logprobs),
                                .range = {WEFT_RANGE_TOP_LOGPROBS}};
  weft_generate_params *p = &gen->params;
  const json_t *value = field_of(root, row.name);
  weft_status status = value == NULL ? WEFT_OK : field_read(gen, &row, value, row.name, why);
  if (status != WEFT_OK) return status;
  gen->wanted.prompt_logprobs = value != NULL;
  if (gen->wanted.prompt_logprobs && gen->wanted.stream) {
    return weft_refuse(why, 400, "invalid_value", row.name,
                       "prompt_logprobs is part of a whole answer: leave it or stream out");
  }
  p->prompt_logprobs = gen->wanted.prompt_logprobs || (p->echo && p->sampling.logprobs);
  p->n_prompt_top = gen->wanted.n_prompt_logprobs;
  if (p->echo && p->sampling.n_top_logprobs > p->n_prompt_top) p->n_prompt_top = p->sampling.n_top_logprobs;
  return WEFT_OK;
}

/* A token at a place, by its id. */
static void put_entry(const weft_token_logprob *t, weft_text *out) {
  weft_text_puts(out, "\"");
  weft_json_int(out, t->token);
  weft_text_puts(out, "\":{\"logprob\":");
  weft_json_real(out, (double)t->logprob < -9999.0 ? -9999.0 : (double)t->logprob);
  if (t->rank > 0) {
    weft_text_puts(out, ",\"rank\":");
    weft_json_int(out, t->rank);
  } else {
    weft_text_puts(out, ",\"rank\":null");
  }
  weft_text_puts(out, ",\"decoded_token\":");
  weft_json_string(out, t->bytes, t->n_bytes);
  weft_text_puts(out, "}");
}

/* The prompt's own token, then the likeliest ones without it. */
static void put_place(const weft_answer *a, const weft_delta *part, uint32_t i, weft_text *out) {
  const weft_token_logprob *own = &part->logprobs[i];
  if (isnan(own->logprob)) {
    weft_text_puts(out, "null");
    return;
  }
  weft_text_puts(out, "{");
  put_entry(own, out);
  for (uint32_t k = 0; k < part->n_top[i] && k < a->wanted.n_prompt_logprobs; k++) {
    const weft_token_logprob *t = &part->top_logprobs[(size_t)i * part->top_stride + k];
    if (t->token == own->token) continue;
    weft_text_puts(out, ",");
    put_entry(t, out);
  }
  weft_text_puts(out, "}");
}

void weft_openai_prompt_part(const weft_answer *a, weft_choice *c, const weft_delta *part) {
  for (uint32_t i = 0; i < part->n_tokens; i++) {
    if (c->prompt_places.n > 0) weft_text_puts(&c->prompt_places, ",");
    put_place(a, part, i, &c->prompt_places);
  }
}

void weft_openai_prompt_logprobs(const weft_answer *a, const weft_choice *c, weft_pieces *out) {
  const weft_text *places = &weft_answer_first(a, c)->prompt_places;
  if (!a->wanted.prompt_logprobs) return;
  weft_text_puts(&out->text, ",\"prompt_logprobs\":[");
  weft_pieces_raw(out, places->bytes, places->n);
  weft_text_puts(&out->text, "]");
}
