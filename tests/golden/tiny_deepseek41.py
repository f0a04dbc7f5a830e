# SPDX-License-Identifier: MIT
"""Tiny models of deepseek41: the table of what each one turns on, how it is built as the class of nemo-automodel with
weights from a seeded generator, and how it is written as a GGUF file with the keys and tensor names of llama.cpp's
converters. transformers 5.24 has no such model; nemo-automodel 0.7.0 (PyPI) follows the program that its makers published,
and was compared with it by its authors. It rounds what is kept to 8 and 4 bits, which is turned off here, and computes whole
sequences alone: a step that goes on computes all again."""

import os
import sys
import types
from dataclasses import dataclass

import gguf
import numpy as np
import torch
from torch import nn

import tiny_deepseek4
import tiny_models


@dataclass(frozen=True)
class Tiny(tiny_deepseek4.Tiny):
    ratios: tuple = (2, 2, 1, 1)
    sources: tuple = (0, 2)       # layers with far rows of their own
    choosers: tuple = (0, 2, 3)
    blocks: tuple = (2, 3, 3)     # the layer that chooses them, how many, rows of one; (): none
    q_rank: int = 4
    out_rank: int = 2
    near: int = 5
    index_heads: int = 7
    index_k: int = 4
    experts: int = 3
    moe: int = 2
    hashed: int = 0
    engrams: tuple = (1, 2)       # layers that read the memory
    grams: int = 3
    engram_heads: int = 2
    engram_dim: int = 4
    engram_buckets: int = 5
    pad: int = 2
    token_map: tuple = (0, 1, 2, 3, 1, 4, 5, 3)
    one_table: bool = False       # and the later keys
    window: int = 24
    prompts: tuple = (1, 41)

    arch = "deepseek41"


ALL = [
    Tiny("deepseek41-base", 391, yarn=(4.0, 64)),
    Tiny("deepseek41-deep", 392, ratios=(0, 1, 1), sources=(1,), choosers=(1,), blocks=(), heads=3, groups=3, rotated=2,
         streams=3, rounds=20, floor=1e-6, index_k=3, factor=0.7, limit=0.6, eps=0.02, engrams=(0, 1), grams=4,
         engram_heads=1, pad=5, one_table=True),
]


def oracle():
    """The modules of nemo-automodel, whose folder DEV_NEMO names where it is not installed."""
    if "DEV_NEMO" in os.environ:
        sys.path.insert(0, os.environ["DEV_NEMO"])
    from nemo_automodel.components.models.common import BackendConfig
    from nemo_automodel.components.models.deepseek_v41 import attention, config, engram, model
    attention.quantize_cache = lambda x, **_: x
    return BackendConfig, config, engram, model


def text_config(t):
    scaling = {"rope_type": "default"}
    if t.yarn:
        scaling = {"rope_type": "yarn", "factor": t.yarn[0], "original_max_position_embeddings": t.yarn[1],
                   "beta_fast": 32, "beta_slow": 1}
    return dict(
        vocab_size=t.vocab, hidden_size=t.hidden, moe_intermediate_size=t.moe, num_hidden_layers=t.layers,
        num_attention_heads=t.heads, head_dim=t.head_dim, qk_rope_head_dim=t.rotated, q_lora_rank=t.q_rank,
        o_lora_rank=t.out_rank, o_groups=t.groups, swiglu_limit=t.limit, rms_norm_eps=t.eps, max_position_embeddings=512,
        rope_theta=t.theta, compress_rope_theta=t.theta_far, rope_scaling=scaling, n_routed_experts=t.experts,
        num_experts_per_tok=t.top_k, routed_scaling_factor=t.factor, sliding_window=t.near, compress_ratios=list(t.ratios),
        kv_source_layer_ids=list(t.sources), index_source_layer_ids=list(t.choosers), index_n_heads=t.index_heads,
        index_head_dim=t.index_dim, index_topk=t.index_k, candidate_source_layer_id=t.blocks[0] if t.blocks else -1,
        candidate_topk_blocks=t.blocks[1] if t.blocks else 1, candidate_block_size=t.blocks[2] if t.blocks else 1,
        hc_mult=t.streams, hc_sinkhorn_iters=t.rounds, hc_eps=t.floor, engram_layer_ids=list(t.engrams),
        engram_num_embeddings=[1000] * len(t.engrams), engram_max_ngram_size=t.grams, engram_vocab_size=t.engram_buckets,
        engram_n_heads=t.engram_heads, engram_head_dim=t.engram_dim, engram_pad_token_id=t.pad,
        engram_compressed_vocab_size=max(t.token_map) + 1, num_nextn_predict_layers=0, dspark_block_size=0,
        pad_token_id=None, dtype="float32")


