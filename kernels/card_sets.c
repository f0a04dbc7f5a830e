/* SPDX-License-Identifier: MIT */
#include "kernels/card_sets.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One architecture of a list, as "90a-real". */
typedef struct architecture {
  uint32_t capability;
  char kind;     /* 'a': this capability alone; 'f': the same family; 0 */
  bool ptx;      /* and not machine code alone */
  bool is_known; /* it could be read */
} architecture;

static architecture read_architecture(const char *text, size_t n) {
  architecture a = {.ptx = true};
  size_t i = 0;
  for (; i < n && text[i] >= '0' && text[i] <= '9'; i++) a.capability = 10 * a.capability + (uint32_t)(text[i] - '0');
  a.is_known = i >= 2 && i <= 3;
  if (i < n && (text[i] == 'a' || text[i] == 'f')) a.kind = text[i++];
  if (n - i == 5 && strncmp(text + i, "-real", 5) == 0)
    a.ptx = false;
  else if (n != i && (n - i != 8 || strncmp(text + i, "-virtual", 8) != 0))
    a.is_known = false;
  return a;
}

static bool runs_on(architecture a, uint32_t capability) {
  if (!a.is_known || capability < a.capability) return false;
  if (a.kind == 'a') return capability == a.capability;
  return capability / 10 == a.capability / 10 || (a.ptx && a.kind == 0);
}

bool card_has_code(const char *architectures, uint32_t capability) {
  for (const char *at = architectures; *at != 0; at += strcspn(at, ","), at += *at == ',') {
    if (runs_on(read_architecture(at, strcspn(at, ",")), capability)) return true;
  }
  return false;
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

weft_status card_choose_set(const card_wish *wish, const card_set *sets, uint32_t n_sets, uint32_t *out,
                            weft_error *error) {
  char names[160];
  name_sets(sets, n_sets, names, sizeof names);
  bool is_known = wish->set == NULL, fits = false;
  for (uint32_t i = 0; i < n_sets; i++) {
    if (wish->set != NULL && strcmp(wish->set, sets[i].name) != 0) continue;
    is_known = true;
    if (!sets[i].fits(wish->capability)) continue;
    fits = true;
    if (!card_has_code(wish->architectures, wish->capability)) continue;
    *out = i;
    return WEFT_OK;
  }
  if (!is_known)
    return weft_fail(error, WEFT_E_UNSUPPORTED, "backend 'cuda': kernel set '%.32s' is unknown; there is %s", wish->set,
                     names);
  if (fits)
    return weft_fail(
        error, WEFT_E_UNSUPPORTED,
        "backend 'cuda': libweft-cuda.so was built for the architectures %.64s, which have no code for %.95s "
        "(sm_%u): build it with -DWEFT_CUDA_ARCHITECTURES=%u%s-real, or use --backend cpu",
        wish->architectures, wish->card, wish->capability, wish->capability, wish->capability >= 90 ? "a" : "");
  return weft_fail(error, WEFT_E_UNSUPPORTED,
                   "backend 'cuda': %s%.32s%s for %.95s (sm_%u); libweft-cuda.so has %s: use --backend cpu",
                   wish->set != NULL ? "kernel set '" : "there are no kernels", wish->set != NULL ? wish->set : "",
                   wish->set != NULL ? "' is not" : "", wish->card, wish->capability, names);
}
