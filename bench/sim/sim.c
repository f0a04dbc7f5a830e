/* SPDX-License-Identifier: MIT */
#include "bench/sim/sim.h"

#include "bench/lab/lab.h"
#include "bench/sim/assignment.h"

int weft_lab_sim(const weft_config *product) {
  const weft_lab_config *config = weft_lab_of(product);
  weft_sim_profile profile;
  weft_sim_load load = {0};
  weft_sim_run run = {0};
  if (config->product.words.n > 0) {
    return weft_cli_fail(WEFT_EXIT_USAGE, "sim: '%s' is no option; a trace is named with --trace",
                         config->product.words.item[0]);
  }
  if (config->csv && config->product.json) {
    return weft_cli_fail(WEFT_EXIT_USAGE, "sim: --csv and --json exclude each other");
  }
  int code = weft_sim_profile_open(config, &profile);
  if (code == 0) code = weft_sim_load_open(config, &profile, &load);
  if (code == 0) code = weft_sim_run_load(config, &profile, &load, &run);
  if (code == 0 && config->assignment != NULL) code = weft_sim_assignment_write(config->assignment, &load, &run);
  if (code == 0) code = weft_sim_report(config, &load, &run);
  if (code == 0 && config->plots != NULL) code = weft_sim_figures(config, &load, &run);
  weft_sim_run_close(&run);
  weft_sim_load_close(&load);
  return code;
}
