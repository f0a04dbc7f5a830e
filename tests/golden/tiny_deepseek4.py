# SPDX-License-Identifier: MIT
"""Tiny models of deepseek4: the table of what each one turns on, how it is built as transformers' class with weights
from a seeded generator, and how it is written as a GGUF file with the keys and tensor names of llama.cpp's converter.
"""

from dataclasses import dataclass

import gguf
import numpy as np
import torch
from transformers import DeepseekV4Config, DeepseekV4ForCausalLM

import tiny_models


@dataclass(frozen=True)
class Tiny:
    name: str
    seed: int
    ratios: tuple = (0, 4, 128)
    vocab: int = 8
    hidden: int = 8
    heads: int = 4
    head_dim: int = 8
    rotated: int = 4
    q_rank: int = 8
    groups: int = 2
    out_rank: int = 4
    near: int = 8             # positions of the window
    streams: int = 2
    rounds: int = 5
    floor: float = 1e-3
    index_heads: int = 6
    index_dim: int = 8
    index_k: int = 5
    experts: int = 4
    top_k: int = 2
    moe: int = 4
    hashed: int = 1
    factor: float = 1.5
    limit: float = 1.2
    eps: float = 1e-6
    theta: float = 1e3
    theta_far: float = 1e4
    yarn: tuple = ()          # factor, context
    listed: bool = True       # limits of each layer, else one for all
    nextn: bool = False       # the file has a layer that guesses ahead; make_nextn.py puts it there
    window: int = 128         # at which the cases have their edges
    prompts: tuple = (1, 256)

    @property
    def layers(self):
        return len(self.ratios)

    arch = "deepseek4"
    canvas = 0
    diffusion = False
    twin = False


ALL = [
    Tiny("deepseek4-base", 371, yarn=(4.0, 64), nextn=True),
    Tiny("deepseek4-deep", 372, ratios=(4, 4), heads=6, rotated=2, groups=3, out_rank=3, near=5, streams=3, rounds=20,
         floor=1e-6, index_heads=3, index_k=3, experts=6, top_k=3, moe=3, hashed=1, factor=0.7, limit=0.6, eps=0.02,
         listed=False, window=24, prompts=(1, 41)),
]


def config(t):
    kinds = {0: "sliding_attention", 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}
    scaling = {"rope_type": "default"}
    if t.yarn:
        scaling = {"rope_type": "yarn", "factor": t.yarn[0], "original_max_position_embeddings": t.yarn[1],
                   "beta_fast": 32.0, "beta_slow": 1.0}
    c = DeepseekV4Config(
        vocab_size=t.vocab, hidden_size=t.hidden, num_hidden_layers=t.layers, num_attention_heads=t.heads,
        head_dim=t.head_dim, q_lora_rank=t.q_rank, moe_intermediate_size=t.moe, num_experts_per_tok=t.top_k,
        n_routed_experts=t.experts, routed_scaling_factor=t.factor, max_position_embeddings=512,
        rope_theta=t.theta, compress_rope_theta=t.theta_far, rope_parameters=scaling,
        partial_rotary_factor=t.rotated / t.head_dim, layer_types=[kinds[r] for r in t.ratios],
        mlp_layer_types=["hash_moe"] * t.hashed + ["moe"] * (t.layers - t.hashed), hc_mult=t.streams,
        hc_sinkhorn_iters=t.rounds, hc_eps=t.floor, swiglu_limit=t.limit, sliding_window=t.near, o_groups=t.groups,
        o_lora_rank=t.out_rank, index_n_heads=t.index_heads, index_head_dim=t.index_dim, index_topk=t.index_k,
        rms_norm_eps=t.eps, tie_word_embeddings=False)
    c._experts_implementation = "eager"
    c._attn_implementation = "eager"
    return c


def draw_weights(draw, parameters):
    for name, x in parameters:
        if name.endswith("norm.weight"):
            x.copy_(draw.uniform(x, 0.4, 1.6))
        elif name.endswith("embed_tokens.weight"):
            x.copy_(draw.normal(x, 1.0))
        elif name.endswith("base"):
            x.copy_(draw.normal(x, 0.7))
        elif name.endswith("scale"):
            x.copy_(draw.uniform(x, 0.4, 1.6))
        elif name.endswith("sinks"):
            x.copy_(draw.normal(x, 1.0))
        elif name.endswith("position_bias"):
            x.copy_(draw.normal(x, 1.0))
        elif name.endswith("fn"):
            x.copy_(draw.normal(x, 1.5 / x.shape[-1] ** 0.5))
        elif "down_proj" in name:
            x.copy_(draw.normal(x, 2.0 / x.shape[-1] ** 0.5))
        else:
            x.copy_(draw.normal(x, 1.4 / x.shape[-1] ** 0.5))


@torch.no_grad()
def build(t, seed):
    model = DeepseekV4ForCausalLM(config(t)).float().eval()
    draw = tiny_models.Draw(seed)
    draw_weights(draw, model.named_parameters())
    for layer in model.model.layers:
        if layer.mlp.is_hash:
            table = torch.stack([torch.randperm(t.experts, generator=draw.g)[:t.top_k] for _ in range(t.vocab)])
            layer.mlp.gate.tid2eid.copy_(table)
        else:
            bias = layer.mlp.gate.e_score_correction_bias
            bias.copy_(draw.normal(bias, 0.5))
    norm = model.model.norm.weight
    norm.copy_(draw.uniform(norm, 0.6, 1.4) * 5.0 / t.hidden ** 0.5)
    return model


