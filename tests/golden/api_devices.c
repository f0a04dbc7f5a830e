/* SPDX-License-Identifier: MIT */
/* Whole answers of F32 files on cpu and on every other backend of this machine: token by token, greedy and drawn, and
 * by diffusion with every array of every denoise step.
 *
 *   trained   the demo model with its matrices stored in F32 answers model/demo/eval.jsonl: every token and every array
 *             of every canvas must be the same, and entropies within 1e-3 nats. Of a step's argmax a position may
 *             differ where two tokens tie (both logits at the softcap, to the last bit): then each has at most half of
 *             the row, so its entropy is ln 2 or more
 *   spoiled   the trained file with one weight changed must be told apart
 *
 * ref is slow: it gets a few questions. Random models are no subject here: their soft embeddings enlarge a difference
 * about five times in each step, so that two backends, each within 1e-5 nats in the first step, are 5e-2 apart in the
 * fifth. golden/model_devices holds every step of them to what it began with.
 *
 *   api_devices [QUESTIONS]    of each family; all on cuda unless said */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/weft.h"
#include "base/log.h"
#include "tests/support/amount.h"
#include "tests/support/gguf_requantise.h"

enum { CANVAS_MAX = 32, STEPS_MAX = 400, TOKENS_MAX = 256, IN_FLIGHT = 32, FLIGHTS_MAX = 2048, TURNS_MAX = 16 };
static const float nats = 1e-3f;

typedef enum way { GREEDY, DRAWN, DIFFUSION, WAYS } way;
static const char *const way_names[] = {"greedy", "drawn", "by diffusion"};

/* What a denoise step shows; block and step say which. */
typedef struct denoise {
  uint32_t block, step, n, n_accepted;
  bool stopped;
  int32_t argmax[CANVAS_MAX], in[CANVAS_MAX], drawn[CANVAS_MAX], out[CANVAS_MAX];
  float entropy[CANVAS_MAX];
  uint8_t accepted[CANVAS_MAX];
} denoise;

typedef struct answer {
  char finish[16];
  int32_t tokens[TOKENS_MAX];
  uint32_t n_tokens, n_shown, n_steps; /* shown: a slow reader may miss steps */
  denoise *step;                       /* [n_shown] */
} answer;

typedef struct question {
  weft_chat_turn turns[TURNS_MAX];
  uint32_t n_turns, max_tokens;
} question;

typedef struct subject {
  const question *question;
  uint32_t n_questions;
} subject;

typedef struct tally {
  uint32_t n_answers, n_tokens, n_steps, n_ties;
  float worst;
} tally;

_Noreturn static void die(const char *what, const char *text) {
  (void)printf("FAILED: %s: %s\n", what, text);
  exit(1);
}

static void *take(size_t n, size_t size) {
  void *memory = calloc(n, size);
  if (memory == NULL) die("memory", "test");
  return memory;
}

/* ---- asking -------------------------------------------------------------------------------------------- */

static weft_generation *submit(weft_runtime *rt, const question *q, way w) {
  weft_generate_params p;
  weft_generation *g = NULL;
  char error[512] = "";
  weft_generate_defaults(&p);
  p.prompt.turns = q->turns;
  p.prompt.n_turns = q->n_turns;
  p.mode = w == DIFFUSION ? WEFT_MODE_DIFFUSION : WEFT_MODE_AUTOREGRESSIVE;
  p.max_tokens = q->max_tokens;
  p.sampling.temperature = w == DRAWN ? 1.0f : 0.0f;
  p.has_seed = true;
  p.sampling.seed = 7 + q->max_tokens;
  p.canvas_deltas = p.trace = w == DIFFUSION;
  if (weft_submit(rt, &p, &g, error, sizeof error) != 0) die("submit", error);
  return g;
}

