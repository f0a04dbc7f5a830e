/* SPDX-License-Identifier: MIT */
/* The parts of a GGUF file; private to model/gguf*.c, tokenizer.c and inspect*.c, and to tests.
 *
 * Law: a gguf_part is one file. gguf_part_parse fills it from bytes that are not trusted, and
 * gguf_part_close frees whatever was filled. The bytes are borrowed; a mapping belongs to the part. */
#ifndef WEFT_MODEL_GGUF_GGUF_INTERNAL_H
#define WEFT_MODEL_GGUF_GGUF_INTERNAL_H

#include "model/gguf/gguf.h"

/* The largest values that weft accepts. */
enum {
  GGUF_NAME_MAX = 63,   /* bytes of a tensor name */
  GGUF_KEY_MAX = 65535, /* bytes of a key */
  GGUF_DIMS_MAX = 4,
  GGUF_STRING_MAX = 1 << 30, /* bytes of a string */
  GGUF_ARRAY_MAX = 1 << 30,  /* elements of an array */
  GGUF_ALIGNMENT_MAX = 1 << 30
};

/* From a name to an index: open addressing over XXH3, at most half full. */
typedef struct gguf_names {
  uint32_t *slots; /* index + 1; 0: empty */
  uint64_t mask;
  uint64_t seed;
} gguf_names;

typedef struct gguf_key {
  weft_bytes name;
  weft_gguf_kind kind;
  weft_gguf_kind element; /* of an array */
  uint64_t count;         /* elements of an array; bytes of a string; else 1 */
  const uint8_t *value;   /* first byte of the scalar, the text or the first element */
  uint64_t *offsets;      /* array of strings: where each length word lies, from value */
} gguf_key;

typedef struct gguf_part {
  char *path;
  const uint8_t *bytes;
  uint64_t n_bytes;
  bool mapped;
  bool let_go;            /* bytes is now a copy of what comes before the data section, owned by the part */
  uint64_t device, inode; /* of the file, when it was mapped */
  int64_t changed_ns;     /* the file's time of change when it was mapped, in nanoseconds */
  uint64_t alignment;
  uint64_t data_at; /* offset of the data section */
  gguf_key *keys;
  uint32_t n_keys;
  gguf_names key_names;
  weft_gguf_tensor *tensors;
  uint32_t n_tensors;
} gguf_part;

struct weft_gguf {
  gguf_part *parts; /* parts[0] has the keys */
  uint32_t n_parts;
  weft_gguf_tensor *tensors; /* of all parts, in file order */
  uint32_t n_tensors;
  gguf_names tensor_names;
};

/* part->path, bytes and n_bytes are set; the rest is zero. */
weft_status gguf_part_parse(gguf_part *part, weft_error *error);
void gguf_part_close(gguf_part *part);

weft_status gguf_names_open(gguf_names *names, uint32_t n);
void gguf_names_close(gguf_names *names);
/* The slot of a name, or the empty one where it would be. name_of gives the name of an index. */
typedef weft_bytes (*gguf_name_reader)(const void *of, uint32_t index);
uint32_t *gguf_names_slot(const gguf_names *names, weft_bytes name, gguf_name_reader name_of, const void *of);
uint32_t *gguf_key_names_slot(const gguf_part *part, weft_bytes name);

/* Bytes of one element of a scalar kind; 0 for strings and arrays. */
uint32_t gguf_kind_bytes(weft_gguf_kind kind);
const char *gguf_kind_name(weft_gguf_kind kind);
/* Elements and bytes of a weight block of a type, also of types that weft does not compute; false: not known. */
bool gguf_type_block(int32_t id, uint32_t *n_elements, uint32_t *n_bytes);
/* Writes name as printable text, cut with dots where it is long, and returns out. */
#define GGUF_SHOWN 72
const char *gguf_show(weft_bytes name, char out[GGUF_SHOWN]);

#endif
