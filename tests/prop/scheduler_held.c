/* SPDX-License-Identifier: MIT */
/* Answers that are held to a grammar, through the engine over a tiny model: eight requests by diffusion, and eight
 * token by token, five of each held to grammars and the others free, or with unwanted words, give the same tokens
 *
 *   one after the other on a device whose memory is the host's
 *   all at once, with overlap, preempted in a small pool, and with logits of one row at a time
 *   on a device that works behind its calls, whose memory the host cannot read, with graphs and without
 *   (tests/support/fake_card.h)
 *   on two such devices, one of which runs ahead of the other, and on two whose memory is the host's
 *
 * and every held answer is of its grammar and complete. With overlap a row is planned after a token that the host does
 * not know yet, and its mask is made when the host does: so a row behind an answer that ends by itself is void. */
#include "base/log.h"
#include "tests/support/amount.h"
#include "tests/support/grammar_sample.h"
#include "tests/support/real_engine.h"

enum { REQUESTS = 8, GRAMMARS = 3, CONTEXT = 160, STEPS = 4 };
static const char model_path[] = WEFT_SOURCE_DIR "/tests/golden/models/dg-base.gguf";

static const struct {
  weft_grammar_kind kind;
  const char *text;
} formats[GRAMMARS] = {
    {WEFT_GRAMMAR_REGEX, "[a-c]{3}-[0-9]{30}"},
    {WEFT_GRAMMAR_GBNF, "root ::= (\"(\" [a-f]{1,5} \")\")*"},
    {WEFT_GRAMMAR_GBNF, "root ::= \"yes\" | \"no\" | \"the other\""},
};

static grammar_world world;
static bool by_diffusion; /* which of the two plays it is */
static uint32_t n_devices = 1, eager;
static weft_grammar *grammar[GRAMMARS];
static weft_token_rules *unwanted;
static rig_answer alone[REQUESTS], got[REQUESTS];
static uint64_t n_preemptions, n_void_rows, void_rows_of[REQUESTS]; /* of: one by one */
static uint64_t n_guesses, n_right;

/* Requests 2, 5 and 7 are free; 5 has unwanted words where its answer comes token by token. */
static uint32_t format_of(uint32_t request) {
  return request % 5 == 2 || request == 5 ? GRAMMARS : request % GRAMMARS;
}

static weft_request_params ask(uint32_t i) {
  static int32_t prompt[REQUESTS][20];
  for (uint32_t k = 0; k < 20; k++) prompt[i][k] = (int32_t)(10 + (i * 29 + k * 7) % 70);
  weft_request_params p = {.canvas = by_diffusion,
                           .tokens = prompt[i],
                           .n_tokens = 5 + 2 * i,
                           .max_tokens = 60 + i,
                           .asked.sampling = weft_sampling_neutral(),
                           .asked.entropy_bound = weft_entropy_bound_default()};
  p.asked.sampling.seed = 100 + i;
  p.asked.entropy_bound.max_steps = STEPS;
  p.stop_tokens = world.trie->ends;
  p.n_stop_tokens = world.trie->n_ends;
  if (format_of(i) < GRAMMARS) p.grammar = grammar[format_of(i)];
  if (i == 5 && !by_diffusion) p.rules = unwanted;
  return p;
}

static void turn(rig *r, weft_request **handle) {
  static uint32_t n_idle;
  weft_status status = weft_engine_step(r->engine, ++r->now);
  n_idle = status == WEFT_AGAIN ? n_idle + 1 : 0;
  rig_need(n_idle < 3, "turn", "the engine is stuck");
  for (uint32_t i = 0; i < REQUESTS; i++) rig_collect(r, &handle[i], &got[i]);
}

/* Since it was asked before. */
static uint64_t void_rows(rig *r) {
  weft_engine_stats stats;
  weft_engine_get_stats(r->engine, &stats);
  uint64_t n = stats.n_void_rows - n_void_rows;
  n_void_rows = stats.n_void_rows;
  return n;
}

/* Up to six next tokens of the request that begins so, some of them wrong: then another token, which the format may
 * have or not. */
