/* SPDX-License-Identifier: MIT */
/* What weft_open opens and weft_close frees: models, device, KV store and engine. For the files of api/ only.
 *
 * Law: weft_open fills in everything; until weft_close only the engine, the formats, tenants that come into places and
 * what devices say of themselves change. */
#ifndef WEFT_API_RUNTIME_H
#define WEFT_API_RUNTIME_H

#include <stdio.h>

#include "api/devices.h"
#include "api/formats.h"
#include "api/keep.h"
#include "api/model_drafter.h"
#include "api/weft.h"
#include "base/clock.h"
#include "base/text.h"
#include "model/kv_store.h"
#include "model/model.h"
#include "model/runner/device_runner.h"
#include "model/text/chat.h"
#include "model/text/tokenizer.h"
#include "scheduler/replicas.h"

/* A model as one replica has it. */
typedef struct weft_model_copy {
  weft_model *model;
  weft_split split;      /* on which devices its layers lie */
  weft_model *assistant; /* a drafter that reads its keys, or the layer of its file that drafts; NULL: none */
  weft_runner *runner;
  uint64_t runner_bytes;
} weft_model_copy;

/* One model that is served. The runtime owns everything that it points to. */
typedef struct weft_served_model {
  char *path, *file_name, *name; /* name: what clients call it; alias: what they may call it, too */
  char **alias;
  uint32_t n_aliases;
  int64_t created; /* when its file was written, in seconds since 1970 */
  /* It is of --models-dir: copy has its plan and a guest runner, and while it is loaded residents.h the rest. */
  bool comes_and_goes;
  weft_gguf *gguf;
  weft_model_copy copy[WEFT_DEVICES_MAX]; /* [devices_n_replicas]; all alike but for where they lie */
  weft_model *model;                      /* the first copy's, as runner is: for what is the same of all */
  weft_split_reason split_reason;
  weft_tokenizer *tokenizer;
  weft_chat *chat;     /* NULL: its chat template is missing or cannot be rendered */
  bool other_template; /* chat renders another template than the file's own */
  weft_error no_chat;  /* the reason, if chat is NULL */
  weft_formats *formats;
  weft_runner *runner;
  weft_kv_layout layout;
  uint32_t context;       /* longest prompt + answer */
  weft_sampling sampling; /* what a request gets that leaves these open (answer_defaults.h) */
  weft_draft draft;       /* the same of drafts, n_max the most for any request; has_drafts: some may have them */
  bool has_drafts;
  char *draft_file;     /* --draft model: the file of the model that drafts for this one; NULL: none */
  weft_gguf *assistant; /* that file, where it is of a drafter that reads this one's keys, and so no model; else NULL */
  bool draft_canvas;    /* --draft canvas: it drafts for itself by diffusion */
  bool draft_nextn;     /* --draft mtp: the layer of its own file that guesses ahead drafts (model/nextn.h) */
  weft_entropy_bound entropy_bound;
  struct weft_expert_loads *loads; /* of its experts; of a model without any, or not loaded yet, nothing */
} weft_served_model;

_Static_assert((int)WEFT_REPLICAS_MAX == (int)WEFT_DEVICES_MAX, "each device may be a replica");

/* What a start does, one after the other, and when each had been done. */
typedef enum weft_start_part {
  WEFT_START_FILES,
  WEFT_START_DEVICES, /* vocabularies and chat templates are read beside it */
  WEFT_START_TEXTS,   /* what it had to wait for those then */
  WEFT_START_WEIGHTS,
  WEFT_START_MEMORY, /* of keys and values */
  WEFT_START_RUNNERS,
  WEFT_START_ENGINE,
  WEFT_START_PARTS
} weft_start_part;

enum { WEFT_SALT_SECRET = 192, WEFT_LOAD_TENANTS_MAX = 64 };

struct weft_runtime {
  weft_open_options options; /* with defaults filled in; its strings are the caller's and not read after weft_open */
  weft_devices devices;
  weft_weights *weights;                  /* of another process; NULL: this one loads its own */
  bool otherwise;                         /* the open failed since those were made for other layouts or numerics */
  bool anew;                              /* so this process loads them in a second try (--else-anew) */
  uint32_t n_replicas;                    /* devices_n_replicas */
  uint32_t rows_beside;                   /* of a step for which somebody waits; of others options.rows (step_rows.h) */
  weft_kv_store *store[WEFT_DEVICES_MAX]; /* [n_replicas] */
  weft_keep *keep;                        /* NULL: no prefixes outlive it */
  weft_replicas *replicas;
  weft_served_model *model; /* [n_models] the first n_served are served; the others only draft (drafts.h) */
  uint32_t n_models, n_served;
  struct weft_residents *residents;         /* NULL: no model comes and goes */
  uint64_t models_bytes;                    /* of memory for those that do */
  weft_pool_calls pool;                     /* n_pages_max 0: the pool keeps its size (shared_room.h) */
  struct models_preset *preset;             /* NULL: none is read */
  char *load_tenant[WEFT_LOAD_TENANTS_MAX]; /* [n_load_tenants] whose requests may have one loaded; none: all */
  uint32_t n_load_tenants;
  model_drafter *drafter[WEFT_DEVICES_MAX];     /* [n_replicas] NULL: no model drafts */
  uint32_t n_pages, n_host_pages, n_file_pages; /* of each replica */
  uint64_t page_bytes;
  char **tenant_name;       /* [options.tenants] those below n_named never change; what comes after them has none yet */
  _Atomic uint32_t n_named; /* grows by weft_tenants_set alone (api/tenants.h) */
  uint8_t salt_secret
      [WEFT_SALT_SECRET]; /* drawn at open: who may choose a salt cannot search for one that is like another */
  weft_text plan;
  uint64_t start_us[WEFT_START_PARTS + 1]; /* [part + 1] when it was done; [0] when the start began */
  bool has_seed;                           /* --seed was given */
  uint64_t seed;
  _Atomic uint64_t n_seeds; /* requests that got one of its row */
  /* Of each device, what weft_unwell, and of each replica what weft_degraded says when it broke. */
  char unwell[WEFT_DEVICES_MAX][192], degraded[WEFT_DEVICES_MAX][224];
};

