/* SPDX-License-Identifier: MIT */
#include "model/split_plan.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "base/round.h"
#include "kernels/arena.h"
#include "kernels/canvas_head.h"
#include "kernels/share.h"
#include "kernels/shards.h"
#include "model/eight_bits.h"
#include "model/hyper.h"
#include "model/models.h"
#include "model/weights_slice.h"

/* ---- the cut ---- */

/* The load of part p with layers [first, end). */
static double load_of(const weft_split_ask *ask, uint32_t p, uint32_t first, uint32_t end) {
  bool is_last = p + 1 == ask->n_parts;
  uint64_t n_bytes = (p == 0 ? ask->first_bytes : 0) + (is_last ? ask->last_bytes : 0);
  if (first >= end || (first > 0 && ask->no_cut != NULL && ask->no_cut[first])) return INFINITY;
  if (ask->bytes_before != NULL) n_bytes += ask->bytes_before[end] - ask->bytes_before[first];
  if (ask->bytes_before != NULL && ask->room[p] > 0 && n_bytes > ask->room[p]) return INFINITY;
  return ((double)(end - first) + (is_last ? ask->head : 0)) / ask->share[p];
}

/* Cuts whose largest load is no more than `most`, in rounds: those whose least load is large first. In a round those
 * with much in the first parts come first, so that of equal ones the first wins. */
typedef struct cut_search {
  const weft_split_ask *ask;
  double most, floor, below; /* of a round: the least load is at least floor, and less than below */
  double empty, uneven;      /* of the best one */
  uint32_t n_tried, n_seen, cut[WEFT_DEVICES_MAX], best[WEFT_DEVICES_MAX];
} cut_search;

enum { ROUNDS = 16, SEEN_MAX = 10000 /* of a round: beginnings of cuts, most of which lead to none */ };

/* uneven: the sum of the squares of the loads, whose sum is nearly the same for all. */
static void try_cut(cut_search *s, double uneven) {
  double empty = s->ask->empty(s->ask->empty_self, s->cut);
  bool is_first = s->n_tried++ == 0;
  if (!is_first && (empty > s->empty || (empty >= s->empty && uneven >= s->uneven))) return;
  s->empty = empty;
  s->uneven = uneven;
  memcpy(s->best, s->cut, sizeof s->best);
}

/* Whether the layers from `first` on may be shared out to the parts from p on. */
static bool is_possible(const cut_search *s, uint32_t p, uint32_t first) {
  double share = 0, work = (double)(s->ask->n_layers - first) + s->ask->head;
  for (uint32_t i = p; i < s->ask->n_parts; i++) share += s->ask->share[i];
  return work <= s->most * share * (1 + 1e-9) && work >= s->floor * share * (1 - 1e-9);
}

/* Part p begins with layer `first`. least, uneven: of the loads of the parts before. */
static void search_cuts(cut_search *s, uint32_t p, uint32_t first, double least, double uneven) {
  const weft_split_ask *ask = s->ask;
  bool is_last = p + 1 == ask->n_parts;
  s->cut[p] = first;
  for (uint32_t end = is_last ? ask->n_layers : ask->n_layers - 1; end > first; end--) {
    double load = load_of(ask, p, first, end), now = load < least ? load : least, sum = uneven + load * load;
    if (s->n_tried >= WEFT_SPLIT_TRIES || s->n_seen++ >= SEEN_MAX) return;
    if (load >= s->floor && load <= s->most && is_last && now < s->below) try_cut(s, sum);
    if (is_last) return;
    if (load >= s->floor && load <= s->most && is_possible(s, p + 1, end)) search_cuts(s, p + 1, end, now, sum);
  }
}

/* Of the cuts that are as good as this one, whose largest load is `most`, the one that wastes least of a page, and of
 * these the one whose loads are most even. */
static void fill_pages(const weft_split_ask *ask, double most, uint32_t *first_layer) {
  cut_search s = {.ask = ask, .most = most, .floor = INFINITY};
  if (ask->empty == NULL || ask->n_parts == 1) return;
  for (uint32_t round = 1; round <= ROUNDS; round++) {
    s.below = s.floor;
    s.floor = most * (ROUNDS - round) / ROUNDS;
    s.n_seen = 0;
    search_cuts(&s, 0, 0, INFINITY, 0);
  }
  if (s.n_tried > 0) memcpy(first_layer, s.best, ask->n_parts * sizeof *first_layer);
}

