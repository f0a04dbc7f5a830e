/* SPDX-License-Identifier: MIT */
/* How the program and a module of CUDA code meet: three functions, and terms that both must agree on: the version, and
 * the size of every struct that one side fills and the other one reads. There is a module for each kernel set
 * (kernels/card_sets.h): libweft-cuda.so and libweft-cuda-portable.so.
 *
 * Law: a module exports weft_cuda_module_open, weft_cuda_module_fits and weft_cuda_module_describe and nothing else.
 * The program passes the terms that it was built with, and a module of another build refuses them. The list of argument
 * structs is made from WEFT_OPS, so a new op is in it. */
#ifndef WEFT_KERNELS_CUDA_MODULE_H
#define WEFT_KERNELS_CUDA_MODULE_H

#include <string.h>

#include "kernels/device_internal.h"
#include "kernels/host_experts.h"
#include "kernels/shards_exchange.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Structs that both sides know and no op's arguments hold by value. */
/* clang-format off */
#define WEFT_MODULE_STRUCTS(X)                                                                                 \
  X(weft_device_config) X(weft_device_info) X(weft_device) X(weft_kernels) X(device_calls) X(step_graphs)      \
  X(step_graphs_calls) X(weft_weight) X(weft_weight_source) X(weft_attention_segment) X(weft_sample_row)       \
  X(weft_sample_result) X(weft_experts_report) X(shards_exchange) X(weft_error)
/* clang-format on */

typedef struct weft_cuda_module_terms {
  char version[32];
#define X(op) uint32_t op##_args_bytes;
  WEFT_OPS(X)
#undef X
#define X(name) uint32_t name##_bytes;
  WEFT_MODULE_STRUCTS(X)
#undef X
} weft_cuda_module_terms;

static inline weft_cuda_module_terms weft_cuda_module_our_terms(void) {
  weft_cuda_module_terms terms;
  memset(&terms, 0, sizeof terms);
  strncpy(terms.version, WEFT_VERSION, sizeof terms.version - 1);
#define X(op) terms.op##_args_bytes = (uint32_t)sizeof(weft_##op##_args);
  WEFT_OPS(X)
#undef X
#define X(name) terms.name##_bytes = (uint32_t)sizeof(name);
  WEFT_MODULE_STRUCTS(X)
#undef X
  return terms;
}

/* What two builds do not agree on: "the version" or the name of a struct; NULL: they agree. */
static inline const char *weft_cuda_module_compare(const weft_cuda_module_terms *a, const weft_cuda_module_terms *b) {
  if (strncmp(a->version, b->version, sizeof a->version) != 0) return "the version";
#define X(op) \
  if (a->op##_args_bytes != b->op##_args_bytes) return "weft_" #op "_args";
  WEFT_OPS(X)
#undef X
#define X(name) \
  if (a->name##_bytes != b->name##_bytes) return #name;
  WEFT_MODULE_STRUCTS(X)
#undef X
  return NULL;
}

typedef weft_status (*weft_cuda_module_open_fn)(const weft_cuda_module_terms *terms, const weft_device_config *config,
                                                weft_device **out, weft_error *error);
/* Whether the module's kernel set is for a card and, with isa, is the one of that name. True as well where the card
 * cannot be asked, so that opening it says why. Makes no context on the card. */
typedef bool (*weft_cuda_module_fits_fn)(uint32_t index, const char *isa);
/* Writes a line about the module's kernel sets. Needs no card and no driver. */
typedef void (*weft_cuda_module_describe_fn)(char *out, size_t n);

/* The program's side: opens a card by the modules that lie in a folder, which ends in a slash, or below it. */
weft_status cuda_module_open_from(const char *folder, const weft_device_config *config, weft_device **out,
                                  weft_error *error);

#ifdef __cplusplus
}
#endif
#endif
