# SPDX-License-Identifier: MIT
"""Builds the tiny models as transformers classes, with every weight drawn from a seeded generator.

Nothing keeps its default of one: norms, router scales, expert scales and layer scalars are random,
and the encoder's layer scalars differ from the decoder's. Sizes are chosen so that attention is
neither flat nor one-hot, and some logits pass the softcap.
"""

import gguf
import numpy as np
import torch
from transformers import DiffusionGemmaConfig, DiffusionGemmaForBlockDiffusion
from transformers import Gemma4ForCausalLM, Gemma4TextConfig
from transformers.models.diffusion_gemma.configuration_diffusion_gemma import DiffusionGemmaTextConfig
from transformers.models.gemma4.configuration_gemma4 import Gemma4VisionConfig

EMBED_STD = 0.4


def write_file(path, t, add_keys, tensors):
    """Writes a model's file: its keys, then pairs of a name and a tensor, all in float32."""
    w = gguf.GGUFWriter(path, t.arch)
    add_keys(w, t)
    for name, x in tensors:
        w.add_tensor(name, np.ascontiguousarray(x.detach().numpy(), dtype=np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def layers_of(t, model, layer_tensors):
    for i, layer in enumerate(model.model.layers):
        for name, x in layer_tensors(layer, t).items():
            yield f"blk.{i}.{name}", x


def text_kwargs(t):
    kinds = {"s": "sliding_attention", "f": "full_attention"}
    out = dict(
        vocab_size=t.vocab, hidden_size=t.hidden, intermediate_size=t.dense,
        num_hidden_layers=t.layers, num_attention_heads=t.heads, num_key_value_heads=t.kv_local,
        head_dim=t.hd_local, global_head_dim=t.hd_global, num_global_key_value_heads=t.kv_global,
        sliding_window=t.window, layer_types=[kinds[c] for c in t.pattern], rms_norm_eps=t.eps,
        final_logit_softcapping=t.softcap, max_position_embeddings=1024,
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": t.theta_local},
            "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25,
                               "rope_theta": t.theta_global}})
    if t.experts:
        out.update(num_experts=t.experts, top_k_experts=t.top_k, moe_intermediate_size=t.moe)
    return out


def gemma4(t):
    config = Gemma4TextConfig(**text_kwargs(t), hidden_size_per_layer_input=t.per_layer,
                              vocab_size_per_layer_input=t.vocab, num_kv_shared_layers=t.shared,
                              use_double_wide_mlp=t.shared > 0,
                              attention_k_eq_v=t.k_eq_v, enable_moe_block=t.experts > 0,
                              tie_word_embeddings=t.tied)
    config._experts_implementation = "eager"
    config._attn_implementation = "eager"
    return Gemma4ForCausalLM(config).float().eval()


def diffusion(t):
    text = DiffusionGemmaTextConfig(**text_kwargs(t))
    vision = Gemma4VisionConfig(hidden_size=16, intermediate_size=16, num_hidden_layers=1,
                                num_attention_heads=1, num_key_value_heads=1, head_dim=16,
                                position_embedding_size=16)
    config = DiffusionGemmaConfig(text_config=text, vision_config=vision, canvas_length=t.canvas)
    for c in (config, config.text_config):
        c._experts_implementation = "eager"
        c._attn_implementation = "eager"
    return DiffusionGemmaForBlockDiffusion(config).float().eval()


class Draw:
    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)

    def normal(self, like, std):
        return torch.randn(like.shape, generator=self.g) * std

    def uniform(self, like, lo, hi):
        return torch.rand(like.shape, generator=self.g) * (hi - lo) + lo


def fill_layer(layer, draw, t):
    attn, mlp = layer.self_attn, layer.mlp
    attn_size = (2.5 / attn.head_dim ** 0.5) ** 0.5     # scores with a spread near 2.5
    shared = getattr(attn, "is_kv_shared_layer", False)
    for norm in [attn.q_norm] + ([] if shared else [attn.k_norm]):
        norm.weight.copy_(draw.uniform(norm.weight, 0.5, 1.5) * attn_size)
    for lin in (attn.q_proj, *([] if shared else [attn.k_proj, attn.v_proj]), attn.o_proj,
                mlp.gate_proj, mlp.up_proj, mlp.down_proj):
        if lin is not None:
            lin.weight.copy_(draw.normal(lin.weight, 1.3 / lin.weight.shape[1] ** 0.5))
    names = ["input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
             "post_feedforward_layernorm"]
    if t.experts:
        names += ["post_feedforward_layernorm_1", "post_feedforward_layernorm_2",
                  "pre_feedforward_layernorm_2"]
    for name in names:
        w = getattr(layer, name).weight
        w.copy_(draw.uniform(w, 0.4, 1.6))
    if t.experts:
        fill_moe(layer, draw, t)
    if t.per_layer:
        for lin in (layer.per_layer_input_gate, layer.per_layer_projection):
            lin.weight.copy_(draw.normal(lin.weight, 1.3 / lin.weight.shape[1] ** 0.5))
        norm = layer.post_per_layer_input_norm.weight
        norm.copy_(draw.uniform(norm, 0.4, 1.6))
    if not t.bare:
        layer.layer_scalar.copy_(draw.uniform(layer.layer_scalar, 0.35, 0.95))


