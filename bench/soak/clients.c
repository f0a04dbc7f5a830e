/* SPDX-License-Identifier: MIT */
#include "bench/soak/clients.h"

#include <jansson.h>
#include <stdlib.h>
#include <unistd.h>

#include "bench/inside.h"

enum {
  MODEL,
  SHARED,
  WORDS,
  ANSWER,
  KIND,
  STREAM,
  SEED,
  EOS,
  CHOICES,
  PRIORITY,
  LIMITED,
  DEADLINE,
  LEAVES,
  LEAVES_AFTER,
  WORD
};

static uint32_t pick_below(const weft_soak_client *c, uint64_t turn, uint32_t what, uint32_t below) {
  weft_draw_key key = {c->server->seed, c->index, WEFT_DRAW_TEST, turn, what};
  return weft_draw_below(&key, below);
}

const char *weft_soak_key(uint32_t tenant) {
  static const char *const keys[WEFT_SOAK_TENANTS] = {"soak-red", "soak-green", "soak-blue", "soak-gold"};
  return keys[tenant % WEFT_SOAK_TENANTS];
}

static void set_field(json_t *root, const char *name, json_t *value) {
  (void)json_object_set_new(root, name, value); /* what is missing is a body without it */
}

static void set_prompt(const weft_soak_client *c, uint64_t turn, json_t *root) {
  weft_text prompt = {0};
  uint32_t n_words = 4 + pick_below(c, turn, WORDS, 90);
  if (pick_below(c, turn, SHARED, 2) == 0) {
    weft_text_puts(&prompt, "The big key is near the red drum. The old cat sees the blue boat. ");
  }
  for (uint32_t i = 0; i < n_words; i++) weft_text_printf(&prompt, "%u ", 10 + pick_below(c, turn, WORD + i, 90));
  set_field(root, "messages", json_pack("[{s:s, s:s}]", "role", "user", "content", prompt.bytes));
  weft_text_free(&prompt);
}

static char *make_body(const weft_soak_client *c, uint64_t turn) {
  const weft_soak_model *model = &c->server->model[pick_below(c, turn, MODEL, c->server->n_models)];
  bool diffusion = model->diffusion && (!model->autoregressive || pick_below(c, turn, KIND, 2) == 0);
  json_t *root = json_object();
  set_prompt(c, turn, root);
  set_field(root, "model", json_string(model->name));
  set_field(root, "mode", json_string(diffusion ? "diffusion" : "autoregressive"));
  set_field(root, "max_tokens", json_integer(1 + pick_below(c, turn, ANSWER, 128)));
  set_field(root, "n", json_integer(1 + pick_below(c, turn, CHOICES, WEFT_SOAK_CHOICES)));
  set_field(root, "stream", json_boolean(pick_below(c, turn, STREAM, 2)));
  set_field(root, "ignore_eos", json_boolean(pick_below(c, turn, EOS, 2)));
  set_field(root, "seed", json_integer(pick_below(c, turn, SEED, 1000)));
  set_field(root, "priority", json_integer(pick_below(c, turn, PRIORITY, 3)));
  if (pick_below(c, turn, LIMITED, 5) == 0)
    set_field(root, "timeout_ms", json_integer(1 + pick_below(c, turn, DEADLINE, 4000)));
  char *body = json_dumps(root, JSON_COMPACT);
  json_decref(root);
  return body;
}

static void count_status(weft_soak_client *c, int status) {
  if (status == 200) {
    c->n_answered += 1;
  } else if (status == 0) {
    c->n_left += 1;
  } else if (status == 504) {
    c->n_expired += 1;
  } else if (status == 429 || status == 503) {
    c->n_refused += 1;
    (void)usleep(200000); /* come again, but not at once */
  } else {
    c->n_failed += 1;
  }
}

void *weft_soak_run_client(void *self) {
  weft_soak_client *c = self;
  for (uint64_t turn = 0; weft_clock_us() < c->server->until_us; turn++) {
    char *body = make_body(c, turn);
    weft_text answer = {0};
    uint32_t leave_ms = pick_below(c, turn, LEAVES, 3) == 0 ? 1 + pick_below(c, turn, LEAVES_AFTER, 500) : 0;
    c->asked_us = weft_clock_us();
    count_status(c, body == NULL ? -1
                                 : weft_client_request_as(c->server->port, weft_soak_key(c->index), "POST",
                                                          "/v1/chat/completions", body, &answer, leave_ms));
    c->asked_us = 0;
    free(body); /* of jansson */
    weft_text_free(&answer);
  }
  return NULL;
}
