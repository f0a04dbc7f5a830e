/* SPDX-License-Identifier: MIT */
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "bench/acceptance/acceptance.h"
#include "bench/quality/repetition.h"

/* ANSWER_MAX: tokens of an answer. RESIDENT_KIB: by how much the second round may grow the process; the allocator
 * keeps some of what it was given back. */
enum { QUESTIONS = 3, NUMBERS = 16, ANSWER_MAX = 192, IDLE_MS = 10000, RESIDENT_KIB = 16384 };

/* Each has one right answer, whatever words stand around it: these numbers, in this order. */
static const struct {
  const char *text;
  uint32_t wanted[NUMBERS], n_wanted;
} questions[QUESTIONS] = {
    {"What is 58 + 37?", {95}, 1},
    {"Sort from low to high: 41 7 23", {7, 23, 41}, 3},
    {"List all numbers from 34 to 49.", {34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47, 48, 49}, 16},
};

typedef struct answer {
  weft_text text;
  weft_tokens tokens;
  char finish[16];
  weft_usage_counts usage;
} answer;

typedef struct round {
  answer answer[QUESTIONS];
} round;

typedef struct serving {
  acceptance *a;
  weft_runtime *rt;
  weft_model_card card;
} serving;

static void free_round(round *r) {
  for (uint32_t i = 0; i < QUESTIONS; i++) {
    weft_text_free(&r->answer[i].text);
    weft_tokens_free(&r->answer[i].tokens);
  }
  memset(r, 0, sizeof *r);
}

/* ---- one answer ---- */

static weft_status read_answer(weft_generation *g, answer *out, weft_error *error) {
  weft_delta d;
  weft_status status = WEFT_OK;
  for (;;) {
    int next = weft_next(g, 1000, &d);
    if (next == WEFT_AGAIN) continue;
    if (next != 0) return weft_fail(error, (weft_status)next, "%s", weft_status_text((weft_status)next));
    if (d.kind == WEFT_DELTA_END) break;
    if (d.kind != WEFT_DELTA_TEXT) continue;
    weft_text_append(&out->text, d.text, d.n_text);
    for (uint32_t i = 0; i < d.n_tokens && status == WEFT_OK; i++) status = weft_tokens_push(&out->tokens, d.tokens[i]);
  }
  (void)snprintf(out->finish, sizeof out->finish, "%s", d.finish);
  out->usage = d.usage;
  if (strcmp(d.finish, "error") == 0) return weft_fail(error, WEFT_E_DEVICE, "%s", d.error);
  if (status == WEFT_OK) status = weft_text_status(&out->text);
  return status == WEFT_OK ? status : weft_fail(error, status, "no memory for an answer");
}

static weft_status ask_one(const serving *s, weft_mode mode, uint32_t index, answer *out, weft_error *error) {
  const weft_chat_turn turn = {.role = "user", .content = questions[index].text};
  weft_generate_params p;
  weft_generation *g = NULL;
  weft_generate_defaults(&p);
  if (s->card.chat) {
    p.prompt.turns = &turn;
    p.prompt.n_turns = 1;
  } else {
    p.prompt.text = questions[index].text;
    p.prompt.n_text = strlen(questions[index].text);
  }
  p.mode = mode;
  p.max_tokens = s->card.context / 2 < ANSWER_MAX ? s->card.context / 2 : ANSWER_MAX;
  p.sampling.temperature = 0.0f;
  p.has_seed = true;
  p.sampling.seed = index + 1;
  int status = weft_submit(s->rt, &p, &g, error->text, sizeof error->text);
  if (status != 0) return (weft_status)status;
  weft_status read = read_answer(g, out, error);
  weft_generation_free(g);
  return read;
}

static weft_status ask_all(const serving *s, weft_mode mode, round *out, weft_error *error) {
  weft_status status = WEFT_OK;
  for (uint32_t i = 0; i < QUESTIONS && status == WEFT_OK; i++) status = ask_one(s, mode, i, &out->answer[i], error);
  return status;
}

/* ---- what answers are like ---- */

/* The wanted numbers stand in the text, one after another, with nothing but other characters between them. */
static bool is_right(const answer *a, uint32_t question) {
  const uint32_t *wanted = questions[question].wanted, n = questions[question].n_wanted;
  uint32_t n_found = 0;
  const char *at = a->text.bytes == NULL ? "" : a->text.bytes;
  while (*(at += strcspn(at, "0123456789")) != 0) {
    size_t digits = strspn(at, "0123456789");
    uint64_t value = 0;
    for (size_t i = 0; i < digits && i < 9; i++) value = 10 * value + (uint64_t)(at[i] - '0');
    n_found = digits < 9 && value == wanted[n_found] ? n_found + 1 : digits < 9 && value == wanted[0] ? 1 : 0;
    if (n_found == n) return true;
    at += digits;
  }
  return false;
}

