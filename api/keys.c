/* SPDX-License-Identifier: MIT */
#include "api/keys.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"

enum { FILE_BYTES_MAX = 4 << 20, NAME_BYTES_MAX = 64 };

/* Zero padded, so that comparing reads the same bytes whatever the lengths are. */
typedef struct key_row {
  unsigned char bytes[WEFT_KEY_BYTES_MAX];
  uint32_t n, tenant;
} key_row;

struct weft_keys {
  key_row *row;
  uint32_t n, capacity;
  char *tenant[WEFT_TENANTS_MAX];
  uint32_t n_tenants;
};

static weft_status name_tenant(weft_keys *keys, const char *name, size_t n, uint32_t *index) {
  for (uint32_t i = 0; i < keys->n_tenants; i++) {
    if (strlen(keys->tenant[i]) == n && memcmp(keys->tenant[i], name, n) == 0) {
      *index = i;
      return WEFT_OK;
    }
  }
  if (keys->n_tenants == WEFT_TENANTS_MAX) return WEFT_FULL;
  char *copy = weft_strndup(name, n);
  if (copy == NULL) return WEFT_E_NO_MEMORY;
  *index = keys->n_tenants;
  keys->tenant[keys->n_tenants++] = copy;
  return WEFT_OK;
}

static weft_status grow(weft_keys *keys) {
  if (keys->n < keys->capacity) return WEFT_OK;
  uint32_t capacity = keys->capacity == 0 ? 16 : 2 * keys->capacity;
  key_row *row =
      weft_alloc(capacity, sizeof *row); /* not grown in place: the old rows must be wiped */
  if (row == NULL) return WEFT_E_NO_MEMORY;
  if (keys->n > 0) {
    memcpy(row, keys->row, keys->n * sizeof *row);
    explicit_bzero(keys->row, keys->n * sizeof *row);
  }
  weft_free(keys->row);
  keys->row = row;
  keys->capacity = capacity;
  return WEFT_OK;
}

static size_t word_at(const char *line, size_t n, size_t from, size_t *begin) {
  while (from < n && (line[from] == ' ' || line[from] == '\t')) from++;
  *begin = from;
  while (from < n && line[from] != ' ' && line[from] != '\t') from++;
  return from - *begin;
}

static weft_status add_line(weft_keys *keys, const char *line, size_t n, const char *file,
                            uint32_t number, weft_error *error) {
  size_t key, name, rest, tenant;
  size_t n_key = word_at(line, n, 0, &key);
  if (n_key == 0 || line[key] == '#') return WEFT_OK;
  size_t n_name = word_at(line, n, key + n_key, &name);
  if (n_name == 0 || word_at(line, n, name + n_name, &rest) != 0) {
    return weft_fail(error, WEFT_E_FORMAT, "%s:%u: a line is `KEY TENANT`", file, number);
  }
  if (n_key > WEFT_KEY_BYTES_MAX || n_name > NAME_BYTES_MAX) {
    return weft_fail(error, WEFT_E_TOO_LARGE,
                     "%s:%u: a key has at most %d bytes and a tenant's name at most %d", file,
                     number, WEFT_KEY_BYTES_MAX, NAME_BYTES_MAX);
  }
  for (tenant = 0; tenant < n_name; tenant++) {
    unsigned char c = (unsigned char)line[name + tenant];
    if (c <= ' ' || c >= 0x7F || c == '"' || c == '\\') {
      return weft_fail(error, WEFT_E_FORMAT,
                       "%s:%u: a tenant's name is made of printable ASCII without quotes", file,
                       number);
    }
  }
  uint32_t index = 0;
  if (weft_keys_find(keys, line + key, n_key, &index)) {
    return weft_fail(error, WEFT_E_INVALID, "%s:%u: this key is there twice", file, number);
  }
  if (keys->n == WEFT_KEYS_MAX)
    return weft_fail(error, WEFT_E_TOO_LARGE, "%s has more than %d keys", file, WEFT_KEYS_MAX);
  weft_status status = grow(keys);
  if (status == WEFT_OK) status = name_tenant(keys, line + name, n_name, &index);
  if (status == WEFT_FULL) {
    return weft_fail(error, WEFT_E_TOO_LARGE, "%s:%u: more than %d tenants", file, number,
                     WEFT_TENANTS_MAX);
  }
  if (status != WEFT_OK) return weft_fail(error, status, "%s: no memory for the keys", file);
  key_row *row = &keys->row[keys->n++];
  memset(row, 0, sizeof *row);
  memcpy(row->bytes, line + key, n_key);
  row->n = (uint32_t)n_key;
  row->tenant = index;
  return WEFT_OK;
}

