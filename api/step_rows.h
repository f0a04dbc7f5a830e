/* SPDX-License-Identifier: MIT */
/* How many rows one step holds.
 *
 * Law: a number that was given always holds, for every step. Else it follows from the kind of device, from how many
 * requests may run and from the memory that is left, and changes no bit of an answer. A device with memory of its own
 * reads its weights once a step however many rows share them, so it gets large steps (docs/performance.md, rows of a
 * step): `beside` rows where somebody waits for the step's end (scheduler/rows.h), more of them where many requests may
 * run, so that prompts find room beside the rows that decode; and `most` rows where nobody does, if weights and the
 * pool that was asked for leave STEP_ROWS_ROOM for their activations and a pool. A processor is bound by its products
 * at some hundred rows already, so there smaller steps cost little and answer sooner. */
#ifndef WEFT_API_STEP_ROWS_H
#define WEFT_API_STEP_ROWS_H

#include <stdbool.h>
#include <stdint.h>

enum {
  STEP_ROWS_HOST = 512,
  STEP_ROWS_CARD = 2048,
  STEP_ROWS_CARD_MANY = 4096,
  STEP_ROWS_CARD_ALONE = 8192,
  STEP_ROWS_MANY = 512 /* requests */
};
#define STEP_ROWS_ROOM (UINT64_C(48) << 30)

typedef struct step_rows {
  uint32_t most, beside;
} step_rows;

/* asked: 0 leaves the choice here. running: requests at once, at most. left: bytes that weights and the pool that was
 * asked for leave of the device; 0: it has no memory of its own, or several models or devices share the load. */
static inline step_rows step_rows_choose(uint32_t asked, bool host_memory, uint64_t left, uint32_t running) {
  uint32_t beside = running < STEP_ROWS_MANY ? STEP_ROWS_CARD : STEP_ROWS_CARD_MANY;
  if (host_memory) beside = STEP_ROWS_HOST;
  if (asked > 0) beside = asked;
  bool large = asked == 0 && !host_memory && left >= STEP_ROWS_ROOM;
  return (step_rows){.most = large ? STEP_ROWS_CARD_ALONE : beside, .beside = beside};
}

/* Bytes that a row of a step takes of a device, at most: about what the activations of a mixture of eight experts of
 * Gemma 4 26B take (n_hidden 2816: 548 MiB for 2048 rows, 2145 MiB for 8192). */
static inline uint64_t step_rows_bytes(uint32_t n_hidden) {
  return 100ull * n_hidden;
}

#endif
