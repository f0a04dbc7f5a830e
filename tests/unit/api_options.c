/* SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api/config.h"
#include "api/option_names.h"
#include "api/server/server.h"
#include "api/step_rows.h"
#include "base/memory.h"

static weft_status parse(weft_config *c, unsigned command, int n, const char *const *words, weft_error *error) {
  char *argv[16];
  for (int i = 0; i < n; i++) argv[i] = (char *)(uintptr_t)words[i];
  return weft_config_parse(c, NULL, command, n, argv, error);
}

static void options_of_the_command_line(void **state) {
  (void)state;
  weft_config c;
  weft_error error;
  const char *good[] = {"-m", "a.gguf", "--model=b.gguf", "--rows", "128", "--no-overlap", "word"};
  assert_int_equal(parse(&c, WEFT_CMD_SERVE, 7, good, &error), WEFT_OK);
  assert_int_equal(c.models.n, 2);
  assert_string_equal(c.models.item[1], "b.gguf");
  assert_int_equal(c.rows, 128);
  assert_int_equal(c.port, 8080);
  assert_true(c.no_overlap);
  assert_int_equal(c.words.n, 1);
  const char *spill[] = {"--host-mib", "8", "--spill-file", "a.spill", "--spill-mib", "100"};
  assert_int_equal(parse(&c, WEFT_CMD_SERVE, 6, spill, &error), WEFT_OK);
  weft_open_options open = weft_config_open(&c);
  assert_string_equal(open.spill_file, "a.spill");
  assert_int_equal(open.spill_bytes, 100 << 20);
  assert_null(open.precision);
  const char *precision[] = {"--precision", "fast"};
  const unsigned commands[] = {WEFT_CMD_SERVE, WEFT_CMD_GENERATE, WEFT_CMD_DEMO, WEFT_CMD_INSPECT};
  for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
    assert_int_equal(parse(&c, commands[i], 2, precision, &error), WEFT_OK);
    open = weft_config_open(&c);
    assert_string_equal(open.precision, "fast");
  }
  const char *half[] = {"--precision", "half"}, *products[] = {"--products=8"}, *seed[] = {"--diffusion-seed", "1"};
  assert_int_equal(parse(&c, WEFT_CMD_SERVE, 2, half, &error), WEFT_E_INVALID);
  assert_string_equal(error.text, "--precision: 'half' must be auto, exact or fast");
  assert_int_equal(parse(&c, WEFT_CMD_SERVE, 1, products, &error), WEFT_E_INVALID);
  assert_string_equal(error.text, "instead of --products say --precision exact (16 bits) or --precision fast (8 bits)");
  assert_int_equal(parse(&c, WEFT_CMD_GENERATE, 2, seed, &error), WEFT_E_INVALID);
  assert_string_equal(error.text, "instead of --diffusion-seed say --seed");
  const char *unknown[] = {"--rowz", "1"}, *range[] = {"--port", "70000"}, *number[] = {"--rows", "12x"},
             *missing[] = {"--rows"}, *other[] = {"--canvas", "1"}, *negative[] = {"--rows", "-1"};
  assert_int_equal(parse(&c, WEFT_CMD_SERVE, 2, unknown, &error), WEFT_E_INVALID);
  assert_non_null(strstr(error.text, "--rowz"));
  assert_int_equal(parse(&c, WEFT_CMD_SERVE, 2, range, &error), WEFT_E_INVALID);
  assert_non_null(strstr(error.text, "65535"));
  assert_int_equal(parse(&c, WEFT_CMD_SERVE, 2, number, &error), WEFT_E_INVALID);
  assert_int_equal(parse(&c, WEFT_CMD_SERVE, 1, missing, &error), WEFT_E_INVALID);
  assert_int_equal(parse(&c, WEFT_CMD_SERVE, 2, other, &error), WEFT_E_INVALID); /* of another command */
  assert_int_equal(parse(&c, WEFT_CMD_SERVE, 2, negative, &error), WEFT_E_INVALID);
}

