/* SPDX-License-Identifier: MIT */
#include "scheduler/cost.h"

#include <math.h>
#include <string.h>

uint64_t weft_cost_in_rows(uint64_t n_rows, uint64_t n_products) {
  return n_rows + n_products / WEFT_COST_KEYS_PER_ROW;
}

/* ---- features -------------------------------------------------------------------------------- */

enum { FIXED, ROWS, ROWS_KNEE, ROWS_MANY, READS, PRODUCTS, EXPERTS, OUTPUTS };
enum { KNEE = 64, MANY = 256 }; /* rows where the line may bend */

/* Units in which coefficients are of one size: the prior is a card of 2024 with a model of 26B. */
static const double unit[WEFT_COST_FEATURES] = {1, 64, 64, 64, 65536, 1 << 24, 1, 64};
static const double prior_us[WEFT_COST_FEATURES] = {2000, 200, 200, 200, 200, 200, 2000, 100};
static const double COEFFICIENT_MAX = 1e9, LEAST_US = 1.0;
/* A row of a long prompt before any step was measured: 26B on an H200, which is slower everywhere else. What was kept
 * for the first request after a start is worth reading by it. */
static const double ROW_US = 26.0;

static double beyond_knee(uint32_t n, uint32_t knee) {
  return n > knee ? (double)(n - knee) : 0.0;
}

static double experts_share(const weft_cost_layers *layers, uint32_t n_rows) {
  if (layers->n_experts == 0) return 0.0;
  double missed = 1.0 - (double)layers->n_used / (double)layers->n_experts;
  return 1.0 - pow(missed, (double)n_rows);
}

static void fill_shape(const weft_cost_model *m, const weft_cost_shape *s, double *x) {
  x[FIXED] = 1.0;
  x[ROWS] = s->n_rows;
  x[ROWS_KNEE] = beyond_knee(s->n_rows, KNEE);
  x[ROWS_MANY] = beyond_knee(s->n_rows, MANY);
  x[READS] = (double)s->n_reads;
  x[PRODUCTS] = (double)s->n_products;
  x[EXPERTS] = experts_share(&m->layers, s->n_rows);
  x[OUTPUTS] = s->n_outputs;
  for (uint32_t i = 0; i < WEFT_COST_FEATURES; i++) x[i] /= unit[i];
}

static double sum_of(const weft_cost_model *m, const double *x) {
  double us = 0.0;
  for (uint32_t i = 0; i < WEFT_COST_FEATURES; i++) us += m->us[i] * x[i];
  return us > LEAST_US ? us : LEAST_US;
}

double weft_cost_step(const weft_cost_model *m, const weft_cost_shape *shape) {
  double x[WEFT_COST_FEATURES];
  fill_shape(m, shape, x);
  return sum_of(m, x);
}

/* Beyond any step, so that sums of charges do not wrap. */
static uint64_t whole_units(double us) {
  const double most = 1e12;
  return (uint64_t)((us < most ? us : most) * WEFT_COST_PER_US);
}

uint64_t weft_cost_of_part(const weft_cost_model *m, const weft_cost_shape *s) {
  double us = m->us[ROWS] / unit[ROWS] * s->n_rows + m->us[OUTPUTS] / unit[OUTPUTS] * s->n_outputs +
              m->us[READS] / unit[READS] * (double)s->n_reads +
              m->us[PRODUCTS] / unit[PRODUCTS] * (double)s->n_products;
  return whole_units(us > s->n_rows ? us : s->n_rows);
}

uint64_t weft_cost_charge(const weft_cost_model *m, const weft_cost_shape *shape) {
  uint64_t least = weft_cost_of_part(m, shape), whole = whole_units(weft_cost_step(m, shape));
  return whole > least ? whole : least;
}

double weft_cost_row_us(const weft_cost_model *m) {
  if (m->n_steps == 0) return ROW_US;
  double us = m->us[ROWS] / unit[ROWS] + m->us[ROWS_KNEE] / unit[ROWS_KNEE] + m->us[ROWS_MANY] / unit[ROWS_MANY];
  return us;
}

