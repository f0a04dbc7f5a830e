/* SPDX-License-Identifier: MIT */
#include "api/option_names.h"

#include <stdbool.h>
#include <string.h>

#include "base/nearest.h"

/* Options that have another name now: a value that was given under the old one must not be passed over. */
static const struct {
  const char *name, *now;
} retired_options[] = {
    {"products", "--precision exact (16 bits) or --precision fast (8 bits)"},
    {"integers", "--precision fast, which keeps them where there is room"},
    {"diffusion-seed", "--seed"},
};
enum { N_RETIRED = sizeof retired_options / sizeof *retired_options };

#define VLLM   "vLLM"
#define LLAMA  "llama-server"
#define OLLAMA "Ollama"

/* Options of other servers as their documents name them, and what does the same here. A name of one dash and several
 * letters stands with its dash. */
static const struct {
  const char *name, *servers, *here;
} foreign_options[] = {
    {"max-model-len", VLLM, "--context N: the longest prompt plus answer"},
    {"max-num-seqs", VLLM, "--running N: requests running at once"},
    {"max-num-batched-tokens", VLLM, "--rows N: rows of one step"},
    {"gpu-memory-utilization", VLLM, "--kv-mib N for the pool of keys and values, --device-mib N for weights"},
    {"kv-cache-memory-bytes", VLLM, "--kv-mib N, in MiB"},
    {"num-gpu-blocks-override", VLLM, "--kv-mib N, in MiB"},
    {"tensor-parallel-size", VLLM, "--devices 0,1 --split tensor"},
    {"-tp", VLLM, "--devices 0,1 --split tensor"},
    {"pipeline-parallel-size", VLLM, "--devices 0,1 --split layer"},
    {"-pp", VLLM, "--devices 0,1 --split layer"},
    {"data-parallel-size", VLLM, "--devices 0,1 --split replicas"},
    {"-dp", VLLM, "--devices 0,1 --split replicas"},
    {"enable-prefix-caching", VLLM, "the default: --no-prefix-cache turns it off"},
    {"no-enable-prefix-caching", VLLM, "--no-prefix-cache"},
    {"enable-chunked-prefill", VLLM, "always so: --rows N bounds the rows of a step"},
    {"swap-space", VLLM, "--host-mib N, in MiB"},
    {"kv-offloading-size", VLLM, "--host-mib N, in MiB"},
    {"cpu-offload-gb", VLLM, "--device-mib N: experts beyond it stay in host memory"},
    {"kv-cache-dtype", VLLM, "--kv-8bit MODEL"},
    {"enforce-eager", VLLM, "--no-graphs"},
    {"speculative-config", VLLM, "--draft HOW: ngram, mtp or model:FILE, each with :K for num_speculative_tokens"},
    {"enable-sleep-mode", VLLM,
     "--models-dir DIR: models that come and go; /sleep and /wake_up are about them, and --sleep-mib N keeps weights "
     "in "
     "host memory at level 1"},
    {"dtype", VLLM, "in the model file: its types of weights are used as they are; --precision chooses the products"},
    {"quantization", VLLM, "in the model file: its types of weights are used as they are"},
    {"tokenizer", VLLM, "in the model file"},
    {"trust-remote-code", VLLM, "not there: no code of a model is run"},
    {"reasoning-parser", VLLM, "not needed: the model's template says how it thinks"},
    {"tool-call-parser", VLLM, "not needed: the model's template says how tools are called"},
    {"enable-auto-tool-choice", VLLM, "not needed: it is so where the model's template has tools"},
    {"ssl-certfile", VLLM, "--tls-cert FILE"},
    {"ssl-keyfile", VLLM, "--tls-key FILE"},
    {"uds", VLLM, "--host unix:PATH"},
    {"allowed-origins", VLLM, "--allow-origin ORIGIN"},
    {"scheduling-policy", VLLM, "a class and a weight of each tenant: --api-keys FILE"},
    {"models-max", LLAMA, "--models-mib N: how much memory models of --models-dir may take at once"},
    {"max-loaded-models", OLLAMA, "--models-mib N: how much memory models of --models-dir may take at once"},
    {"keep-alive", OLLAMA, "--keep-alive-seconds N, about models of --models-dir: others stay"},
    {"ctx-size", LLAMA, "--context N: the longest prompt plus answer of each request, not of all together"},
    {"num-ctx", OLLAMA, "--context N: the longest prompt plus answer"},
    {"predict", LLAMA, "--max-tokens N"},
    {"n-predict", LLAMA, "--max-tokens N"},
    {"num-predict", OLLAMA, "--max-tokens N"},
    {"gpu-layers", LLAMA,
     "not needed: --backend cuda holds all layers, and --device-mib N leaves experts in host memory"},
    {"n-gpu-layers", LLAMA,
     "not needed: --backend cuda holds all layers, and --device-mib N leaves experts in host memory"},
    {"-ngl", LLAMA, "not needed: --backend cuda holds all layers, and --device-mib N leaves experts in host memory"},
    {"num-gpu", OLLAMA,
     "not needed: --backend cuda holds all layers, and --device-mib N leaves experts in host memory"},
    {"n-cpu-moe", LLAMA, "--device-mib N: experts beyond it stay in host memory"},
    {"cpu-moe", LLAMA, "--device-mib N: experts beyond it stay in host memory"},
    {"-ncmoe", LLAMA, "--device-mib N: experts beyond it stay in host memory"},
    {"parallel", LLAMA, "--running N: requests running at once"},
    {"-np", LLAMA, "--running N: requests running at once"},
    {"num-parallel", OLLAMA, "--running N: requests running at once"},
    {"max-queue", OLLAMA, "--queue N"},
    {"batch-size", LLAMA, "--rows N: rows of one step"},
    {"ubatch-size", LLAMA, "--rows N: rows of one step"},
    {"-ub", LLAMA, "--rows N: rows of one step"},
    {"threads-batch", LLAMA, "--threads N, for prompts too"},
    {"-tb", LLAMA, "--threads N, for prompts too"},
    {"num-thread", OLLAMA, "--threads N"},
    {"main-gpu", LLAMA, "--devices N"},
    {"-mg", LLAMA, "--devices N"},
    {"device", LLAMA, "--devices N,N, or --backend cpu"},
    {"split-mode", LLAMA, "--split layer, --split tensor or --split replicas"},
    {"-sm", LLAMA, "--split layer, --split tensor or --split replicas"},
    {"tensor-split", LLAMA, "--split-ratio X,X"},
    {"-ts", LLAMA, "--split-ratio X,X"},
    {"cache-type-k", LLAMA, "--kv-8bit MODEL"},
    {"-ctk", LLAMA, "--kv-8bit MODEL"},
    {"cache-type-v", LLAMA, "--kv-8bit MODEL"},
    {"-ctv", LLAMA, "--kv-8bit MODEL"},
    {"kv-cache-type", OLLAMA, "--kv-8bit MODEL"},
    {"flash-attn", LLAMA, "always so"},
    {"-fa", LLAMA, "always so"},
    {"cont-batching", LLAMA, "always so"},
    {"-cb", LLAMA, "always so"},
    {"jinja", LLAMA, "always so: the model's own chat template"},
    {"chat-template-file", LLAMA, "--chat-template FILE"},
    {"alias", LLAMA, "--served-model-name NAME"},
    {"metrics", LLAMA, "always so: GET /metrics"},
    {"mlock", LLAMA, "not needed: weights are read into memory at the start"},
    {"no-mmap", LLAMA, "always so: weights are read into memory at the start"},
    {"ssl-cert-file", LLAMA, "--tls-cert FILE"},
    {"ssl-key-file", LLAMA, "--tls-key FILE"},
    {"api-key-file", LLAMA, "--api-keys FILE, with lines `KEY TENANT`"},
    {"temp", LLAMA, "--temperature X"},
    {"repeat-penalty", LLAMA " and " OLLAMA, "--repetition-penalty X"},
    {"system-prompt", LLAMA, "--system TEXT"},
    {"-sys", LLAMA, "--system TEXT"},
    {"model-draft", LLAMA, "--draft model:FILE"},
    {"-md", LLAMA, "--draft model:FILE"},
    {"draft-max", LLAMA, "--draft ngram:K"},
    {"hf-repo", LLAMA, "--hf OWNER/NAME[:QUANT]"},
    {"-hfr", LLAMA, "--hf OWNER/NAME[:QUANT]"},
    {"conversation", LLAMA, "weft chat"},
    {"-cnv", LLAMA, "weft chat"},
    {"interactive", LLAMA, "weft chat"},
    {"keepalive", OLLAMA, "not needed: models stay loaded"},
};
enum { N_FOREIGN = sizeof foreign_options / sizeof *foreign_options };

