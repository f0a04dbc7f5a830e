#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes a GGUF file with the keys, tensors and types of a model that people use, and random weights: for speed, room and
plans, not for answers. Needs Python alone.

  bench/synthetic_gguf.py MODEL TYPES FILE [sparse | hollow]
    MODEL  gemma4-1b | gemma4-e2b | gemma4-e4b | gemma4-12b | gemma4-26b | gemma4-31b | diffusion-gemma-26b |
           qwen3-30b-a3b | qwen3-8b | gemma3-4b | gemma3-27b | ministral3-8b | qwen3.6-35b-a3b | qwen3.6-27b | llama-2-7b | llama-3-8b | gpt-oss-20b | gpt-oss-120b | deepseek-v4-flash | deepseek-v4.1-flash | glm-4.5-air | glm-4.7-flash | deepseek-v2-lite | deepseek-v3;
           gemma4-1b, diffusion-gemma-1b and qwen3.6-1b are nobody's models, but the shapes of gemma4-26b, diffusion-gemma-26b
           and qwen3.6-35b-a3b at a size that a CPU with two cores runs; MODEL:N is its first N layers.
           The drafters gemma4-26b-assistant, gemma4-1b-assistant and gemma4-e2b-assistant (with centroids; -whole: without)
           go beside gemma4-26b, gemma4-1b and gemma4-e2b, qwen3-30b-a3b-dflash, which fills blocks, beside
           qwen3-30b-a3b; qwen3.6-35b-a3b-mtp, qwen3.6-27b-mtp and deepseek-v4-flash-mtp have the layer that guesses
           tokens ahead
    TYPES  q4_0 | q4_k_m | q8_0 | bf16 | mxfp4: experts in MXFP4, all else in Q8_0 | iq2: experts in IQ2_XXS and
           Q2_K (down), all else in Q8_0 | none: keys and vocabulary without weights, for bench/formats.c
    sparse the weights are zeros that take no room on the disk: for `weft inspect` only
    hollow the same of experts alone: routers spread tokens over them as random ones do, and all their bytes are read, so
           a disk that is smaller than the file will do for speed

