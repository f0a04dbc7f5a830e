/* SPDX-License-Identifier: MIT */
#include "scheduler/forecast.h"

static const double fade = 1.0 - 1.0 / WEFT_FORECAST_MEMORY;

void weft_forecast_step(weft_forecast *f, uint64_t cost, uint64_t now_us) {
  if (f->last_us > 0 && now_us > f->last_us) {
    f->us = f->us * fade + (double)(now_us - f->last_us);
    f->cost *= fade;
  }
  f->cost += (double)cost;
  f->last_us = now_us;
}

void weft_forecast_idle(weft_forecast *f) {
  f->last_us = 0;
}

void weft_forecast_answer(weft_forecast *f, uint64_t cost) {
  f->answer_cost += ((double)cost - f->answer_cost) / WEFT_FORECAST_MEMORY;
}

uint64_t weft_forecast_us(const weft_forecast *f, uint64_t prompt_cost, uint32_t n_requests, uint32_t n_places,
                          double share) {
  if (n_places == 0) return 0;
  double us_per_cost = f->us > 0 && f->cost > 0 ? f->us / f->cost : 1.0;
  double cost = (n_requests > 0 ? (double)prompt_cost / n_requests : 0.0) + f->answer_cost;
  double us = cost * us_per_cost * n_places / share;
  if (us < 1.0) return 1;
  return us < 1e15 ? (uint64_t)us : (uint64_t)1e15;
}
