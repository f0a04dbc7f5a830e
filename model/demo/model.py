# SPDX-License-Identifier: MIT
"""The demo model in PyTorch: the text architecture of Gemma 4 (MoE) with DiffusionGemma's canvas
pass, made small; and its drafter, the dense form without a canvas, smaller still.

The law of this file: one set of weights, two passes. `encode` reads tokens causally and returns
hidden states and the K/V of every layer; `denoise` reads canvases without a causal mask over the
encoder's K/V and their own. They share every tensor but one scalar per layer. Masks are given by
the caller: a boolean tensor (True = visible) or a flex BlockMask.
"""

import math
from dataclasses import asdict, dataclass, field

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Config:
    vocab: int = 1024
    hidden: int = 256
    layers: tuple = (
        "s",
        "s",
        "f",
        "s",
        "s",
        "f",
    )  # s: sliding window, f: full attention with K = V
    heads: int = 4
    kv_heads: dict = field(default_factory=lambda: {"s": 2, "f": 1})
    head_dim: dict = field(default_factory=lambda: {"s": 64, "f": 128})
    window: int = 64
    experts: int = 8
    top_k: int = 2
    expert_size: int = 96
    dense_size: int = 288
    canvas: int = 32
    softcap: float = 30.0
    eps: float = 1e-6
    theta: dict = field(default_factory=lambda: {"s": 1e4, "f": 1e6})
    rotated: dict = field(default_factory=lambda: {"s": 1.0, "f": 0.25})

    def dict(self):
        return asdict(self)


def drafter(vocab):
    """The shape of the drafter: a dense `gemma4` of the same vocabulary, an eighth of the size."""
    return Config(
        vocab=vocab,
        hidden=128,
        layers=("s", "f", "s", "f"),
        kv_heads={"s": 1, "f": 1},
        head_dim={"s": 64, "f": 64},
        experts=0,
        top_k=0,
        expert_size=0,
        dense_size=256,
        canvas=0,
    )


def rms(x, weight, eps):
    y = x.float()
    y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps)
    if weight is not None:
        y = y * weight
    return y.to(x.dtype)


def gelu(x):
    return F.gelu(x, approximate="tanh")


def angles(cfg, kind, positions):
    """cos and sin for positions of any shape: [..., head_dim]. Frequencies past the rotated part
    are 0."""
    hd = cfg.head_dim[kind]
    n = int(cfg.rotated[kind] * hd / 2)
    inv = torch.zeros(hd // 2, device=positions.device)
    inv[:n] = cfg.theta[kind] ** (-2.0 * torch.arange(n, device=positions.device).float() / hd)
    a = positions.float()[..., None] * inv
    a = torch.cat((a, a), -1)
    return a.cos(), a.sin()


def rotate(x, cos, sin):
    """x [B, T, heads, hd], cos and sin [B, T, hd]; dimension i pairs with i + hd/2."""
    x = x.float()
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), -1)
    return x * cos[:, :, None] + turned * sin[:, :, None]


def attend(q, k, v, mask):
    """q [B, H, Tq, hd], k and v [B, KVH, Tk, hd]; the scale is 1."""
    if isinstance(mask, torch.Tensor):
        n = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(n, 1), v.repeat_interleave(n, 1)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=1.0)
    from torch.nn.attention.flex_attention import flex_attention

    return flex_attention(q, k, v, block_mask=mask, scale=1.0, enable_gqa=True)


def matrix(*shape):
    return nn.Parameter(torch.randn(*shape) * shape[-1] ** -0.5)


def ones(*shape, value=1.0):
    return nn.Parameter(torch.full(shape, float(value)))


