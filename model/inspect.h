/* SPDX-License-Identifier: MIT */
/* What a GGUF file holds, what it would cost to serve, and whether weft serves it.
 *
 * Law: no weight is loaded. Every GGUF file is described, whatever its architecture, types and keys are; the last line
 * says whether it would be served, by the same checks that opening makes, and if not why not. Text of the file is shown
 * with escapes, long values are cut, and their length is printed. */
#ifndef WEFT_MODEL_INSPECT_H
#define WEFT_MODEL_INSPECT_H

#include "base/text.h"
#include "model/gguf/gguf.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Appends lines for a person, or one JSON object. Errors: NO_MEMORY. */
weft_status weft_inspect(const weft_gguf *gguf, bool json, weft_text *out, weft_error *error);

#ifdef __cplusplus
}
#endif
#endif
