/* SPDX-License-Identifier: MIT */
/* The canvas of `weft demo`: one answer by diffusion, seen while it is denoised.
 *
 * Law: every step is shown when the server told of it: on a terminal over the one before, slowed down so that it can
 * be seen, which is said; elsewhere as a line of its own, in which `_` is a position that is noise. */
#ifndef WEFT_API_CLI_DEMO_CANVAS_H
#define WEFT_API_CLI_DEMO_CANVAS_H

#include <stdint.h>

#include "api/config.h"

/* Asks the server on this port of 127.0.0.1. 0, or an exit code after one line. */
int weft_demo_canvas(const weft_config *config, uint16_t port, const char *model);

#endif
