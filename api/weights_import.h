/* SPDX-License-Identifier: MIT */
/* Weights of another process (weft_weights of weft.h), as a runtime uses them.
 *
 * Law: what is mapped computes the same bits as what this process would have loaded, or it is not mapped: backend,
 * card, kernel set, bits of products, integers and the order of sums of each type are compared when the manifest is
 * imported, and type, layout, shape and bytes of each matrix when it is looked up. A model is found by its file's
 * fingerprint alone. Pieces are mapped when a matrix in them is first looked up, and stay until close, whatever becomes
 * of their owner; the open connection says whether that still lives. */
#ifndef WEFT_API_WEIGHTS_IMPORT_H
#define WEFT_API_WEIGHTS_IMPORT_H

#include "api/devices.h"
#include "api/weft.h"
#include "base/text.h"
#include "model/gguf/gguf.h"
#include "model/shelf.h"

/* Before any weight is placed on the devices, whose integers of weights are then as the owner's. Errors, each with a
 * line: NOT_FOUND, IO (nobody answers: stale), FORMAT, UNSUPPORTED (it fits neither this process nor its device;
 * *otherwise: since it was made for another layout or order of sums, or by a version with another form). */
weft_status weights_import_open(const char *socket, const weft_devices *devices, weft_weights **out, bool *otherwise,
                                weft_error *error);
/* Whether what is mapped holds after the owner's end; where it does not, nothing may compute with it from then on. */
bool weights_import_outlives(const weft_weights *weights);
/* The owner's cut of the model in the place of the one that was planned here. After weights_import_shelf. */
void weights_import_cut(const weft_weights *weights, const weft_shelf *shelf, weft_split *split);
/* The shelf of a model file; NULL, with WEFT_OK: the owner was told not to load models of this kind, so this process
 * does. UNSUPPORTED, with a line: the owner has another file. It is the weights' until close. */
weft_status weights_import_shelf(weft_weights *weights, const weft_gguf *gguf, bool drafts, const weft_shelf **out,
                                 weft_error *error);
/* NULL while the owner lives; else a line about it, the weights' until close. Any thread may call. */
const char *weights_import_lost(weft_weights *weights);
/* Can be read, or is hung up, when the owner has ended. */
int weights_import_descriptor(const weft_weights *weights);
/* The line of the plan. */
void weights_import_print(const weft_weights *weights, weft_text *out);

#endif
