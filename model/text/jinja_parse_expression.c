/* SPDX-License-Identifier: MIT */
/* Expressions of a template, by recursive descent, loosest first:
 *   a if b else c | or | and | not | comparisons, in | + - | ~ | * / // % | ** | unary, then filters and tests */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "model/text/jinja_syntax.h"

static jinja_node *parse_or(jinja_parser *p);
static jinja_node *parse_unary(jinja_parser *p, bool with_filters);

static bool is_operator(const jinja_parser *p, const char *text) {
  return jinja_parser_is(p, TOKEN_OPERATOR, text);
}

static bool skip_operator(jinja_parser *p, const char *text) {
  return jinja_parser_skip(p, TOKEN_OPERATOR, text);
}

static jinja_node *node_of(jinja_parser *p, jinja_node_kind kind, jinja_node *a, jinja_node *b) {
  jinja_node *node = jinja_parser_node(p, kind);
  node->line = a->line;
  node->a = a;
  node->b = b;
  return node;
}

static jinja_node **append_node(jinja_node **tail, jinja_node *node) {
  *tail = node;
  return &node->next;
}

static void parse_arguments(jinja_parser *p, jinja_node *call) {
  jinja_node **tail = &call->list;
  bool named = false;
  jinja_parser_expect(p, TOKEN_OPERATOR, "(");
  while (p->status == WEFT_OK && !is_operator(p, ")")) {
    jinja_node *argument = jinja_parser_node(p, NODE_ARGUMENT);
    argument->op = skip_operator(p, "*") ? JINJA_SPREAD : skip_operator(p, "**") ? JINJA_SPREAD_NAMED : OP_NONE;
    bool is_single = argument->op == OP_NONE; /* what is spread has no name */
    if (is_single && jinja_parser_is(p, TOKEN_NAME, NULL) && jinja_token_is(p->token + 1, TOKEN_OPERATOR, "=")) {
      argument->text = (jinja_string){.bytes = p->token->bytes, .n = p->token->n};
      p->token += 2;
      named = true;
    } else if (named && argument->op != JINJA_SPREAD_NAMED) {
      jinja_parse_fail(p, WEFT_E_FORMAT, "an argument without a name follows one with a name");
    }
    named = named || argument->op == JINJA_SPREAD_NAMED;
    argument->a = jinja_parse_expression(p);
    tail = append_node(tail, argument);
    if (!skip_operator(p, ",")) break;
  }
  jinja_parser_expect(p, TOKEN_OPERATOR, ")");
}

static jinja_node *parse_call(jinja_parser *p, jinja_node *of) {
  jinja_node *call = node_of(p, NODE_CALL, of, NULL);
  call->line = p->token->line;
  parse_arguments(p, call);
  return call;
}

static void parse_brackets(jinja_parser *p, jinja_node *node) {
  jinja_node *parts[3] = {NULL, NULL, NULL};
  uint32_t n = 0;
  bool slice = false;
  while (p->status == WEFT_OK && !is_operator(p, "]")) {
    if (skip_operator(p, ":")) {
      slice = true;
      if (++n > 2) jinja_parse_fail(p, WEFT_E_FORMAT, "a slice has at most three parts");
    } else if (parts[n < 3 ? n : 2] == NULL) {
      parts[n < 3 ? n : 2] = jinja_parse_expression(p);
    } else {
      break;
    }
  }
  if (is_operator(p, ",")) jinja_parse_fail(p, WEFT_E_UNSUPPORTED, "several subscripts in one [] are not supported");
  jinja_parser_expect(p, TOKEN_OPERATOR, "]");
  if (!slice && parts[0] == NULL) jinja_parse_fail(p, WEFT_E_FORMAT, "[] is empty");
  node->kind = slice ? NODE_SLICE : NODE_ITEM;
  node->b = parts[0];
  node->c = parts[1];
  node->d = parts[2];
}

