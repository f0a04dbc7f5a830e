/* SPDX-License-Identifier: MIT */
/* Grammars: what is allowed, what is refused, and that answers are complete in time. With arguments it is a tool
 * (tests/support/grammar_tool.h), whose answers are random tokens of the masks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/memory.h"
#include "model/formats/grammar_internal.h"
#include "tests/support/grammar_tool.h"
#include "tests/support/schema_check.h"

static weft_status nothing_more(weft_grammar *g, weft_grammar_work *work, weft_error *error) {
  (void)g, (void)work, (void)error;
  return WEFT_OK;
}

/* ---- tests ---- */

static grammar_world world;

static int open_world(void **state) {
  (void)state;
  return grammar_world_small(&world) ? 0 : -1;
}

static int close_world(void **state) {
  (void)state;
  grammar_world_close(&world);
  return 0;
}

static weft_grammar *compile(weft_grammar_kind kind, const char *text) {
  weft_grammar *g;
  weft_error error;
  if (weft_grammar_compile(kind, text, strlen(text), world.trie, &g, NULL, &error) != WEFT_OK) {
    fail_msg("%s: %s", text, error.text);
  }
  return g;
}

/* Byte by byte: in this vocabulary a token of one byte has the byte's number. */
static bool takes(const weft_grammar *g, const char *text, weft_matcher *m) {
  weft_matcher_begin(m, g);
  for (; *text != 0; text++) {
    if (!weft_matcher_take(m, world.scratch, (int32_t)(uint8_t)*text)) return false;
  }
  return weft_matcher_may_end(m, world.scratch);
}

typedef struct language_row {
  weft_grammar_kind kind;
  const char *grammar, *in[6], *out[8];
} language_row;

#define SCHEMA WEFT_GRAMMAR_JSON_SCHEMA
#define REGEX  WEFT_GRAMMAR_REGEX
#define GBNF   WEFT_GRAMMAR_GBNF

static const language_row languages[] = {
    {REGEX, "a(b|cd)*e?", {"a", "abcde", "abb"}, {"", "ac", "aee", "b"}},
    {REGEX, "^[^a-c\\d]{2}\\.$", {"xy.", "\xC3\xA4z."}, {"xy", "ab.", "1x.", "xyz."}},
    {REGEX, "(ab?){2,3}", {"aa", "aba", "ababab"}, {"a", "aaaa", "b"}},
    {REGEX, "x{3}", {"xxx"}, {"xx", "xxxx"}},
    {REGEX, "(a?){4}b", {"b", "ab", "aaaab"}, {"aaaaab", "a"}},
    {REGEX, "\\u00e9|\\x41+", {"\xC3\xA9", "AA"}, {"e", "\xC3\xA8"}},
    {WEFT_GRAMMAR_CHOICE, "[\"yes\",\"yes please\",\"no\"]", {"yes", "no", "yes please"}, {"ye", "yes p", "maybe"}},
    {GBNF, "root ::= \"(\" root \")\" | \"x\"", {"x", "((x))"}, {"(", "(x", "x)"}},
    {GBNF, "root ::= a{2} # twice\na ::= [a-c]+ \" \"\n  | \"\\n\"", {"ab c ", "\n\n", "a \n"}, {"a ", "ab", "\n\n\n"}},
    {GBNF, "root ::= ([^\"] | \"\\\"\")*", {"", "a\"b"}, {0}},
    {SCHEMA,
     "{\"type\":\"integer\",\"minimum\":-12,\"maximum\":305}",
     {"-12", "0", "9", "99", "305"},
     {"-13", "306", "00", "-0", "1000", "1.0", "3050"}},
    {SCHEMA,
     "{\"type\":\"number\",\"exclusiveMinimum\":0,\"maximum\":2}",
     {"0.5", "1", "1.25", "2", "0.001"},
     {"0", "0.0", "-1", "2.5", "3"}},
    {SCHEMA,
     "{\"type\":\"string\",\"minLength\":1,\"maxLength\":2}",
     {"\"a\"", "\"\\n\\u00e9\"", "\"\xC3\xA4z\""},
     {"\"\"", "\"abc\"", "\"\n\"", "\"\\ud800\"", "\"a"}},
    {SCHEMA,
     "{\"type\":\"string\",\"pattern\":\"^a.\\\\\\\\\"}",
     {"\"a\\\"\\\\\"", "\"ax\\\\tail\""},
     {"\"a\\\\\"", "\"b\""}},
    {SCHEMA,
     "{\"properties\":{\"a\":{\"type\":\"null\"},\"b\":{\"type\":\"null\"}},\"required\":[\"b\"],"
     "\"additionalProperties\":false}",
     {"{\"b\":null}", "{\"a\": null, \"b\": null}", "{\n  \"b\":null\n}"},
     {"{}", "{\"a\":null}", "{\"b\":null,\"a\":null}", "{\"b\":null,}", "{,\"b\":null}", "{\"b\":null,\"b\":null}"}},
    {SCHEMA,
     "{\"properties\":{\"ab\":{\"type\":\"null\"}},\"additionalProperties\":{\"type\":\"boolean\"}}",
     {"{}", "{\"ab\":null,\"a\":true}", "{\"abc\":true}", "{\"\xC3\xA4\":false}"},
     {"{\"ab\":true}", "{\"a\":null}", "{\"a\":true,\"ab\":null}"}},
    {SCHEMA,
     "{\"type\":\"array\",\"prefixItems\":[{\"const\":1}],\"items\":{\"const\":2},\"minItems\":2,\"maxItems\":3}",
     {"[1,2]", "[1, 2, 2]"},
     {"[]", "[1]", "[2,2]", "[1,2,2,2]", "[1,]"}},
    {SCHEMA, "{\"type\":\"array\",\"maxItems\":0}", {"[]", "[ ]"}, {"[1]"}},
    {SCHEMA, "{\"enum\":[\"a\",1,null],\"type\":[\"string\",\"null\"]}", {"\"a\"", "null"}, {"1"}},
    {SCHEMA, "true", {"[{\"a\":[null,true]},-1.5e3]"}, {"[1,]", "{\"a\"}", "tru"}},
    {WEFT_GRAMMAR_JSON_OBJECT, "", {"{}", "{\"a\":[1, {}]}"}, {"[]", "1", "{\"a\":}"}},
};

