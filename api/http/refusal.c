/* SPDX-License-Identifier: MIT */
#include "api/http/refusal.h"

#include <stdarg.h>
#include <stdio.h>

#include "api/json.h"

static const char rate_limit[] = "rate_limit_exceeded";

/* What a client sent may be quoted in it. */
static void keep_one_line(char *text) {
  for (char *c = text; *c != 0; c++) {
    if ((unsigned char)*c < 0x20 || *c == 0x7F) *c = ' ';
  }
}

weft_status weft_refuse(weft_refusal *r, int http, const char *code, const char *param, const char *format, ...) {
  va_list list;
  r->http = http;
  r->code = code;
  r->retry_s = 0;
  r->own_limit = false;
  (void)snprintf(r->param, sizeof r->param, "%s", param == NULL ? "" : param); /* a cut name is still a hint */
  va_start(list, format);
  (void)vsnprintf(r->message, sizeof r->message, format, list); /* a cut line is still a line */
  va_end(list);
  keep_one_line(r->param);
  keep_one_line(r->message);
  return WEFT_E_INVALID;
}

weft_status weft_refuse_status(weft_refusal *r, int status, const char *line, bool draining) {
  switch (status) {
    case WEFT_E_INVALID:
      return weft_refuse(r, 400, "invalid_value", NULL, "%s", line);
    case WEFT_E_UNSUPPORTED:
      return weft_refuse(r, 400, "unsupported", NULL, "%s", line);
    case WEFT_E_TOO_LARGE:
      return weft_refuse(r, 400, "context_length_exceeded", NULL, "prompt is too long: %s", line);
    case WEFT_E_LIMIT:
      return weft_refuse(r, 400, "limit_exceeded", NULL, "%s", line);
    case WEFT_E_FORMAT:
      return weft_refuse(r, 400, "invalid_value", NULL, "%s", line);
    case WEFT_E_NOT_FOUND:
      return weft_refuse(r, 404, "model_not_found", "model", "%s", line);
    case WEFT_CANCELLED:
      if (!draining) return weft_refuse(r, 503, "cancelled", NULL, "the request was cancelled: %s", line);
      return weft_refuse(r, 503, "draining", NULL, "the server is shutting down and takes no new requests");
    case WEFT_FULL:
      if (draining)
        return weft_refuse(r, 503, "draining", NULL, "the server is shutting down and takes no new requests");
      return weft_refuse(r, 429, "queue_full", NULL, "%s", line);
    case WEFT_RATE_LIMIT:
      return weft_refuse(r, 429, rate_limit, NULL, "%s", line);
    case WEFT_E_NO_MEMORY:
      return weft_refuse(r, 503, "no_memory", NULL, "%s", line);
    default:
      return weft_refuse(r, 500, "internal", NULL, "%s", line);
  }
}

/* What exceeds a rate (tokens, work on formats) has the type that OpenAI gives to a rate of tokens. The code is one of
 * the literals of this file, so its address tells it. */
static const char *type_of(const weft_refusal *r) {
  if (r->code == rate_limit) return "tokens";
  switch (r->http) {
    case 401:
      return "authentication_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    case 503:
      return "unavailable_error";
    default:
      return r->http >= 500 ? "server_error" : "invalid_request_error";
  }
}

void weft_refusal_json(const weft_refusal *r, weft_text *out) {
  weft_text_puts(out, "{\"error\":{\"message\":");
  weft_json_words(out, r->message);
  weft_text_printf(out, ",\"type\":\"%s\",\"param\":", type_of(r));
  if (r->param[0] != 0) {
    weft_json_words(out, r->param);
  } else {
    weft_text_puts(out, "null");
  }
  weft_text_puts(out, ",\"code\":");
  if (r->code != NULL) {
    weft_json_words(out, r->code);
  } else {
    weft_text_puts(out, "null");
  }
  if (r->retry_s > 0) weft_text_printf(out, ",\"retry_after\":%u", r->retry_s);
  weft_text_puts(out, "}}");
}
