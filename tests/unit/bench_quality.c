/* SPDX-License-Identifier: MIT */
/* The parts of `weft perplexity` and `weft eval` that need no model: rows as distributions and their short form, files
 * of saved rows, windows of a text, noise, summaries, repetition. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "bench/quality/saved_rows.h"
#include "bench/quality/noise.h"
#include "bench/quality/repetition.h"
#include "bench/quality/summary.h"
#include "bench/quality/windows.h"

enum { VOCAB = 301, N_WINDOWS = 3, PER_WINDOW = 2 };

static float draw_float(uint64_t seed, uint32_t i) {
  weft_draw_key key = {seed, 0, WEFT_DRAW_TEST, i, 0};
  return weft_draw_uniform(&key);
}

static void draw_logits(uint64_t seed, float range, float *logits) {
  for (uint32_t v = 0; v < VOCAB; v++) logits[v] = range * (draw_float(seed, v) - 0.5f);
}

/* KL(a || b) in doubles, from the logits themselves. */
static double plain_divergence(const float *a, const float *b) {
  double za = 0.0, zb = 0.0, sum = 0.0;
  for (uint32_t v = 0; v < VOCAB; v++) {
    za += exp((double)a[v]);
    zb += exp((double)b[v]);
  }
  for (uint32_t v = 0; v < VOCAB; v++) {
    sum += exp((double)a[v]) / za * ((double)a[v] - log(za) - (double)b[v] + log(zb));
  }
  return sum;
}

static weft_saved_row *keep(const float *logits, uint32_t token) {
  weft_saved_row *row = malloc(weft_saved_row_bytes(VOCAB));
  assert_non_null(row);
  weft_score score = weft_score_row(logits, VOCAB, token);
  assert_false(score.bad);
  weft_shorten_row(logits, VOCAB, &score, row);
  assert_true(weft_saved_row_is_sound(row, VOCAB));
  return row;
}

static double divergence(const weft_saved_row *saved, const float *logits) {
  weft_score score = weft_score_row(logits, VOCAB, 0);
  return weft_divergence(saved, logits, VOCAB, &score);
}

static void test_score(void **state) {
  (void)state;
  float logits[4] = {1.0f, 3.0f, 3.0f, -2.0f};
  weft_score score = weft_score_row(logits, 4, 0);
  double total = exp(1.0) + 2.0 * exp(3.0) + exp(-2.0);
  assert_int_equal(score.top, 1);
  assert_float_equal(score.nll, log(total) - 1.0, 1e-6);
  logits[3] = NAN;
  assert_true(weft_score_row(logits, 4, 0).bad);
  logits[3] = -INFINITY;
  assert_true(weft_score_row(logits, 4, 0).bad);
}

static void test_divergence(void **state) {
  (void)state;
  static const float ranges[] = {0.01f, 1.0f, 8.0f, 31.0f};
  float a[VOCAB], b[VOCAB];
  for (uint32_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
    draw_logits(i, ranges[i], a);
    weft_saved_row *saved = keep(a, 7);
    assert_true(divergence(saved, a) == 0.0);                /* exactly */
    for (uint32_t v = 0; v < VOCAB; v++) b[v] = a[v] + 5.0f; /* the same distribution */
    assert_true(divergence(saved, b) < 1e-9);
    for (uint32_t k = 0; k < 20; k++) {
      draw_logits(100 + k, ranges[i], b);
      double want = plain_divergence(a, b), got = divergence(saved, b);
      assert_true(fabs(got - want) <= 1e-7 + 1e-4 * want);
    }
    free(saved);
  }
}

/* A token that the saved row knows well, and the other puts far below all others, is seen at its full distance. */
static void test_far_apart(void **state) {
  (void)state;
  float a[VOCAB] = {0}, b[VOCAB] = {0};
  a[3] = 20.0f;
  b[3] = -100.0f;
  weft_saved_row *saved = keep(a, 3);
  double want = plain_divergence(a, b);
  assert_true(want > 100.0);
  assert_float_equal(divergence(saved, b), want, 1e-2);
  free(saved);
  a[3] = 0.0f; /* all equal: no steps */
  saved = keep(a, 0);
  assert_true(saved->step == 0.0f && divergence(saved, a) == 0.0);
  assert_float_equal(divergence(saved, b), plain_divergence(a, b), 1e-6);
  free(saved);
}

