/* SPDX-License-Identifier: MIT */
/* The one door of the laboratory (bench/) into the product: simulation, speed, quality and load programs measure
 * the insides of a runtime, which weft.h does not show.
 *
 * * Law: the laboratory includes headers of the product through this file alone, so that this list is everything
 * that a change of an inside interface can break here; nothing of the product includes a file of bench/. The
 * program's main (bench/lab/main.c) stands here because it has the commands of both. The doubles (bench/doubles)
 * stand below the laboratory and include what they stand for themselves, because tests of the scheduler link them
 * without the API. */
#ifndef WEFT_BENCH_INSIDE_H
#define WEFT_BENCH_INSIDE_H

#include "api/chat_template.h"
#include "api/cli/child.h"
#include "api/cli/cli.h"
#include "api/cli/client.h"
#include "api/cli/manual.h"
#include "api/cli/metric.h"
#include "api/cli/plan.h"
#include "api/drafts.h"
#include "api/events/kv_wire.h"
#include "api/json.h"
#include "api/process_metrics.h"
#include "api/runtime.h"
#include "api/served_names.h"
#include "api/server/keys.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/memory_room.h"
#include "base/random.h"
#include "base/text.h"
#include "base/threads.h"
#include "kernels/arena.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/ops.h"
#include "model/check.h"
#include "model/gguf/gguf.h"
#include "model/gguf/numbers.h"
#include "model/inspect.h"
#include "model/logits.h"
#include "model/stages.h"
#include "model/runner/runner.h"
#include "model/text/chat.h"
#include "model/text/tokenizer.h"
#include "pager/pager.h"
#include "scheduler/check.h"
#include "scheduler/engine.h"
#include "scheduler/replica_choice.h"
#include "scheduler/replicas.h"
#include "scheduler/sent_prefixes.h"

#endif
