/* SPDX-License-Identifier: MIT */
/* Who watches the server: what /stats and its stream say to whom, how often, and what they do to the others. */
#include <sys/stat.h>

#include "tests/support/http_conversation.h"

#define OPERATOR "Authorization: Bearer sk-op\r\n"
#define RED      "Authorization: Bearer sk-red\r\n"
#define BLUE     "Authorization: Bearer sk-blue\r\n"
#define CHAT     "/v1/chat/completions"

static const char keys_text[] = "sk-op operator\nsk-red red weight=2 running=8\nsk-blue blue\nsk-red-2 red\n";
static const char long_answer[] =
    "{\"model\":\"weft-demo\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"mode\":"
    "\"diffusion\",\"max_tokens\":600,\"ignore_eos\":true}";
static const char short_answer[] =
    "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"mode\":\"autoregressive\",\"max_tokens\":1}";

/* ---- a reader of the stream ---- */

typedef struct stream {
  int fd;
  weft_text raw, body;
  bool has_head, over;
} stream;

static stream watch(uint16_t port, const char *headers) {
  stream s = {.fd = talk_dial(port)};
  talk_send(s.fd, "GET", "/stats/stream", headers, "", 0);
  return s;
}

static void close_stream(stream *s) {
  (void)close(s->fd);
  weft_text_free(&s->raw);
  weft_text_free(&s->body);
}

/* Reads what comes. False: nothing more does. */
static bool read_more(stream *s) {
  bool more = talk_read(s->fd, &s->raw, TALK_MS) > 0;
  if (more && !s->has_head) {
    const char *end = strstr(s->raw.bytes, "\r\n\r\n");
    if (end == NULL) return true;
    assert_memory_equal(s->raw.bytes, "HTTP/1.1 200 OK\r\n", 17);
    assert_non_null(strstr(s->raw.bytes, "Content-Type: text/event-stream"));
    size_t n = (size_t)(end - s->raw.bytes) + 4;
    memmove(s->raw.bytes, s->raw.bytes + n, s->raw.n - n + 1);
    s->raw.n -= n;
    s->has_head = true;
  }
  if (s->has_head && s->raw.n > 0 && talk_unchunk(&s->raw, &s->body)) s->over = true;
  return more;
}

/* The data line of the first whole event at or behind a place, and its length; NULL: none is there yet. It goes from
 * line to line, since under a sanitizer each strstr looks through all that follows. */
static const char *find_event(const stream *s, const char *at, size_t *n_bytes) {
  const char *end = s->body.bytes + s->body.n, *newline;
  bool is_stats = false;
  for (; at < end && (newline = memchr(at, '\n', (size_t)(end - at))) != NULL; at = newline + 1) {
    *n_bytes = (size_t)(newline - at);
    if (is_stats) return newline + 1 < end && newline[1] == '\n' ? at : NULL;
    is_stats = *n_bytes == 12 && memcmp(at, "event: stats", 12) == 0;
  }
  return NULL;
}

static uint32_t count_events(const stream *s) {
  uint32_t n = 0;
  size_t n_bytes;
  for (const char *at = s->body.bytes; (at = find_event(s, at, &n_bytes)) != NULL; at += n_bytes) n += 1;
  return n;
}

/* The n-th whole event, parsed. The caller decrefs. */
static json_t *event_at(const stream *s, uint32_t n) {
  size_t n_bytes = 0;
  const char *at = s->body.bytes;
  for (uint32_t i = 0; i <= n; i++) {
    at = find_event(s, at + n_bytes, &n_bytes);
    assert_non_null(at);
  }
  assert_memory_equal(at, "data: ", 6);
  json_t *root = json_loadb(at + 6, n_bytes - 6, 0, NULL);
  assert_non_null(root);
  return root;
}

static void await_events(stream *s, uint32_t n) {
  while (count_events(s) < n) {
    if (!read_more(s)) fail_msg("the stream ended after %u events: %s", count_events(s), s->body.bytes);
  }
}

