# SPDX-License-Identifier: MIT
"""Makes models/NAME.gguf, models/NAME.cases.txt and models/NAME.q24 from transformers.

    python make_models.py [NAME ...]          all models without names

The reference is float32, eager attention, and a DynamicCache built from the text configuration, as
`generate` does it. README.md states the formats.
"""

import os
import sys

import numpy as np
import torch
from transformers import DynamicCache
from transformers.models.diffusion_gemma.generation_diffusion_gemma import (
    LinearTemperatureScheduleLogitsProcessor)

import check_models
import golden_floats
import tiny_configs
import tiny_deepseek4
import tiny_deepseek41
import tiny_gguf
import tiny_gpt_oss
import tiny_llama
import tiny_models
import tiny_more
import tiny_qwen35
import tiny_shared

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "models")
MIN_ROUTER_GAP = 2e-4    # smallest distance, in router logits, between the last chosen expert and the next


MIN_CHOICE_GAP = 2e-5    # the same of scores of far rows (deepseek4)
MAX_ROUNDING = 2e-5      # largest distance to the float64 pass of check_models.py, in parts of the range
WHOLE = ("ar-base",)     # all floats in 24 bits: tests/http/api_echo.c judges probabilities of it, by 1e-4 nats


class Unsteady(Exception):
    """Rounding alone could choose another expert, or moves logits too far: draw other weights."""


class Recorder:
    """Collects floats for the .q24 file and lines for the .cases.txt file."""

    def __init__(self):
        self.parts, self.count, self.lines = [], 0, []

    def floats(self, x):
        x = np.ascontiguousarray(x.detach().numpy(), dtype="<f4")
        at = self.count
        self.parts.append(x.tobytes())
        self.count += x.size
        return at

    def line(self, text):
        self.lines.append(text)


class Watch:
    """Hooks that keep the residual stream before the first layer and after each layer, and the
    smallest router gap seen."""

    def __init__(self, layers, top_k):
        self.seen, self.gap, self.top_k = [], float("inf"), top_k
        self.handles = [layers[0].register_forward_pre_hook(self.first, with_kwargs=True)]
        for layer in layers:
            self.handles.append(layer.register_forward_hook(self.after))
            if hasattr(layer, "router"):
                self.handles.append(layer.router.register_forward_hook(self.routed))
            if hasattr(layer.mlp, "experts"):
                router = layer.mlp.gate if hasattr(layer.mlp, "gate") else layer.mlp.router
                self.handles.append(router.register_forward_hook(self.routed_logits))

    def first(self, _module, args, kwargs):
        x = args[0] if args else kwargs["hidden_states"]
        self.seen = [x.detach().clone()]

    def after(self, _module, _args, out):
        self.seen.append((out[0] if isinstance(out, tuple) else out).detach().clone())

    def routed(self, _module, _args, out):
        self.judge(torch.log(out[0]), self.top_k)

    def routed_logits(self, module, _args, out):
        if hasattr(module, "tid2eid"):
            return
        bias = getattr(module, "e_score_correction_bias", None)
        ranks = out[0] if bias is None else getattr(module, "score_fn", torch.sigmoid)(out[0]) + bias
        n = getattr(module, "num_group", 1)
        if n > 1:
            runs = ranks.view(len(ranks), n, -1)
            best = runs.topk(1 if bias is None else 2).values.sum(-1)
            self.judge(best, module.topk_group)
            closed = best < best.topk(module.topk_group).values[:, -1:]
            ranks = runs.masked_fill(closed[..., None], -1e9).view(len(ranks), -1)
        self.judge(ranks, self.top_k)

    def judge(self, ranks, k):
        p = torch.sort(ranks, dim=-1, descending=True).values
        if k < p.shape[-1]:
            self.gap = min(self.gap, (p[:, k - 1] - p[:, k]).min().item())

    def stream(self):
        return torch.stack([x[0] for x in self.seen])