weft_status weft_keys_parse(const char *text, size_t n, const char *name, weft_keys **out,
                            weft_error *error) {
  *out = NULL;
  weft_keys *keys = weft_alloc(1, sizeof *keys);
  if (keys == NULL) return weft_fail(error, WEFT_E_NO_MEMORY, "%s: no memory for the keys", name);
  weft_status status = WEFT_OK;
  size_t at = 0;
  for (uint32_t number = 1; at < n && status == WEFT_OK; number++) {
    const char *end = memchr(text + at, '\n', n - at);
    size_t length = end == NULL ? n - at : (size_t)(end - text) - at;
    size_t kept = length > 0 && text[at + length - 1] == '\r' ? length - 1 : length;
    status = add_line(keys, text + at, kept, name, number, error);
    at += length + 1;
  }
  if (status == WEFT_OK && keys->n == 0) {
    status = weft_fail(error, WEFT_E_FORMAT, "%s holds no key: write lines `KEY TENANT`", name);
  }
  if (status != WEFT_OK) {
    weft_keys_close(keys);
    return status;
  }
  *out = keys;
  return WEFT_OK;
}

weft_status weft_keys_open(const char *path, weft_keys **out, weft_error *error) {
  *out = NULL;
  FILE *file = fopen(path, "rb");
  if (file == NULL) return weft_fail(error, WEFT_E_IO, "%s: %s", path, strerror(errno));
  struct stat info;
  if (fstat(fileno(file), &info) == 0 && S_ISREG(info.st_mode) && (info.st_mode & S_IROTH) != 0) {
    weft_log(WEFT_LOG_WARN, "%s can be read by everybody on this machine: chmod 600 it", path);
  }
  char *bytes = weft_alloc(FILE_BYTES_MAX, 1);
  if (bytes == NULL) {
    (void)fclose(file); /* only read */
    return weft_fail(error, WEFT_E_NO_MEMORY, "%s: no memory for the keys", path);
  }
  size_t n = fread(bytes, 1, FILE_BYTES_MAX, file);
  weft_status status;
  if (ferror(file) != 0) {
    status = weft_fail(error, WEFT_E_IO, "%s could not be read", path);
  } else if (n == FILE_BYTES_MAX) {
    status =
        weft_fail(error, WEFT_E_TOO_LARGE, "%s is larger than %d MiB", path, FILE_BYTES_MAX >> 20);
  } else {
    status = weft_keys_parse(bytes, n, path, out, error);
  }
  (void)fclose(file); /* only read */
  explicit_bzero(bytes, n);
  weft_free(bytes);
  return status;
}

void weft_keys_close(weft_keys *keys) {
  if (keys == NULL) return;
  if (keys->row != NULL) explicit_bzero(keys->row, keys->capacity * sizeof *keys->row);
  weft_free(keys->row);
  for (uint32_t i = 0; i < keys->n_tenants; i++) weft_free(keys->tenant[i]);
  weft_free(keys);
}

uint32_t weft_keys_n_tenants(const weft_keys *keys) {
  return keys->n_tenants;
}

const char *weft_keys_tenant(const weft_keys *keys, uint32_t tenant) {
  return tenant < keys->n_tenants ? keys->tenant[tenant] : "";
}

bool weft_keys_is_operator(const weft_keys *keys, uint32_t tenant) {
  return strcmp(weft_keys_tenant(keys, tenant), WEFT_OPERATOR) == 0;
}

bool weft_keys_find(const weft_keys *keys, const char *key, size_t n, uint32_t *tenant) {
  unsigned char padded[WEFT_KEY_BYTES_MAX] = {0};
  uint32_t found = 0, index = 0;
  memcpy(padded, key, n < sizeof padded ? n : sizeof padded);
  for (uint32_t i = 0; i < keys->n; i++) {
    const key_row *row = &keys->row[i];
    uint64_t differs = row->n ^ n;
    for (uint32_t k = 0; k < WEFT_KEY_BYTES_MAX; k++)
      differs |= (uint64_t)(row->bytes[k] ^ padded[k]);
    /* all ones where every byte is equal */
    uint32_t same = (uint32_t)0 - (uint32_t)(((differs | (0 - differs)) >> 63) ^ 1u);
    found |= same;
    index |= row->tenant & same;
  }
  explicit_bzero(padded, sizeof padded);
  if (found != 0) *tenant = index;
  return found != 0;
}
