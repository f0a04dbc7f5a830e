/* SPDX-License-Identifier: MIT */
#include "api/residents.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "api/models_preset.h"
#include "api/prometheus.h"
#include "api/resident_load.h"
#include "api/shared_room.h"
#include "api/tenants.h"
#include "base/check.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/threads.h"
#include "model/runner/guest_runner.h"

enum {
  RETRY_US = 5000000,       /* how long requests are refused after a load that failed */
  RETRY_US_MAX = 640000000, /* after several in a row */
  LOOK_US = 250000,         /* between two looks at what only time changes */
  LOADS_APART = 10          /* a model in use stays this many times as long as the one that waits takes to load */
};

typedef struct resident {
  resident_view view;
  bool asked;         /* by the operator */
  bool sleeps;        /* it sleeps, or will once it has left */
  bool rises;         /* it was there when all were put to sleep */
  bool stays;         /* its weights are to stay in host memory when it has left, if there is room */
  uint64_t wanted_us; /* since when it is waited for; 0: it is not */
  uint64_t used_us, ready_us, keep_us;
  uint64_t bed_bytes;          /* that its weights take, or would, in host memory */
  uint64_t retry_us, pause_us; /* requests are refused until then; how long that was */
  bool judged;                 /* since it is wanted: its file is the one that was planned */
  weft_status status;          /* of the last load, with its line */
  weft_error why;
  weft_model *model; /* while it is ready or leaves, or its weights stay in host memory */
  weft_runner *runner;
  resident_memory memory;
} resident;

struct weft_residents {
  weft_runtime *rt;
  resident_loader loader;
  uint64_t most_bytes, held_bytes, keep_us; /* keep_us: how long models stay without use where nobody says it */
  pthread_mutex_t mutex;                    /* of what follows, and of the residents */
  pthread_cond_t changed;
  pthread_t thread;
  bool has_thread, stopping;
  uint64_t n_changes;
  resident_watcher *watchers;
  resident at[WEFT_MODELS_MAX];
};

static void lock_residents(weft_residents *rs) {
  (void)pthread_mutex_lock(&rs->mutex);
}

static void unlock_residents(weft_residents *rs) {
  (void)pthread_mutex_unlock(&rs->mutex);
}

static weft_served_model *find_served(const weft_residents *rs, uint32_t i) {
  return &rs->rt->model[i];
}

static void wake_engine(const weft_residents *rs) {
  weft_engine_wake(weft_replicas_at(rs->rt->replicas, 0));
}

/* Under the lock. */
static void tell_change(weft_residents *rs) {
  rs->n_changes += 1;
  (void)pthread_cond_broadcast(&rs->changed);
  for (resident_watcher *w = rs->watchers; w != NULL; w = w->next) w->changed(w->self);
}

static void set_state(weft_residents *rs, uint32_t i, resident_state state) {
  rs->at[i].view.state = state;
  tell_change(rs);
}

const char *residents_state_name(resident_state state) {
  static const char *const names[] = {"absent", "loading", "ready", "leaving", "sleeping"};
  return names[state];
}

/* ---- one load ------------------------------------------------------------------------------------ */

static void note_failure(weft_residents *rs, uint32_t i, weft_status status, const char *why) {
  resident *r = &rs->at[i];
  char line[300];
  r->status = status;
  (void)weft_fail(&r->why, status, "%s could not be loaded: %.400s", find_served(rs, i)->name, why);
  r->pause_us = r->pause_us == 0 ? RETRY_US : r->pause_us * 2 < RETRY_US_MAX ? r->pause_us * 2 : RETRY_US_MAX;
  r->retry_us = weft_clock_us() + r->pause_us;
  r->view.n_failed += 1;
  r->asked = false;
  r->wanted_us = 0;
  (void)snprintf(line, sizeof line, "%.299s", r->why.text);
  weft_guest_refuse(find_served(rs, i)->runner, line);
  wake_engine(rs);
  weft_log(WEFT_LOG_WARN, "%s", r->why.text);
  set_state(rs, i, RESIDENT_ABSENT);
}

