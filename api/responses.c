/* SPDX-License-Identifier: MIT */
/* How /v1/responses answers: responses, their events, and those that were kept. */
#include "api/responses.h"

#include <stdlib.h>
#include <string.h>

#include "api/json.h"
#include "api/sse.h"
#include "base/memory.h"

/* ---- one answer ---- */

/* The item that a stream is in. */
typedef enum item_kind { NO_ITEM, REASONING, MESSAGE } item_kind;

typedef struct response_answer {
  weft_responses *store; /* NULL: it is not kept */
  uint32_t tenant;
  weft_text echo, items;              /* of the request (api/responses.h) */
  weft_text text, thinking, logprobs; /* of the answer so far */
  item_kind item;
  uint32_t n_events;
} response_answer;

static void close_own(void *self) {
  response_answer *r = self;
  weft_text_free(&r->echo);
  weft_text_free(&r->items);
  weft_text_free(&r->text);
  weft_text_free(&r->thinking);
  weft_text_free(&r->logprobs);
  weft_free(r);
}

/* Takes what was not sent yet. */
static void keep_chunk(response_answer *r, const weft_choice *c) {
  weft_text_append(&r->thinking, c->thinking.bytes, c->thinking.n);
  weft_text_append(&r->text, c->text.bytes, c->text.n);
  if (c->n_logprobs == 0) return;
  if (r->logprobs.n > 0) weft_text_puts(&r->logprobs, ",");
  weft_text_append(&r->logprobs, c->logprobs[0].bytes, c->logprobs[0].n);
}

/* ---- parts of a response ---- */

/* resp_X, msg_X and rs_X are one answer's. */
static void put_id(const weft_answer *a, const char *prefix, weft_text *out) {
  weft_text id = {0};
  weft_text_printf(&id, "%s%s", prefix, a->id + strlen(a->dialect->id_prefix));
  weft_json_string(out, id.bytes, id.n);
  weft_text_free(&id);
}

static void put_string(const weft_text *text, weft_text *out) {
  weft_json_string(out, text->bytes, text->n);
}

static void put_part(const response_answer *r, bool done, weft_text *out) {
  weft_text_puts(out, "{\"type\":\"output_text\",\"text\":");
  if (done) {
    put_string(&r->text, out);
  } else {
    weft_text_puts(out, "\"\"");
  }
  weft_text_puts(out, ",\"annotations\":[],\"logprobs\":[");
  if (done) weft_text_append(out, r->logprobs.bytes, r->logprobs.n);
  weft_text_puts(out, "]}");
}

static const char *status_of(const weft_answer *a) {
  return strcmp(a->choice->finish, "length") == 0 ? "incomplete" : "completed";
}

static void put_message(const weft_answer *a, bool done, weft_text *out) {
  weft_text_puts(out, "{\"type\":\"message\",\"id\":");
  put_id(a, "msg_", out);
  weft_text_printf(out, ",\"status\":\"%s\",\"role\":\"assistant\",\"content\":[", done ? status_of(a) : "in_progress");
  if (done) put_part(a->own, true, out);
  weft_text_puts(out, "]}");
}

static void put_reasoning(const weft_answer *a, bool done, weft_text *out) {
  const response_answer *r = a->own;
  weft_text_puts(out, "{\"type\":\"reasoning\",\"id\":");
  put_id(a, "rs_", out);
  weft_text_puts(out, ",\"summary\":[],\"content\":[");
  if (done) {
    weft_text_puts(out, "{\"type\":\"reasoning_text\",\"text\":");
    put_string(&r->thinking, out);
    weft_text_puts(out, "}");
  }
  weft_text_puts(out, "]}");
}

