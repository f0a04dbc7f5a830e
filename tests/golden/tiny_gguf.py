# SPDX-License-Identifier: MIT
"""Writes a tiny model as a GGUF file with the keys and tensor names of real files."""

import gguf
import numpy as np
import torch

SPECIALS = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<|turn>", "<turn|>", "<|channel>",
            "<channel|>", "<|think|>"]
USER_DEFINED = {"<|channel>", "<channel|>"}
MERGES = ["t h", "th e", "i n", "a n", "e r", "o u", "o n", "\u2581 t", "\u2581t h", "\u2581 a",
          "u s", "us er", "m o", "d e", "mo de", "mode l", "r e", "s t", "\u2581 \u2581"]


def vocabulary(size):
    """Tokens, types and merges: specials, newlines, one token per character, then merge results."""
    tokens = list(SPECIALS) + ["\n", "\n\n", "\u2581"]
    chars = [chr(c) for c in range(ord("a"), ord("z") + 1)] + list("0123456789.,!?'-:()")
    tokens += chars
    upper = [chr(c) for c in range(ord("A"), ord("Z") + 1)]
    merges = []
    for m in MERGES:
        merges.append(m)
        tokens.append(m.replace(" ", "", 1) if m[0] != " " else m[1:])
    tokens += upper
    tokens = tokens[:size]
    while len(tokens) < size:
        tokens.append(f"<unused{len(tokens)}>")
    merges = [m for m in merges if m.replace(" ", "", 1) in tokens]
    types = []
    for tok in tokens:
        if tok in USER_DEFINED:
            types.append(gguf.TokenType.USER_DEFINED)
        elif tok == "<unk>":
            types.append(gguf.TokenType.UNKNOWN)
        elif tok in SPECIALS:
            types.append(gguf.TokenType.CONTROL)
        elif tok.startswith("<unused"):
            types.append(gguf.TokenType.UNUSED)
        else:
            types.append(gguf.TokenType.NORMAL)
    assert len(set(tokens)) == size
    return tokens, types, merges


def add_tokenizer(w, size):
    tokens, types, merges = vocabulary(size)
    w.add_tokenizer_model("gemma4")
    w.add_token_list(tokens)
    w.add_token_scores([0.0] * size)
    w.add_token_types(types)
    w.add_token_merges(merges)
    w.add_pad_token_id(0)
    w.add_eos_token_id(1)
    w.add_bos_token_id(2)
    w.add_unk_token_id(3)
    w.add_mask_token_id(4)
    w.add_add_bos_token(True)
    w.add_add_space_prefix(False)


