/* SPDX-License-Identifier: MIT */
#include "bench/prove/owner.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "bench/prove/files.h"

extern char **environ;

enum { ARGS_MAX = 64, READY_SECONDS = 60, STOP_SECONDS = 10 };

static prove_verdict fail_owner(prove_owner *owner, prove_outcome *outcome, const char *what) {
  char words[256];
  prove_child_last_words(&owner->child, words);
  owner->state = PROVE_OWNER_FAILED;
  return prove_end(outcome, PROVE_OWNER_BROKEN, "the weight server %s%s%s", what, words[0] != 0 ? ": " : "", words);
}

static bool is_in_state(prove_owner *owner, prove_owner_state state, prove_outcome *outcome) {
  if (owner->state == state) return true;
  (void)fail_owner(owner, outcome, "was called out of turn");
  return false;
}

json_t *prove_owner_fill(const prove_owner *owner, const char *text) {
  char parent[16];
  (void)snprintf(parent, sizeof parent, "%d", (int)getpid());
  const struct {
    const char *name, *value;
  } places[] = {{"{folder}", owner->folder},
                {"{model}", owner->model},
                {"{parent}", parent},
                {"{manifest}", owner->manifest},
                {"{lock}", owner->lock}};
  weft_text out = {0};
  while (*text != 0) {
    size_t n = 1;
    const char *with = NULL;
    for (size_t i = 0; i < sizeof places / sizeof *places && with == NULL; i++) {
      size_t length = strlen(places[i].name);
      if (strncmp(text, places[i].name, length) == 0) with = places[i].value, n = length;
    }
    if (with != NULL) weft_text_puts(&out, with);
    if (with == NULL) weft_text_append(&out, text, 1);
    text += n;
  }
  json_t *filled = weft_text_status(&out) != WEFT_OK ? NULL : json_string(out.n > 0 ? out.bytes : "");
  weft_text_free(&out);
  return filled;
}

prove_verdict prove_owner_open(prove_owner *owner, json_t *file, const char *model, const char *folder,
                               prove_outcome *outcome) {
  *owner = (prove_owner){.file = json_incref(file), .model = model, .state = PROVE_OWNER_OPENED};
  const char *refused = prove_text(file, "refused", NULL);
  owner->args = json_array();
  owner->plans = json_array();
  (void)snprintf(owner->folder, sizeof owner->folder, "%s", folder); /* its length was looked at when it was made */
  json_t *manifest = prove_owner_fill(owner, prove_text(file, "manifest", "{folder}/manifest.json"));
  json_t *lock = prove_owner_fill(owner, prove_text(file, "lock", "{folder}/weights.lock"));
  bool good = manifest != NULL && lock != NULL && owner->args != NULL && owner->plans != NULL;
  if (good) (void)snprintf(owner->manifest, sizeof owner->manifest, "%s", json_string_value(manifest));
  if (good) (void)snprintf(owner->lock, sizeof owner->lock, "%s", json_string_value(lock));
  (void)snprintf(owner->log, sizeof owner->log, "%.400s/weight-server.log", folder);
  json_decref(manifest);
  json_decref(lock);
  if (refused != NULL) {
    owner->state = PROVE_OWNER_FAILED;
    return prove_end(outcome, PROVE_OWNER_REFUSED, "%s", refused);
  }
  const json_t *command = json_object_get(file, "command");
  for (size_t i = 0; good && i < json_array_size(command); i++) {
    good =
        json_array_append_new(owner->args, prove_owner_fill(owner, json_string_value(json_array_get(command, i)))) == 0;
  }
  return good ? PROVE_PROVEN : fail_owner(owner, outcome, "cannot be prepared: no memory");
}

/* more: further arguments; NULL: none. */
static weft_status run_command(prove_owner *owner, const json_t *more, weft_error *error) {
  const char *args[ARGS_MAX + 1];
  size_t n = 0;
  for (size_t i = 0; i < json_array_size(owner->args) && n < ARGS_MAX; i++)
    args[n++] = json_string_value(json_array_get(owner->args, i));
  for (size_t i = 0; i < json_array_size(more) && n < ARGS_MAX; i++)
    args[n++] = json_string_value(json_array_get(more, i));
  args[n] = NULL;
  return prove_child_start(&owner->child, args, NULL, owner->log, error);
}