void weft_cost_open(weft_cost_model *m, const weft_cost_layers *layers) {
  *m = (weft_cost_model){.layers = *layers};
  memcpy(m->us, prior_us, sizeof m->us);
}

/* ---- the fit --------------------------------------------------------------------------------- */

static const double HOLD = 1e-3;        /* how hard a coefficient holds on to where it is */
static const double LEAST_ERROR = 0.02; /* relative errors below this are all ordinary */
enum {
  ORDINARY = 3, /* an error above this many times the mean error weighs less */
  FORGET = 24,  /* a model that errs by a quarter forgets 7 times as fast: the law has changed */
  SWEEPS = 2
};

/* One more equation: sum of us * x = 1, all divided by the larger of truth and prediction, so that
 * neither a stall nor a step of nothing outweighs the others. */
static void remember_step(weft_cost_model *m, const double *x, double us, double predicted) {
  double scale = us > predicted ? us : predicted, error = fabs(us - predicted) / scale;
  double ordinary = ORDINARY * (m->error > LEAST_ERROR ? m->error : LEAST_ERROR);
  double weight = (error > ordinary ? ordinary / error : 1.0) / (scale * scale);
  double keep = 1.0 - (1.0 + FORGET * m->error) / WEFT_COST_MEMORY;
  for (uint32_t i = 0; i < WEFT_COST_FEATURES; i++) {
    m->target[i] = keep * m->target[i] + weight * x[i] * us;
    for (uint32_t k = 0; k < WEFT_COST_FEATURES; k++) {
      m->product[i][k] = keep * m->product[i][k] + weight * x[i] * x[k];
    }
  }
  m->error += (error - m->error) / 16.0;
}

static void sweep_coefficients(weft_cost_model *m, const double *x, double scale) {
  for (uint32_t i = 0; i < WEFT_COST_FEATURES; i++) {
    if (x[i] <= 0.0) continue; /* this step tells nothing of it */
    double rest = m->target[i];
    for (uint32_t k = 0; k < WEFT_COST_FEATURES; k++) rest -= m->product[i][k] * m->us[k];
    double hold = HOLD * x[i] * x[i] / (scale * scale);
    double next = m->us[i] + rest / (m->product[i][i] + hold);
    m->us[i] = next < 0.0 ? 0.0 : next > COEFFICIENT_MAX ? COEFFICIENT_MAX : next;
  }
}

void weft_cost_learn(weft_cost_model *m, const weft_cost_shape *shape, double us) {
  if (!(us > 0.0)) return;
  double x[WEFT_COST_FEATURES];
  fill_shape(m, shape, x);
  double predicted = sum_of(m, x);
  if (m->n_steps++ == 0) {
    for (uint32_t i = 0; i < WEFT_COST_FEATURES; i++) m->us[i] *= us / predicted;
    predicted = us;
  }
  remember_step(m, x, us, predicted);
  for (uint32_t i = 0; i < SWEEPS; i++) sweep_coefficients(m, x, us > predicted ? us : predicted);
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* A processor copies 8 GB/s and more, a card 20 to 50. */
enum { COPY_BYTES_PER_US = 8192, COPY_BYTES_PER_STEP = 256 << 20 };

uint32_t weft_cost_of_us(const weft_cost_model *m, double us) {
  double row_us = weft_cost_row_us(m);
  double cost = 256.0 * us / (row_us > LEAST_US ? row_us : LEAST_US);
  return cost < (double)UINT32_MAX ? (uint32_t)cost : UINT32_MAX;
}

uint32_t weft_cost_of_page(const weft_cost_model *m, uint64_t page_bytes) {
  return weft_cost_of_us(m, (double)page_bytes / COPY_BYTES_PER_US);
}

uint32_t weft_cost_restores_max(uint64_t page_bytes) {
  if (page_bytes == 0) return UINT32_MAX;
  return page_bytes > COPY_BYTES_PER_STEP ? 1 : (uint32_t)(COPY_BYTES_PER_STEP / page_bytes);
}
