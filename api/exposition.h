/* SPDX-License-Identifier: MIT */
/* The text of /metrics as it goes out, made of what weft_metrics and the server wrote: as it is for Prometheus, or
 * rewritten as OpenMetrics 1.0.
 *
 * Law: the input is families, each a line # HELP, a line # TYPE and its samples. A family whose name tells a span in
 * `_microseconds` or `_nanoseconds` is followed by the same in the base unit, `_seconds`, to the last digit. In
 * OpenMetrics a counter's family has its name without `_total`, `# UNIT` says the unit that a name ends with, and the
 * last line is `# EOF`. */
#ifndef WEFT_API_EXPOSITION_H
#define WEFT_API_EXPOSITION_H

#include "base/text.h"

void exposition_write(const weft_text *families, bool open_metrics, weft_text *out);

#endif
