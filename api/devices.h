/* SPDX-License-Identifier: MIT */
/* The devices of a runtime: which ones the options name, opened and closed, and how a model is shared out to them.
 *
 * Law: all devices are of one backend. What --split auto chooses is decided here once, when they are open
 * (split_choice.h); devices of the cpu are then split by layer. Device 0 of the list embeds, the last one has the
 * head and the samplers. Without a list there is one device. With --split replicas each device has all of every
 * model, and all are of one kind. With --split tensor:N,layer:M the first N devices are the shards of the first
 * part, the next N those of the second one. */
#ifndef WEFT_API_DEVICES_H
#define WEFT_API_DEVICES_H

#include "api/weft.h"
#include "base/text.h"
#include "kernels/device.h"
#include "model/eight_bits.h"
#include "model/gguf/gguf.h"
#include "model/model.h"
#include "model/split_plan.h"

typedef struct weft_devices {
  weft_device *device[WEFT_DEVICES_MAX];
  uint32_t n;
  weft_error why;                 /* one clause: why device 0 is of its backend */
  double ratio[WEFT_DEVICES_MAX]; /* of layers, or with by_speed of work, for each part */
  bool has_ratio, by_speed;       /* by_speed: how fast unequal cards are thought to be, where no ratio was given */
  uint32_t n_shards;              /* devices of a part: each has a shard of its layers (model/shards.h); 0: 1 */
  bool replicas;                  /* every device has all of each model */
  bool is_auto;                   /* the split is --split auto's */
  weft_error auto_why;  /* one clause: what was chosen and why; empty: by layer, because nothing could be counted */
  bool no_peer;         /* as given */
  uint32_t products;    /* bits, as given; 0: the backend's choice, or the files' */
  weft_error precision; /* how the bits of products came about: a name of --precision, and why */
  uint64_t
      integers_missing; /* bytes that a device lacked for integers of all weights; 0: they are kept or not wanted */
  weft_codes_alone codes_alone; /* which weights have none, where there is room for a part of them */
  bool links[WEFT_DEVICES_MAX]; /* whether each reaches the memory of the next of its part, the last of the first */
  bool cuts[WEFT_DEVICES_MAX];  /* the same for its like in the next part; where there are several parts of shards */
  bool parts_reach;             /* whether each reaches the memory of all others of its part */
  uint64_t weights_bytes_max
      [WEFT_DEVICES_MAX]; /* as given, on ref and cpu of all memory; 0: 7/8 of what is free, no bound */
} weft_devices;

/* The bits of numbers in products that a precision names; NULL and auto: *bits is 0. INVALID with a line: another
 * name. */
weft_status devices_precision(const char *precision, uint32_t *bits, weft_error *error);
/* Whether all of these files are for products of 8 bits (model/eight_bits.h). why: a clause about the one that
 * decides. */
bool devices_files_fit_eight(weft_gguf *const *gguf, uint32_t n, weft_error *why);
/* Decides which weights of these files have integers on devices whose products are of 8 bits, before any weight is
 * loaded: all, where each device has room for its part of the weights, of their integers and of kv_bytes of pages
 * (0: of a quarter of its memory); else integers_missing is what the fullest device lacks, and none does. With
 * may_be_part, where each device has something of all layers, integers may not halve what codes leave for pages when
 * kv_bytes is 0, and where all find no room as many weights have them as do, with a sixteenth of the memory left free
 * beside kv_bytes: experts lose theirs first, which are most bytes for the time that they save. */
void devices_choose_integers(weft_devices *devices, weft_gguf *const *gguf, uint32_t n, uint64_t kv_bytes,
                             bool may_be_part);
/* The plan's line of weights that have no integers for want of room; none where all or nobody wants them. */
void devices_tell_integers(const weft_devices *devices, weft_gguf *const *gguf, uint32_t n, weft_text *out);
/* Reads the options and opens the devices. gguf [n]: all files that will be loaded, by which --precision auto chooses,
 * the default where a device has products of 8 bits and of 16. Errors, each with a line: INVALID (a list that is none,
 * a device named twice, ratios that do not fit), and those of weft_device_open. */
weft_status devices_open(const weft_open_options *options, weft_gguf *const *gguf, uint32_t n, weft_devices *devices,
                         weft_error *error);
/* The same; shares: they own weights that other processes use (kernels/share.h). */
weft_status devices_open_as(const weft_open_options *options, weft_gguf *const *gguf, uint32_t n, weft_share_by shares,
                            weft_devices *devices, weft_error *error);
/* Opens device 0 once more, to place weights there while it computes (weft_model_limits.placer): at most bytes_max. */
weft_status devices_open_placer(const weft_open_options *options, const weft_devices *devices, uint64_t bytes_max,
                                weft_device **out, weft_error *error);
void devices_close(weft_devices *devices);
/* How many times each model is there. */
uint32_t devices_n_replicas(const weft_devices *devices);
/* Parts of a model, which are in the order of their layers. */
uint32_t devices_n_parts(const weft_devices *devices);
/* Replicas compute the same bits at the same pace only where their devices are of one kind: INVALID with a line that
 * names the first that is not. */
weft_status devices_check_kinds(const weft_device_info *const *info, uint32_t n, weft_error *error);
/* Cards of several generations round sums of floating point numbers in ways of their own. Layers of one step may lie on
 * such cards, since all rows of a layer are computed by one of them: INVALID with a line for a part's shards, which
 * share rows out, and for cards of which one needs another kernel set than the first. */
weft_status devices_check_generations(const weft_device_info *const *info, uint32_t n, uint32_t n_shards,
                                      weft_error *error);
/* Behind a title the line that says what is promised of cards of several generations; of one generation nothing. */
void devices_tell_generations(const weft_devices *devices, const char *title, weft_text *out);
/* On which devices the layers of a replica of a model will lie, beside those that are open. Errors: as weft_split_plan.
 */
weft_status devices_split(const weft_devices *devices, uint32_t replica, const weft_gguf *gguf, weft_split *split,
                          weft_split_reason *reason, weft_error *error);
/* About which share of a model a device has: by the ratio as given, else equal ones. */
double devices_share(const weft_devices *devices, uint32_t device);
/* Bytes of memory of all devices. */
uint64_t devices_memory(const weft_devices *devices);
weft_weights_report devices_weights(const weft_devices *devices);
weft_graph_counters devices_graphs(const weft_devices *devices);
/* Whether steps that come again are recorded: never where shards send one another copies. */
bool devices_keep_graphs(const weft_devices *devices);
/* The plan's lines of devices. rows: of a step; rows_beside: of one for which somebody waits (step_rows.h). */
void devices_print(const weft_devices *devices, uint32_t rows, uint32_t rows_beside, weft_text *out);
/* The plan's lines of a model's parts, where there are several devices: which layers lie where, what they take, and
 * why the cut lies there. */
void devices_print_parts(const weft_devices *devices, const weft_model_info *info, const weft_kv_layout *layout,
                         const weft_split_reason *reason, weft_text *out);

#endif
