/* SPDX-License-Identifier: MIT */
/* A card that is nearly full. Another device of the same card takes memory until so much is left, from far too little for
 * the demo model to plenty. Each time the model is opened on the card, alone or as the second of two, and asked: either the
 * start is refused with a line that says what is needed and what is free, or every answer is that of an empty card. No step
 * fails, also where buffers went elsewhere or steps could be no graphs. Ends with code 77, skipped, where there is no
 * card; nobody else may take memory of the card meanwhile. */
#include "base/log.h"
#include "kernels/device.h"
#include "tests/support/ask_demo.h"

enum { SKIPPED = 77, ANSWER = 64, REQUESTS = 4, STEP_MIB = 4, LEFT_MIB_MAX = 240, HOGS_MAX = 4096 };

/* What fills the card. */
typedef struct hog {
  weft_device *device;
  void *memory[HOGS_MAX];
  uint32_t n;
} hog;

static void fill_until(hog *h, uint64_t n_bytes_left) {
  for (uint64_t piece = 1ull << 30; piece >= 1ull << 20; piece /= 2) {
    while (h->n < HOGS_MAX && weft_device_memory_left(h->device) >= n_bytes_left + piece) {
      if (weft_device_alloc(h->device, piece, &h->memory[h->n]) != WEFT_OK) break;
      h->n++;
    }
  }
}

static void let_go(hog *h) {
  while (h->n > 0) weft_device_free(h->device, h->memory[--h->n]);
}

/* The answers; empty where the start is refused. */
static bool run(const char *devices, char *answer, size_t room, char *error, size_t error_room) {
  const char *model = WEFT_SOURCE_DIR "/model/demo/weft-demo.gguf";
  weft_runtime *rt;
  weft_open_options options = {.models = &model,
                               .n_models = 1,
                               .backend = "cuda",
                               .devices = devices,
                               .kv_bytes = 32 << 20,
                               .context = 400,
                               .running = 4,
                               .queue = 16,
                               .rows = 512,
                               .quiet = true};
  answer[0] = '\0';
  int status = weft_open(&options, &rt, error, error_room);
  if (status != 0) {
    need(status == WEFT_E_NO_MEMORY, "refusal", error);
    need(strstr(error, "MiB") != NULL, "a refusal without numbers", error);
    return false;
  }
  for (uint32_t i = 0; i < REQUESTS; i++) ask_demo(rt, i, ANSWER, answer, room);
  need(weft_unwell(rt) == NULL, "health", "unwell");
  weft_close(rt);
  return true;
}

static void run_all(hog *h, const char *devices) {
  static char expected[1 << 16], answer[1 << 16];
  char error[512] = "";
  uint32_t n_refused = 0, n_answered = 0;
  need(run(devices, expected, sizeof expected, error, sizeof error), "an empty card", error);
  for (uint32_t left = 0; left <= LEFT_MIB_MAX; left += STEP_MIB) {
    fill_until(h, (uint64_t)left << 20);
    if (run(devices, answer, sizeof answer, error, sizeof error)) {
      n_answered++;
      need(strcmp(answer, expected) == 0, "an answer differs", answer);
    } else {
      n_refused++;
      (void)printf("%3u MiB left: %s\n", left, error);
    }
    let_go(h);
  }
  need(n_refused > 0 && n_answered > 0, "the sizes", "all were refused, or none");
  (void)printf("devices %s: %u starts refused, %u answered as on an empty card\n", devices, n_refused, n_answered);
}

int main(void) {
  static hog h;
  weft_error error = {{0}};
  weft_log_set_level(WEFT_LOG_ERROR);
  weft_device_config config = {.backend = "cuda"};
  if (weft_device_open(&config, &h.device, &error) != WEFT_OK) {
    (void)printf("skipped: %s\n", error.text);
    return SKIPPED;
  }
  run_all(&h, "0");
  weft_device_close(h.device);
  config.index = 1;
  if (weft_device_open(&config, &h.device, &error) == WEFT_OK) {
    run_all(&h, "0,1");
    weft_device_close(h.device);
  }
  return 0;
}
