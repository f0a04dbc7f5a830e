# SPDX-License-Identifier: MIT
"""Makes perplexity/cases.jsonl: what transformers' classes say of texts, by the definitions of docs/quality.md.

    python make_perplexity.py

The classes are filled from the GGUF files, so files of quantised weights are measured as what their blocks mean.
Tokens come from check_tokenizers.py's encoder, noise from a second writing of base/random.h. README.md states the
format.
"""

import json
import math
import os
import sys

import gguf
import numpy as np
import torch
from transformers import DynamicCache
from transformers.models.diffusion_gemma import modeling_diffusion_gemma as dg_module

import check_tokenizers
import tiny_configs
import tiny_gguf
import tiny_llama
import tiny_models

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")
OUT = os.path.join(HERE, "perplexity")
LAST = (1 << 64) - 1
NOISED, INIT = 6, 2         # purposes of draws


# ---- models --------------------------------------------------------------------------------------------------

def demo(name, diffusion):
    return tiny_configs.Tiny(name, "ssfssf", "diffusion-gemma" if diffusion else "gemma4", vocab=1024, hidden=256,
                             dense=288, experts=8, moe=96, hd_local=64, hd_global=128, window=64,
                             canvas=32 if diffusion else 0)


ROWS = {t.name: t for t in tiny_configs.ALL + tiny_llama.ALL}
DEMOS = {"weft-demo": demo("weft-demo", True), "weft-demo-ar": demo("weft-demo-ar", False)}


def put(have, name, to):
    to.copy_(have.pop(name).reshape(to.shape))


def fill_gemma(have, t, trunk):
    put(have, "token_embd.weight", trunk.embed_tokens.weight)
    put(have, "output_norm.weight", trunk.norm.weight)
    have.pop("rope_freqs.weight")
    for i, layer in enumerate(trunk.layers):
        for name, to in tiny_gguf.layer_tensors(layer, t, t.pattern[i]).items():
            put(have, f"blk.{i}.{name}", to)


def fill_canvas(have, t, dg):
    """The canvas class, and the gemma4 class of the same tensors with the encoder's scalars."""
    decoder, encoder = dg.model.decoder, dg.model.encoder.language_model
    fill_gemma(have, t, decoder)
    for i, layer in enumerate(encoder.layers):
        put(have, f"blk.{i}.enc_layer_output_scale.weight", layer.layer_scalar)
    sc = decoder.self_conditioning
    put(have, t.sc_norm_name, sc.pre_norm.weight)
    for name in ("gate", "up", "down"):
        put(have, f"self_cond_{name}.weight", getattr(sc, name + "_proj").weight)
    dg.tie_weights()
    ar = tiny_models.gemma4(t)
    state = {"model." + k: v for k, v in decoder.state_dict().items() if not k.startswith("self_conditioning")}
    for i, layer in enumerate(encoder.layers):
        state[f"model.layers.{i}.layer_scalar"] = layer.layer_scalar
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    ar.load_state_dict(state, strict=True)
    return ar


def fill_llama(have, t, model):
    put(have, "token_embd.weight", model.model.embed_tokens.weight)
    put(have, "output_norm.weight", model.model.norm.weight)
    if not t.tied:
        put(have, "output.weight", model.lm_head.weight)
    for i, layer in enumerate(model.model.layers):
        for name, to in tiny_llama.layer_tensors(layer, t).items():
            put(have, f"blk.{i}.{name}", to)


class Loaded:
    """A file as transformers' classes: `ar`, and for files with a canvas pass `dg`."""

    @torch.no_grad()
    def __init__(self, path):
        name = os.path.basename(path)[: -len(".gguf")]
        t = DEMOS.get(name) or ROWS[name]
        reader = gguf.GGUFReader(path)
        have = {x.name: torch.from_numpy(np.array(gguf.quants.dequantize(x.data, x.tensor_type), dtype=np.float32))
                for x in reader.tensors}
        self.rounded = any(x.tensor_type != gguf.GGMLQuantizationType.F32 for x in reader.tensors)
        self.vocab, self.canvas, self.dg = check_tokenizers.Vocab(path[: -len(".gguf")]), t.canvas, None
        self.bos = reader.fields["tokenizer.ggml.bos_token_id"].contents() if self.vocab.model == "gemma4" else None
        if isinstance(t, tiny_llama.Tiny):
            make, config = tiny_llama.config(t)
            self.ar = make(config).float().eval()
            fill_llama(have, t, self.ar)
        elif t.diffusion:
            self.dg = tiny_models.diffusion(t)
            self.ar = fill_canvas(have, t, self.dg)
        else:
            self.ar = tiny_models.gemma4(t)
            fill_gemma(have, t, self.ar.model)
        assert not have, sorted(have)


