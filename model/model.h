/* SPDX-License-Identifier: MIT */
/* A model: weights on one device or several, and the forward pass of one step over these weights. A model keeps nothing between
 * steps; keys and values live in the KV store, everything else of a request in the slots of a runner.
 *
 * Law: a forward pass computes any mix of segments of model/batch.h at once; a row's result depends on its own request
 * only. All scratch memory is planned at open for the largest step. A forward pass allocates memory in one case only:
 * on a device with memory of its own, when the block tables of a step are longer than those of any step before
 * (step_arrays.h); never where limits say how long they get. Temperature, top_p, top_k and entropy_bound of
 * weft_model_info are the defaults of requests that leave these open (api/submission.c). */
#ifndef WEFT_MODEL_MODEL_H
#define WEFT_MODEL_MODEL_H

#include "kernels/device.h"
#include "model/batch.h"
#include "model/gguf/gguf.h"
#include "model/kv_layout.h"
#include "model/kv_store.h"
#include "model/shelf.h"
#include "model/split.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weft_model weft_model;

typedef struct weft_model_limits {
  uint32_t rows_max;        /* rows of one step */
  uint32_t canvas_rows_max; /* how many of these may be canvas rows */
  uint32_t segments_max;
  bool kv_8bit;        /* keys and values in 8 bits (kernels/kv_row.h), not in the type that suits the file */
  bool unused_tensors; /* open a file although some tensors of its layers are not used: answers may be wrong */
  bool token_ranges; /* nothing but a runner uses the head, so shards may have a range of the tokens each (shards.h) */
  const weft_shelf *shelf; /* where matrices are noted or found, of a model on one device; NULL: neither */
  /* Who takes memory for a model on one device, and for its runner, and places the weights: another opening of that
   * device, which has an order of its own, so that steps of other models go on there meanwhile; it outlives the model,
   * and whoever opens the model waits for it (weft_device_sync). NULL: the device itself. */
  weft_device *placer;
  uint64_t table_entries_max; /* of the block tables of one step, for which memory is taken at open; 0: it grows */
  /* The file is a drafter's that reads the keys of this model, which is open and outlives it (model/assistant.h); NULL:
   * it is a model. */
  struct weft_model *target;
  /* The layer of the file that guesses tokens ahead (model/nextn.h) drafts: without a target its keys have room in the
   * model's pages; with one, which is of the same file, that layer alone is opened. */
  bool nextn;
  const weft_gguf *block_drafter; /* the file of a drafter (model/dflash.h) whose keys have room in the model's pages */
} weft_model_limits;

/* What lies on one device: layers, or a shard of them. */
typedef struct weft_model_part_info {
  uint32_t first_layer, end_layer;
  uint32_t embed_first, embed_end, head_first, head_end; /* tokens of which it has rows of these matrices */
  uint64_t weight_bytes, scratch_bytes;
} weft_model_part_info;

typedef struct weft_model_info {
  char arch[32];  /* as in the file: "gemma4", "diffusion-gemma", ... */
  char name[128]; /* general.name, or the file's name without .gguf */
  uint32_t n_vocab, n_hidden, n_layers, n_experts, n_experts_used, context_length;
  uint32_t canvas_length;           /* 0: no canvas pass */
  weft_entropy_bound entropy_bound; /* the file's values, and weft_entropy_bound_default for those it lacks */
  float temperature, top_p;         /* general.sampling.* of the file; 1 where it has none */
  uint32_t top_k;                   /* of the same keys; 0, which is off, where the file has none */
  uint64_t fingerprint_low, fingerprint_high;
  uint64_t weight_bytes, scratch_bytes; /* on all devices; of the weights, those that lie on a shelf included */
  uint64_t read_bytes;                  /* of weights, read from the file */
  uint32_t n_parts;
  weft_model_part_info part[WEFT_DEVICES_MAX]; /* [n_parts], in the order of the split's devices */
  weft_type kv_type;
  weft_kv_geometry kv; /* what weft_kv_layout_choose needs to know */
} weft_model_info;

/* Opens a model and loads its weights onto the devices of the split, which is copied. The gguf must stay open until this
 * returns, the devices until the model is closed. Errors name the file and the tensor or key. All errors but those of reading come before any weight is read,
 * among them that the weights need more than the free memory of the host. progress (may be NULL) is called with the
 * bytes loaded and the bytes in all. */
typedef void (*weft_model_progress)(void *self, uint64_t done, uint64_t total);
weft_status weft_model_open(const weft_gguf *gguf, const weft_split *split, const weft_model_limits *limits,
                            weft_model_progress progress, void *progress_self, weft_model **out, weft_error *error);