/* The room for it is there. Gives up the lock meanwhile. */
static void load_one(weft_residents *rs, uint32_t i) {
  resident *r = &rs->at[i];
  weft_model *model = r->model;
  weft_runner *runner = r->runner;
  weft_error error = {{0}};
  bool stayed = model != NULL;
  rs->held_bytes += r->view.need_bytes;
  set_state(rs, i, RESIDENT_LOADING);
  unlock_residents(rs);
  uint64_t start = weft_clock_us();
  weft_status status = stayed ? resident_rise(&rs->loader.beds, i, &r->memory.holding)
                              : resident_open(&rs->loader, i, &r->memory, &model, &runner, &error);
  uint64_t end = weft_clock_us();
  lock_residents(rs);
  if (status != WEFT_OK) {
    rs->held_bytes -= r->view.need_bytes;
    note_failure(rs, i, status, error.text[0] != 0 ? error.text : weft_status_text(status));
    return;
  }
  r->model = model;
  r->runner = runner;
  r->asked = false;
  r->view.kept_bytes = 0;
  r->bed_bytes = resident_bed_bytes(&rs->loader.beds, &r->memory.holding, r->view.need_bytes);
  r->wanted_us = r->pause_us = r->retry_us = 0;
  r->ready_us = r->used_us = end;
  r->view.load_us = end - start;
  r->view.took_bytes = r->memory.took_bytes;
  r->view.n_loads += 1;
  weft_log(WEFT_LOG_NOTICE, "%s is loaded%s: %.1f MiB in %.2f s", find_served(rs, i)->name,
           stayed ? " from host memory" : "", (double)r->view.need_bytes / 1048576.0, (double)(end - start) * 1e-6);
  weft_guest_enter(find_served(rs, i)->runner, runner);
  wake_engine(rs);
  set_state(rs, i, RESIDENT_READY);
}

/* ---- who leaves ------------------------------------------------------------------------------------- */

/* stays: its weights go to host memory if there is room. */
static void ask_to_leave(weft_residents *rs, uint32_t i, bool stays) {
  rs->at[i].stays = stays;
  weft_guest_leave(find_served(rs, i)->runner);
  wake_engine(rs);
  set_state(rs, i, RESIDENT_LEAVING);
}

/* Weights that stay in host memory are dropped. Gives up the lock meanwhile. */
static void drop_one(weft_residents *rs, uint32_t i) {
  resident *r = &rs->at[i];
  weft_model *model = r->model;
  weft_runner *runner = r->runner;
  r->model = NULL;
  r->runner = NULL;
  r->view.kept_bytes = 0;
  unlock_residents(rs);
  resident_drop(&rs->loader.beds, i);
  resident_close(&r->memory, model, runner);
  lock_residents(rs);
  tell_change(rs);
}

static bool is_promised(const resident *r) {
  return r->sleeps && r->stays;
}

/* Bytes of host memory that weights of others have: of those alone that the operator keeps there, or of all. */
static uint64_t kept_by_others(const weft_residents *rs, uint32_t i, bool all) {
  uint64_t n = 0;
  for (uint32_t k = 0; k < rs->rt->n_served; k++) {
    bool promised = is_promised(&rs->at[k]) && (rs->at[k].model != NULL || rs->at[k].view.kept_bytes > 0);
    if (k == i || !rs->at[k].view.comes_and_goes) continue;
    if (promised || (all && rs->at[k].view.kept_bytes > 0)) n += rs->at[k].bed_bytes;
  }
  return n;
}

/* Whether there is host memory for its weights now: of others that nobody promised it to, those whose last use is
 * longest ago lose theirs. Gives up the lock meanwhile. */
static bool make_bed(weft_residents *rs, uint32_t i) {
  uint64_t most = rs->loader.beds.most_bytes, n = rs->at[i].bed_bytes;
  if (n > most || kept_by_others(rs, i, false) > most - n) return false;
  while (kept_by_others(rs, i, true) > most - n) {
    uint32_t oldest = UINT32_MAX;
    for (uint32_t k = 0; k < rs->rt->n_served; k++) {
      const resident *r = &rs->at[k];
      if (k == i || r->view.kept_bytes == 0 || is_promised(r)) continue;
      if (oldest == UINT32_MAX || r->used_us < rs->at[oldest].used_us) oldest = k;
    }
    if (oldest == UINT32_MAX) return false;
    drop_one(rs, oldest);
  }
  return true;
}

/* The engine has let go of it. Gives up the lock meanwhile. */
static void free_one(weft_residents *rs, uint32_t i) {
  resident *r = &rs->at[i];
  weft_status status = r->stays && make_bed(rs, i) ? WEFT_OK : WEFT_FULL;
  bool stays = status == WEFT_OK;
  unlock_residents(rs);
  weft_guest_settle(find_served(rs, i)->runner);
  if (stays) status = resident_rest(&rs->loader.beds, i, &r->memory.holding);
  stays = status == WEFT_OK;
  if (!stays) resident_close(&r->memory, r->model, r->runner);
  lock_residents(rs);
  if (!stays) r->model = NULL, r->runner = NULL;
  r->view.kept_bytes = stays ? r->bed_bytes : 0;
  rs->held_bytes -= r->view.need_bytes;
  r->view.n_unloads += 1;
  r->keep_us = rs->keep_us;
  weft_log(WEFT_LOG_NOTICE, "%s has left the memory%s", find_served(rs, i)->name,
           stays ? ", and its weights stay in that of the host" : "");
  set_state(rs, i, r->sleeps ? RESIDENT_SLEEPING : RESIDENT_ABSENT);
}

