/* SPDX-License-Identifier: MIT */
#include "bench/prove/answers.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "bench/prove/ask.h"
#include "bench/prove/child.h"
#include "bench/prove/files.h"

enum { PARALLEL_MAX = 64 };

/* ---- requests ------------------------------------------------------------------------------------------------- */

/* The members that every request of the suite has. */
static json_t *begin_body(const json_t *suite, const json_t *prompt) {
  json_t *body = json_object();
  json_t *messages = json_object_get(prompt, "messages"), *text = json_object_get(prompt, "text");
  json_t *tokens = json_object_get(prompt, "tokens"), *sampling = json_object_get(suite, "sampling");
  bool canvas = strcmp(prove_text(suite, "mode", ""), "diffusion") == 0;
  if (messages != NULL) (void)json_object_set(body, "messages", messages); /* a lack of memory shows at the end */
  if (messages == NULL) (void)json_object_set(body, "prompt", text != NULL ? text : tokens);
  (void)json_object_set(body, "mode", json_object_get(suite, "mode"));
  (void)json_object_set(body, "max_tokens", json_object_get(suite, "max_tokens"));
  (void)json_object_set(body, "temperature", json_object_get(suite, "temperature"));
  (void)json_object_update(body, sampling);
  if (prove_flag(suite, "ignore_eos")) (void)json_object_set_new(body, "ignore_eos", json_true());
  if (canvas) (void)json_object_set_new(body, "stream_canvas", json_true());
  (void)json_object_set_new(body, "stream", json_true());
  (void)json_object_set_new(body, "stream_options", json_pack("{s:b}", "include_usage", 1));
  (void)json_object_set_new(body, "return_token_ids", json_true());
  return body;
}

static json_t *make_request(const json_t *suite, const json_t *prompt, json_t *seed, json_t *format) {
  json_t *body = begin_body(suite, prompt);
  (void)json_object_set(body, "seed", seed);
  if (format != NULL && !json_is_null(format)) (void)json_object_set(body, "response_format", format);
  char *text = json_dumps(body, JSON_COMPACT);
  const char *path = json_object_get(prompt, "messages") != NULL ? "/v1/chat/completions" : "/v1/completions";
  json_t *request = text == NULL ? NULL
                                 : json_pack("{s:s, s:O, s:s, s:s}", "prompt", prove_text(prompt, "name", ""), "seed",
                                             seed, "path", path, "body", text);
  free(text);
  json_decref(body);
  return request;
}

json_t *prove_requests_make(const json_t *suite, const json_t *prompts) {
  const json_t *list = json_object_get(prompts, "prompts"), *seeds = json_object_get(suite, "seeds");
  const json_t *formats = json_object_get(suite, "formats");
  size_t n_formats = formats == NULL ? 1 : json_array_size(formats), n_repeats = prove_number(suite, "repeats", 1);
  size_t n = json_array_size(list) * json_array_size(seeds) * n_formats * n_repeats;
  json_t *requests = json_array();
  bool good = requests != NULL;
  for (size_t i = 0; good && i < n; i++) {
    size_t repeat = i % n_repeats, format = i / n_repeats % n_formats;
    size_t seed = i / n_repeats / n_formats % json_array_size(seeds);
    size_t prompt = i / n_repeats / n_formats / json_array_size(seeds);
    json_t *request =
        make_request(suite, json_array_get(list, prompt), json_array_get(seeds, seed), json_array_get(formats, format));
    good = json_object_set_new(request, "repeat", json_integer((json_int_t)repeat)) == 0 &&
           json_object_set_new(request, "format", json_integer((json_int_t)format)) == 0 &&
           json_array_append_new(requests, request) == 0;
  }
  if (good) return requests;
  json_decref(requests);
  return NULL;
}

/* ---- one answer ----------------------------------------------------------------------------------------------- */

typedef struct answer_stream {
  json_t *answer, *tokens, *canvases;
  uint64_t start_us, first_us, last_us;
  size_t n_first; /* tokens that came with the first ones */
  char error[256];
} answer_stream;

static void take_choice(answer_stream *s, json_t *choice, uint64_t at_us) {
  json_t *ids = json_object_get(choice, "token_ids"), *prompt = json_object_get(choice, "prompt_token_ids");
  json_t *finish = json_object_get(choice, "finish_reason");
  if (json_array_size(ids) > 0) {
    (void)json_array_extend(s->tokens, ids); /* a lack of memory makes answers differ, which is told */
    if (s->first_us == 0) s->first_us = at_us, s->n_first = json_array_size(ids);
    s->last_us = at_us;
  }
  if (prompt != NULL) (void)json_object_set(s->answer, "prompt_tokens", prompt);
  if (json_is_string(finish)) (void)json_object_set(s->answer, "finish", finish);
}

