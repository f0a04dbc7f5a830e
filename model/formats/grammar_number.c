/* SPDX-License-Identifier: MIT */
/* Numbers of a schema that are more than bounded by whole numbers: bounds with fractions, multiples, no whole ones.
 *
 * Law: a number has at most 15 digits in all, so two that are written differently differ for every reader that keeps 64
 * bits, and bounds hold for what is read as for what is written. Only where bounds leave none of these, a number is
 * whole and has as many digits as they need. Bounds and multiples are those of decimal numbers, and hold exactly for
 * what is written.
 *
 * How. A number is read digit by digit, and what is known of it so far is a state: how it compares with each bound,
 * what is left of it by division. The states that are reached are found from the first one on. */
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
  WHOLE_MAX = 309,  /* digits before the point that a floating point number of 64 bits has at most */
  DIGITS_TINY = 40, /* behind which powers of ten say nothing more of a rest by MODULUS_MAX */
  TIMES_MAX = 64    /* multiples that are written one by one, of each sign */
};

/* A bound's absolute value as digits before and behind the point. */
typedef struct number_bound {
  bool used, open, negative;
  uint32_t n_whole, n_fraction;
  uint8_t digit[WHOLE_MAX + DIGITS_MAX + 2];
} number_bound;

/* A multiple of p / 10^k: p and k. */
typedef struct multiple {
  uint32_t p, k;
} multiple;

enum { BEFORE_DIGITS, IN_WHOLE, AFTER_ZERO, AT_POINT, IN_FRACTION };
enum { IS_EQUAL, IS_LESS, IS_GREATER };

typedef struct number_state {
  uint8_t phase, negative, some, nothing; /* some: of the fraction; nothing: the whole part is 0 */
  uint16_t n_whole, n_fraction;
  uint32_t compare[2]; /* with the low bound, the high one: of absolute values */
  uint32_t rest[NUMBER_MULTIPLES];
} number_state;

typedef struct number_machine {
  grammar_builder *b;
  const json_number_kind *kind;
  number_bound bound[2];
  multiple multiple[NUMBER_MULTIPLES];
  uint32_t fraction_max; /* digits behind the point */
  number_state *state;
  builder_slots slots;
  uint32_t n_states, capacity, digits_max;
} number_machine;

/* Digits behind those that can be written are left out: the numbers that can be written lie on the same side of what is
 * left, where that is out if it lies nearer to zero than they may. */
static void read_bound(const decimal *value, bool low, bool open, uint32_t fraction_max, number_bound *out) {
  int64_t n_whole = value->top > 0 ? value->top : 1, first = value->top > 0 ? 0 : value->top - 1;
  *out = (number_bound){.used = true, .open = open, .negative = value->negative, .n_whole = (uint32_t)n_whole};
  out->n_fraction = fraction_max;
  for (int64_t i = 0; i < n_whole + (int64_t)fraction_max; i++) {
    out->digit[i] = (uint8_t)decimal_digit(value, first + i);
  }
  bool cut = first + n_whole + (int64_t)fraction_max < (int64_t)value->n;
  if (cut) out->open = low != value->negative;
}

/* The bounds as far as they say something of numbers of the most digits, which are more where few would leave none.
 * false: none fits. */
static bool read_bounds(number_machine *m) {
  const json_bounds *d = &m->kind->bounds;
  const decimal *far = d->has_low && !d->low.negative ? &d->low : d->has_high && d->high.negative ? &d->high : NULL;
  if (far != NULL && far->top > m->digits_max) {
    m->fraction_max = 0;
    m->digits_max = far->top < WHOLE_MAX ? (uint32_t)far->top + 1 : WHOLE_MAX;
  }
  /* a bound on the far side of zero, or beyond all that can be written */
  bool low = d->has_low && !(d->low.negative && d->low.top > m->digits_max);
  bool high = d->has_high && !(!d->high.negative && d->high.top > m->digits_max);
  if ((low && d->low.top > WHOLE_MAX) || (high && d->high.top > WHOLE_MAX)) return false;
  if (low) read_bound(&d->low, true, d->low_open, m->fraction_max, &m->bound[0]);
  if (high) read_bound(&d->high, false, d->high_open, m->fraction_max, &m->bound[1]);
  return true;
}

/* p / 10^k with the least k; false: it has too many digits. */
static bool read_multiple(const decimal *value, multiple *out) {
  int64_t behind = (int64_t)value->n - value->top, p = 0;
  int64_t digits = behind > 0 ? (int64_t)value->n : value->top;
  if (digits > 4) return false;
  for (int64_t i = 0; i < digits; i++) p = p * 10 + decimal_digit(value, i);
  if (p < 1 || p > MODULUS_MAX) return false;
  *out = (multiple){(uint32_t)p, behind < 0 ? 0 : behind > DIGITS_TINY ? DIGITS_TINY : (uint32_t)behind};
  return true;
}

/* ---- one digit more ---- */

