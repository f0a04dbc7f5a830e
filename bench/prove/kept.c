/* SPDX-License-Identifier: MIT */
#include "bench/prove/kept.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>
#include <xxhash.h>

#include "bench/prove/files.h"

enum { PIECE = 1 << 16, KEY_MAX = 33 };

/* Of the program that is running. */
static uint64_t hash_program(void) {
  XXH3_state_t *sum = XXH3_createState();
  uint8_t *piece = weft_alloc(PIECE, 1);
  int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  ssize_t n = -1;
  uint64_t hash = 0;
  if (sum != NULL && piece != NULL && fd >= 0 && XXH3_64bits_reset(sum) == XXH_OK) {
    while ((n = read(fd, piece, PIECE)) > 0) (void)XXH3_64bits_update(sum, piece, (size_t)n); /* cannot fail */
    if (n == 0) hash = XXH3_64bits_digest(sum);
  }
  if (fd >= 0) (void)close(fd); /* only read */
  weft_free(piece);
  (void)XXH3_freeState(sum); /* always XXH_OK */
  return hash;
}

void prove_kept_open(prove_kept *kept, const char *folder, const prove_place *place) {
  struct utsname machine;
  uint64_t low = 0, high = 0, models = 0;
  *kept = (prove_kept){.folder = folder};
  if (folder == NULL) return;
  for (uint32_t i = 0; i < place->models->n; i++) {
    weft_gguf *gguf = NULL;
    if (weft_gguf_open(place->models->item[i], &gguf, NULL) == WEFT_OK) weft_gguf_fingerprint(gguf, &low, &high);
    models = models * 31 + (low ^ high);
    weft_gguf_close(gguf);
  }
  if (uname(&machine) != 0) machine.nodename[0] = 0;
  (void)snprintf(kept->made_by, sizeof kept->made_by, "%016" PRIx64 " %016" PRIx64 " %.64s %.32s", hash_program(),
                 models, machine.nodename, place->backend != NULL ? place->backend : "");
}

/* The name of the file: a hash of everything that the answers follow from. False: no memory. */
static bool find_key(const prove_kept *kept, const json_t *profile, const prove_place *place, const prove_set *set,
                     char key[KEY_MAX]) {
  const json_t *parts[] = {json_object_get(profile, "options"), json_object_get(profile, "drift"), place->options,
                           set->suite, set->prompts};
  weft_text all = {0};
  bool good = true;
  weft_text_printf(&all, "%s %d", kept->made_by, (int)set->scored);
  for (size_t i = 0; good && i < sizeof parts / sizeof *parts; i++) {
    char *text = parts[i] == NULL ? NULL : json_dumps(parts[i], JSON_COMPACT | JSON_SORT_KEYS);
    good = parts[i] == NULL || text != NULL;
    weft_text_puts(&all, "\n");
    if (text != NULL) weft_text_puts(&all, text);
    free(text);
  }
  good = good && weft_text_status(&all) == WEFT_OK;
  if (good) {
    XXH128_hash_t hash = XXH3_128bits(all.bytes, all.n);
    (void)snprintf(key, KEY_MAX, "%016" PRIx64 "%016" PRIx64, (uint64_t)hash.high64, (uint64_t)hash.low64);
  }
  weft_text_free(&all);
  return good;
}

json_t *prove_kept_read(const prove_kept *kept, const json_t *profile, const prove_place *place, prove_set *set) {
  char key[KEY_MAX], path[PROVE_PATH_MAX];
  if (kept->folder == NULL || !find_key(kept, profile, place, set, key)) return NULL;
  (void)snprintf(path, sizeof path, "%.400s/%s.json", kept->folder, key);
  json_t *file = json_load_file(path, 0, NULL);
  json_t *answers = json_object_get(file, "answers"), *scores = json_object_get(file, "scores");
  json_t *facts = json_object_get(file, "facts");
  bool whole = json_array_size(answers) == json_array_size(set->requests) && json_is_object(facts) &&
               json_is_array(scores) == set->scored && json_is_string(json_object_get(file, "device"));
  if (!whole) {
    json_decref(file);
    return NULL;
  }
  set->baseline = json_incref(answers);
  set->scores = set->scored ? json_incref(scores) : NULL;
  set->kept = true;
  return file;
}

weft_status prove_kept_write(const prove_kept *kept, const json_t *profile, const prove_place *place,
                             const prove_set *set, json_t *facts, const char *device, weft_error *error) {
  char key[KEY_MAX], path[PROVE_PATH_MAX];
  if (kept->folder == NULL || set->kept || set->outcome.verdict != PROVE_PROVEN) return WEFT_OK;
  if (!find_key(kept, profile, place, set, key)) return weft_fail(error, WEFT_E_NO_MEMORY, "no memory for a name");
  if (mkdir(kept->folder, 0777) != 0 && errno != EEXIST)
    return weft_fail(error, WEFT_E_IO, "--keep %s: %s", kept->folder, strerror(errno));
  (void)snprintf(path, sizeof path, "%.400s/%s.json", kept->folder, key);
  json_t *file = json_pack("{s:O, s:O, s:s, s:o}", "answers", set->baseline, "facts", facts, "device", device, "scores",
                           set->scores != NULL ? json_incref(set->scores) : json_null());
  bool written = file != NULL && json_dump_file(file, path, JSON_COMPACT) == 0;
  json_decref(file);
  return written ? WEFT_OK : weft_fail(error, WEFT_E_IO, "--keep: %s: %s", path, strerror(errno));
}
