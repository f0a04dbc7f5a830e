/* SPDX-License-Identifier: MIT */
/* The pre-tokenizers of gpt2 vocabularies: ordered lists of patterns, run by PCRE2.
 *
 * Law: pattern k cuts every piece that pattern k-1 left into its matches and the stretches between
 * them; each piece is looked at alone, and no byte is lost. No pattern here repeats a repetition, and where two
 * repetitions that share letters stand side by side, the second takes or gives back at most what the first took. So a
 * match costs at most the length of one run of equal class, and runs are consumed by the match that measures them:
 * linear in the text. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <string.h>

#include "base/check.h"
#include "base/memory.h"
#include "model/text/tokenizer_internal.h"

enum { SPLIT_PATTERNS_MAX = 6 };

/* White space as Unicode has it; PCRE2's \s counts U+180E too. */
#define SPACES                                                     \
  "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}" \
  "\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define S                 "[" SPACES "]"
#define NOT_S             "[^" SPACES "]"
#define RUN_BUT_LAST      S "+(?!" NOT_S ")"
#define LINE_ENDS         S "*[\\r\\n]+"
#define DIGIT             "\\p{N}"
#define ASCII_MARKS       "[!-/:-@\\[-`{-~]"
#define ANY_CASE_SUFFIXES "'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"
#define SPACES_AT_LAST    LINE_ENDS "|" RUN_BUT_LAST "|" S "+"

#define GPT2_LINE           \
  "'s|'t|'re|'ve|'m|'ll|'d" \
  "| ?\\p{L}+| ?\\p{N}+"    \
  "| ?[^" SPACES            \
  "\\p{L}\\p{N}]+"          \
  "|" RUN_BUT_LAST
#define MODERN_LINE(digits)                               \
  ANY_CASE_SUFFIXES                                       \
  "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits "| ?[^" SPACES \
  "\\p{L}\\p{N}]+[\\r\\n]*"                               \
  "|" SPACES_AT_LAST
#define QWEN35_LINE                                              \
  ANY_CASE_SUFFIXES                                              \
  "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|" DIGIT "| ?[^" SPACES \
  "\\p{L}\\p{M}\\p{N}]+[\\r\\n]*"                                \
  "|" SPACES_AT_LAST
/* A word is what rises, then falls: in both parts marks and letters without case. Its suffix, in any case that Unicode
 * has, belongs to it. */
#define UPPER_LETTERS "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER_LETTERS "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define WORD_SUFFIX   "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
#define CASED_LINE(suffix, digits)                                                                            \
  "[^\\r\\n\\p{L}\\p{N}]?" UPPER_LETTERS "*" LOWER_LETTERS "+" suffix "|[^\\r\\n\\p{L}\\p{N}]?" UPPER_LETTERS \
  "+" LOWER_LETTERS "*" suffix "|" digits "| ?[^" SPACES                                                      \
  "\\p{L}\\p{N}]+[\\r\\n/]*"                                                                                  \
  "|" SPACES_AT_LAST
#define DEEPSEEK3_LINE                           \
  ASCII_MARKS                                    \
  "[A-Za-z]+"                                    \
  "|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+" \
  "| ?[\\p{P}\\p{S}]+[\\r\\n]*"                  \
  "|" SPACES_AT_LAST

