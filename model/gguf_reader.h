/* SPDX-License-Identifier: MIT */
/* Reads weights from a model's files into memory of the caller, instead of through the mapping.
 *
 * Law: a read gives the bytes that the mapping has, or IO with a line; nothing of the mapping is touched, so a file
 * that was cut short is an error and not a signal. Several threads share each read. One caller at a time. */
#ifndef WEFT_MODEL_GGUF_READER_H
#define WEFT_MODEL_GGUF_READER_H

#include "kernels/device.h"
#include "model/gguf.h"

typedef struct gguf_reader gguf_reader;

/* direct: reads go around the page cache (O_DIRECT) where the file system takes that and the file is not in the cache
 * already. *out is NULL, with WEFT_OK, for a model that was opened from memory. Errors: IO (a file is gone or another
 * one by now), NO_MEMORY. */
weft_status gguf_reader_open(const weft_gguf *gguf, bool direct, gguf_reader **out, weft_error *error);
/* Tells how much was read, how fast and in which way: with -v. NULL is fine. */
void gguf_reader_close(gguf_reader *reader);
/* The bytes of a tensor: valid until the next call. A NULL reader has no read. */
weft_weight_source gguf_reader_source(gguf_reader *reader, const weft_gguf_tensor *tensor);
/* IO when a file has another size or date than when it was opened: what was read may be of two files. NULL is fine. */
weft_status gguf_reader_check_unchanged(const gguf_reader *reader, weft_error *error);
/* The line of the read that failed; empty if none did. NULL reader: empty. */
const char *gguf_reader_error(const gguf_reader *reader);

#endif