typedef struct judged {
  uint32_t n_right, n_stopped, n_empty; /* empty: no text but white space, whatever tokens there are */
  uint64_t n_tokens, generate_us, first_us, n_steps, n_canvases;
  weft_repetition repetition;
} judged;

static judged judge_round(const round *r) {
  judged j = {.n_right = 0};
  for (uint32_t i = 0; i < QUESTIONS; i++) {
    const answer *a = &r->answer[i];
    const char *text = a->text.bytes == NULL ? "" : a->text.bytes;
    j.n_right += is_right(a, i);
    j.n_stopped += strcmp(a->finish, "stop") == 0;
    j.n_empty += text[strspn(text, " \t\r\n")] == 0;
    j.n_tokens += a->usage.completion_tokens > 0 ? a->usage.completion_tokens - 1 : 0;
    j.generate_us += a->usage.total_us - a->usage.first_token_us;
    j.first_us += a->usage.first_token_us;
    j.n_steps += a->usage.denoise_steps;
    j.n_canvases += a->usage.canvases;
    weft_repetition_add(&j.repetition, a->tokens.ids, a->tokens.n);
  }
  return j;
}

static void keep_answers(acceptance *a, const char *way, const round *r) {
  for (uint32_t i = 0; i < QUESTIONS; i++) {
    const answer *one = &r->answer[i];
    (void)json_array_append_new(
        json_object_get(a->report.root, "answers"),
        json_pack("{s:s, s:s, s:o, s:s, s:i, s:i, s:b}", "way", way, "question", questions[i].text, "answer",
                  json_stringn(one->text.bytes == NULL ? "" : one->text.bytes, one->text.n), "finish", one->finish,
                  "tokens", (int)one->tokens.n, "denoise_steps", (int)one->usage.denoise_steps, "right",
                  (int)is_right(one, i)));
  }
}

static void keep_times(acceptance *a, weft_mode mode, const judged *j) {
  if (mode == WEFT_MODE_DIFFUSION) {
    if (j->n_canvases > 0)
      acceptance_figure(&a->report, "denoise_steps_per_canvas", (double)j->n_steps / (double)j->n_canvases);
    return;
  }
  acceptance_figure(&a->report, "first_token_ms", (double)j->first_us * 1e-3 / QUESTIONS);
  if (j->generate_us > 0)
    acceptance_figure(&a->report, "tokens_per_second", (double)j->n_tokens * 1e6 / (double)j->generate_us);
}

/* The first words of the first answer, for the line. */
static void quote_answer(const round *r, char *out, size_t n_out) {
  const weft_text *t = &r->answer[0].text;
  size_t n = t->n > 40 ? weft_utf8_complete(t->bytes, 40) : t->n;
  (void)snprintf(out, n_out, "%.*s%s", (int)n, t->n > 0 ? t->bytes : "", n < t->n ? "..." : "");
}

static const char *const advise_nonsense =
    "If prediction is bad too, weights or conversion are wrong; if it is good, template or vocabulary are. Compare "
    "with "
    "another program on the same file, and send this report.";

static void tell_answers(acceptance *a, const char *way, const round *r, const judged *j) {
  char quote[160];
  quote_answer(r, quote, sizeof quote);
  if (j->n_empty == QUESTIONS) {
    acceptance_add(&a->report, "answers", ACCEPTANCE_BAD, advise_nonsense, "%s: no answer has any text", way);
  } else if (weft_repetition_is_loop(&j->repetition)) {
    acceptance_add(&a->report, "answers", a->chat ? ACCEPTANCE_BAD : ACCEPTANCE_LOOK, advise_nonsense,
                   "%s: answers go round in circles: %.0f %% of grams are repeated, one token %" PRIu64
                   " times in a row; '%s'",
                   way, 100.0 * weft_repetition_share(&j->repetition), j->repetition.longest_run, quote);
  } else if (j->n_right == 0) {
    acceptance_add(&a->report, "answers", a->chat ? ACCEPTANCE_BAD : ACCEPTANCE_LOOK, advise_nonsense,
                   "%s: none of %d simple questions has its answer; '%s'", way, QUESTIONS, quote);
  } else if (j->n_right < QUESTIONS || j->n_empty > 0) {
    acceptance_add(&a->report, "answers", ACCEPTANCE_LOOK, "Small models miss some; read the answers in the report.",
                   "%s: %" PRIu32 " of %d simple questions are answered; '%s'", way, j->n_right, QUESTIONS, quote);
  } else {
    acceptance_add(&a->report, "answers", ACCEPTANCE_GOOD, NULL, "%s: all %d questions are answered; '%s'", way,
                   QUESTIONS, quote);
  }
  if (j->n_stopped == QUESTIONS) return;
  acceptance_add(&a->report, "answers", ACCEPTANCE_LOOK,
                 a->chat ? "The token that ends a turn may not be among those that end an answer: look at "
                           "tokenizer.ggml.eos_token_id and the template."
                         : "A base model goes on until its length.",
                 "%s: %" PRIu32 " of %d answers did not stop by themselves", way, QUESTIONS - j->n_stopped, QUESTIONS);
}

