/* SPDX-License-Identifier: MIT */
#include "api/stops.h"

#include <string.h>

#include "base/memory.h"

_Static_assert(WEFT_STOPS_BYTES_MAX < UINT16_MAX, "a state and a length fit 16 bits");

static weft_status check_strings(const char *const *list, uint32_t n, size_t *n_bytes, weft_error *error) {
  *n_bytes = 0;
  if (n > WEFT_STOPS_MAX) {
    return weft_fail(error, WEFT_E_INVALID, "%u stop strings; at most %d are allowed", n, WEFT_STOPS_MAX);
  }
  for (uint32_t i = 0; i < n; i++) {
    size_t length = list == NULL || list[i] == NULL ? 0 : strlen(list[i]);
    if (length == 0 || length > WEFT_STOP_BYTES_MAX) {
      return weft_fail(error, WEFT_E_INVALID, "stop string %u has %zu bytes; it must have 1 to %d", i, length,
                       WEFT_STOP_BYTES_MAX);
    }
    *n_bytes += length;
  }
  if (*n_bytes <= WEFT_STOPS_BYTES_MAX) return WEFT_OK;
  return weft_fail(error, WEFT_E_INVALID, "the stop strings have %zu bytes together; at most %d are allowed", *n_bytes,
                   WEFT_STOPS_BYTES_MAX);
}

static void number_classes(weft_stops *stops, const char *const *list) {
  stops->n_classes = 1;
  for (uint32_t i = 0; i < stops->n; i++) {
    for (const char *c = list[i]; *c != 0; c++) {
      uint8_t *number = &stops->class_of[(uint8_t)*c];
      if (*number == 0) *number = (uint8_t)stops->n_classes++;
    }
  }
}

static uint16_t *transition_at(const weft_stops *stops, uint32_t state, uint32_t number) {
  return &stops->next[(size_t)state * stops->n_classes + number];
}

/* The strings as a tree: no edge of it leads to the root, so 0 says that there is none. */
static void plant_strings(weft_stops *stops, const char *const *list) {
  stops->n_states = 1;
  for (uint32_t i = 0; i < stops->n; i++) {
    uint32_t state = 0;
    for (const char *c = list[i]; *c != 0; c++) {
      uint16_t *to = transition_at(stops, state, stops->class_of[(uint8_t)*c]);
      if (*to == 0) {
        *to = (uint16_t)stops->n_states++;
        stops->held[*to] = (uint16_t)(stops->held[state] + 1);
      }
      state = *to;
    }
    stops->found[state] = stops->held[state];
  }
}

/* Writes out the transitions of all states, the shorter beginnings first. rest[state]: the longest other state that
 * the text of a state ends with, whose transitions hold where the state has no edge of its own. queue: [n_states]. */
static void fill_transitions(weft_stops *stops, uint16_t *rest, uint16_t *queue) {
  uint32_t n_queued = 1;
  queue[0] = 0;
  for (uint32_t at = 0; at < n_queued; at++) {
    uint32_t state = queue[at];
    for (uint32_t number = 0; number < stops->n_classes; number++) {
      uint16_t *to = transition_at(stops, state, number);
      uint16_t otherwise = state == 0 ? 0 : *transition_at(stops, rest[state], number);
      if (*to == 0) {
        *to = otherwise;
        continue;
      }
      rest[*to] = otherwise;
      if (stops->found[*to] == 0) stops->found[*to] = stops->found[otherwise];
      queue[n_queued++] = *to;
    }
  }
}

weft_status weft_stops_open(weft_stops *stops, const char *const *list, uint32_t n, weft_error *error) {
  size_t n_bytes;
  memset(stops, 0, sizeof *stops);
  weft_status status = check_strings(list, n, &n_bytes, error);
  if (status != WEFT_OK || n == 0) return status;
  stops->n = n;
  number_classes(stops, list);
  uint16_t *scratch = weft_alloc(2 * (n_bytes + 1), sizeof *scratch);
  stops->next = weft_alloc((n_bytes + 1) * (stops->n_classes + 2), sizeof *stops->next);
  if (scratch == NULL || stops->next == NULL) {
    weft_free(scratch);
    weft_stops_close(stops);
    return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for the stop strings");
  }
  stops->n_bytes = (n_bytes + 1) * (stops->n_classes + 2) * sizeof *stops->next;
  stops->held = stops->next + (n_bytes + 1) * stops->n_classes;
  stops->found = stops->held + n_bytes + 1;
  plant_strings(stops, list);
  fill_transitions(stops, scratch, scratch + n_bytes + 1);
  weft_free(scratch);
  return WEFT_OK;
}

void weft_stops_close(weft_stops *stops) {
  weft_free(stops->next);
  memset(stops, 0, sizeof *stops);
}

bool weft_stops_read(const weft_stops *stops, weft_stop_search *search, const char *bytes, size_t n, bool thinking,
                     size_t *end) {
  if (stops->n == 0 || n == 0) return false;
  uint32_t state = search->thinking == thinking ? search->state : 0;
  size_t at = 0;
  while (at < n) {
    state = *transition_at(stops, state, stops->class_of[(uint8_t)bytes[at++]]);
    if (stops->found[state] > 0) break;
  }
  search->state = (uint16_t)state;
  search->thinking = thinking;
  search->n_read += at;
  *end = at;
  return stops->found[state] > 0;
}
