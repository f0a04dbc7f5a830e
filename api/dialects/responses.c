/* SPDX-License-Identifier: MIT */
/* How /v1/responses answers: responses, their events, and those that were kept. */
#include "api/dialects/responses.h"

#include <stdlib.h>
#include <string.h>

#include "api/http/sse.h"
#include "api/json.h"
#include "model/text/json_tree.h"
#include "base/memory.h"

/* ---- one answer ---- */

enum {
  ECHOES = 3
}; /* what a response repeats of its request: as it is kept, and in the two events that begin a stream */

typedef enum item_kind { NO_ITEM, REASONING, MESSAGE, CALL } item_kind;

typedef struct response_answer {
  weft_responses *store; /* NULL: it is not kept */
  uint32_t tenant;
  weft_text echo, items; /* of the request (api/dialects/responses.h) */
  weft_pieces output;    /* the items of the answer that are done, as members of a JSON list */
  uint32_t n_items;      /* of them */
  weft_text *said;       /* [n_said] texts and logprobs of items that are done, which output and events refer to */
  uint32_t n_said, said_capacity;
  /* Of a response that is kept: it and its conversation while they are formatted, and as far as they are. */
  bool keeps;
  weft_pieces body_pieces, items_pieces;
  weft_text body, all_items;
  item_kind item;      /* the one that is being made */
  weft_text text;      /* of it so far; of a call: its arguments */
  weft_text logprobs;  /* of a message, or of tokens that may yet become one */
  weft_text call;      /* of a call: its id and its name, as JSON members */
  weft_tool_kind tool; /* of a call: of which kind of tool */
  bool has_content;    /* a message or a call was begun */
  uint32_t n_events;
} response_answer;

static void close_own(void *self) {
  response_answer *r = self;
  for (uint32_t i = 0; i < r->n_said; i++) weft_text_free(&r->said[i]);
  weft_free(r->said);
  weft_pieces_free(&r->output);
  weft_pieces_free(&r->body_pieces);
  weft_pieces_free(&r->items_pieces);
  weft_text_free(&r->body);
  weft_text_free(&r->all_items);
  weft_text_free(&r->echo);
  weft_text_free(&r->items);
  weft_text_free(&r->text);
  weft_text_free(&r->logprobs);
  weft_text_free(&r->call);
  weft_free(r);
}

/* ---- items ---- */

static bool is_cut(const weft_answer *a) {
  return a->choice->finish != NULL && strcmp(a->choice->finish, "length") == 0;
}

/* How a call of each kind of tool is written. */
static const struct {
  const char *id, *type, *text, *delta, *done;
} call_forms[] = {[WEFT_TOOL_FUNCTION] = {"fc_", "function_call", "arguments", "response.function_call_arguments.delta",
                                          "response.function_call_arguments.done"},
                  [WEFT_TOOL_TEXT] = {"ctc_", "custom_tool_call", "input", "response.custom_tool_call_input.delta",
                                      "response.custom_tool_call_input.done"},
                  [WEFT_TOOL_SEARCH] = {"tsc_", "tool_search_call", "arguments", NULL, NULL}};

/* msg_X, rs_X and fc_X are of the answer resp_X; items after the first have their number behind it. */
static void put_item_id(const weft_answer *a, weft_text *out) {
  const response_answer *r = a->own;
  static const char *const prefixes[] = {"", "rs_", "msg_"};
  const char *prefix = r->item == CALL ? call_forms[r->tool].id : prefixes[r->item];
  weft_text id = {0};
  weft_text_printf(&id, "%s%s", prefix, a->id + strlen(a->dialect->id_prefix));
  if (r->n_items > 0) weft_text_printf(&id, "_%u", r->n_items);
  weft_json_string(out, id.bytes, id.n);
  out->refused = out->refused || id.refused;
  weft_text_free(&id);
}

/* Texts of items live until the answer is closed (`said`), so they are referred to in streams, too. */
static void put_said(const weft_text *text, weft_pieces *out) {
  weft_text_puts(&out->text, "\"");
  weft_pieces_refer(out, PIECE_STRING, text->bytes, text->n);
  weft_text_puts(&out->text, "\"");
}

static void put_part(const response_answer *r, weft_pieces *out) {
  weft_text_puts(&out->text, "{\"type\":\"output_text\",\"text\":");
  put_said(&r->text, out);
  weft_text_puts(&out->text, ",\"annotations\":[],\"logprobs\":[");
  weft_pieces_refer(out, PIECE_RAW, r->logprobs.bytes, r->logprobs.n);
  weft_text_puts(&out->text, "]}");
}

