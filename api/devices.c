/* SPDX-License-Identifier: MIT */
#include "api/devices.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/models_preset.h"
#include "api/split_choice.h"
#include "base/memory.h"
#include "base/range.h"
#include "kernels/cpu/thread_pool.h"

/* ---- lists ---- */

/* Numbers with commas between, of which there are 1 .. WEFT_DEVICES_MAX, each in [0, most]; 0: the text is none. */
static uint32_t read_numbers(const char *text, double most, double *out) {
  uint32_t n = 0;
  for (const char *at = text;; at++) {
    const char *end;
    double x;
    bool number = *at >= '0' && *at <= '9' && weft_range_read(at, &x, &end);
    if (!number || !(x <= most) || n == WEFT_DEVICES_MAX) return 0;
    out[n++] = x;
    at = end;
    if (*at == 0) return n;
    if (*at != ',') return 0;
  }
}

static weft_status read_devices(const char *text, uint32_t *index, uint32_t *n, weft_error *error) {
  double number[WEFT_DEVICES_MAX];
  *n = 1;
  index[0] = 0;
  if (text == NULL) return WEFT_OK;
  *n = read_numbers(text, 63, number);
  bool whole = *n > 0;
  for (uint32_t i = 0; i < *n; i++) whole = whole && number[i] == floor(number[i]);
  if (!whole) {
    return weft_fail(error, WEFT_E_INVALID,
                     "--devices %.64s: write the numbers of 1 to %d devices with commas between, as 0,1", text,
                     WEFT_DEVICES_MAX);
  }
  for (uint32_t i = 0; i < *n; i++) {
    index[i] = (uint32_t)number[i];
    for (uint32_t j = 0; j < i; j++) {
      if (index[j] == index[i])
        return weft_fail(error, WEFT_E_INVALID, "--devices %.64s: device %u is named twice", text, index[i]);
    }
  }
  return WEFT_OK;
}

/* A name, a colon and a number in [1, WEFT_DEVICES_MAX] at `at`. Returns what comes behind it; NULL: there is no such
 * thing. */
static const char *read_factor(const char *at, const char *name, uint32_t *n) {
  const char *end;
  double x;
  size_t n_name = strlen(name);
  if (strncmp(at, name, n_name) != 0 || at[n_name] != ':' || at[n_name + 1] < '0' || at[n_name + 1] > '9') return NULL;
  if (!weft_range_read(at + n_name + 1, &x, &end) || x != floor(x) || !(x >= 1 && x <= WEFT_DEVICES_MAX)) return NULL;
  *n = (uint32_t)x;
  return end;
}

/* tensor:N,layer:M or the other way round. */
static bool read_product(const char *split, uint32_t *n_shards, uint32_t *n_parts) {
  static const char *const name[2] = {"tensor", "layer"};
  uint32_t n[2] = {0, 0};
  for (uint32_t first = 0; first < 2; first++) {
    const char *at = read_factor(split, name[first], &n[first]);
    if (at == NULL || *at != ',') continue;
    at = read_factor(at + 1, name[1 - first], &n[1 - first]);
    if (at == NULL || *at != 0) continue;
    *n_shards = n[0];
    *n_parts = n[1];
    return true;
  }
  return false;
}

static weft_status read_split(const weft_open_options *o, weft_devices *devices, weft_error *error) {
  const char *split = o->split == NULL ? "auto" : o->split;
  uint32_t n_parts = 1;
  bool product = read_product(split, &devices->n_shards, &n_parts);
  if (strcmp(split, "tensor") == 0) devices->n_shards = devices->n;
  devices->replicas = strcmp(split, "replicas") == 0;
  devices->is_auto = strcmp(split, "auto") == 0;
  bool apart = strcmp(split, "tensor") == 0 || devices->replicas;
  if (product && devices->n_shards * n_parts != devices->n) {
    return weft_fail(error, WEFT_E_INVALID, "--split %.64s needs %u devices; --devices names %u", split,
                     devices->n_shards * n_parts, devices->n);
  }
  if (!apart && !product && strcmp(split, "layer") != 0 && strcmp(split, "auto") != 0) {
    return weft_fail(error, WEFT_E_INVALID,
                     "--split %.64s: layer, tensor, replicas and auto are what there is, and tensor:N,layer:M for M "
                     "parts of N devices each",
                     split);
  }
  if (apart && devices->n == 1) {
    return weft_fail(error, WEFT_E_INVALID, "--split %s needs several devices: name them with --devices, as 0,1",
                     split);
  }
  return WEFT_OK;
}

