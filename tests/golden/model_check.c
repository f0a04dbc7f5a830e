/* SPDX-License-Identifier: MIT */
/* weft check: the cpu backend and the fake card agree with ref on tiny models; one corrupted value of any op, and of
 * each statistic, is found and named. */
#include "model/check.h"
#include "tests/support/fake_card.h"
#include "tests/support/model_harness.h"

typedef struct fault {
  const char *op; /* NULL: none */
  uint32_t layer;
  bool done;
  uint32_t seen; /* how often the op was there */
} fault;

static void corrupt(void *self, uint32_t layer, const char *op, void *values, uint64_t n) {
  fault *f = self;
  if (f->op != NULL && strcmp(f->op, "every experts") == 0) {
    for (uint64_t i = 0; strcmp(op, "experts") == 0 && layer == f->layer && i < n; i++) ((float *)values)[i] *= 1.5f;
    return;
  }
  if (f->op == NULL || f->done || strcmp(op, f->op) != 0 || (f->layer != UINT32_MAX && layer != f->layer)) return;
  f->done = true;
  if (strcmp(op, "argmax") == 0 || strcmp(op, "drawn") == 0) {
    *(int32_t *)values = (*(int32_t *)values + 1) % 7;
    return;
  }
  ((float *)values)[n / 2] += 1.0f + 2.0f * fabsf(((float *)values)[n / 2]);
}

static uint64_t work_max, told_done, told_total;
static uint32_t n_told;

static void tell(void *self, uint64_t done, uint64_t total) {
  (void)self;
  if (done > total || (n_told > 0 && (done < told_done || total != told_total)))
    harness_die("progress", WEFT_E_INVALID, "it went backwards");
  n_told += 1;
  told_done = done;
  told_total = total;
}

static weft_device *open_device(const char *backend) {
  weft_device *device;
  weft_device_config config = {.backend = backend, .n_threads = 1};
  if (weft_device_open(&config, &device, NULL) != WEFT_OK) harness_die(backend, WEFT_E_DEVICE, "open");
  return device;
}

/* Closes the devices. */
static weft_check_report run_split(const char *name, const weft_split *split, float tolerance, fault *f) {
  weft_gguf *gguf = harness_gguf(harness_tiny(name));
  weft_error error = {{0}};
  weft_split ref = *split;
  weft_check_report report;
  const int32_t tokens[] = {5, 9, 2, 14, 7, 30, 8, 21, 11};
  int32_t canvas[64];
  for (int32_t i = 0; i < 64; i++) canvas[i] = (i * 7 + 3) % 40;
  for (uint32_t i = 0; i < ref.n_devices; i++) ref.device[i] = open_device("ref");
  harness_options options = {.backend = "ref", .rows_max = 8, .n_pages = 8};
  harness h;
  harness_open(&h, harness_tiny(name), &options);
  uint32_t n_canvas = h.info->canvas_length;
  harness_close(&h);
  weft_check_args args = {.gguf = gguf,
                          .split = split,
                          .ref = &ref,
                          .tokens = tokens,
                          .n_tokens = 9,
                          .canvas = n_canvas > 0 ? canvas : NULL,
                          .n_canvas = n_canvas,
                          .tolerance = tolerance,
                          .work_max = work_max,
                          .progress = tell,
                          .touch = corrupt,
                          .touch_self = f};
  n_told = 0;
  weft_status status = weft_check(&args, &report, &error);
  if (status != WEFT_OK) harness_die(name, status, error.text);
  for (uint32_t i = 0; i < ref.n_devices; i++) {
    weft_device_close(ref.device[i]);
    weft_device_close(split->device[i]);
  }
  weft_gguf_close(gguf);
  return report;
}

static weft_check_report run(const char *name, weft_device *device, float tolerance, fault *f) {
  const weft_split split = weft_split_one(device);
  return run_split(name, &split, tolerance, f);
}

static weft_device *cpu(void) {
  return open_device("cpu");
}

/* Layers on two devices: all ops are compared, and one that is wrong on either device is named with its layer. A split
 * by tensor is refused. */
