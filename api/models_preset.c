/* SPDX-License-Identifier: MIT */
#include "api/models_preset.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "api/option_names.h"
#include "api/served_names.h"
#include "base/memory.h"
#include "base/text.h"

enum { SECTIONS_MAX = WEFT_MODELS_MAX, NAMES_MAX = 4 * SECTIONS_MAX, FILE_BYTES_MAX = 1 << 20 };

/* What keys and values of a section are held in. */
typedef enum kv_word { KV_UNSAID, KV_PLAIN, KV_8BIT } kv_word;

typedef struct section {
  char *name, *path, *file, *aliases, *chat_template;
  kv_word k, v;
  bool loads, has_loads;
} section;

typedef struct entry_list {
  const char **entry;
  uint32_t n;
} entry_list;

struct models_preset {
  const char *path; /* of the file itself, while it is read */
  section section[SECTIONS_MAX], all;
  uint32_t n;
  entry_list names, kv_8bit, templates; /* of the options, then the file's own */
  char *own[NAMES_MAX];
  uint32_t n_own;
};

/* ---- reading --------------------------------------------------------------------------------------- */

typedef struct preset_reader {
  models_preset *preset;
  section *now; /* NULL: before the first one */
  uint32_t line;
  weft_error *error;
} preset_reader;

static weft_status refuse_line(const preset_reader *r, const char *what, const char *word) {
  return weft_fail(r->error, WEFT_E_INVALID, "%.200s:%u: %s%s%.60s%s", r->preset->path, r->line, what,
                   word[0] == 0 ? "" : " '", word, word[0] == 0 ? "" : "'");
}

static char *trim_blanks(char *text) {
  text += strspn(text, " \t\r");
  size_t n = strlen(text);
  while (n > 0 && strchr(" \t\r", text[n - 1]) != NULL) n--;
  text[n] = 0;
  return text;
}

static weft_status keep_text(const preset_reader *r, char **to, const char *key, const char *value) {
  if (*to != NULL) return refuse_line(r, "it was said before:", key);
  if (value[0] == 0) return refuse_line(r, "it has no value:", key);
  *to = weft_strdup(value);
  return *to != NULL ? WEFT_OK : weft_fail(r->error, WEFT_E_NO_MEMORY, "%.200s: no memory", r->preset->path);
}

static weft_status keep_kv(const preset_reader *r, kv_word *to, const char *key, const char *value) {
  static const char *const plain[] = {"f16", "bf16", "f32"};
  if (*to != KV_UNSAID) return refuse_line(r, "it was said before:", key);
  if (strcasecmp(value, "q8_0") == 0) *to = KV_8BIT;
  for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
    if (strcasecmp(value, plain[i]) == 0) *to = KV_PLAIN;
  if (*to != KV_UNSAID) return WEFT_OK;
  return refuse_line(r, "keys and values are kept as f16 here, or as q8_0, and not as", value);
}

static weft_status keep_flag(const preset_reader *r, section *s, const char *key, const char *value) {
  static const char *const yes[] = {"true", "on", "1"}, *const no[] = {"false", "off", "0"};
  bool known = false;
  if (s->has_loads) return refuse_line(r, "it was said before:", key);
  for (size_t i = 0; i < sizeof yes / sizeof *yes; i++) {
    s->loads = s->loads || strcasecmp(value, yes[i]) == 0;
    known = known || s->loads || strcasecmp(value, no[i]) == 0;
  }
  s->has_loads = true;
  return known ? WEFT_OK : refuse_line(r, "it must be true or false, and not", value);
}

static bool is_key(const char *key, const char *name, const char *other) {
  return strcmp(key, name) == 0 || strcmp(key, other) == 0;
}

/* What is no property of one model here: an option of theirs, or of nobody. */
static weft_status refuse_key(const preset_reader *r, const char *key) {
  char where[320], given[64];
  const char *servers;
  (void)snprintf(given, sizeof given, "-%.60s", key); /* as -ngl */
  bool is_short = weft_option_foreign_short(given, &servers) != NULL;
  (void)snprintf(where, sizeof where, "%.200s:%u: [%.60s] ", r->preset->path, r->line, r->now->name);
  return weft_option_unknown(NULL, where, is_short ? given : key, key, strlen(key), r->error);
}

static weft_status read_value(preset_reader *r, const char *key, const char *value) {
  section *s = r->now;
  bool is_all = s == &r->preset->all;
  if (s == NULL && strcmp(key, "version") == 0)
    return strcmp(value, "1") == 0 ? WEFT_OK : refuse_line(r, "version must be 1, and not", value);
  if (s == NULL) return refuse_line(r, "it stands before the first [section]:", key);
  if (is_key(key, "cache-type-k", "ctk")) return keep_kv(r, &s->k, key, value);
  if (is_key(key, "cache-type-v", "ctv")) return keep_kv(r, &s->v, key, value);
  if (strcmp(key, "load-on-startup") == 0) return keep_flag(r, s, key, value);
  bool of_one = is_key(key, "model", "m") || is_key(key, "alias", "a") || strcmp(key, "chat-template-file") == 0;
  if (of_one && is_all) return refuse_line(r, "[*] is about all models, and this is of one:", key);
  if (is_key(key, "model", "m")) return keep_text(r, &s->path, key, value);
  if (is_key(key, "alias", "a")) return keep_text(r, &s->aliases, key, value);
  if (strcmp(key, "chat-template-file") == 0) return keep_text(r, &s->chat_template, key, value);
  return refuse_key(r, key);
}

