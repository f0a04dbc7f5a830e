/* SPDX-License-Identifier: MIT */
#include "api/server/keys.h"

#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "api/tenants.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"

enum { FILE_BYTES_MAX = 4 << 20, KEY_LINE_MAX = WEFT_KEY_BYTES_MAX + 16 };
_Static_assert(WEFT_KEY_BYTES_MAX % sizeof(uint64_t) == 0, "keys are compared eight bytes at a time");

/* Zero padded, so that comparing reads the same bytes whatever the lengths are. */
typedef struct key_row {
  unsigned char bytes[WEFT_KEY_BYTES_MAX];
  uint32_t n, tenant;
  uint32_t ticket; /* from 1; a key that a reload leaves to its tenant keeps it, and no other key ever gets it */
} key_row;

/* What a reload changes, beside the tenants, which change under the same lock. It is a struct of its own behind a
 * pointer, so that functions with a const weft_keys can lock it. */
typedef struct key_table {
  pthread_mutex_t lock;
  key_row *row;
  uint32_t n, capacity;
  uint32_t n_tickets, n_reloads;
  bool has_none;
  uint32_t none; /* tenant of clients that send no key */
} key_table;

struct weft_keys {
  key_table *table;
  char *tenant[WEFT_TENANTS_MAX];
  weft_tenant_options option[WEFT_TENANTS_MAX];
  uint32_t told_in[WEFT_TENANTS_MAX];  /* line of its options; 0: none yet */
  uint32_t first_in[WEFT_TENANTS_MAX]; /* the first line that names it */
  bool gone[WEFT_TENANTS_MAX];         /* no key leads to it any more */
  uint32_t n_tenants, n_places;
};

/* The tenant of a name of n bytes; n_tenants: there is none. Under the lock, once there are other threads. */
static uint32_t number_of(const weft_keys *keys, const char *name, size_t n) {
  uint32_t i = 0;
  while (i < keys->n_tenants && (strlen(keys->tenant[i]) != n || memcmp(keys->tenant[i], name, n) != 0)) i++;
  return i;
}

static weft_status name_tenant(weft_keys *keys, const char *name, size_t n, uint32_t *index) {
  *index = number_of(keys, name, n);
  if (*index < keys->n_tenants) return WEFT_OK;
  if (keys->n_tenants == WEFT_TENANTS_MAX) return WEFT_FULL;
  char *copy = weft_strndup(name, n);
  if (copy == NULL) return WEFT_E_NO_MEMORY;
  keys->option[keys->n_tenants].name = copy;
  keys->tenant[keys->n_tenants++] = copy;
  return WEFT_OK;
}

static weft_status grow_table(key_table *t) {
  if (t->n < t->capacity) return WEFT_OK;
  uint32_t capacity = t->capacity == 0 ? 16 : 2 * t->capacity;
  key_row *row = weft_alloc(capacity, sizeof *row); /* not grown in place: the old rows must be wiped */
  if (row == NULL) return WEFT_E_NO_MEMORY;
  if (t->n > 0) {
    memcpy(row, t->row, t->n * sizeof *row);
    explicit_bzero(t->row, t->n * sizeof *row);
  }
  weft_free(t->row);
  t->row = row;
  t->capacity = capacity;
  return WEFT_OK;
}

static size_t word_at(const char *line, size_t n, size_t from, size_t *begin) {
  while (from < n && (line[from] == ' ' || line[from] == '\t')) from++;
  *begin = from;
  while (from < n && line[from] != ' ' && line[from] != '\t') from++;
  return from - *begin;
}

/* ---- what a tenant may do -------------------------------------------------------------------- */

typedef struct option_row {
  const char *name;
  size_t at;
  uint32_t max;
} option_row;

static const option_row rows[] = {
    {"weight", offsetof(weft_tenant_options, weight), 1000},
    {"running", offsetof(weft_tenant_options, running), 8192},
    {"queued", offsetof(weft_tenant_options, queued), 65536},
    {"tokens-per-minute", offsetof(weft_tenant_options, tokens_per_minute), 1u << 30},
    {"blocks", offsetof(weft_tenant_options, blocks), 1u << 30},
};