Routers are random, so that tokens spread over experts as random ones do. The vocabulary is made up, but of the kinds of
pieces that real ones have: words of several scripts with and without a blank before them, runs of signs, digits and blanks.
"""
import os
import random
import struct
import sys

# name: GGML id, elements and bytes of a block, and the scales that every block begins with
TYPES = {"F32": (0, 1, 4, b""), "F16": (1, 1, 2, b""), "BF16": (30, 1, 2, b""), "Q8_0": (8, 32, 34, struct.pack("<e", 3e-4)),
         "Q4_0": (2, 32, 18, struct.pack("<e", 4e-3)), "Q5_0": (6, 32, 22, struct.pack("<e", 2e-3)),
         "MXFP4": (39, 32, 17, bytes([119])), "Q4_K": (12, 256, 144, struct.pack("<ee", 6e-5, 4.5e-4)), "Q6_K": (14, 256, 210, b""), "I32": (26, 1, 4, b""),
         "IQ2_XXS": (16, 256, 66, struct.pack("<e", 5e-4)), "Q2_K": (10, 256, 84, b"")}
FALLBACK = {"Q4_K": "Q5_0", "Q6_K": "Q8_0", "IQ2_XXS": "Q4_0", "Q2_K": "Q4_0"}  # of rows that are no multiple of 256
MIXES = {"q4_0": ("Q4_0", "Q4_0", "Q6_K"), "q4_k_m": ("Q4_K", "Q6_K", "Q6_K"), "q8_0": ("Q8_0",) * 3, "bf16": ("BF16",) * 3,
         "mxfp4": ("Q8_0",) * 3, "iq2": ("Q8_0",) * 3}
EXPERTS = {"mxfp4": ("MXFP4", "MXFP4"), "iq2": ("IQ2_XXS", "Q2_K")}  # where experts, and their down, have other types than the mix says


def gemma(layers, hidden, ff, heads, kv, kv_global, window, experts=0, period=6, per_layer=0, shared=0, k_eq_v=True):
    return dict(arch="gemma4", layers=layers, hidden=hidden, ff=ff, heads=heads, kv=kv, kv_global=kv_global, window=window,
                experts=experts, used=8, expert_ff=704, period=period, per_layer=per_layer, shared=shared, k_eq_v=k_eq_v,
                vocab=262144, context=131072 if per_layer else 262144, head=256, head_global=512, eps=1e-6)


def llama(arch, layers, hidden, ff, heads, kv, vocab, context, theta, experts=0, expert_ff=0, eps=1e-6, tied=False):
    return dict(arch=arch, layers=layers, hidden=hidden, ff=ff, heads=heads, kv=kv, vocab=vocab, context=context, theta=theta,
                experts=experts, used=8, expert_ff=expert_ff, head=128, eps=eps, tied=tied)


def gemma3(layers, hidden, ff, heads, kv, head):
    return dict(llama("gemma3", layers, hidden, ff, heads, kv, 262144, 131072, 1e6, tied=True), head=head, window=1024, factor=8.0)


def gpt_oss(layers, experts):
    return dict(arch="gpt-oss", layers=layers, hidden=2880, ff=2880, heads=64, kv=8, vocab=201088, context=131072,
                theta=150000.0, experts=experts, used=4, expert_ff=2880, head=64, eps=1e-5, window=128)


def qwen35(layers, hidden, ff, heads, kv, value_heads, experts=0, mtp=0):
    return dict(arch="qwen35moe" if experts else "qwen35", layers=layers, hidden=hidden, ff=ff, heads=heads, kv=kv, head=256,
                vocab=248320, context=262144, theta=1e7, experts=experts, used=8, expert_ff=512, eps=1e-6, rotated=64,
                period=4, key_heads=16, value_heads=value_heads, dim=128, taps=4, mtp=mtp)


def assistant(of, hidden, ff, heads, centroids=0):
    """A drafter of four layers, the last one without a window, which reads the keys of the model `of`."""
    return of | dict(arch="gemma4-assistant", layers=4, hidden=hidden, ff=ff, heads=heads, target=of["hidden"], period=4,
                     shared=0, experts=0, per_layer=0, centroids=centroids)


def glm4moe(layers, hidden, ff, heads, experts, expert_ff, dense):
    """Its last layer guesses tokens ahead."""
    return dict(arch="glm4moe", layers=layers, hidden=hidden, ff=ff, heads=heads, kv=8, head=128, rotated=64, vocab=151552,
                context=131072, theta=1e6, experts=experts, used=8, expert_ff=expert_ff, eps=1e-5, dense=dense, factor=1.0, mtp=1)


def deepseek2(layers, hidden, ff, heads, still, value, q_rank, vocab, experts, used, expert_ff, dense, factor, shared=1, groups=(1, 1), yarn=0.0,
              softmax=False, eps=1e-6, mtp=0, theta=1e4, context=163840):
    return dict(arch="deepseek2", layers=layers, hidden=hidden, ff=ff, heads=heads, still=still, value=value, q_rank=q_rank, rank=512, rotated=64,
                vocab=vocab, context=context, theta=theta, experts=experts, used=used, expert_ff=expert_ff, dense=dense, factor=factor,
                shared=shared, groups=groups, yarn=yarn, softmax=softmax, eps=eps, mtp=mtp)


def deepseek4(mtp=0):
    return dict(arch="deepseek4", layers=43 + mtp, hidden=4096, heads=64, head=512, rotated=64, q_rank=1024, groups=8, out_rank=1024,
                window=128, ratios=[0, 0] + [4, 128] * 20 + [4, 0], mtp=mtp, index_heads=64, index=128, index_k=512, streams=4,
                hashed=3, vocab=129280, context=1048576, experts=256, used=6, expert_ff=2048, eps=1e-6)


def deepseek41():
    """heads of 16 million rows and more each, as many as three lengths of eight heads make of two layers."""
    return dict(deepseek4(), arch="deepseek41", layers=40, hidden=5120, q_rank=1280, ratios=[0, 0] + [2] * 18 + [1] * 20,
                sources=(2, 8, 14, 20), choosers=(2, 8, 14, 20, 24, 28, 32, 36), index_heads=32, hashed=0, experts=384,
                expert_ff=2304, eps=1e-20, engrams=(1, 14), grams=4, engram_heads=8, engram=256, bucket=16000057)


MODELS = {
    "gemma4-1b": dict(gemma(12, 1024, 1024, 8, 4, 2, 1024, experts=64), vocab=32768, head=128, head_global=256, expert_ff=256),
    "gemma4-e2b": gemma(35, 1536, 6144, 8, 1, 1, 512, period=5, per_layer=256, shared=20, k_eq_v=False),
    "gemma4-e4b": gemma(42, 2560, 10240, 8, 2, 2, 512, per_layer=256, shared=18, k_eq_v=False),
    "gemma4-12b": gemma(48, 3840, 15360, 16, 8, 1, 1024),
    "gemma4-26b": gemma(30, 2816, 2112, 16, 8, 2, 1024, experts=128),
    "gemma4-31b": gemma(60, 5376, 21504, 32, 16, 4, 1024),
    "diffusion-gemma-26b": dict(gemma(30, 2816, 2112, 16, 8, 2, 1024, experts=128), arch="diffusion-gemma"),
    "qwen3.6-1b": dict(qwen35(12, 1024, 256, 8, 2, 16, experts=64), vocab=32768, key_heads=8, expert_ff=256),
    "qwen3-30b-a3b": llama("qwen3moe", 48, 2048, 6144, 32, 4, 151936, 40960, 1e6, 128, 768),
    "qwen3-8b": llama("qwen3", 36, 4096, 12288, 32, 8, 151936, 40960, 1e6),
    "qwen3.6-35b-a3b": qwen35(40, 2048, 512, 16, 2, 32, experts=256),
    "qwen3.6-27b": qwen35(64, 5120, 17408, 24, 4, 48),
    "qwen3.6-35b-a3b-mtp": qwen35(41, 2048, 512, 16, 2, 32, experts=256, mtp=1),
    "qwen3.6-27b-mtp": qwen35(65, 5120, 17408, 24, 4, 48, mtp=1),
    "gemma3-4b": gemma3(34, 2560, 10240, 8, 4, 256),
    "gemma3-27b": gemma3(62, 5376, 21504, 32, 16, 128),
    "ministral3-8b": dict(llama("mistral3", 34, 4096, 14336, 32, 8, 131072, 262144, 1e6, eps=1e-5), factor=16.0),
    "llama-2-7b": llama("llama", 32, 4096, 11008, 32, 32, 32000, 4096, 1e4, eps=1e-5),
    "gpt-oss-20b": gpt_oss(24, 32),
    "gpt-oss-120b": gpt_oss(36, 128),
    "deepseek-v4-flash": deepseek4(),
    "deepseek-v4-flash-mtp": deepseek4(mtp=1),
    "deepseek-v4.1-flash": deepseek41(),
    "glm-4.7-flash": deepseek2(48, 2048, 10240, 20, 192, 256, 768, 154880, 64, 4, 1536, 1, 1.8, eps=1e-5, mtp=1, theta=1e6, context=202752),
    "deepseek-v2-lite": deepseek2(27, 2048, 10944, 16, 128, 128, 0, 102400, 64, 6, 1408, 1, 1.0, shared=2, yarn=0.0707, softmax=True),
    "deepseek-v3": deepseek2(61, 7168, 18432, 128, 128, 128, 1536, 129280, 256, 8, 2048, 3, 2.5, groups=(8, 4), yarn=0.1),
    "glm-4.5-air": glm4moe(47, 4096, 10944, 96, 128, 1408, 1),
    "llama-3-8b": llama("llama", 32, 4096, 14336, 32, 8, 128256, 8192, 5e5, eps=1e-5),
}
# Blocks of 16, from what goes into five layers.
MODELS["qwen3-30b-a3b-dflash"] = MODELS["qwen3-30b-a3b"] | dict(arch="dflash", layers=5, experts=0, block=16,
                                                              reads=[2, 13, 24, 35, 46])
MODELS |= {name + "-assistant": assistant(MODELS[name], *sizes)
           for name, sizes in (("gemma4-26b", (1024, 8192, 16)), ("gemma4-1b", (512, 1024, 8)), ("gemma4-e2b", (256, 2048, 4, 2048)))}
MODELS["diffusion-gemma-1b"] = MODELS["gemma4-1b"] | dict(arch="diffusion-gemma")
MODELS["gemma4-e2b-assistant-whole"] = assistant(MODELS["gemma4-e2b"], 256, 2048, 4)


class Writer:
    def __init__(self):
        self.keys, self.n_keys, self.tensors, self.at = b"", 0, [], 0

    @staticmethod
    def text(s):
        raw = s.encode() if isinstance(s, str) else s
        return struct.pack("<Q", len(raw)) + raw

    def value(self, v):
        """GGUF type and bytes of a value."""
        if isinstance(v, bool):
            return 7, struct.pack("<B", v)
        if isinstance(v, int):
            return 4, struct.pack("<I", v)
        if isinstance(v, float):
            return 6, struct.pack("<f", v)
        if isinstance(v, str):
            return 8, self.text(v)
        kind = self.value(v[0])[0]
        return 9, struct.pack("<IQ", kind, len(v)) + b"".join(self.value(x)[1] for x in v)

    def key(self, name, v):
        self.put_key(name, *self.value(v))

    def key_int32s(self, name, v):
        """llama.cpp takes token types as signed integers alone."""
        self.put_key(name, 9, struct.pack(f"<IQ{len(v)}i", 5, len(v), *v))

    def put_key(self, name, kind, raw):
        self.keys += self.text(name) + struct.pack("<I", kind) + raw
        self.n_keys += 1

    def tensor(self, name, kind, *shape):
        """The shape as in the file: the contiguous dimension first."""
        if kind in FALLBACK and shape[0] % 256:
            kind = FALLBACK[kind]
        _, elements, size, _ = TYPES[kind]
        n = shape[0] // elements * size
        for d in shape[1:]:
            n *= d
        self.tensors.append((name, kind, shape, self.at, n))
        self.at += (n + 31) // 32 * 32

    def write(self, path, hole):
        head = b"GGUF" + struct.pack("<IQQ", 3, len(self.tensors), self.n_keys) + self.keys
        for name, kind, shape, at, _ in self.tensors:
            head += self.text(name) + struct.pack("<I", len(shape)) + b"".join(struct.pack("<Q", d) for d in shape)
            head += struct.pack("<IQ", TYPES[kind][0], at)
        head += bytes(-len(head) % 32)
        with open(path, "wb") as f:
            f.write(head)
            for tensor in self.tensors:
                if hole not in tensor[0]:
                    fill(f, len(head), tensor)
            f.truncate(len(head) + self.at)


def blocks(kind, n):
    """About 1 MiB of blocks with random digits and small scales, cut to n bytes."""
    if kind not in blocks.made:
        _, _, size, scales = TYPES[kind]
        rng, count = random.Random(kind), (1 << 20) // size
        if kind == "F32":
            raw = struct.pack(f"<{count}f", *(rng.gauss(0, 0.02) for _ in range(count)))
        elif kind in ("F16", "BF16"):
            raw = b"".join(struct.pack("<f", rng.gauss(0, 0.02))[2:] for _ in range(count))
        elif kind == "I32":  # numbers of experts
            raw = struct.pack(f"<{count}i", *(rng.randrange(256) for _ in range(count)))
        elif kind == "Q6_K":  # its scales come last
            raw = b"".join(rng.randbytes(192) + bytes([1, 255] * 8) + struct.pack("<e", 6e-4) for _ in range(count))
        elif kind == "Q2_K":  # so do its factors
            raw = b"".join(rng.randbytes(80) + struct.pack("<ee", 2.4e-3, 3.6e-3) for _ in range(count))
        else:
            raw = b"".join(scales + rng.randbytes(size - len(scales)) for _ in range(count))
        blocks.made[kind] = raw
    return blocks.made[kind][:n]


blocks.made = {}


def fill(f, base, tensor):
    name, kind, shape, at, n = tensor
    f.seek(base + at)
    if len(shape) == 1 and name.endswith(".bias"):
        f.write(bytes(n))
        return
    if kind == "I32" and len(shape) == 1:  # an order of all tokens
        f.write(struct.pack(f"<{shape[0]}i", *((i * 7919 + 3) % shape[0] for i in range(shape[0]))))
        return
    if name.endswith(".ssm_a"):  # what decays is multiplied by: below 0
        f.write(struct.pack(f"<{shape[0]}f", *(-0.01 * (i + 1) for i in range(shape[0]))))
        return
    if len(shape) == 1:  # norms and scales are 1, and so are divisors of frequencies but for those that never turn
        ones = [1.0 if name != "rope_freqs.weight" or i < shape[0] // 4 else 1e30 for i in range(shape[0])]
        f.write(struct.pack(f"<{shape[0]}f", *ones))
        return
    while n > 0:
        part = blocks(kind, n)
        f.write(part)
        n -= len(part)


ALPHABETS = ("abcdefghijklmnopqrstuvwxyz", "абвгдежзиклмнопрстуфхцчшщыьэюя", "αβγδεζηθικλμνξοπρστυφχψω", "אבגדהוזחטיכלמנסעפצקרשת",
             "ابتثجحخدذرزسشصضطظعغفقكلمنهوي", "अआइईउकखगघचछजझटठडढणतथदधनपफबभमयरलवशषसह", "あいうえおかきくけこさしすせそたちつてとなにぬねの",
             "".join(map(chr, range(0x4E00, 0x5E00))), "".join(map(chr, range(0xAC00, 0xB400))))
SIGNS = "\"',.:;!?()[]{}<>/\\|=+-*&^%$#@~`_"


def pieces(n):
    """n different texts, half of them of Latin letters, an eighth with signs in them."""
    rng, made = random.Random("pieces"), {}
    for text in [" " * i for i in range(1, 32)] + ["\n" * i for i in range(1, 16)] + ["\t" * i for i in range(1, 8)]:
        made[text] = None
    for text in (a + b for a in SIGNS for b in ["", *SIGNS, " "]):
        made[text] = None
    while len(made) < n:
        alphabet = ALPHABETS[0] if rng.random() < 0.5 else rng.choice(ALPHABETS[1:])
        word = "".join(rng.choices(alphabet, k=rng.randint(1, 9) if len(alphabet) < 99 else rng.randint(1, 4)))
        word = word.capitalize() if rng.random() < 0.3 else word
        signs = "".join(rng.choices(SIGNS, k=rng.randint(1, 4)))
        kind = rng.randrange(32)
        made[signs if kind == 0 else signs[:2] + word if kind == 1 else word + signs[:2] if kind == 2 else
             str(rng.randrange(1000)) if kind == 3 else " " + word if kind < 20 else word] = None
    return list(made)[:n]


def as_token(text, kind):
    """As the file has it: blanks as U+2581, or each byte as a letter of gpt2's alphabet."""
    if kind != "gpt2":
        return text.replace(" ", "\u2581")
    shown = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [b for b in range(256) if b not in shown]
    return "".join(chr(b if b in shown else 0x100 + others.index(b)) for b in text.encode())


