/* SPDX-License-Identifier: MIT */
/* Any chains of blocks as cache events, in every form: the bytes are one value of MessagePack, and have what went in.
 * And any changes of a prefix trie, as a pager could tell them, as a mirror takes them: whoever takes what it tells has
 * what it tells when asked for all. */
#include "tests/support/fuzz_require.h"

#ifndef WEFT_KV_EVENTS
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  (void)data, (void)n;
  return 0;
}
#else
#include <msgpack.h>
#include <string.h>

#include "api/events/kv_wire.h"

typedef struct input {
  const uint8_t *data;
  size_t n;
} input;

static uint32_t take_byte(input *in) {
  if (in->n == 0) return 0;
  in->n -= 1;
  return *in->data++;
}

/* ---- bytes ---- */

enum { NAMES = 12, UNIT = 8 };

static void check_stored(const msgpack_object *event, const kv_chain *chain, kv_form form) {
  REQUIRE(event->type == (form.arrays ? MSGPACK_OBJECT_ARRAY : MSGPACK_OBJECT_MAP));
  REQUIRE((form.arrays ? event->via.array.size : event->via.map.size) == 11);
  const msgpack_object *names = form.arrays ? &event->via.array.ptr[1] : &event->via.map.ptr[1].val;
  const msgpack_object *tokens = form.arrays ? &event->via.array.ptr[3] : &event->via.map.ptr[3].val;
  REQUIRE(names->via.array.size == chain->n);
  for (uint32_t i = 0; i < chain->n; i++) {
    const msgpack_object *name = &names->via.array.ptr[i];
    if (form.bytes)
      REQUIRE(name->via.bin.size == KV_NAME_BYTES && memcmp(name->via.bin.ptr, &chain->name[i], KV_NAME_BYTES) == 0);
    else
      REQUIRE(name->via.u64 == kv_name_number(&chain->name[i]));
  }
  REQUIRE(tokens->via.array.size == (chain->tokens == NULL ? 0 : chain->n * UNIT));
  for (uint32_t i = 0; i < tokens->via.array.size; i++) REQUIRE(tokens->via.array.ptr[i].via.i64 == chain->tokens[i]);
}

static void encode(input *in) {
  static kv_name name[NAMES + 1];
  static int32_t tokens[NAMES * UNIT];
  uint32_t form = take_byte(in), n_events = 0;
  kv_batch batch = {.form = {.arrays = form & 1, .bytes = form & 2}};
  kv_domain domain = {.is_private = form & 4};
  kv_chain last = {.n = 0};
  for (uint32_t i = 0; i < KV_SALT_BYTES - 1 && (form & 8); i++) domain.salt[i] = (char)('a' + take_byte(in) % 26);
  while (in->n > 0 && n_events < 40) {
    uint32_t what = take_byte(in), n = 1 + take_byte(in) % NAMES;
    for (uint32_t i = 0; i <= n; i++) memset(&name[i], (int)take_byte(in), sizeof *name);
    for (uint32_t i = 0; i < n * UNIT; i++) tokens[i] = (int32_t)(take_byte(in) * 0x01020304u + i);
    last = (kv_chain){.medium = (weft_tier)(what / 4 % 3),
                      .name = name,
                      .n = n,
                      .before = what & 64 ? &name[n] : NULL,
                      .tokens = domain.is_private ? NULL : tokens,
                      .unit_tokens = UNIT,
                      .domain = &domain,
                      .first = what & 128};
    if (what % 4 == 0)
      kv_batch_clear_all(&batch);
    else if (what % 4 == 1)
      kv_batch_remove(&batch, last.medium, name, n);
    else
      kv_batch_store(&batch, &last);
    if (what % 4 < 2) last.n = 0;
    n_events += 1;
  }
  weft_text out = {0};
  REQUIRE(kv_batch_close(&batch, 1.5, 7, &out) == WEFT_OK && batch.n == 0);
  msgpack_unpacked all;
  size_t at = 0;
  msgpack_unpacked_init(&all);
  REQUIRE(msgpack_unpack_next(&all, out.bytes, out.n, &at) == MSGPACK_UNPACK_SUCCESS && at == out.n);
  REQUIRE(all.data.type == MSGPACK_OBJECT_ARRAY && all.data.via.array.size == 3);
  const msgpack_object_array *events = &all.data.via.array.ptr[1].via.array;
  REQUIRE(events->size == n_events && all.data.via.array.ptr[2].via.u64 == 7);
  if (last.n > 0) check_stored(&events->ptr[n_events - 1], &last, batch.form);
  msgpack_unpacked_destroy(&all);
  weft_text_free(&out);
  kv_batch_free(&batch);
}

/* ---- the mirror ---- */

enum { NODES = 48, BASE = 2, TOLD_MAX = 256 };

typedef struct told_list {
  kv_name name[TOLD_MAX];
  weft_tier medium[TOLD_MAX];
  uint32_t n;
} told_list;

