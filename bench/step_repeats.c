/* SPDX-License-Identifier: MIT */
/* Whether a row's bits depend on what runs beside it. A step is launched again and again as a graph, and its bits must
 * be those of the same step with no kernel that begins early; and those must be the bits of each row computed alone.
 * A question for a card, where kernels overlap: how often they are not, and in which layer that began.
 *
 * usage: bench_step_repeats FILE [BACKEND [STEP[,STEP..] [SECONDS [PRODUCTS [SET]]]]]
 *        STEP: ROWS[+RUN..], decode rows, each of a sequence of its own, and runs of rows of further ones. SECONDS: for
 *        each step. PRODUCTS: 8 or 16 bits, or 8i: 8 bits from integers of weights; 0: the device's own. SET: a key of
 *        the first sequence in that set of rows, just before the step's own, becomes 0 before the launches, which must
 *        be found: it shows that the program can
 * exit code: 0 all bits are equal, 1 some are not, 2 it could not run
 *
 * A step stores keys and values of every layer for its rows. So where hidden states differ, the first layer whose keys
 * or values differ is at most one behind the op that was wrong. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/random.h"
#include "kernels/ops.h"
#include "model/model.h"

enum { SEQUENCES = 128, LENGTH = 96, SHOWN = 6, NO_SET = -1, RUNS_MAX = 4, ROWS_MAX = 1024 };

/* Of which rows a step is. */
typedef struct step_spec {
  uint32_t n_single, n_runs, run[RUNS_MAX];
} step_spec;

typedef struct repeated {
  weft_gguf *gguf;
  weft_device *device;
  weft_model *model;
  const weft_model_info *info;
  weft_kv_layout layout;
  weft_kv_store *store;
  uint32_t longest_run, most_rows; /* of all steps */
  uint64_t n_pages, first_page[SEQUENCES][WEFT_GROUPS_MAX];
  weft_batch batch;
  weft_segment segment[SEQUENCES];
  int32_t *token, *position, *cell_of;
  int64_t *kv_slot[WEFT_GROUPS_MAX];
  uint32_t *output_row, *table, table_at[SEQUENCES * WEFT_GROUPS_MAX], n_output;
  const float *soft[SEQUENCES];
  float *d_hidden, *wanted, *got, *alone;
  int32_t spoiled;
  uint64_t keys_bytes;
  uint8_t *wanted_keys, *got_keys;
} repeated;

static int fail_with(const char *what, weft_status status) {
  (void)fprintf(stderr, "bench_step_repeats: %s: %s\n", what, weft_status_text(status));
  return 2;
}

static uint32_t length_of(uint32_t sequence) {
  return LENGTH + 5 * sequence;
}

/* Rows [kv_len, kv_len + n) of a sequence. */
static void add_rows(repeated *m, uint32_t sequence, uint32_t kv_len, uint32_t n, bool reads) {
  weft_batch *b = &m->batch;
  uint32_t first = b->n_rows, s = b->n_segments++;
  m->segment[s] = (weft_segment){.slot = sequence,
                                 .first_row = first,
                                 .n_rows = n,
                                 .kv_len = kv_len,
                                 .mask = WEFT_MASK_CAUSAL,
                                 .stores = WEFT_STORES_POOL,
                                 .pass = WEFT_PASS_ENCODER,
                                 .n_outputs = reads ? n : 0,
                                 .ask = WEFT_ASK_SAMPLE};
  m->soft[s] = NULL;
  for (uint32_t i = 0; i < n; i++) {
    weft_draw_key key = {77, sequence, WEFT_DRAW_TEST, kv_len + i, 0};
    m->token[first + i] = (int32_t)weft_draw_below(&key, m->info->n_vocab);
    m->position[first + i] = (int32_t)(kv_len + i);
    m->cell_of[first + i] = -1;
    if (reads) m->output_row[m->n_output++] = first + i;
  }
  for (uint32_t g = 0; g < m->layout.n_groups; g++) {
    uint32_t block = m->layout.group[g].block_tokens;
    m->table_at[s * m->layout.n_groups + g] = (uint32_t)m->first_page[sequence][g];
    for (uint32_t i = 0; i < n; i++)
      m->kv_slot[g][first + i] =
          (int64_t)(m->first_page[sequence][g] + (kv_len + i) / block) * block + (kv_len + i) % block;
  }
  b->n_rows += n;
  b->n_stored = b->n_encoder = b->n_rows;
}

