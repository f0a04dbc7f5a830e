/* SPDX-License-Identifier: MIT */
/* weft inspect: what a GGUF file holds, and what it would cost to serve. */
#include "api/cli/cli.h"
#include "api/cli/terminal.h"
#include "model/inspect.h"

int weft_cli_inspect(const weft_config *config) {
  const char *path = config->models.n > 0 ? config->models.item[0] : config->words.n > 0 ? config->words.item[0] : NULL;
  if (config->models.n > 0 && config->words.n > 0) {
    return weft_cli_fail(WEFT_EXIT_USAGE, "inspect: one file at a time, and '%s' is another", config->words.item[0]);
  }
  if (path == NULL) return weft_cli_fail(WEFT_EXIT_USAGE, "inspect: name a GGUF file");
  weft_gguf *gguf = NULL;
  weft_text text = {0};
  weft_error error = {{0}};
  weft_status status = weft_gguf_open(path, &gguf, &error);
  if (status == WEFT_OK) status = weft_inspect(gguf, config->json, &text, &error);
  const weft_terminal terminal = weft_terminal_stdout(config);
  if (status == WEFT_OK)
    weft_terminal_put(&terminal, text.bytes, text.n, false); /* errors are seen by the flush in main */
  weft_text_free(&text);
  weft_gguf_close(gguf);
  return status == WEFT_OK ? 0 : weft_cli_fail(weft_cli_code(status), "%s", error.text);
}
