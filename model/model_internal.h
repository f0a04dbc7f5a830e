/* SPDX-License-Identifier: MIT */
/* What the files of a model share (model.c, models.c, weights.c, layers.c and one file per architecture); private to
 * them, to the device runner and to their tests.
 *
 * Law: model_hyper is what the keys of the file say, checked; model_layer and model_globals are what the file's tensors
 * became; model_scratch points into the memory that scratch_plan laid out. All are written at open, and a forward pass
 * only reads them. A layer's tensors, and all memory that its ops read or write, lie on the device of its part. The
 * first part has what makes the input of layer 0, the last part what comes after the last layer. A shard of a model
 * that lies in shards is a weft_model of its own (model/shards.h) with a device in each part; its n_heads and
 * n_kv_heads are its own. */
#ifndef WEFT_MODEL_MODEL_INTERNAL_H
#define WEFT_MODEL_MODEL_INTERNAL_H

#include "kernels/ops.h"
#include "kernels/shards.h"
#include "model/blocks.h"
#include "model/choice.h"
#include "model/latent.h"
#include "model/mla.h"
#include "model/model.h"
#include "model/scratch_plan.h"
#include "model/step_arrays.h"

typedef enum rope_scaling_kind { ROPE_PLAIN = 0, ROPE_LINEAR = 1, ROPE_YARN = 2 } rope_scaling_kind;

/* How the rotation of a model that was trained on a shorter context is stretched (model/rope.h). */
typedef struct rope_scaling {
  rope_scaling_kind kind;
  float factor, attention, fast, slow;
  uint32_t context;   /* the context that the model was trained on */
  bool between_pairs; /* the blend begins and ends between two pairs, and not at a whole one */
  float shorter;      /* of yarn: by how many ln(factor) / 10 queries and keys are not made longer */
} rope_scaling;

/* Layers with the gated delta rule in place of attention (kernels/delta.h). */
typedef struct model_delta {
  uint32_t n_k_heads, n_v_heads, dim; /* n_v_heads 0: there are none */
  bool layer[WEFT_LAYERS_MAX];        /* which ones */
} model_delta;
enum { MODEL_DELTA_EVERY = 64 /* positions between two borders */ };

/* Sizes of a model, from the keys. Every field was checked against a bound. */
typedef struct model_hyper {
  char arch[32]; /* as in the file; the prefix of its keys */
  bool diffusion;
  uint32_t n_layers, n_hidden, n_vocab, n_heads, context_length, canvas_length;
  uint32_t n_layers_left_out; /* behind the others, in the file: they guess tokens ahead and are not computed */
  uint32_t first_in_file; /* the number that layer 0 has in the file; above 0 of a layer that was left out (nextn.h) */
  uint32_t n_experts, n_experts_used, n_expert_ff; /* 0: no layer routes */
  model_choice choice;
  uint32_t n_ff[WEFT_LAYERS_MAX];
  uint32_t n_kv_heads[WEFT_LAYERS_MAX];
  uint32_t n_kv_shares[WEFT_LAYERS_MAX]; /* how many shards have key heads that differ; 1 where there is one shard */
  uint32_t head_dim[WEFT_LAYERS_MAX];
  uint32_t window[WEFT_LAYERS_MAX];  /* 0: sees all */
  uint32_t keys_of[WEFT_LAYERS_MAX]; /* 0: keys of its own; else 1 + the earlier layer whose keys it reads */
  bool moe[WEFT_LAYERS_MAX];
  bool v_norm;      /* values are normed per head */
  bool rope_paired; /* rows 2 i and 2 i + 1 of a head in the file rotate together */
  weft_activation activation;
  uint32_t n_per_layer; /* width of the embeddings per layer; 0: none */
  uint32_t n_target;    /* of a drafter: n_hidden of the model whose keys it reads; 0: it is a model */
  float eps, cap, embed_scale, attention_scale, rope_base, rope_base_window;
  uint32_t n_rotated; /* elements of a head that rotate, the first ones in the file; 0: all */
  model_delta delta;
  model_mla mla;
  model_latent latent;
  model_block block;
  model_draft_sizes draft;
  rope_scaling rope_scaling;
  weft_entropy_bound entropy_bound;
} model_hyper;

