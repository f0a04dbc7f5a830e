/* SPDX-License-Identifier: MIT */
/* Answers of a server that speaks OpenAI's protocol, weft's own or another. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "api/cli/client.h"
#include "api/cli/observe.h"
#include "api/cli/speaker.h"
#include "base/memory.h"

enum { MODELS_MAX = 4096, ANSWER_MS = 3600000, LIST_MS = 30000 };

typedef struct remote_speaker {
  weft_speaker speaker; /* first: who has a pointer to it has one to this */
  const weft_config *config;
  weft_client_url url;
  weft_target target; /* points into url and key */
  char key[WEFT_KEY_BYTES_MAX];
  json_t *models; /* an array of cards, those that were asked for first */
  /* the answer that is being heard */
  const weft_listener *listener;
  weft_text event, canvas;
  weft_cell *cell;
  uint32_t n_cells_max;
  char finish[32], failure[400];
  bool too_long, any_text;
} remote_speaker;

static json_t *card_at(const remote_speaker *r, uint32_t index) {
  return json_array_get(r->models, index);
}

static const char *name_model(const weft_speaker *s, uint32_t index) {
  return json_string_value(json_object_get(card_at((const remote_speaker *)s, index), "id"));
}

/* The server is one of weft and takes what only weft has. */
static bool is_weft(const remote_speaker *r, uint32_t index) {
  const char *owner = json_string_value(json_object_get(card_at(r, index), "owned_by"));
  return owner != NULL && strcmp(owner, "weft") == 0;
}

static void describe_model(const weft_speaker *s, uint32_t index, weft_text *out) {
  const remote_speaker *r = (const remote_speaker *)s;
  const json_t *length = json_object_get(card_at(r, index), "max_model_len");
  weft_text_printf(out, "at %s", r->config->url);
  if (json_is_integer(length)) weft_text_printf(out, ", context of %lld tokens", (long long)json_integer_value(length));
}

static void close_remote(weft_speaker *s) {
  remote_speaker *r = (remote_speaker *)s;
  json_decref(r->models);
  weft_text_free(&r->event);
  weft_text_free(&r->canvas);
  weft_free(r->cell);
  explicit_bzero(r->key, sizeof r->key);
  weft_free(r);
}

/* ---- refusals ---------------------------------------------------------------------------------- */

/* {"error": {"message": ..., "code": ..., "type": ...}}, or an error that is a text. */
static void keep_failure(remote_speaker *r, const json_t *root) {
  const json_t *error = json_object_get(root, "error");
  const char *words = json_string_value(json_is_string(error) ? error : json_object_get(error, "message"));
  static const char *const members[] = {"code", "type"};
  (void)snprintf(r->failure, sizeof r->failure, "%s", words != NULL ? words : "the server gave no reason");
  for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
    const char *value = json_string_value(json_object_get(error, members[i]));
    r->too_long = r->too_long || (value != NULL && strstr(value, "context") != NULL);
  }
  r->too_long = r->too_long || (words != NULL && strstr(words, "maximum context length") != NULL);
}

static weft_said explain_status(remote_speaker *r, int status, const weft_text *body, weft_error *why) {
  if (status == WEFT_CLIENT_LEFT) return WEFT_SAID_STOPPED;
  if (status < 0) {
    (void)weft_fail(why, WEFT_E_IO,
                    status == WEFT_CLIENT_UNREACHED
                        ? "no server answers at %s: your question was not asked"
                        : "the server at %s broke off: what was answered so far is not kept",
                    r->config->url);
    return WEFT_SAID_GONE;
  }
  if (status == 401 || status == 403) {
    (void)weft_fail(why, WEFT_E_INVALID, "the server at %s wants a key: name its file with --key-file FILE",
                    r->config->url);
    return WEFT_SAID_REFUSED;
  }
  json_t *root = body->bytes == NULL ? NULL : json_loadb(body->bytes, body->n, 0, NULL);
  keep_failure(r, root);
  json_decref(root);
  (void)weft_fail(why, WEFT_E_INVALID, "HTTP status %d: %s", status, r->failure);
  return r->too_long ? WEFT_SAID_TOO_LONG : WEFT_SAID_REFUSED;
}

/* ---- events ------------------------------------------------------------------------------------ */

static uint32_t number_of(const json_t *root, const char *name) {
  json_int_t value = json_integer_value(json_object_get(root, name));
  return value > 0 && value < UINT32_MAX ? (uint32_t)value : 0;
}

