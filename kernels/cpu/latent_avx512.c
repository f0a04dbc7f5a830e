/* SPDX-License-Identifier: MIT */
/* Attention over latent rows (latent_impl.h), compiled for AVX-512. */
#define LATENT_CODE cpu_latent_avx512
#include "kernels/cpu/latent_impl.h"