/* The tensors of a layer of a model with latent rows, but for those that other layers have as well. */
typedef struct model_latent_layer {
  weft_weight q_a, q_b, kv;
  weft_weight far_values, far_scores, index_values, index_scores; /* what far and index rows are made of */
  weft_weight index_q, index_weights;
  weft_weight index_k; /* of index rows that are made of far ones */
  weft_weight out_a[MODEL_LATENT_GROUPS_MAX];
  const float *q_a_norm, *kv_norm, *far_ape, *far_norm, *index_ape, *index_norm;
  weft_weight attn_mixes, ffn_mixes; /* of the stream, before attention and before experts */
  const float *attn_base, *attn_scale, *ffn_base, *ffn_scale;
  float limit, shared_limit; /* of what experts gate, and the MLP beside them */
  const int32_t *experts_of; /* [n_vocab][n_experts_used] */
  /* Of the memory, in layers that read it: its table, what keys and values are made by, and constants of its op. */
  weft_weight engram_table, engram_kv;
  const float *engram_weight;
  const uint64_t *engram_multiplier;
  const uint32_t *engram_prime, *engram_offset;
  const int32_t *engram_map;
} model_latent_layer;

typedef struct model_layer {
  weft_weight q, k, v, o;                         /* v.data == NULL: values are the raw keys */
  const float *q_bias, *k_bias, *v_bias, *o_bias; /* NULL: none */
  weft_weight gate, up, down;
  const float *sinks; /* [n_heads]; NULL: none */
  weft_weight router, gate_up_exps, gate_exps, up_exps, down_exps;
  const float *router_bias, *choice_bias;                      /* NULL: none; choice_bias, [n_experts], is of assign */
  const float *gate_exps_bias, *up_exps_bias, *down_exps_bias; /* [experts of the shard][outputs]; NULL: none */
  const float *attn_norm, *q_norm, *k_norm, *post_attn_norm;
  const float *ffn_norm, *post_ffw_norm;
  const float *post_ffw_norm_1, *pre_ffw_norm_2, *post_ffw_norm_2; /* only with experts */
  const float *router_scale;                                       /* the file's times n_hidden^-1/2 */
  const float *expert_scale;                                       /* NULL: ones */
  weft_weight inp_gate, proj;                                      /* of the embeddings per layer */
  const float *post_norm, *k_b, *v_b; /* k_b, v_b: [n_heads, rank, n_still], [n_heads, n_value, rank] (mla.h) */
  float scale, encoder_scale;
  weft_weight out_gate;                            /* its sigmoid multiplies attention's result; data NULL: none */
  weft_weight shared_gate;                         /* [1, n_hidden]: its sigmoid multiplies the shared MLP's result */
  weft_weight alpha, beta;                         /* with the delta rule, where q makes what is convolved */
  const float *conv, *decay, *decay_bias, *o_norm; /* of the delta rule */
  model_latent_layer latent;
  const float *row_scale; /* [rows_max] of the encoder pass, then [canvas_rows_max] of the decoder pass */
} model_layer;

typedef struct model_globals {
  weft_weight token_embd, output; /* output.data == NULL: tied */
  weft_weight tied_output;        /* the last device's own copy of a tied token embedding; data NULL: none is needed */
  weft_weight per_layer_token_embd, per_layer_model_proj;
  weft_weight pre_projection, post_projection; /* of a drafter: into its residual stream, and back out of it */
  const float *token_norm, *hidden_norm;       /* of a layer that guesses ahead: of what pre_projection reads */
  const float *per_layer_proj_norm;            /* the file's times 2^-1/2 */
  const float *output_norm, *self_cond_norm, *own_share; /* own_share: [n_vocab] 1 where token_embd has a row, else 0 */
  const int32_t *own_row; /* [n_vocab] which row that is; both NULL unless shards have ranges of tokens */
  weft_weight self_cond_gate, self_cond_up, self_cond_down;
  weft_weight out_mixes; /* of the stream, after the last layer */
  const float *out_base, *out_scale;
  model_draft_head draft;
} model_globals;

