/* SPDX-License-Identifier: MIT */
#include "api/server/route_notes.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define JSON     "application/json"
#define TEXT     "text/plain"
#define OPENAI   "OpenAI"
#define CLAUDE   "Anthropic"
#define OLLAMA   "Ollama"
#define WORDS    "Text and tokens"
#define ABOUT    "About the server"
#define OPERATOR "The operator"

const route_note route_notes[] = {
    {"POST", "/v1/chat/completions", OPENAI, "an answer to a conversation, whole or streamed", &openai_chat_fields,
     JSON},
    {"POST", "/v1/completions", OPENAI, "a text that goes on from a prompt", &openai_completions_fields, JSON},
    {"POST", "/v1/chat/completions/render", OPENAI, "the prompt of such a request as tokens, without an answer",
     &openai_chat_fields, JSON},
    {"POST", "/v1/completions/render", OPENAI, "the same of a completion", &openai_completions_fields, JSON},
    {"POST", "/v1/responses", OPENAI, "an answer in the form of the Responses API", &responses_fields, JSON},
    {"GET", "/v1/responses/*", OPENAI, "a response that was kept", NULL, JSON},
    {"DELETE", "/v1/responses/*", OPENAI, "forgets it", NULL, JSON},
    {"GET", "/v1/models", OPENAI, "the models that are served; in Anthropic's form with the header anthropic-version",
     NULL, JSON},
    {"GET", "/v1/models/*", OPENAI, "one of them", NULL, JSON},
    {"POST", "/v1/messages", CLAUDE, "an answer to a conversation", &anthropic_fields, JSON},
    {"POST", "/v1/messages/count_tokens", CLAUDE, "how many tokens its prompt has", &anthropic_fields, JSON},
    {"POST", "/api/chat", OLLAMA, "an answer to a conversation, streamed unless `stream` is false", &ollama_chat_fields,
     "application/x-ndjson"},
    {"POST", "/api/generate", OLLAMA, "an answer to a prompt, streamed unless `stream` is false",
     &ollama_generate_fields, "application/x-ndjson"},
    {"GET", "/api/tags", OLLAMA, "the models that are served", NULL, JSON},
    {"POST", "/api/show", OLLAMA, "what is known of a model", &ollama_show_fields, JSON},
    {"GET", "/api/ps", OLLAMA, "the models that are loaded, which are all", NULL, JSON},
    {"GET", "/api/version", OLLAMA, "a version", NULL, JSON},
    {"POST", "/api/embed", OLLAMA, "refused: embeddings are not served", NULL, JSON},
    {"POST", "/api/embeddings", OLLAMA, "refused: embeddings are not served", NULL, JSON},
    {"POST", "/api/pull", OLLAMA, "refused: a server changes no models", NULL, JSON},
    {"POST", "/api/push", OLLAMA, "refused: a server changes no models", NULL, JSON},
    {"POST", "/api/create", OLLAMA, "refused: a server changes no models", NULL, JSON},
    {"POST", "/api/copy", OLLAMA, "refused: a server changes no models", NULL, JSON},
    {"DELETE", "/api/delete", OLLAMA, "refused: a server changes no models", NULL, JSON},
    {"POST", "/tokenize", WORDS, "a text, or a conversation, as tokens", &tokenize_fields, JSON},
    {"POST", "/detokenize", WORDS, "tokens as a text", &detokenize_fields, JSON},
    {"GET", "/tokenizer_info", WORDS, "what is known of a model's vocabulary", NULL, JSON},
    {"GET", "/", ABOUT, "the page, for clients that accept text/html; others get a line", NULL, TEXT},
    {"GET", "/docs", ABOUT, "this description, for people", NULL, "text/html"},
    {"GET", "/openapi.json", ABOUT, "this description, for programs", NULL, JSON},
    {"GET", "/version", ABOUT, "the version", NULL, JSON},
    {"GET", "/livez", ABOUT, "200 while the process lives", NULL, JSON},
    {"GET", "/readyz", ABOUT, "200 while requests are taken, 503 with the reason where not", NULL, JSON},
    {"GET", "/health", ABOUT, "as /readyz", NULL, JSON},
    {"GET", "/ping", ABOUT, "as /readyz", NULL, JSON},
    {"POST", "/ping", ABOUT, "as /readyz", NULL, JSON},
    {"GET", "/stats", ABOUT, "the state of the server, as much as the client may see", NULL, JSON},
    {"GET", "/stats/stream", ABOUT, "the same, again and again, as events", NULL, "text/event-stream"},
    {"GET", "/server_info", ABOUT, "models, sizes of the cache and limits, for routers", NULL, JSON},
    {"GET", "/get_server_info", ABOUT, "as /server_info", NULL, JSON},
    {"GET", "/model_info", ABOUT, "the first model, for routers", NULL, JSON},
    {"GET", "/get_model_info", ABOUT, "as /model_info", NULL, JSON},
    {"GET", "/load", ABOUT, "how many requests are there", NULL, JSON},
    {"GET", "/loads", ABOUT, "load and use of the cache, for routers", NULL, JSON},
    {"GET", "/v1/loads", ABOUT, "as /loads", NULL, JSON},
    {"GET", "/get_load", ABOUT, "as /loads", NULL, JSON},
    {"GET", "/kv_event_sources", ABOUT, "where events of the prefix cache are published, for routers", NULL, JSON},
    {"GET", "/metrics", ABOUT, "counters for Prometheus; as OpenMetrics where Accept asks for it", NULL, TEXT},
    {"POST", "/v1/models/load", OPERATOR, "loads a model of --models-dir, and answers when that is done", NULL, JSON},
    {"POST", "/v1/models/unload", OPERATOR, "has one leave the memory when what runs of it has ended", NULL, JSON},
    {"POST", "/v1/models/sleep", OPERATOR,
     "as unload, and requests wait until it is woken; level 1 keeps its weights in host memory", NULL, JSON},
    {"POST", "/v1/models/wake", OPERATOR, "loads a model that sleeps", NULL, JSON},
    {"POST", "/sleep", OPERATOR,
     "puts all models of --models-dir to sleep, by ?level=1 with their weights in host memory", NULL, JSON},
    {"POST", "/wake_up", OPERATOR, "wakes them; those that were loaded are loaded again", NULL, JSON},
    {"GET", "/is_sleeping", ABOUT, "whether all of them sleep", NULL, JSON},
    {"POST", "/models/load", OPERATOR, "as /v1/models/load", NULL, JSON},
    {"POST", "/models/unload", OPERATOR, "as /v1/models/unload", NULL, JSON},
    {"GET", "/admin/pins", OPERATOR, "prefixes that are kept in the pool", NULL, JSON},
    {"POST", "/admin/pins", OPERATOR, "keeps one more", NULL, JSON},
    {"DELETE", "/admin/pins/*", OPERATOR, "ends one", NULL, JSON},
    {"POST", "/admin/prefixes/save", OPERATOR, "writes prefixes that are kept to their file, and a copy by name", NULL,
     JSON},
    {"POST", "/admin/prefixes/load", OPERATOR, "takes in a copy of prefixes by its name", NULL, JSON},
    {"POST", "/reset_prefix_cache", OPERATOR, "drops what only the prefix cache holds", NULL, JSON},
    {"GET", "/admin/trace", OPERATOR, "the last steps, for chrome://tracing", NULL, JSON},
};
const uint32_t n_route_notes = sizeof route_notes / sizeof *route_notes;

