/* SPDX-License-Identifier: MIT */
/* `weft sim`: the same seed gives the same numbers, and small traces give the numbers worked out by
 * hand. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "tests/support/sim_run.h"

static char folder[] = "/tmp/weft-sim-plots-XXXXXX";

static void same_seed_same_numbers(void **state) {
  static char first[OUTPUT], second[OUTPUT], other[OUTPUT];
  static const char *const loads[] = {
      "--json --requests 200 --seed 7",
      "--json --requests 150 --seed 7 --rate 50 --kv-mib 2560 --queue 1000 --skew 0.5 --long 0",
      "--json --requests 120 --seed 7 --rate 30 --burst 10 --no-overlap --shared-cache"};
  (void)state;
  for (size_t i = 0; i < sizeof loads / sizeof *loads; i++) {
    char options[LINE];
    assert_int_equal(sim(loads[i], first), 0);
    assert_int_equal(sim(loads[i], second), 0);
    assert_string_equal(first, second);
    (void)snprintf(options, sizeof options, "%s --seed 8", loads[i]);
    assert_int_equal(sim(options, other), 0);
    assert_string_not_equal(first, other);
  }
}

/* A prompt in one step that also gives the first token, then a step for each token. */
static void time_is_the_profile(void **state) {
  static const char line[] = "{\"timestamp\":5,\"input_length\":100,\"output_length\":5}\n";
  (void)state;
  json_t *root = sim_numbers(line, "");
  assert_number(root, "finished", 1);
  assert_number(root, "steps", 5);
  assert_number(root, "ttft_p99_ms", 1);
  assert_number(root, "tpot_p50_ms", 1);
  assert_number(root, "e2e_p50_ms", 5);
  assert_number(root, "seconds", 0.010);
  assert_true(json_is_null(json_object_get(root, "canvas_p50_ms")));
  json_decref(root);
  /* 100 rows, 6 groups of 100 keys */
  check_number(line, "--row-us 10 --key-us 1000", "ttft_p50_ms", 1 + 100 * 0.010 + 0.6);
}

static void canvases_take_their_steps(void **state) {
  static const char line[] = "{\"timestamp\":0,\"input_length\":100,\"output_length\":512,\"kind\":\"diffusion\"}\n";
  (void)state;
  json_t *root = sim_numbers(line, "--canvas-steps 10 --canvas-steps-min 0");
  assert_number(root, "denoise_steps", 20);
  assert_number(root, "void_rows", 0);
  assert_number(root, "ttft_p50_ms", 10); /* the prompt and the first step are one step */
  assert_number(root, "e2e_p50_ms", 20);  /* so are the commit and the first step after it */
  assert_number(root, "canvas_p50_ms", 10);
  json_decref(root);
  root = sim_numbers(line, "--canvas-steps 40 --canvas-steps-min 1 --no-overlap");
  assert_number(root, "void_rows", 0); /* only who plans ahead plans in vain */
  double n_steps = json_number_value(json_object_get(root, "denoise_steps"));
  assert_true(n_steps >= 2 && n_steps <= 80);
  assert_number(root, "e2e_p50_ms", n_steps);
  json_decref(root);
}

/* Two prompts of the same two blocks: all but the last rows are found, by those who may. */
static void prefixes_are_found(void **state) {
  static const char same[] =
      "{\"timestamp\":0,\"input_length\":1024,\"output_length\":2,\"hash_ids\":[4,9]}\n"
      "{\"timestamp\":1000,\"input_length\":1024,\"output_length\":2,\"hash_ids\":[4,9]}\n";
  static const char others[] =
      "{\"timestamp\":0,\"input_length\":1024,\"output_length\":2,\"hash_ids\":[4,9]}\n"
      "\n"
      "{\"timestamp\":1000,\"input_length\":1024,\"output_length\":2,\"hash_ids\":[4,9],"
      "\"tenant\":3}\n";
  const double found = 100.0 * 992 / 2048; /* 1023 rounded down to the largest block, 32 */
  (void)state;
  check_number(same, "", "hit_percent", found);
  check_number(same, "--no-prefix-cache", "hit_percent", 0);
  check_number(others, "", "hit_percent", 0);
  check_number(others, "--shared-cache", "hit_percent", found);
}

