/* SPDX-License-Identifier: MIT */
/* One room for the pool and for models that come and go: what models of --models-dir do not take, the pool has.
 *
 * Law. The pool and the models that are loading, ready or leaving take at most the bytes of --kv-mib and --models-mib
 * together, at every moment: the pool gives memory back before the first byte of a model is read, and has it again
 * when the model's is freed. Requests are judged by the pages of --kv-mib, which the pool always has. Where the device
 * bounds its memory (--device-mib) the pool keeps its size. For the files of api/ only. */
#ifndef WEFT_API_SHARED_ROOM_H
#define WEFT_API_SHARED_ROOM_H

#include "api/runtime.h"

/* Once the pool is planned: fills rt->pool but for `changed`, where there is a room to share. */
void shared_room_plan(weft_runtime *rt);
/* Models take n_bytes from now on, or will: asks for a pool that leaves them. True: its memory is given back already.
 * Any thread, once the engines are there. */
bool shared_room_claim(weft_runtime *rt, uint64_t n_bytes);
/* Bytes of the pool that have memory, and the most that it and models may take together; any thread. */
uint64_t shared_room_pool_bytes(weft_runtime *rt);
uint64_t shared_room_bytes(const weft_runtime *rt);

#endif