/* Pieces, noise and what was drawn, where the server tells of each position (docs/page.md). */
static uint32_t make_cells(remote_speaker *r, const json_t *root) {
  const json_t *pieces = json_object_get(root, "pieces"), *noise = json_object_get(root, "noise");
  const json_t *drawn = json_object_get(root, "drawn"), *end = json_object_get(root, "end");
  size_t n = json_array_size(pieces);
  if (n == 0 || n > UINT16_MAX) return 0;
  if (json_is_integer(end) && json_integer_value(end) >= 0 && (size_t)json_integer_value(end) < n)
    n = (size_t)json_integer_value(end);
  if (n > r->n_cells_max) {
    weft_free(r->cell);
    r->cell = weft_alloc(n, sizeof *r->cell);
    r->n_cells_max = r->cell == NULL ? 0 : (uint32_t)n;
  }
  uint32_t made = 0;
  for (size_t i = 0; i < n && r->cell != NULL; i++) {
    const char *piece = json_string_value(json_array_get(pieces, i));
    const char *random = json_string_value(json_array_get(noise, i));
    bool likeliest = json_is_null(json_array_get(drawn, i));
    weft_cell_state state = random == NULL ? WEFT_CELL_ACCEPTED : likeliest ? WEFT_CELL_DRAWN : WEFT_CELL_NOISE;
    const char *text = state == WEFT_CELL_NOISE ? random : piece;
    if (text == NULL || text[0] == 0) continue;
    r->cell[made++] = (weft_cell){.at = (uint32_t)r->canvas.n, .n = (uint32_t)strlen(text), .state = state};
    weft_text_puts(&r->canvas, text);
  }
  return made;
}

static void tell_canvas(remote_speaker *r, const json_t *root) {
  const json_t *text = json_object_get(root, "text");
  weft_canvas_view view = {.block = number_of(root, "block"),
                           .step = number_of(root, "step"),
                           .n_steps = number_of(root, "steps"),
                           .accepted = number_of(root, "accepted"),
                           .n_positions = number_of(root, "positions"),
                           .text = json_is_string(text) ? json_string_value(text) : "",
                           .n_text = json_string_length(text)};
  weft_text_clear(&r->canvas);
  weft_text_puts(&r->canvas, "");
  uint32_t n = make_cells(r, root);
  if (n > 0 && weft_text_status(&r->canvas) == WEFT_OK) {
    view.text = r->canvas.bytes;
    view.n_text = r->canvas.n;
    view.cell = r->cell;
    view.n_cells = n;
  }
  r->listener->canvas(r->listener->self, &view);
}

static void tell_delta(remote_speaker *r, const json_t *root) {
  const json_t *choice = json_array_get(json_object_get(root, "choices"), 0), *delta = json_object_get(choice, "delta");
  static const char *const thinking[] = {"reasoning_content", "reasoning"};
  for (size_t i = 0; i < sizeof thinking / sizeof *thinking; i++) {
    const json_t *text = json_object_get(delta, thinking[i]);
    if (json_string_length(text) == 0) continue;
    r->listener->text(r->listener->self, json_string_value(text), json_string_length(text), true);
    break;
  }
  const json_t *content = json_object_get(delta, "content");
  if (json_string_length(content) > 0)
    r->listener->text(r->listener->self, json_string_value(content), json_string_length(content), false);
  const char *finish = json_string_value(json_object_get(choice, "finish_reason"));
  if (finish != NULL) (void)snprintf(r->finish, sizeof r->finish, "%s", finish);
}

/* event: NAME and data: JSON, each a line. */
static void take_line(void *self, const char *line, size_t n, uint64_t at_us) {
  remote_speaker *r = self;
  static const char event[] = "event:", data[] = "data:";
  (void)at_us;
  if (n == 0) weft_text_clear(&r->event);
  if (n >= sizeof event - 1 && memcmp(line, event, sizeof event - 1) == 0) {
    weft_text_clear(&r->event);
    weft_text_append(&r->event, line + sizeof event - 1, n - (sizeof event - 1));
  }
  if (n < sizeof data - 1 || memcmp(line, data, sizeof data - 1) != 0) return;
  json_t *root = json_loadb(line + sizeof data - 1, n - (sizeof data - 1), 0, NULL); /* [DONE] is none */
  if (root == NULL) return;
  if (json_object_get(root, "error") != NULL && !json_is_null(json_object_get(root, "error"))) {
    keep_failure(r, root);
  } else if (r->event.n > 0 && strstr(r->event.bytes, "replace") != NULL) {
    tell_canvas(r, root);
  } else {
    tell_delta(r, root);
  }
  json_decref(root);
}

static bool is_stopped(void *self) {
  const remote_speaker *r = self;
  r->listener->look(r->listener->self);
  return r->listener->stop(r->listener->self);
}

/* ---- asking ------------------------------------------------------------------------------------ */