static void keep_event(json_t **place, json_t *event) {
  json_decref(*place);
  *place = json_incref(event);
}

/* True when it was `wanted`. What is no event is passed over: programs say other things, too. */
static bool take_event(prove_owner *owner, const char *line, const char *wanted) {
  json_t *event = json_loads(line, 0, NULL);
  const char *name = prove_text(event, "event", "");
  if (strcmp(name, "preflight") == 0) keep_event(&owner->preflight, event);
  if (strcmp(name, "upload") == 0) keep_event(&owner->upload, event);
  if (strcmp(name, "support") == 0) keep_event(&owner->support, event);
  if (strcmp(name, "broker") == 0) keep_event(&owner->broker, event);
  if (strcmp(name, "plan") == 0) (void)json_array_append(owner->plans, event); /* a missing one fails the verdict */
  if (strcmp(name, "request") == 0) owner->n_requests += 1;
  const char *path = strcmp(name, "lock") == 0 ? prove_text(event, "path", NULL) : NULL;
  if (path != NULL)
    (void)snprintf(owner->lock, sizeof owner->lock, "%s", path); /* its length was looked at by open(2) */
  if (strcmp(name, "shutdown") == 0) owner->saw_shutdown = true;
  if (strcmp(name, "guard") == 0) owner->guarded = prove_number(event, "parent", 0) == (uint64_t)getpid();
  if (strcmp(name, "ready") == 0) {
    (void)snprintf(owner->backend, sizeof owner->backend, "%s", prove_text(event, "backend", ""));
    (void)snprintf(owner->scope, sizeof owner->scope, "%s", prove_text(event, "scope", ""));
  }
  bool found = strcmp(name, wanted) == 0;
  json_decref(event);
  return found;
}

static bool hear_event(prove_owner *owner, const char *wanted, uint64_t until_us) {
  char line[PROVE_LINE_MAX];
  while (prove_child_line(&owner->child, line, until_us) == WEFT_OK) {
    if (take_event(owner, line, wanted)) return true;
  }
  return false;
}

static uint64_t seconds_from_now(const prove_owner *owner, const char *name, uint64_t other) {
  return weft_clock_us() + prove_number(owner->file, name, other) * 1000000u;
}

prove_verdict prove_owner_check(prove_owner *owner, prove_outcome *outcome) {
  weft_error error = {{0}};
  const json_t *more = json_object_get(owner->file, "dry_run");
  uint64_t until = seconds_from_now(owner, "ready_seconds", READY_SECONDS);
  if (!is_in_state(owner, PROVE_OWNER_OPENED, outcome)) return outcome->verdict;
  if (run_command(owner, more, &error) != WEFT_OK) return fail_owner(owner, outcome, error.text);
  bool told = hear_event(owner, "preflight", until);
  while (prove_child_alive(&owner->child) && weft_clock_us() < until && !prove_told_to_stop()) (void)usleep(5000);
  bool ended = !prove_child_alive(&owner->child);
  (void)prove_child_stop(&owner->child, 0);
  if (!told || !ended || owner->child.code != 0) return fail_owner(owner, outcome, "did not finish its dry run");
  if (!prove_flag(owner->preflight, "fits")) {
    owner->state = PROVE_OWNER_FAILED;
    return prove_end(outcome, PROVE_NO_ROOM,
                     "the weight server's dry run says that the weights do not fit: %" PRIu64
                     " bytes are needed and %" PRIu64 " are free",
                     prove_number(owner->preflight, "need_bytes", 0), prove_number(owner->preflight, "free_bytes", 0));
  }
  owner->state = PROVE_OWNER_CHECKED;
  return PROVE_PROVEN;
}

