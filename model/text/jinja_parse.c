/* SPDX-License-Identifier: MIT */
/* Statements of a template. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "model/text/jinja_syntax.h"

enum { DEPTH_MAX = 200 }; /* nested expressions and blocks */

static void parse_until(jinja_parser *p, jinja_node *into, const char *const *ends);

void jinja_parse_fail(jinja_parser *p, weft_status status, const char *format, ...) {
  char text[256];
  va_list args;
  if (p->status != WEFT_OK) return;
  va_start(args, format);
  (void)vsnprintf(text, sizeof text, format, args);
  va_end(args);
  jinja_make_line(text);
  p->status = weft_fail(p->error, status, "line %u: %s", p->token->line, text);
}

static jinja_node *spare_node(jinja_parser *p) {
  memset(&p->spare, 0, sizeof p->spare);
  return &p->spare;
}

void *jinja_parser_take(jinja_parser *p, size_t n) {
  void *memory = jinja_arena_take(&p->jinja->arena, n);
  if (memory == NULL) jinja_parse_fail(p, WEFT_E_NO_MEMORY, "out of memory while reading the chat template");
  return memory;
}

jinja_node *jinja_parser_node(jinja_parser *p, jinja_node_kind kind) {
  jinja_node *node = p->status == WEFT_OK ? jinja_parser_take(p, sizeof *node) : NULL;
  if (node == NULL) node = spare_node(p);
  node->kind = kind;
  node->line = p->token->line;
  return node;
}

bool jinja_token_is(const jinja_token *token, jinja_token_kind kind, const char *text) {
  return token->kind == kind &&
         (text == NULL || (token->n == strlen(text) && memcmp(token->bytes, text, token->n) == 0));
}

bool jinja_parser_is(const jinja_parser *p, jinja_token_kind kind, const char *text) {
  return p->status == WEFT_OK && jinja_token_is(p->token, kind, text);
}

bool jinja_parser_skip(jinja_parser *p, jinja_token_kind kind, const char *text) {
  if (!jinja_parser_is(p, kind, text)) return false;
  p->token += 1;
  return true;
}

void jinja_parser_expect(jinja_parser *p, jinja_token_kind kind, const char *text) {
  if (jinja_parser_skip(p, kind, text)) return;
  const char *want = text != NULL ? text : kind == TOKEN_NAME ? "a name" : kind == TOKEN_BLOCK_END ? "%}" : "}}";
  if (p->token->n > 0) {
    jinja_parse_fail(p, WEFT_E_FORMAT, "%s is expected before '%.*s'", want, (int)(p->token->n < 32 ? p->token->n : 32),
                     p->token->bytes);
  } else {
    jinja_parse_fail(p, WEFT_E_FORMAT, "%s is expected", want);
  }
}

bool jinja_parser_enter(jinja_parser *p) {
  p->depth += 1;
  if (p->depth > DEPTH_MAX) jinja_parse_fail(p, WEFT_E_TOO_LARGE, "it nests more than %d deep", DEPTH_MAX);
  return p->status == WEFT_OK;
}

void jinja_parser_leave(jinja_parser *p) {
  p->depth -= 1;
}

static jinja_node *parse_target_name(jinja_parser *p) {
  const jinja_token *name = p->token;
  jinja_node *node = jinja_parser_node(p, NODE_NAME);
  jinja_parser_expect(p, TOKEN_NAME, NULL);
  node->text = (jinja_string){.bytes = name->bytes, .marks = p->jinja->marks, .n = name->n};
  return node;
}

