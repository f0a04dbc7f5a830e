/* SPDX-License-Identifier: MIT */
/* Law: opening maps each part, checks it (gguf_parse.c), and merges the tensor tables; the keys of
 * the first part are the model's keys. */
#include "model/gguf/gguf.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"
#include "model/gguf/gguf_internal.h"

enum { PARTS_MAX = 9999 };

static weft_status no_memory(weft_error *error, const char *path) {
  return weft_fail(error, WEFT_E_NO_MEMORY, "%s: no memory to open it", path);
}

/* ---- opening ---- */

static weft_status map_file(gguf_part *part, int file, weft_error *error) {
  struct stat about;
  if (fstat(file, &about) != 0) {
    return weft_fail(error, WEFT_E_IO, "%s: %s", part->path, strerror(errno));
  }
  if (!S_ISREG(about.st_mode)) {
    return weft_fail(error, WEFT_E_IO, "%s: not a regular file; give a .gguf file", part->path);
  }
  part->n_bytes = (uint64_t)about.st_size;
  if (part->n_bytes == 0) return weft_fail(error, WEFT_E_FORMAT, "%s: the file is empty", part->path);
  void *bytes = mmap(NULL, part->n_bytes, PROT_READ, MAP_SHARED, file, 0);
  if (bytes == MAP_FAILED) {
    return weft_fail(error, WEFT_E_IO, "%s: cannot map %" PRIu64 " bytes: %s", part->path, part->n_bytes,
                     strerror(errno));
  }
  part->bytes = bytes;
  part->mapped = true;
  part->device = (uint64_t)about.st_dev;
  part->inode = (uint64_t)about.st_ino;
  part->changed_ns = (int64_t)about.st_mtim.tv_sec * 1000000000 + about.st_mtim.tv_nsec;
  return WEFT_OK;
}

/* Behind the table of tensors only samples are read through the mapping: reading ahead of them would read a good part
 * of the file. */
static void expect_samples(const gguf_part *part) {
  uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), first = (part->data_at + page - 1) / page * page;
  if (first >= part->n_bytes) return;
  (void)madvise((void *)(uintptr_t)(part->bytes + first), part->n_bytes - first, MADV_RANDOM); /* advice only */
}

static weft_status open_part(gguf_part *part, const char *path, weft_error *error) {
  part->path = weft_strdup(path);
  if (part->path == NULL) return no_memory(error, path);
  int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a fifo must not hold us */
  if (file < 0) return weft_fail(error, WEFT_E_IO, "%s: %s", path, strerror(errno));
  weft_status status = map_file(part, file, error);
  (void)close(file); /* the mapping stays; nothing was written */
  if (status == WEFT_OK) status = gguf_part_parse(part, error);
  if (status == WEFT_OK) expect_samples(part);
  return status;
}

static weft_bytes tensor_name(const void *gguf, uint32_t index) {
  const char *name = ((const weft_gguf *)gguf)->tensors[index].name;
  return (weft_bytes){name, strlen(name)};
}

static uint32_t *tensor_names_slot(const weft_gguf *gguf, const char *name) {
  return gguf_names_slot(&gguf->tensor_names, (weft_bytes){name, strlen(name)}, tensor_name, gguf);
}

/* False when the table has a tensor of this name. */
static bool tensor_names_add(weft_gguf *gguf, uint32_t index) {
  uint32_t *slot = tensor_names_slot(gguf, gguf->tensors[index].name);
  if (*slot != 0) return false;
  *slot = index + 1;
  return true;
}