static void languages_are_what_they_say(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof languages / sizeof *languages; i++) {
    const language_row *row = &languages[i];
    weft_grammar *g = compile(row->kind, row->grammar);
    weft_matcher m;
    for (int k = 0; k < 6 && row->in[k] != NULL; k++) {
      if (!takes(g, row->in[k], &m)) fail_msg("%s does not take %s", row->grammar, row->in[k]);
    }
    for (int k = 0; k < 8 && row->out[k] != NULL; k++) {
      if (takes(g, row->out[k], &m)) fail_msg("%s takes %s", row->grammar, row->out[k]);
    }
    weft_grammar_unref(g);
  }
}

static const struct {
  weft_grammar_kind kind;
  const char *grammar, *words;
} refusals[] = {
    {SCHEMA, "{\"not\":{}}", "must not hold here leaves nothing"},
    {SCHEMA, "{\"properties\":{\"a\":{\"items\":{\"multipleOf\":0}}}}",
     "#/a/items: multipleOf must be a number greater"},
    {SCHEMA, "{\"patternProperties\":[]}", "patternProperties must be an object"},
    {SCHEMA, "{\"properties\":{\"a\":{\"pattern\":\"(b)\\\\1\"}}}", "backward references"},
    {SCHEMA, "{\"type\":\"string\",\"pattern\":\"^a\",\"minLength\":1,\"not\":{\"pattern\":\"a\"}}", "no text fits"},
    {SCHEMA, "{\"type\":\"array\",\"uniqueItems\":true}", "'uniqueItems'"},
    {SCHEMA, "{\"type\":\"strin\"}", "type must be"},
    {SCHEMA, "{\"$ref\":\"http://x/y\"}", "must lead into this schema"},
    {SCHEMA, "{\"$ref\":\"#/$defs/x\"}", "not there"},
    {SCHEMA, "{\"$ref\":\"#\"}", "begins with itself"},
    {SCHEMA, "{\"allOf\":[{\"$ref\":\"#\"},{\"type\":\"null\"}]}", "go in a circle"},
    {SCHEMA, "{\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}", "nothing fits"},
    {SCHEMA, "{\"allOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]}", "different types"},
    {SCHEMA, "{\"minLength\":3,\"maxLength\":2}", "less than"},
    {SCHEMA, "{\"type\":\"integer\",\"minimum\":0.25,\"maximum\":0.5}", "no number"},
    {SCHEMA, "false", "nothing fits"},
    {SCHEMA, "{", "not valid JSON"},
    {SCHEMA, "{\"type\":\"string\",\"minLength\":100000}", "at most 65536"},
    {REGEX, "(a", "not closed"},
    {REGEX, "a{99999999}", "at most 65536"},
    {REGEX, "(((a{999}){999}){999}){999}", "nothing fits"},
    {REGEX, "(a)\\1", "backward references"},
    {REGEX, "a(?=b)", "nothing fits"},
    {REGEX, "a^b", "nothing fits"},
    {REGEX, "(?<!a$)b", "within (?<= and (?<!"},
    {REGEX, "{2}a", "repetition of nothing"},
    {REGEX, "(|*)", "repetition of nothing"},
    {REGEX, "a\\b+", "repetition of nothing"},
    {REGEX, "[z-a]", "ends before it begins"},
    {REGEX, "(a|b|ab){1,3}c*{2}", "repetition of a repetition"},
    {GBNF, "root ::= root \"a\" | \"b\"", "begins with itself"},
    {GBNF, "root ::= x", "(in GBNF, llama.cpp's notation): the rule x is used"},
    {GBNF, "start: \"a\"", "(in GBNF, llama.cpp's notation), line 1: "},
    {GBNF, "a ::= \"b\"", "named root"},
    {GBNF, "root ::= \"a\" \"a", "not closed"},
    {GBNF, "root ::= \"(\" root \")\"", "nothing fits"},
    {WEFT_GRAMMAR_CHOICE, "[]", "at least one"},
    {WEFT_GRAMMAR_CHOICE, "[1]", "text"},
};

