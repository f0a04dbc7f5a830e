/* SPDX-License-Identifier: MIT */
/* The fields of bodies that ask for tokens of a text, or for the text of tokens; api/server/service.c reads them. */
#include "api/dialects/field_tables.h"

static const field_row tokenize_rows[] = {
    FIELD_ROW("model", LATER, "whose tokens"),
    FIELD_ROW("prompt", LATER, "a text"),
    FIELD_ROW("content", LATER, "prompt, as llama-server calls it, without tokens around it"),
    FIELD_ROW("messages", LATER, "a conversation, as the chat template renders it"),
    FIELD_ROW("tools", LATER, "of the conversation"),
    FIELD_ROW("add_special_tokens", LATER, "tokens around a text"),
    FIELD_ROW("add_special", LATER, "the same, of content"),
    FIELD_ROW("parse_special", LATER, "what is spelt like a control token is one"),
    FIELD_ROW("return_token_strs", LATER, "the texts of the tokens, too"),
    FIELD_ROW("add_generation_prompt", LATER, "false: the model's turn is not opened"),
    FIELD_ROW("continue_final_message", LATER, "the last message stays open"),
    FIELD_ROW("chat_template_kwargs", LATER, "variables of the chat template"),
    FIELD_ROW("mm_processor_kwargs", PASSED, "of images and sounds, which are not read"),
    FIELD_ROW("chat_template", REFUSED, "the template is the model's, or the operator's (--chat-template)"),
    FIELD_ROW("with_pieces", REFUSED, "return_token_strs gives the texts of the tokens")};
const field_table tokenize_fields = FIELD_TABLE("/tokenize", tokenize_rows);

static const field_row detokenize_rows[] = {FIELD_ROW("model", LATER, "whose tokens"),
                                            FIELD_ROW("tokens", LATER, "ids of tokens")};
const field_table detokenize_fields = FIELD_TABLE("/detokenize", detokenize_rows);
