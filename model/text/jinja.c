/* SPDX-License-Identifier: MIT */
/* A template's life: open, render, close; and the budget of a render. */
#include "model/text/jinja.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "model/text/jinja_internal.h"

/* ---- open ------------------------------------------------------------------------------------ */

static weft_status copy_text(weft_jinja *jinja, const char *text, size_t n, weft_error *error) {
  char *bytes = jinja_arena_take(&jinja->arena, n);
  weft_jinja_mark *marks = jinja_arena_take(&jinja->arena, n * sizeof *marks);
  size_t bad_at;
  if (!weft_utf8_valid(text, n, &bad_at)) {
    return weft_fail(error, WEFT_E_FORMAT, "the byte at %zu is no UTF-8", bad_at);
  }
  if (bytes == NULL || marks == NULL) {
    return weft_fail(error, WEFT_E_NO_MEMORY, "out of memory while reading the chat template");
  }
  memcpy(bytes, text, n);
  for (size_t i = 0; i < n; i++) marks[i] = WEFT_JINJA_OWN;
  jinja->text = bytes;
  jinja->marks = marks;
  jinja->n = n;
  return WEFT_OK;
}

weft_status weft_jinja_open(const char *text, size_t n, weft_jinja **out, weft_error *error) {
  *out = NULL;
  if (n > WEFT_JINJA_TEMPLATE_MAX) {
    return weft_fail(error, WEFT_E_TOO_LARGE, "it has %zu bytes; at most %d are read", n, WEFT_JINJA_TEMPLATE_MAX);
  }
  weft_jinja *jinja = weft_alloc(1, sizeof *jinja);
  if (jinja == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "out of memory while reading the chat template");
  jinja->arena.max = SIZE_MAX; /* bounded by the length of the text */
  weft_status status = copy_text(jinja, text, n, error);
  if (status == WEFT_OK) status = jinja_lex(jinja, error);
  if (status == WEFT_OK) status = jinja_parse(jinja, error);
  weft_free(jinja->tokens);
  jinja->tokens = NULL;
  if (status == WEFT_OK) {
    *out = jinja;
  } else {
    weft_jinja_close(jinja);
  }
  return status;
}

void weft_jinja_close(weft_jinja *jinja) {
  if (jinja == NULL) return;
  jinja_arena_close(&jinja->arena);
  weft_free(jinja);
}

/* ---- the run's state ------------------------------------------------------------------------- */

void jinja_make_line(char *text) {
  size_t n = strlen(text);
  for (size_t at = 0; at < n;) {
    uint32_t c = 0;
    size_t length = weft_utf8_decode(text + at, n - at, &c);
    if (length == 0) text[at] = '?';
    if (length == 1 && (c < 0x20 || c == 0x7F)) text[at] = ' ';
    at += length == 0 ? 1 : length;
  }
}

void jinja_fail(jinja_run *run, weft_status status, const char *format, ...) {
  char text[400];
  va_list args;
  if (run->status != WEFT_OK) return;
  va_start(args, format);
  (void)vsnprintf(text, sizeof text, format, args);
  va_end(args);
  jinja_make_line(text);
  run->status = weft_fail(run->error, status, "line %u: %s", run->line, text);
}

bool jinja_charge(jinja_run *run, uint64_t n) {
  if (jinja_failed(run)) return false;
  if (n <= run->steps) {
    run->steps -= n;
    return true;
  }
  jinja_fail(run, WEFT_E_TOO_LARGE, "the template takes more than %llu steps",
             (unsigned long long)run->context->budget.steps);
  return false;
}

bool jinja_enter(jinja_run *run) {
  run->depth += 1;
  if (run->depth > run->context->budget.depth) {
    jinja_fail(run, WEFT_E_TOO_LARGE, "the template nests more than %u deep", run->context->budget.depth);
  }
  return !jinja_failed(run);
}

void jinja_leave(jinja_run *run) {
  run->depth -= 1;
}

void *jinja_take(jinja_run *run, size_t n) {
  if (jinja_failed(run)) return NULL;
  void *memory = jinja_arena_take(&run->arena, n);
  if (memory != NULL) return memory;
  if (run->arena.over) {
    jinja_fail(run, WEFT_E_TOO_LARGE, "the template takes more than %zu bytes of memory", run->arena.max);
  } else {
    jinja_fail(run, WEFT_E_NO_MEMORY, "out of memory while rendering the chat template");
  }
  return NULL;
}

const jinja_value *jinja_argument(const jinja_args *args, size_t at, const char *name) {
  if (at < args->n && args->names[at] == NULL) return &args->values[at];
  for (size_t i = 0; i < args->n; i++) {
    if (args->names[i] != NULL && jinja_string_is(args->names[i], name, strlen(name))) return &args->values[i];
  }
  return NULL;
}

int64_t jinja_integer_of(jinja_run *run, jinja_value value, const char *what) {
  if (value.kind == JINJA_INT) return value.integer;
  if (value.kind == JINJA_BOOL) return value.truth;
  jinja_fail(run, WEFT_E_INVALID, "%s is %s; it must be a whole number", what, jinja_type_name(value));
  return 0;
}

