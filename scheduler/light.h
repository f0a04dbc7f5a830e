/* SPDX-License-Identifier: MIT */
/* Light tenants: a tenant that decodes beside rivals and uses little keeps its pace, also where no latency target is
 * set.
 *
 * Law. A tenant is light while it has used less than half of its fair share of the device time lately (used_lately in
 * tenant.h) and no tenant of a higher class has requests. While a light tenant decodes on a lane, a step of that lane
 * takes no longer than a limit: WEFT_LIGHT_FACTOR times the fair time of that tenant's decode rows (policy.h; of
 * several tenants the shortest), or, where that is more, WEFT_LIGHT_FACTOR times what the decode rows of all light
 * tenants of the lane take. A step takes longer in two cases only: the prediction of its time was wrong, or the first
 * piece of work of the other tenants, which is let in whatever its length (pace.h), is longer than the limit.
 *
 * So a tenant either gets at least half of its fair share, or its answers grow at a fixed part of their fair speed
 * that does not depend on what others send. All light tenants' rows together take at most one part in
 * WEFT_LIGHT_FACTOR of such a step, and the rest belongs to the others. Nothing is limited where no tenant is light. */
#ifndef WEFT_SCHEDULER_LIGHT_H
#define WEFT_SCHEDULER_LIGHT_H

#include "scheduler/planning.h"

/* One part in WEFT_LIGHT_ALONE of the time of steps with light tenants' decode rows goes to steps that hold nothing
 * else. The cost model learns from these steps what such rows take alone, which steps full of canvases do not show. */
enum { WEFT_LIGHT_ALONE = 128 };

/* Called before anything is planned, after weft_share_open. Returns the limit of the step in microseconds; 0: no
 * limit. */
double weft_light_open(weft_planning *planning);
/* Called when the plan is complete: remembers for the next plans what found no time. */
void weft_light_close(weft_planning *planning);

#endif
