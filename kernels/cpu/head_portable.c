/* SPDX-License-Identifier: MIT */
/* The head's functions in plain C. */
#define HEAD_TABLE cpu_head_portable
#define SOFT_TABLE cpu_soft_portable
#include "kernels/cpu/head_impl.h"