static void keep_step(answer *a, const weft_delta *d) {
  if (d->n_tokens > CANVAS_MAX || a->n_shown == STEPS_MAX) die("room", "a canvas or an answer is too long");
  if (a->step == NULL) a->step = take(STEPS_MAX, sizeof *a->step);
  denoise *s = &a->step[a->n_shown++];
  size_t n = d->n_tokens;
  *s =
      (denoise){.block = d->block, .step = d->step, .n = d->n_tokens, .n_accepted = d->accepted, .stopped = d->stopped};
  memcpy(s->argmax, d->tokens, n * 4);
  memcpy(s->in, d->canvas_in, n * 4);
  memcpy(s->drawn, d->drawn, n * 4);
  memcpy(s->out, d->canvas_out, n * 4);
  memcpy(s->entropy, d->entropy, n * 4);
  memcpy(s->accepted, d->accepted_mask, n);
}

/* True at the end. */
static bool listen(weft_generation *g, uint32_t timeout_ms, answer *a) {
  weft_delta d;
  while (weft_next(g, timeout_ms, &d) == 0) {
    if (d.kind == WEFT_DELTA_CANVAS) keep_step(a, &d);
    if (d.kind == WEFT_DELTA_TEXT) {
      if (a->n_tokens + d.n_tokens > TOKENS_MAX) die("room", "an answer is too long");
      if (d.n_tokens > 0) memcpy(a->tokens + a->n_tokens, d.tokens, d.n_tokens * sizeof *d.tokens);
      a->n_tokens += d.n_tokens;
    }
    if (d.kind != WEFT_DELTA_END) continue;
    if (d.error != NULL) die("error", d.error);
    (void)snprintf(a->finish, sizeof a->finish, "%s", d.finish);
    a->n_steps = d.usage.denoise_steps;
    return true;
  }
  return false;
}

/* All questions in all ways, many at once; answer [question * WAYS + way]. NULL: this machine lacks the backend. */
static answer *ask_all(const char *path, const char *backend, const subject *s) {
  weft_runtime *rt;
  weft_generation *g[FLIGHTS_MAX] = {NULL};
  char error[512] = "";
  weft_open_options options = {.models = &path,
                               .n_models = 1,
                               .backend = backend,
                               .precision = strcmp(backend, "cuda") == 0 ? "exact" : NULL,
                               .kv_bytes = 256 << 20,
                               .context = 1280,
                               .running = IN_FLIGHT,
                               .queue = 2 * IN_FLIGHT,
                               .rows = 1024,
                               .quiet = true};
  int status = weft_open(&options, &rt, error, sizeof error);
  if (status != 0 && strcmp(backend, "cuda") == 0) return NULL;
  if (status != 0) die(backend, error);
  uint32_t n = s->n_questions * WAYS, first = 0, next = 0;
  answer *answers = take(n, sizeof *answers);
  if (n > FLIGHTS_MAX) die("room", "too many questions");
  while (first < n) {
    for (; next < n && next - first < IN_FLIGHT; next++) g[next] = submit(rt, &s->question[next / WAYS], next % WAYS);
    for (uint32_t i = first; i < next; i++) {
      if (g[i] == NULL || !listen(g[i], i == first ? 5 : 0, &answers[i])) continue;
      weft_generation_free(g[i]);
      g[i] = NULL;
    }
    while (first < next && g[first] == NULL) first += 1;
  }
  weft_close(rt);
  return answers;
}

static void free_answers(answer *answers, const subject *s) {
  for (uint32_t i = 0; i < s->n_questions * WAYS; i++) free(answers[i].step);
  free(answers);
}

/* ---- comparing ----------------------------------------------------------------------------------------- */

/* Positions with another argmax; UINT32_MAX: one of them is no tie. */
static uint32_t count_ties(const denoise *a, const denoise *b) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < a->n; i++) {
    if (a->argmax[i] == b->argmax[i]) continue;
    if (a->entropy[i] < logf(2.0f) - nats) return UINT32_MAX;
    n += 1;
  }
  return n;
}

