/* SPDX-License-Identifier: MIT */
/* Finding and opening libweft-cuda.so. The program links no CUDA library: the module is loaded when the backend is
 * asked for, and stays loaded. */
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/path.h"
#include "kernels/cuda/module.h"

static const char module_name[] = "libweft-cuda.so";

bool cuda_has_driver(void) {
  return access("/dev/nvidiactl", F_OK) == 0 || access("/dev/dxg", F_OK) == 0;
}

/* Opens the module that lies beside the program, where a build has it, or in the folder of this version, which an
 * installation has beside the library: a module of another version is never met. */
static void *open_module(weft_error *error) {
  static const char *const places[] = {"", WEFT_MODULE_FROM_LIBRARY, WEFT_MODULE_FROM_PROGRAM};
  char folder[PATH_MAX], path[PATH_MAX + 256];
  weft_path_own_folder(folder, sizeof folder);
  for (size_t i = 0; folder[0] != 0 && i < sizeof places / sizeof places[0]; i++) {
    (void)snprintf(path, sizeof path, "%s%s%s", folder, places[i], module_name);
    if (access(path, F_OK) != 0) continue;
    void *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (module == NULL) (void)weft_fail(error, WEFT_E_UNSUPPORTED, "backend 'cuda': %s", dlerror());
    return module;
  }
  (void)weft_fail(
      error, WEFT_E_UNSUPPORTED,
      "backend 'cuda': %s is neither beside the program nor in %s%s: install weft-cuda, build weft with the "
      "CUDA Toolkit, or use --backend cpu",
      module_name, folder, WEFT_MODULE_FROM_PROGRAM);
  return NULL;
}

void cuda_module_describe(char *out, size_t n) {
  weft_cuda_module_describe_fn describe = NULL;
  weft_error error = {{0}};
  void *module = open_module(&error);
  if (module != NULL) *(void **)(void *)&describe = dlsym(module, "weft_cuda_module_describe");
  if (describe != NULL)
    describe(out, n);
  else
    (void)snprintf(out, n, "%s", module == NULL ? error.text : "libweft-cuda.so is not of this version");
}

weft_status cuda_module_device_open(const weft_device_config *config, weft_device **out, weft_error *error) {
  weft_cuda_module_open_fn open = NULL;
  weft_cuda_module_terms terms = weft_cuda_module_our_terms();
  if (!cuda_has_driver()) {
    return weft_fail(error, WEFT_E_UNSUPPORTED, "backend 'cuda': this machine has no NVIDIA driver; use --backend cpu");
  }
  void *module = open_module(error);
  if (module == NULL) return WEFT_E_UNSUPPORTED;
  *(void **)(void *)&open = dlsym(module, "weft_cuda_module_open");
  if (open == NULL) {
    return weft_fail(error, WEFT_E_UNSUPPORTED, "backend 'cuda': %s is not weft's", module_name);
  }
  return open(&terms, config, out, error);
}
