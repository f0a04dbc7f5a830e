/* SPDX-License-Identifier: MIT */
/* Cache events of a running server, read as a router reads them: what is stored is found, with evictions and lower
 * tiers; late readers and those that missed something have the same index as one that heard all; tokens of a tenant
 * that was not named are told to nobody; readers that misbehave hold nobody up; each model of each replica has sockets
 * of its own; and unix sockets take no other file's place. */
#include <sys/stat.h>

#include "tests/support/http_conversation.h"

#ifndef WEFT_KV_EVENTS
int main(void) {
  puts("left out: built without libzmq and libmsgpack");
  return 77;
}
#else
#include "api/events/kv_events.h"
#include "base/random.h"
#include "tests/support/kv_reader.h"

enum { PROMPTS = 24, PROMPT_MAX = 200, UNIT = 32 /* tokens, of the demo model */ };

typedef struct told_server {
  talk talk;
  kv_events *events;
} told_server;

static void open_told(told_server *t, const char *keys, weft_open_options options, kv_events_options events) {
  weft_error error;
  options.prefix_feed = true;
  (void)talk_serve(&t->talk, keys, options, (weft_server_options){0});
  if (events.endpoint == NULL) events.endpoint = events.replay = "tcp://127.0.0.1:*";
  if (kv_events_open(&events, t->talk.runtime, &t->events, &error) != WEFT_OK) fail_msg("%s", error.text);
  assert_true(kv_events_is_local(t->events));
}

static void close_told(told_server *t) {
  kv_events_close(t->events);
  talk_close(&t->talk);
}

static kv_reader join(const told_server *t) {
  return reader_open(kv_events_endpoint(t->events, 0, 0, false), kv_events_endpoint(t->events, 0, 0, true));
}

/* Follows until the first batch, which clears, is there. */
static void begin(kv_reader *r) {
  uint64_t until = weft_clock_us() + (uint64_t)READER_MS * 1000;
  while (r->n_cleared == 0) {
    if (weft_clock_us() > until) fail_msg("no batch came");
    (void)reader_follow(r, 20);
  }
}

/* Follows until the index has all whole units of a prompt that was asked: the events of its turn, and of all turns
 * before it, are there then. */
static void await_prompt(kv_reader *r, const int32_t *tokens, uint32_t n) {
  uint64_t until = weft_clock_us() + (uint64_t)READER_MS * 1000;
  while (reader_overlap(r, tokens, n) < n / UNIT * UNIT) {
    if (weft_clock_us() > until) fail_msg("a prompt of %u tokens is never told", n);
    (void)reader_follow(r, 5);
  }
}

/* Both follow until they have heard the same. */
static void await_same(kv_reader *a, kv_reader *b) {
  uint64_t until = weft_clock_us() + (uint64_t)READER_MS * 1000;
  do {
    if (weft_clock_us() > until) fail_msg("two readers never hear the same");
    (void)reader_follow(a, 5);
    (void)reader_follow(b, 5);
  } while (!a->has_number || !b->has_number || a->number != b->number);
  reader_compare(a, b);
}

static void await_units(kv_reader *r, uint32_t n) {
  uint64_t until = weft_clock_us() + (uint64_t)READER_MS * 1000;
  while (r->n != n) {
    if (weft_clock_us() > until) fail_msg("%u units are told, and never %u", r->n, n);
    (void)reader_follow(r, 5);
  }
}

static double counter(const told_server *t, const char *name) {
  weft_text text = {0};
  char line[96];
  kv_events_metrics(t->events, &text);
  (void)snprintf(line, sizeof line, "\n%s ", name);
  const char *at = strstr(text.bytes, line);
  assert_non_null(at);
  double value = strtod(at + strlen(line), NULL);
  weft_text_free(&text);
  return value;
}

