/* SPDX-License-Identifier: MIT */
/* `weft sim` as a fleet: clients that wait for their answers, prompts told by small blocks, and what happens to
 * replicas and to what a router knows. */
#include <setjmp.h>
#include <stdbool.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/sim_run.h"

/* Steps of 1 ms: an answer of n tokens takes n steps, and the next request of a client begins when it ended. */
static void clients_wait_for_answers(void **state) {
  static const char lines[] =
      "{\"timestamp\":0,\"input_length\":10,\"output_length\":3}\n"
      "{\"timestamp\":0,\"input_length\":10,\"output_length\":5}\n"
      "{\"timestamp\":99,\"input_length\":10,\"output_length\":4}\n";
  (void)state;
  check_numbers(lines, "--clients 1 --no-overlap",
                (const number[]){{"seconds", 0.012}, {"steps", 12}, {"e2e_p99_ms", 5}, {"queue_p99_ms", 0}, {NULL, 0}});
  /* the third takes the place of the first, which ends at 3 ms, while the step until 4 ms is computed already */
  check_numbers(lines, "--clients 2 --no-overlap",
                (const number[]){{"seconds", 0.008}, {"steps", 8}, {"e2e_p50_ms", 5}, {NULL, 0}});
  check_numbers(lines, "--clients 1 --think-ms 4 --no-overlap", (const number[]){{"seconds", 0.020}, {NULL, 0}});
  check_numbers(lines, "--clients 9 --no-overlap", (const number[]){{"seconds", 0.005}, {"finished", 3}, {NULL, 0}});
  /* one that is refused has its answer at once */
  check_numbers(
      "{\"timestamp\":0,\"input_length\":9000,\"output_length\":3}\n"
      "{\"timestamp\":0,\"input_length\":10,\"output_length\":3}\n",
      "--clients 1 --no-overlap --context 64",
      (const number[]){{"refused", 1}, {"finished", 1}, {"seconds", 0.003}, {NULL, 0}});
  check_refused("--clients 2 --requests 9 --cancel 0.9", 2, "--clients does not go with requests that are cancelled");
}

/* 5 blocks of 16 tokens are the same, and hits end at multiples of 32. */
static void small_blocks_are_told(void **state) {
  static const char lines[] =
      "{\"timestamp\":0,\"input_length\":100,\"output_length\":1,\"hash_ids\":[1,2,3,4,5,6,7]}\n"
      "{\"timestamp\":900,\"input_length\":100,\"output_length\":1,\"hash_ids\":[1,2,3,4,5,8,9]}\n";
  (void)state;
  check_numbers(lines, "--trace-block 16",
                (const number[]){{"hit_tokens", 64},
                                 {"prompt_tokens", 200},
                                 {"prefill_rows", 136},
                                 {"prompt_tokens_distinct", 120},
                                 {NULL, 0}});
  /* in blocks of one token as well */
  check_numbers(
      "{\"timestamp\":0,\"input_length\":3,\"output_length\":1,\"hash_ids\":[1,2,3]}\n"
      "{\"timestamp\":9,\"input_length\":4,\"output_length\":1,\"hash_ids\":[1,2,4,1]}\n",
      "--trace-block 1", (const number[]){{"prompt_tokens_distinct", 5}, {NULL, 0}});
  static char out[OUTPUT];
  assert_int_equal(sim_trace(lines, "--trace-block 8", out), 3);
  assert_non_null(strstr(out, "must be a list of 13 ids, one for each 8 tokens"));
  check_refused("--trace-block 0", 2, "trace-block");
}

/* Pages that were given up: a pool with room for one prompt of two. */
static void evictions_are_counted(void **state) {
  static const char lines[] =
      "{\"timestamp\":0,\"input_length\":1024,\"output_length\":2,\"hash_ids\":[4,9]}\n"
      "{\"timestamp\":1000,\"input_length\":1024,\"output_length\":2,\"hash_ids\":[5,9]}\n";
  (void)state;
  check_number(lines, "", "pages_evicted", 0);
  json_t *root = sim_numbers(lines, "--kv-mib 300");
  assert_true(number_at(root, "pages_evicted") > 0);
  json_decref(root);
}

/* ---- laws of every fleet --------------------------------------------------------------------- */

#define LOAD                                                                                                          \
  "--json --requests 250 --rate 100 --long 0 --diffusion 0.1 --answer-tokens 40 --tenants 5 --shared 0.8 --prefixes " \
  "9 "                                                                                                                \
  "--zipf 1 --kv-mib 3000 --running 16 --seed 11 "

