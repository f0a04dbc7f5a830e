/* SPDX-License-Identifier: MIT */
/* What a client that shows canvases sees, over real sockets: it shows the text committed so far and behind it the
 * newest canvas, and forgets the canvas when text of its block arrives (docs/server.md).
 *
 *   order    canvases of a block come with steps 0, 1, ..; the last one says `stopped`, or is the last step asked
 *            for; then the text of the block; then the next block; nothing of a choice comes after its finish_reason,
 *   and nothing after [DONE] text     what is committed for a block is what its last canvas showed (of the last block:
 *            the beginning, where the answer ends inside the canvas), and all of it together is the answer of the same
 *            request without a stream */
#include <math.h>

#include "tests/support/http_conversation.h"

#define CHAT "/v1/chat/completions"
#define TABLE                                                                                                    \
  "\"messages\":[{\"role\":\"user\",\"content\":\"Make a table: Tom 43 Oslo; Ana 88 Kyiv; Zoe 47 Seoul; Kim 19 " \
  "Paris\"}],\"mode\":\"diffusion\",\"seed\":5,"

enum { CHOICES_MAX = 3, POSITIONS = 32 };

static talk server;

static int open_server(void **state) {
  *state = talk_serve(&server, NULL, (weft_open_options){.threads = 2, .kv_bytes = 16 << 20, .context = 1024},
                      (weft_server_options){0});
  return 0;
}

/* A choice as the client shows it. */
typedef struct view {
  weft_text committed, block_text, canvas; /* block_text: committed since the newest canvas */
  json_int_t block, step;
  bool stopped, ended;
  uint32_t n_canvases;
  json_int_t steps; /* asked for; 0: not said */
} view;

/* The newest canvas is the last of its block. */
static bool is_done(const view *v) {
  return v->stopped || v->step + 1 == v->steps;
}

/* All of the block before the newest canvas has been committed. */
static void check_block(const view *v, bool last) {
  size_t n = v->block_text.n;
  if (v->block < 0) return;
  assert_true(is_done(v));
  assert_true(last ? n <= v->canvas.n : n == v->canvas.n);
  assert_memory_equal(v->block_text.bytes == NULL ? "" : v->block_text.bytes, v->canvas.bytes, n);
}

static void take_canvas(view *v, json_t *data) {
  json_int_t block = int_at(data, "block"), step = int_at(data, "step");
  assert_false(v->ended);
  if (block == v->block) {
    assert_false(is_done(v)); /* nothing follows the last step of a block, least of all after its text */
    assert_int_equal(v->block_text.n, 0);
    assert_int_equal(step, v->step + 1);
  } else {
    check_block(v, false);
    assert_int_equal(block, v->block + 1);
    assert_int_equal(step, 0);
    weft_text_clear(&v->block_text);
  }
  v->block = block;
  v->step = step;
  v->stopped = json_is_true(at(data, "stopped"));
  v->n_canvases += 1;
  weft_text_clear(&v->canvas);
  weft_text_puts(&v->canvas, text_at(data, "text"));
  assert_int_equal(int_at(data, "positions"), POSITIONS);
  assert_in_range(int_at(data, "accepted"), 0, POSITIONS);
}

static void take_chunk(view *v, json_t *choice) {
  const char *content = json_string_value(json_object_get(at(choice, "delta"), "content"));
  assert_false(v->ended);
  if (content != NULL && content[0] != 0) {
    assert_true(is_done(v)); /* text comes when its canvas is committed, and no sooner */
    weft_text_puts(&v->committed, content);
    weft_text_puts(&v->block_text, content);
  }
  v->ended = !json_is_null(at(choice, "finish_reason"));
}