/* Asks a model with a prompt of token ids and gives how many of them were found. */
static uint32_t ask_model(const told_server *t, const char *key, const char *model, const int32_t *tokens, uint32_t n) {
  weft_text body = {0};
  weft_text_printf(
      &body, "{\"model\":\"%s\",\"max_tokens\":1,\"mode\":\"autoregressive\",\"ignore_eos\":true,\"prompt\":[", model);
  for (uint32_t i = 0; i < n; i++) weft_text_printf(&body, "%s%d", i > 0 ? "," : "", tokens[i]);
  weft_text_puts(&body, "]}");
  talk_answer a = talk_ask_as(t->talk.port, "POST", "/v1/completions", key, body.bytes);
  if (a.code != 200) fail_msg("%d %s", a.code, a.body.bytes);
  json_t *root = json_loads(a.body.bytes, 0, NULL);
  uint32_t found = (uint32_t)int_at(root, "usage.prompt_tokens_details.cached_tokens");
  json_decref(root);
  talk_answer_free(&a);
  weft_text_free(&body);
  return found;
}

static uint32_t ask(const told_server *t, const char *key, const int32_t *tokens, uint32_t n) {
  return ask_model(t, key, "weft-demo", tokens, n);
}

/* Prompts that begin alike and part, in a way that a seed decides. */
static uint32_t make_prompt(uint64_t seed, int32_t *out) {
  uint32_t n = 40 + (uint32_t)(weft_mix64(seed) % (PROMPT_MAX - 40)), shared = (uint32_t)(weft_mix64(seed + 1) % 97);
  uint64_t family = weft_mix64(seed + 2) % 3;
  for (uint32_t i = 0; i < n; i++) out[i] = 20 + (int32_t)(weft_mix64((i < shared ? family : seed * 1000) + i) % 200);
  return n;
}

/* ---- what is told is found ---- */

static void test_index_from_events(void **state) {
  told_server t;
  (void)state;
  /* so little room that prompts push each other out, into host memory and out of that */
  open_told(&t, NULL, (weft_open_options){.kv_bytes = 1 << 20, .context = 256, .host_bytes = 1 << 19},
            (kv_events_options){.tokens = (const char *const[]){"all"}, .n_tokens = 1});
  kv_reader first = join(&t), late = join(&t);
  begin(&first);
  begin(&late);
  uint32_t n_told = 0, n_found = 0;
  kv_reader between = {0}; /* its listing comes KV_TELL_ALL_US after late's, so it hears of prompts before that */
  for (uint64_t i = 0; i < 3 * PROMPTS; i++) {
    int32_t tokens[PROMPT_MAX];
    if (i == PROMPTS / 4) between = join(&t);
    uint32_t n = make_prompt(i % PROMPTS, tokens);
    uint32_t told = reader_overlap(&first, tokens, n - 1), found = ask(&t, "", tokens, n);
    if (found > told) fail_msg("prompt %d: %u tokens are told, and %u were found", (int)i, told, found);
    n_told += told;
    n_found += found;
    await_prompt(&first, tokens, n);
  }
  assert_true(first.n_removed > 0 && n_found > 0);
  /* windows let a hit end before what is told, by a boundary's distance at most */
  assert_true(n_found * 2 > n_told);
  await_same(&first, &late);
  begin(&between);
  await_same(&first, &between);
  bool host = false;
  for (uint32_t i = 0; i < first.n; i++) host = host || strcmp(first.unit[i].medium, "CPU") == 0;
  assert_true(host);
  /* one that comes now, and one that asks for all of it again. It subscribes to nothing: its own listing would be a
   * batch between its questions. */
  kv_reader last = join(&t), again = reader_open(NULL, kv_events_endpoint(t.events, 0, 0, true));
  begin(&last);
  await_same(&first, &last);
  assert_true(reader_replay(&again, 0) > 0);
  reader_compare(&first, &again);
  assert_true(again.number > 1000000000000000); /* a time: a server that ran before had none as high */
  assert_int_equal(reader_replay(&again, again.number + 1), 0);
  assert_int_equal(reader_replay(&again, UINT64_MAX), 0);
  talk_answer a = talk_ask(t.talk.port, "POST", "/reset_prefix_cache", "");
  assert_int_equal(a.code, 200);
  talk_answer_free(&a);
  await_units(&first, 0);
  reader_close(&first);
  reader_close(&late);
  reader_close(&between);
  reader_close(&last);
  reader_close(&again);
  close_told(&t);
}

