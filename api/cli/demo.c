/* SPDX-License-Identifier: MIT */
/* weft demo: serves the demo model over HTTP and shows, in a few lines, what weft is for: canvases being denoised and
 * sequences being decoded in the same steps of one model, two models taking turns over one pool, then tokens that a
 * canvas guesses. Every number of the first two is read from the server's /metrics; the demo fails when they do not
 * show it. */
#include <errno.h>
#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/cli/child.h"
#include "api/cli/cli.h"
#include "api/cli/client.h"
#include "api/cli/demo_canvas.h"
#include "api/cli/demo_drafts.h"
#include "api/cli/metric.h"
#include "base/path.h"
#include "base/threads.h"

enum { WORKERS = 16, ROUNDS = 6 };

static const char *const questions[] = {
    "Sort from low to high: 41 77 23 95 10 68",
    "Write 30036791 backwards.",
    "What is 58 + 37?",
    "List all numbers from 34 to 49.",
    "Make this lower case: CUP ANT CAT MOUSE",
    "Count pink in: wolf pink pink pink",
    "Write a sentence with the words elk and hat. Use 6 to 9 words. End with .",
    "Write this as a table: Ana 93 Dakar; Zoe 46 Lima; Sam 48 Seoul; Ida 24 Lima",
    "Write a JSON record with name, age and pet: Dan lives in Sofia, has a frog and is 96 years old.",
    "Say these words backwards: brown owl lion sheep ring coat black",
};
enum { N_QUESTIONS = sizeof questions / sizeof *questions };

typedef struct worker {
  uint16_t port;
  const char *model;
  bool diffusion;
  uint32_t index, n_failed;
  bool shown;
  _Atomic uint32_t *n_decoding; /* workers that still ask token by token: the others go on as long */
} worker;

static char *body_of(const char *model, const char *question, bool diffusion) {
  json_t *root = json_pack("{s:s, s:[{s:s, s:s}], s:i, s:f, s:i, s:s}", "model", model, "messages", "role", "user",
                           "content", question, "max_tokens", 64, "temperature", 0.0, "seed", 7, "mode",
                           diffusion ? "diffusion" : "autoregressive");
  char *body = json_dumps(root, JSON_COMPACT);
  json_decref(root);
  return body;
}

static char *answer_of(const char *body) {
  json_t *root = json_loads(body, 0, NULL);
  json_t *message = json_object_get(json_array_get(json_object_get(root, "choices"), 0), "message");
  const char *text = json_string_value(json_object_get(message, "content"));
  char *copy = text == NULL ? NULL : strdup(text);
  json_decref(root);
  return copy;
}

static void show_answer(const worker *w, const char *question, const char *answer) {
  char line[512];
  (void)snprintf(line, sizeof line, "%s", answer);
  for (char *c = line; *c != 0; c++) *c = *c == '\n' ? ' ' : *c;
  (void)printf("  %-13s %s\n  %13s -> %s\n", w->diffusion ? "diffusion" : "token by token", question, "", line);
}

static void *ask_questions(void *self) {
  worker *w = self;
  for (uint32_t round = 0; round < ROUNDS || (w->diffusion && atomic_load(w->n_decoding) > 0); round++) {
    const char *question = questions[(w->index + round) % N_QUESTIONS];
    weft_text answer = {0};
    char *body = body_of(w->model, question, w->diffusion);
    int status = body == NULL ? -1 : weft_client_request(w->port, "POST", "/v1/chat/completions", body, &answer, 0);
    char *text = status == 200 ? answer_of(answer.bytes) : NULL;
    if (text == NULL) w->n_failed += 1;
    if (text != NULL && round == 0 && w->shown) show_answer(w, question, text);
    free(text);
    free(body);
    weft_text_free(&answer);
  }
  if (!w->diffusion) atomic_fetch_sub(w->n_decoding, 1);
  return NULL;
}

/* Half of the workers ask by diffusion, half token by token, of one model or of two in turn. */
static uint32_t run_load(uint16_t port, const char *const *models, uint32_t n_models, bool shown) {
  pthread_t thread[WORKERS];
  worker w[WORKERS];
  uint32_t n_started = 0, n_failed = 0;
  _Atomic uint32_t n_decoding = WORKERS / 2;
  for (uint32_t i = 0; i < WORKERS; i++) {
    bool canvas = i % 2 == 0;
    w[i] = (worker){.port = port,
                    .model = models[n_models == 1 ? 0 : i % n_models],
                    .diffusion = canvas,
                    .index = i / 2,
                    .shown = shown && i < 6,
                    .n_decoding = &n_decoding};
    if (weft_threads_start(&thread[i], ask_questions, &w[i], NULL) != WEFT_OK) break;
    n_started += 1;
  }
  if (n_started < WORKERS) atomic_store(&n_decoding, 0); /* no thread waits for threads that never started */
  for (uint32_t i = 0; i < n_started; i++) {
    (void)pthread_join(thread[i], NULL); /* started above */
    n_failed += w[i].n_failed;
  }
  return n_failed + (WORKERS - n_started);
}

static int read_metrics(uint16_t port, weft_text *out) {
  weft_text_clear(out);
  return weft_client_request(port, "GET", "/metrics", NULL, out, 0) == 200
             ? 0
             : weft_cli_fail(WEFT_EXIT_FAILED, "/metrics did not answer");
}