/* Members that an option asks for: what was not given is the server's to choose. */
static bool add_options(const weft_config *config, json_t *root, json_t *diffusion) {
  const weft_sampling *s = &config->sampling;
  const weft_entropy_bound *d = &config->entropy_bound;
  const struct {
    json_t *to;
    const char *member;
    bool given;
    double value;
  } rows[] = {{root, "top_p", s->top_p >= 0.0f, (double)s->top_p},
              {root, "min_p", s->min_p > 0.0f, (double)s->min_p},
              {root, "presence_penalty", s->presence_penalty != 0.0f, (double)s->presence_penalty},
              {root, "frequency_penalty", s->frequency_penalty != 0.0f, (double)s->frequency_penalty},
              {root, "repetition_penalty", s->repetition_penalty != 1.0f, (double)s->repetition_penalty},
              {diffusion, "t_min", d->t_min >= 0.0f, (double)d->t_min},
              {diffusion, "t_max", d->t_max >= 0.0f, (double)d->t_max},
              {diffusion, "entropy_bound", d->entropy_bound >= 0.0f, (double)d->entropy_bound},
              {diffusion, "confidence", d->confidence >= 0.0f, (double)d->confidence}};
  const struct {
    json_t *to;
    const char *member;
    bool given;
    json_int_t value;
  } whole[] = {{root, "max_tokens", config->max_tokens > 0, config->max_tokens},
               {root, "seed", config->has_seed, (json_int_t)s->seed},
               {root, "top_k", s->top_k >= 0, s->top_k},
               {diffusion, "steps", d->max_steps > 0, d->max_steps},
               {diffusion, "blocks", config->canvases > 0, config->canvases},
               {diffusion, "stability", d->stability >= 0, d->stability}};
  bool good = true;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    if (rows[i].given) good = json_object_set_new(rows[i].to, rows[i].member, json_real(rows[i].value)) == 0 && good;
  for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
    if (whole[i].given)
      good = json_object_set_new(whole[i].to, whole[i].member, json_integer(whole[i].value)) == 0 && good;
  if (d->no_self_conditioning) good = json_object_set_new(diffusion, "self_conditioning", json_false()) == 0 && good;
  if (config->thinking)
    good = json_object_set_new(root, "chat_template_kwargs", json_pack("{s:b}", "enable_thinking", 1)) == 0 && good;
  json_t *stop = json_array();
  for (uint32_t i = 0; i < config->stop.n; i++)
    good = json_array_append_new(stop, json_string(config->stop.item[i])) == 0 && good;
  if (config->stop.n > 0) good = json_object_set(root, "stop", stop) == 0 && good;
  json_decref(stop);
  if (json_object_size(diffusion) > 0) good = json_object_set(root, "diffusion", diffusion) == 0 && good;
  return good;
}

static char *make_body(const remote_speaker *r, const weft_speaker_asks *asks) {
  json_t *messages = json_array(), *root = json_object(), *diffusion = json_object();
  for (uint32_t i = 0; i < asks->n_turns; i++) {
    (void)json_array_append_new(messages,
                                json_pack("{s:s, s:s}", "role", asks->turn[i].role, "content", asks->turn[i].content));
  }
  bool whole = json_array_size(messages) == asks->n_turns;
  bool good = json_object_set_new(root, "model", json_string(name_model(&r->speaker, asks->model))) == 0;
  good = json_object_set_new(root, "messages", messages) == 0 && good && whole;
  good = json_object_set_new(root, "stream", json_true()) == 0 && good;
  if (asks->temperature >= 0.0f)
    good = json_object_set_new(root, "temperature", json_real((double)asks->temperature)) == 0 && good;
  good = add_options(r->config, root, diffusion) && good;
  if (is_weft(r, asks->model)) {
    static const char *const modes[] = {"auto", "autoregressive", "diffusion"};
    good = json_object_set_new(root, "mode", json_string(modes[asks->mode])) == 0 && good;
    if (asks->canvases) good = json_object_set_new(root, "stream_canvas", json_string("tokens")) == 0 && good;
  }
  char *body = good ? json_dumps(root, JSON_COMPACT) : NULL;
  json_decref(root);
  json_decref(diffusion);
  return body;
}

