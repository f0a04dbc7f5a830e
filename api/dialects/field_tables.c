/* SPDX-License-Identifier: MIT */
#include "api/dialects/field_tables.h"

const field_table *const field_tables[] = {&openai_chat_fields,
                                           &openai_message_fields,
                                           &openai_tool_fields,
                                           &openai_function_fields,
                                           &openai_completions_fields,
                                           &openai_diffusion_fields,
                                           &responses_fields,
                                           &responses_text_fields,
                                           &responses_reasoning_fields,
                                           &responses_item_fields,
                                           &responses_part_fields,
                                           &anthropic_fields,
                                           &anthropic_output_fields,
                                           &anthropic_message_fields,
                                           &anthropic_block_fields,
                                           &anthropic_tool_fields,
                                           &anthropic_choice_fields,
                                           &ollama_chat_fields,
                                           &ollama_message_fields,
                                           &ollama_generate_fields,
                                           &ollama_option_fields,
                                           &ollama_show_fields,
                                           &tokenize_fields,
                                           &detokenize_fields,
                                           &draft_fields};
const size_t n_field_tables = sizeof field_tables / sizeof *field_tables;