static json_t *fleet_numbers(const char *options) {
  static char out[OUTPUT];
  char all[LINE];
  (void)snprintf(all, sizeof all, LOAD "%s", options);
  return read_numbers(sim(all, out), out);
}

/* Every request ends once, in one way, on the replica that has it in its row. */
static void check_conserved(const json_t *root) {
  static const char *const ways[] = {"finished", "refused", "cancelled", "expired", "failed"};
  double sum = 0, of_replicas = 0;
  for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) sum += number_at(root, ways[i]);
  assert_number(root, "requests", sum);
  const json_t *rows = json_object_get(root, "by_replica");
  for (size_t i = 0; i < json_array_size(rows); i++) of_replicas += number_at(json_array_get(rows, i), "requests");
  if (json_array_size(rows) > 0) assert_number(root, "requests", of_replicas);
}

static void every_request_ends_once(void **state) {
  static const struct {
    const char *options;
    bool breaks;
  } fleets[] = {{"--replicas 6 --router index --index-lag-ms 300 --router-lag-ms 200", false},
                {"--replicas 6 --upgrade-s 0.5 --away-s 0.2 --upgrade-at-once 2", false},
                {"--replicas 6 --router round-robin --upgrade-s 0.5 --away-s 0.2 --router-lag-ms 100", false},
                {"--replicas 6 --router prefix --upgrade-s 0.5 --away-s 0.2", false},
                {"--replicas 6 --copies 3 --move-s 0.4 --day-s 2", false},
                {"--replicas 6 --fail-s 2 --away-s 0.5", true},
                {"--replicas 6 --router index --fail-s 2 --away-s 0.5 --upgrade-s 1 --host-mib 4000", true},
                {"--replicas 6 --router prefix --fail-s 2 --away-s 0.5 --clients 20", true},
                {"--replicas 2 --fail-s 0.5 --away-s 2 --upgrade-s 0.1", true}};
  (void)state;
  for (size_t i = 0; i < sizeof fleets / sizeof *fleets; i++) {
    json_t *root = fleet_numbers(fleets[i].options);
    check_conserved(root);
    if (fleets[i].breaks) {
      assert_true(number_at(root, "failures") > 0 && number_at(root, "failed") > 0);
    } else {
      assert_number(root, "failed", 0); /* a drained replica breaks nothing */
      assert_number(root, "finished", 250);
      assert_true(number_at(root, "prefill_rows") >= number_at(root, "prompt_tokens_distinct"));
    }
    json_decref(root);
  }
}

/* All of it at once, twice with one seed, and with another. */
static void the_seed_decides(void **state) {
  static const char options[] = LOAD
      "--replicas 5 --router index --index-lag-ms 50 --router-lag-ms 20 --fail-s 3 --away-s 0.3 "
      "--upgrade-s 0.7 --day-s 3 ";
  static char first[OUTPUT], second[OUTPUT];
  (void)state;
  assert_int_equal(sim(options, first), 0);
  assert_int_equal(sim(options, second), 0);
  assert_string_equal(first, second);
  assert_int_equal(sim(LOAD "--replicas 5 --router index --index-lag-ms 50 --router-lag-ms 20 --fail-s 3 --away-s 0.3 "
                            "--upgrade-s 0.7 --day-s 3 --seed 12",
                       second),
                   0);
  assert_string_not_equal(first, second);
}

/* What never happens changes nothing, and a lag of 0 is none. */
static void nothing_happens_without_cause(void **state) {
  static const char *const routers[] = {"hash", "round-robin", "prefix", "index"};
  static char first[OUTPUT], second[OUTPUT];
  char options[LINE];
  (void)state;
  for (size_t i = 0; i < sizeof routers / sizeof *routers; i++) {
    (void)snprintf(options, sizeof options, LOAD "--replicas 4 --router %s", routers[i]);
    assert_int_equal(sim(options, first), 0);
    (void)snprintf(options, sizeof options,
                   LOAD "--replicas 4 --router %s --router-lag-ms 0 --fail-s 1e9 --upgrade-s 1e6 --away-s 1 --copies 1",
                   routers[i]);
    assert_int_equal(sim(options, second), 0);
    assert_string_equal(first, second);
  }
}

/* ---- what happens to replicas ---------------------------------------------------------------- */

/* Replica 0 leaves at 2.5 ms, goes at 5 ms when its request has ended, and is back at 15 ms; then replica 1 leaves,
 * which is idle, and is back at 25 ms. */
