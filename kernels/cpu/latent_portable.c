/* SPDX-License-Identifier: MIT */
/* Attention over latent rows (latent_impl.h), compiled for portable C. */
#define LATENT_CODE cpu_latent_portable
#include "kernels/cpu/latent_impl.h"