static weft_status read_ratio(const weft_open_options *o, weft_devices *devices, weft_error *error) {
  if (o->split_ratio == NULL) return WEFT_OK;
  uint32_t n_parts = devices_n_parts(devices);
  if (devices->n_shards > 1 && n_parts == 1)
    return weft_fail(error, WEFT_E_INVALID, "--split-ratio %.64s: with --split tensor all devices have equal shares",
                     o->split_ratio);
  if (devices->replicas)
    return weft_fail(error, WEFT_E_INVALID, "--split-ratio %.64s: with --split replicas each device has all layers",
                     o->split_ratio);
  uint32_t n = read_numbers(o->split_ratio, 1e6, devices->ratio);
  bool positive = n > 0;
  for (uint32_t i = 0; i < n; i++) positive = positive && devices->ratio[i] > 0;
  if (!positive) {
    return weft_fail(error, WEFT_E_INVALID,
                     "--split-ratio %.64s: write a number above 0 for each device with commas between, as 7,3",
                     o->split_ratio);
  }
  if (n != n_parts && devices->n_shards > 1)
    return weft_fail(error, WEFT_E_INVALID, "--split-ratio %.64s has %u numbers; --split %.64s makes %u parts",
                     o->split_ratio, n, o->split, n_parts);
  if (n != n_parts)
    return weft_fail(error, WEFT_E_INVALID, "--split-ratio %.64s has %u numbers; --devices names %u", o->split_ratio, n,
                     devices->n);
  devices->has_ratio = true;
  return WEFT_OK;
}

/* bytes [n]: most of each device for weights; 0: no bound. One number is that of every device. */
static weft_status read_budgets(const char *text, uint32_t n, uint64_t *bytes, weft_error *error) {
  double mib[WEFT_DEVICES_MAX];
  memset(bytes, 0, WEFT_DEVICES_MAX * sizeof *bytes);
  if (text == NULL) return WEFT_OK;
  uint32_t n_given = read_numbers(text, 1 << 24, mib);
  if (n_given == 0) {
    return weft_fail(
        error, WEFT_E_INVALID,
        "--device-mib %.64s: write a number of MiB, at most %d, or one for each device with commas between", text,
        1 << 24);
  }
  if (n_given != 1 && n_given != n) {
    return weft_fail(error, WEFT_E_INVALID, "--device-mib %.64s has %u numbers; there %s %u device%s", text, n_given,
                     n == 1 ? "is" : "are", n, n == 1 ? "" : "s");
  }
  for (uint32_t i = 0; i < n; i++) bytes[i] = (uint64_t)(mib[n_given == 1 ? 0 : i] * 1024.0 * 1024.0);
  return WEFT_OK;
}

weft_status devices_precision(const char *precision, uint32_t *bits, weft_error *error) {
  static const struct {
    const char *name;
    uint32_t bits;
  } known[] = {{"exact", 16}, {"fast", 8}};
  *bits = 0;
  if (precision == NULL || strcmp(precision, "auto") == 0) return WEFT_OK;
  for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
    if (strcmp(precision, known[i].name) == 0) *bits = known[i].bits;
  }
  if (*bits != 0) return WEFT_OK;
  return weft_fail(error, WEFT_E_INVALID, "--precision: '%.64s' must be auto, exact or fast", precision);
}

bool devices_files_fit_eight(weft_gguf *const *gguf, uint32_t n, weft_error *why) {
  (void)weft_fail(why, WEFT_OK, "there is no file");
  for (uint32_t i = 0; i < n; i++) {
    weft_eight_bits facts = weft_eight_bits_of(gguf[i]);
    char said[160];
    weft_eight_bits_say(&facts, said, sizeof said);
    const char *path = weft_gguf_path(gguf[i]), *slash = strrchr(path, '/');
    char name[256];
    (void)weft_utf8_clean(slash == NULL ? path : slash + 1, name, sizeof name);
    (void)weft_fail(why, WEFT_OK, "in %.80s %s", name, said);
    if (!facts.fits) return false;
  }
  return n > 0;
}

/* Says by what precision the devices multiply. file: what was said of the files. */
static void note_precision(weft_devices *devices, const char *asked, bool chose, const weft_error *file) {
  const weft_device_info *info = weft_device_get_info(devices->device[0]);
  weft_error *to = &devices->precision;
  if (devices->products != 0)
    (void)weft_fail(to, WEFT_OK, "%s, as --precision says", asked);
  else if (!info->has_eight_beside)
    (void)weft_fail(to, WEFT_OK, "%s, the only one of backend '%s'%s%s", info->products == 8 ? "fast" : "exact",
                    info->backend, info->set == NULL ? "" : " with the set ", info->set == NULL ? "" : info->set);
  else if (chose)
    (void)weft_fail(to, WEFT_OK, "%s, chosen by auto: %s", info->products == 8 ? "fast" : "exact", file->text);
  else
    (void)weft_fail(to, WEFT_OK, "that of backend '%s', by which the others are judged", info->backend);
}

/* ---- open ---- */

/* On the cpu what parts compute follows one another, so each may use all threads; shards and replicas compute at once
 * and share them. */
static weft_device_config config_of(const weft_open_options *o, const weft_devices *devices, uint32_t n, uint32_t index,
                                    uint64_t bytes_max, bool eight) {
  uint32_t n_threads = o->threads, n_at_once = devices->replicas ? n : devices->n_shards;
  if (n_at_once > 1) {
    if (n_threads == 0) n_threads = weft_thread_pool_cores();
    n_threads = n_threads > n_at_once ? n_threads / n_at_once : 1;
  }
  return (weft_device_config){.backend = o->backend,
                              .index = index,
                              .no_peer = o->no_peer_access,
                              .n_threads = n_threads,
                              .no_graphs = o->no_graphs,
                              .no_arena = o->no_arena || o->weights != NULL, /* what is mapped lies elsewhere */
                              .no_deterministic = o->no_deterministic,
                              .isa = o->isa,
                              .products = devices->products,
                              .eight_beside = eight,
                              .weights_bytes_max = bytes_max,
                              .memory_bytes_max = bytes_max};
}