/* What the content of an item has in it. */
static void put_content(const response_answer *r, weft_pieces *out) {
  if (r->item == MESSAGE) {
    put_part(r, out);
  } else {
    weft_text_puts(&out->text, "{\"type\":\"reasoning_text\",\"text\":");
    put_said(&r->text, out);
    weft_text_puts(&out->text, "}");
  }
}

/* Only the item in which the answer ends may be cut off there. */
typedef enum item_state { ITEM_BEGUN, ITEM_DONE, ITEM_CUT } item_state;

static item_state last_state(const weft_answer *a) {
  return is_cut(a) ? ITEM_CUT : ITEM_DONE;
}

/* What a call holds; a search has an object. */
static void put_call(const response_answer *r, bool done, weft_pieces *pieces) {
  weft_text *out = &pieces->text;
  weft_text_append(out, r->call.bytes, r->call.n);
  weft_text_printf(out, ",\"%s\":", call_forms[r->tool].text);
  if (r->tool != WEFT_TOOL_SEARCH) {
    put_said(done ? &r->text : &(weft_text){0}, pieces);
    return;
  }
  json_t *whole = done && r->text.n > 0 ? weft_json_read(r->text.bytes, r->text.n, JSON_DECODE_ANY, NULL) : NULL;
  weft_text_append(out, whole != NULL ? r->text.bytes : "{}", whole != NULL ? r->text.n : 2);
  weft_text_puts(out, ",\"execution\":\"client\"");
  json_decref(whole);
}

/* The item as it begins, without content, or done. */
static void put_item(const weft_answer *a, item_state state, weft_pieces *pieces) {
  static const char *const types[] = {"", "reasoning", "message"}, *const states[] = {"in_progress", "completed",
                                                                                      "incomplete"};
  const response_answer *r = a->own;
  weft_text *out = &pieces->text;
  bool done = state != ITEM_BEGUN;
  weft_text_printf(out, "{\"type\":\"%s\",\"id\":", r->item == CALL ? call_forms[r->tool].type : types[r->item]);
  put_item_id(a, out);
  weft_text_printf(out, ",\"status\":\"%s\",", states[state]);
  if (r->item == CALL) {
    put_call(r, done, pieces);
  } else {
    weft_text_puts(out, r->item == MESSAGE ? "\"role\":\"assistant\",\"content\":[" : "\"summary\":[],\"content\":[");
    if (done) put_content(r, pieces);
    weft_text_puts(out, "]");
  }
  weft_text_puts(out, "}");
}

/* call: of an item that is one. */
static void begin_item(response_answer *r, item_kind kind, const weft_answer_call *call) {
  r->item = kind;
  r->has_content = r->has_content || kind != REASONING;
  if (kind != CALL) return;
  weft_text_puts(&r->call, "\"call_id\":");
  weft_json_words(&r->call, call->id);
  r->tool = call->origin == NULL ? WEFT_TOOL_FUNCTION : call->origin->kind;
  if (r->tool == WEFT_TOOL_SEARCH) return;
  weft_text_puts(&r->call, ",\"name\":");
  weft_json_words(&r->call, call->origin != NULL ? call->origin->name : call->name.bytes);
  if (call->origin == NULL || call->origin->group == NULL) return;
  weft_text_puts(&r->call, ",\"namespace\":");
  weft_json_words(&r->call, call->origin->group);
}

/* Keeps the text, which is empty afterwards. */
static void keep_said(response_answer *r, weft_text *text) {
  if (text->n == 0) return;
  weft_text *grown = weft_grow(r->said, r->n_said, &r->said_capacity, 4, sizeof *grown);
  if (grown == NULL) {
    r->output.text.refused = true; /* the answer ends here, with this text still in its place */
    return;
  }
  r->said = grown;
  r->said[r->n_said++] = *text;
  *text = (weft_text){0};
}

static void end_item(const weft_answer *a, item_state state) {
  response_answer *r = a->own;
  if (r->text.refused || r->logprobs.refused || r->call.refused) r->output.text.refused = true;
  if (r->n_items > 0) weft_text_puts(&r->output.text, ",");
  put_item(a, state, &r->output);
  r->n_items += 1;
  r->item = NO_ITEM;
  keep_said(r, &r->text);
  keep_said(r, &r->logprobs);
  weft_text_clear(&r->call);
}

static void add_logprobs(response_answer *r, const weft_choice *c) {
  if (c->n_logprobs == 0) return;
  if (r->logprobs.n > 0) weft_text_puts(&r->logprobs, ",");
  weft_text_append(&r->logprobs, c->logprobs[0].bytes, c->logprobs[0].n);
}