static weft_status begin_section(preset_reader *r, char *name) {
  models_preset *p = r->preset;
  bool is_all = strcmp(name, "*") == 0;
  for (uint32_t i = 0; i < p->n; i++)
    if (strcmp(p->section[i].name, name) == 0) return refuse_line(r, "a section was there before:", name);
  if (is_all && p->all.name != NULL) return refuse_line(r, "a section was there before:", name);
  if (name[0] == 0 || strchr(name, '=') != NULL) return refuse_line(r, "this is no name of a model:", name);
  if (!is_all && p->n == SECTIONS_MAX) return refuse_line(r, "these are too many models: 16 share a server", "");
  r->now = is_all ? &p->all : &p->section[p->n++];
  r->now->name = weft_strdup(name);
  return r->now->name != NULL ? WEFT_OK : weft_fail(r->error, WEFT_E_NO_MEMORY, "%.200s: no memory", p->path);
}

static weft_status read_line(preset_reader *r, char *line) {
  char *text = trim_blanks(line), *equals = strchr(text, '=');
  size_t n = strlen(text);
  if (n == 0 || text[0] == ';' || text[0] == '#') return WEFT_OK;
  if (text[0] == '[' && text[n - 1] == ']') {
    text[n - 1] = 0;
    return begin_section(r, trim_blanks(text + 1));
  }
  if (equals == NULL) return refuse_line(r, "this is neither [NAME] nor KEY = VALUE:", text);
  *equals = 0;
  char *key = trim_blanks(text);
  while (key[0] == '-') key++;
  return read_value(r, key, trim_blanks(equals + 1));
}

static weft_status read_file(models_preset *p, weft_error *error) {
  weft_text text = {.max = FILE_BYTES_MAX};
  FILE *file = fopen(p->path, "rb");
  if (file == NULL) return weft_fail(error, WEFT_E_IO, "--models-preset %.300s: %s", p->path, strerror(errno));
  bool broken = !weft_text_read(&text, file) || weft_text_status(&text) != WEFT_OK ||
                (text.n > 0 && memchr(text.bytes, 0, text.n));
  (void)fclose(file);
  weft_status status = WEFT_OK;
  if (broken) status = weft_fail(error, WEFT_E_INVALID, "--models-preset %.300s is no text that can be read", p->path);
  preset_reader reader = {.preset = p, .error = error};
  for (char *at = text.n > 0 ? text.bytes : NULL, *end; at != NULL && status == WEFT_OK; at = end) {
    end = strchr(at, '\n');
    if (end != NULL) *end++ = 0;
    reader.line += 1;
    status = read_line(&reader, at);
  }
  weft_text_free(&text);
  return status;
}

/* ---- what it comes to ------------------------------------------------------------------------------ */

static weft_status fail_memory(const models_preset *p, weft_error *error) {
  return weft_fail(error, WEFT_E_NO_MEMORY, "--models-preset %.200s: no memory", p->path);
}

static weft_status copy_list(const models_preset *p, entry_list *to, const char *const *from, uint32_t n,
                             weft_error *error) {
  to->entry = weft_alloc(n + NAMES_MAX, sizeof *to->entry);
  if (to->entry == NULL) return fail_memory(p, error);
  for (uint32_t i = 0; i < n; i++) to->entry[i] = from[i];
  to->n = n;
  return WEFT_OK;
}

/* Adds `word`, or "file=word". */
static weft_status add_entry(models_preset *p, entry_list *to, const char *file, const char *word, weft_error *error) {
  weft_text text = {0};
  if (p->n_own == NAMES_MAX)
    return weft_fail(error, WEFT_E_INVALID, "--models-preset %.200s names more than %d names", p->path, NAMES_MAX);
  weft_text_printf(&text, "%s%s%s", file, word[0] == 0 ? "" : "=", word);
  if (weft_text_status(&text) != WEFT_OK) {
    weft_text_free(&text);
    return fail_memory(p, error);
  }
  p->own[p->n_own++] = text.bytes;
  to->entry[to->n++] = text.bytes;
  return WEFT_OK;
}

static weft_status add_aliases(models_preset *p, const section *s, weft_error *error) {
  weft_status status = WEFT_OK;
  char *copy = weft_strdup(s->aliases), *rest = NULL;
  if (copy == NULL) return fail_memory(p, error);
  for (char *word = strtok_r(copy, ",", &rest); word != NULL && status == WEFT_OK; word = strtok_r(NULL, ",", &rest)) {
    char *name = trim_blanks(word);
    if (name[0] != 0) status = add_entry(p, &p->names, s->file, name, error);
  }
  weft_free(copy);
  return status;
}