static weft_status merge_tensors(weft_gguf *gguf, weft_error *error) {
  uint64_t n = 0;
  for (uint32_t p = 0; p < gguf->n_parts; p++) n += gguf->parts[p].n_tensors;
  if (n >= UINT32_MAX / 2) return weft_fail(error, WEFT_E_TOO_LARGE, "%s: too many tensors", gguf->parts[0].path);
  gguf->tensors = weft_alloc((size_t)n, sizeof *gguf->tensors);
  if (gguf->tensors == NULL || gguf_names_open(&gguf->tensor_names, (uint32_t)n) != WEFT_OK) {
    return no_memory(error, gguf->parts[0].path);
  }
  for (uint32_t p = 0; p < gguf->n_parts; p++) {
    for (uint32_t i = 0; i < gguf->parts[p].n_tensors; i++) {
      gguf->tensors[gguf->n_tensors++] = gguf->parts[p].tensors[i];
      if (tensor_names_add(gguf, gguf->n_tensors - 1)) continue;
      return weft_fail(error, WEFT_E_FORMAT, "%s: tensor '%s' occurs twice", gguf->parts[p].path,
                       gguf->parts[p].tensors[i].name);
    }
  }
  return WEFT_OK;
}

/* An integer key, or initial when the key is absent. */
static weft_status split_number(const weft_gguf *part, const char *key, uint64_t initial, uint64_t *out,
                                weft_error *error) {
  *out = initial;
  weft_status status = weft_gguf_u64(part, key, out, error);
  return status == WEFT_E_NOT_FOUND ? WEFT_OK : status;
}

static bool is_same_text(const gguf_key *a, const gguf_key *b, uint64_t i) {
  uint64_t n_a, n_b;
  memcpy(&n_a, a->value + a->offsets[i], sizeof n_a);
  memcpy(&n_b, b->value + b->offsets[i], sizeof n_b);
  return n_a == n_b && memcmp(a->value + a->offsets[i] + 8, b->value + b->offsets[i] + 8, n_a) == 0;
}

static bool is_same_value(const gguf_key *a, const gguf_key *b) {
  if (a->kind != b->kind || a->count != b->count) return false;
  if (a->kind == WEFT_GGUF_STRING) return memcmp(a->value, b->value, a->count) == 0;
  if (a->kind != WEFT_GGUF_ARRAY) return memcmp(a->value, b->value, gguf_kind_bytes(a->kind)) == 0;
  if (a->element != b->element) return false;
  if (a->element != WEFT_GGUF_STRING) return memcmp(a->value, b->value, a->count * gguf_kind_bytes(a->element)) == 0;
  for (uint64_t i = 0; i < a->count; i++) {
    if (!is_same_text(a, b, i)) return false;
  }
  return true;
}

/* What a later part says again of the model, it says as the first part does: all but its own number. */
static weft_status check_same_model(const gguf_part *first, const gguf_part *part, weft_error *error) {
  char shown[GGUF_SHOWN];
  for (uint32_t i = 0; i < part->n_keys; i++) {
    const gguf_key *key = &part->keys[i];
    uint32_t found = *gguf_key_names_slot(first, key->name);
    bool own = key->name.n == 8 && memcmp(key->name.data, "split.no", 8) == 0;
    if (own || found == 0 || is_same_value(&first->keys[found - 1], key)) continue;
    return weft_fail(error, WEFT_E_FORMAT,
                     "%s: key '%s' has another value than in %s; the parts are of different models", part->path,
                     gguf_show(key->name, shown), first->path);
  }
  return WEFT_OK;
}

static weft_status check_part(const gguf_part *part, uint64_t number, uint64_t count, weft_error *error) {
  weft_gguf view = {.parts = (gguf_part *)(uintptr_t)part, .n_parts = 1};
  uint64_t no, n;
  weft_status status = split_number(&view, "split.no", UINT64_MAX, &no, error);
  if (status == WEFT_OK) status = split_number(&view, "split.count", UINT64_MAX, &n, error);
  if (status != WEFT_OK) return status;
  if (no != number || n != count) {
    return weft_fail(error, WEFT_E_FORMAT,
                     "%s: split.no and split.count do not say that it is part %" PRIu64 " of %" PRIu64
                     "; the parts are of different models",
                     part->path, number + 1, count);
  }
  return WEFT_OK;
}

static void write_suffix(char out[32], uint32_t number, uint32_t count) {
  (void)snprintf(out, 32, "-%05" PRIu32 "-of-%05" PRIu32 ".gguf", number, count);
}