/* What follows a primary: .name, [..], (..) */
static jinja_node *parse_postfix(jinja_parser *p, jinja_node *node) {
  uint32_t n_deep = 0;
  while (p->status == WEFT_OK) {
    if (is_operator(p, "(")) {
      node = parse_call(p, node);
    } else if (skip_operator(p, ".")) {
      const jinja_token *name = p->token;
      jinja_node *attribute = node_of(p, NODE_ATTRIBUTE, node, NULL);
      if (jinja_parser_skip(p, TOKEN_NAME, NULL)) {
        attribute->text = (jinja_string){.bytes = name->bytes, .marks = p->jinja->marks, .n = name->n};
      } else {
        attribute->kind = NODE_ITEM;
        attribute->b = jinja_parser_is(p, TOKEN_INT, NULL) ? jinja_parse_primary(p) : node;
        if (attribute->b == node) jinja_parse_fail(p, WEFT_E_FORMAT, "a name must follow '.'");
      }
      node = attribute;
    } else if (skip_operator(p, "[")) {
      node = node_of(p, NODE_ITEM, node, NULL);
      parse_brackets(p, node);
    } else {
      break;
    }
    if (++n_deep > JINJA_CHAIN_MAX)
      jinja_parse_fail(p, WEFT_E_TOO_LARGE, "more than %d calls and attributes in a row", JINJA_CHAIN_MAX);
  }
  return node;
}

static jinja_node *parse_number(jinja_parser *p) {
  char digits[64];
  size_t n = 0;
  jinja_node *node = jinja_parser_node(p, NODE_CONST);
  const jinja_token *token = p->token++;
  for (size_t i = 0; i < token->n && n < sizeof digits - 1; i++) {
    if (token->bytes[i] != '_') digits[n++] = token->bytes[i];
  }
  digits[n] = 0;
  errno = 0;
  if (token->kind == TOKEN_INT) {
    node->value = (jinja_value){.kind = JINJA_INT, .integer = strtoll(digits, NULL, 10)};
  } else {
    node->value = (jinja_value){.kind = JINJA_FLOAT, .real = strtod(digits, NULL)};
  }
  if (errno != 0 || token->n >= sizeof digits) {
    jinja_parse_fail(p, WEFT_E_UNSUPPORTED, "the number %.32s does not fit", digits);
  }
  return node;
}

/* 'a' 'b' is one literal. */
static jinja_node *parse_literal(jinja_parser *p) {
  jinja_node *node = jinja_parser_node(p, NODE_CONST);
  size_t n = 0;
  const jinja_token *first = p->token;
  for (; jinja_parser_is(p, TOKEN_TEXT, NULL); p->token++) n += p->token->n;
  char *bytes = jinja_parser_take(p, n);
  if (bytes == NULL) return node;
  n = 0;
  for (const jinja_token *t = first; t < p->token; n += t->n, t++) memcpy(bytes + n, t->bytes, t->n);
  node->text = (jinja_string){.bytes = bytes, .marks = p->jinja->marks, .n = n};
  node->value = (jinja_value){.kind = JINJA_STRING, .string = &node->text};
  return node;
}

static void parse_list(jinja_parser *p, jinja_node *list, const char *close) {
  jinja_node **tail = &list->list;
  while (p->status == WEFT_OK && !is_operator(p, close)) {
    tail = append_node(tail, jinja_parse_expression(p));
    if (!skip_operator(p, ",")) break;
  }
  jinja_parser_expect(p, TOKEN_OPERATOR, close);
}

static jinja_node *parse_dict(jinja_parser *p) {
  jinja_node *dict = jinja_parser_node(p, NODE_DICT);
  jinja_node **tail = &dict->list;
  while (p->status == WEFT_OK && !is_operator(p, "}")) {
    jinja_node *pair = jinja_parser_node(p, NODE_PAIR);
    pair->a = jinja_parse_expression(p);
    jinja_parser_expect(p, TOKEN_OPERATOR, ":");
    pair->b = jinja_parse_expression(p);
    tail = append_node(tail, pair);
    if (!skip_operator(p, ",")) break;
  }
  jinja_parser_expect(p, TOKEN_OPERATOR, "}");
  return dict;
}