prove_verdict prove_owner_start(prove_owner *owner, prove_outcome *outcome) {
  weft_error error = {{0}};
  if (!is_in_state(owner, PROVE_OWNER_CHECKED, outcome)) return outcome->verdict;
  if (run_command(owner, NULL, &error) != WEFT_OK) return fail_owner(owner, outcome, error.text);
  owner->state = PROVE_OWNER_STARTED;
  return PROVE_PROVEN;
}

/* Somebody else holds the lock of the file. */
static bool is_locked(const char *path) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  bool taken = flock(fd, LOCK_EX | LOCK_NB) != 0;
  (void)close(fd); /* and with it our lock */
  return taken;
}

prove_verdict prove_owner_wait(prove_owner *owner, prove_outcome *outcome) {
  uint64_t start = weft_clock_us();
  if (!is_in_state(owner, PROVE_OWNER_STARTED, outcome)) return outcome->verdict;
  bool ready = hear_event(owner, "ready", seconds_from_now(owner, "ready_seconds", READY_SECONDS));
  owner->start_seconds = (double)(weft_clock_us() - start) * 1e-6;
  if (!ready && prove_told_to_stop()) {
    owner->state = PROVE_OWNER_FAILED;
    return prove_end(outcome, PROVE_STOPPED, "stopped while the weight server began");
  }
  if (!ready)
    return fail_owner(owner, outcome,
                      prove_child_alive(&owner->child) ? "was not ready in time" : "ended before it was ready");
  owner->locked = is_locked(owner->lock);
  owner->state = PROVE_OWNER_READY;
  return PROVE_PROVEN;
}

void prove_free_environment(char **env) {
  for (size_t i = 0; env != NULL && env[i] != NULL; i++) weft_free(env[i]);
  weft_free(env);
}

static char *join_variable(const prove_owner *owner, const char *name, const char *value) {
  weft_text line = {0};
  json_t *filled = prove_owner_fill(owner, value);
  weft_text_printf(&line, "%s=%s", name, filled != NULL ? json_string_value(filled) : "");
  char *copy = filled == NULL || weft_text_status(&line) != WEFT_OK ? NULL : weft_strdup(line.bytes);
  json_decref(filled);
  weft_text_free(&line);
  return copy;
}

char **prove_owner_export(prove_owner *owner, prove_outcome *outcome) {
  json_t *exported = json_object_get(owner->file, "export"), *value;
  const char *name;
  size_t n = 0, n_ours = 0;
  if (!is_in_state(owner, PROVE_OWNER_READY, outcome)) return NULL;
  while (environ[n_ours] != NULL) n_ours += 1;
  char **env = weft_alloc(n_ours + json_object_size(exported) + 1, sizeof *env);
  bool good = env != NULL;
  json_object_foreach(exported, name, value) { /* first: of two variables of one name the first one counts */
    good = good && (env[n] = join_variable(owner, name, json_string_value(value))) != NULL;
    n += good;
  }
  for (size_t i = 0; good && i < n_ours; i++) {
    good = (env[n] = weft_strdup(environ[i])) != NULL;
    n += good;
  }
  if (!good) {
    prove_free_environment(env);
    (void)fail_owner(owner, outcome, "has told where its weights are, but there is no memory to tell workers");
    return NULL;
  }
  owner->state = PROVE_OWNER_EXPORTED;
  return env;
}

static bool is_gone(const char *path) {
  return access(path, F_OK) != 0;
}

prove_verdict prove_owner_stop(prove_owner *owner, prove_outcome *outcome) {
  char line[PROVE_LINE_MAX];
  if (!is_in_state(owner, PROVE_OWNER_EXPORTED, outcome)) return outcome->verdict;
  bool lived = prove_child_alive(&owner->child);
  uint32_t grace = (uint32_t)prove_number(owner->file, "stop_seconds", STOP_SECONDS);
  int out = owner->child.hears ? dup(owner->child.out) : -1; /* what it says last is read when it is gone */
  bool ended = prove_child_stop(&owner->child, grace * 1000u);
  if (out >= 0) {
    prove_child rest = {.out = out, .hears = true};
    while (prove_child_line(&rest, line, weft_clock_us() + 1000000u) == WEFT_OK) (void)take_event(owner, line, "");
    if (rest.hears) (void)close(out); /* only read */
  }
  bool released = !is_locked(owner->lock);
  owner->clean = lived && ended && released && is_gone(owner->manifest);
  owner->state = PROVE_OWNER_STOPPED;
  if (!lived) return fail_owner(owner, outcome, "ended while it was needed");
  if (!ended)
    return fail_owner(owner, outcome, owner->child.killed ? "had to be killed" : "did not end with the exit code 0");
  return owner->clean ? PROVE_PROVEN : fail_owner(owner, outcome, "left its lock or its manifest behind");
}

