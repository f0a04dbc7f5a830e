/* SPDX-License-Identifier: MIT */
/* The order between the devices of a model, on late cards (tests/support/fake_card.h), where a scheduler does not lead
 * to it by itself: three passes with nothing waited for, and a saved canvas that is restored into a slot whose request
 * before is still in flight. Runs of drafts, whose answers are those of one row after another, and a slot that both
 * draws and denoises. And what a runner over two devices says of itself, and what crosses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "model/model_internal.h"
#include "model/runner/device_runner.h"
#include "model/split_plan.h"
#include "tests/support/fake_card.h"
#include "tests/support/split_of.h"

enum { ROWS = 72, N_PAGES = 96, SLOTS = 2, PROMPT = 9, TABLE = 16 };

static const weft_model_limits limits = {.rows_max = ROWS, .canvas_rows_max = ROWS, .segments_max = 4};

typedef struct world {
  weft_gguf *gguf;
  weft_split split;
  weft_model *model;
  const weft_model_info *info;
  weft_kv_layout layout;
  weft_kv_store *store;
} world;

/* n late cards; `eager` of them, from 1, runs ahead of the others, 0: none. Where there are shards the cards are not late:
 * they exchange within a call. */
static void world_open_shards(world *w, uint32_t n, uint32_t n_shards, uint32_t eager) {
  weft_error error = {{0}};
  const char *path = WEFT_SOURCE_DIR "/tests/golden/models/dg-base.gguf";
  if (weft_gguf_open(path, &w->gguf, &error) != WEFT_OK) fail_msg("%s", error.text);
  assert_true(split_of(w->gguf, n, n_shards, &w->split));
  for (uint32_t p = 0; p < n; p++) {
    fake_card *card = fake_card_open(false);
    if (n_shards == 1) card->late = p + 1 == eager ? FAKE_EAGER : FAKE_LAZY;
    w->split.device[p] = &card->base;
  }
  weft_status status = weft_model_open(w->gguf, &w->split, &limits, NULL, NULL, &w->model, &error);
  if (status != WEFT_OK) fail_msg("%s", error.text);
  w->info = weft_model_get_info(w->model);
  const weft_kv_geometry *geometry = &w->info->kv;
  assert_int_equal(weft_kv_layout_choose(&geometry, 1, 0, &w->layout, &error), WEFT_OK);
  assert_int_equal(weft_kv_store_open(&w->split, &w->layout, N_PAGES, &w->store, &error), WEFT_OK);
}

static void world_open(world *w, uint32_t n, uint32_t eager) {
  world_open_shards(w, n, 1, eager);
}

static void world_close(world *w) {
  weft_kv_store_close(w->store);
  weft_model_close(w->model);
  for (uint32_t p = 0; p < w->split.n_devices; p++) weft_device_close(w->split.device[p]);
  weft_gguf_close(w->gguf);
}

/* A batch of at most two segments of one sequence each; sequence s has the pages from s * N_PAGES / 4 on. */
typedef struct step_of {
  weft_batch batch;
  weft_segment segment[2];
  int32_t token[ROWS], position[ROWS];
  int64_t kv_slot[WEFT_GROUPS_MAX][ROWS];
  uint32_t table[2 * WEFT_GROUPS_MAX * TABLE], table_at[2 * WEFT_GROUPS_MAX];
} step_of;

static void add_rows(const world *w, step_of *s, uint32_t sequence, const weft_segment *segment) {
  weft_batch *b = &s->batch;
  uint32_t first = b->n_rows, at = b->n_segments++, pages = sequence * (N_PAGES / 4);
  s->segment[at] = *segment;
  s->segment[at].first_row = first;
  b->n_groups = w->layout.n_groups;
  b->n_rows += segment->n_rows;
  if (segment->stores == WEFT_STORES_POOL) b->n_stored += segment->n_rows;
  if (segment->pass == WEFT_PASS_ENCODER) b->n_encoder += segment->n_rows;
  for (uint32_t i = 0; i < segment->n_rows; i++) {
    s->position[first + i] = (int32_t)(segment->kv_len + i);
    s->token[first + i] =
        segment->token_source == WEFT_TOKENS_HOST ? (int32_t)((sequence * 13 + i * 5 + 7) % w->info->n_vocab) : 0;
  }
  for (uint32_t g = 0; g < b->n_groups; g++) {
    uint32_t block = w->layout.group[g].block_tokens, page = pages + g * (N_PAGES / 4 / b->n_groups);
    uint32_t *table = s->table + (at * WEFT_GROUPS_MAX + g) * TABLE;
    s->table_at[at * b->n_groups + g] = (uint32_t)(table - s->table);
    for (uint32_t i = 0; i < TABLE; i++) table[i] = page + i;
    for (uint32_t i = 0; i < segment->n_rows; i++) {
      uint32_t position = segment->kv_len + i;
      s->kv_slot[g][first + i] =
          segment->stores == WEFT_STORES_SCRATCH ? -1 : (int64_t)(page + position / block) * block + position % block;
    }
    b->kv_slot[g] = s->kv_slot[g];
  }
  b->token = s->token;
  b->position = s->position;
  b->segment = s->segment;
  b->table = s->table;
  b->table_at = s->table_at;
}