static uint32_t shards_of(const weft_devices *devices) {
  return devices->n_shards > 1 ? devices->n_shards : 1;
}

uint32_t devices_n_parts(const weft_devices *devices) {
  return devices->n / shards_of(devices);
}

static bool has_parts_of_shards(const weft_devices *devices) {
  return shards_of(devices) > 1 && devices_n_parts(devices) > 1;
}

/* Where device i sends its rows: of shards the next one of its part, of parts the next one. */
static uint32_t next_of(const weft_devices *devices, uint32_t i) {
  uint32_t n_ring = shards_of(devices) > 1 ? shards_of(devices) : devices->n, first = i / n_ring * n_ring;
  return first + (i - first + 1) % n_ring;
}

/* Its like in the next part. */
static uint32_t like_of(const weft_devices *devices, uint32_t i) {
  return (i + shards_of(devices)) % devices->n;
}

/* Rows go from each device to the next, tokens and soft embeddings from the last to the first; of shards from each to
 * all of its part. */
static void find_links(weft_devices *devices) {
  uint32_t n_shards = shards_of(devices);
  devices->parts_reach = true;
  for (uint32_t i = 0; i < devices->n; i++) {
    weft_device *from = devices->device[i];
    devices->links[i] = weft_device_reaches(from, devices->device[next_of(devices, i)]);
    devices->cuts[i] = weft_device_reaches(from, devices->device[like_of(devices, i)]);
    for (uint32_t k = i / n_shards * n_shards; k < (i / n_shards + 1) * n_shards; k++)
      devices->parts_reach = devices->parts_reach && weft_device_reaches(from, devices->device[k]);
  }
}

bool devices_keep_graphs(const weft_devices *devices) {
  return weft_device_get_info(devices->device[0])->graphs && (shards_of(devices) == 1 || devices->parts_reach);
}

weft_status devices_check_kinds(const weft_device_info *const *info, uint32_t n, weft_error *error) {
  for (uint32_t i = 1; i < n; i++) {
    if (strcmp(info[i]->name, info[0]->name) == 0) continue;
    return weft_fail(error, WEFT_E_INVALID,
                     "--split replicas: device %u is %s and device %u is %s; replicas need devices of one kind",
                     info[0]->index, info[0]->name, info[i]->index, info[i]->name);
  }
  return WEFT_OK;
}

/* "A (sm_80) and B (sm_120)". */
static void name_both(const weft_device_info *a, const weft_device_info *b, char *out, size_t n) {
  (void)snprintf(out, n, "device %u is %.64s (sm_%u) and device %u is %.64s (sm_%u)", a->index, a->name, a->capability,
                 b->index, b->name, b->capability);
}

weft_status devices_check_generations(const weft_device_info *const *info, uint32_t n, uint32_t n_shards,
                                      weft_error *error) {
  char both[256];
  for (uint32_t i = 1; i < n; i++) {
    const weft_device_info *first = info[0], *shard = n_shards > 1 ? info[i / n_shards * n_shards] : info[i];
    name_both(first, info[i], both, sizeof both);
    if (first->set != NULL && info[i]->set != NULL && strcmp(first->set, info[i]->set) != 0)
      return weft_fail(
          error, WEFT_E_INVALID,
          "--devices: %s, and their kernel sets are %s and %s; a server has one: --isa portable opens both "
          "with the same",
          both, first->set, info[i]->set);
    if (shard->capability == info[i]->capability) continue;
    name_both(shard, info[i], both, sizeof both);
    return weft_fail(error, WEFT_E_INVALID,
                     "--split tensor: %s; rows of a step are shared out to both, so an answer's last bits would depend "
                     "on what is computed beside it: --split layer",
                     both);
  }
  return WEFT_OK;
}

void devices_tell_generations(const weft_devices *devices, const char *title, weft_text *out) {
  uint32_t first = weft_device_get_info(devices->device[0])->capability, n_other = 0;
  for (uint32_t i = 1; i < devices->n; i++) n_other += weft_device_get_info(devices->device[i])->capability != first;
  if (n_other == 0) return;
  weft_text_puts(out, title);
  for (uint32_t i = 0; i < devices->n; i++)
    weft_text_printf(out, "%ssm_%u", i == 0 ? "cards of several generations (" : ", ",
                     weft_device_get_info(devices->device[i])->capability);
  weft_text_puts(out,
                 "): answers repeat with these cards, their order and this split; they are not those of one of them "
                 "alone\n");
}

uint32_t devices_n_replicas(const weft_devices *devices) {
  return devices->replicas ? devices->n : 1;
}

/* ref multiplies as ops.h defines it, unless it is asked for another way. */
static bool chooses_by_file(const weft_open_options *options) {
  if (options->precision != NULL) return strcmp(options->precision, "auto") == 0;
  return options->backend == NULL || strcmp(options->backend, "ref") != 0;
}

/* ---- --split auto ---- */