static bool set_class(weft_tenant_options *options, const char *value) {
  static const char *const names[] = {"low", "normal", "high"};
  for (int32_t i = 0; i < 3; i++) {
    if (strcmp(value, names[i]) != 0) continue;
    options->priority_class = i - 1;
    return true;
  }
  return false;
}

static bool set_number(weft_tenant_options *options, const option_row *row, const char *value) {
  char *end;
  if (value[0] < '0' || value[0] > '9') return false;
  unsigned long number = strtoul(value, &end, 10);
  if (*end != 0 || number == 0 || number > row->max) return false;
  uint32_t narrow = (uint32_t)number;
  memcpy((char *)options + row->at, &narrow, sizeof narrow);
  return true;
}

/* One `name=value`. */
static weft_status set_option(weft_tenant_options *options, const char *word, size_t n, const char *file,
                              uint32_t number, weft_error *error) {
  char text[64];
  if (n >= sizeof text) n = sizeof text - 1; /* then no name and no value fits */
  memcpy(text, word, n);
  text[n] = 0;
  char *value = strchr(text, '=');
  if (value != NULL) *value++ = 0;
  if (value != NULL && strcmp(text, "class") == 0) {
    if (set_class(options, value)) return WEFT_OK;
    return weft_fail(error, WEFT_E_INVALID, "%s:%u: class is low, normal or high", file, number);
  }
  for (size_t i = 0; value != NULL && i < sizeof rows / sizeof *rows; i++) {
    if (strcmp(text, rows[i].name) != 0) continue;
    if (set_number(options, &rows[i], value)) return WEFT_OK;
    return weft_fail(error, WEFT_E_INVALID, "%s:%u: %s is a number from 1 to %u", file, number, rows[i].name,
                     rows[i].max);
  }
  return weft_fail(error, WEFT_E_FORMAT,
                   "%s:%u: '%.40s' is none of weight, class, running, queued, "
                   "tokens-per-minute, blocks with =VALUE",
                   file, number, text);
}

/* Which option a word names: its length up to the sign. */
static bool same_option(const char *a, size_t n_a, const char *b, size_t n_b) {
  const char *end_a = memchr(a, '=', n_a), *end_b = memchr(b, '=', n_b);
  if (end_a == NULL || end_b == NULL || end_a - a != end_b - b) return false;
  return memcmp(a, b, (size_t)(end_a - a)) == 0;
}

/* A value that a later one would take the place of is a mistake of whoever wrote the line. */
static bool is_told_before(const char *line, size_t first, size_t word, size_t n_word) {
  for (size_t at = first, before, n; (n = word_at(line, word, at, &before)) > 0; at = before + n) {
    if (same_option(line + before, n, line + word, n_word)) return true;
  }
  return false;
}

static weft_status set_options(weft_keys *keys, uint32_t tenant, const char *line, size_t n, size_t at,
                               const char *file, uint32_t number, weft_error *error) {
  weft_tenant_options *options = &keys->option[tenant];
  size_t word, n_word, first = at;
  while ((n_word = word_at(line, n, at, &word)) > 0) {
    if (keys->told_in[tenant] != 0 && keys->told_in[tenant] != number) {
      return weft_fail(error, WEFT_E_INVALID, "%s:%u: what tenant %s may do is in line %u already", file, number,
                       keys->tenant[tenant], keys->told_in[tenant]);
    }
    keys->told_in[tenant] = number;
    if (is_told_before(line, first, word, n_word)) {
      return weft_fail(error, WEFT_E_INVALID, "%s:%u: %.*s is there twice", file, number,
                       (int)strcspn(line + word, "="), line + word);
    }
    weft_status status = set_option(options, line + word, n_word, file, number, error);
    if (status != WEFT_OK) return status;
    at = word + n_word;
  }
  return WEFT_OK;
}

/* ---- lines ----------------------------------------------------------------------------------- */

