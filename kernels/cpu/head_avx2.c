/* SPDX-License-Identifier: MIT */
/* The functions of head_impl.h, compiled for AVX2. */
#if defined(__AVX2__) && defined(__FMA__)
#define HEAD_TABLE cpu_head_avx2
#define SOFT_TABLE cpu_soft_avx2
#include "kernels/cpu/head_impl.h"
#endif