static uint32_t guess_next(void *self, const weft_draft_text *text, uint32_t n_max, int32_t *out) {
  (void)self;
  for (uint32_t i = 0; i < REQUESTS; i++) {
    weft_request_params p = ask(i);
    uint32_t at = text->n_tokens - p.n_tokens, n = 1 + text->n_tokens * 7 % 6;
    if (text->n_tokens < p.n_tokens || memcmp(text->tokens, p.tokens, p.n_tokens * sizeof *text->tokens) != 0) continue;
    if (at > alone[i].n || memcmp(text->tokens + p.n_tokens, alone[i].tokens, at * sizeof *text->tokens) != 0) continue;
    if (n > n_max) n = n_max;
    if (n > alone[i].n - at) n = alone[i].n - at;
    for (uint32_t k = 0; k < n; k++) {
      bool wrong = (at + 3 * k) % 5 == 0;
      out[k] = wrong ? (int32_t)((uint32_t)(alone[i].tokens[at + k] + 1 + (int32_t)at) % world.trie->n_vocab)
                     : alone[i].tokens[at + k];
      n_right += !wrong;
    }
    n_guesses += n;
    return n;
  }
  return 0;
}

static const weft_drafter drafter = {.guess = guess_next};

static void play(const rig_options *options, const char *backend, bool one_by_one) {
  rig r;
  rig_options o = *options;
  weft_request *handle[REQUESTS] = {NULL};
  weft_error error = {{0}};
  o.backend = backend;
  o.path[0] = model_path;
  o.n_models = 1;
  o.n_devices = n_devices;
  o.eager = eager;
  o.context = CONTEXT;
  rig_open(&r, &o);
  memset(got, 0, sizeof got);
  n_void_rows = 0;
  for (uint32_t i = 0; i < REQUESTS; i++) {
    weft_request_params p = ask(i);
    weft_status status = weft_engine_submit(r.engine, &p, r.now, &handle[i], &error);
    rig_need(status == WEFT_OK, "submit", error.text);
    while (one_by_one && !weft_engine_idle(r.engine)) turn(&r, handle);
    void_rows_of[i] = void_rows(&r);
  }
  while (!weft_engine_idle(r.engine)) turn(&r, handle);
  for (uint32_t i = 0; i < REQUESTS; i++) rig_need(handle[i] == NULL, backend, "a request has no end");
  rig_check_pager(&r);
  weft_engine_stats stats;
  weft_engine_get_stats(r.engine, &stats);
  n_preemptions += stats.n_preemptions;
  rig_close(&r);
}

/* The automaton knows nothing of graphs and paths. */
static void check_format(uint32_t i) {
  const rig_answer *a = &alone[i];
  weft_matcher m;
  if (format_of(i) == GRAMMARS) return;
  weft_matcher_begin(&m, grammar[format_of(i)]);
  for (uint32_t k = 0; k < a->n; k++)
    rig_need(weft_matcher_take(&m, world.scratch, a->tokens[k]), "an answer", "it left its format");
  bool ends = a->finish == WEFT_FINISH_STOP || (!by_diffusion && a->finish == WEFT_FINISH_LENGTH);
  rig_need(ends && weft_matcher_may_end(&m, world.scratch), "an answer", "it is not complete");
}

static void compare(const char *backend, const char *name) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < REQUESTS; i++) {
    const rig_answer *a = &got[i], *b = &alone[i];
    n += a->n;
    if (a->finish == b->finish && a->n == b->n && memcmp(a->tokens, b->tokens, a->n * sizeof *a->tokens) == 0) continue;
    (void)printf("FAILED: %s on %s: request %u: %u tokens, finish %d; alone %u, %d: %s\n", name, backend, i, a->n,
                 (int)a->finish, b->n, (int)b->finish, a->error);
    exit(1);
  }
  (void)printf("%s on %s: the same, %u tokens\n", name, backend, n);
}

