/* SPDX-License-Identifier: MIT */
/* The bytes of a vocabulary as a tree: every token that prints text, by what it prints.
 *
 * Law: immutable after open, any number of threads. Nodes stand in the order of a walk that visits a node before its
 * children, so the nodes below node i are i + 1 .. end[i] - 1. Node 0 is the root and stands for no bytes. Tokens
 * are sorted by their bytes: those of node i are token[first[i]] .. token[first[i] + n of them - 1], and those of it
 * and all nodes below it are token[first[i]] .. token[first[end[i]] - 1]. Control tokens, unknown ones, ends of a
 * generation, markers of a chat and tokens that print nothing have no node: an answer that is held to a grammar
 * never has them, except the end of a generation. Tokens that are part of a character are nodes like any other.
 * Markers of calls (weft_call_markers) that are special tokens of the vocabulary have nodes of one byte each, from
 * WEFT_TRIE_MARKER on, which no UTF-8 has: only a grammar of calls leads there. The first WEFT_TRIE_THOUGHTS of them
 * that a vocabulary has take the bytes in turn. Behind them are the markers between which the model thinks, <|channel>
 * and <channel|> or else <think> and </think>. */
#ifndef WEFT_MODEL_TEXT_TOKEN_TRIE_H
#define WEFT_MODEL_TEXT_TOKEN_TRIE_H

#include "model/text/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
  WEFT_TRIE_BYTES_MAX = 256, /* tokens that print more have no node */
  WEFT_TRIE_MARKER = 0xF5,   /* this byte and those above it are never part of UTF-8 */
  WEFT_TRIE_THOUGHTS = 9     /* which of these bytes begins thinking; the next one ends it */
};

typedef struct weft_token_trie {
  uint32_t n_nodes, n_tokens, n_vocab, depth_max;
  uint8_t *byte;    /* [n_nodes] */
  uint16_t *depth;  /* [n_nodes] bytes from the root */
  uint32_t *end;    /* [n_nodes] */
  uint32_t *parent; /* [n_nodes] */
  uint32_t *first;  /* [n_nodes + 1] */
  int32_t *token;   /* [n_tokens] */
  uint32_t *node;   /* [n_vocab]: the node of a token; 0: the token has none */
  int32_t *ends;    /* [n_ends] tokens that end a generation */
  uint32_t n_ends;
  uint8_t alone[32]; /* bitset: bytes that are a token by themselves */
  uint32_t markers;  /* bitset: those of weft_call_markers, and behind them of thinking, that have a node */
} weft_token_trie;

/* UNSUPPORTED: the vocabulary has no token that ends a generation, which every format needs. */
weft_status weft_token_trie_open(const weft_tokenizer *tokenizer, weft_token_trie **out, weft_error *error);
void weft_token_trie_close(weft_token_trie *trie); /* NULL is fine */

/* Whether the token is none of a text: one that stands for a marker does not come from text that spells it. */
bool weft_token_trie_is_marker(const weft_tokenizer *tokenizer, int32_t id);

/* How many tokens a node has. */
static inline uint32_t weft_token_trie_n(const weft_token_trie *trie, uint32_t node) {
  uint32_t next = node + 1 < trie->end[node] ? trie->first[node + 1] : trie->first[trie->end[node]];
  return next - trie->first[node];
}

/* The byte that stands for a marker of calls; 0: the marker is no token of the vocabulary and is written in letters. */
uint32_t weft_token_trie_marker(const weft_token_trie *trie, const char *marker);

/* Writes the bytes of a token to out[WEFT_TRIE_BYTES_MAX] and returns how many; 0: the token has no node. */
uint32_t weft_token_trie_bytes(const weft_token_trie *trie, int32_t token, uint8_t *out);

#ifdef __cplusplus
}
#endif
#endif
