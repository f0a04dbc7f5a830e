# SPDX-License-Identifier: MIT
"""The second, independent forward pass of check_deepseek4.py for the models of tiny_deepseek41.py, and the mistakes that
their goldens must see. check_models.py runs it."""

import numpy as np

import check_deepseek4
from check_llama import rms, sigmoid, softmax

MISTAKES = """no-q-norm head-norm no-kv-norm no-root-head-dim one-theta no-yarn no-inverse no-sinks window-more far-early
far-late far-position far-no-gate far-no-norm far-of-first own-far-alone no-index index-no-rope index-no-relu
index-no-weights index-more index-of-rotated index-no-norm index-other-norm choice-of-first no-blocks last-block-free
blocks-less take-own take-first-all end-own carry-late no-choice-bias bias-in-weights no-renorm no-factor no-limit no-shared
give-one turn-over one-round no-floor no-stream-norm no-memory memory-late no-map no-pad one-multiplier heads-swapped
sum-for-xor no-offset shorter memory-no-norm no-root no-sign key-of-first value-is-key""".split()


class Model(check_deepseek4.Model):
    def __init__(self, path):
        super().__init__(path)
        key = self.key
        self.hashed = 0
        self.one_table = key("ple.layers") is not None
        later = ("ple.layers", "ple.ngram_size", "ple.heads_per_ngram", "ple.layer_multipliers", "ple.head_vocab_sizes",
                 "ple.head_offsets")
        first = ("engram.layer_ids", "engram.max_ngram_size", "engram.head_count", "engram.multipliers", "engram.primes",
                 "engram.offsets")
        (self.engrams, self.grams, self.engram_heads, multipliers, primes,
         offsets) = (key(x) for x in (later if self.one_table else first))
        n, per = len(self.engrams), (self.grams - 1) * self.engram_heads
        self.multipliers = np.array(multipliers, dtype=np.uint64).reshape(n, self.grams)
        self.primes, self.offsets = (np.array(x, dtype=np.uint64).reshape(n, per) for x in (primes, offsets))
        self.map = key("engram.token_map")
        self.pad = self.map[key("engram.pad_token_id")] if self.one_table else key("engram.pad_id")
        self.blocks = key("attention.indexer.candidate_source_layer"), key("attention.indexer.candidate_top_k_blocks"), \
            key("attention.indexer.candidate_block_size")


