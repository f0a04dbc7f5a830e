/* SPDX-License-Identifier: MIT */
#include "model/text/token_trie.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "model/text/calls.h"
#include "model/text/tokenizer_internal.h"

/* A token and its bytes in one text. */
typedef struct trie_piece {
  const char *bytes;
  size_t at; /* in the text that has them */
  uint32_t n;
  int32_t token;
} trie_piece;

static int compare_pieces(const void *a, const void *b) {
  const trie_piece *x = a, *y = b;
  uint32_t n = x->n < y->n ? x->n : y->n;
  int order = memcmp(x->bytes, y->bytes, n);
  if (order != 0) return order;
  if (x->n != y->n) return x->n < y->n ? -1 : 1;
  return (x->token > y->token) - (x->token < y->token);
}

/* Whether an answer that is held to a grammar may have the token. */
static bool is_plain_token(const weft_tokenizer *t, int32_t id) {
  if (weft_tokenizer_is_control(t, id) || weft_tokenizer_is_eog(t, id)) return false;
  return t->vocab.type[id] != VOCAB_USER_DEFINED || tokenizer_is_blank(t, (uint32_t)id);
}

/* Bytes that UTF-8 never has, so no text of a grammar has them either. */
static bool is_outside_text(const char *bytes, size_t n) {
  bool outside = false;
  for (size_t i = 0; i < n; i++) outside = outside || (uint8_t)bytes[i] >= WEFT_TRIE_MARKER;
  return outside;
}

_Static_assert(WEFT_CALL_MARKERS + 4 <= 32 && WEFT_TRIE_MARKER + WEFT_TRIE_THOUGHTS + 1 == 0xFF, "as many as fit");
static const char *const thoughts[2][2] = {{"<|channel>", "<channel|>"}, {"<think>", "</think>"}};

bool weft_token_trie_is_marker(const weft_tokenizer *t, int32_t id) {
  return id >= 0 && !is_plain_token(t, id) && !weft_tokenizer_is_eog(t, id);
}

/* Which pair of markers of thinking the vocabulary has; 2: none. */
static uint32_t find_thoughts(const weft_tokenizer *t) {
  uint32_t k = 0;
  while (k < 2 && !(weft_token_trie_is_marker(t, weft_tokenizer_find(t, thoughts[k][0])) &&
                    weft_token_trie_is_marker(t, weft_tokenizer_find(t, thoughts[k][1])))) {
    k += 1;
  }
  return k;
}

/* Markers of calls and of thinking that are tokens, each as a byte of its own. */
static uint32_t list_markers(const weft_tokenizer *t, weft_text *text, trie_piece *piece, uint32_t n, uint32_t *found) {
  for (uint32_t i = 0, k = 0; i < WEFT_CALL_MARKERS && k < WEFT_TRIE_THOUGHTS; i++) {
    int32_t id = weft_tokenizer_find(t, weft_call_markers[i]);
    const char byte = (char)(WEFT_TRIE_MARKER + k);
    if (!weft_token_trie_is_marker(t, id)) continue;
    k += 1;
    piece[n++] = (trie_piece){.n = 1, .token = id, .at = text->n};
    weft_text_append(text, &byte, 1);
    *found |= 1u << i;
  }
  uint32_t pair = find_thoughts(t);
  for (uint32_t i = 0; pair < 2 && i < 2; i++) {
    const char byte = (char)(WEFT_TRIE_MARKER + WEFT_TRIE_THOUGHTS + i);
    piece[n++] = (trie_piece){.n = 1, .token = weft_tokenizer_find(t, thoughts[pair][i]), .at = text->n};
    weft_text_append(text, &byte, 1);
    *found |= 1u << (WEFT_CALL_MARKERS + i + 2 * pair);
  }
  return n;
}