const route_note *route_note_of(const weft_endpoint *route) {
  for (uint32_t i = 0; i < n_route_notes; i++) {
    if (strcmp(route_notes[i].method, route->method) == 0 && strcmp(route_notes[i].path, route->path) == 0)
      return &route_notes[i];
  }
  return NULL;
}

void route_put_path(const char *path, weft_text *out) {
  size_t n = strlen(path);
  bool open = n > 0 && path[n - 1] == '*';
  weft_text_append(out, path, open ? n - 1 : n);
  if (open) weft_text_puts(out, "{name}");
}

/* A table's `where` is these words one behind the other. */
static bool is_called(const field_table *table, const char *a, const char *b, const char *c) {
  size_t n_a = strlen(a), n_b = strlen(b);
  return strncmp(table->where, a, n_a) == 0 && strncmp(table->where + n_a, b, n_b) == 0 &&
         strcmp(table->where + n_a + n_b, c) == 0;
}

const field_table *route_inner_table(const field_table *table, const char *field, bool *is_list) {
  static const struct {
    const field_table *outer;
    const char *field;
    const field_table *inner;
  } others[] = {{&openai_tool_fields, "function", &openai_function_fields},
                {&openai_completions_fields, "diffusion", &openai_diffusion_fields},
                {&ollama_chat_fields, "options", &ollama_option_fields},
                {&ollama_generate_fields, "options", &ollama_option_fields}};
  *is_list = false;
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
    if (others[i].outer == table && strcmp(others[i].field, field) == 0) return others[i].inner;
  }
  for (size_t i = 0; i < n_field_tables; i++) {
    const field_table *inner = field_tables[i];
    bool in_space = is_called(inner, table->where, " ", field), in_point = is_called(inner, table->where, ".", field);
    if (in_space || in_point || is_called(inner, field, ", in every dialect", "")) return inner;
    char list[96];
    (void)snprintf(list, sizeof list, "%.80s[]", field);
    if (!is_called(inner, table->where, " ", list) && !is_called(inner, table->where, ".", list)) continue;
    *is_list = true;
    return inner;
  }
  return NULL;
}

void route_put_schema_name(const field_table *table, weft_text *out) {
  bool gap = false, begun = false;
  for (const char *c = table->where; *c != 0; c++) {
    if (isalnum((unsigned char)*c) == 0 && *c != '_') {
      gap = true;
      continue;
    }
    if (gap && begun) weft_text_puts(out, "_");
    weft_text_append(out, c, 1);
    gap = false;
    begun = true;
  }
}
