/* SPDX-License-Identifier: MIT */
/* The head's functions, AVX-512. */
#if defined(__AVX512VNNI__)
#define HEAD_TABLE weft_head_avx512
#define SOFT_TABLE weft_soft_avx512
#include "kernels/cpu/head_impl.h"
#endif