/* ---- the same again, and memory ---- */

static bool are_same(const round *a, const round *b) {
  for (uint32_t i = 0; i < QUESTIONS; i++) {
    const weft_tokens *x = &a->answer[i].tokens, *y = &b->answer[i].tokens;
    if (x->n != y->n || (x->n > 0 && memcmp(x->ids, y->ids, x->n * sizeof *x->ids) != 0)) return false;
  }
  return true;
}

static void check_way(serving *s, weft_mode mode, const char *way) {
  round first, second;
  weft_error error = {{0}};
  memset(&first, 0, sizeof first);
  memset(&second, 0, sizeof second);
  weft_status status = ask_all(s, mode, &first, &error);
  unsigned long long before = weft_process_get_memory().resident;
  if (status == WEFT_OK) status = ask_all(s, mode, &second, &error);
  unsigned long long after = weft_process_get_memory().resident;
  if (status != WEFT_OK) {
    acceptance_add(&s->a->report, "answers", ACCEPTANCE_BAD, "Send this report.", "%s: %s", way, error.text);
  } else {
    judged j = judge_round(&first);
    keep_answers(s->a, way, &first);
    keep_times(s->a, mode, &j);
    s->a->answered = s->a->answered || j.n_right > 0;
    tell_answers(s->a, way, &first, &j);
    if (!are_same(&first, &second))
      acceptance_add(&s->a->report, "repeated", ACCEPTANCE_BAD, "This is a fault of weft: send this report.",
                     "%s: the same questions with the same seed had other answers the second time", way);
    else
      acceptance_add(&s->a->report, "repeated", ACCEPTANCE_GOOD, NULL, "%s: the same answers a second time", way);
    bool grew = after > before + RESIDENT_KIB * 1024ull;
    acceptance_add(&s->a->report, "memory", grew ? ACCEPTANCE_BAD : ACCEPTANCE_GOOD,
                   grew ? "This is a fault of weft: send this report." : NULL,
                   "%s: the second round changed the process by %+.1f MiB, of %.0f MiB", way,
                   ((double)after - (double)before) / 1048576.0, (double)after / 1048576.0);
  }
  free_round(&first);
  free_round(&second);
}

/* After the last answer, and once the engine has seen it go. */
static void check_pool(serving *s) {
  weft_pager_stats pool = {0};
  for (uint32_t waited = 0; waited < IDLE_MS && !weft_idle(s->rt); waited++) (void)usleep(1000);
  for (uint32_t r = 0; r < s->rt->n_replicas; r++) {
    weft_engine_stats stats;
    weft_engine_get_stats(weft_replicas_at(s->rt->replicas, r), &stats);
    pool.n_pages += stats.pager.n_pages;
    pool.n_free += stats.pager.n_free;
    pool.n_cached += stats.pager.n_cached;
    pool.n_seqs += stats.pager.n_seqs;
  }
  bool whole = pool.n_free + pool.n_cached == pool.n_pages && pool.n_seqs == 0;
  acceptance_add(&s->a->report, "pool", whole ? ACCEPTANCE_GOOD : ACCEPTANCE_BAD,
                 whole ? NULL : "This is a fault of weft: send this report.",
                 "of %" PRIu32 " pages %" PRIu32 " are free, %" PRIu32 " cached, %" PRIu32 " held", pool.n_pages,
                 pool.n_free, pool.n_cached, pool.n_pages - pool.n_free - pool.n_cached);
}

void acceptance_check_answers(acceptance *a) {
  serving s = {.a = a};
  weft_error error = {{0}};
  const weft_open_options options = weft_config_open(&a->config->product);
  int status = a->tokenizer == NULL ? WEFT_OK : weft_open(&options, &s.rt, error.text, sizeof error.text);
  if (a->tokenizer == NULL) {
    acceptance_add(&a->report, "answers", ACCEPTANCE_LEFT_OUT, NULL, "they need the tokenizer");
  } else if (status != WEFT_OK) {
    acceptance_add(&a->report, "serving", ACCEPTANCE_BAD,
                   "The model loads, but a server with these options does not start: lower what the line names "
                   "(--context, --running, --kv-mib), or send this report.",
                   "%s", error.text);
  } else {
    s.card = weft_model_at(s.rt, 0);
    (void)json_object_set_new(a->report.root, "plan", json_string(weft_plan(s.rt)));
    if (s.card.autoregressive) check_way(&s, WEFT_MODE_AUTOREGRESSIVE, "token by token");
    if (s.card.diffusion) check_way(&s, WEFT_MODE_DIFFUSION, "by diffusion");
    check_pool(&s);
  }
  weft_close(s.rt);
}