jinja_node *jinja_parse_target(jinja_parser *p, bool attributes) {
  bool brackets = !attributes && jinja_parser_skip(p, TOKEN_OPERATOR, "(");
  jinja_node *first = parse_target_name(p);
  if (attributes && jinja_parser_skip(p, TOKEN_OPERATOR, ".")) {
    jinja_node *attribute = parse_target_name(p);
    attribute->kind = NODE_ATTRIBUTE;
    attribute->a = first;
    return attribute;
  }
  if (!jinja_parser_is(p, TOKEN_OPERATOR, ",")) {
    if (brackets) jinja_parser_expect(p, TOKEN_OPERATOR, ")");
    return first;
  }
  jinja_node *tuple = jinja_parser_node(p, NODE_TUPLE);
  tuple->list = first;
  for (jinja_node *last = first; jinja_parser_skip(p, TOKEN_OPERATOR, ",") && jinja_parser_is(p, TOKEN_NAME, NULL);) {
    last->next = parse_target_name(p);
    last = last->next;
  }
  if (brackets) jinja_parser_expect(p, TOKEN_OPERATOR, ")");
  return tuple;
}

/* (a, b=1) */
static jinja_node *parse_parameters(jinja_parser *p) {
  jinja_node *parameters = jinja_parser_node(p, NODE_BODY);
  jinja_node **tail = &parameters->list;
  jinja_parser_expect(p, TOKEN_OPERATOR, "(");
  while (p->status == WEFT_OK && !jinja_parser_is(p, TOKEN_OPERATOR, ")")) {
    jinja_node *parameter = parse_target_name(p);
    parameter->kind = NODE_ARGUMENT;
    if (jinja_parser_skip(p, TOKEN_OPERATOR, "=")) parameter->a = jinja_parse_expression(p);
    *tail = parameter;
    tail = &parameter->next;
    if (!jinja_parser_skip(p, TOKEN_OPERATOR, ",")) break;
  }
  jinja_parser_expect(p, TOKEN_OPERATOR, ")");
  return parameters;
}

/* The body of a block, to its end: {% end %}. */
static void parse_body(jinja_parser *p, jinja_node *into, const char *end) {
  const char *const ends[] = {end, NULL};
  jinja_parser_expect(p, TOKEN_BLOCK_END, NULL);
  parse_until(p, into, ends);
  jinja_parser_expect(p, TOKEN_NAME, end);
  jinja_parser_expect(p, TOKEN_BLOCK_END, NULL);
}

/* The part after {% else %}, or NULL where the block has none; to the block's end. */
static jinja_node *parse_else(jinja_parser *p, const char *end) {
  if (jinja_parser_skip(p, TOKEN_NAME, "else")) {
    jinja_node *body = jinja_parser_node(p, NODE_BODY);
    parse_body(p, body, end);
    return body;
  }
  jinja_parser_expect(p, TOKEN_NAME, end);
  jinja_parser_expect(p, TOKEN_BLOCK_END, NULL);
  return NULL;
}

static jinja_node *parse_if(jinja_parser *p) {
  static const char *const ends[] = {"elif", "else", "endif", NULL};
  jinja_node *first = jinja_parser_node(p, NODE_IF), *node = first;
  node->a = jinja_parse_tuple(p, false);
  jinja_parser_expect(p, TOKEN_BLOCK_END, NULL);
  parse_until(p, node, ends);
  while (p->status == WEFT_OK && jinja_parser_skip(p, TOKEN_NAME, "elif")) {
    jinja_node *next = jinja_parser_node(p, NODE_IF);
    next->a = jinja_parse_tuple(p, false);
    jinja_parser_expect(p, TOKEN_BLOCK_END, NULL);
    parse_until(p, next, ends);
    node->b = next;
    node = next;
  }
  node->b = parse_else(p, "endif");
  return first;
}

static jinja_node *parse_for(jinja_parser *p) {
  static const char *const ends[] = {"else", "endfor", NULL};
  jinja_node *node = jinja_parser_node(p, NODE_FOR);
  node->a = jinja_parse_target(p, false);
  jinja_parser_expect(p, TOKEN_NAME, "in");
  node->b = jinja_parse_tuple(p, false);
  if (jinja_parser_skip(p, TOKEN_NAME, "if")) node->c = jinja_parse_expression(p);
  if (jinja_parser_is(p, TOKEN_NAME, "recursive")) {
    jinja_parse_fail(p, WEFT_E_UNSUPPORTED, "recursive loops are not supported");
  }
  jinja_parser_expect(p, TOKEN_BLOCK_END, NULL);
  p->n_loops += 1;
  parse_until(p, node, ends);
  p->n_loops -= 1;
  node->d = parse_else(p, "endfor");
  if (node->d != NULL) node->d->op = JINJA_OWN_SCOPE;
  return node;
}

