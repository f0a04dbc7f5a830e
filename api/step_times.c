/* SPDX-License-Identifier: MIT */
#include "api/step_times.h"

#include <math.h>
#include <string.h>

/* Of the figures of a card, what memory and products come to at best: measured on an H200 (docs/performance.md). */
static const double memory_share = 0.854, product_share = 0.719;

/* From decode of 1 and 32 sequences, steps of 2 and 32 canvases and prompts of 2048 tokens on an H200; of the portable
 * set steps of 1 and 4 canvases and four prompts of 512, and kernels that start in their order. */
static const step_times times_of_set[CARD_SETS] = {
    [CARD_SET_HOPPER] = {28.6, 1.27, 80, 2.36, 2.1},  /* h200.json */
    [CARD_SET_PORTABLE] = {46, 1.76, 248, 2.89, 2.5}, /* h200-portable.json; floors by what mma.sync reaches there */
};

const step_times *step_times_of(uint32_t set) {
  return &times_of_set[set];
}

/* What a layer whose rows are keys and values at once takes beside its floor, in layers of the model above: in decode
 * of 1 to 32 sequences after 2048 tokens (h200-glm-flash.json); and where the rows are of a window and the stream has
 * several parts, in decode of one sequence (h200-deepseek4-whole.json). */
static const double latent_layers = 3.0, stream_layers = 5.6;

double step_layers(const weft_file_facts *file) {
  const weft_kv_geometry *g = &file->geometry;
  double n = file->n_layers;
  for (uint32_t i = 0; i < g->n_sets; i++) {
    const weft_kv_set *set = &g->set[i];
    bool is_first = i == 0 || g->set[i - 1].layer != set->layer;
    bool is_latent = is_first && set->rows.values_are_keys && set->rows.positions == 1 && !set->from_border;
    if (is_latent) n += (set->window > 0 ? stream_layers : latent_layers) - 1;
  }
  return n;
}

/* Decode of 1 to 128 sequences, steps of 1 to 32 canvases and prompts of 2048 tokens, by least squares; of the portable
 * set decode of 1 to 32, held to what cards of 8.6 and 8.9 have, steps of 1 to 4 and four prompts of 512. */
static const step_times_eight times_in_eight_bits[CARD_SETS] = {
    [CARD_SET_HOPPER] = {35.9, 1.19, 1.33, 1095, 1141}, /* h200-defaults.json */
    [CARD_SET_PORTABLE] = {56.8, 1.44, 1.38, 409, 494}, /* h200-portable-eight.json, h200-portable-tiles.json */
};

const step_times_eight *step_times_eight_of(uint32_t set) {
  return &times_in_eight_bits[set];
}

double step_integer_rate(const char *title, double product_rate) {
  return product_rate * (strstr(title, "GeForce") != NULL ? 4 : 2);
}

double step_product_times(uint32_t capability, double products) {
  /* what tensor cores of a multiprocessor make, by the makers' sheets */
  double most = capability >= 120   ? 1024
                : capability >= 100 ? 8192
                : capability >= 90  ? 4096
                : capability > 80   ? 1024
                                    : 2048;
  return fmax(1, product_share * most / products);
}

step_parts step_parts_of(const weft_file_facts *f, double memory_rate, double product_rate, double n_rows,
                         double kv_bytes, bool canvas) {
  double share = f->n_experts > 0 ? (double)f->n_experts_used / f->n_experts : 1.0;
  double touched = f->n_experts > 0 ? 1.0 - pow(1.0 - share, n_rows) : 1.0;
  double others = (double)(f->weight_bytes - f->expert_bytes - f->embedding_bytes - (canvas ? 0 : f->canvas_bytes));
  double bytes = others + (double)f->expert_bytes * touched + kv_bytes;
  double operations = 2.0 * n_rows * ((double)f->n_other_weights + (double)f->n_expert_weights * share);
  return (step_parts){bytes / (memory_share * memory_rate), operations / (product_share * product_rate)};
}

double step_floor(const weft_file_facts *f, double memory_rate, double product_rate, double n_rows, double kv_bytes,
                  bool canvas) {
  step_parts parts = step_parts_of(f, memory_rate, product_rate, n_rows, kv_bytes, canvas);
  return fmax(parts.memory, parts.products);
}