/* ---- three passes ---------------------------------------------------------------------------------------- */

enum { PASSES = 3, PASS_ROWS = 12 };

static void run_passes(uint32_t n, uint32_t eager, bool waits, float *hidden) {
  world w;
  float *d_hidden[PASSES];
  static step_of steps[PASSES];
  uint32_t rows[PASS_ROWS];
  const float *soft[1] = {NULL};
  world_open(&w, n, eager);
  weft_device *last = w.split.device[n - 1];
  uint64_t n_bytes = PASS_ROWS * w.info->n_hidden * sizeof(float);
  for (uint32_t i = 0; i < PASS_ROWS; i++) rows[i] = i;
  for (uint32_t i = 0; i < PASSES; i++) {
    assert_int_equal(weft_device_alloc(last, n_bytes, (void **)&d_hidden[i]), WEFT_OK);
    memset(&steps[i], 0, sizeof steps[i]);
    add_rows(&w, &steps[i], i, &(weft_segment){.n_rows = PASS_ROWS});
    weft_forward_args args = {.batch = &steps[i].batch,
                              .token = steps[i].token,
                              .kv = w.store,
                              .layout = &w.layout,
                              .soft = soft,
                              .output_row = rows,
                              .n_output = PASS_ROWS,
                              .hidden = d_hidden[i]};
    assert_int_equal(weft_model_forward(w.model, &args), WEFT_OK);
    if (waits) assert_int_equal(weft_device_sync(last), WEFT_OK);
  }
  for (uint32_t i = 0; i < PASSES; i++) {
    float *to = hidden + (uint64_t)i * PASS_ROWS * w.info->n_hidden;
    assert_int_equal(weft_device_download(last, to, d_hidden[i], n_bytes), WEFT_OK);
    weft_device_free(last, d_hidden[i]);
  }
  world_close(&w);
}

static void test_passes(void **state) {
  enum { FLOATS_MAX = PASSES * PASS_ROWS * 1024 };
  static float alone[FLOATS_MAX], got[FLOATS_MAX];
  (void)state;
  run_passes(1, 0, true, alone);
  for (uint32_t n = 2; n <= 3; n++) {
    for (uint32_t eager = 0; eager <= n; eager++) {
      memset(got, 0, sizeof got);
      run_passes(n, eager, false, got);
      assert_memory_equal(got, alone, sizeof alone);
    }
  }
}

/* ---- a restored canvas ----------------------------------------------------------------------------------- */

/* What the requests in the slots ask for, which a slot borrows. */
static weft_sampling asked[SLOTS];
static weft_entropy_bound bound;

static weft_slot_params ask(uint32_t slot, uint64_t seed, const int32_t *tokens, uint32_t n_tokens) {
  asked[slot] = weft_sampling_neutral();
  asked[slot].seed = seed;
  bound = weft_entropy_bound_default();
  bound.confidence = 0; /* never done before its last step */
  return (weft_slot_params){.denoises = true,
                            .sampling = &asked[slot],
                            .entropy_bound = &bound,
                            .tokens = tokens,
                            .n_tokens = n_tokens,
                            .n_prompt = PROMPT,
                            .max_tokens = 64};
}

static void open_slot(weft_runner *r, uint32_t slot, uint64_t seed, const int32_t *prompt) {
  weft_slot_params p = ask(slot, seed, prompt, PROMPT);
  assert_int_equal(r->ops->slot_open(r, slot, &p), WEFT_OK);
}