class Session:
    """One sequence: an encoder cache, and for diffusion a canvas over it."""

    def __init__(self, t, dg, ar, rec, watch):
        self.t, self.dg, self.ar, self.rec, self.watch = t, dg, ar, rec, watch
        self.ar_cache = DynamicCache(config=ar.config) if ar.config is not None else DynamicCache()
        self.dg_cache = DynamicCache(config=dg.config.text_config) if dg is not None else None
        self.length = 0

    def encode(self, tokens, hidden):
        ids = torch.tensor([tokens])
        logits = self.ar(input_ids=ids, past_key_values=self.ar_cache, use_cache=True).logits[0]
        stream = self.watch["ar"].stream() if hidden or self.dg is not None else None
        if self.dg is not None:
            self.check_encoder(ids, logits)
        at = self.rec.floats(logits)
        self.rec.line(f"encode {len(tokens)} {at} {join(tokens)}")
        if hidden:
            self.rec.line(f"hidden {self.rec.floats(stream)}")
        self.length += len(tokens)
        return logits

    def check_encoder(self, ids, logits):
        """The diffusion encoder must agree with the gemma4 class of the same tensors."""
        last = self.dg.model.encoder(input_ids=ids, past_key_values=self.dg_cache).last_hidden_state
        z = self.dg.lm_head(last)[0]
        z = self.t.softcap * torch.tanh(z / self.t.softcap)
        if (z - logits).abs().max().item() > 1e-4:
            raise SystemExit(f"{self.t.name}: encoder and gemma4 classes disagree")

    def canvas(self, tokens, previous, hidden):
        """`previous` is None or (offset, logits, temperature) of the step before."""
        sc = None if previous is None else (previous[1] / previous[2])[None]
        out = self.dg(decoder_input_ids=torch.tensor([tokens]), past_key_values=self.dg_cache,
                      self_conditioning_logits=sc,
                      decoder_attention_mask=torch.ones(1, self.length + len(tokens)).bool())
        logits = out.logits[0]
        at = self.rec.floats(logits)
        tail = "none 0" if previous is None else f"{previous[0]} {previous[2].item():.9g}"
        self.rec.line(f"canvas {len(tokens)} {at} {tail} {join(tokens)}")
        if hidden:
            self.rec.line(f"hidden {self.rec.floats(self.watch['dg'].stream())}")
        return at, logits


def join(tokens):
    return ",".join(str(int(x)) for x in tokens)


def temperature(t, step):
    """Temperature of denoise step 0, 1, ...: the divisor inside the reference's own schedule."""
    eb = t.eb_keys or tiny_configs.EB
    n = eb["eb_max_steps"]
    schedule = LinearTemperatureScheduleLogitsProcessor(eb["eb_t_min"], eb["eb_t_max"], n)
    kept = Divided()
    schedule(None, kept, torch.tensor(n - step, dtype=torch.int32))
    return kept.by


class Divided:
    """Stands in for the scores and keeps what they are divided by."""

    def __truediv__(self, other):
        self.by = other
        return self


def autoregressive(t):
    """The module that builds and writes a model of a family without canvases; None of gemma4."""
    families = (tiny_llama, tiny_gpt_oss, tiny_qwen35, tiny_deepseek4, tiny_deepseek41, tiny_more, tiny_shared)
    return next((m for m in families if type(t) is m.Tiny), None)


def prompt_lengths(t):
    if getattr(t, "prompts", ()):
        return list(t.prompts)
    if t.window == 0:
        return [1, 7, 8, 9, 16, 17, 40]
    w, c = t.window, max(t.canvas, 8)
    if w > 64:  # every row of a prompt is at an edge of its own
        return [1, w + 1, w + 11]
    lengths = {1, 3, w - 1, w, w + 1, 2 * w - 1, w + c + 3}
    return sorted(n for n in lengths if n > 0)


def draw_tokens(g, n, vocab, bos):
    x = torch.randint(0, vocab, (n,), generator=g).tolist()
    if bos:
        x[0] = 2
    return x


def ar_cases(t, session, g):
    longest, window = max(prompt_lengths(t)), t.window or 8
    for n in prompt_lengths(t):
        s = session(f"prompt-{n}")
        s.encode(draw_tokens(g, n, t.vocab, True), not hasattr(t, "streams") and n == (window + 1 if window <= 64 else 1))
    s = session("cached")
    s.encode(draw_tokens(g, window - 2, t.vocab, True), False)
    for n in (1, 1, 1, 1, window + 2, 1):
        s.encode(draw_tokens(g, n, t.vocab, False), False)
    if getattr(t, "prompts", ()):
        return
    s = session("no-bos")
    s.encode(draw_tokens(g, longest - 2, t.vocab, False), False)


