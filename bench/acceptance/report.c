/* SPDX-License-Identifier: MIT */
#include "bench/acceptance/report.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { SAID_MAX = 1024, FORM = 1 };

static const char *const words[ACCEPTANCE_VERDICTS] = {"good", "left out", "look", "bad"};

const char *acceptance_word(acceptance_verdict verdict) {
  return words[verdict];
}

weft_status acceptance_report_open(acceptance_report *report, bool quiet, const char *path, weft_error *error) {
  const char *slash = strrchr(path, '/');
  *report = (acceptance_report){.quiet = quiet};
  if (slash != NULL) (void)snprintf(report->folder, sizeof report->folder, "%.*s", (int)(slash + 1 - path), path);
  report->root = json_pack("{s:i, s:s, s:s, s:{}, s:{}, s:[], s:{}, s:[]}", "form", FORM, "weft", weft_version(),
                           "verdict", "", "file", "machine", "checks", "figures", "answers");
  return report->root == NULL ? weft_fail(error, WEFT_E_NO_MEMORY, "no memory for the report") : WEFT_OK;
}

void acceptance_report_close(acceptance_report *report) {
  json_decref(report->root);
  report->root = NULL;
}

static void leave_out(char *said, const char *folder) {
  size_t n = strlen(folder);
  for (char *at = said; n > 0 && (at = strstr(at, folder)) != NULL;) memmove(at, at + n, strlen(at + n) + 1);
}

void acceptance_add(acceptance_report *report, const char *check, acceptance_verdict verdict, const char *act,
                    const char *format, ...) {
  char said[SAID_MAX], clean[2 * SAID_MAX];
  va_list list;
  va_start(list, format);
  (void)vsnprintf(said, sizeof said, format, list);
  va_end(list);
  leave_out(said, report->folder);
  (void)weft_utf8_clean(said, clean, sizeof clean);
  report->n[verdict] += 1;
  json_t *line = json_pack("{s:s, s:s, s:s}", "check", check, "verdict", words[verdict], "said", clean);
  if (act != NULL) (void)json_object_set_new(line, "do", json_string(act));
  (void)json_array_append_new(json_object_get(report->root, "checks"), line);
  if (report->quiet) return;
  (void)printf("%-9s %-12s %s\n", words[verdict], check, clean);
  if (act != NULL && act != report->last_act) (void)printf("%-9s %-12s -> %s\n", "", "", act);
  report->last_act = act;
  (void)fflush(stdout); /* a line at a time: some checks take minutes */
}

void acceptance_figure(acceptance_report *report, const char *name, double value) {
  (void)json_object_set_new(json_object_get(report->root, "figures"), name, json_real(value));
}

acceptance_verdict acceptance_result(const acceptance_report *report) {
  for (int v = ACCEPTANCE_BAD; v > ACCEPTANCE_LEFT_OUT; v--) {
    if (report->n[v] > 0) return (acceptance_verdict)v;
  }
  return ACCEPTANCE_GOOD;
}

char *acceptance_json(acceptance_report *report) {
  uint32_t n = 0;
  for (uint32_t v = 0; v < ACCEPTANCE_VERDICTS; v++) n += report->n[v];
  if (json_array_size(json_object_get(report->root, "checks")) != n) return NULL; /* a line found no memory */
  (void)json_object_set_new(report->root, "verdict", json_string(words[acceptance_result(report)]));
  return json_dumps(report->root, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
}
