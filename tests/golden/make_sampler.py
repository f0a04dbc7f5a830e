# SPDX-License-Identifier: MIT
"""Makes sampler/injected.{txt,f32}, sampler/random.{txt,q24} and sampler/generate.{txt,q24}.

    python make_sampler.py

Every line comes from the `generate` method of transformers' DiffusionGemmaForBlockDiffusion itself. Only
its sources of chance are replaced: torch.multinomial returns the array D, torch.randint the initial canvas
and the renoise tokens. For `injected` and `random` the forward pass is replaced too, by prepared logits; for
`generate` the tiny models of models/ run for real. README.md states the format.
"""

import math
import os

import gguf
import numpy as np
import torch
from transformers.models.diffusion_gemma import generation_diffusion_gemma as gen
from transformers.models.diffusion_gemma.modeling_diffusion_gemma import (
    DiffusionGemmaBlockDiffusionOutputWithPast as Output)

import golden_floats
import tiny_configs
import tiny_models

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "sampler")
LN2 = float(np.float32(math.log(2.0)))


class Trace:
    """Replaces the sources of chance during one `generate` and keeps everything that it decides."""

    def __init__(self, canvas, vocab, seed, logits_of=None, draws_of=None):
        self.canvas, self.vocab = canvas, vocab
        self.g = torch.Generator().manual_seed(seed)
        self.logits_of, self.draws_of = logits_of, draws_of
        self.blocks, self.randoms, self.block, self.step = [], [], -1, 0

    def randint(self, low, high, size, device=None):
        x = torch.randint(low, high, size, generator=self.g)
        self.randoms.append(x[0].tolist())
        return x

    def multinomial(self, probs, num_samples):
        drawn = None
        if self.draws_of is not None:
            drawn = self.draws_of(self.block, self.step)
        if drawn is None:
            u = torch.rand((probs.shape[0], 1), generator=self.g)
            drawn = (probs.cumsum(-1) < u).sum(-1).clamp(max=self.vocab - 1).tolist()
        self.now["drawn"] = list(drawn)
        return torch.tensor(drawn)[:, None]

    def entropy(self, dist):
        h = self.real_entropy(dist)
        self.now.setdefault("entropy", h[0].detach().clone())
        return h

    def schedule(self, processor, input_ids, scores, cur_step):
        kept = Divided(scores)
        out = self.real_schedule(processor, input_ids, kept, cur_step=cur_step)
        self.now = {"temperature": kept.by.item(), "logits": scores[0].detach().clone()}
        self.blocks[-1]["steps"].append(self.now)
        return out

    def accept(self, sampler, *args):
        out = self.real_accept(sampler, *args)
        self.now["accepted"] = sampler.accepted_token_mask[0].tolist()
        return out

    def stopping(self, criteria, argmax_canvas, logits):
        stop = self.real_stop(criteria, argmax_canvas, logits)
        self.now["argmax"] = argmax_canvas[0].tolist()
        self.now["stop"] = bool(stop[0])
        return stop

    def denoisers(self, model, *args, **kwargs):
        out = self.real_denoisers(model, *args, **kwargs)
        self.block, self.step = self.block + 1, 0
        self.blocks.append({"init": out[0][0].tolist(), "steps": []})
        return out

    def denoise(self, model, **kwargs):
        out = self.real_step(model, **kwargs)
        self.now["renoise"] = self.randoms[-1]
        self.now["next"] = out[0][0].tolist()
        self.step += 1
        return out

    def finalize(self, *args, **kwargs):
        ids, finished = self.real_finalize(*args, **kwargs)
        self.blocks[-1]["emit"] = ids[0, -self.canvas:].tolist()
        self.blocks[-1]["finished"] = bool(finished[0])
        return ids, finished

    def forward(self, decoder_input_ids, past_key_values, **_kwargs):
        logits = self.logits_of(self.block, self.step)
        return Output(logits=torch.tensor(logits, dtype=torch.float32)[None])

    def run(self, model, prompt, **params):
        mixin = gen.DiffusionGemmaGenerationMixin
        cat, lin = torch.distributions.Categorical, gen.LinearTemperatureScheduleLogitsProcessor
        eb, stop = gen.EntropyBoundSampler, gen.StableAndConfidentStoppingCriteria
        self.real_entropy, self.real_schedule = cat.entropy, lin.__call__
        self.real_accept, self.real_stop = eb.accept_canvas, stop.__call__
        self.real_denoisers, self.real_step = mixin._prepare_denoiser_inputs, mixin._denoising_step
        self.real_finalize = mixin._finalize_canvas
        patches = [
            (eb, "initialize_canvas", lambda s, batch_size, device:
                self.randint(0, s.vocab_size, (batch_size, s.canvas_length))),
            (torch, "multinomial", lambda probs, num_samples: self.multinomial(probs, num_samples)),
            (cat, "entropy", lambda d: self.entropy(d)),
            (lin, "__call__", lambda s, ids, scores, cur_step: self.schedule(s, ids, scores, cur_step)),
            (eb, "accept_canvas", lambda s, *a: self.accept(s, *a)),
            (stop, "__call__", lambda s, a, z: self.stopping(s, a, z)),
            (mixin, "_prepare_denoiser_inputs", lambda m, *a, **k: self.denoisers(m, *a, **k)),
            (mixin, "_denoising_step", lambda m, **k: self.denoise(m, **k)),
            (mixin, "_finalize_canvas", lambda m, *a, **k: self.finalize(*a, **k))]
        if self.logits_of is not None:
            patches.append((model, "forward", self.forward))
        with Patched(patches):
            model.generate(torch.tensor([prompt]), **params)
        return self.blocks