/* Without a subscriber nothing is listed, numbered or sent. Who unsubscribes leaves no trace. */
static void test_nobody_listens(void **state) {
  int32_t tokens[PROMPT_MAX];
  told_server t;
  (void)state;
  open_told(&t, NULL, (weft_open_options){0},
            (kv_events_options){.tokens = (const char *const[]){"all"}, .n_tokens = 1});
  (void)ask(&t, "", tokens, make_prompt(1, tokens));
  assert_true(counter(&t, "weft_kv_event_batches_total") == 0);
  for (int i = 0; i < 3; i++) {
    kv_reader r = join(&t);
    begin(&r); /* everything that is there, though it came before */
    await_prompt(&r, tokens, make_prompt(1, tokens));
    reader_close(&r);
    uint64_t until = weft_clock_us() + (uint64_t)READER_MS * 1000;
    while (counter(&t, "weft_kv_event_subscribers") > 0 && weft_clock_us() < until) (void)poll(NULL, 0, 5);
    double n = counter(&t, "weft_kv_event_batches_total");
    (void)ask(&t, "", tokens, make_prompt(2 + (uint64_t)i, tokens));
    assert_true(counter(&t, "weft_kv_event_batches_total") == n);
  }
  close_told(&t);
}

/* ---- what is private ---- */

static void test_tokens_of_named_tenants_alone(void **state) {
  static const char red[] = "Authorization: Bearer sk-red\r\n", blue[] = "Authorization: Bearer sk-blue\r\n";
  int32_t tokens[PROMPT_MAX];
  told_server t;
  (void)state;
  open_told(&t, "sk-red red\nsk-blue blue\n", (weft_open_options){0},
            (kv_events_options){.tokens = (const char *const[]){"red"}, .n_tokens = 1});
  kv_reader r = join(&t);
  begin(&r);
  uint32_t n = make_prompt(3, tokens);
  (void)ask(&t, blue, tokens, n);
  await_units(&r, n / UNIT);
  for (uint32_t i = 0; i < r.n; i++) assert_true(!r.unit[i].has_tokens && r.unit[i].has_keys);
  assert_int_equal(reader_overlap(&r, tokens, n), 0);
  (void)ask(&t, red, tokens, n);
  await_units(&r, 2 * (n / UNIT)); /* the same prompt has other names */
  assert_int_equal(reader_overlap(&r, tokens, n), n / UNIT * UNIT);
  reader_close(&r);
  close_told(&t);
}

/* ---- readers that misbehave ---- */

static void send_garbage(void *context, int type, const char *endpoint, uint32_t seed) {
  int none = 0;
  void *s = zmq_socket(context, type);
  (void)zmq_setsockopt(s, ZMQ_LINGER, &none, sizeof none);
  assert_int_equal(zmq_connect(s, endpoint), 0);
  for (uint32_t i = 0; i < 60; i++) {
    uint8_t bytes[600];
    uint32_t n = (uint32_t)(weft_mix64(seed * 1000 + i) % (i % 10 == 9 ? sizeof bytes : 12));
    for (uint32_t k = 0; k < n; k++) bytes[k] = (uint8_t)weft_mix64(seed + i * 700 + k);
    (void)zmq_send(s, bytes, n, ZMQ_DONTWAIT | (i % 3 == 0 ? ZMQ_SNDMORE : 0)); /* whatever becomes of it */
  }
  (void)poll(NULL, 0, 20);
  (void)zmq_close(s);
}

