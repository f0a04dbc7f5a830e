/* SPDX-License-Identifier: MIT */
/* How the Ollama dialect answers: chat, generate, errors. */
#include "api/dialects/ollama.h"

#include <string.h>
#include <time.h>

#include "api/dialects/model_states.h"
#include "api/json.h"
#include "api/residents.h"
#include "base/memory.h"

void weft_ollama_refusal(const weft_refusal *why, const char *id, weft_text *out) {
  (void)id;
  weft_text_puts(out, "{\"error\":");
  weft_json_words(out, why->message);
  weft_text_puts(out, "}");
}

void weft_ollama_time(int64_t seconds, int64_t nanoseconds, weft_text *out) {
  time_t time = (time_t)seconds;
  struct tm day;
  char text[40];
  if (gmtime_r(&time, &day) == NULL || strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &day) == 0) {
    weft_text_puts(out, "null");
    return;
  }
  weft_text_printf(out, "\"%s.%09lldZ\"", text, (long long)nanoseconds);
}

/* ---- lines ---- */

static const bool of_chat = true, of_generate = false; /* the forms of the dialect */

static void put_head(const char *model, weft_text *out) {
  struct timespec now;
  (void)clock_gettime(CLOCK_REALTIME, &now); /* cannot fail with this clock */
  weft_text_puts(out, "{\"model\":");
  weft_json_words(out, model);
  weft_text_puts(out, ",\"created_at\":");
  weft_ollama_time(now.tv_sec, now.tv_nsec, out);
}

static void put_text(const char *name, const weft_text *text, weft_pieces *out) {
  weft_text_printf(&out->text, "\"%s\":", name);
  weft_pieces_string(out, text->bytes, text->n);
}

/* What a stream keeps: a call is given when it is whole. */
typedef struct ollama_stream {
  weft_text arguments; /* of the call after those that were taken */
  uint32_t n_taken, n_given;
} ollama_stream;

static void close_stream(void *self) {
  ollama_stream *s = self;
  weft_text_free(&s->arguments);
  weft_free(s);
}

static void put_call(ollama_stream *s, const weft_answer_call *call, weft_text *out) {
  weft_text_puts(out, out->n > 0 ? ",{\"id\":" : "{\"id\":");
  weft_json_words(out, call->id);
  weft_text_printf(out, ",\"function\":{\"index\":%u,\"name\":", s->n_given++);
  weft_json_string(out, call->name.bytes, call->name.n);
  weft_text_puts(out, ",\"arguments\":");
  weft_text_puts(out, s->arguments.n > 0 ? s->arguments.bytes : "{}");
  weft_text_puts(out, "}}");
  out->refused = out->refused || s->arguments.refused;
}

/* Calls that have become whole, as members of a list. One that is cut off, or that another call follows before it is
 * whole, is never given. */
static void take_calls(ollama_stream *s, const weft_choice *c, weft_text *out) {
  for (; s->n_taken < c->n_calls; s->n_taken++) {
    const weft_answer_call *call = &c->call[s->n_taken];
    weft_text_append(&s->arguments, call->arguments.bytes, call->arguments.n);
    if (call->whole) put_call(s, call, out);
    if (!call->whole && s->n_taken + 1 == c->n_calls) return; /* it may go on */
    weft_text_clear(&s->arguments);
  }
}

static void put_content(bool chat, const weft_text *text, const weft_text *thinking, const weft_text *calls,
                        weft_pieces *pieces) {
  weft_text *out = &pieces->text;
  weft_text_puts(out, chat ? ",\"message\":{\"role\":\"assistant\"," : ",");
  put_text(chat ? "content" : "response", text, pieces);
  if (thinking->n > 0) {
    weft_text_puts(out, ",");
    put_text("thinking", thinking, pieces);
  }
  if (calls->n > 0) {
    weft_text_puts(out, ",\"tool_calls\":[");
    weft_text_append(out, calls->bytes, calls->n);
    weft_text_puts(out, "]");
  }
  weft_text_puts(out, chat ? "}" : "");
}