static jinja_node *parse_set(jinja_parser *p) {
  jinja_node *node = jinja_parser_node(p, NODE_SET);
  node->a = jinja_parse_target(p, true);
  if (jinja_parser_skip(p, TOKEN_OPERATOR, "=")) {
    node->b = jinja_parse_tuple(p, true);
    jinja_parser_expect(p, TOKEN_BLOCK_END, NULL);
    return node;
  }
  node->kind = NODE_SET_BLOCK;
  node->b = jinja_parse_filters(p, jinja_parser_node(p, NODE_CAPTURED), false);
  parse_body(p, node, "endset");
  return node;
}

/* The rest of a macro, or of the caller of a call block: a loop outside of it cannot be left from inside. */
static void parse_macro_body(jinja_parser *p, jinja_node *macro, const char *end) {
  uint32_t n_loops = p->n_loops;
  bool mentioned = p->mentions_caller;
  p->n_loops = 0;
  p->mentions_caller = false;
  parse_body(p, macro, end);
  macro->op = p->mentions_caller ? JINJA_TAKES_CALLER : OP_NONE;
  p->mentions_caller = mentioned;
  p->n_loops = n_loops;
}

static jinja_node *parse_macro(jinja_parser *p) {
  jinja_node *name = parse_target_name(p), *node = jinja_parser_node(p, NODE_MACRO);
  node->text = name->text;
  node->b = parse_parameters(p);
  parse_macro_body(p, node, "endmacro");
  return node;
}

static jinja_node *parse_call_block(jinja_parser *p) {
  jinja_node *node = jinja_parser_node(p, NODE_CALL_BLOCK), *macro = jinja_parser_node(p, NODE_MACRO);
  macro->b = jinja_parser_is(p, TOKEN_OPERATOR, "(") ? parse_parameters(p) : jinja_parser_node(p, NODE_BODY);
  macro->text = (jinja_string){.bytes = "caller", .n = 6};
  node->a = jinja_parse_primary_call(p);
  node->b = macro;
  if (node->a->kind != NODE_CALL) jinja_parse_fail(p, WEFT_E_FORMAT, "a call block needs a call");
  parse_macro_body(p, macro, "endcall");
  return node;
}

static jinja_node *parse_filter_block(jinja_parser *p) {
  jinja_node *node = jinja_parser_node(p, NODE_FILTER_BLOCK);
  node->b = jinja_parse_filters(p, jinja_parser_node(p, NODE_CAPTURED), true);
  parse_body(p, node, "endfilter");
  return node;
}

static jinja_node *parse_with(jinja_parser *p) {
  jinja_node *node = jinja_parser_node(p, NODE_WITH);
  node->c = jinja_parser_node(p, NODE_BODY);
  for (jinja_node **tail = &node->c->list; p->status == WEFT_OK && !jinja_parser_is(p, TOKEN_BLOCK_END, NULL);) {
    jinja_node *set = jinja_parser_node(p, NODE_SET);
    set->a = jinja_parse_target(p, false);
    jinja_parser_expect(p, TOKEN_OPERATOR, "=");
    set->b = jinja_parse_expression(p);
    *tail = set;
    tail = &set->next;
    if (!jinja_parser_skip(p, TOKEN_OPERATOR, ",")) break;
  }
  parse_body(p, node, "endwith");
  return node;
}

static jinja_node *parse_jump(jinja_parser *p, jinja_node_kind kind) {
  jinja_node *node = jinja_parser_node(p, kind);
  if (p->n_loops == 0) jinja_parse_fail(p, WEFT_E_FORMAT, "break and continue belong into a loop");
  jinja_parser_expect(p, TOKEN_BLOCK_END, NULL);
  return node;
}

