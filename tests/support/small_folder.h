/* SPDX-License-Identifier: MIT */
/* A runtime with a folder of three small models that come and go (--models-dir), for tests of api/residents.h: on the
 * cpu, or (as_card) on a device that it takes for a card. */
#ifndef WEFT_TESTS_SMALL_FOLDER_H
#define WEFT_TESTS_SMALL_FOLDER_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/residents.h"
#include "api/shared_room.h"
#include "tests/support/amount.h"
#include "tests/support/card_double.h"
#include "tests/support/small_runtime.h"

enum { ANSWER_MAX = 1024, N_FILES = 3 };

static const char *const names[N_FILES] = {"ar-base", "ar-dense", "dg-base"};
static char folder[64];
static bool canvases; /* answers are written as such */
static bool as_card;  /* the device is taken for a card (tests/support/card_double.h) */

static inline void path_of(const char *name, char out[128]) {
  (void)snprintf(out, 128, "%s/%s.gguf", folder, name);
}

static inline void copy_file(const char *from, const char *name, long n_bytes) {
  char path[128];
  char *bytes = malloc(1 << 20);
  path_of(name, path);
  FILE *in = fopen(from, "rb"), *out = fopen(path, "wb");
  assert_true(bytes != NULL && in != NULL && out != NULL);
  size_t n = fread(bytes, 1, 1 << 20, in);
  assert_true(n > 0 && n < 1 << 20);
  if (n_bytes > 0) n = (size_t)n_bytes;
  assert_int_equal(fwrite(bytes, 1, n, out), n);
  assert_int_equal(fclose(in) + fclose(out), 0);
  free(bytes);
}

static inline void put_model(const char *model, const char *name) {
  char from[256];
  (void)snprintf(from, sizeof from, MODELS "%s.gguf", model);
  copy_file(from, name, 0);
}

static inline int make_folder(void **state) {
  (void)state;
  (void)snprintf(folder, sizeof folder, "/tmp/weft-residents-XXXXXX");
  if (mkdtemp(folder) == NULL) return -1;
  for (uint32_t i = 0; i < N_FILES; i++) put_model(names[i], names[i]);
  copy_file(WEFT_SOURCE_DIR "/README.md", "no-model", 0);
  return 0;
}

static inline int drop_folder(void **state) {
  char path[128];
  (void)state;
  for (uint32_t i = 0; i < N_FILES; i++) {
    path_of(names[i], path);
    (void)unlink(path);
  }
  path_of("no-model", path);
  (void)unlink(path);
  return rmdir(folder);
}

static inline weft_open_options options_of(uint64_t models_bytes) {
  weft_open_options options = small_runtime(NULL, 0);
  if (as_card) options.backend = "ref";
  options.models_dir = folder;
  options.models_bytes = as_card && models_bytes == 0 ? 16 << 20 : models_bytes; /* all of a pool is written there */
  options.context = 1024;
  options.kv_bytes = 4 << 20;
  return options;
}

static inline weft_runtime *open_runtime(const weft_open_options *options) {
  weft_runtime *rt = NULL;
  char error[512] = "";
  if (as_card) card_double_begin();
  int status = weft_open(options, &rt, error, sizeof error);
  card_double_end();
  if (status != 0) fail_msg("%s", error);
  assert_int_equal(weft_n_models(rt), N_FILES); /* no-model.gguf is left out */
  card_double_serve(as_card);
  return rt;
}

/* What a card must not be asked for while it serves was not asked for. */
static inline void shut(weft_runtime *rt) {
  card_double_serve(false);
  weft_close(rt);
  if (card.n_stops + card.n_strangers + card.n_early == 0) return;
  fail_msg("%u calls that stop the card, %u from another thread, %u too early; one is %s", card.n_stops,
           card.n_strangers, card.n_early, card.last);
}

static inline uint32_t index_of(weft_runtime *rt, const char *name) {
  uint32_t index;
  weft_error error;
  assert_non_null(weft_runtime_model(rt, name, &index, &error));
  return index;
}

static inline resident_view look(weft_runtime *rt, const char *name) {
  return residents_look(rt->residents, index_of(rt, name));
}

static inline void is_in(weft_runtime *rt, const char *name, const char *state) {
  assert_string_equal(weft_model_at(rt, index_of(rt, name)).state, state);
}

/* What models take, in the order of `names`. */
static inline void needs(uint64_t out[N_FILES]) {
  weft_open_options options = options_of((uint64_t)1 << 30);
  weft_runtime *rt = open_runtime(&options);
  for (uint32_t i = 0; i < N_FILES; i++) out[i] = look(rt, names[i]).need_bytes;
  shut(rt);
}

static inline uint64_t larger(uint64_t a, uint64_t b) {
  return a > b ? a : b;
}

/* Room for any two of them, and not for three. */
static inline uint64_t room_for_two(void) {
  uint64_t n[N_FILES];
  needs(n);
  return larger(n[0] + n[1], larger(n[0] + n[2], n[1] + n[2]));
}

