/* SPDX-License-Identifier: MIT */
/* A compiled format as those hold it who pass it on and do not look inside.
 *
 * Law: a grammar never changes while more than one holds it, and lives as long as somebody holds a reference. */
#ifndef WEFT_MODEL_FORMATS_GRAMMAR_HANDLE_H
#define WEFT_MODEL_FORMATS_GRAMMAR_HANDLE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The compiled format of an answer (model/formats/grammar.h). A grammar never changes, is counted by references, and
 * may be used by any thread. */
typedef struct weft_grammar weft_grammar;
weft_grammar *weft_grammar_ref(weft_grammar *grammar);       /* NULL is fine */
void weft_grammar_unref(weft_grammar *grammar);              /* NULL is fine */
uint32_t weft_grammar_shortest(const weft_grammar *grammar); /* so many tokens are enough for an answer */

#ifdef __cplusplus
}
#endif

#endif
