/* SPDX-License-Identifier: MIT */
/* A model file again with one fact changed, in memory or written to disk, for tests of what opening and serving say
 * about it.
 *
 * Law: what an edit does not name is copied byte for byte. Files go to a folder of their own, which gguf_edit_clean
 * removes with all that was written. */
#ifndef WEFT_TESTS_GGUF_EDIT_H
#define WEFT_TESTS_GGUF_EDIT_H

#include <math.h>
#include <unistd.h>

#include "tests/support/gguf_requantise.h"

typedef struct gguf_edit {
  const char *drop_key, *drop_tensor;
  const char *set_u32; /* replaces or adds a key */
  uint32_t value;
  const char *set_list; /* the same, a list of whole numbers */
  const int32_t *list;
  uint32_t n_list;
  const char *set_string, *text;
  const char *set_f32;
  float real;
  const char *add_scalar; /* adds a tensor of one number, `real` */
  const char *times;      /* every element of the tensor, which is F32, times factor */
  float factor;
  const char *rename, *name;
  const char *prefix, *to_prefix; /* keys that begin with the first begin with the other */
  const weft_gguf *with;          /* its tensors are added, and its keys but for the general ones */
  const char *reshape;            /* the tensor loses its last row, or its last expert */
  const char *quantise;           /* the tensor is F32 and is stored as this type */
  const char *retype;             /* its record says this type; the bytes stay */
  int32_t type;
  const char *widen;   /* the embeddings, F32, get their rows again and again, each time nearer to zero */
  uint32_t times_rows; /* how often it has them then */
  const char *poison;  /* every element becomes NaN; all tensors whose name contains this; F32 only */
  uint32_t poison_row; /* with poison_one_row: only this row */
  bool poison_one_row;
  const char *bad_integer; /* the first number of the tensor, which is of type I32, becomes 1000 */
  uint32_t fewer_tokens;   /* the vocabulary's array of texts loses so many entries */
  uint32_t fewer_merges;   /* the same of its merges */
  uint64_t cut;            /* bytes taken off the end of the file */
} gguf_edit;

static char gguf_edit_folder[64];
static char gguf_edit_written[64][128];
static uint32_t gguf_edit_n_written;

static inline void gguf_edit_need(bool holds, const char *what) {
  if (holds) return;
  (void)printf("FAILED: gguf_edit: %s\n", what);
  exit(1);
}

static inline bool gguf_edit_is(const char *a, const char *b) {
  return a != NULL && strcmp(a, b) == 0;
}

static inline void gguf_edit_key(const gguf_key *key, const gguf_edit *e, gguf_writer *w) {
  char name[128] = {0};
  const char *start = key->name.data - 8, *end = (const char *)requantise_key_end(key);
  memcpy(name, key->name.data, key->name.n < sizeof name - 1 ? key->name.n : sizeof name - 1);
  if (gguf_edit_is(e->drop_key, name) || gguf_edit_is(e->set_u32, name)) return;
  if (gguf_edit_is(e->set_string, name) || gguf_edit_is(e->set_f32, name) || gguf_edit_is(e->set_list, name)) return;
  if (e->widen != NULL && (strstr(name, ".vocab_size") != NULL || strcmp(name, "tokenizer.ggml.tokens") == 0)) return;
  w->n_keys += 1;
  if (e->prefix != NULL && strncmp(name, e->prefix, strlen(e->prefix)) == 0) {
    char other[160];
    int n = snprintf(other, sizeof other, "%s%s", e->to_prefix, name + strlen(e->prefix));
    gguf_writer_u64_raw(&w->keys, (uint64_t)n);
    gguf_writer_bytes(&w->keys, other, (size_t)n);
    start = key->name.data + key->name.n;
    gguf_writer_bytes(&w->keys, start, (size_t)(end - start));
    return;
  }
  uint32_t fewer = strcmp(name, "tokenizer.ggml.tokens") == 0   ? e->fewer_tokens
                   : strcmp(name, "tokenizer.ggml.merges") == 0 ? e->fewer_merges
                                                                : 0;
  if (fewer == 0) {
    gguf_writer_bytes(&w->keys, start, (size_t)(end - start));
    return;
  }
  uint64_t count = key->count - fewer;
  const char *values = (const char *)key->value; /* after the array's length */
  gguf_writer_bytes(&w->keys, start, (size_t)(values - 8 - start));
  gguf_writer_u64_raw(&w->keys, count);
  gguf_writer_bytes(&w->keys, values, (size_t)key->offsets[count]);
}

