/* SPDX-License-Identifier: MIT */
/* A file whose experts are stored as MXFP4 (tests/golden/make_mxfp4.py), against the same file with what the package
 * gguf makes of the stored blocks.
 *
 *   values    every expert matrix means the floats of the plain file, bit for bit; the rest are the same bytes
 *   answers   ref gives the same logits for both files, bit for bit (golden/model_parity holds them to the expected
 *   ones) ops       every other backend of this machine agrees with ref op by op; with some outputs of one layer's
 *             experts doubled it does not, and the check names them */
#include "model/check.h"
#include "model/gguf_internal.h"
#include "tests/support/model_harness.h"

#define FILES WEFT_SOURCE_DIR "/tests/golden/models/dg-mxfp4"

enum { TOKENS = 14, CANVAS = 8, BLOCK_BYTES = 17 };
static const int32_t tokens[TOKENS] = {5, 9, 2, 14, 7, 30, 8, 21, 11, 101, 77, 64, 3, 50};
static const int32_t canvas[CANVAS] = {5, 1, 122, 63, 46, 110, 58, 106};
static const float tolerance = 0.1f; /* cpu and cuda round rows: the default of weft check */

static weft_gguf *open_file(const char *end) {
  char path[600];
  weft_gguf *gguf;
  weft_error error = {{0}};
  (void)snprintf(path, sizeof path, "%s%s", FILES, end);
  if (weft_gguf_open(path, &gguf, &error) != WEFT_OK) harness_die(path, WEFT_E_IO, error.text);
  return gguf;
}

/* ---- values -------------------------------------------------------------------------------------------- */

static void compare_values(const weft_gguf *stored, const weft_gguf *plain) {
  uint32_t n_experts = 0;
  for (uint32_t i = 0; i < stored->n_tensors; i++) {
    const weft_gguf_tensor *a = &stored->tensors[i], *b = weft_gguf_tensor_find(plain, a->name);
    bool is_expert = strstr(a->name, "_exps.weight") != NULL;
    if (b == NULL || (is_expert ? a->type != WEFT_TYPE_MXFP4 || b->type != WEFT_TYPE_F32 : a->type != b->type))
      harness_die(a->name, WEFT_E_FORMAT, "not what was expected");
    if (!is_expert) {
      if (a->n_bytes != b->n_bytes || memcmp(a->data, b->data, a->n_bytes) != 0)
        harness_die(a->name, WEFT_E_FORMAT, "other bytes");
      continue;
    }
    uint64_t n = b->n_bytes / sizeof(float);
    float *values = harness_alloc(n, sizeof *values);
    weft_dequantise_row(a->type, a->data, values, n);
    if (memcmp(values, b->data, b->n_bytes) != 0) harness_die(a->name, WEFT_E_FORMAT, "other values");
    free(values);
    n_experts += 1;
  }
  if (n_experts != 8) harness_die("experts", WEFT_E_FORMAT, "expected two matrices in each of four layers");
  (void)printf("%u matrices of experts mean the floats of the plain file, bit for bit\n", n_experts);
}

/* ---- answers ------------------------------------------------------------------------------------------- */

/* Logits of a prompt and of a canvas behind it. */
static float *run_ref(const char *end, uint32_t *n_vocab) {
  char path[600];
  harness h;
  harness_seq seq;
  const harness_options options = {.backend = "ref", .n_threads = 1, .block_tokens = 4, .rows_max = 32, .n_pages = 64};
  (void)snprintf(path, sizeof path, "%s%s", FILES, end);
  harness_open(&h, path, &options);
  harness_seq_open(&seq);
  *n_vocab = h.info->n_vocab;
  float *logits = harness_alloc((TOKENS + CANVAS) * h.info->n_vocab, sizeof *logits);
  harness_piece prompt = {.seq = &seq, .tokens = tokens, .n = TOKENS, .output = OUT_ALL, .logits = logits};
  harness_run(&h, &prompt, 1);
  harness_piece step = {.seq = &seq,
                        .tokens = canvas,
                        .n = CANVAS,
                        .canvas = true,
                        .output = OUT_ALL,
                        .logits = logits + TOKENS * h.info->n_vocab};
  harness_run(&h, &step, 1);
  harness_seq_close(&seq);
  harness_close(&h);
  return logits;
}