/* The device's kernel set (card_sets.h); CARD_SETS: none. */
static uint32_t set_of(const weft_device_info *info) {
  uint32_t i = 0;
  while (i < CARD_SETS && !(info->set != NULL && strcmp(info->set, card_sets[i].name) == 0)) i++;
  return i;
}

/* Equal cards; n 0: they are none. */
static split_machine machine_of(const weft_devices *devices, weft_gguf *const *gguf, uint32_t n_files) {
  const weft_device_info *first = weft_device_get_info(devices->device[0]);
  split_machine m = {.n = devices->n,
                     .set = set_of(first),
                     .memory_rate = first->memory_rate,
                     .product_rate = first->product_rate,
                     .memory_bytes = first->memory_free_bytes,
                     .direct = true,
                     .shards = UINT32_MAX};
  for (uint32_t i = 0; i < devices->n; i++) {
    const weft_device_info *own = weft_device_get_info(devices->device[i]);
    bool bounded = devices->weights_bytes_max[i] > 0; /* then experts may have to stay in host memory */
    if (strcmp(own->name, first->name) != 0 || bounded || own->host_memory) m.n = 0;
    if (own->memory_free_bytes < m.memory_bytes) m.memory_bytes = own->memory_free_bytes;
    for (uint32_t k = 0; k < devices->n; k++)
      m.direct = m.direct && weft_device_reaches(devices->device[i], devices->device[k]);
  }
  for (uint32_t i = 0; i < n_files; i++) m.shards &= weft_split_shardings(gguf[i]);
  return m;
}

/* The facts of the file with most weights; NULL: there is no file, or that one's keys cannot be read. */
static weft_status read_largest(weft_gguf *const *gguf, uint32_t n_files, weft_file_facts **largest,
                                weft_error *error) {
  weft_status status = WEFT_OK;
  *largest = NULL;
  for (uint32_t i = 0; i < n_files && status == WEFT_OK; i++) {
    weft_file_facts *facts = NULL;
    status = weft_inspect_facts(gguf[i], &facts, error);
    bool larger = *largest == NULL || (status == WEFT_OK && facts->weight_bytes > (*largest)->weight_bytes);
    weft_free(larger ? *largest : facts);
    if (larger) *largest = facts;
  }
  if (*largest != NULL && (status != WEFT_OK || (*largest)->keys != WEFT_OK)) {
    weft_free(*largest);
    *largest = NULL;
  }
  return status;
}

/* By the largest file. Where weights are another process', or models come and go, all processes must choose alike, or
 * not every file is known, so layers it is. */
static weft_status choose_split(const weft_open_options *o, weft_gguf *const *gguf, uint32_t n_files,
                                weft_share_by shares, weft_devices *devices, weft_error *error) {
  bool asks = devices->is_auto && devices->n > 1 && !devices->has_ratio && n_files > 0;
  if (!asks || shares != WEFT_SHARE_NOT || o->weights != NULL || models_on_call(o)) return WEFT_OK;
  const split_machine machine = machine_of(devices, gguf, n_files);
  split_load load = {.n_running = o->running};
  weft_file_facts *largest = NULL;
  weft_status status = machine.n > 0 ? read_largest(gguf, n_files, &largest, error) : WEFT_OK;
  split_choice choice;
  if (largest != NULL)
    load.n_tokens = (o->context < largest->context_length ? o->context : largest->context_length) / 4;
  if (largest != NULL && split_choose(largest, &machine, &load, &choice)) {
    char said[400];
    devices->n_shards = choice.way[choice.chosen].n_shards;
    split_tell(&choice, &machine, &load, said, sizeof said);
    (void)weft_fail(&devices->auto_why, WEFT_OK, "%s", said);
  }
  weft_free(largest);
  return status;
}

/* By more than a tenth: cards of one kind may have somewhat different clocks. */
static bool rates_differ(double a, double b) {
  return a > 1.1 * b || b > 1.1 * a;
}

/* Where cards are unequal, each part gets work by how fast its card is expected to be, one of shards by its slowest
 * card. That comes from the driver's figures and is the same at every start. Of a folder's models no file is known:
 * their parts are equal. */
static weft_status find_speeds(weft_gguf *const *gguf, uint32_t n_files, weft_devices *devices, weft_error *error) {
  const uint32_t n_parts = devices_n_parts(devices);
  bool unequal = false, known = true;
  for (uint32_t i = 1; i < devices->n; i++) {
    const weft_device_info *a = weft_device_get_info(devices->device[0]), *b = weft_device_get_info(devices->device[i]);
    unequal = unequal || rates_differ(a->memory_rate, b->memory_rate) || rates_differ(a->product_rate, b->product_rate);
  }
  if (!unequal || devices->replicas || devices->has_ratio || n_parts == 1 || n_files == 0) return WEFT_OK;
  weft_file_facts *largest = NULL;
  weft_status status = read_largest(gguf, n_files, &largest, error);
  for (uint32_t i = 0; i < devices->n && largest != NULL; i++) {
    const weft_device_info *info = weft_device_get_info(devices->device[i]);
    const split_machine card = {
        .set = set_of(info), .memory_rate = info->memory_rate, .product_rate = info->product_rate};
    double seconds = split_card_step(largest, &card), *speed = &devices->ratio[i / shards_of(devices)];
    known = known && seconds > 0;
    bool is_first = i % shards_of(devices) == 0;
    if (known && (is_first || 1.0 / seconds < *speed)) *speed = 1.0 / seconds;
  }
  devices->by_speed = known && largest != NULL;
  weft_free(largest);
  return status;
}

