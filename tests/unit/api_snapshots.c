/* SPDX-License-Identifier: MIT */
/* How many tokens of a prompt are computed by a model with states, whose hits end at snapshots: at the second turn of a
 * chat, whose template leaves old thinking out; where only the instructions are the same; for two tenants with a public
 * prefix. What is computed is what lies behind the last border before the place where the prompts part. The same of
 * models whose windows pass that place, with and without rows that stand for many positions: there it is what lies
 * behind the last end of a block of every group. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "api/runtime.h"
#include "tests/support/amount.h"
#include "tests/support/state_model.h"

enum { BORDER = STATE_MODEL_BORDER, TOKENS_MAX = 1024, ANSWER = 70, LONG_ANSWER = 200, LETTERS = 26, TENANTS = 2 };
enum { MODELS = 4 }; /* with states, with windows, with far rows, with far rows that layers share */

static weft_runtime *runtime;
static const char *asked; /* the model; NULL: that with states */
static uint32_t n_asked = ANSWER;

/* What is in the cache of a request that has ended: its prompt, and its answer but for the last token. */
typedef struct said {
  int32_t tokens[TOKENS_MAX];
  uint32_t n_prompt, n, n_cached; /* n_cached: of the prompt, found when it began */
  char answer[TOKENS_MAX];
  size_t n_answer;
} said;

static int open_runtime(void **state) {
  (void)state;
  static const char *models[MODELS];
  char error[512];
  models[0] = state_model_file(2048);
  models[1] = state_model_windows(2048);
  models[2] = state_model_latent(2048);
  models[3] = state_model_shared(2048);
  const weft_open_options options = {.models = models,
                                     .n_models = MODELS,
                                     .backend = "cpu",
                                     .threads = 1,
                                     .kv_bytes = 16 << 20,
                                     .context = TOKENS_MAX,
                                     .running = 2,
                                     .queue = 8,
                                     .rows = 256,
                                     .tenants = TENANTS,
                                     .pins = 2,
                                     .quiet = true};
  if (weft_open(&options, &runtime, error, sizeof error) != 0) fail_msg("%s", error);
  return 0;
}

static int close_runtime(void **state) {
  (void)state;
  weft_close(runtime);
  gguf_edit_clean();
  return 0;
}

/* An answer of n_asked letters. */
static void ask(weft_generate_params *p, said *out) {
  static const int32_t letters[LETTERS] = {'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h', 'i', 'j', 'k', 'l', 'm',
                                           'n', 'o', 'p', 'q', 'r', 's', 't', 'u', 'v', 'w', 'x', 'y', 'z'};
  weft_generation *generation;
  weft_delta delta = {0};
  char error[512];
  const int32_t *prompt;
  p->model = asked;
  p->has_seed = true;
  p->max_tokens = n_asked;
  p->allowed_tokens = letters;
  p->n_allowed_tokens = LETTERS;
  if (weft_submit(runtime, p, &generation, error, sizeof error) != 0) fail_msg("%s", error);
  out->n = out->n_prompt = weft_prompt_tokens(generation, &prompt);
  assert_true(out->n + n_asked <= TOKENS_MAX);
  memcpy(out->tokens, prompt, out->n * sizeof *prompt);
  out->n_answer = 0;
  while (delta.kind != WEFT_DELTA_END) {
    if (weft_next(generation, 1000, &delta) != 0 || delta.kind != WEFT_DELTA_TEXT) continue;
    memcpy(out->tokens + out->n, delta.tokens, delta.n_tokens * sizeof *delta.tokens);
    memcpy(out->answer + out->n_answer, delta.text, delta.n_text);
    out->n += delta.n_tokens;
    out->n_answer += delta.n_text;
  }
  if (strcmp(delta.finish, "length") != 0) fail_msg("the answer ended by %s: %s", delta.finish, delta.error);
  out->answer[out->n_answer] = 0;
  out->n_cached = delta.usage.cached_tokens;
  assert_int_equal(out->n, out->n_prompt + n_asked);
  out->n -= 1; /* the last token was never a row */
  weft_generation_free(generation);
}

static void chat(const weft_chat_turn *turns, uint32_t n, bool thinking, uint32_t tenant, said *out) {
  weft_generate_params p;
  weft_generate_defaults(&p);
  p.prompt.turns = turns;
  p.prompt.n_turns = n;
  p.prompt.thinking = thinking;
  p.tenant = tenant;
  ask(&p, out);
}

/* Where a prompt parts from what an earlier request has left. */
static uint32_t parting_of(const said *before, const said *now) {
  uint32_t n = 0;
  while (n < before->n && n < now->n_prompt && before->tokens[n] == now->tokens[n]) n += 1;
  return n;
}

static uint32_t border_below(uint32_t n) {
  return n / BORDER * BORDER;
}

