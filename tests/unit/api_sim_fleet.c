/* SPDX-License-Identifier: MIT */
/* `weft sim` as a fleet: clients that wait for their answers, prompts told by small blocks, and what happens to replicas
 * and to what a router knows. */
#include <setjmp.h>
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

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(clients_wait_for_answers),
      cmocka_unit_test(small_blocks_are_told),
      cmocka_unit_test(evictions_are_counted),
  };
  return cmocka_run_group_tests(tests, open_trace, close_trace);
}
