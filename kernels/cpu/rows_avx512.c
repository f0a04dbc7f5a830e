/* SPDX-License-Identifier: MIT */
/* The row functions, compiled for avx512. */
#define ROWS_TABLE cpu_rows_avx512
#include "kernels/cpu/rows_impl.h"