/* Letters with case, of those that Unicode had when the list was made (deepseek-llm). */
#define CASED_LETTERS                                                                                    \
  "\\x{41}-\\x{5a}\\x{61}-\\x{7a}\\x{b5}\\x{c0}-\\x{d6}\\x{d8}-\\x{f6}\\x{f8}-\\x{1ba}\\x{1bc}-\\x{1bf}" \
  "\\x{1c4}-\\x{293}\\x{295}-\\x{2af}\\x{370}-\\x{373}\\x{376}-\\x{377}\\x{37b}-\\x{37d}\\x{37f}"        \
  "\\x{386}\\x{388}-\\x{38a}\\x{38c}\\x{38e}-\\x{3a1}\\x{3a3}-\\x{3f5}\\x{3f7}-\\x{481}"                 \
  "\\x{48a}-\\x{52f}\\x{531}-\\x{556}\\x{10a0}-\\x{10c5}\\x{13a0}-\\x{13f5}\\x{13f8}-\\x{13fd}"          \
  "\\x{1c90}-\\x{1cba}\\x{1cbd}-\\x{1cbf}\\x{1d00}-\\x{1d2b}\\x{1d6b}-\\x{1d77}\\x{1d79}-\\x{1d9a}"      \
  "\\x{1e00}-\\x{1f15}\\x{1f18}-\\x{1f1d}\\x{1f20}-\\x{1f45}\\x{1f48}-\\x{1f4d}\\x{1f50}-\\x{1f57}"      \
  "\\x{1f59}\\x{1f5b}\\x{1f5d}\\x{1f5f}-\\x{1f7d}\\x{1f80}-\\x{1fb4}\\x{1fb6}-\\x{1fbc}\\x{1fbe}"        \
  "\\x{1fc2}-\\x{1fc4}\\x{1fc6}-\\x{1fcc}\\x{1fd0}-\\x{1fd3}\\x{1fd6}-\\x{1fdb}\\x{1fe0}-\\x{1fec}"      \
  "\\x{1ff2}-\\x{1ff4}\\x{1ff6}-\\x{1ffc}\\x{2102}\\x{2107}\\x{210a}-\\x{2113}\\x{2115}"                 \
  "\\x{2119}-\\x{211d}\\x{2124}\\x{2126}\\x{2128}\\x{212a}-\\x{212d}\\x{212f}-\\x{2134}\\x{2139}"        \
  "\\x{213c}-\\x{213f}\\x{2145}-\\x{2149}\\x{214e}\\x{2183}-\\x{2184}\\x{2c00}-\\x{2c7b}"                \
  "\\x{2c7e}-\\x{2ce4}\\x{2ceb}-\\x{2cee}\\x{2cf2}-\\x{2cf3}\\x{a640}-\\x{a66d}\\x{a680}-\\x{a69b}"      \
  "\\x{a722}-\\x{a76f}\\x{a771}-\\x{a787}\\x{a78b}-\\x{a78e}\\x{ab70}-\\x{abbf}\\x{fb00}-\\x{fb06}"      \
  "\\x{fb13}-\\x{fb17}\\x{ff21}-\\x{ff3a}\\x{ff41}-\\x{ff5a}\\x{10400}-\\x{1044f}\\x{104b0}-\\x{104d3}"  \
  "\\x{104d8}-\\x{104fb}\\x{10c80}-\\x{10cb2}\\x{10cc0}-\\x{10cf2}\\x{118a0}-\\x{118df}"                 \
  "\\x{1e900}-\\x{1e943}"
/* The script Han. */
#define HAN                                                                                                           \
  "\\x{2e80}-\\x{2e99}\\x{2e9b}-\\x{2ef3}\\x{2f00}-\\x{2fd5}\\x{3005}\\x{3007}\\x{3021}-\\x{3029}\\x{3038}-\\x{303b}" \
  "\\x{3400}-\\x{4dbf}\\x{4e00}-\\x{9fff}\\x{f900}-\\x{fa6d}\\x{fa70}-\\x{fad9}\\x{16fe2}\\x{16fe3}"                  \
  "\\x{16ff0}\\x{16ff1}\\x{20000}-\\x{2a6df}\\x{2a700}-\\x{2b739}\\x{2b740}-\\x{2b81d}\\x{2b820}-\\x{2cea1}"          \
  "\\x{2ceb0}-\\x{2ebe0}\\x{2ebf0}-\\x{2ee5d}\\x{2f800}-\\x{2fa1d}\\x{30000}-\\x{3134a}\\x{31350}-\\x{323af}"
/* As CASED_LINE, but that runs of Han are words of their own, and no part of others. A class says what it has not:
 * a repeated group would take memory for each letter. */
#define NO_WORD    HAN "\\p{N}\\p{P}\\p{S}\\p{Z}\\p{C}"
#define KIMI_UPPER "[^" NO_WORD "\\p{Ll}]"
#define KIMI_LOWER "[^" NO_WORD "\\p{Lu}\\p{Lt}]"
#define KIMI_LINE                                                                                                    \
  "[" HAN "]+|[^\\r\\n\\p{L}\\p{N}]?" KIMI_UPPER "*" KIMI_LOWER "+" WORD_SUFFIX "|[^\\r\\n\\p{L}\\p{N}]?" KIMI_UPPER \
  "+" KIMI_LOWER "*" WORD_SUFFIX "|\\p{N}{1,3}| ?[^" SPACES "\\p{L}\\p{N}]+[\\r\\n]*|" SPACES_AT_LAST

typedef struct split_group {
  const char *names; /* between spaces */
  const char *patterns[SPLIT_PATTERNS_MAX];
  bool ignore_merges, add_bos;
} split_group;