static void begin_batch(repeated *m) {
  m->batch = (weft_batch){.n_groups = m->layout.n_groups,
                          .token = m->token,
                          .position = m->position,
                          .segment = m->segment,
                          .table = m->table,
                          .table_at = m->table_at};
  for (uint32_t g = 0; g < m->layout.n_groups; g++) m->batch.kv_slot[g] = m->kv_slot[g];
  m->n_output = 0;
}

static weft_status compute_step(repeated *m) {
  bool reads_host = weft_device_get_info(m->device)->host_memory;
  weft_forward_args args = {.batch = &m->batch,
                            .token = m->token,
                            .cells = (const int32_t *)(const void *)m->d_hidden,
                            .cell_of = reads_host ? NULL : m->cell_of,
                            .kv = m->store,
                            .layout = &m->layout,
                            .soft = m->soft,
                            .output_row = m->output_row,
                            .n_output = m->n_output,
                            .hidden = m->d_hidden};
  return weft_model_forward(m->model, &args);
}

static weft_status launch_step(repeated *m, uint64_t key) {
  weft_status status;
  weft_device_graph_begin(m->device, key, NULL);
  do status = compute_step(m);
  while (weft_device_graph_end(m->device, &status));
  return status;
}

/* ---- comparing ------------------------------------------------------------------------------------------ */

/* What the step's rows left in the pages of a set: [row][keys and values][head]. *n: bytes of it. */
static weft_status read_set(repeated *m, uint32_t set, uint8_t *to, uint64_t *n) {
  weft_kv_view view = weft_kv_store_view(m->store, &m->layout, set, 0);
  uint64_t row = weft_kv_row_bytes(view.type, view.head_dim);
  uint32_t group = m->layout.place[set].group;
  weft_status status = WEFT_OK;
  *n = 0;
  for (uint32_t r = 0; r < m->n_output && status == WEFT_OK; r++) {
    uint64_t page = (uint64_t)m->kv_slot[group][r] / view.block_tokens,
             at = (uint64_t)m->kv_slot[group][r] % view.block_tokens;
    for (uint32_t i = 0; i < 2 * view.n_kv_heads && status == WEFT_OK; i++, *n += row) {
      uint64_t plane = (i < view.n_kv_heads ? view.k_offset : view.v_offset) +
                       (uint64_t)(i % view.n_kv_heads) * view.block_tokens * row;
      status = weft_device_download(m->device, to + *n,
                                    (uint8_t *)view.base + page * view.page_bytes + plane + at * row, row);
    }
  }
  return status;
}

/* Where keys or values of the step differ from those that were wanted first. */
static weft_status find_layer(repeated *m) {
  uint64_t at = 0;
  weft_status status = WEFT_OK;
  for (uint32_t set = 0; set < m->layout.n_sets && status == WEFT_OK; set++) {
    uint64_t n;
    status = read_set(m, set, m->got_keys, &n);
    uint64_t per_row = n / m->n_output, n_rows = 0, row = 0, n_keys = 0, n_values = 0;
    for (uint64_t r = 0; r < m->n_output && status == WEFT_OK; r++) {
      const uint8_t *a = m->wanted_keys + at + r * per_row, *b = m->got_keys + r * per_row;
      if (memcmp(a, b, per_row) == 0) continue;
      if (n_rows++ == 0) row = r;
      for (uint64_t i = 0; i < per_row; i++)
        if (a[i] != b[i]) *(i < per_row / 2 ? &n_keys : &n_values) += 1;
    }
    at += n;
    if (n_rows == 0) continue;
    (void)printf(
        "    first set whose keys or values differ: %u, in %llu rows, first row %llu; bytes of keys %llu, of values "
        "%llu\n",
        set, (unsigned long long)n_rows, (unsigned long long)row, (unsigned long long)n_keys,
        (unsigned long long)n_values);
    return status;
  }
  if (status == WEFT_OK) (void)printf("    keys and values of all layers are equal\n");
  return status;
}

