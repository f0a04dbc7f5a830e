/* SPDX-License-Identifier: MIT */
/* A server whose models lie on two or three devices, or wholly on each of them, answers what one on a single device does, byte for byte but for ids
 * and times (of a stream: its text): chats and completions, whole and as a stream, by both kinds of writing, alone and many at once; and it
 * counts what crossed. */
#include <pthread.h>

#include "tests/support/http_conversation.h"

enum { ASKS = 10 };

static const struct {
  const char *path, *body;
} asks[ASKS] = {
#define CHAT(more) \
  "/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"Count from 34 to 49.\"}]," more "}"
#define TEXT(more) "/v1/completions", "{\"prompt\":\"The soft ball is behind the blue boat. The\"," more "}"
    {TEXT("\"model\":\"weft-demo\",\"mode\":\"diffusion\",\"max_tokens\":70,\"ignore_eos\":true,\"seed\":1")},
    {TEXT("\"model\":\"weft-demo\",\"mode\":\"autoregressive\",\"max_tokens\":40,\"ignore_eos\":true,\"seed\":2")},
    {TEXT("\"model\":\"weft-demo-ar\",\"max_tokens\":40,\"ignore_eos\":true,\"seed\":3,\"temperature\":1.2,"
          "\"logprobs\":3")},
    {TEXT("\"model\":\"weft-demo-ar\",\"max_tokens\":20,\"n\":3,\"seed\":4,\"temperature\":0.9,\"echo\":true,"
          "\"logprobs\":1")},
    {CHAT("\"model\":\"weft-demo\",\"mode\":\"diffusion\",\"max_tokens\":64,\"stream\":true,\"seed\":5")},
    {CHAT("\"model\":\"weft-demo\",\"mode\":\"diffusion\",\"max_tokens\":64,\"seed\":6")},
    {CHAT("\"model\":\"weft-demo\",\"mode\":\"autoregressive\",\"max_tokens\":30,\"seed\":7,\"stream\":true")},
    {CHAT("\"model\":\"weft-demo-ar\",\"max_tokens\":30,\"seed\":8,\"temperature\":0,\"logprobs\":true,\"top_"
          "logprobs\":2")},
    {CHAT("\"model\":\"weft-demo\",\"mode\":\"diffusion\",\"max_tokens\":64,\"seed\":9,\"response_format\":"
          "{\"type\":\"json_object\"}")},
    {CHAT("\"model\":\"weft-demo-ar\",\"max_tokens\":30,\"seed\":10,\"stream\":true,\"temperature\":0.7")},
#undef CHAT
#undef TEXT
};

static talk server;
static char *wanted[ASKS], *answered[ASKS];

/* What differs from answer to answer becomes dashes: the ids, when it was made, and how much of the prompt was found in
 * the cache, which others may have filled. */
static void blank(char *text, const char *name) {
  for (char *at = strstr(text, name); at != NULL; at = strstr(at, name)) {
    at += strlen(name);
    while (*at != 0 && *at != ',' && *at != '}') *at++ = '-';
  }
}

/* Numbers of several digits take one dash. */
static void close_up(char *text) {
  char *to = text;
  for (const char *from = text; *from != 0; from++) {
    if (*from != '-' || to == text || to[-1] != '-') *to++ = *from;
  }
  *to = 0;
}

/* Of a stream the texts one behind another: where it is cut into pieces depends on when the client reads. */
static void join_pieces(char *text) {
  static const char *const names[] = {"\"text\":\"", "\"content\":\""};
  char *to = text;
  for (const char *line = text; line != NULL; line = strstr(line, "\ndata: ")) {
    line += 1;
    const char *end = strchr(line, '\n');
    for (size_t k = 0; k < 2; k++) {
      const char *from = strstr(line, names[k]);
      if (from == NULL || (end != NULL && from > end)) continue;
      for (from += strlen(names[k]); *from != 0 && *from != '"'; from++) {
        if (*from == '\\') *to++ = *from++;
        *to++ = *from;
      }
    }
  }
  *to = 0;
}

