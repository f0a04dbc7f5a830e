# SPDX-License-Identifier: MIT
"""Tiny models whose experts stand beside an MLP that every row takes, glm4moe and deepseek2: the table of what each one
turns on, how it is built as transformers' class with weights from a seeded generator, and how it is written as a GGUF
file with the keys and tensor names of llama.cpp's converter.

deepseek2: of a layer's matrix of keys and values, files have two for each head, that of keys turned around.
"""

from dataclasses import dataclass

import torch
from transformers import (DeepseekV2Config, DeepseekV2ForCausalLM, DeepseekV3Config, DeepseekV3ForCausalLM,
                          Glm4MoeConfig, Glm4MoeForCausalLM, Glm4MoeLiteConfig, Glm4MoeLiteForCausalLM)

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
    q_rank: int = 0           # 0: one matrix of queries
    kv_rank: int = 24
    still: int = 16           # numbers of a head's query and key that do not rotate
    value: int = 8
    experts: int = 6
    top_k: int = 2
    moe: int = 8
    shared: int = 1
    groups: tuple = (1, 1)    # of experts, and how many are used
    softmax: bool = False
    renorm: bool = True
    factor: float = 1.0
    qk_norm: bool = False
    yarn: tuple = ()          # factor, context, mscale
    nextn: bool = False       # the file has a layer that guesses ahead, which is left out
    keys: bool = True         # keys that have a default are there
    eps: float = 1e-5
    theta: float = 1e4
    prompts: tuple = (1, 9, 17)

    window = 0
    canvas = 0
    diffusion = False
    twin = False


ALL = [
    Tiny("glm4moe-base", "glm4moe", 391, qk_norm=True, factor=2.5, nextn=True, groups=(3, 2), top_k=3),
    Tiny("deepseek2-base", "deepseek2", 392, heads=3, q_rank=8, groups=(4, 2), experts=8, top_k=3, factor=2.5,
         yarn=(4.0, 16, 1.0)),
    Tiny("deepseek2-lite", "deepseek2", 393, softmax=True, renorm=False, groups=(3, 2), shared=2, factor=1.7, keys=False,
         yarn=(16.0, 32, 0.707), still=8, value=16, prompts=(1, 9, 70)),
    Tiny("deepseek2-flash", "deepseek2", 394, q_rank=4, kv_rank=8, still=4, value=4, experts=4, moe=4, factor=1.8, nextn=True,
         prompts=(1, 9)),
]


def glm4moe(t, common):
    rope = {"rope_type": "default", "rope_theta": t.theta, "partial_rotary_factor": t.rotated / t.head_dim}
    return Glm4MoeForCausalLM, Glm4MoeConfig(
        num_key_value_heads=t.kv, head_dim=t.head_dim, attention_bias=True, use_qk_norm=t.qk_norm, rope_parameters=rope,
        first_k_dense_replace=t.dense_layers, **common)


def deepseek2(t, common):
    rope = {"rope_type": "default", "rope_theta": t.theta}
    if t.yarn:
        rope.update(rope_type="yarn", factor=t.yarn[0], original_max_position_embeddings=t.yarn[1], mscale=t.yarn[2],
                    mscale_all_dim=t.yarn[2], beta_fast=32.0, beta_slow=1.0)
    common |= dict(num_key_value_heads=t.heads, q_lora_rank=t.q_rank or None, kv_lora_rank=t.kv_rank, v_head_dim=t.value,
                   qk_rope_head_dim=t.rotated, qk_nope_head_dim=t.still, rope_parameters=rope)
    if not t.yarn:  # GLM-4.7-Flash
        return Glm4MoeLiteForCausalLM, Glm4MoeLiteConfig(**common)
    common["first_k_dense_replace"] = t.dense_layers
    if t.softmax:
        return DeepseekV2ForCausalLM, DeepseekV2Config(topk_method="group_limited_greedy", **common)
    return DeepseekV3ForCausalLM, DeepseekV3Config(**common)


def config(t):
    common = dict(
        vocab_size=t.vocab, hidden_size=t.hidden, intermediate_size=t.dense, num_hidden_layers=t.layers,
        num_attention_heads=t.heads, moe_intermediate_size=t.moe, n_routed_experts=t.experts, n_shared_experts=t.shared,
        num_experts_per_tok=t.top_k, n_group=t.groups[0], topk_group=t.groups[1], norm_topk_prob=t.renorm,
        routed_scaling_factor=t.factor, rms_norm_eps=t.eps, max_position_embeddings=512, tie_word_embeddings=False,
        bos_token_id=None, eos_token_id=None, pad_token_id=None)
    return glm4moe(t, common) if t.arch == "glm4moe" else deepseek2(t, common)


@torch.no_grad()
def build(t, seed):
    make, c = config(t)
    c._attn_implementation = "eager"
    c._experts_implementation = "eager"
    model, draw = make(c).float().eval(), tiny_models.Draw(seed)
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