/* Numbers are decimal, and nothing else is one. */
static void numbers_are_decimal(void **state) {
  static const char *const wrong[] = {"0x1", "0X1p0", "inf", "nan", "1e", " 1", "1 ", "1,0", "", "+", "0b1", "1f"};
  static const struct {
    const char *text;
    float value;
  } right[] = {{"1", 1.0f}, {"0.5", 0.5f}, {".5", 0.5f}, {"5e-1", 0.5f}, {"+1", 1.0f}};
  weft_config c;
  weft_error error;
  (void)state;
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    const char *real[] = {"--temperature", wrong[i]}, *whole[] = {"--top-k", wrong[i]};
    if (parse(&c, WEFT_CMD_SERVE, 2, real, &error) != WEFT_E_INVALID) fail_msg("'%s' is a temperature", wrong[i]);
    if (parse(&c, WEFT_CMD_SERVE, 2, whole, &error) != WEFT_E_INVALID) fail_msg("'%s' is a number", wrong[i]);
  }
  for (size_t i = 0; i < sizeof right / sizeof *right; i++) {
    const char *words[] = {"--temperature", right[i].text};
    assert_int_equal(parse(&c, WEFT_CMD_SERVE, 2, words, &error), WEFT_OK);
    assert_true(c.sampling.temperature == right[i].value);
  }
}

/* The same rows as for one answer: of a server they are what requests get that leave them open. */
static void defaults_of_answers_are_options_of_a_server(void **state) {
  (void)state;
  weft_config c;
  weft_error error;
  const char *words[] = {"--temperature", "0.5", "--top-k", "7", "--diffusion-steps", "9", "--diffusion-t-max", "2"};
  assert_int_equal(parse(&c, WEFT_CMD_SERVE, 0, NULL, &error), WEFT_OK);
  assert_true(c.sampling.temperature < 0.0f && c.sampling.top_k < 0 && c.sampling.top_p < 0.0f);
  assert_int_equal(c.entropy_bound.max_steps, 0);
  assert_int_equal(parse(&c, WEFT_CMD_SERVE, 8, words, &error), WEFT_OK);
  assert_true(c.sampling.temperature == 0.5f && c.sampling.top_p < 0.0f && c.entropy_bound.t_max == 2.0f);
  assert_int_equal(c.sampling.top_k, 7);
  assert_int_equal(c.entropy_bound.max_steps, 9);
  const char *seed[] = {"--seed", "1"}, *stop[] = {"--stop", "."}, *steps[] = {"--diffusion-steps", "4097"};
  assert_int_equal(parse(&c, WEFT_CMD_SERVE, 2, seed, &error), WEFT_OK);
  assert_true(c.has_seed && c.sampling.seed == 1);
  assert_int_equal(parse(&c, WEFT_CMD_SERVE, 2, stop, &error), WEFT_E_INVALID); /* of one answer */
  assert_int_equal(parse(&c, WEFT_CMD_SERVE, 2, steps, &error), WEFT_E_INVALID);
}

/* What weft_open does with a zero and what the program does without an option come from one row. */
static void zeros_of_weft_open_are_the_defaults_of_serve(void **state) {
  (void)state;
  weft_config c;
  weft_error error;
  assert_int_equal(parse(&c, WEFT_CMD_SERVE, 0, NULL, &error), WEFT_OK);
  weft_open_options told = weft_config_open(&c), filled = {0};
  weft_config_fill_open(&filled);
  assert_true(told.context > 0 && told.running > 0 && told.queue > 0 && told.pins > 0);
  assert_int_equal(filled.context, told.context);
  assert_int_equal(filled.running, told.running);
  assert_int_equal(filled.queue, told.queue);
  assert_int_equal(filled.pins, told.pins);
  assert_int_equal(filled.saved_canvases, told.saved_canvases);
  weft_server_options served = {0}, named = {.host = "unix:x", .connections = 5};
  weft_server_fill_options(&served);
  assert_string_equal(served.host, c.host);
  assert_int_equal(served.socket_mode, 0660);
  assert_int_equal(served.body_mib, c.body_mib);
  assert_int_equal(served.connections, c.connections);
  weft_server_fill_options(&named);
  assert_string_equal(named.host, "unix:x");
  assert_int_equal(named.connections, 5);
  weft_open_options given = {.queue = 7};
  weft_config_fill_open(&given);
  assert_int_equal(given.queue, 7);
}

