/* SPDX-License-Identifier: MIT */
#include "bench/prove/server.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/prove/files.h"
#include "bench/prove/flip.h"

enum { ARGS_MAX = 250, ROOM_SECONDS = 120, STOP_MS = 30000 };

/* Options that are the runner's own. */
static const char *const own_options[] = {"model",   "port",      "host",     "config",  "json",
                                          "help",    "api-key",   "quiet",    "verbose", "parent",
                                          "dry-run", "directory", "drop-key", "die-at",  "drafts-always"};

static prove_verdict check_options(const prove_server *server, prove_outcome *outcome) {
  const char *name;
  json_t *value;
  json_object_foreach(json_object_get(server->profile, "options"), name, value) {
    for (size_t i = 0; i < sizeof own_options / sizeof *own_options; i++) {
      if (strcmp(name, own_options[i]) == 0)
        return prove_end(outcome, PROVE_BAD_FILE, "profile %s: /options/%s: the runner sets this option itself",
                         server->name, name);
    }
  }
  return PROVE_PROVEN;
}

static bool add_text(json_t *list, const char *text) {
  return json_array_append_new(list, json_string(text)) == 0;
}

/* --name value, --name of a flag, or --name value for each of a list. */
static bool add_option(const prove_server *server, json_t *args, const char *name, json_t *value) {
  char flag[96], number[32];
  json_t *one = value;
  bool good = true;
  (void)snprintf(flag, sizeof flag, "--%s", name);
  for (size_t i = 0; good && i < (json_is_array(value) ? json_array_size(value) : 1); i++) {
    if (json_is_array(value)) one = json_array_get(value, i);
    good = add_text(args, flag);
    if (json_is_string(one))
      good = good && json_array_append_new(args, prove_owner_fill(&server->owner, json_string_value(one))) == 0;
    if (json_is_integer(one)) (void)snprintf(number, sizeof number, "%" JSON_INTEGER_FORMAT, json_integer_value(one));
    if (json_is_real(one)) (void)snprintf(number, sizeof number, "%.9g", json_real_value(one));
    if (json_is_number(one)) good = good && add_text(args, number);
  }
  return good;
}

/* The fault inside of the process that is started now; NULL: none is. */
static const json_t *find_drift(const prove_server *server) {
  const json_t *drift = json_object_get(server->profile, "drift");
  const char *only = prove_text(drift, "only", NULL), *now = server->n_boots == 0 ? "first" : "second";
  return only == NULL || strcmp(only, now) == 0 ? drift : NULL;
}

static bool make_options(prove_server *server) {
  const json_t *drift = find_drift(server);
  const char *name;
  json_t *value;
  char number[32];
  bool good = true;
  json_decref(server->options);
  server->options = json_array();
  if (server->place->backend != NULL) {
    good = add_text(server->options, "--backend") && add_text(server->options, server->place->backend);
  }
  json_object_foreach((json_t *)(uintptr_t)server->place->options, name, value) {
    bool own = json_object_get(json_object_get(server->profile, "options"), name) != NULL;
    good = good && (own || add_option(server, server->options, name, value));
  }
  json_object_foreach(json_object_get(server->profile, "options"), name, value) {
    good = good && add_option(server, server->options, name, value);
  }
  if (prove_flag(server->profile, "drafts_always")) good = good && add_text(server->options, "--drafts-always");
  if (prove_flag(drift, "drop_key")) good = good && add_text(server->options, "--drop-key");
  if (json_object_get(drift, "die_at") != NULL) {
    (void)snprintf(number, sizeof number, "%" PRIu64, prove_number(drift, "die_at", 0));
    good = good && add_text(server->options, "--die-at") && add_text(server->options, number);
  }
  return good && server->options != NULL;
}

