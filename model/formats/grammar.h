/* SPDX-License-Identifier: MIT */
/* Formats of answers: a JSON schema, any JSON object, a regular expression, one of several texts, or a grammar in GBNF
 * (llama.cpp), compiled to an automaton over the tokens of one vocabulary.
 *
 * Law.
 *   - An answer of tokens that the mask allows is, when it ends, a text of the grammar. With n tokens left the mask
 *     allows only tokens after which the answer can be completed in n - 1 more, so an answer that begins with at least
 *     weft_grammar_shortest tokens left is always completed in time.
 *   - The mask depends on the grammar, the vocabulary, the tokens taken and the number of tokens left, and on nothing
 *     else, so an answer is the same in any batch and after preemption.
 *   - Compiling is bounded in steps, states, nodes and bytes, whatever the input; a grammar that is too large or not
 *     understood is refused with a line that names the fault. Whatever the text can make take long is counted in steps
 *     (comparing constants by their size, looking up references by their length), so steps follow the time, and
 *     compiling ends about WEFT_GRAMMAR_LOOK steps, or a walk of the vocabulary, after nobody wants it any more. Making
 *     a mask and taking a token need no memory beyond the scratch.
 *   - Calls of tools that are not strict are held to as much of their schema as can be: where a part cannot, it is
 *     wider, and where nothing else helps, compiling begins once more without what these schemas say.
 *   - What a JSON schema says of types, properties, items, numbers and lengths holds for every answer. Where a
 *     keyword allows more than is generated here (a number of 400 digits, properties in another order), every answer
 *     is still one that the schema allows.
 *
 * How. A grammar becomes rules, and each rule a deterministic automaton whose edges are bytes or calls of rules; a
 * counted repetition is one state with a count. Where an answer is in the grammar is a set of configurations: a state,
 * its count, and the stack of states to return to. Which tokens a state allows is found by a walk of the vocabulary's
 * tree (model/text/token_trie.h). As in XGrammar (Dong et al., arXiv 2411.15100), the tokens of a state are of two
 * kinds: those that the state alone decides, which are found once, when the grammar is compiled, and those that lead
 * out of the state's rule, which are checked with the stack when a mask is made. */
#ifndef WEFT_MODEL_FORMATS_GRAMMAR_H
#define WEFT_MODEL_FORMATS_GRAMMAR_H

#include "base/status.h"
#include "model/formats/grammar_handle.h"
#include "model/text/token_trie.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weft_grammar_scratch weft_grammar_scratch;

typedef enum weft_grammar_kind {
  WEFT_GRAMMAR_NONE = 0,
  WEFT_GRAMMAR_JSON_OBJECT = 1, /* any JSON object; no text */
  WEFT_GRAMMAR_JSON_SCHEMA = 2, /* text: the schema as JSON */
  WEFT_GRAMMAR_REGEX = 3,       /* text: the whole answer must match */
  WEFT_GRAMMAR_CHOICE = 4,      /* text: a JSON list of strings */
  WEFT_GRAMMAR_GBNF = 5,        /* text: rules, from `root` */
  WEFT_GRAMMAR_CALLS = 6,       /* text: the tools that may be called, as below */
  WEFT_GRAMMAR_ANSWER = 7       /* text: thinking, and then calls or a text of another format, as below */
} weft_grammar_kind;

/* The text of CALLS is a JSON object:
 *   "form": the name of a form of calls (model/text/calls.h)
 *   "tools": [{"name": ..., "parameters": a schema, or left out for any object, "strict": whether a schema that cannot
 *   be held is refused; else more is allowed where it cannot, and the log says so}]
 *   "several": whether there may be more than one call
 *   "free": whether the answer may be, or begin with, text; then it is free up to the marker that begins a call
 * That of ANSWER is one of
 *   "thinking": {"open": a marker, "close": a marker, "begun": whether the prompt has begun it}, or left out; what is
 * thought
 *   is free text, and where it was not begun it may be left out
 *   "calls": the text of CALLS as an object, or left out
 *   "format": {"kind": one of the kinds above but CALLS, "text": its text}, or left out; with calls beside it the
 * answer is
 *   either of the two */
