/* SPDX-License-Identifier: MIT */
/* The functions of head_impl.h, compiled for any processor. */
#define HEAD_TABLE cpu_head_portable
#define SOFT_TABLE cpu_soft_portable
#include "kernels/cpu/head_impl.h"
