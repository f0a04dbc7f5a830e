/* SPDX-License-Identifier: MIT */
/* What the words of some options mean: a socket, the mode of a file, ids of tokens. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "api/config.h"
#include "base/memory.h"

const char *weft_config_socket(const char *host) {
  static const char prefix[] = "unix:";
  return strncmp(host, prefix, sizeof prefix - 1) == 0 ? host + sizeof prefix - 1 : NULL;
}

uint32_t weft_config_mode(const char *text) {
  size_t n = strlen(text);
  bool octal = n > 0 && n <= 4 && strspn(text, "01234567") == n;
  unsigned long mode = octal ? strtoul(text, NULL, 8) : 0;
  return mode <= 0777 ? (uint32_t)mode : 0;
}

weft_status weft_config_ids(const char *text, const char *flag, int32_t **ids, uint32_t *n, weft_error *error) {
  size_t n_max = 1;
  for (const char *c = text; *c != 0; c++) n_max += *c == ',';
  *n = 0;
  *ids = weft_alloc(n_max, sizeof **ids);
  if (*ids == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for %zu ids", n_max);
  const char *at = text;
  while (*at != 0) {
    char *end;
    errno = 0;
    long id = strtol(at, &end, 10);
    if (end == at || (*end != ',' && *end != 0) || errno != 0 || id < 0 || id > INT32_MAX) {
      weft_free(*ids);
      *ids = NULL;
      return weft_fail(error, WEFT_E_INVALID, "%s: '%.20s' is no token id: ids are whole numbers with commas between",
                       flag, at);
    }
    (*ids)[(*n)++] = (int32_t)id;
    at = *end == ',' ? end + 1 : end;
  }
  return WEFT_OK;
}
