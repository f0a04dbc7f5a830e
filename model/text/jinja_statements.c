/* SPDX-License-Identifier: MIT */
/* Statements of a render: what prints, and what variables are seen where.
 *
 * Law: a scope sees the variables of those around it, as they are at that moment; setting makes or changes a variable
 * of the innermost scope. Loops (one scope a round), macros, calls, filters, `with` and blocks that set have scopes of
 * their own, `if` has none. A macro's scope lies in the one where the macro stands. */
#include <string.h>

#include "model/text/jinja_internal.h"

static bool push_scope(jinja_run *run, jinja_scope *parent) {
  jinja_scope *scope = jinja_take(run, sizeof *scope);
  if (scope == NULL) return false;
  scope->parent = parent;
  run->scope = scope;
  return true;
}

static jinja_variable *find_variable(jinja_run *run, const jinja_scope *scope, const jinja_string *name) {
  for (jinja_variable *v = scope->first; v != NULL && jinja_charge(run, 1); v = v->next) {
    if (jinja_string_is(v->name, name->bytes, name->n)) return v;
  }
  return NULL;
}

void jinja_scope_set(jinja_run *run, const jinja_string *name, jinja_value value) {
  jinja_variable *v = find_variable(run, run->scope, name);
  if (v == NULL) {
    v = jinja_take(run, sizeof *v);
    if (v == NULL) return;
    v->name = name;
    v->next = run->scope->first;
    run->scope->first = v;
  }
  v->value = value;
}

const jinja_value *jinja_scope_find(jinja_run *run, const jinja_string *name) {
  for (const jinja_scope *scope = run->scope; scope != NULL && jinja_charge(run, 1); scope = scope->parent) {
    const jinja_variable *v = find_variable(run, scope, name);
    if (v != NULL) return &v->value;
  }
  return NULL;
}

static void set_names(jinja_run *run, const jinja_node *tuple, jinja_value value) {
  const jinja_list *list = jinja_iterate(run, value);
  size_t n = 0, i = 0;
  for (const jinja_node *name = tuple->list; name != NULL; name = name->next) n += 1;
  if (!jinja_failed(run) && list->n != n) {
    jinja_fail(run, WEFT_E_INVALID, "%zu values are set to %zu names", list->n, n);
    return;
  }
  for (const jinja_node *name = tuple->list; name != NULL && !jinja_failed(run); name = name->next) {
    jinja_scope_set(run, &name->text, jinja_list_at(list, i++));
  }
}

static void set_target(jinja_run *run, const jinja_node *target, jinja_value value) {
  if (jinja_failed(run)) return;
  if (target->kind == NODE_NAME) {
    jinja_scope_set(run, &target->text, value);
  } else if (target->kind == NODE_TUPLE) {
    set_names(run, target, value);
  } else {
    const jinja_value *of = jinja_scope_find(run, &target->a->text);
    if (of == NULL || of->kind != JINJA_NAMESPACE) {
      jinja_fail(run, WEFT_E_INVALID, "'%.*s' is no namespace, so its attributes cannot be set",
                 (int)(target->a->text.n < 64 ? target->a->text.n : 64), target->a->text.bytes);
      return;
    }
    jinja_dict_set(run, of->dict, (jinja_value){.kind = JINJA_STRING, .string = &target->text}, value);
  }
}

/* What the statements print, with `scope` around them. */
static jinja_value capture_list(jinja_run *run, const jinja_node *first, jinja_scope *scope) {
  jinja_buffer *outside = run->out, *out = jinja_take(run, sizeof *out);
  jinja_scope *before = run->scope;
  if (out == NULL || !push_scope(run, scope)) return jinja_word(run, "");
  run->out = out;
  jinja_run_list(run, first);
  run->out = outside;
  run->scope = before;
  return jinja_buffer_value(run, out);
}

/* Runs the filters of a block on what it printed. */
static jinja_value filter_captured(jinja_run *run, const jinja_node *filters, jinja_value text) {
  jinja_value before = run->captured;
  run->captured = text;
  jinja_value value = jinja_eval(run, filters);
  run->captured = before;
  return value;
}