weft_status devices_open(const weft_open_options *options, weft_gguf *const *gguf, uint32_t n_files,
                         weft_devices *devices, weft_error *error) {
  return devices_open_as(options, gguf, n_files, WEFT_SHARE_NOT, devices, error);
}

weft_status devices_open_as(const weft_open_options *options, weft_gguf *const *gguf, uint32_t n_files,
                            weft_share_by shares, weft_devices *devices, weft_error *error) {
  uint32_t index[WEFT_DEVICES_MAX], n;
  weft_error file = {{0}};
  *devices = (weft_devices){.n = 0};
  weft_status status = read_devices(options->devices, index, &n, error);
  devices->n = n;
  if (status == WEFT_OK) status = read_split(options, devices, error);
  if (status == WEFT_OK) status = read_ratio(options, devices, error);
  if (status == WEFT_OK) status = devices_precision(options->precision, &devices->products, error);
  if (status == WEFT_OK) status = read_budgets(options->device_mib, n, devices->weights_bytes_max, error);
  devices->n = 0;
  bool chooses = chooses_by_file(options), eight = chooses && devices_files_fit_eight(gguf, n_files, &file);
  for (uint32_t i = 0; i < n && status == WEFT_OK; i++) {
    weft_device_config config = config_of(options, devices, n, index[i], devices->weights_bytes_max[i], eight);
    config.shares = shares;
    config.ahead = models_on_call(options);
    if (i > 0) config.backend = weft_device_get_info(devices->device[0])->backend; /* the first one may have chosen */
    weft_error said = {{0}};
    status = weft_device_open(&config, &devices->device[i], &said);
    if (status == WEFT_OK) devices->n = i + 1;
    if (status != WEFT_OK) (void)weft_fail(error, status, "%s", said.text);
    if (i == 0) devices->why = said;
  }
  const weft_device_info *info[WEFT_DEVICES_MAX];
  for (uint32_t i = 0; i < devices->n; i++) info[i] = weft_device_get_info(devices->device[i]);
  if (status == WEFT_OK && devices->replicas) status = devices_check_kinds(info, devices->n, error);
  if (status == WEFT_OK) status = devices_check_generations(info, devices->n, shards_of(devices), error);
  if (options->backend != NULL) (void)weft_fail(&devices->why, WEFT_OK, "--backend names it");
  devices->no_peer = options->no_peer_access;
  if (status == WEFT_OK) note_precision(devices, options->precision, chooses, &file);
  if (status == WEFT_OK) status = choose_split(options, gguf, n_files, shares, devices, error);
  if (status == WEFT_OK) status = find_speeds(gguf, n_files, devices, error);
  if (status == WEFT_OK) find_links(devices);
  return status;
}

weft_status devices_open_placer(const weft_open_options *options, const weft_devices *devices, uint64_t bytes_max,
                                weft_device **out, weft_error *error) {
  const weft_device_info *info = weft_device_get_info(devices->device[0]);
  weft_device_config config = config_of(options, devices, 1, info->index, bytes_max, false);
  config.backend = info->backend;
  config.n_threads = 1;                                         /* steps have the others */
  if (info->has_eight_beside) config.products = info->products; /* as files or options chose */
  weft_status status = weft_device_open(&config, out, error);
  if (status == WEFT_OK) (void)weft_device_keep_integers(*out, info->integers);
  return status;
}

void devices_close(weft_devices *devices) {
  for (uint32_t i = 0; i < devices->n; i++) weft_device_close(devices->device[i]);
  devices->n = 0;
}

/* Bytes for weights that device p has left; 0: not bounded. */
static uint64_t weights_room(const weft_devices *devices, uint32_t p) {
  const weft_device_info *info = weft_device_get_info(devices->device[p]);
  uint64_t most = devices->weights_bytes_max[p], held = weft_device_weights(devices->device[p]).n_bytes_held;
  if (info->host_memory) return most == 0 ? 0 : weft_device_memory_left(devices->device[p]) / 8 * 7 + 1;
  if (most == 0) most = info->memory_free_bytes / 8 * 7;
  return held < most ? most - held : 1;
}

weft_status devices_split(const weft_devices *devices, uint32_t replica, const weft_gguf *gguf, weft_split *split,
                          weft_split_reason *reason, weft_error *error) {
  uint64_t room[WEFT_DEVICES_MAX];
  if (devices->replicas) {
    room[0] = weights_room(devices, replica);
    *split = (weft_split){.n_devices = 1, .device = {devices->device[replica]}, .codes_alone = devices->codes_alone};
    return weft_split_plan(gguf, NULL, NULL, room, split, reason, error);
  }
  *split = (weft_split){.n_devices = devices->n, .n_shards = devices->n_shards, .codes_alone = devices->codes_alone};
  memcpy(split->device, devices->device, sizeof split->device);
  for (uint32_t p = 0; p < devices->n; p++) room[p] = weights_room(devices, p);
  return weft_split_plan(gguf, devices->has_ratio ? devices->ratio : NULL, devices->by_speed ? devices->ratio : NULL,
                         room, split, reason, error);
}

