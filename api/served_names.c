/* SPDX-License-Identifier: MIT */
#include "api/served_names.h"

#include <string.h>
#include <strings.h>

#include "base/memory.h"
#include "base/nearest.h"

char *served_names_of_file(const char *path) {
  const char *slash = strrchr(path, '/');
  const char *name = slash == NULL ? path : slash + 1;
  size_t n = strlen(name);
  if (n > 5 && strcmp(name + n - 5, ".gguf") == 0) n -= 5;
  return weft_strndup(name, n);
}

const char *served_names_after(const char *entry, const char *file_name) {
  size_t n = strlen(file_name);
  return strncmp(entry, file_name, n) == 0 && entry[n] == '=' ? entry + n + 1 : NULL;
}

/* The name that an entry has for the model of this file; NULL: it is another's. */
static const char *name_in(const weft_open_options *o, const char *entry, const char *file_name) {
  if (strchr(entry, '=') == NULL) return o->n_models == 1 ? entry : NULL;
  return served_names_after(entry, file_name);
}

weft_status served_names_set(const weft_runtime *rt, const char *path, weft_served_model *m, weft_error *error) {
  const weft_open_options *o = &rt->options;
  bool drafts = !m->comes_and_goes && m >= rt->model + o->n_models; /* it has no name but its file's */
  m->file_name = served_names_of_file(path);
  m->alias = weft_alloc(o->n_served_names + 1u, sizeof *m->alias);
  bool good = m->file_name != NULL && m->alias != NULL;
  for (uint32_t i = 0; good && !drafts && i < o->n_served_names; i++) {
    const char *entry = o->served_names[i];
    const char *name = m->comes_and_goes ? served_names_after(entry, m->file_name) : name_in(o, entry, m->file_name);
    if (name == NULL) continue;
    char *copy = weft_strdup(name);
    good = copy != NULL;
    if (m->name == NULL) {
      m->name = copy;
    } else if (good) {
      m->alias[m->n_aliases++] = copy;
    }
  }
  if (good && m->name == NULL) good = (m->name = weft_strdup(m->file_name)) != NULL;
  return good ? WEFT_OK : weft_fail(error, WEFT_E_NO_MEMORY, "no memory for %s", path);
}

void served_names_free(weft_served_model *m) {
  for (uint32_t i = 0; i < m->n_aliases; i++) weft_free(m->alias[i]);
  weft_free(m->alias);
  weft_free(m->file_name);
  weft_free(m->name);
}

const char *served_names_tag(const char *name) {
  static const char *const tags[] = {":latest", ":auto", ":diffusion", ":autoregressive"};
  const char *tag = strrchr(name, ':');
  for (size_t i = 0; tag != NULL && i < sizeof tags / sizeof *tags; i++) {
    if (strcasecmp(tag, tags[i]) == 0) return tag;
  }
  return NULL;
}

typedef int (*name_comparer)(const char *a, const char *b);

static bool is_one_of(const weft_served_model *m, const char *name, name_comparer compare) {
  if (compare(m->name, name) == 0) return true;
  for (uint32_t i = 0; i < m->n_aliases; i++) {
    if (compare(m->alias[i], name) == 0) return true;
  }
  return false;
}

/* As it is; NAME:TAG of such a name; and both again, whatever letters are capital. */
bool served_names_lead(const weft_served_model *m, const char *name, uint32_t way) {
  char plain[256];
  name_comparer compare = way < 2 ? strcmp : strcasecmp;
  const char *tag = served_names_tag(name);
  if (way % 2 == 0) return is_one_of(m, name, compare);
  if (tag == NULL || (size_t)(tag - name) >= sizeof plain) return false;
  memcpy(plain, name, (size_t)(tag - name));
  plain[tag - name] = 0;
  return is_one_of(m, plain, compare);
}

bool served_names_fit(const weft_served_model *m, const char *name) {
  return is_one_of(m, name, strcasecmp);
}

/* 0: the name that answers carry; then its aliases; NULL: no more. */
static const char *name_at(const weft_served_model *m, uint32_t i) {
  if (i == 0) return m->name;
  return i <= m->n_aliases ? m->alias[i - 1] : NULL;
}

static weft_status check_entry(const weft_runtime *rt, const char *entry, weft_error *error) {
  const char *name = NULL;
  for (uint32_t i = 0; i < rt->n_served && name == NULL; i++)
    name = name_in(&rt->options, entry, rt->model[i].file_name);
  if (name != NULL && *name != 0) return WEFT_OK;
  if (name != NULL) return weft_fail(error, WEFT_E_INVALID, "--served-model-name %s: the name is empty", entry);
  if (strchr(entry, '=') == NULL) {
    return weft_fail(error, WEFT_E_INVALID,
                     "--served-model-name %s: there are %u models: say MODEL=NAME, where MODEL is the name of its file",
                     entry, rt->n_served);
  }
  return weft_fail(error, WEFT_E_INVALID, "--served-model-name %s: no model's file has this name", entry);
}

weft_status served_names_check(const weft_runtime *rt, weft_error *error) {
  for (uint32_t i = 0; i < rt->options.n_served_names; i++) {
    weft_status status = check_entry(rt, rt->options.served_names[i], error);
    if (status != WEFT_OK) return status;
  }
  for (uint32_t i = 0; i < rt->n_models; i++) {
    const char *name;
    for (uint32_t k = 0; (name = name_at(&rt->model[i], k)) != NULL; k++) {
      for (uint32_t j = 0; j < i; j++) {
        if (!served_names_lead(&rt->model[j], name, 0)) continue;
        return weft_fail(error, WEFT_E_INVALID,
                         "%s and %s would both be served as '%s': give one another name with "
                         "--served-model-name",
                         rt->model[j].path, rt->model[i].path, name);
      }
    }
  }
  return WEFT_OK;
}

weft_status served_names_unknown(const weft_runtime *rt, const char *name, weft_error *error) {
  weft_nearest nearest = weft_nearest_to(name, strlen(name));
  const char *known;
  for (uint32_t i = 0; i < rt->n_models; i++) {
    for (uint32_t k = 0; (known = name_at(&rt->model[i], k)) != NULL; k++) weft_nearest_try(&nearest, known);
  }
  if (nearest.best == NULL)
    return weft_fail(error, WEFT_E_NOT_FOUND, "no model is named '%.64s': GET /v1/models lists what is served", name);
  return weft_fail(error, WEFT_E_NOT_FOUND,
                   "no model is named '%.64s': did you mean '%.64s'? GET /v1/models lists what is served", name,
                   nearest.best);
}