def add_counts(w, t, more=0):
    """more: layers behind those of the model."""
    k = t.arch + "."
    w.add_name(t.name)
    for key, n in (("block_count", t.layers + more), ("context_length", 512), ("embedding_length", t.hidden),
                   ("attention.head_count", t.heads), ("attention.head_count_kv", 1),
                   ("attention.key_length", t.head_dim), ("attention.value_length", t.head_dim),
                   ("attention.q_lora_rank", t.q_rank), ("attention.sliding_window", t.near),
                   ("attention.output_group_count", t.groups), ("attention.output_lora_rank", t.out_rank),
                   ("attention.indexer.head_count", t.index_heads), ("attention.indexer.key_length", t.index_dim),
                   ("attention.indexer.top_k", t.index_k), ("rope.dimension_count", t.rotated),
                   ("hyper_connection.count", t.streams), ("hyper_connection.sinkhorn_iterations", t.rounds),
                   ("expert_count", t.experts), ("expert_used_count", t.top_k), ("expert_shared_count", 1),
                   ("expert_feed_forward_length", t.moe), ("expert_gating_func", 4)):
        w.add_uint32(k + key, n)


def add_numbers(w, t, ratios, n_limits):
    """ratios: of each layer, and those behind the model's; n_limits: layers with a limit of their own."""
    k = t.arch + "."
    w.add_bool(k + "expert_weights_norm", True)
    for key, x in (("attention.layer_norm_rms_epsilon", t.eps), ("hyper_connection.epsilon", t.floor),
                   ("expert_weights_scale", t.factor), ("rope.freq_base", t.theta),
                   ("attention.compress_rope_freq_base", t.theta_far)):
        w.add_float32(k + key, x)
    w.add_array(k + "attention.compress_ratios", ratios)
    if t.listed:
        for part in ("swiglu_clamp_exp", "swiglu_clamp_shexp"):
            w.add_array(k + part, [t.limit] * n_limits)
    else:
        w.add_float32(k + "swiglu_clamp_exp", t.limit)
    if t.yarn:
        w.add_string(k + "rope.scaling.type", "yarn")
        w.add_float32(k + "rope.scaling.factor", t.yarn[0])
        w.add_uint32(k + "rope.scaling.original_context_length", t.yarn[1])


def add_keys(w, t):
    more = 1 if t.nextn else 0
    add_counts(w, t, more)
    w.add_uint32(t.arch + ".hash_layer_count", t.hashed)
    if t.nextn:
        w.add_uint32(t.arch + ".nextn_predict_layers", more)
    add_numbers(w, t, list(t.ratios) + [0] * more, t.layers + more)


def pressed(prefix, c):
    return {f"{prefix}_kv.weight": c.kv_proj.weight, f"{prefix}_gate.weight": c.gate_proj.weight,
            f"{prefix}_ape.weight": c.position_bias, f"{prefix}_norm.weight": c.kv_norm.weight}


def layer_tensors(layer):
    a, m = layer.self_attn, layer.mlp
    out = {"attn_norm.weight": layer.input_layernorm.weight, "ffn_norm.weight": layer.post_attention_layernorm.weight,
           "attn_q_a.weight": a.q_a_proj.weight, "attn_q_a_norm.weight": a.q_a_norm.weight,
           "attn_q_b.weight": a.q_b_proj.weight, "attn_kv.weight": a.kv_proj.weight,
           "attn_kv_a_norm.weight": a.kv_norm.weight, "attn_sinks.weight": a.sinks,
           "attn_output_a.weight": a.o_a_proj.weight, "attn_output_b.weight": a.o_b_proj.weight,
           "ffn_gate_inp.weight": m.gate.weight, "ffn_down_exps.weight": m.experts.down_proj}
    for name, hc in (("attn", layer.attn_hc), ("ffn", layer.ffn_hc)):
        out.update({f"hc_{name}_{x}.weight": getattr(hc, x) for x in ("fn", "base", "scale")})
    if a.compressor is not None:
        out.update(pressed("attn_compressor", a.compressor))
        if hasattr(a.compressor, "indexer"):
            i = a.compressor.indexer
            out.update(pressed("indexer_compressor", i))
            out.update({"indexer.attn_q_b.weight": i.q_b_proj.weight, "indexer.proj.weight": i.scorer.weights_proj.weight})
    if m.is_hash:
        out["ffn_gate_tid2eid.weight"] = m.gate.tid2eid
    else:
        out["exp_probs_b.bias"] = m.gate.e_score_correction_bias
    out["ffn_gate_exps.weight"], out["ffn_up_exps.weight"] = m.experts.gate_up_proj.chunk(2, dim=1)
    out.update({f"ffn_{x}_shexp.weight": getattr(m.shared_experts, f"{x}_proj").weight for x in ("gate", "up", "down")})
    return out


def write(path, t, model, nextn=None):
    """nextn: a layer and other tensors behind those of the model."""
    w = gguf.GGUFWriter(path, t.arch)
    add_keys(w, t)

    def put(name, x):
        kind = np.int32 if "tid2eid" in name else np.float32
        w.add_tensor(name, np.ascontiguousarray(x.detach().numpy(), dtype=kind))

    put("token_embd.weight", model.model.embed_tokens.weight)
    put("output_norm.weight", model.model.norm.weight)
    put("output.weight", model.lm_head.weight)
    for x in ("fn", "base", "scale"):
        put(f"output_hc_{x}.weight", getattr(model.model.hc_head, f"hc_{x}"))
    for i, layer in enumerate(model.model.layers):
        for name, x in layer_tensors(layer).items():
            put(f"blk.{i}.{name}", x)
    if nextn is not None:
        for name, x in {**layer_tensors(nextn[0]), **nextn[1]}.items():
            put(f"blk.{t.layers}.{name}", x)
    elif t.nextn:
        put(f"blk.{t.layers}.nextn.eh_proj.weight", torch.ones(2, 2))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