def attention_keys(t):
    if t.arch == "glm4moe":
        return {"key_length": t.head_dim, "value_length": t.head_dim}
    out = {"kv_lora_rank": t.kv_rank, "key_length": t.kv_rank + t.rotated, "value_length": t.kv_rank,
           "key_length_mla": t.still + t.rotated, "value_length_mla": t.value}
    return out | ({"q_lora_rank": t.q_rank} if t.q_rank else {})


def add_keys(w, t):
    k = t.arch + "."
    w.add_name(t.name)
    numbers = {"block_count": t.layers + t.nextn, "context_length": 512, "embedding_length": t.hidden,
               "feed_forward_length": t.dense, "attention.head_count": t.heads,
               "attention.head_count_kv": t.kv if t.arch == "glm4moe" else 1, "rope.dimension_count": t.rotated,
               "expert_count": t.experts, "expert_used_count": t.top_k, "expert_feed_forward_length": t.moe,
               "expert_shared_count": t.shared, "expert_group_count": t.groups[0], "expert_group_used_count": t.groups[1],
               "leading_dense_block_count": t.dense_layers}
    numbers.update({"attention." + name: n for name, n in attention_keys(t).items()})
    if t.keys:
        numbers["expert_gating_func"] = 1 if t.softmax else 2
    if t.nextn:
        numbers["nextn_predict_layers"] = 1
    for name, n in numbers.items():
        w.add_uint32(k + name, n)
    if t.renorm:
        w.add_bool(k + "expert_weights_norm", True)
    w.add_float32(k + "expert_weights_scale", t.factor)
    w.add_float32(k + "attention.layer_norm_rms_epsilon", t.eps)
    w.add_float32(k + "rope.freq_base", t.theta)
    if t.yarn:
        w.add_string(k + "rope.scaling.type", "yarn")
        w.add_float32(k + "rope.scaling.factor", t.yarn[0])
        w.add_uint32(k + "rope.scaling.original_context_length", t.yarn[1])
        w.add_float32(k + "rope.scaling.yarn_log_multiplier", 0.1 * t.yarn[2])


def attention_tensors(a, t):
    if t.arch == "glm4moe":
        out = {f"attn_{x}.{part}": getattr(getattr(a, f"{x}_proj"), part) for x in "qkv" for part in ("weight", "bias")}
        out["attn_q_norm.weight"], out["attn_k_norm.weight"] = a.q_norm.weight, a.k_norm.weight
        return out
    keys, values = a.kv_b_proj.weight.view(t.heads, t.still + t.value, t.kv_rank).split([t.still, t.value], dim=1)
    out = {"attn_kv_a_mqa.weight": a.kv_a_proj_with_mqa.weight, "attn_kv_a_norm.weight": a.kv_a_layernorm.weight,
           "attn_k_b.weight": keys.transpose(1, 2), "attn_v_b.weight": values}
    if not t.q_rank:
        return out | {"attn_q.weight": a.q_proj.weight}
    return out | {"attn_q_a.weight": a.q_a_proj.weight, "attn_q_a_norm.weight": a.q_a_layernorm.weight,
                  "attn_q_b.weight": a.q_b_proj.weight}


def mlp_tensors(m, ending):
    return {f"ffn_{x}{ending}.weight": getattr(m, f"{x}_proj").weight for x in ("gate", "up", "down")}


def layer_tensors(layer, t):
    m = layer.mlp
    out = {"attn_norm.weight": layer.input_layernorm.weight, "attn_output.weight": layer.self_attn.o_proj.weight,
           ("post_attention_norm" if t.arch == "glm4moe" else "ffn_norm") + ".weight": layer.post_attention_layernorm.weight}
    out.update(attention_tensors(layer.self_attn, t))
    if not hasattr(m, "experts"):
        return out | mlp_tensors(m, "")
    out["ffn_gate_inp.weight"], out["ffn_down_exps.weight"] = m.gate.weight, m.experts.down_proj
    out["ffn_gate_exps.weight"], out["ffn_up_exps.weight"] = m.experts.gate_up_proj.chunk(2, dim=1)
    if not t.softmax:
        out["exp_probs_b.bias"] = m.gate.e_score_correction_bias
    return out | mlp_tensors(m.shared_experts, "_shexp")


def write(path, t, model):
    ends = [("token_embd.weight", model.model.embed_tokens.weight), ("output_norm.weight", model.model.norm.weight),
            ("output.weight", model.lm_head.weight)]
    left_out = [(f"blk.{t.layers}.nextn.enorm.weight", torch.ones(t.hidden))] if t.nextn else []
    tiny_models.write_file(path, t, add_keys, [*ends, *tiny_models.layers_of(t, model, layer_tensors), *left_out])
