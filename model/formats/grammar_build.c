/* SPDX-License-Identifier: MIT */
/* Rules as automata while a grammar is read. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "model/formats/grammar_internal.h"
#include "model/text/calls.h"

void builder_close(grammar_builder *b) {
  weft_free(b->edge);
  weft_free(b->rule);
}

void builder_fail(grammar_builder *b, weft_status status, const char *format, ...) {
  va_list args;
  char line[400];
  if (b->status != WEFT_OK) return;
  va_start(args, format);
  (void)vsnprintf(line, sizeof line, format, args);
  va_end(args);
  b->status = weft_fail(b->error, status, "%s", line);
}

void builder_take_back(grammar_builder *b, builder_mark mark) {
  b->n_states = mark.n_states;
  b->n_edges = mark.n_edges;
  b->n_rules = mark.n_rules;
  for (uint32_t i = 0; i < sizeof b->shared / sizeof *b->shared; i++) {
    if (b->shared[i] != GRAMMAR_NONE && b->shared[i] >= mark.n_rules) b->shared[i] = GRAMMAR_NONE;
  }
  b->status = WEFT_OK;
  b->why[0] = 0;
}

bool builder_step(grammar_builder *b, uint64_t n) {
  if (!builder_ok(b)) return false;
  b->n_steps += n;
  if (!grammar_spend(b->work, n)) builder_fail(b, WEFT_CANCELLED, "nobody wants the grammar any more");
  if (b->n_steps > GRAMMAR_STEPS_MAX)
    builder_fail(b, WEFT_E_TOO_LARGE, "the grammar is too large: compiling it takes more than %d steps",
                 GRAMMAR_STEPS_MAX);
  return builder_ok(b);
}

bool builder_grow(grammar_builder *b, void **list, uint32_t n, uint32_t *capacity, size_t size) {
  void *memory = weft_grow(*list, n, capacity, 256, size);
  if (memory == NULL) {
    builder_fail(b, WEFT_E_NO_MEMORY, "no memory for the grammar");
    return false;
  }
  *list = memory;
  return true;
}

bool builder_slots_grow(grammar_builder *b, builder_slots *slots, uint32_t first, uint32_t n, uint32_t base,
                        uint64_t (*hash)(const void *self, uint32_t i), const void *self) {
  if (slots->n > 2 * n + 2) return true;
  uint32_t n_slots = slots->n == 0 ? first : 2 * slots->n;
  uint32_t *slot = weft_alloc(n_slots, sizeof *slot);
  if (slot == NULL) {
    builder_fail(b, WEFT_E_NO_MEMORY, "no memory for the grammar");
    return false;
  }
  for (uint32_t i = 0; i < n; i++) {
    uint64_t at = hash(self, i);
    while (slot[at % n_slots] != 0) at += 1;
    slot[at % n_slots] = base + i + 1;
  }
  weft_free(slots->slot);
  *slots = (builder_slots){slot, n_slots};
  return true;
}

uint32_t builder_state(grammar_builder *b) {
  if (!builder_step(b, 1)) return 0;
  if (b->n_states >= GRAMMAR_STATES_MAX) {
    builder_fail(b, WEFT_E_TOO_LARGE, "the grammar is too large: it needs more than %d states", GRAMMAR_STATES_MAX);
    return 0;
  }
  return b->n_states++;
}

uint32_t builder_rule_open(grammar_builder *b) {
  if (!builder_step(b, 1) || !builder_grow(b, (void **)&b->rule, b->n_rules, &b->rules_capacity, sizeof *b->rule))
    return 0;
  if (b->n_rules >= GRAMMAR_RULES_MAX) {
    builder_fail(b, WEFT_E_TOO_LARGE, "the grammar is too large: it needs more than %d rules", GRAMMAR_RULES_MAX);
    return 0;
  }
  uint32_t first = builder_state(b);
  b->rule[b->n_rules] = (builder_rule){.first = first, .last = builder_state(b), .of = GRAMMAR_NONE};
  return b->n_rules++;
}

uint32_t builder_rule_repeat(grammar_builder *b, uint32_t rule, uint32_t min, uint32_t max) {
  uint32_t made = builder_rule_open(b);
  if (!builder_ok(b)) return 0;
  b->rule[made].of = rule;
  b->rule[made].min = min;
  b->rule[made].max = max;
  return made;
}

static void add_edge(grammar_builder *b, grammar_edge edge) {
  if (!builder_step(b, 1) || !builder_grow(b, (void **)&b->edge, b->n_edges, &b->edges_capacity, sizeof *b->edge))
    return;
  b->edge[b->n_edges++] = edge;
}

void builder_empty(grammar_builder *b, uint32_t from, uint32_t to) {
  add_edge(b, (grammar_edge){.from = from, .to = to, .kind = EDGE_EMPTY});
}

void builder_bytes(grammar_builder *b, uint32_t from, uint32_t to, uint8_t low, uint8_t high) {
  add_edge(b, (grammar_edge){.from = from, .to = to, .kind = EDGE_BYTES, .low = low, .high = high});
}

void builder_call(grammar_builder *b, uint32_t from, uint32_t to, uint32_t rule) {
  add_edge(b, (grammar_edge){.from = from, .to = to, .kind = EDGE_CALL, .rule = rule});
}

uint32_t builder_text(grammar_builder *b, uint32_t from, const char *text, size_t n) {
  for (size_t i = 0; i < n && builder_ok(b); i++) {
    uint32_t to = builder_state(b);
    builder_bytes(b, from, to, (uint8_t)text[i], (uint8_t)text[i]);
    from = to;
  }
  return from;
}

uint32_t builder_marker(grammar_builder *b, uint32_t from, const char *marker) {
  static const char inner[] = WEFT_CALL_INNER;
  uint32_t byte = weft_token_trie_marker(b->trie, marker);
  const char *part = byte == 0 ? strstr(marker, inner) : NULL;
  if (part != NULL && weft_token_trie_marker(b->trie, inner) != 0 && strcmp(marker, inner) != 0) {
    from = builder_marker(b, builder_text(b, from, marker, (size_t)(part - marker)), inner);
    return builder_marker(b, from, part + sizeof inner - 1);
  }
  if (byte == 0) return builder_text(b, from, marker, strlen(marker));
  uint32_t to = builder_state(b);
  builder_bytes(b, from, to, (uint8_t)byte, (uint8_t)byte);
  return to;
}

void builder_characters_but(grammar_builder *b, uint32_t from, uint32_t to, const char *sorted) {
  uint32_t low = 0x20;
  for (; *sorted != 0; sorted++) {
    if ((uint8_t)*sorted > low) builder_characters(b, from, to, low, (uint8_t)*sorted - 1u);
    if ((uint8_t)*sorted >= low) low = (uint8_t)*sorted + 1u;
  }
  builder_characters(b, from, to, low, 0x10FFFF);
}

void builder_others(grammar_builder *b, uint32_t from, uint32_t to, const char *sorted) {
  for (const char *at = "\t\n\r"; *at != 0; at++) {
    if (strchr(sorted, *at) == NULL) builder_bytes(b, from, to, (uint8_t)*at, (uint8_t)*at);
  }
  builder_characters_but(b, from, to, sorted);
}

/* As builder_others has it, but for two characters. */
static void add_others(grammar_builder *b, uint32_t from, uint32_t to, uint32_t one, uint32_t two) {
  const uint32_t edges[] = {one < two ? one : two, one < two ? two : one, 0x110000};
  uint32_t low = 0x20;
  for (const char *at = "\t\n\r"; *at != 0; at++) {
    if ((uint32_t)*at != one && (uint32_t)*at != two) builder_bytes(b, from, to, (uint8_t)*at, (uint8_t)*at);
  }
  for (uint32_t i = 0; i < 3; i++) {
    if (edges[i] > low) builder_characters(b, from, to, low, edges[i] - 1);
    if (edges[i] >= low) low = edges[i] + 1;
  }
}