/* Tokens more than 32 nats below the largest are saved as 32 below it. */
static void test_tail(void **state) {
  (void)state;
  float a[VOCAB] = {0};
  for (uint32_t v = 1; v < VOCAB; v++) a[v] = -20.0f - (float)v;
  weft_saved_row *saved = keep(a, 0);
  assert_true(divergence(saved, a) == 0.0);
  for (uint32_t v = 100; v < VOCAB; v++) a[v] = -1000.0f;
  assert_true(divergence(saved, a) < 1e-9);
  free(saved);
}

/* ---- files ---- */

static weft_saved_header header_of(void) {
  weft_saved_header h;
  memset(&h, 0, sizeof h);
  (void)snprintf(h.model, sizeof h.model, "some model");
  h.n_vocab = VOCAB;
  h.context = 8;
  h.n_windows = N_WINDOWS;
  h.rows_per_window = PER_WINDOW;
  h.vocabulary = 5;
  h.text = 6;
  return h;
}

static void make_path(char path[64]) {
  (void)snprintf(path, 64, "/tmp/weft-saved-XXXXXX");
  int fd = mkstemp(path);
  assert_true(fd >= 0);
  (void)close(fd);
}

static void write_rows(const char *path) {
  weft_saved_header h = header_of();
  weft_saved_file *file;
  weft_error error = {{0}};
  float logits[VOCAB];
  assert_int_equal(weft_saved_create(path, &h, &file, &error), WEFT_OK);
  for (uint32_t i = 0; i < N_WINDOWS * PER_WINDOW; i++) {
    draw_logits(i, 9.0f, logits);
    weft_saved_row *row = keep(logits, i);
    assert_int_equal(weft_saved_write(file, row, &error), WEFT_OK);
    free(row);
  }
  assert_int_equal(weft_saved_close(file, &error), WEFT_OK);
}

/* Reads all rows; the status of what failed, with its line in error. */
static weft_status read_rows(const char *path, const weft_saved_header *wanted, weft_error *error) {
  weft_saved_file *file;
  weft_saved_row *row = malloc(weft_saved_row_bytes(VOCAB));
  float logits[VOCAB];
  bool same = true;
  weft_status status = weft_saved_open(path, wanted, &file, error);
  for (uint32_t i = 0; i < N_WINDOWS * PER_WINDOW && status == WEFT_OK; i++) {
    status = weft_saved_read(file, row, error);
    draw_logits(i, 9.0f, logits);
    same = same && status == WEFT_OK && divergence(row, logits) == 0.0;
  }
  if (status == WEFT_OK) assert_true(same);
  if (file != NULL) assert_int_equal(weft_saved_close(file, NULL), WEFT_OK);
  free(row);
  return status;
}

static void refuse(const char *path, const weft_saved_header *wanted, weft_status status, const char *words) {
  weft_error error = {{0}};
  assert_int_equal(read_rows(path, wanted, &error), status);
  if (strstr(error.text, words) == NULL) print_error("'%s' lacks '%s'\n", error.text, words);
  assert_non_null(strstr(error.text, words));
  assert_null(strchr(error.text, '\n'));
}

static void test_file(void **state) {
  (void)state;
  char path[64];
  weft_error error = {{0}};
  make_path(path);
  write_rows(path);
  weft_saved_header h = header_of(), other;
  assert_int_equal(read_rows(path, &h, &error), WEFT_OK);
#define OTHER(change, words)                     \
  do {                                           \
    other = h;                                   \
    other.change;                                \
    refuse(path, &other, WEFT_E_INVALID, words); \
  } while (0)
  OTHER(vocabulary = 1, "vocabulary is not this model's");
  OTHER(n_vocab = 300, "vocabulary is not this model's");
  OTHER(context = 9, "saved with -c 8");
  OTHER(stride = 2, "--stride 0");
  OTHER(n_windows = 2, "has 3 windows, this run 2");
  OTHER(n_levels = 1, "--mode autoregressive");
  OTHER(seed = 1, "another --noise or --seed");
  OTHER(text = 1, "another text");
#undef OTHER
  (void)unlink(path);
  refuse(path, &h, WEFT_E_IO, "No such file");
}

