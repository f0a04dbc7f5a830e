/* SPDX-License-Identifier: MIT */
/* Formats of answers (JSON schemas, regular expressions, grammars), compiled for one model and kept for the next
 * request that asks for them.
 *
 * Law: at most WEFT_FORMATS formats and WEFT_FORMATS_BYTES are kept. When there is no room, the tenant that keeps most
 * loses the format that it used longest ago, so a tenant that sends many loses its own. A format that requests hold
 * lives until they end. A format is found by its tenant, kind, whole text and whether it is for canvases, so how
 * long an answer takes to begin tells nothing about other tenants' requests. The steps of compiling are charged to the
 * tenant that caused them. A tenant has WEFT_FORMAT_STEPS steps a minute, refilled evenly; when they are used up it is
 * refused and told when to come again.
 * Any thread. No thread waits while another one compiles, except for the tree of the vocabulary, which the first format
 * of a model makes. */
#ifndef WEFT_API_FORMATS_H
#define WEFT_API_FORMATS_H

#include "model/formats/grammar.h"

enum { WEFT_FORMATS = 64, WEFT_FORMATS_BYTES = 256 << 20, WEFT_FORMAT_STEPS = 300000000 };

typedef struct weft_formats weft_formats;

/* The tokenizer must outlive the formats. */
weft_status weft_formats_open(const weft_tokenizer *tokenizer, uint32_t n_tenants, weft_formats **out);
void weft_formats_close(weft_formats *formats); /* NULL is fine */
/* A format that a request asks for. */
typedef struct weft_format_ask {
  uint32_t tenant;
  weft_grammar_kind kind;
  bool canvas;      /* the answer is written by diffusion (weft_grammar_for_canvases) */
  const char *text; /* NULL is fine where n is 0 */
  size_t n;
  bool (*stop)(void *self); /* as weft_grammar_work has it; NULL: nobody ends the compiling */
  void *stop_self;
} weft_format_ask;

/* The grammar of a format, with a reference for the caller (weft_grammar_unref gives it back). INVALID or UNSUPPORTED:
 * the line says what is wrong with the text. RATE_LIMIT: the tenant has used up its steps; *retry_us says after how
 * many microseconds enough of them are there again. CANCELLED: ask->stop said so; the steps are charged. */
weft_status weft_formats_get(weft_formats *formats, const weft_format_ask *ask, weft_grammar **out, uint64_t *retry_us,
                             weft_error *error);

#endif
