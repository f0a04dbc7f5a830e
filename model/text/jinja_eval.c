/* SPDX-License-Identifier: MIT */
/* Expressions of a render. */
#include <math.h>
#include <string.h>

#include "model/text/jinja_internal.h"

/* ---- arithmetic ------------------------------------------------------------------------------ */

static const char *op_text(jinja_op op) {
  static const char *const texts[] = {"", "+", "-", "*", "/", "//", "%", "**"};
  return texts[op];
}

static jinja_value fail_operands(jinja_run *run, jinja_op op, jinja_value a, jinja_value b) {
  jinja_value undefined = a.kind == JINJA_UNDEFINED ? a : b;
  if (undefined.kind == JINJA_UNDEFINED && undefined.string != NULL) {
    jinja_fail(run, WEFT_E_INVALID, "'%.*s' is undefined", (int)(undefined.string->n < 64 ? undefined.string->n : 64),
               undefined.string->bytes);
  } else {
    jinja_fail(run, WEFT_E_INVALID, "%s %s %s means nothing", jinja_type_name(a), op_text(op), jinja_type_name(b));
  }
  return jinja_nothing();
}

static int64_t whole_of(jinja_value v) {
  return v.kind == JINJA_INT ? v.integer : v.truth;
}

static bool power_of(int64_t base, int64_t exponent, int64_t *out) {
  bool wraps = false;
  *out = 1;
  if (base >= -1 && base <= 1) { /* never wraps, so the loop would take as many rounds as the exponent says */
    *out = exponent % 2 == 0 ? base * base : base;
    if (exponent == 0) *out = 1;
  } else {
    for (int64_t i = 0; i < exponent && !wraps; i++) wraps = __builtin_mul_overflow(*out, base, out);
  }
  return !wraps;
}

/* Whole numbers stay whole; a result that does not fit is refused. */
static jinja_value integer_result(jinja_run *run, jinja_op op, int64_t a, int64_t b) {
  int64_t out = 0;
  bool fits = true;
  if ((op == OP_FLOOR_DIVIDE || op == OP_MODULO) && (b == 0 || b == -1)) {
    if (b == 0) jinja_fail(run, WEFT_E_INVALID, "a number is divided by 0");
    fits = op == OP_MODULO || !__builtin_sub_overflow(0, a, &out);
  } else if (op == OP_ADD) {
    fits = !__builtin_add_overflow(a, b, &out);
  } else if (op == OP_SUBTRACT) {
    fits = !__builtin_sub_overflow(a, b, &out);
  } else if (op == OP_MULTIPLY) {
    fits = !__builtin_mul_overflow(a, b, &out);
  } else if (op == OP_FLOOR_DIVIDE) {
    out = a / b - (a % b != 0 && (a < 0) != (b < 0));
  } else if (op == OP_MODULO) {
    out = a % b;
    if (out != 0 && (out < 0) != (b < 0)) out += b;
  } else {
    fits = jinja_charge(run, b < 64 ? (uint64_t)b : 64) && power_of(a, b, &out);
  }
  if (!fits) jinja_fail(run, WEFT_E_TOO_LARGE, "a number grows too large");
  return jinja_int(out);
}

static jinja_value real_result(jinja_run *run, jinja_op op, double a, double b) {
  if ((op == OP_DIVIDE || op == OP_FLOOR_DIVIDE || op == OP_MODULO) && b == 0) {
    jinja_fail(run, WEFT_E_INVALID, "a number is divided by 0");
    return jinja_nothing();
  }
  switch (op) {
    case OP_ADD:
      return jinja_float(a + b);
    case OP_SUBTRACT:
      return jinja_float(a - b);
    case OP_MULTIPLY:
      return jinja_float(a * b);
    case OP_DIVIDE:
      return jinja_float(a / b);
    case OP_FLOOR_DIVIDE:
      return jinja_float(floor(a / b));
    case OP_MODULO:
      return jinja_float(a - b * floor(a / b));
    default:
      return jinja_float(pow(a, b));
  }
}

static jinja_value repeat_value(jinja_run *run, jinja_value of, int64_t times) {
  if (of.kind == JINJA_STRING) {
    jinja_buffer *out = jinja_take(run, sizeof *out);
    for (int64_t i = 0; out != NULL && i < times && of.string->n > 0 && jinja_charge(run, 1); i++) {
      jinja_append(run, out, of.string);
    }
    return out == NULL ? jinja_nothing() : jinja_buffer_value(run, out);
  }
  jinja_items items = {0};
  for (int64_t i = 0; i < times && of.list->n > 0 && !jinja_failed(run); i++) {
    for (size_t k = 0; k < of.list->n && !jinja_failed(run); k++)
      jinja_items_add(run, &items, jinja_list_at(of.list, k));
  }
  return jinja_items_value(run, &items, JINJA_FLAVOUR_LIST);
}

