/* SPDX-License-Identifier: MIT */
/* The HTTP server without a runtime: handlers of the test's own that wait until they may go on. Workers serve tenants
 * in turn, nobody has more than half of the places, and what is quick is answered while all workers are held. */
#include <pthread.h>
#include <stdatomic.h>

#include "api/http/http.h"
#include "tests/support/http_conversation.h"

enum { PLACES = 16, BUSY = 14, HALF = 7 }; /* an eighth of the places is kept free */
enum { LARGE_BYTES = 4 << 20 };

static weft_http *http;
static uint16_t port;
static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static atomic_int n_begun, n_taken, n_left, n_refused, n_quick, n_pulled, n_held;
static atomic_uint_fast64_t n_gushed, now_us; /* now_us: the clock of deadlines */
static atomic_bool quick_sent;
static atomic_uint_fast64_t used_us; /* by the only worker: each of its jobs costs the same */
static char order[64];               /* which tenants were served, under the gate */

static bool begin(void *self, weft_exchange *x) {
  const char *tenant = weft_exchange_header(x, "X-Tenant");
  (void)self;
  weft_exchange_note(x)->tenant = tenant == NULL ? 0 : (uint32_t)(tenant[0] - 'a');
  atomic_fetch_add(&n_begun, 1);
  return tenant == NULL;
}

/* An answer for which there is always more to collect, until a request that came meanwhile was answered. */
static weft_pull collect(void *self, weft_exchange *x, int64_t *work, weft_text *out) {
  enum { ALONE_MAX = 1 << 20 }; /* turns that the other request waits for its own */
  weft_text body = {0};
  (void)self;
  (void)out;
  *work -= 1;
  bool beside = atomic_load(&n_quick) > 0;
  if (!atomic_load(&quick_sent)) atomic_store(&n_pulled, 1);
  if (!beside && atomic_fetch_add(&n_pulled, atomic_load(&quick_sent)) < ALONE_MAX) return WEFT_PULL_MORE;
  weft_text_puts(&body, beside ? "beside" : "alone");
  weft_exchange_answer(x, 200, "text/plain", &body);
  return WEFT_PULL_END;
}

static void nothing(void *self) {
  (void)self;
}

/* A stream that never ends and gives a kilobyte at each pull, whatever is left of the work. */
static weft_pull gush(void *self, weft_exchange *x, int64_t *work, weft_text *out) {
  char block[1024];
  (void)self;
  (void)x;
  (void)work; /* it counts for what it gives */
  memset(block, 'x', sizeof block);
  weft_text_append(out, block, sizeof block);
  atomic_fetch_add(&n_gushed, 1);
  return WEFT_PULL_MORE;
}

/* A stream that begins and then has nothing to give. */
static weft_pull hold(void *self, weft_exchange *x, int64_t *work, weft_text *out) {
  (void)self;
  (void)x;
  *work -= 1;
  if (atomic_fetch_add(&n_held, 1) == 0) weft_text_puts(out, "begun");
  return WEFT_PULL_WAIT;
}

static void say_wait(void *self, weft_text *out) {
  (void)self;
  weft_text_puts(out, "wait");
}

static void handle(void *self, weft_exchange *x) {
  static const weft_source source = {.pull = collect, .left = nothing, .close = nothing};
  static const weft_source endless = {.pull = gush, .left = nothing, .close = nothing};
  static const weft_source held = {.pull = hold, .wait = say_wait, .left = nothing, .close = nothing};
  weft_text body = {0};
  (void)self;
  if (weft_exchange_path(x)[1] == 'l') { /* later */
    weft_exchange_later(x, &source);
    return;
  }
  if (weft_exchange_path(x)[1] == 'g') { /* gush */
    weft_exchange_stream(x, "text/plain", &endless);
    return;
  }
  if (weft_exchange_path(x)[1] == 'h') { /* hold */
    weft_exchange_stream(x, "text/plain", &held);
    return;
  }
  if (weft_exchange_path(x)[1] == 'b') { /* a body of many parts */
    for (uint32_t i = 0; i < LARGE_BYTES / 8; i++) weft_text_printf(&body, "%08u", i);
    weft_exchange_answer(x, 200, "text/plain", &body);
    return;
  }
  if (weft_exchange_path(x)[1] == 'q') atomic_fetch_add(&n_quick, 1);
  if (weft_exchange_path(x)[1] == 'w') { /* a worker's */
    atomic_fetch_add(&n_taken, 1);
    (void)pthread_mutex_lock(&gate);
    char c = (char)('a' + weft_exchange_note(x)->tenant);
    (void)strncat(order, &c, 1);
    atomic_fetch_add(&used_us, 100);
    (void)pthread_mutex_unlock(&gate);
  }
  weft_text_puts(&body, "done");
  body.refused = weft_exchange_path(x)[1] == 'n'; /* no memory: a part of the text was lost */
  weft_exchange_answer(x, 200, "text/plain", &body);
}

