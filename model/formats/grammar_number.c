/* SPDX-License-Identifier: MIT */
/* Numbers of a schema that are more than bounded by whole numbers: bounds with fractions, multiples, no whole ones.
 *
 * Law: a number has at most 15 digits in all, so two that are written differently differ for every reader that keeps 64
 * bits, and bounds hold for what is read as for what is written. Multiples hold for what is written.
 *
 * How. A number is read digit by digit, and what is known of it so far is a state: how it compares with each bound,
 * what is left of it by division. The states that are reached are found from the first one on. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "model/formats/automaton.h"
#include "model/formats/grammar_json.h"

enum {
  DIGITS_MAX = 15,
  DIGITS_LONG = 7, /* where what is left by division has many values */
  POINT = 10,
  MODULUS_LONG = 100,
  MODULUS_MAX = 1000,
  BOUND_DIGITS = 340,
  TIMES_MAX = 64 /* multiples that are written one by one, of each sign */
};

/* A bound's absolute value as digits before and behind the point. */
typedef struct decimal {
  bool used, open, negative;
  uint32_t n_whole, n_fraction;
  uint8_t digit[BOUND_DIGITS + 24];
} decimal;

/* A multiple of p / 10^k: p and k. */
typedef struct multiple {
  uint32_t p, k;
} multiple;

enum { BEFORE_DIGITS, IN_WHOLE, AFTER_ZERO, AT_POINT, IN_FRACTION };
enum { IS_EQUAL, IS_LESS, IS_GREATER };

typedef struct number_state {
  uint8_t phase, negative, n_whole, n_fraction, some, nothing; /* some: of the fraction; nothing: the whole part is 0 */
  uint8_t compare[2]; /* with the low bound, the high one: of absolute values */
  uint32_t rest[NUMBER_MULTIPLES];
} number_state;

typedef struct number_machine {
  grammar_builder *b;
  const json_number_kind *kind;
  decimal bound[2];
  multiple multiple[NUMBER_MULTIPLES];
  uint32_t fraction_max; /* digits behind the point */
  number_state *state;
  uint32_t *slot, n_states, n_slots, capacity, digits_max;
} number_machine;

/* The shortest digits that read as the number. */
static void read_decimal(double value, bool open, decimal *out) {
  char text[64];
  for (int digits = 1; digits <= 17; digits++) {
    (void)snprintf(text, sizeof text, "%.*e", digits - 1, fabs(value));
    if (strtod(text, NULL) == fabs(value)) break;
  }
  int exponent = (int)strtol(strchr(text, 'e') + 1, NULL, 10);
  uint8_t digit[24];
  uint32_t n = 0;
  for (const char *p = text; *p != 'e'; p++) {
    if (*p != '.') digit[n++] = (uint8_t)(*p - '0');
  }
  *out = (decimal){.used = true, .open = open, .negative = value < 0};
  for (int i = exponent < 0 ? exponent + 1 : 0; i <= exponent; i++)
    out->digit[out->n_whole++] = (uint32_t)i < n ? digit[i] : 0;
  if (exponent < 0) out->digit[out->n_whole++] = 0;
  for (int i = -1; i > exponent && out->n_fraction < BOUND_DIGITS / 2; i--)
    out->digit[out->n_whole + out->n_fraction++] = 0;
  for (int i = exponent < 0 ? 0 : exponent + 1; i < (int)n; i++)
    out->digit[out->n_whole + out->n_fraction++] = digit[i];
}

/* p / 10^k with the least k; false: it has too many digits. */
static bool read_multiple(double value, multiple *out) {
  for (uint32_t k = 0; k <= DIGITS_MAX; k++) {
    double p = round(value * pow(10, k));
    char text[64];
    if (p < 1) continue;
    if (p > MODULUS_MAX) return false;
    (void)snprintf(text, sizeof text, "%.0fe-%u", p, k);
    if (strtod(text, NULL) != value) continue;
    *out = (multiple){(uint32_t)p, k};
    return true;
  }
  return false;
}

/* ---- one digit more ---- */

static void compare_digit(const number_machine *m, number_state *s, uint32_t which, uint32_t at, uint32_t digit) {
  const decimal *d = &m->bound[which];
  uint32_t n = d->n_whole + d->n_fraction, own = at < n ? d->digit[at] : 0;
  if (s->compare[which] == IS_EQUAL && digit != own) s->compare[which] = digit < own ? IS_LESS : IS_GREATER;
}