static int one_weight_set(const weft_config *config, const char *name) {
  weft_child child;
  const char *args[] = {"-m", config->models.item[0], "--kv-mib", "16", "--context", "1024", "--running", "16", NULL};
  if (weft_child_start(&child, args) != 0) return WEFT_EXIT_RUNTIME;
  weft_text text = {0};
  int code = weft_demo_canvas(config, child.port, name);
  if (code == 0) {
    (void)printf("\n%d clients, half by diffusion, half token by token, on one model:\n", WORKERS);
    (void)fflush(stdout); /* what follows takes a while */
    uint32_t n_failed = run_load(child.port, &name, 1, true);
    if (n_failed > 0) code = weft_cli_fail(WEFT_EXIT_FAILED, "%u requests failed", n_failed);
  }
  if (code == 0) code = read_metrics(child.port, &text);
  if (code == 0) {
    double steps = weft_metric(text.bytes, "weft_steps_total");
    double mixed = weft_metric(text.bytes, "weft_steps_mixed_total");
    (void)printf(
        "\n%.0f steps, %.0f of them mixed (%.0f %%): canvas rows and decode or prefill rows in one forward pass\n",
        steps, mixed, steps > 0 ? 100.0 * mixed / steps : 0.0);
    (void)printf("%.0f canvases in %.0f denoise steps; %.0f prompt tokens, %.0f of them from the prefix cache\n",
                 weft_metric(text.bytes, "weft_canvases_total"), weft_metric(text.bytes, "weft_denoise_steps_total"),
                 weft_metric(text.bytes, "vllm:prompt_tokens_total"),
                 weft_metric(text.bytes, "vllm:prefix_cache_hits_total"));
    (void)printf("peak memory of the server: %.1f MiB\n", (double)weft_child_kib(&child, "VmHWM") / 1024.0);
    if (mixed * 2.0 < steps) code = weft_cli_fail(WEFT_EXIT_FAILED, "less than half of the steps were mixed");
  }
  weft_text_free(&text);
  int stopped = weft_child_stop(&child);
  return code == 0 && stopped != 0 ? weft_cli_fail(WEFT_EXIT_FAILED, "the server ended with code %d", stopped) : code;
}

static int two_weight_sets(const weft_config *config, const char *const *names) {
  weft_child child;
  const char *args[] = {"-m",        config->models.item[0],
                        "-m",        config->models.item[1],
                        "--kv-mib",  "16",
                        "--context", "1024",
                        "--running", "16",
                        NULL};
  if (weft_child_start(&child, args) != 0) return WEFT_EXIT_RUNTIME;
  weft_text text = {0};
  int code = 0;
  uint32_t n_failed = run_load(child.port, names, 2, false);
  if (n_failed > 0) code = weft_cli_fail(WEFT_EXIT_FAILED, "%u requests failed", n_failed);
  if (code == 0) code = read_metrics(child.port, &text);
  if (code == 0) {
    double switches = weft_metric(text.bytes, "weft_switches_total");
    (void)printf(
        "\nTwo models over one pool (%s by diffusion, %s token by token):\n"
        "%.0f steps, the other model took its turn %.0f times\n",
        names[0], names[1], weft_metric(text.bytes, "weft_steps_total"), switches);
    if (switches < 2.0) code = weft_cli_fail(WEFT_EXIT_FAILED, "the two models did not alternate");
  }
  weft_text_free(&text);
  int stopped = weft_child_stop(&child);
  return code == 0 && stopped != 0 ? weft_cli_fail(WEFT_EXIT_FAILED, "the server ended with code %d", stopped) : code;
}

static void stem_of(const char *path, char *out, size_t n) {
  const char *slash = strrchr(path, '/');
  (void)snprintf(out, n, "%s", slash == NULL ? path : slash + 1);
  char *dot = strstr(out, ".gguf");
  if (dot != NULL) *dot = 0;
}

/* The demo models of an installation: beside the program, wherever it was moved to. file: [2][1024] */
static bool find_installed(char (*file)[1024]) {
  static const char *const names[] = {"weft-demo.gguf", "weft-demo-ar.gguf"};
  char folder[512];
  weft_path_own_folder(folder, sizeof folder);
  for (int i = 0; i < 2; i++) {
    char *whole, path[1024];
    (void)snprintf(path, sizeof path, "%s%s%s", folder, WEFT_DEMO_FROM_PROGRAM, names[i]);
    if (folder[0] == 0 || access(path, R_OK) != 0 || (whole = realpath(path, NULL)) == NULL) return false;
    (void)snprintf(file[i], sizeof file[i], "%s", whole);
    free(whole); /* of the C library */
  }
  return true;
}

int weft_cli_demo(const weft_config *config) {
  char name[2][1024], installed[2][1024];
  weft_config own = *config;
  if (own.models.n == 0 && find_installed(installed)) {
    own.models = (weft_text_list){.item = {installed[0], installed[1]}, .n = 2};
  }
  if (own.models.n != 2)
    return weft_cli_fail(WEFT_EXIT_USAGE,
                         "demo: name the diffusion and the autoregressive demo model, -m FILE -m FILE");
  for (uint32_t i = 0; i < 2; i++) stem_of(own.models.item[i], name[i], sizeof name[i]);
  const char *names[] = {name[0], name[1]}, *program = program_invocation_name;
  int code = one_weight_set(&own, names[0]);
  if (code == 0) code = two_weight_sets(&own, names);
  if (code == 0) code = weft_demo_drafts(own.models.item[0]);
  if (code == 0)
    (void)printf("\nTry it:  %s chat -m %s\n         %s serve -m %s --port 8080\n", program, own.models.item[0],
                 program, own.models.item[0]);
  return code;
}