/* What no text has is no part of a key either: no header of a request could hold it. */
static weft_status check_line(const char *line, size_t n, const char *file, uint32_t number, weft_error *error) {
  size_t bad = 0;
  if (!weft_utf8_valid(line, n, &bad)) {
    return weft_fail(error, WEFT_E_FORMAT, "%s:%u: byte %zu of the line is not UTF-8", file, number, bad + 1);
  }
  for (size_t i = 0; i < n; i++) {
    unsigned char c = (unsigned char)line[i];
    if ((c >= ' ' && c != 0x7F) || c == '\t') continue;
    return weft_fail(error, WEFT_E_FORMAT, "%s:%u: byte %zu of the line is a control character (%02x)", file, number,
                     i + 1, c);
  }
  return WEFT_OK;
}

static weft_status check_words(size_t n_key, const char *name, size_t n_name, const char *file, uint32_t number,
                               weft_error *error) {
  if (n_name == 0) {
    return weft_fail(error, WEFT_E_FORMAT, "%s:%u: a line is `KEY TENANT`", file, number);
  }
  if (n_key > WEFT_KEY_BYTES_MAX || n_name > WEFT_TENANT_NAME_BYTES) {
    return weft_fail(error, WEFT_E_TOO_LARGE, "%s:%u: a key has at most %d bytes and a tenant's name at most %d", file,
                     number, WEFT_KEY_BYTES_MAX, WEFT_TENANT_NAME_BYTES);
  }
  for (size_t i = 0; i < n_name; i++) {
    unsigned char c = (unsigned char)name[i];
    if (c <= ' ' || c >= 0x7F || c == '"' || c == '\\') {
      return weft_fail(error, WEFT_E_FORMAT, "%s:%u: a tenant's name is made of printable ASCII without quotes", file,
                       number);
    }
  }
  return WEFT_OK;
}

static weft_status add_key(key_table *t, const char *key, size_t n_key, uint32_t tenant) {
  if (n_key == 1 && key[0] == '-') {
    t->has_none = true;
    t->none = tenant;
    return WEFT_OK;
  }
  weft_status status = grow_table(t);
  if (status != WEFT_OK) return status;
  key_row *row = &t->row[t->n++];
  memset(row, 0, sizeof *row);
  memcpy(row->bytes, key, n_key);
  row->n = (uint32_t)n_key;
  row->tenant = tenant;
  row->ticket = ++t->n_tickets;
  return WEFT_OK;
}

static weft_status add_line(weft_keys *keys, const char *line, size_t n, const char *file, uint32_t number,
                            weft_error *error) {
  size_t key, name;
  weft_status status = check_line(line, n, file, number, error);
  if (status != WEFT_OK) return status;
  size_t n_key = word_at(line, n, 0, &key);
  if (n_key == 0 || line[key] == '#') return WEFT_OK;
  size_t n_name = word_at(line, n, key + n_key, &name);
  status = check_words(n_key, line + name, n_name, file, number, error);
  if (status != WEFT_OK) return status;
  uint32_t tenant = 0, ticket;
  bool none_again = n_key == 1 && line[key] == '-' && keys->table->has_none;
  if (none_again || weft_keys_find(keys, line + key, n_key, &tenant, &ticket)) {
    return weft_fail(error, WEFT_E_INVALID, "%s:%u: this key is there twice", file, number);
  }
  if (n_key == 1 && line[key] == '-') {
    static const char *const trusted[] = {WEFT_OPERATOR, WEFT_ROUTER};
    for (size_t i = 0; i < sizeof trusted / sizeof *trusted; i++) {
      if (n_name != strlen(trusted[i]) || memcmp(line + name, trusted[i], n_name) != 0) continue;
      return weft_fail(error, WEFT_E_INVALID, "%s:%u: who sends no key cannot be the %s", file, number, trusted[i]);
    }
  }
  if (keys->table->n == WEFT_KEYS_MAX)
    return weft_fail(error, WEFT_E_TOO_LARGE, "%s has more than %d keys", file, WEFT_KEYS_MAX);
  status = name_tenant(keys, line + name, n_name, &tenant);
  if (status == WEFT_OK && keys->first_in[tenant] == 0) keys->first_in[tenant] = number;
  if (status == WEFT_OK) status = add_key(keys->table, line + key, n_key, tenant);
  if (status == WEFT_FULL) {
    return weft_fail(error, WEFT_E_TOO_LARGE, "%s:%u: more than %d tenants", file, number, WEFT_TENANTS_MAX);
  }
  if (status != WEFT_OK) return weft_fail(error, status, "%s: no memory for the keys", file);
  return set_options(keys, tenant, line, n, name + n_name, file, number, error);
}

