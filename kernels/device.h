/* SPDX-License-Identifier: MIT */
/* A device: where the bytes of weights, KV and activations live, and the stream of work that computes on them.
 *
 * Law: every call takes its device; there is no current device and no global state. Enqueued work runs in order on the
 * device's one stream. Streams of different devices run beside one another: what one device sends to another is there
 * for work that follows a mark of the sender (weft_device_send, weft_device_follow). Ops never allocate memory. A
 * device error is a status; after WEFT_E_DEVICE the device is lost and only close may follow. Pointers from
 * weft_device_alloc are device pointers: only ops, upload, download, copy and zero may read or write what they point to
 * (on ref and cpu it is ordinary memory). The calls on a device come from one thread at a time, but for get_info and
 * those that say otherwise. */
#ifndef WEFT_KERNELS_DEVICE_H
#define WEFT_KERNELS_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/log.h"
#include "base/status.h"
#include "kernels/quant.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weft_device weft_device;
struct weft_kernels;

/* A weight on a device: n_mats matrices [n_out, n_in], held as `type`. Only the backend knows what layout means (0: as
 * in the file). */
typedef struct weft_weight {
  weft_type type;
  uint32_t layout;
  uint32_t n_in;    /* elements of a row: the contiguous dimension, summed over by a product */
  uint32_t n_out;   /* rows of one matrix */
  uint32_t n_mats;  /* 1, or experts */
  const void *data; /* device memory, in `layout`; NULL: absent */
  uint64_t n_bytes;
  const float *scale; /* [n_mats] device memory: what products with each matrix are multiplied by; NULL: ones */
} weft_weight;

/* How a weight will be read, as bits that may be combined; the backend chooses the layout by them. */
typedef enum weft_weight_use {
  WEFT_USE_MATMUL = 1, /* y = x W^T */
  WEFT_USE_EXPERTS = 2,
  WEFT_USE_EMBED = 4, /* rows are looked up and, tied, multiplied by the head and by soft embeddings */
  WEFT_USE_TABLE = 16 /* beside EMBED: a few rows are looked up and nothing else, so it may lie in host memory */
} weft_weight_use;

/* How an owner hands its weights to other processes; kernels/share.h. */
typedef enum weft_share_by {
  WEFT_SHARE_NOT = 0,         /* it is none */
  WEFT_SHARE_AUTO = 1,        /* by descriptors where the device can, else by names */
  WEFT_SHARE_DESCRIPTORS = 2, /* which keep the memory: memfd, vmm */
  WEFT_SHARE_NAMES = 3        /* which hold while the owner lives: ipc */
} weft_share_by;

typedef struct weft_device_config {
  const char *backend;   /* "ref", "cpu", "cuda"; NULL: the best there is */
  uint32_t index;        /* cuda: which card, from 0; on other backends a name that nothing depends on */
  bool no_peer;          /* cuda: this card does not reach the memory of others; what it sends goes through the host */
  uint32_t n_threads;    /* 0: all cores this process may use */
  const char *isa;       /* cpu: "portable", "avx2" or "avx512"; cuda: a kernel set, "hopper" or "portable"; what the
                            machine cannot run is refused; NULL: the best there is */
  bool no_graphs;        /* cuda: every step call by call; the same bits */
  bool no_arena;         /* cuda: weights in plain memory; the same bits */
  bool no_deterministic; /* cuda: sums are cut as suits the number of rows, so a row's bits may depend on the others */
  uint32_t products;     /* bits of the numbers in products with quantised weights, 8 or 16 [0: the backend's own
                                 choice: 8 on cpu, 16 on cuda]; what a backend does not have is refused */
  bool
      eight_beside; /* with products 0: 8 where the backend, or the card's kernel set, has products of 8 bits beside its
                        own choice; where it has none, or no others, that is no error */
  bool integers;    /* cuda, with products of 8 bits: weights lie on the card a second time as the integers that are
                    multiplied, so products of many rows make none: the same bits, faster, for more memory */
  uint64_t weights_bytes_max; /* cuda: most of the card's memory for weights [0: 7/8 of what is free]; experts beyond
                                 it stay in host memory and are copied over at each use: the same bits; with integers
                                 they are refused */
  bool ahead;                 /* cuda: its kernels go before those of other openings of the card */
  weft_share_by shares;       /* an owner of weights that other processes use (kernels/share.h) */
  uint64_t memory_bytes_max;  /* ref, cpu: most memory that alloc and weights take; more is refused [0: no bound] */
  weft_log_settings log;      /* filled in by weft_device_open: a module has a log of its own */
} weft_device_config;

