/* SPDX-License-Identifier: MIT */
/* Logits and residual streams of tiny models against those of a reference library
 * (tests/golden/README.md), for every backend of this machine. Goal: largest error <= 2e-4 of the
 * range of the expected logits of a line, or what the header of a model says. In shards the logits have the bits that
 * one device of the backend gives, on two, four, six and eight. */
#include <dirent.h>
#include <xxhash.h>

#include "base/text.h"
#include "tests/support/gguf_twin.h"
#include "tests/support/golden_floats.h"
#include "tests/support/amount.h"
#include "tests/support/model_harness.h"

enum { ROWS_MAX = 256, LAYERS_MAX = 16, LINE_MAX_BYTES = 1 << 16 };
static const double tolerance = 2e-4;
static uint32_t n_read, n_shared,
    n_in_parts; /* models that were computed in shards, and in parts of shards: each way counted */

typedef struct golden {
  char stem[512]; /* folder and name without an ending */
  char gguf[128], arch[64];
  bool has_twin; /* the gemma4 file of its tensors is computed too */
  uint32_t n_vocab, n_hidden, n_layers, n_canvas;
  double tolerance; /* in parts of the range */
  bool ref_only;    /* backends that round rows are left out */
  uint64_t n_floats;
  float *floats;
  uint64_t alone[3][2]; /* of the logits that one device gave: of ref, cpu and cuda, of the file and of its twin */
} golden;

typedef struct check {
  golden *golden;
  harness *harness;
  harness_seq seq;
  bool encode_only; /* the twin: canvas lines are left out */
  char case_name[64];
  float *stream; /* [n_layers + 1][n_rows][n_hidden] of the line before */
  uint32_t n_stream_rows;
  float *logits;
  double worst, worst_hidden;
  uint64_t digest; /* of all logits */
  uint32_t n_lines;
} check;

static void record(void *self, const weft_tapped *t) {
  check *c = self;
  uint64_t n = (uint64_t)t->n_rows * c->harness->info->n_hidden;
  if (t->stage != WEFT_STAGE_INPUT && t->stage != WEFT_STAGE_LAYER) return;
  uint32_t at = t->stage == WEFT_STAGE_INPUT ? 0 : t->layer + 1;
  c->n_stream_rows = t->n_rows;
  weft_status status = weft_device_download(t->device, c->stream + at * n, t->x, n * sizeof *t->x);
  if (status != WEFT_OK) harness_die("residual stream", status, "");
}

/* Largest error as a share of the range of what is expected. */
static double compare(const float *got, const float *wanted, uint64_t n) {
  double low = wanted[0], high = wanted[0], worst = 0;
  for (uint64_t i = 0; i < n; i++) {
    double error = fabs((double)got[i] - (double)wanted[i]);
    if (!(error <= worst)) worst = error; /* NaN is an error too */
    low = fmin(low, (double)wanted[i]);
    high = fmax(high, (double)wanted[i]);
  }
  return worst / (high - low);
}

static void judge(check *c, const char *line, const float *got, const float *wanted, uint64_t n, double *worst) {
  double error = compare(got, wanted, n);
  if (!(error <= *worst)) *worst = error;
  c->n_lines++;
  if (error <= c->golden->tolerance) return;
  (void)printf("FAILED: %s, case %s: error %.3g of the range: %.60s\n", c->golden->stem, c->case_name, error, line);
  exit(1);
}

static uint32_t read_tokens(const char *list, int32_t *tokens) {
  uint32_t n = 0;
  for (const char *at = list; *at != 0 && *at != '\n';) {
    char *end;
    tokens[n++] = (int32_t)strtol(at, &end, 10);
    at = *end == ',' ? end + 1 : end;
    if (n == ROWS_MAX) break;
  }
  return n;
}

static const float *expected(const check *c, uint64_t offset, uint64_t n) {
  if (offset + n > c->golden->n_floats) harness_die(c->golden->stem, WEFT_E_FORMAT, "an offset leaves the floats");
  return c->golden->floats + offset;
}