static json_t *stats_as(uint16_t port, const char *headers) {
  talk_answer a = talk_ask_as(port, "GET", "/stats", headers, "");
  if (a.code != 200) fail_msg("/stats gave %d: %s", a.code, a.body.bytes);
  char value[64];
  assert_string_equal(talk_header(&a, "Cache-Control", value, sizeof value), "no-store");
  assert_string_equal(talk_header(&a, "Content-Type", value, sizeof value), "application/json");
  json_t *root = json_loads(a.body.bytes, 0, NULL);
  assert_non_null(root);
  talk_answer_free(&a);
  return root;
}

static double metric_as(uint16_t port, const char *headers, const char *name) {
  talk_answer a = talk_ask_as(port, "GET", "/metrics", headers, "");
  assert_int_equal(a.code, 200);
  double value = talk_metric_of(a.body.bytes, name);
  talk_answer_free(&a);
  return value;
}

/* The cells of a pool, by state. */
static void count_cells(json_t *pool, json_int_t *of_state) {
  json_t *runs = at(pool, "grid.runs");
  json_int_t n = 0, n_owners = (json_int_t)json_array_size(at(pool, "owners"));
  for (size_t i = 0; i < json_array_size(runs); i++) {
    json_t *run = json_array_get(runs, i);
    json_int_t state = int_at(run, "0"), owner = int_at(run, "1"), length = int_at(run, "2");
    assert_in_range(state, 0, 4);
    assert_true(length > 0 && owner < n_owners && (owner == -1) == (state == 0));
    of_state[state] += length;
    n += length;
  }
  assert_int_equal(n, int_at(pool, "grid.cells"));
}

/* ---- what is said, and to whom ---- */

static void check_whole(json_t *root) {
  assert_string_equal(text_at(root, "object"), "stats");
  assert_string_equal(text_at(root, "scope"), "all");
  json_t *pool = at(root, "replicas.0.pool");
  assert_int_equal(int_at(pool, "free") + int_at(pool, "cached") + int_at(pool, "live") + int_at(pool, "pinned"),
                   int_at(pool, "pages"));
  json_int_t cells[5] = {0};
  count_cells(pool, cells);
  assert_int_equal(cells[4], 0);
  if (int_at(pool, "grid.pages_per_cell") == 1) {
    assert_int_equal(cells[0], int_at(pool, "free"));
    assert_int_equal(cells[1], int_at(pool, "cached"));
    assert_int_equal(cells[2], int_at(pool, "live"));
    assert_int_equal(cells[3], int_at(pool, "pinned"));
  }
}

/* Two tenants: the operator sees both, each of them itself and that the rest is taken. */
static void test_scopes(void **state) {
  talk *t = *state;
  /* pages of both are in the cache */
  talk_check(talk_ask_as(t->port, "POST", CHAT, RED, long_answer), 200, "content");
  talk_check(talk_ask_as(t->port, "POST", CHAT, BLUE, long_answer), 200, "content");
  json_t *all = stats_as(t->port, OPERATOR), *red = stats_as(t->port, RED);
  check_whole(all);
  assert_int_equal(json_array_size(at(all, "tenants")), 3);
  assert_string_equal(text_at(all, "tenants.1.name"), "red");
  assert_int_equal(int_at(all, "tenants.1.weight"), 2);
  assert_int_equal(int_at(all, "tenants.1.limits.running"), 8);
  assert_null(at(all, "tenants.1.limits.pages"));
  assert_int_equal(int_at(all, "tenants.1.finished"), 1);
  assert_int_equal(int_at(all, "tenants.2.answer_tokens"), 600);
  assert_true(json_array_size(at(all, "replicas.0.steps")) > 1);
  assert_true(int_at(all, "models.0.steps") > 1);
  assert_int_equal(int_at(all, "cache.prompts"), 2);
  /* the demo model has eight experts, each of which is counted where a layer has had 32 tokens for each */
  double n_ratios = metric_as(t->port, OPERATOR, "weft_expert_tokens_ratio_count");
  assert_true(n_ratios > 0 && n_ratios == 8 * metric_as(t->port, OPERATOR, "weft_expert_evenness_count"));
  assert_string_equal(text_at(red, "scope"), "own");
  assert_string_equal(text_at(red, "tenant"), "red");
  assert_int_equal(json_array_size(at(red, "tenants")), 1);
  assert_string_equal(text_at(red, "tenants.0.name"), "red");
  assert_int_equal(json_array_size(at(red, "replicas.0.steps")), 0);
  assert_null(at(red, "queue"));
  assert_null(at(red, "cache"));
  assert_null(at(red, "models.0.steps"));
  assert_null(at(red, "replicas.0.pool.free"));
  json_int_t cells[5] = {0};
  count_cells(at(red, "replicas.0.pool"), cells);
  assert_int_equal(cells[1], int_at(red, "tenants.0.pages_cached"));
  assert_int_equal(cells[1], int_at(all, "tenants.1.pages_cached"));
  assert_int_equal(cells[4], int_at(all, "tenants.2.pages_cached"));
  assert_true(cells[1] > 0 && cells[4] > 0);
  char *text = json_dumps(red, 0);
  assert_null(strstr(text, "blue"));
  assert_null(strstr(text, "operator"));
  free(text);
  json_decref(all);
  json_decref(red);
}