static weft_status keep_wanted(repeated *m) {
  uint64_t at = 0;
  weft_device_serial_kernels(m->device, true);
  weft_status status = compute_step(m);
  weft_device_serial_kernels(m->device, false);
  if (status == WEFT_OK)
    status = weft_device_download(m->device, m->wanted, m->d_hidden,
                                  (uint64_t)m->n_output * m->info->n_hidden * sizeof(float));
  for (uint32_t set = 0; set < m->layout.n_sets && status == WEFT_OK; set++) {
    uint64_t n;
    status = read_set(m, set, m->wanted_keys + at, &n);
    at += n;
  }
  return status;
}

static weft_status spoil_key(repeated *m, uint32_t set) {
  weft_kv_view view = weft_kv_store_view(m->store, &m->layout, set, 0);
  uint64_t row = weft_kv_row_bytes(view.type, view.head_dim), at = length_of(0) - 1;
  uint64_t page = m->first_page[0][m->layout.place[set].group] + at / view.block_tokens;
  return weft_device_zero(
      m->device, (uint8_t *)view.base + page * view.page_bytes + view.k_offset + at % view.block_tokens * row, row);
}

/* Counts what differs, and describes the first. */
static uint32_t compare_rows(const repeated *m, const float *want, const float *got) {
  uint64_t n = m->info->n_hidden;
  uint32_t others = 0, first = 0, n_columns = 0, column = 0;
  for (uint32_t r = 0; r < m->n_output; r++) {
    const float *a = want + r * n, *b = got + r * n;
    if (memcmp((const void *)a, (const void *)b, n * sizeof(float)) == 0) continue;
    if (others++ == 0) first = r;
    for (uint32_t c = 0; c < n && r == first; c++)
      if (memcmp(a + c, b + c, sizeof(float)) != 0 && n_columns++ == 0) column = c;
  }
  if (others > 0)
    (void)printf("%u rows are others; row %u in %u columns, first %u: %.9g for %.9g\n", others, first, n_columns,
                 column, (double)got[first * n + column], (double)want[first * n + column]);
  return others;
}

static uint32_t rows_of(const step_spec *spec, uint32_t sequence) {
  return sequence < spec->n_single ? 1 : spec->run[sequence - spec->n_single];
}

/* Each row of the step in a step of its own. */
static weft_status compute_alone(repeated *m, const step_spec *spec) {
  uint64_t n = m->info->n_hidden, at = 0;
  weft_status status = WEFT_OK;
  weft_device_serial_kernels(m->device, true);
  for (uint32_t s = 0; s < spec->n_single + spec->n_runs; s++) {
    for (uint32_t i = 0; i < rows_of(spec, s) && status == WEFT_OK; i++, at += n) {
      begin_batch(m);
      add_rows(m, s, length_of(s) + i, 1, true);
      status = compute_step(m);
      if (status == WEFT_OK) status = weft_device_download(m->device, m->alone + at, m->d_hidden, n * sizeof(float));
    }
  }
  weft_device_serial_kernels(m->device, false);
  return status;
}

/* As often as there is time; how often it differs, and in how many rows. */
static weft_status launch_often(repeated *m, uint64_t key, double seconds, uint64_t *n_launches, uint64_t *n_events) {
  uint64_t n_bytes = (uint64_t)m->n_output * m->info->n_hidden * sizeof(float);
  weft_status status = WEFT_OK;
  int64_t end = (int64_t)weft_clock_ns() + (int64_t)(seconds * 1e9);
  for (*n_launches = *n_events = 0; status == WEFT_OK && (int64_t)weft_clock_ns() < end; *n_launches += 1) {
    status = launch_step(m, key);
    if (status == WEFT_OK) status = weft_device_download(m->device, m->got, m->d_hidden, n_bytes);
    if (status != WEFT_OK || memcmp((const void *)m->wanted, (const void *)m->got, n_bytes) == 0) continue;
    if (*n_events += 1, *n_events > SHOWN) continue;
    (void)printf("    launch %llu: ", (unsigned long long)*n_launches + 1);
    (void)compare_rows(m, m->wanted, m->got);
    status = find_layer(m);
  }
  return status;
}