/* Runs rows, all of which give logits, and judges those by the floats at offset. */
static void run_rows(check *c, const char *line, harness_piece piece, uint64_t offset) {
  piece.seq = &c->seq;
  piece.output = OUT_ALL;
  piece.logits = c->logits;
  harness_run(c->harness, &piece, 1);
  uint64_t n_logits = (uint64_t)piece.n * c->golden->n_vocab;
  c->digest = XXH3_64bits_withSeed(c->logits, n_logits * sizeof *c->logits, c->digest);
  judge(c, line, c->logits, expected(c, offset, n_logits), n_logits, &c->worst);
}

static void run_encode(check *c, const char *line) {
  unsigned n;
  unsigned long long offset;
  int at = 0;
  int32_t tokens[ROWS_MAX];
  if (sscanf(line, "encode %u %llu %n", &n, &offset, &at) != 2 || read_tokens(line + at, tokens) != n) {
    harness_die("line", WEFT_E_FORMAT, line);
  }
  run_rows(c, line, (harness_piece){.tokens = tokens, .n = n}, offset);
}

static void run_canvas(check *c, const char *line) {
  unsigned n;
  unsigned long long offset;
  char previous[32];
  double temperature;
  int at = 0;
  int32_t tokens[ROWS_MAX];
  if (c->encode_only) return;
  if (sscanf(line, "canvas %u %llu %31s %lf %n", &n, &offset, previous, &temperature, &at) != 4 ||
      read_tokens(line + at, tokens) != n) {
    harness_die("line", WEFT_E_FORMAT, line);
  }
  float *soft = NULL;
  if (strcmp(previous, "none") != 0) {
    soft = harness_memory(c->harness, n, c->golden->n_hidden * sizeof *soft);
    const float *logits = expected(c, strtoull(previous, NULL, 10), (uint64_t)n * c->golden->n_vocab);
    harness_soft(c->harness, logits, n, (float)temperature, soft);
  }
  run_rows(c, line, (harness_piece){.tokens = tokens, .n = n, .canvas = true, .soft = soft}, offset);
  if (soft != NULL) harness_release(c->harness, soft);
}

static void run_hidden(check *c, const char *line, bool of_canvas) {
  unsigned long long offset;
  if (c->encode_only && of_canvas) return;
  if (sscanf(line, "hidden %llu", &offset) != 1) harness_die("line", WEFT_E_FORMAT, line);
  uint64_t n = (uint64_t)c->n_stream_rows * c->golden->n_hidden;
  for (uint32_t l = 0; l <= c->golden->n_layers; l++) {
    judge(c, line, c->stream + l * n, expected(c, offset + l * n, n), n, &c->worst_hidden);
  }
}

static void start_case(check *c, const char *line) {
  (void)sscanf(line, "case %63s", c->case_name);
  harness_seq_close(&c->seq);
  harness_seq_open(&c->seq);
  harness_forget_pages(c->harness);
}

static void run_lines(check *c, FILE *file) {
  char *line = harness_alloc(LINE_MAX_BYTES, 1);
  bool of_canvas = false;
  while (fgets(line, LINE_MAX_BYTES, file) != NULL) {
    if (strncmp(line, "case ", 5) == 0) start_case(c, line);
    if (strncmp(line, "encode ", 7) == 0) run_encode(c, line);
    if (strncmp(line, "canvas ", 7) == 0) run_canvas(c, line);
    if (strncmp(line, "hidden ", 7) == 0) run_hidden(c, line, of_canvas);
    if (strncmp(line, "encode ", 7) == 0 || strncmp(line, "canvas ", 7) == 0) of_canvas = line[0] == 'c';
  }
  free(line);
}

static void read_header(golden *g, FILE *file) {
  char line[512];
  unsigned long long n;
  while (fgets(line, sizeof line, file) != NULL && strncmp(line, "case ", 5) != 0) {
    (void)sscanf(line, "gguf %127s", g->gguf);
    (void)sscanf(line, "arch %63s", g->arch);
    if (strcmp(line, "twin gemma4\n") == 0) g->has_twin = true;
    (void)sscanf(line, "n_vocab %u", &g->n_vocab);
    (void)sscanf(line, "n_hidden %u", &g->n_hidden);
    (void)sscanf(line, "n_layers %u", &g->n_layers);
    (void)sscanf(line, "n_canvas %u", &g->n_canvas);
    if (sscanf(line, "tolerance %lf", &g->tolerance) == 1) g->ref_only = strstr(line, " ref") != NULL;
    if (sscanf(line, "n_floats %llu", &n) == 1) g->n_floats = n;
  }
}

