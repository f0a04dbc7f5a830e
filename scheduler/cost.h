/* SPDX-License-Identifier: MIT */
/* Cost: what rows cost, in two currencies.
 *
 * A charge is what fair share takes of a tenant for its part of a step, in whole 1/256 microseconds
 * of predicted device time. Law: the parts of a step share its time as their rows, keys and outputs
 * would cost alone (weft_cost_of_part), and a row is never less than a microsecond; so charges sum to
 * the time of the step, or to its rows where that is more. A canvas pays for its rows at every step,
 * a cached token is never a row and so is free.
 *
 * A cost model describes one model on its device: the time of a step, learned from steps. Law: the
 * time is a sum of features, each times a coefficient that is never negative nor beyond a bound:
 *
 *   1                 what a step costs however small it is: launches, dense weights
 *   rows              and what is beyond each of two knees: few rows are bound by the bytes of
 *                     weights, many by arithmetic, so the line bends upwards
 *   key reads         keys that segments read once, whatever their rows
 *   key products      rows times keys
 *   experts           the share of experts that rows touch: 1 - (1 - used / all) ^ rows
 *   outputs           rows through the head
 *
 * Fit: least squares of relative errors over about the last WEFT_COST_MEMORY steps, one sweep of
 * projected coordinate descent per step, from where the last step left it; what recent steps tell
 * nothing about stays as it was. A step that takes much longer or shorter than those around it
 * weighs less. The first step scales the prior. O(1) time and memory; the same times give the same
 * model. Tokens never depend on it, only order and packing do. */
#ifndef WEFT_SCHEDULER_COST_H
#define WEFT_SCHEDULER_COST_H

#include <stdbool.h>
#include <stdint.h>

/* So many keys cost as much as the rest of a row. Gemma 4 26B: about 6.2 GFLOP per row without
 * attention, and 0.16 MFLOP per key in its five global layers (16 heads of 512, scores and sums):
 * 38 000, as a power of two. */
enum { WEFT_COST_KEYS_PER_ROW = 32768 };
/* Rows with their keys counted as rows: the unit of forecasts. n_products: sum of rows times keys. */
uint64_t weft_cost_in_rows(uint64_t n_rows, uint64_t n_products);

enum { WEFT_COST_FEATURES = 8, WEFT_COST_MEMORY = 256, WEFT_COST_PER_US = 256 };

/* One step, or a part of one: shapes add up. */
typedef struct weft_cost_shape {
  uint32_t n_rows, n_outputs;
  uint64_t n_reads, n_products; /* of keys, mean over the layers */
} weft_cost_shape;

/* How layers keep keys: `full` of WEFT_COST_WHOLE read all of them, the others at most `window`. */
enum { WEFT_COST_WHOLE = 1 << 16 };
typedef struct weft_cost_layers {
  uint32_t full, window;
  uint32_t n_experts, n_used; /* per layer; 0: none */
} weft_cost_layers;

typedef struct weft_cost_model {
  weft_cost_layers layers;
  double us[WEFT_COST_FEATURES];                                                      /* coefficients */
  double product[WEFT_COST_FEATURES][WEFT_COST_FEATURES], target[WEFT_COST_FEATURES]; /* fading */
  double error; /* mean |relative error| of the last steps */
  uint64_t n_steps;
} weft_cost_model;

void weft_cost_open(weft_cost_model *model, const weft_cost_layers *layers);
/* A step of this shape took so long. 0 us: not measured, nothing is learned. */
void weft_cost_learn(weft_cost_model *model, const weft_cost_shape *shape, double us);
/* How long a step of this shape takes; > 0. */
double weft_cost_step(const weft_cost_model *model, const weft_cost_shape *shape);
/* What a part of a step costs by its rows, keys and outputs alone, in 1/256 us: the least that it is
 * charged. */
uint64_t weft_cost_of_part(const weft_cost_model *model, const weft_cost_shape *part);
/* What a step of this shape is charged in all. */
uint64_t weft_cost_charge(const weft_cost_model *model, const weft_cost_shape *shape);
/* What one more row of a prompt costs in a step of many rows, without its keys: what recomputing
 * tokens costs, against copying their pages. */
double weft_cost_row_us(const weft_cost_model *model);

static inline void weft_cost_join(weft_cost_shape *shape, const weft_cost_shape *part) {
  shape->n_rows += part->n_rows;
  shape->n_outputs += part->n_outputs;
  shape->n_reads += part->n_reads;
  shape->n_products += part->n_products;
}

/* Adds a segment of n_rows rows, n_outputs of them through the head, after kv_len keys. A causal row
 * sees the rows before it, a canvas's row all of its canvas. */
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

/* A time, in 1/256 of computing a row. */
uint32_t weft_cost_of_us(const weft_cost_model *model, double us);
/* To bring one page back from host memory, in 1/256 of computing a row. */
uint32_t weft_cost_of_page(const weft_cost_model *model, uint64_t page_bytes);
/* Pages after which a step that brings them back admits nobody else: it must not start late. */
uint32_t weft_cost_restores_max(uint64_t page_bytes);

#endif
