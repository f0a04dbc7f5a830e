/* SPDX-License-Identifier: MIT */
/* The example of docs/examples is compiled as a user would compile it, linked with the library, and
 * run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#if defined(__SANITIZE_ADDRESS__)
#define EXAMPLE_FLAGS "-fsanitize=address,undefined"
#elif defined(__SANITIZE_THREAD__)
#define EXAMPLE_FLAGS "-fsanitize=thread"
#else
#define EXAMPLE_FLAGS ""
#endif

enum { LINE = 2048 };

static char folder[] = "/tmp/weft-example-XXXXXX";

static int run(const char *command, char *out, size_t n_max) {
  FILE *pipe = popen(command, "r");
  assert_non_null(pipe);
  size_t n = fread(out, 1, n_max - 1, pipe);
  out[n] = 0;
  return pclose(pipe);
}

static void test_example(void **state) {
  char command[LINE], out[LINE];
  (void)state;
  if (access(WEFT_BINARY_DIR "/libweft.so", R_OK) != 0) fail_msg("%s/libweft.so is not built", WEFT_BINARY_DIR);
  assert_non_null(mkdtemp(folder));
  /* The headers alone, as they are installed: weft.h may include nothing else of the tree. */
  (void)snprintf(command, sizeof command,
                 "mkdir -p %s/base && cp %s/api/weft.h %s && cd %s/base && cp asked.h prompt.h sampling.h %s/base",
                 folder, WEFT_SOURCE_DIR, folder, WEFT_SOURCE_DIR, folder);
  assert_int_equal(run(command, out, sizeof out), 0);
  (void)snprintf(command, sizeof command,
                 "cc -std=c11 -Wall -Wextra -Werror %s -I%s %s/docs/examples/generate.c -o "
                 "%s/generate -L%s -lweft "
                 "-Wl,-rpath,%s 2>&1",
                 EXAMPLE_FLAGS, folder, WEFT_SOURCE_DIR, folder, WEFT_BINARY_DIR, WEFT_BINARY_DIR);
  int code = run(command, out, sizeof out);
  if (code != 0) fail_msg("%s\n%s", command, out);
  (void)snprintf(command, sizeof command, "%s/generate %s/model/demo/weft-demo.gguf 'Write 4711 backwards.' 2>&1",
                 folder, WEFT_SOURCE_DIR);
  code = run(command, out, sizeof out);
  if (code != 0) fail_msg("%s\n%s", command, out);
  assert_non_null(strstr(out, " tokens]\n"));
  (void)snprintf(command, sizeof command, "%s/generate /nowhere.gguf x 2>&1", folder);
  assert_true(run(command, out, sizeof out) != 0);
  assert_non_null(strstr(out, "/nowhere.gguf"));
  (void)snprintf(command, sizeof command, "rm -r %s", folder);
  assert_int_equal(run(command, out, sizeof out), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_example)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