/* The second prompt drives the first one out of the pool; host memory keeps it. */
static void host_memory_keeps_prefixes(void **state) {
  static const char lines[] =
      "{\"timestamp\":0,\"input_length\":1024,\"output_length\":2,\"hash_ids\":[4,9]}\n"
      "{\"timestamp\":1000,\"input_length\":1024,\"output_length\":2,\"hash_ids\":[5,9]}\n"
      "{\"timestamp\":2000,\"input_length\":1024,\"output_length\":2,\"hash_ids\":[4,9]}\n";
  (void)state;
  json_t *root = sim_numbers(lines, "--row-us 100 --kv-mib 300");
  assert_true(json_number_value(json_object_get(root, "hit_percent")) < 12.0); /* its head */
  assert_number(root, "pages_to_host", 0);
  json_decref(root);
  root = sim_numbers(lines, "--row-us 100 --kv-mib 300 --host-mib 1024");
  assert_number(root, "hit_percent", 100.0 * 992 / 3072);
  assert_true(json_number_value(json_object_get(root, "pages_back")) > 0);
  json_decref(root);
}

static void memory_limits_show(void **state) {
  static char out[OUTPUT];
  static const char lines[] =
      "{\"timestamp\":0,\"input_length\":900000,\"output_length\":2}\n"
      "{\"timestamp\":0,\"input_length\":10,\"output_length\":2}\n";
  (void)state;
  check_numbers(lines, "--kv-mib 1024 --context 8192 --running 4",
                (const number[]){{"refused", 1}, {"finished", 1}, {NULL, 0}});
  assert_int_equal(sim("--requests 60 --rate 1000 --long 0 --kv-mib 700 --queue 100 --csv", out), 0);
  assert_non_null(strstr(out, "scope,requests,finished,"));
  assert_non_null(strstr(out, "\nall,60,"));
  assert_non_null(strstr(out, "\ntenant 3,"));
}

/* While tenants wait, none gets this many times what another gets. */
static void check_shares(const char *options, double most) {
  static char out[OUTPUT];
  json_t *root = read_numbers(sim(options, out), out);
  double ratio = json_number_value(json_object_get(root, "fairness_max_over_min"));
  double percent = json_number_value(json_object_get(root, "backlog_percent"));
  if (!(percent > 20.0 && ratio >= 1.0 && ratio < most)) {
    fail_msg("%.3f times as much, in %.1f %% of the time: %s", ratio, percent, options);
  }
  json_decref(root);
}

/* One tenant asks for more than half; while all wait, all get the same. */
static void tenants_are_served_alike(void **state) {
  static char out[OUTPUT];
  (void)state;
  check_shares(
      "--json --requests 400 --rate 1000 --queue 1000 --kv-mib 2560 --skew 0.6 --answer-tokens 400 --long 0 "
      "--diffusion 0.3",
      1.3);
  json_t *root = read_numbers(sim("--json --requests 50 --tenants 1", out), out);
  assert_true(json_is_null(json_object_get(root, "fairness_max_over_min")));
  json_decref(root);
}

static char *read_file(const char *name) {
  FILE *file = fopen(name, "r");
  assert_non_null(file);
  char *text = calloc(1, OUTPUT);
  assert_true(fread(text, 1, OUTPUT - 1, file) > 0);
  assert_int_equal(fclose(file), 0);
  return text;
}

/* A key file as the server's: the first tenant weighs four times as much. */
static void tenants_are_served_by_weight(void **state) {
  static char out[OUTPUT];
  char options[LINE];
  (void)state;
  write_file(trace, "key-a a weight=4\nkey-b b\n");
  (void)snprintf(options, sizeof options,
                 "--json --requests 500 --rate 1000 --queue 1000 --running 256 --tenants 2 "
                 "--skew 0.7 --long 0 --diffusion 0 --api-keys %s",
                 trace);
  check_shares(options, 1.2); /* by weight */
  write_file(trace, "key-a a weight=4000\n");
  assert_int_equal(sim(options, out), 3);
}