static void an_upgrade_drains_one_after_the_other(void **state) {
  static const char lines[] =
      "{\"timestamp\":0,\"input_length\":10,\"output_length\":5}\n"
      "{\"timestamp\":3,\"input_length\":10,\"output_length\":2}\n"
      "{\"timestamp\":4,\"input_length\":10,\"output_length\":2}\n"
      "{\"timestamp\":16,\"input_length\":10,\"output_length\":2}\n"
      "{\"timestamp\":40,\"input_length\":10,\"output_length\":2}\n";
  (void)state;
  json_t *root = sim_numbers(lines, "--no-overlap --replicas 2 --router round-robin --upgrade-s 0.0025 --away-s 0.01");
  assert_number(root, "finished", 5);
  assert_number(root, "replaced", 2);
  assert_number(root, "upgraded_at_s", 0.025);
  const json_t *rows = json_object_get(root, "by_replica");
  assert_number(json_array_get(rows, 0), "requests", 3); /* at 0, at 16 while the other is away, at 40 in turn */
  assert_number(json_array_get(rows, 1), "requests", 2);
  json_decref(root);
  /* both at once: who comes at 16 ms is served by both again; nobody serves at 6 ms */
  root = sim_numbers(
      "{\"timestamp\":0,\"input_length\":10,\"output_length\":5}\n"
      "{\"timestamp\":6,\"input_length\":10,\"output_length\":2}\n"
      "{\"timestamp\":16,\"input_length\":10,\"output_length\":2}\n",
      "--no-overlap --replicas 2 --router round-robin --upgrade-s 0.0025 --away-s 0.01 --upgrade-at-once 2");
  assert_number(root, "finished", 2);
  assert_number(root, "refused", 1);
  assert_number(root, "upgraded_at_s", 0.015);
  json_decref(root);
}

/* A prompt that was cached before an upgrade is computed again after it. */
static void caches_are_gone_after_an_upgrade(void **state) {
  static const char lines[] =
      "{\"timestamp\":0,\"input_length\":1024,\"output_length\":2,\"hash_ids\":[4,9]}\n"
      "{\"timestamp\":500,\"input_length\":1024,\"output_length\":2,\"hash_ids\":[4,9]}\n"
      "{\"timestamp\":2000,\"input_length\":1024,\"output_length\":2,\"hash_ids\":[4,9]}\n";
  (void)state;
  check_number(lines, "", "hit_tokens", 2 * 992);
  check_number(lines, "--upgrade-s 1 --away-s 0.1", "hit_tokens", 992);
  check_numbers(lines, "--router index --upgrade-s 1 --away-s 0.1",
                (const number[]){{"hit_tokens", 992}, {"credit_percent", 100.0 * 992 / 3072}, {NULL, 0}});
}

/* One replica that fails every 20 ms and is away for 1: what runs then breaks, and nothing else does. */
static void failures_break_what_runs_there(void **state) {
  static char lines[16384];
  size_t n = 0;
  (void)state;
  for (uint32_t i = 0; i < 200; i++) {
    n += (size_t)snprintf(lines + n, sizeof lines - n, "{\"timestamp\":%u,\"input_length\":10,\"output_length\":3}\n",
                          i * 10);
  }
  json_t *root = sim_numbers(lines, "--no-overlap --fail-s 0.02 --away-s 0.001 --seed 5");
  double failures = number_at(root, "failures"), failed = number_at(root, "failed");
  check_conserved(root);
  assert_true(failures > 50 && failures < 130); /* about 2,000 ms over 21 */
  /* one request runs in 3 ms of each 10, and one arrives while it is away in 1 of 10 */
  assert_true(failed > 0.15 * failures && failed < 0.5 * failures);
  assert_true(number_at(root, "refused") < 0.3 * failures);
  json_decref(root);
}

/* ---- routers --------------------------------------------------------------------------------- */

static const char groups[] =
    "{\"page_kib\": 64, \"models\": [{\"name\": \"plain\", \"step_us\": 1000, \"row_us\": 10,"
    " \"groups\": [{\"block_tokens\": 16}]}]}";

/* Where hits can end at every block and one request runs at a time, what the index says is what is found. */
static void an_index_without_lag_knows_what_is_found(void **state) {
  static char out[OUTPUT];
  char options[LINE], path[64];
  (void)state;
  (void)snprintf(path, sizeof path, "%s.json", trace);
  write_file(path, groups);
  for (uint32_t host = 0; host <= 400; host += 400) {
    (void)snprintf(options, sizeof options,
                   LOAD "--profile %s --clients 1 --replicas 3 --router index --diffusion 0 --kv-mib 40 --host-mib %u",
                   path, host);
    json_t *root = read_numbers(sim(options, out), out);
    assert_true(number_at(root, "pages_evicted") > 0 && number_at(root, "hit_tokens") > 0);
    assert_number(root, "credit_percent", number_at(root, "hit_percent"));
    json_decref(root);
  }
  assert_int_equal(unlink(path), 0);
}