static void refusals_name_what_is_wrong(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
    weft_grammar *g;
    weft_error error = {{0}};
    const char *text = refusals[i].grammar;
    weft_status status = weft_grammar_compile(refusals[i].kind, text, strlen(text), world.trie, &g, NULL, &error);
    if (status == WEFT_OK) fail_msg("%s is not refused", text);
    if (strstr(error.text, refusals[i].words) == NULL) fail_msg("%s: %s", text, error.text);
    assert_null(g);
  }
}

/* What would take long is given up, whatever it is made of. */
static void explosions_are_bounded(void **state) {
  weft_text text = {0};
  weft_grammar *g;
  weft_error error;
  weft_grammar_work work = {0};
  (void)state;
  weft_text_puts(&text, "(a|b)*a"); /* as many sets of states as there are subsets */
  for (int i = 0; i < 40; i++) weft_text_puts(&text, "(a|b)");
  assert_int_not_equal(weft_grammar_compile(REGEX, text.bytes, text.n, world.trie, &g, &work, &error), WEFT_OK);
  assert_true(work.n_steps <= 2ull * GRAMMAR_STEPS_MAX);
  weft_text_clear(&text);
  weft_text_puts(&text, "{\"type\":\"object\",\"properties\":{");
  for (int i = 0; i < 3000; i++) weft_text_printf(&text, "%s\"p%d\":{\"enum\":[\"a%d\"]}", i > 0 ? "," : "", i, i);
  weft_text_puts(&text, "}}");
  (void)weft_grammar_compile(SCHEMA, text.bytes, text.n, world.trie, &g, &work, &error);
  assert_true(work.n_steps <= 2ull * (GRAMMAR_STEPS_MAX + GRAMMAR_VISITS_MAX));
  weft_grammar_unref(g);
  weft_text_clear(&text);
  for (int i = 0; i < 5000; i++) weft_text_puts(&text, "{\"items\":");
  assert_int_not_equal(weft_grammar_compile(SCHEMA, text.bytes, text.n, world.trie, &g, &work, &error), WEFT_OK);
  weft_text_free(&text);
}

/* What would cost too much is refused, and the line says what of it; the text is freed. */
static void too_large(weft_grammar_kind kind, weft_text *text, const char *words) {
  weft_grammar *g;
  weft_error error = {{0}};
  assert_int_equal(weft_grammar_compile(kind, text->bytes, text->n, world.trie, &g, NULL, &error), WEFT_E_TOO_LARGE);
  if (strstr(error.text, words) == NULL) fail_msg("'%s' does not say '%s'", error.text, words);
  weft_text_free(text);
}

