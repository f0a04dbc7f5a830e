/* SPDX-License-Identifier: MIT */
/* The first stage of a model at which two ways to compute the same tokens differ (weft stages).
 *
 * Law: the first pass keeps what every stage gives every token, on the host; the second is compared with it, stage by
 * stage in the order in which they are computed. A row is off by the largest difference of its numbers, in units of
 * the root of the mean square of the first pass' row. Nothing of the first is used in the second: a difference goes
 * on into the stages behind it, so the first one names the place. The two may have steps of other sizes, other devices,
 * other precisions, or be of two files of one shape. */
#ifndef WEFT_MODEL_STAGES_H
#define WEFT_MODEL_STAGES_H

#include "model/model.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weft_stages weft_stages;

/* What came of a stage of a layer; behind the last layer of HEAD, whose layer is the number of layers. */
typedef struct weft_stages_line {
  uint32_t layer;
  weft_stage stage;
  uint32_t n_rows, n_differ; /* rows that were compared; those of which some bit differs */
  double error;              /* the largest of a row; of a number that is not finite on one side, infinite */
  uint32_t row;              /* which one, a token's position */
} weft_stages_line;

/* The tokens are copied. */
weft_status weft_stages_open(const int32_t *tokens, uint32_t n_tokens, weft_stages **out, weft_error *error);
void weft_stages_close(weft_stages *stages); /* NULL is fine */
/* The first call keeps, the second compares. limits: those of the model; rows_max tokens are a step. UNSUPPORTED: the
 * model lies in shards, which no stage has whole. INVALID: the second has other stages, or rows of other widths. */
weft_status weft_stages_pass(weft_stages *stages, weft_model *model, const weft_model_limits *limits,
                             weft_error *error);
/* After both passes: of every stage of every layer, in order. Valid until close. */
const weft_stages_line *weft_stages_lines(const weft_stages *stages, uint32_t *n);
/* The first line whose rows differ by more than tolerance, or with 0 by a bit; NULL: there is none. */
const weft_stages_line *weft_stages_first(const weft_stages *stages, double tolerance);
/* "query", "attention" .. */
const char *weft_stage_name(weft_stage stage);

#ifdef __cplusplus
}
#endif
#endif
