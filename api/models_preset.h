/* SPDX-License-Identifier: MIT */
/* The file of --models-preset, in the form of llama-server: sections of models, as far as what they say is of one model
 * here. For the files of api/ only.
 *
 * Law. A line is empty, a comment (; or #), `version = 1` before the first section, [NAME], or KEY = VALUE. A section
 * is a model that is loaded when it is asked for, called NAME: of the file that its `model` names, else of the folder's
 * file NAME.gguf. [*] is about all of them. What is said twice, is of another form, or is no property of one model here
 * is refused with one line that names file, line and key. Settings become those that the options of the same meaning
 * would be: `F=...` of the file's name F. */
#ifndef WEFT_API_MODELS_PRESET_H
#define WEFT_API_MODELS_PRESET_H

#include <stdbool.h>

#include "api/weft.h"
#include "base/status.h"

typedef struct models_preset models_preset;

/* Whether there are models that are loaded when they are asked for. */
static inline bool models_on_call(const weft_open_options *o) {
  return o->models_dir != NULL || o->models_preset != NULL;
}

/* Reads it where o names one, and has o's lists of names, templates and models in 8 bits be those of o and the file's;
 * *out owns these, and is NULL without a file. The caller closes it, after its last use of o. */
weft_status models_preset_open(weft_open_options *o, models_preset **out, weft_error *error);
void models_preset_close(models_preset *preset); /* NULL is fine, as below */
/* The index-th file that a section names; NULL: there are no more. */
const char *models_preset_path(const models_preset *preset, uint32_t index);
/* The file name of the index-th section, and whether its model is to be loaded at the start; NULL: no more. */
const char *models_preset_file(const models_preset *preset, uint32_t index, bool *loads);

#endif