/* ---- responses ---- */

static void put_usage(const weft_answer *a, weft_text *out) {
  weft_answer_usage u = weft_answer_get_usage(a);
  weft_text_printf(out, "{\"input_tokens\":%llu,\"input_tokens_details\":{\"cached_tokens\":%llu},",
                   (unsigned long long)u.prompt, (unsigned long long)u.cached);
  weft_text_printf(out, "\"output_tokens\":%llu,\"output_tokens_details\":{\"reasoning_tokens\":%llu},",
                   (unsigned long long)u.completion, (unsigned long long)u.thinking);
  weft_text_printf(out, "\"total_tokens\":%llu}", (unsigned long long)(u.prompt + u.completion));
}

/* why: it failed; else done: all items are; else it has just begun. */
static void put_response(const weft_answer *a, bool done, const weft_refusal *why, weft_pieces *pieces) {
  const response_answer *r = a->own;
  weft_text *out = &pieces->text;
  bool cut = done && is_cut(a);
  weft_text_puts(out, "{\"id\":");
  weft_json_words(out, a->id);
  weft_text_printf(out, ",\"mode\":\"%s\"", weft_answer_mode_name(a));
  weft_text_printf(out,
                   ",\"object\":\"response\",\"created_at\":%lld,\"status\":\"%s\",\"model\":", (long long)a->created,
                   why != NULL ? "failed"
                   : !done     ? "in_progress"
                   : cut       ? "incomplete"
                               : "completed");
  weft_json_words(out, a->model);
  weft_text_puts(out, ",\"error\":");
  if (why != NULL) {
    weft_text_printf(out, "{\"code\":\"%s\",\"message\":", why->http == 429 ? "rate_limit_exceeded" : "server_error");
    weft_json_words(out, why->message);
    weft_text_puts(out, "}");
  } else {
    weft_text_puts(out, "null");
  }
  weft_text_printf(out, ",\"incomplete_details\":%s,", cut ? "{\"reason\":\"max_output_tokens\"}" : "null");
  weft_pieces_refer(pieces, PIECE_RAW, r->echo.bytes, r->echo.n);
  weft_text_puts(out, "\"output\":[");
  weft_pieces_add(pieces, &r->output);
  weft_text_puts(out, "],\"usage\":");
  if (done) {
    put_usage(a, out);
  } else {
    weft_text_puts(out, "null");
  }
  weft_text_puts(out, "}");
}

static void put_whole(const weft_answer *a, weft_pieces *out) {
  put_response(a, true, NULL, out);
}

/* Keeps the whole response for whoever asks for it or continues it, before the client hears of its end. True: that is
 * done. */
static bool settle_response(const weft_answer *a, int64_t *work) {
  response_answer *r = a->own;
  if (r->store == NULL || r->output.text.refused) return true;
  if (!r->keeps) {
    r->keeps = true;
    put_response(a, true, NULL, &r->body_pieces);
    weft_pieces_refer(&r->items_pieces, PIECE_RAW, r->items.bytes, r->items.n);
    if (r->items.n > 0 && r->n_items > 0) weft_text_puts(&r->items_pieces.text, ",");
    weft_pieces_add(&r->items_pieces, &r->output);
  }
  if (!weft_pieces_read(&r->body_pieces, &r->body, work)) return false;
  if (!weft_pieces_read(&r->items_pieces, &r->all_items, work)) return false;
  weft_responses_put(r->store, r->tenant, a->id, &r->body, &r->all_items);
  weft_text_free(&r->body);
  weft_text_free(&r->all_items);
  r->store = NULL;
  return true;
}

/* ---- events ---- */

static void open_event(response_answer *r, const char *name, weft_text *out) {
  weft_sse_begin(out, name);
  weft_text_printf(out, "{\"type\":\"%s\",\"sequence_number\":%u", name, r->n_events++);
}

static void close_event(weft_text *out) {
  weft_text_puts(out, "}");
  weft_sse_end(out);
}

/* An event of the item that is being made; the caller closes it. */
static void open_item_event(const weft_answer *a, const char *name, weft_text *out) {
  const response_answer *r = a->own;
  open_event(a->own, name, out);
  weft_text_puts(out, ",\"item_id\":");
  put_item_id(a, out);
  weft_text_printf(out, ",\"output_index\":%u%s", r->n_items, r->item == CALL ? "" : ",\"content_index\":0");
}