/* After k characters of the marker the state k is reached. After a character that does not fit at most that one counts,
 * since the first one stands in the marker once. A token leads as far as its characters do. */
void builder_text_until(grammar_builder *b, uint32_t from, uint32_t end, const char *marker, uint32_t after) {
  static const char inner[] = WEFT_CALL_INNER;
  const char *part = strstr(marker, inner), *stop = marker + strlen(marker);
  uint32_t byte = weft_token_trie_marker(b->trie, marker), inside = weft_token_trie_marker(b->trie, inner);
  uint32_t first = 0, at = from, before = GRAMMAR_NONE;
  size_t n = weft_utf8_decode(marker, (size_t)(stop - marker), &first);
  uint32_t one = marker + n < stop ? builder_state(b) : from;
  for (const char *c = marker; c < stop && builder_ok(b); c += n) {
    uint32_t character = 0;
    n = weft_utf8_decode(c, (size_t)(stop - c), &character);
    uint32_t next = c == marker ? one : c + n == stop ? after : builder_state(b);
    if (next != GRAMMAR_NONE) builder_characters(b, at, next, character, character);
    if (c > marker) builder_characters(b, at, one, first, first);
    add_others(b, at, from, first, character);
    if (end != GRAMMAR_NONE) builder_empty(b, at, end);
    if (byte != 0 && after != GRAMMAR_NONE) builder_bytes(b, at, after, (uint8_t)byte, (uint8_t)byte);
    if (part == c) before = at;
    if (part != NULL && part + sizeof inner - 1 == c + n && inside != 0 && next != GRAMMAR_NONE)
      builder_bytes(b, before, next, (uint8_t)inside, (uint8_t)inside);
    at = next;
  }
}

