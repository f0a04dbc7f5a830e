/* SPDX-License-Identifier: MIT */
/* Memory of the card for weights: the arena's calls, and pieces that other processes map (kernels/share.h).
 *
 * Law: an owner's pieces are mapped memory of the card (VMM) whose handles the driver exports as file descriptors. A
 * process that maps one keeps it, whatever becomes of the owner. Where the card exports none, or the owner is told so,
 * they are plain allocations, each from its beginning on, which other processes open by name (cudaIpc) while the owner
 * lives; the arena maps nothing then. */
#include <string.h>

#include "base/log.h"
#include "kernels/cuda/cuda.h"

#include <cuda.h>

/* ---- the arena ------------------------------------------------------------------------------------------- */

typedef struct driver_calls {
  decltype(&cuMemAddressReserve) reserve;
  decltype(&cuMemAddressFree) release;
  decltype(&cuMemCreate) create;
  decltype(&cuMemRelease) free_handle;
  decltype(&cuMemMap) map;
  decltype(&cuMemUnmap) unmap;
  decltype(&cuMemSetAccess) set_access;
  decltype(&cuMemGetAllocationGranularity) grain;
  decltype(&cuMemRetainAllocationHandle) retain;
  decltype(&cuMemExportToShareableHandle) export_handle;
  decltype(&cuMemImportFromShareableHandle) import_handle;
  decltype(&cuDeviceGet) device;
  decltype(&cuDeviceGetAttribute) attribute;
  bool shares; /* the last five are there */
} driver_calls;

static driver_calls driver; /* the same for every device of the process */

template <typename F>
static bool find_call(const char *name, F *out) {
  void *found = NULL;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  cudaError_t error = cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result);
  if (error != cudaSuccess) (void)cudaGetLastError();
  *out = (F)found;
  return error == cudaSuccess && result == cudaDriverEntryPointSuccess && found != NULL;
}

/* Memory of the card. */
static CUmemAllocationProp memory_of(const cuda_device *d) {
  CUmemAllocationProp p;
  memset(&p, 0, sizeof p);
  p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  p.location.id = d->card;
  if (d->base.shares) p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return p;
}

/* The unit in which the card maps memory; 0: it cannot. */
static uint64_t find_grain(const cuda_device *d) {
  bool found = find_call("cuMemAddressReserve", &driver.reserve) && find_call("cuMemAddressFree", &driver.release) &&
               find_call("cuMemCreate", &driver.create) && find_call("cuMemRelease", &driver.free_handle) &&
               find_call("cuMemMap", &driver.map) && find_call("cuMemUnmap", &driver.unmap) &&
               find_call("cuMemSetAccess", &driver.set_access) &&
               find_call("cuMemGetAllocationGranularity", &driver.grain);
  driver.shares = find_call("cuMemRetainAllocationHandle", &driver.retain) &&
                  find_call("cuMemExportToShareableHandle", &driver.export_handle) &&
                  find_call("cuMemImportFromShareableHandle", &driver.import_handle) &&
                  find_call("cuDeviceGet", &driver.device) && find_call("cuDeviceGetAttribute", &driver.attribute);
  size_t grain = 0;
  CUmemAllocationProp p = memory_of(d);
  if (!found || driver.grain(&grain, &p, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) != CUDA_SUCCESS) return 0;
  return grain;
}

static weft_status judge_driver(CUresult result) {
  if (result == CUDA_SUCCESS) return WEFT_OK;
  return result == CUDA_ERROR_OUT_OF_MEMORY ? WEFT_E_NO_MEMORY : WEFT_E_UNSUPPORTED;
}

static weft_status arena_reserve(void *self, uint64_t n_bytes, void **address) {
  CUdeviceptr at = 0;
  weft_status status = judge_driver(driver.reserve(&at, n_bytes, ((cuda_device *)self)->arena.grain, 0, 0));
  *address = (void *)(uintptr_t)at;
  return status;
}

static void arena_release(void *self, void *address, uint64_t n_bytes) {
  (void)self;
  (void)driver.release((CUdeviceptr)(uintptr_t)address, n_bytes);
}

