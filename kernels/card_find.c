/* SPDX-License-Identifier: MIT */
#include "kernels/card_find.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* What the environment hides, as the end of a line. */
static void tell_visible(const card_driver *driver, char *out, size_t n) {
  out[0] = 0;
  if (driver->visible != NULL)
    (void)snprintf(out, n, "; CUDA_VISIBLE_DEVICES is '%.64s', and cards are counted among those that it names",
                   driver->visible);
}

static weft_status refuse_none(const card_driver *driver, card_answer answer, weft_error *error) {
  if (driver->visible != NULL)
    return weft_fail(error, WEFT_E_UNSUPPORTED,
                     "backend 'cuda': CUDA_VISIBLE_DEVICES is '%.64s', which leaves no card (%s): unset it, name cards "
                     "that nvidia-smi -L lists, or use --backend cpu",
                     driver->visible, answer == CARD_YES ? "none was found" : driver->why(driver->self));
  return weft_fail(error, WEFT_E_UNSUPPORTED, "backend 'cuda': no usable NVIDIA card: %s; nvidia-smi -L lists cards",
                   answer == CARD_YES ? "none was found" : driver->why(driver->self));
}

static weft_status count_cards(const card_driver *driver, const card_search *search, uint32_t *n, weft_error *error) {
  uint32_t cuda = 0;
  *n = 0;
  card_answer answer = driver->count(driver->self, n);
  if (answer == CARD_OLD_DRIVER && driver->version(driver->self, &cuda) == CARD_YES) {
    if (cuda == 0)
      return weft_fail(error, WEFT_E_UNSUPPORTED,
                       "backend 'cuda': the NVIDIA driver is here, and its library libcuda.so.1 is not to be found: "
                       "install it in the driver's version (Debian: libcuda1), in a container ask for the capability "
                       "compute, or use --backend cpu");
    weft_status status = card_check_driver(search->module, cuda, search->toolkit, true, error);
    if (status != WEFT_OK) return status;
  }
  return answer != CARD_YES || *n == 0 ? refuse_none(driver, answer, error) : WEFT_OK;
}

/* A program sees one slice of a card, whatever the number of slices. */
static weft_status refuse_index(const card_driver *driver, uint32_t index, uint32_t n, weft_error *error) {
  card_facts last = {.capability = 0};
  char visible[160];
  tell_visible(driver, visible, sizeof visible);
  bool slice = driver->describe(driver->self, n - 1, &last) == CARD_YES && strstr(last.name, "MIG") != NULL;
  return weft_fail(error, WEFT_E_UNSUPPORTED, "backend 'cuda': there is no card %u; the last one is %u%s%s", index,
                   n - 1, visible, slice ? "; of slices of cards (MIG) a program sees one" : "");
}

/* A call on a card that failed. facts NULL: it was not described yet. */
static weft_status refuse_card(const card_driver *driver, card_answer answer, uint32_t index, const card_facts *facts,
                               const char *what, weft_error *error) {
  const char *name = facts == NULL ? "" : facts->name, *space = facts == NULL ? "" : " ";
  if (answer == CARD_BUSY)
    return weft_fail(error, WEFT_E_UNSUPPORTED,
                     "backend 'cuda': card %u%s%.64s is busy (%s): another program has it for itself, or its mode lets "
                     "none in: end that program, run nvidia-smi -c DEFAULT as root, or name another card (--devices)",
                     index, space, name, driver->why(driver->self));
  return weft_fail(error, WEFT_E_DEVICE,
                   "backend 'cuda': card %u%s%.64s did not answer (%s: %s): look at nvidia-smi and at the kernel's log "
                   "(NVRM, Xid), name another card (--devices), or use --backend cpu",
                   index, space, name, what, driver->why(driver->self));
}

