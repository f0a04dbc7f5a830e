/* SPDX-License-Identifier: MIT */
/* The envelope around the choices of both endpoints: id, model, usage, events. */
#include "api/dialects/openai.h"
#include "api/http/sse.h"
#include "api/json.h"

static void put_prompt_ids(const weft_choice *c, weft_pieces *out) {
  const int32_t *ids;
  uint32_t n = weft_prompt_tokens(c->generation, &ids);
  weft_text_puts(&out->text, ",\"prompt_token_ids\":[");
  weft_pieces_refer(out, PIECE_IDS, ids, n);
  weft_text_puts(&out->text, "]");
}

static void put_head(const weft_answer *a, const char *object, weft_text *out) {
  weft_text_puts(out, "{\"id\":");
  weft_json_words(out, a->id);
  weft_text_printf(out, ",\"object\":\"%s\",\"created\":%lld,\"model\":", object, (long long)a->created);
  weft_json_words(out, a->model);
  weft_text_printf(out, ",\"mode\":\"%s\"", weft_answer_mode_name(a));
}

static void put_usage(const weft_answer *a, weft_text *out) {
  weft_answer_usage u = weft_answer_get_usage(a);
  weft_text_printf(out, "{\"prompt_tokens\":%llu,\"completion_tokens\":%llu,\"total_tokens\":%llu",
                   (unsigned long long)u.prompt, (unsigned long long)u.completion,
                   (unsigned long long)(u.prompt + u.completion));
  weft_text_printf(out, ",\"prompt_tokens_details\":{\"cached_tokens\":%llu}", (unsigned long long)u.cached);
  weft_text_printf(out,
                   ",\"completion_tokens_details\":{\"reasoning_tokens\":%llu,\"canvases\":%llu,"
                   "\"denoise_steps\":%llu",
                   (unsigned long long)u.thinking, (unsigned long long)u.canvases, (unsigned long long)u.steps);
  if (u.drafted > 0)
    weft_text_printf(out, ",\"accepted_prediction_tokens\":%llu,\"rejected_prediction_tokens\":%llu",
                     (unsigned long long)u.accepted, (unsigned long long)(u.drafted - u.accepted));
  weft_text_puts(out, "}");
  if (u.draft_runs > 0)
    weft_text_printf(out,
                     ",\"draft_timings\":{\"runs\":%llu,\"draft_ms\":%.3f,\"verify_ms\":%.3f,\"commit_ms\":%.3f,"
                     "\"rollback_ms\":%.3f}",
                     (unsigned long long)u.draft_runs, (double)u.draft_us / 1e3, (double)u.verify_us / 1e3,
                     (double)u.commit_us / 1e3, (double)u.rollback_us / 1e3);
  weft_text_puts(out, "}");
}

/* One event with one choice in it. */
static void put_chunk(const weft_answer *a, const weft_choice *c, const char *finish, weft_pieces *pieces) {
  const weft_openai_form *form = a->dialect->form;
  weft_text *out = &pieces->text;
  weft_sse_begin(out, NULL);
  put_head(a, form->chunk_object, out);
  if (!c->begun && a->wanted.token_ids && !form->prompt_ids_in_choice) put_prompt_ids(c, pieces);
  weft_text_puts(out, ",\"choices\":[");
  form->chunk(a, c, finish, pieces);
  if (!c->begun && a->wanted.token_ids && form->prompt_ids_in_choice) put_prompt_ids(c, pieces);
  weft_text_puts(out, a->wanted.include_usage ? "}],\"usage\":null}" : "}]}");
  weft_sse_end(out);
}

static void put_begin(const weft_answer *a, const weft_choice *c, weft_pieces *out) {
  put_chunk(a, c, NULL, out);
}