static void compare_answers(void) {
  uint32_t n_vocab, n_plain;
  float *stored = run_ref(".gguf", &n_vocab), *plain = run_ref(".plain.gguf", &n_plain);
  if (n_vocab != n_plain || memcmp(stored, plain, (TOKENS + CANVAS) * n_vocab * sizeof *plain) != 0)
    harness_die("answers", WEFT_E_INVALID, "ref gives other logits for the plain file");
  (void)printf("ref gives the same %u rows of logits for both files\n", TOKENS + CANVAS);
  free(stored);
  free(plain);
}

/* ---- ops ----------------------------------------------------------------------------------------------- */

static bool open_device(const char *backend, const char *isa, weft_device **device) {
  const weft_device_config config = {.backend = backend, .isa = isa, .n_threads = 1, .no_graphs = true};
  weft_error error = {{0}};
  if (weft_device_open(&config, device, &error) == WEFT_OK) return true;
  (void)printf("left out: %s\n", error.text);
  return false;
}

typedef struct spoiled {
  bool done;
} spoiled;

/* As if the scales of some blocks were other ones. */
static void spoil(void *self, uint32_t layer, const char *op, void *values, uint64_t n) {
  spoiled *s = self;
  if (s->done || layer != 2 || strcmp(op, "experts") != 0) return;
  s->done = true;
  for (uint64_t i = 0; i < n; i += BLOCK_BYTES) ((float *)values)[i] *= 2.0f;
}

static weft_check_report check(weft_gguf *gguf, const char *backend, const char *isa, spoiled *s) {
  weft_device *device = NULL, *ref = NULL;
  weft_check_report report = {.agrees = false};
  weft_error error = {{0}};
  if (!open_device(backend, isa, &device) || !open_device("ref", NULL, &ref))
    harness_die(backend, WEFT_E_DEVICE, "open");
  weft_check_args args = {.gguf = gguf,
                          .device = device,
                          .ref = ref,
                          .tokens = tokens,
                          .n_tokens = TOKENS,
                          .canvas = canvas,
                          .n_canvas = CANVAS,
                          .tolerance = tolerance,
                          .touch = s == NULL ? NULL : spoil,
                          .touch_self = s};
  weft_status status = weft_check(&args, &report, &error);
  if (status != WEFT_OK) harness_die(backend, status, error.text);
  weft_device_close(ref);
  weft_device_close(device);
  return report;
}

static void compare_ops(weft_gguf *gguf) {
  static const char *const ways[][2] = {{"cpu", "portable"}, {"cpu", "avx2"}, {"cpu", "avx512"}, {"cuda", NULL}};
  for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
    weft_device *device;
    if (!open_device(ways[i][0], ways[i][1], &device)) continue;
    weft_device_close(device);
    weft_check_report r = check(gguf, ways[i][0], ways[i][1], NULL);
    (void)printf("%s %s: %u ops, closest %s of layer %d: %.3f of what is allowed\n", ways[i][0],
                 ways[i][1] == NULL ? "" : ways[i][1], r.n_ops, r.op, (int)r.layer, r.error);
    if (!r.agrees || r.n_ops < 40) harness_die(ways[i][0], WEFT_E_INVALID, "an op differs from ref");
    spoiled s = {false};
    r = check(gguf, ways[i][0], ways[i][1], &s);
    if (r.agrees || !s.done || strcmp(r.op, "experts") != 0 || r.layer != 2)
      harness_die(ways[i][0], WEFT_E_INVALID, "a spoiled output of experts was not seen");
  }
}

int main(void) {
  weft_gguf *stored = open_file(".gguf"), *plain = open_file(".plain.gguf");
  compare_values(stored, plain);
  compare_answers();
  compare_ops(stored);
  weft_gguf_close(plain);
  weft_gguf_close(stored);
  return 0;
}
