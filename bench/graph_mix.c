/* SPDX-License-Identifier: MIT */
/* Steps as graphs beside the same steps call by call, on one device: steps of decode rows, of runs, of both, and of
 * canvases beside them. Where a graph gives other bits, it is launched in other ways, which say what it depends on, and
 * the first op that differs is named. A question for a card: bench/device.sh -w graph_mix asks it.
 *
 * usage: bench_graph_mix FILE [BACKEND [CASE [OP]]]
 *        cases: one of the list below, or all. OP: after the OP-th op of a step in a graph a number is set to 0, which
 *        must be found: it shows that the program can.
 * exit code: 0 all bits are equal, 1 some are not, 2 it could not run
 *
 * A step is computed call by call first. Then another step, so that no buffer holds the right numbers any more, and the
 * step again as a graph. Lengths grow by one from step to step, so a graph is launched again with other tables. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/one_step.h"
#include "model/op_outputs.h"

enum { SEQUENCES = 8, SHIFTS = 6, NO_OP = -1, EVERY_OP = -2, OPS_MAX = 4096 };

/* Parts, each of a sequence of its own: rows of a run (1: a decode row), `c` a canvas, `m` the commit of one. */
static const char *const cases[] = {
    "1",       "1 1",           "1 1 1 1 1 1 1 1", "3 3 3 3 3 3 3 3", "3 3 3 3 3 1 1 1",
    "3 1",     "2 2 2 2 1 1 1", "5 5 5 1 1",       "9 9 9 9 1 1 1 1", "16 16 1",
    "1 1 1 c", "1 c c",         "m 1 1 c",         "3 3 1 c",
};

/* How a step is launched as a graph. */
typedef struct mix_way {
  const char *name;
  bool fresh;             /* the graph is recorded for the step, and not launched again */
  bool serial;            /* weft_device_serial_kernels */
  bool cut, decode_first; /* attention in two calls: of single rows, and of all others */
  bool fences;            /* a copy of 64 bytes after every op, which no kernel overtakes */
} mix_way;

static const mix_way ways[] = {
    {.name = "as it is served"},
    {.name = "recorded for each step", .fresh = true},
    {.name = "no kernel begins early", .serial = true},
    {.name = "attention in two calls, single rows first", .cut = true, .decode_first = true},
    {.name = "attention in two calls, runs first", .cut = true},
    {.name = "a copy after every op", .fences = true},
    {.name = "a copy after every op, no kernel begins early", .fences = true, .serial = true},
};

/* What an op gave, in host memory. */
typedef struct kept_output {
  char op[16];
  uint32_t layer;
  uint32_t n_arrays;
  op_output array[OP_OUTPUTS_MAX];
  float *value[OP_OUTPUTS_MAX]; /* NULL: rows in a form of the device's own */
} kept_output;

typedef struct mix {
  one_step step;
  uint32_t base; /* length of the shortest sequence */
  float *d_soft, *d_side;
  uint64_t side_floats;
  float *wanted, *got;
  /* Of the watch. */
  const mix_way *way;
  weft_status status;
  bool nested, in_graph;
  int32_t probed, spoiled;
  uint32_t n_ops;
  kept_output *kept; /* [OPS_MAX] */
  uint64_t key;
} mix;

static int fail_with(const char *what, weft_status status) {
  (void)fprintf(stderr, "bench_graph_mix: %s: %s\n", what, weft_status_text(status));
  return 2;
}

/* ---- watching ------------------------------------------------------------------------------------------- */

static bool is_single(const weft_attention_segment *s) {
  return s->n_rows == 1;
}