static void put_done(const weft_answer *a, const weft_choice *c, weft_text *out) {
  const weft_usage_counts *u = &c->usage;
  /* the first canvas comes as a whole: its steps are the answer's time, not the prompt's */
  uint64_t first = u->denoising_us > 0 ? u->denoising_us : u->first_token_us > 0 ? u->first_token_us : u->total_us;
  weft_text_printf(out, ",\"done\":true,\"done_reason\":\"%s\",\"total_duration\":%llu,\"load_duration\":0",
                   strcmp(c->finish, "length") == 0 ? "length" : "stop", (unsigned long long)u->total_us * 1000);
  weft_text_printf(out, ",\"prompt_eval_count\":%u,\"prompt_eval_duration\":%llu", u->prompt_tokens,
                   (unsigned long long)(first > u->queue_us ? first - u->queue_us : 0) * 1000);
  weft_text_printf(out, ",\"mode\":\"%s\"", weft_answer_mode_name(a));
  weft_text_printf(out, ",\"eval_count\":%u,\"eval_duration\":%llu", u->completion_tokens,
                   (unsigned long long)(u->total_us > first ? u->total_us - first : 0) * 1000);
}

/* One object: of what was not sent yet, or all. */
static void put_object(const weft_answer *a, const weft_choice *c, const char *finish, const weft_text *calls,
                       weft_pieces *pieces) {
  weft_text *out = &pieces->text;
  put_head(a->model, out);
  put_content(*(const bool *)a->dialect->form, &c->text, &c->thinking, calls, pieces);
  if (c->n_logprobs > 0) {
    weft_text_puts(out, ",\"logprobs\":[");
    weft_pieces_raw(pieces, c->logprobs[0].bytes, c->logprobs[0].n);
    weft_text_puts(out, "]");
  }
  if (finish == NULL) {
    weft_text_puts(out, ",\"done\":false");
  } else {
    put_done(a, c, out);
  }
  weft_text_puts(out, "}");
}

static void put_chunk(const weft_answer *a, const weft_choice *c, const char *finish, weft_pieces *pieces) {
  weft_text *out = &pieces->text;
  weft_text calls = {0};
  if (a->own != NULL) take_calls(a->own, c, &calls);
  bool says = c->text.n > 0 || c->thinking.n > 0 || c->n_logprobs > 0 || calls.n > 0;
  if (says || finish != NULL) { /* else a piece of a call came */
    put_object(a, c, finish, &calls, pieces);
    weft_text_puts(out, "\n");
  }
  out->refused = out->refused || calls.refused;
  weft_text_free(&calls);
}

static void put_last(const weft_answer *a, weft_pieces *out) {
  (void)a;
  (void)out; /* the line with "done" was the last */
}

static void put_fault(const weft_answer *a, const weft_refusal *why, weft_pieces *pieces) {
  weft_text *out = &pieces->text;
  weft_ollama_refusal(why, weft_exchange_id(a->exchange), out);
  weft_text_puts(out, "\n");
}

/* Its clients read each line as an object; one without text, which the model may give at any time, changes nothing. */
static void put_ping(const weft_answer *a, weft_text *out) {
  const weft_text none = {0};
  weft_pieces line = {.copies = true};
  put_head(a->model, &line.text);
  put_content(*(const bool *)a->dialect->form, &none, &none, &none, &line);
  weft_text_puts(&line.text, ",\"done\":false}\n");
  weft_text_append(out, line.text.bytes, line.text.n);
  out->refused = out->refused || line.text.refused;
  weft_pieces_free(&line);
}

static void put_whole(const weft_answer *a, weft_pieces *pieces) {
  weft_text *out = &pieces->text;
  weft_text calls = {0};
  if (a->own != NULL) take_calls(a->own, a->choice, &calls);
  put_object(a, a->choice, a->choice->finish, &calls, pieces);
  out->refused = out->refused || calls.refused;
  weft_text_free(&calls);
}