const jinja_string *jinja_string_of(jinja_run *run, jinja_value value, const char *what) {
  static const jinja_string empty = {.bytes = ""};
  if (value.kind == JINJA_STRING) return value.string;
  jinja_fail(run, WEFT_E_INVALID, "%s is %s; it must be a string", what, jinja_type_name(value));
  return &empty;
}

/* ---- render ---------------------------------------------------------------------------------- */

weft_jinja_budget weft_jinja_budget_default(void) {
  return (weft_jinja_budget){.steps = (uint64_t)32 << 20, .bytes = (size_t)256 << 20, .depth = 500};
}

/* A string of the server's or the model's own. */
static jinja_value own_word(jinja_run *run, const char *text) {
  size_t n = strlen(text);
  char *bytes = jinja_take(run, n);
  weft_jinja_mark *marks = jinja_take(run, n * sizeof *marks);
  if (bytes == NULL || marks == NULL) return jinja_nothing();
  memcpy(bytes, text, n);
  for (size_t i = 0; i < n; i++) marks[i] = WEFT_JINJA_OWN;
  return jinja_string_value(run, (jinja_string){.bytes = bytes, .marks = marks, .n = n});
}

static void own_roles(jinja_run *run, jinja_value messages) {
  const weft_jinja_context *c = run->context;
  if (messages.kind != JINJA_LIST) return;
  for (size_t i = 0; i < messages.list->n && jinja_charge(run, 1); i++) {
    jinja_value message = jinja_list_at(messages.list, i);
    jinja_value *role = message.kind == JINJA_DICT ? (jinja_value *)jinja_dict_get(run, message.dict, "role") : NULL;
    if (role == NULL || role->kind != JINJA_STRING) continue;
    for (uint32_t k = 0; k < c->n_roles; k++) {
      if (!jinja_string_is(role->string, c->roles[k], strlen(c->roles[k]))) continue;
      *role = own_word(run, c->roles[k]);
      break;
    }
  }
}

static void set_variable(jinja_run *run, const char *name, jinja_value value) {
  jinja_value key = jinja_word(run, name);
  if (!jinja_failed(run)) jinja_scope_set(run, key.string, value);
}

static void set_context(jinja_run *run) {
  /* whose bytes are numbered, in this order */
  static const char *const traced[] = {"messages", "tools"};
  const weft_jinja_context *c = run->context;
  const char *name;
  json_t *json;
  run->trace = WEFT_JINJA_TRACED;
  for (size_t i = 0; i < sizeof traced / sizeof *traced; i++) {
    if ((json = json_object_get(c->values, traced[i])) == NULL) continue;
    jinja_value value = jinja_json_read(run, json);
    if (i == 0) own_roles(run, value);
    set_variable(run, traced[i], value);
  }
  run->trace = 0;
  json_object_foreach((json_t *)c->values, name, json) {
    if (strcmp(name, traced[0]) == 0 || strcmp(name, traced[1]) == 0) continue;
    set_variable(run, name, jinja_json_read(run, json));
  }
  for (uint32_t i = 0; i < c->n_words; i++) set_variable(run, c->words[i].name, own_word(run, c->words[i].text));
}

static weft_status take_output(const jinja_run *run, weft_jinja_text *out) {
  size_t n = run->out->n;
  out->bytes = weft_alloc(n + 1, 1);
  out->marks = weft_alloc(n + 1, sizeof *out->marks);
  if (out->bytes == NULL || out->marks == NULL) {
    weft_jinja_text_free(out);
    return weft_fail(run->error, WEFT_E_NO_MEMORY, "out of memory while rendering the chat template");
  }
  out->n = n;
  if (n == 0) return WEFT_OK;
  memcpy(out->bytes, run->out->bytes, n);
  memcpy(out->marks, run->out->marks, n * sizeof *out->marks);
  return WEFT_OK;
}

weft_status weft_jinja_render(const weft_jinja *jinja, const weft_jinja_context *context, weft_jinja_text *out,
                              weft_error *error) {
  jinja_run run = {.context = context, .steps = context->budget.steps, .error = error};
  jinja_scope scope = {0}, top = {.parent = &scope};
  jinja_buffer buffer = {0};
  *out = (weft_jinja_text){0};
  run.arena.max = context->budget.bytes;
  run.scope = &scope;
  run.out = &buffer;
  set_context(&run);
  run.scope = &top;
  if (!jinja_failed(&run)) jinja_run_list(&run, jinja->root->list);
  weft_status status = run.status;
  if (status == WEFT_OK) status = take_output(&run, out);
  if (context->steps_left != NULL) *context->steps_left = run.steps;
  jinja_arena_close(&run.arena);
  return status;
}

void weft_jinja_text_free(weft_jinja_text *text) {
  weft_free(text->bytes);
  weft_free(text->marks);
  *text = (weft_jinja_text){0};
}
