/* SPDX-License-Identifier: MIT */
/* Facts of the machine: what the system says under /sys, /proc and /dev, and what opening the backends says. */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "api/cli/doctor.h"
#include "api/server/descriptors.h"
#include "base/memory_room.h"

enum { PATH_BYTES = 512 };

/* The first line of a file under root, without its end; false: there is none. */
static bool read_line(const char *root, const char *path, char *line, int n) {
  char whole[PATH_BYTES];
  line[0] = 0;
  (void)snprintf(whole, sizeof whole, "%s%s", root, path);
  FILE *file = fopen(whole, "re");
  if (file == NULL) return false;
  bool got = fgets(line, n, file) != NULL;
  (void)fclose(file); /* only read */
  line[strcspn(line, "\n")] = 0;
  return got;
}

static bool has_file(const char *root, const char *path) {
  char whole[PATH_BYTES];
  (void)snprintf(whole, sizeof whole, "%s%s", root, path);
  return access(whole, F_OK) == 0;
}

/* A number of a control group; false where it says "max" or there is none. */
static bool read_bound(const char *root, const char *path, uint64_t *out) {
  char line[64];
  return read_line(root, path, line, sizeof line) && sscanf(line, "%" SCNu64, out) == 1;
}

/* ---- the processor ---- */

static void look_at_processor(const char *root, const weft_config *config, doctor_facts *f) {
  weft_device_config wanted = {.backend = "cpu", .n_threads = config->threads, .isa = config->isa};
  weft_device *device = NULL;
  char line[64];
  double most, period;
  bool for_card = config->backend != NULL && strcmp(config->backend, "cuda") == 0;
  if (for_card) wanted.isa = NULL; /* --isa names a kernel set */
  if (weft_device_open(&wanted, &device, &f->no_cpu) == WEFT_OK) {
    const weft_device_info *info = weft_device_get_info(device);
    (void)snprintf(f->processor, sizeof f->processor, "%s", info->name);
    (void)snprintf(f->isa, sizeof f->isa, "%s", info->isa);
    f->n_threads = info->n_threads;
    f->memory_bytes = info->memory_bytes;
    weft_device_close(device);
  }
  bool bound = read_line(root, "/sys/fs/cgroup/cpu.max", line, sizeof line);
  if (bound && sscanf(line, "%lf %lf", &most, &period) == 2 && period > 0) f->quota = most / period;
}

/* ---- cards ---- */

/* Display and compute controllers of NVIDIA: vendor 0x10de, class 0x03. */
static uint32_t count_on_bus(const char *root) {
  static const char bus[] = "/sys/bus/pci/devices";
  char folder[PATH_BYTES], path[PATH_BYTES], vendor[32], kind[32];
  uint32_t n = 0;
  (void)snprintf(folder, sizeof folder, "%s%s", root, bus);
  DIR *list = opendir(folder);
  if (list == NULL) return 0;
  for (const struct dirent *entry; (entry = readdir(list)) != NULL;) {
    if (entry->d_name[0] == '.') continue;
    (void)snprintf(path, sizeof path, "%s/%.200s/vendor", bus, entry->d_name);
    if (!read_line(root, path, vendor, sizeof vendor) || strcmp(vendor, "0x10de") != 0) continue;
    (void)snprintf(path, sizeof path, "%s/%.200s/class", bus, entry->d_name);
    if (read_line(root, path, kind, sizeof kind) && strncmp(kind, "0x03", 4) == 0) n += 1;
  }
  (void)closedir(list); /* only read */
  return n;
}

/* "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar 5 ...": the first word that begins with a digit
 * and has a dot. */
static void read_version(const char *root, char *out, size_t n) {
  char line[256];
  out[0] = 0;
  if (!read_line(root, "/proc/driver/nvidia/version", line, sizeof line)) return;
  for (const char *at = line; *at != 0; at += strspn(at, " \t")) {
    size_t length = strcspn(at, " \t");
    if (*at >= '0' && *at <= '9' && memchr(at, '.', length) != NULL) {
      (void)snprintf(out, n, "%.*s", (int)length, at);
      return;
    }
    at += length;
  }
}

static void open_cards(const weft_config *config, doctor_facts *f) {
  uint32_t n_most = f->n_on_bus > 1 ? f->n_on_bus : 1;
  if (n_most > DOCTOR_CARDS_MAX) n_most = DOCTOR_CARDS_MAX;
  for (uint32_t i = 0; i < n_most; i++) {
    bool named = config->backend != NULL && strcmp(config->backend, "cuda") == 0;
    weft_device_config wanted = {.backend = "cuda", .index = i, .isa = named ? config->isa : NULL};
    weft_device *device = NULL;
    weft_error why = {{0}};
    if (weft_device_open(&wanted, &device, &why) != WEFT_OK) {
      if (i == 0) f->no_card = why;
      return;
    }
    const weft_device_info *info = weft_device_get_info(device);
    doctor_card *card = &f->card[f->n_cards++];
    (void)snprintf(card->name, sizeof card->name, "%s", info->name);
    (void)snprintf(card->isa, sizeof card->isa, "%s", info->isa);
    card->memory_bytes = info->memory_bytes;
    card->free_bytes = info->memory_free_bytes;
    weft_device_close(device);
  }
}

static void look_at_cards(const char *root, const weft_config *config, doctor_facts *f) {
  char path[PATH_BYTES];
  f->n_on_bus = count_on_bus(root);
  f->is_guest = has_file(root, "/dev/dxg");
  f->has_driver = has_file(root, "/dev/nvidiactl");
  f->has_uvm = has_file(root, "/dev/nvidia-uvm");
  read_version(root, f->version, sizeof f->version);
  if (f->has_driver) {
    (void)snprintf(path, sizeof path, "%s/dev/nvidiactl", root);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    f->driver_fault = fd < 0 ? errno : 0;
    if (fd >= 0) (void)close(fd);
  }
  bool cpu_alone = config->backend != NULL && strcmp(config->backend, "cuda") != 0;
  if (root[0] != 0 || cpu_alone || (!f->has_driver && !f->is_guest)) return;
  void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (library == NULL) (void)snprintf(f->no_library, sizeof f->no_library, "%s", dlerror());
  if (library != NULL) open_cards(config, f); /* the library stays loaded, as a driver's must */
}

/* ---- memory and limits ---- */

static void look_at_limits(const char *root, doctor_facts *f) {
  struct rlimit limit;
  uint64_t most, now;
  descriptors_raise(); /* as serve does */
  f->n_descriptors = descriptors_limit();
  f->n_open = descriptors_open();
  f->threads_left = UINT64_MAX;
  if (getrlimit(RLIMIT_NPROC, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && geteuid() != 0)
    f->threads_left = limit.rlim_cur;
  if (read_bound(root, "/sys/fs/cgroup/pids.max", &most) && read_bound(root, "/sys/fs/cgroup/pids.current", &now)) {
    uint64_t left = most > now ? most - now : 0;
    if (left < f->threads_left) f->threads_left = left;
  }
}

void doctor_look(const char *root, const weft_config *config, doctor_facts *facts) {
  char line[128];
  *facts = (doctor_facts){0};
  look_at_processor(root, config, facts);
  look_at_cards(root, config, facts);
  facts->free_bytes = weft_memory_available();
  facts->no_huge_pages = read_line(root, "/sys/kernel/mm/transparent_hugepage/enabled", line, sizeof line) &&
                         strstr(line, "[never]") != NULL;
  look_at_limits(root, facts);
}
