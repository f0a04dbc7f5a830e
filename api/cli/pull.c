/* SPDX-License-Identifier: MIT */
/* weft pull OWNER/NAME[:QUANT]: a model's files from a hub into the cache folder. -hf does the same for every command
 * that opens a model, and asks nobody where the files are there already. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/cli/cli.h"
#include "api/cli/hub.h"
#include "base/memory.h"

enum { PATH_BYTES = 1024 };

/* Makes the folder of a path, and those above it. */
static weft_status make_folders(char *path, weft_error *error) {
  for (char *at = strchr(path + 1, '/'); at != NULL; at = strchr(at + 1, '/')) {
    *at = 0;
    bool good = mkdir(path, 0755) == 0 || errno == EEXIST;
    if (!good) (void)weft_fail(error, WEFT_E_IO, "%.256s: %s", path, strerror(errno));
    *at = '/';
    if (!good) return WEFT_E_IO;
  }
  return WEFT_OK;
}

/* The folder of a model in the cache, with its last slash. */
static weft_status name_folder(const weft_config *config, const hub_name *name, char out[PATH_BYTES],
                               weft_error *error) {
  char *cache = config->cache != NULL ? weft_strdup(config->cache) : weft_config_cache_folder();
  if (cache == NULL)
    return weft_fail(error, WEFT_E_INVALID,
                     "there is no folder for models: set HOME or XDG_CACHE_HOME, or give --cache");
  int n = snprintf(out, PATH_BYTES, "%s/%s/%s/", cache, name->owner, name->name);
  weft_free(cache);
  if (n < PATH_BYTES - HUB_NAME_BYTES) return WEFT_OK;
  return weft_fail(error, WEFT_E_INVALID, "--cache: its path is too long");
}

/* ---- what is there ---- */

static int fill_list(const char *folder, hub_list *list) {
  DIR *open = opendir(folder);
  if (open == NULL) return 0;
  for (const struct dirent *entry; (entry = readdir(open)) != NULL && list->n < HUB_FILES_MAX;) {
    hub_file *f = &list->file[list->n];
    size_t n = strlen(entry->d_name);
    if (n >= sizeof f->path) continue;
    memcpy(f->path, entry->d_name, n + 1);
    list->n += 1;
  }
  (void)closedir(open); /* only read */
  return 0;
}

static int compare_paths(const void *a, const void *b) {
  return strcmp(((const hub_file *)a)->path, ((const hub_file *)b)->path);
}

/* The file that the name means, where all of its parts are in the folder; files of folders in a repository lie there
 * under their own names. */
static bool find_kept(const char *folder, const hub_name *name, char path[PATH_BYTES]) {
  hub_list list = {weft_alloc(HUB_FILES_MAX, sizeof *list.file), 0};
  weft_error unused;
  char part[HUB_NAME_BYTES];
  if (list.file == NULL) return false;
  (void)fill_list(folder, &list);
  qsort(list.file, list.n, sizeof *list.file, compare_paths);
  const hub_file *file = hub_choose(&list, name, &unused);
  bool whole = file != NULL;
  for (uint32_t i = 1; whole && i <= hub_parts(file->path); i++) {
    hub_part_path(file->path, i, part);
    (void)snprintf(path, PATH_BYTES, "%.800s%s", folder, part);
    whole = access(path, R_OK) == 0;
  }
  if (whole) (void)snprintf(path, PATH_BYTES, "%.800s%s", folder, file->path);
  hub_list_free(&list);
  return whole;
}

/* ---- fetching ---- */

static const hub_file *find_file(const hub_list *list, const char *path) {
  for (uint32_t i = 0; i < list->n; i++) {
    if (strcmp(list->file[i].path, path) == 0) return &list->file[i];
  }
  return NULL;
}

static const char *own_name(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash == NULL ? path : slash + 1;
}

static weft_status fetch_parts(const hub_source *source, const hub_name *name, const hub_list *list,
                               const hub_file *file, const char *folder, char place[PATH_BYTES], weft_error *error) {
  char path[HUB_NAME_BYTES], url[1024];
  weft_status status = WEFT_OK;
  for (uint32_t i = 1; i <= hub_parts(file->path) && status == WEFT_OK; i++) {
    struct stat about;
    hub_part_path(file->path, i, path);
    const hub_file *part = find_file(list, path);
    if (part == NULL) return weft_fail(error, WEFT_E_NOT_FOUND, "the hub has no %.200s, a part of the model", path);
    (void)snprintf(place, PATH_BYTES, "%.800s%s", folder, own_name(path));
    if (stat(place, &about) == 0 && (uint64_t)about.st_size == part->n_bytes) continue;
    (void)snprintf(url, sizeof url, "%.256s/%s/%s/resolve/main/%s", source->url, name->owner, name->name, path);
    status = hub_fetch(source, url, part, place, error);
  }
  if (status == WEFT_OK) (void)snprintf(place, PATH_BYTES, "%.800s%s", folder, own_name(file->path));
  return status;
}

