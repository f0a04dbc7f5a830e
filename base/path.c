/* SPDX-License-Identifier: MIT */
#include "base/path.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/text.h"

char *weft_path_from_root(const char *path) {
  char folder[PATH_MAX];
  weft_text whole = {0};
  if (path[0] == '/') return weft_strdup(path);
  if (getcwd(folder, sizeof folder) == NULL) return NULL;
  weft_text_printf(&whole, "%s/%s", folder, path);
  if (weft_text_status(&whole) != WEFT_OK) weft_text_free(&whole);
  return whole.bytes;
}

void weft_path_own_folder(char *folder, size_t n) {
  Dl_info info;
  char whole[PATH_MAX];
  folder[0] = 0;
  if (dladdr((void *)(uintptr_t)weft_path_own_folder, &info) == 0 || info.dli_fname == NULL) return;
  /* a program that was found through PATH has no folder in its name */
  const char *name = strchr(info.dli_fname, '/') != NULL ? info.dli_fname : "/proc/self/exe";
  if (realpath(name, whole) == NULL) return;
  size_t length = (size_t)(strrchr(whole, '/') - whole) + 1;
  if (length < n) (void)snprintf(folder, n, "%.*s", (int)length, whole);
}