/* The same attention as two calls. Only the two of them together give every row. */
static weft_status attend_in_two(mix *m, const weft_attention_args *args) {
  weft_attention_segment part[SEQUENCES];
  weft_status status = WEFT_OK;
  for (int turn = 0; turn < 2 && status == WEFT_OK; turn++) {
    weft_attention_args own = *args;
    own.segment = part;
    own.n_segments = 0;
    for (uint32_t s = 0; s < args->n_segments; s++)
      if (is_single(&args->segment[s]) == ((turn == 0) == m->way->decode_first))
        part[own.n_segments++] = args->segment[s];
    if (own.n_segments > 0) status = weft_attention(m->step.device, &own);
  }
  return status;
}

/* What the op gave goes to host memory or, where the step is a graph, to other device memory. */
static weft_status keep_outputs(mix *m, uint32_t layer, const char *op, const void *args) {
  kept_output *kept = &m->kept[m->n_ops];
  bool to_host = m->probed == EVERY_OP;
  weft_status status = WEFT_OK;
  uint64_t at = 0;
  if (to_host) {
    *kept = (kept_output){.layer = layer};
    kept->n_arrays = op_outputs_of(op, args, kept->array);
    (void)snprintf(kept->op, sizeof kept->op, "%s", op);
  }
  for (uint32_t i = 0; i < kept->n_arrays && status == WEFT_OK; i++) {
    const op_output *o = &kept->array[i];
    uint64_t n = o->n_rows * o->stride;
    if (o->form != WEFT_ROWS_F32) continue;
    if (!to_host) {
      status = weft_device_copy(m->step.device, m->d_side + at, o->data, n * sizeof(float));
      at += n;
      continue;
    }
    kept->value[i] = weft_alloc(n, sizeof(float));
    status = kept->value[i] == NULL ? WEFT_E_NO_MEMORY
                                    : weft_device_download(m->step.device, kept->value[i], o->data, n * sizeof(float));
    if ((at += n) > m->side_floats) status = WEFT_E_TOO_LARGE;
  }
  return status;
}

static bool watch_op(void *self, uint32_t layer, const char *op, const void *args, bool done) {
  mix *m = self;
  if (m->nested || m->status != WEFT_OK) return true;
  if (!done && (!m->way->cut || strcmp(op, "attention") != 0)) return true;
  if (!done) {
    m->nested = true;
    m->status = attend_in_two(m, args);
    m->nested = false;
    return false;
  }
  int32_t index = (int32_t)m->n_ops;
  op_output first[OP_OUTPUTS_MAX];
  if (m->n_ops == OPS_MAX) m->status = WEFT_E_TOO_LARGE;
  if (m->status == WEFT_OK && m->in_graph && index == m->spoiled && op_outputs_of(op, args, first) > 0)
    m->status = weft_device_zero(m->step.device, first[0].data, sizeof(float));
  if (m->status == WEFT_OK && (m->probed == index || m->probed == EVERY_OP))
    m->status = keep_outputs(m, layer, op, args);
  if (m->status == WEFT_OK && m->way->fences)
    m->status = weft_device_copy(m->step.device, m->d_side + m->side_floats, m->d_side + m->side_floats + 16, 64);
  m->n_ops += 1;
  return true;
}

/* ---- a step --------------------------------------------------------------------------------------------- */

static step_kind kind_of(char kind) {
  return kind == 'c' ? STEP_CANVAS : kind == 'r' ? STEP_READ : STEP_STORED;
}

/* False: the model has no canvases. */
static bool build_step(mix *m, const char *parts, uint32_t shift) {
  uint32_t s = 0;
  one_step_begin(&m->step);
  for (const char *at = parts; *at != 0; s++) {
    char *end = NULL;
    uint32_t n = (uint32_t)strtoul(at, &end, 10);
    char kind = end == at ? *end++ : 'r';
    if (kind != 'r' && m->step.info->canvas_length == 0) return false;
    one_step_add_rows(&m->step, s, m->base + 5 * s + shift, kind == 'r' ? n : m->step.info->canvas_length,
                      kind_of(kind), shift);
    for (at = end; *at == ' ';) at++;
  }
  return true;
}