/* The prompt of a sequence, or a denoise step of its canvas, is submitted. */
static void submit(const world *w, weft_runner *r, uint32_t slot, uint32_t sequence, bool canvas, uint32_t step) {
  static step_of s;
  memset(&s, 0, sizeof s);
  weft_segment segment = {.slot = slot, .n_rows = PROMPT};
  if (canvas)
    segment = (weft_segment){.slot = slot,
                             .n_rows = w->info->canvas_length,
                             .kv_len = PROMPT,
                             .mask = WEFT_MASK_WHOLE,
                             .stores = WEFT_STORES_SCRATCH,
                             .pass = WEFT_PASS_DECODER,
                             .token_source = WEFT_TOKENS_CANVAS,
                             .n_outputs = w->info->canvas_length,
                             .ask = WEFT_ASK_CANVAS,
                             .step = step};
  add_rows(w, &s, sequence, &segment);
  assert_int_equal(r->ops->submit(r, &s.batch), WEFT_OK);
}

static weft_step_result collect(weft_runner *r) {
  weft_step_result result;
  assert_int_equal(r->ops->collect(r, &result), WEFT_OK);
  assert_int_equal(result.status, WEFT_OK);
  return result;
}

static weft_runner *open_runner(const world *w) {
  weft_runner *runner;
  weft_error error = {{0}};
  weft_device_runner_config config = {.model = w->model,
                                      .store = w->store,
                                      .layout = &w->layout,
                                      .name = "parts",
                                      .limits = limits,
                                      .n_slots = SLOTS,
                                      .draft_rows_max = 5,
                                      .n_saves = 1,
                                      .seq_tokens_max = 64};
  if (weft_device_runner_open(&config, &runner, NULL, &error) != WEFT_OK) fail_msg("%s", error.text);
  return runner;
}

/* Step 1 of a canvas that was saved after step 0; *argmax and *entropy are what it gave. With `restored` the canvas goes
 * on in the slot of another request whose step is still in flight. */
static void second_step(uint32_t n, uint32_t eager, bool restored, int32_t *argmax, float *entropy) {
  world w;
  int32_t prompt[PROMPT];
  for (uint32_t i = 0; i < PROMPT; i++) prompt[i] = (int32_t)(i * 5 + 7);
  world_open(&w, n, eager);
  weft_runner *r = open_runner(&w);
  open_slot(r, 0, 5, prompt);
  submit(&w, r, 0, 0, false, 0);
  (void)collect(r);
  submit(&w, r, 0, 0, true, 0);
  (void)collect(r);
  uint32_t slot = 0;
  if (restored) {
    assert_int_equal(r->ops->slot_save(r, 0, 0), WEFT_OK);
    slot = 1;
    open_slot(r, 1, 77, prompt);
    submit(&w, r, 1, 1, false, 0);
    submit(&w, r, 1, 1, true, 0);
    r->ops->slot_close(r, 1);
    open_slot(r, 1, 5, prompt);
    assert_int_equal(r->ops->slot_restore(r, 1, 0), WEFT_OK);
    (void)collect(r);
    (void)collect(r);
  }
  submit(&w, r, slot, 0, true, 1);
  weft_step_result result = collect(r);
  assert_int_equal(result.n_results, 1);
  memcpy(argmax, result.result[0].argmax, w.info->canvas_length * sizeof *argmax);
  *entropy = result.result[0].mean_entropy;
  r->ops->close(r);
  world_close(&w);
}

static void test_restore(void **state) {
  int32_t wanted[ROWS] = {0}, got[ROWS];
  float entropy[2];
  (void)state;
  second_step(1, 0, false, wanted, &entropy[0]);
  for (uint32_t n = 1; n <= 3; n++) {
    for (uint32_t eager = 0; eager <= n; eager++) {
      memset(got, 0, sizeof got);
      second_step(n, eager, true, got, &entropy[1]);
      assert_memory_equal(got, wanted, sizeof wanted);
      assert_true(entropy[0] == entropy[1]);
    }
  }
}

/* ---- scores of a prompt ---------------------------------------------------------------------------------- */