static void change_byte(const char *path, long at) {
  FILE *file = fopen(path, "r+b");
  assert_non_null(file);
  assert_int_equal(fseek(file, at, SEEK_SET), 0);
  int byte = fgetc(file);
  assert_int_equal(fseek(file, at, SEEK_SET), 0);
  assert_int_equal(fputc(byte ^ 1, file), byte ^ 1);
  assert_int_equal(fclose(file), 0);
}

static void test_damage(void **state) {
  (void)state;
  char path[64];
  weft_saved_header h = header_of();
  long row = (long)weft_saved_row_bytes(VOCAB), window = PER_WINDOW * row + 8;
  make_path(path);
  static const struct {
    long cut;
    const char *words;
  } cuts[] = {{0, "not written by"}, {100, "damaged"}, {WEFT_SAVED_HEADER, "bytes, a whole file"}};
  for (uint32_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
    write_rows(path);
    assert_int_equal(truncate(path, cuts[i].cut), 0);
    refuse(path, &h, WEFT_E_FORMAT, cuts[i].words);
  }
  write_rows(path);
  assert_int_equal(truncate(path, WEFT_SAVED_HEADER + N_WINDOWS * window - 1), 0);
  refuse(path, &h, WEFT_E_FORMAT, "bytes, a whole file");
  write_rows(path);
  change_byte(path, 3);
  refuse(path, &h, WEFT_E_FORMAT, "not written by");
  write_rows(path);
  change_byte(path, 40);
  refuse(path, &h, WEFT_E_FORMAT, "header is damaged");
  for (long at = 12; at < window; at += 97) { /* any byte of the second window's numbers, and of its checksum */
    write_rows(path);
    change_byte(path, WEFT_SAVED_HEADER + window + at);
    refuse(path, &h, WEFT_E_FORMAT, "is damaged in window 2");
  }
  (void)unlink(path);
}

/* A pipe has no size: it is read to where it ends. */
static void test_pipe(void **state) {
  (void)state;
  char path[64], through[64];
  weft_saved_header h = header_of();
  weft_error error = {{0}};
  for (uint32_t cut = 0; cut < 2; cut++) {
    make_path(path);
    write_rows(path);
    if (cut == 1) assert_int_equal(truncate(path, WEFT_SAVED_HEADER + 700), 0);
    char command[160];
    (void)snprintf(command, sizeof command, "cat %s", path);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    (void)snprintf(through, sizeof through, "/dev/fd/%d", fileno(pipe));
    if (cut == 0) assert_int_equal(read_rows(through, &h, &error), WEFT_OK);
    if (cut == 1) refuse(through, &h, WEFT_E_FORMAT, "ends early, in window 1 of 3");
    (void)pclose(pipe);
    (void)unlink(path);
  }
}

static void test_full_disk(void **state) {
  (void)state;
  weft_saved_header h = header_of();
  weft_saved_file *file;
  weft_error error = {{0}};
  assert_int_equal(weft_saved_create("/dev/full", &h, &file, &error), WEFT_E_IO);
  assert_non_null(strstr(error.text, "/dev/full: No space left on device"));
  assert_int_equal(weft_saved_create("/no/such/folder/file", &h, &file, &error), WEFT_E_IO);
  assert_non_null(strstr(error.text, "No such file or directory"));
}

/* ---- noise and summaries ---- */

static void test_noise(void **state) {
  (void)state;
  enum { N = 40 };
  int32_t text[N], few[N], many[N];
  uint8_t in_few[N], in_many[N];
  for (int32_t i = 0; i < N; i++) text[i] = 1000 + i;
  assert_int_equal(weft_noise_count(0.001f, N), 1);
  assert_int_equal(weft_noise_count(0.5f, N), 20);
  assert_int_equal(weft_noise_count(1.0f, N), N);
  weft_noise_add(text, N, 77, 0.25f, 3, 500, few, in_few);
  weft_noise_add(text, N, 77, 0.75f, 3, 500, many, in_many);
  uint32_t n_few = 0, n_many = 0;
  for (uint32_t i = 0; i < N; i++) {
    n_few += in_few[i];
    n_many += in_many[i];
    assert_true(in_few[i] <= in_many[i]); /* a higher level keeps the lower one's places and tokens */
    if (in_few[i] != 0) assert_int_equal(few[i], many[i]);
    if (in_few[i] == 0) assert_int_equal(few[i], text[i]);
    if (in_many[i] != 0) assert_in_range(many[i], 0, 499);
  }
  assert_int_equal(n_few, 10);
  assert_int_equal(n_many, 30);
  weft_noise_add(text, N, 78, 0.75f, 3, 500, few, in_few); /* another place in the text */
  assert_memory_not_equal(in_few, in_many, N);
}