/* Two names for the next rule, on every level: as many ways to the first character as a processor counts in an hour. */
static void rules_with_many_ways_are_refused(void **state) {
  weft_text text = {0};
  (void)state;
  weft_text_puts(&text, "root ::= r0\n");
  for (int i = 0; i < 20; i++) weft_text_printf(&text, "r%d ::= a%d | b%d\na%d ::= r%d\n", i, i, i, i, i + 1);
  for (int i = 0; i < 20; i++) weft_text_printf(&text, "b%d ::= r%d\n", i, i + 1);
  weft_text_puts(&text, "r20 ::= \"x\"\n");
  too_large(GBNF, &text, "too ambiguous");
}

/* Many stacks for one text: what a mask and a token cost is bounded, and some token is always allowed. */
static void masks_of_ambiguous_grammars_are_bounded(void **state) {
  weft_text text = {0};
  weft_matcher m;
  (void)state;
  weft_text_puts(&text, "root ::= (r0 | \"q\")*\n");
  for (int i = 0; i < 8; i++) {
    weft_text_printf(&text, "r%d ::= a%d | b%d\na%d ::= r%d [a-z]*\nb%d ::= r%d [a-y ]*\n", i, i, i, i, i + 1, i,
                     i + 1);
  }
  weft_text_puts(&text, "r8 ::= [a-z]+\n");
  weft_grammar *g = compile(GBNF, text.bytes);
  weft_matcher_begin(&m, g);
  for (int i = 0; i < 20; i++) {
    weft_matcher_mask(&m, world.scratch, 1000, world.mask);
    assert_true(world.scratch->n_done <= (uint64_t)WALK_MASK_MAX + 2 * WALK_BYTE_MAX);
    assert_true((world.mask['b' / 32] >> 'b' % 32 & 1) != 0);
    assert_true(weft_matcher_take(&m, world.scratch, 'b'));
    assert_true(world.scratch->n_done <= 2 * WALK_BYTE_MAX);
  }
  weft_grammar_unref(g);
  weft_text_free(&text);
}

/* What a mask costs is bounded however few tokens are left: the token of the shortest way is allowed where the others
 * take too long to find. Whatever else is tried comes before the one that ends the text here. */
static void masks_of_ambiguous_grammars_are_bounded_to_the_end(void **state) {
  weft_text text = {0};
  weft_matcher m;
  uint64_t n;
  (void)state;
  weft_text_puts(&text, "root ::= (r0 | \"q\")+ \"~\"\n");
  for (int i = 0; i < 8; i++) {
    weft_text_printf(&text, "r%d ::= a%d | b%d\na%d ::= r%d [^~]*\nb%d ::= r%d [^~x]*\n", i, i, i, i, i + 1, i, i + 1);
  }
  weft_text_puts(&text, "r8 ::= [^~]+\n");
  weft_grammar *g = compile(GBNF, text.bytes);
  for (uint32_t n_taken = 0; n_taken < 6; n_taken++) {
    weft_matcher_begin(&m, g);
    for (uint32_t left = n_taken + 2; left > 0; left--) {
      weft_matcher_mask(&m, world.scratch, left, world.mask);
      assert_true(world.scratch->n_done <= (uint64_t)WALK_MASK_MAX + 2 * WALK_BYTE_MAX);
      (void)grammar_mask_pick(world.mask, world.trie->n_vocab, UINT64_MAX, &n);
      int32_t token = grammar_mask_pick(world.mask, world.trie->n_vocab, (left * 31 + n_taken) % n, &n);
      assert_true(weft_matcher_take(&m, world.scratch, token));
      if (weft_matcher_is_done(&m)) break;
    }
    assert_true(weft_matcher_is_done(&m));
  }
  weft_grammar_unref(g);
  weft_text_free(&text);
}

/* The steps of compiling end inside the table of a state, too: a large vocabulary makes it long. */
static void a_table_stops_where_the_steps_end(void **state) {
  const uint64_t most = (uint64_t)GRAMMAR_STEPS_MAX + GRAMMAR_VISITS_MAX;
  weft_error error = {{0}};
  (void)state;
  weft_grammar *g = compile(REGEX, "[^x]*");
  grammar_tables_close(g);
  g->cost = most;
  assert_int_equal(grammar_tabulate(g, &error), WEFT_E_TOO_LARGE);
  assert_non_null(strstr(error.text, "too many steps"));
  assert_true(g->cost <= most + 64);
  weft_grammar_unref(g);
}

