/* SPDX-License-Identifier: MIT */
/* weft bench peer: this engine and an existing llama.cpp build on the same file, in turns A B A B, so that a noisy
 * machine does the same to both. The ratio is that of the medians; beside it stand the smallest and the largest ratio of
 * one turn. Its programs llama-bench, llama-batched-bench and
 * llama-server are looked for in --llama DIR; what is not there is left out and said so. */
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

enum { TURNS_MAX = 64, ROWS = 6 };

typedef struct peer_row {
  const char *name;
  weft_load load;
  bool prefill;
  double ours[TURNS_MAX], theirs[TURNS_MAX]; /* tok/s; theirs 0: the peer gave nothing in that turn */
} peer_row;

/* What the turns of one row say: medians, largest less smallest, ratios of turns. */
typedef struct peer_summary {
  double ours, theirs, ours_spread, theirs_spread, ratio_min, ratio_max;
  uint32_t n; /* turns that count */
} peer_summary;

static double spread_of(const double *sorted, uint32_t n) {
  return n == 0 ? 0.0 : sorted[n - 1] - sorted[0];
}

/* Larger is better: ours over theirs; else (seconds) theirs over ours. */
static peer_summary sum_up(const double *ours, const double *theirs, uint32_t n_turns, bool larger) {
  double a[TURNS_MAX], b[TURNS_MAX];
  peer_summary s = {.n = 0};
  for (uint32_t i = 0; i < n_turns; i++) {
    if (theirs[i] <= 0.0 || ours[i] <= 0.0) continue;
    double ratio = larger ? ours[i] / theirs[i] : theirs[i] / ours[i];
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

static json_t *record_of(const char *work, const peer_summary *s, const char *unit, bool larger) {
  double ratio = s->n == 0 ? 0.0 : larger ? s->ours / s->theirs : s->theirs / s->ours;
  return json_pack("{s:s, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:s, s:i}", "work", work, "weft", s->ours, "weft_spread",
                   s->ours_spread, "peer", s->theirs, "peer_spread", s->theirs_spread, "ratio", ratio, "ratio_min",
                   s->ratio_min, "ratio_max", s->ratio_max, "unit", unit, "turns", (int)s->n);
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

static int run_command(const char *command, weft_text *out) {
  FILE *pipe = popen(command, "r");
  if (pipe == NULL) return -1;
  char piece[4096];
  size_t n;
  weft_text_clear(out);
  while ((n = fread(piece, 1, sizeof piece, pipe)) > 0) weft_text_append(out, piece, n);
  return pclose(pipe);
}

/* tok/s of the first JSON object in text whose every key of want has its value; 0 when there is none. */
static double rate_in(json_t *list, const char *key, int wanted, const char *rate) {
  size_t i;
  json_t *item;
  json_array_foreach(list, i, item) {
    if (json_integer_value(json_object_get(item, key)) == wanted) return json_number_value(json_object_get(item, rate));
  }
  return 0.0;
}

static json_t *json_lines(char *text) {
  json_t *list = json_array();
  char *save = NULL;
  for (char *line = strtok_r(text, "\n", &save); line != NULL; line = strtok_r(NULL, "\n", &save)) {
    json_t *item = json_loads(line, 0, NULL);
    if (json_is_object(item)) (void)json_array_append(list, item);
    json_decref(item);
  }
  return list;
}

/* One turn of the peer: fills theirs[turn] of every row. */
static int run_peer(const weft_lab_config *config, peer_row *rows, uint32_t turn) {
  weft_text text = {0};
  char command[2048];
  const char *dir = config->llama, *file = config->product.models.item[0];
  uint32_t threads = config->product.threads > 0 ? config->product.threads : (uint32_t)sysconf(_SC_NPROCESSORS_ONLN);
  (void)snprintf(command, sizeof command, "'%s/llama-bench' -m '%s' -t %u -p %u -n %u -r 1 -o json 2>/dev/null", dir,
                 file, threads, config->n_prompt, config->n_generate);
  int failed = run_command(command, &text);
  json_t *list = failed ? NULL : json_loads(text.bytes == NULL ? "" : text.bytes, 0, NULL);
  rows[0].theirs[turn] = rate_in(list, "n_prompt", (int)config->n_prompt, "avg_ts");
  rows[1].theirs[turn] = rate_in(list, "n_gen", (int)config->n_generate, "avg_ts");
  json_decref(list);
  if (rows[0].theirs[turn] <= 0.0) {
    weft_text_free(&text);
    return weft_cli_fail(WEFT_EXIT_RUNTIME, "%s/llama-bench gave no result for %s", dir, file);
  }
  (void)snprintf(command, sizeof command,
                 "'%s/llama-batched-bench' -m '%s' -t %u -npp 16 -ntg %u -npl 4,16,32 -c 8192 --output-format jsonl "
                 "2>/dev/null",
                 dir, file, threads, config->n_generate);
  if (run_command(command, &text) == 0 && text.bytes != NULL) {
    list = json_lines(text.bytes);
    for (uint32_t i = 2; i < ROWS; i++) {
      rows[i].theirs[turn] = rate_in(list, "pl", (int)rows[i].load.n_parallel, "speed_tg");
    }
    json_decref(list);
  }
  weft_text_free(&text);
  return 0;
}

static int run_ours(weft_runtime *rt, peer_row *rows, uint32_t turn) {
  for (uint32_t i = 0; i < ROWS; i++) {
    weft_measured m;
    if (rows[i].name == NULL) continue;
    int code = weft_measure(rt, &rows[i].load, 5000u + turn, &m);
    if (code != 0) return code;
    rows[i].ours[turn] = rows[i].prefill ? rows[i].load.n_prompt / m.prefill_s : (double)m.n_tokens / m.generate_s;
  }
  return 0;
}

static json_t *report(const weft_lab_config *config, peer_row *rows, uint32_t n_turns) {
  json_t *list = json_array();
  for (uint32_t i = 0; i < ROWS; i++) {
    peer_row *r = &rows[i];
    if (r->name == NULL) continue;
    peer_summary sum = sum_up(r->ours, r->theirs, n_turns, true);
    json_t *record = record_of(r->name, &sum, "tok/s", true);
    if (!config->product.json) {
      (void)printf(
          "%-22s weft %9.1f tok/s (spread %.1f)   llama.cpp %9.1f tok/s (%.1f)   ratio %.2f, of turns %.2f to %.2f%s\n",
          r->name, sum.ours, sum.ours_spread, sum.theirs, sum.theirs_spread,
          json_number_value(json_object_get(record, "ratio")), sum.ratio_min, sum.ratio_max,
          sum.n == 0 ? " (the peer gave nothing)" : "");
    }
    (void)json_array_append_new(list, record);
  }
  return list;
}

/* ---- the shared-system-prompt run ---------------------------------------------------------------------------- */

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
  peer_summary sum = sum_up(ours, theirs, n, false);
  json_t *record = record_of("shared system prompt", &sum, "s", false);
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
  static peer_row rows[ROWS];
  uint32_t np = config->n_prompt, ng = config->n_generate, n = config->repeat < TURNS_MAX ? config->repeat : TURNS_MAX;
  rows[0] = (peer_row){.name = "prefill", .load = {np, 1, 1, false}, .prefill = true};
  rows[1] = (peer_row){.name = "decode, 1 at once", .load = {16, ng, 1, false}};
  rows[2] = (peer_row){.name = "decode, 4 at once", .load = {16, ng, 4, false}};
  rows[3] = (peer_row){.name = "decode, 16 at once", .load = {16, ng, 16, false}};
  rows[4] = (peer_row){.name = "decode, 32 at once", .load = {16, ng, 32, false}};
  weft_runtime *rt;
  int code = weft_cli_open(&config->product, &rt);
  if (code != 0) return code;
  if (weft_model_at(rt, 0).canvas > 0) rows[0].name = "prefill (encoder pass)";
  weft_measured warm;
  code = weft_measure(rt, &rows[0].load, 1, &warm);
  for (uint32_t turn = 0; turn < n && code == 0; turn++) {
    code = run_ours(rt, rows, turn);
    if (code == 0) code = run_peer(config, rows, turn);
  }
  weft_close(rt);
  if (code != 0) return code;
  json_t *list = report(config, rows, n);
  code = compare_serving(config, list);
  if (config->product.json) weft_bench_print(list);
  json_decref(list);
  return code;
}