def rounded(x):
    return x.to(torch.bfloat16).to(torch.float32)


class RoundedCache(DynamicCache):
    """Keys and values in BF16, as weft keeps those of a file that is not all F32."""

    def update(self, key_states, value_states, *args, **kwargs):
        return super().update(rounded(key_states), rounded(value_states), *args, **kwargs)


def cache_of(loaded, config):
    return (RoundedCache if loaded.rounded else DynamicCache)(config=config)


# ---- windows and noise -----------------------------------------------------------------------------------------

def windows_of(loaded, text, case):
    """As docs/quality.md: a list of token lists, and where each begins."""
    if text.endswith("\n"):
        text = text[:-1]
    bos = [] if loaded.bos is None else [loaded.bos]
    tokens = bos + loaded.vocab.encode(text, case.get("special", False))
    n, stride = case["context"], case.get("stride", 0)
    count = (len(tokens) - n + stride - 1) // stride if stride else len(tokens) // n
    out = []
    for i in range(count)[: case.get("chunks", count)]:
        at = i * (stride or n)
        out.append((at, tokens[at:at + n] if stride else bos + tokens[at + len(bos):at + n]))
    return len(tokens), out


def mix64(x):
    for _ in range(2):
        x ^= x >> 32
        x = x * 0xD6E8FEB86659FD93 & LAST
    return x ^ x >> 32


def draw_bits(seed, purpose, position):
    x = mix64(seed + 0x9E3779B97F4A7C15 & LAST)
    x = mix64(x ^ purpose * 0xA0761D6478BD642F & LAST)
    x = mix64(x ^ (position + 1) * 0xE7037ED1A0B428DB & LAST)
    return mix64(x ^ 0x8EBC6AF09C88C6E3)


def noisy(text, at, level, seed, vocab):
    """The canvas and the places that were replaced, ascending."""
    n = len(text)
    count = min(n, max(1, int(level * n + 0.5)))
    order = sorted(range(n), key=lambda i: (draw_bits(seed, NOISED, at + i), i))
    places = sorted(order[:count])
    canvas = list(text)
    for i in places:
        canvas[i] = (draw_bits(seed, INIT, at + i) >> 32) * vocab >> 32
    return canvas, places


# ---- rows ------------------------------------------------------------------------------------------------------

def ar_rows(loaded, case, text):
    """Log-probabilities [rows, vocabulary] and tokens that came, of all windows."""
    n_tokens, windows = windows_of(loaded, text, case)
    first = case["context"] - case["stride"] if case.get("stride") else case["context"] // 2 + 1
    out, came = [], []
    for _, window in windows:
        logits = loaded.ar(input_ids=torch.tensor([window]), past_key_values=cache_of(loaded, loaded.ar.config),
                           use_cache=True).logits[0]
        out.append(torch.log_softmax(logits[first - 1:-1].double(), -1))
        came += window[first:]
    return n_tokens, len(windows), [(torch.cat(out), came)]


def canvas_rows(loaded, case, text):
    n_tokens, windows = windows_of(loaded, text, case)
    n_prompt = case["context"] - loaded.canvas
    out = [([], []) for _ in case["noise"]]
    for at, window in windows:
        cache = cache_of(loaded, loaded.dg.config.text_config)
        loaded.dg.model.encoder(input_ids=torch.tensor([window[:n_prompt]]), past_key_values=cache)
        for (rows, came), level in zip(out, case["noise"]):
            canvas, places = noisy(window[n_prompt:], at + n_prompt, level, case["seed"], len(loaded.vocab.tokens))
            logits = loaded.dg(decoder_input_ids=torch.tensor([canvas]), past_key_values=cache,
                               decoder_attention_mask=torch.ones(1, case["context"]).bool()).logits[0]
            rows.append(torch.log_softmax(logits[places].double(), -1))
            came += [window[n_prompt + i] for i in places]
    return n_tokens, len(windows), [(torch.cat(rows), came) for rows, came in out]