/* Two models on one pool and one device: a step belongs to one of them and takes its time. */
/* A hit of a model with states ends at a border, here at a multiple of 64 where its prompt ended. */
static void states_decide_where_hits_end(void **state) {
  static const char lines[] =
      "{\"timestamp\":0,\"input_length\":1000,\"hash_ids\":[1,2],\"output_length\":3}\n"
      "{\"timestamp\":9000,\"input_length\":1000,\"hash_ids\":[1,2],\"output_length\":3}\n";
  static const char *const states[] = {"", ", {\"block_tokens\": 64, \"state_pages\": 100}"};
  static char out[OUTPUT];
  char options[LINE], path[64], profile[512];
  (void)state;
  (void)snprintf(path, sizeof path, "%s.json", trace);
  write_file(trace, lines);
  (void)snprintf(options, sizeof options, "--json --kv-mib 256 --trace %s --profile %s", trace, path);
  for (uint32_t i = 0; i < 2; i++) {
    (void)snprintf(profile, sizeof profile,
                   "{\"page_kib\": 640, \"models\": [{\"name\": \"a\", \"step_us\": 1000, \"row_us\": 10,"
                   " \"groups\": [{\"block_tokens\": 16}%s]}]}",
                   states[i]);
    write_file(path, profile);
    json_t *root = read_numbers(sim(options, out), out);
    assert_number(root, "finished", 2);
    assert_number(root, "hit_percent", 100.0 * (i == 0 ? 992 : 960) / 2000);
    json_decref(root);
  }
  write_file(path,
             "{\"models\": [{\"step_us\": 1, \"row_us\": 1, \"groups\": [{\"block_tokens\": 64, "
             "\"state_pages\": 4}]}]}");
  assert_int_not_equal(sim(options, out), 0);
  assert_non_null(strstr(out, "keys and values first"));
  assert_int_equal(unlink(path), 0);
}

static void models_take_turns(void **state) {
  static const char profile[] =
      "{\"page_kib\": 64, \"models\": ["
      "{\"name\": \"small\", \"step_us\": 1000, \"row_us\": 10, \"output_us\": 100,"
      " \"groups\": [{\"block_tokens\": 16}]},"
      "{\"name\": \"canvas\", \"autoregressive\": false, \"canvas\": 8, \"step_us\": 3000,"
      " \"row_us\": 0, \"expert_us\": 10, \"experts\": 4, \"experts_per_row\": 4}]}";
  static const char ar[] = "{\"timestamp\":0,\"input_length\":10,\"output_length\":3}\n";
  static const char both[] =
      "{\"timestamp\":0,\"input_length\":10,\"output_length\":3,\"model\":\"small\"}\n"
      "{\"timestamp\":0,\"input_length\":10,\"output_length\":8,\"kind\":\"diffusion\"}\n";
  char options[LINE / 2], path[64];
  (void)state;
  (void)snprintf(path, sizeof path, "%s.json", trace);
  write_file(path, profile);
  (void)snprintf(options, sizeof options, "--profile %s --canvas-steps 2 --canvas-steps-min 0", path);
  static char out[OUTPUT];
  char all[LINE];
  write_file(trace, ar);
  (void)snprintf(all, sizeof all, "--json --trace %s %s", trace, options);
  json_t *root = read_numbers(sim(all, out), out);
  assert_number(root, "ttft_p50_ms", 1.2); /* 10 rows and an output */
  assert_number(root, "e2e_p50_ms", 1.2 + 2 * 1.11);
  json_decref(root);
  write_file(trace, both);
  root = read_numbers(sim(all, out), out);
  assert_number(root, "finished", 2);
  assert_number(root, "steps", 5);
  assert_number(root, "switches", 3); /* equal time: small, canvas, small twice, canvas */
  assert_number(root, "seconds", (1.2 + 2 * 1.11 + 2 * 3.04) / 1000); /* all four experts */
  json_decref(root);
  write_file(trace,
             "{\"timestamp\":0,\"input_length\":1,\"output_length\":1,"
             "\"model\":\"canvas\"}\n");
  assert_int_equal(sim(all, out), 3);
  assert_non_null(strstr(out, "no model named canvas"));
  write_file(path, "{\"models\": [{\"row_us\": 1}]}");
  assert_int_equal(sim(options, out), 3);
  assert_non_null(strstr(out, "\"step_us\" must be a number"));
  assert_int_equal(unlink(path), 0);
}

