/* SPDX-License-Identifier: MIT */
/* Names of files.
 *
 * Law: no file is opened. A name that a caller gave is changed as text alone. */
#ifndef WEFT_BASE_PATH_H
#define WEFT_BASE_PATH_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The absolute name of the file, so that the file is found again after the process changed its working folder. Symbolic
 * links are not resolved: where a link leads is decided when the file is opened. The caller frees the name; NULL: no
 * memory, or the working folder no longer exists. */
char *weft_path_from_root(const char *path);
/* The folder of the program, or of the library that this code is part of, with its last '/': what was installed with it
 * is found from there, wherever it was moved to. Symbolic links are resolved. "" where the system does not say, or n is
 * too small. */
void weft_path_own_folder(char *folder, size_t n);

#ifdef __cplusplus
}
#endif
#endif
