/* SPDX-License-Identifier: MIT */
/* How many schemas of a test suite compile, why the others are refused, and whether what compiled takes what it may.
 *
 * usage: bench_schema_suite VOCABULARY.gguf FILE... [-v]
 *        files as the public JSON Schema test suite has them: a list of {"description", "schema", "tests": [{"data",
 * "valid"}]}.
 *        The vocabulary must have every byte as a token, as model/demo/weft-demo-ar.gguf has.
 *
 * An instance is written in the order of its properties and in the two orders by name. One that is not valid and is
 * taken in any of them is a fault, and the program ends with 1. A valid one that is not taken is one that answers
 * here never have: other orders of properties, types that a schema without type does not speak of, and the like
 * (docs/formats.md); it is counted. -v: each such instance, and each refusal. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/memory.h"
#include "model/formats/grammar_internal.h"
#include "model/gguf/gguf.h"

enum { WHY_MAX = 256, WHY_BYTES = 96 };

typedef struct refusal_count {
  char why[WHY_BYTES];
  uint32_t n;
} refusal_count;

typedef struct suite {
  weft_token_trie *trie;
  weft_grammar_scratch *scratch;
  int32_t token_of[256]; /* of a byte; -1: there is none */
  uint32_t n_schemas, n_compiled, n_valid, n_taken, n_invalid, n_faults, n_unwritten;
  refusal_count why[WHY_MAX];
  uint32_t n_why;
  bool tells;
} suite;

static void find_bytes(suite *s) {
  const weft_token_trie *t = s->trie;
  for (uint32_t i = 0; i < 256; i++) s->token_of[i] = -1;
  for (uint32_t node = 1; node < t->n_nodes; node = t->end[node]) {
    if (weft_token_trie_n(t, node) > 0) s->token_of[t->byte[node]] = t->token[t->first[node]];
  }
}

/* -1: the vocabulary cannot write it byte by byte. */
static int takes_text(suite *s, const weft_grammar *g, const char *text) {
  weft_matcher m;
  weft_matcher_begin(&m, g);
  for (; *text != 0; text++) {
    int32_t token = s->token_of[(uint8_t)*text];
    if (token < 0) return -1;
    if (!weft_matcher_take(&m, s->scratch, token)) return 0;
  }
  return weft_matcher_may_end(&m, s->scratch) ? 1 : 0;
}

/* The same value with the members of its objects the other way round. */
static json_t *turn_around(const json_t *value) {
  if (json_is_array(value)) {
    json_t *list = json_array();
    for (size_t i = 0; i < json_array_size(value); i++) {
      (void)json_array_append_new(list, turn_around(json_array_get(value, i)));
    }
    return list;
  }
  if (!json_is_object(value)) return json_deep_copy(value);
  size_t n = json_object_size(value);
  const char **name = (const char **)weft_alloc(n + 1, sizeof *name);
  json_t *made = json_object(), *member;
  const char *key;
  WEFT_CHECK(name != NULL && made != NULL);
  size_t i = n;
  json_object_foreach((json_t *)value, key, member) name[--i] = key;
  for (; i < n; i++) (void)json_object_set_new(made, name[i], turn_around(json_object_get(value, name[i])));
  weft_free((void *)name);
  return made;
}

static int takes_value(suite *s, const weft_grammar *g, const json_t *value) {
  json_t *turned = turn_around(value);
  char *texts[] = {json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(15)),
                   json_dumps(turned, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(15)),
                   json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(15) | JSON_SORT_KEYS)};
  int taken = 0;
  for (uint32_t i = 0; i < 3; i++) {
    int one = texts[i] == NULL ? -1 : takes_text(s, g, texts[i]);
    if (taken == 0 || one == 1) taken = one;
    free(texts[i]);
  }
  json_decref(turned);
  return taken;
}

static void check_instances(suite *s, const weft_grammar *g, const json_t *one, const char *file) {
  const json_t *tests = json_object_get(one, "tests");
  for (size_t i = 0; i < json_array_size(tests); i++) {
    const json_t *test = json_array_get(tests, i);
    bool valid = json_is_true(json_object_get(test, "valid"));
    int taken = takes_value(s, g, json_object_get(test, "data"));
    const char *words = json_string_value(json_object_get(test, "description"));
    s->n_unwritten += taken < 0 ? 1 : 0;
    s->n_valid += valid ? 1 : 0;
    s->n_taken += valid && taken == 1 ? 1 : 0;
    s->n_invalid += valid ? 0 : 1;
    s->n_faults += !valid && taken == 1 ? 1 : 0;
    bool told = (!valid && taken == 1) || (s->tells && valid && taken == 0);
    if (!told) continue;
    (void)printf("%s %s: %s: %s\n", valid ? "not taken" : "FAULT", file,
                 json_string_value(json_object_get(one, "description")), words);
  }
}