/* What is copied to be merged counts: a small schema may ask for copies of a large one without end. */
static void copies_of_schemas_are_counted(void **state) {
  weft_text text = {0};
  (void)state;
  weft_text_puts(&text, "{\"properties\":{");
  for (int i = 0; i < 2000; i++) weft_text_printf(&text, "%s\"p%d\":false", i > 0 ? "," : "", i);
  weft_text_puts(&text, "},\"allOf\":[{}");
  for (int i = 0; i < 2000; i++) weft_text_printf(&text, ",{\"minProperties\":%d}", i);
  weft_text_puts(&text, "]}");
  too_large(SCHEMA, &text, "steps");
}

static uint32_t shortest_from(const weft_matcher *m) {
  uint32_t best = UINT32_MAX;
  for (uint32_t i = 0; i < m->n_configs; i++) {
    uint32_t n = grammar_tokens(m->grammar, m->config[i].state, m->config[i].count) + m->node[m->config[i].node].sum;
    if (n < best) best = n;
  }
  return best;
}

/* A token is in the mask exactly when it can be taken and leaves few enough to complete the answer. */
static void check_mask(const weft_matcher *m, uint32_t n_left) {
  weft_matcher_mask(m, world.scratch, n_left, world.mask);
  bool may_end = weft_matcher_may_end(m, world.scratch);
  for (uint32_t token = 0; token < world.trie->n_vocab; token++) {
    weft_matcher next = *m;
    bool end = weft_tokenizer_is_eog(world.tokenizer, (int32_t)token);
    bool may = end ? may_end : weft_matcher_take(&next, world.scratch, (int32_t)token);
    if (!end && may) may = shortest_from(&next) <= n_left - 1;
    assert_int_equal(grammar_mask_has(world.mask, token), may);
  }
}

typedef void (*schema_visit)(const char *line, const json_t *schema);

static void each_schema(schema_visit visit) {
  FILE *file = fopen("tests/schemas/schemas.jsonl", "r");
  char *line = NULL;
  size_t capacity = 0;
  ssize_t n;
  assert_non_null(file);
  while ((n = getline(&line, &capacity, file)) > 0) {
    line[n - 1] = 0;
    json_t *schema = json_loads(line, JSON_DECODE_ANY, NULL);
    assert_non_null(schema);
    visit(line, schema);
    json_decref(schema);
  }
  free(line);
  (void)fclose(file);
}

static void masks_of_schema(const char *line, const json_t *schema) {
  weft_grammar *g = compile(SCHEMA, line);
  (void)schema;
  for (uint64_t seed = 0; seed < 3; seed++) {
    weft_matcher m;
    uint64_t n, draw = seed;
    weft_matcher_begin(&m, g);
    for (uint32_t left = weft_grammar_shortest(g) + 6 * (uint32_t)seed; left > 0 && !weft_matcher_is_done(&m); left--) {
      check_mask(&m, left);
      check_mask(&m, left + 1000);
      weft_matcher_mask(&m, world.scratch, left, world.mask);
      (void)grammar_mask_pick(world.mask, world.trie->n_vocab, UINT64_MAX, &n);
      assert_true(n > 0);
      draw = weft_mix64(draw + 1);
      int32_t token = grammar_mask_pick(world.mask, world.trie->n_vocab, draw % n, &n);
      if (weft_tokenizer_is_eog(world.tokenizer, token)) break;
      assert_true(weft_matcher_take(&m, world.scratch, token));
    }
  }
  weft_grammar_unref(g);
}

/* The mask as it is made without tables, by a walk of the whole vocabulary without a bound. */
static void walk_mask(weft_grammar *g, const weft_matcher *m, uint32_t n_left, uint32_t *mask) {
  grammar_state *kept = g->state;
  size_t n = (size_t)g->n_states + 1;
  g->state = weft_alloc(n, sizeof *kept);
  assert_non_null(g->state);
  memcpy(g->state, kept, n * sizeof *kept);
  for (uint32_t i = 0; i < g->n_states; i++) g->state[i].allowed = GRAMMAR_NONE, g->state[i].n_pairs = 0;
  world.scratch->n_enough = UINT64_MAX;
  weft_matcher_mask(m, world.scratch, n_left, mask);
  world.scratch->n_enough = WALK_MASK_MAX;
  weft_free(g->state);
  g->state = kept;
}