static void play_backend(const char *backend) {
  static const struct {
    const char *name;
    rig_options rig;
  } variants[] = {
      {"at once", {.n_pages = 300, .rows = 300, .running = 8, .overlap = true}},
      {"logits of one row, four at a time", {.n_pages = 300, .rows = 160, .running = 4, .logits_bytes_max = 1}},
      {"drafts", {.n_pages = 300, .rows = 300, .running = 8, .draft_rows = 20, .drafter = &drafter}},
      {"drafts, logits of one row",
       {.n_pages = 300, .rows = 160, .running = 4, .draft_rows = 9, .drafter = &drafter, .logits_bytes_max = 1}},
      {"drafts, overlap, a small pool",
       {.n_pages = 36,
        .rows = 200,
        .running = 8,
        .overlap = true,
        .block = 8,
        .n_saves = 4,
        .n_host = 60,
        .draft_rows = 30,
        .drafter = &drafter}},
      {"a small pool",
       {.n_pages = 36, .rows = 200, .running = 8, .overlap = true, .block = 8, .n_saves = 4, .n_host = 60}},
  };
  for (uint32_t i = 0; i < sizeof variants / sizeof *variants; i++) {
    play(&variants[i].rig, backend, false);
    compare(backend, variants[i].name);
  }
}

static void open_formats(void) {
  for (uint32_t i = 0; i < GRAMMARS; i++) {
    weft_error error = {{0}};
    weft_grammar_work work = {0};
    weft_status status = weft_grammar_compile(formats[i].kind, formats[i].text, strlen(formats[i].text), world.trie,
                                              &grammar[i], &work, &error);
    if (status == WEFT_OK && by_diffusion) status = weft_grammar_for_canvases(grammar[i], &work, &error);
    rig_need(status == WEFT_OK, "grammar", error.text);
  }
}

/* Every second token of the free answer is unwanted after the token before it. */
static void open_unwanted(void) {
  int32_t word[RIG_TOKENS];
  uint32_t length[RIG_TOKENS / 2], n = alone[5].n / 2;
  for (uint32_t i = 0; i < 2 * n; i++) word[i] = alone[5].tokens[i];
  for (uint32_t i = 0; i < n; i++) length[i] = 2;
  weft_token_rules_config config = {.n_vocab = world.trie->n_vocab, .word = word, .word_length = length, .n_words = n};
  weft_error error = {{0}};
  rig_need(n > 1 && weft_token_rules_open(&config, &unwanted, &error) == WEFT_OK, "unwanted words", error.text);
}

/* How each answer is when it is computed alone. */
static void play_alone(const char *backend) {
  static const rig_options wide = {.n_pages = 300, .rows = 200, .running = 1, .no_cache = true};
  play(&wide, backend, true);
  memcpy(alone, got, sizeof alone);
}

static void play_overlap(const char *backend) {
  static const rig_options ahead = {.n_pages = 300, .rows = 200, .running = 1, .overlap = true};
  play_backend(backend);
  play(&ahead, backend, true);
  compare(backend, "one by one, with overlap");
  for (uint32_t i = 0; i < REQUESTS; i++) {
    bool ends = got[i].finish == WEFT_FINISH_STOP && !by_diffusion;
    rig_need(!ends || void_rows_of[i] > 0, backend, "no row was planned after a token in flight");
  }
}

static void play_on_two(const char *backend) {
  n_devices = 2;
  for (eager = 0; eager <= (strcmp(backend, "cpu") == 0 ? 0 : 2); eager++) play_backend(backend);
  n_devices = 1;
  eager = 0;
}

static void play_all(void) {
  open_formats();
  play_alone("ref");
  if (!by_diffusion) {
    rig_answer before = alone[5];
    open_unwanted();
    play_alone("ref");
    rig_need(memcmp(before.tokens, alone[5].tokens, sizeof before.tokens) != 0, "unwanted words", "they came");
  }
  for (uint32_t i = 0; i < REQUESTS; i++) check_format(i);
  play_overlap("fake");
  play_overlap("fake graphs");
  play_on_two("fake late");
  play_alone("cpu");
  for (uint32_t i = 0; i < REQUESTS; i++) check_format(i);
  play_overlap("cpu");
  play_on_two("cpu");
  for (uint32_t i = 0; i < GRAMMARS; i++) weft_grammar_unref(grammar[i]);
  weft_token_rules_unref(unwanted);
  unwanted = NULL;
}

int main(void) {
  weft_log_set_level(WEFT_LOG_ERROR);
  rig_need(grammar_world_open(&world, model_path), "tokenizer", model_path);
  by_diffusion = true;
  play_all();
  by_diffusion = false;
  play_all();
  rig_need(n_preemptions > 0, "a small pool", "nobody was preempted");
  rig_need(n_right > 100 && n_guesses > n_right + 100, "drafts", "hardly any was right, or wrong");
  grammar_world_close(&world);
  return 0;
}
