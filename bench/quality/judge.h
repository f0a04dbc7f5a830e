/* SPDX-License-Identifier: MIT */
/* Is an answer right? One example of an evaluation file against the text that came back. */
#ifndef WEFT_BENCH_QUALITY_JUDGE_H
#define WEFT_BENCH_QUALITY_JUDGE_H

#include <jansson.h>
#include <stdbool.h>

/* item: {"answer": text} or {"validator": {"kind": "json" | "sentence" | "items", ...}}. An unknown kind is never
 * right. */
bool weft_judge(json_t *item, const char *text);

#endif