static weft_status compute_step(mix *m) {
  m->n_ops = 0;
  weft_status status = one_step_compute(&m->step);
  return status == WEFT_OK ? m->status : status;
}

static weft_status launch_step(mix *m, uint64_t key) {
  weft_status status;
  m->in_graph = true;
  weft_device_serial_kernels(m->step.device, m->way->serial);
  weft_device_graph_begin(m->step.device, key, NULL);
  do status = compute_step(m);
  while (weft_device_graph_end(m->step.device, &status));
  weft_device_serial_kernels(m->step.device, false);
  m->in_graph = false;
  return status;
}

/* ---- comparing ------------------------------------------------------------------------------------------ */

/* Leaves the step's rows as they come call by call in m->wanted, and other rows in every buffer. */
static weft_status compute_plainly(mix *m, const char *parts, uint32_t shift, int32_t probed) {
  static const mix_way plain = {.name = "call by call"};
  const mix_way *way = m->way;
  m->way = &plain;
  m->probed = probed;
  (void)build_step(m, parts, shift);
  weft_status status = compute_step(m);
  m->probed = NO_OP;
  if (status == WEFT_OK) status = one_step_read(&m->step, m->wanted);
  (void)build_step(m, parts, shift + SHIFTS);
  if (status == WEFT_OK) status = compute_step(m);
  (void)build_step(m, parts, shift);
  m->way = way;
  return status;
}

/* Bits: a NaN equals itself. */
static bool rows_differ(const float *a, const float *b, uint64_t n) {
  return memcmp((const void *)a, (const void *)b, n * sizeof *a) != 0;
}

/* How many rows of how many differ, over all lengths; *shift: the first length at which one does. */
static weft_status count_others(mix *m, const char *parts, uint32_t *n_others, uint32_t *n_rows,
                                uint32_t *first_shift) {
  uint64_t key = m->key += 2, n = m->step.info->n_hidden;
  weft_status status = WEFT_OK;
  *n_others = *n_rows = 0;
  *first_shift = UINT32_MAX;
  for (uint32_t shift = 0; shift < SHIFTS && status == WEFT_OK; shift++) {
    status = compute_plainly(m, parts, shift, NO_OP);
    if (m->way->fresh) key = m->key += 2;
    for (uint32_t i = 0; i < (m->way->fresh ? 2u : 1u) && status == WEFT_OK; i++) status = launch_step(m, key);
    if (status == WEFT_OK) status = one_step_read(&m->step, m->got);
    for (uint32_t r = 0; r < m->step.n_output && status == WEFT_OK; r++, *n_rows += 1) {
      if (!rows_differ(m->wanted + r * n, m->got + r * n, n)) continue;
      *n_others += 1;
      if (*first_shift == UINT32_MAX) *first_shift = shift;
    }
  }
  return status;
}

static void drop_kept(mix *m, uint32_t n_ops) {
  for (uint32_t i = 0; i < n_ops; i++)
    for (uint32_t k = 0; k < OP_OUTPUTS_MAX; k++) weft_free(m->kept[i].value[k]);
  memset(m->kept, 0, n_ops * sizeof *m->kept);
}