/* The second request comes after 1 s. Known after 0.5 s, the first one's blocks count; after 2 s they do not, and it
 * goes to the replica that was given less. */
static void a_late_index_sends_elsewhere(void **state) {
  static const char lines[] =
      "{\"timestamp\":0,\"input_length\":1024,\"output_length\":2,\"hash_ids\":[4,9]}\n"
      "{\"timestamp\":1000,\"input_length\":1024,\"output_length\":2,\"hash_ids\":[4,9]}\n";
  (void)state;
  check_numbers(lines, "--replicas 3 --router index --index-lag-ms 500",
                (const number[]){{"hit_tokens", 992}, {"credit_percent", 100.0 * 992 / 2048}, {NULL, 0}});
  check_numbers(lines, "--replicas 3 --router index --index-lag-ms 2000",
                (const number[]){{"hit_tokens", 0}, {"credit_percent", 0}, {NULL, 0}});
}

/* The 32 blocks of 32 tokens of one prompt: they are told once, and clearing at the start. */
static void events_are_counted(void **state) {
  static const char line[] = "{\"timestamp\":0,\"input_length\":1024,\"output_length\":3,\"hash_ids\":[4,9]}\n";
  (void)state;
  json_t *root = sim_numbers(line, "--router index");
  double seconds = number_at(root, "seconds");
  assert_number(root, "event_blocks_per_s", 32 / seconds);
  assert_number(root, "index_blocks_most", 32);
  if (json_is_number(json_object_get(root, "event_bytes_per_s"))) { /* built with msgpack: some 3 bytes a token */
    double bytes = seconds * number_at(root, "event_bytes_per_s");
    assert_true(bytes > 1024 && bytes < 5 * 1024 + 32 * 9 + 400);
  }
  json_decref(root);
  root = sim_numbers(line, "");
  assert_true(json_is_null(json_object_get(root, "events_per_s")));
  json_decref(root);
}

/* More blocks of one step than the engine tells in a turn: the rest is told although the replica is idle then. */
static void all_is_told_in_the_end(void **state) {
  static const char lines[] = "{\"timestamp\":0,\"input_length\":65536,\"output_length\":1}\n";
  char options[LINE / 2], path[64];
  (void)state;
  (void)snprintf(path, sizeof path, "%s.json", trace);
  write_file(path, groups);
  (void)snprintf(options, sizeof options, "--profile %s --router index --rows 65536 --no-overlap", path);
  check_number(lines, options, "index_blocks_most", 65536 / 16);
  assert_int_equal(unlink(path), 0);
}

/* 40 of one prompt at once, on 8 replicas: on the first of its key, as far as the bound lets it, or on four of them. */
static void copies_share_a_prefix(void **state) {
  static char lines[16384];
  size_t n = 0;
  (void)state;
  for (uint32_t i = 0; i < 40; i++) {
    n += (size_t)snprintf(lines + n, sizeof lines - n,
                          "{\"timestamp\":0,\"input_length\":1024,\"output_length\":2,\"hash_ids\":[8,9]}\n");
  }
  check_numbers(lines, "--replicas 8 --copies 8",
                (const number[]){{"requests_max_over_mean", 1}, {"spilled", 0}, {NULL, 0}});
  check_numbers(lines, "--replicas 8 --copies 4 --router-bound 64",
                (const number[]){{"requests_max_over_mean", 2}, {"spilled", 0}, {NULL, 0}});
  check_numbers(lines, "--replicas 8 --router-bound 64", (const number[]){{"requests_max_over_mean", 8}, {NULL, 0}});
}

/* 30 times the same prompt of each of two tenants, 1 s apart: a place each, or a new one every 10 s. */
static void tenants_move(void **state) {
  static char lines[16384];
  size_t n = 0;
  (void)state;
  for (uint32_t i = 0; i < 60; i++) {
    n += (size_t)snprintf(
        lines + n, sizeof lines - n,
        "{\"timestamp\":%u,\"input_length\":1024,\"output_length\":2,\"hash_ids\":[8,9],\"tenant\":%u}\n", i * 500,
        i % 2);
  }
  check_number(lines, "--replicas 20", "hit_tokens", 58 * 992);
  json_t *root = sim_numbers(lines, "--replicas 20 --move-s 10");
  double hits = number_at(root, "hit_tokens");
  /* in 30 s each has 3 or 4 places, each but for chance a replica of its own */
  assert_true(hits <= 54 * 992 && hits >= 52 * 992);
  json_decref(root);
}

