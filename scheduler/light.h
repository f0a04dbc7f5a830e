/* SPDX-License-Identifier: MIT */
/* Light tenants: who decodes beside rivals and uses little keeps its pace, also where no latency target is set.
 *
 * Law. A tenant is light while it has used less than half of its fair share of the device time lately (tenant.h), and
 * no tenant of a higher class has requests. While a light tenant decodes on a lane, a step of that lane takes no longer
 * than WEFT_LIGHT_FACTOR times the fair time of its decode rows (policy.h), or as many times the decode rows of all
 * light tenants of the lane where that is more, but for an error of prediction and for the first piece of the others
 * (pace.h), which always runs. So a tenant either gets at least half of its fair share, or its answers grow at a part
 * of their fair speed that does not depend on what others send; all light tenants' rows together take at most one part
 * in WEFT_LIGHT_FACTOR of such a step, and the rest is the others'. Nothing is limited where no tenant is light. */
#ifndef WEFT_SCHEDULER_LIGHT_H
#define WEFT_SCHEDULER_LIGHT_H

#include "scheduler/planning.h"

/* Of the time of steps with light tenants' decode rows, one part in so many is for steps that hold nothing else: so
 * the cost model learns what these rows take alone, which steps full of canvases do not show. */
enum { WEFT_LIGHT_ALONE = 128 };

/* Before anything is planned, after weft_share_open: the time of the step, 0 for no limit. */
double weft_light_open(weft_planning *planning);
/* When all is planned. */
void weft_light_close(weft_planning *planning);

#endif