/* The keys of an architecture, and all tensors, of another file. */
static inline void gguf_edit_add(const weft_gguf *with, gguf_writer *w) {
  for (uint32_t i = 0; i < with->parts[0].n_keys; i++) {
    const gguf_key *key = &with->parts[0].keys[i];
    const char *start = key->name.data - 8, *end = (const char *)requantise_key_end(key);
    if (strncmp(key->name.data, "general.", 8) == 0) continue;
    w->n_keys += 1;
    gguf_writer_bytes(&w->keys, start, (size_t)(end - start));
  }
  for (uint32_t i = 0; i < with->n_tensors; i++) {
    const weft_gguf_tensor *t = &with->tensors[i];
    gguf_writer_tensor(w, t->name, (int32_t)t->type_id, t->n_dims, t->ne, t->data, (size_t)t->n_bytes);
  }
}

static inline void gguf_edit_tensor(const weft_gguf_tensor *from, const gguf_edit *e, gguf_writer *w) {
  weft_gguf_tensor t = *from;
  void *changed = NULL;
  if (gguf_edit_is(e->drop_tensor, t.name)) return;
  if (gguf_edit_is(e->rename, t.name)) t.name = e->name;
  if (gguf_edit_is(e->reshape, t.name)) {
    t.n_bytes -= t.n_bytes / t.ne[t.n_dims - 1];
    t.ne[t.n_dims - 1] -= 1;
  }
  if (e->poison != NULL && strstr(t.name, e->poison) != NULL) {
    gguf_edit_need(t.type == WEFT_TYPE_F32, "only F32 tensors can be poisoned");
    uint64_t n = t.n_bytes / sizeof(float), first = 0, count = n;
    if (e->poison_one_row) {
      first = (uint64_t)e->poison_row * t.ne[0];
      count = t.ne[0];
    }
    float *poisoned = changed = malloc((size_t)t.n_bytes);
    gguf_edit_need(poisoned != NULL && first + count <= n, "memory, or a row that is not there");
    memcpy(poisoned, t.data, (size_t)t.n_bytes);
    for (uint64_t i = 0; i < count; i++) poisoned[first + i] = NAN;
    t.data = changed;
  }
  if (gguf_edit_is(e->bad_integer, t.name)) {
    int32_t *integers = changed = malloc((size_t)t.n_bytes);
    gguf_edit_need(integers != NULL, "memory");
    memcpy(integers, t.data, (size_t)t.n_bytes);
    integers[0] = 1000;
    t.data = changed;
  }
  if (gguf_edit_is(e->widen, t.name)) {
    uint64_t n = t.n_bytes / sizeof(float);
    float *wide = changed = malloc((size_t)t.n_bytes * e->times_rows);
    gguf_edit_need(t.type == WEFT_TYPE_F32 && wide != NULL, "only F32 tensors can be widened");
    for (uint64_t i = 0; i < n * e->times_rows; i++)
      wide[i] = ((const float *)t.data)[i % n] * (1.0f - 0.03f * (float)(i / n));
    t.data = changed;
    t.n_bytes *= e->times_rows;
    t.ne[t.n_dims - 1] *= e->times_rows;
  }
  if (gguf_edit_is(e->times, t.name)) {
    float *scaled = changed = malloc((size_t)t.n_bytes);
    gguf_edit_need(t.type == WEFT_TYPE_F32 && scaled != NULL, "only F32 tensors can be multiplied");
    for (uint64_t i = 0; i < t.n_bytes / sizeof *scaled; i++) scaled[i] = ((const float *)t.data)[i] * e->factor;
    t.data = changed;
  }
  if (gguf_edit_is(e->quantise, t.name)) {
    uint64_t n = t.n_bytes / sizeof(float);
    t.n_bytes = weft_type_row_bytes((weft_type)e->type, n);
    changed = malloc((size_t)t.n_bytes);
    gguf_edit_need(changed != NULL && weft_quantise_row((weft_type)e->type, t.data, changed, n) == WEFT_OK,
                   "cannot store the tensor as this type");
    t.data = changed;
    t.type_id = (uint32_t)e->type;
  }
  int32_t type = gguf_edit_is(e->retype, t.name) ? e->type : (int32_t)t.type_id;
  gguf_writer_tensor(w, t.name, type, t.n_dims, t.ne, t.data, (size_t)t.n_bytes);
  free(changed);
}

