/* SPDX-License-Identifier: MIT */
/* The attention of one chunk, compiled for avx512. */
#define ATTENTION_CODE cpu_attention_avx512
#include "kernels/cpu/attention_impl.h"
