/* SPDX-License-Identifier: MIT */
/* Keys that several architectures read the same way: sizes, heads, feed-forward widths, experts.
 *
 * Law: a size is checked against a bound before it bounds a loop or an allocation. A key that has a list has one number
 * for every layer; a single number counts for all layers. */
#ifndef WEFT_MODEL_HYPER_H
#define WEFT_MODEL_HYPER_H

#include "model/gguf/keys.h"
#include "model/model_internal.h"

enum { HYPER_HEAD_DIM_MAX = 1024 };

/* block_count, context_length, embedding_length and the eps of norms. */
weft_status hyper_read_sizes(const model_keys *keys, model_hyper *hyper);
/* FORMAT when the key is a list whose length is not the number of layers. */
weft_status hyper_check_per_layer(const model_keys *keys, const model_hyper *hyper, const char *name);
/* UNSUPPORTED when the key is there and not 0; `what` completes "... are not supported". */
weft_status hyper_refuse_if_set(const model_keys *keys, const char *name, const char *what);
/* The same for the first of several keys that is set; names: a key and `what` of each. */
weft_status hyper_refuse_each(const model_keys *keys, const char *const (*names)[2], uint32_t n);
/* A head size is a multiple of 8 up to HYPER_HEAD_DIM_MAX, and other keys must not say another. */
weft_status hyper_check_head_dim(const model_keys *keys, const char *name, uint32_t head_dim);
weft_status hyper_check_same(const model_keys *keys, const char *name, uint32_t wanted);
/* head_count, and head_count_kv of each layer; without that key every head has keys of its own, if it is optional. */
weft_status hyper_read_heads(const model_keys *keys, model_hyper *hyper, bool kv_is_optional);
/* key_length, the same for all layers and for keys, values and rotation; where it is missing heads share the width. */
weft_status hyper_read_head_dim(const model_keys *keys, model_hyper *hyper);
/* key_length for keys and values, which is required, and how many elements of a head rotate. */
weft_status hyper_read_rotated(const model_keys *keys, model_hyper *hyper);
/* nextn_predict_layers: layers behind the others, which are not computed. From here on there are fewer. */
weft_status hyper_leave_out_nextn(const model_keys *keys, model_hyper *hyper);
/* sliding_window of the layers that sliding_window_pattern says: a list, or a period p, of which each p-th layer sees
 * all. period_or: where the key is missing (0: the key is required). */
weft_status hyper_read_windows(const model_keys *keys, model_hyper *hyper, uint32_t period_or);
/* The keys of experts. width_or is the width of an expert where the key is missing (0: the key is required). A layer
 * with a router tensor has experts; FORMAT when a file has experts and no router. */
weft_status hyper_read_experts(const model_keys *keys, model_hyper *hyper, uint32_t width_or);
/* Where experts stand beside an MLP that every row takes (n_ff of a layer with experts becomes its width), the first
 * layers have none, and experts are chosen by scores of their own: how many, and how they are chosen. scores_or: where
 * the key says nothing. After hyper_read_experts, hyper_read_ff, and what leaves layers out. */
weft_status hyper_read_shared_experts(const model_keys *keys, model_hyper *hyper);
weft_status hyper_read_choice(const model_keys *keys, model_hyper *hyper, weft_expert_scores scores_or);
/* feed_forward_length of each layer. */
weft_status hyper_read_ff(const model_keys *keys, model_hyper *hyper);

#endif
