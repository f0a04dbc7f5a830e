# SPDX-License-Identifier: MIT
"""The second, independent forward pass of check_llama.py for the models of tiny_shared.py, with keys and values of each
head where weft has one vector for all, and the mistakes that their goldens must see. check_models.py runs it."""

import numpy as np

import check_llama
from check_llama import gated, rms, sigmoid, softmax

MISTAKES = """no-root-head-dim root-of-latent rotate-all rotate-elsewhere halves-as-pairs no-yarn-blend no-mscale mscale-once no-q-bias
no-k-bias no-v-bias no-q-norm no-k-norm q-norm-after-rope no-kv-norm kv-norm-all no-low-q-norm keys-turned heads-turned
no-choice-bias bias-in-weight no-renorm renorm no-factor no-groups groups-by-best groups-by-sum softmax-of-chosen
sigmoid-as-softmax no-shared up-first dense-late""".split()


class Model(check_llama.Model):
    def __init__(self, path):
        super().__init__(path)
        key = self.key
        self.layers -= key("nextn_predict_layers", 0)
        self.rotated, self.kv_rank = key("rope.dimension_count"), key("attention.kv_lora_rank", 0)
        self.head_dim, self.latent = key("attention.key_length_mla", self.head_dim), key("attention.key_length")
        self.n_groups, self.used = key("expert_group_count", 1), key("expert_group_used_count", 1)
        self.sigmoid = key("expert_gating_func", 1) == 2
        self.log_multiplier = key("rope.scaling.yarn_log_multiplier", 0.0)
        self.renorm, self.expert_factor = key("expert_weights_norm", False), key("expert_weights_scale", 1.0)

    def frequencies(self, wrong):
        whole, self.head_dim = self.head_dim, self.head_dim if "rotate-all" in wrong else self.rotated
        f, _ = super().frequencies(wrong)
        self.head_dim = whole
        return f, 1.0


class Run(check_llama.Run):
    def rope(self, x, positions):
        """The numbers that rotate are the first ones of glm4moe, in halves, the last ones of deepseek2, in pairs."""
        angle, n = np.asarray(positions)[:, None, None] * self.freq, 2 * len(self.freq)
        c, s, out = np.cos(angle), np.sin(angle), x.copy()
        latent = self.m.kv_rank > 0
        low = 0 if latent == ("rotate-elsewhere" in self.wrong) else x.shape[-1] - n
        first, second = slice(low, low + n // 2), slice(low + n // 2, low + n)
        if latent != ("halves-as-pairs" in self.wrong):
            first, second = slice(low, low + n, 2), slice(low + 1, low + n, 2)
        a, b = x[..., first], x[..., second]
        out[..., first], out[..., second] = a * c - b * s, b * c + a * s
        return out

    def latent_attention(self, i, h, positions):
        m, wrong, rows, still = self.m, self.wrong, h.shape[0], self.m.head_dim - self.m.rotated
        q = m.get(i, "attn_q.weight")
        if q is None:
            low = h @ m.get(i, "attn_q_a.weight").T
            low = low if "no-low-q-norm" in wrong else rms(low, m.eps, m.get(i, "attn_q_a_norm.weight"))
            q = low @ m.get(i, "attn_q_b.weight").T
        else:
            q = h @ q.T
        q = self.rope(q.reshape(rows, m.heads, -1), positions)
        both, w = h @ m.get(i, "attn_kv_a_mqa.weight").T, m.get(i, "attn_kv_a_norm.weight")
        kv, pe = both[:, :m.kv_rank], both[:, m.kv_rank:]
        if "kv-norm-all" in wrong:
            kv = kv / np.sqrt((both * both).mean(-1, keepdims=True) + m.eps) * w
        elif "no-kv-norm" not in wrong:
            kv = rms(kv, m.eps, w)
        pe = self.rope(np.concatenate([np.zeros((rows, 1, still)), pe[:, None]], -1), positions)[..., still:]
        k_b, v_b = m.get(i, "attn_k_b.weight"), m.get(i, "attn_v_b.weight")
        if "keys-turned" in wrong:
            k_b = k_b.reshape(m.heads, still, m.kv_rank).transpose(0, 2, 1)
        if "heads-turned" in wrong:
            v_b = v_b[::-1]
        k = np.concatenate([np.einsum("rk,hkd->rhd", kv, k_b), pe.repeat(m.heads, 1)], -1)
        v = np.einsum("rk,hdk->rhd", kv, v_b)
        if self.cache[i] is not None:
            k, v = (np.concatenate([old, new]) for old, new in zip(self.cache[i], (k, v)))
        self.cache[i] = (k, v)
        seen = np.arange(k.shape[0])[None, :] <= np.asarray(positions)[:, None]
        scale = np.sqrt(m.latent if "root-of-latent" in wrong else m.head_dim)
        longer = 1 if "no-mscale" in wrong else 1 + m.log_multiplier * np.log(m.factor)
        s = np.einsum("qhd,khd->hqk", q, k) * longer * (1 if "mscale-once" in wrong else longer)
        s = s / (1 if "no-root-head-dim" in wrong else scale)
        o = np.einsum("hqk,khd->qhd", softmax(np.where(seen[None], s, -np.inf)), v)
        return self.project(i, "output", o.reshape(rows, -1))

    def choose(self, i, logits):
        """Which experts a row takes, and their weights."""
        m, wrong, bias = self.m, self.wrong, self.m.get(i, "exp_probs_b.bias")
        by_sigmoid = m.sigmoid != ("sigmoid-as-softmax" in wrong and m.sigmoid)
        scores = sigmoid(logits) if by_sigmoid else softmax(logits)
        ranks = scores if bias is None or "no-choice-bias" in wrong else scores + bias
        if m.n_groups > 1 and "no-groups" not in wrong:
            runs = np.sort(ranks.reshape(m.n_groups, -1))
            by_sum = m.sigmoid != (("groups-by-best" if m.sigmoid else "groups-by-sum") in wrong)
            best = runs[:, -2:].sum(-1) if by_sum else runs[:, -1]
            closed = np.argsort(-best, kind="stable")[m.used:]
            ranks = ranks.copy()
            ranks.reshape(m.n_groups, -1)[closed] = -np.inf
        top = np.argsort(-ranks, kind="stable")[:m.top_k]
        w = (ranks if "bias-in-weight" in wrong else scores)[top]
        if "softmax-of-chosen" in wrong:
            w = softmax(logits[top])
        renorm = m.renorm and "no-renorm" not in wrong or "renorm" in wrong
        w = w / w.sum() if renorm else w
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
        a = x + (self.latent_attention if m.kv_rank else self.attention)(i, h, positions)
        norm = m.get(i, "ffn_norm.weight" if m.kv_rank else "post_attention_norm.weight")
        h = rms(x if "dense-late" in wrong else a, m.eps, norm, wrong)
        if m.get(i, "ffn_gate_inp.weight") is None:
            return a + self.mlp(i, h, "")
        return a + self.experts(i, h) + (0 if "no-shared" in wrong else self.mlp(i, h, "_shexp"))