static uint32_t find_told(const told_list *t, const kv_name *name) {
  uint32_t i = 0;
  while (i < t->n && memcmp(&t->name[i], name, sizeof *name) != 0) i++;
  return i;
}

static void hear_cleared(void *self, uint32_t model) {
  (void)model;
  ((told_list *)self)->n = 0;
}

static void hear_stored(void *self, const kv_chain *chain) {
  told_list *t = (told_list *)self;
  REQUIRE(chain->before == NULL || find_told(t, chain->before) < t->n);
  for (uint32_t i = 0; i < chain->n; i++) {
    uint32_t at = find_told(t, &chain->name[i]);
    REQUIRE(at < TOLD_MAX && (at == t->n || t->medium[at] != chain->medium));
    t->n += at == t->n;
    t->name[at] = chain->name[i];
    t->medium[at] = chain->medium;
  }
}

static void hear_removed(void *self, uint32_t model, weft_tier medium, const kv_name *name, uint32_t n) {
  told_list *t = (told_list *)self;
  (void)model;
  for (uint32_t i = 0; i < n; i++) {
    uint32_t at = find_told(t, &name[i]);
    REQUIRE(at < t->n);
    if (t->medium[at] != medium) continue;
    t->n -= 1;
    t->name[at] = t->name[t->n];
    t->medium[at] = t->medium[t->n];
  }
}

/* A trie as a pager has it: number 0 is the root; a node that has children stays. */
typedef struct trie {
  weft_prefix_change node[NODES];
  int32_t token[NODES][BASE];
  uint32_t n_children[NODES];
} trie;

static void change_trie(trie *t, input *in, bool *touched) {
  uint32_t node = 1 + take_byte(in) % (NODES - 1), what = take_byte(in);
  weft_prefix_change *c = &t->node[node];
  if (!c->live) {
    uint32_t parent = take_byte(in) % NODES;
    if (!t->node[parent].live || t->node[parent].depth > 20) return;
    *c = (weft_prefix_change){.node = node, .parent = parent, .depth = t->node[parent].depth + 1, .live = true};
    t->token[node][0] = (int32_t)node; /* no two children of a node are alike */
    t->token[node][1] = (int32_t)(what % 2);
    for (uint32_t i = 1; i < NODES; i++) {
      bool twin = i != node && t->node[i].live && t->node[i].parent == parent &&
                  memcmp(t->token[i], t->token[node], sizeof t->token[i]) == 0;
      if (!twin) continue;
      c->live = false;
      return;
    }
    memset(c->tier, WEFT_TIER_NOWHERE, sizeof c->tier);
    t->n_children[parent] += 1;
  } else if (what % 8 == 0) {
    if (t->n_children[node] > 0) return;
    t->n_children[c->parent] -= 1;
    c->live = false;
  }
  for (uint32_t g = 0; g < 3; g++) c->tier[g] = (uint8_t)(what >> (1 + 2 * g) & 3);
  touched[node] = true;
}

static void mirror_changes(input *in) {
  static trie t;
  static told_list told, all;
  bool touched[NODES] = {true};
  kv_names names = {.n_told = 0};
  uint32_t form = take_byte(in);
  const kv_mirror_model model = {.n_groups = 3,
                                 .group = {{.block_tokens = BASE},
                                           {.block_tokens = 2 * BASE, .window = form % 16},
                                           {.block_tokens = 4 * BASE, .state_pages = form / 16 % 2}}};
  const kv_mirror_config config = {
      .n_nodes = NODES, .base_tokens = BASE, .n_tiers = 3, .model = &model, .n_models = 1, .names = &names};
  kv_mirror *mirror;
  REQUIRE(kv_mirror_open(&config, &mirror) == WEFT_OK);
  memset(&t, 0, sizeof t);
  told.n = all.n = 0;
  t.node[0] = (weft_prefix_change){.parent = WEFT_NODE_NONE, .live = true, .root = true, .domain = {form & 64, 1}};
  while (in->n > 0) {
    for (uint32_t i = take_byte(in) % 32 + 1; i-- > 0;) change_trie(&t, in, touched);
    for (uint32_t i = 0; i < NODES; i++) {
      t.node[i].node = i;
      if (touched[i]) kv_mirror_apply(mirror, &t.node[i], t.token[i], 1);
      touched[i] = false;
    }
    const kv_sink sink = {hear_cleared, hear_stored, hear_removed, &told};
    kv_mirror_settle(mirror, &sink);
    all.n = 0;
    const kv_sink again = {hear_cleared, hear_stored, hear_removed, &all};
    kv_mirror_tell_all(mirror, 0, &again);
    REQUIRE(all.n == told.n);
    for (uint32_t i = 0; i < all.n; i++) {
      uint32_t at = find_told(&told, &all.name[i]);
      REQUIRE(at < told.n && told.medium[at] == all.medium[i]);
    }
  }
  kv_mirror_close(mirror);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  input in = {data, n};
  if (n > 4096) return 0;
  if (take_byte(&in) % 2 == 0)
    encode(&in);
  else
    mirror_changes(&in);
  return 0;
}
#endif