/* What was given holds on every device; the rest is the device's. */
static void rows_of_a_step(void **state) {
  static const struct {
    const char *line;
    uint32_t asked, running;
    bool host_memory;
    uint64_t left;
    step_rows rows;
  } table[] = {{"a processor", 0, 64, true, 0, {512, 512}},
               {"a processor, many requests", 0, 4096, true, 0, {512, 512}},
               {"a GPU", 0, 64, false, 0, {2048, 2048}},
               {"a GPU, one request", 0, 1, false, 0, {2048, 2048}},
               {"a GPU, nearly many requests", 0, 511, false, 0, {2048, 2048}},
               {"a GPU, many requests", 0, 512, false, 0, {4096, 4096}},
               {"a GPU, as many as can be", 0, UINT32_MAX, false, 0, {4096, 4096}},
               {"a GPU with room", 0, 64, false, STEP_ROWS_ROOM, {8192, 2048}},
               {"a GPU with nearly room", 0, 64, false, STEP_ROWS_ROOM - 1, {2048, 2048}},
               {"a GPU with room, many requests", 0, 512, false, UINT64_MAX, {8192, 4096}},
               {"given, on a processor", 2048, 64, true, 0, {2048, 2048}},
               {"given, on a GPU", 512, 640, false, UINT64_MAX, {512, 512}},
               {"as few as can be", 1, 64, false, UINT64_MAX, {1, 1}},
               {"as many as can be", 65536, 64, true, 0, {65536, 65536}}};
  weft_config c;
  weft_error error;
  (void)state;
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    step_rows rows = step_rows_choose(table[i].asked, table[i].host_memory, table[i].left, table[i].running);
    print_message("%s\n", table[i].line);
    assert_int_equal(rows.most, table[i].rows.most);
    assert_int_equal(rows.beside, table[i].rows.beside);
  }
  assert_int_equal(parse(&c, WEFT_CMD_SERVE, 0, NULL, &error), WEFT_OK);
  assert_int_equal(weft_config_open(&c).rows, 0); /* nobody has chosen: weft_open does */
}

/* A table beside the product's: its rows fill what follows the configuration, override defaults of their own command
 * only, and lead the help, in which every option of the command stands once under its topic. */
static void a_second_table(void **state) {
  (void)state;
  typedef struct wide_config {
    weft_config product;
    uint32_t depth;
  } wide_config;
  enum { DIVE = WEFT_FOR_LABORATORY, SWIM = WEFT_FOR_LABORATORY << 1 };
  const weft_option row[] = {
      {"depth", 'd', "Water", DIVE, WEFT_OPTION_IS_U32(wide_config, depth, 40, 1, 99), "N", "metres"},
      {"rows", 0, "Water", SWIM, WEFT_OPTION_IS_U32(wide_config, product.rows, 3, 1, 9), "N", "lanes"}};
  const weft_option_table table = {row, 2, sizeof(wide_config)};
  wide_config w;
  weft_error error;
  char depth[] = "-d", seven[] = "7", rows[] = "--rows=5";
  char *argv[] = {depth, seven, rows};
  assert_int_equal(weft_config_parse(&w.product, &table, DIVE | WEFT_FOR_ALL, 2, argv, &error), WEFT_OK);
  assert_int_equal(w.depth, 7);
  assert_int_equal(w.product.rows, 0);
  assert_int_equal(weft_config_parse(&w.product, &table, DIVE | WEFT_FOR_ALL, 3, argv, &error), WEFT_E_INVALID);
  assert_int_equal(weft_config_parse(&w.product, &table, SWIM | WEFT_FOR_ALL, 0, NULL, &error), WEFT_OK);
  assert_int_equal(w.product.rows, 3);
  assert_int_equal(w.depth, 40);
  static const char *const wanted[] = {"depth",     "json",       "quiet", "verbose", "version",
                                       "log-level", "log-format", "help",  NULL};
  uint32_t at = 0, n = 0;
  for (const weft_option *o; (o = weft_config_next(&table, DIVE | WEFT_FOR_ALL, &at)) != NULL; n++) {
    assert_non_null(wanted[n]);
    assert_string_equal(o->name, wanted[n]);
  }
  assert_null(wanted[n]);
}