/* Commands of other programs that are none of ours. */
static const struct {
  const char *name, *servers, *here;
} foreign_commands[] = {
    {"ls", OLLAMA, "the folder ~/.cache/weft/models: weft pull and -hf put their files there"},
    {"list", OLLAMA, "the folder ~/.cache/weft/models: weft pull and -hf put their files there"},
    {"rm", OLLAMA, "the removal of a file: weft pull and -hf put theirs into ~/.cache/weft/models"},
    {"show", OLLAMA, "weft inspect FILE"},
    {"ps", OLLAMA, "weft top"},
    {"stop", OLLAMA, "not needed: models stay loaded until the server ends"},
    {"create", OLLAMA, "not there: a model is a GGUF file, and options of weft serve set what its answers begin with"},
    {"cp", OLLAMA, "weft serve --served-model-name NAME"},
    {"push", OLLAMA, "not there: files are fetched, and none is sent"},
    {"complete", VLLM, "weft generate FILE -p TEXT"},
    {"collect-env", VLLM, "weft doctor"},
    {"run-batch", VLLM, "not there: send the requests to weft serve"},
};
enum { N_FOREIGN_COMMANDS = sizeof foreign_commands / sizeof *foreign_commands };

const char *weft_option_retired(const char *name, size_t n) {
  for (size_t i = 0; i < N_RETIRED; i++) {
    if (weft_same_name(name, n, retired_options[i].name)) return retired_options[i].now;
  }
  return NULL;
}

