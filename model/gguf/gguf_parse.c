/* SPDX-License-Identifier: MIT */
/* Law: one walk over the bytes of one file. A cursor never moves past the end; a count is compared
 * with the bytes left before memory is taken for it, so that what is allocated is bounded by the
 * size of the file. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <xxhash.h>

#include "base/log.h"
#include "base/memory.h"
#include "model/gguf/gguf_internal.h"

enum {
  HEADER_BYTES = 24,
  KEY_BYTES_MIN = 8 + 1 + 4 + 1,        /* length, one byte of name, kind, one byte of value */
  TENSOR_BYTES_MIN = 8 + 1 + 4 + 4 + 8, /* length, one byte of name, n_dims, type, offset */
  ALIGNMENT_DEFAULT = 32
};

typedef struct cursor {
  gguf_part *part;
  uint64_t at;
  weft_error *error;
  uint32_t n_strange; /* keys with bytes that the specification does not allow */
  weft_bytes strange; /* the first one */
} cursor;

static const struct {
  const char *name;
  uint32_t n_bytes;
} kinds[] = {
    [WEFT_GGUF_U8] = {"u8", 1},       [WEFT_GGUF_I8] = {"i8", 1},     [WEFT_GGUF_U16] = {"u16", 2},
    [WEFT_GGUF_I16] = {"i16", 2},     [WEFT_GGUF_U32] = {"u32", 4},   [WEFT_GGUF_I32] = {"i32", 4},
    [WEFT_GGUF_F32] = {"f32", 4},     [WEFT_GGUF_BOOL] = {"bool", 1}, [WEFT_GGUF_STRING] = {"string", 0},
    [WEFT_GGUF_ARRAY] = {"array", 0}, [WEFT_GGUF_U64] = {"u64", 8},   [WEFT_GGUF_I64] = {"i64", 8},
    [WEFT_GGUF_F64] = {"f64", 8},
};

uint32_t gguf_kind_bytes(weft_gguf_kind kind) {
  return kinds[kind].n_bytes;
}
const char *gguf_kind_name(weft_gguf_kind kind) {
  return kinds[kind].name;
}

const char *gguf_show(weft_bytes name, char out[GGUF_SHOWN]) {
  size_t n = name.n < GGUF_SHOWN - 4 ? name.n : GGUF_SHOWN - 4;
  for (size_t i = 0; i < n; i++) {
    out[i] = name.data[i] >= 0x20 && name.data[i] < 0x7F ? name.data[i] : '?';
  }
  memcpy(out + n, n < name.n ? "..." : "", n < name.n ? 4 : 1);
  return out;
}

/* ---- names ---- */

weft_status gguf_names_open(gguf_names *names, uint32_t n) {
  uint64_t size = 8;
  while (size < 2 * (uint64_t)n) size *= 2;
  names->slots = weft_alloc(size, sizeof *names->slots);
  if (names->slots == NULL) return WEFT_E_NO_MEMORY;
  names->mask = size - 1;
  names->seed = (uint64_t)(uintptr_t)names->slots; /* differs from run to run: collisions cannot be prepared */
  return WEFT_OK;
}

void gguf_names_close(gguf_names *names) {
  weft_free(names->slots);
  names->slots = NULL;
}

uint32_t *gguf_names_slot(const gguf_names *names, weft_bytes name, gguf_name_reader name_of, const void *of) {
  uint64_t slot = XXH3_64bits_withSeed(name.data, name.n, names->seed) & names->mask;
  for (; names->slots[slot] != 0; slot = (slot + 1) & names->mask) {
    weft_bytes other = name_of(of, names->slots[slot] - 1);
    if (other.n == name.n && memcmp(other.data, name.data, name.n) == 0) break;
  }
  return &names->slots[slot];
}

static weft_bytes key_name(const void *part, uint32_t index) {
  return ((const gguf_part *)part)->keys[index].name;
}

uint32_t *gguf_key_names_slot(const gguf_part *part, weft_bytes name) {
  return gguf_names_slot(&part->key_names, name, key_name, part);
}