static bool same_step(const denoise *a, const denoise *b, tally *t, char *why, size_t n_why) {
  size_t n = a->n * sizeof(int32_t);
  float worst = 0.0f;
  const char *what = NULL;
  uint32_t n_ties = count_ties(a, b);
  for (uint32_t i = 0; i < a->n; i++) worst = fmaxf(worst, fabsf(a->entropy[i] - b->entropy[i]));
  if (a->n != b->n || memcmp(a->in, b->in, n) != 0)
    what = "canvas before it";
  else if (n_ties == UINT32_MAX)
    what = "argmax";
  else if (memcmp(a->drawn, b->drawn, n) != 0)
    what = "tokens drawn";
  else if (memcmp(a->accepted, b->accepted, a->n) != 0)
    what = "positions accepted";
  else if (a->stopped != b->stopped)
    what = "end";
  else if (memcmp(a->out, b->out, n) != 0)
    what = "canvas after it";
  else if (!(worst <= nats))
    what = "entropy";
  t->worst = fmaxf(t->worst, worst);
  if (what == NULL) t->n_ties += n_ties;
  if (what == NULL) return true;
  (void)snprintf(why, n_why, "canvas %u, step %u: another %s; entropies differ by %.2e nats", a->block, a->step, what,
                 (double)worst);
  return false;
}

/* Steps that one of the two readers missed are left out. */
static bool same_answer(const answer *a, const answer *b, tally *t, char *why, size_t n_why) {
  for (uint32_t i = 0, j = 0; i < a->n_shown && j < b->n_shown;) {
    const denoise *x = &a->step[i], *y = &b->step[j];
    if (x->block != y->block || x->step != y->step) {
      bool x_first = x->block < y->block || (x->block == y->block && x->step < y->step);
      i += x_first, j += !x_first;
      continue;
    }
    if (!same_step(x, y, t, why, n_why)) return false;
    i += 1, j += 1;
    t->n_steps += 1;
  }
  (void)snprintf(why, n_why, "%u tokens, %u steps, %s against %u, %u, %s, or other tokens", a->n_tokens, a->n_steps,
                 a->finish, b->n_tokens, b->n_steps, b->finish);
  t->n_tokens += a->n_tokens;
  return a->n_tokens == b->n_tokens && memcmp(a->tokens, b->tokens, a->n_tokens * sizeof *a->tokens) == 0 &&
         strcmp(a->finish, b->finish) == 0 && a->n_steps == b->n_steps;
}

static bool same_answers(const answer *a, const answer *b, const subject *s, tally *t, char *why, size_t n_why) {
  for (uint32_t i = 0; i < s->n_questions * WAYS; i++) {
    char text[200];
    t->n_answers += 1;
    if (same_answer(&a[i], &b[i], t, text, sizeof text)) continue;
    (void)snprintf(why, n_why, "question %u, %s: %s", i / WAYS, way_names[i % WAYS], text);
    return false;
  }
  return true;
}

/* ---- files --------------------------------------------------------------------------------------------- */

/* One weight of the last norm, half as large again. */
static void spoil(weft_bytes file) {
  weft_gguf *gguf;
  weft_error error = {{0}};
  if (weft_gguf_open_memory(file.data, file.n, "spoiled", &gguf, &error) != WEFT_OK) die("spoiled", error.text);
  for (uint32_t i = 0; i < gguf->n_tensors; i++) {
    if (strcmp(gguf->tensors[i].name, "output_norm.weight") != 0) continue;
    size_t at = (size_t)((const char *)gguf->tensors[i].data - file.data);
    float value;
    memcpy(&value, file.data + at, sizeof value);
    value *= 1.5f;
    memcpy((char *)(uintptr_t)file.data + at, &value, sizeof value);
  }
  weft_gguf_close(gguf);
}

/* path with its matrices in F32, as a file of its own. */
static void write_f32(const char *path, bool spoiled, char *out, size_t n_out) {
  weft_gguf *from;
  weft_error error = {{0}};
  gguf_writer w = {0};
  if (weft_gguf_open(path, &from, &error) != WEFT_OK) die(path, error.text);
  requantise(from, WEFT_TYPE_F32, &w);
  weft_gguf_close(from);
  (void)snprintf(out, n_out, "/tmp/weft-f32-XXXXXX.gguf");
  int file = mkstemps(out, 5);
  weft_bytes bytes = gguf_writer_finish(&w);
  if (spoiled) spoil(bytes);
  if (file < 0 || write(file, bytes.data, bytes.n) != (ssize_t)bytes.n || close(file) != 0) die(out, "cannot write");
  gguf_writer_close(&w);
}

