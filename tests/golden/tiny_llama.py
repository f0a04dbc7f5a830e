# SPDX-License-Identifier: MIT
"""Tiny models of the llama family: the table of what each one turns on, how it is built as a transformers class with
weights from a seeded generator, and how it is written as a GGUF file with the keys and tensor names of real files.

Files of llama have the rows of a head of queries and keys in another order than transformers: the two rows that
rotate together lie side by side. Files of the qwen architectures keep the order.
"""

from dataclasses import dataclass, field

import gguf
import numpy as np
import torch
from transformers import (LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, MixtralConfig,
                          MixtralForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM,
                          Qwen3MoeConfig, Qwen3MoeForCausalLM)

import tiny_models

CLASSES = {"llama": (LlamaConfig, LlamaForCausalLM), "mistral": (MistralConfig, MistralForCausalLM),
           "mixtral": (MixtralConfig, MixtralForCausalLM), "qwen2": (Qwen2Config, Qwen2ForCausalLM),
           "qwen3": (Qwen3Config, Qwen3ForCausalLM), "qwen3moe": (Qwen3MoeConfig, Qwen3MoeForCausalLM)}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 12}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}


@dataclass(frozen=True)
class Tiny:
    name: str
    kind: str                 # of CLASSES; mistral and mixtral are written as llama
    seed: int
    layers: int = 4
    vocab: int = 64
    hidden: int = 24
    dense: int = 32
    experts: int = 0
    top_k: int = 0
    moe: int = 0
    heads: int = 4
    kv: int = 2
    head_dim: int = 8
    window: int = 0
    eps: float = 1e-5
    theta: float = 1e4
    rope: dict = field(default_factory=dict)
    bias: bool = False        # attention_bias
    tied: bool = False
    fused: bool = False       # ffn_gate_up_exps, else ffn_gate_exps + ffn_up_exps
    bare: bool = False        # the file leaves out every key that has a default
    text: bool = False        # the file has a byte-level BPE tokenizer
    prompts: tuple = ()       # lengths; without any the usual ones

    canvas = 0
    diffusion = False
    twin = False

    @property
    def arch(self):
        return {"mistral": "llama", "mixtral": "llama"}.get(self.kind, self.kind)


ALL = [
    Tiny("llama-base", "llama", 301, eps=0.02, prompts=(1, 9)),
    Tiny("llama-3", "llama", 302, kv=1, head_dim=16, theta=5e5, rope=LLAMA3, tied=True, prompts=(1, 9)),
    Tiny("llama-linear-bias", "llama", 303, hidden=32, kv=4, bias=True, rope={"rope_type": "linear", "factor": 2.5}, bare=True, prompts=(1, 9)),
    Tiny("llama-yarn", "llama", 304, heads=2, kv=1, head_dim=16, rope=YARN, prompts=(1, 9)),
    Tiny("llama-window", "mistral", 305, hidden=32, window=8, theta=1e3),
    Tiny("llama-moe", "mixtral", 306, experts=4, top_k=2, dense=16, moe=16, theta=1e6, fused=True),
    Tiny("qwen2-bias", "qwen2", 307, hidden=32, tied=True, eps=1e-6, theta=1e6, prompts=(1, 9)),
    Tiny("qwen3-base", "qwen3", 308, vocab=288, head_dim=16, tied=True, eps=1e-6, theta=1e6, text=True, prompts=(1, 9)),
    Tiny("qwen3-yarn", "qwen3", 309, heads=6, kv=3, head_dim=16, eps=1e-6, theta=1e6, rope=YARN, bias=True, prompts=(1, 9)),
    Tiny("qwen3moe-base", "qwen3moe", 310, heads=8, kv=1, experts=8, top_k=3, moe=16, eps=1e-6, theta=1e6, prompts=(1, 9)),
    Tiny("qwen3moe-tied", "qwen3moe", 311, head_dim=16, experts=6, top_k=1, moe=8, eps=1e-6, theta=1e6, tied=True,
         fused=True, prompts=(1, 9)),
]