static void test_hostile_readers(void **state) {
  int32_t tokens[PROMPT_MAX];
  told_server t;
  (void)state;
  open_told(&t, NULL, (weft_open_options){.kv_bytes = 1 << 20, .context = 256},
            (kv_events_options){.tokens = (const char *const[]){"all"}, .n_tokens = 1});
  const char *events = kv_events_endpoint(t.events, 0, 0, false), *replay = kv_events_endpoint(t.events, 0, 0, true);
  kv_reader good = join(&t), flood[24];
  begin(&good);
  for (uint32_t i = 0; i < 24; i++) flood[i] = reader_open(NULL, replay);
  for (uint64_t i = 0; i < 40; i++) {
    uint32_t n = make_prompt(i, tokens);
    (void)ask(&t, "", tokens, n); /* is answered */
    for (uint32_t k = 0; k < 24; k++)
      for (uint32_t j = 0; j < 20; j++) reader_ask(&flood[k], j % 2 == 0 ? 0 : i); /* and nobody takes the replays */
    if (i % 8 == 0) {
      send_garbage(good.context, ZMQ_DEALER, replay, (uint32_t)i);
      send_garbage(good.context, ZMQ_XSUB, events, (uint32_t)i);
      send_garbage(good.context, ZMQ_DEALER, events, (uint32_t)i);
      send_garbage(good.context, ZMQ_SUB, replay, (uint32_t)i);
    }
  }
  assert_true(counter(&t, "weft_kv_event_strange_total") > 0);
  assert_true(counter(&t, "weft_kv_event_replays_ended_total") > 0);
  await_prompt(&good, tokens, make_prompt(39, tokens)); /* without a gap */
  kv_reader late = join(&t);
  assert_true(reader_replay(&late, 0) > 0);
  begin(&late);
  await_same(&good, &late);
  for (uint32_t i = 0; i < 24; i++) reader_close(&flood[i]);
  reader_close(&good);
  reader_close(&late);
  close_told(&t);
}

/* ---- several models, several replicas ---- */

enum { MODELS = 2, REPLICAS = 2, STREAMS = MODELS * REPLICAS };

/* All follow until those of a model have a prompt, one of them or the other, and gives which. */
static uint32_t await_one_of(kv_reader reader[STREAMS], uint32_t model, const int32_t *tokens, uint32_t n) {
  uint64_t until = weft_clock_us() + (uint64_t)READER_MS * 1000;
  for (;;) {
    for (uint32_t i = 0; i < STREAMS; i++) (void)reader_follow(&reader[i], 2);
    for (uint32_t i = model * REPLICAS; i < (model + 1) * REPLICAS; i++)
      if (reader_overlap(&reader[i], tokens, n) == n / UNIT * UNIT) return i;
    if (weft_clock_us() > until) fail_msg("a prompt of %u tokens is never told", n);
  }
}

static void open_several(told_server *t, const char *folder) {
  static const char *const models[] = {DEMO_MODEL, DEMO_AR_MODEL};
  char events[96], replay[96];
  (void)snprintf(events, sizeof events, "ipc://%s/e", folder);
  (void)snprintf(replay, sizeof replay, "ipc://%s/r", folder);
  open_told(t, NULL,
            (weft_open_options){.models = models,
                                .n_models = MODELS,
                                .kv_bytes = 1 << 20,
                                .context = 256,
                                .backend = "cpu",
                                .devices = "0,1",
                                .split = "replicas"},
            (kv_events_options){.tokens = (const char *const[]){"all"},
                                .n_tokens = 1,
                                .endpoint = events,
                                .replay = replay,
                                .topic = "kv@pod@{model}"});
}

