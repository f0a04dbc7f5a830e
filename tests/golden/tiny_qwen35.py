# SPDX-License-Identifier: MIT
"""Tiny models of qwen35 and qwen35moe: the table of what each one turns on, how it is built as transformers' class with
weights from a seeded generator, and how it is written as a GGUF file with the keys and tensor names of llama.cpp's
converter.

In files value heads lie in another order than in transformers' classes (head h reads the key head h mod n), norms are
factors, and ssm_a is what the decay is multiplied by.
"""

from dataclasses import dataclass

import numpy as np
import torch
from transformers import Qwen3_5ForCausalLM, Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig, Qwen3_5TextConfig

import tiny_models


@dataclass(frozen=True)
class Tiny:
    name: str
    seed: int
    arch: str = "qwen35"
    pattern: str = "dda"      # of the layers: d has the delta rule, a attention
    listed: bool = False      # the file says which layers have which, else how often one has attention
    vocab: int = 8
    hidden: int = 8
    dense: int = 8            # of the experts' kind: the MLP beside them
    experts: int = 0
    top_k: int = 0
    moe: int = 8
    heads: int = 2
    kv: int = 2
    head_dim: int = 8
    rotated: int = 4
    k_heads: int = 2
    v_heads: int = 4
    dim: int = 8              # of heads of the delta rule
    eps: float = 1e-6
    theta: float = 1e4
    tied: bool = False
    prompts: tuple = (1, 130)
    fused: bool = False       # ffn_gate_up_exps, else ffn_gate_exps + ffn_up_exps

    @property
    def layers(self):
        return len(self.pattern)

    window = 64               # no window: positions between two borders, at which the cases have their edges
    canvas = 0
    diffusion = False
    twin = False


ALL = [
    Tiny("qwen35-base", 361),
    Tiny("qwen35-moe", 362, arch="qwen35moe", pattern="dad", listed=True, experts=3, top_k=2, kv=1,
         rotated=2, k_heads=1, v_heads=3, eps=0.02, theta=1e3, tied=True, fused=True),
]


def config(t):
    kinds = ["full_attention" if x == "a" else "linear_attention" for x in t.pattern]
    common = dict(vocab_size=t.vocab, hidden_size=t.hidden, num_hidden_layers=t.layers, num_attention_heads=t.heads,
                  num_key_value_heads=t.kv, head_dim=t.head_dim, rms_norm_eps=t.eps, layer_types=kinds,
                  linear_key_head_dim=t.dim, linear_value_head_dim=t.dim, linear_num_key_heads=t.k_heads,
                  linear_num_value_heads=t.v_heads, max_position_embeddings=512, tie_word_embeddings=t.tied,
                  rope_parameters={"rope_type": "default", "rope_theta": t.theta,
                                   "partial_rotary_factor": t.rotated / t.head_dim, "mrope_section": [1, 1, 0]})
    if t.experts:
        c = Qwen3_5MoeTextConfig(num_experts=t.experts, num_experts_per_tok=t.top_k, moe_intermediate_size=t.moe,
                                 shared_expert_intermediate_size=t.dense, **common)
        c._experts_implementation = "eager"
    else:
        c = Qwen3_5TextConfig(intermediate_size=t.dense, **common)
    c._attn_implementation = "eager"
    return c


@torch.no_grad()
def build(t, seed):
    model = (Qwen3_5MoeForCausalLM if t.experts else Qwen3_5ForCausalLM)(config(t)).float().eval()
    draw = tiny_models.Draw(seed)
    model.model.embed_tokens.weight.copy_(draw.normal(model.model.embed_tokens.weight, 1.0))
    for layer in model.model.layers:
        for name, x in layer.named_parameters():
            if name.endswith("linear_attn.norm.weight"):
                x.copy_(draw.uniform(x, 0.4, 1.6))
            elif "norm" in name:
                x.copy_(draw.uniform(x, -0.6, 0.6))
            elif name.endswith("A_log"):  # from heads that forget within some positions to those that hardly do
                x.copy_(draw.uniform(x, -4.0, 0.0))
            elif name.endswith("dt_bias"):
                x.copy_(draw.normal(x, 1.0))
            elif name.endswith("conv1d.weight"):
                x.copy_(draw.normal(x, 0.7))
            elif name.endswith("down_proj") or name.endswith("down_proj.weight"):
                x.copy_(draw.normal(x, 0.7 / x.shape[-1] ** 0.5))
            else:
                x.copy_(draw.normal(x, 1.3 / x.shape[-1] ** 0.5))
    if not t.tied:
        model.lm_head.weight.copy_(draw.normal(model.lm_head.weight, 1.0))
    norm = model.model.norm.weight
    norm.copy_(draw.uniform(norm, 0.6, 1.4) * 5.0 / t.hidden ** 0.5 - 1.0)
    return model