def config(t):
    make, model = CLASSES[t.kind]
    more = {}
    if t.kind in ("llama", "qwen3", "qwen3moe"):
        more["attention_bias"] = t.bias
    if t.kind == "mistral":
        more["sliding_window"] = t.window
    if t.kind == "mixtral":
        more.update(num_local_experts=t.experts, num_experts_per_tok=t.top_k, sliding_window=None)
    if t.kind == "qwen3moe":
        more.update(num_experts=t.experts, num_experts_per_tok=t.top_k, moe_intermediate_size=t.moe,
                    norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[])
    if t.kind != "qwen2":
        more["head_dim"] = t.head_dim
    c = make(vocab_size=t.vocab, hidden_size=t.hidden, intermediate_size=t.dense, num_hidden_layers=t.layers,
             num_attention_heads=t.heads, num_key_value_heads=t.kv, rms_norm_eps=t.eps, max_position_embeddings=512,
             tie_word_embeddings=t.tied, rope_parameters={"rope_type": "default", "rope_theta": t.theta, **t.rope},
             bos_token_id=None, eos_token_id=None, pad_token_id=None, **more)
    c._attn_implementation = "eager"
    c._experts_implementation = "eager"
    return model, c


@torch.no_grad()
def build(t, seed):
    make, c = config(t)
    model, draw = make(c).float().eval(), tiny_models.Draw(seed)
    model.model.embed_tokens.weight.copy_(draw.normal(model.model.embed_tokens.weight, 1.0))
    for layer in model.model.layers:
        for name, x in layer.named_parameters():
            if "norm" in name:
                x.copy_(draw.uniform(x, 0.4, 1.6))
            elif name.endswith("bias"):
                x.copy_(draw.normal(x, 0.5))
            elif name.endswith("mlp.gate.weight"):
                x.copy_(draw.normal(x, 1.5 / t.hidden ** 0.5))
            else:
                x.copy_(draw.normal(x, 1.3 / x.shape[-1] ** 0.5))
    if not t.tied:
        model.lm_head.weight.copy_(draw.normal(model.lm_head.weight, 1.0))
    norm = model.model.norm.weight
    norm.copy_(draw.uniform(norm, 0.6, 1.4) * 5.0 / t.hidden ** 0.5)
    return model