/* Where the copy of the model with a bit turned over will lie, and who has it. */
static void name_copy(prove_server *server) {
  const json_t *drift = json_object_get(server->profile, "drift");
  const char *path = server->place->models->item[0], *file = strrchr(path, '/');
  if (json_object_get(drift, "weight") == NULL) return;
  (void)snprintf(server->model, sizeof server->model, "%.250s/%.200s", server->place->folder,
                 file != NULL ? file + 1 : path);
  server->owner_has_copy = strcmp(prove_text(drift, "only", ""), "owner") == 0;
}

prove_verdict prove_server_open(prove_server *server, const prove_place *place, const char *name,
                                prove_outcome *outcome) {
  weft_error error = {{0}};
  json_t *file = NULL;
  *server = (prove_server){.place = place, .name = name, .devices = json_array(), .preflight = json_null()};
  (void)snprintf(server->owner.folder, sizeof server->owner.folder, "%s", place->folder);
  server->owner.model = place->models->item[0];
  if (prove_file_read(place->proofs, "profiles", name, &server->profile, &error) != WEFT_OK)
    return prove_end(outcome, PROVE_BAD_FILE, "profile '%s': %s", name, error.text);
  if (check_options(server, outcome) != PROVE_PROVEN) return outcome->verdict;
  name_copy(server);
  const char *owner = prove_text(server->profile, "weight_server", NULL);
  if (owner == NULL) return PROVE_PROVEN;
  if (prove_file_read(place->proofs, "weight-servers", owner, &file, &error) != WEFT_OK)
    return prove_end(outcome, PROVE_BAD_FILE, "profile '%s': %s", name, error.text);
  const char *lent = server->owner_has_copy ? server->model : place->models->item[0];
  prove_verdict verdict = prove_owner_open(&server->owner, file, lent, place->folder, outcome);
  json_decref(file);
  return verdict;
}

/* ---- start ---------------------------------------------------------------------------------------------------- */

/* `weft boot` with these words before the options, and the models. */
static weft_status boot_with(prove_server *server, const char *const *words, const char *log_name, weft_error *error) {
  const char *args[ARGS_MAX + 1] = {"weft", "boot", "--quiet"};
  char parent[16], log[PROVE_PATH_MAX];
  size_t n = 3;
  (void)snprintf(parent, sizeof parent, "%d", (int)getpid());
  (void)snprintf(log, sizeof log, "%.300s/%s-%.100s.log", server->place->folder, log_name,
                 strrchr(server->name, '/') != NULL ? strrchr(server->name, '/') + 1 : server->name);
  args[n++] = "--parent", args[n++] = parent;
  for (; *words != NULL; words++) args[n++] = *words;
  for (uint32_t i = 0; i < server->place->models->n; i++) {
    args[n++] = "-m";
    args[n++] =
        i == 0 && server->model[0] != 0 && !server->owner_has_copy ? server->model : server->place->models->item[i];
  }
  for (size_t i = 0; i < json_array_size(server->options) && n < ARGS_MAX; i++)
    args[n++] = json_string_value(json_array_get(server->options, i));
  args[n] = NULL;
  return prove_child_start(&server->child, args, server->env, log, error);
}

static prove_verdict tell_no_start(prove_server *server, prove_outcome *outcome) {
  char words[256];
  prove_child_last_words(&server->child, words);
  if (prove_told_to_stop()) return prove_end(outcome, PROVE_STOPPED, "stopped");
  bool usage = server->child.code == WEFT_EXIT_USAGE && strstr(words, "no option is named") != NULL;
  if (usage) return prove_end(outcome, PROVE_BAD_FILE, "profile '%s': %s", server->name, words);
  return prove_end(outcome, PROVE_NO_START, "profile '%s' does not start: %s", server->name,
                   words[0] != 0 ? words : "it said nothing before it ended, or was not ready in time");
}

