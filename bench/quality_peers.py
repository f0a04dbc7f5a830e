#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""bench/results/quality-peers.json: what products of 8 bits lose beside those of other servers, in KL divergences from f32 on the same weights.

  bench/quality_peers.py [-n CONVERSATIONS] [-w WINDOWS] [-c CHECKED] [-o OUT] [--types T,T] [--planted T,T] [--factors F,F] [--sweep F,F]
    -n  conversations of the text, drawn by model/demo/corpus.py, held out from training [300]
    -w  windows of 256 tokens, of which 127 are scored [40]
    -c  windows on which `build/weft perplexity --backend ref --precision fast` is compared with the simulation, a minute each [2; 0: none]
    -o  folder of the record [bench/results]
    --types, --planted   types of the file as it is, and with planted outliers
    --factors, --sweep   of planted outliers; the sweep looks for the factor at which the bar is missed

Each case is written when it is measured, and one that the record has with the same windows is not measured again.

Needs torch and gguf. The demo model runs in PyTorch (model/demo/model.py) in f32 with keys and values in BF16, on weights as a file of the
type has them; only products with matrices of its layers differ, not the router, the head and attention:
  int8_256        weft on a card: rows and weights as integers with a scale for every 256 inputs (kernels/cuda/gemm/w8a8.h), in types that it takes
  int8_128        the same with 128 inputs to a scale
  int8_apart      as int8_256, with the channels whose norm weight is planted left out of the integers and multiplied in f32
  e4m3_tensor     FP8 as vLLM's option makes it: one scale for a weight (one for matrices that it joins: q, k, v; gate, up) and one for all rows of a
                  call, which is one window here, found from what they hold
  e4m3_token      FP8 as checkpoints are published: a scale for each output of a weight and for each row
and of files in MXFP4, whose weights both ways multiply as they are stored:
  int8_rows       rows as integers with a scale for every 256 inputs
  e4m3_mx         rows in e4m3 with a power of two for every 32 inputs, as mma with block scales reads them (compute capability 12.0)
Beside them stands what the product itself loses on cpu (8 bits with a scale for 32 inputs), from `build/weft perplexity`.
A loss is KL(f32 || products), over all scored tokens and over those of answers alone, which the demo was trained on. The file's own loss is KL(values before they were stored || file), both in f32. The demo is stored in Q8_0; for
that type an original is drawn that would be stored as this file: each value moved by a uniform part of half a step either way.