@torch.no_grad()
def rows_of(path, case, text):
    loaded = Loaded(os.path.join(ROOT, path))
    append = dg_module.DiffusionGemmaDecoderTextAttention.append_to_cache

    def append_rounded(self, cache, key_states, value_states):
        return append(self, cache, rounded(key_states), rounded(value_states))

    if loaded.rounded:
        dg_module.DiffusionGemmaDecoderTextAttention.append_to_cache = append_rounded
    got = (canvas_rows if "noise" in case else ar_rows)(loaded, case, text)
    dg_module.DiffusionGemmaDecoderTextAttention.append_to_cache = append
    return got


# ---- numbers ---------------------------------------------------------------------------------------------------

def nll_of(rows, came):
    return -rows[torch.arange(len(came)), came].numpy()


def compared(rows, base, came, n_windows):
    kl = (base.exp() * (base - rows)).sum(-1).numpy()
    ours, theirs = nll_of(rows, came), nll_of(base, came)
    means = kl.reshape(n_windows, -1).mean(1)
    return {"mean": kl.mean(), "median": np.quantile(kl, 0.5), "p99": np.quantile(kl, 0.99), "max": kl.max(),
            "same_top": (rows.argmax(-1) == base.argmax(-1)).double().mean().item(),
            "window_sd": means.std(ddof=1), "perplexity_ratio": math.exp(ours.mean() - theirs.mean())}


def measure(case):
    with open(os.path.join(OUT, case["text"]), encoding="utf-8") as f:
        text = f.read()
    n_tokens, n_windows, parts = rows_of(case["model"], case, text)
    base = rows_of(case["against"], case, text)[2] if "against" in case else [None] * len(parts)
    results = []
    for (rows, came), other in zip(parts, base):
        nll = nll_of(rows, came)
        result = {"scored": len(came), "cross_entropy": nll.mean(),
                  "cross_entropy_standard_error": nll.std() / math.sqrt(len(came) - 1)}
        if other is not None:
            result["kl"] = compared(rows, other[0], came, n_windows)
        results.append(result)
    return {**case, "tokens": n_tokens, "windows": n_windows, "results": results}


def cases():
    tiny, demo_text = "tests/golden/models/{}.gguf", "demo.txt"
    for name in ("ar-base", "ar-dense-v"):
        yield {"model": tiny.format(name), "text": "tiny.txt", "context": 64}
    yield {"model": tiny.format("qwen3-base"), "text": "tiny.txt", "context": 100, "chunks": 3}
    yield {"model": tiny.format("ar-base"), "text": "tiny.txt", "context": 40, "stride": 10}
    yield {"model": tiny.format("dg-base"), "text": "tiny.txt", "context": 33, "noise": [0.25, 0.5, 1.0], "seed": 5}
    yield {"model": tiny.format("dg-deep"), "text": "tiny.txt", "context": 50, "noise": [0.125, 1.0], "seed": 0}
    yield {"model": "model/demo/weft-demo-ar.gguf", "text": demo_text, "context": 128, "special": True, "chunks": 6}
    yield {"model": "model/demo/weft-demo.gguf", "text": demo_text, "context": 128, "special": True, "chunks": 6,
           "against": "model/demo/weft-demo-ar.gguf"}
    yield {"model": "model/demo/weft-demo.gguf", "text": demo_text, "context": 96, "special": True, "chunks": 6,
           "noise": [0.25, 0.75], "seed": 4}


def main():
    torch.set_num_threads(1)
    wanted = set(sys.argv[1:])
    lines = []
    for case in cases():
        if wanted and os.path.basename(case["model"]) not in wanted:
            continue
        lines.append(json.dumps(measure(case)))
        print(lines[-1], flush=True)
    if not wanted:
        with open(os.path.join(OUT, "cases.jsonl"), "w", encoding="ascii") as f:
            f.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
