/* SPDX-License-Identifier: MIT */
/* The delta rule of one head (delta_impl.h), compiled for AVX2. */
#define DELTA_CODE cpu_delta_avx2
#include "kernels/cpu/delta_impl.h"