static const char *phase_in(json_t *root) {
  return json_array_size(at(root, "requests")) == 0 ? "" : text_at(root, "requests.0.phase");
}

/* A canvas is seen to move, by its tenant and the operator alone. */
static void test_requests(void **state) {
  talk *t = *state;
  stream own = watch(t->port, RED), all = watch(t->port, OPERATOR), other = watch(t->port, BLUE);
  await_events(&own, 1);
  await_events(&all, 1);
  await_events(&other, 1);
  int fd = talk_dial(t->port);
  talk_send(fd, "POST", CHAT, RED, long_answer, strlen(long_answer));
  bool seen = false;
  for (uint32_t n = 1; !seen; n++) {
    await_events(&own, n + 1);
    json_t *root = event_at(&own, n);
    if (strcmp(phase_in(root), "denoise") == 0) {
      seen = true;
      assert_int_equal(int_at(root, "requests.0.tenant"), 0);
      assert_string_equal(text_at(root, "requests.0.kind"), "canvas");
      assert_int_equal(int_at(root, "requests.0.canvas"), 32);
      assert_int_equal(int_at(root, "requests.0.answer_max"), 600);
      assert_true(int_at(root, "requests.0.step") <= int_at(root, "requests.0.steps"));
      assert_int_equal(strlen(text_at(root, "requests.0.id")), 13);
      /* counts of tenants are taken after the view of the requests, so it may have ended meanwhile */
      assert_int_equal(json_is_true(at(root, "tenants.0.active")),
                       int_at(root, "tenants.0.running") + int_at(root, "tenants.0.waiting") > 0);
      assert_true(int_at(root, "tenants.0.submitted") > 0);
      json_t *whole = stats_as(t->port, OPERATOR);
      if (json_array_size(at(whole, "requests")) == 1) { /* it may have ended meanwhile */
        assert_int_equal(int_at(whole, "requests.0.tenant"), 1);
        assert_string_equal(text_at(whole, "requests.0.id"), text_at(root, "requests.0.id"));
      }
      json_decref(whole);
    } else if (int_at(root, "tenants.0.finished") > 1 && int_at(root, "tenants.0.running") == 0) {
      /* it ran between two looks, as on a machine that starves: once more */
      talk_answer a = talk_receive(fd);
      talk_answer_free(&a);
      talk_send(fd, "POST", CHAT, RED, long_answer, strlen(long_answer));
    }
    json_decref(root);
  }
  talk_answer a = talk_receive(fd);
  assert_int_equal(a.code, 200);
  talk_answer_free(&a);
  (void)close(fd);
  for (uint32_t i = 0; i < count_events(&other); i++) {
    json_t *root = event_at(&other, i);
    assert_int_equal(json_array_size(at(root, "requests")), 0);
    assert_int_equal(int_at(root, "requests_left_out"), 0);
    json_decref(root);
  }
  close_stream(&own);
  close_stream(&all);
  close_stream(&other);
}