/* What a model said, marked for training: printed as it is. */
static jinja_node *parse_generation(jinja_parser *p) {
  jinja_node *node = jinja_parser_node(p, NODE_BODY);
  node->op = JINJA_OWN_SCOPE;
  parse_body(p, node, "endgeneration");
  return node;
}

static jinja_node *parse_block(jinja_parser *p) {
  const jinja_token *word = p->token;
  if (jinja_parser_skip(p, TOKEN_NAME, "if")) return parse_if(p);
  if (jinja_parser_skip(p, TOKEN_NAME, "for")) return parse_for(p);
  if (jinja_parser_skip(p, TOKEN_NAME, "set")) return parse_set(p);
  if (jinja_parser_skip(p, TOKEN_NAME, "macro")) return parse_macro(p);
  if (jinja_parser_skip(p, TOKEN_NAME, "call")) return parse_call_block(p);
  if (jinja_parser_skip(p, TOKEN_NAME, "filter")) return parse_filter_block(p);
  if (jinja_parser_skip(p, TOKEN_NAME, "with")) return parse_with(p);
  if (jinja_parser_skip(p, TOKEN_NAME, "generation")) return parse_generation(p);
  if (jinja_parser_skip(p, TOKEN_NAME, "break")) return parse_jump(p, NODE_BREAK);
  if (jinja_parser_skip(p, TOKEN_NAME, "continue")) return parse_jump(p, NODE_CONTINUE);
  bool ends = word->n > 2 && (memcmp(word->bytes, "end", 3) == 0 || memcmp(word->bytes, "el", 2) == 0);
  jinja_parse_fail(p, ends ? WEFT_E_FORMAT : WEFT_E_UNSUPPORTED,
                   ends ? "'%.*s' closes nothing" : "'%.*s' is not supported", (int)(word->n < 64 ? word->n : 64),
                   word->bytes);
  return jinja_parser_node(p, NODE_BODY);
}

static jinja_node *parse_data(jinja_parser *p) {
  jinja_node *node = jinja_parser_node(p, NODE_DATA);
  node->text = (jinja_string){.bytes = p->token->bytes, .marks = p->jinja->marks, .n = p->token->n};
  p->token += 1;
  return node;
}

static jinja_node *parse_print(jinja_parser *p) {
  jinja_node *node = jinja_parser_node(p, NODE_PRINT);
  p->token += 1;
  node->a = jinja_parse_tuple(p, true);
  jinja_parser_expect(p, TOKEN_PRINT_END, NULL);
  return node;
}

/* Everything up to a block whose first word is one of ends; that word is the next token then. ends NULL: to the end. */
static void parse_until(jinja_parser *p, jinja_node *into, const char *const *ends) {
  jinja_node **tail = &into->list;
  uint32_t line = into->line;
  if (!jinja_parser_enter(p)) goto done;
  while (p->status == WEFT_OK) {
    jinja_node *node = NULL;
    if (p->token->kind == TOKEN_END) {
      if (ends != NULL) jinja_parse_fail(p, WEFT_E_FORMAT, "the block that began in line %u is not closed", line);
      break;
    }
    if (p->token->kind == TOKEN_DATA) {
      node = parse_data(p);
    } else if (p->token->kind == TOKEN_PRINT_BEGIN) {
      node = parse_print(p);
    } else {
      p->token += 1;
      for (size_t i = 0; ends != NULL && ends[i] != NULL; i++) {
        if (jinja_parser_is(p, TOKEN_NAME, ends[i])) goto done;
      }
      node = parse_block(p);
    }
    *tail = node;
    tail = &node->next;
  }
done:
  jinja_parser_leave(p);
}

weft_status jinja_parse(weft_jinja *jinja, weft_error *error) {
  jinja_parser p = {.jinja = jinja, .token = jinja->tokens, .error = error};
  jinja->root = jinja_parser_node(&p, NODE_BODY);
  parse_until(&p, jinja->root, NULL);
  return p.status;
}
