/* SPDX-License-Identifier: MIT */
#include "bench/sim/fate.h"

#include <math.h>

static uint64_t us_of(float seconds) {
  return (uint64_t)(1e6 * (double)seconds + 0.5);
}

static uint64_t failure_after(const weft_sim_fates *f, uint32_t replica, uint64_t now_us) {
  if (f->mean_us == 0) return UINT64_MAX;
  weft_draw_key key = {.seed = f->seed,
                       .purpose = WEFT_DRAW_TEST,
                       .choice = replica,
                       .position = f->n_failed[replica],
                       .step = 1u << 30};
  double u = ((double)(weft_draw_bits(&key) >> 11) + 0.5) * 0x1p-53;
  return now_us + 1 + (uint64_t)(-(double)f->mean_us * log(u));
}

bool weft_sim_fates_open(const weft_lab_config *c, weft_sim_fates *out) {
  *out = (weft_sim_fates){.seed = c->product.sampling.seed,
                          .mean_us = us_of(c->fail_s),
                          .away_us = us_of(c->away_s),
                          .batch_us = c->upgrade_s > 0.0f ? us_of(c->upgrade_s) : UINT64_MAX,
                          .n = c->replicas,
                          .at_once = c->upgrade_at_once};
  if (!weft_sim_turns_open(&out->turns, out->n)) return false;
  for (uint32_t i = 0; i < out->n; i++) weft_sim_turns_set(&out->turns, i, failure_after(out, i, 0));
  return true;
}

void weft_sim_fates_close(weft_sim_fates *f) {
  weft_sim_turns_close(&f->turns);
}

uint64_t weft_sim_fates_next(const weft_sim_fates *f) {
  uint64_t at_us = f->turns.at_us[weft_sim_turns_first(&f->turns)];
  return f->batch_us < at_us ? f->batch_us : at_us;
}

/* Those who left are back: the next ones leave, or the upgrade is over. */
static void end_batch(weft_sim_fates *f, uint64_t now_us) {
  if (f->n_out > 0 || f->batch_us != UINT64_MAX) return;
  if (f->next < f->n) {
    f->batch_us = now_us;
  } else {
    f->upgraded_us = now_us;
  }
}

/* The next one of the upgrade that is there. False: this is all for now. */
static bool take_leaving(weft_sim_fates *f, weft_sim_fate *out) {
  if (f->n_batch == 0) f->n_batch = f->at_once;
  while (f->n_batch > 0 && f->next < f->n && f->duty[f->next] != WEFT_SIM_ON_DUTY) f->next += 1;
  if (f->next == f->n || f->n_batch == 0) return false;
  *out = (weft_sim_fate){WEFT_SIM_LEAVES, f->next};
  f->duty[f->next] = WEFT_SIM_LEAVING;
  f->in_upgrade[f->next] = true;
  f->next += 1;
  f->n_out += 1;
  f->n_batch -= 1;
  return true;
}

weft_sim_fate weft_sim_fates_take(weft_sim_fates *f) {
  uint32_t first = weft_sim_turns_first(&f->turns);
  uint64_t at_us = f->turns.at_us[first];
  weft_sim_fate fate;
  if (f->batch_us < at_us) {
    uint64_t now_us = f->batch_us;
    bool taken = take_leaving(f, &fate);
    if (!taken || f->n_batch == 0) {
      f->batch_us = UINT64_MAX;
      f->n_batch = 0;
    }
    if (taken) return fate;
    end_batch(f, now_us); /* all others are away */
    return (weft_sim_fate){WEFT_SIM_NOTHING, 0};
  }
  if (f->duty[first] != WEFT_SIM_AWAY) {
    f->n_failed[first] += 1;
    weft_sim_turns_set(&f->turns, first, UINT64_MAX);
    return (weft_sim_fate){WEFT_SIM_FAILS, first};
  }
  f->duty[first] = WEFT_SIM_ON_DUTY;
  weft_sim_turns_set(&f->turns, first, failure_after(f, first, at_us));
  if (f->in_upgrade[first]) {
    f->in_upgrade[first] = false;
    f->n_out -= 1;
    end_batch(f, at_us);
  }
  return (weft_sim_fate){WEFT_SIM_RETURNS, first};
}

void weft_sim_fates_put_off(weft_sim_fates *f, uint32_t replica, uint64_t at_us) {
  f->n_failed[replica] -= 1;
  weft_sim_turns_set(&f->turns, replica, at_us);
}

void weft_sim_fates_gone(weft_sim_fates *f, uint32_t replica, uint64_t now_us) {
  f->duty[replica] = WEFT_SIM_AWAY;
  weft_sim_turns_set(&f->turns, replica, now_us + f->away_us);
}