static void test_keys_and_methods(void **state) {
  talk *t = *state;
  static const char *const paths[] = {"/stats", "/stats/stream"};
  for (size_t i = 0; i < 2; i++) {
    talk_check(talk_ask(t->port, "GET", paths[i], ""), 401, "missing_api_key");
    talk_check(talk_ask_as(t->port, "GET", paths[i], "Authorization: Bearer sk-re\r\n", ""), 401, "invalid_api_key");
    talk_check(talk_ask_as(t->port, "GET", paths[i], "Authorization: Basic sk-red\r\n", ""), 401, "missing_api_key");
    talk_check(talk_ask_as(t->port, "GET", paths[i], RED "Origin: https://evil.example\r\n", ""), 403, "cross_origin");
    talk_check(talk_ask_as(t->port, "POST", paths[i], RED, "{}"), 405, "method_not_allowed");
    int fd = talk_dial(t->port);
    talk_send(fd, "HEAD", paths[i], RED, "", 0);
    weft_text raw = {0};
    while (raw.n == 0 || strstr(raw.bytes, "\r\n\r\n") == NULL) assert_true(talk_read(fd, &raw, TALK_MS) > 0);
    assert_memory_equal(raw.bytes, "HTTP/1.1 200 OK\r\n", 17);
    assert_string_equal(strstr(raw.bytes, "\r\n\r\n"), "\r\n\r\n");
    weft_text_free(&raw);
    talk_check(talk_ask_on(fd, "GET", "/version", "", ""), 200, "version"); /* the head was all of it */
  }
}

/* ---- how often ---- */

/* Nobody looks: nothing is copied, whatever runs. */
static void test_costs_nothing_alone(void **state) {
  talk t;
  (void)state;
  (void)talk_serve(&t, NULL, (weft_open_options){0}, (weft_server_options){0});
  for (int i = 0; i < 3; i++) talk_check(talk_ask(t.port, "POST", CHAT, short_answer), 200, "content");
  assert_true(talk_metric(t.port, "weft_steps_total") > 0);
  assert_true(talk_metric(t.port, "weft_views_total") == 0);
  assert_true(talk_metric(t.port, "weft_looks_total") == 0);
  json_t *root = stats_as(t.port, ""); /* without keys everybody sees everything */
  check_whole(root);

  json_decref(root);
  assert_true(talk_metric(t.port, "weft_looks_total") == 1);
  assert_true(talk_metric(t.port, "weft_views_total") == 1);
  talk_await(t.port, "weft_watchers", 0);
  talk_close(&t);
}

/* One look is for all who watch, and while nothing changes none of them is told so. */
static void test_ten_watch(void **state) {
  enum { N = 10 };
  talk *t = *state;
  stream s[N];
  for (int i = 0; i < N; i++) s[i] = watch(t->port, i < 9 ? OPERATOR : RED);
  for (int i = 0; i < N; i++) await_events(&s[i], 1);
  assert_true(metric_as(t->port, OPERATOR, "weft_watchers") == N);
  talk_check(talk_ask_as(t->port, "GET", "/load", OPERATOR, ""), 200, "{\"server_load\":0}");
  /* when the pool and the counters have come to rest, looks go on and events do not */
  double looks = metric_as(t->port, OPERATOR, "weft_looks_total");
  while (metric_as(t->port, OPERATOR, "weft_looks_total") < looks + 3) (void)poll(NULL, 0, 10);
  struct pollfd quiet = {.fd = s[0].fd, .events = POLLIN};
  while (poll(&quiet, 1, 0) > 0) assert_true(read_more(&s[0]));
  uint32_t n_before = count_events(&s[0]);
  /* nine of the operator's watch: there is room for seven more of it, and for others */
  stream more[7];
  for (int i = 0; i < 7; i++) more[i] = watch(t->port, OPERATOR);
  for (int i = 0; i < 7; i++) await_events(&more[i], 1);
  talk_check(talk_ask_as(t->port, "GET", "/stats", OPERATOR, ""), 429, "too_many_requests");
  talk_check(talk_ask_as(t->port, "GET", "/stats/stream", OPERATOR, ""), 429, "too_many_requests");
  talk_check(talk_ask_as(t->port, "GET", "/stats", BLUE, ""), 200, "own");
  for (int i = 0; i < 7; i++) close_stream(&more[i]);
  while (metric_as(t->port, OPERATOR, "weft_watchers") > N) (void)poll(NULL, 0, 1);
  looks = metric_as(t->port, OPERATOR, "weft_looks_total");
  while (metric_as(t->port, OPERATOR, "weft_looks_total") < looks + 3) (void)poll(NULL, 0, 10);
  while (poll(&quiet, 1, 0) > 0) assert_true(read_more(&s[0]));
  assert_int_equal(count_events(&s[0]), n_before);
  talk_check(talk_ask_as(t->port, "POST", CHAT, BLUE, short_answer), 200, "content");
  await_events(&s[0], n_before + 1);
  json_t *last = event_at(&s[0], count_events(&s[0]) - 1);
  json_int_t number = int_at(last, "number");
  json_decref(last);
  const char *mine = strstr(s[0].body.bytes, "event: stats\n");
  for (uint32_t i = 1; i < count_events(&s[0]); i++) mine = strstr(mine + 1, "event: stats\n");
  size_t n = (size_t)(strstr(mine, "\n\n") - mine);
  for (int i = 1; i < 9; i++) { /* the same bytes for all of the operator's */
    char word[64];
    (void)snprintf(word, sizeof word, "\"number\":%lld,", (long long)number);
    while (s[i].body.bytes == NULL || strstr(s[i].body.bytes, word) == NULL ||
           strstr(strstr(s[i].body.bytes, word), "\n\n") == NULL)
      assert_true(read_more(&s[i]));
    assert_non_null(memmem(s[i].body.bytes, s[i].body.n, mine, n));
  }
  /* a copy of the engine's for each look, and no more */
  double n_views = metric_as(t->port, OPERATOR, "weft_views_total");
  assert_true(metric_as(t->port, OPERATOR, "weft_looks_total") + 1 >= n_views);
  for (int i = 0; i < N; i++) close_stream(&s[i]);
  while (metric_as(t->port, OPERATOR, "weft_watchers") > 0) (void)poll(NULL, 0, 1);
}