def add_keys(w, t):
    k = t.arch + "."
    w.add_name(t.name)
    w.add_uint32(k + "block_count", t.layers)
    w.add_uint32(k + "context_length", 512)
    w.add_uint32(k + "embedding_length", t.hidden)
    if t.experts:
        w.add_uint32(k + "expert_count", t.experts)
        w.add_uint32(k + "expert_used_count", t.top_k)
        w.add_uint32(k + "expert_feed_forward_length", t.moe)
        w.add_uint32(k + "expert_shared_feed_forward_length", t.dense)
    else:
        w.add_uint32(k + "feed_forward_length", t.dense)
    w.add_uint32(k + "attention.head_count", t.heads)
    w.add_uint32(k + "attention.head_count_kv", t.kv)
    for part in ("key_length", "value_length"):
        w.add_uint32(k + f"attention.{part}", t.head_dim)
    w.add_float32(k + "attention.layer_norm_rms_epsilon", t.eps)
    w.add_float32(k + "rope.freq_base", t.theta)
    w.add_uint32(k + "rope.dimension_count", t.rotated)
    w.add_array(k + "rope.dimension_sections", [1, 1, 0, 0])
    if t.listed:
        w.add_array(k + "attention.recurrent_layers", [x == "d" for x in t.pattern])
    else:
        w.add_uint32(k + "full_attention_interval", len(t.pattern))
    for part, n in (("conv_kernel", 4), ("state_size", t.dim), ("group_count", t.k_heads),
                    ("time_step_rank", t.v_heads), ("inner_size", t.v_heads * t.dim)):
        w.add_uint32(k + f"ssm.{part}", n)


def tiled(x, t, size, axis=0):
    """Value heads, of `size` numbers each, in the order of files."""
    x = x.movedim(axis, 0)
    rest = x.shape[1:]
    return x.reshape(t.k_heads, t.v_heads // t.k_heads, size, *rest).transpose(0, 1).reshape(-1, *rest).movedim(0, axis)


def tiled_values(x, t):
    """The same of rows that follow those of queries and keys."""
    n = 2 * t.k_heads * t.dim
    return torch.cat([x[:n], tiled(x[n:], t, t.dim)])


def layer_tensors(layer, t):
    out = {"attn_norm.weight": layer.input_layernorm.weight + 1,
           "post_attention_norm.weight": layer.post_attention_layernorm.weight + 1}
    if hasattr(layer, "self_attn"):
        a = layer.self_attn
        for name, lin in (("q", a.q_proj), ("k", a.k_proj), ("v", a.v_proj), ("output", a.o_proj)):
            out[f"attn_{name}.weight"] = lin.weight
        out["attn_q_norm.weight"], out["attn_k_norm.weight"] = a.q_norm.weight + 1, a.k_norm.weight + 1
    else:
        a = layer.linear_attn
        out.update({"attn_qkv.weight": tiled_values(a.in_proj_qkv.weight, t),
                    "attn_gate.weight": tiled(a.in_proj_z.weight, t, t.dim),
                    "ssm_alpha.weight": tiled(a.in_proj_a.weight, t, 1),
                    "ssm_beta.weight": tiled(a.in_proj_b.weight, t, 1),
                    "ssm_conv1d.weight": tiled_values(a.conv1d.weight[:, 0], t),
                    "ssm_a": tiled(-torch.exp(a.A_log), t, 1), "ssm_dt.bias": tiled(a.dt_bias, t, 1),
                    "ssm_norm.weight": a.norm.weight, "ssm_out.weight": tiled(a.out_proj.weight, t, t.dim, axis=1)})
    m = layer.mlp
    if not t.experts:
        out.update({f"ffn_{x}.weight": getattr(m, f"{x}_proj").weight for x in ("gate", "up", "down")})
        return out
    out.update({f"ffn_{x}_shexp.weight": getattr(m.shared_expert, f"{x}_proj").weight for x in ("gate", "up", "down")})
    out["ffn_gate_inp.weight"], out["ffn_gate_inp_shexp.weight"] = m.gate.weight, m.shared_expert_gate.weight[0]
    out["ffn_down_exps.weight"] = m.experts.down_proj
    if t.fused:
        out["ffn_gate_up_exps.weight"] = m.experts.gate_up_proj
    else:
        out["ffn_gate_exps.weight"], out["ffn_up_exps.weight"] = m.experts.gate_up_proj.chunk(2, dim=1)
    return out


def write(path, t, model):
    ends = [("token_embd.weight", model.model.embed_tokens.weight), ("output_norm.weight", model.model.norm.weight + 1)]
    if not t.tied:
        ends.append(("output.weight", model.lm_head.weight))
    tiny_models.write_file(path, t, add_keys, [*ends, *tiny_models.layers_of(t, model, layer_tensors)])
