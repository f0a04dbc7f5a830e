# SPDX-License-Identifier: MIT
"""Tiny models of architectures that are near to others: the table of what each one turns on, how it is built as
transformers' class with weights from a seeded generator, and how it is written as a GGUF file with the keys and tensor
names of llama.cpp's converter.

gemma3: files have 1 added to norms. mistral3: the two rows of a head that rotate together lie side by side; its scores
grow with the position from rope's original context on, which no case reaches.
"""

from dataclasses import dataclass

import gguf
import numpy as np
import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, Ministral3Config, Ministral3ForCausalLM

import tiny_models
from tiny_llama import side_by_side


@dataclass(frozen=True)
class Tiny:
    name: str
    arch: str
    seed: int
    layers: int = 2
    vocab: int = 24
    hidden: int = 16
    dense: int = 24
    heads: int = 4
    kv: int = 2
    head_dim: int = 16
    window: int = 0
    prompts: tuple = (1, 9, 17)
    eps: float = 1e-5
    theta: float = 1e4
    factor: float = 1.0

    canvas = 0
    top_k = 0
    diffusion = False
    twin = False


ALL = [
    Tiny("gemma3-base", "gemma3", 381, layers=6, hidden=8, dense=8, heads=2, window=6, prompts=(1, 7, 15), theta=1e6, factor=4.0,
         eps=1e-4),
    Tiny("mistral3-base", "mistral3", 382, hidden=8, dense=12, theta=1e6, factor=16.0),
]
MISTRAL_CONTEXT = 48


def gemma3(t):
    types = ["sliding_attention" if (i + 1) % 6 else "full_attention" for i in range(t.layers)]
    rope = {"full_attention": {"rope_type": "linear", "factor": t.factor, "rope_theta": t.theta},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}
    return Gemma3ForCausalLM, Gemma3TextConfig(
        vocab_size=t.vocab, hidden_size=t.hidden, intermediate_size=t.dense, num_hidden_layers=t.layers,
        num_attention_heads=t.heads, num_key_value_heads=t.kv, head_dim=t.head_dim, query_pre_attn_scalar=t.head_dim,
        rms_norm_eps=t.eps, sliding_window=t.window, layer_types=types, rope_parameters=rope, tie_word_embeddings=True,
        max_position_embeddings=512, bos_token_id=None, eos_token_id=None, pad_token_id=None)


def mistral3(t):
    rope = {"rope_type": "yarn", "rope_theta": t.theta, "factor": t.factor, "beta_fast": 32.0, "beta_slow": 1.0,
            "original_max_position_embeddings": MISTRAL_CONTEXT, "mscale": 1.0, "mscale_all_dim": 1.0,
            "llama_4_scaling_beta": 0.1}
    return Ministral3ForCausalLM, Ministral3Config(
        vocab_size=t.vocab, hidden_size=t.hidden, intermediate_size=t.dense, num_hidden_layers=t.layers,
        num_attention_heads=t.heads, num_key_value_heads=t.kv, head_dim=t.head_dim, rms_norm_eps=t.eps,
        rope_parameters=rope, tie_word_embeddings=False, max_position_embeddings=int(MISTRAL_CONTEXT * t.factor),
        sliding_window=None, bos_token_id=None, eos_token_id=None, pad_token_id=None)


@torch.no_grad()
def build(t, seed):
    make, c = {"gemma3": gemma3, "mistral3": mistral3}[t.arch](t)
    c._attn_implementation = "eager"
    model, draw = make(c).float().eval(), tiny_models.Draw(seed)
    plus = 1.0 if t.arch == "gemma3" else 0.0  # the class adds it to norms
    model.model.embed_tokens.weight.copy_(draw.normal(model.model.embed_tokens.weight, 1.0))
    for layer in model.model.layers:
        for name, x in layer.named_parameters():
            if "norm" in name:
                x.copy_(draw.uniform(x, 0.4, 1.6) - plus)
            else:
                x.copy_(draw.normal(x, 1.3 / x.shape[-1] ** 0.5))
    if not c.tie_word_embeddings:
        model.lm_head.weight.copy_(draw.normal(model.lm_head.weight, 1.0))
    norm = model.model.norm.weight
    norm.copy_(draw.uniform(norm, 0.6, 1.4) * 5.0 / t.hidden ** 0.5 - plus)
    return model


