/* SPDX-License-Identifier: MIT */
/* Packing whole answers (gzip, by zlib).
 *
 * Law: an answer is packed where its client says that it unpacks (Accept-Encoding), it is the 200 of a GET, has no tag
 * of its own (ETag), and is long enough to gain and short enough to be packed at once. Streams never are. Where memory
 * is refused the answer goes out as it is. */
#ifndef WEFT_API_HTTP_PACK_H
#define WEFT_API_HTTP_PACK_H

#include <stdbool.h>

#include "base/text.h"

/* Least and most bytes of what is packed: below, the head is most of it; above, the network thread would be held up. */
enum { PACK_BYTES_MIN = 1024, PACK_BYTES_MAX = 1 << 19 };

/* How much a client wants a coding or a type, 0 to 1000: the q of the first entry of a list as of Accept-Encoding or
 * Accept that names it; 0 where none does (`*` is no name). header NULL: 0. */
uint32_t pack_wanted(const char *header, const char *name);
/* The bytes as gzip; false: memory was refused, and packed is empty. */
bool pack_gzip(const weft_text *plain, weft_text *packed);

#endif