static void expect_unknown(unsigned command, const char *word, const char *line) {
  weft_config c;
  weft_error error;
  const char *words[] = {word, "1"};
  assert_int_equal(parse(&c, command, 2, words, &error), WEFT_E_INVALID);
  assert_string_equal(error.text, line);
}

static void names_that_are_no_options(void **state) {
  (void)state;
  expect_unknown(WEFT_CMD_SERVE, "--prot", "no option is named '--prot': did you mean --port? --help lists them");
  expect_unknown(WEFT_CMD_SERVE, "--kv_mbi=4",
                 "no option is named '--kv_mbi=4': did you mean --kv-mib? --help lists them");
  expect_unknown(WEFT_CMD_SERVE, "--elephant", "no option is named '--elephant': --help lists them");
  expect_unknown(WEFT_CMD_SERVE, "-help", "no option is named '-help': did you mean --help? --help lists them");
  expect_unknown(WEFT_CMD_SERVE, "--max-model-len",
                 "--max-model-len is an option of vLLM; here it is --context N: the longest prompt plus answer");
  expect_unknown(WEFT_CMD_SERVE, "--max_num_seqs=9",
                 "--max_num_seqs is an option of vLLM; here it is --running N: requests running at once");
  expect_unknown(WEFT_CMD_GENERATE, "-ngl",
                 "-ngl is an option of llama-server; here it is not needed: --backend cuda holds all layers, and "
                 "--device-mib N leaves experts in host memory");
}

/* The option is one of a command that a user runs. */
static bool is_option(const char *name, size_t n) {
  static const unsigned commands[] = {WEFT_CMD_SERVE, WEFT_CMD_GENERATE};
  for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
    uint32_t at = 0;
    for (const weft_option *o; (o = weft_config_next(NULL, commands[i], &at)) != NULL;) {
      if (strlen(o->name) == n && memcmp(o->name, name, n) == 0) return true;
    }
  }
  return false;
}

/* Every option that is named in place of another server's is there, and no name of theirs is one of ours. */
static void options_of_other_servers(void **state) {
  (void)state;
  const char *name, *here, *servers;
  size_t n_rows = 0;
  for (; (name = weft_option_foreign_at(n_rows, &here)) != NULL; n_rows++) {
    if (is_option(name, strlen(name))) fail_msg("--%s is an option of weft", name);
    if (name[0] == '-') assert_true(strlen(name) > 2);                         /* one letter may be an option of ours */
    assert_ptr_equal(weft_option_foreign(name, strlen(name), &servers), here); /* once in the table */
    for (const char *at = strstr(here, "--"); at != NULL; at = strstr(at + 2, "--")) {
      size_t n = strspn(at + 2, "abcdefghijklmnopqrstuvwxyz0123456789-");
      if (!is_option(at + 2, n)) fail_msg("%s: there is no %.*s", name, (int)n + 2, at);
    }
  }
  assert_true(n_rows > 60);
}

static void names_with_underscores(void **state) {
  (void)state;
  weft_config c;
  weft_error error;
  const char *words[] = {"--kv_mib", "9", "--no_overlap", "--spill_mib=7"};
  assert_int_equal(parse(&c, WEFT_CMD_SERVE, 4, words, &error), WEFT_OK);
  assert_int_equal(c.kv_mib, 9);
  assert_int_equal(c.spill_mib, 7);
  assert_true(c.no_overlap);
}

static void variables_that_are_no_options(void **state) {
  (void)state;
  char line[256];
  uint32_t at = 0;
  setenv("WEFT_PROT", "1", 1);
  setenv("WEFT_ELEPHANT", "\033[2J", 1);
  setenv("WEFT_KV_MIB", "7", 1);
  setenv("WEFT_VERSION", "0.1", 1); /* of an image: no request to print it */
  bool port = false, elephant = false;
  while (weft_config_stranger(NULL, &at, line, sizeof line)) {
    port = port || strcmp(line,
                          "warning: WEFT_PROT of the environment is the name of no option: did you mean "
                          "WEFT_PORT?") == 0;
    elephant = elephant || strcmp(line, "warning: WEFT_ELEPHANT of the environment is the name of no option") == 0;
    if (strstr(line, "KV_MIB") != NULL || strstr(line, "VERSION") != NULL) fail_msg("%s", line);
  }
  assert_true(port && elephant);
  weft_config c;
  weft_error error;
  assert_int_equal(parse(&c, WEFT_CMD_SERVE, 0, NULL, &error), WEFT_OK);
  assert_false(c.version);
  unsetenv("WEFT_PROT");
  unsetenv("WEFT_ELEPHANT");
  unsetenv("WEFT_KV_MIB");
  unsetenv("WEFT_VERSION");
}

