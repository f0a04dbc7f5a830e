/* SPDX-License-Identifier: MIT */
/* A template as tokens and as a tree, private to model/jinja*.c.
 *
 * Law: the tree is finite and its nodes lie in the template's arena; the parser bounds how deeply it nests and how many
 * operators, calls or filters follow in a row. The parser looks up the names of filters and tests, so a template that
 * opens uses none that is missing. The parser keeps its first failure; after it every function returns quickly and what
 * it returns means nothing. */
#ifndef WEFT_MODEL_TEXT_JINJA_SYNTAX_H
#define WEFT_MODEL_TEXT_JINJA_SYNTAX_H

#include "model/text/jinja_value.h"

enum { JINJA_CHAIN_MAX = 256 }; /* operators, calls or filters in a row */
/* Values of jinja_node.op: of a NODE_BODY with a scope of its own; of a NODE_MACRO that uses `caller`; of a
 * NODE_ARGUMENT that stands for several arguments, *a by position and **a by name. */
enum { JINJA_OWN_SCOPE = 1, JINJA_TAKES_CALLER = 1, JINJA_SPREAD = 1, JINJA_SPREAD_NAMED = 2 };

/* ---- the template ---------------------------------------------------------------------------- */

typedef enum jinja_token_kind {
  TOKEN_END,
  TOKEN_DATA,
  TOKEN_PRINT_BEGIN,
  TOKEN_PRINT_END,
  TOKEN_BLOCK_BEGIN,
  TOKEN_BLOCK_END,
  TOKEN_NAME,
  TOKEN_TEXT, /* a string literal */
  TOKEN_INT,
  TOKEN_FLOAT,
  TOKEN_OPERATOR
} jinja_token_kind;

typedef struct jinja_token {
  jinja_token_kind kind;
  uint32_t line;
  const char *bytes; /* a string literal has lost its quotes, and its escapes are resolved */
  size_t n;
} jinja_token;

typedef enum jinja_node_kind {
  /* expressions */
  NODE_CONST,     /* value */
  NODE_NAME,      /* text */
  NODE_ATTRIBUTE, /* a.text */
  NODE_ITEM,      /* a[b] */
  NODE_SLICE,     /* a[b:c:d] */
  NODE_CALL,      /* a(list) */
  NODE_FILTER,    /* a | function(list) */
  NODE_TEST,      /* a is function(list) */
  NODE_NOT,
  NODE_NEGATIVE,
  NODE_POSITIVE,
  NODE_AND,     /* list */
  NODE_OR,      /* list */
  NODE_CHOICE,  /* b if a else c */
  NODE_COMPARE, /* a, then list of NODE_OPERAND */
  NODE_OPERAND, /* op a */
  NODE_BINARY,  /* a op b */
  NODE_JOIN,    /* list, by ~ */
  NODE_LIST,
  NODE_TUPLE,
  NODE_DICT,     /* list of NODE_PAIR */
  NODE_PAIR,     /* a: b */
  NODE_ARGUMENT, /* text (may be empty) = a */
  NODE_CAPTURED, /* what a block printed */
  /* statements */
  NODE_DATA,         /* value */
  NODE_PRINT,        /* a */
  NODE_IF,           /* a: list, else b (a NODE_BODY) */
  NODE_BODY,         /* list; op: JINJA_OWN_SCOPE */
  NODE_FOR,          /* a in b if c: list, else d (a NODE_BODY) */
  NODE_SET,          /* a = b */
  NODE_SET_BLOCK,    /* a = b of what list prints */
  NODE_MACRO,        /* text; parameters b (a NODE_BODY of NODE_ARGUMENT); list; op: JINJA_TAKES_CALLER */
  NODE_CALL_BLOCK,   /* a (NODE_CALL) with caller b (NODE_MACRO) */
  NODE_FILTER_BLOCK, /* b of what list prints */
  NODE_WITH,         /* c (a NODE_BODY of NODE_SET), then list */
  NODE_BREAK,
  NODE_CONTINUE
} jinja_node_kind;

typedef enum jinja_op {
  OP_NONE,
  OP_ADD,
  OP_SUBTRACT,
  OP_MULTIPLY,
  OP_DIVIDE,
  OP_FLOOR_DIVIDE,
  OP_MODULO,
  OP_POWER,
  OP_EQUAL,
  OP_UNEQUAL,
  OP_LESS,
  OP_LESS_EQUAL,
  OP_MORE,
  OP_MORE_EQUAL,
  OP_IN,
  OP_NOT_IN
} jinja_op;

typedef struct jinja_node {
  jinja_node_kind kind;
  uint8_t op; /* jinja_op, or a flag */
  uint32_t line;
  struct jinja_node *a, *b, *c, *d;
  struct jinja_node *list, *next; /* first child; next in the list that this node is in */
  jinja_string text;
  jinja_value value;
  const struct jinja_function *function;
} jinja_node;

struct weft_jinja {
  jinja_arena arena;
  char *text;                   /* with \n as the only newline */
  const weft_jinja_mark *marks; /* all 1, as many as the text has bytes */
  size_t n;
  jinja_token *tokens;
  uint32_t n_tokens;
  jinja_node *root; /* NODE_BODY */
};

weft_status jinja_lex(weft_jinja *jinja, weft_error *error);

/* The parser's state; the first failure stays. */
typedef struct jinja_parser {
  weft_jinja *jinja;
  const jinja_token *token; /* the next one */
  uint32_t depth, n_loops;
  bool mentions_caller; /* the macro that is being parsed uses `caller` */
  jinja_node spare;     /* the node that functions return after a failure */
  weft_status status;
  weft_error *error;
} jinja_parser;

weft_status jinja_parse(weft_jinja *jinja, weft_error *error);
/* The filter or test of a name, NULL when there is none (struct jinja_function is in model/text/jinja_internal.h). */
const struct jinja_function *jinja_filter_find(const char *name, size_t n);
const struct jinja_function *jinja_test_find(const char *name, size_t n);
/* Never NULL: after a failure a constant. Tuples without brackets are read by jinja_parse_tuple only. */
jinja_node *jinja_parse_expression(jinja_parser *p);
/* Comma-separated; one element without a comma is that element. choices: whether elements may be `a if b else c`. */
jinja_node *jinja_parse_tuple(jinja_parser *p, bool choices);
/* What may be assigned to: a name, names in a tuple, or with attributes an attribute of a name. */
jinja_node *jinja_parse_target(jinja_parser *p, bool attributes);
jinja_node *jinja_parse_filters(jinja_parser *p, jinja_node *of, bool first_without_pipe);
jinja_node *jinja_parse_primary_call(jinja_parser *p); /* a primary with what follows it, without filters */
jinja_node *jinja_parse_primary(jinja_parser *p);
void *jinja_parser_take(jinja_parser *p, size_t n);
void jinja_parse_fail(jinja_parser *p, weft_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
jinja_node *jinja_parser_node(jinja_parser *p, jinja_node_kind kind);
bool jinja_parser_is(const jinja_parser *p, jinja_token_kind kind, const char *text);
bool jinja_parser_skip(jinja_parser *p, jinja_token_kind kind, const char *text); /* true when it was there */
void jinja_parser_expect(jinja_parser *p, jinja_token_kind kind, const char *text);
bool jinja_parser_enter(jinja_parser *p); /* goes one level deeper; false after a failure. Each needs one of leave */
void jinja_parser_leave(jinja_parser *p);
bool jinja_token_is(const jinja_token *token, jinja_token_kind kind, const char *text); /* NULL: any text */

#endif