static inline void loads(weft_runtime *rt, const char *name) {
  char error[512] = "";
  if (weft_load_model(rt, name, error, sizeof error) != 0) fail_msg("%s: %s", name, error);
}

static inline void unloads(weft_runtime *rt, const char *name) {
  char error[512] = "";
  if (weft_unload_model(rt, name, error, sizeof error) != 0) fail_msg("%s: %s", name, error);
}

/* The pool and the models that are there together have at most what they may, also while both change: a look between
 * two equal ones at the pool counts. */
static inline bool is_within_room(weft_runtime *rt) {
  uint64_t before = shared_room_pool_bytes(rt), held = residents_held(rt->residents);
  return before != shared_room_pool_bytes(rt) || before + held <= shared_room_bytes(rt);
}

/* ---- answers --------------------------------------------------------------------------------------------- */

typedef struct answer {
  int submitted;
  char finish[16], error[512];
  int32_t token[ANSWER_MAX];
  uint32_t n;
} answer;

static const int32_t prompt[] = {2, 17, 30, 44, 17, 30, 44, 90, 61};

static inline weft_generation *start(weft_runtime *rt, const char *model, uint32_t n_tokens, uint32_t timeout_ms,
                                     uint32_t tenant, answer *a) {
  weft_generate_params p;
  weft_generation *g = NULL;
  weft_generate_defaults(&p);
  p.model = model;
  p.tenant = tenant;
  p.has_seed = true;
  p.sampling.seed = 7;
  p.sampling.temperature = 0.9f;
  p.max_tokens = n_tokens;
  p.timeout_ms = timeout_ms;
  p.ignore_eos = true;
  p.no_cache = true;
  p.mode = canvases ? WEFT_MODE_DIFFUSION : WEFT_MODE_AUTOREGRESSIVE;
  p.prompt.tokens = prompt;
  p.prompt.n_tokens = sizeof prompt / sizeof *prompt;
  memset(a, 0, sizeof *a);
  a->submitted = weft_submit(rt, &p, &g, a->error, sizeof a->error);
  return g;
}

static inline void finish(weft_generation *g, answer *a) {
  weft_delta d;
  while (g != NULL && a->finish[0] == 0) {
    int status = weft_next(g, TEST_WAIT_MS, &d);
    if (status != 0) fail_msg("weft_next gave %d", status);
    if (d.kind == WEFT_DELTA_TEXT) {
      assert_true(a->n + d.n_tokens <= ANSWER_MAX);
      memcpy(a->token + a->n, d.tokens, d.n_tokens * sizeof *d.tokens);
      a->n += d.n_tokens;
    } else if (d.kind == WEFT_DELTA_END) {
      (void)snprintf(a->finish, sizeof a->finish, "%s", d.finish);
      if (d.error != NULL) (void)snprintf(a->error, sizeof a->error, "%s", d.error);
    }
  }
  weft_generation_free(g);
}

static inline void ask(weft_runtime *rt, const char *model, uint32_t n_tokens, answer *a) {
  finish(start(rt, model, n_tokens, 0, 0, a), a);
  if (a->submitted != 0 || strcmp(a->finish, "length") != 0)
    fail_msg("%s: %d, '%s', %s", model, a->submitted, a->finish, a->error);
  assert_int_equal(a->n, n_tokens);
}

static inline void same(const answer *got, const answer *wanted) {
  assert_int_equal(got->n, wanted->n);
  assert_memory_equal(got->token, wanted->token, wanted->n * sizeof *wanted->token);
}

/* The answers of a server that has the models from its start. */
static inline void answers_of_others(uint32_t n_tokens, answer out[N_FILES]) {
  char path[N_FILES][256];
  const char *models[N_FILES];
  for (uint32_t i = 0; i < N_FILES; i++) {
    (void)snprintf(path[i], sizeof path[i], MODELS "%s.gguf", names[i]);
    models[i] = path[i];
  }
  weft_open_options options = options_of(0);
  options.models_dir = NULL;
  options.models_bytes = 0;
  options.models = models;
  options.n_models = N_FILES;
  weft_runtime *rt = NULL;
  char error[512] = "";
  if (weft_open(&options, &rt, error, sizeof error) != 0) fail_msg("%s", error);
  for (uint32_t i = 0; i < N_FILES; i++) ask(rt, names[i], n_tokens, &out[i]);
  shut(rt);
}

static inline void wishes_at(weft_runtime *rt, uint32_t model, resident_wish wish, uint32_t level) {
  weft_error error = {{0}};
  resident_ask wanted = {.level = level};
  assert_int_equal(residents_ask(rt->residents, model, wish, &wanted, &error), WEFT_OK);
  weft_status status;
  while ((status = residents_outcome(rt->residents, &wanted, &error)) == WEFT_AGAIN) (void)usleep(1000);
  if (status != WEFT_OK) fail_msg("%s", error.text);
}

static inline void wishes(weft_runtime *rt, uint32_t model, resident_wish wish) {
  wishes_at(rt, model, wish, 0);
}

#endif