Planted outliers: the weights of four channels of each norm before a matrix times a factor, the columns of those matrices divided by it, and
then stored: what the file says in f32 is the P, whatever the type left of the small columns. Then outliers that no norm shows: four rows of up
times a factor, the columns of down divided by it.
"""
import argparse
import json
import math
import os
import random
import subprocess
import sys
import tempfile

import gguf
import numpy as np
import torch
import torch.nn.functional as F

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:0] = [os.path.join(ROOT, "bench"), os.path.join(ROOT, "model", "demo")]
import corpus  # noqa: E402
import facts  # noqa: E402
import requantise  # noqa: E402
import tasks  # noqa: E402
from check_reference import read  # noqa: E402
from model import angles, causal_masks, gelu, rms, rotate  # noqa: E402
from tokenizer import BOS, Tokenizer  # noqa: E402

DEMO = os.path.join(ROOT, "model", "demo", "weft-demo.gguf")
CONTEXT, WAYS = 256, ("int8_256", "int8_128", "int8_apart", "e4m3_tensor", "e4m3_token")
ROWS_ALONE = ("int8_rows", "e4m3_mx")  # of MXFP4
TYPES = "Q4_K,Q8_0,Q4_0,Q6_K,Q5_0,Q5_K,Q4_K_M"
torch.set_num_threads(1)  # the model is small: threads would wait for one another
EIGHT = {"Q8_0", "Q4_0", "Q5_0", "Q4_K", "Q5_K", "Q6_K"}  # types that weft multiplies in 8 bits
PLANTED = {"attn_norm": ("attn_q", "attn_k", "attn_v"), "ffn_norm": ("ffn_gate", "ffn_up"), "pre_ffw_norm_2": ("ffn_gate_up_exps",)}
CHANNELS = (37, 101, 160, 233)
E4M3_MOST = 448.0


# ---- numbers of 8 bits ----


def to_e4m3(x, scale):
    return (x / scale).clamp(-E4M3_MOST, E4M3_MOST).to(torch.float8_e4m3fn).float() * scale


def e4m3_scale(most):
    return (most / E4M3_MOST).clamp_min(1e-30)


def bf16_up(step):
    """Rounded to BF16, upwards."""
    near = step.to(torch.bfloat16).float()
    return torch.where(near < step, torch.nextafter(near.to(torch.bfloat16), torch.tensor(math.inf, dtype=torch.bfloat16)).float(), near)


def to_int8(x, span, most, up, zero=None):
    """Numbers as integers of at most `most` with a step for every `span` of the last dimension. up: steps are BF16. zero: what codes of 0 stand
    for, which is made an integer first, as a card does."""
    n = x.shape[-1]
    short = -n % span
    parts = F.pad(x, (0, short)).unflatten(-1, (-1, span))
    step = parts.abs().amax(-1, keepdim=True) / most
    step = bf16_up(step) if up else step
    inverse = torch.where(step > 0, 1.0 / step, torch.zeros_like(step))
    if zero is None:
        return ((parts * inverse).round() * step).flatten(-2)[..., :n]
    zero = F.pad(zero, (0, short)).unflatten(-1, (-1, span))
    return (((zero * inverse).round() + (parts - zero) * inverse).round() * step).flatten(-2)[..., :n]


def zero_points(data, kind):
    """What a stored code of 0 stands for, for each number of a matrix in a type that weft multiplies in 8 bits: the file's own bytes."""
    size, count = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][::-1]
    blocks = data.reshape(*data.shape[:-1], -1, size)
    first = blocks[..., :2].copy().view(np.float16).astype(np.float32)
    if count == 32:
        zero = -{"Q8_0": 128, "Q4_0": 8, "Q5_0": 16}[kind] * first
    elif kind == "Q6_K":
        d = blocks[..., 208:210].copy().view(np.float16).astype(np.float32)
        zero = -32 * d * blocks[..., 192:208].copy().view(np.int8).astype(np.float32)
    else:
        dmin, six = blocks[..., 2:4].copy().view(np.float16).astype(np.float32), blocks[..., 4:16]
        least = np.concatenate((six[..., 4:8] & 63, six[..., 8:12] >> 4 | six[..., 4:8] >> 6 << 4), -1)
        zero = -dmin * least.astype(np.float32)
    each = count // zero.shape[-1]
    return torch.from_numpy(np.repeat(zero, each, -1).reshape(*data.shape[:-1], -1))