static void test_summary(void **state) {
  (void)state;
  float values[6] = {1, 2, 3, 5, 7, 12}, minus[6] = {1, 1, 1, 1, 1, 1};
  weft_moments m = weft_moments_of(values, 6);
  assert_float_equal(m.mean, 5.0, 1e-12);
  assert_float_equal(m.standard_error, sqrt((16 + 9 + 4 + 0 + 4 + 49) / 6.0 / 5.0), 1e-12);
  weft_interval i = weft_interval_of(values, NULL, 2, 3); /* windows with the means 2 and 8 */
  assert_true(i.known);
  assert_float_equal(i.high - i.low, 2 * 12.706 * 3.0, 1e-9);
  assert_float_equal(i.high + i.low, 10.0, 1e-9);
  weft_interval j = weft_interval_of(values, minus, 6, 1);
  assert_float_equal(j.high + j.low, 8.0, 1e-9);
  assert_float_equal(j.high - j.low, 2 * 2.571 * sqrt(82.0 / 5.0 / 6.0), 1e-9);
  assert_false(weft_interval_of(values, NULL, 1, 6).known);
  float mixed[5] = {4, 1, 5, 2, 3};
  weft_sort_floats(mixed, 5);
  assert_float_equal(weft_quantile(mixed, 5, 0.5), 3.0, 0);
  assert_float_equal(weft_quantile(mixed, 5, 0.99), 4.96, 1e-9);
  assert_float_equal(weft_quantile(mixed, 1, 0.99), 1.0, 0);
}

/* The t distribution's table, by way of intervals of numbers whose deviation is known. */
static void test_interval_of_many(void **state) {
  (void)state;
  static const struct {
    uint32_t n;
    double t;
  } known[] = {{12, 2.201}, {31, 2.042}, {121, 1.980}};
  for (uint32_t k = 0; k < 3; k++) {
    float values[128];
    double mean = 0.0, square = 0.0;
    for (uint32_t i = 0; i < known[k].n; i++) mean += (double)(values[i] = draw_float(k, i)) / known[k].n;
    for (uint32_t i = 0; i < known[k].n; i++) square += ((double)values[i] - mean) * ((double)values[i] - mean);
    weft_interval i = weft_interval_of(values, NULL, known[k].n, 1);
    double of_mean = sqrt(square / (known[k].n - 1) / known[k].n);
    assert_float_equal((i.high - i.low) / 2.0 / of_mean, known[k].t, 6e-4);
  }
}

/* ---- windows ---- */

static weft_status open_windows(const char *text, size_t n, const weft_windows_config *config, weft_windows *w,
                                weft_error *error) {
  weft_gguf *gguf;
  weft_tokenizer *tokenizer;
  weft_status status = weft_gguf_open(WEFT_SOURCE_DIR "/tests/golden/models/ar-base.gguf", &gguf, error);
  assert_int_equal(status, WEFT_OK);
  assert_int_equal(weft_tokenizer_open(gguf, &tokenizer, error), WEFT_OK);
  status = weft_windows_check(config, error);
  if (status == WEFT_OK) status = weft_windows_open(tokenizer, config, "text", text, n, w, error);
  weft_tokenizer_close(tokenizer);
  weft_gguf_close(gguf);
  return status;
}

