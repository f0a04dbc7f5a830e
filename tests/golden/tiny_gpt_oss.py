# SPDX-License-Identifier: MIT
"""Tiny models of gpt-oss: the table of what each one turns on, how it is built as transformers' class with weights from
a seeded generator, and how it is written as a GGUF file with the keys and tensor names of llama.cpp's converter.

Gate and up lie in turns in transformers' tensors, and apart in files; matrices of experts are turned around.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from transformers import GptOssConfig, GptOssForCausalLM

import tiny_models

YARN = {"rope_type": "yarn", "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
        "original_max_position_embeddings": 60}


@dataclass(frozen=True)
class Tiny:
    name: str
    seed: int
    layers: int = 2
    vocab: int = 32
    hidden: int = 16
    experts: int = 3
    top_k: int = 2
    moe: int = 16
    heads: int = 4
    kv: int = 2
    head_dim: int = 16
    window: int = 128
    windows: str = "10"       # of the layers: 1 has one
    pattern: bool = False     # the file says which layers have a window
    eps: float = 1e-5
    theta: float = 1e4
    rope: dict = field(default_factory=dict)
    fused: bool = False       # ffn_gate_up_exps, else ffn_gate_exps + ffn_up_exps
    prompts: tuple = ()       # lengths; without any the usual ones

    arch = "gpt-oss"
    canvas = 0
    diffusion = False
    twin = False


ALL = [
    Tiny("gpt-oss-base", 351, rope=YARN, prompts=(1, 139)),
    Tiny("gpt-oss-pattern", 352, vocab=16, top_k=1, window=5, windows="01", pattern=True, theta=1e3,
         fused=True, eps=0.02),
]


def config(t):
    kinds = {"1": "sliding_attention", "0": "full_attention"}
    c = GptOssConfig(vocab_size=t.vocab, hidden_size=t.hidden, intermediate_size=t.moe, num_hidden_layers=t.layers,
                     num_attention_heads=t.heads, num_key_value_heads=t.kv, head_dim=t.head_dim, rms_norm_eps=t.eps,
                     num_local_experts=t.experts, num_experts_per_tok=t.top_k, sliding_window=t.window,
                     layer_types=[kinds[x] for x in t.windows], max_position_embeddings=512, tie_word_embeddings=False,
                     rope_parameters={"rope_type": "default", "rope_theta": t.theta, **t.rope},
                     bos_token_id=None, eos_token_id=None, pad_token_id=None)
    c._attn_implementation = "eager"
    c._experts_implementation = "eager"
    return c


@torch.no_grad()
def build(t, seed):
    model, draw = GptOssForCausalLM(config(t)).float().eval(), tiny_models.Draw(seed)
    model.model.embed_tokens.weight.copy_(draw.normal(model.model.embed_tokens.weight, 1.0))
    for layer in model.model.layers:
        for name, x in layer.named_parameters():
            if "norm" in name:
                x.copy_(draw.uniform(x, 0.4, 1.6))
            elif name.endswith("sinks"):
                x.copy_(draw.normal(x, 2.0))
            elif name.endswith("bias"):
                x.copy_(draw.normal(x, 0.5))
            elif name.endswith("router.weight"):
                x.copy_(draw.normal(x, 1.5 / t.hidden ** 0.5))
            elif name.endswith("gate_up_proj"):  # some gates and some ups lie beyond the limits
                x.copy_(draw.normal(x, 4.0 / t.hidden ** 0.5))
            elif name.endswith("down_proj"):
                x.copy_(draw.normal(x, 0.3 / t.moe ** 0.5))
            else:
                x.copy_(draw.normal(x, 1.3 / x.shape[-1] ** 0.5))
    model.lm_head.weight.copy_(draw.normal(model.lm_head.weight, 1.0))
    norm = model.model.norm.weight
    norm.copy_(draw.uniform(norm, 0.6, 1.4) * 5.0 / t.hidden ** 0.5)
    return model


def add_keys(w, t):
    k = t.arch + "."
    w.add_name(t.name)
    w.add_uint32(k + "block_count", t.layers)
    w.add_uint32(k + "context_length", 512)
    w.add_uint32(k + "embedding_length", t.hidden)
    w.add_uint32(k + "feed_forward_length", t.moe)
    w.add_uint32(k + "expert_feed_forward_length", t.moe)
    w.add_uint32(k + "expert_count", t.experts)
    w.add_uint32(k + "expert_used_count", t.top_k)
    w.add_uint32(k + "attention.head_count", t.heads)
    w.add_uint32(k + "attention.head_count_kv", t.kv)
    for part in ("key_length", "value_length"):
        w.add_uint32(k + f"attention.{part}", t.head_dim)
    w.add_uint32(k + "attention.sliding_window", t.window)
    if t.pattern:
        w.add_array(k + "attention.sliding_window_pattern", [x == "1" for x in t.windows])
    w.add_float32(k + "attention.layer_norm_rms_epsilon", t.eps)
    w.add_float32(k + "rope.freq_base", t.theta)
    if t.rope:
        w.add_string(k + "rope.scaling.type", "yarn")
        w.add_float32(k + "rope.scaling.factor", t.rope["factor"])
        w.add_uint32(k + "rope.scaling.original_context_length", t.rope["original_max_position_embeddings"])


def layer_tensors(layer, t):
    a, e, r = layer.self_attn, layer.mlp.experts, layer.mlp.router
    out = {"attn_norm.weight": layer.input_layernorm.weight,
           "post_attention_norm.weight": layer.post_attention_layernorm.weight, "attn_sinks.weight": a.sinks,
           "ffn_gate_inp.weight": r.weight, "ffn_gate_inp.bias": r.bias}
    for name, lin in (("q", a.q_proj), ("k", a.k_proj), ("v", a.v_proj), ("output", a.o_proj)):
        out[f"attn_{name}.weight"], out[f"attn_{name}.bias"] = lin.weight, lin.bias
    both, bias = e.gate_up_proj.transpose(1, 2), e.gate_up_proj_bias
    gate, up = both[:, ::2], both[:, 1::2]
    if t.fused:
        out["ffn_gate_up_exps.weight"] = torch.cat([gate, up], dim=1)
    else:
        out["ffn_gate_exps.weight"], out["ffn_up_exps.weight"] = gate, up
    out["ffn_gate_exps.bias"], out["ffn_up_exps.bias"] = bias[:, ::2], bias[:, 1::2]
    out["ffn_down_exps.weight"], out["ffn_down_exps.bias"] = e.down_proj.transpose(1, 2), e.down_proj_bias
    return out


def write(path, t, model):
    ends = [("token_embd.weight", model.model.embed_tokens.weight), ("output_norm.weight", model.model.norm.weight),
            ("output.weight", model.lm_head.weight)]
    tiny_models.write_file(path, t, add_keys, [*ends, *tiny_models.layers_of(t, model, layer_tensors)])