/* Whether what is in d_side differs from what the op gave call by call; says where. */
static weft_status compare_op(mix *m, uint32_t index, bool *differs) {
  const kept_output *kept = &m->kept[index];
  uint64_t at = 0;
  weft_status status = WEFT_OK;
  *differs = false;
  for (uint32_t i = 0; i < kept->n_arrays && status == WEFT_OK && !*differs; i++) {
    const op_output *o = &kept->array[i];
    uint64_t n = o->n_rows * o->stride;
    if (o->form != WEFT_ROWS_F32) continue;
    float *got = weft_alloc(n, sizeof *got);
    status =
        got == NULL ? WEFT_E_NO_MEMORY : weft_device_download(m->step.device, got, m->d_side + at, n * sizeof *got);
    at += n;
    for (uint64_t r = 0; r < o->n_rows && status == WEFT_OK && !*differs; r++) {
      uint64_t from = r * o->stride, c = 0;
      *differs = rows_differ(kept->value[i] + from, got + from, o->n_cols);
      if (!*differs) continue;
      while (!rows_differ(kept->value[i] + from + c, got + from + c, 1)) c++;
      (void)printf(
          "    first op that differs: op %u, %s of layer %u, array %u, row %llu, column %llu: %.9g call by call, "
          "%.9g in a graph\n",
          index, kept->op, kept->layer, i, (unsigned long long)r, (unsigned long long)c,
          (double)kept->value[i][from + c], (double)got[from + c]);
    }
    weft_free(got);
  }
  return status;
}

/* Records the step anew for each op, with a copy of what that op gives and no other change, until one differs. */
static weft_status find_op(mix *m, const char *parts, uint32_t shift) {
  bool differs = false;
  weft_status status = compute_plainly(m, parts, shift, EVERY_OP);
  uint32_t n_ops = m->n_ops;
  for (uint32_t i = 0; i < n_ops && status == WEFT_OK && !differs; i++) {
    uint64_t key = m->key += 2;
    if (m->kept[i].n_arrays == 0) continue;
    m->probed = (int32_t)i;
    status = launch_step(m, key);
    m->probed = NO_OP;
    (void)build_step(m, parts, shift + SHIFTS);
    if (status == WEFT_OK) status = compute_step(m);
    (void)build_step(m, parts, shift);
    m->probed = (int32_t)i;
    if (status == WEFT_OK) status = launch_step(m, key); /* a graph now */
    m->probed = NO_OP;
    if (status == WEFT_OK) status = compare_op(m, i, &differs);
  }
  if (status == WEFT_OK && !differs) (void)printf("    with a copy behind any one op no op differs\n");
  drop_kept(m, n_ops);
  return status;
}

static weft_status run_case(mix *m, const char *parts, bool *equal) {
  uint32_t n_others = 0, n_rows = 0, shift = 0;
  m->way = &ways[0];
  if (!build_step(m, parts, 0)) return WEFT_OK;
  weft_status status = count_others(m, parts, &n_others, &n_rows, &shift);
  if (status == WEFT_OK)
    (void)printf("%-16s %s: %u of %u rows are others\n", parts, n_others == 0 ? "equal" : "DIFFERS", n_others, n_rows);
  if (status != WEFT_OK || n_others == 0) return status;
  *equal = false;
  uint32_t first = shift;
  for (size_t w = 1; w < sizeof ways / sizeof *ways && status == WEFT_OK; w++) {
    m->way = &ways[w];
    status = count_others(m, parts, &n_others, &n_rows, &shift);
    (void)printf("    %s: %u of %u rows are others\n", ways[w].name, n_others, n_rows);
  }
  m->way = &ways[0];
  return status == WEFT_OK ? find_op(m, parts, first) : status;
}

/* ---- open ----------------------------------------------------------------------------------------------- */

static weft_status open_pool(mix *m, weft_error *error) {
  uint32_t length[SEQUENCES];
  for (uint32_t s = 0; s < SEQUENCES; s++)
    length[s] = m->base + 5 * SEQUENCES + 2 * SHIFTS + m->step.info->canvas_length + 32;
  return one_step_open_pool(&m->step, length, SEQUENCES, error);
}