typedef struct model_scratch {
  float *x, *h;                  /* [rows, n_hidden] residual stream; normed input */
  float *t, *y, *r;              /* [rows, n_hidden] branch outputs; input of the experts */
  float *q, *a;                  /* [rows, heads * head_dim] */
  float *all_a;                  /* [rows, heads of all shards * head_dim]; of no size where there is one shard */
  float *k, *v;                  /* [rows, kv heads * head_dim] */
  void *own_k, *own_v;           /* [canvas rows, kv heads * head_dim] in the KV type */
  float *g, *u;                  /* [rows, n_ff] */
  float *logits;                 /* [rows, n_experts] of the router */
  float *per_layer;              /* [rows, layers * n_per_layer] embeddings per layer */
  float *per_layer_projected;    /* of the same shape */
  float *per_layer_last, *gated; /* [rows, n_per_layer]; the former of the last layer's rows */
  float *z;                      /* [rows, heads * head_dim] gates of what attention or the delta rule makes */
  float *alpha, *beta;           /* [rows, value heads of the delta rule] */
  float *shared_gate;            /* [rows] */
  float *mixes, *shares;         /* [rows, mixes of the stream], [rows, shares of its parts] */
  float *low_q;                  /* [rows, q_rank] */
  float *far_values, *far_scores, *index_values, *index_scores; /* [rows, widths of pending rows] */
  float *index_q, *index_weights; /* [rows, heads of the index * its width], [rows, its heads] */
  int32_t *chosen, *blocks;       /* [rows, top_k], [rows, n_blocks]: the layers that read another's see them too */
  int32_t *engram_ids;            /* [rows, rows of a table that each reads] */
  float *out_low;                 /* [rows, n_groups * out_rank] */
  int32_t *ids;                   /* [layers of the part][rows, n_experts_used] (layers_ids_of) */
  float *weights;
  void *work; /* scratch that ops ask for */
  uint64_t work_bytes;
} model_scratch;

enum { MODEL_INBOXES = 2 };

/* The marks that are set on a device of a model (kernels/device.h). Runners of several models on one device use the
 * same marks. If another runner sets a mark again while one is waiting for it, the wait lasts until the newer work is
 * done, which is longer than needed and does no harm: the older work was enqueued before. */
enum {
  MARK_FLIGHT = 0,                                /* the flights of a runner (runner_internal.h) */
  MARK_HELD = MARK_FLIGHT + WEFT_DEVICES_MAX + 2, /* what is found of a held canvas and of the next */
  MARK_SENT = MARK_HELD + 2,                      /* rows are in an inbox of the next part */
  MARK_TAKEN = MARK_SENT + 1,                     /* an inbox of this part is empty again */
  MARK_SHARDS = MARK_TAKEN + MODEL_INBOXES,       /* of exchanges between shards */
  MARK_LEFT = MARK_SHARDS + WEFT_SHARDS_MARKS     /* all that was enqueued for a model that left (guest_runner.h) */
};
_Static_assert((int)MARK_LEFT < (int)WEFT_MARKS_MAX, "a device has a mark for each");

/* The layers of a model that lie on one device, and what a step needs there. */
typedef struct model_part {
  weft_device *device;
  uint32_t first_layer, end_layer;
  const float *inv_freq, *inv_freq_window; /* [head_dim / 2] of layers without and with a window */
  void **owned;                            /* device memory of vectors, freed at close */
  weft_weight *weights;                    /* every matrix that was placed, freed at close */
  uint32_t n_owned, n_weights, owned_max;
  scratch_plan plan;
  void *scratch_base;
  model_scratch scratch;
  weft_attention_segment *segments;     /* [segments_max] */
  weft_delta_segment *delta_segments;   /* [segments_max]; NULL, as delta_writes, where no layer has the delta rule */
  weft_delta_write *delta_writes;       /* [rows_max / MODEL_DELTA_EVERY + segments_max] */
  weft_latent_segment *latent_segments; /* [segments_max]; NULL where no layer has latent rows */
  step_arrays arrays;
  float *inbox[MODEL_INBOXES]; /* rows from the part before; of the first part empty */
  weft_shards *exchanges;      /* of the part's shards; NULL: there is one. Shard 0 owns it */
} model_part;

struct model_arch;

struct weft_model {
  const struct model_arch *arch;
  weft_model_info info;
  weft_model_limits limits;
  model_hyper hyper;
  model_globals globals;
  model_layer *layers;                 /* [n_layers] */
  uint16_t first_set[WEFT_LAYERS_MAX]; /* of each layer, in info.kv: its rows; with the delta rule then states, with
                                        * latent rows then those of the other sets that it has (kernels/latent.h) */
  uint32_t n_parts;
  model_part part[WEFT_DEVICES_MAX]; /* in the order of their layers, which are all layers */
  weft_split split;                  /* as it was given */
  uint64_t n_passes;                 /* with rows */
  weft_crossed crossed;              /* read by any thread */
  uint32_t n_shards, shard;          /* 1 and 0 of a model that does not lie in shards */
  model_features features;
  struct weft_model *target;   /* of a drafter: whose keys it reads; NULL: it is a model */
  bool has_head, token_ranges; /* of a shard: it has the output matrix; shards have ranges of tokens (shards.h) */
  struct model_shards *others; /* of shard 0: the other shards and their threads (model/shards.h) */
};

