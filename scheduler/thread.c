/* SPDX-License-Identifier: MIT */
#include "scheduler/thread.h"

#include "base/check.h"
#include "base/threads.h"
#include "scheduler/pins.h"
#include "scheduler/step.h"

static uint64_t next_us(weft_engine *e) {
  uint64_t deadline = weft_deadlines_next_us(&e->deadlines), pin = weft_pins_next_us(e);
  uint64_t file = weft_deadlines_next_us(&e->file_waits.until);
  if (file < deadline) deadline = file;
  return pin < deadline ? pin : deadline;
}

static void *run_loop(void *self) {
  weft_engine *e = self;
  bool go_on = true;
  while (go_on) {
    weft_status status = weft_step_turn(e, weft_clock_us());
    go_on = status == WEFT_AGAIN ? weft_inbox_sleep(&e->inbox, next_us(e)) : !weft_inbox_stopping(&e->inbox);
  }
  return NULL;
}

weft_status weft_thread_start(weft_engine *engine) {
  if (engine->has_thread) return WEFT_E_INVALID;
  weft_inbox_set_closed(&engine->inbox, false);
  engine->real_clock = true;
  weft_status status = weft_threads_start(&engine->thread, run_loop, engine, NULL);
  if (status != WEFT_OK) {
    engine->real_clock = false;
    return status;
  }
  engine->has_thread = true;
  return WEFT_OK;
}

void weft_thread_stop(weft_engine *engine) {
  weft_inbox_set_closed(&engine->inbox, true);
  if (engine->has_thread) {
    weft_inbox_stop(&engine->inbox);
    (void)pthread_join(engine->thread, NULL);
    engine->has_thread = false;
    engine->real_clock = false;
  }
  weft_step_end_all(engine);
}
