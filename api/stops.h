/* SPDX-License-Identifier: MIT */
/* Stop strings: one automaton for all strings of a request, and searches that read a text through it.
 *
 * Law: every byte of text costs one look-up in a table, however many strings there are and whatever they say: it is
 * the automaton of Aho and Corasick (1975) with all transitions written out. The string that becomes complete first
 * ends the text; of several that end with the same byte the longest does. So the place of the cut does not depend on
 * how the text was cut into tokens, and two searches over equal text find the same place. A string lies within one
 * channel: between thinking and answer the search begins again. An automaton never changes after open and may be used
 * by several searches, also on several threads; a search takes no memory. */
#ifndef WEFT_API_STOPS_H
#define WEFT_API_STOPS_H

#include "base/text.h"

enum {
  WEFT_STOPS_MAX = 64,        /* strings of a request */
  WEFT_STOP_BYTES_MAX = 1024, /* of one string */
  WEFT_STOPS_BYTES_MAX = 2048 /* of all strings of a request */
};

typedef struct weft_stops {
  uint32_t n;            /* strings; 0: nothing is ever found */
  uint32_t n_states;     /* a state is a beginning of some string; 0 is the empty one */
  uint32_t n_classes;    /* bytes that occur in the strings have a class each, all others share class 0 */
  uint8_t class_of[256]; /* by byte */
  uint16_t *next;        /* [n_states][n_classes]; NULL without strings */
  uint16_t *held;        /* [n_states] bytes at the end of the text that may be the beginning of a string */
  uint16_t *found;       /* [n_states] bytes of the longest string that the text ends with; 0: none */
  size_t n_bytes;        /* memory of these tables, which weft_stops_close frees */
} weft_stops;

/* INVALID with one line: too many strings, an empty one, one that is too long, too many bytes in all. */
weft_status weft_stops_open(weft_stops *stops, const char *const *list, uint32_t n, weft_error *error);
void weft_stops_close(weft_stops *stops); /* one that is all zero is fine */

/* One reading of one text; zero-initialise. */
typedef struct weft_stop_search {
  uint16_t state;
  bool thinking;   /* the channel of the text that was read last */
  uint64_t n_read; /* bytes in all, which is how many look-ups were made */
} weft_stop_search;

/* Reads n more bytes. True: a stop string of weft_stops_found bytes ends at bytes + *end, and what follows was not
 * read. */
bool weft_stops_read(const weft_stops *stops, weft_stop_search *search, const char *bytes, size_t n, bool thinking,
                     size_t *end);

/* How many bytes at the end of what was read may still become a stop string. */
static inline size_t weft_stops_held(const weft_stops *stops, const weft_stop_search *search) {
  return stops->n == 0 ? 0 : stops->held[search->state];
}

/* How many bytes the stop string has that was found last. */
static inline size_t weft_stops_found(const weft_stops *stops, const weft_stop_search *search) {
  return stops->n == 0 ? 0 : stops->found[search->state];
}

#endif