/* False when a key of this name is there already. */
static bool key_names_add(gguf_part *part, uint32_t index) {
  uint32_t *slot = gguf_key_names_slot(part, part->keys[index].name);
  if (*slot != 0) return false;
  *slot = index + 1;
  return true;
}

/* ---- cursor ---- */

static weft_status fail_malformed(cursor *c, const char *what, uint64_t value, const char *rule) {
  return weft_fail(c->error, WEFT_E_FORMAT, "%s: at byte %" PRIu64 ": %s is %" PRIu64 "; %s", c->part->path, c->at,
                   what, value, rule);
}

static uint64_t bytes_left(const cursor *c) {
  return c->part->n_bytes - c->at;
}

static weft_status take_bytes(cursor *c, uint64_t n, const char *what, const uint8_t **bytes) {
  if (n > bytes_left(c)) {
    return weft_fail(c->error, WEFT_E_FORMAT,
                     "%s: the file ends at byte %" PRIu64 ", inside %s (needs %" PRIu64 " bytes from %" PRIu64
                     "); copy it again",
                     c->part->path, c->part->n_bytes, what, n, c->at);
  }
  *bytes = c->part->bytes + c->at;
  c->at += n;
  return WEFT_OK;
}

static weft_status take_number(cursor *c, const char *what, void *out, uint64_t n_bytes) {
  const uint8_t *bytes = NULL;
  weft_status status = take_bytes(c, n_bytes, what, &bytes);
  if (status == WEFT_OK) memcpy(out, bytes, n_bytes);
  return status;
}

static weft_status take_u32(cursor *c, const char *what, uint32_t *out) {
  return take_number(c, what, out, sizeof *out);
}

static weft_status take_u64(cursor *c, const char *what, uint64_t *out) {
  return take_number(c, what, out, sizeof *out);
}

static weft_status take_string(cursor *c, const char *what, weft_bytes *out) {
  uint64_t n = 0;
  weft_status status = take_u64(c, what, &n);
  if (status != WEFT_OK) return status;
  if (n > GGUF_STRING_MAX) return fail_malformed(c, what, n, "a string has at most 1 GiB");
  const uint8_t *bytes = NULL;
  status = take_bytes(c, n, what, &bytes);
  if (status != WEFT_OK) return status;
  *out = (weft_bytes){(const char *)bytes, (size_t)n};
  return WEFT_OK;
}

/* ---- keys ---- */

static weft_status take_kind(cursor *c, const char *what, weft_gguf_kind *out) {
  uint32_t id = 0;
  weft_status status = take_u32(c, what, &id);
  if (status != WEFT_OK) return status;
  if (id > WEFT_GGUF_F64) return fail_malformed(c, what, id, "value types are 0..12");
  *out = (weft_gguf_kind)id;
  return WEFT_OK;
}

static weft_status check_bools(cursor *c, const gguf_key *key) {
  for (uint64_t i = 0; i < key->count; i++) {
    if (key->value[i] > 1) return fail_malformed(c, "a bool", key->value[i], "a bool is 0 or 1");
  }
  return WEFT_OK;
}

static weft_status take_strings(cursor *c, gguf_key *key) {
  key->value = c->part->bytes + c->at;
  key->offsets = weft_alloc((size_t)key->count, sizeof *key->offsets);
  if (key->offsets == NULL) {
    return weft_fail(c->error, WEFT_E_NO_MEMORY, "%s: no memory for an index of %" PRIu64 " strings", c->part->path,
                     key->count);
  }
  uint64_t start = c->at;
  for (uint64_t i = 0; i < key->count; i++) {
    weft_bytes text;
    key->offsets[i] = c->at - start;
    weft_status status = take_string(c, "a string of an array", &text);
    if (status != WEFT_OK) return status;
  }
  return WEFT_OK;
}