static double ratio_of(const weft_devices *devices, uint32_t device) {
  return devices->has_ratio || devices->by_speed ? devices->ratio[device / shards_of(devices)] : 1.0;
}

double devices_share(const weft_devices *devices, uint32_t device) {
  double all = 0.0;
  if (devices->replicas) return 1.0;
  for (uint32_t p = 0; p < devices->n; p++) all += ratio_of(devices, p);
  return ratio_of(devices, device) / all;
}

typedef struct integers_ask {
  weft_gguf *const *gguf;
  uint32_t n;
  uint64_t kv_bytes;
  uint64_t codes_bytes; /* of all weights of a device without integers; 0: they may take more than half */
} integers_ask;

/* What all files' weights take of the fullest device of each part. Where no cut is possible all count for the last
 * part; opening says why there is none. */
static void files_bytes(const weft_devices *devices, const integers_ask *ask, const weft_split *split,
                        uint64_t n_bytes[WEFT_DEVICES_MAX]) {
  memset(n_bytes, 0, WEFT_DEVICES_MAX * sizeof *n_bytes);
  for (uint32_t i = 0; i < ask->n; i++) {
    weft_split cut = *split;
    weft_split_reason reason;
    uint64_t own[WEFT_DEVICES_MAX];
    if (weft_split_stages(split) > 1) (void)devices_split(devices, 0, ask->gguf[i], &cut, &reason, NULL);
    cut.codes_alone = split->codes_alone;
    weft_split_bytes(ask->gguf[i], &cut, own);
    for (uint32_t p = 0; p < weft_split_stages(split); p++) n_bytes[p] += own[p];
  }
}

/* What the fullest device lacks with the integers of a split. In part: a thirty-second of what weights may take is left
 * for the ends of an arena's pieces, and beside pages that were asked for a sixteenth of the memory for a step. */
static uint64_t missing_bytes(const weft_devices *devices, const integers_ask *ask, const weft_split *split,
                              bool in_part) {
  uint64_t n_bytes[WEFT_DEVICES_MAX], most = 0;
  files_bytes(devices, ask, split, n_bytes);
  for (uint32_t p = 0; p < devices->n; p++) {
    uint64_t has = weft_device_memory_left(devices->device[p]), room = weights_room(devices, p);
    uint64_t pages = ask->kv_bytes == 0 ? has / 4 : (uint64_t)(devices_share(devices, p) * (double)ask->kv_bytes);
    uint64_t half = ask->codes_bytes < has ? (has - ask->codes_bytes) / 2 : 0;
    if (ask->codes_bytes > 0 && ask->kv_bytes == 0 && half > pages) pages = half;
    uint64_t weights = n_bytes[devices->replicas ? 0 : p / shards_of(devices)], wanted = weights + pages;
    if (in_part) room -= room / 32;
    if (in_part && ask->kv_bytes > 0) wanted += has / 16;
    uint64_t missing = wanted > has ? wanted - has : 0;
    if (weights > room && weights - room > missing) missing = weights - room;
    if (missing > most) most = missing;
  }
  return most;
}

void devices_choose_integers(weft_devices *devices, weft_gguf *const *gguf, uint32_t n, uint64_t kv_bytes,
                             bool may_be_part) {
  weft_split split = {.n_devices = devices->n, .n_shards = devices->n_shards};
  integers_ask ask = {gguf, n, kv_bytes, 0};
  devices->integers_missing = 0;
  devices->codes_alone = (weft_codes_alone){0, 0};
  for (uint32_t p = 0; p < devices->n; p++) {
    if (!weft_device_keep_integers(devices->device[p], true)) return;
  }
  may_be_part = may_be_part && devices_n_parts(devices) == 1;
  memcpy(split.device, devices->device, sizeof split.device);
  if (devices->replicas) split.n_devices = split.n_shards = 1;
  split.codes_alone = (weft_codes_alone){WEFT_CODES_OF, WEFT_CODES_OF};
  uint64_t codes[WEFT_DEVICES_MAX];
  files_bytes(devices, &ask, &split, codes);
  if (may_be_part) ask.codes_bytes = codes[0];
  split.codes_alone = devices->codes_alone;
  devices->integers_missing = missing_bytes(devices, &ask, &split, false);
  if (devices->integers_missing == 0) return;
  for (uint32_t out = 1; out < 2 * WEFT_CODES_OF && may_be_part; out++) {
    bool of_experts = out < WEFT_CODES_OF;
    split.codes_alone = (weft_codes_alone){of_experts ? out : WEFT_CODES_OF, of_experts ? 0 : out - WEFT_CODES_OF};
    if (missing_bytes(devices, &ask, &split, true) > 0) continue;
    devices->codes_alone = split.codes_alone;
    return;
  }
  for (uint32_t p = 0; p < devices->n; p++) (void)weft_device_keep_integers(devices->device[p], false);
}

