/* SPDX-License-Identifier: MIT */
/* A forecast: how long waiting work will take, from the speed of the last steps and the cost of the last answers. It is
 * used for Retry-After only: nothing is decided by it.
 *
 * Law. Both are means over about the last WEFT_FORECAST_MEMORY steps and answers. Before the first of them a unit of cost
 * takes a microsecond and an answer costs nothing. */
#ifndef WEFT_SCHEDULER_FORECAST_H
#define WEFT_SCHEDULER_FORECAST_H

#include <stdint.h>

enum { WEFT_FORECAST_MEMORY = 64 };

typedef struct weft_forecast {
  double cost, us;    /* of the last steps; older steps count less */
  double answer_cost; /* mean */
  uint64_t last_us;   /* when the step before was planned; 0: nothing ran since */
} weft_forecast;

/* A step of this cost is planned; the one before has had its time. */
void weft_forecast_step(weft_forecast *forecast, uint64_t cost, uint64_t now_us);
/* There is nothing to do: the time until the next step tells nothing. */
void weft_forecast_idle(weft_forecast *forecast);
void weft_forecast_answer(weft_forecast *forecast, uint64_t cost);
/* The time in which n_places come free, at least 1: each when one request has been served, like the n_requests that wait,
 * whose prompts cost this much together, on a device of which they have `share` (0 .. 1]. 0 for no places. */
uint64_t weft_forecast_us(const weft_forecast *forecast, uint64_t prompt_cost, uint32_t n_requests, uint32_t n_places,
                          double share);

#endif
