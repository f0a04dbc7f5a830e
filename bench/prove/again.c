/* SPDX-License-Identifier: MIT */
#include "bench/prove/again.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "bench/prove/files.h"

/* Who asks while the server is passed on. */
typedef struct asking {
  pthread_t thread;
  uint16_t port;
  const json_t *requests;
  prove_limits limits;
  _Atomic bool ready;
  _Atomic uint32_t n_rounds;
  json_t *answers; /* of the last round */
  prove_outcome outcome;
} asking;

static void *ask_on(void *self) {
  asking *a = self;
  bool last = false;
  while (!last && a->outcome.verdict == PROVE_PROVEN) {
    last = a->ready; /* one whole round after it was ready */
    json_decref(a->answers);
    a->answers = NULL;
    (void)prove_answers_ask(a->port, a->requests, &a->limits, &a->answers, &a->outcome);
    a->n_rounds += 1;
  }
  return NULL;
}

static prove_verdict take_over(prove_server *server, const json_t *requests, const prove_limits *limits,
                               uint64_t seconds, json_t **meanwhile, prove_outcome *outcome) {
  asking a = {.port = server->port, .requests = requests, .limits = *limits, .outcome = {.verdict = PROVE_PROVEN}};
  uint16_t port = server->port;
  weft_error error = {{0}};
  if (weft_threads_start(&a.thread, ask_on, &a, &error) != WEFT_OK)
    return prove_end(outcome, PROVE_NO_START, "%s", error.text);
  while (a.n_rounds == 0 && weft_clock_us() < limits->until_us && !prove_told_to_stop()) (void)usleep(1000);
  (void)prove_server_again(server, seconds, true, outcome);
  a.ready = true;
  (void)pthread_join(a.thread, NULL);
  *meanwhile = a.answers;
  if (outcome->verdict == PROVE_PROVEN && a.outcome.verdict != PROVE_PROVEN)
    return prove_end(outcome, a.outcome.verdict, "profile '%s', while it was passed on: %.600s", server->name,
                     a.outcome.line);
  if (outcome->verdict == PROVE_PROVEN && server->port != port)
    return prove_end(outcome, PROVE_DIED, "profile '%s': the next server listens elsewhere", server->name);
  return outcome->verdict == PROVE_PROVEN ? prove_server_await_before(server, outcome) : outcome->verdict;
}

static prove_verdict start_again(prove_server *server, const json_t *requests, const prove_limits *limits,
                                 uint64_t seconds, prove_outcome *outcome) {
  json_t *answers = NULL;
  if (prove_answers_ask(server->port, requests, limits, &answers, outcome) == PROVE_PROVEN)
    (void)prove_server_again(server, seconds, false, outcome);
  json_decref(answers);
  return outcome->verdict;
}

prove_verdict prove_again(prove_server *server, const json_t *requests, const prove_limits *limits, uint64_t seconds,
                          json_t **meanwhile, prove_outcome *outcome) {
  const char *how = prove_text(server->profile, "again", NULL);
  *meanwhile = NULL;
  if (how == NULL || server->n_boots > 1) return PROVE_PROVEN;
  if (strcmp(how, "restart") == 0) return start_again(server, requests, limits, seconds, outcome);
  return take_over(server, requests, limits, seconds, meanwhile, outcome);
}