class Run(check_deepseek4.Run):
    least_gap = np.inf

    def __init__(self, m, wrong):
        super().__init__(m, wrong)
        self.tokens = []

    def gap(self, scores, k):
        s = np.sort(scores)[::-1]
        if not self.wrong and k < len(s) and np.isfinite(s[k - 1]):
            Run.least_gap = min(Run.least_gap, s[k - 1] - s[k])

    def far(self, i, h):
        """Far rows of a layer of its own, and the rows that they are chosen by."""
        m, wrong, ratio = self.m, self.wrong, self.m.ratios[i]
        values = self.keep(i, "v", h @ m.get(i, "attn_compressor_kv.weight").T)
        gate = m.get(i, "attn_compressor_gate.weight")
        n = values.shape[0] // ratio
        y = values[:n * ratio].reshape(n, ratio, m.head_dim)
        if ratio > 1:
            s = self.keep(i, "s", h @ gate.T)[:n * ratio].reshape(n, ratio, m.head_dim)
            y = (y * np.exp(s - s.max(1, keepdims=True)) /
                 np.exp(s - s.max(1, keepdims=True)).sum(1, keepdims=True)).sum(1) if "far-no-gate" not in wrong else y.mean(1)
        else:
            y = y[:, 0]
        if "far-no-norm" not in wrong:
            y = rms(y, m.eps, m.get(i, "attn_compressor_norm.weight"))
        begins = np.arange(n) * ratio + (ratio - 1 if "far-position" in wrong else 0)
        rotated = self.turn(y, begins, i)
        k = (rotated if "index-of-rotated" in wrong else y) @ m.get(i, "indexer.attn_k.weight").T
        if "index-no-norm" not in wrong:
            w = np.ones(m.index_dim) if "index-other-norm" in wrong else m.get(i, "indexer.k_norm.weight")
            k = rms(k, m.eps, w)
        return rotated, k if "index-no-rope" in wrong else self.turn(k, begins, i)

    def scores(self, i, h, low, positions):
        m, wrong = self.m, self.wrong
        q = (low @ m.get(i, "indexer.attn_q_b.weight").T).reshape(len(positions), m.index_heads, m.index_dim)
        q = q if "index-no-rope" in wrong else self.turn(q, positions, i)
        s = np.einsum("rhd,kd->rhk", q, self.keys)
        s = s if "index-no-relu" in wrong else np.maximum(s, 0)
        weights = np.ones((len(positions), m.index_heads)) if "index-no-weights" in wrong else h @ m.get(i, "indexer.proj.weight").T
        return np.einsum("rh,rhk->rk", weights, s)

    def choose(self, i, h, low, positions, n_seen):
        m, wrong = self.m, self.wrong
        scores, (source, n_blocks, size) = self.scores(i, h, low, positions), m.blocks
        k = m.index_k + (1 if "index-more" in wrong else 0)
        by_blocks = source is not None and i > source and "no-blocks" not in wrong
        if source == i:
            self.allowed = []
        out = []
        for r, n in enumerate(n_seen):
            s = scores[r, :n].copy()
            if source == i:
                best = np.array([s[b:b + size].max() for b in range(0, n, size)])
                if len(best) and "last-block-free" not in wrong:
                    best[-1] = np.inf
                few = n_blocks - (1 if "blocks-less" in wrong else 0)
                self.gap(best, few)
                kept = np.argsort(-best, kind="stable")[:few]
                self.allowed.append(np.isin(np.arange(n) // size, kept))
            if by_blocks:
                s[~self.allowed[r][:n]] = -np.inf
            if n <= k or "no-index" in wrong:
                out.append(np.arange(n))
                continue
            self.gap(s, k)
            order = np.argsort(-s, kind="stable")[:k]
            out.append(np.sort(order[np.isfinite(s[order])]))
        return out

    def attention(self, i, h, positions):
        m, wrong, rows, ratio = self.m, self.wrong, h.shape[0], self.m.ratios[i]
        low = h @ m.get(i, "attn_q_a.weight").T
        if "no-q-norm" not in wrong:
            low = rms(low, m.eps, m.get(i, "attn_q_a_norm.weight"))
        q = (low @ m.get(i, "attn_q_b.weight").T).reshape(rows, m.heads, m.head_dim)
        q = self.turn(rms(q, m.eps, 1) if "head-norm" in wrong else q, positions, i)
        kv = h @ m.get(i, "attn_kv.weight").T
        kv = kv if "no-kv-norm" in wrong else rms(kv, m.eps, m.get(i, "attn_kv_a_norm.weight"))
        near = self.keep(i, "near", self.turn(kv, positions, i))
        window = m.window + ("window-more" in wrong)
        far, seen = np.zeros((0, m.head_dim)), [np.arange(0)] * rows
        if ratio:
            makes = m.get(i, "attn_compressor_kv.weight") is not None
            if makes and not ("far-of-first" in wrong and self.kept_far is not None):
                self.kept_far, self.keys = self.far(i, h)
            shift = 1 if "far-early" in wrong else -ratio if "far-late" in wrong else 0
            n_seen = [min(max((p + 1 + shift) // ratio, 0), len(self.keys)) for p in positions]
            chooses = m.get(i, "indexer.attn_q_b.weight") is not None
            if chooses and not ("choice-of-first" in wrong and not makes):
                self.seen = self.choose(i, h, low, positions, n_seen)
            far, seen = self.kept_far, self.seen
            if "own-far-alone" in wrong and not makes:
                seen = [np.arange(0)] * rows
        out = np.empty_like(q)
        for r, p in enumerate(positions):
            k = np.concatenate([near[max(0, p + 1 - window):p + 1], far[seen[r][seen[r] < len(far)]]])
            s = q[r] @ k.T / (1 if "no-root-head-dim" in wrong else m.head_dim ** 0.5)
            s = np.concatenate([s, m.get(i, "attn_sinks.weight")[:, None]], axis=1)
            if "no-sinks" in wrong:
                s[:, -1] = -np.inf
            out[r] = softmax(s)[:, :-1] @ k
        return self.join_heads(i, out, positions)

    def around(self, x, name, norm, sublayer):
        """x after a sublayer, whose parts were taken by self.take; which is what comes next then."""
        own, give, turn = self.shares(x, name)
        take = own if "take-own" in self.wrong else self.take
        if "carry-late" in self.wrong:
            take, self.before = self.before, self.take
        x = self.pass_through(x, take, give, turn, norm, sublayer)
        self.take = own
        return x

    def rows_of(self, e, positions):
        """Rows of the table that each position reads."""
        m, wrong = self.m, self.wrong
        out = []
        for p in positions:
            x, rows = np.uint64(0), []
            for n in range(m.grams):
                pad = 0 if "no-pad" in wrong else m.pad
                t = pad if n > p else self.tokens[p - n] if "no-map" in wrong else m.map[self.tokens[p - n]]
                y = np.uint64(t) * m.multipliers[e][0 if "one-multiplier" in wrong else n]
                x = x + y if "sum-for-xor" in wrong else x ^ y
                for head in range(m.engram_heads if n else 0):
                    i = (n - 1) * m.engram_heads + head
                    i = m.primes.shape[1] - 1 - i if "heads-swapped" in wrong else i
                    rows.append(int(x % m.primes[e][i]) + (0 if "no-offset" in wrong else int(m.offsets[e][i])))
            out.append(rows)
        return np.array(out)

    def memory(self, i, x, positions):
        m, wrong, n = self.m, self.wrong, self.m.streams
        e = m.engrams.index(i)
        table = m.t["per_layer_token_embd.weight"] if m.one_table else m.get(i, "engram_embd.weight")
        found = table[self.rows_of(e, positions)]
        if "shorter" in wrong:
            found[:, -1] = 0
        kv = (found.reshape(len(x), -1) @ m.get(i, "engram_wkv.weight").T).reshape(len(x), n + 1, -1)
        key, value = kv[:, :n], kv[:, n]
        gate = m.get(i, "engram_gate.weight")
        w = gate if gate is not None else m.get(i, "engram_q.weight") * m.get(i, "engram_k.weight")
        if "key-of-first" in wrong:
            key = np.repeat(key[:, :1], n, axis=1)
        a, b = (x, key) if "memory-no-norm" in wrong else (rms(x, m.eps, 1), rms(key, m.eps, 1))
        s = (a * w * b).sum(-1) / m.width ** 0.5
        if "no-root" not in wrong:
            s = (1 if "no-sign" in wrong else np.sign(s)) * np.sqrt(np.maximum(np.abs(s), 1e-6))
        return x + sigmoid(s)[..., None] * (key if "value-is-key" in wrong else value[:, None])

    def encode(self, tokens):
        m, wrong = self.m, self.wrong
        positions = range(self.length, self.length + len(tokens))
        self.tokens.extend(tokens)
        self.kept_far = None
        x = np.repeat(m.t["token_embd.weight"][tokens][:, None], m.streams, axis=1)
        stream = [x]
        self.take = np.zeros((len(tokens), m.streams))
        self.take[:, slice(0, m.streams if "take-first-all" in wrong else 1)] = 1
        self.before = self.take
        for i in range(m.layers):
            late = "memory-late" in wrong
            if i - late in m.engrams and "no-memory" not in wrong:
                x = self.memory(i - late, x, positions)
            x = self.around(x, f"blk.{i}.hc_attn_", m.get(i, "attn_norm.weight"),
                            lambda h, i=i: self.attention(i, h, positions))
            x = self.around(x, f"blk.{i}.hc_ffn_", m.get(i, "ffn_norm.weight"),
                            lambda h, i=i: self.experts(i, h, tokens))
            stream.append(x)
        self.length += len(tokens)
        take = np.full_like(self.take, 1 / m.streams) if "end-own" in wrong else self.take
        return rms(np.einsum("rs,rsd->rd", take, x), m.eps, m.t["output_norm.weight"]) @ m.t["output.weight"].T, np.stack(stream)
