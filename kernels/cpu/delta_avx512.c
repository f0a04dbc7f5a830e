/* SPDX-License-Identifier: MIT */
/* The delta rule of one head (delta_impl.h), compiled for AVX-512. */
#define DELTA_CODE cpu_delta_avx512
#include "kernels/cpu/delta_impl.h"
