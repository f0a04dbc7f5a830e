/* SPDX-License-Identifier: MIT */
/* The tables of fields of all dialects (api/dialects/fields.h), each defined beside the code that reads its fields.
 *
 * Law: every table is in field_tables, so docs/fields.md, which is printed from it, leaves none out. */
#ifndef WEFT_API_DIALECTS_FIELD_TABLES_H
#define WEFT_API_DIALECTS_FIELD_TABLES_H

#include "api/dialects/fields.h"

extern const field_table openai_chat_fields, openai_completions_fields, openai_message_fields, openai_tool_fields,
    openai_function_fields, openai_diffusion_fields;
extern const field_table responses_fields, responses_text_fields, responses_reasoning_fields, responses_item_fields,
    responses_part_fields;
extern const field_table anthropic_fields, anthropic_output_fields, anthropic_message_fields, anthropic_block_fields,
    anthropic_tool_fields, anthropic_choice_fields;
extern const field_table ollama_chat_fields, ollama_generate_fields, ollama_option_fields, ollama_message_fields,
    ollama_show_fields;
extern const field_table tokenize_fields, detokenize_fields, draft_fields;

extern const field_table *const field_tables[];
extern const size_t n_field_tables;

#endif