/* least[p][n]: the least largest load of parts [0, p] with the first n layers; from[p][n]: where part p then
 * begins. Later beginnings win among equals, so that earlier parts have more. */
bool weft_split_cut(const weft_split_ask *ask, uint32_t *first_layer) {
  static const size_t max = WEFT_LAYERS_MAX + 1;
  double least[WEFT_DEVICES_MAX][WEFT_LAYERS_MAX + 1];
  uint16_t from[WEFT_DEVICES_MAX][WEFT_LAYERS_MAX + 1];
  if (ask->n_parts == 0 || ask->n_parts > WEFT_DEVICES_MAX || ask->n_layers >= max) return false;
  for (uint32_t p = 0; p < ask->n_parts; p++) {
    for (uint32_t n = 0; n <= ask->n_layers; n++) {
      least[p][n] = p == 0 ? load_of(ask, 0, 0, n) : INFINITY;
      from[p][n] = 0;
      for (uint32_t first = 1; first < n && p > 0; first++) {
        double before = least[p - 1][first], own = load_of(ask, p, first, n), load = before > own ? before : own;
        if (load <= least[p][n] && load < INFINITY) least[p][n] = load, from[p][n] = (uint16_t)first;
      }
    }
  }
  if (!(least[ask->n_parts - 1][ask->n_layers] < INFINITY)) return false;
  uint32_t end = ask->n_layers;
  for (uint32_t p = ask->n_parts; p-- > 0;) {
    first_layer[p] = from[p][end];
    end = first_layer[p];
  }
  fill_pages(ask, least[ask->n_parts - 1][ask->n_layers], first_layer);
  return true;
}

/* ---- of a file ---- */

/* The layer of a tensor named blk.N.*, else UINT32_MAX. */
static uint32_t layer_of(const char *name) {
  uint32_t layer = 0;
  if (strncmp(name, "blk.", 4) != 0 || name[4] < '0' || name[4] > '9') return UINT32_MAX;
  for (name += 4; *name >= '0' && *name <= '9' && layer < WEFT_LAYERS_MAX; name++)
    layer = 10 * layer + (uint32_t)(*name - '0');
  return *name == '.' ? layer : UINT32_MAX;
}

/* Whether a file's model has canvases whose head may be multiplied in 8 bits. */
static bool has_canvases(const weft_gguf *gguf) {
  weft_bytes name;
  if (weft_gguf_string(gguf, "general.architecture", &name, NULL) != WEFT_OK) return false;
  const model_arch *arch = model_arch_find(name.data, name.n);
  return arch != NULL && arch->embed == diffusion_gemma_embed && weft_eight_bits_head(gguf);
}

bool weft_split_has_integers(const weft_split *split, const char *tensor) {
  const weft_codes_alone *alone = &split->codes_alone;
  const uint32_t layer = layer_of(tensor), n = strstr(tensor, "_exps.") != NULL ? alone->experts : alone->others;
  const uint32_t n_have = n < WEFT_CODES_OF ? WEFT_CODES_OF - n : 0;
  if (layer == UINT32_MAX) return n_have > 0; /* a head is read in every step */
  return layer * n_have % WEFT_CODES_OF < n_have;
}

uint64_t weft_split_integers(const weft_device *device, const weft_weight *weight, unsigned uses, bool has) {
  const uint64_t n_bytes = weft_device_integers_bytes(device, weight, uses);
  if (has || n_bytes == 0 || !weft_device_get_info(device)->integers) return n_bytes;
  const uint64_t others = weft_device_integers_bytes(device, weight, WEFT_USE_MATMUL);
  return (uses & WEFT_USE_CANVASES) != 0 && n_bytes > others ? n_bytes - others : 0;
}

/* A tensor as the device gets it, and what for: what stands for tokens is looked up, and has no integers, unless rows
 * of canvases are multiplied by it. */
