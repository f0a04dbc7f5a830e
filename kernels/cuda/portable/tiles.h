/* SPDX-License-Identifier: MIT */
/* What the kernels of the portable set take of a multiprocessor, by family of cards: the table is in tiles.cu. The set
 * is compiled once for all cards from compute capability 8.0 on, so what a kernel fixes when it is compiled is the
 * least of any of them (PORTABLE_SHARED_BYTES_MOST); how many stages a ring has, and how many blocks share a
 * multiprocessor, is the family's.
 *
 * A card has its family by its compute capability. A kernel set that is named "portable@86" holds any card to the
 * family of 8.6, for tests and measurements: blocks have no more shared memory than there, launches ask for so much of
 * it that no more blocks share a multiprocessor than there, and kernels start in order where there they do. What is not
 * held are caches, clocks and the rates of memory and products. "portable@86,down=1" changes a choice of the row too,
 * for the sweep of bench/tile_sweep.py.
 *
 * Law: no bit depends on a family. Cards of one process that are of several have the least, so all of them are opened
 * before any work is planned. */
#ifndef WEFT_KERNELS_CUDA_PORTABLE_TILES_H
#define WEFT_KERNELS_CUDA_PORTABLE_TILES_H

#include <stdint.h>

enum {
  PORTABLE_SHARED_BYTES_MOST = 99 << 10, /* of a block, static and dynamic */
  PORTABLE_SHARED_BYTES = 96 << 10,      /* dynamic, where a kernel has some static memory too */
  PORTABLE_STATIC_BYTES = 3 << 10,       /* at most of a kernel of few rows */
  PORTABLE_BLOCK_BYTES = 1 << 10         /* of a block, that the card takes for itself */
};

/* Rings of a warp in shared memory. */
typedef enum gemv_ring_kind {
  RING_DENSE,   /* products of few rows */
  RING_GATE_UP, /* experts of one row */
  RING_TILES,   /* experts of some rows */
  RING_KINDS
} gemv_ring_kind;

/* Products of many rows by the size of their items (gemm_tile.cuh). */
typedef enum tile_size { TILE_WIDE, TILE_NARROW, TILE_THIN, TILE_SPLIT /* of 8 bits alone */, TILE_SIZES } tile_size;

typedef struct card_family {
  const char *name;             /* "86" */
  uint32_t capability;          /* the least of its cards, 86 is 8.6 */
  uint32_t block_bytes;         /* shared memory of a block, static and dynamic */
  uint32_t all_bytes;           /* of all blocks of a multiprocessor, with PORTABLE_BLOCK_BYTES of each */
  uint32_t n_threads, n_blocks; /* of a multiprocessor, at most */
  bool early;                   /* kernels may start before the one in front has ended */
  uint32_t ring[RING_KINDS];    /* stages of a warp */
  uint32_t down;                /* blocks of a multiprocessor, of down of experts of few rows */
  uint32_t experts;             /* most rows of experts whose weights come through such rings */
  uint32_t tile[TILE_SIZES];    /* blocks of a multiprocessor, at most */
  uint32_t decode;              /* the same, of attention of few queries */
} card_family;

/* The family of all cards that were opened. */
const card_family *cuda_family(void);
/* Dynamic shared memory that each of n blocks of a multiprocessor may have beside n_static bytes. */
uint32_t cuda_shared_bytes_of(uint32_t n, uint32_t n_static);
/* How many blocks with so much a multiprocessor has room for. */
uint32_t cuda_blocks_in(uint32_t n_bytes, uint32_t n_static);

#endif
