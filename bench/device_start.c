/* SPDX-License-Identifier: MIT */
/* An empty program of weft: opens a device, says so, and closes it. On a GPU that is a context and the module with its
 * kernels. What a start takes beyond it is weft's own (bench/restarts.py).
 *
 * usage: bench_device_start BACKEND [ISA] */
#include <stdio.h>

#include "kernels/device.h"

int main(int argc, char **argv) {
  weft_device *device = NULL;
  weft_error error = {{0}};
  const weft_device_config config = {.backend = argc > 1 ? argv[1] : NULL, .isa = argc > 2 ? argv[2] : NULL};
  if (weft_device_open(&config, &device, &error) != WEFT_OK) {
    (void)fprintf(stderr, "%s\n", error.text);
    return 1;
  }
  (void)printf("{\"backend\":\"%s\"}\n", weft_device_get_info(device)->backend);
  (void)fflush(stdout); /* the time up to here is what is asked for */
  weft_device_close(device);
  return 0;
}