/* Counts of steps between graph_begin and graph_end, by how they ran. */
typedef struct weft_graph_counters {
  uint64_t eager;    /* ran call by call: their signature was new, or their tables did not fit */
  uint64_t captures; /* recorded as a graph, then launched */
  uint64_t launches; /* graphs launched */
  uint64_t patched;  /* launches that needed new tables only */
  uint64_t nodes;    /* kernels and copies in the graphs launched */
  uint64_t refused;  /* 1: the device gave up on graphs */
} weft_graph_counters;

typedef struct weft_device_info {
  const char *backend; /* "ref" | "cpu" | "cuda" */
  const char *isa;     /* "portable", "avx2", "avx512-vnni", "sm_90", ... */
  const char *set;     /* cuda: the kernel set; else NULL */
  bool isa_forced;     /* the config named the instructions or the set */
  uint32_t capability; /* of a card: 90 is compute capability 9.0; 0: host memory */
  uint32_t index;      /* of the config */
  char card[40];       /* what tells the card from all others, wherever it is seen; of host memory "host" */
  char name[96];
  uint32_t n_threads;
  uint64_t memory_bytes;      /* total */
  uint64_t memory_free_bytes; /* at open */
  /* What the card's clocks give at most, as it was asked at open: bytes of its memory and operations of products of 16
   * bits, a second. 0: not known. Nothing is chosen by them; measurements put their floors by them. */
  double memory_rate, product_rate;
  bool host_memory;      /* device pointers are ordinary memory: nothing need be uploaded */
  bool immediate;        /* what is enqueued is computed before the call returns: nothing runs beside the host */
  bool graphs;           /* steps that come again are recorded */
  uint32_t products;     /* bits of the numbers in products with quantised weights; ref: 32 */
  bool has_eight_beside; /* products of 8 bits and others: 16 bits on cuda, 32 on ref */
  bool integers;         /* weights lie there as integers too */
} weft_device_info;

/* config NULL: all defaults. The caller owns *out and closes it. Errors, each with a line in *error: UNSUPPORTED (there
 * is no such backend here), NO_MEMORY, DEVICE. */
weft_status weft_device_open(const weft_device_config *config, weft_device **out, weft_error *error);
void weft_device_close(weft_device *device);
/* The laboratory's place, in the whole process: from now on `opened` gets every device that weft_device_open has
 * opened, before its caller does. NULL: nobody does. Not while another thread opens devices. */
void weft_device_on_open(void (*opened)(void *self, weft_device *device), void *self);
const weft_device_info *weft_device_get_info(const weft_device *device);
const struct weft_kernels *weft_device_kernels(const weft_device *device);
/* By which family of kernels each op runs on the device, and whether the config forced it: one line, with the ops of a
 * family together. */
enum { WEFT_PATHS_MAX = 512 };
void weft_device_paths(const weft_device *device, char *out, size_t n);
/* The same of every backend that this program has, whether or not a device of it can be opened here: a line each. */
void weft_device_list_backends(char *out, size_t n);

/* Device memory, aligned to 256 bytes; its content is undefined. Errors: NO_MEMORY, DEVICE. */
weft_status weft_device_alloc(weft_device *device, uint64_t n_bytes, void **out);
void weft_device_free(weft_device *device, void *memory);
/* Bytes of device memory that may be allocated now: what is free of the bound where there is one, else of the machine,
 * or of the card less what stays free for its driver. */
uint64_t weft_device_memory_left(weft_device *device);
/* Memory that the host and every device of the backend may read and write where it lies: pinned on cuda, ordinary
 * elsewhere. It is aligned to 64 bytes, and slow for the device. What the device wrote is there after a sync. Errors:
 * as alloc. */
weft_status weft_device_alloc_host(weft_device *device, uint64_t n_bytes, void **out);
void weft_device_free_host(weft_device *device, void *memory);
/* upload copies from the host, and `from` may be reused when it returns; download to the host, and returns when the
 * bytes are there. copy and zero only enqueue; a copy may also be between memory of alloc_host and of any device. */
weft_status weft_device_upload(weft_device *device, void *to, const void *from, uint64_t n_bytes);
weft_status weft_device_download(weft_device *device, void *to, const void *from, uint64_t n_bytes);
weft_status weft_device_copy(weft_device *device, void *to, const void *from, uint64_t n_bytes);
weft_status weft_device_zero(weft_device *device, void *to, uint64_t n_bytes);
/* Waits until everything enqueued has run. */
weft_status weft_device_sync(weft_device *device);

