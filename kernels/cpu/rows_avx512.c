/* SPDX-License-Identifier: MIT */
/* The functions of rows_impl.h, compiled for AVX-512. */
#define ROWS_TABLE cpu_rows_avx512
#include "kernels/cpu/rows_impl.h"
