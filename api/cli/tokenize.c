/* SPDX-License-Identifier: MIT */
/* weft tokenize: reads only the vocabulary of a file, no weights. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "api/cli/cli.h"
#include "base/memory.h"
#include "base/text.h"
#include "model/text/tokenizer.h"

static int print_text(const weft_tokenizer *tokenizer, const weft_config *config) {
  int32_t *ids;
  uint32_t n;
  weft_error error;
  if (weft_config_ids(config->tokens, "--tokens", &ids, &n, &error) != WEFT_OK) {
    return weft_cli_fail(WEFT_EXIT_USAGE, "%s", error.text);
  }
  for (uint32_t i = 0; i < n; i++) {
    if ((uint32_t)ids[i] < weft_tokenizer_n_vocab(tokenizer)) continue;
    int code = weft_cli_fail(WEFT_EXIT_USAGE, "--tokens: %d is not in the vocabulary of %u tokens", ids[i],
                             weft_tokenizer_n_vocab(tokenizer));
    weft_free(ids);
    return code;
  }
  weft_text text = {0};
  weft_status status = weft_tokenizer_decode(tokenizer, ids, n, config->special, &text);
  if (status == WEFT_OK) (void)printf("%.*s\n", (int)text.n, text.bytes == NULL ? "" : text.bytes);
  weft_text_free(&text);
  weft_free(ids);
  return status == WEFT_OK ? 0 : weft_cli_fail(WEFT_EXIT_RUNTIME, "%s", weft_status_text(status));
}

static void print_ids(const weft_tokenizer *tokenizer, const weft_tokens *tokens, bool json) {
  weft_text piece = {0};
  if (json) {
    json_t *list = json_array();
    for (uint32_t i = 0; i < tokens->n; i++) {
      weft_text_clear(&piece);
      (void)weft_tokenizer_piece(tokenizer, tokens->ids[i], true, &piece); /* a refused append shows as empty text */
      json_t *bytes = json_stringn(piece.bytes == NULL ? "" : piece.bytes, piece.n);
      if (bytes == NULL) bytes = json_null(); /* not UTF-8 by itself */
      (void)json_array_append_new(list, json_pack("{s:i, s:o}", "id", tokens->ids[i], "text", bytes));
    }
    char *line = json_dumps(list, JSON_COMPACT);
    (void)printf("%s\n", line == NULL ? "[]" : line);
    free(line);
    json_decref(list);
  } else {
    for (uint32_t i = 0; i < tokens->n; i++) (void)printf("%s%d", i > 0 ? "," : "", tokens->ids[i]);
    (void)printf("\n");
  }
  weft_text_free(&piece);
}

static int encode_text(const weft_tokenizer *tokenizer, const weft_config *config) {
  const char *text = config->prompt;
  size_t n = text == NULL ? 0 : strlen(text);
  char *file = NULL;
  if (config->input != NULL) {
    text = file = weft_cli_read(config->input, &n);
    if (file == NULL) return WEFT_EXIT_LOAD;
  }
  if (text == NULL) return weft_cli_fail(WEFT_EXIT_USAGE, "tokenize: give -p TEXT, -i FILE or --tokens IDS");
  weft_tokens tokens = {0};
  weft_error error = {{0}};
  unsigned flags = WEFT_ENCODE_ADD_SPECIAL | (config->special ? WEFT_ENCODE_PARSE_SPECIAL : 0u);
  weft_status status = weft_tokenizer_encode(tokenizer, text, n, flags, &tokens, &error);
  if (status == WEFT_OK) print_ids(tokenizer, &tokens, config->json);
  weft_tokens_free(&tokens);
  weft_free(file);
  return status == WEFT_OK ? 0 : weft_cli_fail(weft_cli_code(status), "%s", error.text);
}

int weft_cli_tokenize(const weft_config *config) {
  if (config->models.n != 1) return weft_cli_fail(WEFT_EXIT_USAGE, "tokenize: name one GGUF file with -m FILE");
  weft_gguf *gguf = NULL;
  weft_tokenizer *tokenizer = NULL;
  weft_error error = {{0}};
  weft_status status = weft_gguf_open(config->models.item[0], &gguf, &error);
  if (status == WEFT_OK) status = weft_tokenizer_open(gguf, &tokenizer, &error);
  weft_gguf_close(gguf);
  if (status != WEFT_OK) return weft_cli_fail(weft_cli_code(status), "%s", error.text);
  int code = config->tokens != NULL ? print_text(tokenizer, config) : encode_text(tokenizer, config);
  weft_tokenizer_close(tokenizer);
  return code;
}