/* Shows the whole stream; the number of its canvases. */
static uint32_t watch(json_t *events, view *views, uint32_t n_choices, json_int_t steps) {
  size_t i, n = json_array_size(events);
  json_t *event;
  uint32_t n_canvases = 0;
  for (uint32_t c = 0; c < n_choices; c++) views[c] = (view){.block = -1, .steps = steps};
  assert_string_equal(text_at(json_array_get(events, n - 1), "data"), "[DONE]");
  json_array_foreach(events, i, event) {
    if (i + 1 == n) break;
    json_t *data = at(event, "data"), *choice = json_array_get(json_object_get(data, "choices"), 0);
    bool replaces = strcmp(text_at(event, "event"), "replace") == 0;
    assert_true(json_is_array(at(data, "choices"))); /* for clients that read every event as a chunk */
    assert_string_equal(text_at(data, "object"), "chat.completion.chunk");
    if (!replaces && choice == NULL) { /* usage: every choice has ended */
      for (uint32_t c = 0; c < n_choices; c++) assert_true(views[c].ended);
      assert_int_equal(i, n - 2);
      continue;
    }
    json_int_t index = int_at(replaces ? data : choice, "index");
    assert_in_range(index, 0, n_choices - 1);
    if (replaces) take_canvas(&views[index], data);
    if (!replaces) take_chunk(&views[index], choice);
  }
  for (uint32_t c = 0; c < n_choices; c++) {
    assert_true(views[c].ended);
    check_block(&views[c], true);
    n_canvases += views[c].n_canvases;
  }
  return n_canvases;
}

/* Of this many blocks in each choice at least. */
static void check_request(const char *fields, uint32_t n_choices, json_int_t n_blocks, json_int_t steps) {
  char body[1024];
  view views[CHOICES_MAX];
  (void)snprintf(body, sizeof body, "{" TABLE "%s}", fields);
  json_t *whole = talk_json(server.port, CHAT, body);
  (void)snprintf(body, sizeof body,
                 "{" TABLE "%s,\"stream\":true,\"stream_canvas\":true,\"stream_options\":{\"include_usage\":true}}",
                 fields);
  json_t *events = talk_stream(server.port, CHAT, body);
  uint32_t n_canvases = watch(events, views, n_choices, steps);
  json_t *usage = at(json_array_get(events, json_array_size(events) - 2), "data.usage");
  assert_int_equal(n_canvases, int_at(usage, "completion_tokens_details.denoise_steps"));
  for (uint32_t c = 0; c < n_choices; c++) {
    char path[64];
    (void)snprintf(path, sizeof path, "choices.%u.message.content", c);
    assert_string_equal(views[c].committed.bytes, text_at(whole, path));
    assert_true(views[c].block + 1 >= n_blocks);
    weft_text_free(&views[c].committed);
    weft_text_free(&views[c].block_text);
    weft_text_free(&views[c].canvas);
  }
  json_decref(events);
  json_decref(whole);
}

static void test_requests(void **state) {
  static const struct {
    const char *name, *fields;
    uint32_t n_choices;
    json_int_t n_blocks, steps;
  } rows[] = {
      {"to the end", "\"temperature\":0,\"max_tokens\":64", 1, 2, 0},
      {"several choices", "\"temperature\":1.2,\"max_tokens\":80,\"n\":3", 3, 2, 0},
      {"cut inside the second canvas", "\"temperature\":0,\"max_tokens\":36", 1, 2, 0},
      {"cut inside the first canvas", "\"temperature\":0,\"max_tokens\":9", 1, 1, 0},
      {"cut by a stop", "\"temperature\":0,\"max_tokens\":64,\"stop\":[\"Seoul\"]", 1, 1, 0},
      {"every step, also of canvases that never come to rest",
       "\"temperature\":0,\"max_tokens\":40,\"diffusion\":{\"steps\":6,\"confidence\":0}", 1, 2, 6},
  };
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    print_message("%s\n", rows[i].name);
    check_request(rows[i].fields, rows[i].n_choices, rows[i].n_blocks, rows[i].steps);
  }
}

/* ---- every position ---- */

#define BROKEN "\xEF\xBF\xBD"

typedef struct piece_counts {
  uint32_t n_canvases, n_drawn, n_noise, n_broken, n_moved;
} piece_counts;

static json_int_t count_null(json_t *list) {
  json_int_t n = 0;
  for (size_t i = 0; i < json_array_size(list); i++) n += json_is_null(json_array_get(list, i));
  return n;
}

