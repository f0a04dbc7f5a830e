/* SPDX-License-Identifier: MIT */
/* weft soak: a server of our own under full load for a while: many clients, both kinds, shared and private prompts, clients
 * that hang up at random, a pool far smaller than the demand. At the end every block must be back, nothing may be stuck, and
 * the server's memory must have been flat after its first third. */
#include <jansson.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/cli/cli.h"
#include "api/cli/client.h"
#include "api/runtime.h"
#include "base/random.h"

enum { CLIENTS = 24, FLAT_KIB = 16 * 1024 };

typedef struct soak_client {
  uint16_t port;
  uint64_t seed, until_us;
  uint32_t index;
  bool canvas_model;
  uint64_t n_done, n_cancelled, n_refused, n_failed;
} soak_client;

static uint32_t pick(const soak_client *c, uint64_t turn, uint32_t what, uint32_t below) {
  weft_draw_key key = {c->seed, c->index, WEFT_DRAW_TEST, turn, what};
  return weft_draw_below(&key, below);
}

static char *make_body(const soak_client *c, uint64_t turn) {
  weft_text prompt = {0};
  uint32_t n_words = 4 + pick(c, turn, 0, 60);
  if (pick(c, turn, 1, 2) == 0) weft_text_puts(&prompt, "The big key is near the red drum. The old cat sees the blue boat. ");
  for (uint32_t i = 0; i < n_words; i++) weft_text_printf(&prompt, "%u ", 10 + pick(c, turn, 10 + i, 90));
  bool diffusion = c->canvas_model && pick(c, turn, 2, 2) == 0;
  json_t *root = json_pack("{s:s, s:[{s:s, s:s}], s:i, s:s, s:b, s:i, s:b}", "model", "any", "messages", "role", "user",
                           "content", prompt.bytes, "max_tokens", (int)(1 + pick(c, turn, 3, 96)), "mode",
                           diffusion ? "diffusion" : "autoregressive", "stream", (int)pick(c, turn, 4, 2), "seed",
                           (int)pick(c, turn, 5, 1000), "ignore_eos", (int)pick(c, turn, 6, 2));
  char *body = json_dumps(root, JSON_COMPACT);
  json_decref(root);
  weft_text_free(&prompt);
  return body;
}

static void *run_client(void *self) {
  soak_client *c = self;
  for (uint64_t turn = 0; weft_clock_us() < c->until_us; turn++) {
    char *body = make_body(c, turn);
    weft_text answer = {0};
    uint32_t cancel = pick(c, turn, 7, 3) == 0 ? 1 + pick(c, turn, 8, 200) : 0;
    int status = body == NULL ? -1 : weft_client_request(c->port, "POST", "/v1/chat/completions", body, &answer, cancel);
    if (status == 200) c->n_done += 1;
    if (status == 0) c->n_cancelled += 1;
    if (status == 429 || status == 503) {
      c->n_refused += 1;
      (void)usleep(50000); /* come again, but not at once */
    }
    if (status < 0 || (status > 0 && status != 200 && status != 429 && status != 503)) c->n_failed += 1;
    free(body);
    weft_text_free(&answer);
  }
  return NULL;
}

/* Waits until nothing runs; the pinned pages left then, or -1. */
static double settle(uint16_t port) {
  double pinned = -1.0;
  for (uint32_t i = 0; i < 200; i++) {
    weft_text text = {0};
    if (weft_client_request(port, "GET", "/metrics", NULL, &text, 0) == 200 && text.bytes != NULL) {
      double running = weft_client_metric(text.bytes, "vllm:num_requests_running");
      double waiting = weft_client_metric(text.bytes, "vllm:num_requests_waiting");
      pinned = weft_client_metric(text.bytes, "weft_pool_pages_pinned");
      if (running == 0.0 && waiting == 0.0 && pinned == 0.0) i = 1000;
    }
    weft_text_free(&text);
    (void)usleep(50000); /* woken early is fine */
  }
  return pinned;
}