static void read_floats(golden *g) {
  g->floats = golden_floats_read(g->stem, g->n_floats);
  if (g->floats == NULL) harness_die(g->stem, WEFT_E_IO, "cannot read all floats");
}

/* The file of a golden, or its twin, whose bytes are in w until it is closed. */
static weft_gguf *open_file(const golden *g, bool is_twin, gguf_writer *w) {
  char path[700];
  weft_error error = {{0}};
  const char *slash = strrchr(g->stem, '/');
  (void)snprintf(path, sizeof path, "%.*s/%s", (int)(slash - g->stem), g->stem, g->gguf);
  weft_gguf *gguf = harness_gguf(path), *twin;
  if (!is_twin) return gguf;
  gguf_twin(gguf, g->arch, w);
  weft_bytes file = gguf_writer_finish(w);
  weft_status status = weft_gguf_open_memory(file.data, file.n, path, &twin, &error);
  if (status != WEFT_OK) harness_die(path, status, error.text);
  weft_gguf_close(gguf);
  return twin;
}

/* In shards the logits must be those of one device, which was asked before. */
static void judge_bits(golden *g, bool is_twin, const harness_options *options, uint64_t digest) {
  bool ref = strcmp(options->backend, "ref") == 0, cuda = strcmp(options->backend, "cuda") == 0;
  uint64_t *alone = &g->alone[ref ? 0 : cuda ? 2 : 1][is_twin ? 1 : 0];
  if (options->n_shards == 0 && options->isa == NULL) *alone = digest;
  if (options->n_shards == 0 || *alone == digest) return;
  (void)printf("FAILED: %s: %u shards on %s have other bits than one device\n", g->stem, options->n_devices,
               options->backend);
  exit(1);
}

static void run_model(golden *g, bool is_twin, const harness_options *options) {
  char path[700], name[160];
  harness h;
  gguf_writer w = {0};
  (void)snprintf(name, sizeof name, "%s%s", is_twin ? "twin of " : "", g->gguf);
  harness_open_gguf(&h, open_file(g, is_twin, &w), name, options);
  check c = {.golden = g, .harness = &h, .encode_only = is_twin};
  harness_seq_open(&c.seq);
  c.stream = harness_alloc((uint64_t)(LAYERS_MAX + 1) * ROWS_MAX, g->n_hidden * sizeof *c.stream);
  c.logits = harness_alloc(ROWS_MAX, g->n_vocab * sizeof *c.logits);
  h.tap = record;
  h.tap_self = &c;
  if (h.info->n_vocab != g->n_vocab || h.info->n_layers != g->n_layers || h.info->n_hidden != g->n_hidden ||
      g->n_layers > LAYERS_MAX || h.info->canvas_length != (is_twin ? 0 : g->n_canvas)) {
    harness_die(name, WEFT_E_FORMAT, "the model is not the one that the cases describe");
  }
  (void)snprintf(path, sizeof path, "%s.cases.txt", g->stem);
  FILE *file = fopen(path, "r");
  if (file == NULL) harness_die(path, WEFT_E_IO, "cannot open");
  run_lines(&c, file);
  (void)fclose(file);
  (void)printf("%-4s %-9s block %-3u %-28s %4u lines, worst error: logits %.2e, residual %.2e\n", options->backend,
               weft_device_get_info(h.device)->isa, options->block_tokens, name, c.n_lines, c.worst, c.worst_hidden);
  if (c.n_lines == 0) harness_die(name, WEFT_E_FORMAT, "no lines");
  judge_bits(g, is_twin, options, c.digest);
  harness_seq_close(&c.seq);
  free(c.stream);
  free(c.logits);
  harness_close(&h);
  gguf_writer_close(&w);
}

