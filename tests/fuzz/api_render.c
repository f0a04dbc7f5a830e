/* SPDX-License-Identifier: MIT */
/* Any bytes as the body that a router sends to have a prompt rendered; the first byte chooses the endpoint. Out comes
 * JSON whose token ids are of the model's vocabulary and fit its context, or a refusal of one line. The model is the
 * demo model: its template and its tokenizer see what clients write. */
#include <jansson.h>
#include <string.h>

#include "api/dialects/dialect.h"
#include "api/runtime.h"
#include "tests/support/fuzz_require.h"

static weft_server server; /* what a handler has of one */

static void open_once(void) {
  static const char *const models[] = {"model/demo/weft-demo.gguf"};
  const weft_open_options options = {.models = models,
                                     .n_models = 1,
                                     .backend = "cpu",
                                     .threads = 1,
                                     .kv_bytes = 4 << 20,
                                     .context = 512,
                                     .running = 2,
                                     .quiet = true};
  char line[256];
  if (server.runtime != NULL) return;
  if (weft_open(&options, &server.runtime, line, sizeof line) == 0) return;
  (void)fprintf(stderr, "%s: to be started in the project's folder\n", line);
  abort();
}

static void read_rendered(const json_t *request, uint32_t n_vocab) {
  const json_t *ids = json_object_get(request, "token_ids");
  REQUIRE(json_is_string(json_object_get(request, "request_id")));
  REQUIRE(json_is_object(json_object_get(request, "sampling_params")));
  REQUIRE(json_is_boolean(json_object_get(request, "stream")));
  REQUIRE(json_array_size(ids) <= 512);
  for (size_t i = 0; i < json_array_size(ids); i++) {
    json_int_t id = json_integer_value(json_array_get(ids, i));
    REQUIRE(json_is_integer(json_array_get(ids, i)) && id >= 0 && id < (json_int_t)n_vocab);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  if (n == 0) return 0;
  weft_gen gen;
  weft_refusal why = {0};
  weft_text out = {0};
  const weft_body_rules limits = {.json = weft_json_limits(512)};
  weft_openai_kind kind = data[0] % 2 == 0 ? WEFT_OPENAI_CHAT : WEFT_OPENAI_COMPLETIONS;
  open_once();
  char *body = malloc(n);
  memcpy(body, data + 1, n - 1);
  weft_status status = kind == WEFT_OPENAI_CHAT ? weft_openai_parse_chat(body, n - 1, &limits, &gen, &why)
                                                : weft_openai_parse_completions(body, n - 1, &limits, &gen, &why);
  if (status == WEFT_OK) {
    status = weft_openai_render(&server, &gen, kind, "id", &out, &why);
    weft_gen_close(&gen);
    if (status == WEFT_OK) {
      json_t *root = json_loadb(out.bytes, out.n, 0, NULL);
      const uint32_t n_vocab = weft_tokenizer_n_vocab(server.runtime->model[0].tokenizer);
      REQUIRE(root != NULL && json_is_array(root) == (kind == WEFT_OPENAI_COMPLETIONS));
      if (json_is_object(root)) read_rendered(root, n_vocab);
      for (size_t i = 0; i < json_array_size(root); i++) read_rendered(json_array_get(root, i), n_vocab);
      json_decref(root);
    }
  }
  REQUIRE(status == WEFT_OK || (why.http >= 400 && why.http <= 503 && strchr(why.message, '\n') == NULL));
  weft_text_free(&out);
  free(body);
  return 0;
}
