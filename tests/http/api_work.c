/* SPDX-License-Identifier: MIT */
/* The largest answers there are, of every dialect, whole and as streams: what is made of them between two looks at the
 * sockets stays below what api/http/http.h says, counted as work and not as time; all of each arrives; and it is the
 * same as from a server that nobody else asks. */
#include <pthread.h>

#include "api/http/http.h"
#include "tests/support/amount.h"
#include "tests/support/http_conversation.h"

enum { CLIENTS = 6, PROMPT = 900 };

static uint32_t n_clients; /* fewer where there is little time, as under a sanitizer */

static talk server;
static weft_text prompt; /* token ids as JSON */

static int open_server(void **state) {
  static const char *const models[] = {DEMO_AR_MODEL};
  const weft_open_options options = {.models = models,
                                     .n_models = 1,
                                     .threads = 2,
                                     .kv_bytes = 64 << 20,
                                     .context = 1024,
                                     .queue = 1024,
                                     .request_bytes = 2ull << 30};
  for (int i = 0; i < PROMPT; i++) weft_text_printf(&prompt, i == 0 ? "[%d" : ",%d", 300 + i * 37 % 200);
  weft_text_puts(&prompt, "]");
  *state = talk_serve(&server, NULL, options, (weft_server_options){.body_mib = 1});
  return 0;
}

static int close_server(void **state) {
  weft_text_free(&prompt);
  return close_talk(state);
}

/* %s: the ids. Each answer has up to some megabytes of logprobs, ids or text, and its length hangs on no chance. */
static const struct {
  const char *path, *body;
  size_t least; /* bytes of the answer */
} asks[] = {
    {"/v1/completions",
     "{\"prompt\":%s,\"echo\":true,\"logprobs\":5,\"n\":16,\"max_tokens\":2,\"stream\":true,\"seed\":1}", 1 << 20},
    {"/v1/completions", "{\"prompt\":%s,\"echo\":true,\"logprobs\":5,\"n\":16,\"max_tokens\":2,\"seed\":1}", 1 << 20},
    {"/v1/completions",
     "{\"prompt\":%s,\"prompt_logprobs\":20,\"n\":8,\"max_tokens\":2,\"return_token_ids\":true,\"seed\":1}", 1 << 20},
    {"/v1/completions",
     "{\"prompt\":%s,\"n\":128,\"max_tokens\":2,\"return_token_ids\":true,\"stream\":true,\"seed\":1}", 1 << 17},
    {"/v1/responses",
     "{\"input\":\"Tell all.\",\"include\":[\"message.output_text.logprobs\"],\"top_logprobs\":20,\"stream\":true,"
     "\"max_output_tokens\":400,\"temperature\":2,\"seed\":1,\"ignore_eos\":true}",
     1 << 20},
    {"/v1/responses",
     "{\"input\":\"Tell all.\",\"include\":[\"message.output_text.logprobs\"],\"top_logprobs\":20,"
     "\"max_output_tokens\":400,\"temperature\":2,\"seed\":1,\"ignore_eos\":true}",
     1 << 18},
    {"/v1/chat/completions",
     "{\"messages\":[{\"role\":\"user\",\"content\":\"Tell all.\"}],\"logprobs\":true,\"top_logprobs\":20,\"n\":32,"
     "\"max_tokens\":60,\"ignore_eos\":true,\"seed\":1}",
     1 << 20},
    {"/api/chat",
     "{\"messages\":[{\"role\":\"user\",\"content\":\"Tell all.\"}],\"logprobs\":true,\"top_logprobs\":20,"
     "\"options\":{\"num_predict\":400,\"temperature\":2,\"seed\":1},\"ignore_eos\":true}",
     1 << 18},
    {"/v1/messages",
     "{\"messages\":[{\"role\":\"user\",\"content\":\"Tell all.\"}],"
     "\"max_tokens\":400,\"stream\":true,\"seed\":1,\"ignore_eos\":true}",
     1 << 8},
};
enum { ASKS = sizeof asks / sizeof *asks };

static void *ask_all(void *self) {
  uint32_t first = *(const uint32_t *)self;
  weft_text body = {0};
  for (uint32_t i = 0; i < ASKS; i++) {
    uint32_t which = (first + i) % ASKS;
    weft_text_clear(&body);
    weft_text_printf(&body, asks[which].body, prompt.bytes);
    talk_answer a = talk_ask(server.port, "POST", asks[which].path, body.bytes);
    if (a.code != 200 || !a.complete || a.body.n < asks[which].least) {
      (void)printf("FAILED: %u: %d, %zu bytes: %.200s\n", which, a.code, a.body.n, a.body.bytes);
      exit(1);
    }
    talk_answer_free(&a);
  }
  weft_text_free(&body);
  return NULL;
}

static void a_round_of_the_largest_answers_is_bounded(void **state) {
  pthread_t thread[CLIENTS];
  uint32_t first[CLIENTS];
  (void)state;
  n_clients = test_amount(2, CLIENTS, CLIENTS);
  for (uint32_t i = 0; i < n_clients; i++) {
    first[i] = i * 2;
    assert_int_equal(pthread_create(&thread[i], NULL, ask_all, &first[i]), 0);
  }
  for (uint32_t i = 0; i < n_clients; i++) (void)pthread_join(thread[i], NULL);
  double most = talk_metric(server.port, "weft_http_round_work");
  if (most < 1000 || most > WEFT_HTTP_ROUND_WORK + WEFT_HTTP_STEP_WORK) fail_msg("%.0f units in a round", most);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(a_round_of_the_largest_answers_is_bounded)};
  return cmocka_run_group_tests(tests, open_server, close_server);
}