static weft_status choose_code(const card_driver *driver, const card_search *search, card_found *out,
                               weft_error *error) {
  const card_facts *facts = &out->facts;
  uint32_t cuda = 0;
  card_wish wish = {facts->name, facts->capability, search->module, search->architectures, search->set};
  weft_status status = card_choose_set(&wish, card_sets, CARD_SETS, &out->set, error);
  if (status != WEFT_OK) return status;
  out->compiles_ptx = !card_has_machine_code(search->architectures, facts->capability);
  if (driver->version(driver->self, &cuda) != CARD_YES || cuda == 0)
    return WEFT_OK; /* it loads the code, or says why */
  return card_check_driver(search->module, cuda, search->toolkit, !out->compiles_ptx, error);
}

void card_tell_compiles(const card_search *search, const card_found *found, const card_cache *cache, char *out,
                        size_t n) {
  uint32_t capability = found->facts.capability;
  bool keeps = cache->disabled == NULL || strcmp(cache->disabled, "1") != 0;
  int at = snprintf(out, n,
                    "cuda: card %u: %s has PTX for %s (sm_%u): the driver compiles each kernel when it is first used, "
                    "so first answers are late",
                    search->index, search->module, found->facts.name, capability);
  if (at < 0 || (size_t)at >= n) return;
  if (keeps)
    at += snprintf(out + at, n - (size_t)at, ", once: it keeps the code in %.200s",
                   cache->path != NULL && cache->path[0] != 0 ? cache->path : "~/.nv/ComputeCache");
  else
    at += snprintf(out + at, n - (size_t)at, ", in every start, since CUDA_CACHE_DISABLE is 1");
  if ((size_t)at < n)
    (void)snprintf(out + at, n - (size_t)at, "; a build with -DWEFT_CUDA_ARCHITECTURES=%u-real has the code",
                   capability);
}

uint64_t card_free_bytes(bool one_memory, uint64_t driver_says, uint64_t host_says, uint64_t all_bytes) {
  if (host_says > all_bytes) host_says = all_bytes;
  return one_memory && host_says > driver_says ? host_says : driver_says;
}

/* A card was refused for what it is: whether another one would do is said behind the line. */
static weft_status offer_other(const card_driver *driver, const card_search *search, uint32_t n, weft_status status,
                               weft_error *error) {
  for (uint32_t i = 0; i < n && error != NULL; i++) {
    card_found other = {.set = 0};
    if (i == search->index || driver->describe(driver->self, i, &other.facts) != CARD_YES) continue;
    if (other.facts.prohibited || choose_code(driver, search, &other, NULL) != WEFT_OK) continue;
    size_t at = strlen(error->text);
    (void)snprintf(error->text + at, sizeof error->text - at, "; card %u, %.64s, would do: --devices %u", i,
                   other.facts.name, i);
    break;
  }
  return status;
}

weft_status card_find(const card_driver *driver, const card_search *search, card_found *out, weft_error *error) {
  uint32_t n = 0, index = search->index;
  *out = (card_found){.set = 0};
  weft_status status = count_cards(driver, search, &n, error);
  if (status != WEFT_OK) return status;
  if (index >= n) return refuse_index(driver, index, n, error);
  card_facts *facts = &out->facts;
  card_answer answer = driver->describe(driver->self, index, facts);
  if (answer != CARD_YES) return refuse_card(driver, answer, index, NULL, "asked for its properties", error);
  status = choose_code(driver, search, out, error);
  if (status != WEFT_OK) return offer_other(driver, search, n, status, error);
  if (facts->prohibited)
    return weft_fail(error, WEFT_E_UNSUPPORTED,
                     "backend 'cuda': card %u %.64s is in the compute mode that lets no program in: run nvidia-smi -c "
                     "DEFAULT as root, or name another card (--devices)",
                     index, facts->name);
  answer = driver->enter(driver->self, index);
  if (answer != CARD_YES) return refuse_card(driver, answer, index, facts, "choosing it", error);
  answer = driver->memory(driver->self, &out->free_bytes, &out->all_bytes);
  if (answer != CARD_YES) return refuse_card(driver, answer, index, facts, "asked for its memory", error);
  uint64_t host_free = facts->one_memory ? driver->host_free(driver->self) : 0;
  out->free_bytes = card_free_bytes(facts->one_memory, out->free_bytes, host_free, out->all_bytes);
  return WEFT_OK;
}
