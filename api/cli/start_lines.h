/* SPDX-License-Identifier: MIT */
/* What a server says when it listens: on which device and why, how much memory and for how many, where clients go, who
 * may ask, how to end it.
 *
 * Law: every value is read from what was opened, not from what was asked for; one fact a line, each with the option that
 * changes it. The first line is the only one that programs may read; with --quiet it is the only one. */
#ifndef WEFT_API_CLI_START_LINES_H
#define WEFT_API_CLI_START_LINES_H

#include "api/config.h"
#include "api/server/server.h"
#include "base/text.h"

/* Where it listens: http://127.0.0.1:8080, or unix:PATH. */
void start_print_url(const weft_config *config, uint32_t port, weft_text *out);
/* The lines after the first, each with its line feed. is_open: whoever reaches the port may ask. */
void start_print_facts(const weft_config *config, const weft_runtime *runtime, const char *url, bool is_open,
                       weft_text *out);

#endif