void devices_tell_integers(const weft_devices *devices, weft_gguf *const *gguf, uint32_t n, weft_text *out) {
  const weft_split split = {.n_devices = 1, .device = {devices->device[0]}, .codes_alone = devices->codes_alone};
  uint32_t n_have = 0, n_can = 0;
  if (devices->integers_missing == 0) return;
  const double missing = (double)devices->integers_missing / (1024.0 * 1024.0);
  if (!weft_device_get_info(devices->device[0])->integers) {
    weft_text_printf(out, "off      weights as integers too: a device lacks %.0f MiB for them%s\n", missing,
                     devices_weights(devices).n_bytes_host > 0 ? ", and leaves experts in host memory" : "");
    return;
  }
  for (uint32_t i = 0; i < n; i++) {
    uint32_t have, can;
    weft_split_count_integers(gguf[i], &split, &have, &can);
    n_have += have;
    n_can += can;
  }
  weft_text_printf(out, "part     weights as integers too: %u of %u; for all a device lacks %.0f MiB\n", n_have, n_can,
                   missing);
}

/* ---- what they say ---- */

uint64_t devices_memory(const weft_devices *devices) {
  uint64_t n_bytes = 0;
  bool shared = weft_device_get_info(devices->device[0])->host_memory && devices->weights_bytes_max[0] == 0;
  for (uint32_t i = 0; i < (shared ? 1 : devices->n); i++) {
    n_bytes += weft_device_get_info(devices->device[i])->memory_bytes;
  }
  return n_bytes;
}

weft_weights_report devices_weights(const weft_devices *devices) {
  weft_weights_report all = {0};
  for (uint32_t i = 0; i < devices->n; i++) {
    weft_weights_report one = weft_device_weights(devices->device[i]);
    all.n_bytes += one.n_bytes;
    all.n_bytes_held += one.n_bytes_held;
    all.n_bytes_host += one.n_bytes_host;
    all.n_bytes_tables += one.n_bytes_tables;
  }
  return all;
}

weft_graph_counters devices_graphs(const weft_devices *devices) {
  weft_graph_counters all = {0};
  for (uint32_t i = 0; i < devices->n; i++) {
    weft_graph_counters one = weft_device_graph_counters(devices->device[i]);
    const uint64_t *from = (const uint64_t *)(const void *)&one;
    uint64_t *to = (uint64_t *)(void *)&all;
    for (size_t k = 0; k < sizeof one / sizeof *from; k++) to[k] += from[k];
  }
  return all;
}

/* By what way bytes go from device i to another one. */
static void print_link(const weft_devices *devices, uint32_t i, uint32_t other, bool reaches, weft_text *out) {
  const weft_device_info *from = weft_device_get_info(devices->device[i]);
  const weft_device_info *to = weft_device_get_info(devices->device[other]);
  const char *way = "directly, by peer access";
  if (from->host_memory)
    way = "in the memory that both share";
  else if (!reaches)
    way = devices->no_peer ? "through host memory: --no-peer-access turns peer access off"
                           : "through host memory: the cards have no peer access";
  weft_text_printf(out, "  link     device %u to device %u: %s\n", from->index, to->index, way);
}

void devices_print(const weft_devices *devices, uint32_t rows, uint32_t rows_beside, weft_text *out) {
  for (uint32_t i = 0; i < devices->n; i++) {
    const weft_device_info *d = weft_device_get_info(devices->device[i]);
    const char *graphs = devices_keep_graphs(devices) ? "steps as graphs, " : "";
    const char *integers = d->integers ? "weights as integers too, " : "";
    char paths[WEFT_PATHS_MAX];
    weft_device_paths(devices->device[i], paths, sizeof paths);
    char number[16] = "  "; /* one device needs none */
    if (devices->n > 1) (void)snprintf(number, sizeof number, "%u ", d->index);
    weft_text_printf(out, "device %s%s %s, %u threads (%s): products of %u bits, %s%s%u rows a step", number,
                     d->backend, d->isa, d->n_threads, d->name, d->products, integers, graphs, rows);
    if (rows_beside < rows) weft_text_printf(out, ", %u beside streams", rows_beside);
    weft_text_puts(out, "\n");
    if (d->memory_rate > 0.0)
      weft_text_printf(out, "  clocks   give %.2f TB/s of memory and %.0f TFLOP/s of products of 16 bits at most\n",
                       d->memory_rate * 1e-12, d->product_rate * 1e-12);
    weft_text_printf(out, "  kernels  %s\n", paths);
  }
  if (devices->precision.text[0] != 0) weft_text_printf(out, "  precision %s\n", devices->precision.text);
  devices_tell_generations(devices, "  numerics ", out);
  for (uint32_t i = 0; i < devices->n && devices->n > 1 && !devices->replicas; i++) {
    print_link(devices, i, next_of(devices, i), devices->links[i], out);
    if (has_parts_of_shards(devices)) print_link(devices, i, like_of(devices, i), devices->cuts[i], out);
  }
}

/* What a shard has of the head, and of the embedding where that is a range too. */
static void tell_tokens(const weft_model_info *info, const weft_model_part_info *part, char *out, size_t n) {
  uint32_t n_head = part->head_end - part->head_first, n_embed = part->embed_end - part->embed_first;
  bool same = n_embed == n_head && part->embed_first == part->head_first;
  out[0] = 0;
  if (n_head == info->n_vocab)
    (void)snprintf(out, n, ", with the head");
  else if (n_head > 0)
    (void)snprintf(out, n, ", with the head%s of tokens %u to %u", same ? " and the embedding" : "", part->head_first,
                   part->head_end - 1);
  else if (n_embed > 0 && n_embed < info->n_vocab)
    (void)snprintf(out, n, ", with the embedding of tokens %u to %u", part->embed_first, part->embed_end - 1);
}