static void requests_end_early(void **state) {
  static const char lines[] =
      "{\"timestamp\":0,\"input_length\":9,\"output_length\":500,\"cancel_after\":10.5}\n"
      "{\"timestamp\":0,\"input_length\":9,\"output_length\":500,\"deadline\":5,"
      "\"tenant\":1}\n"
      "{\"timestamp\":0,\"input_length\":9,\"output_length\":2,\"cancel_after\":90}\n";
  static const char ranks[] =
      "{\"timestamp\":0,\"input_length\":9,\"output_length\":3}\n"
      "{\"timestamp\":0,\"input_length\":9,\"output_length\":5,\"priority\":2}\n";
  (void)state;
  /* the cancel is known after the step in which it came */
  check_numbers(lines, "--no-overlap",
                (const number[]){{"cancelled", 1}, {"expired", 1}, {"finished", 1}, {"seconds", 0.011}, {NULL, 0}});
  check_number(ranks, "--running 1 --no-overlap", "ttft_p99_ms", 6); /* the other order would make it 4 */
}

/* 7 prompts, 9 times each, one after the other, on 4 replicas. */
static void equal_prefixes_meet(void **state) {
  static char lines[16384];
  size_t n = 0;
  (void)state;
  for (uint32_t i = 0; i < 63; i++) {
    n += (size_t)snprintf(lines + n, sizeof lines - n,
                          "{\"timestamp\":%u,\"input_length\":1024,\"output_length\":2,"
                          "\"hash_ids\":[%u,1]}\n",
                          i * 100, i % 7);
  }
  const double each = 100.0 * 992 / 1024 / 63;
  json_t *root = sim_numbers(lines, "--replicas 4");
  assert_number(root, "hit_percent", each * 56);
  assert_number(root, "spilled", 0);
  double requests = 0, steps = 0;
  for (size_t i = 0; i < 4; i++) {
    const json_t *row = json_array_get(json_object_get(root, "by_replica"), i);
    requests += json_number_value(json_object_get(row, "requests"));
    steps += json_number_value(json_object_get(row, "steps"));
  }
  assert_number(root, "requests", requests);
  assert_number(root, "steps", steps);
  json_decref(root);
  /* each replica sees each prompt */
  check_number(lines, "--replicas 4 --router round-robin", "hit_percent", each * 35);
  check_number(lines, "--replicas 4 --router prefix", "hit_percent", each * 56);
}

/* 40 of one prompt at once: nobody gets more than 1.25 times the mean, rounded up. */
static void popular_prefixes_overflow(void **state) {
  static char lines[16384];
  size_t n = 0;
  (void)state;
  for (uint32_t i = 0; i < 40; i++) {
    n += (size_t)snprintf(lines + n, sizeof lines - n,
                          "{\"timestamp\":0,\"input_length\":1024,\"output_length\":2,"
                          "\"hash_ids\":[8,9]}\n");
  }
  json_t *root = sim_numbers(lines, "--replicas 4");
  double most = json_number_value(json_object_get(root, "requests_max_over_mean"));
  assert_true(most >= 1.0 && most <= 13.0 / 10.0);
  assert_true(json_number_value(json_object_get(root, "spilled")) >= 27);
  json_decref(root);
}

static void a_written_trace_gives_the_same_numbers(void **state) {
  static char drawn[OUTPUT], read[OUTPUT];
  char options[LINE];
  (void)state;
  (void)snprintf(options, sizeof options,
                 "--json --requests 80 --rate 40 --seed 3 --cancel 0.2 --cancel-ms 300 --deadline-ms "
                 "4000 --urgent 0.2 --replicas 3 -o %s",
                 trace);
  assert_int_equal(sim(options, drawn), 0);
  (void)snprintf(options, sizeof options, "--json --seed 3 --replicas 3 --trace %s", trace);
  assert_int_equal(sim(options, read), 0);
  assert_string_equal(drawn, read);
  json_t *root = json_loads(drawn, 0, NULL);
  assert_true(json_number_value(json_object_get(root, "cancelled")) > 0);
  json_decref(root);
}

