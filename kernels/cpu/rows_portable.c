/* SPDX-License-Identifier: MIT */
/* The row functions, compiled for portable. */
#define ROWS_TABLE cpu_rows_portable
#include "kernels/cpu/rows_impl.h"
