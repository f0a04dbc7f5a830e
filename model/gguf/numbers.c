/* SPDX-License-Identifier: MIT */
#include "model/gguf/numbers.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "model/gguf/gguf_reader.h"

enum { CHUNK = 4 << 20 };

typedef struct numbers {
  const weft_numbers_args *args;
  weft_numbers_report *report;
  weft_error *error;
  gguf_reader *reader; /* NULL: through the mapping */
  uint64_t n_bytes, n_bytes_all;
  uint8_t *stored; /* rows as they are stored; grows */
  uint64_t n_stored;
  float *row, *first; /* a row, and the first one of its matrix */
  uint64_t n_row;
  /* of the tensor at hand */
  weft_numbers_finding found[WEFT_NUMBERS_FAULTS];
  uint64_t n_like_first;
} numbers;

const char *weft_numbers_fault_text(weft_numbers_fault fault) {
  static const char *const texts[] = {"not finite", "zero", "the same for every expert"};
  return (uint32_t)fault < WEFT_NUMBERS_FAULTS ? texts[fault] : "";
}

static bool has_ending(const char *name, const char *ending) {
  size_t n = strlen(name), n_ending = strlen(ending);
  return n >= n_ending && strcmp(name + n - n_ending, ending) == 0;
}

static bool is_embedding(const char *name) {
  return has_ending(name, "token_embd.weight") || strcmp(name, "output.weight") == 0;
}

static bool is_router(const char *name) {
  return has_ending(name, ".ffn_gate_inp.weight");
}

/* ---- memory ---- */

static weft_status take_room(numbers *s, uint64_t n_stored, uint64_t n_row) {
  if (n_stored > s->n_stored) {
    weft_free(s->stored);
    s->stored = weft_alloc_aligned((size_t)n_stored, WEFT_READ_ALIGN);
    s->n_stored = s->stored != NULL ? n_stored : 0;
  }
  if (n_row > s->n_row) {
    weft_free(s->row);
    weft_free(s->first);
    s->row = weft_alloc((size_t)n_row, sizeof *s->row);
    s->first = weft_alloc((size_t)n_row, sizeof *s->first);
    s->n_row = s->row != NULL && s->first != NULL ? n_row : 0;
  }
  if (s->n_stored >= n_stored && s->n_row >= n_row) return WEFT_OK;
  return weft_fail(s->error, WEFT_E_NO_MEMORY, "%s: no memory to read its rows", weft_gguf_path(s->args->gguf));
}

/* n bytes of a tensor: read from the file, or where they lie. */
static weft_status fetch_rows(numbers *s, const weft_gguf_tensor *tensor, uint64_t at, uint64_t n,
                              const uint8_t **out) {
  weft_weight_source source = gguf_reader_source(s->reader, tensor);
  *out = (const uint8_t *)tensor->data + at;
  if (source.read == NULL) return WEFT_OK;
  uint32_t skip = 0;
  weft_status status = source.read(source.self, at, n, s->stored, &skip);
  *out = s->stored + skip;
  return status == WEFT_OK ? status : weft_fail(s->error, status, "%s", gguf_reader_error(s->reader));
}

/* ---- judging ---- */

static void count_fault(numbers *s, const weft_gguf_tensor *tensor, weft_numbers_fault fault, uint64_t row) {
  weft_numbers_finding *found = &s->found[fault];
  if (found->n_rows++ > 0) return;
  found->matrix = row / tensor->ne[1];
  found->row = row % tensor->ne[1];
}

static void judge_row(numbers *s, const weft_gguf_tensor *tensor, uint64_t row) {
  uint64_t n = tensor->ne[0];
  bool zero = true, finite = true;
  for (uint64_t i = 0; i < n; i++) {
    zero = zero && s->row[i] == 0.0f;
    finite = finite && isfinite(s->row[i]);
  }
  if (!finite) count_fault(s, tensor, WEFT_NUMBERS_NOT_FINITE, row);
  if (zero && !has_ending(tensor->name, ".bias")) count_fault(s, tensor, WEFT_NUMBERS_ZERO, row);
  if (row == 0) memcpy(s->first, s->row, (size_t)n * sizeof *s->row);
  s->n_like_first += memcmp(s->first, s->row, (size_t)n * sizeof *s->row) == 0;
}

static void tell_findings(numbers *s, const weft_gguf_tensor *tensor, uint64_t n_rows) {
  bool broken = false;
  weft_numbers_finding *zero = &s->found[WEFT_NUMBERS_ZERO];
  if (is_embedding(tensor->name) && zero->n_rows <= n_rows / 2) zero->n_rows = 0;
  if (is_router(tensor->name) && n_rows > 1 && s->n_like_first == n_rows && zero->n_rows == 0)
    s->found[WEFT_NUMBERS_CONSTANT_ROUTER].n_rows = n_rows;
  for (uint32_t f = 0; f < WEFT_NUMBERS_FAULTS; f++) {
    weft_numbers_finding *found = &s->found[f];
    if (found->n_rows == 0) continue;
    found->tensor = tensor->name;
    found->fault = (weft_numbers_fault)f;
    found->n_rows_all = n_rows;
    broken = true;
    s->args->take(s->args->self, found);
  }
  s->report->n_tensors += 1;
  s->report->n_broken += broken;
}

static weft_status judge_tensor(numbers *s, const weft_gguf_tensor *tensor) {
  uint64_t row_bytes = weft_type_row_bytes(tensor->type, tensor->ne[0]);
  uint64_t n_rows = tensor->n_bytes / row_bytes, n_at_once = row_bytes < CHUNK ? CHUNK / row_bytes : 1;
  memset(s->found, 0, sizeof s->found);
  s->n_like_first = 0;
  weft_status status = take_room(s, n_at_once * row_bytes + 2 * (uint64_t)WEFT_READ_ALIGN, tensor->ne[0]);
  for (uint64_t row = 0; row < n_rows && status == WEFT_OK;) {
    uint64_t n = n_rows - row < n_at_once ? n_rows - row : n_at_once;
    const uint8_t *bytes = NULL;
    status = fetch_rows(s, tensor, row * row_bytes, n * row_bytes, &bytes);
    for (uint64_t i = 0; i < n && status == WEFT_OK; i++, row++) {
      weft_dequantise_row(tensor->type, bytes + i * row_bytes, s->row, tensor->ne[0]);
      judge_row(s, tensor, row);
    }
    s->n_bytes += n * row_bytes;
    if (s->args->progress != NULL) s->args->progress(s->args->self, s->n_bytes, s->n_bytes_all);
  }
  if (status == WEFT_OK) tell_findings(s, tensor, n_rows);
  return status;
}

weft_status weft_numbers(const weft_numbers_args *args, weft_numbers_report *report, weft_error *error) {
  numbers s = {.args = args, .report = report, .error = error};
  *report = (weft_numbers_report){0};
  uint32_t n = weft_gguf_n_tensors(args->gguf);
  for (uint32_t i = 0; i < n; i++) s.n_bytes_all += weft_gguf_tensor_at(args->gguf, i)->n_bytes;
  weft_status status = gguf_reader_open(args->gguf, false, &s.reader, error);
  for (uint32_t i = 0; i < n && status == WEFT_OK; i++) {
    const weft_gguf_tensor *tensor = weft_gguf_tensor_at(args->gguf, i);
    if (tensor->type == WEFT_TYPE_NONE) {
      report->n_skipped += 1;
    } else {
      status = judge_tensor(&s, tensor);
    }
  }
  gguf_reader_close(s.reader);
  weft_free(s.stored);
  weft_free(s.row);
  weft_free(s.first);
  return status;
}
