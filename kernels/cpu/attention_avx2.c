/* SPDX-License-Identifier: MIT */
/* The attention of one chunk (attention_impl.h), compiled for AVX2. */
#define ATTENTION_CODE cpu_attention_avx2
#include "kernels/cpu/attention_impl.h"