/* A text of n bytes that no other has. */
static const char *words(uint32_t n) {
  static char text[4][512];
  static uint32_t number;
  char *out = text[number++ % 4];
  assert_true(n < sizeof text[0]);
  (void)snprintf(out, sizeof text[0], "%u", 100000 + number);
  for (size_t i = strlen(out); i < n; i++) out[i] = (char)('A' + (i * 7 + number) % 26);
  out[n] = 0;
  return out;
}

/* The template writes the model's thinking, or that there is none, only in the last turn, so the prompts of two turns
 * part some tokens before the end of the first one, wherever borders are. */
static void a_second_turn_begins_where_the_first_one_was_asked(void **state) {
  (void)state;
  static said first, second;
  const uint32_t stride = (uint32_t)test_amount(9, 5, 1);
  for (uint32_t thinking = 0; thinking < 2; thinking++) {
    for (uint32_t n = 100; n < 100 + BORDER; n += stride) {
      weft_chat_turn turns[4] = {{.role = "system", .content = words(n)}, {.role = "user", .content = words(90)}};
      chat(turns, 2, thinking == 1, 0, &first);
      assert_int_equal(first.n_cached, 0);
      turns[2] = (weft_chat_turn){.role = "assistant", .content = "It is so.", .thinking = first.answer};
      turns[3] = (weft_chat_turn){.role = "user", .content = words(20)};
      chat(turns, 4, thinking == 1, 0, &second);
      uint32_t parting = parting_of(&first, &second);
      assert_in_range(parting, n + 90, first.n_prompt - 1); /* before the marker of thinking */
      assert_int_equal(second.n_cached, border_below(parting));
    }
  }
}

/* The same conversation with models that keep no states: when the second turn comes, their windows have passed the
 * place where it parts from the first. */
static void windows_are_there_where_turns_part(void **state) {
  (void)state;
  static said first, second;
  const uint32_t stride = (uint32_t)test_amount(37, 17, 3);
  n_asked = LONG_ANSWER;
  for (uint32_t i = 1; i < MODELS; i++) {
    const weft_kv_layout *layout = &runtime->model[i].layout;
    uint32_t block = 1, n_windows = 0;
    asked = weft_model_at(runtime, i).name;
    for (uint32_t g = 0; g < layout->n_groups; g++) {
      if (layout->group[g].block_tokens > block) block = layout->group[g].block_tokens;
      n_windows += layout->group[g].window > 0;
      assert_true(layout->group[g].window < LONG_ANSWER);
    }
    assert_true(n_windows > 0);
    for (uint32_t n = 200; n < 200 + block; n += stride) {
      weft_chat_turn turns[4] = {{.role = "system", .content = words(n)}, {.role = "user", .content = words(90)}};
      chat(turns, 2, true, 0, &first);
      assert_int_equal(first.n_cached, 0);
      turns[2] = (weft_chat_turn){.role = "assistant", .content = "It is so.", .thinking = first.answer};
      turns[3] = (weft_chat_turn){.role = "user", .content = words(20)};
      chat(turns, 4, true, 0, &second);
      uint32_t parting = parting_of(&first, &second);
      assert_in_range(parting, n + 90, first.n_prompt - 1);
      assert_int_equal(second.n_cached, parting / block * block);
    }
  }
  asked = NULL;
  n_asked = ANSWER;
}

/* Where the conversation goes on word by word, as between calls of tools, nothing of the answer is computed again but
 * what lies behind its last border. */
static void an_answer_is_gone_on_from(void **state) {
  (void)state;
  static said first, second;
  for (uint32_t n = 200; n < 200 + BORDER; n += 13) {
    const weft_chat_turn turns[2] = {{.role = "system", .content = words(n)}, {.role = "user", .content = words(30)}};
    chat(turns, 2, true, 0, &first);
    weft_generate_params p;
    weft_generate_defaults(&p);
    for (uint32_t i = 0; i < 10; i++) first.tokens[first.n + 1 + i] = 'Z';
    p.prompt.tokens = first.tokens;
    p.prompt.n_tokens = first.n + 11;
    ask(&p, &second);
    assert_int_equal(second.n_cached, border_below(first.n));
  }
}

/* Other conversations under the same instructions compute these no second time: what the first one keeps ends where its
 * first question stands, and what they compute then ends where their texts part. */
static void instructions_are_computed_once(void **state) {
  (void)state;
  static said chats[3];
  for (uint32_t n = 200; n < 200 + BORDER; n += 7) {
    weft_chat_turn turns[2] = {{.role = "system", .content = words(n)}, {.role = "user"}};
    for (uint32_t i = 0; i < 3; i++) {
      const char *const question[] = {"Apples?", "Bread?", "Cheese?"};
      turns[1].content = question[i];
      chat(turns, 2, true, 0, &chats[i]);
    }
    uint32_t parting = parting_of(&chats[0], &chats[1]), n_role = (uint32_t)strlen("user\n");
    assert_in_range(chats[1].n_cached, border_below(parting - n_role), border_below(parting));
    assert_int_equal(chats[2].n_cached, border_below(parting));
    assert_in_range(parting, n, n + 40);
  }
}