/* The place of a stream behind the path that was given. */
static void check_endpoint(const told_server *t, const char *folder, uint32_t i) {
  char events[96], replay[96];
  (void)snprintf(events, sizeof events, i == 0 ? "ipc://%s/e" : "ipc://%s/e.%u", folder, i);
  (void)snprintf(replay, sizeof replay, i == 0 ? "ipc://%s/r" : "ipc://%s/r.%u", folder, i);
  assert_string_equal(kv_events_endpoint(t->events, i / REPLICAS, i % REPLICAS, false), events);
  assert_string_equal(kv_events_endpoint(t->events, i / REPLICAS, i % REPLICAS, true), replay);
}

/* Each model of each replica is told by sockets of its own, with its topic and its rank; models push each other out of
 * the pool that they share, which those hear that follow the model that lost. */
static void test_several_models(void **state) {
  static const char *const name[MODELS] = {"weft-demo", "weft-demo-ar"};
  char folder[] = "/tmp/weft-events-XXXXXX", topic[64];
  int32_t tokens[PROMPT_MAX];
  kv_reader reader[STREAMS], late[STREAMS];
  uint32_t n_told[STREAMS] = {0};
  told_server t;
  (void)state;
  assert_non_null(mkdtemp(folder));
  open_several(&t, folder);
  for (uint32_t i = 0; i < STREAMS; i++) {
    check_endpoint(&t, folder, i);
    reader[i] = reader_open(NULL, NULL);
    assert_int_equal(zmq_setsockopt(reader[i].subscriber, ZMQ_UNSUBSCRIBE, "", 0), 0);
    (void)snprintf(topic, sizeof topic, "kv@pod@%s", name[i / REPLICAS]);
    assert_int_equal(zmq_setsockopt(reader[i].subscriber, ZMQ_SUBSCRIBE, topic, strlen(topic)), 0);
    assert_int_equal(zmq_connect(reader[i].subscriber, kv_events_endpoint(t.events, i / REPLICAS, i % REPLICAS, false)),
                     0);
    begin(&reader[i]);
    assert_int_equal(reader[i].rank, i % REPLICAS);
  }
  for (uint64_t i = 0; i < 2 * PROMPTS; i++) {
    uint32_t model = i % MODELS, n = make_prompt(i / MODELS % PROMPTS, tokens); /* the same prompts for both */
    (void)ask_model(&t, "", name[model], tokens, n);
    n_told[await_one_of(reader, model, tokens, n)] += 1;
  }
  for (uint32_t i = 0; i < STREAMS; i++) {
    late[i] = reader_open(kv_events_endpoint(t.events, i / REPLICAS, i % REPLICAS, false), NULL);
    begin(&late[i]);
    await_same(&reader[i], &late[i]);
  }
  for (uint32_t m = 0; m < MODELS; m++) {
    const kv_reader *own = &reader[m * REPLICAS];
    assert_int_equal(n_told[m * REPLICAS] + n_told[m * REPLICAS + 1], PROMPTS);
    assert_true(own[0].n_removed + own[1].n_removed > 0);
  }
  talk_answer a = talk_ask(t.talk.port, "POST", "/reset_prefix_cache", "");
  assert_int_equal(a.code, 200);
  talk_answer_free(&a);
  for (uint32_t i = 0; i < STREAMS; i++) {
    await_units(&reader[i], 0);
    reader_close(&reader[i]);
    reader_close(&late[i]);
  }
  close_told(&t);
  assert_int_equal(rmdir(folder), 0); /* no socket is left in it */
}

/* ---- unix sockets ---- */

static void write_file(const char *path, const char *text) {
  FILE *f = fopen(path, "w");
  assert_non_null(f);
  assert_true(fputs(text, f) >= 0 && fclose(f) == 0);
}

/* A socket of a process that was killed: its file is there, and nobody answers. */
static void leave_socket(const char *path) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  (void)snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
  assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
  assert_int_equal(close(fd), 0);
}

static void refuse_options(const told_server *t, kv_events_options o, const char *words);