static void print_shards(const weft_devices *devices, const weft_model_info *info, const weft_kv_layout *layout,
                         weft_text *out) {
  uint32_t n_shards = shards_of(devices), n_parts = devices_n_parts(devices);
  for (uint32_t p = 0; p < devices->n; p++) {
    const weft_model_part_info *part = &info->part[p];
    char tokens[80];
    tell_tokens(info, part, tokens, sizeof tokens);
    weft_text_printf(out, "  shard    %u of %u", p % n_shards + 1, n_shards);
    if (n_parts > 1) weft_text_printf(out, " of layers %u to %u", part->first_layer, part->end_layer - 1);
    weft_text_printf(out, " on device %u%s: weights %.1f MiB, activations %.1f MiB",
                     weft_device_get_info(devices->device[p])->index, tokens,
                     (double)part->weight_bytes / (1024.0 * 1024.0), (double)part->scratch_bytes / (1024.0 * 1024.0));
    weft_text_printf(out, ", %.0f %% of each page\n",
                     100.0 * (double)layout->part_bytes[p] / (double)layout->page_bytes);
  }
  weft_text_printf(out, "  cut      within layers, because --split %s: shares of heads and of experts or columns\n",
                   devices->is_auto ? "auto chose it" : "tensor was given");
}

/* Why --split auto is what it is: times, or where nothing is known of the devices what a step crosses and meets,
 * against steps at once. A layer with experts exchanges twice at least, another three times (docs/several-cards.md). */
static void print_auto(const weft_devices *devices, const weft_model_info *info, weft_text *out) {
  if (devices->auto_why.text[0] != 0) {
    weft_text_printf(out, "  split    %s\n", devices->auto_why.text);
    return;
  }
  uint32_t n_exchanges = info->n_layers * (info->n_experts > 0 ? 2 : 3);
  weft_text_printf(
      out,
      "  split    by layer, because --split auto: %u steps at once, and a row crosses %u time%s with %.1f KiB. "
      "With --split tensor there would be one step at a time, for whose exchanges all devices wait %u times "
      "or more; it is for few canvases or prompts at once\n",
      devices->n, devices->n - 1, devices->n == 2 ? "" : "s", (double)info->n_hidden * 4 / 1024.0, n_exchanges);
}

/* Of each part, as shares of all. */
static void print_speeds(const weft_devices *devices, weft_text *out) {
  const uint32_t n_parts = devices_n_parts(devices), n_shards = shards_of(devices);
  weft_text_puts(out, ", for their speeds of ");
  for (uint32_t p = 0; p < n_parts; p++) {
    const char *before = p == 0 ? "" : p + 1 == n_parts ? " and " : ", ";
    weft_text_printf(out, "%s%.2f", before, devices_share(devices, p * n_shards) * n_shards);
  }
}

void devices_print_parts(const weft_devices *devices, const weft_model_info *info, const weft_kv_layout *layout,
                         const weft_split_reason *reason, weft_text *out) {
  if (devices->n == 1) return;
  if (devices->is_auto) print_auto(devices, info, out);
  if (devices->replicas) {
    weft_text_printf(out, "  replicas %u, because --split replicas was given: all of it on each device\n", devices->n);
    return;
  }
  if (shards_of(devices) > 1) print_shards(devices, info, layout, out);
  if (shards_of(devices) > 1 && devices_n_parts(devices) == 1) return;
  for (uint32_t p = 0; p < devices->n && shards_of(devices) == 1; p++) {
    const weft_model_part_info *part = &info->part[p];
    weft_text_printf(
        out,
        "  part     layers %u to %u on device %u%s: weights %.1f MiB, activations %.1f MiB, %.0f %% of each page\n",
        part->first_layer, part->end_layer - 1, weft_device_get_info(devices->device[p])->index,
        p + 1 == devices->n ? ", with the head" : "", (double)part->weight_bytes / (1024.0 * 1024.0),
        (double)part->scratch_bytes / (1024.0 * 1024.0),
        100.0 * (double)layout->part_bytes[p] / (double)layout->page_bytes);
  }
  weft_text_puts(out, "  cut      between layers; ");
  if (reason->why == WEFT_SPLIT_ASKED) {
    weft_text_puts(out, "where --split-ratio says\n");
    return;
  }
  weft_text_printf(out, "equal work for each %s, of which the head is %.1f layers",
                   shards_of(devices) > 1 ? "part" : "device", reason->head);
  if (devices->by_speed) print_speeds(devices, out);
  if (reason->why == WEFT_SPLIT_ROOM) weft_text_puts(out, ", as far as each device has room for its weights");
  if (reason->why == WEFT_SPLIT_TOO_LITTLE)
    weft_text_puts(out, "; the devices have too little room, so some experts stay in host memory");
  weft_text_puts(out, "\n");
}
