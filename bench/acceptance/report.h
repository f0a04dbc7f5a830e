/* SPDX-License-Identifier: MIT */
/* The report of weft test-model: what was looked at, what was found, and what to do about it.
 *
 * Law: each thing that is looked at gives one line with one of four verdicts. A line that is not good says in one
 * sentence what was seen and in another what to do; a check that could not be made says why. Nothing in a report
 * names a folder, a user or a machine, so it can be sent to others as it is. The JSON has everything that the text
 * has. */
#ifndef WEFT_BENCH_ACCEPTANCE_REPORT_H
#define WEFT_BENCH_ACCEPTANCE_REPORT_H

#include <jansson.h>

#include "bench/lab/lab.h"

typedef enum acceptance_verdict {
  ACCEPTANCE_GOOD = 0,
  ACCEPTANCE_LEFT_OUT = 1, /* not looked at, for the reason that is said */
  ACCEPTANCE_LOOK = 2,     /* unusual, or something that this file cannot do: whether it is wrong, a person decides */
  ACCEPTANCE_BAD = 3,      /* no sound model file gives this */
  ACCEPTANCE_VERDICTS = 4
} acceptance_verdict;

typedef struct acceptance_report {
  bool quiet;   /* print no lines of text: JSON comes at the end */
  json_t *root; /* "file", "machine", "checks", "figures", "answers" */
  uint32_t n[ACCEPTANCE_VERDICTS];
  const char *last_act; /* that was printed: not said again in the next line */
  char folder[512];     /* of the model file, with the last slash: left out of what is said */
} acceptance_report;

/* path: of the model file. NO_MEMORY. */
weft_status acceptance_report_open(acceptance_report *report, bool quiet, const char *path, weft_error *error);
void acceptance_report_close(acceptance_report *report);

/* Adds a line. act: what to do, a sentence; NULL: nothing. The rest says what was seen, as printf does; bytes that
 * are no UTF-8 and control characters are written as \xNN. */
void acceptance_add(acceptance_report *report, const char *check, acceptance_verdict verdict, const char *act,
                    const char *format, ...) __attribute__((format(printf, 5, 6)));
/* A number of the run, under a name with its unit. */
void acceptance_figure(acceptance_report *report, const char *name, double value);

/* The worst verdict of all lines. */
acceptance_verdict acceptance_result(const acceptance_report *report);
const char *acceptance_word(acceptance_verdict verdict);
/* The report as JSON text, which the caller frees with free; NULL: memory was refused, here or in the run. */
char *acceptance_json(acceptance_report *report);

#endif