def add_keys(w, t, arch, canvas):
    k = arch + "."
    w.add_name(t.name)
    w.add_file_type(0)
    w.add_uint32(k + "block_count", t.layers)
    w.add_uint32(k + "context_length", 1024)
    w.add_uint32(k + "embedding_length", t.hidden)
    if t.shared:
        w.add_array(k + "feed_forward_length", [t.dense * (1 + (i >= t.layers - t.shared)) for i in range(t.layers)])
    else:
        w.add_uint32(k + "feed_forward_length", t.dense)
    if t.experts:
        w.add_uint32(k + "expert_feed_forward_length", t.moe)
        w.add_uint32(k + "expert_count", t.experts)
        w.add_uint32(k + "expert_used_count", t.top_k)
    w.add_uint32(k + "attention.head_count", t.heads)
    if t.scalar_kv:
        assert t.kv_local == t.kv_global
        w.add_uint32(k + "attention.head_count_kv", t.kv_local)
    else:
        kv = [t.kv_local if c == "s" else t.kv_global for c in t.pattern]
        w.add_array(k + "attention.head_count_kv", kv)
    for part in ("key_length", "value_length"):
        w.add_uint32(k + f"attention.{part}", t.hd_global)
        w.add_uint32(k + f"attention.{part}_swa", t.hd_local)
    w.add_uint32(k + "attention.sliding_window", t.window)
    if t.scalar_pattern:
        period = t.pattern.index("f") + 1
        assert t.pattern == ("s" * (period - 1) + "f") * (t.layers // period)
        w.add_uint32(k + "attention.sliding_window_pattern", period)
    else:
        w.add_array(k + "attention.sliding_window_pattern", [c == "s" for c in t.pattern])
    w.add_float32(k + "attention.layer_norm_rms_epsilon", t.eps)
    if t.shared or not t.bare:
        w.add_uint32(k + "attention.shared_kv_layers", t.shared)
    if t.per_layer or not t.bare:
        w.add_uint32(k + "embedding_length_per_layer_input", t.per_layer)
    w.add_float32(k + "rope.freq_base", t.theta_global)
    if not t.bare:
        w.add_float32(k + "rope.freq_base_swa", t.theta_local)
        w.add_uint32(k + "rope.dimension_count", t.hd_global)
        w.add_uint32(k + "rope.dimension_count_swa", t.hd_local)
        w.add_float32(k + "final_logit_softcapping", t.softcap)
        w.add_uint32(k + "vocab_size", t.vocab)
    if canvas:
        w.add_bool(k + "attention.causal", False)
        w.add_uint32("diffusion.canvas_length", canvas)
        for name, value in t.eb_keys.items():
            add = w.add_uint32 if isinstance(value, int) else w.add_float32
            add("diffusion." + name, value)


def spare_tensors(t, kind):
    """What files of E2B have for layers that share keys, though nothing reads it: not a number here."""
    width, hd = (t.kv_local, t.hd_local) if kind == "s" else (t.kv_global, t.hd_global)
    none = {"attn_k.weight": (width * hd, t.hidden), "attn_v.weight": (width * hd, t.hidden), "attn_k_norm.weight": (hd,)}
    return {name: torch.full(shape, float("nan")) for name, shape in none.items()}


def layer_tensors(layer, t, kind):
    a, m = layer.self_attn, layer.mlp
    out = {"attn_norm.weight": layer.input_layernorm.weight, "attn_q.weight": a.q_proj.weight,
           "attn_output.weight": a.o_proj.weight, "attn_q_norm.weight": a.q_norm.weight,
           "post_attention_norm.weight": layer.post_attention_layernorm.weight,
           "ffn_norm.weight": layer.pre_feedforward_layernorm.weight,
           "ffn_gate.weight": m.gate_proj.weight, "ffn_up.weight": m.up_proj.weight,
           "ffn_down.weight": m.down_proj.weight,
           "post_ffw_norm.weight": layer.post_feedforward_layernorm.weight}
    if not t.bare:
        out["layer_output_scale.weight"] = layer.layer_scalar
    if not getattr(a, "is_kv_shared_layer", False):
        out["attn_k.weight"], out["attn_k_norm.weight"] = a.k_proj.weight, a.k_norm.weight
        if a.v_proj is not None:
            out["attn_v.weight"] = a.v_proj.weight
    elif t.spare_keys:
        out.update(spare_tensors(t, kind))
    if t.per_layer:
        out["inp_gate.weight"] = layer.per_layer_input_gate.weight
        out["proj.weight"] = layer.per_layer_projection.weight
        out["post_norm.weight"] = layer.post_per_layer_input_norm.weight
    if not t.experts:
        return out
    r, e = layer.router, layer.experts
    out["post_ffw_norm_1.weight"] = layer.post_feedforward_layernorm_1.weight
    out["pre_ffw_norm_2.weight"] = layer.pre_feedforward_layernorm_2.weight
    out["post_ffw_norm_2.weight"] = layer.post_feedforward_layernorm_2.weight
    out["ffn_gate_inp.weight"] = r.proj.weight
    out["ffn_gate_inp.scale"] = r.scale
    if t.fused:
        out["ffn_gate_up_exps.weight"] = e.gate_up_proj
    else:
        out["ffn_gate_exps.weight"] = e.gate_up_proj[:, :t.moe]
        out["ffn_up_exps.weight"] = e.gate_up_proj[:, t.moe:]
    out["ffn_down_exps.weight"] = e.down_proj
    if t.expert_scale:
        out["ffn_down_exps.scale"] = r.per_expert_scale
    return out


def write(path, t, model, is_diffusion):
    """The twin of a diffusion model is written from its gemma4 class."""
    dg = model if is_diffusion else None
    trunk = dg.model.decoder if is_diffusion else model.model
    embed, norm, layers = trunk.embed_tokens, trunk.norm, trunk.layers
    lm_head = None if t.tied else model.lm_head
    arch = t.arch if is_diffusion else "gemma4"
    w = gguf.GGUFWriter(path, arch)
    add_keys(w, t, arch, t.canvas if is_diffusion else 0)
    add_tokenizer(w, t.vocab)

    def put(name, x):
        w.add_tensor(name, np.ascontiguousarray(x.detach().numpy(), dtype=np.float32))

    put("token_embd.weight", embed.weight)
    put("output_norm.weight", norm.weight)
    if lm_head is not None:
        put("output.weight", lm_head.weight)
    if t.per_layer:
        put("per_layer_token_embd.weight", trunk.embed_tokens_per_layer.weight)
        put("per_layer_model_proj.weight", trunk.per_layer_model_projection.weight)
        put("per_layer_proj_norm.weight", trunk.per_layer_projection_norm.weight)
    freqs = np.full(t.hd_global // 2, 1e30, dtype=np.float32)
    freqs[:int(0.25 * t.hd_global // 2)] = 1.0
    w.add_tensor("rope_freqs.weight", freqs)
    for i, layer in enumerate(layers):
        for name, x in layer_tensors(layer, t, t.pattern[i]).items():
            put(f"blk.{i}.{name}", x)
        if dg is not None:
            put(f"blk.{i}.enc_layer_output_scale.weight",
                dg.model.encoder.language_model.layers[i].layer_scalar)
    if dg is not None:
        sc = dg.model.decoder.self_conditioning
        put(t.sc_norm_name, sc.pre_norm.weight)
        put("self_cond_gate.weight", sc.gate_proj.weight)
        put("self_cond_up.weight", sc.up_proj.weight)
        put("self_cond_down.weight", sc.down_proj.weight)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
