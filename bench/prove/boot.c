/* SPDX-License-Identifier: MIT */
/* weft boot: `weft serve` for a proof, and what a proof asks before it starts one.
 *
 * Law: it runs the product's own serve with the product's own options. Beside it, it ends with the process that
 * started it, says on standard output which devices it opened, and may have a fault inside (bench/doubles/drift.h) or
 * plan runs of drafts whether they gain or not, which else hangs on the times of the machine.
 * --dry-run opens the first device, says whether the models and the pool have room, and ends. */
#include <inttypes.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "bench/doubles/drift.h"
#include "bench/lab/lab.h"

static void print_device(const weft_device_info *info) {
  weft_text line = {0};
  weft_text_puts(&line, "\"device\":{\"name\":");
  weft_json_words(&line, info->name);
  weft_text_puts(&line, ",\"backend\":");
  weft_json_words(&line, info->backend);
  weft_text_puts(&line, ",\"isa\":");
  weft_json_words(&line, info->isa != NULL ? info->isa : "");
  weft_text_printf(&line, ",\"index\":%" PRIu32 ",\"products\":%" PRIu32 ",\"graphs\":%s}", info->index, info->products,
                   info->graphs ? "true" : "false");
  if (weft_text_status(&line) == WEFT_OK) (void)fputs(line.bytes, stdout);
  weft_text_free(&line);
}

static void take_device(void *self, weft_device *device) {
  (void)fputs("{", stdout);
  print_device(weft_device_get_info(device));
  (void)fputs("}\n", stdout);
  (void)fflush(stdout); /* the proof that reads it may be gone: then this process is, too */
  weft_drift_device(self, device);
}

/* ---- is there room? ------------------------------------------------------------------------------------------ */

/* Bytes of all tensors of the files. */
static weft_status sum_weights(const weft_config *config, uint64_t *n_bytes, weft_error *error) {
  weft_status status = WEFT_OK;
  for (uint32_t i = 0; i < config->models.n && status == WEFT_OK; i++) {
    weft_gguf *gguf = NULL;
    status = weft_gguf_open(config->models.item[i], &gguf, error);
    for (uint32_t k = 0; status == WEFT_OK && k < weft_gguf_n_tensors(gguf); k++)
      *n_bytes += weft_gguf_tensor_at(gguf, k)->n_bytes;
    weft_gguf_close(gguf);
  }
  return status;
}

static uint32_t count_devices(const weft_config *config) {
  uint32_t n = 1;
  for (const char *at = config->devices; at != NULL && *at != 0; at++) n += *at == ',';
  return n;
}

/* Room as the first device and the host have it, since devices of one host are alike. What the server plans is finer
 * and may still be refused; what is refused here can never be served. */
static int tell_room(const weft_config *config) {
  weft_device_config wanted = {.backend = config->backend, .n_threads = 1, .isa = config->isa};
  weft_device *device = NULL;
  weft_error error = {{0}};
  uint64_t weights = 0, pool = (uint64_t)config->kv_mib << 20, host = (uint64_t)config->host_mib << 20;
  weft_status status = sum_weights(config, &weights, &error);
  if (status == WEFT_OK) status = weft_device_open(&wanted, &device, &error);
  if (status != WEFT_OK) return weft_cli_fail(weft_cli_open_code(status), "%s", error.text);
  const weft_device_info *info = weft_device_get_info(device);
  uint32_t n = count_devices(config);
  bool copies = config->split != NULL && strcmp(config->split, "replicas") == 0;
  if (copies) weights *= n, pool *= n;
  if (info->host_memory) n = 1; /* several devices of one memory */
  uint64_t room = n * info->memory_free_bytes, need = weights + pool;
  bool fits = info->host_memory ? need + host <= room : pool <= room && need <= room + weft_memory_available();
  (void)printf("{\"fits\":%s,\"need_mib\":%" PRIu64 ",\"weights_mib\":%" PRIu64 ",\"free_mib\":%" PRIu64 ",",
               fits ? "true" : "false", (need + (info->host_memory ? host : 0)) >> 20, weights >> 20, room >> 20);
  print_device(info);
  (void)fputs("}\n", stdout);
  weft_device_close(device);
  return 0;
}

int weft_lab_boot(const weft_config *product) {
  const weft_lab_config *config = weft_lab_of(product);
  static weft_drift drift; /* as long as the process: devices ask it */
  drift = (weft_drift){.drops_key = config->drop_key, .die_at = config->die_at};
  if (config->parent != 0) {
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* a known call with known arguments */
    if ((uint32_t)getppid() != config->parent)
      return weft_cli_fail(WEFT_EXIT_USAGE, "boot: --parent %" PRIu32 " is not who started this", config->parent);
  }
  if (product->models.n == 0) return weft_cli_fail(WEFT_EXIT_USAGE, WEFT_NO_MODEL);
  if (config->dry_run) return tell_room(product);
  weft_device_on_open(take_device, &drift);
  return weft_cli_serve_opened(product, config->drafts_always ? drafts_force : NULL);
}
