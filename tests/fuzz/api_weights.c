/* SPDX-License-Identifier: MIT */
/* Any bytes where an owner of weights and a worker read each other's words: as the manifest of weights, as a question
 * and as an answer. What is taken keeps the law of the manifest, and comes back as it was written. */
#include <string.h>

#include "api/weights_talk.h"
#include "tests/support/fuzz_require.h"

/* Every matrix inside its piece, apart from all others. */
static void check_law(const weights_manifest *m) {
  for (uint32_t i = 0; i < m->n_models; i++) {
    const weights_model *model = &m->model[i];
    REQUIRE(weights_manifest_find(m, model->fingerprint_low, model->fingerprint_high) == model);
    for (uint32_t k = 0; k < model->n_weights; k++) {
      const weft_shelf_weight *w = &model->weight[k];
      REQUIRE(w->piece < m->n_pieces && w->at < m->piece[w->piece] && w->n_bytes > 0);
      REQUIRE(w->n_bytes <= m->piece[w->piece] - w->at);
      REQUIRE(weights_model_find(model, w->name, w->uses, w->place) == w);
      REQUIRE(w->place < m->n_devices && w->place == weights_piece_place(m, w->piece));
      for (uint32_t j = 0; j < k; j++) {
        const weft_shelf_weight *other = &model->weight[j];
        bool apart = w->piece != other->piece || w->at + w->n_bytes <= other->at || other->at + other->n_bytes <= w->at;
        REQUIRE(apart);
      }
    }
  }
}

static void read_manifest(const char *bytes, size_t n) {
  weights_manifest m, again;
  weft_error error = {{0}};
  weft_text text = {0}, twice = {0};
  weft_status status = weights_manifest_read(bytes, n, &m, &error);
  REQUIRE((status == WEFT_OK) == (error.text[0] == 0));
  if (status == WEFT_OK) {
    check_law(&m);
    weights_manifest_write(&m, &text);
    REQUIRE(weights_manifest_read(text.bytes, text.n, &again, &error) == WEFT_OK);
    weights_manifest_write(&again, &twice);
    REQUIRE(text.n == twice.n && memcmp(text.bytes, twice.bytes, text.n) == 0);
    weights_manifest_free(&again);
  }
  weights_manifest_free(&m);
  weft_text_free(&text);
  weft_text_free(&twice);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  weights_ask ask;
  weights_answer answer;
  weft_error error = {{0}};
  read_manifest((const char *)data, n);
  if (n >= sizeof ask && weights_ask_read(data, &ask) == WEFT_OK)
    REQUIRE(ask.question >= WEIGHTS_ASK_DIGEST && ask.question <= WEIGHTS_ASK_COUNTS);
  if (n >= sizeof answer && weights_answer_read(data, WEIGHTS_ASK_PIECE, &answer, &error) == WEFT_OK)
    REQUIRE(answer.n_text < WEIGHTS_TALK_TEXT && answer.question == WEIGHTS_ASK_PIECE);
  return 0;
}
