/* SPDX-License-Identifier: MIT */
#include "scheduler/guests.h"

#include "scheduler/lifecycle.h"
#include "scheduler/pins.h"
#include "scheduler/waiting.h"

/* Nobody starts in this lane for now, so none of its requests may hold others back. */
static void stop_starting(weft_engine *e, const weft_lane *lane) {
  if (e->claims.waiter != NULL && e->claims.waiter->lane == lane->index) e->claims.waiter = NULL;
  weft_waiting_end_file(e, lane->index);
}

static void go_away(weft_engine *e, weft_lane *lane) {
  uint32_t n_saves = lane->info->n_saves;
  WEFT_CHECK(lane->n_running + lane->n_in_flight == 0);
  lane->n_away += 1;
  for (uint32_t i = 0; i < n_saves; i++) lane->free_save[i] = i;
  lane->n_free_saves = n_saves;
  weft_pins_let_go(e, lane->index);
}

static void hear_one(weft_engine *e, weft_lane *lane) {
  const char *refused = NULL;
  bool used = lane->n_running + lane->n_in_flight > 0;
  weft_runner_stay stay = lane->runner->ops->stay(lane->runner, used, lane->n_waiting, &refused);
  if (refused != NULL) weft_lifecycle_refuse(e, lane, refused);
  if (stay == lane->stay) return;
  e->n_changes += 1;
  if (lane->stay == WEFT_STAY_HERE) stop_starting(e, lane);
  lane->stay = stay;
  if (stay == WEFT_STAY_AWAY) go_away(e, lane);
}

void weft_guests_hear(weft_engine *e) {
  for (uint32_t i = 0; i < e->n_lanes; i++) {
    weft_lane *lane = &e->lane[i];
    if (lane->runner->ops->stay != NULL && !lane->broken) hear_one(e, lane);
  }
}
