/* SPDX-License-Identifier: MIT */
/* What the words of some options mean: a socket, the mode of a file, ids of tokens; and what of a configuration opens a
 * runtime. */
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

/* Of an option as Ollama means it: 0 is at once, and less for ever, which weft.h has as 0. */
static uint64_t keep_alive_us(int32_t seconds) {
  return seconds < 0 ? 0 : seconds == 0 ? 1 : (uint64_t)seconds * 1000000;
}

weft_open_options weft_config_open(const weft_config *config) {
  return (weft_open_options){.models = config->models.item,
                             .n_models = config->models.n,
                             .models_dir = config->models_dir,
                             .models_preset = config->models_preset,
                             .models_bytes = (uint64_t)config->models_mib << 20,
                             .sleep_bytes = (uint64_t)config->sleep_mib << 20,
                             .keep_alive_us = keep_alive_us(config->keep_alive_seconds),
                             .load_tenants = config->load_tenants.item,
                             .n_load_tenants = config->load_tenants.n,
                             .served_names = config->served_names.item,
                             .n_served_names = config->served_names.n,
                             .kv_8bit = config->kv_8bit.item,
                             .n_kv_8bit = config->kv_8bit.n,
                             .drafts = config->drafts.item,
                             .n_drafts = config->drafts.n,
                             .chat_templates = config->chat_templates.item,
                             .n_chat_templates = config->chat_templates.n,
                             .unused_tensors = config->unused_tensors,
                             .backend = config->backend,
                             .threads = config->threads,
                             .kv_bytes = (uint64_t)config->kv_mib << 20,
                             .host_bytes = (uint64_t)config->host_mib << 20,
                             .spill_file = config->spill_file,
                             .spill_bytes = (uint64_t)config->spill_mib << 20,
                             .keep = config->keep.item,
                             .n_keep = config->keep.n,
                             .keep_key = config->keep_key,
                             .saved_canvases = config->saved_canvases,
                             .context = config->context,
                             .running = config->running,
                             .queue = config->queue,
                             .request_bytes = (uint64_t)config->request_mib << 20,
                             .rows = config->rows,
                             .pins = config->pins,
                             .shared_cache = config->shared_cache,
                             .no_prefix_cache = config->no_prefix_cache,
                             .target_tpot_ms = config->tpot_ms,
                             .slice_ms = config->slice_ms,
                             .no_overlap = config->no_overlap,
                             .no_graphs = config->no_graphs,
                             .no_arena = config->no_arena,
                             .no_deterministic = config->no_deterministic,
                             .precision = config->precision,
                             .device_mib = config->device_mib,
                             .devices = config->devices,
                             .split = config->split,
                             .split_ratio = config->split_ratio,
                             .no_peer_access = config->no_peer_access,
                             .isa = config->isa,
                             .weights = config->weights,
                             .else_anew = config->else_anew,
                             .quiet = config->quiet};
}
