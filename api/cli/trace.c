/* SPDX-License-Identifier: MIT */
/* weft trace: the last steps and requests of a running server, as a file that chrome://tracing and
 * Perfetto open. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "api/cli/cli.h"
#include "api/cli/observe.h"

int weft_cli_trace(const weft_config *config) {
  weft_text text = {0};
  int code = weft_observe_get(config, "/admin/trace", &text);
  FILE *file = stdout;
  if (code == 0 && config->output != NULL) {
    file = fopen(config->output, "wb");
    if (file == NULL) code = weft_cli_fail(WEFT_EXIT_RUNTIME, "%s: %s", config->output, strerror(errno));
  }
  if (code == 0) {
    bool good = fwrite(text.bytes, 1, text.n, file) == text.n;
    if (file != stdout) good = fclose(file) == 0 && good;
    if (!good)
      code = weft_cli_fail(WEFT_EXIT_RUNTIME, "%s could not be written whole",
                           config->output == NULL ? "standard output" : config->output);
  }
  weft_text_free(&text);
  return code;
}
