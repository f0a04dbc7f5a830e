/* SPDX-License-Identifier: MIT */
#include "scheduler/depth.h"

#include <string.h>

const uint8_t weft_depth_ladder[WEFT_DEPTH_RUNGS] = {0, 1, 2, 3, 5, 7, 11, 15, 23, 31};

enum { MEMORY = 8 };                 /* steps over which a measured time is smoothed */
enum { CREDIT_STEPS = 2 };           /* that an account can pay at least, where steps are slow */
enum { NEW_MAX = 8 };                /* where so many steps of a kind were new, such steps are what is to be expected */
static const double STALL = 4.0;     /* a step that takes so many times what was expected tells of something else */
static const double UNKNOWN = 1.05;  /* steps that are not planned ahead, where none was measured */
static const double STAY = 1.02;     /* another depth must be better by this: on a card it is another graph */
static const double TOGETHER = 1.05; /* some requests alone must be better than all by this, for the same reason */
enum { APART = 4 };                  /* classes */
enum { LOOK = 4, LOOK_AGAIN = 128 }; /* steps with runs between two at the next depth: of unknown time, of known */
static const double NEAR = 0.8;      /* a depth of unknown time is tried where it may give so much of what none gives */
static const double ALLOWANCE = 0.005;

uint8_t weft_depth_rung(uint32_t n) {
  uint8_t rung = 0;
  while (rung + 1 < WEFT_DEPTH_RUNGS && weft_depth_ladder[rung + 1] <= n) rung++;
  return rung;
}

void weft_depth_open(weft_depth *d) {
  *d =
      (weft_depth){.credit_us = WEFT_DEPTH_CREDIT_US, .credit_max_us = WEFT_DEPTH_CREDIT_US, .pause = WEFT_DEPTH_PAUSE};
}

void weft_depth_count(weft_depth_crowd *crowd, double rate, uint32_t n_max, bool compares) {
  uint8_t class = weft_depth_class(rate), rung = weft_depth_rung(n_max);
  if (rung == 0) return;
  crowd->at[class][rung] += 1;
  crowd->rate_sum[class][rung] += rate;
  crowd->n_unjudged += !compares;
}

/* ---- the time of a step ------------------------------------------------------------------------ */

static uint32_t load_of(uint32_t n_sequences) {
  uint32_t i = 0;
  while (i + 1 < WEFT_DEPTH_LOADS && (UINT32_C(1) << i) < n_sequences) i++;
  return i;
}

/* What a step that was measured took, beside what the model says of it. */
static double ratio_of(const weft_cost_model *model, const weft_depth_cell *cell) {
  return cell->n > 0 ? cell->us / weft_cost_step(model, &cell->shape) : 1.0;
}

/* A depth that was not measured lies between the nearest ones below and above that were. */
static double time_of(const weft_depth *d, const weft_cost_model *model, uint32_t load, uint32_t rung,
                      const weft_cost_shape *shape, bool ahead) {
  const weft_depth_cell *cell = d->cell[load];
  uint32_t low = rung, high = rung;
  while (low > 0 && cell[low].n == 0) low--;
  while (high + 1 < WEFT_DEPTH_RUNGS && cell[high].n == 0) high++;
  double us = weft_cost_step(model, shape), ratio = ratio_of(model, &cell[low]);
  if (low == rung) return us * ratio;
  if (low == 0 && ahead) ratio *= UNKNOWN;
  if (cell[high].n == 0) return us * ratio;
  double part = (double)(weft_depth_ladder[rung] - weft_depth_ladder[low]) /
                (double)(weft_depth_ladder[high] - weft_depth_ladder[low]);
  return us * (ratio + part * (ratio_of(model, &cell[high]) - ratio));
}

