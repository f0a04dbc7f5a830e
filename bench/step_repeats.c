/* SPDX-License-Identifier: MIT */
/* One decode step launched again and again as a graph: its bits must be those of the same step with no kernel that
 * begins early. A question for a card, where kernels overlap: how often they do not, and in which layer that began.
 *
 * usage: bench_step_repeats FILE [BACKEND [ROWS[,ROWS..] [SECONDS [PRODUCTS [SET]]]]]
 *        ROWS: decode rows of the step, each of a sequence of its own. SECONDS: for each of them. PRODUCTS: 8 or 16
 *        bits, or 8i: 8 bits from integers of weights; 0: the device's own. SET: a key of the first sequence in that
 *        set of rows, just before the step's own, becomes 0 before the launches, which must be found: it shows that the
 *        program can
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

enum { SEQUENCES = 128, LENGTH = 96, SHOWN = 6, NO_SET = -1 };

typedef struct repeated {
  weft_gguf *gguf;
  weft_device *device;
  weft_model *model;
  const weft_model_info *info;
  weft_kv_layout layout;
  weft_kv_store *store;
  uint32_t rows_max;
  uint64_t n_pages, first_page[SEQUENCES][WEFT_GROUPS_MAX];
  weft_batch batch;
  weft_segment segment[SEQUENCES];
  int32_t *token, *position, *cell_of;
  int64_t *kv_slot[WEFT_GROUPS_MAX];
  uint32_t *output_row, *table, table_at[SEQUENCES * WEFT_GROUPS_MAX], n_output;
  const float *soft[SEQUENCES];
  float *d_hidden, *wanted, *got;
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

static weft_status run_rows(repeated *m, uint32_t n_rows, double seconds, bool *equal) {
  uint64_t n = m->info->n_hidden, n_launches = 0, n_others = 0, n_events = 0;
  begin_batch(m);
  for (uint32_t s = 0; s < n_rows; s++) add_rows(m, s, length_of(s), 1, true);
  weft_status status = keep_wanted(m);
  if (status == WEFT_OK && m->spoiled != NO_SET) status = spoil_key(m, (uint32_t)m->spoiled);
  double begin = 1e-9 * (double)weft_clock_ns(), spent = 0;
  while (status == WEFT_OK && (spent = 1e-9 * (double)weft_clock_ns() - begin) < seconds) {
    uint32_t others = 0, first = 0, n_columns = 0, column = 0;
    status = launch_step(m, 2ull * n_rows);
    if (status == WEFT_OK) status = weft_device_download(m->device, m->got, m->d_hidden, n_rows * n * sizeof(float));
    n_launches++;
    if (status != WEFT_OK || memcmp((const void *)m->wanted, (const void *)m->got, n_rows * n * sizeof(float)) == 0)
      continue;
    for (uint32_t r = 0; r < n_rows; r++) {
      const float *a = m->wanted + r * n, *b = m->got + r * n;
      if (memcmp((const void *)a, (const void *)b, n * sizeof(float)) == 0) continue;
      if (others++ == 0) first = r;
      for (uint32_t c = 0; c < n && r == first; c++)
        if (memcmp(a + c, b + c, sizeof(float)) != 0 && n_columns++ == 0) column = c;
    }
    n_others += others;
    if (n_events++ >= SHOWN) continue;
    (void)printf("    launch %llu: %u rows are others; row %u in %u columns, first %u: %.9g for %.9g\n",
                 (unsigned long long)n_launches, others, first, n_columns, column, (double)m->got[first * n + column],
                 (double)m->wanted[first * n + column]);
    status = find_layer(m);
  }
  *equal = *equal && n_events == 0;
  (void)printf("%3u rows: %llu launches in %.1f s (%.3f ms), %llu differ, %llu rows\n", n_rows,
               (unsigned long long)n_launches, spent, n_launches == 0 ? 0 : 1e3 * spent / (double)n_launches,
               (unsigned long long)n_events, (unsigned long long)n_others);
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
      m->n_pages += length_of(s) / m->layout.group[g].block_tokens + 1;
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
    m->keys_bytes += 2ull * SEQUENCES * view.n_kv_heads * weft_kv_row_bytes(view.type, view.head_dim);
  }
  return status;
}

static weft_status open_arrays(repeated *m) {
  uint64_t n = m->rows_max, n_hidden = m->info->n_hidden;
  bool ok = true;
  m->token = weft_alloc(n, sizeof *m->token);
  m->position = weft_alloc(n, sizeof *m->position);
  m->cell_of = weft_alloc(n, sizeof *m->cell_of);
  m->output_row = weft_alloc(n, sizeof *m->output_row);
  m->wanted = weft_alloc(n * n_hidden, sizeof *m->wanted);
  m->got = weft_alloc(n * n_hidden, sizeof *m->got);
  m->wanted_keys = weft_alloc(m->keys_bytes, 1);
  m->got_keys = weft_alloc(m->keys_bytes, 1);
  for (uint32_t g = 0; g < m->layout.n_groups; g++)
    ok = (m->kv_slot[g] = weft_alloc(n, sizeof *m->kv_slot[g])) != NULL && ok;
  ok = ok && m->token != NULL && m->position != NULL && m->cell_of != NULL && m->output_row != NULL &&
       m->wanted != NULL && m->got != NULL && m->wanted_keys != NULL && m->got_keys != NULL;
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
  m->rows_max = 1024;
  weft_model_limits limits = {.rows_max = m->rows_max, .canvas_rows_max = m->rows_max, .segments_max = SEQUENCES};
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

int main(int argc, char **argv) {
  static repeated m;
  weft_error error = {{0}};
  bool equal = true;
  if (argc < 2) {
    (void)fprintf(stderr, "usage: bench_step_repeats FILE [BACKEND [ROWS[,ROWS..] [SECONDS [PRODUCTS [SET]]]]]\n");
    return 2;
  }
  const char *rows = argc > 3 ? argv[3] : "64";
  uint32_t most = 0;
  for (char *end = (char *)(uintptr_t)rows; *end != 0; end += *end == ',') {
    uint32_t n = (uint32_t)strtoul(end, &end, 10);
    if (n == 0 || n > SEQUENCES || (*end != ',' && *end != 0)) {
      (void)fprintf(stderr, "bench_step_repeats: rows are numbers from 1 to %d\n", SEQUENCES);
      return 2;
    }
    if (n > most) most = n;
  }
  m.spoiled = argc > 6 ? (int32_t)strtol(argv[6], NULL, 10) : NO_SET;
  double seconds = argc > 4 ? strtod(argv[4], NULL) : 10;
  weft_status status = open_all(&m, argv[1], argc > 2 ? argv[2] : NULL, argc > 5 ? argv[5] : NULL, &error);
  if (status == WEFT_OK) status = fill_sequences(&m, most);
  if (status != WEFT_OK) {
    close_all(&m);
    return fail_with(error.text[0] != 0 ? error.text : argv[1], status);
  }
  for (char *end = (char *)(uintptr_t)rows; *end != 0 && status == WEFT_OK; end += *end == ',') {
    uint32_t n = (uint32_t)strtoul(end, &end, 10);
    status = run_rows(&m, n, seconds, &equal);
  }
  close_all(&m);
  if (status != WEFT_OK) return fail_with("a step", status);
  return equal ? 0 : 1;
}
