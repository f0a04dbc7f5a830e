/* SPDX-License-Identifier: MIT */
/* What stands in a conversation and is no text, told to a model that reads only text.
 *
 * Law: what a tool gave, and what the model said before, never ends a conversation. Text in it is read wherever it
 * stands; of a picture, a sound or a file the model is told that it is there, and by which name; all else is told as
 * the JSON that it is, without the bytes that only programs read. What is left out so is passed over as fields are
 * (fields.h). What a person shows is not for these functions: a dialect refuses it, since an answer without it would
 * be about something else. */
#ifndef WEFT_API_DIALECTS_UNREAD_H
#define WEFT_API_DIALECTS_UNREAD_H

#include "api/dialects/fields.h"

/* The words for a block of this type ("an image"); NULL: it is none that only programs read. */
const char *unread_kind(const char *type);
/* Appends a part of a result: a text, an object of any type, any JSON. where: of the log; field: its place. */
weft_status unread_part(weft_gen *gen, const char *where, const json_t *part, const char *field, weft_text *out,
                        weft_refusal *why);
/* Appends a whole result: a text, parts, any JSON; NULL: nothing. */
weft_status unread_result(weft_gen *gen, const char *where, const json_t *result, const char *field, weft_text *out,
                          weft_refusal *why);
/* Appends that something is there, for example "an image", with the name that it has in part (NULL: none). */
weft_status unread_note(weft_gen *gen, const char *where, const char *kind, const json_t *part, const char *field,
                        weft_text *out, weft_refusal *why);

#endif
