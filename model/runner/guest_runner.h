/* SPDX-License-Identifier: MIT */
/* The runner of a model that comes and goes: it is there for as long as the engine is, and another runner, its inner
 * one, computes while the model is.
 *
 * Law. What it says of itself (info) never changes, and an inner runner must say the same. The engine's thread alone
 * calls the inner runner, and alone lets it go, between two steps with no slot open and no batch in flight: then the
 * guest is away, and the inner runner is its owner's to close. Who brings an inner runner or asks it to leave does so
 * from any other thread and holds up no step: enter and leave only set a word that the next turn reads, and their
 * caller wakes the engine. The guest owns no inner runner. When it lets one go, copies of its rows and steps may still
 * run on the device: settle waits for them, and frees the graphs that name its memory, which nobody may free before.
 *
 *   AWAY --enter--> HERE --leave--> LEAVING --a turn that uses nothing of it--> AWAY */
#ifndef WEFT_MODEL_RUNNER_GUEST_RUNNER_H
#define WEFT_MODEL_RUNNER_GUEST_RUNNER_H

#include "model/runner/device_runner.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Called on the engine's thread, must not block for long: the guest has just gone away, or is no longer used, or is
 * away and requests wait for it, which did not before. */
typedef void (*weft_guest_news)(void *self, weft_runner *guest);

/* config: as for the inner runners, of which what describe needs is read here, and store borrowed; the model may be one
 * that was only planned. The caller closes *out by its close, after the engine. */
weft_status weft_guest_open(const weft_device_runner_config *config, weft_guest_news news, void *self,
                            weft_runner **out, weft_error *error);
/* Brings an inner runner to a guest that is away, which borrows it until it is away again. */
void weft_guest_enter(weft_runner *guest, weft_runner *inner);
/* Asks the inner runner to leave; nothing where there is none. */
void weft_guest_leave(weft_runner *guest);
/* Once the guest is away, from any thread: nothing on the device uses the inner runner any more. */
void weft_guest_settle(weft_runner *guest);
weft_runner_stay weft_guest_state(const weft_runner *guest);
/* Requests that wait for the guest, as of the last turn. */
uint32_t weft_guest_n_waiting(const weft_runner *guest);
/* Whether requests ran, as of the last turn. */
bool weft_guest_is_used(const weft_runner *guest);
/* Ends the requests that wait now with a line; only while the guest is away. */
void weft_guest_refuse(weft_runner *guest, const char *line);

#ifdef __cplusplus
}
#endif
#endif
