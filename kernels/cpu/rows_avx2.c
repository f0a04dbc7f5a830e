/* SPDX-License-Identifier: MIT */
/* The row functions, compiled for avx2. */
#define ROWS_TABLE cpu_rows_avx2
#include "kernels/cpu/rows_impl.h"