class Divided:
    """Stands for the scores in the temperature schedule and keeps what they are divided by."""

    def __init__(self, scores):
        self.scores = scores

    def __truediv__(self, by):
        self.by = by
        return self.scores / by


class Patched:
    def __init__(self, patches):
        self.patches = patches

    def __enter__(self):
        self.old = [(o, n, o.__dict__.get(n)) for o, n, _ in self.patches]
        for o, n, f in self.patches:
            setattr(o, n, f)

    def __exit__(self, *_exc):
        for o, n, f in self.old:
            if f is None:
                delattr(o, n)
            else:
                setattr(o, n, f)


class Writer:
    def __init__(self, name):
        self.base, self.parts, self.count, self.written = os.path.join(OUT, name), [], 0, {}
        self.lines = ["weft-golden-sampler 1"]

    def floats(self, x):
        """Where they stand: equal ones, as most prepared logits are, stand there once."""
        x = np.ascontiguousarray(x.numpy(), dtype="<f4")
        at = self.written.setdefault(x.tobytes(), self.count)
        if at < self.count:
            return at
        at, self.count = self.count, self.count + x.size
        self.parts.append(x.tobytes())
        return at

    def case(self, name, vocab, canvas, p, blocks, extra=()):
        add = self.lines.append
        add(f"case {name}")
        self.lines.extend(extra)
        add(f"sizes {vocab} {canvas}")
        numbers = [p["max_denoising_steps"], p["t_min"], p["t_max"], p["sampler_config"].entropy_bound,
                   p["stability_threshold"], p["confidence_threshold"], p["max_new_tokens"]]
        add("params " + " ".join(f"{x:.9g}" for x in numbers))
        add(f"eos {join(p['eos_token_id'])}")
        add(f"pad {p['pad_token_id']}")
        for b in blocks:
            add(f"block {len(b['steps'])} {join(b['init'])}")
            for s in b["steps"]:
                self.step(s)
            add(f"emit {int(b['finished'])} {join(b['emit'])}")

    def step(self, s):
        add = self.lines.append
        add(f"step {s['temperature']:.9g} {self.floats(s['logits'])} {self.floats(s['entropy'])}")
        add(f"drawn {join(s['drawn'])}")
        add(f"renoise {join(s['renoise'])}")
        add(f"argmax {join(s['argmax'])}")
        add("accepted " + "".join("01"[bool(x)] for x in s["accepted"]))
        add(f"next {join(s['next'])}")
        add(f"stop {int(s['stop'])}")

    def save(self):
        if not self.base.endswith("injected"):  # its floats have ties, which only whole floats keep
            ends = np.cumsum([len(x) // 4 for x in self.parts]).tolist()
            golden_floats.write(self.base, np.frombuffer(b"".join(self.parts), "<f4"),
                                [(end - len(x) // 4, len(x) // 4) for x, end in zip(self.parts, ends)])
        else:
            with open(self.base + ".f32", "wb") as f:
                f.write(b"".join(self.parts))
        with open(self.base + ".txt", "w", encoding="ascii") as f:
            f.write("\n".join([self.lines[0], f"n_floats {self.count}"] + self.lines[1:]) + "\n")


def join(tokens):
    return ",".join(str(int(x)) for x in tokens)


def params(n=4, t_min=0.4, t_max=0.8, bound=0.1, stable=1, confident=0.005, new=8, eos=(1,), pad=0):
    return dict(max_denoising_steps=n, t_min=t_min, t_max=t_max, stability_threshold=stable,
                sampler_config=gen.EntropyBoundSamplerConfig(entropy_bound=bound),
                confidence_threshold=confident, max_new_tokens=new, eos_token_id=list(eos),
                pad_token_id=pad)


def margin(blocks, p):
    """How far the nearest decision is from going the other way by rounding."""
    near = float("inf")
    for b in blocks:
        for s in b["steps"]:
            h = torch.sort(s["entropy"].double()).values
            near = min(near, (h.cumsum(0) - h - p["sampler_config"].entropy_bound).abs()[1:].min().item())
            near = min(near, abs(h.mean().item() - p["confidence_threshold"]))
            near = min(near, (h[1:] - h[:-1]).min().item() * 100)
            top = torch.topk(s["logits"].double(), 2).values
            near = min(near, (top[:, 0] - top[:, 1]).min().item())
    return near


# ----------------------------------------------------------------------------- prepared logits

def rows_of(kinds, vocab):
    """Rows by kind: ("sure", t) entropy 0 (below 1e-27); ("pair", a, b) exactly ln 2 in float32, since its
    two logits are 0; ("flat",) about ln vocab."""
    out = np.full((len(kinds), vocab), -29.0, dtype=np.float32)
    for row, kind in zip(out, kinds):
        if kind[0] == "flat":
            row[:] = 0.0
        for t in kind[1:]:
            row[t] = 29.5 if kind[0] == "sure" else 0.0
    return out


def exact_cases():
    """(name, vocab, canvas, params, logits of (block, step)): every entropy is 0, ln 2 or ln V exactly."""
    sure = [("sure", t) for t in (9, 8, 7, 6, 5, 4, 3, 2)]
    pair = [("pair", 10 + i, 20 + i) for i in range(8)]

    def fixed(kinds):
        return lambda block, step: rows_of(kinds, 32)

    def alternate(a, b):
        return lambda block, step: rows_of(a if step % 2 == 0 else b, 32)

    below = float(np.nextafter(np.float32(LN2), np.float32(0)))
    quarter = LN2 / 4
    two = sure[:3] + [pair[3]] + sure[4:6] + [pair[6]] + sure[7:]
    flat = [("flat",)] * 8
    swapped = [("sure", 11)] + sure[1:]
    eos_at_3 = sure[:3] + [("sure", 1)] + sure[4:5] + [("sure", 31), ("sure", 1)] + sure[7:]
    out = [
        ("all-sure-stops-at-2", params(), fixed(sure)),
        ("all-sure-stable-0-stops-at-1", params(stable=0), fixed(sure)),
        ("all-sure-stable-3", params(n=6, stable=3), fixed(sure)),
        ("alternating-never-stable", params(n=5), alternate(sure, swapped)),
        ("alternating-stable-2", params(n=7, stable=2), alternate(sure, swapped)),
        ("one-above-bound-alone", params(bound=0.5), fixed(sure[:4] + [pair[4]] + sure[5:])),
        ("all-flat-rank-0-only", params(bound=0.1, n=3), fixed(flat)),
        ("one-flat-others-sure", params(bound=0.1), fixed(sure[:6] + [("flat",)] + sure[7:])),
        ("exclusive-sum-equals-bound", params(bound=LN2), fixed(two)),
        ("exclusive-sum-just-above", params(bound=below), fixed(two)),
        ("mean-equals-confidence", params(confident=quarter, bound=2.0), fixed(two)),
        ("mean-below-confidence", params(confident=float(np.nextafter(np.float32(quarter), np.float32(1))),
                                         bound=2.0), fixed(two)),
        ("equal-entropies-lower-position-first", params(bound=LN2, n=2), fixed(pair)),
        ("one-step", params(n=1), fixed(two)),
        ("schedule-48", params(n=48, new=4), fixed(flat[:4])),
        ("eos-inside-block", params(new=24, eos=(1, 31)), fixed(eos_at_3)),
        ("eos-absent-three-blocks", params(new=20), fixed(sure)),
        ("eos-in-second-block", params(new=40, eos=(31,), pad=5),
         lambda block, step: rows_of(eos_at_3 if block == 1 else sure, 32)),
        ("history-cleared-at-block", params(new=16, n=3), fixed(sure)),
    ]
    return [(name, 32, 4 if name == "schedule-48" else 8, p, f) for name, p, f in out]


def check_meaning(name, blocks):
    """The cases at an exact edge must fall on the side that their names say."""
    first = blocks[0]["steps"]
    meaning = {
        "exclusive-sum-equals-bound": all(all(s["accepted"]) for s in first),
        "exclusive-sum-just-above": all(sum(s["accepted"]) == 7 and not s["accepted"][6] for s in first),
        "mean-equals-confidence": len(first) == 4 and not any(s["stop"] for s in first),
        "mean-below-confidence": len(first) == 2 and first[1]["stop"],
        "equal-entropies-lower-position-first": first[0]["accepted"] == [True] * 2 + [False] * 6}
    if not meaning.get(name, True):
        raise SystemExit(f"{name}: the reference decided otherwise")


def random_case(seed):
    """Logits that sharpen step by step, as a real denoising does, at sizes that vary."""
    r = np.random.default_rng(seed)
    vocab, canvas = int(r.choice([17, 32, 50])), int(r.choice([5, 8, 12]))
    p = params(n=int(r.integers(3, 9)), t_min=round(float(r.uniform(0.2, 0.6)), 2),
               t_max=round(float(r.uniform(0.7, 1.2)), 2), bound=float(np.float32(r.uniform(0.05, 3.0))),
               stable=int(r.integers(0, 3)), confident=float(np.float32(r.uniform(0.01, 0.8))),
               new=canvas * int(r.integers(1, 3)), eos=(1, 3))
    size = r.uniform(0.5, 3.0)
    kept = {}

    def logits(block, step):
        if (block, step) not in kept:
            if step == 0:
                kept[block] = r.normal(size=(canvas, vocab))
            sharp = size * (1 + 1.5 * step)
            z = kept[block] * sharp + r.normal(size=(canvas, vocab)) * 0.5
            kept[block, step] = (30 * np.tanh(z / 30)).astype(np.float32)
        return kept[block, step]

    return vocab, canvas, p, logits


def trace(name, vocab, canvas, p, logits, seed):
    """One `generate` with prepared logits."""
    config = tiny_configs.Tiny(name, "sf", "diffusion-gemma", canvas=canvas, vocab=vocab, dense=32)
    model = tiny_models.diffusion(config)
    return Trace(canvas, vocab, seed, logits).run(model, [2, 4], **p)


def make_injected(w):
    for i, (name, vocab, canvas, p, logits) in enumerate(exact_cases()):
        blocks = trace(name, vocab, canvas, p, logits, 900 + i)
        check_meaning(name, blocks)
        w.case(name, vocab, canvas, p, blocks)


def make_random(w):
    made, seed = 0, 0
    while made < 24:
        vocab, canvas, p, logits = random_case(seed)
        blocks = trace(f"random-{seed}", vocab, canvas, p, logits, 5000 + seed)
        if margin(blocks, p) > 1e-4:
            w.case(f"random-{seed}", vocab, canvas, p, blocks)
            made += 1
        seed += 1


# ----------------------------------------------------------------------------- real forward passes

def make_generate(w):
    """The model is built again from its seed; the committed file must hold the same embedding."""
    for name, prompt_len, blocks in (("dg-base", 7, 3), ("dg-fused-c4", 11, 4), ("dg-underscore", 20, 2),
                                     ("dg-c16-w4", 5, 2)):
        t = next(x for x in tiny_configs.ALL if x.name == name)
        with open(os.path.join(HERE, "models", name + ".cases.txt"), encoding="ascii") as f:
            seed = next(int(x.split()[1]) for x in f if x.startswith("seed "))
        dg, _ = tiny_models.build(t, seed)
        check_same(name, dg)
        done = 0
        for attempt in range(200):
            g = np.random.default_rng(attempt)
            prompt = [2] + g.integers(0, t.vocab, prompt_len - 1).tolist()
            p = params(n=6, bound=2.0, stable=1 - done, confident=0.3, new=blocks * t.canvas, eos=(1,))
            got = Trace(t.canvas, t.vocab, 70 + attempt).run(dg, prompt, **p)
            if margin(got, p) < 2e-3:
                continue
            extra = [f"model {name}.gguf", f"prompt {join(prompt)}"]
            w.case(f"{name}-{attempt}", t.vocab, t.canvas, p, got, extra)
            done += 1
            if done == 2:
                break
        else:
            raise SystemExit(f"{name}: found only {done} prompts with clear decisions")


def check_same(name, dg):
    r = gguf.GGUFReader(os.path.join(HERE, "models", name + ".gguf"))
    x = next(x for x in r.tensors if x.name == "token_embd.weight")
    if not np.array_equal(x.data, dg.model.decoder.embed_tokens.weight.detach().numpy()):
        raise SystemExit(f"{name}.gguf was made with other weights: run make_models.py first")


def main():
    torch.set_num_threads(1)
    os.makedirs(OUT, exist_ok=True)
    for name, make in (("injected", make_injected), ("random", make_random), ("generate", make_generate)):
        w = Writer(name)
        with torch.no_grad():
            make(w)
        w.save()
        cases = sum(x.startswith("case") for x in w.lines)
        steps = sum(x.startswith("step") for x in w.lines)
        print(f"{name}: {cases} cases, {steps} steps, {w.count * 4} bytes of floats")


if __name__ == "__main__":
    main()