static weft_status run_step(repeated *m, const step_spec *spec, uint64_t key, double seconds, bool *equal) {
  uint64_t n_launches = 0, n_events = 0;
  uint32_t n_others = 0;
  weft_status status = compute_alone(m, spec);
  begin_batch(m);
  for (uint32_t s = 0; s < spec->n_single + spec->n_runs; s++) add_rows(m, s, length_of(s), rows_of(spec, s), true);
  if (status == WEFT_OK) status = keep_wanted(m);
  if (status == WEFT_OK && memcmp((const void *)m->alone, (const void *)m->wanted,
                                  (uint64_t)m->n_output * m->info->n_hidden * sizeof(float)) != 0) {
    (void)printf("    beside one another, not alone: ");
    n_others = compare_rows(m, m->alone, m->wanted);
  }
  if (status == WEFT_OK && m->spoiled != NO_SET) status = spoil_key(m, (uint32_t)m->spoiled);
  if (status == WEFT_OK) status = launch_often(m, key, seconds, &n_launches, &n_events);
  *equal = *equal && n_events == 0 && n_others == 0;
  (void)printf("%3u", spec->n_single);
  for (uint32_t i = 0; i < spec->n_runs; i++) (void)printf("+%u", spec->run[i]);
  (void)printf(" rows: %u not as alone; %llu launches of %.3f ms, %llu differ\n", n_others,
               (unsigned long long)n_launches, n_launches == 0 ? 0 : 1e3 * seconds / (double)n_launches,
               (unsigned long long)n_events);
  (void)fflush(stdout);
  return status;
}

/* ---- open ----------------------------------------------------------------------------------------------- */

static weft_status open_pool(repeated *m, weft_error *error) {
  const weft_kv_geometry *geometry = &m->info->kv;
  weft_status status = weft_kv_layout_choose(&geometry, 1, 0, &m->layout, error);
  for (uint32_t s = 0; s < SEQUENCES; s++) {
    for (uint32_t g = 0; g < m->layout.n_groups; g++) {
      m->first_page[s][g] = m->n_pages;
      m->n_pages += (length_of(s) + m->longest_run) / m->layout.group[g].block_tokens + 1;
    }
  }
  if (status == WEFT_OK)
    status = weft_kv_store_open(&(weft_split){.n_devices = 1, .device = {m->device}}, &m->layout, (uint32_t)m->n_pages,
                                &m->store, error);
  m->table = weft_alloc(m->n_pages, sizeof *m->table);
  if (m->table == NULL) return WEFT_E_NO_MEMORY;
  for (uint32_t i = 0; i < m->n_pages; i++) m->table[i] = i;
  for (uint32_t set = 0; set < m->layout.n_sets && status == WEFT_OK; set++) {
    weft_kv_view view = weft_kv_store_view(m->store, &m->layout, set, 0);
    m->keys_bytes += 2ull * m->most_rows * view.n_kv_heads * weft_kv_row_bytes(view.type, view.head_dim);
  }
  return status;
}

static weft_status open_arrays(repeated *m) {
  uint64_t n = ROWS_MAX, n_hidden = m->info->n_hidden;
  bool ok = true;
  m->token = weft_alloc(n, sizeof *m->token);
  m->position = weft_alloc(n, sizeof *m->position);
  m->cell_of = weft_alloc(n, sizeof *m->cell_of);
  m->output_row = weft_alloc(n, sizeof *m->output_row);
  m->wanted = weft_alloc(n * n_hidden, sizeof *m->wanted);
  m->got = weft_alloc(n * n_hidden, sizeof *m->got);
  m->alone = weft_alloc(n * n_hidden, sizeof *m->alone);
  m->wanted_keys = weft_alloc(m->keys_bytes, 1);
  m->got_keys = weft_alloc(m->keys_bytes, 1);
  for (uint32_t g = 0; g < m->layout.n_groups; g++)
    ok = (m->kv_slot[g] = weft_alloc(n, sizeof *m->kv_slot[g])) != NULL && ok;
  ok = ok && m->token != NULL && m->position != NULL && m->cell_of != NULL && m->output_row != NULL &&
       m->wanted != NULL && m->got != NULL && m->alone != NULL && m->wanted_keys != NULL && m->got_keys != NULL;
  return ok ? weft_device_alloc(m->device, n * n_hidden * sizeof(float), (void **)&m->d_hidden) : WEFT_E_NO_MEMORY;
}

/* Keys of every sequence up to where the step reads. */
static weft_status fill_sequences(repeated *m, uint32_t n_sequences) {
  weft_status status = WEFT_OK;
  for (uint32_t s = 0; s < n_sequences && status == WEFT_OK; s++) {
    begin_batch(m);
    add_rows(m, s, 0, length_of(s), false);
    status = compute_step(m);
  }
  return status;
}

