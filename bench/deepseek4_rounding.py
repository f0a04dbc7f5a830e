#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What rounding of stored rows does to DeepSeek-V4: near and far rows, and index rows with their queries, as the model's
makers store them beside BF16, in which weft keeps them, and beside no rounding.

  bench/deepseek4_rounding.py [TOKENS [SEED]] > bench/results/deepseek4-rounding.json

Rows: the numbers that do not rotate in e4m3 with a power of two for each 64, the others in BF16. Index rows and queries:
a Hadamard transform, then e2m1 with a power of two for each 32. The model is made up: layers without far rows, with those
of 4 positions and of 128, rows and index as wide and choices as many as DeepSeek-V4-Flash has, everything else smaller,
weights drawn as tests/golden draws them, in f32 by transformers' classes. Trained weights may differ less or more: a row
of made-up scores has no index rows that stand out, so many are chosen by little.
"""

import json
import math
import os
import sys

import torch

import facts

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "tests", "golden"))
import tiny_deepseek4  # noqa: E402
from transformers.models.deepseek_v4 import modeling_deepseek_v4 as v4  # noqa: E402

TOKENS = int(sys.argv[1]) if len(sys.argv) > 1 else 3072
SEED = int(sys.argv[2]) if len(sys.argv) > 2 else 1
MODEL = tiny_deepseek4.Tiny("rounding", SEED, ratios=(0, 4, 128, 4, 128, 4), vocab=512, hidden=512, heads=8, head_dim=512,
                            rotated=64, q_rank=256, groups=4, out_rank=128, near=128, streams=4, rounds=20, floor=1e-6,
                            index_heads=16, index_dim=128, index_k=512, experts=8, top_k=2, moe=256, hashed=1, factor=1.5,
                            limit=10.0, theta=1e4, theta_far=1.6e5, yarn=(16.0, 65536))


def as_e4m3(x):
    """Blocks of 64."""
    parts = x.unflatten(-1, (-1, 64))
    step = torch.exp2(torch.ceil(torch.log2(parts.abs().amax(-1, keepdim=True).clamp(min=1e-4) / 448.0)))
    return ((parts / step).to(torch.float8_e4m3fn).to(x.dtype) * step).flatten(-2)


def as_e2m1(x):
    """Blocks of 32, ties to the number whose last bit is 0."""
    values = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    borders = (values[1:] + values[:-1]) / 2
    parts = x.unflatten(-1, (-1, 32))
    step = torch.exp2(torch.ceil(torch.log2(parts.abs().amax(-1, keepdim=True).clamp(min=1e-6) / 6.0)))
    size = (parts / step).abs().contiguous()
    up, down = torch.bucketize(size, borders, right=True), torch.bucketize(size, borders)
    index = torch.where(up == down, up, torch.where(up % 2 == 0, up, down))
    return (values[index] * parts.sign() * step).flatten(-2)


def turned(x):
    """By the Hadamard matrix of its width, which keeps lengths."""
    n = x.shape[-1]
    h = torch.ones(1, 1)
    while h.shape[0] < n:
        h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)], 0)
    return x @ (h / math.sqrt(n))


def bf16(x):
    return x.to(torch.bfloat16).to(x.dtype)


def makers_rows(x):
    still = MODEL.head_dim - MODEL.rotated
    return torch.cat([as_e4m3(x[..., :still]), bf16(x[..., still:])], -1)


def makers_index(x):
    return as_e2m1(turned(x))


# what rounds rows, index rows and queries of the index; None: nothing
WAYS = {"none": (None, None, None), "bf16": (bf16, bf16, None), "e4m3 rows": (makers_rows, bf16, None),
        "e4m3 rows, e2m1 index": (makers_rows, makers_index, makers_index)}


@torch.no_grad()
def run(model, tokens, way):
    """Log probabilities of all positions, and what the index chose in each layer that has one."""
    rows, keys, queries = WAYS[way]
    attend, score, choose = v4.eager_attention_forward, v4.DeepseekV4IndexerScorer.forward, v4.DeepseekV4Indexer.forward
    chosen = []

    def attend_rounded(module, query, key, value, *args, **kwargs):
        key = key if rows is None else rows(key)
        return attend(module, query, key, key, *args, **kwargs)

    def score_rounded(self, q, compressed, hidden):
        return score(self, q if queries is None else queries(q), compressed if keys is None else keys(compressed), hidden)

    def choose_kept(self, *args):
        chosen.append(choose(self, *args))
        return chosen[-1]

    v4.eager_attention_forward, v4.DeepseekV4IndexerScorer.forward = attend_rounded, score_rounded
    v4.DeepseekV4Indexer.forward = choose_kept
    try:
        logits = model(tokens, use_cache=False).logits[0]
    finally:
        v4.eager_attention_forward, v4.DeepseekV4IndexerScorer.forward = attend, score
        v4.DeepseekV4Indexer.forward = choose
    return logits.double().log_softmax(-1), chosen


def share_of_other_choices(a, b):
    """Of the rows chosen where more can be seen than are chosen, those that the other does not choose, by layer."""
    first, out = MODEL.index_k * 4, []
    for x, y in zip(a, b):
        seen = torch.zeros(2, TOKENS, TOKENS // 4 + 1, dtype=torch.bool)
        for i, ids in enumerate((x, y)):
            seen[i].scatter_(1, ids[0] + (ids[0] < 0) * (TOKENS // 4 + 1), True)
        seen = seen[:, first:, :-1]
        out.append((seen[0] & ~seen[1]).sum().item() / max(1, seen[0].sum().item()))
    return out


def main():
    model = tiny_deepseek4.build(MODEL, SEED)
    model.model.norm.weight.data *= 10.0  # so that tokens are about as uncertain as those of a language model
    tokens = torch.randint(0, MODEL.vocab, (1, TOKENS), generator=torch.Generator().manual_seed(SEED + 1))
    ways = {way: run(model, tokens, way) for way in WAYS}
    plain = ways["none"]
    begin = facts.facts({"made_by": "bench/deepseek4_rounding.py"}, "cpu, f32, transformers")
    begin |= {"command": f"bench/deepseek4_rounding.py {TOKENS} {SEED}", "runs": "one: not timed", "spread": "none: not timed",
              "positions": TOKENS}
    out = []
    for way, (logs, chosen) in ways.items():
        if way == "none":
            continue
        kl = (plain[0].exp() * (plain[0] - logs)).sum(-1)
        out.append({"rows": way, "beside": "no rounding", "kl_mean": kl.mean().item(), "kl_median": kl.median().item(),
                    "kl_median_behind_2048": kl[2048:].median().item() if TOKENS > 2048 else None,
                    "best_token_equal": (logs.argmax(-1) == plain[0].argmax(-1)).double().mean().item(),
                    "entropy": -(plain[0].exp() * plain[0]).sum(-1).mean().item(),
                    "other_choices_by_layer": share_of_other_choices(plain[1], chosen)})
    out[0] = begin | out[0]
    short = [{k: float(f"{x:.3g}") if isinstance(x, float) else [float(f"{y:.3g}") for y in x] if isinstance(x, list) else x
              for k, x in row.items()} for row in out]
    print("[\n" + ",\n".join(json.dumps(x) for x in short) + "\n]")


if __name__ == "__main__":
    main()
