/* SPDX-License-Identifier: MIT */
#include <inttypes.h>
#include <string.h>

#include "bench/acceptance/acceptance.h"
#include "bench/lab/progress.h"

static const char *const download_again =
    "Compare the size and the checksum of the file with those that its source names, and download it again.";

static const char *advise_opening(weft_status status) {
  if (status == WEFT_E_IO) return "Look whether the path is right and the file may be read.";
  if (status == WEFT_E_UNSUPPORTED)
    return "`weft inspect FILE` shows what the file holds; docs/models.md names what is served. Another type of "
           "weights of "
           "the same model may do.";
  if (status == WEFT_E_NO_MEMORY) return "Free memory, or take a smaller file.";
  return download_again;
}

static const char *advise_serving(weft_status status) {
  if (status == WEFT_E_FORMAT || status == WEFT_E_NOT_FOUND)
    return "The file contradicts itself: take one of another converter, or a newer one. If other programs run it, send "
           "this report.";
  return advise_opening(status);
}

/* What weft inspect says, without the folder. */
static void describe_file(acceptance *a) {
  weft_text text = {0};
  weft_error error = {{0}};
  json_t *file = NULL;
  if (weft_inspect(a->gguf, true, &text, &error) == WEFT_OK && text.n > 0)
    file = json_loadb(text.bytes, text.n, 0, NULL);
  weft_text_free(&text);
  if (file == NULL) {
    acceptance_add(&a->report, "contents", ACCEPTANCE_LOOK, "Send what `weft inspect FILE` prints beside this report.",
                   "what the file holds could not be written down");
    return;
  }
  const char *path = weft_gguf_path(a->gguf), *slash = strrchr(path, '/');
  (void)json_object_set_new(file, "file", json_string(slash == NULL ? path : slash + 1));
  const char *arch = "?";
  size_t i;
  json_t *key;
  json_array_foreach(json_object_get(file, "metadata"), i, key) {
    if (strcmp(json_string_value(json_object_get(key, "key")), "general.architecture") == 0)
      arch = json_string_value(json_object_get(key, "value"));
  }
  acceptance_add(&a->report, "file", ACCEPTANCE_GOOD, NULL, "%s: architecture %s, %" PRIu32 " tensors, %.3f GB",
                 json_string_value(json_object_get(file, "file")), arch == NULL ? "?" : arch,
                 weft_gguf_n_tensors(a->gguf), (double)weft_gguf_file_bytes(a->gguf) * 1e-9);
  (void)json_object_set_new(a->report.root, "file", file);
}

/* ---- numbers ---- */

typedef struct numbers_seen {
  weft_lab_progress progress;
  char first[512]; /* finding, in words */
} numbers_seen;

static void take_finding(void *self, const weft_numbers_finding *f) {
  numbers_seen *seen = self;
  if (seen->first[0] != 0) return;
  (void)snprintf(seen->first, sizeof seen->first,
                 "%.200s: %" PRIu64 " of %" PRIu64 " rows are %s, the first is row %" PRIu64 " of matrix %" PRIu64,
                 f->tensor, f->n_rows, f->n_rows_all, weft_numbers_fault_text(f->fault), f->row, f->matrix);
}

static void show_bytes(void *self, uint64_t n_bytes, uint64_t n_bytes_all) {
  numbers_seen *seen = self;
  if (n_bytes_all >= (uint64_t)64 << 20) weft_lab_progress_show(&seen->progress, n_bytes, n_bytes_all, "");
}

static void check_numbers(acceptance *a) {
  numbers_seen seen = {.progress = {.what = "reading numbers", .quiet = a->config->product.quiet}};
  weft_numbers_report report = {0};
  weft_error error = {{0}};
  const weft_numbers_args args = {.gguf = a->gguf, .take = take_finding, .progress = show_bytes, .self = &seen};
  weft_status status = weft_numbers(&args, &report, &error);
  if (status != WEFT_OK) {
    acceptance_add(&a->report, "numbers", ACCEPTANCE_BAD, advise_opening(status), "%s", error.text);
  } else if (report.n_broken > 0) {
    acceptance_add(
        &a->report, "numbers", ACCEPTANCE_BAD,
        "The weights are damaged: compare the checksum and download again; if it is right, the conversion is "
        "wrong. `weft check numbers -m FILE` lists every such tensor.",
        "%" PRIu32 " of %" PRIu32 " tensors are broken; %s", report.n_broken, report.n_tensors, seen.first);
  } else if (report.n_skipped > 0) {
    acceptance_add(&a->report, "numbers", ACCEPTANCE_LOOK, NULL,
                   "%" PRIu32 " tensors are sound; %" PRIu32
                   " are of types that weft does not compute and were not read",
                   report.n_tensors, report.n_skipped);
  } else {
    acceptance_add(&a->report, "numbers", ACCEPTANCE_GOOD, NULL,
                   "every number of %" PRIu32 " tensors is finite, no row is empty, no router is constant",
                   report.n_tensors);
  }
}

bool acceptance_check_file(acceptance *a) {
  weft_error error = {{0}};
  weft_status status = weft_gguf_open(a->config->product.models.item[0], &a->gguf, &error);
  if (status != WEFT_OK) {
    acceptance_add(&a->report, "file", ACCEPTANCE_BAD, advise_opening(status), "%s", error.text);
    return false;
  }
  describe_file(a);
  status = weft_model_judge(a->gguf, &error);
  if (status != WEFT_OK) {
    acceptance_add(&a->report, "shapes", ACCEPTANCE_BAD, advise_serving(status), "%s", error.text);
  } else {
    acceptance_add(&a->report, "shapes", ACCEPTANCE_GOOD, NULL,
                   "architecture, hyperparameters, types and the shape of every tensor fit together");
  }
  check_numbers(a);
  return status == WEFT_OK;
}
