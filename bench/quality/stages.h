/* SPDX-License-Identifier: MIT */
/* weft check stages (stages.c): one model computed in two ways, compared stage by stage (model/stages.h). */
#ifndef WEFT_BENCH_QUALITY_STAGES_H
#define WEFT_BENCH_QUALITY_STAGES_H

#include "bench/lab/lab.h"

int weft_check_stages(const weft_lab_config *config);

#endif
