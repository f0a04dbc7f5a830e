/* SPDX-License-Identifier: MIT */
/* Where a model is cut when its layers are shared out to parts, each a device or several shards.
 *
 * Law: weft_split_cut is a function of its argument alone. It gives each part a run of layers such that the largest load
 * is as small as can be, where the load of a part is its layers, and of the last part the head's work counted in
 * layers, over the part's share. Of equal cuts the one is taken that leaves least of each page empty, of those the most
 * even one, whose loads have the least sum of squares, and of those the one whose first parts have more. */
#ifndef WEFT_MODEL_SPLIT_PLAN_H
#define WEFT_MODEL_SPLIT_PLAN_H

#include "model/gguf/gguf.h"
#include "model/split.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weft_split_ask {
  uint32_t n_parts, n_layers;
  double share[WEFT_DEVICES_MAX]; /* above 0: what each part takes, in relation to the others */
  double head;                    /* the work of the head and of samplers, in layers */
  const bool *no_cut;             /* [n_layers] no part may begin with this layer; NULL: any may */
  const uint64_t *bytes_before;   /* [n_layers + 1] of weights in the layers before each; NULL: room does not matter */
  uint64_t first_bytes, last_bytes; /* of other weights in the first and in the last part */
  uint64_t room[WEFT_DEVICES_MAX];  /* bytes for weights in each part; 0: not bounded */
  /* The share of a page of keys and values that stays empty with a cut; NULL: neither that nor evenness matters. Of
   * many equal cuts WEFT_SPLIT_TRIES are asked for, the most even ones first. */
  double (*empty)(void *self, const uint32_t *first_layer);
  void *empty_self;
} weft_split_ask;

enum { WEFT_SPLIT_TRIES = 64 };

/* Fills first_layer[0 .. n_devices). False: there is no such cut. */
bool weft_split_cut(const weft_split_ask *ask, uint32_t *first_layer);

typedef enum weft_split_why {
  WEFT_SPLIT_ASKED,     /* by the ratio */
  WEFT_SPLIT_EVEN,      /* equal work */
  WEFT_SPLIT_ROOM,      /* with equal work some device would have too little room */
  WEFT_SPLIT_TOO_LITTLE /* equal work, because no cut finds room: what finds none is streamed from host memory */
} weft_split_why;

typedef struct weft_split_reason {
  weft_split_why why;
  double head; /* the work of the head, in layers */
} weft_split_reason;

/* Bytes of a file's weights on devices, and of the integers that the device keeps of them besides. */
void weft_split_weights(const weft_gguf *gguf, const weft_device *device, uint64_t *n_bytes, uint64_t *n_integers);

/* Bytes of both, as devices place them, on the fullest device of each part of a split (n_bytes [parts]): a shard with
 * the largest share of what shards share out, with all that each has whole, and with what the first one alone has. A
 * file whose keys cannot be read, or for whose keys there is no memory, counts as whole on every shard. */
void weft_split_bytes(const weft_gguf *gguf, const weft_split *split, uint64_t *n_bytes);

/* Whether a tensor of a file, by its name, has integers on devices of the split that keep them. */
bool weft_split_has_integers(const weft_split *split, const char *tensor);
/* Counts a file's tensors that have integers on the first device, and those that could have them. */
void weft_split_count_integers(const weft_gguf *gguf, const weft_split *split, uint32_t *n_have, uint32_t *n_can);
/* The bytes of a weight's integers (weft_device_integers_bytes), those of soft embeddings alone without `has`. */
uint64_t weft_split_integers(const weft_device *device, const weft_weight *weight, unsigned uses, bool has);

/* In how many shards a file's model can lie, as bits N - 1 (model/weights_slice.h); 1 where its keys cannot be read. */
uint32_t weft_split_shardings(const weft_gguf *gguf);

/* Plans the cut of a file's model: by `ratio` [parts] of layers, or with ratio NULL by work, the head of a diffusion
 * model counting as a fifth of its layers, that of others as a fifteenth, each part by its speed [parts] (NULL: all are
 * equal). Without a ratio, room [n_devices] (bytes for weights on each device; 0: not bounded) goes before balance,
 * unless there is no cut with room. What the shards of a part have each whole counts for each, and the device with
 * least room bounds its part. split->device, n_devices and n_shards are given. reason is filled in. Errors: as
 * weft_model_open for the file's keys, and INVALID with a line where no cut is possible. */
weft_status weft_split_plan(const weft_gguf *gguf, const double *ratio, const double *speed, const uint64_t *room,
                            weft_split *split, weft_split_reason *reason, weft_error *error);

#ifdef __cplusplus
}
#endif
#endif
