/* SPDX-License-Identifier: MIT */
/* Chat templates: the part of Jinja that they are written in, compiled once and rendered per request.
 *
 * Law: a template is immutable after open and may be rendered by any number of threads. Rendering is a pure function of
 * the template and the context: no file, no clock, no environment. Whatever a template does, a render takes at most the
 * steps, the memory and the depth of its budget and then ends with one line; the stack it needs is bounded too.
 *
 * Every byte of the output has a mark: 1 when the byte was written in the template (or belongs to a word that the
 * context calls the server's own), 0 otherwise: for text of the request and for whatever is computed, such as numbers,
 * dates and the punctuation of JSON. A mark travels with its byte through every operator, filter, test and method. So
 * the encoder of the output can let only bytes with mark 1 become control tokens, and text of a user never becomes one.
 * Marks from WEFT_JINJA_TRACED on are text of the request, too: each byte of every string within the variables
 * `messages` and `tools`, names of members and texts alike, has a mark of its own, WEFT_JINJA_TRACED and its number in
 * the order in which json_object_foreach and json_array_foreach come to them, a name before its value, and messages
 * before tools. So the caller sees which bytes of a conversation are in the output. An escape of a byte carries the mark
 * of that byte.
 *
 * A template that renders here renders to the same text as with Python's jinja2 in the environment that model makers
 * test their templates in (sandboxed, trim_blocks, lstrip_blocks, loop controls, generation blocks, a tojson that
 * escapes nothing for HTML). */
#ifndef WEFT_MODEL_TEXT_JINJA_H
#define WEFT_MODEL_TEXT_JINJA_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "base/status.h"
#include "base/text.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { WEFT_JINJA_TEMPLATE_MAX = 1 << 20 }; /* bytes of a template */

typedef uint32_t weft_jinja_mark;
enum { WEFT_JINJA_COMPUTED = 0, WEFT_JINJA_OWN = 1, WEFT_JINJA_TRACED = 2 };

typedef struct weft_jinja weft_jinja;

/* text is copied. Errors name the template's line: FORMAT when the text is not Jinja, UNSUPPORTED when it uses a
 * construct, filter or test that weft does not have, TOO_LARGE when it is too long or nests too deeply. */
weft_status weft_jinja_open(const char *text, size_t n, weft_jinja **out, weft_error *error);
void weft_jinja_close(weft_jinja *jinja); /* NULL is fine */

/* A variable whose text is the model's own, for example bos_token. */
typedef struct weft_jinja_word {
  const char *name, *text;
} weft_jinja_word;

typedef struct weft_jinja_budget {
  uint64_t steps; /* parts of the template evaluated, elements visited, 64 bytes copied */
  size_t bytes;   /* memory */
  uint32_t depth; /* nested expressions, blocks and calls */
} weft_jinja_budget;

weft_jinja_budget weft_jinja_budget_default(void);

typedef struct weft_jinja_context {
  const json_t *values; /* an object whose members are the variables; all text in them gets mark 0 */
  const weft_jinja_word *words;
  uint32_t n_words;
  /* Words that get mark 1 where they are the member `role` of an element of the variable `messages`. */
  const char *const *roles;
  uint32_t n_roles;
  struct tm now; /* for strftime_now */
  weft_jinja_budget budget;
  uint64_t *steps_left; /* NULL, or where the steps of the budget go that were not taken */
} weft_jinja_context;

/* bytes[0..n) and a mark for each; freed with weft_jinja_text_free. */
typedef struct weft_jinja_text {
  char *bytes;
  weft_jinja_mark *marks;
  size_t n;
} weft_jinja_text;

/* INVALID: the template refuses the conversation (raise_exception), or uses a value in a way that its type does not
 * allow; TOO_LARGE: a limit of the budget was reached; NO_MEMORY. On failure *out is empty. */
weft_status weft_jinja_render(const weft_jinja *jinja, const weft_jinja_context *context, weft_jinja_text *out,
                              weft_error *error);
void weft_jinja_text_free(weft_jinja_text *text);

#ifdef __cplusplus
}
#endif
#endif