static char *ask(uint32_t i) {
  static const char *const names[] = {"\"id\":", "\"created\":", "\"cached_tokens\":"};
  talk_answer a = talk_ask_as(server.port, "POST", asks[i].path, "", asks[i].body);
  if (a.code != 200) fail_msg("%s: %d %s", asks[i].body, a.code, a.body.bytes);
  char *text = strdup(a.body.bytes);
  for (size_t k = 0; k < sizeof names / sizeof *names; k++) blank(text, names[k]);
  close_up(text);
  if (strstr(asks[i].body, "\"stream\"") != NULL) join_pieces(text);
  if (*text == 0) fail_msg("%s: an empty text", asks[i].body);
  talk_answer_free(&a);
  return text;
}

static void *ask_aside(void *i) {
  answered[(uintptr_t)i] = ask((uint32_t)(uintptr_t)i);
  return NULL;
}

static void open_on(const char *devices, const char *split, const char *ratio) {
  static const char *const models[] = {DEMO_MODEL, DEMO_AR_MODEL};
  const weft_open_options options = {.models = models,
                                     .n_models = 2,
                                     .backend = "cpu",
                                     .kv_bytes = 16 << 20,
                                     .context = 512,
                                     .devices = devices,
                                     .split = split,
                                     .split_ratio = ratio};
  talk_serve(&server, NULL, options, (weft_server_options){0});
}

static void check(const char *devices) {
  for (uint32_t i = 0; i < ASKS; i++) {
    if (strcmp(wanted[i], answered[i]) != 0)
      fail_msg("%s on devices %s:\n%s\nand on one:\n%s", asks[i].body, devices, answered[i], wanted[i]);
    free(answered[i]);
    answered[i] = NULL;
  }
}

static void check_crossed(const char *kind) {
  char line[128];
  (void)snprintf(line, sizeof line, "weft_crossed_bytes_total{model_name=\"weft-demo\",kind=\"%s\"} ", kind);
  talk_answer a = talk_ask_as(server.port, "GET", "/metrics", "", "");
  const char *at = strstr(a.body.bytes, line);
  if (at == NULL || strtoull(at + strlen(line), NULL, 10) == 0) fail_msg("no bytes of kind %s crossed", kind);
  talk_answer_free(&a);
}

/* Asked once after another, and all at once, each replica has worked. */
static void check_replicas(const char *devices) {
  for (const char *at = devices; at != NULL; at = strchr(at, ','), at = at == NULL ? NULL : at + 1) {
    char name[64];
    (void)snprintf(name, sizeof name, "weft_replica_requests_submitted_total{device=\"%c\"}", *at);
    assert_true(talk_metric(server.port, name) > 0);
  }
  talk_answer a = talk_ask_as(server.port, "GET", "/metrics", "", "");
  assert_null(strstr(a.body.bytes, "crossed"));
  talk_answer_free(&a);
}

static void compare(const char *devices, const char *split, const char *ratio) {
  pthread_t thread[ASKS];
  open_on(devices, split, ratio);
  for (uint32_t i = 0; i < ASKS; i++) answered[i] = ask(i);
  check(devices);
  for (uintptr_t i = 0; i < ASKS; i++)
    assert_int_equal(pthread_create(&thread[i], NULL, ask_aside, (void *)i), 0); /* at once, over a filled cache */
  for (uint32_t i = 0; i < ASKS; i++) assert_int_equal(pthread_join(thread[i], NULL), 0);
  check(devices);
  if (split != NULL) {
    check_replicas(devices);
  } else {
    check_crossed("rows");
    check_crossed("soft");
    check_crossed("tokens");
  }
  talk_close(&server);
}

static void test_same_answers(void **state) {
  (void)state;
  open_on(NULL, NULL, NULL);
  for (uint32_t i = 0; i < ASKS; i++) wanted[i] = ask(i);
  talk_close(&server);
  compare("0,1", NULL, NULL);
  compare("2,0,1", NULL, "1,1,2");
  compare("0,1", "replicas", NULL);
  compare("2,0,1", "replicas", NULL);
  for (uint32_t i = 0; i < ASKS; i++) free(wanted[i]);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_same_answers)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
