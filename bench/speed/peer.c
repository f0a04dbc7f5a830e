/* SPDX-License-Identifier: MIT */
/* weft bench peer: requests that share a system prompt, against weft's server and against the llama-server of an existing
 * llama.cpp build, in turns A B A B, so that a noisy machine does the same to both. The ratio is that of the medians; beside
 * it stand the smallest and the largest ratio of one turn. Prefill and decode beside such builds: bench/peers/run.py. */
#include <jansson.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/lab/lab.h"
#include "bench/speed/bench.h"
#include "bench/speed/measure.h"
#include "bench/speed/serving.h"

extern char **environ;

enum { TURNS_MAX = 64 };

/* What the turns say: medians, largest less smallest, ratios of turns. */
typedef struct peer_summary {
  double ours, theirs, ours_spread, theirs_spread, ratio_min, ratio_max;
  uint32_t n; /* turns that count */
} peer_summary;

static double spread_of(const double *sorted, uint32_t n) {
  return n == 0 ? 0.0 : sorted[n - 1] - sorted[0];
}

static peer_summary sum_up(const double *ours, const double *theirs, uint32_t n_turns) {
  double a[TURNS_MAX], b[TURNS_MAX];
  peer_summary s = {.n = 0};
  for (uint32_t i = 0; i < n_turns; i++) {
    if (theirs[i] <= 0.0 || ours[i] <= 0.0) continue;
    double ratio = theirs[i] / ours[i];
    s.ratio_min = s.n == 0 || ratio < s.ratio_min ? ratio : s.ratio_min;
    s.ratio_max = ratio > s.ratio_max ? ratio : s.ratio_max;
    a[s.n] = ours[i];
    b[s.n++] = theirs[i];
  }
  s.ours = weft_median(a, s.n); /* sorts */
  s.theirs = weft_median(b, s.n);
  s.ours_spread = spread_of(a, s.n);
  s.theirs_spread = spread_of(b, s.n);
  return s;
}

static json_t *record_of(const peer_summary *s) {
  return json_pack("{s:s, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:s, s:i}", "work", "shared system prompt", "weft",
                   s->ours, "weft_spread", s->ours_spread, "peer", s->theirs, "peer_spread", s->theirs_spread, "ratio",
                   s->n == 0 ? 0.0 : s->theirs / s->ours, "ratio_min", s->ratio_min, "ratio_max", s->ratio_max, "unit",
                   "s", "turns", (int)s->n);
}

int weft_serving_vocabulary(const char *path, uint32_t *n_vocab) {
  weft_gguf *gguf;
  weft_error error = {{0}};
  weft_status status = weft_gguf_open(path, &gguf, &error);
  if (status != WEFT_OK) return weft_cli_fail(weft_cli_code(status), "%s", error.text);
  *n_vocab = (uint32_t)weft_gguf_count(gguf, "tokenizer.ggml.tokens");
  weft_gguf_close(gguf);
  return *n_vocab > 1 ? 0 : weft_cli_fail(WEFT_EXIT_LOAD, "%s has no vocabulary", path);
}

static pid_t start_llama_server(const weft_lab_config *config, uint16_t port) {
  char path[1024], port_text[16], threads[16];
  (void)snprintf(path, sizeof path, "%s/llama-server", config->llama);
  (void)snprintf(port_text, sizeof port_text, "%u", port);
  (void)snprintf(threads, sizeof threads, "%u",
                 config->product.threads > 0 ? config->product.threads : (uint32_t)sysconf(_SC_NPROCESSORS_ONLN));
  const char *argv[] = {path,
                        "-m",
                        config->product.models.item[0],
                        "-np",
                        "16",
                        "-c",
                        "16384",
                        "-t",
                        threads,
                        "--port",
                        port_text,
                        "--host",
                        "127.0.0.1",
                        "--log-disable",
                        NULL};
  pid_t pid = -1;
  if (access(path, X_OK) != 0) return -1;
  posix_spawn_file_actions_t actions;
  (void)posix_spawn_file_actions_init(&actions); /* cannot fail on Linux */
  (void)posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", 1, 0);
  (void)posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", 1, 0);
  if (posix_spawn(&pid, path, &actions, NULL, (char *const *)(uintptr_t)argv, environ) != 0) pid = -1;
  (void)posix_spawn_file_actions_destroy(&actions); /* nothing to lose */
  for (uint32_t i = 0; pid > 0 && i < 600; i++) {
    weft_text text = {0};
    int status = weft_client_request(port, "GET", "/health", NULL, &text, 0);
    weft_text_free(&text);
    if (status == 200) return pid;
    (void)usleep(100000); /* woken early is fine */
  }
  return pid;
}

static int serve_both(const weft_lab_config *config, uint32_t n_vocab, uint32_t turn, double seconds[2],
                      uint64_t computed[2]) {
  weft_child child;
  int code = weft_serving_start(config, &child);
  if (code != 0) return code;
  weft_serving serving = {.port = child.port, .n_vocab = n_vocab, .seed = 900 + turn};
  code = weft_serving_run(&serving, &seconds[0], &computed[0]);
  (void)weft_child_stop(&child); /* its code would not change the measurement */
  if (code != 0) return code;
  serving.port = (uint16_t)(18080 + turn);
  serving.llama = true;
  pid_t pid = start_llama_server(config, serving.port);
  if (pid < 0) return weft_cli_fail(WEFT_EXIT_RUNTIME, "%s/llama-server could not be started", config->llama);
  code = weft_serving_run(&serving, &seconds[1], &computed[1]);
  (void)kill(pid, SIGTERM); /* ours: started above */
  (void)waitpid(pid, NULL, 0);
  return code;
}

static int compare_serving(const weft_lab_config *config, json_t *list) {
  double ours[TURNS_MAX], theirs[TURNS_MAX];
  uint64_t computed[2] = {0, 0};
  uint32_t n_vocab, n = config->repeat < TURNS_MAX ? config->repeat : TURNS_MAX;
  int code = weft_serving_vocabulary(config->product.models.item[0], &n_vocab);
  for (uint32_t turn = 0; turn < n && code == 0; turn++) {
    double seconds[2] = {0.0, 0.0};
    code = serve_both(config, n_vocab, turn, seconds, computed);
    ours[turn] = seconds[0];
    theirs[turn] = seconds[1];
  }
  if (code != 0) return code;
  peer_summary sum = sum_up(ours, theirs, n);
  json_t *record = record_of(&sum);
  (void)json_object_set_new(record, "prompt_tokens_computed", json_integer((json_int_t)computed[0]));
  (void)json_object_set_new(record, "peer_prompt_tokens_computed", json_integer((json_int_t)computed[1]));
  if (!config->product.json) {
    (void)printf("%-22s weft %9.2f s (%llu prompt tokens computed)   llama.cpp %9.2f s (%llu)   times faster %.2f\n",
                 "shared system prompt", sum.ours, (unsigned long long)computed[0], sum.theirs,
                 (unsigned long long)computed[1], json_number_value(json_object_get(record, "ratio")));
  }
  (void)json_array_append_new(list, record);
  return 0;
}

int weft_bench_peer(const weft_lab_config *config) {
  if (config->llama == NULL)
    return weft_cli_fail(WEFT_EXIT_USAGE, "bench peer: name the build's bin folder with --llama DIR");
  if (config->product.models.n != 1)
    return weft_cli_fail(WEFT_EXIT_USAGE, "bench peer: name one GGUF file with -m FILE");
  json_t *list = json_array();
  int code = compare_serving(config, list);
  if (config->product.json) weft_bench_print(list);
  json_decref(list);
  return code;
}
