/* SPDX-License-Identifier: MIT */
#include "api/dialects/answer_calls.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "api/generation.h"
#include "model/text/json_tree.h"
#include "base/clock.h"
#include "base/memory.h"

struct answer_calls {
  weft_call_reader reader;
  const answer_tools *tools;
  weft_text held;                   /* the arguments so far of a call of free text */
  bool one_call, refused, ignoring; /* ignoring: the call that is being read is one too many */
};

/* ---- tools ---- */

/* What stands behind the text, or texts in a row of which the last is empty, at `at`. */
static const char *text_behind(const char *at, bool several) {
  while (several && *at != 0) at += strlen(at) + 1;
  return at + strlen(at) + 1;
}

/* Types only where the form needs them to read a call: models of QWEN and HERMES write one in the way of the other. */
static weft_status copy_tools(answer_tools *t, const weft_prompt *p, const weft_tool_origin *origin,
                              weft_call_form form) {
  bool typed = form == WEFT_CALLS_QWEN || form == WEFT_CALLS_HERMES || form == WEFT_CALLS_DSML;
  t->callable = weft_alloc(p->n_tools, sizeof *t->callable);
  if (origin != NULL) t->origin = weft_alloc(p->n_tools, sizeof *t->origin);
  if (t->callable == NULL || (origin != NULL && t->origin == NULL)) return WEFT_E_NO_MEMORY;
  t->n = p->n_tools;
  for (uint32_t i = 0; i < t->n; i++) {
    weft_text_append(&t->bytes, p->tools[i].name, strlen(p->tools[i].name) + 1);
    if (typed) (void)weft_callable_types(p->tools[i].parameters, &t->bytes);
    if (origin == NULL) continue;
    const char *group = origin[i].group == NULL ? "" : origin[i].group;
    weft_text_append(&t->bytes, origin[i].name, strlen(origin[i].name) + 1);
    weft_text_append(&t->bytes, group, strlen(group) + 1);
  }
  if (weft_text_status(&t->bytes) != WEFT_OK) return WEFT_E_NO_MEMORY;
  const char *at = t->bytes.bytes;
  for (uint32_t i = 0; i < t->n; i++) {
    t->callable[i].name = at;
    at = text_behind(at, false);
    if (typed) t->callable[i].types = at;
    if (typed) at = text_behind(at, true);
    if (origin == NULL) continue;
    const char *group = text_behind(at, false);
    t->origin[i] = (weft_tool_origin){.kind = origin[i].kind, .name = at, .group = *group == 0 ? NULL : group};
    at = text_behind(group, false);
  }
  return WEFT_OK;
}

weft_status answer_calls_open(weft_answer *a, const weft_gen *gen) {
  weft_call_form form;
  if (a->n == 0 || !weft_generation_calls(a->choice[0].generation, &form)) return WEFT_OK;
  a->tools = weft_alloc(1, sizeof *a->tools);
  if (a->tools == NULL || copy_tools(a->tools, &gen->prompt[0], gen->tool, form) != WEFT_OK) return WEFT_E_NO_MEMORY;
  for (uint32_t i = 0; i < a->n; i++) {
    struct answer_calls *calls = a->choice[i].reader = weft_alloc(1, sizeof *calls);
    if (calls == NULL) return WEFT_E_NO_MEMORY;
    calls->tools = a->tools;
    calls->one_call = gen->params.one_call || gen->params.tool_choice == WEFT_TOOLS_NAMED;
    weft_call_reader_open(&calls->reader, form, a->tools->callable, a->tools->n);
  }
  return WEFT_OK;
}

static void close_choice(weft_choice *c) {
  for (uint32_t i = 0; i < c->n_calls; i++) {
    weft_text_free(&c->call[i].name);
    weft_text_free(&c->call[i].arguments);
  }
  weft_free(c->call);
  if (c->reader != NULL) weft_call_reader_close(&c->reader->reader);
  if (c->reader != NULL) weft_text_free(&c->reader->held);
  weft_free(c->reader);
}

void answer_calls_close(weft_answer *a) {
  for (uint32_t i = 0; i < a->n; i++) close_choice(&a->choice[i]);
  if (a->tools == NULL) return;
  weft_free(a->tools->callable);
  weft_free(a->tools->origin);
  weft_text_free(&a->tools->bytes);
  weft_free(a->tools);
}

/* ---- what the reader gives ---- */

static void take_content(void *self, const char *text, size_t n) {
  weft_choice *c = self;
  weft_text_append(&c->text, text, n);
}

/* Ids of 9 letters and digits are what MISTRAL's templates ask for; other forms take any. */
static void make_id(weft_choice *c, char *out, size_t n) {
  static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789";
  unsigned char random[24];
  bool short_id = c->reader->reader.form == WEFT_CALLS_MISTRAL;
  if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random) {
    uint64_t seed = weft_clock_us() + c->n_calls;
    for (size_t i = 0; i < sizeof random; i++) random[i] = (unsigned char)(seed >> i % 8 * 8);
  }
  int at = snprintf(out, n, "%s", short_id ? "" : "call_");
  for (size_t i = 0, n_letters = short_id ? 9 : sizeof random; i < n_letters; i++) {
    out[at++] = letters[random[i] % (sizeof letters - 1)];
  }
  out[at] = 0;
}

static const weft_tool_origin *find_origin(const answer_tools *tools, const char *name, size_t n) {
  for (uint32_t i = 0; tools->origin != NULL && i < tools->n; i++) {
    const char *shown = tools->callable[i].name;
    if (strlen(shown) == n && memcmp(shown, name, n) == 0) return &tools->origin[i];
  }
  return NULL;
}