/* The same of a model on one device, without its weights: weft_model_get_info gives what it would of the model that
 * opens, its bytes among it; no weight is read and no memory of the device taken. It computes nothing. */
weft_status weft_model_plan(const weft_gguf *gguf, const weft_split *split, const weft_model_limits *limits,
                            weft_model **out, weft_error *error);
/* Whether the file is of a drafter that reads its target's keys (model/assistant.h), or fills blocks (model/dflash.h);
 * and whether it is of the latter. */
bool weft_model_is_assistant(const weft_gguf *gguf);
bool weft_model_fills_blocks(const weft_gguf *gguf);
/* The status that weft_model_open would give on a device that has all types and enough memory; no weight is read. */
weft_status weft_model_judge(const weft_gguf *gguf, weft_error *error);
void weft_model_close(weft_model *model);
const weft_model_info *weft_model_get_info(const weft_model *model);
const weft_split *weft_model_get_split(const weft_model *model);

/* Bytes that went from one device to another since open: rows of the residual stream at the cuts (with embeddings per
 * layer, where the model has these) or in exchanges of shards, soft embeddings of canvases, tokens. Any thread may call. */
typedef struct weft_crossed {
  uint64_t rows, soft, tokens;
} weft_crossed;
weft_crossed weft_model_crossed(const weft_model *model);

/* Where a layer gives something out, in the order in which that is computed. */
typedef enum weft_stage {
  WEFT_STAGE_INPUT = 0,     /* of layer 0: the embedded rows */
  WEFT_STAGE_QUERY = 1,     /* queries, normed and rotated; of layers with attention over keys */
  WEFT_STAGE_ATTENTION = 2, /* what attention, or what stands in its place, adds to a row, before its norm */
  WEFT_STAGE_FFN = 3,       /* what the MLP makes, or the one beside experts */
  WEFT_STAGE_EXPERTS = 4,   /* what a row's experts make together */
  WEFT_STAGE_LAYER = 5,     /* the residual stream behind the layer */
  WEFT_STAGE_HEAD = 6,      /* logits; a forward pass has none (model/stages.h) */
  WEFT_STAGES = 7
} weft_stage;

/* Rows of a stage. From attention of the last layer on only the output rows are left, in their order. */
typedef struct weft_tapped {
  uint32_t layer;
  weft_stage stage;
  weft_device *device; /* in whose memory x lies until the next op; a tap downloads what it wants */
  const float *x;      /* [n_rows][n_cols] */
  uint32_t n_rows;
  uint64_t n_cols;
} weft_tapped;

typedef struct weft_forward_args {
  const weft_batch *batch;
  const int32_t *token; /* [n_rows] the token of each row that the host knows */
  const int32_t
      *cells; /* memory of the first device: row r's token is cells[cell_of[r]] where cell_of[r] is not negative */
  const int32_t *cell_of; /* [n_rows] or NULL; only on a device that does not read host memory */
  const weft_kv_store *kv;
  const weft_kv_layout *layout;
  const float *const *soft; /* [n_segments]: of a canvas segment, its soft embedding [n_rows of it, n_hidden] in memory
                                of the first device; NULL: zero, as in the first denoise step */
  const float *given;       /* of a drafter: [n_rows][2][n_hidden of its target], memory of the device; else NULL */
  const uint32_t *output_row; /* rows whose result is wanted: causal before canvas rows, else in any order */
  uint32_t n_output;
  float *hidden; /* [n_output, n_hidden] after the final norm; memory of the last device */
  /* Of a model in shards: what each shard of the last part behind the first does with the hidden rows, which lie in its
   * memory, as the end of its step. The first one's caller does it for that one. NULL: nothing. */
  weft_status (*share)(void *self, uint32_t shard, const float *hidden);
  void *share_self;
  uint64_t graph_key; /* not 0: the caller records the step as a graph of this key, so shards behind the first do too */
  /* To look into a pass, else NULL. Of a model in shards only INPUT and LAYER are shown. */
  void (*tap)(void *self, const weft_tapped *tapped);
  void *tap_self;
} weft_forward_args;
weft_status weft_model_forward(weft_model *model, weft_forward_args *args);

/* The output matrix on the last device, or where shards have ranges of the tokens the rows of its own, with data
 * NULL if it has none; its soft cap, and the factor of embeddings (soft embeddings are scaled by it too). */
const weft_weight *weft_model_head(const weft_model *model, float *cap, float *embed_scale);

#ifdef __cplusplus
}
#endif
#endif
