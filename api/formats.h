/* SPDX-License-Identifier: MIT */
/* Formats of answers, compiled for one model and kept for those who ask for them again.
 *
 * Law: at most WEFT_FORMATS formats and WEFT_FORMATS_BYTES are kept. When there is no room, the tenant that keeps most
 * loses the one it used longest ago, so nobody drives out others' by sending many. One that requests hold lives until
 * they end. A format is found by its tenant, kind and whole text: how long an answer takes to begin tells nobody what
 * others ask for. What compiling costs is charged to the tenant that caused it: WEFT_FORMAT_STEPS a minute, refilled evenly;
 * beyond them it is told when to come again. Any thread; nobody waits for another one's compiling. */
#ifndef WEFT_API_FORMATS_H
#define WEFT_API_FORMATS_H

#include "model/grammar.h"

enum { WEFT_FORMATS = 64, WEFT_FORMATS_BYTES = 256 << 20, WEFT_FORMAT_STEPS = 300000000 };

typedef struct weft_formats weft_formats;

/* The tokenizer must outlive it. */
weft_status weft_formats_open(const weft_tokenizer *tokenizer, uint32_t n_tenants, weft_formats **out);
void weft_formats_close(weft_formats *formats); /* NULL is fine */
/* The grammar, with a reference for the caller. INVALID or UNSUPPORTED: the line says what is wrong with it. FULL: the
 * tenant has used up its steps; *retry_us is when enough of them are there again. */
weft_status weft_formats_get(weft_formats *formats, uint32_t tenant, weft_grammar_kind kind, const char *text, size_t n,
                             weft_grammar **out, uint64_t *retry_us, weft_error *error);

#endif