static jinja_value join_lists(jinja_run *run, const jinja_list *a, const jinja_list *b) {
  jinja_items items = {0};
  for (size_t i = 0; i < a->n && !jinja_failed(run); i++) jinja_items_add(run, &items, jinja_list_at(a, i));
  for (size_t i = 0; i < b->n && !jinja_failed(run); i++) jinja_items_add(run, &items, jinja_list_at(b, i));
  return jinja_items_value(run, &items, a->flavour);
}

static jinja_value eval_binary(jinja_run *run, const jinja_node *node) {
  jinja_value a = jinja_eval(run, node->a), b = jinja_eval(run, node->b);
  jinja_op op = (jinja_op)node->op;
  if (jinja_failed(run)) return jinja_nothing();
  run->line = node->line;
  if (op == OP_ADD && a.kind == JINJA_STRING && b.kind == JINJA_STRING) return jinja_concat(run, a.string, b.string);
  if (op == OP_ADD && a.kind == JINJA_LIST && b.kind == JINJA_LIST && a.list->flavour == b.list->flavour &&
      a.list->flavour <= JINJA_FLAVOUR_TUPLE) {
    return join_lists(run, a.list, b.list);
  }
  if (op == OP_MULTIPLY && (b.kind == JINJA_STRING || b.kind == JINJA_LIST)) {
    jinja_value swap = a;
    a = b;
    b = swap;
  }
  bool numbers = jinja_is_number(a) && jinja_is_number(b), real = a.kind == JINJA_FLOAT || b.kind == JINJA_FLOAT;
  if (op == OP_MULTIPLY && (a.kind == JINJA_STRING || a.kind == JINJA_LIST) &&
      (b.kind == JINJA_INT || b.kind == JINJA_BOOL)) {
    return repeat_value(run, a, whole_of(b));
  }
  if (op == OP_MODULO && a.kind == JINJA_STRING) {
    jinja_fail(run, WEFT_E_UNSUPPORTED, "formatting a string by %% is not supported");
    return jinja_nothing();
  }
  if (!numbers) return fail_operands(run, op, a, b);
  if (real || op == OP_DIVIDE || (op == OP_POWER && whole_of(b) < 0)) {
    return real_result(run, op, jinja_number(a), jinja_number(b));
  }
  return integer_result(run, op, whole_of(a), whole_of(b));
}

static jinja_value eval_sign(jinja_run *run, const jinja_node *node) {
  jinja_value v = jinja_eval(run, node->a);
  bool negative = node->kind == NODE_NEGATIVE;
  if (v.kind == JINJA_FLOAT) return negative ? jinja_float(-v.real) : v;
  if (v.kind == JINJA_INT || v.kind == JINJA_BOOL) {
    return negative ? integer_result(run, OP_SUBTRACT, 0, whole_of(v)) : jinja_int(whole_of(v));
  }
  jinja_fail(run, WEFT_E_INVALID, "%s has no sign", jinja_type_name(v));
  return jinja_nothing();
}

/* ---- logic ----------------------------------------------------------------------------------- */

static bool comparison_holds(jinja_run *run, jinja_op op, jinja_value a, jinja_value b) {
  switch (op) {
    case OP_EQUAL:
      return jinja_equal(run, a, b);
    case OP_UNEQUAL:
      return !jinja_equal(run, a, b);
    case OP_IN:
      return jinja_contains(run, b, a);
    case OP_NOT_IN:
      return !jinja_contains(run, b, a);
    case OP_LESS:
      return jinja_compare(run, a, b) < 0;
    case OP_LESS_EQUAL:
      return jinja_compare(run, a, b) <= 0;
    case OP_MORE:
      return jinja_compare(run, a, b) > 0;
    default:
      return jinja_compare(run, a, b) >= 0;
  }
}

static jinja_value eval_comparison(jinja_run *run, const jinja_node *node) {
  jinja_value left = jinja_eval(run, node->a);
  for (const jinja_node *o = node->list; o != NULL && !jinja_failed(run); o = o->next) {
    jinja_value right = jinja_eval(run, o->a);
    run->line = node->line;
    if (!comparison_holds(run, (jinja_op)o->op, left, right)) return jinja_bool(false);
    left = right;
  }
  return jinja_bool(true);
}

/* The first operand that decides, or the last. */
static jinja_value eval_chain(jinja_run *run, const jinja_node *node) {
  jinja_value value = jinja_nothing();
  for (const jinja_node *n = node->list; n != NULL && !jinja_failed(run); n = n->next) {
    value = jinja_eval(run, n);
    if (jinja_truth(value) == (node->kind == NODE_OR)) break;
  }
  return value;
}

