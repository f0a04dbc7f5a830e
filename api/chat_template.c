/* SPDX-License-Identifier: MIT */
#include "api/chat_template.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "api/served_names.h"
#include "base/log.h"
#include "base/memory.h"
#include "model/text/jinja.h"

/* The file that options name for this model, or NULL. */
static const char *file_for(const weft_open_options *o, const char *name) {
  const char *file = NULL;
  for (uint32_t i = 0; i < o->n_chat_templates; i++) {
    const char *entry = o->chat_templates[i], *own = served_names_after(entry, name);
    if (own != NULL) return own;
    if (strchr(entry, '=') == NULL) file = entry;
  }
  return file;
}

static weft_status read_file(const char *path, weft_text *out, weft_error *error) {
  FILE *file = fopen(path, "rb");
  if (file == NULL) return weft_fail(error, WEFT_E_IO, "--chat-template %s: %s", path, strerror(errno));
  out->max = WEFT_JINJA_TEMPLATE_MAX;
  bool broken = !weft_text_read(out, file);
  (void)fclose(file);
  if (broken) return weft_fail(error, WEFT_E_IO, "--chat-template %s cannot be read", path);
  if (!out->refused) return WEFT_OK;
  return weft_fail(error, WEFT_E_TOO_LARGE, "--chat-template %s: it has more than %d bytes", path,
                   WEFT_JINJA_TEMPLATE_MAX);
}

static weft_status open_given(const char *path, weft_served_model *m, weft_error *error) {
  weft_text text = {0};
  weft_status status = read_file(path, &text, error);
  if (status == WEFT_OK) {
    size_t mark = text.n == 0 ? 0 : weft_utf8_mark(text.bytes, text.n); /* of the file, and no part of the template */
    const weft_bytes bytes = {text.n == 0 ? "" : text.bytes + mark, text.n - mark};
    status = weft_chat_open(m->gguf, m->tokenizer, bytes, path, &m->chat, error);
  }
  weft_text_free(&text);
  return status;
}

weft_status chat_template_open(const weft_open_options *options, weft_served_model *m, weft_error *error) {
  const char *path = file_for(options, m->file_name);
  m->other_template = path != NULL;
  if (path != NULL) return open_given(path, m, error);
  weft_status status = weft_chat_open(m->gguf, m->tokenizer, (weft_bytes){0}, NULL, &m->chat, &m->no_chat);
  if (status == WEFT_OK) return WEFT_OK;
  if (status == WEFT_E_NO_MEMORY) return weft_fail(error, status, "%s", m->no_chat.text);
  weft_log(WEFT_LOG_WARN, "%s: chat is off: %s", m->path, m->no_chat.text);
  return WEFT_OK;
}

weft_status chat_templates_check(const weft_runtime *rt, weft_error *error) {
  for (uint32_t i = 0; i < rt->options.n_chat_templates; i++) {
    const char *entry = rt->options.chat_templates[i], *equals = strchr(entry, '=');
    bool known = equals == NULL;
    for (uint32_t k = 0; k < rt->n_models; k++)
      known = known || served_names_after(entry, rt->model[k].file_name) != NULL;
    if (known) continue;
    return weft_fail(error, WEFT_E_INVALID, "--chat-template %s: no model's file is named '%.*s'", entry,
                     (int)(equals - entry), entry);
  }
  return WEFT_OK;
}
