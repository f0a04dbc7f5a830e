/* SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <string.h>

#include "api/cli/plan.h"
#include "base/nearest.h"

#define MIB(x) ((uint64_t)(x) << 20)

/* Memory as the driver tells it, which is less than the name says where a part is kept for the correction of errors;
 * rates by the makers' data sheets. Products are dense, of 16 bits, added in 32: of a GeForce card that is half of what
 * its tensor cores do when they add in 16. Where a sheet tells only sums of sparse or shorter products, the figure is
 * what a multiprocessor of its family does in a clock (1024 multiplications and additions, GeForce 256 to 512 by
 * family) times their number and the boost clock. */
static const plan_card cards[] = {
    {"h100", "NVIDIA H100 SXM", MIB(81559), 3.35e12, 989e12, 90},
    {"h100-pcie", "NVIDIA H100 PCIe", MIB(81559), 2.0e12, 756e12, 90},
    {"h100-nvl", "NVIDIA H100 NVL", MIB(95830), 3.9e12, 835e12, 90},
    {"h200", "NVIDIA H200", MIB(143771), 4.8e12, 989e12, 90},
    {"gh200", "NVIDIA GH200 96 GB", MIB(97871), 4.0e12, 990e12, 90},
    {"gh200-144", "NVIDIA GH200 144 GB", MIB(144000), 4.9e12, 990e12, 90},
    {"a100", "NVIDIA A100 80 GB", MIB(81920), 2.04e12, 312e12, 80},
    {"a100-40", "NVIDIA A100 40 GB", MIB(40960), 1.56e12, 312e12, 80},
    {"a30", "NVIDIA A30", MIB(24258), 0.933e12, 165e12, 80},
    {"a10", "NVIDIA A10", MIB(23028), 0.6e12, 125e12, 86},
    {"a40", "NVIDIA A40", MIB(46068), 0.696e12, 150e12, 86},
    {"a6000", "NVIDIA RTX A6000", MIB(49140), 0.768e12, 155e12, 86},
    {"l4", "NVIDIA L4", MIB(23034), 0.3e12, 121e12, 89},
    {"l40s", "NVIDIA L40S", MIB(46068), 0.864e12, 362e12, 89},
    {"rtx-3060", "NVIDIA GeForce RTX 3060 12 GB", MIB(12288), 0.36e12, 25.5e12, 86},
    {"rtx-3080", "NVIDIA GeForce RTX 3080", MIB(10240), 0.76e12, 59.5e12, 86},
    {"rtx-3090", "NVIDIA GeForce RTX 3090", MIB(24576), 0.936e12, 71e12, 86},
    {"rtx-4060", "NVIDIA GeForce RTX 4060 8 GB", MIB(8188), 0.272e12, 30.2e12, 89},
    {"rtx-4060-ti", "NVIDIA GeForce RTX 4060 Ti 16 GB", MIB(16380), 0.288e12, 44e12, 89},
    {"rtx-4070", "NVIDIA GeForce RTX 4070", MIB(12282), 0.504e12, 58e12, 89},
    {"rtx-4080", "NVIDIA GeForce RTX 4080", MIB(16376), 0.717e12, 97.5e12, 89},
    {"rtx-4090", "NVIDIA GeForce RTX 4090", MIB(24564), 1.008e12, 165e12, 89},
    {"rtx-5060-ti", "NVIDIA GeForce RTX 5060 Ti 16 GB", MIB(16311), 0.448e12, 47e12, 120},
    {"rtx-5070-ti", "NVIDIA GeForce RTX 5070 Ti", MIB(16303), 0.896e12, 88e12, 120},
    {"rtx-5090", "NVIDIA GeForce RTX 5090", MIB(32607), 1.792e12, 209e12, 120},
    {"rtx-pro-6000", "NVIDIA RTX PRO 6000 Blackwell", MIB(97887), 1.792e12, 503e12, 120},
    {"gb10", "NVIDIA GB10", MIB(122570), 0.273e12, 125e12, 121},
    {"b200", "NVIDIA B200", MIB(183359), 8.0e12, 2250e12, 100},
};
enum { N_CARDS = sizeof cards / sizeof *cards };

const plan_card *plan_card_at(uint32_t i) {
  return i < N_CARDS ? &cards[i] : NULL;
}

/* By its name or title as people write them, or by a part of the title that no other card has, as 4090. */
static const plan_card *match_card(const char *given) {
  char wanted[96], name[96], title[96];
  const plan_card *part = NULL;
  uint32_t n_parts = 0;
  weft_plain_name(given, wanted, sizeof wanted);
  for (int i = 0; i < N_CARDS && wanted[0] != 0; i++) {
    weft_plain_name(cards[i].name, name, sizeof name);
    weft_plain_name(cards[i].title, title, sizeof title);
    if (strcmp(name, wanted) == 0 || strcmp(title, wanted) == 0) return &cards[i];
    if (strstr(title, wanted) == NULL) continue;
    part = &cards[i];
    n_parts += 1;
  }
  return n_parts == 1 ? part : NULL;
}

const plan_card *plan_find_card(const char *given, weft_error *error) {
  char names[512] = "";
  size_t n = 0;
  weft_nearest nearest = weft_nearest_to(given, strlen(given));
  const plan_card *card = match_card(given);
  if (card != NULL) return card;
  for (int i = 0; i < N_CARDS; i++) {
    weft_nearest_try(&nearest, cards[i].name);
    n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", i > 0 ? ", " : "", cards[i].name);
  }
  (void)weft_fail(error, WEFT_E_NOT_FOUND, "--card: '%.32s' is not in the table, which has %s%s%s%s", given, names,
                  nearest.best == NULL ? "" : ": did you mean ", nearest.best == NULL ? "" : nearest.best,
                  nearest.best == NULL ? "" : "?");
  return NULL;
}

uint32_t plan_set_of(const plan_card *card) {
  uint32_t i = 0;
  while (i < CARD_SETS && !(card->capability > 0 && card_sets[i].fits(card->capability))) i++;
  return i;
}

void plan_own_card(const weft_device_info *info, plan_card *out) {
  *out = (plan_card){.memory_bytes = info->memory_free_bytes,
                     .memory_rate = info->memory_rate,
                     .product_rate = info->product_rate,
                     .capability = info->capability};
  (void)snprintf(out->title, sizeof out->title, "%.90s", info->name);
}