static bool is_in_use(const weft_residents *rs, uint32_t i) {
  const weft_runner *guest = find_served(rs, i)->runner;
  return weft_guest_is_used(guest) || weft_guest_n_waiting(guest) > 0;
}

/* Whether a model in use has been there for long enough, where another one waits; one that was never loaded is thought
 * to take as long. */
static bool had_its_time(const resident *r, const resident *waits, uint64_t now) {
  uint64_t load_us = waits->view.load_us > 0 ? waits->view.load_us : r->view.load_us;
  return now - r->ready_us >= LOADS_APART * load_us;
}

/* The ready model that makes room for another one; UINT32_MAX: none yet. */
static uint32_t find_victim(const weft_residents *rs, uint32_t for_whom, uint64_t now) {
  const resident *waits = &rs->at[for_whom];
  uint32_t idle = UINT32_MAX, busy = UINT32_MAX;
  for (uint32_t i = 0; i < rs->rt->n_served; i++) {
    const resident *r = &rs->at[i];
    if (!r->view.comes_and_goes || r->view.state != RESIDENT_READY) continue;
    if (!is_in_use(rs, i)) {
      if (idle == UINT32_MAX || r->used_us < rs->at[idle].used_us) idle = i;
    } else if (had_its_time(r, waits, now) && (busy == UINT32_MAX || r->ready_us < rs->at[busy].ready_us)) {
      busy = i;
    }
  }
  return idle != UINT32_MAX ? idle : busy;
}

/* Bytes of models that leave already. */
static uint64_t leaving_bytes(const weft_residents *rs) {
  uint64_t n = 0;
  for (uint32_t i = 0; i < rs->rt->n_served; i++)
    if (rs->at[i].view.state == RESIDENT_LEAVING) n += rs->at[i].view.need_bytes;
  return n;
}

/* Before anything leaves for it. Gives up the lock meanwhile. */
static bool judge_file(weft_residents *rs, uint32_t i) {
  resident *r = &rs->at[i];
  weft_error error = {{0}};
  weft_gguf *gguf = NULL;
  if (r->judged || r->model != NULL) return true; /* its weights stayed */
  unlock_residents(rs);
  weft_status status = resident_open_file(find_served(rs, i), &gguf, &error);
  weft_gguf_close(gguf);
  lock_residents(rs);
  r->judged = status == WEFT_OK;
  if (status != WEFT_OK) note_failure(rs, i, status, error.text);
  return r->judged;
}

/* True: there is room for it now. Otherwise it can never fit, which is noted, or others leave for it, now or when they
 * can. */
static bool make_room(weft_residents *rs, uint32_t i, uint64_t now) {
  const resident *r = &rs->at[i];
  if (r->view.need_bytes > rs->most_bytes) {
    weft_error error;
    weft_status status = weft_fail(&error, WEFT_E_TOO_LARGE, "it needs %.1f MiB and --models-mib gives %.1f",
                                   (double)r->view.need_bytes / 1048576.0, (double)rs->most_bytes / 1048576.0);
    note_failure(rs, i, status, error.text);
    return false;
  }
  uint64_t others = rs->most_bytes - r->view.need_bytes; /* what these may hold beside it */
  if (rs->held_bytes <= others) return true;
  if (!judge_file(rs, i)) return false;
  while (rs->held_bytes - leaving_bytes(rs) > others) {
    uint32_t victim = find_victim(rs, i, now);
    if (victim == UINT32_MAX) return false;
    ask_to_leave(rs, victim, true);
  }
  return false;
}

/* ---- the thread ---------------------------------------------------------------------------------- */

/* Under the lock: what the engine says of who waits, and what only time changes. */
static void look_around(weft_residents *rs, uint64_t now) {
  for (uint32_t i = 0; i < rs->rt->n_served; i++) {
    resident *r = &rs->at[i];
    if (!r->view.comes_and_goes) continue;
    if (r->view.state == RESIDENT_ABSENT) {
      /* those that waited when a load failed are being told */
      bool waited_for = r->asked || (now >= r->retry_us && weft_guest_n_waiting(find_served(rs, i)->runner) > 0);
      if (!waited_for) r->wanted_us = 0;
      if (waited_for && r->wanted_us == 0) r->judged = false, r->wanted_us = now;
    }
    if (r->view.state != RESIDENT_READY) continue;
    if (r->sleeps) ask_to_leave(rs, i, r->stays);
    if (r->sleeps) continue;
    if (is_in_use(rs, i)) r->used_us = now;
    r->view.expires_us = r->keep_us == UINT64_MAX ? UINT64_MAX : r->used_us + r->keep_us;
    if (!is_in_use(rs, i) && now >= r->view.expires_us) ask_to_leave(rs, i, true);
  }
}

