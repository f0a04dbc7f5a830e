# SPDX-License-Identifier: MIT
"""A second, independent forward pass for the models of tiny_llama.py, in float64, from the GGUF file alone; and the
mistakes that their goldens must see. check_models.py runs it."""

import gguf
import numpy as np

MISTAKES = """no-root-head-dim halves-as-pairs no-divisor no-linear-factor no-yarn-blend no-yarn-length no-q-bias
no-k-bias no-v-bias no-o-bias no-q-norm no-k-norm q-norm-after-rope gelu up-first no-renorm no-residual norm-late
kv-head-modulo window-less window-more embed-scaled eps-outside""".split()


def rms(x, eps, w, wrong=()):
    root = np.sqrt((x * x).mean(-1, keepdims=True)) + eps if "eps-outside" in wrong else \
        np.sqrt((x * x).mean(-1, keepdims=True) + eps)
    return x / root * w


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gated(g, u, wrong):
    if "gelu" in wrong:
        return 0.5 * g * (1 + np.tanh(np.sqrt(2 / np.pi) * (g + 0.044715 * g ** 3))) * u
    return g / (1 + np.exp(-g)) * u


class Model:
    def __init__(self, path):
        r = gguf.GGUFReader(path)
        self.t = {x.name: np.array(x.data, dtype=np.float64).reshape([int(n) for n in x.shape[::-1]])
                  for x in r.tensors}
        self.arch = r.fields["general.architecture"].contents()

        def key(name, default=None):
            f = r.fields.get(f"{self.arch}.{name}")
            return default if f is None else f.contents()

        self.key = key
        self.layers, self.heads = key("block_count"), key("attention.head_count")
        self.width = key("embedding_length")
        self.kv = key("attention.head_count_kv", self.heads)
        self.head_dim = key("attention.key_length", self.width // self.heads)
        self.eps, self.window = key("attention.layer_norm_rms_epsilon"), key("attention.sliding_window", 0)
        self.top_k, self.theta = key("expert_used_count", 0), key("rope.freq_base", 1e4)
        self.scaling, self.factor = key("rope.scaling.type"), key("rope.scaling.factor", 1.0)
        self.context = key("rope.scaling.original_context_length", key("context_length"))

    def get(self, layer, name):
        return self.t.get(f"blk.{layer}.{name}")

    def frequencies(self, wrong):
        """Per pair, and what each side of a score is multiplied by."""
        hd, i = self.head_dim, np.arange(self.head_dim // 2)
        f = self.theta ** (-2 * i / hd)
        divisor = self.t.get("rope_freqs.weight")
        if divisor is not None and "no-divisor" not in wrong:
            f = f / divisor
        if self.scaling == "linear" and "no-linear-factor" not in wrong:
            f = f / self.factor
        if self.scaling != "yarn":
            return f, 1.0

        def pair(turns):
            return hd * np.log(self.context / (turns * 2 * np.pi)) / (2 * np.log(self.theta))

        low, high = max(np.floor(pair(32)), 0), min(np.ceil(pair(1)), hd - 1)
        slow = np.clip((i - low) / max(high - low, 0.001), 0, 1)
        if "no-yarn-blend" in wrong:
            slow = np.ones_like(slow)
        side = 1.0 if "no-yarn-length" in wrong else 0.1 * np.log(self.factor) + 1
        return f * (1 - slow) + f / self.factor * slow, side


class Run:
    def __init__(self, m, wrong):
        self.m, self.wrong = m, wrong
        self.cache = [None] * m.layers
        self.length = 0
        self.freq, self.side = m.frequencies(wrong)

    def rope(self, x, positions):
        angle = np.asarray(positions)[:, None, None] * self.freq
        c, s = np.cos(angle) * self.side, np.sin(angle) * self.side
        out = np.empty_like(x)
        half = x.shape[-1] // 2
        if (self.m.arch == "llama") != ("halves-as-pairs" in self.wrong):
            a, b = x[..., 0::2], x[..., 1::2]
            out[..., 0::2], out[..., 1::2] = a * c - b * s, b * c + a * s
        else:
            a, b = x[..., :half], x[..., half:]
            out[..., :half], out[..., half:] = a * c - b * s, b * c + a * s
        return out

    def project(self, i, name, h):
        y = h @ self.m.get(i, f"attn_{name}.weight").T
        bias = self.m.get(i, f"attn_{name}.bias")
        return y if bias is None or f"no-{name[0]}-bias" in self.wrong else y + bias

    def head_norm(self, i, name, x):
        w = self.m.get(i, f"attn_{name}_norm.weight")
        return x if w is None or f"no-{name}-norm" in self.wrong else rms(x, self.m.eps, w)

    def kept(self, x):
        """Keys and values as they are remembered."""
        return x

    def attention(self, i, h, positions):
        m, wrong, rows = self.m, self.wrong, h.shape[0]
        q = self.project(i, "q", h).reshape(rows, m.heads, -1)
        if "q-norm-after-rope" in wrong:
            q = self.head_norm(i, "q", self.rope(q, positions))
        else:
            q = self.rope(self.head_norm(i, "q", q), positions)
        k = self.rope(self.head_norm(i, "k", self.project(i, "k", h).reshape(rows, m.kv, -1)), positions)
        v = self.project(i, "v", h).reshape(rows, m.kv, -1)
        k, v = self.kept(k), self.kept(v)
        if self.cache[i] is not None:
            k, v = (np.concatenate([old, new]) for old, new in zip(self.cache[i], (k, v)))
        self.cache[i] = (k, v)
        at, keys = np.asarray(positions)[:, None], np.arange(k.shape[0])[None, :]
        seen = keys <= at
        if m.window:
            seen &= at - keys < m.window + ("window-more" in wrong) - ("window-less" in wrong)
        group = np.arange(m.heads) % m.kv if "kv-head-modulo" in wrong else np.arange(m.heads) // (m.heads // m.kv)
        s = np.einsum("qhd,khd->hqk", q, k[:, group])
        if "no-root-head-dim" not in wrong:
            s = s / np.sqrt(m.head_dim)
        p = softmax(np.where(seen[None], s, -np.inf))
        return self.project(i, "output", np.einsum("hqk,khd->qhd", p, v[:, group]).reshape(rows, -1))

    def experts(self, i, h):
        m, wrong = self.m, self.wrong
        p = softmax(h @ m.get(i, "ffn_gate_inp.weight").T)
        both = m.get(i, "ffn_gate_up_exps.weight")
        gate, up = np.split(both, 2, axis=1) if both is not None else \
            (m.get(i, "ffn_gate_exps.weight"), m.get(i, "ffn_up_exps.weight"))
        if "up-first" in wrong:
            gate, up = up, gate
        out = np.zeros_like(h)
        for row in range(h.shape[0]):
            top = np.argsort(-p[row], kind="stable")[:m.top_k]
            w = p[row, top] / (1 if "no-renorm" in wrong else p[row, top].sum())
            for e, we in zip(top, w):
                out[row] += we * (m.get(i, "ffn_down_exps.weight")[e] @ gated(gate[e] @ h[row], up[e] @ h[row], wrong))
        return out

    def layer(self, i, x, positions):
        m, wrong = self.m, self.wrong
        o = self.attention(i, rms(x, m.eps, m.get(i, "attn_norm.weight"), wrong), positions)
        a = o if "no-residual" in wrong else x + o
        h = rms(x if "norm-late" in wrong else a, m.eps, m.get(i, "ffn_norm.weight"), wrong)
        if m.get(i, "ffn_gate_inp.weight") is not None:
            return a + self.experts(i, h)
        g, u = h @ m.get(i, "ffn_gate.weight").T, h @ m.get(i, "ffn_up.weight").T
        if "up-first" in wrong:
            g, u = u, g
        return a + gated(g, u, wrong) @ m.get(i, "ffn_down.weight").T

    def encode(self, tokens):
        m = self.m
        positions = range(self.length, self.length + len(tokens))
        x = m.t["token_embd.weight"][tokens]
        if "embed-scaled" in self.wrong:
            x = x * m.width ** 0.5
        stream = [x]
        for i in range(m.layers):
            x = self.layer(i, x, positions)
            stream.append(x)
        self.length += len(tokens)
        head = m.t.get("output.weight", m.t["token_embd.weight"])
        return rms(x, m.eps, m.t["output_norm.weight"]) @ head.T, np.stack(stream)