/* Several devices of one backend. send enqueues on `from`, in the order of its work, a copy of n_bytes to memory of
 * `to`, which may be the same device. follow has work that is enqueued on `device` from now on begin after the work
 * before the last `mark` of `other`; it enqueues and does not wait, and does nothing where that mark was never set. So
 * work of `to` sees what was sent once it follows a mark that `from` set after send, and `from` may send to the same
 * place again once it follows a mark that `to` set after that work. Neither may be part of a graph. Errors: INVALID
 * (the backends differ, or a graph is being made), DEVICE. */
enum { WEFT_DEVICES_MAX = 16 };
weft_status weft_device_send(weft_device *from, weft_device *to, void *to_memory, const void *from_memory,
                             uint64_t n_bytes);
weft_status weft_device_follow(weft_device *device, weft_device *other, uint32_t mark);
/* Whether ops and copies of `device` may read and write what weft_device_alloc of `other` gave: always on ref and cpu,
 * and between cards that reach each other's memory. What is sent between others goes through host memory. */
bool weft_device_reaches(weft_device *device, weft_device *other);
/* Whether a call of the device has ever reported DEVICE. From any thread. */
bool weft_device_broken(const weft_device *device);

/* Marks 0 .. WEFT_MARKS_MAX - 1 in the order of enqueued work: wait returns when the work before the mark has run. Any
 * thread may wait for a mark that was set before. */
enum { WEFT_MARKS_MAX = 32 };
weft_status weft_device_mark(weft_device *device, uint32_t mark);
weft_status weft_device_wait(weft_device *device, uint32_t mark);

/* A step that comes again and again with the same calls: a device that has graphs records it and repeats it with one
 * launch (kernels/graphs.h); on any other device the step just runs. The step must be enqueued as often as end says:
 *   weft_device_graph_begin(device, key, NULL);
 *   do status = enqueue(); while (weft_device_graph_end(device, &status));
 * In between there may be ops, copies, zeroing and uploads, on memory that stays where it is from step to step. A step
 * of another key is another step, even where all calls are the same. */
/* vote: of devices that compute one step together and wait for one another within it, each on a thread of its own. All
 * of them launch a graph of the step, or all run it call by call: `all` is called once for a step and device, returns
 * when it was called for every device or one has failed, and says whether each was ready to launch. NULL: it is one. */
typedef struct weft_graph_vote {
  bool (*all)(void *self, bool ready);
  void *self;
} weft_graph_vote;
void weft_device_graph_begin(weft_device *device, uint64_t key, const weft_graph_vote *vote);
bool weft_device_graph_end(weft_device *device, weft_status *status);
/* Steps that are recorded from now on are of this owner, a number below 2^24. take_graphs: forgets those of an owner,
 * between two steps, and writes them to *out, which free_graphs gives back to the driver: from any thread, once what
 * was launched of them has ended. Neither waits. */
enum { WEFT_GRAPHS_MAX = 48 };
typedef struct weft_graphs_taken {
  uint32_t n;
  void *graph[WEFT_GRAPHS_MAX];
} weft_graphs_taken;
void weft_device_graph_owner(weft_device *device, uint32_t owner);
void weft_device_take_graphs(weft_device *device, uint32_t owner, weft_graphs_taken *out);
void weft_device_free_graphs(weft_device *device, const weft_graphs_taken *taken);
/* All zero without graphs. Any thread may call. */
weft_graph_counters weft_device_graph_counters(const weft_device *device);
/* The smallest bucket size that is not below n. Sizes of steps are rounded up to few buckets, so that steps repeat: at
 * most by an eighth, and not at all up to 15. */
uint32_t weft_device_bucket(uint32_t n);

/* Places a stored weight on the device in the layout that suits its uses (weft_weight_use). file_bytes are only read
 * during the call. The caller sets weight->type (of the file), n_in, n_out and n_mats; afterwards weight->type is the
 * type that devices hold it as (kernels/quant.h). The caller frees it by weft_device_weight_free. Errors, each with a
 * line in *error: UNSUPPORTED (the backend cannot multiply the type), INVALID, NO_MEMORY, DEVICE. */
weft_status weft_device_weight(weft_device *device, weft_weight *weight, const void *file_bytes, unsigned uses,
                               weft_error *error);
void weft_device_weight_free(weft_device *device, weft_weight *weight);
/* Places a weight from a file. A device with memory of its own reads the bytes as it needs them; others take `bytes`.
 * Errors: as weft_device_weight, and IO. */