static void put_item_event(const weft_answer *a, item_state state, weft_pieces *pieces) {
  response_answer *r = a->own;
  weft_text *out = &pieces->text;
  open_event(r, state != ITEM_BEGUN ? "response.output_item.done" : "response.output_item.added", out);
  weft_text_printf(out, ",\"output_index\":%u,\"item\":", r->n_items);
  put_item(a, state, pieces);
  close_event(out);
}

static void put_part_event(const weft_answer *a, const char *name, weft_pieces *out) {
  open_item_event(a, name, &out->text);
  weft_text_puts(&out->text, ",\"part\":");
  put_part(a->own, out);
  close_event(&out->text);
}

/* The names of an item's events; NULL: it has none. */
static const char *name_of_done(const response_answer *r) {
  static const char *const names[] = {"", "response.reasoning_text.done", "response.output_text.done"};
  return r->item == CALL ? call_forms[r->tool].done : names[r->item];
}

static const char *name_of_delta(const response_answer *r) {
  static const char *const names[] = {"", "response.reasoning_text.delta", "response.output_text.delta"};
  return r->item == CALL ? call_forms[r->tool].delta : names[r->item];
}

/* Ends the item that the stream is in. */
static void put_item_end(const weft_answer *a, item_state state, weft_pieces *pieces) {
  response_answer *r = a->own;
  weft_text *out = &pieces->text;
  if (r->item == NO_ITEM) return;
  if (name_of_done(r) == NULL) {
    put_item_event(a, state, pieces);
    end_item(a, state);
    return;
  }
  open_item_event(a, name_of_done(r), out);
  weft_text_printf(out, ",\"%s\":", r->item == CALL ? call_forms[r->tool].text : "text");
  put_said(&r->text, pieces);
  if (r->item == CALL) {
    weft_text_puts(out, ",");
    weft_text_append(out, r->call.bytes, r->call.n);
  }
  if (r->item == MESSAGE) {
    weft_text_puts(out, ",\"logprobs\":[");
    weft_pieces_refer(pieces, PIECE_RAW, r->logprobs.bytes, r->logprobs.n);
    weft_text_puts(out, "]");
  }
  close_event(out);
  if (r->item == MESSAGE) put_part_event(a, "response.content_part.done", pieces);
  put_item_event(a, state, pieces);
  end_item(a, state);
  if (r->output.text.refused) out->refused = true;
}

static void put_item_begin(const weft_answer *a, item_kind kind, const weft_answer_call *call, weft_pieces *out) {
  response_answer *r = a->own;
  if (r->item == kind && kind != CALL) return;
  put_item_end(a, ITEM_DONE, out);
  begin_item(r, kind, call);
  put_item_event(a, ITEM_BEGUN, out);
  if (kind == MESSAGE) put_part_event(a, "response.content_part.added", out);
}

/* More of the item that the stream is in; c: of a message, whose logprobs are kept already. */
static void put_delta(const weft_answer *a, const weft_text *text, const weft_choice *c, weft_text *out) {
  response_answer *r = a->own;
  weft_text_append(&r->text, text->bytes, text->n);
  if (name_of_delta(r) == NULL) return;
  open_item_event(a, name_of_delta(r), out);
  weft_text_puts(out, ",\"delta\":");
  weft_json_string(out, text->bytes, text->n);
  if (c != NULL) {
    weft_text_puts(out, ",\"logprobs\":[");
    weft_text_append(out, c->logprobs[0].bytes, c->logprobs[0].n);
    weft_text_puts(out, "]");
  }
  close_event(out);
}

static void put_begin(const weft_answer *a, const weft_choice *c, weft_pieces *pieces) {
  static const char *const names[] = {"response.created", "response.in_progress"};
  weft_text *out = &pieces->text;
  (void)c;
  for (int i = 0; i < 2; i++) {
    open_event(a->own, names[i], out);
    weft_text_puts(out, ",\"response\":");
    put_response(a, false, NULL, pieces);
    close_event(out);
  }
}

/* What was not sent yet of the calls that the stream has begun, or of those that it has not. */
static void put_calls(const weft_answer *a, const weft_choice *c, bool begun, weft_pieces *out) {
  for (uint32_t i = 0; i < c->n_calls; i++) {
    const weft_answer_call *call = &c->call[i];
    if (call->begun != begun) continue;
    if (!begun) put_item_begin(a, CALL, call, out);
    if (call->arguments.n > 0) put_delta(a, &call->arguments, NULL, &out->text);
  }
}

