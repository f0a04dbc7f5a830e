/* SPDX-License-Identifier: MIT */
/* The attention of one chunk (attention_impl.h), compiled for any processor. */
#define ATTENTION_CODE cpu_attention_portable
#include "kernels/cpu/attention_impl.h"