/* Where the whole part ends, its length decides before its digits do. */
static void end_whole(const number_machine *m, number_state *s) {
  for (uint32_t i = 0; i < 2; i++) {
    if (!m->bound[i].used || s->n_whole == m->bound[i].n_whole) continue;
    s->compare[i] = s->n_whole < m->bound[i].n_whole ? IS_LESS : IS_GREATER;
  }
}

/* The state after a digit, or after POINT; false: none. */
static bool follow_symbol(const number_machine *m, number_state *s, uint32_t symbol) {
  if (symbol == POINT) {
    if ((s->phase != IN_WHOLE && s->phase != AFTER_ZERO) || m->fraction_max == 0 || s->n_whole >= m->digits_max)
      return false;
    end_whole(m, s);
    s->phase = AT_POINT;
    return true;
  }
  bool behind = s->phase == AT_POINT || s->phase == IN_FRACTION;
  if (s->phase == AFTER_ZERO || s->n_whole + s->n_fraction >= m->digits_max) return false;
  if (behind && s->n_fraction >= m->fraction_max) return false;
  for (uint32_t i = 0; i < 2; i++) {
    if (m->bound[i].used) {
      compare_digit(m, s, i, behind ? m->bound[i].n_whole + s->n_fraction : s->n_whole, symbol);
    }
  }
  for (uint32_t i = 0; i < m->kind->n_multiples; i++) {
    s->rest[i] = (uint32_t)(((uint64_t)s->rest[i] * 10 + symbol) % m->multiple[i].p);
  }
  if (behind) {
    s->n_fraction += 1;
    s->phase = IN_FRACTION;
    s->some = s->some || symbol != 0;
  } else {
    s->nothing = s->phase == BEFORE_DIGITS && symbol == 0;
    s->phase = s->nothing ? AFTER_ZERO : IN_WHOLE;
    s->n_whole += 1;
  }
  return true;
}

/* Whether the number, its sign with it, lies on the right side of a bound. */
static bool is_within(const decimal *d, uint32_t compare, bool negative, bool low) {
  if (!d->used) return true;
  bool equal = compare == IS_EQUAL && negative == d->negative;
  if (equal) return !d->open;
  if (negative != d->negative) return negative != low;
  bool greater = (compare == IS_GREATER) != negative;
  return greater == low;
}

/* Whether the number may end in this state. */
static bool may_end(const number_machine *m, number_state s) {
  if (s.phase == BEFORE_DIGITS || s.phase == AT_POINT) return false;
  if (s.phase != IN_FRACTION) end_whole(m, &s);
  for (uint32_t i = 0; i < 2; i++) { /* digits of the bound that were not met */
    const decimal *d = &m->bound[i];
    uint32_t at = d->n_whole + s.n_fraction;
    for (; s.compare[i] == IS_EQUAL && d->used && at < d->n_whole + d->n_fraction; at++) {
      if (d->digit[at] != 0) s.compare[i] = IS_LESS;
    }
  }
  if (s.negative && s.nothing && !s.some) return false; /* no -0 */
  if (!is_within(&m->bound[0], s.compare[0], s.negative, true)) return false;
  if (!is_within(&m->bound[1], s.compare[1], s.negative, false)) return false;
  if (m->kind->fraction && !s.some) return false;
  for (uint32_t i = 0; i < m->kind->n_multiples; i++) {
    uint32_t rest = s.rest[i], p = m->multiple[i].p;
    for (uint32_t k = s.n_fraction; k < m->multiple[i].k; k++) rest = (uint32_t)((uint64_t)rest * 10 % p);
    if (rest != 0) return false;
  }
  return true;
}

/* ---- all of them ---- */

static uint64_t hash_state(const number_state *s) {
  uint64_t words[sizeof *s / 8], hash = 1;
  memcpy(words, s, sizeof words);
  for (uint32_t i = 0; i < sizeof words / sizeof *words; i++) hash = weft_mix64(hash ^ words[i]);
  return hash;
}

static bool grow_slots(number_machine *m) {
  uint32_t n = m->n_slots == 0 ? 1024 : 2 * m->n_slots;
  if (m->n_slots > 2 * m->n_states + 2) return true;
  uint32_t *slot = weft_alloc(n, sizeof *slot);
  if (slot == NULL) {
    builder_fail(m->b, WEFT_E_NO_MEMORY, "no memory for the grammar");
    return false;
  }
  for (uint32_t i = 0; i < m->n_states; i++) {
    uint64_t at = hash_state(&m->state[i]);
    while (slot[at % n] != 0) at += 1;
    slot[at % n] = i + 1;
  }
  weft_free(m->slot);
  m->slot = slot;
  m->n_slots = n;
  return true;
}