uint32_t builder_count(grammar_builder *b, uint32_t from, uint32_t rule, uint32_t min, uint32_t max) {
  uint32_t to = builder_state(b);
  if (max == 0) {
    builder_empty(b, from, to);
  } else if (min <= 1 && max == 1) {
    builder_call(b, from, to, rule);
    if (min == 0) builder_empty(b, from, to);
  } else if (min <= 1 && max == GRAMMAR_NONE) {
    uint32_t loop = builder_state(b);
    builder_call(b, from, loop, rule);
    builder_call(b, loop, loop, rule);
    builder_empty(b, loop, to);
    if (min == 0) builder_empty(b, from, to);
  } else {
    builder_call(b, from, to, builder_rule_repeat(b, rule, min, max));
  }
  return to;
}

/* ---- characters ---- */

/* Bytes i .. n-1 of all characters between low and high, which are n bytes long. */
static void add_utf8(grammar_builder *b, uint32_t from, uint32_t to, const char *low, const char *high, uint32_t n) {
  uint8_t l = (uint8_t)low[0], h = (uint8_t)high[0];
  static const char least[] = "\x80\x80\x80", most[] = "\xBF\xBF\xBF";
  if (n == 1) {
    builder_bytes(b, from, to, l, h);
    return;
  }
  if (l == h) {
    uint32_t next = builder_state(b);
    builder_bytes(b, from, next, l, h);
    add_utf8(b, next, to, low + 1, high + 1, n - 1);
    return;
  }
  bool whole_low = memcmp(low + 1, least, n - 1) == 0, whole_high = memcmp(high + 1, most, n - 1) == 0;
  if (!whole_low) {
    uint32_t next = builder_state(b);
    builder_bytes(b, from, next, l, l);
    add_utf8(b, next, to, low + 1, most, n - 1);
    l += 1;
  }
  if (!whole_high) {
    uint32_t next = builder_state(b);
    builder_bytes(b, from, next, h, h);
    add_utf8(b, next, to, least, high + 1, n - 1);
    h -= 1;
  }
  if (l > h || !builder_ok(b)) return;
  uint32_t next = builder_state(b);
  builder_bytes(b, from, next, l, h);
  add_utf8(b, next, to, least, most, n - 1);
}

void builder_characters(grammar_builder *b, uint32_t from, uint32_t to, uint32_t low, uint32_t high) {
  static const uint32_t parts[][2] = {{0, 0x7F}, {0x80, 0x7FF}, {0x800, 0xD7FF}, {0xE000, 0xFFFF}, {0x10000, 0x10FFFF}};
  for (uint32_t i = 0; i < sizeof parts / sizeof *parts; i++) {
    uint32_t l = low > parts[i][0] ? low : parts[i][0], h = high < parts[i][1] ? high : parts[i][1];
    char first[4], last[4];
    if (l > h) continue;
    size_t n = weft_utf8_encode(l, first);
    (void)weft_utf8_encode(h, last);
    add_utf8(b, from, to, first, last, (uint32_t)n);
  }
}

/* A character that JSON wants escaped. */
static void add_escaped(grammar_builder *b, uint32_t from, uint32_t to, uint32_t c) {
  static const char plain[] = "\b\f\n\r\t\"\\", letter[] = "bfnrt\"\\";
  char text[8];
  const char *at = c == 0 ? NULL : strchr(plain, (int)c);
  int n =
      at != NULL ? snprintf(text, sizeof text, "\\%c", letter[at - plain]) : snprintf(text, sizeof text, "\\u%04x", c);
  uint32_t end = builder_text(b, from, text, (size_t)n);
  builder_empty(b, end, to);
}

static void add_json_characters(grammar_builder *b, uint32_t from, uint32_t to, uint32_t low, uint32_t high,
                                bool tags) {
  uint32_t at = low;
  while (at <= high && builder_ok(b)) {
    if (at < 0x20 || at == '"' || at == '\\' || (tags && at == '<')) {
      bool usual = at >= 0x20 || high < 0x20 || at == '\t' || at == '\n' || at == '\r';
      if (usual) add_escaped(b, from, to, at);
      at += 1;
      continue;
    }
    uint32_t end = at < '"' ? '"' - 1 : tags && at < '<' ? '<' - 1 : at < '\\' ? '\\' - 1 : 0x10FFFF;
    if (end > high) end = high;
    builder_characters(b, from, to, at, end);
    at = end + 1;
  }
}

void builder_written(grammar_builder *b, uint32_t from, uint32_t to, uint32_t low, uint32_t high,
                     grammar_writing writing) {
  if (writing != WRITING_PLAIN) {
    add_json_characters(b, from, to, low, high, writing == WRITING_TAGS);
  } else if (low < 0x20 && high >= 0x20) {
    for (uint32_t c = low; c < 0x20; c++) {
      if (c == '\t' || c == '\n' || c == '\r') builder_characters(b, from, to, c, c);
    }
    builder_characters(b, from, to, 0x20, high);
  } else {
    builder_characters(b, from, to, low, high);
  }
}
