/* SPDX-License-Identifier: MIT */
/* A GGUF v3 model on disk, one file or split into parts, mapped read-only.
 *
 * Law: nothing in the file is trusted. Every count, length, offset and product is checked against the bytes that are
 * there before it is used; each refusal names the file, the field and the value. After open succeeds, every key's value
 * and every tensor's bytes lie inside the mapping, tensors do not overlap, and names are unique. A file opens whatever
 * its architecture and its types are; weft_gguf_check_type says whether weft computes with a tensor. A weft_gguf does
 * not change, but for weft_gguf_let_go, and several threads may read it. */
#ifndef WEFT_MODEL_GGUF_GGUF_H
#define WEFT_MODEL_GGUF_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "kernels/quant.h" /* weft_type: ids are those of the file format */

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weft_gguf weft_gguf;

typedef enum weft_gguf_kind {
  WEFT_GGUF_U8 = 0,
  WEFT_GGUF_I8 = 1,
  WEFT_GGUF_U16 = 2,
  WEFT_GGUF_I16 = 3,
  WEFT_GGUF_U32 = 4,
  WEFT_GGUF_I32 = 5,
  WEFT_GGUF_F32 = 6,
  WEFT_GGUF_BOOL = 7,
  WEFT_GGUF_STRING = 8,
  WEFT_GGUF_ARRAY = 9,
  WEFT_GGUF_U64 = 10,
  WEFT_GGUF_I64 = 11,
  WEFT_GGUF_F64 = 12
} weft_gguf_kind;

/* Bytes inside the mapping; not ended by a zero byte. */
typedef struct weft_bytes {
  const char *data;
  size_t n;
} weft_bytes;

typedef struct weft_gguf_tensor {
  const char *name; /* zero-ended copy */
  weft_type type;   /* NONE: a type that weft does not compute; type_id says which */
  uint32_t type_id; /* as in the file */
  uint32_t n_dims;
  uint64_t ne[4];   /* ne[0] is contiguous; missing trailing dims are 1 */
  uint64_t n_bytes; /* 0: the size of the type is not known */
  const void *data; /* inside the mapping of its part */
} weft_gguf_tensor;

/* Opens path; when it is part 1 of a split model, all parts. Errors: IO, FORMAT, UNSUPPORTED, NO_MEMORY. */
weft_status weft_gguf_open(const char *path, weft_gguf **out, weft_error *error);
/* The same checks over bytes in memory (one part), which must outlive the weft_gguf. name is for messages. */
weft_status weft_gguf_open_memory(const void *data, size_t n_bytes, const char *name, weft_gguf **out,
                                  weft_error *error);
void weft_gguf_close(weft_gguf *gguf); /* NULL is fine */
/* Unmaps the files, so that they may be changed or removed. Keys, names, types and shapes stay in memory; the data of
 * tensors is NULL from then on. No other thread may read the weft_gguf meanwhile. NO_MEMORY: only close may follow. */
weft_status weft_gguf_let_go(weft_gguf *gguf, weft_error *error);

const char *weft_gguf_path(const weft_gguf *gguf);
uint64_t weft_gguf_file_bytes(const weft_gguf *gguf); /* all parts */

uint32_t weft_gguf_n_keys(const weft_gguf *gguf);
/* The index of a key, or -1 when the file has no such key. */
int64_t weft_gguf_find(const weft_gguf *gguf, const char *key);

/* Typed reads. Any integer kind (and bool) is accepted with a range check. NOT_FOUND when absent (error
 * untouched), FORMAT with a line when of another kind or out of range. */
weft_status weft_gguf_u64(const weft_gguf *gguf, const char *key, uint64_t *out, weft_error *error);
weft_status weft_gguf_f64(const weft_gguf *gguf, const char *key, double *out, weft_error *error);
weft_status weft_gguf_bool(const weft_gguf *gguf, const char *key, bool *out, weft_error *error);
weft_status weft_gguf_string(const weft_gguf *gguf, const char *key, weft_bytes *out, weft_error *error);
/* Element i of an array; of a scalar any i gives the scalar. */
weft_status weft_gguf_u64_at(const weft_gguf *gguf, const char *key, uint64_t i, uint64_t *out, weft_error *error);
weft_status weft_gguf_f64_at(const weft_gguf *gguf, const char *key, uint64_t i, double *out, weft_error *error);
/* Element i of an array of strings, found in constant time by an index that open built. */
weft_status weft_gguf_string_at(const weft_gguf *gguf, const char *key, uint64_t i, weft_bytes *out, weft_error *error);
/* Count of an array; 1 for a scalar; 0 when absent. */
uint64_t weft_gguf_count(const weft_gguf *gguf, const char *key);

uint32_t weft_gguf_n_tensors(const weft_gguf *gguf);
const weft_gguf_tensor *weft_gguf_tensor_at(const weft_gguf *gguf, uint32_t index);
/* NULL when absent. */
const weft_gguf_tensor *weft_gguf_tensor_find(const weft_gguf *gguf, const char *name);
/* A hash of the keys, the tensor table and samples of the weights, by which a file is recognised. */
void weft_gguf_fingerprint(const weft_gguf *gguf, uint64_t *low, uint64_t *high);
/* UNSUPPORTED, with a line that names the tensor, when weft does not compute its type. */
weft_status weft_gguf_check_type(const weft_gguf *gguf, const weft_gguf_tensor *tensor, weft_error *error);
/* Tells the system that the tensor's mapped pages are no longer needed (after packing). */
void weft_gguf_forget(const weft_gguf *gguf, const weft_gguf_tensor *tensor);

#ifdef __cplusplus
}
#endif
#endif