/* ---- names, literals ------------------------------------------------------------------------- */

static jinja_value eval_name(jinja_run *run, const jinja_node *node) {
  const jinja_value *value = jinja_scope_find(run, &node->text);
  if (value != NULL) return *value;
  const jinja_function *function = jinja_global_find(node->text.bytes, node->text.n);
  if (function != NULL) return (jinja_value){.kind = JINJA_FUNCTION, .function = function};
  return (jinja_value){.kind = JINJA_UNDEFINED, .string = &node->text};
}

static jinja_value eval_join(jinja_run *run, const jinja_node *node) {
  jinja_value text = jinja_word(run, "");
  for (const jinja_node *n = node->list; n != NULL && !jinja_failed(run); n = n->next) {
    text = jinja_concat(run, text.string, jinja_text(run, jinja_eval(run, n)));
  }
  return text;
}

static jinja_value eval_list(jinja_run *run, const jinja_node *node) {
  jinja_items items = {0};
  for (const jinja_node *n = node->list; n != NULL && !jinja_failed(run); n = n->next) {
    jinja_items_add(run, &items, jinja_eval(run, n));
  }
  return jinja_items_value(run, &items, node->kind == NODE_TUPLE ? JINJA_FLAVOUR_TUPLE : JINJA_FLAVOUR_LIST);
}

static jinja_value eval_dict(jinja_run *run, const jinja_node *node) {
  jinja_value dict = jinja_dict_new(run, JINJA_DICT);
  for (const jinja_node *n = node->list; n != NULL && !jinja_failed(run); n = n->next) {
    jinja_value key = jinja_eval(run, n->a), value = jinja_eval(run, n->b);
    if (!jinja_failed(run)) jinja_dict_set(run, dict.dict, key, value);
  }
  return dict;
}

/* ---- calls ----------------------------------------------------------------------------------- */

typedef struct argument_list {
  jinja_value *values;
  const jinja_string **names;
  size_t n, capacity;
} argument_list;

static void add_argument(jinja_run *run, argument_list *list, const jinja_string *name, jinja_value value) {
  if (!jinja_charge(run, 1)) return;
  if (list->n == list->capacity) {
    size_t capacity = list->capacity == 0 ? 4 : list->capacity * 2;
    jinja_value *values = jinja_take(run, capacity * sizeof *values);
    const jinja_string **names = jinja_take(run, capacity * sizeof *names);
    if (values == NULL || names == NULL) return;
    if (list->n > 0) {
      memcpy(values, list->values, list->n * sizeof *values);
      memcpy(names, list->names, list->n * sizeof *names);
    }
    list->values = values;
    list->names = names;
    list->capacity = capacity;
  }
  list->values[list->n] = value;
  list->names[list->n++] = name;
}

/* *list and **mapping as the arguments that they hold. */
static void spread_argument(jinja_run *run, argument_list *list, jinja_value value, bool named) {
  if (named && value.kind != JINJA_DICT)
    jinja_fail(run, WEFT_E_INVALID, "%s after ** is no mapping", jinja_type_name(value));
  for (size_t i = 0; named && !jinja_failed(run) && i < value.dict->n; i++) {
    const jinja_entry *e = &value.dict->entries[i];
    add_argument(run, list, jinja_string_of(run, e->key, "the name of an argument"), e->value);
  }
  if (named) return;
  const jinja_list *items = jinja_iterate(run, value);
  for (size_t i = 0; i < items->n && !jinja_failed(run); i++) add_argument(run, list, NULL, jinja_list_at(items, i));
}

jinja_args jinja_eval_arguments(jinja_run *run, const jinja_node *first, const jinja_value *caller) {
  static const jinja_string caller_name = {.bytes = "caller", .n = 6};
  argument_list list = {0};
  for (const jinja_node *a = first; a != NULL && !jinja_failed(run); a = a->next) {
    jinja_value value = jinja_eval(run, a->a);
    if (a->op == JINJA_SPREAD || a->op == JINJA_SPREAD_NAMED) {
      spread_argument(run, &list, value, a->op == JINJA_SPREAD_NAMED);
    } else {
      add_argument(run, &list, a->text.n > 0 ? &a->text : NULL, value);
    }
  }
  if (caller != NULL) add_argument(run, &list, &caller_name, *caller);
  return (jinja_args){list.values, list.names, list.n};
}

jinja_value jinja_apply(jinja_run *run, const jinja_function *f, const char *what, jinja_value self,
                        const jinja_args *args) {
  if (jinja_failed(run)) return jinja_nothing();
  if (args->n < f->n_min || args->n > f->n_max) {
    jinja_fail(run, WEFT_E_INVALID, "the %s '%s' takes %u to %u arguments and is given %zu", what, f->name, f->n_min,
               f->n_max, args->n);
    return jinja_nothing();
  }
  return f->call(run, self, args);
}

