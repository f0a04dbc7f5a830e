/* SPDX-License-Identifier: MIT */
#include "base/path.h"

#include <limits.h>
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
