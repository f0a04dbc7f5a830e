/* SPDX-License-Identifier: MIT */
/* Text to tokens and tokens to text, for weft.h. */
#include "api/runtime.h"
#include "base/memory.h"

static int give_text(weft_text *text, char **out, size_t *n) {
  if (text->bytes == NULL) weft_text_append(text, "", 0);
  if (weft_text_status(text) != WEFT_OK) {
    weft_text_free(text);
    return WEFT_E_NO_MEMORY;
  }
  *out = text->bytes;
  *n = text->n;
  return 0;
}

int weft_tokenize(weft_runtime *rt, const char *model, const char *text, size_t n_text, bool add_special,
                  bool parse_special, int32_t **tokens, uint32_t *n_tokens, char *error, size_t n_error) {
  weft_error why = {{0}};
  uint32_t index;
  *tokens = NULL;
  *n_tokens = 0;
  const weft_served_model *m = weft_runtime_model(rt, model, &index, &why);
  if (m == NULL) return weft_tell(&why, WEFT_E_NOT_FOUND, error, n_error);
  unsigned flags = (add_special ? WEFT_ENCODE_ADD_SPECIAL : 0u) | (parse_special ? WEFT_ENCODE_PARSE_SPECIAL : 0u);
  weft_tokens list = {0};
  weft_status status = weft_tokenizer_encode(m->tokenizer, text, n_text, flags, &list, &why);
  if (status != WEFT_OK) {
    weft_tokens_free(&list);
    return weft_tell(&why, status, error, n_error);
  }
  *tokens = list.ids;
  *n_tokens = list.n;
  return 0;
}

int weft_detokenize(weft_runtime *rt, const char *model, const int32_t *tokens, uint32_t n_tokens, bool with_special,
                    char **text, size_t *n_text, char *error, size_t n_error) {
  weft_error why = {{0}};
  uint32_t index;
  *text = NULL;
  *n_text = 0;
  const weft_served_model *m = weft_runtime_model(rt, model, &index, &why);
  if (m == NULL) return weft_tell(&why, WEFT_E_NOT_FOUND, error, n_error);
  weft_text out = {0};
  weft_status status = weft_tokenizer_decode(m->tokenizer, tokens, n_tokens, with_special, &out);
  if (status == WEFT_OK) status = (weft_status)give_text(&out, text, n_text);
  if (status == WEFT_OK) return 0;
  weft_text_free(&out);
  return weft_tell(&why, status, error, n_error);
}

void weft_release(void *memory) {
  weft_free(memory);
}
