/* SPDX-License-Identifier: MIT */
/* Cost: what rows cost, in two currencies. Engine thread.
 *
 * A charge is what fair share takes of a tenant for its part of a step, in whole 1/256 microseconds of predicted
 * device time.
 *
 * Law. The parts of a step share its time in proportion to what their rows, keys and outputs would cost alone
 * (weft_cost_of_part), and a row is never charged less than a microsecond; so charges sum to the predicted time of the
 * step, or to a microsecond for each row where that is more. A canvas pays for its rows at every step. A cached token
 * is never a row and so is free.
 *
 * A cost model describes one model on its device: it predicts the time of a step, and learns from the steps that were
 * measured.
 *
 * Law. The time is a sum of features, each times a coefficient that is never negative nor beyond a bound:
 *
 *   1                 what a step costs however small it is: launches, dense weights
 *   rows              and what is beyond each of two knees: few rows are bound by the bytes of weights, many by
 *                     arithmetic, so the line bends upwards
 *   key reads         keys that segments read once, whatever their rows
 *   key products      rows times keys
 *   experts           the share of experts that rows touch: 1 - (1 - used / all) ^ rows
 *   outputs           rows through the head
 *
 * The fit is least squares of relative errors over about the last WEFT_COST_MEMORY steps: one sweep of projected
 * coordinate descent for each step, from where the last step left it. A coefficient about which recent steps say
 * nothing stays as it was. A step that takes much longer or shorter than those around it weighs less. The first step
 * scales the prior. Time and memory are O(1); the same times give the same model. No token depends on the model, only
 * order and packing do. */
#ifndef WEFT_SCHEDULER_COST_H
#define WEFT_SCHEDULER_COST_H

#include <stdbool.h>
#include <stdint.h>

/* The number of keys whose attention costs as much as the rest of a row. Gemma 4 26B: about 6.2 GFLOP for each row
 * without attention, and 0.16 MFLOP for each key in its five global layers (16 heads of 512, scores and sums): 38,000,
 * rounded to a power of two. */
enum { WEFT_COST_KEYS_PER_ROW = 32768 };
/* Rows and their keys, both counted in rows: the unit of forecasts. n_products: the sum of rows times keys. */
uint64_t weft_cost_in_rows(uint64_t n_rows, uint64_t n_products);

enum { WEFT_COST_FEATURES = 8, WEFT_COST_MEMORY = 256, WEFT_COST_PER_US = 256 };

/* The size of a step, or of a part of one: shapes add up. */
typedef struct weft_cost_shape {
  uint32_t n_rows, n_outputs;
  uint64_t n_reads, n_products; /* keys read, and rows times keys; means over the layers */
} weft_cost_shape;

/* How layers keep keys: `full` of WEFT_COST_WHOLE read all of them, the others at most `window`. */
enum { WEFT_COST_WHOLE = 1 << 16 };
typedef struct weft_cost_layers {
  uint32_t full, window;
  uint32_t n_experts, n_used; /* per layer; 0: none */
} weft_cost_layers;

typedef struct weft_cost_model {
  weft_cost_layers layers;
  double us[WEFT_COST_FEATURES]; /* the coefficients, in microseconds */
  /* the sums of the least squares, which fade: features times features, features times times */
  double product[WEFT_COST_FEATURES][WEFT_COST_FEATURES], target[WEFT_COST_FEATURES];
  double error; /* mean |relative error| of the last steps */
  uint64_t n_steps;
} weft_cost_model;

void weft_cost_open(weft_cost_model *model, const weft_cost_layers *layers);
/* A step of this shape took this many microseconds. 0: it was not measured, and nothing is learned. */
void weft_cost_learn(weft_cost_model *model, const weft_cost_shape *shape, double us);
/* How many microseconds a step of this shape takes; above 0. */
double weft_cost_step(const weft_cost_model *model, const weft_cost_shape *shape);
/* What a part of a step costs by its rows, keys and outputs alone, in 1/256 us: the least that it is charged. */
uint64_t weft_cost_of_part(const weft_cost_model *model, const weft_cost_shape *part);
/* What a step of this shape is charged in all, in 1/256 us. */
uint64_t weft_cost_charge(const weft_cost_model *model, const weft_cost_shape *shape);
/* Microseconds of one more row of a prompt in a step of many rows, without its keys. It is what computing a token
 * again costs, to be compared with copying its pages. */
double weft_cost_row_us(const weft_cost_model *model);

static inline void weft_cost_join(weft_cost_shape *shape, const weft_cost_shape *part) {
  shape->n_rows += part->n_rows;
  shape->n_outputs += part->n_outputs;
  shape->n_reads += part->n_reads;
  shape->n_products += part->n_products;
}

/* Adds a segment of n_rows rows after kv_len keys; n_outputs of the rows go through the head. A causal row sees the
 * rows before it, a canvas row all rows of its canvas. */
static inline void weft_cost_add(const weft_cost_layers *layers, weft_cost_shape *shape, uint32_t n_rows,
                                 uint32_t kv_len, bool canvas, uint32_t n_outputs) {
  uint64_t own = canvas ? n_rows : (n_rows + 1) / 2;
  uint64_t keys = kv_len + own, seen = keys < layers->window ? keys : layers->window;
  keys = (keys * layers->full + seen * (WEFT_COST_WHOLE - layers->full)) / WEFT_COST_WHOLE;
  shape->n_rows += n_rows;
  shape->n_outputs += n_outputs;
  shape->n_reads += keys;
  shape->n_products += keys * n_rows;
}

/* n rows that decode, over n_keys keys each. */
static inline weft_cost_shape weft_cost_decode(const weft_cost_layers *layers, uint32_t n, uint32_t n_keys) {
  weft_cost_shape one = {0};
  weft_cost_add(layers, &one, 1, n_keys, false, 1);
  return (weft_cost_shape){.n_rows = n, .n_outputs = n, .n_reads = one.n_reads * n, .n_products = one.n_products * n};
}

/* A time in microseconds, in units of 1/256 of computing a row. */
uint32_t weft_cost_of_us(const weft_cost_model *model, double us);
/* What it costs to bring one page back from host memory, in units of 1/256 of computing a row. */
uint32_t weft_cost_of_page(const weft_cost_model *model, uint64_t page_bytes);
/* A step that brings back this many pages from host memory admits no more requests, because it could not start in
 * time. */
uint32_t weft_cost_restores_max(uint64_t page_bytes);

#endif
