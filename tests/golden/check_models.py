# SPDX-License-Identifier: MIT
"""Checks the goldens of models/ with a second, independent forward pass, and shows that they see mistakes.

    python check_models.py [NAME ...]

The pass below reads only the GGUF file and runs in float64. Unchanged, it must agree with the goldens to
2e-5 of the range. Then it is run with one deliberate mistake at a time: every mistake must move some
logit by at least 2e-3 of the range (ten times what a test allows) in at least two models (of the llama family, which
check_llama.py computes: in one).
"""

import math
import os
import sys

import gguf
import numpy as np

import check_deepseek4
import check_deepseek41
import check_gpt_oss
import check_llama
import check_more
import check_qwen35
import check_shared
import golden_floats
import tiny_configs
import tiny_deepseek4
import tiny_deepseek41
import tiny_gpt_oss
import tiny_llama
import tiny_more
import tiny_qwen35
import tiny_shared

HERE = os.path.dirname(os.path.abspath(__file__))
MODELS = os.path.join(HERE, "models")

MISTAKES = """scale-by-root-head-dim norm-one-plus-w no-v-norm v-from-normed-k v-after-rope rope-exponent-rotated
rope-pair-rotated rope-all-dims rope-interleaved no-rope-freqs-swa router-normed router-no-scale router-no-root
renorm-after-scale no-renorm no-expert-scale up-first scalar-on-branch no-scalar encoder-scalar-on-canvas
decoder-scalar-on-encoder window-less window-more canvas-window-less canvas-window-more canvas-window-per-query
canvas-no-window canvas-causal canvas-position-zero sc-norm-skipped sc-unscaled sc-no-temperature
sc-ignored sc-pre-norm-missing no-embed-scale no-softcap gelu-erf experts-from-raw dense-from-raw
no-post-norm-1 kv-head-modulo keys-of-first no-per-layer per-layer-no-mean per-layer-unscaled
per-layer-only-tokens per-layer-only-projected per-layer-unprojected-norm per-layer-late per-layer-no-norm
per-layer-of-next""".split()


def rms(x, eps, w=None, wrong=()):
    y = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)
    if w is None:
        return y
    return y * (1 + w if "norm-one-plus-w" in wrong else w)


def gelu(x, wrong):
    if "gelu-erf" in wrong:
        return 0.5 * x * (1 + np.vectorize(math.erf)(x / np.sqrt(2)))
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x ** 3)))


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


class Model:
    def __init__(self, path):
        r = gguf.GGUFReader(path)
        self.t = {x.name: gguf.quants.dequantize(x.data, x.tensor_type).astype(np.float64)
                  .reshape([int(n) for n in x.shape[::-1]]) for x in r.tensors}
        self.arch = r.fields["general.architecture"].contents()

        def key(name, default=None):
            f = r.fields.get(f"{self.arch}.{name}")
            return default if f is None else f.contents()

        self.layers = key("block_count")
        self.heads = key("attention.head_count")
        self.eps = key("attention.layer_norm_rms_epsilon")
        self.window = key("attention.sliding_window")
        self.cap = key("final_logit_softcapping")
        self.base = (key("rope.freq_base"), key("rope.freq_base_swa", 1e4))
        self.per_layer = key("embedding_length_per_layer_input", 0)
        self.head_dim = (key("attention.key_length"), key("attention.key_length_swa"))
        self.top_k = key("expert_used_count", 0)
        pattern = key("attention.sliding_window_pattern")
        if not isinstance(pattern, list):
            pattern = [(i + 1) % pattern != 0 for i in range(self.layers)]
        self.sliding = pattern
        kv = key("attention.head_count_kv")
        self.kv = kv if isinstance(kv, list) else [kv] * self.layers
        self.width = self.t["token_embd.weight"].shape[1]
        self.first_shared = self.layers - key("attention.shared_kv_layers", 0)

    def keys_of(self, i, wrong):
        """The layer whose keys layer i reads."""
        if i < self.first_shared:
            return i
        same = [j for j in range(self.first_shared) if self.sliding[j] == self.sliding[i]]
        return same[0] if "keys-of-first" in wrong else same[-1]

    def get(self, layer, name):
        return self.t.get(f"blk.{layer}.{name}")