static void put_usage(const weft_answer *a, weft_text *out) {
  weft_answer_usage u = weft_answer_get_usage(a);
  weft_text_printf(out, "{\"input_tokens\":%llu,\"input_tokens_details\":{\"cached_tokens\":%llu},",
                   (unsigned long long)u.prompt, (unsigned long long)u.cached);
  weft_text_printf(out, "\"output_tokens\":%llu,\"output_tokens_details\":{\"reasoning_tokens\":%llu},",
                   (unsigned long long)u.completion, (unsigned long long)u.thinking);
  weft_text_printf(out, "\"total_tokens\":%llu}", (unsigned long long)(u.prompt + u.completion));
}

/* why: it failed; else done: it is whole; else it has just begun. */
static void put_response(const weft_answer *a, bool done, const weft_refusal *why, weft_text *out) {
  const response_answer *r = a->own;
  const char *status = why != NULL ? "failed" : done ? status_of(a) : "in_progress";
  weft_text_puts(out, "{\"id\":");
  weft_json_words(out, a->id);
  weft_text_printf(
      out, ",\"object\":\"response\",\"created_at\":%lld,\"status\":\"%s\",\"model\":", (long long)a->created, status);
  weft_json_words(out, a->model);
  weft_text_puts(out, ",\"error\":");
  if (why != NULL) {
    weft_text_printf(out, "{\"code\":\"%s\",\"message\":", why->http == 429 ? "rate_limit_exceeded" : "server_error");
    weft_json_words(out, why->message);
    weft_text_puts(out, "}");
  } else {
    weft_text_puts(out, "null");
  }
  weft_text_printf(out, ",\"incomplete_details\":%s,",
                   strcmp(status, "incomplete") == 0 ? "{\"reason\":\"max_output_tokens\"}" : "null");
  weft_text_append(out, r->echo.bytes, r->echo.n);
  weft_text_puts(out, "\"output\":[");
  if (done && r->thinking.n > 0) {
    put_reasoning(a, true, out);
    weft_text_puts(out, ",");
  }
  if (done) put_message(a, true, out);
  weft_text_puts(out, "],\"usage\":");
  if (done) {
    put_usage(a, out);
  } else {
    weft_text_puts(out, "null");
  }
  weft_text_puts(out, "}");
}

/* The whole response, kept for whoever asks for it or continues it. */
static void put_done(const weft_answer *a, weft_text *out) {
  response_answer *r = a->own;
  size_t from = out->n;
  put_response(a, true, NULL, out);
  if (r->text.refused || r->thinking.refused || r->logprobs.refused) out->refused = true;
  if (r->store == NULL || out->refused) return;
  if (r->items.n > 0) weft_text_puts(&r->items, ",");
  if (r->thinking.n > 0) {
    put_reasoning(a, true, &r->items);
    weft_text_puts(&r->items, ",");
  }
  put_message(a, true, &r->items);
  const weft_text body = {.bytes = out->bytes + from, .n = out->n - from};
  weft_responses_put(r->store, r->tenant, a->id, &body, &r->items);
}

/* ---- events ---- */

static void begin_event(response_answer *r, const char *name, weft_text *out) {
  weft_sse_begin(out, name);
  weft_text_printf(out, "{\"type\":\"%s\",\"sequence_number\":%u", name, r->n_events++);
}

static void end_event(weft_text *out) {
  weft_text_puts(out, "}");
  weft_sse_end(out);
}

/* Reasoning comes before the message. */
static void put_place(const weft_answer *a, item_kind kind, weft_text *out) {
  const response_answer *r = a->own;
  weft_text_puts(out, ",\"item_id\":");
  put_id(a, kind == MESSAGE ? "msg_" : "rs_", out);
  weft_text_printf(out, ",\"output_index\":%d,\"content_index\":0", kind == MESSAGE && r->thinking.n > 0);
}

static void put_item_event(const weft_answer *a, item_kind kind, bool done, weft_text *out) {
  response_answer *r = a->own;
  begin_event(r, done ? "response.output_item.done" : "response.output_item.added", out);
  weft_text_printf(out, ",\"output_index\":%d,\"item\":", kind == MESSAGE && r->thinking.n > 0);
  if (kind == MESSAGE) {
    put_message(a, done, out);
  } else {
    put_reasoning(a, done, out);
  }
  end_event(out);
}