/* What a router chose, replayed, gives the numbers that it gave; so do as many prompts as there are, all distinct. */
static void assignments_are_replayed(void **state) {
  static const char *const routers[] = {"round-robin", "prefix", "hash"};
  static const char load[] =
      "--json --requests 120 --rate 60 --seed 5 --replicas 4 --shared 0.8 --prefixes 6 --shared-cache";
  static char made[OUTPUT], again[OUTPUT];
  char options[LINE];
  (void)state;
  for (size_t i = 0; i < 3; i++) {
    (void)snprintf(options, sizeof options, "%s --router %s --assignment %s", load, routers[i], trace);
    json_t *first = read_numbers(sim(options, made), made);
    (void)snprintf(options, sizeof options, "%s --replay %s", load, trace);
    json_t *second = read_numbers(sim(options, again), again);
    assert_number(second, "prefill_rows", number_at(first, "prefill_rows"));
    assert_true(number_at(first, "prefill_rows") >= number_at(first, "prompt_tokens_distinct"));
    assert_number(first, "requests", 120);
    (void)json_object_del(first, "spilled"); /* hash alone counts them */
    (void)json_object_del(second, "spilled");
    assert_true(json_equal(first, second));
    json_decref(first);
    json_decref(second);
  }
  static const char distinct[] =
      "{\"timestamp\":0,\"input_length\":700,\"output_length\":2}\n"
      "{\"timestamp\":9,\"input_length\":900,\"output_length\":2}\n"
      "{\"timestamp\":12,\"input_length\":1030,\"output_length\":2}\n";
  static const char same[] =
      "{\"timestamp\":0,\"input_length\":1024,\"output_length\":2,\"hash_ids\":[4,9]}\n"
      "{\"timestamp\":2000,\"input_length\":700,\"output_length\":2,\"hash_ids\":[4,9]}\n"
      "{\"timestamp\":4000,\"input_length\":1024,\"output_length\":2,\"hash_ids\":[9,4]}\n";
  check_numbers(distinct, "--replicas 3 --router round-robin",
                (const number[]){{"prefill_rows", 2630}, {"prompt_tokens_distinct", 2630}, {NULL, 0}});
  check_numbers(same, "",
                (const number[]){{"prompt_tokens_distinct", 2048}, {"prefill_rows", 2048 + 700 - 672}, {NULL, 0}});
  check_numbers(same, "--replicas 3 --router round-robin", (const number[]){{"prefill_rows", 2748}, {NULL, 0}});
}

static void bad_assignments_are_named(void **state) {
  static const struct {
    const char *lines, *words;
  } bad[] = {{"0\n1\n", "has 2 lines for a load of 3"},
             {"0\n1\n0\n1\n", "has 4 lines"},
             {"0\n2\n0\n", ":2: a line must be"},
             {"0\n\n0\n", ":2: "},
             {"-1\n", ":1: "},
             {"00000\n", ":1: "},
             {"", "has 0 lines"}};
  static char out[OUTPUT];
  char options[LINE];
  (void)state;
  (void)snprintf(options, sizeof options, "--requests 3 --replicas 2 --replay %s", trace);
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    write_file(trace, bad[i].lines);
    assert_int_equal(sim(options, out), 3);
    if (strstr(out, bad[i].words) == NULL) fail_msg("'%s' is not in: %s", bad[i].words, out);
  }
  assert_int_equal(sim("--replay /nowhere", out), 3);
  assert_int_equal(sim("--replay x --router hash", out), 2);
  assert_int_equal(sim("--requests 3 --assignment /nowhere/x", out), 2);
}

/* As many as there may be, each with a small pool: no request is lost. */
static void a_thousand_replicas_run(void **state) {
  static char out[OUTPUT];
  (void)state;
  (void)sim(
      "--csv --requests 300 --rate 1000 --long 0 --replicas 1000 --running 4 --queue 8 --kv-mib 1024 --rows 256 "
      "--router round-robin | sed -n 2p",
      out);
  if (strncmp(out, "all,300,300,", 12) != 0) fail_msg("%.200s", out);
  assert_int_equal(sim("--replicas 1001", out), 2);
}