static void colours_are_a_wish(void **state) {
  static const struct {
    const char *no_color, *term;
    bool none, dumb;
  } table[] = {{NULL, "xterm", false, false},
               {"", "xterm", false, false},
               {"1", "xterm", true, false},
               {NULL, "dumb", true, true},
               {NULL, NULL, true, true}};
  (void)state;
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    weft_config c;
    weft_error error;
    (void)(table[i].no_color != NULL ? setenv("NO_COLOR", table[i].no_color, 1) : unsetenv("NO_COLOR"));
    (void)(table[i].term != NULL ? setenv("TERM", table[i].term, 1) : unsetenv("TERM"));
    assert_int_equal(parse(&c, WEFT_CMD_CHAT, 0, NULL, &error), WEFT_OK);
    assert_int_equal(c.no_colour, table[i].none);
    assert_int_equal(c.terminal_is_dumb, table[i].dumb);
  }
}

static void write_file(const char *path, const char *text) {
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  assert_true(fputs(text, file) >= 0);
  assert_int_equal(fclose(file), 0);
}

static void words_that_are_models(void **state) {
  (void)state;
  weft_config c;
  weft_error error;
  const char *file = WEFT_BINARY_DIR "/test_model_word.txt";
  write_file(file, "a model");
  const char *words[] = {"missing.gguf", "hello", file, ".gguf", "/", "-m", "named.gguf"};
  assert_int_equal(parse(&c, WEFT_CMD_CHAT, 7, words, &error), WEFT_OK);
  assert_int_equal(weft_config_take_models(&c, &error), WEFT_OK);
  assert_int_equal(c.models.n, 3);
  assert_string_equal(c.models.item[0], "named.gguf");
  assert_string_equal(c.models.item[1], "missing.gguf");
  assert_string_equal(c.models.item[2], file);
  assert_int_equal(c.words.n, 3);
  assert_string_equal(c.words.item[0], "hello");
}

static void environment_and_file_yield_to_flags(void **state) {
  (void)state;
  weft_config c;
  weft_error error;
  const char *path = WEFT_BINARY_DIR "/test_config.txt";
  write_file(path, "\xEF\xBB\xBFmodel = from-file.gguf\nrows = 64\nqueue = 5\n\nno-prefix-cache = on\n");
  setenv("WEFT_QUEUE", "6", 1);
  setenv("WEFT_KV_MIB", "7", 1);
  const char *words[] = {"--config", path, "--kv-mib", "8"};
  assert_int_equal(parse(&c, WEFT_CMD_SERVE, 4, words, &error), WEFT_OK);
  assert_int_equal(c.rows, 64);
  assert_int_equal(c.queue, 6);
  assert_int_equal(c.kv_mib, 8);
  assert_true(c.no_prefix_cache);
  assert_string_equal(c.models.item[0], "from-file.gguf");
  weft_config_free(&c);
  setenv("WEFT_QUEUE", "many", 1);
  assert_int_equal(parse(&c, WEFT_CMD_SERVE, 4, words, &error), WEFT_E_INVALID);
  weft_config_free(&c);
  unsetenv("WEFT_QUEUE");
  unsetenv("WEFT_KV_MIB");
  write_file(path, "rows 64\n");
  assert_int_equal(parse(&c, WEFT_CMD_SERVE, 4, words, &error), WEFT_E_FORMAT);
  assert_non_null(strstr(error.text, ":1:"));
  weft_config_free(&c);
  write_file(path, "queue = 5\nrows = x\n");
  assert_int_equal(parse(&c, WEFT_CMD_SERVE, 4, words, &error), WEFT_E_INVALID);
  assert_non_null(strstr(error.text, "test_config.txt:2: --rows: 'x'"));
}