/* All pieces, sorted; their bytes lie in text. */
static weft_status list_pieces(const weft_tokenizer *t, weft_text *text, trie_piece *piece, uint32_t *n_pieces,
                               uint32_t *markers) {
  uint32_t n_vocab = weft_tokenizer_n_vocab(t), n = 0;
  for (uint32_t id = 0; id < n_vocab; id++) {
    size_t before = text->n;
    if (!is_plain_token(t, (int32_t)id)) continue;
    weft_status status = weft_tokenizer_piece(t, (int32_t)id, false, text);
    if (status != WEFT_OK) return status;
    size_t length = text->n - before;
    if (length == 0 || length > WEFT_TRIE_BYTES_MAX || is_outside_text(text->bytes + before, length)) continue;
    piece[n++] = (trie_piece){.n = (uint32_t)length, .token = (int32_t)id, .at = before};
  }
  n = list_markers(t, text, piece, n, markers);
  if (weft_text_status(text) != WEFT_OK) return WEFT_E_NO_MEMORY;
  for (uint32_t i = 0; i < n; i++) piece[i].bytes = text->bytes + piece[i].at;
  qsort(piece, n, sizeof *piece, compare_pieces);
  *n_pieces = n;
  return WEFT_OK;
}

static uint32_t shared_bytes(const trie_piece *a, const trie_piece *b) {
  uint32_t n = a->n < b->n ? a->n : b->n, i = 0;
  while (i < n && a->bytes[i] == b->bytes[i]) i += 1;
  return i;
}

static uint64_t count_nodes(const trie_piece *piece, uint32_t n) {
  uint64_t n_nodes = 1;
  for (uint32_t i = 0; i < n; i++) n_nodes += piece[i].n - (i == 0 ? 0 : shared_bytes(&piece[i - 1], &piece[i]));
  return n_nodes;
}

/* Pieces come in order, so a node ends where the first piece that leaves it begins. */
static void fill_nodes(weft_token_trie *trie, const trie_piece *piece, uint32_t n) {
  uint32_t path[WEFT_TRIE_BYTES_MAX + 1] = {0}, depth = 0, at = 1;
  for (uint32_t i = 0; i < n; i++) {
    uint32_t shared = i == 0 ? 0 : shared_bytes(&piece[i - 1], &piece[i]);
    for (; depth > shared; depth--) trie->end[path[depth]] = at;
    for (; depth < piece[i].n; at++) {
      trie->byte[at] = (uint8_t)piece[i].bytes[depth];
      trie->parent[at] = path[depth];
      trie->first[at] = i;
      path[++depth] = at;
      trie->depth[at] = (uint16_t)depth;
    }
    if (depth > trie->depth_max) trie->depth_max = depth;
    trie->token[i] = piece[i].token;
    trie->node[piece[i].token] = path[depth];
    if (depth == 1) trie->alone[(uint8_t)piece[i].bytes[0] / 8] |= (uint8_t)(1u << (uint8_t)piece[i].bytes[0] % 8);
  }
  for (; depth > 0; depth--) trie->end[path[depth]] = at;
  trie->end[0] = trie->n_nodes = at;
  trie->first[at] = trie->n_tokens = n;
}

static weft_status take_nodes(weft_token_trie *trie, uint64_t n_nodes, uint32_t n_tokens, uint32_t n_vocab,
                              uint32_t n_ends) {
  if (n_nodes > UINT32_MAX / 2) return WEFT_E_TOO_LARGE;
  trie->byte = weft_alloc(n_nodes, sizeof *trie->byte);
  trie->depth = weft_alloc(n_nodes, sizeof *trie->depth);
  trie->end = weft_alloc(n_nodes, sizeof *trie->end);
  trie->parent = weft_alloc(n_nodes, sizeof *trie->parent);
  trie->first = weft_alloc(n_nodes + 1, sizeof *trie->first);
  trie->token = weft_alloc(n_tokens, sizeof *trie->token);
  trie->node = weft_alloc(n_vocab, sizeof *trie->node);
  trie->ends = weft_alloc(n_ends, sizeof *trie->ends);
  bool ok = trie->byte != NULL && trie->depth != NULL && trie->end != NULL && trie->parent != NULL &&
            trie->first != NULL && trie->token != NULL && trie->node != NULL && trie->ends != NULL;
  return ok ? WEFT_OK : WEFT_E_NO_MEMORY;
}