class Layer(nn.Module):
    def __init__(self, cfg, kind):
        super().__init__()
        d, hd, kv = cfg.hidden, cfg.head_dim[kind], cfg.kv_heads[kind]
        self.cfg, self.kind = cfg, kind
        self.attn_norm, self.post_attn_norm = ones(d), ones(d, value=0.5)
        self.wq, self.wk, self.wo = (
            matrix(cfg.heads * hd, d),
            matrix(kv * hd, d),
            matrix(d, cfg.heads * hd),
        )
        self.wv = matrix(kv * hd, d) if kind == "s" else None
        self.q_norm, self.k_norm = ones(hd, value=hd**-0.5), ones(hd)
        self.ffn_norm, self.post_norm = ones(d), ones(d, value=0.5)
        self.gate, self.up = matrix(cfg.dense_size, d), matrix(cfg.dense_size, d)
        self.down = matrix(d, cfg.dense_size)
        self.enc_scalar, self.dec_scalar = ones(1), ones(1)
        self.post_norm_1 = self.pre_norm_2 = self.post_norm_2 = self.expert_scale = None
        self.router = self.router_scale = self.gate_up = self.exp_down = None
        if not cfg.experts:
            return
        self.post_norm_1, self.pre_norm_2, self.post_norm_2 = ones(d), ones(d), ones(d)
        self.router, self.router_scale = nn.Parameter(torch.randn(cfg.experts, d) * 0.5), ones(d)
        self.expert_scale = ones(cfg.experts)
        self.gate_up = matrix(cfg.experts, 2 * cfg.expert_size, d)
        self.exp_down = matrix(cfg.experts, d, cfg.expert_size)

    def norm(self, x, weight=None):
        return rms(x, weight, self.cfg.eps)

    def qkv(self, x, cos, sin):
        b, t, _ = x.shape
        hd = self.cfg.head_dim[self.kind]
        h = self.norm(x, self.attn_norm)
        q = self.norm(F.linear(h, self.wq).view(b, t, -1, hd), self.q_norm)
        raw = F.linear(h, self.wk).view(b, t, -1, hd)
        v = raw if self.wv is None else F.linear(h, self.wv).view(b, t, -1, hd)
        k = rotate(self.norm(raw, self.k_norm), cos, sin).to(v.dtype)
        q = rotate(q, cos, sin).to(v.dtype)
        return q.transpose(1, 2), k.transpose(1, 2), self.norm(v).transpose(1, 2)

    def route(self, a):
        """Weights of all experts [.., E], zero for those not chosen, and the probabilities."""
        r = self.norm(a).float() * self.router_scale * self.cfg.hidden**-0.5
        with torch.autocast(a.device.type, enabled=False):
            p = F.linear(r, self.router).softmax(-1)
        left, chosen = p, torch.zeros_like(p, dtype=torch.bool)
        for _ in range(self.cfg.top_k):
            hit = F.one_hot(left.argmax(-1), self.cfg.experts).bool()
            chosen, left = chosen | hit, left.masked_fill(hit, -1.0)
        w = p * chosen
        return w / w.sum(-1, keepdim=True) * self.expert_scale, p, chosen

    def feed_forward(self, a):
        e, f, d = self.cfg.experts, self.cfg.expert_size, self.cfg.hidden
        n = self.norm(a, self.ffn_norm)
        m = F.linear(gelu(F.linear(n, self.gate)) * F.linear(n, self.up), self.down)
        if not e:
            return self.norm(m, self.post_norm), 0.0
        w, p, chosen = self.route(a)
        u = self.norm(a, self.pre_norm_2)
        gt = F.linear(u, self.gate_up.reshape(e * 2 * f, d)).unflatten(-1, (e, 2 * f))
        act = gelu(gt[..., :f]) * gt[..., f:] * w[..., None].to(gt.dtype)
        y = F.linear(act.flatten(-2), self.exp_down.permute(1, 0, 2).reshape(d, e * f))
        balance = e * (chosen.float().mean((0, 1)) / self.cfg.top_k * p.mean((0, 1))).sum()
        return self.norm(
            self.norm(m, self.post_norm_1) + self.norm(y, self.post_norm_2), self.post_norm
        ), balance

    def forward(self, x, cos, sin, mask, past, scalar):
        q, k, v = self.qkv(x, cos, sin)
        keys, values = (
            (k, v) if past is None else (torch.cat((past[0], k), 2), torch.cat((past[1], v), 2))
        )
        o = attend(q, keys, values, mask).transpose(1, 2).flatten(-2)
        a = x + self.norm(F.linear(o, self.wo), self.post_attn_norm)
        f, balance = self.feed_forward(a)
        return (a + f) * scalar, (k, v), balance