static void plots_are_drawn(void **state) {
  static const char *const names[] = {"ttft", "each", "pool", "queue", "tenants"};
  static char out[OUTPUT];
  char options[LINE], path[256];
  (void)state;
  (void)snprintf(options, sizeof options, "--requests 60 --seed 4 --plots %s", folder);
  char *first[sizeof names / sizeof *names];
  for (size_t i = 0; i < 2 * (sizeof names / sizeof *names); i++) {
    size_t at = i % (sizeof names / sizeof *names);
    if (at == 0) assert_int_equal(sim(options, out), 0);
    (void)snprintf(path, sizeof path, "%s/%s.svg", folder, names[at]);
    char *text = read_file(path);
    assert_int_equal(unlink(path), 0);
    if (at == i) {
      first[at] = text;
      continue;
    }
    assert_string_equal(first[at], text);
    assert_non_null(strstr(text, "</svg>"));
    assert_non_null(strstr(text, "stroke=\"#1f77b4\" d=\"M")); /* a line with points */
    assert_null(strstr(text, " nan"));
    free(first[at]);
    free(text);
  }
  assert_int_equal(sim("--requests 5 --plots /proc/nowhere", out), 2);
}

static void bad_traces_are_named(void **state) {
  static const struct {
    const char *lines, *words;
  } bad[] = {
      {"", "holds no request"},
      {"[1]\n", ":1: a line must be one JSON object"},
      {"{\"timestamp\":0,\"input_length\":0,\"output_length\":1}\n", "\"input_length\" must be"},
      {"{\"timestamp\":0,\"input_length\":600,\"output_length\":1,\"hash_ids\":[1]}", "2 ids"},
      {"{\"timestamp\":0,\"input_length\":6,\"output_length\":1,\"hash_ids\":[-1]}", "number 0"},
      {"{\"timestamp\":0,\"input_length\":6,\"output_length\":1,\"kind\":\"x\"}", "\"kind\""},
      {"{\"timestamp\":0,\"input_length\":6,\"output_length\":1,\"tenant\":255}", "\"tenant\" must be"},
      {"{\"timestamp\":9,\"input_length\":6,\"output_length\":1}\n"
       "{\"timestamp\":8,\"input_length\":6,\"output_length\":1}\n",
       ":2: the timestamp is before"},
  };
  static char out[OUTPUT];
  (void)state;
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    assert_int_equal(sim_trace(bad[i].lines, "", out), 3);
    if (strstr(out, bad[i].words) == NULL) fail_msg("'%s' is not in: %s", bad[i].words, out);
  }
  assert_int_equal(sim("--trace /nowhere.jsonl", out), 3);
  assert_int_equal(sim("--csv --json", out), 2);
  assert_int_equal(sim("--router random", out), 2);
  assert_int_equal(sim("--router prefix --replicas 17", out), 2);
  assert_int_equal(sim("--rows 100", out), 2);
  assert_non_null(strstr(out, "raise rows per step to 256"));
}

static int open_files(void **state) {
  return open_trace(state) != 0 || mkdtemp(folder) == NULL;
}

static int close_files(void **state) {
  return close_trace(state) != 0 || rmdir(folder) != 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(same_seed_same_numbers),
      cmocka_unit_test(time_is_the_profile),
      cmocka_unit_test(canvases_take_their_steps),
      cmocka_unit_test(prefixes_are_found),
      cmocka_unit_test(memory_limits_show),
      cmocka_unit_test(tenants_are_served_alike),
      cmocka_unit_test(bad_traces_are_named),
      cmocka_unit_test(models_take_turns),
      cmocka_unit_test(states_decide_where_hits_end),
      cmocka_unit_test(requests_end_early),
      cmocka_unit_test(equal_prefixes_meet),
      cmocka_unit_test(tenants_are_served_by_weight),
      cmocka_unit_test(host_memory_keeps_prefixes),
      cmocka_unit_test(popular_prefixes_overflow),
      cmocka_unit_test(plots_are_drawn),
      cmocka_unit_test(a_written_trace_gives_the_same_numbers),
      cmocka_unit_test(assignments_are_replayed),
      cmocka_unit_test(bad_assignments_are_named),
      cmocka_unit_test(a_thousand_replicas_run),
  };
  return cmocka_run_group_tests(tests, open_files, close_files);
}