jinja_value jinja_call(jinja_run *run, jinja_value callee, const jinja_args *args) {
  if (callee.kind == JINJA_MACRO) return jinja_call_macro(run, callee.macro, args);
  if (callee.kind == JINJA_FUNCTION) return jinja_apply(run, callee.function, "function", jinja_nothing(), args);
  if (callee.kind == JINJA_METHOD) return jinja_apply(run, callee.bound->function, "method", callee.bound->self, args);
  if (callee.kind == JINJA_UNDEFINED && callee.string != NULL) {
    jinja_fail(run, WEFT_E_INVALID, "there is no function '%.*s'", (int)(callee.string->n < 64 ? callee.string->n : 64),
               callee.string->bytes);
  } else {
    jinja_fail(run, WEFT_E_INVALID, "%s is called like a function", jinja_type_name(callee));
  }
  return jinja_nothing();
}

static jinja_value eval_call(jinja_run *run, const jinja_node *node) {
  jinja_value callee = jinja_eval(run, node->a);
  jinja_args args = jinja_eval_arguments(run, node->list, NULL);
  run->line = node->line;
  return jinja_failed(run) ? jinja_nothing() : jinja_call(run, callee, &args);
}

static jinja_value eval_applied(jinja_run *run, const jinja_node *node) {
  jinja_value self = jinja_eval(run, node->a);
  jinja_args args = jinja_eval_arguments(run, node->list, NULL);
  run->line = node->line;
  return jinja_apply(run, node->function, node->kind == NODE_TEST ? "test" : "filter", self, &args);
}

static jinja_value eval_slice(jinja_run *run, const jinja_node *node) {
  jinja_value of = jinja_eval(run, node->a);
  jinja_value from = node->b == NULL ? jinja_none() : jinja_eval(run, node->b);
  jinja_value to = node->c == NULL ? jinja_none() : jinja_eval(run, node->c);
  jinja_value step = node->d == NULL ? jinja_none() : jinja_eval(run, node->d);
  run->line = node->line;
  return jinja_failed(run) ? jinja_nothing() : jinja_slice(run, of, from, to, step);
}

static jinja_value eval_part(jinja_run *run, const jinja_node *node) {
  jinja_value of = jinja_eval(run, node->a), key = jinja_nothing();
  if (node->kind == NODE_ITEM) key = jinja_eval(run, node->b);
  run->line = node->line;
  if (jinja_failed(run)) return jinja_nothing();
  return node->kind == NODE_ITEM ? jinja_item(run, of, key) : jinja_attribute(run, of, &node->text);
}

static jinja_value eval_choice(jinja_run *run, const jinja_node *node) {
  bool chosen = jinja_truth(jinja_eval(run, node->a));
  if (jinja_failed(run)) return jinja_nothing();
  return chosen ? jinja_eval(run, node->b) : node->c == NULL ? jinja_nothing() : jinja_eval(run, node->c);
}

static jinja_value eval_composite(jinja_run *run, const jinja_node *node) {
  switch (node->kind) {
    case NODE_ATTRIBUTE:
    case NODE_ITEM:
      return eval_part(run, node);
    case NODE_SLICE:
      return eval_slice(run, node);
    case NODE_CALL:
      return eval_call(run, node);
    case NODE_FILTER:
    case NODE_TEST:
      return eval_applied(run, node);
    case NODE_NOT:
      return jinja_bool(!jinja_truth(jinja_eval(run, node->a)));
    case NODE_NEGATIVE:
    case NODE_POSITIVE:
      return eval_sign(run, node);
    case NODE_AND:
    case NODE_OR:
      return eval_chain(run, node);
    case NODE_CHOICE:
      return eval_choice(run, node);
    case NODE_COMPARE:
      return eval_comparison(run, node);
    case NODE_BINARY:
      return eval_binary(run, node);
    case NODE_JOIN:
      return eval_join(run, node);
    case NODE_LIST:
    case NODE_TUPLE:
      return eval_list(run, node);
    case NODE_DICT:
      return eval_dict(run, node);
    default:
      return jinja_nothing(); /* no expression */
  }
}

jinja_value jinja_eval(jinja_run *run, const jinja_node *node) {
  if (!jinja_charge(run, 1)) return jinja_nothing();
  if (node->kind == NODE_CONST) return node->value;
  if (node->kind == NODE_NAME) return eval_name(run, node);
  if (node->kind == NODE_CAPTURED) return run->captured;
  jinja_value value = jinja_nothing();
  run->line = node->line;
  if (jinja_enter(run)) value = eval_composite(run, node);
  jinja_leave(run);
  return value;
}
