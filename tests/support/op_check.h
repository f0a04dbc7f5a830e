/* SPDX-License-Identifier: MIT */
/* Every backend of this machine computes a file's ops as ref does (model/check.h), and the comparison can fail: with some
 * outputs of one layer's op doubled, as if a scale were another one, it names that op and that layer. */
#ifndef WEFT_TESTS_OP_CHECK_H
#define WEFT_TESTS_OP_CHECK_H

#include "model/check.h"
#include "tests/support/model_harness.h"

enum { OP_CHECK_LAYER = 2, OP_CHECK_STRIDE = 16 };

typedef struct op_spoiled {
  const char *op; /* NULL: none */
  bool done;
} op_spoiled;

static inline void op_spoil(void *self, uint32_t layer, const char *op, void *values, uint64_t n) {
  op_spoiled *s = self;
  if (s->op == NULL || s->done || layer != OP_CHECK_LAYER || strcmp(op, s->op) != 0) return;
  s->done = true;
  for (uint64_t i = 0; i < n; i += OP_CHECK_STRIDE) ((float *)values)[i] *= 2.0f;
}

/* NULL: this machine has no such device, which is said. */
static inline weft_device *op_check_device(const char *backend, const char *isa) {
  const weft_device_config config = {.backend = backend, .isa = isa, .n_threads = 1, .no_graphs = true};
  weft_device *device = NULL;
  weft_error error = {{0}};
  if (weft_device_open(&config, &device, &error) != WEFT_OK) (void)printf("left out: %s\n", error.text);
  return device;
}

static inline weft_check_report op_check_run(weft_check_args args, weft_device *device, weft_device *ref,
                                             op_spoiled *s) {
  weft_check_report report = {.agrees = false};
  weft_error error = {{0}};
  const weft_split split = weft_split_one(device), ref_split = weft_split_one(ref);
  args.split = &split;
  args.ref = &ref_split;
  args.touch = op_spoil;
  args.touch_self = s;
  weft_status status = weft_check(&args, &report, &error);
  if (status != WEFT_OK) harness_die("check", status, error.text);
  return report;
}

/* args: the file, what it is given and how far it may be off; name: the file, for what is printed; op: what is spoiled;
 * ops_min: how many ops are compared at least. */
static inline void op_check_each_backend(const weft_check_args *args, const char *name, const char *op,
                                         uint32_t ops_min) {
  static const char *const ways[][2] = {{"cpu", "portable"}, {"cpu", "avx2"}, {"cpu", "avx512"}, {"cuda", NULL}};
  weft_device *ref = op_check_device("ref", NULL);
  if (ref == NULL) harness_die("ref", WEFT_E_DEVICE, "open");
  for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
    weft_device *device = op_check_device(ways[i][0], ways[i][1]);
    if (device == NULL) continue;
    op_spoiled none = {NULL, false}, one = {op, false};
    weft_check_report r = op_check_run(*args, device, ref, &none);
    (void)printf("%s on %s %s: %u ops, closest %s of layer %d: %.3f of what is allowed\n", name, ways[i][0],
                 ways[i][1] == NULL ? "" : ways[i][1], r.n_ops, r.op, (int)r.layer, r.error);
    if (!r.agrees || r.n_ops < ops_min) harness_die(ways[i][0], WEFT_E_INVALID, "an op differs from ref");
    r = op_check_run(*args, device, ref, &one);
    if (r.agrees || !one.done || strcmp(r.op, op) != 0 || r.layer != OP_CHECK_LAYER)
      harness_die(ways[i][0], WEFT_E_INVALID, "a spoiled output was not seen");
    weft_device_close(device);
  }
  weft_device_close(ref);
}

#endif
