/* SPDX-License-Identifier: MIT */
/* The functions of rows_impl.h, compiled for any processor. */
#define ROWS_TABLE cpu_rows_portable
#include "kernels/cpu/rows_impl.h"