/* Asks whether there is room, before anything is loaded. */
static prove_verdict ask_room(prove_server *server, prove_outcome *outcome) {
  static const char *const words[] = {"--dry-run", NULL};
  char line[PROVE_LINE_MAX] = "";
  weft_error error = {{0}};
  if (boot_with(server, words, "room", &error) != WEFT_OK)
    return prove_end(outcome, PROVE_NO_START, "profile '%s': %s", server->name, error.text);
  weft_status heard = prove_child_line(&server->child, line, weft_clock_us() + (uint64_t)ROOM_SECONDS * 1000000u);
  while (heard == WEFT_OK && prove_child_alive(&server->child) && !prove_told_to_stop()) (void)usleep(2000);
  (void)prove_child_stop(&server->child, STOP_MS);
  json_t *facts = heard == WEFT_OK ? json_loads(line, 0, NULL) : NULL;
  if (facts == NULL || server->child.code != 0) {
    json_decref(facts);
    return tell_no_start(server, outcome);
  }
  json_decref(server->preflight);
  server->preflight = facts;
  if (prove_flag(facts, "fits")) return PROVE_PROVEN;
  return prove_end(outcome, PROVE_NO_ROOM,
                   "profile '%s' does not fit: %" PRIu64 " MiB are needed and %" PRIu64 " MiB are free", server->name,
                   prove_number(facts, "need_mib", 0), prove_number(facts, "free_mib", 0));
}

static prove_verdict turn_bit(prove_server *server, prove_outcome *outcome) {
  const json_t *drift = json_object_get(server->profile, "drift"), *weight = json_object_get(drift, "weight");
  weft_error error = {{0}};
  if (weight == NULL) return PROVE_PROVEN;
  prove_flip flip = {.tensor = prove_text(weight, "tensor", ""),
                     .byte = prove_number(weight, "byte", 0),
                     .bit = (uint32_t)prove_number(weight, "bit", 0)};
  if (prove_flip_copy(&flip, server->place->models->item[0], server->model, &error) != WEFT_OK)
    return prove_end(outcome, PROVE_BAD_FILE, "profile '%s': %s", server->name, error.text);
  return PROVE_PROVEN;
}

static prove_verdict start_owner(prove_server *server, prove_outcome *outcome) {
  if (server->owner.state == PROVE_OWNER_NONE) return PROVE_PROVEN;
  prove_verdict verdict = prove_owner_check(&server->owner, outcome);
  if (verdict == PROVE_PROVEN) verdict = prove_owner_start(&server->owner, outcome);
  if (verdict == PROVE_PROVEN) verdict = prove_owner_wait(&server->owner, outcome);
  if (verdict == PROVE_PROVEN) server->env = prove_owner_export(&server->owner, outcome);
  return outcome->verdict;
}

/* Lines up to the one that names the port. */
static bool hear_port(prove_server *server, uint64_t until_us) {
  char line[PROVE_LINE_MAX];
  while (prove_child_line(&server->child, line, until_us) == WEFT_OK) {
    json_t *facts = json_loads(line, 0, NULL);
    json_t *device = json_object_get(facts, "device"), *models = json_object_get(facts, "models");
    if (device != NULL) (void)json_array_append(server->devices, device); /* a missing one fails the report */
    if (models != NULL) {
      json_decref(server->models);
      server->models = json_incref(models);
    }
    server->port = (uint16_t)prove_number(facts, "port", server->port);
    json_decref(facts);
    if (server->port != 0) return true;
  }
  return false;
}

/* A process of the server, until it listens. */
static prove_verdict boot_server(prove_server *server, const char *log_name, uint64_t seconds, prove_outcome *outcome) {
  static const char *const words[] = {"--port", "0", "--json", NULL};
  weft_error error = {{0}};
  uint64_t start = weft_clock_us();
  server->port = 0;
  (void)json_array_clear(server->devices); /* of the time before, where it is started again */
  if (boot_with(server, words, log_name, &error) != WEFT_OK)
    return prove_end(outcome, PROVE_NO_START, "profile '%s': %s", server->name, error.text);
  if (!hear_port(server, start + seconds * 1000000u)) {
    (void)prove_child_stop(&server->child, STOP_MS);
    return tell_no_start(server, outcome);
  }
  server->n_boots += 1;
  server->start_seconds = (double)(weft_clock_us() - start) * 1e-6;
  return PROVE_PROVEN;
}

