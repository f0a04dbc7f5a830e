/* SPDX-License-Identifier: MIT */
/* Files whose matrices are stored as NVFP4 with scales beside them (tests/golden/make_nvfp4.py). golden/model_parity holds
 * ref to the expected logits; here every other backend of this machine agrees with ref op by op, and with some outputs of
 * one layer doubled it does not: as if a scale had been left out. */
#include "model/check.h"
#include "tests/support/model_harness.h"

enum { TOKENS = 14 };
static const int32_t tokens[TOKENS] = {5, 9, 2, 14, 7, 30, 8, 21, 11, 37, 17, 33, 3, 50};
static const float tolerance = 0.2f; /* cpu and cuda round rows, of 64 numbers here: the same values in Q8_0 need 0.1 */

static weft_device *open_device(const char *backend, const char *isa) {
  const weft_device_config config = {.backend = backend, .isa = isa, .n_threads = 1, .no_graphs = true};
  weft_device *device = NULL;
  weft_error error = {{0}};
  if (weft_device_open(&config, &device, &error) != WEFT_OK) (void)printf("left out: %s\n", error.text);
  return device;
}

typedef struct spoiled {
  const char *op;
  bool done;
} spoiled;

static void spoil(void *self, uint32_t layer, const char *op, void *values, uint64_t n) {
  spoiled *s = self;
  if (s->op == NULL || s->done || layer != 2 || strcmp(op, s->op) != 0) return;
  s->done = true;
  for (uint64_t i = 0; i < n; i += 16) ((float *)values)[i] *= 2.0f;
}

static weft_check_report check(weft_gguf *gguf, weft_device *device, weft_device *ref, spoiled *s) {
  weft_check_report report = {.agrees = false};
  weft_error error = {{0}};
  weft_check_args args = {.gguf = gguf,
                          .device = device,
                          .ref = ref,
                          .tokens = tokens,
                          .n_tokens = TOKENS,
                          .tolerance = tolerance,
                          .touch = spoil,
                          .touch_self = s};
  weft_status status = weft_check(&args, &report, &error);
  if (status != WEFT_OK) harness_die("check", status, error.text);
  return report;
}

static void compare_ops(const char *name, const char *op) {
  static const char *const ways[][2] = {{"cpu", "portable"}, {"cpu", "avx2"}, {"cpu", "avx512"}, {"cuda", NULL}};
  char path[600];
  weft_gguf *gguf;
  weft_error error = {{0}};
  (void)snprintf(path, sizeof path, "%s/tests/golden/models/%s.gguf", WEFT_SOURCE_DIR, name);
  if (weft_gguf_open(path, &gguf, &error) != WEFT_OK) harness_die(path, WEFT_E_IO, error.text);
  for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
    weft_device *device = open_device(ways[i][0], ways[i][1]), *ref = open_device("ref", NULL);
    if (ref == NULL) harness_die("ref", WEFT_E_DEVICE, "open");
    spoiled none = {NULL, false}, one = {op, false};
    if (device != NULL) {
      weft_check_report r = check(gguf, device, ref, &none);
      (void)printf("%s on %s %s: %u ops, closest %s of layer %d: %.3f of what is allowed\n", name, ways[i][0],
                   ways[i][1] == NULL ? "" : ways[i][1], r.n_ops, r.op, (int)r.layer, (double)r.error);
      if (!r.agrees || r.n_ops < 20) harness_die(ways[i][0], WEFT_E_INVALID, "an op differs from ref");
      r = check(gguf, device, ref, &one);
      if (r.agrees || !one.done || strcmp(r.op, op) != 0 || r.layer != 2)
        harness_die(ways[i][0], WEFT_E_INVALID, "a spoiled output was not seen");
      weft_device_close(device);
    }
    weft_device_close(ref);
  }
  weft_gguf_close(gguf);
}

int main(void) {
  compare_ops("qwen3-nvfp4", "matmul");
  compare_ops("qwen3moe-nvfp4", "experts");
  compare_ops("ar-nvfp4", "experts");
  return 0;
}