static const split_group groups[] = {
    {" default ", {"[\\p{P}$+<=>^~|]+", GPT2_LINE, "\\p{N}+", "[0-9][0-9][0-9]"}, false, false},
    {" gpt-2 phi-2 mpt olmo jais jina-es jina-de jina-v1-en jina-v2-es jina-v2-de jina-v2-code "
     "roberta-bpe gigachat modern-bert exaone4 trillion ",
     {GPT2_LINE},
     false,
     false},
    {" llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 ", {MODERN_LINE("\\p{N}{1,3}")}, true, true},
    {" dbrx smaug-bpe glm4 chatglm-bpe ", {MODERN_LINE("\\p{N}{1,3}")}, false, false},
    {" qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 ", {MODERN_LINE(DIGIT)}, false, false},
    {" qwen35 ", {QWEN35_LINE}, false, false},
    {" gpt-4o llama4 kanana2 ", {CASED_LINE(WORD_SUFFIX, "\\p{N}{1,3}")}, false, false},
    {" tekken ", {CASED_LINE("", DIGIT)}, true, true},
    {" kimi-k2 ", {KIMI_LINE}, false, false},
    {" starcoder refact command-r smollm codeshell exaone minerva-7b ", {DIGIT, GPT2_LINE}, false, false},
    {" deepseek-coder ",
     {"[\\r\\n]", S "?\\p{L}+", S "?\\p{P}+", "[\\x{4e00}-\\x{9fa5}\\x{800}-\\x{4e00}\\x{ac00}-\\x{d7ff}]+", DIGIT},
     false,
     false},
    /* The range : to ~ has letters, too. White space at the end is looked for from its first character on alone. */
    {" deepseek-llm ",
     {"[\\r\\n]", S "?[" CASED_LETTERS "]+",
      S "?[!-/:-~\\x{ff01}-\\x{ff0f}\\x{ff1a}-\\x{ff5e}\\x{2018}-\\x{201f}\\x{3000}-\\x{3002}]+", "(?<!" S ")" S "+$",
      "[\\x{4e00}-\\x{9fa5}\\x{800}-\\x{4e00}\\x{ac00}-\\x{d7ff}]+", DIGIT "+"},
     false,
     false},
    {" deepseek-v3 joyai-llm hunyuan-dense ",
     {"\\p{N}{1,3}", "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+", DEEPSEEK3_LINE},
     false,
     false},
};

struct split {
  char name[32];
  pcre2_general_context *general;
  pcre2_match_context *match;
  pcre2_code *codes[SPLIT_PATTERNS_MAX];
  uint32_t n_codes;
};

static void *pcre_take(size_t n, void *self) {
  (void)self;
  return weft_alloc(n, 1);
}

static void pcre_give(void *memory, void *self) {
  (void)self;
  weft_free(memory);
}

static const split_group *group_find(weft_bytes pre) {
  char wanted[40];
  if (pre.n == 0 || pre.n > sizeof wanted - 3) return NULL;
  if (memchr(pre.data, ' ', pre.n) != NULL || memchr(pre.data, 0, pre.n) != NULL) return NULL;
  wanted[0] = ' ';
  memcpy(wanted + 1, pre.data, pre.n);
  memcpy(wanted + 1 + pre.n, " ", 2);
  for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
    if (strstr(groups[i].names, wanted) != NULL) return &groups[i];
  }
  return NULL;
}

static weft_status split_compile(split *s, const char *pattern) {
  int code = 0;
  PCRE2_SIZE at = 0;
  pcre2_compile_context *context = pcre2_compile_context_create(s->general);
  if (context == NULL) return WEFT_E_NO_MEMORY;
  s->codes[s->n_codes] = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF, &code, &at, context);
  pcre2_compile_context_free(context);
  if (s->codes[s->n_codes] == NULL) return WEFT_E_NO_MEMORY; /* the patterns are ours and compile */
  /* Without a just-in-time compiler the interpreter gives the same pieces, more slowly. */
  (void)pcre2_jit_compile(s->codes[s->n_codes], PCRE2_JIT_COMPLETE);
  s->n_codes += 1;
  return WEFT_OK;
}