/* Fills w; the file is gguf_writer_finish(w). */
static inline void gguf_edit_apply(const weft_gguf *from, const gguf_edit *e, gguf_writer *w) {
  for (uint32_t i = 0; i < from->parts[0].n_keys; i++) gguf_edit_key(&from->parts[0].keys[i], e, w);
  if (e->set_u32 != NULL) gguf_writer_u32(w, e->set_u32, e->value);
  if (e->set_list != NULL) gguf_writer_array(w, e->set_list, WEFT_GGUF_I32, e->list, e->n_list, sizeof *e->list);
  if (e->set_f32 != NULL) gguf_writer_f32(w, e->set_f32, e->real);
  if (e->set_string != NULL) gguf_writer_string(w, e->set_string, e->text);
  for (uint32_t i = 0; i < from->n_tensors; i++) gguf_edit_tensor(&from->tensors[i], e, w);
  if (e->with != NULL) gguf_edit_add(e->with, w);
  const uint64_t one = 1;
  if (e->add_scalar != NULL) {
    gguf_writer_tensor(w, e->add_scalar, WEFT_TYPE_F32, 1, &one, &e->real, sizeof e->real);
  }
}

/* Writes the bytes as NAME.gguf, over one of that name, and gives its path, valid until gguf_edit_clean. */
static inline const char *gguf_edit_keep(weft_bytes bytes, const char *name) {
  if (gguf_edit_folder[0] == 0) {
    (void)snprintf(gguf_edit_folder, sizeof gguf_edit_folder, "/tmp/weft-test-XXXXXX");
    gguf_edit_need(mkdtemp(gguf_edit_folder) != NULL, "no folder");
  }
  char wanted[sizeof gguf_edit_written[0]];
  (void)snprintf(wanted, sizeof wanted, "%s/%s.gguf", gguf_edit_folder, name);
  uint32_t at = 0;
  while (at < gguf_edit_n_written && strcmp(gguf_edit_written[at], wanted) != 0) at += 1;
  gguf_edit_need(at < 64, "too many files");
  char *path = gguf_edit_written[at];
  memcpy(path, wanted, sizeof wanted);
  if (at == gguf_edit_n_written) gguf_edit_n_written += 1;
  FILE *file = fopen(path, "wb");
  gguf_edit_need(file != NULL && fwrite(bytes.data, 1, bytes.n, file) == bytes.n, path);
  gguf_edit_need(fclose(file) == 0, path);
  return path;
}

/* The same of the edited file. */
static inline const char *gguf_edit_file(const char *source, const gguf_edit *e, const char *name) {
  weft_gguf *from;
  weft_error error = {{0}};
  gguf_writer w = {0};
  if (weft_gguf_open(source, &from, &error) != WEFT_OK) gguf_edit_need(false, error.text);
  gguf_edit_apply(from, e, &w);
  weft_bytes bytes = gguf_writer_finish(&w);
  gguf_edit_need(e->cut < bytes.n, "cut too much");
  const char *path = gguf_edit_keep((weft_bytes){bytes.data, bytes.n - e->cut}, name);
  gguf_writer_close(&w);
  weft_gguf_close(from);
  return path;
}

/* A file to which another one adds what it has. */
static inline const char *gguf_edit_join(const char *source, const char *added, const char *name) {
  gguf_edit e = {0};
  weft_gguf *with;
  weft_error error = {{0}};
  if (weft_gguf_open(added, &with, &error) != WEFT_OK) gguf_edit_need(false, error.text);
  e.with = with;
  const char *path = gguf_edit_file(source, &e, name);
  weft_gguf_close(with);
  return path;
}

static inline void gguf_edit_clean(void) {
  for (uint32_t i = 0; i < gguf_edit_n_written; i++) (void)unlink(gguf_edit_written[i]);
  if (gguf_edit_folder[0] != 0) (void)rmdir(gguf_edit_folder);
  gguf_edit_n_written = 0;
  gguf_edit_folder[0] = 0;
}

#endif