void prove_owner_close(prove_owner *owner) {
  (void)prove_child_stop(&owner->child, (uint32_t)prove_number(owner->file, "stop_seconds", STOP_SECONDS) * 1000u);
  if (owner->manifest[0] != 0) (void)unlink(owner->manifest);                      /* not there is as good */
  bool own_lock = strncmp(owner->lock, owner->folder, strlen(owner->folder)) == 0; /* else it may be another's by now */
  if (owner->lock[0] != 0 && own_lock) (void)unlink(owner->lock);
  json_decref(owner->file);
  json_decref(owner->preflight);
  json_decref(owner->upload);
  json_decref(owner->support);
  json_decref(owner->plans);
  json_decref(owner->broker);
  json_decref(owner->args);
  *owner = (prove_owner){.state = PROVE_OWNER_NONE};
}

/* ---- the report ---------------------------------------------------------------------------------------------- */

static json_t *share_or_null(json_t *value) {
  return value != NULL ? json_incref(value) : json_null();
}

json_t *prove_owner_block(const prove_owner *owner) {
  json_t *block = json_object();
  if (owner->state == PROVE_OWNER_NONE) return json_decref(block), json_null();
  (void)json_object_set_new(block, "command", share_or_null(owner->args));
  (void)json_object_set_new(block, "manifest", json_string(owner->manifest));
  (void)json_object_set_new(block, "log", json_string(owner->log));
  (void)json_object_set_new(block, "scope", json_string(prove_text(owner->file, "scope", "target")));
  (void)json_object_set_new(block, "dry_run", share_or_null(owner->preflight));
  (void)json_object_set_new(block, "start_seconds", json_real(owner->start_seconds));
  (void)json_object_set_new(block, "clean_up", json_boolean(owner->clean));
  return block; /* what is missing for want of memory fails the schema of the report */
}

json_t *prove_owner_validation(const prove_owner *owner) {
  if (owner->state == PROVE_OWNER_NONE) return json_null();
  bool vmm = strcmp(prove_text(owner->file, "backend", ""), "vmm") == 0;
  const struct {
    const char *name;
    bool wanted, good;
  } items[] = {
      {"ready", true, owner->backend[0] != 0},
      {"backend", true, strcmp(owner->backend, prove_text(owner->file, "backend", "")) == 0},
      {"scope", true, strcmp(owner->scope, prove_text(owner->file, "scope", "target")) == 0},
      {"preflight", true, prove_flag(owner->preflight, "fits")},
      {"upload_telemetry", true,
       prove_number(owner->upload, "bytes", 0) > 0 && json_is_number(json_object_get(owner->upload, "seconds"))},
      {"parent_guard", true, owner->guarded},
      {"lock", true, owner->locked},
      {"shutdown_observed", true, owner->saw_shutdown},
      {"clean_termination", true, owner->clean},
      {"support_telemetry", vmm, owner->support != NULL},
      {"plans", vmm, json_array_size(owner->plans) > 0},
      {"broker_startup", vmm, owner->broker != NULL},
      {"broker_requests", vmm, owner->n_requests > 0},
  };
  json_t *block = json_object();
  bool all = true;
  for (size_t i = 0; i < sizeof items / sizeof *items; i++) {
    (void)json_object_set_new(block, items[i].name, items[i].wanted ? json_boolean(items[i].good) : json_null());
    all = all && (!items[i].wanted || items[i].good);
  }
  (void)json_object_set_new(block, "valid", json_boolean(all));
  return block;
}