/* What an event says of its positions agrees with what it says of all of them. */
static void check_positions(json_t *data, piece_counts *n) {
  static const char *const lists[] = {"pieces", "drawn", "noise", "entropy"};
  json_t *pieces = at(data, "pieces"), *noise = at(data, "noise");
  json_int_t end = int_at(data, "end");
  weft_text joined = {0};
  double sum = 0;
  bool broken = false;
  for (size_t i = 0; i < 4; i++) assert_int_equal(json_array_size(at(data, lists[i])), POSITIONS);
  assert_int_equal(count_null(noise), int_at(data, "accepted"));
  assert_in_range(end, 0, POSITIONS);
  assert_true(int_at(data, "step") < int_at(data, "steps"));
  for (json_int_t i = 0; i < POSITIONS; i++) {
    const char *piece = json_string_value(json_array_get(pieces, (size_t)i));
    const char *random = json_string_value(json_array_get(noise, (size_t)i));
    assert_non_null(piece);
    if (i < end) weft_text_puts(&joined, piece);
    broken = broken || (i < end && strstr(piece, BROKEN) != NULL);
    n->n_broken += random != NULL && strstr(random, BROKEN) != NULL;
    sum += json_number_value(json_array_get(at(data, "entropy"), (size_t)i));
  }
  if (!broken && strchr(text_at(data, "text"), '<') == NULL && (joined.n == 0 || strchr(joined.bytes, '<') == NULL))
    assert_string_equal(joined.n == 0 ? "" : joined.bytes, text_at(data, "text"));
  assert_true(fabs(sum / POSITIONS - json_number_value(at(data, "mean_entropy"))) < 0.001);
  n->n_canvases += 1;
  n->n_noise += (uint32_t)(POSITIONS - count_null(noise));
  n->n_drawn += (uint32_t)(POSITIONS - count_null(at(data, "drawn")));
  weft_text_free(&joined);
}

/* The same canvases as without the positions, the same text, and broken bytes only where a token is a part of a
 * character: hot canvases, whose noise has any token of the vocabulary. */
static void check_tokens(const char *path, const char *ask) {
  piece_counts n = {0};
  char body[1024];
  (void)snprintf(body, sizeof body, "{%s,\"stream\":true,\"stream_canvas\":true,\"return_token_ids\":true}", ask);
  json_t *plain = talk_stream(server.port, path, body);
  (void)snprintf(body, sizeof body, "{%s,\"stream\":true,\"stream_canvas\":\"tokens\",\"return_token_ids\":true}", ask);
  json_t *events = talk_stream(server.port, path, body);
  size_t i;
  json_t *event;
  assert_int_equal(json_array_size(events), json_array_size(plain));
  json_array_foreach(events, i, event) {
    static const char *const same[] = {"choices.0.delta", "choices.0.text", "text",        "block",        "step",
                                       "accepted",        "stopped",        "temperature", "mean_entropy", "token_ids"};
    json_t *other = json_array_get(plain, i);
    assert_string_equal(text_at(event, "event"), text_at(other, "event"));
    if (json_is_string(at(event, "data"))) continue;
    for (size_t k = 0; k < sizeof same / sizeof *same; k++)
      assert_true(json_equal(at(at(event, "data"), same[k]), at(at(other, "data"), same[k])) ||
                  at(at(event, "data"), same[k]) == at(at(other, "data"), same[k]));
    if (strcmp(text_at(event, "event"), "replace") != 0) continue;
    assert_null(at(at(other, "data"), "pieces"));
    check_positions(at(event, "data"), &n);
  }
  assert_true(n.n_canvases > 4);
  assert_true(n.n_noise > 0 && n.n_drawn > 0 && n.n_broken > 0);
  json_decref(plain);
  json_decref(events);
}

static void test_positions(void **state) {
#define HOT \
  "\"max_tokens\":64,\"diffusion\":{\"steps\":8,\"confidence\":0,\"entropy_bound\":0.05,\"t_max\":4,\"t_min\":1}"
  (void)state;
  check_tokens(CHAT, TABLE HOT);
  check_tokens("/v1/completions", "\"prompt\":\"Tom 43 Oslo; Ana 88\",\"mode\":\"diffusion\",\"seed\":3," HOT);
  /* by no diffusion there are no canvases, whatever is asked of them */
  json_t *events = talk_stream(server.port, CHAT,
                               "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"mode\":\"autoregressive\","
                               "\"max_tokens\":4,\"stream\":true,\"stream_canvas\":\"tokens\"}");
  for (size_t i = 0; i < json_array_size(events); i++)
    assert_string_equal(text_at(json_array_get(events, i), "event"), "");
  json_decref(events);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_requests), cmocka_unit_test(test_positions)};
  return cmocka_run_group_tests(tests, open_server, close_talk);
}