static bool is_text(const weft_answer_call *call) {
  return call->origin != NULL && call->origin->kind == WEFT_TOOL_TEXT;
}

static void take_begin(void *self, const char *name, size_t n) {
  weft_choice *c = self;
  c->reader->ignoring = c->reader->one_call && c->n_calls > 0;
  if (c->reader->ignoring) return;
  if (c->n_calls == c->calls_capacity) {
    uint32_t more = c->calls_capacity == 0 ? 4 : c->calls_capacity * 2;
    weft_answer_call *call = weft_realloc(c->call, more, sizeof *call);
    if (call == NULL) {
      c->reader->refused = c->reader->ignoring = true;
      return;
    }
    c->call = call;
    c->calls_capacity = more;
  }
  weft_answer_call *call = &c->call[c->n_calls];
  *call = (weft_answer_call){0};
  make_id(c, call->id, sizeof call->id);
  weft_text_append(&call->name, name, n);
  call->origin = find_origin(c->reader->tools, name, n);
  weft_text_clear(&c->reader->held);
  c->n_calls += 1;
}

static void take_arguments(void *self, const char *text, size_t n) {
  weft_choice *c = self;
  if (c->reader->ignoring) return;
  weft_answer_call *call = &c->call[c->n_calls - 1];
  weft_text_append(is_text(call) ? &c->reader->held : &call->arguments, text, n);
}

/* Appends the string `input` of arguments; false: they have none, or are no JSON. */
static bool put_input(const weft_text *arguments, weft_text *out) {
  json_t *read = arguments->n == 0 ? NULL : weft_json_read(arguments->bytes, arguments->n, JSON_DECODE_ANY, NULL);
  const json_t *input = json_is_string(read) ? read : json_object_get(read, "input");
  bool found = json_is_string(input);
  if (found) weft_text_append(out, json_string_value(input), json_string_length(input));
  json_decref(read);
  return found;
}

/* The text of a call of free text. Where it was cut off it gets an end, behind the last whole character; where there is
 * no such text, what was written is it. */
static void give_text(const weft_text *arguments, weft_text *out) {
  enum { LONGEST_CHARACTER = 12 }; /* two halves of \uXXXX */
  weft_text ended = {0};
  bool found = put_input(arguments, out);
  for (size_t less = 0; !found && less < LONGEST_CHARACTER && less < arguments->n; less++) {
    weft_text_clear(&ended);
    weft_text_append(&ended, arguments->bytes, arguments->n - less);
    weft_text_puts(&ended, "\"}");
    found = weft_text_status(&ended) == WEFT_OK && put_input(&ended, out);
  }
  if (!found) weft_text_append(out, arguments->bytes, arguments->n);
  weft_text_free(&ended);
}

static void take_end(void *self, bool whole) {
  weft_choice *c = self;
  if (c->reader->ignoring) return;
  weft_answer_call *call = &c->call[c->n_calls - 1];
  call->whole = whole;
  if (is_text(call)) give_text(&c->reader->held, &call->arguments);
}

static weft_call_sink sink_of(weft_choice *c) {
  return (weft_call_sink){
      .self = c, .content = take_content, .begin = take_begin, .arguments = take_arguments, .end = take_end};
}

static weft_status status_of(const weft_choice *c, weft_status status) {
  bool refused = c->reader->refused || c->reader->held.refused;
  for (uint32_t i = c->n_calls_sent; i < c->n_calls; i++) {
    refused = refused || c->call[i].name.refused || c->call[i].arguments.refused;
  }
  return refused ? WEFT_E_NO_MEMORY : status;
}

weft_status answer_calls_push(weft_choice *c, const char *text, size_t n) {
  const weft_call_sink sink = sink_of(c);
  return status_of(c, weft_call_reader_push(&c->reader->reader, text, n, &sink));
}

bool answer_calls_in_call(const weft_choice *c) {
  return c->reader != NULL && weft_call_reader_in_call(&c->reader->reader);
}

weft_status answer_calls_end(weft_choice *c, bool cut) {
  const weft_call_sink sink = sink_of(c);
  return status_of(c, weft_call_reader_end(&c->reader->reader, cut, &sink));
}

/* ---- sending ---- */

bool answer_calls_waiting(const weft_choice *c) {
  for (uint32_t i = c->n_calls_sent; i < c->n_calls; i++) {
    if (!c->call[i].begun || c->call[i].arguments.n > 0) return true;
  }
  return false;
}

void answer_calls_sent(weft_choice *c) {
  for (uint32_t i = c->n_calls_sent; i < c->n_calls; i++) {
    c->call[i].begun = true;
    weft_text_clear(&c->call[i].arguments);
  }
  c->n_calls_sent = c->n_calls > 0 ? c->n_calls - 1 : 0; /* the last one may go on */
}

/* ---- canvases ---- */

static void keep_content(void *self, const char *text, size_t n) {
  weft_text_append(self, text, n);
}

static void drop_text(void *self, const char *text, size_t n) {
  (void)self, (void)text, (void)n;
}

static void drop_end(void *self, bool whole) {
  (void)self, (void)whole;
}

weft_status answer_calls_canvas(const weft_choice *c, const char *text, size_t n, weft_text *out) {
  const weft_call_sink sink = {
      .self = out, .content = keep_content, .begin = drop_text, .arguments = drop_text, .end = drop_end};
  weft_call_reader reader;
  weft_status status = weft_call_reader_copy(&c->reader->reader, &reader);
  if (status == WEFT_OK) status = weft_call_reader_push(&reader, text, n, &sink);
  if (status == WEFT_OK) status = weft_call_reader_end(&reader, true, &sink);
  weft_call_reader_close(&reader);
  return status == WEFT_OK ? weft_text_status(out) : status;
}
