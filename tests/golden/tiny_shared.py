# SPDX-License-Identifier: MIT
"""Tiny models of glm4moe, whose experts stand beside an MLP that every row takes: the table of what each one turns on,
how it is built as transformers' class with weights from a seeded generator, and how it is written as a GGUF file with
the keys and tensor names of llama.cpp's converter."""

from dataclasses import dataclass

import torch
from transformers import Glm4MoeConfig, Glm4MoeForCausalLM

import tiny_models


@dataclass(frozen=True)
class Tiny:
    name: str
    arch: str
    seed: int
    layers: int = 2
    dense_layers: int = 1
    vocab: int = 24
    hidden: int = 8
    dense: int = 8
    heads: int = 2
    kv: int = 1
    head_dim: int = 16
    rotated: int = 8
    experts: int = 6
    top_k: int = 2
    moe: int = 8
    shared: int = 1
    groups: tuple = (1, 1)    # of experts, and how many are used
    factor: float = 1.0
    qk_norm: bool = False
    nextn: bool = False       # the file has a layer that guesses ahead, which is left out
    eps: float = 1e-5
    theta: float = 1e4
    prompts: tuple = (1, 9, 17)

    window = 0
    canvas = 0
    diffusion = False
    twin = False


ALL = [
    Tiny("glm4moe-base", "glm4moe", 391, qk_norm=True, factor=2.5, nextn=True, groups=(3, 2), top_k=3),
]


def config(t):
    return Glm4MoeConfig(
        vocab_size=t.vocab, hidden_size=t.hidden, intermediate_size=t.dense, num_hidden_layers=t.layers,
        num_attention_heads=t.heads, num_key_value_heads=t.kv, head_dim=t.head_dim, attention_bias=True, use_qk_norm=t.qk_norm,
        moe_intermediate_size=t.moe, n_routed_experts=t.experts, n_shared_experts=t.shared, num_experts_per_tok=t.top_k,
        n_group=t.groups[0], topk_group=t.groups[1], norm_topk_prob=True, routed_scaling_factor=t.factor,
        first_k_dense_replace=t.dense_layers, rms_norm_eps=t.eps, max_position_embeddings=512, tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": t.theta, "partial_rotary_factor": t.rotated / t.head_dim},
        bos_token_id=None, eos_token_id=None, pad_token_id=None)


@torch.no_grad()
def build(t, seed):
    c = config(t)
    c._attn_implementation = "eager"
    c._experts_implementation = "eager"
    model, draw = Glm4MoeForCausalLM(c).float().eval(), tiny_models.Draw(seed)
    model.model.embed_tokens.weight.copy_(draw.normal(model.model.embed_tokens.weight, 1.0))
    for layer in model.model.layers:
        for name, x in layer.named_parameters():
            if "norm" in name:
                x.copy_(draw.uniform(x, 0.4, 1.6))
            elif name.endswith("bias"):
                x.copy_(draw.normal(x, 0.5))
            else:
                x.copy_(draw.normal(x, 1.3 / x.shape[-1] ** 0.5))
        bias = getattr(getattr(layer.mlp, "gate", None), "e_score_correction_bias", None)
        if bias is not None:
            bias.copy_(draw.normal(bias, 0.3))
    model.lm_head.weight.copy_(draw.normal(model.lm_head.weight, 1.0))
    norm = model.model.norm.weight
    norm.copy_(draw.uniform(norm, 0.6, 1.4) * 5.0 / t.hidden ** 0.5)
    return model


def add_keys(w, t):
    k = t.arch + "."
    w.add_name(t.name)
    numbers = {"block_count": t.layers + t.nextn, "context_length": 512, "embedding_length": t.hidden,
               "feed_forward_length": t.dense, "attention.head_count": t.heads, "attention.head_count_kv": t.kv,
               "rope.dimension_count": t.rotated, "expert_count": t.experts, "expert_used_count": t.top_k,
               "expert_feed_forward_length": t.moe, "expert_shared_count": t.shared, "expert_group_count": t.groups[0],
               "expert_group_used_count": t.groups[1], "leading_dense_block_count": t.dense_layers,
               "attention.key_length": t.head_dim, "attention.value_length": t.head_dim, "expert_gating_func": 2}
    if t.nextn:
        numbers["nextn_predict_layers"] = 1
    for name, n in numbers.items():
        w.add_uint32(k + name, n)
    w.add_bool(k + "expert_weights_norm", True)
    w.add_float32(k + "expert_weights_scale", t.factor)
    w.add_float32(k + "attention.layer_norm_rms_epsilon", t.eps)
    w.add_float32(k + "rope.freq_base", t.theta)


def attention_tensors(a):
    out = {f"attn_{x}.{part}": getattr(getattr(a, f"{x}_proj"), part) for x in "qkv" for part in ("weight", "bias")}
    out["attn_q_norm.weight"], out["attn_k_norm.weight"] = a.q_norm.weight, a.k_norm.weight
    return out


def mlp_tensors(m, ending):
    return {f"ffn_{x}{ending}.weight": getattr(m, f"{x}_proj").weight for x in ("gate", "up", "down")}


def layer_tensors(layer, _):
    m = layer.mlp
    out = {"attn_norm.weight": layer.input_layernorm.weight, "attn_output.weight": layer.self_attn.o_proj.weight,
           "post_attention_norm.weight": layer.post_attention_layernorm.weight}
    out.update(attention_tensors(layer.self_attn))
    if not hasattr(m, "experts"):
        return out | mlp_tensors(m, "")
    out["ffn_gate_inp.weight"], out["ffn_down_exps.weight"] = m.gate.weight, m.experts.down_proj
    out["ffn_gate_exps.weight"], out["ffn_up_exps.weight"] = m.experts.gate_up_proj.chunk(2, dim=1)
    out["exp_probs_b.bias"] = m.gate.e_score_correction_bias
    return out | mlp_tensors(m.shared_experts, "_shexp")


def write(path, t, model):
    ends = [("token_embd.weight", model.model.embed_tokens.weight), ("output_norm.weight", model.model.norm.weight),
            ("output.weight", model.lm_head.weight)]
    left_out = [(f"blk.{t.layers}.nextn.enorm.weight", torch.ones(t.hidden))] if t.nextn else []
    tiny_models.write_file(path, t, add_keys, [*ends, *tiny_models.layers_of(t, model, layer_tensors), *left_out])
