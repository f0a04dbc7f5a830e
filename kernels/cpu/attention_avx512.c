/* SPDX-License-Identifier: MIT */
/* The attention of one chunk (attention_impl.h), compiled for AVX-512. */
#define ATTENTION_CODE cpu_attention_avx512
#include "kernels/cpu/attention_impl.h"
