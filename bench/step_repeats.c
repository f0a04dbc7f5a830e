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
#include "bench/one_step.h"

enum { SEQUENCES = STEP_SEQUENCES_MAX, LENGTH = 96, SHOWN = 6, NO_SET = -1, RUNS_MAX = 4 };

/* Of which rows a step is. */
typedef struct step_spec {
  uint32_t n_single, n_runs, run[RUNS_MAX];
} step_spec;

typedef struct repeated {
  one_step step;
  uint32_t longest_run, most_rows; /* of all steps */
  float *wanted, *got, *alone;
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

static weft_status launch_step(repeated *m, uint64_t key) {
  weft_status status;
  weft_device_graph_begin(m->step.device, key, NULL);
  do status = one_step_compute(&m->step);
  while (weft_device_graph_end(m->step.device, &status));
  return status;
}

/* ---- comparing ------------------------------------------------------------------------------------------ */

/* What the step's rows left in the pages of a set: [row][keys and values][head]. *n: bytes of it. */
static weft_status read_set(repeated *m, uint32_t set, uint8_t *to, uint64_t *n) {
  weft_kv_view view = weft_kv_store_view(m->step.store, &m->step.layout, set, 0);
  uint64_t row = weft_kv_row_bytes(view.type, view.head_dim);
  uint32_t group = m->step.layout.place[set].group;
  weft_status status = WEFT_OK;
  *n = 0;
  for (uint32_t r = 0; r < m->step.n_output && status == WEFT_OK; r++) {
    uint64_t page = (uint64_t)m->step.kv_slot[group][r] / view.block_tokens,
             at = (uint64_t)m->step.kv_slot[group][r] % view.block_tokens;
    for (uint32_t i = 0; i < 2 * view.n_kv_heads && status == WEFT_OK; i++, *n += row) {
      uint64_t plane = (i < view.n_kv_heads ? view.k_offset : view.v_offset) +
                       (uint64_t)(i % view.n_kv_heads) * view.block_tokens * row;
      status = weft_device_download(m->step.device, to + *n,
                                    (uint8_t *)view.base + page * view.page_bytes + plane + at * row, row);
    }
  }
  return status;
}

/* Where keys or values of the step differ from those that were wanted first. */
static weft_status find_layer(repeated *m) {
  uint64_t at = 0;
  weft_status status = WEFT_OK;
  for (uint32_t set = 0; set < m->step.layout.n_sets && status == WEFT_OK; set++) {
    uint64_t n;
    status = read_set(m, set, m->got_keys, &n);
    uint64_t per_row = n / m->step.n_output, n_rows = 0, row = 0, n_keys = 0, n_values = 0;
    for (uint64_t r = 0; r < m->step.n_output && status == WEFT_OK; r++) {
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
  weft_device_serial_kernels(m->step.device, true);
  weft_status status = one_step_compute(&m->step);
  weft_device_serial_kernels(m->step.device, false);
  if (status == WEFT_OK) status = one_step_read(&m->step, m->wanted);
  for (uint32_t set = 0; set < m->step.layout.n_sets && status == WEFT_OK; set++) {
    uint64_t n;
    status = read_set(m, set, m->wanted_keys + at, &n);
    at += n;
  }
  return status;
}

static weft_status spoil_key(repeated *m, uint32_t set) {
  weft_kv_view view = weft_kv_store_view(m->step.store, &m->step.layout, set, 0);
  uint64_t row = weft_kv_row_bytes(view.type, view.head_dim), at = length_of(0) - 1;
  uint64_t page = m->step.first_page[0][m->step.layout.place[set].group] + at / view.block_tokens;
  return weft_device_zero(m->step.device,
                          (uint8_t *)view.base + page * view.page_bytes + view.k_offset + at % view.block_tokens * row,
                          row);
}

/* Counts what differs, and describes the first. */
static uint32_t compare_rows(const repeated *m, const float *want, const float *got) {
  uint64_t n = m->step.info->n_hidden;
  uint32_t others = 0, first = 0, n_columns = 0, column = 0;
  for (uint32_t r = 0; r < m->step.n_output; r++) {
    const float *a = want + r * n, *b = got + r * n;
    if (memcmp((const void *)a, (const void *)b, n * sizeof(float)) == 0) continue;
    if (others++ == 0) first = r;
    for (uint32_t c = 0; c < n && r == first; c++)
      if (memcmp((const void *)(a + c), (const void *)(b + c), sizeof(float)) != 0 && n_columns++ == 0) column = c;
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
  uint64_t n = m->step.info->n_hidden, at = 0;
  weft_status status = WEFT_OK;
  weft_device_serial_kernels(m->step.device, true);
  for (uint32_t s = 0; s < spec->n_single + spec->n_runs; s++) {
    for (uint32_t i = 0; i < rows_of(spec, s) && status == WEFT_OK; i++, at += n) {
      one_step_begin(&m->step);
      one_step_add_rows(&m->step, s, length_of(s) + i, 1, STEP_READ, 0);
      status = one_step_compute(&m->step);
      if (status == WEFT_OK) status = one_step_read(&m->step, m->alone + at);
    }
  }
  weft_device_serial_kernels(m->step.device, false);
  return status;
}

/* As often as there is time; how often it differs, and in how many rows. */
static weft_status launch_often(repeated *m, uint64_t key, double seconds, uint64_t *n_launches, uint64_t *n_events) {
  uint64_t n_bytes = one_step_bytes(&m->step);
  weft_status status = WEFT_OK;
  int64_t end = (int64_t)weft_clock_ns() + (int64_t)(seconds * 1e9);
  for (*n_launches = *n_events = 0; status == WEFT_OK && (int64_t)weft_clock_ns() < end; *n_launches += 1) {
    status = launch_step(m, key);
    if (status == WEFT_OK) status = one_step_read(&m->step, m->got);
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
  one_step_begin(&m->step);
  for (uint32_t s = 0; s < spec->n_single + spec->n_runs; s++)
    one_step_add_rows(&m->step, s, length_of(s), rows_of(spec, s), STEP_READ, 0);
  if (status == WEFT_OK) status = keep_wanted(m);
  if (status == WEFT_OK && memcmp((const void *)m->alone, (const void *)m->wanted, one_step_bytes(&m->step)) != 0) {
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
  uint32_t length[SEQUENCES];
  for (uint32_t s = 0; s < SEQUENCES; s++) length[s] = length_of(s) + m->longest_run;
  return one_step_open_pool(&m->step, length, SEQUENCES, error);
}

static weft_status open_arrays(repeated *m) {
  uint64_t n = (uint64_t)STEP_ROWS_MAX * m->step.info->n_hidden;
  for (uint32_t set = 0; set < m->step.layout.n_sets; set++) {
    weft_kv_view view = weft_kv_store_view(m->step.store, &m->step.layout, set, 0);
    m->keys_bytes += 2ull * m->most_rows * view.n_kv_heads * weft_kv_row_bytes(view.type, view.head_dim);
  }
  m->wanted = weft_alloc(n, sizeof *m->wanted);
  m->got = weft_alloc(n, sizeof *m->got);
  m->alone = weft_alloc(n, sizeof *m->alone);
  m->wanted_keys = weft_alloc(m->keys_bytes, 1);
  m->got_keys = weft_alloc(m->keys_bytes, 1);
  bool ok = m->wanted != NULL && m->got != NULL && m->alone != NULL && m->wanted_keys != NULL && m->got_keys != NULL;
  return ok ? WEFT_OK : WEFT_E_NO_MEMORY;
}

/* Keys of every sequence up to where the step reads. */
static weft_status fill_sequences(repeated *m, uint32_t n_sequences) {
  weft_status status = WEFT_OK;
  for (uint32_t s = 0; s < n_sequences && status == WEFT_OK; s++) {
    one_step_begin(&m->step);
    one_step_add_rows(&m->step, s, 0, length_of(s), STEP_STORED, 0);
    status = one_step_compute(&m->step);
  }
  return status;
}

static weft_status open_all(repeated *m, const char *path, const char *backend, const char *products,
                            weft_error *error) {
  weft_device_config config = {.backend = backend,
                               .products = products == NULL ? 0 : (uint32_t)strtoul(products, NULL, 10),
                               .integers = products != NULL && strchr(products, 'i') != NULL};
  weft_status status = one_step_open(&m->step, path, &config, SEQUENCES, error);
  if (status == WEFT_OK) status = open_pool(m, error);
  return status == WEFT_OK ? open_arrays(m) : status;
}

static void close_all(repeated *m) {
  void *host[] = {m->wanted, m->got, m->alone, m->wanted_keys, m->got_keys};
  for (size_t i = 0; i < sizeof host / sizeof *host; i++) weft_free(host[i]);
  one_step_close(&m->step);
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
    ok = end != from && n > 0 && n <= STEP_ROWS_MAX && spec->n_runs < RUNS_MAX;
    if (!ok) break;
    spec->run[spec->n_runs++] = n;
    n_rows += n;
    if (n > m->longest_run) m->longest_run = n;
  }
  if (n_rows > m->most_rows) m->most_rows = n_rows;
  *text = *end == ',' ? end + 1 : end;
  return ok && (*end == ',' || *end == 0) && n_rows > 0 && n_rows <= STEP_ROWS_MAX;
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