static weft_status take_array(cursor *c, gguf_key *key) {
  weft_status status = take_kind(c, "the element type of an array", &key->element);
  if (status != WEFT_OK) return status;
  if (key->element == WEFT_GGUF_ARRAY) {
    return fail_malformed(c, "the element type of an array", WEFT_GGUF_ARRAY, "arrays of arrays are not read");
  }
  status = take_u64(c, "the count of an array", &key->count);
  if (status != WEFT_OK) return status;
  if (key->count > GGUF_ARRAY_MAX) {
    return fail_malformed(c, "the count of an array", key->count, "an array has at most 2^30 elements");
  }
  uint64_t size = key->element == WEFT_GGUF_STRING ? 8 : kinds[key->element].n_bytes;
  if (key->count > bytes_left(c) / size) {
    return fail_malformed(c, "the count of an array", key->count, "the file has not so many bytes left");
  }
  if (key->element == WEFT_GGUF_STRING) return take_strings(c, key);
  status = take_bytes(c, key->count * size, "an array", &key->value);
  return status == WEFT_OK && key->element == WEFT_GGUF_BOOL ? check_bools(c, key) : status;
}

static weft_status take_value(cursor *c, gguf_key *key) {
  if (key->kind == WEFT_GGUF_ARRAY) return take_array(c, key);
  if (key->kind == WEFT_GGUF_STRING) {
    weft_bytes text = {NULL, 0};
    weft_status status = take_string(c, "a string", &text);
    key->value = (const uint8_t *)text.data;
    key->count = text.n;
    return status;
  }
  key->count = 1;
  weft_status status = take_bytes(c, kinds[key->kind].n_bytes, "a value", &key->value);
  return status == WEFT_OK && key->kind == WEFT_GGUF_BOOL ? check_bools(c, key) : status;
}

/* The specification wants [a-z0-9_.]; real files also use '-'. Others are strange, not dangerous. */
static bool is_plain_key(weft_bytes name) {
  for (size_t i = 0; i < name.n; i++) {
    char b = name.data[i];
    bool plain = (b >= 'a' && b <= 'z') || (b >= '0' && b <= '9') || b == '_' || b == '.' || b == '-';
    if (!plain) return false;
  }
  return true;
}

static weft_status take_key(cursor *c, uint32_t index) {
  gguf_key *key = &c->part->keys[index];
  char shown[GGUF_SHOWN];
  weft_status status = take_string(c, "the name of a key", &key->name);
  if (status != WEFT_OK) return status;
  if (key->name.n == 0 || key->name.n > GGUF_KEY_MAX) {
    return fail_malformed(c, "the length of a key", key->name.n, "it must be 1..65535");
  }
  if (!is_plain_key(key->name) && c->n_strange++ == 0) c->strange = key->name;
  if (!key_names_add(c->part, index)) {
    return weft_fail(c->error, WEFT_E_FORMAT, "%s: key '%s' occurs twice", c->part->path, gguf_show(key->name, shown));
  }
  status = take_kind(c, "the type of a key", &key->kind);
  if (status != WEFT_OK) return status;
  status = take_value(c, key);
  if (status == WEFT_OK || c->error == NULL) return status;
  weft_error inner = *c->error; /* say which key */
  size_t n_path = strlen(c->part->path);
  const char *rest = strncmp(inner.text, c->part->path, n_path) == 0 ? inner.text + n_path : inner.text;
  return weft_fail(c->error, status, "%s: key '%s'%s", c->part->path, gguf_show(key->name, shown), rest);
}

static weft_status take_keys(cursor *c, uint64_t n_keys) {
  gguf_part *part = c->part;
  part->keys = weft_alloc((size_t)n_keys, sizeof *part->keys);
  if (part->keys == NULL || gguf_names_open(&part->key_names, (uint32_t)n_keys) != WEFT_OK) {
    return weft_fail(c->error, WEFT_E_NO_MEMORY, "%s: no memory for %" PRIu64 " keys", part->path, n_keys);
  }
  for (uint32_t i = 0; i < n_keys; i++) {
    weft_status status = take_key(c, i);
    part->n_keys = i + 1; /* offsets of a half-read key are freed too */
    if (status != WEFT_OK) return status;
  }
  return WEFT_OK;
}

