/* SPDX-License-Identifier: MIT */
#include "api/cli/conversation.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/text.h"

enum { FILE_MAX = 64 << 20 };

static const char system_role[] = "system", user_role[] = "user", assistant_role[] = "assistant";

/* The literal that a role is kept as; NULL: it is none of a conversation. */
static const char *find_role(const char *role) {
  static const char *const roles[] = {system_role, user_role, assistant_role};
  for (size_t i = 0; role != NULL && i < sizeof roles / sizeof *roles; i++) {
    if (strcmp(role, roles[i]) == 0) return roles[i];
  }
  return NULL;
}

static void free_turn(const weft_chat_turn *turn) {
  weft_free((void *)(uintptr_t)turn->content);
}

void weft_conversation_free(weft_conversation *c) {
  for (uint32_t i = 0; i < c->n; i++) free_turn(&c->turn[i]);
  weft_free(c->turn);
  *c = (weft_conversation){0};
}

static bool has_system(const weft_conversation *c) {
  return c->n > 0 && c->turn[0].role == system_role;
}

static weft_status insert_turn(weft_conversation *c, uint32_t at, const char *role, const char *content) {
  if (c->n == c->capacity) {
    uint32_t capacity = c->capacity == 0 ? 16 : 2 * c->capacity;
    weft_chat_turn *more = weft_alloc(capacity, sizeof *more);
    if (more == NULL) return WEFT_E_NO_MEMORY;
    if (c->n > 0) memcpy(more, c->turn, c->n * sizeof *more);
    weft_free(c->turn);
    c->turn = more;
    c->capacity = capacity;
  }
  char *copy = weft_strdup(content);
  if (copy == NULL) return WEFT_E_NO_MEMORY;
  memmove(&c->turn[at + 1], &c->turn[at], (c->n - at) * sizeof *c->turn);
  c->turn[at] = (weft_chat_turn){.role = find_role(role), .content = copy};
  c->n += 1;
  return WEFT_OK;
}

static void remove_turns(weft_conversation *c, uint32_t from, uint32_t n) {
  for (uint32_t i = from; i < from + n; i++) free_turn(&c->turn[i]);
  memmove(&c->turn[from], &c->turn[from + n], (c->n - from - n) * sizeof *c->turn);
  c->n -= n;
}

weft_status weft_conversation_add(weft_conversation *c, const char *role, const char *content) {
  return insert_turn(c, c->n, role, content);
}

void weft_conversation_take_back(weft_conversation *c) {
  if (c->n > 0) remove_turns(c, c->n - 1, 1);
}

weft_status weft_conversation_set_system(weft_conversation *c, const char *content) {
  weft_status status = content[0] == 0 ? WEFT_OK : insert_turn(c, 0, system_role, content);
  uint32_t old = content[0] == 0 ? 0 : 1;
  if (status == WEFT_OK && c->n > old && c->turn[old].role == system_role) remove_turns(c, old, 1);
  return status;
}

void weft_conversation_clear(weft_conversation *c) {
  uint32_t from = has_system(c) ? 1 : 0;
  if (c->n > from) remove_turns(c, from, c->n - from);
}

uint32_t weft_conversation_questions(const weft_conversation *c) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < c->n; i++) n += c->turn[i].role == user_role;
  return n;
}

uint32_t weft_conversation_drop(weft_conversation *c, uint32_t n) {
  uint32_t from = has_system(c) ? 1 : 0, n_questions = weft_conversation_questions(c), end = from, seen = 0;
  if (n_questions == 0) return 0;
  if (n > n_questions - 1) n = n_questions - 1;
  for (; end < c->n; end++) {
    if (c->turn[end].role != user_role) continue;
    if (seen == n) break;
    seen += 1;
  }
  if (n > 0) remove_turns(c, from, end - from);
  return n;
}

/* ---- files ------------------------------------------------------------------------------------- */

