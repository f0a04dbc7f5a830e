/* SPDX-License-Identifier: MIT */
/* Requests that the OpenAI dialect refuses: what their answers must be. */
#ifndef WEFT_TESTS_HTTP_REFUSAL_H
#define WEFT_TESTS_HTTP_REFUSAL_H

#include "tests/support/http_conversation.h"

typedef struct http_refusal {
  const char *body;
  int code;
  const char *param, *words; /* param NULL: the error names none */
} http_refusal;

/* The answer, which is freed, is {"error":{message,type,param,code}} with this code of HTTP: it names this parameter, and
 * its message is one line with these words. what: the request, for what a failure prints. */
static inline void check_refusal(talk_answer a, const char *what, int code, const char *param, const char *words) {
  if (a.code != code) fail_msg("%s: gave %d instead of %d: %s", what, a.code, code, a.body.bytes);
  json_t *root = json_loads(a.body.bytes, 0, NULL);
  if (root == NULL) fail_msg("%s: no JSON: %s", what, a.body.bytes);
  const char *message = text_at(root, "error.message");
  (void)text_at(root, "error.type");
  assert_non_null(at(root, "error.code"));
  assert_null(strchr(message, '\n'));
  if (strstr(message, words) == NULL) fail_msg("%s: '%s' does not say '%s'", what, message, words);
  json_t *named = at(root, "error.param");
  if (param == NULL ? !json_is_null(named) : !json_is_string(named) || strcmp(json_string_value(named), param) != 0) {
    fail_msg("%s: param is not %s in %s", what, param == NULL ? "null" : param, a.body.bytes);
  }
  json_decref(root);
  talk_answer_free(&a);
}

static inline void check_refusals(uint16_t port, const char *path, const http_refusal *rows, size_t n) {
  for (size_t i = 0; i < n; i++) {
    const http_refusal *r = &rows[i];
    check_refusal(talk_ask(port, "POST", path, r->body), r->body, r->code, r->param, r->words);
  }
}

#endif