static weft_pin_card held_pin(uint32_t id) {
  for (;;) { /* until the request that computes it has ended */
    weft_pin_card card[2] = {0};
    uint32_t n = weft_pins(runtime, card, 2);
    for (uint32_t i = 0; i < n; i++)
      if (card[i].id == id && card[i].held) return card[i];
    (void)usleep(2000);
  }
}

/* A public prefix is computed by one tenant, once, and found by all; what is not public by nobody else. */
static void tenants_share_a_public_prefix(void **state) {
  (void)state;
  static said own, other;
  char error[512];
  for (uint32_t n = 180; n < 180 + BORDER; n += 21) {
    weft_chat_turn turns[2] = {{.role = "system", .content = words(n)}, {.role = "user", .content = "Apples?"}};
    uint32_t id;
    const weft_prefix prefix = {.is_public = true, .prompt = {.turns = turns, .n_turns = 1}};
    if (weft_pin(runtime, &prefix, &id, error, sizeof error) != 0) fail_msg("%s", error);
    const weft_pin_card card = held_pin(id);
    chat(turns, 2, true, 0, &own);
    chat(turns, 2, true, 1, &other);
    assert_true(card.tokens % BORDER == 0 && card.tokens >= border_below(n));
    assert_int_equal(own.n_cached, card.tokens);
    assert_int_equal(other.n_cached, card.tokens);
    assert_int_equal(weft_unpin(runtime, id), 0);
    turns[0].content = words(n);
    chat(turns, 2, true, 0, &own);
    chat(turns, 2, true, 1, &other);
    assert_int_equal(other.n_cached, 0);
  }
}

/* After each step of an answer the pool has what the layout says that a sequence holds; until the block is full in
 * which the prompt ended, windows may have passed a block more. */
static void check_what_it_holds(const weft_kv_layout *layout) {
  static said one;
  static weft_step_record record[WEFT_RECORDED_STEPS];
  weft_engine *engine = weft_replicas_at(runtime->replicas, 0);
  weft_engine_stats before;
  uint32_t n_tokens = 0, n_seen = 0, least = UINT32_MAX, most = 0;
  weft_engine_get_stats(engine, &before);
  const weft_chat_turn turn = {.role = "user", .content = words(90)};
  chat(&turn, 1, true, 0, &one);
  assert_int_equal(one.n_cached, 0);
  uint32_t n = weft_engine_get_steps(engine, record, WEFT_RECORDED_STEPS);
  for (uint32_t i = 0; i < n; i++) {
    bool of_others = n_tokens == 0 && record[i].n_prefill_rows == 0; /* the last step before may be counted late */
    if (record[i].number <= before.n_steps || of_others) continue;
    n_tokens += record[i].n_prefill_rows + record[i].n_decode_rows;
    if (record[i].n_decode_rows == 0 || record[i].n_running == 0) continue;
    uint32_t n_pinned = record[i].n_pages_pinned;
    const uint64_t held = weft_kv_pages_held(layout, n_tokens, 0);
    if (n_tokens / BORDER > one.n_prompt / BORDER)
      assert_int_equal(n_pinned, held);
    else
      assert_in_range(n_pinned, held - layout->n_groups, held);
    if (n_pinned < least) least = n_pinned;
    if (n_pinned > most) most = n_pinned;
    n_seen += 1;
  }
  assert_in_range(n_seen, BORDER, n_asked); /* every place between two borders was seen */
  assert_true(most > least);
}

/* Keys, the state at the last border, and the rows since then, at a border none of them; of the others what their
 * windows and what far rows are made of. */
static void a_sequence_holds_what_is_said(void **state) {
  (void)state;
  for (uint32_t i = 0; i < MODELS; i++) {
    asked = weft_model_at(runtime, i).name;
    n_asked = i == 0 ? ANSWER : LONG_ANSWER;
    check_what_it_holds(&runtime->model[i].layout);
  }
  asked = NULL;
  n_asked = ANSWER;
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(a_second_turn_begins_where_the_first_one_was_asked),
                                     cmocka_unit_test(an_answer_is_gone_on_from),
                                     cmocka_unit_test(instructions_are_computed_once),
                                     cmocka_unit_test(tenants_share_a_public_prefix),
                                     cmocka_unit_test(a_sequence_holds_what_is_said),
                                     cmocka_unit_test(windows_are_there_where_turns_part)};
  return cmocka_run_group_tests(tests, open_runtime, close_runtime);
}
