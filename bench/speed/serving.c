/* SPDX-License-Identifier: MIT */
/* weft bench serving: tenants that share a system prompt. 32 requests at once over HTTP, one 800-token shared
 * prefix and 40 own tokens each, 32 tokens generated, 16 running. Prints the wall time and how many prompt tokens
 * were computed. weft_serving_run also runs it against another server that speaks /completion, for `bench peer`. */
#include "bench/speed/serving.h"

#include <jansson.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "bench/lab/lab.h"
#include "bench/speed/bench.h"
#include "bench/speed/measure.h"

enum { REQUESTS = 32, SHARED = 800, OWN = 40, GENERATE = 32 };

typedef struct serving_worker {
  const weft_serving *serving;
  uint32_t index;
  bool failed;
  uint64_t n_computed;
} serving_worker;

static json_t *prompt_of(const weft_serving *s, uint32_t index) {
  json_t *list = json_array();
  for (uint32_t i = 0; i < SHARED + OWN; i++) {
    int32_t token = weft_prompt_token(s->seed, i < SHARED ? 0 : index + 1, i, s->n_vocab);
    (void)json_array_append_new(list, json_integer(token));
  }
  return list;
}

static void *run_client(void *self) {
  serving_worker *w = self;
  const weft_serving *s = w->serving;
  json_t *root = s->llama ? json_pack("{s:o, s:i, s:b, s:f, s:b}", "prompt", prompt_of(s, w->index), "n_predict",
                                      GENERATE, "ignore_eos", 1, "temperature", 0.0, "cache_prompt", 1)
                          : json_pack("{s:o, s:i, s:b, s:f, s:s}", "prompt", prompt_of(s, w->index), "max_tokens",
                                      GENERATE, "ignore_eos", 1, "temperature", 0.0, "mode", "autoregressive");
  char *body = json_dumps(root, JSON_COMPACT);
  weft_text answer = {0};
  int status = weft_client_request(s->port, "POST", s->llama ? "/completion" : "/v1/completions", body, &answer, 0);
  json_t *reply = status == 200 ? json_loads(answer.bytes, 0, NULL) : NULL;
  w->failed = reply == NULL;
  if (s->llama) {
    w->n_computed = (uint64_t)json_integer_value(json_object_get(json_object_get(reply, "timings"), "prompt_n"));
  } else {
    json_t *usage = json_object_get(reply, "usage");
    json_t *details = json_object_get(usage, "prompt_tokens_details");
    w->n_computed = (uint64_t)(json_integer_value(json_object_get(usage, "prompt_tokens")) -
                               json_integer_value(json_object_get(details, "cached_tokens")));
  }
  json_decref(reply);
  json_decref(root);
  free(body);
  weft_text_free(&answer);
  return NULL;
}

int weft_serving_run(const weft_serving *serving, double *seconds, uint64_t *n_computed) {
  pthread_t thread[REQUESTS];
  serving_worker w[REQUESTS];
  uint32_t n = 0, n_failed = 0;
  uint64_t start = weft_clock_us();
  *n_computed = 0;
  for (; n < REQUESTS; n++) {
    w[n] = (serving_worker){.serving = serving, .index = n};
    if (weft_threads_start(&thread[n], run_client, &w[n], NULL) != WEFT_OK) break;
  }
  for (uint32_t i = 0; i < n; i++) {
    (void)pthread_join(thread[i], NULL); /* started above */
    n_failed += w[i].failed;
    *n_computed += w[i].n_computed;
  }
  *seconds = (double)(weft_clock_us() - start) * 1e-6;
  if (n < REQUESTS || n_failed > 0)
    return weft_cli_fail(WEFT_EXIT_FAILED, "%u of %d requests failed", n_failed, REQUESTS);
  return 0;
}

int weft_serving_start(const weft_lab_config *config, weft_child *child) {
  char threads[16];
  (void)snprintf(threads, sizeof threads, "%u", config->product.threads);
  const char *args[] = {"-m",
                        config->product.models.item[0],
                        "--running",
                        "16",
                        "--context",
                        "2048",
                        "--threads",
                        threads,
                        config->product.no_prefix_cache ? "--no-prefix-cache" : NULL,
                        NULL};
  return weft_child_start(child, args) == 0 ? 0 : WEFT_EXIT_RUNTIME;
}

int weft_bench_serving(const weft_lab_config *config) {
  if (config->product.models.n != 1)
    return weft_cli_fail(WEFT_EXIT_USAGE, "bench serving: name one GGUF file with -m FILE");
  weft_child child;
  uint32_t n_vocab;
  int code = weft_serving_vocabulary(config->product.models.item[0], &n_vocab);
  for (uint32_t i = 0; i < config->repeat && code == 0; i++) {
    double seconds = 0.0;
    uint64_t n_computed = 0;
    code = weft_serving_start(config, &child);
    if (code != 0) break;
    weft_serving serving = {.port = child.port, .n_vocab = n_vocab, .seed = 77 + i};
    code = weft_serving_run(&serving, &seconds, &n_computed);
    uint64_t peak = weft_child_kib(&child, "VmHWM");
    (void)weft_child_stop(&child); /* its code would not change the measurement */
    if (code != 0) break;
    if (config->product.json) {
      (void)printf("{\"seconds\": %.3f, \"prompt_tokens_computed\": %llu, \"prompt_tokens\": %d, \"peak_mib\": %.1f}\n",
                   seconds, (unsigned long long)n_computed, REQUESTS * (SHARED + OWN), (double)peak / 1024.0);
    } else {
      (void)printf("%.2f s, %llu of %d prompt tokens computed, peak memory %.1f MiB\n", seconds,
                   (unsigned long long)n_computed, REQUESTS * (SHARED + OWN), (double)peak / 1024.0);
    }
  }
  return code;
}