class Whole(nn.Module):
    """The class as one with a cache: what was seen before lies with the cache object."""

    def __init__(self, model):
        super().__init__()
        self.inner, self.gap = model, float("inf")
        self.config = None
        stages = [nn.Identity() for _ in model.model.layers]
        for x in stages:
            x.mlp = nn.Identity()
        self.model = types.SimpleNamespace(layers=stages)
        for layer in model.model.layers.values():
            layer.ffn.gate.register_forward_pre_hook(self.look)

    def look(self, gate, args):
        ranks = torch.sqrt(nn.functional.softplus(args[0].float() @ gate.weight.float().T)) + gate.e_score_correction_bias
        p = ranks.sort(dim=-1, descending=True).values
        k = gate.topk
        self.gap = min(self.gap, (p[:, k - 1] - p[:, k]).min().item())

    def forward(self, input_ids, past_key_values, use_cache=True):
        seen = getattr(past_key_values, "weft_seen", input_ids[:, :0])
        past_key_values.weft_seen = torch.cat([seen, input_ids], dim=1)
        out = self.inner(past_key_values.weft_seen)
        return types.SimpleNamespace(logits=out.logits[:, seen.shape[1]:])


@torch.no_grad()
def build(t, seed):
    backend, config, engram, model = oracle()
    engram._compressed_token_map = lambda _: (t.token_map, max(t.token_map) + 1)
    whole = config.DeepseekV41Config(text_config=text_config(t), vision_config={"num_hidden_layers": 0}, dtype="float32")
    inner = model.DeepseekV41ForCausalLM(
        whole, tokenizer=object(),
        backend=backend(attn="eager", linear="torch", rms_norm="torch_fp32", experts="torch", dispatcher="torch"))
    inner = inner.float().eval()
    draw = tiny_models.Draw(seed)
    for name, x in inner.named_parameters():
        if name.endswith("sinks_param.weight"):
            x.copy_(draw.normal(x, 1.0))
        elif name.endswith(("q_weight", "k_weight")):
            x.copy_(draw.uniform(x, 0.4, 1.6))
        elif name.endswith("engram.embed.weight"):
            x.copy_(draw.normal(x, 1.0))
        else:
            tiny_deepseek4.draw_weights(draw, [(name, x)])
    for layer in inner.model.layers.values():
        bias = layer.ffn.gate.e_score_correction_bias
        bias.copy_(draw.normal(bias, 0.5))
    norm = inner.model.norm.weight
    norm.copy_(draw.uniform(norm, 0.6, 1.4) * 5.0 / t.hidden ** 0.5)
    return Whole(inner)


def constants(t, inner):
    """Of each layer with a memory: multipliers, primes, offsets of its table, and rows of that."""
    h = inner.model.engram_hash
    for e in range(len(t.engrams)):
        primes, offsets = h.primes[e].tolist(), h.offsets[e].tolist()
        yield h.multipliers[e].tolist(), primes, offsets, sum(primes)


def add_engram_keys(w, t, inner):
    k = t.arch + "."
    lists, begin = [[], [], []], 0
    for multipliers, primes, offsets, n_rows in constants(t, inner):
        for to, x in zip(lists, (multipliers, primes, [begin + o for o in offsets])):
            to.extend(x)
        begin += n_rows if t.one_table else 0
    wide = dict(vtype=gguf.GGUFValueType.ARRAY, sub_type=gguf.GGUFValueType.UINT64)
    names = ("ple.layer_multipliers", "ple.head_vocab_sizes", "ple.head_offsets") if t.one_table else \
        ("engram.multipliers", "engram.primes", "engram.offsets")
    for name, x in zip(names, lists):
        w.add_key_value(k + name, x, **wide)
    w.add_array(k + "engram.token_map", list(t.token_map))
    numbers = (("ple.ngram_size", t.grams), ("ple.heads_per_ngram", t.engram_heads),
               ("embedding_length_per_layer_input", t.engram_dim), ("engram.pad_token_id", t.pad)) if t.one_table else \
        (("engram.max_ngram_size", t.grams), ("engram.head_count", t.engram_heads), ("engram.key_length", t.engram_dim),
         ("engram.pad_id", t.token_map[t.pad]))
    for name, n in numbers:
        w.add_uint32(k + name, n)
    w.add_array(k + ("ple.layers" if t.one_table else "engram.layer_ids"), list(t.engrams))


