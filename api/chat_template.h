/* SPDX-License-Identifier: MIT */
/* Where a served model's chat template comes from: the model file, or --chat-template.
 *
 * Law: a template that was asked for is used, or the start fails with one line. A model file whose own template is
 * missing or cannot be rendered turns chat off for that model, with one line in the log and in each refusal;
 * completions go on. */
#ifndef WEFT_API_CHAT_TEMPLATE_H
#define WEFT_API_CHAT_TEMPLATE_H

#include "api/runtime.h"

/* Sets m->chat, or m->no_chat to the reason. An entry of options->chat_templates is FILE, for every model, or
 * MODEL=FILE, which takes precedence. */
weft_status chat_template_open(const weft_open_options *options, weft_served_model *m, weft_error *error);
/* INVALID: an entry is for a model that is not served. */
weft_status chat_templates_check(const weft_runtime *runtime, weft_error *error);

#endif
