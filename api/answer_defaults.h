/* SPDX-License-Identifier: MIT */
/* The sampling and denoising values of a request that leaves them open.
 *
 * Law: a request's own value wins over the one that weft_open was given for all requests, and that one wins over the
 * model file's. After answer_defaults_open the served model holds a value for everything that a request may leave open:
 * its temperature, top_k and top_p, and every number of its entropy bound. */
#ifndef WEFT_API_ANSWER_DEFAULTS_H
#define WEFT_API_ANSWER_DEFAULTS_H

#include "api/runtime.h"

/* Fills model->sampling and model->entropy_bound, whose file has been read. INVALID: the values that were given
 * contradict one another or those of the file. */
weft_status answer_defaults_open(const weft_open_options *options, weft_served_model *model, weft_error *error);
/* Gives a request's open values those of the served model. */
void answer_defaults_fill(const weft_served_model *model, weft_sampling *sampling, weft_entropy_bound *entropy_bound);
/* One line of the plan that says what they are. */
void answer_defaults_print(const weft_served_model *model, weft_text *out);
/* One line in the log where weft_open was given values of canvases, and no model writes any. */
void answer_defaults_tell_unused(const weft_runtime *runtime);

#endif
