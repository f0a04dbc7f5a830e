/* SPDX-License-Identifier: MIT */
/* What kept prefixes depend on: models, types, layouts and numerics, as lines of text. */
#ifndef WEFT_API_KEEP_IDENTITY_H
#define WEFT_API_KEEP_IDENTITY_H

#include "api/runtime.h"

/* Appends the lines of this runtime. After the pool was planned. */
void keep_identity_print(const weft_runtime *runtime, weft_text *out);
/* Compares lines that were kept with one's own. map, [WEFT_MODELS_MAX]: for each model of the kept ones which of one's
 * own it is. UNSUPPORTED with a clause that names the first difference; *otherwise: all of its models are one's own,
 * and were computed or laid out otherwise. */
weft_status keep_identity_compare(const char *own, const char *kept, uint32_t *map, bool *otherwise, weft_error *error);

#endif
