/* SPDX-License-Identifier: MIT */
/* The attention of one chunk, compiled for avx2. */
#define ATTENTION_CODE cpu_attention_avx2
#include "kernels/cpu/attention_impl.h"