static void done(void *self, weft_exchange *x, int code, bool left) {
  (void)self;
  (void)x;
  if (left) atomic_fetch_add(&n_left, 1);
  if (code == 429 || code == 503) atomic_fetch_add(&n_refused, 1);
}

static uint64_t deadline_clock(void) {
  return atomic_load(&now_us);
}

static uint64_t pretended_us(void) {
  return atomic_load(&used_us);
}

static int open_server(void **state) {
  weft_http_config config = {.host = "127.0.0.1",
                             .body_bytes_max = 1 << 20,
                             .bodies_bytes_max = 16 << 20,
                             .connections_max = PLACES,
                             .n_workers = 1,
                             .n_tenants = 3,
                             .idle_seconds = 3600,
                             .clock_us = deadline_clock,
                             .worker_us = pretended_us,
                             .begin = begin,
                             .handle = handle,
                             .done = done};
  weft_error error = {{0}};
  (void)state;
  if (weft_http_open(&config, &http, &error) != WEFT_OK) fail_msg("%s", error.text);
  port = (uint16_t)weft_http_port(http);
  order[0] = 0;
  atomic_store(&n_begun, 0);
  atomic_store(&n_taken, 0);
  atomic_store(&n_left, 0);
  atomic_store(&n_refused, 0);
  atomic_store(&n_quick, 0);
  atomic_store(&n_pulled, 0);
  atomic_store(&n_held, 0);
  atomic_store(&n_gushed, 0);
  atomic_store(&now_us, 1);
  atomic_store(&quick_sent, false);
  return 0;
}

static int close_server(void **state) {
  (void)state;
  weft_http_close(http);
  return 0;
}

/* Returns once its headers were seen. */
static int ask(char tenant) {
  char head[64];
  int before = atomic_load(&n_begun), fd = talk_dial(port);
  (void)snprintf(head, sizeof head, "X-Tenant: %c\r\n", tenant);
  talk_send(fd, "POST", "/work", head, "", 0);
  while (atomic_load(&n_begun) == before) (void)poll(NULL, 0, 1);
  return fd;
}

/* The worker has it, and waits at the gate. */
static int ask_and_await_worker(char tenant) {
  int fd = ask(tenant);
  while (atomic_load(&n_taken) == 0) (void)poll(NULL, 0, 1);
  return fd;
}

static int code_of(int fd) {
  talk_answer a = talk_receive(fd);
  int code = a.code;
  talk_answer_free(&a);
  (void)close(fd);
  return code;
}

/* Where memory runs out for an answer, a short one says so. */
static void an_answer_without_memory_says_so(void **state) {
  int fd = talk_dial(port);
  (void)state;
  talk_send(fd, "POST", "/none", "X-Tenant: a\r\n", "", 0);
  talk_answer a = talk_receive(fd);
  json_t *root = json_loads(a.body.bytes == NULL ? "" : a.body.bytes, 0, NULL);
  assert_int_equal(a.code, 503);
  assert_string_equal(text_at(root, "error.code"), "no_memory");
  assert_string_equal(text_at(root, "error.message"), "no memory for the answer: try again later");
  json_decref(root);
  talk_answer_free(&a);
  (void)close(fd);
}

static int code_of_quick(void) {
  int fd = talk_dial(port);
  talk_send(fd, "GET", "/quick", "", "", 0);
  return code_of(fd);
}

