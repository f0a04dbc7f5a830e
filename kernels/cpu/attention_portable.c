/* SPDX-License-Identifier: MIT */
/* The attention of one chunk, compiled for portable. */
#define ATTENTION_CODE cpu_attention_portable
#include "kernels/cpu/attention_impl.h"