static weft_status map_memory(const cuda_device *d, void *address, uint64_t n_bytes) {
  CUmemAllocationProp p = memory_of(d);
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr at = (CUdeviceptr)(uintptr_t)address;
  weft_status status = judge_driver(driver.create(&handle, n_bytes, &p, 0));
  if (status != WEFT_OK) return status;
  status = judge_driver(driver.map(at, n_bytes, 0, handle, 0));
  (void)driver.free_handle(handle); /* the mapping keeps it */
  if (status != WEFT_OK) return status;
  CUmemAccessDesc access;
  memset(&access, 0, sizeof access);
  access.location = p.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  status = judge_driver(driver.set_access(at, n_bytes, &access, 1));
  if (status != WEFT_OK) (void)driver.unmap(at, n_bytes);
  return status;
}

static weft_status arena_map(void *self, void *address, uint64_t n_bytes) {
  if (n_bytes > weft_device_memory_left((weft_device *)self)) return WEFT_E_NO_MEMORY;
  return map_memory((const cuda_device *)self, address, n_bytes);
}

static void arena_unmap(void *self, void *address, uint64_t n_bytes) {
  cuda_device *d = (cuda_device *)self;
  if (!d->lost) (void)cudaStreamSynchronize(d->stream);
  (void)driver.unmap((CUdeviceptr)(uintptr_t)address, n_bytes);
}

/* A name is that of a whole allocation of the driver's, of which smaller ones would share one. */
static weft_status arena_alloc(void *self, uint64_t n_bytes, void **out) {
  cuda_device *d = (cuda_device *)self;
  const uint64_t whole = 2 << 20;
  if (d->base.shares == WEFT_SHARE_NAMES) n_bytes = (n_bytes + whole - 1) / whole * whole;
  return cuda_alloc(d, n_bytes, out, "memory for weights");
}

static void arena_free(void *self, void *memory) {
  (void)cuda_judge((cuda_device *)self, cudaFree(memory), "freeing weights");
}

/* The card maps memory and exports what it mapped. */
static bool can_export(cuda_device *d) {
  int can = 0;
  CUdevice card = 0;
  return driver.shares && d->grain != 0 && driver.device(&card, d->card) == CUDA_SUCCESS &&
         driver.attribute(&can, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, card) ==
             CUDA_SUCCESS &&
         can != 0;
}

/* Without a limit, weights leave an eighth of the free memory to everything else. */
void cuda_arena_open(cuda_device *d, uint64_t n_bytes_max, bool plain) {
  static const weight_arena_calls calls = {arena_reserve, arena_release, arena_map,
                                           arena_unmap,   arena_alloc,   arena_free};
  uint64_t free_bytes = d->base.info.memory_free_bytes;
  if (n_bytes_max == 0) n_bytes_max = free_bytes - free_bytes / 8;
  d->grain = find_grain(d); /* a worker's own arena is plain, and it maps all the same */
  if (d->base.shares == WEFT_SHARE_AUTO) d->base.shares = can_export(d) ? WEFT_SHARE_DESCRIPTORS : WEFT_SHARE_NAMES;
  weight_arena_open(&d->arena, &calls, d, plain || d->base.shares == WEFT_SHARE_NAMES ? 0 : d->grain, n_bytes_max);
}

/* ---- stretches (kernels/stretch.h) ----------------------------------------------------------------------- */

static uint64_t stretch_grain(weft_device *device) {
  return cuda_of(device)->grain;
}

static weft_status stretch_reserve(weft_device *device, uint64_t n_bytes, void **address) {
  CUdeviceptr at = 0;
  weft_status status = judge_driver(driver.reserve(&at, n_bytes, cuda_of(device)->grain, 0, 0));
  *address = (void *)(uintptr_t)at;
  return status;
}

static void stretch_release(weft_device *device, void *address, uint64_t n_bytes) {
  (void)device;
  (void)driver.release((CUdeviceptr)(uintptr_t)address, n_bytes);
}

static weft_status stretch_map(weft_device *device, void *address, uint64_t n_bytes) {
  const cuda_device *d = cuda_of(device);
  return d->lost ? WEFT_E_DEVICE : map_memory(d, address, n_bytes);
}

/* What used it has ended, so nothing is waited for; unmapping alone does not wait as freeing would. */
static void stretch_unmap(weft_device *device, void *address, uint64_t n_bytes) {
  (void)device;
  (void)driver.unmap((CUdeviceptr)(uintptr_t)address, n_bytes);
}