/* Counts a refusal by its words behind the place. */
static void count_refusal(suite *s, const char *line) {
  const char *at = strstr(line, " at #");
  at = at == NULL ? line : strstr(at, ": ");
  at = at == NULL ? line : at + 2;
  uint32_t i = 0;
  char why[WHY_BYTES];
  (void)snprintf(why, sizeof why, "%.90s", at);
  while (i < s->n_why && strcmp(s->why[i].why, why) != 0) i += 1;
  if (i == WHY_MAX) return;
  if (i == s->n_why) (void)snprintf(s->why[s->n_why++].why, WHY_BYTES, "%s", why);
  s->why[i].n += 1;
}

static void read_case(suite *s, const json_t *one, const char *file) {
  char *text = json_dumps(json_object_get(one, "schema"), JSON_ENCODE_ANY);
  weft_grammar *g = NULL;
  weft_error error = {{0}};
  WEFT_CHECK(text != NULL);
  s->n_schemas += 1;
  weft_status status = weft_grammar_compile(WEFT_GRAMMAR_JSON_SCHEMA, text, strlen(text), s->trie, &g, NULL, &error);
  if (status == WEFT_OK) {
    s->n_compiled += 1;
    check_instances(s, g, one, file);
  } else {
    count_refusal(s, error.text);
    if (s->tells)
      (void)printf("refused %s: %s: %s\n", file, json_string_value(json_object_get(one, "description")), error.text);
  }
  weft_grammar_unref(g);
  free(text);
}

static bool read_file(suite *s, const char *path) {
  json_error_t error;
  json_t *list = json_load_file(path, JSON_ALLOW_NUL, &error);
  const char *name = strrchr(path, '/');
  if (!json_is_array(list)) {
    (void)fprintf(stderr, "%s: no list of cases: %s\n", path, error.text);
    json_decref(list);
    return false;
  }
  for (size_t i = 0; i < json_array_size(list); i++)
    read_case(s, json_array_get(list, i), name == NULL ? path : name + 1);
  json_decref(list);
  return true;
}

static int compare_counts(const void *a, const void *b) {
  const refusal_count *x = a, *y = b;
  return (x->n < y->n) - (x->n > y->n);
}

int main(int argc, char **argv) {
  suite s = {.tells = argc > 2 && strcmp(argv[argc - 1], "-v") == 0};
  weft_gguf *gguf = NULL;
  weft_tokenizer *tokenizer = NULL;
  weft_error error = {{0}};
  bool ok = argc > 2 && weft_gguf_open(argv[1], &gguf, &error) == WEFT_OK &&
            weft_tokenizer_open(gguf, &tokenizer, &error) == WEFT_OK &&
            weft_token_trie_open(tokenizer, &s.trie, &error) == WEFT_OK &&
            weft_grammar_scratch_open(&s.scratch) == WEFT_OK;
  if (!ok) {
    (void)fprintf(stderr, "usage: bench_schema_suite VOCABULARY.gguf FILE... [-v]: %s\n", error.text);
    return 1;
  }
  find_bytes(&s);
  for (int i = 2; i < argc - (s.tells ? 1 : 0); i++) ok = read_file(&s, argv[i]) && ok;
  qsort(s.why, s.n_why, sizeof *s.why, compare_counts);
  for (uint32_t i = 0; i < s.n_why; i++) (void)printf("%5u refused: %s\n", s.why[i].n, s.why[i].why);
  (void)printf(
      "%u schemas: %u compiled, %u refused; of %u valid instances %u taken, of %u others %u taken; %u have bytes "
      "that are no tokens\n",
      s.n_schemas, s.n_compiled, s.n_schemas - s.n_compiled, s.n_valid, s.n_taken, s.n_invalid, s.n_faults,
      s.n_unwritten);
  weft_grammar_scratch_close(s.scratch);
  weft_token_trie_close(s.trie);
  weft_tokenizer_close(tokenizer);
  weft_gguf_close(gguf);
  return ok && s.n_faults == 0 ? 0 : 1;
}
