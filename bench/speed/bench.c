/* SPDX-License-Identifier: MIT */
/* weft bench: which part is measured. */
#include "bench/speed/bench.h"

#include <stdlib.h>
#include <string.h>

void weft_bench_print(const json_t *records) {
  char *text = json_dumps(records, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
  (void)printf("%s\n", text == NULL ? "[]" : text);
  free(text); /* of jansson */
}

int weft_lab_bench(const weft_config *product) {
  const weft_lab_config *config = weft_lab_of(product);
  const char *what = config->product.words.n > 0 ? config->product.words.item[0] : "model";
  if (strcmp(what, "model") == 0) return weft_bench_model(config);
  if (strcmp(what, "kernels") == 0) return weft_bench_kernels(config);
  if (strcmp(what, "pager") == 0) return weft_bench_pager(config);
  if (strcmp(what, "capacity") == 0) return weft_bench_capacity(config);
  if (strcmp(what, "scheduler") == 0) return weft_bench_scheduler(config);
  if (strcmp(what, "peer") == 0) return weft_bench_peer(config);
  if (strcmp(what, "serving") == 0) return weft_bench_serving(config);
  if (strcmp(what, "pressure") == 0) return weft_bench_pressure(config);
  if (strcmp(what, "tenants") == 0) return weft_bench_tenants(config);
  if (strcmp(what, "room") == 0) return weft_bench_room(config);
  if (strcmp(what, "profile") == 0) return weft_bench_profile(config);
  return weft_cli_fail(WEFT_EXIT_USAGE,
                       "bench: '%s' must be model, room, kernels, pager, capacity, scheduler, peer, serving, pressure, "
                       "tenants or profile",
                       what);
}