static weft_status open_more_parts(weft_gguf *gguf, uint32_t count, weft_error *error) {
  const char *first = gguf->parts[0].path;
  char suffix[32];
  write_suffix(suffix, 1, count);
  size_t n_suffix = strlen(suffix); /* the same for every number: count has at most five digits */
  size_t n_path = strlen(first);
  if (n_path <= n_suffix || strcmp(first + n_path - n_suffix, suffix) != 0) {
    return weft_fail(error, WEFT_E_FORMAT, "%s: part 1 of %" PRIu32 ", so its name must end in %s", first, count,
                     suffix);
  }
  gguf_part *parts = weft_realloc(gguf->parts, (size_t)count, sizeof *parts);
  char *path = weft_strdup(first);
  if (parts != NULL) gguf->parts = parts;
  weft_status status = parts == NULL || path == NULL ? no_memory(error, gguf->parts[0].path) : WEFT_OK;
  for (uint32_t i = 1; status == WEFT_OK && i < count; i++) {
    write_suffix(suffix, i + 1, count);
    memcpy(path + n_path - n_suffix, suffix, n_suffix);
    parts[i] = (gguf_part){0};
    gguf->n_parts = i + 1;
    status = open_part(&parts[i], path, error);
    if (status == WEFT_OK) status = check_part(&parts[i], i, count, error);
    if (status == WEFT_OK) status = check_same_model(&parts[0], &parts[i], error);
  }
  weft_free(path);
  return status;
}

static weft_status open_split(weft_gguf *gguf, weft_error *error) {
  const char *path = gguf->parts[0].path;
  uint64_t count, number;
  weft_status status = split_number(gguf, "split.count", 1, &count, error);
  if (status == WEFT_OK) status = split_number(gguf, "split.no", 0, &number, error);
  if (status != WEFT_OK || count <= 1) return status;
  if (number != 0) {
    return weft_fail(error, WEFT_E_INVALID, "%s: part %" PRIu64 " of %" PRIu64 "; open part 1 instead", path,
                     number + 1, count);
  }
  if (count > PARTS_MAX) {
    return weft_fail(error, WEFT_E_FORMAT, "%s: split.count is %" PRIu64 "; at most %d parts are read", path, count,
                     PARTS_MAX);
  }
  if (!gguf->parts[0].mapped) {
    return weft_fail(error, WEFT_E_UNSUPPORTED, "%s: a split model cannot be opened from memory", path);
  }
  return open_more_parts(gguf, (uint32_t)count, error);
}

/* After parts: the number of tensors that all parts together promise. */
static weft_status check_split_total(const weft_gguf *gguf, weft_error *error) {
  uint64_t total;
  weft_status status = split_number(gguf, "split.tensors.count", gguf->n_tensors, &total, error);
  if (status != WEFT_OK || gguf->n_parts == 1 || total == gguf->n_tensors) return status;
  return weft_fail(error, WEFT_E_FORMAT, "%s: split.tensors.count is %" PRIu64 ", but the parts have %" PRIu32,
                   gguf->parts[0].path, total, gguf->n_tensors);
}

static weft_gguf *open_empty(void) {
  weft_gguf *gguf = weft_alloc(1, sizeof *gguf);
  if (gguf == NULL) return NULL;
  gguf->parts = weft_alloc(1, sizeof *gguf->parts);
  gguf->n_parts = 1;
  if (gguf->parts != NULL) return gguf;
  weft_free(gguf);
  return NULL;
}

static weft_status open_rest(weft_gguf *gguf, weft_gguf **out, weft_error *error) {
  weft_status status = open_split(gguf, error);
  if (status == WEFT_OK) status = merge_tensors(gguf, error);
  if (status == WEFT_OK) status = check_split_total(gguf, error);
  if (status == WEFT_OK) *out = gguf;
  return status;
}

weft_status weft_gguf_open(const char *path, weft_gguf **out, weft_error *error) {
  *out = NULL;
  weft_gguf *gguf = open_empty();
  if (gguf == NULL) return no_memory(error, path);
  weft_status status = open_part(&gguf->parts[0], path, error);
  if (status == WEFT_OK) status = open_rest(gguf, out, error);
  if (status != WEFT_OK) weft_gguf_close(gguf);
  return status;
}

