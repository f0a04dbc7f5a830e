/* SPDX-License-Identifier: MIT */
/* Any bytes as a format of answers: the first byte chooses schema, regular expression, choice or GBNF. It is refused
 * with one line, or answers that are drawn through its automaton are complete in time, however few tokens there are. */
#include <stdio.h>

#include "tests/support/fuzz_require.h"
#include "tests/support/grammar_sample.h"

enum { ANSWERS = 3, SHORTEST_MAX = 2000 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  static grammar_world w;
  weft_grammar *g;
  weft_error error = {{0}};
  if (n == 0 || n > 2048) return 0;
  if (w.trie == NULL) REQUIRE(grammar_world_small(&w));
  weft_grammar_kind kind = (weft_grammar_kind)(WEFT_GRAMMAR_JSON_SCHEMA + data[0] % 4);
  weft_status status = weft_grammar_compile(kind, (const char *)data + 1, n - 1, w.trie, &g, NULL, &error);
  if (status != WEFT_OK) {
    REQUIRE(error.text[0] != 0 && g == NULL);
    return 0;
  }
  for (uint32_t i = 0; i < ANSWERS && weft_grammar_shortest(g) <= SHORTEST_MAX; i++) {
    weft_text text = {0};
    uint32_t n_tokens, n_max = weft_grammar_shortest(g) + 8 * i;
    const char *wrong = grammar_sample(&w, g, i + n, n_max == 0 ? 1 : n_max, &text, &n_tokens);
    if (wrong != NULL) fuzz_broken(wrong, __FILE__, __LINE__);
    REQUIRE(weft_utf8_valid(text.bytes == NULL ? "" : text.bytes, text.n, NULL));
    weft_text_free(&text);
  }
  status = weft_grammar_for_canvases(g, NULL, &error);
  REQUIRE(status == WEFT_OK || error.text[0] != 0);
  weft_grammar_unref(g);
  return 0;
}
