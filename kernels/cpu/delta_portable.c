/* SPDX-License-Identifier: MIT */
/* The delta rule of one head (delta_impl.h), compiled for portable C. */
#define DELTA_CODE cpu_delta_portable
#include "kernels/cpu/delta_impl.h"
