/* SPDX-License-Identifier: MIT */
#include "api/cli/canvas_cells.h"

#include "base/memory.h"

/* Adds a token's text as a cell; false where it has none, as what ends an answer. */
static bool add_cell(weft_canvas_cells *c, weft_runtime *rt, const char *model, int32_t token, weft_cell_state state,
                     uint32_t *n) {
  char *text = NULL;
  size_t n_text = 0;
  if (weft_detokenize(rt, model, &token, 1, false, &text, &n_text, NULL, 0) != 0) return false;
  c->cell[*n] = (weft_cell){.at = (uint32_t)c->text.n, .state = state};
  weft_utf8_repair(text, n_text, &c->text);
  c->cell[*n].n = (uint32_t)c->text.n - c->cell[*n].at;
  *n += n_text > 0;
  weft_release(text);
  return n_text > 0;
}

/* The canvas token by token: accepted ones, those that were drawn as the likeliest but not accepted, and noise.
 * Behind an accepted token that ends the answer nothing is shown of it. */
static bool make_cells(weft_canvas_cells *c, weft_runtime *rt, const char *model, const weft_delta *d, uint32_t *n) {
  *n = 0;
  weft_text_clear(&c->text);
  if (d->accepted_mask == NULL || d->canvas_out == NULL) return false;
  if (d->n_tokens > c->n_max) {
    weft_free(c->cell);
    c->cell = weft_alloc(d->n_tokens, sizeof *c->cell);
    c->n_max = c->cell == NULL ? 0 : d->n_tokens;
  }
  for (uint32_t i = 0; i < d->n_tokens && c->cell != NULL; i++) {
    bool accepted = d->accepted_mask[i] != 0, likeliest = d->drawn[i] == d->tokens[i];
    weft_cell_state state = accepted ? WEFT_CELL_ACCEPTED : likeliest ? WEFT_CELL_DRAWN : WEFT_CELL_NOISE;
    bool text = add_cell(c, rt, model, state == WEFT_CELL_NOISE ? d->canvas_out[i] : d->tokens[i], state, n);
    if (accepted && !text) break;
  }
  return c->cell != NULL && weft_text_status(&c->text) == WEFT_OK;
}

weft_canvas_view weft_canvas_cells_view(weft_canvas_cells *c, weft_runtime *rt, const char *model,
                                        const weft_delta *d) {
  weft_canvas_view view = {.text = d->text,
                           .n_text = d->n_text,
                           .block = d->block,
                           .step = d->step,
                           .accepted = d->accepted,
                           .n_positions = d->n_tokens};
  uint32_t n = 0;
  if (make_cells(c, rt, model, d, &n) && n > 0) {
    view.cell = c->cell;
    view.n_cells = n;
    view.text = c->text.bytes;
    view.n_text = c->text.n;
  }
  return view;
}

void weft_canvas_cells_free(weft_canvas_cells *c) {
  weft_text_free(&c->text);
  weft_free(c->cell);
  *c = (weft_canvas_cells){0};
}
