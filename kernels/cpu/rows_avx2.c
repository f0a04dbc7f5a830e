/* SPDX-License-Identifier: MIT */
/* The functions of rows_impl.h, compiled for AVX2. */
#define ROWS_TABLE cpu_rows_avx2
#include "kernels/cpu/rows_impl.h"
