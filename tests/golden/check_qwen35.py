# SPDX-License-Identifier: MIT
"""The second, independent forward pass of check_llama.py for the models of tiny_qwen35.py, with the recurrence position
by position, and the mistakes that their goldens must see. check_models.py runs it."""

import numpy as np

import check_llama
from check_llama import gated, rms, sigmoid, softmax

MISTAKES = """no-root-head-dim rotate-all rotate-last halves-of-head no-q-norm no-k-norm no-out-gate gate-first
gate-silu conv-late conv-turned no-conv-silu no-length keys-alone no-root-dim grouped-heads no-decay decay-late no-dt-bias no-beta
beta-late no-value-of-state o-before-update no-o-norm no-z z-sigmoid norm-after-z no-shared-gate no-renorm up-first
tail-forgotten state-forgotten""".split()


def silu(x):
    return x * sigmoid(x)


class Model(check_llama.Model):
    def __init__(self, path):
        super().__init__(path)
        key = self.key
        self.rotated = key("rope.dimension_count")
        self.dim, self.k_heads, self.v_heads = (
            key(f"ssm.{x}") for x in ("state_size", "group_count", "time_step_rank"))

    def frequencies(self, wrong):
        n = self.head_dim if "rotate-all" in wrong else self.rotated
        return self.theta ** (-2 * np.arange(n // 2) / n), 1.0


class Run(check_llama.Run):
    def rope(self, x, positions):
        angle = np.asarray(positions)[:, None, None] * self.freq
        c, s, n = np.cos(angle), np.sin(angle), len(self.freq)
        low = x.shape[-1] - 2 * n if "rotate-last" in self.wrong else 0
        high = x.shape[-1] // 2 if "halves-of-head" in self.wrong else low + n
        out, a, b = x.copy(), x[..., low:low + n], x[..., high:high + n]
        out[..., low:low + n], out[..., high:high + n] = a * c - b * s, b * c + a * s
        return out

    def attention(self, i, h, positions):
        m, wrong, rows = self.m, self.wrong, h.shape[0]
        both = self.project(i, "q", h).reshape(rows, m.heads, 2, m.head_dim)
        q, gate = (both[:, :, 1], both[:, :, 0]) if "gate-first" in wrong else (both[:, :, 0], both[:, :, 1])
        q = self.rope(self.head_norm(i, "q", q), positions)
        k = self.rope(self.head_norm(i, "k", self.project(i, "k", h).reshape(rows, m.kv, -1)), positions)
        v = self.project(i, "v", h).reshape(rows, m.kv, -1)
        if self.cache[i] is not None:
            k, v = (np.concatenate([old, new]) for old, new in zip(self.cache[i], (k, v)))
        self.cache[i] = (k, v)
        seen = np.arange(k.shape[0])[None, :] <= np.asarray(positions)[:, None]
        group = np.arange(m.heads) // (m.heads // m.kv)
        s = np.einsum("qhd,khd->hqk", q, k[:, group]) / (1 if "no-root-head-dim" in wrong else np.sqrt(m.head_dim))
        o = np.einsum("hqk,khd->qhd", softmax(np.where(seen[None], s, -np.inf)), v[:, group])
        if "no-out-gate" not in wrong:
            o = o * (silu(gate) if "gate-silu" in wrong else sigmoid(gate))
        return self.project(i, "output", o.reshape(rows, -1))

    def convolved(self, i, x):
        m, wrong = self.m, self.wrong
        w = m.get(i, "ssm_conv1d.weight")
        if "conv-turned" in wrong:
            w = w[:, ::-1]
        before = np.zeros((3, x.shape[1])) if self.cache[i] is None or "tail-forgotten" in wrong else self.cache[i][0]
        all_rows = np.concatenate([before, x])
        late = 1 if "conv-late" in wrong else 0
        y = sum(np.roll(all_rows, late, axis=0)[j:j + x.shape[0]] * w[:, j] for j in range(4))
        return y if "no-conv-silu" in wrong else silu(y), all_rows[-3:]

    def delta(self, i, h):
        m, wrong, rows = self.m, self.wrong, h.shape[0]
        n = m.k_heads * m.dim
        y, tail = self.convolved(i, h @ m.get(i, "attn_qkv.weight").T)
        q, k = y[:, :n].reshape(rows, -1, m.dim), y[:, n:2 * n].reshape(rows, -1, m.dim)
        v = y[:, 2 * n:].reshape(rows, -1, m.dim)
        if "no-length" not in wrong:
            if "keys-alone" not in wrong:
                q = q / np.sqrt((q * q).sum(-1, keepdims=True) + 1e-6)
            k = k / np.sqrt((k * k).sum(-1, keepdims=True) + 1e-6)
        q = q / (1 if "no-root-dim" in wrong else np.sqrt(m.dim))
        heads = np.arange(m.v_heads)
        of = heads // (m.v_heads // m.k_heads) if "grouped-heads" in wrong else heads % m.k_heads
        q, k = q[:, of], k[:, of]
        dt = h @ m.get(i, "ssm_alpha.weight").T + (0 if "no-dt-bias" in wrong else m.get(i, "ssm_dt.bias"))
        a = np.exp(m.get(i, "ssm_a") * np.log1p(np.exp(dt)))
        beta = sigmoid(h @ m.get(i, "ssm_beta.weight").T)
        a = np.ones_like(a) if "no-decay" in wrong else a
        beta = np.ones_like(beta) if "no-beta" in wrong else beta
        S = np.zeros((m.v_heads, m.dim, m.dim))
        if self.cache[i] is not None and "state-forgotten" not in wrong:
            S = self.cache[i][1]
        out = np.empty_like(v)
        for t in range(rows):
            old = S
            if "decay-late" not in wrong:
                S = S * a[t, :, None, None]
            told = 0 if "no-value-of-state" in wrong else np.einsum("hkv,hk->hv", S, k[t])
            u = beta[t, :, None] * v[t] - told if "beta-late" in wrong else beta[t, :, None] * (v[t] - told)
            S = S + k[t, :, :, None] * u[:, None, :]
            if "decay-late" in wrong:
                S = S * a[t, :, None, None]
            out[t] = np.einsum("hkv,hk->hv", old if "o-before-update" in wrong else S, q[t])
        self.cache[i] = (tail, S)
        z = (h @ m.get(i, "attn_gate.weight").T).reshape(rows, m.v_heads, m.dim)
        z = np.ones_like(z) if "no-z" in wrong else sigmoid(z) if "z-sigmoid" in wrong else silu(z)
        if "norm-after-z" in wrong:
            out = rms(out * z, m.eps, m.get(i, "ssm_norm.weight"))
        elif "no-o-norm" in wrong:
            out = out * z
        else:
            out = rms(out, m.eps, m.get(i, "ssm_norm.weight")) * z
        return out.reshape(rows, -1) @ m.get(i, "ssm_out.weight").T

    def shared(self, i, h):
        m = self.m
        g, u = h @ m.get(i, "ffn_gate_shexp.weight").T, h @ m.get(i, "ffn_up_shexp.weight").T
        y = gated(g, u, self.wrong) @ m.get(i, "ffn_down_shexp.weight").T
        by = sigmoid(h @ m.get(i, "ffn_gate_inp_shexp.weight").reshape(-1))[:, None]
        return y if "no-shared-gate" in self.wrong else y * by

    def layer(self, i, x, positions):
        m, wrong = self.m, self.wrong
        h = rms(x, m.eps, m.get(i, "attn_norm.weight"), wrong)
        a = x + (self.attention(i, h, positions) if m.get(i, "attn_q.weight") is not None else self.delta(i, h))
        h = rms(a, m.eps, m.get(i, "post_attention_norm.weight"), wrong)
        if m.get(i, "ffn_gate_inp.weight") is not None:
            return a + self.experts(i, h) + self.shared(i, h)
        g, u = h @ m.get(i, "ffn_gate.weight").T, h @ m.get(i, "ffn_up.weight").T
        if "up-first" in wrong:
            g, u = u, g
        return a + gated(g, u, wrong) @ m.get(i, "ffn_down.weight").T
