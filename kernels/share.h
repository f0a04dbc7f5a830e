/* SPDX-License-Identifier: MIT */
/* Weights that other processes use where they lie: the owner's side and the worker's side of a device.
 *
 * Law: a device that was opened with config.shares is an owner. Its weights lie in pieces of memory that can be handed
 * to other processes as file descriptors, and stay there until the device is closed: freeing a weight gives nothing
 * back. After seal no weight is placed any more, and what can be is made unchangeable: on ref and cpu there is one
 * piece, a file in memory without a name (memfd) that nobody, the owner included, can write, shorten or lengthen; on
 * cuda a piece is memory of the card that the driver exports (VMM), which lives as long as a process has it mapped, and
 * which is mapped for reading alone where the driver has such mappings. Any device maps pieces of an owner of its
 * backend, on cuda of the same card. What is mapped is the caller's until it unmaps it, and no device frees it.
 *
 * There is a second transport, ipc, which hands over a name in place of a descriptor: on cuda the handle of a plain
 * allocation (cudaIpc), for which the owner's arena maps nothing; on ref and cpu the path of the owner's descriptor in
 * /proc. A name holds while the owner lives, and so does what is mapped by it: who uses it after the owner's end must
 * stop. It is mapped for writing, too, where the card has no other way. */
#ifndef WEFT_KERNELS_SHARE_H
#define WEFT_KERNELS_SHARE_H

#include "kernels/device.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { WEFT_SHARE_NAME_BYTES = 64 };

/* By what another process maps a piece. */
typedef struct weft_share_handle {
  int fd;           /* -1: a name */
  uint32_t n_bytes; /* of the name; 0: a descriptor */
  uint8_t bytes[WEFT_SHARE_NAME_BYTES];
} weft_share_handle;

/* How pieces of an owner go from process to process: "memfd", "vmm" or "ipc"; NULL: it is none, or its backend or card
 * cannot share so. */
const char *weft_share_transport(weft_device *device);
/* Whether the device maps what comes by this transport. */
bool weft_share_takes(weft_device *device, const char *transport);
/* Whether what is mapped by it holds after its owner's end. */
bool weft_share_outlives(const char *transport);
/* Ends the placing of weights. Errors: INVALID (no owner), NO_MEMORY, IO, DEVICE. */
weft_status weft_share_seal(weft_device *device, weft_error *error);
/* Of an owner: how many pieces there are, and the bytes of one. */
uint32_t weft_share_n_pieces(weft_device *device);
uint64_t weft_share_piece_bytes(weft_device *device, uint32_t piece);
/* Of an owner: in which piece placed weights lie, and where there. False: they lie in none. */
bool weft_share_find(weft_device *device, const void *data, uint32_t *piece, uint64_t *at);
/* Of an owner: a handle of a sealed piece, whose descriptor the caller closes. */
weft_status weft_share_export(weft_device *device, uint32_t piece, weft_share_handle *out, weft_error *error);
/* Maps a piece of n_bytes; the descriptor may be closed afterwards. FORMAT, with a line: it is no piece of an owner, or
 * one that could still change. Other errors: NO_MEMORY, UNSUPPORTED, DEVICE. */
weft_status weft_share_map(weft_device *device, const weft_share_handle *handle, uint64_t n_bytes, const void **out,
                           weft_error *error);
void weft_share_unmap(weft_device *device, const void *memory, uint64_t n_bytes);
/* Whether the mappings of the device are for reading alone, so that no worker can change what others compute with. */
bool weft_share_is_read_only(weft_device *device);
/* Fills type, layout and n_bytes of a weight (whose type of the file, n_in, n_out and n_mats are set) as placing it
 * would, without placing it: what a worker must find. Errors: as weft_device_weight. */
weft_status weft_share_expect(weft_device *device, weft_weight *weight, unsigned uses, weft_error *error);

#ifdef __cplusplus
}
#endif
#endif
