/* SPDX-License-Identifier: MIT */
/* Finding and opening libweft-cuda.so. The program links no CUDA library: the module is loaded when the backend is
 * asked for, and stays loaded. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "kernels/cuda/module.h"

static const char module_name[] = "libweft-cuda.so";

bool cuda_has_driver(void) {
  return access("/dev/nvidiactl", F_OK) == 0 || access("/dev/dxg", F_OK) == 0;
}

/* The folder of the program or library that this code is part of, with its last '/'; "" if unknown. */
static void own_folder(char *folder, size_t n) {
  Dl_info info;
  char link[1024];
  folder[0] = 0;
  if (dladdr((void *)(uintptr_t)own_folder, &info) == 0 || info.dli_fname == NULL) return;
  const char *path = info.dli_fname;
  if (strchr(path, '/') == NULL) { /* a program found through PATH */
    ssize_t got = readlink("/proc/self/exe", link, sizeof link - 1);
    if (got <= 0) return;
    link[got] = 0;
    path = link;
  }
  const char *slash = strrchr(path, '/');
  if (slash != NULL) (void)snprintf(folder, n, "%.*s", (int)(slash - path + 1), path);
}

/* Looks for the module beside the program, in ../lib where an installation has it, and then where the system's loader
 * looks. */
static void *open_module(weft_error *error) {
  static const char *const places[] = {"", "../lib/"};
  char folder[1024], path[1200];
  own_folder(folder, sizeof folder);
  for (size_t i = 0; folder[0] != 0 && i < sizeof places / sizeof places[0]; i++) {
    (void)snprintf(path, sizeof path, "%s%s%s", folder, places[i], module_name);
    if (access(path, F_OK) != 0) continue;
    void *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (module == NULL) (void)weft_fail(error, WEFT_E_UNSUPPORTED, "backend 'cuda': %s", dlerror());
    return module;
  }
  void *module = dlopen(module_name, RTLD_NOW | RTLD_LOCAL);
  if (module == NULL) {
    (void)weft_fail(error, WEFT_E_UNSUPPORTED,
                    "backend 'cuda': %s is not beside the program (%s): build weft with the CUDA "
                    "Toolkit, or use --backend cpu",
                    module_name, dlerror());
  }
  return module;
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
