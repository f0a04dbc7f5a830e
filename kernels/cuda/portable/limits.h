/* SPDX-License-Identifier: MIT */
/* What the kernels of the portable set may take of a multiprocessor. They are compiled once for all cards from
 * compute capability 8.0 on, so each limit is the least of any of them (CUDA C++ Programming Guide, "Technical
 * Specifications per Compute Capability"). Products of few rows in 8 bits, whose blocks may be of any size, take what
 * the card has (cuda_shared_bytes).
 *
 *   compute capability           8.0        8.6, 8.9    9.0        10.0       12.0
 *   shared memory, a block       163 KiB    99 KiB      227 KiB    227 KiB    99 KiB
 *   shared memory, all blocks    164 KiB    100 KiB     228 KiB    228 KiB    100 KiB
 *   threads                      2048       1536        2048       2048       1536
 *   registers                    65536 everywhere, 255 a thread */
#ifndef WEFT_KERNELS_CUDA_PORTABLE_LIMITS_H
#define WEFT_KERNELS_CUDA_PORTABLE_LIMITS_H

enum {
  PORTABLE_SHARED_BYTES_MOST = 99 << 10, /* of a block, static and dynamic */
  PORTABLE_SHARED_BYTES = 96 << 10       /* dynamic, where a kernel has some static memory too */
};

#endif
