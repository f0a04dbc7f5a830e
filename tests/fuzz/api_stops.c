/* SPDX-License-Identifier: MIT */
/* Any stop strings over any text: the automaton finds what a search that compares everywhere finds, holds back what that
 * holds back, makes one step for each byte, and does not care how the text is cut into calls. Lines of the input are the
 * stop strings, an empty line ends them, the rest is text; the first byte says how it is cut and where thinking ends. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/stops.h"
#include "tests/support/fuzz_require.h"

enum { LINES_MAX = WEFT_STOPS_MAX + 1, LINE_MAX = WEFT_STOP_BYTES_MAX + 2 };

typedef struct stop_list {
  char *text[LINES_MAX];
  uint32_t n;
} stop_list;

static size_t read_list(const uint8_t *data, size_t n, stop_list *list) {
  size_t at = 0;
  list->n = 0;
  while (at < n && list->n < LINES_MAX) {
    const uint8_t *end = memchr(data + at, '\n', n - at);
    size_t length = end == NULL ? n - at : (size_t)(end - data) - at;
    size_t kept = length < LINE_MAX ? length : LINE_MAX;
    char *line = calloc(kept + 1, 1); /* a zero byte inside ends it, as everywhere in C */
    memcpy(line, data + at, kept);
    at += length + (end != NULL);
    if (length == 0) {
      free(line);
      break;
    }
    list->text[list->n++] = line;
  }
  return at;
}

/* Bytes of the longest string that ends at text + end without reaching before text; held: of the longest proper or whole
 * beginning of one. */
static size_t naive_found(const stop_list *list, const char *text, size_t end, size_t *held) {
  size_t found = 0;
  *held = 0;
  for (uint32_t i = 0; i < list->n; i++) {
    size_t length = strlen(list->text[i]);
    for (size_t k = 1; k <= length && k <= end; k++) {
      if (text[end - k] != list->text[i][0] || memcmp(text + end - k, list->text[i], k) != 0) continue;
      if (k > *held) *held = k;
      if (k == length && k > found) found = k;
    }
  }
  return found;
}

typedef struct place {
  size_t end, length; /* length 0: nothing was found */
} place;

static place naive_search(const stop_list *list, const char *text, size_t n, size_t *held) {
  *held = 0;
  for (size_t end = 1; end <= n; end++) {
    size_t length = naive_found(list, text, end, held);
    if (length > 0) return (place){end, length};
  }
  return (place){n, 0};
}

/* chunk 0: all at once. */
static place search(const weft_stops *stops, const char *text, size_t n, size_t chunk, weft_stop_search *s) {
  for (size_t at = 0; at < n;) {
    size_t take = chunk == 0 || n - at < chunk ? n - at : chunk, end = 0;
    bool found = weft_stops_read(stops, s, text + at, take, false, &end);
    if (found) return (place){at + end, weft_stops_found(stops, s)};
    at += take;
  }
  return (place){n, 0};
}

static void compare(const weft_stops *stops, const stop_list *list, const char *text, size_t n, size_t chunk) {
  weft_stop_search s = {0};
  size_t held;
  place wanted = naive_search(list, text, n, &held), got = search(stops, text, n, chunk, &s);
  REQUIRE(got.end == wanted.end && got.length == wanted.length);
  REQUIRE(s.n_read == (list->n == 0 ? 0 : got.end));
  if (wanted.length == 0) REQUIRE(weft_stops_held(stops, &s) == held);
}

/* Where the channel changes the search begins again. */
static void compare_channels(const weft_stops *stops, const stop_list *list, const char *text, size_t n,
                             size_t border) {
  weft_stop_search s = {0};
  size_t held, end = 0;
  place first = naive_search(list, text, border, &held);
  if (first.length > 0) return;
  REQUIRE(!weft_stops_read(stops, &s, text, border, true, &end));
  place second = naive_search(list, text + border, n - border, &held);
  bool found = weft_stops_read(stops, &s, text + border, n - border, false, &end);
  REQUIRE(found == (second.length > 0));
  if (found) REQUIRE(end == second.end && weft_stops_found(stops, &s) == second.length);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  if (n == 0 || n > 20000) return 0;
  stop_list list;
  weft_stops stops;
  weft_error error = {{0}};
  size_t at = 1 + read_list(data + 1, n - 1, &list);
  const char *text = (const char *)data + at;
  size_t n_text = n - at < 600 ? n - at : 600; /* the plain search is slow */
  weft_status status = weft_stops_open(&stops, (const char *const *)list.text, list.n, &error);
  size_t n_bytes = 0, n_longest = 0;
  bool empty = false;
  for (uint32_t i = 0; i < list.n; i++) {
    size_t length = strlen(list.text[i]);
    n_bytes += length;
    if (length > n_longest) n_longest = length;
    empty = empty || length == 0;
  }
  bool good = list.n <= WEFT_STOPS_MAX && !empty && n_longest <= WEFT_STOP_BYTES_MAX && n_bytes <= WEFT_STOPS_BYTES_MAX;
  REQUIRE((status == WEFT_OK) == good);
  REQUIRE((error.text[0] == 0) == good && strchr(error.text, '\n') == NULL);
  if (good) {
    compare(&stops, &list, text, n_text, 0);
    compare(&stops, &list, text, n_text, 1);
    compare(&stops, &list, text, n_text, 1 + data[0] % 7);
    if (n_text > 0) compare_channels(&stops, &list, text, n_text, data[0] * n_text / 256);
  }
  weft_stops_close(&stops);
  for (uint32_t i = 0; i < list.n; i++) free(list.text[i]);
  return 0;
}