static weft_status open_all(repeated *m, const char *path, const char *backend, const char *products,
                            weft_error *error) {
  weft_device_config config = {.backend = backend,
                               .products = products == NULL ? 0 : (uint32_t)strtoul(products, NULL, 10),
                               .integers = products != NULL && strchr(products, 'i') != NULL};
  weft_status status = weft_gguf_open(path, &m->gguf, error);
  if (status == WEFT_OK) status = weft_device_open(&config, &m->device, error);
  if (status != WEFT_OK) return status;
  weft_split split = weft_split_one(m->device);
  weft_model_limits limits = {
      .rows_max = (uint32_t)ROWS_MAX, .canvas_rows_max = (uint32_t)ROWS_MAX, .segments_max = SEQUENCES};
  status = weft_model_open(m->gguf, &split, &limits, NULL, NULL, &m->model, error);
  if (status != WEFT_OK) return status;
  m->info = weft_model_get_info(m->model);
  status = open_pool(m, error);
  return status == WEFT_OK ? open_arrays(m) : status;
}

static void close_all(repeated *m) {
  void *host[] = {m->token, m->position,    m->cell_of,  m->output_row, m->wanted,
                  m->got,   m->wanted_keys, m->got_keys, m->table};
  for (size_t i = 0; i < sizeof host / sizeof *host; i++) weft_free(host[i]);
  for (uint32_t g = 0; g < WEFT_GROUPS_MAX; g++) weft_free(m->kv_slot[g]);
  if (m->device != NULL) weft_device_free(m->device, m->d_hidden);
  weft_kv_store_close(m->store);
  weft_model_close(m->model);
  weft_device_close(m->device);
  weft_gguf_close(m->gguf);
}

/* False: it is no step. */
static bool read_step(const char **text, repeated *m, step_spec *spec) {
  char *end = NULL;
  *spec = (step_spec){.n_single = (uint32_t)strtoul(*text, &end, 10)};
  uint32_t n_rows = spec->n_single;
  bool ok = end != *text && spec->n_single <= SEQUENCES - RUNS_MAX;
  while (ok && *end == '+') {
    char *from = end + 1;
    uint32_t n = (uint32_t)strtoul(from, &end, 10);
    ok = end != from && n > 0 && n <= ROWS_MAX && spec->n_runs < RUNS_MAX;
    if (!ok) break;
    spec->run[spec->n_runs++] = n;
    n_rows += n;
    if (n > m->longest_run) m->longest_run = n;
  }
  if (n_rows > m->most_rows) m->most_rows = n_rows;
  *text = *end == ',' ? end + 1 : end;
  return ok && (*end == ',' || *end == 0) && n_rows > 0 && n_rows <= ROWS_MAX;
}

static weft_status run_steps(repeated *m, const char *steps, double seconds, bool *equal) {
  weft_status status = WEFT_OK;
  uint64_t key = 2;
  for (step_spec spec; *steps != 0 && status == WEFT_OK; key += 2)
    if (read_step(&steps, m, &spec)) status = run_step(m, &spec, key, seconds, equal);
  return status;
}

int main(int argc, char **argv) {
  static repeated m;
  step_spec spec;
  weft_error error = {{0}};
  bool equal = true;
  const char *steps = argc > 3 ? argv[3] : "64";
  for (const char *at = steps; *at != 0;)
    if (argc < 2 || !read_step(&at, &m, &spec)) argc = 0, at = "";
  if (argc < 2) {
    (void)fprintf(stderr, "usage: bench_step_repeats FILE [BACKEND [STEP[,STEP..] [SECONDS [PRODUCTS [SET]]]]]\n");
    return 2;
  }
  m.spoiled = argc > 6 ? (int32_t)strtol(argv[6], NULL, 10) : NO_SET;
  weft_status status = open_all(&m, argv[1], argc > 2 ? argv[2] : NULL, argc > 5 ? argv[5] : NULL, &error);
  if (status == WEFT_OK) status = fill_sequences(&m, m.most_rows < SEQUENCES ? m.most_rows : SEQUENCES);
  if (status == WEFT_OK) status = run_steps(&m, steps, argc > 4 ? strtod(argv[4], NULL) : 10, &equal);
  close_all(&m);
  if (status != WEFT_OK) return fail_with(error.text[0] != 0 ? error.text : argv[1], status);
  return equal ? 0 : 1;
}
