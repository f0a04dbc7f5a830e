/* SPDX-License-Identifier: MIT */
/* What the files of the tokenizer share; private to model/tokenizer*.c and their tests.
 *
 * Law: a vocab numbers strings; 0..n-1 are the file's tokens, and the numbers beyond are those of
 * strings that are parts or results of merges but no tokens. Merging works on these numbers and is the
 * same for all three kinds of vocabulary: symbols in a linked list, and merges that could be made next
 * (offers) in a heap, the lowest order first, the leftmost of equal ones. A work belongs to one call
 * of encode; a tokenizer never changes. */
#ifndef WEFT_MODEL_TEXT_TOKENIZER_INTERNAL_H
#define WEFT_MODEL_TEXT_TOKENIZER_INTERNAL_H

#include "model/text/tokenizer.h"

#define VOCAB_NONE UINT32_MAX

typedef enum vocab_type {
  VOCAB_NORMAL = 1,
  VOCAB_UNKNOWN = 2,
  VOCAB_CONTROL = 3,
  VOCAB_USER_DEFINED = 4,
  VOCAB_UNUSED = 5,
  VOCAB_BYTE = 6
} vocab_type;

typedef struct vocab {
  uint32_t n;         /* tokens of the file */
  uint32_t n_strings; /* tokens and the other strings */
  uint32_t capacity;  /* of start, in strings */
  uint32_t longest;   /* bytes of the longest string */
  uint32_t *start;    /* [n_strings + 1] offsets in bytes.bytes */
  weft_text bytes;
  uint32_t *slots; /* string + 1, 0: empty; at most half full */
  uint32_t mask;
  uint8_t *type; /* [n] vocab_type */
} vocab;

/* Makes room for n_expected strings; more may be added. */
weft_status vocab_open(vocab *v, uint32_t n_expected);
void vocab_close(vocab *v);
/* The number of the string, or VOCAB_NONE. */
uint32_t vocab_find(const vocab *v, const char *text, size_t n);
/* Adds the string and gives its number; *found: the string was there already. Empty strings may be
 * added any number of times, and are never found. */
weft_status vocab_add(vocab *v, const char *text, size_t n, uint32_t *id, bool *found);
static inline const char *vocab_text(const vocab *v, uint32_t id) {
  return v->bytes.bytes + v->start[id];
}
static inline uint32_t vocab_length(const vocab *v, uint32_t id) {
  return v->start[id + 1] - v->start[id];
}

/* From a pair of strings to the rank and the result of their merge: a hash table, at most half full. */
typedef struct merge_rule {
  uint32_t left, right, rank, result;
} merge_rule;

typedef struct merge_table {
  merge_rule *slots; /* left == VOCAB_NONE: empty */
  uint32_t mask;
} merge_table;

weft_status merges_open(merge_table *table, uint32_t n_expected);
void merges_close(merge_table *table);
/* Where a pair has a rule already, that rule stays. */
void merges_add(merge_table *table, merge_rule rule);
const merge_rule *merges_find(const merge_table *table, uint32_t left, uint32_t right);

/* Bytes start..start+n of the text that is being merged. n == 0: merged into the one before. */
typedef struct merge_symbol {
  uint32_t start, n, id; /* id: VOCAB_NONE when no string of the vocab */
  uint32_t next, previous;
} merge_symbol;

/* The symbol at `at` and the one after it, together n bytes, may become result. Symbols only grow,
 * so the offer still stands exactly when the two are still n bytes together. */
typedef struct merge_offer {
  uint32_t order, at, n, result;
} merge_offer;

typedef struct work {
  merge_symbol *symbols;
  uint32_t n_symbols, symbols_capacity;
  merge_offer *heap;
  uint32_t n_heap, heap_capacity;
  weft_text text;      /* the piece in the vocab's alphabet */
  uint32_t *unused_at; /* llama: per token, bytes of the left part of its last merge; NULL: not needed yet */
  uint32_t *ends[2];   /* pre-tokenizer: where pieces end, before and after a pattern */
  uint32_t n_ends[2], ends_capacity[2];
  void *match; /* PCRE2's scratch */
} work;

void work_close(work *w); /* does not close w->match */
weft_status work_symbol(work *w, uint32_t start, uint32_t n, uint32_t id);

/* Pre-tokenizer of gpt2: an ordered list of patterns. */
typedef struct split split;
typedef struct split_info {
  bool ignore_merges, add_bos;
} split_info;
/* UNSUPPORTED for a pre-tokenizer that weft does not have. */
weft_status split_open(weft_bytes pre, split **out, split_info *info, weft_error *error);
void split_close(split *s);
void split_match_close(void *match); /* of work; NULL is fine */
const char *split_name(const split *s);
/* The offsets where the pieces of text[0..n) end, ascending, the last one n; borrowed from w until w
 * is used again. The text must be valid UTF-8. */
weft_status split_run(const split *s, const char *text, uint32_t n, work *w, const uint32_t **ends, uint32_t *n_ends);

typedef enum tokenizer_kind { TOKENIZER_GPT2, TOKENIZER_LLAMA, TOKENIZER_GEMMA4 } tokenizer_kind;

struct weft_tokenizer {
  tokenizer_kind kind;
  char *path; /* for messages */
  vocab vocab;
  merge_table merges; /* gpt2, gemma4 */
  uint32_t *order;    /* llama: [n] ascending from the best score; ties equal */
  split *split;       /* gpt2 */
  bool ignore_merges, add_bos, add_eos, add_space_prefix, has_unused;
  bool retypes_markers; /* gemma4: the file types the markers of thinking and tools as control tokens */
  int32_t bos, eos, unk, pad, mask;
  uint32_t byte_id[256];  /* gpt2: the string of the character that stands for the byte; else the
                             byte's token; or VOCAB_NONE */
  uint32_t ascii_id[128]; /* gemma4, llama: the string of the character, or VOCAB_NONE */
  uint32_t space_id;      /* U+2581 */
  uint32_t longest;       /* bytes of the longest string as printed, at least one character's */
  /* Special tokens by text; those beginning with b: from special_from[b] to special_from[b + 1]. */
  uint32_t *special;
  uint32_t n_special;
  uint32_t special_from[257];
  int32_t *eog, *suppressed;
  uint32_t n_eog, n_suppressed;
};

/* Whether ordinary text, which was not cut out as a special token, may become this token. */
bool tokenizer_is_text(const weft_tokenizer *t, uint32_t id);
/* Whether this is a user-defined token of nothing but white space. */
bool tokenizer_is_blank(const weft_tokenizer *t, uint32_t id);
static inline bool tokenizer_is_special(const weft_tokenizer *t, uint32_t id) {
  return t->vocab.type[id] >= VOCAB_UNKNOWN && t->vocab.type[id] <= VOCAB_USER_DEFINED;
}
/* gpt2's alphabet: the code point that stands for a byte, and back (-1: not of the alphabet). */
uint32_t gpt2_character(uint8_t byte);
int32_t gpt2_byte(uint32_t code_point);

/* Merges w->symbols until no two neighbours can be merged. */
weft_status merge_run(const weft_tokenizer *t, work *w);
/* Uses the memory of the heap, which is empty after merge_run, as a stack. */
weft_status work_push(work *w, merge_offer offer);
/* Appends the tokens of text, which has no special tokens in it. */
weft_status encode_text(const weft_tokenizer *t, work *w, const char *text, uint32_t n, weft_tokens *out,
                        weft_error *error);
/* Reads the ids of special tokens, those that end a generation, and the list of special tokens. */
weft_status tokenizer_read_special(weft_tokenizer *t, const weft_gguf *gguf, weft_error *error);

#endif