static void test_unix_sockets(void **state) {
  char folder[] = "/tmp/weft-events-XXXXXX", path[64], events[96], replay[96];
  int32_t tokens[PROMPT_MAX];
  struct stat file;
  told_server t;
  (void)state;
  assert_non_null(mkdtemp(folder));
  (void)snprintf(path, sizeof path, "%s/e", folder);
  (void)snprintf(events, sizeof events, "ipc://%s", path);
  (void)snprintf(replay, sizeof replay, "ipc://%s/r", folder);
  leave_socket(path); /* its place is taken */
  open_told(
      &t, NULL, (weft_open_options){0},
      (kv_events_options){.tokens = (const char *const[]){"all"}, .n_tokens = 1, .endpoint = events, .replay = replay});
  assert_int_equal(lstat(path, &file), 0);
  assert_true(S_ISSOCK(file.st_mode) && (file.st_mode & 0777) == 0600);
  refuse_options(&t, (kv_events_options){.endpoint = events}, "/e: somebody answers there");
  kv_reader live = join(&t), again = join(&t); /* and the first server still has it */
  begin(&live);
  (void)ask(&t, "", tokens, make_prompt(1, tokens));
  await_prompt(&live, tokens, make_prompt(1, tokens));
  assert_true(reader_replay(&again, 0) > 0);
  begin(&again);
  await_same(&live, &again);
  reader_close(&live);
  reader_close(&again);
  (void)snprintf(path, sizeof path, "%s/letter", folder);
  (void)snprintf(replay, sizeof replay, "ipc://%s", path);
  write_file(path, "dear");
  refuse_options(&t, (kv_events_options){.endpoint = replay}, "letter: a file that is no socket is there");
  assert_int_equal(stat(path, &file), 0);
  assert_true(S_ISREG(file.st_mode) && file.st_size == 4);
  assert_int_equal(unlink(path), 0);
  refuse_options(&t, (kv_events_options){.endpoint = "ipc:///nowhere/at/all"}, "/nowhere/at/all: No such file");
  close_told(&t);
  assert_int_equal(rmdir(folder), 0);
}

/* ---- where the events are ---- */

static const char *words_at(const json_t *object, const char *name) {
  const char *words = json_string_value(json_object_get(object, name));
  if (words == NULL) fail_msg("no %s", name);
  return words;
}

/* vllm-router subscribes to nothing, and says nothing, where a source names no encoding or no version of its form. */
static void test_sources(void **state) {
  (void)state;
  told_server t;
  weft_text text = {0};
  open_told(&t, NULL, (weft_open_options){.kv_bytes = 1 << 20, .context = 256}, (kv_events_options){0});
  kv_events_sources(t.events, 0, &text);
  assert_int_equal(weft_text_status(&text), WEFT_OK);
  json_t *all = json_loads(text.bytes, 0, NULL), *source = json_object_get(all, "0");
  assert_string_equal(words_at(source, "endpoint"), kv_events_endpoint(t.events, 0, 0, false));
  assert_string_equal(words_at(source, "replay_endpoint"), kv_events_endpoint(t.events, 0, 0, true));
  assert_string_equal(words_at(source, "publisher"), "zmq");
  assert_string_equal(words_at(source, "encoding"), "msgpack");
  assert_int_equal(json_integer_value(json_object_get(source, "schema_version")), 1);
  assert_true(json_is_true(json_object_get(source, "enable_kv_cache_events")));
  assert_int_equal(json_object_size(all), 1);
  json_decref(all);
  weft_text_free(&text);
  close_told(&t);
}

/* ---- numbers that begin again ---- */

