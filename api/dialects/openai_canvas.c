/* SPDX-License-Identifier: MIT */
/* Each position of a canvas, for "stream_canvas": "tokens" (docs/page.md). */
#include <math.h>

#include "api/dialects/openai.h"
#include "api/generation.h"
#include "api/json.h"

/* A token's text as a JSON string. Bytes that are no whole character become U+FFFD, in this piece alone. */
static void put_piece(const weft_choice *c, int32_t token, weft_text *piece, weft_text *out) {
  weft_text_clear(piece);
  if (weft_generation_piece(c->generation, token, piece) != WEFT_OK) out->refused = true;
  weft_json_string(out, piece->n == 0 ? "" : piece->bytes, piece->n);
}

/* The texts of the tokens as a list, with null in the place of those that `hides` names. */
static void put_pieces(const weft_choice *c, const weft_delta *d, const char *name, const int32_t *token,
                       bool (*hides)(const weft_delta *d, uint32_t i), weft_text *out) {
  weft_text piece = {0};
  weft_text_printf(out, ",\"%s\":[", name);
  for (uint32_t i = 0; i < d->n_tokens; i++) {
    if (i > 0) weft_text_puts(out, ",");
    if (hides != NULL && hides(d, i))
      weft_text_puts(out, "null");
    else
      put_piece(c, token[i], &piece, out);
  }
  weft_text_puts(out, "]");
  weft_text_free(&piece);
}

/* The draw is the most likely token. */
static bool draws_likeliest(const weft_delta *d, uint32_t i) {
  return d->drawn[i] == d->tokens[i];
}

static bool is_accepted(const weft_delta *d, uint32_t i) {
  return d->accepted_mask[i] != 0;
}

void weft_openai_canvas_tokens(const weft_answer *a, const weft_choice *c, const weft_delta *d, weft_text *out) {
  uint32_t end = 0;
  while (end < d->n_tokens && !weft_generation_ends_with(c->generation, d->tokens[end])) end += 1;
  weft_text_printf(out, ",\"steps\":%u,\"end\":%u", a->asked->entropy_bound.max_steps, end);
  put_pieces(c, d, "pieces", d->tokens, NULL, out);
  put_pieces(c, d, "drawn", d->drawn, draws_likeliest, out);
  put_pieces(c, d, "noise", d->canvas_out, is_accepted, out);
  weft_text_puts(out, ",\"entropy\":[");
  for (uint32_t i = 0; i < d->n_tokens; i++) {
    weft_text_puts(out, i > 0 ? "," : "");
    if (isfinite(d->entropy[i]))
      weft_text_printf(out, "%.3f", (double)d->entropy[i]);
    else
      weft_text_puts(out, "null");
  }
  weft_text_puts(out, "]");
}
