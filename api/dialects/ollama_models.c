/* SPDX-License-Identifier: MIT */
/* What Ollama's programs ask of models: which there are, which are loaded, what one is like. Models are
 * those the server was started with: what would fetch, make or delete some is refused. */
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "api/dialects/field_tables.h"
#include "api/dialects/ollama.h"
#include "api/json.h"
#include "api/residents.h"

/* ---- facts of a model ---- */

/* Numbers in its tensors, and the type that most of them have. */
static uint64_t count_parameters(const weft_gguf *gguf, const char **type) {
  uint64_t total = 0, of_type[256] = {0};
  uint32_t most = 0;
  for (uint32_t i = 0; i < weft_gguf_n_tensors(gguf); i++) {
    const weft_gguf_tensor *t = weft_gguf_tensor_at(gguf, i);
    uint64_t n = t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
    uint32_t id = (uint32_t)t->type % 256;
    total += n;
    of_type[id] += n;
    if (of_type[id] > of_type[most]) most = id;
  }
  *type = weft_type_name_of_id((int32_t)most);
  return total;
}

static void put_parameters(uint64_t n, weft_text *out) {
  if (n >= 1000000000) {
    weft_text_printf(out, "\"%.1fB\"", (double)n / 1e9);
  } else if (n >= 1000000) {
    weft_text_printf(out, "\"%.2fM\"", (double)n / 1e6);
  } else {
    weft_text_printf(out, "\"%.2fK\"", (double)n / 1e3);
  }
}

static void put_details(const weft_served_model *m, weft_text *out) {
  const char *type, *arch = weft_model_get_info(m->model)->arch;
  uint64_t n = count_parameters(m->gguf, &type);
  weft_text_puts(out, "\"details\":{\"parent_model\":\"\",\"format\":\"gguf\",\"family\":");
  weft_json_words(out, arch);
  weft_text_puts(out, ",\"families\":[");
  weft_json_words(out, arch);
  weft_text_puts(out, "],\"parameter_size\":");
  put_parameters(n, out);
  weft_text_puts(out, ",\"quantization_level\":");
  weft_json_words(out, type);
  weft_text_puts(out, "}");
}

static void put_modified(const weft_served_model *m, weft_text *out) {
  struct stat file;
  weft_text_puts(out, "\"modified_at\":");
  if (stat(m->path, &file) == 0) {
    weft_ollama_time(file.st_mtim.tv_sec, file.st_mtim.tv_nsec, out);
  } else {
    weft_text_puts(out, "null"); /* it was moved away after it was loaded */
  }
}

/* Name, size, digest and details: what every list of models has. name: one of those it is served under. */
static void put_model(const weft_served_model *m, const char *name, weft_text *out) {
  const weft_model_info *info = weft_model_get_info(m->model);
  weft_text_puts(out, "\"name\":");
  weft_json_words(out, name);
  weft_text_puts(out, ",\"model\":");
  weft_json_words(out, name);
  weft_text_printf(out, ",\"size\":%llu,\"digest\":\"%016llx%016llx\",",
                   (unsigned long long)weft_gguf_file_bytes(m->gguf), (unsigned long long)info->fingerprint_high,
                   (unsigned long long)info->fingerprint_low);
  put_details(m, out);
}

void weft_ollama_put_model(const weft_server *s, uint32_t model, const char *name, weft_text *out) {
  const weft_served_model *m = &s->runtime->model[model];
  put_model(m, name, out);
  weft_text_puts(out, ",");
  put_modified(m, out);
}

/* ---- endpoints ---- */

/* The version of Ollama whose API is spoken here: clients refuse servers that are older than the one they know. */
#define OLLAMA_VERSION "0.13.0"

void weft_handle_ollama_version(weft_server *s, weft_exchange *x) {
  weft_text body = {0};
  (void)s;
  weft_text_puts(&body, "{\"version\":\"" OLLAMA_VERSION "\",\"weft\":");
  weft_json_words(&body, weft_version());
  weft_text_puts(&body, "}");
  weft_exchange_answer(x, 200, "application/json", &body);
}

void weft_handle_ollama_tags(weft_server *s, weft_exchange *x) {
  weft_text body = {0};
  weft_text_puts(&body, "{\"models\":[");
  for (uint32_t i = 0; i < s->runtime->n_served; i++) {
    weft_text_puts(&body, i > 0 ? ",{" : "{");
    put_model(&s->runtime->model[i], s->runtime->model[i].name, &body);
    weft_text_puts(&body, ",");
    put_modified(&s->runtime->model[i], &body);
    weft_text_puts(&body, "}");
  }
  weft_text_puts(&body, "]}");
  weft_exchange_answer(x, 200, "application/json", &body);
}

/* When the model leaves if nobody uses it before. */
static void put_expiry(const resident_view *view, weft_text *out) {
  uint64_t now = weft_clock_us();
  uint64_t left = view->expires_us > now ? view->expires_us - now : 0;
  time_t at = time(NULL) + (time_t)(left / 1000000);
  struct tm day;
  char text[32] = "9999-12-31T23:59:59Z";
  if (view->expires_us != UINT64_MAX && gmtime_r(&at, &day) != NULL)
    (void)strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &day);
  weft_text_puts(out, text);
}