const device_stretch_calls *cuda_stretch_calls(void) {
  static const device_stretch_calls calls = {stretch_grain, stretch_reserve, stretch_release, stretch_map,
                                             stretch_unmap};
  return &calls;
}

weft_status cuda_take_weight(cuda_device *d, uint64_t n_bytes, void **out) {
  if (d->lost) return WEFT_E_DEVICE;
  return d->base.holding != NULL ? holding_take(d->base.holding, n_bytes, out)
                                 : weight_arena_take(&d->arena, n_bytes, out);
}

void cuda_give_weight(cuda_device *d, void *memory, uint64_t n_bytes) {
  if (!device_holds(&d->base, memory)) weight_arena_give(&d->arena, memory, n_bytes);
}

/* ---- pieces that other processes map --------------------------------------------------------------------- */

/* The card's plain allocations have names that other processes open. */
static bool can_name(const cuda_device *d) {
  int can = 0;
  cudaError_t error = cudaDeviceGetAttribute(&can, cudaDevAttrIpcEventSupport, d->card);
  if (error != cudaSuccess) (void)cudaGetLastError();
  return error == cudaSuccess && can != 0;
}

static bool share_takes(weft_device *device, const char *transport) {
  cuda_device *d = cuda_of(device);
  return (strcmp(transport, "vmm") == 0 && can_export(d)) || (strcmp(transport, "ipc") == 0 && can_name(d));
}

static const char *share_transport(weft_device *device) {
  const char *transport = device->shares == WEFT_SHARE_NAMES ? "ipc" : "vmm";
  return share_takes(device, transport) ? transport : NULL;
}

static weft_status share_seal(weft_device *device, weft_error *error) {
  cuda_device *d = cuda_of(device);
  if (d->arena.plain && device->shares != WEFT_SHARE_NAMES)
    return weft_fail(error, WEFT_E_UNSUPPORTED,
                     "the card mapped no memory, so none can be handed over by descriptors: give --transport ipc");
  weft_status status = cuda_judge(d, cudaStreamSynchronize(d->stream), "placing weights");
  return status == WEFT_OK ? status : weft_fail(error, status, "the card did not place the weights");
}

static uint32_t share_n_pieces(weft_device *device) {
  return cuda_of(device)->arena.n_pieces;
}

static uint64_t share_piece_bytes(weft_device *device, uint32_t piece) {
  return cuda_of(device)->arena.piece[piece].n_bytes;
}

static bool share_find(weft_device *device, const void *data, uint32_t *piece, uint64_t *at) {
  const weight_arena *arena = &cuda_of(device)->arena;
  const uint8_t *byte = (const uint8_t *)data;
  for (uint32_t i = 0; i < arena->n_pieces; i++) {
    const weight_arena_piece *p = &arena->piece[i];
    if (p->mapped == (device->shares == WEFT_SHARE_NAMES) || byte < p->address || byte >= p->address + p->n_bytes)
      continue;
    *piece = i;
    *at = (uint64_t)(byte - p->address);
    return true;
  }
  return false;
}

static weft_status name_piece(cuda_device *d, uint32_t piece, weft_share_handle *out, weft_error *error) {
  cudaIpcMemHandle_t name;
  static_assert(sizeof name <= WEFT_SHARE_NAME_BYTES, "a name has room");
  cudaError_t result = cudaIpcGetMemHandle(&name, d->arena.piece[piece].address);
  if (result != cudaSuccess) {
    (void)cudaGetLastError();
    return weft_fail(error, WEFT_E_DEVICE, "the driver names no piece of weights: %s", cudaGetErrorString(result));
  }
  out->n_bytes = sizeof name;
  memcpy(out->bytes, &name, sizeof name);
  return WEFT_OK;
}