/* The model that left the engine; UINT32_MAX: none. */
static uint32_t find_gone(const weft_residents *rs) {
  for (uint32_t i = 0; i < rs->rt->n_served; i++) {
    if (rs->at[i].view.state == RESIDENT_LEAVING && weft_guest_state(find_served(rs, i)->runner) == WEFT_STAY_AWAY)
      return i;
  }
  return UINT32_MAX;
}

/* One whose weights stay and shall not any more; UINT32_MAX: none. */
static uint32_t find_dropped(const weft_residents *rs) {
  for (uint32_t i = 0; i < rs->rt->n_served; i++)
    if (rs->at[i].view.kept_bytes > 0 && !rs->at[i].stays && rs->at[i].view.state != RESIDENT_LOADING) return i;
  return UINT32_MAX;
}

static uint32_t find_wanted(const weft_residents *rs) {
  uint32_t best = UINT32_MAX;
  for (uint32_t i = 0; i < rs->rt->n_served; i++) {
    const resident *r = &rs->at[i];
    if (r->view.state != RESIDENT_ABSENT || r->wanted_us == 0) continue;
    if (best == UINT32_MAX || r->wanted_us < rs->at[best].wanted_us) best = i;
  }
  return best;
}

/* Whether something changes by time alone: a model that waits for others, or one that leaves when it is not used. */
static bool waits_for_time(const weft_residents *rs) {
  for (uint32_t i = 0; i < rs->rt->n_served; i++) {
    const resident *r = &rs->at[i];
    if (!r->view.comes_and_goes) continue;
    bool pauses = r->view.state == RESIDENT_ABSENT && weft_guest_n_waiting(find_served(rs, i)->runner) > 0;
    if (pauses || r->wanted_us != 0 || (r->view.state == RESIDENT_READY && r->keep_us != UINT64_MAX)) return true;
  }
  return false;
}

static void sleep_for_news(weft_residents *rs, uint64_t n_seen) {
  struct timespec until;
  if (rs->n_changes != n_seen || rs->stopping) return;
  if (!waits_for_time(rs)) {
    (void)pthread_cond_wait(&rs->changed, &rs->mutex);
    return;
  }
  (void)clock_gettime(CLOCK_REALTIME, &until);
  until.tv_nsec += (long)LOOK_US * 1000;
  until.tv_sec += until.tv_nsec / 1000000000;
  until.tv_nsec %= 1000000000;
  (void)pthread_cond_timedwait(&rs->changed, &rs->mutex, &until);
}

static void *run_residents(void *self) {
  weft_residents *rs = self;
  lock_residents(rs);
  while (!rs->stopping) {
    uint64_t now = weft_clock_us(), n_seen = rs->n_changes;
    look_around(rs, now);
    uint32_t gone = find_gone(rs), dropped = find_dropped(rs), wanted = find_wanted(rs);
    bool fits = gone == UINT32_MAX && dropped == UINT32_MAX && wanted != UINT32_MAX && make_room(rs, wanted, now);
    bool is_there = shared_room_claim(rs->rt, rs->held_bytes + (fits ? rs->at[wanted].view.need_bytes : 0));
    if (gone != UINT32_MAX)
      free_one(rs, gone);
    else if (dropped != UINT32_MAX)
      drop_one(rs, dropped);
    else if (fits && !is_there && !rs->at[wanted].judged && rs->at[wanted].model == NULL)
      (void)judge_file(rs, wanted); /* before much of the pool has left for it */
    else if (fits && is_there)
      load_one(rs, wanted);
    else
      sleep_for_news(rs, n_seen);
  }
  unlock_residents(rs);
  return NULL;
}

static void wake_residents(weft_residents *rs) {
  lock_residents(rs);
  rs->n_changes += 1;
  (void)pthread_cond_broadcast(&rs->changed);
  unlock_residents(rs);
}

/* On the engine's thread: requests wait for a model, or one has been let go of. */
static void hear_guest(void *self, weft_runner *guest) {
  (void)guest;
  wake_residents(self);
}

/* The same: the pool has another size. */
static void hear_pool(void *self) {
  wake_residents(((weft_runtime *)self)->residents);
}

void residents_print(const weft_runtime *rt, weft_text *out) {
  if (rt->residents == NULL) return;
  weft_text_printf(out, "on call  %.1f MiB for models of --models-dir that are loaded",
                   (double)rt->models_bytes / 1048576.0);
  const uint64_t n_bytes = rt->residents->loader.beds.most_bytes;
  if (n_bytes > 0) weft_text_printf(out, ", %.1f MiB for weights of others", (double)n_bytes / 1048576.0);
  weft_text_puts(out, "\n");
}