void weft_handle_ollama_ps(weft_server *s, weft_exchange *x) {
  bool on_host = weft_device_get_info(s->runtime->devices.device[0])->host_memory;
  weft_text body = {0};
  weft_text_puts(&body, "{\"models\":[");
  bool first = true;
  for (uint32_t i = 0; i < s->runtime->n_served; i++) {
    const weft_served_model *m = &s->runtime->model[i];
    const resident_view view = residents_look(s->runtime->residents, i);
    uint64_t bytes = on_host ? 0 : weft_model_get_info(m->model)->weight_bytes;
    if (view.state != RESIDENT_READY) continue;
    weft_text_puts(&body, first ? "{" : ",{");
    first = false;
    put_model(m, m->name, &body);
    weft_text_printf(&body, ",\"size_vram\":%llu,\"context_length\":%u,\"expires_at\":\"", (unsigned long long)bytes,
                     m->context);
    put_expiry(&view, &body);
    weft_text_puts(&body, "\"}");
  }
  weft_text_puts(&body, "]}");
  weft_exchange_answer(x, 200, "application/json", &body);
}

static void put_string_of(const weft_gguf *gguf, const char *key, const char *name, weft_text *out) {
  weft_bytes value;
  if (weft_gguf_string(gguf, key, &value, NULL) != WEFT_OK) return;
  weft_text_puts(out, ",");
  weft_json_words(out, name);
  weft_text_puts(out, ":");
  weft_json_string(out, value.data, value.n);
}

/* In Ollama's words, of the template that is used. */
static void put_capabilities(const weft_chat *chat, weft_text *out) {
  weft_text_puts(out, ",\"capabilities\":[\"completion\"");
  if (chat != NULL && weft_chat_tells_tools(chat)) weft_text_puts(out, ",\"tools\"");
  if (chat != NULL && weft_chat_can_think(chat)) weft_text_puts(out, ",\"thinking\"");
  weft_text_puts(out, "]");
}

void weft_ollama_put_capabilities(const weft_server *s, uint32_t model, weft_text *out) {
  put_capabilities(s->runtime->model[model].chat, out);
}

static void put_show(const weft_served_model *m, weft_text *out) {
  const weft_model_info *info = weft_model_get_info(m->model);
  const char *type;
  weft_text_puts(out, "{");
  put_details(m, out);
  weft_text_puts(out, ",");
  put_modified(m, out);
  put_string_of(m->gguf, "tokenizer.chat_template", "template", out);
  put_string_of(m->gguf, "general.license", "license", out);
  weft_text_printf(out, ",\"parameters\":\"temperature %g\\ntop_k %d\\ntop_p %g\"", (double)m->sampling.temperature,
                   m->sampling.top_k, (double)m->sampling.top_p);
  put_capabilities(m->chat, out);
  weft_text_puts(out, ",\"model_info\":{\"general.architecture\":");
  weft_json_words(out, info->arch);
  weft_text_printf(out, ",\"general.parameter_count\":%llu", (unsigned long long)count_parameters(m->gguf, &type));
  put_string_of(m->gguf, "general.name", "general.name", out);
  put_string_of(m->gguf, "tokenizer.ggml.model", "tokenizer.ggml.model", out);
  const struct {
    const char *name;
    uint32_t value;
  } rows[] = {{"context_length", info->context_length},
              {"embedding_length", info->n_hidden},
              {"block_count", info->n_layers},
              {"vocab_size", info->n_vocab}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    weft_text_printf(out, ",\"%s.%s\":%u", info->arch, rows[i].name, rows[i].value);
  }
  weft_text_puts(out, "}}");
}

static const field_row show_rows[] = {
    {.name = "model", .kind = FIELD_TEXT, .what = "which model", .at = offsetof(weft_gen, params.model)},
    {.name = "name",
     .kind = FIELD_TEXT,
     .what = "which model, by its older name",
     .at = offsetof(weft_gen, params.model)},
    FIELD_ROW("verbose", MET, "all that is known is said"),
    FIELD_ROW("system", PASSED, "models have none of their own"),
    FIELD_ROW("template", PASSED, "the template is the model's"),
    FIELD_ROW("options", PASSED, "options are of answers")};
const field_table ollama_show_fields = FIELD_TABLE("/api/show", show_rows);

void weft_handle_ollama_show(weft_server *s, weft_exchange *x) {
  weft_gen gen;
  weft_refusal why;
  weft_error error = {{0}};
  uint32_t index;
  size_t n;
  const char *bytes = weft_exchange_body(x, &n);
  const weft_served_model *m = NULL;
  weft_status status = weft_dialect_open(bytes, n, &s->body_rules, &ollama_show_fields, NULL, &gen, &why);
  if (status == WEFT_OK) {
    m = weft_runtime_model(s->runtime, gen.params.model, &index, &error);
    if (m == NULL) status = weft_refuse_status(&why, WEFT_E_NOT_FOUND, error.text, false);
    weft_gen_close(&gen);
  }
  if (status != WEFT_OK) {
    weft_exchange_refuse(x, &why);
    return;
  }
  weft_text body = {0};
  put_show(m, &body);
  weft_exchange_answer(x, 200, "application/json", &body);
}

void weft_handle_ollama_not_here(weft_server *s, weft_exchange *x) {
  weft_refusal why;
  bool embeds = strncmp(weft_exchange_path(x), "/api/embed", 10) == 0;
  (void)s;
  (void)weft_refuse(&why, 501, "unsupported", NULL,
                    embeds ? "embeddings are not made here"
                           : "the models are those that the server was started with: none is fetched, made or deleted");
  weft_exchange_refuse(x, &why);
}
