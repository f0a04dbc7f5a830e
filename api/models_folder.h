/* SPDX-License-Identifier: MIT */
/* The folder of --models-dir: which of its files are served. For the files of api/ only.
 *
 * Law. The folder is read once, at the start, in the order of names: files that end in .gguf, of a split model the
 * first part; what begins with a dot is passed over. The headers of all are read, and page size and layouts are planned
 * for all models of the server together. A file that cannot be served, or cannot share pages with those before it, is
 * left out with one warning that says why. A folder that cannot be read, and a server without any model, are errors. */
#ifndef WEFT_API_MODELS_FOLDER_H
#define WEFT_API_MODELS_FOLDER_H

#include "api/runtime.h"

/* Adds the files to the models that are served, their headers read; behind those of --model, before those that draft.
 * Without the option nothing. */
weft_status models_folder_open(weft_runtime *rt, weft_error *error);
/* Plans their models, when the devices are open and the other models loaded, and how much memory they may take. */
weft_status models_folder_plan(weft_runtime *rt, weft_error *error);
void models_folder_forget(weft_runtime *rt);

#endif