static weft_weight weight_of(const weft_gguf_tensor *tensor, bool canvases, unsigned *uses) {
  const bool is_looked_up = strncmp(tensor->name, "output", 6) == 0 || strstr(tensor->name, "token_embd") != NULL ||
                            strstr(tensor->name, ".engram_embd.") != NULL;
  *uses = !is_looked_up ? (unsigned)WEFT_USE_MATMUL : WEFT_USE_EMBED | (canvases ? WEFT_USE_CANVASES : 0u);
  return (weft_weight){.type = tensor->type,
                       .n_in = (uint32_t)tensor->ne[0],
                       .n_out = (uint32_t)tensor->ne[1],
                       .n_mats = (uint32_t)tensor->ne[2]};
}

/* Bytes that the device takes for the integers of a tensor. split NULL: all have integers where the device keeps
 * them. */
static uint64_t integers_of(const weft_device *device, const weft_gguf_tensor *tensor, bool canvases,
                            const weft_split *split) {
  unsigned uses;
  const weft_weight weight = weight_of(tensor, canvases, &uses);
  return weft_split_integers(device, &weight, uses, split == NULL || weft_split_has_integers(split, tensor->name));
}

/* Bytes that a tensor, with the integers that the split gives it, takes as the device places it. */
static uint64_t placed_bytes(weft_device *device, const weft_gguf_tensor *tensor, bool canvases,
                             const weft_split *split) {
  unsigned uses;
  weft_weight weight = weight_of(tensor, canvases, &uses);
  const bool keeps = weft_device_get_info(device)->integers, has = weft_split_has_integers(split, tensor->name);
  if (keeps && !has) (void)weft_device_keep_integers(device, false);
  const weft_status status = weft_share_expect(device, &weight, uses, NULL);
  if (keeps && !has) (void)weft_device_keep_integers(device, true);
  if (status == WEFT_OK) return weight.n_bytes;
  const uint64_t row_bytes = weft_type_row_bytes(weft_type_find((int32_t)tensor->type)->held_as, tensor->ne[0]);
  return row_bytes * tensor->ne[1] * tensor->ne[2] + integers_of(device, tensor, canvases, split);
}

/* Whether a tensor takes host memory alone. */
static bool lies_on_host(const weft_gguf *gguf, const weft_device *device, const weft_gguf_tensor *tensor) {
  return weft_device_reads_host_tables(device) && deepseek41_is_table(gguf, tensor->name);
}

void weft_split_weights(const weft_gguf *gguf, const weft_device *device, uint64_t *n_bytes, uint64_t *n_integers) {
  const bool canvases = has_canvases(gguf);
  *n_bytes = *n_integers = 0;
  for (uint32_t i = 0; i < weft_gguf_n_tensors(gguf); i++) {
    const weft_gguf_tensor *tensor = weft_gguf_tensor_at(gguf, i);
    if (lies_on_host(gguf, device, tensor)) continue;
    *n_bytes += tensor->n_bytes;
    *n_integers += integers_of(device, tensor, canvases, NULL);
  }
}

void weft_split_count_integers(const weft_gguf *gguf, const weft_split *split, uint32_t *n_have, uint32_t *n_can) {
  const bool canvases = has_canvases(gguf);
  *n_have = *n_can = 0;
  for (uint32_t i = 0; i < weft_gguf_n_tensors(gguf); i++) {
    const weft_gguf_tensor *tensor = weft_gguf_tensor_at(gguf, i);
    if (integers_of(split->device[0], tensor, canvases, NULL) == 0) continue;
    *n_can += 1;
    *n_have += weft_split_has_integers(split, tensor->name);
  }
}

/* Whether shards have each a part of a layer's tensor (model/weights_slice.h): what makes heads, experts, and the
 * feed-forward columns of a layer that has no others. */
static bool is_shared_out(const model_hyper *hyper, const char *name, uint32_t layer) {
  static const char *const parts[] = {"attn_q.", "attn_k.", "attn_v."};
  if (strstr(name, "_exps.") != NULL) return true;
  if (strstr(name, "ffn_") != NULL && strstr(name, "norm") == NULL) return !hyper->moe[layer];
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
    if (strstr(name, parts[i]) != NULL) return true;
  }
  return false;
}