static jinja_node *parse_name(jinja_parser *p) {
  static const struct {
    const char *word;
    jinja_value value;
  } words[] = {
      {"true", {.kind = JINJA_BOOL, .truth = true}},
      {"True", {.kind = JINJA_BOOL, .truth = true}},
      {"false", {.kind = JINJA_BOOL, .truth = false}},
      {"False", {.kind = JINJA_BOOL, .truth = false}},
      {"none", {.kind = JINJA_NONE}},
      {"None", {.kind = JINJA_NONE}},
  };
  jinja_node *node = jinja_parser_node(p, NODE_NAME);
  const jinja_token *name = p->token++;
  node->text = (jinja_string){.bytes = name->bytes, .marks = p->jinja->marks, .n = name->n};
  for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
    if (!jinja_string_is(&node->text, words[i].word, strlen(words[i].word))) continue;
    node->kind = NODE_CONST;
    node->value = words[i].value;
  }
  if (jinja_string_is(&node->text, "caller", 6)) p->mentions_caller = true;
  return node;
}

jinja_node *jinja_parse_primary(jinja_parser *p) {
  if (jinja_parser_is(p, TOKEN_NAME, NULL)) return parse_name(p);
  if (jinja_parser_is(p, TOKEN_TEXT, NULL)) return parse_literal(p);
  if (jinja_parser_is(p, TOKEN_INT, NULL) || jinja_parser_is(p, TOKEN_FLOAT, NULL)) return parse_number(p);
  if (skip_operator(p, "(")) {
    if (skip_operator(p, ")")) return jinja_parser_node(p, NODE_TUPLE);
    jinja_node *inside = jinja_parse_tuple(p, true);
    jinja_parser_expect(p, TOKEN_OPERATOR, ")");
    return inside;
  }
  if (skip_operator(p, "[")) {
    jinja_node *list = jinja_parser_node(p, NODE_LIST);
    parse_list(p, list, "]");
    return list;
  }
  if (skip_operator(p, "{")) return parse_dict(p);
  jinja_parse_fail(p, WEFT_E_FORMAT, "an expression is missing%s%.*s%s", p->token->n > 0 ? " before '" : "",
                   (int)(p->token->n < 32 ? p->token->n : 32), p->token->bytes, p->token->n > 0 ? "'" : "");
  return jinja_parser_node(p, NODE_CONST);
}

jinja_node *jinja_parse_primary_call(jinja_parser *p) {
  return parse_postfix(p, jinja_parse_primary(p));
}

/* A filter or a test (kind, what) of a value, without arguments as yet. */
static jinja_node *parse_applied(jinja_parser *p, jinja_node_kind kind, const char *what, jinja_node *of,
                                 const struct jinja_function *(*find)(const char *name, size_t n)) {
  const jinja_token *name = p->token;
  jinja_node *node = node_of(p, kind, of, NULL);
  node->line = name->line;
  jinja_parser_expect(p, TOKEN_NAME, NULL);
  node->function = find(name->bytes, name->n);
  if (node->function == NULL) {
    jinja_parse_fail(p, WEFT_E_UNSUPPORTED, "the %s '%.*s' is not supported", what, (int)(name->n < 64 ? name->n : 64),
                     name->bytes);
  }
  return node;
}

static jinja_node *parse_filter(jinja_parser *p, jinja_node *of) {
  jinja_node *node = parse_applied(p, NODE_FILTER, "filter", of, jinja_filter_find);
  if (is_operator(p, "(")) parse_arguments(p, node);
  return node;
}

static bool begins_argument(const jinja_parser *p) {
  const jinja_token *t = p->token;
  if (t->kind == TOKEN_NAME) {
    return !jinja_token_is(t, TOKEN_NAME, "else") && !jinja_token_is(t, TOKEN_NAME, "or") &&
           !jinja_token_is(t, TOKEN_NAME, "and") && !jinja_token_is(t, TOKEN_NAME, "if") &&
           !jinja_token_is(t, TOKEN_NAME, "is");
  }
  return t->kind == TOKEN_TEXT || t->kind == TOKEN_INT || t->kind == TOKEN_FLOAT || is_operator(p, "[") ||
         is_operator(p, "{");
}

static jinja_node *parse_test(jinja_parser *p, jinja_node *of) {
  bool negated = jinja_parser_skip(p, TOKEN_NAME, "not");
  jinja_node *node = parse_applied(p, NODE_TEST, "test", of, jinja_test_find);
  if (is_operator(p, "(")) {
    parse_arguments(p, node);
  } else if (begins_argument(p)) {
    node->list = jinja_parser_node(p, NODE_ARGUMENT);
    node->list->a = jinja_parse_primary_call(p);
  }
  return negated ? node_of(p, NODE_NOT, node, NULL) : node;
}