static weft_status share_export(weft_device *device, uint32_t piece, weft_share_handle *out, weft_error *error) {
  cuda_device *d = cuda_of(device);
  if (device->shares == WEFT_SHARE_NAMES) return name_piece(d, piece, out, error);
  CUmemGenericAllocationHandle handle = 0;
  CUresult result = driver.retain(&handle, d->arena.piece[piece].address);
  if (result == CUDA_SUCCESS) {
    result = driver.export_handle(&out->fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    (void)driver.free_handle(handle); /* the mapping keeps it */
  }
  if (result == CUDA_SUCCESS) return WEFT_OK;
  return weft_fail(error, WEFT_E_DEVICE, "the driver exports no piece of weights (error %d)", (int)result);
}

/* Mappings for reading alone where the driver has them; else what every process of the card could write to. */
static CUresult allow_reading(cuda_device *d, CUdeviceptr at, uint64_t n_bytes) {
  CUmemAccessDesc access;
  memset(&access, 0, sizeof access);
  access.location = memory_of(d).location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
  CUresult result = d->shared_writable ? CUDA_ERROR_NOT_SUPPORTED : driver.set_access(at, n_bytes, &access, 1);
  if (result == CUDA_SUCCESS) return result;
  d->shared_writable = true;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return driver.set_access(at, n_bytes, &access, 1);
}

/* The driver keeps no bounds of what it opens, so the owner's word for the length is trusted, as for all else. */
static weft_status open_name(cuda_device *d, const weft_share_handle *named, const void **out, weft_error *error) {
  cudaIpcMemHandle_t name;
  void *memory = NULL;
  if (named->n_bytes != sizeof name)
    return weft_fail(error, WEFT_E_FORMAT, "what was handed over is no name of memory of a card");
  memcpy(&name, named->bytes, sizeof name);
  cudaError_t result = cudaIpcOpenMemHandle(&memory, name, cudaIpcMemLazyEnablePeerAccess);
  if (result != cudaSuccess) {
    (void)cudaGetLastError();
    return weft_fail(error, result == cudaErrorMemoryAllocation ? WEFT_E_NO_MEMORY : WEFT_E_FORMAT,
                     "card %d does not open a piece of weights: %s", d->card, cudaGetErrorString(result));
  }
  d->mapped_by_name = d->shared_writable = true;
  *out = memory;
  return WEFT_OK;
}

static weft_status share_map(weft_device *device, const weft_share_handle *named, uint64_t n_bytes, const void **out,
                             weft_error *error) {
  cuda_device *d = cuda_of(device);
  CUmemGenericAllocationHandle handle = 0;
  if (named->n_bytes > 0) return open_name(d, named, out, error);
  CUdeviceptr at = 0;
  if (!can_export(d) || n_bytes == 0 || n_bytes % d->grain != 0)
    return weft_fail(error, WEFT_E_UNSUPPORTED, "card %d maps no %llu bytes of weights of others", d->card,
                     (unsigned long long)n_bytes);
  CUresult result =
      driver.import_handle(&handle, (void *)(uintptr_t)named->fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  if (result != CUDA_SUCCESS)
    return weft_fail(error, WEFT_E_FORMAT, "what was handed over is no memory of a card (error %d)", (int)result);
  result = driver.reserve(&at, n_bytes, d->grain, 0, 0);
  if (result == CUDA_SUCCESS) {
    result = driver.map(at, n_bytes, 0, handle, 0);
    if (result == CUDA_SUCCESS && (result = allow_reading(d, at, n_bytes)) != CUDA_SUCCESS)
      (void)driver.unmap(at, n_bytes);
    if (result != CUDA_SUCCESS) (void)driver.release(at, n_bytes);
  }
  (void)driver.free_handle(handle); /* the mapping keeps it */
  if (result != CUDA_SUCCESS)
    return weft_fail(error, judge_driver(result), "card %d does not map a piece of weights (error %d)", d->card,
                     (int)result);
  *out = (const void *)(uintptr_t)at;
  return WEFT_OK;
}

static void share_unmap(weft_device *device, const void *memory, uint64_t n_bytes) {
  cuda_device *d = cuda_of(device);
  CUdeviceptr at = (CUdeviceptr)(uintptr_t)memory;
  if (!d->lost) (void)cudaStreamSynchronize(d->stream);
  if (d->mapped_by_name) {
    (void)cudaIpcCloseMemHandle((void *)(uintptr_t)memory); /* after the owner's end there is nothing to close */
    (void)cudaGetLastError();
    return;
  }
  (void)driver.unmap(at, n_bytes);
  (void)driver.release(at, n_bytes);
}

static bool share_is_read_only(weft_device *device) {
  return !cuda_of(device)->shared_writable;
}

static const device_share_calls share_calls = {share_transport,   share_takes,        share_seal,        share_n_pieces,
                                               share_piece_bytes, share_find,         share_export,      share_map,
                                               share_unmap,       share_is_read_only, cuda_weight_expect};

const device_share_calls *cuda_share_calls(void) {
  return &share_calls;
}