weft_status weft_keys_parse(const char *text, size_t n, const char *name, weft_keys **out, weft_error *error) {
  *out = NULL;
  weft_keys *keys = weft_alloc(1, sizeof *keys);
  key_table *table = weft_alloc(1, sizeof *table);
  if (keys == NULL || table == NULL) {
    weft_free(keys);
    weft_free(table);
    return weft_fail(error, WEFT_E_NO_MEMORY, "%s: no memory for the keys", name);
  }
  keys->table = table;
  (void)pthread_mutex_init(&table->lock, NULL); /* cannot fail with default attributes on this system */
  weft_status status = WEFT_OK;
  size_t at = weft_utf8_mark(text, n);
  if (n >= 2 && (memcmp(text, "\xFF\xFE", 2) == 0 || memcmp(text, "\xFE\xFF", 2) == 0)) {
    status = weft_fail(error, WEFT_E_FORMAT, "%s is written in UTF-16: save it as UTF-8", name);
  }
  for (uint32_t number = 1; at < n && status == WEFT_OK; number++) {
    const char *end = memchr(text + at, '\n', n - at);
    size_t length = end == NULL ? n - at : (size_t)(end - text) - at;
    size_t kept = length > 0 && text[at + length - 1] == '\r' ? length - 1 : length;
    status = add_line(keys, text + at, kept, name, number, error);
    at += length + 1;
  }
  if (status == WEFT_OK && table->n == 0 && !table->has_none) {
    status = weft_fail(error, WEFT_E_FORMAT, "%s holds no key: write lines `KEY TENANT`", name);
  }
  if (status != WEFT_OK) {
    weft_keys_close(keys);
    return status;
  }
  keys->n_places = keys->n_tenants;
  *out = keys;
  return WEFT_OK;
}

/* bytes: [FILE_BYTES_MAX] */
static weft_status read_file(const char *path, char *bytes, size_t *n, weft_error *error) {
  FILE *file = fopen(path, "rb");
  if (file == NULL) return weft_fail(error, WEFT_E_IO, "%s: %s", path, strerror(errno));
  struct stat info;
  if (fstat(fileno(file), &info) == 0 && S_ISREG(info.st_mode) && (info.st_mode & S_IROTH) != 0) {
    weft_log(WEFT_LOG_WARN, "%s can be read by everybody on this machine: chmod 600 it", path);
  }
  *n = fread(bytes, 1, FILE_BYTES_MAX, file);
  weft_status status = WEFT_OK;
  if (ferror(file) != 0) {
    status = weft_fail(error, WEFT_E_IO, "%s could not be read", path);
  } else if (*n == FILE_BYTES_MAX) {
    status = weft_fail(error, WEFT_E_TOO_LARGE, "%s is larger than %d MiB", path, FILE_BYTES_MAX >> 20);
  }
  (void)fclose(file); /* only read */
  return status;
}

/* A key that no line of a file could hold is refused before it is made one; what is refused is not told. */
static weft_status check_key_text(const char *key, weft_error *error) {
  size_t n = strlen(key);
  bool good = n > 0 && n <= WEFT_KEY_BYTES_MAX && key[0] != '#' && strcmp(key, "-") != 0;
  for (size_t i = 0; i < n; i++) good = good && (unsigned char)key[i] > ' ' && (unsigned char)key[i] != 0x7F;
  if (good) return WEFT_OK;
  return weft_fail(error, WEFT_E_INVALID, "--api-key: a key has 1 to %d bytes without blanks, and no # before them",
                   WEFT_KEY_BYTES_MAX);
}