static void score_prompt(uint32_t n, weft_scored *scored) {
  world w;
  static step_of s;
  int32_t prompt[PROMPT];
  for (uint32_t i = 0; i < PROMPT; i++) prompt[i] = (int32_t)(i * 5 + 7);
  memset(&s, 0, sizeof s);
  world_open(&w, n, 0);
  weft_runner *r = open_runner(&w);
  open_slot(r, 0, 5, prompt);
  const weft_segment segment = {.n_rows = PROMPT, .n_outputs = PROMPT - 1, .ask = WEFT_ASK_SCORE};
  add_rows(&w, &s, 0, &segment);
  assert_int_equal(r->ops->submit(r, &s.batch), WEFT_OK);
  weft_step_result result = collect(r);
  assert_true(result.n_results == 1 && result.result[0].scored != NULL);
  memcpy(scored, result.result[0].scored, (PROMPT - 1) * sizeof *scored);
  r->ops->close(r);
  world_close(&w);
}

static void test_scores(void **state) {
  static weft_scored wanted[PROMPT], got[PROMPT];
  (void)state;
  score_prompt(1, wanted);
  assert_true(wanted[0].logprob < 0);
  for (uint32_t n = 2; n <= 3; n++) {
    score_prompt(n, got);
    assert_memory_equal(got, wanted, sizeof wanted);
  }
}

/* ---- runs of drafts --------------------------------------------------------------------------------------- */

enum { ANSWER = 14 };

static void open_answer(weft_runner *r, float temperature, const int32_t *prompt, float penalty, bool both) {
  weft_slot_params p = ask(0, 11, prompt, PROMPT);
  p.draws = true;
  p.denoises = both;
  p.max_tokens = ANSWER;
  asked[0].temperature = temperature;
  asked[0].repetition_penalty = penalty;
  assert_int_equal(r->ops->slot_open(r, 0, &p), WEFT_OK);
}

/* A segment of slot 0 whose last n rows draw; tokens NULL: that of the slot. */
static weft_status submit_run(const world *w, weft_runner *r, uint32_t kv_len, uint32_t n_rows, uint32_t n,
                              const int32_t *tokens) {
  static step_of s;
  memset(&s, 0, sizeof s);
  const weft_segment segment = {.n_rows = n_rows,
                                .kv_len = kv_len,
                                .token_source = tokens != NULL ? WEFT_TOKENS_HOST : WEFT_TOKENS_SAMPLED,
                                .first_output = n_rows - n,
                                .n_outputs = n};
  add_rows(w, &s, 0, &segment);
  for (uint32_t i = 0; tokens != NULL && i < n_rows; i++) s.token[i] = tokens[i];
  return r->ops->submit(r, &s.batch);
}

/* The answer row by row, with one step always in flight; and in runs of k drafts, of which the first n_right are right.
 * With `back` every second run is a plain decode row. */
static void answer_prompt(uint32_t n, float temperature, float penalty, const int32_t *known, uint32_t k,
                          uint32_t n_right, bool back, int32_t *answer) {
  world w;
  int32_t prompt[PROMPT], row[1 + ANSWER];
  for (uint32_t i = 0; i < PROMPT; i++) prompt[i] = (int32_t)(i * 5 + 7);
  world_open(&w, n, 0);
  weft_runner *r = open_runner(&w);
  open_answer(r, temperature, prompt, penalty, false);
  assert_int_equal(submit_run(&w, r, 0, PROMPT, 1, prompt), WEFT_OK);
  for (uint32_t i = 1; known == NULL && i < ANSWER; i++) {
    assert_int_equal(submit_run(&w, r, PROMPT + i - 1, 1, 1, NULL), WEFT_OK);
    answer[i - 1] = collect(r).result[0].token->token;
  }
  weft_step_result result = collect(r);
  uint32_t at = known == NULL ? ANSWER - 1 : 0;
  answer[at++] = result.result[0].token->token;
  for (uint32_t turn = 0; at < ANSWER; turn++) {
    uint32_t most = ANSWER - at - 1, n_drafts = back && turn % 2 == 1 ? 0 : k < most ? k : most;
    row[0] = answer[at - 1];
    for (uint32_t i = 0; i < n_drafts; i++) row[1 + i] = known[at + i] ^ (i < n_right ? 0 : 1);
    assert_int_equal(submit_run(&w, r, PROMPT + at - 1, 1 + n_drafts, 1 + n_drafts, row), WEFT_OK);
    result = collect(r);
    const weft_segment_result *run = &result.result[0];
    assert_int_equal(run->n_taken, 1 + (n_drafts < n_right ? n_drafts : n_right));
    for (uint32_t i = 0; i < run->n_taken; i++) answer[at++] = run->token[i].token;
  }
  r->ops->close(r);
  world_close(&w);
}