def add_keys(w, t, inner):
    k = t.arch + "."
    tiny_deepseek4.add_counts(w, t)
    tiny_deepseek4.add_numbers(w, t, list(t.ratios) + [0, 0, 0], t.layers)
    if t.blocks:
        for key, n in zip(("source_layer", "top_k_blocks", "block_size"), t.blocks):
            w.add_uint32(k + "attention.indexer.candidate_" + key, n)
    else:
        w.add_array(k + "attention.kv_source_layers", list(t.sources))
    add_engram_keys(w, t, inner)


def layer_tensors(t, layer):
    a, f = layer.attn, layer.ffn
    out = {"attn_norm.weight": layer.attn_norm.weight, "ffn_norm.weight": layer.ffn_norm.weight,
           "attn_q_a.weight": a.wq_a.weight, "attn_q_a_norm.weight": a.q_norm.weight, "attn_q_b.weight": a.wq_b.weight,
           "attn_kv.weight": a.wkv.weight, "attn_kv_a_norm.weight": a.kv_norm.weight, "attn_sinks.weight": a.attn_sink,
           "attn_output_a.weight": a.wo_a.weight, "attn_output_b.weight": a.wo_b.weight,
           "ffn_gate_inp.weight": f.gate.weight, "exp_probs_b.bias": f.gate.e_score_correction_bias,
           "ffn_down_exps.weight": f.experts.down_projs.transpose(1, 2)}
    for name, hc in (("attn", layer.attn_hc), ("ffn", layer.ffn_hc)):
        out.update({f"hc_{name}_{x}.weight": getattr(hc, x) for x in ("fn", "base", "scale")})
    if a.compressor is not None:
        out.update({"attn_compressor_kv.weight": a.compressor.wkv.weight,
                    "attn_compressor_norm.weight": a.compressor.norm.weight,
                    "indexer.attn_k.weight": a.indexer.wk.weight, "indexer.k_norm.weight": a.indexer.k_norm.weight})
        if a.compressor.ratio > 1:
            out["attn_compressor_gate.weight"] = a.compressor.wgate.weight
    if a.indexer is not None:
        out.update({"indexer.attn_q_b.weight": a.indexer.wq_b.weight, "indexer.proj.weight": a.indexer.weights_proj.weight})
    both = f.experts.gate_and_up_projs.transpose(1, 2)
    out["ffn_gate_exps.weight"], out["ffn_up_exps.weight"] = both.chunk(2, dim=1)
    out.update({f"ffn_{x}_shexp.weight": getattr(f.shared_experts, f"{x}_proj").weight for x in ("gate", "up", "down")})
    if layer.engram is not None:
        e = layer.engram
        out["engram_wkv.weight"] = e.wkv.weight
        if t.one_table:
            out["engram_gate.weight"] = e.q_weight * e.k_weight
        else:
            out.update({"engram_q.weight": e.q_weight, "engram_k.weight": e.k_weight})
    return out


def write(path, t, whole):
    inner = whole.inner
    w = gguf.GGUFWriter(path, t.arch)
    add_keys(w, t, inner)

    def put(name, x):
        w.add_tensor(name, np.ascontiguousarray(x.detach().numpy(), dtype=np.float32))

    put("token_embd.weight", inner.model.embed_tokens.weight)
    put("output_norm.weight", inner.model.norm.weight)
    put("output.weight", inner.lm_head.weight)
    layers = list(inner.model.layers.values())
    tables = [layers[l].engram.embed.weight[:n] for l, (*_, n) in zip(t.engrams, constants(t, inner))]
    if t.one_table:
        put("per_layer_token_embd.weight", torch.cat(tables))
    for i, layer in enumerate(layers):
        for name, x in layer_tensors(t, layer).items():
            put(f"blk.{i}.{name}", x)
        if i in t.engrams and not t.one_table:
            put(f"blk.{i}.engram_embd.weight", tables[t.engrams.index(i)])
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