/* Models whose heads cannot be shared out are refused with a line; who they are is counted in main. */
static bool can_be_shared(const golden *g, bool is_twin, const harness_options *options) {
  gguf_writer w = {0};
  weft_error error = {{0}};
  weft_split split;
  const weft_model_limits limits = {.rows_max = 1, .canvas_rows_max = 1, .segments_max = 1};
  weft_model *model = NULL;
  weft_gguf *gguf = open_file(g, is_twin, &w);
  bool is_cut = split_of(gguf, options->n_devices, options->n_shards, &split);
  if (!is_cut) split.n_shards = split.n_devices; /* the line of a model that cannot be cut at all */
  for (uint32_t i = 0; i < split.n_devices; i++) {
    weft_device_config config = {.backend = options->backend, .index = i, .n_threads = 1};
    weft_status status = weft_device_open(&config, &split.device[i], &error);
    if (status != WEFT_OK) harness_die(g->gguf, status, error.text);
  }
  weft_status status = weft_model_open(gguf, &split, &limits, NULL, NULL, &model, &error);
  if (status != WEFT_OK && strstr(error.text, "by layer") == NULL) harness_die(g->gguf, status, error.text);
  if (status != WEFT_OK) (void)printf("%s\n", error.text);
  weft_model_close(model);
  for (uint32_t i = 0; i < split.n_devices; i++) weft_device_close(split.device[i]);
  weft_gguf_close(gguf);
  gguf_writer_close(&w);
  return is_cut && status == WEFT_OK;
}

static void run_shared(golden *g, const harness_options *options) {
  if (can_be_shared(g, false, options)) {
    run_model(g, false, options);
    *(options->n_shards == options->n_devices ? &n_shared : &n_in_parts) += 1;
  }
  if (g->has_twin && can_be_shared(g, true, options)) run_model(g, true, options);
}