const weft_dialect weft_ollama_chat = {.id_prefix = "",
                                       .stream_type = "application/x-ndjson",
                                       .logprobs = weft_openai_chat_logprobs,
                                       .chunk = put_chunk,
                                       .last = put_last,
                                       .fault = put_fault,
                                       .ping = put_ping,
                                       .whole = put_whole,
                                       .close = close_stream,
                                       .form = &of_chat};

const weft_dialect weft_ollama_generate = {.id_prefix = "",
                                           .stream_type = "application/x-ndjson",
                                           .logprobs = weft_openai_chat_logprobs,
                                           .chunk = put_chunk,
                                           .last = put_last,
                                           .fault = put_fault,
                                           .ping = put_ping,
                                           .whole = put_whole,
                                           .form = &of_generate};

/* ---- endpoints ---- */

/* What a request that only loads a model, or has it leave, is told. */
typedef struct loaded_answer {
  const char *model;
  bool chat, leaves;
} loaded_answer;

static void tell_loaded(void *self, weft_text *out) {
  const loaded_answer *told = self;
  const weft_text none = {0};
  weft_pieces body = {.copies = true};
  put_head(told->model, &body.text);
  put_content(told->chat, &none, &none, &none, &body);
  weft_text_printf(&body.text, ",\"done\":true,\"done_reason\":\"%s\"}", told->leaves ? "unload" : "load");
  *out = body.text;
}

/* A model that its tenant may not have loaded is refused as its requests are. With keep_alive 0 it leaves as soon as
 * nobody uses it. */
static void answer_loaded(weft_server *s, weft_exchange *x, bool chat, const weft_gen *gen, bool kept) {
  weft_error error = {{0}};
  uint32_t index, tenant = weft_exchange_note(x)->tenant;
  resident_ask ask = {0};
  weft_residents *residents = s->runtime->residents;
  const weft_served_model *model = weft_runtime_model(s->runtime, gen->params.model, &index, &error);
  bool leaves = kept && gen->wanted.keep_alive_us == 0;
  loaded_answer *told = weft_alloc(1, sizeof *told);
  weft_status status = model == NULL ? WEFT_E_NOT_FOUND : told == NULL ? WEFT_E_NO_MEMORY : WEFT_OK;
  if (status == WEFT_OK && !leaves) status = residents_use(residents, index, tenant, &error);
  if (status == WEFT_OK && !leaves) status = residents_ask(residents, index, RESIDENT_LOAD, &ask, &error);
  if (status != WEFT_OK) {
    weft_free(told);
    model_states_refuse(x, status, error.text);
    return;
  }
  *told = (loaded_answer){model->name, chat, leaves};
  model_states_answer(s->runtime, x, &ask, tell_loaded, told);
}

/* Said before the request is: what it says holds when it has ended. False: nothing was said, or it is passed over. */
static bool keep_model(weft_server *s, weft_exchange *x, const weft_gen *gen) {
  weft_error error = {{0}};
  uint32_t index;
  if (!gen->wanted.has_keep_alive || weft_runtime_model(s->runtime, gen->params.model, &index, &error) == NULL)
    return false;
  return residents_keep(s->runtime->residents, index, weft_exchange_note(x)->tenant, gen->wanted.keep_alive_us);
}

static void answer_prompts(weft_server *s, weft_exchange *x, weft_parser parse, const weft_dialect *dialect) {
  weft_gen gen;
  if (weft_dialect_read(s, x, parse, &gen) != WEFT_OK) return;
  bool kept = keep_model(s, x, &gen);
  if (gen.n_prompts > 0) {
    weft_dialect_start(s, x, dialect, &gen, dialect->close == NULL ? NULL : weft_alloc(1, sizeof(ollama_stream)));
    return;
  }
  answer_loaded(s, x, dialect == &weft_ollama_chat, &gen, kept);
  weft_gen_close(&gen);
}

void weft_handle_ollama_chat(weft_server *s, weft_exchange *x) {
  answer_prompts(s, x, weft_ollama_parse_chat, &weft_ollama_chat);
}

void weft_handle_ollama_generate(weft_server *s, weft_exchange *x) {
  answer_prompts(s, x, weft_ollama_parse_generate, &weft_ollama_generate);
}
