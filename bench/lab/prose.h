/* SPDX-License-Identifier: MIT */
/* A text in plain English, some 2 KB, written for this laboratory and therefore in no training set.
 *
 * Law: results of weft bench preset and weft test-model depend on it, so a change makes them other results. */
#ifndef WEFT_BENCH_LAB_PROSE_H
#define WEFT_BENCH_LAB_PROSE_H

extern const char weft_lab_prose[];

#endif