/* Five of a, then three of b, then two of c: whoever came late with little does not wait for all that came before. */
static void workers_serve_tenants_in_turn(void **state) {
  static const char tenants[] = "aaaaabbbcc";
  int fd[10];
  (void)state;
  (void)pthread_mutex_lock(&gate);
  fd[0] = ask_and_await_worker(tenants[0]);
  for (int i = 1; i < 10; i++) fd[i] = ask(tenants[i]);
  assert_int_equal(code_of_quick(), 200); /* while the only worker is held */
  (void)pthread_mutex_unlock(&gate);
  for (int i = 0; i < 10; i++) assert_int_equal(code_of(fd[i]), 200);
  assert_string_equal(order, "abcabcabaa"); /* the first a runs when the others come, and has had its turn */
}

static void nobody_has_more_than_half_of_the_places(void **state) {
  int fd[PLACES];
  (void)state;
  (void)pthread_mutex_lock(&gate);
  for (int i = 0; i < HALF; i++) fd[i] = ask('a');
  assert_int_equal(code_of(ask('a')), 429);
  for (int i = HALF; i < BUSY; i++) fd[i] = ask('b');
  assert_int_equal(code_of(ask('c')), 503);
  assert_int_equal(code_of_quick(), 200); /* the last places are for what is quick */
  (void)pthread_mutex_unlock(&gate);
  for (int i = 0; i < BUSY; i++) assert_int_equal(code_of(fd[i]), 200);
  assert_int_equal(code_of(ask('c')), 200);
}

/* Whoever leaves while a request waits for a worker gives its place back at once, and no worker has it afterwards. */
static void who_leaves_gives_the_place_back(void **state) {
  int fd[HALF];
  (void)state;
  (void)pthread_mutex_lock(&gate);
  fd[0] = ask_and_await_worker('a');
  for (int i = 1; i < HALF; i++) fd[i] = ask('a');
  for (int i = 1; i < HALF; i++) (void)close(fd[i]);
  while (atomic_load(&n_left) < HALF - 1) (void)poll(NULL, 0, 1);
  int again = ask('a');
  assert_int_equal(atomic_load(&n_refused), 0);
  (void)close(fd[0]);                     /* this one a worker has: its end comes when that is done */
  assert_int_equal(code_of_quick(), 200); /* what came before it is seen */
  (void)pthread_mutex_unlock(&gate);
  assert_int_equal(code_of(again), 200);
  while (atomic_load(&n_left) < HALF || weft_http_active(http) > 0) (void)poll(NULL, 0, 1);
  assert_string_equal(order, "aa");
}

/* What is collected of an answer that comes in one piece, a long prompt given back with its logprobs, takes turns. */
static void who_collects_much_delays_nobody(void **state) {
  int slow = talk_dial(port), quick = talk_dial(port);
  (void)state;
  talk_send(slow, "POST", "/later", "X-Tenant: a\r\n", "", 0);
  while (atomic_load(&n_pulled) == 0) (void)poll(NULL, 0, 1);
  talk_send(quick, "GET", "/quick", "", "", 0);
  atomic_store(&quick_sent, true);
  assert_int_equal(code_of(quick), 200);
  talk_answer a = talk_receive(slow);
  assert_string_equal(a.body.bytes, "beside");
  talk_answer_free(&a);
  (void)close(slow);
}

/* Reads what comes, for all of them, until the flag is set. */
typedef struct drain {
  int fd[HALF];
  atomic_bool enough;
} drain;

static void *read_all(void *self) {
  static char bytes[1 << 16];
  drain *d = self;
  while (!atomic_load(&d->enough)) {
    for (int i = 0; i < HALF; i++) (void)!recv(d->fd[i], bytes, sizeof bytes, MSG_DONTWAIT);
  }
  return NULL;
}

/* Streams that always have more and are read as fast as can be: what is made of them between two looks at the sockets
 * is bounded, so others are heard; and each of them gets on. */
static void endless_answers_leave_room_for_others(void **state) {
  drain d = {.enough = false};
  pthread_t reader;
  (void)state;
  for (int i = 0; i < HALF; i++) {
    d.fd[i] = talk_dial(port);
    talk_send(d.fd[i], "POST", "/gush", "X-Tenant: a\r\n", "", 0);
  }
  assert_int_equal(pthread_create(&reader, NULL, read_all, &d), 0);
  for (int i = 0; i < 50; i++) {
    uint64_t before = atomic_load(&n_gushed);
    assert_int_equal(code_of_quick(), 200);
    while (atomic_load(&n_gushed) < before + 64) (void)poll(NULL, 0, 1);
  }
  atomic_store(&d.enough, true);
  assert_int_equal(pthread_join(reader, NULL), 0);
  uint64_t most = weft_http_most_work(http);
  if (most == 0 || most > WEFT_HTTP_ROUND_WORK + 1024) fail_msg("%llu units in a round", (unsigned long long)most);
  for (int i = 0; i < HALF; i++) (void)close(d.fd[i]);
}