def dg_cases(t, session, g, whole):
    """Two blocks behind a prompt; unless whole, one, but where it is one token, a window, one more, or the longest."""
    lengths = prompt_lengths(t)
    for n in lengths:
        s = session(f"prompt-{n}")
        hidden = n == t.window + 1
        two = whole or n in (1, t.window, t.window + 1, lengths[-1])
        s.encode(draw_tokens(g, n, t.vocab, True), hidden)
        for block in range(2):
            previous = None
            for step in range(3 if hidden else 2):
                tokens = draw_tokens(g, t.canvas, t.vocab, False)  # not used, too: the cases after it stay
                if block > 0 and not two:
                    continue
                at, logits = s.canvas(tokens, previous, hidden and block == 0 and step < 2)
                previous = (at, logits, temperature(t, step))
            if block == 0 and two:
                s.encode(logits.argmax(dim=-1).tolist(), False)


@torch.no_grad()
def make(t, seed, whole):
    dg, ar = (None, autoregressive(t).build(t, seed)) if autoregressive(t) else tiny_models.build(t, seed)
    rec = Recorder()
    watch = {"ar": Watch(ar.model.layers, t.top_k)}
    if dg is not None:
        watch["dg"] = Watch(dg.model.decoder.layers, t.top_k)
    g = torch.Generator().manual_seed(seed + 7)

    def session(name):
        rec.line(f"case {name}")
        return Session(t, dg, ar, rec, watch)

    if t.diffusion:
        dg_cases(t, session, g, whole)
    else:
        ar_cases(t, session, g)
    gap = min([w.gap for w in watch.values()] + [getattr(ar, "gap", float("inf"))])
    if gap < MIN_ROUTER_GAP:
        raise Unsteady(f"router gap {gap:.2g}")
    floats = b"".join(rec.parts)
    top = np.abs(np.frombuffer(floats, "<f4")).max()
    return dg, ar, rec, floats, gap, top


def save(t, dg, ar, rec, floats, seed):
    base = os.path.join(OUT, t.name)
    if autoregressive(t):
        autoregressive(t).write(base + ".gguf", t, ar)
    else:
        tiny_gguf.write(base + ".gguf", t, ar if dg is None else dg, dg is not None)
    lines = ["weft-golden-model 1", f"gguf {t.name}.gguf", f"arch {t.arch}"]
    if t.twin:
        lines.append("twin gemma4")
    lines += [f"n_vocab {t.vocab}", f"n_hidden {t.hidden}", f"n_layers {t.layers}", f"n_window {t.window}",
              f"n_canvas {t.canvas}", f"n_floats {rec.count}", f"seed {seed}"]
    with open(base + ".cases.txt", "w", encoding="ascii") as f:
        f.write("\n".join(lines + rec.lines) + "\n")
    head, ops = check_models.read_cases(t.name)
    family, exact = check_models.family_of(t.name), np.frombuffer(floats, "<f4").astype(np.float64)
    fine = None if t.name in WHOLE else check_models.fed(ops)
    golden_floats.write(base, exact, check_models.blocks_of(head, ops), fine)
    if hasattr(family.Run, "least_gap"):
        family.Run.least_gap = np.inf
    err, _ = check_models.compare(family.Model(base + ".gguf"), head, ops, exact, (), family.Run)
    if err > MAX_ROUNDING:
        raise Unsteady(f"rounding {err:.2g}")
    if getattr(family.Run, "least_gap", 1) < MIN_CHOICE_GAP:
        raise Unsteady(f"gap of chosen rows {family.Run.least_gap:.2g}")
    return err


def main():
    torch.set_num_threads(1)
    os.makedirs(OUT, exist_ok=True)
    wanted = set(sys.argv[1:])
    unknown = wanted - {t.name for t in check_models.ALL}
    if unknown:
        raise SystemExit(f"unknown model {sorted(unknown)}")
    for t in check_models.ALL:
        if wanted and t.name not in wanted:
            continue
        for seed in range(t.seed * 1000, t.seed * 1000 + 100):
            try:
                for whole in (True, False):  # all are judged, less is kept
                    dg, ar, rec, floats, gap, top = make(t, seed, whole)
                    err = save(t, dg, ar, rec, floats, seed)
                break
            except Unsteady:
                continue
        else:
            raise SystemExit(f"{t.name}: no steady seed found")
        cases = sum(x.startswith("case") for x in rec.lines)
        print(f"{t.name}: seed {seed}, {cases} cases, router gap {gap:.2g}, rounding {err:.1e}, largest {top:.3f}")


if __name__ == "__main__":
    main()
