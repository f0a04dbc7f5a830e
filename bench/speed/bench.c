/* SPDX-License-Identifier: MIT */
/* weft bench: which part is measured. */
#include "bench/speed/bench.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const struct {
  const char *name;
  int (*run)(const weft_lab_config *config);
} parts[] = {
    {"model", weft_bench_model},       {"frontier", weft_bench_frontier}, {"compare", weft_bench_compare},
    {"preset", weft_bench_preset},     {"phases", weft_bench_phases},     {"arena", weft_bench_arena},
    {"stages", weft_bench_stages},     {"room", weft_bench_room},         {"kernels", weft_bench_kernels},
    {"pager", weft_bench_pager},       {"capacity", weft_bench_capacity}, {"scheduler", weft_bench_scheduler},
    {"peer", weft_bench_peer},         {"serving", weft_bench_serving},   {"drafts", weft_bench_drafts},
    {"pressure", weft_bench_pressure}, {"tenants", weft_bench_tenants},   {"profile", weft_bench_profile},
    {"experts", weft_bench_experts},   {"repeats", weft_bench_repeats},   {"batching", weft_bench_batching},
    {"graphs", weft_bench_graphs},
};
enum { PARTS = sizeof parts / sizeof *parts };

void weft_bench_print(const json_t *records) {
  char *text = json_dumps(records, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
  (void)printf("%s\n", text == NULL ? "[]" : text);
  free(text); /* of jansson */
}

int weft_bench_draw(const weft_lab_config *config, const weft_plot *plot, const char *file) {
  char path[4096];
  if (mkdir(config->plots, 0777) != 0 && errno != EEXIST)
    return weft_cli_fail(WEFT_EXIT_USAGE, "--plots %s: %s", config->plots, strerror(errno));
  int length = snprintf(path, sizeof path, "%s/%s", config->plots, file);
  if (length < 0 || (size_t)length >= sizeof path)
    return weft_cli_fail(WEFT_EXIT_USAGE, "--plots: the name is too long");
  return weft_plot_write(plot, path);
}

static int refuse_part(const char *what) {
  weft_text names = {0};
  for (uint32_t i = 0; i < PARTS; i++)
    weft_text_printf(&names, "%s%s", i == 0 ? "" : i + 1 == PARTS ? " or " : ", ", parts[i].name);
  int code = weft_cli_fail(WEFT_EXIT_USAGE, "bench: '%s' must be %s", what, names.n > 0 ? names.bytes : "another word");
  weft_text_free(&names);
  return code;
}

int weft_lab_bench(const weft_config *product) {
  const weft_lab_config *config = weft_lab_of(product);
  const char *what = config->product.words.n > 0 ? config->product.words.item[0] : "model";
  for (uint32_t i = 0; i < PARTS; i++) {
    if (strcmp(what, parts[i].name) == 0) return parts[i].run(config);
  }
  return refuse_part(what);
}
