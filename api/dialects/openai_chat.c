/* SPDX-License-Identifier: MIT */
/* How /v1/chat/completions writes a choice. */
#include "api/dialects/answer_calls.h"
#include "api/dialects/openai.h"
#include "api/json.h"

/* A log of zero has no JSON number; this is the word for it that clients of this dialect know. */
static void put_logprob(double value, weft_text *out) {
  weft_json_real(out, value < -9999.0 ? -9999.0 : value);
}

static void put_token(const weft_token_logprob *t, weft_text *out) {
  weft_text_puts(out, "{\"token\":");
  weft_json_string(out, t->bytes, t->n_bytes);
  weft_text_puts(out, ",\"logprob\":");
  put_logprob((double)t->logprob, out);
  weft_text_puts(out, ",\"bytes\":[");
  for (size_t i = 0; i < t->n_bytes; i++) {
    if (i > 0) weft_text_puts(out, ",");
    weft_json_int(out, (unsigned char)t->bytes[i]);
  }
  weft_text_puts(out, "]");
}

void weft_openai_chat_logprobs(const weft_answer *a, weft_choice *c, const weft_delta *d) {
  (void)a;
  weft_text *out = &c->logprobs[0];
  for (uint32_t i = 0; i < d->n_tokens; i++) {
    if (c->n_logprobs++ > 0) weft_text_puts(out, ",");
    put_token(&d->logprobs[i], out);
    weft_text_puts(out, ",\"top_logprobs\":[");
    for (uint32_t k = 0; k < d->n_top[i]; k++) {
      if (k > 0) weft_text_puts(out, ",");
      put_token(&d->top_logprobs[(size_t)i * d->top_stride + k], out);
      weft_text_puts(out, "}");
    }
    weft_text_puts(out, "]}");
  }
}

static void put_logprobs(const weft_answer *a, const weft_choice *c, bool always, weft_pieces *pieces) {
  weft_text *out = &pieces->text;
  if (!a->asked->sampling.logprobs || (c->n_logprobs == 0 && !always)) {
    weft_text_puts(out, ",\"logprobs\":null");
    return;
  }
  weft_text_puts(out, ",\"logprobs\":{\"content\":[");
  weft_pieces_raw(pieces, c->logprobs[0].bytes, c->logprobs[0].n);
  weft_text_puts(out, "]}");
}

static void put_ids(const weft_answer *a, const weft_choice *c, weft_pieces *out) {
  if (!a->wanted.token_ids) return;
  weft_text_puts(&out->text, ",\"token_ids\":[");
  weft_pieces_raw(out, c->ids.bytes, c->ids.n);
  weft_text_puts(&out->text, "]");
}

static void put_finish(const char *finish, weft_text *out) {
  weft_text_puts(out, ",\"finish_reason\":");
  if (finish == NULL) {
    weft_text_puts(out, "null");
  } else {
    weft_json_words(out, finish);
  }
}

static void put_text(const char *name, const weft_text *text, weft_pieces *out) {
  weft_text_printf(&out->text, "\"%s\":", name);
  weft_pieces_string(out, text->bytes, text->n);
}

/* The call as its client knows the tool, or what was not sent of it. */
static void put_call(const weft_answer_call *call, weft_pieces *pieces) {
  weft_text *out = &pieces->text;
  bool text = call->origin != NULL && call->origin->kind == WEFT_TOOL_TEXT;
  const char *type = text ? "custom" : "function";
  if (!call->begun) {
    weft_text_puts(out, "\"id\":");
    weft_json_words(out, call->id);
    weft_text_printf(out, ",\"type\":\"%s\",\"%s\":{\"name\":", type, type);
    weft_json_words(out, call->origin != NULL ? call->origin->name : call->name.bytes);
    weft_text_puts(out, ",");
  } else {
    weft_text_printf(out, "\"%s\":{", type);
  }
  put_text(text ? "input" : "arguments", &call->arguments, pieces);
  weft_text_puts(out, "}");
}

/* Calls of a chunk, what was not sent of them, or of the whole answer. */
static void put_calls(const weft_choice *c, bool chunk, weft_pieces *pieces) {
  weft_text *out = &pieces->text;
  uint32_t first = chunk ? c->n_calls_sent : 0;
  weft_text_puts(out, "\"tool_calls\":[");
  for (uint32_t i = first, n = 0; i < c->n_calls; i++) {
    const weft_answer_call *call = &c->call[i];
    if (call->begun && call->arguments.n == 0) continue;
    weft_text_puts(out, n++ == 0 ? "{" : ",{");
    if (chunk) weft_text_printf(out, "\"index\":%u,", i);
    put_call(call, pieces);
    weft_text_puts(out, "}");
  }
  weft_text_puts(out, "]");
}

static void put_chunk(const weft_answer *a, const weft_choice *c, const char *finish, weft_pieces *pieces) {
  weft_text *out = &pieces->text;
  weft_text_printf(out, "{\"index\":%u,\"delta\":{", c->index);
  if (!c->begun) {
    weft_text_puts(out, "\"role\":\"assistant\",\"content\":\"\"");
  } else if (c->thinking.n > 0) {
    put_text("reasoning_content", &c->thinking, pieces);
  } else if (finish == NULL) {
    bool calls = answer_calls_waiting(c);
    if (!calls || c->text.n > 0) put_text("content", &c->text, pieces);
    if (calls && c->text.n > 0) weft_text_puts(out, ",");
    if (calls) put_calls(c, true, pieces);
  }
  weft_text_puts(out, "}");
  put_logprobs(a, c, false, pieces);
  put_finish(finish, out);
  if (finish != NULL) weft_openai_stop_reason(c, out);
  if (c->n_ids > 0) put_ids(a, c, pieces);
}

static void put_whole(const weft_answer *a, const weft_choice *c, weft_pieces *pieces) {
  weft_text *out = &pieces->text;
  weft_text_printf(out, "{\"index\":%u,\"message\":{\"role\":\"assistant\",", c->index);
  if (c->n_calls > 0 && c->text.n == 0) {
    weft_text_puts(out, "\"content\":null");
  } else {
    put_text("content", &c->text, pieces);
  }
  if (c->thinking.n > 0) {
    weft_text_puts(out, ",");
    put_text("reasoning_content", &c->thinking, pieces);
  }
  if (c->n_calls > 0) {
    weft_text_puts(out, ",");
    put_calls(c, false, pieces);
  }
  weft_text_puts(out, "}");
  put_logprobs(a, c, true, pieces);
  put_finish(c->finish, out);
  weft_openai_stop_reason(c, out);
  put_ids(a, c, pieces);
}

const weft_openai_form weft_openai_chat_form = {
    .object = "chat.completion", .chunk_object = "chat.completion.chunk", .chunk = put_chunk, .whole = put_whole};