static int judge(const weft_config *config, const soak_client *c, uint32_t n, double pinned, uint64_t first_kib,
                 uint64_t last_kib) {
  uint64_t done = 0, cancelled = 0, refused = 0, failed = 0;
  for (uint32_t i = 0; i < n; i++) {
    done += c[i].n_done;
    cancelled += c[i].n_cancelled;
    refused += c[i].n_refused;
    failed += c[i].n_failed;
  }
  bool flat = last_kib <= first_kib + FLAT_KIB;
  if (config->json) {
    (void)printf("{\"done\": %llu, \"cancelled\": %llu, \"refused\": %llu, \"failed\": %llu, \"pinned\": %.0f, "
                 "\"first_kib\": %llu, \"last_kib\": %llu}\n",
                 (unsigned long long)done, (unsigned long long)cancelled, (unsigned long long)refused,
                 (unsigned long long)failed, pinned, (unsigned long long)first_kib, (unsigned long long)last_kib);
  } else {
    (void)printf("%llu answered, %llu hung up, %llu refused, %llu failed; %.0f pages pinned at the end; memory %.1f -> %.1f "
                 "MiB\n", (unsigned long long)done, (unsigned long long)cancelled, (unsigned long long)refused,
                 (unsigned long long)failed, pinned, (double)first_kib / 1024.0, (double)last_kib / 1024.0);
  }
  if (failed > 0) return weft_cli_fail(WEFT_EXIT_FAILED, "%llu requests broke off or got an unexpected status", (unsigned long long)failed);
  if (pinned != 0.0) return weft_cli_fail(WEFT_EXIT_FAILED, "%.0f pages are still pinned after all requests ended", pinned);
  if (!flat) return weft_cli_fail(WEFT_EXIT_FAILED, "the server's memory grew from %llu to %llu KiB", (unsigned long long)first_kib, (unsigned long long)last_kib);
  return done > 0 ? 0 : weft_cli_fail(WEFT_EXIT_FAILED, "no request was answered");
}

static bool is_canvas_model(const char *path) {
  weft_gguf *gguf;
  if (weft_gguf_open(path, &gguf, NULL) != WEFT_OK) return false;
  bool canvas = weft_gguf_find(gguf, "diffusion.canvas_length") >= 0;
  weft_gguf_close(gguf);
  return canvas;
}

int weft_cli_soak(const weft_config *config) {
  if (config->models.n != 1) return weft_cli_fail(WEFT_EXIT_USAGE, "soak: name one GGUF file with -m FILE");
  weft_child child;
  pthread_t thread[CLIENTS];
  soak_client client[CLIENTS];
  uint32_t n = 0;
  const char *args[] = {"-m", config->models.item[0], "--kv-mib", "2", "--context", "256", "--running", "16", "--queue", "16",
                        NULL};
  if (weft_child_start(&child, args) != 0) return WEFT_EXIT_RUNTIME;
  uint64_t start = weft_clock_us(), length = (uint64_t)config->seconds * 1000000u, first_kib = 0;
  bool canvas = is_canvas_model(config->models.item[0]);
  for (; n < CLIENTS; n++) {
    client[n] = (soak_client){.port = child.port, .seed = config->seed, .until_us = start + length, .index = n,
                              .canvas_model = canvas};
    if (pthread_create(&thread[n], NULL, run_client, &client[n]) != 0) break;
  }
  while (weft_clock_us() < start + length / 3) (void)usleep(20000); /* woken early is fine */
  first_kib = weft_child_kib(&child, "VmRSS");
  for (uint32_t i = 0; i < n; i++) (void)pthread_join(thread[i], NULL); /* started above */
  double pinned = settle(child.port);
  uint64_t last_kib = weft_child_kib(&child, "VmRSS");
  int stopped = weft_child_stop(&child);
  if (stopped != 0) return weft_cli_fail(WEFT_EXIT_FAILED, "the server ended with code %d", stopped);
  return judge(config, client, n, pinned, first_kib, last_kib);
}