/* A canvas as a client sees it after a denoise step. */
static void take_canvas(answer_stream *s, json_t *event, uint64_t at_us) {
  static const char *const names[] = {"block", "step", "text", "token_ids", "accepted", "mean_entropy"};
  json_t *canvas = json_object();
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    (void)json_object_set(canvas, names[i], json_object_get(event, names[i])); /* as for the canvas itself: */
  (void)json_array_append_new(s->canvases, canvas); /* a missing one makes answers differ, which is told */
  if (s->first_us == 0) s->first_us = at_us;
  s->last_us = at_us;
}

static void take_line(void *self, const char *line, size_t n, uint64_t at_us) {
  answer_stream *s = self;
  if (n < 6 || memcmp(line, "data: ", 6) != 0) return;
  json_t *event = json_loadb(line + 6, n - 6, 0, NULL);
  json_t *usage = json_object_get(event, "usage"), *prompt = json_object_get(event, "prompt_token_ids");
  json_t *error = json_object_get(event, "error");
  if (json_object_get(event, "block") != NULL) take_canvas(s, event, at_us);
  if (json_array_size(json_object_get(event, "choices")) > 0)
    take_choice(s, json_array_get(json_object_get(event, "choices"), 0), at_us);
  if (prompt != NULL) (void)json_object_set(s->answer, "prompt_tokens", prompt);
  if (json_is_object(usage)) {
    const json_t *details = json_object_get(usage, "completion_tokens_details");
    json_t *steps = json_object_get(details, "denoise_steps");
    if (steps != NULL) (void)json_object_set(s->answer, "denoise_steps", steps);
  }
  if (error != NULL) (void)snprintf(s->error, sizeof s->error, "%s", prove_text(error, "message", "an error"));
  json_decref(event);
}

static void finish_answer(answer_stream *s) {
  size_t n = json_array_size(s->tokens), n_canvases = json_array_size(s->canvases);
  double seconds = (double)(s->last_us - s->first_us) * 1e-6;
  size_t n_steady = n_canvases > 0 ? 0 : n - s->n_first;
  (void)json_object_set_new(s->answer, "first_ms", json_real((double)(s->first_us - s->start_us) * 1e-3));
  (void)json_object_set_new(s->answer, "tokens_per_second",
                            n_steady > 0 && seconds > 0.0 ? json_real((double)n_steady / seconds) : json_null());
  (void)json_object_set_new(
      s->answer, "steps_per_second",
      n_canvases > 1 && seconds > 0.0 ? json_real((double)(n_canvases - 1) / seconds) : json_null());
}

/* What a server says when it does not answer. */
static prove_verdict take_refusal(int status, const weft_text *body, const char *what, prove_outcome *outcome) {
  json_t *reply = body->n == 0 ? NULL : json_loads(body->bytes, 0, NULL), *error = json_object_get(reply, "error");
  const char *code = prove_text(error, "code", ""), *message = prove_text(error, "message", "no words");
  prove_verdict verdict =
      strcmp(code, "context_length_exceeded") == 0
          ? prove_end(outcome, PROVE_TOO_LONG, "%s is longer than the context: %s", what, message)
          : prove_end(outcome, PROVE_REFUSED, "%s is refused by the server (%d): %s", what, status, message);
  json_decref(reply);
  return verdict;
}

static prove_verdict tell_late(const char *what, prove_outcome *outcome) {
  if (prove_told_to_stop()) return prove_end(outcome, PROVE_STOPPED, "stopped at %s", what);
  return prove_end(outcome, PROVE_BUDGET_OVER, "the budget's time was over at %s", what);
}

static prove_verdict ask_one(uint16_t port, const json_t *request, uint64_t until_us, json_t *answer,
                             prove_outcome *outcome) {
  char what[128];
  weft_text body = {0};
  answer_stream stream = {.answer = answer,
                          .tokens = json_object_get(answer, "tokens"),
                          .canvases = json_object_get(answer, "canvases"),
                          .start_us = weft_clock_us()};
  const prove_ask ask = {.port = port,
                         .path = prove_text(request, "path", "/"),
                         .body = prove_text(request, "body", "{}"),
                         .until_us = until_us,
                         .take = take_line,
                         .self = &stream};
  (void)snprintf(what, sizeof what, "prompt '%s'", prove_text(request, "prompt", ""));
  int status = prove_ask_run(&ask, &body);
  if (status == PROVE_ASK_LATE) {
    (void)tell_late(what, outcome);
  } else if (status == PROVE_ASK_BROKEN || stream.error[0] != 0) {
    (void)prove_end(outcome, PROVE_DIED, "%s broke off%s%s", what, stream.error[0] != 0 ? ": " : "", stream.error);
  } else if (status != 200) {
    (void)take_refusal(status, &body, what, outcome);
  } else if (prove_text(answer, "finish", "")[0] == 0) {
    (void)prove_end(outcome, PROVE_DIED, "%s has no end", what);
  } else {
    finish_answer(&stream);
  }
  weft_text_free(&body);
  return outcome->verdict;
}