weft_status weft_gguf_open_memory(const void *data, size_t n_bytes, const char *name, weft_gguf **out,
                                  weft_error *error) {
  *out = NULL;
  weft_gguf *gguf = open_empty();
  if (gguf == NULL) return no_memory(error, name);
  gguf_part *part = &gguf->parts[0];
  part->path = weft_strdup(name);
  part->bytes = data;
  part->n_bytes = n_bytes;
  weft_status status = part->path == NULL ? no_memory(error, name) : gguf_part_parse(part, error);
  if (status == WEFT_OK) status = open_rest(gguf, out, error);
  if (status != WEFT_OK) weft_gguf_close(gguf);
  return status;
}

void weft_gguf_close(weft_gguf *gguf) {
  if (gguf == NULL) return;
  for (uint32_t i = 0; i < gguf->n_parts; i++) gguf_part_close(&gguf->parts[i]);
  weft_free(gguf->parts);
  weft_free(gguf->tensors);
  gguf_names_close(&gguf->tensor_names);
  weft_free(gguf);
}

static weft_status let_part_go(gguf_part *part, weft_error *error) {
  uint8_t *copy = weft_alloc_aligned((size_t)part->data_at, 64);
  if (copy == NULL) return no_memory(error, part->path);
  memcpy(copy, part->bytes, (size_t)part->data_at);
  for (uint32_t i = 0; i < part->n_keys; i++) {
    gguf_key *key = &part->keys[i];
    key->name.data = (const char *)copy + ((const uint8_t *)key->name.data - part->bytes);
    key->value = copy + (key->value - part->bytes);
  }
  for (uint32_t i = 0; i < part->n_tensors; i++) part->tensors[i].data = NULL;
  (void)munmap((void *)(uintptr_t)part->bytes, part->n_bytes);
  part->bytes = copy;
  part->mapped = false;
  part->let_go = true;
  return WEFT_OK;
}

weft_status weft_gguf_let_go(weft_gguf *gguf, weft_error *error) {
  for (uint32_t i = 0; i < gguf->n_tensors; i++) gguf->tensors[i].data = NULL;
  for (uint32_t i = 0; i < gguf->n_parts; i++) {
    weft_status status = gguf->parts[i].mapped ? let_part_go(&gguf->parts[i], error) : WEFT_OK;
    if (status != WEFT_OK) return status;
  }
  return WEFT_OK;
}

const char *weft_gguf_path(const weft_gguf *gguf) {
  return gguf->parts[0].path;
}

uint64_t weft_gguf_file_bytes(const weft_gguf *gguf) {
  uint64_t n = 0;
  for (uint32_t i = 0; i < gguf->n_parts; i++) n += gguf->parts[i].n_bytes;
  return n;
}

/* ---- keys ---- */

uint32_t weft_gguf_n_keys(const weft_gguf *gguf) {
  return gguf->parts[0].n_keys;
}

int64_t weft_gguf_find(const weft_gguf *gguf, const char *name) {
  return (int64_t)*gguf_key_names_slot(&gguf->parts[0], (weft_bytes){name, strlen(name)}) - 1;
}

static const gguf_key *find_key(const weft_gguf *gguf, const char *name) {
  int64_t index = weft_gguf_find(gguf, name);
  return index < 0 ? NULL : &gguf->parts[0].keys[index];
}

uint64_t weft_gguf_count(const weft_gguf *gguf, const char *name) {
  const gguf_key *key = find_key(gguf, name);
  if (key == NULL) return 0;
  return key->kind == WEFT_GGUF_ARRAY ? key->count : 1;
}

static weft_status wrong_kind(const weft_gguf *gguf, const char *name, const gguf_key *key, const char *wanted,
                              weft_error *error) {
  bool is_array = key->kind == WEFT_GGUF_ARRAY;
  return weft_fail(error, WEFT_E_FORMAT, "%s: key '%s' has type %s%s%s; it must be %s", weft_gguf_path(gguf), name,
                   gguf_kind_name(key->kind), is_array ? " of " : "", is_array ? gguf_kind_name(key->element) : "",
                   wanted);
}

