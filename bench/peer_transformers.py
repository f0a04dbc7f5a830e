#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""transformers as a peer: random weights of the 26B-A4B shapes in bf16 on the card. One JSON object per work: canvas steps
of a DiffusionGemma over prompts of 512 tokens (forward pass with self-conditioning, then argmax, entropy and a draw of every
row); decoding of 1, 8 and 32 sequences, and a prompt of 2048, by a Gemma 4 of the same shapes. What would begin after --seconds is
left out.

usage: peer_transformers.py [--tiny] [--device cuda|cpu] [--experts eager|batched_mm|grouped_mm] [--canvases N]...
                            [--sequences N]... [--seconds S]
"""
import argparse
import gc
import json
import os
import statistics
import sys
import time

import torch
import transformers
from transformers import DiffusionGemmaConfig, DiffusionGemmaForBlockDiffusion, DynamicCache
from transformers import Gemma4ForCausalLM, Gemma4TextConfig
from transformers.models.diffusion_gemma.configuration_diffusion_gemma import DiffusionGemmaTextConfig
from transformers.models.gemma4.configuration_gemma4 import Gemma4VisionConfig

sys.path[:0] = [os.path.dirname(os.path.abspath(__file__))]
import facts

BIG = dict(vocab_size=262144, hidden_size=2816, intermediate_size=2112, moe_intermediate_size=704, num_experts=128,
           top_k_experts=8, num_hidden_layers=30, num_attention_heads=16, num_key_value_heads=8, head_dim=256,
           num_global_key_value_heads=2, global_head_dim=512, sliding_window=1024)
TINY = dict(BIG, vocab_size=1024, hidden_size=256, intermediate_size=256, moe_intermediate_size=64, num_experts=16,
            num_hidden_layers=6, num_attention_heads=4, num_key_value_heads=2, head_dim=64, global_head_dim=128)
PROMPT, LONG_PROMPT = 512, 2048
DEVICE = "cuda"
BEGAN = time.perf_counter()


def text_options(sizes):
    kinds = ["full_attention" if i % 6 == 5 else "sliding_attention" for i in range(sizes["num_hidden_layers"])]
    rope = {"sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6}}
    return dict(sizes, layer_types=kinds, rope_parameters=rope, final_logit_softcapping=30.0, rms_norm_eps=1e-6,
                max_position_embeddings=262144)


def open_model(kind, config, experts):
    if experts:
        config._experts_implementation = getattr(config, "text_config", config)._experts_implementation = experts
    with torch.device(DEVICE):
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


def settle():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def timed(step, n_most=15, seconds=6.0, warm=2):
    """Median and spread in ms, and how many, of up to n_most steps, fewer when they take longer than so many seconds."""
    times, began = [], time.perf_counter()
    while len(times) < n_most + warm and (len(times) < warm + 3 or time.perf_counter() - began < seconds):
        settle()
        start = time.perf_counter()
        step()
        settle()
        times.append(1000 * (time.perf_counter() - start))
    times = sorted(times[warm:])
    return statistics.median(times), times[-1] - times[0], len(times)


def canvas_step(model, n, vocabulary, canvas=256):
    cache = DynamicCache(config=model.config.text_config)
    model.model.encoder(input_ids=torch.randint(5, vocabulary, (n, PROMPT), device=DEVICE), past_key_values=cache)
    state = dict(tokens=torch.randint(5, vocabulary, (n, canvas), device=DEVICE), logits=None)
    mask = torch.ones(n, PROMPT + canvas, dtype=torch.bool, device=DEVICE)

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


def decode_step(model, n, vocabulary):
    cache = DynamicCache(config=model.config)
    prompt = torch.randint(5, vocabulary, (n, PROMPT), device=DEVICE)
    state = dict(tokens=prompt[:, -1:])
    model(input_ids=prompt, past_key_values=cache, use_cache=True, logits_to_keep=1)

    def step():
        logits = model(input_ids=state["tokens"], past_key_values=cache, use_cache=True, logits_to_keep=1).logits
        state["tokens"] = logits[:, -1:].argmax(-1)

    return step


def prefill_step(model, vocabulary):
    prompt = torch.randint(5, vocabulary, (1, LONG_PROMPT), device=DEVICE)

    def step():
        model(input_ids=prompt, past_key_values=DynamicCache(config=model.config), use_cache=True,
              logits_to_keep=1).logits.argmax(-1)

    return step


def report(work, model, layers, make_step, n_tokens, n_prompt, seconds):
    """n_tokens 0: ms per step; else tokens of a step, and their rate."""
    if time.perf_counter() - BEGAN > seconds:
        print(json.dumps(dict(work=work, left_out=f"{seconds} s are over")), flush=True)
        return
    step = make_step()
    step()
    touched = Touched(layers)
    step()
    n_touched = touched.mean()
    median, spread, runs = timed(step)
    unit = "ms/step"
    if n_tokens > 0:
        median, spread, unit = 1000 * n_tokens / median, 1000 * n_tokens / median * spread / median, "tok/s"
    config = getattr(model.config, "text_config", model.config)
    by = f"transformers {transformers.__version__}, bf16, experts {config._experts_implementation}, " \
         f"attention {config._attn_implementation}"
    cuda, is_tiny = DEVICE == "cuda", "--tiny" in sys.argv
    begin = facts.facts(dict(made_by=f"bench/peer_transformers.py{' --tiny' if is_tiny else ''}, random weights"),
                        torch.cuda.get_device_name() if cuda else facts.processors())
    print(json.dumps(dict(begin, command=" ".join(["bench/peer_transformers.py", *sys.argv[1:]]), work=work, peer=by, median=round(median, 2),
                          runs=runs, spread=round(spread, 2), unit=unit, n_prompt=n_prompt, experts_touched=n_touched,
                          peak_gib=round(torch.cuda.max_memory_allocated() / 2**30, 1) if cuda else None)), flush=True)


@torch.no_grad()
def main():
    global DEVICE
    parser = argparse.ArgumentParser()
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--experts")
    parser.add_argument("--canvases", type=int, action="append")
    parser.add_argument("--sequences", type=int, action="append")
    parser.add_argument("--seconds", type=float, default=85.0)
    args = parser.parse_args()
    DEVICE, sizes = args.device, TINY if args.tiny else BIG
    vocabulary, seconds = sizes["vocab_size"], args.seconds
    torch.manual_seed(1)
    torch.set_default_dtype(torch.bfloat16)
    model = open_diffusion(sizes, args.experts)
    for n in args.canvases or [1]:
        report(f"canvas step, {n} at once", model, model.model.decoder.layers,
               lambda n=n: canvas_step(model, n, vocabulary), 0, PROMPT, seconds)
    del model
    gc.collect()
    if DEVICE == "cuda":
        torch.cuda.empty_cache()
    model = open_gemma(sizes, args.experts)
    for n in args.sequences or [1, 8, 32]:
        report(f"decode, {n} at once", model, model.model.layers, lambda n=n: decode_step(model, n, vocabulary), n, PROMPT,
               seconds)
    report(f"prefill {LONG_PROMPT}", model, model.model.layers, lambda: prefill_step(model, vocabulary), LONG_PROMPT,
           LONG_PROMPT, seconds)


main()
