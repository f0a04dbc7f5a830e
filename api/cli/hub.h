/* SPDX-License-Identifier: MIT */
/* Models by name from a hub: which files OWNER/NAME[:QUANT] means, where they are kept, and fetching them.
 *
 * Law: a file is in its place only when all its bytes are there and their sum (SHA-256) is the one that the hub told;
 * until then it is called NAME.part, and the next try goes on where this one ended. Names that the hub gives never lead
 * out of the folder of their model. Bytes come over https alone, or from this machine itself; the token goes to the hub
 * and to nobody that it leads to. */
#ifndef WEFT_API_CLI_HUB_H
#define WEFT_API_CLI_HUB_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"

enum { HUB_FILES_MAX = 2048, HUB_NAME_BYTES = 200 };

/* OWNER/NAME[:QUANT]. */
typedef struct hub_name {
  char owner[96], name[128], quant[64]; /* quant "": none was named */
} hub_name;

typedef struct hub_file {
  char path[HUB_NAME_BYTES]; /* as in the repository */
  uint64_t n_bytes;
  char sha256[65]; /* "": the hub does not tell it */
} hub_file;

typedef struct hub_list {
  hub_file *file; /* [n], owned */
  uint32_t n;
} hub_list;

/* INVALID with a line: what is no such name. */
weft_status hub_name_read(const char *text, hub_name *out, weft_error *error);
/* The files of a repository, from the hub's JSON; names that would lead elsewhere are left out. Errors: FORMAT,
 * NO_MEMORY. The caller calls hub_list_free. */
weft_status hub_list_read(const char *json, size_t n, hub_list *out, weft_error *error);
void hub_list_free(hub_list *list);
/* The GGUF file that the name means: of several whose name has the quant (without one Q4_K_M, else the first file that
 * is a model) the first by name, and of a split file part 1. NULL with a line that names the quants there are. */
const hub_file *hub_choose(const hub_list *list, const hub_name *name, weft_error *error);
/* How many parts the file has (1: it is not split), and the path of one of them, counted from 1. */
uint32_t hub_parts(const char *path);
void hub_part_path(const char *path, uint32_t part, char out[HUB_NAME_BYTES]);

/* What is fetched from where. */
typedef struct hub_source {
  const char *url;   /* of the hub, as "https://huggingface.co" */
  const char *token; /* NULL: none */
  bool quiet;        /* no progress */
} hub_source;

/* INVALID with a line: an address that is neither https nor on this machine. */
weft_status hub_check_url(const char *url, weft_error *error);
/* GET url of the hub into out. Errors: IO with a line, NOT_FOUND where the hub has no such thing, UNSUPPORTED: this
 * build has no libcurl. */
weft_status hub_get(const hub_source *source, const char *url, weft_text *out, weft_error *error);
/* Fetches a file of the hub to a place, where it goes on with what is there of it. Errors: IO with a line (the hub
 * cannot be reached or broke off again and again), NO_MEMORY: the disk is full, FORMAT: the sum is another, and what
 * came is removed. */
weft_status hub_fetch(const hub_source *source, const char *url, const hub_file *file, const char *place,
                      weft_error *error);

#endif