static uint64_t read_unsigned(weft_gguf_kind kind, const uint8_t *at) {
  uint64_t value = 0; /* little-endian: the low bytes come first */
  memcpy(&value, at, gguf_kind_bytes(kind));
  return value;
}

static int64_t read_signed(weft_gguf_kind kind, const uint8_t *at) {
  uint32_t unused = 64 - 8 * gguf_kind_bytes(kind);
  return (int64_t)(read_unsigned(kind, at) << unused) >> unused;
}

static bool is_unsigned(weft_gguf_kind kind) {
  return kind == WEFT_GGUF_U8 || kind == WEFT_GGUF_U16 || kind == WEFT_GGUF_U32 || kind == WEFT_GGUF_U64 ||
         kind == WEFT_GGUF_BOOL;
}

static bool is_signed(weft_gguf_kind kind) {
  return kind == WEFT_GGUF_I8 || kind == WEFT_GGUF_I16 || kind == WEFT_GGUF_I32 || kind == WEFT_GGUF_I64;
}

static double read_real(weft_gguf_kind kind, const uint8_t *at) {
  if (is_unsigned(kind)) return (double)read_unsigned(kind, at);
  if (is_signed(kind)) return (double)read_signed(kind, at);
  if (kind == WEFT_GGUF_F64) {
    double wide;
    memcpy(&wide, at, sizeof wide);
    return wide;
  }
  float value;
  memcpy(&value, at, sizeof value);
  return (double)value;
}

/* One value: of an array, or the scalar itself. */
typedef struct element {
  const gguf_key *key;
  weft_gguf_kind kind;
  const uint8_t *at;
} element;

static weft_status find_element(const weft_gguf *gguf, const char *name, uint64_t i, element *out, weft_error *error) {
  const gguf_key *key = find_key(gguf, name);
  if (key == NULL) return WEFT_E_NOT_FOUND;
  *out = (element){key, key->kind, key->value};
  if (key->kind != WEFT_GGUF_ARRAY) return WEFT_OK;
  if (i >= key->count) {
    return weft_fail(error, WEFT_E_FORMAT, "%s: key '%s' has %" PRIu64 " elements; number %" PRIu64 " is wanted",
                     weft_gguf_path(gguf), name, key->count, i);
  }
  out->kind = key->element;
  out->at = key->value + i * gguf_kind_bytes(key->element);
  return WEFT_OK;
}

weft_status weft_gguf_u64_at(const weft_gguf *gguf, const char *name, uint64_t i, uint64_t *out, weft_error *error) {
  element e;
  weft_status status = find_element(gguf, name, i, &e, error);
  if (status != WEFT_OK) return status;
  if (is_unsigned(e.kind)) {
    *out = read_unsigned(e.kind, e.at);
    return WEFT_OK;
  }
  if (!is_signed(e.kind)) return wrong_kind(gguf, name, e.key, "an integer", error);
  int64_t value = read_signed(e.kind, e.at);
  if (value < 0) {
    return weft_fail(error, WEFT_E_FORMAT, "%s: key '%s' is %" PRId64 "; it must not be negative", weft_gguf_path(gguf),
                     name, value);
  }
  *out = (uint64_t)value;
  return WEFT_OK;
}

weft_status weft_gguf_f64_at(const weft_gguf *gguf, const char *name, uint64_t i, double *out, weft_error *error) {
  element e;
  weft_status status = find_element(gguf, name, i, &e, error);
  if (status != WEFT_OK) return status;
  if (e.kind == WEFT_GGUF_STRING || e.kind == WEFT_GGUF_BOOL) {
    return wrong_kind(gguf, name, e.key, "a number", error);
  }
  *out = read_real(e.kind, e.at);
  return WEFT_OK;
}

static weft_status refuse_array(const weft_gguf *gguf, const char *name, weft_error *error) {
  const gguf_key *key = find_key(gguf, name);
  if (key == NULL || key->kind != WEFT_GGUF_ARRAY) return WEFT_OK;
  return wrong_kind(gguf, name, key, "one value", error);
}