static void test_runs(void **state) {
  (void)state;
  for (uint32_t n = 1; n <= 3; n++) {
    for (uint32_t i = 0; i < 4; i++) {
      float temperature = i % 2 == 0 ? 0.0f : 0.9f, penalty = i < 2 ? 1.0f : 1.5f; /* then the rows need their logits */
      int32_t wanted[ANSWER], got[ANSWER];
      answer_prompt(n, temperature, penalty, NULL, 0, 0, false, wanted);
      for (uint32_t k = 0; k <= 5; k++) {
        for (uint32_t n_right = 0; n_right <= k; n_right += n == 1 ? 1 : 2) {
          memset(got, 0xFF, sizeof got);
          answer_prompt(n, temperature, penalty, wanted, k, n_right, k % 2 == 1, got);
          assert_memory_equal(got, wanted, sizeof wanted);
        }
      }
    }
  }
}

/* ---- a slot of both kinds --------------------------------------------------------------------------------- */

enum { KNOWN = 4 }; /* tokens of the answer that the canvas stands on */

static weft_segment canvas_of(const world *w, uint32_t kv_len, uint32_t step) {
  return (weft_segment){.n_rows = w->info->canvas_length,
                        .kv_len = kv_len,
                        .mask = WEFT_MASK_WHOLE,
                        .stores = WEFT_STORES_SCRATCH,
                        .pass = WEFT_PASS_DECODER,
                        .token_source = WEFT_TOKENS_CANVAS,
                        .n_outputs = w->info->canvas_length,
                        .ask = WEFT_ASK_CANVAS,
                        .step = step};
}

/* Two steps of a canvas behind prompt and KNOWN tokens of the answer, in a slot of its own. */
static void denoise_alone(uint32_t n, const int32_t *answer, int32_t argmax[2][ROWS]) {
  world w;
  static step_of s;
  int32_t tokens[PROMPT + KNOWN];
  for (uint32_t i = 0; i < PROMPT; i++) tokens[i] = (int32_t)(i * 5 + 7);
  memcpy(tokens + PROMPT, answer, KNOWN * sizeof *tokens);
  world_open(&w, n, 0);
  weft_runner *r = open_runner(&w);
  weft_slot_params p = ask(0, 11, tokens, PROMPT + KNOWN);
  assert_int_equal(r->ops->slot_open(r, 0, &p), WEFT_OK);
  assert_int_equal(submit_run(&w, r, 0, PROMPT + KNOWN, 0, tokens), WEFT_OK);
  (void)collect(r);
  for (uint32_t step = 0; step < 2; step++) {
    const weft_segment canvas = canvas_of(&w, PROMPT + KNOWN, step);
    memset(&s, 0, sizeof s);
    add_rows(&w, &s, 0, &canvas);
    assert_int_equal(r->ops->submit(r, &s.batch), WEFT_OK);
    weft_step_result result = collect(r);
    memcpy(argmax[step], result.result[0].argmax, canvas.n_rows * sizeof **argmax);
  }
  assert_int_equal(submit_run(&w, r, PROMPT + KNOWN - 1, 1, 1, tokens + PROMPT + KNOWN - 1), WEFT_E_INVALID);
  r->ops->close(r);
  world_close(&w);
}

/* Row i of the answer, and beside it a step of the canvas where one is left. */
static void submit_both(const world *w, weft_runner *r, uint32_t i) {
  static step_of s;
  const weft_segment row = {.n_rows = 1, .kv_len = PROMPT + i, .token_source = WEFT_TOKENS_SAMPLED, .n_outputs = 1};
  memset(&s, 0, sizeof s);
  add_rows(w, &s, 0, &row);
  const weft_segment canvas = canvas_of(w, PROMPT + KNOWN, i - (KNOWN - 1));
  if (canvas.step < 2) add_rows(w, &s, 0, &canvas);
  assert_int_equal(r->ops->submit(r, &s.batch), WEFT_OK);
}