weft_status split_open(weft_bytes pre, split **out, split_info *info, weft_error *error) {
  *out = NULL;
  const split_group *group = group_find(pre);
  if (group == NULL) {
    return weft_fail(
        error, WEFT_E_UNSUPPORTED,
        "tokenizer.ggml.pre is '%.*s', which weft does not know; known are default, "
        "gpt-2, llama-bpe, qwen2, "
        "qwen35, gpt-4o, kimi-k2, starcoder, deepseek-coder, deepseek-llm, deepseek-v3 and their relatives",
        pre.n > 40 ? 40 : (int)pre.n, pre.data);
  }
  *info = (split_info){group->ignore_merges, group->add_bos};
  split *s = weft_alloc(1, sizeof *s);
  if (s == NULL) return WEFT_E_NO_MEMORY;
  memcpy(s->name, pre.data, pre.n < sizeof s->name ? pre.n : sizeof s->name - 1);
  weft_status status = WEFT_E_NO_MEMORY;
  s->general = pcre2_general_context_create(pcre_take, pcre_give, NULL);
  if (s->general == NULL) goto fail;
  s->match = pcre2_match_context_create(s->general);
  if (s->match == NULL) goto fail;
  (void)pcre2_set_match_limit(s->match, UINT32_MAX); /* counts one per character given back; linear, see above */
  for (uint32_t i = 0; i < SPLIT_PATTERNS_MAX && group->patterns[i] != NULL; i++) {
    status = split_compile(s, group->patterns[i]);
    if (status != WEFT_OK) goto fail;
  }
  *out = s;
  return WEFT_OK;
fail:
  split_close(s);
  return status;
}

void split_close(split *s) {
  if (s == NULL) return;
  for (uint32_t i = 0; i < s->n_codes; i++) pcre2_code_free(s->codes[i]);
  pcre2_match_context_free(s->match);
  pcre2_general_context_free(s->general);
  weft_free(s);
}

void split_match_close(void *match) {
  pcre2_match_data_free(match);
}

const char *split_name(const split *s) {
  return s->name;
}

static weft_status ends_push(work *w, uint32_t side, uint32_t end) {
  if (w->n_ends[side] == w->ends_capacity[side]) {
    uint32_t capacity = w->ends_capacity[side] == 0 ? 64 : w->ends_capacity[side] * 2;
    uint32_t *ends = weft_realloc(w->ends[side], capacity, sizeof *ends);
    if (ends == NULL) return WEFT_E_NO_MEMORY;
    w->ends[side] = ends;
    w->ends_capacity[side] = capacity;
  }
  w->ends[side][w->n_ends[side]++] = end;
  return WEFT_OK;
}

/* Cuts text[from..to) with one pattern; ends go to `side`. */
static weft_status split_piece(const split *s, const pcre2_code *code, const char *text, uint32_t from, uint32_t to,
                               work *w, uint32_t side) {
  const PCRE2_SIZE *found = pcre2_get_ovector_pointer(w->match);
  uint32_t at = 0, n = to - from;
  while (at < n) {
    int rc = pcre2_match(code, (PCRE2_SPTR)text + from, n, at, PCRE2_NO_UTF_CHECK, w->match, s->match);
    if (rc == PCRE2_ERROR_NOMATCH) break;
    if (rc < 0) return WEFT_E_NO_MEMORY; /* the text is valid and the limits are off: only memory is left */
    WEFT_CHECK(found[1] > found[0]);
    WEFT_CHECK(found[0] >= at);
    weft_status status = found[0] > at ? ends_push(w, side, from + (uint32_t)found[0]) : WEFT_OK;
    if (status == WEFT_OK) status = ends_push(w, side, from + (uint32_t)found[1]);
    if (status != WEFT_OK) return status;
    at = (uint32_t)found[1];
  }
  return at < n ? ends_push(w, side, to) : WEFT_OK;
}

weft_status split_run(const split *s, const char *text, uint32_t n, work *w, const uint32_t **ends, uint32_t *n_ends) {
  if (w->match == NULL) w->match = pcre2_match_data_create(1, s->general);
  if (w->match == NULL) return WEFT_E_NO_MEMORY;
  uint32_t side = 0;
  w->n_ends[side] = 0;
  weft_status status = n > 0 ? ends_push(w, side, n) : WEFT_OK;
  for (uint32_t k = 0; k < s->n_codes && status == WEFT_OK; k++) {
    uint32_t from = 0, to_side = 1 - side;
    w->n_ends[to_side] = 0;
    for (uint32_t i = 0; i < w->n_ends[side] && status == WEFT_OK; i++) {
      status = split_piece(s, s->codes[k], text, from, w->ends[side][i], w, to_side);
      from = w->ends[side][i];
    }
    side = to_side;
  }
  *ends = w->ends[side];
  *n_ends = w->n_ends[side];
  return status;
}
