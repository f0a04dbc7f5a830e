/* SPDX-License-Identifier: MIT */
/* The owner of shared weights in a proof: a program of a file of weight-servers/, which the runner looks after from its
 * dry run to its end.
 *
 * Law: the states follow one another (below) and no call leaves one out; whatever fails, prove_owner_close ends the
 * program and removes what it left. The program speaks one JSON object a line on its standard output, {"event": ...}:
 *
 *   preflight  {fits, need_bytes, free_bytes}   of the dry run, which then ends with the exit code 0
 *   support    {...}                            vmm: what the card supports
 *   plan       {...}                            vmm: which ranges are taken
 *   lock       {path}                           the file that it holds locked (flock) as long as it lives
 *   guard      {parent}                         the process whose end ends it
 *   upload     {bytes, seconds}
 *   broker     {socket}                         vmm: where workers ask for ranges
 *   ready      {backend, scope, manifest}
 *   request    {...}                            vmm: a worker has asked
 *   shutdown   {}                               after SIGTERM, before it ends with the exit code 0
 *
 * The scope is that of the file, "target" where it says none: the weights of the target alone, without drafts. */
#ifndef WEFT_BENCH_PROVE_OWNER_H
#define WEFT_BENCH_PROVE_OWNER_H

#include <jansson.h>

#include "bench/prove/child.h"
#include "bench/prove/verdict.h"

typedef enum prove_owner_state {
  PROVE_OWNER_NONE = 0, /* no profile asked for one */
  PROVE_OWNER_OPENED,
  PROVE_OWNER_CHECKED, /* the dry run said that it fits */
  PROVE_OWNER_STARTED,
  PROVE_OWNER_READY,
  PROVE_OWNER_EXPORTED, /* workers have been told */
  PROVE_OWNER_STOPPED,
  PROVE_OWNER_FAILED
} prove_owner_state;

typedef struct prove_owner {
  prove_owner_state state;
  json_t *file, *preflight, *upload, *support, *plans, *broker, *args;
  char folder[PROVE_PATH_MAX], manifest[PROVE_PATH_MAX], lock[PROVE_PATH_MAX], log[PROVE_PATH_MAX];
  const char *model;
  char backend[32], scope[32];
  prove_child child;
  double start_seconds;
  uint64_t n_requests;
  bool guarded, locked, saw_shutdown, clean;
} prove_owner;

/* Each is legal in one state and leads to the next one, or to FAILED with an outcome. file: borrowed until close. */
prove_verdict prove_owner_open(prove_owner *owner, json_t *file, const char *model, const char *folder,
                               prove_outcome *outcome);
prove_verdict prove_owner_check(prove_owner *owner, prove_outcome *outcome);
prove_verdict prove_owner_start(prove_owner *owner, prove_outcome *outcome);
prove_verdict prove_owner_wait(prove_owner *owner, prove_outcome *outcome);
/* The environment for workers: ours and what the file exports. The caller frees it (prove_free_environment). NULL: an
 * outcome. */
char **prove_owner_export(prove_owner *owner, prove_outcome *outcome);
prove_verdict prove_owner_stop(prove_owner *owner, prove_outcome *outcome);
/* In any state. */
void prove_owner_close(prove_owner *owner);

/* The blocks weight_server and weight_server_validation of a report; null where there is none. */
json_t *prove_owner_block(const prove_owner *owner);
json_t *prove_owner_validation(const prove_owner *owner);

void prove_free_environment(char **env);
/* text with {folder}, {model}, {parent}, {manifest} and {lock} filled in, as a JSON string; NULL: no memory. */
json_t *prove_owner_fill(const prove_owner *owner, const char *text);

#endif