static void learn_time(weft_depth *d, const weft_cost_model *model, const weft_depth_step *s, uint32_t rung) {
  weft_depth_cell *cell = &d->cell[load_of(s->n_sequences)][rung];
  if (s->is_new && cell->n_new < NEW_MAX) {
    cell->n_new += 1;
    return;
  }
  double before = time_of(d, model, load_of(s->n_sequences), rung, &s->shape, false), us = s->us;
  if (cell->n == 0) before = us;
  if (cell->n >= WEFT_DEPTH_KNOWN && us > STALL * before) us = STALL * before;
  cell->n += 1;
  if (!s->is_new) cell->n_new = 0;
  cell->us = before + (us - before) / (cell->n < MEMORY ? cell->n : MEMORY);
  cell->shape = s->shape;
}

/* ---- how many ---------------------------------------------------------------------------------- */

/* The shape with n drafts more, of requests that have as many keys as those of the shape on average. */
static weft_cost_shape with_drafts(const weft_cost_shape *shape, uint32_t n) {
  weft_cost_shape out = *shape;
  uint64_t keys = shape->n_rows > 0 ? shape->n_products / shape->n_rows : 0;
  out.n_rows += n;
  out.n_outputs += n;
  out.n_products += keys * n;
  return out;
}

/* Tokens beyond the first one that n drafts are expected to give. */
static double expect_right(double rate, uint32_t n) {
  double right = 1.0, sum = 0.0;
  for (uint32_t i = 0; i < n; i++) sum += right *= rate;
  return sum;
}

typedef struct option {
  uint8_t rung, least_rate;
  double worth; /* tokens for each microsecond */
  double us;
} option;

typedef struct choosing {
  const weft_depth *depth;
  const weft_cost_model *model;
  const weft_depth_crowd *crowd;
  const weft_cost_shape *shape;
  const weft_depth_limits *limits;
  uint32_t load;
  double plain_us; /* of a step without drafts */
} choosing;

static uint32_t class_size(const weft_depth_crowd *crowd, uint32_t class) {
  uint32_t n = 0;
  for (uint32_t i = 1; i < WEFT_DEPTH_RUNGS; i++) n += crowd->at[class][i];
  return n;
}

/* Adds the requests of a class to a step of this depth. */
static void add_class(const choosing *c, uint32_t class, uint32_t rung, uint32_t *n_drafts, double *n_right) {
  for (uint32_t most = 1; most < WEFT_DEPTH_RUNGS; most++) {
    uint32_t n = c->crowd->at[class][most], depth = weft_depth_ladder[most < rung ? most : rung];
    if (n == 0 || (most < rung && c->limits->alike)) continue;
    *n_drafts += n * depth;
    *n_right += n * expect_right(c->crowd->rate_sum[class][most] / n, depth);
  }
}

/* Whether the account has the time of a step at a depth of which none was measured: at worst a draft costs as much as
 * another sequence. */
static bool can_pay(const choosing *c, uint32_t n_drafts) {
  return c->plain_us * n_drafts / c->crowd->n <= c->depth->credit_us;
}

/* False: there is no room for them. */
static bool weigh_option(const choosing *c, uint32_t rung, uint32_t n_drafts, double n_right, option *out) {
  const weft_depth_limits *l = c->limits;
  weft_cost_shape shape = with_drafts(c->shape, n_drafts);
  if (n_drafts > l->draft_rows || n_drafts > l->rows) return false;
  if (l->budget_us > 0.0 && weft_cost_step(c->model, &shape) > l->budget_us) return false;
  out->us = time_of(c->depth, c->model, c->load, rung, &shape, l->ahead) + l->wait_us;
  out->worth = (c->crowd->n + n_right) / out->us;
  return c->depth->cell[c->load][rung].n > 0 || can_pay(c, n_drafts);
}

/* Whether the requests below a class are clearly worse than those from it on. Rates that differ by chance must not part
 * requests: the time of a step is known best where all of them have runs. */
