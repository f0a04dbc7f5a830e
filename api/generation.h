/* SPDX-License-Identifier: MIT */
/* What the files of api/ may ask of a generation besides what weft.h has. */
#ifndef WEFT_API_GENERATION_H
#define WEFT_API_GENERATION_H

#include "api/runtime.h"
#include "model/text/calls.h"

/* Whether its answer may hold calls of tools, and how they are written in its text. */
bool weft_generation_calls(const weft_generation *generation, weft_call_form *form);
/* Whether the model writes what is asked for by diffusion. */
bool generation_by_canvas(const weft_served_model *model, const weft_generate_params *params);
/* What was asked for: the one copy (base/asked.h), until the generation is freed. */
const weft_generate_params *weft_generation_asked(const weft_generation *generation);
/* Appends the text of one token by itself, control tokens spelt out: of a part of a character its bytes. */
weft_status weft_generation_piece(const weft_generation *generation, int32_t token, weft_text *out);
/* Whether the token ends an answer of the model. */
bool weft_generation_ends_with(const weft_generation *generation, int32_t token);

#endif