class Demo(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.embed = nn.Parameter(torch.randn(cfg.vocab, cfg.hidden) * cfg.hidden**-0.5)
        self.blocks = nn.ModuleList(Layer(cfg, kind) for kind in cfg.layers)
        self.out_norm = ones(cfg.hidden)
        if not cfg.canvas:
            return
        self.sc_norm = ones(cfg.hidden)
        self.sc_gate, self.sc_up = (
            matrix(cfg.dense_size, cfg.hidden),
            matrix(cfg.dense_size, cfg.hidden),
        )
        self.sc_down = matrix(cfg.hidden, cfg.dense_size)

    def norm(self, x, weight=None):
        return rms(x, weight, self.cfg.eps)

    def look_up(self, tokens):
        return F.embedding(tokens, self.embed) * math.sqrt(self.cfg.hidden)

    def encode(self, tokens, positions, masks):
        """tokens, positions [B, T]; masks {'s':, 'f':}. Returns hidden states, K/V per layer,
        balance loss."""
        x, kvs, balance = self.look_up(tokens), [], 0.0
        turn = {kind: angles(self.cfg, kind, positions) for kind in set(self.cfg.layers)}
        for block in self.blocks:
            x, kv, b = block(x, *turn[block.kind], masks[block.kind], None, block.enc_scalar)
            kvs.append(kv)
            balance = balance + b
        return x, kvs, balance / len(self.blocks)

    def denoise(self, canvas, soft, positions, kvs, masks):
        """canvas, positions [B, N]; soft [B, N, hidden] or None at the first step."""
        e = self.look_up(canvas)
        if soft is not None:
            g = self.norm(soft, self.sc_norm)
            e = e + F.linear(
                gelu(F.linear(g, self.sc_gate)) * F.linear(g, self.sc_up), self.sc_down
            )
        x, balance = self.norm(e), 0.0
        turn = {kind: angles(self.cfg, kind, positions) for kind in set(self.cfg.layers)}
        for block, kv in zip(self.blocks, kvs):
            x, _, b = block(x, *turn[block.kind], masks[block.kind], kv, block.dec_scalar)
            balance = balance + b
        return x, balance / len(self.blocks)

    def head(self, x):
        z = F.linear(self.norm(x, self.out_norm), self.embed).float()
        return self.cfg.softcap * torch.tanh(z / self.cfg.softcap)

    def soften(self, logits, temperature):
        """The soft embedding of a step: expected embedding under softmax(logits / temperature)."""
        p = (logits / temperature).softmax(-1)
        return p.to(self.embed.dtype) @ self.embed * math.sqrt(self.cfg.hidden)


def causal_masks(cfg, n, device):
    """Boolean masks [n, n] of the encoder."""
    q = torch.arange(n, device=device)[:, None]
    k = torch.arange(n, device=device)[None]
    return {"f": k <= q, "s": (k <= q) & (q - k < cfg.window)}


def canvas_masks(cfg, lengths, n):
    """Boolean masks [B, 1, canvas, n + canvas]: encoder keys before each row's length, all keys
    of the canvas."""
    k = torch.arange(n, device=lengths.device)[None]
    full = k < lengths[:, None]
    near = full & (k >= lengths[:, None] - (cfg.window - 1))
    own = torch.ones(len(lengths), cfg.canvas, dtype=torch.bool, device=lengths.device)
    grow = lambda m: torch.cat((m, own), 1)[:, None, None].expand(-1, 1, cfg.canvas, -1)
    return {"f": grow(full), "s": grow(near)}


def entropy_bound_step(logits, temperature, bound, draw, renoise):
    """One step of the entropy-bound sampler on [B, C, V] logits. `draw` [B, C, V] Gumbel noise,
    `renoise` [B, C] ids.

    Returns argmax canvas, next canvas, entropies, accepted positions."""
    z = logits.float() / temperature
    logp = z.log_softmax(-1)
    entropy = -(logp.exp() * logp).sum(-1)
    drawn = (z + draw).argmax(-1)
    order = entropy.argsort(dim=-1, stable=True)
    ranked = entropy.gather(-1, order)
    ok = ranked.cumsum(-1) - ranked <= bound
    accepted = torch.zeros_like(ok).scatter(-1, order, ok)
    return logits.argmax(-1), torch.where(accepted, drawn, renoise), entropy, accepted


def gumbel(shape, device):
    return -torch.log(-torch.log(torch.rand(shape, device=device).clamp_(1e-9, 1 - 1e-7)))