/* ---- loops ----------------------------------------------------------------------------------- */

/* The elements that the loop's `if` keeps. */
static const jinja_list *filter_loop(jinja_run *run, const jinja_node *node, const jinja_list *list) {
  jinja_items kept = {0};
  jinja_scope *before = run->scope;
  for (size_t i = 0; i < list->n && !jinja_failed(run); i++) {
    jinja_value item = jinja_list_at(list, i);
    if (!push_scope(run, before)) break;
    set_target(run, node->a, item);
    if (jinja_truth(jinja_eval(run, node->c))) jinja_items_add(run, &kept, item);
  }
  run->scope = before;
  return jinja_items_value(run, &kept, JINJA_FLAVOUR_LIST).list;
}

static void run_for(jinja_run *run, const jinja_node *node) {
  static const jinja_string loop_name = {.bytes = "loop", .n = 4};
  jinja_scope *before = run->scope;
  const jinja_list *list = jinja_iterate(run, jinja_eval(run, node->b));
  jinja_loop *loop = jinja_take(run, sizeof *loop);
  if (jinja_failed(run)) return;
  if (node->c != NULL) list = filter_loop(run, node, list);
  loop->list = list;
  for (size_t i = 0; i < list->n && jinja_charge(run, 1) && run->flow != FLOW_BREAK; i++) {
    if (!push_scope(run, before)) break;
    loop->at = i;
    jinja_scope_set(run, &loop_name, (jinja_value){.kind = JINJA_LOOP, .loop = loop});
    set_target(run, node->a, jinja_list_at(list, i));
    jinja_run_list(run, node->list);
    if (run->flow == FLOW_CONTINUE) run->flow = FLOW_ON;
  }
  run->flow = FLOW_ON;
  run->scope = before;
  if (list->n == 0 && node->d != NULL && push_scope(run, before)) jinja_run_list(run, node->d->list);
  run->scope = before;
}

/* ---- macros ---------------------------------------------------------------------------------- */

static jinja_value make_macro(jinja_run *run, const jinja_node *node) {
  jinja_macro *macro = jinja_take(run, sizeof *macro);
  if (macro == NULL) return jinja_nothing();
  *macro = (jinja_macro){node, run->scope};
  return (jinja_value){.kind = JINJA_MACRO, .macro = macro};
}

static void fail_argument(jinja_run *run, const jinja_macro *macro, const jinja_string *name) {
  jinja_fail(run, WEFT_E_INVALID, "the macro '%.*s' takes no argument '%.*s' here", (int)macro->node->text.n,
             macro->node->text.bytes, (int)(name->n < 64 ? name->n : 64), name->bytes);
}

/* Sets the macro's parameters in run->scope. A default is evaluated there, so it sees the parameters before it. */
static void set_parameters(jinja_run *run, const jinja_macro *macro, const jinja_args *args) {
  static const jinja_string caller = {.bytes = "caller", .n = 6};
  size_t at = 0, n_used = 0, n_positional = 0;
  while (n_positional < args->n && args->names[n_positional] == NULL) n_positional += 1;
  for (const jinja_node *p = macro->node->b->list; p != NULL && !jinja_failed(run); p = p->next, at++) {
    const jinja_value *given = at < n_positional ? &args->values[at] : NULL;
    for (size_t i = n_positional; i < args->n; i++) {
      if (!jinja_string_is(args->names[i], p->text.bytes, p->text.n)) continue;
      if (given != NULL) fail_argument(run, macro, &p->text);
      given = &args->values[i];
    }
    n_used += given != NULL;
    jinja_value value = {.kind = JINJA_UNDEFINED, .string = &p->text};
    if (given == NULL && p->a != NULL) value = jinja_eval(run, p->a);
    jinja_scope_set(run, &p->text, given != NULL ? *given : value);
  }
  if (jinja_failed(run) || n_used == args->n) return;
  const jinja_string *last = args->names[args->n - 1]; /* a caller comes last */
  bool called = last != NULL && jinja_string_is(last, "caller", 6) && macro->node->op == JINJA_TAKES_CALLER;
  if (called && n_used + 1 == args->n) {
    jinja_scope_set(run, &caller, args->values[args->n - 1]);
  } else {
    jinja_fail(run, WEFT_E_INVALID, "the macro '%.*s' is given an argument that it does not take",
               (int)(macro->node->text.n < 64 ? macro->node->text.n : 64), macro->node->text.bytes);
  }
}

