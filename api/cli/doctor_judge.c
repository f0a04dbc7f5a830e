/* SPDX-License-Identifier: MIT */
/* What the facts mean, and what to do. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <errno.h>
#include <unistd.h>

#include "api/cli/cli.h"
#include "api/cli/doctor.h"
#include "api/http/http.h"
#include "api/http/tls.h"
#include "api/server/descriptors.h"
#include "api/server/keys.h"
#include "base/memory.h"
#include "model/inspect.h"

/* Threads of a server beside those of the cpu backend: network, workers, engine, files. */
enum { SERVER_THREADS = 16, LEAST_FREE_MIB = 512 };

static double gib_of(uint64_t n_bytes) {
  return (double)n_bytes / (double)(1ull << 30);
}

static void add_line(doctor_report *r, const char *topic, doctor_state state, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

static void add_line(doctor_report *r, const char *topic, doctor_state state, const char *format, ...) {
  va_list list;
  if (r->n == DOCTOR_LINES_MAX) return;
  doctor_line *line = &r->line[r->n++];
  line->topic = topic;
  line->state = state;
  va_start(list, format);
  (void)vsnprintf(line->text, sizeof line->text, format, list); /* a cut line is still a line */
  va_end(list);
}

/* ---- the machine ---- */

static void judge_processor(const doctor_facts *f, doctor_report *r) {
  if (f->no_cpu.text[0] != 0) {
    add_line(r, "processor", DOCTOR_BAD, "%s", f->no_cpu.text);
  } else if (strcmp(f->isa, "portable") == 0) {
    add_line(
        r, "processor", DOCTOR_LOOK,
        "%s has neither AVX2 nor AVX-512: products run in portable code, many times slower; choose another machine, "
        "or in a virtual one pass the host's processor through",
        f->processor);
  } else {
    add_line(r, "processor", DOCTOR_OK, "%s, %s, %u threads", f->processor, f->isa, f->n_threads);
  }
  if (f->quota > 0 && f->quota + 0.5 < f->n_threads) {
    add_line(
        r, "processor", DOCTOR_LOOK,
        "the control group allows %.1f processors and %u threads would share them: give --threads %u, or allow more",
        f->quota, f->n_threads, f->quota < 1.5 ? 1u : (unsigned)(f->quota + 0.5));
  }
}

/* Whether a card can be asked for at all; else one line says why not. */
static bool judge_driver(const doctor_facts *f, bool wanted, doctor_report *r) {
  if (!f->has_driver && !f->is_guest && f->n_on_bus == 0) {
    add_line(r, "driver", wanted ? DOCTOR_BAD : DOCTOR_OK, "no NVIDIA card is here%s",
             wanted ? ", nor its driver: leave out --backend cuda" : ": the cpu serves");
  } else if (!f->has_driver && !f->is_guest) {
    add_line(r, "driver", DOCTOR_BAD,
             "%u NVIDIA card%s on the bus and no driver to be seen (/dev/nvidiactl is missing): install the driver, or "
             "start the container with --gpus all; to use the cpu say --backend cpu",
             f->n_on_bus, f->n_on_bus == 1 ? " is" : "s are");
  } else if (f->driver_fault != 0) {
    add_line(
        r, "driver", DOCTOR_BAD,
        "/dev/nvidiactl cannot be opened (%s): give this user the group of that file, or let the unit or container "
        "have the device",
        strerror(f->driver_fault));
  } else if (!f->has_uvm && !f->is_guest) {
    add_line(
        r, "driver", DOCTOR_BAD,
        "/dev/nvidia-uvm is missing, and no program computes without it: run `nvidia-modprobe -u -c 0` as root, or "
        "let the container have the device");
  } else if (f->no_library[0] != 0) {
    add_line(r, "driver", DOCTOR_BAD,
             "%s: install the driver's library (Debian: libcuda1) in the version of the driver%s%s; in a container ask "
             "for the capability compute",
             f->no_library, f->version[0] != 0 ? ", " : "", f->version);
  } else {
    add_line(r, "driver", DOCTOR_OK, "version %s", f->version[0] != 0 ? f->version : "not told");
    return true;
  }
  return false;
}

static void judge_cards(const doctor_facts *f, const weft_config *config, doctor_report *r) {
  bool wanted = config->backend != NULL && strcmp(config->backend, "cuda") == 0;
  if (config->backend != NULL && !wanted) {
    add_line(r, "driver", DOCTOR_OK, "--backend %s asks for no card", config->backend);
    return;
  }
  if (!judge_driver(f, wanted, r)) return;
  if (f->no_card.text[0] != 0) {
    add_line(r, "module", DOCTOR_BAD, "%s%s", f->no_card.text, wanted ? "" : "; until then the cpu serves");
    return;
  }
  add_line(r, "module", DOCTOR_OK, "it opens %u card%s", f->n_cards, f->n_cards == 1 ? "" : "s");
  for (uint32_t i = 0; i < f->n_cards; i++) {
    const doctor_card *c = &f->card[i];
    bool full = c->free_bytes < c->memory_bytes / 4 * 3;
    add_line(r, "card", full ? DOCTOR_LOOK : DOCTOR_OK, "%u: %s, %s, %.1f of %.1f GiB free%s", i, c->name, c->isa,
             gib_of(c->free_bytes), gib_of(c->memory_bytes),
             full ? ": other programs hold the rest, nvidia-smi names them" : "");
  }
}

static void judge_memory(const doctor_facts *f, doctor_report *r) {
  if (f->free_bytes == 0) {
    add_line(r, "memory", DOCTOR_LOOK, "the system does not say how much is free: mount /proc, and give --kv-mib");
  } else if (f->free_bytes < (uint64_t)LEAST_FREE_MIB << 20) {
    add_line(r, "memory", DOCTOR_BAD,
             "%" PRIu64 " MiB are free for this process: end other programs, or raise the limit of the container",
             f->free_bytes >> 20);
  } else {
    add_line(r, "memory", DOCTOR_OK, "%.1f of %.1f GiB are free for this process", gib_of(f->free_bytes),
             gib_of(f->memory_bytes));
  }
  if (f->no_huge_pages) {
    add_line(r, "memory", DOCTOR_LOOK,
             "huge pages are off, and long walks over the pool are slower: echo madvise > "
             "/sys/kernel/mm/transparent_hugepage/enabled");
  }
}

static void judge_limits(const doctor_facts *f, const weft_config *config, doctor_report *r) {
  uint32_t n = descriptors_room(f->n_descriptors, f->n_open, config->connections);
  if (n == config->connections) {
    add_line(r, "limits", DOCTOR_OK, "descriptors for %u connections", n);
  } else {
    add_line(
        r, "limits", n == 0 ? DOCTOR_BAD : DOCTOR_LOOK,
        "%u file descriptors leave room for %u of %u connections: raise the limit (ulimit -n, LimitNOFILE=) or lower "
        "--connections",
        f->n_descriptors, n, config->connections);
  }
  if (f->threads_left < (uint64_t)f->n_threads + SERVER_THREADS) {
    add_line(r, "limits", DOCTOR_BAD,
             "%" PRIu64
             " more threads are allowed and a server starts %u: raise the limit (ulimit -u, TasksMax=, "
             "--pids-limit) or lower --threads",
             f->threads_left, f->n_threads + SERVER_THREADS);
  }
}

void doctor_judge_machine(const doctor_facts *facts, const weft_config *config, doctor_report *report) {
  judge_processor(facts, report);
  judge_cards(facts, config, report);
  judge_memory(facts, report);
  judge_limits(facts, config, report);
}

/* ---- what the options name ---- */

static void judge_address(const weft_config *config, doctor_report *r) {
  weft_error error = {{0}};
  bool loopback = true, has_keys = config->api_keys != NULL || config->api_key.n > 0;
  uint32_t mode = weft_config_mode(config->socket_mode);
  weft_status status =
      mode == 0 ? weft_fail(&error, WEFT_E_INVALID, "--socket-mode: '%s' must be three octal digits such as 660",
                            config->socket_mode)
                : weft_http_try(config->host, config->port, mode, &loopback, &error);
  if (status != WEFT_OK) {
    add_line(r, "address", DOCTOR_BAD, "%s", error.text);
  } else if (!loopback && !has_keys) {
    add_line(r, "address", DOCTOR_LOOK,
             "port %u of %s is free, and without API keys whoever reaches it may use every model: give --api-keys",
             config->port, config->host);
  } else if (weft_config_socket(config->host) != NULL) {
    add_line(r, "address", DOCTOR_OK, "%s is free", config->host);
  } else {
    add_line(r, "address", DOCTOR_OK, "port %u of %s is free", config->port, config->host);
  }
}

static void judge_keys_and_tls(const weft_config *config, doctor_report *r) {
  weft_error error = {{0}};
  if (config->api_keys != NULL || config->api_key.n > 0) {
    weft_keys *keys = NULL;
    const weft_keys_source source = {config->api_keys, config->api_key.item, config->api_key.n};
    if (weft_keys_open(&source, &keys, &error) == WEFT_OK) {
      if (config->api_keys != NULL) weft_keys_keep_places(keys, config->spare_tenants);
      uint32_t n = weft_keys_n_tenants(keys), n_more = weft_keys_n_places(keys) - n;
      add_line(r, "keys", DOCTOR_OK, "of %u tenant%s, and SIGHUP may add %u (--spare-tenants)", n, n == 1 ? "" : "s",
               n_more);
    } else {
      add_line(r, "keys", DOCTOR_BAD, "%s", error.text);
    }
    weft_keys_close(keys);
  }
  if (config->tls_cert == NULL && config->tls_key == NULL) return;
  tls_identity *identity = NULL;
  char until[64] = "";
  int64_t seconds = 0;
  error = (weft_error){{0}};
  if (tls_identity_open(config->tls_cert, config->tls_key, &identity, &error) != WEFT_OK) {
    add_line(r, "tls", DOCTOR_BAD, "%s", error.text);
  } else if (!tls_identity_ends(identity, &seconds, until, sizeof until)) {
    add_line(r, "tls", DOCTOR_LOOK, "%s does not say until when it holds", config->tls_cert);
  } else {
    enum { WEEK = 7 * 86400 };
    add_line(r, "tls",
             seconds <= 0     ? DOCTOR_BAD
             : seconds < WEEK ? DOCTOR_LOOK
                              : DOCTOR_OK,
             "%s holds until %s%s", config->tls_cert, until,
             seconds <= 0     ? ", which is over: renew it, and send SIGHUP to a running server"
             : seconds < WEEK ? ", less than a week: renew it, and send SIGHUP to a running server"
                              : "");
  }
  tls_identity_close(identity);
}

static void judge_folders(const weft_config *config, doctor_report *r) {
  struct statvfs disk;
  struct stat file;
  if (config->directory != NULL) {
    bool good = access(config->directory, W_OK | X_OK) == 0 && stat(config->directory, &file) == 0;
    if (good && !S_ISDIR(file.st_mode)) errno = ENOTDIR;
    good = good && S_ISDIR(file.st_mode);
    add_line(r, "directory", good ? DOCTOR_OK : DOCTOR_BAD, "%s%s%s%s", config->directory, good ? "" : ": ",
             good ? "" : strerror(errno), good ? "" : ": make it, for the user that serves");
  }
  if (config->spill_file == NULL) return;
  char folder[1024];
  const char *slash = strrchr(config->spill_file, '/');
  (void)snprintf(folder, sizeof folder, "%.*s", slash == NULL ? 1 : (int)(slash - config->spill_file) + 1,
                 slash == NULL ? "." : config->spill_file);
  if (statvfs(folder, &disk) != 0 || access(folder, W_OK) != 0) {
    add_line(r, "spill", DOCTOR_BAD, "%s: %s: name a folder for --spill-file that this user may write to", folder,
             strerror(errno));
    return;
  }
  uint64_t free_mib = (uint64_t)disk.f_bavail * disk.f_frsize >> 20;
  bool fits = free_mib >= config->spill_mib;
  add_line(r, "spill", fits ? DOCTOR_OK : DOCTOR_BAD, "%" PRIu64 " MiB are free in %s for a file of %u MiB%s", free_mib,
           folder, config->spill_mib, fits ? "" : ": free some, or lower --spill-mib");
}

/* Bytes of weights of a file that opens. */
static uint64_t judge_model(const char *path, doctor_report *r) {
  weft_gguf *gguf = NULL;
  weft_file_facts *facts = NULL;
  weft_error error = {{0}};
  uint64_t n_bytes = 0;
  weft_status status = weft_gguf_open(path, &gguf, &error);
  if (status == WEFT_OK) status = weft_inspect_facts(gguf, &facts, &error);
  if (status == WEFT_OK && facts->serves != WEFT_OK) {
    status = facts->serves;
    error = facts->refusal;
  }
  if (status != WEFT_OK) {
    add_line(r, "model", DOCTOR_BAD, "%s", error.text);
  } else {
    n_bytes = facts->weight_bytes;
    bool chats = facts->chat == WEFT_OK;
    add_line(r, "model", chats ? DOCTOR_OK : DOCTOR_LOOK, "%s: %s, %.2f GiB of weights%s%s", path, facts->arch,
             gib_of(n_bytes), chats ? "" : ", without chat: ", chats ? "" : facts->chat_line.text);
  }
  weft_free(facts);
  weft_gguf_close(gguf);
  return n_bytes;
}

static void judge_models(const doctor_facts *f, const weft_config *config, doctor_report *r) {
  uint64_t n_bytes = 0, n_room = f->free_bytes;
  for (uint32_t i = 0; i < config->hub_models.n; i++) {
    char place[1024];
    weft_error error = {{0}};
    bool kept = weft_cli_find_hub_model(config, config->hub_models.item[i], place, sizeof place, &error);
    if (kept) n_bytes += judge_model(place, r);
    if (!kept) add_line(r, "model", DOCTOR_LOOK, "%s", error.text);
  }
  if (config->models.n + config->hub_models.n == 0) {
    add_line(r, "model", DOCTOR_LOOK, "none is named: give -m FILE to have it looked at");
    return;
  }
  for (uint32_t i = 0; i < config->models.n; i++) n_bytes += judge_model(config->models.item[i], r);
  if (f->n_cards > 0) {
    uint64_t n_card = f->card[0].free_bytes / 8 * 7;
    if (n_bytes > n_card) {
      add_line(r, "model", DOCTOR_LOOK,
               "%.2f GiB of weights are more than 7/8 of what is free on card 0 (%.2f GiB): experts beyond it stay in "
               "host memory, and without experts the file does not open: take a smaller one, or --devices 0,1",
               gib_of(n_bytes), gib_of(n_card));
    }
    return;
  }
  if (n_room > 0 && n_bytes > n_room) {
    add_line(
        r, "model", DOCTOR_BAD,
        "%.2f GiB of weights are more than the %.2f GiB that are free: take a file of a smaller type (docs/models.md), "
        "or a machine with more",
        gib_of(n_bytes), gib_of(n_room));
  }
}

void doctor_judge_options(const doctor_facts *facts, const weft_config *config, doctor_report *report) {
  judge_address(config, report);
  judge_keys_and_tls(config, report);
  judge_folders(config, report);
  judge_models(facts, config, report);
}