/* Who does not read misses events, and nobody waits for it. Many tenants with long names make a large event. */
static void test_who_does_not_read(void **state) {
  weft_text keys = {0};
  talk t;
  int small = 2048;
  (void)state;
  weft_text_puts(&keys, "sk-op operator\n");
  for (int i = 0; i < 250; i++)
    weft_text_printf(&keys, "sk-%d %03d<script>alert('%035d')</script> weight=%d running=9 queued=9 blocks=4096\n", i,
                     i, i, 1 + i);
  (void)talk_serve(&t, keys.bytes, (weft_open_options){0}, (weft_server_options){0});
  weft_text_free(&keys);
  stream lazy = {.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(t.port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
  assert_int_equal(setsockopt(lazy.fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small), 0);
  assert_int_equal(connect(lazy.fd, (struct sockaddr *)&to, sizeof to), 0);
  talk_send(lazy.fd, "GET", "/stats/stream", OPERATOR, "", 0);
  stream s = watch(t.port, OPERATOR);
  uint32_t n = 0;
  json_int_t last = 0, n_bytes = 0;
  for (; n < 45; n++) { /* each of them is told to who reads: 45 events are 6 MB, more than sockets hold */
    talk_check(talk_ask_as(t.port, "POST", CHAT, "Authorization: Bearer sk-7\r\n", short_answer), 200, "content");
    weft_text_clear(&s.body);
    await_events(&s, 1);
    json_t *root = event_at(&s, 0);
    assert_true(int_at(root, "number") > last);
    last = int_at(root, "number");
    n_bytes += (json_int_t)s.body.n;
    if (n == 0) assert_true(strncmp(text_at(root, "tenants.8.name"), "007<script>alert('", 18) == 0);
    json_decref(root);
  }
  assert_true(n_bytes > 4 << 20);
  while (lazy.body.n == 0 || count_events(&lazy) == 0) assert_true(read_more(&lazy));
  json_t *first = event_at(&lazy, 0);
  json_int_t number = int_at(first, "number");
  json_decref(first);
  for (uint32_t i = 0; number < last; i++) { /* whole events, in order, and the newest */
    await_events(&lazy, i + 1);
    json_t *root = event_at(&lazy, i);
    assert_true(i == 0 || int_at(root, "number") > number);
    number = int_at(root, "number");
    json_decref(root);
  }
  if (count_events(&lazy) >= n) fail_msg("it got all %u events", n);
  close_stream(&lazy);
  close_stream(&s);
  talk_close(&t);
}

/* ---- how it ends ---- */

static void write_file(const char *path, const char *text) {
  FILE *file = fopen(path, "wb");
  assert_non_null(file);
  assert_int_equal(fwrite(text, 1, strlen(text), file), strlen(text));
  assert_int_equal(fclose(file), 0);
  assert_int_equal(chmod(path, 0600), 0);
}

static void await_end(stream *s, const char *code) {
  while (!s->over) {
    if (!read_more(s)) fail_msg("the stream broke off: %s", s->body.bytes);
  }
  const char *end = strstr(s->body.bytes, "event: error\ndata: {\"error\":{");
  if (end == NULL || strstr(end, code) == NULL) fail_msg("it ends without %s: %s", code, s->body.bytes);
}

/* A key that is taken away ends its streams, and no others: not those of another key of its tenant. */
static void test_key_is_taken_away(void **state) {
  char path[] = "/tmp/weft-stats-XXXXXX";
  const weft_keys_source source = {.path = path};
  weft_error error = {{0}};
  talk t;
  (void)state;
  int file = mkstemp(path);
  assert_true(file >= 0);
  (void)close(file);
  (void)talk_serve(&t, keys_text, (weft_open_options){0}, (weft_server_options){0});
  stream gone = watch(t.port, RED), stays = watch(t.port, "Authorization: Bearer sk-red-2\r\n");
  await_events(&gone, 1);
  await_events(&stays, 1);
  write_file(path, "sk-op operator\nsk-red-2 red weight=2 running=8\nsk-new red\nsk-blue blue\n");
  weft_keys_news news;
  if (weft_keys_reload(t.keys, &source, NULL, &news, &error) != WEFT_OK) fail_msg("%s", error.text);
  await_end(&gone, "\"code\":\"invalid_api_key\"");
  talk_check(talk_ask_as(t.port, "GET", "/stats", RED, ""), 401, "invalid_api_key");
  uint32_t n = count_events(&stays);
  talk_check(talk_ask_as(t.port, "POST", CHAT, "Authorization: Bearer sk-new\r\n", short_answer), 200, "content");
  await_events(&stays, n + 1);
  close_stream(&gone);
  close_stream(&stays);
  talk_close(&t);
  (void)unlink(path);
}

static void test_drain(void **state) {
  talk t;
  (void)state;
  (void)talk_serve(&t, keys_text, (weft_open_options){0}, (weft_server_options){0});
  stream s = watch(t.port, RED);
  await_events(&s, 1);
  assert_false(weft_server_idle(t.server));
  weft_server_drain(t.server);
  await_end(&s, "\"code\":\"draining\"");
  stream late = watch(t.port, RED);
  await_end(&late, "\"code\":\"draining\"");
  json_t *root = stats_as(t.port, OPERATOR);
  assert_true(json_is_true(at(root, "draining")));
  json_decref(root);
  while (!weft_server_idle(t.server)) (void)poll(NULL, 0, 1);
  close_stream(&s);
  close_stream(&late);
  /* a server that is closed under its watchers, which hang on or have left */
  talk other;
  (void)talk_serve(&other, NULL, (weft_open_options){0}, (weft_server_options){0});
  stream hangs = watch(other.port, ""), left = watch(other.port, "");
  await_events(&hangs, 1);
  close_stream(&left);
  talk_close(&other);
  while (!hangs.over && read_more(&hangs)) continue;
  close_stream(&hangs);
  talk_close(&t);
}

static int open_server(void **state) {
  static talk t;
  *state = talk_serve(&t, keys_text, (weft_open_options){.context = 1024}, (weft_server_options){0});
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_scopes), cmocka_unit_test(test_requests),
                                     cmocka_unit_test(test_keys_and_methods), cmocka_unit_test(test_ten_watch)};
  const struct CMUnitTest alone[] = {cmocka_unit_test(test_costs_nothing_alone),
                                     cmocka_unit_test(test_who_does_not_read), cmocka_unit_test(test_key_is_taken_away),
                                     cmocka_unit_test(test_drain)};
  int failed = cmocka_run_group_tests_name("http/api_stats", tests, open_server, close_talk);
  return failed + cmocka_run_group_tests_name("http/api_stats alone", alone, NULL, NULL);
}