class Products:
    """Products of one way. Weights are made once. zeros: of weights by name (zero_points)."""

    def __init__(self, way, types, apart, zeros=None):
        self.way, self.types, self.apart, self.made, self.zeros = way, types, apart, {}, zeros or {}

    def is_exact(self, name):
        if self.way in ROWS_ALONE:
            return self.types[name] != "MXFP4"
        return self.way == "f32" or (self.way.startswith("int8") and self.types[name] not in EIGHT)

    def outliers(self, name):
        """Columns that are multiplied apart."""
        stem = name.split(".")[-2]
        return self.apart.get(stem, []) if self.way == "int8_apart" else []

    def weight(self, names, weights, i):
        """Weight i of those that are joined. A stack of matrices has a scale for each of them."""
        name, w = names[i], weights[i]
        if self.is_exact(name) or self.way in ROWS_ALONE:
            return w
        if name in self.made:
            return self.made[name]
        if self.way.startswith("int8"):
            rest = w.clone()
            rest[..., self.outliers(name)] = 0
            made = to_int8(rest, 128 if self.way == "int8_128" else 256, 126.0, True, self.zeros.get(name))
        elif self.way == "e4m3_tensor":
            most = torch.stack([v.abs().amax((-1, -2), keepdim=True) for v in weights]).amax(0)
            made = to_e4m3(w, e4m3_scale(most))
        else:
            made = to_e4m3(w, e4m3_scale(w.abs().amax(-1, keepdim=True)))
        self.made[name] = made
        return made

    def rows(self, name, x, window=None):
        """Rows as they are multiplied: [windows, tokens, n], or [rows, n] with the window of each, whose rows are one call's."""
        if self.is_exact(name):
            return x
        if self.way.startswith("int8"):
            x = x.clone() if self.outliers(name) else x
            x[..., self.outliers(name)] = 0
            return to_int8(x, 128 if self.way == "int8_128" else 256, 127.0, False)
        if self.way == "e4m3_mx":
            parts = x.unflatten(-1, (-1, 32))
            most = parts.abs().amax(-1, keepdim=True).clamp(min=2.0**-100)
            return to_e4m3(parts, torch.exp2(torch.ceil(torch.log2(most / E4M3_MOST)))).flatten(-2)  # none is cut
        most = x.abs().amax(-1, keepdim=True)
        if self.way == "e4m3_tensor" and window is None:
            most = most.amax(-2, keepdim=True)
        elif self.way == "e4m3_tensor":
            of_window = torch.zeros(int(window.max()) + 1).scatter_reduce(0, window, most[:, 0], "amax")
            most = of_window[window][:, None]
        return to_e4m3(x, e4m3_scale(most))

    def many(self, names, x, weights):
        """x with each of the weights that are joined."""
        out = []
        for i, name in enumerate(names):
            y = F.linear(self.rows(name, x), self.weight(names, weights, i))
            own = [] if self.is_exact(name) else self.outliers(name)
            out.append(y + F.linear(x[..., own], weights[i][..., own]) if own else y)
        return out

    def one(self, name, x, weight):
        return self.many([name], x, [weight])[0]


# ---- the model ----


def bf16(x):
    return x.to(torch.bfloat16).float()


def attend(block, i, x, turn, mask, products):
    b, t, _ = x.shape
    hd = block.cfg.head_dim[block.kind]
    h = block.norm(x, block.attn_norm)
    own = [("attn_q", block.wq), ("attn_k", block.wk)] + ([("attn_v", block.wv)] if block.wv is not None else [])
    made = products.many([f"blk.{i}.{n}.weight" for n, _ in own], h, [w for _, w in own])
    q = rotate(block.norm(made[0].view(b, t, -1, hd), block.q_norm), *turn)
    raw = made[1].view(b, t, -1, hd)
    k = bf16(rotate(block.norm(raw, block.k_norm), *turn))
    v = bf16(block.norm(raw if block.wv is None else made[2].view(b, t, -1, hd)))
    n = q.shape[2] // k.shape[2]
    q, k, v = (a.transpose(1, 2) for a in (q, k, v))
    k, v = k.repeat_interleave(n, 1), v.repeat_interleave(n, 1)
    o = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=1.0).transpose(1, 2).flatten(-2)
    return x + block.norm(products.one(f"blk.{i}.attn_output.weight", o, block.wo), block.post_attn_norm)