def add_vocabulary(w, m):
    n, kind = m["vocab"], "gemma4" if "gemma" in m["arch"] else "gpt2"
    if m["arch"] == "gemma3" or (m["arch"] == "llama" and n == 32000):
        kind = "llama"
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    if kind == "gpt2":
        tokens, types = [chr(b) for b in shown] + [chr(0x100 + i) for i in range(256 - len(shown))], [1] * 256
    else:
        tokens = ["<unk>", "<s>", "</s>"] if kind == "llama" else ["<pad>", "<eos>", "<bos>", "<unk>"]
        types = [3] * len(tokens)
        tokens += [f"<0x{b:02X}>" for b in range(256)]
        types += [6] * 256
    types += [1] * (n - len(tokens))
    known = set(tokens)
    tokens += [t for t in (as_token(p, kind) for p in pieces(n)) if t not in known][:n - len(tokens)]
    w.key("tokenizer.ggml.model", kind)
    w.key("tokenizer.ggml.tokens", tokens)
    w.key_int32s("tokenizer.ggml.token_type", types)
    if kind == "gpt2":
        w.key("tokenizer.ggml.pre", {"llama": "llama-bpe", "gpt-oss": "gpt-4o", "glm4moe": "glm4", "deepseek2": "glm4" if m.get("theta") == 1e6 else "deepseek-v3", "deepseek4": "joyai-llm", "deepseek41": "joyai-llm", "qwen35": "qwen35", "qwen35moe": "qwen35"}.get(m["arch"], "qwen2"))
    else:
        w.key("tokenizer.ggml.scores", [float(-i) for i in range(n)])
    if kind != "llama":
        w.key("tokenizer.ggml.merges", ["x 1"])
    w.key("tokenizer.ggml.bos_token_id", {"llama": 1, "gemma4": 2}.get(kind, n - 2))
    w.key("tokenizer.ggml.eos_token_id", {"llama": 2, "gemma4": 1}.get(kind, n - 1))