const char *weft_option_retired_at(size_t index) {
  return index < N_RETIRED ? retired_options[index].name : NULL;
}

const char *weft_option_foreign(const char *name, size_t n, const char **servers) {
  for (size_t i = 0; i < N_FOREIGN; i++) {
    if (!weft_same_name(name, n, foreign_options[i].name)) continue;
    *servers = foreign_options[i].servers;
    return foreign_options[i].here;
  }
  return NULL;
}

const char *weft_option_foreign_short(const char *name, const char **servers) {
  return name[0] == '-' && name[1] != '-' && name[1] != 0 && name[2] != 0
             ? weft_option_foreign(name, strlen(name), servers)
             : NULL;
}

const char *weft_option_server_at(size_t index) {
  static const char *const servers[] = {VLLM, LLAMA, OLLAMA};
  return index < sizeof servers / sizeof *servers ? servers[index] : NULL;
}

const char *weft_option_foreign_at(size_t index, const char **here) {
  if (index >= N_FOREIGN) return NULL;
  *here = foreign_options[index].here;
  return foreign_options[index].name;
}

const char *weft_command_foreign_at(size_t index, const char **servers, const char **here) {
  if (index >= N_FOREIGN_COMMANDS) return NULL;
  *servers = foreign_commands[index].servers;
  *here = foreign_commands[index].here;
  return foreign_commands[index].name;
}

weft_status weft_option_unknown(const char *nearest, const char *where, const char *given, const char *name, size_t n,
                                weft_error *error) {
  const char *servers, *now = weft_option_retired(name, n);
  int n_given = (int)strcspn(given, "="); /* the value is not what is wrong */
  if (now != NULL) return weft_fail(error, WEFT_E_INVALID, "%sinstead of %.*s say %s", where, n_given, given, now);
  const char *here = weft_option_foreign(name, n, &servers);
  if (here == NULL) here = weft_option_foreign_short(given, &servers);
  if (here != NULL)
    return weft_fail(error, WEFT_E_INVALID, "%s%.*s is an option of %s; here it is %s", where, n_given, given, servers,
                     here);
  bool flag = given[0] == '-';
  if (nearest == NULL && flag)
    return weft_fail(error, WEFT_E_INVALID, "%sno option is named '%s': --help lists them", where, given);
  if (nearest == NULL) return weft_fail(error, WEFT_E_INVALID, "%sno option is named '%s'", where, given);
  return weft_fail(error, WEFT_E_INVALID, "%sno option is named '%s': did you mean %s%s?%s", where, given,
                   flag ? "--" : "", nearest, flag ? " --help lists them" : "");
}