static void run_two_devices(void) {
  for (uint32_t layer = 0; layer < 3; layer += 2) {
    fault none = {.op = NULL}, wrong = {.op = "attention", .layer = layer};
    weft_split split = {.n_devices = 2, .device = {cpu(), cpu()}, .first_layer = {0, 1}};
    weft_check_report two = run_split("dg-base", &split, 1e-3f, &none), one = run("dg-base", cpu(), 1e-3f, &none);
    /* The norm before the first layer of the second device is an op of its own. */
    if (!two.agrees || two.n_ops <= one.n_ops || two.n_rows != one.n_rows)
      harness_die("two devices", WEFT_E_INVALID, "they do not agree, or ops were left out");
    split.device[0] = cpu();
    split.device[1] = cpu();
    two = run_split("dg-base", &split, 1e-3f, &wrong);
    if (two.agrees || !wrong.done || strcmp(two.op, "attention") != 0 || two.layer != layer)
      harness_die("two devices", WEFT_E_INVALID, "a wrong op was not found, or another was named");
  }
  weft_split tensor = {.n_devices = 2, .device = {cpu(), cpu()}, .n_shards = 2};
  weft_check_args args = {.split = &tensor};
  weft_check_report report;
  weft_error error = {{0}};
  if (weft_check(&args, &report, &error) != WEFT_E_INVALID || strstr(error.text, "--split tensor") == NULL)
    harness_die("two devices", WEFT_E_INVALID, "a split by tensor was not refused");
  for (uint32_t i = 0; i < 2; i++) weft_device_close(tensor.device[i]);
}

/* Bounded work: all ops are compared, of products some rows; a fault that fills an output is still found. */
static void run_bounded(void) {
  fault none = {.op = NULL}, whole = {.op = "every experts", .layer = 2};
  work_max = 0;
  weft_check_report all = run("dg-base", cpu(), 1e-3f, &none);
  uint64_t work = told_total;
  if (all.rows_taken != all.product_rows || told_done != told_total)
    harness_die("all rows", WEFT_E_INVALID, "some were left out");
  work_max = work / 4;
  weft_check_report some = run("dg-base", cpu(), 1e-3f, &none);
  (void)printf("a quarter of the work: %llu of %llu rows of products, %u of %u ops\n",
               (unsigned long long)some.rows_taken, (unsigned long long)some.product_rows, some.n_ops, all.n_ops);
  if (!some.agrees || some.product_rows != all.product_rows || told_done != told_total || n_told < 50)
    harness_die("bounded", WEFT_E_INVALID, "it does not agree, or was not told");
  if (some.rows_taken * 5 < some.product_rows || some.rows_taken * 5 > 2 * some.product_rows)
    harness_die("bounded", WEFT_E_INVALID, "not about a quarter of the rows");
  if (all.n_ops - some.n_ops > 20)
    harness_die("bounded", WEFT_E_INVALID, "ops were left out, not only rows of the head");
  work_max = 1;
  some = run("dg-base", cpu(), 1e-3f, &whole);
  if (some.agrees || strcmp(some.op, "experts") != 0 || some.layer != 2)
    harness_die("bounded", WEFT_E_INVALID, "spoiled experts were not found with one row of each op");
  work_max = 0;
}

int main(void) {
  static const char *const models[] = {"ar-base", "dg-base",    "ar-dense-v", "dg-c16-w4",
                                       "ar-e2b",  "qwen3-base", "llama-moe",  "gpt-oss-base"};
  for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
    fault none = {.op = NULL};
    weft_check_report r = run(models[i], cpu(), 1e-3f, &none);
    (void)printf("%-12s cpu: %u ops, %u rows, closest %s of layer %d: %.3f\n", models[i], r.n_ops, r.n_rows, r.op,
                 (int)r.layer, r.error);
    if (!r.agrees || r.n_ops < 20 || r.n_rows < 9) harness_die(models[i], WEFT_E_INVALID, "they do not agree");
    r = run(models[i], &fake_card_open(true)->base, 1e-6f, &none);
    if (!r.agrees) harness_die(models[i], WEFT_E_INVALID, "the fake card does not agree with itself");
  }
  static const struct {
    const char *op;
    uint32_t layer;
  } faults[] = {{"embed", 0},           {"norm", 1},           {"matmul", 1},           {"qkv", 0},
                {"attention", 1},       {"route", 1},          {"experts", 0},          {"head_rows", UINT32_MAX},
                {"argmax", UINT32_MAX}, {"drawn", UINT32_MAX}, {"entropy", UINT32_MAX}, {"soft row", UINT32_MAX}};
  for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
    fault f = {.op = faults[i].op, .layer = faults[i].layer};
    weft_check_report r = run("dg-base", cpu(), 1e-3f, &f);
    if (!f.done) harness_die(faults[i].op, WEFT_E_INVALID, "the op never ran");
    if (r.agrees || strcmp(r.op, faults[i].op) != 0 || r.layer != faults[i].layer) {
      (void)printf("FAILED: a corrupted %s of layer %d was called %s of layer %d\n", faults[i].op, (int)faults[i].layer,
                   r.op, (int)r.layer);
      return 1;
    }
  }
  run_bounded();
  run_two_devices();
  (void)printf("%zu corrupted values found and named\n", sizeof faults / sizeof *faults);
  return 0;
}