static weft_status check_kv(const models_preset *p, const section *s, weft_error *error) {
  kv_word k = s->k != KV_UNSAID ? s->k : p->all.k, v = s->v != KV_UNSAID ? s->v : p->all.v;
  if ((k == KV_8BIT) == (v == KV_8BIT) && (p->all.k != KV_8BIT || k == KV_8BIT)) return WEFT_OK;
  return weft_fail(error, WEFT_E_INVALID,
                   "%.200s: [%.60s] keys and values of a model are both q8_0 here, or neither, and where [*] says q8_0 "
                   "all are",
                   p->path, s->name);
}

static weft_status take_section(models_preset *p, uint32_t index, weft_error *error) {
  section *s = &p->section[index];
  s->file = s->path != NULL ? served_names_of_file(s->path) : weft_strdup(s->name);
  if (s->file == NULL) return fail_memory(p, error);
  for (uint32_t i = 0; i < index; i++)
    if (strcmp(p->section[i].file, s->file) == 0)
      return weft_fail(error, WEFT_E_INVALID, "%.200s: [%.60s] and [%.60s] are of one file", p->path,
                       p->section[i].name, s->name);
  if (!s->has_loads) s->loads = p->all.loads;
  weft_status status = check_kv(p, s, error);
  if (status == WEFT_OK && strcmp(s->file, s->name) != 0) status = add_entry(p, &p->names, s->file, s->name, error);
  if (status == WEFT_OK && s->aliases != NULL && strcmp(s->file, s->name) == 0)
    status = add_entry(p, &p->names, s->file, s->name, error); /* the first name stands in answers */
  if (status == WEFT_OK && s->aliases != NULL) status = add_aliases(p, s, error);
  if (status == WEFT_OK && s->k == KV_8BIT) status = add_entry(p, &p->kv_8bit, s->file, "", error);
  if (status == WEFT_OK && s->chat_template != NULL)
    status = add_entry(p, &p->templates, s->file, s->chat_template, error);
  return status;
}

static weft_status take_all(models_preset *p, const weft_open_options *o, weft_error *error) {
  weft_status status = copy_list(p, &p->names, o->served_names, o->n_served_names, error);
  if (status == WEFT_OK) status = copy_list(p, &p->kv_8bit, o->kv_8bit, o->n_kv_8bit, error);
  if (status == WEFT_OK) status = copy_list(p, &p->templates, o->chat_templates, o->n_chat_templates, error);
  if (status == WEFT_OK && (p->all.k == KV_8BIT) != (p->all.v == KV_8BIT)) status = check_kv(p, &p->all, error);
  if (status == WEFT_OK && p->all.k == KV_8BIT) status = add_entry(p, &p->kv_8bit, "all", "", error);
  for (uint32_t i = 0; i < p->n && status == WEFT_OK; i++) status = take_section(p, i, error);
  return status;
}

weft_status models_preset_open(weft_open_options *o, models_preset **out, weft_error *error) {
  *out = NULL;
  if (o->models_preset == NULL) return WEFT_OK;
  models_preset *p = weft_alloc(1, sizeof *p);
  if (p == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for --models-preset");
  p->path = o->models_preset;
  weft_status status = read_file(p, error);
  if (status == WEFT_OK) status = take_all(p, o, error);
  if (status != WEFT_OK) {
    models_preset_close(p);
    return status;
  }
  o->served_names = p->names.entry, o->n_served_names = p->names.n;
  o->kv_8bit = p->kv_8bit.entry, o->n_kv_8bit = p->kv_8bit.n;
  o->chat_templates = p->templates.entry, o->n_chat_templates = p->templates.n;
  *out = p;
  return WEFT_OK;
}

static void free_section(section *s) {
  weft_free(s->name);
  weft_free(s->path);
  weft_free(s->file);
  weft_free(s->aliases);
  weft_free(s->chat_template);
}

void models_preset_close(models_preset *p) {
  if (p == NULL) return;
  for (uint32_t i = 0; i < p->n; i++) free_section(&p->section[i]);
  free_section(&p->all);
  for (uint32_t i = 0; i < p->n_own; i++) weft_free(p->own[i]);
  weft_free(p->names.entry);
  weft_free(p->kv_8bit.entry);
  weft_free(p->templates.entry);
  weft_free(p);
}

const char *models_preset_path(const models_preset *p, uint32_t index) {
  for (uint32_t i = 0; p != NULL && i < p->n; i++)
    if (p->section[i].path != NULL && index-- == 0) return p->section[i].path;
  return NULL;
}

const char *models_preset_file(const models_preset *p, uint32_t index, bool *loads) {
  if (p == NULL || index >= p->n) return NULL;
  *loads = p->section[index].loads;
  return p->section[index].file;
}