def add_keys(w, t):
    k = t.arch + "."
    yarn = t.arch == "mistral3"
    w.add_name(t.name)
    w.add_uint32(k + "block_count", t.layers)
    w.add_uint32(k + "context_length", int(MISTRAL_CONTEXT * t.factor) if yarn else 512)
    w.add_uint32(k + "embedding_length", t.hidden)
    w.add_uint32(k + "feed_forward_length", t.dense)
    w.add_uint32(k + "attention.head_count", t.heads)
    w.add_uint32(k + "attention.head_count_kv", t.kv)
    for part in ("key_length", "value_length"):
        w.add_uint32(k + f"attention.{part}", t.head_dim)
    w.add_float32(k + "attention.layer_norm_rms_epsilon", t.eps)
    w.add_float32(k + "rope.freq_base", t.theta)
    w.add_string(k + "rope.scaling.type", "yarn" if yarn else "linear")
    w.add_float32(k + "rope.scaling.factor", t.factor)
    if not yarn:
        w.add_uint32(k + "attention.sliding_window", t.window)
        return
    w.add_uint32(k + "rope.dimension_count", t.head_dim)
    w.add_uint32(k + "rope.scaling.original_context_length", MISTRAL_CONTEXT)
    w.add_float32(k + "rope.scaling.yarn_beta_fast", 32.0)
    w.add_float32(k + "rope.scaling.yarn_beta_slow", 1.0)
    w.add_float32(k + "rope.scaling.yarn_log_multiplier", 1.0)
    w.add_float32(k + "attention.temperature_scale", 0.1)


def layer_tensors(layer, t):
    a, m = layer.self_attn, layer.mlp
    out = {"attn_norm.weight": layer.input_layernorm.weight, "attn_output.weight": a.o_proj.weight,
           "attn_v.weight": a.v_proj.weight, "ffn_gate.weight": m.gate_proj.weight, "ffn_up.weight": m.up_proj.weight,
           "ffn_down.weight": m.down_proj.weight}
    if t.arch == "mistral3":
        out["attn_q.weight"], out["attn_k.weight"] = (
            torch.from_numpy(side_by_side(x.weight.detach().numpy(), t.head_dim)) for x in (a.q_proj, a.k_proj))
        out["ffn_norm.weight"] = layer.post_attention_layernorm.weight
        return out
    out.update({"attn_q.weight": a.q_proj.weight, "attn_k.weight": a.k_proj.weight,
                "attn_q_norm.weight": a.q_norm.weight, "attn_k_norm.weight": a.k_norm.weight,
                "post_attention_norm.weight": layer.post_attention_layernorm.weight,
                "ffn_norm.weight": layer.pre_feedforward_layernorm.weight,
                "post_ffw_norm.weight": layer.post_feedforward_layernorm.weight})
    return out


def write(path, t, model):
    w = gguf.GGUFWriter(path, t.arch)
    add_keys(w, t)

    def put(name, x):
        x = x.detach().numpy() + (1 if t.arch == "gemma3" and "norm" in name else 0)
        w.add_tensor(name, np.ascontiguousarray(x, dtype=np.float32))

    put("token_embd.weight", model.model.embed_tokens.weight)
    put("output_norm.weight", model.model.norm.weight)
    if t.arch == "mistral3":
        put("output.weight", model.lm_head.weight)
    for i, layer in enumerate(model.model.layers):
        for name, x in layer_tensors(layer, t).items():
            put(f"blk.{i}.{name}", x)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
