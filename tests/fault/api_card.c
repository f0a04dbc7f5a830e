/* SPDX-License-Identifier: MIT */
/* The memory of a card is back after every round of open, run and close: what is free before a round is free after the
 * last one. Rounds differ in where weights lie (arena, plain memory, experts in the host) and in graphs; one of each
 * kind comes before the first look, because the driver keeps for the process what it has loaded. Ends with code 77,
 * skipped, where there is no card; nobody else may take memory of the card meanwhile.
 *
 *   api_card [ROUNDS]    12 unless said */
#include <stdlib.h>

#include "base/log.h"
#include "kernels/device.h"
#include "tests/support/ask_demo.h"

enum { SKIPPED = 77, ANSWER = 24, REQUESTS = 6, KINDS = 12 };

/* What a device that is opened now finds free; it is closed again. 0: there is no card. */
static uint64_t free_bytes(void) {
  const weft_device_config config = {.backend = "cuda"};
  weft_device *device;
  weft_error error = {{0}};
  if (weft_device_open(&config, &device, &error) != WEFT_OK) {
    (void)printf("skipped: %s\n", error.text);
    return 0;
  }
  uint64_t n = weft_device_get_info(device)->memory_free_bytes;
  weft_device_close(device);
  return n;
}

static void run_round(uint32_t round) {
  const char *model = WEFT_SOURCE_DIR "/model/demo/weft-demo.gguf";
  weft_runtime *rt;
  char error[512] = "";
  weft_open_options options = {.models = &model,
                               .n_models = 1,
                               .backend = "cuda",
                               .kv_bytes = 256 << 20,
                               .host_bytes = round % 2 == 0 ? 0 : 16 << 20,
                               .context = 400,
                               .running = 4,
                               .queue = 16,
                               .rows = 256,
                               .no_graphs = round % 3 == 2,
                               .no_arena = round % 4 == 1,
                               .device_mib = round % 4 == 3 ? "6" : NULL,
                               .quiet = true};
  need(weft_open(&options, &rt, error, sizeof error) == 0, "open", error);
  for (uint32_t i = 0; i < REQUESTS; i++) {
    char answer[4096] = "";
    ask_demo(rt, i, ANSWER, answer, sizeof answer);
  }
  need(weft_unwell(rt) == NULL, "health", "unwell");
  weft_close(rt);
}

int main(int argc, char **argv) {
  uint32_t n = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 12;
  weft_log_set_level(WEFT_LOG_ERROR);
  if (free_bytes() == 0) return SKIPPED;
  for (uint32_t round = 0; round < KINDS; round++) run_round(round); /* each kind once */
  uint64_t before = free_bytes();
  for (uint32_t round = 0; round < n; round++) {
    run_round(round);
    uint64_t now = free_bytes();
    (void)printf("round %u: %lld KiB less are free than before\n", round, ((long long)before - (long long)now) / 1024);
    need(now >= before, "memory of the card", "it did not come back");
  }
  (void)printf("%u rounds of open, run and close: %llu MiB free before and after\n", n,
               (unsigned long long)(before >> 20));
  return 0;
}
