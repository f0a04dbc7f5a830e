/* SPDX-License-Identifier: MIT */
/* Assertions.
 *
 * Law: WEFT_CHECK stays on in every build and guards memory safety and accounting; when it fails, weft has a bug, and
 * the process stops at the place of the bug. WEFT_DCHECK is checked in debug builds alone, so it may be slow. Neither
 * ever judges input: bad input is answered with a weft_status. */
#ifndef WEFT_BASE_CHECK_H
#define WEFT_BASE_CHECK_H

#ifdef __cplusplus
extern "C" {
#endif

#ifdef __cplusplus
[[noreturn]]
#else
_Noreturn
#endif
void weft_check_failed(const char *file, int line, const char *condition);

#ifdef __cplusplus
}
#endif

#define WEFT_CHECK(condition) ((condition) ? (void)0 : weft_check_failed(__FILE__, __LINE__, #condition))

#ifdef NDEBUG
#define WEFT_DCHECK(condition) ((void)sizeof((condition) ? 1 : 0))
#else
#define WEFT_DCHECK(condition) WEFT_CHECK(condition)
#endif

#endif