/* The first n questions of each family; n 0: all. The document keeps the texts. */
static uint32_t read_questions(const char *path, uint32_t n, question *out, uint32_t n_max, json_t **document) {
  FILE *file = fopen(path, "r");
  char line[1 << 14], family[32] = "";
  uint32_t n_out = 0, n_family = 0;
  if (file == NULL) die(path, "cannot open");
  *document = json_array();
  while (fgets(line, sizeof line, file) != NULL && n_out < n_max) {
    json_t *item = json_loads(line, 0, NULL), *messages = json_object_get(item, "messages");
    const char *name = json_string_value(json_object_get(item, "family"));
    if (name == NULL || json_array_size(messages) > TURNS_MAX) die(path, "a line that is no question");
    if (strcmp(family, name) != 0) n_family = 0;
    (void)snprintf(family, sizeof family, "%s", name);
    (void)json_array_append_new(*document, item);
    if (n != 0 && n_family++ >= n) continue;
    question *q = &out[n_out++];
    *q = (question){.n_turns = (uint32_t)json_array_size(messages),
                    .max_tokens = (uint32_t)json_integer_value(json_object_get(item, "max_tokens"))};
    for (uint32_t i = 0; i < q->n_turns; i++) {
      json_t *m = json_array_get(messages, i);
      q->turns[i] = (weft_chat_turn){.role = json_string_value(json_object_get(m, "role")),
                                     .content = json_string_value(json_object_get(m, "content"))};
    }
  }
  (void)fclose(file);
  return n_out;
}

/* ---- subjects ------------------------------------------------------------------------------------------ */

static bool hold_against(const char *path, const char *other_path, const char *other, const subject *s, tally *t,
                         char *why, size_t n_why) {
  answer *got = ask_all(other_path, other, s), *wanted;
  if (got == NULL) {
    (void)printf("%s: not on this machine\n", other);
    return true;
  }
  wanted = ask_all(path, "cpu", s);
  bool same = same_answers(wanted, got, s, t, why, n_why);
  free_answers(wanted, s);
  free_answers(got, s);
  return same;
}

static void run(const char *path, const char *other, const subject *s) {
  char why[320];
  tally t = {0};
  if (!hold_against(path, path, other, s, &t, why, sizeof why)) {
    (void)printf("FAILED: cpu and %s: %s\n", other, why);
    exit(1);
  }
  if (t.n_answers == 0) return;
  (void)printf(
      "cpu and %-5s %4u answers, %5u tokens and %5u denoise steps equal; entropies within %.1e nats, %u argmax tied\n",
      other, t.n_answers, t.n_tokens, t.n_steps, (double)t.worst, t.n_ties);
}

static void run_demo(uint32_t per_family) {
  static question all[FLIGHTS_MAX / WAYS], few[16];
  json_t *document, *few_document;
  char path[64], spoiled[64], why[320];
  tally t = {0};
  const uint32_t per_ref = test_amount(2, 2, 1); /* of the families every second one */
  uint32_t n = read_questions(WEFT_SOURCE_DIR "/model/demo/eval.jsonl", per_family, all, FLIGHTS_MAX / WAYS, &document);
  subject s = {all, n};
  write_f32(WEFT_SOURCE_DIR "/model/demo/weft-demo.gguf", false, path, sizeof path);
  write_f32(WEFT_SOURCE_DIR "/model/demo/weft-demo.gguf", true, spoiled, sizeof spoiled);
  run(path, "cuda", &s);
  s.n_questions = read_questions(WEFT_SOURCE_DIR "/model/demo/eval.jsonl", 1, few, 16, &few_document);
  for (uint32_t i = 1; per_ref > 1 && i * per_ref < s.n_questions; i++) few[i] = few[i * per_ref];
  s.n_questions = (s.n_questions + per_ref - 1) / per_ref;
  s.question = few;
  run(path, "ref", &s);
  if (hold_against(path, spoiled, "cpu", &s, &t, why, sizeof why)) die("a spoiled weight", "nobody saw it");
  (void)printf("one weight spoiled: %s\n", why);
  (void)unlink(path);
  (void)unlink(spoiled);
  json_decref(document);
  json_decref(few_document);
}

int main(int argc, char **argv) {
  weft_log_set_level(WEFT_LOG_ERROR);
  run_demo(argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 0);
  return 0;
}