jinja_node *jinja_parse_filters(jinja_parser *p, jinja_node *node, bool first_without_pipe) {
  uint32_t n_deep = 0;
  if (first_without_pipe) node = parse_filter(p, node);
  while (p->status == WEFT_OK) {
    if (skip_operator(p, "|")) {
      node = parse_filter(p, node);
    } else if (jinja_parser_skip(p, TOKEN_NAME, "is")) {
      node = parse_test(p, node);
    } else if (is_operator(p, "(")) {
      node = parse_call(p, node);
    } else {
      break;
    }
    if (++n_deep > JINJA_CHAIN_MAX)
      jinja_parse_fail(p, WEFT_E_TOO_LARGE, "more than %d filters in a row", JINJA_CHAIN_MAX);
  }
  return node;
}

static jinja_node *parse_unary(jinja_parser *p, bool with_filters) {
  jinja_node *node = NULL;
  if (!jinja_parser_enter(p)) {
    node = jinja_parser_node(p, NODE_CONST);
  } else if (skip_operator(p, "-")) {
    node = jinja_parser_node(p, NODE_NEGATIVE);
    node->a = parse_unary(p, false);
  } else if (skip_operator(p, "+")) {
    node = jinja_parser_node(p, NODE_POSITIVE);
    node->a = parse_unary(p, false);
  } else {
    node = jinja_parse_primary(p);
  }
  node = parse_postfix(p, node);
  if (with_filters) node = jinja_parse_filters(p, node, false);
  jinja_parser_leave(p);
  return node;
}

/* An operator of a level; a row of a level ends with one without text. */
typedef struct operator_row {
  const char *text;
  jinja_op op;
} operator_row;

static const operator_row sums[] = {{"+", OP_ADD}, {"-", OP_SUBTRACT}, {NULL, OP_NONE}};
static const operator_row products[] = {
    {"*", OP_MULTIPLY}, {"/", OP_DIVIDE}, {"//", OP_FLOOR_DIVIDE}, {"%", OP_MODULO}, {NULL, OP_NONE}};
static const operator_row powers[] = {{"**", OP_POWER}, {NULL, OP_NONE}};
static const operator_row comparisons[] = {{"==", OP_EQUAL},      {"!=", OP_UNEQUAL}, {"<", OP_LESS},
                                           {"<=", OP_LESS_EQUAL}, {">", OP_MORE},     {">=", OP_MORE_EQUAL},
                                           {NULL, OP_NONE}};

static jinja_op skip_row(jinja_parser *p, const operator_row *row) {
  for (; row->text != NULL; row++) {
    if (skip_operator(p, row->text)) return row->op;
  }
  return OP_NONE;
}

/* A chain of operands and the operators of one row. It makes a tree that leans to the left; what walks the tree goes as
 * deep as the chain is long. */
static jinja_node *parse_binary(jinja_parser *p, const operator_row *row, jinja_node *(*parse)(jinja_parser *)) {
  uint32_t n_deep = 0;
  jinja_node *node = parse(p);
  for (jinja_op op; p->status == WEFT_OK && (op = skip_row(p, row)) != OP_NONE;) {
    node = node_of(p, NODE_BINARY, node, parse(p));
    node->op = op;
    if (++n_deep > JINJA_CHAIN_MAX)
      jinja_parse_fail(p, WEFT_E_TOO_LARGE, "more than %d operators in a row", JINJA_CHAIN_MAX);
  }
  return node;
}

/* A chain of operands and one operator or word: one node with a list. */
static jinja_node *parse_chain(jinja_parser *p, jinja_token_kind token, const char *text, jinja_node_kind kind,
                               jinja_node *(*parse)(jinja_parser *)) {
  jinja_node *first = parse(p);
  if (!jinja_parser_is(p, token, text)) return first;
  jinja_node *node = jinja_parser_node(p, kind);
  jinja_node **tail = append_node(&node->list, first);
  while (p->status == WEFT_OK && jinja_parser_skip(p, token, text)) tail = append_node(tail, parse(p));
  return node;
}