/* The first part of weft_open: options, devices and files are there, and it is decided whether integers of weights are
 * kept; no weight is loaded. shares: whether and how the devices hand weights to other processes (api/weights_owner.h).
 * The caller ends it with weft_close, after a failure too. */
weft_status weft_runtime_begin(weft_runtime *runtime, const weft_open_options *options, weft_share_by shares,
                               weft_error *error);
/* One more model in rt->model, its header read; m is the last one then, after a failure too. Of one that comes and goes
 * its vocabulary and chat template too, which weft_runtime_begin reads of the others. */
weft_status weft_runtime_open_file(weft_runtime *runtime, const char *path, bool comes_and_goes, weft_error *error);
/* Its vocabulary and chat template; may run beside what opens devices. */
weft_status weft_runtime_open_text(const weft_runtime *runtime, weft_served_model *model, weft_error *error);
/* Its weights, or of a model that comes and goes its plan. */
weft_status weft_runtime_load(weft_runtime *runtime, weft_served_model *model, weft_error *error);
/* Frees what a model has; the entry is empty then. */
void weft_runtime_forget(weft_served_model *model);
weft_model_limits weft_runtime_limits(const weft_runtime *runtime, const weft_served_model *model);
weft_device_runner_config weft_runtime_runner_config(const weft_runtime *runtime, uint32_t model, uint32_t replica);
/* The model of a name. name NULL: the first; where one model is served, it answers to any name. NULL with a line when
 * there is no such model. */
const weft_served_model *weft_runtime_model(const weft_runtime *runtime, const char *name, uint32_t *index,
                                            weft_error *error);
/* weft_pin; wanted: the number that the pin gets where it is free (weft_pin_params.id). */
weft_status weft_runtime_pin(weft_runtime *runtime, const weft_prefix *prefix, uint32_t wanted, uint32_t *id,
                             weft_error *error);
/* The sharing domain of a tenant: prefixes that are cached in one domain are found by requests of the same domain
 * only. One for each tenant, or with --shared-cache one for all. A request's cache_salt narrows it further:
 * answer_limits_domain (answer_limits.h). */
static inline weft_key128 weft_runtime_domain(const weft_runtime *runtime, uint32_t tenant) {
  return (weft_key128){runtime->options.shared_cache ? 0u : tenant + 1u, 0x7765667430303031ull};
}
/* A domain says whose it is: the tenant's number in its low bits, or, where a salt narrows it, in the low bits of its
 * high half, whose first bit is set then; the other bits are a digest of the salt. Files of kept prefixes rely on it. */
#define WEFT_DOMAIN_SHARED UINT32_MAX
enum { WEFT_DOMAIN_TENANT_BITS = 0xFFFF };
static inline bool weft_domain_is_salted(weft_key128 domain) {
  return domain.high >> 63 != 0;
}
/* The tenant of a domain that is not public; WEFT_DOMAIN_SHARED: of all tenants. */
static inline uint32_t weft_domain_tenant(weft_key128 domain) {
  uint32_t own = (uint32_t)((weft_domain_is_salted(domain) ? domain.high : domain.low) & WEFT_DOMAIN_TENANT_BITS);
  return own == 0 ? WEFT_DOMAIN_SHARED : own - 1;
}
static inline weft_key128 weft_domain_salt(weft_key128 domain) {
  return (weft_key128){domain.low, domain.high & ~(uint64_t)WEFT_DOMAIN_TENANT_BITS};
}
/* The domain of a tenant (weft_runtime_domain), narrowed by a digest. */
static inline weft_key128 weft_domain_with_salt(weft_key128 domain, weft_key128 digest) {
  uint64_t other = digest.high & ~(uint64_t)WEFT_DOMAIN_TENANT_BITS;
  return (weft_key128){digest.low, (uint64_t)1 << 63 | other | (domain.low & WEFT_DOMAIN_TENANT_BITS)};
}
/* The cache of a model as routers count it: tokens of a block, the largest of the model's layer groups, at whose ends
 * hits end; and how many such blocks of it fill the pools of all replicas while no other model has pages. */
typedef struct weft_cache_size {
  uint32_t block_tokens;
  uint64_t n_blocks;
} weft_cache_size;
weft_cache_size weft_runtime_cache(const weft_runtime *runtime, uint32_t model);
/* A line that names the first replica that broke while the others go on, or says that the owner of the weights has
 * ended, while all goes on; NULL: there is no such news. Until weft_close. */
const char *weft_degraded(const weft_runtime *runtime);
/* Can be read, or is hung up, when the owner of the weights has ended; -1: they are this process' own. */
int weft_runtime_owner(const weft_runtime *runtime);
/* Copies the line of a weft_error to the caller's buffer and returns the status as int. */
static inline int weft_tell(const weft_error *from, weft_status status, char *error, size_t n_error) {
  if (error != NULL && n_error > 0) {
    (void)snprintf(error, n_error, "%s", from->text[0] != 0 ? from->text : weft_status_text(status));
  }
  return (int)status;
}

/* Why an answer that has tokens has no text, for those who asked: what follows says what to do. */
#define WEFT_NO_TEXT                                                                                               \
  "the answer has no text: its tokens are padding or control tokens, which models that were taught conversations " \
  "give to a bare text"

#endif
