/* SPDX-License-Identifier: MIT */
#include "api/events/kv_wire.h"

#ifdef WEFT_KV_EVENTS
#include <msgpack.h>
#include <string.h>

static int append_bytes(void *to, const char *bytes, size_t n) {
  weft_text *text = (weft_text *)to;
  weft_text_append(text, bytes, n);
  return text->refused ? -1 : 0;
}

static msgpack_packer packer_of(weft_text *text) {
  msgpack_packer p;
  msgpack_packer_init(&p, text, append_bytes);
  return p;
}

static void put_text(msgpack_packer *p, const char *text) {
  (void)msgpack_pack_str_with_body(p, text, strlen(text)); /* a refusal stays in the text */
}

static void put_name(msgpack_packer *p, const kv_name *name, kv_form form) {
  if (form.bytes)
    (void)msgpack_pack_bin_with_body(p, name->bytes, KV_NAME_BYTES);
  else
    (void)msgpack_pack_uint64(p, kv_name_number(name));
}

static void put_names(msgpack_packer *p, const kv_name *name, uint32_t n, kv_form form) {
  (void)msgpack_pack_array(p, n);
  for (uint32_t i = 0; i < n; i++) put_name(p, &name[i], form);
}

/* An event of a type, with so many members behind the type. */
static void begin_event(msgpack_packer *p, kv_form form, const char *type, size_t n_members) {
  if (form.arrays) {
    (void)msgpack_pack_array(p, n_members + 1);
  } else {
    (void)msgpack_pack_map(p, n_members + 1);
    put_text(p, "type");
  }
  put_text(p, type);
}

static void put_member(msgpack_packer *p, kv_form form, const char *name) {
  if (!form.arrays) put_text(p, name);
}

static void put_nil(msgpack_packer *p, kv_form form, const char *name) {
  put_member(p, form, name);
  (void)msgpack_pack_nil(p);
}

static void put_medium(msgpack_packer *p, kv_form form, weft_tier medium) {
  static const char *const words[] = {"GPU", "CPU", "STORAGE"};
  put_member(p, form, "medium");
  put_text(p, words[medium]);
}

/* All layer groups are told as one that keeps every token. */
static void put_group(msgpack_packer *p, kv_form form) {
  put_member(p, form, "group_idx");
  (void)msgpack_pack_uint32(p, 0);
}

/* Of each block the keys that it has beside its tokens. */
static void put_keys(msgpack_packer *p, const kv_chain *chain) {
  const char *salt = chain->domain->salt;
  (void)msgpack_pack_array(p, chain->n);
  for (uint32_t i = 0; i < chain->n; i++) {
    if (salt[0] != 0 && (chain->domain->is_private || (chain->first && i == 0))) {
      (void)msgpack_pack_array(p, 1);
      put_text(p, salt);
    } else {
      (void)msgpack_pack_nil(p);
    }
  }
}

void kv_batch_clear_all(kv_batch *b) {
  msgpack_packer p = packer_of(&b->events);
  begin_event(&p, b->form, "AllBlocksCleared", 0);
  b->n += 1;
}

void kv_batch_store(kv_batch *b, const kv_chain *chain) {
  msgpack_packer p = packer_of(&b->events);
  uint32_t n_tokens = chain->tokens == NULL ? 0 : chain->n * chain->unit_tokens;
  begin_event(&p, b->form, "BlockStored", 10);
  put_member(&p, b->form, "block_hashes");
  put_names(&p, chain->name, chain->n, b->form);
  put_member(&p, b->form, "parent_block_hash");
  if (chain->before == NULL)
    (void)msgpack_pack_nil(&p);
  else
    put_name(&p, chain->before, b->form);
  put_member(&p, b->form, "token_ids");
  (void)msgpack_pack_array(&p, n_tokens);
  for (uint32_t i = 0; i < n_tokens; i++) (void)msgpack_pack_int32(&p, chain->tokens[i]);
  put_member(&p, b->form, "block_size");
  (void)msgpack_pack_uint32(&p, chain->unit_tokens);
  put_nil(&p, b->form, "lora_id");
  put_medium(&p, b->form, chain->medium);
  put_nil(&p, b->form, "lora_name");
  put_member(&p, b->form, "extra_keys");
  put_keys(&p, chain);
  put_group(&p, b->form);
  put_member(&p, b->form, "kv_cache_spec_kind");
  put_text(&p, "full_attention");
  b->n += 1;
}

void kv_batch_remove(kv_batch *b, weft_tier medium, const kv_name *name, uint32_t n) {
  msgpack_packer p = packer_of(&b->events);
  begin_event(&p, b->form, "BlockRemoved", 3);
  put_member(&p, b->form, "block_hashes");
  put_names(&p, name, n, b->form);
  put_medium(&p, b->form, medium);
  put_group(&p, b->form);
  b->n += 1;
}

weft_status kv_batch_close(kv_batch *b, double time, uint32_t rank, weft_text *out) {
  msgpack_packer p = packer_of(out);
  (void)msgpack_pack_array(&p, 3);
  (void)msgpack_pack_double(&p, time);
  (void)msgpack_pack_array(&p, b->n);
  weft_text_append(out, b->events.bytes, b->events.n);
  (void)msgpack_pack_uint32(&p, rank);
  weft_status status = b->events.refused ? WEFT_E_NO_MEMORY : weft_text_status(out);
  weft_text_clear(&b->events);
  b->n = 0;
  return status;
}

void kv_batch_free(kv_batch *b) {
  weft_text_free(&b->events);
}
#endif