def side_by_side(x, head_dim):
    """Rows i and head_dim / 2 + i of each head become rows 2 i and 2 i + 1."""
    n = x.shape[0] // head_dim
    return x.reshape(n, 2, head_dim // 2, -1).swapaxes(1, 2).reshape(x.shape)


def rope_divisors(t):
    """What converters write as rope_freqs for the rope type llama3."""
    i = np.arange(t.head_dim // 2, dtype=np.float64)
    wave = 2 * np.pi * t.theta ** (2 * i / t.head_dim)
    low, high, context = (t.rope[k] for k in ("low_freq_factor", "high_freq_factor",
                                              "original_max_position_embeddings"))
    smooth = (context / wave - low) / (high - low)
    blended = 1 / ((1 - smooth) / t.rope["factor"] + smooth)
    out = np.where(wave < context / high, 1.0, np.where(wave > context / low, t.rope["factor"], blended))
    return out.astype(np.float32)


def add_keys(w, t, arch=None):
    k = (arch or t.arch) + "."
    w.add_name(t.name)
    w.add_uint32(k + "block_count", t.layers)
    w.add_uint32(k + "context_length", 512)
    w.add_uint32(k + "embedding_length", t.hidden)
    w.add_uint32(k + "feed_forward_length", t.dense)
    w.add_uint32(k + "attention.head_count", t.heads)
    w.add_float32(k + "attention.layer_norm_rms_epsilon", t.eps)
    if not t.bare:
        w.add_uint32(k + "attention.head_count_kv", t.kv)
        w.add_uint32(k + "rope.dimension_count", t.head_dim)
        w.add_float32(k + "rope.freq_base", t.theta)
        w.add_uint32(k + "vocab_size", t.vocab)
        for part in ("key_length", "value_length"):
            w.add_uint32(k + f"attention.{part}", t.head_dim)
    if t.window:
        w.add_uint32(k + "attention.sliding_window", t.window)
    if t.experts:
        w.add_uint32(k + "expert_count", t.experts)
        w.add_uint32(k + "expert_used_count", t.top_k)
        if t.kind == "qwen3moe":
            w.add_uint32(k + "expert_feed_forward_length", t.moe)
    kind = t.rope.get("rope_type")
    if kind in ("linear", "yarn"):
        w.add_string(k + "rope.scaling.type", kind)
        w.add_float32(k + "rope.scaling.factor", t.rope["factor"])
    if kind == "yarn":
        w.add_uint32(k + "rope.scaling.original_context_length", t.rope["original_max_position_embeddings"])


def add_tokenizer(w, size):
    """Every byte as a character, a few merges, and the control tokens of ChatML."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    chars = [chr(b) for b in shown] + [chr(0x100 + i) for i in range(256 - len(shown))]
    merges = ["t h", "th e", "i n", "a n", "e r", "o u", "o n", "\u0120 t", "\u0120t h", "\u0120 a"]
    controls = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokens = chars + [m.replace(" ", "") for m in merges] + controls
    tokens += [f"[PAD{i}]" for i in range(len(tokens), size)]
    types = [gguf.TokenType.NORMAL] * size
    for i, token in enumerate(tokens):
        if token in controls:
            types[i] = gguf.TokenType.CONTROL
        elif token.startswith("[PAD"):
            types[i] = gguf.TokenType.UNUSED
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("qwen2")
    w.add_token_list(tokens)
    w.add_token_types(types)
    w.add_token_merges(merges)
    w.add_eos_token_id(tokens.index("<|im_end|>"))
    w.add_pad_token_id(tokens.index("<|endoftext|>"))
    w.add_add_bos_token(False)


def layer_tensors(layer, t):
    a = layer.self_attn
    out = {"attn_norm.weight": layer.input_layernorm.weight, "ffn_norm.weight": layer.post_attention_layernorm.weight}
    for name, lin in (("q", a.q_proj), ("k", a.k_proj), ("v", a.v_proj), ("output", a.o_proj)):
        out[f"attn_{name}.weight"] = lin.weight
        if lin.bias is not None:
            out[f"attn_{name}.bias"] = lin.bias
    if hasattr(a, "q_norm"):
        out["attn_q_norm.weight"], out["attn_k_norm.weight"] = a.q_norm.weight, a.k_norm.weight
    if not t.experts:
        m = layer.mlp
        out.update({"ffn_gate.weight": m.gate_proj.weight, "ffn_up.weight": m.up_proj.weight,
                    "ffn_down.weight": m.down_proj.weight})
        return out
    e = layer.mlp.experts
    out["ffn_gate_inp.weight"] = layer.mlp.gate.weight
    if t.fused:
        out["ffn_gate_up_exps.weight"] = e.gate_up_proj
    else:
        out["ffn_gate_exps.weight"], out["ffn_up_exps.weight"] = e.gate_up_proj[:, :t.moe], e.gate_up_proj[:, t.moe:]
    out["ffn_down_exps.weight"] = e.down_proj
    return out


def write(path, t, model):
    w = gguf.GGUFWriter(path, t.arch)
    add_keys(w, t)
    if t.text:
        add_tokenizer(w, t.vocab)

    def put(name, x):
        x = x.detach().numpy()
        if t.arch == "llama" and ("attn_q." in name or "attn_k." in name):
            x = side_by_side(x, t.head_dim)
        w.add_tensor(name, np.ascontiguousarray(x, dtype=np.float32))

    put("token_embd.weight", model.model.embed_tokens.weight)
    put("output_norm.weight", model.model.norm.weight)
    if not t.tied:
        put("output.weight", model.lm_head.weight)
    if t.rope.get("rope_type") == "llama3":
        w.add_tensor("rope_freqs.weight", rope_divisors(t))
    for i, layer in enumerate(model.model.layers):
        for name, x in layer_tensors(layer, t).items():
            put(f"blk.{i}.{name}", x)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
