/* SPDX-License-Identifier: MIT */
/* Why a request was not served: an HTTP code and one line for a person, in the shape that OpenAI's clients read:
 *   {"error":{"message","type","param","code"}}
 * and "retry_after" in seconds where it is known, for clients that read the refusal in a stream, after its headers were
 * sent.
 *
 * Law: every refusal of the server is made here, so all have the same shape; the type follows from the HTTP code and
 * the word. */
#ifndef WEFT_API_HTTP_REFUSAL_H
#define WEFT_API_HTTP_REFUSAL_H

#include "base/text.h"

typedef struct weft_refusal {
  int http;         /* 0: nothing was refused */
  const char *code; /* a word for programs; static; NULL: none */
  char param[64];   /* the field at fault, or empty */
  char message[512];
  uint32_t retry_s; /* seconds after which to come again; 0: not known */
  bool own_limit;   /* of a 429: the limit is the tenant's own, which another server of a fleet has, too */
} weft_refusal;

/* Fills all fields; param may be NULL. Always returns WEFT_E_INVALID, so that a caller can `return
 * weft_refuse(...)`. */
weft_status weft_refuse(weft_refusal *refusal, int http, const char *code, const char *param, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
/* The same from the status and the line of a function of weft.h. draining: the server is shutting down, so that a full
 * queue (WEFT_FULL) is a 503 instead of a 429. */
weft_status weft_refuse_status(weft_refusal *refusal, int status, const char *line, bool draining);
/* {"error":{...}} */
void weft_refusal_json(const weft_refusal *refusal, weft_text *out);

#endif