/* ---- many ------------------------------------------------------------------------------------------------------ */

typedef struct ask_job {
  uint16_t port;
  const json_t *requests;
  json_t **answer; /* [n] */
  const prove_limits *limits;
  size_t n;
  pthread_mutex_t lock; /* over what follows */
  size_t next;
  uint64_t n_tokens;
  prove_outcome outcome;
} ask_job;

/* The next request; n: there is none, or there is no point any more. */
static size_t take_request(ask_job *job) {
  size_t mine = job->n;
  (void)pthread_mutex_lock(&job->lock); /* cannot fail: of the default kind */
  if (job->outcome.verdict == PROVE_PROVEN && job->next < job->n) mine = job->next++;
  if (mine < job->n && job->n_tokens >= job->limits->tokens) {
    (void)prove_end(&job->outcome, PROVE_BUDGET_OVER, "the budget's tokens were used up after %zu of %zu answers", mine,
                    job->n);
    mine = job->n;
  }
  (void)pthread_mutex_unlock(&job->lock);
  return mine;
}

static void *run_asker(void *self) {
  ask_job *job = self;
  for (size_t i = take_request(job); i < job->n; i = take_request(job)) {
    prove_outcome outcome = {.verdict = PROVE_PROVEN};
    (void)ask_one(job->port, json_array_get(job->requests, i), job->limits->until_us, job->answer[i], &outcome);
    (void)pthread_mutex_lock(&job->lock);
    job->n_tokens += json_array_size(json_object_get(job->answer[i], "tokens"));
    if (outcome.verdict != PROVE_PROVEN) (void)prove_end(&job->outcome, outcome.verdict, "%s", outcome.line);
    (void)pthread_mutex_unlock(&job->lock);
  }
  return NULL;
}

static json_t *begin_answer(const json_t *request) {
  return json_pack("{s:O, s:O, s:O, s:O, s:[], s:[], s:[], s:s, s:i}", "prompt", json_object_get(request, "prompt"),
                   "seed", json_object_get(request, "seed"), "format", json_object_get(request, "format"), "repeat",
                   json_object_get(request, "repeat"), "prompt_tokens", "tokens", "canvases", "finish", "",
                   "denoise_steps", 0);
}

static void run_askers(ask_job *job) {
  pthread_t thread[PARALLEL_MAX];
  uint32_t n = 0, wanted = job->limits->parallel < PARALLEL_MAX ? job->limits->parallel : PARALLEL_MAX;
  weft_error error = {{0}};
  for (; n < wanted && weft_threads_start(&thread[n], run_asker, job, &error) == WEFT_OK; n++) {
  }
  for (uint32_t i = 0; i < n; i++) (void)pthread_join(thread[i], NULL); /* started above */
  if (n == 0) (void)prove_end(&job->outcome, PROVE_NO_START, "%s", error.text);
}

prove_verdict prove_answers_ask(uint16_t port, const json_t *requests, const prove_limits *limits, json_t **answers,
                                prove_outcome *outcome) {
  ask_job job = {.port = port, .requests = requests, .limits = limits, .n = json_array_size(requests)};
  job.answer = weft_alloc(job.n, sizeof(json_t *));
  *answers = json_array();
  bool good = job.answer != NULL && *answers != NULL;
  for (size_t i = 0; good && i < job.n; i++) {
    job.answer[i] = begin_answer(json_array_get(requests, i));
    good = json_array_append_new(*answers, job.answer[i]) == 0;
  }
  if (!good) (void)prove_end(&job.outcome, PROVE_NO_START, "no memory for the answers");
  if (good && pthread_mutex_init(&job.lock, NULL) != 0) {
    (void)prove_end(&job.outcome, PROVE_NO_START, "the system refuses a lock");
  } else if (good) {
    run_askers(&job);
    (void)pthread_mutex_destroy(&job.lock); /* nobody holds it */
  }
  weft_free(job.answer);
  if (job.outcome.verdict == PROVE_PROVEN) return PROVE_PROVEN;
  json_decref(*answers);
  *answers = NULL;
  return prove_end(outcome, job.outcome.verdict, "%s", job.outcome.line);
}

json_t *prove_ask_json(uint16_t port, const char *path, const char *body, uint64_t until_us, const char *what,
                       prove_outcome *outcome) {
  weft_text text = {0};
  const prove_ask ask = {.port = port, .path = path, .body = body, .until_us = until_us};
  int status = prove_ask_run(&ask, &text);
  json_t *reply = status == 200 && text.n > 0 ? json_loads(text.bytes, 0, NULL) : NULL;
  if (status == PROVE_ASK_LATE) {
    (void)tell_late(what, outcome);
  } else if (status != PROVE_ASK_BROKEN && status != 200) {
    (void)take_refusal(status, &text, what, outcome);
  } else if (reply == NULL) {
    (void)prove_end(outcome, PROVE_DIED, "%s broke off", what);
  }
  weft_text_free(&text);
  return reply;
}