class Run:
    """One sequence over one model, with a set of mistakes."""

    def __init__(self, m, wrong):
        self.m, self.wrong = m, wrong
        self.cache = [(None, None)] * m.layers
        self.length = 0

    def norm(self, x, w):
        return rms(x, self.m.eps, w, self.wrong)

    def rope(self, x, positions, sliding):
        m, wrong = self.m, self.wrong
        hd = x.shape[-1]
        half = hd // 2
        n = half
        f = m.base[sliding] ** (-2 * np.arange(half) / hd)
        if not sliding:
            free = m.t["rope_freqs.weight"]
            n = int((free < 1e29).sum())
            if "rope-exponent-rotated" in wrong:
                f = m.base[0] ** (-2 * np.arange(half) / (2 * n))
            if "rope-all-dims" not in wrong:
                f = np.where(free < 1e29, f / free, 0.0)
        elif "no-rope-freqs-swa" in wrong:
            f[max(1, half // 4):] = 0.0
        angle = np.asarray(positions)[:, None, None] * f
        cos, sin = np.cos(angle), np.sin(angle)
        if "rope-interleaved" in wrong:
            out = np.empty_like(x)
            a, b = x[..., 0::2], x[..., 1::2]
            out[..., 0::2], out[..., 1::2] = a * cos - b * sin, b * cos + a * sin
            return out
        if "rope-pair-rotated" in wrong and not sliding:
            out = x.copy()
            a, b = x[..., :n], x[..., n:2 * n]
            cos, sin = cos[..., :n], sin[..., :n]
            out[..., :n], out[..., n:2 * n] = a * cos - b * sin, b * cos + a * sin
            return out
        a, b = x[..., :half], x[..., half:]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    def kept(self, x):
        """Keys and values as they are remembered."""
        return x

    def visible(self, q_pos, k_pos, canvas, sliding, prompt):
        wrong, w = self.wrong, self.m.window
        q, k = np.asarray(q_pos)[:, None], np.asarray(k_pos)[None, :]
        if not canvas:
            w += ("window-more" in wrong) - ("window-less" in wrong)
            seen = k <= q
            return seen & (q - k < w) if sliding else seen
        seen = (k <= q) if "canvas-causal" in wrong else np.ones((q.size, k.size), bool)
        if sliding and "canvas-no-window" not in wrong:
            w += ("canvas-window-more" in wrong) - ("canvas-window-less" in wrong)
            edge = q if "canvas-window-per-query" in wrong else prompt
            seen = seen & ((k >= prompt) | (edge - k < w))
        return seen

    def keys(self, i, h, positions, canvas):
        m, wrong = self.m, self.wrong
        sliding, rows = bool(m.sliding[i]), h.shape[0]
        raw = (h @ m.get(i, "attn_k.weight").T).reshape(rows, m.kv[i], m.head_dim[sliding])
        normed = self.norm(raw, m.get(i, "attn_k_norm.weight"))
        k = self.rope(normed, positions, sliding)
        wv = m.get(i, "attn_v.weight")
        v = raw if wv is None else (h @ wv.T).reshape(raw.shape)
        if wv is None and "v-from-normed-k" in wrong:
            v = normed
        if wv is None and "v-after-rope" in wrong:
            v = k
        if "no-v-norm" not in wrong:
            v = rms(v, m.eps)
        k, v = self.kept(k), self.kept(v)
        old_k, old_v = self.cache[i]
        if old_k is not None:
            k, v = np.concatenate([old_k, k]), np.concatenate([old_v, v])
        if not canvas:
            self.cache[i] = (k, v)
        return k, v

    def attention(self, i, h, positions, canvas):
        m, wrong = self.m, self.wrong
        sliding = bool(m.sliding[i])
        hd, kvh = m.head_dim[sliding], m.kv[i]
        rows = h.shape[0]
        q = (h @ m.get(i, "attn_q.weight").T).reshape(rows, m.heads, hd)
        q = self.rope(self.norm(q, m.get(i, "attn_q_norm.weight")), positions, sliding)
        keys_of = m.keys_of(i, wrong)
        k, v = self.cache[keys_of] if keys_of != i else self.keys(i, h, positions, canvas)
        prompt = self.length
        k_pos = list(range(prompt)) + list(positions)
        seen = self.visible(positions, k_pos, canvas, sliding, prompt)
        group = np.arange(m.heads) // (m.heads // kvh)
        if "kv-head-modulo" in wrong:
            group = np.arange(m.heads) % kvh
        s = np.einsum("qhd,khd->hqk", q, k[:, group])
        if "scale-by-root-head-dim" in wrong:
            s = s / np.sqrt(hd)
        p = softmax(np.where(seen[None], s, -np.inf))
        o = np.einsum("hqk,khd->qhd", p, v[:, group]).reshape(rows, -1)
        return o @ m.get(i, "attn_output.weight").T

    def experts(self, i, a):
        m, wrong = self.m, self.wrong
        r = rms(a, m.eps)
        if "router-normed" in wrong:
            r = rms(self.norm(a, m.get(i, "pre_ffw_norm_2.weight")), m.eps)
        if "router-no-scale" not in wrong:
            r = r * m.get(i, "ffn_gate_inp.scale")
        if "router-no-root" not in wrong:
            r = r * m.width ** -0.5
        p = softmax(r @ m.get(i, "ffn_gate_inp.weight").T)
        u = a if "experts-from-raw" in wrong else self.norm(a, m.get(i, "pre_ffw_norm_2.weight"))
        both = m.get(i, "ffn_gate_up_exps.weight")
        if both is None:
            gate, up = m.get(i, "ffn_gate_exps.weight"), m.get(i, "ffn_up_exps.weight")
        else:
            gate, up = np.split(both, 2, axis=1)
        if "up-first" in wrong:
            gate, up = up, gate
        down, scale = m.get(i, "ffn_down_exps.weight"), m.get(i, "ffn_down_exps.scale")
        out = np.zeros_like(a)
        for row in range(a.shape[0]):
            top = np.argsort(-p[row], kind="stable")[:m.top_k]
            w = p[row, top]
            if "no-renorm" not in wrong:
                w = w / w.sum()
            if scale is not None and "no-expert-scale" not in wrong:
                w = w * scale[top]
            if "renorm-after-scale" in wrong:
                w = w / w.sum()
            for e, we in zip(top, w):
                g = gelu(gate[e] @ u[row], wrong) * (up[e] @ u[row])
                out[row] += we * (down[e] @ g)
        return out

    def embed_per_layer(self, tokens, x):
        m, wrong = self.m, self.wrong
        shape = (len(tokens), m.layers, m.per_layer)
        table = m.t["per_layer_token_embd.weight"][tokens].reshape(shape)
        if "per-layer-unscaled" not in wrong:
            table = table * m.per_layer ** 0.5
        p = (x @ m.t["per_layer_model_proj.weight"].T).reshape(shape)
        if "per-layer-unprojected-norm" not in wrong:
            p = p * m.width ** -0.5
        p = self.norm(p, m.t["per_layer_proj_norm.weight"])
        if "per-layer-only-tokens" in wrong:
            p = 0 * p
        if "per-layer-only-projected" in wrong:
            table = 0 * table
        return (p + table) * (1 if "per-layer-no-mean" in wrong else 2 ** -0.5)

    def per_layer(self, i, x):
        m, wrong = self.m, self.wrong
        own = self.own[:, (i + 1) % m.layers if "per-layer-of-next" in wrong else i]
        g = gelu(x @ m.get(i, "inp_gate.weight").T, wrong) * own
        y = g @ m.get(i, "proj.weight").T
        return y if "per-layer-no-norm" in wrong else self.norm(y, m.get(i, "post_norm.weight"))

    def layer(self, i, x, positions, canvas):
        m, wrong = self.m, self.wrong
        h = self.norm(x, m.get(i, "attn_norm.weight"))
        o = self.attention(i, h, positions, canvas)
        a = x + self.norm(o, m.get(i, "post_attention_norm.weight"))
        n = a if "dense-from-raw" in wrong else self.norm(a, m.get(i, "ffn_norm.weight"))
        f = gelu(n @ m.get(i, "ffn_gate.weight").T, wrong) * (n @ m.get(i, "ffn_up.weight").T)
        f = f @ m.get(i, "ffn_down.weight").T
        if m.get(i, "ffn_gate_inp.weight") is not None:
            if "no-post-norm-1" not in wrong:
                f = self.norm(f, m.get(i, "post_ffw_norm_1.weight"))
            f = f + self.norm(self.experts(i, a), m.get(i, "post_ffw_norm_2.weight"))
        f = self.norm(f, m.get(i, "post_ffw_norm.weight"))
        scalar = m.get(i, "layer_output_scale.weight")
        scalar = 1.0 if scalar is None else scalar
        enc = m.get(i, "enc_layer_output_scale.weight")
        if enc is not None and (not canvas) != ("decoder-scalar-on-encoder" in wrong and not canvas):
            scalar = enc
        if enc is not None and canvas and "encoder-scalar-on-canvas" in wrong:
            scalar = enc
        if m.per_layer and "no-per-layer" not in wrong:
            f = f + self.per_layer(i, a * (scalar if "per-layer-late" in wrong else 1) + f)
        if "no-scalar" in wrong:
            return a + f
        if "scalar-on-branch" in wrong:
            return a + f * scalar
        return (a + f) * scalar

    def head(self, x):
        m = self.m
        z = self.norm(x, m.t["output_norm.weight"]) @ m.t.get("output.weight", m.t["token_embd.weight"]).T
        return z if m.cap is None or "no-softcap" in self.wrong else m.cap * np.tanh(z / m.cap)

    def embed(self, tokens):
        x = self.m.t["token_embd.weight"][tokens]
        return x if "no-embed-scale" in self.wrong else x * self.m.width ** 0.5

    def encode(self, tokens):
        positions = range(self.length, self.length + len(tokens))
        x = self.embed(tokens)
        if self.m.per_layer:
            self.own = self.embed_per_layer(tokens, x)
        stream = [x]
        for i in range(self.m.layers):
            x = self.layer(i, x, positions, False)
            stream.append(x)
        self.length += len(tokens)
        return self.head(x), np.stack(stream)

    def canvas(self, tokens, previous, temperature):
        m, wrong = self.m, self.wrong
        start = 0 if "canvas-position-zero" in wrong else self.length
        x = self.embed(tokens)
        if previous is not None and "sc-ignored" not in wrong:
            t = 1.0 if "sc-no-temperature" in wrong else temperature
            soft = softmax(previous / t) @ m.t["token_embd.weight"]
            if "sc-unscaled" not in wrong:
                soft = soft * m.width ** 0.5
            w = m.t.get("self_cond_pre_norm.weight", m.t.get("self_cond_norm.weight"))
            g = rms(soft, m.eps) if "sc-pre-norm-missing" in wrong else self.norm(soft, w)
            s = gelu(g @ m.t["self_cond_gate.weight"].T, wrong) * (g @ m.t["self_cond_up.weight"].T)
            x = x + s @ m.t["self_cond_down.weight"].T
        if previous is not None or "sc-norm-skipped" not in wrong:
            x = rms(x, m.eps)
        stream = [x]
        for i in range(m.layers):
            x = self.layer(i, x, range(start, start + len(tokens)), True)
            stream.append(x)
        return self.head(x), np.stack(stream)


def read_cases(name):
    head, ops = {}, []
    with open(os.path.join(MODELS, name + ".cases.txt"), encoding="ascii") as f:
        for line in f:
            word, *rest = line.split()
            if word in ("case", "encode", "canvas", "hidden"):
                ops.append((word, rest))
            else:
                head[word] = rest[0]
    return head, ops


def load_cases(name):
    head, ops = read_cases(name)
    return head, ops, golden_floats.read(os.path.join(MODELS, name), int(head["n_floats"]))


def blocks_of(head, ops):
    """(offset, count) of what is judged as one: the logits of a line, the residual stream at a layer."""
    rows = 0
    for word, rest in ops:
        if word in ("encode", "canvas"):
            rows = int(rest[0])
            yield int(rest[1]), rows * int(head["n_vocab"])
        elif word == "hidden":
            n = rows * int(head["n_hidden"])
            yield from ((int(rest[0]) + layer * n, n) for layer in range(int(head["n_layers"]) + 1))


def fed(ops):
    """Offsets of the logits that a later step starts from."""
    return {int(rest[2]) for word, rest in ops if word == "canvas" and rest[2] != "none"}


def compare(model, head, ops, floats, wrong, run_of):
    """Largest error of logits, and of streams, as parts of the range of each expected block."""
    vocab, worst, worst_stream, run, stream = int(head["n_vocab"]), 0.0, 0.0, None, None
    for word, rest in ops:
        if word == "case":
            run = run_of(model, wrong)
            continue
        if word == "hidden":
            if stream is not None:
                want = floats[int(rest[0]):][:stream.size].reshape(stream.shape)
                worst_stream = max(worst_stream, np.abs(stream - want).max() / np.ptp(want))
            continue
        rows, at = int(rest[0]), int(rest[1])
        tokens = [int(x) for x in rest[-1].split(",")]
        assert len(tokens) == rows
        if word == "encode":
            got, stream = run.encode(tokens)
        else:
            prev = None if rest[2] == "none" else floats[int(rest[2]):][:rows * vocab].reshape(rows, vocab)
            got, stream = run.canvas(tokens, prev, float(rest[3]))
        want = floats[at:at + rows * vocab].reshape(rows, vocab)
        worst = max(worst, np.abs(got - want).max() / np.ptp(want))
    return worst, worst_stream


ALL = (tiny_configs.ALL + tiny_llama.ALL + tiny_gpt_oss.ALL + tiny_qwen35.ALL + tiny_deepseek4.ALL
       + tiny_deepseek41.ALL + tiny_more.ALL + tiny_shared.ALL)


def family_of(name):
    """The module whose pass computes the model."""
    for tiny, family in ((tiny_llama, check_llama), (tiny_gpt_oss, check_gpt_oss), (tiny_qwen35, check_qwen35),
                         (tiny_deepseek4, check_deepseek4), (tiny_deepseek41, check_deepseek41),
                         (tiny_more, check_more), (tiny_shared, check_shared)):
        if any(t.name == name for t in tiny.ALL):
            return family
    return sys.modules[__name__]


def check(name, seen):
    """Counts in `seen` the mistakes that the model's goldens see; returns what is wrong with them, or None."""
    family = family_of(name)
    head, ops, floats = load_cases(name)
    model = family.Model(os.path.join(MODELS, head["gguf"]))
    err, err_stream = compare(model, head, ops, floats, (), family.Run)
    line = f"{name}: logits {err:.1e} streams {err_stream:.1e}"
    missed = []
    for wrong in family.MISTAKES:
        e, _ = compare(model, head, ops, floats, {wrong}, family.Run)
        if e >= 2e-3:
            seen[family, wrong].append(name)
        else:
            missed.append(f"{wrong} ({e:.0e})")
    print(line + "\n    not seen: " + (", ".join(missed) or "none"), flush=True)
    return f"{name} disagrees" if max(err, err_stream) > 4e-5 else None


def main():
    names = sys.argv[1:] or [t.name for t in ALL]
    families = (sys.modules[__name__], check_llama, check_gpt_oss, check_qwen35, check_deepseek4,
                check_deepseek41, check_more, check_shared)
    seen = {(f, w): [] for f in families for w in f.MISTAKES}
    bad = [line for line in (check(name, seen) for name in names) if line]
    for (family, wrong), where in seen.items():
        print(f"{wrong:28s} seen by {len(where)}")
        # of the llama family one model at a time has a kind of rotation, a window or biases, and of gpt-oss there are two
        if len(where) < (2 if family is families[0] else 1) and not sys.argv[1:]:
            bad.append(f"{wrong} seen by {len(where)}")
    if bad:
        raise SystemExit("; ".join(bad))


if __name__ == "__main__":
    main()