static bool parts_requests(const choosing *c, uint32_t class, uint32_t least, double n, double class_sum) {
  uint32_t lower = class;
  while (lower > least && class_size(c->crowd, lower - 1) == 0) lower--;
  return lower == least || class_sum / n - (lower - 1) >= APART;
}

/* The requests of one depth: the best classes, but all from `least` on where that is about as good. worth 0: there is
 * no room for any. */
static option find_requests(const choosing *c, uint32_t rung, uint32_t least) {
  option best = {0};
  uint32_t n_drafts = 0;
  double n_right = 0.0, n = 0.0, class_sum = 0.0;
  for (uint32_t class = WEFT_DEPTH_RATES; class -- > least;) {
    option is = {.rung = (uint8_t)rung, .least_rate = (uint8_t) class};
    uint32_t size = class_size(c->crowd, class);
    if (size == 0) continue;
    n += size;
    class_sum += (double)size * class;
    add_class(c, class, rung, &n_drafts, &n_right);
    if (n_drafts == 0 || !parts_requests(c, class, least, n, class_sum)) continue;
    if (!weigh_option(c, rung, n_drafts, n_right, &is)) break;
    if (is.worth * TOGETHER > best.worth) best = is;
  }
  return best;
}

/* The best depth. */
static option find_best(const choosing *c) {
  option best = {0};
  double best_worth = 0.0;
  for (uint32_t rung = 1; rung < WEFT_DEPTH_RUNGS; rung++) {
    option is = find_requests(c, rung, 1);
    double worth = rung == c->depth->rung ? STAY * is.worth : is.worth;
    if (worth <= best_worth) continue;
    best = is;
    best_worth = worth;
  }
  return best;
}

/* Now and then the next depth above or below is taken for one step: its time may not be known, or not any more. */
static option look_aside(weft_depth *d, const choosing *c, const option *best) {
  uint32_t up = d->looks_up && best->rung + 1 < WEFT_DEPTH_RUNGS, rung = up ? best->rung + 1u : best->rung - 1u;
  bool known = d->cell[c->load][rung].n > 0;
  if (d->n_looked < (known ? LOOK_AGAIN : LOOK)) return *best;
  d->n_looked = 0;
  d->looks_up = !d->looks_up;
  option is = rung > 0 ? find_requests(c, rung, best->least_rate) : *best;
  return is.worth > 0.0 ? is : *best;
}

static void set_choice(weft_depth *d, const option *is, bool trial) {
  d->rung = is->rung;
  d->least_rate = is->least_rate;
  d->trial = trial;
}

/* Something that does not seem to gain: drafts about which only runs tell, else a depth whose time is not known and
 * which may be not far from gaining. */
static void choose_trial(weft_depth *d, const choosing *c, const option *likely) {
  option is = *likely;
  if (d->trial_left == 0 && d->n_plain < d->pause) return;
  bool unknown =
      likely->rung > 0 && d->cell[c->load][likely->rung].n == 0 && likely->worth * c->plain_us >= NEAR * c->crowd->n;
  if (!unknown && c->crowd->n_unjudged == 0) return;
  if (!unknown) is = find_requests(c, 1, 0);
  if (is.worth == 0.0 || is.us - c->plain_us > d->credit_us) return;
  set_choice(d, &is, true);
}

static void choose_gain(weft_depth *d, const choosing *c) {
  double bar = 1.0 + (d->after_run ? WEFT_DEPTH_GO_ON : WEFT_DEPTH_BEGIN) / 100.0;
  option none = {0}, likely = find_best(c);
  if (likely.worth * c->plain_us >= bar * c->crowd->n) {
    option is = look_aside(d, c, &likely);
    set_choice(d, &is, false);
    return;
  }
  set_choice(d, &none, false);
  choose_trial(d, c, &likely);
}

