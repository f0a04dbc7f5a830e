# SPDX-License-Identifier: MIT
"""Checks the PyTorch model of model.py against the committed reference logits in
tests/golden/models.

Those logits come from the transformers classes. The check reads each GGUF file by the names that
export.py writes, so it also holds the export's names, shapes and keys. Files with what neither the
demo nor its drafter has (split experts, V on full layers, untied heads) are passed over by name.

    python3 check_reference.py
"""

import glob
import os
import sys

import gguf
import numpy as np
import torch

from export import tensors
from model import Config, Demo, canvas_masks, causal_masks

MODELS = os.path.join(
    os.path.dirname(os.path.abspath(__file__)), "..", "..", "tests", "golden", "models"
)


def field(reader, key, default=None):
    f = reader.fields.get(key)
    return default if f is None else f.contents()


def read(path):
    """A Demo with the file's tensors, or the reason why it cannot be one."""
    r = gguf.GGUFReader(path)
    arch = field(r, "general.architecture")
    get = lambda key: field(r, f"{arch}.{key}")
    have = {t.name: np.array(gguf.quants.dequantize(t.data, t.tensor_type)) for t in r.tensors}
    pattern, kv = get("attention.sliding_window_pattern"), get("attention.head_count_kv")
    if not isinstance(pattern, list) or not isinstance(kv, list):
        return "scalar keys"
    if isinstance(get("feed_forward_length"), list):
        return "sizes by layer"
    kinds = tuple("s" if s else "f" for s in pattern)
    cfg = Config(
        vocab=have["token_embd.weight"].shape[0],
        hidden=get("embedding_length"),
        layers=kinds,
        heads=get("attention.head_count"),
        kv_heads=dict(zip(kinds, kv)),
        head_dim={"s": get("attention.key_length_swa"), "f": get("attention.key_length")},
        window=get("attention.sliding_window"),
        experts=get("expert_count") or 0,
        top_k=get("expert_used_count") or 0,
        expert_size=get("expert_feed_forward_length") or 0,
        dense_size=get("feed_forward_length"),
        canvas=field(r, "diffusion.canvas_length", 0),
        softcap=get("final_logit_softcapping"),
        eps=get("attention.layer_norm_rms_epsilon"),
        theta={"s": get("rope.freq_base_swa"), "f": get("rope.freq_base")},
    )
    model = Demo(cfg)
    names = {n for n, _, _ in tensors(model, arch != "gemma4")}
    if names != set(have):
        return "other tensors: " + " ".join(sorted(names ^ set(have))[:3])
    params = {}
    with torch.no_grad():
        for name, array, _ in tensors(
            model, arch != "gemma4"
        ):  # the arrays share the parameters' memory
            if name == "rope_freqs.weight":
                if not np.array_equal(array, have[name]):
                    return "other rope frequencies"
                continue
            array[...] = have[name].reshape(array.shape)
            params[name] = array
    return model


def run_case(model, lines, expected):
    """Replays one case; returns the largest error over the range of the expected logits."""
    worst, seen, n = 0.0, [], model.cfg.vocab
    for words in lines:
        if words[0] == "encode":
            fresh = [int(t) for t in words[3].split(",")]
            seen += fresh
            ids = torch.tensor([seen])
            masks = causal_masks(model.cfg, len(seen), "cpu")
            x, kvs, _ = model.encode(ids, torch.arange(len(seen))[None], masks)
            got = model.head(x)[0, -len(fresh) :]
        elif words[0] == "canvas":
            canvas = torch.tensor([[int(t) for t in words[5].split(",")]])
            soft = None
            if words[3] != "none":
                before = torch.from_numpy(
                    expected[int(words[3]) :][: canvas.numel() * n].copy()
                ).view(1, -1, n)
                soft = model.soften(before, float(words[4]))
            positions = torch.arange(len(seen), len(seen) + canvas.shape[1])[None]
            x, _ = model.denoise(
                canvas,
                soft,
                positions,
                kvs,
                canvas_masks(model.cfg, torch.tensor([len(seen)]), len(seen)),
            )
            got = model.head(x)[0]
        else:
            continue
        want = torch.from_numpy(expected[int(words[2]) :][: got.numel()].copy()).view_as(got)
        worst = max(worst, ((got - want).abs().max() / (want.max() - want.min())).item())
    return worst


@torch.no_grad()
def main():
    checked, failed = 0, 0
    for path in sorted(glob.glob(os.path.join(MODELS, "*.cases.txt"))):
        name = os.path.basename(path)[: -len(".cases.txt")]
        model = read(path[: -len(".cases.txt")] + ".gguf")
        if isinstance(model, str):
            print(f"{name}: passed over ({model})")
            continue
        expected = np.fromfile(path[: -len(".cases.txt")] + ".f32", dtype="<f4")
        cases, worst = [], 0.0
        with open(path, encoding="ascii") as f:
            for line in f:
                words = line.split()
                if words[0] == "case":
                    cases.append([])
                elif cases:
                    cases[-1].append(words)
        for lines in cases:
            worst = max(worst, run_case(model, lines, expected))
        checked += 1
        failed += worst > 2e-4
        print(f"{name}: {len(cases)} cases, largest error {worst:.2e} of the range")
    print(f"{checked} models, {failed} failed")
    sys.exit(1 if failed or not checked else 0)


if __name__ == "__main__":
    main()
