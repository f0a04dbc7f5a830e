# SPDX-License-Identifier: MIT
"""The second, independent forward pass of check_llama.py for the models of tiny_more.py, and the mistakes that their
goldens must see. check_models.py runs it."""

import numpy as np

import check_llama
from check_llama import rms

MISTAKES = """no-root-head-dim no-yarn-blend yarn-longer halves-as-pairs factor-on-windows no-linear-factor one-pace
no-q-norm no-k-norm q-norm-after-rope norm-one-plus-w no-post-norms silu up-first no-residual not-scaled
window-less window-more window-everywhere every-second kv-head-modulo""".split()


class Model(check_llama.Model):
    def __init__(self, path):
        super().__init__(path)
        field = check_llama.gguf.GGUFReader(path).fields.get(f"{self.arch}.rope.scaling.yarn_log_multiplier")
        self.shorter = 0.0 if field is None else field.contents()
        self.all_windows = self.window

    def paces(self, wrong):
        """Frequencies of layers without and with a window, and what each side of a score is multiplied by."""
        f, side = self.frequencies(wrong)
        if self.arch == "mistral3":
            side = side if "yarn-longer" in wrong else side / (0.1 * self.shorter * np.log(self.factor) + 1)
            return (f, f), side
        local = 1e4 ** (-2 * np.arange(self.head_dim // 2) / self.head_dim)
        if "factor-on-windows" in wrong:
            local = local / self.factor
        return (f, f if "one-pace" in wrong else local), side


class Run(check_llama.Run):
    def __init__(self, m, wrong):
        super().__init__(m, wrong)
        self.paces, self.side = m.paces(wrong)
        self.gemma = m.arch == "gemma3"

    def rope(self, x, positions):
        angle = np.asarray(positions)[:, None, None] * self.freq
        c, s = np.cos(angle) * self.side, np.sin(angle) * self.side
        out, half = np.empty_like(x), x.shape[-1] // 2
        paired = (self.m.arch == "mistral3") != ("halves-as-pairs" in self.wrong)
        first, second = (np.s_[..., 0::2], np.s_[..., 1::2]) if paired else (np.s_[..., :half], np.s_[..., half:])
        out[first], out[second] = x[first] * c - x[second] * s, x[second] * c + x[first] * s
        return out

    def norm(self, i, name, x):
        w = self.m.get(i, name + ".weight")
        if "norm-one-plus-w" in self.wrong:
            w = 1 + w
        return x if "no-post-norms" in self.wrong and name.startswith("post") else rms(x, self.m.eps, w)

    def layer(self, i, x, positions):
        m, wrong = self.m, self.wrong
        windowed = self.gemma and (i + 1) % (2 if "every-second" in wrong else 6) != 0
        m.window = m.all_windows if windowed or "window-everywhere" in wrong else 0
        self.freq = self.paces[windowed]
        if not self.gemma:
            return super().layer(i, x, positions)
        o = self.norm(i, "post_attention_norm", self.attention(i, self.norm(i, "attn_norm", x), positions))
        a = o if "no-residual" in wrong else x + o
        h = self.norm(i, "ffn_norm", a)
        g, u = h @ m.get(i, "ffn_gate.weight").T, h @ m.get(i, "ffn_up.weight").T
        if "up-first" in wrong:
            g, u = u, g
        y = check_llama.gated(g, u, () if "silu" in wrong else ("gelu",)) @ m.get(i, "ffn_down.weight").T
        return a + self.norm(i, "post_ffw_norm", y)

    def encode(self, tokens):
        if not self.gemma:
            return super().encode(tokens)
        embedding, scale = self.m.t["token_embd.weight"], 1 if "not-scaled" in self.wrong else self.m.width ** 0.5
        self.m.t["token_embd.weight"] = embedding * scale
        self.m.t["output.weight"] = embedding
        out = super().encode(tokens)
        self.m.t["token_embd.weight"] = embedding
        return out
