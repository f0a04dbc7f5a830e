/* SPDX-License-Identifier: MIT */
/* Gemma 4's calls: call:NAME{key:<|"|>text<|"|>,n:3,list:[1,2],object:{...}}. The mender gives the arguments as JSON.
 * */
#include <string.h>

#include "model/text/calls_internal.h"

bool calls_gemma_head(weft_call_reader *r) {
  static const char word[] = "call:";
  size_t i = calls_skip_blanks(r, r->head);
  calls_match match = i < r->held.n ? calls_match_at(r, i, word) : MATCH_PART;
  if (match == MATCH_PART) return false;
  if (match == MATCH_NO) return calls_json_head(r); /* as other models do it */
  i += strlen(word);
  size_t n_name = calls_name_length(r, i), at = calls_skip_blanks(r, i + n_name);
  if (at == r->held.n) return false;
  if (r->held.bytes[at] != '{') return calls_refuse_head(r);
  (void)calls_begin(r, i, n_name, at);
  r->alone = true;
  return true;
}
