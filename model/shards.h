/* SPDX-License-Identifier: MIT */
/* A model that lies in shards on several devices: all devices of a part compute each of its layers, each with its
 * share of the heads and of the experts, or of the feed-forward columns of a layer without experts
 * (model/weights_slice.h).
 *
 * Law: a product has all of its inputs on the shard that computes it, so its numbers are those of one device; what
 * it reads that another shard made is exchanged before (kernels/shards.h, model/layers.h). Only what experts make is
 * added over shards, by pairs, and op experts adds them so on one device too (kernels/experts.h); each shard has the
 * experts below one of these sums. So any number of shards gives the bits of one device.
 *
 * Each shard is a weft_model of its own, with weights, scratch and step arrays on its device of each part, and runs
 * the same code of layers, part after part. Shard 0 is the model that callers know, and the caller's thread computes
 * it; every other shard has a thread. Exchanges are between the devices of one part, and each part has its own. A
 * step that comes again is a graph on every shard of a part, or on none (kernels/graphs.h). A shard that fails
 * breaks the exchanges of all parts, so all others end with an error, the step that was being computed has no
 * results, and the model computes no further one.
 *
 * What stands for tokens. Only shard 0 embeds: it gives its input of layer 0 to the others as a sum to which they
 * add nothing. The head is on shard 0 of the last part; where an exchange there is one call, every other shard of
 * that part has the rows of its tokens, and of a model with canvases all rows (model/runner/runner_share.h). With
 * token_ranges of the limits, where exchanges of the first and of the last part are one call and the model has no
 * canvases, shard 0 too has the rows of its own tokens alone, of the head as of the embedding: then all shards of
 * the first part meet, look up the tokens that they have, and add zeros for all others. So no device holds more of
 * these matrices than another. */
#ifndef WEFT_MODEL_SHARDS_H
#define WEFT_MODEL_SHARDS_H

#include "model/model_internal.h"

typedef struct model_shards model_shards;

/* What the caller of weft_model_open gave. */
typedef struct model_opening {
  const weft_gguf *gguf;
  const weft_split *split;
  const weft_model_limits *limits;
  weft_model_progress progress;
  void *progress_self;
  weft_error *error;
} model_opening;

/* Opens one shard (model.c). */
weft_status model_open_shard(const model_opening *opening, uint32_t shard, weft_model **out);
/* Opens the shards behind shard 0, and starts their threads. Does nothing for a model that does not lie in shards. */
weft_status model_shards_open(weft_model *model, const model_opening *opening);
void model_shards_close(weft_model *model);
/* Which of the matrices of tokens the model's own shard will have. */
void model_shards_share_tokens(weft_model *model, const weft_split *split);
/* The output matrix of a shard behind shard 0, or with a model without canvases the rows of its tokens; NULL: it has
 * none, as where exchanges are not one call. */
const weft_weight *model_shards_head(const weft_model *model, uint32_t shard);
/* The first of the tokens whose logits a shard makes, where the vocabulary is shared out; of shard n_shards: their
 * number. */
static inline uint32_t model_first_token(const weft_model *model, uint32_t shard) {
  return weft_head_first(model->hyper.n_vocab, model->n_shards, shard);
}
/* Whether the model's own shard looks rows of the embedding up. */
static inline bool model_shards_embeds(const weft_model *model) {
  bool has_some = model_first_token(model, model->shard) < model_first_token(model, model->shard + 1);
  return model->shard == 0 || (model->token_ranges && has_some);
}
/* Rows that the shards behind shard 0 sent at the cuts, in bytes. shards may be NULL. */
uint64_t model_shards_crossed(const model_shards *shards);
/* Of all parts; of a model that does not lie in shards: never broken, and steps may be graphs. From any thread. */
bool model_shards_broken(const weft_model *model);
bool model_shards_in_graphs(const weft_model *model);
/* Whether the shards of the last part exchange in one call. */
bool model_shards_end_direct(const weft_model *model);
/* By which the devices of a part agree on a graph of its step; NULL: it has one device. */
const weft_graph_vote *model_shards_vote(const model_part *part);
/* Has the other shards enqueue a step beside the caller, until join, which returns the status of the whole step:
 * status is that of shard 0, which has enqueued the same layers by then. What args point to must stay as it is.
 * shards may be NULL. */
void model_shards_start(model_shards *shards, const weft_forward_args *args);
/* The same of what args.share names alone, once more after the step, with hidden NULL: where they lay then. */
void model_shards_start_share(model_shards *shards, const weft_forward_args *args);
weft_status model_shards_join(model_shards *shards, weft_status status);

#endif
