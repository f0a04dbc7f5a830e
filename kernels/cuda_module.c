/* SPDX-License-Identifier: MIT */
/* Finding and opening a module of CUDA code. The program links no CUDA library: a module is loaded when the backend is
 * asked for, and stays loaded. There is one for each kernel set (kernels/card_sets.h); a card is opened by the first
 * one that is there and fits it, or else by the last one that is there, which says what is missing. */
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/path.h"
#include "kernels/card_sets.h"
#include "kernels/cuda/module.h"

bool cuda_has_driver(void) {
  return access("/dev/nvidiactl", F_OK) == 0 || access("/dev/dxg", F_OK) == 0;
}

/* Opens a module that lies in the program's folder, where a build has it, or in the folder of this version, which an
 * installation has beside the library: a module of another version is never met. NULL: there is none, or it cannot be
 * loaded, and then *error says why. */
static void *open_module(const char *folder, const char *name, weft_error *error) {
  static const char *const places[] = {"", WEFT_MODULE_FROM_LIBRARY, WEFT_MODULE_FROM_PROGRAM};
  char path[PATH_MAX + 256];
  for (size_t i = 0; folder[0] != 0 && i < sizeof places / sizeof places[0]; i++) {
    (void)snprintf(path, sizeof path, "%s%s%s", folder, places[i], name);
    if (access(path, F_OK) != 0) continue;
    void *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (module == NULL) (void)weft_fail(error, WEFT_E_UNSUPPORTED, "backend 'cuda': %s", dlerror());
    return module;
  }
  return NULL;
}

/* One that is there. */
typedef struct found_module {
  void *handle;
  const char *name;
} found_module;

/* Opens all modules that are there, in the order of sets. 0: there is none, and *error says so. */
static uint32_t open_modules(const char *folder, found_module *out, weft_error *error) {
  uint32_t n = 0;
  error->text[0] = 0;
  for (uint32_t i = 0; i < CARD_SETS; i++) {
    void *handle = open_module(folder, card_sets[i].module, error);
    if (handle != NULL) out[n++] = (found_module){handle, card_sets[i].module};
  }
  if (n > 0 || error->text[0] != 0) return n;
  (void)weft_fail(
      error, WEFT_E_UNSUPPORTED,
      "backend 'cuda': %s is neither beside the program nor in %s%s: install weft-cuda, build weft with the "
      "CUDA Toolkit, or use --backend cpu",
      card_sets[0].module, folder, WEFT_MODULE_FROM_PROGRAM);
  return 0;
}

void cuda_module_describe(char *out, size_t n) {
  weft_error error = {{0}};
  found_module module[CARD_SETS];
  char folder[PATH_MAX];
  weft_path_own_folder(folder, sizeof folder);
  uint32_t n_modules = open_modules(folder, module, &error);
  size_t at = 0;
  if (n_modules == 0) (void)snprintf(out, n, "%s", error.text);
  for (uint32_t i = 0; i < n_modules && at < n; i++) {
    weft_cuda_module_describe_fn describe = NULL;
    *(void **)(void *)&describe = dlsym(module[i].handle, "weft_cuda_module_describe");
    if (i > 0) at += (size_t)snprintf(out + at, n - at, "\n      ");
    if (at >= n) return;
    if (describe != NULL)
      describe(out + at, n - at);
    else
      (void)snprintf(out + at, n - at, "%s is not of this version", module[i].name);
    at += strlen(out + at);
  }
}

/* The module whose set is for the card; none: the last one. */
static found_module choose_module(const weft_device_config *config, const found_module *module, uint32_t n) {
  for (uint32_t i = 0; i + 1 < n; i++) {
    weft_cuda_module_fits_fn fits = NULL;
    *(void **)(void *)&fits = dlsym(module[i].handle, "weft_cuda_module_fits");
    if (fits == NULL || fits(config->index, config->isa)) return module[i];
  }
  return module[n - 1];
}

weft_status cuda_module_open_from(const char *folder, const weft_device_config *config, weft_device **out,
                                  weft_error *error) {
  weft_cuda_module_open_fn open = NULL;
  weft_cuda_module_terms terms = weft_cuda_module_our_terms();
  found_module module[CARD_SETS];
  weft_error why = {{0}};
  uint32_t n = open_modules(folder, module, &why);
  if (n == 0) return weft_fail(error, WEFT_E_UNSUPPORTED, "%s", why.text);
  found_module chosen = choose_module(config, module, n);
  *(void **)(void *)&open = dlsym(chosen.handle, "weft_cuda_module_open");
  if (open == NULL) {
    return weft_fail(error, WEFT_E_UNSUPPORTED, "backend 'cuda': %s is not weft's", chosen.name);
  }
  return open(&terms, config, out, error);
}

weft_status cuda_module_device_open(const weft_device_config *config, weft_device **out, weft_error *error) {
  char folder[PATH_MAX];
  if (!cuda_has_driver()) {
    return weft_fail(error, WEFT_E_UNSUPPORTED, "backend 'cuda': this machine has no NVIDIA driver; use --backend cpu");
  }
  weft_path_own_folder(folder, sizeof folder);
  return cuda_module_open_from(folder, config, out, error);
}