static weft_status open_arrays(mix *m) {
  uint64_t rows = STEP_ROWS_MAX, n_hidden = m->step.info->n_hidden, n = rows * n_hidden;
  m->wanted = weft_alloc(n, sizeof *m->wanted);
  m->got = weft_alloc(n, sizeof *m->got);
  m->kept = weft_alloc(OPS_MAX, sizeof *m->kept);
  if (m->wanted == NULL || m->got == NULL || m->kept == NULL) return WEFT_E_NO_MEMORY;
  m->side_floats = rows * 4 * (n_hidden > 8192 ? n_hidden : 8192);
  weft_status status = weft_device_alloc(m->step.device, n * sizeof(float), (void **)&m->d_soft);
  m->step.d_soft = m->d_soft;
  if (status == WEFT_OK)
    status = weft_device_alloc(m->step.device, (m->side_floats + 64) * sizeof(float), (void **)&m->d_side);
  for (uint64_t i = 0; i < n && status == WEFT_OK; i++) m->got[i] = 0.01f * (float)(i % 101) - 0.5f;
  return status == WEFT_OK ? weft_device_upload(m->step.device, m->d_soft, m->got, n * sizeof *m->got) : status;
}

/* Keys of every sequence up to where the steps read. */
static weft_status fill_sequences(mix *m) {
  weft_status status = WEFT_OK;
  static const mix_way plain = {.name = "call by call"};
  m->way = &plain;
  for (uint32_t s = 0; s < SEQUENCES; s++) {
    uint32_t end = m->base + 5 * s + 2 * SHIFTS;
    for (uint32_t at = 0, n; at < end && status == WEFT_OK; at += n) {
      n = end - at < STEP_ROWS_MAX ? end - at : STEP_ROWS_MAX;
      one_step_begin(&m->step);
      one_step_add_rows(&m->step, s, at, n, STEP_STORED, 0);
      status = compute_step(m);
    }
  }
  return status;
}

static weft_status open_all(mix *m, const char *path, const char *backend, weft_error *error) {
  weft_device_config config = {.backend = backend};
  weft_status status = one_step_open(&m->step, path, &config, SEQUENCES, error);
  if (status != WEFT_OK) return status;
  m->base = m->step.info->context_length >= 2048 ? 512 : 64;
  status = open_pool(m, error);
  if (status == WEFT_OK) status = open_arrays(m);
  weft_device_watch(m->step.device, watch_op, m);
  return status == WEFT_OK ? fill_sequences(m) : status;
}

static void close_all(mix *m) {
  void *host[] = {m->wanted, m->got, m->kept}, *device[] = {m->d_soft, m->d_side};
  for (size_t i = 0; i < sizeof host / sizeof *host; i++) weft_free(host[i]);
  for (size_t i = 0; i < sizeof device / sizeof *device && m->step.device != NULL; i++)
    weft_device_free(m->step.device, device[i]);
  one_step_close(&m->step);
}

int main(int argc, char **argv) {
  static mix m = {.probed = NO_OP, .key = 1};
  weft_error error = {{0}};
  bool equal = true;
  if (argc < 2) {
    (void)fprintf(stderr, "usage: bench_graph_mix FILE [BACKEND [CASE [OP]]]\n");
    return 2;
  }
  m.spoiled = argc > 4 ? (int32_t)strtol(argv[4], NULL, 10) : NO_OP;
  weft_status status = open_all(&m, argv[1], argc > 2 ? argv[2] : NULL, &error);
  if (status != WEFT_OK) {
    close_all(&m);
    return fail_with(error.text[0] != 0 ? error.text : argv[1], status);
  }
  for (size_t i = 0; i < sizeof cases / sizeof *cases && status == WEFT_OK; i++)
    if (argc < 4 || argv[3][0] == 0 || strcmp(argv[3], cases[i]) == 0) status = run_case(&m, cases[i], &equal);
  weft_graph_counters n = weft_device_graph_counters(m.step.device);
  (void)printf("%s: %llu graphs recorded, %llu launches of a graph that was there, %llu steps call by call\n",
               weft_device_get_info(m.step.device)->name, (unsigned long long)n.captures, (unsigned long long)n.patched,
               (unsigned long long)n.eager);
  close_all(&m);
  if (status != WEFT_OK) return fail_with("a step", status);
  return equal ? 0 : 1;
}