/* Lines for the keys that are in no file. */
static weft_status add_lines(const weft_keys_source *source, char *bytes, size_t *n, weft_error *error) {
  for (uint32_t i = 0; i < source->n_keys; i++) {
    weft_status status = check_key_text(source->key[i], error);
    if (status != WEFT_OK) return status;
    *n += (size_t)snprintf(bytes + *n, KEY_LINE_MAX, "\n%s %s", source->key[i], WEFT_EVERYBODY);
  }
  return WEFT_OK;
}

weft_status weft_keys_open(const weft_keys_source *source, weft_keys **out, weft_error *error) {
  *out = NULL;
  const char *name = source->path == NULL ? "--api-key" : source->path;
  size_t n_max = FILE_BYTES_MAX + (size_t)source->n_keys * KEY_LINE_MAX, n = 0;
  char *bytes = weft_alloc(n_max, 1);
  if (bytes == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "%s: no memory for the keys", name);
  weft_status status = source->path == NULL ? WEFT_OK : read_file(source->path, bytes, &n, error);
  if (status == WEFT_OK) status = add_lines(source, bytes, &n, error);
  if (status == WEFT_OK) status = weft_keys_parse(bytes, n, name, out, error);
  explicit_bzero(bytes, n);
  weft_free(bytes);
  return status;
}

void weft_keys_close(weft_keys *keys) {
  if (keys == NULL) return;
  key_table *t = keys->table;
  if (t->row != NULL) explicit_bzero(t->row, t->capacity * sizeof *t->row);
  weft_free(t->row);
  (void)pthread_mutex_destroy(&t->lock);
  weft_free(t);
  for (uint32_t i = 0; i < keys->n_tenants; i++) weft_free(keys->tenant[i]);
  weft_free(keys);
}

static void lock_keys(const weft_keys *keys) {
  (void)pthread_mutex_lock(&keys->table->lock);
}

static void unlock_keys(const weft_keys *keys) {
  (void)pthread_mutex_unlock(&keys->table->lock);
}

void weft_keys_keep_places(weft_keys *keys, uint32_t n) {
  uint32_t most = WEFT_TENANTS_MAX - keys->n_tenants;
  if (n == 0 && keys->n_tenants > 1) n = WEFT_TENANTS_SPARE;
  keys->n_places = keys->n_tenants + (n < most ? n : most);
  for (uint32_t i = keys->n_tenants; i < keys->n_places; i++) keys->option[i].name = "";
}

uint32_t weft_keys_n_tenants(const weft_keys *keys) {
  lock_keys(keys);
  uint32_t n = keys->n_tenants;
  unlock_keys(keys);
  return n;
}

uint32_t weft_keys_n_places(const weft_keys *keys) {
  return keys->n_places;
}

const weft_tenant_options *weft_keys_options(const weft_keys *keys) {
  return keys->option;
}

weft_tenant_options weft_keys_get_options(const weft_keys *keys, uint32_t tenant) {
  weft_tenant_options options = {0};
  lock_keys(keys);
  if (tenant < keys->n_tenants) options = keys->option[tenant];
  unlock_keys(keys);
  return options;
}

const char *weft_keys_tenant(const weft_keys *keys, uint32_t tenant) {
  lock_keys(keys);
  const char *name = tenant < keys->n_tenants ? keys->tenant[tenant] : "";
  unlock_keys(keys);
  return name;
}

bool weft_keys_is_operator(const weft_keys *keys, uint32_t tenant) {
  return strcmp(weft_keys_tenant(keys, tenant), WEFT_OPERATOR) == 0;
}

bool weft_keys_is_metrics(const weft_keys *keys, uint32_t tenant) {
  return strcmp(weft_keys_tenant(keys, tenant), WEFT_METRICS) == 0;
}

bool weft_keys_is_router(const weft_keys *keys, uint32_t tenant) {
  return strcmp(weft_keys_tenant(keys, tenant), WEFT_ROUTER) == 0;
}

bool weft_keys_find_tenant(const weft_keys *keys, const char *name, uint32_t *tenant) {
  lock_keys(keys);
  uint32_t i = number_of(keys, name, strlen(name));
  bool found = i < keys->n_tenants && !keys->gone[i];
  unlock_keys(keys);
  if (found) *tenant = i;
  return found;
}

