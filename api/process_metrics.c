/* SPDX-License-Identifier: MIT */
#include "api/process_metrics.h"

#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "api/prometheus.h"

/* jemalloc's own statistics; absent where another allocator serves (sanitizers, libweft without the
 * program). */
extern int mallctl(const char *name, void *old, size_t *old_bytes, void *new_value, size_t new_bytes)
    __attribute__((weak));

static unsigned long long ask_allocator(const char *name) {
  size_t value = 0, n = sizeof value;
  return mallctl != NULL && mallctl(name, &value, &n, NULL, 0) == 0 ? value : 0;
}

weft_process_memory weft_process_get_memory(void) {
  weft_process_memory m = {0};
  FILE *file = fopen("/proc/self/statm", "r");
  unsigned long long all = 0, resident = 0, page = (unsigned long long)sysconf(_SC_PAGESIZE);
  if (file != NULL) {
    if (fscanf(file, "%llu %llu", &all, &resident) == 2) {
      m.virtual_bytes = all * page;
      m.resident = resident * page;
    }
    (void)fclose(file); /* only read */
  }
  uint64_t epoch = 1;
  if (mallctl != NULL) (void)mallctl("epoch", NULL, NULL, &epoch, sizeof epoch); /* refreshes what follows */
  m.allocated = ask_allocator("stats.allocated");
  m.active = ask_allocator("stats.active");
  m.mapped = ask_allocator("stats.mapped");
  return m;
}

static double cpu_seconds(void) {
  struct timespec t;
  return clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t) == 0 ? (double)t.tv_sec + (double)t.tv_nsec / 1e9 : 0.0;
}

/* The line of a file that begins with a word, behind that word; "": none. */
static void read_behind(const char *path, const char *word, char *line, int n_max) {
  FILE *file = fopen(path, "r");
  size_t n = strlen(word);
  bool found = false;
  while (file != NULL && !found && fgets(line, n_max, file) != NULL) found = strncmp(line, word, n) == 0;
  if (file != NULL) (void)fclose(file); /* only read */
  if (found) {
    memmove(line, line + n, strlen(line + n) + 1);
  } else {
    line[0] = 0;
  }
}

/* Since 1970. The system has it in ticks since it was started; the program's own name may hold blanks and brackets. */
static double start_seconds(void) {
  char line[1024];
  unsigned long long boot = 0, ticks = 0;
  read_behind("/proc/stat", "btime ", line, sizeof line);
  if (sscanf(line, "%llu", &boot) != 1) return 0.0;
  read_behind("/proc/self/stat", "", line, sizeof line);
  const char *behind = strrchr(line, ')');
  if (behind == NULL ||
      sscanf(behind + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu", &ticks) !=
          1)
    return 0.0;
  return (double)boot + (double)ticks / (double)sysconf(_SC_CLK_TCK);
}

static double open_files(void) {
  DIR *folder = opendir("/proc/self/fd");
  double n = 0;
  if (folder == NULL) return 0.0;
  for (const struct dirent *entry; (entry = readdir(folder)) != NULL;) n += entry->d_name[0] != '.';
  (void)closedir(folder);
  return n > 0 ? n - 1 : 0.0; /* the folder itself was one of them */
}

static double most_files(void) {
  struct rlimit limit;
  return getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY ? (double)limit.rlim_cur : 0.0;
}

void weft_process_metrics(weft_text *out) {
  weft_process_memory m = weft_process_get_memory();
  const struct {
    const char *name, *type, *help;
    double value;
  } rows[] = {
      {"process_cpu_seconds_total", "counter", "Processor time of the process.", cpu_seconds()},
      {"process_start_time_seconds", "gauge", "When the process began, since 1970.", start_seconds()},
      {"process_open_fds", "gauge", "Open files of the process.", open_files()},
      {"process_max_fds", "gauge", "Most open files that the process may have.", most_files()},
      {"process_virtual_memory_bytes", "gauge", "Virtual memory of the process.", (double)m.virtual_bytes},
      {"process_resident_memory_bytes", "gauge", "Resident memory of the process.", (double)m.resident},
      {"weft_host_allocated_bytes", "gauge", "Host memory handed out by the allocator.", (double)m.allocated},
      {"weft_host_active_bytes", "gauge", "Host memory in pages of the allocator that are in use.", (double)m.active},
      {"weft_host_mapped_bytes", "gauge", "Host memory mapped by the allocator.", (double)m.mapped}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    if (rows[i].value <= 0) continue;
    weft_prometheus_head(out, rows[i].name, rows[i].type, rows[i].help);
    weft_text_printf(out, "%s %.15g\n", rows[i].name, rows[i].value);
  }
}
