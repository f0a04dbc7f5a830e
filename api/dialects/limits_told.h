/* SPDX-License-Identifier: MIT */
/* The limits of a tenant in the head of an answer, under the names that OpenAI's clients read (x-ratelimit-*). */
#ifndef WEFT_API_DIALECTS_LIMITS_TOLD_H
#define WEFT_API_DIALECTS_LIMITS_TOLD_H

#include "api/http/http.h"
#include "api/runtime.h"

/* Sets the headers of the limits that the tenant has: requests of it in the engine at once, and tokens of a minute; how
 * much is left of each once this request has been taken or refused; and after what time all of it is there again, which
 * for requests is told only where none is under way, because nobody knows how long answers get. */
void limits_tell(const weft_runtime *runtime, uint32_t tenant, weft_exchange *exchange);

#endif