bool weft_keys_one_asks(const weft_keys *keys) {
  uint32_t n = 0;
  lock_keys(keys);
  for (uint32_t i = 0; i < keys->n_tenants; i++) n += !keys->gone[i] && strcmp(keys->tenant[i], WEFT_METRICS) != 0;
  unlock_keys(keys);
  return n == 1;
}

bool weft_keys_find(const weft_keys *keys, const char *key, size_t n, uint32_t *tenant, uint32_t *ticket) {
  key_table *t = keys->table;
  unsigned char padded[WEFT_KEY_BYTES_MAX] = {0};
  uint32_t found = 0, index = 0, own = 0;
  memcpy(padded, key, n < sizeof padded ? n : sizeof padded);
  (void)pthread_mutex_lock(&t->lock);
  for (uint32_t i = 0; i < t->n; i++) {
    const key_row *row = &t->row[i];
    uint64_t differs = row->n ^ n;
    for (uint32_t k = 0; k < WEFT_KEY_BYTES_MAX; k += sizeof differs) {
      uint64_t stored, given;
      memcpy(&stored, row->bytes + k, sizeof stored);
      memcpy(&given, padded + k, sizeof given);
      differs |= stored ^ given;
    }
    /* all ones where every byte is equal */
    uint32_t same = (uint32_t)0 - (uint32_t)(((differs | (0 - differs)) >> 63) ^ 1u);
    found |= same;
    index |= row->tenant & same;
    own |= row->ticket & same;
  }
  (void)pthread_mutex_unlock(&t->lock);
  explicit_bzero(padded, sizeof padded);
  if (found == 0) return false;
  *tenant = index;
  *ticket = own;
  return true;
}

bool weft_keys_hold(const weft_keys *keys, uint32_t ticket, uint32_t tenant) {
  key_table *t = keys->table;
  (void)pthread_mutex_lock(&t->lock);
  bool holds = ticket == 0 && t->has_none && t->none == tenant;
  for (uint32_t i = 0; i < t->n && ticket != 0 && !holds; i++) holds = t->row[i].ticket == ticket;
  (void)pthread_mutex_unlock(&t->lock);
  return holds;
}

uint32_t weft_keys_n_reloads(const weft_keys *keys) {
  key_table *t = keys->table;
  (void)pthread_mutex_lock(&t->lock);
  uint32_t n = t->n_reloads;
  (void)pthread_mutex_unlock(&t->lock);
  return n;
}

bool weft_keys_find_none(const weft_keys *keys, uint32_t *tenant) {
  key_table *t = keys->table;
  (void)pthread_mutex_lock(&t->lock);
  bool has_none = t->has_none;
  if (has_none) *tenant = t->none;
  (void)pthread_mutex_unlock(&t->lock);
  return has_none;
}

/* ---- new keys -------------------------------------------------------------------------------- */

static bool same_rights(const weft_tenant_options *a, const weft_tenant_options *b) {
  return a->weight == b->weight && a->priority_class == b->priority_class && a->running == b->running &&
         a->queued == b->queued && a->tokens_per_minute == b->tokens_per_minute && a->blocks == b->blocks;
}

/* number[t]: which tenant of keys tenant t of fresh is; new ones get the next numbers. */
static weft_status match_tenants(const weft_keys *keys, const weft_keys *fresh, const char *path, uint32_t *number,
                                 weft_error *error) {
  uint32_t next = keys->n_tenants, n_gone = 0;
  for (uint32_t i = 0; i < keys->n_tenants; i++)
    n_gone += number_of(fresh, keys->tenant[i], strlen(keys->tenant[i])) == fresh->n_tenants;
  for (uint32_t t = 0; t < fresh->n_tenants; t++) {
    number[t] = number_of(keys, fresh->tenant[t], strlen(fresh->tenant[t]));
    if (number[t] < keys->n_tenants) continue;
    number[t] = next++;
    if (number[t] < keys->n_places) continue;
    return weft_fail(error, WEFT_FULL,
                     "%s:%u: there is no place for the new tenant %s: the server has places for %u tenants, %u of them "
                     "of tenants that this file no longer names; restart it, with a larger --spare-tenants if more "
                     "shall come",
                     path, fresh->first_in[t], fresh->tenant[t], keys->n_places, n_gone);
  }
  return WEFT_OK;
}