static weft_status fetch_model(const hub_source *source, const hub_name *name, char *folder, char place[PATH_BYTES],
                               weft_error *error) {
  char url[768];
  weft_text text = {0};
  hub_list list = {0};
  const hub_file *file = NULL;
  (void)snprintf(url, sizeof url, "%.256s/api/models/%s/%s/tree/main?recursive=true", source->url, name->owner,
                 name->name);
  weft_status status = hub_check_url(source->url, error);
  if (status == WEFT_OK) status = hub_get(source, url, &text, error);
  if (status == WEFT_OK) status = hub_list_read(text.bytes, text.n, &list, error);
  if (status == WEFT_OK && (file = hub_choose(&list, name, error)) == NULL) status = WEFT_E_NOT_FOUND;
  if (status == WEFT_OK) status = make_folders(folder, error);
  if (status == WEFT_OK) status = fetch_parts(source, name, &list, file, folder, place, error);
  hub_list_free(&list);
  weft_text_free(&text);
  return status;
}

/* The token, from a file or the environment; the caller frees *out. */
static weft_status read_token(const weft_config *config, char **out, weft_error *error) {
  size_t n = 0;
  *out = NULL;
  if (config->hub_token == NULL) {
    *out = weft_config_hub_token();
    return WEFT_OK;
  }
  char *text = weft_cli_read(config->hub_token, &n);
  if (text == NULL) return weft_fail(error, WEFT_E_INVALID, "--hub-token %.256s cannot be read", config->hub_token);
  text[strcspn(text, " \t\r\n")] = 0;
  if (text[0] == 0) {
    weft_free(text);
    return weft_fail(error, WEFT_E_INVALID, "--hub-token %.256s holds no token", config->hub_token);
  }
  *out = text;
  return WEFT_OK;
}

static int fetch_named(const weft_config *config, const char *text, bool asks, char place[PATH_BYTES]) {
  hub_name name;
  weft_error error = {{0}};
  char folder[PATH_BYTES], *token = NULL;
  weft_status status = hub_name_read(text, &name, &error);
  if (status == WEFT_OK) status = name_folder(config, &name, folder, &error);
  if (status == WEFT_OK && !asks && find_kept(folder, &name, place)) return 0;
  if (status == WEFT_OK) status = read_token(config, &token, &error);
  const hub_source source = {config->hub, token, config->quiet};
  if (status == WEFT_OK) status = fetch_model(&source, &name, folder, place, &error);
  weft_free(token);
  if (status == WEFT_OK) return 0;
  int code = status == WEFT_E_NO_MEMORY ? WEFT_EXIT_RUNTIME : weft_cli_code(status);
  return weft_cli_fail(code, "%s", error.text);
}

bool weft_cli_find_hub_model(const weft_config *config, const char *text, char *place, size_t n, weft_error *error) {
  hub_name name;
  char folder[PATH_BYTES], path[PATH_BYTES];
  if (hub_name_read(text, &name, error) != WEFT_OK || name_folder(config, &name, folder, error) != WEFT_OK)
    return false;
  bool kept = find_kept(folder, &name, path);
  if (!kept)
    (void)weft_fail(error, WEFT_E_NOT_FOUND, "%s is not in %.300s: weft pull %s fetches it", text, folder, text);
  if (kept) (void)snprintf(place, n, "%s", path);
  return kept;
}

int weft_cli_take_hub_models(weft_config *config) {
  for (uint32_t i = 0; i < config->hub_models.n; i++) {
    char place[PATH_BYTES];
    weft_error error = {{0}};
    int code = fetch_named(config, config->hub_models.item[i], false, place);
    if (code != 0) return code;
    if (weft_config_add_model(config, place, &error) != WEFT_OK)
      return weft_cli_fail(WEFT_EXIT_USAGE, "%s", error.text);
  }
  return 0;
}

int weft_cli_pull(const weft_config *config) {
  if (config->words.n == 0)
    return weft_cli_fail(WEFT_EXIT_USAGE, "pull: name a model, as OWNER/NAME or OWNER/NAME:Q4_K_M");
  for (uint32_t i = 0; i < config->words.n; i++) {
    char place[PATH_BYTES];
    int code = fetch_named(config, config->words.item[i], true, place);
    if (code != 0) return code;
    (void)printf("%s\n", place); /* a failure is seen by the flush in main */
  }
  return 0;
}
