/* SPDX-License-Identifier: MIT */
/* Requests whose format takes long to compile: a drain and a client that leaves end the compiling, and a worker that
 * short requests need is given back. The clock of the workers is the test's: compiling asks it, so the test knows
 * where compiling is, and nothing depends on how fast the machine is. */
#include <pthread.h>
#include <stdatomic.h>

#include "api/http/workers.h"
#include "tests/support/http_conversation.h"

#define COMPLETIONS "/v1/completions"

static talk server;

/* ---- the clock ---- */

/* What the workers' clock does at a call, counted from 1 since `count` was reset. */
static struct {
  _Atomic uint32_t count, at; /* at that call, on a worker, act is called; 0: never */
  void (*act)(void);
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  uint32_t n_held, n_held_max; /* callers that wait for the gate: those that call for the third time */
  bool open;
} hook = {.mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static uint64_t count_calls(void) {
  uint32_t n = atomic_fetch_add(&hook.count, 1) + 1;
  if (n == atomic_load(&hook.at)) hook.act();
  return 0;
}

static void act_at(uint32_t at, void (*act)(void)) {
  hook.act = act;
  atomic_store(&hook.count, 0);
  atomic_store(&hook.at, at);
}

/* A job calls when it begins, whenever it asks whether it goes on, and when it has ended: each call is a slice later,
 * and the first jobs to call for the third time are held there. */
static uint64_t slices(void) {
  static _Thread_local uint64_t us, n_calls;
  n_calls += 1;
  (void)pthread_mutex_lock(&hook.mutex);
  if (n_calls % 3 == 0 && hook.n_held < hook.n_held_max) {
    hook.n_held += 1;
    (void)pthread_cond_broadcast(&hook.changed);
    while (!hook.open) (void)pthread_cond_wait(&hook.changed, &hook.mutex);
  }
  (void)pthread_mutex_unlock(&hook.mutex);
  return us += WEFT_WORKER_SLICE_US;
}

/* ---- requests ---- */

/* Long words that differ at their ends: many steps of comparing for little time, also with a sanitizer. */
static void put_list(weft_text *t, uint32_t order) {
  static char word[9000];
  memset(word, 'a', sizeof word);
  for (uint32_t k = 0; k < 12; k++) {
    weft_text_puts(t, k > 0 ? ",\"" : "\"");
    weft_text_append(t, word, sizeof word);
    weft_text_printf(t, "%u\"", order == 0 ? 100 + k : 111 - k);
  }
}

/* It uses up all steps that there are. */
static char *costly_request(void) {
  weft_text t = {0};
  weft_text_puts(&t, "{\"prompt\":\"a\",\"max_tokens\":8,\"mode\":\"autoregressive\",\"guided_json\":{\"allOf\":[{}");
  for (uint32_t i = 0; i < 600; i++) weft_text_puts(&t, ",{\"$ref\":\"#/x-a\"},{\"$ref\":\"#/x-b\"}");
  weft_text_puts(&t, "],\"x-a\":{\"enum\":[");
  put_list(&t, 0);
  weft_text_puts(&t, "]},\"x-b\":{\"enum\":[");
  put_list(&t, 1);
  weft_text_puts(&t, "]}}}");
  assert_int_equal(weft_text_status(&t), WEFT_OK);
  return t.bytes;
}

/* One that is fine, and takes long enough to be asked whether it goes on. */
static char *long_request(void) {
  weft_text t = {0};
  weft_text_puts(&t,
                 "{\"prompt\":\"a\",\"max_tokens\":60,\"mode\":\"autoregressive\",\"seed\":1,\"guided_json\":"
                 "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"null\"}");
  for (uint32_t i = 0; i < 400; i++) weft_text_printf(&t, ",\"p%u\":{\"enum\":[\"a%u\",\"b\"]}", i, i);
  weft_text_puts(&t, "},\"required\":[\"a\"]}}");
  assert_int_equal(weft_text_status(&t), WEFT_OK);
  return t.bytes;
}

static void serve(const char *keys, uint64_t (*worker_us)(void)) {
  static const char *const models[] = {DEMO_AR_MODEL};
  (void)talk_serve(&server, keys,
                   (weft_open_options){.models = models, .n_models = 1, .kv_bytes = 16 << 20, .context = 1024},
                   (weft_server_options){.worker_us = worker_us});
}

/* ---- tests ---- */

static void drain_server(void) {
  weft_server_drain(server.server);
}

/* The drain begins while a format compiles: compiling ends at once, and the answer is that of a drain. */
static void a_drain_ends_compiling(void **state) {
  (void)state;
  serve(NULL, count_calls);
  char *body = costly_request();
  act_at(3, drain_server); /* 1: the job begins; 2, 3: it asks */
  talk_check(talk_ask(server.port, "POST", COMPLETIONS, body), 503, "draining");
  assert_in_range(atomic_load(&hook.count), 3, 4); /* 4: the job has ended */
  while (!weft_server_idle(server.server)) (void)poll(NULL, 0, 1);
  talk_close(&server);
  free(body);
}

static atomic_int leaving = -1; /* the job may begin before the one who sent its request knows the connection */

/* The network thread has seen that the client is gone once it has answered others, who came later. */
static void hang_up(void) {
  while (atomic_load(&leaving) < 0) (void)poll(NULL, 0, 1);
  (void)close(atomic_load(&leaving));
  for (int i = 0; i < 3; i++) talk_check(talk_ask(server.port, "GET", "/livez", ""), 200, "");
}

static void a_client_that_leaves_ends_compiling(void **state) {
  (void)state;
  serve(NULL, count_calls);
  char *body = costly_request();
  act_at(2, hang_up);
  atomic_store(&leaving, talk_begin(server.port, COMPLETIONS, body));
  while (atomic_load(&hook.count) < 2 || !weft_server_idle(server.server)) (void)poll(NULL, 0, 1);
  assert_in_range(atomic_load(&hook.count), 2, 3);
  atomic_store(&hook.at, 0);
  assert_true(talk_metric(server.port, "weft_http_clients_left_total") == 1);
  talk_close(&server);
  free(body);
}

/* Three tenants hold three of the four workers with formats that take long. The fourth of them gives its worker back,
 * so that another tenant is served; and is served itself when a worker is free, as if it had never begun before. */
static void a_worker_is_given_back(void **state) {
  int fd[4];
  (void)state;
  char *costly = costly_request(), *fine = long_request();
  serve(NULL, NULL);
  talk_answer alone = talk_ask(server.port, "POST", COMPLETIONS, fine);
  assert_int_equal(alone.code, 200);
  talk_close(&server);
  hook.n_held_max = 3;
  serve("k0 t0\nk1 t1\nk2 t2\nk3 t3\nk4 t4\n", slices);
  for (int i = 0; i < 4; i++) {
    char head[64];
    (void)snprintf(head, sizeof head, "Authorization: Bearer k%d\r\n", i);
    fd[i] = talk_dial(server.port);
    const char *body = i < 3 ? costly : fine;
    talk_send(fd[i], "POST", COMPLETIONS, head, body, strlen(body));
    (void)pthread_mutex_lock(&hook.mutex);
    while (i < 3 && hook.n_held < (uint32_t)i + 1) (void)pthread_cond_wait(&hook.changed, &hook.mutex);
    (void)pthread_mutex_unlock(&hook.mutex);
  }
  talk_answer other = talk_ask_as(server.port, "POST", COMPLETIONS, "Authorization: Bearer k4\r\n",
                                  "{\"prompt\":\"a\",\"max_tokens\":1,\"mode\":\"autoregressive\"}");
  talk_check(other, 200, "usage");
  (void)pthread_mutex_lock(&hook.mutex);
  hook.open = true;
  (void)pthread_cond_broadcast(&hook.changed);
  (void)pthread_mutex_unlock(&hook.mutex);
  for (int i = 0; i < 3; i++) talk_check(talk_receive(fd[i]), 400, "steps");
  talk_answer again = talk_receive(fd[3]);
  assert_int_equal(again.code, 200);
  json_t *a = json_loadb(alone.body.bytes, alone.body.n, 0, NULL),
         *b = json_loadb(again.body.bytes, again.body.n, 0, NULL);
  assert_string_equal(text_at(a, "choices.0.text"), text_at(b, "choices.0.text"));
  json_decref(a);
  json_decref(b);
  talk_answer_free(&alone);
  talk_answer_free(&again);
  for (int i = 0; i < 4; i++) (void)close(fd[i]);
  talk_close(&server);
  free(costly);
  free(fine);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(a_drain_ends_compiling),
                                     cmocka_unit_test(a_client_that_leaves_ends_compiling),
                                     cmocka_unit_test(a_worker_is_given_back)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