static void compare_digit(const number_machine *m, number_state *s, uint32_t which, uint32_t at, uint32_t digit) {
  const number_bound *d = &m->bound[which];
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
static bool is_within(const number_bound *d, uint32_t compare, bool negative, bool low) {
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
    const number_bound *d = &m->bound[i];
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

static uint64_t hash_number(const void *self, uint32_t i) {
  return hash_state(&((const number_machine *)self)->state[i]);
}

static uint32_t number_state_of(number_machine *m, const number_state *s) {
  if (!builder_step(m->b, 4) || !builder_slots_grow(m->b, &m->slots, 1024, m->n_states, 0, hash_number, m)) return 0;
  uint64_t at = hash_state(s);
  for (;; at++) {
    uint32_t found = m->slots.slot[at % m->slots.n];
    if (found == 0) break;
    if (memcmp(&m->state[found - 1], s, sizeof *s) == 0) return found - 1;
  }
  if (!builder_grow(m->b, (void **)&m->state, m->n_states, &m->capacity, sizeof *m->state)) return 0;
  m->state[m->n_states] = *s;
  m->slots.slot[at % m->slots.n] = m->n_states + 1;
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

/* A decimal times a small number in plain digits; false: it has too many. */
static bool write_times(const decimal *of, uint32_t times, weft_text *out) {
  uint8_t digit[DIGITS_MAX + 4];
  int64_t n = of->n, top = of->top;
  uint32_t carry = 0, more = 4; /* room for the digits that a product has more */
  weft_text_clear(out);
  if (n > DIGITS_MAX || top > WHOLE_MAX || top < -DIGITS_MAX) return false;
  for (int64_t i = n - 1 + more; i >= 0; i--) {
    uint32_t product = (i < more ? 0 : decimal_digit(of, i - more)) * times + carry;
    digit[i] = (uint8_t)(product % 10);
    carry = product / 10;
  }
  n += more;
  top += more;
  int64_t first = 0;
  while (n > 0 && digit[n - 1] == 0) n -= 1;
  while (first < n && digit[first] == 0) first += 1;
  if (n - first > DIGITS_MAX || (n > top && n - top > DIGITS_MAX)) return false;
  for (int64_t i = first < top ? first : top - 1; i < top || i < n; i++) {
    if (i == top) weft_text_append(out, ".", 1);
    char c = (char)('0' + (i < 0 || i >= n ? 0 : digit[i]));
    weft_text_append(out, &c, 1);
  }
  return weft_text_status(out) == WEFT_OK;
}

bool json_bounds_hold(const json_bounds *d, const decimal *value) {
  int low = d->has_low ? decimal_compare(value, &d->low) : 1,
      high = d->has_high ? decimal_compare(value, &d->high) : -1;
  return (low > 0 || (low == 0 && !d->low_open)) && (high < 0 || (high == 0 && !d->high_open));
}

/* Whether the number, as text, lies within the bounds and is of the kind. */
static bool fits_kind(const json_number_kind *kind, const weft_text *text) {
  decimal value;
  decimal_read(text->bytes, text->n, &value);
  bool whole = decimal_is_whole(&value);
  return json_bounds_hold(&kind->bounds, &value) && (whole || !kind->whole) && (!whole || !kind->fraction);
}

/* Multiples of a number of many digits, one by one; of a number that is too long for that, 0 alone. */
static bool add_times(grammar_builder *b, uint32_t from, uint32_t to, const json_number_kind *kind) {
  weft_text plain = {0}, text = {0};
  bool any = false;
  for (uint32_t times = 0; times <= TIMES_MAX && builder_ok(b) && kind->n_multiples == 1; times++) {
    if (times > 0 && !write_times(&kind->multiple[0], times, &plain)) continue;
    if (times == 0) weft_text_puts(&plain, "0");
    for (uint32_t minus = 0; minus < (times == 0 ? 1 : 2); minus++) {
      weft_text_clear(&text);
      weft_text_printf(&text, "%s%.*s", minus == 0 ? "" : "-", (int)plain.n, plain.bytes);
      if (weft_text_status(&text) != WEFT_OK) builder_fail(b, WEFT_E_NO_MEMORY, "no memory for the grammar");
      if (!builder_ok(b) || !fits_kind(kind, &text)) continue;
      builder_empty(b, builder_text(b, from, text.bytes, text.n), to);
      any = true;
    }
  }
  if (plain.refused) builder_fail(b, WEFT_E_NO_MEMORY, "no memory for the grammar");
  weft_text_free(&plain);
  weft_text_free(&text);
  return any;
}

uint32_t json_number_of(grammar_builder *b, uint32_t from, const json_number_kind *kind) {
  number_machine m = {.b = b, .kind = kind, .fraction_max = kind->whole ? 0 : DIGITS_MAX, .digits_max = DIGITS_MAX};
  automaton a = {.everything = GRAMMAR_NONE};
  uint32_t to = builder_state(b);
  number_state start = {0};
  for (uint32_t i = 0; i < kind->n_multiples; i++) {
    if (!read_multiple(&kind->multiple[i], &m.multiple[i])) return add_times(b, from, to, kind) ? to : GRAMMAR_NONE;
    if (m.multiple[i].k < m.fraction_max) m.fraction_max = m.multiple[i].k;
    if (m.multiple[i].p > MODULUS_LONG) m.digits_max = DIGITS_LONG;
  }
  if (!read_bounds(&m)) return GRAMMAR_NONE;
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
  weft_free(m.slots.slot);
  return any ? to : GRAMMAR_NONE;
}