/* Whether shards have ranges of the tokens each, as those of a server have (model/shards.h). */
static bool has_ranges(const model_hyper *hyper, const weft_split *split) {
  uint32_t n = weft_split_shards(split);
  bool may = n > 1 && !hyper->diffusion && weft_shards_are_direct(split->device, n);
  return may && weft_shards_are_direct(&split->device[weft_split_last_place(split)], n);
}

/* How many equal shares, or ranges as even as can be, shards have of a tensor; 1: it is whole on each. Where there are
 * fewer key heads than shards, several have the same. */
static uint32_t count_shares(const weft_gguf_tensor *tensor, const weft_split *split, const model_hyper *hyper) {
  const uint32_t n = weft_split_shards(split), layer = layer_of(tensor->name);
  const bool is_table = strncmp(tensor->name, "output", 6) == 0 || strcmp(tensor->name, "token_embd.weight") == 0;
  if (n == 1 || hyper == NULL) return 1;
  if (layer >= hyper->n_layers) return is_table && has_ranges(hyper, split) ? n : 1;
  const bool is_key = strstr(tensor->name, "attn_k.") != NULL || strstr(tensor->name, "attn_v.") != NULL;
  if (is_key && hyper->n_kv_heads[layer] < n) return hyper->n_kv_heads[layer];
  return is_shared_out(hyper, tensor->name, layer) ? n : 1;
}

/* Bytes that a tensor takes of a device that has it, as it lies there (an arena's piece has whole grains); of a shard,
 * with the largest share. */
static uint64_t bytes_on_device(const weft_gguf_tensor *tensor, const weft_split *split, const model_hyper *hyper,
                                bool canvases) {
  const uint64_t n_shares = count_shares(tensor, split, hyper), grain = 2 * (uint64_t)WEIGHT_ARENA_OWN;
  weft_gguf_tensor share = *tensor;
  uint64_t *cut = share.ne[2] > 1 ? &share.ne[2] : &share.ne[1];
  *cut = (*cut + n_shares - 1) / n_shares;
  const uint64_t n_bytes = placed_bytes(split->device[0], &share, canvases, split);
  const bool has_piece = n_bytes >= WEIGHT_ARENA_OWN && !weft_device_get_info(split->device[0])->host_memory;
  return has_piece ? weft_round_up(n_bytes, grain) : n_bytes;
}

/* Of the parts: bytes of the layers before each, and of what lies in the first and in the last one besides. */
static void count_bytes(const weft_gguf *gguf, const weft_split *split, const model_hyper *hyper, weft_split_ask *ask,
                        uint64_t *before) {
  const bool canvases = has_canvases(gguf);
  const uint32_t n_shards = weft_split_shards(split);
  for (uint32_t i = 0; i < weft_gguf_n_tensors(gguf); i++) {
    const weft_gguf_tensor *tensor = weft_gguf_tensor_at(gguf, i);
    if (lies_on_host(gguf, split->device[0], tensor)) continue;
    uint32_t layer = layer_of(tensor->name);
    bool is_head = strncmp(tensor->name, "output", 6) == 0,
         is_embedding = strcmp(tensor->name, "token_embd.weight") == 0;
    uint64_t n_bytes = bytes_on_device(tensor, split, hyper, canvases) * n_shards;
    if (layer < ask->n_layers) before[layer + 1] += n_bytes;
    if (layer != UINT32_MAX) continue;
    if (!is_head) ask->first_bytes += n_bytes;
    if (is_head || is_embedding) ask->last_bytes += n_bytes;
  }
  for (uint32_t l = 0; l < ask->n_layers; l++) before[l + 1] += before[l];
}