static jinja_node *parse_filtered_unary(jinja_parser *p) {
  return parse_unary(p, true);
}

static jinja_node *parse_power(jinja_parser *p) {
  return parse_binary(p, powers, parse_filtered_unary);
}

static jinja_node *parse_product(jinja_parser *p) {
  return parse_binary(p, products, parse_power);
}

static jinja_node *parse_join(jinja_parser *p) {
  return parse_chain(p, TOKEN_OPERATOR, "~", NODE_JOIN, parse_product);
}

static jinja_node *parse_sum(jinja_parser *p) {
  return parse_binary(p, sums, parse_join);
}

static jinja_op skip_comparison(jinja_parser *p) {
  if (jinja_parser_skip(p, TOKEN_NAME, "in")) return OP_IN;
  if (jinja_parser_is(p, TOKEN_NAME, "not") && jinja_token_is(p->token + 1, TOKEN_NAME, "in")) {
    p->token += 2;
    return OP_NOT_IN;
  }
  return skip_row(p, comparisons);
}

static jinja_node *parse_comparison(jinja_parser *p) {
  jinja_node *first = parse_sum(p);
  jinja_op op = skip_comparison(p);
  if (op == OP_NONE) return first;
  jinja_node *node = node_of(p, NODE_COMPARE, first, NULL);
  for (jinja_node **tail = &node->list; p->status == WEFT_OK && op != OP_NONE; op = skip_comparison(p)) {
    jinja_node *operand = jinja_parser_node(p, NODE_OPERAND);
    operand->op = op;
    operand->a = parse_sum(p);
    tail = append_node(tail, operand);
  }
  return node;
}

static jinja_node *parse_not(jinja_parser *p) {
  if (!jinja_parser_is(p, TOKEN_NAME, "not")) return parse_comparison(p);
  jinja_node *node = jinja_parser_node(p, NODE_NOT);
  p->token += 1;
  node->a = jinja_parser_enter(p) ? parse_not(p) : node;
  jinja_parser_leave(p);
  return node;
}

static jinja_node *parse_and(jinja_parser *p) {
  return parse_chain(p, TOKEN_NAME, "and", NODE_AND, parse_not);
}

static jinja_node *parse_or(jinja_parser *p) {
  return parse_chain(p, TOKEN_NAME, "or", NODE_OR, parse_and);
}

jinja_node *jinja_parse_expression(jinja_parser *p) {
  if (!jinja_parser_enter(p)) {
    jinja_parser_leave(p);
    return jinja_parser_node(p, NODE_CONST);
  }
  jinja_node *node = parse_or(p);
  uint32_t n_deep = 0;
  while (p->status == WEFT_OK && jinja_parser_skip(p, TOKEN_NAME, "if")) {
    jinja_node *choice = jinja_parser_node(p, NODE_CHOICE);
    choice->b = node;
    choice->a = parse_or(p);
    if (jinja_parser_skip(p, TOKEN_NAME, "else")) choice->c = jinja_parse_expression(p);
    node = choice;
    if (++n_deep > JINJA_CHAIN_MAX) jinja_parse_fail(p, WEFT_E_TOO_LARGE, "more than %d ifs in a row", JINJA_CHAIN_MAX);
  }
  jinja_parser_leave(p);
  return node;
}

static bool ends_tuple(const jinja_parser *p) {
  return p->token->kind == TOKEN_PRINT_END || p->token->kind == TOKEN_BLOCK_END || is_operator(p, ")") ||
         jinja_parser_is(p, TOKEN_NAME, "recursive");
}

jinja_node *jinja_parse_tuple(jinja_parser *p, bool choices) {
  jinja_node *first = choices ? jinja_parse_expression(p) : parse_or(p);
  if (!is_operator(p, ",")) return first;
  jinja_node *tuple = jinja_parser_node(p, NODE_TUPLE);
  jinja_node **tail = append_node(&tuple->list, first);
  while (p->status == WEFT_OK && skip_operator(p, ",") && !ends_tuple(p)) {
    tail = append_node(tail, choices ? jinja_parse_expression(p) : parse_or(p));
  }
  return tuple;
}
