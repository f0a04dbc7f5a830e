/* SPDX-License-Identifier: MIT */
/* A runner computes steps of one model on one device and keeps what running requests need between steps:
 * sequence slots (last token, token history, canvas, argmax history, soft embedding, done flag).
 *
 * Law: submit never waits for the device; at most `depth` batches are submitted and not collected; collect gives
 * results in order of submission. Runners whose blocks lie in one pool compute in the order in which batches were
 * submitted, over all of them: a page may be handed on between two submissions. A slot belongs to one request from
 * slot_open to slot_close; slot_close may come while a batch with the slot is in flight: its results are then ignored
 * by the caller. A device error breaks the runner: every later call gives WEFT_E_DEVICE; the process lives. The copies
 * of a batch belong to the pool, not to the runner: they run even when its rows fail, unless the device is lost for
 * all. One thread calls everything. */
#ifndef WEFT_MODEL_RUNNER_H
#define WEFT_MODEL_RUNNER_H

#include "model/batch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What the scheduler may know of a model. */
typedef struct weft_runner_info {
  char name[128]; /* as clients ask for it */
  char arch[32];
  uint64_t fingerprint_low, fingerprint_high;
  uint32_t n_vocab, context_length;
  uint32_t canvas_length; /* 0: cannot denoise */
  bool autoregressive;    /* can answer token by token */
  bool holds_canvases;    /* an answer on canvases can be held to a grammar */
  uint32_t n_slots, rows_max, depth;
  uint32_t scored_rows_max; /* rows of prompts that one step may score; 0: none */
  uint32_t n_saves;         /* canvases whose state may be kept outside their slots; 0: none */
  uint32_t n_groups;
  weft_layer_group group[WEFT_GROUPS_MAX];
  uint64_t page_bytes, kv_bytes_per_token;
  uint32_t n_experts, n_experts_used; /* of a layer that routes; 0: none does */
  weft_entropy_bound entropy_bound;   /* defaults of the file */
} weft_runner_info;

typedef struct weft_runner weft_runner;

/* The methods of a runner; the real one and the test's fake one fill the same table. */
typedef struct weft_runner_ops {
  const weft_runner_info *(*info)(const weft_runner *runner);
  weft_status (*slot_open)(weft_runner *runner, uint32_t slot, const weft_slot_params *params);
  void (*slot_close)(weft_runner *runner, uint32_t slot);
  /* The state of a canvas between two denoise steps (its tokens, argmax history, soft embedding), of a slot with
   * nothing in flight: to place `save` < n_saves, and back into an open slot, whose next step then follows as if
   * nothing had been. A place may be restored once. NULL when n_saves is 0. */
  weft_status (*slot_save)(weft_runner *runner, uint32_t slot, uint32_t save);
  weft_status (*slot_restore)(weft_runner *runner, uint32_t slot, uint32_t save);
  weft_status (*submit)(weft_runner *runner, const weft_batch *batch);
  /* WEFT_AGAIN: nothing was submitted. The result is valid until the next collect. */
  weft_status (*collect)(weft_runner *runner, weft_step_result *result);
  /* What happened to copies of submitted batches since the last call, of all runners over the pool: copies to the
   * host that could not be made (known when their submit returns), and copies to or from the file that ended: each
   * does, though maybe long after its batch was collected. How many, at most max. NULL: there is no lower tier. */
  uint32_t (*copies_ended)(weft_runner *runner, weft_copy_end *out, uint32_t max);
  void (*close)(weft_runner *runner);
} weft_runner_ops;

/* The methods that every runner has, of functions whose names begin with `own`; and those of one with saves and tiers. */
#define WEFT_RUNNER_OPS(own)                                                                                \
  .info = own##_info, .slot_open = own##_slot_open, .slot_close = own##_slot_close, .submit = own##_submit, \
  .collect = own##_collect, .close = own##_close
#define WEFT_RUNNER_OPS_ALL(own)                                                          \
  WEFT_RUNNER_OPS(own), .slot_save = own##_slot_save, .slot_restore = own##_slot_restore, \
                        .copies_ended = own##_copies_ended

struct weft_runner { /* first member of every implementation */
  const weft_runner_ops *ops;
};

#ifdef __cplusplus
}
#endif
#endif