static void put_part_event(const weft_answer *a, bool done, weft_text *out) {
  begin_event(a->own, done ? "response.content_part.done" : "response.content_part.added", out);
  put_place(a, MESSAGE, out);
  weft_text_puts(out, ",\"part\":");
  put_part(a->own, done, out);
  end_event(out);
}

static void end_item(const weft_answer *a, weft_text *out) {
  response_answer *r = a->own;
  if (r->item == NO_ITEM) return;
  bool message = r->item == MESSAGE;
  begin_event(r, message ? "response.output_text.done" : "response.reasoning_text.done", out);
  put_place(a, r->item, out);
  weft_text_puts(out, ",\"text\":");
  put_string(message ? &r->text : &r->thinking, out);
  if (message) {
    weft_text_puts(out, ",\"logprobs\":[");
    weft_text_append(out, r->logprobs.bytes, r->logprobs.n);
    weft_text_puts(out, "]");
  }
  end_event(out);
  if (message) put_part_event(a, true, out);
  put_item_event(a, r->item, true, out);
  r->item = NO_ITEM;
}

static void begin_item(const weft_answer *a, item_kind kind, weft_text *out) {
  response_answer *r = a->own;
  if (r->item == kind) return;
  end_item(a, out);
  r->item = kind;
  put_item_event(a, kind, false, out);
  if (kind == MESSAGE) put_part_event(a, false, out);
}

static void put_delta(const weft_answer *a, item_kind kind, const weft_choice *c, weft_text *out) {
  begin_event(a->own, kind == MESSAGE ? "response.output_text.delta" : "response.reasoning_text.delta", out);
  put_place(a, kind, out);
  weft_text_puts(out, ",\"delta\":");
  put_string(kind == MESSAGE ? &c->text : &c->thinking, out);
  if (kind == MESSAGE) {
    weft_text_puts(out, ",\"logprobs\":[");
    weft_text_append(out, c->logprobs[0].bytes, c->logprobs[0].n);
    weft_text_puts(out, "]");
  }
  end_event(out);
}

static void put_begin(const weft_answer *a, const weft_choice *c, weft_text *out) {
  static const char *const names[] = {"response.created", "response.in_progress"};
  (void)c;
  for (int i = 0; i < 2; i++) {
    begin_event(a->own, names[i], out);
    weft_text_puts(out, ",\"response\":");
    put_response(a, false, NULL, out);
    end_event(out);
  }
}

/* Thinking that comes after the message has begun is in the last event alone. */
static void put_chunk(const weft_answer *a, const weft_choice *c, const char *finish, weft_text *out) {
  response_answer *r = a->own;
  bool thinks = c->thinking.n > 0 && r->item != MESSAGE;
  if (thinks) begin_item(a, REASONING, out);
  keep_chunk(r, c);
  if (thinks) put_delta(a, REASONING, c, out);
  if (c->text.n > 0 || c->n_logprobs > 0 || (finish != NULL && r->item != MESSAGE)) begin_item(a, MESSAGE, out);
  if (c->text.n > 0 || c->n_logprobs > 0) put_delta(a, MESSAGE, c, out);
  if (finish != NULL) end_item(a, out);
}

static void put_last(const weft_answer *a, weft_text *out) {
  bool cut = strcmp(status_of(a), "incomplete") == 0;
  begin_event(a->own, cut ? "response.incomplete" : "response.completed", out);
  weft_text_puts(out, ",\"response\":");
  put_done(a, out);
  end_event(out);
}

static void put_fault(const weft_answer *a, const weft_refusal *why, weft_text *out) {
  begin_event(a->own, "response.failed", out);
  weft_text_puts(out, ",\"response\":");
  put_response(a, false, why, out);
  end_event(out);
}

