/* SPDX-License-Identifier: MIT */
/* The one model file of a command of the laboratory, on the devices that the command's options say.
 *
 * Law: open looks at the file only, so that what is wrong with the rest of a command line is said before weights are
 * loaded; load does the rest. close undoes whatever was done. */
#ifndef WEFT_BENCH_LAB_MODEL_H
#define WEFT_BENCH_LAB_MODEL_H

#include "bench/lab/lab.h"

typedef struct weft_lab_model {
  weft_gguf *gguf;
  weft_devices devices;
  weft_device *device; /* the first of them */
  weft_model *model;
  weft_model_limits limits;
} weft_lab_model;

/* The devices that --backend, --devices, --threads and --precision name, for this file, without graphs. The caller
 * closes them, whatever is returned. INVALID: --split replicas, which gives no command of one model anything to do. */
weft_status weft_lab_devices(const weft_lab_config *config, weft_gguf *gguf, weft_devices *devices, weft_error *error);

weft_status weft_lab_model_open(weft_lab_model *m, const weft_lab_config *config, weft_error *error);
weft_status weft_lab_model_load(weft_lab_model *m, const weft_lab_config *config, const weft_model_limits *limits,
                                weft_error *error);
void weft_lab_model_close(weft_lab_model *m);

/* Tokens where none were given: drawn, always the same. NULL: no memory. */
int32_t *weft_lab_draw_tokens(uint32_t n, uint32_t n_vocab);

#endif
