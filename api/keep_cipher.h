/* SPDX-License-Identifier: MIT */
/* Encryption of kept prefixes: AES-256 in XTS mode, as disks have it, by OpenSSL.
 *
 * Law. The key is a file of 64 bytes that nobody but this user can read, and no two halves of it are alike. Each unit
 * of 4096 bytes is sealed by its number in the file, so equal pages in two places are not alike. Who reads the file
 * without the key learns which units changed and nothing else; who changes it is found by the checksums, which are
 * sealed, too. */
#ifndef WEFT_API_KEEP_CIPHER_H
#define WEFT_API_KEEP_CIPHER_H

#include "model/kept_file.h"

typedef struct keep_cipher keep_cipher;

/* Errors name the file: IO, INVALID, NO_MEMORY. */
weft_status keep_cipher_open(const char *path, keep_cipher **out, weft_error *error);
const weft_kept_cipher *keep_cipher_of(const keep_cipher *cipher); /* NULL of NULL */
void keep_cipher_close(keep_cipher *cipher);

#endif