/* Tokens without text belong to a message, unless they may be those of a call. */
static bool goes_on_with_message(const response_answer *r, const weft_choice *c) {
  return c->text.n > 0 || (c->n_logprobs > 0 && (r->item == MESSAGE || c->reader == NULL));
}

static void put_chunk(const weft_answer *a, const weft_choice *c, const char *finish, weft_pieces *out) {
  response_answer *r = a->own;
  put_calls(a, c, true, out); /* before the text of this chunk, which follows the call and ends its item */
  if (c->thinking.n > 0) {
    put_item_begin(a, REASONING, NULL, out);
    put_delta(a, &c->thinking, NULL, &out->text);
  }
  bool says = goes_on_with_message(r, c);
  if (says) put_item_begin(a, MESSAGE, NULL, out);
  add_logprobs(r, c);
  if (says) put_delta(a, &c->text, c, &out->text);
  put_calls(a, c, false, out);
  if (finish == NULL) return;
  if (!r->has_content) put_item_begin(a, MESSAGE, NULL, out);
  put_item_end(a, last_state(a), out);
}

static void put_last(const weft_answer *a, weft_pieces *pieces) {
  weft_text *out = &pieces->text;
  open_event(a->own, is_cut(a) ? "response.incomplete" : "response.completed", out);
  weft_text_puts(out, ",\"response\":");
  put_whole(a, pieces);
  close_event(out);
}

static void put_fault(const weft_answer *a, const weft_refusal *why, weft_pieces *pieces) {
  weft_text *out = &pieces->text;
  open_event(a->own, "response.failed", out);
  weft_text_puts(out, ",\"response\":");
  put_response(a, false, why, pieces);
  close_event(out);
}

static void put_ping(const weft_answer *a, weft_text *out) {
  (void)a;
  weft_sse_comment(out);
}

const weft_dialect weft_openai_responses = {.id_prefix = "resp_",
                                            .stream_type = WEFT_SSE_TYPE,
                                            .keeps_text = true,
                                            .whole_by_chunks = true,
                                            .logprobs = weft_openai_chat_logprobs,
                                            .begin = put_begin,
                                            .chunk = put_chunk,
                                            .last = put_last,
                                            .fault = put_fault,
                                            .ping = put_ping,
                                            .whole = put_whole,
                                            .settle = settle_response,
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
    return weft_responses_continue(gen, items, &s->body_rules, why);
  }
  (void)refuse_unknown(id, "previous_response_id", "previous_response_not_found", why);
  weft_gen_close(gen);
  return WEFT_E_INVALID;
}

/* On failure *gen is closed. */
static weft_status echo_request(weft_gen *gen, weft_text *echo, weft_refusal *why) {
  weft_responses_put_echo(gen, echo);
  if (echo->n <= WEFT_RESPONSES_ECHO_MAX) return WEFT_OK;
  (void)weft_refuse(why, 400, "invalid_value", NULL,
                    "what the response repeats of its request (instructions, metadata, tools and others) has %zu "
                    "bytes; it may have %d: shorten it",
                    echo->n, WEFT_RESPONSES_ECHO_MAX);
  weft_gen_close(gen);
  return WEFT_E_INVALID;
}

void weft_handle_responses(weft_server *s, weft_exchange *x) {
  weft_gen gen;
  weft_refusal why;
  weft_text items = {0}, echo = {0};
  uint32_t tenant = weft_exchange_note(x)->tenant;
  if (weft_dialect_read(s, x, weft_responses_parse, &gen) != WEFT_OK) return;
  if (echo_request(&gen, &echo, &why) != WEFT_OK || look_up(s, tenant, &gen, &items, &why) != WEFT_OK) {
    weft_text_free(&items);
    weft_text_free(&echo);
    weft_exchange_refuse(x, &why);
    return;
  }
  response_answer *r = weft_alloc(1, sizeof *r);
  if (r != NULL) {
    bool stored = !json_is_false(json_object_get(gen.json, "store"));
    *r = (response_answer){.store = stored ? s->responses : NULL, .tenant = tenant, .echo = echo, .items = items};
    items = echo = (weft_text){0};
    if (r->items.n > 0) weft_text_puts(&r->items, ",");
    if (stored) weft_responses_put_items(&gen, &r->items);
    gen.params.kept_bytes = r->items.n + ECHOES * r->echo.n;
    if (r->items.refused || r->echo.refused) {
      close_own(r);
      r = NULL; /* refused as no memory */
    }
  }
  weft_text_free(&items);
  weft_text_free(&echo);
  weft_dialect_start(s, x, &weft_openai_responses, &gen, r);
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
