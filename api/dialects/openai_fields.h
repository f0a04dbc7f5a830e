/* SPDX-License-Identifier: MIT */
/* Every field that a body of the OpenAI dialect may have. The table in openai_fields.c says of each field which type it
 * has, which endpoints know it and what it does.
 *
 * Law: the table is complete. A field that it lacks is unknown: it is named in the log the first time it comes, and is
 * answered with 400 where the operator asked for strict fields. A field that has no effect stands in the table only if
 * leaving it out changes no answer. */
#ifndef WEFT_API_DIALECTS_OPENAI_FIELDS_H
#define WEFT_API_DIALECTS_OPENAI_FIELDS_H

#include "api/dialects/openai.h"

/* Looks for fields that the endpoint does not know. strict: the first one is refused; else each is named in the log
 * once. */
weft_status weft_openai_check_fields(weft_openai_kind kind, const json_t *root, bool strict, weft_refusal *why);

#endif
