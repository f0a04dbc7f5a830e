/* SPDX-License-Identifier: MIT */
/* A forecast: how long waiting work will take, from the speed of the last steps and the cost of the last answers. It is
 * used for Retry-After only: no decision depends on it. Engine thread; other threads read the copy that snapshot.c
 * takes.
 *
 * Law. The speed is a mean over about the last WEFT_FORECAST_MEMORY steps, the cost one over as many answers. Before
 * the first of them a unit of cost takes a microsecond and an answer costs nothing. */
#ifndef WEFT_SCHEDULER_FORECAST_H
#define WEFT_SCHEDULER_FORECAST_H

#include <stdint.h>

enum { WEFT_FORECAST_MEMORY = 64 };

typedef struct weft_forecast {
  double cost, us;    /* of the last steps, fading: older steps count less; in rows (weft_cost_in_rows), microseconds */
  double answer_cost; /* mean over answers, in rows */
  uint64_t last_us;   /* when the step before was planned; 0: the engine was idle since */
} weft_forecast;

/* A step of this cost is planned: the time since the step before is what that step took. */
void weft_forecast_step(weft_forecast *forecast, uint64_t cost, uint64_t now_us);
/* The engine has nothing to do: the time until the next step says nothing about speed. */
void weft_forecast_idle(weft_forecast *forecast);
void weft_forecast_answer(weft_forecast *forecast, uint64_t cost);
/* The estimated microseconds, at least 1, until n_places places are free. A place comes free when one request has been
 * served; a request is taken to cost what the n_requests that wait cost on average (prompt_cost is that of all their
 * prompts), on a device of which they get `share`, in (0 .. 1]. 0 for no places. */
uint64_t weft_forecast_us(const weft_forecast *forecast, uint64_t prompt_cost, uint32_t n_requests, uint32_t n_places,
                          double share);

#endif