enum { WEFT_READ_ALIGN = 4096 };
typedef struct weft_weight_source {
  const void *bytes; /* all file bytes of the weight */
  /* Reads bytes [at, at + n_bytes) of the weight to `to` + *skip; NULL: there is no file. `to` is a multiple of
   * WEFT_READ_ALIGN and has room for n_bytes + 2 * WEFT_READ_ALIGN. IO: the file ended or could not be read. */
  weft_status (*read)(void *self, uint64_t at, uint64_t n_bytes, uint8_t *to, uint32_t *skip);
  void *self;
} weft_weight_source;
weft_status weft_device_weight_read(weft_device *device, weft_weight *weight, const weft_weight_source *source,
                                    unsigned uses, weft_error *error);
/* Weights that are loaded from now on lie on the device as integers too, or do not: the same bits. Before any weight is
 * loaded. False: the device keeps none (its backend has none, or products of 16 bits). */
bool weft_device_keep_integers(weft_device *device, bool keep);
/* Bytes that the device will take for the integers of a weight, besides its codes: a plan's number that the backend
 * makes from type (of the file), n_in, n_out and n_mats. 0: the device keeps none of this weight, or is NULL. */
uint64_t weft_device_integers_bytes(const weft_device *device, const weft_weight *weight, unsigned uses);
/* Weights that are placed beside steps of another opening of the same device: pace is called on the thread that places
 * them, between two pieces of a weight, with the microseconds that the device spent on the piece before; it may wait.
 * A card cuts weights into pieces of a few MiB then. NULL: none is called. Backends that place a weight at once call
 * it between two weights. */
typedef void (*weft_piece_pace)(void *self, uint64_t device_us);
void weft_device_set_pace(weft_device *device, weft_piece_pace pace, void *self);
/* How rows of activations lie in memory for the products that read them: F32, or a form of the backend's own, which no
 * other code looks into. In such a form rows are handed on whole, from the op that leaves them to the one that reads
 * them, and strides mean nothing. */
typedef uint32_t weft_rows_form;
enum { WEFT_ROWS_F32 = 0 };
/* Which op leaves the rows, and which one reads them. */
typedef enum weft_rows_way {
  WEFT_ROWS_TO_MATMUL = 0, /* from a norm to a matmul or a shared MLP */
  WEFT_ROWS_TO_EXPERTS,    /* from a norm to the stacks of experts */
  WEFT_ROWS_FROM_ATTENTION /* from attention to a matmul */
} weft_rows_way;
/* The form in which n_rows rows on their way need no conversion before they are multiplied by this weight, or F32. A
 * product takes rows in another form than f32 where this gives it for all its weights; bits are the same. plain_rows:
 * it is F32 from now on, for a watch that reads rows. */
weft_rows_form weft_device_rows_form(const weft_device *device, const weft_weight *weight, uint32_t n_rows,
                                     weft_rows_way way);
/* Bytes of memory that n_rows rows of n_cols numbers take in a form: for one that weft_device_rows_form gave at most
 * those of f32, so that buffers of f32 have room for it. */
uint64_t weft_device_rows_bytes(const weft_device *device, weft_rows_form form, uint32_t n_rows, uint32_t n_cols);
void weft_device_plain_rows(weft_device *device, bool on);
/* Where the weights lie that were placed; all 0 on devices that do not count. */
typedef struct weft_weights_report {
  uint64_t n_bytes;        /* of weights in device memory */
  uint64_t n_bytes_held;   /* of device memory taken for them */
  uint64_t n_bytes_host;   /* of experts in host memory */
  uint64_t n_bytes_tables; /* of weights with WEFT_USE_TABLE in host memory, where the device reads them */
} weft_weights_report;
weft_weights_report weft_device_weights(const weft_device *device);
/* Whether weights with WEFT_USE_TABLE that are placed now take host memory instead of the device's. */
bool weft_device_reads_host_tables(const weft_device *device);

/* For checks: watch is called before (done false) and after (done true) each op, with the layer that
 * weft_device_at_layer named last, the op's name and its argument struct. Where it returns false before an op, the op
 * does not run, and the watch has to give its outputs. NULL turns this off. */
typedef bool (*weft_op_watch)(void *self, uint32_t layer, const char *op, const void *args, bool done);
void weft_device_watch(weft_device *device, weft_op_watch watch, void *self);
/* For experiments: from now on no kernel begins before the kernel before it has ended (cuda: launches are no longer
 * programmatic dependent ones), or it may again; the same bits. A graph goes on as it was recorded. */
void weft_device_serial_kernels(weft_device *device, bool on);
void weft_device_at_layer(weft_device *device, uint32_t layer);
/* The inverse of weft_device_weight, for tests: writes the weight as blocks of weight->type to host memory. */
weft_status weft_device_weight_unpack(weft_device *device, const weft_weight *weight, void *file_bytes);

#ifdef __cplusplus
}
#endif
#endif
