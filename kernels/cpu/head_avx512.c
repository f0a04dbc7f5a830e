/* SPDX-License-Identifier: MIT */
/* The functions of head_impl.h, compiled for AVX-512. */
#if defined(__AVX512VNNI__)
#define HEAD_TABLE cpu_head_avx512
#define SOFT_TABLE cpu_soft_avx512
#include "kernels/cpu/head_impl.h"
#endif
