/* SPDX-License-Identifier: MIT */
#include "kernels/card_sets.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* wgmma and setmaxnreg are of compute capability 9.0 alone. */
static bool fits_hopper(uint32_t capability) {
  return capability == 90;
}

static bool fits_portable(uint32_t capability) {
  return capability >= 80;
}

const card_set card_sets[CARD_SETS] = {
    {"hopper", "sm_90", fits_hopper, "libweft-cuda.so", false},
    {"portable", "sm_80 and later", fits_portable, "libweft-cuda-portable.so", true},
};

/* One architecture of a list, as "90a-real". */
typedef struct architecture {
  uint32_t capability;
  char kind;     /* 'a': this capability alone; 'f': the same family; 0 */
  bool ptx;      /* and not machine code alone */
  bool machine;  /* and not PTX alone */
  bool is_known; /* it could be read */
} architecture;

static architecture read_architecture(const char *text, size_t n) {
  architecture a = {.ptx = true, .machine = true};
  size_t i = 0;
  for (; i < n && text[i] >= '0' && text[i] <= '9'; i++) a.capability = 10 * a.capability + (uint32_t)(text[i] - '0');
  a.is_known = i >= 2 && i <= 3;
  if (i < n && (text[i] == 'a' || text[i] == 'f')) a.kind = text[i++];
  if (n - i == 5 && strncmp(text + i, "-real", 5) == 0)
    a.ptx = false;
  else if (n - i == 8 && strncmp(text + i, "-virtual", 8) == 0)
    a.machine = false;
  else if (n != i)
    a.is_known = false;
  return a;
}

/* Machine code for x.y runs on x.z with z >= y; PTX is compiled on any later card. */
static bool runs_on(architecture a, uint32_t capability, bool machine_alone) {
  if (!a.is_known || capability < a.capability || (machine_alone && !a.machine)) return false;
  if (a.kind == 'a') return capability == a.capability;
  return capability / 10 == a.capability / 10 || (a.ptx && a.kind == 0 && !machine_alone);
}

static bool find_code(const char *architectures, uint32_t capability, bool machine_alone) {
  for (const char *at = architectures; *at != 0; at += strcspn(at, ","), at += *at == ',') {
    if (runs_on(read_architecture(at, strcspn(at, ",")), capability, machine_alone)) return true;
  }
  return false;
}

uint32_t card_products_of(uint32_t capability, const char *name) {
  static const struct {
    uint32_t capability, products;
    bool halved;
  } known[] = {{80, 1024, false},  {86, 512, true},  {89, 512, true},  {90, 2048, false},
               {100, 4096, false}, {120, 512, true}, {121, 512, false}};
  for (uint32_t i = 0; i < sizeof known / sizeof *known; i++) {
    if (known[i].capability != capability) continue;
    return known[i].halved && strstr(name, "GeForce") != NULL ? known[i].products / 2 : known[i].products;
  }
  return 0;
}

bool card_has_code(const char *architectures, uint32_t capability) {
  return find_code(architectures, capability, false);
}

bool card_has_machine_code(const char *architectures, uint32_t capability) {
  return find_code(architectures, capability, true);
}

bool card_set_has_op(const char *ops, const char *op) {
  size_t n = strlen(op);
  for (const char *at = ops; (at = strstr(at, op)) != NULL; at += n)
    if (at > ops && at[-1] == ' ' && (at[n] == ' ' || at[n] == 0)) return true;
  return false;
}

/* All sets as "hopper (sm_90), ..". */
static void name_sets(const card_set *sets, uint32_t n_sets, char *out, size_t n) {
  size_t at = 0;
  out[0] = 0;
  for (uint32_t i = 0; i < n_sets && at < n; i++) {
    int more = snprintf(out + at, n - at, "%s%s (%s)", i == 0 ? "" : ", ", sets[i].name, sets[i].cards);
    if (more < 0) return;
    at += (size_t)more;
  }
}