def fill_per_layer(trunk, draw, t):
    if not t.per_layer:
        return
    trunk.embed_tokens_per_layer.weight.copy_(
        draw.normal(trunk.embed_tokens_per_layer.weight, 1.0 / t.per_layer ** 0.5))
    lin = trunk.per_layer_model_projection.weight
    lin.copy_(draw.normal(lin, 1.0))
    norm = trunk.per_layer_projection_norm.weight
    norm.copy_(draw.uniform(norm, 0.4, 1.6))


def fill_moe(layer, draw, t):
    router, experts = layer.router, layer.experts
    router.proj.weight.copy_(draw.normal(router.proj.weight, 1.5))
    router.scale.copy_(draw.uniform(router.scale, 0.4, 1.6))
    if t.expert_scale:
        router.per_expert_scale.copy_(draw.uniform(router.per_expert_scale, 0.3, 1.9))
    else:
        router.per_expert_scale.fill_(1.0)
    experts.gate_up_proj.copy_(draw.normal(experts.gate_up_proj, 1.3 / t.hidden ** 0.5))
    experts.down_proj.copy_(draw.normal(experts.down_proj, t.moe_gain * 1.3 / t.moe ** 0.5))


def fill_trunk(embed, norm, layers, draw, t):
    embed.weight.copy_(draw.normal(embed.weight, EMBED_STD))
    size = 11.0 / (EMBED_STD * t.hidden ** 0.5)         # logits before the cap with a spread near 11
    norm.weight.copy_(draw.uniform(norm.weight, 0.6, 1.4) * size)
    for layer in layers:
        fill_layer(layer, draw, t)


@torch.no_grad()
def build(t, seed):
    """Returns (diffusion model or None, gemma4 model). For a diffusion row the gemma4 model holds the
    same tensors with the encoder's scalars."""
    draw = Draw(seed)
    ar = gemma4(t)
    if not t.diffusion:
        fill_trunk(ar.model.embed_tokens, ar.model.norm, ar.model.layers, draw, t)
        fill_per_layer(ar.model, draw, t)
        if not t.tied:
            ar.lm_head.weight.copy_(draw.normal(ar.lm_head.weight, EMBED_STD))
        return None, ar
    dg = diffusion(t)
    dec, enc = dg.model.decoder, dg.model.encoder.language_model
    fill_trunk(dec.embed_tokens, dec.norm, dec.layers, draw, t)
    sc = dec.self_conditioning
    sc.pre_norm.weight.copy_(draw.uniform(sc.pre_norm.weight, 0.4, 1.6))
    for lin in (sc.gate_proj, sc.up_proj, sc.down_proj):
        lin.weight.copy_(draw.normal(lin.weight, 1.3 / lin.weight.shape[1] ** 0.5))
    for layer in enc.layers:
        layer.layer_scalar.copy_(draw.uniform(layer.layer_scalar, 0.35, 0.95))
    dg.tie_weights()
    state = {"model." + k: v.clone() for k, v in dec.state_dict().items()
             if not k.startswith("self_conditioning")}
    for i, layer in enumerate(enc.layers):
        state[f"model.layers.{i}.layer_scalar"] = layer.layer_scalar.clone()
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    ar.load_state_dict(state, strict=True)
    check_tied(dg)
    return dg, ar


def check_tied(dg):
    dec = dict(dg.model.decoder.named_parameters())
    for name, p in dg.model.encoder.language_model.named_parameters():
        if p.data_ptr() != dec[name].data_ptr():
            raise SystemExit(f"encoder tensor {name} is not tied to the decoder's")
    if dg.lm_head.weight.data_ptr() != dg.model.decoder.embed_tokens.weight.data_ptr():
        raise SystemExit("lm_head is not tied")