static void run_golden(const char *folder, const char *name, size_t n_name) {
  static const harness_options ways[] = {
      {.backend = "ref", .n_threads = 1, .block_tokens = 4, .rows_max = ROWS_MAX, .n_pages = 2048},
      {.backend = "cpu", .n_threads = 2, .block_tokens = 0, .rows_max = ROWS_MAX, .n_pages = 1024},
      {.backend = "cpu", .isa = "portable", .n_threads = 1, .block_tokens = 8, .rows_max = ROWS_MAX, .n_pages = 1024},
      {.backend = "cpu", .isa = "avx2", .n_threads = 2, .block_tokens = 1, .rows_max = ROWS_MAX, .n_pages = 4096},
      {.backend = "ref", .n_threads = 1, .n_devices = 2, .n_shards = 2, .rows_max = ROWS_MAX, .n_pages = 1024},
      {.backend = "cpu", .n_threads = 1, .n_devices = 2, .n_shards = 2, .rows_max = ROWS_MAX, .n_pages = 1024},
      {.backend = "cpu", .n_threads = 1, .n_devices = 4, .n_shards = 4, .rows_max = ROWS_MAX, .n_pages = 1024},
      {.backend = "cpu", .n_threads = 1, .n_devices = 6, .n_shards = 6, .rows_max = ROWS_MAX, .n_pages = 1024},
      {.backend = "cpu", .n_threads = 1, .n_devices = 8, .n_shards = 8, .rows_max = ROWS_MAX, .n_pages = 1024},
      {.backend = "ref", .n_threads = 1, .n_devices = 4, .n_shards = 2, .rows_max = ROWS_MAX, .n_pages = 1024},
      {.backend = "cpu", .n_threads = 1, .n_devices = 4, .n_shards = 2, .rows_max = ROWS_MAX, .n_pages = 1024},
      {.backend = "cpu", .n_threads = 1, .n_devices = 8, .n_shards = 2, .rows_max = ROWS_MAX, .n_pages = 1024},
      {.backend = "cpu", .n_threads = 1, .n_devices = 8, .n_shards = 4, .rows_max = ROWS_MAX, .n_pages = 1024},
      {.backend = "cpu", .n_threads = 1, .n_devices = 16, .n_shards = 4, .rows_max = ROWS_MAX, .n_pages = 1024},
      {.backend = "cuda", .block_tokens = 0, .rows_max = ROWS_MAX, .n_pages = 1024},
      {.backend = "cuda", .block_tokens = 4, .rows_max = ROWS_MAX, .n_pages = 2048},
      {.backend = "cuda", .n_devices = 2, .n_shards = 2, .rows_max = ROWS_MAX, .n_pages = 1024},
      {.backend = "cuda", .n_devices = 4, .n_shards = 4, .rows_max = ROWS_MAX, .n_pages = 1024},
      {.backend = "cuda", .n_devices = 8, .n_shards = 8, .rows_max = ROWS_MAX, .n_pages = 1024},
      {.backend = "cuda", .n_devices = 4, .n_shards = 2, .rows_max = ROWS_MAX, .n_pages = 1024},
      {.backend = "cuda", .n_devices = 8, .n_shards = 4, .rows_max = ROWS_MAX, .n_pages = 1024},
  };
  golden g = {.tolerance = tolerance};
  char path[600];
  (void)snprintf(g.stem, sizeof g.stem, "%s/%.*s", folder, (int)n_name, name);
  (void)snprintf(path, sizeof path, "%s.cases.txt", g.stem);
  FILE *file = fopen(path, "r");
  if (file == NULL) harness_die(path, WEFT_E_IO, "cannot open");
  read_header(&g, file);
  (void)fclose(file);
  read_floats(&g);
  n_read += 1;
  for (size_t i = 0; i < (g.ref_only ? 1 : sizeof ways / sizeof *ways); i++) {
    uint32_t last = ways[i].n_devices == 0 ? 0 : ways[i].n_devices - 1;
    weft_device_config config = {.backend = ways[i].backend, .n_threads = 1, .isa = ways[i].isa, .index = last};
    weft_device *device;
    weft_error error = {{0}};
    weft_status status = weft_device_open(&config, &device, &error);
    if (status != WEFT_OK) {
      bool optional = ways[i].isa != NULL || strcmp(ways[i].backend, "cuda") == 0;
      if (!optional) harness_die(ways[i].backend, status, error.text);
      (void)printf("%s %s: not on this machine\n", ways[i].backend, ways[i].isa != NULL ? ways[i].isa : "");
      continue;
    }
    weft_device_close(device);
    if (ways[i].n_devices > 4 && ways[i].n_devices > ways[i].n_shards && test_amount(0, 1, 1) == 0) continue;
    const bool is_in_turn = ways[i].isa != NULL || ways[i].n_shards > 0; /* shards have the bits of one device */
    if (is_in_turn && (i + n_read) % 2 != 0 && test_amount(1, 0, 0) != 0) continue; /* quick: in turn */
    if (ways[i].n_shards > 0) {
      run_shared(&g, &ways[i]);
      continue;
    }
    run_model(&g, false, &ways[i]);
    if (g.has_twin) run_model(&g, true, &ways[i]);
  }
  free(g.floats);
}

static int by_name(const struct dirent **a, const struct dirent **b) {
  return strcmp((*a)->d_name, (*b)->d_name);
}

static int is_cases(const struct dirent *entry) {
  const char *at = strstr(entry->d_name, ".cases.txt");
  return at != NULL && at[10] == 0;
}

int main(void) {
  static const char folder[] = WEFT_SOURCE_DIR "/tests/golden/models";
  struct dirent **entries;
  int n = scandir(folder, &entries, is_cases, by_name);
  if (n < 40) harness_die(folder, WEFT_E_NOT_FOUND, "expected at least 40 golden models");
  for (int i = 0; i < n; i++) {
    run_golden(folder, entries[i]->d_name, strlen(entries[i]->d_name) - 10);
    free(entries[i]);
  }
  free(entries);
  if (n_shared < test_amount(33, 74, 74))
    harness_die(folder, WEFT_E_NOT_FOUND,
                "expected 25 models in two shards, on ref and on cpu, 19 in four, and 5 in six or eight");
  if (n_in_parts < test_amount(22, 109, 109))
    harness_die(folder, WEFT_E_NOT_FOUND,
                "expected 25 models in two parts of two shards, on ref and on cpu, and 59 times in more");
  (void)printf("%d models agree within %.0e of the logit range, %u times in shards, %u times in parts of shards\n", n,
               tolerance, n_shared, n_in_parts);
  return 0;
}
