/* SPDX-License-Identifier: MIT */
/* The entropy-bound rule against traces of the reference implementation with injected draws
 * (files of tests/golden/sampler, see tests/golden/README.md). */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "bench/doubles/canvas_step.h"
#include "model/sampler.h"
#include "tests/support/golden_floats.h"

enum { N_MAX = 512, V_MAX = 4096 };

typedef struct golden {
  char name[128];
  float *floats;
  uint32_t n_vocab, n;
  weft_entropy_bound params;
  uint32_t step;
  int32_t history[WEFT_STABILITY_MAX * N_MAX];
  uint32_t n_history;
  float temperature, entropy[N_MAX];
  long logits_at, entropy_at;
  int32_t drawn[N_MAX], renoise[N_MAX], argmax[N_MAX], next[N_MAX], our_argmax[N_MAX], our_next[N_MAX];
  uint8_t accepted[N_MAX], our_accepted[N_MAX];
  uint32_t order[N_MAX];
  uint32_t n_steps, n_cases;
} golden;

static float *read_floats(const char *path, long n) {
  FILE *file = fopen(path, "rb");
  assert_non_null(file);
  float *floats = malloc((size_t)n * sizeof *floats);
  assert_non_null(floats);
  assert_int_equal(fread(floats, sizeof *floats, (size_t)n, file), n);
  fclose(file);
  return floats;
}

static void read_ids(const char *text, int32_t *out, uint32_t n) {
  for (uint32_t i = 0; i < n; i++) {
    out[i] = (int32_t)strtol(text, (char **)&text, 10);
    if (*text == ',') text++;
  }
}

/* Entropy and argmax of softmax(logits / t), as head_stats defines them, in double. */
static void check_statistics(golden *g) {
  for (uint32_t i = 0; i < g->n; i++) {
    const float *logit = g->floats + g->logits_at + (size_t)i * g->n_vocab;
    uint32_t best = 0;
    for (uint32_t v = 1; v < g->n_vocab; v++) best = logit[v] > logit[best] ? v : best;
    assert_int_equal(best, g->argmax[i]);
    double total = 0.0, weighted = 0.0, t = (double)g->temperature;
    for (uint32_t v = 0; v < g->n_vocab; v++) {
      double z = ((double)logit[v] - (double)logit[best]) / t, e = exp(z);
      total += e;
      if (e > 0.0) weighted += e * z;
    }
    assert_float_equal(log(total) - weighted / total, g->floats[g->entropy_at + i], 2e-4);
  }
}

static void check_step(golden *g, int stop) {
  float t = weft_entropy_bound_temperature(&g->params, g->step);
  /* the reference subtracts t_max - t_min in double, we in float: one unit in the last place */
  if (fabsf(t - g->temperature) > 2e-7f * g->temperature)
    fail_msg("%s step %u: temperature %.9g, expected %.9g", g->name, g->step, (double)t, (double)g->temperature);
  check_statistics(g);
  memcpy(g->entropy, g->floats + g->entropy_at, g->n * sizeof(float));
  weft_host_canvas canvas = {.n = g->n, .n_history = g->n_history, .history = g->history, .order = g->order};
  canvas.argmax = g->argmax, canvas.drawn = g->drawn, canvas.fresh = g->renoise, canvas.entropy = g->entropy;
  canvas.next = g->our_next, canvas.accepted = g->our_accepted;
  bool stopped = weft_host_canvas_step(&canvas, &g->params, g->step).stopped != 0;
  for (uint32_t i = 0; i < g->n; i++) {
    if (g->our_accepted[i] != g->accepted[i])
      fail_msg("%s step %u position %u: accepted %d", g->name, g->step, i, g->our_accepted[i]);
    assert_int_equal(g->our_next[i], g->next[i]);
  }
  if (stopped != (stop != 0)) fail_msg("%s step %u: stopped %d, expected %d", g->name, g->step, stopped, stop);
  g->n_history = canvas.n_history;
  g->step++;
  g->n_steps++;
}

static void take_line(golden *g, char *line) {
  int stop;
  if (sscanf(line, "case %127s", g->name) == 1) {
    g->n_cases++;
  } else if (sscanf(line, "sizes %u %u", &g->n_vocab, &g->n) == 2) {
    assert_true(g->n <= N_MAX);
  } else if (strncmp(line, "params ", 7) == 0) {
    weft_entropy_bound *p = &g->params;
    *p = weft_entropy_bound_default();
    assert_int_equal(sscanf(line, "params %u %f %f %f %d %f", &p->max_steps, &p->t_min, &p->t_max, &p->entropy_bound,
                            &p->stability, &p->confidence),
                     6);
  } else if (strncmp(line, "block ", 6) == 0) {
    g->step = 0;
    g->n_history = 0;
  } else if (sscanf(line, "step %f %ld %ld", &g->temperature, &g->logits_at, &g->entropy_at) == 3) {
  } else if (strncmp(line, "drawn ", 6) == 0) {
    read_ids(line + 6, g->drawn, g->n);
  } else if (strncmp(line, "renoise ", 8) == 0) {
    read_ids(line + 8, g->renoise, g->n);
  } else if (strncmp(line, "argmax ", 7) == 0) {
    read_ids(line + 7, g->argmax, g->n);
  } else if (strncmp(line, "accepted ", 9) == 0) {
    for (uint32_t i = 0; i < g->n; i++) g->accepted[i] = line[9 + i] == '1';
  } else if (strncmp(line, "next ", 5) == 0) {
    read_ids(line + 5, g->next, g->n);
  } else if (sscanf(line, "stop %d", &stop) == 1) {
    check_step(g, stop);
  }
}

/* packed: the floats are in 24 bits each. Those of `injected` have ties, which only whole floats keep. */
static void run_file(const char *stem, bool packed) {
  char path[256];
  static char line[1 << 16];
  long n_floats = 0;
  golden *g = calloc(1, sizeof *g);
  snprintf(path, sizeof path, WEFT_SOURCE_DIR "/tests/golden/sampler/%s.txt", stem);
  FILE *file = fopen(path, "r");
  assert_non_null(file);
  while (fgets(line, sizeof line, file) != NULL) {
    if (sscanf(line, "n_floats %ld", &n_floats) == 1) {
      snprintf(path, sizeof path, WEFT_SOURCE_DIR "/tests/golden/sampler/%s%s", stem, packed ? "" : ".f32");
      g->floats = packed ? golden_floats_read(path, (uint64_t)n_floats) : read_floats(path, n_floats);
      assert_non_null(g->floats);
    } else {
      take_line(g, line);
    }
  }
  fclose(file);
  assert_true(g->n_steps >= 10);
  print_message("%s: %u cases, %u steps\n", stem, g->n_cases, g->n_steps);
  free(g->floats);
  free(g);
}

static void injected(void **state) {
  (void)state;
  run_file("injected", false);
}

static void random_logits(void **state) {
  (void)state;
  run_file("random", true);
}

static void generated(void **state) {
  (void)state;
  run_file("generate", true);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(injected), cmocka_unit_test(random_logits),
                                     cmocka_unit_test(generated)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
