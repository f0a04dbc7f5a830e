/* SPDX-License-Identifier: MIT */
/* A pause of some tens of nanoseconds, for a thread that looks at a word again and again until another thread changes it. */
#ifndef WEFT_BASE_PAUSE_H
#define WEFT_BASE_PAUSE_H

static inline void weft_pause(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

#endif