static weft_said ask_remote(weft_speaker *s, const weft_speaker_asks *asks, const weft_listener *listener,
                            weft_error *why) {
  remote_speaker *r = (remote_speaker *)s;
  weft_text answer = {0};
  char *body = make_body(r, asks);
  if (body == NULL) {
    (void)weft_fail(why, WEFT_E_NO_MEMORY, "no memory for the request");
    return WEFT_SAID_REFUSED;
  }
  r->listener = listener;
  if (!is_weft(r, asks->model) || asks->mode == WEFT_MODE_AUTOREGRESSIVE) listener->plain(listener->self);
  r->too_long = false;
  r->finish[0] = r->failure[0] = 0;
  weft_text_clear(&r->event);
  const weft_client_call call = {.method = "POST",
                                 .path = "/chat/completions",
                                 .body = body,
                                 .timeout_ms = ANSWER_MS,
                                 .take = take_line,
                                 .stop = is_stopped,
                                 .self = r};
  int status = weft_client_run(&r->target, &call, &answer);
  weft_said said = status == 200 ? WEFT_SAID : explain_status(r, status, &answer, why);
  if (status == 200 && r->failure[0] != 0) {
    (void)weft_fail(why, WEFT_E_DEVICE, "the answer broke off: %s", r->failure);
    said = r->too_long ? WEFT_SAID_TOO_LONG : WEFT_SAID_REFUSED;
  } else if (status == 200 && strcmp(r->finish, "length") == 0) {
    said = WEFT_SAID_LENGTH;
  }
  free(body);
  weft_text_free(&answer);
  return said;
}

/* The model that -m names comes first, whether the server lists it or not: some list none. */
static int choose_model(remote_speaker *r, json_t *root) {
  json_t *list = json_object_get(root, "data"), *card;
  const char *wanted = r->config->models.n > 0 ? r->config->models.item[0] : NULL;
  size_t i;
  r->models = json_array();
  json_array_foreach(list, i, card) {
    const char *id = json_string_value(json_object_get(card, "id"));
    if (id == NULL || json_array_size(r->models) == MODELS_MAX) continue;
    if (wanted != NULL && strcmp(id, wanted) == 0) {
      (void)json_array_insert(r->models, 0, card);
    } else {
      (void)json_array_append(r->models, card);
    }
  }
  const char *first = name_model(&r->speaker, 0);
  if (wanted != NULL && (first == NULL || strcmp(first, wanted) != 0))
    (void)json_array_insert_new(r->models, 0, json_pack("{s:s}", "id", wanted));
  if (json_array_size(r->models) > 0) return 0;
  return weft_cli_fail(WEFT_EXIT_USAGE, "the server at %s lists no model: name one with -m NAME", r->config->url);
}

static int list_models(remote_speaker *r) {
  weft_text body = {0};
  weft_error why = {{0}};
  const weft_client_call call = {.method = "GET", .path = "/models", .timeout_ms = LIST_MS};
  int status = weft_client_run(&r->target, &call, &body);
  json_t *root = status == 200 && body.n > 0 ? json_loadb(body.bytes, body.n, 0, NULL) : NULL;
  int code = 0;
  if (status == WEFT_CLIENT_LEFT || status == WEFT_CLIENT_UNREACHED) {
    code = weft_cli_fail(WEFT_EXIT_RUNTIME, "no server answers at %s%s", r->config->url,
                         !r->url.tls ? "" : ", or not with a certificate to be trusted: --tls-cert FILE names one");
  } else if (status != 200 && status != 404) {
    (void)explain_status(r, status, &body, &why);
    code = weft_cli_fail(WEFT_EXIT_RUNTIME, "%s", why.text);
  }
  if (code == 0) code = choose_model(r, root);
  json_decref(root);
  weft_text_free(&body);
  return code;
}

int weft_speaker_open_remote(const weft_config *config, weft_speaker **out) {
  remote_speaker *r = weft_alloc(1, sizeof *r);
  weft_error error;
  if (r == NULL) return weft_cli_fail(WEFT_EXIT_RUNTIME, "out of memory");
  r->config = config;
  r->speaker =
      (weft_speaker){.model_name = name_model, .describe = describe_model, .ask = ask_remote, .close = close_remote};
  int code = weft_observe_key(config, r->key);
  if (code == 0 && weft_client_read_url(config->url, &r->url, &error) != WEFT_OK)
    code = weft_cli_fail(WEFT_EXIT_USAGE, "--url: %s", error.text);
  size_t n = strlen(r->url.prefix);
  bool has_version = n >= 3 && strcmp(r->url.prefix + n - 3, "/v1") == 0; /* others want to be told it */
  if (code == 0 && !has_version && n + 4 > sizeof r->url.prefix)
    code = weft_cli_fail(WEFT_EXIT_USAGE, "--url: the path is too long");
  if (code == 0 && !has_version) memcpy(r->url.prefix + n, "/v1", sizeof "/v1");
  r->target = weft_client_target(&r->url);
  r->target.tls_cert = config->tls_cert;
  r->target.key = r->key[0] == 0 ? NULL : r->key;
  if (code == 0) code = list_models(r);
  if (code == 0) {
    *out = &r->speaker;
  } else {
    close_remote(&r->speaker);
  }
  return code;
}