static weft_status build_trie(weft_token_trie *trie, const weft_tokenizer *t, weft_text *text, trie_piece *piece) {
  uint32_t n = 0, n_ends;
  const int32_t *ends = weft_tokenizer_eog(t, &n_ends);
  weft_status status = list_pieces(t, text, piece, &n, &trie->markers);
  if (status != WEFT_OK) return status;
  trie->n_vocab = weft_tokenizer_n_vocab(t);
  status = take_nodes(trie, count_nodes(piece, n), n, trie->n_vocab, n_ends);
  if (status != WEFT_OK) return status;
  fill_nodes(trie, piece, n);
  if (n_ends > 0) memcpy(trie->ends, ends, n_ends * sizeof *ends);
  trie->n_ends = n_ends;
  return WEFT_OK;
}

weft_status weft_token_trie_open(const weft_tokenizer *tokenizer, weft_token_trie **out, weft_error *error) {
  weft_text text = {0};
  uint32_t n_ends;
  *out = NULL;
  (void)weft_tokenizer_eog(tokenizer, &n_ends);
  if (n_ends == 0) { /* where a format ends, nothing would be allowed */
    return weft_fail(error, WEFT_E_UNSUPPORTED,
                     "this model's vocabulary has no token that ends an answer, so no answer can be held to a format");
  }
  weft_token_trie *trie = weft_alloc(1, sizeof *trie);
  trie_piece *piece = weft_alloc(weft_tokenizer_n_vocab(tokenizer), sizeof *piece);
  weft_status status = trie == NULL || piece == NULL ? WEFT_E_NO_MEMORY : build_trie(trie, tokenizer, &text, piece);
  weft_text_free(&text);
  weft_free(piece);
  if (status == WEFT_OK) {
    *out = trie;
    return WEFT_OK;
  }
  weft_token_trie_close(trie);
  return weft_fail(error, status, "no memory for the tree of the vocabulary");
}

void weft_token_trie_close(weft_token_trie *trie) {
  if (trie == NULL) return;
  void *const all[] = {trie->byte,  trie->depth, trie->end,  trie->parent,
                       trie->first, trie->token, trie->node, trie->ends};
  for (uint32_t i = 0; i < sizeof all / sizeof *all; i++) weft_free(all[i]);
  weft_free(trie);
}

uint32_t weft_token_trie_marker(const weft_token_trie *trie, const char *marker) {
  for (uint32_t i = 0, k = 0; i < WEFT_CALL_MARKERS; i++) {
    bool has = (trie->markers >> i & 1) != 0;
    if (has && strcmp(weft_call_markers[i], marker) == 0) return WEFT_TRIE_MARKER + k;
    k += has ? 1 : 0;
  }
  for (uint32_t i = 0; i < 4; i++) {
    bool has = (trie->markers >> (WEFT_CALL_MARKERS + i) & 1) != 0;
    if (has && strcmp(thoughts[i / 2][i % 2], marker) == 0) return WEFT_TRIE_MARKER + WEFT_TRIE_THOUGHTS + i % 2;
  }
  return 0;
}

uint32_t weft_token_trie_bytes(const weft_token_trie *trie, int32_t token, uint8_t *out) {
  uint32_t node = token >= 0 && (uint32_t)token < trie->n_vocab ? trie->node[token] : 0, n = trie->depth[node];
  for (uint32_t i = n; i > 0; i--) {
    out[i - 1] = trie->byte[node];
    node = trie->parent[node];
  }
  return n;
}