/* A request draws tokens and denoises a canvas behind some of them, in one step: its tokens are those of a request that
 * only draws, the canvas that of one that only denoises. */
static void test_both_kinds(void **state) {
  (void)state;
  for (uint32_t n = 1; n <= 3; n++) {
    world w;
    static step_of s;
    int32_t wanted[ANSWER], prompt[PROMPT], argmax[2][ROWS];
    for (uint32_t i = 0; i < PROMPT; i++) prompt[i] = (int32_t)(i * 5 + 7);
    answer_prompt(n, 0.9f, 1.0f, NULL, 0, 0, false, wanted);
    denoise_alone(n, wanted, argmax);
    world_open(&w, n, 0);
    weft_runner *r = open_runner(&w);
    open_answer(r, 0.9f, prompt, 1.0f, true);
    assert_int_equal(submit_run(&w, r, 0, PROMPT, 1, prompt), WEFT_OK);
    for (uint32_t i = 0; i < ANSWER; i++) {
      weft_step_result result = collect(r);
      assert_int_equal(result.result[0].token->token, wanted[i]);
      bool denoised = i >= KNOWN && i < KNOWN + 2;
      assert_int_equal(result.n_results, denoised ? 2 : 1);
      size_t n_bytes = w.info->canvas_length * sizeof **argmax;
      if (denoised) assert_memory_equal(result.result[1].argmax, argmax[i - KNOWN], n_bytes);
      submit_both(&w, r, i);
    }
    (void)collect(r);
    const weft_segment commit = {
        .n_rows = w.info->canvas_length, .kv_len = PROMPT + KNOWN, .token_source = WEFT_TOKENS_ARGMAX};
    memset(&s, 0, sizeof s);
    add_rows(&w, &s, 0, &commit);
    assert_int_equal(r->ops->submit(r, &s.batch), WEFT_E_INVALID); /* its tokens are drawn, or the host's */
    r->ops->close(r);
    world_close(&w);
  }
}

/* More drafts than the runner has room for, and drafts of rows whose penalties need a token that is still drawn. */
static void test_refused_runs(void **state) {
  world w;
  int32_t tokens[PROMPT] = {7, 12, 17, 22, 27, 32, 37, 42, 47};
  (void)state;
  world_open(&w, 1, 0);
  weft_runner *r = open_runner(&w);
  open_answer(r, 0.0f, tokens, 1.0f, false);
  assert_int_equal(submit_run(&w, r, 0, PROMPT, PROMPT, tokens), WEFT_E_INVALID); /* 5 drafts are the most */
  assert_int_equal(submit_run(&w, r, 0, PROMPT, 1, tokens), WEFT_OK);
  (void)collect(r);
  r->ops->slot_close(r, 0);
  open_answer(r, 0.0f, tokens, 1.5f, false);
  assert_int_equal(submit_run(&w, r, 0, PROMPT, 1, tokens), WEFT_OK);
  assert_int_equal(submit_run(&w, r, PROMPT, 2, 2, tokens), WEFT_E_INVALID);
  (void)collect(r);
  r->ops->close(r);
  world_close(&w);
}

/* ---- facts ------------------------------------------------------------------------------------------------ */

static void test_facts(void **state) {
  (void)state;
  for (uint32_t n = 1; n <= 3; n++) {
    world w;
    world_open(&w, n, 0);
    weft_runner *r = open_runner(&w);
    const weft_runner_info *info = r->ops->info(r);
    assert_int_equal(info->n_stages, n);
    assert_int_equal(info->depth, n + 1);
    assert_int_equal(info->page_bytes, w.layout.page_bytes);
    uint64_t n_bytes = 0;
    for (uint32_t p = 0; p < n; p++) {
      assert_int_equal(w.info->part[p].first_layer, w.split.first_layer[p]);
      n_bytes += w.info->part[p].weight_bytes;
    }
    assert_int_equal(w.info->weight_bytes, n_bytes);
    int32_t prompt[PROMPT] = {7, 12, 17, 22, 27, 32, 37, 42, 47};
    open_slot(r, 0, 5, prompt);
    submit(&w, r, 0, 0, false, 0);
    submit(&w, r, 0, 0, true, 0);
    (void)collect(r);
    (void)collect(r);
    uint64_t c = w.info->canvas_length, cuts = n - 1, far = n > 1 ? 1 : 0;
    weft_crossed crossed = weft_model_crossed(w.model);
    assert_int_equal(crossed.rows, cuts * (PROMPT + c) * w.info->n_hidden * sizeof(float));
    assert_int_equal(crossed.soft, far * c * w.info->n_hidden * sizeof(float));
    assert_int_equal(crossed.tokens, far * 2 * c * sizeof(int32_t));
    r->ops->close(r);
    world_close(&w);
  }
}

