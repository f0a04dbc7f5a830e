/* SPDX-License-Identifier: MIT */
/* Server-sent events: the frames of a streamed answer.
 *
 * Law: one event is `event: NAME` (left out for the plain kind), one `data:` line, one empty line.
 * The data is one line of JSON, which never holds a line break, so nothing in it can end an event
 * early. */
#ifndef WEFT_API_HTTP_SSE_H
#define WEFT_API_HTTP_SSE_H

#include "base/text.h"

#define WEFT_SSE_TYPE "text/event-stream; charset=utf-8"

/* Opens an event; the caller appends the data, one line of JSON, and then ends it. name NULL: the plain kind. */
void weft_sse_begin(weft_text *out, const char *name);
void weft_sse_end(weft_text *out);
/* A comment, which readers of events pass over: it tells them, and proxies, that the answer is still to come. */
void weft_sse_comment(weft_text *out);
/* The line `data: [DONE]`, which ends a stream of the OpenAI dialect. */
void weft_sse_done(weft_text *out);

#endif