static weft_status read_alignment(cursor *c) {
  gguf_part *part = c->part;
  part->alignment = ALIGNMENT_DEFAULT;
  for (uint32_t i = 0; i < part->n_keys; i++) {
    const gguf_key *key = &part->keys[i];
    static const char name[] = "general.alignment";
    if (key->name.n != sizeof name - 1 || memcmp(key->name.data, name, key->name.n) != 0) continue;
    if (key->kind != WEFT_GGUF_U32) {
      return weft_fail(c->error, WEFT_E_FORMAT, "%s: general.alignment has type %s; it must be u32", part->path,
                       kinds[key->kind].name);
    }
    uint32_t value;
    memcpy(&value, key->value, sizeof value);
    if (value == 0 || (value & (value - 1)) != 0 || value > GGUF_ALIGNMENT_MAX) {
      return fail_malformed(c, "general.alignment", value, "it must be a power of two up to 2^30");
    }
    part->alignment = value;
  }
  return WEFT_OK;
}

/* ---- tensors ---- */

static weft_status bad_tensor(cursor *c, const weft_gguf_tensor *tensor, const char *what, uint64_t value,
                              const char *rule) {
  char shown[GGUF_SHOWN];
  weft_bytes name = {tensor->name, strlen(tensor->name)};
  return weft_fail(c->error, WEFT_E_FORMAT, "%s: tensor '%s': %s is %" PRIu64 "; %s", c->part->path,
                   gguf_show(name, shown), what, value, rule);
}

static weft_status take_name(cursor *c, weft_gguf_tensor *tensor) {
  weft_bytes name = {NULL, 0};
  weft_status status = take_string(c, "the name of a tensor", &name);
  if (status != WEFT_OK) return status;
  if (name.n == 0 || name.n > GGUF_NAME_MAX) {
    return fail_malformed(c, "the length of a tensor's name", name.n, "it must be 1..63");
  }
  if (memchr(name.data, 0, name.n) != NULL) {
    return fail_malformed(c, "a byte of a tensor's name", 0, "a name has no zero byte");
  }
  tensor->name = weft_strndup(name.data, name.n);
  return tensor->name != NULL ? WEFT_OK
                              : weft_fail(c->error, WEFT_E_NO_MEMORY, "%s: no memory for names", c->part->path);
}

/* The product is grown step by step, each step checked: a product that wraps to zero cannot slip
 * through. */
static weft_status take_dims(cursor *c, weft_gguf_tensor *tensor, uint64_t *n_elements) {
  weft_status status = take_u32(c, "the number of dimensions of a tensor", &tensor->n_dims);
  if (status != WEFT_OK) return status;
  if (tensor->n_dims > GGUF_DIMS_MAX) {
    return bad_tensor(c, tensor, "the number of dimensions", tensor->n_dims, "it must be 0..4");
  }
  *n_elements = 1;
  for (uint32_t i = 0; i < GGUF_DIMS_MAX; i++) {
    tensor->ne[i] = 1;
    if (i >= tensor->n_dims) continue;
    status = take_u64(c, "a dimension of a tensor", &tensor->ne[i]);
    if (status != WEFT_OK) return status;
    if (tensor->ne[i] == 0 || tensor->ne[i] > INT64_MAX) {
      return bad_tensor(c, tensor, "a dimension", tensor->ne[i], "it must be 1..2^63-1");
    }
    if (*n_elements > INT64_MAX / tensor->ne[i]) {
      return bad_tensor(c, tensor, "a dimension", tensor->ne[i], "the number of elements passes 2^63-1");
    }
    *n_elements *= tensor->ne[i];
  }
  return WEFT_OK;
}

bool gguf_type_block(int32_t id, uint32_t *n_elements, uint32_t *n_bytes) {
  static const struct {
    int32_t id;
    uint32_t n_elements, n_bytes;
  } others[] = {{9, 32, 36}, {15, 256, 292}, {24, 1, 1},    {25, 1, 2},  {26, 1, 4},
                {27, 1, 8},  {28, 1, 8},     {41, 128, 18}, {42, 64, 18}};
  const weft_type_info *info = weft_type_find_stored(id);
  if (info != NULL) {
    *n_elements = info->n_elements;
    *n_bytes = info->n_bytes;
    return true;
  }
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
    if (others[i].id != id) continue;
    *n_elements = others[i].n_elements;
    *n_bytes = others[i].n_bytes;
    return true;
  }
  return false;
}

