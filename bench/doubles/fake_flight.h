/* SPDX-License-Identifier: MIT */
/* What a fake runner has in its slots, and of the batches that it was given; for fake_runner.c and
 * fake_drafts.c only. All arrays are the runner's own, copied from the batch. */
#ifndef WEFT_BENCH_DOUBLES_FAKE_FLIGHT_H
#define WEFT_BENCH_DOUBLES_FAKE_FLIGHT_H

#include "bench/doubles/fake_runner.h"
#include "bench/doubles/fake_store.h"

typedef struct fake_slot {
  bool open;
  weft_slot_params params;
  int32_t *tokens; /* [context_length] with a store */
  uint32_t n_tokens;
  int32_t last_token;
  uint32_t block, next_step; /* the denoise step that may come next */
  weft_fake_canvas canvas;
  void *canvas_memory;
} fake_slot;

/* A canvas outside its slot. */
typedef struct fake_save {
  bool full;
  uint32_t block, next_step;
  weft_fake_canvas canvas;
  void *memory;
} fake_save;

/* One batch from submit until the collect after its own. */
typedef struct fake_flight {
  uint64_t number, device_us;
  bool computed;
  uint32_t n_segments, n_copies, n_results;
  weft_segment *segment;
  int32_t *token;
  int64_t *kv_slot[WEFT_GROUPS_MAX];
  uint32_t *table, *table_at;
  weft_state_write *state; /* [n_states], whose pages are in `written` */
  uint32_t *written;
  uint32_t n_states;
  weft_page_copy *copy;
  weft_segment_result *result;
  weft_scored *scored; /* [scored_rows_max] */
  weft_sampled *drawn; /* [segments_max + draft_rows_max] */
  uint32_t n_scored, n_drawn;
  int32_t *canvas_rows; /* [4][rows_max]: argmax, in, drawn, out */
  float *entropy;
  uint8_t *accepted;
} fake_flight;

typedef struct fake_runner {
  weft_runner head;
  weft_runner_info info;
  weft_fake_config config;
  fake_slot *slot;
  fake_save *save;     /* [n_saves] */
  fake_flight *flight; /* [depth + 1] */
  uint32_t first, n_flight;
  uint32_t segments_max, table_stride;
  uint32_t n_plain, state_pages; /* groups of keys and values; pages of a state of each other group */
  uint64_t n_submits, n_collects, n_slot_opens, n_sampled, n_drafts;
  bool broken;
  char violation[256];
} fake_runner;

/* The first violation of the contract is kept. */
void fake_runner_note(fake_runner *runner, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The cell of a position, through the table of segment s of the flight; a wrong one is a violation. */
uint64_t fake_runner_cell(fake_runner *runner, const fake_flight *flight, uint32_t s, uint32_t g, uint32_t position);
/* What is submitted and not computed, over all runners of the store. */
void fake_runner_compute_all(weft_fake_store *store);
weft_status fake_runner_draft(weft_runner *runner, const weft_batch *batch, uint32_t n_drafts, int32_t *out);

#endif