void residents_metrics(const weft_runtime *rt, weft_text *out) {
  weft_residents *rs = rt->residents;
  if (rs == NULL) return;
  weft_prometheus_head(out, "weft_models_bytes", "gauge", "Memory that models of --models-dir may take at once.");
  weft_text_printf(out, "weft_models_bytes %llu\n", (unsigned long long)rs->most_bytes);
  weft_prometheus_head(out, "weft_models_held_bytes", "gauge", "Memory that they take now.");
  weft_text_printf(out, "weft_models_held_bytes %llu\n", (unsigned long long)residents_held(rs));
  weft_prometheus_head(out, "weft_room_bytes", "gauge", "Memory that they and the pool may take at once.");
  weft_text_printf(out, "weft_room_bytes %llu\n", (unsigned long long)shared_room_bytes(rt));
  weft_prometheus_head(out, "weft_room_pool_bytes", "gauge", "Memory of it that the pool has now.");
  weft_text_printf(out, "weft_room_pool_bytes %llu\n",
                   (unsigned long long)shared_room_pool_bytes((weft_runtime *)(uintptr_t)rt));
  static const struct {
    const char *name, *type, *help;
    size_t at;
  } rows[] = {{"weft_model_ready", "gauge", "1 while a model of --models-dir is loaded.", SIZE_MAX},
              {"weft_model_need_bytes", "gauge", "What it takes then.", offsetof(resident_view, need_bytes)},
              {"weft_model_kept_bytes", "gauge", "Host memory that its weights take while it is not loaded.",
               offsetof(resident_view, kept_bytes)},
              {"weft_model_loads_total", "counter", "How often it was loaded.", offsetof(resident_view, n_loads)},
              {"weft_model_unloads_total", "counter", "How often it left.", offsetof(resident_view, n_unloads)},
              {"weft_model_load_failures_total", "counter", "Loads that failed.", offsetof(resident_view, n_failed)},
              {"weft_model_load_microseconds", "gauge", "What its last load took.", offsetof(resident_view, load_us)}};
  for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
    weft_prometheus_head(out, rows[k].name, rows[k].type, rows[k].help);
    for (uint32_t i = 0; i < rt->n_served; i++) {
      const resident_view view = residents_look(rs, i);
      if (!view.comes_and_goes) continue;
      uint64_t value = view.state == RESIDENT_READY;
      if (rows[k].at != SIZE_MAX) memcpy(&value, (const char *)&view + rows[k].at, sizeof value);
      weft_text_printf(out, "%s{", rows[k].name);
      weft_prometheus_label(out, "model_name", rt->model[i].name);
      weft_text_printf(out, "} %llu\n", (unsigned long long)value);
    }
  }
}

/* ---- open and close -------------------------------------------------------------------------------- */

uint64_t residents_bytes(const weft_runtime *rt) {
  if (!models_on_call(&rt->options)) return 0;
  if (rt->options.models_bytes > 0) return rt->options.models_bytes;
  return weft_device_memory_left(rt->devices.device[0]) / 2;
}

static weft_status plan_one(weft_residents *rs, uint32_t i, weft_error *error) {
  weft_served_model *m = find_served(rs, i);
  weft_device_runner_config config = weft_runtime_runner_config(rs->rt, i, 0);
  weft_status status = resident_plan(&rs->loader, i, &rs->at[i].memory, error);
  rs->at[i].view.need_bytes = rs->at[i].memory.need_bytes;
  rs->at[i].bed_bytes = resident_bed_bytes(&rs->loader.beds, &rs->at[i].memory.holding, rs->at[i].memory.need_bytes);
  if (status == WEFT_OK) status = weft_guest_open(&config, hear_guest, rs, &m->copy[0].runner, error);
  m->runner = m->copy[0].runner;
  return status;
}