static void put_whole(const weft_answer *a, weft_text *out) {
  keep_chunk(a->own, a->choice);
  put_done(a, out);
}

static const weft_dialect responses = {.id_prefix = "resp_",
                                       .stream_type = WEFT_SSE_TYPE,
                                       .keeps_text = true,
                                       .logprobs = weft_openai_chat_logprobs,
                                       .begin = put_begin,
                                       .chunk = put_chunk,
                                       .last = put_last,
                                       .fault = put_fault,
                                       .whole = put_whole,
                                       .close = close_own};

/* ---- endpoints ---- */

static weft_status refuse_unknown(const char *id, const char *field, const char *code, weft_refusal *why) {
  return weft_refuse(why, 404, code, field, "no response has the id '%.64s': it never was, was deleted, or made room",
                     id);
}

/* Puts the conversation before it in front; *items is that conversation. On failure *gen is closed. */
static weft_status look_up(weft_server *s, uint32_t tenant, weft_gen *gen, weft_text *items, weft_refusal *why) {
  const char *id = json_string_value(field_of(gen->json, "previous_response_id"));
  if (id == NULL) return WEFT_OK;
  if (weft_responses_get(s->responses, tenant, id, NULL, items)) {
    return weft_responses_continue(gen, items, &s->json_limits, why);
  }
  (void)refuse_unknown(id, "previous_response_id", "previous_response_not_found", why);
  weft_gen_close(gen);
  return WEFT_E_INVALID;
}

void weft_handle_responses(weft_server *s, weft_exchange *x) {
  weft_gen gen;
  weft_refusal why;
  weft_text items = {0};
  uint32_t tenant = weft_exchange_note(x)->tenant;
  if (weft_dialect_read(s, x, weft_responses_parse, &gen) != WEFT_OK) return;
  if (look_up(s, tenant, &gen, &items, &why) != WEFT_OK) {
    weft_text_free(&items);
    weft_exchange_refuse(x, &why);
    return;
  }
  response_answer *r = weft_alloc(1, sizeof *r);
  if (r != NULL) {
    bool stored = !json_is_false(json_object_get(gen.json, "store"));
    *r = (response_answer){.store = stored ? s->responses : NULL, .tenant = tenant, .items = items};
    items = (weft_text){0};
    if (r->items.n > 0) weft_text_puts(&r->items, ",");
    if (stored) weft_responses_put_items(&gen, &r->items);
    weft_responses_put_echo(&gen, &r->echo);
    gen.params.kept_bytes = r->items.n + r->echo.n;
    if (r->items.refused || r->echo.refused) {
      close_own(r);
      r = NULL; /* refused as no memory */
    }
  }
  weft_text_free(&items);
  weft_dialect_start(s, x, &responses, &gen, r);
}

static const char *id_of(const weft_exchange *x) {
  return weft_exchange_path(x) + strlen("/v1/responses/");
}

void weft_handle_response(weft_server *s, weft_exchange *x) {
  weft_text body = {0};
  weft_refusal why;
  if (weft_responses_get(s->responses, weft_exchange_note(x)->tenant, id_of(x), &body, NULL)) {
    weft_exchange_answer(x, 200, "application/json", &body);
    return;
  }
  (void)refuse_unknown(id_of(x), NULL, "response_not_found", &why);
  weft_exchange_refuse(x, &why);
}

void weft_handle_response_delete(weft_server *s, weft_exchange *x) {
  weft_text body = {0};
  weft_refusal why;
  if (!weft_responses_delete(s->responses, weft_exchange_note(x)->tenant, id_of(x))) {
    (void)refuse_unknown(id_of(x), NULL, "response_not_found", &why);
    weft_exchange_refuse(x, &why);
    return;
  }
  weft_text_puts(&body, "{\"id\":");
  weft_json_words(&body, id_of(x));
  weft_text_puts(&body, ",\"object\":\"response\",\"deleted\":true}");
  weft_exchange_answer(x, 200, "application/json", &body);
}