def add_sizes(w, m):
    k = m["arch"] + "."
    w.key(k + "block_count", m["layers"])
    w.key(k + "context_length", m["context"])
    w.key(k + "embedding_length", m["hidden"])
    w.key(k + "attention.head_count", m["heads"])
    w.key(k + "attention.layer_norm_rms_epsilon", m["eps"])
    if m["experts"]:
        w.key(k + "expert_count", m["experts"])
        w.key(k + "expert_used_count", m["used"])
        w.key(k + "expert_feed_forward_length", m["expert_ff"])


def add_gemma(w, m, mix):
    k, layers, matrix, rich, embed = m["arch"] + ".", m["layers"], *mix
    sliding = [(i + 1) % m["period"] != 0 for i in range(layers)]
    ff = [m["ff"] * (2 if m["shared"] and i >= layers - m["shared"] and m["layers"] == 35 else 1) for i in range(layers)]
    w.key(k + "feed_forward_length", ff if m["shared"] else m["ff"])
    w.key(k + "attention.head_count_kv", [m["kv"] if s else m["kv_global"] for s in sliding])
    for part in "attention.key_length", "attention.value_length", "rope.dimension_count":
        w.key(k + part, m["head_global"])
        w.key(k + part + "_swa", m["head"])
    w.key(k + "attention.sliding_window", m["window"])
    w.key(k + "attention.sliding_window_pattern", sliding)
    w.key(k + "attention.shared_kv_layers", layers if "target" in m else m["shared"])
    if "target" in m:
        w.key(k + "embedding_length_out", m["target"])
        w.key(k + "nextn_predict_layers", layers)
        w.tensor("nextn.pre_projection.weight", matrix, 2 * m["target"], m["hidden"])
        w.tensor("nextn.post_projection.weight", matrix, m["hidden"], m["target"])
        if m["centroids"]:
            w.tensor("masked_embd_centroids.weight", matrix, m["hidden"], m["centroids"])
            w.tensor("masked_embd_ordering", "I32", m["vocab"])
    w.key(k + "embedding_length_per_layer_input", m["per_layer"])
    w.key(k + "rope.freq_base", 1e6)
    w.key(k + "rope.freq_base_swa", 1e4)
    w.key(k + "final_logit_softcapping", 30.0)
    hidden, diffusion = m["hidden"], m["arch"] == "diffusion-gemma"
    if diffusion:
        w.key("diffusion.canvas_length", 256)
    w.tensor("token_embd.weight", embed, hidden, m["vocab"])
    w.tensor("output_norm.weight", "F32", hidden)
    w.tensor("rope_freqs.weight", "F32", m["head_global"] // 2)
    if m["per_layer"]:
        w.tensor("per_layer_token_embd.weight", embed, m["per_layer"] * layers, m["vocab"])
        w.tensor("per_layer_model_proj.weight", "BF16", hidden, m["per_layer"] * layers)
        w.tensor("per_layer_proj_norm.weight", "F32", m["per_layer"])
    if diffusion:
        w.tensor("self_cond_pre_norm.weight", "F32", hidden)
        for name, shape in (("gate", (hidden, m["ff"])), ("up", (hidden, m["ff"])), ("down", (m["ff"], hidden))):
            w.tensor(f"self_cond_{name}.weight", matrix, *shape)
    for i in range(layers):
        head, kv = (m["head"], m["kv"]) if sliding[i] else (m["head_global"], m["kv_global"])
        put = lambda name, kind, *shape: w.tensor(f"blk.{i}.{name}", kind, *shape)  # noqa: E731
        add_attention(put, m, mix, head, kv, sliding[i] or not m["k_eq_v"])
        for name in ("attn_q_norm", "attn_k_norm")[:1 if "target" in m else 2]:
            put(name + ".weight", "F32", head)
        for name in "post_attention_norm", "post_ffw_norm":
            put(name + ".weight", "F32", hidden)
        put("layer_output_scale.weight", "F32", 1)
        if diffusion:
            put("enc_layer_output_scale.weight", "F32", 1)
        add_mlp(put, mix, hidden, ff[i])
        if m["per_layer"]:
            put("inp_gate.weight", matrix, hidden, m["per_layer"])
            put("proj.weight", matrix, m["per_layer"], hidden)
            put("post_norm.weight", "F32", hidden)
        if m["experts"]:
            for name in "post_ffw_norm_1", "pre_ffw_norm_2", "post_ffw_norm_2":
                put(name + ".weight", "F32", hidden)
            put("ffn_gate_inp.scale", "F32", hidden)
            put("ffn_down_exps.scale", "F32", m["experts"])
            put("ffn_gate_inp.weight", "F32", hidden, m["experts"])
            put("ffn_gate_up_exps.weight", m["expert_types"][0] or matrix, hidden, 2 * m["expert_ff"], m["experts"])
            put("ffn_down_exps.weight", m["expert_types"][1] or rich, m["expert_ff"], hidden, m["experts"])


def add_attention(put, m, mix, head, kv, has_values):
    matrix, rich, _ = mix
    put("attn_norm.weight", "F32", m["hidden"])
    put("attn_q.weight", matrix, m["hidden"], m["heads"] * head)
    if "target" not in m:
        put("attn_k.weight", matrix, m["hidden"], kv * head)
    if has_values and "target" not in m:
        put("attn_v.weight", rich, m["hidden"], kv * head)
    put("attn_output.weight", matrix, m["heads"] * head, m["hidden"])
    put("ffn_norm.weight", "F32", m["hidden"])


def add_mlp(put, mix, hidden, ff):
    put("ffn_gate.weight", mix[0], hidden, ff)
    put("ffn_up.weight", mix[0], hidden, ff)
    put("ffn_down.weight", mix[1], ff, hidden)


def add_llama(w, m, mix):
    k, matrix, rich, embed = m["arch"] + ".", *mix
    w.key(k + "feed_forward_length", m["ff"])
    w.key(k + "attention.head_count_kv", m["kv"])
    for part in "attention.key_length", "attention.value_length", "rope.dimension_count":
        w.key(k + part, m["head"])
    w.key(k + "rope.freq_base", m["theta"])
    if "factor" in m:
        w.key(k + "rope.scaling.type", "linear" if m["arch"] == "gemma3" else "yarn")
        w.key(k + "rope.scaling.factor", m["factor"])
    if m["arch"] == "gemma3":
        w.key(k + "attention.sliding_window", m["window"])
    if m["arch"] == "mistral3":
        w.key(k + "rope.scaling.original_context_length", int(m["context"] / m["factor"]))
        w.key(k + "rope.scaling.yarn_log_multiplier", 1.0)
        w.key(k + "attention.temperature_scale", 0.1)
    w.tensor("output_norm.weight", "F32", m["hidden"])
    if "block" in m:
        w.key(k + "block_size", m["block"])
        w.key(k + "target_layers", m["reads"])
        w.key("tokenizer.ggml.mask_token_id", m["vocab"] - 3)
        w.tensor("fc.weight", matrix, len(m["reads"]) * m["hidden"], m["hidden"])
        w.tensor("enc.output_norm.weight", "F32", m["hidden"])
    else:
        w.tensor("token_embd.weight", embed if m["tied"] else matrix, m["hidden"], m["vocab"])
        if not m["tied"]:
            w.tensor("output.weight", embed, m["hidden"], m["vocab"])
    for i in range(m["layers"]):
        put = lambda name, kind, *shape: w.tensor(f"blk.{i}.{name}", kind, *shape)  # noqa: E731
        add_attention(put, m, mix, m["head"], m["kv"], True)
        if m["arch"] == "gemma3":
            put("post_attention_norm.weight", "F32", m["hidden"])
            put("post_ffw_norm.weight", "F32", m["hidden"])
        if m["arch"].startswith(("qwen3", "gemma3", "dflash")):
            put("attn_q_norm.weight", "F32", m["head"])
            put("attn_k_norm.weight", "F32", m["head"])
        if not m["experts"]:
            add_mlp(put, mix, m["hidden"], m["ff"])
            continue
        put("ffn_gate_inp.weight", "F32", m["hidden"], m["experts"])
        put("ffn_gate_exps.weight", m["expert_types"][0] or matrix, m["hidden"], m["expert_ff"], m["experts"])
        put("ffn_up_exps.weight", m["expert_types"][0] or matrix, m["hidden"], m["expert_ff"], m["experts"])
        put("ffn_down_exps.weight", m["expert_types"][1] or rich, m["expert_ff"], m["hidden"], m["experts"])


def add_gpt_oss(w, m, mix):
    k, matrix, rich, embed = m["arch"] + ".", *mix
    w.key(k + "feed_forward_length", m["ff"])
    w.key(k + "attention.head_count_kv", m["kv"])
    for part in "attention.key_length", "attention.value_length":
        w.key(k + part, m["head"])
    w.key(k + "attention.sliding_window", m["window"])
    w.key(k + "rope.freq_base", m["theta"])
    w.key(k + "rope.scaling.type", "yarn")
    w.key(k + "rope.scaling.factor", 32.0)
    w.key(k + "rope.scaling.original_context_length", 4096)
    w.tensor("token_embd.weight", matrix, m["hidden"], m["vocab"])
    w.tensor("output_norm.weight", "F32", m["hidden"])
    w.tensor("output.weight", embed, m["hidden"], m["vocab"])
    hidden, ff, experts = m["hidden"], m["expert_ff"], m["experts"]
    queries, keys = m["heads"] * m["head"], m["kv"] * m["head"]
    for i in range(m["layers"]):
        put = lambda name, kind, *shape: w.tensor(f"blk.{i}.{name}", kind, *shape)  # noqa: E731
        for name in "attn_norm", "post_attention_norm":
            put(name + ".weight", "F32", hidden)
        for name, kind, n_in, n_out in (("attn_q", matrix, hidden, queries), ("attn_k", matrix, hidden, keys),
                                        ("attn_v", rich, hidden, keys), ("attn_output", matrix, queries, hidden)):
            put(name + ".weight", kind, n_in, n_out)
            put(name + ".bias", "F32", n_out)
        put("attn_sinks.weight", "F32", m["heads"])
        put("ffn_gate_inp.weight", "F32", hidden, experts)
        put("ffn_gate_inp.bias", "F32", experts)
        for name, kind, n_in, n_out in (("gate", matrix, hidden, ff), ("up", matrix, hidden, ff),
                                        ("down", rich, ff, hidden)):
            put(f"ffn_{name}_exps.weight", m["expert_types"][name == "down"] or kind, n_in, n_out, experts)
            put(f"ffn_{name}_exps.bias", "F32", n_out, experts)


def add_qwen35(w, m, mix):
    k, matrix, rich, embed = m["arch"] + ".", *mix
    hidden, dim = m["hidden"], m["dim"]
    values, channels = m["value_heads"] * dim, (2 * m["key_heads"] + m["value_heads"]) * dim
    if m["experts"]:
        w.key(k + "expert_shared_feed_forward_length", m["ff"])
    else:
        w.key(k + "feed_forward_length", m["ff"])
    for name, value in (("attention.head_count_kv", m["kv"]), ("attention.key_length", m["head"]),
                        ("attention.value_length", m["head"]), ("rope.dimension_count", m["rotated"]),
                        ("rope.dimension_sections", [11, 11, 10, 0]), ("rope.freq_base", m["theta"]),
                        ("full_attention_interval", m["period"]), ("ssm.conv_kernel", m["taps"]), ("ssm.state_size", dim),
                        ("ssm.group_count", m["key_heads"]), ("ssm.time_step_rank", m["value_heads"]),
                        ("ssm.inner_size", values)):
        w.key(k + name, value)
    w.tensor("token_embd.weight", matrix, hidden, m["vocab"])
    w.tensor("output_norm.weight", "F32", hidden)
    w.tensor("output.weight", embed, hidden, m["vocab"])
    queries, keys = m["heads"] * m["head"], m["kv"] * m["head"]
    if m["mtp"]:
        w.key(k + "nextn_predict_layers", m["mtp"])
    for i in range(m["layers"]):
        put = lambda name, kind, *shape: w.tensor(f"blk.{i}.{name}", kind, *shape)  # noqa: E731
        if i >= m["layers"] - m["mtp"]:
            put("nextn.eh_proj.weight", "Q8_0" if matrix != "BF16" else matrix, 2 * hidden, hidden)
            for name in "enorm", "hnorm", "shared_head_norm":
                put(f"nextn.{name}.weight", "F32", hidden)
        for name in "attn_norm", "post_attention_norm":
            put(name + ".weight", "F32", hidden)
        if (i + 1) % m["period"] == 0 or i >= m["layers"] - m["mtp"]:
            for name, kind, n_in, n_out in (("attn_q", matrix, hidden, 2 * queries), ("attn_k", matrix, hidden, keys),
                                            ("attn_v", rich, hidden, keys), ("attn_output", matrix, queries, hidden)):
                put(name + ".weight", kind, n_in, n_out)
            for name in "attn_q_norm", "attn_k_norm":
                put(name + ".weight", "F32", m["head"])
        else:
            put("attn_qkv.weight", matrix, hidden, channels)
            put("attn_gate.weight", matrix, hidden, values)
            for name in "ssm_alpha", "ssm_beta":
                put(name + ".weight", matrix, hidden, m["value_heads"])
            put("ssm_conv1d.weight", "F32", m["taps"], channels)
            put("ssm_a", "F32", m["value_heads"])
            put("ssm_dt.bias", "F32", m["value_heads"])
            put("ssm_norm.weight", "F32", dim)
            put("ssm_out.weight", matrix, values, hidden)
        if not m["experts"]:
            add_mlp(put, mix, hidden, m["ff"])
            continue
        put("ffn_gate_inp.weight", "F32", hidden, m["experts"])
        put("ffn_gate_inp_shexp.weight", "F32", hidden)
        for name, kind, n_in, n_out in (("gate", matrix, hidden, m["ff"]), ("up", matrix, hidden, m["ff"]), ("down", rich, m["ff"], hidden)):
            put(f"ffn_{name}_shexp.weight", kind, n_in, n_out)
        for name, kind, n_in, n_out in (("gate", matrix, hidden, m["expert_ff"]), ("up", matrix, hidden, m["expert_ff"]),
                                        ("down", rich, m["expert_ff"], hidden)):
            put(f"ffn_{name}_exps.weight", m["expert_types"][name == "down"] or kind, n_in, n_out, m["experts"])


def add_shared_experts(put, m, mix, router="F32"):
    """Experts that a sigmoid chooses, and the MLP beside them."""
    hidden, ff, n = m["hidden"], m["expert_ff"], m.get("shared", 1)
    put("ffn_gate_inp.weight", router, hidden, m["experts"])
    if not m.get("softmax"):
        put("exp_probs_b.bias", "F32", m["experts"])
    for name, kind, into, out in (("gate", mix[0], hidden, 0), ("up", mix[0], hidden, 0), ("down", mix[1], 0, hidden)):
        put(f"ffn_{name}_shexp.weight", kind, into or n * ff, out or n * ff)
        put(f"ffn_{name}_exps.weight", m["expert_types"][name == "down"] or kind, into or ff, out or ff, m["experts"])


def add_choice(w, m):
    k = m["arch"] + "."
    for key, value in (("feed_forward_length", m["ff"]), ("leading_dense_block_count", m["dense"]), ("expert_shared_count", m.get("shared", 1)),
                       ("expert_gating_func", 1 if m.get("softmax") else 2), ("expert_weights_norm", not m.get("softmax")), ("expert_weights_scale", m["factor"]),
                       ("rope.dimension_count", m["rotated"]), ("rope.freq_base", m["theta"])):
        w.key(k + key, value)
    if m["mtp"]:
        w.key(k + "nextn_predict_layers", m["mtp"])


def add_glm4moe(w, m, mix):
    k, matrix, rich, embed = m["arch"] + ".", *mix
    add_choice(w, m)
    w.key(k + "attention.head_count_kv", m["kv"])
    for part in "key_length", "value_length":
        w.key(k + "attention." + part, m["head"])
    hidden, queries, keys = m["hidden"], m["heads"] * m["head"], m["kv"] * m["head"]
    w.tensor("token_embd.weight", matrix, hidden, m["vocab"])
    w.tensor("output_norm.weight", "F32", hidden)
    w.tensor("output.weight", embed, hidden, m["vocab"])
    for i in range(m["layers"]):
        put = lambda name, kind, *shape: w.tensor(f"blk.{i}.{name}", kind, *shape)  # noqa: E731
        for name in "attn_norm", "post_attention_norm":
            put(name + ".weight", "F32", hidden)
        for name, kind, n_in, n_out in (("attn_q", matrix, hidden, queries), ("attn_k", matrix, hidden, keys),
                                        ("attn_v", rich, hidden, keys), ("attn_output", matrix, queries, hidden)):
            put(name + ".weight", kind, n_in, n_out)
            if n_in == hidden and name != "attn_output":
                put(name + ".bias", "F32", n_out)
        if i < m["dense"]:
            add_mlp(put, mix, hidden, m["ff"])
        else:
            add_shared_experts(put, m, mix)
        if i >= m["layers"] - m["mtp"]:
            put("nextn.eh_proj.weight", "Q8_0" if matrix != "BF16" else matrix, 2 * hidden, hidden)
            for name in "enorm", "hnorm", "shared_head_norm":
                put(f"nextn.{name}.weight", "F32", hidden)


def add_deepseek2(w, m, mix):
    k, matrix, rich, embed = m["arch"] + ".", *mix
    hidden, heads, rank, query = m["hidden"], m["heads"], m["rank"], m["still"] + m["rotated"]
    add_choice(w, m)
    for key, value in (("attention.head_count_kv", 1), ("attention.kv_lora_rank", rank), ("attention.key_length", rank + m["rotated"]),
                       ("attention.value_length", rank), ("attention.key_length_mla", query), ("attention.value_length_mla", m["value"]),
                       ("expert_group_count", m["groups"][0]), ("expert_group_used_count", m["groups"][1])):
        w.key(k + key, value)
    if m["q_rank"]:
        w.key(k + "attention.q_lora_rank", m["q_rank"])
    if m["yarn"]:
        for key, value in (("type", "yarn"), ("factor", 40.0), ("original_context_length", 4096), ("yarn_log_multiplier", m["yarn"])):
            w.key(k + "rope.scaling." + key, value)
    w.tensor("token_embd.weight", matrix, hidden, m["vocab"])
    w.tensor("output_norm.weight", "F32", hidden)
    w.tensor("output.weight", embed, hidden, m["vocab"])
    for i in range(m["layers"]):
        put = lambda name, kind, *shape: w.tensor(f"blk.{i}.{name}", kind, *shape)  # noqa: E731
        for name, n in (("attn_norm", hidden), ("ffn_norm", hidden), ("attn_kv_a_norm", rank)):
            put(name + ".weight", "F32", n)
        if m["q_rank"]:
            put("attn_q_a.weight", matrix, hidden, m["q_rank"])
            put("attn_q_a_norm.weight", "F32", m["q_rank"])
        put(f"attn_q{'_b' if m['q_rank'] else ''}.weight", matrix, m["q_rank"] or hidden, heads * query)
        put("attn_kv_a_mqa.weight", matrix, hidden, rank + m["rotated"])
        put("attn_k_b.weight", "Q8_0" if matrix != "BF16" else matrix, m["still"], rank, heads)
        put("attn_v_b.weight", "Q8_0" if matrix != "BF16" else matrix, rank, m["value"], heads)
        put("attn_output.weight", matrix, heads * m["value"], hidden)
        if i < m["dense"]:
            add_mlp(put, mix, hidden, m["ff"])
        else:
            add_shared_experts(put, m, mix)


def add_engram(w, m, embed):
    k, per, n = m["arch"] + ".", (m["grams"] - 1) * m["engram_heads"], len(m["engrams"])
    for name, value in (("ple.layers", list(m["engrams"])), ("ple.ngram_size", m["grams"]), ("ple.heads_per_ngram", m["engram_heads"]),
                        ("embedding_length_per_layer_input", m["engram"]), ("engram.pad_token_id", 2),
                        ("ple.layer_multipliers", [2 * i + 1 for i in range(n * m["grams"])]),
                        ("ple.head_vocab_sizes", [m["bucket"]] * (n * per)),
                        ("ple.head_offsets", [m["bucket"] * i for i in range(n * per)]),
                        ("engram.token_map", [t % 99092 for t in range(m["vocab"])]),
                        ("attention.indexer.candidate_source_layer", m["sources"][-1]),
                        ("attention.indexer.candidate_top_k_blocks", 2048), ("attention.indexer.candidate_block_size", 8)):
        w.key(k + name, value)
    w.tensor("per_layer_token_embd.weight", embed, m["engram"], m["bucket"] * n * per)


def add_shared(put, m, i, matrix):
    """Of V4.1's layers: far rows that later ones read, what they are chosen by, and the memory."""
    hidden, streams = m["hidden"], m["streams"]
    if i in m["sources"]:
        put("attn_compressor_kv", "F16", hidden, m["head"])
        if m["ratios"][i] > 1:
            put("attn_compressor_gate", "F16", hidden, m["head"])
        put("attn_compressor_norm", "F32", m["head"])
        put("indexer.attn_k", "F16", m["head"], m["index"])
        put("indexer.k_norm", "F32", m["index"])
    if i in m["choosers"]:
        put("indexer.attn_q_b", "F16", m["q_rank"], m["index_heads"] * m["index"])
        put("indexer.proj", "F16", hidden, m["index_heads"])
    if i in m["engrams"]:
        put("engram_wkv", matrix, (m["grams"] - 1) * m["engram_heads"] * m["engram"], hidden * (streams + 1))
        put("engram_gate", "F32", hidden, streams)


def add_deepseek4(w, m, mix):
    k, matrix, rich, embed = m["arch"] + ".", *mix
    for key, value in (
            ("attention.head_count_kv", 1), ("attention.key_length", m["head"]), ("attention.value_length", m["head"]),
            ("attention.q_lora_rank", m["q_rank"]), ("attention.sliding_window", m["window"]),
            ("attention.compress_ratios", m["ratios"]), ("attention.compress_rope_freq_base", 160000.0),
            ("attention.output_group_count", m["groups"]), ("attention.output_lora_rank", m["out_rank"]),
            ("attention.indexer.head_count", m["index_heads"]), ("attention.indexer.key_length", m["index"]),
            ("attention.indexer.top_k", m["index_k"]), ("rope.dimension_count", m["rotated"]), ("rope.freq_base", 1e4),
            ("rope.scaling.type", "yarn"), ("rope.scaling.factor", 16.0), ("rope.scaling.original_context_length", 65536),
            ("rope.scaling.yarn_beta_fast", 32.0), ("rope.scaling.yarn_beta_slow", 1.0),
            ("hyper_connection.count", m["streams"]), ("hyper_connection.sinkhorn_iterations", 20),
            ("hyper_connection.epsilon", 1e-6), ("expert_shared_count", 1), ("expert_gating_func", 4),
            ("expert_weights_norm", True), ("expert_weights_scale", 1.5), *[("hash_layer_count", m["hashed"])] * (m["hashed"] > 0),
            ("swiglu_clamp_exp", [10.0] * m["layers"]), ("swiglu_clamp_shexp", [10.0] * m["layers"])):
        w.key(k + key, value)
    hidden, n, ff, experts = m["hidden"], m["streams"], m["expert_ff"], m["experts"]
    if m["mtp"]:
        w.key(k + "nextn_predict_layers", m["mtp"])
    w.tensor("token_embd.weight", matrix, hidden, m["vocab"])
    w.tensor("output_norm.weight", "F32", hidden)
    w.tensor("output.weight", embed, hidden, m["vocab"])
    if "engrams" in m:
        add_engram(w, m, embed)
    for name, kind, *shape in () if "engrams" in m else (("fn", "F16", n * hidden, n), ("base", "F32", n), ("scale", "F32", 1)):
        w.tensor(f"output_hc_{name}.weight", kind, *shape)
    for i in range(m["layers"]):
        put = lambda name, kind, *shape: w.tensor(f"blk.{i}.{name}.weight", kind, *shape)  # noqa: E731
        if i >= m["layers"] - m["mtp"]:
            put("nextn.eh_proj", matrix, 2 * hidden, hidden)
            for name in "enorm", "hnorm", "shared_head_norm":
                put("nextn." + name, "F32", hidden)
            for name, kind, *shape in (("fn", "F16", n * hidden, n), ("base", "F32", n), ("scale", "F32", 1)):
                put("nextn.hc_head_" + name, kind, *shape)
        for name in "attn", "ffn":
            put(f"hc_{name}_fn", "F16", n * hidden, n * (2 + n))
            put(f"hc_{name}_base", "F32", n * (2 + n))
            put(f"hc_{name}_scale", "F32", 3)
            put(f"{name}_norm", "F32", hidden)
        for name, *shape in (("q_a", hidden, m["q_rank"]), ("q_b", m["q_rank"], m["heads"] * m["head"]),
                             ("kv", hidden, m["head"]),
                             ("output_a", m["heads"] // m["groups"] * m["head"], m["groups"] * m["out_rank"]),
                             ("output_b", m["groups"] * m["out_rank"], hidden)):
            put("attn_" + name, matrix, *shape)
        put("attn_q_a_norm", "F32", m["q_rank"])
        put("attn_kv_a_norm", "F32", m["head"])
        put("attn_sinks", "F32", m["heads"])
        ratio = m["ratios"][i]
        if "engrams" in m:
            add_shared(put, m, i, matrix)
            ratio = 0
        pressed = [("attn", m["head"])] * (ratio > 0) + [("indexer", m["index"])] * (ratio == 4)
        for name, width in pressed:
            wide = width * (2 if ratio == 4 else 1)
            put(name + "_compressor_kv", "F16", hidden, wide)
            put(name + "_compressor_gate", "F16", hidden, wide)
            put(name + "_compressor_ape", "F16", wide, ratio)
            put(name + "_compressor_norm", "F32", width)
        if ratio == 4:
            put("indexer.attn_q_b", "F16", m["q_rank"], m["index_heads"] * m["index"])
            put("indexer.proj", "F16", hidden, m["index_heads"])
        put("ffn_gate_inp", "F16", hidden, experts)
        if i < m["hashed"]:
            put("ffn_gate_tid2eid", "I32", m["used"], m["vocab"])
        else:
            w.tensor(f"blk.{i}.exp_probs_b.bias", "F32", experts)
        for name, kind, *shape in (("gate", matrix, hidden, ff), ("up", matrix, hidden, ff), ("down", rich, ff, hidden)):
            put(f"ffn_{name}_shexp", kind, *shape)
            put(f"ffn_{name}_exps", m["expert_types"][name == "down"] or kind, *shape, experts)


def main():
    name, _, layers = (sys.argv[1:] or [""])[0].partition(":")
    if len(sys.argv) < 4 or name not in MODELS or sys.argv[2] not in {*MIXES, "none"} or not (layers or "1").isdecimal():
        raise SystemExit(__doc__)
    m, w = dict(MODELS[name], expert_types=EXPERTS.get(sys.argv[2], (None, None))), Writer()
    m["layers"] = min(int(layers or m["layers"]), m["layers"])
    if m["layers"] < MODELS[name]["layers"] and "dense" in m:
        m["mtp"] = 0
    if "ratios" in m:
        m["ratios"] = m["ratios"][:m["layers"] - m["mtp"]] + [0] * m["mtp"]
    w.key("general.architecture", m["arch"])
    w.key("general.name", f"synthetic {sys.argv[1]} {sys.argv[2]}")
    add_sizes(w, m)
    if sys.argv[2] != "none":
        add = {"gemma4": add_gemma, "diffusion-gemma": add_gemma, "gemma4-assistant": add_gemma, "gpt-oss": add_gpt_oss, "qwen35": add_qwen35,
               "qwen35moe": add_qwen35, "deepseek4": add_deepseek4, "deepseek41": add_deepseek4, "glm4moe": add_glm4moe, "deepseek2": add_deepseek2}.get(m["arch"], add_llama)
        add(w, m, MIXES[sys.argv[2]])
    add_vocabulary(w, m)
    w.write(sys.argv[3], {"sparse": "", "hollow": "_exps."}.get((sys.argv[4:] or [""])[0], "nothing"))
    print(f"{sys.argv[3]}: {os.path.getsize(sys.argv[3]) / 1e9:.2f} GB, {len(w.tensors)} tensors")


if __name__ == "__main__":
    main()