def feed_forward(block, i, a, products):
    cfg, name = block.cfg, f"blk.{i}.{{}}.weight".format
    n = block.norm(a, block.ffn_norm)
    g, u = products.many([name("ffn_gate"), name("ffn_up")], n, [block.gate, block.up])
    m = products.one(name("ffn_down"), gelu(g) * u, block.down)
    w, _, chosen = block.route(a)
    u = block.norm(a, block.pre_norm_2)
    up, down = name("ffn_gate_up_exps"), name("ffn_down_exps")
    columns, rows = products.weight([up], [block.gate_up], 0), products.rows(up, u)
    own, f, made, at = [] if products.is_exact(up) else products.outliers(up), cfg.expert_size, [], []
    for e in range(cfg.experts):  # the rows that chose it
        at.append(chosen[..., e].nonzero(as_tuple=True))
        y = F.linear(rows[at[e]], columns[e])
        y = y + F.linear(u[at[e]][:, own], block.gate_up[e][:, own]) if own else y
        made.append(gelu(y[:, :f]) * y[:, f:])
    h = products.rows(down, torch.cat(made), torch.cat([w for w, _ in at])).split([len(y) for y in made])
    columns, y = products.weight([down], [block.exp_down], 0), torch.zeros_like(a)
    for e in range(cfg.experts):
        part = F.linear(h[e], columns[e])
        if products.way.startswith("int8") and not products.is_exact(down):
            part = bf16(part)
        y[at[e]] += part * w[at[e]][:, e, None]
    return a + block.norm(block.norm(m, block.post_norm_1) + block.norm(y, block.post_norm_2), block.post_norm)