/* Rows of a key that stays the same tenant's keep their ticket, all others get new ones. */
static void keep_tickets(const key_table *now, key_table *next) {
  next->n_tickets = now->n_tickets;
  for (uint32_t i = 0; i < next->n; i++) {
    key_row *row = &next->row[i];
    row->ticket = 0;
    for (uint32_t k = 0; k < now->n && row->ticket == 0; k++) {
      const key_row *old = &now->row[k];
      bool same = old->tenant == row->tenant && old->n == row->n && memcmp(old->bytes, row->bytes, row->n) == 0;
      if (same) row->ticket = old->ticket;
    }
    if (row->ticket == 0) row->ticket = ++next->n_tickets;
  }
}

/* Who is told is told before a key leads to the tenant. */
static void tell_changes(const weft_keys *keys, const weft_keys *fresh, const uint32_t *number,
                         const weft_keys_listener *listener, weft_keys_news *news) {
  for (uint32_t t = 0; t < fresh->n_tenants; t++) {
    bool is_new = number[t] >= keys->n_tenants;
    bool changed = !is_new && !same_rights(&keys->option[number[t]], &fresh->option[t]);
    news->n_new += is_new;
    news->n_changed += changed;
    if ((is_new || changed) && listener != NULL) listener->change(listener->self, number[t], &fresh->option[t]);
  }
}

/* Under the lock. */
static void take_tenants(weft_keys *keys, weft_keys *fresh, const uint32_t *number, weft_keys_news *news) {
  bool was_gone[WEFT_TENANTS_MAX];
  uint32_t n = keys->n_tenants;
  memcpy(was_gone, keys->gone, sizeof was_gone);
  for (uint32_t i = 0; i < n; i++) keys->gone[i] = true;
  for (uint32_t t = 0; t < fresh->n_tenants; t++) {
    uint32_t at = number[t];
    const char *name = keys->option[at].name;
    keys->option[at] = fresh->option[t];
    keys->gone[at] = false;
    if (at < n) {
      keys->option[at].name = name;
      continue;
    }
    keys->tenant[at] = fresh->tenant[t]; /* its memory goes over */
    fresh->tenant[t] = NULL;
    keys->n_tenants += 1;
  }
  for (uint32_t i = 0; i < n; i++) news->n_gone += keys->gone[i] && !was_gone[i];
}

static void take_rows(key_table *now, key_table *next) {
  key_table old = *now;
  now->row = next->row;
  now->n = next->n;
  now->n_tickets = next->n_tickets;
  now->n_reloads += 1;
  now->capacity = next->capacity;
  now->has_none = next->has_none;
  now->none = next->none;
  next->row = old.row; /* wiped with the rest of it */
  next->capacity = old.capacity;
}

weft_status weft_keys_reload(weft_keys *keys, const weft_keys_source *source, const weft_keys_listener *listener,
                             weft_keys_news *news, weft_error *error) {
  weft_keys *fresh;
  uint32_t number[WEFT_TENANTS_MAX];
  *news = (weft_keys_news){0};
  weft_status status = weft_keys_open(source, &fresh, error);
  if (status != WEFT_OK) return status;
  status = match_tenants(keys, fresh, source->path, number, error);
  if (status == WEFT_OK) {
    key_table *now = keys->table, *next = fresh->table;
    for (uint32_t i = 0; i < next->n; i++) next->row[i].tenant = number[next->row[i].tenant];
    if (next->has_none) next->none = number[next->none];
    keep_tickets(now, next);
    tell_changes(keys, fresh, number, listener, news);
    lock_keys(keys);
    take_tenants(keys, fresh, number, news);
    take_rows(now, next);
    unlock_keys(keys);
  }
  weft_keys_close(fresh);
  return status;
}
