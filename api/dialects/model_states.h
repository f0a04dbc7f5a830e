/* SPDX-License-Identifier: MIT */
/* Answers that wait until a model has been loaded, or has left (api/residents.h). For the files of api/ only.
 *
 * Law. The exchange is answered once, when the outcome is there: by `tell`, or with the refusal that says why it could
 * not be done. Neither the network thread nor a worker waits meanwhile. A client that leaves changes nothing of what
 * was asked for. */
#ifndef WEFT_API_DIALECTS_MODEL_STATES_H
#define WEFT_API_DIALECTS_MODEL_STATES_H

#include "api/http/http.h"
#include "api/residents.h"

/* Writes the body of a 200. */
typedef void (*model_states_tell)(void *self, weft_text *out);

/* Answers x when the outcome of ask is there. self is freed with weft_free then, whatever happened. */
void model_states_answer(weft_runtime *runtime, weft_exchange *x, const resident_ask *ask, model_states_tell tell,
                         void *self);
/* Why it could not be done. */
void model_states_refuse(weft_exchange *x, weft_status status, const char *line);

#endif
