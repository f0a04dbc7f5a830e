/* SPDX-License-Identifier: MIT */
/* How what a model keeps of each position is cut into pages.
 *
 * A layer keeps one set of rows or several: keys and values of every position, kept for all positions or for a window;
 * one row for every 4 or 128 positions, where a model compresses; rows that a compressor has not used yet, which are a
 * windowed set of their own. A layer with a recurrence keeps a state, too, which is no rows: what it has made of all
 * positions before a border.
 *
 * Law: a group is a retention class: all its sets have one window. Sets with a row for each position and the same rows
 * form a class; sets of one window whose rows stand for several positions form one class, whatever their rows. A
 * class is cut into groups, and one block of a group is block_tokens positions of all its sets and fills one page. A
 * block holds whole rows. All groups of all models that share a pool use pages of the same size; the share of a page
 * that a group does not fill is padding, which is counted and kept least. Which blocks of a windowed group are kept
 * is decided by pager/window.c. A set that reads the rows of an earlier one costs nothing: its place is that one's.
 *
 * States with the same borders form a group, which comes after the groups of rows. They fill a run of pages one behind
 * another, in units that no page end cuts (a head's matrix): a unit that does not fit the rest of a page begins the
 * next one. How many pages that are is the group's state_pages; the page size is chosen for rows.
 *
 * A model may lie in parts on several devices (model/split.h). A page then has bytes on each of them, part_bytes, equal
 * for all pages, so that a page stays one number: of each part a group has equally many sets (the last groups may
 * have fewer). Where in those bytes the rows of a set lie is its place; keys come first, then values where these are
 * not the keys. The shards of a part have the same bytes of a page: all sets of the part, and of their heads an equal
 * share. */
#ifndef WEFT_MODEL_KV_LAYOUT_H
#define WEFT_MODEL_KV_LAYOUT_H

#include <stdbool.h>

#include "base/layer_group.h"
#include "base/text.h"
#include "kernels/device.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
  WEFT_LAYERS_MAX = 256,
  WEFT_KV_SETS_MAX = 512 /* row sets of all layers of one model */
};

/* The rows of a set: of each `positions` neighbouring positions one row of head_dim elements for every head, as key
 * and as value. */
typedef struct weft_kv_rows {
  weft_type type;
  uint32_t n_kv_heads, head_dim;
  uint32_t positions;   /* that share a row: a power of two up to 128; 1: each has its own */
  bool values_are_keys; /* one row serves as both */
} weft_kv_rows;

/* The state of a layer at a border. */
typedef struct weft_kv_state {
  uint32_t n_units; /* 0: the set is of rows */
  uint32_t every;   /* positions between two borders, a power of two up to WEFT_BLOCK_TOKENS_MAX */
  uint64_t unit_bytes;
} weft_kv_state;

typedef struct weft_kv_set {
  weft_kv_rows rows;
  uint32_t window;  /* 0: all positions are kept */
  bool from_border; /* the window is what lies behind the last multiple of it (base/layer_group.h) */
  uint32_t keys_of; /* 0: rows of its own; else 1 + the earlier set whose pages it reads */
  uint16_t layer;
  uint8_t part;        /* < WEFT_DEVICES_MAX: in which part the layer lies */
  weft_kv_state state; /* instead of rows, a window and keys_of, which are 0 then */
} weft_kv_set;

/* What the layers of one model keep. Sets ascend by layer, and every layer has one; of a model with one set to a layer
 * set l is that of layer l. Some set is of rows. */
typedef struct weft_kv_geometry {
  uint32_t n_layers, n_sets;
  uint32_t n_shards; /* above 1: every layer lies on as many devices, and n_kv_heads is of each */
  weft_kv_set set[WEFT_KV_SETS_MAX];
} weft_kv_geometry;

/* Where the rows of a set lie. */
typedef struct weft_kv_place {
  weft_kv_rows rows;
  uint16_t group;
  uint8_t part;    /* on which device: where there are shards the part's first one */
  uint64_t offset; /* in the bytes that a page has there; of a state in those that its run has there */
  uint64_t bytes;  /* of one block; of a state, without what is left free at page ends */
  weft_kv_state state;
} weft_kv_place;

/* Where a unit of a state lies: in which page of the run, and where in the bytes that a page has on its device. */
typedef struct weft_kv_unit {
  uint32_t page;
  uint64_t offset;
} weft_kv_unit;

typedef struct weft_kv_layout {
  uint64_t page_bytes;                   /* on all devices */
  uint32_t n_parts;                      /* devices of the models that share the pool, in the order of weft_split */
  uint64_t part_bytes[WEFT_DEVICES_MAX]; /* [n_parts] of a page on each device */
  uint32_t n_groups, n_sets;
  weft_layer_group group[WEFT_GROUPS_MAX];
  weft_kv_place place[WEFT_KV_SETS_MAX]; /* [n_sets] */
  double padding;                        /* the unused share of a page, a mean over the sets with rows of their own */
} weft_kv_layout;

/* Unit `unit` of a set's state. */
weft_kv_unit weft_kv_state_unit(const weft_kv_layout *layout, uint32_t set, uint32_t unit);
/* Bytes of all states of one sequence at a border. */
uint64_t weft_kv_state_bytes(const weft_kv_geometry *geometry);
/* Pages that a sequence of n_tokens tokens holds between two steps, while the rows of n_ahead more are in flight: their
 * blocks and the states at borders that they reach are there besides. What its windows pass goes when a block of the
 * group with the smallest ones is full (scheduler/apply.c), and at the end of a prompt, of which this knows nothing: it
 * then holds fewer until that block is full. */
uint64_t weft_kv_pages_held(const weft_kv_layout *layout, uint32_t n_tokens, uint32_t n_ahead);
/* Bytes of a set's rows in one block. */
uint64_t weft_kv_rows_bytes(const weft_kv_rows *rows, uint32_t block_tokens);
/* The rows of a group's first set; of a group of states none. */
const weft_kv_rows *weft_kv_group_rows(const weft_kv_layout *layout, uint32_t group);
/* Appends the rows of a group, as in "8 heads of 256", for people. */
void weft_kv_group_print(const weft_kv_layout *layout, uint32_t group, weft_text *out);

/* Chooses one page size and a layout per model with the least padding. Of layouts with equal padding the one wins whose
 * largest block is nearest to 32 tokens (a block is the smallest piece of a prefix that is cached), then the one with
 * fewer groups, then the one with larger pages. block_tokens is 8, 16, 32, 64 or 128, and the smallest block of a
 * layout is of fixed_block_tokens tokens where that is not 0 (a power of two <= 128). UNSUPPORTED when a model needs
 * more than WEFT_GROUPS_MAX groups, or units larger than its pages; INVALID when a layer reads keys that no earlier
 * layer of its part has, rows stand for a number of positions that is no power of two up to 128, or models that share a
 * pool lie in different numbers of shards. */
weft_status weft_kv_layout_choose(const weft_kv_geometry *const *geometry, uint32_t n_models,
                                  uint32_t fixed_block_tokens, weft_kv_layout *layouts, weft_error *error);
/* Bytes that the keys and values of one more token take, states not among them, a mean where rows stand for several
 * positions: with windows_full in a sequence longer than every window, where only sets without a window grow; else in a
 * short sequence, where all do. */
uint64_t weft_kv_bytes_per_token(const weft_kv_geometry *geometry, bool windows_full);

#ifdef __cplusplus
}
#endif
#endif
