/* SPDX-License-Identifier: MIT */
/* The trace that a request belongs to: `traceparent` and `tracestate` of the W3C's Trace Context.
 *
 * Law: what the recommendation calls invalid is as if it were not there: a traceparent that comes twice, has a letter
 * in capitals, zeros for an id, version ff, or anything behind the flags of version 00. A later version is read as far
 * as version 00 goes. A tracestate counts only beside a valid traceparent. Nothing here begins a trace, and nothing
 * allocates. Any thread. */
#ifndef WEFT_API_HTTP_TRACE_CONTEXT_H
#define WEFT_API_HTTP_TRACE_CONTEXT_H

#include "api/http/http_parse.h"

enum { WEFT_TRACE_STATE_MAX = 512 };

typedef struct weft_trace_context {
  bool known;                           /* there is a valid traceparent; otherwise all texts are empty */
  char trace_id[33], parent_id[17];     /* lower case hexadecimal, never zeros alone */
  char span_id[17];                     /* of this request; drawn by whoever keeps the context */
  char flags[3];                        /* of version 00: "01" sampled, "00" not */
  char state[WEFT_TRACE_STATE_MAX + 1]; /* members with one comma between them; empty: none, invalid or longer */
} weft_trace_context;

/* Fills in all but span_id. */
void weft_trace_context_read(const weft_http_head *head, weft_trace_context *out);

#endif
