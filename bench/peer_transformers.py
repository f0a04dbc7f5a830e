#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""transformers as a peer: a random DiffusionGemma of the 26B-A4B shapes in bf16 on the card. One JSON object per work:
canvas steps over a prompt of 512 tokens (forward pass with self-conditioning, then argmax, entropy and a draw of every
row) and decoding of one sequence by a Gemma 4 of the same shapes.

usage: peer_transformers.py [--tiny] [--experts eager|batched_mm|grouped_mm] [--canvases N]...
"""
import argparse
import json
import statistics
import time

import torch
import transformers
from transformers import DiffusionGemmaConfig, DiffusionGemmaForBlockDiffusion, DynamicCache
from transformers import Gemma4ForCausalLM, Gemma4TextConfig
from transformers.models.diffusion_gemma.configuration_diffusion_gemma import DiffusionGemmaTextConfig
from transformers.models.gemma4.configuration_gemma4 import Gemma4VisionConfig

BIG = dict(vocab_size=262144, hidden_size=2816, intermediate_size=2112, moe_intermediate_size=704, num_experts=128,
           top_k_experts=8, num_hidden_layers=30, num_attention_heads=16, num_key_value_heads=8, head_dim=256,
           num_global_key_value_heads=2, global_head_dim=512, sliding_window=1024)
TINY = dict(BIG, vocab_size=1024, hidden_size=256, intermediate_size=256, moe_intermediate_size=64, num_experts=16,
            num_hidden_layers=6, num_attention_heads=4, num_key_value_heads=2, head_dim=64, global_head_dim=128)
PROMPT = 512


def text_options(sizes):
    kinds = ["full_attention" if i % 6 == 5 else "sliding_attention" for i in range(sizes["num_hidden_layers"])]
    rope = {"sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6}}
    return dict(sizes, layer_types=kinds, rope_parameters=rope, final_logit_softcapping=30.0, rms_norm_eps=1e-6,
                max_position_embeddings=262144)


def open_model(kind, config, experts):
    if experts:
        config._experts_implementation = getattr(config, "text_config", config)._experts_implementation = experts
    with torch.device("cuda"):
        model = kind(config).eval()
    model.tie_weights()
    for module in model.modules():  # so that tokens spread over the experts
        if hasattr(module, "router"):
            torch.nn.init.normal_(module.router.proj.weight, std=1.0)
    return model


def open_diffusion(sizes, experts):
    vision = Gemma4VisionConfig(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1,
                                num_key_value_heads=1, head_dim=16, position_embedding_size=16)
    config = DiffusionGemmaConfig(text_config=DiffusionGemmaTextConfig(**text_options(sizes)), vision_config=vision,
                                  canvas_length=256)
    return open_model(DiffusionGemmaForBlockDiffusion, config, experts)


def open_gemma(sizes, experts):
    config = Gemma4TextConfig(**text_options(sizes), hidden_size_per_layer_input=0, attention_k_eq_v=True,
                              enable_moe_block=True, tie_word_embeddings=True)
    return open_model(Gemma4ForCausalLM, config, experts)


class Touched:
    """Distinct experts per layer and step, averaged."""

    def __init__(self, layers):
        self.counts = []
        self.handles = [layer.router.register_forward_hook(self.routed) for layer in layers]

    def routed(self, _module, _args, out):
        ids = next(x for x in out if x.dtype in (torch.int64, torch.int32))
        self.counts.append(ids.unique().numel())

    def mean(self):
        for handle in self.handles:
            handle.remove()
        return round(statistics.mean(self.counts), 1)


def timed(step, n, warm=3):
    times = []
    for i in range(n + warm):
        torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append(1000 * (time.perf_counter() - start))
    times = sorted(times[warm:])
    return statistics.median(times), times[-1] - times[0]


def canvas_step(model, n, vocabulary, canvas=256):
    cache = DynamicCache(config=model.config.text_config)
    model.model.encoder(input_ids=torch.randint(5, vocabulary, (n, PROMPT), device="cuda"), past_key_values=cache)
    state = dict(tokens=torch.randint(5, vocabulary, (n, canvas), device="cuda"), logits=None)
    mask = torch.ones(n, PROMPT + canvas, dtype=torch.bool, device="cuda")

    def step():
        logits = model(decoder_input_ids=state["tokens"], past_key_values=cache, decoder_attention_mask=mask,
                       self_conditioning_logits=state["logits"]).logits
        state["logits"] = logits = logits / 0.6
        log_p = torch.log_softmax(logits.float(), dim=-1)
        p = log_p.exp()
        entropy = -(p * log_p).sum(-1)
        drawn = torch.multinomial(p.view(-1, vocabulary), 1).view(n, canvas)
        state["tokens"] = torch.where(entropy < 0.1, logits.argmax(-1), drawn)

    return step


def decode_step(model, vocabulary):
    cache = DynamicCache(config=model.config)
    prompt = torch.randint(5, vocabulary, (1, PROMPT), device="cuda")
    state = dict(token=prompt[:, -1:])
    model(input_ids=prompt, past_key_values=cache, use_cache=True, logits_to_keep=1)

    def step():
        logits = model(input_ids=state["token"], past_key_values=cache, use_cache=True, logits_to_keep=1).logits
        state["token"] = logits[:, -1:].argmax(-1)

    return step


def report(work, model, layers, step, unit):
    step()
    touched = Touched(layers)
    step()
    n_touched = touched.mean()
    median, spread = timed(step, 15)
    if unit == "tok/s":
        median, spread = 1000 / median, 1000 / median * spread / median
    config = getattr(model.config, "text_config", model.config)
    by = f"transformers {transformers.__version__}, bf16, experts {config._experts_implementation}, " \
         f"attention {config._attn_implementation}"
    print(json.dumps(dict(work=work, peer=by, device=torch.cuda.get_device_name(), median=round(median, 2),
                          spread=round(spread, 2), unit=unit, n_prompt=PROMPT, experts_touched=n_touched,
                          peak_gib=round(torch.cuda.max_memory_allocated() / 2**30, 1))), flush=True)


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--experts")
    parser.add_argument("--canvases", type=int, action="append")
    args = parser.parse_args()
    sizes = TINY if args.tiny else BIG
    torch.manual_seed(1)
    torch.set_default_dtype(torch.bfloat16)
    model = open_diffusion(sizes, args.experts)
    for n in args.canvases or [1]:
        step = canvas_step(model, n, sizes["vocab_size"])
        report(f"canvas step, {n} at once", model, model.model.decoder.layers, step, "ms/step")
    del model, step
    torch.cuda.empty_cache()
    model = open_gemma(sizes, args.experts)
    report("decode, 1 at once", model, model.model.layers, decode_step(model, sizes["vocab_size"]), "tok/s")


main()
