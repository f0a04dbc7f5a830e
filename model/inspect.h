/* SPDX-License-Identifier: MIT */
/* What a GGUF file holds, what it would cost to serve, and whether weft serves it.
 *
 * Law: no weight is loaded. Every GGUF file is described, whatever its architecture, types and keys are; the last line
 * says whether it would be served, by the same checks that opening makes, and if not why not. Text of the file is shown
 * with escapes, long values are cut, and their length is printed. */
#ifndef WEFT_MODEL_INSPECT_H
#define WEFT_MODEL_INSPECT_H

#include "base/text.h"
#include "model/gguf/gguf.h"
#include "model/kv_layout.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Appends lines for a person, or one JSON object. Errors: NO_MEMORY. */
weft_status weft_inspect(const weft_gguf *gguf, bool json, weft_text *out, weft_error *error);

/* What is known of a file without its weights, for those who plan. Where keys is not OK, only weight_bytes and the
 * verdicts are known. */
/* What weights take beyond their bytes in the file, where they are kept in another form (docs/kernels.md). */
typedef struct weft_more_bytes {
  uint64_t experts, others;
} weft_more_bytes;

typedef struct weft_file_facts {
  char arch[32], name[128];
  weft_status serves; /* what opening it for a server would give; its line is refusal */
  weft_error refusal;
  weft_status chat; /* whether its chat template can be rendered; its line is chat_line */
  weft_error chat_line;
  weft_status keys;
  uint32_t n_layers, n_hidden, n_vocab, n_experts, n_experts_used, context_length;
  uint32_t canvas_length;   /* 0: it has no canvas pass */
  uint32_t canvas_steps;    /* most denoise steps of a canvas */
  uint64_t weight_bytes;    /* of all tensors but those of layers that are not computed */
  uint64_t expert_bytes;    /* of these, tensors of routed experts */
  uint64_t canvas_bytes;    /* of these, tensors that only the pass of canvases reads */
  uint64_t embedding_bytes; /* of these, tables that a token reads one row of, and no product reads */
  uint64_t table_bytes;     /* of these, what a card leaves in host memory (WEFT_USE_TABLE) */
  weft_more_bytes on_host, on_card;
  uint64_t
      between_bytes; /* that stay empty between weights on a card, or are steps of products of 8 bits beside them */
  uint64_t n_expert_weights, n_other_weights; /* numbers in products: of routed experts, of all but these two kinds */
  weft_kv_geometry geometry;
  weft_kv_layout layout; /* of one device */
} weft_file_facts;

/* The caller frees *out with weft_free. Errors: NO_MEMORY. */
weft_status weft_inspect_facts(const weft_gguf *gguf, weft_file_facts **out, weft_error *error);

#ifdef __cplusplus
}
#endif
#endif
