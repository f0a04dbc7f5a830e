/* SPDX-License-Identifier: MIT */
/* How the Anthropic dialect answers: messages, their events, counts of tokens, errors. */
#include "api/dialects/anthropic.h"

#include <string.h>

#include "api/http/sse.h"
#include "api/json.h"
#include "api/prompt.h"
#include "api/runtime.h"
#include "base/memory.h"

/* ---- errors ---- */

static const char *type_of(int http) {
  switch (http) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    case 504:
      return "timeout_error";
    default:
      return http >= 500 ? "api_error" : "invalid_request_error";
  }
}

void weft_anthropic_refusal(const weft_refusal *why, const char *id, weft_text *out) {
  weft_text_printf(out, "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":", type_of(why->http));
  weft_json_words(out, why->message);
  weft_text_puts(out, "},\"request_id\":");
  weft_json_words(out, id);
  weft_text_puts(out, "}");
}

/* ---- answers ---- */

/* The block that a stream is in. */
typedef enum block_kind { NO_BLOCK, TEXT_BLOCK, THINKING_BLOCK, CALL_BLOCK } block_kind;

typedef struct anthropic_stream {
  block_kind block;
  uint32_t n_blocks; /* begun */
  bool has_content;  /* one of them was of text, or a call */
} anthropic_stream;

static void put_head(const weft_answer *a, weft_text *out) {
  weft_text_puts(out, "{\"id\":");
  weft_json_words(out, a->id);
  weft_text_puts(out, ",\"type\":\"message\",\"role\":\"assistant\",\"model\":");
  weft_json_words(out, a->model);
  weft_text_printf(out, ",\"mode\":\"%s\"", weft_answer_mode_name(a));
}

/* Tokens that were cached are not among the input tokens, but beside them. */
static void put_usage(uint64_t prompt, uint64_t cached, uint64_t completion, weft_text *out) {
  weft_text_printf(out,
                   "\"usage\":{\"input_tokens\":%llu,\"cache_creation_input_tokens\":0,"
                   "\"cache_read_input_tokens\":%llu,\"output_tokens\":%llu}",
                   (unsigned long long)(prompt - cached), (unsigned long long)cached, (unsigned long long)completion);
}

static void put_usage_of(const weft_answer *a, weft_text *out) {
  weft_answer_usage u = weft_answer_get_usage(a);
  put_usage(u.prompt, u.cached, u.completion, out);
}

static void put_stop(const weft_choice *c, weft_text *out) {
  bool sequence = strcmp(c->finish, "stop") == 0 && c->stop != NULL;
  weft_text_printf(out, "\"stop_reason\":\"%s\",\"stop_sequence\":",
                   sequence                               ? "stop_sequence"
                   : strcmp(c->finish, "length") == 0     ? "max_tokens"
                   : strcmp(c->finish, "tool_calls") == 0 ? "tool_use"
                                                          : "end_turn");
  if (sequence) {
    weft_json_words(out, c->stop);
  } else {
    weft_text_puts(out, "null");
  }
}

static void put_begin(const weft_answer *a, const weft_choice *c, weft_pieces *pieces) {
  weft_text *out = &pieces->text;
  const int32_t *ids;
  weft_sse_begin(out, "message_start");
  weft_text_puts(out, "{\"type\":\"message_start\",\"message\":");
  put_head(a, out);
  weft_text_puts(out, ",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,");
  put_usage(weft_prompt_tokens(c->generation, &ids), 0, 0, out);
  weft_text_puts(out, "}}");
  weft_sse_end(out);
}

static void end_block(anthropic_stream *s, weft_text *out) {
  if (s->block == NO_BLOCK) return;
  weft_sse_begin(out, "content_block_stop");
  weft_text_printf(out, "{\"type\":\"content_block_stop\",\"index\":%u}", s->n_blocks - 1);
  weft_sse_end(out);
  s->block = NO_BLOCK;
}

static void put_ping(const weft_answer *a, weft_text *out) {
  (void)a;
  weft_sse_begin(out, "ping");
  weft_text_puts(out, "{\"type\":\"ping\"}");
  weft_sse_end(out);
}

/* A call, without its closing brace. */
static void put_call(const weft_answer_call *call, weft_text *out) {
  weft_text_puts(out, "{\"type\":\"tool_use\",\"id\":");
  weft_json_words(out, call->id);
  weft_text_puts(out, ",\"name\":");
  weft_json_string(out, call->name.bytes, call->name.n);
}

/* call: of a block that is one. */
static void begin_block(anthropic_stream *s, block_kind kind, const weft_answer_call *call, weft_text *out) {
  if (s->block == kind && kind != CALL_BLOCK) return;
  end_block(s, out);
  s->block = kind;
  s->has_content = s->has_content || kind != THINKING_BLOCK;
  weft_sse_begin(out, "content_block_start");
  weft_text_printf(out, "{\"type\":\"content_block_start\",\"index\":%u,\"content_block\":", s->n_blocks);
  if (kind == CALL_BLOCK) {
    put_call(call, out);
    weft_text_puts(out, ",\"input\":{}}}");
  } else {
    weft_text_puts(out, kind == TEXT_BLOCK ? "{\"type\":\"text\",\"text\":\"\"}}"
                                           : "{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}}");
  }
  weft_sse_end(out);
  if (s->n_blocks++ == 0) put_ping(NULL, out);
}

/* More of the block that the stream is in. */
static void put_delta(const anthropic_stream *s, const char *type, const char *name, const weft_text *text,
                      weft_text *out) {
  weft_sse_begin(out, "content_block_delta");
  weft_text_printf(out,
                   "{\"type\":\"content_block_delta\",\"index\":%u,\"delta\":{\"type\":\"%s\",\"%s\":", s->n_blocks - 1,
                   type, name);
  weft_json_string(out, text->bytes, text->n);
  weft_text_puts(out, "}}");
  weft_sse_end(out);
}

/* What was not sent yet of the calls that the stream has begun, or of those that it has not. */
static void put_calls(anthropic_stream *s, const weft_choice *c, bool begun, weft_text *out) {
  for (uint32_t i = 0; i < c->n_calls; i++) {
    const weft_answer_call *call = &c->call[i];
    if (call->begun != begun) continue;
    if (!begun) begin_block(s, CALL_BLOCK, call, out);
    if (call->arguments.n > 0) put_delta(s, "input_json_delta", "partial_json", &call->arguments, out);
  }
}

static void put_chunk(const weft_answer *a, const weft_choice *c, const char *finish, weft_pieces *pieces) {
  weft_text *out = &pieces->text;
  anthropic_stream *s = a->own;
  put_calls(s, c, true, out); /* before the text of this chunk, which follows the call and ends its block */
  if (c->thinking.n > 0) {
    begin_block(s, THINKING_BLOCK, NULL, out);
    put_delta(s, "thinking_delta", "thinking", &c->thinking, out);
  }
  if (c->text.n > 0) {
    begin_block(s, TEXT_BLOCK, NULL, out);
    put_delta(s, "text_delta", "text", &c->text, out);
  }
  put_calls(s, c, false, out);
  if (finish == NULL) return;
  if (!s->has_content) begin_block(s, TEXT_BLOCK, NULL, out);
  end_block(s, out);
  weft_sse_begin(out, "message_delta");
  weft_text_puts(out, "{\"type\":\"message_delta\",\"delta\":{");
  put_stop(c, out);
  weft_text_puts(out, "},");
  put_usage_of(a, out);
  weft_text_puts(out, "}");
  weft_sse_end(out);
}

static void put_last(const weft_answer *a, weft_pieces *pieces) {
  weft_text *out = &pieces->text;
  (void)a;
  weft_sse_begin(out, "message_stop");
  weft_text_puts(out, "{\"type\":\"message_stop\"}");
  weft_sse_end(out);
}

static void put_fault(const weft_answer *a, const weft_refusal *why, weft_pieces *pieces) {
  weft_text *out = &pieces->text;
  weft_sse_begin(out, "error");
  weft_anthropic_refusal(why, weft_exchange_id(a->exchange), out);
  weft_sse_end(out);
}

/* The calls of a whole answer. One that was cut off has no arguments that could be given. */
static void put_whole_calls(const weft_choice *c, bool first, weft_pieces *pieces) {
  weft_text *out = &pieces->text;
  for (uint32_t i = 0; i < c->n_calls; i++) {
    const weft_answer_call *call = &c->call[i];
    bool whole = call->whole && call->arguments.n > 0;
    weft_text_puts(out, first && i == 0 ? "" : ",");
    put_call(call, out);
    weft_text_puts(out, ",\"input\":");
    weft_pieces_raw(pieces, whole ? call->arguments.bytes : "{}", whole ? call->arguments.n : 2);
    weft_text_puts(out, "}");
  }
}

static void put_whole(const weft_answer *a, weft_pieces *pieces) {
  weft_text *out = &pieces->text;
  const weft_choice *c = a->choice;
  bool text = c->text.n > 0 || c->n_calls == 0;
  put_head(a, out);
  weft_text_puts(out, ",\"content\":[");
  if (c->thinking.n > 0) {
    weft_text_puts(out, "{\"type\":\"thinking\",\"thinking\":");
    weft_pieces_string(pieces, c->thinking.bytes, c->thinking.n);
    weft_text_puts(out, ",\"signature\":\"\"},");
  }
  if (text) {
    weft_text_puts(out, "{\"type\":\"text\",\"text\":");
    weft_pieces_string(pieces, c->text.bytes, c->text.n);
    weft_text_puts(out, "}");
  }
  put_whole_calls(c, !text, pieces);
  weft_text_puts(out, "],");
  put_stop(c, out);
  weft_text_puts(out, ",");
  put_usage_of(a, out);
  weft_text_puts(out, "}");
}

const weft_dialect weft_anthropic = {.id_prefix = "msg_",
                                     .stream_type = WEFT_SSE_TYPE,
                                     .begin = put_begin,
                                     .chunk = put_chunk,
                                     .last = put_last,
                                     .fault = put_fault,
                                     .ping = put_ping,
                                     .whole = put_whole,
                                     .close = weft_free};

/* ---- endpoints ---- */

/* Anthropic's clients report the id of a request by this header. */
static void name_request(weft_exchange *x) {
  weft_exchange_set_header(x, "request-id", weft_exchange_id(x));
}

void weft_handle_messages(weft_server *s, weft_exchange *x) {
  weft_gen gen;
  name_request(x);
  if (weft_dialect_read(s, x, weft_anthropic_parse, &gen) != WEFT_OK) return;
  weft_dialect_start(s, x, &weft_anthropic, &gen, weft_alloc(1, sizeof(anthropic_stream)));
}

void weft_handle_count_tokens(weft_server *s, weft_exchange *x) {
  weft_gen gen;
  weft_refusal why;
  encoded_prompt prompt = {0};
  name_request(x);
  if (weft_dialect_read(s, x, weft_anthropic_parse_count, &gen) != WEFT_OK) return;
  if (weft_dialect_encode(s, &gen, &prompt, &why) == WEFT_OK) {
    weft_text body = {0};
    weft_text_printf(&body, "{\"input_tokens\":%u}", prompt.tokens.n);
    weft_exchange_answer(x, 200, "application/json", &body);
  } else {
    weft_exchange_refuse(x, &why);
  }
  prompt_close(&prompt);
  weft_gen_close(&gen);
}
