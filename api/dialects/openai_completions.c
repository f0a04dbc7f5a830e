/* SPDX-License-Identifier: MIT */
/* How /v1/completions writes a choice. Its logprobs are four lists of equal length: tokens, their logprobs, the likeliest
 * tokens of each place, and where each token begins in the text: in characters, as OpenAI and vLLM count. */
#include <math.h>
#include <string.h>

#include "api/dialects/openai.h"
#include "api/json.h"
#include "api/runtime.h"

enum { TOKENS, LOGPROBS, TOP, OFFSETS };

static void put_logprob(double value, weft_text *out) {
  if (isnan(value)) {
    weft_text_puts(out, "null");
  } else {
    weft_json_real(out, value < -9999.0 ? -9999.0 : value);
  }
}

/* The names of the members of an object in `out`. */
typedef struct member_names {
  size_t at[WEFT_TOP_LOGPROBS_MAX + 1], n_bytes[WEFT_TOP_LOGPROBS_MAX + 1];
  uint32_t n;
} member_names;

/* Different tokens may have the same text, or none that is whole. Of members with one name a reader of JSON keeps the
 * last, which is the least likely token: only the first one is written. */
static void put_member(const weft_token_logprob *t, member_names *names, weft_text *out) {
  size_t before = out->n;
  if (names->n > 0) weft_text_puts(out, ",");
  size_t at = out->n;
  weft_json_string(out, t->bytes, t->n_bytes);
  if (out->refused) return;
  size_t n = out->n - at;
  for (uint32_t i = 0; i < names->n; i++) {
    if (names->n_bytes[i] != n || memcmp(out->bytes + names->at[i], out->bytes + at, n) != 0) continue;
    out->n = before;
    out->bytes[before] = 0;
    return;
  }
  names->at[names->n] = at;
  names->n_bytes[names->n++] = n;
  weft_text_puts(out, ":");
  put_logprob((double)t->logprob, out);
}

/* The likeliest tokens of a place, and its own token where it is none of them. */
static void put_top(const weft_answer *a, const weft_delta *d, uint32_t i, weft_text *out) {
  member_names names = {.n = 0};
  weft_text_puts(out, "{");
  for (uint32_t k = 0; k < d->n_top[i] && k < a->asked->sampling.n_top_logprobs; k++) {
    put_member(&d->top_logprobs[(size_t)i * d->top_stride + k], &names, out);
  }
  put_member(&d->logprobs[i], &names, out);
  weft_text_puts(out, "}");
}

void weft_openai_completions_logprobs(const weft_answer *a, weft_choice *c, const weft_delta *d) {
  uint64_t before = d->kind == WEFT_DELTA_PROMPT ? 0 : c->n_prompt_text;
  for (uint32_t i = 0; i < d->n_tokens; i++) {
    const weft_token_logprob *t = &d->logprobs[i];
    if (c->n_logprobs++ > 0) {
      for (int k = TOKENS; k <= OFFSETS; k++) weft_text_puts(&c->logprobs[k], ",");
    }
    weft_json_string(&c->logprobs[TOKENS], t->bytes, t->n_bytes);
    put_logprob((double)t->logprob, &c->logprobs[LOGPROBS]);
    if (isnan(t->logprob)) {
      weft_text_puts(&c->logprobs[TOP], "null");
    } else {
      put_top(a, d, i, &c->logprobs[TOP]);
    }
    weft_json_int(&c->logprobs[OFFSETS], (int64_t)(before + d->text_at[i]));
  }
}

static void put_list(const char *name, const weft_text *list, weft_pieces *out) {
  weft_text_printf(&out->text, "\"%s\":[", name);
  weft_pieces_raw(out, list->bytes, list->n);
  weft_text_puts(&out->text, "]");
}

/* Models that were taught conversations answer a bare text with padding: the client sees why there is no text. */
static void put_warning(const weft_choice *c, weft_text *out) {
  if (c->has_text || c->usage.completion_tokens == 0) return;
  weft_text_puts(out, ",\"warning\":");
  weft_json_words(out, WEFT_NO_TEXT "; ask /v1/chat/completions, or see the tokens with return_token_ids");
}

static void put_choice(const weft_answer *a, const weft_choice *c, const char *finish, bool whole,
                       weft_pieces *pieces) {
  weft_text *out = &pieces->text;
  weft_text_printf(out, "{\"index\":%u,\"text\":", c->index);
  weft_pieces_string(pieces, c->text.bytes, c->text.n);
  if (a->asked->sampling.logprobs && (whole || c->n_logprobs > 0)) {
    weft_text_puts(out, ",\"logprobs\":{");
    put_list("tokens", &c->logprobs[TOKENS], pieces);
    weft_text_puts(out, ",");
    put_list("token_logprobs", &c->logprobs[LOGPROBS], pieces);
    weft_text_puts(out, ",");
    put_list("top_logprobs", &c->logprobs[TOP], pieces);
    weft_text_puts(out, ",");
    put_list("text_offset", &c->logprobs[OFFSETS], pieces);
    weft_text_puts(out, "}");
  } else {
    weft_text_puts(out, ",\"logprobs\":null");
  }
  weft_text_puts(out, ",\"finish_reason\":");
  if (finish == NULL) {
    weft_text_puts(out, "null");
  } else {
    weft_json_words(out, finish);
    weft_openai_stop_reason(c, out);
    put_warning(c, out);
  }
  if (whole) weft_openai_prompt_logprobs(a, c, pieces);
  if (a->wanted.token_ids && (whole || c->n_ids > 0)) {
    weft_text_puts(out, ",");
    put_list("token_ids", &c->ids, pieces);
  }
}

static void put_chunk(const weft_answer *a, const weft_choice *c, const char *finish, weft_pieces *out) {
  put_choice(a, c, finish, false, out);
}

static void put_whole(const weft_answer *a, const weft_choice *c, weft_pieces *out) {
  put_choice(a, c, c->finish, true, out);
}

const weft_openai_form weft_openai_completions_form = {.object = "text_completion",
                                                       .chunk_object = "text_completion",
                                                       .prompt_ids_in_choice = true,
                                                       .chunk = put_chunk,
                                                       .whole = put_whole};