weft_status residents_plan(weft_runtime *rt, weft_error *error) {
  if (!models_on_call(&rt->options)) return WEFT_OK;
  weft_residents *rs = weft_alloc(1, sizeof *rs);
  if (rs == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for the models of --models-dir");
  rs->rt = rt;
  rs->most_bytes = rt->models_bytes;
  rs->keep_us = rt->options.keep_alive_us == 0 ? UINT64_MAX : rt->options.keep_alive_us;
  if (pthread_mutex_init(&rs->mutex, NULL) != 0 || pthread_cond_init(&rs->changed, NULL) != 0) {
    weft_free(rs);
    return weft_fail(error, WEFT_E_NO_MEMORY, "the system refused a lock");
  }
  rt->residents = rs;
  rt->pool.changed = hear_pool;
  bool in_place = weft_device_get_info(rt->devices.device[0])->host_memory; /* where what sleeps stays */
  weft_status status =
      resident_loader_open(rt, rs->most_bytes + (in_place ? rt->options.sleep_bytes : 0), &rs->loader, error);
  for (uint32_t i = 0; i < rt->n_served && status == WEFT_OK; i++) {
    resident *r = &rs->at[i];
    r->keep_us = rs->keep_us;
    r->view.expires_us = UINT64_MAX;
    r->view.comes_and_goes = rt->model[i].comes_and_goes;
    r->view.state = r->view.comes_and_goes ? RESIDENT_ABSENT : RESIDENT_READY;
    if (r->view.comes_and_goes) status = plan_one(rs, i, error);
  }
  return status;
}

/* Models that their presets want at the start: it does not wait for them. */
static void ask_for_presets(weft_residents *rs) {
  const char *file;
  bool loads = false;
  for (uint32_t k = 0; (file = models_preset_file(rs->rt->preset, k, &loads)) != NULL; k++) {
    for (uint32_t i = 0; i < rs->rt->n_served && loads; i++) {
      weft_error error;
      resident_ask ask = {0};
      if (strcmp(find_served(rs, i)->file_name, file) == 0)
        (void)residents_ask(rs, i, RESIDENT_LOAD, &ask, &error); /* of one that stays there is nothing to do */
    }
  }
}

weft_status residents_start(weft_runtime *rt, weft_error *error) {
  weft_residents *rs = rt->residents;
  if (rs == NULL) return WEFT_OK;
  weft_status status = weft_threads_start(&rs->thread, run_residents, rs, error);
  rs->has_thread = status == WEFT_OK;
  if (status == WEFT_OK) ask_for_presets(rs);
  return status;
}

void residents_stop(weft_residents *rs) {
  if (rs == NULL || !rs->has_thread) return;
  lock_residents(rs);
  rs->stopping = true;
  (void)pthread_cond_broadcast(&rs->changed);
  unlock_residents(rs);
  (void)pthread_join(rs->thread, NULL);
  rs->has_thread = false;
}

void residents_close(weft_residents *rs) {
  if (rs == NULL) return;
  (void)weft_device_sync(rs->rt->devices.device[0]); /* copies of what was saved may still run */
  for (uint32_t i = 0; i < WEFT_MODELS_MAX; i++) {
    resident_close(&rs->at[i].memory, rs->at[i].model, rs->at[i].runner);
    resident_forget(&rs->at[i].memory);
  }
  resident_loader_close(&rs->loader);
  (void)pthread_cond_destroy(&rs->changed);
  (void)pthread_mutex_destroy(&rs->mutex);
  weft_free(rs);
}

/* ---- any thread --------------------------------------------------------------------------------------- */

/* Whether a tenant's requests may have a model loaded. */
static bool may_load(const weft_runtime *rt, uint32_t tenant) {
  if (rt->n_load_tenants == 0) return true;
  for (uint32_t i = 0; i < rt->n_load_tenants; i++) {
    if (strcmp(rt->load_tenant[i], rt->tenant_name[tenant]) == 0) return true;
  }
  return false;
}

weft_status residents_use(weft_residents *rs, uint32_t model, uint32_t tenant, weft_error *error) {
  if (rs == NULL || !rs->at[model].view.comes_and_goes) return WEFT_OK;
  weft_status status = WEFT_OK;
  lock_residents(rs);
  resident *r = &rs->at[model];
  uint64_t now = weft_clock_us();
  bool comes = r->view.state == RESIDENT_READY || r->view.state == RESIDENT_LOADING || r->asked;
  if (!comes && !may_load(rs->rt, tenant))
    status = weft_fail(error, WEFT_E_NOT_FOUND,
                       "%s is not loaded, and your requests may not have it loaded: ask for another model, or the "
                       "operator (--load-tenants)",
                       find_served(rs, model)->name);
  else if (!comes && now < r->retry_us)
    status = weft_fail(error, WEFT_FULL, "%.400s; it is tried again in %" PRIu64 " s", r->why.text,
                       (r->retry_us - now) / 1000000 + 1);
  if (status == WEFT_OK) r->used_us = now;
  unlock_residents(rs);
  return status;
}

resident_view residents_look(weft_residents *rs, uint32_t model) {
  if (rs == NULL) return (resident_view){.state = RESIDENT_READY, .expires_us = UINT64_MAX};
  lock_residents(rs);
  resident_view view = rs->at[model].view;
  unlock_residents(rs);
  return view;
}

uint64_t residents_held(weft_residents *rs) {
  lock_residents(rs);
  uint64_t n = rs->held_bytes;
  unlock_residents(rs);
  return n;
}

/* Under the lock. */
static void ask_one(weft_residents *rs, uint32_t i, resident_wish wish, resident_ask *ask) {
  resident *r = &rs->at[i];
  bool brings = wish == RESIDENT_LOAD || (wish == RESIDENT_WAKE && (r->rises || ask->model != RESIDENTS_ALL));
  if (brings || wish == RESIDENT_UNLOAD || wish == RESIDENT_SLEEP) ask->which |= UINT64_C(1) << i;
  ask->n_failed[i] = r->view.n_failed;
  ask->n_done[i] = wish == RESIDENT_UNLOAD ? r->view.n_unloads : r->view.n_loads;
  bool is_there = r->view.state == RESIDENT_READY || r->view.state == RESIDENT_LOADING;
  if (wish == RESIDENT_SLEEP && ask->model == RESIDENTS_ALL && !r->sleeps) r->rises = is_there;
  if (wish != RESIDENT_UNLOAD) r->sleeps = wish == RESIDENT_SLEEP;
  if (r->sleeps && r->view.state == RESIDENT_ABSENT) r->view.state = RESIDENT_SLEEPING;
  if (!r->sleeps && r->view.state == RESIDENT_SLEEPING) r->view.state = RESIDENT_ABSENT;
  r->asked = brings && !is_there;
  if (brings) r->used_us = weft_clock_us();
  if (brings) r->rises = false;
  bool goes = wish == RESIDENT_UNLOAD || wish == RESIDENT_SLEEP;
  bool stays = wish == RESIDENT_SLEEP && ask->level == RESIDENT_WEIGHTS_STAY;
  if (goes) r->stays = stays;
  if (goes && r->view.state == RESIDENT_READY) ask_to_leave(rs, i, stays);
}

/* Under the lock: whether there is host memory for the weights of all that shall sleep with them. */
static weft_status check_beds(weft_residents *rs, const resident_ask *ask, weft_error *error) {
  uint64_t most = rs->loader.beds.most_bytes, n = 0;
  if (ask->level == RESIDENT_WEIGHTS_STAY && most == 0)
    return weft_fail(error, WEFT_E_INVALID,
                     "level 1 keeps weights in host memory, and this server was started without any for them "
                     "(--sleep-mib): level 2 drops them");
  for (uint32_t i = 0; i < rs->rt->n_served && ask->level == RESIDENT_WEIGHTS_STAY; i++) {
    const resident *r = &rs->at[i];
    bool asked = r->view.comes_and_goes && (ask->model == i || ask->model == RESIDENTS_ALL);
    bool has_weights = r->model != NULL || r->view.state == RESIDENT_LOADING;
    if (has_weights && (asked || is_promised(r))) n += r->bed_bytes;
  }
  if (n <= most) return WEFT_OK;
  return weft_fail(error, WEFT_E_TOO_LARGE,
                   "weights of all that would sleep at level 1 take %.1f MiB of host memory, and --sleep-mib gives "
                   "%.1f: level 2 drops them",
                   (double)n / 1048576.0, (double)most / 1048576.0);
}

weft_status residents_ask(weft_residents *rs, uint32_t model, resident_wish wish, resident_ask *ask,
                          weft_error *error) {
  uint32_t level = ask->level;
  *ask = (resident_ask){.model = model, .wish = wish, .level = level};
  if (rs == NULL && model == RESIDENTS_ALL)
    return weft_fail(error, WEFT_E_INVALID,
                     "models of --models-dir alone come and go, and this server was started "
                     "without it");
  if (rs == NULL || (model != RESIDENTS_ALL && !rs->at[model].view.comes_and_goes)) {
    if (wish == RESIDENT_LOAD || wish == RESIDENT_WAKE) return WEFT_OK;
    return weft_fail(error, WEFT_E_INVALID,
                     "this model was named when the server started and stays: models of "
                     "--models-dir come and go");
  }
  lock_residents(rs);
  if (level == 0) ask->level = rs->loader.beds.most_bytes > 0 ? RESIDENT_WEIGHTS_STAY : RESIDENT_WEIGHTS_GO;
  weft_status status = wish == RESIDENT_SLEEP ? check_beds(rs, ask, error) : WEFT_OK;
  for (uint32_t i = 0; i < rs->rt->n_served && status == WEFT_OK; i++) {
    if (rs->at[i].view.comes_and_goes && (model == i || model == RESIDENTS_ALL)) ask_one(rs, i, wish, ask);
  }
  tell_change(rs);
  unlock_residents(rs);
  return status;
}

/* Under the lock. What is still loading when it is asked to leave leaves once it is there. */
static weft_status find_one_outcome(weft_residents *rs, const resident_ask *ask, uint32_t i, weft_error *error) {
  resident *r = &rs->at[i];
  if (ask->wish == RESIDENT_LOAD || ask->wish == RESIDENT_WAKE) {
    if (r->view.state == RESIDENT_READY || r->view.n_loads > ask->n_done[i]) return WEFT_OK;
    if (r->view.n_failed > ask->n_failed[i]) return weft_fail(error, r->status, "%s", r->why.text);
    if (r->sleeps) return weft_fail(error, WEFT_CANCELLED, "it was put to sleep meanwhile");
    return WEFT_AGAIN;
  }
  bool is_gone =
      (r->view.state == RESIDENT_ABSENT || r->view.state == RESIDENT_SLEEPING) && (r->view.kept_bytes == 0 || r->stays);
  if (is_gone || (ask->wish == RESIDENT_UNLOAD && r->view.n_unloads > ask->n_done[i])) return WEFT_OK;
  if (ask->wish == RESIDENT_SLEEP && !r->sleeps) return weft_fail(error, WEFT_CANCELLED, "it was woken meanwhile");
  if (r->view.state == RESIDENT_READY) ask_to_leave(rs, i, r->stays);
  return WEFT_AGAIN;
}

/* Under the lock. */
static weft_status find_outcome(weft_residents *rs, const resident_ask *ask, weft_error *error) {
  bool again = false;
  for (uint32_t i = 0; i < rs->rt->n_served; i++) {
    if ((ask->which >> i & 1) == 0) continue;
    weft_status status = find_one_outcome(rs, ask, i, error);
    if (status < 0 || status == WEFT_CANCELLED) return status;
    again = again || status == WEFT_AGAIN;
  }
  return again ? WEFT_AGAIN : WEFT_OK;
}

weft_status residents_outcome(weft_residents *rs, const resident_ask *ask, weft_error *error) {
  if (rs == NULL || ask->which == 0) return WEFT_OK;
  lock_residents(rs);
  weft_status status = find_outcome(rs, ask, error);
  unlock_residents(rs);
  return status;
}

bool residents_sleep(weft_residents *rs) {
  bool all = rs != NULL, any = false;
  if (rs == NULL) return false;
  lock_residents(rs);
  for (uint32_t i = 0; i < rs->rt->n_served; i++) {
    if (!rs->at[i].view.comes_and_goes) continue;
    any = true;
    all = all && rs->at[i].sleeps;
  }
  unlock_residents(rs);
  return any && all;
}

bool residents_keep(weft_residents *rs, uint32_t model, uint32_t tenant, uint64_t us) {
  if (rs == NULL || !rs->at[model].view.comes_and_goes || !may_load(rs->rt, tenant)) return false;
  lock_residents(rs);
  resident *r = &rs->at[model];
  r->keep_us = us;
  r->view.expires_us = us == UINT64_MAX ? UINT64_MAX : weft_clock_us() + us;
  tell_change(rs);
  unlock_residents(rs);
  return true;
}

void residents_watch(weft_residents *rs, resident_watcher *watcher) {
  if (rs == NULL) return;
  lock_residents(rs);
  watcher->next = rs->watchers;
  rs->watchers = watcher;
  unlock_residents(rs);
}

void residents_unwatch(weft_residents *rs, resident_watcher *watcher) {
  if (rs == NULL) return;
  lock_residents(rs);
  for (resident_watcher **at = &rs->watchers; *at != NULL; at = &(*at)->next) {
    if (*at != watcher) continue;
    *at = watcher->next;
    break;
  }
  unlock_residents(rs);
}

/* ---- weft.h ---------------------------------------------------------------------------------------------- */

/* Blocks until the outcome. */
static weft_status await_outcome(weft_residents *rs, const resident_ask *ask, weft_error *error) {
  weft_status status = WEFT_OK;
  if (rs == NULL || ask->which == 0) return WEFT_OK;
  lock_residents(rs);
  while ((status = find_outcome(rs, ask, error)) == WEFT_AGAIN && !rs->stopping)
    (void)pthread_cond_wait(&rs->changed, &rs->mutex);
  unlock_residents(rs);
  return status == WEFT_AGAIN ? weft_fail(error, WEFT_CANCELLED, "the server ends") : status;
}

static int change_model(weft_runtime *rt, const char *name, resident_wish wish, char *error, size_t n_error) {
  weft_error why = {{0}};
  resident_ask ask = {0};
  uint32_t index;
  weft_status status = weft_runtime_model(rt, name, &index, &why) == NULL ? WEFT_E_NOT_FOUND : WEFT_OK;
  if (status == WEFT_OK) status = residents_ask(rt->residents, index, wish, &ask, &why);
  if (status == WEFT_OK) status = await_outcome(rt->residents, &ask, &why);
  return status == WEFT_OK ? 0 : weft_tell(&why, status, error, n_error);
}

int weft_load_model(weft_runtime *rt, const char *model, char *error, size_t n_error) {
  return change_model(rt, model, RESIDENT_LOAD, error, n_error);
}

int weft_unload_model(weft_runtime *rt, const char *model, char *error, size_t n_error) {
  return change_model(rt, model, RESIDENT_UNLOAD, error, n_error);
}
