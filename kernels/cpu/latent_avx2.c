/* SPDX-License-Identifier: MIT */
/* Attention over latent rows (latent_impl.h), compiled for AVX2. */
#define LATENT_CODE cpu_latent_avx2
#include "kernels/cpu/latent_impl.h"
