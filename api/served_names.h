/* SPDX-License-Identifier: MIT */
/* The names by which clients ask for a model: that of its file, or those of --served-model-name.
 *
 * Law: a name leads to one model, and so does NAME:TAG where nothing is served under that name itself; where nothing
 * has these very letters, capital or small ones are the same. Answers,
 * lists and metrics carry the first name that a model was given; options that name a model (--kv-8bit,
 * --chat-template) mean the name of its file. */
#ifndef WEFT_API_SERVED_NAMES_H
#define WEFT_API_SERVED_NAMES_H

#include "api/runtime.h"

/* The name of a file without folder and .gguf. The caller frees it; NULL: no memory. */
char *served_names_of_file(const char *path);
/* Sets m->file_name, m->name and m->alias. An entry of options->served_names is NAME, where there is one model, or
 * MODEL=NAME. A model that only drafts has the name of its file. */
weft_status served_names_set(const weft_runtime *runtime, const char *path, weft_served_model *m, weft_error *error);
/* What an entry MODEL=WORDS of an option says of the model whose file has this name: WORDS; NULL: it names another
 * model, or none. */
const char *served_names_after(const char *entry, const char *file_name);
/* After all models were named: an entry for no model, and a name for two of them, are refused. */
weft_status served_names_check(const weft_runtime *runtime, weft_error *error);
void served_names_free(weft_served_model *m);
/* The tag of NAME:TAG, with its colon, where it says how the model is to write (":diffusion", ":autoregressive") or
 * nothing (":latest", ":auto"); NULL: there is none. */
const char *served_names_tag(const char *name);
/* In how many ways a name may lead to a model, and whether it does by this one: those that come first go before others,
 * for all models. */
enum { SERVED_NAMES_WAYS = 4 };
bool served_names_lead(const weft_served_model *m, const char *name, uint32_t way);
/* Fails with one line: nothing is served under the name, and which name may be meant. */
weft_status served_names_unknown(const weft_runtime *runtime, const char *name, weft_error *error);
/* Whether the name is one of the model's, in capital or small letters. */
bool served_names_fit(const weft_served_model *m, const char *name);

#endif
