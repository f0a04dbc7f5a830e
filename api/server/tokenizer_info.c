/* SPDX-License-Identifier: MIT */
/* GET /tokenizer_info: what a client needs that renders prompts by itself, under the names of Hugging Face's
 * tokenizer_config.json. ?model= is not read: it is the first model's, as vLLM has one. */
#include "api/json.h"
#include "api/runtime.h"
#include "api/server/router.h"

static void put_token(const weft_tokenizer *tokenizer, const char *name, int32_t id, weft_text *out) {
  weft_text piece = {0};
  weft_text_printf(out, ",\"%s\":", name);
  if (id >= 0 && weft_tokenizer_piece(tokenizer, id, true, &piece) == WEFT_OK) {
    weft_json_string(out, piece.bytes, piece.n);
  } else {
    weft_text_puts(out, "null");
  }
  weft_text_free(&piece);
}

void weft_handle_tokenizer_info(weft_server *s, weft_exchange *x) {
  uint32_t index;
  const weft_served_model *m = weft_runtime_model(s->runtime, NULL, &index, NULL);
  weft_bytes chat_template = {0};
  weft_text body = {0};
  bool own = !m->other_template &&
             weft_gguf_string(m->gguf, "tokenizer.chat_template", &chat_template, NULL) == WEFT_OK && m->chat != NULL;
  weft_text_puts(&body, "{\"tokenizer_class\":\"weft\",\"model\":");
  weft_json_words(&body, m->name);
  weft_text_printf(&body, ",\"model_max_length\":%u,\"vocab_size\":%u", m->context,
                   weft_tokenizer_n_vocab(m->tokenizer));
  put_token(m->tokenizer, "bos_token", weft_tokenizer_bos(m->tokenizer), &body);
  put_token(m->tokenizer, "eos_token", weft_tokenizer_eos(m->tokenizer), &body);
  put_token(m->tokenizer, "pad_token", weft_tokenizer_pad(m->tokenizer), &body);
  put_token(m->tokenizer, "unk_token", weft_tokenizer_unk(m->tokenizer), &body);
  weft_text_puts(&body, ",\"chat_template\":");
  if (own) {
    weft_json_string(&body, (const char *)chat_template.data, chat_template.n);
  } else {
    weft_text_puts(&body, "null");
  }
  weft_text_puts(&body, "}");
  weft_exchange_answer(x, 200, "application/json", &body);
}
