/* SPDX-License-Identifier: MIT */
/* One render of a template. Private to model/jinja*.c.
 *
 * Law: a run keeps its first failure and ignores later ones; after a failure every function returns quickly and what it
 * returns means nothing, so callers need not check after each step. Every loop over data counts its rounds as steps,
 * and every function that may call itself counts its depth. */
#ifndef WEFT_MODEL_TEXT_JINJA_INTERNAL_H
#define WEFT_MODEL_TEXT_JINJA_INTERNAL_H

#include <string.h>

#include "model/text/jinja_syntax.h"

/* ---- a render -------------------------------------------------------------------------------- */

typedef struct jinja_variable {
  const jinja_string *name;
  jinja_value value;
  struct jinja_variable *next;
} jinja_variable;

typedef struct jinja_scope {
  jinja_variable *first;
  struct jinja_scope *parent;
} jinja_scope;

typedef enum jinja_flow { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE } jinja_flow;

struct jinja_run {
  const weft_jinja_context *context;
  jinja_arena arena;
  uint64_t steps; /* that may still be taken */
  uint32_t depth; /* of the function that runs now */
  uint32_t line;  /* of the template, for messages */
  jinja_scope *scope;
  jinja_buffer *out;
  weft_jinja_mark trace; /* of the next byte of a string that is read from JSON; 0: such strings are not traced */
  const char **written;  /* numbers that are printed as they were written */
  size_t n_written, written_capacity;
  jinja_flow flow;
  jinja_value captured;
  weft_status status;
  weft_error *error;
};

typedef struct jinja_function {
  const char *name;
  uint8_t n_min, n_max; /* arguments, without the value that a filter, test or method is applied to */
  jinja_value (*call)(jinja_run *run, jinja_value self, const jinja_args *args);
} jinja_function;

typedef struct jinja_bound {
  jinja_value self;
  const jinja_function *function;
} jinja_bound;

/* The function of a name, NULL when there is none. The table ends with a row without a name. */
static inline const jinja_function *jinja_function_find(const jinja_function *table, const char *name, size_t n) {
  for (; table->name != NULL; table++) {
    if (strlen(table->name) == n && memcmp(table->name, name, n) == 0) return table;
  }
  return NULL;
}
const jinja_function *jinja_global_find(const char *name, size_t n);
/* A method of the value's type. *known: Python has such a method; where weft has not, the call must be an error. */
const jinja_function *jinja_method_find(jinja_kind kind, const char *name, size_t n, bool *known);

void jinja_fail(jinja_run *run, weft_status status, const char *format, ...) __attribute__((format(printf, 3, 4)));
static inline bool jinja_failed(const jinja_run *run) {
  return run->status != WEFT_OK;
}
/* Counts n steps; false when the run has failed or has no steps left. */
bool jinja_charge(jinja_run *run, uint64_t n);
bool jinja_enter(jinja_run *run); /* goes one level deeper; false after a failure. Each call needs one of leave */
void jinja_leave(jinja_run *run);
void *jinja_take(jinja_run *run, size_t n); /* NULL: the run has failed */

jinja_value jinja_eval(jinja_run *run, const jinja_node *node);
void jinja_run_list(jinja_run *run, const jinja_node *first);
/* caller: the macro of a call block, which becomes the last argument; else NULL. */
jinja_args jinja_eval_arguments(jinja_run *run, const jinja_node *first, const jinja_value *caller);
jinja_value jinja_call(jinja_run *run, jinja_value callee, const jinja_args *args);
jinja_value jinja_call_macro(jinja_run *run, const jinja_macro *macro, const jinja_args *args);
jinja_value jinja_apply(jinja_run *run, const jinja_function *function, const char *what, jinja_value self,
                        const jinja_args *args);
void jinja_scope_set(jinja_run *run, const jinja_string *name, jinja_value value);
/* NULL when no scope has a variable of this name. */
const jinja_value *jinja_scope_find(jinja_run *run, const jinja_string *name);

/* The argument at a position or of that name; NULL when it was not given. */
const jinja_value *jinja_argument(const jinja_args *args, size_t at, const char *name);
/* The value as a whole number or a string. Where it is neither, the run fails with a line in which `what` names the
 * argument. */
int64_t jinja_integer_of(jinja_run *run, jinja_value value, const char *what);
const jinja_string *jinja_string_of(jinja_run *run, jinja_value value, const char *what); /* never NULL */

#endif