static uint32_t number_state_of(number_machine *m, const number_state *s) {
  if (!builder_step(m->b, 4) || !grow_slots(m)) return 0;
  uint64_t at = hash_state(s);
  for (;; at++) {
    uint32_t found = m->slot[at % m->n_slots];
    if (found == 0) break;
    if (memcmp(&m->state[found - 1], s, sizeof *s) == 0) return found - 1;
  }
  if (!builder_grow(m->b, (void **)&m->state, m->n_states, &m->capacity, sizeof *m->state)) return 0;
  m->state[m->n_states] = *s;
  m->slot[at % m->n_slots] = m->n_states + 1;
  return m->n_states++;
}

static void follow_state(number_machine *m, automaton *a, number_state s, bool negatives) {
  static const char symbols[] = "0123456789.";
  static const uint32_t order[] = {POINT, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9}; /* as characters are sorted */
  if (negatives) {
    number_state minus = s;
    minus.negative = true;
    automaton_add_edge(m->b, a, '-', '-', number_state_of(m, &minus));
  }
  for (uint32_t i = 0; i < 11 && builder_ok(m->b); i++) {
    number_state next = s;
    if (!follow_symbol(m, &next, order[i])) continue;
    uint32_t to = number_state_of(m, &next), c = (uint8_t)symbols[order[i]];
    if (builder_ok(m->b)) automaton_add_edge(m->b, a, c, c, to);
  }
}

/* Multiples of a number of many digits, one by one. */
static bool add_times(grammar_builder *b, uint32_t from, uint32_t to, const json_number_kind *kind) {
  const json_bounds *d = &kind->bounds;
  double of = kind->multiple[0];
  bool any = false;
  for (int times = -TIMES_MAX; times <= TIMES_MAX && builder_ok(b) && kind->n_multiples == 1; times++) {
    double value = times * of;
    char text[64];
    (void)snprintf(text, sizeof text, "%.15g", value == 0 ? 0 : value);
    bool in = value > d->low || (value == d->low && !d->low_open);
    in = in && (value < d->high || (value == d->high && !d->high_open));
    in = in && (!kind->whole || value == floor(value)) && (!kind->fraction || value != floor(value));
    if (!in || strchr(text, 'e') != NULL || strtod(text, NULL) != value || value / of != times) continue;
    builder_empty(b, builder_text(b, from, text, strlen(text)), to);
    any = true;
  }
  return any;
}

uint32_t json_number_of(grammar_builder *b, uint32_t from, const json_number_kind *kind) {
  number_machine m = {.b = b, .kind = kind, .fraction_max = kind->whole ? 0 : DIGITS_MAX, .digits_max = DIGITS_MAX};
  automaton a = {.everything = GRAMMAR_NONE};
  uint32_t to = builder_state(b);
  number_state start = {0};
  if (kind->bounds.low > -INFINITY) read_decimal(kind->bounds.low, kind->bounds.low_open, &m.bound[0]);
  if (kind->bounds.high < INFINITY) read_decimal(kind->bounds.high, kind->bounds.high_open, &m.bound[1]);
  for (uint32_t i = 0; i < kind->n_multiples; i++) {
    if (!read_multiple(kind->multiple[i], &m.multiple[i])) return add_times(b, from, to, kind) ? to : GRAMMAR_NONE;
    if (m.multiple[i].k < m.fraction_max) m.fraction_max = m.multiple[i].k;
    if (m.multiple[i].p > MODULUS_LONG) m.digits_max = DIGITS_LONG;
  }
  (void)number_state_of(&m, &start);
  for (uint32_t i = 0; i < m.n_states && builder_ok(b); i++) {
    number_state s = m.state[i];
    if (!automaton_begin_state(b, &a, may_end(&m, s))) break;
    follow_state(&m, &a, s, i == 0);
  }
  automaton_finish(b, &a);
  bool any = !automaton_is_empty(&a);
  automaton_emit(b, &a, WRITING_PLAIN, from, to);
  automaton_close(&a);
  weft_free(m.state);
  weft_free(m.slot);
  return any ? to : GRAMMAR_NONE;
}