/* A finished answer of 4 MiB goes out part by part. */
static void a_large_body_comes_whole(void **state) {
  (void)state;
  int fd = talk_dial(port);
  talk_send(fd, "POST", "/body", "X-Tenant: b\r\n", "", 0);
  talk_answer a = talk_receive(fd);
  assert_int_equal(a.code, 200);
  assert_int_equal(a.body.n, LARGE_BYTES);
  for (uint32_t i = 0; i < LARGE_BYTES / 8; i++) {
    char number[16];
    (void)snprintf(number, sizeof number, "%08u", i);
    assert_memory_equal(a.body.bytes + 8 * (size_t)i, number, 8);
  }
  assert_true(weft_http_most_work(http) <= WEFT_HTTP_ROUND_WORK);
  talk_answer_free(&a);
  (void)close(fd);
}

/* Reads until these words have come, and n times. */
static void await_words(int fd, weft_text *got, const char *words, int n) {
  for (;;) {
    int found = 0;
    for (const char *at = got->bytes; at != NULL && (at = strstr(at, words)) != NULL; at++) found++;
    if (found >= n) return;
    (void)talk_read(fd, got, 50);
  }
}

/* By a clock of the test's: nothing is said before ten seconds, then once for each ten. */
static void a_stream_that_waits_says_so(void **state) {
  weft_text got = {0};
  (void)state;
  int fd = talk_dial(port);
  talk_send(fd, "POST", "/hold", "X-Tenant: a\r\n", "", 0);
  await_words(fd, &got, "begun", 1);
  atomic_fetch_add(&now_us, 9900000);
  for (int i = 0; i < 4; i++) (void)talk_read(fd, &got, 250); /* the thread looks four times a second */
  assert_null(strstr(got.bytes, "wait"));
  for (int i = 1; i <= 3; i++) {
    atomic_fetch_add(&now_us, i == 1 ? 200000 : 10000000);
    await_words(fd, &got, "wait", i);
  }
  for (int i = 0; i < 2; i++) (void)talk_read(fd, &got, 250);
  int n = 0;
  for (const char *at = got.bytes; (at = strstr(at, "wait")) != NULL; at++) n++;
  assert_int_equal(n, 3);
  weft_text_free(&got);
  (void)close(fd);
}

/* Closing answers what waits for a worker, and waits for what a worker has. */
static void *close_it(void *self) {
  (void)self;
  weft_http_close(http);
  return NULL;
}

static void closing_answers_what_waits(void **state) {
  pthread_t closer;
  (void)state;
  (void)pthread_mutex_lock(&gate);
  int first = ask_and_await_worker('a'), second = ask('b');
  assert_int_equal(pthread_create(&closer, NULL, close_it, NULL), 0);
  assert_int_equal(code_of(second), 503);
  (void)pthread_mutex_unlock(&gate);
  assert_int_equal(code_of(first), 200);
  assert_int_equal(pthread_join(closer, NULL), 0);
  (void)open_server(NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(workers_serve_tenants_in_turn, open_server, close_server),
      cmocka_unit_test_setup_teardown(nobody_has_more_than_half_of_the_places, open_server, close_server),
      cmocka_unit_test_setup_teardown(who_leaves_gives_the_place_back, open_server, close_server),
      cmocka_unit_test_setup_teardown(who_collects_much_delays_nobody, open_server, close_server),
      cmocka_unit_test_setup_teardown(endless_answers_leave_room_for_others, open_server, close_server),
      cmocka_unit_test_setup_teardown(a_large_body_comes_whole, open_server, close_server),
      cmocka_unit_test_setup_teardown(a_stream_that_waits_says_so, open_server, close_server),
      cmocka_unit_test_setup_teardown(an_answer_without_memory_says_so, open_server, close_server),
      cmocka_unit_test_setup_teardown(closing_answers_what_waits, open_server, close_server),
  };
  (void)signal(SIGPIPE, SIG_IGN);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