enum { WEFT_GRAMMAR_TEXT_MAX = 256 << 10 }; /* bytes of a grammar's text */

/* The work of making a grammar, in steps, a million of which take some 10 ms, and who may end it. Zeroed it counts and
 * is not ended; it may go on from one call to the next. */
typedef struct weft_grammar_work {
  uint64_t n_steps;         /* so far, also when making it failed */
  bool (*stop)(void *self); /* asked every WEFT_GRAMMAR_LOOK steps; true: what is being made ends with CANCELLED */
  void *self;
  uint64_t look_at; /* the steps at which it is asked next */
  bool stopped;
} weft_grammar_work;
enum { WEFT_GRAMMAR_LOOK = 1 << 17 };

/* The trie must outlive the grammar, which begins with one reference. INVALID, UNSUPPORTED or TOO_LARGE, each with a
 * line that names what is wrong; CANCELLED: work->stop said so. work may be NULL. */
weft_status weft_grammar_compile(weft_grammar_kind kind, const char *text, size_t n, const weft_token_trie *trie,
                                 weft_grammar **out, weft_grammar_work *work, weft_error *error);

/* Makes the graph that answers of diffusion requests are held to (model/formats/grammar_graph.h), before any other
 * thread has the grammar. weft_grammar_shortest then gives the number of the graph, where one token may stand for
 * parts of several rules, so from here on the grammar is for canvases alone. UNSUPPORTED with one line: the grammar is
 * too large for a graph; CANCELLED as above. work may be NULL. */
weft_status weft_grammar_for_canvases(weft_grammar *grammar, weft_grammar_work *work, weft_error *error);
struct weft_grammar_graph;
const struct weft_grammar_graph *weft_grammar_graph_of(const weft_grammar *grammar); /* NULL: no graph was made */

uint64_t weft_grammar_bytes(const weft_grammar *grammar); /* bytes of memory that the grammar holds */

/* Where one answer is in the grammar. Plain data, which may be copied to go on from the same place twice. */
enum { WEFT_MATCHER_CONFIGS = 24, WEFT_MATCHER_NODES = 192 };

typedef struct weft_matcher_config {
  uint32_t state, count, node;
} weft_matcher_config;

/* A stack is the path from a node through its parents to node 0, the bottom of every stack. */
typedef struct weft_matcher_node {
  uint32_t state, count, parent, depth, sum; /* sum: fewest tokens that complete this frame and all below */
} weft_matcher_node;

typedef struct weft_matcher {
  const weft_grammar *grammar; /* NULL: everything is allowed */
  uint32_t n_configs, n_nodes;
  weft_matcher_config config[WEFT_MATCHER_CONFIGS];
  weft_matcher_node node[WEFT_MATCHER_NODES];
} weft_matcher;

weft_status weft_grammar_scratch_open(weft_grammar_scratch **out);
void weft_grammar_scratch_close(weft_grammar_scratch *scratch); /* NULL is fine */

void weft_matcher_begin(weft_matcher *matcher, const weft_grammar *grammar);
/* Continues the answer with the token; false: the grammar does not allow the token, and the matcher is as before. */
bool weft_matcher_take(weft_matcher *matcher, weft_grammar_scratch *scratch, int32_t token);
/* Writes the tokens that may come next as bits of [(n_vocab + 31) / 32] words. n_left is how many tokens may still
 * come, the next one included. Tokens that end a generation are allowed where the answer may end. */
void weft_matcher_mask(const weft_matcher *matcher, weft_grammar_scratch *scratch, uint32_t n_left, uint32_t *mask);
/* Whether the answer is complete and nothing can follow. */
bool weft_matcher_is_done(const weft_matcher *matcher);
/* Whether the answer is complete, though more may follow. */
bool weft_matcher_may_end(const weft_matcher *matcher, weft_grammar_scratch *scratch);

#ifdef __cplusplus
}
#endif
#endif
