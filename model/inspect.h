/* SPDX-License-Identifier: MIT */
/* What a GGUF file holds and what it would cost to serve.
 *
 * Law: no weight is loaded. A file whose architecture or keys are refused is still described; the
 * refusal is then part of the description. Text of the file is shown with escapes, long values are
 * cut, and their length is printed. */
#ifndef WEFT_MODEL_INSPECT_H
#define WEFT_MODEL_INSPECT_H

#include "base/text.h"
#include "model/gguf.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Appends lines for a person, or one JSON object. Errors: NO_MEMORY. */
weft_status weft_inspect(const weft_gguf *gguf, bool json, weft_text *out, weft_error *error);

#ifdef __cplusplus
}
#endif
#endif