void weft_split_bytes(const weft_gguf *gguf, const weft_split *split, uint64_t *n_bytes) {
  const model_arch *arch;
  const bool canvases = has_canvases(gguf);
  const uint32_t n_parts = weft_split_stages(split);
  model_hyper *hyper = weft_alloc(1, sizeof *hyper);
  const bool known = hyper != NULL && model_hyper_read(gguf, &arch, hyper, NULL) == WEFT_OK;
  memset(n_bytes, 0, n_parts * sizeof *n_bytes);
  for (uint32_t i = 0; i < weft_gguf_n_tensors(gguf); i++) {
    const weft_gguf_tensor *tensor = weft_gguf_tensor_at(gguf, i);
    const bool is_head = strncmp(tensor->name, "output", 6) == 0;
    const uint32_t layer = layer_of(tensor->name);
    uint32_t p = is_head ? n_parts - 1 : 0;
    if (lies_on_host(gguf, split->device[0], tensor)) continue;
    const uint64_t own = bytes_on_device(tensor, split, known ? hyper : NULL, canvases);
    while (layer != UINT32_MAX && p + 1 < n_parts && layer >= split->first_layer[p + 1]) p++;
    n_bytes[p] += own;
    if (n_parts > 1 && strcmp(tensor->name, "token_embd.weight") == 0) n_bytes[n_parts - 1] += own;
  }
  weft_free(hyper);
}

/* How a page is filled with a cut. */
typedef struct page_fill {
  weft_kv_geometry geometry;
  weft_kv_layout layout;
  uint32_t n_parts;
} page_fill;

static double empty_of(void *self, const uint32_t *first_layer) {
  page_fill *fill = self;
  const weft_kv_geometry *geometry = &fill->geometry;
  uint32_t p = 0;
  for (uint32_t s = 0; s < geometry->n_sets; s++) {
    while (p + 1 < fill->n_parts && geometry->set[s].layer >= first_layer[p + 1]) p++;
    fill->geometry.set[s].part = (uint8_t)p;
  }
  bool possible = weft_kv_layout_choose(&geometry, 1, 0, &fill->layout, NULL) == WEFT_OK;
  return possible ? fill->layout.padding : 1.0;
}

/* What each of a part's shards has of the key heads. */
static void share_heads(model_hyper *hyper, uint32_t n_shards) {
  for (uint32_t l = 0; l < hyper->n_layers; l++) {
    uint32_t n = hyper->n_kv_heads[l];
    hyper->n_kv_heads[l] = n < n_shards ? 1 : n / n_shards;
  }
}

static bool can_lie_in(const weft_gguf *gguf, const model_hyper *hyper, uint32_t n) {
  bool can =
      hyper->latent.n_streams == 0 && hyper->delta.n_v_heads == 0 && hyper->choice.scores == 0 && hyper->mla.rank == 0;
  can = can && weights_slice_check(gguf, hyper, n, NULL) == WEFT_OK;
  for (uint32_t l = 0; l < hyper->n_layers && can; l++) /* weights_slice_of says so of each tensor */
    can = hyper->moe[l] || (hyper->n_ff[l] % n == 0 && hyper->n_hidden % n == 0);
  return can;
}

uint32_t weft_split_shardings(const weft_gguf *gguf) {
  const model_arch *arch;
  model_hyper *hyper = weft_alloc(1, sizeof *hyper);
  uint32_t bits = 1;
  if (hyper != NULL && model_hyper_read(gguf, &arch, hyper, NULL) == WEFT_OK) {
    for (uint32_t n = 2; n <= WEFT_DEVICES_MAX; n++) bits |= can_lie_in(gguf, hyper, n) ? 1u << (n - 1) : 0;
  }
  weft_free(hyper);
  return bits;
}

/* The bytes that a part has room for, its fullest device being one of n_shards; 0: no bound. */
static uint64_t room_of(const weft_split *split, uint32_t part, const uint64_t *room) {
  uint32_t n_shards = weft_split_shards(split);
  uint64_t least = 0;
  for (uint32_t s = 0; s < n_shards; s++) {
    uint64_t own = room[weft_split_place(split, part, s)];
    if (own > 0 && (least == 0 || own < least)) least = own;
  }
  return least * n_shards;
}