/* ---- load ------------------------------------------------------------------------------------ */

/* Requests of a written load that arrive in each quarter of a day of 100 s. */
static void count_quarters(const char *options, double count[4]) {
  static char out[OUTPUT];
  char all[LINE], line[4096];
  (void)snprintf(all, sizeof all,
                 "--requests 1000 --rate 10 --prompt-tokens 4 --answer-tokens 1 --shared 0 --long 0 %s -o %s", options,
                 trace);
  assert_int_equal(sim(all, out), 0);
  FILE *file = fopen(trace, "r");
  assert_non_null(file);
  for (uint32_t i = 0; i < 4; i++) count[i] = 0;
  while (fgets(line, sizeof line, file) != NULL) {
    const char *at = strstr(line, "\"timestamp\":");
    assert_non_null(at);
    count[(uint32_t)(strtod(at + 12, NULL) / 25000) % 4] += 1;
  }
  assert_int_equal(fclose(file), 0);
}

static void days_swing(void **state) {
  double even[4], day[4];
  (void)state;
  count_quarters("", even);
  count_quarters("--day-s 100 --swing 0.9", day);
  for (uint32_t i = 0; i < 4; i++) assert_true(even[i] > 200 && even[i] < 300);
  /* of the rate 1 - 0.9 cos: a quarter of the day at night has 1 - 0.9 * 2 / pi of the mean, with that on each side */
  assert_true(day[0] + day[3] > 150 && day[0] + day[3] < 280);
  assert_true(day[1] + day[2] > 720 && day[1] + day[2] < 850);
}

static void popular_prefixes_are_drawn_more(void **state) {
  static const double most[] = {1e9, 120e3, 30e3};
  (void)state;
  for (uint32_t i = 0; i < 3; i++) {
    static char out[OUTPUT];
    char options[LINE];
    (void)snprintf(
        options, sizeof options,
        "--json --requests 200 --tenants 1 --shared 1 --shared-tokens 1024 --prefixes 1000 --prompt-tokens 1 "
        "--long 0 --answer-tokens 1 --zipf %u",
        i);
    json_t *root = read_numbers(sim(options, out), out);
    double distinct = number_at(root, "prompt_tokens_distinct");
    assert_true(distinct < most[i]);
    if (i == 0) assert_true(distinct > 170 * 1024.0); /* nearly every one another */
    json_decref(root);
  }
}

static void bad_fleets_are_refused(void **state) {
  (void)state;
  check_refused("--router index --copies 2", 2, "--copies goes with --router hash alone");
  check_refused("--router round-robin --move-s 3", 2, "--move-s goes with --router hash alone");
  check_refused("--index-lag-ms 3", 2, "--index-lag-ms goes with --router index alone");
  check_refused("--router nowhere", 2, "must be hash, round-robin, prefix or index");
  check_refused("--upgrade-at-once 0", 2, "upgrade-at-once");
  check_refused("--swing 1", 2, "swing");
  check_refused("--fail-s -1", 2, "fail-s");
  check_refused("--copies 65", 2, "copies");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(clients_wait_for_answers),
      cmocka_unit_test(small_blocks_are_told),
      cmocka_unit_test(evictions_are_counted),
      cmocka_unit_test(every_request_ends_once),
      cmocka_unit_test(the_seed_decides),
      cmocka_unit_test(nothing_happens_without_cause),
      cmocka_unit_test(an_upgrade_drains_one_after_the_other),
      cmocka_unit_test(caches_are_gone_after_an_upgrade),
      cmocka_unit_test(failures_break_what_runs_there),
      cmocka_unit_test(an_index_without_lag_knows_what_is_found),
      cmocka_unit_test(a_late_index_sends_elsewhere),
      cmocka_unit_test(events_are_counted),
      cmocka_unit_test(all_is_told_in_the_end),
      cmocka_unit_test(copies_share_a_prefix),
      cmocka_unit_test(tenants_move),
      cmocka_unit_test(days_swing),
      cmocka_unit_test(popular_prefixes_are_drawn_more),
      cmocka_unit_test(bad_fleets_are_refused),
  };
  return cmocka_run_group_tests(tests, open_trace, close_trace);
}