static weft_status take_type(cursor *c, weft_gguf_tensor *tensor, uint64_t n_elements) {
  uint32_t id = 0;
  weft_status status = take_u32(c, "the type of a tensor", &id);
  if (status != WEFT_OK) return status;
  uint32_t block = 1, block_bytes = 0;
  const weft_type_info *info = weft_type_find_stored((int32_t)id);
  (void)gguf_type_block((int32_t)id, &block, &block_bytes); /* unknown: no bytes */
  tensor->type = info != NULL ? info->type : WEFT_TYPE_NONE;
  tensor->type_id = id;
  if (tensor->ne[0] % block != 0) {
    if (info == NULL) return WEFT_OK; /* the size that is known of this type is not the size of this tensor */
    return bad_tensor(c, tensor, "the row length", tensor->ne[0], "its type needs whole blocks");
  }
  uint64_t n_blocks = n_elements / block;
  if (block_bytes > 0 && n_blocks > INT64_MAX / block_bytes) {
    return bad_tensor(c, tensor, "the number of blocks", n_blocks, "the bytes pass 2^63-1");
  }
  tensor->n_bytes = n_blocks * block_bytes;
  return WEFT_OK;
}

/* The offset is checked against the file when the data section is known. */
static weft_status take_tensor(cursor *c, uint32_t index, uint64_t *offset) {
  weft_gguf_tensor *tensor = &c->part->tensors[index];
  uint64_t n_elements = 0;
  weft_status status = take_name(c, tensor);
  if (status == WEFT_OK) status = take_dims(c, tensor, &n_elements);
  if (status == WEFT_OK) status = take_type(c, tensor, n_elements);
  if (status == WEFT_OK) status = take_u64(c, "the offset of a tensor", offset);
  if (status != WEFT_OK) return status;
  if (*offset % c->part->alignment != 0) {
    return bad_tensor(c, tensor, "the offset", *offset, "it must be a multiple of general.alignment");
  }
  return WEFT_OK;
}

typedef struct placed {
  uint64_t offset;
  uint32_t index;
} placed;

static int compare_placed(const void *a, const void *b) {
  const placed *x = a, *y = b;
  if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
  return x->index < y->index ? -1 : 1;
}

/* Gaps are fine; bytes outside of the file or shared by two tensors are not. */
static weft_status place_tensors(cursor *c, placed *places) {
  gguf_part *part = c->part;
  uint64_t data_bytes = part->n_bytes - part->data_at;
  qsort(places, part->n_tensors, sizeof *places, compare_placed);
  for (uint32_t i = 0; i < part->n_tensors; i++) {
    weft_gguf_tensor *tensor = &part->tensors[places[i].index];
    uint64_t offset = places[i].offset;
    if (offset > data_bytes || tensor->n_bytes > data_bytes - offset) {
      return weft_fail(c->error, WEFT_E_FORMAT,
                       "%s: tensor '%s': %" PRIu64 " bytes at offset %" PRIu64 " of the data, which has %" PRIu64
                       "; the file is cut, copy it again",
                       part->path, tensor->name, tensor->n_bytes, offset, data_bytes);
    }
    if (i + 1 < part->n_tensors && places[i + 1].offset - offset < tensor->n_bytes) {
      return bad_tensor(c, tensor, "the offset", offset, "it overlaps the next tensor");
    }
    tensor->data = part->bytes + part->data_at + offset;
  }
  return WEFT_OK;
}

static weft_status find_data(cursor *c) {
  gguf_part *part = c->part;
  uint64_t padding = (part->alignment - c->at % part->alignment) % part->alignment;
  if (padding > bytes_left(c)) {
    return weft_fail(c->error, WEFT_E_FORMAT, "%s: the file ends at byte %" PRIu64 ", before its data; copy it again",
                     part->path, part->n_bytes);
  }
  part->data_at = c->at + padding;
  return WEFT_OK;
}

