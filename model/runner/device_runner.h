/* SPDX-License-Identifier: MIT */
/* The runner of a real model, on one device or several.
 *
 * Law: that of model/runner/runner.h. The runner takes all its own memory at open: slots, saves, flights with their
 * results, and the arrays of a step (device_runner in runner_internal.h). It borrows the model, the store and the
 * layout until close, a slot's grammar and rules until slot_close, and the arrays of a batch until submit returns. */
#ifndef WEFT_MODEL_RUNNER_DEVICE_RUNNER_H
#define WEFT_MODEL_RUNNER_DEVICE_RUNNER_H

#include "model/model.h"
#include "model/runner/runner.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weft_device_runner_config {
  weft_model *model; /* on devices that outlive the runner; owned by the caller, outlives the runner */
  const weft_kv_store
      *store; /* the pool, which all runners of these devices share; as the layout, borrowed until close */
  const weft_kv_layout *layout;
  const char *name;         /* by which clients ask for the model */
  weft_model_limits limits; /* those that the model was opened with */
  uint32_t n_slots;
  weft_model *assistant;   /* a drafter that was opened with the model as its target; outlives the runner; NULL: none */
  uint32_t draft_rows_max; /* rows with drafts (batch.h, runs) that one step may have; 0: none */
  uint32_t n_saves;        /* canvases whose state may be kept in host memory while they wait */
  uint32_t seq_tokens_max; /* longest history of one slot */
  const int32_t *suppressed; /* tokens that are never drawn; read during open */
  uint32_t n_suppressed;
  uint32_t graph_owner;            /* of the graphs of its steps (weft_device_take_graphs) */
  struct weft_expert_loads *loads; /* told of the choice of experts; outlives the runner; NULL: nobody is */
  uint64_t logits_bytes_max; /* most bytes of logits at once, but one row at least; 0: 64 MiB, or 128 of a card's */
} weft_device_runner_config;

/* What the runner will say of itself; the model may be one that was only planned (weft_model_plan). */
void weft_device_runner_describe(const weft_device_runner_config *config, weft_runner_info *info);
/* How much memory it will take, and what of it is host memory that devices reach, as a holding cuts it
 * (kernels/holding.h); the model may be one that was only planned. */
weft_status weft_device_runner_count(const weft_device_runner_config *config, uint64_t *n_bytes, uint64_t *n_pinned);
/* *n_bytes (may be NULL): how much memory the runner takes. */
weft_status weft_device_runner_open(const weft_device_runner_config *config, weft_runner **out, uint64_t *n_bytes,
                                    weft_error *error);
/* Bytes of its buffers that found no room on their device (runner_memory.h): on the first device, in host memory. */
void weft_device_runner_away(const weft_runner *runner, uint64_t *n_bytes_first, uint64_t *n_bytes_host);

#ifdef __cplusplus
}
#endif
#endif