/* Tries room first, and tells whether it made a difference. */
static bool choose_cut(weft_split_ask *ask, const uint64_t *before, weft_split *split, weft_split_reason *reason) {
  uint32_t even[WEFT_DEVICES_MAX] = {0};
  bool found = weft_split_cut(ask, even); /* of work alone */
  memcpy(split->first_layer, even, sizeof even);
  if (!found || reason->why == WEFT_SPLIT_ASKED) return found;
  ask->bytes_before = before;
  if (!weft_split_cut(ask, split->first_layer)) {
    memcpy(split->first_layer, even, sizeof even);
    reason->why = WEFT_SPLIT_TOO_LITTLE;
  } else if (memcmp(split->first_layer, even, ask->n_parts * sizeof *even) != 0) {
    reason->why = WEFT_SPLIT_ROOM;
  }
  return true;
}

static weft_status plan_cut(const weft_gguf *gguf, const double *ratio, const double *speed, weft_split_ask *ask,
                            model_hyper *hyper, uint64_t *before, bool *no_cut, page_fill *fill, weft_split *split,
                            weft_split_reason *reason, weft_error *error) {
  uint32_t n_parts = weft_split_stages(split), n_shards = weft_split_shards(split);
  ask->n_layers = hyper->n_layers;
  count_bytes(gguf, split, hyper, ask, before);
  if (n_shards > 1) share_heads(hyper, n_shards);
  fill->geometry = model_hyper_geometry(hyper, gguf_kv_type(gguf));
  fill->n_parts = n_parts;
  ask->empty = empty_of;
  ask->empty_self = fill;
  ask->no_cut = no_cut;
  ask->head = ratio != NULL ? 0 : hyper->n_layers / (hyper->diffusion ? 5.0 : 15.0);
  *reason = (weft_split_reason){.why = ratio != NULL ? WEFT_SPLIT_ASKED : WEFT_SPLIT_EVEN, .head = ask->head};
  for (uint32_t p = 0; p < n_parts; p++) ask->share[p] = ratio != NULL ? ratio[p] : speed != NULL ? speed[p] : 1.0;
  for (uint32_t l = 1; l < hyper->n_layers; l++) no_cut[l] = !weft_split_can_cut(&fill->geometry, l);
  if (choose_cut(ask, before, split, reason)) return WEFT_OK;
  return weft_fail(error, WEFT_E_INVALID,
                   "%s: %" PRIu32 " layers, of which some must lie on one device, cannot be shared out to %" PRIu32
                   " %s; give fewer %s",
                   weft_gguf_path(gguf), hyper->n_layers, n_parts, n_shards > 1 ? "parts" : "devices",
                   n_shards > 1 ? "parts" : "devices");
}

weft_status weft_split_plan(const weft_gguf *gguf, const double *ratio, const double *speed, const uint64_t *room,
                            weft_split *split, weft_split_reason *reason, weft_error *error) {
  const model_arch *arch;
  split->first_layer[0] = 0;
  *reason = (weft_split_reason){.why = WEFT_SPLIT_EVEN};
  if (weft_split_stages(split) == 1) return WEFT_OK;
  model_hyper *hyper = weft_alloc(1, sizeof *hyper);
  uint64_t *before = weft_alloc(WEFT_LAYERS_MAX + 1, sizeof *before);
  bool *no_cut = weft_alloc(WEFT_LAYERS_MAX, sizeof *no_cut);
  page_fill *fill = weft_alloc(1, sizeof *fill);
  weft_split_ask ask = {.n_parts = weft_split_stages(split)};
  for (uint32_t p = 0; p < ask.n_parts; p++) ask.room[p] = room_of(split, p, room);
  weft_status status = WEFT_OK;
  if (hyper == NULL || before == NULL || no_cut == NULL || fill == NULL)
    status = weft_fail(error, WEFT_E_NO_MEMORY, "%s: out of memory", weft_gguf_path(gguf));
  if (status == WEFT_OK) status = model_hyper_read(gguf, &arch, hyper, error);
  if (status == WEFT_OK) status = plan_cut(gguf, ratio, speed, &ask, hyper, before, no_cut, fill, split, reason, error);
  weft_free(hyper);
  weft_free(before);
  weft_free(no_cut);
  weft_free(fill);
  return status;
}
