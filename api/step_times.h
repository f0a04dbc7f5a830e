/* SPDX-License-Identifier: MIT */
/* How long a step takes on a card, by the figures of the card and what a file says of its model.
 *
 * Law: a floor is what memory and products of the card need at least (docs/performance.md). What is expected is what
 * the kernel set took of its own beside the floor where that was measured, which was on an H200 for each set: for
 * other cards it is a prediction. Nothing here reads a clock. */
#ifndef WEFT_API_STEP_TIMES_H
#define WEFT_API_STEP_TIMES_H

#include "kernels/card_sets.h"
#include "model/inspect.h"

/* How the steps of a kernel set take longer than their floor: by so many microseconds for each layer (launches, and
 * kernels that end sooner than they fill a card), and by so many times the floor. */
typedef struct step_times {
  double decode_layer_us, decode_times, canvas_layer_us, canvas_times, prefill_times;
} step_times;

/* The same with products of 8 bits. In a step of canvases the times of reading, so many times the floor, and of
 * multiplying add up; a prompt takes the longer of both. *_products: multiplications of a multiprocessor in a clock.
 * Kernels that are bound by other instructions make as many on a card whose tensor cores could make fewer. */
typedef struct step_times_eight {
  double decode_layer_us, decode_times, canvas_memory_times, canvas_products, prefill_products;
} step_times_eight;

/* set: below CARD_SETS. */
const step_times *step_times_of(uint32_t set);
const step_times_eight *step_times_eight_of(uint32_t set);
/* Layers of the file, counted as those of a model with keys and values alone: what has more kernels counts for more. */
double step_layers(const weft_file_facts *file);
/* Operations of 8 bits a second of a card, by its title and those of 16 bits: twice as many, and four times of GeForce
 * cards, whose products of 16 bits are half of what their tensor cores do. */
double step_integer_rate(const char *title, double product_rate);
/* Kernels of which a multiprocessor makes so many multiplications of 8 bits in a clock: how many times the floor of
 * products their products take, at least once. */
double step_product_times(uint32_t capability, double products);

typedef struct step_parts {
  double memory, products; /* seconds */
} step_parts;

/* The floors of a step of n_rows rows over `kv_bytes` of keys and values, on a card whose memory gives memory_rate
 * bytes a second and whose products product_rate operations, by its maker or its clocks. Rows choose experts as if by
 * chance. */
step_parts step_parts_of(const weft_file_facts *file, double memory_rate, double product_rate, double n_rows,
                         double kv_bytes, bool canvas);
/* The longer of both: what the step takes at least. */
double step_floor(const weft_file_facts *file, double memory_rate, double product_rate, double n_rows, double kv_bytes,
                  bool canvas);

#endif
