# SPDX-License-Identifier: MIT
"""The second, independent forward pass of check_llama.py for the models of tiny_deepseek4.py, and the mistakes that their
goldens must see. check_models.py runs it. A sequence keeps all that its positions have made, and every row looks up what
it may see."""

import numpy as np

import check_llama
from check_llama import rms, sigmoid, softmax

MISTAKES = """no-q-norm no-head-norm no-kv-norm no-root-head-dim halves-as-pairs rotate-first no-inverse one-theta no-yarn
no-sinks window-less window-more far-early far-late far-position far-no-ape ape-late far-no-norm no-overlap overlap-swapped
no-index index-no-rope index-no-relu index-no-weights index-more groups-mixed no-choice-bias bias-in-weights no-renorm
no-factor sigmoid-scores no-table no-limit limit-gate-only no-shared take-all give-one turn-over one-round no-floor
no-stream-norm streams-alone no-head-mix""".split()


class Model(check_llama.Model):
    def __init__(self, path):
        super().__init__(path)
        key = self.key
        self.layers -= key("nextn_predict_layers", 0)
        self.rotated, self.theta_far = key("rope.dimension_count"), key("attention.compress_rope_freq_base")
        self.groups, self.streams = key("attention.output_group_count"), key("hyper_connection.count")
        self.rounds, self.floor = key("hyper_connection.sinkhorn_iterations"), key("hyper_connection.epsilon")
        self.ratios, self.index_k = key("attention.compress_ratios"), key("attention.indexer.top_k")
        self.index_heads, self.index_dim = key("attention.indexer.head_count"), key("attention.indexer.key_length")
        self.hashed, self.factor_experts = key("hash_layer_count", 0), key("expert_weights_scale")
        limit = key("swiglu_clamp_exp")
        self.limits = limit if isinstance(limit, list) else [limit] * self.layers

    def frequencies(self, wrong):
        """Of layers without and with far rows."""
        n, i = self.rotated, np.arange(self.rotated // 2)
        near = self.theta ** (-2 * i / n)
        far = (self.theta if "one-theta" in wrong else self.theta_far) ** (-2 * i / n)
        if self.scaling == "yarn" and "no-yarn" not in wrong:
            def pair(turns):
                return n * np.log(self.context / (turns * 2 * np.pi)) / (2 * np.log(self.theta_far))

            low, high = max(np.floor(pair(32)), 0), min(np.ceil(pair(1)), n - 1)
            slow = np.clip((i - low) / max(high - low, 0.001), 0, 1)
            far = far * (1 - slow) + far / self.factor * slow
        return (near, far), 1.0


class Run(check_llama.Run):
    least_gap = np.inf  # between the last row that was chosen and the next, of all runs without a mistake

    def __init__(self, m, wrong):
        super().__init__(m, wrong)
        self.kept = [{} for _ in range(m.layers)]  # of each layer, by name: an array over positions

    def keep(self, i, name, x):
        old = self.kept[i].get(name)
        self.kept[i][name] = x if old is None else np.concatenate([old, x])
        return self.kept[i][name]

    def turn(self, x, positions, i, way=1):
        """x [positions, ..., n]: its last numbers rotate."""
        freq, n = self.freq[self.m.ratios[i] > 0], self.m.rotated
        angle = (np.asarray(positions)[:, None] * freq).reshape(len(positions), *[1] * (x.ndim - 2), n // 2)
        c, s, out = np.cos(angle), way * np.sin(angle), x.copy()
        end = x[..., :n] if "rotate-first" in self.wrong else x[..., -n:]
        halves = "halves-as-pairs" in self.wrong
        a, b = (end[..., :n // 2], end[..., n // 2:]) if halves else (end[..., 0::2], end[..., 1::2])
        end = np.concatenate([a * c - b * s, b * c + a * s], axis=-1) if halves else \
            np.stack([a * c - b * s, b * c + a * s], axis=-1).reshape(end.shape)
        if "rotate-first" in self.wrong:
            out[..., :n] = end
        else:
            out[..., -n:] = end
        return out

    def press(self, i, prefix, h, dim, ratio):
        """Rows of all blocks that have ended."""
        m, wrong = self.m, self.wrong
        values = self.keep(i, prefix + "v", h @ m.get(i, prefix + "_kv.weight").T)
        scores = self.keep(i, prefix + "s", h @ m.get(i, prefix + "_gate.weight").T)
        ape = m.get(i, prefix + "_ape.weight")
        rows = []
        for b in range(values.shape[0] // ratio):
            at = np.arange(b * ratio, (b + 1) * ratio)
            late = 1 if "ape-late" in wrong else 0
            s = scores + (0 if "far-no-ape" in wrong else ape[(np.arange(scores.shape[0]) + late) % ratio])
            if ratio != 4:
                v, s = values[at], s[at]
            else:
                first, second = slice(0, dim), slice(dim, 2 * dim)
                if "overlap-swapped" in wrong:
                    first, second = second, first
                v2, s2 = values[at][:, second], s[at][:, second]
                if b > 0 and "no-overlap" not in wrong:
                    v2, s2 = np.concatenate([values[at - 4][:, first], v2]), np.concatenate([s[at - 4][:, first], s2])
                v, s = v2, s2
            rows.append((softmax(s.T) * v.T).sum(-1))
        if not rows:
            return np.zeros((0, dim))
        y = np.array(rows)
        if "far-no-norm" not in wrong:
            y = rms(y, m.eps, m.get(i, prefix + "_norm.weight"))
        begins = np.arange(len(rows)) * ratio + (ratio - 1 if "far-position" in wrong else 0)
        return self.turn(y, begins, i)

    def chosen(self, i, h, low, positions, n_seen):
        """Of each row the far rows that it sees."""
        m, wrong = self.m, self.wrong
        keys = self.press(i, "indexer_compressor", h, m.index_dim, 4)
        q = (low @ m.get(i, "indexer.attn_q_b.weight").T).reshape(len(positions), m.index_heads, m.index_dim)
        if "index-no-rope" not in wrong:
            q = self.turn(q, positions, i)
        weights = h @ m.get(i, "indexer.proj.weight").T
        k = m.index_k + (1 if "index-more" in wrong else 0)
        out = []
        for r, n in enumerate(n_seen):
            if n <= k or "no-index" in wrong:
                out.append(np.arange(n))
                continue
            s = q[r] @ keys[:n].T
            s = s if "index-no-relu" in wrong else np.maximum(s, 0)
            s = s.sum(0) if "index-no-weights" in wrong else weights[r] @ s
            order = np.argsort(-s, kind="stable")
            if not wrong:
                Run.least_gap = min(Run.least_gap, s[order[k - 1]] - s[order[k]])
            out.append(np.sort(order[:k]))
        return out

    def attention(self, i, h, positions):
        m, wrong, rows, ratio = self.m, self.wrong, h.shape[0], self.m.ratios[i]
        low = h @ m.get(i, "attn_q_a.weight").T
        if "no-q-norm" not in wrong:
            low = rms(low, m.eps, m.get(i, "attn_q_a_norm.weight"))
        q = (low @ m.get(i, "attn_q_b.weight").T).reshape(rows, m.heads, m.head_dim)
        q = self.turn(q if "no-head-norm" in wrong else rms(q, m.eps, 1), positions, i)
        kv = h @ m.get(i, "attn_kv.weight").T
        kv = kv if "no-kv-norm" in wrong else rms(kv, m.eps, m.get(i, "attn_kv_a_norm.weight"))
        near = self.keep(i, "near", self.turn(kv, positions, i))
        window = m.window + ("window-more" in wrong) - ("window-less" in wrong)
        far, seen = np.zeros((0, m.head_dim)), [np.arange(0)] * rows
        if ratio:
            far = self.press(i, "attn_compressor", h, m.head_dim, ratio)
            shift = 1 if "far-early" in wrong else -ratio if "far-late" in wrong else 0
            n_seen = [min(max((p + 1 + shift) // ratio, 0), len(far)) for p in positions]
            seen = self.chosen(i, h, low, positions, n_seen) if ratio == 4 else [np.arange(n) for n in n_seen]
        out = np.empty_like(q)
        for r, p in enumerate(positions):
            k = np.concatenate([near[max(0, p + 1 - window):p + 1], far[seen[r]]])
            s = q[r] @ k.T / (1 if "no-root-head-dim" in wrong else m.head_dim ** 0.5)
            s = np.concatenate([s, m.get(i, "attn_sinks.weight")[:, None]], axis=1)
            if "no-sinks" in wrong:
                s[:, -1] = -np.inf
            out[r] = softmax(s)[:, :-1] @ k
        return self.join_heads(i, out, positions)

    def join_heads(self, i, out, positions):
        """What heads have found, turned back and multiplied by the two output weights."""
        m, wrong, rows = self.m, self.wrong, out.shape[0]
        if "no-inverse" not in wrong:
            out = self.turn(out, positions, i, -1)
        w = m.get(i, "attn_output_a.weight").reshape(m.groups, -1, m.heads // m.groups * m.head_dim)
        parts = out.reshape(rows, -1, m.groups, m.head_dim).swapaxes(1, 2).reshape(rows, m.groups, -1) \
            if "groups-mixed" in wrong else out.reshape(rows, m.groups, -1)
        return np.einsum("rgi,goi->rgo", parts, w).reshape(rows, -1) @ m.get(i, "attn_output_b.weight").T

    def gate(self, i, g, u):
        limit, wrong = self.m.limits[i], self.wrong
        if "no-limit" not in wrong:
            g = np.minimum(g, limit)
            u = u if "limit-gate-only" in wrong else np.clip(u, -limit, limit)
        return g * sigmoid(g) * u

    def experts(self, i, h, tokens):
        m, wrong = self.m, self.wrong
        logits = h @ m.get(i, "ffn_gate_inp.weight").T
        scores = sigmoid(logits) if "sigmoid-scores" in wrong else np.sqrt(np.log1p(np.exp(logits)))
        bias = m.get(i, "exp_probs_b.bias")
        rank = scores if bias is None or "no-choice-bias" in wrong else scores + bias
        if bias is not None and "bias-in-weights" in wrong:
            scores = rank
        table = m.get(i, "ffn_gate_tid2eid.weight")
        out = np.zeros_like(h)
        for r in range(h.shape[0]):
            top = np.argsort(-rank[r], kind="stable")[:m.top_k]
            if table is not None and "no-table" not in wrong:
                top = table[tokens[r]].astype(int)
            w = scores[r, top] / (1 if "no-renorm" in wrong else scores[r, top].sum())
            w = w * (1 if "no-factor" in wrong else m.factor_experts)
            for e, we in zip(top, w):
                g, u = m.get(i, "ffn_gate_exps.weight")[e] @ h[r], m.get(i, "ffn_up_exps.weight")[e] @ h[r]
                out[r] += we * (m.get(i, "ffn_down_exps.weight")[e] @ self.gate(i, g, u))
        if "no-shared" in wrong:
            return out
        g, u = h @ m.get(i, "ffn_gate_shexp.weight").T, h @ m.get(i, "ffn_up_shexp.weight").T
        return out + self.gate(i, g, u) @ m.get(i, "ffn_down_shexp.weight").T

    def mixes(self, x, name):
        """x [rows, streams, width]; the numbers that mix it."""
        m = self.m
        flat = x.reshape(x.shape[0], -1)
        if "no-stream-norm" not in self.wrong:
            flat = rms(flat, m.eps, 1)
        return flat @ m.t[name + "fn.weight"].T, m.t[name + "base.weight"], m.t[name + "scale.weight"]

    def shares(self, x, name):
        """What a sublayer takes of each stream, what it gives to each, and what streams keep of each other."""
        m, wrong, n = self.m, self.wrong, self.m.streams
        floor = 0 if "no-floor" in wrong else m.floor
        y, base, scale = self.mixes(x, name)
        take = sigmoid(y[:, :n] * scale[0] + base[:n]) + floor
        give = (1 if "give-one" in wrong else 2) * sigmoid(y[:, n:2 * n] * scale[1] + base[n:2 * n])
        turn = softmax((y[:, 2 * n:] * scale[2] + base[2 * n:]).reshape(-1, n, n)) + floor
        turn = turn / (turn.sum(1, keepdims=True) + floor)
        for _ in range(0 if "one-round" in wrong else m.rounds - 1):
            turn = turn / (turn.sum(2, keepdims=True) + floor)
            turn = turn / (turn.sum(1, keepdims=True) + floor)
        return take, give, turn

    def pass_through(self, x, take, give, turn, norm, sublayer):
        """x after a sublayer that takes, and gives, such shares."""
        made = sublayer(rms(np.einsum("rs,rsd->rd", take, x), self.m.eps, norm))
        return give[..., None] * made[:, None] + np.einsum(
            "rcs,rcd->rsd" if "turn-over" not in self.wrong else "rsc,rcd->rsd", turn, x)

    def around(self, x, name, norm, sublayer):
        """x after a sublayer."""
        take, give, turn = self.shares(x, name)
        if "take-all" in self.wrong:
            take = np.ones_like(take)
        if "streams-alone" in self.wrong:
            turn = np.broadcast_to(np.eye(self.m.streams), turn.shape)
        return self.pass_through(x, take, give, turn, norm, sublayer)

    def encode(self, tokens):
        m = self.m
        positions = range(self.length, self.length + len(tokens))
        x = np.repeat(m.t["token_embd.weight"][tokens][:, None], m.streams, axis=1)
        stream = [x]
        for i in range(m.layers):
            x = self.around(x, f"blk.{i}.hc_attn_", m.get(i, "attn_norm.weight"),
                            lambda h, i=i: self.attention(i, h, positions))
            x = self.around(x, f"blk.{i}.hc_ffn_", m.get(i, "ffn_norm.weight"),
                            lambda h, i=i: self.experts(i, h, tokens))
            stream.append(x)
        self.length += len(tokens)
        y, base, scale = self.mixes(x, "output_hc_")
        take = sigmoid(y * scale[0] + base) + m.floor
        last = x.mean(1) if "no-head-mix" in self.wrong else np.einsum("rs,rsd->rd", take, x)
        return rms(last, m.eps, m.t["output_norm.weight"]) @ m.t["output.weight"].T, np.stack(stream)
