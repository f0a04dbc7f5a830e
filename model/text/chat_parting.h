/* SPDX-License-Identifier: MIT */
/* Where other prompts are likely to part from a prompt that a template printed; private to model/text/chat*.c.
 *
 * Law: a prompt parts at two places: before the first message that is no instruction, since other conversations begin
 * with the same instructions and tools; and behind the last text that came with the request, since templates open the
 * model's turn with words, the marker of thinking among them, that they do not write again in the next prompt. Both
 * are between two pieces, and what is before them does not depend on what follows. */
#ifndef WEFT_MODEL_TEXT_CHAT_PARTING_H
#define WEFT_MODEL_TEXT_CHAT_PARTING_H

#include "model/text/chat_internal.h"

/* Fills pieces->parting. The text is the one that the pieces were cut from. */
void chat_parting_find(const weft_chat_message *messages, uint32_t n, const weft_jinja_text *text,
                       weft_chat_pieces *pieces);

#endif