@torch.no_grad()
def predict(model, windows, products):
    """Log probabilities at the scored positions: [windows, 127, vocabulary]."""
    out, positions, masks = [], torch.arange(CONTEXT)[None], causal_masks(model.cfg, CONTEXT, "cpu")
    turn = {kind: angles(model.cfg, kind, positions) for kind in set(model.cfg.layers)}
    for group in windows.split(8):
        x = model.look_up(group)
        for i, block in enumerate(model.blocks):
            a = attend(block, i, x, turn[block.kind], masks[block.kind], products)
            x = feed_forward(block, i, a, products) * block.enc_scalar
        out.append(model.head(x[:, CONTEXT // 2 : CONTEXT - 1]).double().log_softmax(-1).float())
    return torch.cat(out)


# ---- numbers of a comparison ----


def quantile(freedom):
    """Of Student's t, 97.5 %, by Cornish and Fisher's expansion (good to 1e-3 from ten windows on)."""
    z = 1.959963985
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def interval(values):
    mean = values.mean().item()
    half = quantile(len(values) - 1) * values.std().item() / math.sqrt(len(values))
    return mean, [mean - half, mean + half]


def divergences(p, q):
    """KL(P || Q) of each window and scored token."""
    return (p.double().exp() * (p.double() - q.double())).sum(-1)


def over_answers(of_tokens, answers):
    """Of each window that has some: the mean over tokens of answers."""
    n = answers.sum(-1)
    return ((of_tokens * answers).sum(-1) / n.clamp_min(1))[n > 0]


def summary(of_tokens, answers):
    mean, ends = interval(of_tokens.mean(-1))
    of_answers, ends_of_answers = interval(over_answers(of_tokens, answers))
    return dict(mean=mean, mean_interval=ends, median=of_tokens.median().item(), answers=of_answers, answers_interval=ends_of_answers)


def answers_of(windows):
    """Which scored tokens are of answers, the end of the turn among them."""
    tok, out = Tokenizer.load(), torch.zeros_like(windows, dtype=torch.bool)
    for w, row in enumerate(windows.tolist()):
        inside = False
        for i, token in enumerate(row):
            if token == tok.turn:
                inside = row[i + 1 : i + 3] == tok.encode("model\n")
            out[w, i] = inside and token != tok.turn
            inside = inside and token != tok.turn_end
    return out[:, CONTEXT // 2 + 1 :]


# ---- files ----


def text_of(conversations):
    """The text that `model/demo/corpus.py CONVERSATIONS 1` prints."""
    r = random.Random(1)
    return "".join(corpus.render(tasks.conversation(r, want_held_out=True)[0]) for _ in range(conversations))


def windows_of(text, n):
    ids = [BOS, *Tokenizer.load().encode(text.removesuffix("\n"), special=True)]
    n = min(n, len(ids) // CONTEXT)
    windows = torch.tensor(ids[: n * CONTEXT]).view(n, CONTEXT)
    windows[:, 0] = BOS
    return windows


def plant(case):
    """A change of a file's values (requantise.write_again)."""
    factor, layers, at = case["factor"], case.get("layers"), list(CHANNELS)

    def change(values):
        for name, value in values.items():
            words = name.split(".")
            if words[0] != "blk" or words[3] != "weight" or (layers is not None and int(words[1]) not in layers):
                continue
            if case.get("planted") == "up":
                plant_in_up(words[2], value, factor)
            elif words[2] in PLANTED:
                value[at] *= factor
            elif any(words[2] in matrices for matrices in PLANTED.values()):
                value[..., at] /= factor

    return change


def plant_in_up(stem, value, factor):
    """Four rows of up, dense and of each expert (the second half of gate and up), and the columns of down."""
    at = [c % 96 for c in CHANNELS]
    if stem == "ffn_up":
        value[at] *= factor
    elif stem == "ffn_gate_up_exps":
        value[:, [value.shape[1] // 2 + c for c in at]] *= factor
    elif stem in ("ffn_down", "ffn_down_exps"):
        value[..., at] /= factor


def spread(values):
    """What --precision auto looks at (model/eight_bits.h): over all spans of 256 of norms before a matrix, the mean of (largest / median)^2."""
    found = []
    for name, value in values.items():
        if name.split(".")[-2] in PLANTED:
            for first in range(0, len(value), 256):
                span = np.abs(value[first : first + 256])
                found.append((span.max() / np.sort(span)[len(span) // 2]) ** 2)
    return float(np.mean(found))


def values_of(path):
    tensors = gguf.GGUFReader(path).tensors
    values = {t.name: np.array(gguf.quants.dequantize(t.data, t.tensor_type), dtype=np.float32) for t in tensors}
    return values, {t.name: t.tensor_type.name for t in tensors}


def before_q8_0(values):
    """Values that Q8_0 would store as these, drawn by chance."""
    r = np.random.default_rng(1)
    for name, value in values.items():
        if value.ndim > 1 and "ffn_gate_inp" not in name:
            blocks = value.reshape(-1, 32)
            step = np.abs(blocks).max(-1, keepdims=True) / 127
            moved = blocks + step * r.uniform(-0.5, 0.5, blocks.shape).astype(np.float32)
            largest = np.abs(blocks) == np.abs(blocks).max(-1, keepdims=True)
            value[...] = np.where(largest, blocks, moved).reshape(value.shape)


def saved_rows(path, n_vocab):
    """Log probabilities of a file of `weft perplexity --save-logits` (bench/quality/distribution.h)."""
    per, row = CONTEXT - CONTEXT // 2 - 1, 12 + 2 * n_vocab
    with open(path, "rb") as f:
        data = np.frombuffer(f.read()[512:], dtype=np.uint8).reshape(-1, per * row + 8)[:, : per * row].reshape(-1, per, row)
    step, below = data[..., :4].copy().view(np.float32), data[..., 12:].copy().view(np.uint16)
    return torch.from_numpy(-(below * step.astype(np.float64))).log_softmax(-1)


def run_weft(path, n, work, *options):
    """`weft perplexity` on the first n windows of the text: its record."""
    run = [os.path.join(ROOT, "build", "weft"), "perplexity", "-m", path, "-f", f"{work}/text", "--special", "-c", str(CONTEXT), "--chunks", str(n), "-q",
           "--json", "--mode", "ar", *options]
    return json.loads(subprocess.run(run, check=True, capture_output=True, text=True).stdout)


def ask_cpu(path, n, work):
    """What the product loses on cpu, which multiplies the same values in f32 where the file is one of F32."""
    requantise.write_again(path, f"{work}/f32.gguf", "F32")
    run_weft(f"{work}/f32.gguf", n, work, "--backend", "cpu", "--save-logits", f"{work}/rows")
    kl = run_weft(path, n, work, "--backend", "cpu", "--kl", f"{work}/rows")["results"][0]["kl"]
    return dict(mean=kl["mean"], mean_interval=kl["mean_interval"], median=kl["median"])


def ask_ref(path, p, q, work):
    """The product on `ref` beside the simulation, on the windows of p and q: the loss of each, and how far they are from one another."""
    requantise.write_again(path, f"{work}/f32.gguf", "F32")
    run_weft(f"{work}/f32.gguf", len(p), work, "--backend", "cpu", "--save-logits", f"{work}/exact")
    run_weft(path, len(p), work, "--backend", "ref", "--precision", "fast", "--save-logits", f"{work}/fast")
    exact, fast = (saved_rows(f"{work}/{name}", p.shape[-1]) for name in ("exact", "fast"))
    middle = lambda x: dict(mean=x.mean().item(), median=x.median().item(), p90=x.quantile(0.9).item())
    return dict(windows=len(p), loss_of_product=middle(divergences(exact, fast)), loss_simulated=middle(divergences(p, q)),
                product_to_simulated=middle(divergences(fast, q)), f32_to_simulated_f32=middle(divergences(exact, p)))


# ---- runs ----


def text_of_record(record):
    """JSON with one line for each case."""
    cases = {name: "[" + ",".join(f"\n  {json.dumps(case)}" for case in record[name]) + "]" for name in ("cases", "sweep")}
    rest = [f" {json.dumps(name)}: {cases.get(name) or json.dumps(value)}" for name, value in record.items()]
    return "{\n" + ",\n".join(rest) + "\n}\n"


def rounded(value):
    """Numbers to six digits, so that the record is short."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    return [rounded(each) for each in value] if isinstance(value, list) else value


def measure(case, windows, original, work):
    """One file: losses of each way, paired over windows with those of the peers, and the bar."""
    path = f"{work}/case.gguf"
    requantise.write_again(DEMO, path, case["type"], plant(case))
    values, types = values_of(path)
    model = read(path)
    zeros = {t.name: zero_points(t.data, t.tensor_type.name) for t in gguf.GGUFReader(path).tensors if t.tensor_type.name in EIGHT}
    apart = {m: list(CHANNELS) for matrices in PLANTED.values() for m in matrices} if case["factor"] > 1 and "planted" not in case else {}
    p = predict(model, windows, Products("f32", types, apart))
    entry = dict(case, norm_spread=spread(values), losses={})
    of = {"file": divergences(original, p)}
    if case["type"] == "Q8_0" and case["factor"] == 1:
        requantise.write_again(DEMO, f"{work}/before.gguf", "F32", before_q8_0)
        of["file"] = divergences(predict(read(f"{work}/before.gguf"), windows, Products("f32", types, {})), p)
    for way in case["ways"]:
        q = predict(model, windows, Products(way, types, apart, zeros))
        of[way] = divergences(p, q)
        if way == "int8_256" and case.get("checked"):
            entry["checked"] = ask_ref(path, p[: case["checked"]], q[: case["checked"]], work)
    entry["cpu"] = ask_cpu(path, len(windows), work)
    answers = answers_of(windows)
    for name, each in of.items():
        entry["losses"][name] = summary(each, answers)
    judged = "int8_256" if "int8_256" in of else "e4m3_mx"
    if "e4m3_token" in of:
        margins = {f"half_of_{peer}": of[judged] - 0.5 * of[peer] for peer in ("e4m3_tensor", "e4m3_token")}
        margins["file"] = of[judged] - of["file"]
        entry[f"{judged}_less"] = {name: summary(each, answers) for name, each in margins.items()}
        entry["passes"] = {name: each["mean_interval"][1] <= 0 for name, each in entry[f"{judged}_less"].items()}
        entry["passes_in_answers"] = {name: each["answers_interval"][1] <= 0 for name, each in entry[f"{judged}_less"].items()}
    line = " ".join(f"{name} {each['mean']:.5f} ({each['answers']:.5f})" for name, each in entry["losses"].items())
    print(f"{case['type']:7s} x{case['factor']:<6g} {case.get('layers') or case.get('planted') or 'all'} spread {entry['norm_spread']:9.3f}  {line}  {entry.get('passes')} {entry.get('passes_in_answers')}", flush=True)
    if "checked" in entry:
        print("        held to the product:", entry["checked"], flush=True)
    del entry["ways"]
    return entry


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("-n", type=int, default=300)
    parser.add_argument("-w", type=int, default=40)
    parser.add_argument("-c", type=int, default=2)
    parser.add_argument("-o", default=os.path.join(ROOT, "bench", "results"))
    parser.add_argument("--types", default=TYPES)
    parser.add_argument("--planted", default="Q8_0,Q4_K")
    parser.add_argument("--factors", default="30,300,1000")
    parser.add_argument("--sweep", default="2,3,4")
    a = parser.parse_args()
    text = text_of(a.n)
    windows = windows_of(text, a.w)
    record = dict(facts.facts(facts.identity(DEMO)), command="bench/quality_peers.py " + " ".join(sys.argv[1:]), text=f"model/demo/corpus.py {a.n} 1",
                  windows=len(windows), context=CONTEXT, scored=len(windows) * 127, runs="one: what is computed is the same every time",
                  spread="95 % intervals of the means over windows", cases=[], sweep=[])
    path = os.path.join(a.o, "quality-peers.json")
    if os.path.exists(path):
        with open(path, encoding="utf-8") as f:
            old = json.load(f)
        if (old["windows"], old["text"], old["model"]) == (record["windows"], record["text"], record["model"]):
            record["cases"], record["sweep"] = old["cases"], old["sweep"]

    def add(name, case):
        same = [c for c in record[name] if all(c.get(k) == case.get(k) for k in ("type", "factor", "layers", "planted"))]
        if not same or "checked" in case and "checked" not in same[0]:
            record[name] = [c for c in record[name] if c not in same] + [measure(case, windows, original, work)]
        elif "cpu" not in same[0]:
            requantise.write_again(DEMO, f"{work}/case.gguf", case["type"], plant(case))
            same[0]["cpu"] = ask_cpu(f"{work}/case.gguf", len(windows), work)
        else:
            return
        with open(path, "w", encoding="utf-8") as f:
            f.write(text_of_record(rounded(record)))

    with tempfile.TemporaryDirectory() as work:
        with open(f"{work}/text", "w", encoding="utf-8") as f:
            f.write(text)
        demo, types = read(DEMO), values_of(DEMO)[1]
        original = predict(demo, windows, Products("f32", types, {}))
        for factor in [1.0, *map(float, filter(None, a.factors.split(",")))]:
            for kind in (a.types if factor == 1 else a.planted).split(","):
                case = dict(type=kind, factor=factor, ways=[*ROWS_ALONE, "e4m3_tensor", "e4m3_token"] if kind == "MXFP4" else [w for w in WAYS if w != ("int8_128" if factor > 1 else "int8_apart")])
                if a.c and kind == "Q8_0" and factor == 1:
                    case["checked"] = a.c
                add("cases", case)
        for factor in map(float, filter(None, a.sweep.split(","))):
            for layers in (None, [2]):
                case = dict(type="Q4_K", factor=factor, layers=layers, ways=["int8_256", "e4m3_tensor", "e4m3_token"])
                add("sweep", case)
        add("sweep", dict(type="Q4_K", factor=30.0, planted="up", ways=["int8_256", "e4m3_tensor", "e4m3_token"]))


if __name__ == "__main__":
    main()
