# SPDX-License-Identifier: MIT
"""The second, independent forward pass of check_llama.py for the models of tiny_shared.py, and the mistakes that their
goldens must see. check_models.py runs it."""

import numpy as np

import check_llama
from check_llama import gated, rms, sigmoid, softmax

MISTAKES = """no-root-head-dim rotate-all rotate-last halves-as-pairs no-q-bias no-k-bias no-v-bias no-q-norm no-k-norm
q-norm-after-rope no-choice-bias bias-in-weight no-renorm no-factor no-groups groups-by-best softmax-of-chosen
sigmoid-as-softmax no-shared up-first dense-late""".split()


class Model(check_llama.Model):
    def __init__(self, path):
        super().__init__(path)
        key = self.key
        self.layers -= key("nextn_predict_layers", 0)
        self.rotated = key("rope.dimension_count")
        self.n_groups, self.used = key("expert_group_count", 1), key("expert_group_used_count", 1)
        self.sigmoid = key("expert_gating_func", 1) == 2
        self.renorm, self.expert_factor = key("expert_weights_norm", False), key("expert_weights_scale", 1.0)

    def frequencies(self, wrong):
        whole, self.head_dim = self.head_dim, self.head_dim if "rotate-all" in wrong else self.rotated
        f, _ = super().frequencies(wrong)
        self.head_dim = whole
        return f, 1.0


class Run(check_llama.Run):
    def rope(self, x, positions):
        """The first numbers of a head rotate, in halves."""
        angle, n = np.asarray(positions)[:, None, None] * self.freq, 2 * len(self.freq)
        c, s, out = np.cos(angle), np.sin(angle), x.copy()
        low = x.shape[-1] - n if "rotate-last" in self.wrong else 0
        first, second = slice(low, low + n // 2), slice(low + n // 2, low + n)
        if "halves-as-pairs" in self.wrong:
            first, second = slice(low, low + n, 2), slice(low + 1, low + n, 2)
        a, b = x[..., first], x[..., second]
        out[..., first], out[..., second] = a * c - b * s, b * c + a * s
        return out

    def choose(self, i, logits):
        """Which experts a row takes, and their weights."""
        m, wrong, bias = self.m, self.wrong, self.m.get(i, "exp_probs_b.bias")
        by_sigmoid = m.sigmoid != ("sigmoid-as-softmax" in wrong and m.sigmoid)
        scores = sigmoid(logits) if by_sigmoid else softmax(logits)
        ranks = scores if bias is None or "no-choice-bias" in wrong else scores + bias
        if m.n_groups > 1 and "no-groups" not in wrong:
            runs = np.sort(ranks.reshape(m.n_groups, -1))
            by_sum = m.sigmoid and "groups-by-best" not in wrong
            best = runs[:, -2:].sum(-1) if by_sum else runs[:, -1]
            closed = np.argsort(-best, kind="stable")[m.used:]
            ranks = ranks.copy()
            ranks.reshape(m.n_groups, -1)[closed] = -np.inf
        top = np.argsort(-ranks, kind="stable")[:m.top_k]
        w = (ranks if "bias-in-weight" in wrong else scores)[top]
        if "softmax-of-chosen" in wrong:
            w = softmax(logits[top])
        w = w / w.sum() if m.renorm and "no-renorm" not in wrong else w
        return top, w if "no-factor" in wrong else w * m.expert_factor

    def experts(self, i, h):
        m, wrong = self.m, self.wrong
        logits, out = h @ m.get(i, "ffn_gate_inp.weight").T, np.zeros_like(h)
        gate, up, down = (m.get(i, f"ffn_{x}_exps.weight") for x in ("gate", "up", "down"))
        for row in range(h.shape[0]):
            for e, w in zip(*self.choose(i, logits[row])):
                out[row] += w * (down[e] @ gated(gate[e] @ h[row], up[e] @ h[row], wrong))
        return out

    def mlp(self, i, h, ending):
        g, u = (h @ self.m.get(i, f"ffn_{x}{ending}.weight").T for x in ("gate", "up"))
        if "up-first" in self.wrong:
            g, u = u, g
        return gated(g, u, self.wrong) @ self.m.get(i, f"ffn_down{ending}.weight").T

    def layer(self, i, x, positions):
        m, wrong = self.m, self.wrong
        h = rms(x, m.eps, m.get(i, "attn_norm.weight"), wrong)
        a = x + self.attention(i, h, positions)
        h = rms(x if "dense-late" in wrong else a, m.eps, m.get(i, "post_attention_norm.weight"), wrong)
        if m.get(i, "ffn_gate_inp.weight") is None:
            return a + self.mlp(i, h, "")
        return a + self.experts(i, h) + (0 if "no-shared" in wrong else self.mlp(i, h, "_shexp"))