static void test_numbers_begin_again(void **state) {
  int32_t tokens[PROMPT_MAX];
  told_server t;
  (void)state;
  open_told(&t, NULL, (weft_open_options){0},
            (kv_events_options){.tokens = (const char *const[]){"all"}, .n_tokens = 1, .start = UINT64_MAX - 3});
  kv_reader first = join(&t), second = join(&t);
  begin(&first);
  for (uint64_t i = 0; i < 6; i++) {
    (void)ask(&t, "", tokens, make_prompt(i, tokens));
    await_prompt(&first, tokens, make_prompt(i, tokens));
  }
  assert_true(first.number < 100);
  (void)reader_replay(&second, UINT64_MAX - 3); /* or, where it is gone, from the live events on */
  begin(&second);
  await_same(&first, &second);
  reader_close(&first);
  reader_close(&second);
  close_told(&t);
}

/* A server that is started again numbers higher than before, and whoever goes on from the old one's last number is told
 * everything. */
static void test_started_again(void **state) {
  int32_t tokens[PROMPT_MAX];
  const kv_events_options told = {.tokens = (const char *const[]){"all"}, .n_tokens = 1};
  uint32_t n = make_prompt(5, tokens);
  told_server t;
  (void)state;
  open_told(&t, NULL, (weft_open_options){0}, told);
  kv_reader before = join(&t);
  begin(&before);
  (void)ask(&t, "", tokens, n);
  await_prompt(&before, tokens, n);
  close_told(&t);
  open_told(&t, NULL, (weft_open_options){0}, told);
  kv_reader other = join(&t), after = join(&t);
  begin(&other);
  (void)ask(&t, "", tokens, n);
  await_prompt(&other, tokens, n);
  assert_true(other.number > before.number + 1000);
  assert_true(reader_replay(&after, before.number + 1) > 0);
  assert_int_equal(after.n_cleared, 1);
  await_same(&other, &after);
  reader_close(&before);
  reader_close(&other);
  reader_close(&after);
  close_told(&t);
}

/* ---- options ---- */

static void refuse_options(const told_server *t, kv_events_options o, const char *words) {
  weft_error error;
  kv_events *events;
  assert_int_not_equal(kv_events_open(&o, t->talk.runtime, &events, &error), WEFT_OK);
  assert_null(events);
  if (strstr(error.text, words) == NULL) fail_msg("'%s' is not in '%s'", words, error.text);
}

static void test_options_are_refused(void **state) {
  static const char *const nobody[] = {"nobody"};
  static const char *const endpoints[] = {"",         "70000",         "0",           "tcp://127.0.0.1", "ipc://",
                                          "http://x", "tcp://*:65536", "tcp://a:12x", "inproc://x",      "ipc://@x",
                                          "ipc://*"};
  told_server t;
  (void)state;
  open_told(&t, NULL, (weft_open_options){0}, (kv_events_options){0});
  for (size_t i = 0; i < sizeof endpoints / sizeof *endpoints; i++)
    refuse_options(&t, (kv_events_options){.endpoint = endpoints[i]}, "--kv-events: '");
  refuse_options(&t, (kv_events_options){.endpoint = "tcp://127.0.0.1:*", .replay = "x"}, "--kv-events-replay: 'x'");
  refuse_options(&t, (kv_events_options){.endpoint = "tcp://127.0.0.1:*", .form = "maps"}, "--kv-events-form");
  refuse_options(&t, (kv_events_options){.endpoint = "tcp://127.0.0.1:*", .tokens = nobody, .n_tokens = 1},
                 "no tenant is named 'nobody'");
  refuse_options(&t, (kv_events_options){.endpoint = kv_events_endpoint(t.events, 0, 0, false)},
                 "Address already in use");
  close_told(&t);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_index_from_events),
      cmocka_unit_test(test_nobody_listens),
      cmocka_unit_test(test_hostile_readers),
      cmocka_unit_test(test_tokens_of_named_tenants_alone),
      cmocka_unit_test(test_numbers_begin_again),
      cmocka_unit_test(test_options_are_refused),
      cmocka_unit_test(test_sources),
      cmocka_unit_test(test_several_models),
      cmocka_unit_test(test_started_again),
      cmocka_unit_test(test_unix_sockets),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
#endif