static void test_windows(void **state) {
  (void)state;
  weft_windows w;
  weft_error error = {{0}};
  weft_windows_config config = {.context = 8};
  int32_t got[8];
  static const char text[] = "zyxwvqpkjhgzyxwvqpkjhgzyxw\n"; /* bos and 26 letters that nothing merges */
  assert_int_equal(open_windows(text, sizeof text - 1, &config, &w, &error), WEFT_OK);
  assert_int_equal(w.tokens.n, 27);
  assert_int_equal(w.n, 3);
  assert_int_equal(weft_windows_first(&config), 5);
  weft_windows_get(&w, 1, got);
  assert_int_equal(got[0], 2); /* bos in place of the text's token */
  assert_memory_equal(got + 1, w.tokens.ids + 9, 7 * sizeof *got);
  uint64_t hash = w.hash;
  weft_windows_close(&w);
  config.n_max = 2;
  assert_int_equal(open_windows(text, sizeof text - 1, &config, &w, &error), WEFT_OK);
  assert_int_equal(w.n, 2);
  assert_true(w.hash != hash);
  weft_windows_close(&w);
  config = (weft_windows_config){.context = 8, .stride = 3};
  assert_int_equal(open_windows(text, sizeof text - 1, &config, &w, &error), WEFT_OK);
  assert_int_equal(w.n, 7); /* (27 - 8 + 2) / 3 */
  assert_int_equal(weft_windows_first(&config), 5);
  weft_windows_get(&w, 6, got);
  assert_memory_equal(got, w.tokens.ids + 18, 8 * sizeof *got);
  weft_windows_close(&w);
}

static void test_windows_refused(void **state) {
  (void)state;
  static const struct {
    const char *text;
    size_t n;
    weft_windows_config config;
    const char *words;
  } cases[] = {{"", 0, {.context = 8}, "text is empty"},
               {"\n", 1, {.context = 8}, "text is empty"},
               {"abc", 3, {.context = 8}, "text has 4 tokens, a window 8"},
               {"ab\xff\xfe", 4, {.context = 4}, "text: byte 2 is not UTF-8"},
               {"abcdefgh", 8, {.context = 3}, "-c 3: a window has at least 4"},
               {"abcdefgh", 8, {.context = 4, .stride = 4}, "--stride 4"}};
  for (uint32_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    weft_windows w;
    weft_error error = {{0}};
    assert_int_equal(open_windows(cases[i].text, cases[i].n, &cases[i].config, &w, &error), WEFT_E_INVALID);
    if (strstr(error.text, cases[i].words) == NULL) print_error("'%s' lacks '%s'\n", error.text, cases[i].words);
    assert_non_null(strstr(error.text, cases[i].words));
  }
}

static void test_repetition(void **state) {
  (void)state;
  int32_t tokens[40];
  weft_repetition r = {0};
  weft_repetition_add(&r, NULL, 0);
  for (int32_t i = 0; i < 40; i++) tokens[i] = i;
  weft_repetition_add(&r, tokens, 7); /* shorter than a gram */
  assert_true(weft_repetition_share(&r) == 0.0);
  assert_int_equal(r.longest_run, 1);
  weft_repetition_add(&r, tokens, 40); /* 33 grams, none twice */
  assert_int_equal(r.n_grams, 33);
  assert_true(weft_repetition_share(&r) == 0.0);
  for (int32_t i = 0; i < 40; i++) tokens[i] = i % 10; /* a loop: all grams but the first ten */
  weft_repetition_add(&r, tokens, 40);
  assert_int_equal(r.n_grams, 66);
  assert_int_equal(r.n_repeated, 23);
  for (int32_t i = 20; i < 29; i++) tokens[i] = 3; /* one token nine times, and 0 to 9 three times around it */
  weft_repetition other = {0};
  weft_repetition_add(&other, tokens, 40);
  assert_int_equal(other.longest_run, 9);
  assert_int_equal(other.n_repeated, 3 + 1 + 4);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_score),
                                     cmocka_unit_test(test_divergence),
                                     cmocka_unit_test(test_far_apart),
                                     cmocka_unit_test(test_tail),
                                     cmocka_unit_test(test_file),
                                     cmocka_unit_test(test_damage),
                                     cmocka_unit_test(test_pipe),
                                     cmocka_unit_test(test_full_disk),
                                     cmocka_unit_test(test_noise),
                                     cmocka_unit_test(test_summary),
                                     cmocka_unit_test(test_interval_of_many),
                                     cmocka_unit_test(test_windows),
                                     cmocka_unit_test(test_windows_refused),
                                     cmocka_unit_test(test_repetition)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