void weft_depth_choose(weft_depth *d, const weft_cost_model *model, const weft_depth_crowd *crowd,
                       const weft_cost_shape *shape, const weft_depth_limits *limits) {
  choosing c = {d, model, crowd, shape, limits, load_of(crowd->n), 0.0};
  const option none = {0};
  bool known = crowd->n > 0 && d->cell[c.load][0].n >= WEFT_DEPTH_KNOWN;
  if (known) c.plain_us = time_of(d, model, c.load, 0, shape, false);
  if (known && !d->spent && d->n_to_renew == 0)
    choose_gain(d, &c);
  else
    set_choice(d, &none, false);
}

/* ---- what came of it ---------------------------------------------------------------------------- */

/* The time in which steps without drafts would have given the same tokens. */
static double plain_time(const weft_depth *d, const weft_cost_model *model, const weft_depth_step *s) {
  uint32_t load = load_of(s->n_sequences);
  uint64_t keys = s->n_sequences > 0 ? s->plain.n_products / (s->plain.n_rows > 0 ? s->plain.n_rows : 1) : 0;
  const weft_cost_shape decode = {.n_rows = s->n_sequences,
                                  .n_outputs = s->n_sequences,
                                  .n_reads = keys * s->n_sequences,
                                  .n_products = keys * s->n_sequences};
  double token_us = time_of(d, model, load, 0, s->pure ? &s->plain : &decode, false) / s->n_sequences;
  double step_us = s->us * weft_cost_step(model, &s->plain) / weft_cost_step(model, &s->shape);
  return (s->pure ? token_us * s->n_sequences : step_us) + s->n_gained * token_us;
}

static void keep_account(weft_depth *d, const weft_cost_model *model, const weft_depth_step *s) {
  d->credit_us += ALLOWANCE * s->us;
  const weft_depth_cell *plain = &d->cell[load_of(s->n_sequences)][0];
  bool known = plain->n > 0;
  d->credit_max_us = plain->us * CREDIT_STEPS > WEFT_DEPTH_CREDIT_US ? plain->us * CREDIT_STEPS : WEFT_DEPTH_CREDIT_US;
  if (known && (s->n_runs > 0 || s->waited)) {
    double us = s->us + s->wait_us, plain_us = plain_time(d, model, s), most = STALL * (plain_us + s->wait_us);
    d->credit_us += plain_us - (us > most && !s->is_new ? most : us);
  }
  if (d->credit_us > d->credit_max_us) d->credit_us = d->credit_max_us;
  if (d->credit_us < 0.0) d->spent = true;
  if (d->credit_us > d->credit_max_us / 4.0) d->spent = false;
}

/* Trials and pauses: a run that is no trial says that drafts gain. */
static void count_steps(weft_depth *d, const weft_depth_step *s) {
  if (s->n_runs == 0) {
    d->n_plain += 1;
    if (d->n_to_renew > 0) d->n_to_renew -= 1;
    return;
  }
  d->n_plain = 0;
  d->n_looked += !s->trial;
  if (++d->n_unrenewed == WEFT_DEPTH_RENEW) {
    d->n_unrenewed = 0;
    d->n_to_renew = WEFT_DEPTH_KNOWN + 1; /* the first one was not planned ahead */
  }
  if (!s->trial) {
    d->pause = WEFT_DEPTH_PAUSE;
    d->trial_left = 0;
  } else if (d->trial_left == 0) {
    d->trial_left = WEFT_DEPTH_TRIAL - 1;
  } else if (--d->trial_left == 0 && d->pause < WEFT_DEPTH_PAUSE_MAX) {
    d->pause *= 2;
  }
}

void weft_depth_landed(weft_depth *d, const weft_cost_model *model, const weft_depth_step *s) {
  if (!(s->us > 0.0) || s->n_sequences == 0) return;
  bool has_runs = s->n_runs > 0, steady = has_runs || (!d->after_run && !s->waited);
  keep_account(d, model, s);
  if (s->pure && steady) learn_time(d, model, s, weft_depth_rung(s->depth));
  count_steps(d, s);
  d->after_run = has_runs;
}