/* A chunk without choices with more fields beside: clients that read every event as a chunk find nothing new in it. */
static void put_canvas(const weft_answer *a, const weft_choice *c, const weft_delta *d, weft_pieces *pieces) {
  weft_text *out = &pieces->text;
  weft_sse_begin(out, "replace");
  put_head(a, ((const weft_openai_form *)a->dialect->form)->chunk_object, out);
  weft_text_puts(out, a->wanted.include_usage ? ",\"choices\":[],\"usage\":null" : ",\"choices\":[]");
  weft_text_printf(out, ",\"index\":%u,\"block\":%u,\"step\":%u,\"text\":", c->index, d->block, d->step);
  weft_json_string(out, d->text, d->n_text);
  weft_text_printf(out, ",\"accepted\":%u,\"positions\":%u,\"stopped\":%s,\"temperature\":", d->accepted, d->n_tokens,
                   d->stopped ? "true" : "false");
  weft_json_real(out, (double)d->step_temperature);
  weft_text_puts(out, ",\"mean_entropy\":");
  weft_json_real(out, (double)d->mean_entropy);
  if (a->wanted.token_ids) {
    weft_text_puts(out, ",\"token_ids\":");
    weft_json_ids(out, d->tokens, d->n_tokens);
  }
  if (a->wanted.canvas_tokens) weft_openai_canvas_tokens(a, c, d, out);
  weft_text_puts(out, "}");
  weft_sse_end(out);
}

static void put_last(const weft_answer *a, weft_pieces *pieces) {
  weft_text *out = &pieces->text;
  if (a->wanted.include_usage) {
    weft_sse_begin(out, NULL);
    put_head(a, ((const weft_openai_form *)a->dialect->form)->chunk_object, out);
    weft_text_puts(out, ",\"choices\":[],\"usage\":");
    put_usage(a, out);
    weft_text_puts(out, "}");
    weft_sse_end(out);
  }
  weft_sse_done(out);
}

static void put_fault(const weft_answer *a, const weft_refusal *why, weft_pieces *pieces) {
  weft_text *out = &pieces->text;
  (void)a;
  weft_sse_begin(out, NULL);
  weft_refusal_json(why, out);
  weft_sse_end(out);
  weft_sse_done(out);
}

static const weft_choice *choice_at(const weft_answer *a, uint32_t index) {
  const weft_choice *c = a->choice;
  while (c->index != index) c++;
  return c;
}

static void put_whole(const weft_answer *a, weft_pieces *pieces) {
  const weft_openai_form *form = a->dialect->form;
  weft_text *out = &pieces->text;
  put_head(a, form->object, out);
  if (a->wanted.token_ids && !form->prompt_ids_in_choice) put_prompt_ids(&a->choice[0], pieces);
  weft_text_puts(out, ",\"choices\":[");
  for (uint32_t i = 0; i < a->n / a->wanted.n_choices * a->wanted.n_given; i++) {
    const weft_choice *c = choice_at(a, i);
    if (i > 0) weft_text_puts(out, ",");
    form->whole(a, c, pieces);
    if (a->wanted.token_ids && form->prompt_ids_in_choice) put_prompt_ids(c, pieces);
    weft_text_puts(out, "}");
  }
  weft_text_puts(out, "]");
  if (!form->prompt_ids_in_choice) weft_openai_prompt_logprobs(a, &a->choice[0], pieces);
  weft_text_puts(out, ",\"usage\":");
  put_usage(a, out);
  weft_text_puts(out, "}");
}

static void put_ping(const weft_answer *a, weft_text *out) {
  (void)a;
  weft_sse_comment(out);
}

const weft_dialect weft_openai_chat = {.id_prefix = "chatcmpl-",
                                       .stream_type = WEFT_SSE_TYPE,
                                       .logprobs = weft_openai_chat_logprobs,
                                       .prompt = weft_openai_prompt_part,
                                       .begin = put_begin,
                                       .chunk = put_chunk,
                                       .canvas = put_canvas,
                                       .last = put_last,
                                       .fault = put_fault,
                                       .ping = put_ping,
                                       .whole = put_whole,
                                       .form = &weft_openai_chat_form};

const weft_dialect weft_openai_completions = {.id_prefix = "cmpl-",
                                              .stream_type = WEFT_SSE_TYPE,
                                              .logprobs = weft_openai_completions_logprobs,
                                              .prompt = weft_openai_prompt_part,
                                              .begin = put_begin,
                                              .chunk = put_chunk,
                                              .canvas = put_canvas,
                                              .last = put_last,
                                              .fault = put_fault,
                                              .ping = put_ping,
                                              .whole = put_whole,
                                              .form = &weft_openai_completions_form};