static weft_status take_tensors(cursor *c, uint64_t n_tensors) {
  gguf_part *part = c->part;
  placed *places = weft_alloc((size_t)n_tensors, sizeof *places);
  part->tensors = weft_alloc((size_t)n_tensors, sizeof *part->tensors);
  weft_status status = WEFT_OK;
  if (part->tensors == NULL || places == NULL) {
    status = weft_fail(c->error, WEFT_E_NO_MEMORY, "%s: no memory for %" PRIu64 " tensors", part->path, n_tensors);
  }
  for (uint32_t i = 0; status == WEFT_OK && i < n_tensors; i++) {
    part->n_tensors = i + 1;
    places[i].index = i;
    status = take_tensor(c, i, &places[i].offset);
  }
  if (status == WEFT_OK) status = find_data(c);
  if (status == WEFT_OK) status = place_tensors(c, places);
  weft_free(places);
  return status;
}

/* ---- one file ---- */

static weft_status check_magic(cursor *c) {
  gguf_part *part = c->part;
  if (part->n_bytes < HEADER_BYTES) {
    return weft_fail(c->error, WEFT_E_FORMAT, "%s: %" PRIu64 " bytes are too few for a GGUF file (24 at least)",
                     part->path, part->n_bytes);
  }
  if (memcmp(part->bytes, "GGUF", 4) != 0) {
    return weft_fail(c->error, WEFT_E_FORMAT, "%s: not a GGUF file: it starts with bytes %02x %02x %02x %02x",
                     part->path, part->bytes[0], part->bytes[1], part->bytes[2], part->bytes[3]);
  }
  c->at = 4;
  uint32_t version = 0;
  (void)take_u32(c, "the version", &version); /* inside the header */
  if (version != 0 && (version & 0xFFFFu) == 0) {
    return fail_malformed(c, "the version", version, "the file was written for the other byte order");
  }
  if (version < 2 || version > 3) return fail_malformed(c, "the version", version, "versions 2 and 3 are read");
  return WEFT_OK;
}

weft_status gguf_part_parse(gguf_part *part, weft_error *error) {
  cursor c = {.part = part, .error = error};
  uint64_t n_tensors = 0, n_keys = 0;
  weft_status status = check_magic(&c);
  if (status != WEFT_OK) return status;
  (void)take_u64(&c, "n_tensors", &n_tensors); /* inside the header */
  (void)take_u64(&c, "n_kv", &n_keys);
  uint64_t most = bytes_left(&c);
  if (n_tensors > most / TENSOR_BYTES_MIN || n_tensors >= UINT32_MAX / 2) {
    return fail_malformed(&c, "n_tensors", n_tensors, "the file is too small for so many");
  }
  if (n_keys > most / KEY_BYTES_MIN || n_keys >= UINT32_MAX / 2) {
    return fail_malformed(&c, "n_kv", n_keys, "the file is too small for so many");
  }
  status = take_keys(&c, n_keys);
  if (status == WEFT_OK) status = read_alignment(&c);
  part->data_at = c.at; /* of a file without tensors */
  if (c.n_strange > 0) {
    char shown[GGUF_SHOWN];
    weft_log(WEFT_LOG_WARN, "%s: %" PRIu32 " keys have bytes outside of [a-z0-9_.-], first '%s'", part->path,
             c.n_strange, gguf_show(c.strange, shown));
  }
  if (status == WEFT_OK && n_tensors > 0) status = take_tensors(&c, n_tensors);
  return status;
}

void gguf_part_close(gguf_part *part) {
  for (uint32_t i = 0; i < part->n_keys; i++) weft_free(part->keys[i].offsets);
  for (uint32_t i = 0; i < part->n_tensors; i++) weft_free((char *)(uintptr_t)part->tensors[i].name);
  weft_free(part->keys);
  weft_free(part->tensors);
  gguf_names_close(&part->key_names);
  if (part->mapped) (void)munmap((void *)(uintptr_t)part->bytes, part->n_bytes);
  if (part->let_go) weft_free((void *)(uintptr_t)part->bytes);
  weft_free(part->path);
  *part = (gguf_part){0};
}
