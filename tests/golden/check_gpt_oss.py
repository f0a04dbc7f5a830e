# SPDX-License-Identifier: MIT
"""The second, independent forward pass of check_llama.py for the models of tiny_gpt_oss.py, and the mistakes that their
goldens must see. check_models.py runs it."""

import numpy as np

import check_llama
from check_llama import rms, softmax

MISTAKES = """no-root-head-dim no-yarn-blend yarn-rounded no-yarn-length no-q-bias no-k-bias no-v-bias no-o-bias no-sink
sink-scaled sink-of-kv-head window-on-the-others window-less window-more no-router-bias softmax-before-choice
no-gate-bias no-up-bias no-down-bias bias-after-weight no-gate-limit no-up-limit slope-1 no-plus-one
up-first eps-outside no-residual norm-late""".split()


class Model(check_llama.Model):
    def __init__(self, path):
        super().__init__(path)
        keys = check_llama.gguf.GGUFReader(path).fields
        pattern = keys.get("gpt-oss.attention.sliding_window_pattern")
        self.windows = [i % 2 == 0 for i in range(self.layers)] if pattern is None else pattern.contents()

    def frequencies(self, wrong):
        hd, i = self.head_dim, np.arange(self.head_dim // 2)
        f = self.theta ** (-2 * i / hd)
        if self.scaling != "yarn":
            return f, 1.0

        def pair(turns):
            return hd * np.log(self.context / (turns * 2 * np.pi)) / (2 * np.log(self.theta))

        low, high = pair(32), pair(1)
        if "yarn-rounded" in wrong:
            low, high = np.floor(low), np.ceil(high)
        low, high = max(low, 0), min(high, hd - 1)
        slow = np.clip((i - low) / max(high - low, 0.001), 0, 1)
        if "no-yarn-blend" in wrong:
            slow = np.ones_like(slow)
        side = 1.0 if "no-yarn-length" in wrong else 0.1 * np.log(self.factor) + 1
        return f * (1 - slow) + f / self.factor * slow, side


def gated(g, u, wrong):
    limit = 7.0
    if "no-gate-limit" not in wrong:
        g = np.minimum(g, limit)
    if "no-up-limit" not in wrong:
        u = np.clip(u, -limit, limit)
    return g / (1 + np.exp(-(1.0 if "slope-1" in wrong else 1.702) * g)) * (u + (0 if "no-plus-one" in wrong else 1))


class Run(check_llama.Run):
    def attention(self, i, h, positions):
        m, wrong, rows = self.m, self.wrong, h.shape[0]
        q = self.rope(self.project(i, "q", h).reshape(rows, m.heads, -1), positions)
        k = self.rope(self.project(i, "k", h).reshape(rows, m.kv, -1), positions)
        v = self.project(i, "v", h).reshape(rows, m.kv, -1)
        k, v = self.kept(k), self.kept(v)
        if self.cache[i] is not None:
            k, v = (np.concatenate([old, new]) for old, new in zip(self.cache[i], (k, v)))
        self.cache[i] = (k, v)
        at, keys = np.asarray(positions)[:, None], np.arange(k.shape[0])[None, :]
        seen = keys <= at
        if bool(m.windows[i]) != ("window-on-the-others" in wrong):
            seen &= at - keys < m.window + ("window-more" in wrong) - ("window-less" in wrong)
        group = np.arange(m.heads) // (m.heads // m.kv)
        root = 1.0 if "no-root-head-dim" in wrong else np.sqrt(m.head_dim)
        s = np.where(seen[None], np.einsum("qhd,khd->hqk", q, k[:, group]) / root, -np.inf)
        sink = m.get(i, "attn_sinks.weight") / (root if "sink-scaled" in wrong else 1)
        if "sink-of-kv-head" in wrong:
            sink = sink[group]
        if "no-sink" in wrong:
            sink = np.full_like(sink, -np.inf)
        p = softmax(np.concatenate([s, np.broadcast_to(sink[:, None, None], (m.heads, rows, 1))], axis=-1))[..., :-1]
        return self.project(i, "output", np.einsum("hqk,khd->qhd", p, v[:, group]).reshape(rows, -1))

    def bias(self, i, name, e):
        b = self.m.get(i, f"ffn_{name}_exps.bias")[e]
        return 0 * b if f"no-{name}-bias" in self.wrong else b

    def experts(self, i, h):
        m, wrong = self.m, self.wrong
        z = h @ m.get(i, "ffn_gate_inp.weight").T
        if "no-router-bias" not in wrong:
            z = z + m.get(i, "ffn_gate_inp.bias")
        both = m.get(i, "ffn_gate_up_exps.weight")
        gate, up = np.split(both, 2, axis=1) if both is not None else \
            (m.get(i, "ffn_gate_exps.weight"), m.get(i, "ffn_up_exps.weight"))
        if "up-first" in wrong:
            gate, up = up, gate
        out = np.zeros_like(h)
        for row in range(h.shape[0]):
            top = np.argsort(-z[row], kind="stable")[:m.top_k]
            weights = softmax(z[row])[top] if "softmax-before-choice" in wrong else softmax(z[row, top])
            for e, we in zip(top, weights):
                g, u = gate[e] @ h[row] + self.bias(i, "gate", e), up[e] @ h[row] + self.bias(i, "up", e)
                made, bias = m.get(i, "ffn_down_exps.weight")[e] @ gated(g, u, wrong), self.bias(i, "down", e)
                out[row] += we * made + bias if "bias-after-weight" in wrong else we * (made + bias)
        return out

    def layer(self, i, x, positions):
        m, wrong = self.m, self.wrong
        o = self.attention(i, rms(x, m.eps, m.get(i, "attn_norm.weight"), wrong), positions)
        a = o if "no-residual" in wrong else x + o
        h = rms(x if "norm-late" in wrong else a, m.eps, m.get(i, "post_attention_norm.weight"), wrong)
        return a + self.experts(i, h)
