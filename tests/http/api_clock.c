/* SPDX-License-Identifier: MIT */
/* The system's time of day jumps, by years and both ways: no deadline, idle time, timeout or ping of the server moves
 * with it, since all of them are of the monotonic clock. This program answers clock_gettime itself. */
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>

#include "base/clock.h"
#include "tests/support/http_conversation.h"

enum { YEAR_S = 31557600 };

static talk server;
static atomic_llong jumped_s; /* how far the time of day has jumped */
static atomic_uint n_asked;   /* how often somebody asked for it since it last jumped */

/* In place of the library's, which pthread and the libraries here call, too. */
int clock_gettime(clockid_t clock, struct timespec *now) {
  long code = syscall(SYS_clock_gettime, clock, now);
  if (code == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
    now->tv_sec += atomic_load(&jumped_s);
    atomic_fetch_add(&n_asked, 1);
  }
  return (int)code;
}

static int open_server(void **state) {
  static const char *const models[] = {DEMO_AR_MODEL};
  const weft_open_options options = {
      .models = models, .n_models = 1, .threads = 1, .kv_bytes = 8 << 20, .context = 4096};
  *state = talk_serve(&server, NULL, options, (weft_server_options){.idle_seconds = 600});
  return 0;
}

static void jump_to(long long s) {
  atomic_store(&jumped_s, s);
  atomic_store(&n_asked, 0);
}

/* Two looks at the deadlines, of which there are four a second: what they would end has ended then. */
static void await_looks(void) {
  (void)poll(NULL, 0, 700);
}

static void ask_on(int fd) {
  talk_send(fd, "GET", "/health", "", "", 0);
  talk_answer a = talk_receive(fd);
  assert_int_equal(a.code, 200);
  talk_answer_free(&a);
}

static void nothing_moves_with_the_time_of_day(void **state) {
  static const long long jumps[] = {YEAR_S, -YEAR_S, 30, 0};
  const uint64_t began = weft_clock_us();
  (void)state;
  int kept = talk_dial(server.port);
  int stream = talk_begin(server.port, "/v1/completions",
                          "{\"prompt\":\"a\",\"max_tokens\":3000,\"ignore_eos\":true,\"stream\":true,"
                          "\"timeout_ms\":600000}");
  weft_text got = {0};
  ask_on(kept);
  for (size_t i = 0; i < sizeof jumps / sizeof *jumps; i++) {
    jump_to(jumps[i]);
    if (i < 2) await_looks();
    ask_on(kept);
  }
  while (talk_read(stream, &got, 60000) > 0 && strstr(got.bytes, "[DONE]") == NULL) continue;
  assert_non_null(strstr(got.bytes, "\"finish_reason\":\"length\""));
  assert_null(strstr(got.bytes, "\"error\""));
  /* A waiting stream says so once in ten seconds, also on a machine that is slow to give it anything. */
  uint64_t n_waiting = 0;
  for (const char *at = got.bytes; (at = strstr(at, ": still working")) != NULL; at++) n_waiting++;
  assert_true(n_waiting <= (weft_clock_us() - began) / 10000000);
  static const char *const ends[] = {"late_head", "late_body", "stalled", "idle", "evicted"};
  for (int i = 0; i < 5; i++) {
    char name[80];
    (void)snprintf(name, sizeof name, "weft_http_connections_ended_total{reason=\"%s\"}", ends[i]);
    assert_true(talk_metric(server.port, name) == 0);
  }
  assert_true(atomic_load(&n_asked) > 0); /* the time of day is this program's: dates of answers are of it */
  weft_text_free(&got);
  (void)close(kept);
  (void)close(stream);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(nothing_moves_with_the_time_of_day)};
  return cmocka_run_group_tests(tests, open_server, close_talk);
}
