/* SPDX-License-Identifier: MIT */
/* Reads weights from a model's files with read calls, instead of through the mapping.
 *
 * Law: a read gives the bytes that the mapping has, or IO with a line; nothing of the mapping is touched, so a file
 * that was cut short is an error and not a signal. Several threads share each read. One caller at a time. */
#ifndef WEFT_MODEL_GGUF_GGUF_READER_H
#define WEFT_MODEL_GGUF_GGUF_READER_H

#include "kernels/device.h"
#include "model/gguf/gguf.h"

typedef struct gguf_reader gguf_reader;

/* direct: reads go around the page cache (O_DIRECT) where the file system takes that and the file is not in the cache
 * already. *out is NULL, with WEFT_OK, for a model that was opened from memory. Errors: IO (a file is
 * gone, or is another one now), NO_MEMORY. */
weft_status gguf_reader_open(const weft_gguf *gguf, bool direct, gguf_reader **out, weft_error *error);
/* Logs, at the level of -v, how much was read, how fast and in which way. NULL is fine. */
void gguf_reader_close(gguf_reader *reader);
/* Where the bytes of a tensor are read from; valid until the next call. Of a NULL reader, a source without a read
 * function. */
weft_weight_source gguf_reader_source(gguf_reader *reader, const weft_gguf_tensor *tensor);
/* IO when a file has another size or date than when it was opened, because what was read may then be of two files. NULL
 * is fine. */
weft_status gguf_reader_check_unchanged(const gguf_reader *reader, weft_error *error);
/* Bytes that were read so far; 0 of a NULL reader. */
uint64_t gguf_reader_bytes(const gguf_reader *reader);
/* The line that says why a read failed; empty if none did, or if reader is NULL. */
const char *gguf_reader_error(const gguf_reader *reader);

#endif
