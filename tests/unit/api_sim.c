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

enum { LINE = 2048, OUTPUT = 65536 };

static char trace[] = "/tmp/weft-sim-XXXXXX";

/* Runs it; the exit code. */
static int sim(const char *options, char *out) {
  char command[LINE];
  (void)snprintf(command, sizeof command, "%s/weft sim %s 2>&1", WEFT_BINARY_DIR, options);
  FILE *pipe = popen(command, "r");
  assert_non_null(pipe);
  size_t n = fread(out, 1, OUTPUT - 1, pipe);
  out[n] = 0;
  int status = pclose(pipe);
  assert_true(WIFEXITED(status));
  return WEXITSTATUS(status);
}

/* Runs a trace with steps of 1 ms, whatever they hold. */
static int sim_trace(const char *lines, const char *options, char *out) {
  char all[LINE];
  FILE *file = fopen(trace, "w");
  assert_non_null(file);
  assert_true(fputs(lines, file) >= 0);
  assert_int_equal(fclose(file), 0);
  (void)snprintf(all, sizeof all, "--json --trace %s --step-us 1000 --row-us 0 --key-us 0 %s",
                 trace, options);
  return sim(all, out);
}

static json_t *sim_numbers(const char *lines, const char *options) {
  static char out[OUTPUT];
  int code = sim_trace(lines, options, out);
  json_t *root = code == 0 ? json_loads(out, 0, NULL) : NULL;
  if (root == NULL) fail_msg("exit code %d: %s", code, out);
  return root;
}

static void assert_number(const json_t *root, const char *name, double expected) {
  double x = json_number_value(json_object_get(root, name));
  if (!(fabs(x - expected) <= 1e-6 * (1.0 + fabs(expected)))) {
    fail_msg("%s is %.9g, not %.9g", name, x, expected);
  }
}

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
  root = sim_numbers(line, "--row-us 10 --key-us 1000"); /* 100 rows, 6 groups of 100 keys */
  assert_number(root, "ttft_p50_ms", 1 + 100 * 0.010 + 0.6);
  json_decref(root);
}

static void canvases_take_their_steps(void **state) {
  static const char line[] =
      "{\"timestamp\":0,\"input_length\":100,\"output_length\":512,\"kind\":\"diffusion\"}\n";
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
  json_t *root = sim_numbers(same, "");
  assert_number(root, "hit_percent", found);
  json_decref(root);
  root = sim_numbers(same, "--no-prefix-cache");
  assert_number(root, "hit_percent", 0);
  json_decref(root);
  root = sim_numbers(others, "");
  assert_number(root, "hit_percent", 0);
  json_decref(root);
  root = sim_numbers(others, "--shared-cache");
  assert_number(root, "hit_percent", found);
  json_decref(root);
}

static void memory_limits_show(void **state) {
  static char out[OUTPUT];
  static const char lines[] =
      "{\"timestamp\":0,\"input_length\":900000,\"output_length\":2}\n"
      "{\"timestamp\":0,\"input_length\":10,\"output_length\":2}\n";
  (void)state;
  json_t *root = sim_numbers(lines, "--kv-mib 1024 --context 8192 --running 4");
  assert_number(root, "refused", 1);
  assert_number(root, "finished", 1);
  json_decref(root);
  assert_int_equal(sim("--requests 60 --rate 1000 --long 0 --kv-mib 700 --queue 100 --csv", out),
                   0);
  assert_non_null(strstr(out, "requests,finished,"));
  assert_non_null(strstr(out, "\n60,"));
}

/* One tenant asks for more than half; while all wait, all get the same. */
static void tenants_are_served_alike(void **state) {
  static char out[OUTPUT];
  (void)state;
  assert_int_equal(sim("--json --requests 400 --rate 1000 --queue 1000 --kv-mib 2560 --skew 0.6 "
                       "--answer-tokens 400 --long 0 --diffusion 0.3",
                       out),
                   0);
  json_t *root = json_loads(out, 0, NULL);
  double ratio = json_number_value(json_object_get(root, "fairness_max_over_min"));
  double percent = json_number_value(json_object_get(root, "backlog_percent"));
  if (!(percent > 20.0 && ratio >= 1.0 && ratio < 1.3)) {
    fail_msg("%.3f times as many rows, in %.1f %% of the time", ratio, percent);
  }
  json_decref(root);
  assert_int_equal(sim("--json --requests 50 --tenants 1", out), 0);
  root = json_loads(out, 0, NULL);
  assert_true(json_is_null(json_object_get(root, "fairness_max_over_min")));
  json_decref(root);
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
      {"{\"timestamp\":0,\"input_length\":6,\"output_length\":1,\"tenant\":256}", "\"tenant\""},
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
  assert_int_equal(sim("--rows 100", out), 2);
  assert_non_null(strstr(out, "raise rows per step to 256"));
}

static int open_trace(void **state) {
  (void)state;
  int file = mkstemp(trace);
  return file < 0 || close(file) != 0 || access(WEFT_BINARY_DIR "/weft", X_OK) != 0;
}

static int close_trace(void **state) {
  (void)state;
  return unlink(trace);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(same_seed_same_numbers),    cmocka_unit_test(time_is_the_profile),
      cmocka_unit_test(canvases_take_their_steps), cmocka_unit_test(prefixes_are_found),
      cmocka_unit_test(memory_limits_show),        cmocka_unit_test(tenants_are_served_alike),
      cmocka_unit_test(bad_traces_are_named),
  };
  return cmocka_run_group_tests(tests, open_trace, close_trace);
}