static json_t *make_json(const weft_conversation *c) {
  json_t *messages = json_array();
  for (uint32_t i = 0; i < c->n && messages != NULL; i++) {
    const weft_chat_turn *t = &c->turn[i];
    if (json_array_append_new(messages, json_pack("{s:s, s:s}", "role", t->role, "content", t->content)) != 0) {
      json_decref(messages);
      return NULL;
    }
  }
  return messages == NULL ? NULL : json_pack("{s:o}", "messages", messages);
}

/* A new file beside the old one, which then takes its place: a disk that fills leaves the old one as it was. */
static weft_status write_whole(const char *path, json_t *root, weft_error *error) {
  weft_text beside = {0};
  weft_text_printf(&beside, "%s.new", path);
  if (weft_text_status(&beside) != WEFT_OK) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory to save");
  FILE *file = fopen(beside.bytes, "wx");
  bool good = file != NULL && json_dumpf(root, file, JSON_INDENT(1)) == 0 && fputc('\n', file) != EOF;
  int kept = errno;
  if (file != NULL && fclose(file) != 0 && good) {
    good = false;
    kept = errno;
  }
  if (good && rename(beside.bytes, path) != 0) {
    good = false;
    kept = errno;
  }
  if (!good && file != NULL) (void)unlink(beside.bytes); /* nothing but what was begun */
  weft_text_free(&beside);
  return good ? WEFT_OK : weft_fail(error, WEFT_E_IO, "%s was not saved: %s", path, strerror(kept));
}

weft_status weft_conversation_save(const weft_conversation *c, const char *path, weft_error *error) {
  weft_conversation there = {0};
  struct stat about;
  if (stat(path, &about) == 0 && about.st_size > 0) {
    weft_status status = weft_conversation_load(&there, path, NULL);
    weft_conversation_free(&there);
    if (status != WEFT_OK)
      return weft_fail(error, WEFT_E_INVALID, "%s is there and is no conversation: name another file", path);
  }
  json_t *root = make_json(c);
  if (root == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory to save");
  weft_status status = write_whole(path, root, error);
  json_decref(root);
  return status;
}

static weft_status read_messages(json_t *root, weft_conversation *out, const char *path, weft_error *error) {
  const json_t *messages = json_object_get(root, "messages");
  json_t *message;
  size_t i;
  if (!json_is_array(messages)) return weft_fail(error, WEFT_E_FORMAT, "%s has no list of messages", path);
  json_array_foreach(messages, i, message) {
    const char *role = find_role(json_string_value(json_object_get(message, "role")));
    const char *content = json_string_value(json_object_get(message, "content"));
    if (role == NULL || content == NULL || (role == system_role && i > 0))
      return weft_fail(error, WEFT_E_FORMAT,
                       "%s: message %zu is none of system (the first one alone), user or assistant with a text", path,
                       i + 1);
    if (insert_turn(out, out->n, role, content) != WEFT_OK)
      return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for %s", path);
  }
  return WEFT_OK;
}

weft_status weft_conversation_load(weft_conversation *c, const char *path, weft_error *error) {
  json_error_t why;
  weft_conversation read = {0};
  struct stat about;
  FILE *file = fopen(path, "rb");
  if (file == NULL) return weft_fail(error, WEFT_E_IO, "%s: %s", path, strerror(errno));
  bool fits = fstat(fileno(file), &about) == 0 && S_ISREG(about.st_mode) && about.st_size <= FILE_MAX;
  json_t *root = fits ? json_loadf(file, 0, &why) : NULL;
  (void)fclose(file); /* only read */
  if (!fits) return weft_fail(error, WEFT_E_INVALID, "%s is no file of at most %d MiB", path, FILE_MAX >> 20);
  if (root == NULL) return weft_fail(error, WEFT_E_FORMAT, "%s:%d: no JSON: %s", path, why.line, why.text);
  weft_status status = read_messages(root, &read, path, error);
  json_decref(root);
  if (status == WEFT_OK) {
    weft_conversation_free(c);
    *c = read;
  } else {
    weft_conversation_free(&read);
  }
  return status;
}
