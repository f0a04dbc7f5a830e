/* SPDX-License-Identifier: MIT */
/* How many drafts the runs of a step have. It is decided once for all requests of the step: their rows share its time
 * and, on a card, its graph, and no step is planned ahead of one that has runs.
 *
 * Law. A depth (a rung of the ladder weft_depth_ladder) is chosen where the tokens that the step is expected to give,
 * divided by its time, are most, and by WEFT_DEPTH_BEGIN above those of the step without drafts (WEFT_DEPTH_GO_ON,
 * where the last step had runs). Requests whose drafts are right more often come first: how often one must be right to
 * have a run is chosen with the depth, and is low unless it matters. The time is that of steps which were measured, of
 * as many sequences and that depth; other numbers of rows and keys, and depths that were not measured, are scaled by
 * the cost model (cost.h). Now and then a step has the next depth above or below, so that their times become known.
 * On a device with graphs all runs of a step have one length, so that steps come again (limits.alike).
 * Before WEFT_DEPTH_KNOWN steps without drafts were measured there are none; of WEFT_DEPTH_RENEW steps with runs, some
 * have none, so that the time without stays known.
 *
 * What is expected may be wrong, so what came is counted too. An account gets a two-hundredth of the time of every step
 * and never holds more than WEFT_DEPTH_CREDIT_US, or the time of two steps. Each step with runs changes it by the time
 * in which steps without drafts would have given the same tokens, less the time that it took. Where the account is
 * empty there are no runs until a quarter is there again, and a depth that was not measured is taken only where the
 * account can pay for the worst. So in ten seconds drafts lose at most a fiftieth, or two steps where that is more.
 * Where nothing gains, what could is tried in WEFT_DEPTH_TRIAL steps that the account can pay, after WEFT_DEPTH_PAUSE
 * steps without runs; after a trial in vain the pause is twice as long, up to WEFT_DEPTH_PAUSE_MAX. Drafts that are
 * judged without runs (n-grams) are tried only where the time of the depth is not known.
 * The same answers and the same times of steps give the same decisions. Engine thread. */
#ifndef WEFT_SCHEDULER_DEPTH_H
#define WEFT_SCHEDULER_DEPTH_H

#include "scheduler/cost.h"

enum { WEFT_DEPTH_RUNGS = 10, WEFT_DEPTH_LOADS = 12, WEFT_DEPTH_RATES = 16 };
/* Drafts of a run: 0, 1, 2, 3, 5, 7, 11, 15, 23, 31. With the row before them they fill the tiles of kernels. */
extern const uint8_t weft_depth_ladder[WEFT_DEPTH_RUNGS];
/* The highest rung with at most n drafts. */
uint8_t weft_depth_rung(uint32_t n);

/* In hundredths of the tokens of a step. */
enum { WEFT_DEPTH_BEGIN = 5, WEFT_DEPTH_GO_ON = 2 };
enum {
  WEFT_DEPTH_KNOWN = 4,
  WEFT_DEPTH_RENEW = 512,
  WEFT_DEPTH_TRIAL = 3,
  WEFT_DEPTH_PAUSE = 64,
  WEFT_DEPTH_PAUSE_MAX = 4096,
  WEFT_DEPTH_CREDIT_US = 80000
};

/* The time of steps of about so many sequences, at one depth. */
typedef struct weft_depth_cell {
  double us; /* of a step of this shape, over about the last 8 */
  weft_cost_shape shape;
  uint32_t n;     /* steps measured */
  uint32_t n_new; /* since then, steps that were launched in a way that will not come again */
} weft_depth_cell;

typedef struct weft_depth {
  weft_depth_cell cell[WEFT_DEPTH_LOADS][WEFT_DEPTH_RUNGS]; /* load i: up to 2^i sequences */
  double credit_us, credit_max_us;
  bool spent;     /* the account was empty and has not a quarter again */
  bool after_run; /* the last step that landed had runs */
  uint32_t n_plain, pause, trial_left, n_unrenewed, n_to_renew, n_looked;
  bool looks_up; /* the next look aside is at a larger depth */
  /* Of the next step: the rung, 0 for none, and in which class of rates drafts must be to have a run. */
  uint8_t rung, least_rate;
  bool trial;
} weft_depth;

void weft_depth_open(weft_depth *depth);

/* The requests that decode in the next step. */
typedef struct weft_depth_crowd {
  uint32_t n;                                      /* all of them */
  uint32_t n_unjudged;                             /* whose drafts only runs can judge */
  uint32_t at[WEFT_DEPTH_RATES][WEFT_DEPTH_RUNGS]; /* that may have drafts: by their rate, and by the most drafts */
  double rate_sum[WEFT_DEPTH_RATES][WEFT_DEPTH_RUNGS];
} weft_depth_crowd;

/* The class of a rate. Class 0 has runs in trials only. */
static inline uint8_t weft_depth_class(double rate) {
  uint32_t i = rate > 0.0 ? (uint32_t)(rate * WEFT_DEPTH_RATES) : 0;
  return (uint8_t)(i < WEFT_DEPTH_RATES ? i : WEFT_DEPTH_RATES - 1);
}

/* A request whose drafts are right at this rate may have n_max drafts. compares: they are judged without runs too. */
void weft_depth_count(weft_depth_crowd *crowd, double rate, uint32_t n_max, bool compares);

/* What bounds the next step. */
typedef struct weft_depth_limits {
  uint32_t draft_rows, rows; /* rows of drafts; rows beyond those of the shape */
  double budget_us;          /* predicted time; 0: no limit */
  double wait_us;            /* that runs wait for their drafts */
  bool ahead;                /* steps without runs are planned ahead */
  bool alike;                /* all runs of a step have as many drafts: a request that may have fewer has none */
} weft_depth_limits;

/* Sets rung, least_rate and trial for a step whose decode rows have this shape. */
void weft_depth_choose(weft_depth *depth, const weft_cost_model *model, const weft_depth_crowd *crowd,
                       const weft_cost_shape *shape, const weft_depth_limits *limits);

/* A step that landed. */
typedef struct weft_depth_step {
  uint32_t n_sequences, n_runs;
  uint32_t n_gained;            /* tokens that runs gave beyond one each */
  uint32_t depth;               /* most drafts of a run */
  weft_cost_shape shape, plain; /* as it was; without the rows of drafts */
  bool pure;                    /* only requests that decode */
  bool is_new;                  /* it was launched in a way that will not come again (model/batch.h) */
  bool trial, waited;           /* a trial; its lane waited for it though nothing was known to be right */
  double us, wait_us;           /* that it took; that its runs waited for drafts before */
} weft_depth_step;

void weft_depth_landed(weft_depth *depth, const weft_cost_model *model, const weft_depth_step *step);

#endif