prove_verdict prove_server_start(prove_server *server, uint64_t seconds, prove_outcome *outcome) {
  if (turn_bit(server, outcome) != PROVE_PROVEN) return outcome->verdict;
  if (start_owner(server, outcome) != PROVE_PROVEN) return outcome->verdict;
  if (!make_options(server)) return prove_end(outcome, PROVE_NO_START, "no memory for the options");
  if (ask_room(server, outcome) != PROVE_PROVEN) return outcome->verdict;
  return boot_server(server, "server", seconds, outcome);
}

static prove_verdict tell_unclean(const prove_server *server, const prove_child *child, prove_outcome *outcome) {
  return prove_end(outcome, PROVE_DIED, "profile '%s': the server did not end as it should (exit code %d)",
                   server->name, child->code);
}

prove_verdict prove_server_again(prove_server *server, uint64_t seconds, bool beside, prove_outcome *outcome) {
  if (!beside && !prove_child_stop(&server->child, STOP_MS)) return tell_unclean(server, &server->child, outcome);
  if (beside) server->before = server->child;
  server->child = (prove_child){.pid = 0};
  if (!make_options(server)) return prove_end(outcome, PROVE_NO_START, "no memory for the options");
  return boot_server(server, "again", seconds, outcome);
}

prove_verdict prove_server_await_before(prove_server *server, prove_outcome *outcome) {
  uint64_t until_us = weft_clock_us() + STOP_MS * 1000ull;
  while (prove_child_alive(&server->before) && weft_clock_us() < until_us && !prove_told_to_stop()) (void)usleep(2000);
  bool late = prove_child_alive(&server->before), clean = prove_child_stop(&server->before, STOP_MS);
  if (late) return prove_end(outcome, PROVE_DIED, "profile '%s': the server before does not end", server->name);
  return clean ? PROVE_PROVEN : tell_unclean(server, &server->before, outcome);
}

prove_verdict prove_server_lost(prove_server *server, const char *what, prove_outcome *outcome) {
  char words[256];
  for (uint32_t i = 0; i < 100 && prove_child_alive(&server->child); i++)
    (void)usleep(5000); /* its end is on its way */
  if (prove_child_alive(&server->child)) return PROVE_PROVEN;
  prove_child_last_words(&server->child, words);
  return prove_end(outcome, PROVE_DIED, "profile '%s': the server ended while %s%s%s%s", server->name, what,
                   words[0] != 0 ? " (its last words: " : "", words, words[0] != 0 ? ")" : "");
}

prove_verdict prove_server_stop(prove_server *server, prove_outcome *outcome) {
  bool there = server->child.pid != 0;
  bool clean = prove_child_stop(&server->child, STOP_MS);
  if (there && !clean) (void)tell_unclean(server, &server->child, outcome);
  if (server->owner.state == PROVE_OWNER_EXPORTED) (void)prove_owner_stop(&server->owner, outcome);
  return outcome->verdict;
}

void prove_server_close(prove_server *server) {
  (void)prove_child_stop(&server->before, STOP_MS);
  (void)prove_child_stop(&server->child, STOP_MS);
  prove_owner_close(&server->owner);
  prove_free_environment(server->env);
  if (server->model[0] != 0) (void)unlink(server->model); /* the folder goes later in any case */
  json_decref(server->profile);
  json_decref(server->options);
  json_decref(server->devices);
  json_decref(server->preflight);
  json_decref(server->models);
  json_decref(server->counted);
  *server = (prove_server){.name = NULL};
}