/* Equal, or left with some tokens where a mask took too much work. */
static bool is_as_walked(const uint32_t *walked, uint32_t n_words, bool cut) {
  bool any = false;
  for (uint32_t i = 0; i < n_words; i++) any = any || world.mask[i] != 0;
  return cut ? any : memcmp(world.mask, walked, n_words * sizeof *walked) == 0;
}

/* A part of a rule; it may call rules with higher numbers, and counts what it repeats. */
static void put_part(weft_text *text, uint32_t rule, uint32_t n_rules, uint64_t draw) {
  static const char *const parts[] = {"\"a\"",    "\"ab\"", "\"\\\"\"", "[a-c]",      "[^\"]",     "\" \"",
                                      "\"true\"", "[0-9]",  "\"10\"",   "[^a\"\\\\]", "\"\\\":\"", "\",\""};
  static const char *const counts[] = {"", "", "", "", "?", "*", "+", "{2}", "{1,3}", "{0,7}", "{2,}", "{3,40}"};
  bool call = draw % 5 < 2 && rule + 1 < n_rules;
  draw = weft_mix64(draw);
  if (call) weft_text_printf(text, "r%u", rule + 1 + (uint32_t)(draw % (n_rules - rule - 1)));
  if (!call) weft_text_puts(text, parts[draw % 12]);
  weft_text_printf(text, "%s ", counts[draw / 64 % 12]);
}

static void make_grammar(weft_text *text, uint64_t seed) {
  enum { RULES = 4 };
  uint64_t draw = weft_mix64(seed);
  weft_text_puts(text, "root ::= r0 \".\"\n");
  for (uint32_t r = 0; r < RULES; r++) {
    weft_text_printf(text, "r%u ::= ", r);
    for (uint32_t k = 0, n = 2 + (uint32_t)(draw % 4); k < n; k++) {
      draw = weft_mix64(draw + k);
      put_part(text, r, RULES, draw);
      if (k + 1 < n && draw / 1024 % 4 == 0) weft_text_puts(text, "| ");
    }
    weft_text_puts(text, "\n");
  }
}

/* Tables say of every token what a walk says, for all counts, with few tokens left and with many. */
static void masks_are_as_walked(void **state) {
  uint32_t n_compiled = 0, n_masks = 0, n_cut = 0, n_words = (world.trie->n_vocab + 31) / 32;
  uint32_t *walked = calloc(n_words, sizeof *walked);
  (void)state;
  for (uint64_t seed = 0; seed < 500; seed++) {
    weft_text text = {0};
    weft_grammar *g;
    weft_matcher m;
    weft_error error;
    uint64_t n, draw = seed;
    make_grammar(&text, seed);
    if (weft_grammar_compile(GBNF, text.bytes, text.n, world.trie, &g, NULL, &error) == WEFT_OK) n_compiled += 1;
    if (g != NULL) weft_matcher_begin(&m, g);
    for (uint32_t left = g == NULL ? 0 : weft_grammar_shortest(g) + seed % 20; left > 0; left--) {
      for (uint32_t more = 0; more < 2; more++) {
        weft_matcher_mask(&m, world.scratch, left + 1000 * more, world.mask);
        bool cut = world.scratch->n_done > WALK_MASK_MAX;
        n_cut += cut ? 1 : 0;
        n_masks += 1;
        walk_mask(g, &m, left + 1000 * more, walked);
        if (!is_as_walked(walked, n_words, cut)) {
          fail_msg("seed %llu, %u left: %.*s", (unsigned long long)seed, left + 1000 * more, (int)text.n, text.bytes);
        }
      }
      weft_matcher_mask(&m, world.scratch, left, world.mask);
      (void)grammar_mask_pick(world.mask, world.trie->n_vocab, UINT64_MAX, &n);
      draw = weft_mix64(draw + 1);
      int32_t token = grammar_mask_pick(world.mask, world.trie->n_vocab, draw % n, &n);
      if (weft_tokenizer_is_eog(world.tokenizer, token)) break;
      assert_true(weft_matcher_take(&m, world.scratch, token));
      if (weft_matcher_is_done(&m)) break;
    }
    weft_grammar_unref(g);
    weft_text_free(&text);
  }
  assert_true(n_compiled > 200 && n_cut < n_masks / 100);
  free(walked);
}

