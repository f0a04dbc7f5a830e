/* SPDX-License-Identifier: MIT */
/* The head's functions in plain C. */
#define HEAD_TABLE weft_head_portable
#define SOFT_TABLE weft_soft_portable
#include "kernels/cpu/head_impl.h"