/* What a user builds to get code for a card: wgmma needs the architecture with its 'a'. */
static const char *suffix_of(uint32_t capability) {
  return capability == 90 ? "a-real" : "-real";
}

/* Refuses a card that some set fits, if it is the one that was asked for. */
static weft_status refuse_module(const card_wish *wish, const card_set *fitting, weft_error *error) {
  if (strcmp(fitting->module, wish->module) == 0)
    return weft_fail(error, WEFT_E_UNSUPPORTED,
                     "backend 'cuda': %.64s was built for the architectures %.64s, which have no code for %.95s "
                     "(sm_%u): build it with -DWEFT_CUDA_ARCHITECTURES=%u%s, or use --backend cpu",
                     wish->module, wish->architectures, wish->card, wish->capability, wish->capability,
                     suffix_of(wish->capability));
  return weft_fail(error, WEFT_E_UNSUPPORTED,
                   "backend 'cuda': kernel set '%.32s', for %.95s (sm_%u), is in %.64s, which is not there: build it "
                   "with -DWEFT_CUDA_ARCHITECTURES=%u%s, or use --backend cpu",
                   fitting->name, wish->card, wish->capability, fitting->module, wish->capability,
                   suffix_of(wish->capability));
}

static bool is_named(const char *wish, const card_set *set) {
  size_t n = strlen(set->name);
  return strncmp(wish, set->name, n) == 0 && (wish[n] == 0 || (wish[n] == '@' && set->has_families));
}

weft_status card_choose_set(const card_wish *wish, const card_set *sets, uint32_t n_sets, uint32_t *out,
                            weft_error *error) {
  char names[160];
  name_sets(sets, n_sets, names, sizeof names);
  bool is_known = wish->set == NULL;
  const card_set *fitting = NULL; /* of the module, if there is one there */
  for (uint32_t i = 0; i < n_sets; i++) {
    if (wish->set != NULL && !is_named(wish->set, &sets[i])) continue;
    is_known = true;
    if (!sets[i].fits(wish->capability)) continue;
    bool is_own = strcmp(sets[i].module, wish->module) == 0;
    if (fitting == NULL || is_own) fitting = &sets[i];
    if (!is_own || !card_has_code(wish->architectures, wish->capability)) continue;
    *out = i;
    return WEFT_OK;
  }
  if (!is_known)
    return weft_fail(error, WEFT_E_UNSUPPORTED, "backend 'cuda': kernel set '%.32s' is unknown; there is %s", wish->set,
                     names);
  if (fitting != NULL) return refuse_module(wish, fitting, error);
  return weft_fail(error, WEFT_E_UNSUPPORTED,
                   "backend 'cuda': %s%.32s%s for %.95s (sm_%u); there is %s: use --backend cpu",
                   wish->set != NULL ? "kernel set '" : "there are no kernels", wish->set != NULL ? wish->set : "",
                   wish->set != NULL ? "' is not" : "", wish->card, wish->capability, names);
}

weft_status card_check_driver(const char *module, uint32_t driver, uint32_t toolkit, bool has_machine_code,
                              weft_error *error) {
  if (driver >= toolkit || (has_machine_code && driver / 1000 == toolkit / 1000)) return WEFT_OK;
  uint32_t major = toolkit / 1000, minor = has_machine_code ? 0 : toolkit % 1000 / 10;
  return weft_fail(error, WEFT_E_UNSUPPORTED,
                   "backend 'cuda': the NVIDIA driver is of CUDA %u.%u, and %.64s needs one of CUDA %u.%u or later%s: "
                   "update the driver, build with the toolkit of CUDA %u.%u, or use --backend cpu",
                   driver / 1000, driver % 1000 / 10, module, major, minor,
                   has_machine_code ? "" : ", since it has to compile PTX for this card", driver / 1000,
                   driver % 1000 / 10);
}