jinja_value jinja_call_macro(jinja_run *run, const jinja_macro *macro, const jinja_args *args) {
  jinja_scope *before = run->scope;
  jinja_value value = jinja_word(run, "");
  if (jinja_enter(run) && push_scope(run, macro->scope)) {
    set_parameters(run, macro, args);
    value = capture_list(run, macro->node->list, run->scope);
  }
  jinja_leave(run);
  run->scope = before;
  return value;
}

static void run_call_block(jinja_run *run, const jinja_node *node) {
  jinja_value callee = jinja_eval(run, node->a->a), caller = make_macro(run, node->b);
  const jinja_args args = jinja_eval_arguments(run, node->a->list, &caller);
  jinja_value text = jinja_failed(run) ? jinja_nothing() : jinja_call(run, callee, &args);
  if (!jinja_failed(run)) jinja_append_value(run, run->out, text);
}

/* ---- the rest -------------------------------------------------------------------------------- */

static void run_if(jinja_run *run, const jinja_node *node) {
  for (; node != NULL && node->kind == NODE_IF && !jinja_failed(run); node = node->b) {
    if (jinja_truth(jinja_eval(run, node->a))) {
      jinja_run_list(run, node->list);
      return;
    }
  }
  if (node != NULL && !jinja_failed(run)) jinja_run_list(run, node->list); /* else */
}

static void run_scoped(jinja_run *run, const jinja_node *node) {
  jinja_scope *before = run->scope;
  if (push_scope(run, before)) {
    for (const jinja_node *set = node->c == NULL ? NULL : node->c->list; set != NULL; set = set->next) {
      jinja_scope *inside = run->scope;
      run->scope = before; /* values of `with` do not see each other */
      jinja_value value = jinja_eval(run, set->b);
      run->scope = inside;
      set_target(run, set->a, value);
    }
    jinja_run_list(run, node->list);
  }
  run->scope = before;
}

static void run_statement(jinja_run *run, const jinja_node *node) {
  switch (node->kind) {
    case NODE_DATA:
      jinja_append(run, run->out, &node->text);
      break;
    case NODE_PRINT:
      jinja_append_value(run, run->out, jinja_eval(run, node->a));
      break;
    case NODE_IF:
      run_if(run, node);
      break;
    case NODE_FOR:
      run_for(run, node);
      break;
    case NODE_SET:
      set_target(run, node->a, jinja_eval(run, node->b));
      break;
    case NODE_SET_BLOCK:
      set_target(run, node->a, filter_captured(run, node->b, capture_list(run, node->list, run->scope)));
      break;
    case NODE_MACRO:
      jinja_scope_set(run, &node->text, make_macro(run, node));
      break;
    case NODE_CALL_BLOCK:
      run_call_block(run, node);
      break;
    case NODE_FILTER_BLOCK:
      jinja_append_value(run, run->out, filter_captured(run, node->b, capture_list(run, node->list, run->scope)));
      break;
    case NODE_BREAK:
      run->flow = FLOW_BREAK;
      break;
    case NODE_CONTINUE:
      run->flow = FLOW_CONTINUE;
      break;
    default: /* a body of its own, with */
      run_scoped(run, node);
  }
}

void jinja_run_list(jinja_run *run, const jinja_node *first) {
  if (jinja_enter(run)) {
    for (const jinja_node *node = first; node != NULL && run->flow == FLOW_ON && jinja_charge(run, 1);
         node = node->next) {
      run->line = node->line;
      run_statement(run, node);
    }
  }
  jinja_leave(run);
}