weft_status weft_gguf_u64(const weft_gguf *gguf, const char *name, uint64_t *out, weft_error *error) {
  weft_status status = refuse_array(gguf, name, error);
  return status == WEFT_OK ? weft_gguf_u64_at(gguf, name, 0, out, error) : status;
}

weft_status weft_gguf_f64(const weft_gguf *gguf, const char *name, double *out, weft_error *error) {
  weft_status status = refuse_array(gguf, name, error);
  return status == WEFT_OK ? weft_gguf_f64_at(gguf, name, 0, out, error) : status;
}

weft_status weft_gguf_bool(const weft_gguf *gguf, const char *name, bool *out, weft_error *error) {
  uint64_t value;
  weft_status status = weft_gguf_u64(gguf, name, &value, error);
  if (status != WEFT_OK) return status;
  if (value > 1) {
    return weft_fail(error, WEFT_E_FORMAT, "%s: key '%s' is %" PRIu64 "; it must be 0 or 1", weft_gguf_path(gguf), name,
                     value);
  }
  *out = value == 1;
  return WEFT_OK;
}

weft_status weft_gguf_string(const weft_gguf *gguf, const char *name, weft_bytes *out, weft_error *error) {
  const gguf_key *key = find_key(gguf, name);
  if (key == NULL) return WEFT_E_NOT_FOUND;
  if (key->kind != WEFT_GGUF_STRING) return wrong_kind(gguf, name, key, "a string", error);
  *out = (weft_bytes){(const char *)key->value, (size_t)key->count};
  return WEFT_OK;
}

weft_status weft_gguf_string_at(const weft_gguf *gguf, const char *name, uint64_t i, weft_bytes *out,
                                weft_error *error) {
  const gguf_key *key = find_key(gguf, name);
  if (key == NULL) return WEFT_E_NOT_FOUND;
  if (key->kind != WEFT_GGUF_ARRAY || key->element != WEFT_GGUF_STRING) {
    return wrong_kind(gguf, name, key, "an array of strings", error);
  }
  element e;
  weft_status status = find_element(gguf, name, i, &e, error);
  if (status != WEFT_OK) return status;
  const uint8_t *at = key->value + key->offsets[i];
  out->n = (size_t)read_unsigned(WEFT_GGUF_U64, at);
  out->data = (const char *)at + 8;
  return WEFT_OK;
}

/* ---- tensors ---- */

uint32_t weft_gguf_n_tensors(const weft_gguf *gguf) {
  return gguf->n_tensors;
}

const weft_gguf_tensor *weft_gguf_tensor_at(const weft_gguf *gguf, uint32_t index) {
  return &gguf->tensors[index];
}

const weft_gguf_tensor *weft_gguf_tensor_find(const weft_gguf *gguf, const char *name) {
  uint32_t slot = *tensor_names_slot(gguf, name);
  return slot == 0 ? NULL : &gguf->tensors[slot - 1];
}

weft_status weft_gguf_check_type(const weft_gguf *gguf, const weft_gguf_tensor *tensor, weft_error *error) {
  if (tensor->type != WEFT_TYPE_NONE) return WEFT_OK;
  return weft_fail(error, WEFT_E_UNSUPPORTED,
                   "%s: tensor '%s' has type %" PRIu32 " (%s); use a file whose tensors are of these: %s",
                   weft_gguf_path(gguf), tensor->name, tensor->type_id, weft_type_name_of_id((int32_t)tensor->type_id),
                   weft_type_names());
}

void weft_gguf_forget(const weft_gguf *gguf, const weft_gguf_tensor *tensor) {
  uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
  for (uint32_t i = 0; i < gguf->n_parts; i++) {
    const gguf_part *part = &gguf->parts[i];
    uintptr_t start = (uintptr_t)part->bytes, at = (uintptr_t)tensor->data;
    if (!part->mapped || at < start || at >= start + part->n_bytes) continue;
    uintptr_t first = (at + page - 1) / page * page; /* pages shared with a neighbour stay */
    uintptr_t end = (at + tensor->n_bytes) / page * page;
    if (first < end) (void)madvise((void *)first, end - first, MADV_DONTNEED); /* advice only */
  }
}
