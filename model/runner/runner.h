/* SPDX-License-Identifier: MIT */
/* A runner computes steps of one model on one device and keeps what running requests need between steps:
 * sequence slots (last token, token history, canvas, argmax history, soft embedding, done flag).
 *
 * Law: submit never waits for the device, unless the batch has a canvas that is held to a grammar; at most `depth`
 * batches are submitted and not collected; collect gives results in order of submission. Runners whose blocks lie in
 * one pool compute in the order in which batches were submitted, over all of these runners, because a page may pass
 * from one request to another between two submissions. A slot belongs to one request from slot_open to slot_close;
 * slot_close may come while a batch with the slot is in flight, and the caller then ignores the slot's results. A
 * device error breaks the runner: every later call gives WEFT_E_DEVICE, and the process goes on. The page copies of a
 * batch belong to the pool, not to the runner: they run even when the rows of the batch fail, unless the device itself
 * is lost. One thread makes all calls. */
#ifndef WEFT_MODEL_RUNNER_RUNNER_H
#define WEFT_MODEL_RUNNER_RUNNER_H

#include "model/batch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What the scheduler knows of a model. */
typedef struct weft_runner_info {
  char name[128]; /* by which clients ask for the model */
  char arch[32];
  uint64_t fingerprint_low, fingerprint_high;
  uint32_t n_vocab, context_length;
  uint32_t canvas_length; /* 0: cannot denoise */
  bool autoregressive;    /* can answer token by token */
  bool holds_canvases;    /* the answer of a diffusion request can be held to a grammar */
  uint32_t n_slots, rows_max, depth;
  uint32_t n_stages;        /* how many steps it can compute at once, each on a device of its own; 1: one */
  uint32_t scored_rows_max; /* rows of prompts that one step may score; 0: none */
  uint32_t draft_rows_max;  /* rows with drafts (batch.h, runs) that one step may have; 0: none */
  bool drafts;              /* it makes drafts itself (draft below) */
  bool graphs;              /* steps that come again are faster, and those with runs come again if all are as long */
  uint32_t n_saves;         /* places for the state of canvases outside their slots */
  uint32_t n_groups;
  weft_layer_group group[WEFT_GROUPS_MAX];
  uint64_t page_bytes, kv_bytes_per_token;
  uint32_t n_experts, n_experts_used; /* of a layer with experts; 0: the model has none */
  weft_entropy_bound entropy_bound;   /* the model file's values */
} weft_runner_info;

typedef struct weft_runner weft_runner;

/* Whether a runner may be used now, of a model that comes and goes (guest_runner.h). */
typedef enum weft_runner_stay {
  WEFT_STAY_HERE = 0, /* all calls may be made */
  WEFT_STAY_LEAVING,  /* requests that run go on, and none starts */
  WEFT_STAY_AWAY      /* no call may be made but info, stay and copies_ended; what slots and places kept is lost */
} weft_runner_stay;

/* The methods of a runner. The device runner and the doubles of the tests each fill one such table. */
typedef struct weft_runner_ops {
  const weft_runner_info *(*info)(const weft_runner *runner);
  weft_status (*slot_open)(weft_runner *runner, uint32_t slot, const weft_slot_params *params);
  void (*slot_close)(weft_runner *runner, uint32_t slot);
  /* Copies the state of a canvas between two denoise steps (its tokens, argmax history and soft embedding) from a slot
   * with nothing in flight to the place `save` < n_saves, and back into an open slot, whose next step then has the same
   * results as without the interruption. What was saved may be restored once. NULL when n_saves is 0. */
  weft_status (*slot_save)(weft_runner *runner, uint32_t slot, uint32_t save);
  weft_status (*slot_restore)(weft_runner *runner, uint32_t slot, uint32_t save);
  weft_status (*submit)(weft_runner *runner, const weft_batch *batch);
  /* WEFT_AGAIN: nothing was submitted. The result is valid until the next collect. */
  weft_status (*collect)(weft_runner *runner, weft_step_result *result);
  /* Writes which page copies ended since the last call, of all runners over the pool, and returns how many, at most
   * max: copies to host memory that failed (known when their submit returns), and every copy to or from the file, which
   * may end long after its batch was collected. NULL: nothing lies behind the pool. */
  uint32_t (*copies_ended)(weft_runner *runner, weft_copy_end *out, uint32_t max);
  /* How many of n drafts, from the first on, the format of the slot's answer allows behind the tokens that its host
   * knows; nothing of the slot is in flight. NULL: nobody looks, and rows behind a draft that is not allowed are
   * void. */
  uint32_t (*allowed)(weft_runner *runner, uint32_t slot, const int32_t *draft, uint32_t n);
  /* Of a model that comes and goes, asked between two steps: used says whether any slot is open or a batch is not
   * collected, and what is used is never away; n_waiting is how many requests wait for the model. *refused: a line with
   * which these end, valid until the next call, or NULL. NULL: the runner is always here. */
  weft_runner_stay (*stay)(weft_runner *runner, bool used, uint32_t n_waiting, const char **refused);
  /* Drafts of slots with nothing in flight, each with all tokens known: of the batch's row i, whose segment is the
   * slot's last position with keys, n - 2 of n tokens, with token n - 1 and its position. Writes n_drafts tokens of
   * each row to out, row after row; -1 where the runner has none. It waits for the device. Answers do not depend on
   * it. NULL, or not to be called, where info.drafts is false. */
  weft_status (*draft)(weft_runner *runner, const weft_batch *batch, uint32_t n_drafts, int32_t *out);
  void (*close)(weft_runner *runner);
} weft_runner_ops;

/* Fills the table with functions whose names begin with `own`: the methods that every runner has, and those of a runner
 * that can save canvases and has tiers behind its pool. */
#define WEFT_RUNNER_OPS(own)                                                                                \
  .info = own##_info, .slot_open = own##_slot_open, .slot_close = own##_slot_close, .submit = own##_submit, \
  .collect = own##_collect, .close = own##_close
#define WEFT_RUNNER_OPS_ALL(own)                                                          \
  WEFT_RUNNER_OPS(own), .slot_save = own##_slot_save, .slot_restore = own##_slot_restore, \
                        .copies_ended = own##_copies_ended

struct weft_runner { /* the first member of the struct of every implementation */
  const weft_runner_ops *ops;
};

#ifdef __cplusplus
}
#endif
#endif
