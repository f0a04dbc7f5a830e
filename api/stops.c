/* SPDX-License-Identifier: MIT */
#include "api/stops.h"

#include <string.h>

#include "base/memory.h"

weft_status weft_stops_set(weft_stops *stops, const char *const *list, uint32_t n, weft_error *error) {
  if (n > WEFT_STOPS_MAX)
    return weft_fail(error, WEFT_E_INVALID, "%u stop strings; at most %d are allowed", n, WEFT_STOPS_MAX);
  for (uint32_t i = 0; i < n; i++) {
    size_t length = list == NULL || list[i] == NULL ? 0 : strlen(list[i]);
    if (length == 0 || length > WEFT_STOP_BYTES_MAX) {
      return weft_fail(error, WEFT_E_INVALID, "stop string %u has %zu bytes; it must have 1 to %d", i, length,
                       WEFT_STOP_BYTES_MAX);
    }
    stops->text[i] = weft_strdup(list[i]);
    stops->length[i] = length;
    if (stops->text[i] == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for the stop strings");
    stops->n = i + 1;
  }
  return WEFT_OK;
}

void weft_stops_free(weft_stops *stops) {
  for (uint32_t i = 0; i < stops->n; i++) weft_free(stops->text[i]);
  stops->n = 0;
}

bool weft_stops_find(const weft_stops *stops, const char *text, size_t n, size_t *at, size_t *held) {
  bool found = false;
  *held = 0;
  for (uint32_t i = 0; i < stops->n && n > 0; i++) {
    const char *place = memmem(text, n, stops->text[i], stops->length[i]);
    if (place != NULL && (!found || (size_t)(place - text) < *at)) {
      *at = (size_t)(place - text);
      found = true;
    }
    size_t longest = stops->length[i] - 1 < n ? stops->length[i] - 1 : n;
    for (size_t k = longest; k > *held; k--) {
      if (memcmp(text + n - k, stops->text[i], k) == 0) *held = k;
    }
  }
  return found;
}

void weft_stops_keep_tail(weft_text *text, size_t n) {
  if (n >= text->n) return;
  memmove(text->bytes, text->bytes + text->n - n, n);
  text->n = n;
  text->bytes[n] = 0;
}