/* A list of a later source takes the place of an earlier one's; every option has a name in the environment. */
static void lists_are_replaced(void **state) {
  (void)state;
  weft_config c;
  weft_error error;
  const char *path = WEFT_BINARY_DIR "/test_config_lists.txt";
  write_file(path, "model = f1.gguf\nmodel = f2.gguf\nallow-origin = http://a\nallow-origin = http://b\n");
  setenv("WEFT_CONFIG", path, 1);
  assert_int_equal(parse(&c, WEFT_CMD_SERVE, 0, NULL, &error), WEFT_OK);
  assert_int_equal(c.models.n, 2);
  assert_string_equal(c.models.item[1], "f2.gguf");
  weft_config_free(&c);
  setenv("WEFT_MODEL", "e1.gguf, e2.gguf,e3.gguf", 1);
  assert_int_equal(parse(&c, WEFT_CMD_SERVE, 0, NULL, &error), WEFT_OK);
  assert_int_equal(c.models.n, 3);
  assert_string_equal(c.models.item[0], "e1.gguf");
  assert_string_equal(c.models.item[1], "e2.gguf");
  assert_int_equal(c.origins.n, 2);
  weft_config_free(&c);
  const char *words[] = {"-m", "c.gguf", "--allow-origin", "http://c"};
  assert_int_equal(parse(&c, WEFT_CMD_SERVE, 4, words, &error), WEFT_OK);
  assert_int_equal(c.models.n, 1);
  assert_string_equal(c.models.item[0], "c.gguf");
  assert_int_equal(c.origins.n, 1);
  weft_config_free(&c);
  setenv("WEFT_MAX_TOKENS", "77", 1); /* another command's option */
  assert_int_equal(parse(&c, WEFT_CMD_GENERATE, 0, NULL, &error), WEFT_OK);
  assert_int_equal(c.max_tokens, 77);
  assert_int_equal(c.models.n, 3);
  weft_config_free(&c);
  setenv("WEFT_MAX_TOKENS", "many", 1);
  assert_int_equal(parse(&c, WEFT_CMD_GENERATE, 0, NULL, &error), WEFT_E_INVALID);
  assert_non_null(strstr(error.text, "WEFT_MAX_TOKENS"));
  weft_config_free(&c);
  unsetenv("WEFT_MAX_TOKENS");
  unsetenv("WEFT_MODEL");
  unsetenv("WEFT_CONFIG");
}

static void id_lists(void **state) {
  (void)state;
  int32_t *ids;
  uint32_t n;
  weft_error error;
  assert_int_equal(weft_config_ids("2,5,9", "--tokens", &ids, &n, &error), WEFT_OK);
  assert_int_equal(n, 3);
  assert_int_equal(ids[2], 9);
  weft_free(ids);
  assert_int_equal(weft_config_ids("2,,9", "--tokens", &ids, &n, &error), WEFT_E_INVALID);
  assert_int_equal(weft_config_ids("2,x", "--tokens", &ids, &n, &error), WEFT_E_INVALID);
  assert_int_equal(weft_config_ids("99999999999", "--tokens", &ids, &n, &error), WEFT_E_INVALID);
  assert_int_equal(weft_config_ids("-1", "--tokens", &ids, &n, &error), WEFT_E_INVALID);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(options_of_the_command_line),
                                     cmocka_unit_test(zeros_of_weft_open_are_the_defaults_of_serve),
                                     cmocka_unit_test(numbers_are_decimal),
                                     cmocka_unit_test(defaults_of_answers_are_options_of_a_server),
                                     cmocka_unit_test(rows_of_a_step),
                                     cmocka_unit_test(a_second_table),
                                     cmocka_unit_test(names_that_are_no_options),
                                     cmocka_unit_test(options_of_other_servers),
                                     cmocka_unit_test(names_with_underscores),
                                     cmocka_unit_test(variables_that_are_no_options),
                                     cmocka_unit_test(colours_are_a_wish),
                                     cmocka_unit_test(words_that_are_models),
                                     cmocka_unit_test(environment_and_file_yield_to_flags),
                                     cmocka_unit_test(lists_are_replaced),
                                     cmocka_unit_test(id_lists)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