/* Bytes of rows that went from device to device in one pass of n_rows rows. */
static uint64_t cross(uint32_t n_devices, uint32_t n_shards, uint32_t n_rows, uint64_t *row_bytes) {
  static step_of step;
  world w;
  const float *soft[1] = {NULL};
  uint32_t last_row = n_rows - 1;
  float *d_hidden;
  world_open_shards(&w, n_devices, n_shards, 0);
  weft_device *last = weft_split_last(&w.split);
  *row_bytes = w.info->n_hidden * sizeof(float);
  assert_int_equal(weft_device_alloc(last, *row_bytes, (void **)&d_hidden), WEFT_OK);
  memset(&step, 0, sizeof step);
  add_rows(&w, &step, 0, &(weft_segment){.n_rows = n_rows});
  weft_forward_args args = {.batch = &step.batch,
                            .token = step.token,
                            .kv = w.store,
                            .layout = &w.layout,
                            .soft = soft,
                            .output_row = &last_row,
                            .n_output = 1,
                            .hidden = d_hidden};
  assert_int_equal(weft_model_forward(w.model, &args), WEFT_OK);
  uint64_t n_bytes = weft_model_crossed(w.model).rows;
  weft_device_free(last, d_hidden);
  world_close(&w);
  return n_bytes;
}

/* A cut costs shards what it costs one device: each sends the rows that it has. Few rows each of them has all, and of
 * many those that it owns. */
static void test_crossed_at_cuts(void **state) {
  uint64_t row_bytes;
  (void)state;
  for (uint32_t n_parts = 2; n_parts <= 4; n_parts++) {
    uint64_t few = cross(2 * n_parts, 2, 20, &row_bytes) - cross(2, 2, 20, &row_bytes);
    uint64_t many = cross(2 * n_parts, 2, ROWS, &row_bytes) - cross(2, 2, ROWS, &row_bytes);
    assert_int_equal(few, (n_parts - 1) * 2 * 20 * row_bytes);
    assert_int_equal(many, (n_parts - 1) * ROWS * row_bytes);
  }
}

/* A split says which weights lie on a card as integers too; the card keeps them for all others as before. */
static void test_integers_of_a_part(void **state) {
  static const weft_codes_alone table[] = {{0, 0}, {1, 0}, {9, 0}, {16, 0}, {16, 11}, {16, 15}, {16, 16}};
  uint32_t before = UINT32_MAX;
  weft_gguf *gguf;
  (void)state;
  assert_int_equal(weft_gguf_open(WEFT_SOURCE_DIR "/model/demo/weft-demo.gguf", &gguf, NULL), WEFT_OK);
  for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
    fake_card *card = fake_card_open(false);
    card->base.info.products = 8;
    card->base.info.integers = true;
    const weft_split split = {.n_devices = 1, .device = {&card->base}, .codes_alone = table[i]};
    weft_model *model;
    uint32_t n_have, n_can;
    assert_int_equal(weft_model_open(gguf, &split, &limits, NULL, NULL, &model, NULL), WEFT_OK);
    weft_split_count_integers(gguf, &split, &n_have, &n_can);
    assert_int_equal(card->n_integers, n_have);
    assert_true(n_have <= before && (i > 0 || n_have == n_can) && card->base.info.integers);
    before = n_have;
    weft_model_close(model);
    weft_device_close(&card->base);
  }
  assert_int_equal(before, 0);
  weft_gguf_close(gguf);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_passes), cmocka_unit_test(test_restore),         cmocka_unit_test(test_scores),
      cmocka_unit_test(test_runs),   cmocka_unit_test(test_refused_runs),    cmocka_unit_test(test_both_kinds),
      cmocka_unit_test(test_facts),  cmocka_unit_test(test_crossed_at_cuts), cmocka_unit_test(test_integers_of_a_part),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