static void masks_are_exact(void **state) {
  (void)state;
  each_schema(masks_of_schema);
}

static void answers_of_schema(const char *line, const json_t *schema) {
  weft_grammar *g = compile(SCHEMA, line);
  for (uint32_t i = 0; i < 60; i++) {
    weft_text text = {0};
    uint32_t n_tokens, room = weft_grammar_shortest(g) + i;
    const char *wrong = grammar_sample(&world, g, i, room, &text, &n_tokens);
    if (wrong != NULL) fail_msg("%s: %s", line, wrong);
    assert_true(n_tokens <= room);
    json_t *value = json_loadb(text.bytes, text.n, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, NULL);
    if (value == NULL && strcmp(line, "{}") != 0 && strstr(line, "\"object\"") == NULL) {
      fail_msg("%s: %.*s is not JSON", line, (int)text.n, text.bytes);
    }
    if (value != NULL && !schema_check(schema, schema, value)) fail_msg("%s: %.*s", line, (int)text.n, text.bytes);
    json_decref(value);
    weft_text_free(&text);
  }
  weft_grammar_unref(g);
}

static void answers_fit_their_schema(void **state) {
  (void)state;
  each_schema(answers_of_schema);
}

/* Control tokens, markers of a chat and the ends are in no mask but where the answer may end. */
static void no_mask_has_structure(void **state) {
  (void)state;
  weft_grammar *g = compile(REGEX, "(.|\\n)*");
  weft_matcher m;
  weft_matcher_begin(&m, g);
  weft_matcher_mask(&m, world.scratch, 100, world.mask);
  int32_t think = weft_tokenizer_find(world.tokenizer, "<think>"),
          end = weft_tokenizer_find(world.tokenizer, "<|end|>");
  assert_true(think >= 0 && end >= 0);
  assert_false(grammar_mask_has(world.mask, (uint32_t)think));
  assert_true(grammar_mask_has(world.mask, (uint32_t)end));
  assert_true(weft_matcher_take(&m, world.scratch, 0xC3)); /* half of a character: the answer cannot end here */
  weft_matcher_mask(&m, world.scratch, 100, world.mask);
  assert_false(grammar_mask_has(world.mask, (uint32_t)end));
  assert_false(grammar_mask_has(world.mask, 'a'));
  assert_true(grammar_mask_has(world.mask, 0xA4));
  assert_false(weft_matcher_take(&m, world.scratch, think));
  weft_grammar_unref(g);
}

static void a_vocabulary_without_an_end_has_no_formats(void **state) {
  tokenizer_fixture f = {0};
  weft_token_trie *trie;
  weft_error error = {{0}};
  uint32_t n_ends;
  (void)state;
  fixture_gpt2(&f, "qwen2");
  (void)weft_tokenizer_eog(fixture_tokenizer(&f), &n_ends);
  assert_int_equal(n_ends, 0);
  assert_int_equal(weft_token_trie_open(f.tokenizer, &trie, &error), WEFT_E_UNSUPPORTED);
  assert_null(trie);
  assert_non_null(strstr(error.text, "no token that ends an answer"));
  fixture_close(&f);
}

int main(int argc, char **argv) {
  static const grammar_way token_by_token = {nothing_more, grammar_sample, NULL};
  if (argc > 1) return grammar_tool(argc, argv, &token_by_token);
  const struct CMUnitTest tests[] = {cmocka_unit_test(languages_are_what_they_say),
                                     cmocka_unit_test(refusals_name_what_is_wrong),
                                     cmocka_unit_test(explosions_are_bounded),
                                     cmocka_unit_test(masks_of_ambiguous_grammars_are_bounded),
                                     cmocka_unit_test(masks_of_ambiguous_grammars_are_bounded_to_the_end),
                                     cmocka_unit_test(a_table_stops_where_the_steps_end),
                                     cmocka_unit_test(rules_with_many_ways_are_refused),
                                     cmocka_unit_test(copies_of_schemas_are_counted),
                                     cmocka_unit_test(masks_are_exact),
                                     cmocka_unit_test(masks_are_as_walked),
                                     cmocka_unit_test(answers_fit_their_schema),
                                     cmocka_unit_test(no_mask_has_structure),
                                     cmocka_unit_test(a_vocabulary_without_an_end_has_no_formats)};
  return cmocka_run_group_tests(tests, open_world, close_world);
}