/* Floats of a row of the residual stream: what goes from layer to layer, from part to part and between shards. */
static inline uint64_t model_row_width(const weft_model *model) {
  const model_latent *latent = &model->hyper.latent;
  uint32_t n_streams = latent->n_streams;
  return (uint64_t)model->hyper.n_hidden * (n_streams == 0 ? 1 : n_streams) + (latent->carries ? n_streams : 0);
}

/* The part that has a layer. */
static inline uint32_t model_part_of(const weft_model *model, uint32_t layer) {
  uint32_t p = 0;
  while (layer >= model->part[p].end_layer) p++;
  return p;
}

static inline model_part *model_last_part(weft_model *model) {
  return &model->part[model->n_parts - 1];
}

/* The place of a part's device in the split, and in what callers are told (weft_model_info). */
static inline uint32_t model_place_of(const weft_model *model, const model_part *part) {
  return weft_split_place(&model->split, (uint32_t)(part - model->part), model->shard);
}

/* For messages: " on device 2", or nothing where the model has one device. */
const char *model_where(const weft_model *model, const model_part *part, char out[48]);

/* The bounds of a batch of this model for a runner of n_slots slots. */
weft_batch_bounds model_bounds(const weft_model *model, const weft_kv_layout *layout, uint32_t n_slots);

/* One forward pass in progress. In the last layer only rows whose output is wanted go on after
 * attention: x, h and a then hold these rows alone, in the order wanted. */
typedef struct model_step {
  weft_model *model;
  model_part *part; /* whose layers are computed now */
  weft_forward_args *args;
  uint32_t n_rows, n_encoder; /* of the rows still computed */
  bool owns_part;             /* the rows are shared out among shards: all but heads and experts is computed by rows */
  uint32_t own_first, n_own;  /* the rows that this shard computes; without owns_part all rows */
  float *x;                   /* the residual stream of the n_rows rows; with owns_part only own rows are valid */
  float *h;                   /* a second buffer of that shape */
  bool h_is_part;             /* in h, too, only own rows are valid */
  weft_rows_form h_form;      /* how the input of a layer lies in h */
  float *a;                   /* attention's output of the n_rows rows */
  const float *o_x;           /* where the product `o` reads it: a, or h where attention left it prepared there */
  weft_rows_form o_form;      /* how it lies at o_x */
  const uint32_t *kept;       /* row i of the step is row kept[i] of the batch; NULL: every row is still computed */
  uint32_t inbox;             /* the inbox of each part that the step goes through */
} model_step;

/* The first of the experts of a shard; of shard n_shards: their number. A shard has those of all leaves below one sum
 * over a row's experts (kernels/experts.h), and exchanges add what shards make as that sum goes on. */
static inline uint32_t model_first_expert(const weft_model *model, uint32_t shard) {
  uint64_t leaf = weft_shards_half(model->n_shards, shard, WEFT_EXPERTS_LEAVES);
  return (uint32_t)(model->hyper.n_experts * leaf / WEFT_EXPERTS_LEAVES);
}

/* weft_model_forward of a batch with rows that weft_batch_is_sound found sound, in pieces: begin, then for each part in
 * order enter, compute layers [first, end) until all are, leave. Only compute may be in a graph, and enqueued twice.
 *
 * Law: a part enters when rows are in its inbox, which follows the part before (MARK_SENT); it takes them out at once
 * (MARK_TAKEN). Before a part sends to an inbox, it follows the last emptying of that inbox. So the first part computes
 * the next step while the last one still computes this one, and no row is overwritten before it is read. What the last
 * part computes for a step comes after all that the first one did. Of a model in shards each shard goes this way by
 * itself: it sends the rows that it has, all or those that it owns, to its own device of the next part. */
void model_begin(weft_model *model, weft_forward_args *args, model_step *step);
weft_status model_enter(model_step *step, uint32_t part);
weft_status model_compute(model_step *step, uint32_t first, uint32_t end);
weft_status model_leave(model_step *step);

/* Sends bytes from one device to another, or copies them where it is one, and counts them in *crossed. */
weft_status model_send(weft_device *from, weft_device *to, void *to_memory, const void *from_memory, uint64_t n_bytes,
                       uint64_t *crossed);

#endif
